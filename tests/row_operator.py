"""What holds for every operator on rows, as tests that a class of an operator inherits.

The arguments are made from the operator's table: what it says about a parameter's shape is read here. An operator's
class says which dtypes its page has, and how large the terms are that its results are made of.
"""

from __future__ import annotations

import itertools
import re
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import descend
from cases import (
    DTYPES,
    FLOATS,
    HUAWEI,
    Array,
    Place,
    arithmetic_of,
    assert_close,
    assert_same_bits,
    assert_same_specials,
    digest,
    in_turn,
    layouts,
    normal,
    phase1,
    placed,
    refused,
    run_two_phase,
)
from descend import acl, reference
from descend.contract import OPERATORS, Operator, Parameter
from norm_gradients import SOME_TILES

ISAS = ("AVX2", "AVX3")


def shapes_of(operator: Operator, shape: tuple[int, ...], normalized: int) -> dict[str, tuple[int, ...]]:
    """The shape of each tensor where x has `shape`, of which the last `normalized` dimensions are a row's.

    Where x has two halves along its last dimension, or rows of pairs, each of them, or one member of each, has this
    shape.
    """
    split, made = len(shape) - normalized, {}
    forms = {
        "[A1, ..., An, R1, ..., Rk]": shape,
        "[R1, ..., Rk]": shape[split:],
        "[R1, ..., Rk] or as x1": shape[split:],
        "[1]": (1,),
        "[A1, ..., An, 1, ..., 1]": shape[:split] + (1,) * normalized,
        "[A1, ..., An, H]": shape,
        "[A1, ..., An]": shape,
        "[A1, ..., An, 2 H]": (*shape[:-1], 2 * shape[-1]),
        "[B, S, N, 2 P]": (*shape[:-1], 2 * shape[-1]),
        "[B or 1, S or 1, N or 1, 2 P]": (*shape[:-1], 2 * shape[-1]),
        "[A1, ..., An], or followed by 1s to x's rank": shape[:split] + (1,) * normalized,
    }

    def of(parameter: Parameter) -> tuple[int, ...]:
        if match := re.fullmatch(r"as (\w+)", parameter.shape):
            return of(next(p for p in operator.parameters if p.name == match[1]))
        return forms[re.sub(r"(, rank|; on) .*", "", parameter.shape)]

    for parameter in operator.parameters:
        if parameter.kind == "tensor":
            made[parameter.python] = of(parameter)
    return made


class RowOperatorTests:
    """Subclasses are named Test...; `OP` is the operator's name."""

    OP: ClassVar[str]
    ROWS: ClassVar[dict[tuple[str, ...], tuple[str, ...]]]
    """The page's combinations of dtypes, in the order of the tensors, with the products that have them."""
    SHAPE: ClassVar[tuple[int, ...]] = (2, 3, 16)
    """One that every product takes."""
    POSITIVE: ClassVar[tuple[str, ...]] = ("rstd",)
    ROUNDINGS: ClassVar[float] = 8.0
    OF_SHAPES: ClassVar[int] = 161002
    """The status of a wrong shape."""

    def terms(self, call: dict[str, Any]) -> tuple[Array, ...]:
        """The sizes of the largest terms of the results."""
        raise NotImplementedError

    # --- calls

    @property
    def operator(self) -> Operator:
        return OPERATORS[self.OP]

    def call(self, shape: tuple[int, ...], normalized: int = 1, dtypes: Any = "FLOAT", seed: int = 1) -> dict[str, Any]:
        """Arguments by name; outputs are NaN. dtypes: one for all but what is FLOAT on every product, or of each."""
        made: dict[str, Any] = {}
        shapes, rng = shapes_of(self.operator, shape, normalized), np.random.default_rng(seed)
        if isinstance(dtypes, str):
            row = next(row for row in self.ROWS if row[0] == "FLOAT16")
            dtypes = [dtypes if d == "FLOAT16" or dtypes == "DOUBLE" else "FLOAT" for d in row]
        of = dict(zip(shapes, dtypes, strict=True))
        for p in self.operator.parameters:
            if p.kind != "tensor":
                made[p.python] = eval(p.default or "0.5")
            elif p.role == "output":
                made[p.python] = Place(shapes[p.python], of[p.python]).array
            else:
                values = normal(rng, shapes[p.python])
                values = 0.5 + np.abs(values) / 4 if p.python in self.POSITIVE else values
                made[p.python] = values.astype(DTYPES[of[p.python]])
        return made

    def arguments(self, call: dict[str, Any]) -> dict[str, Any]:
        return {p.python: call[p.python] for p in self.operator.parameters if p.role != "output"}

    def outputs(self, call: dict[str, Any]) -> tuple[Array, ...]:
        return tuple(call[p.python] for p in self.operator.outputs)

    def run(self, call: dict[str, Any]) -> tuple[Array, ...]:
        return self.run_into(call, self.outputs(call))

    def run_into(self, call: dict[str, Any], out: tuple[Array, ...]) -> tuple[Array, ...]:
        results = getattr(descend, self.OP)(**self.arguments(call), out=out if len(out) > 1 else out[0])
        return results if isinstance(results, tuple) else (results,)

    def check(self, call: dict[str, Any], results: Any) -> None:
        arithmetic = arithmetic_of(
            *(a for a in (*self.arguments(call).values(), *results) if isinstance(a, np.ndarray))
        )
        wide = {n: np.ascontiguousarray(a) if isinstance(a, np.ndarray) else a for n, a in self.arguments(call).items()}
        if arithmetic == "FLOAT":
            wide = {n: float(np.float32(a)) if isinstance(a, float) else a for n, a in wide.items()}
        roundings = self.ROUNDINGS * (2 if arithmetic == "DOUBLE" else 1)  # the definition rounds as often
        golden = self.golden(wide)
        with np.errstate(all="ignore"):
            terms = self.terms(wide)
        for result, exact, term in zip(results, golden, terms, strict=True):
            assert_close(result, exact, term, roundings, arithmetic)

    def golden(self, call: dict[str, Any]) -> tuple[Array, ...]:
        results = getattr(reference, self.OP)(**call)
        return results if isinstance(results, tuple) else (results,)

    # --- the numbers

    @pytest.mark.parametrize(
        ("shape", "dtype"),
        [
            *in_turn([*SOME_TILES, (1, 1), (1030, 17), (3, 257), (40, 2049), (9, 64)], FLOATS, each=2),
            *in_turn([(1, 1_000_003), (70_001, 1), (33, 16_385)], ["FLOAT", "BFLOAT16", "DOUBLE"]),
        ],
    )
    def test_ways_through_the_kernel(self, shape, dtype):
        call = self.call(shape, 1, dtype)
        places = [Place(a.shape, a.dtype) for a in self.outputs(call)]
        self.check(call, self.run_into(call, tuple(p.array for p in places)))
        for place in places:
            place.check_guards()

    # Each subclass has examples of its own, which the check takes for a mistake.
    @settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.differing_executors])
    @given(st.data())
    def test_any_shape_layout_and_dtype_on_host(self, data):
        shape = tuple(data.draw(st.lists(st.integers(0, 7), min_size=1, max_size=4), "shape"))
        shape += data.draw(st.sampled_from([(), (70,), (300,)]), "more")
        normalized = data.draw(st.integers(1, len(shape)), "normalized")
        dtypes = [data.draw(st.sampled_from(FLOATS)) for _ in shapes_of(self.operator, shape, normalized)]
        call = self.call(shape, normalized, dtypes, data.draw(st.integers(0, 99), "seed"))
        places = []
        for p in self.operator.parameters:
            if p.kind != "tensor":
                continue
            where, array = data.draw(layouts(call[p.python].ndim), p.python), call[p.python]
            if p.role == "output":
                places.append(Place(array.shape, array.dtype, where))
                call[p.python] = places[-1].array
            else:
                call[p.python] = placed(array, where)
        kept = [digest(a) for a in self.arguments(call).values() if isinstance(a, np.ndarray)]
        run_two_phase(self.OP, *(call[p.python] for p in self.operator.parameters))
        self.check(call, self.outputs(call))
        for place in places:
            place.check_guards()
        assert [digest(a) for a in self.arguments(call).values() if isinstance(a, np.ndarray)] == kept
        again = self.run_into(call, tuple(np.empty_like(a) for a in self.outputs(call)))
        assert_same_bits(again, self.outputs(call))

    @pytest.mark.parametrize("dtype", FLOATS)
    @pytest.mark.parametrize("shape", [(150, 3), (33, 64), (5, 5000), (2, 70_000)])
    def test_in_place(self, shape, dtype):
        """Every result of rows in the place of every input of rows, two at a time."""
        expected = self.run(call := self.call(shape, 1, dtype))
        results = [p.python for p in self.operator.outputs if call[p.python].ndim == len(shape)]
        inputs = [p.python for p in self.operator.inputs if call[p.python].shape == call[results[0]].shape]
        for places in itertools.permutations(inputs, len(results)):
            mine = {n: a.copy() if isinstance(a, np.ndarray) else a for n, a in call.items()}
            mine |= {result: mine[place] for result, place in zip(results, places, strict=True)}
            assert_same_bits(self.run(mine), expected)

    def test_rows_know_nothing_of_each_other(self):
        """Whatever a row has, and wherever the float arithmetic ends, the other rows' results have the same bits."""
        for dtype, columns in itertools.product(("FLOAT", "FLOAT16"), (2, 40, 3000, 40_000)):
            call = self.call((9, columns), 1, dtype)
            rows = [p.python for p in self.operator.inputs if call[p.python].shape in ((9, columns), (9, 2 * columns))]
            expected = self.run(call)
            for name, value in itertools.product(rows, (np.inf, np.nan, np.finfo(DTYPES[dtype]).max)):
                other = {n: np.copy(a) if isinstance(a, np.ndarray) else a for n, a in call.items()}
                other[name][4, columns // 2] = value
                for result, exact in zip(self.run(other), expected, strict=True):
                    if result.ndim == 2:
                        assert_same_bits([np.delete(result, 4, 0)], [np.delete(exact, 4, 0)])
                golden = self.golden(self.arguments(other))
                for result, exact in zip(self.outputs(other), golden, strict=True):
                    assert_same_specials(result, exact) if not np.isfinite(value) else None

    # --- the contract

    def test_dtypes_are_the_pages(self):
        names = list(shapes_of(self.operator, (2, 3, 16), 1))
        for product in HUAWEI:
            table = {
                combination
                for row in self.operator.dtypes
                if product in row.products
                for combination in itertools.product(*(row.dtypes[n] for n in names))
            }
            assert table == {combination for combination, products in self.ROWS.items() if product in products}

    def test_null_and_wrong_products(self):
        call = self.call(self.SHAPE, 1, "FLOAT16")
        for product in HUAWEI:
            with acl.product(product):
                if product not in self.operator.products:
                    with refused(561003, self.OP):
                        phase1(self.OP, *call.values())
                    continue
                phase1(self.OP, *call.values())
                for p in self.operator.parameters:
                    if p.kind == "tensor" and not p.optional:
                        with refused(161001, self.OP, p.python):
                            phase1(self.OP, *{**call, p.python: None}.values())

    def test_wrong_shapes_and_dtypes(self):
        for product in self.operator.products:
            call = self.call(self.SHAPE, 1, "FLOAT16")
            with acl.product(product):
                for p in self.operator.parameters:
                    if p.kind != "tensor":
                        continue
                    array = call[p.python]
                    for wrong, status in (
                        (np.zeros((*array.shape[:-1], array.shape[-1] + 1), array.dtype), self.OF_SHAPES),
                        (np.zeros(array.shape, "i4"), 161002),
                    ):
                        with refused(status, self.OP):
                            phase1(self.OP, *{**call, p.python: wrong}.values())
                    if product != "host":
                        with refused(161002, self.OP, p.python):
                            phase1(self.OP, *{**call, p.python: array.astype(np.float64)}.values())
                        flat = array.reshape(-1) if array.ndim > 1 else array.reshape(1, -1)
                        with refused(self.OF_SHAPES, self.OP):
                            phase1(self.OP, *{**call, p.python: flat}.values())
