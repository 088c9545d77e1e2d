"""What the definitions share: the dtypes of the arithmetic, and sums."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

Array = jax.Array


def statistics_dtype(x: Array) -> Any:
    """The dtype of mean and rstd: float64 for float64 input, else float32."""
    return jnp.float64 if x.dtype == jnp.float64 else jnp.float32


def widened(array: Array) -> Array:
    """The array in the dtype of the arithmetic."""
    return array if array.dtype == jnp.float64 else array.astype(jnp.float32)


def dimensions(x: Array, normalized: int) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """The dimensions of the rows, those within a row, and the shape of the statistics."""
    split = x.ndim - normalized
    return tuple(range(split)), tuple(range(split, x.ndim)), (*x.shape[:split], *[1] * normalized)


def mean_of(x: Array, axes: Sequence[int]) -> Array:
    """The mean over axes, which stay with size 1."""
    return jnp.mean(x, tuple(axes), keepdims=True)


def sum_of_terms(like: Array, terms: Sequence[Array]) -> Array:
    """The sum of arrays shaped as ``like``; zeros if there are none."""
    return sum(terms, start=jnp.zeros_like(like))
