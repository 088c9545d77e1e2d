"""The operators under ``jax.jit``, beside XLA's own fusion of the same formulas: ``python -m benchmarks.jit``.

XLA compiles the operators' definitions in ``jax.numpy`` (`descend.jax.definitions`), which other devices than the CPU
run. "forward" gives y, "gradient" y and the gradients of the input and the parameters, in one program. The two ways
take turns, and the median of each counts.
"""

from __future__ import annotations

import argparse
import functools
import math
import time
from collections.abc import Callable
from statistics import median
from typing import Any

from benchmarks import machine

ROWS = ((8, 64), (128, 768), (512, 1024), (4096, 1024), (4096, 4096))
IMAGES = ((2, 32, 8, 8), (2, 64, 64, 64), (8, 320, 32, 32), (8, 320, 64, 64))
SCORES = ((2, 4, 32, 32), (2, 8, 128, 128), (4, 16, 256, 256), (4, 16, 512, 512))
SHAPES = {"layer_norm": ROWS, "rms_norm": ROWS, "scaled_masked_softmax": SCORES, "group_norm_swish": IMAGES}
KINDS = ("forward", "gradient")
Function = Callable[..., Any]


def functions(operator: str, shape: tuple[int, ...]) -> tuple[Function, Function, int]:
    """XLA's function of x and its parameters, Descend's, and how many parameters there are; each gives y."""
    import descend.jax
    from descend.jax import definitions

    if operator == "layer_norm":
        size = shape[-1:]
        return (
            lambda x, weight, bias: definitions.layer_norm(x, size, weight, bias, 1e-5)[0],
            lambda x, weight, bias: descend.jax.layer_norm(x, size, weight, bias)[0],
            2,
        )
    if operator == "rms_norm":
        return (
            lambda x, gamma: definitions.rms_norm(x, gamma, 1e-6)[0],
            lambda x, gamma: descend.jax.rms_norm(x, gamma)[0],
            1,
        )
    if operator == "scaled_masked_softmax":
        return (
            lambda x: definitions.scaled_masked_softmax(x, None, 0.125, True)[0],
            lambda x: descend.jax.scaled_masked_softmax(x, None, 0.125, True),
            0,
        )
    groups = 32
    return (
        lambda x, gamma, beta: definitions.group_norm_swish(x, gamma, beta, groups, "NCHW", 1e-5, True, 1.0)[0],
        lambda x, gamma, beta: descend.jax.group_norm_swish(x, gamma, beta, groups)[0],
        2,
    )


def programs(operator: str, shape: tuple[int, ...], dtype: str, kind: str) -> list[Callable[[], Any]]:
    """A compiled call of XLA's and one of Descend's, which wait for their results."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    random = np.random.default_rng(0)

    def normal(sizes: tuple[int, ...]) -> Any:
        return jnp.asarray(random.standard_normal(sizes, np.float32), dtype)

    *ways, count = functions(operator, shape)
    size = shape[1:2] if operator == "group_norm_swish" else shape[-1:]
    arrays = [normal(shape), *(normal(size) for _ in range(count))]
    dy = normal(shape)

    def gradient(function: Function, dy: Any, *inputs: Any) -> Any:
        y, pull = jax.vjp(function, *inputs)
        return y, pull(dy)

    made: list[Callable[[], Any]] = []
    for way in ways:
        function = way if kind == "forward" else functools.partial(gradient, way)
        given = arrays if kind == "forward" else [dy, *arrays]
        compiled = jax.jit(function).lower(*given).compile()
        made.append(functools.partial(_wait_for, compiled, given))
    return made


def _wait_for(program: Any, arrays: list[Any]) -> None:
    import jax

    jax.block_until_ready(program(*arrays))


def medians(runs: list[Callable[[], Any]], seconds: float) -> list[float]:
    """The median time of each, in microseconds. They take turns, after one call each that does not count."""
    for run in runs:
        run()
    times: list[list[float]] = [[] for _ in runs]
    end = time.perf_counter() + seconds
    while len(times[0]) < 5 or time.perf_counter() < end:
        for run, some in zip(runs, times, strict=True):
            start = time.perf_counter()
            run()
            some.append(time.perf_counter() - start)
    return [1e6 * median(some) for some in times]


def main() -> None:
    """Prints a line for each operator, dtype, shape and kind, and the geometric means of the ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--op", choices=SHAPES, action="append", help="an operator (default: all four)")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), action="append", help="(default: both)")
    parser.add_argument("--shape", action="append", help="such as 512x1024 (default: all)")
    parser.add_argument("--threads", type=int, default=len(machine.processors()))
    parser.add_argument("--seconds", type=float, default=1.0, help="for each line")
    options = parser.parse_args()
    chosen = options.op or list(SHAPES)
    known = ["x".join(map(str, shape)) for name in chosen for shape in SHAPES[name]]
    if unknown := [shape for shape in options.shape or () if shape not in known]:
        parser.error(f"no such shape: {unknown[0]}; there are {', '.join(dict.fromkeys(known))}")
    machine.restrict(options.threads)  # JAX looks at the processors when it starts

    import descend

    descend.set_num_threads(options.threads)
    print(f"{options.threads} threads")
    print(f"{'operator':24}{'dtype':10}{'shape':16}{'call':10}{'XLA us':>12}{'Descend us':>12}{'ratio':>7}")
    ratios: dict[tuple[bool, str], list[float]] = {}
    for operator in chosen:
        for dtype in options.dtype or ("float32", "bfloat16"):
            for shape in SHAPES[operator]:
                name = "x".join(map(str, shape))
                if options.shape and name not in options.shape:
                    continue
                large = math.prod(shape) * (4 if dtype == "float32" else 2) >= 2**20
                for kind in KINDS:
                    xla, ours = medians(programs(operator, shape, dtype, kind), options.seconds)
                    ratios.setdefault((large, kind), []).append(xla / ours)
                    line = f"{operator:24}{dtype:10}{name:16}{kind:10}{xla:12.1f}{ours:12.1f}{xla / ours:7.2f}"
                    print(line, flush=True)
    for (large, kind), some in sorted(ratios.items()):
        mean = math.exp(sum(map(math.log, some)) / len(some))
        where = "from 1 MB up" if large else "below 1 MB"
        print(f"{where}, {kind}: ratios {min(some):.2f} to {max(some):.2f}, geometric mean {mean:.2f}")


if __name__ == "__main__":
    main()
