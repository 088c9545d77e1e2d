"""Files that are not trusted: whatever is in them, reading gives usable arrays or one sentence.

The first byte of an input says which kind of file the others are. A folder of msprobe has them as its dump.json, beside
a few good tensors, and is judged by ``descend check``.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from descend import tensors
from descend.tensors import BFLOAT16, TensorFileError
from fuzz import commands

KINDS = (".npz", ".npy", ".safetensors", ".pt", ".bin", "msprobe")
MOST = 1 << 22  # bytes of the arrays that are looked at


def check(data: bytes, folder: Path) -> None:
    """AssertionError, or what a reader lets through, if reading the input is not answered as it must be."""
    if not data:
        return
    kind = KINDS[data[0] % len(KINDS)]
    if kind == "msprobe":
        _check_dump(data[1:], folder / "dump")
        return
    file = folder / f"any{kind}"
    file.write_bytes(data[1:])
    _check_file(file)


def _check_file(file: Path) -> None:
    dtype = BFLOAT16 if file.suffix == ".bin" else None
    try:
        content = tensors.read(file, dtype)
    except TensorFileError as error:
        commands.check_sentence(str(error))
        return
    for name in content:
        try:
            array = content[name]
        except TensorFileError as error:
            commands.check_sentence(str(error))
            continue
        assert array.dtype.isnative, array.dtype
        assert array.flags.aligned
        if array.nbytes < MOST:
            array.copy()  # reads all of it
    commands.run(["check", f"{file}:bfloat16" if dtype else str(file), f"{file}:bfloat16" if dtype else str(file)])


def _check_dump(description: bytes, folder: Path) -> None:
    if not folder.exists():
        good = folder / "dump_tensor_data"
        good.mkdir(parents=True)
        for name, array in _arrays().items():
            tensors.write(good / f"{name}.npy", {name: array})
    (folder / "dump.json").write_bytes(description)
    commands.run(["check", str(folder)])
    commands.run(["check", str(folder), str(folder)])


def _arrays() -> dict[str, np.ndarray]:
    return {
        "x": np.linspace(-1, 1, 24, dtype=np.float32).reshape(3, 8),
        "g": np.ones(8, np.float32),
        "r": np.ones((3, 1), np.float32),
        "n": np.arange(6).reshape(2, 3),
        "n3": np.ones((6, 3, 4), np.float32),
    }


def seeds(folder: Path) -> list[bytes]:
    """Good files of each kind, from which a fuzzer starts."""
    given = {"x": np.ones((2, 3), np.float32), "half": np.ones(3, np.float16).astype(BFLOAT16)}
    found = []
    for place, kind in enumerate(KINDS[:-1]):
        file = folder / f"seed{kind}"
        for content in (given, {"x": np.asfortranarray(given["x"])}, {"x": np.ones((0, 3))}, {"x": np.array(1, ">i8")}):
            if len(content) == 1 or kind not in (".npy", ".bin"):
                tensors.write(file, content)
                found.append(bytes([place]) + file.read_bytes())
    for name, call in _calls().items():
        content = {"task": "tensor", "framework": "pytorch", "data": {name: call}}
        found.append(bytes([KINDS.index("msprobe")]) + json.dumps(content).encode())
    return found


def _calls() -> dict[str, dict[str, object]]:
    x, g, r, n, n3 = (
        {
            "type": "torch.Tensor",
            "dtype": f"torch.{array.dtype}",
            "shape": list(array.shape),
            "data_name": f"{name}.npy",
        }
        for name, array in _arrays().items()
    )
    return {
        "NPU.npu_rms_norm.0.forward": {"input_args": [x, g], "input_kwargs": {}, "output": [x, r]},
        "NPU.npu_rms_norm_backward.0.forward": {"input_args": [x, x, g, r], "input_kwargs": {}, "output": [x, g]},
        "Functional.layer_norm.0.forward": {
            "input_args": [x, [{"type": "int", "value": 8}]],
            "input_kwargs": {"eps": {"type": "float", "value": 1e-5}},
            "output": [x],
        },
        "NPU.npu_scaled_masked_softmax.0.forward": {"input_args": [x, None], "input_kwargs": {}, "output": [x]},
        "NPU.npu_group_norm_swish.0.forward": {
            "input_args": [x, {"type": "int", "value": 4}, g, g],
            "input_kwargs": {},
            "output": [x, r, r],
        },
        "NPU.npu_nsa_compress.0.forward": {
            "input_args": [n3, n, {"type": "int", "value": 2}, {"type": "int", "value": 1}],
            "input_kwargs": {"actual_seq_len": [{"type": "int", "value": 6}]},
            "output": [n3],
        },
    }
