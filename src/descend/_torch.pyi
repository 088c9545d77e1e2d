from collections.abc import Callable
from typing import Any

def implement(name: str, kernel: Callable[..., Any], autograd: Callable[..., Any]) -> None:
    """Registers an operator's kernels in C++, and the functions that they call for anything but plain CPU tensors."""

def follow_threads() -> None:
    """Gives the engine PyTorch's number of threads, if that has changed."""

def enable(on: bool) -> bool:
    """Switches the kernels in C++ on or off; off, Python computes all calls. Returns whether they were on."""

def override_norms(on: bool) -> None:
    """Registers the engine's kernels for PyTorch's own norms on the CPU, or removes them."""
