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
_SHT_DYNSYM = 11


@dataclass(frozen=True)
class Requests:
    """Functions of CANN by name: bound when the libraries are loaded, and looked up when first used."""

    bound: frozenset[str]
    looked_up: frozenset[str]


def libraries(package: Path) -> list[Path]:
    """Those of torch_npu's libraries that `import torch_npu` loads, below the folder of its package.

    Left out are what needs libraries that are no part of CANN's runtime: torchair's, and the one for ATB.
    """
    return sorted(path for path in (*package.glob("_C*.so"), *package.glob("lib/*.so")) if "atb" not in path.name)


def requests(libraries: Iterable[Path]) -> Requests:
    """What the given libraries ask for; functions that another one of them defines are left out."""
    bound: set[str] = set()
    defined: set[str] = set()
    looked_up: set[str] = set()
    for path in libraries:
        with _mapped(path) as data:
            for name, here in _symbols(data):
                (defined if here else bound).add(name)
            looked_up |= {match[0].decode() for match in _LOOKED_UP.finditer(data)}
    bound = {name for name in bound - defined if CANN.fullmatch(name)}
    return Requests(frozenset(bound), frozenset(looked_up - bound))


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


def _symbols(data: mmap.mmap) -> Iterator[tuple[str, bool]]:
    """Every dynamic symbol, and whether it is defined here."""
    (table,) = struct.unpack_from("<Q", data, 0x28)
    size, count = struct.unpack_from("<HH", data, 0x3A)
    sections = [struct.unpack_from("<IIQQQQIIQQ", data, table + i * size) for i in range(count)]
    for _, kind, _, _, offset, length, link, _, _, entry in sections:
        if kind != _SHT_DYNSYM:
            continue
        names = sections[link][4]
        for name, _, _, section, _, _ in struct.iter_unpack("<IBBHQQ", data[offset : offset + length // entry * entry]):
            if name:
                start = names + name
                yield data[start : data.find(b"\0", start)].decode(), section != 0
