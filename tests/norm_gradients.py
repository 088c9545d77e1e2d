"""RmsNormGrad and LayerNormBackward behind one interface, for tests that are about both."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

import descend
from cases import DTYPES, Array, arithmetic_of, assert_close, normal, wide
from descend import reference

F32, F16, BF16 = "FLOAT", "FLOAT16", "BFLOAT16"

# Narrow rows are computed 64 at a time, short ones up to 32.
SOME_TILES = [(150, 1), (150, 3), (70, 4), (70, 7), (50, 70), (5, 5000), (5, 9000)]

# Rows divided along the columns: more than the threads share at a time, in one stripe and in several.
MANY_LONG_ROWS = [(300, 16_400), (1030, 16_400), (40, 140_000), (10, 300_000), (33, 4096), (33, 8192), (70, 8192)]

LONG_AND_MANY = [(1, 1_000_003), (300_000, 3), (2, 262_144), (70_001, 1), (33, 16_385), (513, 8192)]


def check_rms_norm_grad(
    dx: Array, dgamma: Array, dy: Array, x: Array, rstd: Array, gamma: Array, roundings: float = 8.0
) -> None:
    """Both results against the definition, within a few roundings of the largest term."""
    # NumPy sums in pairs, and so exactly, only along contiguous memory.
    dy, x = np.ascontiguousarray(dy), np.ascontiguousarray(x)
    golden_dx, golden_dgamma = reference.rms_norm_grad(dy, x, rstd, gamma)
    split = x.ndim - gamma.ndim
    row = tuple(range(split, x.ndim))
    with np.errstate(all="ignore"):
        r = np.abs(wide(rstd)).reshape(x.shape[:split] + (1,) * gamma.ndim)
        g, xhat = np.abs(wide(dy) * wide(gamma)), np.abs(wide(x)) * r
        mean = (g * xhat).sum(axis=row, keepdims=True) / max(gamma.size, 1)
        dx_terms = r * (g + xhat * mean)
        dgamma_terms = (np.abs(wide(dy)) * xhat).sum(axis=tuple(range(split)))
    arithmetic = arithmetic_of(dy, x, rstd, gamma, dx, dgamma)
    if arithmetic == "DOUBLE":
        roundings *= 2  # the definition rounds as often
    assert_close(dx, golden_dx, dx_terms, roundings, arithmetic)
    assert_close(dgamma, golden_dgamma, dgamma_terms, roundings, arithmetic)


def check_layer_norm_backward(results: Any, call: list[Any], roundings: float = 8.0) -> None:
    """The results that are there against the definition, within a few roundings of the largest term."""
    # NumPy sums in pairs, and so exactly, only along contiguous memory.
    dy, x = np.ascontiguousarray(call[0]), np.ascontiguousarray(call[1])
    normalized, mean, rstd, weight = call[2:6]
    golden = reference.layer_norm_backward(dy, x, normalized, mean, rstd, weight)
    k = len(normalized)
    split = x.ndim - k
    row, rows, n = tuple(range(split, x.ndim)), tuple(range(split)), max(math.prod(normalized), 1)
    with np.errstate(all="ignore"):
        r, m = (np.abs(wide(a)).reshape(x.shape[:split] + (1,) * k) for a in (rstd, mean))
        g = np.abs(wide(dy) * (1 if weight is None else wide(weight)))
        xhat = (np.abs(wide(x)) + m) * r
        mean_g = g.sum(axis=row, keepdims=True) / n
        mean_g_xhat = (g * xhat).sum(axis=row, keepdims=True) / n
        terms = (
            r * (g + mean_g + xhat * mean_g_xhat),
            (np.abs(wide(dy)) * xhat).sum(axis=rows),
            np.abs(wide(dy)).sum(axis=rows),
        )
    arrays = [a for a in (*call[:2], *call[3:6], *results) if a is not None]
    arithmetic = arithmetic_of(*arrays)
    if arithmetic == "DOUBLE":
        roundings *= 2  # the definition rounds as often
    for result, exact, term in zip(results, golden, terms, strict=True):
        if result is not None:
            assert exact is not None
            assert_close(result, exact.reshape(result.shape), term.reshape(result.shape), roundings, arithmetic)


# Both operators on a matrix: dy and x [M, N], mean and rstd [M], weight [N]. RmsNormGrad does not read mean.

GRADIENTS = ("rms_norm_grad", "layer_norm_backward")


def compute(
    operator: str, dy: Array, x: Array, mean: Array, rstd: Array, weight: Array, out: Any = None
) -> tuple[Array, ...]:
    """dx, the weight's gradient and, of LayerNormBackward, the bias's; `out` may have places for all three."""
    if operator == "rms_norm_grad":
        return descend.rms_norm_grad(dy, x, rstd, weight, out=out if out is None else tuple(out[:2]))
    return descend.layer_norm_backward(dy, x, weight.shape, mean, rstd, weight, None, out=out)


def check(operator: str, results: Any, dy: Array, x: Array, mean: Array, rstd: Array, weight: Array) -> None:
    """All results against the definition."""
    if operator == "rms_norm_grad":
        check_rms_norm_grad(*results, dy, x, rstd, weight)
    else:
        check_layer_norm_backward(results, [dy, x, weight.shape, mean, rstd, weight, None])


def golden(operator: str, dy: Array, x: Array, mean: Array, rstd: Array, weight: Array) -> tuple[Any, ...]:
    """What the definition says, in float64."""
    if operator == "rms_norm_grad":
        return reference.rms_norm_grad(dy, x, rstd, weight)
    return reference.layer_norm_backward(dy, x, weight.shape, mean, rstd, weight)


def statistics(operator: str, x: Array, more: float = 0.0) -> tuple[Array, Array]:
    """mean and rstd of the rows in float32; `more` is added to the deviation, times the mean of |x|."""
    mean = np.zeros(len(x)) if operator == "rms_norm_grad" else wide(x).mean(axis=1)
    deviation = np.sqrt(((wide(x) - mean[:, None]) ** 2).mean(axis=1)) + more * np.abs(wide(x)).mean(axis=1)
    return mean.astype(np.float32), (1 / deviation).astype(np.float32)


def realistic(operator: str, shape: tuple[int, int], dtype: str, seed: int = 11, statistic: str = F32) -> list[Any]:
    """Inputs as the forward operator hands them over."""
    rng = np.random.default_rng(seed)
    dy, x, weight = normal(rng, shape, dtype), normal(rng, shape, dtype), normal(rng, shape[1:], dtype)
    if operator == "rms_norm_grad":
        mean, rstd = np.zeros(shape[0]), descend.rms_norm(x, weight)[1]
    else:
        _, mean, rstd = descend.layer_norm(x, shape[1:], weight)
    return [dy, x, *(a.reshape(-1).astype(DTYPES[statistic]) for a in (mean, rstd)), weight]
