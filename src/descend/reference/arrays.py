"""What the definitions share: float64 arrays, and checks of their shapes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Float64 = npt.NDArray[np.float64]


def float64(array: npt.ArrayLike) -> Float64:
    """The array's numbers in float64, which is exact."""
    return np.asarray(array, dtype=np.float64)


def check_like(name: str, array: Float64, other_name: str, other: Float64) -> None:
    """Raise ValueError for an array that is not shaped as another.

    NumPy would repeat what is smaller: the results would be others, and perhaps larger than memory.
    """
    if array.shape != other.shape:
        raise ValueError(f"{name} of shape {array.shape} is not shaped as {other_name}, {other.shape}")


def check_one_of(name: str, value: object, allowed: Sequence[object]) -> None:
    """Raise ValueError for an attribute that has another value."""
    if value not in allowed:
        raise ValueError(f"{name} is {value!r}, but it must be {' or '.join(map(str, allowed))}")


def check_row(x: Float64, gamma: Float64) -> None:
    """Raise ValueError unless gamma has the last dimensions of x."""
    if gamma.ndim > x.ndim or gamma.shape != x.shape[x.ndim - gamma.ndim :]:
        raise ValueError(f"gamma of shape {gamma.shape} is not shaped as the last dimensions of x, {x.shape}")
