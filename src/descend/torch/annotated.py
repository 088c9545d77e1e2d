"""Annotations that torch.fx can write into the code of its graphs."""

from __future__ import annotations

from collections.abc import Callable
from types import UnionType
from typing import Any, TypeVar, Union, get_type_hints

_Function = TypeVar("_Function", bound=Callable[..., Any])


def with_types(function: _Function) -> _Function:
    """The function, whose annotations are types and no strings.

    torch.fx makes globals of a graph's code of those of the module that it traces, and pickles them by their names: a
    string has none. In releases before 2.8 it finds a union only if it is typing's.
    """
    function.__annotations__ = {name: _with_typing_s_union(kind) for name, kind in get_type_hints(function).items()}
    return function


def _with_typing_s_union(kind: Any) -> Any:
    return Union[kind.__args__] if isinstance(kind, UnionType) else kind  # noqa: UP007
