"""The command ``descend``."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

_MISSING = 'descend: the command line needs {name}, which is not installed: pip install "descend[cli]"'


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return its exit status.

    0: done. 1: a result failed the precision standard. 2: a wrong call, unreadable input, or an error of an operator,
    with one sentence on stderr that says which. 130: interrupted.
    """
    sys.stdout = sys.stdout or open(os.devnull, "w")  # noqa: SIM115  None where the caller has closed it
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # product names are Chinese, and not every terminal is
    arguments = list(sys.argv[1:] if arguments is None else arguments) or ["--help"]
    try:
        import rich  # noqa: F401
        import typer
    except ModuleNotFoundError as error:
        print(_MISSING.format(name=error.name), file=sys.stderr)
        return 2
    try:
        from descend.cli.app import app

        return app(arguments, prog_name="descend", standalone_mode=False) or 0
    except (typer.Abort, KeyboardInterrupt):
        print("descend: interrupted", file=sys.stderr)
        return 130
    except Exception as error:
        print(f"descend: {_sentence(error)}", file=sys.stderr)
        return 2


def _sentence(error: Exception) -> str:
    """What went wrong, in one line."""
    usage = getattr(error, "format_message", None)  # Typer's own errors
    text = " ".join((usage() if usage else str(error)).split()) or type(error).__name__
    status, name = getattr(error, "status", None), getattr(error, "name", None)
    if status and name and str(status) not in text:  # an AclnnError
        return f"{text.removesuffix('.')} ({name}, {status})."
    if usage or isinstance(error, (ValueError, OSError, ImportError)):
        return text
    return f"{type(error).__name__}: {text}"
