"""Rotary position embedding."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp

from descend.jax.definitions.arrays import Array, sum_of_terms, widened


def rotary_position_embedding(x: Array, cos: Array, sin: Array, mode: int) -> tuple[Array]:
    """Rotary position embedding."""
    wide = _halves_of_pairs(widened(x), mode)
    return ((wide * widened(cos) + _quarter_turn(wide, mode) * widened(sin)).astype(x.dtype),)


def rotary_position_embedding_tangents(values: Mapping[str, Any], moving: Mapping[str, Array]) -> tuple[Array]:
    """The tangent of the result."""
    mode = values["mode"]
    x, cos, sin = _halves_of_pairs(widened(values["x"]), mode), widened(values["cos"]), widened(values["sin"])
    terms = []
    if "x" in moving:
        tangent = _halves_of_pairs(widened(moving["x"]), mode)
        terms.append(tangent * cos + _quarter_turn(tangent, mode) * sin)
    if "cos" in moving:
        terms.append(x * widened(moving["cos"]))
    if "sin" in moving:
        terms.append(_quarter_turn(x, mode) * widened(moving["sin"]))
    return (sum_of_terms(x, terms),)


def rotary_position_embedding_grad(
    dy: Array, cos: Array, sin: Array, x: Array | None, mode: int
) -> tuple[Array, Array | None, Array | None]:
    """``dx``, ``dcos`` and ``dsin`` of rotary position embedding."""
    wide = widened(dy)
    dx = wide * widened(cos) - _quarter_turn(wide * widened(sin), mode)
    if mode == 3:
        dx = jnp.stack(jnp.split(dx, 2, -1), -1).reshape(dy.shape)
    if x is None:
        return dx.astype(dy.dtype), None, None
    axes = tuple(d for d, size in enumerate(cos.shape[:-1]) if size == 1)
    of_x = _halves_of_pairs(widened(x), mode)
    dcos = jnp.sum(wide * of_x, axes, keepdims=True)
    dsin = jnp.sum(wide * _quarter_turn(of_x, mode), axes, keepdims=True)
    return dx.astype(dy.dtype), dcos.astype(cos.dtype), dsin.astype(sin.dtype)


def _halves_of_pairs(x: Array, mode: int) -> Array:
    """In mode 3 each row's even elements, then its odd ones."""
    return jnp.concatenate((x[..., ::2], x[..., 1::2]), -1) if mode == 3 else x


def _quarter_turn(x: Array, mode: int) -> Array:
    """(-b, a) in the place of each pair (a, b) of a row."""
    if mode == 1:
        return jnp.stack((-x[..., 1::2], x[..., ::2]), -1).reshape(x.shape)
    parts = jnp.split(x, 4 if mode == 2 else 2, -1)
    return jnp.concatenate([part for a, b in zip(parts[::2], parts[1::2], strict=True) for part in (-b, a)], -1)
