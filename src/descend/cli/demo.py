"""``descend demo``: the documents' worked examples, then tensors captured from a real training run."""

from __future__ import annotations

import functools
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

import descend
from descend import acl, precision
from descend.cli import operators, output
from descend.cli.demos import DEMOS, Demo
from descend.cli.info import memory_limit
from descend.contract import OPERATORS, Operator
from descend.tensors import Tensors, read

_PRODUCT = "atlas-a2-training"  # the one that every document names
_LINES = 16  # of the worked example's table
_COLUMNS = 2  # of each result there
_SECONDS = 0.05  # of each measurement
_ABSENT = (
    "No captured tensors found: they are in examples/data of a checkout, so run `descend demo` there or say where with "
    "--data."
)


def demo(
    operator: Annotated[str | None, typer.Argument(metavar="OPERATOR", help="Only this operator.")] = None,
    data: Annotated[Path | None, typer.Option(help="The folder of captured tensors.")] = None,
) -> None:
    """Show the operators at work, beside float64.

    First each document's worked example, then gradients of a real training run.
    """
    names = [operators.find(operator).name] if operator else list(DEMOS)
    if operator and names[0] not in DEMOS:
        raise ValueError(f"There is no demo of {names[0]}, only of {', '.join(DEMOS)}.")
    if data is not None and not data.is_dir():
        raise FileNotFoundError(f"{data} is no folder.")
    folder = data or find_data()
    console = output.console()
    passed = True
    for name in names:
        passed &= _worked_example(console, OPERATORS[name], DEMOS[name])
        file = folder / f"{name}.safetensors" if folder else None
        if file and file.exists():
            passed &= _captured_tensors(console, OPERATORS[name], DEMOS[name], file)
        else:
            console.print(_ABSENT)
    if not passed:
        raise typer.Exit(1)


def find_data() -> Path | None:
    """The folder ``examples/data`` of the checkout that this package, or the current folder, lies in."""
    here = Path.cwd()
    for folder in (*Path(__file__).resolve().parents, here, *here.parents):
        if (folder / "examples" / "capture_gradients.py").exists():
            return folder / "examples" / "data"
    return None


def _worked_example(console: Console, operator: Operator, demo: Demo) -> bool:
    """Run the document's example in two phases and print its first numbers beside their float64 golden values."""
    arguments = demo.example()
    with acl.product(_PRODUCT):
        outputs = operators.allocate(operator, arguments, _PRODUCT)
        results = operators.two_phase(operator, arguments, outputs)
    golden = operators.golden(operator, arguments)
    columns = [
        (
            f"{name}[{start}:{start + _LINES}]",
            array.reshape(-1)[start : start + _LINES],
            golden[name].reshape(-1)[start:],
        )
        for name, array in results.items()
        for start in range(0, min(array.size, _COLUMNS * _LINES), _LINES)
    ]
    headings = [heading for title, _, _ in columns for heading in (title, "float64")]
    table = output.table(*headings, right=headings)
    for line in range(_LINES):
        cells = [values[line : line + 1] for _, actual, expected in columns for values in (actual, expected)]
        table.add_row(*("".join(f"{value:.9g}" for value in cell) for cell in cells))
    verdicts = [precision.single_benchmark(results[name], golden[name]) for name in results]
    console.print(output.heading(f"{operator.c_name}: the document's worked example in two phases on {_PRODUCT}"))
    output.show(console, table)
    console.print()
    total = sum(array.size for array in results.values())
    equal = sum(int(np.sum(results[name] == precision.round_to(golden[name], results[name].dtype))) for name in results)
    console.print(f"{equal} of {total} numbers are the float64 golden value, rounded once.\n")
    return all(verdict.passed for verdict in verdicts)


@dataclass(frozen=True)
class Measured:
    """One captured call: its results, and how long it took."""

    outputs: Tensors
    golden: Tensors
    seconds: float
    limit: float
    """The seconds that moving its bytes and an empty call take."""


def _captured_tensors(console: Console, operator: Operator, demo: Demo, file: Path) -> bool:
    """Run every captured call and print errors, verdict, time and share of the memory limit for each result."""
    columns = ("captured at", "result", "shape", "dtype", "MERE", "MARE", "RMSE", "verdict", "time", "of limit")
    table = output.table(*columns, right=[*columns[4:7], *columns[8:]])
    threads = descend.get_num_threads()
    limit = functools.cache(lambda size: memory_limit(size, threads, _SECONDS))
    example = demo.example()
    empty = _seconds(operator, example, operators.allocate(operator, example, "host"))
    captures = list(_captures(read(file)))
    passed = True
    with output.progress() as bar:
        for name, inputs in bar.track(captures, description=f"measuring {operator.name}"):
            measured = _measure(operator, inputs | demo.attributes(inputs), limit, empty)
            passed &= _add_rows(table, name, measured)
    console.print(output.heading(f"{operator.name}: gradients of a real training run ({file.name})"))
    output.show(console, table)
    console.print()
    console.print(
        "Errors are against float64. The limit is the time of two reads and a write with as many bytes in play, "
        f"plus that of an empty call ({output.seconds(empty)}: the worked example).\n"
    )
    return passed


def _captures(tensors: Mapping[str, operators.Array]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The captured calls: tensors named ``<capture>.<parameter>``, by capture."""
    captures: dict[str, dict[str, Any]] = {}
    for key, tensor in tensors.items():
        capture, _, parameter = key.rpartition(".")
        captures.setdefault(capture, {})[parameter] = tensor
    yield from captures.items()


def _seconds(operator: Operator, arguments: dict[str, Any], outputs: Tensors) -> float:
    """The median time of the functional call with its outputs given."""
    out = tuple(outputs.values())
    call = functools.partial(getattr(descend, operator.name), **arguments, out=out if len(out) > 1 else out[0])
    times: list[float] = []
    deadline = time.perf_counter() + _SECONDS
    while len(times) < 5 or time.perf_counter() < deadline:
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def _measure(operator: Operator, arguments: dict[str, Any], limit: Callable[[int], float], empty: float) -> Measured:
    outputs = operators.allocate(operator, arguments, "host")
    seconds = _seconds(operator, arguments, outputs)
    size = operators.bytes_in_play(arguments, outputs)
    return Measured(outputs, operators.golden(operator, arguments), seconds, size / limit(size) + empty)


def _add_rows(table: Table, capture: str, measured: Measured) -> bool:
    """One line a result; time and share are the call's, and stand in its first line."""
    passed = True
    head, tail = capture, (output.seconds(measured.seconds), f"{measured.limit / measured.seconds:.0%}")
    for name, array in measured.outputs.items():
        result = precision.single_benchmark(array, measured.golden[name])
        errors = [output.error(e) for e in (result.errors.mere, result.errors.mare, result.errors.rmse)]
        kind = str(array.dtype)
        verdict = output.verdict(result.passed)
        table.add_row(head.removesuffix(f".{kind}"), name, output.shape(array), kind, *errors, verdict, *tail)
        passed &= result.passed
        head, tail = "", ("", "")
    return passed
