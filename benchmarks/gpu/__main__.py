"""``python -m benchmarks.gpu``: measures on a GPU, prints and saves."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from benchmarks import files
from benchmarks.accuracy import WrongResultError
from benchmarks.gpu import OPERATORS, results, session
from benchmarks.gpu.device import NOTHING, Cuda, NoGpuError, describe, refusal
from benchmarks.gpu.peers import LIBRARIES
from benchmarks.gpu.results import Report
from benchmarks.operator import DTYPES, Operator, Shape, load

SAVED = Path(__file__).parent.parent.parent / "build" / "benchmarks-gpu.json"
PAGE = Path(__file__).parent.parent.parent / "docs" / "design-gpu.md"
USUAL = ("bfloat16", "float32")
"""The dtypes that are measured where none is asked for."""
app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def main(
    op: Annotated[list[str] | None, typer.Option(help="Operator; may be repeated. All, where none is given.")] = None,
    shape: Annotated[list[str] | None, typer.Option(help="Only this shape, as 8192x4096; may be repeated.")] = None,
    dtype: Annotated[list[str] | None, typer.Option(help="Only this dtype; may be repeated.")] = None,
    json: Annotated[Path, typer.Option(help="Where the figures go, as they come.")] = SAVED,
    rounds: Annotated[int, typer.Option(min=3, help="In which everyone takes a turn.")] = 25,
    seconds: Annotated[float | None, typer.Option(min=1, help="After which no more problems are begun.")] = None,
    peers: Annotated[bool, typer.Option(help="Measure the other libraries too.")] = True,
    docs: Annotated[bool, typer.Option(help="Write the tables into docs/design-gpu.md.")] = False,
    docs_from: Annotated[Path | None, typer.Option(help="Write them from this file; measure nothing.")] = None,
) -> None:
    """Measures operators on a GPU beside the rate of a copy on it and beside other libraries."""
    console = Console()
    if not console.is_terminal:
        console = Console(width=170)  # a file or a pipe has room
    if docs_from:
        results.write_section(files.saved(Report.load, docs_from), PAGE)
        return
    if unknown := [name for name in op or () if name not in OPERATORS]:
        raise typer.BadParameter(f"no such operator: {unknown[0]}; there are {', '.join(OPERATORS)}")
    if unknown := [name for name in dtype or () if name not in DTYPES]:
        raise typer.BadParameter(f"no such dtype: {unknown[0]}; there are {', '.join(DTYPES)}")
    shapes = [parse_shape(text) for text in shape or ()]
    try:
        device = Cuda.find()
    except NoGpuError as error:
        console.print(refusal("bench-gpu", error), highlight=False, soft_wrap=True)
        raise typer.Exit(NOTHING) from None
    report, code, begin = Report(describe()), 0, time.monotonic()
    libraries = LIBRARIES if peers else ()
    for library in libraries:
        if not library.installed:
            console.print(f"{library.name} is not installed and does not take part.", style="yellow")
    try:
        problems = work([load(name) for name in op or OPERATORS], shapes, dtype)
        for number, (operator, each, kind) in enumerate(problems):
            if seconds and time.monotonic() - begin > seconds:
                report.left_out.append(f"{len(problems) - number} problems, for want of time.")
                break
            if operator.name not in {launch.operator for launch in report.launches}:
                report.launches += filter(None, [session.launch(operator, device, rounds)])
            title = f"{operator.name} {' × '.join(map(str, each))} {kind}"
            try:
                result = session.run(operator, each, kind, device, rounds, libraries)
            except session.TooLargeError as error:
                report.left_out.append(str(error))
                console.print(str(error), style="yellow", highlight=False)
                continue
            report.results.append(result)
            report.save(json)
            console.print(f"{title}: {result.speed / 1e9:.0f} GB/s, {result.share:.2f} of the copy's rate")
    except KeyboardInterrupt:
        console.print("Interrupted; what was measured is kept.", style="yellow")
        code = 130
    except WrongResultError as wrong:
        console.print(f"Wrong result: {wrong}", style="bold red", highlight=False)
        code = 1
    if report.results or report.launches:
        report.save(json)
        results.show(report, console)
        console.print(f"Figures: {json}", highlight=False)
        if docs and not code:
            results.write_section(report, PAGE)
    raise typer.Exit(code)


def work(operators: list[Operator], shapes: list[Shape], dtypes: list[str] | None) -> list[tuple[Operator, Shape, str]]:
    """The problems, the first shapes of all operators first."""
    numbered = [
        (number, operator, shape, dtype)
        for operator in operators
        for number, shape in enumerate(shapes or operator.kind.large)
        for dtype in operator.dtypes
        if dtype in (dtypes or USUAL)
    ]
    return [problem[1:] for problem in sorted(numbered, key=lambda problem: problem[0])]


def parse_shape(text: str) -> Shape:
    """``8192x4096``."""
    try:
        return tuple(int(part) for part in text.split("x"))
    except ValueError:
        raise typer.BadParameter(f"a shape looks like 8192x4096, not {text!r}") from None


if __name__ == "__main__":
    app()
