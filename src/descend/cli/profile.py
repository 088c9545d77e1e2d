"""How the errors of a tensor lie: where among its elements, and how many of which size."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from descend import precision

Array = npt.NDArray[Any]

_POINTS = 400
"""The most points of a plot: of more elements each stretch is shown by its largest error."""
EDGES = np.arange(-18.0, 4.01, 0.25)
"""Between the bins of a histogram: logarithms to base 10. Errors beyond the ends are in the first and the last bin."""


@dataclass(frozen=True)
class Profile:
    """The relative errors of one tensor. What is kept is small, however large the tensor is."""

    elements: int
    positions: npt.NDArray[np.int64]
    """Where the largest error of each stretch of elements is, in the order in which the last dimension varies
    fastest."""
    errors: npt.NDArray[np.float64]
    """These errors; infinite where one side is infinite or NaN, and the other is not the same."""
    counts: npt.NDArray[np.int64]
    """How many errors lie in each bin."""
    exact: int
    """How many errors are 0."""
    mismatches: int
    """How many are infinite."""
    worst: str
    """The element with the largest error, with its value and its golden value."""

    @classmethod
    def of(cls, actual: Array, golden: Array, dtype: npt.DTypeLike) -> Profile:
        """The errors of ``actual``, which was computed in ``dtype``. ValueError as from `precision.measure`."""
        size = actual.size
        stretch = max(-(-size // _POINTS), 1)
        errors = np.full(-(-size // stretch), -1.0)
        positions = np.zeros(errors.size, np.int64)
        counts = np.zeros(EDGES.size - 1, np.int64)
        exact = mismatches = start = 0
        for block in precision.relative_errors(actual, golden, dtype):
            for first in range(start // stretch, (start + block.size - 1) // stretch + 1):
                begin, end = max(first * stretch, start), min((first + 1) * stretch, start + block.size)
                part = block[begin - start : end - start]
                largest = int(part.argmax())
                if part[largest] > errors[first]:
                    errors[first], positions[first] = part[largest], begin + largest
            finite = block[np.isfinite(block)]
            positive = finite[finite > 0]
            exact += finite.size - positive.size
            mismatches += block.size - finite.size
            counts += np.histogram(np.clip(np.log10(positive), EDGES[0], EDGES[-1]), EDGES)[0]
            start += block.size
        return cls(size, positions, errors, counts, exact, mismatches, _worst(actual, golden, positions, errors))


def _worst(actual: Array, golden: Array, positions: npt.NDArray[np.int64], errors: npt.NDArray[np.float64]) -> str:
    if not errors.size or not errors.max():
        return ""
    place = tuple(int(i) for i in np.unravel_index(positions[errors.argmax()], actual.shape))
    index = ", ".join(str(i) for i in place)
    return f"[{index}]: {float(actual[place]):.9g}, golden {float(golden[place]):.17g}"
