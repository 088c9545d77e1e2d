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
from benchmarks.precision.operators import OPERATORS
from benchmarks.precision.operators.operator import DISTRIBUTIONS, DTYPES, MANY, OFFSET
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

The errors of Descend's results, and of PyTorch's on the same inputs. Both are compared with the operators' definitions
in float64. This is the double benchmark of the Ascend precision standard. `./dev accuracy` writes this page from
[its figures](benchmarks/accuracy.json).

Measured with one thread on {{machine}}. More threads, or another instruction set, give the same bits.

**Inputs.** There are four distributions: normal; uniform from -1 to 1; heavy-tailed (Student's t with 3 degrees of
freedom); and offset, with a standard deviation of 1 around {OFFSET["float32"]:g} in float32, {OFFSET["float16"]:g} in
float16 and {OFFSET["bfloat16"]:g} in bfloat16. For offset the incoming gradients have a mean of 1/16. Parameters are
normal. Each case has {SEEDS} seeds. Sums over rows are measured with up to 10^6 rows. With {MANY} rows or more only the
sums are compared.

**Shapes.** Norms: rows and columns. Group norm: N, C and the rest, in 2 groups. Softmax: batch, heads, S1 and S2. NSA
compression: tokens, heads, depth, block size and stride.

**PyTorch's way** is its own operator, or autograd through its forward, in the same dtype. PyTorch has no NSA
compression: there it is `unfold` and `einsum`. The dgamma of RMS norm is float32 in both.

**Ratios.** The tables have our error divided by PyTorch's: MERE (the mean relative error), MARE (the largest relative
error) and RMSE. Below 1 we are more exact. Each is the median over the seeds, for the worst of the shapes. If an
element is less than 1/{1 / CLEAR:.0f} of the largest term in its sum, the terms nearly cancel: such an element counts
for RMSE and the bound only.

**Bound** is our largest error over all seeds, divided by the element's largest term, in units of the dtype's rounding
error. Correct rounding has at most 1. **Rounded** is the share of 16-bit elements that equal the exact result rounded
once, for the worst of the shapes and distributions. PyTorch's are in brackets.
"""


def section(measured: Measured, operator: str) -> str:
    """One operator's table: a line an output and dtype, a column a distribution."""
    found = OPERATORS[operator]
    shapes = ", ".join(times(shape) for shape in found.shapes)
    lines = [
        f"## {operator}",
        "",
        f"Shapes: {shapes}. MERE, MARE and RMSE, ours divided by PyTorch's:",
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
        "- Every ratio, as a median over the seeds, is at most 1.",
        f"- On normal inputs with rows of {LONG_ROW} elements or more, every seed has ratios of at most 1.01 for RMSE",
        "  and MERE, and at most 2 for MARE (level L2).",
        f"- {ROUNDED:.1%} of 16-bit elements are rounded correctly.",
        "",
    ]
    found = list(misses(measured.entries))
    total = sum(len(entry.outputs) for entry in measured.entries)
    if found:
        lines += [f"Of {total} outputs, each in one dtype, distribution and shape, {len(found)} miss some of this:", ""]
        lines += [f"- {line}" for line in found]
    else:
        lines.append(f"All {total} outputs, each in one dtype, distribution and shape, reach all of this.")
    return "\n".join([*lines, ""])
