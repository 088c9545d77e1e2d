"""The compression of native sparse attention."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from descend.reference.arrays import Float64, float64


@np.errstate(all="ignore")
def nsa_compress_grad(
    output_grad: npt.ArrayLike,
    input: npt.ArrayLike,
    weight: npt.ArrayLike,
    act_seq_len: Sequence[int] | None = None,
    *,
    compress_block_size: int,
    compress_stride: int,
    act_seq_len_type: int = 0,
    layout: str | None = "TND",
) -> tuple[Float64, Float64]:
    """Gradients of the compression of native sparse attention, as aclnnNsaCompressGrad defines them.

    Shapes: ``output_grad`` [windows, N, D], ``input`` [T, N, D], ``weight`` [W, N]. ``act_seq_len`` tells where the
    sequences end (``act_seq_len_type`` 0) or how long each is (1); None or empty: one sequence. Returns
    ``input_grad`` shaped as ``input`` and ``weight_grad`` shaped as ``weight``, both float64::

        weight_grad[w, n]   = sum over c, d of output_grad[c, n, d] * input[start(c) + w, n, d]
        input_grad[t, n, :] = sum over (c, w) with start(c) + w = t of weight[w, n] * output_grad[c, n, :]

    Raises ValueError where the shapes do not fit.
    """
    output_grad, input, weight = float64(output_grad), float64(input), float64(weight)
    starts = _window_starts(input, weight, act_seq_len, act_seq_len_type, compress_block_size, compress_stride)
    if output_grad.shape != (len(starts), *input.shape[1:]):
        raise ValueError(f"shapes {output_grad.shape} and {input.shape} do not fit {len(starts)} windows")
    input_grad, weight_grad = np.zeros_like(input), np.zeros_like(weight)
    for grad, start in zip(output_grad, starts, strict=True):
        window = slice(start, start + compress_block_size)
        input_grad[window] += weight[:, :, None] * grad
        weight_grad += (input[window] * grad).sum(axis=-1)
    return input_grad, weight_grad


@np.errstate(all="ignore")
def nsa_compress(
    input: npt.ArrayLike,
    weight: npt.ArrayLike,
    act_seq_len: Sequence[int] | None = None,
    *,
    compress_block_size: int,
    compress_stride: int,
    act_seq_len_type: int = 0,
    layout: str | None = "TND",
) -> Float64:
    """The compression of native sparse attention, as aclnnNsaCompress defines it.

    Shapes: ``input`` [T, N, D], ``weight`` [W, N]. ``act_seq_len`` tells where the sequences end
    (``act_seq_len_type`` 0) or how long each is (1); None or empty: one sequence. Returns [windows, N, D], float64::

        output[c, n, :] = sum over w < W of weight[w, n] * input[start(c) + w, n, :]

    Raises ValueError where the shapes do not fit.
    """
    input, weight = float64(input), float64(weight)
    starts = _window_starts(input, weight, act_seq_len, act_seq_len_type, compress_block_size, compress_stride)
    windows = [(weight[:, :, None] * input[s : s + compress_block_size]).sum(axis=0) for s in starts]
    return np.array(windows).reshape(len(starts), *input.shape[1:])


def _window_starts(
    input: Float64, weight: Float64, act_seq_len: Sequence[int] | None, kind: int, width: int, stride: int
) -> list[int]:
    """The first token of every window: none across two sequences. ValueError where shapes or sequences do not fit."""
    if weight.shape != (width, input.shape[1]):
        raise ValueError(f"shapes {input.shape} and {weight.shape} do not fit a block size of {width}")
    lengths = list(act_seq_len or [len(input)])
    ends = lengths if kind == 0 else list(itertools.accumulate(lengths))
    begins = [0, *ends[:-1]]
    if any(begin > end for begin, end in zip(begins, ends, strict=True)) or ends[-1] > len(input):
        raise ValueError(f"sequences that end at {ends} do not fit {len(input)} tokens")
    return [s for begin, end in zip(begins, ends, strict=True) for s in range(begin, end - width + 1, stride)]
