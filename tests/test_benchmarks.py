"""The benchmark itself: it measures what it claims to, notices wrong results, and keeps its figures."""

from __future__ import annotations

import ctypes
import mmap
import os
import subprocess

import numpy as np
import pytest
from benchmarks import OPERATORS, accuracy, frameworks, harness, limit, machine, onednn, ours, session
from benchmarks.harness import Contender, Effort
from benchmarks.operator import DTYPES, aligned, load, normal, sample
from benchmarks.results import FORMS, ONE_THREAD, Timing

import descend
from benchmark_cases import FORWARDS, HASTE, PYTORCH, THREADS, hurried, made, own_product, timing  # noqa: F401
from cases import in_turn
from descend import reference

# --- one problem --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "dtype"), in_turn(OPERATORS, DTYPES))
def test_measures_a_small_problem(name, dtype):
    operator = load(name)
    result = session.run(operator, operator.quick[1], dtype, 1, HASTE, PYTORCH)
    assert set(result.descend) == set(FORMS)
    assert result.faults is not None
    assert result.core is not None
    assert result.core.rounds == result.descend["out"].rounds
    assert result.handover is None
    assert all(len(t.seconds) >= 2 and t.median > 0 for t in result.descend.values())
    assert result.bytes > 0
    assert result.share > 0
    assert result.peers["PyTorch"].route in operator.torch_eager()
    assert all(isinstance(outcome, float) for outcome in result.peers["PyTorch"].tried.values())
    assert 1 <= len(result.peers["PyTorch"].errors) <= len(result.errors)
    if name not in FORWARDS:
        assert len(result.peers["PyTorch"].errors) == len(result.errors)


@pytest.mark.parametrize("name", OPERATORS)
def test_the_quick_grid_is_part_of_the_full_one(name):
    operator = load(name)
    assert set(operator.quick) <= set(operator.full)
    assert operator.small[1] in operator.dtypes


@pytest.mark.parametrize("fault", ["one element", "nothing written", "infinity"])
@pytest.mark.parametrize("form", ["out", "repeatable"])
def test_a_wrong_result_is_noticed(monkeypatch, fault, form):
    true_calls = ours.calls

    def faulty(operator, problem, forms):
        calls, outputs = true_calls(operator, problem, forms), list(problem.outputs.values())

        def call():
            if fault != "nothing written":
                calls["out"]()
                outputs[-1][3] = np.inf if fault == "infinity" else outputs[-1][3] + 0.5

        return {**calls, form: call}

    monkeypatch.setattr(ours, "calls", faulty)
    with pytest.raises(accuracy.WrongResultError, match="8"):
        session.run(load("rms_norm_grad"), (8, 64), "float32", 1, HASTE, ())


def test_an_optimizer_is_timed_in_place_and_checked(monkeypatch):
    operator, true_calls, timed = load("apply_adam_w_v2"), ours.calls, []

    def calls(operator, problem, forms):
        timed.append(problem)
        found = true_calls(operator, problem, forms)
        if fault and len(timed) == 2:
            found["out"] = lambda: None
        return found

    monkeypatch.setattr(ours, "calls", calls)
    fault = False
    session.run(operator, (8, 64), "float32", 1, HASTE, ())
    apart, in_place = timed
    assert all(in_place.outputs[f"{name}_out"] is in_place.inputs[name] for name in ("var", "m", "v"))
    assert in_place.bytes == apart.bytes == apart.room == 7 * 8 * 64 * 4 + 4
    assert in_place.room == 4 * 8 * 64 * 4 + 4
    fault = True
    timed.clear()
    with pytest.raises(accuracy.WrongResultError, match="as timed"):
        session.run(operator, (8, 64), "float32", 1, HASTE, ())


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    ("name", "shape"),
    [("layer_norm_backward", (37, 1)), ("rms_norm_grad", (37, 1)), ("group_norm_swish_grad", (3, 5, 1, 1))],
)
def test_rows_of_one_element(name, shape, dtype):
    """In such rows the gradient is only rounding error, which is right if it is small compared with the terms."""
    operator = load(name)
    session.run(operator, shape, dtype, 1, HASTE, ())
    problem = operator.make(shape, dtype, np.random.default_rng(3))
    golden = operator.golden(problem, np.random.default_rng(4))
    if name == "rms_norm_grad":
        assert np.median(np.abs(golden[0].values)) < 1e-3  # epsilon leaves something
    else:
        assert not golden[0].values.any()
    assert golden[0].terms > 0.5
    results = [np.zeros(output.shape, output.dtype) for output in problem.outputs.values()]
    for result, part in zip(results, golden, strict=True):
        result[part.index] = part.values
    accuracy.check("nobody", results, golden)
    results[0][0] += 64
    with pytest.raises(accuracy.WrongResultError, match="first at \\(0, 0"):
        accuracy.check("nobody", results, golden)


def test_a_fault_that_comes_while_timing_is_noticed(monkeypatch):
    true_measure = session.measure

    def measure(contenders, *rest):
        true_measure(contenders, *rest)
        next(c for c in contenders if c.name == "repeatable").call()
        problems[0].outputs["dx_out"][0, 0] += 1

    operator, problems = load("rms_norm_grad"), []
    true_make = operator.make
    monkeypatch.setattr(operator, "make", lambda *a: problems.append(true_make(*a)) or problems[-1])
    monkeypatch.setattr(session, "measure", measure)
    with pytest.raises(accuracy.WrongResultError, match="as timed"):
        session.run(operator, (8, 64), "float32", 1, HASTE, ())


def test_a_peer_that_fails_or_is_wrong_is_left_out():
    operator = load("rms_norm_grad")
    problem = operator.make((4, 8), "float32", np.random.default_rng(1))
    golden = operator.golden(problem, np.random.default_rng(1))
    routes = {
        "fails": lambda *tensors: 1 / 0,
        "wrong": lambda dy, x, rstd, gamma: lambda: (dy, gamma),
        **operator.torch_eager(),
    }
    library = frameworks.Library("PyTorch", "torch", lambda _: routes, frameworks.torch_arrays)
    found = session.enter(library, operator, problem, golden, HASTE)
    assert found is not None
    _, peer = found
    assert peer.route in operator.torch_eager()
    assert str(peer.tried["fails"]).startswith("ZeroDivisionError")
    assert str(peer.tried["wrong"]).startswith("WrongResultError")
    nobody = frameworks.Library("PyTorch", "torch", lambda _: {"fails": routes["fails"]}, frameworks.torch_arrays)
    assert session.enter(nobody, operator, problem, golden, HASTE) is None


def test_the_time_to_compile_does_not_count(monkeypatch):
    operator = load("rms_norm_grad")
    problem = operator.make((4, 8), "float32", np.random.default_rng(1))
    golden = operator.golden(problem, np.random.default_rng(1))
    formula = operator.torch_eager()["the formula in eager operations"]

    def route(first: float, later: float):
        def made(*tensors):
            job, waits = formula(*tensors), iter([first])
            return lambda: (harness.time.sleep(next(waits, later)), job())[1]

        return made

    monkeypatch.setattr(session, "VERY_SLOW", 0.01)
    routes = {"slow to compile": route(0.06, 0.0), "slow to run": route(0.02, 0.02)}
    library = frameworks.Library("L", "torch", lambda _: routes, frameworks.torch_arrays, compiles=True)
    found = session.enter(library, operator, problem, golden, HASTE)
    assert found is not None
    assert found[1].route == "slow to compile"
    assert float(found[1].tried["slow to compile"]) < 0.02


@pytest.mark.parametrize("name", OPERATORS)
def test_small_calls(name):
    small = session.small_calls(load(name), HASTE)
    assert small is not None
    assert {f"{form}, {family}" for form in FORMS for family in ("NumPy", "torch")} < set(small.timings)
    assert small.ratio(small.yardstick) == 1


# --- oneDNN -------------------------------------------------------------------------------------------------------

needs_onednn = pytest.mark.skipif(
    onednn.version() is None, reason=f"no oneDNN: {onednn.PACKAGE} is not installed, {onednn.VARIABLE} not set"
)
EPSILON = 1e-5


@pytest.fixture
def _threads():
    """oneDNN's threads follow Descend's, and PyTorch's may be the same ones."""
    torch = pytest.importorskip("torch")
    before, theirs = descend.get_num_threads(), torch.get_num_threads()
    yield
    descend.set_num_threads(before)
    torch.set_num_threads(theirs)


def has(function: str) -> bool:
    return hasattr(ctypes.CDLL(onednn.find()), f"dnnl_{function}_primitive_desc_create")


def skip_where_it_lacks_group_norm(name: str) -> None:
    if "group_norm" in name and not has("group_normalization_backward"):
        with pytest.raises(onednn.OneDnnError, match=r"oneDNN 3\..* has no dnnl_group_normalization"):
            onednn.group_norm_swish(np.ones((1, 32), np.float32), np.ones(32), np.ones(32), 32, EPSILON)()
        pytest.skip(f"oneDNN {onednn.version()} has no group normalization")


def skip_where_it_lacks(dtype):
    """oneDNN has float16 on processors with instructions for it alone."""
    if dtype == "float16":
        x = np.ones((8, 64), np.float16)
        try:
            onednn.layer_norm(x, x[0], x[0], EPSILON)()
        except onednn.OneDnnError as error:
            if "not implemented" not in str(error):
                raise
            pytest.skip(f"oneDNN {onednn.version()} has no float16 on this processor")


@needs_onednn
@pytest.mark.usefixtures("_threads")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", [name for name in OPERATORS if load(name).onednn()])
def test_onednn_computes_the_gradients(name, dtype):
    skip_where_it_lacks_group_norm(name)
    skip_where_it_lacks(dtype)
    operator, rng = load(name), np.random.default_rng(7)
    for shape in operator.quick[1:3]:
        problem = operator.make(shape, dtype, rng)
        found = session.enter(frameworks.LIBRARIES[-1], operator, problem, operator.golden(problem, rng), HASTE)
        assert found is not None
        _, peer = found
        assert len(peer.errors) == len(problem.outputs)
        assert not isinstance(peer.tried.get(list(operator.onednn())[-1]), str)  # the last way works in every release


@needs_onednn
@pytest.mark.usefixtures("_threads")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["layer_norm", "rms_norm", "group_norm_swish", "scaled_masked_softmax"])
def test_onednn_computes_the_forwards(name, dtype):
    skip_where_it_lacks_group_norm(name)
    skip_where_it_lacks(dtype)
    rng = np.random.default_rng(8)
    x, gamma, beta = normal((33, 96), dtype, rng), normal((96,), dtype, rng, 0.1, 1), normal((96,), dtype, rng)
    scores, mask = normal((2, 3, 5, 7), dtype, rng), rng.random((2, 1, 5, 7)) < 0.3
    mask[0, 0, 2] = True  # a row of nothing but hidden scores
    job, expected = {
        "layer_norm": lambda: (onednn.layer_norm(x, gamma, beta, EPSILON), reference.layer_norm(x, 96, gamma, beta)),
        "rms_norm": lambda: (onednn.rms_norm(x, gamma, EPSILON), reference.rms_norm(x, gamma, EPSILON)),
        "group_norm_swish": lambda: (
            onednn.group_norm_swish(x, gamma, beta, 32, EPSILON), reference.group_norm_swish(x, gamma, beta, 32)
        ),
        "scaled_masked_softmax": lambda: (
            onednn.scaled_masked_softmax(scores, mask, 0.125), reference.scaled_masked_softmax(scores, mask, 0.125)
        ),
    }[name]()  # fmt: skip
    golden = [accuracy.Golden(Ellipsis, np.asarray(part)) for part in session.as_tuple(expected)]
    for _ in range(2):
        accuracy.check(name, session.as_tuple(job()), golden, dtype=session._coarsest(dtype))


@needs_onednn
@pytest.mark.usefixtures("_threads")
@pytest.mark.parametrize("count", [1, 2])
def test_onednn_has_as_many_threads_as_descend(count):
    descend.set_num_threads(count)
    x = np.ones((8, 64), np.float32)
    onednn.layer_norm(x, x[0], x[0], EPSILON)()
    library = ctypes.CDLL(onednn.find())
    if not hasattr(library, "omp_get_max_threads"):
        pytest.skip("the threads of this oneDNN are not OpenMP's")
    assert library.omp_get_max_threads() == count


def test_without_onednn_the_others_are_measured(monkeypatch):
    monkeypatch.delenv(onednn.VARIABLE, raising=False)
    monkeypatch.setattr(onednn.metadata, "files", lambda package: nothing(package))

    def nothing(package):
        raise onednn.metadata.PackageNotFoundError(package)

    assert onednn.find() is None
    assert not frameworks.LIBRARIES[-1].installed
    result = session.run(load("rms_norm_grad"), (8, 64), "float32", 1, HASTE, (*PYTORCH, frameworks.LIBRARIES[-1]))
    assert list(result.peers) == ["PyTorch"]


def test_a_library_of_ones_own_comes_first(monkeypatch, tmp_path):
    monkeypatch.setenv(onednn.VARIABLE, str(tmp_path / "libdnnl.so.3"))
    assert onednn.find() == str(tmp_path / "libdnnl.so.3")
    onednn.library.cache_clear()
    try:
        assert onednn.version() is None  # there is nothing to load
    finally:
        onednn.library.cache_clear()


def test_what_we_allocate_costs_no_page_faults_in_a_loop():
    operator = load("rms_norm_grad")
    problem = operator.make((1024, 1024), "float32", np.random.default_rng(0))
    assert session.page_faults(ours.allocating(operator, problem), 1e-3) < 10  # of the 1024 pages of a result

    def anew():
        with mmap.mmap(-1, 1 << 22) as memory:
            memory.madvise(mmap.MADV_NOHUGEPAGE)
            memory[:: mmap.PAGESIZE] = b"x" * (len(memory) // mmap.PAGESIZE)

    assert session.page_faults(anew, 1e-3) >= (1 << 22) // mmap.PAGESIZE


def test_threads_are_held_for_everyone():
    import torch

    for threads in {1, THREADS}:
        result = session.run(load("layer_norm"), (8, 64), "float32", threads, HASTE, ())
        assert result.threads == threads == descend.get_num_threads() == torch.get_num_threads()
        assert len(os.sched_getaffinity(0)) == threads
        assert (ONE_THREAD in result.descend) == (threads > 1)
        assert (result.way is None) == (threads == 1)


def test_a_profile_counts_what_a_call_costs(monkeypatch):
    from benchmarks import profile

    monkeypatch.setattr(profile.shutil, "which", lambda name: None)
    figures = profile.profile(load("layer_norm"), (8, 64), "float32", 1)
    assert figures["elements of the result"] == 512
    assert float(figures["seconds"]) > 0
    assert "valgrind is not installed" in str(figures["instructions"])

    monkeypatch.setattr(profile.shutil, "which", lambda name: f"/usr/bin/{name}")

    def run(command, *, env=None, **options):
        calls = int(command[-1])
        if command[0] == "perf":  # which finds no counters
            return subprocess.CompletedProcess(command, 0)
        assert env["DESCEND_ISA"] == "AVX2"
        return subprocess.CompletedProcess(command, 0, "", f"==1== Collected : {5000 + 512 * 3 * calls}")

    monkeypatch.setattr(profile.subprocess, "run", run)
    assert profile.profile(load("layer_norm"), (8, 64), "float32", 1)["instructions an element"] == 3


# --- the pieces ---------------------------------------------------------------------------------------------------


def test_rounds_take_turns_and_slow_ones_drop_out():
    order: list[str] = []
    quick = Contender("quick", "a", lambda: order.append("quick"))
    slow = Contender("slow", "b", lambda: (order.append("slow"), harness.time.sleep(0.02)))
    harness.measure([quick, slow], Effort(seconds=0.15, fewest=20, most=20))
    assert len(quick.timing.seconds) == 20
    assert 5 <= len(slow.timing.seconds) < 20
    assert quick.calls > 1
    assert slow.calls == 1
    assert slow.timing.median >= 0.02
    assert quick.timing.median < 1e-3


def test_disturbed_rounds_do_not_count(monkeypatch):
    shares = iter([0.5, 0.0, 0.3, 0.0, 0.0, 0.0, 0.0, 0.2])
    monkeypatch.setattr(harness.Neighbours, "share", lambda self: next(shares))
    job = Contender("job", "a", lambda: None)
    assert harness.measure([job], Effort(seconds=1e-9, fewest=5, most=8, patience=1e12)) == 0
    assert job.timing.rounds == [1, 3, 4, 5, 6]

    monkeypatch.setattr(harness.Neighbours, "share", lambda self: 0.5)
    job = Contender("job", "a", lambda: None)
    assert harness.measure([job], Effort(seconds=0, fewest=5, most=8)) == 0.5
    assert job.timing.rounds == [0, 1, 2, 3, 4]


def test_rounds_on_one_core_do_not_count(monkeypatch):
    crowded = iter([True, False, False, True, False, False, False])
    job = Contender("job", "a", lambda: None)
    effort = Effort(seconds=1e-9, fewest=5, most=8, patience=1e12)
    assert harness.measure([job], effort, lambda: next(crowded)) == 0
    assert job.timing.rounds == [1, 2, 4, 5, 6]
    job = Contender("job", "a", lambda: None)
    assert harness.measure([job], Effort(seconds=0, fewest=3, most=3), lambda: True) == 1
    assert job.timing.rounds == [0, 1, 2]

    monkeypatch.undo()
    monkeypatch.setattr(machine, "has_a_core_each", lambda: True)
    seconds = {1: 1e-3, 2: 0.88e-3, 4: 0.26e-3}
    arithmetic = "group_norm_swish_grad_arithmetic"
    monkeypatch.setattr(descend._native, arithmetic, lambda brain, elements, threads, time: seconds[threads])
    assert [limit.share_a_core(threads) for threads in (1, 2, 4)] == [False, True, False]
    monkeypatch.setattr(machine, "has_a_core_each", lambda: False)  # where threads may well share one
    assert not limit.share_a_core(2)


def test_processors_that_have_a_core_each(monkeypatch, tmp_path):
    monkeypatch.setattr(machine, "CPUS", tmp_path)
    monkeypatch.setattr(machine, "processors", lambda: [0, 1, 3])
    assert not machine.has_a_core_each()
    for processor, siblings in enumerate(("0\n", "1-2\n", "1-2\n", "3\n")):
        topology = tmp_path / f"cpu{processor}" / "topology"
        topology.mkdir(parents=True)
        (topology / "thread_siblings_list").write_text(siblings)
    assert machine.has_a_core_each()
    monkeypatch.setattr(machine, "processors", lambda: [0, 1, 2, 3])
    assert not machine.has_a_core_each()


def test_ratios_pair_rounds():
    ours, theirs = timing(1, 2, 4), Timing([4, 8], [1, 2])
    assert theirs.over(ours) == 2
    assert Timing([6.0], [9]).over(ours) == 3
    assert timing(1, 1, 1, 1).spread == 0


def test_share_counts_the_empty_call():
    result = made(2e-3)
    assert result.share == pytest.approx(0.5)
    result.empty = timing(1e-3, 1e-3)
    assert result.share == pytest.approx(1.0)
    assert result.ratio("PyTorch") == pytest.approx(1.5)


def test_misses():
    assert made(1.9e-3).misses(64) == []
    assert made(2.5e-3).misses(64) == ["0.40 of the limit"]
    assert made(2.5e-3).misses(15) == []
    assert made(2.5e-3, size=255 << 10).misses(64) == []
    assert made(4e-3).misses(64) == ["0.25 of the limit", "slower than PyTorch: 0.75"]
    assert made(3.05e-3, triad=3e-3).misses(64) == []  # within the noise
    result = made(1e-3, threads=2)
    result.descend[ONE_THREAD] = timing(0.9e-3, 0.9e-3)
    assert result.misses(64) == ["0.90 times as fast as one thread"]
    result.descend[ONE_THREAD] = timing(0.7e-3, 1.1e-3)
    assert result.misses(64) == []
    result.arithmetic = timing(0.8e-3, 0.8e-3)
    assert result.reached == pytest.approx(1.0)  # of memory's limit; 0.8 of the arithmetic's


def test_samples_and_arrays():
    rng = np.random.default_rng(0)
    chosen = sample(10000, 1 << 20, rng)
    assert chosen.tolist() == [0, 9999]
    assert len(sample(10000, 1 << 15, rng)) >= 8
    assert len(sample(5, 7, rng)) == 5
    assert len(sample(0, 7, rng)) == 0
    for dtype in DTYPES:
        array = normal((3, 5), dtype, rng)
        assert array.ctypes.data % 64 == 0
        assert array.dtype == DTYPES[dtype]
        assert aligned((0, 3), dtype).size == 0


def test_errors_are_the_standards():
    golden = accuracy.Golden(slice(None), np.array([1.0, 2.0]))
    assert accuracy.errors(np.array([1.5, 2.0]), golden) == pytest.approx(
        {"mere": 0.25, "mare": 0.5, "rmse": 0.125**0.5}, rel=1e-3
    )
