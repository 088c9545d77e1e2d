"""torch_npu's search for silent errors of a processor, which NPU_ASD_ENABLE turns on: _npu_silent_check and version 2.

``val`` is the norm of a gradient. It is compared with limits, and with the norms before: ``pre_val``, the one before,
and the least and the largest so far. There are two levels, 1 with the larger limits:

    val is not finite (level 1), or val > c_thresh, or, once c_min_steps norms were seen,
    |val - pre_val| > c_coeff * (max_val - min_val)

Level 1 is logged as an error, level 2 as a warning, by torch_npu's logger "torch_npu.silent_check". With
``npu_asd_detect`` 2 or 3 level 1 ends the training, and with 3 each norm that does not is logged as information.

A norm that is not finite is neither remembered nor counted. While all norms were equal, a change is not judged.

Documents: aclnnSilentCheck; torch_npu's NPU_ASD_ENABLE, NPU_ASD_UPPER_THRESH, NPU_ASD_SIGMA_THRESH; SilentCheck.
"""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass

import torch
from torch import Tensor

from descend.npu.composed.arithmetic import check_choice, check_dtype, check_float, check_one, check_shape

_LOGGER = logging.getLogger("torch_npu.silent_check")


class SilentError(RuntimeError):
    """A gradient that looks like an error of the processor."""


def _npu_silent_check(
    input_grad: Tensor,
    val: Tensor,
    pre_val: Tensor,
    min_val: Tensor,
    max_val: Tensor,
    val_counter: Tensor,
    c_min_steps: int,
    c_thresh_l1: float,
    c_coeff_l1: float,
    c_thresh_l2: float,
    c_coeff_l2: float,
) -> Tensor:
    """The level, 0 if nothing was found, shaped as ``val_counter``, in int32. It never ends a training.

    pre_val, min_val and max_val have one number each in float32, and are changed in place. The caller counts.
    """
    operator = "_npu_silent_check"
    held = {"pre_val": pre_val, "min_val": min_val, "max_val": max_val}
    for name, tensor in held.items():
        check_dtype(operator, name, tensor, torch.float32)
        check_one(operator, name, tensor)
    check_dtype(operator, "val_counter", val_counter, torch.int32)
    check_one(operator, "val_counter", val_counter)
    check_float(operator, val=val, input_grad=input_grad)
    check_one(operator, "val", val)
    number, seen = val.item(), _Seen(*(tensor.item() for tensor in held.values()))
    limits = _Limits(c_thresh_l1, c_coeff_l1, c_thresh_l2, c_coeff_l2)
    level, sentence = limits.judge(number, seen, may_jump=val_counter.item() >= c_min_steps)
    _report(level, sentence)
    if math.isfinite(number):
        for tensor, new in zip(held.values(), seen.and_then(number), strict=True):
            tensor.fill_(new)
    return torch.full_like(val_counter, level)


def _npu_silent_check_v2(
    val: Tensor,
    input_grad: Tensor,
    sfda: Tensor,
    step: Tensor,
    c_min_steps: int,
    c_thresh_l1: float,
    c_coeff_l1: float,
    c_thresh_l2: float,
    c_coeff_l2: float,
    npu_asd_detect: int,
) -> Tensor:
    """The level, 0 if nothing was found, [1] in int32. With ``npu_asd_detect`` above 1 level 1 raises SilentError.

    sfda holds pre_val, min_val and max_val [3] in float32, and step [1] in int64 how many finite norms there
    were. Both are changed in place.
    """
    operator = "_npu_silent_check_v2"
    check_float(operator, val=val, input_grad=input_grad)
    check_one(operator, "val", val)
    check_dtype(operator, "sfda", sfda, torch.float32)
    check_shape(operator, "sfda", sfda, [3], "pre_val, min_val and max_val")
    check_dtype(operator, "step", step, torch.int64)
    check_one(operator, "step", step)
    check_choice(operator, "npu_asd_detect", npu_asd_detect, 1, 2, 3)
    number, count = val.item(), step.item()
    seen = _Seen(*sfda.tolist()) if count else _Seen(number, number, number)
    limits = _Limits(c_thresh_l1, c_coeff_l1, c_thresh_l2, c_coeff_l2)
    level, sentence = limits.judge(number, seen, may_jump=count >= c_min_steps)
    _report(level, sentence)
    if level == 1 and npu_asd_detect > 1:
        raise SilentError(f"{sentence} NPU_ASD_ENABLE=1 only logs it.")
    if npu_asd_detect == 3:
        _LOGGER.info("The norm of a gradient is %s.", number)
    if math.isfinite(number):
        sfda.copy_(torch.tensor(seen.and_then(number)))
        step.add_(1)
    return torch.full(step.shape, level, dtype=torch.int32)


@dataclass(frozen=True)
class _Seen:
    """The norm before, and the least and the largest so far."""

    before: float
    least: float
    most: float

    def and_then(self, norm: float) -> tuple[float, float, float]:
        """The same after one more norm."""
        return norm, min(self.least, norm), max(self.most, norm)


@dataclass(frozen=True)
class _Limits:
    """Of level 1 and 2: of a norm itself, and of its change in units of the range of the norms before."""

    most_1: float
    change_1: float
    most_2: float
    change_2: float

    def judge(self, norm: float, seen: _Seen, may_jump: bool) -> tuple[int, str]:
        """The level, and a sentence that says why."""
        if not math.isfinite(norm):
            return 1, f"The norm of a gradient is {norm}, but must be finite."
        width = seen.most - seen.least
        for level, most, change in ((1, self.most_1, self.change_1), (2, self.most_2, self.change_2)):
            if norm > most:
                return level, f"The norm of a gradient is {norm}, but must be at most {most} (NPU_ASD_UPPER_THRESH)."
            if may_jump and width > 0 and abs(norm - seen.before) > change * width:
                return level, (
                    f"The norm of a gradient is {norm} after {seen.before}, but must change by at most {change} times "
                    f"the range of the norms before, {width} (NPU_ASD_SIGMA_THRESH)."
                )
        return 0, ""


def _report(level: int, sentence: str) -> None:
    if level:
        _LOGGER.log(logging.ERROR if level == 1 else logging.WARNING, "%s", sentence)
