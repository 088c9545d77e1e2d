"""The two-phase API: executors, workspaces, products, streams, threads, signals, forks, the end of the interpreter."""

from __future__ import annotations

import gc
import itertools
import os
import shutil
import subprocess
import sys
import threading
import time
import weakref
from typing import Any

import numpy as np
import pytest

import descend
from cases import (
    HUAWEI,
    PRODUCTS,
    Array,
    Place,
    assert_same_bits,
    digest,
    in_threads,
    normal,
    phase1,
    refused,
    run_python,
    run_two_phase,
)
from descend import acl, aclnn

OP = "rms_norm_grad"


@pytest.fixture(autouse=True)
def host():
    with acl.product("host"):
        yield


def inputs(rows: int = 8, columns: int = 64, seed: int = 0, dtype: str = "FLOAT") -> list[Array]:
    rng = np.random.default_rng(seed)
    return [normal(rng, s, dtype) for s in ((rows, columns), (rows, columns), (rows,), (columns,))]


def outputs(rows: int = 8, columns: int = 64) -> list[Array]:
    return [np.full(s, np.nan, np.float32) for s in ((rows, columns), (columns,))]


def expected_of(call: list[Array]) -> tuple[Array, ...]:
    return tuple(descend.rms_norm_grad(*call))


BIG = (3000, 2000)  # some 70 MB: never run on the caller's thread


# --- executors and workspaces --------------------------------------------------------------------------------------


def test_the_first_phase_says_what_the_second_needs():
    size, executor = phase1(OP, *inputs(), *outputs())
    assert isinstance(size, int)
    assert size >= 0
    assert executor.workspace_size == size
    assert executor.operator == OP
    assert OP in executor.plan
    assert not executor.spent


def test_the_first_phase_says_what_the_second_computes():
    call, result = inputs(), outputs()
    assert phase1(OP, *call, *result)[1].computes == ("dx_out", "dgamma_out")
    dy, x, rstd, gamma = call
    grads = ("grad_input_out", "grad_weight_out", "grad_bias_out")
    for mask in itertools.product((True, False), repeat=3):
        masked = phase1(
            "layer_norm_backward", dy, x, [64], rstd, rstd, gamma, None, mask, *result, np.empty_like(gamma)
        )
        assert masked[1].computes == tuple(itertools.compress(grads, mask))


def test_an_executor_is_spent_after_one_run():
    call, result = inputs(), outputs()
    size, executor = phase1(OP, *call, *result)
    workspace, stream = acl.malloc(size), acl.Stream()
    aclnn.rms_norm_grad(workspace, size, executor, stream)
    assert executor.spent
    stream.synchronize()
    kept = digest(*result)
    for _ in range(3):
        with refused(161002, OP, "used already"):
            aclnn.rms_norm_grad(workspace, size, executor, stream)
    stream.synchronize()
    assert digest(*result) == kept


def test_a_failed_launch_does_not_spend_the_executor():
    call, result = inputs(), outputs()
    size, executor = phase1(OP, *call, *result)
    assert size > 0
    with refused(161001, OP, "workspace is null", str(size)):
        aclnn.rms_norm_grad(None, size, executor, None)
    assert not executor.spent
    assert np.isnan(result[0]).all()
    aclnn.rms_norm_grad(acl.malloc(size), size, executor, None)
    acl.synchronize()
    assert_same_bits(result, expected_of(call))


def test_a_repeatable_executor_runs_again_and_on_other_memory():
    call, result = inputs(seed=1), outputs()
    size, executor = phase1(OP, *call, *result)
    executor.set_repeatable()
    workspace, stream = acl.malloc(size), acl.Stream()
    for seed in range(5):
        for array, value in zip(call, inputs(seed=seed), strict=True):
            array[...] = value
        aclnn.rms_norm_grad(workspace, size, executor, stream)
        stream.synchronize()
        assert_same_bits(result, expected_of(call))
        assert not executor.spent
    other, elsewhere = inputs(seed=9), outputs()
    kept = digest(*call, *result)
    for name, array in zip(("dy", "x", "rstd", "gamma", "dx_out", "dgamma_out"), [*other, *elsewhere], strict=True):
        executor.set_tensor(name, array)
    aclnn.rms_norm_grad(workspace, size, executor, stream)
    stream.synchronize()
    assert_same_bits(elsewhere, expected_of(other))
    assert digest(*call, *result) == kept


def test_changed_tensors_pass_the_contract_again():
    call, result = inputs(), outputs()
    size, executor = phase1(OP, *call, *result)
    executor.set_repeatable()
    workspace = acl.malloc(size)
    for name, array, words in (
        ("x", call[1].astype(np.float16), "FLOAT"),
        ("x", call[1][:4], "[8, 64]"),
        ("x", np.asfortranarray(call[1]), "[64, 1]"),
        ("dx_out", np.zeros((64, 8), np.float32), "[8, 64]"),
    ):
        with refused(161002, OP, name, words):
            executor.set_tensor(name, array)
    with pytest.raises(ValueError, match="no tensor named z"):
        executor.set_tensor("z", call[1])
    for wrong in (None, [1.0], "x"):
        with pytest.raises(TypeError):
            executor.set_tensor("x", wrong)
    for name in ("x\0", "\ud800", ""):
        with pytest.raises(ValueError, match="no tensor named"):
            executor.set_tensor(name, call[1])
    with pytest.raises(TypeError, match=r"^rms_norm_grad: name is None, but must be a string\.$"):
        executor.set_tensor(None, call[1])
    readonly = result[0].copy()
    readonly.flags.writeable = False
    with refused(161002, OP, "dx_out", "read-only"):
        executor.set_tensor("dx_out", readonly)
    # In place is fine, and an overlap is seen at the launch.
    executor.set_tensor("dx_out", call[0])
    expected = expected_of(call)
    aclnn.rms_norm_grad(workspace, size, executor, None)
    acl.synchronize()
    assert_same_bits([call[0]], [expected[0]])
    buffer = np.zeros((9, 64), np.float32)
    executor.set_tensor("x", buffer[:8])
    executor.set_tensor("dx_out", buffer[1:])
    for _ in range(2):
        with refused(161002, OP, "dx_out overlaps x"):
            aclnn.rms_norm_grad(workspace, size, executor, None)
    executor.set_tensor("dx_out", result[0])
    aclnn.rms_norm_grad(workspace, size, executor, None)
    acl.synchronize()


def test_what_was_no_tensor_has_no_successor():
    x, weight, out = np.ones((4, 8), np.float32), np.ones(8, np.float32), np.zeros((4, 8), np.float32)
    size, executor = phase1("layer_norm", x, 8, None, None, 1e-5, out, None, None)
    with refused(161002, "layer_norm", "weight was no tensor in the first phase"):
        executor.set_tensor("weight", weight)
    mean = rstd = np.ones((4, 1), np.float32)
    call = (x, x, 8, mean, rstd, weight, weight, (True, False, False), out)
    size, executor = phase1("layer_norm_backward", *call, None, "ignored")
    for name in ("grad_weight_out", "grad_bias_out"):
        with refused(161002, "layer_norm_backward", f"{name} was no tensor in the first phase"):
            executor.set_tensor(name, weight)
    aclnn.layer_norm_backward(acl.malloc(size), size, executor, None)
    acl.synchronize()


def test_an_executor_of_another_operator():
    x, gamma, y, rstd = np.ones((2, 8), "f"), np.ones(8, "f"), np.zeros((2, 8), "f"), np.zeros(2, "f")
    size, executor = phase1("rms_norm", x, gamma, 1e-6, y, rstd)
    with refused(161002, OP, "rms_norm"):
        aclnn.rms_norm_grad(acl.malloc(1 << 20), 1 << 20, executor, None)
    aclnn.rms_norm(acl.malloc(size), size, executor, None)
    acl.synchronize()
    assert y.all()


def test_workspaces():
    call = inputs()
    size, _ = phase1(OP, *call, *outputs())
    assert size > 16

    def launch(workspace: Any, given: Any) -> None:
        result = outputs()
        _, executor = phase1(OP, *call, *result)
        aclnn.rms_norm_grad(workspace, given, executor, None)
        acl.synchronize()
        assert_same_bits(result, expected_of(call))

    launch(acl.malloc(size), size)
    launch(acl.malloc(3 * size), 3 * size)
    launch(acl.malloc(3 * size), size)
    launch(bytearray(size), size)
    launch(memoryview(acl.malloc(size)), size)
    launch(np.zeros(size, np.uint8), size)
    launch(np.zeros((size // 8 + 1, 2), np.float32), np.int64(size))
    with refused(161002, OP, f"{size - 1} bytes", str(size)):
        launch(acl.malloc(size), size - 1)
    with refused(161002, OP, "0 bytes", str(size)):
        launch(acl.malloc(size), 0)
    with refused(161002, OP):
        launch(acl.malloc(size), -1)
    with refused(161002, OP, f"said to have {size}", f"{size - 8}"):
        launch(acl.malloc(size - 8), size)
    with refused(161001, OP):
        launch(None, size)
    aligned = np.zeros(2 * size + 64, np.uint8)
    start = -aligned.ctypes.data % 64
    for shift in (1, 2, 4, 8):
        with refused(161002, OP, "aligned"):
            launch(aligned[start + shift :], size)
    launch(aligned[start + 16 :], size)
    strided, objects = np.zeros((size, 2), np.uint8)[:, 0], np.zeros(size, object)  # which would be overwritten
    for wrong in (bytes(size), "workspace", 12345, strided, objects, [0] * size, object()):
        with pytest.raises(TypeError, match=r"^rms_norm_grad: workspace is an? .*, but must be None, an acl\.Buffer"):
            launch(wrong, size)


@pytest.mark.parametrize("begin", [0, 16, 32, 48])
@pytest.mark.parametrize("operator", ["rms_norm_grad", "layer_norm", "group_norm_swish_grad"])
def test_workspaces_of_the_least_size_that_begin_anywhere(operator: str, begin: int):
    rng, columns = np.random.default_rng(begin), 80_000
    x, dy, gamma, beta = (normal(rng, shape, "FLOAT") for shape in ((2, columns), (2, columns), (columns,), (columns,)))
    level, scale = normal(rng, (2, 1), "FLOAT"), np.abs(normal(rng, (2, 1), "FLOAT")) + 1
    wide, spaced = np.full((2, columns), np.nan), np.full(2 * columns, np.nan, "f")[::2]
    arguments, results = {
        "rms_norm_grad": ((dy, x, scale, gamma), (wide, spaced)),
        "layer_norm": (
            (x, [columns], gamma, beta, 1e-5),
            (wide, np.full((2, 1), np.nan), np.full((2, 1), np.nan, "f")),
        ),
        "group_norm_swish_grad": (
            (dy, level, scale, x, gamma, beta, 1, "NCHW", 1.0, True, True),
            (wide, spaced, np.full(columns, np.nan, "f")),
        ),
    }[operator]
    size, executor = phase1(operator, *arguments, *results)
    assert size > 0
    memory = np.full(size + 192, 0xA5, np.uint8)
    start = -memory.ctypes.data % 64 + 64 + begin
    getattr(aclnn, operator)(memory[start : start + size], size, executor, None)
    acl.synchronize()
    assert (memory[:start] == 0xA5).all()
    assert (memory[start + size :] == 0xA5).all()
    expected = tuple(np.full_like(result, np.nan) for result in results)
    run_two_phase(operator, *arguments, *expected)
    assert_same_bits(results, expected)
    assert not any(np.isnan(result).any() for result in results)


def test_wrong_types_of_the_second_phase():
    size, executor = phase1(OP, *inputs(), *outputs())
    workspace = acl.malloc(size)
    with refused(161001, OP, "executor"):
        aclnn.rms_norm_grad(workspace, size, None, None)
    for wrong in (size, "executor", workspace, object()):
        with pytest.raises(TypeError, match=r"^rms_norm_grad: executor is an? "):
            aclnn.rms_norm_grad(workspace, size, wrong, None)
    for wrong in (1.5, "4096", None, True):
        with pytest.raises(TypeError, match=r"^rms_norm_grad: workspace_size is .*, but must be an integer\.$"):
            aclnn.rms_norm_grad(workspace, wrong, executor, None)
    for wrong in (0, "stream", workspace, executor, object()):
        with refused(361001, OP, "stream"):
            aclnn.rms_norm_grad(workspace, size, executor, wrong)
    with pytest.raises(TypeError):
        aclnn.rms_norm_grad(workspace, size, executor)
    with pytest.raises(TypeError):
        aclnn.rms_norm_grad_get_workspace_size(*inputs())
    assert not executor.spent


def test_no_workspace_is_needed_where_there_is_nothing_to_do():
    call = inputs(0, 0)
    size, executor = phase1(OP, *call, *outputs(0, 0))
    assert size == 0
    aclnn.rms_norm_grad(None, 0, executor, None)
    with refused(161002, OP, "used already"):
        aclnn.rms_norm_grad(None, 0, executor, None)


def test_buffers():
    gc.collect()
    buffer = acl.malloc(1000)
    assert (buffer.size, len(buffer)) == (1000, 1000)
    assert buffer.address % 64 == 0
    view = np.frombuffer(buffer, np.uint8)
    view[...] = 7
    assert bytes(buffer) == bytes([7]) * 1000
    assert acl.malloc(0).size == 0
    assert len(memoryview(acl.malloc(0))) == 0
    before = descend._native.info()["allocated_bytes"]
    big = acl.malloc(1 << 22)
    assert descend._native.info()["allocated_bytes"] == before + (1 << 22)
    view = np.frombuffer(big, np.uint8)
    del big
    view[...] = 1  # the view keeps it
    del view
    gc.collect()
    assert descend._native.info()["allocated_bytes"] == before
    for size in (1 << 62, 1 << 47):
        with pytest.raises(MemoryError):
            acl.malloc(size)
    for wrong in (-1, 1.5, "8", None):
        with pytest.raises((TypeError, ValueError)):
            acl.malloc(wrong)
    with pytest.raises(ValueError, match="18446744073709551616"):
        acl.malloc(1 << 64)
    acl.malloc(16)  # later calls work


@pytest.mark.filterwarnings("ignore:nanobind:RuntimeWarning")
def test_a_buffer_that_nobody_allocated():
    bare = acl.Buffer.__new__(acl.Buffer)
    with pytest.raises(BufferError, match="has no memory"):
        memoryview(bare)
    call, result = inputs(), outputs()
    size, executor = phase1(OP, *call, *result)
    with pytest.raises(TypeError, match=r"^rms_norm_grad: workspace is a descend\._native\.Buffer, but must be"):
        aclnn.rms_norm_grad(bare, size, executor, None)


def test_the_functional_form_asks_for_no_stream_and_leaves_none():
    before = descend._native.info()["allocated_bytes"]
    for _ in range(3):
        descend.rms_norm_grad(*inputs(300, 300))
    assert descend._native.info()["allocated_bytes"] == before


# --- products ------------------------------------------------------------------------------------------------------


def test_the_products_current_at_phase_1_decides():
    call, result = inputs(), outputs()
    call[0] = np.asfortranarray(call[0])
    size, executor = phase1(OP, *call, *result)
    with acl.product("atlas-training"):  # has no such operator
        aclnn.rms_norm_grad(acl.malloc(size), size, executor, None)
        acl.synchronize()
        assert_same_bits(result, expected_of(call))  # the functional form is always host


def test_products_nest():
    assert acl.get_product() == "host"
    with acl.product("atlas-a3"):
        assert acl.get_product() == "atlas-a3"
        with acl.product("atlas-inference"):
            assert acl.get_product() == "atlas-inference"
            with pytest.raises(ZeroDivisionError), acl.product("host"):
                raise ZeroDivisionError
            assert acl.get_product() == "atlas-inference"
        assert acl.get_product() == "atlas-a3"
    assert acl.get_product() == "host"


def test_each_thread_has_its_own_product():
    barrier = threading.Barrier(len(PRODUCTS))

    def body(i: int) -> str:
        with acl.product(PRODUCTS[i]):
            barrier.wait(30)  # all are inside at once
            seen = acl.get_product()
            if PRODUCTS[i] in ("atlas-200i-500-a2", "atlas-training"):
                with refused(561003, OP, PRODUCTS[i]):
                    phase1(OP, *inputs(), *outputs())
            else:
                phase1(OP, *inputs(), *outputs())
            barrier.wait(30)
        return seen

    assert in_threads(len(PRODUCTS), body) == list(PRODUCTS)
    assert acl.get_product() == "host"


def test_set_product_is_for_the_process():
    def here(_: int) -> str:
        return acl.get_product()

    before = in_threads(1, here)[0]
    try:
        for name in PRODUCTS:
            acl.set_product(name)
            assert acl.get_product() == "host"  # this thread has its own
            assert in_threads(2, here) == [name, name]
    finally:
        acl.set_product(before)


@pytest.mark.parametrize(
    "name", ["", "Host", "atlas", "ascend910b", "atlas-a3 ", "host\0", "主机", "\ud800"], ids=ascii
)
def test_names_that_are_no_product(name):
    for call in (acl.set_product, lambda n: acl.product(n).__enter__()):
        with pytest.raises(ValueError, match="product") as caught:
            call(name)
        for known in PRODUCTS:
            assert known in str(caught.value)
        for wrong, called in ((None, "None"), (3, "an int"), (b"host", "a bytes")):
            with pytest.raises(TypeError, match=rf"^name is {called}, but must be a string\.$"):
                call(wrong)
    assert acl.get_product() == "host"


def test_the_first_product_of_a_process():
    code = "from descend import acl; print(acl.get_product())"
    assert run_python(code, DESCEND_PRODUCT="").stdout.strip() == "atlas-a2-training"
    for name in ("host", "atlas-inference"):
        assert run_python(code, DESCEND_PRODUCT=name).stdout.strip() == name


def test_a_wrong_product_in_the_environment_is_an_error_at_the_first_call():
    code = """
import numpy as np
import descend
from descend import acl, aclnn
a = [np.ones(s, "f") for s in ((2, 8), (2, 8), (2,), (8,), (2, 8), (8,))]
descend.rms_norm_grad(*a[:4])  # the functional form has no product
for _ in range(2):
    try:
        aclnn.rms_norm_grad_get_workspace_size(*a)
    except aclnn.AclnnError as error:
        print(error)
with acl.product("host"):
    aclnn.rms_norm_grad_get_workspace_size(*a)
acl.set_product("atlas-a3")
aclnn.rms_norm_grad_get_workspace_size(*a)
"""
    lines = run_python(code, DESCEND_PRODUCT="atlas-a4").stdout.splitlines()
    assert len(lines) == 2
    for line in lines:
        assert line.startswith("rms_norm_grad: ")
        assert "DESCEND_PRODUCT" in line
        assert "atlas-a4" in line
        assert all(name in line for name in PRODUCTS)


@pytest.mark.parametrize(
    ("variable", "value", "word"),
    [
        ("DESCEND_ISA", "MMX", "AVX2"),
        ("DESCEND_NUM_THREADS", "many", "whole number"),
        ("DESCEND_NUM_THREADS", "0", "1"),
    ],
)
def test_a_wrong_environment_is_an_error_at_the_first_call(variable, value, word):
    code = """
import numpy as np
import descend
try:
    descend.rms_norm(np.ones((2, 8)), np.ones(8))
except descend.aclnn.AclnnError as error:
    print(error)
"""
    if variable == "DESCEND_ISA" and "AVX2" not in descend._native.info()["isas"]:
        word = "BASELINE"
    line = run_python("import descend.aclnn\n" + code, **{variable: value}).stdout.strip()
    assert line.startswith("rms_norm: ")
    assert variable in line
    assert value in line
    assert word in line


@pytest.mark.parametrize("function", [descend.set_num_threads, acl.malloc], ids=["set_num_threads", "malloc"])
def test_numbers_that_are_none_or_out_of_range(function):
    for wrong in (-1, 2**64, np.int64(-5)):
        with pytest.raises(ValueError, match=rf"is {wrong}, but must be between 0 and \d+\.$"):
            function(wrong)
    for wrong, called in ((None, "None"), (2.0, "a float"), ("2", "a str"), ([2], "a list")):
        with pytest.raises(TypeError, match=rf" is {called}, but must be an integer\.$"):
            function(wrong)


def test_a_wait_of_nan_seconds():
    with pytest.raises(ValueError, match="timeout is NaN"):
        acl.Stream().synchronize(float("nan"))


def test_a_wait_of_what_is_no_number():
    stream = acl.Stream()
    for wrong, called in (("1", "a str"), ([1], "a list"), (True, "a bool"), (1j, "a complex")):
        with pytest.raises(TypeError, match=rf"^timeout is {called}, but must be a number of seconds or None\.$"):
            stream.synchronize(wrong)
    with pytest.raises(ValueError, match=r"^timeout does not fit into a floating-point number\.$"):
        stream.synchronize(10**400)
    for right in (None, 0, 1.5, np.float32(1), np.array(1), -1, float("inf")):
        stream.synchronize(right)


def test_threads_of_the_environment():
    code = "import descend; print(descend.get_num_threads())"
    assert run_python(code, DESCEND_NUM_THREADS="5").stdout.strip() == "5"
    assert run_python(code, OMP_NUM_THREADS="1", DESCEND_NUM_THREADS="").stdout.strip() == "1"
    with pytest.raises(ValueError, match="-1"):
        descend.set_num_threads(-1)


def test_the_instruction_set_of_the_environment():
    code = "import descend; print(descend._native.info()['isa'])"
    for isa in descend._native.info()["isas"].split(", "):
        for name in [isa, isa.lower()] + ["avx512"] * (isa == "AVX3"):
            assert run_python(code, DESCEND_ISA=name).stdout.strip() == isa


# --- streams -------------------------------------------------------------------------------------------------------


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


# --- signals, forks, the end ---------------------------------------------------------------------------------------

IN_FLIGHT = f"""
import os, signal, sys, threading, time
import numpy as np
import descend
from descend import acl, aclnn
acl.set_product("host")
stream = acl.Stream()
def arrays(rows={BIG[0]}, columns={BIG[1]}):
    shapes = ((rows, columns), (rows, columns), (rows,), (columns,), (rows, columns), (columns,))
    return [np.ones(s, "f") for s in shapes]
def start(times, a, on=stream):
    for _ in range(times):
        size, executor = aclnn.rms_norm_grad_get_workspace_size(*a)
        aclnn.rms_norm_grad(acl.malloc(size), size, executor, on)
"""


@pytest.mark.parametrize("wait", ["stream.synchronize()", "stream.synchronize(timeout=1000)", "acl.synchronize()"])
def test_ctrl_c_interrupts_synchronize(wait):
    code = f"""{IN_FLIGHT}
signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background is born deaf to it
a = arrays()
start(2000, a, None if "acl." in "{wait}" else stream)  # takes many seconds
begin = time.monotonic()
threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
try:
    {wait}
except KeyboardInterrupt:
    print(0.2 < time.monotonic() - begin < 10, flush=True)
os._exit(0)
"""
    assert run_python(code).stdout == "True\n"


@pytest.mark.parametrize("last", ["", "del stream, a", "sys.exit(3)", "raise RuntimeError('the end')"])
def test_the_interpreter_ends_with_work_in_flight(last):
    result = run_python(f"{IN_FLIGHT}\na = arrays()\nstart(20, a)\nstart(20, a, None)\n{last}", check=False)
    assert result.returncode == {"": 0, "d": 0, "s": 3, "r": 1}[last[:1]], result.stderr
    if not last.startswith("raise"):
        assert result.stderr == ""


def test_the_interpreter_ends_while_other_threads_compute():
    code = f"""{IN_FLIGHT}
def forever():
    a, mine = arrays(300, 300), acl.Stream()
    while True:
        descend.rms_norm_grad(*a[:4])
        start(3, a, mine)
for _ in range(4):
    threading.Thread(target=forever, daemon=True).start()
start(5, arrays())
time.sleep(0.2)
"""
    result = run_python(code, check=False)
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""


@pytest.mark.parametrize(
    "again", ["acl.Stream()", "mine.synchronize()", "acl.synchronize()", "start(1, a, acl.Stream())"]
)
def test_the_interpreter_ends_while_other_threads_use_streams(again):
    """They are stopped as they take the GIL back: in nanobind's functions, and in destructors."""
    code = f"""{IN_FLIGHT}
def forever():
    a, mine = arrays(300, 300), acl.Stream()
    while True:
        {again}
sys.setswitchinterval(1e-6)
for _ in range(4):
    threading.Thread(target=forever, daemon=True).start()
time.sleep(0.2)
"""
    result = run_python(code, check=False)
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""


def test_a_forked_child_computes():
    code = f"""{IN_FLIGHT}
a = arrays(2000, 1000)
expected = descend.rms_norm_grad(*a[:4])
start(1, a); stream.synchronize()
start(10, a)  # in flight while we fork
child = os.fork()
result = descend.rms_norm_grad(*a[:4])
assert all(np.array_equal(r, e) for r, e in zip(result, expected))
if child == 0:
    # Its streams are empty; what was in flight goes on in the parent, and the child is told, once.
    try:
        stream.synchronize(timeout=30)
    except aclnn.AclnnError as error:
        assert error.status == 361001, error
        assert "fork" in str(error)
    stream.synchronize(timeout=30)
    fresh = acl.Stream()
    for s in (stream, fresh, None):
        b = arrays(2000, 1000)
        b[4][...] = b[5][...] = np.nan
        start(3, b, s)
        (s or acl).synchronize()
        assert all(np.array_equal(r, e) for r, e in zip(b[4:], expected))
    sys.exit(7)
stream.synchronize()
assert all(np.array_equal(r, e) for r, e in zip(a[4:], expected))
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
print("done")
"""
    assert run_python(code, DESCEND_NUM_THREADS="3").stdout == "done\n"


def test_forks_while_other_threads_compute():
    code = f"""{IN_FLIGHT}
import warnings
warnings.simplefilter("ignore")
stop = threading.Event()
def busy(i):
    a, mine = arrays(200 + i, 600), acl.Stream()
    while not stop.is_set():
        descend.rms_norm_grad(*a[:4])
        start(2, a, mine)
        mine.synchronize()
threads = [threading.Thread(target=busy, args=(i,)) for i in range(4)]
for t in threads: t.start()
a = arrays(500, 500)
expected = descend.rms_norm_grad(*a[:4])
for _ in range(25):
    child = os.fork()
    if child == 0:
        signal.alarm(30)  # a child that hangs dies
        result = descend.rms_norm_grad(*a[:4])
        fresh = acl.Stream()
        start(2, a, fresh)
        fresh.synchronize()
        good = all(np.array_equal(r, e) for r, e in zip([*result, *a[4:]], [*expected, *expected]))
        os._exit(0 if good else 1)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status == 0, status
stop.set()
for t in threads: t.join()
print("done")
"""
    assert run_python(code, DESCEND_NUM_THREADS="3").stdout == "done\n"


def test_multiprocessing_with_fork():
    code = """
import multiprocessing as mp
import numpy as np
import descend
x = np.ones((2000, 700), "f")
g = np.ones(700, "f")
def work(i):
    return float(descend.rms_norm(x * np.float32(i + 1), g)[0].sum())
work(0)
with mp.get_context("fork").Pool(3) as pool:
    print(pool.map(work, range(6)) == [work(i) for i in range(6)])
"""
    assert run_python(code).stdout == "True\n"


def test_other_interpreters_and_reimports():
    """Importing twice, in a thread, and after the modules were forgotten."""
    code = """
import sys, threading
import numpy as np
def use():
    import descend
    return descend.rms_norm(np.ones((2, 8)), np.ones(8))[1].ravel().tolist()
threads = [threading.Thread(target=use) for _ in range(8)]
[t.start() for t in threads]; [t.join() for t in threads]
first = use()
for name in [n for n in sys.modules if n.startswith("descend") and "_native" not in n]:
    del sys.modules[name]
print(use() == first)
"""
    assert run_python(code).stdout == "True\n"


def test_errors_can_be_pickled_and_caught():
    import pickle

    with pytest.raises(aclnn.AclnnError) as caught:
        phase1(OP, None, *inputs()[1:], *outputs())
    caught.value.note = "kept"  # type: ignore[attr-defined]
    copy = pickle.loads(pickle.dumps(caught.value))
    assert (copy.status, copy.name, str(copy)) == (161001, "ACLNN_ERR_PARAM_NULLPTR", str(caught.value))
    assert copy.note == "kept"
    assert isinstance(copy, ValueError)


def test_out_of_memory_is_an_error_and_the_process_goes_on():
    """With a limit on the address space: results and workspaces that cannot be allocated."""
    code = """
import resource
import numpy as np
import descend
from descend import acl, aclnn
small = [np.ones(s, "f") for s in ((4, 8), (4, 8), (4,), (8,))]
expected = descend.rms_norm_grad(*small)
x = np.ones((8000, 4000), np.float16)[:, ::2]  # packing it takes 32 MB
out = np.empty((8000, 2000), np.float64)
out32 = np.empty((8000, 2000), np.float16)[:, :]
rstd, gamma = np.ones(8000, "f"), np.ones(2000, "f")
with open("/proc/self/statm") as f:
    now = int(f.read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (now + (20 << 20), -1))
kinds = []
for arguments in ((dict()), dict(out=(out32, None)), dict(out=(out, None))):
    for _ in range(2):
        try:
            descend.rms_norm_grad(x, x, rstd, gamma, **arguments)
            kinds.append("computed")
        except MemoryError as error:
            assert error.status == 361001 and "there is no memory for" in str(error), error
            kinds.append("MemoryError")
        except aclnn.AclnnError as error:
            kinds.append(f"{error.status} {error}")
try:
    acl.malloc(1 << 30)
except MemoryError:
    kinds.append("MemoryError")
assert all((a == b).all() for a, b in zip(descend.rms_norm_grad(*small), expected))
print(kinds)
"""
    assert eval(run_python(code, DESCEND_NUM_THREADS="1").stdout) == ["MemoryError"] * 7


ALLOCATOR = """
#include <atomic>
#include <cstdlib>
#include <new>

std::atomic<long> left{-1};  // allocations before the one that fails; negative: none does
extern "C" long fail_after(long count) { return left.exchange(count); }

void* operator new(std::size_t size) {
  void* const pointer = left >= 0 && left-- == 0 ? nullptr : std::malloc(size > 0 ? size : 1);
  if (pointer == nullptr) throw std::bad_alloc();
  return pointer;
}
void operator delete(void* pointer) noexcept { std::free(pointer); }
void operator delete(void* pointer, std::size_t) noexcept { std::free(pointer); }
"""


@pytest.mark.skipif(not shutil.which("g++"), reason="there is no compiler")
def test_no_memory_for_a_step_is_a_memory_error(tmp_path):
    """Every allocation of the second phase fails once: the call reports it, and the stream continues."""
    (tmp_path / "allocator.cpp").write_text(ALLOCATOR)
    library = tmp_path / "allocator.so"
    subprocess.run(["g++", "-O1", "-shared", "-fPIC", "-o", library, tmp_path / "allocator.cpp"], check=True)
    code = """
import ctypes
import numpy as np
from descend import acl, aclnn
fail_after = ctypes.CDLL(None).fail_after
x, gamma, rstd = np.ones((2000, 500), "f"), np.ones(500, "f"), np.ones(2000, "f")
acl.set_product("host")
size, executor = aclnn.rms_norm_grad_get_workspace_size(x, x, rstd, gamma, np.empty_like(x), np.empty_like(gamma))
executor.set_repeatable()
workspace, stream = acl.malloc(size), acl.Stream()
failures = []
for n in range(100):
    fail_after(n)
    try:
        aclnn.rms_norm_grad(workspace, size, executor, stream)
        stream.synchronize()
    except Exception as error:
        failures.append((isinstance(error, MemoryError), error.status, str(error)))
    if fail_after(-1) >= 0:
        break
    stream.synchronize()
print(n, sorted(set(failures)))
"""
    count, failures = run_python(code, LD_PRELOAD=str(library)).stdout.split(" ", 1)
    assert 1 < int(count) < 99
    assert eval(failures) == [(True, 361001, f"{OP}: there is no memory for the call.")]


@pytest.mark.parametrize("product", HUAWEI)
def test_a_stream_serves_every_product(product):
    call, result = inputs(4, 64), outputs(4, 64)
    if product in ("atlas-200i-500-a2", "atlas-training"):
        with refused(561003, OP):
            run_two_phase(OP, *call, *result, product=product)
    else:
        run_two_phase(OP, *call, *result, product=product)
        assert_same_bits(result, expected_of(call))


def test_the_log_has_a_line_a_call():
    code = """
import numpy as np
import descend
descend.rms_norm(np.ones((3, 8), "f"), np.ones(8, np.float16))
"""
    lines = run_python(code, DESCEND_LOG="1").stderr.splitlines()
    assert len(lines) == 1
    for word in ("rms_norm", "FLOAT[3, 8]", "FLOAT16[8]", "host", "us"):
        assert word in lines[0]
    assert run_python(code, DESCEND_LOG="0").stderr == ""


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
