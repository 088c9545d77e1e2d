"""The command line in this process: what every call of it must do, whatever it is given."""

from __future__ import annotations

import functools
import io
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout
from typing import Any
from unittest import mock

import typer

from descend.cli import app, main


@functools.cache
def _command() -> Any:
    """All commands, put together once: Typer would take 40 ms for it in every call."""
    return typer.main.get_command(app.app)


def run(arguments: Sequence[str]) -> int:
    """The exit status. AssertionError for a traceback, or for an error that is not one sentence of ours."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err), mock.patch.object(app, "app", _command()):
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
