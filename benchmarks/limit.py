"""The machine's limits: how fast it can read and write as many bytes, and how far apart its processors are."""

from __future__ import annotations

from benchmarks import machine
from benchmarks.harness import Limit

SMALL = 8 << 20
"""Below this one thread may be faster than all of them."""
ALONE = 0.75
"""The least speed of each of several threads with a core each, relative to one thread. Two on one core have 0.57."""


def triad_seconds(size: int, threads: int) -> float:
    """Seconds to move `size` bytes with all threads, by plain or non-temporal stores, whichever is faster."""
    from descend import _native

    seconds = 0.004 if size < SMALL else 0.04
    teams = {1, threads} if size < SMALL else {threads}
    return float(size / max(_native.triad(size, team, seconds) for team in teams))


def limit(size: int, room: int, threads: int) -> Limit:
    """The limit as a contender in the rounds: of a job that moves `size` bytes and has `room` bytes of memory."""
    return Limit("limit", "descend", lambda: None, seconds=lambda: triad_seconds(room, threads) * size / room)


def handover_seconds() -> float:
    """Seconds that a cache line takes from one processor to another; 0 if it could not be measured."""
    from descend import _native

    return _native.handover(0.001)


def share_a_core(threads: int) -> bool:
    """Whether so many threads compute as if some of them shared a core, on processors that are said to have one each.

    A virtual machine's may be moved onto one core at any time, whatever it says.
    """
    from descend import _native

    if threads < 2 or not machine.has_a_core_each():
        return False
    one, together = (_native.group_norm_swish_grad_arithmetic(True, 1 << 20, team, 0.002) for team in (1, threads))
    return bool(one / together < ALONE * threads)


def handover() -> Limit:
    """The same, as a contender in the rounds."""
    return Limit("handover", "descend", lambda: None, seconds=handover_seconds)
