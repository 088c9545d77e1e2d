"""Files depend on each other in one direction only: by import in Python, by include and definition in C++."""

from __future__ import annotations

import ast
import re
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def modules(folder: Path) -> dict[str, Path]:
    """The package's modules by name."""
    names = {}
    for file in folder.rglob("*.py"):
        parts = (folder.name, *file.relative_to(folder).with_suffix("").parts)
        names[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = file
    return names


def imports(file: Path, known: dict[str, Path]) -> set[str]:
    """The package's modules that one imports, wherever in it; ``from package import name`` may name one."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            inner = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= inner & known.keys() or {node.module}
    return found & known.keys()


def circle(graph: dict[str, set[str]]) -> str:
    """One circle of a graph as a line of text; empty if there is none."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return " -> ".join(reversed(error.args[1]))
    return ""


@pytest.mark.parametrize("package", ["src/descend", "benchmarks"])
def test_imports_go_in_circles_nowhere(package):
    known = modules(ROOT / package)
    extension = {"descend"}  # ``from descend import _native``: compiled, so not among the modules here
    graph = {name: imports(file, known) - {name} - extension for name, file in known.items()}
    assert len(graph) > 30
    assert circle(graph) == "", "these modules import each other"


def test_folders_of_composed_operators_depend_on_each_other_in_one_direction():
    package = "descend.npu.composed"
    known = modules(ROOT / "src/descend")
    folders: dict[str, set[str]] = {}
    for name, file in known.items():
        folder, _, module = name.removeprefix(f"{package}.").partition(".")
        if name.startswith(f"{package}.") and module:
            found = imports(file, known)
            folders.setdefault(folder, set()).update(
                other.removeprefix(f"{package}.").partition(".")[0] for other in found if other.count(".") == 4
            )
            # Whoever reads what there is does not import what computes it.
            assert module != "table" or found == {f"{package}.row"}, name
    graph = {folder: others - {folder} for folder, others in folders.items()}
    assert "quantised" in graph["products"]
    assert circle(graph) == "", "these folders import each other"


# C++. A header and the .cpp file of the same name are one unit: ``capi/stream`` is stream.h and stream.cpp. A unit
# depends on the units that it includes. A header also depends on the unit whose .cpp defines what the header declares:
# whoever calls the function ends up there. A .cpp file without a header of its own may define what one header declares.
# It then belongs to that header's unit.
INCLUDE = re.compile(r'^#include "([^"]+)"', re.MULTILINE)
# At namespace scope nothing is indented, so a line that begins with a type and has a name before "(" or "{" or ";" is a
# declaration or a definition there.
FUNCTION = re.compile(
    r"^(?!using|return|namespace|#|//|template|typedef)[\w:<>,&*\[\] ]*?[ &*]((?:\w+::)*~?\w+)\(", re.MULTILINE
)
VARIABLE = re.compile(r"^extern const \w+ (\w+)[{;]", re.MULTILINE)
CLASS = re.compile(r"^(?:class|struct) (\w+)[^;]*?\{", re.MULTILINE)


def statement(text: str, start: int) -> str:
    """What a function's name begins, up to the ``;`` of a declaration or the ``{`` of a definition."""
    depth = 0
    for i in range(start, len(text)):
        if text[i] in "([":
            depth += 1
        elif text[i] in ")]":
            depth -= 1
        elif depth == 0 and text[i] in ";{":
            return text[start : i + 1]
    return ""


def shared_part(text: str) -> str:
    """A file without what no other can call: anonymous namespaces, and a kernel's code for each instruction set."""
    for name in ("", "HWY_NAMESPACE"):
        begin, end = (
            (f"namespace {name} {{", f"}}  // namespace {name}") if name else ("namespace {", "}  // namespace")
        )
        text = re.sub(f"^{re.escape(begin)}$.*?^{re.escape(end)}$", "", text, flags=re.MULTILINE | re.DOTALL)
    return text


def declared(header: str) -> set[str]:
    """Functions and variables that a header declares and does not define, and its classes."""
    header = shared_part(header)
    functions = {m[1] for m in FUNCTION.finditer(header) if statement(header, m.end() - 1).endswith(";")}
    return functions | set(VARIABLE.findall(header)) | set(CLASS.findall(header))


def defined(source: str) -> set[str]:
    """Functions and variables that a .cpp file defines for others; of a class's functions the class."""
    source = shared_part(source)
    functions = {m[1] for m in FUNCTION.finditer(source) if statement(source, m.end() - 1).endswith("{")}
    variables = {m[1] for m in VARIABLE.finditer(source) if m[0].endswith("{")}
    return {name.split("::")[-2] if "::" in name else name for name in functions} | variables


def may_define(header: str, source: str) -> bool:
    """Whether a .cpp file may define what a header declares: in one folder. Kernels, which are compiled once for each
    instruction set, have functions of the same names in all their files, and so are judged by their includes alone."""
    folder = Path(header).parent
    return folder == Path(source).parent and folder.name != "kernels"


def native_graph(files: dict[str, str]) -> dict[str, set[str]]:
    """Units and what they depend on, from the text of each file by its path below native/."""
    unit = {path: path.rsplit(".", 1)[0].removesuffix("-inl") for path in files}
    headers = {path for path in files if path.endswith(".h")}
    includes = {path: {name for name in INCLUDE.findall(text) if name in files} for path, text in files.items()}
    offers = {path: declared(files[path]) for path in headers}
    implements = {
        path: {
            header for header in includes[path] & headers if may_define(header, path) and offers[header] & defined(text)
        }
        for path, text in files.items()
        if path.endswith(".cpp")
    }
    for path, of in implements.items():
        if f"{unit[path]}.h" not in headers and len(of) == 1:
            unit[path] = unit[next(iter(of))]
    graph: dict[str, set[str]] = {name: set() for name in unit.values()}
    for path, names in includes.items():
        graph[unit[path]] |= {unit[name] for name in names}
    for path, of in implements.items():
        for header in of:
            graph[unit[header]].add(unit[path])
    return {name: others - {name} for name, others in graph.items()}


# The folders of native/: each may include files of those named here, and of those that they may include.
FAMILIES = [f"kernels/{name}" for name in ("elements", "groups", "limits", "nsa", "rotary", "scores")]
FOLDERS = {
    "runtime": [],
    "kernels/simd": ["runtime"],
    "kernels/schedule": ["kernels/simd"],
    "kernels/rows": ["kernels/schedule"],
    **{family: ["kernels/rows"] for family in FAMILIES},
    "kernels": FAMILIES,  # an operator's file
    "tensor": ["kernels"],
    "operators": ["tensor"],
    "capi": ["operators"],
    "bindings": ["operators"],
    "torch": ["bindings"],
    "npu": ["torch"],
}


def test_native_folders_include_only_folders_below_them():
    root = ROOT / "native"
    below: dict[str, set[str]] = {}
    for folder, named in FOLDERS.items():
        below[folder] = {folder}.union(*(below[name] for name in named))
    wrong = [
        f"{path.relative_to(root)} includes {name}"
        for folder, allowed in below.items()
        for path in (root / folder).glob("*.*")
        for name in INCLUDE.findall(path.read_text(encoding="utf-8"))
        if (root / name).exists() and str(Path(name).parent) not in allowed
    ]
    assert not wrong
    written = {str(path.parent.relative_to(root)) for path in root.rglob("*.h")}
    assert written <= set(FOLDERS)


def test_native_files_depend_on_each_other_in_circles_nowhere():
    root = ROOT / "native"
    files = {
        str(path.relative_to(root)): path.read_text(encoding="utf-8")
        for path in root.rglob("*.*")
        if path.suffix in {".h", ".cpp"}
    }
    graph = native_graph(files)
    assert len(graph) > 100
    assert "runtime/status" in graph["capi/boundary"]
    assert circle(graph) == "", "these files of native/ depend on each other"


@pytest.mark.parametrize(
    "files",
    [
        {"a.h": '#include "b.h"\n', "b.h": '#include "a.h"\n'},
        {"a.h": "void f();\n", "a.cpp": '#include "a.h"\n#include "b.h"\nvoid f() {}\n', "b.h": '#include "a.h"\n'},
        {  # b.cpp defines what a.h declares, and b's own header is built on a
            "a.h": "int f(int x,\n      int y);\n",
            "b.h": '#include "a.h"\nint g();\n',
            "b.cpp": '#include "b.h"\n#include "a.h"\nint f(int x,\n      int y) {\n}\nint g() {\n}\n',
        },
        {  # two headers implemented by one file, which includes both
            "a.h": "struct A {\n  void f();\n};\n",
            "b.h": '#include "a.h"\nextern const A b;\n',
            "c.cpp": '#include "a.h"\n#include "b.h"\nvoid A::f() {\n}\nextern const A b{\n};\n',
        },
    ],
)
def test_a_circle_of_native_files_is_found(files):
    assert circle(native_graph(files)) != ""


def test_what_a_file_alone_sees_makes_no_circle():
    files = {
        "a.h": "int f();\n",
        "a.cpp": '#include "a.h"\nint f() {\n}\n',
        "b.cpp": '#include "a.h"\nnamespace {\nint f() {\n}\n}  // namespace\n',
        "c.h": '#include "a.h"\nint g();\n',
        "more_of_c.cpp": '#include "c.h"\nint g() {\n}\n',  # belongs to c
    }
    graph = native_graph(files)
    assert graph == {"a": set(), "b": {"a"}, "c": {"a"}}
