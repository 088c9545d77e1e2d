"""The engine's own tables against the contract's pages, and what is written from them: signatures and docstrings."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import itertools
import os
from pathlib import Path

import numpy as np
import pytest
from tools import generate

import descend
from cases import A2_TO_950, CODES, DTYPES, FLOATS, PRODUCTS, phase1
from descend import _native, acl, aclnn, errors
from descend.contract import OPERATORS
from descend.contract import PRODUCTS as PRODUCT_TABLE
from pages import HAVE_DOUBLE, PAGES, WITH_INFERENCE
from pages import parameters as parameters_of

# The page of products: name, in the documents, SoC.
PRODUCT_PAGE = {
    "atlas-a3": (("A3 训练系列产品", "A3 推理系列产品"), "Ascend910_9391"),
    "atlas-a2-training": (("Atlas A2 训练系列产品",), "Ascend910B1"),
    "atlas-a2-inference": (("Atlas 800I A2 推理产品",), "Ascend910B4"),
    "atlas-200i-500-a2": (("Atlas 200I/500 A2 推理产品",), "Ascend310B1"),
    "atlas-inference": (("Atlas 推理系列产品",), "Ascend310P3"),
    "atlas-training": (("Atlas 训练系列产品",), "Ascend910A"),
    "ascend-950": (("Ascend 950PR", "Ascend 950DT"), "Ascend950PR_9599"),
    "host": ((), "Descend"),
}

F32, F16, BF16 = "FLOAT", "FLOAT16", "BFLOAT16"
# Combinations in the order of the tensors, with the products that have them; the other operators' files have theirs.
GRAD_ROWS = {
    (F16, F16, F32, F32, F16, F32): A2_TO_950,
    (BF16, BF16, F32, F32, BF16, F32): A2_TO_950,
    (F16, F16, F32, F16, F16, F32): WITH_INFERENCE,
    (F32, F32, F32, F32, F32, F32): WITH_INFERENCE,
    (BF16, BF16, F32, BF16, BF16, F32): A2_TO_950,
}
ROWS = {
    "rms_norm_grad": GRAD_ROWS,
    "rms_norm": {(x, gamma, dx, rstd): p for (_, x, rstd, gamma, dx, _), p in GRAD_ROWS.items()},
}

every_operator = pytest.mark.parametrize("name", OPERATORS)
every_page = pytest.mark.parametrize("name", PAGES)


def test_products():
    assert tuple(PRODUCT_TABLE) == PRODUCTS
    for name, (documents, soc) in PRODUCT_PAGE.items():
        product = PRODUCT_TABLE[name]
        assert (product.name, product.soc) == (name, soc)
        for text in documents:
            assert text in product.documents


def test_every_operator_has_a_page():
    assert set(OPERATORS) == set(PAGES)


@every_page
def test_signatures_are_the_pages(name):
    page = PAGES[name]
    operator = OPERATORS[name]
    assert (operator.name, operator.c_name) == (name, page.c_name)
    wanted = [parameter[:4] for parameter in parameters_of(page.parameters)]
    assert [(p.name, p.kind, p.role, p.optional) for p in operator.parameters] == wanted
    assert operator.inputs == tuple(p for p in operator.parameters if p.role == "input")
    assert operator.attributes == tuple(p for p in operator.parameters if p.role == "attribute")
    assert operator.outputs == tuple(p for p in operator.parameters if p.role == "output")


@every_page
def test_functional_signatures_are_the_designs(name):
    found = inspect.signature(getattr(descend, name)).parameters.values()
    assert ", ".join(str(p) for p in found if p.kind is p.POSITIONAL_OR_KEYWORD) == PAGES[name].python
    assert {str(p) for p in found if p.kind is p.KEYWORD_ONLY} == PAGES[name].keywords | {"out=None"}


@every_page
def test_products_of_the_operators(name):
    assert sorted(OPERATORS[name].products) == sorted((*PAGES[name].products, "host"))


@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize("product", PRODUCTS)
def test_dtype_tables_are_the_pages(name, product):
    """Every combination that the table's rows allow on a product, expanded, is exactly the page's."""
    operator = OPERATORS[name]
    tensors = [p.python for p in operator.parameters if p.kind == "tensor"]
    table = set()
    for row in operator.dtypes:
        assert list(row.dtypes) == tensors
        assert set(row.products) <= set(operator.products)
        if product in row.products:
            table |= set(itertools.product(*(row.dtypes[t] for t in tensors)))
    if product != "host":
        assert table == {combination for combination, products in ROWS[name].items() if product in products}
    elif name == "rms_norm_grad":
        assert table == {c for c in itertools.product(FLOATS, repeat=6) if c[0] == c[1]}
    else:
        assert table == set(itertools.product(FLOATS, repeat=4))


@every_operator
def test_names_are_snake_case_of_the_documents(name):
    for parameter in OPERATORS[name].parameters:
        snake = "".join("_" + c.lower() if c.isupper() else c for c in parameter.name)
        # A Python method that takes arguments by name cannot take one that is named self.
        own = snake.removesuffix("_ref").removesuffix("_optional")
        names = (snake, own, f"{own}_out" if parameter.role == "output" else own)
        if snake == "self":
            names = ("x", "input")
        elif parameter.name in ("N", "C", "HxW"):
            names = (parameter.name.lower(),)
        assert parameter.python in names
        assert parameter.description.endswith(".")
        assert parameter.kind in ("tensor", "int_array", "bool_array", "int", "float", "bool", "str")
        assert parameter.role in ("input", "output", "attribute")
        assert bool(parameter.shape) == (parameter.kind == "tensor")


@every_operator
def test_tables_are_complete(name):
    operator = OPERATORS[name]
    for field in dataclasses.fields(operator):
        assert getattr(operator, field.name), field.name
    assert operator.c_name in operator.source
    assert {p for row in operator.dtypes for p in row.products} == set(operator.products)
    assert "host" in operator.products
    assert set(operator.products) <= set(PRODUCTS)
    for row in operator.dtypes:
        for dtypes in row.dtypes.values():
            assert dtypes
            assert set(dtypes) <= set(DTYPES)
            assert "host" in row.products or "DOUBLE" not in dtypes or name in HAVE_DOUBLE
            assert not {"atlas-inference", "atlas-training"} & set(row.products) or "BFLOAT16" not in dtypes
    statuses = [e.status for e in operator.errors]
    assert len(set(statuses)) == len(statuses)
    assert {161001, 161002} <= set(statuses)
    assert (561003 in statuses) == (len(operator.products) < len(PRODUCTS))
    for error in operator.errors:
        assert error.name == CODES[error.status]
        assert error.when


@every_operator
def test_docstrings_have_all_parts(name):
    """Formula, parameters with shapes, results, dtypes, errors, source: in the functional form and the first phase."""
    operator = OPERATORS[name]
    forms = {
        getattr(descend, name): [p for p in operator.parameters if p.role != "output"],
        getattr(aclnn, f"{name}_get_workspace_size"): list(operator.parameters),
    }
    for function, parameters in forms.items():
        doc = inspect.getdoc(function)
        assert doc
        flat = " ".join(doc.split())
        assert doc.startswith(operator.summary)
        assert operator.summary.endswith(".")
        assert "\n" not in operator.summary
        for line in operator.formula.splitlines():
            assert line in doc
        for part in ("Formula:", "Parameters:", "Returns:", "Dtypes:", "Errors:", "Source:"):
            assert f"\n{part}" in doc, part
        for p in parameters:
            assert f"\n    {p.python}: " in doc
            assert " ".join(p.description.split()) in flat
            assert p.shape in flat
        for error in operator.errors:
            assert f"{error.status} {error.name}" in flat
            assert " ".join(error.when.split()) in flat
        assert operator.c_name in doc
        assert max(len(line) for line in doc.splitlines()) <= 120
    results = inspect.getdoc(getattr(descend, name))
    assert results
    for p in operator.outputs:
        assert p.python.removesuffix("_out") in results.split("Returns:")[1]
    launch = inspect.getdoc(getattr(aclnn, name))
    assert launch
    for word in ("workspace", "executor", "stream", "synchronize", operator.c_name):
        assert word in launch


@every_operator
def test_python_signatures(name):
    operator = OPERATORS[name]
    first = inspect.signature(getattr(aclnn, f"{name}_get_workspace_size"))
    assert list(first.parameters) == [p.python for p in operator.parameters]
    assert list(inspect.signature(getattr(aclnn, name)).parameters) == [
        "workspace",
        "workspace_size",
        "executor",
        "stream",
    ]
    functional = inspect.signature(getattr(descend, name)).parameters
    assert functional["out"].kind is inspect.Parameter.KEYWORD_ONLY
    assert functional["out"].default is None
    for p in operator.parameters:
        if p.role != "output":
            assert (functional[p.python].default is inspect.Parameter.empty) == (p.default is None)
            if p.default is not None:
                assert repr(functional[p.python].default) == repr(eval(p.default))


@every_operator
def test_functions_look_like_functions(name):
    for module, attribute in ((descend, name), (aclnn, name), (aclnn, f"{name}_get_workspace_size")):
        function = getattr(module, attribute)
        assert function.__name__ == function.__qualname__ == attribute
        assert function.__module__ == module.__name__
        assert attribute in module.__all__
        assert attribute in dir(module)


def test_everything_public_has_a_docstring():
    for module in (descend, acl, aclnn, errors):
        assert module.__doc__
        for name in getattr(module, "__all__", []):
            thing = getattr(module, name)
            assert isinstance(thing, str) or inspect.getdoc(thing), f"{module.__name__}.{name}"
            if inspect.isclass(thing):
                for member, value in vars(thing).items():
                    if not member.startswith("_") and callable(value):
                        assert inspect.getdoc(value), f"{name}.{member}"


def test_the_table_is_what_the_engine_checks():
    """A row of the table is accepted on its products and refused on others: table and phase 1 agree."""
    operator = OPERATORS["rms_norm_grad"]
    shapes = ((2, 16), (2, 16), (2,), (16,), (2, 16), (16,))
    accepted: dict[str, set[tuple[str, ...]]] = {}
    for product in operator.products:
        accepted[product] = set()
        with acl.product(product):
            for dtypes in itertools.product(FLOATS, repeat=6):
                try:
                    phase1("rms_norm_grad", *(np.zeros(s, DTYPES[d]) for s, d in zip(shapes, dtypes, strict=True)))
                except ValueError:
                    continue
                accepted[product].add(dtypes)
    for product, found in accepted.items():
        rows = [row for row in operator.dtypes if product in row.products]
        assert found == {c for row in rows for c in itertools.product(*row.dtypes.values())}


def test_the_stubs_are_those_of_the_tables():
    package = Path(descend.__file__).parent
    for path, text in generate.stubs().items():
        assert (package / Path(path).name).read_text(encoding="utf-8") == text, "run python -m tools.generate"


def test_the_c_files_are_those_of_the_tables():
    """But for their layout, which is clang-format's; and there are no others."""
    files = generate.c_files()
    for path, text in files.items():
        assert "".join((generate.ROOT / path).read_text(encoding="utf-8").split()) == "".join(text.split()), path
    found = {*generate.ROOT.glob("include/aclnnop/**/*.h"), *generate.ROOT.glob("native/capi/aclnn_*.cpp")}
    assert {str(path.relative_to(generate.ROOT)) for path in found} == set(files)


def test_the_stubs_take_what_the_functions_take(tmp_path):
    api = pytest.importorskip("mypy.api")
    (tmp_path / "calls.py").write_text("""
import numpy as np
import descend
from descend import aclnn

x, weight, sizes = np.ones((4, 8), np.float32), np.ones(8, np.float32), np.array([8])
y, mean, rstd = descend.layer_norm(x, sizes, weight)
descend.layer_norm(x, 8)
descend.layer_norm_backward(y, x, (8,), mean, rstd, output_mask=np.array([True, False, True]))
descend.nsa_compress(np.ones((32, 1, 16)), np.ones((16, 1)), sizes * 4, compress_block_size=16, compress_stride=16)
aclnn.layer_norm_get_workspace_size(x, sizes, weight, None, 1e-5, y, mean, rstd)
descend.layer_norm(x, "8")
""")
    (tmp_path / "descend").symlink_to(Path(descend.__file__).parent)
    options = ("--strict", "--follow-imports=silent", f"--cache-dir={tmp_path}/cache", f"--config-file={os.devnull}")
    found = api.run([*options, str(tmp_path / "calls.py")])[0]
    assert [line.split(":")[1] for line in found.splitlines() if ": error:" in line] == ["12"], found


@pytest.mark.parametrize("module", [descend, aclnn], ids=["descend", "descend.aclnn"])
def test_what_the_stubs_offer_is_there(module):
    path = Path(descend.__file__).parent / ("aclnn.pyi" if module is aclnn else "__init__.pyi")
    names = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            names.add(node.name)
        elif isinstance(node, ast.ImportFrom):
            names |= {part.asname for part in node.names if part.asname}
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names |= {ast.unparse(target) for target in targets}
    assert {name for name in names if name == "__version__" or not name.startswith("_")} == set(module.__all__)


def test_the_native_module_has_the_stubs_that_it_says():
    tree = ast.parse((Path(descend.__file__).parent / "_native.pyi").read_text(encoding="utf-8"))
    described = {
        node.name: {part.name for part in node.body if isinstance(part, ast.FunctionDef)}
        if isinstance(node, ast.ClassDef)
        else None
        for node in tree.body
        if isinstance(node, (ast.FunctionDef, ast.ClassDef))
    }
    module = {name: getattr(_native, name) for name in dir(_native) if not name.startswith("_")}
    assert set(described) == set(module)
    for name, members in described.items():
        if members is not None:
            own = {part for part in vars(module[name]) if not part.startswith("_")}
            assert {part for part in members if not part.startswith("_")} == own, name
