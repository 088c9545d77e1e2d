"""Softmax, LogSoftmax and their gradients: what holds for operators on rows, and what is their own: any dimension."""

from __future__ import annotations

import itertools
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import descend
from cases import (
    DTYPES,
    FLOATS,
    Array,
    Place,
    assert_close,
    assert_same_bits,
    in_turn,
    layouts,
    normal,
    phase1,
    placed,
    refused,
    wide,
)
from descend import acl, reference
from pages import A2_TO_950, WITH_INFERENCE
from row_operator import RowOperatorTests

WITHOUT_BFLOAT16 = ("atlas-inference", "atlas-training")
FORWARDS, BACKWARDS = ("softmax", "log_softmax"), ("softmax_backward", "log_softmax_backward")
SHAPES = ((5, 7, 3), (9, 40), (3, 17, 64), (2, 300, 33), (1100, 5), (4, 4, 4, 4), (2, 1, 9), (700, 2, 1), (90, 3, 4))
"""Rows that are joined and not, few and many, whole packs and parts; every dimension of each."""


def terms_of(name: str, call: dict[str, Any]) -> Array:
    """The sizes of what a result is made of, with the roundings of the exponents."""
    dim = call["dim"]
    if name in FORWARDS:
        x = np.atleast_1d(wide(call["x"]))
        y = np.abs(np.atleast_1d(getattr(reference, name)(x, dim)))
        return y * (1 + np.abs(x - x.max(dim, keepdims=True, initial=-np.inf))) if name == "softmax" else 1 + y
    dy, y = (np.abs(np.atleast_1d(wide(call[n]))) for n in ("grad_output", "output"))
    if name == "softmax_backward":
        return np.asarray(y * (dy + (dy * y).sum(dim, keepdims=True)))
    return np.asarray(dy + np.exp(np.atleast_1d(wide(call["output"]))) * (1 + y) * dy.sum(dim, keepdims=True))


class SoftmaxTests(RowOperatorTests):
    SHAPE: ClassVar = (2, 3, 16)

    def terms(self, call: dict[str, Any]) -> tuple[Array, ...]:
        return (terms_of(self.OP, call),)

    @pytest.mark.parametrize(
        ("shape", "dtype"),
        in_turn([(1, 1), (1030, 17), (3, 257), (40, 2049), (9, 64), (500, 3), (2, 40_000)], FLOATS, each=2),
    )
    def test_ways_through_the_kernel(self, shape, dtype):
        super().test_ways_through_the_kernel(shape, dtype)

    def test_wrong_shapes_and_dtypes(self):
        for product in self.operator.products:
            call = self.call(self.SHAPE, 1, "FLOAT16")
            with acl.product(product):
                for p in (p for p in self.operator.parameters if p.kind == "tensor"):
                    array = call[p.python]
                    wrong = (
                        array[:-1],
                        array[0],
                        array.reshape(-1),
                        np.zeros_like(array, "i4"),
                        np.zeros_like(array, "c8"),
                    )
                    for other in wrong:
                        with refused(161002, self.OP):
                            phase1(self.OP, *{**call, p.python: other}.values())

    def test_dim_out_of_range(self):
        call = self.call(self.SHAPE, 1, "FLOAT16")
        for product in self.operator.products:
            with acl.product(product):
                for dim in (3, -4, 1 << 40):
                    with refused(161002, self.OP, f"dim is {dim}", "from -3 to 2"):
                        phase1(self.OP, *{**call, "dim": dim}.values())
                number = {n: np.ones((), np.float16) if isinstance(a, np.ndarray) else a for n, a in call.items()}
                phase1(self.OP, *{**number, "dim": 0}.values())
                with refused(161002, self.OP, "dim is 1", "from -1 to 0"):
                    phase1(self.OP, *{**number, "dim": 1}.values())


def forward_rows(without: tuple[str, ...]) -> dict[tuple[str, ...], tuple[str, ...]]:
    pairs = sorted(itertools.product(FLOATS, FLOATS), key=lambda pair: pair[0] != pair[1])
    return {pair: A2_TO_950 + (() if "BFLOAT16" in pair else without) for pair in pairs}


def backward_rows() -> dict[tuple[str, ...], tuple[str, ...]]:
    pairs = [(d, d, out) for d in FLOATS[:3] for out in (d, *(o for o in FLOATS if o != d))]
    return {pair: A2_TO_950 + (() if "BFLOAT16" in pair else WITHOUT_BFLOAT16) for pair in pairs}


class TestSoftmax(SoftmaxTests):
    OP = "softmax"
    ROWS: ClassVar = forward_rows((*WITHOUT_BFLOAT16, "atlas-200i-500-a2"))


class TestLogSoftmax(SoftmaxTests):
    OP = "log_softmax"
    ROWS: ClassVar = forward_rows(WITHOUT_BFLOAT16)


class TestSoftmaxBackward(SoftmaxTests):
    OP = "softmax_backward"
    ROWS: ClassVar = backward_rows()


class TestLogSoftmaxBackward(SoftmaxTests):
    OP = "log_softmax_backward"
    ROWS: ClassVar = backward_rows()


def arguments(name: str, shape: tuple[int, ...], dtype: str, dim: int, seed: int = 1) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    x = normal(rng, shape, dtype, 3)
    if name in FORWARDS:
        return {"x": x, "dim": dim}
    y = getattr(reference, name.removesuffix("_backward"))(x, dim).astype(DTYPES[dtype])
    return {"grad_output": normal(rng, shape, dtype), "output": y, "dim": dim}


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", [*FORWARDS, *BACKWARDS])
def test_every_dimension(name, dtype):
    """In memory of its own and in the place of an input, within guards."""
    for shape in SHAPES:
        for dim in range(len(shape)):
            call = arguments(name, shape, dtype, dim)
            place = Place(shape, dtype)
            getattr(descend, name)(**call, out=place.array)
            place.check_guards()
            golden = getattr(reference, name)(**call)
            arithmetic = "DOUBLE" if dtype == "DOUBLE" else "FLOAT"
            assert_close(place.array, golden, terms_of(name, call), 8 if dtype != "DOUBLE" else 16, arithmetic)
            from_end = getattr(descend, name)(**{**call, "dim": dim - len(shape)})
            assert_same_bits([from_end], [place.array])
            for taken in (n for n, a in call.items() if isinstance(a, np.ndarray)):
                mine = {n: a.copy() if isinstance(a, np.ndarray) else a for n, a in call.items()}
                getattr(descend, name)(**mine, out=mine[taken])
                assert_same_bits([mine[taken]], [place.array])


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_any_layout_and_dtypes(data):
    """Strides change no bit, and neither do neighbours in a batch."""
    name = data.draw(st.sampled_from((*FORWARDS, *BACKWARDS)))
    shape = tuple(data.draw(st.lists(st.sampled_from([1, 2, 3, 5, 9, 20, 70]), min_size=1, max_size=3)))
    dim = data.draw(st.integers(-len(shape), len(shape) - 1))
    dtypes = data.draw(st.tuples(*[st.sampled_from(FLOATS)] * 3))
    call = arguments(name, shape, "FLOAT", dim)
    names = [n for n, a in call.items() if isinstance(a, np.ndarray)]
    for n, dtype in zip(names, dtypes, strict=False):
        call[n] = placed(call[n].astype(DTYPES[dtype]), data.draw(layouts(len(shape))))
    place = Place(shape, dtypes[2], data.draw(layouts(len(shape))))
    getattr(descend, name)(**call, out=place.array)
    place.check_guards()
    plain = {n: np.ascontiguousarray(a) if n in names else a for n, a in call.items()}
    expected = getattr(descend, name)(**plain, out=np.empty(shape, DTYPES[dtypes[2]]))
    assert_same_bits([np.ascontiguousarray(place.array)], [expected])
    is_double = "DOUBLE" in (*(dtypes[: len(names)]), dtypes[2])
    golden, arithmetic = getattr(reference, name)(**plain), "DOUBLE" if is_double else "FLOAT"
    assert_close(expected, golden, terms_of(name, plain), 16, arithmetic)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("dim", [0, 1])
def test_numbers_that_are_far_apart(dtype, dim):
    """No finite input gives NaN; -inf counts for nothing; a vector that PyTorch has as NaN as a whole is so."""
    info, inf, nan = np.finfo(np.float32 if dtype == "BFLOAT16" else DTYPES[dtype]), np.inf, np.nan
    most = float(DTYPES[dtype].type(info.max * (0.99 if dtype == "BFLOAT16" else 1)))
    finite = [[most, -most, 0], [-most, -most, -most], [most, most, 1], [most / 2, most, 0], [1e-30, 0, -1e-30]]
    special = [[-inf, 0, 1], [-inf, -inf, -inf], [inf, 0, 1], [nan, 0, 1], [-inf, -most, -most]]
    for repeats in (1, 8, 200):
        rows = np.repeat(np.array(finite + special), repeats, axis=1)
        x = np.ascontiguousarray((rows if dim else rows.T).astype(DTYPES[dtype]))
        for name in FORWARDS:
            result, golden = getattr(descend, name)(x, dim), getattr(reference, name)(x, dim)
            first = np.moveaxis(wide(result), dim, 1), np.moveaxis(golden, dim, 1)
            assert np.isnan(first[0][6:9]).all()
            assert not np.isnan(np.delete(first[0], (6, 7, 8), 0)).any()
            with np.errstate(all="ignore"):
                assert_close(result, golden, terms_of(name, {"x": np.where(np.isfinite(x), wide(x), 0), "dim": dim}), 8)


def test_sums_that_leave_the_range_of_float():
    most = float(np.finfo(np.float32).max)
    dy = np.array([[most, most, -most, -most, 1], [most, most, most / 4, 0, 0]], np.float32)
    y = np.log(np.full_like(dy, 0.2))
    for dim, turn in itertools.product((0, 1), (False, True)):
        call = {"grad_output": dy.T.copy() if turn else dy, "output": y.T.copy() if turn else y, "dim": dim}
        result, golden = descend.log_softmax_backward(**call), reference.log_softmax_backward(**call)
        assert_close(result, golden, most, 4)
        assert not np.isnan(result).any()


@pytest.mark.parametrize("dtype", ["FLOAT", "BFLOAT16"])
@pytest.mark.parametrize(
    ("shape", "dim"), [((3, 1000), -1), ((1000, 3), 0), ((50, 4, 7), 1), ((3, 5), -1), ((2, 70001), -1)]
)
def test_a_difference_with_the_sum_that_leaves_the_range_of_float(dtype, shape, dim):
    """The gradient of finite numbers is finite wherever the numbers' own dtype can hold it."""
    random = np.random.default_rng(0)
    most = float(np.finfo(np.float32).max) if dtype == "FLOAT" else 255 * 2.0**120
    output = descend.softmax(random.normal(size=shape).astype(np.float32), dim).astype(DTYPES[dtype])
    for signs in (np.sign(random.normal(size=shape)), random.uniform(-1, 1, shape), np.ones(shape)):
        grad_output = (most * signs).astype(DTYPES[dtype])
        y, dy = output.astype(np.longdouble), grad_output.astype(np.longdouble)
        wanted = y * (dy - (dy * y).sum(dim, keepdims=True))
        holds = np.abs(wanted) < 0.99 * most
        got = descend.softmax_backward(grad_output, output, dim).astype(np.longdouble)
        slack = (2.0**-23 if dtype == "FLOAT" else 2.0**-8) * (np.abs(wanted) + 2.0**-22 * most * y)
        assert (np.abs(got - wanted)[holds] <= slack[holds]).all()


def test_double_is_exact():
    x = normal(np.random.default_rng(3), (40, 50), "DOUBLE", 5)
    for dim in (0, 1):
        np.testing.assert_allclose(descend.softmax(x, dim), reference.softmax(x, dim), rtol=1e-14)
        np.testing.assert_allclose(descend.log_softmax(x, dim), reference.log_softmax(x, dim), rtol=1e-14, atol=1e-15)


def test_one_element_is_certain():
    for dtype, shape in itertools.product(FLOATS, ((), (1,), (3, 1, 4))):
        x = normal(np.random.default_rng(1), shape, dtype, 30)
        dim = 1 if len(shape) == 3 else 0
        assert (wide(descend.softmax(x, dim)) == 1).all()
        assert (wide(descend.log_softmax(x, dim)) == 0).all()
        assert (wide(descend.softmax_backward(x, np.ones_like(x), dim)) == 0).all()


def test_the_examples_of_the_documents():
    x = np.arange(8, dtype=np.float32).reshape(4, 2)
    assert_close(descend.softmax(x, 0)[:, 0], [0.002144008783, 0.015842201178, 0.117058913239, 0.864954876800], 1, 4)
    y = np.array([[1, 1], [1, 2], [2, 2], [3, 3]], np.float32)
    assert (descend.softmax_backward(x, y, 0)[:, 0] == [-28, -26, -48, -66]).all()
    of_three = descend.log_softmax(np.arange(1, 10, dtype=np.float32).reshape(3, 3), 1)
    assert_close(of_three[:, 2], [-0.407605964] * 3, 1, 4)
    assert_close(descend.log_softmax_backward(x, y, 0)[0], [-12 * np.e, 1 - 16 * np.e], 60, 4)


@pytest.mark.parametrize("shape", [(0, 4), (3, 0), (2, 0, 6)])
def test_empty_tensors(shape):
    """A unit test of theirs has an output of another shape, which is refused."""
    x = np.empty(shape, np.float32)
    for name, dim in itertools.product((*FORWARDS, *BACKWARDS), range(len(shape))):
        inputs = [x] * (1 if name in FORWARDS else 2)
        assert getattr(descend, name)(*inputs, dim).shape == shape
        for product in WITH_INFERENCE:
            with acl.product(product):
                phase1(name, *inputs, dim, x.copy())
                with refused(161002, name, "shape"):
                    phase1(name, *inputs, dim, np.empty((2, 3), np.float32))
