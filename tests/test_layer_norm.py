"""LayerNorm: its contract row by row, its arithmetic against the float64 definition."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import descend
from cases import (
    DTYPES,
    FLOATS,
    PRODUCTS,
    UNIT,
    Layout,
    Place,
    arithmetic_of,
    assert_close,
    assert_same_bits,
    in_turn,
    layouts,
    normal,
    phase1,
    placed,
    refused,
    run_two_phase,
    wide,
)
from descend import acl, precision, reference
from norm_gradients import LONG_AND_MANY
from test_layer_norm_backward import BF16, DEVICE, F16, F32, HERE
from test_rms_norm_grad import shapes

OP = "layer_norm"
TENSORS = ("input", "weight", "bias", "out", "mean_out", "rstd_out")
OUTPUTS = TENSORS[3:]
PLACES = ("input", "normalized_shape", "weight", "bias", "eps", *OUTPUTS)


def allowed(product: str, dtypes: tuple[str | None, ...]) -> bool:
    """The table; None stands for an absent tensor."""
    if any(d is not None and d not in DEVICE[product] for d in dtypes):
        return False
    if product == "host":
        return True
    main, weight, bias, out = dtypes[:4]
    parameters = {d for d in (weight, bias) if d is not None}
    return main == out and len(parameters) <= 1 and parameters <= {main, F32}


def tensors(
    shape: tuple[int, ...] = (2, 3, 16), normalized: int = 1, dtypes: tuple[str, ...] = (F32,) * 6, seed: int = 1
) -> dict[str, Any]:
    """The six tensors of a call by name, the outputs NaN."""
    rng = np.random.default_rng(seed)
    split = len(shape) - normalized
    row, statistics = shape[split:], shape[:split] + (1,) * normalized
    wanted = (shape, row, row, shape, statistics, statistics)
    made: dict[str, Any] = {
        n: normal(rng, s).astype(DTYPES[d]) for n, s, d in zip(TENSORS, wanted, dtypes, strict=True)
    }
    for name in OUTPUTS:
        made[name].view(f"u{made[name].dtype.itemsize}")[...] = np.iinfo(f"u{made[name].dtype.itemsize}").max
    return made


def arguments(call: dict[str, Any], normalized: Any = None, eps: float = 1e-5) -> list[Any]:
    """A call's arguments in order. normalized_shape defaults to the shape of weight or bias."""
    if normalized is None:
        normalized = next(call[n].shape for n in ("weight", "bias") if call[n] is not None)
    return [call["input"], normalized, call["weight"], call["bias"], eps, *(call[n] for n in OUTPUTS)]


def compute(call: list[Any]) -> tuple[Any, Any, Any]:
    out, mean, rstd = descend.layer_norm(*call)
    return out, mean, rstd


def check(results: Any, call: list[Any], roundings: float = 6.0) -> None:
    """The results that are there against the definition: the error of a mean is one of the deviation, too."""
    x, normalized, weight, bias, eps = call
    x = np.ascontiguousarray(x)  # NumPy sums in pairs, and so exactly, only along contiguous memory
    golden = reference.layer_norm(x, normalized, weight, bias, eps)
    row = tuple(range(x.ndim - len(normalized), x.ndim))
    arithmetic = arithmetic_of(*[a for a in (x, weight, bias, *results) if a is not None])
    with np.errstate(all="ignore"):
        # In DOUBLE the definition, too, has a mean that is rounded.
        lost = np.abs(golden[1] * golden[2]) if arithmetic == "DOUBLE" else 0.0
        xhat = np.abs((wide(x) - golden[1]) * golden[2]) + 1 + lost
        terms = xhat * (1 if weight is None else np.abs(wide(weight))) + (0 if bias is None else np.abs(wide(bias)))
        largest = np.abs(wide(x)).max(axis=row, keepdims=True, initial=0)
        statistics = (largest, golden[2] * (1 + lost))
    if arithmetic == "DOUBLE":
        roundings *= 2  # the definition rounds as often
    assert_close(results[0], golden[0], terms, roundings, arithmetic)
    for result, exact, term in zip(results[1:], golden[1:], statistics, strict=True):
        if result is not None:
            assert_close(result, exact.reshape(result.shape), term.reshape(result.shape), roundings, arithmetic)


# --- the contract ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("product", HERE)
def test_every_combination_of_floating_dtypes(product):
    pool = {d: tensors(dtypes=(d,) * 6) for d in FLOATS}
    with acl.product(product):
        for dtypes in itertools.product(FLOATS, repeat=6):
            call = arguments({name: pool[d][name] for name, d in zip(TENSORS, dtypes, strict=True)})
            if allowed(product, dtypes):
                phase1(OP, *call)
            else:
                with refused(161002, OP, product):
                    phase1(OP, *call)


@pytest.mark.parametrize("product", HERE)
def test_every_combination_without_some_tensors(product):
    """weight, bias, mean and rstd: each may be null, whatever the others are."""
    optional = (1, 2, 4, 5)
    pool = {d: tensors(dtypes=(d,) * 6) for d in FLOATS}
    with acl.product(product):
        for absent in itertools.product([True, False], repeat=4):
            missing = {i for i, gone in zip(optional, absent, strict=True) if gone}
            for main, weight, bias in itertools.product(FLOATS, repeat=3):
                dtypes = [main, weight, bias, main, F16, F32]
                call = {n: pool[d][n] for n, d in zip(TENSORS, dtypes, strict=True)}
                call |= {TENSORS[i]: None for i in missing}
                there = tuple(None if i in missing else d for i, d in enumerate(dtypes))
                if allowed(product, there):
                    phase1(OP, *arguments(call, (16,)))
                else:
                    with refused(161002, OP, product):
                        phase1(OP, *arguments(call, (16,)))


@pytest.mark.parametrize("product", HERE)
@pytest.mark.parametrize("wrong", [d for d in DTYPES if d not in FLOATS])
def test_no_other_dtype_in_any_place(product, wrong):
    for name in TENSORS:
        call = tensors()
        call[name] = np.zeros(call[name].shape, DTYPES[wrong])
        with acl.product(product), refused(161002, OP, f" {name} has dtype {wrong}, but must be "):
            phase1(OP, *arguments(call))


@pytest.mark.parametrize("main", [F32, F16, BF16])
@pytest.mark.parametrize("parameter", ["as input", F32, None])
@pytest.mark.parametrize("product", HERE)
def test_every_row_computes_where_it_exists(main, parameter, product):
    kind = main if parameter == "as input" else parameter or F32
    for mean, rstd in itertools.product(DEVICE[product], repeat=2):
        call = tensors((3, 4, 48), 1, (main, kind, kind, main, mean, rstd))
        if parameter is None:
            call["weight"] = call["bias"] = None
        values = arguments(call, (48,))
        there = (main, kind if parameter else None, kind if parameter else None, main, mean, rstd)
        if not allowed(product, there):
            with acl.product(product), refused(161002, OP):
                phase1(OP, *values)
            continue
        run_two_phase(OP, *values, product=product)
        check(values[5:], values[:5])


@pytest.mark.parametrize("product", HERE)
@pytest.mark.parametrize("absent", list(itertools.product([True, False], repeat=4)))
def test_what_is_null_is_not_needed(product, absent):
    names = ("weight", "bias", "mean_out", "rstd_out")
    for shape, normalized in (((5, 2, 8), 2), ((2, 9000), 1)):
        call = tensors(shape, normalized)
        full = arguments(call)
        call |= {name: None for name, gone in zip(names, absent, strict=True) if gone}
        values = arguments(call, shape[len(shape) - normalized :])
        run_two_phase(OP, *values, product=product)
        check(values[5:], values[:5])
        # No weight is a weight of ones, no bias one of zeros.
        full[2] = np.ones_like(full[2]) if absent[0] else full[2]
        full[3] = np.zeros_like(full[3]) if absent[1] else full[3]
        expected = compute(full[:5])
        for value, exact in zip(values[5:], expected, strict=True):
            if value is not None:
                assert_same_bits([value], [exact])


@pytest.mark.parametrize("product", ["atlas-200i-500-a2"])
def test_products_without_the_operator(product):
    with acl.product(product), refused(561003, OP, product, *HERE):
        phase1(OP, *arguments(tensors()))


@pytest.mark.parametrize("product", PRODUCTS)
@pytest.mark.parametrize("name", ["input", "normalized_shape", "eps", "out"])
def test_null(product, name):
    values = arguments(tensors())
    values[PLACES.index(name)] = None
    with acl.product(product), refused(161001, OP, f" {name} is null"):
        phase1(OP, *values)


SHAPES_TO_REFUSE = [
    ("weight", (15,), "[15]", "[16]"),
    ("weight", (1, 16), "[1, 16]", "[16]"),
    ("weight", (), "[]", "[16]"),
    ("bias", (3, 16), "[3, 16]", "[16]"),
    ("bias", (1,), "[1]", "[16]"),
    ("out", (6, 16), "[6, 16]", "[2, 3, 16]"),
    ("out", (2, 3, 15), "[2, 3, 15]", "[2, 3, 16]"),
    ("mean_out", (2,), "[2]", "[2, 3]"),
    ("mean_out", (2, 3, 16), "[2, 3, 16]", "[2, 3]"),
    ("mean_out", (), "[]", "[2, 3]"),
    ("rstd_out", (7,), "[7]", "[2, 3]"),
    ("rstd_out", (0, 6), "[0, 6]", "[2, 3]"),
]


@pytest.mark.parametrize("product", HERE)
def test_shapes(product):
    with acl.product(product):
        for name, shape, *words in SHAPES_TO_REFUSE:
            with refused(161002, OP, name, *words):
                phase1(OP, *arguments(tensors() | {name: np.zeros(shape, np.float32)}, (16,)))
        for normalized, *words in (
            ((), "has 0 numbers", "1 to 8"),
            ((1,) * 9, "has 9 numbers", "1 to 8"),
            ((1, 2, 3, 16), "[1, 2, 3, 16]", "last dimensions", "[2, 3, 16]"),
            ((2, 16), "[2, 16]", "last dimensions", "[2, 3, 16]"),
            ((-16,), "[-16]", "last dimensions", "[2, 3, 16]"),
        ):
            with refused(161002, OP, "normalized_shape", *words):
                phase1(OP, *arguments(tensors(), normalized))
        # Statistics of any shape of that many elements, each its own; any rank from 1 to 8.
        statistics = {"mean_out": np.zeros(6, np.float32), "rstd_out": np.zeros((1, 3, 2), np.float32)}
        phase1(OP, *arguments(tensors() | statistics))
        for rank in range(1, 9):
            for k in range(1, rank + 1):
                phase1(OP, *arguments(tensors((1,) * (rank - 1) + (16,), k)))
        scalar = {n: np.zeros((), np.float32) for n in TENSORS}
        with refused(161002, OP, "input has rank 0"):
            phase1(OP, *arguments(scalar, (1,)))


@pytest.mark.parametrize("product", HERE)
@pytest.mark.parametrize("eps", [-1e-300, -1.0, -np.inf, np.nan])
def test_eps_must_not_be_negative(product, eps):
    with acl.product(product), refused(161002, OP, "eps is"):
        phase1(OP, *arguments(tensors(), eps=eps))


def test_eps_may_be_any_number():
    call = arguments(tensors())[:5]
    for eps in (0, 0.0, 1, np.float32(0.5), np.float64(1e-30), np.int64(2), 1e30, -0.0):
        call[4] = eps
        check(compute(call), call)
    for eps in ("1e-6", True, [1e-6]):
        with pytest.raises(TypeError, match=r"^layer_norm: eps is a \w+, but must be a number\.$"):
            descend.layer_norm(*call[:4], eps)


def test_order_of_checks():
    call = tensors()
    call["input"] = None
    call["weight"] = np.zeros(3, np.int32)
    call["out"] = np.zeros((2, 15), np.float32)
    call["mean_out"] = call["out"][:, 0]
    with acl.product("atlas-200i-500-a2"), refused(161001, OP, "input is null"):
        phase1(OP, *arguments(call, (5,), -1))
    call["input"] = np.zeros((2, 16), np.float32)
    with acl.product("atlas-200i-500-a2"), refused(561003, OP):
        phase1(OP, *arguments(call, (5,), -1))
    with acl.product("atlas-a3"):
        with refused(161002, OP, "weight has dtype INT32"):
            phase1(OP, *arguments(call, (5,), -1))
        call["weight"] = np.zeros(16, np.float32)
        with refused(161002, OP, "out overlaps mean_out"):
            phase1(OP, *arguments(call, (5,), -1))
        call["mean_out"] = np.zeros(2, np.float32)
        with refused(161002, OP, "normalized_shape is [5]"):
            phase1(OP, *arguments(call, (5,), -1))
        with refused(161002, OP, "rstd_out has shape [2, 3, 1]"):
            phase1(OP, *arguments(call, (16,), -1))
        call["rstd_out"] = np.zeros(2, np.float32)
        with refused(161002, OP, "out has shape [2, 15]"):
            phase1(OP, *arguments(call, (16,), -1))
        call["out"] = np.zeros((2, 16), np.float32)
        with refused(161002, OP, "eps"):
            phase1(OP, *arguments(call, (16,), -1))
        phase1(OP, *arguments(call, (16,), 0))


def test_nothing_is_written_where_a_call_fails():
    places = [Place((2, 3, 16)), Place((2, 3, 1)), Place((2, 3, 1))]
    out = tuple(p.array for p in places)
    good = arguments(tensors())[:5]
    for at, wrong in ((0, None), (0, good[0].astype(np.int8)), (1, (3,)), (2, good[2][:3]), (4, -1.0)):
        bad = list(good)
        bad[at] = wrong
        with pytest.raises(ValueError, match=OP):
            descend.layer_norm(*bad, out=out)
        with pytest.raises(ValueError, match=OP):
            phase1(OP, *bad, *out)
    phase1(OP, *good, *out)
    for place in places:
        place.check_untouched()


# --- the numbers ----------------------------------------------------------------------------------------------------


def test_by_hand():
    x = np.array([[1, 3], [10, 14]], np.float32)
    weight, bias = np.array([2, 3], np.float32), np.array([0, 100], np.float32)
    out, mean, rstd = descend.layer_norm(x, 2, weight, bias, eps=0.0)
    np.testing.assert_array_equal(mean, [[2], [12]])
    np.testing.assert_array_equal(rstd, [[1], [0.5]])
    np.testing.assert_array_equal(out, [[-2, 103], [-2, 103]])
    # eps is added to the variance: 1 + 3.
    np.testing.assert_array_equal(descend.layer_norm(x[:1], 2, eps=3.0)[0], [[-0.5, 0.5]])


@settings(max_examples=120, deadline=None)
@given(st.data())
def test_any_shape_layout_and_dtype_on_host(data):
    shape = data.draw(shapes(), "shape")
    normalized = data.draw(st.integers(1, len(shape)), "normalized")
    dtypes = tuple(data.draw(st.sampled_from(FLOATS), name) for name in TENSORS)
    eps = data.draw(st.sampled_from([1e-5, 1e-3, 1.0]), "eps")
    call = tensors(shape, normalized, dtypes, data.draw(st.integers(0, 2**32), "seed"))
    row = call["weight"].shape
    where = {n: data.draw(layouts(a.ndim), n) for n, a in call.items()}
    places = {n: Place(call[n].shape, call[n].dtype, where[n]) for n in OUTPUTS}
    call = {n: places[n].array if n in OUTPUTS else placed(a, where[n]) for n, a in call.items()}
    for name in ("weight", "bias", "mean_out", "rstd_out"):
        if data.draw(st.sampled_from([False, False, True]), f"no {name}"):
            call[name] = None
    values = arguments(call, row, eps)
    run_two_phase(OP, *values)
    check(values[5:], values[:5])
    for name, place in places.items():
        place.check_guards() if call[name] is not None else place.check_untouched()


@pytest.mark.parametrize(("shape", "dtype"), in_turn(LONG_AND_MANY, FLOATS))
def test_very_long_and_very_many_rows(shape, dtype):
    call = tensors(shape, 1, (dtype,) * 4 + (F32, F32))
    places = [Place(shape, dtype), Place(shape[:1]), Place(shape[:1])]
    call.update(zip(OUTPUTS, (p.array for p in places), strict=True))
    values = arguments(call)
    run_two_phase(OP, *values)
    check(values[5:], values[:5])
    for place in places:
        place.check_guards()
    # In place.
    expected = places[0].array.copy()
    descend.layer_norm(*values[:5], out=(values[0], None, None))
    assert_same_bits([values[0]], [expected])


@pytest.mark.parametrize("dtype", [F16, BF16])
@pytest.mark.parametrize("shape", [(512, 64), (256, 1000), (16, 4097)])
def test_16_bit_results_are_the_correctly_rounded_golden(shape, dtype):
    call = arguments(tensors(shape, 1, (dtype,) * 6))[:5]
    assert precision.correct_rounding_share(compute(call)[0], reference.layer_norm(*call)[0]) >= 0.999


@pytest.mark.parametrize("dtype", [F32, F16, BF16])
def test_the_error_of_the_statistics_does_not_grow_with_the_columns(dtype):
    for columns in (2, 32, 2048, 30_000, 1_000_000):
        x = normal(np.random.default_rng(columns), (3, columns), dtype) + DTYPES[dtype].type(3)
        _, mean, rstd = descend.layer_norm(x, columns)
        _, golden_mean, golden_rstd = reference.layer_norm(x, columns)
        assert mean.dtype == rstd.dtype == np.float32
        assert np.abs(mean / golden_mean - 1).max() < 2 * UNIT[F32]
        assert np.abs(rstd / golden_rstd - 1).max() < 3 * UNIT[F32]


OFFSETS = [(1e4, 1.0), (-1e6, 1.0), (1e4, 1e-2), (1e30, 1e25), (-3.0, 1.0), (1.0, 1.0), (0.0, 1e-30), (0.0, 1e25)]


@pytest.mark.parametrize("columns", [2, 31, 1000, 2049, 9000, 70_000])
@pytest.mark.parametrize(("offset", "size"), OFFSETS)
def test_mean_and_variance_do_not_cancel(columns, offset, size):
    """An input far from 0 keeps its precision; out does not suffer from the rounding of the mean that is stored."""
    x = (offset + size * np.random.default_rng(7).standard_normal((5, columns))).astype(np.float32)
    call = [x, (columns,), None, None, 0.0]
    check(compute(call), call)


@pytest.mark.parametrize("dtype", [F32, "DOUBLE"])
@pytest.mark.parametrize("columns", [40, 1000, 2048, 5000, 20_000])
def test_a_row_that_begins_far_from_where_it_goes_on(columns, dtype):
    """The variance is computed around a value from the first columns. Here that is a bad choice."""
    rng = np.random.default_rng(3)
    x = rng.standard_normal((6, columns))
    x[:, :32] += np.array([0, 1e2, 1e4, -1e6, 1e12, 1e-3])[:, None]
    x[:, 2048:] += 1e3
    call = [x.astype(DTYPES[dtype]), (columns,), None, None, 1e-5]
    check(compute(call), call)
    # All other columns are equal: the variance comes from the first columns alone.
    x[:, 32:] = 1e4
    call[0] = x.astype(DTYPES[dtype])
    check(compute(call), call)


@pytest.mark.parametrize("columns", [1, 3, 31, 64, 3000, 70_000])
def test_constant_rows(columns):
    for value in (0.0, 3.0, 1 / 3, 1e30, 3e38, -1e-40):
        x = np.full((4, columns), value, np.float32)
        out, mean, rstd = descend.layer_norm(x, columns)
        np.testing.assert_array_equal(mean, np.full((4, 1), np.float32(value)))
        np.testing.assert_allclose(rstd, 1 / np.sqrt(1e-5), rtol=1e-6)
        assert not out.any()
    with np.errstate(all="ignore"):
        out, mean, rstd = descend.layer_norm(x, columns, eps=0.0)
    assert np.isposinf(rstd).all()
    assert np.isnan(out).all()


@pytest.mark.parametrize("columns", [2, 64, 9000])
def test_values_that_float32_cannot_square(columns):
    x = np.full((3, columns), 3e38, np.float32)
    x[:, ::2] *= -1
    x[1] *= np.float32(1e-10)
    x[2] *= np.float32(1e-60**0.5 * 1e-30)
    for eps in (0.0, 1e-5):
        call = [x, (columns,), None, None, eps]
        check(compute(call), call)


def test_empty_tensors():
    for product in HERE:
        for shape, normalized in (((0, 16), 1), ((3, 0, 16), 1), ((0, 3, 0), 2), ((0, 5, 4), 2)):
            call = tensors(shape, normalized)
            run_two_phase(OP, *arguments(call), product=product)
        # Rows of nothing: mean 0, rstd NaN.
        for shape, normalized in (((3, 0), 1), ((0,), 1), ((3, 0, 5), 2)):
            call = tensors(shape, normalized)
            mean, rstd = Place(call["mean_out"].shape), Place(call["rstd_out"].shape)
            run_two_phase(OP, *arguments(call | {"mean_out": mean.array, "rstd_out": rstd.array}), product=product)
            np.testing.assert_array_equal(mean.array, np.zeros(mean.array.shape))
            assert np.isnan(rstd.array).all()
            mean.check_guards()
            rstd.check_guards()
            run_two_phase(OP, *arguments(call | {"mean_out": None, "rstd_out": None}), product=product)
    out, mean, rstd = descend.layer_norm(np.zeros((0, 5), np.float16), 5)
    assert (out.shape, mean.shape, rstd.shape) == ((0, 5), (0, 1), (0, 1))


def test_results_that_the_call_allocates():
    for dtype, statistic in ((F32, F32), (F16, F32), (BF16, F32), ("DOUBLE", "DOUBLE")):
        x = tensors((2, 3, 4, 5), 2, (dtype,) * 6)["input"]
        for normalized, statistics in (((5,), (2, 3, 4, 1)), ((4, 5), (2, 3, 1, 1)), ((2, 3, 4, 5), (1, 1, 1, 1))):
            out, mean, rstd = descend.layer_norm(x, normalized)
            assert (out.dtype, mean.dtype, rstd.dtype) == (x.dtype, DTYPES[statistic], DTYPES[statistic])
            assert (out.shape, mean.shape, rstd.shape) == (x.shape, statistics, statistics)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("columns", [1, 3, 7, 70, 9000, 20_000])
def test_infinities_and_nan_propagate(dtype, value, columns):
    call = tensors((5, columns), 1, (dtype,) * 6)
    values = arguments(call)[:5]
    clean = compute(values)
    values[0][2, columns // 2] = value
    out, mean, rstd = compute(values)
    assert np.isnan(wide(out[2])).all()
    assert np.isnan(rstd[2]).all()
    np.testing.assert_array_equal(wide(mean[2]), [value])
    others = [0, 1, 3, 4]
    assert_same_bits([a[others] for a in (out, mean, rstd)], [a[others] for a in clean])
    for place in (2, 3):
        values = arguments(tensors((5, columns), 1, (dtype,) * 6))[:5]
        values[place][columns // 2] = value
        check(compute(values), values)


@pytest.mark.parametrize("columns", [1, 2, 15, 16, 17, 33, 80])
def test_nan_in_a_parameter_stays_where_it_is(columns):
    """A NaN whose bits are all ones, which rounding to BFLOAT16 must not carry past the exponent."""
    x = normal(np.random.default_rng(29), (19, columns), BF16)
    for column, name in itertools.product(range(columns), ("weight", "bias")):
        parameters = {"weight": np.ones(columns, np.float32), "bias": np.zeros(columns, np.float32)}
        parameters[name].view(np.uint32)[column] = 0x7FFFFFFF
        out, _, _ = descend.layer_norm(x, (columns,), **parameters)
        np.testing.assert_array_equal(np.isnan(wide(out)).all(axis=0), np.arange(columns) == column)


# --- memory ---------------------------------------------------------------------------------------------------------


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_in_place(data):
    """Each output in each input of its shape: out on all three, the statistics where rows have one element."""
    output = data.draw(st.sampled_from(OUTPUTS), "output")
    source = data.draw(st.sampled_from(TENSORS[:3]), "source")
    n = data.draw(st.sampled_from([1, 2, 17, 64, 130]), "n")
    shape = {"out": (3, n), "mean_out": (n, 1), "rstd_out": (n, 1)}[output]
    if source != "input":
        shape = (n,) if output == "out" else (n, n)
    call = tensors(shape, 1, tuple(data.draw(st.sampled_from(FLOATS), name) for name in TENSORS))
    call[source] = call[source].astype(call[output].dtype)
    if output != "out":
        statistics = (n, 1) if source == "input" else (n,)
        call |= {name: call[name].reshape(statistics) for name in ("mean_out", "rstd_out")}
    expected = {k: v.copy() for k, v in call.items()}
    run_two_phase(OP, *arguments(expected))
    check(arguments(expected)[5:], arguments(expected)[:5])
    same = call[source].shape
    place = Place(same, call[source].dtype, data.draw(layouts(len(same)), "layout"))
    place.array[...] = call[source]
    call[source] = call[output] = place.array
    run_two_phase(OP, *arguments(call, shape[-1:]))
    assert_same_bits([call[k] for k in OUTPUTS], [expected[k] for k in OUTPUTS])
    place.check_guards()


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("columns", [1, 2, 3, 4, 5, 17, 300, 2500])
def test_in_place_where_rows_must_be_computed_in_double(columns, dtype):
    """Infinities, what float32 cannot square, and rows whose elements are all alike. The statistics may lie on rows of
    one element."""
    rng = np.random.default_rng(columns)
    x = normal(rng, (600, columns), dtype)
    x[::3] = normal(rng, (200, 1), dtype)
    x[1::7, -1], x[2::7, 0] = np.inf, 3e38 if dtype in (F32, BF16) else 1
    weight, bias = normal(rng, (columns,)), normal(rng, (columns,))
    expected = descend.layer_norm(x, columns, weight, bias)
    y = x.copy()
    assert_same_bits(descend.layer_norm(y, columns, weight, bias, out=(y, None, None)), expected)
    for place in (1, 2) if columns == 1 and expected[1].dtype == x.dtype else ():
        out: list[Any] = [None, None, None]
        out[place] = x.copy()
        assert_same_bits(descend.layer_norm(out[place], columns, weight, bias, out=tuple(out)), expected)


def test_overlaps_are_refused():
    buffer = normal(np.random.default_rng(31), (40, 64))
    call = tensors((8, 32)) | {"input": buffer[:8, :32]}
    with acl.product("host"):
        for out in (buffer[1:9, :32], buffer[:8, 1:33], call["input"][::-1]):
            with refused(161002, OP, "out overlaps input"):
                phase1(OP, *arguments(call | {"out": out}))
        with refused(161002, OP, "mean_out overlaps rstd_out"):
            phase1(OP, *arguments(call | {"mean_out": buffer[20, :8], "rstd_out": buffer[20, :8]}))
        with refused(161002, OP, "rstd_out", "overlap each other"):
            phase1(OP, *arguments(call | {"rstd_out": np.lib.stride_tricks.as_strided(buffer[20], (8,), (0,))}))
        phase1(OP, *arguments(call | {"out": buffer[:8, 32:], "mean_out": buffer[20, :8], "rstd_out": buffer[21, :8]}))


@pytest.mark.parametrize("product", [p for p in HERE if p != "host"])
def test_strided_tensors_are_fine_everywhere(product):
    call = tensors((4, 5, 16))
    call["input"] = np.asfortranarray(call["input"])
    call["weight"] = placed(call["weight"], Layout((0,), (-2,)))
    place = Place((4, 5, 16), F32, Layout((2, 0, 1), (1, -2, 3)))
    call["out"] = place.array
    values = arguments(call)
    run_two_phase(OP, *values, product=product)
    check(values[5:], values[:5])
    place.check_guards()


# --- other witnesses ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("affine", [True, False])
def test_pytorch_agrees(affine):
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(43)
    x = torch.tensor(rng.standard_normal((3, 5, 7)) + 5)
    for n in (1, 2, 3):
        row = (3, 5, 7)[3 - n :]
        weight, bias = (torch.tensor(rng.standard_normal(row)) if affine else None for _ in range(2))
        ours = descend.layer_norm(x, row, weight, bias, eps=1e-3)
        for our, their in zip(ours, torch.native_layer_norm(x, row, weight, bias, 1e-3), strict=True):
            assert our.shape == their.shape
            assert our.dtype == torch.float64
            torch.testing.assert_close(our, their, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize(
    ("shape", "dtype"), [((128, 512), "float32"), ((256, 64), "bfloat16"), ((16, 4096), "float16")]
)
@pytest.mark.parametrize("offset", [0, 100])
def test_at_least_as_exact_as_pytorch(shape, dtype, offset):
    torch = pytest.importorskip("torch")
    ratios = []
    for seed in range(20):
        torch.manual_seed(seed)
        kind = getattr(torch, dtype)
        x, weight, bias = (offset * (i == 0) + torch.randn(s) for i, s in enumerate((shape, shape[1], shape[1])))
        call = [x.to(kind), shape[1:], weight.to(kind), bias.to(kind)]
        golden = reference.layer_norm(*(a.double().numpy() if isinstance(a, torch.Tensor) else a for a in call))[0]
        ours = descend.layer_norm(*call)[0].double().numpy()
        theirs = torch.nn.functional.layer_norm(*call, 1e-5).double().numpy()
        found = precision.double_benchmark(ours, theirs, golden, "L2", np.float32).ratios
        ratios.append(found)
        assert found.rmse <= 1.01, (seed, found)
        if dtype != "float32":
            assert found.mere <= 1.01, (seed, found)
    mare, mere, rmse = (float(np.median(column)) for column in zip(*ratios, strict=True))
    assert max(mere, rmse) <= 1.0001, (mere, rmse)
    assert mare <= 1.0001, mare
