"""Processes forked from one that has imported PyTorch but not Descend. The import takes seconds."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import tempfile
from pathlib import Path

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["torch.distributed.tensor", "pytest"])


def run(code: str, *arguments: object, folder: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Like ``python -c code arguments`` in a folder, with this process's module search path."""
    with tempfile.TemporaryDirectory() as outputs:
        out, err = Path(outputs, "out"), Path(outputs, "err")
        process = CONTEXT.Process(target=_program, args=(code, [*map(str, arguments)], folder or Path.cwd(), out, err))
        process.start()
        process.join(300)
        if process.is_alive():
            process.kill()
            raise TimeoutError(f"still running: {code}")
        return subprocess.CompletedProcess(code, process.exitcode or 0, out.read_text(), err.read_text())


def _program(code: str, arguments: list[str], folder: Path, out: Path, err: Path) -> None:
    for number, path in enumerate((out, err), 1):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT), number)
    os.chdir(folder)
    sys.argv = ["-c", *arguments]
    exec(compile(code, "<string>", "exec"), {"__name__": "__main__"})
