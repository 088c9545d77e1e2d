"""How `patch` finds out what a module's class computes: it runs copies of modules on small inputs and compares."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import unset_fake_temporarily

from descend import _cuda
from descend.torch import forms

_COMMON = frozenset(vars(nn.Module()))


def obstacle(module: nn.Module, calls: bool = True) -> str | None:
    """Why another forward cannot take the place of the class's, whatever that computes; None where it can.

    With ``calls`` a ``__call__`` of the class's own is a reason, too.
    """
    kind, held = type(module), vars(module)
    if forms.hooked(module):
        return "it has hooks"
    if torch.nn.utils.parametrize.is_parametrized(module):
        return "it is parametrized"
    if "forward" in held:
        return "its forward was replaced on the instance"
    for name in ("__call__",) * calls + ("__getattr__", "__getattribute__"):
        if getattr(kind, name) is not getattr(nn.Module, name):
            return f"its class has a {name} of its own"
    if held.get("qconfig") is not None:
        return "it is prepared for quantization"
    return None if module._compiled_call_impl is None else "it is compiled on its own"


def out_of_reach(parameters: Mapping[str, Tensor]) -> str | None:
    """Why no operator computes with these parameters, by their names, where one is on a device without kernels."""
    for name, parameter in parameters.items():
        if parameter.device.type not in ("cpu", "meta", "cuda"):
            return f"its {name} is on {parameter.device}, for which there are no kernels"
        if parameter.is_cuda and not _cuda.available():
            return f"its {name} is on {parameter.device}, whose kernels need Triton, which is not installed"
    return None


def attributes(module: nn.Module) -> dict[str, Any]:
    """What the module's class adds to a module."""
    return {name: value for name, value in vars(module).items() if name not in _COMMON}


class ForwardError(Exception):
    """A forward that does more than to compute its result."""


def run(module: nn.Module, kind: type[nn.Module], *inputs: Tensor, **held: Any) -> Any:
    """The forward of a copy of the module with another class, and other things that it holds.

    Raises ForwardError where the forward changes what the copy holds: another in its place would not.
    """
    copy = kind.__new__(kind)
    before = {n: v.copy() if type(v) in (dict, list, set) else v for n, v in {**vars(module), **held}.items()}
    sizes = {n: len(v) for n, v in before.items() if type(v) in (dict, list, set)}
    vars(copy).update(before)
    result = kind.forward(copy, *inputs)
    after = vars(copy)
    if after.keys() != before.keys() or any(after[n] is not v for n, v in before.items()):
        raise ForwardError("the forward sets attributes of the module")
    if any(len(after[n]) != size for n, size in sizes.items()):
        raise ForwardError("the forward adds to what the module holds")
    return result


@contextmanager
def undisturbed() -> Iterator[None]:
    """Within it, runs do not depend on where `patch` is called, and leave no trace."""
    with (
        unset_fake_temporarily(),
        torch.inference_mode(False),
        torch.enable_grad(),
        torch.autocast("cpu", enabled=False),
        _uncompiled(),
        torch.random.fork_rng(devices=[]),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")
        yield


def _uncompiled() -> AbstractContextManager[object]:
    """Within it, functions that ``torch.compile`` made run as they are written, and nothing is compiled.

    Whoever made one has imported ``torch._dynamo``, which takes seconds.
    """
    return torch.compiler.set_stance("force_eager") if "torch._dynamo" in sys.modules else nullcontext()


def same(ours: Tensor, theirs: Tensor, unit: float) -> bool:
    """Equal up to float32's errors, of which a few may have moved a rounding to a coarser unit to the next number."""
    if ours.dtype is not theirs.dtype or ours.shape != theirs.shape:
        return False
    a, b = ours.detach().double(), theirs.detach().double()
    fine, finite = 64 * torch.finfo(torch.float32).eps, b[b.isfinite()].abs()
    largest = finite.max().item() if finite.numel() else 0.0
    apart = ~a.isclose(b, rtol=fine, atol=fine * largest, equal_nan=True)
    moved = ((a - b).abs() / b.abs())[apart]
    return moved.numel() <= (0 if unit < fine else 0.02 * b.numel()) and bool((moved <= 2 * unit).all())


def same_gradients(ours: Tensor, theirs: Tensor, leaves: list[Tensor], unit: float) -> bool:
    """Whether two results have the same gradients with respect to each leaf."""
    given = 1 + theirs.detach().cos()
    gradients = (torch.autograd.grad((y * given).sum(), leaves, materialize_grads=True) for y in (ours, theirs))
    return all(same(a, b, unit) for a, b in zip(*gradients, strict=True))
