"""torch_npu's search for silent errors: each level and limit, against a definition in float64, and in a training."""

from __future__ import annotations

import logging
import math
import os
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from descend.npu.composed.training import silent_check  # noqa: E402
from test_npu_composed import refused  # noqa: E402

LIMITS = {"c_thresh_l1": 1e6, "c_coeff_l1": 100.0, "c_thresh_l2": 1e4, "c_coeff_l2": 10.0}
STEPS = 3


def defined(norms: Sequence[float], first: Sequence[float] | None = None) -> tuple[list[int], list[float]]:
    """The level of each norm; then the one before, the least and the largest. ``first`` is what they begin with."""
    levels, seen = [], list(first) if first else []
    count = 0
    for norm in norms:
        level = 0
        if not math.isfinite(norm):
            levels.append(1)
            continue
        seen = seen or [norm] * 3
        before, least, most = seen
        for number, thresh, coeff in ((2, 1e4, 10.0), (1, 1e6, 100.0)):
            jumps = count >= STEPS and most > least and abs(norm - before) / (most - least) > coeff
            level = number if norm > thresh or jumps else level
        levels.append(level)
        count += 1
        seen = [norm, min(least, norm), max(most, norm)]
    return levels, seen


SERIES = [
    [1.0, 2.0, 3.0, 4.0, 3.5],
    [1.0, 1.5, 1.25, 20.0, 3000.0, 1.0],  # changes of 37.5 and 157 times the range before
    [1.0, 1.0, 1.0, 1.0, 500.0, 2.0],  # all equal so far: no change is judged
    [5.0, 1e4, 10001.0, 1e6, 1e6 + 1, 3.0],  # limits themselves are allowed
    [1.0, 2.0, math.nan, 2.0, math.inf, 4.0],
    [math.nan, 5.0, 6.0, 7.0, 500.0],  # what is not finite leaves no trace, also as the first
    [1.0, 1000.0, 1.0, 2.0],  # before the least number of steps no change is judged
]


@pytest.mark.parametrize("norms", SERIES, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_levels(norms: list[float], dtype: Any, caplog: pytest.LogCaptureFixture) -> None:
    logger = logging.getLogger("torch_npu.silent_check")
    logger.addHandler(caplog.handler)
    try:
        sfda, step, grad = torch.zeros(3), torch.zeros(1, dtype=torch.int64), torch.ones(2, 2)
        pre_val, min_val, max_val = torch.tensor(0.0), torch.tensor(1e10), torch.tensor(-1e10)
        found, older = [], []
        for norm in norms:
            val = torch.tensor(norm, dtype=dtype)
            count = step.item()
            result = silent_check._npu_silent_check_v2(val, grad, sfda, step, STEPS, *LIMITS.values(), 1)
            assert (result.shape, result.dtype) == ((1,), torch.int32)
            found.append(result.item())
            counter = torch.tensor(count, dtype=torch.int32)
            one = silent_check._npu_silent_check(grad, val, pre_val, min_val, max_val, counter, STEPS, *LIMITS.values())
            assert (one.shape, one.dtype) == ((), torch.int32)
            older.append(one.item())
    finally:
        logger.removeHandler(caplog.handler)
    levels, seen = defined(norms)
    assert found == older == levels
    assert sfda.tolist() == [pre_val.item(), min_val.item(), max_val.item()] == seen
    assert step.item() == sum(map(math.isfinite, norms))
    logged = [record.levelno for record in caplog.records]
    wanted = [logging.ERROR if level == 1 else logging.WARNING for level in levels if level for _ in range(2)]
    assert logged == wanted


def test_the_end_of_a_training() -> None:
    """With npu_asd_detect 2 and 3 level 1 is an exception, and changes nothing; level 2 is none."""
    for detect in (2, 3):
        for norm, sentence in (
            (math.nan, "The norm of a gradient is nan, but must be finite."),
            (2e6, r"is 2000000\.0, but must be at most 1000000\.0 \(NPU_ASD_UPPER_THRESH\)\."),
            (
                500.0,
                r"is 500\.0 after 1\.0, but must change by at most 100\.0 times the range of the norms before, 2\.0",
            ),
        ):
            sfda, step = torch.tensor([1.0, 1.0, 3.0]), torch.tensor([STEPS])
            given = (torch.ones(2), sfda, step, STEPS, *LIMITS.values(), detect)
            with pytest.raises(silent_check.SilentError, match=sentence):
                silent_check._npu_silent_check_v2(torch.tensor(norm), *given)
            assert (sfda.tolist(), step.item()) == ([1.0, 1.0, 3.0], STEPS)
            assert silent_check._npu_silent_check_v2(torch.tensor(30.0), *given).item() == 2


def test_what_is_refused() -> None:
    val, grad, sfda, step = torch.tensor(1.0), torch.ones(2), torch.zeros(3), torch.zeros(1, dtype=torch.int64)
    for sentence, tensors, detect in (
        ("val is of shape [2], but must have one number.", (grad, grad, sfda, step), 1),
        ("val is torch.int64, but must be float16, bfloat16, float32 or float64.", (step, grad, sfda, step), 1),
        ("input_grad is torch.int64", (val, step, sfda, step), 1),
        ("sfda is torch.float16, but must be float32.", (val, grad, sfda.half(), step), 1),
        ("sfda is of shape [2], but must have that of pre_val, min_val and max_val, [3].", (val, grad, grad, step), 1),
        ("step is torch.int32, but must be int64.", (val, grad, sfda, step.int()), 1),
        ("npu_asd_detect is 0, but must be 1 or 2 or 3.", (val, grad, sfda, step), 0),
    ):
        call = (*tensors, STEPS, *LIMITS.values(), detect)
        refused(f"_npu_silent_check_v2: {sentence}", silent_check._npu_silent_check_v2, *call)
    held = (torch.zeros(()), torch.zeros(()), torch.zeros(()), torch.zeros((), dtype=torch.int32))
    for sentence, place, tensor in (
        ("pre_val is torch.float64, but must be float32.", 0, held[0].double()),
        ("max_val is of shape [2], but must have one number.", 2, grad),
        ("val_counter is torch.int64, but must be int32.", 3, step),
    ):
        changed = [*held[:place], tensor, *held[place + 1 :]]
        call = (grad, val, *changed, STEPS, *LIMITS.values())
        refused(f"_npu_silent_check: {sentence}", silent_check._npu_silent_check, *call)


PROGRAM = """
import torch, torch_npu
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.LayerNorm(8), torch.nn.Linear(8, 8)).npu()
print(torch_npu._C._get_silent_check_version(), flush=True)
for step in range(4):
    loss = model(torch.randn(4, 8).npu()).square().mean() * (float("nan") if step == 3 else 1.0)
    loss.backward()
    model.zero_grad()
seen, = torch_npu.asd.asd._silent_fault_detector_v2.silent_data_dict.values()
print(seen.step_tensor.item(), flush=True)
"""


@pytest.mark.parametrize("enabled", ["1", "2", "3"])
def test_a_training_that_is_watched(enabled: str) -> None:
    """Of a gradient that is not a number, 1 logs, and 2 and 3 end the training."""
    pytest.importorskip("torch_npu")
    watched = {**os.environ, "NPU_ASD_ENABLE": enabled}
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=watched, capture_output=True, text=True, check=False)
    sentence = "The norm of a gradient is nan, but must be finite."
    assert sentence in done.stderr
    if enabled == "1":
        assert done.stdout == "2\n3\n", done.stderr
    else:
        assert done.stdout.startswith("2\n[ERROR]"), done.stdout
        assert f"SilentError: {sentence} NPU_ASD_ENABLE=1 only logs it." in done.stderr
        assert done.returncode == 1
