"""npu_cross_entropy_loss and its gradient.

    log_prob = input - log(sum(exp(input)))
    loss[n]  = (1 - s) * weight[target[n]] * -log_prob[n, target[n]] + s / C * sum(weight * -log_prob[n])

s is label_smoothing. Reduction mean divides by the sum of the targets' weights. Rows whose target is ignore_index are
left out. Documents: torch_npu.npu_cross_entropy_loss; aclnnCrossEntropyLoss(Grad).
"""

from __future__ import annotations

import torch
from torch import Tensor

from descend.npu.composed.arithmetic import check_float, check_shape, wide
from descend.npu.composed.refusal import refuse

REDUCTIONS = ("mean", "sum", "none")


def npu_cross_entropy_loss(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    reduction: str = "mean",
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    lse_square_scale_for_zloss: float = 0.0,
    return_zloss: bool = False,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The loss ([N] for reduction none, else [1]), log_prob [N, C], and empty tensors for zloss and lse_for_zloss."""
    operator = "npu_cross_entropy_loss"
    if return_zloss:
        refuse(operator, "return_zloss", True, "must be False, as in its document")
    _check(
        operator, "input", input, target, weight, reduction, ignore_index, label_smoothing, lse_square_scale_for_zloss
    )
    log_prob = torch.log_softmax(wide(input), -1)
    row = _Rows(log_prob, target, weight, ignore_index)
    loss = -log_prob.gather(1, row.target).squeeze(1) * row.weight_of_target
    if label_smoothing:
        smooth = -(log_prob * row.weight).sum(1) * row.counts
        loss = loss * (1 - label_smoothing) + smooth * (label_smoothing / input.shape[1])
    if reduction != "none":
        loss = loss.sum().view(1)
    if reduction == "mean":
        loss = loss / row.weight_of_target.sum()
    nothing = input.new_empty(0)
    return loss.to(input.dtype), log_prob.to(input.dtype), nothing, input.new_empty(0)


def npu_cross_entropy_loss_backward(
    grad_loss: Tensor,
    log_prob: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    grad_zloss: Tensor | None = None,
    lse_for_zloss: Tensor | None = None,
    reduction: str = "mean",
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    lse_square_scale_for_zloss: float = 0.0,
) -> Tensor:
    """The gradient of input, in grad_loss's dtype."""
    operator = "npu_cross_entropy_loss_backward"
    zloss = lse_square_scale_for_zloss
    _check(operator, "log_prob", log_prob, target, weight, reduction, ignore_index, label_smoothing, zloss)
    check_float(operator, grad_loss=grad_loss)
    count = log_prob.shape[0] if reduction == "none" else 1
    if grad_loss.numel() != count:
        refuse(operator, "grad_loss", f"of shape {list(grad_loss.shape)}", f"holds {count} for reduction {reduction}")
    log_prob = wide(log_prob)
    row = _Rows(log_prob, target, weight, ignore_index)
    grad = grad_loss.to(log_prob.dtype).reshape(-1)
    if reduction == "mean":
        grad = grad / row.weight_of_target.sum()
    nll = (grad * row.weight_of_target * (1 - label_smoothing)).expand(log_prob.shape[0])
    share = nll
    if label_smoothing:
        smooth = (grad * row.counts * (label_smoothing / log_prob.shape[1])).unsqueeze(1)
        share = nll + smooth.squeeze(1) * row.weight.sum()
    result = log_prob.exp().mul_(share.unsqueeze(1))
    result.scatter_add_(1, row.target, -nll.unsqueeze(1))
    if label_smoothing:
        result.addcmul_(smooth, row.weight.unsqueeze(0), value=-1)
    return result.to(grad_loss.dtype)


class _Rows:
    """For each row: the target [N, 1], whether the row counts, and the target's weight, 0 if the row does not count."""

    def __init__(self, log_prob: Tensor, target: Tensor, weight: Tensor | None, ignore_index: int) -> None:
        counts = target != ignore_index if ignore_index >= 0 else torch.ones_like(target, dtype=torch.bool)
        self.counts = counts.to(log_prob.dtype)
        self.target = target.to(torch.int64).masked_fill(~counts, 0).unsqueeze(1)
        self.weight = log_prob.new_ones(log_prob.shape[1]) if weight is None else weight.to(log_prob.dtype)
        self.weight_of_target = self.weight[self.target.squeeze(1)] * self.counts


def _check(
    operator: str,
    name: str,
    scores: Tensor,
    target: Tensor,
    weight: Tensor | None,
    reduction: str,
    ignore_index: int,
    label_smoothing: float,
    scale: float,
) -> None:
    check_float(operator, **{name: scores}, weight=weight)
    if scores.dim() != 2 or not scores.shape[1]:
        refuse(operator, name, f"of shape {list(scores.shape)}", "is [N, C] with a class at least")
    rows, classes = scores.shape
    if target.dtype not in (torch.int64, torch.int32):
        refuse(operator, "target", target.dtype, "holds classes as int64")
    check_shape(operator, "target", target, (rows,), f"the rows of {name}")
    if weight is not None:
        check_shape(operator, "weight", weight, (classes,), f"the columns of {name}")
    if reduction not in REDUCTIONS:
        refuse(operator, "reduction", repr(reduction), f"may be one of {', '.join(REDUCTIONS)}")
    if ignore_index >= classes:
        refuse(operator, "ignore_index", ignore_index, f"is below the {classes} classes; below 0 nothing is ignored")
    if not 0 <= label_smoothing < 1:
        refuse(operator, "label_smoothing", label_smoothing, "is from 0 to below 1")
    if scale:
        refuse(operator, "lse_square_scale_for_zloss", scale, "must be 0, as in its document")
    if rows:
        least, most = (int(value) for value in target.aminmax())
        if least < 0 or most >= classes:
            refuse(operator, "target", f"from {least} to {most}", f"holds classes from 0 to {classes - 1}")
