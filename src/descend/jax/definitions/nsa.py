"""The compression of native sparse attention."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from descend.jax.definitions.arrays import Array, widened


def nsa_compress(
    input: Array,
    weight: Array,
    act_seq_len: Sequence[int] | None,
    layout: str | None,
    compress_block_size: int,
    compress_stride: int,
    act_seq_len_type: int,
) -> tuple[Array]:
    """``output`` of the compression of native sparse attention."""
    windows = _windows(input, act_seq_len, compress_block_size, compress_stride, act_seq_len_type)
    return (jnp.sum(widened(input)[windows] * widened(weight)[:, :, None], 1).astype(input.dtype),)


def nsa_compress_tangents(values: Mapping[str, Any], moving: Mapping[str, Array]) -> tuple[Array]:
    """The tangent of ``output``, which is linear in either input."""
    names = ("act_seq_len", "compress_block_size", "compress_stride", "act_seq_len_type")
    windows = _windows(values["input"], *(values[name] for name in names))
    tokens, weight = widened(values["input"]), widened(values["weight"])[:, :, None]
    terms = []
    if "input" in moving:
        terms.append(jnp.sum(widened(moving["input"])[windows] * weight, 1))
    if "weight" in moving:
        terms.append(jnp.sum(tokens[windows] * widened(moving["weight"])[:, :, None], 1))
    return (sum(terms[1:], start=terms[0]),)


def nsa_compress_grad(
    output_grad: Array,
    input: Array,
    weight: Array,
    act_seq_len: Sequence[int] | None,
    compress_block_size: int,
    compress_stride: int,
    act_seq_len_type: int,
    layout: str | None,
) -> tuple[Array, Array]:
    """``input_grad`` and ``weight_grad`` of the compression of native sparse attention."""
    windows = _windows(input, act_seq_len, compress_block_size, compress_stride, act_seq_len_type)
    grad = widened(output_grad)[:, None]
    input_grad = jnp.zeros_like(widened(input)).at[windows].add(grad * widened(weight)[:, :, None])
    weight_grad = jnp.sum(grad * widened(input)[windows], (0, 3))
    return input_grad.astype(input.dtype), weight_grad.astype(weight.dtype)


def _windows(input: Array, act_seq_len: Sequence[int] | None, width: int, stride: int, kind: int) -> Any:
    """The tokens of each window, [windows, W]."""
    lengths = list(act_seq_len or [input.shape[0]])
    ends = lengths if kind == 0 else list(itertools.accumulate(lengths))
    sequences = zip([0, *ends[:-1]], ends, strict=True)
    starts = [s for begin, end in sequences for s in range(begin, end - width + 1, stride)]
    return np.array(starts, np.int32).reshape(-1, 1) + np.arange(width, dtype=np.int32)
