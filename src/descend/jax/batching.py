"""What the operators' rules for ``jax.vmap`` share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from descend.jax.library import Operator, Results, Values


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


def call_each(operator: Operator, values: Values, dims: Mapping[str, int]) -> tuple[Results, Sequence[int]]:
    """One call a sample, one after the other, where the samples' sums over rows must not mix."""
    moved = {name: jnp.moveaxis(values[name], dim, 0) for name, dim in dims.items()}

    def one(sample: Mapping[str, Any]) -> Results:
        return operator(**{**values, **sample})

    results: Results = jax.lax.map(one, moved)
    return results, [0] * len(results)
