"""Files on the command line: ``[name=]path[:dtype[:shape]]``."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from descend.tensors import Array, Contents, Tensors, check_writable, is_known, parse_dtype, parse_shape, read, write

_T = TypeVar("_T")

SYNTAX = "[NAME=]FILE[:DTYPE[:SHAPE]], as in data.npz, dy=dy.npy, x=x.bin:float16:2x1x32"


@dataclass(frozen=True)
class TensorFile:
    """One file as the command line names it."""

    path: Path
    name: str | None = None
    dtype: np.dtype[Any] | None = None
    shape: tuple[int, ...] | None = None

    @classmethod
    def parse(cls, text: str, dtype: str | None = None, shape: str | None = None) -> TensorFile:
        """Read ``[name=]path[:dtype[:shape]]``; `dtype` and `shape` are for raw files without their own."""
        name = None
        path, described = _described(text)
        if not Path(path).exists():
            name, text = _named(text)
            path, described = _described(text)
        if Path(path).suffix == ".bin":
            described = described or ([dtype] if dtype else [])
            described = described + ([shape] if shape and len(described) == 1 else [])
        return cls(
            Path(path),
            name,
            parse_dtype(described[0]) if described else None,
            parse_shape(described[1]) if len(described) > 1 else None,
        )

    @classmethod
    def parse_output(cls, text: str) -> TensorFile:
        """Read ``[name=]path``. ValueError if a dtype follows: a result is written in its own dtype."""
        name, path = _named(text)
        plain, described = _described(path)
        if described and is_known(plain):
            raise ValueError(f"{path} asks for a dtype, but a result is written in its own: name the file {plain}.")
        return cls(Path(path), name)

    @property
    def flat(self) -> bool:
        """Whether it is a raw file without a shape."""
        return self.path.suffix == ".bin" and self.shape is None

    def read(self) -> Contents:
        """The file's tensors by name."""
        return read(self.path, self.dtype, self.shape)


def _named(text: str) -> tuple[str | None, str]:
    """The name before a file, if there is one, and the rest."""
    match = re.fullmatch(r"([A-Za-z_]\w*)=(.+)", text)
    return (match[1], match[2]) if match else (None, text)


def _described(text: str) -> tuple[str, list[str]]:
    """A file, and the dtype and the shape after it. If names have colons: the longest name of an existing file.

    If there is none, it is the longest name that has the suffix of a format.
    """
    parts = text.split(":")
    readings = [(":".join(parts[:end]), parts[end:]) for end in range(len(parts), max(len(parts) - 3, 0), -1)]
    found = next((r for fits in (os.path.exists, is_known) for r in readings if fits(r[0])), None)
    return found or (parts[0], text.split(":", 2)[1:])


def read_arguments(files: Sequence[TensorFile], names: Sequence[str], optional: Sequence[str], prefix: str) -> Tensors:
    """The tensors called `names` (in a file: prefix + name). A file given for one name is used before other files.

    Raises ValueError if one is missing that is not `optional`, is given twice, or is not supported.
    """
    held: dict[str, Contents] = {}
    named: Tensors = {}
    found: list[str] = []
    for file in files:
        content = file.read()
        if file.name is None:
            _add({name: content for name in names if prefix + name in content}, held, file)
            found += content
        elif file.name in names:
            _add({file.name: _only(file, content, prefix)}, named, file)
        else:
            raise ValueError(f"{file.name!r} is no input of this operator; its inputs are {', '.join(names)}.")
    tensors = named | {name: content[prefix + name] for name, content in held.items() if name not in named}
    missing = [name for name in names if name not in tensors and name not in optional]
    if missing:
        wanted = ", ".join(prefix + name for name in missing)
        raise ValueError(f"No tensor is given for {wanted}{_hint(found, missing[0], prefix)}.")
    return tensors


def _add(given: Mapping[str, _T], known: dict[str, _T], file: TensorFile) -> None:
    for name in given:
        if name in known:
            raise ValueError(f"{name} is given twice, the second time in {file.path}.")
    known |= given


def _hint(found: list[str], missing: str, prefix: str) -> str:
    """A hint at where a missing tensor may be: a prefix, if names end in it, else the names that were found."""
    prefixes = [name.removesuffix(f".{missing}") for name in found if name.endswith(f".{missing}")]
    if prefixes:
        longer = [name for name in prefixes if name.startswith(prefix.removesuffix("."))]
        return f"; say --prefix, such as {few(longer or prefixes, 3)}"
    return f"; the files hold {few(found)}" if found else ""


def few(names: Iterable[str], most: int = 6) -> str:
    """The first few names of tensors, for an error message."""
    names = list(names) or ["no tensors"]
    return ", ".join(names[:most]) + (", …" if len(names) > most else "")


def _only(file: TensorFile, content: Contents, prefix: str) -> Array:
    """The tensor of a file that was given for one parameter: the one with that name, or the only one."""
    key = f"{prefix}{file.name}"
    if key in content:
        return content[key]
    if len(content) == 1:
        return next(iter(content.values()))
    raise ValueError(f"{file.path} holds {few(content)}, and none is called {key}.")


def check_outputs(files: Sequence[TensorFile], names: Sequence[str]) -> None:
    """Raise ValueError if output files do not fit the results `names`: one for all, or each with a result's name.

    Also raises it now if a file cannot be written, as far as that can be known, so that nothing is computed in vain.
    """
    taken: set[Path] = set()
    for file in files:
        if file.name is None and len(files) > 1:
            raise ValueError(f"Say which result goes into which file, as in -o {names[0]}={file.path}.")
        if file.name is not None and file.name not in names:
            raise ValueError(f"{file.name!r} is no result of this operator; its results are {', '.join(names)}.")
        place = file.path.parent.resolve() / file.path.name  # a link is replaced, not its target
        if place in taken:
            raise ValueError(f"{file.path} is named twice, and one result would be lost; name a file for each.")
        taken.add(place)
        check_writable(file.path)


def write_results(files: Sequence[TensorFile], results: Tensors) -> None:
    """Write all results into one file, or each into the file with its name."""
    for file in files:
        if file.name is not None and file.name not in results:
            raise ValueError(f"{file.name!r} was not computed.")
        if file.name is None and file.path.suffix in (".npy", ".bin") and len(results) > 1:
            raise ValueError(
                f"{file.path}: a {file.path.suffix} file holds one tensor, and there are {len(results)} results "
                f"({', '.join(results)}). Name a .npz file for all, or a file for each, as in -o "
                f"{next(iter(results))}={file.path}."
            )
        write(file.path, results if file.name is None else {file.name: results[file.name]})
