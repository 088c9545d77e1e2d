"""A linear layer and its cross entropy, of a vocabulary that several processes share, without the whole of the logits.

    logits = input @ weight^T, the columns of this process
    npu_fused_linear_online_max_sum: the largest logit of each row, the sum of exp(logit - largest), the target's logit
        minus the largest, and which targets other processes have
    npu_fused_cross_entropy_loss_with_max_sum: loss = log(sum_exp_logits) - predicted_logits, of the values of all
        processes together; softmax = exp(logits - logits_max) / sum_exp_logits
    ..._backward: the gradients of input and weight, from grad * (softmax - 1 at the target)

Rows are computed a few at a time, so that only some MiB of logits exist unless they are asked for.

Documents: torch_npu.npu_fused_linear_online_max_sum, npu_fused_cross_entropy_loss_with_max_sum,
npu_fused_linear_cross_entropy_loss_with_max_sum_backward. torch_npu has no gradient for the first two: programs call
the third.
"""

from __future__ import annotations

import torch
from torch import Tensor

from descend.npu.composed.arithmetic import check_float, check_integer, check_shape, check_within, wide
from descend.npu.composed.memory import row_blocks
from descend.npu.composed.refusal import refuse

BITS = 8


def npu_fused_linear_online_max_sum(
    input: Tensor,
    weight: Tensor,
    target: Tensor,
    vocab_start_index: int,
    vocab_end_index: int,
    return_logits: bool = False,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor | None]:
    """logits_max, sum_exp_logits, predicted_logits [rows], target_mask, masked_target [rows], and the logits or None.

    ``input`` is [rows, H], ``weight`` [columns, H]. This process has the targets from vocab_start_index to
    vocab_end_index. A bit of target_mask (uint8 [rows / 8]) is 1 if it has not the row's target; the first row is the
    highest bit, and bits without a row are 1. masked_target is 0 there, else the target's place among the columns.
    """
    operator = "npu_fused_linear_online_max_sum"
    _check_matrices(operator, input, weight)
    rows = len(input)
    _check_target(operator, "target", target, rows)
    if not 0 <= vocab_start_index <= vocab_end_index < vocab_start_index + len(weight):
        got = f"{vocab_start_index} and {vocab_end_index}"
        refuse(
            operator, "vocab_start_index and vocab_end_index", got, f"must be within the {len(weight)} rows of weight"
        )
    elsewhere = (target < vocab_start_index) | (target > vocab_end_index)
    masked = (target - vocab_start_index).masked_fill(elsewhere, 0)
    largest, total, predicted = (wide(input).new_zeros(rows) for _ in range(3))
    logits = input.new_empty(rows, len(weight)) if return_logits else None
    matrix = wide(weight).T
    for part in row_blocks(rows, len(weight)):
        own = wide(input[part]) @ matrix
        most = own.amax(-1)
        largest[part] = most
        predicted[part] = own.gather(-1, masked[part].long().unsqueeze(-1)).squeeze(-1) - most
        if logits is not None:
            logits[part] = own
        total[part] = own.sub_(most.unsqueeze(-1)).exp_().sum(-1)
    return largest, total, predicted.masked_fill_(elsewhere, 0), _packed(elsewhere), masked, logits


def npu_fused_cross_entropy_loss_with_max_sum(
    logits_max: Tensor,
    sum_exp_logits: Tensor,
    predicted_logits: Tensor,
    *,
    label_smoothing: float | None = 0.0,
    input: Tensor | None = None,
    weight: Tensor | None = None,
    vocab_parallel_logits: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:
    """The loss of each row, and the softmax of the logits in float32 if they are given."""
    operator = "npu_fused_cross_entropy_loss_with_max_sum"
    _check_smoothing(operator, label_smoothing)
    for name, tensor in (("input", input), ("weight", weight)):
        if tensor is not None:
            refuse(operator, name, "given", "must be None")
    check_float(operator, logits_max=logits_max, sum_exp_logits=sum_exp_logits, predicted_logits=predicted_logits)
    rows = [logits_max.numel()]
    for name, tensor in (
        ("logits_max", logits_max), ("sum_exp_logits", sum_exp_logits), ("predicted_logits", predicted_logits),
    ):  # fmt: skip
        check_shape(operator, name, tensor, rows, "the rows")
    loss = wide(sum_exp_logits).log() - wide(predicted_logits)
    if vocab_parallel_logits is None:
        return loss, None
    check_float(operator, vocab_parallel_logits=vocab_parallel_logits)
    if vocab_parallel_logits.dim() != 2 or len(vocab_parallel_logits) != rows[0]:
        shape = list(vocab_parallel_logits.shape)
        refuse(operator, "vocab_parallel_logits", f"of shape {shape}", f"must be of shape [{rows[0]}, columns]")
    largest, total = wide(logits_max).unsqueeze(-1), wide(sum_exp_logits).unsqueeze(-1)
    return loss, (wide(vocab_parallel_logits) - largest).exp_().div_(total)


def npu_fused_linear_cross_entropy_loss_with_max_sum_backward(
    grad: Tensor,
    input: Tensor,
    weight: Tensor,
    target_mask: Tensor,
    masked_target: Tensor,
    label_smoothing: float = 0.0,
    logits_max: Tensor | None = None,
    sum_exp_logits: Tensor | None = None,
    softmax: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """The gradients of input and weight. Without ``softmax`` it is computed from logits_max and sum_exp_logits."""
    operator = "npu_fused_linear_cross_entropy_loss_with_max_sum_backward"
    _check_smoothing(operator, label_smoothing)
    _check_matrices(operator, input, weight)
    check_float(operator, grad=grad, logits_max=logits_max, sum_exp_logits=sum_exp_logits, softmax=softmax)
    rows = len(input)
    check_shape(operator, "grad", grad, [rows], "the rows of input")
    _check_target(operator, "masked_target", masked_target, rows)
    rule = f"must be within the {len(weight)} rows of weight"
    check_within(operator, "masked_target", masked_target, len(weight), rule)
    if target_mask.dtype != torch.uint8 or target_mask.dim() != 1 or target_mask.numel() * BITS < rows:
        got = f"{target_mask.dtype} of shape {list(target_mask.shape)}"
        refuse(operator, "target_mask", got, f"must be uint8, with a bit for each of {rows} rows")
    if softmax is not None:
        check_shape(operator, "softmax", softmax, [rows, len(weight)], "the logits")
    elif logits_max is None or sum_exp_logits is None:
        refuse(operator, "logits_max or sum_exp_logits", "None", "must be given where softmax is None")
    else:
        check_shape(operator, "logits_max", logits_max, [rows], "the rows of input")
        check_shape(operator, "sum_exp_logits", sum_exp_logits, [rows], "the rows of input")
        normalizer = (wide(logits_max) + wide(sum_exp_logits).log()).unsqueeze(-1)
    here, places = 1 - _unpacked(target_mask, rows).to(wide(input).dtype), masked_target.long()
    matrix = wide(weight)
    d_input, d_weight = torch.empty_like(input, memory_format=torch.contiguous_format), torch.zeros_like(matrix)
    for part in row_blocks(rows, len(weight)):
        own = wide(input[part])
        slope = (
            (own @ matrix.T).sub_(normalizer[part]).exp_()
            if softmax is None
            else softmax[part].to(own.dtype, copy=True)
        )
        slope[torch.arange(len(slope)), places[part]] -= here[part]
        slope *= wide(grad[part]).unsqueeze(-1)
        d_input[part] = slope @ matrix
        d_weight += slope.T @ own
    return d_input, d_weight.to(weight.dtype)


def _packed(bits: Tensor) -> Tensor:
    whole = torch.ones(-(-len(bits) // BITS) * BITS, dtype=torch.uint8)
    whole[: len(bits)] = bits
    return (whole.view(-1, BITS) << torch.arange(BITS - 1, -1, -1)).sum(-1).to(torch.uint8)


def _unpacked(packed: Tensor, count: int) -> Tensor:
    return ((packed.unsqueeze(-1) >> torch.arange(BITS - 1, -1, -1)) & 1).flatten()[:count]


def _check_smoothing(operator: str, label_smoothing: float | None) -> None:
    if label_smoothing:
        refuse(operator, "label_smoothing", label_smoothing, "must be 0")


def _check_matrices(operator: str, input: Tensor, weight: Tensor) -> None:
    check_float(operator, input=input, weight=weight)
    if input.dtype != weight.dtype:
        refuse(operator, "weight", weight.dtype, f"must have the dtype of input, which is {input.dtype}")
    if input.dim() != 2 or weight.dim() != 2 or input.shape[1] != weight.shape[1] or not len(weight):
        got = f"of shape {list(weight.shape)}"
        refuse(operator, "weight", got, f"must have rows of the length of input's, whose shape is {list(input.shape)}")


def _check_target(operator: str, name: str, target: Tensor, rows: int) -> None:
    check_integer(operator, name, target)
    check_shape(operator, name, target, [rows], "the rows of input")
