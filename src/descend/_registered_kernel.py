"""The kernel that an operator of PyTorch has for a dispatch key, for those who register another one in its place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._C import _dispatch_has_kernel_for_dispatch_key as _has


def registered_kernel(operator: Any, key: str) -> Callable[..., Any] | None:
    """What calls the kernel of an ``OpOverload``, with the keys of a call before its arguments.

    PyTorch 2.7 does not give it. There a kernel of the CPU that composes the operator of others, without a look at the
    keys, is reached through the dispatcher; for any other this returns None.
    """
    if hasattr(torch.library, "get_kernel"):
        found: Callable[..., Any] = torch.library.get_kernel(operator, key).call_boxed
        return found
    name = operator.name()
    composes = key == "CPU" or (key == "AutogradCPU" and _has(name, "CompositeImplicitAutograd"))
    if _has(name, "CPU") or not composes:
        return None
    only = torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, key))
    return lambda keys, *args, **named: operator.redispatch(only, *args, **named)
