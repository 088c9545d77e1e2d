"""The report: docs/benchmarks.md, its pictures and its figures, all from one run's JSON."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from statistics import median
from typing import TypeVar

from benchmarks import OPERATORS as NAMES
from benchmarks import plot
from benchmarks.machine import in_words
from benchmarks.operator import DTYPES, load
from benchmarks.report import counted, duration, misses
from benchmarks.results import (
    HINDRANCES,
    LARGE,
    LEAST_SHARE,
    LONG,
    NOISE,
    TARGET_IN_CACHE,
    TARGET_IN_MEMORY,
    Report,
    Result,
    SmallCall,
)

MOST = 40
"""At most so many rows in a list. The JSON has all."""
ALLOCATED = 1 << 20
"""Results of at least so many bytes come from the cache of warm pages, smaller ones from malloc."""

Item = TypeVar("Item")
Row = Sequence[object]


def write(report: Report, folder: Path) -> list[Path]:
    """``benchmarks.md``, and beside it a folder with the JSON and the pictures; returns the paths."""
    if not report.results:
        raise ValueError("nothing was measured: there is nothing to report")
    beside = folder / "benchmarks"
    figures, page = beside / "benchmarks.json", folder / "benchmarks.md"
    report.save(figures)
    pictures = plot.draw(report, beside)
    page.write_text(text(report, [picture.name for picture in pictures], (folder / "accuracy.md").exists()))
    return [page, figures, *pictures]


def write_bars(report: Report, folder: Path) -> list[Path]:
    """The README's picture and its figures, in the folder ``benchmarks``; returns the paths."""
    beside = folder / "benchmarks"
    beside.mkdir(parents=True, exist_ok=True)
    report.save(beside / "bars.json")
    return [beside / "bars.json", plot.draw_bars(report, beside)]


def text(report: Report, pictures: Sequence[str], accuracy: bool = False) -> str:
    """The page."""
    sections = [
        introduction(report),
        "## What is asked, and what was measured\n\n" + verdicts(report),
        "## Operator by operator\n\n" + SUMMARY + summary(report),
        "## Where the time goes\n\n" + CORE + cores(report) if any(r.core for r in report.results) else "",
        "## Where it falls short\n\n" + shortfalls(report),
        "## One thread and more\n\n" + speedups(report) if any(r.speedup for r in report.results) else "",
        "## Processors together and apart\n\n" + DISTANCE + distances(report) if any(r.handover for r in report.results)
        else "",
        "## Results that we allocate\n\n" + allocations(report),
        "## Small calls\n\n" + small_calls(report.small) if report.small else "",
        "## Over the size\n\n" + OVER_SIZE + "\n".join(f"![{name[:-4]}](benchmarks/{name})" for name in pictures
                                                     if name != "errors.svg"),
        "## Error beside time\n\n" + errors(report, accuracy) if "errors.svg" in pictures else "",
        "## How it is measured\n\n" + METHOD,
    ]  # fmt: skip
    return "# Speed\n\n" + "\n\n".join(section.strip() for section in sections if section) + "\n"


def introduction(report: Report) -> str:
    """What was measured, where and how."""
    threads = sorted({result.threads for result in report.results})
    teams = counted(threads[0]) if len(threads) == 1 else " and ".join(map(str, threads)) + " threads"
    peers = [name for name in plot.COLOURS if any(name in result.peers for result in report.results)]
    beside = f", and with {_listed(peers)}" if peers else ""
    taken = f"{len(report.results)} of the {report.planned}" if len(report.results) < report.planned else "All"
    commands = "; ".join(f"`{command}`" for command in report.commands)
    return (
        f"How fast Descend's operators are, compared with the limit that the machine's memory sets{beside}.\n\n"
        f"`./dev bench` writes this page, its pictures and [its figures](benchmarks/benchmarks.json) from one run: do "
        f"not edit it.\n\n"
        f"- machine: {in_words(report.machine)}\n"
        f"- Python {report.machine['python']}, {report.machine['system']}, "
        f"{report.machine['memory_gib']} GiB of memory\n"
        f"- measured: {commands}\n"
        f"- {taken} problems (operator, shape, dtype, number of threads) of the grid `{report.grid}`, with {teams}"
    )


def verdicts(report: Report) -> str:
    """The targets in one table."""
    results = report.results
    beyond = [r.reached for r in results if r.lives == "memory"]
    within = [r.reached for r in results if r.target == TARGET_IN_CACHE]
    rows_of = {result.operator: load(result.operator).row for result in results}
    judged = [r for r in results if r.bytes >= LARGE and rows_of[r.operator](tuple(r.shape)) >= LONG]
    low = [r for r in judged if r.reached < LEAST_SHARE]
    ratios = [r.ratio(name) for r in results for name in r.peers]
    found = [word for _, words in misses(report) for word in words]
    slower = [word for word in found if word.startswith("slower")]
    threaded = [r.speedup for r in results if r.speedup is not None]
    worse = [word for word in found if word.endswith("thread")]
    faults = [r.faults for r in results if r.faults is not None and _allocates(r)]
    rows: list[Row] = [
        ("share of the limit beyond the cache, median", f"{TARGET_IN_MEMORY:.2f}", *_median(beyond)),
        ("share of the limit within the cache, median", f"{TARGET_IN_CACHE:.2f}", *_median(within)),
        (f"points of {LARGE >> 10} KiB or more, rows of {LONG} or more, below {LEAST_SHARE} of the limit", "none",
         len(low), len(judged)),
        ("points slower than a peer", "none", len(slower), len(ratios)),
        ("points where more threads are slower than one", "none", len(worse), len(threaded)),
        (f"page faults of a call that allocates {ALLOCATED >> 20} MiB or more, the most", "0",
         f"{max(faults):.0f}" if faults else "-", len(faults)),
    ]  # fmt: skip
    return table(("", "asked", "measured", "of"), rows) + (
        f"\n\nA ratio counts as slower if it is below 1 by more than {NOISE:.0%} and by more than the noise of its two "
        f"medians. The noise is twice the interquartile range, divided by the square root of the number of rounds."
    )


def _median(values: Sequence[float]) -> tuple[str, int]:
    return (f"{median(values):.2f}" if values else "-", len(values))


SUMMARY = """\
First the share of the limit, by the cache that holds a problem's bytes between calls. Then each peer's time divided
by ours: above 1, we are faster. Each cell has the median, and the least in brackets.

"""


def summary(report: Report) -> str:
    """A table with one row for each operator and dtype."""
    homes = _homes(report)
    peers = [name for name in plot.COLOURS if any(name in r.peers for r in report.results)]
    rows: list[Row] = []
    for operator, group in _by(report.results, lambda result: result.operator, NAMES):
        for dtype, results in _by(group, lambda result: result.dtype, list(DTYPES)):
            row = [_once(operator, rows), dtype, len(results)]
            row += [_both([r.reached for r in results if r.lives == home]) for home in homes]
            row += [_both([r.ratio(name) for r in results if name in r.peers]) for name in peers]
            rows.append(row)
    return table(("operator", "dtype", "points", *homes, *peers), rows)


def _homes(report: Report) -> list[str]:
    """The caches that hold the bytes, the nearest first."""
    return sorted({r.lives for r in report.results} - {"edge"}, key=lambda home: (home == "memory", home))


def _once(name: str, rows: Sequence[Row]) -> str:
    """The name, or nothing if a row has it already."""
    return "" if any(row[0] == name for row in rows) else name


def _both(values: Sequence[float]) -> str:
    return f"{_short(median(values))} ({_short(min(values))})" if values else "-"


def _short(value: float) -> str:
    return f"{value:.2f}" if value < 10 else f"{value:.0f}"


CORE = """\
The core is the part of our time that the rows take when their data is in the first-level cache: arithmetic and the
cost of a row, without memory and without the call. The table has the median share, by the cache that holds the bytes.
Where it is near 1, faster memory would help little. It is a part of our own time, not a limit. It is estimated from few
rows, so it may be above 1.

"""


def cores(report: Report) -> str:
    """A table with one row for each operator and dtype, and what holds back the points that miss a target."""
    rows: list[Row] = []
    homes = _homes(report)
    for operator, group in _by(report.results, lambda result: result.operator, NAMES):
        for dtype, results in _by(group, lambda result: result.dtype, list(DTYPES)):
            values = [[r.core_share for r in results if r.lives == home and r.core_share is not None] for home in homes]
            rows.append([_once(operator, rows), dtype, *(f"{median(of):.2f}" if of else "-" for of in values)])
    page = table(("operator", "dtype", *homes), rows) + "\n\n" + side_by_side(report)
    reasons = [result.held_back_by for result, _ in misses(report) if result.held_back_by]
    if not reasons:
        return page
    counted = [(word, reasons.count(word), why) for word, why in HINDRANCES.items() if word in reasons]
    return page + "\n\nWhat holds back the points that miss a target:\n\n" + table(("", "points", "reason"), counted)


def side_by_side(report: Report) -> str:
    """The share that would be reached if arithmetic and memory overlapped completely."""
    rows: list[Row] = []
    for name, target in (("beyond the caches", TARGET_IN_MEMORY), ("within them", TARGET_IN_CACHE)):
        known = [r for r in report.results if r.target == target and r.overlapped is not None]
        best = [r.overlapped for r in known if r.overlapped is not None]
        if known:
            rows.append(
                (name, len(known), f"{median(r.reached for r in known):.2f}", f"{median(best):.2f}", f"{target:.2f}")
            )
    return (
        "The column `side by side` is the share of the limit if arithmetic and memory overlapped completely. To go "
        "beyond it, an operator needs less arithmetic.\n\n"
        + table(("", "points", "share", "side by side", "asked"), rows)
    )


def shortfalls(report: Report) -> str:
    """Every point that misses a target, the worst first."""
    found = misses(report)
    if not found:
        return "No point misses a target."
    found.sort(key=lambda one: min(float(figure) for figure in _figures(one[1])))
    split = any(result.core for result, _ in found)
    rows = [
        (*_names(result), duration(result.seconds), ", ".join(words), *(_split(result) if split else ()))
        for result, words in found[:MOST]
    ]
    heads = ["operator", "shape", "dtype", "threads", "bytes", "time", "what is missed"]
    heads += ["core", "memory", "held back by"] if split else []
    figures = "[the figures](benchmarks/benchmarks.json)"
    more = f"\n\nAnd {len(found) - MOST} more: {figures} have all." if len(found) > MOST else ""
    counts = [(operator, len(ones)) for operator, ones in _by(found, lambda one: one[0].operator, NAMES)]
    return (
        f"{len(found)} of {len(report.results)} points miss a target: "
        + ", ".join(f"{count} of {operator}" for operator, count in counts)
        + ".\n\n"
        + table(heads, rows)
        + more
    )


def _figures(words: Sequence[str]) -> list[str]:
    return [part for word in words for part in word.replace(":", "").split() if part.replace(".", "", 1).isdigit()][:1]


def _split(result: Result) -> Row:
    """The core's and the memory's share of the time, and what holds the point back."""
    core = "-" if result.core_share is None else f"{result.core_share:.2f}"
    return core, f"{result.memory_share:.2f}", result.held_back_by or "-"


def _names(result: Result) -> Row:
    shape = " × ".join(map(str, result.shape))
    return result.operator, shape, result.dtype, result.threads, plot.size_in_words(result.bytes)


def speedups(report: Report) -> str:
    """One thread's time divided by that of all threads, by the cache that holds the bytes."""
    homes = sorted(
        {r.lives for r in report.results if r.speedup}, key=lambda home: (home == "memory", home == "edge", home)
    )
    rows: list[Row] = []
    for operator, results in _by(report.results, lambda result: result.operator, NAMES):
        values = [[r.speedup for r in results if r.speedup is not None and r.lives == home] for home in homes]
        rows.append((operator, *map(_both, values)))
    return (
        "One thread's time divided by the time of all threads, in the same rounds: the median, and the least in "
        "brackets. Small problems stay on the caller's thread.\n\n" + table(("operator", *homes), rows)
    )


DISTANCE = """\
Two processors that share a last-level cache also share its way to memory. Processors on different chiplets or sockets
do not. A virtual machine's processors may move from one case to the other at any time, whatever the system reports
about its caches, and the limit changes with them. So in each round two threads pass a cache line to and fro, which
takes several times as long where no cache is shared. (Rounds in which both threads were on one core do not count: two
threads are then hardly faster than one.) The medians of what was measured with several threads:

"""


def distances(report: Report) -> str:
    """The shares while the processors shared a cache, and while they did not."""
    rows: list[Row] = []
    for name, apart in (("together", False), ("apart", True)):
        results = [r for r in report.results if r.apart is apart]
        beyond = [r for r in results if r.lives == "memory"]
        within = [r.reached for r in results if r.target == TARGET_IN_CACHE]
        way = duration(median([r.way for r in results if r.way])) if results else "-"
        triad = f"{median([r.bytes / r.triad.median for r in beyond]) / 1e9:.0f} GB/s" if beyond else "-"
        rows.append((name, len(results), way, triad, *_median([r.reached for r in beyond])[:1], *_median(within)[:1]))
    heads = ("processors", "points", "a line's way", "triad beyond the caches", "share there", "share within")
    return table(heads, rows)


def allocations(report: Report) -> str:
    """What it costs to have the results allocated."""
    rows: list[Row] = []
    for operator, results in _by(report.results, lambda result: result.operator, NAMES):
        chosen = [r for r in results if r.faults is not None and _allocates(r)]
        if chosen:
            times = [r.descend["allocating"].over(r.descend["out"]) for r in chosen]
            faults = [r.faults for r in chosen if r.faults is not None]
            rows.append((operator, len(chosen), f"{median(times):.2f}", f"{median(faults):.0f}", f"{max(faults):.0f}"))
    if not rows:
        return f"No problem had results of {ALLOCATED >> 20} MiB or more."
    return (
        f"Calls without `out=`, results of {ALLOCATED >> 20} MiB or more, in a loop that drops each result before the "
        "next call: their time divided by that of calls with `out=`, and the page faults of one call.\n\n"
        + table(("operator", "points", "time, median", "page faults, median", "most"), rows)
    )


def _allocates(result: Result) -> bool:
    """Whether the main result is that large. It has a third of the bytes or more, except in NSA's forward."""
    return result.operator != "nsa_compress" and result.bytes >= 4 * ALLOCATED


def small_calls(small: Sequence[SmallCall]) -> str:
    """The table of calls whose time is all overhead."""
    rows = []
    for call in small:
        shape = f"{' × '.join(map(str, call.shape))} {call.dtype}"
        times = [
            duration(call.timings[name].median) if name in call.timings else "-"
            for name in (call.yardstick, "out, NumPy", "out, torch", "repeatable, NumPy")
        ]
        rows.append((call.operator, shape, f"`{call.yardstick}`", *times))
    return "Calls so small that all their time is overhead, and the nearest operator of PyTorch.\n\n" + table(
        ("operator", "problem", "yardstick", "its time", "out=, NumPy", "out=, torch", "repeatable executor"), rows
    )


OVER_SIZE = """\
The upper plots show the share of the limit: 100 % is a loop that reads the inputs, writes the outputs and does nothing
else. The lower plots show the peers' time divided by ours. A dot is a problem. A line connects the medians of problems
of about the same size.

"""


def errors(report: Report, accuracy: bool) -> str:
    """The picture of errors, and a table of their medians."""
    peers = [name for name in plot.COLOURS if any(name in r.peers for r in report.results)]
    rows: list[Row] = []
    for operator, group in _by(report.results, lambda result: result.operator, NAMES):
        for dtype, results in _by(group, lambda result: result.dtype, list(DTYPES)):
            theirs = [
                [of for r in results if name in r.peers and (of := plot.error_ratio(r, name)) is not None]
                for name in peers
            ]
            ours = median(r.errors[0]["mere"] for r in results)
            cells = [_short(median(values)) if values else "-" for values in theirs]
            rows.append((_once(operator, rows), dtype, f"{ours:.1e}", *cells))
    more = " [Accuracy](accuracy.md) has more: distributions, seeds, many rows." if accuracy else ""
    return (
        "The first output of each operator, compared with float64 on the inputs that were timed: the median of our "
        "mean relative error, and the medians of the peers' RMSE divided by ours. Above 1, we are more exact."
        f"{more}\n\n"
        "![Error beside time](benchmarks/errors.svg)\n\n"
        + table(("operator", "dtype", "mean relative error", *peers), rows)
    )


METHOD = """\
- **The limit** of a problem is the time that the machine needs to move its inputs and outputs, each once. It is the
  time of a triad (two reads, one write) of the same number of bytes, with plain or non-temporal stores, whichever is
  faster, measured in the same rounds with as many threads (few bytes: with one, if that is faster), plus the time of
  a call on empty arrays. Group norm + swish in 16 bits has a second limit: its arithmetic on data in the first-level
  caches. For the gradient that is a loop of the arithmetic alone, for the forward the operator itself minus an empty
  call. The larger limit counts.
- **The core** is measured in the same rounds. One thread works on so few rows (groups, windows) that they fill half of
  a first-level cache, and on half as many. The difference is the time of these rows; it is scaled to all rows of the
  problem and divided by the threads that share the work. Rows that are too long are shortened, to 256 elements or
  more and to the same remainder modulo 64. The second-level cache holds the rows of norm gradients, which add more
  than 32 rows in another way, and those of large windows. A problem that fits is measured whole, minus an empty call.
  `memory` is the share of our time that a triad of the same bytes takes.
- **Rounds.** Descend, the limit and the peers take turns, in alternating order, so that a disturbance affects all
  alike. Ratios are medians of the ratios within rounds. Rounds in which other processes took more than a tenth of the
  processors do not count, unless too few rounds would be left.
- **Peers** compute the same from the same inputs, by the fastest of several ways, PyTorch's own operators among them.
  They need not compute a forward's statistics. torch.compile and JAX compile for the exact shape. In a sweep, which
  has many shapes, they take part in one problem out of eight, in one way each. If a way takes more than half a
  second, no faster one is searched for.
- **AdamW** is measured in place, everyone's step on copies of its own. The limit is that of a triad in as much memory.
- **Arrays** start on a cache line, as PyTorch's and those that Descend allocates do. NumPy's large arrays start 16
  bytes into a line: beyond the caches, writing to such an array (`out=`) takes longer than writing to one that the
  call allocates.
- **Threads** are the same for everyone: the process has as many processors as threads.
- **Right results.** What is timed is compared with float64 before and after. Outputs are filled with wrong values
  first.
- **Caches.** The columns L1, L2, L3 have the problems whose bytes fit there, in that cache of all processors together.
  `memory` has the problems of at least twice the last cache. Those in between (`edge`) are in no column.
- **Virtual machines** may report more cache than they have to themselves. Times drift; only ratios carry over to other
  machines.
- **The sweep** (`--grid sweep`) has rows of 1 to 131072 elements (every power of two, one more and one less, primes), 1
  to 10^6 rows, and few rows of up to 2^24 elements; groups of 1 to 4000 channels with 1 to 65536 pixels; scores of 1
  to 8192 keys; windows of every allowed width and stride up to 128. Sizes go from 1 KiB to beyond the last cache.
  `--minutes` takes an even sample.
"""


def table(heads: Sequence[str], rows: Iterable[Row]) -> str:
    """In Markdown."""
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)


def _by(items: Iterable[Item], key: Callable[[Item], str], order: Sequence[str] = ()) -> list[tuple[str, list[Item]]]:
    groups: dict[str, list[Item]] = {name: [] for name in order}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return [(name, group) for name, group in groups.items() if group]


def _listed(names: Sequence[str]) -> str:
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)
