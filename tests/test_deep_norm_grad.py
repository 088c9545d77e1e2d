"""DeepNormGrad: what holds for all gradients on rows, and its own numbers and rules."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import pytest

import descend
from cases import Array, assert_close, phase1, refused, wide
from descend import acl
from row_operator import RowOperatorTests

F32, F16, BF16 = "FLOAT", "FLOAT16", "BFLOAT16"
WITH_BFLOAT16 = ("atlas-a3", "atlas-a2-training", "ascend-950")


class TestDeepNormGrad(RowOperatorTests):
    OP = "deep_norm_grad"
    ROWS: ClassVar = {
        (d, d, d, d, F32, F32, d, d, F32, F32): WITH_BFLOAT16 + (("atlas-inference",) if d != BF16 else ())
        for d in (F32, F16, BF16)
    }

    def terms(self, call: dict[str, Any]) -> tuple[Array, ...]:
        dy, x, gx, gamma = (np.abs(wide(call[name])) for name in ("dy", "x", "gx", "gamma"))
        split, alpha = x.ndim - gamma.ndim, abs(call["alpha"])
        rows, row = tuple(range(split)), tuple(range(split, x.ndim))
        mean, rstd = (np.abs(wide(call[n])).reshape(x.shape[:split] + (1,) * gamma.ndim) for n in ("mean", "rstd"))
        xhat, g = (alpha * x + gx + mean) * rstd, dy * gamma
        n = max(gamma.size, 1)
        mean_g, mean_g_xhat = g.sum(axis=row, keepdims=True) / n, (g * xhat).sum(axis=row, keepdims=True) / n
        dgx = rstd * (g + mean_g + xhat * mean_g_xhat)
        return alpha * dgx, dgx, dy.sum(axis=rows), (dy * xhat).sum(axis=rows)


def test_the_example_of_the_document():
    """Its first row has rstd 0; the second is done by hand: xc = alpha * x + gx - 1, g = dy * [0, 1, 2, 3]."""
    dy = np.arange(1, 13, dtype=np.float32).reshape(3, 1, 4)
    gx = np.repeat(np.array([2, 4, 6, 8], np.float32), 3).reshape(3, 1, 4)
    statistics = np.array([0, 1, 2], np.float32).reshape(3, 1, 1)
    dx, dgx, dbeta, dgamma = descend.deep_norm_grad(dy, dy, gx, np.arange(4, dtype=np.float32), statistics, statistics)
    np.testing.assert_array_equal(dx[0], 0)
    xc, g = np.array([4.5, 4.8, 7.1, 7.4]), np.array([0, 6, 14, 24])
    second = g - g.mean() - xc * (g * xc).mean()
    assert_close(dgx[1, 0], second, 1000, 4)
    assert_close(dx[1, 0], 0.3 * second, 300, 4)
    np.testing.assert_array_equal(dbeta, [15, 18, 21, 24])
    # The third: xc = alpha * x + gx - 2, rstd 2.
    assert_close(dgamma, dy[1, 0] * xc + dy[2, 0] * 2 * np.array([6.7, 9, 9.3, 9.6]), 400, 4)


@pytest.mark.parametrize("alpha", [0.0, -1.7, 1e-30, 3e12, np.inf])
def test_any_alpha(alpha):
    """Where products with it leave the range of float32, rows are computed in double."""
    tests = TestDeepNormGrad()
    for shape in ((40, 3), (9, 70), (3, 3000), (2, 40_000)):
        call = tests.call(shape) | {"alpha": alpha}
        results = tests.run(call)
        tests.check(call, results)


def test_shapes_that_only_host_takes():
    one, number = np.ones(16, np.float32), np.ones(1, np.float32)
    call = [one, one, one, one, number, number, 0.3, *(np.empty_like(one) for _ in range(4))]
    for product in ("host", *WITH_BFLOAT16):
        with acl.product(product):
            if product == "host":
                phase1("deep_norm_grad", *call)
            else:
                with refused(161002, "deep_norm_grad", "x has shape [16]", "rank 2 to 8"):
                    phase1("deep_norm_grad", *call)
