"""The figures as a table for the terminal and as the page docs/accuracy.md."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from statistics import median

from rich.console import Console
from rich.table import Table
from rich.text import Text

from benchmarks.machine import in_words
from benchmarks.precision.figures import CLEAR, LONG_ROW, ROUNDED, SEEDS, TARGET, Entry, Measured, Output
from benchmarks.precision.operators import DISTRIBUTIONS, DTYPES, MANY, OFFSET, OPERATORS
from descend import precision
from descend.cli.output import show as show_table

GOOD, BAD = "green", "bold red"
MEASURES = ("mere", "mare", "rmse")


def times(shape: tuple[int, ...]) -> str:
    """``256 × 768``."""
    return " × ".join(map(str, shape))


def show(measured: Measured, console: Console) -> None:
    """A table an operator, a line an entry's output, then what was missed."""
    console.print(in_words(measured.machine), style="dim")
    for operator in OPERATORS:
        if entries := measured.of(operator):
            show_table(console, table(operator, entries))
    missed = list(misses(measured.entries))
    if missed:
        console.print(f"{len(missed)} outputs miss what is asked:", style=BAD)
        for line in missed:
            console.print(f"  {line}", highlight=False)
    else:
        console.print("Everything that is asked is reached.", style=GOOD)


def table(operator: str, entries: list[Entry]) -> Table:
    """Median ratios and the worst seed's, ours over PyTorch's."""
    grid = Table(title=operator, title_justify="left", title_style="bold")
    for heading in ("dtype", "inputs", "shape", "output"):
        grid.add_column(heading, no_wrap=True)
    for heading in ("MERE", "MARE", "RMSE", "worst seed", "level", "our bound", "theirs", "rounded", "theirs"):
        grid.add_column(heading, justify="right", no_wrap=True)
    for entry in entries:
        for name, output in entry.outputs.items():
            style = BAD if entry.misses(name) else ""
            grid.add_row(
                entry.dtype, entry.distribution, times(entry.shape), name,
                *(Text(f"{getattr(output.medians, m):.3f}", style=BAD if getattr(output.medians, m) > TARGET else "")
                  for m in MEASURES),
                Text(" ".join(f"{getattr(output.worst, m):.2f}" for m in MEASURES), style=style),
                level(output), f"{max(output.bound):.3g}", f"{max(output.their_bound):.3g}",
                *(f"{median(shares):.3%}" if shares else "-" for shares in (output.rounded, output.their_rounded)),
            )  # fmt: skip
    return grid


def level(output: Output) -> str:
    """The strictest level of the double benchmark that every seed passes."""
    passed = [
        name
        for name, limits in precision.LEVELS.items()
        if all(worst <= limit for worst, limit in zip(output.worst, limits, strict=True))
    ]
    return passed[-1] if passed else "-"


def misses(entries: Iterable[Entry]) -> Iterable[str]:
    """One line for each output that does not reach what is asked."""
    for entry in entries:
        for name in entry.outputs:
            if found := entry.misses(name):
                where = f"{entry.operator} {name}, {entry.dtype}, {entry.distribution}, {times(entry.shape)}"
                yield f"{where}: {', '.join(found)}"


# --- the page -----------------------------------------------------------------------------------------------------


def page(measured: Measured) -> str:
    """docs/accuracy.md, whole."""
    head = HEAD.format(machine=in_words(measured.machine)).strip().split("\n\n")
    parts = ["\n\n".join(textwrap.fill(p, 120, break_long_words=False, break_on_hyphens=False) for p in head) + "\n"]
    for operator in OPERATORS:
        if measured.of(operator):
            parts.append(section(measured, operator))
    parts.append(asked(measured))
    return "\n".join(parts)


HEAD = f"""# Accuracy

How far the results of Descend are from the exact ones, beside those of PyTorch on the same inputs: the double benchmark
of the Ascend precision standard, with the operators' definitions in float64 for a golden value. This page is written by
`./dev accuracy` (`python -m benchmarks.precision`) from [its figures](benchmarks/accuracy.json).

Measured with one thread on {{machine}}. The number of threads changes no bit, nor does the instruction set.

Each operator in three dtypes, on inputs that are normal, uniform from -1 to 1, heavy-tailed (Student's t with 3 degrees
of freedom), and far from 0: with a standard deviation of 1 around {OFFSET["float32"]:g} in float32,
{OFFSET["float16"]:g} in float16 and {OFFSET["bfloat16"]:g} in bfloat16; gradients are then of the same kind around
1/16. Parameters are normal. {SEEDS} seeds of each.
Where sums run over rows there are up to 10^6 of these; of {MANY} or more only the sums are
compared, since another row's gradient is like any row's. A shape of the norms is rows and columns, of group norm N, C
and the rest (in 2 groups), of the softmax batch, heads, S1 and S2, of NSA compression tokens, heads, depth, block size
and stride. PyTorch's way is its own operator or autograd through its forward in the same dtype; for NSA compression,
which it does not have, `unfold` and `einsum`. The dgamma of RMS norm is float32 here, as the operator has it.

The tables give ratios of errors, ours over PyTorch's: MERE (the mean relative error), MARE (the largest) and RMSE, each
the median over the seeds, and of several shapes the worst. Below 1 we are closer to the exact result. An element that
is less than 1/{1 / CLEAR:.0f} of the largest term that it was made of is a near-cancellation: only RMSE and the bound
count it. The bound is our largest error of all seeds, over its element's largest term, in roundings of the dtype (a
correct rounding has at most 1). Rounded is the share of 16-bit elements that are the exact result rounded once, the
least of the medians. PyTorch's are in brackets.
"""


def section(measured: Measured, operator: str) -> str:
    """One operator's table: a line an output and dtype, a column a distribution."""
    found = OPERATORS[operator]
    shapes = ", ".join(times(shape) for shape in found.shapes)
    lines = [
        f"## {operator}",
        "",
        f"Shapes: {shapes}. MERE, MARE and RMSE, ours over PyTorch's:",
        "",
        f"| output | dtype | {' | '.join(DISTRIBUTIONS)} | bound | rounded |",
        f"| --- | --- |{' --- |' * (len(DISTRIBUTIONS) + 2)}",
    ]
    for name in found.outputs:
        for dtype in DTYPES:
            if outputs := _outputs(measured, operator, dtype, name):
                cells = [_ratios(_outputs(measured, operator, dtype, name, d)) for d in DISTRIBUTIONS]
                lines.append(f"| {name} | {dtype} | {' | '.join(cells)} | {_bound(outputs)} | {_rounded(outputs)} |")
    return "\n".join([*lines, ""])


def _outputs(measured: Measured, operator: str, dtype: str, name: str, distribution: str | None = None) -> list[Output]:
    return [e.outputs[name] for e in measured.of(operator, dtype, distribution) if name in e.outputs]


def _ratios(outputs: list[Output]) -> str:
    """The worst medians over the shapes, in bold above 1."""
    if not outputs:
        return ""
    worst = [max(getattr(output.medians, measure) for output in outputs) for measure in MEASURES]
    return ", ".join(f"**{value:.3f}**" if value > TARGET else f"{value:.2f}" for value in worst)


def _bound(outputs: list[Output]) -> str:
    ours, theirs = (max(map(max, bounds)) for bounds in zip(*((o.bound, o.their_bound) for o in outputs), strict=True))
    return f"{ours:.2g} ({theirs:.2g})"


def _rounded(outputs: list[Output]) -> str:
    shares = [(median(o.rounded), median(o.their_rounded)) for o in outputs if o.rounded]
    if not shares:
        return ""
    ours, theirs = (min(column) for column in zip(*shares, strict=True))
    return f"{ours:.3%} ({theirs:.1%})"


def asked(measured: Measured) -> str:
    """What is asked, and what misses it."""
    lines = [
        "## What is asked, and what misses it",
        "",
        "Of every median over the seeds: a ratio of at most 1. On normal inputs, where rows have",
        f"{LONG_ROW} elements or more, of every seed: RMSE and MERE of at most 1.01, and a MARE within",
        f"level L2, 2. Of 16-bit elements: {ROUNDED:.1%} rounded correctly.",
        "",
    ]
    found = list(misses(measured.entries))
    total = sum(len(entry.outputs) for entry in measured.entries)
    if found:
        lines += [f"Of {total} outputs, each in one dtype, distribution and shape, {len(found)} miss some of it:", ""]
        lines += [f"- {line}" for line in found]
    else:
        lines.append(f"All {total} outputs, each in one dtype, distribution and shape, reach it.")
    return "\n".join([*lines, ""])
