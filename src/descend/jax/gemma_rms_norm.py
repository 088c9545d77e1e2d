"""RMS norm with the weight 1 + gamma. Its gradient is RMS norm's with that weight."""

from __future__ import annotations

from jax import Array

from descend.jax import definitions
from descend.jax.library import Operator
from descend.jax.rms_norm import define

_FORWARD = Operator("gemma_rms_norm", definitions.gemma_rms_norm)


def gemma_rms_norm(x: Array, gamma: Array, epsilon: float = 1e-6) -> tuple[Array, Array]:
    """RMS norm as Gemma has it. Differentiable in ``x`` and ``gamma``::

        rstd = 1 / sqrt(mean(x * x over the row) + epsilon)
        y    = x * rstd * (1 + gamma)

    Shapes: ``gamma`` has the last dimensions of ``x``. Floating dtypes, mixed at will. Returns ``y`` like ``x`` and
    ``rstd``, float32 (float64 for float64 ``x``), of ``x``'s rank with 1 for each dimension of ``gamma``.

    Raises AclnnError (a ValueError) where the shapes or dtypes do not fit. Source: aclnnGemmaRmsNorm.
    """
    y, rstd = _FORWARD(x=x, gamma=gamma, epsilon=epsilon)
    return y, rstd


define(_FORWARD, definitions.gemma_rms_norm_tangents, lambda gamma: 1 + definitions.widened(gamma))
