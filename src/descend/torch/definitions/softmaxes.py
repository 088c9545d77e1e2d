"""Softmax and its logarithm, also scaled and masked."""

from __future__ import annotations

import torch
from torch import Tensor

from descend.torch.definitions.tensors import exp_of, widened


def scaled_masked_softmax(x: Tensor, mask: Tensor | None, scale: float = 1.0, fix_triu_mask: bool = False) -> Tensor:
    """``y`` of the scaled, masked softmax."""
    z = scale * widened(x)
    masked = _softmax_mask(x, mask, fix_triu_mask)
    if masked is not None:
        z = z.masked_fill(masked, -10000.0)
    return z.softmax(-1).to(x.dtype)


def scaled_masked_softmax_backward(
    grad_output: Tensor, y: Tensor, mask: Tensor | None, scale: float = 1.0, fix_triu_mask: bool = False
) -> Tensor:
    """The gradient of the scaled, masked softmax."""
    product = widened(grad_output) * widened(y)
    out = scale * (product - widened(y) * product.sum(-1, keepdim=True))
    masked = _softmax_mask(y, mask, fix_triu_mask)
    if masked is not None:
        out = out.masked_fill(masked, 0.0)
    return out.to(y.dtype)


def _softmax_mask(x: Tensor, mask: Tensor | None, triangle: bool) -> Tensor | None:
    if triangle:
        return torch.ones(x.shape[-2:], dtype=torch.bool, device=x.device).triu(1)
    return mask


def softmax(x: Tensor, dim: int = -1) -> Tensor:
    """Softmax along ``dim``."""
    return widened(x).softmax(dim).to(x.dtype)


def log_softmax(x: Tensor, dim: int = -1) -> Tensor:
    """Log softmax along ``dim``."""
    return widened(x).log_softmax(dim).to(x.dtype)


def softmax_backward(grad_output: Tensor, output: Tensor, dim: int = -1) -> Tensor:
    """The gradient of softmax."""
    dy, y = widened(grad_output), widened(output)
    return ((dy - (dy * y).sum(dim, keepdim=True)) * y).to(grad_output.dtype)


def log_softmax_backward(grad_output: Tensor, output: Tensor, dim: int = -1) -> Tensor:
    """The gradient of log softmax."""
    dy, y = widened(grad_output), widened(output)
    return (dy - exp_of(y) * dy.sum(dim, keepdim=True)).to(grad_output.dtype)
