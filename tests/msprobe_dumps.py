"""Folders as msprobe dumps them, for the tests of ``descend check``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from descend import tensors

bfloat16 = np.dtype(ml_dtypes.bfloat16)


def write_dump(process: Path, calls: Mapping[str, Mapping[str, Any]], framework: str = "pytorch") -> Path:
    """What one process dumps, into its folder.

    Arrays in the calls become files, with the names that msprobe gives them; the rest is described in dump.json.
    """
    (process / "dump_tensor_data").mkdir(parents=True, exist_ok=True)
    data = {name: {key: _described(process, f"{name}.{_word(key)}", part) for key, part in call.items()}
            for name, call in calls.items()}  # fmt: skip
    content = {"task": "tensor", "level": "L1", "framework": framework, "dump_data_dir": "elsewhere", "data": data}
    (process / "dump.json").write_text(json.dumps(content, indent=1), encoding="utf-8")
    return process


def call(arguments: list[Any], output: list[Any], **named: Any) -> dict[str, Any]:
    """A call's part of `write_dump`."""
    return {"input_args": arguments, "input_kwargs": named, "output": output}


def gradient(given: list[Any], output: list[Any]) -> dict[str, Any]:
    """A gradient's part of `write_dump`."""
    return {"input": given, "output": output}


def _word(key: str) -> str:
    return {"input_args": "input", "input_kwargs": "input"}.get(key, key)


def _described(process: Path, name: str, value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _described(process, f"{name}.{key}", inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_described(process, f"{name}.{place}", inner) for place, inner in enumerate(value)]
    if not isinstance(value, np.ndarray):
        return None if value is None else {"type": type(value).__name__, "value": value}
    # MindSpore's dumps store bfloat16 as float32.
    stored = value.astype(np.float32) if value.dtype == bfloat16 else value
    file = f"{name.replace('/', '_')}.npy"
    tensors.write(process / "dump_tensor_data" / file, {"any": stored})
    return {"type": "torch.Tensor", "dtype": f"torch.{value.dtype}", "shape": list(value.shape), "requires_grad": True,
            "data_name": file}  # fmt: skip
