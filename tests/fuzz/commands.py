"""The command line in this process: what every call of it must do, whatever it is given."""

from __future__ import annotations

import functools
import importlib
import io
import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from typing import Any

import typer
from rich.console import Console
from rich.table import Table

from descend.cli import app, main, output

# Of so many command lines one has its tables drawn. Of the others only the cells are made: drawing takes Rich most of a
# call's time.
drawn_one_in = 1
_commands = itertools.count()


@functools.cache
def _command() -> Any:
    """All commands, put together once: Typer would take 40 ms for it in every call."""
    return typer.main.get_command(app.app)


def _make_cells(console: Console, table: Table) -> None:
    for column in table.columns:
        for cell in column.cells:
            str(cell)


@contextmanager
def _made_fast(drawn: bool) -> Iterator[None]:
    """Spares what takes long in each call and is the same: `descend info` measures a small block of memory."""
    info = importlib.import_module("descend.cli.info")
    changes = [(app, "app", _command()), (info, "_BYTES", (1 << 10, 1 << 20)), (info, "_SECONDS", 0.0)]
    if not drawn:
        changes.append((output, "show", _make_cells))
    before = [(owner, name, getattr(owner, name)) for owner, name, _ in changes]
    for owner, name, value in changes:
        setattr(owner, name, value)
    try:
        yield
    finally:
        for owner, name, value in before:
            setattr(owner, name, value)


def run(arguments: Sequence[str]) -> int:
    """The exit status. AssertionError for a traceback, or for an error that is not one sentence of ours."""
    out, err = io.StringIO(), io.StringIO()
    drawn = next(_commands) % drawn_one_in == 0
    with redirect_stdout(out), redirect_stderr(err), _made_fast(drawn):
        status = main(arguments)
    text = err.getvalue()
    assert status in (0, 1, 2), status
    assert "Traceback" not in out.getvalue() + text, text
    if status == 2:
        check_sentence(text.removeprefix("descend: ").removesuffix("\n"))
        assert text.startswith("descend: "), text
    return status


def check_sentence(text: str) -> None:
    """One line that ends like a sentence and does not begin with the name of an unexpected exception."""
    assert text.endswith((".", "?")), text
    assert "\n" not in text, text
    first = text.split(":")[0]
    assert not first.isidentifier() or not first.endswith(("Error", "Exception")), text
