"""``python -m benchmarks.precision``: measures, prints, saves, and writes the page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

import descend
from benchmarks import machine
from benchmarks.precision import report
from benchmarks.precision.figures import SEEDS, Key, Measured, plan
from benchmarks.precision.operators import OPERATORS
from benchmarks.precision.operators.operator import DTYPES

DOCS = Path(__file__).parents[2] / "docs"
SAVED = DOCS / "benchmarks" / "accuracy.json"
PAGE = DOCS / "accuracy.md"
app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def main(
    op: Annotated[list[str] | None, typer.Option(help="Operator; may be repeated. All, where none is given.")] = None,
    dtype: Annotated[list[str] | None, typer.Option(help="Only this dtype; may be repeated.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="A small shape of each, three seeds; writes no page.")] = False,
    json: Annotated[Path, typer.Option(help="Where the figures go, as they come; those that are there stay.")] = SAVED,
    page: Annotated[Path, typer.Option(help="The page that is written from them.")] = PAGE,
    fresh: Annotated[bool, typer.Option("--fresh", help="Forget the figures that are there.")] = False,
) -> None:
    """Compares the errors of every operator with PyTorch's."""
    console = Console()
    if not console.is_terminal:
        console = Console(width=150)
    for given, known, what in ((op, OPERATORS, "operator"), (dtype, DTYPES, "dtype")):
        if unknown := [name for name in given or () if name not in known]:
            raise typer.BadParameter(f"no such {what}: {unknown[0]}; there are {', '.join(known)}")
    torch.set_num_threads(1)
    descend.set_num_threads(1)
    measured = Measured.load(json) if json.exists() and not fresh else Measured({**machine.describe(), "threads": 1})
    work = list(plan(op or list(OPERATORS), dtype or list(DTYPES), quick))
    code = 0
    try:
        perform(measured, work, 3 if quick else SEEDS, json, console)
    except KeyboardInterrupt:
        console.print("Interrupted; the next run goes on from here.", style="yellow")
        code = 130
    finally:
        measured.save(json)
    report.show(measured, console)
    console.print(f"Figures: {json}", highlight=False)
    if not quick and not code:
        page.write_text(report.page(measured))
        console.print(f"Page: {page}", highlight=False)
    raise typer.Exit(code)


def perform(measured: Measured, work: list[Key], seeds: int, json: Path, console: Console) -> None:
    """Measures what is missing, and saves after every entry."""
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("", total=len(work))
        for operator, dtype, distribution, shape in work:
            title = f"{operator} {' × '.join(map(str, shape))} {dtype} {distribution}"
            progress.update(task, description=title)
            entry = measured.entry(operator, dtype, distribution, shape)
            if entry.seeds < seeds:
                for seed in range(entry.seeds, seeds):
                    entry.measure(seed)
                measured.save(json)
            progress.advance(task)


if __name__ == "__main__":
    app()
