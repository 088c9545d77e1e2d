"""What was measured, seed by seed, as data: compared, judged, written to JSON as it comes and taken up again."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from torch import Tensor

from benchmarks import files
from benchmarks.precision.operators import OPERATORS
from benchmarks.precision.operators.operator import DISTRIBUTIONS, DTYPES, Draw, Golden, Shape, exact
from descend import precision

Array = np.ndarray[Any, Any]

_NUMBERS = re.compile(r"\[\s+([-+.\deE,\s]*?)\s+\]")  # a list of them belongs on one line
FORMAT = 1
SEEDS = 20
UNIT = {"float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}
"""The largest relative error of one rounding, by dtype."""
NORMAL = {"float32": 2.0**-126, "float16": 2.0**-14, "bfloat16": 2.0**-126}
"""The smallest normal number, by dtype."""
CLEAR = 1 / 32
"""An element is a near-cancellation if its golden value is a smaller part of its largest term."""
TARGET, EVERY_SEED, EVERY_MARE, LONG_ROW = 1.0001, 1.01, precision.LEVELS["L2"].mare, 64
"""Limits of the ratios: for the medians (1, and some tolerance), and for every seed if rows are long."""
ROUNDED = 0.999
"""The share of 16-bit elements that are to be rounded correctly."""


@dataclass
class Output:
    """One output over the seeds, a list a figure: ratios are our error over PyTorch's, 1 where both are 0."""

    mere: list[float] = field(default_factory=list)
    mare: list[float] = field(default_factory=list)
    rmse: list[float] = field(default_factory=list)
    our_mere: list[float] = field(default_factory=list)
    our_mare: list[float] = field(default_factory=list)
    our_rmse: list[float] = field(default_factory=list)
    cancelled: list[float] = field(default_factory=list)
    """The share of near-cancellations, which MERE and MARE leave out."""
    bound: list[float] = field(default_factory=list)
    """Our largest error divided by its element's largest term, in units of the output dtype's rounding error."""
    their_bound: list[float] = field(default_factory=list)
    rounded: list[float] = field(default_factory=list)
    """The share of elements, near-cancellations left out, that are the golden value rounded once."""
    their_rounded: list[float] = field(default_factory=list)

    @property
    def seeds(self) -> int:
        """How many were measured."""
        return len(self.rmse)

    @property
    def medians(self) -> precision.Limits:
        """Of the three ratios over the seeds."""
        return precision.Limits(median(self.mare), median(self.mere), median(self.rmse))

    @property
    def worst(self) -> precision.Limits:
        """The largest of each ratio over the seeds."""
        return precision.Limits(max(self.mare), max(self.mere), max(self.rmse))

    def add(self, ours: Tensor, theirs: Tensor, golden: Golden, elementwise: bool) -> None:
        """One more seed; the elements of 16 bits of an elementwise output owe a correct rounding."""
        kind = numpy_dtype(ours)
        results = [exact(tensor).reshape(golden.values.shape) for tensor in (ours, theirs)]
        size = np.abs(golden.values)
        terms = size if golden.terms is None else np.maximum(golden.terms, size)
        clear = size >= CLEAR * terms
        values, seen = golden.values[clear], [result[clear] for result in results]
        rmse = [precision.measure(result, golden.values, kind).rmse for result in results]
        mine, other = (precision.measure(result, values, kind) for result in seen)
        figures = {
            "mere": ratio(mine.mere, other.mere),
            "mare": ratio(mine.mare, other.mare),
            "rmse": ratio(*rmse),
            "our_mere": mine.mere,
            "our_mare": mine.mare,
            "our_rmse": rmse[0],
            "cancelled": 1 - values.size / max(size.size, 1),
        }
        for name, result in zip(("bound", "their_bound"), results, strict=True):
            figures[name] = largest_error(result, golden.values, np.maximum(terms, NORMAL[kind.name])) / UNIT[kind.name]
        if elementwise and kind.itemsize == 2:
            for name, result in zip(("rounded", "their_rounded"), seen, strict=True):
                figures[name] = precision.correct_rounding_share(result, values, kind)
        for name, value in figures.items():
            getattr(self, name).append(float(f"{value:.5g}"))


def numpy_dtype(tensor: Tensor) -> np.dtype[Any]:
    """The dtype under NumPy's names, which has bfloat16 from elsewhere."""
    return np.dtype(str(tensor.dtype).removeprefix("torch."))


def largest_error(actual: Array, golden: Array, terms: Array) -> float:
    """Relative to the terms; an infinity where it belongs is no error."""
    with np.errstate(all="ignore"):
        error = np.abs(actual - golden) / terms
    error[(error != error) | ~np.isfinite(actual)] = 0.0
    return float(error.max(initial=0.0))


def ratio(ours: float, theirs: float) -> float:
    """Ours over theirs; 1 where both are the same."""
    if ours == theirs:
        return 1.0
    return ours / theirs if theirs else math.inf


@dataclass
class Entry:
    """One operator in one dtype on inputs of one distribution and shape."""

    operator: str
    dtype: str
    distribution: str
    shape: tuple[int, ...]
    outputs: dict[str, Output] = field(default_factory=dict)

    @property
    def key(self) -> tuple[str, str, str, tuple[int, ...]]:
        """What makes it one."""
        return self.operator, self.dtype, self.distribution, self.shape

    @property
    def seeds(self) -> int:
        """How many were measured."""
        return min((output.seeds for output in self.outputs.values()), default=0)

    def measure(self, seed: int) -> None:
        """Both libraries and the golden value on one seed's inputs."""
        operator = OPERATORS[self.operator]
        inputs = operator.inputs(self.shape, Draw(seed, self.dtype, self.distribution))
        golden = operator.golden(**inputs)
        ours, theirs = operator.ours(*inputs.values()), operator.theirs(*inputs.values())
        for name, mine, other in zip(operator.outputs, ours, theirs, strict=True):
            if name not in golden:
                continue
            output = self.outputs.setdefault(name, Output())
            output.add(mine, other, golden[name], name in operator.elementwise)

    def misses(self, name: str) -> list[str]:
        """What one output does not reach of what is asked, in words."""
        output, operator = self.outputs[name], OPERATORS[self.operator]
        medians, worst = output.medians, output.worst
        found = [
            f"median {measure.upper()} {getattr(medians, measure):.3f}"
            for measure in ("mere", "mare", "rmse")
            if getattr(medians, measure) > TARGET
        ]
        if self.distribution == "normal" and operator.row(self.shape) >= LONG_ROW:
            limits = {"mere": EVERY_SEED, "mare": EVERY_MARE, "rmse": EVERY_SEED}
            found += [
                f"worst {measure.upper()} {getattr(worst, measure):.3f}"
                for measure, limit in limits.items()
                if getattr(worst, measure) > limit
            ]
        if output.rounded and median(output.rounded) < ROUNDED:
            found.append(f"correctly rounded {median(output.rounded):.3%}")
        return found


@dataclass
class Measured:
    """A run: the machine, and its entries."""

    machine: dict[str, Any]
    entries: list[Entry] = field(default_factory=list)

    def entry(self, operator: str, dtype: str, distribution: str, shape: Shape) -> Entry:
        """The one that is there, or a new one."""
        new = Entry(operator, dtype, distribution, shape)
        found = next((entry for entry in self.entries if entry.key == new.key), None)
        if found is None:
            self.entries.append(new)
        return found or new

    def of(self, operator: str, dtype: str | None = None, distribution: str | None = None) -> list[Entry]:
        """The entries of one operator; of one dtype, of one distribution."""
        return [
            entry
            for entry in self.entries
            if entry.operator == operator
            and dtype in (None, entry.dtype)
            and distribution in (None, entry.distribution)
            and entry.outputs
        ]

    def save(self, path: Path) -> None:
        """Writes all of it; whoever reads meanwhile sees the old or the new file."""
        entries = [asdict(entry) for entry in self.entries]
        for entry in entries:
            for name, output in entry["outputs"].items():
                entry["outputs"][name] = {figure: values for figure, values in output.items() if values}
        text = json.dumps({"format": FORMAT, "machine": self.machine, "entries": entries}, indent=1)
        text = _NUMBERS.sub(lambda match: f"[{' '.join(match[1].split())}]", text)
        files.replace(path, text + "\n")

    @classmethod
    def load(cls, path: Path) -> Measured:
        """What `save` wrote."""
        document = json.loads(path.read_text())
        if document.get("format") != FORMAT:
            raise ValueError(f"{path} holds no accuracy figures of format {FORMAT}")
        entries = [
            Entry(**{**entry, "shape": tuple(entry["shape"]),
                     "outputs": {name: Output(**figures) for name, figures in entry["outputs"].items()}})
            for entry in document["entries"]
        ]  # fmt: skip
        return cls(document["machine"], entries)


Key = tuple[str, str, str, Shape]


def plan(operators: list[str], dtypes: list[str], quick: bool) -> Iterator[Key]:
    """What there is to measure, in order; quick: the first shape of each."""
    for name in operators:
        shapes = OPERATORS[name].shapes[:1] if quick else OPERATORS[name].shapes
        for dtype in dtypes:
            for distribution in DISTRIBUTIONS:
                for shape in shapes:
                    yield name, dtype, distribution, shape


__all__ = ["DTYPES", "SEEDS", "Entry", "Measured", "Output", "plan"]
