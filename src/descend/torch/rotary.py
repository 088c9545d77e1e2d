"""Functions that embed positions, such as transformers' ``apply_rotary_pos_emb(q, k, cos, sin)``, as operators.

A forward calls such a function by a global name, and gets it from there in each call as before::

    q, k = apply_rotary_pos_emb(q, k, cos, sin)    ->    q, k = embed(self, apply_rotary_pos_emb, q, k, cos, sin)

``embed`` computes it by `rotary_position_embedding` if it is the function that was recognised and the module is still
patched, and calls it otherwise.
"""

from __future__ import annotations

import ast
import functools
import inspect
import itertools
import math
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from descend.torch.forms import Form, is_taken
from descend.torch.probing import same, same_gradients, undisturbed
from descend.torch.rotary_position_embedding import rotary_position_embedding

_ANGLES = ("cos", "sin")
_SMALLEST, _SMALLEST_COMPILED = 1 << 13, 1 << 18
"""From so many elements of the first input on the operator is faster, and than what ``torch.compile`` makes of it."""
_PROBED = (torch.float32, torch.bfloat16, torch.float16)
_COLUMNS = 16  # of a row in a probe


class Turn(NamedTuple):
    """How a function embeds positions."""

    parameters: tuple[str, ...]
    """What it can be given by position."""
    inputs: tuple[str, ...]
    """Those of them that are turned: one, which is the result, or two, which are a tuple."""
    dimension: str
    """The one that tells where cos and sin get a dimension; empty if there is none."""
    layouts: dict[tuple[int, int], int | None]
    """By the ranks of the inputs and of cos and sin: where these get it otherwise; None if they do not."""
    angles: str
    """How cos and sin become those of the operator, of `_SPREAD`."""
    mode: int
    """The operator's."""
    partial: bool
    """Whether rows may be longer than cos and sin; what is beyond them stays as it is."""
    keeps: bool
    """Whether results have the inputs' dtype, and not what all promote to."""
    follows: bool
    """Whether results lie in memory as the inputs do: heads within positions, or positions within heads."""


_SPREAD: dict[str, Callable[[Tensor], Tensor]] = {
    "as they are": lambda a: a,
    "twice": lambda a: torch.cat((a, a), -1),
    "each twice": lambda a: a.repeat_interleave(2, -1),
    "first half, twice": lambda a: torch.cat((a[..., : a.shape[-1] // 2],) * 2, -1),
    "first half, each twice": lambda a: a[..., : a.shape[-1] // 2].repeat_interleave(2, -1),
}
_FORMS = (  # the angles and the mode
    ("as they are", 0),  # Llama
    ("as they are", 1),
    ("first half, each twice", 1),  # GLM, Ernie
    ("first half, twice", 3),  # DeepSeek
    ("twice", 0),  # GPT-OSS
    ("each twice", 1),  # GPT-J
)
_Layout = tuple[tuple[int, int], "int | None"]
_LAYOUTS: tuple[_Layout, ...] = (  # of functions that say nothing of a dimension
    ((4, 3), 1),
    ((4, 3), 2),
    ((3, 2), 1),
    ((4, 4), None),
    ((4, 2), None),
    ((3, 3), None),
)


def _compute(turn: Turn, args: tuple[Any, ...], named: Mapping[str, Any]) -> Any:
    """What the function gives, by the operator; None where that does not take the arguments, or they are wrong."""
    given = {**dict(zip(turn.parameters, args, strict=False)), **named}
    if len(given) != len(args) + len(named):
        return None
    inputs, angles = [given.pop(name, None) for name in turn.inputs], [given.pop(name, None) for name in _ANGLES]
    said = given.pop(turn.dimension, None)
    if given or not all(is_taken(t, {}) for t in (*inputs, *angles)):
        return None
    x, (cos, sin) = inputs[0], angles
    ranks = x.dim(), cos.dim()
    if ranks not in turn.layouts or cos.shape != sin.shape:
        return None
    dim = turn.layouts[ranks] if said is None else said
    if dim is not None:
        if type(dim) is not int or not -cos.dim() <= dim + 1 <= cos.dim() + 1:
            return None
        cos, sin = cos.unsqueeze(dim), sin.unsqueeze(dim)
    cos, sin = _SPREAD[turn.angles](cos), _SPREAD[turn.angles](sin)
    if x.dim() > cos.dim():
        cos, sin = (a[(None,) * (x.dim() - a.dim())] for a in (cos, sin))
    if not all(_fits(turn, each, x, cos) for each in inputs):
        return None
    dtype = x.dtype if turn.keeps else torch.promote_types(torch.promote_types(x.dtype, cos.dtype), sin.dtype)
    results = tuple(_embed(turn, each.to(dtype), cos, sin) for each in inputs)
    return results if len(results) > 1 else results[0]


def _fits(turn: Turn, x: Tensor, like: Tensor, cos: Tensor) -> bool:
    """Whether the operator takes x with these angles, and with another input."""
    *sizes, row = x.shape
    *leading, width = cos.shape
    fits = x.dim() == cos.dim() and all(a in (1, b) for a, b in zip(leading, sizes, strict=True))
    wide = row >= width if turn.partial else row == width
    return fits and wide and 0 < width == 2 * (width // 2) and x.dtype is like.dtype


def _embed(turn: Turn, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """The embedding of the front of each row."""
    width = cos.shape[-1]
    whole = x.shape[-1] == width
    turned = x if whole else x[..., :width]
    if turn.follows and x.dim() == 4 and not x.is_contiguous() and x.stride(1) < x.stride(2):
        turned, cos, sin = (t.transpose(1, 2) for t in (turned, cos, sin))
        y = rotary_position_embedding(turned, cos, sin, turn.mode).transpose(1, 2)
    else:
        y = rotary_position_embedding(turned, cos, sin, turn.mode)
    return y if whole else torch.cat((y, x[..., width:]), -1)


# --- the calls in a forward ----------------------------------------------------------------------------------------


def functions_of(forward: Any) -> dict[str, types.FunctionType]:
    """The functions of the module of a forward that it may call, by their names there, which take cos and sin."""
    function = inspect.unwrap(forward)
    if not isinstance(function, types.FunctionType):
        return {}
    named = ((name, function.__globals__.get(name)) for name in function.__code__.co_names)
    return {name: each for name, each in named if isinstance(each, types.FunctionType) and _takes_angles(each)}


def _takes_angles(function: types.FunctionType) -> bool:
    code = getattr(inspect.unwrap(function), "__code__", None)
    return code is not None and set(_ANGLES) <= set(code.co_varnames[: code.co_argcount])


def called(body: Sequence[ast.stmt]) -> Iterator[str]:
    """The names that are called in a forward."""
    return (call.func.id for call in _calls_by_name(body))  # type: ignore[attr-defined]


def change(
    body: Sequence[ast.stmt], this: str, functions: Mapping[str, types.FunctionType]
) -> dict[str, Callable[..., Any]]:
    """Has the calls of these functions made by others, which it returns, by the names that the calls have for them."""
    helpers = {name: f"descend_embed_{name}" for name in functions}
    for call in _calls_by_name(body):
        helper = helpers.get(call.func.id)  # type: ignore[attr-defined]
        if helper is not None:
            call.args[:0] = [ast.copy_location(ast.Name(this, ast.Load()), call.func), call.func]
            call.func = ast.copy_location(ast.Name(helper, ast.Load()), call.func)
    return {helpers[name]: _embedding(function) for name, function in functions.items()}


def _calls_by_name(body: Sequence[ast.stmt]) -> Iterator[ast.Call]:
    nodes = (node for statement in body for node in ast.walk(statement))
    return (node for node in nodes if isinstance(node, ast.Call) and isinstance(node.func, ast.Name))


def _embedding(known: types.FunctionType) -> Callable[..., Any]:
    turn = recognise(known)

    def embed(module: Any, function: Any, /, *args: Any, **named: Any) -> Any:
        result = None
        if turn is not None and function is known and isinstance(module, Form):
            x = args[0] if args else named.get(turn.inputs[0])
            if isinstance(x, Tensor) and x.numel() >= (
                _SMALLEST_COMPILED if torch.compiler.is_compiling() else _SMALLEST
            ):
                result = _compute(turn, args, named)
        return function(*args, **named) if result is None else result

    return embed


# --- what is recognised --------------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=256)
def recognise(function: types.FunctionType) -> Turn | None:
    """How the function embeds positions; None where it does something else."""
    parameters = [p for p in inspect.signature(function).parameters.values() if p.kind is p.POSITIONAL_OR_KEYWORD]
    names = tuple(p.name for p in parameters)
    inputs = tuple(itertools.takewhile(lambda name: name not in _ANGLES, names))
    numbers = [p for p in parameters if type(p.default) is int]
    needed = {p.name for p in parameters if p.default is p.empty}
    compiled = hasattr(function, "_torchdynamo_orig_callable")
    if len(inputs) not in (1, 2) or needed - {*inputs, *_ANGLES} or len(numbers) > 1 or compiled:
        return None
    if not set(_ANGLES) <= set(names) or any(not 0 <= p.default < 3 for p in numbers):
        return None
    layouts = _LAYOUTS if not numbers else [((4, 3), numbers[0].default)]
    dimension = numbers[0].name if numbers else ""
    with undisturbed():
        for (spread, mode), partial, keeps in itertools.product(_FORMS, (True, False), (True, False)):
            turn = Turn(names, inputs, dimension, {}, spread, mode, partial, keeps, False)
            found = [each for each in layouts if _has(function, turn._replace(layouts=dict([each])), each)]
            if found:
                return turn._replace(layouts=dict(found), follows=_follows(function, turn, found[0]))
    return None


def _has(function: types.FunctionType, turn: Turn, layout: _Layout) -> bool:
    return all(_agree(function, turn, probe) for probe in _probes(turn, *layout))


def _follows(function: types.FunctionType, turn: Turn, layout: _Layout) -> bool:
    inputs, angles = next(_probes(turn, *layout))[1:]
    inputs = {name: x.transpose(1, 2).contiguous().transpose(1, 2) for name, x in inputs.items()}
    results = function(**inputs, **angles)
    y = results[0] if isinstance(results, tuple) else results
    return bool(y.stride(1) < y.stride(2))


class _Probe(NamedTuple):
    """A call of a function: where cos and sin get a dimension, if that is said, its inputs, and its angles."""

    numbers: dict[str, int]
    inputs: dict[str, Tensor]
    angles: dict[str, Tensor]

    @property
    def tensors(self) -> list[Tensor]:
        return [*self.inputs.values(), *self.angles.values()]


def _probes(turn: Turn, ranks: tuple[int, int], default: int | None) -> Iterator[_Probe]:
    """The probes: float32 of several sizes and shapes, then each pair of dtypes, with infinities and NaN."""
    random = torch.Generator().manual_seed(0)

    def normal(*size: int) -> Tensor:
        return torch.randn(size, generator=random, device="cpu", dtype=torch.float32)

    def probe(dim: int | None = None, one: int | None = None, width: int = 0) -> _Probe:
        sizes = [2, 3, 5][4 - ranks[0] :]
        place = default if dim is None else dim
        heads = len(sizes) - 2 if place is None else place
        leading = [1 if n in (heads, one) else size for n, size in enumerate(sizes)]
        if place is not None:
            del leading[heads]
        leading = leading[len(leading) - ranks[1] + 1 :]
        inputs = {}
        for name in turn.inputs:
            inputs[name] = normal(*sizes, _COLUMNS)
            sizes[heads] += 1  # keys have another number of heads
        angles = {name: normal(*leading, width or widths[0]) for name in _ANGLES}
        return _Probe({} if dim is None else {turn.dimension: dim}, inputs, angles)

    widths = [_COLUMNS // 2 if turn.angles in ("twice", "each twice") else _COLUMNS]
    widths += [widths[0] // 2] * turn.partial
    dims = [None, 1, 2] if turn.dimension else [None]
    for dim, (one, scale), width in itertools.product(dims, ((None, 1.0), (0, 1e-3), (1, 1e6), (2, 30.0)), widths):
        made = probe(dim, one, width)
        yield made._replace(inputs={name: x * scale for name, x in made.inputs.items()})
    scales = torch.tensor([1.0, 1e-3, 30.0, math.inf, math.nan], device="cpu").repeat(100)
    for dtype, other in itertools.product(_PROBED, _PROBED):
        made = probe()
        inputs = {name: x * scales[: x[..., 0].numel()].view(*x.shape[:-1], 1) for name, x in made.inputs.items()}
        yield _Probe({}, {n: x.to(dtype) for n, x in inputs.items()}, {n: a.to(other) for n, a in made.angles.items()})


def _agree(function: types.FunctionType, turn: Turn, probe: _Probe) -> bool:
    """Whether both give the same, in float32 with its gradients; in 16 bits the function may round more often."""
    leaves = [t.requires_grad_() for t in probe.tensors]
    unit = max(torch.finfo(t.dtype).eps for t in leaves)
    fine = unit == torch.finfo(torch.float32).eps
    try:
        theirs = function(**probe.inputs, **probe.angles, **probe.numbers)
        ours = _compute(turn, (), {**probe.inputs, **probe.angles, **probe.numbers})
        if ours is None or type(theirs) is not type(ours) or any(t._version for t in leaves):
            return False
        pairs = [(ours, theirs)] if len(probe.inputs) == 1 else list(zip(ours, theirs, strict=True))
        if any(a.dtype is not b.dtype or a.shape != b.shape for a, b in pairs):
            return False
        if fine:
            return all(same(*pair, unit) and same_gradients(*pair, leaves, unit) for pair in pairs)
        return all(_is_near(turn, probe, x, y, unit) for x, (_, y) in zip(probe.inputs, pairs, strict=True))
    except Exception:  # whatever the function raises, and where it gives what is no tensor
        return False


def _is_near(turn: Turn, probe: _Probe, name: str, y: Tensor, unit: float) -> bool:
    """Whether a result is that of float64, but for a few roundings of the products."""
    wide = {n: t.detach().double() for n, t in {**probe.inputs, **probe.angles}.items()}
    exact = _compute(turn._replace(inputs=(name,)), (), {n: wide[n] for n in (name, *_ANGLES)} | probe.numbers)
    size = wide[name].abs().amax(-1, keepdim=True) * sum(wide[n].abs().max() for n in _ANGLES)
    near = (y.detach().double() - exact).abs() <= 4 * unit * size
    return bool((near | (exact == y) | (exact.isnan() & y.isnan())).all())
