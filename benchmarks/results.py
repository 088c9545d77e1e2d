"""What was measured, as data: written to JSON as it comes, read back for tables, plots and comparisons."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from benchmarks import files

FORMAT = 2
EXPONENT = re.compile(r"(?<=\d)e-0(?=\d)")
MEASURES = ("mere", "mare", "rmse")
"""Of the errors of an output."""
FORMS = {
    "out": "functional, out= given",
    "allocating": "functional, results allocated",
    "two_phase": "two phases and synchronize",
    "repeatable": "a repeatable executor and synchronize",
}
"""The ways to call Descend. Shares and ratios are those of ``out``, which all of the targets are about."""
ONE_THREAD = "one_thread"
"""``out`` with one thread, in the same rounds as with more."""


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
        """The interquartile range, relative to the median."""
        if len(self.seconds) < 2:
            return 0.0
        low, _, high = quantiles(self.seconds, n=4)
        return (high - low) / self.median

    @property
    def noise(self) -> float:
        """The noise of the median: twice the spread, divided by the square root of the number of samples."""
        return float(2 * self.spread / max(1, len(self.seconds)) ** 0.5)

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
    threads: int
    bytes: int
    lives: str
    """The cache, of the processors in use, that holds the bytes; or memory."""
    triad: Timing
    empty: Timing
    descend: dict[str, Timing]
    peers: dict[str, Peer]
    errors: list[dict[str, float]]
    """Of each output against float64: mere, mare, rmse."""
    others: float = 0.0
    """Share of the processors that other processes took meanwhile."""
    arithmetic: Timing | None = None
    """Seconds of the arithmetic alone, if that is the limit."""
    faults: float | None = None
    """Pages mapped anew by a call that allocates its results, in a loop."""
    core: Timing | None = None
    """Seconds for one thread to compute the rows with their data in the first-level cache, without the call."""
    handover: Timing | None = None
    """Seconds of a cache line from one processor to another, with several threads; 0: not measured."""

    @property
    def key(self) -> Key:
        """Operator, shape, dtype and threads: what identifies the result."""
        return self.operator, tuple(self.shape), self.dtype, self.threads

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
        """Seconds of the limit: the triad of the same bytes, and an empty call."""
        empty = dict(zip(self.empty.rounds, self.empty.seconds, strict=True))
        limit = Timing()
        for number, seconds in zip(self.triad.rounds, self.triad.seconds, strict=True):
            limit.add(number, seconds + empty.get(number, self.empty.median))
        return limit

    @property
    def share(self) -> float:
        """The share of the memory's limit that is reached."""
        return self.share_of(self.descend["out"])

    def share_of(self, timing: Timing) -> float:
        """The share that another timing reaches."""
        return self.limit.over(timing)

    @property
    def share_of_arithmetic(self) -> float | None:
        """The share of the arithmetic's limit that is reached."""
        return self.arithmetic.over(self.descend["out"]) if self.arithmetic else None

    @property
    def reached(self) -> float:
        """The share of that limit which holds: memory's, or the arithmetic's where it takes longer."""
        return max(self.share, self.share_of_arithmetic or 0.0)

    @property
    def target(self) -> float | None:
        """The share that is asked for in the median; None where the bytes live partly in memory, partly in cache."""
        return None if self.lives == "edge" else TARGET_IN_MEMORY if self.lives == "memory" else TARGET_IN_CACHE

    @property
    def speedup(self) -> float | None:
        """One thread's time divided by that of all: below 1, more threads are slower."""
        return self.descend[ONE_THREAD].over(self.descend["out"]) if ONE_THREAD in self.descend else None

    @property
    def apart(self) -> bool | None:
        """Whether the processors had each a last-level cache of its own; None where that was not measured."""
        return None if self.way is None else self.way > APART

    @property
    def way(self) -> float | None:
        """Seconds that a cache line took from one processor to another."""
        seen = [seconds for seconds in self.handover.seconds if seconds] if self.handover else []
        return median(seen) if seen else None

    @property
    def workers(self) -> int:
        """The threads that share the work: one, where more make no difference, as what is small stays with one."""
        return 1 if self.speedup is not None and abs(self.speedup - 1) < SHARED else self.threads

    @property
    def core_share(self) -> float | None:
        """The share of our time that the rows take with their data in the first-level cache."""
        return self.core.over(self.descend["out"]) / self.workers if self.core else None

    @property
    def memory_share(self) -> float:
        """The share of our time that the triad of the same bytes takes, without the call."""
        return self.triad.over(self.descend["out"])

    @property
    def call_share(self) -> float:
        """The share of our time that an empty call takes."""
        return self.empty.over(self.descend["out"])

    @property
    def overlapped(self) -> float | None:
        """The share that would be reached if arithmetic and memory overlapped completely; None if not known."""
        if self.core_share is None:
            return None
        return self.reached / min(1.0, max(self.core_share, self.memory_share) + self.call_share)

    @property
    def held_back_by(self) -> str | None:
        """What most of our time goes to, one of HINDRANCES; None where that was not measured."""
        core, memory = self.core_share, self.memory_share
        if core is None:
            return None
        if self.call_share >= CALL_ALONE:
            return "the call"
        if max(core, memory) >= ALONE:
            return "arithmetic" if core >= memory else "memory"
        return "both" if core + memory >= TOGETHER else "neither"

    def ratio(self, peer: str) -> float:
        """The peer's time over ours: above 1, we are faster."""
        return self.peers[peer].timing.over(self.descend["out"])

    def misses(self, row: int) -> list[str]:
        """The targets that are missed, in words. `row`: elements of a row. Differences within the noise are no miss."""
        ours, missed = self.descend["out"], []
        if self.bytes >= LARGE and row >= LONG and self.reached < LEAST_SHARE:
            missed.append(f"{self.reached:.2f} of the limit")
        for name, peer in self.peers.items():
            if (ratio := self.ratio(name)) < 1 - max(NOISE, ours.noise, peer.timing.noise):
                missed.append(f"slower than {name}: {ratio:.2f}")
        if self.speedup is not None and self.speedup < 1 - max(NOISE, ours.noise, self.descend[ONE_THREAD].noise):
            missed.append(f"{self.speedup:.2f} times as fast as one thread")
        return missed


TARGET_IN_MEMORY, TARGET_IN_CACHE = 0.90, 0.70
"""Medians of the share of the limit that are asked for, beyond the last cache and within it."""
LARGE, LONG, LEAST_SHARE = 256 << 10, 16, 0.5
"""From so many bytes, and elements a row, on, no point may reach less than this share of its limit."""
ALONE, TOGETHER, CALL_ALONE = 0.75, 0.9, 0.5
"""Shares of the time from which on one thing holds a point back: arithmetic or memory; the two together; the call."""
HINDRANCES = {
    "arithmetic": f"the core takes {ALONE:.0%} of the time or more",
    "memory": f"the triad of the same bytes takes {ALONE:.0%} of the time or more, and more than the core",
    "both": f"core and triad together take {TOGETHER:.0%} of the time or more: they do not overlap",
    "the call": f"an empty call takes {CALL_ALONE:.0%} of the time or more",
    "neither": "work done once for all rows, threads that wait, or memory that is slower than in the triad",
}
"""What may hold a point back, and how it is recognised."""
APART = 100e-9
"""Seconds that a cache line takes between processors which share no cache, at least."""
SHARED = 0.1
"""If several threads are faster or slower than one by at least this much, they share the work."""
NOISE = 0.03
"""A ratio may always be off by so much, whatever its noise."""


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


Key = tuple[str, tuple[int, ...], str, int]


@dataclass
class Report:
    """One or several runs on a machine."""

    machine: dict[str, Any]
    grid: str
    results: list[Result] = field(default_factory=list)
    small: list[SmallCall] = field(default_factory=list)
    commands: list[str] = field(default_factory=list)
    """What was called to measure this, the first and what went on with it."""
    planned: int = 0
    """Problems of the grid, each with every number of threads."""
    _lines: list[str] = field(default_factory=list, repr=False, compare=False)
    """The written form of each result, kept because a result does not change."""

    @property
    def measured(self) -> set[Key]:
        """The keys of all results: these need not be measured again."""
        return {result.key for result in self.results}

    def save(self, path: Path) -> None:
        """Replaces the file in one step, so that an interruption leaves a whole one. A line is a result."""
        self._lines += [_dense(_entry(result)) for result in self.results[len(self._lines) :]]
        rest = {"format": FORMAT, "machine": self.machine, "grid": self.grid}
        rest |= {"commands": self.commands, "planned": self.planned, "small": [asdict(call) for call in self.small]}
        files.replace(path, _dense(rest)[:-1] + ',"results":[\n' + ",\n".join(self._lines) + "\n]}\n")

    @classmethod
    def load(cls, path: Path) -> Report:
        """What ``save`` wrote."""
        document = json.loads(path.read_text())
        if not isinstance(document, dict) or document.get("format") != FORMAT:
            raise ValueError(f"{path} is not a benchmark report of format {FORMAT}")
        report = cls(document["machine"], document["grid"])
        report.commands, report.planned = document["commands"], document["planned"]
        report.results = [_result(entry) for entry in document["results"]]
        report.small = [SmallCall(**{**entry, "timings": _timings(entry["timings"])}) for entry in document["small"]]
        return report


def _dense(value: Any) -> str:
    """JSON without blanks, and numbers without superfluous zeros."""
    return EXPONENT.sub("e-", json.dumps(value, separators=(",", ":"), ensure_ascii=False))


def _entry(result: Result) -> dict[str, Any]:
    """A result, with the figures first that readers of the file look for; these are computed anew when it is read."""
    entry = asdict(result)
    summary = {
        "share": round(result.reached, 3),
        "ratios": {name: round(result.ratio(name), 3) for name in result.peers},
    }
    first = {key: entry.pop(key) for key in ("operator", "shape", "dtype", "threads")}
    return {**first, "summary": summary, **_packed(entry)}


def _packed(value: Any) -> Any:
    """Errors as three numbers, and timings without the numbers of their rounds where every round counts."""
    if isinstance(value, list):
        return [_packed(part) for part in value]
    if not isinstance(value, dict):
        return value
    if tuple(value) == MEASURES:
        return list(value.values())
    if set(value) == {"seconds", "rounds"} and value["rounds"] == list(range(len(value["seconds"]))):
        return value["seconds"]
    return {key: _packed(part) for key, part in value.items()}


def _errors(entries: list[list[float]]) -> list[dict[str, float]]:
    return [dict(zip(MEASURES, entry, strict=True)) for entry in entries]


def _timing(entry: Any) -> Timing:
    return Timing(entry, list(range(len(entry)))) if isinstance(entry, list) else Timing(**entry)


def _timings(entries: dict[str, Any]) -> dict[str, Timing]:
    return {name: _timing(entry) for name, entry in entries.items()}


def _result(entry: dict[str, Any]) -> Result:
    fields = {key: value for key, value in entry.items() if key != "summary"}
    timed = ("triad", "empty", "arithmetic", "core", "handover")  # of which older files lack the last two
    fields |= _timings({name: entry[name] for name in timed if entry.get(name) is not None})
    fields["descend"] = _timings(entry["descend"])
    fields["peers"] = {
        name: Peer(_timing(peer["timing"]), peer["route"], peer["tried"], _errors(peer["errors"]))
        for name, peer in entry["peers"].items()
    }
    fields["errors"] = _errors(entry["errors"])
    return Result(**fields)
