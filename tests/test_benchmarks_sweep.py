"""The benchmark's sweep over the range, and its problems on data at hand."""

from __future__ import annotations

import math
from collections import Counter
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from benchmarks import OPERATORS, __main__, accuracy, machine, near_time, ours, session, sweep
from benchmarks.operator import DTYPES, load
from benchmarks.results import HINDRANCES, ONE_THREAD, Report
from typer.testing import CliRunner

import descend
from benchmark_cases import CACHE, HASTE, THREADS, hurried, made, own_product, timing  # noqa: F401
from cases import in_turn


@pytest.mark.parametrize("name", OPERATORS)
def test_the_sweep_has_the_sizes_that_it_says(name):
    operator, rng = load(name), np.random.default_rng(0)
    for size in sweep.sizes(CACHE)[:5]:
        for dtype in operator.dtypes:
            shapes = list(operator.sweep(size, DTYPES[dtype].itemsize))
            for shape in shapes[:: max(1, len(shapes) // 7)]:
                made = operator.make(shape, dtype, rng).bytes
                assert size / 2 <= made <= 4 * size + 4096
                assert operator.bytes(shape, DTYPES[dtype].itemsize) == made


def test_the_sweep_covers_the_range():
    def shapes(name: str) -> set[tuple[int, ...]]:
        return {shape for _, shape, _ in sweep.plan([load(name)], list(DTYPES), CACHE)}

    rows = shapes("rms_norm_grad")
    powers = [1 << power for power in range(18)]
    wanted = {length for power in powers for length in (power - 1, power, power + 1) if 1 <= length <= 131072}
    assert wanted <= {columns for _, columns in rows}
    assert {columns for count, columns in rows if count == 1_000_000}
    assert {columns for count, columns in rows if count <= 8 and columns >= 1 << 18}
    assert {1, 3, 13, 53, 98317} <= {columns for _, columns in rows}  # primes
    images = shapes("group_norm_swish")
    assert {1, 2, 3, 31, 1024, 4000} <= {width for _, _, width, _ in images}
    assert {1, 49, 256, 65536} <= {pixels for *_, pixels in images}
    assert {1, 2, 3, 1023, 4097, 8192} <= {keys for *_, keys in shapes("scaled_masked_softmax_backward")}
    legal = {(width, stride) for width in range(16, 129, 16) for stride in range(16, width + 1, 16)}
    assert {shape[3:] for shape in shapes("nsa_compress")} == legal
    assert {shape[3:] for shape in shapes("nsa_compress_grad")} == {pair for pair in legal if pair[0] > pair[1]}


def test_the_sweep_is_always_the_same_and_begins_evenly():
    operators = [load(name) for name in OPERATORS]
    plan = sweep.plan(operators, list(DTYPES), CACHE)
    assert plan == sweep.plan(operators, list(DTYPES), CACHE)
    assert len({(operator.name, shape, dtype) for operator, shape, dtype in plan}) == len(plan)
    first = plan[: len(operators) * len(DTYPES) * len(sweep.sizes(CACHE))]
    counts = Counter((operator.name, dtype) for operator, _, dtype in first)
    assert len(counts) == len(operators) * len(DTYPES)
    assert max(counts.values()) <= len(sweep.sizes(CACHE)) + 3
    assert min(counts.values()) >= len(sweep.sizes(CACHE)) - 3
    lengths = sorted(shape[1] for operator, shape, dtype in plan[: len(plan) // 20] if operator.name == "rms_norm")
    assert lengths[len(lengths) // 4] < 128 < 1024 < lengths[-len(lengths) // 4]


def test_a_sweep_stops_in_time_and_is_resumed(monkeypatch, tmp_path):
    monkeypatch.setattr(machine, "last_cache", lambda: 1 << 12)
    path, docs = tmp_path / "figures.json", tmp_path / "docs"
    arguments = ["--grid", "sweep", "--op", "rms_norm", "--op", "nsa_compress", "--seconds", "0.001", "--peers", "none"]
    for command in (["--json", str(path), "--minutes", "0.003"], ["--resume", str(path), "--minutes", "0.003"]):
        before = Report.load(path).results if path.exists() else []
        outcome = CliRunner().invoke(__main__.app, [*arguments, *command])
        assert outcome.exit_code == 0, outcome.output
        after = Report.load(path).results
        assert len(before) < len(after) < Report.load(path).planned
        assert after[: len(before)] == before
    report = Report.load(path)
    assert len({result.key for result in report.results}) == len(report.results)
    assert {result.threads for result in report.results} == {1, THREADS}
    assert len(report.commands) == 2
    pytest.importorskip("matplotlib")
    outcome = CliRunner().invoke(__main__.app, ["--report-from", str(path), "--report", str(docs)])
    assert outcome.exit_code == 0, outcome.output
    page = (docs / "benchmarks.md").read_text()
    assert f"{len(report.results)} of the {report.planned} problems" in page

    report.machine["cpu"] = "another"
    report.save(path)
    outcome = CliRunner().invoke(__main__.app, [*arguments, "--resume", str(path)])
    assert outcome.exit_code == 2
    assert "another cpu" in outcome.output


# --- data at hand -------------------------------------------------------------------------------------------------


ROOM = 16 << 10


WIDER = {
    "rms_norm_grad": 24,
    "layer_norm_backward": 24,
    "deep_norm_grad": 40,
    "add_layer_norm_grad": 40,
    "add_layer_norm": 1.5,
    "add_rms_norm": 1.5,
    "rotary_position_embedding_grad": 2.5,
    "swi_glu_grad": 2,
    "nsa_compress": 24,
    "nsa_compress_grad": 48,
}


"""How many times ROOM the larger problem may take, if an operator computes many rows at a time; others 1.25."""


def near_problems(name, dtype):
    """Shapes from the smallest to the largest, each with the core's two problems."""
    operator, itemsize = load(name), DTYPES[dtype].itemsize
    shapes = set(operator.quick) | set(operator.full)
    for size in sweep.sizes(CACHE):
        found = list(operator.sweep(size, itemsize))
        shapes |= set(found[:: max(1, len(found) // 12)]) | set(found[-1:])
    for shape in sorted(shapes):
        yield shape, near_time.problems(operator, shape, itemsize, ROOM)


@pytest.mark.parametrize(("name", "dtype"), in_turn(OPERATORS, DTYPES))
def test_problems_near_others_are_legal(name, dtype):
    operator, rng = load(name), np.random.default_rng(1)
    for shape in {one for _, pair in near_problems(name, dtype) for one in pair}:
        problem = operator.make(shape, dtype, rng)
        assert problem.bytes == operator.bytes(shape, DTYPES[dtype].itemsize)
        golden = operator.golden(problem, rng)
        accuracy.poison(list(problem.outputs.values()))
        ours.functional(operator, problem)()
        accuracy.check(f"{name} {shape}", list(problem.outputs.values()), golden)


@pytest.mark.parametrize(("name", "dtype"), in_turn(OPERATORS, DTYPES))
def test_problems_near_others_are_like_them(name, dtype):
    operator, itemsize, whole = load(name), DTYPES[dtype].itemsize, 0
    for shape, (more, less) in near_problems(name, dtype):
        if operator.bytes(shape, itemsize) <= ROOM:
            assert (more, less) == (shape, operator.nothing)
            whole += 1
            continue
        assert operator.bytes(more, itemsize) <= WIDER.get(name, 1.25) * ROOM
        assert operator.bytes(less, itemsize) < operator.bytes(more, itemsize)
        if "nsa" in name:
            assert more[2:] == less[2:] == shape[2:]
            assert more[0] <= shape[0]
            if more[0] > less[0] > 0:  # each inner token has as many windows as in the problem
                assert less[0] - shape[3] >= (-(-shape[3] // shape[4]) - 1) * shape[4]
        else:
            assert math.prod(more) == 2 * math.prod(less)
            length, near_length = shape[-1], more[-1]
            assert near_length == length or (256 < near_length < length and (length - near_length) % 64 == 0)
            if near_length < length:  # and the next longer one would not have fit
                assert operator.bytes((*more[:-1], near_length + 64), itemsize) > ROOM / 2
        if name in ("rms_norm_grad", "layer_norm_backward", "deep_norm_grad", "add_layer_norm_grad"):
            assert (shape[0] > 32) == (less[0] > 32)
    assert whole


def test_rows_keep_their_length_where_some_fit():
    pairs = {
        ("rms_norm", (4096, 64), 4): ((28, 64), (14, 64)),
        ("rms_norm", (16384, 1024), 4): ((4, 448), (2, 448)),
        ("rms_norm", (4096, 3), 2): ((1020, 3), (510, 3)),
        ("layer_norm_backward", (28, 6151), 2): ((8, 263), (4, 263)),
        ("layer_norm_backward", (4096, 1024), 2): ((80, 320), (40, 320)),
        ("scaled_masked_softmax", (4, 8, 128, 63), 2): ((1, 1, 52, 63), (1, 1, 26, 63)),
        ("group_norm_swish", (16, 32, 32, 2), 4): ((4, 6, 32, 2), (4, 3, 32, 2)),
        ("group_norm_swish_grad", (2, 2, 2049, 49), 4): ((1, 1, 24, 49), (1, 1, 12, 49)),
        ("nsa_compress_grad", (4096, 1, 16, 80, 32), 2): ((240, 1, 16, 80, 32), (144, 1, 16, 80, 32)),
        ("nsa_compress", (32, 64, 128, 32, 16), 4): ((32, 2, 128, 32, 16), (32, 1, 128, 32, 16)),
        ("nsa_compress_grad", (128, 64, 128, 128, 112), 4): ((128, 1, 128, 128, 112), (0, 1, 128, 128, 112)),
    }
    for (name, shape, itemsize), pair in pairs.items():
        assert near_time.problems(load(name), shape, itemsize, ROOM) == pair


def test_the_core_is_what_one_thread_takes_for_all_rows(monkeypatch):
    asked = []

    def stopwatch(operator, shapes, dtype):
        asked.append((shapes, dtype))
        return lambda: 1e-6 * descend.get_num_threads()

    monkeypatch.setattr(near_time, "stopwatch", stopwatch)
    monkeypatch.setattr(machine, "first_cache", lambda: 2 * ROOM)
    result = session.run(load("rms_norm"), (4096, 64), "float32", THREADS, HASTE, ())
    assert asked == [(((28, 64), (14, 64)), "float32")]
    assert result.core is not None
    assert result.core.median == pytest.approx(1e-6 * 4096 / 14, rel=1e-3)


def test_the_stopwatch_tells_a_difference(monkeypatch):
    now = [0.0]  # seconds, which jobs alone take

    def job(seconds: float) -> Any:
        return lambda: now.append(now.pop() + seconds)

    monkeypatch.setattr(near_time, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    assert near_time.longer(job(3e-3), job(1e-3)) == pytest.approx(2e-3)
    jobs = {8: job(3e-3), 4: job(1e-3), 0: job(5e-3)}
    monkeypatch.setattr(ours, "functional", lambda operator, problem: jobs[problem.shape[0]])
    assert near_time.stopwatch(load("rms_norm"), ((8, 64), (4, 64)), "float32")() == pytest.approx(2e-3)
    assert near_time.stopwatch(load("rms_norm"), ((8, 64), (0, 64)), "float32")() == 0  # no time is less than none


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_the_forwards_arithmetic_is_measured_so_too(monkeypatch, dtype):
    from benchmarks.group_norm_swish import CACHED

    operator = load("group_norm_swish")
    monkeypatch.setattr(near_time, "stopwatch", lambda one, shapes, kind: lambda: 1e-6 if shapes[0] == CACHED else 0.0)
    problem = operator.make((2, 32, 4, 64), dtype, np.random.default_rng(0))
    assert operator.arithmetic(problem, 2)() == pytest.approx(1e-6 * 4 / 2)


@pytest.mark.parametrize("name", ["group_norm_swish", "group_norm_swish_grad"])
def test_rounds_make_no_arrays(monkeypatch, name):
    operator, made = load(name), []
    make = type(operator).make
    monkeypatch.setattr(type(operator), "make", lambda *given: made.append(given[1]) or make(*given))
    seconds = operator.arithmetic(operator.make((2, 32, 4, 64), "float16", np.random.default_rng(0)), 1)
    before = len(made)
    assert [seconds() >= 0 for _ in range(2)] == [True, True]
    assert len(made) == before


@pytest.mark.parametrize(
    ("core", "memory", "empty", "word"),
    [
        (0.76, 0.2, 0.0, "arithmetic"),
        (1.2, 0.8, 0.0, "arithmetic"),
        (0.76, 0.77, 0.0, "memory"),
        (0.3, 0.76, 0.0, "memory"),
        (0.74, 0.17, 0.0, "both"),
        (0.3, 0.61, 0.0, "both"),
        (0.74, 0.15, 0.0, "neither"),
        (0.1, 0.1, 0.49, "neither"),
        (0.1, 0.1, 0.51, "the call"),
        (0.8, 0.1, 0.51, "the call"),
    ],
)
def test_what_holds_a_point_back(core, memory, empty, word):
    result = made(1e-3, triad=memory * 1e-3)
    assert result.core_share is None
    assert result.held_back_by is None
    assert result.overlapped is None
    before = result.share_of(result.descend["out"]), result.reached, result.target, result.misses(64)
    result.core = timing(core * 1e-3, core * 1e-3)
    assert (result.share, result.reached, result.target, result.misses(64)) == before  # a part of our time, no limit
    result.empty = timing(empty * 1e-3, empty * 1e-3)
    assert result.core_share == pytest.approx(core)
    assert result.memory_share == pytest.approx(memory)
    assert result.call_share == pytest.approx(empty)
    assert result.share == pytest.approx(memory + empty)
    assert result.held_back_by == word
    assert result.overlapped == pytest.approx((memory + empty) / min(1.0, max(core, memory) + empty))
    assert word in HINDRANCES


def test_the_core_is_shared_by_threads_that_work():
    result = made(1e-3, threads=2)
    result.core = timing(0.8e-3, 1.0e-3)
    result.descend[ONE_THREAD] = timing(1.9e-3, 1.9e-3)
    assert result.core_share == pytest.approx(0.45)
    result.descend[ONE_THREAD] = timing(1.05e-3, 1.05e-3)  # what is small stays with the caller's thread
    assert result.core_share == pytest.approx(0.9)
    result.descend[ONE_THREAD] = timing(0.8e-3, 0.8e-3)  # both threads worked, and slowed each other down
    assert result.core_share == pytest.approx(0.45)
