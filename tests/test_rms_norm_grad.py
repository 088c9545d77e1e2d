"""RmsNormGrad: its arithmetic against the float64 definition, and where its tensors lie."""

from __future__ import annotations

import math
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
    Array,
    Layout,
    Place,
    assert_same_bits,
    digest,
    layouts,
    normal,
    phase1,
    placed,
    refused,
    run_two_phase,
    wide,
)
from descend import acl, precision, reference
from norm_gradients import check_rms_norm_grad as check

OP = "rms_norm_grad"
NAMES = ("dy", "x", "rstd", "gamma", "dx_out", "dgamma_out")

F32, F16, BF16 = "FLOAT", "FLOAT16", "BFLOAT16"
HERE = (*A2_TO_950, "atlas-inference", "host")


def arrays(
    dtypes: tuple[str, ...] = (F32,) * 6,
    shape: tuple[int, ...] = (2, 16),
    leading: int = 1,
    rng: np.random.Generator | None = None,
) -> list[Array]:
    """The six tensors of a call, the outputs NaN."""
    rng = rng or np.random.default_rng(1)
    shapes = (shape, shape, shape[:leading], shape[leading:], shape, shape[leading:])
    made = [normal(rng, s, F32).astype(DTYPES[d]) for s, d in zip(shapes, dtypes, strict=True)]
    for output in made[4:]:
        output.view(f"u{output.dtype.itemsize}")[...] = np.iinfo(f"u{output.dtype.itemsize}").max
    return made


def compute(dy: Array, x: Array, rstd: Array, gamma: Array) -> tuple[Array, Array]:
    dx, dgamma = descend.rms_norm_grad(dy, x, rstd, gamma)
    return dx, dgamma


# --- the numbers ---------------------------------------------------------------------------------------------------

# dy = x = 1 ... 32 as [2, 1, 16], rstd = [1, 2], gamma = 1 ... 16, by the formula.
EXAMPLE_DX = [
    *(-1155, -2308, -3459, -4608, -5755, -6900, -8043, -9184),
    *(-10323, -11460, -12595, -13728, -14859, -15988, -17115, -18240),
]
EXAMPLE_DX_2 = [
    *(-860030, -910584, -961134, -1011680, -1062222, -1112760, -1163294, -1213824),
    *(-1264350, -1314872, -1365390, -1415904, -1466414, -1516920, -1567422, -1617920),
]
EXAMPLE_DGAMMA = [
    *(579, 652, 731, 816, 907, 1004, 1107, 1216),
    *(1331, 1452, 1579, 1712, 1851, 1996, 2147, 2304),
]


@pytest.mark.parametrize("product", HERE)
def test_worked_example_of_the_document(product):
    numbers = np.arange(1, 33, dtype=np.float32).reshape(2, 1, 16)
    rstd, gamma = np.array([1, 2], np.float32), np.arange(1, 17, dtype=np.float32)
    golden_dx, golden_dgamma = reference.rms_norm_grad(numbers, numbers, rstd, gamma)
    np.testing.assert_array_equal(golden_dx.ravel(), EXAMPLE_DX + EXAMPLE_DX_2)
    np.testing.assert_array_equal(golden_dgamma, EXAMPLE_DGAMMA)
    dx, dgamma = Place((2, 1, 16)), Place((16,))
    run_two_phase(OP, numbers, numbers.copy(), rstd, gamma, dx.array, dgamma.array, product=product)
    np.testing.assert_array_equal(dx.array.ravel(), EXAMPLE_DX + EXAMPLE_DX_2)
    np.testing.assert_array_equal(dgamma.array, EXAMPLE_DGAMMA)


SIZES = st.one_of(
    st.integers(1, 9), st.sampled_from([0, 1, 15, 16, 17, 31, 32, 33, 63, 64, 65, 97, 127, 129, 257, 1021, 2049])
)


@st.composite
def shapes(draw: st.DrawFn, limit: int = 20000) -> tuple[int, ...]:
    rank = draw(st.integers(1, 8))
    shape: list[int] = []
    room = limit
    for _ in range(rank):
        size = draw(SIZES)
        size = size if size <= room else 1
        room //= max(size, 1)
        shape.append(size)
    return tuple(draw(st.permutations(shape)))


@settings(max_examples=120, deadline=None)
@given(st.data())
def test_any_shape_layout_and_dtype_on_host(data):
    shape = data.draw(shapes(), "shape")
    leading = data.draw(st.integers(0, len(shape) - 1), "leading")
    main = data.draw(st.sampled_from(FLOATS), "main")
    other = st.sampled_from(FLOATS)
    dtypes = (main, main, *data.draw(st.tuples(other, other, other, other), "dtypes"))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32), "seed"))
    given_shapes = (shape, shape, shape[:leading], shape[leading:], shape, shape[leading:])
    where = [data.draw(layouts(len(s)), name) for s, name in zip(given_shapes, NAMES, strict=True)]
    inputs = [placed(normal(rng, s, d), w) for s, d, w in zip(given_shapes[:4], dtypes[:4], where[:4], strict=True)]
    outputs = [Place(s, d, w) for s, d, w in zip(given_shapes[4:], dtypes[4:], where[4:], strict=True)]
    keep = [digest(a) for a in inputs]
    run_two_phase(OP, *inputs, *[o.array for o in outputs])
    check(outputs[0].array, outputs[1].array, *inputs)
    for output in outputs:
        output.check_guards()
    assert [digest(a) for a in inputs] == keep
    # The functional form is the same call.
    again = [Place(s, d, w) for s, d, w in zip(given_shapes[4:], dtypes[4:], where[4:], strict=True)]
    descend.rms_norm_grad(*inputs, out=tuple(o.array for o in again))
    assert_same_bits([o.memory for o in again], [o.memory for o in outputs])


@settings(max_examples=60, deadline=None)
@given(shape=shapes(4000), data=st.data())
def test_repeated_inputs(shape, data):
    """Strides of 0 and windows that overlap are fine for inputs."""
    rng = np.random.default_rng(0)
    leading = data.draw(st.integers(0, len(shape) - 1))
    row = normal(rng, shape[leading:])
    dy = np.broadcast_to(row, shape)
    x = np.broadcast_to(normal(rng, shape[:leading]).reshape(shape[:leading] + (1,) * row.ndim), shape)
    rstd = np.broadcast_to(np.float32(0.5), shape[:leading])
    gamma = np.broadcast_to(np.float32(-1.5), row.shape)
    dx, dgamma = compute(dy, x, rstd, gamma)
    check(dx, dgamma, dy, x, rstd, gamma)
    assert_same_bits((dx, dgamma), compute(dy.copy(), x.copy(), rstd.copy(), gamma.copy()))


def test_windows_as_inputs():
    line = normal(np.random.default_rng(2), (600,))
    x = np.lib.stride_tricks.sliding_window_view(line, 64)[::3]
    rstd, gamma = line[: len(x)], line[5:69]
    dx, dgamma = compute(x[::-1], x, rstd, gamma)
    check(dx, dgamma, x[::-1], x, rstd, gamma)


@pytest.mark.parametrize("dtype", [F32, F16, BF16])
@pytest.mark.parametrize("columns", [2, 3, 4, 7])
def test_a_row_does_not_notice_another_that_is_treated_apart(dtype, columns):
    """Where a row's terms cancel, the order in which they are added shows."""
    large = 2.0**12 if dtype == F16 else 2.0**30
    dy = np.ones((2, columns), DTYPES[dtype])
    x = dy.copy()
    x[:, 0] = x[:, -1] = dy[:, 0] = large
    dy[:, -1] = -large
    gamma = np.ones(columns, np.float32)
    alike, apart = (
        compute(dy, x, np.array([1, rstd], np.float32), gamma)[0] for rstd in (1, 2.0**41)
    )  # fmt: skip
    assert_same_bits([alike[:1]], [apart[:1]])


def test_empty_tensors_on_ascend_950():
    for shape, leading in (((0, 16), 1), ((3, 0, 2, 5), 2), ((3, 0), 1), ((4, 5, 0), 1)):
        call = arrays(shape=shape, leading=leading)
        run_two_phase(OP, *call, product="ascend-950")
        assert not call[5].any()


def test_empty_tensors_on_host():
    def empty(shape: tuple[int, ...], leading: int) -> tuple[Array, Array]:
        call = arrays(shape=shape, leading=leading)
        run_two_phase(OP, *call)
        dx, dgamma = compute(*call[:4])
        assert_same_bits((dx, dgamma), call[4:])
        return dx, dgamma

    dx, dgamma = empty((0, 5), 1)
    assert dx.shape == (0, 5)
    np.testing.assert_array_equal(dgamma, np.zeros(5))
    dx, dgamma = empty((3, 0, 2, 5), 2)
    np.testing.assert_array_equal(dgamma, np.zeros((2, 5)))
    for shape, leading in (((3, 0), 1), ((0,), 0), ((0, 0), 1), ((4, 5, 0), 1)):
        dx, dgamma = empty(shape, leading)
        assert dx.size == dgamma.size == 0
    # Whatever the strides say, elements that are not there do not overlap.
    nothing = np.lib.stride_tricks.as_strided(np.zeros(0, np.float32), (0, 16), (0, 0))
    zeros = descend.rms_norm_grad(nothing, nothing, nothing[:, 0], np.ones(16, np.float32), out=(nothing, None))[1]
    assert not zeros.any()
    # Strided: the zeros land in the right places.
    out = Place((5,), BF16, Layout((0,), (-2,)))
    descend.rms_norm_grad(np.zeros((0, 5)), np.zeros((0, 5)), np.zeros(0), np.ones(5), out=(None, out.array))
    assert not wide(out.array).any()
    out.check_guards()


# --- special values ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", FLOATS)
def test_subnormals_are_kept(dtype):
    """With x = 0 and rstd = gamma = 1, dx is dy."""
    tiny = {F32: 2.0**-149, F16: 2.0**-24, BF16: 2.0**-133, "DOUBLE": 2.0**-1074}[dtype]
    dy = (np.arange(-40, 40) * tiny).astype(DTYPES[dtype]).reshape(2, 40)
    assert np.count_nonzero(dy) == 79
    x, ones = np.zeros((2, 40), DTYPES[dtype]), np.ones(40, DTYPES[dtype])
    dx, _ = compute(dy, x, np.ones(2, np.float32), ones)
    np.testing.assert_array_equal(wide(dx), wide(dy))
    # dgamma: dy * x summed, below the normal range of float32.
    x[...] = 1
    small = np.full((2, 40), 2.0**-24 if dtype == F16 else 2.0**-130, DTYPES[dtype])
    rstd = np.full(2, 2.0**-120 if dtype == F16 else 2.0**-15, np.float32)
    _, dgamma = compute(small, x, rstd, ones)
    np.testing.assert_array_equal(wide(dgamma), np.full(40, 2.0**-143 if dtype == F16 else 2.0**-144))


def test_narrowing():
    """Ties to even, overflow to infinity exactly where it begins, one rounding."""
    x, rstd = np.zeros((1, 4), np.float16), np.ones(1, np.float32)
    dy = np.array([[2, 2, 2, -2]], np.float16)
    gamma = np.array([32760, np.nextafter(np.float32(32760), np.float32(0)), 1 + 2.0**-11, 32760], np.float32)
    dx, _ = compute(dy, x, rstd, gamma)
    np.testing.assert_array_equal(dx, np.array([[np.inf, 65504, 2, -np.inf]], np.float16))
    # 1 + 2^-8 is a tie of bfloat16 (to even: 1), a hair above it is not; 1 + 3 * 2^-8 ties upwards.
    gamma = np.array([1 + 2.0**-8, 1 + 2.0**-8 + 2.0**-23, 1 + 3 * 2.0**-8, 3.4e38], np.float32)
    one = np.ones((1, 4), DTYPES[BF16])
    dx, _ = compute(one, np.zeros_like(one), rstd, gamma)
    np.testing.assert_array_equal(wide(dx), [[1, 1 + 2.0**-7, 1 + 2.0**-6, np.inf]])


# --- memory --------------------------------------------------------------------------------------------------------


@st.composite
def in_place(draw: st.DrawFn) -> tuple[tuple[int, ...], int, str, int, str, Layout]:
    """A shape in which an output and an input have the same shape, and where they lie."""
    output, source = draw(st.sampled_from([(4, 0), (4, 1), (4, 2), (4, 3), (5, 0), (5, 1), (5, 2), (5, 3)]))
    n = draw(st.sampled_from([1, 2, 17, 64, 130]))
    m = draw(st.sampled_from([1, 2, 33]))
    if source == 2:  # rstd is as large as dx where rows have one element, as dgamma where M = N
        shape, leading = ((n, 1), 1) if output == 4 else ((n, n), 1)
    elif (output == 4 and source == 3) or (output == 5 and source < 2):
        shape, leading = (m, n), 0
    else:
        shape, leading = (m, n), 1
    same = {4: shape, 5: shape[leading:]}[output]
    return shape, leading, draw(st.sampled_from(FLOATS)), output, NAMES[source], draw(layouts(len(same)))


@settings(max_examples=120, deadline=None)
@given(in_place(), st.sampled_from(FLOATS), st.sampled_from(FLOATS))
def test_in_place(problem, other, dtype_of_other_output):
    """An output that is exactly one of the inputs gives what a separate one gives."""
    shape, leading, dtype, output, source_name, layout = problem
    source = NAMES.index(source_name)
    rng = np.random.default_rng(23)
    given_shapes = [shape, shape, shape[:leading], shape[leading:], shape, shape[leading:]]
    if source == 2 and output == 4:
        given_shapes[2] = shape  # [M, 1], as dx
    dtypes = [other, other, other, other, dtype_of_other_output, dtype_of_other_output]
    dtypes[source] = dtypes[output] = dtype
    if source < 2:
        dtypes[0] = dtypes[1] = dtype
    call = [normal(rng, s, d) for s, d in zip(given_shapes, dtypes, strict=True)]
    expected = [a.copy() for a in call]
    run_two_phase(OP, *expected)
    check(expected[4], expected[5], *expected[:4])

    place = Place(given_shapes[source], dtype, layout)
    place.array[...] = call[source]
    call[source] = call[output] = place.array
    run_two_phase(OP, *call)
    assert_same_bits(call[4:], expected[4:])
    place.check_guards()


def test_every_tensor_one_memory():
    """x = dy, and dx on top of both."""
    a = normal(np.random.default_rng(1), (9, 50))
    rstd, gamma = np.ones(9, np.float32), np.ones(50, np.float32)
    expected = compute(a.copy(), a.copy(), rstd, gamma)
    assert_same_bits(descend.rms_norm_grad(a, a, rstd, gamma, out=(a, None)), expected)
    one = np.full(1, 3.0, np.float32)
    expected = compute(one.copy(), one.copy(), one.copy(), one.copy())
    dx, dgamma = descend.rms_norm_grad(one, one, one, one, out=(one, None))
    assert_same_bits((dx, dgamma), expected)


def test_overlaps_are_refused():
    rng = np.random.default_rng(31)
    buffer = normal(rng, (40, 64))
    rstd, gamma, dgamma = normal(rng, (8,)), normal(rng, (32,)), np.zeros(32, np.float32)
    x, dy = buffer[:8, :32], normal(rng, (8, 32))

    def call(dx: Array, **change: Array) -> None:
        given = {"dy": dy, "x": x, "rstd": rstd, "gamma": gamma, "dx": dx, "dgamma": dgamma} | change
        before = digest(buffer)
        phase1(OP, *given.values())
        assert digest(buffer) == before

    with acl.product("host"):
        # Shifted by a row, by an element, reversed, other strides, another dtype: never silently wrong.
        for dx in (buffer[1:9, :32], buffer[:8, 1:33], x[::-1], x[:, ::-1], buffer.ravel()[: 8 * 32].reshape(8, 32)):
            with refused(161002, OP, "dx_out overlaps x"):
                call(dx)
        with refused(161002, OP, "dx_out overlaps x"):
            call(buffer.view(np.float16)[:8, :32])
        with refused(161002, OP, "dx_out overlaps gamma"):
            call(buffer[20:28, :32], gamma=buffer[21, :32])
        with refused(161002, OP, "dx_out overlaps rstd"):
            call(buffer[20:28, :32], rstd=buffer[20:28, 3])
        with refused(161002, OP, "dgamma_out overlaps x"):
            call(np.zeros((8, 32), np.float32), dgamma=x[3])
        with refused(161002, OP, "dx_out overlaps dgamma_out"):
            call(buffer[20:28, :32], dgamma=buffer[22, :32])
        # Elements that overlap each other.
        for dx in (
            np.lib.stride_tricks.as_strided(buffer, (8, 32), (4, 4)),
            np.lib.stride_tricks.as_strided(buffer, (8, 32), (0, 4)),
            np.lib.stride_tricks.as_strided(buffer, (8, 32), (16 * 4, 4)),
        ):
            with refused(161002, OP, "dx_out", "overlap each other"):
                call(dx, x=dy)
        with refused(161002, OP, "dgamma_out", "overlap each other"):
            call(dy.copy(), dgamma=np.lib.stride_tricks.as_strided(dgamma, (32,), (0,)))
        # What equal strides prove to be disjoint is fine: columns side by side, every other element, every other row.
        call(buffer[:8, 32:])
        call(buffer[8:16, :32])
        call(buffer[:8, 1::2], x=buffer[:8, 0::2])
        call(buffer[1:16:2, :32], x=buffer[0:16:2, :32])


def test_interleaved_input_and_output():
    rng = np.random.default_rng(37)
    buffer = normal(rng, (8, 64))
    x, dx = buffer[:, 0::2], buffer[:, 1::2]
    dy, rstd, gamma = normal(rng, (8, 32)), normal(rng, (8,)), normal(rng, (32,))
    expected, kept = compute(dy, x.copy(), rstd, gamma), x.copy()
    descend.rms_norm_grad(dy, x, rstd, gamma, out=(dx, None))
    assert_same_bits((dx, x), (expected[0], kept))


# --- other witnesses -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("normalized", [1, 2, 3])
def test_pytorchs_autograd_agrees(normalized):
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(43)
    shape = (3, 5, 7)
    x, dy = (torch.tensor(rng.standard_normal(shape)) for _ in range(2))
    gamma = torch.tensor(rng.standard_normal(shape[3 - normalized :]))
    _, rstd = descend.rms_norm(x, gamma, epsilon=1e-5)
    dx, dgamma = descend.rms_norm_grad(dy, x, rstd, gamma)
    x.requires_grad_()
    gamma.requires_grad_()
    torch.nn.functional.rms_norm(x, shape[3 - normalized :], gamma, 1e-5).backward(dy)
    torch.testing.assert_close(dx, x.grad, rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(dgamma, gamma.grad, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize(
    ("shape", "dtype"), [((128, 512), "float32"), ((256, 64), "bfloat16"), ((16, 4096), "float16")]
)
def test_at_least_as_exact_as_pytorch(shape, dtype):
    """Normal inputs: the whole backward pass, each library with the rstd that it computes itself."""
    torch = pytest.importorskip("torch")
    ratios: dict[str, list[precision.Limits]] = {"dx": [], "dgamma": []}
    for seed in range(20):
        torch.manual_seed(seed)
        x, dy = (torch.randn(shape).to(getattr(torch, dtype)) for _ in range(2))
        gamma = torch.randn(shape[1]).to(x.dtype)
        ours = descend.rms_norm_grad(dy, x, descend.rms_norm(x, gamma)[1], gamma)
        leaf, weight = x.clone().requires_grad_(), gamma.clone().requires_grad_()
        torch.nn.functional.rms_norm(leaf, shape[1:], weight, 1e-6).backward(dy)
        theirs = (leaf.grad, weight.grad)
        for name, our, their, golden in zip(ratios, ours, theirs, _golden(dy, x, gamma), strict=True):
            found = precision.double_benchmark(_numpy(our), _numpy(their), golden, "L2", DTYPES[F32]).ratios
            ratios[name].append(found)
            assert found.rmse <= 1.01, (name, seed, found)
            # At a near-cancellation even a correctly rounded float32 result may lose, and one element decides MARE:
            # there the errors' root mean square and the medians over the seeds judge.
            if our.dtype != torch.float32:
                assert found.mere <= 1.01, (name, seed, found)
    for name, found in ratios.items():
        medians = precision.Limits(*(float(np.median(column)) for column in zip(*found, strict=True)))
        assert max(medians) <= 1.0001, (name, medians)


def _numpy(tensor: Any) -> Array:
    """Exactly, in float64."""
    return tensor.detach().double().numpy()


def _golden(dy: Any, x: Any, gamma: Any) -> tuple[Array, Array]:
    wide_x = _numpy(x)
    rstd = 1 / np.sqrt((wide_x**2).mean(axis=1, keepdims=True) + 1e-6)
    return reference.rms_norm_grad(_numpy(dy), wide_x, rstd, _numpy(gamma))


def test_results_that_the_call_allocates():
    call = arrays()
    dx, dgamma = compute(*call[:4])
    assert (dx.dtype, dgamma.dtype) == (np.float32, np.float32)
    for dtype, expected in ((F16, np.float32), (BF16, np.float32), ("DOUBLE", np.float64)):
        call = arrays((dtype, dtype, F32, dtype, dtype, F32), (2, 3, 16), 1)
        dx, dgamma = compute(*call[:4])
        assert (dx.dtype, dx.shape) == (DTYPES[dtype], (2, 3, 16))
        assert (dgamma.dtype, dgamma.shape) == (expected, (3, 16))
        assert dx.flags.c_contiguous
        assert dx.flags.writeable


def test_mean_of_a_row_of_one():
    """N = 1 with rstd = 1 / |x|: the exact gradient is 0, and the arithmetic finds it to a rounding of its terms."""
    x = normal(np.random.default_rng(3), (50, 1))
    rstd = np.abs(1 / x)[:, 0]
    dx, dgamma = compute(np.ones_like(x), x, rstd, np.ones(1, np.float32))
    assert np.abs(dx[:, 0] / rstd).max() <= 4 * 2.0**-24
    assert math.isclose(dgamma[0], np.sign(x).sum(), abs_tol=1e-5)
