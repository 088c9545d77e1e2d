"""Rotary position embedding."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

import descend
from benchmarks.precision.operators.operator import (
    Draw,
    Float64,
    Golden,
    Inputs,
    Operator,
    Shape,
    alone,
    exact,
    gradients,
    has_many,
    row_of,
)
from descend import reference

HEADS: tuple[Shape, ...] = ((2, 64, 8, 64), (4, 16, 32, 128), (1, 1024, 1, 128))
MANY_HEADS: Shape = (64, 4, 512, 64)
"""Sums of 32768 rows."""


def rotary_inputs(shape: Shape, draw: Draw) -> Inputs:
    """Heads [B, S, N, D]; cosines and sines of each position."""
    angles = 2 * math.pi * torch.rand((1, shape[1], 1, shape[3]), generator=draw.random)
    return {"x": draw.data(*shape), "cos": angles.cos().to(draw.dtype), "sin": angles.sin().to(draw.dtype)}


def rotary_grad_inputs(shape: Shape, draw: Draw) -> Inputs:
    return {"dy": draw.gradient(*shape), **rotary_inputs(shape, draw)}


def torch_rotary(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat((-second, first), -1) * sin


def ours_rotary_grad(dy: Tensor, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, ...]:
    return descend.rotary_position_embedding_grad(dy, cos, sin, x)


def exchanged(x: Float64) -> Float64:
    """Both halves of each row, the second first."""
    return np.roll(x, x.shape[-1] // 2, -1)


def golden_rotary(x: Tensor, cos: Tensor, sin: Tensor) -> dict[str, Golden]:
    """Two products that may cancel."""
    wide, c, s = (exact(t) for t in (x, cos, sin))
    terms = np.maximum(np.abs(wide * c), np.abs(exchanged(wide) * s))
    return {"out": Golden(reference.rotary_position_embedding(wide, c, s), terms)}


def golden_rotary_grad(dy: Tensor, x: Tensor, cos: Tensor, sin: Tensor) -> dict[str, Golden]:
    """The same, and sums over batches and heads."""
    gradient, wide, c, s = (exact(t) for t in (dy, x, cos, sin))
    dx, dcos, dsin = reference.rotary_position_embedding_grad(gradient, c, s, wide)
    of_dx = np.maximum(np.abs(gradient * c), np.abs(exchanged(gradient * s)))
    sums = (np.abs(gradient * other).max((0, 2), keepdims=True) for other in (wide, exchanged(wide)))
    parts = zip(("dx", "dcos", "dsin"), (dx, dcos, dsin), (of_dx, *sums), strict=True)
    found = {name: Golden(value, terms) for name, value, terms in parts if value is not None}
    if has_many(math.prod(dy.shape[:-1])):
        del found["dx"]
    return found


OPERATORS: tuple[Operator, ...] = (
    Operator(
        "rotary_position_embedding", ("out",), ("out",), HEADS, rotary_inputs,
        alone(descend.rotary_position_embedding), alone(torch_rotary), golden_rotary, row_of,
    ),
    Operator(
        "rotary_position_embedding_grad", ("dx", "dcos", "dsin"), ("dx",), (*HEADS, MANY_HEADS),
        rotary_grad_inputs, ours_rotary_grad, gradients(torch_rotary), golden_rotary_grad, row_of,
    ),
)  # fmt: skip
