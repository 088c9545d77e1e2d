"""Golden values of cross entropy and of AdamW."""

from __future__ import annotations

from typing import Any

import numpy as np

from descend import reference
from descend._adam_w import of_powers, refuse
from descend.golden._results import Array, Results, rounded


def cross_entropy_loss_golden(
    input: Array,
    target: Array,
    weight: Array | None = None,
    *,
    reduction: str = "mean",
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    lse_square_scale_for_zloss: float = 0.0,
    return_zloss: bool = False,
    **given: Any,
) -> Results:
    """``loss, log_prob, zloss, lse_for_zloss`` of CrossEntropyLoss.

    zloss is None without ``return_zloss``, lse_for_zloss where its scale is 0.
    """
    results = reference.cross_entropy_loss(
        input, target, weight, reduction, ignore_index, label_smoothing, lse_square_scale_for_zloss, return_zloss
    )
    return rounded(results, [input.dtype] * 4, given)


def cross_entropy_loss_grad_golden(
    grad_loss: Array,
    log_prob: Array,
    target: Array,
    weight: Array | None = None,
    grad_zloss: Array | None = None,
    lse_for_zloss: Array | None = None,
    *,
    reduction: str = "mean",
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    lse_square_scale_for_zloss: float = 0.0,
    **given: Any,
) -> Results:
    """``x_grad`` of CrossEntropyLossGrad; a scale of the zloss other than 0 needs ``lse_for_zloss``."""
    if lse_square_scale_for_zloss and lse_for_zloss is None:
        raise ValueError(f"lse_square_scale_for_zloss is {lse_square_scale_for_zloss}, but lse_for_zloss is absent.")
    lse = None if lse_for_zloss is None else np.reshape(lse_for_zloss, -1)
    attributes = reduction, ignore_index, label_smoothing, lse_square_scale_for_zloss
    result = reference.cross_entropy_loss_grad(grad_loss, log_prob, target, weight, grad_zloss, lse, *attributes)
    return rounded([result], [log_prob.dtype], given)


def apply_adam_w_v2_golden(
    var: Array,
    m: Array,
    v: Array,
    grad: Array,
    step: Array,
    max_grad_norm: Array | None = None,
    *,
    lr: float = 0.1,
    beta1: float = 0.1,
    beta2: float = 0.1,
    weight_decay: float = 0.1,
    eps: float = 1e-8,
    amsgrad: bool = False,
    maximize: bool = False,
    **given: Any,
) -> Results:
    """``var, m, v, max_grad_norm`` of ApplyAdamWV2, the inputs that it changes; its definition has no outputs.

    Without ``amsgrad`` max_grad_norm stays as it is.
    """
    _check_amsgrad(amsgrad, max_grad_norm)
    attributes = lr, beta1, beta2, weight_decay, eps, amsgrad, maximize
    *moved, largest = reference.apply_adam_w_v2(var, m, v, max_grad_norm, grad, step, *attributes)
    if max_grad_norm is None:
        max_grad_norm = var
    elif largest is None:
        largest = max_grad_norm.astype(np.float64)
    return rounded([*moved, largest], [var.dtype, m.dtype, v.dtype, max_grad_norm.dtype], given)


def apply_adam_w_golden(
    var: Array,
    m: Array,
    v: Array,
    beta1_power: Array,
    beta2_power: Array,
    lr: Array,
    weight_decay: Array,
    beta1: Array,
    beta2: Array,
    epsilon: Array,
    grad: Array,
    max_grad_norm: Array | None = None,
    *,
    amsgrad: bool = False,
    maximize: bool = False,
    **given: Any,
) -> Results:
    """``var, m, v`` of ApplyAdamW, whose numbers are arrays of one element; the powers are those before this step."""
    _check_amsgrad(amsgrad, max_grad_norm)
    numbers = [float(a.item()) for a in (beta1_power, beta2_power, lr, weight_decay, beta1, beta2, epsilon)]
    attributes = *of_powers(refuse, *numbers), amsgrad, maximize
    *moved, _ = reference.apply_adam_w_v2(var, m, v, max_grad_norm, grad, 0, *attributes)
    return rounded(moved, [var.dtype, m.dtype, v.dtype], given)


def _check_amsgrad(amsgrad: bool, max_grad_norm: Array | None) -> None:
    if amsgrad and max_grad_norm is None:
        raise ValueError("amsgrad is true, but max_grad_norm is absent.")
