"""The kernels of device npu in Python, which run where those in C++ were not built: the same tests, once more."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from cases import extended

pytest.importorskip("torch_npu")

HERE = Path(__file__).parent


@pytest.mark.long
@pytest.mark.parametrize("file", extended("test_npu_aten.py", "test_npu_programs.py"))
def test_the_same_tests(file):
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:xdist", "-p", "no:cacheprovider", str(HERE / file)]
    left_out = "example or trainer"  # once is enough
    environment = {**os.environ, "DESCEND_NPU_KERNELS": "python"}
    done = subprocess.run(
        [*command, "-k", f"not ({left_out})"],
        env=environment,
        cwd=HERE.parent,
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:]


def test_they_are_what_runs(tmp_path):
    """Where there is no module in C++, as in a wheel built without PyTorch."""
    code = """
import sys
sys.modules["descend._npu"] = None  # not to be imported
import torch
from descend.npu import boxed, kernels
assert kernels.form() is boxed
x = torch.arange(4.0, device="npu")
print((x + x).tolist(), torch.ones(2, 3, device="npu", out=torch.empty(0, device="npu")).shape)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout == "[0.0, 2.0, 4.0, 6.0] torch.Size([2, 3])\n", done.stderr
