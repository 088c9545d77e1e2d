"""The operators of torch_npu that Descend composes of PyTorch's: how, what is refused, and the documents followed.

Docs, registration and tests read this table. Its rows are in the ``table.py`` of each folder. `functions` finds the
functions that compute a row's operators.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from typing import Any

from descend.npu.composed.attention import table as attention
from descend.npu.composed.detection import table as detection
from descend.npu.composed.experts import table as experts
from descend.npu.composed.layers import table as layers
from descend.npu.composed.products import table as products
from descend.npu.composed.quantised import table as quantised
from descend.npu.composed.row import Composed
from descend.npu.composed.tensors import table as tensors
from descend.npu.composed.training import table as training

PACKAGE = "descend.npu.composed"
_FOLDERS = (attention, experts, products, quantised, layers, training, detection, tensors)
SECTIONS = {title: rows for folder in _FOLDERS for title, rows in folder.SECTIONS.items()}
"""The titles of docs/npu-operators.md, in its order, and the rows under each."""
TABLE = tuple(row for rows in SECTIONS.values() for row in rows)


def functions(row: Composed) -> Iterator[tuple[str, Callable[..., Any]]]:
    """Each operator of a row, and the function of CPU tensors that computes it."""
    module = importlib.import_module(f"{PACKAGE}.{row.module}")
    for kernel in row.kernels:
        name, _, overload = kernel.removeprefix("aten::").partition(".")
        own = f"{name}_{overload}" if overload else name
        yield kernel, getattr(module, own, None) or getattr(module, name)


def markdown() -> str:
    """The tables as docs/npu-operators.md has them: ``python -m descend.npu.composed.table`` prints them."""
    lines = []
    for title, rows in SECTIONS.items():
        lines += [f"### {title}", "", "| operator | gradient | how | refused | documents |"]
        lines.append("| --- | --- | --- | --- | --- |")
        for row in sorted(rows, key=lambda row: row.operator.lower().lstrip("_")):
            cells = (f"`{row.operator}`", row.gradient, row.how, row.restrictions, ", ".join(row.documents))
            lines.append(f"| {' | '.join(cells)} |")
        lines.append("")
    return "\n".join(lines[:-1])


if __name__ == "__main__":
    print(markdown())
