"""Cross entropy in models: PyTorch's module, calls of its function in forwards, and the loss functions of models.

Of a forward the calls alone are changed, those that make PyTorch's module, too. What is called is what its name stands
for in each call::

    loss = F.cross_entropy(logits, labels)    ->    loss = score(self, F.cross_entropy, logits, labels)
    loss = CrossEntropyLoss()(logits, labels) ->    loss = score(self, CrossEntropyLoss)(logits, labels)

transformers' models have a property ``loss_function``, whose functions are recognised by what they compute.
"""

from __future__ import annotations

import ast
import functools
import inspect
import itertools
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.fx import Proxy
from torch.nn import functional

from descend.torch.annotated import with_types
from descend.torch.cross_entropy import cross_entropy
from descend.torch.forms import Form, mix
from descend.torch.probing import obstacle, same, same_gradients, undisturbed

_FUNCTION, _MODULE = functional.cross_entropy, nn.CrossEntropyLoss
TITLE = _FUNCTION.__name__
_HELPER = f"descend_{TITLE}"
_PROPERTY = "loss_function"
_PARAMETERS = ("logits", "labels", "vocab_size", "num_items_in_batch", "ignore_index", "shift_labels")
_PROBED = (torch.float32, torch.bfloat16, torch.float16)
_CLASSES = 11  # of a probe


# --- the module ----------------------------------------------------------------------------------------------------


class CrossEntropyLoss(Form):
    """``torch.nn.CrossEntropyLoss``."""

    title = TITLE
    weight: Tensor | None
    ignore_index: int
    reduction: str
    label_smoothing: float

    @with_types
    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """The loss."""
        if not isinstance(self, CrossEntropyLoss) or isinstance(input, Proxy):
            return nn.CrossEntropyLoss.forward(self, input, target)
        numbers = None, self.ignore_index, None, self.reduction, self.label_smoothing
        return cross_entropy(input, target, self.weight, *numbers)


_OURS = mix(_MODULE, CrossEntropyLoss)


def judge(module: nn.Module) -> type[nn.Module] | str | None:
    """The class that PyTorch's module is to have, or why it is left alone; None for any other."""
    kind = type(module)
    if not isinstance(module, _MODULE) or kind.forward is not _MODULE.forward:
        return None
    return obstacle(module) or mix(kind, CrossEntropyLoss)


# --- calls in a forward --------------------------------------------------------------------------------------------


def score(module: Any, function: Any, /, *args: Any, **named: Any) -> Any:
    """What a forward's call of PyTorch's function or module gives: by the operator while the module is patched."""
    if isinstance(module, Form) and function is _FUNCTION:
        function = cross_entropy
    elif isinstance(module, Form) and function is _MODULE:
        function = _OURS
    return function(*args, **named)


def may_be_in(forward: Any) -> bool:
    """Whether a forward asks for what has a name of PyTorch's function or module."""
    return not {_FUNCTION.__name__, _MODULE.__name__}.isdisjoint(_names_in(forward))


def _names_in(forward: Any) -> tuple[str, ...]:
    return getattr(getattr(inspect.unwrap(forward), "__code__", None), "co_names", ())


def called(body: Sequence[ast.stmt], forward: Any) -> Iterator[ast.Call]:
    """The calls of PyTorch's function or module in a forward's statements."""
    for node in (node for statement in body for node in ast.walk(statement)):
        if isinstance(node, ast.Call):
            what = _global(node.func, inspect.unwrap(forward))
            if what is _FUNCTION or what is _MODULE:
                yield node


def change(body: Sequence[ast.stmt], this: str, forward: Any) -> dict[str, Callable[..., Any]]:
    """Has these calls made by `score`; returns it by the name that they have for it."""
    calls = list(called(body, forward))
    for call in calls:
        call.args[:0] = [ast.copy_location(ast.Name(this, ast.Load()), call.func), call.func]
        call.func = ast.copy_location(ast.Name(_HELPER, ast.Load()), call.func)
    return {_HELPER: score} if calls else {}


def _global(node: ast.expr, function: types.FunctionType) -> Any:
    """What a name of the function's file stands for, or an attribute of a module there; None for anything else."""
    if isinstance(node, ast.Name):
        code = function.__code__
        inner = (*code.co_varnames, *code.co_cellvars, *code.co_freevars)
        return None if node.id in inner else function.__globals__.get(node.id)
    if isinstance(node, ast.Attribute):
        value = _global(node.value, function)
        return getattr(value, node.attr, None) if isinstance(value, types.ModuleType) else None
    return None


# --- the loss function of a model ----------------------------------------------------------------------------------


class Loss(NamedTuple):
    """A loss function, whether a token has the scores of the next one, and what computes it: by default ours."""

    function: Callable[..., Tensor]
    shifts: bool
    score: Callable[..., Tensor] | None = None


class ScoredModel(Form):
    """A model whose forward asks for its loss function."""

    title = f"{TITLE} in {_PROPERTY}"

    @classmethod
    def made_of(cls, base: Any, parts: Any) -> dict[str, Any]:
        """The property, which gives another function in the place of the one that was recognised."""
        before, known, ours = getattr(base, _PROPERTY), parts.function, functools.partial(_loss, parts)

        def loss_function(self: Any) -> Any:
            function = before.fget(self)
            return ours if function is known else function

        return {_PROPERTY: property(loss_function, before.fset, before.fdel, before.__doc__)}

    @classmethod
    def made_from(cls, base: Any, parts: Any) -> Any:
        """The property."""
        return getattr(base, _PROPERTY)


def judge_model(module: nn.Module) -> type[nn.Module] | str | None:
    """The class of a model whose loss function is known, or why it keeps its own; None for what has none."""
    kind: Any = type(module)
    has_one = isinstance(getattr(kind, _PROPERTY, None), property) and _PROPERTY in _names_in(kind.forward)
    if isinstance(module, Form) or not has_one:
        return None
    function = getattr(module, _PROPERTY)
    loss = recognise(function) if isinstance(function, types.FunctionType) else None
    return f"its {_PROPERTY} is none that is known" if loss is None else mix(kind, ScoredModel, loss)


def _loss(
    of: Loss,
    logits: Tensor,
    labels: Tensor,
    vocab_size: int,
    num_items_in_batch: Tensor | int | None = None,
    ignore_index: int = -100,
    shift_labels: Tensor | None = None,
    **others: Any,
) -> Tensor:
    """What the function gives: in float32, of scores that are not copied to it first."""
    if others or (shift_labels is not None and not of.shifts):
        options = {"num_items_in_batch": num_items_in_batch, "ignore_index": ignore_index} | others
        return of.function(logits, labels, vocab_size, shift_labels=shift_labels, **options)
    if of.shifts:
        if shift_labels is None:
            shift_labels = functional.pad(labels, (0, 1), value=ignore_index)[..., 1:].contiguous()
        labels = shift_labels
    scores = (logits if logits.is_contiguous() else logits.float()).view(-1, vocab_size)
    reduction = "mean" if num_items_in_batch is None else "sum"
    labels = labels.view(-1).to(scores.device)
    loss = (of.score or cross_entropy)(
        scores, labels, ignore_index=ignore_index, reduction=reduction, dtype=torch.float32
    )
    if isinstance(num_items_in_batch, Tensor):
        num_items_in_batch = num_items_in_batch.to(loss.device)
    return loss if num_items_in_batch is None else loss / num_items_in_batch


# --- what is recognised --------------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=256)
def recognise(function: types.FunctionType) -> Loss | None:
    """Which loss the function is; None where it is something else."""
    names = [p.name for p in inspect.signature(function).parameters.values() if p.kind is p.POSITIONAL_OR_KEYWORD]
    if tuple(names) not in (_PARAMETERS, _PARAMETERS[:-1]):
        return None
    shifts = len(names) == len(_PARAMETERS)
    loss = Loss(function, shifts, _by_pytorch)
    with undisturbed():
        known = all(_agree(loss, *probe) for probe in _probes(shifts))
    return Loss(function, shifts) if known else None


def _by_pytorch(scores: Tensor, labels: Tensor, *, dtype: torch.dtype, **named: Any) -> Tensor:
    """PyTorch's own: a function that is known gives its NaN, too, where ours leaves rows that are ignored alone."""
    return functional.cross_entropy(scores.to(dtype), labels, **named)


def _probes(shifts: bool) -> Iterator[tuple[Tensor, dict[str, Any]]]:
    """Scores of several sizes and dtypes, with labels and the other arguments."""
    random = torch.Generator().manual_seed(0)
    labels = torch.randint(_CLASSES, (2, 7), generator=random, device="cpu")
    labels[0, 2:4] = -100
    others: list[dict[str, Any]] = [{}, {"ignore_index": 3}, {"num_items_in_batch": 5}]
    others += [{"num_items_in_batch": torch.tensor(5.0, device="cpu")}]
    others += [{"shift_labels": labels.flip(0)}] * shifts
    for dtype, scale in itertools.product(_PROBED, (1.0, 30.0, 3e4)):
        for given in others:
            x = torch.randn((2, 7, _CLASSES), generator=random, device="cpu", dtype=torch.float32) * scale
            held = labels.clamp(min=0) if "ignore_index" in given else labels
            yield x.to(dtype), {"labels": held, "vocab_size": _CLASSES, **given}


def _agree(loss: Loss, scores: Tensor, given: dict[str, Any]) -> bool:
    """Whether both give the same loss, and gradient."""
    leaf, unit = scores.requires_grad_(), torch.finfo(scores.dtype).eps
    try:
        theirs, ours = loss.function(leaf, **given), _loss(loss, leaf, **given)
        exact = torch.finfo(torch.float32).eps
        return not leaf._version and same(ours, theirs, exact) and same_gradients(ours, theirs, [leaf], unit)
    except Exception:  # whatever the function raises, and where it gives what is no tensor
        return False
