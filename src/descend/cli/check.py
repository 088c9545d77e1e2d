"""``descend check ACTUAL GOLDEN``: the precision standard, with an exit status."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import numpy as np
import typer

from descend import precision
from descend.cli import output
from descend.cli.files import TensorFile, few
from descend.tensors import Array, Contents, parse_dtype

_SINGLE = ("MERE", "MARE", "RMSE", "T", "rounded right")
_DOUBLE = ("MARE", "MERE", "RMSE", "MARE ratio", "MERE ratio", "RMSE ratio")


def check(
    actual: Annotated[str, typer.Argument(metavar="ACTUAL", help="The results: FILE, or FILE.bin:DTYPE[:SHAPE].")],
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
) -> None:
    """Judge results by the precision standard. Exit status: 0 passed, 1 failed, 2 could not be judged."""
    if level not in precision.LEVELS:
        raise ValueError(f"There is no level {level!r}, only {', '.join(precision.LEVELS)}.")
    computed_in = parse_dtype(dtype) if dtype else None
    files = [TensorFile.parse(text) for text in (golden, actual, third_party) if text is not None]
    wanted, *read = [file.read() for file in files]
    results = [_by_golden_name(file, tensors, wanted) for file, tensors in zip(files[1:], read, strict=True)]

    measures = _DOUBLE if third_party else _SINGLE
    table = output.table("tensor", "shape", "dtype", *measures, "verdict", right=measures)
    passes = 0
    with output.progress() as bar:
        for name, reference in bar.track(wanted.items(), description="comparing"):
            arrays, obstacle = _compared(name, reference, files, results)
            shape = output.shape(arrays[1] if len(arrays) > 1 else reference)
            kind = computed_in or (results[0][name].dtype if name in results[0] else "")
            if obstacle:
                table.add_row(name, shape, str(kind), *[""] * len(measures), output.verdict(False, obstacle))
                continue
            judge = _judge_double if third_party else _judge_single
            cells, passed, remark = judge(arrays, level, np.dtype(kind))
            table.add_row(name, shape, str(kind), *cells, output.verdict(passed, remark))
            passes += passed
    console = output.console()
    output.show(console, table)
    benchmark = f"double benchmark at {level}" if third_party else "single benchmark"
    console.print(f"{passes} of {len(wanted)} tensors pass the {benchmark}.")
    if unjudged := [name for name in results[0] if name not in wanted]:
        console.print(f"Not judged, for {files[0].path} does not hold them: {few(unjudged)}.")
    if passes < len(wanted):
        raise typer.Exit(1)


def _by_golden_name(file: TensorFile, tensors: Contents, wanted: Contents) -> Mapping[str, Array]:
    """The file's tensors; where both files hold a single one, its name does not matter."""
    if len(tensors) == len(wanted) == 1:
        return dict(zip(wanted, tensors.values(), strict=True))
    if not tensors.keys() & wanted.keys():
        raise ValueError(f"{file.path} holds {few(tensors)}, and the golden file {few(wanted)}: no name in common.")
    return tensors


def _compared(
    name: str, reference: Array, files: list[TensorFile], results: list[Mapping[str, Array]]
) -> tuple[list[Array], str]:
    """Golden, ours and perhaps theirs in one shape; or why they cannot be compared."""
    arrays = [reference]
    for file, tensors in zip(files[1:], results, strict=True):
        if name not in tensors:
            return arrays, f"missing in {file.path.name}"
        arrays.append(tensors[name])
    if any(file.flat for file in files) and len({array.size for array in arrays}) == 1:
        arrays = [array.reshape(-1) for array in arrays]
    for file, array in zip(files[1:], arrays[1:], strict=True):
        if array.shape != arrays[0].shape:
            return arrays, f"{file.path.name} has shape {output.shape(array)}, golden {output.shape(arrays[0])}"
    return arrays, ""


def _judge_single(arrays: list[Array], _level: str, dtype: np.dtype[Any]) -> tuple[list[str], bool, str]:
    golden, ours = arrays
    result = precision.single_benchmark(ours, golden, dtype)
    share = f"{precision.correct_rounding_share(ours, golden, dtype):.2%}" if dtype.itemsize == 2 else ""
    errors = [output.error(value) for value in (result.errors.mere, result.errors.mare, result.errors.rmse)]
    return [*errors, output.error(result.threshold), share], result.passed, _remark(result.errors)


def _judge_double(arrays: list[Array], level: str, dtype: np.dtype[Any]) -> tuple[list[str], bool, str]:
    golden, ours, theirs = arrays
    result = precision.double_benchmark(ours, theirs, golden, level, dtype)
    errors = [output.error(value) for value in (result.ours.mare, result.ours.mere, result.ours.rmse)]
    return [*errors, *(f"{ratio:.3g}" for ratio in result.ratios)], result.passed, _remark(result.ours)


def _remark(errors: precision.Errors) -> str:
    return f"{errors.mismatches} infinite or NaN on one side only" if errors.mismatches else ""
