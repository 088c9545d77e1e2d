"""NsaCompressGrad: what is measured, and how each peer does the same job."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks import kinds, near, sweep
from benchmarks.near import Room
from benchmarks.operator import Call, Golden, Operator, Problem, Route, Shape, aligned, backward_of, normal, sample

if TYPE_CHECKING:
    from torch import Tensor

QUICK: list[Shape] = [(32, 1, 16, 32, 16), (256, 2, 64, 32, 16), (2048, 4, 128, 32, 16), (32768, 4, 128, 32, 16)]
MORE: list[Shape] = [
    (272, 64, 128, 32, 16),
    (8192, 64, 128, 32, 16),
    (131072, 1, 64, 32, 16),
    (8192, 4, 192, 32, 16),
    (65536, 2, 16, 32, 16),
]


class NsaCompressGrad(Operator):
    """Tokens, heads, head size, width and stride: one sequence, windows of `width` tokens, one every `stride`."""

    name = "nsa_compress_grad"
    kind = kinds.WINDOWS
    sums_columns = True
    picture = "NSA compression", (32768, 4, 128, 32, 16)
    quick = tuple(QUICK)
    full = tuple(sorted(QUICK + MORE, key=lambda shape: int(np.prod(shape))))
    small = ((256, 2, 64, 32, 16), "float32")
    nothing = (0, 1, 16, 32, 16)

    def sweep(self, size: int, itemsize: int) -> Iterator[Shape]:
        """input and its gradient; windows overlap."""
        overlapping = [(width, stride) for width, stride in sweep.BLOCKS if width > stride]
        return sweep.windows(size // (2 * itemsize), overlapping)

    def bytes(self, shape: Shape, itemsize: int) -> int:
        """input, output_grad, weight and the gradients."""
        tokens, heads, depth, width, _ = shape
        return heads * itemsize * ((2 * tokens + windows(shape)) * depth + 2 * width)

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
        inputs = {
            "output_grad": normal((windows(shape), heads, depth), dtype, rng),
            "input": normal((tokens, heads, depth), dtype, rng),
            "weight": normal((width, heads), dtype, rng),
        }
        outputs = {"input_grad": aligned((tokens, heads, depth), dtype), "weight_grad": aligned((width, heads), dtype)}
        return Problem(shape, dtype, inputs, outputs, {"compress_block_size": width, "compress_stride": stride})

    def golden(self, problem: Problem, rng: np.random.Generator) -> tuple[Golden, ...]:
        """Whole heads."""
        from descend import reference

        grad, x, weight = problem.inputs.values()
        heads = some_heads(problem.shape, rng)
        input_grad, weight_grad = reference.nsa_compress_grad(
            grad[:, heads], x[:, heads], weight[:, heads], **problem.attributes
        )
        every = slice(None)
        return Golden((every, heads), input_grad), Golden((every, heads), weight_grad)

    def torch_eager(self) -> Mapping[str, Route]:
        """Sums over shifted blocks by hand, and autograd through unfold and einsum, which takes more memory."""
        return {"shifted blocks in eager operations": blocks_call, "autograd of unfold and einsum": autograd}

    def torch_compile(self) -> Mapping[str, Route]:
        """Shifted blocks, compiled."""
        from benchmarks.frameworks import compiled

        return {
            "compiled shifted blocks": lambda *tensors, stride: blocks_call(
                *tensors, stride=stride, function=compiled(blocks)
            )
        }

    def jax(self) -> Mapping[str, Route]:
        """Shifted blocks under jit."""
        return {"jit of shifted blocks": jax_blocks}

    def yardstick(self) -> tuple[str, Route]:
        """The product of all inputs with a number: PyTorch has nothing nearer."""
        return "input * 0.5", lambda grad, x, weight, stride: lambda: x * 0.5


def windows(shape: Shape) -> int:
    """How many there are."""
    tokens, _, _, width, stride = shape
    return (tokens - width) // stride + 1 if tokens >= width else 0


def some_heads(shape: Shape, rng: np.random.Generator) -> Any:
    """Those that the reference is asked for."""
    return sample(shape[1], windows(shape) * shape[2] * shape[3], rng)


def compress(x: Tensor, weight: Tensor, stride: int) -> Tensor:
    """The compression of one sequence."""
    import torch

    return torch.einsum("cndw,wn->cnd", x.unfold(0, len(weight), stride), weight)


def autograd(grad: Tensor, x: Tensor, weight: Tensor, stride: int) -> Call:
    """The backward pass alone."""
    return backward_of(lambda x, weight: compress(x, weight, stride), (x, weight), grad)


def blocks(grad: Tensor, x: Tensor, weight: Tensor, stride: int) -> tuple[Tensor, Tensor]:
    """Strides of tokens as blocks: window c covers blocks c, c + 1, ..., so both gradients are a few shifted sums."""
    import torch
    from torch.nn.functional import pad

    count, width, overlap = len(grad), len(weight), -(-len(weight) // stride)
    steps = count + overlap - 1
    lacking = max(0, steps * stride - len(x))  # the last block of a window may be a part of one
    weights = pad(weight.float(), (0, 0, 0, overlap * stride - width)).view(overlap, stride, -1)
    tokens = pad(x, (0, 0, 0, 0, 0, lacking)) if lacking else x
    tokens = tokens[: steps * stride].view(steps, stride, *x.shape[1:])
    input_grad = x.new_zeros((len(x) + lacking, *x.shape[1:]), dtype=torch.float32)
    wide, shifted = grad.float(), input_grad[: steps * stride].view(tokens.shape)
    parts = []
    for i in range(overlap):
        shifted[i : i + count] += weights[i, :, :, None] * wide[:, None]
        parts.append((tokens[i : i + count].float() * wide[:, None]).sum(-1).sum(0))
    return input_grad[: len(x)].to(x.dtype), torch.cat(parts)[:width].to(x.dtype)


def blocks_call(*tensors: Tensor, stride: int, function: Any = blocks) -> Call:
    """Shifted blocks of these tensors."""
    return lambda: function(*tensors, stride)


def jax_blocks(grad: Any, x: Any, weight: Any, stride: int) -> Call:
    """The same in JAX."""
    import jax.numpy as jnp

    from benchmarks.frameworks import jitted

    def backward(grad: Any, x: Any, weight: Any) -> Any:
        count, width, overlap = len(grad), len(weight), -(-len(weight) // stride)
        steps = count + overlap - 1
        whole = ((0, overlap * stride - width), (0, 0))  # the last block of a window may be a part of one
        weights = jnp.pad(weight.astype(jnp.float32), whole).reshape(overlap, stride, -1)
        tokens = jnp.pad(x, ((0, max(0, steps * stride - len(x))), (0, 0), (0, 0)))[: steps * stride]
        tokens = tokens.reshape(steps, stride, *x.shape[1:])
        wide, shifted = grad.astype(jnp.float32), jnp.zeros(tokens.shape, jnp.float32)
        parts = []
        for i in range(overlap):
            shifted = shifted.at[i : i + count].add(weights[i, :, :, None] * wide[:, None])
            parts.append((tokens[i : i + count].astype(jnp.float32) * wide[:, None]).sum((0, 3)))
        flat = shifted.reshape(-1, *x.shape[1:])
        input_grad = jnp.pad(flat, ((0, max(0, len(x) - len(flat))), (0, 0), (0, 0)))[: len(x)]
        return input_grad.astype(x.dtype), jnp.concatenate(parts)[:width].astype(x.dtype)

    return jitted(backward, grad, x, weight)


OPERATOR = NsaCompressGrad()
