"""Triton's kernels for Ascend, which Triton's interpreter runs: with triton-ascend as it is on PyPI."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch_npu")

KERNELS = Path(__file__).with_name("npu_triton_kernels.py")
UNSET = "import os; os.environ.pop('TRITON_INTERPRET');"
PACKAGES = ("triton-ascend==3.2.0", "pybind11")


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with triton-ascend, which other tests must not find: PyTorch does other things where Triton is."""
    folder = tmp_path_factory.mktemp("triton")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(folder), *PACKAGES]
    subprocess.run(pip, check=True, timeout=300)
    return folder


def run(packages: Path, program: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    environment |= {"PYTHONPATH": str(packages), "TRITON_CACHE_DIR": str(packages / "cache"), **variables}
    command = [str(Path(sys.executable).with_name("descend")), "npu", "-c", program]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)


@pytest.mark.extended
def test_kernels_run_without_a_compiler(packages: Path) -> None:
    """Each checks its own results."""
    done = run(packages, f"import runpy; runpy.run_path({str(KERNELS)!r}, run_name='__main__')")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.split()[-1] == "right"


@pytest.mark.extended
@pytest.mark.parametrize(
    ("program", "variables", "expected"),
    [
        ("import torch, os; print(os.environ['TRITON_INTERPRET'])", {}, "1"),
        ("import torch, os; print(os.environ['TRITON_INTERPRET'])", {"TRITON_INTERPRET": "0"}, "0"),
        ("import triton, torch, os; print(os.environ['TRITON_INTERPRET'])", {}, "1"),
        (f"{UNSET} import triton, torch, os; print(os.environ.get('TRITON_INTERPRET'))", {}, "None"),
    ],
)
def test_who_chooses_the_interpreter(packages: Path, program: str, variables: dict[str, str], expected: str) -> None:
    """A program that has chosen itself, or has imported triton without the variable, is left alone."""
    done = run(packages, program, **variables)
    assert done.stdout.split()[-1:] == [expected], done.stderr
