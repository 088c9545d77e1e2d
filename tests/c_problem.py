"""A call of aclnnRmsNormGrad through the C interface, and the fixtures of the tests that make it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest

import descend
from c_library import Library, started
from cases import digest, normal

OP = "aclnnRmsNormGrad"
NAMES = ("dy", "x", "rstd", "gamma", "dxOut", "dgammaOut")


@pytest.fixture(scope="module")
def lib() -> Iterator[Library]:
    yield from started()


@pytest.fixture
def stream(lib: Library) -> Iterator[int]:
    stream = lib.stream()
    yield stream
    assert lib.aclrtDestroyStream(stream) == 0


class Problem:
    """Inputs, outputs and tensors of a call of shape [4, 32]."""

    shapes = ((4, 32), (4, 32), (4,), (32,), (4, 32), (32,))

    def __init__(self, lib: Library, shapes: Sequence[tuple[int, ...]] | None = None) -> None:
        rng = np.random.default_rng(1)
        self.lib = lib
        self.shapes = tuple(shapes or self.shapes)
        self.arrays = [normal(rng, s) for s in self.shapes]
        self.expected = descend.rms_norm_grad(*self.arrays[:4])
        self.arrays[4][...] = self.arrays[5][...] = np.nan
        self.tensors: list[int | None] = [lib.tensor(a, a.shape) for a in self.arrays]
        assert all(self.tensors)

    def phase1(self, **changed: Any) -> tuple[int, int, int]:
        tensors = [changed.get(name, t) for name, t in zip(NAMES, self.tensors, strict=True)]
        return self.lib.phase1(*tensors)

    def refused(self, status: int, *words: str, **changed: Any) -> None:
        got, size, executor = self.phase1(**changed)
        sentence = self.lib.sentence
        assert got == status, f"{got} {sentence}"
        assert sentence.startswith(f"{OP}: "), sentence
        assert sentence.endswith("."), sentence
        for word in words:
            assert word in sentence, f"{word!r} is not in: {sentence}"
        assert (size, executor) == (-1, 0)  # not written
        assert np.isnan(self.arrays[4]).all()

    def launch(self, stream: int | None, executor: int, size: int) -> int:
        self.workspace = np.zeros(size + 64, np.uint8)
        address = self.workspace.ctypes.data
        return self.lib.aclnnRmsNormGrad(address + -address % 64, size, executor, stream)

    def check(self) -> None:
        assert digest(*self.arrays[4:]) == digest(*self.expected)


@pytest.fixture
def problem(lib: Library) -> Problem:
    return Problem(lib)


def foreign_handles(lib: Library) -> list[int]:
    """Values that are no live handle: numbers, addresses, destroyed handles, handles of another kind."""
    rng = np.random.default_rng(5)
    data = np.zeros(64, np.float32)
    tensor = lib.tensor(data, (64,))
    assert lib.aclDestroyTensor(tensor) == 0
    numbers = [int(n) for n in rng.integers(1, 2**63, 200, dtype=np.uint64)]
    near = [tensor, tensor - (1 << 32), tensor ^ (1 << 63), tensor & 0xFFFFFFFF, tensor & ~1]  # never alive again
    return [1, 2, 3, 8, 4096, 2**31, 2**63, 2**64 - 1, data.ctypes.data, id(data), *near, *numbers]
