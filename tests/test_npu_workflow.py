"""The workflow of examples/ci: read as GitHub would, and its commands tried as far as they can be without a runner."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cases import extended

yaml = pytest.importorskip("yaml")
pytest.importorskip("torch_npu", reason="the workflow installs it")

WORKFLOW = Path(__file__).parents[1] / "examples" / "ci" / "ascend-tests.yml"
PROJECT = WORKFLOW.parents[2] / "pyproject.toml"
TEST = """
import torch

def test_device():
    x = torch.ones(3, device="npu")
    assert (x + x).tolist() == [2, 2, 2]
"""
TRAIN = """
import torch, torch.distributed as d

d.init_process_group("hccl")
x = torch.ones(1, device="npu")
d.all_reduce(x)
if d.get_rank() == 0:  # lines of two processes may come out mixed
    print("sum", x.item(), flush=True)
d.destroy_process_group()
"""


@pytest.fixture(scope="module")
def workflow() -> dict[str, Any]:
    return yaml.safe_load(WORKFLOW.read_text())


@pytest.fixture(scope="module")
def steps(workflow: dict[str, Any]) -> dict[str, str]:
    """The commands of each step that has some."""
    return {each["name"]: each["run"] for each in workflow["jobs"]["tests"]["steps"] if "run" in each}


def test_it_is_a_workflow(workflow):
    assert workflow[True] == ["push", "pull_request"]  # the key `on`, which YAML 1.1 reads so
    job = workflow["jobs"]["tests"]
    assert job["runs-on"].startswith("ubuntu-")
    assert all(("run" in step) != ("uses" in step) for step in job["steps"])
    assert "has not been run on a hosted runner" in WORKFLOW.read_text()


def test_each_step_is_a_shell_script(steps):
    for commands in steps.values():
        subprocess.run(["bash", "-n"], input=commands, text=True, check=True)


def test_it_installs_the_releases_that_descend_names(steps):
    wanted = next(line for line in PROJECT.read_text().splitlines() if line.startswith("npu = "))
    installed = {word for run in steps.values() for word in shlex.split(run) if "==" in word}
    assert installed == {"torch==2.13.0", "torch_npu==2.13.0"}
    assert all(word in wanted for word in installed)
    assert "descend[cli] @ ${DESCEND:?" in steps["Install Descend"]


@pytest.mark.parametrize(
    ("step", "printed"),
    [
        ("Show what is there", "torch_npu runs here."),
        ("Run the tests", "1 passed"),
        *extended(("Run a training with two processes", "sum 2.0")),
    ],
)
@pytest.mark.long
def test_its_commands_run(workflow, steps, step, printed, tmp_path):
    """In a repository with a test and a training, where PyTorch, torch_npu and Descend are installed."""
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_device.py").write_text(TEST)
    (tmp_path / "tests" / "train.py").write_text(TRAIN)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, **workflow["env"], "PATH": path}
    command = ["bash", "-e", "-c", steps[step]]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert printed in done.stdout
