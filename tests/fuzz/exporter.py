"""Exporters written in C (exporter.c): arrays by DLPack and buffers that lie, fail and clean up as only C can.

An input says what an exporter does. A call with it gives right results or a sentence, and whatever the exporter gave is
given back once.
"""

from __future__ import annotations

import ctypes
import functools
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

import descend
from descend import acl, aclnn
from fuzz.commands import check_sentence
from fuzz.dlpack import Description, Liar, Tensor, managed

LENGTHS = (-1, 0, 1, 1 << 31, 1 << 62, (1 << 63) - 1, -(1 << 63))


class Buffer(ctypes.Structure):
    """Py_buffer."""

    _fields_ = (
        ("buf", ctypes.c_void_p),
        ("obj", ctypes.c_void_p),
        ("len", ctypes.c_ssize_t),
        ("itemsize", ctypes.c_ssize_t),
        ("readonly", ctypes.c_int),
        ("ndim", ctypes.c_int),
        ("format", ctypes.c_char_p),
        ("shape", ctypes.POINTER(ctypes.c_ssize_t)),
        ("strides", ctypes.POINTER(ctypes.c_ssize_t)),
        ("suboffsets", ctypes.POINTER(ctypes.c_ssize_t)),
        ("internal", ctypes.c_void_p),
    )


def compiler() -> str | None:
    """What exporter.c can be compiled with; None if there is no compiler, or no Python.h."""
    if not (Path(sysconfig.get_path("include")) / "Python.h").exists():
        return None
    return next((c for c in (os.environ.get("CC"), "cc", "gcc", "clang") if c and shutil.which(c)), None)


@functools.cache
def library() -> Any:
    """exporter.c, compiled."""
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / "exporter.so"
        source, include = Path(__file__).with_name("exporter.c"), sysconfig.get_path("include")
        command = [str(compiler()), "-std=c11", "-Wall", "-Werror", "-shared", "-fPIC", f"-I{include}"]
        subprocess.run([*command, str(source), "-o", str(made)], check=True)
        loaded = ctypes.PyDLL(str(made))
    for name, arguments in (
        ("make_capsule", (ctypes.c_void_p, ctypes.c_char_p)),
        ("make_exchange", (ctypes.c_int, ctypes.c_int)),
        ("make_buffer_type", ()),
    ):
        getattr(loaded, name).restype, getattr(loaded, name).argtypes = ctypes.py_object, arguments
    return loaded


def number(name: str) -> Any:
    """A variable of exporter.c; its `value` can be set."""
    return ctypes.c_int.in_dll(library(), name)


@functools.cache
def buffer_type() -> type:
    """A type whose instances export the variable `buffer`."""
    return library().make_buffer_type()  # type: ignore[no-any-return]


def set_buffer(view: Buffer) -> None:
    """Makes `view` what buffers say, as long as it lives."""
    ctypes.memmove(ctypes.byref(Buffer.in_dll(library(), "buffer")), ctypes.byref(view), ctypes.sizeof(view))


def prepare(status: int = 0, *, sets_exception: bool = True, leaves_exception: bool = False) -> None:
    """What the next functions answer and leave behind. The counts begin at 0."""
    for name, value in (
        ("status", status),
        ("sets_exception", sets_exception),
        ("leaves_exception", leaves_exception),
        ("gave", 0),
        ("took", 0),
    ):
        number(name).value = value


class Capsule(Liar):
    """An array with a capsule of C, whose destructor counts."""

    def make(self, structure: Any, name: bytes) -> Any:
        self._alive += [structure, name]
        return library().make_capsule(ctypes.addressof(structure), name)


class Exchange:
    """An array with DLPack's functions in C, which give `says`."""

    def __init__(self, says: Description, *, borrows: bool, deletes: bool = True, null: bool = False) -> None:
        self.says = says
        says.version = says.version or (1, 0)
        self._managed = managed(says)
        self.deletes = deletes and not borrows and not null
        if deletes:
            self._managed.deleter = ctypes.cast(library().deleter, ctypes.c_void_p).value
        ctypes.c_void_p.in_dll(library(), "managed").value = None if null else ctypes.addressof(self._managed)
        tensor = (ctypes.c_char * 64).in_dll(library(), "borrowed")
        ctypes.memmove(tensor, ctypes.addressof(self._managed.tensor), ctypes.sizeof(Tensor))
        type(self).__dlpack_c_exchange_api__ = library().make_exchange(1, borrows)  # Descend remembers the first one

    __dlpack_c_exchange_api__: Any = None


def make(choices: Iterator[int], liar: Liar) -> Any:
    """The array that says what `liar` says, by one of the ways of C. The next functions of C are prepared."""
    take = lambda count: next(choices, 0) % count  # noqa: E731
    way, deletes = take(3), take(4) != 1
    fails = liar.error is not None
    prepare(-1 if fails else 0, sets_exception=take(2) == 0, leaves_exception=take(8) == 1)
    if way == 0 or (fails and take(2) == 1):
        return Capsule(liar.says, liar.error)
    return Exchange(liar.says, borrows=way == 1, deletes=deletes, null=way == 2 and take(8) == 1)


@contextmanager
def exceptions_left() -> Iterator[list[str]]:
    """What Python reports as ignored, which must be what deleters and releases left behind."""
    reported: list[str] = []
    before, sys.unraisablehook = sys.unraisablehook, lambda report: reported.append(str(report.exc_value))
    try:
        yield reported
    finally:
        sys.unraisablehook = before
    assert set(reported) <= {"left behind"}, reported


def check_counts(liar: Any) -> None:
    """AssertionError if what the last call was given was not given back once."""
    if not isinstance(liar, Capsule | Exchange):
        return  # nothing of C
    # A capsule of that name says that somebody else has its tensor.
    consumed = (liar.says.name or b"").startswith(b"used")
    gives_back = not consumed if isinstance(liar, Capsule) else liar.deletes
    wanted = number("gave").value if gives_back else 0
    assert number("took").value == wanted, "a deleter was not called once"


def numbers(values: Any) -> Any:
    """A shape or strides of a buffer; None for null."""
    return None if values is None else (ctypes.c_ssize_t * 64)(*values)


def check_workspace(data: bytes) -> None:
    """AssertionError if a call with the workspace that an input describes is not answered as it must be."""
    choices = iter(data)
    take = lambda count: next(choices, 0) % count  # noqa: E731
    arrays = [np.linspace(-1, 1, 4 * 64, dtype=np.float32).reshape(4, 64) for _ in range(2)]
    call = [*arrays, np.ones(4, np.float32), np.ones(64, np.float32)]
    results = [np.zeros((4, 64), np.float32), np.zeros(64, np.float32)]
    size, executor = aclnn.rms_norm_grad_get_workspace_size(*call, *results)
    memory = np.full(size + 256, 7, np.uint8)
    begin = 128 - memory.ctypes.data % 64
    address = memory.ctypes.data + begin
    view = Buffer(buf=address, len=size, itemsize=1, ndim=1, format=b"B", shape=numbers([size]))
    shape: list[int] | None = [size]
    strides: list[int] | None = None
    for _ in range(take(4)):
        kind = take(10)
        if kind == 0:
            view.buf = (None, address + 1, address + 16)[take(3)]
        elif kind in (1, 2):
            view.len = (size - 1, size + 1, *LENGTHS)[take(2 + len(LENGTHS))]
        elif kind == 3:
            view.itemsize = (0, -1, 4, 1 << 62, size)[take(5)]
        elif kind == 4:
            view.readonly = (1, -1)[take(2)]
        elif kind == 5:
            view.ndim = (0, -1, 2, 65, (1 << 31) - 1)[take(5)]
        elif kind == 6:
            view.format = (None, b"O", b"T{O:x:}", b"", b"\xff{", b"e")[take(6)]
        elif kind == 7:
            shape = (None, [size, 1], [1, size], [-1], [size // 2, 2], [0], [1 << 62, 4], [size + 1])[take(8)]
            view.shape = numbers(shape)
        elif kind == 8:
            strides = (None, [1], [0], [-1], [2, 1], [1 << 62], [1, size])[take(7)]
            view.strides = numbers(strides)
        else:
            view.suboffsets = numbers((None, [0], [-1])[take(3)])
    fails = take(8) == 1
    prepare(-1 if fails else 0, sets_exception=take(2) == 0, leaves_exception=take(8) == 1)
    set_buffer(view)
    given, refused = buffer_type()(), None
    before = memory.copy()
    try:
        aclnn.rms_norm_grad(given, size, executor, None)
    except (aclnn.AclnnError, TypeError) as error:
        refused = str(error)
    acl.synchronize()
    assert number("gave").value == number("took").value, "a buffer was not released once"
    shift = (view.buf or address) - address
    if refused is None:
        before[begin + shift :][:size] = memory[begin + shift :][:size]
    assert np.array_equal(memory, before), "a call wrote beside its workspace"
    plain = shift % 16 == 0 and view.buf is not None and not fails and _is_honest(view, shape, strides)
    if refused is not None:
        assert refused.startswith("rms_norm_grad: "), refused
        check_sentence(refused)
        assert not plain or view.len < size, refused
        return
    assert plain, "a buffer that lies was taken"
    out = (np.zeros_like(results[0]), np.zeros_like(results[1]))
    expected = descend.rms_norm_grad(*call, out=out)
    assert all(a.tobytes() == b.tobytes() for a, b in zip(results, expected, strict=True)), "another result"


def _is_honest(view: Buffer, shape: list[int] | None, strides: list[int] | None) -> bool:
    """Whether a buffer is writable, without objects, and its bytes lie as it says, one after the other."""
    if view.readonly or view.len < 0 or view.suboffsets or b"O" in (view.format or b""):
        return False
    if shape is None:
        return strides is None
    if not 0 <= view.ndim <= 64:
        return False
    dims = ([*shape, *[0] * 64])[: view.ndim]
    steps = None if strides is None else ([*strides, *[0] * 64])[: view.ndim]
    total = view.itemsize
    for axis in reversed(range(view.ndim)):
        if dims[axis] < 0 or (steps is not None and view.len > 0 and dims[axis] != 1 and steps[axis] != total):
            return False
        total *= dims[axis]
    return total == view.len
