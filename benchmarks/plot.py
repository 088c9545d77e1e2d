"""The README's picture: how much of the memory limit each library reaches, over the size of the problem."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot as plt

from benchmarks.machine import in_words
from benchmarks.results import Report, Result

INK = "#7d8590"
"""Readable on white and on black."""
COLOURS = {"Descend": "#e8590c", "PyTorch": "#8a93a0", "torch.compile": "#4c8dd6", "JAX": "#2f9e6e"}
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
    """One PNG and one SVG an operator; returns the paths."""
    paths = []
    for operator in {result.operator: None for result in report.results}:
        results = [result for result in report.results if result.operator == operator]
        figure = picture(operator, results, report)
        folder.mkdir(parents=True, exist_ok=True)
        for kind in ("png", "svg"):
            path = folder / f"{operator}.{kind}"
            figure.savefig(path, transparent=True, dpi=160, metadata={"Date": None} if kind == "svg" else None)
            paths.append(path)
        plt.close(figure)
    return paths


def picture(operator: str, results: list[Result], report: Report) -> Any:
    """A panel a dtype, a line a library, a dot a shape."""
    dtypes = list({result.dtype: None for result in results})
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(1, len(dtypes), figsize=(3.3 * len(dtypes) + 0.8, 3.7), sharey=True, squeeze=False)
        for axis, dtype in zip(axes[0], dtypes, strict=True):
            panel(axis, [result for result in results if result.dtype == dtype], report)
            axis.set_title(dtype, loc="left", fontsize=11, color=INK)
        axes[0][0].set_ylabel("share of the memory limit")
        figure.suptitle(operator, x=0.008, ha="left", fontsize=13, fontweight="bold", color=INK)
        handles, labels = axes[0][0].get_legend_handles_labels()
        figure.legend(handles[::-1], labels[::-1], loc="upper right", ncols=len(labels), frameon=False, labelcolor=INK)
        figure.supxlabel("bytes that must move", fontsize=10, color=INK, y=0.075)
        figure.text(0.008, 0.012, in_words(report.machine), fontsize=6.5, color=INK)
        figure.tight_layout(rect=(0, 0.035, 1, 1.0))
    return figure


def panel(axis: Any, results: list[Result], report: Report) -> None:
    """One dtype."""
    curves: dict[str, Callable[[Result], float | None]] = {"Descend": lambda result: result.share}
    for name in {name: None for result in results for name in result.peers}:
        curves[name] = lambda r, name=name: r.share_of(r.peers[name].timing) if name in r.peers else None  # type: ignore[misc]
    axis.axhline(1, color=INK, linewidth=1, linestyle=(0, (4, 3)))
    for order, (name, share) in enumerate(reversed(curves.items())):
        points = [(result.bytes, value) for result in results if (value := share(result)) is not None]
        colour = COLOURS.get(name, INK)
        axis.scatter(*zip(*points, strict=True), s=9, color=colour, alpha=0.35, linewidths=0, zorder=3 + order)
        sizes, middles = middle(points)
        axis.plot(sizes, middles, color=colour, linewidth=WIDTHS.get(name, 1.6), label=name, zorder=4 + order)
    axis.set_xscale("log", base=2)
    largest, smallest = max(result.bytes for result in results), min(result.bytes for result in results)
    ticks = [power for power in range(10, 40, 5) if smallest / 2 <= 1 << power <= largest * 2]
    axis.set_xticks([1 << power for power in ticks], [size_in_words(1 << power) for power in ticks])
    axis.set_ylim(0, 1.19)
    axis.set_yticks([0, 0.25, 0.5, 0.75, 1], ["0", "25 %", "50 %", "75 %", "100 %"])
    axis.grid(axis="y", color=INK, alpha=0.18, linewidth=0.8)
    axis.spines[["top", "right", "left"]].set_visible(False)
    axis.tick_params(length=0)
    cache = max(report.machine["caches"].values(), default=0)
    if smallest < cache < largest:
        axis.axvspan(smallest / 2, cache, color=INK, alpha=0.09, linewidth=0)
        axis.text(cache / 1.3, 1.12, "in cache", ha="right", fontsize=8, color=INK)
        axis.text(cache * 1.3, 1.12, "memory", ha="left", fontsize=8, color=INK)
    axis.set_xlim(smallest / 2, largest * 2)


def middle(points: list[tuple[int, float]]) -> tuple[list[float], list[float]]:
    """The median over problems of about one size: within a factor of four."""
    bins: dict[int, list[tuple[int, float]]] = {}
    for size, share in points:
        bins.setdefault((size.bit_length() - 1) // 2, []).append((size, share))
    chosen = [bins[number] for number in sorted(bins)]
    return [median(size for size, _ in group) for group in chosen], [median(y for _, y in group) for group in chosen]


def size_in_words(size: int) -> str:
    """1 KiB, 32 MiB, …"""
    for unit, factor in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size >= factor:
            return f"{size // factor} {unit}"
    return f"{size} B"
