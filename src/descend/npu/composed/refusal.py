"""The error of a call that is not served."""

from __future__ import annotations

from typing import NoReturn


class RefusedError(RuntimeError):
    """A call that is not served. A RuntimeError, since torch_npu raises that for calls that it refuses."""

    def __init__(self, operator: str, parameter: str, rest: str) -> None:
        super().__init__(f"{operator}: {parameter} {rest}")
        self.parameter, self.rest = parameter, rest


def refuse_quantised(operator: str, **given: object) -> None:
    """Refuses what belongs to quantised products: each must be None, or an empty list."""
    for name, value in given.items():
        if value is not None and not (isinstance(value, (list, tuple)) and not value):
            refuse(operator, name, "given", "must be None: what is quantised is not served")


def refuse(operator: str, parameter: str, got: object, served: str) -> NoReturn:
    """Raises RefusedError with a sentence: the operator, the parameter, its value, and the rule, "must be 0 or 1"."""
    raise RefusedError(operator, parameter, f"is {got}, but {served}.")
