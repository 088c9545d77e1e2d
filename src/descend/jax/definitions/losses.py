"""Cross entropy."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from descend.jax.definitions.arrays import Array, widened


def cross_entropy_loss(
    input: Array,
    target: Array,
    weight: Array | None,
    reduction: str,
    ignore_index: int,
    label_smoothing: float,
    lse_square_scale_for_zloss: float,
    return_zloss: bool,
) -> tuple[Array, Array, Array | None, Array | None]:
    """``loss``, ``log_prob``, ``zloss`` and ``lse`` of cross entropy."""
    wide, scale = widened(input), lse_square_scale_for_zloss
    lse = jax.nn.logsumexp(wide, 1)
    log_prob = wide - lse[:, None]
    rows = _Targets(wide, target, ignore_index)
    loss, zloss = rows.losses(log_prob, lse, _weights(wide, weight), reduction, label_smoothing, scale)
    return (
        loss.astype(input.dtype),
        log_prob.astype(input.dtype),
        zloss.astype(input.dtype) if return_zloss else None,
        lse.astype(input.dtype) if scale else None,
    )


def cross_entropy_loss_tangents(values: Mapping[str, Any], moving: Mapping[str, Array]) -> tuple[Array, ...]:
    """The tangents of all results that there are."""
    log_prob, scale = widened(values["log_prob"]), values["lse_square_scale_for_zloss"]
    lse = widened(values["lse_for_zloss"]) if scale else jnp.zeros(log_prob.shape[:1], log_prob.dtype)
    weight, zero = _weights(log_prob, values["weight"]), jnp.zeros_like
    direct = widened(moving["input"]) if "input" in moving else zero(log_prob)
    of_weight = widened(moving["weight"]).astype(log_prob.dtype) if "weight" in moving else zero(weight)
    of_lse = jnp.sum(jnp.exp(log_prob) * direct, 1)
    of_log_prob = direct - of_lse[:, None]
    rows = _Targets(log_prob, values["target"], values["ignore_index"])
    losses = functools.partial(
        rows.losses, reduction=values["reduction"], smoothing=values["label_smoothing"], scale=scale
    )
    _, (loss, zloss) = jax.jvp(losses, (log_prob, lse, weight), (of_log_prob, of_lse, of_weight))
    wanted = (True, True, values["return_zloss"], scale != 0)
    return tuple(t for t, w in zip((loss, of_log_prob, zloss, of_lse), wanted, strict=True) if w)


def cross_entropy_loss_gradients(
    values: Mapping[str, Any], cotangents: Sequence[Array | None], gradient: Callable[..., Array]
) -> dict[str, Array]:
    """The gradients of ``input`` and ``weight``; ``gradient`` is the operator that is the one through the loss."""
    log_prob, target, weight, scale = (
        values[name] for name in ("log_prob", "target", "weight", "lse_square_scale_for_zloss")
    )
    given = dict(zip(present_of(values), cotangents, strict=True))
    names = ("reduction", "ignore_index", "label_smoothing", "lse_square_scale_for_zloss")
    loss, zloss = given["loss"], given.get("zloss")
    found, parts = {}, []
    if loss is not None or zloss is not None:
        grad = jnp.zeros(zloss.shape, zloss.dtype) if loss is None and zloss is not None else loss
        lse = values["lse_for_zloss"] if scale else None
        parts.append(gradient(grad, log_prob, target, weight, zloss, lse, *(values[name] for name in names)))
    wide, direct, of_lse = widened(log_prob), given["log_prob"], given.get("lse_for_zloss")
    if direct is not None or of_lse is not None:
        direct = jnp.zeros_like(wide) if direct is None else widened(direct)
        through = -jnp.sum(direct, 1) + (0 if of_lse is None else widened(of_lse))
        parts.append(direct + jnp.exp(wide) * through[:, None])
    if parts:
        found["input"] = parts[0] if len(parts) == 1 else widened(parts[0]) + parts[1]
    if weight is not None and loss is not None:
        rows = _Targets(wide, target, values["ignore_index"])
        zero = jnp.zeros(wide.shape[:1], wide.dtype)

        def of_weight(weights: Array) -> Array:
            return rows.losses(wide, zero, weights, values["reduction"], values["label_smoothing"], 0.0)[0]

        _, pull = jax.vjp(of_weight, _weights(wide, weight))
        found["weight"] = pull(loss.astype(wide.dtype))[0]
    return found


def present_of(values: Mapping[str, Any]) -> list[str]:
    """The results of cross entropy that there are."""
    wanted = (True, True, values["return_zloss"], values["lse_square_scale_for_zloss"] != 0)
    return [n for n, w in zip(("loss", "log_prob", "zloss", "lse_for_zloss"), wanted, strict=True) if w]


def cross_entropy_loss_grad(
    grad_loss: Array,
    log_prob: Array,
    target: Array,
    weight: Array | None,
    grad_zloss: Array | None,
    lse_for_zloss: Array | None,
    reduction: str,
    ignore_index: int,
    label_smoothing: float,
    lse_square_scale_for_zloss: float,
) -> tuple[Array]:
    """The gradient of cross entropy for its input."""
    scores, scale = widened(log_prob), lse_square_scale_for_zloss
    rows, weights = _Targets(scores, target, ignore_index), _weights(scores, weight)
    if lse_for_zloss is not None and lse_for_zloss.ndim == 2:
        scores = scores - lse_for_zloss.astype(scores.dtype)
    grad = grad_loss.astype(scores.dtype).reshape(-1)
    both = grad if grad_zloss is None or not grad_zloss.size else grad + grad_zloss.astype(scores.dtype).reshape(-1)
    of_rows = rows.weight(weights)
    if reduction == "mean":
        grad, both = grad / jnp.sum(of_rows), both / jnp.sum(rows.counts)
    of_row = grad * (1 - label_smoothing) * of_rows
    smooth = jnp.broadcast_to(grad * (label_smoothing / log_prob.shape[1]), of_row.shape)
    factor = of_row + smooth * jnp.sum(weights)
    if scale and lse_for_zloss is not None:
        factor = factor + 2 * scale * lse_for_zloss.astype(scores.dtype).reshape(-1) * both
    out = jnp.exp(scores) * factor[:, None] - smooth[:, None] * weights
    out = out.at[jnp.arange(len(out)), rows.target].add(-of_row)
    return (jnp.where(rows.counts[:, None], out, 0).astype(log_prob.dtype),)


def _weights(scores: Array, weight: Array | None) -> Array:
    return jnp.ones(scores.shape[1], scores.dtype) if weight is None else weight.astype(scores.dtype)


class _Targets:
    """Of each row whether it counts, and its class, 0 where there is none."""

    def __init__(self, scores: Array, target: Array, ignored: int) -> None:
        self.counts, self._exists = target != ignored, (target >= 0) & (target < scores.shape[1])
        self.target = jnp.where(self.counts & self._exists, target, 0)

    def weight(self, weights: Array) -> Array:
        """The weights of the rows, NaN where there is no class, 0 where they do not count."""
        return jnp.where(self.counts, jnp.where(self._exists, weights[self.target], jnp.nan), 0)

    def losses(
        self, log_prob: Array, lse: Array, weights: Array, reduction: str, smoothing: float, scale: float
    ) -> tuple[Array, Array]:
        """``loss`` and ``zloss``."""
        of_rows = self.weight(weights)
        loss = -(1 - smoothing) * of_rows * jnp.take_along_axis(log_prob, self.target[:, None], 1)[:, 0]
        if smoothing:
            loss = loss - smoothing / log_prob.shape[1] * jnp.where(self.counts, jnp.sum(log_prob * weights, 1), 0)
        zloss = jnp.where(self.counts, scale * lse * lse, 0)
        if reduction != "none":
            loss, zloss = jnp.sum(loss)[None], jnp.sum(zloss)[None]
        if reduction == "mean":
            loss, zloss = loss / jnp.sum(of_rows), zloss / jnp.sum(self.counts)
        return (loss + zloss if scale else loss), zloss
