"""A step of AdamW."""

from __future__ import annotations

import torch
from torch import Tensor

from descend.torch.definitions.tensors import power_of, widened


def apply_adam_w_v2(
    var: Tensor,
    m: Tensor,
    v: Tensor,
    max_grad_norm: Tensor | None,
    grad: Tensor,
    step: Tensor,
    lr: float = 0.001,
    beta1: float = 0.9,
    beta2: float = 0.999,
    weight_decay: float = 0.01,
    eps: float = 1e-8,
    amsgrad: bool = False,
    maximize: bool = False,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """``var``, ``m``, ``v`` and ``max_grad_norm`` after a step of AdamW."""
    t = widened(step).reshape([1] * var.dim()) + 1  # else no gradient in a batch of no calls
    first, second = (1 - power_of(beta, t) for beta in (beta1, beta2))
    g = -widened(grad) if maximize else widened(grad)
    mean = beta1 * widened(m) + (1 - beta1) * g
    square = beta2 * widened(v) + (1 - beta2) * g * g
    most = torch.maximum(widened(max_grad_norm), square) if amsgrad and max_grad_norm is not None else None
    root = ((square if most is None else most) / second) ** 0.5  # sqrt would keep its result, as exp does
    changed = (1 - lr * weight_decay) * widened(var) - lr * (mean / first) / (root + eps)
    largest = None if most is None or max_grad_norm is None else most.to(max_grad_norm.dtype)
    return changed.to(var.dtype), mean.to(m.dtype), square.to(v.dtype), largest
