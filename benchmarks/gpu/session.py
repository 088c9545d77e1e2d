"""One problem on a GPU, from fresh data to checked results; and what a call costs its caller."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from benchmarks import accuracy, frameworks, ours
from benchmarks.frameworks import Library
from benchmarks.gpu.device import Device
from benchmarks.gpu.results import Launch, Result
from benchmarks.gpu.timing import Contender, copies, launch_seconds, measure
from benchmarks.operator import Array, Call, Golden, Operator, Problem, Shape
from benchmarks.results import Peer, Timing

Say = Callable[[str], None]
Place = Callable[[Array], Any]
"""Brings an array to the device, as a tensor."""

COPIED = 2**30
"""Bytes that the copy reads and writes whose rate is the limit."""
TRIAL = 5
"""Rounds in which a library's fastest way is found."""


class TooLargeError(RuntimeError):
    """The device has not the memory for a problem."""


def to_cuda(array: Array) -> Any:
    """A copy on the current device."""
    return frameworks.torch_arrays([array])[0].cuda()


def copying(size: int, place: Place) -> Call:
    """Reads half of so many bytes and writes the other half."""
    source, target = (place(np.zeros(size // 2, np.uint8)) for _ in range(2))
    return lambda: target.copy_(source)


def run(
    operator: Operator,
    shape: Shape,
    dtype: str,
    device: Device,
    rounds: int,
    libraries: Sequence[Library],
    place: Place = to_cuda,
    say: Say = lambda text: None,
) -> Result:
    """Measures one shape and dtype beside the copy and the other libraries.

    Raises WrongResultError where Descend's result is wrong, TooLargeError where the device has no room.
    """
    say("data")
    rng = np.random.default_rng()
    problem = operator.make(shape, dtype, rng)
    golden = operator.golden(problem, rng)
    count, size = copies(problem.bytes, device.cache), problem.bytes
    needed, free = (2 * count + 2) * size + COPIED, device.free()
    if needed > free:
        raise TooLargeError(f"{operator.name} {shape} {dtype} takes {needed} bytes of the device, and {free} are free.")
    first = {name: place(array) for name, array in problem.inputs.items()}
    sets = [first, *({name: tensor.clone() for name, tensor in first.items()} for _ in range(count - 1))]

    descend = Contender("Descend", [ours.allocating(operator, replace(problem, inputs=inputs)) for inputs in sets])
    who = f"Descend on {shape} {dtype}"
    errors = check(who, descend.jobs[0](), golden)

    peers: dict[str, tuple[Contender, Peer]] = {}
    for library in libraries:
        if library.installed and library.routes(operator):
            say(library.name)
            frameworks.forget()
            peers[library.name] = enter(library, operator, problem, golden, sets, device)

    say("rounds")
    copied = min(COPIED, max(device.free() // 4, 2))
    copy = Contender("copy", [copying(copied, place)], scale=size / copied)
    taking_part = [contender for contender, _ in peers.values() if contender.jobs]
    measure(device, [copy, descend, *taking_part], rounds)
    check(f"{who}, after it was timed", descend.jobs[-1](), golden)
    for contender, peer in peers.values():
        peer.timing = contender.timing
    return Result(
        operator.name,
        list(shape),
        dtype,
        size,
        count,
        copy.timing,
        descend.timing,
        {name: peer for name, (_, peer) in peers.items()},
        errors,
        [contender.name for contender in (copy, descend, *taking_part) if contender.starved],
    )


def enter(
    library: Library,
    operator: Operator,
    problem: Problem,
    golden: Sequence[Golden],
    sets: Sequence[dict[str, Any]],
    device: Device,
) -> tuple[Contender, Peer]:
    """A library's fastest way; without jobs where none of them works, which the peer then says."""
    settings, ways = operator.settings(problem.shape), list[Contender]()
    tried: dict[str, float | str] = {}
    errors: dict[str, list[dict[str, float]]] = {}
    for name, route in library.routes(operator).items():
        try:
            jobs = [route(*inputs.values(), **settings) for inputs in sets]
            coarse = "bfloat16" if problem.dtype != "float32" else "float16"  # peers sum as they see fit
            errors[name] = check(f"{library.name} ({name})", jobs[0](), golden, coarse)
            way = Contender(name, jobs)
            measure(device, [way], TRIAL)
        except Exception as problem_of_theirs:  # a peer's failure is a finding, not ours
            tried[name] = f"{type(problem_of_theirs).__name__}: {problem_of_theirs}".splitlines()[0][:200]
            continue
        tried[name] = way.timing.median
        ways.append(way)
    if not ways:
        return Contender(library.name, []), Peer(Timing(), "", tried)
    best = min(ways, key=lambda way: way.timing.median)
    return Contender(library.name, best.jobs), Peer(Timing(), best.name, tried, errors[best.name])


def check(who: str, results: Any, golden: Sequence[Golden], coarse: str | None = None) -> list[dict[str, float]]:
    """Raises WrongResultError unless the results are right; each one's errors against float64.

    A forward may leave out its statistics.
    """
    errors = []
    for part, gold in zip(results if isinstance(results, (tuple, list)) else (results,), golden, strict=False):
        actual = frameworks.to_numpy(part.cpu())
        accuracy.check(who, [actual], [gold], dtype=coarse or str(part.dtype).removeprefix("torch."))
        errors.append(accuracy.errors(actual, gold))
    return errors


def launch(operator: Operator, device: Device, rounds: int, place: Place = to_cuda) -> Launch | None:
    """What a small call costs its caller in each form, beside PyTorch's own operator."""
    yardstick = operator.yardstick()
    if yardstick is None:
        return None
    shape, dtype = operator.small
    problem = operator.make(shape, dtype, np.random.default_rng())
    problem = replace(
        problem,
        inputs={name: place(array) for name, array in problem.inputs.items()},
        outputs={name: place(array) for name, array in problem.outputs.items()},
    )
    name, route = yardstick
    jobs = {
        name: route(*problem.inputs.values(), **operator.settings(shape)),
        "descend": ours.allocating(operator, problem),
        "descend, out=": ours.functional(operator, problem),
        "descend.torch": through_pytorch(operator, problem),
        "a repeatable executor": second_phase(operator, problem),
    }
    timings = {job: Timing() for job in jobs}
    for number in range(rounds):
        for job, call in jobs.items() if number % 2 == 0 else reversed(list(jobs.items())):
            timings[job].add(number, launch_seconds(device, call))
    return Launch(operator.name, list(shape), dtype, name, timings)


def through_pytorch(operator: Operator, problem: Problem) -> Call:
    """``descend.torch.operator(…)``: by PyTorch's dispatcher, with derivatives."""
    import descend.torch

    function, (given, named) = getattr(descend.torch, operator.name), ours._given(operator, problem)
    return lambda: function(*given, **named)


def second_phase(operator: Operator, problem: Problem) -> Call:
    """The second phase of an executor made once, in a workspace made once, on the current stream."""
    import torch

    from descend import acl, aclnn

    first, second = getattr(aclnn, f"{operator.name}_get_workspace_size"), getattr(aclnn, operator.name)
    with acl.product("host"):
        size, executor = first(*ours._arguments(operator, problem))
    executor.set_repeatable()
    workspace = torch.empty(size, dtype=torch.uint8, device=next(iter(problem.inputs.values())).device)
    return lambda: second(workspace, size, executor, None)
