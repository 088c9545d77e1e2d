"""The C interface's runtime: memory, streams, threads, and the life of the library."""

from __future__ import annotations

import ctypes
import os
import threading

import numpy as np
import pytest

from c_library import DTYPES, byref, c_void_p
from c_problem import Problem, foreign_handles
from cases import in_threads, run_python
from descend import sdk

pytest_plugins = ("c_problem",)  # the fixtures lib, stream and problem

try:
    SDK = sdk.path()
except FileNotFoundError as error:
    pytest.skip(str(error), allow_module_level=True)


# --- the runtime ---------------------------------------------------------------------------------------------------


def test_memory(lib):
    pointer = c_void_p(1234)
    for size, status in ((0, 100000), (2**46 + 1, 200000), (2**60, 200000), (2**64 - 1, 200000)):
        assert lib.aclrtMalloc(byref(pointer), size, 0) == status
        assert pointer.value == 1234
        assert lib.sentence.startswith("aclrtMalloc: ")
    assert lib.aclrtMalloc(None, 64, 0) == 100000
    memory = lib.malloc(1000)
    assert memory % 64 == 0
    host = np.arange(1000, dtype=np.uint8)
    address = host.ctypes.data
    assert lib.aclrtMemcpy(memory, 1000, address, 1000, 1) == 0
    back = np.zeros(1000, np.uint8)
    assert lib.aclrtMemcpy(back.ctypes.data, 1000, memory, 1000, 2) == 0
    np.testing.assert_array_equal(back, host)
    big = np.zeros(4000, np.uint8)
    for dst, most, src, count, kind in (
        (memory, 999, address, 1000, 1),  # more than destMax
        (memory, 1001, big.ctypes.data, 1001, 1),  # past the end
        (memory + 999, 2, address, 2, 1),
        (memory + 1, 1000, address, 1000, 1),
        (big.ctypes.data, 4000, memory, 1001, 2),
        (big.ctypes.data, 4000, memory + 500, 501, 2),
        (memory, 2**64 - 1, address, 2**64 - 1, 1),
        (None, 8, address, 8, 1),
        (memory, 8, None, 8, 1),
        (memory, 8, address, 8, 8),
        (memory, 8, address, 8, -1),
    ):
        assert lib.aclrtMemcpy(dst, most, src, count, kind) == 100000
        assert lib.sentence.startswith("aclrtMemcpy: ")
        assert lib.aclrtMemcpyAsync(dst, most, src, count, kind, None) == 100000
    assert lib.aclrtMemcpy(memory + 500, 500, memory, 500, 3) == 0
    assert lib.aclrtMemcpy(memory + 1000 - 8, 8, address, 0, 1) == 0
    for at, most, count in ((memory, 8, 9), (memory, 1001, 1001), (memory + 999, 2, 2), (None, 8, 8)):
        assert lib.aclrtMemset(at, most, 0, count) == 100000
        assert lib.aclrtMemsetAsync(at, most, 0, count, None) == 100000
    assert lib.aclrtMemset(memory, 1000, 0x1FF, 1000) == 0
    assert lib.aclrtMemcpy(back.ctypes.data, 1000, memory, 1000, 2) == 0
    assert (back == 255).all()
    assert lib.aclrtFree(memory + 1) == 100000
    assert "1 bytes into" in lib.sentence
    assert lib.aclrtFree(memory) == 0
    assert lib.aclrtFree(memory) == 100000
    for wrong in (None, address, 8, 2**64 - 64):
        assert lib.aclrtFree(wrong) == 100000
    assert lib.aclrtMallocHost(byref(pointer), 64) == 0
    assert lib.aclrtFreeHost(pointer) == 0
    assert lib.aclrtFreeHost(pointer) == 100000


def test_streams_and_events(lib, problem):
    stream, event, second = lib.stream(), lib.event(), lib.event()
    status, milliseconds = ctypes.c_int32(-1), ctypes.c_float()
    assert lib.aclrtQueryEventStatus(event, byref(status)) == 0
    assert status.value == 0  # not recorded: not ready
    assert lib.aclrtSynchronizeEvent(event) == 0  # and nothing to wait for
    assert lib.aclrtEventElapsedTime(byref(milliseconds), event, second) == 100000  # never recorded
    assert lib.aclrtRecordEvent(event, stream) == 0
    _, size, executor = problem.phase1()
    assert problem.launch(stream, executor, size) == 0
    assert lib.aclrtRecordEvent(second, stream) == 0
    assert lib.aclrtStreamWaitEvent(None, second) == 0
    assert lib.aclrtSynchronizeEvent(second) == 0
    problem.check()
    assert lib.aclrtQueryEventStatus(second, byref(status)) == 0
    assert status.value == 1
    assert lib.aclrtEventElapsedTime(byref(milliseconds), event, second) == 0
    assert milliseconds.value >= 0
    assert lib.aclrtSynchronizeStreamWithTimeout(stream, 1000) == 0
    assert lib.aclrtSynchronizeStreamWithTimeout(stream, -2) == 100000
    assert lib.aclrtStreamQuery(stream, byref(status)) == 0
    assert status.value == 0
    assert lib.aclrtDestroyStream(stream) == 0
    assert lib.aclrtDestroyEvent(event) == 0
    for handle in (stream, *foreign_handles(lib)):
        for call in (
            lambda h: lib.aclrtDestroyStream(h),
            lambda h: lib.aclrtDestroyStreamForce(h),
            lambda h: lib.aclrtSynchronizeStream(h),
            lambda h: lib.aclrtSynchronizeStreamWithTimeout(h, 1),
            lambda h: lib.aclrtStreamQuery(h, byref(status)),
            lambda h: lib.aclrtStreamWaitEvent(h, second),
            lambda h: lib.aclrtRecordEvent(second, h),
            lambda h: lib.aclrtMemsetAsync(problem.arrays[0].ctypes.data, 4, 0, 4, h),
        ):
            assert call(handle) == 200005
    for handle in (event, *foreign_handles(lib)):
        for call in (
            lambda h: lib.aclrtDestroyEvent(h),
            lambda h: lib.aclrtSynchronizeEvent(h),
            lambda h: lib.aclrtRecordEvent(h, None),
            lambda h: lib.aclrtResetEvent(h, None),
            lambda h: lib.aclrtStreamWaitEvent(None, h),
            lambda h: lib.aclrtQueryEventStatus(h, byref(status)),
            lambda h: lib.aclrtEventElapsedTime(byref(milliseconds), h, second),
            lambda h: lib.aclrtEventElapsedTime(byref(milliseconds), second, h),
        ):
            assert call(handle) == 200005
    for handle in foreign_handles(lib):
        assert lib.aclrtDestroyContext(handle) == 200005
        assert lib.aclrtSetCurrentContext(handle) == 200005
    assert lib.aclrtDestroyStream(None) == 0
    assert lib.aclrtDestroyEvent(None) == 0
    assert lib.aclrtCreateStream(None) == 100000
    assert lib.aclrtSynchronizeStream(None) == 0


BIG = ((3000, 2000), (3000, 2000), (3000,), (2000,), (3000, 2000), (2000,))


def test_freeing_and_destroying_wait_for_the_work(lib):
    problem = Problem(lib, BIG)
    _, size, executor = problem.phase1()
    stream, workspace = lib.stream(), lib.malloc(size)
    assert lib.aclnnRmsNormGrad(workspace, size, executor, stream) == 0
    assert lib.aclrtFree(workspace) == 0
    problem.check()
    problem.arrays[4][...] = np.nan
    _, size, executor = problem.phase1()
    assert lib.aclSetAclOpExecutorRepeatable(executor) == 0
    assert problem.launch(stream, executor, size) == 0
    assert lib.aclDestroyAclOpExecutor(executor) == 0  # the run keeps what it needs
    assert lib.aclrtDestroyStream(stream) == 0
    problem.check()


def test_a_forced_end_drops_what_has_not_begun(lib):
    problem = Problem(lib, BIG)
    _, size, executor = problem.phase1()
    assert lib.aclSetAclOpExecutorRepeatable(executor) == 0
    stream = lib.stream()
    workspace = lib.malloc(size)
    for _ in range(5000):  # a minute of work
        assert lib.aclnnRmsNormGrad(workspace, size, executor, stream) == 0
    begin = os.times().elapsed
    assert lib.aclrtDestroyStreamForce(stream) == 0
    assert os.times().elapsed - begin < 5
    assert lib.aclrtFree(workspace) == 0
    assert lib.aclDestroyAclOpExecutor(executor) == 0


def test_the_one_device(lib):
    for wrong in (1, -1, 7, 2**31 - 1):
        assert lib.aclrtSetDevice(wrong) == 200002
        assert lib.aclrtResetDevice(wrong) == 200002
        assert str(wrong) in lib.sentence
    device, count = ctypes.c_int32(9), ctypes.c_uint32()
    assert lib.aclrtSetDevice(0) == lib.aclrtGetDevice(byref(device)) == lib.aclrtGetDeviceCount(byref(count)) == 0
    assert (device.value, count.value) == (0, 1)
    assert lib.aclrtGetDevice(None) == lib.aclrtGetDeviceCount(None) == 100000


def test_each_thread_has_its_own_sentence(lib, problem):
    assert lib.aclrtFree(None) == 100000
    mine = lib.sentence
    assert mine.startswith("aclrtFree: ")
    barrier = threading.Barrier(8)

    def body(i: int) -> tuple[str, str]:
        first = lib.sentence
        barrier.wait(30)
        assert lib.aclrtSetDevice(100 + i) == 200002
        barrier.wait(30)
        return first, lib.sentence

    for i, (first, then) in enumerate(in_threads(8, body)):
        assert first == ""
        assert f"device {100 + i} " in then
    assert lib.sentence == mine
    # A success leaves no message.
    assert problem.phase1()[0] == 0
    assert lib.sentence in ("", mine)


def test_many_threads_create_use_and_destroy(lib):
    def body(i: int) -> None:
        problem = Problem(lib)
        stream = lib.stream()
        for _ in range(60):
            status, size, executor = problem.phase1()
            assert status == 0
            assert problem.launch(stream, executor, size) == 0
            junk = [lib.tensor(problem.arrays[0], (4, 32)) for _ in range(5)]
            assert all(lib.aclDestroyTensor(t) == 0 for t in junk)
            assert lib.aclrtSynchronizeStream(stream) == 0
            problem.check()
            assert lib.aclrtFree(lib.malloc(64 + i)) == 0
        assert lib.aclrtDestroyStream(stream) == 0

    in_threads(12, body)


def test_helpers(lib):
    sizes = {
        "FLOAT": 4, "FLOAT16": 2, "INT8": 1, "INT32": 4, "UINT8": 1, "INT16": 2, "UINT16": 2, "UINT32": 4, "INT64": 8,
        "UINT64": 8, "DOUBLE": 8, "BOOL": 1, "COMPLEX64": 8, "COMPLEX128": 16, "BF16": 2, "COMPLEX32": 4,
        "UNDEFINED": 0, "STRING": 0,
    }  # fmt: skip
    for name, size in sizes.items():
        assert lib.aclDataTypeSize(DTYPES[name]) == size, name
    for number in (5, 99, -5, 2**31 - 1):
        assert lib.aclDataTypeSize(number) == 0
    every = np.arange(2**16, dtype=np.uint16)
    values = every.view(np.float16).astype(np.float32)
    with np.errstate(all="ignore"):
        for i in range(0, 2**16, 37):
            value = np.float32(lib.aclFloat16ToFloat(i))
            assert value == values[i] or (np.isnan(value) and np.isnan(values[i]))
            assert lib.aclFloatToFloat16(float(values[i])) == i or np.isnan(values[i])
        for value in (65519.99, 65520.0, -1e30, 2.0**-25, 2.0**-24 * 1.5, 1 + 2.0**-11, 1 + 3 * 2.0**-11, np.inf):
            assert lib.aclFloatToFloat16(value) == int(np.float32(value).astype(np.float16).view(np.uint16))


# --- the life of the library ---------------------------------------------------------------------------------------

START = """
from c_library import *
import numpy as np
lib = Library()
def expect(status, wanted, *words):
    assert status == wanted, (status, wanted, lib.sentence)
    for word in words:
        assert word in lib.sentence, lib.sentence
out, number = c_void_p(), c_int32()
def runtime_calls():
    data = np.zeros(64, np.uint8).ctypes.data
    return [
        lib.aclrtResetDevice(0), lib.aclrtSynchronizeDevice(), lib.aclrtMalloc(byref(out), 64, 0),
        lib.aclrtFree(data), lib.aclrtMallocHost(byref(out), 64), lib.aclrtFreeHost(data),
        lib.aclrtMemcpy(data, 64, data, 64, 0), lib.aclrtMemset(data, 64, 0, 64), lib.aclrtCreateStream(byref(out)),
        lib.aclrtSynchronizeStream(None), lib.aclrtDestroyStream(8), lib.aclrtCreateEvent(byref(out)),
        lib.aclrtSynchronizeEvent(8), lib.aclrtCreateContext(byref(out), 0),
        lib.aclrtMemcpyAsync(data, 64, data, 64, 0, None),
    ]
def without_init():
    return [
        lib.aclrtGetDevice(byref(number)), lib.aclrtGetDeviceCount(byref(number)), lib.aclrtSetDevice(0),
        lib.aclrtGetDevice(byref(number)),
    ]
"""


def test_before_and_after():
    code = (
        START
        + """
assert lib.sentence == ""
expect(lib.aclFinalize(), 100001, "aclFinalize: ", "aclInit")
assert runtime_calls() == [100001] * 15
assert "aclInit" in lib.sentence and out.value is None
assert without_init() == [107002, 0, 0, 0]
t = lib.tensor(np.zeros(4, np.float32), (4,))
assert t and lib.aclDestroyTensor(t) == 0 and lib.aclDestroyTensor(t) == 161002
expect(lib.aclInit(None), 0)
expect(lib.aclInit(None), 100002, "aclInit: ")
assert set(runtime_calls()) <= {0, 100000, 200005}
expect(lib.aclFinalize(), 0)
expect(lib.aclFinalize(), 100037, "aclFinalize: ")
out.value = None
assert runtime_calls() == [100001] * 15
assert "aclFinalize" in lib.sentence and out.value is None
assert without_init() == [107002, 0, 0, 0]
t = lib.tensor(np.zeros(4, np.float32), (4,))
assert t and lib.aclDestroyTensor(t) == 0
assert lib.aclSetAclOpExecutorRepeatable(c_void_p(t)) != 0
print("done")
"""
    )
    assert run_python(code).stdout == "done\n"


def test_finalize_with_everything_alive():
    """aclFinalize waits for the work in flight and frees everything; old handles are then stale."""
    code = (
        START
        + """
import descend
expect(lib.aclInit(None), 0)
lib.descendSetProduct(b"host")
rng = np.random.default_rng(0)
a = [rng.standard_normal(s).astype("f") for s in ((3000, 2000), (3000, 2000), (3000,), (2000,), (3000, 2000), (2000,))]
expected = descend.rms_norm_grad(*a[:4])
tensors = [lib.tensor(x, x.shape) for x in a]
stream, event, memory = lib.stream(), lib.event(), [lib.malloc(1 << 20) for _ in range(50)]
lib.aclCreateIntArray((c_int64 * 2)(1, 2), 2)
spare = lib.phase1(*tensors)
for on in (stream, None, stream):
    status, size, executor = lib.phase1(*tensors)
    expect(status, 0)
    workspace = lib.malloc(size)
    expect(lib.aclnnRmsNormGrad(workspace, size, executor, on), 0)
lib.aclrtRecordEvent(event, stream)
expect(lib.aclFinalize(), 0)
assert all(np.array_equal(x, y) for x, y in zip(a[4:], expected))
assert lib.phase1(*tensors)[0] == 161002
assert lib.aclDestroyTensor(tensors[0]) == 161002
assert lib.aclnnRmsNormGrad(None, 0, spare[2], None) in (161002, 361001)
assert lib.aclrtFree(memory[0]) == 100001
print("done")
"""
    )
    assert run_python(code).stdout == "done\n"


@pytest.mark.parametrize("ending", ["", "lib.aclFinalize()", "os._exit(0)", "sys.exit(0)"])
def test_the_process_ends_with_work_in_flight(ending):
    code = (
        START
        + f"""
import os, sys
expect(lib.aclInit(None), 0)
lib.descendSetProduct(b"host")
shapes = ((3000, 2000), (3000, 2000), (3000,), (2000,), (3000, 2000), (2000,))
tensors = [lib.tensor(lib.malloc(int(np.prod(s)) * 4), s) for s in shapes]  # memory that lives to the end
stream = lib.stream()
for _ in range(30):
    status, size, executor = lib.phase1(*tensors)
    expect(lib.aclnnRmsNormGrad(lib.malloc(size), size, executor, stream), 0)
{ending}
"""
    )
    result = run_python(code, check=False)
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""


def test_the_library_can_be_unloaded_and_loaded_again():
    code = (
        START
        + """
import _ctypes
for _ in range(3):
    expect(lib.aclInit(None), 0)
    a = [np.ones(s, "f") for s in ((300, 2000), (300, 2000), (300,), (2000,), (300, 2000), (2000,))]
    tensors = [lib.tensor(x, x.shape) for x in a]
    status, size, executor = lib.phase1(*tensors)
    expect(status, 0)
    expect(lib.aclnnRmsNormGrad(lib.malloc(size), size, executor, None), 0)
    expect(lib.aclrtSynchronizeStream(None), 0)
    expect(lib.aclFinalize(), 0)
    _ctypes.dlclose(lib.c._handle)
    lib = Library()
    lib.aclFinalize()
    if lib.aclInit(None) == 0: lib.aclFinalize()
print("done")
"""
    )
    assert run_python(code).stdout == "done\n"
