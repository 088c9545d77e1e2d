"""npu_apply_adam_w, which changes the parameter and its two moments in place.

    m   = beta1 * m + (1 - beta1) * g            g = -grad to maximize
    v   = beta2 * v + (1 - beta2) * g * g
    var = var * (1 - lr * weight_decay) - lr * m / (1 - beta1_power * beta1) / (sqrt(w) + epsilon)

w is u / (1 - beta2_power * beta2), and u is v, or max(max_grad_norm, v) with amsgrad. Documents:
aclnnApplyAdamW; torch_npu's schema.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

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
    """Changes var, m and v, which are ``out``, and returns them."""
    operator = "npu_apply_adam_w"
    if len(out) != 3:
        refuse(operator, "out", f"a list of {len(out)}", "holds var, m and v")
    var, m, v = out
    check_float(operator, grad=grad, max_grad_norm=max_grad_norm, var=var, m=m, v=v)
    for name, tensor in (("m", m), ("v", v), ("grad", grad)):
        check_shape(operator, name, tensor, var.shape, "var")
    if amsgrad and max_grad_norm is None:
        refuse(operator, "max_grad_norm", "None", "is needed with amsgrad")
    gradient = wide(-grad if maximize else grad)
    first = wide(m).mul(beta1).add_(gradient, alpha=1 - beta1)
    second = wide(v).mul(beta2).addcmul_(gradient, gradient, value=1 - beta2)
    largest = second
    if amsgrad and max_grad_norm is not None:
        check_shape(operator, "max_grad_norm", max_grad_norm, var.shape, "var")
        largest = torch.maximum(wide(max_grad_norm), second)
    root = largest.div(1 - beta2_power * beta2).sqrt_().add_(epsilon)
    step = lr / (1 - beta1_power * beta1)
    var.copy_(wide(var).mul(1 - lr * weight_decay).addcdiv_(first, root, value=-step))
    m.copy_(first)
    v.copy_(second)
    return var, m, v
