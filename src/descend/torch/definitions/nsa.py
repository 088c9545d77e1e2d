"""The compression of native sparse attention."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
from torch import Tensor

from descend.torch.definitions.tensors import widened


def nsa_compress(
    input: Tensor,
    weight: Tensor,
    act_seq_len: Sequence[int] | None = None,
    *,
    layout: str | None = "TND",
    compress_block_size: int,
    compress_stride: int,
    act_seq_len_type: int = 0,
) -> Tensor:
    """``output`` of the compression of native sparse attention."""
    windows = _windows(input, act_seq_len, compress_block_size, compress_stride, act_seq_len_type)
    return (_tokens_of(input, windows) * widened(weight).unsqueeze(-1)).sum(1).to(input.dtype)


def nsa_compress_grad(
    output_grad: Tensor,
    input: Tensor,
    weight: Tensor,
    act_seq_len: Sequence[int] | None = None,
    *,
    compress_block_size: int,
    compress_stride: int,
    act_seq_len_type: int = 0,
    layout: str | None = "TND",
) -> tuple[Tensor, Tensor]:
    """``input_grad`` and ``weight_grad`` of the compression of native sparse attention."""
    windows = _windows(input, act_seq_len, compress_block_size, compress_stride, act_seq_len_type)
    grad = widened(output_grad).unsqueeze(1)
    spread = (grad * widened(weight).unsqueeze(-1)).flatten(0, 1)
    input_grad = torch.zeros_like(widened(input)).index_add(0, windows.flatten(), spread)
    weight_grad = (grad * _tokens_of(input, windows)).sum((0, 3))
    return input_grad.to(input.dtype), weight_grad.to(weight.dtype)


def _windows(input: Tensor, act_seq_len: Sequence[int] | None, width: int, stride: int, kind: int) -> Tensor:
    """The tokens of each window, [windows, W]."""
    sequences = _sequences(input.shape[0], act_seq_len, kind)
    starts = [s for begin, end in sequences for s in range(begin, end - width + 1, stride)]
    first = torch.tensor(starts, dtype=torch.int64, device=input.device)
    return first.unsqueeze(1) + torch.arange(width, device=input.device)


def _tokens_of(input: Tensor, windows: Tensor) -> Tensor:
    """What the windows hold, [windows, W, N, D]. (Indexing's gradient does not go through vmap.)"""
    tokens: Tensor = widened(input).index_select(0, windows.flatten())
    return tokens.reshape(*windows.shape, *input.shape[1:])


def count_windows(tokens: int, act_seq_len: Sequence[int] | None, width: int, stride: int, kind: int) -> int:
    """The number of windows in all sequences: none across two."""
    sequences = _sequences(tokens, act_seq_len, kind)
    # Without a branch: lengths may be symbols of which nothing is known.
    return sum(torch.sym_max((end - begin - width) // stride + 1, 0) for begin, end in sequences)


def _sequences(tokens: int, act_seq_len: Sequence[int] | None, kind: int) -> list[tuple[int, int]]:
    """The first token of each sequence, and that after its last."""
    lengths = list(act_seq_len or [tokens])
    ends = lengths if kind == 0 else list(itertools.accumulate(lengths))
    return list(zip([0, *ends[:-1]], ends, strict=True))
