"""Annotations that torch.fx can write into the code of its graphs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, get_type_hints

_Function = TypeVar("_Function", bound=Callable[..., Any])


def with_types(function: _Function) -> _Function:
    """The function, whose annotations are types and no strings.

    torch.fx makes globals of a graph's code of those of the module that it traces, and pickles them by their names: a
    string has none.
    """
    function.__annotations__ = get_type_hints(function)
    return function
