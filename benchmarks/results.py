"""What was measured, as data: written to JSON as it comes, read back for tables, plots and comparisons."""

from __future__ import annotations

import json
import os
import re
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median, quantiles
from typing import Any

FORMAT = 1
NUMBERS = re.compile(r"\[\s+([-+.\deE,\s]*?)\s+\]")
"""A list of numbers, which belongs on one line."""
FORMS = {
    "out": "functional, out= given",
    "allocating": "functional, results allocated",
    "two_phase": "two phases and synchronize",
    "repeatable": "a repeatable executor and synchronize",
}
"""The ways to call Descend. Shares and ratios are those of ``out``, which all of the targets are about."""


@dataclass
class Timing:
    """Seconds of one call, measured once in each of some rounds."""

    seconds: list[float] = field(default_factory=list)
    rounds: list[int] = field(default_factory=list)

    def add(self, number: int, seconds: float) -> None:
        """One more round."""
        self.rounds.append(number)
        self.seconds.append(float(f"{seconds:.4g}"))

    def keep(self, rounds: set[int]) -> None:
        """Forgets the other rounds."""
        pairs = [pair for pair in zip(self.rounds, self.seconds, strict=True) if pair[0] in rounds]
        self.rounds, self.seconds = [number for number, _ in pairs], [seconds for _, seconds in pairs]

    @property
    def median(self) -> float:
        """The middle one."""
        return median(self.seconds)

    @property
    def spread(self) -> float:
        """How far the quarters lie apart, relative to the median."""
        if len(self.seconds) < 2:
            return 0.0
        low, _, high = quantiles(self.seconds, n=4)
        return (high - low) / self.median

    def over(self, other: Timing) -> float:
        """The median of the ratios within the rounds that both took part in; where there are none, of the medians."""
        theirs = dict(zip(other.rounds, other.seconds, strict=True))
        pairs = [(mine, theirs[n]) for n, mine in zip(self.rounds, self.seconds, strict=True) if n in theirs]
        return median(mine / their for mine, their in pairs) if pairs else self.median / other.median


@dataclass
class Peer:
    """Another library's time for the same job."""

    timing: Timing
    route: str
    """The fastest of its ways, which is the one that counts."""
    tried: dict[str, float | str] = field(default_factory=dict)
    """Seconds of each way in a short trial, or why it failed."""
    errors: list[dict[str, float]] = field(default_factory=list)


@dataclass
class Result:
    """One operator, shape and dtype."""

    operator: str
    shape: list[int]
    dtype: str
    bytes: int
    lives: str
    triad: Timing
    empty: Timing
    descend: dict[str, Timing]
    peers: dict[str, Peer]
    errors: list[dict[str, float]]
    """Of each output against float64: mere, mare, rmse."""
    others: float = 0.0
    """Share of the processors that other processes took meanwhile."""
    arithmetic: Timing | None = None
    """Of the arithmetic alone, where that is the limit."""

    @property
    def seconds(self) -> float:
        """Descend's median."""
        return self.descend["out"].median

    @property
    def speed(self) -> float:
        """Bytes a second."""
        return self.bytes / self.seconds

    @property
    def limit(self) -> Timing:
        """The bytes through memory, and an empty call."""
        empty = dict(zip(self.empty.rounds, self.empty.seconds, strict=True))
        limit = Timing()
        for number, seconds in zip(self.triad.rounds, self.triad.seconds, strict=True):
            limit.add(number, seconds + empty.get(number, self.empty.median))
        return limit

    @property
    def share(self) -> float:
        """Of the limit's speed, how much is reached."""
        return self.share_of(self.descend["out"])

    def share_of(self, timing: Timing) -> float:
        """The same for another's timing."""
        return self.limit.over(timing)

    @property
    def share_of_arithmetic(self) -> float | None:
        """The same of the arithmetic's speed."""
        return self.arithmetic.over(self.descend["out"]) if self.arithmetic else None

    @property
    def target(self) -> float:
        """The share of the limit that is asked for."""
        return TARGET_SHARE if self.arithmetic is None else TARGET_SHARE_OF_ARITHMETIC_BOUND

    def ratio(self, peer: str) -> float:
        """The peer's time over ours: above 1, we are faster."""
        return self.peers[peer].timing.over(self.descend["out"])

    @property
    def misses(self) -> list[str]:
        """The targets that are not reached, in words."""
        missed = []
        if self.lives == "memory":
            if self.share < self.target:
                missed.append(f"{self.share:.2f} of the limit")
            if self.share_of_arithmetic is not None and self.share_of_arithmetic < TARGET_SHARE:
                missed.append(f"{self.share_of_arithmetic:.2f} of the arithmetic's limit")
        missed += [f"slower than {peer}" for peer in self.peers if self.ratio(peer) < 1]
        return missed


TARGET_SHARE = 0.85
TARGET_SHARE_OF_ARITHMETIC_BOUND = 0.5
"""Of memory's limit, where arithmetic is the limit; of that TARGET_SHARE is asked."""


@dataclass
class SmallCall:
    """A call whose time is all overhead, by form and by the arrays' family, beside PyTorch's own operator."""

    operator: str
    shape: list[int]
    dtype: str
    yardstick: str
    timings: dict[str, Timing]
    """The yardstick under its own name; Descend as ``out, NumPy`` and so on."""

    def ratio(self, name: str) -> float:
        """The yardstick's time over this one's."""
        return self.timings[self.yardstick].over(self.timings[name])


@dataclass
class Report:
    """A whole run."""

    machine: dict[str, Any]
    grid: str
    results: list[Result] = field(default_factory=list)
    small: list[SmallCall] = field(default_factory=list)

    def save(self, path: Path) -> None:
        """Replaces the file in one step, so that an interruption leaves a whole one."""
        entries = [{**_summary(result), **asdict(result)} for result in self.results]
        document = {"format": FORMAT, "machine": self.machine, "grid": self.grid, "results": entries}
        document["small"] = [asdict(small) for small in self.small]
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(path.name + ".partial")
        text = json.dumps(document, indent=1)
        partial.write_text(NUMBERS.sub(lambda match: "[" + " ".join(match[1].split()) + "]", text) + "\n")
        os.replace(partial, path)

    @classmethod
    def load(cls, path: Path) -> Report:
        """What ``save`` wrote."""
        document = json.loads(path.read_text())
        if document.get("format") != FORMAT:
            raise ValueError(f"{path} is not a benchmark report of format {FORMAT}")
        report = cls(document["machine"], document["grid"])
        report.results = [_result(entry) for entry in document["results"]]
        report.small = [SmallCall(**{**entry, "timings": _timings(entry["timings"])}) for entry in document["small"]]
        return report


def _summary(result: Result) -> dict[str, Any]:
    """The figures that readers of the JSON look for first; computed anew when it is read."""
    medians = {form: timing.median for form, timing in result.descend.items()}
    return {
        "summary": {
            "seconds": medians,
            "spread": {form: round(timing.spread, 3) for form, timing in result.descend.items()},
            "gigabytes_per_second": round(result.speed / 1e9, 3),
            "limit_seconds": result.limit.median,
            "triad_gigabytes_per_second": round(result.bytes / result.triad.median / 1e9, 3),
            "share_of_limit": round(result.share, 4),
            "share_of_arithmetic": result.share_of_arithmetic and round(result.share_of_arithmetic, 4),
            "peer_seconds": {name: peer.timing.median for name, peer in result.peers.items()},
            "peer_over_descend": {name: round(result.ratio(name), 3) for name in result.peers},
            "misses": result.misses,
        }
    }


def _timings(entries: dict[str, Any]) -> dict[str, Timing]:
    return {name: Timing(**entry) for name, entry in entries.items()}


def _result(entry: dict[str, Any]) -> Result:
    fields = {key: value for key, value in entry.items() if key != "summary"}
    fields |= {name: Timing(**entry[name]) for name in ("triad", "empty")}
    if entry.get("arithmetic"):
        fields["arithmetic"] = Timing(**entry["arithmetic"])
    fields["descend"] = _timings(entry["descend"])
    fields["peers"] = {
        name: Peer(**{**peer, "timing": Timing(**peer["timing"])}) for name, peer in entry["peers"].items()
    }
    return Result(**fields)
