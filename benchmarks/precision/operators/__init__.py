"""The operators whose results are compared, in the order of docs/accuracy.md; a module has a family of them."""

from __future__ import annotations

from benchmarks.precision.operators import (
    activations,
    group_norms,
    losses,
    norms,
    nsa,
    optimizers,
    rotary,
    softmaxes,
)
from benchmarks.precision.operators.operator import Operator

_FAMILIES = (norms, group_norms, softmaxes, rotary, activations, losses, optimizers, nsa)

OPERATORS: dict[str, Operator] = {operator.name: operator for family in _FAMILIES for operator in family.OPERATORS}
