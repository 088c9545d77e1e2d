"""DeepNorm: what is its own. All else is in row_operator.py."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import pytest

import descend
from cases import A2_TO_950, DTYPES, FLOATS, Array, assert_same_bits, normal, phase1, refused, wide
from descend import acl, reference
from row_operator import RowOperatorTests

F32, F16, BF16 = "FLOAT", "FLOAT16", "BFLOAT16"
HUAWEI = (*A2_TO_950, "atlas-inference")


def terms_of_norm(
    z: Array, size: Array, mean: Array, rstd: Array, gamma: Array, beta: Array
) -> tuple[Array, Array, Array]:
    """The sizes of the terms of y, mean and rstd of the layer norm of a sum, whose terms are of this size.

    The sum is rounded, of which rstd loses more, the nearer the elements of a row are to each other.
    """
    row = tuple(range(z.ndim - gamma.ndim, z.ndim))
    of_mean = size.sum(axis=row, keepdims=True) / max(gamma.size, 1)
    lost = 1 + of_mean * rstd
    return (size + of_mean + np.abs(z - mean) * lost) * rstd * gamma + beta, of_mean, rstd * lost


class TestDeepNorm(RowOperatorTests):
    OP = "deep_norm"
    ROWS: ClassVar = {(d, d, d, d, F32, F32, d): HUAWEI if d != BF16 else A2_TO_950 for d in (F32, F16, BF16)}
    POSITIVE = ()

    def terms(self, call: dict[str, Any]) -> tuple[Array, ...]:
        x, gx, gamma, beta = (np.abs(wide(call[name])) for name in ("x", "gx", "gamma", "beta"))
        mean, rstd, _ = reference.deep_norm(**call)
        z, size = call["alpha"] * wide(call["x"]) + wide(call["gx"]), abs(call["alpha"]) * x + gx
        y, of_mean, of_rstd = terms_of_norm(z, size, mean, rstd, gamma, beta)
        return of_mean, of_rstd, y


def test_the_example_of_the_document():
    """Its second row by hand: z = [5.5, 5.8, 8.1, 8.4], whose mean is 6.95 and whose variance 1.7125."""
    x = np.arange(1, 13, dtype=np.float32).reshape(3, 1, 4)
    gx = np.repeat(np.array([2, 4, 6, 8], np.float32), 3).reshape(3, 1, 4)
    weight = np.arange(4, dtype=np.float32)
    mean, rstd, y = descend.deep_norm(x, gx, weight, weight, 0.3, 1e-6)
    z = np.array([5.5, 5.8, 8.1, 8.4])
    np.testing.assert_allclose(mean[1, 0], 6.95, rtol=1e-6)
    np.testing.assert_allclose(rstd[1, 0], 1.7125**-0.5, rtol=1e-6)
    np.testing.assert_allclose(y[1, 0], (z - 6.95) * 1.7125**-0.5 * weight + weight, rtol=1e-5)


@pytest.mark.parametrize("alpha", [0.0, -1.7, 1e-30, 3e12, np.inf])
def test_any_alpha(alpha):
    """Where products with it leave the range of float32, rows are computed in double."""
    tests = TestDeepNorm()
    for shape in ((40, 3), (9, 70), (3, 3000), (2, 40_000)):
        call = tests.call(shape) | {"alpha": alpha}
        tests.check(call, tests.run(call))


@pytest.mark.parametrize("dtype", FLOATS)
def test_far_from_zero_nothing_cancels(dtype):
    """Rows of mean 10^4 (32 in bfloat16) and standard deviation 1, however the two terms share them."""
    rng = np.random.default_rng(0)
    far = 32 if dtype == BF16 else 1e4 if dtype != F16 else 512
    for columns in (3, 30, 300, 3000, 40_000):
        x, gx = (normal(rng, (5, columns)) + far).astype(DTYPES[dtype]), normal(rng, (5, columns), dtype)
        one, none = np.ones(columns, np.float32), np.zeros(columns, np.float32)
        for first, second in ((x, gx), (gx, x)):
            found = descend.deep_norm(first, second, none, one, 0.5)
            golden = reference.deep_norm(first, second, none, one, 0.5)
            for result, exact in zip(found, golden, strict=True):
                most = np.abs(exact).max()
                assert np.abs(wide(result) - exact).max() <= most * max(2e-3 if dtype == F32 else 0, 2.0**-7)


def test_it_is_layer_norm_where_the_sum_is_exact():
    """Bits of mean, rstd and y are those of layer norm of z, in every way through the kernel."""
    rng = np.random.default_rng(1)
    for shape in ((300, 3), (40, 33), (9, 700), (5, 5000), (2, 40_000)):
        x, gx = (np.round(normal(rng, shape) * 64).astype(np.float32) / 64 for _ in range(2))
        gamma, beta = (normal(rng, shape[1:], F32) for _ in range(2))
        y, mean, rstd = descend.layer_norm(0.5 * x + gx, shape[1:], gamma, beta, 1e-6)
        assert_same_bits(descend.deep_norm(x, gx, beta, gamma, 0.5, 1e-6), (mean, rstd, y))


@pytest.mark.parametrize("product", [*HUAWEI, "host"])
def test_epsilon_and_ranks(product):
    one, number = np.ones(16, np.float32), np.ones(1, np.float32)
    pair, numbers = np.ones((2, 16), np.float32), np.ones((2, 1), np.float32)
    with acl.product(product):
        for epsilon in (-1e-6, np.nan):
            with refused(161002, "deep_norm", "epsilon is", "must be 0 or greater"):
                phase1("deep_norm", pair, pair, one, one, 0.3, epsilon, numbers, numbers.copy(), pair.copy())
        call = [one, one, one, one, 0.3, 0.0, number, number.copy(), one.copy()]
        if product == "host":
            phase1("deep_norm", *call)
        else:
            with refused(161002, "deep_norm", "x has shape [16]", "rank 2 to 8"):
                phase1("deep_norm", *call)
