"""Timing on a device: everyone in turn, round after round, on data rotated past the cache; medians of many.

A call is queued while the device is held busy, so that what the events enclose is the device's time and not Python's.
Where a job waits for the device itself the queue runs dry, which is told.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.gpu.device import Device
from benchmarks.operator import Call
from benchmarks.results import Timing

SAMPLE = 2e-3
"""Seconds on the device that one sample takes at least, as far as MOST calls go."""
MOST = 48
"""Calls in a sample: their kernels must fit in the device's queue, which holds about a thousand."""
TRIES = 8
"""How often a sample is taken anew, held twice as long, because the queue ran dry."""
PAST = 3
"""The size of all copies of a problem together, as a multiple of the cache."""
COPIES = 16


def copies(size: int, cache: int) -> int:
    """How many copies of a problem of so many bytes take turns, so that none finds itself in the cache."""
    return max(1, min(COPIES, math.ceil(PAST * cache / max(size, 1))))


@dataclass
class Contender:
    """A job among those measured in turn: the same on each copy of the data."""

    name: str
    jobs: Sequence[Call]
    scale: float = 1.0
    """What its seconds are multiplied by."""
    timing: Timing = field(default_factory=Timing)
    calls: int = 0
    """In a sample."""
    held: float = 1e-3
    """Seconds that the device is held while a sample is queued."""
    starved: bool = False
    """Whether the queue ran dry however long it was held: the seconds are then partly Python's."""

    def run(self, calls: int) -> None:
        """Queues so many calls; each result lives until its copy's turn comes again, so that results rotate too."""
        kept: list[Any] = [None] * len(self.jobs)
        for number in range(calls):
            kept[number % len(self.jobs)] = self.jobs[number % len(self.jobs)]()

    def calibrate(self, device: Device) -> None:
        """Compiles, warms up, and finds how many calls make a sample."""
        self.run(len(self.jobs))
        device.synchronize()
        self.calls = len(self.jobs)
        seconds = self.sample(device) / self.scale
        self.calls = max(len(self.jobs), min(MOST, math.ceil(SAMPLE / max(seconds, 1e-9))))

    def sample(self, device: Device) -> float:
        """Seconds of a call on the device, the mean of a few in a row that others of its own kind went before."""
        for _ in range(TRIES):
            device.hold(self.held)
            self.run(len(self.jobs))
            start = device.mark()
            self.run(self.calls)
            stop = device.mark()
            dry = device.reached(start)
            device.synchronize()
            if not dry:
                break
            self.held *= 2
        self.starved |= dry
        return self.scale * device.seconds(start, stop) / self.calls


def measure(device: Device, contenders: Sequence[Contender], rounds: int) -> None:
    """Fills the timings; every other round goes backwards, so that no one always follows the same neighbour."""
    for contender in contenders:
        contender.calibrate(device)
    for number in range(rounds):
        for contender in contenders if number % 2 == 0 else reversed(contenders):
            contender.timing.add(number, contender.sample(device))


def launch_seconds(device: Device, call: Call, calls: int = 200) -> float:
    """Seconds that the caller is busy with one call, while the device works behind its back."""
    call()
    device.synchronize()
    start = time.perf_counter()
    for _ in range(calls):
        call()
    seconds = (time.perf_counter() - start) / calls
    device.synchronize()
    return seconds
