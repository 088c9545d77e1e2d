"""What ``descend demo`` shows of each operator: one entry in DEMOS."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from descend.tensors import Tensors


@dataclass(frozen=True)
class Demo:
    """One operator's demonstration; its captured tensors are in ``examples/data/<operator>.safetensors``."""

    example: Callable[[], dict[str, Any]]
    """The arguments of the document's worked example, by the functional API's names."""
    attributes: Callable[[Tensors], dict[str, Any]] = lambda tensors: {}
    """The attributes that go with captured inputs, such as a normalized_shape."""


def _rms_norm_grad() -> dict[str, Any]:
    numbers = np.arange(1, 33, dtype=np.float32).reshape(2, 1, 16)
    return {"dy": numbers, "x": numbers, "rstd": np.array([1, 2], np.float32), "gamma": numbers[0, 0]}


DEMOS = {
    "rms_norm_grad": Demo(_rms_norm_grad),
}
