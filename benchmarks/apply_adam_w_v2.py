"""ApplyAdamWV2: what is measured, and how each peer does the same job.

All work in place, as optimizers do, each on copies of its own: a call's results are the next call's inputs.
benchmarks/adam_w.py measures `descend.torch.AdamW` beside PyTorch's optimizers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks import kinds, near, sweep
from benchmarks.near import Room
from benchmarks.operator import Array, Call, Golden, Operator, Problem, Route, Shape, aligned, normal, sample

if TYPE_CHECKING:
    from torch import Tensor


class ApplyAdamWV2(Operator):
    """Rows and columns of a weight. Parameters, gradients and moments are of one dtype, as PyTorch's."""

    name = "apply_adam_w_v2"
    kind = kinds.ELEMENTS_ALONE
    quick = ((64, 768), (768, 768), (3072, 768), (4096, 4096))
    full = (*quick, (1, 768), (50304, 768), (4096, 11008))
    small = ((1, 64), "float32")
    nothing = (0, 8)

    def sweep(self, size: int, itemsize: int) -> Iterator[Shape]:
        """Four tensors in, three out."""
        return sweep.matrices(size // (7 * itemsize))

    def bytes(self, shape: Shape, itemsize: int) -> int:
        """Four tensors in, three out."""
        rows, columns = shape
        return 7 * rows * columns * itemsize + 4

    def near(self, shape: Shape, room: Room) -> tuple[Shape, Shape]:
        """Some rows, also two: to the kernel rows without gaps are one."""
        return near.matrices(shape, room, fewest=2)

    def make(self, shape: Shape, dtype: str, rng: np.random.Generator) -> Problem:
        """A weight in the middle of a training."""
        inputs = {
            "var": normal(shape, dtype, rng),
            "m": normal(shape, dtype, rng),
            "v": np.square(normal(shape, dtype, rng)) + np.float32(1).astype(dtype),
            "grad": normal(shape, dtype, rng),
            "step": np.full((1,), 9, np.float32),
        }
        outputs = {f"{name}_out": aligned(shape, dtype) for name in ("var", "m", "v")}
        return Problem(shape, dtype, inputs, outputs)

    def timed(self, problem: Problem) -> Problem:
        """In place."""
        inputs = {name: copied(array) for name, array in problem.inputs.items()}
        return replace(
            problem, inputs=inputs, outputs={name: inputs[name.removesuffix("_out")] for name in problem.outputs}
        )

    def golden(self, problem: Problem, rng: np.random.Generator) -> tuple[Golden, ...]:
        """Whole rows. What becomes of a parameter is a sum of terms of either sign."""
        from descend import reference

        var, m, v, grad, step = problem.inputs.values()
        rows = sample(var.shape[0], var.shape[1], rng)
        results = reference.apply_adam_w_v2(var[rows], m[rows], v[rows], None, grad[rows], step)
        return tuple(Golden(rows, r, terms=1.0) for r in results if r is not None)

    def torch_eager(self) -> Mapping[str, Route]:
        """The kernels behind torch.optim.AdamW(fused=True) and foreach=True."""
        return {"torch.optim's fused kernel": fused, "torch.optim's foreach": foreach}

    def torch_compile(self) -> Mapping[str, Route]:
        """The formula, compiled."""
        return {"the compiled formula": compiled_formula}

    def jax(self) -> Mapping[str, Route]:
        """The formula under jit, to which the state is donated."""
        return {"jit of the formula": jax_formula}

    def onednn(self) -> Mapping[str, Route]:
        """It has no optimizers."""
        return {}

    def yardstick(self) -> tuple[str, Route]:
        """PyTorch's fused kernel."""
        return "torch._fused_adamw_", fused


NUMBERS: dict[str, Any] = {"lr": 1e-3, "beta1": 0.9, "beta2": 0.999, "weight_decay": 1e-2, "eps": 1e-8}


def copied(array: Array) -> Array:
    """A copy that starts on a cache line, too."""
    copy = aligned(array.shape, array.dtype)
    copy[...] = array
    return copy


def in_place(update: Callable[..., None], *tensors: Tensor) -> Call:
    """A job on copies: what is called again and again must not change what others read."""
    var, m, v, grad, step = (tensor.clone() for tensor in tensors)
    now = step.reshape(()) + 1  # PyTorch counts this step, too

    def run() -> tuple[Tensor, ...]:
        update([var], [grad], [m], [v], [now])
        return var, m, v

    return run


def fused(*tensors: Tensor) -> Call:
    """One kernel, in place."""
    import torch

    more = {**NUMBERS, "amsgrad": False, "maximize": False}
    return in_place(lambda p, g, m, v, t: torch._fused_adamw_(p, g, m, v, [], t, **more), *tensors)


def foreach(*tensors: Tensor) -> Call:
    """A dozen operators, each in place."""
    import torch
    from torch.optim.adamw import adamw

    def update(p: list[Tensor], g: list[Tensor], m: list[Tensor], v: list[Tensor], t: list[Tensor]) -> None:
        with torch.no_grad():
            adamw(p, g, m, v, [], [t[0] - 1], foreach=True, amsgrad=False, maximize=False, **NUMBERS)

    return in_place(update, *tensors)


def formula(var: Tensor, m: Tensor, v: Tensor, grad: Tensor, step: Tensor) -> tuple[Tensor, ...]:
    """The operator as one would write it in PyTorch, computed in float32."""
    t, g = step.float() + 1, grad.float()
    mean = m.float().lerp(g, 1 - NUMBERS["beta1"])
    square = NUMBERS["beta2"] * v.float() + (1 - NUMBERS["beta2"]) * g * g
    root = (square / (1 - NUMBERS["beta2"] ** t)).sqrt() + NUMBERS["eps"]
    kept = (1 - NUMBERS["lr"] * NUMBERS["weight_decay"]) * var.float()
    changed = kept - NUMBERS["lr"] * (mean / (1 - NUMBERS["beta1"] ** t)) / root
    return changed.to(var.dtype), mean.to(m.dtype), square.to(v.dtype)


def compiled_formula(*tensors: Tensor) -> Call:
    """The formula, compiled with the copies of its results to where its inputs are."""
    from benchmarks.frameworks import compiled

    state, (grad, step) = [tensor.clone() for tensor in tensors[:3]], tensors[3:]

    def update(var: Tensor, m: Tensor, v: Tensor, grad: Tensor, step: Tensor) -> None:
        for old, new in zip((var, m, v), formula(var, m, v, grad, step), strict=True):
            old.copy_(new)

    run = compiled(update)

    def step_of() -> tuple[Tensor, ...]:
        run(*state, grad, step)
        return tuple(state)

    return step_of


def jax_formula(*arrays: Any) -> Call:
    """The same in JAX, which may write the new state where the old one was."""
    import jax

    from descend.jax.definitions import apply_adam_w_v2

    def update(var: Any, m: Any, v: Any, grad: Any, step: Any) -> Any:
        return apply_adam_w_v2(var, m, v, None, grad, step, amsgrad=False, maximize=False, **NUMBERS)[:3]

    state, (grad, step) = [jax.numpy.array(array, copy=True) for array in arrays[:3]], arrays[3:]
    run = jax.jit(update, donate_argnums=(0, 1, 2))

    def step_of() -> tuple[Any, ...]:
        state[:] = jax.block_until_ready(run(*state, grad, step))
        return tuple(state)

    return step_of


OPERATOR = ApplyAdamWV2()
