"""Group norm, also with an activation."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from descend.torch.definitions.tensors import mean_of, sigmoid_of, widened
from descend.torch.library import statistics_dtype


def group_norm_swish(
    x: Tensor,
    gamma: Tensor,
    beta: Tensor,
    num_groups: int,
    data_format: str | None = "NCHW",
    eps: float = 1e-5,
    activate_swish: bool = True,
    swish_scale: float = 1.0,
) -> tuple[Tensor, Tensor, Tensor]:
    """``y``, ``mean`` and ``rstd`` of group norm + swish."""
    z, mean, rstd = _group_norm(x, gamma, beta, num_groups, eps)
    y = z * torch.sigmoid(swish_scale * z) if activate_swish else z
    return y.reshape(x.shape).to(x.dtype), mean, rstd


def group_norm_silu(
    input: Tensor, gamma: Tensor | None, beta: Tensor | None, group: int, eps: float = 1e-5
) -> tuple[Tensor, Tensor, Tensor]:
    """``out``, ``mean`` and ``rstd`` of group norm + SiLU."""
    z, mean, rstd = _group_norm(input, gamma, beta, group, eps)
    return (z * torch.sigmoid(z)).reshape(input.shape).to(input.dtype), mean, rstd


def group_norm(
    input: Tensor,
    gamma: Tensor | None,
    beta: Tensor | None,
    n: int,
    c: int,
    hxw: int,
    group: int,
    eps: float = 1e-5,
) -> tuple[Tensor, Tensor, Tensor]:
    """``out``, ``mean`` and ``rstd`` of group norm."""
    z, mean, rstd = _group_norm(input, gamma, beta, group, eps)
    return z.reshape(input.shape).to(input.dtype), mean, rstd


def _group_norm(
    x: Tensor, gamma: Tensor | None, beta: Tensor | None, num_groups: int, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """The norm, [N, groups, channels of a group, HxW], not rounded; mean and rstd."""
    wide = _grouped(widened(x), num_groups)
    mean = mean_of(wide, [2, 3])
    centred = wide - mean
    rstd = (mean_of(centred * centred, [2, 3]) + eps).rsqrt()
    z = centred * rstd
    z = z if gamma is None else z * _by_channel(gamma, num_groups)
    z = z if beta is None else z + _by_channel(beta, num_groups)
    mean, rstd = (s.reshape(x.shape[0], num_groups).to(statistics_dtype(x)) for s in (mean, rstd))
    return z, mean, rstd


def group_norm_swish_grad(
    dy: Tensor,
    mean: Tensor,
    rstd: Tensor,
    x: Tensor,
    gamma: Tensor,
    beta: Tensor,
    num_groups: int,
    data_format: str | None = "NCHW",
    swish_scale: float = 1.0,
    dgamma_is_require: bool = True,
    dbeta_is_require: bool = True,
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """``dx``, ``dgamma`` and ``dbeta`` of group norm + swish, None where not required."""
    statistics = (x.shape[0], num_groups, 1, 1)
    r, weight = widened(rstd).reshape(statistics), _by_channel(gamma, num_groups)
    xhat = (_grouped(widened(x), num_groups) - widened(mean).reshape(statistics)) * r
    z = xhat * weight + _by_channel(beta, num_groups)
    sig = sigmoid_of(swish_scale * z)
    dz = _grouped(widened(dy), num_groups) * sig * (1 + swish_scale * z * (1 - sig))
    return (
        _through_groups(dz * weight, xhat, r).reshape(x.shape).to(x.dtype),
        (dz * xhat).sum((0, 3)).reshape(gamma.shape).to(gamma.dtype) if dgamma_is_require else None,
        dz.sum((0, 3)).reshape(beta.shape).to(beta.dtype) if dbeta_is_require else None,
    )


def group_norm_backward(
    grad_out: Tensor,
    input: Tensor,
    mean: Tensor,
    rstd: Tensor,
    gamma: Tensor | None,
    n: int,
    c: int,
    hxw: int,
    group: int,
    output_mask: Sequence[bool] = (True, True, True),
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """``grad_input``, ``grad_gamma`` and ``grad_beta`` of group norm, None where masked out."""
    shape = (n, group, c // group, hxw)
    dz, r = widened(grad_out).reshape(shape), widened(rstd).reshape(n, group, 1, 1)
    xhat = (widened(input).reshape(shape) - widened(mean).reshape(n, group, 1, 1)) * r
    g = dz if gamma is None else dz * _by_channel(gamma, group)
    like, dtype = ([c], statistics_dtype(input)) if gamma is None else (gamma.shape, gamma.dtype)
    return (
        _through_groups(g, xhat, r).reshape(input.shape).to(input.dtype) if output_mask[0] else None,
        (dz * xhat).sum((0, 3)).reshape(like).to(dtype) if output_mask[1] else None,
        dz.sum((0, 3)).reshape(like).to(dtype) if output_mask[2] else None,
    )


def _through_groups(g: Tensor, xhat: Tensor, rstd: Tensor) -> Tensor:
    """The gradient of a group's elements, from that of xhat."""
    return rstd * (g - mean_of(g, [2, 3]) - xhat * mean_of(g * xhat, [2, 3]))


def _grouped(x: Tensor, num_groups: int) -> Tensor:
    """x seen as [N, groups, channels of a group, HxW]."""
    return x.reshape(x.shape[0], num_groups, x.shape[1] // num_groups, math.prod(x.shape[2:]))


def _by_channel(parameter: Tensor, num_groups: int) -> Tensor:
    return widened(parameter).reshape(1, num_groups, parameter.numel() // num_groups, 1)
