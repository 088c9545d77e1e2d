"""Calls that follow each other: one that is like the last one is not checked anew, and any other is.

The two-phase form makes everything anew each time: its results are what is expected here.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import descend
from cases import Array, normal, refused, run_two_phase
from descend import acl

pytestmark = pytest.mark.usefixtures("little_to_collect")


@pytest.fixture(autouse=True)
def host():
    with acl.product("host"):
        yield
    gc.collect()
    assert descend._native.info()["allocated_bytes"] == 0, "with memory of acl.malloc() every call is checked anew"


@dataclass
class Kind:
    """An operator, as these tests call it."""

    operator: str
    inputs: tuple[str, ...]
    """The shape, with a letter for the size of each dimension."""
    outputs: tuple[str, ...]
    call: Callable[..., Any]
    """The functional form: inputs, number, out."""
    arguments: Callable[..., tuple[Any, ...]]
    """Those of the two-phase form: inputs, number, outputs."""
    wide: tuple[int, ...] = field(default=())
    """Inputs that are always FLOAT."""


KINDS = {
    kind.operator: kind
    for kind in (
        Kind(
            "rms_norm_grad",
            ("rc", "rc", "r", "c"),
            ("rc", "c"),
            lambda dy, x, rstd, gamma, number, out: descend.rms_norm_grad(dy, x, rstd, gamma, out=out),
            lambda dy, x, rstd, gamma, number, dx, dgamma: (dy, x, rstd, gamma, dx, dgamma),
            (2,),
        ),
        Kind(
            "rms_norm",
            ("rc", "c"),
            ("rc", "r1"),
            lambda x, gamma, number, out: descend.rms_norm(x, gamma, epsilon=number, out=out),
            lambda x, gamma, number, y, rstd: (x, gamma, number, y, rstd),
        ),
        Kind(
            "layer_norm",
            ("rc", "c", "c"),
            ("rc", "r1", "r1"),
            lambda x, w, b, number, out: descend.layer_norm(x, [x.shape[1]], w, b, eps=number, out=out),
            lambda x, w, b, number, y, mean, rstd: (x, [x.shape[1]], w, b, number, y, mean, rstd),
        ),
        Kind(
            "scaled_masked_softmax_backward",
            ("1rcc", "1rcc"),
            ("1rcc",),
            lambda dy, y, number, out: descend.scaled_masked_softmax_backward(dy, y, None, number, True, out=out),
            lambda dy, y, number, dx: (dy, y, None, number, True, dx),
        ),
    )
}
NUMBERS = (0.5, 1.0, 2.0)


def shape_of(letters: str, rows: int, columns: int) -> tuple[int, ...]:
    return tuple({"r": rows, "c": columns, "1": 1}[letter] for letter in letters)


@dataclass(frozen=True)
class Call:
    operator: str
    rows: int
    columns: int
    dtype: str
    number: float
    form: str
    """How the first input lies: whole, turned (its axes are the other way round in memory), gapped, odd (at an address
    that is no multiple of an element's size)."""
    out: str
    """Where the results go: new, given, apart (given, with gaps), or in place of the first input."""


CALLS = st.builds(
    Call,
    st.sampled_from(sorted(KINDS)),
    st.sampled_from([3, 4]),
    st.sampled_from([8, 9]),
    st.sampled_from(["FLOAT", "FLOAT16", "BFLOAT16"]),
    st.sampled_from(NUMBERS),
    st.sampled_from(["whole", "whole", "turned", "gapped", "odd"]),
    st.sampled_from(["new", "new", "given", "given", "apart", "in place"]),
)


def lying(values: Array, form: str) -> Array:
    if form == "turned":
        return np.asfortranarray(values)
    if form == "gapped":
        room = np.full((*values.shape[:-1], 2 * values.shape[-1]), np.nan, values.dtype)
        room[..., ::2] = values
        return room[..., ::2]
    if form == "odd":
        bytes_ = np.zeros(values.nbytes + 1, np.uint8)[1:]
        bytes_[...] = np.ascontiguousarray(values).reshape(-1).view(np.uint8)
        return bytes_.view(values.dtype).reshape(values.shape)
    return np.ascontiguousarray(values)


def perform(call: Call, rng: np.random.Generator) -> None:
    """Makes the call and compares it with the two-phase form on copies, bit by bit."""
    kind = KINDS[call.operator]
    shapes = [shape_of(letters, call.rows, call.columns) for letters in kind.inputs]
    inputs = [normal(rng, s, "FLOAT" if i in kind.wide else call.dtype) for i, s in enumerate(shapes)]
    kinds = [inputs[0].dtype] + [np.dtype(np.float32)] * (len(kind.outputs) - 1)
    expected = [
        np.full(shape_of(letters, call.rows, call.columns), np.nan, dtype)
        for letters, dtype in zip(kind.outputs, kinds, strict=True)
    ]
    if call.operator == "rms_norm_grad":
        expected[1] = expected[1].astype(inputs[3].dtype if call.out != "new" else np.float32)
    run_two_phase(kind.operator, *kind.arguments(*inputs, call.number, *expected), poison=False)

    inputs[0] = lying(inputs[0], call.form)
    given = [np.full_like(e, np.nan) for e in expected]
    if call.out == "apart":
        given[0] = lying(given[0], "gapped")
    elif call.out == "in place":
        given[0] = inputs[0]
    out = None if call.out == "new" else given if len(given) > 1 else given[0]
    odd = call.form == "odd"
    if odd:
        with refused(161002, kind.operator, "multiple of its element size"):
            kind.call(*inputs, call.number, out)
        return
    results = kind.call(*inputs, call.number, out)
    results = results if isinstance(results, tuple) else (results,)
    for result, want in zip(results, expected, strict=True):
        assert result.dtype == want.dtype
        assert result.shape == want.shape
        assert np.ascontiguousarray(result).tobytes() == want.tobytes(), call


@settings(max_examples=150, deadline=None)
@given(st.lists(CALLS, min_size=2, max_size=6), st.integers(0, 2**32 - 1))
def test_any_sequence_of_calls(calls: list[Call], seed: int):
    rng = np.random.default_rng(seed)
    for call in calls:
        for _ in range(2):  # the second one is like the first
            perform(call, rng)


def arrays(rows: int = 4, columns: int = 8) -> list[Array]:
    rng = np.random.default_rng(1)
    return [normal(rng, s) for s in ((rows, columns), (rows, columns), (rows,), (columns,))]


def outputs(rows: int = 4, columns: int = 8) -> tuple[Array, Array]:
    return np.full((rows, columns), np.nan, np.float32), np.full(columns, np.nan, np.float32)


def test_what_overlaps_is_refused_after_the_same_call_without():
    inputs = arrays()
    for _ in range(2):
        descend.rms_norm_grad(*inputs, out=outputs())
    room = np.zeros(64, np.float32)
    room[:32] = inputs[0].ravel()
    moved = [room[:32].reshape(4, 8), *inputs[1:]]
    for _ in range(2):
        with refused(161002, "rms_norm_grad", "dx_out overlaps dy in memory"):
            descend.rms_norm_grad(*moved, out=(room[8:40].reshape(4, 8), outputs()[1]))
        with refused(161002, "rms_norm_grad", "two outputs"):
            descend.rms_norm_grad(*inputs, out=(room[:32].reshape(4, 8), room[24:32]))
    dx, dgamma = descend.rms_norm_grad(*moved, out=(moved[0], outputs()[1]))  # but exactly in place is fine
    expected = descend.rms_norm_grad(*inputs, out=outputs())
    assert dx.tobytes() == expected[0].tobytes()
    assert dgamma.tobytes() == expected[1].tobytes()


def test_a_parameter_that_its_gradient_takes_the_place_of():
    """Such a plan copies the parameter first. It must not be used for a call whose tensors do not overlap."""
    for _ in range(2):
        inputs = arrays()
        expected = descend.rms_norm_grad(*inputs, out=outputs())
        gamma = inputs[3].copy()
        got = descend.rms_norm_grad(*inputs[:3], gamma, out=(outputs()[0], gamma))
        assert got[0].tobytes() == expected[0].tobytes()
        assert got[1].tobytes() == expected[1].tobytes()


def test_views_of_the_same_arrays():
    """Of the same strides, and smaller or larger."""
    inputs, results = arrays(4, 9), outputs(4, 9)
    for columns in (9, 8, 8, 7, 9, 1, 9):
        for rows in (4, 3, 4):
            views = [inputs[0][:rows, :columns], inputs[1][:rows, :columns], inputs[2][:rows], inputs[3][:columns]]
            expected = [np.full((rows, columns), np.nan, np.float32), np.full(columns, np.nan, np.float32)]
            run_two_phase("rms_norm_grad", *views, *expected)
            got = descend.rms_norm_grad(*views, out=(results[0][:rows, :columns], results[1][:columns]))
            for result, want in zip(got, expected, strict=True):
                np.testing.assert_array_equal(result, want, strict=True)


def test_what_is_wrong_is_refused_each_time():
    inputs = arrays()
    short = [*inputs[:3], inputs[3][:7].copy()]
    double = [inputs[0].astype(np.int32), *inputs[1:]]
    for _ in range(3):
        descend.rms_norm_grad(*inputs)
        with refused(561002, "rms_norm_grad", "gamma"):
            descend.rms_norm_grad(*short)
        descend.rms_norm_grad(*inputs)
        with refused(161002, "rms_norm_grad", "dy has dtype INT32"):
            descend.rms_norm_grad(*double)


@pytest.mark.parametrize("mask", [(True, False, True), (False, True, False), (True, True, True)])
def test_masks_of_outputs(mask: tuple[bool, ...]):
    rng = np.random.default_rng(2)
    dy, x, w, b = (normal(rng, s) for s in ((4, 8), (4, 8), (8,), (8,)))
    mean, rstd = x.mean(1, keepdims=True), 1 / x.std(1, keepdims=True)

    def call(mask: tuple[bool, ...]) -> tuple[Any, ...]:
        return tuple(descend.layer_norm_backward(dy, x, [8], mean, rstd, w, b, mask))

    whole = call((True, True, True))
    for _ in range(2):
        for result, wanted, all_of_it in zip(call(mask), mask, whole, strict=True):
            assert (result is None) == (not wanted)
            assert result is None or result.tobytes() == all_of_it.tobytes()
        assert all(a.tobytes() == b.tobytes() for a, b in zip(call((True, True, True)), whole, strict=True))


def test_memory_of_ours_is_checked_as_before():
    """A storage must lie within its allocation, which only the address tells."""
    inputs = arrays()
    expected = descend.rms_norm_grad(*inputs)
    memory = acl.malloc(inputs[0].nbytes)
    inputs[0] = np.frombuffer(memory, np.float32)[: inputs[0].size].reshape(inputs[0].shape)
    inputs[0][...] = arrays()[0]
    for _ in range(2):
        got = descend.rms_norm_grad(*inputs)
        assert got[0].tobytes() == expected[0].tobytes()
    inputs.clear()
    del memory


def test_each_thread_has_its_own_last_call():
    inputs, wrong = arrays(), []

    def work(rows: int) -> None:
        mine = arrays(rows)
        expected = [np.asarray(r).tobytes() for r in descend.rms_norm_grad(*mine)]
        for _ in range(300):
            if [np.asarray(r).tobytes() for r in descend.rms_norm_grad(*mine)] != expected:
                wrong.append(rows)

    threads = [threading.Thread(target=work, args=(rows,)) for rows in (3, 4, 5, 4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    descend.rms_norm_grad(*inputs)


def test_a_call_within_a_call():
    inputs = arrays()
    expected = [r.tobytes() for r in descend.rms_norm_grad(*inputs)]
    inner: list[list[bytes]] = []

    class Array:  # of DLPack
        def __dlpack__(self, **options: Any) -> Any:
            inner.append([r.tobytes() for r in descend.rms_norm_grad(*inputs)])
            return inputs[0].__dlpack__(**options)

        def __dlpack_device__(self) -> Any:
            return inputs[0].__dlpack_device__()

    for _ in range(3):
        got = descend.rms_norm_grad(Array(), *inputs[1:])
        assert [np.asarray(r).tobytes() for r in got] == expected
    assert inner == [expected] * 3


def test_a_call_like_the_last_one_that_leaves_an_allocation():
    """A plan that is kept says nothing of where an allocation ends."""
    x, gamma = normal(np.random.default_rng(3), (4, 8)), np.ones(8, np.float32)
    descend.rms_norm(x, gamma)
    memory = acl.malloc(64)
    beyond = np.lib.stride_tricks.as_strided(np.frombuffer(memory, np.float32), (4, 8), (32, 4))
    with refused(161002, "rms_norm", "x has a storage of 128 bytes, but the allocation that it lies in has 64 bytes"):
        descend.rms_norm(beyond, gamma)
    del beyond, memory
