"""Group norm, also with swish."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from torch import Tensor
from torch.nn import functional

import descend
from benchmarks.precision.operators.operator import (
    EPSILON,
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
)
from descend import reference

GROUPS = 2


IMAGES: tuple[Shape, ...] = ((4, 32, 16, 16), (64, 256), (2, 16, 64, 64))
MANY_IMAGES: Shape = (8, 2, 125_000)
"""A million elements of each channel; groups of one."""


def group_of(shape: Shape) -> int:
    """Elements of a group."""
    return math.prod(shape[1:]) // GROUPS


def image_inputs(shape: Shape, draw: Draw) -> Inputs:
    return {"x": draw.data(*shape), "gamma": draw.normal(shape[1]), "beta": draw.normal(shape[1])}


def image_grad_inputs(shape: Shape, draw: Draw) -> Inputs:
    return {"dy": draw.gradient(*shape), **image_inputs(shape, draw)}


def ours_group_norm(x: Tensor, gamma: Tensor, beta: Tensor) -> tuple[Tensor, ...]:
    return (descend.group_norm_swish(x, gamma, beta, GROUPS, eps=EPSILON)[0],)


def torch_group_norm(x: Tensor, gamma: Tensor, beta: Tensor) -> Tensor:
    return functional.silu(functional.group_norm(x, GROUPS, gamma, beta, EPSILON))


def ours_group_norm_grad(dy: Tensor, x: Tensor, gamma: Tensor, beta: Tensor) -> tuple[Tensor, ...]:
    """Each library with the statistics that it computes itself."""
    _, mean, rstd = descend.group_norm_swish(x, gamma, beta, GROUPS, eps=EPSILON)
    return tuple(descend.group_norm_swish_grad(dy, mean, rstd, x, gamma, beta, GROUPS))


@dataclass(frozen=True)
class Normalised:
    """The parts of group norm with swish, all as [N, G, channels of a group, elements of a channel]."""

    xhat: Float64
    rstd: Float64
    gamma: Float64
    beta: Float64

    @staticmethod
    def of(x: Tensor, gamma: Tensor, beta: Tensor) -> Normalised:
        values = exact(x).reshape(len(x), GROUPS, x.shape[1] // GROUPS, -1)
        centred = values - values.mean(axis=(2, 3), keepdims=True)
        rstd = 1 / np.sqrt((centred**2).mean(axis=(2, 3), keepdims=True) + EPSILON)
        channel = (1, *values.shape[1:3], 1)
        return Normalised(centred * rstd, rstd, exact(gamma).reshape(channel), exact(beta).reshape(channel))

    def swish(self) -> tuple[Float64, Float64, Float64]:
        """The slope of swish at z, and how an error of z's largest term affects the slope and swish."""
        product = self.xhat * self.gamma
        z = product + self.beta
        sig = 1 / (1 + np.exp(-z))
        slope = sig * (1 + z * (1 - sig))
        bend = sig * (1 - sig) * (2 + z * (1 - 2 * sig))
        size = np.maximum(np.abs(product), np.maximum(np.abs(self.gamma), np.abs(self.beta)))
        # The slope is itself a difference, which crosses 0.
        own = sig * np.maximum(1, np.abs(z * (1 - sig)))
        return slope, np.maximum(own, np.abs(bend) * size), np.abs(slope) * size


def golden_group_norm(x: Tensor, gamma: Tensor, beta: Tensor) -> dict[str, Golden]:
    y, _, _ = reference.group_norm_swish(exact(x), exact(gamma), exact(beta), GROUPS, eps=EPSILON)
    _, _, terms = Normalised.of(x, gamma, beta).swish()
    return {"y": Golden(y, terms.reshape(y.shape))}


def golden_group_norm_grad(dy: Tensor, x: Tensor, gamma: Tensor, beta: Tensor) -> dict[str, Golden]:
    parts = Normalised.of(x, gamma, beta)
    slope, slope_terms, _ = parts.swish()
    gradient = exact(dy).reshape(slope.shape)
    dz, across = gradient * slope, (0, 3)
    sums = {
        name: Golden(terms.sum(axis=across).ravel(), np.abs(terms).max(axis=across).ravel())
        for name, terms in (("dgamma", dz * parts.xhat), ("dbeta", dz))
    }
    if has_many(dz.shape[0] * dz.shape[3]):
        return sums
    g = dz * parts.gamma
    means = [np.abs(t).mean(axis=(2, 3), keepdims=True) for t in (g, g * parts.xhat)]
    own = np.abs(gradient * parts.gamma) * slope_terms
    terms = parts.rstd * np.maximum(own, np.maximum(means[0], np.abs(parts.xhat) * means[1]))
    shape = (len(dz), GROUPS)
    mean = exact(x).reshape(*shape, -1).mean(axis=2)
    dx, _, _ = reference.group_norm_swish_grad(
        exact(dy), mean, parts.rstd.reshape(shape), exact(x), exact(gamma), exact(beta), GROUPS
    )
    return {"dx": Golden(dx, terms.reshape(dx.shape)), **sums}


def sizes_of(x: Tensor) -> tuple[int, int, int, int]:
    """N, C, HxW and the groups."""
    return x.shape[0], x.shape[1], math.prod(x.shape[2:]), GROUPS


def ours_plain_norm(x: Tensor, gamma: Tensor, beta: Tensor) -> tuple[Tensor, ...]:
    return (descend.group_norm(x, gamma, beta, *sizes_of(x), eps=EPSILON)[0],)


def torch_plain_norm(x: Tensor, gamma: Tensor, beta: Tensor) -> Tensor:
    return functional.group_norm(x, GROUPS, gamma, beta, EPSILON)


def golden_plain_norm(x: Tensor, gamma: Tensor, beta: Tensor) -> dict[str, Golden]:
    parts = Normalised.of(x, gamma, beta)
    z = parts.xhat * parts.gamma + parts.beta
    return {"out": Golden(z.reshape(x.shape), (np.abs(parts.xhat * parts.gamma) + np.abs(parts.beta)).reshape(x.shape))}


def ours_silu_norm(x: Tensor, gamma: Tensor, beta: Tensor) -> tuple[Tensor, ...]:
    return (descend.group_norm_silu(x, gamma, beta, GROUPS, eps=EPSILON)[0],)


def golden_silu_norm(x: Tensor, gamma: Tensor, beta: Tensor) -> dict[str, Golden]:
    return {"out": golden_group_norm(x, gamma, beta)["y"]}


def ours_plain_norm_grad(dy: Tensor, x: Tensor, gamma: Tensor, beta: Tensor) -> tuple[Tensor, ...]:
    """Each library with the statistics that it computes itself."""
    _, mean, rstd = descend.group_norm(x, gamma, beta, *sizes_of(x), eps=EPSILON)
    return tuple(descend.group_norm_backward(dy, x, mean, rstd, gamma, *sizes_of(x)))


def golden_plain_norm_grad(dy: Tensor, x: Tensor, gamma: Tensor, beta: Tensor) -> dict[str, Golden]:
    """That of group norm with swish, whose slope is 1."""
    parts = Normalised.of(x, gamma, beta)
    dz: Float64 = exact(dy).reshape(parts.xhat.shape)
    across = (0, 3)
    sums = {
        name: Golden(terms.sum(axis=across).ravel(), np.abs(terms).max(axis=across).ravel())
        for name, terms in (("grad_gamma", dz * parts.xhat), ("grad_beta", dz))
    }
    if has_many(dz.shape[0] * dz.shape[3]):
        return sums
    g = dz * parts.gamma
    first, second = (np.abs(t).mean(axis=(2, 3), keepdims=True) for t in (g, g * parts.xhat))
    terms = parts.rstd * (np.abs(g) + first + np.abs(parts.xhat) * second)
    shape = (len(dz), GROUPS)
    mean = exact(x).reshape(*shape, -1).mean(axis=2)
    dx, _, _ = reference.group_norm_backward(
        exact(dy),
        exact(x),
        mean,
        parts.rstd.reshape(shape),
        exact(gamma),
        *sizes_of(x),
        output_mask=(True, False, False),
    )
    assert dx is not None
    return {"grad_input": Golden(dx, terms.reshape(dx.shape)), **sums}


OPERATORS: tuple[Operator, ...] = (
    Operator(
        "group_norm", ("out",), ("out",), IMAGES, image_inputs,
        ours_plain_norm, alone(torch_plain_norm), golden_plain_norm, group_of,
    ),
    Operator(
        "group_norm_backward", ("grad_input", "grad_gamma", "grad_beta"), ("grad_input",), (*IMAGES, MANY_IMAGES),
        image_grad_inputs, ours_plain_norm_grad, gradients(torch_plain_norm), golden_plain_norm_grad, group_of,
    ),
    Operator(
        "group_norm_silu", ("out",), ("out",), IMAGES, image_inputs,
        ours_silu_norm, alone(torch_group_norm), golden_silu_norm, group_of,
    ),
    Operator(
        "group_norm_swish", ("y",), ("y",), IMAGES, image_inputs,
        ours_group_norm, alone(torch_group_norm), golden_group_norm, group_of,
    ),
    Operator(
        "group_norm_swish_grad", ("dx", "dgamma", "dbeta"), ("dx",), (*IMAGES, MANY_IMAGES), image_grad_inputs,
        ours_group_norm_grad, gradients(torch_group_norm), golden_group_norm_grad, group_of,
    ),
)  # fmt: skip
