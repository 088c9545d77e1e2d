"""init_process_group("hccl") in processes of one machine, and in the report of `descend npu --report`."""

from __future__ import annotations

import os
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
