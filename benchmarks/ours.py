"""Descend's own calls, found by the operator's name."""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.operator import Call, Operator


def calls(operator: Operator, inputs: Sequence[Any], outputs: Sequence[Any]) -> dict[str, Call]:
    """Every form of the call on these arrays, ready to run."""
    from descend import acl

    acl.set_product("host")  # which takes every dtype
    makers: dict[str, Callable[[Operator, Sequence[Any], Sequence[Any]], Call]] = {
        "out": functional,
        "allocating": allocating,
        "two_phase": two_phase,
        "repeatable": repeatable,
    }
    return {form: make(operator, inputs, outputs) for form, make in makers.items()}


def functional(operator: Operator, inputs: Sequence[Any], outputs: Sequence[Any]) -> Call:
    """``descend.operator(…, out=…)``."""
    import descend

    function, (given, named) = getattr(descend, operator.name), _given(operator, inputs)
    out = tuple(outputs) if len(outputs) > 1 else outputs[0]
    return lambda: function(*given, out=out, **named)


def allocating(operator: Operator, inputs: Sequence[Any], outputs: Sequence[Any]) -> Call:
    """``descend.operator(…)``."""
    import descend

    function, (given, named) = getattr(descend, operator.name), _given(operator, inputs)
    return lambda: function(*given, **named)


def _given(operator: Operator, inputs: Sequence[Any]) -> tuple[list[Any], dict[str, Any]]:
    """The functional form's arguments by position, up to the last tensor, and those by name."""
    from descend._generate import functional_parameters
    from descend.contract import OPERATORS

    tensors, attributes, given = list(inputs), dict(operator.attributes_of(inputs)), []
    for parameter in functional_parameters(OPERATORS[operator.name]):
        if not tensors:
            break
        given.append(tensors.pop(0) if parameter.kind == "tensor" else attributes.pop(parameter.python))
    return given, attributes


def _arguments(operator: Operator, inputs: Sequence[Any], outputs: Sequence[Any]) -> list[Any]:
    """All parameters of the first phase in its order, attributes that are not given at their defaults."""
    from descend.contract import OPERATORS

    tensors, attributes = {"input": iter(inputs), "output": iter(outputs)}, operator.attributes_of(inputs)
    return [
        attributes.get(p.python, ast.literal_eval(p.default or "None")) if p.role == "attribute"
        else next(tensors[p.role], None)
        for p in OPERATORS[operator.name].parameters
    ]  # fmt: skip


def two_phase(operator: Operator, inputs: Sequence[Any], outputs: Sequence[Any]) -> Call:
    """Both phases and synchronize; stream and workspace are made once, as programs do."""
    from descend import acl, aclnn

    first, second = getattr(aclnn, f"{operator.name}_get_workspace_size"), getattr(aclnn, operator.name)
    stream = acl.Stream()
    arguments = _arguments(operator, inputs, outputs)
    size, _ = first(*arguments)
    workspace = acl.malloc(size) if size else None

    def call() -> None:
        size, executor = first(*arguments)
        second(workspace, size, executor, stream)
        stream.synchronize()

    return call


def repeatable(operator: Operator, inputs: Sequence[Any], outputs: Sequence[Any]) -> Call:
    """The second phase and synchronize, with an executor made once."""
    from descend import acl, aclnn

    first, second = getattr(aclnn, f"{operator.name}_get_workspace_size"), getattr(aclnn, operator.name)
    stream = acl.Stream()
    size, executor = first(*_arguments(operator, inputs, outputs))
    executor.set_repeatable()
    workspace = acl.malloc(size) if size else None

    def call() -> None:
        second(workspace, size, executor, stream)
        stream.synchronize()

    return call
