"""Capsules of DLPack whose every field can be chosen, for arrays that lie about themselves."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

MOST_DIMENSIONS = 64  # so many entries of shape and strides can be read, whatever ndim says


class Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class Managed(ctypes.Structure):
    _fields_ = (("tensor", Tensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p))


class Versioned(ctypes.Structure):
    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", Tensor),
    )


_new = ctypes.pythonapi.PyCapsule_New
_new.restype, _new.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)


@dataclass
class Description:
    """What a capsule says; strides in elements, None for null. Shape and strides may be longer than ndim says."""

    data: int
    shape: Sequence[int] | None
    strides: Sequence[int] | None = None
    ndim: int = 0
    dtype: tuple[int, int, int] = (2, 32, 1)
    device: tuple[Any, Any] = (1, 0)
    byte_offset: int = 0
    version: tuple[int, int] | None = (1, 0)
    """None for a capsule of before DLPack 1."""
    flags: int = 0
    name: bytes | None = None
    """The capsule's, if not the one that goes with the version."""


@dataclass
class Liar:
    """An array of an unknown library with such a capsule. `error` is raised in place of one."""

    says: Description
    error: BaseException | None = None
    _alive: list[Any] = field(default_factory=list)

    def __dlpack_device__(self) -> Any:
        return self.says.device

    def __dlpack__(self, **_: Any) -> Any:
        if self.error is not None:
            raise self.error
        says = self.says
        return self.make(managed(says), says.name or (b"dltensor" if says.version is None else b"dltensor_versioned"))

    def make(self, structure: Managed | Versioned, name: bytes) -> Any:
        """The capsule of a structure."""
        text = ctypes.c_char_p(name)
        self._alive += [structure, text]
        return _new(ctypes.addressof(structure), text, None)


def managed(says: Description) -> Managed | Versioned:
    """The structure that a capsule holds."""
    tensor = Tensor(
        data=says.data,
        device_type=says.device[0] if isinstance(says.device[0], int) else 1,
        device_id=0,
        ndim=says.ndim,
        code=says.dtype[0],
        bits=says.dtype[1],
        lanes=says.dtype[2],
        shape=_numbers(says.shape),
        strides=_numbers(says.strides),
        byte_offset=says.byte_offset,
    )
    if says.version is None:
        return Managed(tensor)
    return Versioned(*says.version, None, None, says.flags, tensor)


def _numbers(values: Sequence[int] | None) -> Any:
    if values is None:
        return None
    return (ctypes.c_int64 * MOST_DIMENSIONS)(*values)
