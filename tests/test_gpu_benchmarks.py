"""The benchmarks for GPUs, without one: the grid, bytes, timing on a simulated device, results, tables, refusals."""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import os
import re
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("rich")
pytest.importorskip("typer")

ROOT = Path(__file__).resolve().parent.parent

import torch  # noqa: E402
from benchmarks import accuracy, frameworks, kinds  # noqa: E402
from benchmarks.frameworks import Library  # noqa: E402
from benchmarks.gpu import (  # noqa: E402
    OPERATORS,
    __main__,
    results,
    session,
    timing,
)
from benchmarks.gpu import check as gpu_check  # noqa: E402
from benchmarks.gpu.peers import LIBRARIES  # noqa: E402
from benchmarks.gpu.results import Launch, Report, Result  # noqa: E402
from benchmarks.gpu.timing import Contender, copies, measure  # noqa: E402
from benchmarks.operator import load  # noqa: E402
from benchmarks.results import Peer, Timing  # noqa: E402
from rich.console import Console  # noqa: E402
from typer.testing import CliRunner  # noqa: E402

import forks  # noqa: E402
from descend.contract import OPERATORS as TABLES  # noqa: E402
from pages import MISSING, is_gradient  # noqa: E402

WITHOUT_GPU = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")

# --- what is measured -------------------------------------------------------------------------------------------------

SIZE = {"float32": 4, "float16": 2, "bfloat16": 2}
TINY_OF = {
    kinds.MATRICES: (256, 512),
    kinds.ELEMENTS_ALONE: (256, 512),
    kinds.CLASSES: (256, 512),
    kinds.CLASSES_ALONE: (256, 512),
    kinds.IMAGES: (2, 4, 2, 2048),
    kinds.SCORES: (2, 8, 16, 256),
    kinds.WINDOWS: (512, 2, 64, 32, 16),
    kinds.HEADS: (2, 64, 16, 64),
}
TINY = {name: TINY_OF[load(name).kind] for name in OPERATORS}


def least_bytes(operator: str, shape: tuple[int, ...], dtype: str) -> float:
    """As docs/design-gpu.md counts them; vectors are left out."""
    size = SIZE[dtype]
    if operator.startswith("nsa"):
        tokens, heads, depth, width, stride = shape
        windows = (tokens - width) // stride + 1
        return ((2 if operator.endswith("grad") else 1) * tokens + windows) * heads * depth * size
    usual = 3 if is_gradient(operator) else 2
    tensors = {
        "deep_norm_grad": 5,
        "deep_norm": 3,
        "add_layer_norm_grad": 5,
        "add_rms_norm": 4,
        "add_layer_norm": 4,
        "swi_glu": 3,
        "swi_glu_grad": 5,
        "apply_adam_w_v2": 7,
        "cross_entropy_loss_grad": 2,
    }.get(operator, usual)
    mask = math.prod(shape) / shape[1] if "masked_softmax" in operator else 0
    return tensors * math.prod(shape) * size + mask


def test_every_operator_is_measured():
    assert set(OPERATORS) == set(TABLES) - MISSING["benchmarks"] - MISSING["triton"]


@pytest.mark.parametrize("operator", OPERATORS)
def test_problems_are_of_64_mb_and_more(operator):
    for shape in load(operator).kind.large:
        for dtype in __main__.USUAL:
            assert least_bytes(operator, shape, dtype) >= 64e6, (shape, dtype)


def test_the_problems_that_were_asked_for_are_there():
    for operator in ("rms_norm", "rms_norm_grad", "layer_norm", "layer_norm_backward"):
        assert {shape[1] for shape in load(operator).kind.large} >= {2**n for n in range(9, 16)}
    for operator in ("group_norm_swish", "group_norm_swish_grad"):
        assert any((n, g * c, p) == (16, 320, 128 * 128) for n, g, c, p in load(operator).kind.large)
    for operator in ("scaled_masked_softmax", "scaled_masked_softmax_backward"):
        assert {(8, 32, 1024, keys) for keys in (1024, 2048, 4096)} <= set(load(operator).kind.large)
    for operator in ("nsa_compress", "nsa_compress_grad"):
        assert any(shape[:3] == (131072, 8, 128) for shape in load(operator).kind.large)


@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_bytes_of_a_problem_are_those_of_the_document(operator, dtype):
    problem = load(operator).make(TINY[operator], dtype, np.random.default_rng(0))
    least = least_bytes(operator, TINY[operator], dtype)
    assert least <= problem.bytes < 1.06 * least  # vectors and statistics


# --- timing on a device that is made up -------------------------------------------------------------------------------


class Simulated:
    """A simulated device with a queue: kernels and launches take given times."""

    cache = 50 << 20

    def __init__(self) -> None:
        self.host = self.end = 0.0
        self.holds: list[float] = []

    def mark(self) -> float:
        return max(self.end, self.host)

    def reached(self, mark: float) -> bool:
        return mark <= self.host

    def seconds(self, start: float, stop: float) -> float:
        assert max(start, stop) <= self.host, "the device has not come to it"
        return stop - start

    def hold(self, seconds: float) -> None:
        self.holds.append(seconds)
        self.end = max(self.end, self.host) + seconds

    def synchronize(self) -> None:
        self.host = max(self.host, self.end)

    def free(self) -> int:
        return 1 << 40

    def job(self, kernel: float, launch: float) -> Any:
        def run() -> None:
            self.host += launch
            self.end = max(self.end, self.host) + kernel

        return run


@pytest.mark.parametrize("launch", [1e-6, 40e-6, 400e-6])
def test_what_python_takes_is_not_measured(launch):
    """Kernels of 15 us, however long their launches take."""
    device = Simulated()
    contender = Contender("ours", [device.job(15e-6, launch)] * 3)
    measure(device, [contender], 7)
    assert contender.timing.seconds == pytest.approx([15e-6] * 7, rel=1e-3)
    assert contender.timing.rounds == list(range(7))
    assert not contender.starved
    assert contender.calls == timing.MOST


def test_a_job_that_waits_for_the_device_is_told():
    device = Simulated()
    job = device.job(15e-6, 40e-6)

    def waits() -> None:
        job()
        device.synchronize()

    contender = Contender("theirs", [waits])
    measure(device, [contender], 3)
    assert contender.starved
    assert contender.timing.median > 50e-6  # Python's as well


def test_long_kernels_are_called_less_often():
    device = Simulated()
    contender = Contender("ours", [device.job(1e-3, 1e-5)] * 2, scale=0.5)
    measure(device, [contender], 3)
    assert contender.calls == 2
    assert contender.timing.seconds == pytest.approx([0.5e-3] * 3)


def test_data_take_turns_and_results_live_as_long():
    alive: list[int] = []
    order: list[int] = []

    class Owned:
        def __init__(self, number: int) -> None:
            self.number = number
            alive.append(number)

        def __del__(self) -> None:
            alive.remove(self.number)

    most = 0

    def job(number: int) -> Any:
        def run() -> Owned:
            nonlocal most
            order.append(number)
            made = Owned(number)
            most = max(most, len(alive))
            return made

        return run

    contender = Contender("ours", [job(n) for n in range(3)])
    contender.run(7)
    assert order == [0, 1, 2, 0, 1, 2, 0]
    assert most == 4  # three in turn and the one that is made
    assert not alive


def test_everyone_takes_turns_back_and_forth():
    device = Simulated()
    order: list[str] = []

    class Noted(Contender):
        def sample(self, device: Any) -> float:
            order.append(self.name)
            return super().sample(device)

    measure(device, [Noted(name, [device.job(1e-3, 1e-6)]) for name in "abc"], 3)
    assert "".join(order) == "abc" + "abc" + "cba" + "abc"  # the first to calibrate


@pytest.mark.parametrize(("size", "count"), [(1 << 20, 16), (64 << 20, 3), (100 << 20, 2), (1 << 30, 1), (0, 16)])
def test_copies_pass_the_cache(size, count):
    assert copies(size, 50 << 20) == count
    assert count == 16 or count * size >= 3 * (50 << 20)


# --- one problem ------------------------------------------------------------------------------------------------------


@dataclass
class OnCpu:
    """The CPU as a device: jobs are done when they return."""

    cache: int = 3000
    room: int = 1 << 40

    def mark(self) -> float:
        return time.perf_counter()

    def reached(self, mark: float) -> bool:
        return False

    def seconds(self, start: float, stop: float) -> float:
        return stop - start

    def hold(self, seconds: float) -> None:
        pass

    def synchronize(self) -> None:
        pass

    def free(self) -> int:
        return self.room


def on_cpu(array: Any) -> Any:
    return frameworks.torch_arrays([array])[0]


def library(name: str, **routes: Any) -> Library:
    return Library(name, "torch", lambda operator: routes, frameworks.torch_arrays)


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(session, "COPIED", 1 << 16)
    monkeypatch.setattr(session, "TRIAL", 3)
    monkeypatch.setattr(timing, "SAMPLE", 1e-5)


SMALL = {
    **TINY,
    **dict.fromkeys(("rms_norm_grad", "layer_norm_backward", "deep_norm_grad", "add_layer_norm_grad"), (12, 64)),
}


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("operator", OPERATORS)
def test_a_problem_is_measured_and_checked(operator):
    """Beside PyTorch's own ways, on CPU tensors."""
    made = session.run(load(operator), SMALL[operator], "bfloat16", OnCpu(), 3, LIBRARIES[:1], on_cpu)
    assert (made.operator, made.shape, made.dtype) == (operator, list(SMALL[operator]), "bfloat16")
    assert len(made.copy.seconds) == len(made.descend.seconds) == 3
    assert made.share > 0
    problem = load(operator).make(SMALL[operator], "bfloat16", np.random.default_rng(0))
    assert len(made.errors) == len(problem.outputs)
    assert made.errors[0]["mere"] < 2.0**-7
    assert made.peers["PyTorch"].route in load(operator).torch_eager()
    assert (made.ratio("PyTorch") or 0) > 0
    assert made.starved == []


@pytest.mark.usefixtures("small")
def test_peers_that_fail_or_are_wrong_are_left_out_and_told():
    def fails(*_: Any) -> Any:
        raise RuntimeError("no such kernel")

    right = load("rms_norm_grad").torch_eager()["the formula in eager operations"]
    wrong = lambda dy, x, rstd, gamma: lambda: (dy, gamma.float())  # noqa: E731
    libraries = [library("A", bad=fails, wrong=wrong, right=right), library("B", bad=fails)]
    made = session.run(load("rms_norm_grad"), (12, 64), "float32", OnCpu(), 3, libraries, on_cpu)
    tried = made.peers["A"].tried
    assert made.peers["A"].route == "right"
    assert tried["bad"] == "RuntimeError: no such kernel"
    assert str(tried["wrong"]).startswith("WrongResultError: A (wrong)")
    assert isinstance(tried["right"], float)
    assert made.ratio("B") is None
    assert made.peers["B"].tried == {"bad": "RuntimeError: no such kernel"}


@pytest.mark.usefixtures("small")
def test_a_wrong_result_of_ours_ends_it(monkeypatch):
    from benchmarks import ours

    def wrong(operator: Any, problem: Any) -> Any:
        return lambda: [torch.zeros(out.shape) for out in problem.outputs.values()]

    monkeypatch.setattr(ours, "allocating", wrong)
    with pytest.raises(accuracy.WrongResultError, match="Descend on"):
        session.run(load("rms_norm_grad"), (12, 64), "float32", OnCpu(), 3, (), on_cpu)


@pytest.mark.usefixtures("small")
def test_what_the_device_has_no_room_for_is_left_out():
    with pytest.raises(session.TooLargeError, match="rms_norm_grad"):
        session.run(load("rms_norm_grad"), (12, 64), "float32", OnCpu(room=1 << 16), 3, (), on_cpu)


# --- checks -----------------------------------------------------------------------------------------------------------


class Beside:
    """The CPU's ways: no streams, no graphs."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def beside(self) -> Any:
        self.calls.append("beside")
        return contextlib.nullcontext()

    def captured(self, call: Any) -> Any:
        self.calls.append("captured")
        return call

    def wait(self) -> None:
        self.calls.append("wait")


@pytest.mark.parametrize("operator", OPERATORS)
def test_every_case_of_an_operator_is_checked(operator, tmp_path):
    """On CPU tensors: the engine's results are right, so that the shapes and the reference are."""
    ways = Beside()
    saved = tmp_path / "checks.json"
    assert gpu_check.check_all([operator], saved, 1e9, ways, {"gpu": "none"}, on_cpu) == 0
    found = json.loads(saved.read_text())
    cases = {(tuple(each["shape"]), each["dtype"]) for each in found["results"]}
    assert cases == set(itertools.product(load(operator).kind.checked, load(operator).dtypes))
    assert (found["checks"], found["failed"], found["left out"]) == (len(cases), 0, 0)
    for each in found["results"]:
        assert each["passed"] == ["float64", "second run", "another stream", "CUDA graph"]
    assert ways.calls.count("beside") == ways.calls.count("captured") == len(cases)


@pytest.mark.parametrize(
    ("wrong", "failed"),
    [(1, "float64"), (2, "second run"), (3, "another stream"), (4, "CUDA graph")],
)
def test_a_case_that_fails_says_in_what(monkeypatch, wrong, failed):
    from benchmarks import ours

    made = ours.allocating

    def sometimes_wrong(operator: Any, problem: Any) -> Any:
        call, count = made(operator, problem), itertools.count(1)

        def run() -> Any:
            results = call()
            if next(count) == wrong:
                results[0][0, 0] = 1e6
            return results

        return run

    monkeypatch.setattr(ours, "allocating", sometimes_wrong)
    found = gpu_check.run(load("rms_norm_grad"), (12, 64), "float32", Beside(), on_cpu)
    questions = ["float64", "second run", "another stream", "CUDA graph"]
    if wrong == 1:  # what is wrong at first is compared with what comes later
        assert set(found.failed) == set(questions)
        assert found.failed["float64"].startswith("WrongResultError: rms_norm_grad (12, 64) float32: 1 of")
    else:
        assert found.failed == {failed: "AssertionError: output 0 has other bits than in the first run"}
        assert found.passed == [question for question in questions if question != failed]


def test_an_operator_that_raises_is_a_failed_check(monkeypatch):
    from benchmarks import ours

    def raises(operator: Any, problem: Any) -> Any:
        def run() -> Any:
            raise RuntimeError("no kernel")

        return run

    monkeypatch.setattr(ours, "allocating", raises)
    found = gpu_check.run(load("rms_norm"), (12, 64), "float32", Beside(), on_cpu)
    assert (found.passed, found.failed) == ([], {"float64": "RuntimeError: no kernel"})


def test_cases_that_the_time_is_too_short_for_are_counted(tmp_path):
    missing = gpu_check.check_all(["rms_norm", "layer_norm"], tmp_path / "checks.json", -1, Beside(), {}, on_cpu)
    found = json.loads((tmp_path / "checks.json").read_text())
    assert (found["checks"], found["left out"]) == (0, missing)
    assert missing == len(list(gpu_check.cases(["rms_norm", "layer_norm"])))


def test_the_answers_of_all_processes_are_one_file(tmp_path):
    parts = [tmp_path / f"{name}.json" for name in ("rms_norm", "layer_norm")]
    for part in parts:
        done = [gpu_check.Check(part.stem, (2, 3), "float32", ["float64"])]
        gpu_check.save(part, {"gpu": "one"}, done, 5)
    found, left_out = gpu_check.merge(parts, tmp_path / "all.json")
    assert ([each.operator for each in found], left_out) == (["rms_norm", "layer_norm"], 10)
    assert json.loads((tmp_path / "all.json").read_text())["device"] == {"gpu": "one"}


@WITHOUT_GPU
@pytest.mark.extended
def test_a_session_without_a_gpu_says_so(tmp_path):
    command = [sys.executable, ROOT / "tools" / "gpu_session.py", tmp_path]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 1
    assert re.findall(r"status (-?\d+)", done.stdout) == ["2", "2"]
    assert (tmp_path / "log").read_text().count("Nothing was measured.") == 2


def test_the_cost_of_a_call(monkeypatch):
    monkeypatch.setattr(session, "second_phase", session.through_pytorch)  # whose workspace would be on a GPU
    monkeypatch.setattr(session, "launch_seconds", lambda device, call: timing.launch_seconds(device, call, 3))
    for operator in OPERATORS:
        found = session.launch(load(operator), OnCpu(), 3, on_cpu)
        assert found is not None
        assert {"descend", "descend, out=", "descend.torch", "a repeatable executor", found.yardstick} == set(
            found.timings
        )
        assert all(len(each.seconds) == 3 for each in found.timings.values())
        assert found.ratio(found.yardstick) == 1


def test_peers_take_part_where_they_have_the_operator():
    have = {each.name: [op for op in OPERATORS if each.routes(load(op))] for each in LIBRARIES}
    assert have["PyTorch"] == have["torch.compile"] == list(OPERATORS)
    norms = ["rms_norm_grad", "layer_norm_backward", "rms_norm", "layer_norm"]
    assert set(have["flash-linear-attention"]) == set(norms)
    without = {"nsa_compress", "nsa_compress_grad", "deep_norm_grad", "swi_glu", "swi_glu_grad"}
    without |= {"rotary_position_embedding", "rotary_position_embedding_grad"}
    without |= {"gelu_v2", "gelu_backward_v2", "deep_norm", "add_layer_norm", "add_layer_norm_grad"}
    without |= {"softmax", "softmax_backward", "log_softmax", "log_softmax_backward"}
    without |= {"apply_adam_w_v2", "cross_entropy_loss", "cross_entropy_loss_grad"}
    without |= {"group_norm", "group_norm_backward", "group_norm_silu"}
    assert set(have["Liger-Kernel"]) == set(OPERATORS) - without - {"add_rms_norm", "gemma_rms_norm"}
    for name in ("Apex", "Transformer Engine"):
        assert set(norms) < set(have[name])


# --- results ----------------------------------------------------------------------------------------------------------


def times(*seconds: float) -> Timing:
    return Timing(list(seconds), list(range(len(seconds))))


def report() -> Report:
    device = {"gpu": "a GPU", "memory_gib": 80.0, "cache_mib": 50.0, "cuda": "13.0", "versions": {"torch": "2.13"}}
    device["date"] = "2027-01-01 00:00 UTC"
    errors = [{"mere": 1e-3, "mare": 1e-2, "rmse": 1e-4}]
    peers = {
        "PyTorch": Peer(times(4e-4, 6e-4, 8e-4), "autograd", {"autograd": 6e-4}, errors),
        "Apex": Peer(Timing(), "", {"autograd": "RuntimeError: not built"}),
    }
    copy, ours = times(9e-5, 18e-5, 27e-5), times(1e-4, 2e-4, 3e-4)
    fast = Result("rms_norm", [8192, 4096], "bfloat16", 134_217_728, 2, copy, ours, peers, errors)
    slower = {"PyTorch": Peer(times(1e-4, 1e-4), "autograd")}
    copy, ours, shape = times(1e-4, 1e-4), times(2e-4, 2e-4), [131072, 8, 128, 32, 16]
    slow = Result("nsa_compress", shape, "float32", 570_000_000, 1, copy, ours, slower, errors, ["Descend"])
    forms = {"aten": times(4e-6, 5e-6), "descend": times(6e-6, 7e-6), "descend.torch": times(8e-6, 10e-6)}
    return Report(device, [fast, slow], [Launch("rms_norm", [8, 64], "float32", "aten", forms)], ["x: no room"])


def test_statistics():
    """Ratios are medians of ratios within a round: what drifts with the clock cancels."""
    fast, slow = report().results
    assert fast.share == pytest.approx(0.9)
    assert fast.speed == pytest.approx(134_217_728 / 2e-4)
    assert fast.ratio("PyTorch") == pytest.approx(3)
    assert fast.ratio("Apex") is None
    assert fast.ratio("JAX") is None
    assert fast.misses == []
    assert slow.misses == ["0.50 of the copy's rate", "slower than PyTorch"]
    launch = report().launches[0]
    assert launch.ratio("descend") == pytest.approx((6 / 4 + 7 / 5) / 2)
    assert report().misses == [
        "nsa_compress 131072 × 8 × 128 × 32 × 16 float32: 0.50 of the copy's rate, slower than PyTorch",
        "rms_norm, descend.torch: 2.00 times the launch of aten",
    ]


def test_figures_are_saved_as_they_come_and_read_back(tmp_path):
    path = tmp_path / "new" / "figures.json"
    measured = report()
    measured.save(path)
    assert Report.load(path) == measured
    document = json.loads(path.read_text())
    assert document["results"][0]["summary"]["share_of_copy"] == 0.9
    assert document["results"][0]["summary"]["peer_over_descend"] == {"PyTorch": 3.0, "Apex": None}
    assert [line for line in path.read_text().splitlines() if line.startswith('{"operator": "rms_norm"')]
    assert list(path.parent.iterdir()) == [path]
    path.write_text('{"format": 0}')
    with pytest.raises(ValueError, match="format"):
        Report.load(path)


def test_the_terminals_tables():
    console = Console(width=170, record=True, file=open(os.devnull, "w"))  # noqa: SIM115
    results.show(report(), console)
    text = console.export_text()
    for words in ("a GPU, 80.0 GiB", "8192 × 4096", "671", "0.90", "3.00", "Left out: x: no room", "2 targets missed"):
        assert words in text


def test_the_documents_tables(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- bench-gpu -->\nnot measured\n<!-- end of bench-gpu -->\nafter\n")
    for _ in range(2):
        results.write_section(report(), page)
    text = page.read_text()
    assert text.startswith("before\n<!-- bench-gpu -->\nMeasured by `./dev bench-gpu` on a GPU, 80.0 GiB")
    assert text.endswith("<!-- end of bench-gpu -->\nafter\n")
    assert "| `rms_norm` | 8192 × 4096 | bfloat16 | 671 | 0.90 | 3.00 | - |" in text
    assert "| `rms_norm` | `aten` | 1.45 | 2.00 |" in text
    assert "not measured" not in text
    page.write_text("no marks")
    with pytest.raises(ValueError, match="no place"):
        results.write_section(report(), page)


@pytest.mark.parametrize("content", [None, "", "[]", "{}"])
def test_figures_that_cannot_be_read_are_a_wrong_call(tmp_path, content):
    if content is not None:
        (tmp_path / "figures.json").write_text(content)
    outcome = CliRunner().invoke(__main__.app, ["--docs-from", str(tmp_path / "figures.json")])
    assert outcome.exit_code == 2
    assert "cannot be read" in outcome.output


def test_the_document_has_a_place_for_the_tables():
    text = (ROOT / "docs" / "design-gpu.md").read_text(encoding="utf-8")
    assert len(results.SECTION.findall(text)) == 1


# --- where there is no GPU --------------------------------------------------------------------------------------------


@WITHOUT_GPU
@pytest.mark.parametrize("module", ["benchmarks.gpu", "benchmarks.gpu.tune", "benchmarks.gpu.device"])
def test_without_a_gpu_it_says_so(module):
    result = forks.run(f"import runpy; runpy.run_module({module!r}, run_name='__main__', alter_sys=True)")
    assert result.returncode == 2
    said = " ".join((result.stdout + result.stderr).split())
    assert "needs an NVIDIA GPU that PyTorch can use, and there is none: PyTorch" in said
    assert said.endswith("torch.cuda.is_available() is False. Nothing was measured.")


# --- the table of tiles -----------------------------------------------------------------------------------------------

tune = pytest.importorskip("benchmarks.gpu.tune")
pytest.importorskip("triton")

from descend.triton import table, tiles  # noqa: E402


def test_the_table_is_the_rule_until_it_has_been_measured():
    if table.MEASURED is None:
        rule = {key: tune.by_rule(*key[:2]) for key in tune.entries()}
        assert rule == table.TILES
        assert tune.render(None, rule) == Path(table.__file__).read_text(encoding="utf-8")
    assert set(table.TILES) == set(tune.entries())


def test_the_table_is_written_as_it_is_read(tmp_path):
    entries = {("rms_norm", 512, 2): (4096, 8), ("rms_norm_grad", 512, 4): (2048, 4, 128)}
    found: dict[str, Any] = {}
    exec(tune.render("a GPU, 2027-01-01", entries), found)
    assert found["TILES"] == entries
    assert found["MEASURED"] == "a GPU, 2027-01-01"
    assert "measured: none" in tune.render(None, entries)


@pytest.mark.parametrize("key", tune.entries())
def test_candidates_are_tiles(key):
    """Powers of two that fit in the registers; the rule's own among them; a problem of 64 MB that has such rows."""
    name, block, size = key
    found = tune.candidates(name, block)
    assert tune.by_rule(name, block) in found
    assert len(set(found)) == len(found)
    for choice in found:
        tile = tiles.Tile.of(choice[0], block, *choice[1:])
        assert all(number & (number - 1) == 0 for number in (*choice, tile.rows))
        assert tile.rows * tile.columns == choice[0] <= 32 * 32 * tile.warps
        assert (len(choice) == 3) == load(name).sums_columns
    assert least_bytes(name, load(name).kind.of_rows(block), "bfloat16") * size / 2 >= 64e6


def test_calls_take_the_tables_tiles():
    """For the operator, the row and the dtype of the entry, and for no other."""
    import triton.language as tl

    def asked(kernel: str, columns: int, dtype: Any, wide: Any = tl.float32) -> Any:
        return tiles.tile(columns, 8192, wide, kernel, torch.empty(1, dtype=dtype))

    usual = asked("rms_norm_grad", 1000, torch.bfloat16)
    with tune.instead(("rms_norm_grad", 1024, 2), (8192, 16, 512)):
        assert asked("rms_norm_grad", 1000, torch.bfloat16) == tiles.Tile(8, 1024, 16, 512)
        assert asked("rms_norm_grad", 1024, torch.float16) == tiles.Tile(8, 1024, 16, 512)
        for other in (("rms_norm", 1000, torch.bfloat16), ("rms_norm_grad", 1000, torch.float32)):
            assert asked(*other).warps == usual.warps
        assert asked("rms_norm_grad", 1000, torch.bfloat16, tl.float64) == tiles.by_rule(1024, 2)
    assert asked("rms_norm_grad", 1000, torch.bfloat16) == usual
    assert tiles.slabs(2**20, 4, 512).count == 4096  # no more than 64 tiles each
    assert tiles.slabs(2**16, 4, 512).count == 512


def test_a_tile_gives_way_to_a_faster_one_alone():
    now, other, third = (2048, 4), (4096, 8), (8192, 16)
    drift = [1.0, 3.0, 2.0]

    def drifting(factor: float) -> Timing:
        return times(*(1e-4 * factor * d for d in drift))

    assert tune.choose(now, {now: drifting(1), other: drifting(0.99), third: drifting(1.1)}) == now
    assert tune.choose(now, {now: drifting(1), other: drifting(0.9), third: drifting(0.8)}) == third


@pytest.mark.usefixtures("small")
def test_an_entry_is_tuned(monkeypatch):
    """On the CPU, where every candidate is the same call: all are checked and take part, the table is left alone."""
    seen: list[Any] = []
    small = replace(kinds.MATRICES, of_rows=lambda row: (8, row))
    monkeypatch.setattr(load("rms_norm_grad"), "kind", small)
    monkeypatch.setattr(tune, "choose", lambda now, timings: seen.append((now, timings)) or now)
    before = dict(table.TILES)
    choice = tune.tune(("rms_norm_grad", 512, 4), "float32", OnCpu(), 3, on_cpu)
    ((now, timings),) = seen
    assert choice == now == tune.by_rule("rms_norm_grad", 512)
    assert set(timings) == set(tune.candidates("rms_norm_grad", 512))
    assert all(len(timing.seconds) == 3 for timing in timings.values())
    assert before == table.TILES
