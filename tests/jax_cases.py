"""Calls of the operators in JAX that the tests share: those of the PyTorch tests, as NumPy arrays."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
import torch

import descend.jax
import torch_cases
from cases import DTYPES
from pages import MISSING

jax.config.update("jax_disable_most_optimizations", True)  # programs here take longer to compile than to run

OPERATORS = tuple(name for name in torch_cases.OPERATORS if name not in MISSING["jax"])
FORWARDS, NAMES = torch_cases.FORWARDS, tuple(n for n in torch_cases.NAMES if n not in MISSING["jax"])
BACKWARDS = tuple(name for name in NAMES if name not in FORWARDS)


def x64(on: bool = True) -> AbstractContextManager[None]:
    """64-bit types in JAX, which it has only when asked."""
    if hasattr(jax, "enable_x64"):
        return jax.enable_x64(on)
    from jax.experimental import enable_x64

    return enable_x64(on)


@dataclass(frozen=True)
class Call:
    """A call of an operator: its positional arguments, of which some are arrays, and those by keyword."""

    name: str
    args: tuple[Any, ...]
    named: dict[str, Any]

    @property
    def arrays(self) -> list[int]:
        """The places of the arrays."""
        return [i for i, a in enumerate(self.args) if isinstance(a, np.ndarray)]

    @property
    def floats(self) -> list[int]:
        """The places of the floating arrays."""
        return [i for i in self.arrays if self.args[i].dtype.kind not in "biu"]

    def at(self, places: Sequence[int], module: Any = descend.jax) -> Callable[..., tuple[Any, ...]]:
        """The call as a function of the arrays in some places; its results are a tuple without those left out."""

        def function(*values: Any) -> tuple[Any, ...]:
            args = list(self.args)
            for place, value in zip(places, values, strict=True):
                args[place] = value
            results = getattr(module, self.name)(*args, **self.named)
            return tuple(r for r in (results if isinstance(results, tuple) else (results,)) if r is not None)

        return function

    def of(self, places: Sequence[int]) -> list[Any]:
        """The arrays in some places."""
        return [self.args[place] for place in places]


@functools.cache
def calls(dtype: str = "DOUBLE") -> dict[str, Call]:
    """Small calls of every operator, with every kind of argument; the floating arrays have one dtype."""

    def convert(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        array = value.cpu().numpy()
        return array if array.dtype.kind in "biu" else array.astype(DTYPES[dtype])

    return {
        name: Call(call.name, tuple(map(convert, call.args)), call.named)
        for name, call in torch_cases.calls(torch.float64).items()
        if name in NAMES
    }
