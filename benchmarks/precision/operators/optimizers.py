"""A step of AdamW."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

import descend
from benchmarks.precision.operators.operator import ROWS, Draw, Golden, Inputs, Operator, Shape, exact, row_of
from descend import reference

ADAM_W: dict[str, Any] = {"lr": 1e-3, "beta1": 0.9, "beta2": 0.999, "weight_decay": 1e-2, "eps": 1e-8}
STEPS = 9
"""Taken before."""


def adam_w_inputs(shape: Shape, draw: Draw) -> Inputs:
    """A weight, and moments as large as its gradients make them."""
    var, m, grad = draw.data(*shape), draw.gradient(*shape), draw.gradient(*shape)
    return {"var": var, "m": m, "v": draw.gradient(*shape).float().square().to(m.dtype), "grad": grad}


def ours_adam_w(var: Tensor, m: Tensor, v: Tensor, grad: Tensor) -> tuple[Tensor, ...]:
    results: tuple[Tensor, ...] = descend.apply_adam_w_v2(var, m, v, None, grad, torch.tensor(STEPS), **ADAM_W)
    return results[:3]


def torch_adam_w(var: Tensor, m: Tensor, v: Tensor, grad: Tensor) -> tuple[Tensor, ...]:
    """PyTorch's fused kernel."""
    var, m, v = var.clone(), m.clone(), v.clone()
    step = torch.tensor(STEPS + 1.0)
    torch._fused_adamw_([var], [grad], [m], [v], [], [step], **ADAM_W, amsgrad=False, maximize=False)
    return var, m, v


def golden_adam_w(var: Tensor, m: Tensor, v: Tensor, grad: Tensor) -> dict[str, Golden]:
    """The sums of terms of either sign cross 0."""
    p, mean, square, _ = reference.apply_adam_w_v2(exact(var), exact(m), exact(v), None, exact(grad), STEPS, **ADAM_W)
    terms = np.maximum(0.9 * np.abs(exact(m)), 0.1 * np.abs(exact(grad)))
    return {"var": Golden(p, np.abs(exact(var))), "m": Golden(mean, terms), "v": Golden(square)}


OPERATORS: tuple[Operator, ...] = (
    Operator(
        "apply_adam_w_v2", ("var", "m", "v"), ("var", "m", "v"), ROWS, adam_w_inputs,
        ours_adam_w, torch_adam_w, golden_adam_w, row_of,
    ),
)  # fmt: skip
