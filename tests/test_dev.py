"""The script ./dev, as far as it goes without setting anything up."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parent.parent


def dev(*arguments: str, folder: Path = ROOT) -> subprocess.CompletedProcess[str]:
    return subprocess.run([ROOT / "dev", *arguments], cwd=folder, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize("arguments", [(), ("help",), ("--help",), ("-h",)])
def test_help(arguments, tmp_path):
    done = dev(*arguments, folder=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("usage: ./dev COMMAND")


def test_an_unknown_command_is_named():
    done = dev("tset", "tests")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("dev: there is no command tset\n\nusage: ./dev COMMAND")


@pytest.mark.parametrize(
    ("variable", "sentence"),
    [
        ("PYTHON", "dev: PYTHON=/no/such is not a Python 3.10 or newer.\n"),
        ("CXX", "dev: CXX=/no/such is not a C++20 compiler.\n"),
    ],
)
def test_what_is_asked_for_and_not_there_is_named(tmp_path, variable, sentence):
    shutil.copy(ROOT / "dev", tmp_path)  # where nothing is set up
    environment = {**os.environ, variable: "/no/such"}
    done = subprocess.run(
        [tmp_path / "dev", "run"], env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout, done.stderr) == (1, "", sentence)
    assert not (tmp_path / ".venv").exists()


def test_every_command_is_told_of():
    script = (ROOT / "dev").read_text(encoding="utf-8")
    commands = re.findall(r"^  ([\w-]+)\)$", script[script.index("case $command in") :], re.MULTILINE)
    assert {"run", "test", "bench"} <= set(commands)
    contributing = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    for command in commands:
        assert re.search(rf"^  {command}\b", dev("help").stdout, re.MULTILINE)
        assert f"./dev {command} " in contributing


def test_the_workflow_runs_what_must_hold_before_a_change_lands():
    stages = re.findall(r"^stage \./dev (.+)$", (ROOT / ".ci" / "run").read_text(encoding="utf-8"), re.MULTILINE)
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "tests.yml").read_text(encoding="utf-8"))
    assert workflow["jobs"]["dev"]["strategy"]["matrix"]["command"] == stages
