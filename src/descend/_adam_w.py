"""The numbers of a step of AdamW as torch_npu has them, with powers of the betas, in those of ApplyAdamWV2."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any


def of_powers(
    refuse: Callable[[str, Any, str], Any],
    beta1_power: float,
    beta2_power: float,
    lr: float,
    weight_decay: float,
    beta1: float,
    beta2: float,
    epsilon: float,
) -> tuple[float, float, float, float, float]:
    """``lr``, ``beta1``, ``beta2``, ``weight_decay`` and ``eps`` of a first step that does the same.

    The operator makes the powers of a number of steps, which need not be these. So its first step is taken, with
    numbers whose products with its powers are the same. ``refuse(name, value, rule)`` is called for a beta or power
    outside its range, and must raise.
    """
    for name, beta, power in (("beta1", beta1, beta1_power), ("beta2", beta2, beta2_power)):
        if not 0 <= beta < 1:
            refuse(name, beta, "is at least 0 and below 1")
        if not 0 <= power <= 1:
            refuse(f"{name}_power", power, "is at least 0 and at most 1")
    wider = math.sqrt((1 - beta2_power * beta2) / (1 - beta2))
    rate = lr * wider * (1 - beta1) / (1 - beta1_power * beta1)
    return rate, beta1, beta2, lr * weight_decay / rate if rate else 0.0, epsilon * wider


def refuse(name: str, value: Any, rule: str) -> None:
    """A ValueError for a number that `of_powers` does not take."""
    raise ValueError(f"{name} is {value}, but a number that {rule} is needed")
