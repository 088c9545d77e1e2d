"""A step of AdamW, as new arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from jax import Array

from descend.jax import definitions
from descend.jax.batching import batch_first
from descend.jax.library import Operator, Results, Values, call_each

_STEP = Operator(
    "apply_adam_w_v2", definitions.apply_adam_w_v2, lambda values: (True, True, True, bool(values["amsgrad"]))
)


def apply_adam_w_v2(
    var: Array,
    m: Array,
    v: Array,
    max_grad_norm: Array | None,
    grad: Array,
    step: Array,
    lr: float = 0.001,
    beta1: float = 0.9,
    beta2: float = 0.999,
    weight_decay: float = 0.01,
    eps: float = 1e-8,
    amsgrad: bool = False,
    maximize: bool = False,
) -> tuple[Array, Array, Array, Array | None]:
    """A step of AdamW. Differentiable in all arrays::

        g   = grad, or -grad with maximize          t = step + 1
        m   = beta1 * m + (1 - beta1) * g
        v   = beta2 * v + (1 - beta2) * g^2
        u   = v, or with amsgrad max_grad_norm = max(max_grad_norm, v)
        var = (1 - lr * weight_decay) * var - lr * (m / (1 - beta1^t)) / (sqrt(u / (1 - beta2^t)) + eps)

    Shapes: ``m``, ``v``, ``grad`` and ``max_grad_norm``, which may be None without ``amsgrad``, as ``var``; any
    floating dtypes. ``step`` has one element, the steps before this one. Returns the new ``var``, ``m``, ``v``, each
    like the old one, and ``max_grad_norm``, which is None without ``amsgrad``. ``lr`` and the other numbers must be
    known when the call is traced.

    Raises AclnnError (a ValueError) where shapes or dtypes do not fit. Source: aclnnApplyAdamWV2.
    """
    new_var, new_m, new_v, most = _STEP(
        var=var,
        m=m,
        v=v,
        max_grad_norm=max_grad_norm,
        grad=grad,
        step=step,
        lr=lr,
        beta1=beta1,
        beta2=beta2,
        weight_decay=weight_decay,
        eps=eps,
        amsgrad=amsgrad,
        maximize=maximize,
    )
    return new_var, new_m, new_v, most


@_STEP.batched
def _batched(size: int, values: Values, dims: Mapping[str, int]) -> tuple[Results, Sequence[int]]:
    if "step" in dims:
        return call_each(_STEP, values, dims)
    names = [name for name in ("var", "m", "v", "max_grad_norm", "grad") if values[name] is not None]
    first = {name: batch_first(values[name], dims.get(name), size) for name in names}
    return _STEP(**values | first), (0, 0, 0, 0)
