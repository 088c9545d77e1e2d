"""What the norms' derivatives share."""

from __future__ import annotations

import jax
import jax.numpy as jnp


def add_through_statistics(
    dx: jax.Array | None,
    x: jax.Array,
    mean: jax.Array | None,
    rstd: jax.Array,
    dmean: jax.Array | None,
    drstd: jax.Array | None,
    elements: int,
) -> jax.Array:
    """A norm's ``dx`` with the part that comes through its statistics, which broadcast to ``x``::

    dx + (dmean - drstd * rstd^3 * (x - mean)) / elements        elements of a row; mean 0 for RMS norm

    Multiplied in an order in which no factor leaves its range.
    """
    part = jnp.zeros_like(rstd) if dmean is None else dmean / elements
    if drstd is not None:
        centred = x if mean is None else x - mean
        part = part - drstd * rstd / elements * rstd * (rstd * centred)
    whole = part if dx is None else dx + part
    return jnp.broadcast_to(whole, x.shape).astype(x.dtype)
