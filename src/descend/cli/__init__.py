"""The command ``descend``."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import TextIO

_NO_MEMORY = "descend: there is no memory left."
_MISSING = 'descend: the command line needs {name}, which is not installed: pip install "descend[cli]"'
_INTERRUPTED = 130
_CLOSED_PIPE = 141


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return its exit status.

    0: done. 1: a result failed the precision standard. 2: a wrong call, unreadable input, or an error of an operator;
    one sentence on stderr says which. 130: interrupted. 141: the pipe that it writes to was closed. The last two are
    the statuses that a shell gives for SIGINT and SIGPIPE.
    """
    sys.stdout = sys.stdout or open(os.devnull, "w")  # noqa: SIM115  None where the caller has closed it
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115
    streams = sys.stdout, sys.stderr
    try:
        for stream in streams:
            if hasattr(stream, "reconfigure"):
                stream.reconfigure(errors="replace")  # product names are Chinese, and not every terminal can print them
        return _run(list(sys.argv[1:] if arguments is None else arguments) or ["--help"])
    except KeyboardInterrupt:
        print("descend: interrupted", file=sys.stderr)
        return _INTERRUPTED
    except (BrokenPipeError, SystemExit) as error:
        # On a closed pipe Rich and Typer raise SystemExit(1). Here 1 means a failed check.
        if isinstance(error, SystemExit) and not isinstance(error.__context__, BrokenPipeError):
            raise
        return _CLOSED_PIPE
    except MemoryError:  # outside of the command, or while its error was being told
        print(_NO_MEMORY, file=sys.stderr)
        return 2
    finally:
        for stream in streams:
            _drain(stream)


def _run(arguments: list[str]) -> int:
    try:
        import rich  # noqa: F401
        import typer
    except ModuleNotFoundError as error:
        print(_MISSING.format(name=error.name), file=sys.stderr)
        return 2
    try:
        from descend.cli.app import app

        status: int = app(arguments, prog_name="descend", standalone_mode=False) or 0
        if status == _INTERRUPTED:  # Typer exits with this status and prints nothing
            raise KeyboardInterrupt
        sys.stdout.flush()  # flush here, where an error is still reported
        return status
    except typer.Abort:
        raise KeyboardInterrupt from None
    except BrokenPipeError:  # not an error of the command
        raise
    except MemoryError as error:  # Python's own says nothing
        print(f"descend: {_sentence(error)}" if str(error) else _NO_MEMORY, file=sys.stderr)
        return 2
    except Exception as error:
        of_lock = str(error) == "can't allocate lock"  # Python's RuntimeError where there is no memory for one
        print(_NO_MEMORY if of_lock else f"descend: {_sentence(error)}", file=sys.stderr)
        return 2


def _drain(stream: TextIO) -> None:
    """Flush. What cannot be written is dropped: otherwise Python tries again when it ends, and exits with 120."""
    try:
        stream.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _sentence(error: Exception) -> str:
    """The error in one line."""
    usage = getattr(error, "format_message", None)  # Typer's own errors
    text = " ".join((usage() if usage else str(error)).split()) or type(error).__name__
    if context := getattr(error, "ctx", None):
        text += f"{'' if text.endswith(('.', '?')) else '.'} See `{context.command_path} --help`."
    status, name = getattr(error, "status", None), getattr(error, "name", None)
    if status and name and str(status) not in text:  # an AclnnError
        return f"{text.removesuffix('.')} ({name}, {status})."
    if usage or isinstance(error, (ValueError, OSError, ImportError)):
        return text
    return f"{type(error).__name__}: {text}"
