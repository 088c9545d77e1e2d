"""Cross entropy in the place of PyTorch's: a training step reads the scores twice and writes their gradient alone."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad

import descend
from descend.torch.library import LIBRARY

_REDUCTIONS = ("mean", "sum", "none")
_SMALL = 1 << 16
"""Scores of a call whose gradient takes longer by an autograd function in Python."""
_DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)

LIBRARY.define(
    "cross_entropy(Tensor input, Tensor target, Tensor? weight, str reduction, int ignore_index, float label_smoothing,"
    " ScalarType? dtype=None) -> (Tensor, Tensor)",
    tags=torch.Tag.pt2_compliant_tag,
)


def cross_entropy(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    ignore_index: int = -100,
    reduce: bool | None = None,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
    *,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """``torch.nn.functional.cross_entropy``, with its arguments, results and errors. Differentiable in ``input``.

    With ``dtype`` it is that of ``input.to(dtype)``: float32 gives scores in 16 bits a loss that is not rounded to 16
    bits, without a copy of them.

    Scores [N, C] with classes [N] on the CPU are computed by the operator: it reads the scores once, and keeps the
    logarithm of the sum of exponentials of each row in the place of log probabilities; its gradient reads the scores
    once more. All else is PyTorch's: small calls with a gradient, which it computes in less time; probabilities as
    targets, other shapes, other devices, subclasses of tensors, autocast, ``torch.func``, forward mode.
    """
    is_old = size_average is not None or reduce is not None
    if is_old or not _is_taken(input, target, weight, reduction, label_smoothing, dtype):
        return nn.functional.cross_entropy(
            *(input if dtype is None else input.to(dtype), target, weight, size_average, ignore_index, reduce),
            *(reduction, label_smoothing),
        )
    function: Any = torch.ops.descend.cross_entropy  # which graphs are made of
    if not torch.compiler.is_compiling() and not torch._C._len_torch_dispatch_stack():
        function = _CrossEntropy.apply if torch.is_grad_enabled() and input.requires_grad else _on_cpu
    loss: Tensor = function(input, target, weight, reduction, ignore_index, label_smoothing, dtype)[0]
    return loss


def _is_taken(
    input: Any, target: Any, weight: Any, reduction: str, label_smoothing: float, dtype: torch.dtype | None
) -> bool:
    tensors = [input, target] if weight is None else [input, target, weight]
    return (
        all(type(t) in (Tensor, nn.Parameter) and t.device.type == "cpu" for t in tensors)
        and input.dim() == 2
        and target.dim() == 1
        and input.shape[0] == target.shape[0]
        and input.shape[1] > 0
        and input.dtype in _DTYPES
        and target.dtype is torch.int64
        and (dtype in (None, input.dtype) or (dtype is torch.float32 and input.dtype.itemsize == 2))
        and (weight is None or _fits(input, weight, dtype))
        and reduction in _REDUCTIONS
        and isinstance(label_smoothing, (int, float))
        and 0 <= label_smoothing <= 1
        and (input.numel() >= _SMALL or not (torch.is_grad_enabled() and input.requires_grad))
        and (dtype is torch.float32 or not torch.is_autocast_enabled("cpu"))
        and not torch._C._are_functorch_transforms_active()
        and forward_ad._current_level < 0
    )


def _fits(input: Tensor, weight: Tensor, dtype: torch.dtype | None) -> bool:
    return weight.shape == input.shape[1:] and weight.dtype is (dtype or input.dtype) and not weight.requires_grad


@torch.library.impl(LIBRARY, "cross_entropy", "CPU")
def _on_cpu(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None,
    reduction: str,
    ignore_index: int,
    label_smoothing: float,
    dtype: torch.dtype | None = None,
) -> tuple[Tensor, Tensor]:
    loss, lse = _fake(input, target, weight, reduction, ignore_index, label_smoothing, dtype)
    attributes = reduction, ignore_index, label_smoothing
    descend.cross_entropy_loss(input, target, weight, *attributes, out=(loss, ..., ..., lse))
    if not _is_finite(loss):
        _check_targets(target, input.shape[1], ignore_index)
    return loss, lse


def _is_finite(loss: Tensor) -> bool:
    return math.isfinite(loss.item() if loss.dim() == 0 else loss.sum().item())


def _check_targets(target: Tensor, classes: int, ignored: int) -> None:
    """Raises what PyTorch does for a target that is no class, which makes a loss NaN."""
    wrong = target[(target != ignored) & ((target < 0) | (target >= classes))]
    if wrong.numel():
        raise IndexError(f"Target {wrong[0].item()} is out of bounds.")


def _fake(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None,
    reduction: str,
    ignore_index: int,
    label_smoothing: float,
    dtype: torch.dtype | None = None,
) -> tuple[Tensor, Tensor]:
    rows = input.shape[:1]
    loss = input.new_empty(rows if reduction == "none" else (), dtype=dtype or input.dtype)
    return loss, input.new_empty(rows, dtype=torch.float64)


torch.library.register_fake("descend::cross_entropy", _fake, lib=LIBRARY)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    input, target, weight, *ctx.attributes, _ = inputs
    ctx.save_for_backward(input, target, weight, output[1])
    ctx.set_materialize_grads(False)


def _backward(ctx: Any, loss: Tensor | None, of_lse: Tensor | None) -> Any:
    """The gradient; that of lse is asked for where the gradient itself is differentiated."""
    input, target, weight, lse = ctx.saved_tensors
    dx = None
    if loss is not None:
        plain = type(loss) is Tensor and not torch.is_grad_enabled() and not torch.compiler.is_compiling()
        gradient: Any = descend.cross_entropy_loss_grad if plain else torch.ops.descend.cross_entropy_loss_grad
        dx = gradient(loss, input, target, weight, None, lse.unsqueeze(1), *ctx.attributes)
    if of_lse is not None:
        through = ((input.double() - lse.unsqueeze(1)).exp() * of_lse.unsqueeze(1)).to(input.dtype)
        dx = through if dx is None else dx + through
    return dx, *[None] * 6


torch.library.register_autograd("descend::cross_entropy", _backward, setup_context=_save, lib=LIBRARY)


class _CrossEntropy(torch.autograd.Function):
    """The same for single calls, which do not go through the dispatcher: that took 0.1 ms longer."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> tuple[Tensor, Tensor]:
        output = _on_cpu(*inputs)
        _save(ctx, inputs, output)
        return output

    backward = staticmethod(_backward)
