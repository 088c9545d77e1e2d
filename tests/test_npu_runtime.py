"""torch_npu's own use of the runtime: streams, events, devices, processes, the end.

Data is made on the CPU and moved. Each test that changes what a process has is in a process of its own, a fork.
"""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
torch_npu = pytest.importorskip("torch_npu")

import forks  # noqa: E402
from descend import _symbols, sdk  # noqa: E402

DTYPES = [
    torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.int8, torch.uint8, torch.int16, torch.int32,
    torch.int64, torch.bool, torch.complex64,
]  # fmt: skip
START = "import torch, torch_npu\nnpu = torch.npu\n"


def run(code: str, **environment: str) -> str:
    """What a process prints that begins with torch_npu; it must end well, and say nothing but torch_npu's warnings."""
    return printed(forks.run(START + code, check=True, environment=environment, loaded="torch_npu"))


def printed(done: subprocess.CompletedProcess[str]) -> str:
    assert "rror" not in done.stderr, done.stderr
    return done.stdout


# --- libraries and device --------------------------------------------------------------------------------------------


def test_all_that_it_binds_is_there():
    package = Path(torch_npu.__file__).parent
    asked = _symbols.requests(_symbols.libraries(package))
    assert len(asked.bound) > 80
    assert asked.bound <= _symbols.exported(sdk.path() / "lib64" / sdk.LIBRARY)
    assert all((sdk.path() / "lib64" / name).is_file() for name in asked.needed)


def test_one_state_behind_all_names():
    code = """
import ctypes
names = "ascendcl", "opapi", "nnopbase", "hccl", "descend"
libraries = [ctypes.CDLL(f"lib{name}.so") for name in names]
print({library.aclInit(None) for library in libraries[1:]}, libraries[0].aclInit(None))
"""
    assert run(f"npu.init(){code}") == "{100002} 100002\n"


def test_pytorchs_profiler_works_on_the_cpu():
    code = "with torch.profiler.profile() as p: torch.ones(3) + 1\n"
    assert run(code + "print(any(e.name == 'aten::add' for e in p.events()))") == "True\n"


def test_its_profiler_records_what_the_host_does(tmp_path):
    code = f"""{START}
from torch_npu import profiler
activities = [profiler.ProfilerActivity.CPU, profiler.ProfilerActivity.NPU]
files = profiler.tensorboard_trace_handler({str(tmp_path)!r})
schedule = profiler.schedule(wait=0, warmup=1, active=1)
options = {{"record_shapes": True, "profile_memory": True, "with_stack": True}}
x = torch.ones(4, 16, device="npu")
with profiler.profile(activities=activities, schedule=schedule, on_trace_ready=files, **options) as profile:
    for _ in range(2):
        y = torch.nn.functional.layer_norm(x, (16,))
        profile.step()
print(y.shape)
"""
    done = forks.run(code, check=True, loaded="torch_npu")  # it says that it has nothing of the device
    assert done.stdout.splitlines()[-1] == "torch.Size([4, 16])"
    (trace,) = tmp_path.rglob("trace_view.json")
    assert any(event.get("name") == "aten::native_layer_norm" for event in json.loads(trace.read_text()))
    assert all("NPU:0" in path.read_text() for path in trace.parent.glob("*memory*.csv"))
    assert len(list(trace.parent.glob("*memory*.csv"))) == 2


def test_settings_of_python_hold_for_it():
    code = """
from descend import acl
x, gamma = torch.ones(4, 16, device="npu"), torch.ones(16, device="npu")
def refused():
    try:
        torch_npu.npu_rms_norm(x, gamma)
    except RuntimeError as error:
        return "561003" in str(error)  # the product has no such operator
with acl.product("atlas-training"):
    within = refused()
after = refused()
acl.set_product("atlas-training")
print(within, after, refused())
"""
    assert run(code) == "True None True\n"


def test_a_wrong_number_of_devices_is_named():
    code = "try: torch.ones(3).npu()\nexcept RuntimeError as e: print('DESCEND_DEVICES is \"x\"' in str(e))"
    assert run(code, DESCEND_DEVICES="x") == "True\n"


def test_a_wrong_choice_of_kernels_is_named():
    done = forks.run(START, environment={"DESCEND_NPU_KERNELS": "c++"})
    assert "ValueError: DESCEND_NPU_KERNELS is 'c++', but must be python, or not set." in done.stderr


def test_the_version_of_cann():
    version = (sdk.path() / "ascend_toolkit_install.info").read_text().split("version=")[1].split()[0]
    code = "from torch_npu.utils.collect_env import get_cann_version\nprint(get_cann_version())\n"
    code += "import ctypes; text = ctypes.create_string_buffer(128)\n"
    code += "print(ctypes.CDLL('libascendcl.so').aclsysGetVersionStr(b'runtime', text), text.value.decode())"
    assert run(code) == f"{version}\n0 {version}\n"


def test_the_device():
    code = "print(npu.is_available(), npu.device_count(), npu.current_device(), npu.get_device_name(0))"
    assert run(code, DESCEND_PRODUCT="atlas-a3") == "True 1 0 Ascend910_9391\n"
    free, total = torch.npu.mem_get_info()
    assert 0 < free <= total


def test_cann_s_python_module():
    code = """
import acl
free, total, status = acl.rt.get_mem_info(1)
print(acl.get_soc_name(), 0 < free <= total == npu.mem_get_info()[1], status)
for name in ("acl.mdl", "acl.rt.malloc"):
    try: eval(name)
    except AttributeError as e: print(e)
"""
    there = "is not here: of CANN's module acl there are get_soc_name and rt.get_mem_info."
    lines = ["Ascend910B1 True 0", f"acl.mdl {there}", f"acl.rt.malloc {there}"]
    assert run(f"torch.ones(3).npu()\n{code}").splitlines() == lines


def test_torchair_can_be_imported():
    code = """
import sys, torchair
from torchair import ge, register_fx_node_ge_converter
print(ge.DataType.DT_FLOAT, hasattr(sys.modules["torchair.core._torchair"], "__wrapped__"))
"""
    assert run(code).splitlines()[-1] == "0 False"


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(3, 5), (0, 4), (), (1 << 20,)], ids=str)
def test_there_and_back(shape, dtype):
    x = (torch.rand(shape) * 100).to(dtype)
    y = x.npu()
    assert y.device == torch.device("npu:0")
    assert (y.shape, y.dtype, y.stride()) == (x.shape, x.dtype, x.stride())
    assert torch.equal(y.cpu(), x)


# --- streams and events ----------------------------------------------------------------------------------------------


def norm(x: torch.Tensor) -> torch.Tensor:
    return torch_npu.npu_rms_norm(x, torch.ones(x.shape[-1]).npu())[0]


def test_streams_run_in_the_order_of_their_events():
    x = torch.rand(512, 512)
    expected = x
    for _ in range(20):
        expected = expected * (expected.square().mean(-1, keepdim=True) + 1e-6).rsqrt()
    streams = [torch.npu.Stream() for _ in range(3)]
    y, gamma = x.npu(), torch.ones(512).npu()
    torch.npu.synchronize()
    for step in range(20):
        before = torch.npu.Event()
        before.record(streams[step % 3 - 1])
        with torch.npu.stream(streams[step % 3]):
            streams[step % 3].wait_event(before)
            y, _ = torch_npu.npu_rms_norm(y, gamma)
            y.record_stream(streams[(step + 1) % 3])
    torch.npu.synchronize()
    torch.testing.assert_close(y.cpu(), expected, rtol=1e-4, atol=1e-5)


def test_events_tell_time_and_state():
    start, end = torch.npu.Event(enable_timing=True), torch.npu.Event(enable_timing=True)
    x = torch.rand(2048, 1024).npu()
    start.record()
    for _ in range(5):
        y = norm(x)
    end.record()
    end.synchronize()
    assert start.query()
    assert end.query()
    assert 0 < start.elapsed_time(end) < 60_000
    assert y.shape == x.shape


def test_a_stream_tells_when_it_is_done():
    stream = torch.npu.Stream()
    with torch.npu.stream(stream):
        assert torch.npu.current_stream() == stream
        norm(torch.rand(64, 64).npu())
    stream.synchronize()
    assert stream.query()
    assert torch.npu.current_stream() == torch.npu.default_stream()
    assert len({torch.npu.Stream().npu_stream for _ in range(3)}) == 3


@pytest.mark.parametrize("queue", ["0", "1", "2"])
def test_every_way_of_the_queue(queue):
    code = """
x = torch.rand(8, 16).npu()
for _ in range(100):
    x, _ = torch_npu.npu_rms_norm(x, torch.ones(16).npu())
print(x.cpu().isfinite().all().item())
"""
    assert run(code, TASK_QUEUE_ENABLE=queue) == "True\n"


def test_callbacks_on_the_host_and_what_they_raise():
    """A callback's exception is reported, and the work after it continues."""
    code = """
seen = []
stream = npu.Stream()
torch_npu.npu._subscribe_report(stream)
def fail(argument):
    seen.append(argument)
    raise ValueError("from a callback")
for number in range(3):
    torch_npu.npu._launch_host_func(stream, fail if number == 1 else seen.append, number)
stream.synchronize()
torch_npu.npu._unsubscribe_report(stream)
print(seen)
"""
    done = forks.run(START + code, check=True, loaded="torch_npu")
    assert done.stdout == "[0, 1, 2]\n", done.stderr


# --- several devices -------------------------------------------------------------------------------------------------


def test_several_devices():
    code = """
assert npu.device_count() == 3
x = torch.arange(6.0)
on = [x.to(f"npu:{i}") for i in range(3)]
assert [t.device.index for t in on] == [0, 1, 2]
allocated = [npu.memory_allocated(i) for i in range(3)]
assert all(allocated), allocated
more = torch.zeros(1 << 20, device="cpu").to("npu:2")
assert npu.memory_allocated(2) > allocated[2] and npu.memory_allocated(1) == allocated[1]
assert torch.equal(on[0].to("npu:2").cpu(), x)
with npu.device(1):
    assert npu.current_device() == 1
    assert x.npu().device.index == 1
    y, _ = torch_npu.npu_rms_norm(on[1], torch.ones(6).npu())
    assert y.device.index == 1
    assert npu.current_stream().device.index == 1
assert npu.current_device() == 0
print(y.cpu().isfinite().all().item())
try:
    x.to("npu:3")
except RuntimeError as error:
    print("device" in str(error))
"""
    done = forks.run(START + code, check=True, environment={"DESCEND_DEVICES": "3"}, loaded="torch_npu")
    assert done.stdout == "True\nTrue\n", done.stderr


def test_visible_devices():
    code = "print(npu.device_count(), torch.ones(2).to('npu:1').cpu().tolist())"
    assert run(code, DESCEND_DEVICES="4", ASCEND_RT_VISIBLE_DEVICES="1,3") == "2 [1.0, 1.0]\n"


# --- processes -------------------------------------------------------------------------------------------------------


def test_a_file_of_tensors_goes_from_process_to_process(tmp_path):
    path = str(tmp_path / "x.pt")
    run(f"torch.save(torch.arange(5).npu(), {path!r})")
    assert run(f"x = torch.load({path!r}); print(x.device, x.cpu().tolist())") == "npu:0 [0, 1, 2, 3, 4]\n"
    code = f"print(torch.load({path!r}, map_location='cpu').tolist())"
    assert run(code) == "[0, 1, 2, 3, 4]\n"


def test_a_fork_before_the_first_use():
    code = """
import os
child = os.fork()
x = torch.arange(3.0).npu()
assert x.cpu().tolist() == [0, 1, 2]
if child:
    _, status = os.waitpid(child, 0)
    print(os.waitstatus_to_exitcode(status))
"""
    assert run(code) == "0\n"


@pytest.mark.parametrize("queue", ["0", "1", "2"])
def test_a_fork_after_it(queue):
    """The child lacks the thread of torch_npu's queue: a call is an error there, and the parent continues.

    The child ends with its status, and with what it has printed.
    """
    code = """
import os, signal, sys
x, gamma = torch.rand(2048, 1024).npu(), torch.ones(1024).npu()
for _ in range(10):
    torch_npu.npu_rms_norm(x, gamma)  # may be in the queue at the fork
child = os.fork()
if child == 0:
    signal.alarm(60)
    try:
        torch_npu.npu_rms_norm(x, gamma)
        npu.synchronize()
    except RuntimeError as error:
        print("was forked from one that uses the device" in str(error), end=" ")
        sys.exit(7)
    sys.exit(1)
_, status = os.waitpid(child, 0)
print(os.waitstatus_to_exitcode(status), torch_npu.npu_rms_norm(x, gamma)[0].cpu().shape)
"""
    done = forks.run(START + code, check=True, environment={"TASK_QUEUE_ENABLE": queue}, loaded="torch_npu")
    assert done.stdout == "True 7 torch.Size([2048, 1024])\n"
    assert not re.search("terminate called|shutdown", done.stderr)


@pytest.mark.parametrize("queue", ["0", "1"])
def test_the_end_with_work_in_flight(queue):
    code = """
x, gamma = torch.rand(4096, 1024).npu(), torch.ones(1024).npu()
side = npu.Stream()
for _ in range(20):
    x, _ = torch_npu.npu_rms_norm(x, gamma)
with npu.stream(side):
    y, _ = torch_npu.npu_rms_norm(x, gamma)
print("end")
"""
    done = forks.run(START + code, check=True, environment={"TASK_QUEUE_ENABLE": queue})
    assert printed(done) == "end\n"


@pytest.mark.parametrize("way", ["raise ValueError('its own')", "import sys; sys.exit(3)", "import os; os._exit(3)"])
def test_the_end_by_an_exception_or_a_status(way):
    code = "x = torch.rand(64, 64).npu()\ntorch_npu.npu_rms_norm(x, torch.ones(64).npu())\n" + way
    done = forks.run(START + code, loaded="torch_npu")
    assert done.returncode == (1 if "raise" in way else 3), done.stderr
    assert ("its own" in done.stderr) == ("raise" in way)


def test_threads():
    code = """
import threading
wrong = []
def work(seed):
    x = torch.rand(32, 64, generator=torch.Generator().manual_seed(seed))
    with npu.stream(npu.Stream()):
        for _ in range(50):
            y, _ = torch_npu.npu_rms_norm(x.npu(), torch.ones(64).npu())
            got = y.cpu()
    exact = x * (x.square().mean(-1, keepdim=True) + 1e-6).rsqrt()
    if not torch.allclose(got, exact, rtol=1e-5, atol=1e-6):
        wrong.append(seed)
threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
[t.start() for t in threads], [t.join() for t in threads]
print(wrong)
"""
    assert run(code) == "[]\n"
