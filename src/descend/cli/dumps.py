"""Folders of tensors that msprobe dumps while a program trains, read as one file with a name for each tensor."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from descend.tensors import Array, TensorFileError, parse_dtype, read

_SUFFIXES = (".npy", ".pt")  # MindSpore's and PyTorch's
_TENSORS = "dump_tensor_data"  # the folder that msprobe puts them in


class Dump(Mapping[str, Array]):
    """The tensors below a folder by name: ``step0/rank0/NPU.npu_rms_norm.0.forward.output.0``.

    The name is the file's path without the folder ``dump_tensor_data`` and the suffix. A process without a rank has a
    folder ``proc<pid>``. If it is the only such folder, it is called ``proc``, so that the names of two runs agree.
    Files are read when they are asked for, and not kept. Raises TensorFileError for a folder without tensors.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder
        files = sorted(file for file in folder.rglob("*") if file.suffix in _SUFFIXES)
        if not files:
            raise TensorFileError(f"{folder} is a folder without tensors: none of its files ends in .npy or .pt.")
        processes = {
            part for file in files for part in file.relative_to(folder).parts if re.fullmatch(r"proc\d+", part)
        }
        renamed = dict.fromkeys(processes, "proc") if len(processes) == 1 else {}
        self._files: dict[str, Path] = {}
        for file in files:
            path = file.relative_to(folder).with_suffix("").parts
            name = "/".join(renamed.get(part, part) for part in path if part != _TENSORS)
            if name in self._files:
                raise TensorFileError(f"{self._files[name]} and {file} are two tensors of one name, {name}.")
            self._files[name] = file
        self._dtypes = _dtypes(folder)

    def __getitem__(self, name: str) -> Array:
        file = self._files[name]
        content = read(file)
        if len(content) != 1:
            raise TensorFileError(f"{file} holds {len(content)} tensors, but a dump has one a file.")
        return next(iter(content.values()))

    def __contains__(self, name: object) -> bool:  # without reading the file
        return name in self._files

    def __iter__(self) -> Iterator[str]:
        return iter(self._files)

    def __len__(self) -> int:
        return len(self._files)

    def computed_in(self, name: str) -> np.dtype[Any] | None:
        """The dtype in ``dump.json``. NumPy's files cannot have it: they store bfloat16 as float32."""
        return self._dtypes.get(self._files[name])


def _dtypes(folder: Path) -> dict[Path, np.dtype[Any]]:
    dtypes = {}
    for file in folder.rglob("dump.json"):
        try:
            described = json.loads(file.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise TensorFileError(f"{file} cannot be read ({str(error).splitlines()[0]}).") from None
        for tensor in _tensors(described):
            try:
                dtypes[file.parent / _TENSORS / tensor["data_name"]] = parse_dtype(tensor["dtype"])
            except TensorFileError:  # of a dtype that NumPy does not have; reading it raises the error
                continue
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
