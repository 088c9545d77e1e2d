"""Arguments of the command line: whatever they are, there is a result or one sentence.

An input changes one of the good calls in LINES: words are put in, replaced or taken out.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from functools import cache
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from descend import tensors
from descend.contract import OPERATORS
from fuzz import commands

FILES = (
    "all.npz",
    "groups.npz",
    "windows.npz",
    "x.npy",
    "x.bin",
    "x.pt",
    "x.safetensors",
    "empty.npz",
    "folder",
    "none.npz",
)
WORDS = (
    *("run", "check", "explain", "ops", "portability", "info", "sdk", "--help", "--version"),
    *OPERATORS,
    *FILES,
    *("-o", "out.npz", "out.npy", "out.bin", "out.json", "dx=out.npy", "dgamma=out.bin"),
    *("x=x.npy", "dy=x.bin:float32:6x16", "x=float16:6x16", "gamma=float:16", "dy=bf16:2x1x32", "rstd=none", ""),
    *("--product", "host", "atlas-a2-training", "--golden", "--prefix", "layers.0", "--dtype", "float16", "bfloat16"),
    *("--shape", "6x16", "--epsilon", "1e-6", "nan", "-1", "--scale", "--normalized-shape", "16"),
    *("--output-mask", "true,false,true", "--num-groups", "4", "--data-format", "--act-seq-len", "6,99999999999999"),
    *("--level", "L1", "--most", "0", "--html", "page.html", "--third-party", "--json", "--plots"),
)  # fmt: skip
NOT_HERE = ("npu", "demo", "--repeat")  # one starts a program, the others measure for seconds
LINES = (
    "",
    "run rms_norm_grad all.npz -o out.npz",
    "run rms_norm_grad all.npz -o dx=out.npy -o dgamma=out.bin --product atlas-a2-training --prefix layers.0",
    "run layer_norm input=x.npy --normalized-shape 16 -o out.npz --golden",
    "run layer_norm_backward all.npz --normalized-shape 16 --output-mask true,false,true -o out.npz",
    "run group_norm_swish groups.npz --num-groups 4 -o out.npz",
    "run scaled_masked_softmax x=x.bin --dtype float16 --shape 6x32 --scale 2 -o out.bin",
    "run nsa_compress windows.npz --compress-block-size 2 --compress-stride 1 --act-seq-len 6 -o out.pt",
    "check x.npy x.bin:float32:6x16 --level L1",
    "check all.npz all.npz --third-party all.npz --dtype float16",
    "check folder",
    "portability rms_norm_grad dy=bf16:2x1x32 x=float16:6x16 --json",
    "explain rms_norm",
    "ops --json",
    "info",
    "sdk",
)


def words(data: bytes) -> list[str]:
    """The arguments that an input stands for."""
    numbers = iter(data)
    found = LINES[next(numbers, 0) % len(LINES)].split()
    for number in numbers:
        place, way = divmod(next(numbers, 0), 3)
        place %= len(found) + 1
        found[place : place + (way > 0)] = [_word(number, numbers)] if way < 2 else []
    return found


def _word(number: int, numbers: Iterator[int]) -> str:
    """A word of the list, or one that the input spells. It has no slashes, so that nothing is written elsewhere."""
    if number < len(WORDS):
        return WORDS[number]
    spelt = bytes(islice(numbers, next(numbers, 0) % 32))
    return spelt.replace(b"\0", b"").decode("utf-8", "surrogateescape").replace("/", "_")


def check(data: bytes, folder: Path) -> None:
    """AssertionError, or what the command line lets through, if it does not answer as it must."""
    given = words(data)
    if any(word.startswith(NOT_HERE) for word in given):
        return
    prepare(folder)
    here = Path.cwd()
    os.chdir(folder)
    try:
        commands.run(given)
    finally:
        os.chdir(here)


def prepare(folder: Path) -> None:
    """The files that arguments may name, and no others: an input before may have changed them."""
    good = _good_files()
    there = {entry.name: entry for entry in os.scandir(folder)}
    if {name: _state(entry) for name, entry in there.items()} == _prepared.get(folder):
        return
    for entry in there.values():
        shutil.rmtree(entry) if entry.is_dir() else os.unlink(entry)
    (folder / "folder").mkdir()
    for name, content in good.items():
        (folder / name).write_bytes(content)
    _prepared[folder] = {entry.name: _state(entry) for entry in os.scandir(folder)}


# What each folder's files were when they had been written: to read them again for each input would take half its time.
_prepared: dict[Path, dict[str, tuple[int, ...]]] = {}


def _state(entry: os.DirEntry[str]) -> tuple[int, ...]:
    state = entry.stat()
    return state.st_ino, state.st_size, state.st_mtime_ns


@cache
def _good_files() -> dict[str, bytes]:
    with TemporaryDirectory() as folder:
        _write_good_files(Path(folder))
        return {path.name: path.read_bytes() for path in Path(folder).iterdir()}


def _write_good_files(folder: Path) -> None:
    x, gamma = np.linspace(-1, 1, 96, dtype=np.float32).reshape(6, 16), np.ones(16, np.float32)
    call = {"dy": x, "x": x, "rstd": np.ones((6, 1), np.float32), "gamma": gamma}
    call |= {"grad_out": x, "mean": np.zeros((6, 1), np.float32), "weight": gamma, "input": x}
    tensors.write(folder / "all.npz", call | {f"layers.0.{name}": array for name, array in call.items()})
    tensors.write(folder / "windows.npz", {"input": x.reshape(6, 2, 8), "weight": np.ones((2, 2), np.float32)})
    tensors.write(folder / "groups.npz", {"x": x, "gamma": gamma, "beta": gamma})
    for suffix in ("npy", "bin", "pt", "safetensors"):
        tensors.write(folder / f"x.{suffix}", {"x": x})
    tensors.write(folder / "empty.npz", {})


def seeds(folder: Path) -> list[bytes]:
    """Good calls, from which a fuzzer starts."""
    return [bytes([place]) for place in range(len(LINES))]
