"""What the golden functions share: how their results are rounded, and their arguments read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from descend import precision
from descend.tensors import parse_dtype

Array = npt.NDArray[Any]

Results = tuple[Array | None, ...]
"""An operator's outputs in the order of its definition; None for one that is not computed."""


def rounded(
    results: Sequence[npt.NDArray[np.float64] | None], dtypes: Sequence[npt.DTypeLike], given: Mapping[str, Any]
) -> Results:
    """The results, each rounded once; ``given`` are the framework's keyword arguments.

    One dtype in ``output_dtypes``, or in place of it, is that of all. None there stands for the definition's.
    """
    wanted = given.get("output_dtypes")
    wanted = [wanted] if wanted is None or isinstance(wanted, (str, type, np.dtype)) else list(wanted) or [None]
    if len(wanted) == 1:
        wanted *= len(results)
    if len(wanted) < len(results):
        raise ValueError(f"output_dtypes has {len(wanted)} dtypes, but there are {len(results)} outputs.")
    pairs = zip(results, wanted, dtypes, strict=False)
    return tuple(
        None if result is None else precision.round_to(result, _dtype(dtype if name is None else name))
        for result, name, dtype in pairs
    )


def _dtype(name: npt.DTypeLike) -> np.dtype[Any]:
    """The dtype of a name, as `descend.tensors` knows them, or of what NumPy takes; another package's bfloat16, too."""
    return parse_dtype(name if isinstance(name, str) else str(np.dtype(name)))


def wide(*arrays: Array) -> np.dtype[Any]:
    """The dtype of sums and statistics: float32, or float64 if an array is float64."""
    return np.dtype(np.float64 if any(array.dtype == np.float64 for array in arrays) else np.float32)


def of_sum(x1: Array, x2: Array) -> np.dtype[Any]:
    """The dtype of a sum: that of both, or `wide` where they differ."""
    return x1.dtype if x1.dtype == x2.dtype else wide(x1, x2)


def integers(values: npt.ArrayLike) -> tuple[int, ...]:
    """The integers of an array, a list or one alone."""
    return tuple(int(value) for value in np.asarray(values).reshape(-1))


def check_one_of(name: str, value: Any, allowed: Sequence[Any]) -> None:
    """Raise ValueError for an attribute that has a value of no meaning here."""
    if value not in allowed:
        raise ValueError(f"{name} is {value!r}, but it must be {' or '.join(map(repr, allowed))}.")
