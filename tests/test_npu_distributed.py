"""init_process_group("hccl") in processes of one machine."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from cases import extended

pytest.importorskip("torch")
pytest.importorskip("torch_npu")

PROCESSES = Path(__file__).with_name("npu_processes.py")


@pytest.mark.long
@pytest.mark.parametrize(("count", "kernels"), [(4, ""), *extended((2, "python"))])
def test_trainings_of_several_processes_have_the_losses_of_one(count, kernels):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={count}", PROCESSES]
    environment = {**os.environ, "DESCEND_NPU_KERNELS": kernels}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stderr[-5000:]
    for rank in range(count):
        assert f"process {rank} of {count}: all as in one" in done.stdout
