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
from rich.text import Text

import descend
from descend import acl, precision
from descend.cli import operators, output
from descend.cli.demos import DEMOS, Demo
from descend.cli.info import memory_limit
from descend.contract import OPERATORS, Operator
from descend.tensors import Tensors, read

_PRODUCT = "atlas-a2-training"  # every document has this product
_LINES = 16  # of the worked example's table
_COLUMNS = 2  # of each result there
_SECONDS = 0.01  # of each measurement, of calls of microseconds
_ABSENT = (
    "No captured tensors found: they are in examples/data of a checkout, so run `descend demo` there or say where with "
    "--data."
)
_LIMIT = "The limit is the time of two reads and a write with as many bytes in play, plus that of an empty call"
_NEXT = """\
Next: `descend demo --all` prints every call with its errors (in a checkout: `./dev run demo --all`).
      `descend explain rms_norm_grad` prints an operator's formula, parameters, dtypes and products.
"""


def demo(
    operator: Annotated[str | None, typer.Argument(metavar="OPERATOR", help="Only this operator, in full.")] = None,
    data: Annotated[Path | None, typer.Option(help="The folder of captured tensors.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="Every example and call, in full.")] = False,
) -> None:
    """Show the operators at work, compared with float64.

    Each document's worked example is run in two phases, and calls of real training runs are computed. One line
    an operator tells how that went; OPERATOR or --all prints every call.
    """
    names = [operators.find(operator).name] if operator else list(DEMOS)
    if operator and names[0] not in DEMOS:
        raise ValueError(f"There is no demo of {names[0]}, only of {', '.join(DEMOS)}.")
    if data is not None and not data.is_dir():
        raise FileNotFoundError(f"{data} is no folder.")
    folder = data or find_data()
    runs = []
    console = output.console()
    for name in names:
        run = _run(OPERATORS[name], DEMOS[name], folder)
        runs.append(run)
        if operator or everything:
            _print_example(console, run)
            _print_captures(console, run)
    if not (operator or everything):
        _print_summary(console, runs)
    if not all(verdict.passed for run in runs for verdict in run.verdicts):
        raise typer.Exit(1)


def find_data() -> Path | None:
    """The folder ``examples/data`` of the checkout that this package, or the current folder, lies in."""
    here = Path.cwd()
    for folder in (*Path(__file__).resolve().parents, here, *here.parents):
        if (folder / "examples" / "capture_gradients.py").exists():
            return folder / "examples" / "data"
    return None


@dataclass(frozen=True)
class Measured:
    """One captured call: its results, and how long it took."""

    name: str
    outputs: Tensors
    verdicts: dict[str, precision.Single]
    seconds: float
    limit: float
    """The limit: the seconds that moving its bytes takes, plus those of an empty call."""


@dataclass(frozen=True)
class Run:
    """The results of one operator: the document's worked example, and the captured calls."""

    operator: Operator
    example: Tensors
    golden: Tensors
    """The example's results in float64."""
    empty: float
    """The seconds of an empty call: of the worked example, which is tiny."""
    captures: list[Measured]
    file: Path | None
    """The file of the captured calls; None if there is none."""

    @property
    def verdicts(self) -> Iterator[precision.Single]:
        """The verdicts on every result."""
        yield from _judge(self.example, self.golden).values()
        for captured in self.captures:
            yield from captured.verdicts.values()

    @property
    def rounded_once(self) -> int:
        """How many numbers of the worked example equal the float64 value rounded once."""
        pairs = ((array, self.golden[name]) for name, array in self.example.items())
        return sum(int(np.sum(array == precision.round_to(golden, array.dtype))) for array, golden in pairs)

    @property
    def numbers(self) -> int:
        """How many numbers the results of the worked example have."""
        return sum(array.size for array in self.example.values())


def _run(operator: Operator, demo: Demo, folder: Path | None) -> Run:
    """Run the document's example in two phases, and measure every captured call."""
    arguments = demo.example()
    with acl.product(_PRODUCT):
        outputs = operators.allocate(operator, arguments, _PRODUCT)
        example = operators.two_phase(operator, arguments, outputs)
    empty = _seconds(operator, arguments, operators.allocate(operator, arguments, "host"))
    captures = []
    file = folder and folder / f"{demo.file or operator.name}.safetensors"
    if file and not file.exists():
        file = None
    if file:
        threads = descend.get_num_threads()
        limit = functools.cache(lambda size: memory_limit(size, threads, _SECONDS))
        with output.progress() as bar:
            for name, tensors in bar.track(list(_captures(read(file))), description=f"measuring {operator.name}"):
                inputs = {parameter: tensor for parameter, tensor in tensors.items() if parameter not in demo.without}
                captures.append(_measure(operator, name, inputs | demo.attributes(tensors), limit, empty))
    return Run(operator, example, operators.golden(operator, arguments), empty, captures, file)


def _print_example(console: Console, run: Run) -> None:
    """The example's first numbers beside their float64 golden values."""
    columns = [
        (
            f"{name}[{start}:{start + _LINES}]",
            array.reshape(-1)[start : start + _LINES],
            run.golden[name].reshape(-1)[start:],
        )
        for name, array in run.example.items()
        for start in range(0, min(array.size, _COLUMNS * _LINES), _LINES)
    ]
    headings = [heading for title, _, _ in columns for heading in (title, "float64")]
    table = output.table(*headings, right=headings)
    for line in range(_LINES):
        cells = [values[line : line + 1] for _, actual, expected in columns for values in (actual, expected)]
        table.add_row(*("".join(f"{value:.9g}" for value in cell) for cell in cells))
    title = f"{run.operator.c_name}: the document's worked example in two phases on {_PRODUCT}"
    console.print(output.heading(title))
    output.show(console, table)
    console.print()
    console.print(f"{run.rounded_once} of {run.numbers} numbers are the float64 golden value, rounded once.\n")


def _print_captures(console: Console, run: Run) -> None:
    """Errors, verdict, time and share of the memory limit for each result of each captured call."""
    if run.file is None:
        console.print(_ABSENT)
        return
    columns = ("captured at", "result", "shape", "dtype", "MERE", "MARE", "RMSE", "verdict", "time", "of limit")
    table = output.table(*columns, right=[*columns[4:7], *columns[8:]])
    for captured in run.captures:
        _add_rows(table, captured)
    console.print(output.heading(f"{run.operator.name}: calls of a real training run ({run.file.name})"))
    output.show(console, table)
    console.print()
    console.print(f"Errors are against float64. {_LIMIT} ({output.seconds(run.empty)}: the worked example).\n")


def _print_summary(console: Console, runs: list[Run]) -> None:
    """One line for each operator, one for the worked examples, and what to try next."""
    columns = ("operator", "tensors", "dtypes", "worst error", "verdict", "time", "of limit")
    table = output.table(*columns, right=("tensors", "worst error", "time", "of limit"))
    for run in runs:
        if run.captures:
            table.add_row(*_summary(run))
    if table.row_count:
        console.print(output.heading("Calls of real training runs, compared with float64"))
        output.show(console, table)
        console.print()
        console.print(
            "Worst error: the largest, divided by what the precision standard of the Ascend ecosystem allows. "
            f"Time: the median of the captured calls. {_LIMIT}.\n"
        )
    if any(run.file is None for run in runs):
        console.print(_ABSENT)
    equal, total = (sum(getattr(run, name) for run in runs) for name in ("rounded_once", "numbers"))
    passed = sum(all(v.passed for v in _judge(run.example, run.golden).values()) for run in runs)
    console.print(
        f"Worked examples of the documents, in two phases on {_PRODUCT}: {passed} of {len(runs)} pass, and {equal} of "
        f"{total} numbers are the float64 value, rounded once.\n"
    )
    console.print(_NEXT, end="")


def _summary(run: Run) -> tuple[str | Text, ...]:
    verdicts = [verdict for captured in run.captures for verdict in captured.verdicts.values()]
    dtypes = dict.fromkeys(str(array.dtype) for captured in run.captures for array in captured.outputs.values())
    worst = max(verdict.share for verdict in verdicts)
    seconds = [captured.seconds for captured in run.captures]
    return (
        run.operator.name,
        str(len(verdicts)),
        ", ".join(sorted(dtypes)),
        f"{worst:.2g}",
        output.verdict(all(verdict.passed for verdict in verdicts)),
        output.seconds(statistics.median(seconds)),
        f"{sum(captured.limit for captured in run.captures) / sum(seconds):.0%}",
    )


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


def _measure(
    operator: Operator, name: str, arguments: dict[str, Any], limit: Callable[[int], float], empty: float
) -> Measured:
    outputs = operators.allocate(operator, arguments, "host")
    seconds, golden = _seconds(operator, arguments, outputs), operators.golden(operator, arguments)
    outputs = {name: outputs[name] for name in golden}  # those that the call computes
    size = operators.bytes_in_play(arguments, outputs)
    verdicts = _judge(outputs, golden)
    return Measured(name, outputs, verdicts, seconds, size / limit(size) + empty)


def _judge(outputs: Tensors, golden: Tensors) -> dict[str, precision.Single]:
    return {name: precision.single_benchmark(array, golden[name]) for name, array in outputs.items()}


def _add_rows(table: Table, captured: Measured) -> None:
    """One line for each result. Time and share are those of the call, and are in its first line."""
    head, tail = captured.name, (output.seconds(captured.seconds), f"{captured.limit / captured.seconds:.0%}")
    for name, array in captured.outputs.items():
        result = captured.verdicts[name]
        errors = [output.error(e) for e in (result.errors.mere, result.errors.mare, result.errors.rmse)]
        kind = str(array.dtype)
        verdict = output.verdict(result.passed)
        table.add_row(head.removesuffix(f".{kind}"), name, output.shape(array), kind, *errors, verdict, *tail)
        head, tail = "", ("", "")
