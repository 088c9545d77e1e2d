"""ApplyAdamWV2: what is measured, and how each peer does the same job.

Descend writes to other arrays here, so that each call is the same. PyTorch works in place, on copies, and so reads and
writes less. benchmarks/adam_w.py measures both in place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks import kinds, near, sweep
from benchmarks.near import Room
from benchmarks.operator import Call, Golden, Operator, Problem, Route, Shape, aligned, normal, sample
from benchmarks.rms_norm import call

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
        """The formula, compiled, to new tensors."""
        from benchmarks.frameworks import compiled

        return {"the compiled formula": call(compiled(formula))}

    def jax(self) -> Mapping[str, Route]:
        """The formula under jit."""
        return {"jit of the formula": jax_formula}

    def onednn(self) -> Mapping[str, Route]:
        """It has no optimizers."""
        return {}

    def yardstick(self) -> tuple[str, Route]:
        """PyTorch's fused kernel."""
        return "torch._fused_adamw_", fused


NUMBERS: dict[str, Any] = {"lr": 1e-3, "beta1": 0.9, "beta2": 0.999, "weight_decay": 1e-2, "eps": 1e-8}


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


def jax_formula(*arrays: Any) -> Call:
    """The same in JAX."""

    from benchmarks.frameworks import jitted
    from descend.jax.definitions import apply_adam_w_v2

    def forward(var: Any, m: Any, v: Any, grad: Any, step: Any) -> Any:
        return apply_adam_w_v2(var, m, v, None, grad, step, amsgrad=False, maximize=False, **NUMBERS)[:3]

    return jitted(forward, *arrays)


OPERATOR = ApplyAdamWV2()
