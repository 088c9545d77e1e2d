"""npu_interleave_rope: a rotary position embedding of pairs of neighbours, whose results are in halves.

    q = the even columns of x, then the odd ones
    result = q * cos + [-right half of q, left half of q] * sin

Document: torch_npu.npu_interleave_rope.
"""

from __future__ import annotations

import torch
from torch import Tensor

from descend.npu.composed.arithmetic import check_float, check_shape, wide
from descend.npu.composed.refusal import refuse


def npu_interleave_rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """The result [B, N, S, D] of ``x``; ``cos`` and ``sin`` are [B, 1, S or 1, D]."""
    operator = "npu_interleave_rope"
    check_float(operator, x=x, cos=cos, sin=sin)
    if x.dim() != 4 or x.shape[-1] % 2:
        refuse(operator, "x", f"of shape {list(x.shape)}", "must be of shape [B, N, S, D], D even")
    batch, _, length, size = x.shape
    rows = 1 if cos.dim() == 4 and cos.shape[2] == 1 else length
    for name, tensor in (("cos", cos), ("sin", sin)):
        check_shape(operator, name, tensor, [batch, 1, rows, size], "x, N 1, and S maybe 1")
        if tensor.dtype != x.dtype:
            refuse(operator, name, tensor.dtype, f"must have the dtype of x, which is {x.dtype}")
    even, odd = wide(x)[..., ::2], wide(x)[..., 1::2]
    return (torch.cat((even, odd), -1) * cos + torch.cat((-odd, even), -1) * sin).to(x.dtype)
