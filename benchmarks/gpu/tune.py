"""The table of tiles by shape, `descend.triton.table`: ``python -m benchmarks.gpu.tune`` measures and writes it.

For each kernel, row length and dtype the candidates take turns on one problem of 64 MB and more, each checked against
float64; the table's own tile gives way only to one that is faster by more than the noise. ``--by-rule`` writes the rule
of `descend.triton.tiles` instead, which needs no GPU: the table as it is while nothing has been measured.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import numpy as np
import typer
from rich.console import Console

from benchmarks import ours
from benchmarks.accuracy import WrongResultError
from benchmarks.gpu import OPERATORS, session
from benchmarks.gpu.device import NOTHING, Cuda, Device, NoGpuError, describe, refusal
from benchmarks.gpu.timing import Contender, copies, measure
from benchmarks.operator import Operator, load
from benchmarks.results import Timing

Key: TypeAlias = tuple[str, int, int]
"""Operator, elements of a row in the tile, bytes of an element."""
Choice: TypeAlias = tuple[int, ...]
"""Elements of the tile, warps, and slabs where the operator adds columns up."""

TABLE = Path(__file__).parent.parent.parent / "src" / "descend" / "triton" / "table.py"
SIZES = {"bfloat16": 2, "float32": 4}
"""float16 takes bfloat16's tiles."""
SLABS = (128, 256, 512, 1024)
WARPS = (4, 8, 16)
MOST_ELEMENTS = 16384
FASTER = 0.98
"""Of the seconds of the tile that is there: what another must stay below to take its place."""


def rows(operator: Operator) -> tuple[int, ...]:
    """Elements of the rows that the table has tiles for. Sums over rows keep another row: not the longest then."""
    found = operator.kind.rows
    return tuple(row for row in found if row < MOST_ELEMENTS) if operator.sums_columns else found


def entries() -> list[Key]:
    """Every entry of the table."""
    return [(name, block, size) for name in OPERATORS for block in rows(load(name)) for size in SIZES.values()]


def by_rule(name: str, block: int) -> Choice:
    """What `descend.triton.tiles` would do without the table."""
    from descend.triton import tiles

    tile = tiles.by_rule(block, 1)
    return (max(block, tile.rows * block), tile.warps, *((tile.slabs,) if load(name).sums_columns else ()))


def candidates(name: str, block: int) -> list[Choice]:
    """What is tried: what fits in the registers and leaves no thread idle."""
    found: list[Choice] = []
    elements = max(block, 512)
    while elements <= max(MOST_ELEMENTS, block) and elements <= 128 * block:
        for warps in WARPS:
            if 4 <= elements // (32 * warps) <= 32:
                found += [
                    (elements, warps, *more) for more in ([(n,) for n in SLABS] if load(name).sums_columns else [()])
                ]
        elements *= 2
    return found


def choose(now: Choice, timings: Mapping[Choice, Timing]) -> Choice:
    """The fastest, or what is there unless that is slower by more than the noise."""
    ratios = {choice: timing.over(timings[now]) for choice, timing in timings.items()}
    best = min(ratios, key=lambda choice: ratios[choice])
    return best if ratios[best] < FASTER else now


@contextmanager
def instead(key: Key, choice: Choice) -> Iterator[None]:
    """In the block the table has this entry."""
    from descend.triton import table

    kept = table.TILES.get(key)
    table.TILES[key] = choice
    try:
        yield
    finally:
        if kept is None:
            del table.TILES[key]
        else:
            table.TILES[key] = kept


def tune(key: Key, dtype: str, device: Device, rounds: int, place: session.Place = session.to_cuda) -> Choice:
    """The choice for one entry, measured. Raises WrongResultError where a candidate computes something else."""
    name, block, _ = key
    operator, rng = load(name), np.random.default_rng()
    data = operator.make(operator.kind.of_rows(block), dtype, rng)
    golden = operator.golden(data, rng)
    first = {parameter: place(array) for parameter, array in data.inputs.items()}
    count = copies(data.bytes, device.cache)
    sets = [first, *({n: tensor.clone() for n, tensor in first.items()} for _ in range(count - 1))]
    now = by_rule(name, block)

    def contender(choice: Choice) -> Contender:
        def job(inputs: dict[str, Any]) -> Any:
            call = ours.allocating(operator, replace(data, inputs=inputs))

            def run() -> Any:
                with instead(key, choice):
                    return call()

            return run

        made = Contender(str(choice), [job(inputs) for inputs in sets])
        session.check(f"{key} by {choice}", made.jobs[0](), golden)
        return made

    made = {choice: contender(choice) for choice in dict.fromkeys([now, *candidates(name, block)])}
    measure(device, list(made.values()), rounds)
    return choose(now, {choice: each.timing for choice, each in made.items()})


def render(measured: str | None, entries: Mapping[Key, Choice]) -> str:
    """The table's file."""
    note = "measured: none. Choices on paper" if measured is None else f"measured: {measured}"
    lines = [
        f'"""Tiles by shape; {note}.',
        "",
        "Written by ``python -m benchmarks.gpu.tune``; do not edit.",
        '"""',
        "",
        f"MEASURED: str | None = {'None' if measured is None else chr(34) + measured + chr(34)}",
        '"""The device and the date."""',
        "",
        "TILES: dict[tuple[str, int, int], tuple[int, ...]] = {",
        *(f'    ("{name}", {block}, {size}): {choice},' for (name, block, size), choice in entries.items()),
        "}",
        '"""By operator, elements of a row in the tile and bytes of an element: elements of the tile, warps, and slabs',
        'where columns are added up."""',
    ]
    return "\n".join(lines) + "\n"


app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def main(
    op: Annotated[list[str] | None, typer.Option(help="Only this operator's entries; may be repeated.")] = None,
    rounds: Annotated[int, typer.Option(min=3, help="In which every candidate takes a turn.")] = 9,
    rule: Annotated[bool, typer.Option("--by-rule", help="Write the rule; measure nothing.")] = False,
    to: Annotated[Path, typer.Option(help="The table.")] = TABLE,
) -> None:
    """Measures the candidates of every entry on a GPU and writes the table."""
    console = Console()
    if rule:
        to.write_text(render(None, {key: by_rule(*key[:2]) for key in entries()}), encoding="utf-8")
        return
    try:
        device = Cuda.find()
    except NoGpuError as error:
        console.print(refusal("tune", error), highlight=False, soft_wrap=True)
        raise typer.Exit(NOTHING) from None
    from descend.triton import table

    found = {key: table.TILES.get(key, by_rule(*key[:2])) for key in entries()}
    dtypes = {size: dtype for dtype, size in SIZES.items()}
    about = describe()
    for key in found:
        if key[0] in (op or OPERATORS):
            try:
                found[key] = tune(key, dtypes[key[2]], device, rounds)
            except WrongResultError as wrong:
                console.print(f"Wrong result: {wrong}", style="bold red", highlight=False)
                raise typer.Exit(1) from None
            console.print(f"{key}: {found[key]}", highlight=False)
            to.write_text(render(f"{about['gpu']}, {about['date']}", found), encoding="utf-8")


if __name__ == "__main__":
    app()
