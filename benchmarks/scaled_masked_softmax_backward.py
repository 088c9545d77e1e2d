"""ScaledMaskedSoftmaxBackward: what is measured, and how each peer does the same job."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks import kinds, near, sweep
from benchmarks.near import Room
from benchmarks.operator import (
    PERIOD,
    Array,
    Call,
    Golden,
    Operator,
    Problem,
    Route,
    Shape,
    aligned,
    normal,
    sample,
    spread,
)

if TYPE_CHECKING:
    from torch import Tensor

SCALE = 0.125
QUICK: list[Shape] = [
    (1, 1, 1, 8),
    (1, 2, 16, 64),
    (1, 8, 128, 128),
    (4, 16, 512, 512),
    (1, 16, 2048, 2048),
]
MORE: list[Shape] = [(1, 1, 1, 4096), (2, 12, 128, 128), (8, 12, 512, 64), (64, 16, 512, 16), (2, 8, 1024, 4096)]


class ScaledMaskedSoftmaxBackward(Operator):
    """Scores of attention, [B, N, S1, S2]; a mask of [B, 1, S1, S2] that hides three in ten."""

    name = "scaled_masked_softmax_backward"
    kind = kinds.SCORES
    picture = "Scale, mask, softmax", (4, 16, 512, 512)
    quick = tuple(QUICK)
    full = tuple(sorted(QUICK + MORE, key=lambda shape: (int(np.prod(shape)), shape[3])))
    small = ((1, 2, 16, 64), "float32")
    nothing = (0, 1, 1, 8)

    def sweep(self, size: int, itemsize: int) -> Iterator[Shape]:
        """grad_output, y and out; an eighth of a byte or more of the mask."""
        return sweep.scores(size * 8 // (24 * itemsize + 1))

    def bytes(self, shape: Shape, itemsize: int) -> int:
        """grad_output, y and out of every head; the mask of all."""
        batches, heads, queries, keys = shape
        return batches * queries * keys * (3 * heads * itemsize + 1)

    def near(self, shape: Shape, room: Room) -> tuple[Shape, Shape]:
        """Some queries."""
        return near.scores(shape, room)

    def make(self, shape: Shape, dtype: str, rng: np.random.Generator) -> Problem:
        """Normal gradients; y is what the forward gives for normal scores."""
        import descend

        out, y, mask = normal(shape, dtype, rng), aligned(shape, dtype), hidden(shape, rng)
        descend.scaled_masked_softmax(out, mask, SCALE, out=y)
        inputs = {"grad_output": normal(shape, dtype, rng), "y": y, "mask": mask}
        return Problem(shape, dtype, inputs, {"out": out}, {"scale": SCALE})

    def golden(self, problem: Problem, rng: np.random.Generator) -> tuple[Golden, ...]:
        """Whole rows."""
        from descend import reference

        grad, y, mask = problem.inputs.values()
        rows = np.unravel_index(sample(int(np.prod(y.shape[:3])), y.shape[3], rng), y.shape[:3])
        masked = mask[rows[0], 0, rows[2]]
        return (Golden(rows, reference.scaled_masked_softmax_backward(grad[rows], y[rows], masked, SCALE)),)

    def torch_eager(self) -> Mapping[str, Route]:
        """PyTorch's own softmax backward between a mask and a factor, and the formula by hand."""
        return {"softmax backward, masked_fill and a factor": own_call, "the formula in eager operations": formula_call}

    def torch_compile(self) -> Mapping[str, Route]:
        """The same, compiled."""
        from benchmarks.frameworks import compiled

        return {
            "the compiled formula": lambda *tensors: formula_call(*tensors, function=compiled(formula)),
            "compiled softmax backward": lambda *tensors: formula_call(*tensors, function=compiled(own)),
        }

    def jax(self) -> Mapping[str, Route]:
        """The formula under jit."""
        return {"jit of the formula": jax_formula}

    def onednn(self) -> Mapping[str, Route]:
        """Its softmax backward, then the mask as factors, with the scale."""
        from benchmarks import onednn

        return {"softmax_backward and binary": partial(onednn.scaled_masked_softmax_backward, scale=SCALE)}

    def yardstick(self) -> tuple[str, Route]:
        """PyTorch's softmax backward, without mask and scale."""
        return "torch.ops.aten._softmax_backward_data", softmax_backward


def hidden(shape: Shape, rng: np.random.Generator) -> Array:
    """A mask for all heads that hides three scores in ten."""
    mask = aligned((shape[0], 1, *shape[2:]), np.dtype(np.bool_))
    return spread(rng.random(min(mask.size, PERIOD)) < 0.3, mask)


def own(grad: Tensor, y: Tensor, mask: Tensor) -> Tensor:
    """Three operators of PyTorch."""
    import torch

    grad_x: Tensor = torch.ops.aten._softmax_backward_data(grad, y, -1, grad.dtype)
    return grad_x.masked_fill(mask, 0.0) * SCALE


def own_call(*tensors: Tensor) -> Call:
    """They as a job."""
    return lambda: own(*tensors)


def formula(grad: Tensor, y: Tensor, mask: Tensor) -> Tensor:
    """The operator as one would write it in PyTorch, computed in float32."""
    wide, product = y.float(), grad.float() * y.float()
    result = SCALE * (product - wide * product.sum(-1, keepdim=True))
    return result.masked_fill(mask, 0.0).to(grad.dtype)


def formula_call(*tensors: Tensor, function: Any = formula) -> Call:
    """The formula on these tensors."""
    return lambda: function(*tensors)


def softmax_backward(grad: Tensor, y: Tensor, mask: Tensor) -> Call:
    """PyTorch's operator on the same tensors."""
    import torch

    backward = torch.ops.aten._softmax_backward_data
    return lambda: backward(grad, y, -1, grad.dtype)


def jax_formula(grad: Any, y: Any, mask: Any) -> Call:
    """The same formula in JAX."""
    import jax.numpy as jnp

    from benchmarks.frameworks import jitted

    def backward(grad: Any, y: Any, mask: Any) -> Any:
        wide = y.astype(jnp.float32)
        product = grad.astype(jnp.float32) * wide
        result = SCALE * (product - wide * product.sum(-1, keepdims=True))
        return jnp.where(mask, 0, result).astype(grad.dtype)

    return jitted(backward, grad, y, mask)


OPERATOR = ScaledMaskedSoftmaxBackward()
