"""The error of a call that is not served."""

from __future__ import annotations

from typing import NoReturn


class RefusedError(RuntimeError):
    """A call that is not served. A RuntimeError, since torch_npu raises that for calls that it refuses."""


def refuse(operator: str, parameter: str, got: object, served: str) -> NoReturn:
    """Raises RefusedError with a sentence: the operator, the parameter, its value, and what it may be."""
    raise RefusedError(f"{operator}: {parameter} is {got}, but {served}.")
