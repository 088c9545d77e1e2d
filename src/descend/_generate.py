"""Makes the operators' Python functions from the engine's tables, so that each contract exists once.

The functions are compiled from source text, as ``dataclasses`` and ``namedtuple`` do: a call then costs what a function
written by hand costs, and ``help()``, ``inspect.signature`` and tracebacks see ordinary functions.
"""

from __future__ import annotations

import functools
import textwrap
from collections.abc import Callable, Mapping
from typing import Any

from descend import _cuda, _native
from descend._device_call import Executor
from descend.contract import Operator, Parameter
from descend.errors import AclnnValueError

KINDS = {
    "tensor": "Array",
    "int_array": "int | Sequence[int] | Array",
    "bool_array": "Sequence[bool] | Array",
    "int": "int",
    "float": "float",
    "bool": "bool",
    "str": "str",
}


def signature(
    parameters: tuple[Parameter, ...], types: Mapping[str, str] | None = None, *, separator: str = ", "
) -> str:
    """Names and defaults; with ``types``, which have one for each kind, these too."""
    parts: list[str] = []
    for parameter in parameters:
        if parameter.keyword_only and "*" not in parts:
            parts.append("*")
        text = parameter.python
        if types:
            text += f": {types[parameter.kind]}" + (" | None" if parameter.optional else "")
        if parameter.default is not None:
            text += f" = {parameter.default}" if types else f"={parameter.default}"
        parts.append(text)
    return separator.join(parts)


def _parameter_lines(parameters: tuple[Parameter, ...]) -> list[str]:
    lines = []
    for p in parameters:
        facts = ", ".join(
            filter(None, [KINDS[p.kind] + (" or None" if p.optional else ""), p.shape and f"shape {p.shape}"])
        )
        lines.append(f"    {p.python}: {p.description} ({facts})")
    return lines


def _wrap(text: str, indent: str = "") -> str:
    deeper = indent + ("    " if indent else "")
    return textwrap.fill(text, 110, initial_indent=indent, subsequent_indent=deeper, break_on_hyphens=False)


def _docstring(operator: Operator, parameters: tuple[Parameter, ...], results: list[str]) -> str:
    dtypes = [
        ", ".join(f"{name} {'/'.join(row.dtypes[name])}" for name in row.dtypes) + f" ({', '.join(row.products)})"
        for row in operator.dtypes
    ]
    sections = [
        operator.summary,
        "Formula:\n" + textwrap.indent(operator.formula, "    "),
        "Parameters:\n" + "\n".join(_wrap(line.strip(), "    ") for line in _parameter_lines(parameters)),
        "\n".join(results),
        _wrap(operator.notes),
        "Dtypes:\n" + "\n".join(_wrap(line, "    ") for line in dtypes),
        "Errors:\n" + "\n".join(_wrap(f"{e.status} {e.name}: {e.when}.", "    ") for e in operator.errors),
        f"Source: the documentation of {operator.source} in CANN's aclnn library.",
    ]
    return "\n\n".join(filter(None, sections))


def _functional_docstring(operator: Operator) -> str:
    results = ["Returns:"]
    results += [
        _wrap(f"{name}: {p.description} (shape {p.shape})", "    ")
        for name, p in zip(operator.result_names, operator.outputs, strict=True)
    ]
    out = (
        "a tuple of arrays to write to, None for one to allocate"
        if len(operator.outputs) > 1
        else "the array to write to"
    )
    if any(p.optional for p in operator.outputs[1:]):
        out += ", ... for one to leave out that may be null"
    results += [
        _wrap(f"Arrays of the first argument's library; with `out`, {out}.", "    "),
        "",
        "Works as the product `host`: no restriction but mathematics. Raises AclnnError (a ValueError for wrong",
        "values, a MemoryError where there is no memory), TypeError for wrong types.",
    ]
    return _docstring(operator, operator.functional_parameters, results)


def _compile(name: str, source: str, namespace: dict[str, Any], module: str, doc: str) -> Callable[..., Any]:
    exec(compile(source, f"<descend {module}.{name}>", "exec"), namespace)
    function: Callable[..., Any] = namespace[name]
    function.__module__ = module
    function.__doc__ = doc
    return function


_ON_DEVICE = {"_Refused": AclnnValueError, "_concerns": _cuda.concerns}


def _or_on_device(arguments: str, tensors: str, on_device: str) -> str:
    """A body that calls the engine, and where that refuses CUDA tensors, what there is for them.

    The engine refuses what lies on a device, and only then is it asked whether that is a GPU: all else costs nothing.
    """
    return (
        "    try:\n"
        f"        return _call({arguments})\n"
        "    except _Refused:\n"
        f"        if not _concerns({tensors}):\n"
        "            raise\n"
        f"    return {on_device}\n"
    )


def functional(operator: Operator) -> Callable[..., Any]:
    """``descend.<name>``: arrays in, results out."""
    parameters = operator.functional_parameters
    star = "" if any(p.keyword_only for p in parameters) else "*, "
    ordered = ", ".join(p.python for p in operator.parameters if p.role != "output")
    head = f"def {operator.name}({signature(parameters)}, {star}out=None):"
    tensors = ", ".join(p.python for p in operator.inputs)
    by_name = ", ".join(f"{p.python}={p.python}" for p in parameters)
    source = f"{head}\n" + _or_on_device(f"{ordered}, out", f"{tensors}, out", f"_run(out=out, {by_name})")
    namespace = {
        **_ON_DEVICE,
        "_call": _native.function(operator.name),
        "_run": functools.partial(_cuda.run, operator.name),
    }
    return _compile(operator.name, source, namespace, "descend", _functional_docstring(operator))


def get_workspace_size(operator: Operator) -> Callable[..., Any]:
    """``descend.aclnn.<name>_get_workspace_size``: the first phase."""
    name = f"{operator.name}_get_workspace_size"
    names = ", ".join(p.python for p in operator.parameters)
    doc = _docstring(
        operator,
        operator.parameters,
        ["Returns:", "    (workspace_size, executor): bytes of scratch for the second phase, and what it runs."],
    )
    by_name = ", ".join(f"{p.python}={p.python}" for p in operator.parameters)
    tensors = ", ".join(p.python for p in operator.parameters if p.kind == "tensor")
    body = _or_on_device(names, tensors, f"_prepare({by_name})")
    namespace = {
        **_ON_DEVICE,
        "_call": _native.phase1(operator.name),
        "_prepare": functools.partial(_cuda.prepare, operator.name),
    }
    return _compile(name, f"def {name}({names}):\n{body}", namespace, "descend.aclnn", doc)


def launch(operator: Operator) -> Callable[..., Any]:
    """``descend.aclnn.<name>``: the second phase."""
    arguments = "workspace, workspace_size, executor, stream"
    source = (
        f"def {operator.name}({arguments}):\n"
        "    if isinstance(executor, _Prepared):\n"
        f"        return executor.launch({operator.name!r}, workspace, workspace_size, stream)\n"
        f"    return _call({arguments})\n"
    )
    doc = (
        f"Second phase of {operator.c_name}: puts the executor's plan on a stream.\n\n"
        "Parameters:\n"
        "    workspace: None where workspace_size is 0, an acl.Buffer, or another writable buffer; of a call on CUDA\n"
        "        tensors a contiguous tensor on their device, or an address there as an int.\n"
        "    workspace_size: its bytes, at least what the first phase asked for.\n"
        "    executor: from the first phase; it serves once, unless executor.set_repeatable() was called.\n"
        "    stream: an acl.Stream, or None for the default stream; of a call on CUDA tensors a torch.cuda.Stream, or\n"
        "        None for the current one.\n\n"
        "The results are there once stream.synchronize() has returned; until then the arrays and the workspace\n"
        "are kept alive (but PyTorch's resize_() frees what a tensor had). Raises AclnnError: 161001 (null), 161002\n"
        "(workspace too small or elsewhere, spent or foreign executor, a PyTorch tensor that was given other memory\n"
        "after the first phase), 361001 (runtime)."
    )
    namespace = {"_call": _native.phase2(operator.name), "_Prepared": Executor}
    return _compile(operator.name, source, namespace, "descend.aclnn", doc)
