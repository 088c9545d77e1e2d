"""What only tensors of the device have: gradients that torch_npu lacks, and formats that are a processor's own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from descend.npu.composed.grouped_matmul import npu_grouped_matmul

PRIVATE_FORMATS = (3, 4, 12, 29, 32, 33, 50, 51, 52, 53, 54)
"""NC1HWC0, FRACTAL_Z, NC1HWC0_C04, FRACTAL_NZ, NDC1HWC0, FRACTAL_Z_3D, and FRACTAL_NZ with other blocks."""
FORMAT_CASTS = (
    "_npu_format_cast",
    "_npu_format_cast.aclnn",
    "_npu_format_cast.input_dtype",
    "npu_format_cast_.acl_format",
)


def complete(library: torch.library.Library) -> None:
    """Adds them to the operators of torch_npu, by ``library``, which is npu's."""
    _derive(library, "npu_add_rms_norm", _add_rms_norm)
    for name in ("npu_grouped_matmul", "npu_grouped_matmul.List"):
        _derive(library, name, npu_grouped_matmul)
    for name in FORMAT_CASTS:
        if _exists(name):
            library.impl(name, _format_cast(name), "PrivateUse1", with_keyset=True)
    if _exists("npu_format_cast_"):
        library.impl("npu_format_cast_", _write_in_format, "PrivateUse1")


def _operator(name: str) -> Any:
    base, _, overload = name.partition(".")
    return getattr(getattr(torch.ops.npu, base, None), overload or "default", None)


def _exists(name: str) -> bool:
    """Whether this torch_npu has the operator."""
    return _operator(name) is not None


def _derive(library: torch.library.Library, name: str, derived: Callable[..., Any]) -> None:
    """The operator as it is where no gradient is asked for, else what PyTorch can differentiate."""
    operator = _operator(name)

    def call(*args: Any, **named: Any) -> Any:
        if torch.is_grad_enabled() and any(map(_wants_gradient, (*args, *named.values()))):
            return derived(*args, **named)
        with torch._C._AutoDispatchBelowAutograd():
            return operator(*args, **named)

    if operator is not None:
        library.impl(name, call, "AutogradPrivateUse1")


def _wants_gradient(given: Any) -> bool:
    if isinstance(given, Tensor):
        return given.requires_grad
    return isinstance(given, Sequence) and any(isinstance(each, Tensor) and each.requires_grad for each in given)


def _add_rms_norm(x1: Tensor, x2: Tensor, gamma: Tensor, epsilon: float = 1e-06) -> tuple[Tensor, Tensor, Tensor]:
    x = x1 + x2
    y, rstd = torch.ops.npu.npu_rms_norm(x, gamma, epsilon)
    return y, rstd, x


def _format_cast(name: str) -> Callable[..., Tensor]:
    """A processor's own format is a layout of memory that nothing here reads: a tensor keeps the format that it has."""
    theirs = torch.library.get_kernel(_operator(name), "PrivateUse1")
    in_place = name.startswith("npu_format_cast_")

    def call(keys: Any, self: Tensor, acl_format: int, *more: Any, **named: Any) -> Tensor:
        if acl_format in PRIVATE_FORMATS:
            return self if in_place else self.clone(memory_format=torch.contiguous_format)
        result: Tensor = theirs.call_boxed(keys, self, acl_format, *more, **named)
        return result

    return call


def _write_in_format(self: Tensor, src: Tensor, **dtypes: int | None) -> Tensor:
    return self.copy_(src)
