"""RMS norm with the weight 1 + gamma. Its gradient is RMS norm's with that weight."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from jax import Array

from descend.jax import definitions
from descend.jax.batching import batch_first
from descend.jax.derivatives import add_through_statistics
from descend.jax.library import Operator, Results, Values, call_each
from descend.jax.rms_norm import rms_norm_grad

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


def _transpose(values: Values, cotangents: Sequence[Array | None], wanted: Sequence[str]) -> Values:
    x, gamma, rstd = values["x"], values["gamma"], values["rstd"]
    dy, drstd = cotangents
    dx = dgamma = None
    if dy is not None:
        dx, dgamma = rms_norm_grad(dy, x, rstd, 1 + definitions.widened(gamma))
    if drstd is not None and "x" in wanted:
        dx = add_through_statistics(dx, x, None, rstd, None, drstd, gamma.size)
    return {"x": dx, "gamma": dgamma}


_FORWARD.differentiable(("x", "gamma", "rstd"), definitions.gemma_rms_norm_tangents, _transpose)


@_FORWARD.batched
def _batched(size: int, values: Values, dims: Mapping[str, int]) -> tuple[Results, Sequence[int]]:
    if "gamma" in dims:
        return call_each(_FORWARD, values, dims)
    return _FORWARD(**values | {"x": batch_first(values["x"], dims.get("x"), size)}), (0, 0)
