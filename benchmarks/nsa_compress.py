"""NsaCompress: what is measured, and how each peer does the same job."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks import kinds, near, nsa_compress_grad, sweep
from benchmarks.near import Room
from benchmarks.nsa_compress_grad import compress, some_heads, windows
from benchmarks.operator import Call, Golden, Operator, Problem, Route, Shape, aligned, normal

if TYPE_CHECKING:
    from torch import Tensor


class NsaCompress(Operator):
    """Tokens, heads, head size, width and stride: one sequence, windows of `width` tokens, one every `stride`."""

    name = "nsa_compress"
    kind = kinds.WINDOWS
    quick, full = nsa_compress_grad.OPERATOR.quick, nsa_compress_grad.OPERATOR.full
    small = ((256, 2, 64, 32, 16), "float32")
    nothing = (0, 1, 16, 32, 16)

    def sweep(self, size: int, itemsize: int) -> Iterator[Shape]:
        """input."""
        return sweep.windows(size // itemsize)

    def bytes(self, shape: Shape, itemsize: int) -> int:
        """input, output and weight."""
        tokens, heads, depth, width, _ = shape
        return heads * itemsize * ((tokens + windows(shape)) * depth + width)

    def near(self, shape: Shape, room: Room) -> tuple[Shape, Shape]:
        """Some windows."""
        return near.windows(shape, room)

    def row(self, shape: Shape) -> int:
        """A head."""
        return shape[2]

    def settings(self, shape: Shape) -> Mapping[str, Any]:
        """The stride."""
        return {"stride": shape[4]}

    def make(self, shape: Shape, dtype: str, rng: np.random.Generator) -> Problem:
        """Normal data."""
        tokens, heads, depth, width, stride = shape
        inputs = {"input": normal((tokens, heads, depth), dtype, rng), "weight": normal((width, heads), dtype, rng)}
        outputs = {"output": aligned((windows(shape), heads, depth), dtype)}
        return Problem(shape, dtype, inputs, outputs, {"compress_block_size": width, "compress_stride": stride})

    def golden(self, problem: Problem, rng: np.random.Generator) -> tuple[Golden, ...]:
        """Whole heads."""
        from descend import reference

        x, weight = problem.inputs.values()
        heads = some_heads(problem.shape, rng)
        output = reference.nsa_compress(x[:, heads], weight[:, heads], **problem.attributes)
        return (Golden((slice(None), heads), output),)

    def torch_eager(self) -> Mapping[str, Route]:
        """Sums over shifted blocks by hand, and unfold and einsum."""
        return {"shifted blocks in eager operations": call(blocks), "unfold and einsum": call(compress)}

    def torch_compile(self) -> Mapping[str, Route]:
        """Shifted blocks, compiled."""
        from benchmarks.frameworks import compiled

        return {"compiled shifted blocks": call(compiled(blocks))}

    def jax(self) -> Mapping[str, Route]:
        """Shifted blocks under jit."""
        return {"jit of shifted blocks": jax_blocks}

    def yardstick(self) -> tuple[str, Route]:
        """The product of all inputs with a number: PyTorch has nothing nearer."""
        return "input * 0.5", lambda x, weight, stride: lambda: x * 0.5


def call(function: Any) -> Route:
    """A function of the inputs and the stride as a job."""
    return lambda *tensors, stride: lambda: function(*tensors, stride)


def blocks(x: Tensor, weight: Tensor, stride: int) -> Tensor:
    """The positions of all windows, a stride's worth at a time: a weighted sum over each, and over these."""
    count = (len(x) - len(weight)) // stride + 1
    total = None
    for first in range(0, len(weight), stride):
        part = weight[first : first + stride].float()
        size = x.shape[1] * x.shape[2]
        shape, steps = (count, len(part), *x.shape[1:]), (stride * size, size, x.shape[2], 1)
        tokens = x.as_strided(shape, steps, first * size).float()
        summed = (tokens * part[:, :, None]).sum(1)
        total = summed if total is None else total + summed
    assert total is not None
    return total.to(x.dtype)


def jax_blocks(x: Any, weight: Any, stride: int) -> Call:
    """The same in JAX."""
    import jax.numpy as jnp

    from benchmarks.frameworks import jitted

    def forward(x: Any, weight: Any) -> Any:
        width, overlap = len(weight), -(-len(weight) // stride)
        count = (len(x) - width) // stride + 1
        steps = count + overlap - 1
        whole = ((0, overlap * stride - width), (0, 0))  # the last block of a window may be a part of one
        weights = jnp.pad(weight.astype(jnp.float32), whole).reshape(overlap, stride, -1)
        tokens = jnp.pad(x, ((0, max(0, steps * stride - len(x))), (0, 0), (0, 0)))[: steps * stride]
        tokens = tokens.reshape(steps, stride, *x.shape[1:]).astype(jnp.float32)
        parts = [(tokens[i : i + count] * weights[i, :, :, None]).sum(1) for i in range(overlap)]
        return sum(parts[1:], parts[0]).astype(x.dtype)

    return jitted(forward, x, weight)


OPERATOR = NsaCompress()
