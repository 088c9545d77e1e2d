"""The training examples: curves that agree, a verdict that notices if they do not, shares of a step's time."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from statistics import median
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
sys.path.insert(0, str(EXAMPLES))

import time_shares  # noqa: E402
import train_images  # noqa: E402
import train_text  # noqa: E402
import training  # noqa: E402
from rich.console import Console  # noqa: E402
from torch import nn  # noqa: E402
from training import DESCEND, PYTORCH, Outcome, Settings, Task  # noqa: E402

import descend.torch  # noqa: E402
import forks  # noqa: E402

TASKS = {"train_text": train_text.text, "train_images": train_images.images}
OPERATORS = {"train_text": ["RMS norm", "masked softmax"], "train_images": ["group norm + swish"]}
EPS = {torch.float32: torch.finfo(torch.float32).eps, torch.bfloat16: torch.finfo(torch.bfloat16).eps}
STEPS = 3


@pytest.fixture(autouse=True)
def _haste(monkeypatch):
    before = torch.get_num_threads()
    monkeypatch.setattr(training, "PROFILED", 1)
    yield
    torch.set_num_threads(before)


def small(name: str) -> Task:
    """Training batches of one sample, and two samples for validation."""
    task = TASKS[name](1)
    return replace(task, validation=[tuple(part[:2] for part in batch) for batch in task.validation])


@pytest.fixture(scope="module")
def outcomes() -> dict[tuple[str, torch.dtype], Outcome]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(training, "PROFILED", 1)
        return {
            (name, dtype): training.train(small(name), Settings(STEPS, 0, dtype, 1), Console())
            for name in TASKS
            for dtype in EPS
        }


@pytest.mark.parametrize("name", TASKS)
@pytest.mark.parametrize("dtype", EPS)
def test_the_curves_agree(outcomes, name, dtype):
    """Over few steps the losses differ only by rounding errors, which average out in the loss."""
    outcome = outcomes[name, dtype]
    assert list(outcome.losses) == [PYTORCH, DESCEND, outcome.wider]
    assert all(len(losses) == STEPS for losses in outcome.losses.values())
    limit = 8 * EPS[torch.float32] + EPS[dtype] * (dtype is torch.bfloat16)
    for run in (PYTORCH, DESCEND):
        assert max(outcome.differences(run, outcome.wider)) <= limit
        assert outcome.validation[run] == pytest.approx(outcome.validation[outcome.wider], rel=2 * limit)
    assert outcome.agree


def test_what_is_swapped_in_the_llama():
    report = descend.torch.patch(train_text.Llama(blocks=2))
    assert Counter(report.swapped.values()) == {
        "RMSNorm -> rms_norm": 5,
        "Mlp -> swi_glu": 2,
        "Block -> add_rms_norm at mlp_norm": 2,
        "Attention -> rotary_position_embedding in rotate": 2,
        "Llama -> cross_entropy in functional.cross_entropy": 1,
    }
    assert not report.left


@pytest.mark.parametrize("name", TASKS)
def test_the_figures_of_a_step(outcomes, name):
    outcome = outcomes[name, torch.float32]
    for run in (PYTORCH, DESCEND):
        assert len(outcome.step_seconds[run]) == STEPS - 1  # the first is not counted
        assert outcome.seconds(run) > 0
        assert list(outcome.shares[run]) == OPERATORS[name]
        assert all(0 < ways[way] < 0.5 for ways in outcome.shares[run].values() for way in ("forward", "backward"))
        assert outcome.share(run) < 0.8
        assert 0.05 < outcome.products[run] < 0.95


@pytest.mark.parametrize("name", TASKS)
def test_what_is_shown_saved_and_drawn(outcomes, name, tmp_path):
    outcome = outcomes[name, torch.float32]
    console = Console(width=150, file=io.StringIO())
    training.show(outcome, console)
    text = console.file.getvalue()
    assert "PyTorch and Descend agree" in text
    assert all(f"{operator}, backward" in " ".join(text.split()) for operator in OPERATORS[name])
    path = tmp_path / "figures.json"
    outcome.save(path)
    figures = json.loads(path.read_text())
    assert figures["losses"] == outcome.losses
    assert figures["agree"] is True
    assert figures["median_step_seconds"] == {run: outcome.seconds(run) for run in (PYTORCH, DESCEND)}
    assert str(EXAMPLES) not in path.read_text()
    vector, bitmap = training.draw(outcome, path)
    assert "<svg" in vector.read_text()
    assert bitmap.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("name", TASKS)
def test_a_wrong_epsilon_is_noticed(name):
    def use_descend(model: nn.Module) -> None:
        task.use_descend(model)
        for module in model.modules():
            if hasattr(module, "eps"):
                module.eps = 1e-4

    task = small(name)
    outcome = training.train(replace(task, use_descend=use_descend), Settings(STEPS, threads=1), Console())
    assert not outcome.agree


def test_agreement_is_judged_from_the_first_steps_on():
    """PyTorch's larger error at the end does not excuse an early difference."""
    exact = [4.0 - step / 20 for step in range(40)]
    grown = [loss * (1 + 1e-7 * 1.5**step) for step, loss in enumerate(exact)]

    def agree(ours: list[float]) -> bool:
        losses = {PYTORCH: grown, DESCEND: ours, "wider": exact}
        return Outcome("", "", "", "", {}, {}, {}, 0, losses).agree

    assert agree(grown)
    assert agree([loss * (1 - 5e-7 * 1.5**step) for step, loss in enumerate(exact)])
    assert not agree([loss * (1 - 1e-4) for loss in exact])
    assert not agree([loss * (1 - 2e-6 * 1.5**step) for step, loss in enumerate(exact)])


@pytest.mark.parametrize("name", TASKS)
def test_it_learns(name):
    """PyTorch's model alone: its loss goes below the baselines'."""
    task = TASKS[name](2)
    torch.set_num_threads(1)
    run = training.Run(task, Settings(16), torch.float32)
    random = torch.Generator().manual_seed(0)
    before = run.validate()
    run.train([task.draw(random) for _ in range(16)])
    largest, smallest = max(task.baselines.values()), min(task.baselines.values())
    assert before > 0.98 * largest
    assert smallest < largest
    assert run.validate() < 0.5 * (largest + smallest)


@pytest.mark.parametrize(("steps", "counted"), [(2, 1), (5, 4), (6, 4), (9, 7), (10, 4), (11, 4), (13, 6)])
def test_what_is_counted(steps, counted):
    """A turn's first step is never counted, nor is the first turn if there is another complete one."""
    drawn: dict[int, int] = {}

    def loss(model: nn.Module, batch: training.Batch) -> torch.Tensor:
        drawn[id(model)] = hash((drawn.get(id(model), 0), batch[0].sum().item()))
        return model(batch[0].to(model[0].weight.dtype)).square().mean()

    task = Task(
        name="tiny",
        data="",
        unit="",
        model=lambda: nn.Sequential(nn.LayerNorm(4), nn.Linear(4, 4)),
        use_descend=descend.torch.patch,
        operators=lambda model: {"layer norm": [model[0]]},
        loss=loss,
        draw=lambda random: (torch.randn(3, 4, generator=random),),
        validation=[(torch.ones(3, 4).tril(),)],
        baselines={},
    )
    outcome = training.train(task, Settings(steps, threads=1), Console())
    assert [len(outcome.step_seconds[run]) for run in (PYTORCH, DESCEND)] == [counted, counted]
    assert [len(losses) for losses in outcome.losses.values()] == [steps] * 3
    plain, ours, _ = drawn.values()
    assert plain == ours  # the same batches in the same order
    assert outcome.agree


# --- shares --------------------------------------------------------------------------------------------------------


class Slow(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, ahead, back):
        ctx.back = back
        time.sleep(ahead)
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        time.sleep(ctx.back)
        return gradient, None, None


class Layer(nn.Module):
    def __init__(self, ahead: float, back: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))
        self.times = ahead, back

    def forward(self, x):
        return Slow.apply(x * self.weight, *self.times).type_as(x)  # type_as looks at the next node's number


def test_shares_are_those_of_the_marked_modules():
    model = nn.Sequential(Layer(0.05, 0.02), Layer(0.02, 0.08), Layer(0.03, 0.05))
    run = SimpleNamespace(
        model=model,
        task=SimpleNamespace(operators=lambda model: {"one": [model[1]]}),
        differentiate=lambda batch: model(batch).sum().backward(),
        update=lambda: time.sleep(0.05),
    )
    steps = [time_shares.shares(run, torch.ones(4))["one"] for _ in range(3)]
    assert median(ways["forward"] for ways in steps) == pytest.approx(0.02 / 0.3, abs=0.05)
    assert median(ways["backward"] for ways in steps) == pytest.approx(0.08 / 0.3, abs=0.08)
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model)


# --- command line --------------------------------------------------------------------------------------------------


def call(name: str, *arguments: object, before: str = "pass") -> subprocess.CompletedProcess[str]:
    """The example as a program, after some code."""
    code = f"import runpy, sys; sys.argv = sys.argv[1:]; {before}; runpy.run_path(sys.argv[0], run_name='__main__')"
    return forks.run(code, EXAMPLES / f"{name}.py", *arguments)


@pytest.mark.extended
def test_the_command(tmp_path):
    done = call("train_images", "--steps", 2, "--batch", 1, "--threads", 1, "--out", tmp_path / "new")
    assert done.returncode == 0, done.stderr
    assert "agree" in done.stdout
    assert {path.name for path in (tmp_path / "new").iterdir()} == {
        f"train_images_float32.{kind}" for kind in ("json", "svg", "png")
    }


@pytest.mark.parametrize(
    ("name", "before", "text"),
    [
        ("train_images", "sys.modules['sklearn.datasets'] = None", "sklearn.datasets"),
        ("train_text", "sys.modules['rich'] = None", "rich"),
        ("compare_models", "sys.modules['typer'] = None", "typer"),
    ],
)
def test_a_missing_package_is_one_sentence(name, before, text, tmp_path):
    done = call(name, *(("--out", tmp_path) if name != "compare_models" else ()), before=before)
    assert done.returncode
    assert text in done.stderr
    assert 'pip install "descend[examples]"' in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_folder_that_can_not_be_made_is_one_sentence(tmp_path):
    (tmp_path / "file").touch()
    done = call("train_text", "--out", tmp_path / "file" / "folder")
    assert done.returncode == 2
    assert done.stderr.startswith("train_text: ")
    assert done.stderr.count("\n") == 1
