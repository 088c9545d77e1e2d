"""init_process_group("hccl") in processes of one machine, and in the report of `descend npu --report`."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from cases import extended
from test_npu_report import processes

pytest.importorskip("torch")
pytest.importorskip("torch_npu")

PROCESSES = Path(__file__).with_name("npu_processes.py")


@pytest.mark.long
@pytest.mark.parametrize(("count", "kernels"), [(2, ""), *extended((4, ""), (2, "python"))])
def test_trainings_of_several_processes_have_the_losses_of_one(tmp_path, count, kernels):
    report, launcher = tmp_path / "r.json", [sys.executable, "-m", "descend.cli", "npu", "--report"]
    command = [*launcher, report, "torchrun", "--standalone", f"--nproc_per_node={count}", PROCESSES]
    environment = {**os.environ, "DESCEND_NPU_KERNELS": kernels}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stderr[-5000:]
    for rank in range(count):
        assert f"process {rank} of {count}: all as in one" in done.stdout
    found = processes(report)
    assert sorted(process["rank"] for process in found) == [*range(count)]
    for process in found:
        rows = {row["operator"]: row for row in process["operators"]}
        assert rows["aclnnLayerNormBackward"]["calls"] == 30  # five steps in one process, and in each of five ways
        assert rows["c10d::allreduce_"]["place"] == "gloo"
    assert f"by {count} processes (ranks {', '.join(map(str, range(count)))})" in done.stderr


@pytest.mark.parametrize("count", [2, *extended(3)])
def test_a_device_may_be_bound_to_the_group_of_all(count):
    command = [sys.executable, "-m", "descend.cli", "npu", "torchrun", "--standalone", f"--nproc_per_node={count}"]
    done = subprocess.run([*command, PROCESSES, "bound"], capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr[-5000:]


ONE_PROCESS = """
import os, sys, threading, time, torch, torch_npu
from torch import distributed
from descend.npu import collectives

def begin(port):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
    distributed.init_process_group("hccl", rank=0, world_size=1)
"""
SLOW_THREADS = """
enter, late = collectives._enter_device, threading.Event()

def slowly(storage):
    if threading.current_thread() is not threading.main_thread():
        late.set()
        time.sleep(0.3)
    enter(storage)

collectives._enter_device = slowly
begin(sys.argv[1])
while not late.is_set():  # until a thread of gloo is the last that has a tensor
    distributed.all_reduce(torch.ones(3).npu(), async_op=True)
    late.wait(0.01)
if sys.argv[2] == "destroyed":
    distributed.destroy_process_group()
"""
DESTROYED_GROUPS = """
counts = []
for _ in range(3):
    begin(sys.argv[1])
    tensor = torch.ones(3).npu()
    distributed.all_reduce(tensor)
    distributed.all_reduce(tensor, group=distributed.new_group([0]))
    distributed.destroy_process_group(distributed.new_group([0]))
    distributed.destroy_process_group()
    counts.append([len(os.listdir(f"/proc/self/{each}")) for each in ("task", "fd")])
assert counts[1] == counts[2], counts
"""


def one_process(program: str, *arguments: str) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    command = [sys.executable, "-m", "descend.cli", "npu", "-c", ONE_PROCESS + program, port, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr[-5000:]


@pytest.mark.parametrize("group", ["destroyed", "kept"])
def test_a_thread_that_lets_go_of_a_tensor_at_the_end_does_not_end_the_process(group):
    one_process(SLOW_THREADS, group)


def test_a_group_that_is_destroyed_ends_its_threads_and_closes_its_connections():
    one_process(DESTROYED_GROUPS)
