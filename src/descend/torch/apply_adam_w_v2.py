"""A step of AdamW: as a function of tensors, and in place. The optimizer is `descend.torch.AdamW`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

import descend
from descend.torch.batching import batch_first, call_each
from descend.torch.definitions import apply_adam_w_v2 as _definition
from descend.torch.derivatives import differentiate_backward
from descend.torch.library import LIBRARY, Operator, follow_threads
from descend.torch.releases import any_requires_grad
from descend.torch.sharding import Split, sharded

_STEP = Operator("apply_adam_w_v2")
LIBRARY.define(
    "apply_adam_w_v2_(Tensor(a!) var, Tensor(b!) m, Tensor(c!) v, Tensor(d!)? max_grad_norm, Tensor grad, Tensor step, "
    "float lr=0.001, float beta1=0.9, float beta2=0.999, float weight_decay=0.01, float eps=1e-08, "
    "bool amsgrad=False, bool maximize=False) -> ()",
    tags=torch.Tag.pt2_compliant_tag,
)


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
    """A step of AdamW, as new tensors. Differentiable in all tensors::

        g   = grad, or -grad with maximize          t = step + 1
        m   = beta1 * m + (1 - beta1) * g
        v   = beta2 * v + (1 - beta2) * g^2
        u   = v, or with amsgrad max_grad_norm = max(max_grad_norm, v)
        var = (1 - lr * weight_decay) * var - lr * (m / (1 - beta1^t)) / (sqrt(u / (1 - beta2^t)) + eps)

    Shapes: ``m``, ``v``, ``grad`` and ``max_grad_norm``, which may be None without ``amsgrad``, as ``var``; any
    floating dtypes. ``step`` has one element, the steps before this one. Returns the new ``var``, ``m``, ``v``, each
    like the old one, and ``max_grad_norm``, which is None without ``amsgrad``.

    Raises AclnnError (a ValueError) where shapes or dtypes do not fit. Source: aclnnApplyAdamWV2.
    """
    results: tuple[Tensor, Tensor, Tensor, Tensor | None] = _STEP(
        var, m, v, max_grad_norm, grad, step, lr, beta1, beta2, weight_decay, eps, amsgrad, maximize
    )
    return results


def apply_adam_w_v2_(
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
) -> None:
    """`apply_adam_w_v2` in place: changes ``var``, ``m``, ``v`` and, with ``amsgrad``, ``max_grad_norm``.

    Raises AclnnError as that does, and RuntimeError where a gradient would be lost: call it under ``torch.no_grad()``.
    """
    torch.ops.descend.apply_adam_w_v2_(
        var, m, v, max_grad_norm, grad, step, lr, beta1, beta2, weight_decay, eps, amsgrad, maximize
    )


@_STEP.fake
def _fake(
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
) -> tuple[Tensor | None, ...]:
    given = (var, m, v, max_grad_norm if amsgrad else None)
    return tuple(None if t is None else t.new_empty(t.shape) for t in given)


differentiate_backward(_STEP, _definition)


@_STEP.batched
def _batched(size: int, dims: list[int | None], *args: Any) -> tuple[Any, Any]:
    if dims[5] is not None:
        return call_each(_STEP, size, dims, args)
    tensors = (batch_first(tensor, dim, size) for tensor, dim in zip(args[:5], dims, strict=False))
    results = _STEP.overload(*tensors, *args[5:])
    return results, tuple(None if r is None else 0 for r in results)


@sharded(_STEP)
def _sharded(
    var: Tensor,
    m: Tensor,
    v: Tensor,
    max_grad_norm: Tensor | None,
    grad: Tensor,
    step: Tensor,
    lr: float,
    beta1: float,
    beta2: float,
    weight_decay: float,
    eps: float,
    amsgrad: bool,
    maximize: bool,
) -> Iterable[Split]:
    for d in range(var.dim()):
        yield Split((d, d, d, None if max_grad_norm is None else d, d), (d, d, d, d if amsgrad else None))


def update(var: Tensor, m: Tensor, v: Tensor, max_grad_norm: Tensor | None, *args: Any) -> None:
    """`apply_adam_w_v2_` without the dispatcher."""
    follow_threads()
    descend.apply_adam_w_v2(var, m, v, max_grad_norm, *args, out=(var, m, v, max_grad_norm))


def _update_autograd(keyset: Any, *args: Any) -> None:
    if torch.is_grad_enabled() and any_requires_grad(*args):
        raise RuntimeError(
            "apply_adam_w_v2_ changes tensors in place and has no gradient: call it under torch.no_grad(), or "
            "apply_adam_w_v2, which makes new ones."
        )
    with torch._C._AutoDispatchBelowAutograd():
        torch.ops.descend.apply_adam_w_v2_.default.redispatch(keyset & torch._C._after_autograd_keyset, *args)


LIBRARY.impl("apply_adam_w_v2_", update, "CPU")
LIBRARY.impl("apply_adam_w_v2_", update, "CUDA")
LIBRARY.impl("apply_adam_w_v2_", lambda *_: None, "Meta")
LIBRARY.impl("apply_adam_w_v2_", _update_autograd, "Autograd", with_keyset=True)
