"""MindSpore's functions."""

from __future__ import annotations

from typing import Any

from descend import reference
from descend.cli.apis import pytorch
from descend.cli.apis.function import Api, Array, Results, first

NO_GRADIENT = "the order of MindSpore's gradients is not known"


def _rms_norm(x: Array, gamma: Array, epsilon: float = 1e-6) -> Results:
    return reference.rms_norm(x, gamma, epsilon)


def _softmax(input: Array, axis: int = -1, *, dtype: Any = None) -> Results:
    return [reference.softmax(pytorch.converted(input, dtype), axis)]


def _log_softmax(logits: Array, axis: int = -1) -> Results:
    return [reference.log_softmax(logits, axis)]


def _mint_softmax(input: Array, dim: int | None = None, dtype: Any = None) -> Results:
    return pytorch.functional_softmax(input, dim, dtype=dtype)


def _mint_log_softmax(input: Array, dim: int | None = None, dtype: Any = None) -> Results:
    return pytorch.functional_log_softmax(input, dim, dtype=dtype)


def _gelu(input: Array, approximate: str = "none") -> Results:
    return pytorch.gelu(input, approximate=approximate)


def _group_norm(
    input: Array, num_groups: int, weight: Array | None = None, bias: Array | None = None, eps: float = 1e-5
) -> Results:
    return pytorch.group_norm(input, num_groups, weight, bias, eps)


def _cross_entropy(
    input: Array,
    target: Array,
    weight: Array | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Results:
    return pytorch.cross_entropy(input, target, weight, None, ignore_index, None, reduction, label_smoothing)


def _rotary_position_embedding(x: Array, cos: Array, sin: Array, mode: int = 0) -> Results:
    return [reference.rotary_position_embedding(x, cos, sin, mode)]


_OF_BOTH = {
    "layer_norm": Api(first(pytorch.native_layer_norm), None, NO_GRADIENT),
    "group_norm": Api(_group_norm, None, NO_GRADIENT),
    "gelu": Api(_gelu, None, NO_GRADIENT, or_else=pytorch.BY_TANH),
}
_OF_MINT = {
    **_OF_BOTH,
    "softmax": Api(_mint_softmax, None, NO_GRADIENT),
    "log_softmax": Api(_mint_log_softmax, None, NO_GRADIENT),
}
_OF_OPS = {
    **_OF_BOTH,
    "rms_norm": Api(_rms_norm, None, NO_GRADIENT),
    "softmax": Api(_softmax, None, NO_GRADIENT),
    "log_softmax": Api(_log_softmax, None, NO_GRADIENT),
    "cross_entropy": Api(_cross_entropy, None, NO_GRADIENT),
    "rotary_position_embedding": Api(_rotary_position_embedding, None, NO_GRADIENT),
}
FUNCTIONS = {
    f"{prefix}.{name}": api
    for prefix, functions in (("Functional", _OF_OPS), ("Mint", _OF_MINT), ("MintFunctional", _OF_MINT))
    for name, api in functions.items()
}
"""By what msprobe calls them: ``mindspore.ops``, ``mindspore.mint`` and ``mindspore.mint.nn.functional``."""
