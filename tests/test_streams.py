"""Streams: order, many threads, timeouts, and what lives as long as the work."""

from __future__ import annotations

import gc
import itertools
import os
import sys
import threading
import time
import weakref
from typing import Any

import numpy as np
import pytest

import descend
from cases import Place, assert_same_bits, digest, in_threads, phase1, run_python
from descend import acl, aclnn
from two_phase_calls import BIG, OP, expected_of, inputs, outputs

pytestmark = pytest.mark.usefixtures("little_to_collect", "host")


def test_work_on_a_stream_runs_in_order():
    """Each call reads what the one before it wrote."""
    rows, columns = 2000, 500
    first, *rest = inputs(rows, columns, 3)
    rest[2] = np.abs(rest[2]) + np.float32(0.5)
    chain = [first] + [np.full((rows, columns), np.nan, np.float32) for _ in range(12)]
    expected = first
    for _ in range(12):
        expected = descend.rms_norm_grad(expected, *rest)[0]
    stream = acl.Stream()
    for source, target in itertools.pairwise(chain):
        dgamma = np.empty(columns, np.float32)
        size, executor = phase1(OP, source, *rest, target, dgamma)
        aclnn.rms_norm_grad(acl.malloc(size), size, executor, stream)
    stream.synchronize()
    assert stream.query()
    assert_same_bits([chain[-1]], [expected])


def test_small_work_behind_big_work_waits_its_turn():
    big, big_out = inputs(*BIG), outputs(*BIG)
    stream = acl.Stream()
    size, executor = phase1(OP, *big, *big_out)
    aclnn.rms_norm_grad(acl.malloc(size), size, executor, stream)
    # Reads the first row of what is being computed.
    small_out = [np.empty((1, BIG[1]), np.float32), np.empty(BIG[1], np.float32)]
    size, executor = phase1(OP, big_out[0][:1], big[1][:1], big[2][:1], big[3], *small_out)
    aclnn.rms_norm_grad(acl.malloc(size), size, executor, stream)
    stream.synchronize()
    expected = descend.rms_norm_grad(big_out[0][:1], big[1][:1], big[2][:1], big[3])
    assert_same_bits(small_out, expected)


def test_many_threads_each_with_a_stream():
    expected = [expected_of(inputs(6, 50, seed)) for seed in range(16)]

    def body(i: int) -> None:
        stream = acl.Stream()
        call = inputs(6, 50, i)
        with acl.product("host"):
            for n in range(100):
                result = outputs(6, 50)
                size, executor = phase1(OP, *call, *result)
                aclnn.rms_norm_grad(acl.malloc(size), size, executor, stream)
                if n % 3 == 0:
                    stream.synchronize()
                    assert_same_bits(result, expected[i])
        stream.synchronize()
        assert_same_bits(result, expected[i])

    in_threads(16, body)


def test_many_threads_on_one_stream():
    stream = acl.Stream()
    expected = [expected_of(inputs(40, 400, seed)) for seed in range(10)]

    def body(i: int) -> None:
        call = inputs(40, 400, i % 10)
        with acl.product("host"):
            for _ in range(5):
                result = outputs(40, 400)
                size, executor = phase1(OP, *call, *result)
                aclnn.rms_norm_grad(acl.malloc(size), size, executor, stream)
                stream.synchronize()
                assert_same_bits(result, expected[i % 10])

    in_threads(100, body)
    assert stream.query()


def test_many_streams_at_once():
    call = inputs(400, 600)
    expected = expected_of(call)
    streams = [acl.Stream() for _ in range(40)]
    results = []
    for stream in streams * 2:
        result = outputs(400, 600)
        size, executor = phase1(OP, *call, *result)
        aclnn.rms_norm_grad(acl.malloc(size), size, executor, stream)
        results.append(result)
    for stream in reversed(streams):
        stream.synchronize()
    for result in results:
        assert_same_bits(result, expected)


def test_the_functional_form_in_many_threads():
    expected = [expected_of(inputs(64, 300 + i, i)) for i in range(12)]

    def body(i: int) -> None:
        call = inputs(64, 300 + i, i)
        for _ in range(40):
            assert_same_bits(descend.rms_norm_grad(*call), expected[i])

    in_threads(12, body)


def test_one_repeatable_executor_in_many_threads():
    """Launches of one executor take turns; all of them are on one stream, so that they write one after the other."""
    call, result = inputs(200, 700), outputs(200, 700)
    expected = expected_of(call)
    size, executor = phase1(OP, *call, *result)
    executor.set_repeatable()
    workspace, stream = acl.malloc(size), acl.Stream()

    def body(i: int) -> None:
        for _ in range(20):
            if i == 0:  # the same memory, but the plan is made anew
                executor.set_tensor("x", call[1])
            aclnn.rms_norm_grad(workspace, size, executor, stream)

    in_threads(8, body)
    stream.synchronize()
    assert_same_bits(result, expected)


def test_one_executor_that_many_threads_want_runs_once():
    call = inputs()
    for _ in range(20):
        result = outputs()
        size, executor = phase1(OP, *call, *result)
        workspace = acl.malloc(size)

        def body(_: int, workspace: Any = workspace, size: int = size, executor: Any = executor) -> int:
            try:
                aclnn.rms_norm_grad(workspace, size, executor, acl.Stream())
            except aclnn.AclnnError as error:
                assert error.status == 161002  # noqa: PT017  in a forked child
                return 0
            return 1

        assert sum(in_threads(6, body)) == 1


def test_arrays_that_the_caller_drops_live_until_the_work_is_done():
    def start(stream: acl.Stream) -> tuple[list[Any], Any]:
        call = inputs(*BIG)
        result = Place(BIG, "FLOAT"), Place(BIG[1:], "FLOAT")
        size, executor = phase1(OP, *call, *(r.array for r in result))
        aclnn.rms_norm_grad(acl.malloc(size), size, executor, stream)
        return [weakref.ref(a) for a in call], result

    expected = digest(*expected_of(inputs(*BIG)))
    stream = acl.Stream()
    started = [start(stream) for _ in range(3)]
    gc.collect()
    filler = [np.full(BIG, 1e30, np.float32) for _ in range(4)]  # takes what was freed too early
    stream.synchronize()
    del filler
    for references, result in started:
        assert digest(*(np.ascontiguousarray(r.array) for r in result)) == expected
        result[0].check_guards()
        # And no longer: synchronize lets them go.
        gc.collect()
        assert [r() for r in references] == [None] * 4


def test_a_stream_that_the_caller_drops_finishes_its_work():
    call, result = inputs(*BIG), outputs(*BIG)
    expected = expected_of(call)
    size, executor = phase1(OP, *call, *result)
    stream = acl.Stream()
    aclnn.rms_norm_grad(acl.malloc(size), size, executor, stream)
    del stream, executor
    gc.collect()
    assert_same_bits(result, expected)


def test_arrays_with_finalizers_that_use_the_stream():
    """Releasing the arrays of finished work runs Python code, which may come back to the same stream."""
    code = """
import numpy as np
from descend import acl, aclnn
acl.set_product("host")
stream = acl.Stream()
done = []
class Noisy(np.ndarray):
    def __del__(self):
        done.append(1)
        stream.synchronize()
        a = [np.ones(s, "f") for s in ((2, 8), (2, 8), (2,), (8,), (2, 8), (8,))]
        size, executor = aclnn.rms_norm_grad_get_workspace_size(*a)
        aclnn.rms_norm_grad(acl.malloc(size), size, executor, stream)
def start():
    shapes = ((3000, 1000), (3000, 1000), (3000,), (1000,), (3000, 1000), (1000,))
    arrays = [np.ones(s, "f").view(Noisy) for s in shapes]
    size, executor = aclnn.rms_norm_grad_get_workspace_size(*arrays)
    aclnn.rms_norm_grad(acl.malloc(size), size, executor, stream)
for _ in range(3):
    start()
stream.synchronize()
print(len(done))
"""
    assert int(run_python(code).stdout) == 18


def test_a_workspace_cannot_be_resized_while_it_is_in_use():
    code = f"""
import numpy as np
from descend import acl, aclnn
acl.set_product("host")
a = [np.ones(s, "f") for s in ({BIG}, {BIG}, ({BIG[0]},), ({BIG[1]},), {BIG}, ({BIG[1]},))]
calls = [aclnn.rms_norm_grad_get_workspace_size(*a) for _ in range(12)]  # enough work to be found at it
workspace, stream = bytearray(calls[0][0]), acl.Stream()
for size, executor in calls:
    aclnn.rms_norm_grad(workspace, size, executor, stream)
try:
    workspace.clear()
except BufferError:
    print("refused")
stream.synchronize()
workspace.clear()
"""
    assert run_python(code).stdout == "refused\n"


def test_timeouts():
    call, result = inputs(*BIG), outputs(*BIG)
    stream = acl.Stream()
    stream.synchronize(timeout=0)  # nothing to wait for
    sizes_executors = [phase1(OP, *call, *result) for _ in range(12)]
    workspace = acl.malloc(sizes_executors[0][0])
    for size, executor in sizes_executors:
        aclnn.rms_norm_grad(workspace, size, executor, stream)
    assert not stream.query()
    for limit in (0, 0.001, -1):
        begin = time.monotonic()
        with pytest.raises(TimeoutError) as caught:
            stream.synchronize(timeout=limit)
        assert time.monotonic() - begin < 2
        assert (caught.value.status, caught.value.name) == (507046, "ACL_ERROR_RT_STREAM_SYNC_TIMEOUT")
        assert isinstance(caught.value, aclnn.AclnnError)
    stream.synchronize(timeout=100)
    assert stream.query()
    assert_same_bits(result, expected_of(call))
    stream.synchronize(timeout=1e30)
    stream.synchronize(timeout=float("inf"))
    for wrong in ("1", [1]):
        with pytest.raises(TypeError):
            stream.synchronize(timeout=wrong)


def test_the_gil_is_released_while_a_kernel_runs():
    """A thread waiting for the GIL gets it while another thread computes or waits for a stream."""
    call, result = inputs(6000, 4000), outputs(6000, 4000)
    size, executor = phase1(OP, *call, *result)
    workspace, stream = acl.malloc(size), acl.Stream()

    def functional() -> None:
        descend.rms_norm_grad(*call, out=tuple(result))

    def two_phase() -> None:
        aclnn.rms_norm_grad(workspace, size, executor, stream)
        stream.synchronize()

    switch = sys.getswitchinterval()
    descend.set_num_threads(1)
    try:
        for compute in (functional, two_phase):
            gate, came = threading.Lock(), []
            gate.acquire()
            thread = threading.Thread(target=lambda gate=gate, came=came: came.append(gate.acquire()))
            thread.start()
            try:
                sys.setswitchinterval(100)  # the GIL passes on only where it is given up
                gate.release()
                compute()
                seen = len(came)
            finally:
                sys.setswitchinterval(switch)
            thread.join()
            assert seen == 1, compute.__name__
    finally:
        descend.set_num_threads(0)


def test_process_threads_are_gone_after_the_end_of_streams():
    """A stream's thread ends with the stream."""
    if not os.path.isdir("/proc/self/task"):
        pytest.skip("needs /proc")

    def stream_threads() -> int:
        names = []
        for task in os.listdir("/proc/self/task"):
            try:
                with open(f"/proc/self/task/{task}/comm") as file:
                    names.append(file.read().strip())
            except FileNotFoundError:
                pass
        return names.count("descend-stream")

    gc.collect()
    before = stream_threads()
    call, result = inputs(*BIG), outputs(*BIG)
    streams = []
    for _ in range(5):
        size, executor = phase1(OP, *call, *result)
        streams.append(acl.Stream())
        aclnn.rms_norm_grad(acl.malloc(size), size, executor, streams[-1])
        streams[-1].synchronize()
    del streams
    gc.collect()
    assert stream_threads() == before
