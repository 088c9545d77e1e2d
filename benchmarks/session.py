"""One problem from fresh data to a checked result."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from benchmarks import accuracy, frameworks, machine, ours
from benchmarks.frameworks import Library
from benchmarks.harness import Contender, Effort, Limit, fastest, measure
from benchmarks.limit import limit
from benchmarks.operator import Call, Golden, Operator, Problem, Shape
from benchmarks.results import FORMS, Peer, Result, SmallCall

Say = Callable[[str], None]


def run(
    operator: Operator,
    shape: Shape,
    dtype: str,
    threads: int,
    effort: Effort,
    libraries: Sequence[Library] = frameworks.LIBRARIES,
    say: Say = lambda text: None,
) -> Result:
    """Measures one shape and dtype; raises WrongResultError where Descend's result is wrong."""
    rng = np.random.default_rng()
    say("data")
    problem = operator.make(shape, dtype, rng)
    golden = operator.golden(problem, rng)
    inputs, outputs = list(problem.inputs.values()), list(problem.outputs.values())

    forms = ours.calls(operator, inputs, outputs)
    verify(forms, problem, golden)

    frameworks.forget()
    peers: dict[str, tuple[Contender, Peer]] = {}
    for library in libraries:
        if library.installed and library.routes(operator):
            say(library.name)
            found = enter(library, operator, problem, golden)
            if found is not None:
                peers[library.name] = found

    say("rounds")
    nothing = operator.make(operator.nothing, "float32", rng)
    empty_call = ours.functional(operator, list(nothing.inputs.values()), list(nothing.outputs.values()))
    triad, empty = limit(problem.bytes, threads), Contender("empty", "descend", empty_call)
    contenders = {form: Contender(form, "descend", call) for form, call in forms.items()}
    accuracy.poison(outputs)
    jobs = [triad, empty, *contenders.values(), *(contender for contender, _ in peers.values())]
    arithmetic = None
    if operator.arithmetic_seconds(problem, threads) is not None:
        arithmetic = Limit(
            "arithmetic", "descend", lambda: None, seconds=lambda: operator.arithmetic_seconds(problem, threads) or 0.0
        )
        jobs.insert(1, arithmetic)
    others = measure(jobs, effort)
    accuracy.check(f"Descend on {shape} {dtype}, as timed", outputs, golden)
    errors = [accuracy.errors(output, part) for output, part in zip(outputs, golden, strict=True)]

    for contender, peer in peers.values():
        peer.timing = contender.timing
    return Result(
        operator.name,
        list(shape),
        dtype,
        problem.bytes,
        machine.lives_in(problem.bytes),
        triad.timing,
        empty.timing,
        {form: contenders[form].timing for form in FORMS},
        {name: peer for name, (_, peer) in peers.items()},
        errors,
        round(others, 3),
        arithmetic.timing if arithmetic else None,
    )


def verify(forms: dict[str, Call], problem: Problem, golden: Sequence[Golden]) -> None:
    """Every form computes the right thing, into poisoned outputs where they are given."""
    outputs = list(problem.outputs.values())
    for form in FORMS:
        accuracy.poison(outputs)
        result = forms[form]()
        actual = [frameworks.to_numpy(part) for part in as_tuple(result)] if form == "allocating" else outputs
        accuracy.check(f"Descend ({FORMS[form]}) on {problem.shape} {problem.dtype}", actual, golden)


def enter(
    library: Library, operator: Operator, problem: Problem, golden: Sequence[Golden]
) -> tuple[Contender, Peer] | None:
    """A peer's fastest way, ready for the rounds; a way that fails or computes something else is left out."""
    arrays = library.arrays(list(problem.inputs.values()))
    ways: list[Contender] = []
    errors: dict[str, list[dict[str, float]]] = {}
    tried: dict[str, float | str] = {}
    for name, route in library.routes(operator).items():
        try:
            call = route(*arrays)
            results = [frameworks.to_numpy(part) for part in as_tuple(call())]
            accuracy.check(f"{library.name} ({name})", results, golden, dtype=_coarsest(problem.dtype))
        except Exception as problem_of_theirs:  # a peer's failure is a finding, not ours
            tried[name] = f"{type(problem_of_theirs).__name__}: {problem_of_theirs}".splitlines()[0][:200]
            continue
        errors[name] = [accuracy.errors(part, gold) for part, gold in zip(results, golden, strict=True)]
        ways.append(Contender(name, library.package, call))
    if not ways:
        return None
    best = fastest(ways)
    tried |= {way.name: way.timing.median for way in ways if way.timing.seconds}
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
    inputs, outputs = list(problem.inputs.values()), list(problem.outputs.values())
    tensors, out_tensors = frameworks.torch_arrays(inputs), frameworks.torch_arrays(outputs)
    name, route = yardstick
    jobs = {name: route(*tensors)}
    jobs |= {f"{form}, NumPy": call for form, call in ours.calls(operator, inputs, outputs).items()}
    jobs |= {f"{form}, torch": call for form, call in ours.calls(operator, tensors, out_tensors).items()}
    contenders = [Contender(job, "small", call) for job, call in jobs.items()]
    measure(contenders, effort)
    timings = {contender.name: contender.timing for contender in contenders}
    return SmallCall(operator.name, list(shape), dtype, name, timings)


def as_tuple(result: Any) -> tuple[Any, ...]:
    """Results of a call, also where it is only one."""
    return tuple(result) if isinstance(result, (tuple, list)) else (result,)


def _coarsest(dtype: str) -> str:
    """Peers give parameter gradients in the parameter's dtype and sum as they see fit: bfloat16's threshold."""
    return "bfloat16" if dtype != "float32" else "float16"
