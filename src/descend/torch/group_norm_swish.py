"""Group norm followed by swish, and its gradient."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from descend.torch import definitions
from descend.torch.batching import batch_first, batch_second
from descend.torch.derivatives import add_through_statistics, differentiate_backward, keep, results_again
from descend.torch.library import Operator, statistics_dtype
from descend.torch.sharding import Split, sharded

_FORWARD = Operator("group_norm_swish")
_BACKWARD = Operator("group_norm_swish_grad")


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
    """Group norm, then swish where ``activate_swish``. Differentiable in ``x``, ``gamma`` and ``beta``::

        mean, var = mean and biased variance of each group
        rstd      = 1 / sqrt(var + eps)
        z         = (x - mean) * rstd * gamma + beta
        y         = z * sigmoid(swish_scale * z)

    Shapes: ``x`` [N, C, ...], ``gamma`` and ``beta`` [C]; ``num_groups`` divides C; ``data_format`` is not read.
    Floating dtypes, mixed at will. Returns ``y`` like ``x``, contiguous, and ``mean`` and ``rstd`` [N, num_groups],
    float32 (float64 for float64 ``x``).

    Raises AclnnError (a ValueError) where the shapes or dtypes do not fit. Source: aclnnGroupNormSwish.
    """
    result: tuple[Tensor, Tensor, Tensor] = _FORWARD(
        x, gamma, beta, num_groups, data_format, eps, activate_swish, swish_scale
    )
    return result


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
    """Gradients of group norm + swish, None where not required; differentiable in all tensors::

        z      = xhat * gamma + beta                        xhat = (x - mean) * rstd
        sig    = 1 / (1 + exp(-swish_scale * z))
        dz     = dy * sig * (1 + swish_scale * z * (1 - sig))
        dbeta  = sum of dz            over n and hw, per channel
        dgamma = sum of dz * xhat     over n and hw, per channel
        dx     = rstd * (dz * gamma - mean(dz * gamma) - xhat * mean(dz * gamma * xhat))      means over the group

    Shapes: ``dy`` as ``x``, ``mean`` and ``rstd`` N * num_groups elements, the rest as in `group_norm_swish`. Returns
    gradients with the shapes and dtypes of what they are for.

    Raises AclnnError (a ValueError) where the shapes or dtypes do not fit. Source: aclnnGroupNormSwishGrad.
    """
    result: tuple[Tensor, Tensor | None, Tensor | None] = _BACKWARD(
        dy, mean, rstd, x, gamma, beta, num_groups, data_format, swish_scale, dgamma_is_require, dbeta_is_require
    )
    return result


@_FORWARD.fake
def _fake_forward(
    x: Tensor, gamma: Tensor, beta: Tensor, num_groups: int, *_: Any, **__: Any
) -> tuple[Tensor, Tensor, Tensor]:
    mean, rstd = (x.new_empty([x.shape[0], num_groups], dtype=statistics_dtype(x)) for _ in range(2))
    return x.new_empty(x.shape), mean, rstd


@_BACKWARD.fake
def _fake_backward(
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
) -> tuple[Tensor | None, ...]:
    return (
        x.new_empty(x.shape),
        gamma.new_empty(gamma.shape) if dgamma_is_require else None,
        beta.new_empty(beta.shape) if dbeta_is_require else None,
    )


def _gradients(
    dy: Tensor,
    mean: Tensor,
    rstd: Tensor,
    x: Tensor,
    gamma: Tensor,
    beta: Tensor,
    num_groups: int,
    swish: tuple[bool, float],
    wanted: tuple[bool, bool],
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """The backward operator, with or without swish.

    There is no operator for group norm alone, but where swish_scale is 0 the sigmoid is one half: twice that, exactly.
    """
    activate, scale = swish
    if activate:
        return group_norm_swish_grad(dy, mean, rstd, x, gamma, beta, num_groups, "NCHW", scale, *wanted)
    wide = statistics_dtype(x)
    halves = group_norm_swish_grad(
        dy, mean, rstd, x, gamma.to(wide) * 2, beta.to(wide), num_groups, "NCHW", 0.0, *wanted
    )
    dgamma, dbeta = (
        None if half is None else (half * 2).to(p.dtype) for half, p in zip(halves[1:], (gamma, beta), strict=True)
    )
    return halves[0], dgamma, dbeta


def _by_channel(statistic: Tensor, x: Tensor) -> Tensor:
    """[N, groups] as [N, C, 1, ...]: for each channel what its group has."""
    samples, groups = statistic.shape
    each = statistic.unsqueeze(-1).expand(samples, groups, x.shape[1] // groups)
    return each.reshape(*x.shape[:2], *[1] * (x.dim() - 2))


class _GroupNormSwish(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        keyset: Any,
        named: dict[str, Any],
        x: Tensor,
        gamma: Tensor,
        beta: Tensor,
        num_groups: int,
        data_format: str | None,
        eps: float,
        activate_swish: bool,
        swish_scale: float,
    ) -> Any:
        args = (x, gamma, beta, num_groups, data_format, eps, activate_swish, swish_scale)
        results = _FORWARD.forward(keyset, args, named)
        ctx.save_for_backward(keep(x), keep(gamma), keep(beta), *results[1:])
        ctx.num_groups, ctx.eps = num_groups, eps
        ctx.swish = activate_swish, swish_scale
        ctx.set_materialize_grads(False)
        return results

    @staticmethod
    def backward(ctx: Any, dy: Tensor | None, dmean: Tensor | None, drstd: Tensor | None) -> Any:
        x, gamma, beta, *statistics = ctx.saved_tensors
        args = (x, gamma, beta, ctx.num_groups, "NCHW", ctx.eps, *ctx.swish)
        mean, rstd = results_again(_FORWARD, args, tuple(statistics))
        needs_x, *needs = ctx.needs_input_grad[2:5]
        dx = dgamma = dbeta = None
        if dy is not None:
            dx, dgamma, dbeta = _gradients(
                dy, mean, rstd, x, gamma, beta, ctx.num_groups, ctx.swish, (needs[0], needs[1])
            )
        if needs_x and (dmean is not None or drstd is not None):
            dmean, drstd = (None if s is None else _by_channel(s, x) for s in (dmean, drstd))
            elements = math.prod(x.shape[1:]) // ctx.num_groups
            dx = add_through_statistics(dx, x, _by_channel(mean, x), _by_channel(rstd, x), dmean, drstd, elements)
        return None, None, dx, dgamma, dbeta, None, None, None, None, None


_FORWARD.differentiable(_GroupNormSwish, definitions.group_norm_swish)
differentiate_backward(_BACKWARD, definitions.group_norm_swish_grad)

# A batch becomes more channels in more groups: each sample then keeps gradients of its own for gamma and beta.


def _as_groups(statistic: Tensor, dim: int | None, size: int, shape: tuple[int, int]) -> Tensor:
    """[N, groups] of each sample, in any shape, as [N, size * groups]."""
    return batch_second(batch_first(statistic, dim, size).reshape(size, *shape), 0, size)


@_FORWARD.batched
def _batched_forward(
    size: int,
    dims: list[int | None],
    x: Tensor,
    gamma: Tensor,
    beta: Tensor,
    num_groups: int,
    *attributes: Any,
) -> tuple[Any, Any]:
    y, mean, rstd = _FORWARD.overload(
        batch_second(x, dims[0], size),
        batch_first(gamma, dims[1], size).flatten(),
        batch_first(beta, dims[2], size).flatten(),
        size * num_groups,
        *attributes,
    )
    return tuple(t.unflatten(1, (size, -1)) for t in (y, mean, rstd)), (1, 1, 1)


@_BACKWARD.batched
def _batched_backward(
    size: int,
    dims: list[int | None],
    dy: Tensor,
    mean: Tensor,
    rstd: Tensor,
    x: Tensor,
    gamma: Tensor,
    beta: Tensor,
    num_groups: int,
    *attributes: Any,
) -> tuple[Any, Any]:
    wide = batch_second(x, dims[3], size)
    statistics = (wide.shape[0], num_groups)
    dx, dgamma, dbeta = _BACKWARD.overload(
        batch_second(dy, dims[0], size),
        _as_groups(mean, dims[1], size, statistics),
        _as_groups(rstd, dims[2], size, statistics),
        wide,
        batch_first(gamma, dims[4], size).flatten(),
        batch_first(beta, dims[5], size).flatten(),
        size * num_groups,
        *attributes,
    )
    parameters = tuple(None if t is None else t.unflatten(0, (size, -1)) for t in (dgamma, dbeta))
    return (dx.unflatten(1, (size, -1)), *parameters), (1, *(None if t is None else 0 for t in parameters))


# Along N, or along C where whole groups fall to each process, which then has its share of num_groups.


@sharded(_FORWARD)
def _sharded_forward(x: Tensor, gamma: Tensor, beta: Tensor, num_groups: int, *_: Any) -> Iterable[Split]:
    return [Split((0,), (0, 0, 0)), Split((1, 0, 0, 0), (1, 1, 1))]


@sharded(_BACKWARD)
def _sharded_backward(
    dy: Tensor, mean: Tensor, rstd: Tensor, x: Tensor, gamma: Tensor, beta: Tensor, num_groups: int, *_: Any
) -> Iterable[Split]:
    if any(s.shape[:2] != (x.shape[0], num_groups) for s in (mean, rstd)):
        return []
    return [Split((0, 0, 0, 0), (0, "sum", "sum")), Split((1, 1, 1, 1, 0, 0, 0), (1, 0, 0))]
