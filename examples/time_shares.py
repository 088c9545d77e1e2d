"""Where the time of a training step goes: into the operators, and into what Descend leaves to PyTorch.

A few more steps run under torch.profiler, with marks around the modules that Descend computes. Their forward share is
the time between the marks. Their backward share is that of the autograd nodes that were made between the marks, found
by sequence number, with the sums of gradients that they trigger. What matrix products and convolutions take, which
Descend leaves to PyTorch, bounds what it can save.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from training import Batch, Run

Shares = dict[str, dict[str, float]]
"""Of a step's time, by operator and by way: forward or backward."""

_NODE = "autograd::engine::evaluate_function: "
_PRODUCTS = {
    f"aten::{name}"
    for name in ("mm", "addmm", "bmm", "baddbmm", "mkldnn_convolution", "thnn_conv2d", "convolution_backward")
}


def products(run: Run, batch: Batch) -> float:
    """The share of a step that matrix products and convolutions take, under the profiler."""
    with torch.autograd.profiler.profile(use_kineto=False) as profile:
        whole = -time.perf_counter()
        run.step(batch)
        whole += time.perf_counter()
    return sum(e.self_cpu_time_total for e in profile.function_events if e.name in _PRODUCTS) / 1e6 / whole


def shares(run: Run, batch: Batch) -> Shares:
    """The share of a step that each operator takes, forward and backward, under the profiler."""
    operators = run.task.operators(run.model)
    handles = []
    for kind, modules in operators.items():
        for module in modules:
            mark = _Mark(kind)
            handles += [module.register_forward_pre_hook(mark.begin), module.register_forward_hook(mark.end)]
    try:
        with torch.autograd.profiler.profile(use_kineto=False) as profile:
            whole = -time.perf_counter()
            run.differentiate(batch)
            whole += time.perf_counter()
    finally:
        for handle in handles:
            handle.remove()
    whole -= time.perf_counter()
    run.update()
    whole += time.perf_counter()
    seconds = _attribute(profile.function_events, list(operators))
    return {kind: {way: time / whole for way, time in ways.items()} for kind, ways in seconds.items()}


class _Mark:
    """Two hooks that mark a module's forward in the profile."""

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def begin(self, *_: Any) -> None:
        self.range = torch.profiler.record_function(self.kind)
        self.range.__enter__()

    def end(self, *_: Any) -> None:
        self.range.__exit__(None, None, None)


def _attribute(events: Sequence[Any], kinds: Sequence[str]) -> Shares:
    """The seconds between the marks of each kind, and of the autograd nodes that were made there."""
    seconds: dict[str, dict[str, float]] = {kind: {"forward": 0.0, "backward": 0.0} for kind in kinds}
    # Several functions record a node's number before the node is made. The last of them makes the node.
    made: dict[int, str | None] = {}
    for event in sorted(events, key=lambda e: e.time_range.start):
        if event.name in seconds:
            seconds[event.name]["forward"] += event.cpu_time_total / 1e6
        elif event.sequence_nr >= 0 and event.scope == 0 and not event.name.startswith(_NODE):
            made[event.sequence_nr] = next((e.name for e in _around(event) if e.name in seconds), None)
    for event in events:
        kind = made.get(event.sequence_nr) if event.name.startswith(_NODE) else None
        if kind is not None:
            seconds[kind]["backward"] += event.cpu_time_total / 1e6
    return seconds


def _around(event: Any) -> Iterator[Any]:
    while event.cpu_parent is not None:
        event = event.cpu_parent
        yield event
