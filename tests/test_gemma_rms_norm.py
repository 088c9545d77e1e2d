"""GemmaRmsNorm: what is its own. All else is in row_operator.py."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import pytest

import descend
from cases import A2_TO_950, DTYPES, FLOATS, Array, assert_same_bits, normal, phase1, refused, run_two_phase
from descend import acl, reference
from row_operator import RowOperatorTests

F32, F16, BF16 = "FLOAT", "FLOAT16", "BFLOAT16"


class TestGemmaRmsNorm(RowOperatorTests):
    OP = "gemma_rms_norm"
    ROWS: ClassVar = {(d, d, d, F32): A2_TO_950 for d in (F32, F16, BF16)}
    POSITIVE = ()
    OF_SHAPES = 561002

    def terms(self, call: dict[str, Any]) -> tuple[Array, ...]:
        rstd = reference.gemma_rms_norm(**call)[1]
        return np.abs(call["x"]).astype(np.float64) * rstd * (1 + np.abs(call["gamma"]).astype(np.float64)), rstd


@pytest.mark.parametrize("dtype", FLOATS)
def test_it_is_rms_norm_with_another_weight(dtype):
    """Bit for bit, if the weight has the type of the arithmetic: 1 + gamma is not rounded to the type of gamma."""
    rng = np.random.default_rng(3)
    wide = np.float64 if dtype == "DOUBLE" else np.float32
    for shape in ((300, 3), (9, 700), (2, 40_000)):
        x, gamma = normal(rng, shape, dtype), normal(rng, shape[1:], dtype, 0.1)
        expected = descend.rms_norm(x, (gamma.astype(wide) + 1).astype(wide), 1e-5)
        assert_same_bits(descend.gemma_rms_norm(x, gamma, 1e-5), expected)


@pytest.mark.parametrize("product", [*A2_TO_950, "host"])
def test_rstd_epsilon_and_one_row(product):
    """rstd with or without the 1s; gamma of all dimensions; epsilon from 0 on."""
    rng = np.random.default_rng(4)
    x = normal(rng, (2, 3, 16), F32)
    for gamma, shapes in (((16,), ((2, 3), (2, 3, 1))), ((2, 3, 16), ((1, 1, 1),))):
        weight = normal(rng, gamma, F32)
        expected = descend.gemma_rms_norm(x, weight, 0.0)
        for shape in shapes:
            y, rstd = np.empty_like(x), np.empty(shape, np.float32)
            run_two_phase("gemma_rms_norm", x, weight, 0.0, y, rstd, product=product)
            assert_same_bits([y, rstd], [expected[0], expected[1].reshape(shape)])
    with acl.product(product), refused(561002, "gemma_rms_norm", "epsilon is -1", "must be 0 or greater"):
        phase1("gemma_rms_norm", x, weight, -1.0, y, rstd)


def test_a_weight_near_minus_one():
    """What is left of 1 + gamma is exact, as gamma is."""
    x, gamma = np.ones((2, 8), DTYPES[BF16]), np.full(8, -1 + 2.0**-8, DTYPES[BF16])
    y, _ = descend.gemma_rms_norm(x, gamma, 0.0)
    np.testing.assert_array_equal(y.astype(np.float64), 2.0**-8)
