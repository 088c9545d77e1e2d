"""The precision standard: its formulas, its verdicts, and what it does with infinities, NaN and awkward arrays."""

from __future__ import annotations

import math
import tracemalloc
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from descend import precision

bfloat16 = np.dtype(ml_dtypes.bfloat16)
DTYPES = [np.dtype(np.float16), bfloat16, np.dtype(np.float32), np.dtype(np.float64)]
moderate = st.floats(-1e6, 1e6)


def pairs(elements=moderate):
    shape = npst.array_shapes(max_dims=3, max_side=9)
    return shape.flatmap(lambda s: st.tuples(*(npst.arrays(np.float64, s, elements=elements) for _ in range(2))))


@given(pairs())
def test_errors_are_the_formulas(pair):
    actual, golden = pair
    errors = precision.measure(actual, golden)
    relative = np.abs(actual - golden) / (np.abs(golden) + 1e-7)
    assert errors.mere == pytest.approx(relative.mean(), rel=1e-12)
    assert errors.mare == relative.max()
    assert errors.rmse == pytest.approx(math.sqrt(((actual - golden) ** 2).mean()), rel=1e-12)
    assert (errors.elements, errors.mismatches) == (actual.size, 0)


@given(pairs(st.floats(width=32)))
def test_relative_errors_are_in_the_order_of_the_elements(pair):
    actual, golden = (np.asfortranarray(array) for array in pair)
    errors = np.concatenate([*precision.relative_errors(actual, golden), np.empty(0)])
    expected = [precision.measure(a, g).mare for a, g in zip(actual.flat, golden.flat, strict=True)]
    np.testing.assert_array_equal(errors, expected)


@given(pairs(), st.permutations([0, 1, 2]))
def test_strides_do_not_matter(pair, order):
    actual, golden = (np.broadcast_to(a, (2, 3, *a.shape)) for a in pair)
    expected = precision.measure(actual.copy(), golden.copy())
    axes = (*order, *range(3, actual.ndim)) if actual.ndim > 3 else tuple(order)
    turned = precision.measure(actual.transpose(axes)[::-1], np.asfortranarray(golden.transpose(axes))[::-1])
    assert turned.mare == expected.mare
    assert turned.mere == pytest.approx(expected.mere, rel=1e-12)


def test_known_numbers():
    errors = precision.measure(np.array([1.0, 2.0, 0.0]), np.array([1.0, 1.0, 1e-7]))
    assert errors.mare == pytest.approx(1 / (1 + 1e-7))
    assert errors.mere == pytest.approx((1 / (1 + 1e-7) + 0.5) / 3)
    assert errors.rmse == pytest.approx(math.sqrt((1 + 1e-14) / 3))


@pytest.mark.parametrize(
    ("dtype", "exponent"), [(np.float16, -10), (bfloat16, -7), (np.float32, -13), (np.float64, -44)]
)
def test_thresholds(dtype, exponent):
    t = 2.0**exponent
    assert precision.threshold(dtype) == t
    golden = np.ones(1000)
    assert precision.single_benchmark(golden.astype(dtype), golden).threshold == t
    # MERE at T fails, just below passes; MARE likewise at 10 T.
    for error, passed in ((0.99 * t, True), (1.01 * t, False)):
        assert precision.single_benchmark(golden + error, golden, dtype).passed is passed
    for error, passed in ((9.9 * t, True), (10.1 * t, False)):
        actual = golden.copy()
        actual[0] += error
        assert precision.single_benchmark(actual, golden, dtype).passed is passed


def test_a_correctly_rounded_result_passes():
    golden = np.random.default_rng(0).standard_normal(10000)
    for dtype in DTYPES:
        verdict = precision.single_benchmark(precision.round_to(golden, dtype), golden)
        assert verdict.passed
        assert precision.correct_rounding_share(precision.round_to(golden, dtype), golden) == 1.0


@pytest.mark.parametrize(("level", "limits"), [("L0", (10, 2, 2)), ("L1", (5, 1.5, 1.5)), ("L2", (2, 1.2, 1.2))])
def test_levels_of_the_double_benchmark(level, limits):
    golden = np.full(100, 1.0)
    theirs = golden + 1e-3
    assert precision.LEVELS[level] == limits
    for factor, passed in ((0.99 * limits[1], True), (1.01 * limits[1], False)):  # moves all three ratios
        verdict = precision.double_benchmark(golden + factor * 1e-3, theirs, golden, level)
        assert verdict.ratios.mere == pytest.approx(factor, rel=1e-6)
        assert verdict.passed is passed
        assert ("pass" if passed else "FAIL") in str(verdict)


def test_double_benchmark_where_someone_is_exact():
    golden = np.ones(4)
    exact, off = golden.copy(), golden + 1e-6
    assert precision.double_benchmark(exact, exact, golden).ratios == (1, 1, 1)
    assert precision.double_benchmark(exact, exact, golden, "L2").passed
    assert not precision.double_benchmark(off, exact, golden).passed
    assert precision.double_benchmark(exact, off, golden, "L2").passed


def test_double_benchmark_does_not_excuse_mismatches():
    golden = np.ones(4)
    broken = np.array([1, 1, 1, np.nan])
    assert not precision.double_benchmark(broken, broken, golden).passed
    assert precision.double_benchmark(golden, broken, golden).passed


def test_matching_infinities_and_nan_are_no_error():
    values = np.array([np.inf, -np.inf, np.nan, 1.5])
    errors = precision.measure(values.astype(np.float32), values)
    assert (errors.mere, errors.mare, errors.rmse, errors.mismatches) == (0, 0, 0, 0)
    assert precision.correct_rounding_share(values.astype(np.float16), values) == 1.0


@pytest.mark.parametrize(
    ("actual", "golden"),
    [(np.inf, 1.0), (1.0, np.inf), (np.inf, -np.inf), (np.nan, 1.0), (1.0, np.nan), (np.nan, np.inf), (np.inf, np.nan)],
)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.filterwarnings("error")
def test_mismatches_fail(actual, golden, dtype):
    verdict = precision.single_benchmark(np.array([0.5, actual]).astype(dtype), np.array([0.5, golden]))
    assert not verdict.passed
    assert verdict.errors.mismatches == 1
    assert verdict.errors.mare == verdict.errors.mere == verdict.errors.rmse == math.inf
    assert "1 of them infinite or NaN, not the same on both sides" in str(verdict)


@pytest.mark.parametrize("golden", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("dtype", [np.int32, np.uint8, np.bool_])
@pytest.mark.filterwarnings("error")
def test_integers_are_never_infinite_or_nan(golden, dtype):
    for actual in (0, 1, np.iinfo(dtype).min if dtype == np.int32 else 0):
        errors = precision.measure(np.array([actual, 1], dtype), [golden, 1.0])
        assert (errors.mismatches, errors.mare) == (1, math.inf)
    with pytest.raises(ValueError, match=f"{np.dtype(dtype)} is none"):
        precision.round_to([golden], dtype)
    with pytest.raises(ValueError, match=f"{np.dtype(dtype)} is none"):
        precision.correct_rounding_share(np.array([1], dtype), [1.0])


def test_a_golden_value_that_overflows_the_dtype_is_its_infinity():
    assert precision.single_benchmark(np.array([np.inf], np.float16), [65520.0]).passed
    assert not precision.single_benchmark(np.array([np.inf], np.float16), [65519.0]).passed
    assert precision.single_benchmark(np.array([65504], np.float16), [65520.0]).passed
    assert precision.single_benchmark(np.array([-np.inf]).astype(bfloat16), [-1e39]).passed
    assert not precision.single_benchmark(np.array([np.inf]).astype(bfloat16), [-1e39]).passed
    assert precision.single_benchmark(np.array([np.inf], np.float32), [70000.0], np.float16).passed


@pytest.mark.parametrize("shape", [(0,), (3, 0), ()])
def test_empty_and_scalar_arrays(shape):
    array = np.ones(shape, np.float32)
    verdict = precision.single_benchmark(array, array.astype(np.float64))
    assert verdict.passed
    assert verdict.errors == precision.Errors(array.size, 0.0, 0.0, 0.0, 0)
    assert precision.double_benchmark(array, array, array).passed
    assert precision.correct_rounding_share(array, array) == 1.0


def test_shapes_that_differ_are_refused():
    sentence = r"^The result has shape \[2, 3\], but its golden value has shape \[3, 2\]\.$"
    for call in (precision.measure, precision.single_benchmark, precision.correct_rounding_share):
        with pytest.raises(ValueError, match=sentence):
            call(np.ones((2, 3)), np.ones((3, 2)))
    with pytest.raises(ValueError, match="has shape"):  # never broadcast
        precision.measure(np.ones(1), np.ones(3))


def test_dtypes_without_a_threshold_are_refused():
    with pytest.raises(ValueError, match="no threshold for int64"):
        precision.single_benchmark(np.ones(3, np.int64), np.ones(3))
    with pytest.raises(ValueError, match="not for complex"):
        precision.measure(np.ones(3, complex), np.ones(3))
    with pytest.raises(ValueError, match="no level 'L3'"):
        precision.double_benchmark(np.ones(1), np.ones(1), np.ones(1), "L3")


def nearest(value: float, dtype: np.dtype) -> float:
    """Round to nearest, ties to even, by exact arithmetic over every finite value of a 16-bit dtype."""
    if not math.isfinite(value):
        return value
    finite = np.arange(0, 0x7C00 if dtype == np.float16 else 0x7F80, dtype=np.uint16).view(dtype).astype(np.float64)
    limit = 2.0**16 if dtype == np.float16 else 2.0**128
    grid = [*finite, limit]
    above = int(np.searchsorted(finite, abs(value)))
    high, low = grid[above] if above < len(grid) else math.inf, grid[max(above - 1, 0)]
    if abs(value) >= limit:
        rounded = limit
    elif high == abs(value) or above == 0:
        rounded = high
    else:
        middle = (Fraction(low) + Fraction(high)) / 2
        exact = Fraction(abs(value))
        even = low if (above - 1) % 2 == 0 else high
        rounded = low if exact < middle else high if exact > middle else even
    return math.copysign(math.inf if rounded == limit else rounded, value)


@given(st.floats(allow_nan=False), st.sampled_from([np.dtype(np.float16), bfloat16]))
def test_rounding_once(value, dtype):
    assert float(precision.round_to(value, dtype)) == nearest(value, dtype)


@given(st.integers(1, 0x7F7E), st.sampled_from([-1, 0, 1]), st.sampled_from([np.dtype(np.float16), bfloat16]))
def test_rounding_once_beside_ties(bits, side, dtype):
    bits = min(bits, 0x7BFE) if dtype == np.float16 else bits
    low, high = np.array([bits, bits + 1], np.uint16).view(dtype).astype(np.float64)
    value = (low + high) / 2 * (1 + side * 2.0**-50)  # in float32 both sides look like a tie
    assert float(precision.round_to(value, dtype)) == nearest(value, dtype)
    assert float(precision.round_to(-value, dtype)) == nearest(-value, dtype)


def test_share_of_correct_rounding():
    golden = np.linspace(1, 2, 1000)
    actual = golden.astype(np.float16)
    actual[:3] = np.nextafter(actual[:3], np.float16(10))
    assert precision.correct_rounding_share(actual, golden) == pytest.approx(0.997)


def test_memory_use_does_not_grow_with_the_arrays():
    actual = np.ones(4_000_000, np.float16)
    golden = np.ones(4_000_000, np.float32)
    tracemalloc.start()
    try:
        precision.measure(actual, golden)
        precision.correct_rounding_share(actual.reshape(2000, 2000).T, golden.reshape(2000, 2000))
        assert tracemalloc.get_traced_memory()[1] < 8_000_000
    finally:
        tracemalloc.stop()


def test_results_print_as_one_line():
    verdict = precision.single_benchmark(np.float32([1.0, 2.0]), [1.0, 2.0])
    assert str(verdict) == "pass: MERE 0, MARE 0, RMSE 0 over 2 elements (T = 2^-13)"
    double = precision.double_benchmark(np.float32([1.0]), np.float32([1.5]), [1.0], "L1")
    assert str(double) == "pass at L1: ours / theirs MARE 0 (at most 5), MERE 0 (at most 1.5), RMSE 0 (at most 1.5)"
