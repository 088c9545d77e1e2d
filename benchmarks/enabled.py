"""PyTorch's own norms with Descend under them and without: ``python -m benchmarks.enabled``.

``F.layer_norm`` and ``F.rms_norm`` are called alone, their gradients alone, and both in one step, with fresh results.
The two ways take turns of some calls, and the best of many calls counts, so that what else the machine does falls on
both and mostly on neither. The exit status is 1 where a call with Descend takes more than a microsecond longer.

With ``--compile`` the norms are in functions that ``torch.compile`` compiled: alone, or between other operators.
"""

from __future__ import annotations

import argparse
import itertools
import math
import sys
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

import descend.torch
from benchmarks.autograd import ROWS, Step, best
from descend.torch import overriding, stable

CALLS = 20  # of one way in a turn: the first few after the change are slower
MOST = 1.0  # microseconds that a call may take longer
SHAPES = ((1, 8), (1, 64), (1, 1024), (8, 8), *ROWS)
# dtypes of the input and of the parameters; the last is what autocast gives
DTYPES = {
    "float32": (torch.float32, torch.float32),
    "bfloat16": (torch.bfloat16, torch.bfloat16),
    "float16": (torch.float16, torch.float16),
    "mixed": (torch.bfloat16, torch.float32),
}
KINDS = ("forward", "backward", "step")
GRAPHS = ("alone", "between")
Norm = Callable[[Tensor], Tensor]
_count = itertools.count()


def norm(operator: str, shape: tuple[int, ...], dtype: torch.dtype) -> tuple[Norm, list[Tensor]]:
    """PyTorch's function, and its parameters."""
    size = shape[-1:]
    weight, bias = (torch.randn(size, dtype=dtype, requires_grad=True) for _ in range(2))
    if operator == "layer_norm":
        return lambda x: F.layer_norm(x, size, weight, bias), [weight, bias]
    return lambda x: F.rms_norm(x, size, weight), [weight]


def compiled(function: Norm, graph: str) -> Norm:
    """The function as ``torch.compile`` compiles it at its first call, alone or with operators around it."""

    def run(x: Tensor) -> Tensor:
        return function(x) if graph == "alone" else F.gelu(function(x + x.sin())) * x

    run.__code__ = run.__code__.replace(co_name=f"run_{next(_count)}")  # what PyTorch compiles, it knows by its code
    return torch.compile(run)


def calls(
    operator: str, shape: tuple[int, ...], dtypes: tuple[torch.dtype, torch.dtype], way: int, graph: str | None
) -> list[Step]:
    """The calls that are measured, one for each kind. ``way``: 1 with Descend, 0 without."""
    function, parameters = norm(operator, shape, dtypes[1])
    if graph:
        function = compiled(function, graph)
    x, dy = torch.randn(shape).to(dtypes[0]), torch.randn(shape).to(dtypes[0])
    leaves = [x.clone().requires_grad_(), *parameters]
    switch(way)
    y = function(leaves[0])

    def forward() -> None:
        with torch.no_grad():
            function(x)

    def backward() -> None:
        torch.autograd.grad(y, leaves, dy, retain_graph=True)

    def step() -> None:
        torch.autograd.grad(function(leaves[0]), leaves, dy)

    if not graph:
        return [forward, backward, step]
    forward()  # compiles it
    step()
    return [forward, step]  # the backward pass of a compiled function runs once


def switch(way: int) -> None:
    """Descend under PyTorch's norms, or not."""
    (descend.torch.enable if way else descend.torch.disable)()


def main() -> int:
    """Prints a line for each operator, dtypes, shape and kind; 1 where one takes longer than it may."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--op", choices=("layer_norm", "rms_norm"), action="append", help="(default: both)")
    parser.add_argument("--dtype", choices=DTYPES, action="append", help="of input and parameters (default: all)")
    parser.add_argument("--shape", action="append", help="such as 512x1024 (default: all)")
    parser.add_argument("--compile", choices=GRAPHS, help="in compiled functions")
    parser.add_argument("--stable", action="store_true", help="by PyTorch's stable interface, as in a wheel")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--seconds", type=float, default=1.0, help="for each line")
    options = parser.parse_args()
    if options.stable:
        overriding._form = lambda: stable
    names = {"x".join(map(str, shape)): shape for shape in SHAPES}
    if unknown := [name for name in options.shape or () if name not in names]:
        parser.error(f"no such shape: {unknown[0]}; there are {', '.join(names)}")
    torch.set_num_threads(options.threads)
    print(f"{options.threads} threads")
    columns = f"{'PyTorch us':>12}{'Descend us':>12}{'ratio':>7}{'more us':>12}"
    print(f"{'operator':12}{'dtype':10}{'shape':14}{'call':10}{columns}")
    ratios: dict[bool, list[float]] = {True: [], False: []}
    most = -math.inf
    for operator in options.op or ("layer_norm", "rms_norm"):
        for dtype in options.dtype or DTYPES:
            for name in options.shape or names:
                shape = names[name]
                ways = [calls(operator, shape, DTYPES[dtype], way, options.compile) for way in (0, 1)]
                kinds = ("forward", "step") if options.compile else KINDS
                for kind, pair in zip(kinds, zip(*ways, strict=True), strict=True):
                    without, with_ = best(list(pair), options.seconds, CALLS, switch)
                    most = max(most, with_ - without)
                    ratios[math.prod(shape) * DTYPES[dtype][0].itemsize >= 2**20].append(without / with_)
                    print(
                        f"{operator:12}{dtype:10}{name:14}{kind:10}{without:12.2f}{with_:12.2f}{without / with_:7.2f}"
                        f"{with_ - without:12.2f}",
                        flush=True,
                    )
    switch(0)
    for large, some in ratios.items():
        if some:
            mean = math.exp(sum(map(math.log, some)) / len(some))
            where = "from 1 MB up" if large else "below 1 MB"
            print(f"{where}: ratios {min(some):.2f} to {max(some):.2f}, geometric mean {mean:.2f}")
    print(f"the most that a call with Descend takes longer: {most:.2f} us")
    return int(most > MOST)


if __name__ == "__main__":
    sys.exit(main())
