"""The report of `descend npu --report`: what each process computed on device npu, and where, in one JSON file.

A process records while DESCEND_REPORT names a file, and adds itself to the file when it ends. docs/npu.md has the
schema. Nothing is imported here that programs for the device do not import anyway.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import errno
import fcntl
import json
import multiprocessing.util
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from descend import _cann

VARIABLE = "DESCEND_REPORT"
SCHEMA = "descend-npu-report"
VERSION = 1
PLACES = {
    "aclnn": "Descend's operators of aclnn",
    "cpu": "PyTorch's CPU kernels",
    "composed": "composed of PyTorch's operators",
    "gloo": "PyTorch's gloo",
}
"""Where an operator is computed."""
_MOST_ARGUMENTS = 100  # of a program that the report repeats
_MOST_CHARACTERS = 200  # of each

Document = dict[str, Any]


# --- the file --------------------------------------------------------------------------------------------------------


def prepare(path: str | os.PathLike[str]) -> Path:
    """Writes a report without processes. Raises OSError with a sentence where none can be written."""
    file = Path(os.path.realpath(path))
    if file.exists() and not file.is_file():
        raise OSError(f"the report cannot be written to {file}: it is not a file.")
    try:
        if file.exists() and not _is_replaceable(file):
            raise FileExistsError(errno.EEXIST, "it is there, and is not a report")
        with _locked(file):
            _replace(file, _empty())
    except OSError as error:
        raise OSError(f"the report cannot be written to {file}: {error.strerror}.") from None
    return file


def _is_replaceable(file: Path) -> bool:
    """Whether it is an older report, of any version, or empty; and not a program, say, that was named by mistake."""
    with file.open("rb") as opened:
        begin = opened.read(100)
    return not begin or f'"schema": "{SCHEMA}"'.encode() in begin


def read(file: Path) -> Document:
    """The report in a file. Raises ValueError where it is none."""
    document = json.loads(file.read_text())
    if not isinstance(document, dict) or document.get("schema") != SCHEMA:
        raise ValueError(f"{file} is not a report of descend npu.")
    if document.get("version") != VERSION:
        raise ValueError(f"{file} is a report of version {document.get('version')}; {VERSION} is known here.")
    return document


def _empty() -> Document:
    from descend import __version__

    return {"schema": SCHEMA, "version": VERSION, "descend": __version__, "processes": []}


@contextlib.contextmanager
def _locked(file: Path) -> Iterator[None]:
    """Processes that end at the same time take turns. The folder is locked, for the file itself is replaced."""
    folder = os.open(file.parent, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)


def _replace(file: Path, document: Document) -> None:
    """Whoever reads the file finds the old report or the new one, and never a half."""
    # Not the file's name with a suffix: that name may already be as long as names can be.
    new = file.with_name(f".{os.getpid()}.descend-report")
    try:
        new.write_text(json.dumps(document, indent=1) + "\n")
        new.replace(file)
    finally:
        new.unlink(missing_ok=True)


def _add(file: Path, process: Document) -> None:
    """Adds a process to the report, or replaces what it said before."""
    with _locked(file):
        document = read(file) if file.exists() and file.stat().st_size > 0 else _empty()
        others = [p for p in document["processes"] if (p["pid"], p["started"]) != (process["pid"], process["started"])]
        _replace(file, {**document, "processes": [*others, process]})


# --- a process -------------------------------------------------------------------------------------------------------


class _Process:
    """This process, which adds itself to a report when it ends."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.start()
        self.kernels: Any = None  # descend.npu.kernels, once calls are recorded

    def start(self) -> None:
        """Now, or in a forked child, whose record is empty."""
        self.started = time.time()
        self.clock = time.monotonic()

    def forked_by_multiprocessing(self) -> None:
        """Such a child ends without what is registered with atexit; its finalizers it does call."""
        multiprocessing.util.Finalize(None, self.write, exitpriority=-1000)

    def write(self) -> None:
        if self.kernels is None:
            return  # torch_npu could not be loaded
        try:
            operators = [*_of_aclnn(), *_of_torch(self.kernels)]
            if operators:
                _add(self.file, self._described(operators))
        except (OSError, ValueError) as error:
            print(f"descend: process {os.getpid()} is not in the report: {error}", file=sys.stderr)

    def _described(self, operators: list[Document]) -> Document:
        rank = os.environ.get("RANK", "")
        return {
            "rank": int(rank) if rank.isdecimal() else None,
            "pid": os.getpid(),
            "parent": os.getppid(),
            "program": [argument[:_MOST_CHARACTERS] for argument in sys.orig_argv[:_MOST_ARGUMENTS]],
            "started": self.started,
            "seconds": time.monotonic() - self.clock,
            "operators": sorted(operators, key=lambda row: -row["seconds"]),
        }


_process: _Process | None = None


def announce() -> None:
    """Before torch_npu's code runs: what registers later with atexit, as torch_npu, is called before the report."""
    global _process
    path = os.environ.get(VARIABLE)
    if not path or _process is not None:
        return
    file = Path(os.path.realpath(path))
    os.environ[VARIABLE] = str(file)  # for children that start elsewhere
    if file.exists() and not file.is_file():
        raise OSError(f"{VARIABLE} is {file}, which is not a file.")
    if not os.access(file.parent, os.W_OK):
        raise OSError(f"{VARIABLE} is {file}, but nothing can be written to its folder.")
    process = _process = _Process(file)
    atexit.register(process.write)
    os.register_at_fork(after_in_child=process.start)
    multiprocessing.util.register_after_fork(process, _Process.forked_by_multiprocessing)


def begin(kernels: Any) -> None:
    """Once the libraries are loaded: records from here on what they compute, and ``descend.npu.kernels``."""
    if _process is None:
        return
    _cann.library().descendRecordCalls(1)
    for recorder in kernels.recorders():
        recorder.record(True)
    _process.kernels = kernels


# --- what was recorded -----------------------------------------------------------------------------------------------


class _Argument(ctypes.Structure):
    _fields_ = [("name", ctypes.c_char_p), ("value", ctypes.c_char_p)]


class _Verdict(ctypes.Structure):
    _fields_ = [("product", ctypes.c_char_p), ("status", ctypes.c_int32), ("sentence", ctypes.c_char_p)]


class _Call(ctypes.Structure):
    """descendRecordedCall of descend_report.h."""

    _fields_ = [
        ("function", ctypes.c_char_p),
        ("product", ctypes.c_char_p),
        ("arguments", ctypes.POINTER(_Argument)),
        ("argument_count", ctypes.c_uint64),
        ("calls", ctypes.c_uint64),
        ("runs", ctypes.c_uint64),
        ("nanoseconds", ctypes.c_uint64),
        ("status", ctypes.c_int32),
        ("sentence", ctypes.c_char_p),
        ("verdicts", ctypes.POINTER(_Verdict)),
        ("verdict_count", ctypes.c_uint64),
        ("others", ctypes.c_int32),
    ]


_EACH = ctypes.CFUNCTYPE(None, ctypes.POINTER(_Call), ctypes.c_void_p)


def _of_aclnn() -> list[Document]:
    """The operators that Descend's C interface was called for."""
    kinds: list[tuple[str, Document]] = []

    def add(pointer: Any, _: Any) -> None:
        call = pointer.contents
        kinds.append((_text(call.function), _kind_of_aclnn(call)))

    _cann.library().descendRecordedCalls(_EACH(add), None)
    return _by_operator(kinds, lambda _: "aclnn")


def _kind_of_aclnn(call: _Call) -> Document:
    verdicts = [call.verdicts[i] for i in range(call.verdict_count)]
    return {
        "arguments": None
        if call.others
        else {_text(a.name): _text(a.value) for a in call.arguments[: call.argument_count]},
        "calls": call.calls,
        "errors": call.calls if call.status else 0,
        "seconds": call.nanoseconds * 1e-9,
        "runs": call.runs,
        "product": _text(call.product),
        "status": call.status,
        "sentence": _text(call.sentence),
        "accepted_on": [_text(v.product) for v in verdicts if v.status == 0],
        "refused_on": {
            _text(v.product): {"status": v.status, "sentence": _text(v.sentence)} for v in verdicts if v.status != 0
        },
    }


def _of_torch(kernels: Any) -> list[Document]:
    """The operators that ``descend.npu.kernels`` had computed."""
    kinds = [
        (
            operator,
            {
                "arguments": None if others else dict(tensors),
                "calls": calls,
                "errors": errors,
                "seconds": nanoseconds * 1e-9,
            },
        )
        for recorder in kernels.recorders()
        for operator, tensors, others, calls, errors, nanoseconds in recorder.recorded()
        if calls
    ]
    composed = kernels.composed()

    def place(operator: str) -> str:
        if operator.startswith("c10d::"):
            return "gloo"
        return "composed" if operator.partition(".")[0] in composed else "cpu"

    return _by_operator(kinds, place)


def _by_operator(kinds: list[tuple[str, Document]], place: Callable[[str], str]) -> list[Document]:
    found: dict[str, Document] = {}
    for operator, kind in kinds:
        row = found.setdefault(operator, {"operator": operator, "place": place(operator), "kinds": []})
        for total in ("calls", "errors", "seconds"):
            row[total] = row.get(total, 0) + kind[total]
        row["kinds"].append(kind)
    for row in found.values():
        row["kinds"] = sorted(row.pop("kinds"), key=lambda kind: -kind["seconds"])  # last in the row
    return list(found.values())


def _text(value: bytes) -> str:
    return value.decode(errors="replace")
