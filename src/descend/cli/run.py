"""``descend run OPERATOR IN... -o OUT``: a subcommand for each operator, made from its table."""

from __future__ import annotations

import ast
import inspect
import statistics
import time
from collections.abc import Callable
from contextlib import nullcontext
from typing import Annotated, Any

import numpy as np
import typer

from descend import acl
from descend.cli import files, operators, output
from descend.cli.operators import Array
from descend.contract import OPERATORS, Operator, Parameter

run = typer.Typer(
    name="run", help="Compute an operator on tensors from files.\n\nThat is, descend run OPERATOR IN... -o OUT."
)

Inputs = Annotated[list[str], typer.Argument(metavar="IN", help=f"Tensors by parameter name: {files.SYNTAX}.")]
Outputs = Annotated[
    list[str], typer.Option("--output", "-o", metavar="OUT", help="A file for all results, or NAME=FILE for each.")
]
Product = Annotated[
    str | None, typer.Option(help="Run both phases under this product's contract; default: the functional API on host.")
]
Golden = Annotated[
    bool, typer.Option("--golden", help="Compute the definition in float64 instead: what `descend check` judges by.")
]
Prefix = Annotated[str, typer.Option(help="What precedes parameter names in the files, such as 'layers.0.norm1.'.")]
Dtype = Annotated[str | None, typer.Option(help="Dtype of .bin files that do not say theirs.")]
Shape = Annotated[str | None, typer.Option(help="Shape of .bin files that do not say theirs, as in 2x1x32.")]
Repeat = Annotated[int, typer.Option(min=1, max=1_000_000, help="Runs to take the median time of.")]

_TYPES: dict[str, Any] = {"int": int, "float": float, "bool": bool}  # lists and strings are text
_EXAMPLES = {"int_array": "0,128,272", "bool_array": "true,true,false"}


def _command(operator: Operator) -> Callable[..., None]:
    """The subcommand of one operator: the common options, and one for each attribute in its table."""

    def command(
        inputs: Inputs,
        output: Outputs,
        product: Product = None,
        golden: Golden = False,
        prefix: Prefix = "",
        dtype: Dtype = None,
        shape: Shape = None,
        repeat: Repeat = 3,
        **attributes: Any,
    ) -> None:
        sources = [files.TensorFile.parse(text, dtype, shape) for text in inputs]
        _refuse_attributes(operator, sources)
        targets = [files.TensorFile.parse_output(text) for text in output]
        _run(operator, sources, targets, product, golden, prefix, repeat, attributes)

    common = inspect.signature(command, eval_str=True).parameters
    options = [p for p in common.values() if p.kind is not inspect.Parameter.VAR_KEYWORD]
    options += [attribute_option(attribute) for attribute in operator.attributes]
    command.__signature__ = inspect.Signature(options)  # type: ignore[attr-defined]
    command.__annotations__ = {option.name: option.annotation for option in options}
    command.__doc__ = f"{operator.summary} See `descend explain {operator.name}`."
    return command


def _refuse_attributes(operator: Operator, sources: list[files.TensorFile]) -> None:
    """A ValueError that shows the option, where an attribute is given as a tensor is."""
    attributes = {attribute.python: attribute for attribute in operator.attributes}
    for source in sources:
        if attribute := attributes.get(source.name or ""):
            name = attribute.python.replace("_", "-")
            option = f"--{name} or --no-{name}" if attribute.kind == "bool" else f"--{name} {source.path}"
            raise ValueError(f"{attribute.python} of {operator.name} is no tensor: give {option}.")


def attribute_option(attribute: Parameter) -> inspect.Parameter:
    """The option of one attribute, with the functional API's default."""
    kind = _TYPES.get(attribute.kind, str)
    default: Any = inspect.Parameter.empty
    if attribute.default is not None:
        default = ast.literal_eval(attribute.default)
        if isinstance(default, (tuple, list)):
            default = ",".join(str(item) for item in default)
    example = _EXAMPLES.get(attribute.kind)
    help_ = f"{attribute.description} A list, as in {example}." if example else attribute.description
    annotation: Any = Annotated[kind | None if default is None else kind, typer.Option(help=help_)]
    return inspect.Parameter(attribute.python, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def attribute_value(attribute: Parameter, value: Any) -> Any:
    """The value for the API: a list as a tuple. Other values need no change."""
    if value is None or attribute.kind not in _EXAMPLES:
        return value
    words = [word.strip().lower() for word in value.strip("()[] ").split(",") if word.strip()]
    choices = {"true": True, "1": True, "false": False, "0": False}
    try:
        return tuple(choices[w] for w in words) if attribute.kind == "bool_array" else tuple(int(w) for w in words)
    except (KeyError, ValueError):
        option = "--" + attribute.python.replace("_", "-")
        raise ValueError(f"{option} takes a list such as {_EXAMPLES[attribute.kind]}, and got {value!r}.") from None


def _run(
    operator: Operator,
    sources: list[files.TensorFile],
    targets: list[files.TensorFile],
    product: str | None,
    golden: bool,
    prefix: str,
    repeat: int,
    attributes: dict[str, Any],
) -> None:
    if product is not None:
        operators.check_product(product)
    files.check_outputs(targets, operator.result_names)
    arguments: dict[str, Any] = {a.python: attribute_value(a, attributes[a.python]) for a in operator.attributes}
    names = [p.python for p in operator.inputs]
    optional = [p.python for p in operator.inputs if p.optional]
    if prefix and not prefix.endswith("."):
        prefix += "."
    arguments = files.read_arguments(sources, names, optional, prefix) | arguments

    outputs = operators.allocate(operator, arguments, product or "host")
    if golden:
        results = operators.golden(operator, arguments)
        files.write_results(targets, results)
        _table(results)
        return
    times: list[float] = []
    with output.progress() as bar, acl.product(product) if product else nullcontext():
        compute = operators.two_phase if product else operators.functional
        for _ in bar.track(range(repeat), description="computing"):
            start = time.perf_counter()
            results = compute(operator, arguments, outputs)
            times.append(time.perf_counter() - start)
    files.write_results(targets, results)
    _table(results)
    _speed(operator, arguments, results, product, statistics.median(times))


def _table(results: dict[str, Array]) -> None:
    table = output.table("result", "shape", "dtype", "min", "max", "mean", right=("min", "max", "mean"))
    for name, array in results.items():
        table.add_row(name, output.shape(array), str(array.dtype), *_range(array))
    output.show(output.console(), table)


def _speed(
    operator: Operator, arguments: dict[str, Any], results: dict[str, Array], product: str | None, seconds: float
) -> None:
    moved = operators.bytes_in_play(arguments, results)
    where = "host" if product is None else f"{product}, two phases"
    output.console().print(
        f"{operator.name} on {where}: {output.seconds(seconds)}, {output.size(moved)} moved, "
        f"{moved / seconds / 1e9:.3g} GB/s"
    )


def _range(array: Array) -> tuple[str, str, str]:
    if not array.size:
        return "", "", ""
    with np.errstate(all="ignore"):
        mean = array.mean(dtype=np.float64)
        return f"{float(array.min()):.6g}", f"{float(array.max()):.6g}", f"{float(mean):.6g}"


for _operator in OPERATORS.values():
    run.command(_operator.name, short_help=_operator.c_name)(_command(_operator))
