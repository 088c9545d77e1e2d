"""What torch_npu's libraries ask of CANN's, read from their ELF files without loading them."""

from __future__ import annotations

import mmap
import re
import struct
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

# CANN's names: what its public headers declare, and C++ functions of namespace ge.
CANN = re.compile(r"(?:acl|Acl|Hccl|Msprof|hccl|rt(?=[A-Z])|_ZNK?2ge)\w+")
_LOOKED_UP = re.compile(rb"(?<=\0)(?:acl|Hccl|Msprof)[A-Za-z]\w{3,80}(?=\0)")
_NOT_CANN = re.compile(r"lib(torch|c10|tensorpipe|npu_profiler)|.*\.so\.\d|ld-linux")
_SHT_DYNAMIC, _SHT_DYNSYM, _DT_NEEDED = 6, 11, 1


@dataclass(frozen=True)
class Requests:
    """Libraries of CANN that must be there, functions bound when they are loaded, and functions looked up later."""

    needed: frozenset[str]
    bound: frozenset[str]
    looked_up: frozenset[str]


def libraries(package: Path) -> list[Path]:
    """Those of torch_npu's libraries that `import torch_npu` loads, below the folder of its package.

    Left out are what needs libraries that are no part of CANN's runtime: torchair's, and the one for ATB.
    """
    return sorted(path for path in (*package.glob("_C*.so"), *package.glob("lib/*.so")) if "atb" not in path.name)


def requests(libraries: Iterable[Path]) -> Requests:
    """What the given libraries ask for; functions that another one of them defines are left out."""
    needed: set[str] = set()
    bound: set[str] = set()
    defined: set[str] = set()
    looked_up: set[str] = set()
    for path in libraries:
        with _mapped(path) as data:
            for name, here in _symbols(data):
                (defined if here else bound).add(name)
            needed |= {name for name in _needed(data) if not _NOT_CANN.match(name)}
            looked_up |= {match[0].decode() for match in _LOOKED_UP.finditer(data)}
    bound = {name for name in bound - defined if CANN.fullmatch(name)}
    return Requests(frozenset(needed), frozenset(bound), frozenset(looked_up - bound))


def exported(library: Path) -> frozenset[str]:
    """The symbols that a library defines for others."""
    with _mapped(library) as data:
        return frozenset(name for name, here in _symbols(data) if here)


@contextmanager
def _mapped(path: Path) -> Iterator[mmap.mmap]:
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        if data[:6] != b"\x7fELF\x02\x01":
            raise ValueError(f"{path} is not a 64-bit little-endian ELF file.")
        yield data


def _sections(data: mmap.mmap, wanted: int) -> Iterator[tuple[bytes, int]]:
    """The contents of each section of a kind, and where the strings that it names begin."""
    (table,) = struct.unpack_from("<Q", data, 0x28)
    size, count = struct.unpack_from("<HH", data, 0x3A)
    sections = [struct.unpack_from("<IIQQQQIIQQ", data, table + i * size) for i in range(count)]
    for _, kind, _, _, offset, length, link, _, _, entry in sections:
        if kind == wanted:
            yield data[offset : offset + length // entry * entry], sections[link][4]


def _string(data: mmap.mmap, start: int) -> str:
    return data[start : data.find(b"\0", start)].decode()


def _symbols(data: mmap.mmap) -> Iterator[tuple[str, bool]]:
    """Every dynamic symbol, and whether it is defined here."""
    for contents, strings in _sections(data, _SHT_DYNSYM):
        for name, _, _, section, _, _ in struct.iter_unpack("<IBBHQQ", contents):
            if name:
                yield _string(data, strings + name), section != 0


def _needed(data: mmap.mmap) -> Iterator[str]:
    """The sonames of the libraries that it is linked with."""
    for contents, strings in _sections(data, _SHT_DYNAMIC):
        for tag, value in struct.iter_unpack("<QQ", contents):
            if tag == _DT_NEEDED:
                yield _string(data, strings + value)
