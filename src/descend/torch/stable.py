"""Descend under PyTorch's norms where ``descend._torch`` was not built for this release, as in a wheel.

The kernels are in ``descend._native``, by PyTorch's stable C interface: one binary for PyTorch 2.13 and all later
releases. That interface has neither autograd nor the keys of a call, nor the kernel that was replaced. So this module
has what surrounds them: when RMS norm is one operator, and what computes the calls that the kernels leave.
"""

from __future__ import annotations

import ctypes
import threading
import warnings
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch._prims_common import suggest_memory_format

from descend import _native
from descend._registered_kernel import registered_kernel
from descend.torch.library import _PLAIN, LIBRARY

_aten: Any = torch.ops.aten
_CPU = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)
_FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
_computes = False  # while Descend is on
_libraries: list[torch.library.Library] = []  # while kernels are registered
_kept: list[torch.library.Library] = []  # for good: a gradient may be computed when it is off again
_theirs: dict[str, Callable[..., Any]] = {}


@cache
def available() -> bool:
    """Whether the PyTorch of this process has the stable interface: release 2.13 and newer."""
    try:
        library = ctypes.CDLL(str(Path(torch.__file__).with_name("lib") / "libtorch_cpu.so"))  # PyTorch has loaded it
    except OSError:
        return False

    def address(name: str) -> int:
        found = getattr(library, name, None)
        return 0 if found is None else ctypes.cast(found, ctypes.c_void_p).value or 0

    return _native.load_stable_torch(address)


def override_norms(on: bool) -> None:
    """Puts the engine's kernels in the place of PyTorch's for norms on the CPU, or PyTorch's back.

    It is not safe to take a kernel out of PyTorch's table while another thread looks it up: the thread may find one
    kernel's function and the other's data. So kernels stay while Python has other threads, or while there are others
    that have called one, and pass calls on to PyTorch. To put them in is safe: PyTorch's kernels have no data.
    """
    global _computes
    _computes = on
    if not on:
        no_other_called = _native.compute_norms(False)
        if _libraries and no_other_called and not _has_other_threads():
            _libraries.clear()
            _native.override_norms(False)
        return
    if not _theirs:
        _prepare()
    _native.compute_norms(True)
    if _libraries:
        return
    _native.override_norms(True)
    recorded = _kernel_of("_fused_rms_norm", "AutogradCPU")  # PyTorch's for operators that have a kernel for the CPU
    library = torch.library.Library("aten", "IMPL")
    fused = _recorded_or(recorded, _theirs["_fused_rms_norm"])
    library.impl("_fused_rms_norm", fused, "AutogradCPU", with_keyset=True)
    # PyTorch's own rms_norm does not call _fused_rms_norm for a weight of another dtype. This one does, in one step.
    whole = _recorded_or(lambda *args: recorded(*args)[0], _theirs["rms_norm"])
    library.impl("rms_norm", whole, "AutogradCPU", with_keyset=True)
    library.impl("_fused_rms_norm", _theirs["_fused_rms_norm"], "Functionalize", with_keyset=True)
    _libraries.append(library)


def _has_other_threads() -> bool:
    return threading.active_count() > 1


def _prepare() -> None:
    """Finds PyTorch's own kernels, while they are there, and defines the operators for calls that are left to them."""
    if not available():
        raise RuntimeError(f"PyTorch {torch.__version__} has no stable interface that suffices.")
    for name, key in (
        ("native_layer_norm", "CPU"),
        ("native_layer_norm_backward", "CPU"),
        ("_fused_rms_norm", "AutogradCPU"),  # which composes it
    ):
        kernel = _kernel_of(name, key)
        _theirs[name] = kernel
        _define(name, lambda *args, _kernel=kernel: _kernel(_CPU, *args))
    _theirs["rms_norm"] = _kernel_of("rms_norm", "AutogradCPU")
    _define("_fused_rms_norm_backward", composed_rms_norm_backward)
    batched = torch.library.Library("aten", "IMPL")
    batched.impl("_fused_rms_norm_backward", composed_rms_norm_backward, "FuncTorchBatched")
    _kept.append(batched)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch warns once of a kernel that replaces another: here nobody sees it
        first = torch.library.Library("aten", "IMPL")
        first.impl("native_layer_norm", _theirs["native_layer_norm"], "CPU", with_keyset=True)
        first._destroy()


def _kernel_of(name: str, key: str) -> Callable[..., Any]:
    kernel = registered_kernel(getattr(_aten, name).default, key)
    if kernel is None:
        raise RuntimeError(f"PyTorch {torch.__version__} does not give its kernel of {name} for {key}.")
    return kernel


def _define(name: str, compute: Callable[..., Any]) -> None:
    schema = str(getattr(_aten, name).default._schema)
    own = f"pytorchs_{name.lstrip('_')}"
    LIBRARY.define(own + schema[schema.index("(") :])
    LIBRARY.impl(own, compute, "CPU")


def _recorded_or(recorded: Callable[..., Any], composed: Callable[..., Any]) -> Callable[..., Any]:
    """RMS norm as one operator, for plain tensors that the engine serves, else as PyTorch composes it."""
    transforms_active = torch._C._are_functorch_transforms_active

    def autograd(
        keys: Any,
        input: Tensor,
        normalized_shape: Sequence[int],
        weight: Tensor | None = None,
        eps: float | None = None,
    ) -> Any:
        _native.count_thread()
        plain = _computes and keys == _PLAIN and not transforms_active()
        kernel = recorded if plain and _serves(input, normalized_shape, weight) else composed
        return kernel(keys, input, normalized_shape, weight, eps)

    return autograd


def _serves(input: Tensor, normalized_shape: Sequence[int], weight: Tensor | None) -> bool:
    """The same rule as serves_rms_norm in native/torch/norms.cpp and in native/bindings/stable_norms.cpp."""
    dtype, sizes, count = input.dtype, input.shape, len(normalized_shape)
    if dtype not in _FLOATS or not 0 < count <= len(sizes) <= 8 or not input.numel():
        return False
    if sizes[-count:] != tuple(normalized_shape):
        return False
    if len(sizes) in (4, 5):  # PyTorch's result may be channels-last; the engine's is not
        strides = input.stride()
        if strides[1] <= strides[-1] and suggest_memory_format(input) is not torch.contiguous_format:
            return False
    if weight is None:
        return True
    narrow = dtype.itemsize == 2 and weight.dtype is torch.float32
    return (weight.dtype is dtype or narrow) and weight.shape == sizes[-count:]


def composed_rms_norm_backward(
    grad_out: Tensor,
    input: Tensor,
    normalized_shape: Sequence[int],
    rstd: Tensor,
    weight: Tensor | None,
    output_mask: Sequence[bool],
) -> tuple[Tensor | None, Tensor | None]:
    """The gradient of RMS norm, of which PyTorch has no kernel for the CPU, composed of other operators.

    The same steps as in native/torch/norms.cpp.
    """
    wide = torch.float64 if input.dtype is torch.float64 else torch.float32
    dims = list(range(input.dim()))
    rows, row = dims[: len(dims) - len(normalized_shape)], dims[len(dims) - len(normalized_shape) :]
    dy, r = grad_out.to(wide), rstd.to(wide)
    xhat = input.to(wide) * r
    g = dy if weight is None else dy * weight.to(wide)
    dx = dweight = None
    if output_mask[0]:
        dx = (r * (g - xhat * (g * xhat).mean(row, True))).to(input.dtype)
    if output_mask[1] and weight is not None:
        product = dy * xhat
        dweight = (product.sum(rows) if rows else product).to(weight.dtype)
    return dx, dweight
