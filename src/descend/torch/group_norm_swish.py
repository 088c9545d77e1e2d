"""Group norm followed by swish, and its gradient."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from torch import Tensor

from descend.torch import definitions
from descend.torch.batching import batch_first, batch_second
from descend.torch.derivatives import differentiate_backward
from descend.torch.group_norm import Gradients, define, gradients, results_like
from descend.torch.library import Operator
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
    return results_like(x, num_groups)


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


def gradients_of_swish(
    dy: Tensor,
    mean: Tensor,
    rstd: Tensor,
    needs: Sequence[bool],
    x: Tensor,
    gamma: Tensor,
    beta: Tensor,
    num_groups: int,
    swish_scale: float = 1.0,
) -> Gradients:
    """Those of group norm followed by swish."""
    return group_norm_swish_grad(dy, mean, rstd, x, gamma, beta, num_groups, "NCHW", swish_scale, *needs[1:])


def _gradients(
    dy: Tensor,
    mean: Tensor,
    rstd: Tensor,
    needs: Sequence[bool],
    x: Tensor,
    gamma: Tensor,
    beta: Tensor,
    num_groups: int,
    data_format: str | None,
    eps: float,
    activate_swish: bool,
    swish_scale: float,
) -> Gradients:
    given = (dy, mean, rstd, needs, x, gamma, beta, num_groups)
    return gradients_of_swish(*given, swish_scale) if activate_swish else gradients(*given)


define(_FORWARD, definitions.group_norm_swish, _gradients, groups=3)
differentiate_backward(_BACKWARD, definitions.group_norm_swish_grad)


def _as_groups(statistic: Tensor, dim: int | None, size: int, shape: tuple[int, int]) -> Tensor:
    """[N, groups] of each sample, in any shape, as [N, size * groups]."""
    return batch_second(batch_first(statistic, dim, size).reshape(size, *shape), 0, size)


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


@sharded(_BACKWARD)
def _sharded_backward(
    dy: Tensor, mean: Tensor, rstd: Tensor, x: Tensor, gamma: Tensor, beta: Tensor, num_groups: int, *_: Any
) -> Iterable[Split]:
    if any(s.shape[:2] != (x.shape[0], num_groups) for s in (mean, rstd)):
        return []
    return [Split((0, 0, 0, 0), (0, "sum", "sum")), Split((1, 1, 1, 1, 0, 0, 0), (1, 0, 0))]
