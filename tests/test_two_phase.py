"""The two-phase API: executors, workspaces, products, streams, threads, signals, forks, the end of the interpreter."""

from __future__ import annotations

import gc
import itertools
from typing import Any

import numpy as np
import pytest

import descend
from cases import HUAWEI, assert_same_bits, digest, normal, phase1, refused, run_python, run_two_phase
from descend import acl, aclnn
from two_phase_calls import OP, expected_of, inputs, outputs

pytestmark = pytest.mark.usefixtures("little_to_collect", "host")


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
