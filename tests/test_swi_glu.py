"""SwiGlu and SwiGluGrad: what holds for operators on rows, and what is their own: dim, extreme numbers, products."""

from __future__ import annotations

import itertools
from typing import Any, ClassVar

import ml_dtypes
import numpy as np
import pytest

import descend
from cases import DTYPES, FLOATS, Array, Place, assert_close, assert_same_bits, normal, phase1, refused, wide
from descend import acl, reference
from pages import WITH_INFERENCE
from row_operator import RowOperatorTests

WITH_BFLOAT16 = tuple(p for p in WITH_INFERENCE if p != "atlas-inference")
SHAPES = ((2, 3, 32), (6, 4, 5), (4, 1), (2,), (70, 3, 2), (2, 2, 1, 3, 40))
OPERATORS = ("swi_glu", "swi_glu_grad")


@np.errstate(all="ignore")
def sigmoid(a: Array) -> Array:
    return np.asarray(1 / (1 + np.exp(-wide(a))))


def arguments(name: str, x: Array, dim: int, seed: int = 2) -> tuple[Any, ...]:
    """Those of a call with this x."""
    half = np.split(x, 2, dim)[0].shape
    return (x, dim) if name == "swi_glu" else (normal(np.random.default_rng(seed), half).astype(x.dtype), x, dim)


class HalvesTests(RowOperatorTests):
    SHAPE: ClassVar = (2, 3, 32)
    ROUNDINGS: ClassVar = 6.0  # and as many for a's own place in the exponent

    def test_every_dimension(self):
        """Halves of any dimension, whatever lies behind it: they are those of the last one of the tensor turned."""
        for dtype, shape in itertools.product(FLOATS, SHAPES):
            x = normal(np.random.default_rng(1), shape, dtype)
            for dim in (d for d in range(-len(shape), len(shape)) if shape[d] % 2 == 0):
                call = arguments(self.OP, x, dim)
                turned = [np.ascontiguousarray(np.moveaxis(a, dim, -1)) for a in call[:-1]]
                result = getattr(descend, self.OP)(*call)
                expected = getattr(descend, self.OP)(*turned, -1)
                assert_same_bits([np.ascontiguousarray(result)], [np.ascontiguousarray(np.moveaxis(expected, -1, dim))])

    def test_rows_of_any_length_and_place(self):
        """Results that begin anywhere in a line, of rows that are brought together, in one piece or past the caches."""
        for dtype, beyond in itertools.product(FLOATS, (0, 16, 24)):
            for shape in ((1, 2), (999, 2), (77, 126), (5, 128), (41, 194), (3, 2050), (3, 2306), (1, 40_002)):
                call = arguments(self.OP, normal(np.random.default_rng(3), shape, dtype), -1)
                expected = getattr(descend, self.OP)(*call)
                place = Place(expected.shape, dtype, beyond_line=beyond)
                getattr(descend, self.OP)(*call, out=place.array)
                assert_same_bits([place.array], [expected])
                place.check_guards()

    @pytest.mark.parametrize("dtype", ["FLOAT", "BFLOAT16"])
    @pytest.mark.parametrize("columns", [3_000_001, 4_000_000])
    def test_results_past_the_caches(self, dtype, columns):
        """A call of more than the caches keep has the bits of its parts."""
        call = arguments(self.OP, normal(np.random.default_rng(4), (3, 2 * columns), dtype), -1)
        whole = getattr(descend, self.OP)(*call)
        for row in range(3):
            part = [np.ascontiguousarray(a[row : row + 1]) for a in call[:-1]]
            assert_same_bits([whole[row : row + 1]], [getattr(descend, self.OP)(*part, -1)])

    @pytest.mark.parametrize("columns", [33, 64, 97, 512, 513, 1024, 1025, 1152, 1153])
    def test_rows_past_the_caches(self, columns):
        """Many rows, with and without gaps between those of the results, are those of few.

        Rows of results that begin where lines of the cache do are stored in another way than others.
        """
        for dtype, (before, gap) in itertools.product(
            ("FLOAT", "BFLOAT16"), ((1, 0), (1, 3), (0, 0), (0, 32), (0, -1))
        ):
            few = arguments(self.OP, normal(np.random.default_rng(4), (40, 2 * columns), dtype), -1)
            expected = getattr(descend, self.OP)(*few)
            times = 90 * 2**20 // (3 * expected.nbytes) + 1  # beyond last caches of up to 90 MB
            gap = -expected.shape[1] % 32 if gap < 0 else gap  # to the next line
            place = Place((40 * times, expected.shape[1] + gap), dtype, beyond_line=before * few[0].itemsize)
            result = place.array[:, : expected.shape[1]]
            getattr(descend, self.OP)(*(np.tile(a, (times, 1)) for a in few[:-1]), -1, out=result)
            parts = place.array.reshape(times, 40, -1)
            assert_same_bits([parts[..., : result.shape[1]]], [np.broadcast_to(expected, (times, *expected.shape))])
            assert np.isnan(wide(parts[:2, :, result.shape[1] :])).all()  # nothing was written to the gaps
            place.check_guards()

    def test_dim_and_sizes_that_do_not_fit(self):
        for product in self.operator.products:
            call = self.call(self.SHAPE, 1, "FLOAT16")
            with acl.product(product):
                for dim in (3, -4, 1 << 40):
                    with refused(161002, self.OP, f"dim is {dim}", "from -3 to 2"):
                        phase1(self.OP, *{**call, "dim": dim}.values())
                with refused(161002, self.OP, "x has shape [2, 3, 64]", "dimension 1", "an even size"):
                    phase1(self.OP, *{**call, "dim": 1}.values())
                with refused(161002, self.OP, "rank 0"):
                    scalar = np.ones((), np.float16)
                    phase1(self.OP, *(scalar if isinstance(a, np.ndarray) else a for a in call.values()))

    def test_atlas_inference_takes_whole_64_bytes(self):
        for dtype, h in (("FLOAT16", 32), ("FLOAT", 16)):
            with acl.product("atlas-inference"):
                phase1(self.OP, *self.call((3, h), 1, dtype).values())
                with refused(161002, self.OP, f"x has shape [3, {h}]", "a multiple of 64 bytes"):
                    phase1(self.OP, *self.call((3, h // 2), 1, dtype).values())


class TestSwiGlu(HalvesTests):
    OP = "swi_glu"
    ROWS: ClassVar = {
        (d, d): WITH_BFLOAT16 + (("atlas-inference",) if d != "BFLOAT16" else ())
        for d in ("FLOAT", "FLOAT16", "BFLOAT16")
    }

    def terms(self, call: dict[str, Any]) -> tuple[Array, ...]:
        a, b = np.split(np.abs(wide(call["x"])), 2, call["dim"])
        return ((1 + a) * np.abs(wide(reference.swi_glu(**call))) + 0 * b,)


class TestSwiGluGrad(HalvesTests):
    OP = "swi_glu_grad"
    ROWS: ClassVar = {
        (d, d, d): WITH_BFLOAT16 + (("atlas-inference",) if d != "BFLOAT16" else ())
        for d in ("FLOAT", "FLOAT16", "BFLOAT16")
    }

    def terms(self, call: dict[str, Any]) -> tuple[Array, ...]:
        a, b = np.split(wide(call["x"]), 2, call["dim"])
        dy, sig = np.abs(wide(call["y_grad"])), sigmoid(a)
        slope = sig * (1 + np.abs(a) * sigmoid(-a))
        sizes = ((1 + np.abs(a)) * dy * slope * np.abs(b), (1 + np.abs(a)) * dy * sig * np.abs(a))
        return (np.concatenate(sizes, call["dim"]),)


def test_the_examples_of_the_documents():
    x = np.arange(64, dtype=np.float32).reshape(2, 32)
    assert_close(descend.swi_glu(x), reference.swi_glu(x), reference.swi_glu(x), 6)
    assert_close(descend.swi_glu(x)[0, :3], [0, 0.7310585786 * 17, 2 * 0.8807970780 * 18], 40, 6)
    y_grad, x = np.arange(-2, 30, dtype=np.float32).reshape(2, 16), np.arange(-2, 62, dtype=np.float32).reshape(2, 32)
    out = descend.swi_glu_grad(y_grad, x)
    # dy = a = -2, b = 14: sig = 0.1192029, its slope 0.1192029 * 0.8807971.
    assert_close(out[0, ::16], [-2 * 14 * (0.1192029220 - 2 * 0.1049935854), 4 * 0.1192029220], 20, 6)


@np.errstate(over="ignore")
def extremes(dtype: str) -> Array:
    """Numbers in all ranges of a dtype, both signs, without infinities."""
    info = ml_dtypes.finfo(DTYPES[dtype])
    small = (0.0, float(info.smallest_subnormal), float(info.smallest_normal), 1e-30, 1e-7, 0.3, 1.0, 1.2784645)
    saturated = (5.0, 20.0, 60.0, 83.0, 84.0, 87.5, 95.0, 103.0, 110.0, 130.0, 700.0, 745.0)
    values = np.array([*small, *saturated, 1e4, 1e30, info.max / 2, info.max], np.float64).astype(DTYPES[dtype])
    values = values[np.isfinite(values.astype(np.float64))]
    return np.concatenate((values, -values))


@pytest.mark.parametrize("dtype", ["FLOAT", "FLOAT16", "BFLOAT16"])
def test_extreme_numbers(dtype):
    """What is finite by the formula is finite, and near it: beside its own rounding, off by what sigmoid loses below
    the smallest normal number of float32, about exp(-87)."""
    values = extremes(dtype)
    a, b = (g.ravel() for g in np.meshgrid(values, values))
    x = np.stack((a, b))
    result, golden = descend.swi_glu(x, 0)[0], reference.swi_glu(x, 0)[0]
    lost = 2.0**-149
    assert_close(result, golden, (1 + np.abs(wide(a))) * np.abs(golden) + np.abs(wide(a) * wide(b)) * lost * 2**24, 6)
    assert not np.isnan(result).any()
    for dy in values:
        y_grad = np.full((1, a.size), dy)
        result, golden = descend.swi_glu_grad(y_grad, x, 0), reference.swi_glu_grad(y_grad, x, 0)
        big, sig = np.abs(wide(a)), sigmoid(a)
        slope = sig * (1 + big * sigmoid(-wide(a)))
        factors = abs(wide(dy)) * (1 + big) * np.stack((np.abs(wide(b)), np.ones_like(big)))
        assert_close(result, golden, factors * (np.stack((slope, sig * big)) + lost * 2**24), 6)
        assert not np.isnan(result).any()


@pytest.mark.parametrize("dtype", FLOATS)
def test_infinities_and_nan(dtype):
    """As the formula has them: swish of -inf is -inf * 0, and the slope at an infinity inf * 0, both NaN."""
    inf, nan = np.inf, np.nan
    a, b = (g.ravel() for g in np.meshgrid([-inf, -2.0, 0.0, 3.0, inf, nan], [-inf, -1.0, 0.0, 2.0, inf, nan]))
    x = np.stack((a, b)).astype(DTYPES[dtype])
    np.testing.assert_array_equal(np.isnan(wide(descend.swi_glu(x, 0))), np.isnan(reference.swi_glu(x, 0)))
    np.testing.assert_array_equal(np.isinf(wide(descend.swi_glu(x, 0))), np.isinf(reference.swi_glu(x, 0)))
    for dy in (-inf, 0.0, 1.5, nan):
        y_grad = np.full((1, a.size), dy).astype(DTYPES[dtype])
        result, golden = wide(descend.swi_glu_grad(y_grad, x, 0)), reference.swi_glu_grad(y_grad, x, 0)
        np.testing.assert_array_equal(np.isnan(result), np.isnan(golden))
        np.testing.assert_array_equal(result[np.isinf(golden)], golden[np.isinf(golden)])


@pytest.mark.parametrize("shape", [(0, 4), (3, 0), (2, 0, 6)])
def test_empty_tensors(shape):
    """The page of SwiGlu allows them but for atlas-inference, that of SwiGluGrad does not."""
    x = np.empty(shape, np.float16)
    half = np.empty((*shape[:-1], shape[-1] // 2), np.float16)
    for product in ("host", *WITH_INFERENCE):
        with acl.product(product):
            if product in ("host", *WITH_BFLOAT16):
                phase1("swi_glu", x, -1, half)
            else:
                with refused(161002, "swi_glu", "must have elements"):
                    phase1("swi_glu", x, -1, half)
            if product == "host":
                phase1("swi_glu_grad", half, x, -1, x.copy())
            else:
                with refused(161002, "swi_glu_grad", "must have elements"):
                    phase1("swi_glu_grad", half, x, -1, x.copy())
    assert descend.swi_glu(x).shape == half.shape
    assert descend.swi_glu_grad(half, x).shape == shape
