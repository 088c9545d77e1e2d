"""The training example and the benchmark of JAX."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

jax = pytest.importorskip("jax")

import jax.numpy as jnp  # noqa: E402

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "examples"))

import train_jax  # noqa: E402
from train_jax import DESCEND, XLA  # noqa: E402


def test_the_curves_agree_and_go_down():
    ways = {"XLA": XLA, "Descend": DESCEND}
    losses, seconds = train_jax.train(ways, 6, 2, jnp.float32, 0)
    assert losses["Descend"] == pytest.approx(losses["XLA"], rel=1e-5)
    assert losses["Descend"][-1] < losses["Descend"][0] - 0.5
    assert [len(some) for some in seconds.values()] == [6] * len(ways)


def test_what_the_example_prints(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["train_jax.py", "--steps", "2", "--batch", "2"])
    train_jax.main()
    text = capsys.readouterr().out
    assert re.search(r"^step    2: loss \d\.\d{4} with XLA, loss \d\.\d{4} with Descend$", text, re.MULTILINE)
    assert re.search(r"^the losses differ by at most \d\.\de[-+]\d\d of their value$", text, re.MULTILINE)
    assert re.search(r"^\d+\.\d ms a step with XLA, \d+\.\d ms a step with Descend$", text, re.MULTILINE)


def test_the_benchmark():
    command = [sys.executable, "-m", "benchmarks.jit", "--seconds", "0", "--dtype", "float32"]
    for operator, shape in (("rms_norm", "8x64"), ("group_norm_swish", "2x32x8x8")):
        command += ["--op", operator, "--shape", shape]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    lines = [line.split() for line in done.stdout.splitlines()[2:]]
    calls = [[operator, kind] for operator in ("rms_norm", "group_norm_swish") for kind in ("forward", "gradient")]
    assert [[line[0], line[3]] for line in lines[:4]] == calls
    for line in lines[:4]:
        xla, ours, ratio = map(float, line[4:])
        assert min(xla, ours) > 0
        assert ratio == pytest.approx(xla / ours, rel=0.1)
    assert done.stdout.splitlines()[-1].startswith("below 1 MB, gradient: ratios ")
