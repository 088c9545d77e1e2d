"""The C++ examples print what the reference computes: each is built against the SDK as it says itself, and run."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from descend import reference, sdk

ROOT = Path(__file__).resolve().parent.parent
EXAMPLES = ROOT / "examples" / "cpp"
Array = npt.NDArray[Any]

try:
    sdk.path()
except FileNotFoundError as error:
    pytest.skip(str(error), allow_module_level=True)
if not any(shutil.which(c) for c in ("g++", "c++")):
    pytest.skip("there is no compiler", allow_module_level=True)


def output(name: str, folder: Path) -> str:
    """What the program prints, built with the commands in the comment at its head."""
    commands = re.findall(r"^//   (.+)$", (EXAMPLES / f"{name}.cpp").read_text(encoding="utf-8"), re.MULTILINE)
    for file in (f"{name}.cpp", "device.h"):
        shutil.copy(EXAMPLES / file, folder)
    environment = {
        **{k: v for k, v in os.environ.items() if not k.startswith(("ASCEND_", "DESCEND_", "LD_"))},
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }
    # What the command prints, at once; it has tests of its own.
    script = "\n".join(["set -e", f"descend() {{ [ \"$*\" = sdk ] && echo '{sdk.path()}'; }}", *commands])
    done = subprocess.run(
        ["bash", "-c", script], cwd=folder, env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


def printed(text: str) -> dict[str, Array]:
    """The numbers of each line, by the name in front."""
    lines = (line.split() for line in text.splitlines())
    return {name: np.array(values, np.float64) for name, *values in lines}


def numbers(count: int, start: float = 0, dtype: Any = np.float32) -> Array:
    """The same as ``numbers`` in device.h."""
    return np.sin(start + 2.4 * np.arange(count)).astype(np.float32).astype(dtype)


def rms_norm_grad() -> dict[str, Array]:
    x, gamma = np.array([[1, 2, 3, 4], [-1, 0, 1, 2]]), np.array([1, 1, 2, 2])
    y, rstd = reference.rms_norm(x, gamma, 1e-6)
    return dict(zip(("dx", "dgamma"), reference.rms_norm_grad(y, x, rstd, gamma), strict=True))


def layer_norm_backward() -> dict[str, Array]:
    x, weight, bias = numbers(24).reshape(3, 8), numbers(8, 1), numbers(8, 2)
    y, mean, rstd = reference.layer_norm(x, 8, weight, bias, 1e-5)
    dx, dweight, nothing = reference.layer_norm_backward(y, x, 8, mean, rstd, weight, bias, (True, True, False))
    assert dx is not None
    assert dweight is not None
    assert nothing is None
    return {"dx": dx, "dweight": dweight}


def deep_norm_grad() -> dict[str, Array]:
    x, gx, gamma, beta = numbers(24).reshape(3, 8), numbers(24, 1).reshape(3, 8), numbers(8, 2), numbers(8, 3)
    mean, rstd, y = reference.deep_norm(x, gx, beta, gamma, 0.5, 1e-5)
    dx, _, _, dgamma = reference.deep_norm_grad(y, x, gx, gamma, mean, rstd, 0.5)
    return {"y": y, "dx": dx, "dgamma": dgamma}


def add_layer_norm() -> dict[str, Array]:
    x1, x2, gamma, beta = numbers(24).reshape(3, 8), numbers(24, 1).reshape(3, 8), numbers(8, 2), numbers(8, 3)
    y, mean, rstd, x = reference.add_layer_norm(x1, x2, gamma, beta, None, 1e-5, True)
    assert x is not None
    dx, dgamma, _ = reference.add_layer_norm_grad(y, x1, x2, rstd, mean, gamma, x)
    return {"y": y, "x": x, "dx": dx, "dgamma": dgamma}


def group_norm_swish_grad() -> dict[str, Array]:
    x, gamma, beta = numbers(48).reshape(2, 4, 2, 3), np.array([1, 2, 1, 2]), np.array([0, 0, 1, -1])
    y, mean, rstd = reference.group_norm_swish(x, gamma, beta, 2, "NCHW", 1e-5, True, 1.0)
    results = reference.group_norm_swish_grad(y, mean, rstd, x, gamma, beta, 2, "NCHW", 1.0)
    return dict(zip(("dx", "dgamma", "dbeta"), results, strict=True))  # type: ignore[arg-type]


_IMAGES = (numbers(48).reshape(2, 4, 2, 3), np.array([1, 2, 1, 2]), np.array([0, 0, 1, -1]))


def group_norm_backward() -> dict[str, Array]:
    sizes = (2, 4, 6, 2)
    x, gamma, _ = _IMAGES
    y, mean, rstd = reference.group_norm(*_IMAGES, *sizes)
    results = reference.group_norm_backward(y, x, mean, rstd, gamma, *sizes)
    return {"y": y, **dict(zip(("dx", "dgamma", "dbeta"), results, strict=True))}  # type: ignore[dict-item]


def group_norm_silu() -> dict[str, Array]:
    activated, mean, rstd = reference.group_norm_silu(*_IMAGES, 2)
    return {"activated": activated, "plain": reference.group_norm(*_IMAGES, 2, 4, 6, 2)[0], "mean": mean, "rstd": rstd}


def scaled_masked_softmax_backward() -> dict[str, Array]:
    scores, grad = numbers(32).reshape(1, 2, 4, 4), numbers(32, 1).reshape(1, 2, 4, 4)
    future = np.triu(np.ones((1, 1, 4, 4), np.bool_), 1)
    y = reference.scaled_masked_softmax(scores, future, 0.5)
    return {"y": y, "out": reference.scaled_masked_softmax_backward(grad, y, future, 0.5)}


def add_rms_norm() -> dict[str, Array]:
    x1, x2, gamma = numbers(24).reshape(3, 8), numbers(24, 1).reshape(3, 8), numbers(8, 2)
    y, rstd, x = reference.add_rms_norm(x1, x2, gamma, 1e-6)
    dx, dgamma = reference.rms_norm_grad(y, x, rstd, gamma)
    return {"x": x, "dx": dx, "dgamma": dgamma, "y": y, "x2": x}


def gemma_rms_norm() -> dict[str, Array]:
    x, gamma = numbers(24).reshape(3, 8), numbers(8, 1)
    y, rstd = reference.gemma_rms_norm(x, gamma, 1e-6)
    return {"y": y, **dict(zip(("dx", "dgamma"), reference.rms_norm_grad(y, x, rstd, 1.0 + gamma), strict=True))}


def swi_glu() -> dict[str, Array]:
    x = numbers(64).reshape(4, 16)
    return {"of_columns": reference.swi_glu(x), "of_rows": reference.swi_glu(x, 0)}


def swi_glu_grad() -> dict[str, Array]:
    x = numbers(48).reshape(3, 16)
    y = reference.swi_glu(x)
    return {"y": y, "out": reference.swi_glu_grad(y, x)}


def rotary_position_embedding() -> dict[str, Array]:
    x = numbers(384).reshape(2, 3, 4, 16)
    angles = (np.arange(4)[:, None] * 100.0 ** (-(np.arange(16) % 8) / 8)).reshape(1, 1, 4, 16)
    by = (np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32))
    return {n: reference.rotary_position_embedding(x, *by, mode) for mode, n in enumerate(("halves", "neighbours"))}


def rotary_position_embedding_grad() -> dict[str, Array]:
    dy, x = (numbers(384, start).reshape(2, 3, 4, 16) for start in (0, 1))
    cos, sin = (numbers(64, start).reshape(1, 1, 4, 16) for start in (2, 3))
    gradients = reference.rotary_position_embedding_grad(dy, cos, sin, x)
    return dict(zip(("dx", "dcos", "dsin", "alone"), (*gradients, gradients[0]), strict=True))


def gelu_v2() -> dict[str, Array]:
    x = numbers(32).reshape(4, 8)
    return {"by_erf": reference.gelu_v2(x), "by_tanh": reference.gelu_v2(x, 1)}


def gelu_backward_v2() -> dict[str, Array]:
    x = numbers(32).reshape(4, 8)
    y = reference.gelu_v2(x, 1)
    return {"y": y, "dx": reference.gelu_backward_v2(y, x, "tanh")}


def softmax_backward() -> dict[str, Array]:
    y = reference.softmax(numbers(32).reshape(4, 8), 0)
    return {"y": y, "dx": reference.softmax_backward(numbers(32, 1).reshape(4, 8), y, 0)}


def log_softmax_backward() -> dict[str, Array]:
    y = reference.log_softmax(numbers(32).reshape(4, 8), 0)
    return {"y": y, "dx": reference.log_softmax_backward(numbers(32, 1).reshape(4, 8), y, 0)}


def cross_entropy_loss_grad() -> dict[str, Array]:
    scores, target = numbers(32).reshape(4, 8), np.array([3, 0, -100, 7])
    loss, log_prob, *_ = reference.cross_entropy_loss(scores, target)
    return {"loss": loss, "dscores": reference.cross_entropy_loss_grad(np.ones(1), log_prob, target)}


def apply_adam_w_v2() -> dict[str, Array]:
    var, grad = numbers(24), numbers(24, 1)
    m, v = np.zeros(24), np.zeros(24)
    for step in range(3):
        var, m, v, _ = reference.apply_adam_w_v2(var, m, v, None, grad, step, 0.1, 0.9, 0.99, 0.01, 1e-6)
    return {"var": var, "m": m, "v": v}


def nsa_compress_grad() -> dict[str, Array]:
    x, weight = numbers(96 * 16, 0, np.float16).reshape(96, 1, 16), numbers(32, 1, np.float16).reshape(32, 1)
    windows = {"compress_block_size": 32, "compress_stride": 16}
    y = reference.nsa_compress(x, weight, [32, 96], **windows).astype(np.float16)
    return {"dweight": reference.nsa_compress_grad(y, x, weight, [32, 96], **windows)[1]}


EXPECTED: dict[str, Callable[[], dict[str, Array]]] = {
    function.__name__: function
    for function in (
        rms_norm_grad,
        layer_norm_backward,
        add_layer_norm,
        deep_norm_grad,
        group_norm_swish_grad,
        group_norm_backward,
        group_norm_silu,
        scaled_masked_softmax_backward,
        add_rms_norm,
        gemma_rms_norm,
        swi_glu,
        swi_glu_grad,
        rotary_position_embedding,
        rotary_position_embedding_grad,
        gelu_v2,
        gelu_backward_v2,
        softmax_backward,
        log_softmax_backward,
        cross_entropy_loss_grad,
        apply_adam_w_v2,
        nsa_compress_grad,
    )
}


@pytest.mark.parametrize("name", EXPECTED)
def test_the_example_prints_what_the_reference_computes(name: str, tmp_path: Path) -> None:
    results, expected = printed(output(name, tmp_path)), EXPECTED[name]()
    assert list(results) == list(expected)
    half = name == "nsa_compress_grad"  # one rounding to 11 bits; the others print 5 decimals of a float
    for key, values in expected.items():
        assert np.abs(values).max() > 0.01
        np.testing.assert_allclose(results[key], values.ravel(), rtol=1e-3 if half else 1e-5, atol=1.2e-5)


def losses() -> Iterator[float]:
    """The training of train.cpp, in float64."""
    x, secret, weight = numbers(64 * 32).reshape(64, 32), numbers(32, 5), np.ones(32)
    target = reference.rms_norm(x, secret, 1e-6)[0]
    for _ in range(101):
        y, rstd = reference.rms_norm(x, weight, 1e-6)
        yield float(((y - target) ** 2).sum() / (2 * 64))
        weight -= 0.1 * reference.rms_norm_grad((y - target) / 64, x, rstd, weight)[1]


def test_the_one_that_trains_learns_as_the_reference_does(tmp_path: Path) -> None:
    lines = output("train", tmp_path).splitlines()
    steps = [re.fullmatch(r"step +(\d+)  loss (\S+)", line) for line in lines]
    assert [int(step[1]) for step in steps if step] == [0, 20, 40, 60, 80, 100]
    found, expected = [float(step[2]) for step in steps if step], list(losses())[::20]
    assert found == sorted(found, reverse=True)
    assert found[0] > 1
    assert found[-1] < 1e-6
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=2e-8)


def test_every_example_is_among_these() -> None:
    assert {program.stem for program in EXAMPLES.glob("*.cpp")} == {*EXPECTED, "train"}
