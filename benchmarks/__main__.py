"""``python -m benchmarks``: measures, prints, saves and writes the report."""

from __future__ import annotations

import time
from collections.abc import Sequence
from enum import Enum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from benchmarks import OPERATORS, compare, files, frameworks, machine, report, sweep
from benchmarks.accuracy import WrongResultError
from benchmarks.frameworks import Library
from benchmarks.harness import Effort
from benchmarks.operator import DTYPES, Operator, Shape, load
from benchmarks.results import Report
from descend.cli.output import show as show_table

DOCS = Path(__file__).parent.parent / "docs"
SAVED = Path(__file__).parent.parent / "build" / "benchmarks.json"
app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


class Grid(str, Enum):
    """Which shapes."""

    quick = "quick"
    full = "full"
    sweep = "sweep"
    picture = "picture"


class Peers(str, Enum):
    """Which other libraries."""

    all = "all"
    some = "some"
    eager = "eager"
    none = "none"

    def libraries(self, number: int) -> Sequence[Library]:
        """The peers that take part in problem number ``number``."""
        if self is Peers.none:
            return ()
        everyone = self is Peers.all or (self is Peers.some and number % 8 == 0)
        return [library for library in frameworks.LIBRARIES if everyone or not library.compiles]


@app.command()
def main(
    op: Annotated[list[str] | None, typer.Option(help="Operator; may be repeated. All, where none is given.")] = None,
    grid: Annotated[
        Grid, typer.Option(help="A few shapes, more, the operators' whole range, or the README's picture.")
    ] = Grid.quick,
    shape: Annotated[list[str] | None, typer.Option(help="Only this shape, as 4096x4096; may be repeated.")] = None,
    dtype: Annotated[list[str] | None, typer.Option(help="Only this dtype; may be repeated.")] = None,
    threads: Annotated[
        list[int] | None,
        typer.Option(help="For everyone; may be repeated. Else as many as there are processors; in the sweep 1, too."),
    ] = None,
    minutes: Annotated[
        float | None, typer.Option(min=0, help="Stop then; what was measured is an even sample.")
    ] = None,
    seconds: Annotated[
        float | None, typer.Option(min=0, help="For the rounds of one problem; 3, and 0.4 in a sweep.")
    ] = None,
    peers: Annotated[
        Peers | None,
        typer.Option(help="Other libraries. eager: what compiles for each shape left out; some: but for one in eight."),
    ] = None,
    json: Annotated[
        Path | None,
        typer.Option(help="Where the figures go, as they come: build/benchmarks.json, or the file of --resume."),
    ] = None,
    resume: Annotated[Path | None, typer.Option(help="Go on with this file, on the machine that it is from.")] = None,
    publish: Annotated[bool, typer.Option("--publish", help="Write docs/benchmarks.md from a part, too.")] = False,
    report_to: Annotated[Path | None, typer.Option("--report", help="Folder for the report, in place of docs.")] = None,
    report_from: Annotated[Path | None, typer.Option(help="Write the report from this file; measure nothing.")] = None,
    profile: Annotated[
        bool, typer.Option("--profile", help="Count what a call of each --shape costs, and why.")
    ] = False,
    compare_with: Annotated[
        tuple[Path, Path] | None, typer.Option("--compare", help="Two files, before and after; status 1 if slower.")
    ] = None,
) -> None:
    """Measures operators, compared with the memory limit and with other libraries."""
    console = Console()
    if not console.is_terminal:
        console = Console(width=150)  # a file or a pipe has room
    if compare_with:
        before, after = (files.saved(Report.load, path) for path in compare_with)
        try:
            changes = compare.compare(before, after)
        except ValueError as error:
            raise typer.BadParameter(str(error)) from None
        show_table(console, compare.table(changes))
        for remark in compare.remarks(before, after):
            console.print(remark, highlight=False)
        raise typer.Exit(any(change.regressed for change in changes))
    if report_from:
        saved = files.saved(Report.load, report_from)
        write(saved, report_to or DOCS, console, saved.grid == Grid.picture.value)
        return
    names = op or list(OPERATORS)
    if unknown := [name for name in names if name not in OPERATORS]:
        raise typer.BadParameter(f"no such operator: {unknown[0]}; there are {', '.join(OPERATORS)}")
    if unknown := [name for name in dtype or () if name not in DTYPES]:
        raise typer.BadParameter(f"no such dtype: {unknown[0]}; there are {', '.join(DTYPES)}")
    cores = len(machine.processors())
    if unfit := [count for count in threads or () if not 1 <= count <= cores]:
        raise typer.BadParameter(f"threads may be 1 to {cores} here, not {unfit[0]}")
    sweeping = grid is Grid.sweep
    peers = peers or (Peers.some if sweeping else Peers.all)
    teams = sorted(set(threads or ([1, cores] if sweeping else [cores])))

    shapes = [parse_shape(text) for text in shape or ()]
    work = plan([load(name) for name in names], grid, shapes, dtype or list(DTYPES))
    if profile:
        explain(work, teams, console)
        return
    measured = start(resume, grid, len(work) * len(teams))
    figures = json or resume or SAVED
    options = {"op": op, "shape": shape, "dtype": dtype, "threads": threads, "minutes": minutes, "seconds": seconds}
    measured.commands.append(command(grid=grid.value, **options, peers=peers.value))
    if seconds is None:
        seconds = 0.4 if sweeping else 3.0
    effort = Effort.brief(seconds) if sweeping else Effort(seconds)
    code = 0
    try:
        perform(measured, work, teams, figures, effort, peers, minutes, console)
    except KeyboardInterrupt:
        console.print("Interrupted; what was measured is kept. --resume goes on with it.", style="yellow")
        code = 130
    except WrongResultError as wrong:
        console.print(f"Wrong result: {wrong}", style="bold red", highlight=False)
        code = 1
    if measured.results:
        if not sweeping:
            report.show(measured, console)
        console.print(f"Figures: {figures}", highlight=False)
        whole = not (op or shape or dtype or threads) and peers is not Peers.none
        if not code and (publish or report_to or whole):
            write(measured, report_to or DOCS, console, grid is Grid.picture)
    raise typer.Exit(code)


Work = list[tuple[Operator, Shape, str]]


def plan(operators: list[Operator], grid: Grid, shapes: list[Shape], dtypes: list[str]) -> Work:
    """Every problem to measure, in order."""
    for operator in operators:
        example = operator.quick[0]
        if unfit := [shape for shape in shapes if len(shape) != len(example) or min(shape) < 1]:
            like, given = ("x".join(map(str, one)) for one in (example, unfit[0]))
            raise typer.BadParameter(f"a shape of {operator.name} looks like {like}, not {given}")
    if grid is Grid.sweep and not shapes:
        return sweep.plan(operators, dtypes, machine.last_cache())
    if grid is Grid.picture and not shapes:
        return [(operator, operator.picture[1], "float32") for operator in operators if operator.picture]
    return [
        (operator, shape, dtype)
        for operator in operators
        for shape in shapes or (operator.full if grid is Grid.full else operator.quick)
        for dtype in operator.dtypes
        if dtype in dtypes
    ]


def start(resume: Path | None, grid: Grid, planned: int) -> Report:
    """An empty report, or the one to continue: only on the same machine, with the same versions."""
    here = machine.describe()
    if resume is None:
        return Report(here, grid.value, planned=planned)
    measured = files.saved(Report.load, resume)
    if differing := [key for key in here if key != "date" and here[key] != measured.machine.get(key)]:
        raise typer.BadParameter(f"{resume} was measured with another {differing[0]}: {measured.machine[differing[0]]}")
    measured.planned = max(planned, measured.planned)
    return measured


def command(**options: object) -> str:
    """The command that measures the same again."""
    words = ["./dev bench"]
    for name, value in options.items():
        words += [f"--{name} {one}" for one in (value if isinstance(value, list) else [value]) if one is not None]
    return " ".join(words)


def perform(
    measured: Report,
    work: Work,
    teams: list[int],
    json: Path,
    effort: Effort,
    peers: Peers,
    minutes: float | None,
    console: Console,
) -> None:
    """Measures one problem after the other, with every number of threads, and saves after each."""
    from benchmarks import session

    deadline = time.monotonic() + (float("inf") if minutes is None else 60 * minutes)
    frameworks.prepare(peers.libraries(0))
    done, started = measured.measured, {small.operator for small in measured.small}
    columns = SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    live = console.is_terminal
    with Progress(*columns, console=console, transient=True, refresh_per_second=4, disable=not live) as progress:
        task = progress.add_task("", total=len(work) * len(teams))
        for number, (operator, shape, dtype) in enumerate(work):
            open_teams = [team for team in teams if (operator.name, shape, dtype, team) not in done]
            progress.advance(task, len(teams) - len(open_teams))
            if not open_teams:
                continue
            if time.monotonic() >= deadline:
                break

            def say(what: str, title: str = report.title(operator.name, shape, dtype)) -> None:
                progress.update(task, description=f"{title}: {what}", refresh=True)
                if what in ("rounds", "small calls"):
                    progress.stop()  # its thread would be measured too

            if peers is not Peers.none and operator.name not in started:
                started.add(operator.name)
                frameworks.hold(teams[-1])
                if small := session.small_calls(operator, Effort(2 * effort.seconds, most=301), say):
                    measured.small.append(small)
                    measured.save(json)
                progress.start()
            say("data")
            data = session.prepare(operator, shape, dtype)
            for team in open_teams:
                result = session.run(operator, shape, dtype, team, effort, peers.libraries(number), say, data)
                measured.results.append(result)
                measured.save(json)
                if not live:
                    title = report.title(*result.key)
                    console.print(f"{title}: {report.duration(result.seconds)}, {result.share:.2f} of the limit")
                progress.start()
                progress.advance(task)


def explain(work: Work, teams: list[int], console: Console) -> None:
    """Prints what a call costs, in counted events."""
    from benchmarks.profile import profile

    for operator, shape, dtype in work:
        for team in teams:
            console.print(report.title(operator.name, shape, dtype, team), style="bold", highlight=False)
            for name, figure in profile(operator, shape, dtype, team).items():
                words = figure if isinstance(figure, str) else f"{figure:,.4g}" if figure < 1e4 else f"{figure:,.0f}"
                console.print(f"  {name:32}{words:>16}", highlight=False)


def parse_shape(text: str) -> Shape:
    """``4096x4096``."""
    try:
        return tuple(int(part) for part in text.split("x"))
    except ValueError:
        raise typer.BadParameter(f"a shape looks like 4096x4096, not {text!r}") from None


def write(measured: Report, folder: Path, console: Console, picture: bool = False) -> None:
    """The document, its pictures and its figures; or the README's picture and its figures."""
    try:
        from benchmarks import document
    except ImportError:
        console.print("No report: matplotlib is not installed.", style="yellow")
        return
    for path in (document.write_bars if picture else document.write)(measured, folder):
        console.print(f"Report: {path}", highlight=False)


if __name__ == "__main__":
    app()
