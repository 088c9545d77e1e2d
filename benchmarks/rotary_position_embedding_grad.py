"""RotaryPositionEmbeddingGrad: what is measured, and how each peer does the same job."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks import rotary_position_embedding, sweep
from benchmarks.operator import Call, Golden, Problem, Route, Shape, aligned, backward_of, normal
from benchmarks.rms_norm import call
from benchmarks.rotary_position_embedding import angles, own, rotated, some_rows

if TYPE_CHECKING:
    from torch import Tensor


class RotaryPositionEmbeddingGrad(rotary_position_embedding.RotaryPositionEmbedding):
    """Heads of attention, [B, S, N, D], in halves; the gradients of x, and of cos and sin of [1, S, 1, D]."""

    name = "rotary_position_embedding_grad"
    picture = "Rotary embedding", (2, 2048, 16, 128)

    def sweep(self, size: int, itemsize: int) -> Iterator[Shape]:
        """dy, x and dx."""
        return sweep.heads(size // (3 * itemsize))

    def bytes(self, shape: Shape, itemsize: int) -> int:
        """dy, x and dx; cos and sin, and their gradients."""
        batches, positions, heads, columns = shape
        return positions * columns * (3 * batches * heads + 4) * itemsize

    def make(self, shape: Shape, dtype: str, rng: np.random.Generator) -> Problem:
        """Normal data, cosines and sines of any angles."""
        inputs = {"dy": normal(shape, dtype, rng), **angles(shape, dtype, rng), "x": normal(shape, dtype, rng)}
        sums = {name: aligned(inputs["cos"].shape, dtype) for name in ("dcos_out", "dsin_out")}
        return Problem(shape, dtype, inputs, {"dx_out": aligned(shape, dtype), **sums}, {"mode": 0})

    def golden(self, problem: Problem, rng: np.random.Generator) -> tuple[Golden, ...]:
        """Whole rows of dx, and all sums of some positions."""
        from descend import reference

        dy, cos, sin, x = problem.inputs.values()
        rows = some_rows(dy, rng)
        dx, _, _ = reference.rotary_position_embedding_grad(dy[rows], cos[0, rows[1], 0], sin[0, rows[1], 0])
        at = np.unique(rows[1])[:64]
        dy_at, cos_at, sin_at, x_at = (a[:, at] for a in (dy, cos, sin, x))
        _, dcos, dsin = reference.rotary_position_embedding_grad(dy_at, cos_at, sin_at, x_at)
        terms = float(np.sqrt(dy.shape[0] * dy.shape[2]))
        sums = [Golden((slice(None), at), value, terms) for value in (dcos, dsin) if value is not None]
        return Golden(rows, dx, 1.0), *sums

    def torch_eager(self) -> Mapping[str, Route]:
        """PyTorch's autograd, and the formula by hand."""
        return {
            "autograd of products with the rotated half": autograd(own),
            "the formula in eager operations": call(formula),
        }

    def torch_compile(self) -> Mapping[str, Route]:
        """The compiled formula, and autograd through the compiled forward."""
        from benchmarks.frameworks import compiled

        return {
            "the compiled formula": call(compiled(formula)),
            "autograd of compiled products with the rotated half": lambda *tensors: autograd(compiled(own))(*tensors),
        }

    def jax(self) -> Mapping[str, Route]:
        """The formula under jit."""
        return {"jit of the formula": jax_formula}

    def yardstick(self) -> tuple[str, Route]:
        """PyTorch's autograd."""
        return "autograd of products with the rotated half in PyTorch", autograd(own)


def autograd(forward: Any) -> Route:
    """The backward pass alone."""
    return lambda dy, cos, sin, x: backward_of(forward, (x, cos, sin), dy)


def formula(dy: Tensor, cos: Tensor, sin: Tensor, x: Tensor) -> tuple[Tensor, ...]:
    """The operator as one would write it in PyTorch, computed in float32."""
    wide, of_x = dy.float(), x.float()
    dx = (wide * cos.float() - rotated(wide * sin.float())).to(x.dtype)
    sums = (wide * of_x).sum((0, 2), True), (wide * rotated(of_x)).sum((0, 2), True)
    return dx, *(s.to(x.dtype) for s in sums)


def jax_formula(dy: Any, cos: Any, sin: Any, x: Any) -> Call:
    """The same formula in JAX."""
    import jax.numpy as jnp

    from benchmarks.frameworks import jitted

    def turned(a: Any) -> Any:
        first, second = jnp.split(a, 2, -1)
        return jnp.concatenate((-second, first), -1)

    def backward(dy: Any, cos: Any, sin: Any, x: Any) -> Any:
        wide, c, s, of_x = (a.astype(jnp.float32) for a in (dy, cos, sin, x))
        sums = jnp.sum(wide * of_x, (0, 2), keepdims=True), jnp.sum(wide * turned(of_x), (0, 2), keepdims=True)
        return tuple(a.astype(x.dtype) for a in (wide * c - turned(wide * s), *sums))

    return jitted(backward, dy, cos, sin, x)


OPERATOR = RotaryPositionEmbeddingGrad()
