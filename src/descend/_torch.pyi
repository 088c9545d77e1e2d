from collections.abc import Callable
from typing import Any

built_for: str
"""The version of PyTorch that the module was built for."""

def implement(name: str, kernel: Callable[..., Any], autograd: Callable[..., Any]) -> None:
    """Registers an operator's kernels, and what in Python they leave all else to."""

def follow_threads() -> None:
    """Gives the engine PyTorch's number of threads, if that has changed."""

def enable(on: bool) -> bool:
    """Whether the kernels in C++ run, or all is left to Python; returns what it was."""

def override_norms(on: bool) -> None:
    """Registers the engine's kernels for PyTorch's own norms on the CPU, or removes them."""
