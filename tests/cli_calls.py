"""Calls of the command line, for the tests of its commands."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
from typer.testing import CliRunner

from descend import reference, tensors
from descend.cli import main
from descend.cli.app import app


def ok(*arguments):
    """The output of a command that must succeed."""
    result = CliRunner().invoke(app, [str(a) for a in arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def fails(capsys, *arguments, status=2):
    """The one sentence of a command that must fail."""
    capsys.readouterr()
    assert main([str(a) for a in arguments]) == status
    out, err = capsys.readouterr()
    if status == 2:
        assert err.startswith("descend: ")
        assert err.count("\n") == 1
        assert "Traceback" not in err
    return out + err


def descend_command(*arguments, **options):
    """The command in a process of its own."""
    command = [sys.executable, "-m", "descend.cli", *(str(a) for a in arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, **options)


def inputs(dtype=np.float32, shape=(6, 16), seed=0):
    rng = np.random.default_rng(seed)
    x, dy = (rng.standard_normal(shape).astype(dtype) for _ in range(2))
    gamma = rng.standard_normal(shape[-1:]).astype(dtype)
    rstd = (1 / np.sqrt(np.mean(x.astype(np.float64) ** 2, -1, keepdims=True) + 1e-6)).astype(np.float32)
    return {"dy": dy, "x": x, "rstd": rstd, "gamma": gamma}


def same(actual, expected):
    assert actual.dtype == expected.dtype
    assert actual.shape == expected.shape
    assert actual.tobytes() == expected.tobytes()


def write_judged(folder: Path) -> Path:
    """Golden results, good ones and bad ones, each in a file."""
    given = inputs()
    golden = dict(zip(("dx", "dgamma"), reference.rms_norm_grad(**given), strict=True))
    good = {name: array.astype(np.float32) for name, array in golden.items()}
    bad = good | {"dx": good["dx"] * np.float32(1.01)}
    for name, content in (("golden", golden), ("good", good), ("bad", bad)):
        tensors.write(folder / f"{name}.npz", content)
    return folder
