"""Descend under PyTorch's own norms on the CPU: `enable`, `disable`, `enabled`."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from descend.torch import compiling, library, stable

_lock = threading.Lock()  # a forked child gets it free
_asked = False  # by enable()
_blocks = 0  # open ones of enabled()

os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release)


def enable() -> None:
    """Puts Descend under PyTorch's own layer norm and RMS norm, for all plain CPU tensors in this process.

    ======================================  ==============================================================
    operator of PyTorch                     is reached by
    ======================================  ==============================================================
    ``native_layer_norm``, its backward     ``nn.LayerNorm``, ``F.layer_norm``
    ``_fused_rms_norm``, its backward       ``nn.RMSNorm``, ``F.rms_norm``
    ======================================  ==============================================================

    Whatever calls these operators is computed by Descend, by the same formulas::

        layer norm:  mean, var = mean and biased variance of each row
                     rstd      = 1 / sqrt(var + eps)
                     out       = (input - mean) * rstd * weight + bias
        RMS norm:    rstd      = 1 / sqrt(mean(x * x over the row) + eps)
                     y         = x * rstd * weight

    Shapes: as PyTorch's, of ranks 1 to 8. Dtypes: float32, float64, float16 and bfloat16, with parameters in the same
    dtype, or in float32 beside 16-bit input. Results have the shapes, dtypes and strides of PyTorch's. So have the
    statistics: those of layer norm are float32 where the parameters are, else they have the dtype of the input; rstd of
    RMS norm is float32 for 16-bit input. Derivatives of any order, forward mode and ``torch.func`` work as in PyTorch.

    PyTorch computes what Descend does not serve, or raises its own errors: other dtypes, empty tensors, other kinds of
    tensors and devices, wrong arguments. Graphs that are traced or exported have the same operators as without Descend.
    In what ``torch.compile`` compiles with inductor, norms of 262,144 elements and more are Descend's; it stays so
    after `disable`.

    A second call does nothing more. All threads share the setting, and a forked child has its parent's. Raises
    RuntimeError where PyTorch is older than 2.13.
    """
    global _asked
    with _lock:
        _require_torch_2_13()
        _asked = True
        _apply()


def disable() -> None:
    """Undoes `enable`, however often that was called: PyTorch's own kernels are called again. Else does nothing.

    Blocks of `enabled` that are open keep Descend until they end. Gradients of what was computed before are right.
    Where Descend was not built for this PyTorch, as in a wheel, its kernels stay while Python has other threads, and
    pass each call on to PyTorch's: to take them out meanwhile would not be safe. A later call takes them out.
    """
    global _asked
    with _lock:
        _asked = False
        _apply()


@contextmanager
def enabled() -> Iterator[None]:
    """A block, ``with enabled():``, in which Descend is under PyTorch's norms as after `enable`.

    Blocks may be nested, and several threads may have one. When the last one ends, also by an exception, PyTorch's own
    kernels are back, unless `enable` was called. It also decorates functions: ``@enabled()``. Raises RuntimeError as
    `enable` does.
    """
    global _blocks
    with _lock:
        _require_torch_2_13()
        _blocks += 1
        _apply()
    try:
        yield
    finally:
        with _lock:
            _blocks -= 1
            _apply()


def _form() -> Any:
    """What registers the kernels: ``descend._torch``, else the stable interface of PyTorch, else None."""
    if library._native is not None:
        return library._native
    return stable if stable.available() else None


def _require_torch_2_13() -> None:
    if _form() is None:
        raise RuntimeError(
            f"descend.torch.enable needs PyTorch 2.13 or newer; this is {torch.__version__}. "
            "Call descend.torch.patch(model) instead."
        )


def _apply() -> None:
    form = _form()
    if form is None:
        return
    on = _asked or _blocks > 0
    form.override_norms(on)
    compiling.install(on)
    aten = torch.ops.aten
    for op in (aten.native_layer_norm, aten.native_layer_norm_backward, aten.rms_norm, aten._fused_rms_norm):
        op.default._dispatch_cache.clear()  # what PyTorch found for each dispatch key while it traced
