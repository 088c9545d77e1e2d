"""Norms of sums, and norms with an activation.

npu_add_layer_norm is the layer norm of x1 + x2, npu_deep_norm that of alpha * x + gx, and npu_group_norm_silu is
silu(group norm). Documents: those of torch_npu under these names; aclnnAddLayerNorm, aclnnAddLayerNormGrad,
aclnnDeepNorm, aclnnGroupNormSilu.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from descend.npu.composed.arithmetic import check_float, check_shape, wide
from descend.npu.composed.refusal import refuse


def npu_add_layer_norm(
    x1: Tensor, x2: Tensor, gamma: Tensor, beta: Tensor, epsilon: float = 1e-05, additional_output: bool = False
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """y, mean, rstd (1 for the last dimensions together) and x, which is given with ``additional_output`` or not."""
    _check("npu_add_layer_norm", x1, gamma, beta, x2=x2)
    dtype = x1.dtype if x1.dtype == x2.dtype else torch.float32
    x = wide(x1) + wide(x2)
    y, mean, rstd = _layer_norm(x, gamma, beta, epsilon)
    shape = [*x1.shape[: x1.dim() - gamma.dim()], 1]
    return y.to(dtype), mean.reshape(shape), rstd.reshape(shape), x.to(dtype)


def npu_add_layer_norm_backward(
    dy_opt: Tensor | None,
    x1: Tensor,
    x2: Tensor,
    rstd: Tensor,
    mean: Tensor,
    gamma: Tensor,
    dsum_opt: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The gradients of x1, x2, gamma and beta; ``dsum_opt`` is that of the sum."""
    _check("npu_add_layer_norm_backward", x1, gamma, x2=x2, dy=dy_opt, dsum=dsum_opt)
    x = wide(x1) + wide(x2)
    dy = torch.zeros_like(x) if dy_opt is None else wide(dy_opt)
    dx, dgamma, dbeta = _layer_norm_backward(dy, x, mean, rstd, gamma)
    if dsum_opt is not None:
        dx = dx + wide(dsum_opt)
    return dx.to(x1.dtype), dx.to(x2.dtype, copy=True), dgamma, dbeta


def npu_deep_norm(
    x: Tensor, gx: Tensor, beta: Tensor, gamma: Tensor, alpha: float = 0.3, epsilon: float = 1e-06
) -> tuple[Tensor, Tensor, Tensor]:
    """mean, rstd (1 for the last dimensions) and y."""
    _check("npu_deep_norm", x, gamma, beta, gx=gx)
    y, mean, rstd = _layer_norm(wide(x) * alpha + wide(gx), gamma, beta, epsilon)
    return mean, rstd, y.to(x.dtype)


def npu_group_norm_silu(
    input: Tensor, weight: Tensor | None, bias: Tensor | None, group: int, eps: float = 0.00001
) -> tuple[Tensor, Tensor, Tensor]:
    """``input`` of [N, C, ...]: silu of its group norm, and each group's mean and rstd, [N, group]."""
    operator = "npu_group_norm_silu"
    check_float(operator, input=input, weight=weight, bias=bias)
    if input.dim() < 2:
        refuse(operator, "input", f"of shape {list(input.shape)}", "has 2 dimensions or more")
    size, channels = input.shape[:2]
    if group < 1 or channels % group:
        refuse(operator, "group", group, f"divides the {channels} channels")
    for name, tensor in (("weight", weight), ("bias", bias)):
        if tensor is not None:
            check_shape(operator, name, tensor, [channels], "the channels")
    x = wide(input).contiguous()
    scale, shift = (tensor if tensor is None else tensor.to(x.dtype) for tensor in (weight, bias))
    y, mean, rstd = torch.native_group_norm(x, scale, shift, size, channels, math.prod(input.shape[2:]), group, eps)
    kept = input.dtype if weight is None else torch.promote_types(input.dtype, weight.dtype)
    return torch.nn.functional.silu(y).to(input.dtype), mean.to(kept), rstd.to(kept)


def _check(operator: str, x: Tensor, gamma: Tensor, beta: Tensor | None = None, **others: Tensor | None) -> None:
    """gamma and beta have the shape of x's last dimensions, all others that of x."""
    check_float(operator, x=x, gamma=gamma, beta=beta, **others)
    last = x.shape[x.dim() - gamma.dim() :] if 0 < gamma.dim() <= x.dim() else x.shape
    for name, tensor in (("gamma", gamma), ("beta", beta)):
        if tensor is not None:
            check_shape(operator, name, tensor, last, f"the last dimensions of x, {list(x.shape)}")
    for name, tensor in others.items():
        if tensor is not None:
            check_shape(operator, name, tensor, x.shape, "x")


def _layer_norm(x: Tensor, gamma: Tensor, beta: Tensor, epsilon: float) -> tuple[Tensor, Tensor, Tensor]:
    return torch.native_layer_norm(x, list(gamma.shape), gamma.to(x.dtype), beta.to(x.dtype), epsilon)


def _layer_norm_backward(
    dy: Tensor, x: Tensor, mean: Tensor, rstd: Tensor, gamma: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    shape = [*x.shape[: x.dim() - gamma.dim()], *[1] * gamma.dim()]
    of_rows = (mean.to(x.dtype).reshape(shape), rstd.to(x.dtype).reshape(shape))
    weights = (gamma.to(x.dtype), torch.zeros_like(gamma, dtype=x.dtype))
    gradients: tuple[Tensor, Tensor, Tensor] = torch.ops.aten.native_layer_norm_backward(
        dy.to(x.dtype), x, list(gamma.shape), *of_rows, *weights, [True, True, True]
    )
    return gradients
