"""What computes the operators of device npu that are not Descend's own.

PyTorch's are computed by its kernels for the CPU: the memory of the device is host memory here, so they work on it
without a copy. Those of torch_npu's own operators that are composed (`descend.npu.composed`) are kernels for the CPU,
too. ``descend._npu`` (native/npu) takes tensors there and back, or `descend.npu.boxed` where that was not built.
`descend.npu.rules` says for both which operators these are.
"""

from __future__ import annotations

import functools
import os
import re
import warnings
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch

from descend import _npu_aclnn, _torch_module
from descend.npu import boxed, collectives, own, record, rules
from descend.npu.composed import device
from descend.npu.composed.refusal import RefusedError, refuse
from descend.npu.composed.row import Composed
from descend.npu.composed.table import TABLE


def install() -> None:
    """Puts these kernels in the place of torch_npu's. A second call does nothing."""
    _install()


def recorders() -> list[Any]:
    """What records the calls of kernels: of those in Python, which some always are, and of those in C++."""
    return [record] if form() is boxed else [record, form()]


def wait_for_graphs(device: int) -> None:
    """Waits until PyTorch's thread for the gradients of a device has freed the graphs that it computed before."""
    form().wait_for_graphs(device)


def composed() -> frozenset[str]:
    """The operators of `TABLE`, without overload, and the functions of aclnn that are composed, too."""
    names = (kernel if "::" in kernel else f"npu::{kernel}" for row in TABLE for kernel in row.kernels)
    return frozenset(name.partition(".")[0] for name in names) | _npu_aclnn.FUNCTIONS.keys()


@functools.cache
def load_native() -> ModuleType | None:
    """The module ``descend._npu``, None where it was not built for this PyTorch."""
    return _torch_module.load("descend._npu")[0]


def form() -> Any:
    """What crosses tensors and registers kernels: the module in C++, or `descend.npu.boxed` where it was not built."""
    chosen = os.environ.get("DESCEND_NPU_KERNELS", "")
    if chosen not in ("", "python"):
        raise ValueError(f"DESCEND_NPU_KERNELS is {chosen!r}, but must be python, or not set.")
    return (None if chosen else load_native()) or boxed


@functools.cache
def _install() -> torch.library.Library:
    kernels = form()
    library = torch.library.Library("npu", "IMPL")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch warns of each kernel that replaces another
        rules.register(kernels)
        if kernels is boxed:
            boxed.complete()
        for name, computed in own.KERNELS.items():
            boxed.implement(name, computed, "PrivateUse1")
        boxed.implement("aten::one_hot", own.one_hot, "AutogradPrivateUse1")
        for name, around in own.AROUND.items():
            torch_npus = torch.library.get_kernel(name, "PrivateUse1")
            boxed.implement(name, around(torch_npus), "PrivateUse1", with_keyset=True)
        collectives.install()
        for row in TABLE:
            for kernel in row.kernels:
                name = kernel if "::" in kernel else f"npu::{kernel}"
                if _is_defined(name):
                    (_aten() if name is kernel else library).impl(name, _first_then(row, kernel), "CPU")
                    rules.serve(kernels, name)
        device.complete(library)
        device.causal_attention(_aten())
    return library


@functools.cache
def _aten() -> torch.library.Library:
    return torch.library.Library("aten", "IMPL")


def _is_defined(name: str) -> bool:
    """Whether this torch_npu has the operator."""
    return bool(torch._C._dispatch_has_kernel(name))


def _first_then(row: Composed, kernel: str) -> Callable[..., Any]:
    """What computes an operator, imported when it is first called: most programs call few of them."""
    schema = rules.operator(kernel if "::" in kernel else f"npu::{kernel}")._schema
    by_autograd = row.gradient != "none" and not row.gradient.startswith("none:")
    named_so = enumerate(argument.name if "Tensor" in str(argument.type) else "" for argument in schema.arguments)
    gradients = [(i, name) for i, name in named_so if by_autograd and _OF_RESULTS.fullmatch(name)]

    @functools.cache
    def find() -> Callable[..., Any]:
        from descend.npu.composed import random, table

        random.draw_from(form().draw)
        return dict(table.functions(row))[kernel]

    def call(*args: Any, **named: Any) -> Any:
        # Autograd calls with None where no result that has a gradient was used.
        if gradients and all((args[i] if i < len(args) else named.get(name)) is None for i, name in gradients):
            return None if len(schema.returns) == 1 else (None,) * len(schema.returns)
        try:
            # A mode of the caller, such as a default device, would change the calls of PyTorch within.
            with torch._C.DisableTorchFunction():
                return find()(*args, **named)
        except RefusedError:
            raise
        except Exception:
            _refuse_missing(kernel, schema, args, named)
            raise

    return call


_OF_RESULTS = re.compile("grad|grad_.*|.*_grad|dy|d_out")
"""Names of arguments that are gradients of results."""


def _refuse_missing(kernel: str, schema: Any, args: tuple[Any, ...], named: dict[str, Any]) -> None:
    """Refuses a tensor that is None but has to be given: PyTorch lets it pass."""
    for i, argument in enumerate(schema.arguments):
        value = args[i] if i < len(args) else named.get(argument.name, argument.default_value)
        if value is None and str(argument.type) == "Tensor":
            refuse(kernel.partition(".")[0], argument.name, "None", "must be given")
