"""Two results of many rows, which go to memory past the caches: they are those of few rows."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import descend
from cases import FLOATS, Array, Place, assert_same_bits, in_turn, normal, wide

ROWS = 40
Computes = Callable[[list[Array], tuple[Array, Array]], list[Array]]


def add_rms_norm(inputs: list[Array], out: tuple[Array, Array]) -> list[Array]:
    x1, x2, _, gamma, _, rstd = inputs
    return [descend.add_rms_norm(x1, x2, gamma, out=(out[0], np.empty_like(rstd[:, None]), out[1]))[1]]


def add_layer_norm(inputs: list[Array], out: tuple[Array, Array]) -> list[Array]:
    x1, x2, _, gamma, *_ = inputs
    _, mean, rstd, _ = descend.add_layer_norm(
        x1, x2, gamma, gamma, additional_output=True, out=(out[0], None, None, out[1])
    )
    return [mean, rstd]


def deep_norm_grad(inputs: list[Array], out: tuple[Array, Array]) -> list[Array]:
    dy, x, gx, gamma, mean, rstd = inputs
    return list(descend.deep_norm_grad(dy, x, gx, gamma, mean[:, None], rstd[:, None], out=(*out, None, None))[2:])


def inputs_of(columns: int, dtype: str) -> list[Array]:
    rng = np.random.default_rng(columns)
    statistic = np.float64 if dtype == "DOUBLE" else np.float32
    rows = [normal(rng, (ROWS, columns), dtype) for _ in range(3)]
    return [
        *rows,
        normal(rng, (columns,), dtype),
        rng.random(ROWS).astype(statistic),
        1 + rng.random(ROWS).astype(statistic),
    ]


@pytest.mark.parametrize("operator", [add_rms_norm, add_layer_norm, deep_norm_grad])
@pytest.mark.parametrize(("columns", "dtype"), in_turn([5, 17, 53, 100, 129, 250, 701], FLOATS, each=2))
def test_rows_that_are_not_aligned_and_too_many_for_the_caches(operator: Computes, columns: int, dtype: str):
    """Where the last cache has up to 90 MB, both go by way of a stage of their own if rows are short."""
    few = inputs_of(columns, dtype)
    times = 90 * 2**20 // (4 * few[0].nbytes) + 1
    many = [a if a.shape == (columns,) else np.tile(a, (times, 1) if a.ndim == 2 else times) for a in few]
    expected = Place((ROWS, columns), dtype), Place((ROWS, columns), dtype)
    operator(few, (expected[0].array, expected[1].array))
    statistics = None
    for gaps, beyond_line in (((0, 0), few[0].itemsize), ((0, 3), 16), ((3, 0), 0), ((8, 8), 48)):
        places = [Place((ROWS * times, columns + gap), dtype, beyond_line=beyond_line) for gap in gaps]
        found = operator(many, (places[0].array[:, :columns], places[1].array[:, :columns]))
        statistics = statistics or found
        assert_same_bits(found, statistics)
        for place, one in zip(places, expected, strict=True):
            parts = place.array.reshape(times, ROWS, -1)
            assert_same_bits([parts[..., :columns]], [np.broadcast_to(one.array, (times, ROWS, columns))])
            assert np.isnan(wide(parts[:2, :, columns:])).all()  # nothing was written to the gaps
            place.check_guards()
