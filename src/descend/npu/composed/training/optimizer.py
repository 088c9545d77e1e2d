"""Steps of Adam, which change the parameter and its two moments in place.

    m   = beta1 * m + (1 - beta1) * g            g = -grad to maximize
    v   = beta2 * v + (1 - beta2) * g * g

npu_apply_adam_w: var = var * (1 - lr * weight_decay) - lr * m / (1 - beta1_power * beta1) / (sqrt(w) + epsilon).
w is u / (1 - beta2_power * beta2), and u is v, or max(max_grad_norm, v) with amsgrad.

npu_apply_adam: var = var - lr * sqrt(1 - beta2_power) / (1 - beta1_power) * n / (sqrt(v) + epsilon). n is m, or
beta1 * m + (1 - beta1) * g with use_nesterov.

npu_bert_apply_adam: var = var - lr * (m / (sqrt(v) + epsilon) + weight_decay * var), and g is
grad * min(1, max_grad_norm / global_grad_norm) if both are positive. In adam_mode 1 g is grad, and step_size takes the
place of lr before m. Documents: aclnnApplyAdamW; aclnnApplyAdamD; ApplyAdamV2; torch_npu's schemas.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import torch
from torch import Tensor

import descend
from descend._adam_w import of_powers
from descend.npu.composed.arithmetic import check_float, check_shape, wide
from descend.npu.composed.refusal import refuse

Number = int | float


def npu_apply_adam_w_out(
    beta1_power: Number,
    beta2_power: Number,
    lr: Number,
    weight_decay: Number,
    beta1: Number,
    beta2: Number,
    epsilon: Number,
    grad: Tensor,
    max_grad_norm: Tensor | None,
    amsgrad: bool | None,
    maximize: bool | None,
    *,
    out: Sequence[Tensor],
) -> tuple[Tensor, Tensor, Tensor]:
    """Changes var, m and v, which are ``out``, and returns them: one call of Descend's ApplyAdamWV2."""
    operator = "npu_apply_adam_w"
    var, m, v = _checked(operator, grad, out)
    if amsgrad and max_grad_norm is None:
        refuse(operator, "max_grad_norm", "None", "must be given with amsgrad")
    if amsgrad and max_grad_norm is not None:
        check_float(operator, max_grad_norm=max_grad_norm)
        check_shape(operator, "max_grad_norm", max_grad_norm, var.shape, "var")
    refusing = functools.partial(refuse, operator)
    numbers = of_powers(refusing, beta1_power, beta2_power, lr, weight_decay, beta1, beta2, epsilon)
    given = (var, m, v, max_grad_norm if amsgrad else None, grad, torch.tensor(0))
    descend.apply_adam_w_v2(*given, *numbers, bool(amsgrad), bool(maximize), out=(var, m, v, None))
    return var, m, v


def npu_apply_adam_out(
    beta1_power: Number,
    beta2_power: Number,
    lr: Number,
    beta1: Number,
    beta2: Number,
    epsilon: Number,
    grad: Tensor,
    use_locking: bool | None,
    use_nesterov: bool | None,
    *,
    out: Sequence[Tensor],
) -> tuple[Tensor, Tensor, Tensor]:
    """Changes var, m and v, which are ``out``, and returns them."""
    var, m, v = _checked("npu_apply_adam", grad, out)
    gradient = wide(grad)
    first, second = _moments(m, v, gradient, beta1, beta2)
    # A tensor divides by zero where the powers are 1, as the formula does.
    step = lr * (1 - torch.tensor(beta2_power, dtype=first.dtype)).sqrt() / (1 - beta1_power)
    ahead = first * beta1 + gradient * (1 - beta1) if use_nesterov else first
    return _write(out, wide(var) - step * ahead / (second.sqrt() + epsilon), first, second)


def npu_bert_apply_adam_out(
    lr: Number,
    beta1: Number,
    beta2: Number,
    epsilon: Number,
    grad: Tensor,
    max_grad_norm: Number,
    global_grad_norm: Number,
    weight_decay: Number,
    step_size: Number | None = None,
    adam_mode: int = 0,
    *,
    out: Sequence[Tensor],
) -> tuple[Tensor, Tensor, Tensor]:
    """Changes var, m and v, which are ``out``, and returns them."""
    operator = "npu_bert_apply_adam"
    if adam_mode not in (0, 1):
        refuse(operator, "adam_mode", adam_mode, "must be 0 (Adam) or 1 (mBART's)")
    var, m, v = _checked(operator, grad, out)
    clips = adam_mode == 0 and max_grad_norm > 0 and global_grad_norm > 0
    gradient = wide(grad) * (min(1.0, max_grad_norm / global_grad_norm) if clips else 1.0)
    first, second = _moments(m, v, gradient, beta1, beta2)
    step = lr if adam_mode == 0 or step_size is None else step_size
    changed = wide(var).mul(1 - lr * weight_decay).addcdiv_(first, second.sqrt().add_(epsilon), value=-step)
    return _write(out, changed, first, second)


def _checked(operator: str, grad: Tensor, out: Sequence[Tensor]) -> Sequence[Tensor]:
    """var, m and v."""
    if len(out) != 3:
        refuse(operator, "out", f"a list of {len(out)}", "must hold var, m and v")
    var, m, v = out
    check_float(operator, grad=grad, var=var, m=m, v=v)
    for name, tensor in (("m", m), ("v", v), ("grad", grad)):
        check_shape(operator, name, tensor, var.shape, "var")
    return out


def _moments(m: Tensor, v: Tensor, gradient: Tensor, beta1: Number, beta2: Number) -> tuple[Tensor, Tensor]:
    return (
        wide(m).mul(beta1).add_(gradient, alpha=1 - beta1),
        wide(v).mul(beta2).addcmul_(gradient, gradient, value=1 - beta2),
    )


def _write(out: Sequence[Tensor], *values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    var, m, v = (tensor.copy_(value) for tensor, value in zip(out, values, strict=True))
    return var, m, v


def apply_fused_ema_adam(
    grad: Tensor,
    var: Tensor,
    m: Tensor,
    v: Tensor,
    s: Tensor,
    step: Tensor,
    lr: float,
    ema_decay: float,
    beta1: float,
    beta2: float,
    eps: float,
    mode: int,
    bias_correction: bool,
    weight_decay: float,
) -> None:
    """aclnnApplyFusedEmaAdam changes var, m, v and s in place. ``step`` has one number, that of this step, from 1.

    Mode 0 is Adam, and the weight decay is a part of the gradient. Mode 1 is AdamW. ``s`` is an average of var:

        s = ema_decay * s + (1 - ema_decay) * var
    """
    operator = "aclnnApplyFusedEmaAdam"
    check_float(operator, grad=grad, var=var, m=m, v=v, s=s)
    for name, tensor in {"var": var, "m": m, "v": v, "s": s}.items():
        check_shape(operator, name, tensor, grad.shape, "grad")
    if step.numel() != 1 or step.dtype.is_floating_point:
        refuse(operator, "step", f"of shape {list(step.shape)} and {step.dtype}", "must be one integer")
    if mode not in (0, 1):
        refuse(operator, "mode", mode, "must be 0 or 1")
    count = int(step) if bias_correction else 1
    if count < 1:
        refuse(operator, "step", count, "must be at least 1 with biasCorrection")
    g = wide(grad) if mode == 1 else wide(grad) + weight_decay * wide(var)
    first = beta1 * wide(m) + (1 - beta1) * g
    second = beta2 * wide(v) + (1 - beta2) * g * g
    unbiased = [
        each / (1 - beta**count) if bias_correction else each for each, beta in ((first, beta1), (second, beta2))
    ]
    update = unbiased[0] / (unbiased[1].sqrt() + eps)
    if mode == 1:
        update += weight_decay * wide(var)
    new = wide(var) - lr * update
    s.copy_(ema_decay * wide(s) + (1 - ema_decay) * new)
    for tensor, result in ((var, new), (m, first), (v, second)):
        tensor.copy_(result)
