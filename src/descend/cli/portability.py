"""``descend portability OPERATOR NAME=DTYPE:SHAPE...``: products that accept a call. A subcommand for each operator."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import Annotated, Any

import typer
from rich.text import Text

from descend.cli import output
from descend.cli.run import attribute_option, attribute_value
from descend.contract import OPERATORS, Operator
from descend.portability import TensorSpec
from descend.portability import portability as ask
from descend.tensors import TensorFileError, parse_dtype, parse_shape

portability = typer.Typer(
    name="portability",
    help="Tell on which products a call would be accepted.\n\n"
    "That is, descend portability OPERATOR NAME=DTYPE:SHAPE... of contiguous tensors; descend.aclnn.portability takes "
    "strides and formats, too.",
)

_SYNTAX = "NAME=DTYPE:SHAPE, as in dy=float16:2x1x32; NAME=none for null"
_SCALAR = ("", "scalar")
Tensors = Annotated[
    list[str],
    typer.Argument(metavar="TENSOR", help=f"Tensors by parameter name: {_SYNTAX}. Outputs may be left out."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the verdicts as JSON.")]


def tensor_spec(text: str) -> tuple[str, TensorSpec | None]:
    """The name and the tensor of one argument. Raises ValueError for anything else."""
    name, equals, rest = text.partition("=")
    if not name or not equals:
        raise ValueError(f"{text!r} is not a tensor: write {_SYNTAX}.")
    if rest.lower() == "none":
        return name, None
    dtype, _, dims = rest.partition(":")
    with suppress(TensorFileError):  # of files; documents have some that no file here holds
        dtype = parse_dtype(dtype).name
    try:
        shape = () if dims in _SCALAR else parse_shape(dims)
    except TensorFileError:
        raise ValueError(f"{text!r} is not a tensor: write {_SYNTAX}.") from None
    if not dtype or dtype[0].isdigit():
        raise ValueError(f"{text!r} names no dtype: write {_SYNTAX}.")
    return name, TensorSpec(shape, dtype)


def _command(operator: Operator) -> Callable[..., None]:
    """The subcommand of one operator."""

    def command(tensors: Tensors, as_json: AsJson = False, **attributes: Any) -> None:
        _ask(operator, tensors, attributes, as_json)

    common = inspect.signature(command, eval_str=True).parameters
    options = [p for p in common.values() if p.kind is not inspect.Parameter.VAR_KEYWORD]
    options += [attribute_option(attribute) for attribute in operator.attributes]
    command.__signature__ = inspect.Signature(options)  # type: ignore[attr-defined]
    command.__annotations__ = {option.name: option.annotation for option in options}
    command.__doc__ = f"On which products this call of {operator.c_name} would be accepted."
    return command


def _ask(operator: Operator, tensors: Sequence[str], attributes: dict[str, Any], as_json: bool) -> None:
    arguments = {a.python: attribute_value(a, attributes[a.python]) for a in operator.attributes}
    for text in tensors:
        name = text.partition("=")[0]
        if name in attributes:
            raise ValueError(f"{name} is no tensor: give it as the option --{name.replace('_', '-')}.")
        if name in arguments:
            raise ValueError(f"{name} is given twice.")
        name, spec = tensor_spec(text)
        arguments[name] = spec
    try:
        verdicts = ask(operator.name, **arguments)
    except TypeError as error:
        raise ValueError(str(error)) from None
    if as_json:
        print(json.dumps({product: asdict(verdict) for product, verdict in verdicts.items()}, indent=2))
        return
    table = output.table("product", "answer", "status", "why")
    for product, verdict in verdicts.items():
        answer = Text("accepted", "green") if verdict.accepted else Text("refused", "bold red")
        table.add_row(product, answer, "" if verdict.accepted else str(verdict.status), verdict.sentence)
    output.show(output.console(), table)


for _operator in OPERATORS.values():
    portability.command(_operator.name, short_help=_operator.c_name)(_command(_operator))
