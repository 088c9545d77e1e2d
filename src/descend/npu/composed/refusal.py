"""How an operator says what it does not serve."""

from __future__ import annotations

from typing import NoReturn


class RefusedError(RuntimeError):
    """A call that is not served. It is a RuntimeError, which is what torch_npu raises for calls that it refuses."""


def refuse(operator: str, parameter: str, got: object, served: str) -> NoReturn:
    """Raises RefusedError with a sentence: the operator, its parameter, what that is, and what it may be."""
    raise RefusedError(f"{operator}: {parameter} is {got}, but {served}.")
