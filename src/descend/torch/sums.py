"""Sums before norms: where a forward adds and then normalises the sum, both become one operator.

What is changed is the source of the forward, and in it two places alone::

    x = residual + x                      x, normalised = add_and_normalise(residual, x, self.norm)
    residual = x                    ->    residual = x
    x = self.mlp(self.norm(x))            x = self.mlp(normalised)

Nothing is called between the two, so that nothing can tell that the norm comes earlier. All else of the forward,
whatever it does and asks for, is compiled as it was.
"""

from __future__ import annotations
import __future__

import ast
import functools
import inspect
import symtable
import types
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from torch import nn

from descend.torch.forms import Form, RMSNorm, hooked, is_taken, mix
from descend.torch.probing import obstacle
from descend.torch.releases import has_any_global_hook

_HELPER = "descend_add_and_normalise"


def add_and_normalise(one: Any, other: Any, norm: Any) -> tuple[Any, Any]:
    """The sum of two tensors, and the norm of it: as one operator where ``norm`` is an RMS norm that `patch` swapped.

    So it is while nothing waits for a call of the norm, and both tensors have one shape and dtype.
    """
    if isinstance(norm, RMSNorm) and norm.adds and not _is_watched(norm) and _are_taken(one, other, norm):
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


class Sums(NamedTuple):
    """The names of the norms before which the forward of a module adds."""

    norms: tuple[str, ...]


class AddingModule(Form):
    """A module whose forward adds before it normalises: both as one operator."""

    title = "add_rms_norm"

    @classmethod
    def made_of(cls, base: type[nn.Module], parts: Any) -> dict[str, Any]:
        """The forward of ``base``, changed."""
        title = f"{cls.title} at {' and '.join(parts.norms)}"
        return {"title": title, "forward": _Source(base.forward).changed(parts.norms)}


def judge(module: nn.Module) -> type[nn.Module] | str | None:
    """The class of a module whose forward adds before a swapped norm, or why it keeps its own; None without one."""
    kind: Any = type(module)
    norms = {name for name, child in module._modules.items() if isinstance(child, RMSNorm) and child.adds}
    if isinstance(module, Form) or not norms or kind.__module__.startswith("torch.nn."):
        return None
    try:
        source = _Source(kind.forward)
    except _NoSourceError:
        return "whether it adds before a norm is not known: its forward has no source"
    names = tuple(dict.fromkeys(pair.norm for pair in source.pairs if pair.norm in norms))
    if not names:
        return None
    reason = source.obstacle or obstacle(module, calls=False)
    return f"it adds before a norm, but {reason}" if reason else mix(kind, AddingModule, Sums(names))


# --- the source of a forward ---------------------------------------------------------------------------------------


class _NoSourceError(Exception):
    """A function without a source."""


class _Pair(NamedTuple):
    """A statement that adds, and the first call after it, by which a module's norm gets the sum."""

    statement: ast.Assign
    norm: str
    call: ast.Call


class _Source:
    """The source of a forward, and the sums before norms in it.

    ``obstacle`` says why it cannot be changed: where the source is not surely what runs, or a decorator hides it.
    Raises _NoSourceError where there is none.
    """

    obstacle: str | None = None

    def __init__(self, function: Any) -> None:
        self._whole, self._function = function, inspect.unwrap(function)
        try:
            lines, start = inspect.getsourcelines(self._function)
            self._imported = _imported("".join(inspect.findsource(self._function)[0]))
            # What is indented stays so, under a line of its own.
            tree = ast.parse("".join(["if True:\n"] * lines[0][:1].isspace() + lines))
            node = tree.body[0].body[0] if isinstance(tree.body[0], ast.If) else tree.body[0]
        except (OSError, TypeError, SyntaxError, IndexError) as error:
            raise _NoSourceError from error
        self.pairs: list[_Pair] = []
        if not isinstance(node, ast.FunctionDef) or not node.args.args:
            return
        self._this = node.args.args[0].arg
        self.pairs += _pairs(node.body, self._this)
        first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
        ast.increment_lineno(node, start - first)
        self._node = _without_signature(node)
        if not _is_same(self._compiled(), self._function.__code__):
            self.obstacle = "its forward is not what its source says"
        elif "locals" in self._function.__code__.co_names:
            self.obstacle = "its forward asks for its local variables"
        elif not all(map(_is_plain_wrapper, _wrappers(function))):
            self.obstacle = "its forward has a decorator that hides what it calls"

    def changed(self, norms: Sequence[str]) -> types.FunctionType:
        """The function, whose sums before these norms are `add_and_normalise`'s."""
        normalised: dict[ast.AST, ast.expr] = {}
        for statement, norm, call in self.pairs:
            if norm in norms and isinstance(statement.value, ast.BinOp):
                module = ast.Attribute(ast.Name(self._this, ast.Load()), norm, ast.Load())
                given = [statement.value.left, statement.value.right, module]
                value = ast.Call(ast.Name(_HELPER, ast.Load()), given, [])
                target = ast.Tuple([*statement.targets, ast.Name(f"{_HELPER}_{norm}", ast.Store())], ast.Store())
                statement.targets = [ast.copy_location(target, statement.targets[0])]
                statement.value = ast.copy_location(value, statement.value)
                normalised[call] = ast.copy_location(ast.Name(f"{_HELPER}_{norm}", ast.Load()), call)
        self._node = _Replacing(normalised).visit(self._node)
        code, function = self._compiled(), self._function
        cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
        cells[_HELPER] = types.CellType(add_and_normalise)
        made = _remade(function, code, tuple(cells[name] for name in code.co_freevars))
        for wrapper in reversed(list(_wrappers(self._whole))):
            closure = (
                types.CellType(made) if c.cell_contents is wrapper.__wrapped__ else c for c in wrapper.__closure__
            )
            made, inner = _remade(wrapper, wrapper.__code__, tuple(closure)), made
            vars(made)["__wrapped__"] = inner
        return made

    def _compiled(self) -> types.CodeType:
        """The code of the function, within one that has its free variables, and the helper.

        The call of a function of what the file imports is other code than that of a method: the imports come first.
        """
        before = self._function.__code__
        imports = "".join(f"import {name}\n" for name in self._imported)
        outer = ast.parse(f"{imports}def outer({', '.join([*before.co_freevars, _HELPER])}):\n pass")
        outer.body[-1].body = [self._node]  # type: ignore[attr-defined]
        outer = ast.fix_missing_locations(outer)
        code: Any = compile(outer, before.co_filename, "exec", before.co_flags & _FUTURES, dont_inherit=True)
        for _ in range(2):
            code = next(constant for constant in code.co_consts if isinstance(constant, types.CodeType))
        # Up to Python 3.10 the full names of functions within are constants.
        here, there = f"outer.<locals>.{before.co_name}.", f"{self._function.__qualname__}."
        constants = (c.replace(here, there) if isinstance(c, str) else c for c in code.co_consts)
        made: types.CodeType = code.replace(co_firstlineno=before.co_firstlineno, co_consts=tuple(constants))
        return made


@functools.lru_cache(maxsize=64)
def _imported(text: str) -> list[str]:
    """The names that a file imports."""
    return [s.get_name() for s in symtable.symtable(text, "", "exec").get_symbols() if s.is_imported()]


def _wrappers(function: Any) -> Iterator[Any]:
    """The functions that decorators put around another, from the outermost on."""
    while hasattr(function, "__wrapped__"):
        yield function
        function = function.__wrapped__


def _is_plain_wrapper(wrapper: Any) -> bool:
    """Whether a wrapper has what it calls in its closure, and marks of no one else's: `torch.compile` leaves some."""
    within, cells = wrapper.__wrapped__, getattr(wrapper, "__closure__", None) or ()
    try:
        held = [cell.cell_contents for cell in cells]
    except ValueError:  # an empty cell
        return False
    marks = vars(wrapper).keys() - vars(within).keys() - {"__wrapped__"}
    return isinstance(wrapper, types.FunctionType) and sum(h is within for h in held) == 1 and not marks


def _remade(function: Any, code: types.CodeType, closure: tuple[Any, ...]) -> types.FunctionType:
    """The function with another code and closure."""
    made = types.FunctionType(code, function.__globals__, function.__name__, function.__defaults__, closure)
    functools.update_wrapper(made, function)
    vars(made).pop("__wrapped__", None)
    made.__kwdefaults__ = function.__kwdefaults__
    return made


_FUTURES = sum({getattr(__future__, name).compiler_flag for name in __future__.all_feature_names})


def _without_signature(node: ast.FunctionDef) -> ast.FunctionDef:
    """The definition without what belongs to the function and not to its code: annotations, defaults, decorators."""
    given = node.args
    for each in (*given.posonlyargs, *given.args, *given.kwonlyargs, given.vararg, given.kwarg):
        if each is not None:
            each.annotation = None
    given.defaults, given.kw_defaults = [], [None] * len(given.kwonlyargs)
    node.returns, node.decorator_list = None, []
    return node


def _is_same(code: types.CodeType, other: types.CodeType) -> bool:
    parts = ("co_code", "co_consts", "co_names", "co_varnames", "co_freevars", "co_cellvars")
    return all(getattr(code, part) == getattr(other, part) for part in parts)


class _Replacing(ast.NodeTransformer):
    """Puts other nodes in the places of some."""

    def __init__(self, replacements: dict[ast.AST, ast.expr]) -> None:
        self._replacements = replacements

    def visit(self, node: ast.AST) -> Any:
        """The node in the place of this one."""
        return self._replacements.get(node) or super().visit(node)


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
                return _called(node, names, this)
            if not isinstance(node, (ast.Name, ast.Attribute, ast.Constant)):
                return None
        return None
    return None


def _called(call: ast.Call, names: set[str], this: str) -> tuple[str, ast.Call] | None:
    """The module of ``this`` that is called with one of the names alone."""
    of = call.func
    if not isinstance(of, ast.Attribute) or not isinstance(of.value, ast.Name) or of.value.id != this:
        return None
    alone = len(call.args) == 1 and not call.keywords
    return (of.attr, call) if alone and isinstance(call.args[0], ast.Name) and call.args[0].id in names else None


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
