"""Sums before norms: where a forward adds and then normalises the sum, both become one operator.

What is changed is the source of the forward, and in it these places alone::

    x = residual + x                      x, normalised = add_and_normalise(residual, x, self.norm)
    residual = x                    ->    residual = x
    x = self.mlp(self.norm(x))            x = self.mlp(normalised)

    x = self.norm(residual + x)     ->    x = add_and_normalise(residual, x, self.norm)[1]

Nothing is called between the sum and the norm, so that nothing can tell that the norm comes earlier. All else of the
forward, whatever it does and asks for, is compiled as it was.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator, Sequence
from typing import Any, NamedTuple

from torch import nn

from descend.torch.forms import Norm, hooked, is_taken
from descend.torch.releases import has_any_global_hook

HELPER = "descend_add_and_normalise"


def add_and_normalise(one: Any, other: Any, norm: Any) -> tuple[Any, Any]:
    """The sum of two tensors, and the norm of it: as one operator where ``norm`` is one that `patch` swapped.

    So it is while nothing waits for a call of the norm, and both tensors have one shape and dtype.
    """
    if isinstance(norm, Norm) and norm.adds and not _is_watched(norm) and _are_taken(one, other, norm):
        y, total = norm.normalise_sum(one, other)
        return total, y
    total = one + other
    return total, norm(total)


def _is_watched(norm: Any) -> bool:
    """Whether a call of the norm is more than its class's forward."""
    changed = "forward" in vars(norm) or norm._compiled_call_impl is not None
    return changed or hooked(norm) or bool(has_any_global_hook())


def _are_taken(one: Any, other: Any, norm: Any) -> bool:
    taken = is_taken(one, norm._parameters) and is_taken(other, {})
    return taken and one.shape == other.shape and one.dtype is other.dtype


# --- what is recognised --------------------------------------------------------------------------------------------


class _Pair(NamedTuple):
    """A statement that adds, and the first call after it, by which a module's norm gets the sum."""

    statement: ast.Assign
    norm: str
    call: ast.Call


def norms_of(module: nn.Module) -> dict[str, str]:
    """The names of a module's swapped norms that may be those of a sum, with the operators for it."""
    norms: dict[str, Any] = {name: child for name, child in module._modules.items() if isinstance(child, Norm)}
    return {name: norm.adds for name, norm in norms.items() if norm.adds}


def normalised(body: Sequence[ast.stmt], this: str) -> Iterator[str]:
    """The names of what gets a sum in a forward whose first argument is ``this``."""
    yield from (pair.norm for pair in _pairs(body, this))
    yield from (norm for norm, _ in _calls_of_sums(body, this))


def change(body: Sequence[ast.stmt], this: str, norms: Collection[str]) -> dict[ast.AST, ast.expr]:
    """Has `add_and_normalise` add before these norms; returns what is to be in the places of their calls."""
    calls: dict[ast.AST, ast.expr] = {}
    for statement, norm, call in _pairs(body, this):
        if norm in norms and isinstance(statement.value, ast.BinOp):
            value = _added(statement.value, norm, this)
            target = ast.Tuple([*statement.targets, ast.Name(f"{HELPER}_{norm}", ast.Store())], ast.Store())
            statement.targets = [ast.copy_location(target, statement.targets[0])]
            statement.value = ast.copy_location(value, statement.value)
            calls[call] = ast.copy_location(ast.Name(f"{HELPER}_{norm}", ast.Load()), call)
    for norm, call in _calls_of_sums(body, this):
        if norm in norms and isinstance(call.args[0], ast.BinOp):
            one = ast.Subscript(_added(call.args[0], norm, this), ast.Constant(1), ast.Load())
            calls[call] = ast.copy_location(one, call)
    return calls


def _added(total: ast.BinOp, norm: str, this: str) -> ast.expr:
    """`add_and_normalise` of the terms of a sum."""
    module = ast.Attribute(ast.Name(this, ast.Load()), norm, ast.Load())
    return ast.Call(ast.Name(HELPER, ast.Load()), [total.left, total.right, module], [])


def _pairs(body: Sequence[ast.stmt], this: str) -> Iterator[_Pair]:
    """The pairs in a list of statements and in those within them, but not in other functions.

    Nor in what is tried: where a norm fails, the handlers see whether its sum had a name by then.
    """
    for place, statement in enumerate(body):
        if isinstance(statement, (ast.If, ast.For, ast.While, ast.With)):
            for part in ("body", "orelse"):
                yield from _pairs(getattr(statement, part, ()), this)
        target = _assigned(statement)
        if target and isinstance(statement, ast.Assign) and _is_sum(statement.value):
            found = _norm_of(body[place + 1 :], {target}, this)
            if found is not None:
                yield _Pair(statement, *found)


_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_APART = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda, ast.Try, *_COMPREHENSIONS)
"""What may have other meanings for names, or see what has failed."""


def _calls_of_sums(body: Sequence[ast.stmt], this: str) -> Iterator[tuple[str, ast.Call]]:
    """The modules of ``this`` that are called with a sum alone, and the calls."""
    waiting: list[ast.AST] = list(body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, _APART):
            continue
        waiting += ast.iter_child_nodes(node)
        if isinstance(node, ast.Call) and (name := _called(node, this)) and _is_sum(node.args[0]):
            yield name, node


def _is_sum(node: ast.expr) -> bool:
    return isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add)


def _assigned(statement: ast.stmt) -> str | None:
    """The one name that a statement gives a value."""
    if isinstance(statement, ast.Assign) and len(statement.targets) == 1 and isinstance(statement.targets[0], ast.Name):
        return statement.targets[0].id
    return None


def _norm_of(statements: Sequence[ast.stmt], names: set[str], this: str) -> tuple[str, ast.Call] | None:
    """The module that gets what has these names, in the first call of the statements; None where that is another."""
    for statement in statements:
        target, value = _assigned(statement), getattr(statement, "value", None)
        if target and isinstance(value, ast.Name):  # another name of what there is
            names = names | {target} if value.id in names else names - {target}
            continue
        if not isinstance(statement, (ast.Assign, ast.Return, ast.Expr)) or value is None:
            return None
        for node in _in_order(value):
            if isinstance(node, ast.Call):
                name = _called(node, this)
                is_it = name and isinstance(node.args[0], ast.Name) and node.args[0].id in names
                return (name, node) if name and is_it else None
            if not isinstance(node, (ast.Name, ast.Attribute, ast.Constant)):
                return None
        return None
    return None


def _called(call: ast.Call, this: str) -> str | None:
    """The name of the module of ``this`` that is called with one argument alone."""
    of, alone = call.func, len(call.args) == 1 and not call.keywords
    is_own = isinstance(of, ast.Attribute) and isinstance(of.value, ast.Name) and of.value.id == this
    return of.attr if isinstance(of, ast.Attribute) and is_own and alone else None


def _in_order(node: ast.expr) -> Iterator[ast.expr]:
    """The expressions in the order in which they get their values, up to the first that is not always evaluated."""
    parts: list[ast.expr] = []
    if isinstance(node, ast.Call):
        parts = [node.func, *node.args, *(keyword.value for keyword in node.keywords)]
    elif isinstance(node, ast.Attribute):
        parts = [node.value]
    elif isinstance(node, ast.BinOp):
        parts = [node.left, node.right]
    elif isinstance(node, ast.Tuple):
        parts = node.elts
    for part in parts:
        yield from _in_order(part)
    yield node
