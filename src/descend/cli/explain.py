"""``descend explain OPERATOR``: its contract."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from descend.cli import operators, output
from descend.contract import PRODUCTS, Operator

_FLOATS = {"FLOAT", "FLOAT16", "BFLOAT16", "DOUBLE"}


def explain(
    operator: Annotated[str, typer.Argument(metavar="OPERATOR", help="Its name here or in the documents.")],
    product: Annotated[str | None, typer.Option(help="Only what holds on this product.")] = None,
) -> None:
    """Explain an operator: formula, parameters, dtypes, errors."""
    found = operators.find(operator)
    if product is not None:
        operators.check_product(product)
    products = [product] if product else list(found.products)
    phase1 = f"aclnn.{found.name}_get_workspace_size({', '.join(p.python for p in found.parameters)})"
    absent = [name for name in ([product] if product else PRODUCTS) if name not in found.products]

    console = output.console()
    console.print(output.heading(f"{found.name} ({found.c_name})"))
    console.print(found.summary, end="\n\n")
    console.print(Padding.indent(found.formula, 4))
    console.print()
    console.print(Text(f"{_signature(found)}\n{phase1}\n", "cyan"))
    sections = [("Parameters", _parameters(found)), ("Dtypes that go together", _dtypes(found, products))]
    for title, table in [*sections, ("Errors", _errors(found))]:
        if table.row_count:
            console.print(output.heading(title))
            output.show(console, table)
            console.print()
    if absent:
        console.print(f"It does not exist on {', '.join(absent)}: 561003 (ACLNN_ERR_INNER_FIND_KERNEL_ERROR).")
    if found.notes:
        console.print(found.notes)
    console.print(f"Source: {found.source}")


def _signature(operator: Operator) -> str:
    """A call of the functional API, such as ``y, rstd = descend.rms_norm(x, gamma, epsilon=1e-6)``."""
    arguments: list[str] = []
    for parameter in operator.functional_parameters:
        if parameter.keyword_only and "*" not in arguments:
            arguments.append("*")
        arguments.append(parameter.python + (f"={parameter.default}" if parameter.default is not None else ""))
    return f"{', '.join(operator.result_names)} = descend.{operator.name}({', '.join(arguments)})"


def _parameters(operator: Operator) -> Table:
    table = output.table("parameter", "in the documents", "role", "kind", "shape", "")
    for parameter in operator.parameters:
        optional = "may be None. " if parameter.optional else ""
        table.add_row(
            parameter.python,
            parameter.name,
            parameter.role,
            parameter.kind,
            parameter.shape,
            optional + parameter.description,
        )
    return table


def _dtypes(operator: Operator, products: list[str]) -> Table:
    tensors = [p.python for p in operator.parameters if p.kind == "tensor"]
    table = output.table(*tensors, "products")
    table.columns[-1].no_wrap = True  # many tensors would break the names
    for row in operator.dtypes:
        on = [name for name in products if name in row.products]
        if on:
            table.add_row(*(_alternatives(row.dtypes.get(name, ())) for name in tensors), "\n".join(on))
    return table


def _alternatives(dtypes: tuple[str, ...]) -> str:
    return "any float" if set(dtypes) == _FLOATS else "\n".join(dtypes)


def _errors(operator: Operator) -> Table:
    table = output.table("status", "name", "when")
    for rule in operator.errors:
        table.add_row(str(rule.status), rule.name, rule.when)
    return table
