"""The stubs that type checkers and editors read for the functions made at import; tools/generate.py writes them."""

from __future__ import annotations

import textwrap

from descend._generate import KINDS, functional, get_workspace_size, launch
from descend._generate import signature as signature_of
from descend.contract import Operator

_HEADER = """# Written by `python -m tools.generate` from the engine's tables; do not edit.
from collections.abc import Sequence
from types import EllipsisType
from typing import Any, Protocol, TypeVar
"""

_TYPES = '''
class _SupportsDlpack(Protocol):
    """An array that DLPack can exchange: NumPy, PyTorch, JAX, ..."""

    def __dlpack__(self, *args: Any, **kwargs: Any) -> Any: ...

_Array = TypeVar("_Array", bound=_SupportsDlpack)
'''

# Beside the arrays that give results their library, lists may be arrays of another.
_KINDS = {kind: name.replace("Array", "_SupportsDlpack") for kind, name in KINDS.items()}

_LAUNCH = """workspace: Buffer | Any | None,
    workspace_size: int,
    executor: Executor,
    stream: Stream | Any | None"""


def _stub(name: str, signature: str, returns: str, doc: str | None) -> str:
    head = f"def {name}(\n    {signature},\n) -> {returns}:"
    lines = [line.rstrip() for line in textwrap.indent(f'"""{doc}\n"""', "    ").split("\n")]
    return f"{head}\n" + "\n".join(lines) + "\n"


def _many(types: list[str]) -> str:
    return f"tuple[{', '.join(types)}]" if len(types) > 1 else types[0]


def functional_stubs(operators: dict[str, Operator]) -> str:
    """The text of ``__init__.pyi``."""
    texts = [
        _HEADER + "\nfrom descend._native import empty_cache as empty_cache\n"
        "from descend._native import get_num_threads as get_num_threads\n"
        "from descend._native import set_num_threads as set_num_threads\n" + _TYPES + "\n__version__: str\n"
    ]
    separator = ",\n    "
    for operator in operators.values():
        parameters = operator.functional_parameters
        star = "" if any(p.keyword_only for p in parameters) else f"*{separator}"
        one = "_Array | EllipsisType | None" if any(p.optional for p in operator.outputs) else "_Array | None"
        out = f"Sequence[{one}] | None" if len(operator.outputs) > 1 else "_Array | None"
        given = signature_of(parameters, {**_KINDS, "tensor": "_Array"}, separator=separator)
        signature = f"{given}{separator}{star}out: {out} = None"
        returns = _many(["_Array"] * len(operator.outputs))
        texts.append(_stub(operator.name, signature, returns, functional(operator).__doc__))
    return "\n".join(texts)


def two_phase_stubs(operators: dict[str, Operator]) -> str:
    """The text of ``aclnn.pyi``."""
    texts = [
        _HEADER.replace("Any, Protocol, TypeVar", "Any") + "\nfrom descend import _SupportsDlpack\n"
        "from descend._native import Buffer, Stream\n"
        "from descend._native import Executor as Executor\n"
        "from descend.errors import AclnnError as AclnnError\n"
        "from descend.portability import TensorSpec as TensorSpec\n"
        "from descend.portability import Verdict as Verdict\n"
        "from descend.portability import portability as portability\n"
    ]
    for operator in operators.values():
        signature = ",\n    ".join(
            f"{p.python}: {_KINDS[p.kind]}" + (" | None" if p.optional else "") for p in operator.parameters
        )
        first = get_workspace_size(operator)
        texts.append(_stub(first.__name__, signature, "tuple[int, Executor]", first.__doc__))
        texts.append(_stub(operator.name, _LAUNCH, "None", launch(operator).__doc__))
    return "\n".join(texts)
