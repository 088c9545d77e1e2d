"""Errors against float64, and the check that a timed call computed the right result."""

from __future__ import annotations

import math
from collections.abc import Sequence

import ml_dtypes
import numpy as np

from benchmarks.operator import Array, Golden, root_mean_square
from descend import precision


class WrongResultError(RuntimeError):
    """A result that was timed is wrong: the figures mean nothing."""


def errors(actual: Array, golden: Golden) -> dict[str, float]:
    """MERE, MARE and RMSE of the precision standard, on the sample that has golden values."""
    found = precision.measure(actual[golden.index], golden.values)
    figures = {"mere": found.mere, "mare": found.mare, "rmse": found.rmse}
    return {name: float(f"{figure:.4g}") for name, figure in figures.items()}


def poison(outputs: Sequence[Array]) -> None:
    """Fills the outputs with values that cannot be taken for a result."""
    for output in outputs:
        output.fill(np.nan)


def check(who: str, outputs: Sequence[Array], golden: Sequence[Golden], dtype: str | None = None) -> None:
    """Raises unless each sampled element's error is within the threshold, relative to its size or its terms' size.

    What is subnormal in its dtype may be off by the smallest of these numbers.
    """
    for number, (actual, part) in enumerate(zip(outputs, golden, strict=True)):
        threshold = precision.threshold(dtype or actual.dtype)
        least = float(ml_dtypes.finfo(actual.dtype).smallest_subnormal)  # type: ignore[no-untyped-call]
        size = max(root_mean_square(part.values), part.terms)
        difference = np.abs(actual[part.index].astype(np.float64) - part.values)
        wrong = ~(difference <= threshold * (np.abs(part.values) + 4 * size) + least)
        if wrong.any():
            where = tuple(int(i) for i in np.argwhere(wrong)[0])
            raise WrongResultError(
                f"{who}: {int(wrong.sum())} of {wrong.size} sampled elements of output {number} are wrong, first at "
                f"{where} of the sample: {float(actual[part.index][where])!r} in place of {float(part.values[where])!r}"
            )


def worst_ratio(ours: Sequence[dict[str, float]], theirs: Sequence[dict[str, float]], measure: str) -> float:
    """The largest ratio of one measure, over the outputs that both have; 1 if both errors are 0."""
    pairs = [(mine[measure], their[measure]) for mine, their in zip(ours, theirs, strict=False)]
    return max(1.0 if mine == their else mine / their if their else math.inf for mine, their in pairs)
