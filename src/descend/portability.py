"""Where a call would work: one first phase, asked on every product."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import index
from typing import Any

from descend import _native
from descend.contract import OPERATORS, PRODUCTS, Operator, Parameter

DTYPES = {
    **{"FLOAT": 0, "FLOAT16": 1, "INT8": 2, "INT32": 3, "UINT8": 4, "INT16": 6, "UINT16": 7, "UINT32": 8, "INT64": 9},
    **{"UINT64": 10, "DOUBLE": 11, "BOOL": 12, "COMPLEX64": 16, "COMPLEX128": 17, "BFLOAT16": 27},
}
"""CANN's numbers of the dtypes, by the names that the documents use."""

FORMATS = {
    **{"NCHW": 0, "NHWC": 1, "ND": 2, "NC1HWC0": 3, "FRACTAL_Z": 4, "HWCN": 16, "NDHWC": 27, "FRACTAL_NZ": 29},
    **{"NCDHW": 30, "NDC1HWC0": 32, "FRACTAL_Z_3D": 33, "NC": 35, "NCL": 47},
}
"""CANN's numbers of the formats."""

_ALIASES = {"FLOAT32": "FLOAT", "FLOAT64": "DOUBLE", "BF16": "BFLOAT16", "HALF": "FLOAT16"}


@dataclass(frozen=True)
class TensorSpec:
    """A tensor without memory: what `portability` takes in place of an array.

    ``dtype`` is a name of the documents (``FLOAT16``) or of NumPy (``float16``), ``strides`` count elements (None:
    contiguous), ``format`` is one of CANN's. Shape and strides are kept as tuples of Python's integers. Raises
    ValueError for unknown names and numbers beyond 64 bits, TypeError for names that are no strings and numbers that
    are no integers.
    """

    shape: Sequence[int]
    dtype: str
    strides: Sequence[int] | None = None
    format: str = "ND"

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", _integers("shape", self.shape))
        if self.strides is not None:
            object.__setattr__(self, "strides", _integers("strides", self.strides))
        for name, value in (("dtype", self.dtype), ("format", self.format)):
            if not isinstance(value, str):
                raise TypeError(f"{name} is {value!r}, but must be a name.")
        if self._dtype not in DTYPES:
            raise ValueError(f"{self.dtype!r} is not a dtype; known are {', '.join(DTYPES)}.")
        if self.format not in FORMATS:
            raise ValueError(f"{self.format!r} is not a format; known are {', '.join(FORMATS)}.")
        self._native()

    @property
    def _dtype(self) -> str:
        name = self.dtype.upper()
        return _ALIASES.get(name, name)

    def _native(self) -> _native.TensorSpec:
        return _native.TensorSpec(self.shape, DTYPES[self._dtype], self.strides, FORMATS[self.format])


def _integers(name: str, values: Sequence[int]) -> tuple[int, ...]:
    try:
        integers = tuple(index(value) for value in values)
    except TypeError:
        raise TypeError(f"{name} is {values!r}, but must be a sequence of integers.") from None
    if any(not -(2**63) <= integer < 2**63 for integer in integers):
        raise ValueError(f"{name} holds a number that does not fit into 64 bits: {list(integers)}.")
    return integers


@dataclass(frozen=True)
class Verdict:
    """What one product answers to a call."""

    status: int
    """Of the first phase: 0 where the call is accepted."""
    name: str
    """The status's name, e.g. ``ACLNN_ERR_PARAM_INVALID``."""
    sentence: str
    """Why the call is refused; empty where it is not."""

    @property
    def accepted(self) -> bool:
        """Whether the call would work there."""
        return self.status == 0


def portability(operator: str, /, *arguments: Any, **named: Any) -> dict[str, Verdict]:
    """On which products a call of an operator would be accepted, and why not on the others.

    The parameters are those of the operator's first phase, by position or name: arrays or `TensorSpec`. Only shapes,
    strides, dtypes and attributes are looked at. Attributes that are left out have the functional API's defaults;
    outputs that are left out are, for each product, what the product's own table has beside these inputs. Returns a
    verdict for each product, in the order of `descend.contract.PRODUCTS`.

    Raises KeyError for an unknown operator, TypeError for missing, unknown or ill-typed arguments.
    """
    if operator not in OPERATORS:
        raise KeyError(f"there is no operator {operator!r}; known are {', '.join(OPERATORS)}.")
    op = OPERATORS[operator]
    given = _by_name(op, arguments, named)
    return {product: verdict(op, product, given) for product in PRODUCTS}


def verdict(operator: Operator, product: str, given: Mapping[str, Any]) -> Verdict:
    """What one product answers to a call, whose arguments are given by name; none that must be may be missing."""
    results = result_types(operator, given, product)
    values = [
        given.get(p.python, TensorSpec(*results[p.python]) if p.role == "output" else default(p))
        for p in operator.parameters
    ]
    return Verdict(*_native.verdict(operator.name, product, *map(_plain, values)))


def _by_name(operator: Operator, arguments: Sequence[Any], named: Mapping[str, Any]) -> dict[str, Any]:
    names = [p.python for p in operator.parameters]
    if len(arguments) > len(names):
        raise TypeError(f"{operator.name} has {len(names)} parameters, and {len(arguments)} were given.")
    given = dict(zip(names, arguments, strict=False))
    for name in named:
        if name not in names:
            raise TypeError(f"{operator.name} has no parameter {name}; it has {', '.join(names)}.")
        if name in given:
            raise TypeError(f"{operator.name}: {name} was given twice.")
    given |= named
    for p in operator.parameters:
        if p.python not in given and p.default is None and not (p.role == "output" or p.optional):
            raise TypeError(f"{operator.name}: {p.python} must be given.")
    return given


def _plain(value: Any) -> Any:
    return value._native() if isinstance(value, TensorSpec) else value


def default(parameter: Parameter) -> Any:
    """The functional API's value for a parameter that is not given."""
    return None if parameter.default is None else ast.literal_eval(parameter.default)


def result_types(operator: Operator, given: Mapping[str, Any], product: str) -> dict[str, tuple[tuple[int, ...], str]]:
    """For each output its shape and a dtype that the product's table has beside these inputs (by parameter name)."""
    values = [_plain(given.get(p.python, default(p))) for p in operator.parameters if p.role != "output"]
    results = _native.infer(operator.name, *values)  # first: of what cannot be read it names the parameter
    tensors = {p.python: given[p.python] for p in operator.inputs if given.get(p.python) is not None}
    dtypes = {name: _native.dtype_of(_plain(value)) for name, value in tensors.items()}
    row = next(
        (
            row.dtypes
            for row in operator.dtypes
            if product in row.products and all(dtype in row.dtypes.get(name, ()) for name, dtype in dtypes.items())
        ),
        {},
    )
    types = {}
    for parameter, (shape, dtype) in zip(operator.outputs, results, strict=True):
        allowed = row.get(parameter.python, ())
        if dtype not in (allowed or DTYPES):  # inputs that break a rule may leave nothing to go by
            dtype = allowed[0] if allowed else "FLOAT"
        types[parameter.python] = shape, dtype
    return types
