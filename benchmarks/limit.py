"""What the machine gives: two reads and one write of the same bytes at its best, and how far processors are apart."""

from __future__ import annotations

from benchmarks.harness import Limit

SMALL = 8 << 20
"""Below this one thread may be faster than all of them."""


def triad_seconds(size: int, threads: int) -> float:
    """Seconds in which `size` bytes can move, all threads, the better of plain and non-temporal stores."""
    from descend import _native

    seconds = 0.004 if size < SMALL else 0.04
    teams = {1, threads} if size < SMALL else {threads}
    return float(size / max(_native.triad(size, team, seconds) for team in teams))


def limit(size: int, threads: int) -> Limit:
    """The limit as one who takes part in the rounds."""
    return Limit("limit", "descend", lambda: None, seconds=lambda: triad_seconds(size, threads))


def handover_seconds() -> float:
    """Seconds in which a cache line comes from one processor to another; 0 where that could not be seen."""
    from descend import _native

    return _native.handover(0.001)


def handover() -> Limit:
    """The same, as one who takes part in the rounds."""
    return Limit("handover", "descend", lambda: None, seconds=handover_seconds)
