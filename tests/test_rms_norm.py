"""RmsNorm: its contract, its arithmetic against the float64 definition."""

from __future__ import annotations

import itertools
from typing import Any

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
    UNIT,
    Array,
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
    python_value,
    refused,
    run_two_phase,
    wide,
)
from descend import acl, precision, reference
from norm_gradients import LONG_AND_MANY
from test_rms_norm_grad import shapes

OP = "rms_norm"
NAMES = ("x", "gamma", "epsilon", "y_out", "rstd_out")
TENSORS = (0, 1, 3, 4)

# The rows of RmsNormGrad's table: x, gamma, y, rstd, products.
F32, F16, BF16 = "FLOAT", "FLOAT16", "BFLOAT16"
PAGE = (
    (F16, F32, F16, F32, A2_TO_950),
    (BF16, F32, BF16, F32, A2_TO_950),
    (F16, F16, F16, F32, (*A2_TO_950, "atlas-inference")),
    (F32, F32, F32, F32, (*A2_TO_950, "atlas-inference")),
    (BF16, BF16, BF16, F32, A2_TO_950),
)
HERE = (*A2_TO_950, "atlas-inference", "host")


def allowed(product: str, dtypes: tuple[str, ...]) -> bool:
    return product == "host" or any(row[:4] == tuple(dtypes) and product in row[4] for row in PAGE)


def arguments(
    dtypes: tuple[str, ...] = (F32,) * 4, shape: tuple[int, ...] = (2, 16), leading: int = 1, epsilon: float = 1e-6
) -> list[Any]:
    rng = np.random.default_rng(1)
    shapes_ = (shape, shape[leading:], shape, shape[:leading] + (1,) * (len(shape) - leading))
    x, gamma, y, rstd = (normal(rng, s).astype(DTYPES[d]) for s, d in zip(shapes_, dtypes, strict=True))
    return [x, gamma, epsilon, y, rstd]


def check(y: Array, rstd: Array, x: Array, gamma: Array, epsilon: float = 1e-6, roundings: float = 6.0) -> None:
    # NumPy sums in pairs, and so exactly, only along contiguous memory.
    golden_y, golden_rstd = reference.rms_norm(np.ascontiguousarray(x), gamma, epsilon)
    arithmetic = arithmetic_of(x, gamma, y, rstd)
    if arithmetic == "DOUBLE":
        roundings *= 2  # the definition rounds as often
    assert_close(rstd, golden_rstd.reshape(rstd.shape), golden_rstd.reshape(rstd.shape), roundings, arithmetic)
    assert_close(y, golden_y, golden_y, roundings, arithmetic)


# --- the contract --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("product", HERE)
def test_every_combination_of_floating_dtypes(product):
    pool = {d: arguments((d,) * 4) for d in FLOATS}
    with acl.product(product):
        for dtypes in itertools.product(FLOATS, repeat=4):
            call = [pool[dtypes[0]][0], pool[dtypes[1]][1], 0.5, pool[dtypes[2]][3], pool[dtypes[3]][4]]
            if allowed(product, dtypes):
                phase1(OP, *call)
            else:
                with refused(161002, OP, product):
                    phase1(OP, *call)


@pytest.mark.parametrize("product", HERE)
@pytest.mark.parametrize("wrong", [d for d in DTYPES if d not in FLOATS])
@pytest.mark.parametrize("place", TENSORS)
def test_no_other_dtype_in_any_place(product, wrong, place):
    call = arguments()
    call[place] = np.zeros(call[place].shape, DTYPES[wrong])
    with acl.product(product), refused(161002, OP, f" {NAMES[place]} has dtype {wrong}, but must be "):
        phase1(OP, *call)


@pytest.mark.parametrize("row", PAGE, ids=lambda row: "-".join(row[:4]))
@pytest.mark.parametrize("product", HERE)
def test_every_row_computes_where_it_exists(row, product):
    if not allowed(product, row[:4]):
        with acl.product(product), refused(161002, OP):
            phase1(OP, *arguments(row[:4]))
        return
    call = arguments(row[:4], (3, 4, 48), 2)
    run_two_phase(OP, *call, product=product)
    check(call[3], call[4], call[0], call[1])


@pytest.mark.parametrize("product", ["atlas-200i-500-a2", "atlas-training"])
def test_products_without_the_operator(product):
    with acl.product(product), refused(561003, OP, product, *HERE):
        phase1(OP, *arguments())


@pytest.mark.parametrize("product", PRODUCTS)
@pytest.mark.parametrize("place", range(5))
def test_null(product, place):
    call = arguments()
    call[place] = None
    with acl.product(product), refused(161001, OP, f" {NAMES[place]} is null"):
        phase1(OP, *call)


SHAPES_TO_REFUSE = [
    ("gamma", (15,), "[15]", "[2, 3, 16]"),
    ("gamma", (2, 3), "[2, 3]", "[2, 3, 16]"),
    ("gamma", (), "[]", "[2, 3, 16]"),
    ("gamma", (1, 2, 3, 16), "[1, 2, 3, 16]", "[2, 3, 16]"),
    ("y_out", (6, 16), "[6, 16]", "[2, 3, 16]"),
    ("y_out", (2, 3, 15), "[2, 3, 15]", "[2, 3, 16]"),
    ("rstd_out", (2,), "[2]", "[2, 3]"),
    ("rstd_out", (3, 2), "[3, 2]", "[2, 3]"),
    ("rstd_out", (6,), "[6]", "[2, 3]"),
    ("rstd_out", (2, 3, 16), "[2, 3, 16]", "[2, 3]"),
    ("rstd_out", (), "[]", "[2, 3]"),
]


@pytest.mark.parametrize("product", HERE)
@pytest.mark.parametrize(("name", "shape", "got", "must"), SHAPES_TO_REFUSE)
def test_shapes(product, name, shape, got, must):
    call = arguments(shape=(2, 3, 16), leading=2)
    call[NAMES.index(name)] = np.zeros(shape, np.float32)
    with acl.product(product), refused(561002, OP, name, got, must):
        phase1(OP, *call)


@pytest.mark.parametrize("product", HERE)
def test_shapes_of_rstd_that_fit(product):
    for shape, leading, rstd in (
        ((2, 3, 16), 2, (2, 3)),
        ((2, 3, 16), 2, (2, 3, 1)),
        ((2, 3, 16), 1, (2, 1, 1)),
        ((2, 3, 16), 0, (1, 1, 1)),
        ((2, 3, 16), 0, ()),
    ):
        call = arguments(shape=shape, leading=leading)
        call[4] = np.zeros(rstd, np.float32)
        if product == "ascend-950" and len(rstd) < len(shape):  # whose page knows the full rank alone
            with acl.product(product), refused(561002, OP, "rstd_out has shape", "the rank of x, 3", product):
                phase1(OP, *call)
            continue
        run_two_phase(OP, *call, product=product)
        check(call[3], call[4], call[0], call[1])


@pytest.mark.parametrize("product", HERE)
@pytest.mark.parametrize("epsilon", [-1e-300, -1.0, -np.inf, np.nan])
def test_epsilon_must_not_be_negative(product, epsilon):
    with acl.product(product), refused(561002, OP, "epsilon is"):
        phase1(OP, *arguments(epsilon=epsilon))


@pytest.mark.parametrize("epsilon", ["1e-6", True, [1e-6], b"1", 1j])
def test_epsilon_must_be_a_number(epsilon):
    call = arguments()
    with pytest.raises(TypeError, match=r"^rms_norm: epsilon is a \w+, but must be a number\.$"):
        descend.rms_norm(call[0], call[1], epsilon=epsilon)


def test_epsilon_may_be_any_number():
    x, gamma = arguments()[:2]
    for epsilon in (0, 0.0, 1, np.float32(0.5), np.float64(1e-30), np.int64(2), 1e30, -0.0):
        y, rstd = descend.rms_norm(x, gamma, epsilon)
        check(y, rstd, x, gamma, float(epsilon))
    y, rstd = descend.rms_norm(x, gamma, np.inf)
    assert not y.any()
    assert not rstd.any()


def test_order_of_checks():
    call: list[Any] = arguments()
    call[1] = None
    call[0] = call[0].astype(np.int32)
    call[3] = np.zeros((2, 15), np.float32)
    call[4] = call[3][:, 0]
    call[2] = -1.0
    with acl.product("atlas-training"), refused(161001, OP, "gamma is null"):
        phase1(OP, *call)
    call[1] = np.zeros(3, np.float32)
    with acl.product("atlas-training"), refused(561003, OP):
        phase1(OP, *call)
    with acl.product("atlas-a3"):
        with refused(161002, OP, "x has dtype INT32"):
            phase1(OP, *call)
        call[0] = np.zeros((2, 16), np.float32)
        with refused(161002, OP, "overlap", "y_out", "rstd_out"):
            phase1(OP, *call)
        call[4] = np.zeros(2, np.float32)
        # "then rank, shape, attributes"
        with refused(561002, OP, "gamma has shape [3]"):
            phase1(OP, *call)
        call[1] = np.zeros(16, np.float32)
        with refused(561002, OP, "y_out has shape [2, 15]"):
            phase1(OP, *call)
        call[3] = np.zeros((2, 16), np.float32)
        with refused(561002, OP, "epsilon"):
            phase1(OP, *call)
        call[2] = 0.0
        phase1(OP, *call)


def test_nothing_is_written_where_a_call_fails():
    y, rstd = Place((2, 16)), Place((2,))
    x, gamma = arguments()[:2]
    for bad in ((x, gamma, -1.0), (None, gamma, 0.0), (x, gamma[:3], 0.0), (x.astype(np.int8), gamma, 0.0)):
        with pytest.raises(ValueError, match=OP):
            descend.rms_norm(*bad, out=(y.array, rstd.array))
        with pytest.raises(ValueError, match=OP):
            phase1(OP, *bad, y.array, rstd.array)
    with acl.product("host"):
        phase1(OP, x, gamma, 0.0, y.array, rstd.array)
    y.check_untouched()
    rstd.check_untouched()


# --- the numbers ---------------------------------------------------------------------------------------------------


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_any_shape_layout_and_dtype_on_host(data):
    shape = data.draw(shapes(), "shape")
    leading = data.draw(st.integers(0, len(shape) - 1), "leading")
    dtypes = data.draw(st.tuples(*[st.sampled_from(FLOATS)] * 4), "dtypes")
    epsilon = data.draw(st.sampled_from([0.0, 1e-6, 0.1, 1e3]), "epsilon")
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32), "seed"))
    given_shapes = (shape, shape[leading:], shape, shape[:leading])
    where = [data.draw(layouts(len(s))) for s in given_shapes]
    x, gamma = (placed(normal(rng, given_shapes[i], dtypes[i]), where[i]) for i in range(2))
    y, rstd = (Place(given_shapes[i], dtypes[i], where[i]) for i in (2, 3))
    run_two_phase(OP, x, gamma, epsilon, y.array, rstd.array)
    check(y.array, rstd.array, x, gamma, epsilon)
    y.check_guards()
    rstd.check_guards()
    again = [Place(given_shapes[i], dtypes[i], where[i]) for i in (2, 3)]
    descend.rms_norm(x, gamma, epsilon, out=tuple(o.array for o in again))
    assert_same_bits([o.memory for o in again], [y.memory, rstd.memory])


@pytest.mark.parametrize("product", [p for p in HERE if p != "host"])
def test_strided_inputs_are_fine_everywhere(product):
    """Unlike for the gradient."""
    call = arguments(shape=(4, 5, 16), leading=2)
    call[0] = np.asfortranarray(call[0])
    call[1] = placed(call[1], Layout((0,), (-2,)))
    run_two_phase(OP, *call, product=product)
    check(call[3], call[4], call[0], call[1])


@pytest.mark.parametrize(("shape", "dtype"), in_turn(LONG_AND_MANY, FLOATS))
def test_very_long_and_very_many_rows(shape, dtype):
    rng = np.random.default_rng(7)
    x, gamma = normal(rng, shape, dtype), normal(rng, shape[1:], dtype)
    y, rstd = Place(shape, dtype), Place(shape[:1])
    run_two_phase(OP, x, gamma, 1e-6, y.array, rstd.array)
    check(y.array, rstd.array, x, gamma)
    y.check_guards()
    rstd.check_guards()


@pytest.mark.parametrize("dtype", [F16, BF16])
def test_16_bit_results_are_the_correctly_rounded_golden(dtype):
    rng = np.random.default_rng(11)
    x, gamma = normal(rng, (256, 1000), dtype), normal(rng, (1000,), dtype)
    y, _ = descend.rms_norm(x, gamma)
    assert precision.correct_rounding_share(y, reference.rms_norm(x, gamma)[0]) >= 0.999


@pytest.mark.parametrize("dtype", [F32, F16, BF16])
def test_the_error_of_rstd_does_not_grow_with_the_columns(dtype):
    for columns in (1, 32, 2048, 30_000, 1_000_000):
        x = normal(np.random.default_rng(columns), (3, columns), dtype)
        rstd = descend.rms_norm(x, np.ones(columns, np.float32))[1]
        golden = reference.rms_norm(x, np.ones(columns))[1]
        assert rstd.dtype == np.float32
        assert np.abs(rstd / golden - 1).max() < 3 * UNIT[F32]


def test_empty_tensors():
    for product in HERE:
        for shape, leading in (((0, 16), 1), ((3, 0, 16), 2), ((0,), 0), ((0, 3, 0), 1)):
            call = arguments(shape=shape, leading=leading)
            if product == "ascend-950" and call[1].size == 0:
                with acl.product(product), refused(561002, OP, "gamma has shape", "empty", product):
                    phase1(OP, *call)
                continue
            run_two_phase(OP, *call, product=product)
        if product == "ascend-950":
            continue
        # The mean of no elements is NaN.
        y, rstd = np.zeros((3, 0), np.float32), Place((3,))
        run_two_phase(OP, y.copy(), np.zeros(0, np.float32), 1e-6, y, rstd.array, product=product)
        assert np.isnan(rstd.array).all()
        rstd.check_guards()
    y, rstd = descend.rms_norm(np.zeros((0, 5), np.float16), np.ones(5))
    assert (y.shape, rstd.shape) == ((0, 5), (0, 1))


@pytest.mark.parametrize("dtype", [F32, BF16])
@pytest.mark.parametrize("size", [1e20, 1e-20, 1e37, 1e-30, 1e-37, 1e-42])
@pytest.mark.parametrize("columns", [1, 5, 64, 9000])
def test_large_and_small_values(dtype, size, columns):
    """Squares that float32 cannot hold."""
    x = normal(np.random.default_rng(17), (8, columns), dtype, size)
    x[3] = np.finfo(np.float32).max * 0.99 if size > 1 else 0
    gamma = np.ones(columns, DTYPES[dtype])
    for epsilon in (0.0, 1e-60, 1e-6):
        with np.errstate(all="ignore"):
            y, rstd = descend.rms_norm(x, gamma, epsilon)
            golden_rstd = reference.rms_norm(x, gamma, epsilon)[1]
            # y is the product of rstd as it is stored: at 1e-42 that is infinite.
            stored = wide(golden_rstd.astype(np.float32))
            golden_y = wide(x) * stored
        assert_close(rstd, golden_rstd, golden_rstd, 4)
        if np.isfinite(stored).all():
            assert_close(y, golden_y, golden_y, 8)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("place", [0, 1])
@pytest.mark.parametrize("columns", [1, 3, 7, 70, 9000])
def test_infinities_and_nan_propagate(dtype, value, place, columns):
    rng = np.random.default_rng(19)
    x, gamma = normal(rng, (5, columns), dtype), normal(rng, (columns,), dtype)
    (x[2] if place == 0 else gamma)[columns // 2] = value
    y, rstd = descend.rms_norm(x, gamma)
    check(y, rstd, x, gamma)
    if place == 0:
        assert np.isfinite(wide(y)[[0, 1, 3, 4]]).all()
        assert np.isfinite(wide(rstd)[[0, 1, 3, 4]]).all()


@pytest.mark.parametrize("columns", [1, 2, 15, 16, 17, 33, 80])
def test_nan_in_gamma_stays_where_it_is(columns):
    """A NaN whose bits are all ones, which rounding to BFLOAT16 must not carry past the exponent."""
    x = normal(np.random.default_rng(23), (19, columns), BF16)
    for column in range(columns):
        gamma = np.ones(columns, np.float32)
        gamma.view(np.uint32)[column] = 0x7FFFFFFF
        y, _ = descend.rms_norm(x, gamma)
        np.testing.assert_array_equal(np.isnan(wide(y)).all(axis=0), np.arange(columns) == column)


def test_a_row_of_zeros():
    x = np.zeros((2, 5), np.float32)
    y, rstd = descend.rms_norm(x, np.ones(5, np.float32), 0.25)
    np.testing.assert_array_equal(rstd, [[2], [2]])
    assert not y.any()
    with np.errstate(all="ignore"):
        y, rstd = descend.rms_norm(x, np.ones(5, np.float32), 0.0)
    assert np.isposinf(rstd).all()
    assert np.isnan(y).all()


# --- memory --------------------------------------------------------------------------------------------------------


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_in_place(data):
    """y on x, y on gamma, rstd on x (rows of one element), rstd on gamma."""
    output, source = data.draw(st.sampled_from([(3, 0), (3, 1), (4, 0), (4, 1)]))
    n = data.draw(st.sampled_from([1, 2, 17, 64, 130, 9000]))
    if (output, source) == (4, 0):
        shape, leading, rstd_shape = (n, 1), 1, (n, 1)
    elif (output, source) == (4, 1):
        n = min(n, 130)
        shape, leading, rstd_shape = (n, n), 1, (n,)
    else:
        shape, leading = ((3, n), 1) if source == 0 else ((n,), 0)
        rstd_shape = shape[:leading]
    dtypes = [data.draw(st.sampled_from(FLOATS)) for _ in range(5)]
    dtypes[output] = dtypes[source]
    rng = np.random.default_rng(23)
    given_shapes = {0: shape, 1: shape[leading:], 3: shape, 4: rstd_shape}
    call: list[Any] = [normal(rng, given_shapes.get(i, ()), dtypes[i]) for i in range(5)]
    call[2] = 1e-6
    expected = [a.copy() if i != 2 else a for i, a in enumerate(call)]
    run_two_phase(OP, *expected)
    check(expected[3], expected[4], expected[0], expected[1])
    place = Place(given_shapes[source], dtypes[source], data.draw(layouts(len(given_shapes[source]))))
    place.array[...] = call[source]
    call[source] = call[output] = place.array
    run_two_phase(OP, *call)
    assert_same_bits(call[3:], expected[3:])
    place.check_guards()


@pytest.mark.parametrize(
    ("columns", "dtype"), in_turn([100, 255, 680, 701, 1024, 1360, 2049, 8323, 16_385, 140_001], FLOATS, each=2)
)
@pytest.mark.parametrize("operator", ["rms_norm", "layer_norm"])
def test_rows_that_are_not_aligned_and_too_many_for_the_caches(operator, columns, dtype):
    """Short ones go to memory by way of a stage, long ones line by line; they are those of few rows.

    Of those in between it depends on whether all begin at multiples of 4 bytes."""
    few = normal(np.random.default_rng(29), (10, columns), dtype)
    times = 60 * 2**20 // (2 * few.nbytes) + 2  # beyond last caches of up to 90 MB
    gamma = normal(np.random.default_rng(30), (columns,), dtype)

    many = np.tile(few, (times, 1))

    def run(x: Array, gap: int, in_place: bool = False, beyond_line: int = 0) -> tuple[Place, list[Array]]:
        place = Place((len(x), columns + gap), dtype, beyond_line=beyond_line)
        y = place.array[:, :columns]
        if in_place:
            y[...] = x
            x = y
        others = [np.empty((len(x), 1), np.float64 if dtype == "DOUBLE" else np.float32)]
        if operator == "rms_norm":
            descend.rms_norm(x, gamma, out=(y, *others))
        else:
            others.append(np.empty_like(others[0]))
            descend.layer_norm(x, columns, gamma, gamma, out=(y, *others))
        return place, others

    place, expected = run(few, 0)
    expected.insert(0, place.array)
    odd = few.itemsize
    for gap, in_place, beyond_line in ((0, False, odd), (0, True, 16), (3, False, 0), (3, True, 16), (8, False, 48)):
        place, others = run(many, gap, in_place, beyond_line)
        for result, part in zip((place.array[:, :columns], *others), expected, strict=True):
            rows = result.reshape(times, 10, -1)
            assert_same_bits([rows], [np.broadcast_to(part, rows.shape)])
        assert np.isnan(wide(place.array[:, columns:])).all()  # nothing was written to the gaps
        place.check_guards()


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("columns", [1, 2, 3, 4, 5, 17, 300, 2500])
def test_in_place_where_rows_must_be_computed_in_double(columns, dtype):
    """Infinities, and what float32 cannot square. rstd may lie on rows of one element."""
    rng = np.random.default_rng(columns)
    x, gamma = normal(rng, (600, columns), dtype), normal(rng, (columns,))
    x[1::7, -1], x[2::7, 0] = np.inf, 3e38 if dtype in (F32, BF16) else 1
    expected = descend.rms_norm(x, gamma, 1e-6)
    y = x.copy()
    assert_same_bits(descend.rms_norm(y, gamma, 1e-6, out=(y, None)), expected)
    if columns == 1 and expected[1].dtype == x.dtype:
        rstd = x.copy()
        assert_same_bits(descend.rms_norm(rstd, gamma, 1e-6, out=(None, rstd)), expected)


def test_overlaps_are_refused():
    buffer = normal(np.random.default_rng(31), (40, 64))
    x, gamma, rstd = buffer[:8, :32], np.ones(32, np.float32), np.zeros(8, np.float32)
    with acl.product("host"):
        for y in (buffer[1:9, :32], buffer[:8, 1:33], x[::-1], buffer.ravel()[: 8 * 32].reshape(8, 32)):
            with refused(161002, OP, "y_out overlaps x"):
                phase1(OP, x, gamma, 1e-6, y, rstd)
        with refused(161002, OP, "rstd_out overlaps x"):
            phase1(OP, x, gamma, 1e-6, np.zeros_like(x), buffer[:8, 5])
        with refused(161002, OP, "rstd_out", "y_out"):
            phase1(OP, x, gamma, 1e-6, buffer[20:28, :32], buffer[20:28, 5])
        with refused(161002, OP, "rstd_out", "overlap each other"):
            phase1(OP, x, gamma, 1e-6, np.zeros_like(x), np.lib.stride_tricks.as_strided(rstd, (8,), (0,)))
        phase1(OP, x, gamma, 1e-6, buffer[:8, 32:], rstd)


# --- other witnesses -----------------------------------------------------------------------------------------------


def test_pytorch_agrees():
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(43)
    x = torch.tensor(rng.standard_normal((3, 5, 7)))
    for n in (1, 2, 3):
        gamma = torch.tensor(rng.standard_normal((3, 5, 7)[3 - n :]))
        y, rstd = descend.rms_norm(x, gamma, epsilon=1e-3)
        torch.testing.assert_close(y, torch.nn.functional.rms_norm(x, gamma.shape, gamma, 1e-3), rtol=1e-13, atol=1e-15)
        assert rstd.shape == (3, 5, 7)[: 3 - n] + (1,) * n
        assert rstd.dtype == torch.float64


@pytest.mark.parametrize(
    ("shape", "dtype"), [((128, 512), "float32"), ((256, 64), "bfloat16"), ((16, 4096), "float16")]
)
def test_at_least_as_exact_as_pytorch(shape, dtype):
    torch = pytest.importorskip("torch")
    ratios = []
    for seed in range(20):
        torch.manual_seed(seed)
        x, gamma = torch.randn(shape).to(getattr(torch, dtype)), torch.randn(shape[1]).to(getattr(torch, dtype))
        golden = reference.rms_norm(x.double().numpy(), gamma.double().numpy())[0]
        ours = descend.rms_norm(x, gamma)[0].double().numpy()
        theirs = torch.nn.functional.rms_norm(x, shape[1:], gamma, 1e-6).double().numpy()
        found = precision.double_benchmark(ours, theirs, golden, "L2", np.float32).ratios
        ratios.append(found)
        assert found.rmse <= 1.01, (seed, found)
        assert found.mere <= 1.01, (seed, found)
        assert found.mare <= 2, (seed, found)
    medians = precision.Limits(*(float(np.median(column)) for column in zip(*ratios, strict=True)))
    assert max(medians) <= 1.0001, medians


def test_short_rows_that_are_aligned_and_too_many_for_the_caches():
    """A line of results that a pass over the columns writes in pieces goes past the caches by way of a stage."""
    code = """
import json
import numpy as np
import descend
from cases import normal
rng = np.random.default_rng(0)
for dtype in ("FLOAT16", "FLOAT"):
    for columns in (32, 64, 96):
        few = 1 << 10
        x, dy = normal(rng, (few, columns), dtype), normal(rng, (few, columns), dtype)
        gamma, rstd = normal(rng, (columns,), dtype), np.ones((few, 1), np.float32)
        times = 100 * 2**20 // (2 * x.nbytes) + 1  # beyond last caches of up to 100 MB
        many, many_dy, many_rstd = (np.tile(a, (times, 1)) for a in (x, dy, rstd))
        calls = (
            (lambda x, dy, rstd: [descend.rms_norm(x, gamma)[0]]),
            (lambda x, dy, rstd: descend.add_rms_norm(x, dy, gamma)[::2]),
            (lambda x, dy, rstd: [descend.rms_norm_grad(dy, x, rstd, gamma)[0]]),
            (lambda x, dy, rstd: [descend.softmax_backward(dy, x, -1)]),
        )
        for call in calls:
            for found, expected in zip(call(many, many_dy, many_rstd), call(x, dy, rstd)):
                assert found.ctypes.data % 64 == 0
                parts = found.reshape(times, few, columns)
                assert (parts.view(np.uint8) == expected.view(np.uint8)).all(), (dtype, columns, expected.shape)
print(json.dumps(True))
"""
    for isa in ("AVX3", "AVX2", "BASELINE"):
        assert python_value(code, DESCEND_ISA=isa)
