"""A small call of RmsNormGrad, for tests of arrays of every kind."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import descend
from cases import Array, normal

OP = "rms_norm_grad"


def inputs(dtype: str = "FLOAT", rows: int = 4, columns: int = 32) -> list[Array]:
    rng = np.random.default_rng(1)
    return [normal(rng, s, dtype) for s in ((rows, columns), (rows, columns), (rows,), (columns,))]


def expected_of(call: list[Array]) -> list[Array]:
    return list(descend.rms_norm_grad(*(np.array(a) for a in call)))


def wrong_type(name: str, kind: str) -> Any:
    sentence = rf"^rms_norm_grad: {name} is {kind}, but must be an array \(NumPy, PyTorch, or anything with DLPack\)\.$"
    return pytest.raises(TypeError, match=sentence)


class Producer:
    """An array of an unknown library: it has DLPack and nothing else."""

    def __init__(self, array: Array, *, versioned: bool = True, device: tuple[int, int] = (1, 0)) -> None:
        self.array = array
        self.versioned = versioned
        self.device = device
        self.calls = 0

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device

    def __dlpack__(self, **options: Any) -> Any:
        self.calls += 1
        if not self.versioned:
            if options:
                raise TypeError("unexpected keyword argument 'max_version'")
            return self.array.__dlpack__()
        return self.array.__dlpack__(**options)
