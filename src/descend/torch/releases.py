"""What differs among the releases of PyTorch: names of newer ones where they exist, else what stands in for them."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import _SingleLevelFunction
from torch.fx import _symbolic_trace
from torch.nn.modules import module as of_all_modules


def _any_requires_grad(*args: Any) -> bool:
    tensors = (v for a in args for v in (a if isinstance(a, (list, tuple)) else (a,)))
    return any(isinstance(v, Tensor) and v.requires_grad for v in tensors)


def _has_any_global_hook() -> bool:
    kinds = (
        "backward_pre_hooks",
        "backward_hooks",
        "forward_pre_hooks",
        "forward_hooks",
        "forward_hooks_always_called",
        "forward_hooks_with_kwargs",
    )
    return any(getattr(of_all_modules, f"_global_{kind}") for kind in kinds)


def _has_saved_tensors_hooks() -> bool:
    # Disabling hooks fails if some are set.
    before = torch._C._autograd._saved_tensors_hooks_get_disabled_error_message()
    if before is not None:
        return False
    try:
        torch._C._autograd._saved_tensors_hooks_disable("")
        return False
    except RuntimeError:
        return True
    finally:
        torch._C._autograd._saved_tensors_hooks_enable()


def has_saved_tensors_hooks() -> bool:
    """Whether default hooks on saved tensors are set: offloading, checkpoints."""
    if _top_hooks is None:
        return _has_saved_tensors_hooks()
    return _top_hooks(False) is not None


@cache
def apply_at_one_level(function: type[torch.autograd.Function]) -> Callable[..., Any]:
    """``function.apply`` without what it does at each level of torch.func's transforms."""
    if isinstance(vars(torch.autograd.Function)["apply"], classmethod):
        apply: Callable[..., Any] = super(torch.autograd.Function, function).apply  # type: ignore[misc]
        return apply
    # From 2.14 on the method that both classes share looks at the class that it is called for.
    methods = {name: value for name, value in vars(function).items() if isinstance(value, staticmethod)}
    one_level: Any = type(function.__name__, (_SingleLevelFunction,), methods)
    apply = one_level.apply
    return apply


def _is_fx_tracing() -> bool:
    return _symbolic_trace._is_fx_tracing_flag


is_fx_tracing: Callable[[], bool] = getattr(_symbolic_trace, "_get_is_fx_tracing", _is_fx_tracing)  # from 2.14 on
_top_hooks = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", None)
any_requires_grad: Callable[..., bool] = getattr(torch._C, "_any_requires_grad", _any_requires_grad)
has_any_global_hook: Callable[[], Any] = getattr(of_all_modules, "_has_any_global_hook", _has_any_global_hook)
