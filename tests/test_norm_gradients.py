"""RmsNormGrad and LayerNormBackward, whose kernels are one: shapes that go different ways, and extreme values."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import descend
from cases import DTYPES, FLOATS, Layout, Place, assert_close, assert_same_bits, in_turn, normal, wide
from descend import precision
from norm_gradients import (
    BF16,
    F16,
    F32,
    GRADIENTS,
    LONG_AND_MANY,
    MANY_LONG_ROWS,
    SOME_TILES,
    check,
    compute,
    golden,
    realistic,
    statistics,
)

pytestmark = pytest.mark.parametrize("operator", GRADIENTS)


def places_for(shape: tuple[int, int], dtype: str, sums: str = F32) -> list[Place]:
    return [Place(shape, dtype), Place(shape[1:], sums), Place(shape[1:], sums)]


# --- ways through the kernels ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("shape", "dtype"), in_turn(LONG_AND_MANY, FLOATS))
def test_very_long_and_very_many_rows(operator, shape, dtype):
    rng = np.random.default_rng(7)
    dy, x, weight = normal(rng, shape, dtype), normal(rng, shape, dtype), normal(rng, shape[1:], dtype)
    call = [dy, x, normal(rng, shape[:1]), (0.5 + rng.random(shape[:1])).astype(np.float32), weight]
    places = places_for(shape, dtype)
    results = compute(operator, *call, out=[place.array for place in places])
    check(operator, results, *call)
    for place in places:
        place.check_guards()


@pytest.mark.parametrize("shape", MANY_LONG_ROWS)
def test_every_row_is_in_the_sums(operator, shape):
    rng = np.random.default_rng(14)
    dy, x = (normal(rng, shape) for _ in range(2))
    mean, rstd = normal(rng, shape[:1]), (1 + rng.random(shape[0])).astype(np.float32)
    found = compute(operator, dy, x, mean, rstd, np.ones(shape[1], np.float32))[1:]
    if operator == "rms_norm_grad":
        mean[...] = 0
    exact, size = np.zeros((2, shape[1])), np.zeros((2, shape[1]))
    for dy_row, x_row, mean_row, rstd_row in zip(dy, x, mean, rstd, strict=True):
        terms = np.stack([wide(dy_row) * (wide(x_row) - float(mean_row)) * float(rstd_row), wide(dy_row)])
        exact += terms
        size += np.abs(terms)
    for sums, total, terms in zip(found, exact, size, strict=False):
        assert_close(sums, total, terms, 8)


@pytest.mark.parametrize(
    ("columns", "dtype"),
    [
        *in_turn([100, 255, 512, 1032, 2049, 8323, 16_400], [BF16, F16]),
        *((columns, F32) for columns in (5, 29, 100, 256, 396, 701, 2049, 8323, 16_400)),
        *((columns, "DOUBLE") for columns in (256, 702)),
    ],
)
def test_rows_that_are_not_aligned_and_too_many_for_the_caches(operator, columns, dtype):
    """Where the last cache has up to 160 MB, results go to memory by quarters of lines or by way of a stage; they are
    those of few rows."""
    rng = np.random.default_rng(columns)
    dy, x = (normal(rng, (40, columns), dtype) for _ in range(2))
    statistic = "DOUBLE" if dtype == "DOUBLE" else F32
    mean, rstd = normal(rng, (40,), statistic), (1 + rng.random(40)).astype(DTYPES[statistic])
    rstd[7] = 2.0**-41  # is treated apart, and so are those beside it
    weight = normal(rng, (columns,), statistic)
    times = 110 * 2**20 // (3 * x.nbytes) + 1
    few = compute(operator, dy, x, mean, rstd, weight)
    rows = [np.tile(dy, (times, 1)), np.tile(x, (times, 1)), np.tile(mean, times), np.tile(rstd, times), weight]
    sums = compute(operator, *rows)[1:]
    for gap, in_place, beyond_line in ((0, False, 16), (0, True, 32), (3, False, 16), (3, True, 16), (8, False, 48)):
        place = Place((40 * times, columns + gap), dtype, beyond_line=beyond_line)
        dx, found = place.array[:, :columns], [np.empty(columns, DTYPES[statistic]) for _ in range(2)]
        if in_place:
            dx[...] = rows[0]
        results = compute(operator, dx if in_place else rows[0], *rows[1:], out=(dx, *found))
        assert_same_bits(results[1:], sums)
        repeated = place.array.reshape(times, 40, columns + gap)[..., :columns]
        assert_same_bits([repeated], [np.broadcast_to(few[0], repeated.shape)])
        assert np.isnan(wide(place.array[:, columns:])).all()  # nothing was written to the gaps
        place.check_guards()


FEW_LONG = [*((rows, columns) for columns in (4096, 6151) for rows in (1, 2, 3, 8, 9)), (3, 1_000_003)]


@pytest.mark.parametrize(("size", "dtype"), in_turn(FEW_LONG, FLOATS, each=2))
def test_sums_of_few_long_rows_in_any_dtype_and_layout(operator, size, dtype):
    """Sums are written to the output directly if it allows that, else as partial sums: the bits are the same."""
    rows, columns = size
    tame = realistic(operator, (rows, columns), dtype, rows, "DOUBLE" if dtype == "DOUBLE" else F32)
    wild = [a.copy() for a in tame]
    wild[0][0, 1], wild[0][-1, -2], wild[0][:, 3] = np.inf, np.nan, -0.0
    wild[3][-1] = 2.0**-41

    beyond = [a.copy() for a in tame]  # a row whose sums leave the range of float32, and whose terms do not
    if dtype in (F32, BF16):
        beyond[0][-1, 4] = beyond[4][4] = 3e19

    def sums(call: list[Any], out: str, layout: Layout | None = None, mask: Sequence[bool] = (True, True)) -> list[Any]:
        places = [Place((columns,), out, layout) if wanted else None for wanted in mask]
        results = [None if place is None else place.array for place in places]
        if operator == "rms_norm_grad":
            del results[1]
            compute(operator, *call, out=(np.empty_like(call[0]), *results))
        else:
            dy, x, mean, rstd, weight = call
            outputs = (None, *results)
            descend.layer_norm_backward(dy, x, columns, mean, rstd, weight, None, (False, *mask), out=outputs)
        for place in filter(None, places):
            place.check_guards()
        return results

    for call, out in itertools.product([tame, wild, beyond], dict.fromkeys([dtype, F32, F16, BF16])):
        direct = sums(call, out)
        with_dx = (np.empty_like(call[0]), *(np.empty(columns, DTYPES[out]) for _ in range(2)))
        assert_same_bits(compute(operator, *call, out=with_dx)[1:], direct)
        if call is tame and operator == "layer_norm_backward":
            check(operator, [None, *direct], *call)
        for layout in (Layout((0,), (2,)), Layout((0,), (-1,))):
            assert_same_bits(sums(call, out, layout), direct)
        if operator == "layer_norm_backward":
            assert_same_bits(sums(call, out, mask=(True, False))[:1], direct[:1])
            assert_same_bits(sums(call, out, mask=(False, True))[1:], direct[1:])


@pytest.mark.parametrize(("shape", "dtype"), in_turn([(1, 2**20), (3, 2**20), (8, 2**18), (2, 2**19)], FLOATS))
def test_few_rows_too_long_for_the_caches(operator, shape, dtype):
    """What the call allocates begins where lines of cache do, and is stored past the caches; what begins elsewhere is
    not."""
    call = realistic(operator, shape, dtype, 3, "DOUBLE" if dtype == "DOUBLE" else F32)
    found = compute(operator, *call)
    check(operator, found, *call)
    places = [Place(result.shape, result.dtype) for result in found]
    compute(operator, *call, out=[place.array for place in places])
    assert_same_bits([place.array for place in places], found)
    for place in places:
        place.check_guards()


@pytest.mark.parametrize("shape", [(64, 1000), (3, 70_000), (2000, 20), (40, 17_000), (300, 3), (150, 1)])
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("source", [0, 1])
def test_in_place_on_every_path(operator, shape, dtype, source):
    call = realistic(operator, shape, dtype)
    expected = compute(operator, *call)
    results = compute(operator, *call, out=(call[source], None, None))
    assert results[0] is call[source]
    assert_same_bits(results, expected)


@pytest.mark.parametrize("columns", [1, 2, 3, 4, 5, 17, 300, 5000])
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("source", [0, 1])
def test_in_place_where_rows_must_be_computed_in_double(operator, columns, dtype, source):
    call = realistic(operator, (600, columns), dtype)
    call[3][::5] = 2.0**-41
    call[0][1::7, 0] = np.inf
    expected = compute(operator, *call)
    assert_same_bits(compute(operator, *call, out=(call[source], None, None)), expected)


# --- errors ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [F16, BF16])
@pytest.mark.parametrize("shape", [(512, 64), (256, 1000), (16, 4097), (40, 16_384), (4000, 24)])
def test_16_bit_results_are_the_correctly_rounded_golden(operator, shape, dtype):
    call = realistic(operator, shape, dtype)
    assert precision.correct_rounding_share(compute(operator, *call)[0], golden(operator, *call)[0]) >= 0.999


@pytest.mark.parametrize("dtype", [F32, F16, BF16])
def test_the_error_of_sums_does_not_grow_with_the_rows(operator, dtype):
    """Sums of positive terms: every rounding counts; a float32 sum over all rows would be a thousand times worse."""
    rng = np.random.default_rng(13)
    for rows, columns in itertools.product((32, 1000, 30_000, 400_000), (3, 8)):
        dy, x = ((1 + rng.random((rows, columns))).astype(np.float32).astype(DTYPES[dtype]) for _ in range(2))
        call = [dy, x, np.zeros(rows, np.float32), (1 + rng.random(rows)).astype(np.float32), np.ones(columns, "f")]
        for got, exact in zip(compute(operator, *call)[1:], golden(operator, *call)[1:], strict=True):
            assert got.dtype == np.float32
            assert np.abs(got / exact - 1).max() < 6 * 2.0**-24


@pytest.mark.parametrize("dtype", [F32, F16, BF16])
def test_the_error_of_means_does_not_grow_with_the_columns(operator, dtype):
    for columns in (32, 1000, 30_000, 1_000_000):
        rng = np.random.default_rng(columns)
        dy, x = ((1 + rng.random((1, columns))).astype(np.float32).astype(DTYPES[dtype]) for _ in range(2))
        call = [dy, x, np.zeros(1, np.float32), np.ones(1, np.float32), np.ones(columns, np.float32)]
        terms = np.abs(wide(x)) * 9 / 4 + np.abs(wide(dy)) + (1.5 if operator == "layer_norm_backward" else 0)
        assert_close(compute(operator, *call)[0], golden(operator, *call)[0], terms, 6.0)


# --- special values -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1e20, 1e-20, 1e30, 1e-30])
@pytest.mark.parametrize("columns", [2, 5, 64, 9000])
def test_large_and_small_float32(operator, size, columns):
    rng = np.random.default_rng(17)
    x, weight = normal(rng, (8, columns), scale=size), normal(rng, (columns,))
    for dy_size in (1.0, 1e-12):
        call = [normal(rng, (8, columns), scale=dy_size), x, *statistics(operator, x), weight]
        check(operator, compute(operator, *call), *call)


@pytest.mark.parametrize("rows", [1, 5, 300])
@pytest.mark.parametrize("columns", [2, 5, 40, 300, 9000])
def test_products_may_leave_the_range_where_results_do_not(operator, columns, rows):
    """dy * weight * (x - mean) of one row does, dy * weight * xhat does not."""
    rng = np.random.default_rng(43)
    x, weight, dy = normal(rng, (rows, columns), scale=1e3), normal(rng, (columns,)), normal(rng, (rows, columns))
    dy[rows // 2] *= np.float32(1e36)
    call = [dy, x, *statistics(operator, x), weight]
    results = compute(operator, *call)
    assert np.isfinite(results[0]).all()
    check(operator, results, *call)


@pytest.mark.parametrize("dtype", [F32, BF16])
@pytest.mark.parametrize("rows", [1, 5, 300])
@pytest.mark.parametrize("columns", [2, 5, 40, 300, 9000])
@pytest.mark.parametrize(("x_size", "dy_size", "weight_size"), [(1e7, 1e-26, 1.0), (1e-7, 1e-17, 1e-17)])
def test_what_is_subnormal_on_the_way_to_results_that_are_not(
    operator, x_size, dy_size, weight_size, columns, rows, dtype
):
    """mean(g * (x - mean)) * rstd^3, or mean(g * (x - mean)), of one row or of all."""
    rng = np.random.default_rng(47)
    for small in (slice(rows // 2, rows // 2 + 1), slice(None)):
        dy, weight = normal(rng, (rows, columns), dtype), normal(rng, (columns,), dtype, weight_size)
        x = (wide(dy) + wide(normal(rng, (rows, columns)))).astype(DTYPES[dtype])
        x[small] = (wide(x)[small] * x_size).astype(DTYPES[dtype])
        dy[small] = (wide(dy)[small] * dy_size).astype(DTYPES[dtype])
        call = [dy, x, *statistics(operator, x, 0.01 if operator == "layer_norm_backward" else 0.0), weight]
        check(operator, compute(operator, *call), *call)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("place", ["dy", "x", "mean", "rstd", "weight"])
@pytest.mark.parametrize(("rows", "columns"), SOME_TILES)
def test_infinities_and_nan_propagate(operator, dtype, value, place, rows, columns):
    if (operator, place) == ("rms_norm_grad", "mean"):
        place = "rstd"  # it has no mean
    rng = np.random.default_rng(19)
    at = ("dy", "x", "mean", "rstd", "weight").index(place)
    call = [normal(rng, s, dtype) for s in ((rows, columns), (rows, columns), (rows,), (rows,), (columns,))]
    call[at][{0: (2, columns // 2), 1: (2, columns // 2), 4: (columns // 2,)}.get(at, (2,))] = value
    results = compute(operator, *call)
    check(operator, results, *call)
    # Other rows do not notice what is in one row.
    if place != "weight":
        assert np.isfinite(np.delete(wide(results[0]), 2, axis=0)).all()
    if place == "x" or (place != "weight" and operator == "layer_norm_backward"):
        assert not np.isfinite(wide(results[0])[2]).any()
