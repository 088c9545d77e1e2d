"""Norms over rows."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

import descend
from benchmarks.deep_norm_grad import ALPHA
from benchmarks.precision.operators.operator import (
    EPSILON,
    MILLION,
    ROWS,
    Draw,
    Float64,
    Golden,
    Inputs,
    Operator,
    Shape,
    alone,
    column_sums,
    exact,
    gradients,
    has_many,
    largest,
    row_of,
)
from descend import reference


def forward_inputs(shape: Shape, draw: Draw) -> Inputs:
    return {"x": draw.data(*shape), "gamma": draw.normal(shape[-1])}


def rms_norm_inputs(shape: Shape, draw: Draw) -> Inputs:
    return {"dy": draw.gradient(*shape), **forward_inputs(shape, draw)}


def torch_rms_norm(x: Tensor, gamma: Tensor) -> Tensor:
    return functional.rms_norm(x, gamma.shape, gamma, EPSILON)


def golden_rms_norm(x: Tensor, gamma: Tensor) -> dict[str, Golden]:
    return {"y": Golden(reference.rms_norm(exact(x), exact(gamma), EPSILON)[0])}


def sum_inputs(shape: Shape, draw: Draw) -> Inputs:
    return {"x1": draw.data(*shape), "x2": draw.data(*shape), "gamma": draw.normal(shape[-1])}


def ours_add_rms_norm(x1: Tensor, x2: Tensor, gamma: Tensor) -> tuple[Tensor, ...]:
    y, _, x = descend.add_rms_norm(x1, x2, gamma, EPSILON)
    return y, x


def torch_add_rms_norm(x1: Tensor, x2: Tensor, gamma: Tensor) -> tuple[Tensor, ...]:
    """The norm of the rounded sum."""
    x = x1 + x2
    return torch_rms_norm(x, gamma), x


def golden_add_rms_norm(x1: Tensor, x2: Tensor, gamma: Tensor) -> dict[str, Golden]:
    y, _, x = reference.add_rms_norm(exact(x1), exact(x2), exact(gamma), EPSILON)
    return {"y": Golden(y), "x": Golden(x)}


def golden_gemma_rms_norm(x: Tensor, gamma: Tensor) -> dict[str, Golden]:
    return {"y": Golden(reference.gemma_rms_norm(exact(x), exact(gamma), EPSILON)[0])}


def ours_rms_norm_grad(dy: Tensor, x: Tensor, gamma: Tensor) -> tuple[Tensor, ...]:
    """Each library with the rstd that it computes itself."""
    return tuple(descend.rms_norm_grad(dy, x, descend.rms_norm(x, gamma, EPSILON)[1], gamma))


def golden_rms_norm_grad(dy: Tensor, x: Tensor, gamma: Tensor) -> dict[str, Golden]:
    gradient, weight, wide = exact(dy), exact(gamma), exact(x)
    rstd = 1 / np.sqrt(np.einsum("mn,mn->m", wide, wide)[:, None] / wide.shape[1] + EPSILON)
    if has_many(len(x)):
        return {"dgamma": column_sums(gradient * (wide * rstd))}
    dx, dgamma = reference.rms_norm_grad(gradient, wide, rstd, weight)
    xhat = wide * rstd
    return {
        "dx": Golden(dx, row_terms(rstd, gradient * weight, xhat)),
        "dgamma": Golden(dgamma, largest(gradient * xhat)),
    }


def row_terms(rstd: Float64, g: Float64, xhat: Float64, mean: bool = False) -> Float64:
    """The largest term of a norm's gradient: g, its mean if there is one, or xhat times the mean of their product."""
    size: Float64 = np.abs(g)
    other = np.abs(xhat) * np.abs(g * xhat).mean(axis=-1, keepdims=True)
    if mean:
        other = np.maximum(other, size.mean(axis=-1, keepdims=True))
    terms: Float64 = rstd * np.maximum(size, other)
    return terms


def layer_norm_inputs(shape: Shape, draw: Draw) -> Inputs:
    return {**forward_inputs(shape, draw), "beta": draw.normal(shape[-1])}


def golden_layer_norm(x: Tensor, gamma: Tensor, beta: Tensor) -> dict[str, Golden]:
    weight, bias = exact(gamma), exact(beta)
    y, _, _ = reference.layer_norm(exact(x), gamma.shape, weight, bias, EPSILON)
    # x - mean counts as one term, of the deviation's size at least: the inputs are exact.
    return {"y": Golden(y, np.maximum(np.abs(y - bias), np.maximum(np.abs(weight), np.abs(bias))))}


def layer_norm_grad_inputs(shape: Shape, draw: Draw) -> Inputs:
    """Both libraries are given the same statistics, as the operator is."""
    inputs = {"dy": draw.gradient(*shape), **layer_norm_inputs(shape, draw)}
    _, mean, rstd = torch.native_layer_norm(inputs["x"], shape[-1:], inputs["gamma"], inputs["beta"], EPSILON)
    return {**inputs, "mean": mean, "rstd": rstd}


def ours_layer_norm_grad(
    dy: Tensor, x: Tensor, gamma: Tensor, beta: Tensor, mean: Tensor, rstd: Tensor
) -> tuple[Tensor, ...]:
    return tuple(descend.layer_norm_backward(dy, x, gamma.shape, mean, rstd, gamma, beta))


def torch_layer_norm_grad(
    dy: Tensor, x: Tensor, gamma: Tensor, beta: Tensor, mean: Tensor, rstd: Tensor
) -> tuple[Tensor, ...]:
    mask = [True, True, True]
    found: tuple[Tensor, ...] = torch.ops.aten.native_layer_norm_backward(
        dy, x, gamma.shape, mean, rstd, gamma, beta, mask
    )
    return found


def golden_layer_norm_grad(
    dy: Tensor, x: Tensor, gamma: Tensor, beta: Tensor, mean: Tensor, rstd: Tensor
) -> dict[str, Golden]:
    gradient, weight, deviation = exact(dy), exact(gamma), exact(rstd).reshape(-1, 1)
    wide, centre = exact(x), exact(mean).reshape(-1, 1)
    xhat = (wide - centre) * deviation
    if has_many(len(x)):
        return {"dgamma": column_sums(gradient * xhat), "dbeta": column_sums(gradient)}
    dx, dgamma, dbeta = reference.layer_norm_backward(gradient, wide, gamma.shape, centre, deviation, weight)
    assert dx is not None
    assert dgamma is not None
    assert dbeta is not None
    return {
        "dx": Golden(dx, row_terms(deviation, gradient * weight, xhat, mean=True)),
        "dgamma": Golden(dgamma, largest(gradient * xhat)),
        "dbeta": Golden(dbeta, largest(gradient)),
    }


def deep_norm_grad_inputs(shape: Shape, draw: Draw) -> Inputs:
    """Both libraries are given the same statistics, as the operator is."""
    inputs = {"dy": draw.gradient(*shape), **forward_inputs(shape, draw), "gx": draw.data(*shape)}
    total = ALPHA * inputs["x"].float() + inputs["gx"].float()
    _, mean, rstd = torch.native_layer_norm(total, shape[-1:], None, None, EPSILON)
    return {**inputs, "mean": mean, "rstd": rstd}


def ours_deep_norm_grad(
    dy: Tensor, x: Tensor, gamma: Tensor, gx: Tensor, mean: Tensor, rstd: Tensor
) -> tuple[Tensor, ...]:
    return tuple(descend.deep_norm_grad(dy, x, gx, gamma, mean, rstd, ALPHA))


def torch_deep_norm_grad(
    dy: Tensor, x: Tensor, gamma: Tensor, gx: Tensor, mean: Tensor, rstd: Tensor
) -> tuple[Tensor, ...]:
    """Layer norm's gradient of the sum, in float32."""
    weight = gamma.float()
    dgx, dgamma, dbeta = torch_layer_norm_grad(
        dy.float(), ALPHA * x.float() + gx.float(), weight, torch.zeros_like(weight), mean, rstd
    )
    return (ALPHA * dgx).to(x.dtype), dgx.to(x.dtype), dbeta, dgamma


def golden_deep_norm_grad(
    dy: Tensor, x: Tensor, gamma: Tensor, gx: Tensor, mean: Tensor, rstd: Tensor
) -> dict[str, Golden]:
    found = golden_layer_norm_grad(dy, ALPHA * x.double() + gx.double(), gamma, gamma, mean, rstd)
    dgx = found.pop("dx", None)
    if dgx is not None and dgx.terms is not None:
        found |= {"dx": Golden(ALPHA * dgx.values, ALPHA * dgx.terms), "dgx": dgx}
    return found


def total_of(x: Tensor, gx: Tensor) -> Float64:
    """ALPHA * x + gx."""
    total: Float64 = ALPHA * exact(x) + exact(gx)
    return total


def sum_norm_inputs(shape: Shape, draw: Draw) -> Inputs:
    return {**sum_inputs(shape, draw), "beta": draw.normal(shape[-1])}


def deep_norm_inputs(shape: Shape, draw: Draw) -> Inputs:
    gamma, beta = draw.normal(shape[-1]), draw.normal(shape[-1])
    return {"x": draw.data(*shape), "gx": draw.data(*shape), "gamma": gamma, "beta": beta}


def ours_deep_norm(x: Tensor, gx: Tensor, gamma: Tensor, beta: Tensor) -> tuple[Tensor, ...]:
    return (descend.deep_norm(x, gx, beta, gamma, ALPHA, EPSILON)[2],)


def torch_deep_norm(x: Tensor, gx: Tensor, gamma: Tensor, beta: Tensor) -> tuple[Tensor, ...]:
    """The norm of the rounded sum."""
    return (functional.layer_norm(torch.add(gx, x, alpha=ALPHA), gamma.shape, gamma, beta, EPSILON),)


def golden_norm_of(total: Float64, terms: Float64, gamma: Tensor, beta: Tensor) -> Golden:
    """The norm of a sum. What is lost of the sum's terms is lost of the distances from its mean."""
    weight, bias = exact(gamma), exact(beta)
    y, _, rstd = reference.layer_norm(total, gamma.shape, weight, bias, EPSILON)
    size = np.maximum(np.abs(y - bias), np.maximum(np.abs(weight), np.abs(bias)))
    return Golden(y, np.maximum(size, terms * rstd * np.abs(weight)))


def golden_deep_norm(x: Tensor, gx: Tensor, gamma: Tensor, beta: Tensor) -> dict[str, Golden]:
    terms = np.maximum(np.abs(ALPHA * exact(x)), np.abs(exact(gx)))
    return {"y": golden_norm_of(total_of(x, gx), terms, gamma, beta)}


def ours_add_layer_norm(x1: Tensor, x2: Tensor, gamma: Tensor, beta: Tensor) -> tuple[Tensor, ...]:
    y, _, _, x = descend.add_layer_norm(x1, x2, gamma, beta, None, EPSILON, True)
    return y, x


def torch_add_layer_norm(x1: Tensor, x2: Tensor, gamma: Tensor, beta: Tensor) -> tuple[Tensor, ...]:
    """The norm of the rounded sum."""
    x = x1 + x2
    return functional.layer_norm(x, gamma.shape, gamma, beta, EPSILON), x


def golden_add_layer_norm(x1: Tensor, x2: Tensor, gamma: Tensor, beta: Tensor) -> dict[str, Golden]:
    total, terms = exact(x1) + exact(x2), np.maximum(np.abs(exact(x1)), np.abs(exact(x2)))
    return {"y": golden_norm_of(total, terms, gamma, beta), "x": Golden(total)}


def add_layer_norm_grad_inputs(shape: Shape, draw: Draw) -> Inputs:
    """Both libraries are given the same statistics, as the operator is."""
    inputs = {"dy": draw.gradient(*shape), **sum_inputs(shape, draw), "dsum": draw.gradient(*shape)}
    total = inputs["x1"].float() + inputs["x2"].float()
    _, mean, rstd = torch.native_layer_norm(total, shape[-1:], None, None, EPSILON)
    return {**inputs, "mean": mean, "rstd": rstd}


def ours_add_layer_norm_grad(
    dy: Tensor, x1: Tensor, x2: Tensor, gamma: Tensor, dsum: Tensor, mean: Tensor, rstd: Tensor
) -> tuple[Tensor, ...]:
    return tuple(descend.add_layer_norm_grad(dy, x1, x2, rstd, mean, gamma, dsum))


def torch_add_layer_norm_grad(
    dy: Tensor, x1: Tensor, x2: Tensor, gamma: Tensor, dsum: Tensor, mean: Tensor, rstd: Tensor
) -> tuple[Tensor, ...]:
    """Layer norm's gradient of the sum, in float32."""
    weight = gamma.float()
    dx, dgamma, dbeta = torch_layer_norm_grad(
        dy.float(), x1.float() + x2.float(), weight, torch.zeros_like(weight), mean, rstd
    )
    return (dx + dsum.float()).to(dy.dtype), dgamma, dbeta


def golden_add_layer_norm_grad(
    dy: Tensor, x1: Tensor, x2: Tensor, gamma: Tensor, dsum: Tensor, mean: Tensor, rstd: Tensor
) -> dict[str, Golden]:
    found = golden_layer_norm_grad(dy, x1.double() + x2.double(), gamma, gamma, mean, rstd)
    dx = found.pop("dx", None)
    if dx is not None and dx.terms is not None:
        added = exact(dsum)
        found |= {"dx": Golden(dx.values + added, np.maximum(dx.terms, np.abs(added)))}
    return found


OPERATORS: tuple[Operator, ...] = (
    Operator(
        "rms_norm", ("y",), ("y",), ROWS, forward_inputs,
        lambda x, gamma: (descend.rms_norm(x, gamma, EPSILON)[0],), alone(torch_rms_norm), golden_rms_norm, row_of,
    ),
    Operator(
        "add_rms_norm", ("y", "x"), ("y", "x"), ROWS, sum_inputs,
        ours_add_rms_norm, torch_add_rms_norm, golden_add_rms_norm, row_of,
    ),
    Operator(
        "gemma_rms_norm", ("y",), ("y",), ROWS, forward_inputs,
        lambda x, gamma: (descend.gemma_rms_norm(x, gamma, EPSILON)[0],),
        lambda x, gamma: (torch_rms_norm(x, 1 + gamma),), golden_gemma_rms_norm, row_of,
    ),
    Operator(
        "rms_norm_grad", ("dx", "dgamma"), ("dx",), (*ROWS, MILLION), rms_norm_inputs,
        ours_rms_norm_grad, gradients(torch_rms_norm), golden_rms_norm_grad, row_of,
    ),
    Operator(
        "layer_norm", ("y",), ("y",), ROWS, layer_norm_inputs,
        lambda x, gamma, beta: (descend.layer_norm(x, gamma.shape, gamma, beta, EPSILON)[0],),
        lambda x, gamma, beta: (functional.layer_norm(x, gamma.shape, gamma, beta, EPSILON),),
        golden_layer_norm, row_of,
    ),
    Operator(
        "layer_norm_backward", ("dx", "dgamma", "dbeta"), ("dx",), (*ROWS, MILLION), layer_norm_grad_inputs,
        ours_layer_norm_grad, torch_layer_norm_grad, golden_layer_norm_grad, row_of,
    ),
    Operator(
        "deep_norm_grad", ("dx", "dgx", "dbeta", "dgamma"), ("dx", "dgx"), (*ROWS, MILLION), deep_norm_grad_inputs,
        ours_deep_norm_grad, torch_deep_norm_grad, golden_deep_norm_grad, row_of,
    ),
    Operator(
        "deep_norm", ("y",), ("y",), ROWS, deep_norm_inputs,
        ours_deep_norm, torch_deep_norm, golden_deep_norm, row_of,
    ),
    Operator(
        "add_layer_norm", ("y", "x"), ("y", "x"), ROWS, sum_norm_inputs,
        ours_add_layer_norm, torch_add_layer_norm, golden_add_layer_norm, row_of,
    ),
    Operator(
        "add_layer_norm_grad", ("dx", "dgamma", "dbeta"), ("dx",), (*ROWS, MILLION), add_layer_norm_grad_inputs,
        ours_add_layer_norm_grad, torch_add_layer_norm_grad, golden_add_layer_norm_grad, row_of,
    ),
)  # fmt: skip
