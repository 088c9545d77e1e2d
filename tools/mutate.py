"""Whether the tests find faults: builds Descend with one deliberate fault at a time, and runs tests that should fail.

    .venv/bin/python tools/mutate.py                       # all faults of tools/faults.toml; half an hour on two cores
    .venv/bin/python tools/mutate.py rms_norm parallel     # those whose file or text has one of these words
    .venv/bin/python tools/mutate.py --check               # only that each fault's text is in its file, once

It works in a copy, build/mutate, and leaves the checkout alone. The first build there takes minutes, each fault then
the time to compile one file. If the tests do not find a fault, or it does not compile, the exit status is 1: write a
test for it. Needs an environment that `./dev test` has set up, and Python 3.11.
"""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomllib

ROOT = Path(__file__).resolve().parent.parent
COPY = ROOT / "build" / "mutate"
_TIMEOUT = 300
"""Seconds for the tests of one fault; with some faults they never end."""

# The copy's package is built in its src/. In the environment, the checkout's is found first unless this finder is gone.
_SITE = """import sys
sys.meta_path[:] = [f for f in sys.meta_path if not type(f).__name__.startswith("ScikitBuild")]
"""


@dataclass(frozen=True)
class Fault:
    """One text in one file, replaced by another, and the tests that should notice."""

    file: str
    old: str
    new: str
    tests: str
    """Arguments of pytest, or the name of a C++ test."""

    def __str__(self) -> str:
        return f"{self.file}: {self.old.strip()} -> {self.new.strip() or 'nothing'}"

    def changed(self, root: Path) -> str:
        """The file's text with the fault."""
        path = root / self.file
        count = path.read_text(encoding="utf-8").count(self.old) if path.exists() else 0
        if count != 1:
            raise SystemExit(
                f"mutate: {self.file} has {self.old!r} {count} times, but must have it once: mend the list."
            )
        return path.read_text(encoding="utf-8").replace(self.old, self.new)


def faults(path: Path) -> list[Fault]:
    """The list, checked as far as it can be without the files."""
    listed = [Fault(**entry) for entry in tomllib.loads(path.read_text(encoding="utf-8"))["fault"]]
    for fault in listed:
        if fault.old == fault.new:
            raise SystemExit(f"mutate: {fault.file}: {fault.old!r} is replaced by itself.")
    return listed


def _run(command: Sequence[Any], timeout: float | None = None, **environment: str) -> tuple[int, str]:
    """The exit status and the output; 124 if the command did not end in time."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])  # CMake may be there
    try:
        result = subprocess.run(
            command,
            cwd=COPY,
            env={**os.environ, "PATH": path, **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=timeout,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return 124, ""
    return result.returncode, result.stdout


def copy() -> None:
    """Brings the copy to the checkout's state. Files that are the same are left alone, and so are not built again."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    names = [name for name in listed.split("\0") if name and (ROOT / name).is_file()]
    for name in names:
        source, target = ROOT / name, COPY / name
        if not target.exists() or target.read_bytes() != source.read_bytes():
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(source.read_bytes())
            target.chmod(source.stat().st_mode)
    (COPY / "src" / "sitecustomize.py").write_text(_SITE, encoding="utf-8")


def build() -> str:
    """Builds and installs the copy; what the compiler said if that failed."""
    options = ["-DDESCEND_PYTHON=ON", "-DDESCEND_TORCH=OFF", "-DDESCEND_TESTS=ON", "-DDESCEND_NATIVE=ON"]
    interpreter = f"-DPython_EXECUTABLE={sys.executable}"
    for command in (
        ["cmake", "-S", COPY, "-B", COPY / "build", "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release", *options, interpreter],
        ["cmake", "--build", COPY / "build", "--target", "all", "native_tests"],
        ["cmake", "--install", COPY / "build", "--prefix", COPY / "src"],
    ):
        status, output = _run(command)
        if status != 0:
            return output
    return ""


def notice(tests: str) -> bool:
    """Whether these tests fail, crash or do not end, twice: on a busy machine one can fail without a fault."""
    return all(_fail(tests) for _ in range(2))


def _fail(tests: str) -> bool:
    if not tests.startswith("tests/"):
        return _run([COPY / "build" / "tests" / "native" / tests, "--abort-after=1"], _TIMEOUT)[0] != 0
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-x",
        "-q",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:xdist",
        "--pairs",  # as ./dev test
        *shlex.split(tests),
    ]
    path = os.pathsep.join([str(COPY / "src"), str(COPY / "tests")])
    status, output = _run(command, _TIMEOUT, PYTHONPATH=path, TORCH_DEVICE_BACKEND_AUTOLOAD="0")
    if status in (4, 5):  # a wrong call of pytest, or no test
        raise SystemExit(f"mutate: pytest {tests} runs no test:\n{output[-2000:]}")
    return status != 0


def outcome(fault: Fault) -> str:
    """Builds the copy with the fault, runs its tests, and takes the fault back."""
    path = COPY / fault.file
    text = path.read_text(encoding="utf-8")
    path.write_text(fault.changed(COPY), encoding="utf-8")
    try:
        if build():
            return "does not compile"
        return "found" if notice(fault.tests) else "NOT FOUND"
    finally:
        path.write_text(text, encoding="utf-8")


def main(argv: Sequence[str] | None = None) -> int:
    """Prints a row for each fault."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("words", nargs="*", help="only faults whose file or text has one of these; default: all")
    parser.add_argument("--list", type=Path, default=ROOT / "tools" / "faults.toml", help="another list of faults")
    parser.add_argument("--check", action="store_true", help="only check the list")
    arguments = parser.parse_args(argv)
    chosen = [f for f in faults(arguments.list) if not arguments.words or any(w in str(f) for w in arguments.words)]
    for fault in chosen:
        fault.changed(ROOT)
    if not chosen:
        raise SystemExit("mutate: no fault of the list has these words.")
    if arguments.check:
        print(f"{len(chosen)} faults, each text once in its file")
        return 0

    copy()
    if message := build():
        raise SystemExit(f"mutate: without a fault it does not build:\n{message[-4000:]}")
    for tests in dict.fromkeys(fault.tests for fault in chosen):
        if notice(tests):
            raise SystemExit(f"mutate: {tests} fails without a fault.")
    missed = 0
    for fault in chosen:
        begin = time.monotonic()
        found = outcome(fault)
        missed += found != "found"
        print(f"{found:16} {time.monotonic() - begin:5.0f} s  {fault}   [{fault.tests}]", flush=True)
    print(f"{len(chosen) - missed} of {len(chosen)} faults found")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
