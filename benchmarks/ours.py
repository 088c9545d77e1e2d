"""Descend's own calls, found by the operator's name."""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.operator import Call, Operator, Problem
from benchmarks.results import FORMS


def calls(operator: Operator, problem: Problem, forms: Sequence[str] = tuple(FORMS)) -> dict[str, Call]:
    """These forms of the call on the problem's arrays, ready to run."""
    from descend import acl

    acl.set_product("host")  # which takes every dtype
    makers: dict[str, Callable[[Operator, Problem], Call]] = {
        "out": functional,
        "allocating": allocating,
        "two_phase": two_phase,
        "repeatable": repeatable,
    }
    return {form: makers[form](operator, problem) for form in forms}


def functional(operator: Operator, problem: Problem) -> Call:
    """``descend.operator(…, out=…)``; outputs that the problem has not are left out."""
    import descend
    from descend.contract import OPERATORS

    function, (given, named) = getattr(descend, operator.name), _given(operator, problem)
    outputs = tuple(problem.outputs.get(p.python, ...) for p in OPERATORS[operator.name].outputs)
    out = outputs if len(outputs) > 1 else outputs[0]
    return lambda: function(*given, out=out, **named)


def allocating(operator: Operator, problem: Problem) -> Call:
    """``descend.operator(…)``."""
    import descend

    function, (given, named) = getattr(descend, operator.name), _given(operator, problem)
    return lambda: function(*given, **named)


def _given(operator: Operator, problem: Problem) -> tuple[list[Any], dict[str, Any]]:
    """The functional form's arguments by position, up to the last tensor, and those by name."""
    from descend.contract import OPERATORS

    tensors, attributes, given = dict(problem.inputs), dict(problem.attributes), list[Any]()
    for parameter in OPERATORS[operator.name].functional_parameters:
        if not tensors:
            break
        name = parameter.python
        given.append(tensors.pop(name, None) if parameter.kind == "tensor" else attributes.pop(name))
    return given, attributes


def _arguments(operator: Operator, problem: Problem) -> list[Any]:
    """All parameters of the first phase in its order, attributes that are not given at their defaults."""
    from descend.contract import OPERATORS

    given = {**problem.attributes, **problem.inputs, **problem.outputs}
    return [given.get(p.python, ast.literal_eval(p.default or "None")) for p in OPERATORS[operator.name].parameters]


def two_phase(operator: Operator, problem: Problem) -> Call:
    """Both phases and synchronize; stream and workspace are made once, as programs do."""
    from descend import acl, aclnn

    first, second = getattr(aclnn, f"{operator.name}_get_workspace_size"), getattr(aclnn, operator.name)
    stream = acl.Stream()
    arguments = _arguments(operator, problem)
    size, _ = first(*arguments)
    workspace = acl.malloc(size) if size else None

    def call() -> None:
        size, executor = first(*arguments)
        second(workspace, size, executor, stream)
        stream.synchronize()

    return call


def repeatable(operator: Operator, problem: Problem) -> Call:
    """The second phase and synchronize, with an executor made once."""
    from descend import acl, aclnn

    first, second = getattr(aclnn, f"{operator.name}_get_workspace_size"), getattr(aclnn, operator.name)
    stream = acl.Stream()
    size, executor = first(*_arguments(operator, problem))
    executor.set_repeatable()
    workspace = acl.malloc(size) if size else None

    def call() -> None:
        second(workspace, size, executor, stream)
        stream.synchronize()

    return call
