"""How the commands print: consoles, tables, units."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Any, TextIO

import numpy.typing as npt
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.measure import Measurement
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

_WIDTH = 120  # of output into a file, a pipe, or a terminal that does not know its own
_ROOMY = 1 << 16  # wider than any table


def console() -> Console:
    """The console for results. Text is printed as it is: brackets in shapes and paths are not markup."""
    return Console(width=width(sys.stdout), markup=False, highlight=False, soft_wrap=False)


def width(stream: TextIO) -> int:
    """The columns of a line: what COLUMNS says, or the terminal. Rich would print nothing where COLUMNS is 0."""
    columns = os.environ.get("COLUMNS", "")
    if columns.isdecimal() and int(columns) > 0:
        return int(columns)
    try:
        return os.get_terminal_size(stream.fileno()).columns or _WIDTH
    except (OSError, ValueError):
        return _WIDTH


def progress() -> Progress:
    """A progress bar on stderr, removed when done. Nothing is shown if stderr is no terminal."""
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), TimeElapsedColumn())
    shown = sys.stderr.isatty()
    # A bar that refreshes itself has a thread, also where it is not shown.
    return Progress(*columns, console=Console(stderr=True), transient=True, disable=not shown, auto_refresh=shown)


def heading(text: str) -> Text:
    """A bold line above a table."""
    return Text(text, "bold")


def table(*columns: str, right: Sequence[str] = (), header: bool = True) -> Table:
    """An empty table. The first column and those in `right` are never wrapped; the latter are aligned to the right."""
    result = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False, show_header=header)
    for position, name in enumerate(columns):
        number = name in right
        result.add_column(name, justify="right" if number else "left", no_wrap=number or position == 0, overflow="fold")
    return result


def show(console: Console, table: Table) -> None:
    """Print a table that is never narrower than its words; the terminal wraps lines that are too long.

    By default Rich breaks words, cuts numbers off and drops whole columns.
    """
    roomy = console.options.update_width(_ROOMY)
    for column in table.columns:
        cells = [Measurement.get(console, roomy, cell) for cell in (column.header, *column.cells)]
        column.min_width = max(cell.maximum if column.no_wrap else cell.minimum for cell in cells)
    needed = Measurement.get(console, roomy, table).minimum
    if needed > console.width:
        table.width = needed
    console.print(table, crop=False)


def verdict(passed: bool, remark: str = "") -> Text:
    """``pass`` in green or ``FAIL`` in red, and a remark."""
    text = Text("pass", "green") if passed else Text("FAIL", "bold red")
    return text.append(f": {remark}", "") if remark else text


def shape(array: npt.NDArray[Any]) -> str:
    """``2x1x16``, as the command line takes it."""
    return "x".join(str(length) for length in array.shape) or "scalar"


def seconds(value: float) -> str:
    """A time with its unit."""
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if value >= scale:
            return f"{value / scale:.3g} {unit}"
    return f"{value / 1e-9:.0f} ns"


def size(value: float) -> str:
    """Bytes with their unit."""
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if value >= scale:
            return f"{value / scale:.3g} {unit}"
    return f"{value:.0f} B"


def error(value: float) -> str:
    """An error measure, rounded to the digits that matter."""
    return f"{value:.1e}" if value else "0"
