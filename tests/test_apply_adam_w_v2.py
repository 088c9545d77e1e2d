"""ApplyAdamWV2: steps of AdamW, in place and not, and the optimizer that is made of them."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import descend
from cases import (
    A2_TO_950,
    DTYPES,
    FLOATS,
    HUAWEI,
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

OP = "apply_adam_w_v2"
TENSORS = ("var", "m", "v", "max_grad_norm", "grad")
USUAL = {"lr": 1e-2, "beta1": 0.9, "beta2": 0.99, "weight_decay": 0.1, "eps": 1e-6, "amsgrad": False, "maximize": False}


def arguments(
    shape: tuple[int, ...], dtypes: Any = "FLOAT", seed: int = 1, step: Any = 3, **named: Any
) -> dict[str, Any]:
    """A call by name; dtypes: one for all, or of each tensor."""
    rng = np.random.default_rng(seed)
    of = [dtypes] * 5 if isinstance(dtypes, str) else dtypes
    call: dict[str, Any] = {}
    for name, dtype in zip(TENSORS, of, strict=True):
        values = normal(rng, shape)
        call[name] = np.array(np.abs(values) / 4 if name in ("v", "max_grad_norm") else values, DTYPES[dtype])
    return {**call, "step": np.asarray(step), **USUAL, **named}


def check(call: dict[str, Any], results: Any) -> None:
    given = {name: a.copy() if isinstance(a, np.ndarray) else a for name, a in call.items()}
    read = [name for name in TENSORS if name != "max_grad_norm" or given["amsgrad"]]
    arithmetic = arithmetic_of(*(given[name] for name in read), *(r for r in results if r is not None))
    golden = reference.apply_adam_w_v2(**given)
    beta1, m, g, v = (
        given["beta1"],
        wide(given["m"]),
        wide(given["grad"]),
        golden[2] if golden[3] is None else golden[3],
    )
    t = float(given["step"].item()) + 1
    of_m = np.maximum(abs(beta1) * np.abs(m), abs(1 - beta1) * np.abs(g))
    step = given["lr"] / (1 - beta1**t) * of_m / (np.sqrt(v / (1 - given["beta2"] ** t)) + given["eps"])
    decay = max(1.0, abs(1 - given["lr"] * given["weight_decay"]))
    terms = (np.maximum(decay * np.abs(wide(given["var"])), step), of_m, golden[2], golden[3])
    for result, exact, term in zip(results, golden, terms, strict=True):
        assert (result is None) == (exact is None)
        if exact is not None:
            assert_close(result, exact, term, 8 * (2 if arithmetic == "DOUBLE" else 1), arithmetic)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("amsgrad", [False, True])
def test_numbers(dtype, amsgrad):
    for shape in ((), (1,), (7,), (70, 3), (1030, 17), (3, 5, 257), (200_003,), (0,), (3, 0, 2)):
        call = arguments(shape, dtype, amsgrad=amsgrad, maximize=len(shape) == 1)
        places = [Place(shape, dtype) for _ in range(4)]
        results = descend.apply_adam_w_v2(**call, out=[p.array for p in places])
        check(call, results if amsgrad else (*results[:3], None))
        for place in places[: 4 if amsgrad else 3]:
            place.check_guards()
        if not amsgrad:
            places[3].check_untouched()
            assert descend.apply_adam_w_v2(**{**call, "max_grad_norm": None})[3] is None
        assert_same_bits(descend.apply_adam_w_v2(**call)[: 3 + amsgrad], results[: 3 + amsgrad])


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.differing_executors])
@given(st.data())
def test_any_shape_layout_dtypes_and_numbers(data):
    shape = tuple(data.draw(st.lists(st.integers(0, 7), max_size=4), "shape")) + data.draw(
        st.sampled_from([(), (70,), (300,)]), "more"
    )
    of = [data.draw(st.sampled_from(FLOATS)) for _ in range(5)]
    number = st.sampled_from([0.0, 0.1, 0.3, 0.5, 0.9, 0.999])
    call = arguments(
        shape,
        of,
        data.draw(st.integers(0, 99), "seed"),
        data.draw(st.sampled_from([np.array(0), np.float32(7) * np.ones(1), [[5]], np.array([3], np.int32)]), "step"),
        lr=data.draw(st.sampled_from([1e-3, 0.5, 10.0]), "lr"),
        weight_decay=data.draw(st.sampled_from([0.0, 0.01, 0.1, 2.0]), "decay"),
        beta1=data.draw(number, "beta1"),
        beta2=data.draw(number, "beta2"),
        amsgrad=data.draw(st.booleans(), "amsgrad"),
        maximize=data.draw(st.booleans(), "maximize"),
    )
    if call["step"].dtype.kind == "f" and data.draw(st.booleans()):
        call["step"] = call["step"].astype(DTYPES["BFLOAT16"])
    in_place = data.draw(st.booleans(), "in place")
    where = [data.draw(layouts(len(shape))) for _ in range(5)]
    if data.draw(st.booleans(), "one layout"):
        where = [where[0]] * 5
    call |= {name: placed(call[name], layout) for name, layout in zip(TENSORS, where, strict=True)}
    before = {n: a.copy() if isinstance(a, np.ndarray) else a for n, a in call.items()}
    places = [Place(shape, of[k], data.draw(layouts(len(shape)))) for k in range(4)]
    out = [call[name] for name in TENSORS[:4]] if in_place else [p.array for p in places]
    run_two_phase(OP, *call.values(), *out)
    check(before, (*out[:3], out[3] if call["amsgrad"] else None))
    assert_same_bits([call["grad"]], [before["grad"]])
    if not call["amsgrad"]:
        assert_same_bits([call["max_grad_norm"]], [before["max_grad_norm"]])
    expected = descend.apply_adam_w_v2(**before)
    for result, one in zip(out, expected, strict=True):
        if one is not None:
            assert_same_bits([result], [one])


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("amsgrad", [False, True])
def test_in_the_place_of_any_inputs(dtype, amsgrad):
    for shape in ((40, 33), (70_000,)):
        call = arguments(shape, dtype, amsgrad=amsgrad)
        expected = descend.apply_adam_w_v2(**call)
        for places in itertools.permutations(TENSORS, 3 + amsgrad):
            mine = {n: a.copy() if isinstance(a, np.ndarray) else a for n, a in call.items()}
            out = [mine[place] for place in places]
            descend.apply_adam_w_v2(**mine, out=[*out, *[None] * (1 - amsgrad)])
            assert_same_bits(out, expected[: 3 + amsgrad])


def test_example_of_the_document():
    numbers = np.arange(4, dtype=np.float32).reshape(2, 2)
    more = {"lr": 1e-3, "beta1": 0.9, "beta2": 0.999, "weight_decay": 1e-2, "eps": 1e-8}
    more = {name: float(np.float32(value)) for name, value in more.items()} | {"amsgrad": True, "maximize": True}
    arrays = [numbers.copy() for _ in range(5)]
    run_two_phase(OP, *arrays, np.ones(1, np.float32), *more.values(), *arrays[:4], product="atlas-a2-training")
    golden = reference.apply_adam_w_v2(*[numbers] * 5, np.ones(1), **more)
    for result, exact in zip(arrays, golden, strict=False):
        np.testing.assert_allclose(result, exact, rtol=2e-7)


@pytest.mark.parametrize("dtype", ["FLOAT", "DOUBLE"])
def test_infinities_and_nan(dtype):
    """As the formula has them: no infinity of a parameter or moment is lost to how a share of it is taken away."""
    specials = np.array([np.inf, -np.inf, np.nan, 0.0, 1.5])
    var, m, v, most, grad = (a.reshape(-1).copy() for a in np.meshgrid(*[specials] * 5))
    arrays = [a.astype(DTYPES[dtype]) for a in (var, m, np.abs(v), np.abs(most), grad)]
    for amsgrad, beta1, decay in itertools.product((False, True), (0.0, 0.2, 0.9), (0.0, 0.01, 200.0)):
        named = {**USUAL, "beta1": beta1, "weight_decay": decay, "amsgrad": amsgrad}
        results = descend.apply_adam_w_v2(*arrays, np.array(1), **named)
        golden = reference.apply_adam_w_v2(*arrays, 1, **named)
        for result, exact in zip(results, golden, strict=True):
            if exact is not None:
                special = ~np.isfinite(exact)
                np.testing.assert_array_equal(wide(result)[special], exact[special])
                assert np.isfinite(wide(result)[~special]).all()


def test_numbers_that_are_very_large_or_small():
    tiny = np.array([1e-45, 3e-39, 1e-30, 1e-22, 1.0, 1e18, 3e38], np.float32)
    call = arguments(tiny.shape, eps=0.0, weight_decay=0.0)
    call |= {"m": tiny, "grad": -tiny, "v": np.minimum(tiny, 1).astype(np.float32), "var": tiny}
    results = descend.apply_adam_w_v2(**call)
    m, v = reference.apply_adam_w_v2(**call)[1:3]
    np.testing.assert_allclose(results[1], m, rtol=1e-6, atol=1e-45)  # g - m is beyond float32
    np.testing.assert_allclose(results[2], np.where(v > 3.4e38, np.inf, v), rtol=1e-6, atol=1e-45)
    still = arguments((5,), step=0, eps=1e-44, m=np.zeros(5, np.float32))
    still |= {"grad": still["m"], "v": still["m"]}
    assert np.isfinite(descend.apply_adam_w_v2(**still)[0]).all()  # 0 / eps


@pytest.mark.parametrize("step", [0, 1, 10, 999, 10**6, 2**40, 2.5])
def test_steps(step):
    for dtype, kind in itertools.product(("FLOAT", "DOUBLE"), ("f4", "f8", "i8", "i4")):
        if np.dtype(kind).kind == "i" and (step != int(step) or step > np.iinfo(kind).max):
            continue
        call = arguments((50,), dtype, step=np.full((1, 1), step, kind), beta2=0.9999)
        check(call, descend.apply_adam_w_v2(**call))


@pytest.mark.parametrize("step", [0, 3, 4])
def test_betas_that_are_below_0_or_above_1(step):
    for beta1, beta2 in ((-0.5, 0.9), (0.9, -0.5), (1.5, 0.9)):
        call = arguments((50,), step=step, beta1=beta1, beta2=beta2, amsgrad=True)
        check(call, descend.apply_adam_w_v2(**call))
    call = arguments((50,), step=step, beta2=1.5)  # 1 - beta2^t has no root
    results, expected = descend.apply_adam_w_v2(**call), reference.apply_adam_w_v2(**call)
    assert np.isnan(results[0]).all()
    assert np.isnan(expected[0]).all()
    for result, one in zip(results[1:3], expected[1:3], strict=True):
        np.testing.assert_allclose(result, one, rtol=1e-5, atol=1e-6)
    call = arguments((50,), step=step, beta1=1.0)  # infinities: 1 - beta^t is 0
    np.testing.assert_array_equal(descend.apply_adam_w_v2(**call)[0], reference.apply_adam_w_v2(**call)[0])


def test_double_is_exact():
    """Where 1 - beta^t is of few bits: the power has no error of its own."""
    call = arguments((300,), "DOUBLE", step=499, beta1=0.999, beta2=0.99999)
    results, golden = descend.apply_adam_w_v2(**call), reference.apply_adam_w_v2(**call)
    np.testing.assert_allclose(results[0] - call["var"], golden[0] - call["var"], rtol=1e-14, atol=5e-16)


# --- the contract


def test_contract():
    call = arguments((2, 3), "FLOAT16", amsgrad=True)
    call["step"] = np.array([3], np.int64)
    out = [call[name] for name in TENSORS[:4]]
    for product in HUAWEI:
        with acl.product(product):
            if product not in A2_TO_950:
                with refused(561003, OP):
                    phase1(OP, *call.values(), *out)
                continue
            phase1(OP, *call.values(), *out)
            mixed = arguments((2, 3), ("BFLOAT16", "FLOAT", "FLOAT", "FLOAT", "FLOAT16"), amsgrad=True)
            phase1(OP, *{**mixed, "step": np.ones(1, np.float32)}.values(), *(mixed[name] for name in TENSORS[:4]))
            for name in (*TENSORS, "step"):
                with refused(161001, OP, name):
                    phase1(OP, *{**call, name: None}.values(), *out)
                with refused(161002, OP, name):
                    phase1(OP, *{**call, name: call[name].astype("f8")}.values(), *out)
                with refused(161002, OP, "step has shape [2], but must have one element" if name == "step" else name):
                    phase1(OP, *{**call, name: np.zeros(2, call[name].dtype)}.values(), *out)
            with refused(161002, OP, "v_out has dtype FLOAT, but must have that of v, FLOAT16"):
                phase1(OP, *call.values(), *out[:2], np.zeros((2, 3), np.float32), out[3])
            plain = {**call, "amsgrad": False}
            phase1(OP, *{**plain, "max_grad_norm": None}.values(), *out[:3], None)
            with refused(161002, OP, "max_grad_norm"):  # checked where it is given
                phase1(OP, *{**plain, "max_grad_norm": np.zeros(3, np.float16)}.values(), *out[:3], None)


def test_outputs_that_overlap():
    call = arguments((8,))
    memory = np.zeros(20, np.float32)
    with refused(161002, OP, "var_out overlaps m_out"):
        descend.apply_adam_w_v2(**call, out=(memory[:8], memory[4:12], None, None))
    with refused(161002, OP, "overlaps m"):
        descend.apply_adam_w_v2(**{**call, "m": memory[:8]}, out=(memory[4:12], None, None, None))
