"""Cross entropy."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

import descend
from benchmarks.precision.operators.operator import ROWS, Draw, Golden, Inputs, Operator, Shape, exact, row_of
from descend import reference


def cross_entropy_inputs(shape: Shape, draw: Draw) -> Inputs:
    target = torch.randint(shape[1], shape[:1], generator=draw.random)
    return {"x": draw.data(*shape), "target": target}


def cross_entropy_grad_inputs(shape: Shape, draw: Draw) -> Inputs:
    """The gradient takes log_prob, which is rounded."""
    x, target = cross_entropy_inputs(shape, draw).values()
    log_prob = torch.log_softmax(x.double(), 1).to(x.dtype)
    return {"dy": draw.gradient(shape[0]), "log_prob": log_prob, "target": target}


def ours_cross_entropy(x: Tensor, target: Tensor) -> tuple[Tensor, ...]:
    return descend.cross_entropy_loss(x, target, reduction="none")[:2]


def torch_cross_entropy(x: Tensor, target: Tensor) -> tuple[Tensor, ...]:
    return functional.cross_entropy(x, target, reduction="none"), functional.log_softmax(x, 1)


def golden_cross_entropy(x: Tensor, target: Tensor) -> dict[str, Golden]:
    """Both are differences of scores and lse."""
    loss, log_prob, _, _ = reference.cross_entropy_loss(exact(x), target, reduction="none")
    sizes = np.abs(exact(x)) + np.abs(exact(x) - log_prob)
    of_target = np.take_along_axis(sizes, target.numpy()[:, None], 1)[:, 0]
    return {"loss": Golden(loss, of_target), "log_prob": Golden(log_prob, sizes)}


def ours_cross_entropy_grad(dy: Tensor, log_prob: Tensor, target: Tensor) -> tuple[Tensor, ...]:
    return (descend.cross_entropy_loss_grad(dy, log_prob, target, reduction="none"),)


def torch_cross_entropy_grad(dy: Tensor, log_prob: Tensor, target: Tensor) -> tuple[Tensor, ...]:
    total = log_prob.new_full((), len(log_prob))
    of_log_prob = torch.ops.aten.nll_loss_backward(dy, log_prob, target, None, 0, -100, total)
    return (torch.ops.aten._log_softmax_backward_data(of_log_prob, log_prob, 1, log_prob.dtype),)


def golden_cross_entropy_grad(dy: Tensor, log_prob: Tensor, target: Tensor) -> dict[str, Golden]:
    """At the target 1 is taken away; exp makes of a rounding of log_prob a relative one."""
    given = exact(dy), exact(log_prob), target
    values = reference.cross_entropy_loss_grad(*given, reduction="none")
    terms = np.abs(values)
    np.put_along_axis(terms, target.numpy()[:, None], np.abs(exact(dy))[:, None], 1)
    return {"out": Golden(values, terms)}


OPERATORS: tuple[Operator, ...] = (
    Operator(
        "cross_entropy_loss", ("loss", "log_prob"), ("loss", "log_prob"), ROWS, cross_entropy_inputs,
        ours_cross_entropy, torch_cross_entropy, golden_cross_entropy, row_of,
    ),
    Operator(
        "cross_entropy_loss_grad", ("out",), ("out",), ROWS, cross_entropy_grad_inputs,
        ours_cross_entropy_grad, torch_cross_entropy_grad, golden_cross_entropy_grad, row_of,
    ),
)  # fmt: skip
