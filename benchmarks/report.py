"""Results as tables for the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from rich.console import Console
from rich.table import Table
from rich.text import Text

from benchmarks.accuracy import worst_ratio
from benchmarks.machine import in_words
from benchmarks.neighbours import DISTURBED
from benchmarks.operator import load
from benchmarks.results import APART, ONE_THREAD, Report, Result, SmallCall
from descend.cli.output import show as show_table

GOOD, BAD = "green", "bold red"


def show(report: Report, console: Console) -> None:
    """Everything that has been measured so far."""
    console.print(in_words(report.machine), style="dim")
    groups: dict[str, list[Result]] = {}
    for result in report.results:
        groups.setdefault(f"{result.operator}, {result.dtype}, {counted(result.threads)}", []).append(result)
    for heading, results in groups.items():
        show_table(console, table(heading, results))
    for small in report.small:
        show_table(console, small_table(small))
    if report.results:
        console.print(LEGEND, style="dim")
        for words in moved(report):
            console.print(words, style="yellow")
        console.print(verdict(report))


LEGEND = (
    "share: of the speed limit (triad of the same bytes and an empty call); in brackets: of the arithmetic's limit, "
    "where that is what holds. core: of our time, what the rows take with their data at hand. "
    "1 thr.: one thread's time over ours. faults: pages mapped anew where a call allocates. "
    "err: mean relative error of the first output against float64; × PyTorch: the worst RMSE among the outputs over "
    "PyTorch's. Peers: their time over ours with out= given, above 1 we are faster. "
    "A time in yellow: other processes took part of the machine meanwhile, or threads shared a core."
)


def moved(report: Report) -> list[str]:
    """How many problems were measured while the processors shared no cache, if some were."""
    ways = [result.way for result in report.results if result.way is not None]
    apart = [way for way in ways if way > APART]
    if not apart:
        return []
    return [
        f"The processors shared no cache for {len(apart)} of {len(ways)} problems: a line took "
        f"{duration(median(apart))} from one to the other. Each has its own way to memory then: the limit is higher."
    ]


FORMS = {"alloc.": "allocating", "two-ph.": "two_phase", "repeat.": "repeatable"}


def title(operator: str, shape: Sequence[int], dtype: str, threads: int | None = None) -> str:
    """A problem in words."""
    words = f"{operator} {' × '.join(map(str, shape))} {dtype}"
    return words if threads is None else f"{words}, {counted(threads)}"


def counted(threads: int) -> str:
    """1 thread, 2 threads."""
    return f"{threads} thread" + "s" * (threads != 1)


def table(title: str, results: list[Result]) -> Table:
    """The results of one operator and dtype."""
    peers = list({name: None for result in results for name in result.peers})
    grid = Table(title=title, title_justify="left", title_style="bold")
    grid.add_column("shape", no_wrap=True)
    grid.add_column("in")
    for heading in ("time", "±", "GB/s", "limit", "share", "core", "1 thr.", *FORMS, "faults", "err", "× PyTorch"):
        grid.add_column(heading, justify="right", no_wrap=True)
    for name in peers:
        grid.add_column(name, justify="right", no_wrap=True)
    for result in results:
        grid.add_row(*_row(result, peers))
    return grid


def _row(result: Result, peers: list[str]) -> list[Text]:
    out = result.descend["out"]
    style = "" if result.target is None else GOOD if result.reached >= result.target else BAD
    share = Text(f"{result.share:.2f}", style=style)
    if result.share_of_arithmetic is not None:
        share.append(f" ({result.share_of_arithmetic:.2f})", style=style)
    torch = result.peers.get("PyTorch")
    against = f"{worst_ratio(result.errors, torch.errors, 'rmse'):.2f}" if torch else "-"
    cells = [
        Text(" × ".join(map(str, result.shape))),
        Text(result.lives),
        Text(duration(out.median), style="yellow" if result.others > DISTURBED else ""),
    ]
    cells += [Text(f"{out.spread:.0%}"), Text(f"{result.speed / 1e9:.1f}"), Text(duration(result.limit.median)), share]
    cells += [Text("-" if result.core_share is None else f"{result.core_share:.2f}")]
    forms = [result.descend.get(form) for form in (ONE_THREAD, *FORMS.values())]
    cells += [Text("-" if timing is None else f"{timing.over(out):.2f}") for timing in forms]
    cells += [Text("-" if result.faults is None else f"{result.faults:.0f}")]
    cells += [Text(f"{result.errors[0]['mere']:.1e}"), Text(against)]
    for name in peers:
        times = result.ratio(name) if name in result.peers else None
        cells.append(Text("-") if times is None else Text(f"{times:.2f}", style=BAD if times < 1 else ""))
    return cells


def small_table(small: SmallCall) -> Table:
    """The table of one call whose time is all overhead."""
    shape = " × ".join(map(str, small.shape))
    grid = Table(
        title=f"{small.operator}, a small call: {shape} {small.dtype}", title_justify="left", title_style="bold"
    )
    grid.add_column("call")
    for heading in ("time", "±", "yardstick / ours"):
        grid.add_column(heading, justify="right")
    for name, timing in small.timings.items():
        times = small.ratio(name)
        missed = name.startswith("out") and times < 1
        mark = Text("the yardstick") if name == small.yardstick else Text(f"{times:.2f}", style=BAD if missed else "")
        grid.add_row(Text(name), duration(timing.median), f"{timing.spread:.0%}", mark)
    return grid


def verdict(report: Report) -> Text:
    """The targets that were missed, or that none was."""
    missed = [f"{title(*result.key)}: {', '.join(words)}" for result, words in misses(report)]
    for small in report.small:
        missed += [
            f"{small.operator}, small call, {name}: {1 / small.ratio(name):.2f} times the yardstick's time"
            for name in small.timings
            if name.startswith("out") and small.ratio(name) < 1
        ]
    if not missed:
        return Text("Every target is reached.", style=GOOD)
    return Text(f"{len(missed)} targets missed:\n  " + "\n  ".join(missed), style=BAD)


def misses(report: Report) -> list[tuple[Result, list[str]]]:
    """The results that miss a target, and which."""
    rows = {result.operator: load(result.operator).row for result in report.results}
    found = [(result, result.misses(rows[result.operator](tuple(result.shape)))) for result in report.results]
    return [(result, words) for result, words in found if words]


def duration(seconds: float) -> str:
    """With a unit that suits it."""
    for unit, factor in (("s", 1.0), ("ms", 1e3), ("µs", 1e6)):
        if seconds * factor >= 1:
            return f"{seconds * factor:.3g} {unit}"
    return f"{seconds * 1e9:.3g} ns"
