"""npu_rotary_mul and its gradient: out = x * r1 + rotate(x) * r2.

In mode half, rotate(x) is (-second half, first half) of the last dimension. In mode interleave it is (-odd, even) of
each pair. If a matrix is given, it is x @ rotate. Documents: torch_npu.npu_rotary_mul;
aclnnRotaryPositionEmbedding(Grad).
"""

from __future__ import annotations

import torch
from torch import Tensor

from descend.npu.composed.arithmetic import check_float, check_shape, wide
from descend.npu.composed.refusal import refuse

MODES = ("half", "interleave")


def npu_rotary_mul(
    self: Tensor, r1: Tensor, r2: Tensor, rotary_mode: str = "half", rotate: Tensor | None = None
) -> Tensor:
    """Shaped as ``self`` [..., D], of its dtype; r1 and r2 broadcast to it."""
    _check("npu_rotary_mul", self, r1, r2, rotary_mode)
    x, cos, sin = wide(self), wide(r1.to(self.dtype)), wide(r2.to(self.dtype))
    if rotate is None:
        turned = _rotated(x, rotary_mode)
    else:
        size = self.shape[-1]
        check_float("npu_rotary_mul", rotate=rotate)
        check_shape("npu_rotary_mul", "rotate", rotate, (size, size), "the last dimension of self")
        turned = x @ rotate.to(x.dtype)
    return (x * cos).addcmul_(turned, sin).to(self.dtype)


def npu_rotary_mul_backward(
    grad: Tensor, self: Tensor, r1: Tensor, r2: Tensor, rotary_mode: str = "half"
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of self, r1 and r2, of self's dtype."""
    operator = "npu_rotary_mul_backward"
    _check(operator, self, r1, r2, rotary_mode)
    check_float(operator, grad=grad)
    check_shape(operator, "grad", grad, self.shape, "self")
    dtype = self.dtype
    dy, x = wide(grad.to(dtype)), wide(self)
    cos, sin = wide(r1.to(dtype)), wide(r2.to(dtype))
    # rotate is skew-symmetric: its transpose is its negative
    dx = (dy * cos).sub_(_rotated(dy * sin, rotary_mode))
    dcos = (dy * x).sum_to_size(r1.shape)
    dsin = (dy * _rotated(x, rotary_mode)).sum_to_size(r2.shape)
    return dx.to(dtype), dcos.to(dtype), dsin.to(dtype)


def _rotated(x: Tensor, mode: str) -> Tensor:
    if mode == "half":
        first, second = x.chunk(2, -1)
        return torch.cat((-second, first), -1)
    pairs = x.unflatten(-1, (-1, 2))
    return torch.stack((-pairs[..., 1], pairs[..., 0]), -1).flatten(-2)


def _check(operator: str, self: Tensor, r1: Tensor, r2: Tensor, mode: str) -> None:
    check_float(operator, self=self, r1=r1, r2=r2)
    if mode not in MODES:
        refuse(operator, "rotary_mode", repr(mode), "may be half or interleave")
    if self.dim() not in (3, 4) or self.shape[-1] % 2:
        refuse(operator, "self", f"of shape {list(self.shape)}", "has 3 or 4 dimensions, the last of even size")
    for name, r in (("r1", r1), ("r2", r2)):
        fits = r.dim() == self.dim() and r.shape[-1] == self.shape[-1]
        if not fits or any(size not in (1, whole) for size, whole in zip(r.shape, self.shape, strict=True)):
            shape = f"has the last dimension and, else, 1 or the sizes of self, {list(self.shape)}"
            refuse(operator, name, f"of shape {list(r.shape)}", shape)
