"""Cross entropy of scores with the class of each row, and its gradient."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jax import Array

from descend.jax import definitions
from descend.jax.library import Operator, Values

_FORWARD = Operator(
    "cross_entropy_loss",
    definitions.cross_entropy_loss,
    lambda values: (True, True, bool(values["return_zloss"]), values["lse_square_scale_for_zloss"] != 0),
)
_BACKWARD = Operator("cross_entropy_loss_grad", definitions.cross_entropy_loss_grad)


def cross_entropy_loss(
    input: Array,
    target: Array,
    weight: Array | None = None,
    reduction: str = "mean",
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    lse_square_scale_for_zloss: float = 0.0,
    return_zloss: bool = False,
) -> tuple[Array, Array, Array | None, Array | None]:
    """Cross entropy, as CANN has it. Differentiable in ``input`` and ``weight``, through all results::

        lse      = log(sum over c of exp(input))
        log_prob = input - lse
        loss     = -(1 - s) * weight[t] * log_prob[t] - s / C * sum over c of weight * log_prob
        zloss    = scale * lse^2, which is added to the loss

    t is the row's target and s ``label_smoothing``. "mean" divides losses by the sum of weight[t], zlosses by the
    number of rows; rows whose target is ``ignore_index`` count for nothing, and one whose target is no class gets NaN.

    Shapes: ``input`` [N, C], a floating dtype; ``target`` [N], int32 or int64; ``weight`` [C]. Returns ``loss`` ([1],
    or [N] for "none"), ``log_prob`` [N, C], ``zloss`` where ``return_zloss`` is true, and ``lse`` [N] where the scale
    is not 0; else None.

    Raises AclnnError (a ValueError) where shapes, dtypes or attributes do not fit. Source: aclnnCrossEntropyLoss.
    """
    loss, log_prob, zloss, lse = _FORWARD(
        input=input,
        target=target,
        weight=weight,
        reduction=reduction,
        ignore_index=ignore_index,
        label_smoothing=label_smoothing,
        lse_square_scale_for_zloss=lse_square_scale_for_zloss,
        return_zloss=return_zloss,
    )
    return loss, log_prob, zloss, lse


def cross_entropy_loss_grad(
    grad_loss: Array,
    log_prob: Array,
    target: Array,
    weight: Array | None = None,
    grad_zloss: Array | None = None,
    lse_for_zloss: Array | None = None,
    reduction: str = "mean",
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    lse_square_scale_for_zloss: float = 0.0,
) -> Array:
    """The gradient of cross entropy for its input; differentiable in all floating arrays::

        out = exp(log_prob) * (a + b * sum of weight + z) - b * weight - (a at the target)
        a   = g * (1 - s) * weight[t],  b = g * s / C,  z = 2 * scale * lse * (grad_loss + grad_zloss)

    g is ``grad_loss``, of "mean" over the sum of weight[t]; z of "mean" is over the number of rows that count.

    Shapes: ``log_prob`` [N, C]; ``grad_loss`` and ``grad_zloss`` [N] for "none", else one number; ``lse_for_zloss``
    [N], or [N, 1]: then ``log_prob`` is the forward's input, of which it is taken away first. Returns the gradient,
    like ``log_prob``.

    Raises AclnnError (a ValueError) where shapes, dtypes or attributes do not fit. Source: aclnnCrossEntropyLossGrad.
    """
    out: Array
    (out,) = _BACKWARD(
        grad_loss=grad_loss,
        log_prob=log_prob,
        target=target,
        weight=weight,
        grad_zloss=grad_zloss,
        lse_for_zloss=lse_for_zloss,
        reduction=reduction,
        ignore_index=ignore_index,
        label_smoothing=label_smoothing,
        lse_square_scale_for_zloss=lse_square_scale_for_zloss,
    )
    return out


def _transpose(values: Values, cotangents: Sequence[Array | None], wanted: Sequence[str]) -> dict[str, Any]:
    return definitions.cross_entropy_loss_gradients(values, cotangents, cross_entropy_loss_grad)


_FORWARD.differentiable(
    ("target", "weight", "log_prob", "lse_for_zloss"), definitions.cross_entropy_loss_tangents, _transpose
)
