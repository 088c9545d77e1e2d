"""What the operators' rules for ``jax.vmap`` share."""

from __future__ import annotations

import jax
import jax.numpy as jnp


def batch_first(array: jax.Array, dim: int | None, size: int) -> jax.Array:
    """The array with its batch dimension in front; one without is repeated."""
    return jnp.broadcast_to(array, (size, *array.shape)) if dim is None else jnp.moveaxis(array, dim, 0)


def batch_second(array: jax.Array, dim: int | None, size: int) -> jax.Array:
    """[X, Y, ...] of each sample as [X, size * Y, ...]: the batch becomes more channels, groups or heads."""
    first = batch_first(array, dim, size)
    return first.swapaxes(0, 1).reshape(first.shape[1], size * first.shape[2], *first.shape[3:])


def apart(array: jax.Array | None, dim: int, size: int) -> jax.Array | None:
    """A dimension of size * Y as two, size and Y."""
    if array is None:
        return None
    return array.reshape(*array.shape[:dim], size, array.shape[dim] // size, *array.shape[dim + 1 :])
