"""Verdicts on tensors by the precision standard: a row of a table for each."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from rich.console import Console

from descend import precision
from descend.cli import output
from descend.cli.profile import Profile
from descend.tensors import Array

_SINGLE = ("MERE", "MARE", "RMSE", "T", "rounded right")
_DOUBLE = ("MARE", "MERE", "RMSE", "MARE ratio", "MERE ratio", "RMSE ratio")


@dataclass(frozen=True)
class Row:
    """One tensor's verdict."""

    name: str
    shape: str
    dtype: str
    passed: bool
    remark: str = ""
    cells: Sequence[str] = ()
    share: float = math.inf
    """The error as a fraction of the allowed error; infinite if nothing could be compared."""
    profile: Profile | None = None


@dataclass(frozen=True)
class Judge:
    """What tensors are judged by."""

    level: str = "L0"
    """Of the double benchmark."""
    double: bool = False
    computed_in: np.dtype[Any] | None = None
    """The dtype of all tensors, if it is not the one that each has."""
    profiles: bool = False
    """Whether a page will show where the errors are."""

    @property
    def measures(self) -> tuple[str, ...]:
        """The columns of the errors."""
        return _DOUBLE if self.double else _SINGLE

    @property
    def benchmark(self) -> str:
        """What the standard calls it."""
        return f"double benchmark at {self.level}" if self.double else "single benchmark"

    def row(
        self,
        name: str,
        ours: Array,
        golden: Array,
        dtype: np.dtype[Any] | None = None,
        third_party: tuple[Array, Array] | None = None,
    ) -> Row:
        """The verdict on a tensor. A third party's result comes with its own golden value.

        Raises ValueError for dtypes that the standard does not know.
        """
        dtype = self.computed_in or dtype or ours.dtype
        described = name, output.shape(ours), str(dtype)
        verdict: precision.Single | precision.Double
        if third_party:
            theirs = precision.measure(*third_party, dtype)
            verdict = precision.Double(precision.measure(ours, golden, dtype), theirs, self.level)
            errors, numbers = verdict.ours, (verdict.ours.mare, verdict.ours.mere, verdict.ours.rmse)
            cells = [*map(output.error, numbers), *(f"{ratio:.3g}" for ratio in verdict.ratios)]
        else:
            verdict = precision.single_benchmark(ours, golden, dtype)
            errors, numbers = verdict.errors, (verdict.errors.mere, verdict.errors.mare, verdict.errors.rmse)
            right = f"{precision.correct_rounding_share(ours, golden, dtype):.2%}" if dtype.itemsize == 2 else ""
            cells = [*map(output.error, (*numbers, verdict.threshold)), right]
        remark = f"{errors.mismatches} {precision.UNLIKE}" if errors.mismatches else ""
        return Row(*described, verdict.passed, remark, cells, verdict.share, self._profile(ours, golden, dtype))

    def integers(self, name: str, ours: Array, golden: Array) -> Row:
        """The verdict on integers, which must be equal."""
        differ = int(np.count_nonzero(ours != golden))
        remark = f"{differ} integers differ" if differ else ""
        profile = self._profile(ours, golden, ours.dtype)
        described = name, output.shape(ours), str(ours.dtype)
        return Row(*described, not differ, remark, share=math.inf if differ else 0.0, profile=profile)

    def _profile(self, ours: Array, golden: Array, dtype: npt.DTypeLike) -> Profile | None:
        return Profile.of(ours, golden, dtype) if self.profiles else None


def worst_first(rows: list[Row]) -> list[Row]:
    """The rows, failures before the rest, and each by how far it is from what is allowed."""
    return sorted(rows, key=lambda row: (row.passed, -row.share))


def show(console: Console, rows: Sequence[Row], measures: tuple[str, ...]) -> None:
    """Print the table."""
    table = output.table("tensor", "shape", "dtype", *measures, "verdict", right=measures)
    for row in rows:
        cells = row.cells or [""] * len(measures)
        table.add_row(row.name, row.shape, row.dtype, *cells, output.verdict(row.passed, row.remark))
    output.show(console, table)
