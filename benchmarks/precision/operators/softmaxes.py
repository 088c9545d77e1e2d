"""Softmax and its logarithm, also scaled and masked."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

import descend
from benchmarks.precision.operators.operator import ROWS, Draw, Golden, Inputs, Operator, Shape, alone, exact, row_of
from descend import reference

SCALE = 128**-0.5


SCORES: tuple[Shape, ...] = ((2, 2, 64, 64), (1, 2, 32, 1024), (1, 1, 8, 8192))


def score_inputs(shape: Shape, draw: Draw) -> Inputs:
    return {"x": draw.data(*shape), "mask": draw.mask(shape[0], 1, *shape[2:])}


def score_grad_inputs(shape: Shape, draw: Draw) -> Inputs:
    """Both libraries are given the same y."""
    x, mask = score_inputs(shape, draw).values()
    y = torch.softmax((x.float() * SCALE).masked_fill(mask, -10000.0), -1).to(x.dtype)
    return {"dy": draw.gradient(*shape), "y": y, "mask": mask}


def ours_softmax(x: Tensor, mask: Tensor) -> tuple[Tensor, ...]:
    return (descend.scaled_masked_softmax(x, mask, SCALE),)


def torch_softmax(x: Tensor, mask: Tensor) -> Tensor:
    return torch.softmax((x * SCALE).masked_fill(mask, -10000.0), -1)


def golden_softmax(x: Tensor, mask: Tensor) -> dict[str, Golden]:
    return {"y": Golden(reference.scaled_masked_softmax(exact(x), mask.numpy(), SCALE))}


def ours_softmax_grad(dy: Tensor, y: Tensor, mask: Tensor) -> tuple[Tensor, ...]:
    return (descend.scaled_masked_softmax_backward(dy, y, mask, SCALE),)


def torch_softmax_grad(dy: Tensor, y: Tensor, mask: Tensor) -> Tensor:
    gradient: Tensor = torch.ops.aten._softmax_backward_data(dy, y, -1, y.dtype)
    scaled: Tensor = gradient.masked_fill(mask, 0.0) * SCALE
    return scaled


def golden_softmax_grad(dy: Tensor, y: Tensor, mask: Tensor) -> dict[str, Golden]:
    gradient, probability, hidden = exact(dy), exact(y), mask.numpy()
    dx = reference.scaled_masked_softmax_backward(gradient, probability, hidden, SCALE)
    total = np.abs(gradient * probability).sum(axis=-1, keepdims=True)
    terms = SCALE * probability * np.maximum(np.abs(gradient), total)
    return {"dx": Golden(dx, np.where(hidden, 0.0, terms))}


def rows_of_scores(shape: Shape, draw: Draw) -> Inputs:
    return {"x": draw.data(*shape)}


def softmax_grad_inputs(shape: Shape, draw: Draw) -> Inputs:
    """Both libraries are given the same result of the forward."""
    x = draw.data(*shape)
    return {"dy": draw.gradient(*shape), "output": torch.softmax(x.double(), -1).to(x.dtype)}


def log_softmax_grad_inputs(shape: Shape, draw: Draw) -> Inputs:
    x = draw.data(*shape)
    return {"dy": draw.gradient(*shape), "output": torch.log_softmax(x.double(), -1).to(x.dtype)}


def plain_softmax(x: Tensor) -> Tensor:
    return torch.softmax(x, -1)


def plain_log_softmax(x: Tensor) -> Tensor:
    return torch.log_softmax(x, -1)


def plain_softmax_grad(dy: Tensor, output: Tensor) -> Tensor:
    result: Tensor = torch.ops.aten._softmax_backward_data(dy, output, -1, output.dtype)
    return result


def plain_log_softmax_grad(dy: Tensor, output: Tensor) -> Tensor:
    result: Tensor = torch.ops.aten._log_softmax_backward_data(dy, output, -1, output.dtype)
    return result


def golden_plain_softmax(x: Tensor) -> dict[str, Golden]:
    return {"out": Golden(reference.softmax(exact(x)))}


def golden_log_softmax(x: Tensor) -> dict[str, Golden]:
    """The logarithm of a sum that is 1 or more."""
    values = reference.log_softmax(exact(x))
    return {"out": Golden(values, np.maximum(np.abs(values), 1))}


def golden_plain_softmax_grad(dy: Tensor, output: Tensor) -> dict[str, Golden]:
    gradient, y = exact(dy), exact(output)
    total = np.abs(gradient * y).sum(axis=-1, keepdims=True)
    return {"out": Golden(reference.softmax_backward(gradient, y), y * np.maximum(np.abs(gradient), total))}


def golden_log_softmax_grad(dy: Tensor, output: Tensor) -> dict[str, Golden]:
    gradient, y = exact(dy), exact(output)
    total = np.abs(gradient).sum(axis=-1, keepdims=True)
    terms = np.maximum(np.abs(gradient), np.exp(y) * total)
    return {"out": Golden(reference.log_softmax_backward(gradient, y), terms)}


OPERATORS: tuple[Operator, ...] = (
    Operator(
        "scaled_masked_softmax", ("y",), ("y",), SCORES, score_inputs,
        ours_softmax, alone(torch_softmax), golden_softmax, row_of,
    ),
    Operator(
        "scaled_masked_softmax_backward", ("dx",), ("dx",), SCORES, score_grad_inputs,
        ours_softmax_grad, alone(torch_softmax_grad), golden_softmax_grad, row_of,
    ),
    Operator(
        "softmax", ("out",), ("out",), ROWS, rows_of_scores,
        alone(descend.softmax), alone(plain_softmax), golden_plain_softmax, row_of,
    ),
    Operator(
        "softmax_backward", ("out",), ("out",), ROWS, softmax_grad_inputs,
        alone(descend.softmax_backward), alone(plain_softmax_grad), golden_plain_softmax_grad, row_of,
    ),
    Operator(
        "log_softmax", ("out",), ("out",), ROWS, rows_of_scores,
        alone(descend.log_softmax), alone(plain_log_softmax), golden_log_softmax, row_of,
    ),
    Operator(
        "log_softmax_backward", ("out",), ("out",), ROWS, log_softmax_grad_inputs,
        alone(descend.log_softmax_backward), alone(plain_log_softmax_grad), golden_log_softmax_grad, row_of,
    ),
)  # fmt: skip
