"""SwiGLU and GELU."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from descend.jax.definitions.arrays import Array, widened

# --- SwiGLU ----------------------------------------------------------------------------------------------------------


def swi_glu(x: Array, dim: int) -> tuple[Array]:
    """SwiGLU of the halves of ``x``."""
    a, b = jnp.split(widened(x), 2, dim)
    return ((a * jax.nn.sigmoid(a) * b).astype(x.dtype),)


def swi_glu_tangents(values: Mapping[str, Any], moving: Mapping[str, Array]) -> tuple[Array]:
    """The tangent of the result."""
    a, b = jnp.split(widened(values["x"]), 2, values["dim"])
    ta, tb = jnp.split(widened(moving["x"]), 2, values["dim"])
    sig = jax.nn.sigmoid(a)
    return (sig * (1 + a * (1 - sig)) * b * ta + a * sig * tb,)


def swi_glu_grad(y_grad: Array, x: Array, dim: int) -> tuple[Array]:
    """The gradient of SwiGLU."""
    a, b = jnp.split(widened(x), 2, dim)
    sig, dy = jax.nn.sigmoid(a), widened(y_grad)
    return (jnp.concatenate((dy * sig * (1 + a * (1 - sig)) * b, dy * sig * a), dim).astype(x.dtype),)


# --- GELU ------------------------------------------------------------------------------------------------------------


def gelu_v2(x: Array, approximate: int) -> tuple[Array]:
    """GELU of ``x``."""
    return (jax.nn.gelu(widened(x), approximate=approximate == 1).astype(x.dtype),)


def gelu_slope(x: Array, by_tanh: bool) -> Array:
    """The slope of GELU at ``x``, not rounded to its dtype."""
    wide = widened(x)
    if not by_tanh:
        return jax.scipy.special.ndtr(wide) + wide * jnp.exp(-wide * wide / 2) / math.sqrt(2 * math.pi)
    steep, cube = math.sqrt(8 / math.pi), 0.044715
    near = jnp.clip(wide, -100, 100)  # beyond, the slope is 0 or 1, and x^2 may overflow
    sig = jax.nn.sigmoid(steep * (near + cube * near**3))
    return sig * (1 + near * (1 - sig) * steep * (1 + 3 * cube * near**2))


def gelu_v2_tangents(values: Mapping[str, Any], moving: Mapping[str, Array]) -> tuple[Array]:
    """The tangent of the result."""
    return (gelu_slope(values["x"], values["approximate"] == 1) * widened(moving["x"]),)


def gelu_backward_v2(grad_output: Array, x: Array, approximate: str) -> tuple[Array]:
    """The gradient of GELU."""
    dtype = jnp.promote_types(grad_output.dtype, x.dtype)
    return ((widened(grad_output) * gelu_slope(x, approximate == "tanh")).astype(dtype),)
