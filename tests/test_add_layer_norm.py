"""AddLayerNorm and AddLayerNormGrad: what is their own. All else is in row_operator.py."""

from __future__ import annotations

import itertools
from typing import Any, ClassVar

import numpy as np
import pytest

import descend
from cases import A2_TO_950, DTYPES, FLOATS, Array, assert_same_bits, normal, phase1, refused, run_two_phase, wide
from descend import acl, reference
from row_operator import RowOperatorTests
from test_deep_norm import terms_of_norm

F32, F16, BF16 = "FLOAT", "FLOAT16", "BFLOAT16"
HUAWEI = (*A2_TO_950, "atlas-inference")


def combination(x1: str, x2: str, parameter: str, total: str) -> tuple[str, ...]:
    return (x1, x2, parameter, parameter, total, total, F32, F32, total)


class TestAddLayerNorm(RowOperatorTests):
    OP = "add_layer_norm"
    ROWS: ClassVar = {
        combination(F16, F16, F16, F16): HUAWEI,
        combination(F32, F32, F32, F32): HUAWEI,
        combination(BF16, BF16, BF16, BF16): A2_TO_950,
        **{combination(*pair, F32, F32): A2_TO_950 for d in (F16, BF16) for pair in ((F32, d), (d, F32))},
        **{combination(d, d, F32, d): A2_TO_950 for d in (F16, BF16)},
    }
    POSITIVE = ()
    OF_SHAPES = 561002

    def call(self, *args: Any, **named: Any) -> dict[str, Any]:
        return super().call(*args, **named) | {"additional_output": True}

    def terms(self, call: dict[str, Any]) -> tuple[Array, ...]:
        x1, x2, gamma, beta, bias = (np.abs(wide(call[n])) for n in ("x1", "x2", "gamma", "beta", "bias"))
        _, mean, rstd, x = reference.add_layer_norm(**call)
        size = x1 + x2 + bias
        y, of_mean, of_rstd = terms_of_norm(x, size, mean, rstd, gamma, beta)
        return y, of_mean, of_rstd, size


class TestAddLayerNormGrad(RowOperatorTests):
    OP = "add_layer_norm_grad"
    ROWS: ClassVar = {
        (d, d, d, F32, F32, d, d, d, F32, F32): HUAWEI if d != BF16 else A2_TO_950 for d in (F32, F16, BF16)
    }

    def terms(self, call: dict[str, Any]) -> tuple[Array, ...]:
        dy, x1, x2, gamma, dsum = (np.abs(wide(call[name])) for name in ("dy", "x1", "x2", "gamma", "dsum"))
        split = dy.ndim - gamma.ndim
        rows, row = tuple(range(split)), tuple(range(split, dy.ndim))
        mean, rstd = (np.abs(wide(call[n])).reshape(dy.shape[:split] + (1,) * gamma.ndim) for n in ("mean", "rstd"))
        xhat, g = (x1 + x2 + mean) * rstd, dy * gamma
        n = max(gamma.size, 1)
        mean_g, mean_g_xhat = g.sum(axis=row, keepdims=True) / n, (g * xhat).sum(axis=row, keepdims=True) / n
        dx = rstd * (g + mean_g + xhat * mean_g_xhat) + dsum
        return dx, (dy * xhat).sum(axis=rows), dy.sum(axis=rows)


SHAPES = [(300, 3), (40, 33), (9, 700), (5, 5000), (2, 40_000)]


def drawn(shape: tuple[int, ...], dtype: str = F32) -> list[Array]:
    """x1, x2, gamma and beta."""
    rng = np.random.default_rng(0)
    return [normal(rng, s, dtype) for s in (shape, shape, shape[-1:], shape[-1:])]


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("shape", SHAPES)
def test_forms(shape, dtype):
    """No bias is one of -0; a bias of gamma's shape is one whose rows are all the same; and x may stay away."""
    x1, x2, gamma, beta = drawn(shape, dtype)
    bias = normal(np.random.default_rng(1), shape[-1:], dtype)
    whole = descend.add_layer_norm(x1, x2, gamma, beta, np.full_like(x1, -0.0), additional_output=True)
    assert_same_bits(descend.add_layer_norm(x1, x2, gamma, beta, additional_output=True), whole)
    *alone, nothing = descend.add_layer_norm(x1, x2, gamma, beta)
    assert nothing is None
    assert_same_bits(alone, whole[:3])
    repeated = np.broadcast_to(bias, shape)
    once = descend.add_layer_norm(x1, x2, gamma, beta, bias, additional_output=True)
    assert_same_bits(once, descend.add_layer_norm(x1, x2, gamma, beta, repeated.copy(), additional_output=True))
    assert_same_bits(once, descend.add_layer_norm(x1, x2, gamma, beta, repeated, additional_output=True))


@pytest.mark.parametrize("shape", SHAPES)
def test_it_is_layer_norm_where_the_sum_is_exact(shape):
    x1, x2, gamma, beta = drawn(shape)
    x1, x2 = (np.round(x * 64) / 64 for x in (x1, x2))
    y, mean, rstd, x = descend.add_layer_norm(x1, x2, gamma, beta, additional_output=True)
    np.testing.assert_array_equal(x, x1 + x2)
    assert_same_bits((y, mean, rstd), descend.layer_norm(x1 + x2, gamma.shape, gamma, beta, 1e-5))
    results = descend.add_layer_norm_grad(x1, x1, x2, rstd, mean, gamma)
    assert_same_bits(descend.add_layer_norm_grad(x1, x, None, rstd, mean, gamma), results)
    expected = descend.layer_norm_backward(x1, x, gamma.shape, mean, rstd, gamma)
    for result, exact in zip(results, expected, strict=True):
        np.testing.assert_allclose(result, exact, rtol=1e-4, atol=1e-4)
    added, *_ = descend.add_layer_norm_grad(x1, x1, x2, rstd, mean, gamma, x2)
    np.testing.assert_array_equal(added, results[0] + x2)


def test_dtypes_of_allocated_results():
    """Where the terms have two dtypes: FLOAT, or DOUBLE if one is."""
    x1, x2, gamma, beta = drawn((3, 8))
    for first, second in itertools.product(FLOATS, FLOATS):
        y, mean, _, x = descend.add_layer_norm(
            x1.astype(DTYPES[first]), x2.astype(DTYPES[second]), gamma, beta, additional_output=True
        )
        both = "DOUBLE" if "DOUBLE" in (first, second) else F32
        assert y.dtype == x.dtype == DTYPES[first if first == second else both]
        assert mean.dtype == (np.float64 if first == "DOUBLE" else np.float32)


@pytest.mark.parametrize("product", [*HUAWEI, "host"])
def test_what_the_products_take(product):
    x1, x2, gamma, beta = drawn((2, 3, 16), F16)
    numbers = [np.full((2, 3, 1), np.nan, np.float32) for _ in range(2)]
    y, x = (np.full_like(x1, np.nan) for _ in range(2))
    rows = [x1[0, 0], x2[0, 0], gamma, beta]

    def call(*given: Any, bias: Any = None, epsilon: float = 1e-5, whole: bool = False, out: Any = (y, *numbers, x)):
        return [*given, bias, epsilon, whole, *out]

    with acl.product(product):
        # Without additional_output x is checked, but not written.
        run_two_phase("add_layer_norm", *call(x1, x2, gamma, beta), product=product)
        assert_same_bits([y, *numbers], descend.add_layer_norm(x1, x2, gamma, beta)[:3])
        assert np.isnan(wide(x)).all()
        without_x = call(x1, x2, gamma, beta, out=(y, *numbers, None))
        if product == "host":
            phase1("add_layer_norm", *without_x)
        else:
            with refused(161001, "add_layer_norm", "x_out is null"):
                phase1("add_layer_norm", *without_x)
        one = [np.empty(1, np.float32) for _ in range(2)]
        phase1("add_layer_norm", *call(*rows, out=(y[0, 0], *one, x[0, 0])))
        for wrong in (gamma[:8], x1[:1], np.ones((1, 16), np.float16)):
            with refused(561002, "add_layer_norm", "bias has shape", "that of gamma, [16], or that of x1"):
                phase1("add_layer_norm", *call(x1, x2, gamma, beta, bias=wrong))
        with refused(561002, "add_layer_norm", "gamma has shape [8], but must equal the last"):
            phase1("add_layer_norm", *call(x1, x2, gamma[:8], beta[:8], bias=gamma))  # bias is right
        for epsilon in (-1e-6, np.nan):
            with refused(161002, "add_layer_norm", "epsilon is", "must be 0 or greater"):
                phase1("add_layer_norm", *call(x1, x2, gamma, beta, epsilon=epsilon))
        short = [x1[..., :15], x2[..., :15], gamma[:15], beta[:15]]
        shorter = call(*short, out=(y[..., :15], *numbers, x[..., :15]))
        if product == "atlas-inference":
            with refused(161002, "add_layer_norm", "last dimension of x1 has 30 bytes", "32 or more"):
                phase1("add_layer_norm", *shorter)
        else:
            phase1("add_layer_norm", *shorter)
        empty = call(*(t[:0] for t in (x1, x2)), gamma, beta, out=(y[:0], *(n[:0] for n in numbers), x[:0]))
        gradient = [x1[:0]] * 3 + [n[:0] for n in numbers] + [gamma, None, x1[:0].copy(), *np.ones((2, 16), np.float32)]
        if product == "host":
            phase1("add_layer_norm", *empty)
            phase1("add_layer_norm_grad", *gradient)
        else:
            with refused(561002, "add_layer_norm", "x1 has shape [0, 3, 16]", "must not be empty"):
                phase1("add_layer_norm", *empty)
            with refused(161002, "add_layer_norm_grad", "dy has shape [0, 3, 16]", "must not be empty"):
                phase1("add_layer_norm_grad", *gradient)
        of_sum = [x1, x1, None, *numbers, gamma, None, y, *np.ones((2, 16), np.float32)]
        if product == "host":
            phase1("add_layer_norm_grad", *of_sum)
        else:
            with refused(161001, "add_layer_norm_grad", "x2 is null"):
                phase1("add_layer_norm_grad", *of_sum)


def test_the_example_of_the_document():
    """Rows of one number each: x is 5.5 and -0.5, and y beta."""
    x1 = np.repeat(np.array([1, 2], np.float32), 8).reshape(1, 2, 8)
    x2 = np.repeat(np.array([4, -3], np.float32), 8).reshape(1, 2, 8)
    gamma, beta, bias = (np.full(8, value, np.float32) for value in (2, 0.1, 0.5))
    y, mean, rstd, x = descend.add_layer_norm(x1, x2, gamma, beta, bias, 1e-6, True)
    np.testing.assert_array_equal(x, x1 + x2 + bias)
    np.testing.assert_array_equal(mean, [[[5.5], [-0.5]]])
    np.testing.assert_allclose(rstd, 1000, rtol=1e-6)
    np.testing.assert_array_equal(y, np.broadcast_to(beta, y.shape))


def test_the_example_of_the_gradients_document():
    """Its second row by hand, with rstd 1 and mean 1: xc = x1 + x2 - 1 = [8, 9, 12, 13], g = dy * [0, 1, 2, 3]."""
    dy = np.arange(1, 13, dtype=np.float32).reshape(3, 1, 4)
    x2 = np.repeat(np.array([2, 4, 6, 8], np.float32), 3).reshape(3, 1, 4)
    statistics, gamma = np.array([0, 1, 2], np.float32).reshape(3, 1, 1), np.arange(4, dtype=np.float32)
    dx, dgamma, dbeta = descend.add_layer_norm_grad(dy, dy, x2, statistics, statistics, gamma, dy)
    np.testing.assert_array_equal(dx[0], dy[0])
    xc, g = np.array([8, 9, 12, 13]), np.array([0, 6, 14, 24])
    np.testing.assert_allclose(dx[1, 0], g - g.mean() - xc * (g * xc).mean() + dy[1, 0], rtol=1e-6)
    third = np.array([13, 16, 17, 18])
    np.testing.assert_allclose(dgamma, dy[1, 0] * xc + dy[2, 0] * 2 * third, rtol=1e-6)
    np.testing.assert_array_equal(dbeta, [15, 18, 21, 24])
