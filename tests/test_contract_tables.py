"""The engine's own tables against the contract's pages, and what is written from them: signatures and docstrings."""

from __future__ import annotations

import dataclasses
import inspect
import itertools

import numpy as np
import pytest

import descend
from cases import A2_A3, CODES, DTYPES, FLOATS, PRODUCTS, phase1
from descend import acl, aclnn, errors
from descend.contract import OPERATORS
from descend.contract import PRODUCTS as PRODUCT_TABLE

# The page of products: name, in the documents, SoC.
PRODUCT_PAGE = {
    "atlas-a3": (("A3 训练系列产品", "A3 推理系列产品"), "Ascend910_9391"),
    "atlas-a2-training": (("Atlas A2 训练系列产品",), "Ascend910B1"),
    "atlas-a2-inference": (("Atlas 800I A2 推理产品",), "Ascend910B4"),
    "atlas-200i-500-a2": (("Atlas 200I/500 A2 推理产品",), "Ascend310B1"),
    "atlas-inference": (("Atlas 推理系列产品",), "Ascend310P3"),
    "atlas-training": (("Atlas 训练系列产品",), "Ascend910A"),
    "host": ((), "Descend"),
}

WITH_INFERENCE = (*A2_A3, "atlas-inference")

# The pages of the operators: name, products besides host, signature (documents' name, kind, role, optional).
T, I, O = "tensor", "input", "output"  # noqa: E741
PAGES = {
    "rms_norm_grad": (
        "aclnnRmsNormGrad",
        WITH_INFERENCE,
        [("dy", T, I), ("x", T, I), ("rstd", T, I), ("gamma", T, I), ("dxOut", T, O), ("dgammaOut", T, O)],
    ),
    "rms_norm": (
        "aclnnRmsNorm",
        WITH_INFERENCE,
        [("x", T, I), ("gamma", T, I), ("epsilon", "float", "attribute"), ("yOut", T, O), ("rstdOut", T, O)],
    ),
}
# The functional forms of the design.
SIGNATURES = {
    "rms_norm_grad": "(dy, x, rstd, gamma, *, out=None)",
    "rms_norm": "(x, gamma, epsilon=1e-06, *, out=None)",
}
F32, F16, BF16 = "FLOAT", "FLOAT16", "BFLOAT16"
# Combinations in the order of the tensors, with the products that have them.
GRAD_ROWS = {
    (F16, F16, F32, F32, F16, F32): A2_A3,
    (BF16, BF16, F32, F32, BF16, F32): A2_A3,
    (F16, F16, F32, F16, F16, F32): WITH_INFERENCE,
    (F32, F32, F32, F32, F32, F32): WITH_INFERENCE,
    (BF16, BF16, F32, BF16, BF16, F32): A2_A3,
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


@every_page
def test_signatures_are_the_pages(name):
    c_name, _, parameters = PAGES[name]
    operator = OPERATORS[name]
    assert (operator.name, operator.c_name) == (name, c_name)
    assert [(p.name, p.kind, p.role) for p in operator.parameters] == parameters
    assert not any(p.optional for p in operator.parameters)
    assert [p.name for p in operator.inputs + operator.attributes + operator.outputs] == [
        *(n for n, _, role in parameters if role == I),
        *(n for n, _, role in parameters if role == "attribute"),
        *(n for n, _, role in parameters if role == O),
    ]


@every_page
def test_functional_signatures_are_the_designs(name):
    assert str(inspect.signature(getattr(descend, name))) == SIGNATURES[name]


@every_page
def test_products_of_the_operators(name):
    assert sorted(OPERATORS[name].products) == sorted((*PAGES[name][1], "host"))


@every_page
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
        assert parameter.python in (snake, snake.removesuffix("_optional"))
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
            assert "host" in row.products or "DOUBLE" not in dtypes
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
    """Another product, another row: the table and phase 1 cannot drift apart."""
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
