"""A call of RmsNormGrad in two phases, for tests that are about something else than its results."""

from __future__ import annotations

import numpy as np

import descend
from cases import Array, normal

OP = "rms_norm_grad"


def inputs(rows: int = 8, columns: int = 64, seed: int = 0, dtype: str = "FLOAT") -> list[Array]:
    rng = np.random.default_rng(seed)
    return [normal(rng, s, dtype) for s in ((rows, columns), (rows, columns), (rows,), (columns,))]


def outputs(rows: int = 8, columns: int = 64) -> list[Array]:
    return [np.full(s, np.nan, np.float32) for s in ((rows, columns), (columns,))]


def expected_of(call: list[Array]) -> tuple[Array, ...]:
    return tuple(descend.rms_norm_grad(*call))


BIG = (3000, 2000)  # some 70 MB: never run on the caller's thread
