"""One problem from fresh data to a checked result."""

from __future__ import annotations

import math
import resource
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from benchmarks import accuracy, frameworks, machine, near_time, ours
from benchmarks.frameworks import Library
from benchmarks.harness import Contender, Effort, Limit, fastest, measure
from benchmarks.limit import handover, limit, share_a_core
from benchmarks.operator import DTYPES, Call, Golden, Operator, Problem, Shape
from benchmarks.results import FORMS, ONE_THREAD, Peer, Result, SmallCall

Say = Callable[[str], None]
SLOW, VERY_SLOW = 0.05, 0.5
"""Seconds of a call."""
TRIAL = 0.1
"""Seconds: with less, there is no time to compile several ways for a trial."""


@dataclass(frozen=True)
class Data:
    """A problem and its expected results."""

    problem: Problem
    golden: tuple[Golden, ...]


def prepare(operator: Operator, shape: Shape, dtype: str) -> Data:
    """Fresh data."""
    rng = np.random.default_rng()
    problem = operator.make(shape, dtype, rng)
    return Data(problem, operator.golden(problem, rng))


def run(
    operator: Operator,
    shape: Shape,
    dtype: str,
    threads: int,
    effort: Effort,
    libraries: Sequence[Library] = frameworks.LIBRARIES,
    say: Say = lambda text: None,
    data: Data | None = None,
) -> Result:
    """Measures one shape and dtype; raises WrongResultError where Descend's result is wrong."""
    if data is None:
        say("data")
        data = prepare(operator, shape, dtype)
    problem, golden = data.problem, data.golden
    frameworks.hold(threads)

    forms = ours.calls(operator, problem, effort.forms)
    verify(forms, problem, golden)
    timed, errors = operator.timed(problem), list[dict[str, float]]()
    if timed is not problem:  # in place: only the first call's results are known
        forms = ours.calls(operator, timed, effort.forms)
        forms["out"]()
        errors = checked(timed, golden)

    frameworks.forget()
    peers: dict[str, tuple[Contender, Peer]] = {}
    for library in libraries:
        if library.installed and library.routes(operator):
            say(library.name)
            found = enter(library, operator, problem, golden, effort)
            if found is not None:
                peers[library.name] = found

    say("rounds")
    nothing = operator.make(operator.nothing, "float32", np.random.default_rng())
    triad = limit(problem.bytes, timed.room, threads)
    empty = Contender("empty", "descend", ours.functional(operator, nothing))
    contenders = {form: Contender(form, "descend", call, prepare=_team(threads)) for form, call in forms.items()}
    if threads > 1:
        contenders[ONE_THREAD] = Contender(ONE_THREAD, "descend", forms["out"], prepare=_team(1))
    if timed is problem:
        accuracy.poison(list(problem.outputs.values()))
    core = at_hand(operator, problem)
    jobs = [triad, empty, core, *contenders.values(), *(contender for contender, _ in peers.values())]
    arithmetic, seconds = None, operator.arithmetic(problem, threads)
    if seconds is not None:
        arithmetic = Limit("arithmetic", "descend", lambda: None, seconds=seconds)
        jobs.insert(1, arithmetic)
    apart = handover() if threads > 1 else None
    if apart is not None:
        jobs.insert(1, apart)
    others = measure(jobs, effort, lambda: share_a_core(threads))
    _team(threads)()
    errors = errors or checked(problem, golden)

    for contender, peer in peers.values():
        peer.timing = contender.timing
    return Result(
        operator.name,
        list(shape),
        dtype,
        threads,
        problem.bytes,
        machine.lives_in(timed.room, threads),
        triad.timing,
        empty.timing,
        {form: contender.timing for form, contender in contenders.items()},
        {name: peer for name, (_, peer) in peers.items()},
        errors,
        round(others, 3),
        arithmetic.timing if arithmetic else None,
        page_faults(forms["allocating"], contenders["allocating"].usual) if "allocating" in forms else None,
        core.timing,
        apart.timing if apart else None,
    )


def checked(timed: Problem, golden: Sequence[Golden]) -> list[dict[str, float]]:
    """Each output's errors, of what was timed; raises WrongResultError where a result is wrong."""
    outputs = list(timed.outputs.values())
    accuracy.check(f"Descend on {timed.shape} {timed.dtype}, as timed", outputs, golden)
    return [accuracy.errors(output, part) for output, part in zip(outputs, golden, strict=True)]


def at_hand(operator: Operator, problem: Problem) -> Limit:
    """The core, as a contender in the rounds: a problem's rows with data in the first-level cache, one thread."""
    shapes = near_time.problems(operator, problem.shape, DTYPES[problem.dtype].itemsize, machine.first_cache() // 2)
    whole, more, less = map(math.prod, (problem.shape, *shapes))  # elements; NSA's blocks are in all three
    seconds, times = near_time.stopwatch(operator, shapes, problem.dtype), whole / (more - less)
    return Limit("core", "descend", lambda: None, prepare=_team(1), seconds=lambda: seconds() * times)


def _team(threads: int) -> Callable[[], None]:
    """A function that gives Descend so many threads."""
    import descend

    return lambda: descend.set_num_threads(threads)


def page_faults(call: Call, seconds: float) -> float:
    """Page faults of one call, in a loop that drops each result before the next call."""
    calls = max(3, min(20, int(0.1 / max(seconds, 1e-6))))
    for _ in range(3):
        call()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(calls):
        call()
    return (resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) / calls


def verify(forms: dict[str, Call], problem: Problem, golden: Sequence[Golden]) -> None:
    """Every form computes the right thing, into poisoned outputs where they are given."""
    outputs = list(problem.outputs.values())
    for form, call in forms.items():
        accuracy.poison(outputs)
        result = call()
        parts = [frameworks.to_numpy(part) for part in as_tuple(result) if part is not None]
        actual = parts if form == "allocating" else outputs
        accuracy.check(f"Descend ({FORMS[form]}) on {problem.shape} {problem.dtype}", actual, golden)


def enter(
    library: Library, operator: Operator, problem: Problem, golden: Sequence[Golden], effort: Effort
) -> tuple[Contender, Peer] | None:
    """A peer's fastest way, ready for the rounds; a way that fails or computes something else is left out.

    Where calls are slow, one of each is trial enough. Where there is little time for trials, what compiles takes part
    with the first of its ways that works, and none is sought that is faster than a very slow one.
    """
    arrays, settings = library.arrays(list(problem.inputs.values())), operator.settings(problem.shape)
    ways: list[Contender] = []
    errors: dict[str, list[dict[str, float]]] = {}
    tried: dict[str, float | str] = {}
    seconds: dict[str, float] = {}
    for name, route in library.routes(operator).items():
        try:
            call = route(*arrays, **settings)
            start = time.perf_counter()
            returned = as_tuple(call())
            first = time.perf_counter() - start
            results = [frameworks.to_numpy(part) for part in returned]
            checked = golden[: len(results)]
            accuracy.check(f"{library.name} ({name})", results, checked, dtype=_coarsest(problem.dtype))
        except Exception as problem_of_theirs:  # a peer's failure is a finding, not ours
            tried[name] = f"{type(problem_of_theirs).__name__}: {problem_of_theirs}".splitlines()[0][:200]
            continue
        errors[name] = [accuracy.errors(part, gold) for part, gold in zip(results, checked, strict=True)]
        ways.append(Contender(name, library.package, call))
        compiled = library.compiles  # in the first call, whose time says nothing then
        seconds[name] = first if first > VERY_SLOW and not compiled else ways[-1].once()
        if effort.trial < TRIAL and (compiled or seconds[name] > VERY_SLOW):
            break
    if not ways:
        return None
    quickest = min(seconds.values())
    if quickest < SLOW:
        best = fastest([way for way in ways if seconds[way.name] < max(SLOW, 3 * quickest)], effort)
    else:
        best = next(way for way in ways if seconds[way.name] == quickest)
    seconds |= {way.name: way.timing.median for way in ways if way.timing.seconds}
    tried |= {name: float(f"{figure:.4g}") for name, figure in seconds.items()}
    contender = Contender(library.name, library.package, best.call)
    return contender, Peer(contender.timing, best.name, tried, errors[best.name])


def small_calls(operator: Operator, effort: Effort, say: Say = lambda text: None) -> SmallCall | None:
    """The call that is all overhead, on NumPy arrays and torch tensors, beside PyTorch's own operator."""
    yardstick = operator.yardstick()
    if yardstick is None or not frameworks.LIBRARIES[0].installed:
        return None
    shape, dtype = operator.small
    say("small calls")
    problem = operator.make(shape, dtype, np.random.default_rng())
    tensors = replace(problem, inputs=_as_tensors(problem.inputs), outputs=_as_tensors(problem.outputs))
    name, route = yardstick
    jobs = {name: route(*tensors.inputs.values(), **operator.settings(shape))}
    jobs |= {f"{form}, NumPy": call for form, call in ours.calls(operator, problem).items()}
    jobs |= {f"{form}, torch": call for form, call in ours.calls(operator, tensors).items()}
    contenders = [Contender(job, "small", call) for job, call in jobs.items()]
    measure(contenders, effort)
    timings = {contender.name: contender.timing for contender in contenders}
    return SmallCall(operator.name, list(shape), dtype, name, timings)


def _as_tensors(arrays: dict[str, Any]) -> dict[str, Any]:
    return dict(zip(arrays, frameworks.torch_arrays(list(arrays.values())), strict=True))


def as_tuple(result: Any) -> tuple[Any, ...]:
    """Results of a call, also where it is only one."""
    return tuple(result) if isinstance(result, (tuple, list)) else (result,)


def _coarsest(dtype: str) -> str:
    """bfloat16's threshold: peers return parameter gradients in the parameter's dtype, and may add less exactly."""
    return "bfloat16" if dtype != "float32" else "float16"
