"""npu_fast_gelu, npu_geglu, npu_mish, npu_silu and their gradients; npu_gelu_mul and npu_clipped_swiglu.

    fast_gelu(x) = x / (1 + exp(-1.702 * x))
    geglu(a, b)  = a * gelu(b)
    mish(x)      = x * tanh(log(1 + exp(x)))
    silu(x)      = x / (1 + exp(-x))
    gelu_mul(a, b)       = gelu(a) * b
    clipped_swiglu(a, b) = a' / (1 + exp(-alpha * a')) * (b' + bias)
    a' = min(a, limit), b' = b between -limit and limit

Documents: torch_npu.npu_fast_gelu, fast_gelu, npu_geglu, npu_mish, npu_silu, npu_gelu_mul, npu_clipped_swiglu;
aclnnFastGelu(Backward), aclnnGeGluV3(Backward).
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from descend.npu.composed.arithmetic import check_float, check_shape, gelu, wide
from descend.npu.composed.refusal import refuse

FAST = 1.702


def npu_fast_gelu(self: Tensor) -> Tensor:
    """The result, of the shape of ``self``."""
    check_float("npu_fast_gelu", self=self)
    x = wide(self)
    return (x * FAST).sigmoid_().mul_(x).to(self.dtype)


fast_gelu = npu_fast_gelu
"""Its older name."""


def npu_fast_gelu_backward(grad: Tensor, self: Tensor) -> Tensor:
    """The gradient of self."""
    check_float("npu_fast_gelu_backward", grad=grad, self=self)
    check_shape("npu_fast_gelu_backward", "grad", grad, self.shape, "self")
    x = wide(self)
    gate = (x * FAST).sigmoid_()
    slope = (1 - gate).mul_(x).mul_(FAST).add_(1).mul_(gate)
    return slope.mul_(grad).to(self.dtype)


def npu_geglu(input: Tensor, dim: int = -1, approximate: int = 1, activate_left: bool = False) -> tuple[Tensor, Tensor]:
    """One half of ``input`` along ``dim`` times gelu of its right half, or its left one; and that gelu.

    ``approximate``: 0 is gelu by erf, 1 by tanh. Both results have half the size of ``input`` along ``dim``.
    """
    linear, gate = _halves("npu_geglu", input, dim, activate_left)
    activated = gelu(wide(gate), _gelu("npu_geglu", approximate))
    return (activated * linear).to(input.dtype), activated.to(input.dtype)


def npu_geglu_grad(
    grad_output: Tensor, input: Tensor, gelu: Tensor, dim: int = -1, approximate: int = 1, activate_left: bool = False
) -> Tensor:
    """The gradient of ``input``. ``gelu`` is the second result."""
    linear, gate = _halves("npu_geglu_grad", input, dim, activate_left)
    for name, tensor in (("grad_output", grad_output), ("gelu", gelu)):
        check_float("npu_geglu_grad", **{name: tensor})
        check_shape("npu_geglu_grad", name, tensor, gate.shape, "half of input")
    dy = wide(grad_output)
    by = _gelu("npu_geglu_grad", approximate)
    gradients = dy * gelu, torch.ops.aten.gelu_backward(dy * linear, wide(gate), approximate=by)
    return torch.cat(gradients[::-1] if activate_left else gradients, dim).to(input.dtype)


def _halves(operator: str, input: Tensor, dim: int, activate_left: bool) -> tuple[Tensor, Tensor]:
    """The half that gelu is not applied to, and the one that it is."""
    check_float(operator, input=input)
    if not -input.dim() <= dim < input.dim() or input.size(dim) % 2:
        refuse(operator, "input", f"of shape {list(input.shape)}", f"must have an even size along dimension {dim}")
    left, right = input.chunk(2, dim)
    return (right, left) if activate_left else (left, right)


def _gelu(operator: str, approximate: int) -> str:
    if approximate not in (0, 1):
        refuse(operator, "approximate", approximate, "must be 0 or 1")
    return ("none", "tanh")[approximate]


def npu_mish(self: Tensor) -> Tensor:
    """The result, of the shape of ``self``."""
    check_float("npu_mish", self=self)
    return functional.mish(wide(self)).to(self.dtype)


def npu_mish_backward(grad: Tensor, input: Tensor) -> Tensor:
    """The gradient of self."""
    check_float("npu_mish_backward", grad=grad, input=input)
    check_shape("npu_mish_backward", "grad", grad, input.shape, "input")
    x = wide(input)
    dx: Tensor = torch.ops.aten.mish_backward(grad.to(x.dtype), x)
    return dx.to(input.dtype)


def npu_silu(self: Tensor) -> Tensor:
    """The result, of the shape of ``self``."""
    check_float("npu_silu", self=self)
    return functional.silu(wide(self)).to(self.dtype)


def npu_silu_(self: Tensor) -> Tensor:
    """`npu_silu` in place."""
    return self.copy_(npu_silu(self))


def npu_silu_backward(grad_output: Tensor, x0: Tensor, x1: Tensor) -> Tensor:
    """The gradient of self, which is ``x0``; ``x1`` is the result."""
    check_float("npu_silu_backward", grad_output=grad_output, x0=x0)
    check_shape("npu_silu_backward", "grad_output", grad_output, x0.shape, "x0")
    x = wide(x0)
    dx: Tensor = torch.ops.aten.silu_backward(grad_output.to(x.dtype), x)
    return dx.to(x0.dtype)


def npu_gelu_mul(input: Tensor, *, approximate: str = "none") -> Tensor:
    """gelu of the left half of the last dimension, times the right one."""
    operator = "npu_gelu_mul"
    if approximate not in ("none", "tanh"):
        refuse(operator, "approximate", repr(approximate), "must be 'none' or 'tanh'")
    right, left = _halves(operator, input, -1, True)
    return (gelu(wide(left), approximate) * right).to(input.dtype)


def npu_clipped_swiglu(
    x: Tensor,
    *,
    group_index: Tensor | None = None,
    dim: int = -1,
    alpha: float = 1.702,
    limit: float = 7.0,
    bias: float = 1.0,
    interleaved: bool = True,
) -> Tensor:
    """Half of ``x`` along ``dim``. The dimensions before it are one of rows, it and those after it one of columns.

    a and b are the even and odd columns if ``interleaved``, else the left and right half. Only the first rows are
    computed, as many as the numbers of ``group_index`` add up to; the others are 0.
    """
    operator = "npu_clipped_swiglu"
    check_float(operator, x=x)
    if x.dim() < 2 or not -x.dim() <= dim < x.dim() or x.shape[dim] % 2:
        refuse(
            operator, "x", f"of shape {list(x.shape)}", f"must have 2 dimensions or more, and an even size along {dim}"
        )
    dim %= x.dim()
    rows = x.shape[:dim].numel()
    columns = x.reshape(rows, x.shape[dim:].numel())
    used = rows
    if group_index is not None:
        if group_index.dtype != torch.int64 or group_index.dim() != 1:
            got = f"{group_index.dtype} of shape {list(group_index.shape)}"
            refuse(operator, "group_index", got, "must be int64, of 1 dimension")
        if group_index.numel() and int(group_index.min()) < 0:
            refuse(operator, "group_index", f"down to {int(group_index.min())}", "must hold numbers of rows, from 0 up")
        used = min(rows, int(group_index.sum()))
    part = wide(columns[:used])
    a, b = (part[:, ::2], part[:, 1::2]) if interleaved else part.chunk(2, 1)
    a = a.clamp(max=limit)
    result = x.new_zeros(rows, columns.shape[1] // 2)
    result[:used] = a * (alpha * a).sigmoid() * (b.clamp(-limit, limit) + bias)
    return result.view(*x.shape[:dim], x.shape[dim] // 2, *x.shape[dim + 1 :])
