"""Reverse-mode derivatives: of the backward operators through their definitions, of the norms' mean and rstd.

And what the forwards keep for them: `keep`, `results_again`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from descend.torch import sharding
from descend.torch.library import Kernel, Operator, constant, recording, traced_before_dispatch
from descend.torch.releases import has_saved_tensors_hooks


def differentiate_backward(operator: Operator, definition: Kernel) -> None:
    """Makes a backward operator differentiable in every floating tensor, through its definition.

    The operator itself computes the values; ``definition`` is evaluated only when a second derivative is.
    """

    class Backward(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, keyset: Any, named: dict[str, Any], *args: Any) -> Any:
            results = operator.forward(keyset, args, named)
            ctx.save_for_backward(*(keep(a) if isinstance(a, Tensor) else None for a in args))
            ctx.attributes = [None if isinstance(a, Tensor) else a for a in args]
            ctx.named = named
            ctx.set_materialize_grads(False)
            return results

        @staticmethod
        def backward(ctx: Any, *cotangents: Tensor | None) -> Any:
            args = [t if t is not None else a for t, a in zip(ctx.saved_tensors, ctx.attributes, strict=True)]
            needed = ctx.needs_input_grad[2:]

            def pull(args: Sequence[Any], cotangents: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
                return _pull_back(definition, args, ctx.named, needed, cotangents)

            if sharding.among(args):
                from descend.torch import dtensor

                return (None, None, *dtensor.pull_back(operator, pull, args, ctx.named, cotangents))
            return (None, None, *pull(args, cotangents))

    operator.differentiable(Backward, definition)


def keep(tensor: Tensor | None, value: bool = True) -> Tensor | None:
    """What is saved of a tensor for a backward; where that does not ask for its ``value``, its shape and dtype.

    PyTorch saves no inference tensors, whose changes it could not notice: where they need no gradient a copy will do.
    """
    if tensor is None:
        return None
    if not value:
        return constant(1.0, tensor.shape, tensor)
    return tensor.clone() if tensor.is_inference() and not tensor.requires_grad else tensor


def results_again(forward: Operator, args: Sequence[Any], saved: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """The last results of a forward, for its backward: those that were saved, or computed anew from ``args``.

    A saved result enters a graph that is being made without its history, or as a constant: the graph would be wrong
    where it is differentiated, or runs on another input. What is computed within the graph has its history there.
    """
    if not recording():
        return saved
    results = forward.overload(*args)
    return results[-len(saved) :] if isinstance(results, tuple) else (results,)


def add_through_statistics(
    dx: Tensor | None,
    x: Tensor,
    mean: Tensor | None,
    rstd: Tensor,
    dmean: Tensor | None,
    drstd: Tensor | None,
    elements: int,
) -> Tensor:
    """A norm's ``dx`` with the part that comes through its statistics, which broadcast to ``x``::

    dx + (dmean - drstd * rstd^3 * (x - mean)) / elements        elements of a row; mean 0 for RMS norm

    Multiplied in an order in which no factor leaves its range.
    """
    part = torch.zeros_like(rstd) if dmean is None else dmean / elements
    if drstd is not None:
        part = part - drstd * rstd / elements * rstd * (rstd * (x if mean is None else x - mean))
    part = part.expand(x.shape) if dx is None else dx + part
    return part.to(x.dtype)


def _pull_back(
    function: Kernel,
    args: Sequence[Any],
    named: dict[str, Any],
    needed: Sequence[bool],
    cotangents: Sequence[Tensor | None],
) -> list[Tensor | None]:
    """The gradients with respect to the arguments that need one, from those of the results that have one."""
    places = [place for place, need in enumerate(needed) if need]
    inputs = [args[place] for place in places]

    def partial(*values: Tensor) -> tuple[Tensor, ...]:
        full = list(args)
        for place, value in zip(places, values, strict=True):
            full[place] = value
        results = function(*full, **named)
        results = results if isinstance(results, tuple) else (results,)
        return tuple(r for r, c in zip(results, cotangents, strict=True) if c is not None)

    given = tuple(c for c in cotangents if c is not None)
    gradients: list[Tensor | None] = [None] * len(args)
    if given:
        by_autograd = has_saved_tensors_hooks() or traced_before_dispatch()
        pull = _by_autograd if by_autograd else _by_transform
        for place, gradient in zip(places, pull(partial, inputs, given), strict=True):
            gradients[place] = gradient
    return gradients


def _by_transform(function: Kernel, inputs: Sequence[Tensor], cotangents: tuple[Tensor, ...]) -> Sequence[Tensor]:
    pull: Kernel = torch.func.vjp(function, *inputs)[1]
    gradients: Sequence[Tensor] = pull(cotangents)
    return gradients


def _by_autograd(function: Kernel, inputs: Sequence[Tensor], cotangents: tuple[Tensor, ...]) -> Sequence[Tensor]:
    """The same where ``torch.func`` does not work: hooks on saved tensors (offloading, checkpoints), early traces."""
    with torch.enable_grad():
        inputs = [i.view_as(i) for i in inputs]  # of a tensor that is given twice, each has a gradient of its own
        results = function(*inputs)
    pairs = [(r, c) for r, c in zip(results, cotangents, strict=True) if r.requires_grad]
    if not pairs:
        return [torch.zeros_like(i) for i in inputs]
    of, given = zip(*pairs, strict=True)
    return torch.autograd.grad(of, inputs, given, create_graph=torch.is_grad_enabled(), materialize_grads=True)
