"""RotaryPositionEmbedding and its gradient: what holds for operators on rows, and modes, broadcasting, layouts."""

from __future__ import annotations

import contextlib
import itertools
from typing import Any, ClassVar

import numpy as np
import pytest

import descend
from cases import (
    A2_TO_950,
    DTYPES,
    FLOATS,
    Array,
    Layout,
    Place,
    arithmetic_of,
    assert_close,
    assert_same_bits,
    normal,
    phase1,
    python_value,
    refused,
    wide,
)
from descend import acl, reference
from row_operator import ISAS, RowOperatorTests

WITH_LAYOUTS = ("atlas-a3", "atlas-a2-training", "atlas-a2-inference")
MODES = (0, 1, 2, 3)
FORWARD, GRADIENT = "rotary_position_embedding", "rotary_position_embedding_grad"
ALL_DTYPES = ("FLOAT", "FLOAT16", "BFLOAT16")


def partners(x: Array, mode: int) -> tuple[Array, Array]:
    """The sizes of what cos and sin are multiplied by, in the order of the result."""
    x = np.abs(wide(x))
    if mode == 3:
        x = np.concatenate((x[..., ::2], x[..., 1::2]), -1)
    if mode == 1:
        return x, x.reshape(*x.shape[:-1], -1, 2)[..., ::-1].reshape(x.shape)
    parts = np.split(x, 4 if mode == 2 else 2, -1)
    return x, np.concatenate([p for a, b in zip(parts[::2], parts[1::2], strict=True) for p in (b, a)], -1)


def sizes(name: str, call: dict[str, Any]) -> tuple[Array, ...]:
    """Of the largest terms of the results; of sums of random terms the root of the sum of their squares."""
    mode, cos, sin = call["mode"], np.abs(wide(call["cos"])), np.abs(wide(call["sin"]))
    if name == FORWARD:
        own, other = partners(call["x"], mode)
        return (np.maximum(own * cos, other * sin),)
    dy = np.abs(wide(call["dy"]))
    own, other = dy * cos, partners(dy * sin, 0 if mode == 3 else mode)[1]
    dx = np.maximum(own, other)
    if mode == 3:
        dx = np.stack(np.split(dx, 2, -1), -1).reshape(dx.shape)
    if call["x"] is None:
        return (dx,)
    axes = tuple(d for d, size in enumerate(call["cos"].shape[:-1]) if size == 1)
    terms = (dy * p for p in partners(call["x"], mode))
    return dx, *(np.sqrt((t * t).sum(axes, keepdims=True)) if axes else t for t in terms)


def arguments(name: str, shape: tuple[int, ...], of_cos: tuple[int, ...], mode: int, dtype: str) -> dict[str, Any]:
    rng = np.random.default_rng(5)
    cos, sin = (normal(rng, of_cos, dtype) for _ in range(2))
    first = normal(rng, shape, dtype)
    if name == FORWARD:
        return {"x": first, "cos": cos, "sin": sin, "mode": mode}
    return {"dy": first, "cos": cos, "sin": sin, "x": normal(rng, shape, dtype), "mode": mode}


def check(name: str, call: dict[str, Any], results: Any, roundings: float = 4.0) -> None:
    results = results if isinstance(results, tuple) else (results,)
    golden = getattr(reference, name)(**call)
    golden = golden if isinstance(golden, tuple) else (golden,)
    arithmetic = arithmetic_of(*results)
    roundings *= 16 if arithmetic == "DOUBLE" else 1  # the definition adds one term after the other
    for result, exact, size in zip(results, golden, sizes(name, call), strict=True):
        assert_close(result, exact, size, roundings, arithmetic)


class PairsTests(RowOperatorTests):
    SHAPE: ClassVar = (2, 3, 4, 16)
    ROUNDINGS: ClassVar = 4.0
    OF_SHAPES: ClassVar = 561002

    def terms(self, call: dict[str, Any]) -> tuple[Array, ...]:
        return sizes(self.OP, call)

    @pytest.mark.cpu
    @pytest.mark.parametrize("mode", MODES)
    @pytest.mark.parametrize("dtype", FLOATS)
    def test_modes_and_broadcasting(self, dtype, mode):
        """Every way to broadcast, rows that end within vectors or span several parts, and sums of many rows."""
        shapes = [(3, 4, 5, 8), (2, 3, 2, 124), (2, 1, 3, 2080), (1, 2, 1, 4)]
        cases = [
            (s, tuple(n if k else 1 for n, k in zip(s, keep, strict=False)) + s[3:])
            for s in shapes
            for keep in itertools.product((True, False), repeat=3)
        ]
        cases += [((700, 12), (1, 12)), ((8,), (8,)), ((2, 3, 90, 2, 8), (1, 3, 1, 2, 8)), ((40, 20, 64), (1, 20, 64))]
        for shape, of_cos in cases:
            call = arguments(self.OP, shape, of_cos, mode, dtype)
            check(self.OP, call, getattr(descend, self.OP)(**call))

    @pytest.mark.parametrize("mode", MODES)
    @pytest.mark.parametrize("dtype", ["FLOAT", "BFLOAT16"])
    def test_strides_as_given(self, dtype, mode):
        """Heads behind the sequence in memory, cos expanded by a stride of 0, and results between others."""
        call = arguments(self.OP, (2, 3, 5, 16), (1, 1, 5, 16), mode, dtype)
        expected = getattr(descend, self.OP)(**call)
        expected = expected if isinstance(expected, tuple) else (expected,)
        turned = {n: np.ascontiguousarray(a.swapaxes(1, 2)).swapaxes(1, 2) if n in ("x", "dy") else a
                  for n, a in call.items()}  # fmt: skip
        places = [Place(e.shape, dtype, Layout((0, 1, 2, 3), (1, 2, 1, 1))) for e in expected]
        out = tuple(p.array for p in places)
        getattr(descend, self.OP)(**turned, out=out if len(out) > 1 else out[0])
        assert_same_bits(out, expected)
        for place in places:
            place.check_guards()
        of_all = {n: np.broadcast_to(a, (2, 1, 5, 16)) if n in ("cos", "sin") else a for n, a in turned.items()}
        results = getattr(descend, self.OP)(**of_all)
        assert_same_bits([results[0] if isinstance(results, tuple) else results], [expected[0]])

    @pytest.mark.cpu
    @pytest.mark.parametrize("dtype", FLOATS)
    def test_in_place_in_every_mode(self, dtype):
        for mode in MODES[1:]:
            call = arguments(self.OP, (3, 2, 2, 2080), (3, 2, 2, 2080), mode, dtype)
            expected = getattr(descend, self.OP)(**call)
            expected = expected if isinstance(expected, tuple) else (expected,)
            inputs = [n for n in call if n != "mode"]
            for places in itertools.permutations(inputs, len(expected)):
                mine = {n: a.copy() if n in inputs else a for n, a in call.items()}
                out = tuple(mine[n] for n in places)
                getattr(descend, self.OP)(**mine, out=out if len(out) > 1 else out[0])
                assert_same_bits(out, expected)

    @pytest.mark.cpu
    @pytest.mark.parametrize(("mode", "dtype", "columns"), [(0, "FLOAT", 128), (1, "BFLOAT16", 100), (3, "FLOAT", 100)])
    def test_results_past_the_caches(self, mode, dtype, columns):
        """A call of more than the caches keep has the bits of its parts."""
        call = arguments(self.OP, (2, 30_000, 4, columns), (1, 30_000, 1, columns), mode, dtype)
        whole = getattr(descend, self.OP)(**call)
        for part in (slice(0, 2), slice(29_990, 30_000)):
            cut = {n: np.ascontiguousarray(a[:, part]) if n != "mode" else a for n, a in call.items()}
            results = getattr(descend, self.OP)(**cut)
            pairs = zip(whole, results, strict=True) if isinstance(whole, tuple) else ((whole, results),)
            for all_of_it, result in pairs:
                assert_same_bits([np.ascontiguousarray(all_of_it[:, part])], [result])

    @pytest.mark.cpu
    def test_the_same_bits_where_rows_are_summed(self):
        code = f"""
import json, descend
from cases import FLOATS, digest
from test_rotary_position_embedding import arguments
found = []
for threads in (1, 3):
    descend.set_num_threads(threads)
    results = []
    for dtype in FLOATS:
        for shape, kept in (((2, 300, 3, 64), (1,)), ((700, 2, 36), ()), ((3, 9, 40, 8), (0, 2))):
            cos = tuple(n if d in (*kept, len(shape) - 1) else 1 for d, n in enumerate(shape))
            for mode in (0, 1, 2, 3):
                out = descend.{self.OP}(**arguments({self.OP!r}, shape, cos, mode, dtype))
                results += out if isinstance(out, tuple) else [out]
    found.append(digest(*results))
assert found[0] == found[1]
print(json.dumps(found[0]))
"""
        assert len({python_value(code, DESCEND_ISA=isa) for isa in ISAS}) == 1

    def layout(self, shape: tuple[int, ...], of_cos: tuple[int, ...], mode: int, dtype: str = "FLOAT16") -> list[Any]:
        call = arguments(self.OP, shape, of_cos, mode, dtype)
        gradients = (call["dy"], call["cos"], call["sin"]) if self.OP == GRADIENT else (call["x"],)
        return [*call.values(), *(np.empty_like(a) for a in gradients)]

    def test_modes_that_do_not_fit(self):
        for product in self.operator.products:
            with acl.product(product):
                for mode in (-1, 4, 1 << 40, *((2, 3) if product in WITH_LAYOUTS else ())):
                    call = self.layout((2, 3, 4, 16), (1, 1, 4, 16), 0)
                    call[4 if self.OP == GRADIENT else 3] = mode
                    with refused(561002, self.OP, f"mode is {mode}"):
                        phase1(self.OP, *call)
        with refused(561002, self.OP, "a multiple of 4 in mode 2"):
            call = self.layout((2, 6), (2, 6), 0)
            call[4 if self.OP == GRADIENT else 3] = 2
            phase1(self.OP, *call)
        demand = "but must have 4 dimensions: the last as that of "
        with refused(561002, self.OP, "cos has shape [4, 16]", demand, "[2, 3, 4, 16]"):
            phase1(self.OP, *self.layout((2, 3, 4, 16), (4, 16), 0))

    def test_the_layouts_of_the_page(self):
        b, s, n = 2, 3, 5
        taken = {
            0: {"BNSD": ["11SD", "B1SD", "BNSD"], "BSND": ["1S1D", "BS1D", "BSND"], "SBND": ["S11D", "SB1D", "SBND"],
                "TND": ["T1D", "TND"]},
            1: {"BNSD": ["11SD"], "BSND": ["1S1D"], "SBND": ["S11D"], "TND": ["T1D"]},
        }  # fmt: skip
        of = {"B": b, "S": s, "T": s, "N": n, "D": 16, "1": 1}
        for product, mode in itertools.product(WITH_LAYOUTS, taken):
            cosines = [cos for layouts in taken[mode].values() for cos in layouts]
            for rank in (3, 4):
                expected = {tuple(c != "1" for c in cos[:-1]) for cos in cosines if len(cos) == rank}
                assert self.kept(product, (7, 8, 9, 16)[-rank:], mode) == expected
            for layout, cosines in taken[mode].items():
                for cos in cosines:
                    with acl.product(product):
                        phase1(self.OP, *self.layout(tuple(of[c] for c in layout), tuple(of[c] for c in cos), mode))

    def kept(self, product: str, shape: tuple[int, ...], mode: int) -> set[tuple[bool, ...]]:
        """Which dimensions of x those cos have that the product takes."""
        found = set()
        for keep in itertools.product((True, False), repeat=len(shape) - 1):
            of_cos = (*(x if k else 1 for x, k in zip(shape, keep, strict=False)), shape[-1])
            with acl.product(product), contextlib.suppress(ValueError):
                phase1(self.OP, *self.layout(shape, of_cos, mode))
                found.add(keep)
        return found

    @pytest.mark.parametrize("mode", MODES)
    def test_shapes_of_ascend_950(self, mode):
        assert len(self.kept("ascend-950", (7, 8, 9, 16), mode)) == 8
        assert self.kept("ascend-950", (8, 9, 16), mode) == {(True, True), (True, False)}
        with acl.product("ascend-950"):
            for shape in ((1001, 2, 1, 4), (1, 1, 1, 1024)):
                phase1(self.OP, *self.layout(shape, (1, 1, *shape[2:]), mode))
            with refused(561002, self.OP, "at most 1024"):
                phase1(self.OP, *self.layout((1, 1, 1, 1028), (1, 1, 1, 1028), mode))
            for shape in ((2, 4), (1, 1, 1, 2, 4)):
                with refused(561002, self.OP, "rank 3 or 4"):
                    phase1(self.OP, *self.layout(shape, shape, mode))

    def test_sizes_of_the_page(self):
        for product in WITH_LAYOUTS:
            with acl.product(product):
                phase1(self.OP, *self.layout((1, 1, 2, 894), (1, 1, 2, 894), 0))
                with refused(561002, self.OP, "at most 895"):
                    phase1(self.OP, *self.layout((1, 1, 2, 896), (1, 1, 2, 896), 0))
                for shape in ((2, 4), (1, 1, 1, 2, 4)):
                    with refused(561002, self.OP, "rank 3 or 4"):
                        phase1(self.OP, *self.layout(shape, shape, 0))
                phase1(self.OP, *self.layout((3, 999, 2), (3, 1, 2), 1))
                with refused(561002, self.OP, "less than 1000"):
                    phase1(self.OP, *self.layout((3, 1000, 2), (3, 1, 2), 1))
                phase1(self.OP, *self.layout((999, 1, 2, 2), (1, 1, 2, 2), 0))
                with refused(561002, self.OP, "less than 1000"):
                    phase1(self.OP, *self.layout((1000, 2, 2, 2), (1, 1, 2, 2), 0))
                phase1(self.OP, *self.layout((333, 3, 2, 2), (1, 1, 2, 2), 1))
                with refused(561002, self.OP, "less than 1000"):
                    phase1(self.OP, *self.layout((500, 2, 2, 2), (1, 1, 2, 2), 1))


class TestRotaryPositionEmbedding(PairsTests):
    OP = FORWARD
    ROWS: ClassVar = {(d,) * 4: A2_TO_950 for d in ALL_DTYPES}

    def test_empty_tensors(self):
        """The page lets an empty x have any shapes."""
        x = np.empty((0, 3, 4, 5000), np.float16)
        for product in A2_TO_950:
            with acl.product(product):
                phase1(self.OP, x, np.empty((7, 1), np.float16), np.empty((2,), np.float16), 0, x.copy())
        assert descend.rotary_position_embedding(x, x, x).shape == x.shape


class TestRotaryPositionEmbeddingGrad(PairsTests):
    OP = GRADIENT
    ROWS: ClassVar = {(d,) * 7: A2_TO_950 for d in ALL_DTYPES}

    @pytest.mark.parametrize("mode", MODES)
    def test_without_x(self, mode):
        for dtype in FLOATS:
            call = arguments(self.OP, (3, 4, 5, 24), (1, 4, 1, 24), mode, dtype)
            dx, dcos, dsin = descend.rotary_position_embedding_grad(**call | {"x": None})
            assert dcos is None
            assert dsin is None
            assert_same_bits([dx], [descend.rotary_position_embedding_grad(**call)[0]])

    def test_outputs_without_x(self):
        """On Atlas products they must be there, but may have any shape and no memory."""
        dy, cos = np.ones((2, 3, 4, 16), np.float16), np.ones((1, 1, 4, 16), np.float16)
        nothing = np.empty((1, 1, 1, 0), np.float16)
        for product in (*A2_TO_950, "host"):
            with acl.product(product):
                phase1(self.OP, dy, cos, cos, None, 0, dy.copy(), nothing, nothing.copy())
                if product == "host":
                    phase1(self.OP, dy, cos, cos, None, 0, dy.copy(), None, None)
                    continue
                with refused(161001, self.OP, "dcos_out"):
                    phase1(self.OP, dy, cos, cos, None, 0, dy.copy(), None, nothing)

    def test_sums_of_the_page(self):
        for product in WITH_LAYOUTS:
            with acl.product(product):
                call = self.layout((600, 2, 2, 2), (1, 1, 2, 2), 0)
                with refused(561002, self.OP, "at most 1024"):
                    phase1(self.OP, *call)
                phase1(self.OP, *call[:3], None, *call[4:])

    @pytest.mark.parametrize("dtype", FLOATS)
    def test_sums_of_nothing(self, dtype):
        dy, cos = np.empty((0, 3, 8), DTYPES[dtype]), np.ones((1, 3, 8), DTYPES[dtype])
        dx, dcos, dsin = descend.rotary_position_embedding_grad(dy, cos, cos, dy)
        assert dx.shape == dy.shape
        assert not dcos.any()
        assert not dsin.any()

    @pytest.mark.cpu
    @pytest.mark.parametrize("dtype", ALL_DTYPES)
    def test_errors_of_long_sums_do_not_grow(self, dtype):
        """Of terms of one sign: where each addition was rounded in turn, the error would grow with their number."""
        rng = np.random.default_rng(0)
        for rows in (1 << 10, 1 << 16):
            dy, x = ((0.5 + np.abs(normal(rng, (rows, 4)))).astype(DTYPES[dtype]) for _ in range(2))
            call = {"dy": dy, "cos": dy[:1], "sin": dy[:1], "x": x, "mode": 0}
            _, dcos, dsin = descend.rotary_position_embedding_grad(**call)
            _, exact_cos, exact_sin = reference.rotary_position_embedding_grad(**call)
            assert_close(dcos, exact_cos, exact_cos, 4)
            assert_close(dsin, exact_sin, exact_sin, 4)


def test_the_example_of_the_document():
    """Mode 1 of its first numbers."""
    x, cos, sin = (np.array([v], np.float32) for v in ([74, 54], [41, 37], [46, 56]))
    assert descend.rotary_position_embedding(x, cos, sin, 1).tolist() == [[74 * 41 - 54 * 46, 54 * 37 + 74 * 56]]
    dx, _, _ = descend.rotary_position_embedding_grad(x, cos, sin, None, 1)
    assert dx.tolist() == [[74 * 41 + 54 * 56, 54 * 37 - 74 * 46]]


@pytest.mark.parametrize("dtype", FLOATS)
def test_infinities_and_nan(dtype):
    inf, nan = np.inf, np.nan
    values = np.array(list(itertools.product((-inf, 0.0, 2.0, nan), repeat=2))).astype(DTYPES[dtype])
    for mode, angle in itertools.product((0, 1), (0.0, 1.0, inf, nan)):
        cos = np.full((1, 2), angle).astype(DTYPES[dtype])
        for name in (FORWARD, GRADIENT):
            call = (values, cos, cos, mode) if name == FORWARD else (values, cos, cos, None, mode)
            result, golden = getattr(descend, name)(*call), getattr(reference, name)(*call)
            result, golden = (r[0] if isinstance(r, tuple) else r for r in (result, golden))
            np.testing.assert_array_equal(np.isnan(wide(result)), np.isnan(golden))
            np.testing.assert_array_equal(wide(result)[np.isinf(golden)], golden[np.isinf(golden)])
