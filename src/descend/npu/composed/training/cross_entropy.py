"""npu_softmax_cross_entropy_with_logits and its gradient: loss = -sum(labels * log_softmax(x)).

Document: torch_npu.npu_softmax_cross_entropy_with_logits.
"""

from __future__ import annotations

import torch
from torch import Tensor

from descend.npu.composed.arithmetic import check_float, check_shape, wide


def npu_softmax_cross_entropy_with_logits(self: Tensor, labels: Tensor) -> Tensor:
    """The loss of each row, [N], of logits and probabilities [N, C]."""
    check_float("npu_softmax_cross_entropy_with_logits", self=self, labels=labels)
    check_shape("npu_softmax_cross_entropy_with_logits", "labels", labels, self.shape, "self")
    return -(torch.log_softmax(wide(self), -1) * wide(labels)).sum(-1).to(self.dtype)


def npu_softmax_cross_entropy_with_logits_backward(grad: Tensor, self: Tensor, labels: Tensor) -> Tensor:
    """The gradient of self."""
    operator = "npu_softmax_cross_entropy_with_logits_backward"
    check_float(operator, grad=grad, self=self, labels=labels)
    check_shape(operator, "labels", labels, self.shape, "self")
    check_shape(operator, "grad", grad, self.shape[:-1], "a number for each row of self")
    probabilities = wide(labels)
    slope = torch.softmax(wide(self), -1) * probabilities.sum(-1, keepdim=True) - probabilities
    return (slope * wide(grad).unsqueeze(-1)).to(self.dtype)
