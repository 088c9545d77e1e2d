"""The operators on CUDA tensors, where there is a GPU: ``./dev test-gpu``."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

if not torch.cuda.is_available():
    pytest.skip("there is no GPU", allow_module_level=True)

from torch import Tensor  # noqa: E402
from torch.autograd import gradcheck, gradgradcheck  # noqa: E402

import descend  # noqa: E402
import descend.torch  # noqa: E402
from cases import refused  # noqa: E402
from descend import acl, aclnn  # noqa: E402
from torch_cases import Call, calls  # noqa: E402
from triton_calls import NAMES, OPERATORS  # noqa: E402

DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64)


def on_gpu(call: Call) -> Call:
    return Call(call.name, tuple(a.cuda() if isinstance(a, Tensor) else a for a in call.args), call.named)


def of_floats(call: Call) -> tuple[Any, tuple[Tensor, ...]]:
    """The call as a function of its floating tensors, and these."""

    def function(*floats: Tensor) -> tuple[Tensor, ...]:
        args = list(call.args)
        for place, value in zip(call.floats, floats, strict=True):
            args[place] = value
        return tuple(r for r in call.run(*args) if r is not None)

    return function, tuple(call.args[i].detach().clone().requires_grad_() for i in call.floats)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", NAMES)
def test_results_are_the_engines_up_to_rounding(name, dtype):
    call = calls(dtype)[name]
    for a, e in zip(on_gpu(call).run(), call.run(), strict=True):
        assert (a is None) == (e is None)
        if a is not None:
            assert a.is_cuda
            assert (a.shape, a.dtype, a.stride()) == (e.shape, e.dtype, e.stride())
            error = (a.cpu().double() - e.double()).abs()
            assert bool((error <= 4 * torch.finfo(a.dtype).eps * e.double().abs().max()).all()), error.max()


@pytest.mark.parametrize("name", OPERATORS)
def test_opcheck(name):
    call = on_gpu(calls()[name])
    torch.library.opcheck(getattr(torch.ops.descend, call.name).default, call.wanting(call.floats).args, call.named)


@pytest.mark.parametrize("name", NAMES)
def test_gradcheck(name):
    function, floats = of_floats(on_gpu(calls()[name]))
    gradcheck(function, floats)


@pytest.mark.parametrize("name", OPERATORS)
def test_gradgradcheck(name):
    function, floats = of_floats(on_gpu(calls()[name]))
    gradgradcheck(function, floats)


@pytest.mark.parametrize("name", OPERATORS)
def test_the_functional_api(name):
    call = on_gpu(calls(torch.float32)[name])
    results = getattr(descend, name)(*call.args, **call.named)
    for a, e in zip(results if isinstance(results, tuple) else (results,), call.run(), strict=True):
        assert torch.equal(a, e)


def test_the_functional_api_refuses_what_requires_gradients():
    x = torch.randn(4, 8, device="cuda", requires_grad=True)
    with pytest.raises(ValueError, match="requires gradients, which this call would not record"):
        descend.rms_norm(x, torch.ones(8, device="cuda"))


@pytest.mark.parametrize("name", NAMES)
def test_the_same_bits_in_every_run_and_on_every_stream(name):
    call = on_gpu(calls(torch.bfloat16)[name])
    expected = [r for r in call.run() if r is not None]
    torch.cuda.synchronize()
    streams = [torch.cuda.Stream() for _ in range(4)]
    found = []
    for stream in streams:
        with torch.cuda.stream(stream):
            found.append([r for r in call.run() if r is not None])
    torch.cuda.synchronize()
    for results in found:
        assert all(torch.equal(a, e) for a, e in zip(results, expected, strict=True))


@pytest.mark.parametrize("name", NAMES)
def test_cuda_graphs(name):
    call = on_gpu(calls(torch.float32)[name])
    expected = [r for r in call.run() if r is not None]  # compiles, and copies tables of sequences to the device
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = [r for r in call.run() if r is not None]
    for result in captured:
        result.fill_(float("nan"))
    graph.replay()
    torch.cuda.synchronize()
    assert all(torch.equal(a, e) for a, e in zip(captured, expected, strict=True))


@pytest.mark.parametrize("name", ["rms_norm", "layer_norm", "group_norm_swish", "scaled_masked_softmax"])
def test_training_steps_in_a_cuda_graph(name):
    """Forward and backward, captured on a stream of their own, replayed on other numbers."""
    call = on_gpu(calls(torch.float32)[name])
    function, floats = of_floats(call)

    def step() -> list[Tensor]:
        return list(torch.autograd.grad(function(*floats)[0].square().sum(), floats))

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step()
    with torch.no_grad():
        for tensor in floats:
            tensor.mul_(0.5)
    graph.replay()
    torch.cuda.synchronize()
    for a, e in zip(captured, step(), strict=True):
        torch.testing.assert_close(a, e)


@pytest.mark.parametrize("name", OPERATORS)
def test_compiled(name):
    call = on_gpu(calls(torch.float32)[name])
    compiled = torch.compile(lambda *args: call.function()(*args, **call.named), fullgraph=True)
    results = compiled(*call.args)
    for a, e in zip(results if isinstance(results, tuple) else (results,), call.run(), strict=True):
        assert (a is None and e is None) or torch.equal(a, e)


def rms_norm_grad_in_two_phases() -> tuple[list[Tensor], list[Tensor], tuple[Tensor, ...]]:
    """Inputs, outputs of NaN, and what is expected in them."""
    call = on_gpu(calls(torch.float32)["rms_norm_grad"])
    expected = call.run()
    return list(call.args), [torch.full_like(e, float("nan")) for e in expected], expected


def test_two_phases_with_a_workspace_and_a_stream_of_the_device():
    inputs, out, expected = rms_norm_grad_in_two_phases()
    with acl.product("host"):
        size, executor = aclnn.rms_norm_grad_get_workspace_size(*inputs, *out)
    executor.set_repeatable()
    workspace = torch.full((size,), 0xFF, dtype=torch.uint8, device="cuda")
    aclnn.rms_norm_grad(workspace, size, executor, None)  # compiles
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    for where in (workspace, workspace.data_ptr()):
        for tensor in out:
            tensor.fill_(float("nan"))
        stream.wait_stream(torch.cuda.current_stream())
        before = torch.cuda.memory_stats()["allocation.all.allocated"]
        aclnn.rms_norm_grad(where, size, executor, stream)
        assert torch.cuda.memory_stats()["allocation.all.allocated"] == before
        stream.synchronize()
        assert all(torch.equal(a, e) for a, e in zip(out, expected, strict=True))


def test_two_phases_in_a_cuda_graph():
    inputs, out, expected = rms_norm_grad_in_two_phases()
    with acl.product("host"):
        size, executor = aclnn.rms_norm_grad_get_workspace_size(*inputs, *out)
    executor.set_repeatable()
    workspace = torch.empty(size, dtype=torch.uint8, device="cuda")
    aclnn.rms_norm_grad(workspace, size, executor, None)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        aclnn.rms_norm_grad(workspace, size, executor, None)
    for tensor in out:
        tensor.fill_(float("nan"))
    graph.replay()
    torch.cuda.synchronize()
    assert all(torch.equal(a, e) for a, e in zip(out, expected, strict=True))


def test_two_phases_refuse_what_is_not_on_the_device():
    inputs, out, _ = rms_norm_grad_in_two_phases()
    with acl.product("host"):
        size, executor = aclnn.rms_norm_grad_get_workspace_size(*inputs, *out)
        with refused(161002, "rms_norm_grad", "all tensors must be on one device"):
            aclnn.rms_norm_grad_get_workspace_size(*inputs, out[0], out[1].cpu())
    with refused(161002, "rms_norm_grad", "the workspace is on cpu, but the tensors are on cuda:0"):
        aclnn.rms_norm_grad(torch.empty(size, dtype=torch.uint8), size, executor, None)
    with refused(361001, "rms_norm_grad", "must be a torch.cuda.Stream or None"):
        aclnn.rms_norm_grad(None, size, executor, acl.Stream())
    host = np.zeros(size + 16, np.uint8)
    with refused(161002, "rms_norm_grad", "no memory of cuda:0"):
        aclnn.rms_norm_grad(host.ctypes.data + -host.ctypes.data % 16, size, executor, None)
    assert not executor.spent


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="there is one GPU")
def test_two_phases_on_another_device_than_the_current_one():
    inputs, out, expected = rms_norm_grad_in_two_phases()
    inputs, out = ([t.to("cuda:1") for t in tensors] for tensors in (inputs, out))
    with acl.product("host"):
        size, executor = aclnn.rms_norm_grad_get_workspace_size(*inputs, *out)
    executor.set_repeatable()
    workspace = torch.empty(size, dtype=torch.uint8, device="cuda:1")
    with refused(361001, "rms_norm_grad", "stream is one of cuda:0, but the tensors are on cuda:1"):
        aclnn.rms_norm_grad(workspace, size, executor, torch.cuda.Stream("cuda:0"))
    for stream in (None, torch.cuda.Stream("cuda:1")):
        aclnn.rms_norm_grad(workspace, size, executor, stream)
        torch.cuda.synchronize("cuda:1")
        assert all(torch.equal(a.cpu(), e.cpu()) for a, e in zip(out, expected, strict=True))


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="there is one GPU")
@pytest.mark.parametrize("name", NAMES)
def test_another_device_than_the_current_one(name):
    """On each of two devices in turn, without waiting in between: the same bits as on one."""
    call = calls(torch.float32)[name]
    expected = [r for r in on_gpu(call).run() if r is not None]
    found = []
    for device in (1, 0, 1):
        args = [a.to(f"cuda:{device}") if isinstance(a, Tensor) else a for a in call.args]
        found.append([r for r in call.run(*args) if r is not None])
        assert {r.device.index for r in found[-1]} == {device}
        assert torch.cuda.current_device() == 0
    for results in found:
        assert all(torch.equal(a.cpu(), e.cpu()) for a, e in zip(results, expected, strict=True))


def test_more_than_2_to_the_31_elements():
    rows, columns = 2**18 + 3, 2**13
    if torch.cuda.mem_get_info()[0] < 5 * rows * columns * 2:
        pytest.skip("the GPU has too little free memory")
    x = torch.randn(rows, columns, device="cuda", dtype=torch.bfloat16)
    gamma = torch.ones(columns, device="cuda", dtype=torch.bfloat16)
    y, rstd = descend.torch.rms_norm(x, gamma)
    for part in (slice(0, 2), slice(rows - 2, rows)):
        alone = descend.torch.rms_norm(x[part], gamma)
        assert torch.equal(y[part], alone[0])
        assert torch.equal(rstd[part], alone[1])


def test_tensors_on_two_devices_are_refused():
    with pytest.raises(ValueError, match="all tensors must be on one device"):
        descend.torch.rms_norm(torch.ones(2, 8, device="cuda"), torch.ones(8))
