"""Folders of tensors that msprobe dumps while a program trains.

A process has a folder: ``step0/rank0``, or ``step0/proc<pid>`` where it has no rank. There ``dump.json`` describes all
calls, and the folder ``dump_tensor_data`` has a file for each tensor.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from descend.tensors import Array, TensorFileError, parse_dtype, read

TENSORS = "dump_tensor_data"  # the folder that msprobe puts them in
_SUFFIXES = (".npy", ".pt")  # MindSpore's and PyTorch's


class Dump(Mapping[str, Array]):
    """The tensors below a folder by name: ``step0/rank0/NPU.npu_rms_norm.0.forward.output.0``.

    The name is the file's path without the folder ``dump_tensor_data`` and the suffix. A process without a rank has a
    folder ``proc<pid>``. If it is the only such folder, it is called ``proc``, so that the names of two runs agree.
    Files are read when they are asked for, and not kept. Raises TensorFileError for a folder without tensors.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder
        found, unreadable = _files(folder)
        if unreadable:
            raise TensorFileError(f"{next(iter(unreadable))} cannot be read: {next(iter(unreadable.values()))}.")
        files = [file for file in found if file.suffix in _SUFFIXES]
        if not files:
            raise TensorFileError(f"{folder} is a folder without tensors: none of its files ends in .npy or .pt.")
        named = _namer(folder, files)
        self._files: dict[str, Path] = {}
        for file in files:
            name = named(file.with_suffix(""))
            if name in self._files:
                raise TensorFileError(f"{self._files[name]} and {file} are two tensors of one name, {name}.")
            self._files[name] = file
        self._dtypes = _dtypes(file for file in found if file.name == "dump.json")

    def __getitem__(self, name: str) -> Array:
        return read_one(self._files[name])

    def __contains__(self, name: object) -> bool:  # without reading the file
        return name in self._files

    def __iter__(self) -> Iterator[str]:
        return iter(self._files)

    def __len__(self) -> int:
        return len(self._files)

    def computed_in(self, name: str) -> np.dtype[Any] | None:
        """The dtype in ``dump.json``. NumPy's files cannot have it: they store bfloat16 as float32."""
        return self._dtypes.get(self._files[name])


@dataclass(frozen=True)
class Process:
    """What one process dumped in one step: the content of its ``dump.json``, or why that cannot be read."""

    name: str
    """What precedes the names of its calls: ``step0/rank0/``."""
    file: Path
    task: str = ""
    framework: str = ""
    calls: Mapping[str, Any] = field(default_factory=dict)
    problem: str = ""

    @property
    def tensors(self) -> Path:
        """The folder of its tensors."""
        return self.file.parent / TENSORS


def processes(folder: Path) -> list[Process]:
    """What all processes below a folder dumped. Folders that cannot be read are among them, too."""
    found, unreadable = _files(folder)
    files = [file for file in found if file.name == "dump.json"]
    named = _namer(folder, [*files, *unreadable])
    result = [Process(named(place), place, problem=problem) for place, problem in unreadable.items()]
    for file in files:
        prefix = named(file).removesuffix("dump.json")
        try:
            content = _json(file)
        except TensorFileError as error:
            result.append(Process(f"{prefix}dump.json", file, problem=str(error)))
            continue
        calls = content.get("data") if isinstance(content, dict) else None
        if isinstance(calls, dict):
            result.append(Process(prefix, file, str(content.get("task")), str(content.get("framework")), calls))
        else:
            result.append(Process(f"{prefix}dump.json", file, problem=f"{file} is no description of calls."))
    return result


def read_one(file: Path) -> Array:
    """The tensor of a file that msprobe wrote."""
    content = read(file)
    if len(content) != 1:
        raise TensorFileError(f"{file} holds {len(content)} tensors, but a dump has one a file.")
    return next(iter(content.values()))


def dumped_in(described: Mapping[str, Any]) -> np.dtype[Any] | None:
    """The dtype that ``dump.json`` says a tensor has; None if NumPy has none like it."""
    try:
        return parse_dtype(str(described.get("dtype")))
    except TensorFileError:  # reading the tensor raises the error
        return None


def _files(folder: Path) -> tuple[list[Path], dict[Path, str]]:
    """All files below a folder, sorted, and the folders that cannot be read and why. Links to folders are left out."""
    unreadable: dict[Path, str] = {}

    def note(error: OSError) -> None:
        unreadable[Path(error.filename)] = error.strerror or str(error)

    found = [Path(place, name) for place, _, names in os.walk(folder, onerror=note) for name in names]
    return sorted(found), unreadable


def _namer(folder: Path, files: list[Path]) -> Callable[[Path], str]:
    """What gives a file its name in tables: its path below the folder, the same in two runs where it can be."""
    parts = {part for file in files for part in file.relative_to(folder).parts}
    numbered = [part for part in parts if re.fullmatch(r"proc\d+", part)]
    renamed = {numbered[0]: "proc"} if len(numbered) == 1 and "proc" not in parts else {}
    return lambda file: "/".join(renamed.get(p, p) for p in file.relative_to(folder).parts if p != TENSORS)


def _json(file: Path) -> Any:
    if file.exists() and not file.is_file():  # a named pipe, say, at which a reader would wait
        raise TensorFileError(f"{file} is no regular file.")
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise TensorFileError(f"{file} cannot be read ({str(error).splitlines()[0]}).") from None


def _dtypes(files: Iterator[Path]) -> dict[Path, np.dtype[Any]]:
    dtypes = {}
    for file in files:
        for tensor in _tensors(_json(file)):
            if dtype := dumped_in(tensor):
                dtypes[file.parent / TENSORS / tensor["data_name"]] = dtype
    return dtypes


def _tensors(described: object) -> Iterator[dict[str, str]]:
    """Every description of a tensor in ``dump.json``, at any depth."""
    if isinstance(described, dict):
        if isinstance(described.get("data_name"), str) and isinstance(described.get("dtype"), str):
            yield described
        described = list(described.values())
    if isinstance(described, list):
        for inner in described:
            yield from _tensors(inner)
