"""SwiGLU and GELU."""

from __future__ import annotations

import math

import numpy as np
from torch import Tensor
from torch.nn import functional

import descend
from benchmarks.precision.operators.operator import (
    ROWS,
    Draw,
    Golden,
    Inputs,
    Operator,
    Shape,
    alone,
    exact,
    gradients,
    row_of,
)
from descend import reference

# --- SwiGLU -------------------------------------------------------------------------------------------------------


def swi_glu_inputs(shape: Shape, draw: Draw) -> Inputs:
    """Rows of both halves."""
    return {"x": draw.data(*shape[:-1], 2 * shape[-1])}


def swi_glu_grad_inputs(shape: Shape, draw: Draw) -> Inputs:
    return {"dy": draw.gradient(*shape), **swi_glu_inputs(shape, draw)}


def torch_swi_glu(x: Tensor) -> Tensor:
    a, b = x.chunk(2, -1)
    return functional.silu(a) * b


def golden_swi_glu(x: Tensor) -> dict[str, Golden]:
    return {"out": Golden(reference.swi_glu(exact(x)))}


@np.errstate(over="ignore")
def golden_swi_glu_grad(dy: Tensor, x: Tensor) -> dict[str, Golden]:
    """The slope of swish is a difference, which crosses 0."""
    (a, b), gradient = np.split(exact(x), 2, axis=-1), exact(dy)
    sig, rest = 1 / (1 + np.exp(-a)), 1 / (1 + np.exp(a))
    slope = sig * np.maximum(1, np.abs(a * rest))
    terms = np.concatenate((np.abs(gradient * b) * slope, np.abs(gradient * a) * sig), axis=-1)
    return {"out": Golden(reference.swi_glu_grad(gradient, exact(x)), terms)}


# --- GELU ---------------------------------------------------------------------------------------------------------


def gelu_inputs(shape: Shape, draw: Draw) -> Inputs:
    return {"x": draw.data(*shape)}


def gelu_grad_inputs(shape: Shape, draw: Draw) -> Inputs:
    return {"dy": draw.gradient(*shape), **gelu_inputs(shape, draw)}


def golden_gelu(x: Tensor) -> dict[str, Golden]:
    return {"y": Golden(reference.gelu_v2(exact(x)))}


def golden_gelu_grad(dy: Tensor, x: Tensor) -> dict[str, Golden]:
    """The slope is a sum of two terms, which crosses 0."""
    gradient, wide = exact(dy), exact(x)
    pull = np.abs(wide) * np.exp(-wide * wide / 2) / math.sqrt(2 * math.pi)
    terms = np.abs(gradient) * np.maximum(pull, reference.gelu_v2(np.abs(wide)) / np.maximum(np.abs(wide), 1e-300))
    slope = reference.gelu_backward_v2(np.ones_like(wide), wide)
    terms = np.where(wide < 0, np.abs(gradient) * np.maximum(np.abs(slope), pull), terms)
    return {"grad_input": Golden(reference.gelu_backward_v2(gradient, wide), terms)}


OPERATORS: tuple[Operator, ...] = (
    Operator(
        "swi_glu", ("out",), ("out",), ROWS, swi_glu_inputs,
        alone(descend.swi_glu), alone(torch_swi_glu), golden_swi_glu, row_of,
    ),
    Operator(
        "swi_glu_grad", ("out",), ("out",), ROWS, swi_glu_grad_inputs,
        alone(descend.swi_glu_grad), gradients(torch_swi_glu), golden_swi_glu_grad, row_of,
    ),
    Operator(
        "gelu_v2", ("y",), ("y",), ROWS, gelu_inputs,
        alone(descend.gelu_v2), alone(functional.gelu), golden_gelu, row_of,
    ),
    Operator(
        "gelu_backward_v2", ("grad_input",), ("grad_input",), ROWS, gelu_grad_inputs,
        alone(descend.gelu_backward_v2), gradients(functional.gelu), golden_gelu_grad, row_of,
    ),
)  # fmt: skip
