"""The page that ``descend check --html`` writes: one file with all verdicts, and a plot of each tensor's errors."""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Sequence
from html import escape
from importlib import resources
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, Any

import numpy as np

from descend import precision
from descend.cli import output
from descend.cli.profile import EDGES, Profile
from descend.cli.verdicts import Judge, Row
from descend.tensors import replacing

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_BLUE, _RED, _GREY = "#0067b8", "#b3261e", "#6b6b6b"
_STYLE: Any = {  # text stays text, with one font: half the size
    "svg.fonttype": "none",
    "svg.hashsalt": "descend",
    "axes.unicode_minus": False,
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
}
_NO_METADATA: dict[str, Any] = dict.fromkeys(("Date", "Creator", "Format", "Type"))


def check_writable(path: Path) -> None:
    """Raise what `write` would, as far as that can be known, so that nothing is computed in vain."""
    _figure()
    if path.is_dir():
        raise IsADirectoryError(f"{path} cannot be written: Is a directory.")
    if path.exists() and not path.is_file():  # which would be replaced
        raise OSError(f"{path} cannot be written: it is no regular file.")
    if not path.parent.is_dir():
        raise FileNotFoundError(f"The folder {path.parent} does not exist.")


def write(path: Path, what: str, rows: Sequence[Row], sentences: Sequence[str], judge: Judge, most: int) -> None:
    """Write the page. It needs nothing from the network.

    The rows are worst first. Of these `most` are plotted, 0 for all.
    """
    plotted = [place for place, row in enumerate(rows) if row.profile and row.profile.elements]
    drawn = plotted[: most or None]
    linked = set(drawn)
    sentences = list(sentences)
    if len(drawn) < len(plotted):
        sentences.append(f"Plots are of the {len(drawn)} worst of them; --plots 0 draws all.")
    figure = _figure()
    with output.progress() as bar:
        plots = [_section(figure, place, rows[place]) for place in bar.track(drawn, description="drawing")]
    columns = ["tensor", "shape", "dtype", *judge.measures, "of allowed", "verdict"]
    texts = {
        "title": escape(f"descend check {what}"),
        "sentences": "\n".join(f"<p>{escape(sentence)}</p>" for sentence in sentences),
        "columns": "".join(f"<th scope=col><button>{name}</button></th>" for name in columns),
        "rows": "\n".join(_row(place, row, len(judge.measures), place in linked) for place, row in enumerate(rows)),
        "plots": "\n".join(plots),
    }
    template = Template(resources.files(__package__).joinpath("page.html").read_text(encoding="utf-8"))
    with replacing(path) as file:
        file.write(template.substitute(texts).encode("utf-8", errors="replace"))


def _row(place: int, row: Row, measures: int, linked: bool) -> str:
    name = f'<a href="#t{place}">{escape(row.name)}</a>' if linked else escape(row.name)
    share = output.error(row.share) if math.isfinite(row.share) else "∞"
    cells = [
        _cell(name, row.name),
        _cell(escape(row.shape)),
        _cell(escape(row.dtype)),
        *(_cell(cell, cell.rstrip("%"), "number") for cell in row.cells or [""] * measures),
        _cell(share, str(row.share).replace("inf", "Infinity"), "number"),
        _cell(_verdict(row), "pass" if row.passed else "fail"),
    ]
    return f"<tr>{''.join(cells)}</tr>"


def _cell(content: str, key: str | None = None, kind: str = "") -> str:
    sorts = content if key is None else escape(key)
    return f'<td class="{kind}" data-key="{escape(sorts) if key is None else sorts}">{content}</td>'


def _verdict(row: Row) -> str:
    word = "<span class=pass>pass</span>" if row.passed else "<span class=fail>FAIL</span>"
    return f"{word}: {escape(row.remark)}" if row.remark else word


def _section(figure: Figure, place: int, row: Row) -> str:
    assert row.profile
    lines = [f"{row.shape} {row.dtype}, {_verdict(row)}"]
    if row.profile.worst:
        lines.append(f"largest error at {escape(row.profile.worst)}")
    picture = base64.b64encode(_plot(figure, row.profile, row.dtype)).decode()
    return (
        f'<section id="t{place}"><h2>{escape(row.name)}</h2><p>{"; ".join(lines)}</p>'
        f'<img src="data:image/svg+xml;base64,{picture}" alt="Errors of {escape(row.name)}"></section>'
    )


def _figure() -> Figure:
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        name = (error.name or "matplotlib").partition(".")[0]
        raise ModuleNotFoundError(
            f'The page needs {name}, which is not installed: pip install "descend[html]"'
        ) from None
    return Figure(figsize=(11, 2.6))


def _plot(figure: Figure, profile: Profile, dtype: str) -> bytes:
    """An SVG picture: relative errors over the elements, and how many there are of each size."""
    import matplotlib

    file = io.BytesIO()
    with matplotlib.rc_context(_STYLE):
        figure.clear()
        places, sizes = figure.subplots(1, 2, width_ratios=(3, 2))
        figure.subplots_adjust(left=0.075, right=0.985, bottom=0.21, top=0.96, wspace=0.24)
        allowed = precision.THRESHOLDS.get(dtype, math.nan)
        _draw_places(places, profile, allowed)
        _draw_sizes(sizes, profile, allowed)
        figure.savefig(file, format="svg", metadata=_NO_METADATA)
    return file.getvalue()


def _draw_places(axes: Axes, profile: Profile, allowed: float) -> None:
    errors, positions = profile.errors, profile.positions
    positive = errors[np.isfinite(errors) & (errors > 0)]
    shown = [*positive, *(limit for limit in (allowed, 10 * allowed) if limit > 0)] or [1e-7, 1.0]
    bottom, top = min(shown) / 5, max(shown) * 5
    # A mark for each element where there are few; else they would hide each other, and make the page large.
    marker = ".-" if errors.size <= 64 else "-"
    axes.plot(
        positions, np.clip(errors, 1.2 * bottom, top), marker, color=_BLUE, linewidth=0.8
    )  # 0 just above the axis
    infinite = np.isinf(errors)
    if infinite.any():
        axes.plot(positions[infinite], np.full(np.count_nonzero(infinite), top), "x", color=_RED, clip_on=False)
    elif positive.size:
        axes.plot(positions[errors.argmax()], errors.max(), "o", color=_RED, markersize=5)
    for limit, style in _limits(allowed):
        axes.axhline(limit, color=_GREY, linewidth=0.8, linestyle=style)
    axes.set(yscale="log", ylim=(bottom, top), ylabel="relative error")
    axes.yaxis.set_major_formatter("{x:.0e}")  # plain text is drawn much faster than powers
    stretch = ", the largest error of each stretch" if profile.elements > errors.size else ""
    axes.set_xlabel(f"element (of {profile.elements}){stretch}")
    axes.locator_params(axis="x", integer=True)
    margin = max(0.5, 0.01 * profile.elements)
    axes.set_xlim(-margin, profile.elements - 1 + margin)
    axes.minorticks_off()


def _draw_sizes(axes: Axes, profile: Profile, allowed: float) -> None:
    used = np.flatnonzero(profile.counts)
    marks = [*EDGES[used], *EDGES[used + 1], *(math.log10(limit) for limit, _ in _limits(allowed))] or [-8.0]
    first, last = math.floor(min(marks)), math.ceil(max(marks))
    begin, end = np.searchsorted(EDGES, (first, last))
    axes.stairs(profile.counts[begin:end], EDGES[begin : end + 1], fill=True, color=_BLUE)
    ticks = {float(tick): f"1e{tick}" for tick in range(first, last + 1, max(-(-(last - first) // 6), 1))}
    for place, count, text, color in (
        (first - 1.0, profile.exact, "0", _BLUE),
        (last + 1.0, profile.mismatches, "infinite", _RED),
    ):
        if count:
            axes.bar(place, count, 0.5, color=color)
            ticks[place] = text
    for limit, style in _limits(allowed):
        axes.axvline(math.log10(limit), color=_GREY, linewidth=0.8, linestyle=style)
    axes.set_xticks(list(ticks), list(ticks.values()))
    axes.set(xlabel="relative error", ylabel="elements", yscale="log", ylim=(0.5, 2 * profile.elements))
    axes.yaxis.set_major_formatter("{x:g}")
    axes.minorticks_off()


def _limits(allowed: float) -> list[tuple[float, str]]:
    """What MERE and MARE must be below, each with its style of line."""
    return [(allowed, ":"), (10 * allowed, "-")] if math.isfinite(allowed) else []
