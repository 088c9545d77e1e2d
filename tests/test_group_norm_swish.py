"""GroupNormSwish: its contract row by row, its arithmetic against the float64 definition."""

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
    Array,
    Place,
    arithmetic_of,
    assert_close,
    assert_same_bits,
    assert_same_specials,
    layouts,
    normal,
    phase1,
    placed,
    refused,
    run_two_phase,
    wide,
)
from descend import acl, precision, reference
from test_group_norm_swish_grad import PATHS, problems

OP = "group_norm_swish"
TENSORS = ("x", "gamma", "beta", "y_out", "mean_out", "rstd_out")

# The page's table: x, gamma, beta, y, mean, rstd.
F32, F16, BF16 = "FLOAT", "FLOAT16", "BFLOAT16"
PAGE = tuple((x, g, g, x, g, g) for x, g in ((F32, F32), (F16, F16), (F16, F32), (BF16, BF16), (BF16, F32)))
HERE = (*A2_TO_950, "host")
NOT_HERE = ("atlas-200i-500-a2", "atlas-inference", "atlas-training")


def tensors(
    shape: tuple[int, ...] = (2, 8, 3), groups: int = 4, dtypes: tuple[str, ...] = (F32,) * 6, seed: int = 1
) -> dict[str, Any]:
    """The six tensors of a call by name, the outputs NaN."""
    rng = np.random.default_rng(seed)
    channels, statistic = shape[1:2], (shape[0], groups)
    shapes = (shape, channels, channels, shape, statistic, statistic)
    made = {n: normal(rng, s).astype(DTYPES[d]) for n, s, d in zip(TENSORS, shapes, dtypes, strict=True)}
    for name in TENSORS[3:]:
        made[name].view(f"u{made[name].dtype.itemsize}")[...] = np.iinfo(f"u{made[name].dtype.itemsize}").max
    return made


def arguments(
    call: dict[str, Any],
    groups: int = 4,
    data_format: str | None = "NCHW",
    eps: float = 1e-5,
    activate: bool = True,
    scale: float = 1.0,
) -> list[Any]:
    values = list(call.values())
    return [*values[:3], groups, data_format, eps, activate, scale, *values[3:]]


def check(
    results: Any, call: list[Array], groups: int, eps: float = 1e-5, activate: bool = True, scale: float = 1.0
) -> None:
    x, gamma, beta = call
    golden = reference.group_norm_swish(x, gamma, beta, groups, eps=eps, activate_swish=activate, swish_scale=scale)
    shape = (x.shape[0], groups, x.shape[1] // groups, -1)
    if x.size:
        with np.errstate(all="ignore"):
            mean, deviation = (g.reshape(*g.shape, 1, 1) for g in golden[1:])
            xhat = np.abs((wide(x).reshape(shape) - mean) * deviation) + 1  # the mean's error is one of the deviation
            z = xhat * np.abs(wide(gamma)).reshape(1, *shape[1:3], 1) + np.abs(wide(beta)).reshape(1, *shape[1:3], 1)
            y = (z * (1 + np.where(np.isfinite(z), abs(scale) * z, 0.0)) if activate else z).reshape(x.shape)
            largest = np.abs(wide(x)).reshape(*shape[:2], -1).max(axis=2)
    else:
        y, largest = np.zeros(x.shape), np.zeros(golden[1].shape)
    arithmetic = arithmetic_of(*call, *results)
    assert_close(results[0], golden[0], y, 12.0, arithmetic)
    assert_close(results[1], golden[1].reshape(results[1].shape), largest.reshape(results[1].shape), 3.0, arithmetic)
    # The sums run in double: beside a float32 result their roundings do not show, beside a double one they do.
    roundings, rstd = 16.0 if arithmetic == "DOUBLE" else 6.0, golden[2].reshape(results[2].shape)
    assert_close(results[2], rstd, rstd, roundings, arithmetic)


# --- the contract ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("product", HERE)
def test_every_combination_of_floating_dtypes(product):
    pool = {d: tensors(dtypes=(d,) * 6) for d in FLOATS}
    with acl.product(product):
        for dtypes in itertools.product(FLOATS, repeat=6):
            call = {name: pool[d][name] for name, d in zip(TENSORS, dtypes, strict=True)}
            if product == "host" or dtypes in PAGE:
                phase1(OP, *arguments(call))
            else:
                with refused(161002, OP, product):
                    phase1(OP, *arguments(call))


@pytest.mark.parametrize("row", PAGE, ids=lambda row: "-".join(row[:2]))
@pytest.mark.parametrize("product", HERE)
@pytest.mark.parametrize("activate", [True, False])
def test_every_row_computes(row, product, activate):
    call = tensors((3, 8, 5, 7), 4, row)
    run_two_phase(OP, *arguments(call, activate=activate), product=product)
    values = list(call.values())
    check(values[3:], values[:3], 4, activate=activate)


@pytest.mark.parametrize("product", HERE)
@pytest.mark.parametrize("wrong", [d for d in DTYPES if d not in FLOATS])
def test_no_other_dtype_in_any_place(product, wrong):
    for name in TENSORS:
        call = tensors()
        call[name] = np.zeros(call[name].shape, DTYPES[wrong])
        with acl.product(product), refused(161002, OP, f" {name} has dtype {wrong}, but must be "):
            phase1(OP, *arguments(call))


@pytest.mark.parametrize("product", NOT_HERE)
def test_products_without_the_operator(product):
    with acl.product(product), refused(561003, OP, product, *HERE):
        phase1(OP, *arguments(tensors()))


@pytest.mark.parametrize("product", PRODUCTS)
@pytest.mark.parametrize("name", TENSORS)
def test_null(product, name):
    with acl.product(product), refused(161001, OP, f" {name} is null"):
        phase1(OP, *arguments(tensors() | {name: None}))


SHAPES_TO_REFUSE = [
    ("gamma", (7,), "[7]", "[8]"),
    ("gamma", (1, 8), "[1, 8]", "[8]"),
    ("beta", (), "[]", "[8]"),
    ("y_out", (2, 24), "[2, 24]", "[2, 8, 3]"),
    ("mean_out", (2, 3), "[2, 3]", "4 groups", "2 samples"),
    ("rstd_out", (2, 8), "[2, 8]", "4 groups", "2 samples"),
    ("rstd_out", (), "[]", "4 groups", "2 samples"),
]


@pytest.mark.parametrize("product", HERE)
def test_page_rules(product):
    with acl.product(product):
        for name, shape, *words in SHAPES_TO_REFUSE:
            with refused(561002, OP, name, *words):
                phase1(OP, *arguments(tensors() | {name: np.zeros(shape, np.float32)}))
        for groups in (0, -1, 3, 16):
            with refused(561002, OP, f"num_groups is {groups}"):
                phase1(OP, *arguments(tensors(), groups))
        for eps in (-1e-9, -np.inf, np.nan):
            with refused(561002, OP, "eps", "0 or greater"):
                phase1(OP, *arguments(tensors(), eps=eps))
        for shape in ((8,), ()):
            with refused(561002, OP, "x has shape", "rank 2 to 8"):
                phase1(OP, *arguments(tensors() | {"x": np.zeros(shape, np.float32)}))
        for rank in range(2, 9):
            phase1(OP, *arguments(tensors((2, 8) + (1,) * (rank - 2))))
        phase1(OP, *arguments(tensors(), data_format=None, eps=0.0))


# --- the numbers -----------------------------------------------------------------------------------------------


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_any_shape_layout_and_dtype_on_host(data):
    shape, groups = data.draw(problems(), "problem")
    dtypes = tuple(data.draw(st.sampled_from(FLOATS), name) for name in TENSORS)
    how: dict[str, Any] = {
        "eps": data.draw(st.sampled_from([1e-5, 1e-3, 1.0])),
        "activate": data.draw(st.booleans()),
        "scale": data.draw(st.sampled_from([1.0, 0.0, -1.0, 1.702])),
    }
    call = tensors(shape, groups, dtypes, data.draw(st.integers(0, 2**32), "seed"))
    where = {n: data.draw(layouts(a.ndim), n) for n, a in call.items()}
    places = {n: Place(call[n].shape, call[n].dtype, where[n]) for n in TENSORS[3:]}
    call = {n: placed(a, where[n]) if n in TENSORS[:3] else places[n].array for n, a in call.items()}
    run_two_phase(OP, *arguments(call, groups, **how))
    check([p.array for p in places.values()], list(call.values())[:3], groups, **how)
    for place in places.values():
        place.check_guards()


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(("shape", "groups"), PATHS)
def test_every_path(shape, groups, dtype):
    values = list(tensors(shape, groups, (dtype,) * 6).values())
    results = descend.group_norm_swish(*values[:3], groups)
    check(results, values[:3], groups)
    # In place, and without the swish.
    same = descend.group_norm_swish(*values[:3], groups, activate_swish=False)
    expected = [a.copy() for a in same]
    assert_same_bits(
        descend.group_norm_swish(*values[:3], groups, activate_swish=False, out=(values[0], None, None)), expected
    )


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(("shape", "groups"), [((97, 32), 4), ((97, 12, 4), 3), ((97, 24, 5), 2), ((97, 3, 31), 1)])
def test_small_samples_do_not_know_how_many_they_are(shape, groups, dtype):
    """Adjacent small groups are computed together, as many as fit."""
    x, gamma, beta, *_ = tensors(shape, groups, (dtype,) * 6).values()
    whole = descend.group_norm_swish(x, gamma, beta, groups)
    check(whole, [x, gamma, beta], groups)
    for count in (1, 2, 7, 32, 33, 64, 96):
        assert_same_bits(descend.group_norm_swish(x[:count], gamma, beta, groups), [a[:count] for a in whole])
    apart = np.zeros((shape[0], shape[1] + 1, *shape[2:]), x.dtype)
    apart[:, 1:] = x
    assert_same_bits(descend.group_norm_swish(apart[:, 1:], gamma, beta, groups), whole)


@pytest.mark.parametrize(("shape", "groups"), [((2, 4, 1000), 2), ((2, 64), 4), ((1, 2, 100_000), 1), ((3, 16, 5), 8)])
@pytest.mark.parametrize(("offset", "size"), [(1e4, 1.0), (-1e6, 1.0), (1e4, 1e-2), (1e30, 1e25), (0.0, 1e-30)])
def test_mean_and_variance_do_not_cancel(shape, groups, offset, size):
    rng = np.random.default_rng(7)
    x = (offset + size * rng.standard_normal(shape)).astype(np.float32)
    x[0, 0, ...] = x[0, 0, ...] if offset else x[0, 0, ...] * 3
    gamma, beta = normal(rng, shape[1:2]), normal(rng, shape[1:2])
    results = descend.group_norm_swish(x, gamma, beta, groups, eps=0.0)
    check(results, [x, gamma, beta], groups, eps=0.0)


@pytest.mark.parametrize("shape", [(2, 4, 1000), (2, 4, 100), (2, 64), (1, 2, 70_000)])
def test_constant_and_extreme_groups(shape):
    gamma, beta = np.ones(shape[1], np.float32), np.zeros(shape[1], np.float32)
    for value in (0.0, 3.0, 1e30, 3e38, -1e-40):
        x = np.full(shape, value, np.float32)
        y, mean, rstd = descend.group_norm_swish(x, gamma, beta, 2)
        np.testing.assert_array_equal(mean, np.full(mean.shape, np.float32(value)))
        np.testing.assert_allclose(rstd, 1 / np.sqrt(1e-5), rtol=1e-6)
        assert not y.any()
    x = np.full(shape, 3e38, np.float32)
    x[..., ::2] *= -1
    check(descend.group_norm_swish(x, gamma, beta, 1), [x, gamma, beta], 1)
    # z overflows on both sides: the swish of the negative ones is 0.
    y = descend.group_norm_swish(normal(np.random.default_rng(0), shape), gamma * np.float32(3e38), beta, 2)[0]
    assert not np.isnan(y).any()


SHAPES_OF_EVERY_WAY = [
    *((2, 4), (3, 64), (3, 8, 3), (2, 6, 16), (2, 4, 50), (2, 300, 5), (1, 3000, 7)),
    *((1, 4, 64), (2, 4, 300), (1, 2, 5000), (1, 2, 70_000)),
]


@pytest.mark.parametrize("dtype", [F32, BF16])
@pytest.mark.parametrize("activate", [True, False])
@pytest.mark.parametrize("shape", SHAPES_OF_EVERY_WAY)
@pytest.mark.parametrize("groups", [1, 2])
def test_rstd_times_gamma_may_leave_the_range_where_results_do_not(groups, shape, activate, dtype):
    """Channels with extreme z do not change the results of their neighbours."""
    for size, weight in ((1e-30, 1e15), (1e30, 1e-15), (1e-30, 1.0)):
        rng = np.random.default_rng(3)
        x = normal(rng, shape, dtype, scale=size)
        usual = normal(rng, shape[1:2], dtype)
        usual[0] = 0
        beta = normal(rng, shape[1:2], dtype, scale=0.0 if size > 1 else 1.0)
        gamma = usual.copy()
        gamma[1::2] = (wide(usual)[1::2] * weight).astype(gamma.dtype)
        results = descend.group_norm_swish(x, gamma, beta, groups, eps=0.0, activate_swish=activate)
        assert np.isfinite(wide(results[0])).all()
        check(results, [x, gamma, beta], groups, eps=0.0, activate=activate)
        alone = descend.group_norm_swish(x, usual, beta, groups, eps=0.0, activate_swish=activate)[0]
        assert_same_bits([results[0][:, ::2]], [alone[:, ::2]])


@pytest.mark.parametrize("dtype", FLOATS)
def test_groups_of_one_element(dtype):
    call = list(tensors((70, 40), 40, (dtype,) * 6).values())[:3]
    x = call[0]
    x[5, 7], x[9, 3], x[9, 4] = np.inf, -np.inf, np.nan
    extreme = ~np.isfinite(wide(x))
    y, mean, rstd = descend.group_norm_swish(*call, 40)
    np.testing.assert_array_equal(wide(mean), wide(x))
    for result in (y, rstd):
        np.testing.assert_array_equal(np.isnan(wide(result)), extreme)
    check([y[:5], mean[:5], rstd[:5]], [x[:5], *call[1:]], 40)
    flat = descend.group_norm_swish(np.zeros_like(x), *call[1:], 40)
    assert_same_bits([y[~extreme], rstd[~extreme]], [flat[0][~extreme], flat[2][~extreme]])
    assert np.isnan(descend.group_norm_swish(*call, 40, eps=0.0)[0].astype(np.float32)).all()


@pytest.mark.parametrize("bits", [0x7FFFFFFF, 0x7F800001, 0xFFFFFFFF])
@pytest.mark.parametrize("shape", [(1, 4, 49), (1, 4, 64), (1, 4, 83)])
def test_any_nan_of_a_parameter_is_one_in_16_bits(shape, bits):
    # A NaN's low bits, which 16 bits cannot hold, must not be rounded up into an infinity or a number.
    x = np.random.default_rng(7).standard_normal(shape).astype(ml_dtypes.bfloat16)
    nan, one = np.full(4, bits, np.uint32).view(np.float32), np.ones(4, np.float32)
    for gamma, beta in ((nan, one), (one, nan)):
        assert np.isnan(descend.group_norm_swish(x, gamma, beta, 2)[0].astype(np.float32)).all()
    assert np.isnan(descend.group_norm_swish(x, one, one, 2, swish_scale=float(nan[0]))[0].astype(np.float32)).all()


@pytest.mark.parametrize("dtype", [F32, "DOUBLE"])
@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("shape", [(3, 4, 40), (3, 4), (3, 4, 5), (3, 4, 20), (3, 4, 300), (1, 4, 750), (1, 4, 70_000)])
def test_infinities_and_nan_stay_in_their_group(dtype, value, shape):
    x, gamma, beta = list(tensors(shape, 2, (dtype,) * 6).values())[:3]
    clean = descend.group_norm_swish(x, gamma, beta, 2)
    x[(0, 1, *[2] * (len(shape) - 2))] = value
    y, mean, rstd = descend.group_norm_swish(x, gamma, beta, 2)
    assert np.isnan(y[0, :2]).all()
    assert np.isnan(rstd[0, 0])
    np.testing.assert_array_equal(mean[0, 0], x.dtype.type(value))
    assert_same_bits([y[:, 2:], mean[:, 1:]], [clean[0][:, 2:], clean[1][:, 1:]])
    assert_same_bits([y[1:]], [clean[0][1:]])


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", ["x", "gamma", "beta", "scale"])
@pytest.mark.parametrize("shape", SHAPES_OF_EVERY_WAY)
def test_infinities_go_where_the_definition_has_them(shape, name, dtype):
    """The swish of minus infinity is NaN, that of a z which has overflowed 0."""
    for value, scale, activate in itertools.product((np.inf, -np.inf, np.nan), (1.0, -0.5, 0.0), (True, False)):
        how = {"activate_swish": activate, "swish_scale": value if name == "scale" else scale}
        call = tensors(shape, 2, (dtype,) * 6)
        if name != "scale":
            call[name].ravel()[1] = value
        arrays = list(call.values())[:3]
        golden = reference.group_norm_swish(*arrays, 2, **how)
        for result, exact in zip(descend.group_norm_swish(*arrays, 2, **how), golden, strict=True):
            assert_same_specials(result, exact)


@pytest.mark.parametrize("shape", SHAPES_OF_EVERY_WAY)
def test_squares_beyond_double(shape):
    """The variance is infinite and rstd 0, as in the definition."""
    x, gamma, beta = list(tensors(shape, 2, ("DOUBLE",) * 6).values())[:3]
    x *= 1e200
    y, mean, rstd = descend.group_norm_swish(x, gamma, beta, 2)
    assert not rstd.any()
    check([y, mean, rstd], [x, gamma, beta], 2)


def test_empty_tensors():
    for product in HERE:
        for shape in ((0, 8, 3), (2, 8, 0), (2, 0, 3)):
            call = tensors(shape)
            run_two_phase(OP, *arguments(call), product=product)
            if shape[0]:
                assert not call["mean_out"].any()
                assert np.isnan(call["rstd_out"]).all()


def test_results_that_the_call_allocates():
    for dtype, statistic in ((F32, F32), (F16, F32), (BF16, F32), ("DOUBLE", "DOUBLE")):
        x, gamma, beta = list(tensors((2, 8, 3), 4, (dtype,) * 6).values())[:3]
        y, mean, rstd = descend.group_norm_swish(x, gamma, beta, 4)
        assert (y.dtype, mean.dtype, rstd.dtype) == (x.dtype, DTYPES[statistic], DTYPES[statistic])
        assert (y.shape, mean.shape, rstd.shape) == (x.shape, (2, 4), (2, 4))


# --- another witness -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
@pytest.mark.parametrize(("shape", "groups"), [((4, 32, 16, 16), 8), ((64, 256), 2), ((2, 6, 5), 6)])
def test_at_least_as_exact_as_pytorch(shape, groups, dtype):
    torch = pytest.importorskip("torch")
    functional = torch.nn.functional
    kind = DTYPES[{"float32": F32, "float16": F16, "bfloat16": BF16, "float64": "DOUBLE"}[dtype]]
    ratios = []
    for seed in range(20):
        torch.manual_seed(seed)
        x, gamma, beta = (torch.randn(s).to(getattr(torch, dtype)) for s in (shape, shape[1], shape[1]))
        golden = reference.group_norm_swish(*(t.double().numpy() for t in (x, gamma, beta)), groups)[0]
        ours = descend.group_norm_swish(x, gamma, beta, groups)[0]
        theirs = functional.silu(functional.group_norm(x, groups, gamma, beta, 1e-5))
        if dtype == "float64":
            torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-13)
        else:
            mine, other = ours.double().numpy(), theirs.double().numpy()
            ratios.append(precision.double_benchmark(mine, other, golden, "L2", kind).ratios)
    if ratios:
        mare, mere, rmse = (float(np.median(column)) for column in zip(*ratios, strict=True))
        assert max(mere, rmse) <= 1.0, (mere, rmse)
        assert mare <= 2.0  # of 20 largest relative errors, where z crosses 0: level L2
