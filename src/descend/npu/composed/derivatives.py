"""Gradients by PyTorch's autograd, for operators whose gradient is itself an operator."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._C import DispatchKey

_AUTOGRAD = (DispatchKey.AutogradCPU, DispatchKey.AutogradFunctionality, DispatchKey.ADInplaceOrView)


def derivatives(
    function: Callable[..., Any], inputs: Sequence[Tensor | None], gradients: Sequence[Tensor | None]
) -> list[Tensor | None]:
    """The gradients of the inputs, from those of the results. None where an input, or a result's gradient, is None.

    A kernel runs where autograd records nothing. So the dispatcher is told to record the function's operators.
    """
    hidden = torch._C._dispatch_tls_local_exclude_set()
    for key in _AUTOGRAD:
        hidden = hidden.remove(key)
    guard = torch._C._ForceDispatchKeyGuard(torch._C._dispatch_tls_local_include_set(), hidden)
    with guard, torch.inference_mode(False), torch.enable_grad():
        leaves = [None if each is None else each.detach().clone().requires_grad_() for each in inputs]
        results = function(*leaves)
        results = (results,) if isinstance(results, Tensor) else results
        pairs = [
            (result, gradient.detach().clone().to(result.dtype))
            for result, gradient in zip(results, gradients, strict=True)
            if gradient is not None and result.requires_grad
        ]
        wanted = [leaf for leaf in leaves if leaf is not None]
        if not pairs:
            found = [torch.zeros_like(leaf) for leaf in wanted]
        else:
            of, given = zip(*pairs, strict=True)
            found = list(torch.autograd.grad(of, wanted, given, allow_unused=True, materialize_grads=True))
    remaining = iter(found)
    return [None if leaf is None else next(remaining).detach() for leaf in leaves]
