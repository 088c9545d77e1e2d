"""Layer norm and its gradient."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from jax import Array

from descend.jax import definitions
from descend.jax.batching import batch_first
from descend.jax.derivatives import add_through_statistics
from descend.jax.library import Operator, Results, Values, call_each

_FORWARD = Operator("layer_norm", definitions.layer_norm)
_BACKWARD = Operator("layer_norm_backward", definitions.layer_norm_backward, lambda values: values["output_mask"])


def layer_norm(
    input: Array,
    normalized_shape: Sequence[int],
    weight: Array | None = None,
    bias: Array | None = None,
    eps: float = 1e-5,
) -> tuple[Array, Array, Array]:
    """Layer norm over the last dimensions. Differentiable in ``input``, ``weight`` and ``bias``::

        mean, var = mean and biased variance over the row
        rstd      = 1 / sqrt(var + eps)
        out       = (input - mean) * rstd * weight + bias

    Shapes: ``normalized_shape``, which ``weight`` and ``bias`` have, are the last dimensions of ``input``. Floating
    dtypes, mixed at will. Returns ``out`` like ``input``, and ``mean`` and ``rstd``, float32 (float64 for float64
    ``input``), of ``input``'s rank with 1 for each normalised dimension.

    Raises AclnnError (a ValueError) where the shapes or dtypes do not fit. Source: aclnnLayerNorm.
    """
    out, mean, rstd = _FORWARD(input=input, normalized_shape=normalized_shape, weight=weight, bias=bias, eps=eps)
    return out, mean, rstd


def layer_norm_backward(
    grad_out: Array,
    input: Array,
    normalized_shape: Sequence[int],
    mean: Array,
    rstd: Array,
    weight: Array | None = None,
    bias: Array | None = None,
    output_mask: Sequence[bool] = (True, True, True),
) -> tuple[Array | None, Array | None, Array | None]:
    """Gradients of layer norm, None where ``output_mask`` is false; differentiable in all arrays::

        xhat        = (input - mean) * rstd
        g           = grad_out * weight
        grad_input  = rstd * (g - mean(g over the row) - xhat * mean(g * xhat over the row))
        grad_weight = sum over rows of grad_out * xhat
        grad_bias   = sum over rows of grad_out

    Shapes: ``grad_out`` as ``input``, ``mean`` and ``rstd`` one number a row, the rest as in `layer_norm`; ``bias``
    gives its dtype alone. Returns gradients with the shapes and dtypes of what they are for.

    Raises AclnnError (a ValueError) where the shapes or dtypes do not fit. Source: aclnnLayerNormBackward.
    """
    grad_input, grad_weight, grad_bias = _BACKWARD(
        grad_out=grad_out,
        input=input,
        normalized_shape=normalized_shape,
        mean=mean,
        rstd=rstd,
        weight=weight,
        bias=bias,
        output_mask=output_mask,
    )
    return grad_input, grad_weight, grad_bias


def _transpose(values: Values, cotangents: Sequence[Array | None], wanted: Sequence[str]) -> Values:
    x, shape, mean, rstd = (values[name] for name in ("input", "normalized_shape", "mean", "rstd"))
    grad_out, dmean, drstd = cotangents
    found: Values = dict.fromkeys(("input", "weight", "bias"))
    if grad_out is not None:
        mask = tuple(name in wanted for name in found)
        results = layer_norm_backward(grad_out, x, shape, mean, rstd, values["weight"], values["bias"], mask)
        found = dict(zip(found, results, strict=True))
    if "input" in wanted and not (dmean is None and drstd is None):
        found["input"] = add_through_statistics(found["input"], x, mean, rstd, dmean, drstd, math.prod(shape))
    return found


_SAVED = ("input", "weight", "bias", "mean", "rstd")
_FORWARD.differentiable(_SAVED, definitions.layer_norm_tangents, _transpose)


@_FORWARD.batched
def _batched_forward(size: int, values: Values, dims: Mapping[str, int]) -> tuple[Results, Sequence[int]]:
    if "weight" in dims or "bias" in dims:
        return call_each(_FORWARD, values, dims)
    return _FORWARD(**values | {"input": batch_first(values["input"], dims.get("input"), size)}), (0, 0, 0)
