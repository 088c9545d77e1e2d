"""``descend ops``: the list of operators."""

from __future__ import annotations

import json
from dataclasses import asdict
from functools import cache
from typing import Annotated

import typer

from descend.cli import output
from descend.contract import OPERATORS, PRODUCTS, Operator


def ops(
    as_json: Annotated[bool, typer.Option("--json", help="Print the engine's tables in full, as JSON.")] = False,
) -> None:
    """List the operators, their dtypes and their products."""
    if as_json:
        print(_tables())
        return
    columns = {name: name.replace("-", "\n") for name in PRODUCTS}
    table = output.table("operator", "dtypes", *columns.values())
    for operator in OPERATORS.values():
        on = ("yes" if name in operator.products else "-" for name in columns)
        table.add_row(operator.name, " ".join(dtypes(operator)), *on)
    products = output.table("product", "in the documents", "SoC name")
    for product in PRODUCTS.values():
        products.add_row(product.name, product.documents, product.soc)
    console = output.console()
    for part in (table, products):
        output.show(console, part)
        console.print()
    console.print("On host every operator takes any of FLOAT, FLOAT16, BFLOAT16 and DOUBLE.")
    console.print("descend explain OPERATOR has the details.")


@cache  # 40 ms, which the fuzzer of command lines would spend in a third of its time
def _tables() -> str:
    tables = {
        "operators": [asdict(operator) for operator in OPERATORS.values()],
        "products": [asdict(product) for product in PRODUCTS.values()],
    }
    return json.dumps(tables, indent=2)


def dtypes(operator: Operator) -> list[str]:
    """The dtypes that the operator's first input may have on an Ascend product."""
    first = operator.inputs[0].python
    rows = [row for row in operator.dtypes if set(row.products) != {"host"}]
    return list(dict.fromkeys(dtype for row in rows for dtype in row.dtypes.get(first, ())))
