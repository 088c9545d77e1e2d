"""What an operator's rows take with their data at hand.

Of two problems that a first-level cache holds, one with half the other's rows (`benchmarks.near`), the difference is
what the rows take: neither the call nor what it sets up, which of so few rows would be most of the time.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median

import numpy as np

from benchmarks import ours
from benchmarks.near import Room
from benchmarks.operator import Call, Operator, Shape

PLACES = 5
"""The arrays' addresses may conflict in a cache: of so many placements the median counts."""
MOMENT = 0.4e-3
"""Most seconds for the calls at one placement."""


def problems(operator: Operator, shape: Shape, itemsize: int, room: int) -> tuple[Shape, Shape]:
    """The two whose difference counts; where the whole problem fits, itself and nothing."""
    near = Room(room, lambda shape: operator.bytes(shape, itemsize))
    return (shape, operator.nothing) if near.holds(shape) else operator.near(shape, near)


def stopwatch(operator: Operator, shapes: tuple[Shape, Shape], dtype: str) -> Callable[[], float]:
    """What tells the seconds that a call on the first of two shapes takes longer than one on the second."""
    rng = np.random.default_rng(0)
    places = [[ours.functional(operator, operator.make(shape, dtype, rng)) for shape in shapes] for _ in range(PLACES)]
    return lambda: max(0.0, median(longer(*jobs) for jobs in places))


def longer(job: Call, other: Call) -> float:
    """Seconds by which the one takes longer than the other, in turn, the median of as many calls as there is time."""
    clock, times, others = time.perf_counter, list[float](), list[float]()
    end = clock() + MOMENT
    while len(times) < 5 or clock() < end:
        for call, seconds in ((job, times), (other, others)):
            start = clock()
            call()
            seconds.append(clock() - start)
    return median(times) - median(others)
