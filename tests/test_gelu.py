"""GeluV2, GeluBackwardV2 and their forms with tanh: what holds for operators on rows, and what is their own."""

from __future__ import annotations

import itertools
import math
from typing import Any, ClassVar

import ml_dtypes
import numpy as np
import pytest

import descend
from cases import (
    DTYPES,
    FLOATS,
    Array,
    Place,
    assert_close,
    assert_same_bits,
    normal,
    phase1,
    python_value,
    refused,
    wide,
)
from descend import acl, reference
from pages import WITH_INFERENCE
from row_operator import ISAS, RowOperatorTests

WITH_BFLOAT16 = tuple(p for p in WITH_INFERENCE if p != "atlas-inference")
WITHOUT = ("atlas-inference", "atlas-training")


def steepness(x: Array, tanh: bool) -> Array:
    """How many roundings of x a result has beside its own: those of the exponent, which the definition has."""
    a = np.abs(wide(x))
    with np.errstate(over="ignore"):
        return np.minimum(1 + a * (1.6 + 0.08 * a * a) if tanh else 1 + a * a, 1500)


class GeluTests(RowOperatorTests):
    ROUNDINGS: ClassVar = 6.0
    FORM: ClassVar[Any]

    def call(self, *args: Any, **named: Any) -> dict[str, Any]:
        made = super().call(*args, **named)
        return {name: self.FORM if name == "approximate" else value for name, value in made.items()}

    def test_forms_that_do_not_exist(self):
        other: tuple[Any, ...] = {"gelu_v2": (2, -1), "gelu_backward_v2": ("", "erf", "tan", "tanhh")}[self.OP]
        for product, form in itertools.product(self.operator.products, other):
            call = self.call(self.SHAPE, 1, "FLOAT16")
            with acl.product(product), refused(161002, self.OP, "approximate is", "none", "tanh"):
                phase1(self.OP, *{**call, "approximate": form}.values())

    @pytest.mark.parametrize("beyond_line", [0, 16])
    def test_results_past_the_caches(self, beyond_line):
        """A call of more than the caches keep has the bits of small ones, wherever its result begins in a line."""
        for dtype in ("FLOAT", "BFLOAT16"):
            inputs = [normal(np.random.default_rng(i), (100_001,), dtype) for i in range(len(self.operator.inputs))]
            expected = getattr(descend, self.OP)(*inputs, self.FORM)
            times = 90 * 2**20 // (2 * expected.nbytes) + 1  # beyond last caches of up to 90 MB
            place = Place((times, expected.size), dtype, beyond_line=beyond_line)
            getattr(descend, self.OP)(*(np.tile(a, (times, 1)) for a in inputs), self.FORM, out=place.array)
            assert_same_bits([place.array], [np.broadcast_to(expected, place.array.shape)])
            place.check_guards()

    def test_scalars_and_empty_tensors(self):
        for shape in ((), (0,), (3, 0), (2, 0, 4), (1,) * 8):
            inputs = [normal(np.random.default_rng(i), shape) for i in range(len(self.operator.inputs))]
            result = getattr(descend, self.OP)(*inputs, self.FORM)
            assert result.shape == shape
            assert_close(result, getattr(reference, self.OP)(*inputs, self.FORM), np.ones(shape), 6)
            for product in self.operator.products:
                with acl.product(product):
                    phase1(self.OP, *inputs, self.FORM, np.empty(shape, np.float32))


class ForwardTests(GeluTests):
    OP = "gelu_v2"
    ROWS: ClassVar = {
        (d, d): WITH_BFLOAT16 + (WITHOUT if d != "BFLOAT16" else ()) for d in ("FLOAT", "FLOAT16", "BFLOAT16")
    }

    def terms(self, call: dict[str, Any]) -> tuple[Array, ...]:
        x = call["x"]
        return (steepness(x, self.FORM == 1) * np.abs(reference.gelu_v2(x, self.FORM)),)


class TestGelu(ForwardTests):
    FORM = 0


class TestGeluByTanh(ForwardTests):
    FORM = 1


def page_of_gradient() -> dict[tuple[str, ...], tuple[str, ...]]:
    """The inputs' dtypes promote: to FLOAT where they differ."""
    found = {}
    for dy, x in itertools.product(("FLOAT", "FLOAT16", "BFLOAT16"), repeat=2):
        products = WITH_BFLOAT16 + (WITHOUT if "BFLOAT16" not in (dy, x) else ())
        found[dy, x, dy if dy == x else "FLOAT"] = products
    return dict(sorted(found.items(), key=lambda item: len(set(item[0]))))


class BackwardTests(GeluTests):
    OP = "gelu_backward_v2"
    ROWS: ClassVar = page_of_gradient()

    def terms(self, call: dict[str, Any]) -> tuple[Array, ...]:
        x, dy, tanh = wide(call["x"]), np.abs(wide(call["grad_output"])), self.FORM == "tanh"
        near = np.clip(x, -40, 40)
        share = reference.gelu_v2(near, int(tanh)) / np.where(near == 0, 1, near) + 0.5 * (near == 0)
        pull = np.abs(near) * np.exp(-near * near / 2) / math.sqrt(2 * math.pi)
        if tanh:
            pull = np.abs(near) * share * (1 - share) * (1.6 + 0.22 * near * near)
        return (steepness(x, tanh) * dy * np.maximum(share, pull),)

    def test_inputs_that_broadcast(self):
        shapes = (((3, 1), (2, 3, 4)), ((), (5,)), ((4, 1, 6), (5, 1)), ((7,), (0, 7)), ((1, 70), (33, 1)))
        for dtype, (of_dy, of_x) in itertools.product(FLOATS, shapes):
            dy, x = normal(np.random.default_rng(1), of_dy, dtype), normal(np.random.default_rng(2), of_x, dtype)
            whole = [np.ascontiguousarray(a) for a in np.broadcast_arrays(dy, x)]
            result, expected = (descend.gelu_backward_v2(*inputs, self.FORM) for inputs in ((dy, x), whole))
            assert_same_bits([result], [expected.reshape(result.shape)])
        x = np.ones((2, 3), np.float16)
        for product in self.operator.products:
            with acl.product(product), refused(161002, self.OP, "must broadcast to one shape"):
                phase1(self.OP, x, x[:, :2].copy(), self.FORM, x.copy())

    def test_dtypes_promote(self):
        x = np.ones(3, np.float32)
        for dy, of_x in itertools.product(FLOATS, repeat=2):
            result = descend.gelu_backward_v2(x.astype(DTYPES[dy]), x.astype(DTYPES[of_x]), self.FORM)
            expected = dy if dy == of_x else "DOUBLE" if "DOUBLE" in (dy, of_x) else "FLOAT"
            assert result.dtype == DTYPES[expected]


class TestGeluBackward(BackwardTests):
    FORM = "none"


class TestGeluByTanhBackward(BackwardTests):
    FORM = "tanh"


def extremes(dtype: str) -> Array:
    """Numbers in all ranges of a dtype, both signs, dense where results leave the normal numbers."""
    info = ml_dtypes.finfo(DTYPES[dtype])
    small = (0.0, float(info.smallest_subnormal), float(info.smallest_normal), 1e-30, 1e-7, 0.3, 0.7517915, 0.752461)
    far = (*np.arange(1, 12, 0.37), *np.arange(9.5, 16, 0.05), *np.arange(20, 42, 0.31))
    values = np.array([*small, *far, 1e4, 1e19, 1e30, float(info.max) / 2, float(info.max)], np.float64)
    with np.errstate(over="ignore"):
        values = values.astype(DTYPES[dtype])
    values = values[np.isfinite(values.astype(np.float64))]
    return np.concatenate((values, -values))


@pytest.mark.parametrize("dtype", ["FLOAT", "FLOAT16", "BFLOAT16"])
@pytest.mark.parametrize("tanh", [False, True])
def test_extreme_numbers(dtype, tanh):
    """Within a few roundings of the result itself, also where that is tiny, and of the sign of x."""
    form, x = "tanh" if tanh else "none", extremes(dtype)
    y, golden = descend.gelu_v2(x, int(tanh)), reference.gelu_v2(x, int(tanh))
    assert_close(y, golden, np.abs(golden), 4)
    np.testing.assert_array_equal(np.signbit(wide(y)), np.signbit(wide(x)))
    slope = reference.gelu_backward_v2(1.0, x, form)
    for dy in (1.0, -3.0, float(ml_dtypes.finfo(DTYPES[dtype]).max)):
        given = np.full_like(x, dy)
        result = descend.gelu_backward_v2(given, x, form)
        # By tanh the slope is a difference, which crosses 0 near -0.75.
        size = np.abs(wide(given)) * (np.maximum(np.abs(slope), 0.3 * tanh * (np.abs(wide(x)) < 2)) + 2.0**-125)
        assert_close(result, wide(given) * slope, size, 5)
        assert not np.isnan(result).any()


# Numbers, and the results of them to 17 digits, computed with 45.
EXACT = {
    "erf": (
        *((-0.5, -0.15426876936299345), (-2.0, -0.045500263896358414), (-8.0, -4.9767684594174273e-15)),
        *((-20.0, -5.5072482372124674e-88), (-37.0, -2.1184613523340934e-298), (1.25, 1.1179377829164309)),
    ),
    "tanh": (
        *((-0.5, -0.15428599017485608), (-2.0, -0.045402305912224981), (-8.0, -3.1077829375011112e-21)),
        *((-15.0, -1.5584769937274055e-114), (-20.5, -1.3502940601643466e-280), (1.25, 1.1177142029697146)),
    ),
    "slope": (
        *((-0.5, 0.13250487534383716), (-0.75, 0.00077427826076489563), (-2.0, -0.085231801078196897)),
        *((-8.0, -3.979607261086796e-14), (-37.0, -7.8382986694185162e-297), (1.25, 1.1226615830694221)),
    ),
}


def test_double_is_exact_in_the_tail():
    for name, pairs in EXACT.items():
        x, exact = np.array(pairs).T.copy()
        results = {
            "erf": descend.gelu_v2(x),
            "tanh": descend.gelu_v2(x, 1),
            "slope": descend.gelu_backward_v2(np.ones_like(x), x),
        }
        np.testing.assert_allclose(results[name], exact, rtol=1e-15)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("tanh", [False, True])
def test_infinities_and_nan(dtype, tanh):
    """As the formula has them, and PyTorch: GELU of -inf is -inf * 0, and the slope at an infinity inf * 0."""
    form, x = "tanh" if tanh else "none", np.array([-np.inf, -2.0, 0.0, 3.0, np.inf, np.nan]).astype(DTYPES[dtype])
    y = wide(descend.gelu_v2(x, int(tanh)))
    assert y[4] == np.inf
    np.testing.assert_array_equal(np.isnan(y), np.isnan(reference.gelu_v2(x, int(tanh))))
    for dy in (-np.inf, 0.0, 1.5, np.nan):
        given = np.full_like(x, dy)
        result, golden = wide(descend.gelu_backward_v2(given, x, form)), reference.gelu_backward_v2(given, x, form)
        np.testing.assert_array_equal(np.isnan(result), np.isnan(golden))
        np.testing.assert_array_equal(result[np.isinf(golden)], golden[np.isinf(golden)])


def test_extreme_numbers_have_the_same_bits_on_any_instruction_set():
    code = """
import json
import descend
from cases import FLOATS, digest
from test_gelu import extremes
print(json.dumps(digest(*(
    result for d in FLOATS for x in [extremes(d)] for i, form in enumerate(("none", "tanh"))
    for result in (descend.gelu_v2(x, i), descend.gelu_backward_v2(x, x, form))
))))
"""
    assert len({python_value(code, DESCEND_ISA=isa) for isa in ISAS}) == 1
