"""NSA compression. A shape is tokens, heads, depth, block size and stride."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

import descend
from benchmarks.precision.operators.operator import (
    Draw,
    Golden,
    Inputs,
    Operator,
    Shape,
    alone,
    backward,
    exact,
    has_many,
)

TOKENS: tuple[Shape, ...] = ((1024, 2, 64, 32, 16), (512, 1, 128, 128, 16))
MANY_TOKENS: Shape = (1_000_000, 1, 2, 32, 16)


def window_of(shape: Shape) -> int:
    """Elements of a head: what is worked on as a row."""
    return shape[2]


def windows(shape: Shape) -> int:
    return (shape[0] - shape[3]) // shape[4] + 1


def token_inputs(shape: Shape, draw: Draw) -> Inputs:
    return {
        "x": draw.data(*shape[:3]),
        "weight": draw.normal(shape[3], shape[1]),
        "stride": torch.tensor(shape[4]),
    }


def token_grad_inputs(shape: Shape, draw: Draw) -> Inputs:
    return {"dy": draw.gradient(windows(shape), *shape[1:3]), **token_inputs(shape, draw)}


def ours_nsa(x: Tensor, weight: Tensor, stride: Tensor) -> tuple[Tensor, ...]:
    return (descend.nsa_compress(x, weight, compress_block_size=len(weight), compress_stride=int(stride)),)


def torch_nsa(x: Tensor, weight: Tensor, stride: Tensor) -> Tensor:
    y: Tensor = torch.einsum("cndw,wn->cnd", x.unfold(0, len(weight), int(stride)), weight)
    return y


def ours_nsa_grad(dy: Tensor, x: Tensor, weight: Tensor, stride: Tensor) -> tuple[Tensor, ...]:
    return tuple(descend.nsa_compress_grad(dy, x, weight, compress_block_size=len(weight), compress_stride=int(stride)))


def torch_nsa_grad(dy: Tensor, x: Tensor, weight: Tensor, stride: Tensor) -> tuple[Tensor, ...]:
    return backward(lambda x, weight: torch_nsa(x, weight, stride), dy, x, weight)


def golden_nsa(x: Tensor, weight: Tensor, stride: Tensor) -> dict[str, Golden]:
    """A position of all windows at a time: they are neighbours, `stride` tokens apart."""
    wide, weights, step = exact(x), exact(weight), int(stride)
    count = (len(wide) - len(weights)) // step + 1
    out = np.zeros((count, *wide.shape[1:]))
    terms = np.zeros_like(out)
    for position, weight_row in enumerate(weights):
        product = weight_row[:, None] * wide[position : position + count * step : step][:count]
        out += product
        np.maximum(terms, np.abs(product), out=terms)
    return {"output": Golden(out, terms)}


def golden_nsa_grad(dy: Tensor, x: Tensor, weight: Tensor, stride: Tensor) -> dict[str, Golden]:
    gradient, wide, weights, step = exact(dy), exact(x), exact(weight), int(stride)
    many = has_many(len(wide))
    input_grad, weight_grad = np.zeros_like(wide), np.zeros_like(weights)
    input_terms, weight_terms = np.zeros_like(wide), np.zeros_like(weights)
    for position, weight_row in enumerate(weights):
        tokens = slice(position, position + len(gradient) * step, step)
        product = gradient * wide[tokens][: len(gradient)]
        weight_grad[position] = product.sum(axis=(0, 2))
        weight_terms[position] = np.abs(product).max(axis=(0, 2))
        if not many:
            part = weight_row[:, None] * gradient
            input_grad[tokens][: len(gradient)] += part
            np.maximum(input_terms[tokens][: len(gradient)], np.abs(part), out=input_terms[tokens][: len(gradient)])
    weights_found = {"weight_grad": Golden(weight_grad, weight_terms)}
    return weights_found if many else {"input_grad": Golden(input_grad, input_terms), **weights_found}


OPERATORS: tuple[Operator, ...] = (
    Operator(
        "nsa_compress", ("output",), ("output",), TOKENS, token_inputs,
        ours_nsa, alone(torch_nsa), golden_nsa, window_of,
    ),
    Operator(
        "nsa_compress_grad", ("input_grad", "weight_grad"), ("input_grad",), (*TOKENS, MANY_TOKENS),
        token_grad_inputs, ours_nsa_grad, torch_nsa_grad, golden_nsa_grad, window_of,
    ),
)  # fmt: skip
