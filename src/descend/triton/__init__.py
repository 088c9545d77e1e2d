"""Descend's operators on NVIDIA GPUs: kernels in Triton.

`run` is what ``descend.<name>`` and ``torch.ops.descend.<name>`` do with CUDA tensors: the engine's phase 1 checks the
call, then the kernels start on the current stream. Needs Triton (``pip install descend[cuda]``). Under
``TRITON_INTERPRET=1`` the kernels run in Triton's interpreter, on CPU tensors: that is how they are tested where there
is no GPU.
"""

from importlib import import_module
from importlib.util import find_spec
from typing import Any

from descend.contract import OPERATORS
from descend.triton.calls import Operator


def operator(name: str) -> Operator:
    """The operator of that name, from the module of that name.

    Raises KeyError for an unknown one, NotImplementedError for one that has no kernels for CUDA tensors.
    """
    if name not in OPERATORS:
        raise KeyError(f"there is no operator {name!r}; known are {', '.join(OPERATORS)}.")
    if find_spec(f"descend.triton.{name}") is None:
        raise NotImplementedError(f"{name} has no kernels for CUDA tensors; move the tensors to the CPU.")
    found: Operator = getattr(import_module(f"descend.triton.{name}"), name)
    return found


def run(name: str, *args: Any, out: Any = None, **named: Any) -> Any:
    """``descend.<name>(*args, out=out, **named)`` on CUDA tensors: the results, on the tensors' device.

    Raises AclnnError (a ValueError) where the contract refuses the call, ValueError for tensors on several devices.
    """
    return operator(name)(*args, out=out, **named)


__all__ = ["Operator", "operator", "run"]
