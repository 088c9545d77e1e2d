"""No reference and no memory is lost, whatever arrays a call has, and whether or not it fails."""

from __future__ import annotations

import gc
import sys
import tracemalloc
from typing import Any

import numpy as np
import pytest

import descend
from array_calls import OP, Producer, inputs
from cases import phase1, run_python
from descend import acl, aclnn

pytestmark = pytest.mark.usefixtures("little_to_collect")


def references(objects: list[Any]) -> list[int]:
    gc.collect()
    return [sys.getrefcount(o) for o in objects]


def failing(call: list[Any], extra: list[Any]) -> None:
    out = extra[0]
    for bad in (
        lambda: descend.rms_norm_grad(call[0], call[1], call[3], call[2]),
        lambda: descend.rms_norm_grad(call[0], call[1], call[2], "gamma"),
        lambda: descend.rms_norm_grad(*call, out=(out, out)),
        lambda: descend.rms_norm_grad(*call, out=(out, None, None)),
        lambda: phase1(OP, *call, None, out),
        lambda: phase1(OP, *call, object(), out),
    ):
        with pytest.raises((ValueError, TypeError)):
            bad()


@pytest.mark.parametrize("family", ["numpy", "torch", "dlpack"])
def test_no_references_are_lost(family):
    if family == "torch":
        wrap = pytest.importorskip("torch").from_numpy
    else:
        wrap = {"numpy": np.asarray, "dlpack": Producer}[family]
    call, extra = [wrap(a) for a in inputs()], [wrap(np.zeros((4, 32), np.float32)), wrap(np.zeros(32, np.float32))]
    watched = [*call, *extra]
    if family == "dlpack":
        watched += [p.array for p in [*call, *extra]]
    stream = acl.Stream()

    def once() -> None:
        descend.rms_norm_grad(*call)
        descend.rms_norm_grad(*call, out=tuple(extra))
        failing(call, extra)
        with acl.product("host"):
            size, executor = phase1(OP, *call, *extra)
        executor.set_repeatable()
        workspace = acl.malloc(size)
        for _ in range(2):
            executor.set_tensor("x", call[1])
            aclnn.rms_norm_grad(workspace, size, executor, stream)
        phase1(OP, *call, *extra)
        stream.synchronize()

    once()
    before = references(watched)
    for _ in range(20):
        once()
    assert references(watched) == before


@pytest.mark.long
def test_no_memory_is_lost():
    call = inputs(rows=20)
    out = np.zeros((20, 32), np.float32)

    def many(count: int) -> None:
        for _ in range(count):
            descend.rms_norm_grad(*call)
            failing(call, [out])
            size, executor = phase1(OP, *call, out, np.zeros(32, np.float32))
            aclnn.rms_norm_grad(acl.malloc(size), size, executor, None)
        acl.synchronize()

    def growth() -> int:
        many(5)
        gc.collect()
        before = tracemalloc.get_traced_memory()[0]
        many(300)
        gc.collect()
        return tracemalloc.get_traced_memory()[0] - before

    many(50)
    tracemalloc.start()
    try:
        grown = min(growth() for _ in range(3))  # a leak grows with each call, unlike what other threads allocate
    finally:
        tracemalloc.stop()
    assert grown < 20_000  # less than 70 bytes a call


def test_memory_of_the_process_does_not_grow():
    """The engine's own memory, which tracemalloc does not see."""
    code = """
import gc, resource, sys
import numpy as np
import descend
from array_calls import OP, Producer, expected_of, inputs, wrong_type
from descend import acl, aclnn
acl.set_product("host")
rng = np.random.default_rng(0)
a = [rng.standard_normal(s).astype("f") for s in ((60, 500), (60, 500), (60,), (500,), (60, 500), (500,))]
turned = [np.asfortranarray(x) for x in a]
stream = acl.Stream()
def once(i):
    descend.rms_norm_grad(*a[:4])
    descend.rms_norm_grad(*turned[:4])
    try:
        descend.rms_norm_grad(*a[:3], a[3][:9])
    except ValueError:
        pass
    size, executor = aclnn.rms_norm_grad_get_workspace_size(*a)
    aclnn.rms_norm_grad(acl.malloc(size), size, executor, stream if i % 2 else acl.Stream())
def resident():
    gc.collect()
    return int(open("/proc/self/statm").read().split()[1]) * resource.getpagesize()
for i in range(400):
    once(i)
stream.synchronize()
before = resident()
for i in range(4000):
    once(i)
stream.synchronize()
print(resident() - before)
"""
    if not sys.platform.startswith("linux"):
        pytest.skip("needs /proc")
    assert int(run_python(code).stdout) < 4 << 20


def test_the_cache_of_pages_is_bounded_and_given_back():
    call = inputs(rows=100_000)
    descend.rms_norm_grad(*call)
    gc.collect()
    assert descend._native.info()["cached_bytes"] >= 100_000 * 32 * 4
    descend.empty_cache()
    assert descend._native.info()["cached_bytes"] == 0
    descend._native.set_cache_limit(1 << 20)
    try:
        descend.rms_norm_grad(*call)
        gc.collect()
        assert descend._native.info()["cached_bytes"] <= 1 << 20
    finally:
        descend._native.set_cache_limit(1 << 30)
