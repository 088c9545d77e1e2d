"""A row of the tables of composed operators, which are in the ``table.py`` of each folder of this package."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Composed:
    """An operator of torch_npu and its gradient."""

    operator: str
    module: str
    """FOLDER.MODULE of this package, which computes it."""
    kernels: tuple[str, ...]
    """The names of torch_npu's operators that the row serves, forward and gradient, with their overloads.

    ``aten::`` before a name says that PyTorch has the operator, but no kernel of the CPU's for it."""
    gradient: str
    """The operators by which torch_npu computes the gradient, "none", or "by ..." where something else computes it."""
    how: str
    """How it is computed: of which operators of PyTorch, in which dtype, how often rounded."""
    restrictions: str
    """What is refused, with an error that says so."""
    documents: tuple[str, ...]


Section = tuple[Composed, ...]
"""The rows under a title of docs/npu-operators.md."""


def row(
    operator: str,
    module: str,
    how: str,
    restrictions: str,
    gradient: str = "none",
    *,
    more: tuple[str, ...] = (),
    kernels: tuple[str, ...] = (),
    documents: tuple[str, ...] = (),
) -> Composed:
    """A row. Without ``kernels`` it serves the operator, those of its gradient, and ``more``.

    Without ``documents`` it follows that of torch_npu with the operator's name.
    """
    if not kernels:
        of_gradient = () if gradient.startswith(("by ", "none")) else gradient.split(", ")
        kernels = (operator, *of_gradient, *more)
    return Composed(operator, module, kernels, gradient, how, restrictions, documents or (f"torch_npu.{operator}",))
