"""The pictures: shares of the limit and ratios to the peers over the size of the problem; errors beside times."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot as plt

from benchmarks import OPERATORS
from benchmarks.machine import in_words
from benchmarks.operator import DTYPES, load
from benchmarks.results import Report, Result

INK = "#7d8590"
"""Readable on white and on black."""
COLOURS = {
    "Descend": "#e8590c",
    "PyTorch": "#8a93a0",
    "torch.compile": "#4c8dd6",
    "JAX": "#2f9e6e",
    "oneDNN": "#b07cc6",
}
WIDTHS = {"Descend": 2.6}
STYLE: Any = {
    "font.family": "DejaVu Sans",
    "font.size": 10,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "svg.fonttype": "path",
    "svg.hashsalt": "descend",
}


def draw(report: Report, folder: Path) -> list[Path]:
    """An SVG an operator, of what was measured with the most threads, and one of the errors; returns the paths."""
    folder.mkdir(parents=True, exist_ok=True)
    threads = max(result.threads for result in report.results)
    shown = [result for result in report.results if result.threads == threads]
    shown.sort(key=lambda result: OPERATORS.index(result.operator))
    operators = list({result.operator: None for result in shown})
    paths = []
    for operator in operators:
        results = [result for result in shown if result.operator == operator]
        paths.append(_save(picture(operator, results, report), folder / f"{operator}.svg"))
    if any(result.peers for result in shown):
        paths.append(_save(errors(shown, report), folder / "errors.svg"))
    return paths


def draw_bars(report: Report, folder: Path) -> Path:
    """An SVG of the time that each library takes, a panel an operator; returns the path."""
    return _save(bars(report), folder / "bars.svg")


def bars(report: Report) -> Any:
    """A panel an operator, a bar a library: its time, and how many times Descend's that is."""
    results = report.results
    with plt.rc_context(STYLE):
        heights = [1 + len(result.peers) for result in results]
        size = 7.2, 1.1 + 0.22 * sum(heights) + 0.38 * len(heights)
        figure, axes = plt.subplots(len(heights), figsize=size, squeeze=False, height_ratios=heights)
        for axis, result in zip(axes.flat, results, strict=True):
            panel(axis, result)
        title = f"Time of one gradient on {results[0].threads} cores: shorter is better"
        figure.suptitle(title, x=0.01, ha="left", fontsize=13, fontweight="bold", color=INK)
        figure.text(0.01, 0.008, in_words(report.machine).replace("; ", "\n", 1), fontsize=6.5, color=INK)
        figure.tight_layout(rect=(0, 0.03, 1, 1))
    return figure


def panel(axis: Any, result: Result) -> None:
    """The bars of one problem, the fastest above."""
    ratios = {"Descend": 1.0} | {name: result.ratio(name) for name in result.peers}
    names = sorted(ratios, key=lambda name: -ratios[name])
    longest = max(ratios.values())
    axis.barh(names, [ratios[name] for name in names], 0.74, color=[COLOURS[name] for name in names])
    for row, name in enumerate(names):
        words = f"{1e3 * result.seconds * ratios[name]:.3g} ms"
        if name in result.peers:
            words += f"    {ratios[name]:.1f} times as long"
        axis.text(ratios[name] + longest / 100, row, words, va="center", fontsize=8.5, color=INK)
    axis.set_xlim(0, longest * 1.4)
    axis.set_xticks([])
    axis.tick_params(length=0, labelsize=9)
    axis.spines[:].set_visible(False)
    shape = " x ".join(map(str, result.shape))
    title, _ = load(result.operator).picture or (result.operator, None)
    axis.set_title(f"{title}, {shape}, {result.dtype}", loc="left", fontsize=9.5)


def _save(figure: Any, path: Path) -> Path:
    with plt.rc_context(STYLE):
        figure.savefig(path, transparent=True, metadata={"Date": None})
    plt.close(figure)
    return path


def picture(operator: str, results: list[Result], report: Report) -> Any:
    """A column a dtype: the share of the limit, and the peers' time over ours. A line a library, a dot a problem."""
    dtypes = [dtype for dtype in DTYPES if any(result.dtype == dtype for result in results)]
    rows = 1 + any(result.peers for result in results)
    with plt.rc_context(STYLE):
        size = 3.3 * len(dtypes) + 0.8, 1 + 2.7 * rows
        figure, axes = plt.subplots(rows, len(dtypes), figsize=size, sharex="col", sharey="row", squeeze=False)
        for column, dtype in zip(axes.T, dtypes, strict=True):
            chosen = [result for result in results if result.dtype == dtype]
            shares(column[0], chosen)
            column[0].set_title(dtype, loc="left", fontsize=11, color=INK)
            if rows > 1:
                ratios(column[1], chosen)
            for axis in column:
                sizes(axis, results, report)
        axes[0][0].set_ylabel("share of the limit")
        axes[-1][0].set_ylabel("their time over ours" if rows > 1 else "share of the limit")
        figure.suptitle(operator, x=0.008, ha="left", fontsize=13, fontweight="bold", color=INK)
        named = {label: line for axis in axes[0] for line, label in zip(*axis.get_legend_handles_labels(), strict=True)}
        order = sorted(named, key=lambda name: list(COLOURS).index(name) if name in COLOURS else len(COLOURS))
        figure.legend(
            [named[name] for name in order], order, loc="upper right", ncols=len(order), frameon=False, labelcolor=INK
        )
        figure.supxlabel("bytes that must move", fontsize=10, color=INK, y=0.12 / rows)
        figure.text(0.008, 0.02, in_words(report.machine), fontsize=6.5, color=INK)
        figure.tight_layout(rect=(0, 0.07 / rows, 1, 1.0))
    return figure


def shares(axis: Any, results: list[Result]) -> None:
    """The panel of shares of the limit."""
    curves: dict[str, Callable[[Result], float | None]] = {"Descend": lambda result: result.reached}
    for name in _peers(results):
        curves[name] = lambda r, name=name: r.reached / r.ratio(name) if name in r.peers else None  # type: ignore[misc]
    lines(axis, results, curves)
    axis.axhline(1, color=INK, linewidth=1, linestyle=(0, (4, 3)))
    axis.set_ylim(0, 1.19)
    axis.set_yticks([0, 0.25, 0.5, 0.75, 1], ["0", "25 %", "50 %", "75 %", "100 %"])


def ratios(axis: Any, results: list[Result]) -> None:
    """The panel of the peers' times divided by ours."""
    curves: dict[str, Callable[[Result], float | None]] = {}
    for name in _peers(results):
        curves[name] = lambda r, name=name: r.ratio(name) if name in r.peers else None  # type: ignore[misc]
    lines(axis, results, curves)
    axis.axhline(1, color=COLOURS["Descend"], linewidth=WIDTHS["Descend"])
    axis.set_yscale("log")
    axis.set_ylim(bottom=0.5)
    axis.yaxis.set_major_formatter("{x:g}")
    axis.minorticks_off()


def _peers(results: list[Result]) -> list[str]:
    return list({name: None for result in results for name in result.peers})


def lines(axis: Any, results: list[Result], curves: dict[str, Callable[[Result], float | None]]) -> None:
    """A dot a problem, and a line through the medians of problems of about one size."""
    for order, (name, figure) in enumerate(reversed(curves.items())):
        points = [(result.bytes, value) for result in results if (value := figure(result)) is not None]
        if points:
            colour = COLOURS.get(name, INK)
            axis.scatter(*zip(*points, strict=True), s=9, color=colour, alpha=0.35, linewidths=0, zorder=3 + order)
            bytes_, middles = middle(points)
            axis.plot(bytes_, middles, color=colour, linewidth=WIDTHS.get(name, 1.6), label=name, zorder=4 + order)
    axis.grid(axis="y", color=INK, alpha=0.18, linewidth=0.8)
    axis.spines[["top", "right", "left"]].set_visible(False)
    axis.tick_params(length=0)


def sizes(axis: Any, results: list[Result], report: Report) -> None:
    """The axis of bytes, and where the cache ends."""
    axis.set_xscale("log", base=2)
    largest, smallest = max(result.bytes for result in results), min(result.bytes for result in results)
    ticks = [power for power in range(0, 40, 5) if smallest / 2 <= 1 << power <= largest * 2]
    axis.set_xticks([1 << power for power in ticks], [size_in_words(1 << power) for power in ticks])
    cache = max(report.machine["caches"].values(), default=0)
    if smallest < cache < largest:
        axis.axvspan(smallest / 2, cache, color=INK, alpha=0.09, linewidth=0)
        if axis.get_ylim()[1] < 1.2:
            axis.text(cache / 1.3, 1.12, "in cache", ha="right", fontsize=8, color=INK)
            axis.text(cache * 1.3, 1.12, "memory", ha="left", fontsize=8, color=INK)
    axis.set_xlim(smallest / 2, largest * 2)


def errors(results: list[Result], report: Report) -> Any:
    """A panel an operator, a dot a peer's problem: its error over ours beside its time over ours."""
    operators = list({result.operator: None for result in results})
    columns = min(5, len(operators))
    rows = -(-len(operators) // columns)
    with plt.rc_context(STYLE):
        size = 2.5 * columns + 0.8, 2.5 * rows + 0.9
        figure, axes = plt.subplots(rows, columns, figsize=size, sharex=True, sharey=True, squeeze=False)
        for axis in axes.flat[len(operators) :]:
            axis.set_visible(False)
        named: dict[str, Any] = {}
        for axis, operator in zip(axes.flat, operators, strict=False):
            chosen = [result for result in results if result.operator == operator]
            for name in _peers(chosen):
                points = [(r.ratio(name), of) for r in chosen if name in r.peers and (of := error_ratio(r, name))]
                if points:
                    colour = COLOURS.get(name, INK)
                    named[name] = axis.scatter(*zip(*points, strict=True), s=9, color=colour, alpha=0.5, linewidths=0)
            named["Descend"] = axis.scatter([1], [1], s=60, marker="*", color=COLOURS["Descend"], zorder=9)
            axis.axhline(1, color=INK, linewidth=0.8, linestyle=(0, (4, 3)))
            axis.axvline(1, color=INK, linewidth=0.8, linestyle=(0, (4, 3)))
            axis.set_xscale("log")
            axis.set_yscale("log")
            axis.set_title(operator, loc="left", fontsize=8.5, color=INK)
            axis.spines[["top", "right"]].set_visible(False)
        figure.suptitle("Error beside time", x=0.008, ha="left", fontsize=13, fontweight="bold", color=INK)
        order = [name for name in COLOURS if name in named]
        figure.legend(
            [named[name] for name in order], order, loc="upper right", ncols=len(order), frameon=False, labelcolor=INK
        )
        figure.supxlabel("their time over ours", fontsize=10, color=INK, y=0.055)
        figure.supylabel("their error (RMSE) over ours", fontsize=10, color=INK)
        figure.text(0.008, 0.012, in_words(report.machine), fontsize=6.5, color=INK)
        figure.tight_layout(rect=(0, 0.03, 1, 1.0))
    return figure


def error_ratio(result: Result, peer: str) -> float | None:
    """The peer's RMSE of the result proper over ours; None where one of them is exact."""
    theirs, ours = result.peers[peer].errors[0]["rmse"], result.errors[0]["rmse"]
    return theirs / ours if theirs and ours else None


def middle(points: list[tuple[int, float]]) -> tuple[list[float], list[float]]:
    """The median over problems of about one size: within a factor of four, about a power of four."""
    bins: dict[int, list[tuple[int, float]]] = {}
    for size, share in points:
        bins.setdefault(round(math.log(size, 4)), []).append((size, share))
    chosen = [bins[number] for number in sorted(bins)]
    return [median(size for size, _ in group) for group in chosen], [median(y for _, y in group) for group in chosen]


def size_in_words(size: int) -> str:
    """1 KiB, 32 MiB, …"""
    for unit, factor in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size >= factor:
            return f"{size // factor} {unit}"
    return f"{size} B"
