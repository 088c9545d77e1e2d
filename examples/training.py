"""What train_text.py and train_images.py share: a model trained by PyTorch alone and with Descend, side by side.

Both start from the same weights and see the same batches. They take turns, a few steps each, so that what else the
machine does falls on both. A third run, PyTorch alone in the next wider dtype, is the yardstick for the loss curves:
rounding errors grow as a model trains, and the distance of PyTorch's own curve from this one shows by how much.

Where a step's time goes is measured apart from its length: see time_shares.py.
"""

from __future__ import annotations

import json
import math
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import accumulate
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import torch
import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from time_shares import Shares, products, shares
from torch import Tensor, nn

import descend.torch
from descend import precision
from descend.cli.output import show as show_table

sys.path.append(str(Path(__file__).parent.parent))

from benchmarks import machine

os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # the profiler tells stderr that it starts and stops
BLOCK = 5  # steps of one run before it is the other's turn; the first of them, and the first block, are not counted
FIRST = 10  # steps that are judged together: over fewer, PyTorch's difference may be small by chance
PROFILED = 6  # steps of each run under the profiler
WIDER = {torch.float32: torch.float64, torch.bfloat16: torch.float32}
PYTORCH, DESCEND, COMPILED = "PyTorch", "Descend", "torch.compile"

Batch = tuple[Tensor, ...]


class Dtype(str, Enum):
    """The dtype of weights and activations. The optimiser works on float32 copies of narrower weights."""

    float32 = "float32"
    bfloat16 = "bfloat16"


Steps = Annotated[int, typer.Option(min=2, help="Steps to train.")]
Seed = Annotated[int, typer.Option(help="Of weights and batches.")]
Precision = Annotated[Dtype, typer.Option(help="Of weights and activations.")]
Threads = Annotated[int, typer.Option(min=0, help="For everyone; 0: the processors that this process may use.")]
AdamW = Annotated[bool, typer.Option("--adam-w", help="Descend's AdamW in the run with Descend.")]
Compiled = Annotated[bool, typer.Option("--compiled", help="Also time what torch.compile makes of PyTorch's.")]
Size = Annotated[int, typer.Option(min=1, help="Samples of a batch.")]
Out = Annotated[Path, typer.Option(help="Folder for the figures (JSON) and the picture (SVG, PNG).")]
OUT = Path("build/training")
INSTALL = 'What the examples need: pip install "descend[examples]"'


@dataclass(frozen=True)
class Task:
    """What to train, and on what."""

    name: str
    data: str
    """Where the data come from, and under which licence."""
    unit: str
    """What the loss is."""
    model: Callable[[], nn.Module]
    """Fresh weights, from torch's global generator."""
    use_descend: Callable[[nn.Module], None]
    """The changed lines: swaps modules in place."""
    operators: Callable[[nn.Module], Mapping[str, Sequence[nn.Module]]]
    """The modules that Descend computes, or PyTorch's at the same places, by kind."""
    loss: Callable[[nn.Module, Batch], Tensor]
    draw: Callable[[torch.Generator], Batch]
    """A batch to learn from."""
    validation: Sequence[Batch]
    """A batch of data that is not learned from."""
    baselines: Mapping[str, float]
    """Baselines: losses on the validation data of guesses that need no training."""
    learning_rate: float = 3e-3


@dataclass(frozen=True)
class Settings:
    """How to train."""

    steps: int
    seed: int = 0
    dtype: torch.dtype = torch.float32
    threads: int = 0
    adam_w: bool = False
    """Whether the run with Descend has Descend's optimiser, too."""
    compiled: bool = False
    """Whether torch.compile's step is timed, too."""


class Run:
    """A model in training: AdamW, a rate that rises and falls, gradients clipped."""

    def __init__(
        self,
        task: Task,
        settings: Settings,
        dtype: torch.dtype,
        adam_w: Any = torch.optim.AdamW,
        compiled: bool = False,
    ) -> None:
        torch.manual_seed(settings.seed)
        self.task, self.dtype = task, dtype
        self.model = task.model().to(settings.dtype).to(dtype)  # the wider one starts from the rounded weights, too
        self.called: Any = torch.compile(self.model) if compiled else self.model
        self.weights = list(self.model.parameters())
        wide = torch.promote_types(dtype, torch.float32)
        self.masters = [w.detach().to(wide, copy=True) for w in self.weights]
        self.optimizer = adam_w(self.masters, task.learning_rate, betas=(0.9, 0.95), weight_decay=0.01)
        steps, warm_up = settings.steps, max(1, settings.steps // 10)

        def rate(step: int) -> float:
            return min((step + 1) / warm_up, (1 + math.cos(math.pi * min(1, step / steps))) / 2)

        self.schedule = torch.optim.lr_scheduler.LambdaLR(self.optimizer, rate)
        self.losses: list[float] = []
        self.seconds: list[float] = []

    def step(self, batch: Batch) -> float:
        """Learns from one batch; returns the loss."""
        loss = self.differentiate(batch)
        self.update()
        return loss

    def differentiate(self, batch: Batch) -> float:
        """Forward and backward; returns the loss."""
        loss = self.task.loss(self.called, batch)
        loss.backward()
        return loss.item()

    def update(self) -> None:
        """The optimiser's part of a step."""
        for weight, master in zip(self.weights, self.masters, strict=True):
            master.grad, weight.grad = weight.grad.to(master.dtype), None
        nn.utils.clip_grad_norm_(self.masters, 1.0)
        self.optimizer.step()
        self.schedule.step()
        with torch.no_grad():
            torch._foreach_copy_(self.weights, self.masters)

    def train(self, batches: Sequence[Batch], counted: bool = True) -> None:
        """Learns from some batches; times all steps but the first."""
        for number, batch in enumerate(batches):
            start = time.perf_counter()
            self.losses.append(self.step(batch))
            if counted and number:
                self.seconds.append(time.perf_counter() - start)

    @torch.no_grad()
    def validate(self) -> float:
        """The mean loss on the validation data."""
        losses = [self.task.loss(self.model, batch).item() for batch in self.task.validation]
        return sum(losses) / len(losses)


# --- training ------------------------------------------------------------------------------------------------------


@dataclass
class Outcome:
    """All figures of one comparison."""

    task: str
    data: str
    unit: str
    dtype: str
    settings: dict[str, int]
    machine: dict[str, Any]
    baselines: dict[str, float]
    parameters: int
    losses: dict[str, list[float]] = field(default_factory=dict)
    """The loss of every step, by run."""
    validation: dict[str, float] = field(default_factory=dict)
    """The loss on the validation data after the last step, by run."""
    step_seconds: dict[str, list[float]] = field(default_factory=dict)
    """The seconds of every step that counts, by run."""
    shares: dict[str, Shares] = field(default_factory=dict)
    """The operators' shares of a step's time, by run; medians."""
    products: dict[str, float] = field(default_factory=dict)
    """The share of matrix products and convolutions, by run; medians."""

    @property
    def wider(self) -> str:
        """The run in the wider dtype, with which the others are compared."""
        return next(name for name in self.losses if name not in (PYTORCH, DESCEND))

    def differences(self, run: str, other: str) -> list[float]:
        """The relative difference of the losses of every step."""
        return [abs(a - b) / abs(b) for a, b in zip(self.losses[run], self.losses[other], strict=True)]

    @property
    def agree(self) -> bool:
        """Whether Descend's loss curve stays as close to the wider run's as PyTorch's own, up to every step.

        By the precision standard a largest error may be ten times a third party's (level L0); a rounding is no error.
        """
        ours, theirs = (list(accumulate(self.differences(run, self.wider), max)) for run in (DESCEND, PYTORCH))
        limits = [precision.LEVELS["L0"].mare * max(error, torch.finfo(torch.float32).eps) for error in theirs]
        first = min(FIRST, len(limits)) - 1
        return all(error <= limit for error, limit in zip(ours[first:], limits[first:], strict=True))

    def seconds(self, run: str) -> float:
        """The median time of a step."""
        return median(self.step_seconds[run])

    def share(self, run: str) -> float:
        """The share of a step that all operators take, forward and backward."""
        return sum(part for directions in self.shares[run].values() for part in directions.values())

    def save(self, path: Path) -> None:
        """All figures, and those that follow from them."""
        figures = vars(self) | {
            "median_step_seconds": {run: self.seconds(run) for run in self.step_seconds},
            "largest_relative_difference": {
                f"{a} - {b}": max(self.differences(a, b))
                for a, b in ((PYTORCH, self.wider), (DESCEND, self.wider), (DESCEND, PYTORCH))
            },
            "agree": self.agree,
        }
        path.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")


def train(task: Task, settings: Settings, console: Console) -> Outcome:
    """Trains all three and measures."""
    hold(settings.threads)
    plain, wider = (Run(task, settings, dtype) for dtype in (settings.dtype, WIDER[settings.dtype]))
    ours = Run(task, settings, settings.dtype, descend.torch.AdamW if settings.adam_w else torch.optim.AdamW)
    task.use_descend(ours.model)
    names = {PYTORCH: plain, DESCEND: ours, f"PyTorch in {_short(wider.dtype)}": wider}
    turns = [plain, ours]
    if settings.compiled:
        turns.append(Run(task, settings, settings.dtype, compiled=True))
    outcome = Outcome(
        task.name,
        task.data,
        task.unit,
        _short(settings.dtype),
        {"steps": settings.steps, "seed": settings.seed, "threads": torch.get_num_threads()},
        machine.describe(),
        dict(task.baselines),
        sum(weight.numel() for weight in plain.weights),
    )

    random = torch.Generator().manual_seed(settings.seed)
    batches = [task.draw(random) for _ in range(settings.steps)]
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    quiet = not console.is_terminal
    # The display has no thread of its own, which would disturb the times: it is refreshed between the blocks.
    with Progress(*columns, console=console, transient=True, auto_refresh=False, disable=quiet) as progress:
        bar = progress.add_task("", total=(1 + len(turns)) * settings.steps)
        for number, start in enumerate(range(0, settings.steps, BLOCK)):
            block = batches[start : start + BLOCK]
            for run in turns if number % 2 else reversed(turns):
                run.train(block, counted=number > 0 or settings.steps < 2 * BLOCK)
            text = f"loss {plain.losses[-1]:.3f} with PyTorch, {ours.losses[-1]:.3f} with Descend"
            progress.update(bar, description=text, advance=len(turns) * len(block), refresh=True)
        for start in range(0, settings.steps, BLOCK):
            block = batches[start : start + BLOCK]
            wider.train(block)
            text = f"yardstick: PyTorch in {_short(wider.dtype)}"
            progress.update(bar, description=text, advance=len(block), refresh=True)

    for name, run in names.items():
        outcome.losses[name], outcome.validation[name] = run.losses, run.validate()
    outcome.step_seconds = {name: run.seconds for name, run in zip((PYTORCH, DESCEND, COMPILED), turns, strict=False)}
    found: dict[str, list[Shares]] = {PYTORCH: [], DESCEND: []}
    of_products: dict[str, list[float]] = {PYTORCH: [], DESCEND: []}
    for _ in range(PROFILED):
        batch = task.draw(random)
        for name, steps in found.items():
            steps.append(shares(names[name], batch))
            of_products[name].append(products(names[name], batch))
    outcome.products = {name: median(steps) for name, steps in of_products.items()}
    for name, steps in found.items():
        outcome.shares[name] = {
            kind: {way: median(step[kind][way] for step in steps) for way in ways} for kind, ways in steps[0].items()
        }
    return outcome


def hold(threads: int) -> None:
    """Gives PyTorch, which Descend follows, as many threads; 0: as many as there are processors for this process."""
    torch.set_num_threads(threads or len(machine.processors()))


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


# --- what is shown -------------------------------------------------------------------------------------------------


def show(outcome: Outcome, console: Console) -> None:
    """Two tables: what was learned, and how long it took."""
    runs = list(outcome.losses)
    middle = len(outcome.losses[PYTORCH]) // 2
    learned = table("run", "first loss", "middle", "last", "validation", f"largest difference from {runs[-1]}")
    for run in runs:
        losses = outcome.losses[run]
        apart = f"{max(outcome.differences(run, outcome.wider)):.1e}" if run != outcome.wider else ""
        cells = [losses[0], losses[middle], losses[-1], outcome.validation[run]]
        learned.add_row(run, *(f"{cell:.4f}" for cell in cells), apart)
    for name, loss in outcome.baselines.items():
        learned.add_row(f"[dim]{name}", "", "", "", f"[dim]{loss:.4f}", "")
    console.print(f"[bold]{outcome.task}[/]: {outcome.parameters:,} parameters, {outcome.dtype}; loss: {outcome.unit}")
    show_table(console, learned)
    apart = max(outcome.differences(DESCEND, PYTORCH))
    verdict = "[green]agree[/]" if outcome.agree else "[bold red]do not agree[/]"
    console.print(f"The curves of PyTorch and Descend {verdict}: their largest relative difference is {apart:.1e}.\n")

    kinds = list(outcome.shares[PYTORCH])
    took = table("run", "a step", *(f"{kind}, {way}" for kind in kinds for way in ("forward", "backward")), "the rest")
    for run, operators in outcome.shares.items():
        whole = outcome.seconds(run)
        parts = [share for ways in operators.values() for share in ways.values()]
        parts.append(1 - sum(parts))
        took.add_row(run, f"{1e3 * whole:.1f} ms", *(f"{1e3 * whole * part:.1f} ms, {part:4.0%}" for part in parts))
    show_table(console, took)
    threads = outcome.settings["threads"]
    ratios = {run: outcome.seconds(run) / outcome.seconds(DESCEND) for run in outcome.step_seconds}
    compiled = f", torch.compile's {ratios[COMPILED]:.2f} times" if COMPILED in ratios else ""
    console.print(
        f"Medians of {len(outcome.step_seconds[PYTORCH])} steps in turns, {threads} thread{'s' * (threads != 1)}: "
        f"PyTorch's step takes {ratios[PYTORCH]:.2f} times as long as that with Descend{compiled}."
    )
    console.print(
        f"Matrix products and convolutions, which are PyTorch's in both, take {outcome.products[PYTORCH]:.0%} of "
        f"PyTorch's step and {outcome.products[DESCEND]:.0%} of that with Descend."
    )


def terminal() -> Console:
    """Where tables go; a file or a pipe has room."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=150)


def table(*columns: str, left: Sequence[str] = ()) -> Table:
    """An empty table. All columns have numbers, except the first and those in `left`."""
    made = Table(box=SIMPLE_HEAD, padding=(0, 2, 0, 0), show_edge=False)
    for number, name in enumerate(columns):
        made.add_column(name, justify="right" if number and name not in left else "left", no_wrap=number == 0)
    return made


def draw(outcome: Outcome, path: Path) -> list[Path]:
    """The loss curves beside the bars of a step's time, as SVG and PNG; returns the paths."""
    import matplotlib

    matplotlib.use("Agg")
    from benchmarks.plot import COLOURS, INK, STYLE
    from matplotlib import pyplot

    with pyplot.rc_context(STYLE):
        figure, (left, right) = pyplot.subplots(1, 2, figsize=(9.2, 3.7), width_ratios=(3, 2))
        steps = range(1, 1 + len(outcome.losses[PYTORCH]))
        left.plot(steps, outcome.losses[PYTORCH], color=COLOURS[PYTORCH], linewidth=4.2, alpha=0.6, label=PYTORCH)
        left.plot(steps, outcome.losses[DESCEND], color=COLOURS[DESCEND], linewidth=1.2, label=DESCEND)
        for name, loss in outcome.baselines.items():
            left.axhline(loss, color=INK, linewidth=1, linestyle=(0, (4, 3)))
            left.text(steps[-1], loss, f"{name} ", ha="right", va="bottom", fontsize=8, color=INK)
        left.set_xlabel("step")
        left.set_title(f"loss: {outcome.unit}", loc="left", fontsize=11, color=INK)
        left.legend(frameon=False, labelcolor=INK, loc="center right")
        left.grid(axis="y", color=INK, alpha=0.18, linewidth=0.8)

        whole = {run: 1e3 * outcome.seconds(run) for run in (DESCEND, PYTORCH)}
        for row, (run, milliseconds) in enumerate(whole.items()):
            start = 0.0
            for number, ways in enumerate(outcome.shares[run].values()):
                width = milliseconds * sum(ways.values())
                right.barh(row, width, left=start, height=0.52, color=COLOURS[run], alpha=1 - 0.35 * number)
                start += width
            right.barh(row, milliseconds - start, left=start, height=0.52, color=INK, alpha=0.25)
            label = f"{milliseconds:.0f} ms, {outcome.share(run):.0%} of it {' and '.join(outcome.shares[run])}"
            right.text(0, row + 0.31, label, fontsize=8.5, color=INK, va="bottom")
        right.set_yticks(range(len(whole)), list(whole))
        right.set_ylim(-0.5, 1.75)
        right.set_xlabel("milliseconds")
        right.set_title("a step: these operators, and the rest", loc="left", fontsize=11, color=INK)
        for axis in (left, right):
            axis.spines[["top", "right", "left"]].set_visible(False)
            axis.tick_params(length=0)
        title = f"{outcome.task}, {outcome.dtype}"
        figure.suptitle(title, x=0.008, ha="left", fontsize=13, fontweight="bold", color=INK)
        figure.text(0.008, 0.012, machine.in_words(outcome.machine), fontsize=6.5, color=INK)
        figure.tight_layout(rect=(0, 0.035, 1, 1))
        paths = [path.with_suffix(kind) for kind in (".svg", ".png")]
        for each in paths:
            date = {"Date": None} if each.suffix == ".svg" else None
            figure.savefig(each, transparent=True, dpi=160, metadata=date)
        pyplot.close(figure)
    return paths


def compare(task: Task, settings: Settings, out: Path) -> Outcome:
    """Trains, shows, saves and draws; exits with status 1 where the loss curves do not agree."""
    console = terminal()
    out.mkdir(parents=True, exist_ok=True)
    outcome = train(task, settings, console)
    show(outcome, console)
    path = out / f"{task.name}_{outcome.dtype}.json"
    outcome.save(path)
    files = [path, *draw(outcome, path)]
    console.print("Figures and picture: " + ", ".join(map(str, files)))
    if not outcome.agree:
        raise typer.Exit(1)
    return outcome


def program(command: Callable[..., Any]) -> None:
    """Runs an example's command line; what goes wrong is one sentence on stderr, and the exit status 2."""
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command(help=sys.modules[command.__module__].__doc__)(command)
    try:
        app()
    except (ImportError, OSError) as error:
        hint = f" {INSTALL}" if isinstance(error, ImportError) else ""
        print(f"{Path(sys.argv[0]).stem}: {' '.join(str(error).split())}.{hint}".replace("..", "."), file=sys.stderr)
        sys.exit(2)
