"""``descend check ACTUAL GOLDEN``: the precision standard, with an exit status."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console

from descend import precision
from descend.cli import output
from descend.cli.dumps import Dump
from descend.cli.files import TensorFile, few
from descend.tensors import Array, TensorFileError, parse_dtype

_SINGLE = ("MERE", "MARE", "RMSE", "T", "rounded right")
_DOUBLE = ("MARE", "MERE", "RMSE", "MARE ratio", "MERE ratio", "RMSE ratio")


@dataclass(frozen=True)
class Source:
    """A file, or a folder that msprobe dumped, and its tensors by name."""

    path: Path
    flat: bool
    tensors: Mapping[str, Array]

    @classmethod
    def read(cls, text: str) -> Source:
        """Reads an argument of the command line."""
        if text and Path(text).is_dir():
            return cls(Path(text), False, Dump(Path(text)))
        file = TensorFile.parse(text)
        return cls(file.path, file.flat, file.read())

    def dtype(self, name: str, array: Array) -> np.dtype[Any]:
        """The dtype that a tensor was computed in."""
        told = self.tensors.computed_in(name) if isinstance(self.tensors, Dump) else None
        return told or array.dtype


@dataclass(frozen=True)
class Row:
    """One tensor's verdict."""

    name: str
    shape: str
    dtype: str
    passed: bool
    remark: str = ""
    cells: list[str] = field(default_factory=list)
    share: float = math.inf
    """The error as a fraction of the allowed error; infinite if nothing could be compared."""


def check(
    actual: Annotated[
        str, typer.Argument(metavar="ACTUAL", help="The results: FILE, FILE.bin:DTYPE[:SHAPE], or a folder of msprobe.")
    ],
    golden: Annotated[
        str, typer.Argument(metavar="GOLDEN", help="The golden results, float64 at best; the same forms.")
    ],
    third_party: Annotated[
        str | None, typer.Option(help="Another library's results on the same inputs: the double benchmark.")
    ] = None,
    level: Annotated[str, typer.Option(help="L0, L1 or L2 of the double benchmark.")] = "L0",
    dtype: Annotated[
        str | None, typer.Option(help="The dtype that ACTUAL was computed in, if not the one it is stored in.")
    ] = None,
    most: Annotated[int, typer.Option(help="Of a folder, print so many of the worst tensors; 0 for all.", min=0)] = 40,
) -> None:
    """Judge results by the precision standard. Exit status: 0 passed, 1 failed, 2 could not be judged.

    Two folders that msprobe dumped are judged tensor by tensor, and the worst are printed first. Integers there must be
    equal. The dtypes are those of dump.json.
    """
    if level not in precision.LEVELS:
        raise ValueError(f"There is no level {level!r}, only {', '.join(precision.LEVELS)}.")
    computed_in = parse_dtype(dtype) if dtype else None
    golden_source, *sources = (Source.read(text) for text in (golden, actual, third_party) if text is not None)
    wanted = golden_source.tensors
    results = [_by_golden_name(source, wanted) for source in sources]
    step = isinstance(wanted, Dump)

    rows = []
    with output.progress() as bar:
        for name in bar.track(wanted, description="comparing"):
            try:
                rows.append(_row(name, computed_in, level, [golden_source, *sources], results))
            except TensorFileError as error:
                if not step:
                    raise
                rows.append(Row(name, "", "", False, str(error)))
    passes = sum(row.passed for row in rows)
    if step:
        rows.sort(key=lambda row: (row.passed, -row.share))
    shown = rows[:most] if step and most else rows
    console = output.console()
    _print(console, shown, _DOUBLE if third_party else _SINGLE)
    if len(shown) < len(rows):
        console.print(f"{len(rows) - len(shown)} better ones are not shown; --most 0 prints all.")
    benchmark = f"double benchmark at {level}" if third_party else "single benchmark"
    console.print(f"{passes} of {len(rows)} tensors pass the {benchmark}.")
    if unjudged := [name for name in results[0] if name not in wanted]:
        console.print(f"Not judged, for {golden_source.path} does not hold them: {few(unjudged)}.")
    if passes < len(rows):
        raise typer.Exit(1)


def _print(console: Console, rows: list[Row], measures: tuple[str, ...]) -> None:
    table = output.table("tensor", "shape", "dtype", *measures, "verdict", right=measures)
    for row in rows:
        cells = row.cells or [""] * len(measures)
        table.add_row(row.name, row.shape, row.dtype, *cells, output.verdict(row.passed, row.remark))
    output.show(console, table)


def _by_golden_name(source: Source, wanted: Mapping[str, Array]) -> Mapping[str, Array]:
    """The source's tensors. If both files have a single tensor, its name does not matter."""
    tensors = source.tensors
    if isinstance(tensors, Dump) != isinstance(wanted, Dump):
        kind = "folder" if isinstance(wanted, Dump) else "file"
        raise ValueError(f"The golden results are a {kind}, and so must be what is compared: {source.path} is none.")
    if len(tensors) == len(wanted) == 1 and not isinstance(wanted, Dump):
        return dict(zip(wanted, tensors.values(), strict=True))
    if not tensors.keys() & wanted.keys():
        raise ValueError(f"{source.path} holds {few(tensors)}, and the golden file {few(wanted)}: no name in common.")
    return tensors


def _row(
    name: str,
    computed_in: np.dtype[Any] | None,
    level: str,
    sources: list[Source],
    results: list[Mapping[str, Array]],
) -> Row:
    """Compare our tensor, and theirs if there is one, with the golden one."""
    arrays = [sources[0].tensors[name]]
    for source, tensors in zip(sources[1:], results, strict=True):
        if name not in tensors:
            return Row(name, output.shape(arrays[0]), "", False, f"missing in {source.path.name}")
        arrays.append(tensors[name])
    ours = sources[1]
    dtype = computed_in or ours.dtype(name, arrays[1])
    if any(source.flat for source in sources) and len({array.size for array in arrays}) == 1:
        arrays = [array.reshape(-1) for array in arrays]
    described = name, output.shape(arrays[1]), str(dtype)
    for source, array in zip(sources[1:], arrays[1:], strict=True):
        if array.shape != arrays[0].shape:
            remark = f"{source.path.name} has shape {output.shape(array)}, golden {output.shape(arrays[0])}"
            return Row(*described, False, remark)
    if isinstance(ours.tensors, Dump) and arrays[1].dtype.kind in "biu":
        differ = int(np.count_nonzero(arrays[1] != arrays[0]))
        return Row(
            *described, not differ, f"{differ} integers differ" if differ else "", share=math.inf if differ else 0
        )
    return _double(described, arrays, level, dtype) if len(arrays) > 2 else _single(described, arrays, dtype)


def _single(described: tuple[str, str, str], arrays: list[Array], dtype: np.dtype[Any]) -> Row:
    golden, ours = arrays
    result = precision.single_benchmark(ours, golden, dtype)
    right = f"{precision.correct_rounding_share(ours, golden, dtype):.2%}" if dtype.itemsize == 2 else ""
    errors = [output.error(value) for value in (result.errors.mere, result.errors.mare, result.errors.rmse)]
    cells = [*errors, output.error(result.threshold), right]
    return Row(*described, result.passed, _remark(result.errors), cells, result.share)


def _double(described: tuple[str, str, str], arrays: list[Array], level: str, dtype: np.dtype[Any]) -> Row:
    golden, ours, theirs = arrays
    result = precision.double_benchmark(ours, theirs, golden, level, dtype)
    errors = [output.error(value) for value in (result.ours.mare, result.ours.mere, result.ours.rmse)]
    cells = [*errors, *(f"{ratio:.3g}" for ratio in result.ratios)]
    return Row(*described, result.passed, _remark(result.ours), cells, result.share)


def _remark(errors: precision.Errors) -> str:
    return f"{errors.mismatches} infinite or NaN on one side only" if errors.mismatches else ""
