"""AddRmsNorm: what is its own. All else is in row_operator.py."""

from __future__ import annotations

import itertools
from typing import Any, ClassVar

import numpy as np
import pytest

import descend
from cases import A2_TO_950, DTYPES, FLOATS, Array, assert_same_bits, normal, phase1, refused, run_two_phase, wide
from descend import acl, reference
from row_operator import RowOperatorTests

F32, F16, BF16 = "FLOAT", "FLOAT16", "BFLOAT16"
HUAWEI = (*A2_TO_950, "atlas-inference")


class TestAddRmsNorm(RowOperatorTests):
    OP = "add_rms_norm"
    ROWS: ClassVar = {(d, d, d, d, F32, d): HUAWEI if d != BF16 else A2_TO_950 for d in (F32, F16, BF16)}
    POSITIVE = ()

    def terms(self, call: dict[str, Any]) -> tuple[Array, ...]:
        y, rstd, x = reference.add_rms_norm(**call)
        return y, rstd, x


def call(dtype: str = F16, shape: tuple[int, ...] = (2, 3, 16), gamma: tuple[int, ...] = (1, 16)) -> list[Any]:
    """Arguments, with gamma as the page has it where there is no rstd."""
    rng = np.random.default_rng(0)
    x1, x2, weight = (normal(rng, s, dtype) for s in (shape, shape, gamma))
    rstd = np.full((*shape[:-1], 1), np.nan, np.float32)
    return [x1, x2, weight, 1e-6, np.full_like(x1, np.nan), rstd, np.full_like(x1, np.nan)]


@pytest.mark.parametrize("dtype", FLOATS)
def test_outputs_that_are_null_change_no_bit_of_the_others(dtype):
    """Whatever the way through the kernel, and whether rows lie one behind the other."""
    for shape, step in itertools.product([(300, 3), (40, 33), (9, 700), (5, 5000), (2, 40_000)], (1, 2)):
        x1, x2, weight, epsilon, *_ = call(dtype, shape, shape[1:])
        y, rstd, x = descend.add_rms_norm(x1, x2, weight, epsilon)
        for with_rstd, with_x in itertools.product((False, True), repeat=2):
            out = np.full((shape[0], shape[1] * step), np.nan, x1.dtype)[:, : shape[1]]
            kept = [np.full_like(rstd, np.nan) if with_rstd else None, np.full_like(out, np.nan) if with_x else None]
            run_two_phase("add_rms_norm", x1, x2, weight, epsilon, out, *kept, product="host")
            assert_same_bits([out], [y])
            for found, expected in zip(kept, (rstd, x), strict=True):
                if found is not None:
                    assert_same_bits([found], [expected])


@pytest.mark.parametrize("product", HUAWEI)
def test_without_rstd(product):
    """Gamma is [1, N], whatever the rank of x1; there is no such form in FLOAT; rstd alone is no form at all."""
    x1, x2, gamma, epsilon, y, rstd, x = call()
    expected = descend.add_rms_norm(x1, x2, gamma[0], epsilon)
    for kept in (x, None):
        y[...] = np.nan
        run_two_phase("add_rms_norm", x1, x2, gamma, epsilon, y, None, kept, product=product)
        assert_same_bits([y], expected[:1])
    assert_same_bits([x], expected[2:])
    with acl.product(product):
        with refused(161001, "add_rms_norm", "x_out is null", "rstd_out"):
            phase1("add_rms_norm", x1, x2, gamma[0], epsilon, y, rstd, None)
        for wrong in (gamma[0], gamma[:, :8], np.ones((3, 16), np.float16)):
            with refused(161002, "add_rms_norm", "gamma has shape", "without rstd_out must be [1, N]"):
                phase1("add_rms_norm", x1, x2, wrong, epsilon, y, None, x)
        single = call(F32)
        with refused(161002, "add_rms_norm", "x1 has dtype FLOAT", "must have 16 bits"):
            phase1("add_rms_norm", *single[:5], None, single[6])
        with refused(161002, "add_rms_norm", "x2 has shape"):
            phase1("add_rms_norm", x1, x2[:1], gamma, epsilon, y, None, x)


@pytest.mark.parametrize("product", [*HUAWEI, "host"])
def test_one_row_and_epsilon(product):
    """x1 may have rank 1 and gamma all its dimensions; epsilon may be 0."""
    x1, x2, gamma, _, y, _, x = call(F32, (16,), (16,))
    rstd = np.empty(1, np.float32)
    with acl.product(product):
        run_two_phase("add_rms_norm", x1, x2, gamma, 0.0, y, rstd, x, product=product)
        assert_same_bits([y, rstd, x], descend.add_rms_norm(x1, x2, gamma, 0.0))
        for epsilon in (-1e-6, np.nan):
            with refused(161002, "add_rms_norm", "epsilon is", "must be 0 or greater"):
                phase1("add_rms_norm", x1, x2, gamma, epsilon, y, rstd, x)


def test_y_is_of_the_sum_before_it_is_rounded():
    """1 + 2^-9 has no bfloat16: the sum is rounded to 1, but y is rounded from the exact sum times the weight."""
    x1, x2 = np.ones((1, 8), DTYPES[BF16]), np.full((1, 8), 2.0**-9, DTYPES[BF16])
    gamma = np.full(8, 1 + 2.0**-7, DTYPES[BF16])
    y, rstd, x = descend.add_rms_norm(x1, x2, gamma, 0.0)
    np.testing.assert_array_equal(wide(x), 1)
    assert rstd.item() == np.float32(1 / (1 + 2.0**-9))
    np.testing.assert_array_equal(wide(y), 1 + 2.0**-7)


def test_sums_beyond_the_range_of_their_dtype():
    """The sum is rounded to infinity, the norm is not."""
    for dtype in (F32, F16, BF16):
        most = np.finfo(np.float32).max if dtype == F32 else (65504.0 if dtype == F16 else 3.3895e38)
        x1 = np.full((3, 40), most, np.float64).astype(DTYPES[dtype])
        y, rstd, x = descend.add_rms_norm(x1, x1, np.ones(40, DTYPES[dtype]))
        assert np.isinf(wide(x)).all()
        np.testing.assert_allclose(wide(y), 1, rtol=2.0**-7)
        np.testing.assert_allclose(wide(rstd) * 2 * wide(x1)[:, :1], 1, rtol=1e-6)


def test_the_example_of_the_document():
    """Two rows of 0 ... 7, 0 ... 7 in all three inputs. By hand: the mean of the squares of the sum is 70."""
    x1 = np.tile(np.arange(8, dtype=np.float32), 4).reshape(2, 16)
    y, rstd, x = descend.add_rms_norm(x1, x1, x1[0], 1e-6)
    np.testing.assert_array_equal(x, 2 * x1)
    np.testing.assert_allclose(rstd, np.full((2, 1), 70**-0.5), rtol=1e-6)
    np.testing.assert_allclose(y, 2 * x1 * x1 * 70**-0.5, rtol=1e-6)
