"""The operators: inputs, Descend's call, PyTorch's way to the same, and the golden value with its largest terms."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

import descend
from benchmarks.deep_norm_grad import ALPHA
from descend import reference

Float64: TypeAlias = NDArray[np.float64]
Shape: TypeAlias = tuple[int, ...]
Inputs: TypeAlias = dict[str, Tensor]

DTYPES: dict[str, torch.dtype] = {
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
}
DISTRIBUTIONS = ("normal", "uniform", "heavy", "offset")
OFFSET = {"float32": 1000.0, "float16": 10.0, "bfloat16": 100.0}
"""The mean of the distribution "offset", in standard deviations."""

EPSILON = 1e-6
"""Of every norm."""
GROUPS, SCALE = 2, 128**-0.5
MANY = 1 << 17
"""With so many rows only sums over the rows are compared."""


class Draw:
    """Random tensors of one dtype and distribution; a seed gives the same numbers in every dtype."""

    def __init__(self, seed: int, dtype: str, distribution: str) -> None:
        self.dtype, self.distribution, self.offset = DTYPES[dtype], distribution, OFFSET[dtype]
        self.random = torch.Generator().manual_seed(seed)

    def normal(self, *shape: int) -> Tensor:
        """Standard normal numbers, whatever the distribution: for parameters."""
        return torch.randn(shape, generator=self.random).to(self.dtype)

    def gradient(self, *shape: int) -> Tensor:
        """Numbers of the distribution; "offset" is scaled so that a million of them have a sum in float16."""
        values = self.values(*shape)
        return (values / (16 * self.offset) if self.distribution == "offset" else values).to(self.dtype)

    def data(self, *shape: int) -> Tensor:
        """Numbers of the distribution."""
        return self.values(*shape).to(self.dtype)

    def values(self, *shape: int) -> Tensor:
        """In float32: normal, uniform from -1 to 1, Student's t with 3 degrees of freedom, or far from 0."""
        if self.distribution == "uniform":
            return 2 * torch.rand(shape, generator=self.random) - 1
        values = torch.randn(shape, generator=self.random)
        if self.distribution == "heavy":
            values /= torch.randn((3, *shape), generator=self.random).square_().mean(0).sqrt_()
        if self.distribution == "offset":
            values += self.offset
        return values

    def mask(self, *shape: int) -> Tensor:
        """True for one element of five."""
        return torch.rand(shape, generator=self.random) < 0.2


@dataclass(frozen=True)
class Golden:
    """One output in float64, and for each element the size of the largest term in its sum."""

    values: Float64
    terms: Float64 | None = None
    """None: no terms can cancel."""


@dataclass(frozen=True)
class Operator:
    """One operator as it is compared."""

    name: str
    outputs: tuple[str, ...]
    """Those that are compared, in order."""
    elementwise: tuple[str, ...]
    """The outputs that should be rounded correctly: all but sums over rows."""
    shapes: tuple[Shape, ...]
    inputs: Callable[[Shape, Draw], Inputs]
    ours: Callable[..., Sequence[Tensor]]
    theirs: Callable[..., Sequence[Tensor]]
    golden: Callable[..., dict[str, Golden]]
    """By output; those that are not compared at this shape are missing."""
    row: Callable[[Shape], int]
    """How many elements a row has."""


def exact(tensor: Tensor) -> Float64:
    """The same numbers in float64."""
    return tensor.detach().double().numpy()


def backward(forward: Callable[..., Tensor], gradient: Tensor, *leaves: Tensor) -> tuple[Tensor, ...]:
    """PyTorch's gradients of a function at these tensors."""
    leaves = tuple(leaf.detach().requires_grad_() for leaf in leaves)
    return torch.autograd.grad(forward(*leaves), leaves, gradient)


# --- norms over rows ----------------------------------------------------------------------------------------------

ROWS: tuple[Shape, ...] = ((2048, 64), (256, 768), (8, 8192))
MILLION: Shape = (1_000_000, 2)


def row_of(shape: Shape) -> int:
    """The last dimension."""
    return shape[-1]


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
    if len(x) >= MANY:
        return {"dgamma": column_sums(gradient * (wide * rstd))}
    dx, dgamma = reference.rms_norm_grad(gradient, wide, rstd, weight)
    xhat = wide * rstd
    return {
        "dx": Golden(dx, row_terms(rstd, gradient * weight, xhat)),
        "dgamma": Golden(dgamma, largest(gradient * xhat)),
    }


def column_sums(products: Float64) -> Golden:
    """Their sums over the rows."""
    return Golden(products.sum(axis=0), largest(products))


def largest(products: Float64) -> Float64:
    """The largest term of each column's sum."""
    size: Float64 = np.abs(products).max(axis=0)
    return size


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
    if len(x) >= MANY:
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


# --- group norm and swish -----------------------------------------------------------------------------------------

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
    if dz.shape[0] * dz.shape[3] >= MANY:
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
    if dz.shape[0] * dz.shape[3] >= MANY:
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


# --- softmax ------------------------------------------------------------------------------------------------------

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


# --- NSA compression: tokens, heads, depth, block size, stride ----------------------------------------------------

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
    many = len(wide) >= MANY
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


# --- rotary position embedding ------------------------------------------------------------------------------------

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
    if math.prod(dy.shape[:-1]) >= MANY:
        del found["dx"]
    return found


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


# --- cross entropy ------------------------------------------------------------------------------------------------


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


# --- AdamW --------------------------------------------------------------------------------------------------------

ADAM_W: dict[str, Any] = {"lr": 1e-3, "beta1": 0.9, "beta2": 0.999, "weight_decay": 1e-2, "eps": 1e-8}
STEPS = 9
"""Taken before."""


def adam_w_inputs(shape: Shape, draw: Draw) -> Inputs:
    """A weight, and moments as large as its gradients make them."""
    var, m, grad = draw.data(*shape), draw.gradient(*shape), draw.gradient(*shape)
    return {"var": var, "m": m, "v": draw.gradient(*shape).float().square().to(m.dtype), "grad": grad}


def ours_adam_w(var: Tensor, m: Tensor, v: Tensor, grad: Tensor) -> tuple[Tensor, ...]:
    results: tuple[Tensor, ...] = descend.apply_adam_w_v2(var, m, v, None, grad, torch.tensor(STEPS), **ADAM_W)
    return results[:3]


def torch_adam_w(var: Tensor, m: Tensor, v: Tensor, grad: Tensor) -> tuple[Tensor, ...]:
    """PyTorch's fused kernel."""
    var, m, v = var.clone(), m.clone(), v.clone()
    step = torch.tensor(STEPS + 1.0)
    torch._fused_adamw_([var], [grad], [m], [v], [], [step], **ADAM_W, amsgrad=False, maximize=False)
    return var, m, v


def golden_adam_w(var: Tensor, m: Tensor, v: Tensor, grad: Tensor) -> dict[str, Golden]:
    """The sums of terms of either sign cross 0."""
    p, mean, square, _ = reference.apply_adam_w_v2(exact(var), exact(m), exact(v), None, exact(grad), STEPS, **ADAM_W)
    terms = np.maximum(0.9 * np.abs(exact(m)), 0.1 * np.abs(exact(grad)))
    return {"var": Golden(p, np.abs(exact(var))), "m": Golden(mean, terms), "v": Golden(square)}


# --- all of them --------------------------------------------------------------------------------------------------


def alone(function: Callable[..., Tensor]) -> Callable[..., tuple[Tensor, ...]]:
    """The one result as a tuple."""
    return lambda *arguments: (function(*arguments),)


def gradients(forward: Callable[..., Tensor]) -> Callable[..., tuple[Tensor, ...]]:
    """PyTorch's gradients: the first argument is that of the result."""
    return lambda dy, *leaves: backward(forward, dy, *leaves)


OPERATORS: dict[str, Operator] = {
    operator.name: operator
    for operator in (
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
        Operator(
            "rotary_position_embedding", ("out",), ("out",), HEADS, rotary_inputs,
            alone(descend.rotary_position_embedding), alone(torch_rotary), golden_rotary, row_of,
        ),
        Operator(
            "rotary_position_embedding_grad", ("dx", "dcos", "dsin"), ("dx",), (*HEADS, MANY_HEADS),
            rotary_grad_inputs, ours_rotary_grad, gradients(torch_rotary), golden_rotary_grad, row_of,
        ),
        Operator(
            "swi_glu", ("out",), ("out",), ROWS, swi_glu_inputs,
            alone(descend.swi_glu), alone(torch_swi_glu), golden_swi_glu, row_of,
        ),
        Operator(
            "swi_glu_grad", ("out",), ("out",), ROWS, swi_glu_grad_inputs,
            alone(descend.swi_glu_grad), gradients(torch_swi_glu), golden_swi_glu_grad, row_of,
        ),
        Operator(
            "cross_entropy_loss", ("loss", "log_prob"), ("loss", "log_prob"), ROWS, cross_entropy_inputs,
            ours_cross_entropy, torch_cross_entropy, golden_cross_entropy, row_of,
        ),
        Operator(
            "cross_entropy_loss_grad", ("out",), ("out",), ROWS, cross_entropy_grad_inputs,
            ours_cross_entropy_grad, torch_cross_entropy_grad, golden_cross_entropy_grad, row_of,
        ),
        Operator(
            "gelu_v2", ("y",), ("y",), ROWS, gelu_inputs,
            alone(descend.gelu_v2), alone(functional.gelu), golden_gelu, row_of,
        ),
        Operator(
            "gelu_backward_v2", ("grad_input",), ("grad_input",), ROWS, gelu_grad_inputs,
            alone(descend.gelu_backward_v2), gradients(functional.gelu), golden_gelu_grad, row_of,
        ),
        Operator(
            "apply_adam_w_v2", ("var", "m", "v"), ("var", "m", "v"), ROWS, adam_w_inputs,
            ours_adam_w, torch_adam_w, golden_adam_w, row_of,
        ),
        Operator(
            "nsa_compress", ("output",), ("output",), TOKENS, token_inputs,
            ours_nsa, alone(torch_nsa), golden_nsa, window_of,
        ),
        Operator(
            "nsa_compress_grad", ("input_grad", "weight_grad"), ("input_grad",), (*TOKENS, MANY_TOKENS),
            token_grad_inputs, ours_nsa_grad, torch_nsa_grad, golden_nsa_grad, window_of,
        ),
    )
}  # fmt: skip
