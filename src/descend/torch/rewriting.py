"""Forwards that are compiled anew from their sources, with a few places changed; all else stays as it was.

The places are sums before norms (`sums`), and calls of functions that embed positions (`rotary`) and of cross entropy
(`losses`).
"""

from __future__ import annotations
import __future__

import ast
import functools
import inspect
import symtable
import types
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from torch import nn

from descend.torch import losses, rotary, sums
from descend.torch.forms import Form, mix
from descend.torch.probing import obstacle, out_of_reach


class Places(NamedTuple):
    """What is changed in the forward of a module: the norms before which it adds, with the operators for both, and the
    functions that it calls to embed positions, and for cross entropy.
    """

    norms: tuple[tuple[str, str], ...]
    functions: tuple[str, ...]
    losses: tuple[str, ...]


class RewrittenModule(Form):
    """A module whose forward adds before it normalises, embeds positions or has a loss: each as one operator."""

    title = ""

    @classmethod
    def made_of(cls, base: type[nn.Module], parts: Any) -> dict[str, Any]:
        """The forward of ``base``, changed."""
        source = Source(base.forward)
        known = {name: each for name, each in rotary.functions_of(base.forward).items() if name in parts.functions}
        helpers = {sums.HELPER: sums.add_and_normalise, **rotary.change(source.body, source.this, known)}
        helpers |= losses.change(source.body, source.this, base.forward)
        replacements = sums.change(source.body, source.this, dict(parts.norms))
        texts: dict[str, tuple[str, ...]] = {}
        for name, operator in parts.norms:
            texts[f"{operator} at"] = *texts.get(f"{operator} at", ()), name
        texts |= {"rotary_position_embedding in": parts.functions, "cross_entropy in": parts.losses}
        title = ", ".join(f"{text} {' and '.join(names)}" for text, names in texts.items() if names)
        return {"title": title, "forward": source.changed(replacements, helpers)}

    @classmethod
    def made_from(cls, base: type[nn.Module], parts: Any) -> Any:
        """The forward, and the functions that it calls."""
        return base.forward, rotary.functions_of(base.forward) if parts.functions else None


def judge(module: nn.Module) -> type[nn.Module] | str | None:
    """The class of a module whose forward has places to change, or why it keeps its own; None for any other."""
    kind: Any = type(module)
    if isinstance(module, Form) or kind.__module__.startswith("torch.nn."):
        return None
    norms, functions = sums.norms_of(module), rotary.functions_of(kind.forward)
    has_loss = losses.may_be_in(kind.forward)
    if not norms and not functions and not has_loss:
        return None
    try:
        source = Source(kind.forward)
    except NoSourceError:
        what = "adds before a norm" if norms else f"calls {' and '.join(functions) or losses.TITLE}"
        return f"whether it {what} is not known: its forward has no source"
    added = tuple({n: (n, norms[n]) for n in sums.normalised(source.body, source.this) if n in norms}.values())
    called = tuple(dict.fromkeys(n for n in rotary.called(source.body) if n in functions))
    known = tuple(n for n in called if rotary.recognise(functions[n]))
    scored = tuple(dict.fromkeys(ast.unparse(c.func) for c in losses.called(source.body, kind.forward)))
    if not added and not known and not scored:
        return f"it calls {called[0]}, which is no rotary embedding of a form that is known" if called else None
    reason = source.obstacle or obstacle(module, calls=False)
    reason = reason or (out_of_reach(dict(module.named_parameters())) if known else None)
    what = "adds before a norm" if added else f"calls {' and '.join(known + scored)}"
    return f"it {what}, but {reason}" if reason else mix(kind, RewrittenModule, Places(added, known, scored))


# --- the source of a forward ---------------------------------------------------------------------------------------


class NoSourceError(Exception):
    """A function without a source."""


class Source:
    """The source of a forward: its statements, and the name of its first argument.

    ``obstacle`` says why it cannot be changed: where the source is not surely what runs, or a decorator hides it.
    Raises NoSourceError where there is none.
    """

    obstacle: str | None = None
    this = ""

    def __init__(self, function: Any) -> None:
        self._whole, self._function = function, inspect.unwrap(function)
        try:
            lines, start = inspect.getsourcelines(self._function)
            self._imported = _imported("".join(inspect.findsource(self._function)[0]))
            # What is indented stays so, under a line of its own.
            tree = ast.parse("".join(["if True:\n"] * lines[0][:1].isspace() + lines))
            node = tree.body[0].body[0] if isinstance(tree.body[0], ast.If) else tree.body[0]
        except (OSError, TypeError, SyntaxError, IndexError) as error:
            raise NoSourceError from error
        self.body: list[ast.stmt] = []
        if not isinstance(node, ast.FunctionDef) or not node.args.args:
            return
        self.body, self.this = node.body, node.args.args[0].arg
        first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
        ast.increment_lineno(node, start - first)
        self._node = _without_signature(node)
        if not _is_same(self._compiled(()), self._function.__code__):
            self.obstacle = "its forward is not what its source says"
        elif "locals" in self._function.__code__.co_names:
            self.obstacle = "its forward asks for its local variables"
        elif any(
            isinstance(n, ast.Name) and n.id == self.this
            for n in ast.walk(node)
            if not isinstance(getattr(n, "ctx", None), ast.Load)
        ):
            self.obstacle = "its forward gives its first argument another value"
        elif not all(map(_is_plain_wrapper, _wrappers(function))):
            self.obstacle = "its forward has a decorator that hides what it calls"

    def changed(self, replacements: Mapping[ast.AST, ast.expr], helpers: Mapping[str, Any]) -> types.FunctionType:
        """The function with other expressions in some places; what these call by names of their own are the helpers."""
        self._node = _Replacing(replacements).visit(self._node)
        code, function = self._compiled(tuple(helpers)), self._function
        cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
        cells |= {name: types.CellType(helper) for name, helper in helpers.items()}
        made = _remade(function, code, tuple(cells[name] for name in code.co_freevars))
        for wrapper in reversed(list(_wrappers(self._whole))):
            closure = (
                types.CellType(made) if c.cell_contents is wrapper.__wrapped__ else c for c in wrapper.__closure__
            )
            made, inner = _remade(wrapper, wrapper.__code__, tuple(closure)), made
            vars(made)["__wrapped__"] = inner
        return made

    def _compiled(self, helpers: tuple[str, ...]) -> types.CodeType:
        """The code of the function, within one that has its free variables, and the helpers.

        The call of a function of what the file imports is other code than that of a method: the imports come first.
        """
        before = self._function.__code__
        imports = "".join(f"import {name}\n" for name in self._imported)
        outer = ast.parse(f"{imports}def outer({', '.join([*before.co_freevars, *helpers])}):\n pass")
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

    def __init__(self, replacements: Mapping[ast.AST, ast.expr]) -> None:
        self._replacements = replacements

    def visit(self, node: ast.AST) -> Any:
        """The node in the place of this one, and within it those in the places of others."""
        made = self._replacements.get(node)
        return super().visit(node) if made is None else self.generic_visit(made)
