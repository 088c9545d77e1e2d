"""``descend check``: the precision standard, with an exit status."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from descend import precision
from descend.cli import output, page, verdicts
from descend.cli.apis import LeftOut
from descend.cli.dumps import Dump
from descend.cli.files import TensorFile, few
from descend.cli.step import Result, Step
from descend.cli.verdicts import Judge, Row
from descend.tensors import Array, TensorFileError, parse_dtype


@dataclass(frozen=True)
class Source:
    """A file, or a folder that msprobe dumped, and its tensors by name."""

    path: Path
    flat: bool
    tensors: Mapping[str, Array]

    @classmethod
    def read(cls, text: str) -> Source:
        """Reads an argument of the command line."""
        if text and Path(text).is_dir():
            return cls(Path(text), False, Dump(Path(text)))
        file = TensorFile.parse(text)
        return cls(file.path, file.flat, file.read())

    def dtype(self, name: str) -> np.dtype[Any] | None:
        """The dtype that a tensor was computed in, if it is told."""
        return self.tensors.computed_in(name) if isinstance(self.tensors, Dump) else None


@dataclass
class Verdicts:
    """What is printed: a row for each tensor, and sentences below."""

    rows: list[Row]
    sentences: list[str] = field(default_factory=list)


def check(
    actual: Annotated[
        str,
        typer.Argument(
            metavar="ACTUAL", help="The results: FILE, FILE.bin:DTYPE[:SHAPE], or a folder that msprobe dumped."
        ),
    ],
    golden: Annotated[
        str | None,
        typer.Argument(
            metavar="GOLDEN",
            help="The golden results, float64 at best; the same forms. Without it the calls of Descend's operators in "
            "the folder ACTUAL are computed anew, in float64, from the inputs that were dumped with them.",
        ),
    ] = None,
    third_party: Annotated[
        str | None,
        typer.Option(
            help="Another library's results on the same inputs, or its dump of the same step: the double benchmark."
        ),
    ] = None,
    level: Annotated[str, typer.Option(help="L0, L1 or L2 of the double benchmark.")] = "L0",
    dtype: Annotated[
        str | None, typer.Option(help="The dtype that ACTUAL was computed in, if not the one it is stored in.")
    ] = None,
    most: Annotated[int, typer.Option(help="Of a folder, print so many of the worst tensors; 0 for all.", min=0)] = 40,
    html: Annotated[
        Path | None, typer.Option(help="Write a page with all verdicts, and a plot of each tensor's errors.")
    ] = None,
    plots: Annotated[int, typer.Option(help="On the page, plot so many of the worst tensors; 0 for all.", min=0)] = 200,
) -> None:
    """Judge results by the precision standard. Exit status: 0 all passed, 1 some failed, 2 nothing could be judged.

    A folder that msprobe dumped is judged tensor by tensor, of all steps and ranks in it, and the worst are printed
    first. Of two folders the tensors of the same name are compared; integers must be equal. The dtypes are those of
    dump.json.
    """
    if level not in precision.LEVELS:
        raise ValueError(f"There is no level {level!r}, only {', '.join(precision.LEVELS)}.")
    if html:
        page.check_writable(html)
    judge = Judge(level, third_party is not None, parse_dtype(dtype) if dtype else None, profiles=html is not None)
    verdict = _step(actual, third_party, judge) if golden is None else _pairs(actual, golden, third_party, judge)
    is_folder = Path(actual).is_dir()
    if is_folder:
        verdict.rows = verdicts.worst_first(verdict.rows)
    passes = sum(row.passed for row in verdict.rows)
    sentences = [f"{passes} of {len(verdict.rows)} tensors pass the {judge.benchmark}.", *verdict.sentences]
    shown = verdict.rows[:most] if is_folder and most else verdict.rows
    console = output.console()
    if verdict.rows:
        verdicts.show(console, shown, judge.measures)
    if len(shown) < len(verdict.rows):
        console.print(f"{len(verdict.rows) - len(shown)} better ones are not shown; --most 0 prints all.")
    for sentence in sentences:
        console.print(sentence)
    if html:  # after what was computed is printed
        what = " ".join(source for source in (actual, golden) if source is not None)
        page.write(html, what, verdict.rows, sentences, judge, plots)
    if passes < len(verdict.rows):
        raise typer.Exit(1)


def _step(actual: str, third_party: str | None, judge: Judge) -> Verdicts:
    """Verdicts on the calls in a dump, each computed anew."""
    for path in (actual, *([third_party] if third_party else [])):
        if not Path(path).exists():
            raise FileNotFoundError(f"{path} does not exist.")
        if not Path(path).is_dir():
            raise ValueError(
                f"{path} is a file. To judge it, name a file with its golden results, too: descend check {path} "
                "GOLDEN. One argument alone must be a folder that msprobe dumped."
            )
    step, other = Step(Path(actual)), Step(Path(third_party)) if third_party else None
    rows = [Row(name, "", "", False, problem) for name, problem in step.problems.items()]
    with output.progress() as bar:
        for name, call in bar.track(step.calls.items(), description="computing"):
            try:
                theirs = {result.name: result for result in _of(other, name)} if other else None
                rows += [_result_row(result, theirs, judge) for result in call.results()]
            except LeftOut as reason:
                step.leave_out(call, str(reason))
    if not rows:
        raise ValueError(_nothing(step))
    return Verdicts(rows, _left_out(step))


def _of(other: Step, name: str) -> list[Result]:
    """What the third party's call gave; nothing if it cannot be judged."""
    try:
        return other.calls[name].results() if name in other.calls else []
    except LeftOut:
        return []


def _result_row(result: Result, theirs: Mapping[str, Result] | None, judge: Judge) -> Row:
    if result.tensor is None or result.golden is None:
        return Row(result.name, "", "", False, result.problem)
    third_party = None
    if theirs is not None:
        other = theirs.get(result.name, Result(result.name, problem="it is missing"))
        if other.tensor is None or other.golden is None:
            return Row(result.name, output.shape(result.tensor), "", False, f"third party: {other.problem}")
        third_party = other.tensor, other.golden
    return _judged(judge, result.name, result.tensor, result.golden, result.dtype, third_party)


def _judged(
    judge: Judge,
    name: str,
    ours: Array,
    golden: Array,
    dtype: np.dtype[Any] | None,
    third_party: tuple[Array, Array] | None,
) -> Row:
    """The row of a tensor in a dump. What cannot be judged is told there, and the rest goes on."""
    try:
        return judge.row(name, ours, golden, dtype, third_party)
    except ValueError as error:
        return Row(name, output.shape(ours), str(ours.dtype), False, str(error))


def _nothing(step: Step) -> str:
    if step.only_statistics:
        return (
            f'{step.path} has statistics only, and no tensors: dump with "task": "tensor" in msprobe\'s configuration.'
        )
    others = " ".join(_left_out(step))
    return f"{step.path} has no call that Descend can judge. {others}".strip()


def _left_out(step: Step) -> list[str]:
    """Sentences about the calls that were not judged: what they are, and how many."""
    groups: dict[str, list[tuple[int, str]]] = {}
    for (name, reason), count in step.left_out.items():
        groups.setdefault(reason, []).append((count, name))
    sentences = []
    for reason, members in sorted(groups.items()):
        names = ", ".join(f"{count} {name}" for count, name in sorted(members, key=lambda m: (-m[0], m[1])))
        why = reason or "descend check cannot compute them"
        sentences.append(f"Not judged, because {why}: {names}.")
    return sentences


def _pairs(actual: str, golden: str, third_party: str | None, judge: Judge) -> Verdicts:
    """Verdicts on the tensors of a file or folder beside golden ones of the same names."""
    golden_source, *sources = (Source.read(text) for text in (golden, actual, third_party) if text is not None)
    wanted = golden_source.tensors
    results = [_by_golden_name(source, wanted) for source in sources]
    rows = []
    with output.progress() as bar:
        for name in bar.track(wanted, description="comparing"):
            try:
                rows.append(_pair(name, judge, [golden_source, *sources], results))
            except (OSError, TensorFileError) as error:
                if not isinstance(wanted, Dump):
                    raise
                rows.append(Row(name, "", "", False, str(error)))
    verdict = Verdicts(rows)
    if unjudged := [name for name in results[0] if name not in wanted]:
        verdict.sentences.append(f"Not judged, for {golden_source.path} does not hold them: {few(unjudged)}.")
    return verdict


def _by_golden_name(source: Source, wanted: Mapping[str, Array]) -> Mapping[str, Array]:
    """The source's tensors. If both files have a single tensor, its name does not matter."""
    tensors = source.tensors
    if isinstance(tensors, Dump) != isinstance(wanted, Dump):
        kind = "folder" if isinstance(wanted, Dump) else "file"
        raise ValueError(f"The golden results are a {kind}, and so must be what is compared: {source.path} is none.")
    if len(tensors) == len(wanted) == 1 and not isinstance(wanted, Dump):
        return dict(zip(wanted, tensors.values(), strict=True))
    if not tensors.keys() & wanted.keys():
        raise ValueError(f"{source.path} holds {few(tensors)}, and the golden file {few(wanted)}: no name in common.")
    return tensors


def _pair(name: str, judge: Judge, sources: list[Source], results: list[Mapping[str, Array]]) -> Row:
    """Compare our tensor, and theirs if there is one, with the golden one."""
    arrays = [sources[0].tensors[name]]
    for source, tensors in zip(sources[1:], results, strict=True):
        if name not in tensors:
            return Row(name, output.shape(arrays[0]), "", False, f"missing in {source.path.name}")
        arrays.append(tensors[name])
    ours = sources[1]
    dtype = judge.computed_in or ours.dtype(name) or arrays[1].dtype
    shape = output.shape(arrays[1])
    if any(source.flat for source in sources) and len({array.size for array in arrays}) == 1:
        arrays = [array.reshape(-1) for array in arrays]
    for source, array in zip(sources[1:], arrays[1:], strict=True):
        if array.shape != arrays[0].shape:
            remark = f"{source.path.name} has shape {output.shape(array)}, golden {output.shape(arrays[0])}"
            return Row(name, shape, str(dtype), False, remark)
    third_party = (arrays[2], arrays[0]) if len(arrays) > 2 else None
    if not isinstance(ours.tensors, Dump):
        row = judge.row(name, arrays[1], arrays[0], dtype, third_party)
    elif arrays[1].dtype.kind in "biu":
        row = judge.integers(name, arrays[1], arrays[0])
    else:
        row = _judged(judge, name, arrays[1], arrays[0], dtype, third_party)
    return replace(row, shape=shape)
