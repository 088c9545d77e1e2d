"""Forward + backward through autograd, beside PyTorch's own modules: ``python -m benchmarks.autograd``.

A step is ``module(x).backward(dy)`` with fresh outputs and fresh gradients. The two take turns, and the best of many
steps counts, so that what else the machine does falls on both and mostly on neither. "empty" is the step on a tensor
without rows: what registration, autograd and Python take where the kernel has nothing to do.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import descend.torch
from descend.torch import library

Step = Callable[[], object]

LONGEST_TURN = 0.005  # seconds

ROWS = ((8, 64), (128, 768), (512, 1024), (4096, 1024), (4096, 4096), (16384, 4096))
IMAGES = ((2, 32, 8, 8), (2, 64, 64, 64), (8, 320, 32, 32), (8, 320, 64, 64))
SCORES = ((2, 4, 32, 32), (2, 8, 128, 128), (4, 16, 256, 256), (4, 16, 512, 512))
SHAPES = {"layer_norm": ROWS, "rms_norm": ROWS, "group_norm_swish": IMAGES, "scaled_masked_softmax": SCORES}


class _Scores(nn.Module):
    """Masked softmax, written out or Descend's."""

    def __init__(self, length: int, ours: bool) -> None:
        super().__init__()
        self.mask = torch.ones(length, length, dtype=torch.bool).triu(1)
        self.softmax = descend.torch.ScaledMaskedSoftmax(0.125) if ours else None

    def forward(self, x: Tensor) -> Any:
        if self.softmax is not None:
            return self.softmax(x, self.mask)
        return (x * 0.125).masked_fill(self.mask, -10000.0).softmax(-1)


class _Whole(nn.Module):
    """Wraps a module: torch.compile does not compile modules of PyTorch's own files by themselves."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Any:
        return self.inner(x)


def modules(operator: str, shape: tuple[int, ...]) -> tuple[nn.Module, nn.Module]:
    """Descend's module, and PyTorch's for the same job."""
    if operator == "layer_norm":
        return descend.torch.LayerNorm(shape[-1]), nn.LayerNorm(shape[-1])
    if operator == "rms_norm":
        return descend.torch.RMSNorm(shape[-1]), nn.RMSNorm(shape[-1])
    if operator == "group_norm_swish":
        ours = descend.torch.GroupNormSwish(32, shape[1])
        return ours, nn.Sequential(nn.GroupNorm(32, shape[1]), nn.SiLU())
    return _Scores(shape[-1], True), _Scores(shape[-1], False)


def step(module: nn.Module, x: Tensor, dy: Tensor) -> Step:
    """One forward and backward with fresh gradients."""
    leaves = [x, *module.parameters()]

    def run() -> None:
        for leaf in leaves:
            leaf.grad = None
        module(x).backward(dy)

    return run


def best(
    steps: list[Step], seconds: float, calls: int = 1, before: Callable[[int], object] = lambda i: None
) -> list[float]:
    """The best time of each, in microseconds. They take turns; ``before(i)`` is called before each turn.

    A turn has some calls, fewer where they take long.
    """
    times = [math.inf] * len(steps)
    end, rounds = time.perf_counter() + seconds, 0
    while rounds < 5 or time.perf_counter() < end:
        rounds += 1
        for i, run in enumerate(steps):
            before(i)
            start = time.perf_counter()
            for _ in range(calls):
                begin = time.perf_counter()
                run()
                now = time.perf_counter()
                times[i] = min(times[i], now - begin)
                if now - start > LONGEST_TURN:
                    break
    return [1e6 * t for t in times]


def time_of_empty_kernel(operator: str, shape: tuple[int, ...], dtype: torch.dtype, seconds: float) -> list[float]:
    """The step's times, Descend's and PyTorch's, on a tensor of no rows, images or batches."""
    nothing = (0, *shape[1:])
    x, dy = torch.randn(nothing, dtype=dtype, requires_grad=True), torch.randn(nothing, dtype=dtype)
    return best([step(module.to(dtype), x, dy) for module in modules(operator, shape)], seconds)


def main() -> None:
    """Prints a line for each operator, dtype and shape, and the geometric means from 1 MB up."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--op", choices=SHAPES, action="append", help="an operator (default: all four)")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), action="append", help="(default: both)")
    parser.add_argument("--shape", action="append", help="such as 512x1024 (default: all)")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--seconds", type=float, default=1.0, help="for each line")
    parser.add_argument("--compile", action="store_true", help="both modules under torch.compile")
    parser.add_argument("--python", action="store_true", help="without the registration in C++")
    options = parser.parse_args()
    known = ["x".join(map(str, shape)) for name in options.op or SHAPES for shape in SHAPES[name]]
    if unknown := [shape for shape in options.shape or () if shape not in known]:
        parser.error(f"no such shape: {unknown[0]}; there are {', '.join(dict.fromkeys(known))}")
    torch.set_num_threads(options.threads)
    if options.python:
        library.leave_to_python()
    print(f"{options.threads} threads, registration {library.registration()}")
    print(
        f"{'operator':22}{'dtype':10}{'shape':20}{'MB':>8}{'ours us':>11}{'PyTorch us':>12}{'ratio':>7}"
        f"{'empty us':>10}{'PyTorch':>9}"
    )
    ratios: list[float] = []
    for dtype in options.dtype or ("float32", "bfloat16"):
        for operator in options.op or SHAPES:
            for shape in SHAPES[operator]:
                if options.shape and "x".join(map(str, shape)) not in options.shape:
                    continue
                x = torch.randn(shape).to(getattr(torch, dtype)).requires_grad_()
                dy = torch.randn(shape).to(x.dtype)
                pair = [module.to(x.dtype) for module in modules(operator, shape)]
                if options.compile:
                    torch._dynamo.reset()
                    pair = [_Whole(module) for module in pair]
                    for module in pair:
                        module.compile(fullgraph=True)
                ours, theirs = (step(module, x, dy) for module in pair)
                times = best([ours, theirs], options.seconds)
                empty = time_of_empty_kernel(operator, shape, x.dtype, options.seconds / 4)
                megabytes = x.numel() * x.element_size() / 2**20
                if megabytes >= 1:
                    ratios.append(times[1] / times[0])
                print(
                    f"{operator:22}{dtype:10}{'x'.join(map(str, shape)):20}{megabytes:8.3f}{times[0]:11.1f}"
                    f"{times[1]:12.1f}{times[1] / times[0]:7.2f}{empty[0]:10.1f}{empty[1]:9.1f}",
                    flush=True,
                )
    if ratios:
        mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
        print(f"from 1 MB up: geometric mean of the ratios {mean:.2f}, smallest {min(ratios):.2f}")


if __name__ == "__main__":
    main()
