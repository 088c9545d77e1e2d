"""Results as tables for the terminal."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from benchmarks.accuracy import worst_ratio
from benchmarks.machine import in_words
from benchmarks.neighbours import DISTURBED
from benchmarks.results import TARGET_SHARE, Report, Result, SmallCall

GOOD, BAD = "green", "bold red"


def show(report: Report, console: Console) -> None:
    """Everything that has been measured so far."""
    console.print(in_words(report.machine), style="dim")
    groups = {(result.operator, result.dtype): None for result in report.results}
    for operator, dtype in groups:
        results = [r for r in report.results if (r.operator, r.dtype) == (operator, dtype)]
        console.print(table(f"{operator}, {dtype}", results))
    for small in report.small:
        console.print(small_table(small))
    if report.results:
        console.print(LEGEND, style="dim")
        console.print(verdict(report))


LEGEND = (
    f"share: of the speed limit (triad of the same bytes and an empty call), {TARGET_SHARE} or more asked beyond the "
    "cache; in brackets: of the arithmetic's limit, where that is what holds. err: mean relative error of the first "
    "output against float64; × PyTorch: the worst RMSE among the outputs over PyTorch's. Peers: their time over ours "
    "with out= given, above 1 we are faster. "
    "A time in yellow: other processes took part of the machine meanwhile."
)


def table(title: str, results: list[Result]) -> Table:
    """The results of one operator and dtype."""
    peers = list({name: None for result in results for name in result.peers})
    grid = Table(title=title, title_justify="left", title_style="bold")
    grid.add_column("shape", no_wrap=True)
    grid.add_column("in")
    for heading in ("time", "±", "GB/s", "limit", "share", "alloc.", "two-ph.", "repeat.", "err", "× PyTorch"):
        grid.add_column(heading, justify="right", no_wrap=True)
    for name in peers:
        grid.add_column(name, justify="right", no_wrap=True)
    for result in results:
        grid.add_row(*_row(result, peers))
    return grid


def _row(result: Result, peers: list[str]) -> list[Text]:
    out = result.descend["out"]
    judged = result.lives == "memory"
    share = Text(f"{result.share:.2f}", style=(GOOD if result.share >= result.target else BAD) if judged else "")
    if result.share_of_arithmetic is not None:
        reached = result.share_of_arithmetic >= TARGET_SHARE
        share.append(f" ({result.share_of_arithmetic:.2f})", style=(GOOD if reached else BAD) if judged else "")
    torch = result.peers.get("PyTorch")
    against = f"{worst_ratio(result.errors, torch.errors, 'rmse'):.2f}" if torch else "-"
    cells = [
        Text(" × ".join(map(str, result.shape))),
        Text(result.lives),
        Text(duration(out.median), style="yellow" if result.others > DISTURBED else ""),
    ]
    cells += [Text(f"{out.spread:.0%}"), Text(f"{result.speed / 1e9:.1f}"), Text(duration(result.limit.median)), share]
    cells += [Text(f"{result.descend[form].over(out):.2f}") for form in ("allocating", "two_phase", "repeatable")]
    cells += [Text(f"{result.errors[0]['mere']:.1e}"), Text(against)]
    for name in peers:
        times = result.ratio(name) if name in result.peers else None
        cells.append(Text("-") if times is None else Text(f"{times:.2f}", style=BAD if times < 1 else ""))
    return cells


def small_table(small: SmallCall) -> Table:
    """The call that is all overhead."""
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
    missed = [
        f"{r.operator} {' × '.join(map(str, r.shape))} {r.dtype}: {', '.join(r.misses)}"
        for r in report.results
        if r.misses
    ]
    for small in report.small:
        missed += [
            f"{small.operator}, small call, {name}: {1 / small.ratio(name):.2f} times the yardstick's time"
            for name in small.timings
            if name.startswith("out") and small.ratio(name) < 1
        ]
    if not missed:
        return Text("Every target is reached.", style=GOOD)
    return Text(f"{len(missed)} targets missed:\n  " + "\n  ".join(missed), style=BAD)


def duration(seconds: float) -> str:
    """With a unit that suits it."""
    for unit, factor in (("s", 1.0), ("ms", 1e3), ("µs", 1e6)):
        if seconds * factor >= 1:
            return f"{seconds * factor:.3g} {unit}"
    return f"{seconds * 1e9:.3g} ns"
