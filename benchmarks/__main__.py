"""``python -m benchmarks``: measures, prints, saves and draws."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from benchmarks import OPERATORS, compare, frameworks, machine, report
from benchmarks.accuracy import WrongResultError
from benchmarks.harness import Effort
from benchmarks.operator import DTYPES, Operator, Shape, load
from benchmarks.results import Report

PICTURES = Path(__file__).parent.parent / "docs" / "benchmarks"
SAVED = Path(__file__).parent.parent / "build" / "benchmarks.json"
app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def main(
    op: Annotated[list[str] | None, typer.Option(help="Operator; may be repeated. All, where none is given.")] = None,
    full: Annotated[
        bool, typer.Option("--full/--quick", help="The whole grid of shapes, or a few minutes' worth.")
    ] = False,
    json: Annotated[Path, typer.Option(help="Where the figures go, as they come.")] = SAVED,
    shape: Annotated[list[str] | None, typer.Option(help="Only this shape, as 4096x4096; may be repeated.")] = None,
    dtype: Annotated[list[str] | None, typer.Option(help="Only this dtype; may be repeated.")] = None,
    threads: Annotated[int, typer.Option(help="For everyone; 0: the processors that this process may use.")] = 0,
    seconds: Annotated[float, typer.Option(help="To spend on the rounds of one problem.")] = 3.0,
    peers: Annotated[bool, typer.Option(help="Measure the other libraries too.")] = True,
    plot: Annotated[Path | None, typer.Option(help="Folder for the pictures; else docs/benchmarks/.")] = None,
    plot_from: Annotated[Path | None, typer.Option(help="Draw from this file again; measure nothing.")] = None,
    compare_with: Annotated[
        tuple[Path, Path] | None, typer.Option("--compare", help="Two files, before and after; fails if slower.")
    ] = None,
) -> None:
    """Measures operators beside the memory limit and beside other libraries."""
    console = Console()
    if not console.is_terminal:
        console = Console(width=150)  # a file or a pipe has room
    if compare_with:
        changes = compare.compare(*map(Report.load, compare_with))
        console.print(compare.table(changes))
        raise typer.Exit(any(change.regressed for change in changes))
    if plot_from:
        draw(Report.load(plot_from), plot or PICTURES, console)
        return
    names = op or list(OPERATORS)
    if unknown := [name for name in names if name not in OPERATORS]:
        raise typer.BadParameter(f"no such operator: {unknown[0]}; there are {', '.join(OPERATORS)}")
    if unknown := [name for name in dtype or () if name not in DTYPES]:
        raise typer.BadParameter(f"no such dtype: {unknown[0]}; there are {', '.join(DTYPES)}")
    shapes = [parse_shape(text) for text in shape or ()]
    measured = Report(machine.describe(hold(threads)), "full" if full else "quick")
    work = plan([load(name) for name in names], measured.grid, shapes, dtype)
    code = 0
    try:
        perform(measured, work, json, Effort(seconds), peers, console)
    except KeyboardInterrupt:
        console.print("Interrupted; what was measured is kept.", style="yellow")
        code = 130
    except WrongResultError as wrong:
        console.print(f"Wrong result: {wrong}", style="bold red", highlight=False)
        code = 1
    if measured.results:
        report.show(measured, console)
        console.print(f"Figures: {json}", highlight=False)
        if plot or (not code and not shapes and not dtype and peers):
            draw(measured, plot or PICTURES, console)
    raise typer.Exit(code)


Work = list[tuple[Operator, Shape, str]]


def plan(operators: list[Operator], grid: str, shapes: list[Shape], dtypes: list[str] | None) -> Work:
    """Every problem to measure."""
    return [
        (operator, shape, dtype)
        for operator in operators
        for shape in shapes or (operator.full if grid == "full" else operator.quick)
        for dtype in operator.dtypes
        if dtype in (dtypes or operator.dtypes)
    ]


def perform(measured: Report, work: Work, json: Path, effort: Effort, peers: bool, console: Console) -> None:
    """Measures one problem after the other and saves after each."""
    from benchmarks import session

    libraries = frameworks.LIBRARIES if peers else ()
    columns = SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    live = console.is_terminal
    with Progress(*columns, console=console, transient=True, refresh_per_second=4, disable=not live) as progress:
        task = progress.add_task("", total=len(work))
        started: set[str] = set()
        for operator, shape, dtype in work:
            title = f"{operator.name} {' × '.join(map(str, shape))} {dtype}"

            def say(what: str, title: str = title) -> None:
                progress.update(task, description=f"{title}: {what}", refresh=True)
                if what in ("rounds", "small calls"):
                    progress.stop()  # its thread would be measured too

            if peers and operator.name not in started:
                started.add(operator.name)
                if small := session.small_calls(operator, Effort(2 * effort.seconds, most=301), say):
                    measured.small.append(small)
                    measured.save(json)
                progress.start()
            threads = int(measured.machine["threads"])
            result = session.run(operator, shape, dtype, threads, effort, libraries, say)
            measured.results.append(result)
            measured.save(json)
            if not live:
                console.print(f"{title}: {report.duration(result.seconds)}, {result.share:.2f} of the limit")
            progress.start()
            progress.advance(task)


def hold(threads: int) -> int:
    """Gives everyone the same threads: fewer than the machine has by giving this process fewer processors."""
    available = machine.processors()
    count = threads or len(available)
    if count < len(available) and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, available[:count])
    import descend

    descend.set_num_threads(count)
    frameworks.prepare(count)
    return count


def parse_shape(text: str) -> Shape:
    """``4096x4096``."""
    try:
        return tuple(int(part) for part in text.split("x"))
    except ValueError:
        raise typer.BadParameter(f"a shape looks like 4096x4096, not {text!r}") from None


def draw(measured: Report, folder: Path, console: Console) -> None:
    """One picture an operator."""
    try:
        from benchmarks import plot
    except ImportError:
        console.print("No picture: matplotlib is not installed.", style="yellow")
        return
    for path in plot.draw(measured, folder):
        console.print(f"Picture: {path}", highlight=False)


if __name__ == "__main__":
    app()
