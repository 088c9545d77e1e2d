"""GroupNormSwishGrad: its arithmetic against the float64 definition, and where its tensors lie."""

from __future__ import annotations

import itertools
from functools import lru_cache
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
    SMALLEST,
    UNIT,
    Array,
    Layout,
    Place,
    arithmetic_of,
    assert_close,
    assert_same_bits,
    assert_same_specials,
    digest,
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

OP = "group_norm_swish_grad"
TENSORS = ("dy", "mean", "rstd", "x", "gamma", "beta", "dx_out", "dgamma_out", "dbeta_out")

F32, F16, BF16 = "FLOAT", "FLOAT16", "BFLOAT16"
HERE = (*A2_TO_950, "host")


def tensors(
    shape: tuple[int, ...] = (2, 8, 3), groups: int = 4, dtypes: tuple[str, ...] = (F32,) * 9, seed: int = 1
) -> dict[str, Any]:
    """The nine tensors of a call by name, the outputs NaN; x need not have the given mean and rstd."""
    rng = np.random.default_rng(seed)
    samples, channels = shape[:2]
    statistic = (samples, groups)
    shapes = (shape, statistic, statistic, shape, (channels,), (channels,), shape, (channels,), (channels,))
    made = {n: normal(rng, s).astype(DTYPES[d]) for n, s, d in zip(TENSORS, shapes, dtypes, strict=True)}
    made["mean"] = (made["mean"] * DTYPES[dtypes[1]].type(0.1)).astype(DTYPES[dtypes[1]])
    made["rstd"] = (0.5 + rng.random(statistic)).astype(DTYPES[dtypes[2]])
    for name in TENSORS[6:]:
        made[name].view(f"u{made[name].dtype.itemsize}")[...] = np.iinfo(f"u{made[name].dtype.itemsize}").max
    return made


def arguments(
    call: dict[str, Any],
    groups: int = 4,
    data_format: str | None = "NCHW",
    scale: float = 1.0,
    dgamma: bool = True,
    dbeta: bool = True,
) -> list[Any]:
    values = list(call.values())
    return [*values[:6], groups, data_format, scale, dgamma, dbeta, *values[6:]]


def inputs(call: dict[str, Any]) -> list[Any]:
    return list(call.values())[:6]


def check(results: Any, call: list[Array], groups: int, scale: float = 1.0, roundings: float = 12.0) -> None:
    """All results against the definition, within a few roundings of the largest term."""
    dy, mean, rstd, x, gamma, beta = call
    arithmetic = arithmetic_of(*call, *results)
    golden = reference.group_norm_swish_grad(dy, mean, rstd, x, gamma, beta, groups, swish_scale=scale)
    samples, channels = x.shape[:2]
    inner = int(np.prod(x.shape[2:], dtype=np.int64))
    shape = (samples, groups, channels // groups, inner)
    with np.errstate(all="ignore"):
        r = np.abs(wide(rstd)).reshape(samples, groups, 1, 1)
        g, b = (np.abs(wide(a)).reshape(1, groups, channels // groups, 1) for a in (gamma, beta))
        m = np.abs(wide(mean)).reshape(samples, groups, 1, 1)
        xhat = r * (np.abs(wide(x).reshape(shape)) + m)
        signed = (wide(x).reshape(shape) - wide(mean).reshape(m.shape)) * wide(rstd).reshape(r.shape)
        u = scale * (signed * wide(gamma).reshape(g.shape) + wide(beta).reshape(b.shape))
        # What a rounding of u, relative to the terms that it is made of, does to the slope.
        size_of_u = abs(scale) * (xhat * g + b)
        sig, rest = 1 / (1 + np.exp(-u)), 1 / (1 + np.exp(u))
        steepness = np.where(np.abs(u) < 700, sig * rest * (2 + np.abs(u)), 0.0)
        slope = sig + np.where(np.abs(u) < 700, np.abs(u) * sig * rest, 0.0) + size_of_u * steepness
        # A subnormal sigmoid has few bits.
        slope += np.where(np.abs(u) < 700, 1 + np.abs(u), 0.0) * SMALLEST[arithmetic] / UNIT[arithmetic]
        dz = np.abs(wide(dy).reshape(shape)) * np.where(np.isnan(slope), 1.0, slope)
        elements = max(channels // groups * inner, 1)
        c1 = (dz * g).sum(axis=(2, 3), keepdims=True) / elements
        c2 = (dz * g * xhat).sum(axis=(2, 3), keepdims=True) / elements
        terms = (
            (r * (dz * g + c1 + xhat * c2)).reshape(x.shape),
            (dz * xhat).sum(axis=(0, 3)).ravel(),
            dz.sum(axis=(0, 3)).ravel(),
        )
    for result, exact, term in zip(results, golden, terms, strict=True):
        assert_close(result, exact, term, roundings, arithmetic)


def compute(call: list[Array], groups: int, scale: float = 1.0) -> tuple[Array, Array, Array]:
    dx, dgamma, dbeta = descend.group_norm_swish_grad(*call, groups, swish_scale=scale)
    return dx, dgamma, dbeta


@pytest.mark.parametrize(("dgamma", "dbeta"), [(True, False), (False, True), (False, False)])
@pytest.mark.parametrize("shape", [(3, 8, 40), (3, 8), (1, 8, 20_000)])
def test_what_is_not_required_is_not_touched(dgamma, dbeta, shape):
    call = tensors(shape)
    expected = compute(inputs(call), 4)
    places = [Place(shape), Place((8,)), Place((8,))]
    call.update(zip(TENSORS[6:], (p.array for p in places), strict=True))
    run_two_phase(OP, *arguments(call, dgamma=dgamma, dbeta=dbeta), product="atlas-a3")
    assert_same_bits([places[0].array], expected[:1])
    for place, wanted, value in zip(places[1:], (dgamma, dbeta), expected[1:], strict=True):
        if wanted:
            assert_same_bits([place.array], [value])
        else:
            place.check_untouched()
    # The functional form has None in its place and needs no array.
    got = descend.group_norm_swish_grad(*inputs(call), 4, dgamma_is_require=dgamma, dbeta_is_require=dbeta)
    assert [g is not None for g in got] == [True, dgamma, dbeta]
    assert_same_bits(
        [g for g in got if g is not None], [e for e, g in zip(expected, got, strict=True) if g is not None]
    )


# --- the numbers -------------------------------------------------------------------------------------------------


@st.composite
def problems(draw: st.DrawFn) -> tuple[tuple[int, ...], int]:
    channels_a_group = draw(st.sampled_from([1, 1, 2, 3, 4, 7, 16, 33, 100]))
    groups = draw(st.sampled_from([1, 2, 3, 4, 8]))
    samples = draw(st.sampled_from([1, 1, 2, 3, 5, 70]))
    room = max(40_000 // (channels_a_group * groups * samples), 1)
    rank = draw(st.integers(0, 6))
    inner: list[int] = []
    for _ in range(rank):
        size = draw(st.sampled_from([1, 1, 2, 3, 4, 5, 7, 9, 16, 17, 31, 33, 49, 64, 129, 2047, 2049]))
        size = size if size <= room else 1
        room //= size
        inner.append(size)
    return (samples, channels_a_group * groups, *inner), groups


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_any_shape_layout_and_dtype_on_host(data):
    shape, groups = data.draw(problems(), "problem")
    main = data.draw(st.sampled_from(FLOATS), "main")
    other = [data.draw(st.sampled_from(FLOATS), name) for name in TENSORS]
    dtypes = tuple(main if name in ("dy", "x") else d for name, d in zip(TENSORS, other, strict=True))
    scale = data.draw(st.sampled_from([1.0, 1.0, 0.0, -1.0, 1.702, 30.0]), "scale")
    call = tensors(shape, groups, dtypes, data.draw(st.integers(0, 2**32), "seed"))
    where = {n: data.draw(layouts(a.ndim), n) for n, a in call.items()}
    places = {n: Place(call[n].shape, call[n].dtype, where[n]) for n in TENSORS[6:]}
    call = {n: placed(a, where[n]) if n in TENSORS[:6] else places[n].array for n, a in call.items()}
    keep = [digest(a) for a in inputs(call)]
    run_two_phase(OP, *arguments(call, groups, scale=scale))
    check([p.array for p in places.values()], inputs(call), groups, scale)
    for place in places.values():
        place.check_guards()
    assert [digest(a) for a in inputs(call)] == keep
    again = {n: Place(call[n].shape, call[n].dtype, where[n]) for n in TENSORS[6:]}
    out = tuple(p.array for p in again.values())
    descend.group_norm_swish_grad(*inputs(call), groups, swish_scale=scale, out=out)
    assert_same_bits([p.memory for p in again.values()], [p.memory for p in places.values()])


@lru_cache(maxsize=1)
def large(pixels: int) -> tuple[Array, Array]:
    """dy and x, 32 MB each, the same for all dtypes."""
    rng = np.random.default_rng(41)
    return normal(rng, (60, 16, pixels)), normal(rng, (60, 16, pixels))


@pytest.mark.parametrize(("pixels", "dtype"), in_turn([8200, 8202, 8203], FLOATS, each=2))
@pytest.mark.parametrize("forward", [False, True])
def test_results_that_are_not_aligned_and_too_many_for_the_caches(forward, pixels, dtype):
    """Channels that begin at quarters of cache lines are stored past the caches, by quarters."""
    rng, statistics = np.random.default_rng(42), "DOUBLE" if dtype == "DOUBLE" else F32
    dy, x = (a.astype(DTYPES[dtype]) for a in large(pixels))
    mean, rstd = normal(rng, (60, 4), statistics), (1 + rng.random((60, 4))).astype(DTYPES[statistics])
    gamma, beta = (normal(rng, (16,), dtype) for _ in range(2))

    def run(beyond_line: int) -> list[Array]:
        place = Place(x.shape, dtype, beyond_line=beyond_line)
        others = [np.empty_like(a) for a in ((mean, rstd) if forward else (gamma, beta))]
        out = (place.array, *others)
        with acl.product("host"):
            if forward:
                descend.group_norm_swish(x, gamma, beta, 4, out=out)
            else:
                descend.group_norm_swish_grad(dy, mean, rstd, x, gamma, beta, 4, out=out)
        place.check_guards()
        return list(out)

    expected = run(0)
    for beyond_line in (16, 48, x.itemsize):
        assert_same_bits(run(beyond_line), expected)


# Every way in which the kernel divides its work: groups of one thread or of several, dz kept or computed again,
# short channels in one tile or more; results in step with the next group's sums, past the caches.
PATHS = [
    ((2, 6, 49), 3),
    ((40, 64, 32, 32), 16),
    ((1, 3, 30_000), 1),
    ((2, 5, 70_001), 1),
    ((1, 2, 1_000_003), 1),
    ((3, 4000), 1),
    ((1, 4000, 3), 1),
    ((2, 100_000), 1),
    ((1, 70_000, 15), 1),
    ((300, 64), 32),
    ((130, 24), 24),
    ((70, 48, 2), 16),
    ((5, 8, 8), 8),
    ((9, 12, 16), 12),
    ((40, 33, 3, 5), 11),
    ((3, 600), 600),
    ((5, 1200), 400),
    ((30, 130, 2), 13),
    ((9, 22, 3), 11),
    ((7, 45, 4), 9),
    ((20, 35, 5), 7),
    ((6, 30, 31), 10),
    ((4, 9, 33), 9),
    ((4, 21, 63), 7),
    ((5, 64, 40), 4),
    ((3, 40, 49), 10),
    ((11, 60, 36), 15),
    ((4, 19, 50), 19),
    ((3, 99, 64), 33),
    ((3, 35, 15), 7),
    ((2, 20, 1024), 20),
    ((2, 6, 1025), 6),
    ((7, 120), 3),
    ((61, 40), 40),
    ((5, 256), 4),
    ((3, 384), 3),
    ((3, 387), 3),
    ((4, 120, 3), 3),
    ((97, 12, 4), 3),
    ((67, 32), 4),
    ((131, 3, 5), 1),
    ((3, 3000, 2), 3),
    ((12, 1500, 7), 4),
    ((9, 640, 31), 5),
    ((20, 4096, 3), 16),
    ((33, 8192, 2), 8),
    ((6, 2048, 12), 2),
    ((5, 2050, 23), 2),
]


@pytest.mark.parametrize(("path", "dtype"), in_turn(PATHS, FLOATS, each=2))
def test_every_path(path, dtype):
    shape, groups = path
    call = tensors(shape, groups, (dtype,) * 9)
    places = [Place(shape, dtype), Place(shape[1:2], dtype), Place(shape[1:2], dtype)]
    call.update(zip(TENSORS[6:], (p.array for p in places), strict=True))
    run_two_phase(OP, *arguments(call, groups))
    check([p.array for p in places], inputs(call), groups)
    for place in places:
        place.check_guards()


@pytest.mark.parametrize("shape", [(1, 5), (3, 64, 1, 1), (40, 300, 1), (2, 4096)])
@pytest.mark.parametrize("dtype", FLOATS)
def test_groups_of_one_element(dtype, shape):
    """No gradient, and no rounding of it, with the forward's statistics; with others what xhat has of it."""
    rng = np.random.default_rng(31)
    groups = shape[1]
    x, dy = (normal(rng, (*shape, 2), dtype)[..., 0] for _ in range(2))
    gamma, beta = (normal(rng, (groups,), dtype) for _ in range(2))
    _, mean, rstd = descend.group_norm_swish(x, gamma, beta, groups, eps=1e-5)
    for scale in (1.0, -2.5, 0.0):
        dx, dgamma, _ = compute([dy, mean, rstd, x, gamma, beta], groups, scale)
        assert not dx.any()
        assert not dgamma.any()
    elsewhere = [dy, mean + mean.dtype.type(2**-10), rstd, x, gamma, beta]
    dx, *_ = compute(elsewhere, groups)
    golden = reference.group_norm_swish_grad(*elsewhere, groups)[0]
    each = [-1, groups, *[1] * len(shape[2:])]
    m, r, g = (wide(a).reshape(each) for a in (elsewhere[1], rstd, gamma))
    assert_close(dx, golden, np.abs(r * g * wide(dy) * ((wide(x) - m) * r) ** 2), 40, arithmetic_of(dy))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(("shape", "groups"), [((97, 32), 4), ((97, 12, 4), 3), ((97, 24, 5), 2), ((97, 3, 31), 1)])
def test_small_samples_do_not_know_how_many_they_are(shape, groups, dtype):
    """Small groups are computed together, as many as fit; for that they are packed, whatever the layout."""
    call = inputs(tensors(shape, groups, (dtype,) * 9))
    whole = compute(call, groups)
    dy, mean, rstd, x, gamma, beta = call
    for count in (1, 2, 7, 32, 33, 64, 96):
        some = [dy[:count], mean[:count], rstd[:count], x[:count], gamma, beta]
        results = compute(some, groups)
        assert_same_bits(results[:1], [whole[0][:count]])
        check(results, some, groups)
    apart = np.zeros((3, shape[0], shape[1] + 1, *shape[2:]), x.dtype)
    apart[0, :, 1:], apart[1, :, 1:] = dy, x
    results = compute([apart[0, :, 1:], mean, rstd, apart[1, :, 1:], gamma, beta], groups)
    assert_same_bits(results, whole)
    out = (apart[2, :, 1:], np.zeros_like(whole[1]), np.zeros_like(whole[2]))
    descend.group_norm_swish_grad(*call, groups, out=out)
    assert_same_bits(out, whole)
    assert not apart[2, :, 0].any()


@pytest.mark.parametrize("dtype", [F16, BF16])
@pytest.mark.parametrize(("shape", "groups"), [((4, 32, 16, 16), 8), ((64, 128), 4), ((16, 32, 7, 7), 32)])
def test_16_bit_results_are_the_correctly_rounded_golden(shape, groups, dtype):
    call = inputs(tensors(shape, groups, (dtype,) * 9))
    golden = reference.group_norm_swish_grad(*call, groups)
    assert precision.correct_rounding_share(compute(call, groups)[0], golden[0]) >= 0.999


@pytest.mark.parametrize("dtype", [F32, F16, BF16])
@pytest.mark.parametrize(("rows", "inner"), [(30_000, 1), (2000, 3), (3, 30_000), (200, 64)])
def test_the_error_of_sums_does_not_grow(dtype, rows, inner):
    """Sums of positive terms: every rounding counts."""
    rng = np.random.default_rng(13)
    shape = (rows, 4, inner)
    dy, x = ((1 + rng.random(shape)).astype(np.float32).astype(DTYPES[dtype]) for _ in range(2))
    mean, rstd = np.zeros((rows, 2), np.float32), np.ones((rows, 2), np.float32)
    gamma, beta = np.ones(4, np.float32), np.zeros(4, np.float32)
    call = [dy, mean, rstd, x, gamma, beta]
    golden = reference.group_norm_swish_grad(*call, 2)
    for got, exact in zip(compute(call, 2)[1:], golden[1:], strict=True):
        assert got.dtype == np.float32
        assert np.abs(got / exact - 1).max() < 3 * 2.0**-24


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(
    ("shape", "groups"),
    [((1, 16376), 8), ((1, 515, 7), 5), ((1, 120), 40), ((1, 6, 33), 2), ((1, 71, 2049), 1), ((1, 3, 70_000), 3)],
)
def test_sums_of_one_sample_wherever_they_are_written(shape, groups, dtype):
    """Sums go directly to the output if its dtype and layout allow it, else through a buffer: the bits are the same."""
    call = inputs(tensors(shape, groups, (dtype,) * 9))
    dx = compute(call, groups)[0]
    for written in {dtype, F32, F16} if dtype != "DOUBLE" else {dtype}:
        straight, apart = ([Place(shape[1:2], written, Layout((0,), (step,))) for _ in range(2)] for step in (1, 2))
        for places in straight, apart:
            results = descend.group_norm_swish_grad(*call, groups, out=(None, *(p.array for p in places)))
            check(results, call, groups)
            assert_same_bits(results[:1], [dx])
            for place in places:
                place.check_guards()
        assert_same_bits([p.array for p in straight], [p.array for p in apart])


def test_empty_tensors_on_host():
    for shape in ((0, 8, 3), (2, 8, 0), (0, 8), (2, 8, 3, 0, 5)):
        call = tensors(shape)
        run_two_phase(OP, *arguments(call))
        results = compute(inputs(call), 4)
        assert_same_bits(list(call.values())[6:], results)
        assert results[0].shape == shape
        for sums in results[1:]:
            np.testing.assert_array_equal(sums, np.zeros(8))
    dx, dgamma, dbeta = compute(inputs(tensors((2, 0, 3))), 4)
    assert (dx.shape, dgamma.shape, dbeta.shape) == ((2, 0, 3), (0,), (0,))


def test_statistics_of_empty_groups_take_neither_time_nor_memory():
    x, mean = np.empty((2**50, 2, 0), np.float32), np.broadcast_to(np.float32(1), (2**50, 2))
    gamma, sums = np.ones(2, np.float32), [np.full(2, np.nan, np.float32) for _ in range(2)]
    call = [x, mean, mean, x, gamma, gamma, 2, None, 1.0, True, True, x.copy(), *sums]
    with acl.product("host"):
        assert phase1(OP, *call)[0] < 1000
    run_two_phase(OP, *call)
    np.testing.assert_array_equal(sums, 0)


def test_results_that_the_call_allocates():
    call = tensors(dtypes=(BF16, F32, F32, BF16, F32, F16, BF16, F32, F16))
    dx, dgamma, dbeta = compute(inputs(call), 4)
    assert (dx.dtype, dgamma.dtype, dbeta.dtype) == (DTYPES[BF16], DTYPES[F32], DTYPES[F16])
    assert dx.flags.c_contiguous


# --- extreme values ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("scale", [0.0, -0.0, 1.0, -1.0, 1e4, -1e4, 1e-4, 1e30, -1e300, 1e300])
@pytest.mark.parametrize("shape", [(2, 4, 40), (3, 8), (3, 4, 5)])
def test_any_scale(dtype, scale, shape):
    call = inputs(tensors(shape, 2, (dtype,) * 9))
    with np.errstate(all="ignore"):
        results = compute(call, 2, scale)
    for result in results:
        assert np.isfinite(wide(result)).all()
    if abs(scale) < 1e6:
        check(results, call, 2, scale, 16.0)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("channels", [1, 8])
@pytest.mark.parametrize("pixels", [1, 5, 64])
@pytest.mark.parametrize("sign", [1, -1])
def test_a_scale_that_leaves_the_range_with_what_it_multiplies(sign, pixels, channels, dtype):
    """s * gamma and s * beta overflow, but s * z has the right sign: swish is a step function."""
    shape = (1, channels, pixels)
    call = tensors(shape, 1, (dtype,) * 9)
    call["x"] = np.linspace(-2, 2, channels * pixels).reshape(shape).astype(DTYPES[dtype])
    call["mean"], call["rstd"] = (np.full((1, 1), of, DTYPES[dtype]) for of in (0, 1))
    call["dy"][...] = 1
    call["gamma"], call["beta"] = (np.full(channels, of, DTYPES[dtype]) for of in (1000, 500))
    scale = sign * (1e305 if dtype == "DOUBLE" else 1e37)
    z = 1000 * wide(call["x"]) + 500
    with np.errstate(all="ignore"):
        dx, _, dbeta = results = compute(inputs(call), 1, scale)
        assert np.isfinite(wide(dx)).all()
        np.testing.assert_array_equal(wide(dbeta), (sign * z > 0).sum(axis=(0, 2)))
        check(results, inputs(call), 1, scale / 10, 16.0)  # at which float64 can hold it, and swish is a step as well


@pytest.mark.parametrize("dtype", [F32, BF16, "DOUBLE"])
def test_the_sigmoid_keeps_its_meaning(dtype):
    """One element a group of its own: rstd 1, gamma 0, so that z = beta and dbeta = dy * the slope."""
    z = np.concatenate([np.linspace(-130, 130, 2601), [-1e4, 1e4, -1e8, 1e8, -1e30, 1e30, 3e38, -3e38, 1e-40, 0.0]])
    beta = z.astype(DTYPES[dtype])
    n = len(beta)
    zeros, ones = np.zeros((1, n), DTYPES[dtype]), np.ones((1, n), DTYPES[dtype])
    _, _, dbeta = compute([ones, zeros, ones, zeros, zeros[0], beta], n)
    u = wide(beta)
    with np.errstate(over="ignore"):
        sig, rest = 1 / (1 + np.exp(-u)), 1 / (1 + np.exp(u))
    product = np.where(np.abs(u) < 700, u * sig * rest, 0.0)
    # A subnormal exp has lost bits, and z multiplies the error.
    lost = 0.0 if dtype == "DOUBLE" else 2.0**-121
    assert_close(dbeta, sig + product, sig + np.abs(product) + lost, 8.0, arithmetic_of(beta))


@pytest.mark.parametrize("dtype", [F32, F16, BF16])
@pytest.mark.parametrize("shape", [(2, 4, 33), (4, 6), (2, 4, 5)])
def test_large_finite_inputs_give_no_nan(dtype, shape):
    rng = np.random.default_rng(3)
    for size in (1e2, 1e4):
        call = tensors(shape, 2, (dtype,) * 9)
        call["x"] = normal(rng, shape, dtype, size)
        call["beta"] = normal(rng, shape[1:2], dtype, size)
        for scale in (1.0, -1.0, 1e4):
            for result in compute(inputs(call), 2, scale):
                assert not np.isnan(wide(result)).any()


@pytest.mark.parametrize(
    ("shape", "groups"),
    [((1, 64), 1), ((4, 64, 7), 1), ((4, 64, 7), 4), ((2, 4000, 9), 2), ((3, 96), 4), ((2, 8, 40), 2)],
)
@pytest.mark.parametrize("scale", [0.0, 1e-3])
def test_means_of_what_only_its_sum_has_no_room_for(shape, groups, scale):
    """Each product of gamma and dz is finite, and so are the means and the results."""
    call = tensors(shape, groups)
    rng = np.random.default_rng(5)
    call["dy"] = (2e7 * (1 + rng.random(shape))).astype(np.float32)
    call["gamma"] = (1e30 * (1 + rng.random(shape[1]))).astype(np.float32)
    call["x"] *= 1e-30
    call["mean"] *= 0
    call["beta"] *= 0
    results = compute(inputs(call), groups, scale)
    assert all(np.isfinite(result).all() for result in results)
    check(results, inputs(call), groups, scale)


@pytest.mark.parametrize("shape", [(4, 64, 7), (3, 64), (2, 6, 3), (2, 6, 40)])
def test_a_scale_of_0_whatever_it_multiplies(shape):
    """z has left the range of float32, the slope of swish is 1 / 2 all the same."""
    call = tensors(shape, 2)
    call["dy"] *= np.float32(1e-5)
    call["gamma"] = np.full(shape[1], 3e38, np.float32)
    call["x"] *= 4
    results = compute(inputs(call), 2, 0.0)
    assert all(np.isfinite(result).all() for result in results)
    check(results, inputs(call), 2, 0.0)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("inner", [3, 9, 20])
def test_the_bits_of_a_nan_do_not_depend_on_its_neighbours(dtype, inner):
    """Extreme elements are computed in another way, and so are the other elements of their vectors."""
    shape = (1, 64, inner)
    call = tensors(shape, 2, (dtype,) * 9)
    call["x"][0, 0, 0] = np.nan
    plain = [wide(sums)[0] for sums in compute(inputs(call), 2)[1:]]
    for channel in range(1, 64 // inner):
        extreme = {name: a.copy() for name, a in call.items()}
        extreme["x"][0, channel] = 1e4
        found = [wide(sums)[0] for sums in compute(inputs(extreme), 2)[1:]]
        assert np.isnan(found).all()
        assert np.array_equal(np.signbit(found), np.signbit(plain))


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("name", ["dy", "x", "mean", "rstd", "gamma", "beta"])
@pytest.mark.parametrize("shape", [(3, 4, 40), (3, 4), (3, 4, 5)])
def test_infinities_and_nan_stay_in_their_group(value, name, shape):
    call = tensors(shape, 2)
    index = {"gamma": (1,), "beta": (1,), "mean": (1, 0), "rstd": (1, 0)}.get(name, (1, 1, *[2] * (len(shape) - 2)))
    clean = compute(inputs(call), 2)
    call[name][index] = value
    dx, dgamma, dbeta = compute(inputs(call), 2)
    # The other group, and for what belongs to one sample the others too, have the bits that they had.
    assert_same_bits([dx[:, 2:], dgamma[2:], dbeta[2:]], [clean[0][:, 2:], clean[1][2:], clean[2][2:]])
    if name in ("dy", "x", "mean", "rstd"):
        assert_same_bits([dx[::2]], [clean[0][::2]])
    if np.isnan(value):
        assert np.isnan(dx[1, :2]).all() or name in ("gamma", "beta")
        assert np.isnan(dbeta[1]) or name in ("dy", "x", "mean", "rstd", "gamma")


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", ["dy", "x", "mean", "rstd", "gamma", "beta", "scale"])
@pytest.mark.parametrize(
    "shape", [(3, 2), (3, 4, 100), (3, 24, 64), (3, 4), (3, 4, 5), (3, 24, 9), (1, 4, 9000), (1, 4, 40_000)]
)
def test_infinities_go_where_the_definition_has_them(shape, name, dtype):
    """Above all where infinities of two terms would cancel: dz * x and mean * dz, of 16-bit elements."""
    for value, swish_scale in itertools.product((np.inf, -np.inf, np.nan), (1.0, -0.5, 0.0)):
        scale = value if name == "scale" else swish_scale
        call = tensors(shape, 2, (dtype,) * 9)
        if name != "scale":
            call[name].ravel()[1] = value
        golden = reference.group_norm_swish_grad(*inputs(call), 2, swish_scale=scale)
        for result, exact in zip(compute(inputs(call), 2, scale), golden, strict=True):
            assert_same_specials(result, exact)


@pytest.mark.parametrize("shape", [(3, 4, 100), (5, 24, 64), (1, 2, 9000), (1, 2, 70_000), (64, 4, 1024)])
@pytest.mark.parametrize(
    ("x", "dy", "rstd"),
    [(1e36, 1.0, 1e-36), (1e30, 1e30, 1e-30), (1e-3, 1e33, 1e3), (1e20, 1e-3, 1e-22), (1e-36, 1e-30, 1e36)],
)
def test_bfloat16_of_any_size(x, dy, rstd, shape):
    """dz * x and dz * rstd * rstd, from which long channels are usually computed, leave float32's range."""
    call = tensors(shape, 2, (BF16,) * 9)
    usual = {name: array.copy() for name, array in call.items()}
    for name, size in (("x", x), ("mean", x), ("dy", dy)):
        call[name][0] = (wide(call[name][0]) * size).astype(DTYPES[BF16])
    call["rstd"][0] = (wide(call["rstd"][0]) * rstd).astype(DTYPES[BF16])
    results = compute(inputs(call), 2)
    assert np.isfinite(wide(results[0])).all()
    check(results, inputs(call), 2)
    assert_same_bits([results[0][1:]], [compute(inputs(usual), 2)[0][1:]])


# --- memory ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("shape", "groups"), PATHS)
@pytest.mark.parametrize("dtype", [F32, BF16])
@pytest.mark.parametrize("source", [0, 3])
def test_in_place_on_every_path(shape, groups, dtype, source):
    call = inputs(tensors(shape, groups, (dtype,) * 9))
    expected = compute(call, groups)
    results = descend.group_norm_swish_grad(*call, groups, out=(call[source], None, None))
    assert results[0] is call[source]
    assert_same_bits(results, expected)


@pytest.mark.parametrize("output", [0, 1, 2])
@pytest.mark.parametrize("source", range(6))
def test_any_output_in_any_input(output, source):
    """[8, 8] in 8 groups: mean, rstd, x, dy and dx have one shape; with one sample and 8 groups dgamma is like mean."""
    shape = (8, 8)
    call = inputs(tensors(shape, 8))
    if output:
        call = inputs(tensors((1, 8), 8))
        call[1], call[2] = call[1].reshape(8), call[2].reshape(8)
    expected = compute([a.copy() for a in call], 8)
    if call[source].shape != expected[output].shape:
        return
    out: list[Array | None] = [None, None, None]
    out[output] = call[source]
    assert_same_bits(descend.group_norm_swish_grad(*call, 8, out=tuple(out)), expected)


def test_overlaps_are_refused():
    buffer = normal(np.random.default_rng(1), (40, 8))
    call = tensors((8, 8))
    call["x"] = buffer[:8]
    with acl.product("host"):
        for dx in (buffer[1:9], buffer[:8][::-1]):
            with refused(161002, OP, "dx_out overlaps x"):
                phase1(OP, *arguments(call | {"dx_out": dx}))
        with refused(161002, OP, "dgamma_out overlaps dbeta_out"):
            phase1(OP, *arguments(call | {"dgamma_out": buffer[20], "dbeta_out": buffer[20]}))
        with refused(161002, OP, "dgamma_out", "overlap each other"):
            phase1(OP, *arguments(call | {"dgamma_out": np.lib.stride_tricks.as_strided(buffer[20], (8,), (0,))}))
        phase1(OP, *arguments(call | {"dx_out": buffer[8:16], "dgamma_out": buffer[20], "dbeta_out": buffer[21]}))


@pytest.mark.parametrize("shape", [(4, 16, 6, 5), (4, 16, 50)])
def test_strided_batches_and_channels_last(shape):
    """Samples that lie apart are read where they are; other layouts go through a copy. The bits are the same."""
    call = inputs(tensors(shape, 4))
    expected = compute(call, 4)
    rank = len(shape)
    for layout in (
        Layout(tuple(range(rank)), (2, *[1] * (rank - 1))),
        Layout(tuple(range(rank)), (-1, *[1] * (rank - 1))),
        Layout((0, *range(2, rank), 1), (1,) * rank),
        Layout(tuple(reversed(range(rank))), (3,) * rank),
    ):
        for changed in (0, 3):
            moved = list(call)
            moved[changed] = placed(call[changed], layout)
            assert_same_bits(compute(moved, 4), expected)
        out = Place(shape, F32, layout)
        descend.group_norm_swish_grad(*call, 4, out=(out.array, None, None))
        assert_same_bits([out.array], expected[:1])
        out.check_guards()


# --- other witnesses ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("shape", "groups"), [((3, 8), 2), ((2, 6, 5), 6), ((2, 4, 3, 17), 1), ((2, 4, 2, 2, 3), 2)])
def test_pytorchs_autograd_agrees(shape, groups):
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(43)
    x, dy = (torch.tensor(rng.standard_normal(shape)) for _ in range(2))
    gamma, beta = (torch.tensor(rng.standard_normal(shape[1])) for _ in range(2))
    _, mean, rstd = descend.group_norm_swish(x, gamma, beta, groups)
    results = descend.group_norm_swish_grad(dy, mean, rstd, x, gamma, beta, groups)
    leaves = [t.clone().requires_grad_() for t in (x, gamma, beta)]
    torch.nn.functional.silu(torch.nn.functional.group_norm(leaves[0], groups, *leaves[1:], 1e-5)).backward(dy)
    for result, leaf in zip(results, leaves, strict=True):
        torch.testing.assert_close(result, leaf.grad, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize(("shape", "groups"), [((4, 32, 16, 16), 8), ((64, 256), 2)])
def test_at_least_as_exact_as_pytorch(shape, groups, dtype):
    """20 seeds of normal inputs: the whole backward pass, each library with the statistics that it computes itself."""
    torch = pytest.importorskip("torch")
    names = ("dx", "dgamma", "dbeta")
    ratios: dict[str, list[tuple[float, ...]]] = {name: [] for name in names}
    for seed in range(20):
        torch.manual_seed(seed)
        x, dy = (torch.randn(shape).to(getattr(torch, dtype)) for _ in range(2))
        gamma, beta = (torch.randn(shape[1]).to(x.dtype) for _ in range(2))
        exact = [t.double().numpy() for t in (x, gamma, beta)]
        _, m, r = reference.group_norm_swish(*exact, groups)
        golden = reference.group_norm_swish_grad(dy.double().numpy(), m, r, *exact, groups)
        _, mean, rstd = descend.group_norm_swish(x, gamma, beta, groups)
        ours = descend.group_norm_swish_grad(dy, mean, rstd, x, gamma, beta, groups)
        leaves = [t.clone().requires_grad_() for t in (x, gamma, beta)]
        torch.nn.functional.silu(torch.nn.functional.group_norm(leaves[0], groups, *leaves[1:], 1e-5)).backward(dy)
        kind = DTYPES[{"float32": F32, "float16": F16, "bfloat16": BF16}[dtype]]
        for name, mine, leaf, right in zip(names, ours, leaves, golden, strict=True):
            mine, theirs = mine.double().numpy(), leaf.grad.double().numpy()
            # Relative errors hang on a few near-cancellations, which RMSE judges; elsewhere they are a measure.
            clear = np.abs(right) > (0.02 if name == "dx" else 0.1) * right.std()
            rmse = precision.double_benchmark(mine, theirs, right, "L2", kind).ratios.rmse
            found = precision.double_benchmark(mine[clear], theirs[clear], right[clear], "L2", kind).ratios
            ratios[name].append((found.mare, found.mere, rmse))
            if name == "dx":
                assert found.mere <= 1.01, (seed, found)
                assert rmse <= 1.01, (seed, rmse)
    for name, rows in ratios.items():
        mare, mere, rmse = (float(np.median(column)) for column in zip(*rows, strict=True))
        assert max(mere, rmse) <= 1.0, (name, mere, rmse)
        assert mare <= (1.0 if name != "dx" else 2.0), (name, mare)  # dx: where the slope crosses 0; level L2
