"""npu_masked_causal_conv1d and its gradient: each channel is convolved along the sequence with a window of its own.

    output[s, b, h] = sum over k of weight[k, h] * input[s - (W - 1 - k), b, h], 0 before the sequence begins
    output[s, b]    = 0 where mask[b, s] is false

Document: torch_npu.npu_masked_causal_conv1d.
"""

from __future__ import annotations

import torch
from torch import Tensor

from descend.npu.composed.arithmetic import check_float, check_shape, wide
from descend.npu.composed.refusal import refuse


def npu_masked_causal_conv1d(input: Tensor, weight: Tensor, *, mask: Tensor | None = None) -> Tensor:
    """The result [S, B, H] of ``input`` [S, B, H] and ``weight`` [W, H]; ``mask`` is bool [B, S]."""
    _check("npu_masked_causal_conv1d", input, weight, mask)
    x, length = wide(input), len(input)
    result = torch.zeros_like(x, memory_format=torch.contiguous_format)
    for back, factor in _windows(weight, length):
        result[back:].addcmul_(x[: length - back], factor)
    return _masked(result, mask).to(input.dtype)


def npu_masked_causal_conv1d_backward(
    grad_output: Tensor, input: Tensor, weight: Tensor, *, mask: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The gradients of input and weight."""
    operator = "npu_masked_causal_conv1d_backward"
    _check(operator, input, weight, mask)
    check_float(operator, grad_output=grad_output)
    check_shape(operator, "grad_output", grad_output, input.shape, "input")
    x, length = wide(input), len(input)
    grad = _masked(wide(grad_output).clone(), mask)
    d_input, d_weight = torch.zeros_like(grad), torch.zeros_like(wide(weight))
    for back, factor in _windows(weight, length):
        d_input[: length - back].addcmul_(grad[back:], factor)
        d_weight[len(weight) - 1 - back] = (grad[back:] * x[: length - back]).sum((0, 1))
    return d_input.to(input.dtype), d_weight.to(weight.dtype)


def _windows(weight: Tensor, length: int) -> list[tuple[int, Tensor]]:
    """How far back each factor reaches, of those that reach into a sequence, and the factor [H]."""
    count = len(weight)
    return [(count - 1 - k, factor) for k, factor in enumerate(wide(weight)) if count - 1 - k < max(1, length)]


def _masked(result: Tensor, mask: Tensor | None) -> Tensor:
    return result if mask is None else result.masked_fill_(~mask.T.unsqueeze(-1), 0)


def _check(operator: str, input: Tensor, weight: Tensor, mask: Tensor | None) -> None:
    check_float(operator, input=input, weight=weight)
    if input.dim() != 3:
        refuse(operator, "input", f"of shape {list(input.shape)}", "must be of shape [S, B, H]")
    if weight.dtype != input.dtype:
        refuse(operator, "weight", weight.dtype, f"must have the dtype of input, which is {input.dtype}")
    if weight.dim() != 2 or not len(weight):
        refuse(operator, "weight", f"of shape {list(weight.shape)}", "must be of shape [W, H], W at least 1")
    check_shape(operator, "weight", weight, [len(weight), input.shape[2]], "W and H of input")
    if mask is not None:
        if mask.dtype != torch.bool:
            refuse(operator, "mask", mask.dtype, "must be bool")
        check_shape(operator, "mask", mask, [input.shape[1], input.shape[0]], "B and S of input")
