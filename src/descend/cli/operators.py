"""Calls of an operator by its name: by the functional API, or in two phases as in the documents."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

import descend
from descend import acl, aclnn, reference
from descend.contract import OPERATORS, PRODUCTS, Operator
from descend.errors import from_status
from descend.portability import default, portability, result_types

Array = npt.NDArray[Any]

DTYPES: dict[str, np.dtype[Any]] = {
    "FLOAT": np.dtype(np.float32),
    "FLOAT16": np.dtype(np.float16),
    "BFLOAT16": np.dtype(ml_dtypes.bfloat16),
    "DOUBLE": np.dtype(np.float64),
    "BOOL": np.dtype(np.bool_),
}
"""NumPy's dtype for each of the documents'."""


def find(name: str) -> Operator:
    """The operator with this name, Python's or the document's, in any case. ValueError with similar names if none."""
    known = {_folded(operator.name): operator for operator in OPERATORS.values()}
    if operator := known.get(_folded(name)):
        return operator
    near = difflib.get_close_matches(_folded(name), known)
    raise ValueError(_unknown("operator", name, [known[one].name for one in near], list(OPERATORS)))


def _folded(name: str) -> str:
    return name.lower().removeprefix("aclnn").replace("_", "")


def check_product(name: str) -> None:
    """Raise ValueError if there is no product with this name."""
    if name not in PRODUCTS:
        raise ValueError(_unknown("product", name, difflib.get_close_matches(name, PRODUCTS), list(PRODUCTS)))


def _unknown(what: str, name: str, near: list[str], known: list[str]) -> str:
    hint = f"did you mean {' or '.join(near)}?" if near else f"there are {', '.join(known)}."
    return f"There is no {what} {name!r}; {hint}"


def functional(
    operator: Operator, arguments: Mapping[str, Any], outputs: Mapping[str, Array] | None = None
) -> dict[str, Array]:
    """Call ``descend.<operator>``, into `outputs` if given. The results by name, without masked ones.

    Optional inputs that are not among `arguments` are None, even if Python's signature has no default for them.
    """
    names = operator.result_names
    out = tuple(outputs.get(name) for name in names) if outputs else None
    given = _with_absent(operator, arguments)
    results = getattr(descend, operator.name)(**given, out=out[0] if out and len(out) == 1 else out)
    return _named(operator, results)


def golden(operator: Operator, arguments: Mapping[str, Any]) -> dict[str, Array]:
    """The results of the operator's definition in float64, by name, without masked ones."""
    return _named(operator, getattr(reference, operator.name)(**_with_absent(operator, arguments)))


def _with_absent(operator: Operator, arguments: Mapping[str, Any]) -> dict[str, Any]:
    absent: dict[str, Any] = {p.python: None for p in operator.inputs if p.optional}
    return {**absent, **arguments}


def _named(operator: Operator, results: Any) -> dict[str, Array]:
    named = zip(operator.result_names, results if isinstance(results, tuple) else (results,), strict=True)
    return {name: result for name, result in named if result is not None}


def two_phase(operator: Operator, arguments: Mapping[str, Any], outputs: Mapping[str, Array]) -> dict[str, Array]:
    """Run both phases on the current product into `outputs`, named as by `functional`; return those computed."""
    names = dict(zip(operator.outputs, operator.result_names, strict=True))
    values = [outputs.get(names[p]) if p in names else arguments.get(p.python, default(p)) for p in operator.parameters]
    workspace_size, executor = getattr(aclnn, f"{operator.name}_get_workspace_size")(*values)
    stream = acl.Stream()
    workspace = acl.malloc(workspace_size) if workspace_size else None
    getattr(aclnn, operator.name)(workspace, workspace_size, executor, stream)
    stream.synchronize()
    return {names[p]: outputs[names[p]] for p in operator.outputs if p.python in executor.computes}


def allocate(operator: Operator, arguments: Mapping[str, Any], product: str) -> dict[str, Array]:
    """Outputs for `two_phase`, by name, filled with NaN so that unwritten numbers are seen.

    Raises AclnnError if the product refuses the call: only an accepted call has dtypes for its outputs.
    """
    verdict = portability(operator.name, **arguments)[product]
    if not verdict.accepted:
        raise from_status(verdict.status, verdict.name, verdict.sentence)
    types = result_types(operator, arguments, product)
    return {
        name: np.full(shape, np.nan, DTYPES[dtype])
        for name, (shape, dtype) in zip(operator.result_names, types.values(), strict=True)
    }


def bytes_in_play(*tensors: Mapping[str, Any]) -> int:
    """Bytes of all arrays: the traffic of an operator that reads and writes each once."""
    return sum(value.nbytes for group in tensors for value in group.values() if isinstance(value, np.ndarray))
