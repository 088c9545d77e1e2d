"""ScaledMaskedSoftmax: its contract row by row, its arithmetic against the float64 definition."""

from __future__ import annotations

import itertools
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import descend
from cases import (
    A2_TO_950,
    DTYPES,
    FLOATS,
    PRODUCTS,
    SMALLEST,
    UNIT,
    Array,
    Place,
    assert_same_bits,
    layouts,
    normal,
    phase1,
    placed,
    refused,
    run_two_phase,
    wide,
)
from descend import acl, precision, reference

OP = "scaled_masked_softmax"
F32, F16, BF16 = "FLOAT", "FLOAT16", "BFLOAT16"
# The page's table: one dtype for x and y on these products; the mask is BOOL.
PAGE = {F32: A2_TO_950, F16: A2_TO_950, BF16: A2_TO_950}
HERE = (*A2_TO_950, "host")
NOT_HERE = ("atlas-200i-500-a2", "atlas-inference", "atlas-training")
SHAPE = (2, 3, 4, 32)


def arrays(dtype: str = F32, shape: tuple[int, ...] = SHAPE, mask: tuple[int, ...] | None = None) -> list[Any]:
    """x, mask, scale, fix_triu_mask, y."""
    rng = np.random.default_rng(1)
    masked = np.asarray(rng.random(shape if mask is None else mask) < 0.3)
    return [normal(rng, shape, dtype), masked, 0.5, False, np.full(shape, np.nan, DTYPES[dtype])]


def check(y: Array, x: Array, mask: Any, scale: float, fix: bool = False) -> None:
    """Within a few roundings of each element; the exponent's own rounding grows with the size of its terms."""
    dtype = next(name for name in FLOATS if DTYPES[name] == y.dtype)
    fits = scale == 0 or not np.isfinite(scale) or 2.0**-126 <= abs(scale) < 2.0**128  # in float, with all its digits
    arithmetic = "FLOAT" if fits and dtype != "DOUBLE" else "DOUBLE"
    factor = scale if arithmetic == "DOUBLE" else float(np.float32(scale))
    x = np.ascontiguousarray(x)
    golden = reference.scaled_masked_softmax(x, mask, factor, fix)
    with np.errstate(all="ignore"):
        z = wide(x) * factor
        z = np.where(np.isfinite(z), np.abs(z), 0.0)
        roundings = 10 + 2 * z.max(axis=-1, keepdims=True, initial=0.0)
        bound = golden * (roundings * UNIT[arithmetic] * (1 + UNIT[dtype]) + UNIT[dtype])
        bound = bound + SMALLEST[dtype] + 2.0**-126 * UNIT[arithmetic]
    error = np.abs(wide(y) - golden)
    assert ((error <= bound) | (np.isnan(wide(y)) & np.isnan(golden))).all(), float(np.nanmax(error - bound))


def compute(*call: Any) -> Array:
    y: Array = descend.scaled_masked_softmax(*call[:4])
    return y


# --- the contract -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("product", HERE)
def test_every_combination_of_dtypes(product):
    with acl.product(product):
        for x, mask, y in itertools.product(FLOATS, DTYPES, FLOATS):
            call = arrays(x)
            call[1], call[4] = call[1].astype(DTYPES[mask]), call[4].astype(DTYPES[y])
            if mask == "BOOL" and x == y and (product == "host" or product in PAGE.get(x, ())):
                phase1(OP, *call)
            else:
                with refused(161002, OP, product):
                    phase1(OP, *call)


@pytest.mark.parametrize("product", PRODUCTS)
@pytest.mark.parametrize("dtype", FLOATS)
def test_every_row_computes_where_it_exists(product, dtype):
    call = arrays(dtype)
    if product in NOT_HERE:
        with acl.product(product), refused(561003, OP, product, *HERE):
            phase1(OP, *call)
    elif product != "host" and product not in PAGE.get(dtype, ()):
        with acl.product(product), refused(161002, OP, dtype):
            phase1(OP, *call)
    else:
        run_two_phase(OP, *call, product=product)
        check(call[4], *call[:4])


@pytest.mark.parametrize("product", PRODUCTS)
@pytest.mark.parametrize(("place", "name"), [(0, "x"), (1, "mask"), (4, "y")])
def test_null(product, place, name):
    call = arrays()
    call[place] = None
    with acl.product(product):
        if product == "host" and name == "mask":
            phase1(OP, *call)
        else:
            with refused(161001, OP, f" {name} is null"):
                phase1(OP, *call)


@pytest.mark.parametrize("product", HERE)
@pytest.mark.parametrize(
    ("place", "shape"),
    [(4, (2, 3, 4, 31)), (4, (6, 4, 32)), (1, (3, 1, 4, 32)), (1, (2, 1, 4, 31)), (1, (2, 1, 3, 32)), (1, (1,) * 5)],
)
def test_shapes(product, place, shape):
    call = arrays()
    call[place] = np.zeros(shape, call[place].dtype)
    with acl.product(product), refused(161002, OP, "mask" if place == 1 else "y", str(list(shape)), "[2, 3, 4, 32]"):
        phase1(OP, *call)


@pytest.mark.parametrize("product", A2_TO_950)
def test_what_only_host_takes(product):
    def refuse(call: list[Any], *words: str) -> None:
        with acl.product(product), refused(161002, OP, *words, product):
            phase1(OP, *call)
        run_two_phase(OP, *call, product="host")
        check(call[4], *call[:4])

    for mask in ((4, 32), (2, 3, 1, 32), (2, 3, 4, 1), (), (3, 4, 32)):
        refuse(arrays(mask=mask), "mask has shape", str(list(mask)), "[B or 1, N or 1, S1, S2]")
    for shape in ((32,), (3, 4, 32), (1, 2, 3, 4, 32)):
        refuse(arrays(shape=shape), "x has shape", "rank 4")
    refuse(arrays(shape=(1, 1, 2, 4097)), "4097", "from 1 to 4096")
    refuse(arrays(shape=(1, 1, 2, 0)), "[1, 1, 2, 0]", "from 1 to 4096")
    refuse(arrays(shape=(0, 1, 2, 0)), "[0, 1, 2, 0]", "from 1 to 4096")  # without rows, too
    call = arrays()
    call[3] = True
    refuse(call, "fix_triu_mask is true")


@pytest.mark.parametrize("mask", [(2, 3, 4, 32), (2, 1, 4, 32), (1, 3, 4, 32), (1, 1, 4, 32)])
def test_the_four_forms_of_the_mask(mask):
    for product in HERE:
        call = arrays(mask=mask)
        run_two_phase(OP, *call, product=product)
        check(call[4], *call[:4])


@pytest.mark.parametrize("shape", [(0, 3, 4, 32), (2, 0, 4, 32), (2, 3, 0, 32)])
def test_empty_tensors_are_fine(shape):
    for product in HERE:
        run_two_phase(OP, *arrays(shape=shape), product=product)


# --- the numbers ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", FLOATS)
def test_a_row_that_is_masked_as_a_whole(dtype):
    x = normal(np.random.default_rng(0), (3, 4, 50), dtype)
    mask = np.zeros((3, 4, 50), np.bool_)
    mask[1] = True
    y = compute(x, mask, 1.0, False)
    expected = precision.round_to(np.full((4, 50), 1 / 50), DTYPES[dtype])
    np.testing.assert_array_equal(y[1], expected)
    # If all that is not masked is far below -10000, the masked positions win: so the rule says.
    low = np.full((1, 4), -30000.0, np.float32)
    np.testing.assert_array_equal(compute(low, np.array([True, False, True, False]), 1.0, False), [[0.5, 0, 0.5, 0]])


COLUMNS = st.one_of(st.integers(0, 300), st.sampled_from([63, 64, 65, 256, 257, 1021, 2048, 2049, 4097, 8192, 8193]))


@st.composite
def problems(draw: st.DrawFn) -> tuple[Any, ...]:
    rank = draw(st.integers(1, 5))
    columns = draw(COLUMNS)
    shape = (
        *(draw(st.integers(0 if columns % 5 == 0 else 1, 4 if columns < 300 else 2)) for _ in range(rank - 1)),
        columns,
    )
    mask = tuple(d if draw(st.booleans()) else 1 for d in shape)[draw(st.integers(0, rank)) :]
    kind = draw(st.sampled_from(["mask", "mask", "mask", "none", "triangle"] if rank > 1 else ["mask", "none"]))
    dtype = draw(st.sampled_from(FLOATS))
    scale = draw(st.sampled_from([1.0, 0.125, -0.3, 0.0, 30.0]))
    return shape, mask, kind, dtype, scale, [draw(layouts(rank)) for _ in range(2)], draw(layouts(len(mask)))


@settings(deadline=None, max_examples=200)
@given(problem=problems(), seed=st.integers(0, 1000), density=st.sampled_from([0.0, 0.3, 1.0]))
def test_any_shape_mask_and_layout(problem, seed, density):
    shape, mask_shape, kind, dtype, scale, places, mask_place = problem
    rng = np.random.default_rng(seed)
    x = placed(normal(rng, shape, dtype), places[0])
    mask = placed(np.asarray(rng.random(mask_shape) < density), mask_place) if kind == "mask" else None
    y = Place(shape, dtype, places[1])
    assert descend.scaled_masked_softmax(x, mask, scale, kind == "triangle", out=y.array) is y.array
    check(y.array, x, mask, scale, kind == "triangle")
    y.check_guards()


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("columns", [*range(1, 9), 15, 16, 17, 31, 32, 33, 48, 63, 64, 65, 96, 127, 130, 200, 255, 256])
def test_rows_have_the_same_bits_however_they_lie(dtype, columns):
    """Rows without gaps are computed a tile at a time, with every kind of mask."""
    rng = np.random.default_rng(11)
    x = normal(rng, (3, 41, columns), dtype) * 10
    x[0, 5] = 2.0**40 if dtype in (F32, "DOUBLE") else 3e4  # far out
    mask = rng.random((1, 41, columns)) < 0.3
    for scale in (0.7, -1.5):
        dense = compute(x, mask, scale, False)
        check(dense, x, mask, scale)
        apart, out = (np.full((3, 41, columns + 3), np.nan, x.dtype) for _ in range(2))
        apart[..., :columns] = x
        descend.scaled_masked_softmax(apart[..., :columns], mask, scale, out=out[..., :columns])
        assert_same_bits([out[..., :columns]], [dense])
        assert np.isnan(wide(out[..., columns:])).all()
        whole = np.ascontiguousarray(np.broadcast_to(mask, x.shape))
        assert_same_bits([compute(x, whole, scale, False)], [dense])


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("columns", [5, 16, 40, 96, 100, 2081, 9001])
def test_infinities_and_nan(dtype, columns):
    x = normal(np.random.default_rng(5), (8, columns), dtype)
    mask = np.zeros((8, columns), np.bool_)
    x[1, 3], x[2, 3], x[3, 3] = np.inf, -np.inf, np.nan
    x[4, 3], x[5, 3], x[6, 3] = np.inf, -np.inf, np.nan
    mask[4:7, 3] = True
    x[7] = -np.inf
    y = compute(x, mask, 0.5, False)
    check(y, x, mask, 0.5)
    bad = np.isnan(y.astype(np.float32)).any(axis=-1)
    np.testing.assert_array_equal(bad, [False, True, False, True, False, False, False, True])
    assert y[2, 3] == 0
    y = compute(-x, mask, -0.5, False)
    check(y, -x, mask, -0.5)
    np.testing.assert_array_equal(np.isnan(y.astype(np.float32)).any(axis=-1), bad)
    # Infinity times 0 is NaN; where it is masked, nothing is infinite.
    bad = np.isnan(compute(x, mask, 0.0, False).astype(np.float32)).any(axis=-1)
    np.testing.assert_array_equal(bad, [False, True, True, True, False, False, False, True])
    for scale in (np.nan, -np.nan):
        assert np.isnan(compute(x[:1], mask[:1], scale, False).astype(np.float32)).all()


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("columns", [8193, 65_537, 131_072, 131_073, 200_001])
def test_long_rows(dtype, columns):
    """Of a row longer than 512 KiB in the type of the arithmetic not all exponentials are kept."""
    x = normal(np.random.default_rng(columns), (4, columns), dtype)
    x[1, columns // 2], x[2, -1] = np.nan, 300  # is computed in double; the largest comes last
    mask = np.random.default_rng(1).random((1, columns)) < 0.3
    for some in (mask, None):
        y = compute(x, some, 0.7, False)
        check(y, x, some, 0.7)
        out = Place((4, columns + 3), dtype)
        descend.scaled_masked_softmax(x, some, 0.7, out=out.array[:, :columns])
        assert_same_bits([out.array[:, :columns]], [y])
        assert np.isnan(wide(out.array[:, columns:])).all()
        out.check_guards()


@pytest.mark.parametrize("dtype", [F16, BF16])
@pytest.mark.parametrize("columns", [5, 64, 65, 100, 300, 2081])
def test_the_largest_score_of_any_16_bit_elements(dtype, columns):
    """Infinities are recognised by their bits."""
    rng = np.random.default_rng(7)
    bits = rng.integers(0, 1 << 16, (300, columns), np.uint16)
    most = 0x7BFF if dtype == F16 else 0x7F7F
    x = np.where(bits & 0x7FFF > most, 0x8000, bits).astype(np.uint16).view(DTYPES[dtype])
    for share in (0.0, 0.5, 0.99):
        mask = rng.random(x.shape) < share
        for scale in (1.0, -1.0, 1e-4, -1e-4, 0.0, -0.0):
            y = compute(x, mask, scale, False).astype(np.float64)
            scores = np.where(mask, -10000.0, x.astype(np.float64) * np.float32(scale))
            np.testing.assert_allclose(y.sum(axis=1), 1, atol=0.05)
            assert (y[scores == scores.max(axis=1, keepdims=True)] > 0).all()
            assert (y.max(axis=1) == y[np.arange(300), scores.argmax(axis=1)]).all()


@pytest.mark.parametrize("dtype", ["FLOAT", "DOUBLE"])
def test_the_exponential_over_its_whole_range(dtype):
    """In a row of two the smaller element is exp(x) / (1 + exp(x)): for x far below 0, exp(x) itself."""
    lowest = -110.0 if dtype == F32 else -750.0
    x = np.linspace(lowest, -40.0, 200_001).astype(DTYPES[dtype])
    y = compute(np.stack([x, np.zeros_like(x)], axis=-1), None, 1.0, False)[:, 0]
    golden = np.exp(x.astype(np.longdouble))
    unit = np.maximum(UNIT[dtype] * 2 * golden, SMALLEST[dtype])
    assert float(np.max(np.abs(y - golden) / unit)) <= 1.2


def test_scale_that_overflows_and_large_numbers():
    x = np.array([[1e38, 2e38, -3e38], [3e38, 3e38, 0.0]], np.float32)
    y = compute(x, None, 1.0, False)
    np.testing.assert_array_equal(y, [[0, 1, 0], [0.5, 0.5, 0]])
    assert np.isnan(compute(x, None, 1e3, False)).all()  # infinity less infinity


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_scales_that_float_does_not_hold(dtype, sign):
    """Only the product must be representable: a tiny scale and a huge element, or the reverse, lose nothing."""
    x, mask, *_ = arrays(dtype)
    tiny, large = {F32: (1e-38, 5e37), F16: (1e-5, 1e4), BF16: (1e-38, 5e37), "DOUBLE": (1e-300, 1e300)}[dtype]
    for scale in (1e300, 1e39, 3.5e38, 1e-38, 1e-40, 1e-46, 1e-300, 5e-324):
        call = (x * x.dtype.type(tiny if scale > 1 else large), mask, sign * scale)
        check(compute(*call, False), *call)
        result = np.full_like(x, np.nan)
        run_two_phase(OP, *call, False, result)
        assert_same_bits([result], [compute(*call, False)])
    np.testing.assert_array_equal(
        wide(compute(np.zeros_like(x), None, sign * 1e300, False)), wide(x.dtype.type(1 / 32))
    )
    assert np.isnan(wide(compute(np.zeros_like(x), None, sign * np.inf, False))).all()


@pytest.mark.parametrize("dtype", [F32, BF16, "DOUBLE"])
@pytest.mark.parametrize("columns", [1, 40, 9000])
def test_a_row_of_the_lowest_number(dtype, columns):
    """As in a padded row whose mask was added. The product with the scale has a rounding error far above 1."""
    x = np.full((3, columns), float(ml_dtypes.finfo(DTYPES[dtype]).min)).astype(DTYPES[dtype])
    x[1, ::2] = 0
    x[2] *= x.dtype.type(-1)
    for size in (48, 80, 96):
        scale = size**-0.5
        np.testing.assert_array_equal(
            compute(x, None, scale, False), reference.scaled_masked_softmax(x, None, scale).astype(x.dtype)
        )


@pytest.mark.parametrize("dtype", [F32, "DOUBLE"])
def test_numbers_far_from_0(dtype):
    """On both sides of where the differences to the largest number are no longer those of unrounded products."""
    rng = np.random.default_rng(5)
    for exponent in (0, 10, 20, 28, 29, 30, 31, 40, 100):
        x = (rng.uniform(0.5, 1, (50, 60)) * 2.0 ** (exponent + (29 if dtype == "DOUBLE" else 0))).astype(DTYPES[dtype])
        y = compute(x, None, 0.7, False).astype(np.float64)
        assert np.isfinite(y).all()
        np.testing.assert_allclose(y.sum(axis=1), 1, rtol=1e-5)
        assert (y[np.arange(50), x.argmax(axis=1)] == y.max(axis=1)).all()


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("columns", [3, 49, 130, 700])
@pytest.mark.parametrize("scale", [1.0, -1.0])
def test_rows_far_from_0_beside_others(dtype, columns, scale):
    """Rows that are all masked, near -10000, far from 0 or have an infinity do not change other rows."""
    rng = np.random.default_rng(columns)
    scores = rng.normal(size=(1, 1, 70, columns))
    scores[..., 2::7, :] -= 10_000
    scores[..., 3::7, :] += 3000
    scores[..., 4::7, :] *= 2000
    scores[..., 5::7, :] += 1024  # some are far, some not
    scores[..., 6::7, 0] = -np.inf
    x, mask = (scores * scale).astype(DTYPES[dtype]), rng.random(scores.shape) < 0.3
    mask[..., 1::7, :] = True
    result = compute(x, mask, scale, False)
    alone = [compute(x[..., [r], :], mask[..., [r], :], scale, False) for r in range(x.shape[2])]
    assert_same_bits([result], [np.concatenate(alone, axis=2)])
    golden = reference.scaled_masked_softmax(x, mask, scale)
    if dtype in (F16, BF16):
        assert precision.correct_rounding_share(result, golden) >= 0.999
    else:
        np.testing.assert_allclose(result, golden, *((2e-6, 1e-37) if dtype == F32 else (1e-12, 0)))


@pytest.mark.parametrize("dtype", FLOATS)
def test_in_place(dtype):
    call = arrays(dtype, (2, 3, 40, 70))
    expected = compute(*call)
    descend.scaled_masked_softmax(*call[:4], out=call[0])
    assert_same_bits([call[0]], [expected])
    with acl.product("host"), refused(161002, OP, "y overlaps x"):
        phase1(OP, *call[:4], call[0][::-1])


# --- other witnesses --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("shape", [(2, 2, 64, 64), (1, 2, 32, 1024)])
def test_at_least_as_exact_as_pytorch(shape, dtype):
    torch = pytest.importorskip("torch")
    ratios = []
    for seed in range(20):
        torch.manual_seed(seed)
        x = torch.randn(shape).to(getattr(torch, dtype))
        mask = torch.rand(shape[0], 1, *shape[2:]) < 0.2
        ours = descend.scaled_masked_softmax(x, mask, 0.25)
        theirs = torch.softmax((x * 0.25).masked_fill(mask, -10000.0), -1)
        golden = reference.scaled_masked_softmax(x.double().numpy(), mask.numpy(), 0.25)
        name = {"float32": F32, "float16": F16, "bfloat16": BF16}[dtype]
        found = precision.double_benchmark(
            ours.double().numpy(), theirs.double().numpy(), golden, "L2", DTYPES[name]
        ).ratios
        ratios.append(found)
        assert found.rmse <= 1.01, (seed, found)
    medians = [float(np.median(column)) for column in zip(*ratios, strict=True)]
    assert max(medians) <= 1.001, medians


@pytest.mark.parametrize("dtype", [F16, BF16])
def test_elements_are_the_correctly_rounded_ones(dtype):
    call = arrays(dtype, (2, 4, 64, 512))
    assert precision.correct_rounding_share(compute(*call), reference.scaled_masked_softmax(*call[:4])) >= 0.999


def test_results_of_the_callers_family():
    torch = pytest.importorskip("torch")
    x, mask, *_ = arrays()
    result = descend.scaled_masked_softmax(torch.tensor(x), torch.tensor(mask), 0.5)
    assert isinstance(result, torch.Tensor)
    assert_same_bits([result.numpy()], [compute(x, mask, 0.5, False)])
