"""The operators' contracts as data, read from the engine: parameters, dtype tables, products, errors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from descend import _native


@dataclass(frozen=True)
class Product:
    """One product that calls can be checked against."""

    name: str
    """The name used here, e.g. ``atlas-a2-training``."""
    documents: str
    """The name in Huawei's documents."""
    soc: str
    """What ``aclrtGetSocName`` answers."""


@dataclass(frozen=True)
class Parameter:
    """One parameter of an operator's first phase."""

    name: str
    """The document's name, e.g. ``dxOut``."""
    python: str
    """The Python name, e.g. ``dx_out``."""
    kind: str
    """``tensor``, ``int_array``, ``bool_array``, ``int``, ``float``, ``bool`` or ``str``."""
    role: str
    """``input``, ``output`` or ``attribute``."""
    optional: bool
    """Whether null (None) is accepted, be it on ``host`` alone."""
    default: str | None
    """The functional API's default as Python source, None where the argument must be given."""
    keyword_only: bool
    """Whether the functional API takes it by keyword only."""
    shape: str
    """What its shape must be, for readers."""
    description: str
    """One sentence."""


@dataclass(frozen=True)
class DtypeRow:
    """One accepted combination of dtypes."""

    products: tuple[str, ...]
    dtypes: dict[str, tuple[str, ...]]
    """For each tensor parameter (Python name) the dtypes it may have in this row, e.g. ``("FLOAT", "FLOAT16")``."""


@dataclass(frozen=True)
class ErrorRule:
    """One way in which a call fails."""

    status: int
    name: str
    when: str


@dataclass(frozen=True)
class Operator:
    """All that the engine knows about one operator."""

    name: str
    """The Python name, e.g. ``rms_norm_grad``."""
    c_name: str
    """The document's name, e.g. ``aclnnRmsNormGrad``."""
    summary: str
    formula: str
    source: str
    """The document that the contract follows."""
    notes: str
    """What else a caller should know, such as what `host` lifts."""
    products: tuple[str, ...]
    parameters: tuple[Parameter, ...]
    dtypes: tuple[DtypeRow, ...]
    errors: tuple[ErrorRule, ...]

    @property
    def inputs(self) -> tuple[Parameter, ...]:
        """The tensors that are read."""
        return tuple(p for p in self.parameters if p.role == "input")

    @property
    def outputs(self) -> tuple[Parameter, ...]:
        """The tensors that are written."""
        return tuple(p for p in self.parameters if p.role == "output")

    @property
    def attributes(self) -> tuple[Parameter, ...]:
        """Everything that is neither."""
        return tuple(p for p in self.parameters if p.role == "attribute")

    @property
    def result_names(self) -> tuple[str, ...]:
        """The names of the results, in order: ``("dx", "dgamma")``."""
        return tuple(p.python.removesuffix("_out") for p in self.outputs)

    @property
    def functional_parameters(self) -> tuple[Parameter, ...]:
        """The functional form's parameters: all but the outputs, keyword-only ones last."""
        given = [p for p in self.parameters if p.role != "output"]
        # Optional tensors may stand before attributes that must be given only if those are by keyword.
        return tuple(sorted(given, key=lambda p: p.keyword_only))


PRODUCTS: dict[str, Product] = {entry["name"]: Product(**entry) for entry in _native.products()}


def _operator(entry: dict[str, Any]) -> Operator:
    return Operator(
        **{
            **entry,
            "products": tuple(entry["products"]),
            "parameters": tuple(Parameter(**p) for p in entry["parameters"]),
            "dtypes": tuple(DtypeRow(tuple(row["products"]), row["dtypes"]) for row in entry["dtypes"]),
            "errors": tuple(ErrorRule(**e) for e in entry["errors"]),
        }
    )


OPERATORS: dict[str, Operator] = {entry["name"]: _operator(entry) for entry in _native.operators()}
