"""Device npu beside the CPU: ``python -m benchmarks.npu`` measures what an operator and a training step take on both.

Both devices take turns in one run, so that what else the machine does meets both alike.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

MOST_PER_OPERATOR = 8.0
"""Microseconds that an operator may take longer than on the CPU."""
MOST_FOR_A_STEP = 1.3
"""How many times the step on the CPU a step may take."""
DEVICES = ("cpu", "npu")
Step = Callable[[], Any]


def operators(device: str) -> dict[str, Step]:
    """Calls on so little data that all their time is overhead."""
    x, y = (torch.ones(8, 8, device=device) for _ in range(2))
    four = x.view(1, 1, 8, 8)
    weight = torch.ones(1, 1, 3, 3, device=device)
    tensors = [torch.ones(8, device=device) for _ in range(4)]
    return {
        "x + y": lambda: x + y,
        "x.add_(y)": lambda: x.add_(y),
        "x @ y": lambda: x @ y,
        "x.view": lambda: x.view(64),
        "x.t()": lambda: x.t(),
        "softmax": lambda: x.softmax(-1),
        "sum": lambda: x.sum(),
        "item": lambda: x[0, 0].item(),
        "cat": lambda: torch.cat([x, y]),
        "contiguous": lambda: x.t().contiguous(),
        "to(bfloat16)": lambda: x.to(torch.bfloat16),
        "empty": lambda: torch.empty(8, 8, device=device),
        "rand": lambda: torch.rand(8, 8, device=device),
        "conv2d": lambda: nn.functional.conv2d(four, weight),
        "foreach of 4": lambda: torch._foreach_add_(tensors, 1.0),
    }


class Transformer(nn.Module):
    """Ten million parameters: embedding, encoder layers with causal attention, projection to the vocabulary."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(320, 8, 1280, dropout=0.0, batch_first=True, norm_first=True)
        self.embedding = nn.Embedding(4096, 320)
        self.layers = nn.TransformerEncoder(layer, 6, enable_nested_tensor=False)
        self.head = nn.Linear(320, 4096)

    def forward(self, tokens: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1], device=tokens.device)
        result: Tensor = self.head(self.layers(self.embedding(tokens), mask, is_causal=True))
        return result


def training(device: str) -> tuple[Step, int]:
    """A step of AdamW on one batch of 4 sequences of 128 tokens, and the number of parameters."""
    torch.manual_seed(0)
    model = Transformer().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    tokens = torch.randint(0, 4096, (4, 129)).to(device)

    def step() -> None:
        optimizer.zero_grad()
        logits = model(tokens[:, :-1])
        nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()).backward()
        optimizer.step()

    return step, sum(p.numel() for p in model.parameters())


def seconds(step: Step, calls: int) -> float:
    """Seconds of one call, averaged over some; includes the wait for the device."""
    start = time.perf_counter()
    for _ in range(calls):
        step()
    torch.accelerator.synchronize()
    return (time.perf_counter() - start) / calls


def take_turns(steps: dict[str, Step], calls: int, rounds: int) -> dict[str, float]:
    """Median seconds of a call on each device."""
    times: dict[str, list[float]] = {device: [] for device in steps}
    for step in steps.values():
        seconds(step, calls)
    for _ in range(rounds):
        for device, step in steps.items():
            times[device].append(seconds(step, calls))
    return {device: statistics.median(all_) for device, all_ in times.items()}


def main() -> int:
    """Print the figures; 1 where one is above what is asked."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title=f"Device npu beside the CPU, {torch.get_num_threads()} threads", title_justify="left")
    for column in ("what", "cpu", "npu", "more", "asked"):
        table.add_column(column, justify="left" if column == "what" else "right")
    missed = 0
    calls = {device: operators(device) for device in DEVICES}
    for name in calls["cpu"]:
        took = take_turns({device: calls[device][name] for device in DEVICES}, 300, 15)
        cpu, npu = (took[device] * 1e6 for device in DEVICES)
        missed += npu - cpu > MOST_PER_OPERATOR
        table.add_row(name, f"{cpu:.1f} µs", f"{npu:.1f} µs", f"{npu - cpu:.1f} µs", f"{MOST_PER_OPERATOR:.0f} µs")
    steps = {device: training(device) for device in DEVICES}
    took = take_turns({device: step for device, (step, _) in steps.items()}, 1, 5)
    ratio = took["npu"] / took["cpu"]
    missed += ratio > MOST_FOR_A_STEP
    name = f"a step of training, {steps['cpu'][1] / 1e6:.1f} million parameters"
    table.add_row(name, *(f"{took[d] * 1e3:.0f} ms" for d in DEVICES), f"{ratio:.2f} x", f"{MOST_FOR_A_STEP} x")
    Console().print(table)
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
