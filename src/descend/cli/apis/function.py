"""What a function of a framework is here: how its results are computed, and its gradients."""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from descend.reference.arrays import check_one_of

Array = npt.NDArray[Any]
Results = Sequence[npt.NDArray[np.float64] | None]
Known = Sequence[Array | None]
"""The results of a call that the dump has, None in the place of others."""
Integers = Sequence[int]

NO_VALUES: Final = np.empty(0)
"""In the place of a result that is empty, or that the original does not write to. It is not judged."""


class LeftOut(Exception):
    """A call that is not judged, though nothing is wrong with the dump; the reason."""


@dataclass(frozen=True)
class Api:
    """A function, and its gradient or why that is not computed."""

    forward: Callable[..., Results]
    gradient: Callable[..., Results] | None = None
    no_gradient: str = "it has no gradient"
    differentiable: int = 1
    """How many results have a gradient, which are the first parameters of ``gradient``."""
    or_else: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of another formula, with which the results are right, too."""

    def arguments(self, given: Sequence[Any], named: Mapping[str, Any]) -> dict[str, Any]:
        """All arguments of a call by name, with defaults. TypeError for a call that does not fit."""
        bound = inspect.signature(self.forward).bind(*given, **named)
        bound.apply_defaults()
        return bound.arguments

    def without_gradient(self, reason: str) -> Api:
        """The same function, of which gradients are not computed."""
        return dataclasses.replace(self, gradient=None, no_gradient=reason)


def first(function: Callable[..., Results]) -> Callable[..., Results]:
    """The function with the same parameters that returns the first result only."""

    @functools.wraps(function)
    def first_of(**arguments: Any) -> Results:
        return function(**arguments)[:1]

    return first_of


def kept(results: Known, begin: int, end: int) -> list[Any]:
    """The results of a call that its gradient reads; nothing unless the dump has all of them."""
    found = [result for result in results[begin:end] if result is not None]
    return found if len(found) == end - begin else []


def index_of(name: str, value: Any, allowed: Sequence[str]) -> int:
    """The place of an argument's value among those that it may have; ValueError for another."""
    check_one_of(name, value, allowed)
    return allowed.index(value)


def ones_if_absent(weight: Array | None, shape: Integers) -> Array:
    """The weight of a norm. Ones take no memory: the shape may be too large for it."""
    return np.broadcast_to(1.0, shape) if weight is None else weight
