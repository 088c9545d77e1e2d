"""NsaCompressGrad: what is measured, and how each peer does the same job."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.operator import Call, Golden, Operator, Problem, Route, Shape, aligned, normal

if TYPE_CHECKING:
    from torch import Tensor

WIDTH, STRIDE = 32, 16
OVERLAP = WIDTH // STRIDE
QUICK: list[Shape] = [(32, 1, 16), (256, 2, 64), (2048, 4, 128), (32768, 4, 128)]
MORE: list[Shape] = [(272, 64, 128), (8192, 64, 128), (131072, 1, 64), (8192, 4, 192), (65536, 2, 16)]


class NsaCompressGrad(Operator):
    """Tokens, heads and head size: one sequence, windows of 32 tokens, one every 16."""

    name = "nsa_compress_grad"
    quick = tuple(QUICK)
    full = tuple(sorted(QUICK + MORE, key=lambda shape: int(np.prod(shape))))
    small = ((256, 2, 64), "float32")
    nothing = (0, 1, 16)
    attributes: Mapping[str, Any] = {"compress_block_size": WIDTH, "compress_stride": STRIDE}

    def make(self, shape: Shape, dtype: str, rng: np.random.Generator) -> Problem:
        """Normal data."""
        tokens, heads, depth = shape
        blocks = (tokens - WIDTH) // STRIDE + 1 if tokens >= WIDTH else 0
        inputs = {
            "output_grad": normal((blocks, heads, depth), dtype, rng),
            "input": normal(shape, dtype, rng),
            "weight": normal((WIDTH, heads), dtype, rng),
        }
        outputs = {"input_grad": aligned(shape, dtype), "weight_grad": aligned((WIDTH, heads), dtype)}
        return Problem(shape, dtype, inputs, outputs)

    def golden(self, problem: Problem, rng: np.random.Generator) -> tuple[Golden, ...]:
        """The whole: it takes a second."""
        from descend import reference

        grad, x, weight = problem.inputs.values()
        input_grad, weight_grad = reference.nsa_compress_grad(grad, x, weight, **self.attributes)
        return Golden(..., input_grad), Golden(..., weight_grad)

    def torch_eager(self) -> Mapping[str, Route]:
        """Autograd through unfold and einsum, and sums over shifted blocks by hand."""
        return {"autograd of unfold and einsum": autograd, "shifted blocks in eager operations": blocks_call}

    def torch_compile(self) -> Mapping[str, Route]:
        """Shifted blocks, compiled."""
        from benchmarks.frameworks import compiled

        return {"compiled shifted blocks": lambda *tensors: blocks_call(*tensors, function=compiled(blocks))}

    def jax(self) -> Mapping[str, Route]:
        """Shifted blocks under jit."""
        return {"jit of shifted blocks": jax_blocks}

    def yardstick(self) -> tuple[str, Route]:
        """The product of all inputs with a number: PyTorch has nothing nearer."""
        return "input * 0.5", lambda grad, x, weight: lambda: x * 0.5


def forward(x: Tensor, weight: Tensor) -> Tensor:
    """The compression of one sequence."""
    import torch

    return torch.einsum("cndw,wn->cnd", x.unfold(0, WIDTH, STRIDE), weight)


def autograd(grad: Tensor, x: Tensor, weight: Tensor) -> Call:
    """The backward pass alone: the graph is made once and kept."""
    import torch

    x, weight = x.detach().requires_grad_(), weight.detach().requires_grad_()
    y = forward(x, weight)
    return lambda: torch.autograd.grad(y, (x, weight), grad, retain_graph=True)


def blocks(grad: Tensor, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Strides of tokens as blocks: window c covers blocks c, c + 1, ..., so both gradients are a few shifted sums."""
    import torch

    count, steps = len(grad), len(grad) + OVERLAP - 1
    wide, weights = grad.float(), weight.float().view(OVERLAP, STRIDE, -1)
    tokens = x[: steps * STRIDE].view(steps, STRIDE, *x.shape[1:])
    input_grad = x.new_zeros(x.shape, dtype=torch.float32)
    shifted = input_grad[: steps * STRIDE].view(tokens.shape)
    parts = []
    for i in range(OVERLAP):
        shifted[i : i + count] += weights[i, :, :, None] * wide[:, None]
        parts.append((tokens[i : i + count].float() * wide[:, None]).sum(-1).sum(0))
    return input_grad.to(x.dtype), torch.cat(parts).to(x.dtype)


def blocks_call(*tensors: Tensor, function: Any = blocks) -> Call:
    """Shifted blocks of these tensors."""
    return lambda: function(*tensors)


def jax_blocks(grad: Any, x: Any, weight: Any) -> Call:
    """The same in JAX."""
    import jax
    import jax.numpy as jnp

    from benchmarks.frameworks import jax_wait

    def backward(grad: Any, x: Any, weight: Any) -> Any:
        count, steps = len(grad), len(grad) + OVERLAP - 1
        wide, weights = grad.astype(jnp.float32), weight.astype(jnp.float32).reshape(OVERLAP, STRIDE, -1)
        tokens = x[: steps * STRIDE].reshape(steps, STRIDE, *x.shape[1:])
        shifted = jnp.zeros(tokens.shape, jnp.float32)
        parts = []
        for i in range(OVERLAP):
            shifted = shifted.at[i : i + count].add(weights[i, :, :, None] * wide[:, None])
            parts.append((tokens[i : i + count].astype(jnp.float32) * wide[:, None]).sum((0, 3)))
        rest = jnp.zeros((len(x) - steps * STRIDE, *x.shape[1:]), jnp.float32)
        input_grad = jnp.concatenate([shifted.reshape(-1, *x.shape[1:]), rest])
        return input_grad.astype(x.dtype), jnp.concatenate(parts).astype(x.dtype)

    run, wait = jax.jit(backward), jax_wait()
    return lambda: wait(run(grad, x, weight))


OPERATOR = NsaCompressGrad()
