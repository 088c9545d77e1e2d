"""Arrays that lie about themselves: a call with one gives right results, or a sentence.

An input describes one argument of a call, in DLPack or otherwise. With a first byte from IN_C on, the exporter is
written in C, and from BUFFERS on it is a workspace by the buffer protocol. Where the description is of other memory
than there is and nothing else is wrong with it, no library can know. Such an input is left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import descend
from descend import aclnn
from fuzz import exporter
from fuzz.commands import check_sentence
from fuzz.dlpack import MOST_DIMENSIONS, Description, Liar

IN_C, BUFFERS = b"\x80", b"\xe0"
SHAPES = ((4, 32), (4, 32), (4,), (32,))
HOSTILE = (
    0,
    1,
    -1,
    2,
    33,
    1 << 31,
    1 << 32,
    1 << 61,
    (1 << 62) + 1,
    (1 << 63) - 1,
    -(1 << 63),
    -(1 << 63) + 1,
    -(1 << 62),
)
NDIMS = (0, 1, 3, 9, MOST_DIMENSIONS, MOST_DIMENSIONS + 1, -1, 1 << 20, (1 << 31) - 1, -(1 << 31))
DTYPES = (
    (2, 16, 1),
    (2, 64, 1),
    (4, 16, 1),
    (0, 64, 1),
    (6, 8, 1),
    (2, 32, 2),
    (2, 32, 0),
    (5, 64, 1),
    (255, 255, 65535),
    (7, 0, 1),
)
DEVICES = ((2, 0), (3, 0), (11, 7), (0, 0), (-1, 0), ("1", 0), (None, None), (1 << 40, 0), (1.0, 0))
NOT_ARRAYS = (None, 1, 1.5, "dy", b"dy", [1.0], object(), np.float32, {}, ...)
ERRORS = ((ValueError, "no"), (BufferError,), (TypeError, "no"), (RuntimeError, "\ud800"), (RecursionError, "no"))


class Interface:
    """An array by NumPy's older protocol, which Descend does not read."""

    def __init__(self, version: int, data: int) -> None:
        self.__array_interface__ = {"version": version, "shape": (4, 32), "typestr": "<f4", "data": (data, False)}


def check(data: bytes, folder: Path) -> None:
    """AssertionError if a call with the array that an input describes is not answered as it must be."""
    if data[:1] < IN_C:
        _check_array(data)
    elif exporter.compiler() is not None:
        with exporter.exceptions_left():
            (exporter.check_workspace if data[:1] >= BUFFERS else _check_array)(data)


def _check_array(data: bytes) -> None:
    numbers = iter(data)
    take = lambda count: next(numbers, 0) % count  # noqa: E731
    place, is_output = take(4), take(4) == 1
    arrays = [np.linspace(-1, 1, 128, dtype=np.float32)[: np.prod(shape)].reshape(shape) for shape in SHAPES]
    out = np.full(256, 7, np.float32)
    memory = out if is_output else np.pad(arrays[place].reshape(-1), (0, 128 - arrays[place].size), "wrap")
    if is_output:
        place = 1 if place % 2 == 0 else 3
    liar = _liar(numbers, memory, SHAPES[place])
    if data[:1] >= IN_C and isinstance(liar, Liar):
        liar = exporter.make(numbers, liar)
    if liar is None:
        return
    given: list[Any] = list(arrays)
    outputs = None
    if is_output:
        outputs = (liar, None) if place == 1 else (None, liar)
    else:
        given[place] = liar
    before = memory.copy()
    try:
        results = descend.rms_norm_grad(*given, out=outputs)
    except (aclnn.AclnnError, TypeError) as error:
        refusal: Exception | None = error
    else:
        refusal = None
    exporter.check_counts(liar)
    if refusal is not None:
        assert not isinstance(refusal, MemoryError), refusal
        assert str(refusal).startswith("rms_norm_grad: "), refusal
        check_sentence(str(refusal))
        assert np.array_equal(memory, before), "a refused call wrote"
        return
    assert isinstance(liar, Liar | exporter.Exchange), "what is no array was taken for one"
    seen = _view(liar.says, memory, SHAPES[place])
    if is_output:
        results = [seen if result is liar else result for result in results]
    else:
        given[place] = seen
    plain = tuple(np.empty(result.shape, result.dtype) for result in results)
    for result, expected in zip(results, descend.rms_norm_grad(*map(np.array, given), out=plain), strict=True):
        assert result.tobytes() == expected.tobytes(), "another result"


def _liar(numbers: Iterator[int], memory: np.ndarray, shape: tuple[int, ...]) -> Any:
    take = lambda count: next(numbers, 0) % count  # noqa: E731
    address = memory.ctypes.data
    said = Description(address, list(shape), None, len(shape))
    liar = Liar(said)
    for _ in range(1 + take(3)):
        kind = take(16)
        if kind == 0:
            said.data = (0, 0, address + 1, address + 2, address + 4)[take(5)]
        elif kind == 1:
            said.ndim = NDIMS[take(len(NDIMS))]
        elif kind in (2, 3):
            said.shape = [HOSTILE[take(len(HOSTILE))] if take(2) else dim for dim in shape]
        elif kind == 4:
            said.shape = None
        elif kind in (5, 6, 7):
            said.strides = [HOSTILE[take(len(HOSTILE))] if take(3) else 1 for _ in shape]
        elif kind == 8:
            said.strides = [(-1, -32, 32, 1, 0)[take(5)] for _ in shape]
            said.byte_offset = 4 * take(128)
        elif kind == 9:
            said.dtype = DTYPES[take(len(DTYPES))]
        elif kind == 10:
            said.device = DEVICES[take(len(DEVICES))]
        elif kind == 11:
            said.byte_offset = (1, 2, 4, 256, 1 << 63, (1 << 64) - 1, (1 << 64) - 4)[take(7)]
        elif kind == 12:
            said.version = (None, (0, 9), (1, 99), (2, 0), (1 << 31, 0))[take(5)]
        elif kind == 13:
            said.flags = (0, 1, 2, 3, 1 << 63)[take(5)]
        elif kind == 14:
            said.name = (b"used_dltensor", b"dltensor", b"dltensor_versioned", b"", b"x")[take(5)]
        else:
            other = take(18)
            if other < len(NOT_ARRAYS):
                return NOT_ARRAYS[other]
            error, *message = ERRORS[other % len(ERRORS)]
            liar.error = error(*message)  # a new one: each time that one is raised its traceback gets longer
            if other > 15:
                return Interface((3, 2, 0)[take(3)], address)
    if said.name == (b"dltensor_versioned" if said.version is None else b"dltensor"):
        return None  # the other kind of capsule than it is: nothing tells them apart
    if _is_believed(said, memory, shape):
        return None
    return liar


def _is_believed(said: Description, memory: np.ndarray, shape: tuple[int, ...]) -> bool:
    """Whether a description is of other memory than there is, and nothing else is wrong with it."""
    size = said.dtype[1] // 8 or 1
    strides = _strides(said, shape)
    if said.data == 0 or said.shape is None or list(said.shape[: said.ndim]) != list(shape) or said.ndim != len(shape):
        return False
    reach = [(dim - 1) * stride * size for dim, stride in zip(shape, strides, strict=True)]
    if sum(map(abs, reach)) >= 1 << 62:
        return False  # larger than any memory
    first = (said.data + said.byte_offset) % (1 << 64) - memory.ctypes.data
    low, high = first + sum(r for r in reach if r < 0), first + sum(r for r in reach if r > 0) + size
    return low < 0 or high > memory.nbytes


def _strides(said: Description, shape: tuple[int, ...]) -> list[int]:
    if said.strides is not None:
        return list(said.strides)
    return [int(np.prod(shape[axis + 1 :])) for axis in range(len(shape))]


def _view(said: Description, memory: np.ndarray, shape: tuple[int, ...]) -> Any:
    """What an array that was accepted holds."""
    first = (said.data + said.byte_offset) % (1 << 64) - memory.ctypes.data
    dtype = {(2, 16, 1): np.float16, (2, 64, 1): np.float64}.get(said.dtype, np.float32)
    if said.dtype == (4, 16, 1):
        import ml_dtypes

        dtype = ml_dtypes.bfloat16
    strides = [stride * np.dtype(dtype).itemsize for stride in _strides(said, shape)]
    return np.ndarray(shape, dtype, memory.data, first, strides)


def seeds(folder: Path) -> list[bytes]:
    """One lie of each kind about each argument."""
    return [
        bytes([place, out, 0, kind, choice])
        for place in range(4)
        for out in (0, 1)
        for kind in range(16)
        for choice in (1, 3)
    ] + [
        bytes([first + 4 * choice, 0, 0, kind, choice, way, 0, choice, choice])
        for first in (IN_C[0], BUFFERS[0])
        for kind in range(16)
        for choice in range(4)
        for way in range(3)
    ]
