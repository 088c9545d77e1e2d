"""Cross entropy."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from descend.reference.arrays import Float64, float64


@np.errstate(all="ignore")
def cross_entropy_loss(
    input: npt.ArrayLike,
    target: npt.ArrayLike,
    weight: npt.ArrayLike | None = None,
    reduction: str = "mean",
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    lse_square_scale_for_zloss: float = 0.0,
    return_zloss: bool = False,
) -> tuple[Float64, Float64, Float64 | None, Float64 | None]:
    """Cross entropy, as aclnnCrossEntropyLoss defines it, with the zloss that its gradient's page has.

    Shapes: ``input`` [N, C], ``target`` [N], ``weight`` [C]. Returns ``loss`` ([1], or [N] for "none"), ``log_prob``
    [N, C], ``zloss`` shaped as ``loss`` where ``return_zloss`` is true and ``lse`` [N] where the scale is not 0, else
    None, all float64::

        lse      = log(sum over c of exp(input))
        log_prob = input - lse
        loss     = -(1 - s) * weight[t] * log_prob[t] - s / C * sum over c of weight * log_prob
        zloss    = scale * lse^2, which is added to the loss

    A row whose target is ``ignore_index`` counts for nothing; one whose target is no class is NaN. "mean" divides
    losses by the sum of weight[t], zlosses by the rows that count. Raises ValueError where the shapes do not fit, and
    for another ``reduction`` than "mean", "sum" and "none".
    """
    _check_reduction(reduction)
    scores = float64(input)
    counts, target, of_classes, of_target = _targets(scores, target, weight, ignore_index)
    most = scores.max(1, initial=-np.inf)
    log = np.log(np.exp(scores - most[:, None]).sum(1))
    log_prob = (scores - most[:, None]) - log[:, None]
    smooth = -(log_prob * of_classes).sum(1) if label_smoothing else 0.0
    loss = -of_target * np.take_along_axis(log_prob, target[:, None], 1)[:, 0]
    loss = np.where(counts, (1 - label_smoothing) * loss + label_smoothing / scores.shape[1] * smooth, 0)
    lse = most + log
    zloss = np.where(counts, lse_square_scale_for_zloss * lse * lse, 0)
    if reduction != "none":
        loss, zloss = loss.sum(keepdims=True), zloss.sum(keepdims=True)
    if reduction == "mean":
        loss, zloss = loss / of_target.sum(), zloss / counts.sum()
    scaled = lse_square_scale_for_zloss != 0
    return loss + zloss if scaled else loss, log_prob, zloss if return_zloss else None, lse if scaled else None


@np.errstate(all="ignore")
def cross_entropy_loss_grad(
    grad_loss: npt.ArrayLike,
    log_prob: npt.ArrayLike,
    target: npt.ArrayLike,
    weight: npt.ArrayLike | None = None,
    grad_zloss: npt.ArrayLike | None = None,
    lse_for_zloss: npt.ArrayLike | None = None,
    reduction: str = "mean",
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    lse_square_scale_for_zloss: float = 0.0,
) -> Float64:
    """The gradient of cross entropy, as aclnnCrossEntropyLossGrad defines it.

    Shapes: ``log_prob`` [N, C], ``target`` [N], ``weight`` [C], ``grad_loss`` and ``grad_zloss`` [N] for "none", else
    one number, ``lse_for_zloss`` [N]. With ``lse_for_zloss`` [N, 1] ``log_prob`` is the forward's input. Returns
    float64 [N, C]::

        out = exp(log_prob) * (a + b * sum of weight + z) - b * weight - (a at the target)
        a   = g * (1 - s) * weight[t],  b = g * s / C,  z = 2 * scale * lse * (grad_loss + grad_zloss)

    g is ``grad_loss``, of "mean" over the sum of weight[t]; z of "mean" is over the rows that count. Rows whose target
    is ``ignore_index`` are 0. Raises ValueError where the shapes do not fit, and for another ``reduction`` than "mean",
    "sum" and "none".
    """
    _check_reduction(reduction)
    scores = float64(log_prob)
    counts, target, of_classes, of_target = _targets(scores, target, weight, ignore_index)
    lse = None if lse_for_zloss is None else float64(lse_for_zloss)
    if lse is not None and lse.ndim == 2:
        scores = scores - lse
    grad = float64(grad_loss).reshape(-1)
    both = grad if grad_zloss is None or np.size(grad_zloss) == 0 else grad + float64(grad_zloss).reshape(-1)
    if reduction == "mean":
        grad, both = grad / of_target.sum(), both / counts.sum()
    of_row = grad * (1 - label_smoothing) * of_target
    smooth = np.broadcast_to(grad * (label_smoothing / scores.shape[1]), of_row.shape)
    factor = of_row + smooth * of_classes.sum()
    if lse_square_scale_for_zloss and lse is not None:
        factor = factor + 2 * lse_square_scale_for_zloss * lse.reshape(-1) * both
    out = np.exp(scores) * factor[:, None] - smooth[:, None] * of_classes
    out[np.arange(len(out)), target] -= of_row
    return np.where(counts[:, None], out, 0)


def _check_reduction(reduction: str) -> None:
    if reduction not in ("mean", "sum", "none"):
        raise ValueError(f"reduction is {reduction!r}, but it must be mean, sum or none")


def _targets(
    scores: Float64, target: npt.ArrayLike, weight: npt.ArrayLike | None, ignored: int
) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.int64], Float64, Float64]:
    """Which rows count, their classes (0 where there is none), the classes' weights and the rows' (0: do not count)."""
    target = np.asarray(target, np.int64)
    of_classes = np.ones(scores.shape[1:]) if weight is None else float64(weight)
    if scores.ndim != 2 or target.shape != scores.shape[:1] or of_classes.shape != scores.shape[1:]:
        raise ValueError(f"shapes {scores.shape}, {target.shape} and {of_classes.shape} are not [N, C], [N] and [C]")
    counts, exists = target != ignored, (target >= 0) & (target < scores.shape[1])
    target = np.where(counts & exists, target, 0)
    return counts, target, of_classes, np.where(counts, np.where(exists, of_classes[target], np.nan), 0)
