"""What was measured on a GPU, as data: JSON as it comes, tables for the terminal and for docs/design-gpu.md."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from benchmarks import files
from benchmarks.report import BAD, GOOD, duration
from benchmarks.results import Peer, Timing
from descend.cli.output import show as show_table

FORMAT = 1
SHARE = 0.9
"""The share of the copy's rate that is asked for."""
LAUNCH = 1.5
"""Times the launch of PyTorch's operator that a call may cost its caller."""
SECTION = re.compile(r"(<!-- bench-gpu -->\n).*?(<!-- end of bench-gpu -->)", re.DOTALL)
"""The generated part of docs/design-gpu.md."""


@dataclass
class Result:
    """One operator, shape and dtype."""

    operator: str
    shape: list[int]
    dtype: str
    bytes: int
    """Each input read once and each output written once."""
    copies: int
    """Of the data, that took turns."""
    copy: Timing
    """Of so many bytes, half read and half written, at the rate of a large copy on the device."""
    descend: Timing
    peers: dict[str, Peer]
    errors: list[dict[str, float]]
    """Of each output against float64."""
    starved: list[str] = field(default_factory=list)
    """Contenders that could not be queued fast enough: their seconds include time of Python."""

    @property
    def speed(self) -> float:
        """Bytes a second."""
        return self.bytes / self.descend.median

    @property
    def share(self) -> float:
        """The share of the copy's rate."""
        return self.copy.over(self.descend)

    def ratio(self, peer: str) -> float | None:
        """The peer's time over ours, above 1 we are faster; None for one that could not do the job."""
        timing = self.peers[peer].timing if peer in self.peers else Timing()
        return timing.over(self.descend) if timing.seconds else None

    @property
    def misses(self) -> list[str]:
        """The targets that are not reached, in words."""
        missed = [f"{self.share:.2f} of the copy's rate"] if self.share < SHARE else []
        return missed + [f"slower than {peer}" for peer in self.peers if (self.ratio(peer) or 1.0) < 1]


@dataclass
class Launch:
    """What a small call costs its caller, by form, beside PyTorch's own operator."""

    operator: str
    shape: list[int]
    dtype: str
    yardstick: str
    timings: dict[str, Timing]

    def ratio(self, form: str) -> float:
        """Its time over the yardstick's."""
        return self.timings[form].over(self.timings[self.yardstick])


@dataclass
class Report:
    """A whole run."""

    device: dict[str, Any]
    results: list[Result] = field(default_factory=list)
    launches: list[Launch] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    """Problems that were not measured, and why."""

    def save(self, path: Path) -> None:
        """Replaces the file in one step, so that an interruption leaves a whole one. A line is a result."""
        document = {"format": FORMAT, **asdict(self)}
        entries = document.pop("results")
        for entry, result in zip(entries, self.results, strict=True):
            entry["summary"] = {
                "seconds": result.descend.median,
                "gigabytes_per_second": round(result.speed / 1e9, 1),
                "copy_gigabytes_per_second": round(result.bytes / result.copy.median / 1e9, 1),
                "share_of_copy": round(result.share, 4),
                "peer_over_descend": {peer: _rounded(result.ratio(peer)) for peer in result.peers},
                "misses": result.misses,
            }
        lines = ",\n".join(map(json.dumps, entries))
        files.replace(path, f'{json.dumps(document)[:-1]}, "results": [\n{lines}\n]}}\n')

    @classmethod
    def load(cls, path: Path) -> Report:
        """What ``save`` wrote. Raises ValueError for anything else."""
        document = json.loads(path.read_text())
        if not isinstance(document, dict) or document.get("format") != FORMAT:
            raise ValueError(f"{path} is not a report of bench-gpu of format {FORMAT}")
        results = []
        for entry in document["results"]:
            fields = {key: value for key, value in entry.items() if key != "summary"}
            fields |= {name: Timing(**entry[name]) for name in ("copy", "descend")}
            fields["peers"] = {
                name: Peer(**{**peer, "timing": Timing(**peer["timing"])}) for name, peer in entry["peers"].items()
            }
            results.append(Result(**fields))
        launches = [
            Launch(**{**entry, "timings": {name: Timing(**t) for name, t in entry["timings"].items()}})
            for entry in document["launches"]
        ]
        return cls(document["device"], results, launches, document["left_out"])

    @property
    def peers(self) -> list[str]:
        """Everyone who took part, in order."""
        return list({peer: None for result in self.results for peer in result.peers})

    @property
    def misses(self) -> list[str]:
        """The targets that are not reached, with the problems."""
        found = [f"{r.operator} {_by(r.shape)} {r.dtype}: {', '.join(r.misses)}" for r in self.results if r.misses]
        return found + [
            f"{launch.operator}, {form}: {launch.ratio(form):.2f} times the launch of {launch.yardstick}"
            for launch in self.launches
            for form in launch.timings
            if launch.ratio(form) > LAUNCH
        ]


def _rounded(ratio: float | None) -> float | None:
    return None if ratio is None else round(ratio, 3)


def _by(shape: list[int]) -> str:
    return " × ".join(map(str, shape))


def in_words(device: dict[str, Any]) -> str:
    """One line on the device."""
    versions = ", ".join(f"{name} {number}" for name, number in device["versions"].items())
    return (
        f"{device['gpu']}, {device['memory_gib']} GiB, {device['cache_mib']} MiB of cache, CUDA {device['cuda']}; "
        f"{versions}; {device['date']}"
    )


# --- the terminal -----------------------------------------------------------------------------------------------------


def show(report: Report, console: Console) -> None:
    """Everything that has been measured so far."""
    console.print(in_words(report.device), style="dim")
    for operator in {result.operator: None for result in report.results}:
        show_table(console, table(operator, [r for r in report.results if r.operator == operator], report.peers))
    for launch in report.launches:
        show_table(console, launch_table(launch))
    for line in report.left_out:
        console.print(f"Left out: {line}", style="yellow", highlight=False)
    missed = report.misses
    console.print(
        Text(f"{len(missed)} targets missed:\n  " + "\n  ".join(missed), style=BAD)
        if missed
        else Text("Every target is reached.", style=GOOD)
    )


def table(operator: str, results: list[Result], peers: list[str]) -> Table:
    """The results of one operator."""
    grid = Table(title=operator, title_justify="left", title_style="bold")
    grid.add_column("shape", no_wrap=True)
    grid.add_column("dtype")
    for heading in ("MB", "time", "±", "GB/s", "of the copy", "err", *peers):
        grid.add_column(heading, justify="right", no_wrap=True)
    for r in results:
        cells = [Text(_by(r.shape)), Text(r.dtype), Text(f"{r.bytes / 1e6:.0f}")]
        cells.append(Text(duration(r.descend.median), style="yellow" if r.starved else ""))
        cells += [Text(f"{r.descend.spread:.0%}"), Text(f"{r.speed / 1e9:.0f}")]
        cells.append(Text(f"{r.share:.2f}", style=GOOD if r.share >= SHARE else BAD))
        cells.append(Text(f"{r.errors[0]['mere']:.1e}"))
        for peer in peers:
            times = r.ratio(peer)
            cells.append(Text("-") if times is None else Text(f"{times:.2f}", style=BAD if times < 1 else ""))
        grid.add_row(*cells)
    return grid


def launch_table(launch: Launch) -> Table:
    """What a call costs."""
    title = f"{launch.operator}, what a call costs its caller: {_by(launch.shape)} {launch.dtype}"
    grid = Table(title=title, title_justify="left", title_style="bold")
    grid.add_column("call")
    grid.add_column("time", justify="right")
    grid.add_column("of PyTorch's", justify="right")
    for form, timing in launch.timings.items():
        times = launch.ratio(form)
        mark = "" if form == launch.yardstick else f"{times:.2f}"
        grid.add_row(form, duration(timing.median), Text(mark, style=BAD if times > LAUNCH else ""))
    return grid


# --- docs/design-gpu.md -----------------------------------------------------------------------------------------------


def section(report: Report) -> str:
    """The measured tables as Markdown."""
    lines = [f"Measured by `./dev bench-gpu` on {in_words(report.device)}.", ""]
    lines += _markdown(
        ["operator", "shape", "dtype", "GB/s", "of the copy's rate", *(f"{peer} / ours" for peer in report.peers)],
        [
            [f"`{r.operator}`", _by(r.shape), r.dtype, f"{r.speed / 1e9:.0f}", f"{r.share:.2f}"]
            + ["-" if (ratio := r.ratio(peer)) is None else f"{ratio:.2f}" for peer in report.peers]
            for r in report.results
        ],
    )
    if report.launches:
        forms = [form for form in report.launches[0].timings if form != report.launches[0].yardstick]
        lines += ["", "What a small call costs its caller, as a multiple of PyTorch's operator:", ""]
        lines += _markdown(
            ["operator", "beside", *forms],
            [
                [f"`{launch.operator}`", f"`{launch.yardstick}`", *(f"{launch.ratio(form):.2f}" for form in forms)]
                for launch in report.launches
            ],
        )
    lines += [*("", *(f"Left out: {line}" for line in report.left_out))] if report.left_out else []
    return "\n".join(lines) + "\n"


def _markdown(headings: list[str], rows: list[list[str]]) -> list[str]:
    rule = ["---" if place < 2 else "---:" for place in range(len(headings))]
    return ["| " + " | ".join(cells) + " |" for cells in (headings, rule, *rows)]


def write_section(report: Report, page: Path) -> None:
    """Puts the tables between the page's marks. Raises ValueError where it has none."""
    text, count = SECTION.subn(lambda match: match[1] + section(report) + match[2], page.read_text(encoding="utf-8"))
    if count != 1:
        raise ValueError(f"{page} has no place for the measured tables.")
    page.write_text(text, encoding="utf-8")
