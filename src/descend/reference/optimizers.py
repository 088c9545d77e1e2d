"""A step of AdamW."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from descend.reference.arrays import Float64, check_like, float64


@np.errstate(all="ignore")
def apply_adam_w_v2(
    var: npt.ArrayLike,
    m: npt.ArrayLike,
    v: npt.ArrayLike,
    max_grad_norm: npt.ArrayLike | None,
    grad: npt.ArrayLike,
    step: npt.ArrayLike,
    lr: float = 0.001,
    beta1: float = 0.9,
    beta2: float = 0.999,
    weight_decay: float = 0.01,
    eps: float = 1e-8,
    amsgrad: bool = False,
    maximize: bool = False,
) -> tuple[Float64, Float64, Float64, Float64 | None]:
    """A step of AdamW, as aclnnApplyAdamWV2 defines it.

    Shapes: ``m``, ``v``, ``grad`` and, with ``amsgrad``, ``max_grad_norm`` as ``var``; ``step`` of one element, the
    steps before this one. Returns the new ``var``, ``m``, ``v`` and, with ``amsgrad``, ``max_grad_norm``, float64::

        m   = beta1 * m + (1 - beta1) * g                 g = grad, or -grad with maximize
        v   = beta2 * v + (1 - beta2) * g^2               u = v, or the largest v so far; t = step + 1
        var = (1 - lr * weight_decay) * var - lr * (m / (1 - beta1^t)) / (sqrt(u / (1 - beta2^t)) + eps)

    Raises ValueError where the shapes do not fit.
    """
    var, m, v, grad = float64(var), float64(m), float64(v), float64(grad)
    for name, array in (("m", m), ("v", v), ("grad", grad)):
        check_like(name, array, "var", var)
    t = float64(step).item() + 1
    g = -grad if maximize else grad
    m = beta1 * m + (1 - beta1) * g
    v = beta2 * v + (1 - beta2) * g * g
    largest = None
    if amsgrad and max_grad_norm is not None:
        largest = float64(max_grad_norm)
        check_like("max_grad_norm", largest, "var", var)
        largest = np.maximum(largest, v)
    betas = float64([beta1, beta2])
    # 1 - beta^t: of a beta near 1 the difference would have few digits left. One below 0 has no logarithm.
    correction1, correction2 = np.where(betas > 0, 0 - np.expm1(t * np.log(betas)), 1 - betas**t)
    root = np.sqrt(v if largest is None else largest) / np.sqrt(correction2)  # of two negative numbers NaN
    moved: Float64 = (1 - lr * weight_decay) * var - lr * (m / correction1) / (root + eps)
    return moved, m, v, largest
