"""The precision standard of the Ascend ecosystem: how far a result is from its golden value, and whether it passes.

Three errors are taken over all elements of a tensor::

    MERE = mean(|actual - golden| / (|golden| + 1e-7))
    MARE = max(|actual - golden| / (|golden| + 1e-7))
    RMSE = sqrt(mean((actual - golden)^2))

**Single benchmark**: passes if MERE < T and MARE < 10 T, with T = 2^-10 for float16, 2^-7 for bfloat16 and 2^-13 for
float32. The standard says nothing about float64; T = 2^-44 is our own choice: 52 bits, less what sums and the rounding
of the golden value itself may take.

**Double benchmark**: a third party's result on the same inputs is measured too, and ours may be worse by a factor of at
most 10, 2 and 2 in MARE, MERE and RMSE (level L0), 5, 1.5, 1.5 (L1) or 2, 1.2, 1.2 (L2).

Infinities and NaN: where actual and golden agree (both NaN, or the same infinity), the error is 0. A golden value too
large for the result's dtype agrees with the infinity that it rounds to. Anything else is a mismatch, and its error is
infinite.

Arrays are read in blocks: memory use does not depend on their size.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import ml_dtypes
import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Float64 = npt.NDArray[np.float64]
Order = Literal["C", "K"]

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)

THRESHOLDS: dict[str, float] = {
    "float16": 2.0**-10,
    "bfloat16": 2.0**-7,
    "float32": 2.0**-13,
    "float64": 2.0**-44,
}
"""T of the single benchmark for each dtype; float64's is our own."""


class Limits(NamedTuple):
    """The largest ratios, ours to theirs, that a level of the double benchmark allows."""

    mare: float
    mere: float
    rmse: float


LEVELS: dict[str, Limits] = {
    "L0": Limits(10.0, 2.0, 2.0),
    "L1": Limits(5.0, 1.5, 1.5),
    "L2": Limits(2.0, 1.2, 1.2),
}
"""The levels of the double benchmark."""

UNLIKE = "infinite or NaN, not the same on both sides"
"""What a mismatch is, in words."""

_SMALL = 1e-7  # the standard's guard against golden values of 0
_INTEGERS = "biu"  # NumPy's kinds of booleans and integers
_BLOCK = 1 << 16  # elements converted at once; a few float64 blocks stay in the cache


@dataclass(frozen=True)
class Errors:
    """How far a tensor is from its golden value."""

    elements: int
    mere: float
    """Mean relative error."""
    mare: float
    """Largest relative error."""
    rmse: float
    """Root of the mean squared error."""
    mismatches: int
    """Elements where one side is infinite or NaN and the other is not the same; one makes all three errors infinite."""

    def __str__(self) -> str:
        """One line, such as ``MERE 2.1e-08, MARE 1.9e-06, RMSE 3.0e-08 over 4096 elements``."""
        line = f"MERE {self.mere:.2g}, MARE {self.mare:.2g}, RMSE {self.rmse:.2g} over {self.elements} elements"
        return f"{line}, {self.mismatches} of them {UNLIKE}" if self.mismatches else line


@dataclass(frozen=True)
class Single:
    """Verdict of the single benchmark."""

    errors: Errors
    threshold: float
    """T: MERE must be below it, MARE below ten times it."""

    @property
    def passed(self) -> bool:
        """Whether the tensor is precise enough."""
        return self.errors.mere < self.threshold and self.errors.mare < 10 * self.threshold

    @property
    def share(self) -> float:
        """The larger of MERE and MARE, each divided by what is allowed: passed if below 1."""
        return max(self.errors.mere / self.threshold, self.errors.mare / (10 * self.threshold))

    def __str__(self) -> str:
        """One line: verdict, errors, threshold."""
        return f"{_verdict(self.passed)}: {self.errors} (T = 2^{math.log2(self.threshold):.0f})"


@dataclass(frozen=True)
class Double:
    """Verdict of the double benchmark."""

    ours: Errors
    theirs: Errors
    level: str

    @property
    def ratios(self) -> Limits:
        """Our errors divided by theirs; 1 where both are 0."""
        return Limits(
            _ratio(self.ours.mare, self.theirs.mare),
            _ratio(self.ours.mere, self.theirs.mere),
            _ratio(self.ours.rmse, self.theirs.rmse),
        )

    @property
    def passed(self) -> bool:
        """Whether no ratio exceeds its limit and every infinity and NaN is where it belongs."""
        within = all(ratio <= limit for ratio, limit in zip(self.ratios, LEVELS[self.level], strict=True))
        return within and not self.ours.mismatches

    @property
    def share(self) -> float:
        """The largest ratio, each divided by its limit: passed if at most 1, and there is no mismatch."""
        return max(ratio / limit for ratio, limit in zip(self.ratios, LEVELS[self.level], strict=True))

    def __str__(self) -> str:
        """One line: verdict, ratios, limits."""
        ratios, limits = self.ratios, LEVELS[self.level]
        parts = (f"{n.upper()} {getattr(ratios, n):.3g} (at most {getattr(limits, n):g})" for n in Limits._fields)
        return f"{_verdict(self.passed)} at {self.level}: ours / theirs {', '.join(parts)}"


def _verdict(passed: bool) -> str:
    return "pass" if passed else "FAIL"


def _ratio(ours: float, theirs: float) -> float:
    if ours == theirs:
        return 1.0
    return ours / theirs if theirs else math.inf


def threshold(dtype: npt.DTypeLike) -> float:
    """T of the single benchmark for results of this dtype; ValueError where the standard has none."""
    name = np.dtype(dtype).name
    if name not in THRESHOLDS:
        raise ValueError(f"The precision standard has no threshold for {name}, only for {', '.join(THRESHOLDS)}.")
    return THRESHOLDS[name]


def measure(actual: npt.ArrayLike, golden: npt.ArrayLike, dtype: npt.DTypeLike | None = None) -> Errors:
    """MERE, MARE and RMSE of ``actual`` against ``golden``, two arrays of one shape and of any real dtypes.

    ``dtype`` is the dtype that ``actual`` was computed in, where it is stored in another. Without elements all errors
    are 0. Raises ValueError where the shapes differ.
    """
    actual, golden = np.asarray(actual), np.asarray(golden)
    mere = mare = squares = 0.0
    mismatches = 0
    with np.errstate(all="ignore"):
        for error, size, odd in _errors(actual, golden, dtype, "K"):
            mismatches += odd
            squares += float(np.square(error).sum())  # not BLAS, whose threads wait for each other, for no gain
            error /= size + _SMALL
            mere += float(error.sum())
            mare = max(mare, float(error.max()))
    count = max(actual.size, 1)
    return Errors(actual.size, mere / count, mare, math.sqrt(squares / count), mismatches)


def relative_errors(
    actual: npt.ArrayLike, golden: npt.ArrayLike, dtype: npt.DTypeLike | None = None
) -> Iterator[Float64]:
    """The relative error of each element, those of which `measure` takes the mean and the largest.

    They come in blocks, in the order of the elements (the last dimension varies fastest), infinite at a mismatch.
    ``dtype`` as in `measure`. Raises ValueError where the shapes differ.
    """
    for error, size, _ in _errors(np.asarray(actual), np.asarray(golden), dtype, "C"):
        yield error / (size + _SMALL)


def _errors(
    actual: Array, golden: Array, dtype: npt.DTypeLike | None, order: Order
) -> Iterator[tuple[Float64, Float64, int]]:
    """The absolute errors of each block, the sizes of its golden values, and the number of its mismatches."""
    computed_in = actual.dtype if dtype is None else np.dtype(dtype)
    exact = computed_in.kind in _INTEGERS  # which no golden value overflows to infinity
    for a, g in _blocks(actual, golden, order):
        mismatches = 0
        with np.errstate(all="ignore"):  # ends before each block is given out
            error, size = np.abs(a - g), np.abs(g)
            if not np.isfinite(error).all():
                odd = ~(np.isfinite(a) & np.isfinite(g))
                agree = _equal(a[odd], g[odd] if exact else round_to(g[odd], computed_in))
                error[odd] = np.where(agree, 0.0, np.inf)
                size[odd] = 0.0
                mismatches = int(np.count_nonzero(~agree))
        yield error, size, mismatches


def single_benchmark(actual: npt.ArrayLike, golden: npt.ArrayLike, dtype: npt.DTypeLike | None = None) -> Single:
    """Judge ``actual`` against ``golden`` by the threshold of ``dtype`` (default: the dtype of ``actual``).

    Raises ValueError where the shapes differ or the dtype has no threshold.
    """
    actual = np.asarray(actual)
    limit = threshold(actual.dtype if dtype is None else dtype)
    return Single(measure(actual, golden, dtype), limit)


def double_benchmark(
    actual: npt.ArrayLike,
    third_party: npt.ArrayLike,
    golden: npt.ArrayLike,
    level: str = "L0",
    dtype: npt.DTypeLike | None = None,
) -> Double:
    """Judge ``actual`` by how its errors compare with those of ``third_party`` on the same inputs.

    ``level`` is ``L0``, ``L1`` or ``L2``; ``dtype`` as in `measure`. Raises ValueError where the shapes differ or the
    level is unknown.
    """
    if level not in LEVELS:
        raise ValueError(f"There is no level {level!r} of the double benchmark, only {', '.join(LEVELS)}.")
    return Double(measure(actual, golden, dtype), measure(third_party, golden, dtype), level)


def correct_rounding_share(actual: npt.ArrayLike, golden: npt.ArrayLike, dtype: npt.DTypeLike | None = None) -> float:
    """The share, 0 to 1, of elements that are the golden value rounded once to ``dtype`` (default: that of ``actual``).

    NaN equals NaN, and 0 equals -0. Without elements it is 1. Raises ValueError where the shapes differ or the dtype is
    not floating.
    """
    actual, golden = np.asarray(actual), np.asarray(golden)
    computed_in = actual.dtype if dtype is None else np.dtype(dtype)
    equal = sum(int(np.count_nonzero(_equal(a, round_to(g, computed_in)))) for a, g in _blocks(actual, golden))
    return equal / actual.size if actual.size else 1.0


def round_to(values: npt.ArrayLike, dtype: npt.DTypeLike) -> Array:
    """Round float64 values once, to nearest, ties to even, to a narrower floating dtype.

    NumPy does so for its own dtypes; the cast to ``ml_dtypes.bfloat16`` passes through float32 and rounds twice.
    Rounding to odd on the way keeps what the second rounding needs to know. Raises ValueError for a dtype that is not
    floating.
    """
    if np.dtype(dtype).kind in _INTEGERS:
        raise ValueError(f"Values are rounded to a floating dtype, and {np.dtype(dtype)} is none.")
    wide = np.asarray(values, dtype=np.float64)
    with np.errstate(all="ignore"):
        if np.dtype(dtype) != BFLOAT16:
            return wide.astype(dtype)
        single = wide.astype(np.float32)
        bits = np.array(single).view(np.uint32)
        inexact = (single != wide) & ~np.isnan(wide)
        bits -= inexact & (np.abs(single) > np.abs(wide))  # towards zero
        bits |= inexact
        return bits.view(np.float32).astype(BFLOAT16)


def _equal(actual: Float64, expected: Array) -> npt.NDArray[np.bool_]:
    wide = expected.astype(np.float64)
    same: npt.NDArray[np.bool_] = (actual == wide) | (np.isnan(actual) & np.isnan(wide))
    return same


def _blocks(actual: Array, golden: Array, order: Order = "K") -> Iterator[tuple[Float64, Float64]]:
    """Matching blocks of both arrays in float64, whatever their dtypes and strides. Order K is the fastest one."""
    if actual.shape != golden.shape:
        raise ValueError(
            f"The result has shape {list(actual.shape)}, but its golden value has shape {list(golden.shape)}."
        )
    for array in (actual, golden):
        if array.dtype != BFLOAT16 and array.dtype.kind not in "f" + _INTEGERS:
            raise ValueError(f"The precision standard is for real numbers, not for {array.dtype}.")
    if actual.size:
        yield from np.nditer(
            (actual, golden),
            flags=["external_loop", "buffered"],
            op_flags=[["readonly"], ["readonly"]],
            op_dtypes=[np.float64, np.float64],
            casting="same_kind",
            order=order,
            buffersize=_BLOCK,
        )
