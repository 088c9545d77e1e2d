"""One input, one answer: bitwise the same for any threads, instruction set, run, batch, caller and place in memory.

Each problem below is one call of an operator, with numbers in all ranges that the kernels treat apart; together the
problems take every path of the kernels. Of every problem the same questions are asked: whether the bits under other
circumstances are those of a plain call on one thread.
"""

from __future__ import annotations

import ctypes
import itertools
import mmap
import os
import platform
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from subprocess import Popen
from typing import Any

import numpy as np
import pytest

import descend
from cases import FLOATS, Array, Layout, assert_same_bits, digest, dtype_name, in_threads, placed
from descend import acl, aclnn
from descend.contract import OPERATORS
from same_bits_problems import BIG, PROBLEMS, Call, smallest_normal

THREADS = (2, 3, 7, 64)  # in addition to the one of the reference


@dataclass
class Problem:
    """A call, and its results on one thread."""

    name: str
    call: Call
    expected: list[Array]

    @staticmethod
    def of(name: str) -> Problem:
        call = PROBLEMS[name]()
        with threads(1):
            return Problem(name, call, call.run())

    @property
    def wanted(self) -> list[bool]:
        """Which results are computed: the others keep what they held."""
        return list(self.call.inputs.get("output_mask", [True] * len(self.expected)))

    def check(self, results: Sequence[Array]) -> None:
        """The same bits; where the call leaves an output alone, whatever they are."""
        pairs = [(r, e) for r, e, w in zip(results, self.expected, self.wanted, strict=True) if w]
        assert_same_bits([r for r, _ in pairs], [e for _, e in pairs])

    def check_launches(self, count: int, fill: int = 0xFF) -> None:
        """The same bits from both phases on a stream, `count` times; workspace and outputs are filled before."""
        call, stream = self.call, acl.Stream()
        runs = [call.new_outputs(fill) for _ in range(count)]
        size, executor = call.phase1(runs[0])
        executor.set_repeatable()
        workspace = acl.malloc(size)
        if size:
            np.frombuffer(workspace, np.uint8)[:] = fill
        for outputs in runs:  # each queued behind the one before, in the workspace as that one leaves it
            for name, array in outputs.items():
                executor.set_tensor(name, array)
            getattr(aclnn, call.operator)(workspace, size, executor, stream)
        stream.synchronize()
        for outputs in runs:
            self.check(list(outputs.values()))


@contextmanager
def threads(count: int) -> Iterator[None]:
    descend.set_num_threads(count)
    try:
        yield
    finally:
        descend.set_num_threads(0)


def answer_with_digests() -> None:
    """For other interpreters: a digest of this one's results for each name of a problem that comes in.

    The smaller problems are at the end of memory.
    """
    descend.set_num_threads(1)
    for line in sys.stdin:
        call = PROBLEMS[line.rstrip("\n")]()
        results = run_elsewhere(call, before_a_fence) if is_small(call) else call.run()
        print(digest(*results), flush=True)


@pytest.fixture(scope="module")
def targets() -> Iterator[dict[str, Popen[str]]]:
    """For every other instruction set with fused multiply-add that this machine has a process that uses it."""
    info = descend._native.info()
    others = [isa for isa in info["isas"].split(", ") if isa not in ("BASELINE", info["isa"])]
    assert others or "AVX3" not in info["isas"]
    command = [sys.executable, "-c", "import test_same_bits as t; t.answer_with_digests()"]
    path = {"PYTHONPATH": os.pathsep.join(sys.path)}
    started = {
        isa: Popen(command, env={**os.environ, **path, "DESCEND_ISA": isa}, stdin=-1, stdout=-1, text=True)
        for isa in others
    }
    yield started
    for process in started.values():
        process.communicate()


@pytest.fixture(scope="module", params=PROBLEMS)
def problem(request: pytest.FixtureRequest) -> Problem:
    """One problem for all tests, then the next: only one is in memory."""
    return Problem.of(request.param)


# --- circumstances -------------------------------------------------------------------------------------------------


def is_small(call: Call) -> bool:
    return max(array.size for array in call.outputs.values()) <= BIG


def run_elsewhere(call: Call, move: Callable[[Array], Array]) -> list[Array]:
    """The call's results from inputs and outputs that were moved."""
    inputs = {name: move(a) if isinstance(a, np.ndarray) else a for name, a in call.inputs.items()}
    outputs = {name: move(a) for name, a in call.new_outputs().items()}
    return Call(call.operator, inputs, outputs).run(outputs)


def fenced(array: Array, before: bool) -> Array:
    """A copy that ends before a page that nobody may touch, or begins behind one."""
    if not array.flags.c_contiguous:
        return array
    page, none = mmap.PAGESIZE, 0
    pages = -(-array.nbytes // page) * page
    memory = mmap.mmap(-1, pages + page)
    copy = np.ndarray(array.shape, array.dtype, memory, pages - array.nbytes if before else page)
    first = np.frombuffer(memory, np.uint8).ctypes.data
    fence = ctypes.c_void_p(first + pages if before else first)
    copy[...] = array
    assert ctypes.CDLL(None).mprotect(fence, ctypes.c_size_t(page), none) == 0
    return copy


def before_a_fence(array: Array) -> Array:
    return fenced(array, before=True)


def behind_a_fence(array: Array) -> Array:
    return fenced(array, before=False)


def beside(array: Array) -> Array:
    """A copy that begins one element after where a vector would."""
    memory = np.empty(array.size + 64, array.dtype)
    start = -memory.ctypes.data % 64 // array.itemsize + 1
    memory[start : start + array.size] = array.reshape(-1)
    return memory[start : start + array.size].reshape(array.shape)


def turned(array: Array) -> Array:
    """A copy with its first axis fastest, and a gap after every element."""
    return placed(array, Layout(tuple(reversed(range(array.ndim))), (2,) * array.ndim))


def apart(array: Array) -> Array:
    """A copy with a gap behind every row, or what else its first axis counts."""
    return placed(array, Layout(tuple(range(array.ndim)), (2,) + (1,) * (array.ndim - 1)))


@contextmanager
def flushing() -> Iterator[None]:
    """This thread flushes subnormal inputs and results to 0."""
    torch = pytest.importorskip("torch")
    assert torch.set_flush_denormal(True), "this machine cannot flush subnormals"
    try:
        yield
        assert float((torch.full((4,), 1e-40) * 1).max()) == 0.0, "the caller's mode has changed"
    finally:
        torch.set_flush_denormal(False)


# FE_DOWNWARD and FE_UPWARD of <fenv.h>.
ROUNDING = {"x86_64": (0x400, 0x800), "aarch64": (0x800000, 0x400000)}


@contextmanager
def rounding(mode: int) -> Iterator[None]:
    """This thread's arithmetic rounds in another direction."""
    libm = ctypes.CDLL(None)
    before = libm.fegetround()
    assert libm.fesetround(mode) == 0
    try:
        yield
        assert libm.fegetround() == mode, "the caller's mode has changed"
    finally:
        libm.fesetround(before)


# --- the questions -------------------------------------------------------------------------------------------------


def results_are_numbers(problem):
    """NaN has many bits, and which of them come out is no promise."""
    for result, wanted in zip(problem.expected, problem.wanted, strict=True):
        assert not wanted or not np.isnan(result.astype(np.float64)).any()


def any_number_of_threads(problem):
    for count in THREADS:
        with threads(count):
            assert descend.get_num_threads() == count
            problem.check(problem.call.run())


def any_batch(problem):
    for piece in problem.call.pieces:
        call = problem.call.of(piece)
        results = dict(zip(call.outputs, call.run(), strict=True))
        for name, whole, wanted in zip(call.outputs, problem.expected, problem.wanted, strict=True):
            if wanted and name in piece.results:
                assert_same_bits([results[name]], [whole[piece.results[name]]])


def any_run(problem):
    """The earlier contents of workspace and outputs do not matter: NaN, or plausible numbers."""
    problem.check_launches(2)
    problem.check_launches(1, 0x3C)


def callers_at_once(problem):
    with threads(3):
        for results in in_threads(2, lambda _: problem.call.run()):
            problem.check(results)


def any_place_in_memory(problem):
    """Of large problems beside: the smaller ones take the same ways."""
    others = (turned, apart, before_a_fence, behind_a_fence) if is_small(problem.call) else ()
    for move in (beside, *others):
        problem.check(run_elsewhere(problem.call, move))


def a_caller_with_a_small_stack(problem):
    """Some systems give a thread no more than 512 KiB, of which the interpreter has its part."""
    found: list[Array] = []
    before = threading.stack_size(384 << 10)
    try:
        caller = threading.Thread(target=lambda: found.extend(problem.call.run()))
        with threads(1):
            caller.start()
            caller.join()
    finally:
        threading.stack_size(before)
    problem.check(found)


def a_caller_that_flushes_subnormals(problem):
    outputs = problem.call.new_outputs()
    with flushing():
        problem.call.run(outputs)
        problem.check_launches(1)
    problem.check(list(outputs.values()))


def a_caller_that_rounds_otherwise(problem):
    for mode in ROUNDING[platform.machine()]:
        outputs = problem.call.new_outputs()
        with rounding(mode):
            problem.call.run(outputs)
        problem.check(list(outputs.values()))


QUESTIONS = (
    results_are_numbers,
    any_number_of_threads,
    any_batch,
    any_run,
    callers_at_once,
    any_place_in_memory,
    a_caller_with_a_small_stack,
    a_caller_that_flushes_subnormals,
    a_caller_that_rounds_otherwise,
)


def test_every_question(problem, targets):
    """One test for all of them, which takes milliseconds."""
    for process in targets.values():
        print(problem.name, file=process.stdin, flush=True)
    digests = {isa: process.stdout.readline().rstrip() for isa, process in targets.items()}
    assert digests == dict.fromkeys(targets, digest(*problem.expected))
    failed = {}
    for question in QUESTIONS:
        try:
            question(problem)
        except AssertionError as error:
            failed[question.__name__] = str(error)
    assert not failed


# --- that the questions are real ones ------------------------------------------------------------------------------


def test_the_problems_have_every_operator_in_every_dtype():
    assert {tuple(name.split()[::2])[:2] for name in PROBLEMS} >= set(itertools.product(OPERATORS, FLOATS))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("operator", sorted(OPERATORS.keys() - {"log_softmax"}))  # 0, or far from it
def test_subnormals_come_in_and_go_out(operator, dtype):
    """So that a thread that flushes subnormals or rounds in another direction would give other results."""

    def subnormal(array: Any) -> bool:
        if not isinstance(array, np.ndarray) or array.dtype.kind in "biu":
            return False
        size = np.abs(array.astype(np.float64))
        return bool(((size > 0) & (size < smallest_normal(dtype_name(array)))).any())

    for name in PROBLEMS:
        if name.split()[::2] == [operator, dtype]:
            problem = Problem.of(name)
            if any(map(subnormal, problem.call.inputs.values())) and any(map(subnormal, problem.expected)):
                return
    pytest.fail("no problem has subnormal inputs and results")


@pytest.mark.skipif(sys.platform != "linux", reason="the threads of a process are listed in /proc")
def test_the_pool_has_the_threads_and_they_work():
    def nanoseconds() -> dict[str, int]:
        """How long each thread of the pool has run."""
        found = {}
        for task in Path("/proc/self/task").iterdir():
            if (task / "comm").read_text() == "descend-pool\n":
                found[task.name] = int((task / "schedstat").read_text().split()[0])
        return found

    x, gamma = np.ones((4096, 1024), np.float32), np.ones(1024, np.float32)
    deadline = time.monotonic() + 60
    for count in THREADS:
        with threads(count):
            descend.rms_norm(x, gamma)
            while len(before := nanoseconds()) < count - 1:  # each takes its name when it first runs
                assert time.monotonic() < deadline, "threads are missing"
                time.sleep(0.001)
            while count > 1:
                descend.rms_norm(x, gamma)
                if any(after - before[task] > 1_000_000 for task, after in nanoseconds().items()):
                    break
                assert time.monotonic() < deadline, "nobody helps"
