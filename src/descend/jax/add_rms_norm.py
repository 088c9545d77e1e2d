"""RMS norm of a sum. Its gradient is RMS norm's, of the sum."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from jax import Array

from descend.jax import definitions
from descend.jax.batching import batch_first
from descend.jax.derivatives import add_through_statistics
from descend.jax.library import Operator, Results, Values, call_each
from descend.jax.rms_norm import rms_norm_grad

_FORWARD = Operator("add_rms_norm", definitions.add_rms_norm)


def add_rms_norm(x1: Array, x2: Array, gamma: Array, epsilon: float = 1e-6) -> tuple[Array, Array, Array]:
    """RMS norm of a sum, and the sum. Differentiable in ``x1``, ``x2`` and ``gamma``::

        x    = x1 + x2
        rstd = 1 / sqrt(mean(x * x over the row) + epsilon)
        y    = x * rstd * gamma

    Shapes: ``x2`` as ``x1``; ``gamma`` has the last dimensions of ``x1``. Floating dtypes, mixed at will. Returns ``y``
    like ``x1``, ``rstd``, float32 (float64 for float64 ``x1``), of ``x1``'s rank with 1 for each dimension of
    ``gamma``, and ``x`` like ``x1``. ``y`` is computed from the sum before that is rounded; its gradients are those of
    `rms_norm_grad`, from ``x``.

    Raises AclnnError (a ValueError) where the shapes or dtypes do not fit. Source: aclnnAddRmsNorm.
    """
    y, rstd, x = _FORWARD(x1=x1, x2=x2, gamma=gamma, epsilon=epsilon)
    return y, rstd, x


def _transpose(values: Values, cotangents: Sequence[Array | None], wanted: Sequence[str]) -> Values:
    x, gamma, rstd = values["x"], values["gamma"], values["rstd"]
    dy, drstd, dx = cotangents
    dgamma = None
    if dy is not None:
        through_y, dgamma = rms_norm_grad(dy, x, rstd, gamma)
        dx = through_y if dx is None else dx + through_y
    if drstd is not None and ("x1" in wanted or "x2" in wanted):
        dx = add_through_statistics(dx, x, None, rstd, None, drstd, gamma.size)
    return {"x1": dx, "x2": dx, "gamma": dgamma}


_FORWARD.differentiable(("x", "gamma", "rstd"), definitions.add_rms_norm_tangents, _transpose)


@_FORWARD.batched
def _batched(size: int, values: Values, dims: Mapping[str, int]) -> tuple[Results, Sequence[int]]:
    if "gamma" in dims:
        return call_each(_FORWARD, values, dims)
    terms = {name: batch_first(values[name], dims.get(name), size) for name in ("x1", "x2")}
    return _FORWARD(**values | terms), (0, 0, 0)
