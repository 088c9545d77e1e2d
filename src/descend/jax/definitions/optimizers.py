"""A step of AdamW."""

from __future__ import annotations

import jax.numpy as jnp

from descend.jax.definitions.arrays import Array, widened


def apply_adam_w_v2(
    var: Array,
    m: Array,
    v: Array,
    max_grad_norm: Array | None,
    grad: Array,
    step: Array,
    lr: float,
    beta1: float,
    beta2: float,
    weight_decay: float,
    eps: float,
    amsgrad: bool,
    maximize: bool,
) -> tuple[Array, Array, Array, Array | None]:
    """``var``, ``m``, ``v`` and ``max_grad_norm`` after a step of AdamW."""
    t = widened(step).reshape(()) + 1
    g = -widened(grad) if maximize else widened(grad)
    mean = beta1 * widened(m) + (1 - beta1) * g
    square = beta2 * widened(v) + (1 - beta2) * g * g
    most = jnp.maximum(widened(max_grad_norm), square) if amsgrad and max_grad_norm is not None else None
    root = jnp.sqrt((square if most is None else most) / (1 - beta2**t))
    changed = (1 - lr * weight_decay) * widened(var) - lr * (mean / (1 - beta1**t)) / (root + eps)
    largest = None if most is None or max_grad_norm is None else most.astype(max_grad_norm.dtype)
    return changed.astype(var.dtype), mean.astype(m.dtype), square.astype(v.dtype), largest
