"""RMS norm and layer norm, also of sums."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from descend.torch.definitions.tensors import dimensions, mean_of, sum_over, widened
from descend.torch.library import statistics_dtype


def rms_norm(x: Tensor, gamma: Tensor, epsilon: float = 1e-6) -> tuple[Tensor, Tensor]:
    """``y`` and ``rstd`` of RMS norm."""
    _, row, _ = dimensions(x, gamma.dim())
    wide = widened(x)
    rstd = (mean_of(wide * wide, row) + epsilon).rsqrt()
    return (wide * rstd * widened(gamma)).to(x.dtype), rstd.to(statistics_dtype(x))


def add_rms_norm(x1: Tensor, x2: Tensor, gamma: Tensor, epsilon: float = 1e-6) -> tuple[Tensor, Tensor, Tensor]:
    """``y``, ``rstd`` and ``x`` of the RMS norm of ``x1 + x2``."""
    x = widened(x1) + widened(x2)
    y, rstd = rms_norm(x, gamma, epsilon)
    return y.to(x1.dtype), rstd.to(statistics_dtype(x1)), x.to(x1.dtype)


def gemma_rms_norm(x: Tensor, gamma: Tensor, epsilon: float = 1e-6) -> tuple[Tensor, Tensor]:
    """``y`` and ``rstd`` of the RMS norm with ``1 + gamma``."""
    return rms_norm(x, 1 + widened(gamma), epsilon)


def rms_norm_grad(dy: Tensor, x: Tensor, rstd: Tensor, gamma: Tensor) -> tuple[Tensor, Tensor]:
    """``dx`` and ``dgamma`` of RMS norm."""
    rows, row, statistics = dimensions(x, gamma.dim())
    wide_dy, r = widened(dy), widened(rstd).reshape(statistics)
    xhat, g = widened(x) * r, wide_dy * widened(gamma)
    dx = r * (g - xhat * mean_of(g * xhat, row))
    return dx.to(x.dtype), sum_over(wide_dy * xhat, rows).to(statistics_dtype(x))


def layer_norm(
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> tuple[Tensor, Tensor, Tensor]:
    """``out``, ``mean`` and ``rstd`` of layer norm."""
    _, row, _ = dimensions(input, len(normalized_shape))
    wide = widened(input)
    mean = mean_of(wide, row)
    centred = wide - mean
    rstd = (mean_of(centred * centred, row) + eps).rsqrt()
    out = centred * rstd
    if weight is not None:
        out = out * widened(weight)
    if bias is not None:
        out = out + widened(bias)
    return out.to(input.dtype), mean.to(statistics_dtype(input)), rstd.to(statistics_dtype(input))


def deep_norm(
    x: Tensor, gx: Tensor, beta: Tensor, gamma: Tensor, alpha: float = 0.3, epsilon: float = 1e-6
) -> tuple[Tensor, Tensor, Tensor]:
    """``mean``, ``rstd`` and ``y`` of deep norm."""
    y, mean, rstd = layer_norm(widened(x) * alpha + widened(gx), gamma.shape, gamma, beta, epsilon)
    return mean.to(statistics_dtype(x)), rstd.to(statistics_dtype(x)), y.to(x.dtype)


def add_layer_norm(
    x1: Tensor,
    x2: Tensor,
    gamma: Tensor,
    beta: Tensor,
    bias: Tensor | None = None,
    epsilon: float = 1e-5,
    additional_output: bool = False,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """``y``, ``mean``, ``rstd`` and ``x`` of the layer norm of ``x1 + x2 + bias``."""
    x = sum_of(x1, x2, bias)
    y, mean, rstd = layer_norm(x, gamma.shape, gamma, beta, epsilon)
    dtype, wide = sum_dtype(x1, x2), statistics_dtype(x1)
    return y.to(dtype), mean.to(wide), rstd.to(wide), x.to(dtype) if additional_output else None


def sum_of(x1: Tensor, x2: Tensor, bias: Tensor | None) -> Tensor:
    """Their sum in the type of the arithmetic."""
    x = widened(x1) + widened(x2)
    return x if bias is None else x + widened(bias)


def sum_dtype(x1: Tensor, x2: Tensor) -> torch.dtype:
    """The dtype of add_layer_norm's results of rows: float32, or float64, where the terms have two."""
    either = torch.promote_types(x1.dtype, x2.dtype)
    return either if x1.dtype is x2.dtype or either is torch.float64 else torch.float32


def add_layer_norm_grad(
    dy: Tensor,
    x1: Tensor,
    x2: Tensor | None,
    rstd: Tensor,
    mean: Tensor,
    gamma: Tensor,
    dsum: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """``dx``, ``dgamma`` and ``dbeta`` of the layer norm of ``x1 + x2``."""
    x = widened(x1) if x2 is None else widened(x1) + widened(x2)
    gradients = layer_norm_backward(widened(dy), x, gamma.shape, mean, rstd, widened(gamma))
    dx, dgamma, dbeta = (g for g in gradients if g is not None)
    dx, wide = dx if dsum is None else dx + widened(dsum), statistics_dtype(dy)
    return dx.to(dy.dtype), dgamma.to(wide), dbeta.to(wide)


def layer_norm_backward(
    grad_out: Tensor,
    input: Tensor,
    normalized_shape: Sequence[int],
    mean: Tensor,
    rstd: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    output_mask: Sequence[bool] = (True, True, True),
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """``grad_input``, ``grad_weight`` and ``grad_bias`` of layer norm, None where masked out."""
    rows, row, statistics = dimensions(input, len(normalized_shape))
    grad, r = widened(grad_out), widened(rstd).reshape(statistics)
    xhat = (widened(input) - widened(mean).reshape(statistics)) * r
    g = grad if weight is None else grad * widened(weight)
    dtypes = parameter_dtypes(input, weight, bias)
    return (
        (r * (g - mean_of(g, row) - xhat * mean_of(g * xhat, row))).to(input.dtype) if output_mask[0] else None,
        sum_over(grad * xhat, rows).to(dtypes[0]) if output_mask[1] else None,
        sum_over(grad, rows).to(dtypes[1]) if output_mask[2] else None,
    )


def parameter_dtypes(input: Tensor, weight: Tensor | None, bias: Tensor | None) -> tuple[torch.dtype, torch.dtype]:
    """The dtypes of layer norm's two parameter gradients: their parameter's, else the other's, else a statistic's."""
    either = weight if weight is not None else bias
    common = statistics_dtype(input) if either is None else either.dtype
    return common, common if bias is None else bias.dtype
