"""Softmax and its logarithm, also scaled and masked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from descend.jax.definitions.arrays import Array, widened


def scaled_masked_softmax(x: Array, mask: Array | None, scale: float, fix_triu_mask: bool) -> tuple[Array]:
    """``y`` of the scaled, masked softmax."""
    z = scale * widened(x)
    masked = _masked(x, mask, fix_triu_mask)
    if masked is not None:
        z = jnp.where(masked, -10000.0, z)
    return (jax.nn.softmax(z, -1).astype(x.dtype),)


def scaled_masked_softmax_tangents(values: Mapping[str, Any], moving: Mapping[str, Array]) -> tuple[Array]:
    """The tangent of ``y``."""
    y, tx = widened(values["y"]), values["scale"] * widened(moving["x"])
    masked = _masked(y, values["mask"], values["fix_triu_mask"])
    if masked is not None:
        tx = jnp.where(masked, 0.0, tx)
    product = y * tx
    return (product - y * jnp.sum(product, -1, keepdims=True),)


def scaled_masked_softmax_backward(
    grad_output: Array, y: Array, mask: Array | None, scale: float, fix_triu_mask: bool
) -> tuple[Array]:
    """The gradient of the scaled, masked softmax."""
    product = widened(grad_output) * widened(y)
    out = scale * (product - widened(y) * jnp.sum(product, -1, keepdims=True))
    masked = _masked(y, mask, fix_triu_mask)
    if masked is not None:
        out = jnp.where(masked, 0.0, out)
    return (out.astype(y.dtype),)


def _masked(x: Array, mask: Array | None, triangle: bool) -> Array | None:
    return jnp.triu(jnp.ones(x.shape[-2:], bool), 1) if triangle else mask


def softmax(x: Array, dim: int) -> tuple[Array]:
    """Softmax along ``dim``."""
    return (_along(x, dim, jax.nn.softmax).astype(x.dtype),)


def log_softmax(x: Array, dim: int) -> tuple[Array]:
    """Log softmax along ``dim``."""
    return (_along(x, dim, jax.nn.log_softmax).astype(x.dtype),)


def _along(x: Array, dim: int, function: Any) -> Array:
    """A function along ``dim``; a number is a vector of one."""
    made: Array = function(jnp.atleast_1d(widened(x)), dim).reshape(x.shape)
    return made


def softmax_tangents(values: Mapping[str, Any], moving: Mapping[str, Array]) -> tuple[Array]:
    """The tangent of the result, which is as its gradient."""
    return (_of_softmax(moving["x"], values["out"], values["dim"]),)


def log_softmax_tangents(values: Mapping[str, Any], moving: Mapping[str, Array]) -> tuple[Array]:
    """The tangent of the result."""
    tx, y, dim = jnp.atleast_1d(widened(moving["x"])), jnp.atleast_1d(widened(values["out"])), values["dim"]
    return ((tx - jnp.sum(jnp.exp(y) * tx, dim, keepdims=True)).reshape(values["out"].shape),)


def softmax_backward(grad_output: Array, output: Array, dim: int) -> tuple[Array]:
    """The gradient of softmax."""
    return (_of_softmax(grad_output, output, dim).astype(grad_output.dtype),)


def log_softmax_backward(grad_output: Array, output: Array, dim: int) -> tuple[Array]:
    """The gradient of log softmax."""
    dy, y = jnp.atleast_1d(widened(grad_output)), jnp.atleast_1d(widened(output))
    dx = dy - jnp.exp(y) * jnp.sum(dy, dim, keepdims=True)
    return (dx.reshape(output.shape).astype(grad_output.dtype),)


def _of_softmax(v: Array, y: Array, dim: int) -> Array:
    v, wide = jnp.atleast_1d(widened(v)), jnp.atleast_1d(widened(y))
    return ((v - jnp.sum(v * wide, dim, keepdims=True)) * wide).reshape(y.shape)
