"""ScaledMaskedSoftmaxBackward: its contract row by row, its arithmetic against the float64 definition."""

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
    HUAWEI,
    PRODUCTS,
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
    refused,
    run_two_phase,
    wide,
)
from descend import acl, precision, reference

OP = "scaled_masked_softmax_backward"
F32, F16, BF16 = "FLOAT", "FLOAT16", "BFLOAT16"
# The page's table: one dtype for grad_output, y and out on these products; the mask is BOOL.
PAGE = {F32: A2_TO_950, F16: A2_TO_950, BF16: A2_TO_950}
HERE = (*A2_TO_950, "host")
NOT_HERE = ("atlas-200i-500-a2", "atlas-inference", "atlas-training")
TENSORS = ("grad_output", "y", "mask", "out")
SHAPE = (2, 3, 4, 32)


def arrays(dtype: str = F32, shape: tuple[int, ...] = SHAPE, mask: tuple[int, ...] | None = None) -> list[Any]:
    """grad_output, y, mask, scale, fix_triu_mask, out."""
    rng = np.random.default_rng(1)
    mask = (*shape[:1], *(1,) * (len(shape) - 3), *shape[-2:])[-len(shape) :] if mask is None else mask
    masked = np.asarray(rng.random(mask) < 0.3)
    y = descend.scaled_masked_softmax(normal(rng, shape, dtype), masked, 0.5)
    return [normal(rng, shape, dtype), y, masked, 0.5, False, np.full(shape, np.nan, DTYPES[dtype])]


def check(out: Array, grad: Array, y: Array, mask: Any, scale: float, fix: bool = False) -> None:
    grad, y = np.ascontiguousarray(grad), np.ascontiguousarray(y)
    with np.errstate(all="ignore"):
        products = np.abs(wide(grad) * wide(y))
        total = products.sum(axis=-1, keepdims=True)
        terms = abs(scale) * (products + np.abs(wide(y)) * total)
    roundings = 16.0 if arithmetic_of(grad) == "DOUBLE" else 8.0
    golden = reference.scaled_masked_softmax_backward(grad, y, mask, scale, fix)
    assert_close(out, golden, terms, roundings, arithmetic_of(grad))


def compute(*call: Any) -> Array:
    out: Array = descend.scaled_masked_softmax_backward(*call[:5])
    return out


# --- the contract -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("product", HERE)
def test_every_combination_of_floating_dtypes(product):
    pool = {d: arrays(d) for d in FLOATS}
    with acl.product(product):
        for grad, y, out in itertools.product(FLOATS, repeat=3):
            call = [pool[grad][0], pool[y][1], *pool[F32][2:5], pool[out][5]]
            if grad == y == out and (product == "host" or product in PAGE.get(grad, ())):
                phase1(OP, *call)
            else:
                with refused(161002, OP, product):
                    phase1(OP, *call)


@pytest.mark.parametrize("product", HERE)
@pytest.mark.parametrize("place", TENSORS)
def test_no_other_dtype_in_any_place(product, place):
    for wrong in DTYPES:
        if (wrong in FLOATS and place != "mask") or (wrong == "BOOL" and place == "mask"):
            continue
        call = arrays()
        i = (0, 1, 2, 5)[TENSORS.index(place)]
        call[i] = np.zeros(call[i].shape, DTYPES[wrong])
        with acl.product(product), refused(161002, OP, f" {place} has dtype {wrong}, but must be "):
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
        check(call[5], *call[:5])


@pytest.mark.parametrize("product", PRODUCTS)
@pytest.mark.parametrize("place", [0, 1, 2, 5])
def test_null(product, place):
    call = arrays()
    call[place] = None
    name = ("grad_output", "y", "mask", "", "", "out")[place]
    with acl.product(product):
        if product == "host" and name == "mask":
            phase1(OP, *call)
        else:
            with refused(161001, OP, f" {name} is null"):
                phase1(OP, *call)


SHAPES_TO_REFUSE = [
    ("y", (2, 3, 4, 31)),
    ("y", (6, 4, 32)),
    ("out", (2, 3, 4, 33)),
    ("out", (2, 3, 32, 4)),
    ("mask", (3, 1, 4, 32)),
    ("mask", (2, 2, 4, 32)),
    ("mask", (2, 1, 4, 31)),
    ("mask", (2, 1, 3, 32)),
    ("mask", (1, 2, 3, 4, 32)),
]


@pytest.mark.parametrize("product", HERE)
@pytest.mark.parametrize(("name", "shape"), SHAPES_TO_REFUSE)
def test_shapes(product, name, shape):
    call = arrays()
    i = (0, 1, 2, 5)[TENSORS.index(name)]
    call[i] = np.zeros(shape, call[i].dtype)
    with acl.product(product), refused(161002, OP, name, str(list(shape)), "[2, 3, 4, 32]"):
        phase1(OP, *call)


@pytest.mark.parametrize("product", A2_TO_950)
def test_what_only_host_takes(product):
    def refuse(call: list[Any], *words: str) -> None:
        with acl.product(product), refused(161002, OP, *words, product):
            phase1(OP, *call)
        run_two_phase(OP, *call, product="host")
        check(call[5], *call[:5])

    for mask in ((4, 32), (2, 3, 1, 32), (2, 3, 4, 1), (1, 1, 1, 1), (), (3, 4, 32)):
        refuse(arrays(mask=mask), "mask has shape", str(list(mask)), "[B or 1, N or 1, S1, S2]")
    for shape in ((32,), (4, 32), (3, 4, 32), (1, 2, 3, 4, 32), (1, 1, 1, 1, 1, 1, 2, 5)):
        refuse(arrays(shape=shape), "grad_output has shape", "rank 4")
    refuse(arrays(shape=(1, 1, 2, 4097)), "4097", "4096")
    call = arrays()
    call[4] = True
    refuse(call, "fix_triu_mask is true")


def test_limits_of_the_last_axis_on_atlas_products():
    for product in A2_TO_950:
        for columns in (0, 1, 4096):
            run_two_phase(OP, *arrays(shape=(1, 2, 3, columns)), product=product)


@pytest.mark.parametrize("shape", [(0, 3, 4, 32), (2, 0, 4, 32), (2, 3, 0, 32), (2, 3, 4, 0)])
def test_empty_tensors_are_fine(shape):
    for product in HERE:
        run_two_phase(OP, *arrays(shape=shape), product=product)
    assert compute(*arrays(shape=shape)).shape == shape


def test_sentences():
    call = arrays()
    call[1] = call[1][:, :, :, :5]
    with refused(161002) as found:
        phase1(OP, *call)
    assert found.sentence == f"{OP}: y has shape [2, 3, 4, 5], but must have that of grad_output, [2, 3, 4, 32]."
    call = arrays()
    call[4] = True
    with refused(161002) as found:
        phase1(OP, *call)
    assert found.sentence == f"{OP}: fix_triu_mask is true, but must be false on atlas-a2-training."
    with acl.product("host"), refused(161002, OP, "rank 2 or more"):
        phase1(OP, *(a[0, 0, 0] for a in call[:3]), 1.0, True, call[5][0, 0, 0])
    with acl.product("host"), refused(161002, OP, "rank 0"):
        phase1(OP, *(np.zeros((), np.float32) for _ in range(2)), None, 1.0, False, np.zeros((), np.float32))


def test_order_of_checks():
    call = arrays()
    call[0], call[1], call[5] = None, np.zeros(3, np.int32), np.zeros((2, 3), np.float32)
    with acl.product("atlas-training"):
        with refused(161001, OP, "grad_output is null"):
            phase1(OP, *call)
        call[0] = arrays()[0]
        with refused(561003, OP):
            phase1(OP, *call)
    with refused(161002, OP, "y has dtype INT32"):
        phase1(OP, *call)
    call[1] = np.zeros(3, np.float32)
    with refused(161002, OP, "y has shape [3]"):
        phase1(OP, *call)


def test_host_ignores_the_mask_where_the_triangle_takes_its_place():
    grad, y, _, scale, _, _ = arrays(shape=(2, 3, 5, 7))
    expected = compute(grad, y, None, scale, True)
    for mask in (np.ones(9, np.bool_), np.zeros(3, np.int32)):
        assert_same_bits([compute(grad, y, mask, scale, True)], [expected])


# --- the numbers ------------------------------------------------------------------------------------------------------


def test_by_hand():
    grad, y = np.array([[1.0, 2.0, 3.0]], np.float32), np.array([[0.5, 0.25, 0.25]], np.float32)
    out = compute(grad, y, np.array([[False, False, True]]), 2.0, False)
    # The sum is 0.5 + 0.5 + 0.75, the masked element's term included.
    np.testing.assert_array_equal(out, [[2 * 0.5 * (1 - 1.75), 2 * 0.25 * (2 - 1.75), 0.0]])


COLUMNS = st.one_of(st.integers(0, 40), st.sampled_from([63, 64, 65, 127, 257, 1021, 2047, 2048, 2049, 4097]))


@st.composite
def problems(draw: st.DrawFn) -> tuple[Any, ...]:
    rank = draw(st.integers(1, 5))
    columns = draw(COLUMNS)
    limit = 4 if columns < 300 else 2
    shape = (*(draw(st.integers(0 if columns % 5 == 0 else 1, limit)) for _ in range(rank - 1)), columns)
    mask = tuple(d if draw(st.booleans()) else 1 for d in shape)[draw(st.integers(0, rank)) :]
    kind = draw(st.sampled_from(["mask", "mask", "mask", "none", "triangle"] if rank > 1 else ["mask", "none"]))
    dtype = draw(st.sampled_from(FLOATS))
    scale = draw(st.sampled_from([1.0, 0.125, -0.3, 0.0, 17.0]))
    return shape, mask, kind, dtype, scale, [draw(layouts(rank)) for _ in range(3)], draw(layouts(len(mask)))


@settings(deadline=None, max_examples=200)
@given(problem=problems(), seed=st.integers(0, 1000), density=st.sampled_from([0.0, 0.3, 1.0]))
def test_any_shape_mask_and_layout(problem, seed, density):
    shape, mask_shape, kind, dtype, scale, places, mask_place = problem
    rng = np.random.default_rng(seed)
    grad, y = (placed(normal(rng, shape, dtype), place) for place in places[:2])
    mask = placed(np.asarray(rng.random(mask_shape) < density), mask_place) if kind == "mask" else None
    out = Place(shape, dtype, places[2])
    result = descend.scaled_masked_softmax_backward(grad, y, mask, scale, kind == "triangle", out=out.array)
    assert result is out.array
    check(out.array, grad, y, mask, scale, kind == "triangle")
    out.check_guards()


@pytest.mark.parametrize("dtype", FLOATS)
def test_masks_with_strides_of_zero(dtype):
    grad, y, *_ = arrays(dtype, (3, 4, 5, 70))
    rng = np.random.default_rng(2)
    whole = rng.random((3, 4, 5, 70)) < 0.5
    for mask in (
        np.broadcast_to(whole[0, 0, 0], whole.shape),
        np.broadcast_to(whole[..., :1], whole.shape),
        np.broadcast_to(whole[:, :1], whole.shape),
        np.broadcast_to(whole[:1, :, :1], whole.shape),
        np.broadcast_to(np.True_, whole.shape),
        whole[:, ::-1, :, ::-1],
        np.asfortranarray(whole),
    ):
        check(compute(grad, y, mask, 0.7, False), grad, y, mask, 0.7)


@pytest.mark.parametrize(("rows", "columns"), [(5, 5), (3, 8), (8, 3), (1, 6), (6, 1), (4, 5000)])
def test_triangle_of_any_shape(rows, columns):
    rng = np.random.default_rng(3)
    grad, y = normal(rng, (2, rows, columns)), normal(rng, (2, rows, columns))
    out = compute(grad, y, None, 0.5, True)
    i, j = np.indices((rows, columns))
    np.testing.assert_array_equal(out[:, j > i], 0)
    check(out, grad, y, None, 0.5, True)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("columns", [8193, 140_000])
def test_few_rows_whose_columns_threads_share(columns, dtype):
    grad, y, mask, *_ = arrays(dtype, (3, columns), (3, columns))
    grad[1, columns // 2] = np.inf  # its row is computed in double
    for some in (mask, mask[:, :1], mask[:1], mask[:, ::-1], None):
        expected = compute(grad, y, some, 0.5, False)
        check(expected, grad, y, some, 0.5)
        out = grad.copy()
        descend.scaled_masked_softmax_backward(out, y, some, 0.5, out=out)
        assert_same_bits([out], [expected])
    check(compute(grad[::2], y[::2], None, 17.0, True), grad[::2], y[::2], None, 17.0, True)


@pytest.mark.parametrize("dtype", FLOATS)
def test_scales_of_any_size(dtype):
    """A scale of moderate size is multiplied into the difference, any other separately."""
    grad, y, mask, *_ = arrays(dtype, shape=(1, 2, 3, 70))
    for scale in (1.0, -1.0, 1.0 + 2.0**-20, 300.0, 2.0**-64, 2.0**-65, 1e-30, 0.0):
        check(compute(grad, y, mask, scale), grad, y, mask, scale)
    for bits in (0x7FF8000000000000, 0x7FFFFFFFFFFFFFFF, 0xFFFFFFFFFFFFFFFF):  # the last bits must not round up
        out = wide(compute(grad, y, mask, float(np.uint64(bits).view(np.float64))))
        assert np.array_equal(np.isnan(out), np.broadcast_to(~mask, out.shape))
        assert not out[np.broadcast_to(mask, out.shape)].any()


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_scales_that_float_does_not_hold(dtype, sign):
    """Only the product must be representable: a tiny scale and a huge element, or the reverse, lose nothing."""
    size = {"FLOAT": 1e30, "FLOAT16": 1e4, "BFLOAT16": 1e30, "DOUBLE": 1e300}[dtype]
    grad, y, mask, *_ = arrays(dtype, shape=(1, 2, 3, 70))
    for scale in (1e300, 1e39, 3.5e38, 1e-38, 1e-40, 1e-46, 1e-300, 5e-324):
        factor = grad.dtype.type(1 / size if scale > 1 else size)
        call = (grad * factor, y, mask, sign * scale)
        check(compute(*call, False), *call)
        result = np.full_like(grad, np.nan)
        run_two_phase(OP, *call, False, result)
        assert_same_bits([result], [compute(*call, False)])
    out = wide(compute(grad, y, None, sign * np.inf, False))
    assert not np.isfinite(out).any()


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("columns", [1, 2, 3, 4, 5, 8])
def test_narrow_rows_have_the_same_bits_however_they_lie(dtype, columns):
    """Numbers of many sizes, so that the order in which a row is added up shows."""
    rng = np.random.default_rng(37)
    grad, y = (
        (rng.standard_normal((1, 1, 20_000, columns)) * 10.0 ** rng.integers(-3, 4, (1, 1, 20_000, columns)))
        .astype(np.float32)
        .astype(DTYPES[dtype])
        for _ in range(2)
    )
    if columns == 4:  # in bfloat16 one order gives 3.4375, another 3.421875
        grad[..., 7, :] = 17.375, -46.5, 1.078125, -1.0703125
        y[..., 7, :] = -0.17578125, -6.40625, -0.004638671875, 241
    apart = np.zeros((1, 1, 20_000, columns + 3), DTYPES[dtype])
    for scale in (1.0, 0.7):
        dense = descend.scaled_masked_softmax_backward(grad, y, None, scale, False)
        out = apart[..., :columns]
        descend.scaled_masked_softmax_backward(grad, y, None, scale, False, out=out)
        assert_same_bits([out], [dense])
        assert not apart[..., columns:].any()


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("place", [0, 1])
def test_infinities_and_nan(dtype, bad, place):
    call = arrays(dtype, (2, 2, 4, 75))
    call[2][...] = False
    call[2][:, :, 1:3, 5:9] = True
    call[place][:, :, 1, 7] = bad  # under the mask
    call[place][:, :, 3, 40] = bad  # not
    out = compute(*call)
    assert (out[np.broadcast_to(call[2], out.shape)].view(f"u{out.dtype.itemsize}") == 0).all()  # +0, all bits
    check(out, *call[:5])
    if np.isnan(bad):
        assert np.isnan(out[:, :, 1, :5].astype(np.float32)).all()
        assert np.isnan(out[:, :, 1, 9:].astype(np.float32)).all()
        assert np.isnan(out[:, :, 3].astype(np.float32)).all()
    assert np.isfinite(out[:, :, [0, 2]].astype(np.float32)).all()


@pytest.mark.parametrize(
    ("columns", "dtype"),
    in_turn([48, 65, 100, 127, 160, 255, 256, 257, 384, 512, 513, 700, 2049, 4100], FLOATS, each=2),
)
@pytest.mark.parametrize("forward", [False, True])
def test_rows_that_are_not_aligned_and_too_many_for_the_caches(forward, columns, dtype):
    """They go past the caches line by line or by way of a stage; they are those of few rows."""
    grad, y, mask, *_ = arrays(dtype, (1, 1, 6, columns))
    y[0, 0, 3] = np.inf if columns in (65, 257, 513) else y[0, 0, 3]  # is treated apart
    times = 60 * 2**20 // (2 * y.nbytes) + 1  # beyond last caches of up to 90 MB

    def run(times: int, gap: int, in_place: bool = False, beyond_line: int = 16) -> Place:
        place = Place((times, 1, 6, columns + gap), dtype, beyond_line=beyond_line)
        grads, ys = (np.tile(a, (times, 1, 1, 1)) for a in (grad, y))
        out = place.array[..., :columns]
        if in_place:
            out[...] = grads
            grads = out
        with acl.product("host"), np.errstate(all="ignore"):
            if forward:
                descend.scaled_masked_softmax(grads, mask, 0.5, out=out)
            else:
                descend.scaled_masked_softmax_backward(grads, ys, mask, 0.5, out=out)
        return place

    expected = run(1, 0).array
    for gap, in_place, beyond_line in ((0, False, y.itemsize), (0, True, 16), (3, False, 16), (3, True, 16)):
        place = run(times, gap, in_place, beyond_line)
        found = place.array[..., :columns]
        assert_same_bits([found], [np.broadcast_to(expected, found.shape)])
        assert np.isnan(wide(place.array[..., columns:])).all()  # nothing was written to the gaps
        place.check_guards()


@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("columns", [1, 3, 70, 300, 3000])
def test_in_place(which, dtype, columns):
    call = arrays(dtype, (2, 3, 40, columns))
    call[0][1, 1, 7, 0] = np.inf  # its row is computed in double
    expected = compute(*call)
    out = call[which]
    descend.scaled_masked_softmax_backward(*call[:5], out=out)
    assert_same_bits([out], [expected])
    with acl.product("host"), refused(161002, OP, "out overlaps"):
        phase1(OP, *call[:5], out[::-1])
    with acl.product("host"), refused(161002, OP, "out overlaps mask"):
        memory = np.zeros(64, np.float32)
        phase1(OP, *(np.zeros((8, 8), np.float32) for _ in range(2)), memory.view(np.bool_)[:8], 1.0, False,
               memory.reshape(8, 8))  # fmt: skip


@given(st.lists(st.tuples(st.integers(1, 6), st.integers(0, 30)), min_size=1, max_size=4))
def test_outputs_whose_elements_overlap_each_other(layout):
    shape, strides = zip(*layout, strict=True)
    places = (np.indices(shape).reshape(len(shape), -1).T @ np.array(strides)).tolist()
    out = np.lib.stride_tricks.as_strided(np.empty(max(places) + 1, np.float16), shape, [2 * s for s in strides])
    grad = np.ones(shape, np.float16)
    with acl.product("host"):
        if len(set(places)) == len(places):
            phase1(OP, grad, grad, None, 1.0, False, out)
        else:
            with refused(161002, OP, "so that its elements overlap each other"):
                phase1(OP, grad, grad, None, 1.0, False, out)


def test_rows_of_a_long_input_that_overflow_16_bits():
    grad, y = np.full((2, 100), 6e4, np.float16), np.full((2, 100), 0.01, np.float16)
    out = compute(grad, y, None, 1.0, False)
    check(out, grad, y, None, 1.0)
    assert np.isfinite(out.astype(np.float32)).all()


# --- other witnesses --------------------------------------------------------------------------------------------------


def test_pytorchs_autograd_agrees():
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(43)
    x, grad = (torch.tensor(rng.standard_normal((2, 3, 5, 9))) for _ in range(2))
    mask = torch.tensor(rng.random((2, 1, 5, 9)) < 0.3)
    y = descend.scaled_masked_softmax(x, mask, 0.7)
    out = descend.scaled_masked_softmax_backward(grad, y, mask, 0.7)
    x.requires_grad_()
    torch.softmax((x * 0.7).masked_fill(mask, -10000.0), -1).backward(grad)
    torch.testing.assert_close(out, x.grad, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("shape", [(2, 2, 64, 64), (1, 2, 32, 1024)])
def test_at_least_as_exact_as_pytorch(shape, dtype):
    torch = pytest.importorskip("torch")
    ratios = []
    for seed in range(20):
        torch.manual_seed(seed)
        kind = getattr(torch, dtype)
        x, grad = torch.randn(shape).to(kind), torch.randn(shape).to(kind)
        mask = torch.rand(shape[0], 1, *shape[2:]) < 0.2
        y = torch.softmax((x * 0.3).masked_fill(mask, -10000.0).float(), -1).to(kind)
        ours = descend.scaled_masked_softmax_backward(grad, y, mask, 0.3)
        theirs = torch._softmax_backward_data(grad, y, -1, kind).masked_fill(mask, 0.0) * 0.3
        exact = [a.double().numpy() for a in (grad, y)]
        golden = reference.scaled_masked_softmax_backward(*exact, mask.numpy(), 0.3)
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
    golden = reference.scaled_masked_softmax_backward(*call[:5])
    assert precision.correct_rounding_share(compute(*call), golden) >= 0.999


@pytest.mark.parametrize("product", HUAWEI)
def test_double_is_for_host_alone(product):
    with acl.product(product), refused(561003 if product in NOT_HERE else 161002, OP):
        phase1(OP, *arrays("DOUBLE"))


def test_inputs_with_strided_rows_need_no_workspace():
    grad, y, mask, scale, fix, out = arrays(shape=(2, 3, 8, 64))
    wider = placed(np.concatenate([grad, grad], axis=-1), Layout.contiguous(4))
    with acl.product("host"):
        assert phase1(OP, wider[..., 64:], y, np.asfortranarray(mask), scale, fix, out)[0] == 0
