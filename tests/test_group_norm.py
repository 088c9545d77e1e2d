"""GroupNorm, GroupNormBackward and GroupNormSilu: their contracts, their arithmetic against the float64 definitions."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import descend
from cases import (
    A2_TO_950,
    DTYPES,
    FLOATS,
    PRODUCTS,
    Array,
    Place,
    arithmetic_of,
    assert_close,
    assert_same_bits,
    layouts,
    normal,
    phase1,
    placed,
    refused,
    run_two_phase,
    wide,
)
from descend import acl, reference
from pages import PAGES, WITH_INFERENCE
from test_group_norm_swish import check as check_forward
from test_group_norm_swish_grad import PATHS, problems

F32, F16, BF16 = "FLOAT", "FLOAT16", "BFLOAT16"
A2_A3 = ("atlas-a3", "atlas-a2-training", "atlas-a2-inference")
OPERATORS = ("group_norm", "group_norm_backward", "group_norm_silu")
TENSORS = {
    "group_norm": ("input", "gamma", "beta", "out", "mean_out", "rstd_out"),
    "group_norm_silu": ("input", "gamma", "beta", "out", "mean_out", "rstd_out"),
    "group_norm_backward": (
        *("grad_out", "input", "mean", "rstd", "gamma"),
        *("grad_input", "grad_gamma_out", "grad_beta_out"),
    ),
}


def page(op: str) -> dict[tuple[str, ...], set[str]]:
    """The page's rows: the dtypes of the tensors, in order, and the products that take them."""
    rows: dict[tuple[str, ...], set[str]] = {}
    for d in (F32, F16, BF16):
        products = {p for p in PAGES[op].products if d != BF16 or p in A2_TO_950}
        rows[(d,) * len(TENSORS[op])] = products
        if op == "group_norm_backward" and d != F32:
            rows[d, d, F32, F32, F32, d, F32, F32] = {"ascend-950"}
        if op == "group_norm_silu" and d != F32:
            rows[d, F32, F32, d, d, d] = {p for p in WITH_INFERENCE if p != "ascend-950"} & products
            rows[d, F32, F32, d, F32, F32] = {"ascend-950"}
    return rows


def tensors(op: str, shape: tuple[int, ...] = (2, 8, 3), groups: int = 4, dtypes: Any = None) -> dict[str, Any]:
    """The tensors of a call by name, the outputs NaN."""
    rng = np.random.default_rng(1)
    made = {}
    for place, name in enumerate(TENSORS[op]):
        plain = name.removesuffix("_out").removeprefix("grad_")
        small = {"gamma": shape[1:2], "beta": shape[1:2], "mean": (shape[0], groups), "rstd": (shape[0], groups)}
        extents = small.get(plain, shape)
        array = normal(rng, extents).astype(DTYPES[F32 if dtypes is None else dtypes[place]])
        if name in list(TENSORS[op])[-3:]:
            array[...] = np.nan
        made[name] = np.abs(array) if plain == "rstd" else array
    return made


def arguments(op: str, call: dict[str, Any], groups: int = 4, **changed: Any) -> list[Any]:
    """The arguments of the two-phase form."""
    x = next(a.shape for a in call.values() if a is not None)
    values = {
        **{"n": x[0] if x else 1, "c": x[1] if len(x) > 1 else 1, "hxw": math.prod(x[2:]), "group": groups},
        **{"eps": 1e-5, "output_mask": (True, True, True), **call, **changed},
    }
    return [values[p.python] for p in descend.contract.OPERATORS[op].parameters]


def check_backward(results: Any, call: list[Any], sizes: tuple[int, ...], mask: Any = (True, True, True)) -> None:
    """All results against the definition, within a few roundings of the largest term."""
    dy, x, mean, rstd, gamma = call
    n, c, hxw, groups = sizes
    golden = reference.group_norm_backward(*call, *sizes, mask)
    shape = (n, groups, c // groups, hxw)
    with np.errstate(all="ignore"):
        r, m = (np.abs(wide(a)).reshape(n, groups, 1, 1) for a in (rstd, mean))
        g = 1.0 if gamma is None else np.abs(wide(gamma)).reshape(1, groups, c // groups, 1)
        xhat, dz = r * (np.abs(wide(x).reshape(shape)) + m), np.abs(wide(dy).reshape(shape))
        elements = max(c // groups * hxw, 1)
        c1, c2 = ((dz * g * f).sum(axis=(2, 3), keepdims=True) / elements for f in (1.0, xhat))
        terms = (r * (dz * g + c1 + xhat * c2), (dz * xhat).sum(axis=(0, 3)), dz.sum(axis=(0, 3)))
    arithmetic = arithmetic_of(*(a for a in (*call, *results) if a is not None))
    for result, exact, term in zip(results, golden, terms, strict=True):
        assert (result is None) == (exact is None)
        if result is not None:
            assert_close(result, exact, term.reshape(result.shape), 12.0, arithmetic)


def run(op: str, call: dict[str, Any], groups: int, product: str = "host") -> None:
    """Runs a call in two phases, and checks its results."""
    run_two_phase(op, *arguments(op, call, groups), product=product)
    values = list(call.values())
    if op == "group_norm_backward":
        x = call["input"].shape
        check_backward(values[5:], values[:5], (x[0], x[1], math.prod(x[2:]), groups))
    else:
        check_forward(values[3:], values[:3], groups, activate=op == "group_norm_silu")


# --- the contract --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("product", PRODUCTS)
@pytest.mark.parametrize("op", OPERATORS)
def test_dtypes_row_by_row(op, product):
    if product not in (*PAGES[op].products, "host"):
        with acl.product(product), refused(561003, op, product):
            phase1(op, *arguments(op, tensors(op)))
        return
    pool = {d: tensors(op, dtypes=(d,) * 8) for d in FLOATS}
    rows, places = page(op), range(len(TENSORS[op]))
    mixed = {row for row in rows if len(set(row)) > 1}
    # Each row, and each that differs from one in one or two places.
    tried = set(mixed)
    for row in [*rows, ("DOUBLE",) * len(places)]:
        for (i, first), (j, second) in itertools.product(itertools.product(places, FLOATS), repeat=2):
            changed = list(row)
            changed[i], changed[j] = first, second
            tried.add(tuple(changed))
    with acl.product(product):
        for dtypes in tried:
            call = {name: pool[d][name] for name, d in zip(TENSORS[op], dtypes, strict=True)}
            alike = op != "group_norm_backward" or dtypes[0] == dtypes[1]
            if alike if product == "host" else product in rows.get(dtypes, ()):
                phase1(op, *arguments(op, call))
            else:
                with refused(161002, op):
                    phase1(op, *arguments(op, call))


@pytest.mark.parametrize("op", OPERATORS)
def test_every_row_computes(op):
    for dtypes, products in page(op).items():
        for product in (*products, "host"):
            run(op, tensors(op, (3, 8, 5, 7), 4, dtypes), 4, product)


@pytest.mark.parametrize("op", OPERATORS)
def test_nulls(op):
    call = tensors(op)
    for product in (*PAGES[op].products, "host"):
        for name in call:
            with acl.product(product):
                if name in ("gamma", "beta"):
                    phase1(op, *arguments(op, {**call, name: None}))
                else:
                    with refused(161001, op, f"{name} is null"):
                        phase1(op, *arguments(op, {**call, name: None}))


def test_without_gamma_and_beta_the_statistics_of_silu_are_as_the_input():
    dtypes = (F16, F32, F32, F16, F32, F32)
    call = tensors("group_norm_silu", dtypes=dtypes) | {"gamma": None}
    with acl.product("ascend-950"):
        phase1("group_norm_silu", *arguments("group_norm_silu", call))
        with refused(161002, "group_norm_silu", "mean_out has dtype FLOAT", "that of input, FLOAT16"):
            phase1("group_norm_silu", *arguments("group_norm_silu", call | {"beta": None}))


@pytest.mark.parametrize("product", ["atlas-a3", "host"])
@pytest.mark.parametrize("op", OPERATORS)
def test_shapes_and_attributes_that_do_not_fit(op, product):
    call = tensors(op)
    first = "mean" if op == "group_norm_backward" else "mean_out"
    cases: list[tuple[str, dict[str, Any]]] = [
        ("group is 0, but must be positive", {"group": 0}),
        ("group is 3, but must divide the 8 channels of input", {"group": 3}),
        ("gamma has shape [7], but must have shape [8]", {"gamma": np.ones(7, np.float32)}),
        (f"{first} has shape [2, 3]", {first: np.ones((2, 3), np.float32)}),
    ]
    if op != "group_norm_silu":
        cases += [(": ", {name: value}) for name in ("n", "c", "hxw") for value in (0, 7, -1, 2**62)]
        cases += [(": ", {"n": -2, "c": -8}), (": ", {"n": 2**32, "c": 2**32, "hxw": 1})]
    if op != "group_norm_backward":
        cases += [("eps is -1", {"eps": -1.0}), ("eps is nan", {"eps": math.nan})]
        cases += [("must have rank 2 to 8", {"input": np.ones(2, np.float32), "out": np.ones(2, np.float32)})]
        cases += [("out has shape [2, 8, 4]", {"out": np.ones((2, 8, 4), np.float32)})]
    else:
        cases += [("grad_input has shape [2, 24]", {"grad_input": np.ones((2, 24), np.float32)})]
        cases += [("grad_beta_out has shape [1, 8]", {"grad_beta_out": np.ones((1, 8), np.float32)})]
        cases += [("grad_gamma_out has shape [1, 8]", {"gamma": None, "grad_gamma_out": np.ones((1, 8), np.float32)})]
        cases += [("grad_out has shape [2, 8, 4]", {"grad_out": np.ones((2, 8, 4), np.float32)})]
        cases += [("output_mask has length 2", {"output_mask": (True, True)})]
    for words, changed in cases:
        with acl.product(product), refused(161002, op, words):
            phase1(op, *arguments(op, call, **changed))


def test_what_host_alone_takes():
    for op in ("group_norm", "group_norm_silu"):
        call = tensors(op)
        flat = {name: np.ones(8, np.float32) for name in ("mean_out", "rstd_out")}
        strided = {"out": np.empty((8, 2, 3), np.float32).transpose(1, 0, 2)}
        for changed, words in (({"eps": 0.0}, "must be greater than 0"), (flat, "must have [2, 4]"), (strided, "")):
            phase1_of = arguments(op, call, **changed)
            with acl.product("host"):
                phase1(op, *phase1_of)
            with acl.product("atlas-a2-training"):
                if words or op == "group_norm_silu":
                    with refused(161002, op, words or "out has strides"):
                        phase1(op, *phase1_of)
                else:
                    phase1(op, *phase1_of)
    many = tensors("group_norm_backward", (1, 8001, 1), 1)
    with acl.product("host"):
        phase1("group_norm_backward", *arguments("group_norm_backward", many, 1))
    with acl.product("ascend-950"), refused(161002, "group_norm_backward", "8000 a group"):
        phase1("group_norm_backward", *arguments("group_norm_backward", many, 1))


# --- the numbers ---------------------------------------------------------------------------------------------------


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_any_shape_layout_and_dtype_on_host(data):
    op = data.draw(st.sampled_from(OPERATORS), "operator")
    shape, groups = data.draw(problems(), "problem")
    dtypes = [data.draw(st.sampled_from(FLOATS), name) for name in TENSORS[op]]
    if op == "group_norm_backward":
        dtypes[0] = dtypes[1]
    call = tensors(op, shape, groups, dtypes)
    where = {n: data.draw(layouts(a.ndim), n) for n, a in call.items()}
    places = {n: Place(call[n].shape, call[n].dtype, where[n]) for n in TENSORS[op][-3:]}
    call = {n: places[n].array if n in places else placed(a, where[n]) for n, a in call.items()}
    run(op, call, groups)
    for place in places.values():
        place.check_guards()


@pytest.mark.parametrize("dtype", FLOATS)
def test_every_path_of_the_gradient(dtype):
    """Those of the gradient with swish, which has the same source: each dtype takes some."""
    for shape, groups in PATHS[FLOATS.index(dtype) :: len(FLOATS)]:
        run("group_norm_backward", tensors("group_norm_backward", shape, groups, (dtype,) * 8), groups)


def test_groups_that_are_read_after_all_as_xhat():
    """Sums and coefficients that leave float's range where elements of 16 bits are used as they are."""
    rng = np.random.default_rng(3)
    for scale, r in ((1.0, 1e-9), (1e-30, 1e30), (1e35, 1e-35)):
        dy, x = (normal(rng, (2, 6, 300)).astype(DTYPES[BF16]) for _ in range(2))
        x = (wide(x) * scale).astype(DTYPES[BF16])
        call = [dy, x, np.zeros((2, 3), np.float32), np.full((2, 3), r, np.float32), None]
        check_backward(descend.group_norm_backward(*call, 2, 6, 300, 3), call, (2, 6, 300, 3))


@pytest.mark.parametrize("shape", [(3, 8, 40), (3, 8), (1, 8, 20_000), (60, 6, 2), (9, 16, 300)])
def test_masked_gradients_and_no_gamma(shape):
    call = list(tensors("group_norm_backward", shape, 2).values())[:5]
    sizes = (*shape[:2], math.prod(shape[2:]), 2)
    whole = descend.group_norm_backward(*call, *sizes)
    for mask in itertools.product((True, False), repeat=3):
        results = descend.group_norm_backward(*call, *sizes, mask)
        assert [r is not None for r in results] == list(mask)
        kept = [(r, w) for r, w in zip(results, whole, strict=True) if r is not None]
        assert_same_bits([r for r, _ in kept], [w for _, w in kept])
    plain = descend.group_norm_backward(*call[:4], None, *sizes)
    ones = descend.group_norm_backward(*call[:4], np.ones(shape[1], np.float32), *sizes)
    assert_same_bits(plain, ones)


def test_any_shape_of_as_many_elements():
    """The gradient takes its tensors in any shape, in place as well."""
    call = tensors("group_norm_backward", (3, 8, 40), 4)
    values = list(call.values())[:5]
    expected = descend.group_norm_backward(*values, 3, 8, 40, 4)
    for shape in ((960,), (8, 3, 40), (3, 320), (2, 3, 4, 40)):
        dy, x = (a.reshape(shape).copy() for a in values[:2])
        small = [a.reshape(a.size, 1) for a in values[2:]]
        for out in (None, dy, x):
            outs = None if out is None else (out, None, None)
            results = descend.group_norm_backward(dy, x, *small, 3, 8, 40, 4, out=outs)
            assert results[0].shape == shape
            assert results[1].shape == (8, 1)
            assert_same_bits([r.reshape(e.shape) for r, e in zip(results, expected, strict=True)], expected)
            dy[...], x[...] = (a.reshape(shape) for a in values[:2])
    number, one = np.full((), 2, np.float32), np.ones((), np.float32)
    dx, *sums = descend.group_norm_backward(number, number, one, one, number, 1, 1, 1, 1)
    assert (dx, *sums) == (-4, 2, 2)  # by this mean and rstd


@pytest.mark.parametrize("op", OPERATORS)
@pytest.mark.parametrize("shape", [(0, 4, 3), (2, 0, 3), (2, 4, 0), (0, 0), (3, 4, 5, 0)])
def test_empty_tensors(op, shape):
    call = tensors(op, shape, 2)
    for product in (*PAGES[op].products, "host"):
        run_two_phase(op, *arguments(op, call, 2), product=product)
        for name, array in list(call.items())[-3:]:
            wanted = np.nan if name == "rstd_out" else 0
            np.testing.assert_array_equal(array, np.full(array.shape, wanted, array.dtype))


def test_group_norm_silu_and_group_norm_are_group_norm_swish():
    """The same bits, whatever the shape: one kernel computes them."""
    for (shape, groups), dtype in itertools.product(PATHS[::3], (F32, BF16)):
        x, gamma, beta = list(tensors("group_norm", shape, groups, (dtype,) * 6).values())[:3]
        swish = descend.group_norm_swish(x, gamma, beta, groups)
        assert_same_bits(descend.group_norm_silu(x, gamma, beta, groups), swish)
        plain = descend.group_norm_swish(x, gamma, beta, groups, activate_swish=False)
        sizes = (*shape[:2], math.prod(shape[2:]))
        assert_same_bits(descend.group_norm(x, gamma, beta, *sizes, groups), plain)


def test_the_documents_example():
    """aclnnGroupNorm and its gradient on the numbers 1 to 24, of which the documents print no results."""
    x: Array = np.arange(1, 25, dtype=np.float32).reshape(2, 3, 4)
    twos = np.full(3, 2, np.float32)
    out, mean, rstd = descend.group_norm(x, twos, twos, 2, 3, 4, 1)
    np.testing.assert_allclose(mean, [[6.5], [18.5]])
    np.testing.assert_allclose(rstd, np.full((2, 1), 143 / 12) ** -0.5, rtol=1e-6)
    np.testing.assert_allclose(out[0].sum() / 12, 2, rtol=1e-6)
    dx, dgamma, dbeta = descend.group_norm_backward(np.ones_like(x), x, mean, rstd, twos, 2, 3, 4, 1)
    np.testing.assert_allclose(dx, 0, atol=1e-6)
    np.testing.assert_array_equal(dbeta, np.full(3, 8))
    np.testing.assert_allclose(dgamma, 2 * (x[0] - 6.5).sum(axis=1) * rstd[0], rtol=1e-6, atol=1e-5)
