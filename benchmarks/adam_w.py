"""Steps of `descend.torch.AdamW` beside those of ``torch.optim.AdamW``, fused and foreach, in place.

python -m benchmarks.adam_w [--threads N] [--seconds S]: processor time of a step, medians; the three take turns.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

import descend.torch

SIZES: dict[str, Sequence[tuple[int, ...]]] = {
    "100 norms of 768": [(768,)] * 100,
    "64 x 768": [(64, 768)],
    "768 x 768": [(768, 768)],
    "a block of GPT-2": [(768,)] * 4
    + [(2304, 768), (2304,), (768, 768), (768,), (3072, 768), (3072,), (768, 3072), (768,)],
    "4096 x 4096": [(4096, 4096)],
}
WAYS: dict[str, Callable[..., Any]] = {
    "descend": descend.torch.AdamW,
    "fused": lambda p, **more: torch.optim.AdamW(p, fused=True, **more),
    "foreach": lambda p, **more: torch.optim.AdamW(p, foreach=True, **more),
}


def step_of(make: Callable[..., Any], shapes: Sequence[tuple[int, ...]], dtype: torch.dtype, **more: Any) -> Any:
    """The step of an optimizer whose state is there."""
    torch.manual_seed(0)
    parameters = [torch.nn.Parameter(torch.randn(shape).to(dtype)) for shape in shapes]
    for p in parameters:
        p.grad = torch.randn(p.shape).to(dtype)
    optimizer = make(parameters, **more)
    optimizer.step()
    return optimizer.step


def measure(steps: dict[str, Any], seconds: float) -> dict[str, float]:
    """Milliseconds of processor time, medians of turns."""
    found: dict[str, list[float]] = {name: [] for name in steps}
    end = time.monotonic() + seconds
    while time.monotonic() < end or min(map(len, found.values())) < 5:
        for name, step in steps.items():
            start = time.process_time()
            step()
            found[name].append(1e3 * (time.process_time() - start))
    return {name: statistics.median(times[1:]) for name, times in found.items()}


def main() -> None:
    """Prints a line for each size and dtype."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=2.0)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    print("| parameters | dtype | GB/s | descend, ms | fused | foreach |\n| --- | --- | --- | --- | --- | --- |")
    for size, shapes in SIZES.items():
        for dtype in (torch.float32, torch.bfloat16, "bfloat16, moments float32"):
            narrow = torch.bfloat16 if isinstance(dtype, str) else dtype
            ways = {name: step_of(make, shapes, narrow) for name, make in WAYS.items()}
            if isinstance(dtype, str):
                ways["descend"] = step_of(descend.torch.AdamW, shapes, narrow, moments=torch.float32)
            found = measure(ways, given.seconds)
            elements = sum(torch.Size(shape).numel() for shape in shapes)
            # Read p, g, m, v, write p, m, v.
            moved = elements * (3 * narrow.itemsize + 4 * (4 if isinstance(dtype, str) else narrow.itemsize))
            ours = found["descend"]
            ratios = " | ".join(f"{found[name] / ours:.2f}" for name in ("fused", "foreach"))
            print(
                f"| {size} | {str(dtype).removeprefix('torch.')} | {moved / ours / 1e6:.1f} | {ours:.4g} | {ratios} |"
            )


if __name__ == "__main__":
    main()
