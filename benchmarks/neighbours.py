"""Other processes on the same processors: how much time they took, so that disturbed rounds can be left out."""

from __future__ import annotations

import os
import time
from pathlib import Path

STAT = Path("/proc/stat")
DISTURBED = 0.1
"""Share of all processors that others may take in a round that counts."""


class Neighbours:
    """Tells the share of all processors that went to other processes, or to other machines on the same host."""

    def __init__(self) -> None:
        self._last = self._read()

    def share(self) -> float:
        """The share since the last call; 0 if the system does not tell."""
        last, self._last = self._last, self._read()
        busy, own, wall = (now - then for now, then in zip(self._last, last, strict=True))
        available = wall * (os.cpu_count() or 1)
        # The system counts in ticks: one tick more or less does not count.
        return max(0.0, busy - own - 0.01) / available if available else 0.0

    @staticmethod
    def _read() -> tuple[float, float, float]:
        wall = time.perf_counter()
        try:
            fields = [int(field) for field in STAT.read_text().split("\n", 1)[0].split()[1:9]]
        except OSError:
            return 0.0, 0.0, wall
        user, nice, system, _idle, _iowait, irq, soft, steal = fields
        ticks = os.sysconf("SC_CLK_TCK")
        times = os.times()
        return (user + nice + system + irq + soft + steal) / ticks, times.user + times.system, wall
