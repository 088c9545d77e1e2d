"""Figures on disk. A file is replaced as a whole, so that an interruption leaves no half of one."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import typer

_T = TypeVar("_T")


def saved(load: Callable[[Path], _T], path: Path) -> _T:
    """What ``load`` reads from a file. If it cannot, the exit status is a wrong command's, not a regression's."""
    try:
        return load(path)
    except (OSError, ValueError) as error:
        raise typer.BadParameter(f"{path} cannot be read: {error}") from None


def replace(path: Path, text: str) -> None:
    """Writes the file in one step, its folder too: whoever reads meanwhile sees the old or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    partial.write_text(text)
    os.replace(partial, path)
