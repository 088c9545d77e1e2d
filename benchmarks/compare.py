"""Did it get slower? Compares two reports by their ratios to the triad, because absolute times drift."""

from __future__ import annotations

from dataclasses import dataclass

from rich.table import Table
from rich.text import Text

from benchmarks.report import title
from benchmarks.results import Report, Result

TOLERANCE = 0.10


@dataclass(frozen=True)
class Change:
    """One problem in both reports, with one number of threads."""

    operator: str
    shape: tuple[int, ...]
    dtype: str
    threads: int
    before: float
    """Share of the limit."""
    after: float
    noise: float
    """The noise of the two measurements together."""

    @property
    def factor(self) -> float:
        """The new share divided by the old: above 1, it got faster."""
        return self.after / self.before

    @property
    def regressed(self) -> bool:
        """Slower than before by more than the tolerance and the noise."""
        return self.factor < 1 - max(TOLERANCE, self.noise)


def compare(before: Report, after: Report) -> list[Change]:
    """Problems in both reports, with the processors equally far apart; raises ValueError if there is none."""
    changes = []
    for old, new in _pairs(before, after):
        if not _moved(old, new):
            noise = max(one.descend["out"].noise for one in (old, new))
            changes.append(Change(*new.key, old.share, new.share, noise))
    if not changes:
        raise ValueError("; ".join(["the two reports have no problem in common", *_unlike(before, after)]))
    return changes


def _pairs(before: Report, after: Report) -> list[tuple[Result, Result]]:
    """All problems that both reports have."""
    earlier = {result.key: result for result in before.results}
    return [(earlier[result.key], result) for result in after.results if result.key in earlier]


def _moved(old: Result, new: Result) -> bool:
    """Whether the processors shared a cache in one report only: the limits then differ."""
    return old.apart is not None and new.apart is not None and old.apart != new.apart


def _unlike(before: Report, after: Report) -> list[str]:
    moved = sum(_moved(old, new) for old, new in _pairs(before, after))
    return [f"not compared, since the processors shared a cache in only one of the files: {moved}"] if moved else []


def remarks(before: Report, after: Report) -> list[str]:
    """Notes on the comparison: what was left out, and how the machines differ."""
    alone = before.measured ^ after.measured
    said = [f"Not compared, since only one of the files has them: {len(alone)}."] if alone else []
    said += [f"{words.capitalize()}." for words in _unlike(before, after)]
    for key in sorted((before.machine.keys() | after.machine.keys()) - {"date"}):
        old, new = before.machine.get(key), after.machine.get(key)
        if old != new:
            said.append(f"They differ in {key}: {old} before, {new} after.")
    return said


def table(changes: list[Change]) -> Table:
    """For the terminal, the worst first."""
    grid = Table(title="Share of the limit, before and after", title_justify="left", title_style="bold")
    grid.add_column("problem")
    for heading in ("before", "after", "factor", "noise"):
        grid.add_column(heading, justify="right")
    for change in sorted(changes, key=lambda change: change.factor):
        style = "bold red" if change.regressed else "green" if change.factor > 1 + TOLERANCE else ""
        problem = title(change.operator, change.shape, change.dtype, change.threads)
        factor = Text(f"{change.factor:.2f}", style=style)
        grid.add_row(problem, f"{change.before:.3f}", f"{change.after:.3f}", factor, f"{change.noise:.0%}")
    return grid
