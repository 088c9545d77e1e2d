"""torch_npu on several devices, and what it calls of the runtime: streams, events, callbacks, limits, refusals."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

import forks

pytest.importorskip("torch")
pytest.importorskip("torch_npu")


def run(code: str, **environment: str) -> list[str]:
    """The lines that the code prints, without torch_npu's own."""
    loaded = "" if "DESCEND_NPU_KERNELS" in environment else "torch_npu"
    done = forks.run("import torch, torch_npu\n" + code, check=True, environment=environment, loaded=loaded)
    return printed(done)


def printed(done: subprocess.CompletedProcess[str]) -> list[str]:
    return [line for line in done.stdout.splitlines() if not line.startswith("[WARN]")]


def test_the_check_says_why_there_is_no_device():
    pytest.importorskip("typer")
    command = [sys.executable, "-m", "descend.cli", "npu", "--check"]
    given = {**os.environ, "ASCEND_RT_VISIBLE_DEVICES": "none"}
    done = subprocess.run(command, env=given, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 1
    assert 'is_available() is False: aclrtGetDevice: ASCEND_RT_VISIBLE_DEVICES is "none"' in " ".join(
        done.stdout.split()
    )


def test_devices():
    """Devices are selected, each thread has its own, tensors are copied between them; none must be current first."""
    code = """
import threading
print(torch.npu.device_count(), torch.npu.get_device_name(0))
a = torch.arange(6.0).to("npu:0")
b = torch.arange(6.0).to("npu:2")
c = b.to("npu:1")
print(a.device, b.device, c.device, torch.npu.current_device())
print(torch.equal(a.cpu(), c.cpu()), (c + 1).sum().item(), (c * 2).device)
torch.npu.set_device(2)
print(torch.empty(1, device="npu").device, torch.npu.Stream().device, torch.npu.current_stream().device)
with torch.npu.device(1):
    print(torch.npu.current_device())
seen = []
thread = threading.Thread(target=lambda: (torch.npu.set_device(1), seen.append(torch.ones(1).npu().device.index)))
thread.start(), thread.join()
print(seen, torch.npu.current_device(), torch.ones(1).npu().device)
"""
    assert run(code, DESCEND_DEVICES="4", ASCEND_RT_VISIBLE_DEVICES="0,2,3") == [
        "3 Ascend910B1",
        "npu:0 npu:2 npu:1 0",
        "True 21.0 npu:1",
        "npu:2 npu:2 npu:2",
        "1",
        "[1] 2 npu:2",
    ]


def test_a_device_that_does_not_exist_is_named():
    code = """
import threading
def refused():
    try:
        torch.npu.set_device(5)
    except RuntimeError as error:
        print(str(error).strip().splitlines()[-1])
refused()
torch.ones(1).npu()
thread = threading.Thread(target=refused)
thread.start(), thread.join()
refused()
"""
    sentence = "aclrtSetDevice: device 5 does not exist; {} (DESCEND_DEVICES sets how many there are)."
    assert run(code) == [sentence.format("the only one is 0")] * 3
    assert run(code, DESCEND_DEVICES="2") == [sentence.format("there are those from 0 to 1")] * 3


def test_variables_that_scripts_for_ascend_set():
    code = """
x = torch.ones(2, 4, device="npu:1", requires_grad=True)
torch.nn.functional.layer_norm(x, (4,)).sum().backward()
print(torch.npu.device_count(), x.grad.shape)
"""
    command = [sys.executable, "-c", "import torch, torch_npu\n" + code]
    unset = {name: value for name, value in os.environ.items() if name != "DESCEND_DEVICES"}
    for given in ({"ASCEND_RT_VISIBLE_DEVICES": "4,7", "NPU_ASD_ENABLE": "1"}, {"LOCAL_WORLD_SIZE": "2"}):
        done = subprocess.run(command, env={**unset, **given}, capture_output=True, text=True, check=False)
        assert done.stdout == "2 torch.Size([2, 4])\n", done.stderr


def test_watching_gradients_for_silent_errors():
    """torch_npu's third search for them, of which its thread sleeps when Python ends: the program ends itself."""
    code = """
import os, torch, torch_npu
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.LayerNorm(8), torch.nn.Linear(8, 8)).npu().bfloat16()
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(3):
    model(torch.randn(4, 8).npu().bfloat16()).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
a = torch.randn(8, 8).npu().bfloat16()
print(torch_npu.asd.asd.matmul_check.registered_modules, torch_npu.matmul_checksum(a, a, a @ a).item(), flush=True)
os._exit(0)
"""
    watched = {**os.environ, "NPU_ASD_CONFIG": "enable:true,with_checksum:true,grad_sample_interval:1"}
    done = subprocess.run([sys.executable, "-c", code], env=watched, capture_output=True, text=True, check=False)
    assert done.stdout == "['0', '2'] False\n", done.stderr


def test_data_parallel():
    """The replicas on three devices give the gradients of the one module, and what comm copies is where it belongs."""
    code = """
from torch import nn
torch.manual_seed(0)
one = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 2)).npu()
x = torch.randn(7, 4).npu()
one(x).square().sum().backward()
expected = [p.grad.clone() for p in one.parameters()]
one.zero_grad()
y = nn.DataParallel(one)(x)
y.square().sum().backward()
print(y.device, all(torch.allclose(p.grad, g, rtol=1e-5, atol=1e-6) for p, g in zip(one.parameters(), expected)))
copies = nn.parallel.comm.broadcast(x, [0, 2])
print([c.device.index for c in copies], torch.equal(copies[1].cpu(), x.cpu()))
out = [torch.empty_like(x, device="npu:1")]
print(nn.parallel.comm.broadcast(x, out=out)[0] is out[0], torch.equal(out[0].cpu(), x.cpu()))
"""
    assert run(code, DESCEND_DEVICES="3") == ["npu:0 True", "[0, 2] True", "True True"]


def test_the_runtime():
    code = """
s, begin, end = torch.npu.Stream(), torch.npu.Event(enable_timing=True), torch.npu.Event(enable_timing=True)
x = torch.randn(1 << 20).npu()
with torch.npu.stream(s):
    begin.record()
    y = x.clone()
    end.record()
torch.npu.current_stream().wait_event(end)
torch.npu.synchronize()
print(end.query(), begin.elapsed_time(end) >= 0, torch.equal(x.cpu(), y.cpu()), s.query())

outside = torch.npu.ExternalEvent()
outside.record(s), outside.wait(s), s.synchronize()
print(len(torch.npu.Event(interprocess=True).ipc_handle()), s.query())

seen = []
torch_npu.npu._subscribe_report(s)
for i in range(5):
    torch_npu.npu._launch_host_func(s, seen.append, i)
s.synchronize()
torch_npu.npu._unsubscribe_report(s)
print(seen)

device = torch.npu.get_device_properties(0)
torch.npu.set_device_limit(0, 12, 24)  # as a program for an Ascend does
print(device.cube_core_num >= 1, torch.npu.get_device_limit(0), 0 <= torch.npu.utilization() <= 100)
torch.use_deterministic_algorithms(True)
print(torch.ones(2).npu().clone().cpu().tolist(), torch_npu.npu.utils.get_cann_version("CANN"))
torch.use_deterministic_algorithms(False)

try:
    torch_npu.npu._launch_host_func(s, print, 1)
except RuntimeError as error:
    print("no thread has been subscribed" in str(error))
"""
    assert run(code) == [
        "True True True True",
        "64 True",
        "[0, 1, 2, 3, 4]",
        "True {'cube_core_num': 12, 'vector_core_num': 24} True",
        "[1.0, 1.0] 9.1.0",
        "True",
    ]


@pytest.mark.parametrize("kernels", ["", "python"])
def test_operators_on_a_stream_that_something_else_made(kernels):
    code = """
import ctypes
made = ctypes.c_void_p()
assert int(torch.npu.npurt().npuStreamCreate(ctypes.addressof(made))) == 0
with torch.npu.stream(torch.npu.ExternalStream(made.value)):
    x = torch.arange(5.0).npu()
    y = torch.nn.functional.layer_norm(x + 1, (5,)) * 2
torch.npu.synchronize()
print(torch.allclose(y.cpu(), torch.nn.functional.layer_norm(torch.arange(5.0), (5,)) * 2))
del x, y
torch.npu.empty_cache()
assert int(torch.npu.npurt().npuStreamDestroy(made.value)) == 0
"""
    assert run(code, DESCEND_NPU_KERNELS=kernels) == ["True"]


def test_threads_of_gloo_use_the_device_of_their_process():
    """They let go of memory last. If device 0 became current there, torch_npu would end the process at gradients."""
    code = """
import ctypes
from torch import distributed
torch.npu.set_device(1)
distributed.init_process_group("hccl", store=distributed.HashStore(), rank=0, world_size=1)
other = torch.npu.Stream()
for _ in range(50):
    x = torch.ones(1000, device="npu")
    x.record_stream(other)
    distributed.broadcast(x, 0, async_op=True)
distributed.barrier()
x = torch.ones(4, device="npu", requires_grad=True)
y = x * 2
y.register_hook(lambda _: torch.autograd.Variable._execution_engine.queue_callback(lambda: print("called")))
y.sum().backward()
active = [ctypes.c_int32(7), ctypes.c_int32(7)]
for device, state in enumerate(active):
    assert ctypes.CDLL("libascendcl.so").aclrtGetPrimaryCtxState(device, None, ctypes.byref(state)) == 0
print([state.value for state in active], x.grad.tolist())
distributed.destroy_process_group()
"""
    assert run(code, DESCEND_DEVICES="2") == ["called", "[0, 1] [2.0, 2.0, 2.0, 2.0]"]


@pytest.mark.parametrize("kernels", ["", "python"])
def test_graphs_are_freed_before_python_ends(kernels):
    """PyTorch aborts if its thread for gradients must free a Python object later. Here that thread comes last."""
    code = """
import os, sys
x = torch.ones(4, 16).npu().requires_grad_()
(x * 2).backward(torch.ones(4, 16).npu())
for task in map(int, os.listdir("/proc/self/task")):
    os.sched_setaffinity(task, {min(os.sched_getaffinity(0))})
    with open(f"/proc/self/task/{task}/comm") as name:
        if name.read().startswith("pt_autograd"):
            os.sched_setscheduler(task, os.SCHED_IDLE, os.sched_param(0))
            print("found")
sys.setswitchinterval(10)
torch.autograd.backward([x * 2 for _ in range(100)], [torch.ones(4, 16).npu() for _ in range(100)])
"""
    assert run(code, DESCEND_NPU_KERNELS=kernels) == ["found"]  # without the wait two of three abort
