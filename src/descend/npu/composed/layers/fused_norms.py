"""Norms that do more: npu_add_rms_norm_cast and npu_normalize_batch.

    npu_add_rms_norm_cast:  x = x1 + x2; y = x / sqrt(mean(x^2) + epsilon) * gamma, in float32 and in the dtype of x
    npu_normalize_batch:    (x - mean) / (deviation + 1e-5), both of the first seq_len columns, of a row or a sequence

Documents: op-plugin's tests.
"""

from __future__ import annotations

import torch
from torch import Tensor

from descend.npu.composed.arithmetic import (
    check_alike,
    check_choice,
    check_float,
    check_integer,
    check_shape,
    check_within,
    wide,
)
from descend.npu.composed.refusal import refuse


def rms_norm(operator: str, name: str, x: Tensor, gamma: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
    """x / sqrt(mean(x^2) + epsilon) * gamma, and 1 / sqrt(...) [..., 1 for each dimension of gamma].

    Both are in the dtype of ``x``, in which they are computed. The mean is over the last dimensions, those of gamma;
    another gamma is refused. ``name`` is that of x.
    """
    check_gamma(operator, name, x, gamma)
    rstd = (x.square().mean(list(range(-gamma.dim(), 0)), keepdim=True) + epsilon).rsqrt()
    return x * rstd * gamma.to(x.dtype), rstd


def check_gamma(operator: str, name: str, x: Tensor, gamma: Tensor) -> None:
    """Refuses a gamma that has not the last dimensions of x, at least one."""
    if not gamma.dim() or list(x.shape[-gamma.dim() :]) != list(gamma.shape):
        rule = f"must have the last dimensions of {name}, {list(x.shape)}"
        refuse(operator, "gamma", f"of shape {list(gamma.shape)}", rule)


def npu_add_rms_norm_cast(
    x1: Tensor, x2: Tensor, gamma: Tensor, epsilon: float = 1e-6
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """y in float32, y in the dtype of x1, 1 / sqrt(...) in float32 as `rms_norm` has it, and x in the dtype of x1."""
    operator = "npu_add_rms_norm_cast"
    check_alike(operator, "x1", x1, x2=x2, gamma=gamma)
    check_shape(operator, "x2", x2, x1.shape, "x1")
    total = wide(x1) + wide(x2)
    y, rstd = rms_norm(operator, "x1", total, gamma, epsilon)
    return y, y.to(x1.dtype), rstd, total.to(x1.dtype)


def npu_normalize_batch(input: Tensor, seq_len: Tensor, normalize_type: int = 0) -> Tensor:
    """``input`` [B, C, T], whose row b counts up to ``seq_len[b]``; normalize_type 0: each channel, 1: all together."""
    operator = "npu_normalize_batch"
    check_float(operator, input=input)
    check_integer(operator, "seq_len", seq_len)
    if input.dim() != 3:
        refuse(operator, "input", f"of shape {list(input.shape)}", "must have 3 dimensions")
    check_choice(operator, "normalize_type", normalize_type, 0, 1)
    check_shape(operator, "seq_len", seq_len, [len(input)], "the rows of input")
    check_within(operator, "seq_len", seq_len, input.shape[2] + 1, f"must be from 1 to {input.shape[2]}", 1)
    x = wide(input)
    out = torch.empty_like(x)
    for row, length in enumerate(seq_len.tolist()):
        part = x[row, :, :length] if normalize_type == 0 else x[row, :, :length].reshape(1, -1)
        out[row] = (x[row] - part.mean(1, keepdim=True)) / (part.std(1, keepdim=True) + 1e-5)
    return out.to(input.dtype)
