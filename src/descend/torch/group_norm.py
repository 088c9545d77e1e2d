"""Group norm and its gradient, and what all group norms share."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from descend.torch import definitions
from descend.torch.batching import batch_first, batch_second
from descend.torch.derivatives import add_through_statistics, differentiate_backward, keep, results_again
from descend.torch.library import Kernel, Operator, statistics_dtype
from descend.torch.sharding import Split, sharded

_FORWARD = Operator("group_norm")
_BACKWARD = Operator("group_norm_backward")

Gradients = tuple[Tensor | None, Tensor | None, Tensor | None]
"""Those of x, gamma and beta."""


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
    """Group norm, like ``torch.native_group_norm``. Differentiable in ``input``, ``gamma`` and ``beta``::

        mean, var = mean and biased variance of each group
        rstd      = 1 / sqrt(var + eps)
        out       = (input - mean) * rstd * gamma + beta

    Shapes: ``input`` [n, c, ...], with ``hxw`` elements a channel; ``gamma`` and ``beta`` [c], None for ones and
    zeros; ``group`` divides c. Floating dtypes, mixed at will. Returns ``out`` like ``input``, contiguous, and ``mean``
    and ``rstd`` [n, group], float32 (float64 for float64 ``input``).

    Raises AclnnError (a ValueError) where the shapes or dtypes do not fit. Source: aclnnGroupNorm.
    """
    result: tuple[Tensor, Tensor, Tensor] = _FORWARD(input, gamma, beta, n, c, hxw, group, eps)
    return result


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
) -> Gradients:
    """Gradients of group norm, None where ``output_mask`` is false; differentiable in all tensors::

        xhat       = (input - mean) * rstd
        g          = grad_out * gamma
        grad_input = rstd * (g - mean(g) - xhat * mean(g * xhat))                            means over the group
        grad_gamma = sum of grad_out * xhat over n and hw
        grad_beta  = sum of grad_out        over n and hw

    Shapes: ``grad_out`` and ``input`` have n * c * hxw elements, ``mean`` and ``rstd`` n * group, ``gamma`` c, in any
    shape. Returns gradients with the shapes and dtypes of ``input`` and, twice, of ``gamma``; where that is None, [c]
    and a statistic's dtype.

    Raises AclnnError (a ValueError) where the shapes or dtypes do not fit. Source: aclnnGroupNormBackward.
    """
    result: Gradients = _BACKWARD(grad_out, input, mean, rstd, gamma, n, c, hxw, group, output_mask)
    return result


def sizes(x: Tensor) -> tuple[int, int, int]:
    """N, C and HxW of [N, C, ...]."""
    return x.shape[0], x.shape[1], math.prod(x.shape[2:])


def gradients(
    dy: Tensor,
    mean: Tensor,
    rstd: Tensor,
    needs: Sequence[bool],
    x: Tensor,
    gamma: Tensor | None,
    beta: Tensor | None,
    num_groups: int,
) -> Gradients:
    """Those of group norm. Where the parameters' dtypes differ, so that theirs are rounded once, in float32."""
    if gamma is not None and beta is not None and gamma.dtype is not beta.dtype:
        gamma = gamma.to(statistics_dtype(x))
    result: Gradients = _BACKWARD.overload(dy, x, mean, rstd, gamma, *sizes(x), num_groups, tuple(needs))
    return result


def results_like(x: Tensor, num_groups: int) -> tuple[Tensor, Tensor, Tensor]:
    """The results of a group norm of ``x``, without values."""
    mean, rstd = (x.new_empty([x.shape[0], num_groups], dtype=statistics_dtype(x)) for _ in range(2))
    return x.new_empty(x.shape), mean, rstd


def define(
    operator: Operator,
    definition: Kernel,
    gradients: Callable[..., Gradients],
    groups: int,
    channels: int | None = None,
    samples: int | None = None,
) -> None:
    """Defines gradients, batches and shards of a group norm of x, gamma and beta.

    ``gradients`` gets dy, mean, rstd, which gradients are needed, and the operator's arguments. The places of those
    that count groups, channels and samples follow.
    """

    class _GroupNorm(torch.autograd.Function):
        @staticmethod
        def forward(
            ctx: Any, keyset: Any, named: dict[str, Any], x: Tensor, gamma: Any, beta: Any, *attributes: Any
        ) -> Any:
            results = operator.forward(keyset, (x, gamma, beta, *attributes), named)
            ctx.save_for_backward(keep(x), keep(gamma), keep(beta), *results[1:])
            ctx.attributes = attributes
            ctx.set_materialize_grads(False)
            return results

        @staticmethod
        def backward(ctx: Any, dy: Tensor | None, dmean: Tensor | None, drstd: Tensor | None) -> Any:
            *tensors, mean, rstd = ctx.saved_tensors
            args = (*tensors, *ctx.attributes)
            mean, rstd = results_again(operator, args, (mean, rstd))
            needs, x = ctx.needs_input_grad[2:5], args[0]
            dx = dgamma = dbeta = None
            if dy is not None:
                dx, dgamma, dbeta = gradients(dy, mean, rstd, needs, *args)
            if needs[0] and (dmean is not None or drstd is not None):
                dmean, drstd = (None if s is None else _by_channel(s, x) for s in (dmean, drstd))
                elements = math.prod(x.shape[1:]) // args[groups]
                dx = add_through_statistics(dx, x, _by_channel(mean, x), _by_channel(rstd, x), dmean, drstd, elements)
            return None, None, dx, dgamma, dbeta, *[None] * len(ctx.attributes)

    operator.differentiable(_GroupNorm, definition)

    # A batch becomes more channels in more groups: each sample then keeps gradients of its own for gamma and beta.
    @operator.batched
    def _batched(size: int, dims: list[int | None], x: Tensor, gamma: Any, beta: Any, *attributes: Any) -> Any:
        pairs = zip((gamma, beta), dims[1:3], strict=True)
        parameters = (None if p is None else batch_first(p, d, size).flatten() for p, d in pairs)
        more = (a * size if place in (groups, channels) else a for place, a in enumerate(attributes, 3))
        results = operator.overload(batch_second(x, dims[0], size), *parameters, *more)
        return tuple(t.unflatten(1, (size, -1)) for t in results), (1, 1, 1)

    # Along N, or along C where whole groups fall to each process, which then has its share of the groups.
    @sharded(operator)
    def _sharded(*args: Any) -> Iterable[Split]:
        of_samples = (0 if place == samples else None for place in range(3, len(args)))
        of_channels = (0 if place in (groups, channels) else None for place in range(3, len(args)))
        parameters = (None if p is None else 0 for p in args[1:3])
        return [Split((0, None, None, *of_samples), (0, 0, 0)), Split((1, *parameters, *of_channels), (1, 1, 1))]


def _by_channel(statistic: Tensor, x: Tensor) -> Tensor:
    """[N, groups] as [N, C, 1, ...]: for each channel what its group has."""
    samples, groups = statistic.shape
    each = statistic.unsqueeze(-1).expand(samples, groups, x.shape[1] // groups)
    return each.reshape(*x.shape[:2], *[1] * (x.dim() - 2))


@_FORWARD.fake
def _fake_forward(
    input: Tensor,
    gamma: Tensor | None,
    beta: Tensor | None,
    n: int,
    c: int,
    hxw: int,
    group: int,
    eps: float = 1e-5,
) -> tuple[Tensor, Tensor, Tensor]:
    return results_like(input, group)


@_BACKWARD.fake
def _fake_backward(
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
) -> tuple[Tensor | None, ...]:
    of_gamma = input.new_empty([c], dtype=statistics_dtype(input)) if gamma is None else gamma.new_empty(gamma.shape)
    results = (input.new_empty(input.shape), of_gamma, torch.empty_like(of_gamma))
    return tuple(r if wanted else None for r, wanted in zip(results, output_mask, strict=True))


def _gradients(
    dy: Tensor, mean: Tensor, rstd: Tensor, needs: Sequence[bool], x: Tensor, gamma: Any, beta: Any, *attributes: Any
) -> Gradients:
    return gradients(dy, mean, rstd, needs, x, gamma, beta, attributes[3])


define(_FORWARD, definitions.group_norm, _gradients, groups=6, channels=4, samples=3)
differentiate_backward(_BACKWARD, definitions.group_norm_backward)


@_BACKWARD.batched
def _batched_backward(
    size: int,
    dims: list[int | None],
    grad_out: Tensor,
    input: Tensor,
    mean: Tensor,
    rstd: Tensor,
    gamma: Tensor | None,
    n: int,
    c: int,
    hxw: int,
    group: int,
    output_mask: Sequence[bool],
) -> tuple[Any, Any]:
    def second(tensor: Tensor, dim: int | None, shape: Sequence[int]) -> Tensor:
        """Of each sample in any shape."""
        return batch_second(batch_first(tensor, dim, size).reshape(size, *shape), 0, size)

    of_input = input.shape if dims[1] is None else input.movedim(dims[1], 0).shape[1:]
    of_gamma = [c] if gamma is None else gamma.shape if dims[4] is None else gamma.movedim(dims[4], 0).shape[1:]
    dx, *parameters = _BACKWARD.overload(
        second(grad_out, dims[0], (n, c, hxw)),
        second(input, dims[1], (n, c, hxw)),
        second(mean, dims[2], (n, group)),
        second(rstd, dims[3], (n, group)),
        None if gamma is None else batch_first(gamma, dims[4], size).flatten(),
        *(n, c * size, hxw, group * size, output_mask),
    )
    if dx is not None:
        dx = dx.unflatten(1, (size, c)).movedim(1, 0).reshape(size, *of_input)
    results = (dx, *(None if p is None else p.reshape(size, *of_gamma) for p in parameters))
    return results, tuple(None if r is None else 0 for r in results)


@sharded(_BACKWARD)
def _sharded_backward(
    grad_out: Tensor,
    input: Tensor,
    mean: Tensor,
    rstd: Tensor,
    gamma: Tensor | None,
    n: int,
    c: int,
    hxw: int,
    group: int,
    output_mask: Sequence[bool],
) -> Iterable[Split]:
    plain = all(t.shape[:2] == (n, c) for t in (grad_out, input)) and all(s.shape == (n, group) for s in (mean, rstd))
    if not plain or (gamma is not None and gamma.dim() != 1):
        return []
    return [
        Split((0, 0, 0, 0, None, 0), (0, "sum", "sum")),
        Split((1, 1, 1, 1, None if gamma is None else 0, None, 0, None, 0), (1, 0, 0)),
    ]
