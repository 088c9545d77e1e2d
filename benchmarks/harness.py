"""Timing: everyone in turn, round after round, so that a noisy moment hits all alike; medians of many.

Threads of other libraries go on spinning for some 10 ms after a parallel region and would take cores from whoever comes
next, so between families (Descend, PyTorch, JAX) there is a pause, and after it calls that are not counted until the
new one runs at its usual speed.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from statistics import median

from benchmarks.neighbours import DISTURBED, Neighbours
from benchmarks.operator import Call
from benchmarks.results import FORMS, Timing

SAMPLE = 200e-6
"""The least seconds of one sample: a faster job is repeated within it."""
PAUSE = 0.015
SETTLE = 10
"""Calls in a row before one counts, as far as the time to warm up allows: what fits in the last cache takes so many to
get there after others' data, and the memory limit is measured in the same state."""


@dataclass(frozen=True)
class Effort:
    """How long to measure one problem."""

    seconds: float = 3.0
    fewest: int = 7
    most: int = 101
    patience: float = 3.0
    """If other processes disturb the rounds, measure for up to this many times the seconds."""
    slow: int = 5
    """Rounds after which a contender drops out if it has used a third of the time."""
    warm_up: float = 0.06
    """Most seconds for a job to warm up."""
    trial: float = 0.3
    """Seconds to find out which of several ways is the fastest."""
    forms: tuple[str, ...] = tuple(FORMS)
    """The ways to call Descend."""

    @classmethod
    def brief(cls, seconds: float) -> Effort:
        """For one of very many problems."""
        return cls(seconds, fewest=3, most=7, slow=2, warm_up=0.02, trial=0.05, forms=("out", "allocating"))


@dataclass
class Contender:
    """A job among those measured in turn."""

    name: str
    family: str
    call: Call
    timing: Timing = field(default_factory=Timing)
    prepare: Callable[[], None] = lambda: None
    """Called before its turn."""
    calls: int = 1
    usual: float = 0.0
    spent: float = 0.0

    def once(self) -> float:
        """Seconds of one call."""
        start = time.perf_counter()
        self.call()
        return time.perf_counter() - start

    def warm(self, most: float) -> None:
        """Calls the job until it runs at its usual speed. A slow job needs none of these calls."""
        self.prepare()
        deadline = time.perf_counter() + most
        calls = 0
        while self.usual < most and time.perf_counter() < deadline:
            calls += 1
            if self.once() <= 1.5 * self.usual and calls >= SETTLE:
                break

    def calibrate(self, most: float) -> None:
        """Finds the usual speed, and from it how many calls make a sample."""
        self.prepare()
        seconds = [self.once()]
        deadline = time.perf_counter() + most
        while seconds[-1] < most and time.perf_counter() < deadline:
            seconds.append(self.once())
        self.usual = median(seconds[len(seconds) // 2 :])
        self.calls = max(1, round(SAMPLE / self.usual))

    def sample(self) -> float:
        """Seconds of a call, the mean of a few in a row."""
        call, rounds = self.call, repeat(None, self.calls)
        start = time.perf_counter()
        for _ in rounds:
            call()
        seconds = (time.perf_counter() - start) / self.calls
        self.calls = max(self.calls, round(SAMPLE / seconds) if seconds * self.calls < SAMPLE / 2 else 1)
        return seconds


@dataclass
class Limit(Contender):
    """The memory limit takes part as a contender whose call gives its own seconds."""

    seconds: Callable[[], float] = lambda: 0.0

    def warm(self, most: float) -> None:
        """Nothing to do: the limit's own function warms up."""
        self.prepare()

    def calibrate(self, most: float) -> None:
        """Nothing to find."""

    def sample(self) -> float:
        """The seconds that the limit measured for the bytes."""
        return self.seconds()


def measure(contenders: Sequence[Contender], effort: Effort, crowded: Callable[[], bool] = lambda: False) -> float:
    """Fills the contenders' timings; returns the share of the processors that others took from the rounds that count.

    Slow contenders drop out once their share of the time is spent. Rounds that others disturbed do not count, unless
    there are too few quiet ones; nor do those after which the processors are found ``crowded``, as if others had all.
    """
    family = ""
    for contender in contenders:
        family = _pause(family, contender)
        contender.calibrate(effort.warm_up)
    start, neighbours, others = time.perf_counter(), Neighbours(), dict[int, float]()
    collecting = gc.isenabled()
    gc.disable()
    try:
        for number in range(effort.most):
            quiet = sum(share <= DISTURBED for share in others.values())
            enough = effort.seconds * (1 if quiet >= effort.fewest else effort.patience)
            if number >= effort.fewest and time.perf_counter() - start > enough:
                break
            for contender in _in_turn(contenders, number):
                if contender.spent > enough / 3 and len(contender.timing.seconds) >= effort.slow:
                    continue
                family = _pause(family, contender)
                began = time.perf_counter()
                contender.warm(effort.warm_up)
                contender.timing.add(number, contender.sample())
                contender.spent += time.perf_counter() - began
            others[number] = max(neighbours.share(), float(crowded()))
    finally:
        if collecting:
            gc.enable()
    kept = {number for number, share in others.items() if share <= DISTURBED}
    for contender in contenders:
        if sum(number in kept for number in contender.timing.rounds) >= min(effort.fewest, effort.slow):
            contender.timing.keep(kept)
    counted = [share for number, share in others.items() if number in kept or len(kept) < effort.fewest]
    return sum(counted) / max(1, len(counted))


def fastest(contenders: Sequence[Contender], effort: Effort) -> Contender:
    """The best of several ways to do one job, by a short trial."""
    if len(contenders) == 1:
        return contenders[0]
    time.sleep(PAUSE)
    measure(contenders, Effort(effort.trial, fewest=min(3, effort.slow), most=15, warm_up=effort.warm_up))
    best = min(contenders, key=lambda contender: contender.timing.median)
    return best


def _in_turn(contenders: Sequence[Contender], number: int) -> list[Contender]:
    """Every other round in reverse order, so that no contender always follows the same one."""
    return list(contenders if number % 2 == 0 else reversed(contenders))


def _pause(family: str, contender: Contender) -> str:
    if contender.family != family:
        time.sleep(PAUSE)
    return contender.family
