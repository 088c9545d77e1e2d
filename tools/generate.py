"""Writes what follows from the operators' tables: the C headers and functions, and the type stubs.

``python -m tools.generate`` rewrites them in this repository. The engine must be built with the operator before
(``./dev run``), and once more after it for the C functions.
"""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

from descend import _native, _npu_aclnn
from descend._stubs import functional_stubs, two_phase_stubs
from descend.contract import OPERATORS

OWN_HEADERS = {
    "aclnnApplyAdamW": "apply_adam_w",
    "aclnnGelu": "gelu",
    "aclnnGeluBackward": "gelu_backward",
    "aclnnInplaceAddRmsNorm": "inplace_add_rms_norm",
    "aclnnLogSoftmax": "logsoftmax",
    "aclnnLogSoftmaxBackward": "logsoftmax_backward",
}
"""Functions that programs include from a header of another name than the operator's."""
ROOT = Path(__file__).resolve().parent.parent
MADE = "Written by `python -m tools.generate` from the operator's table; do not edit."

_HEADER = """/* {title}

   {made} */
#ifndef {guard}
#define {guard}

#include "../aclnn/aclnn_base.h"

#ifdef __cplusplus
extern "C" {{
#endif

{declarations}#ifdef __cplusplus
}}
#endif

#endif /* {guard} */
"""

_OTHER = """/* {who} include the header by this path. */
#ifndef {guard}
#define {guard}

#include "{name}"

#endif /* {guard} */
"""

_SOURCE = """// {made}
#include "aclnnop/aclnn_{name}.h"

#include "capi/operator_call.h"
#include "operators/registry.h"
{definitions}"""

_COMPOSED = """// {made}
// The functions of src/descend/_npu_aclnn.py.
{includes}
#include "capi/composed.h"
{definitions}"""

_FIRST = "aclnnStatus {name}GetWorkspaceSize({parameters}, uint64_t* workspaceSize, aclOpExecutor** executor)"
_SECOND = "aclnnStatus {name}(void* workspace, uint64_t workspaceSize, aclOpExecutor* executor, aclrtStream stream)"


def _declarations(function: dict[str, Any]) -> tuple[str, str]:
    """The two phases of a C function."""
    parameters = ", ".join(f"{kind} {name}" for kind, name in function["parameters"])
    return _FIRST.format(name=function["name"], parameters=parameters), _SECOND.format(name=function["name"])


def _definitions(function: dict[str, Any], plan: str = "get_workspace_size", launch: str = "launch") -> str:
    """Both phases, each a call of a function of descend::capi."""
    first, second = _declarations(function)
    op, given = function["object"], ", ".join(name for _, name in function["parameters"])
    return (
        f"\n{first} {{\n  return descend::capi::{plan}({op}, workspaceSize, executor, {given});\n}}\n"
        f"\n{second} {{\n  return descend::capi::{launch}({op}, workspace, workspaceSize, executor, stream);\n}}\n"
    )


def _header(name: str, title: str, declarations: str) -> dict[str, str]:
    guard = f"DESCEND_ACLNNOP_ACLNN_{name.upper()}_H_"
    text = _HEADER.format(title=title, made=MADE, guard=guard, declarations=declarations)
    return {f"include/aclnnop/aclnn_{name}.h": text}


def _old_header(name: str) -> dict[str, str]:
    guard = f"DESCEND_ACLNNOP_LEVEL2_ACLNN_{name.upper()}_H_"
    text = _OTHER.format(who="Programs for CANN 7 and 8", guard=guard, name=f"../aclnn_{name}.h")
    return {f"include/aclnnop/level2/aclnn_{name}.h": text}


def _composed_files() -> dict[str, str]:
    """The C headers and functions of those that are composed of PyTorch's operators."""
    headers: dict[str, list[dict[str, Any]]] = {}
    for function in _npu_aclnn.FUNCTIONS.values():
        parameters = [(_npu_aclnn.C_TYPES[p.kind], p.name) for p in function.parameters]
        described = {"name": function.name, "object": f'"{function.name}"', "parameters": parameters}
        headers.setdefault(function.header, []).append(described)
    files: dict[str, str] = {}
    for name, functions in headers.items():
        title = "PyTorch computes these functions, under torch_npu. See docs/npu-operators.md."
        declarations = "".join(f"ACL_FUNC_VISIBILITY {d};\n\n" for f in functions for d in _declarations(f))
        files |= _header(name, title, declarations) | _old_header(name)
    includes = "".join(f'#include "aclnnop/aclnn_{name}.h"\n' for name in sorted(headers))
    definitions = "".join(
        _definitions(f, "plan_composed", "launch_composed") for functions in headers.values() for f in functions
    )
    files["native/capi/aclnn_composed.cpp"] = _COMPOSED.format(made=MADE, includes=includes, definitions=definitions)
    return files


def _wrapped(comment: str) -> str:
    return textwrap.fill(comment, 114, subsequent_indent="   ")


def c_files() -> dict[str, str]:
    """The C headers and functions by their paths, before clang-format."""
    files: dict[str, str] = {}
    for entry in _native.c_interface():
        name, functions = entry["name"], entry["functions"]
        title = _wrapped(f"{functions[0]['summary']} See docs/operators/{name}.md.")
        declarations = ""
        for i, function in enumerate(functions):
            declarations += f"/* {_wrapped(function['summary'])} */\n" if i > 0 else ""
            declarations += "".join(f"ACL_FUNC_VISIBILITY {d};\n\n" for d in _declarations(function))
        files |= _header(name, title, declarations)
        names = [name]
        for function in functions:
            if other := OWN_HEADERS.get(function["name"]):
                names.append(other)
                files[f"include/aclnnop/aclnn_{other}.h"] = _OTHER.format(
                    who=f"Programs that call {function['name']}",
                    guard=f"DESCEND_ACLNNOP_ACLNN_{other.upper()}_H_",
                    name=f"aclnn_{name}.h",
                )
        for one in names:
            files |= _old_header(one)
        definitions = "".join(map(_definitions, functions))
        files[f"native/capi/aclnn_{name}.cpp"] = _SOURCE.format(made=MADE, name=name, definitions=definitions)
    return files | _composed_files()


def stubs() -> dict[str, str]:
    """The type stubs by their paths."""
    return {
        "src/descend/__init__.pyi": functional_stubs(OPERATORS),
        "src/descend/aclnn.pyi": two_phase_stubs(OPERATORS),
    }


def main() -> None:
    """Writes all of it into the repository."""
    c = c_files()
    for path, text in {**c, **stubs()}.items():
        (ROOT / path).write_text(text, encoding="utf-8")
    formatter = Path(sys.executable).with_name("clang-format")
    if formatter.exists():
        subprocess.run([formatter, "-i", *(ROOT / path for path in c)], check=True)
    else:
        print("clang-format is missing: ./dev format will settle the format of the C files.")


if __name__ == "__main__":
    main()
