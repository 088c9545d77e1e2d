"""Each operator composed of PyTorch's own: what second derivatives and forward-mode differentiation go through.

Signatures, shapes, dtypes and formulas are those of the operators (``descend.<name>``); the arithmetic is float32, or
float64 where an input is, as all are in forward mode (`descend.torch.library`).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from descend.torch.library import recording, statistics_dtype


def _wide(tensor: Tensor) -> Tensor:
    return tensor if tensor.dtype is torch.float64 else tensor.float()


def _mean(tensor: Tensor, dims: list[int]) -> Tensor:
    return tensor.mean(dims, keepdim=True)


def _sum(tensor: Tensor, dims: list[int]) -> Tensor:
    return tensor.sum(dims) if dims else tensor  # PyTorch takes no dimensions for all of them


def _axes(x: Tensor, normalized: int) -> tuple[list[int], list[int], list[int]]:
    """The dimensions of the rows, those within a row, and the shape of the statistics."""
    split = x.dim() - normalized
    return list(range(split)), list(range(split, x.dim())), [*x.shape[:split], *[1] * normalized]


def rms_norm(x: Tensor, gamma: Tensor, epsilon: float = 1e-6) -> tuple[Tensor, Tensor]:
    """``y`` and ``rstd`` of RMS norm."""
    _, row, _ = _axes(x, gamma.dim())
    wide = _wide(x)
    rstd = (_mean(wide * wide, row) + epsilon).rsqrt()
    return (wide * rstd * _wide(gamma)).to(x.dtype), rstd.to(statistics_dtype(x))


def add_rms_norm(x1: Tensor, x2: Tensor, gamma: Tensor, epsilon: float = 1e-6) -> tuple[Tensor, Tensor, Tensor]:
    """``y``, ``rstd`` and ``x`` of the RMS norm of ``x1 + x2``."""
    x = _wide(x1) + _wide(x2)
    y, rstd = rms_norm(x, gamma, epsilon)
    return y.to(x1.dtype), rstd.to(statistics_dtype(x1)), x.to(x1.dtype)


def gemma_rms_norm(x: Tensor, gamma: Tensor, epsilon: float = 1e-6) -> tuple[Tensor, Tensor]:
    """``y`` and ``rstd`` of the RMS norm with ``1 + gamma``."""
    return rms_norm(x, 1 + _wide(gamma), epsilon)


def rms_norm_grad(dy: Tensor, x: Tensor, rstd: Tensor, gamma: Tensor) -> tuple[Tensor, Tensor]:
    """``dx`` and ``dgamma`` of RMS norm."""
    rows, row, statistics = _axes(x, gamma.dim())
    wide_dy, r = _wide(dy), _wide(rstd).reshape(statistics)
    xhat, g = _wide(x) * r, wide_dy * _wide(gamma)
    dx = r * (g - xhat * _mean(g * xhat, row))
    return dx.to(x.dtype), _sum(wide_dy * xhat, rows).to(statistics_dtype(x))


def layer_norm(
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> tuple[Tensor, Tensor, Tensor]:
    """``out``, ``mean`` and ``rstd`` of layer norm."""
    _, row, _ = _axes(input, len(normalized_shape))
    wide = _wide(input)
    mean = _mean(wide, row)
    centred = wide - mean
    rstd = (_mean(centred * centred, row) + eps).rsqrt()
    out = centred * rstd
    if weight is not None:
        out = out * _wide(weight)
    if bias is not None:
        out = out + _wide(bias)
    return out.to(input.dtype), mean.to(statistics_dtype(input)), rstd.to(statistics_dtype(input))


def deep_norm(
    x: Tensor, gx: Tensor, beta: Tensor, gamma: Tensor, alpha: float = 0.3, epsilon: float = 1e-6
) -> tuple[Tensor, Tensor, Tensor]:
    """``mean``, ``rstd`` and ``y`` of deep norm."""
    y, mean, rstd = layer_norm(_wide(x) * alpha + _wide(gx), gamma.shape, gamma, beta, epsilon)
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
    x = _wide(x1) + _wide(x2)
    return x if bias is None else x + _wide(bias)


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
    x = _wide(x1) if x2 is None else _wide(x1) + _wide(x2)
    gradients = layer_norm_backward(_wide(dy), x, gamma.shape, mean, rstd, _wide(gamma))
    dx, dgamma, dbeta = (g for g in gradients if g is not None)
    dx, wide = dx if dsum is None else dx + _wide(dsum), statistics_dtype(dy)
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
    rows, row, statistics = _axes(input, len(normalized_shape))
    grad, r = _wide(grad_out), _wide(rstd).reshape(statistics)
    xhat = (_wide(input) - _wide(mean).reshape(statistics)) * r
    g = grad if weight is None else grad * _wide(weight)
    dtypes = parameter_dtypes(input, weight, bias)
    return (
        (r * (g - _mean(g, row) - xhat * _mean(g * xhat, row))).to(input.dtype) if output_mask[0] else None,
        _sum(grad * xhat, rows).to(dtypes[0]) if output_mask[1] else None,
        _sum(grad, rows).to(dtypes[1]) if output_mask[2] else None,
    )


def parameter_dtypes(input: Tensor, weight: Tensor | None, bias: Tensor | None) -> tuple[torch.dtype, torch.dtype]:
    """The dtypes of layer norm's two parameter gradients: their parameter's, else the other's, else a statistic's."""
    either = weight if weight is not None else bias
    common = statistics_dtype(input) if either is None else either.dtype
    return common, common if bias is None else bias.dtype


def group_norm_swish(
    x: Tensor,
    gamma: Tensor,
    beta: Tensor,
    num_groups: int,
    data_format: str | None = "NCHW",
    eps: float = 1e-5,
    activate_swish: bool = True,
    swish_scale: float = 1.0,
) -> tuple[Tensor, Tensor, Tensor]:
    """``y``, ``mean`` and ``rstd`` of group norm + swish."""
    z, mean, rstd = _group_norm(x, gamma, beta, num_groups, eps)
    y = z * torch.sigmoid(swish_scale * z) if activate_swish else z
    return y.reshape(x.shape).to(x.dtype), mean, rstd


def group_norm_silu(
    input: Tensor, gamma: Tensor | None, beta: Tensor | None, group: int, eps: float = 1e-5
) -> tuple[Tensor, Tensor, Tensor]:
    """``out``, ``mean`` and ``rstd`` of group norm + SiLU."""
    z, mean, rstd = _group_norm(input, gamma, beta, group, eps)
    return (z * torch.sigmoid(z)).reshape(input.shape).to(input.dtype), mean, rstd


def group_norm(
    input: Tensor,
    gamma: Tensor | None,
    beta: Tensor | None,
    n: int,
    c: int,
    hxw: int,
    group: int,
    eps: float = 1e-5,
) -> tuple[Tensor, Tensor, Tensor]:
    """``out``, ``mean`` and ``rstd`` of group norm."""
    z, mean, rstd = _group_norm(input, gamma, beta, group, eps)
    return z.reshape(input.shape).to(input.dtype), mean, rstd


def _group_norm(
    x: Tensor, gamma: Tensor | None, beta: Tensor | None, num_groups: int, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """The norm, [N, groups, channels of a group, HxW], not rounded; mean and rstd."""
    wide = _grouped(_wide(x), num_groups)
    mean = _mean(wide, [2, 3])
    centred = wide - mean
    rstd = (_mean(centred * centred, [2, 3]) + eps).rsqrt()
    z = centred * rstd
    z = z if gamma is None else z * _by_channel(gamma, num_groups)
    z = z if beta is None else z + _by_channel(beta, num_groups)
    mean, rstd = (s.reshape(x.shape[0], num_groups).to(statistics_dtype(x)) for s in (mean, rstd))
    return z, mean, rstd


def group_norm_swish_grad(
    dy: Tensor,
    mean: Tensor,
    rstd: Tensor,
    x: Tensor,
    gamma: Tensor,
    beta: Tensor,
    num_groups: int,
    data_format: str | None = "NCHW",
    swish_scale: float = 1.0,
    dgamma_is_require: bool = True,
    dbeta_is_require: bool = True,
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """``dx``, ``dgamma`` and ``dbeta`` of group norm + swish, None where not required."""
    statistics = (x.shape[0], num_groups, 1, 1)
    r, weight = _wide(rstd).reshape(statistics), _by_channel(gamma, num_groups)
    xhat = (_grouped(_wide(x), num_groups) - _wide(mean).reshape(statistics)) * r
    z = xhat * weight + _by_channel(beta, num_groups)
    sig = _sigmoid(swish_scale * z)
    dz = _grouped(_wide(dy), num_groups) * sig * (1 + swish_scale * z * (1 - sig))
    return (
        _through_groups(dz * weight, xhat, r).reshape(x.shape).to(x.dtype),
        (dz * xhat).sum((0, 3)).reshape(gamma.shape).to(gamma.dtype) if dgamma_is_require else None,
        dz.sum((0, 3)).reshape(beta.shape).to(beta.dtype) if dbeta_is_require else None,
    )


def group_norm_backward(
    grad_out: Tensor,
    input: Tensor,
    mean: Tensor,
    rstd: Tensor,
    gamma: Tensor | None,
    n: int,
    c: int,
    hxw: int,
    group: int,
    output_mask: Sequence[bool] = (True, True, True),
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """``grad_input``, ``grad_gamma`` and ``grad_beta`` of group norm, None where masked out."""
    shape = (n, group, c // group, hxw)
    dz, r = _wide(grad_out).reshape(shape), _wide(rstd).reshape(n, group, 1, 1)
    xhat = (_wide(input).reshape(shape) - _wide(mean).reshape(n, group, 1, 1)) * r
    g = dz if gamma is None else dz * _by_channel(gamma, group)
    like, dtype = ([c], statistics_dtype(input)) if gamma is None else (gamma.shape, gamma.dtype)
    return (
        _through_groups(g, xhat, r).reshape(input.shape).to(input.dtype) if output_mask[0] else None,
        (dz * xhat).sum((0, 3)).reshape(like).to(dtype) if output_mask[1] else None,
        dz.sum((0, 3)).reshape(like).to(dtype) if output_mask[2] else None,
    )


def _through_groups(g: Tensor, xhat: Tensor, rstd: Tensor) -> Tensor:
    """The gradient of a group's elements, from that of xhat."""
    return rstd * (g - _mean(g, [2, 3]) - xhat * _mean(g * xhat, [2, 3]))


class _OfInput(torch.autograd.Function):
    """It keeps its input for the way back: of its result a graph that is being made would not have the history."""

    generate_vmap_rule = True

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)


class _Sigmoid(_OfInput):
    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return torch.sigmoid(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        sig = _sigmoid(*ctx.saved_tensors)
        return gradient * sig * (1 - sig)

    jvp = backward


class _Exp(_OfInput):
    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return torch.exp(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient * _exp(*ctx.saved_tensors)

    jvp = backward


class _Ndtr(_OfInput):
    @staticmethod
    def forward(x: Tensor) -> Tensor:
        result: Tensor = torch.special.ndtr(x)
        return result

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient * _density(*ctx.saved_tensors)

    jvp = backward


def _by(recorded: type[_OfInput], plain: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    result: Tensor = (recorded.apply if recording() else plain)(x)
    return result


def _sigmoid(x: Tensor) -> Tensor:
    return _by(_Sigmoid, torch.sigmoid, x)


def _exp(x: Tensor) -> Tensor:
    return _by(_Exp, torch.exp, x)


def _ndtr(x: Tensor) -> Tensor:
    """The normal distribution's function, whose derivative is its density."""
    return _by(_Ndtr, torch.special.ndtr, x)


def _power(base: float, exponent: Tensor) -> Tensor:
    """Of a base that is not negative."""
    return _exp(exponent * math.log(base)) if base > 0 else torch.zeros_like(exponent)


def _density(x: Tensor) -> Tensor:
    return _exp(-x * x / 2) / math.sqrt(2 * math.pi)


def _grouped(x: Tensor, num_groups: int) -> Tensor:
    """x seen as [N, groups, channels of a group, HxW]."""
    return x.reshape(x.shape[0], num_groups, x.shape[1] // num_groups, math.prod(x.shape[2:]))


def _by_channel(parameter: Tensor, num_groups: int) -> Tensor:
    return _wide(parameter).reshape(1, num_groups, parameter.numel() // num_groups, 1)


def scaled_masked_softmax(x: Tensor, mask: Tensor | None, scale: float = 1.0, fix_triu_mask: bool = False) -> Tensor:
    """``y`` of the scaled, masked softmax."""
    z = scale * _wide(x)
    masked = _softmax_mask(x, mask, fix_triu_mask)
    if masked is not None:
        z = z.masked_fill(masked, -10000.0)
    return z.softmax(-1).to(x.dtype)


def scaled_masked_softmax_backward(
    grad_output: Tensor, y: Tensor, mask: Tensor | None, scale: float = 1.0, fix_triu_mask: bool = False
) -> Tensor:
    """The gradient of the scaled, masked softmax."""
    product = _wide(grad_output) * _wide(y)
    out = scale * (product - _wide(y) * product.sum(-1, keepdim=True))
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
    return _wide(x).softmax(dim).to(x.dtype)


def log_softmax(x: Tensor, dim: int = -1) -> Tensor:
    """Log softmax along ``dim``."""
    return _wide(x).log_softmax(dim).to(x.dtype)


def softmax_backward(grad_output: Tensor, output: Tensor, dim: int = -1) -> Tensor:
    """The gradient of softmax."""
    dy, y = _wide(grad_output), _wide(output)
    return ((dy - (dy * y).sum(dim, keepdim=True)) * y).to(grad_output.dtype)


def log_softmax_backward(grad_output: Tensor, output: Tensor, dim: int = -1) -> Tensor:
    """The gradient of log softmax."""
    dy, y = _wide(grad_output), _wide(output)
    return (dy - _exp(y) * dy.sum(dim, keepdim=True)).to(grad_output.dtype)


def cross_entropy_loss(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    reduction: str = "mean",
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    lse_square_scale_for_zloss: float = 0.0,
    return_zloss: bool = False,
) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
    """``loss``, ``log_prob``, ``zloss`` and ``lse`` of cross entropy."""
    wide, scale = _wide(input), lse_square_scale_for_zloss
    rows = _Targets(wide, target, weight, ignore_index)
    most = wide.detach().amax(1, keepdim=True)
    lse = _exp(wide - most).sum(1, keepdim=True).log() + most
    log_prob = wide - lse
    loss = -log_prob.gather(1, rows.target).squeeze(1) * rows.weight
    if label_smoothing:
        smooth = -(log_prob * rows.of_classes).sum(1) * rows.counts
        loss = (1 - label_smoothing) * loss + label_smoothing / input.shape[1] * smooth
    zloss = scale * (lse * lse).squeeze(1) * rows.counts
    if reduction != "none":
        loss, zloss = _total(loss), _total(zloss)
    if reduction == "mean":
        loss, zloss = loss / _total(rows.weight), zloss / _total(rows.counts)
    loss = loss + zloss if scale else loss
    return (
        loss.to(input.dtype),
        log_prob.to(input.dtype),
        zloss.to(input.dtype) if return_zloss else None,
        lse.squeeze(1).to(input.dtype) if scale else None,
    )


def cross_entropy_loss_grad(
    grad_loss: Tensor,
    log_prob: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    grad_zloss: Tensor | None = None,
    lse_for_zloss: Tensor | None = None,
    reduction: str = "mean",
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    lse_square_scale_for_zloss: float = 0.0,
) -> Tensor:
    """The gradient of cross entropy for its input."""
    scores, scale = _wide(log_prob), lse_square_scale_for_zloss
    rows = _Targets(scores, target, weight, ignore_index)
    if lse_for_zloss is not None and lse_for_zloss.dim() == 2:
        scores = scores - lse_for_zloss.to(scores.dtype)
    grad = grad_loss.to(scores.dtype).flatten()
    both = grad if grad_zloss is None or not grad_zloss.numel() else grad + grad_zloss.to(scores.dtype).flatten()
    if reduction == "mean":
        grad, both = grad / _total(rows.weight), both / _total(rows.counts)
    of_row, smooth = grad * (1 - label_smoothing) * rows.weight, grad * (label_smoothing / log_prob.shape[1])
    factor = of_row + smooth * _total(rows.of_classes) if label_smoothing else of_row
    if scale and lse_for_zloss is not None:
        factor = factor + 2 * scale * lse_for_zloss.to(scores.dtype).flatten() * both
    out = (_exp(scores) * factor.unsqueeze(1)).scatter_add(1, rows.target, -of_row.unsqueeze(1))
    if label_smoothing:
        out = out - smooth.unsqueeze(1) * rows.of_classes
    return out.masked_fill(rows.counts.unsqueeze(1) == 0, 0.0).to(log_prob.dtype)


def through_log_prob(log_prob: Tensor, of_log_prob: Tensor | None, of_lse: Tensor | None) -> Tensor:
    """The gradient of cross entropy's input through ``log_prob`` and ``lse``."""
    wide = _wide(log_prob)
    direct = torch.zeros_like(wide) if of_log_prob is None else of_log_prob.to(wide.dtype)
    lse = -direct.sum(1, keepdim=True)
    if of_lse is not None:
        lse = lse + of_lse.to(wide.dtype).unsqueeze(1)
    return (direct + _exp(wide) * lse).to(log_prob.dtype)


def cross_entropy_loss_weight_gradient(
    loss: Tensor,
    log_prob: Tensor,
    target: Tensor,
    weight: Tensor,
    reduction: str = "mean",
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
) -> Tensor:
    """The gradient of the weights of classes, from that of the loss."""
    wide = _wide(log_prob)
    rows = _Targets(wide, target, weight, ignore_index)
    target = rows.target.squeeze(1)
    nll = -(1 - label_smoothing) * wide.gather(1, rows.target).squeeze(1) * rows.counts
    smooth = -label_smoothing / wide.shape[1] * wide * rows.counts.unsqueeze(1)
    grad = loss.to(wide.dtype).expand(target.shape)
    if reduction == "mean":
        grad = grad / _total(rows.weight)
        mean = (_total(nll * rows.weight) + _total((smooth * rows.of_classes).sum(1))) / _total(rows.weight)
        nll = nll - mean * rows.counts
    of_target = torch.zeros_like(rows.of_classes).scatter_add(0, target, grad * nll)
    return (of_target + (grad.unsqueeze(1) * smooth).sum(0)).to(weight.dtype)


def _total(numbers: Tensor) -> Tensor:
    """Their sum, [1]: over no samples ``vmap`` takes no numbers without dimensions."""
    return numbers.sum(0, keepdim=True)


class _Targets:
    """Of each row the class [N, 1], 1 where it counts, else 0, and the class's weight, NaN where there is no class."""

    def __init__(self, scores: Tensor, target: Tensor, weight: Tensor | None, ignored: int) -> None:
        counts, exists = target != ignored, (target >= 0) & (target < scores.shape[1])
        self.counts = counts.to(scores.dtype)
        self.target = target.long().masked_fill(~(counts & exists), 0).unsqueeze(1)
        self.of_classes = scores.new_ones(scores.shape[1]) if weight is None else weight.to(scores.dtype)
        of_rows = self.of_classes.gather(0, self.target.squeeze(1))
        self.weight = of_rows.masked_fill(~exists, math.nan).masked_fill(~counts, 0)


def swi_glu(x: Tensor, dim: int = -1) -> Tensor:
    """SwiGLU of the halves of ``x``."""
    a, b = _wide(x).chunk(2, dim)
    return (a * _sigmoid(a) * b).to(x.dtype)


def swi_glu_grad(y_grad: Tensor, x: Tensor, dim: int = -1) -> Tensor:
    """The gradient of SwiGLU."""
    a, b = _wide(x).chunk(2, dim)
    sig, dy = _sigmoid(a), _wide(y_grad)
    return torch.cat((dy * sig * (1 + a * (1 - sig)) * b, dy * sig * a), dim).to(x.dtype)


def rotary_position_embedding(x: Tensor, cos: Tensor, sin: Tensor, mode: int = 0) -> Tensor:
    """Rotary position embedding."""
    wide = _halves_of_pairs(_wide(x), mode)
    return (wide * _wide(cos) + _quarter_turn(wide, mode) * _wide(sin)).to(x.dtype)


def rotary_position_embedding_grad(
    dy: Tensor, cos: Tensor, sin: Tensor, x: Tensor | None = None, mode: int = 0
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """``dx``, ``dcos`` and ``dsin`` of rotary position embedding."""
    wide = _wide(dy)
    dx = wide * _wide(cos) - _quarter_turn(wide * _wide(sin), mode)
    if mode == 3:
        dx = torch.stack(dx.chunk(2, -1), -1).flatten(-2)
    if x is None:
        return dx.to(dy.dtype), None, None
    of_x = _halves_of_pairs(_wide(x), mode)
    dcos, dsin = (wide * of_x).sum_to_size(cos.shape), (wide * _quarter_turn(of_x, mode)).sum_to_size(sin.shape)
    return dx.to(dy.dtype), dcos.to(cos.dtype), dsin.to(sin.dtype)


def _halves_of_pairs(x: Tensor, mode: int) -> Tensor:
    """In mode 3 each row's even elements, then its odd ones."""
    return torch.cat((x[..., ::2], x[..., 1::2]), -1) if mode == 3 else x


def _quarter_turn(x: Tensor, mode: int) -> Tensor:
    """(-b, a) in the place of each pair (a, b) of a row."""
    if mode == 1:
        return torch.stack((-x[..., 1::2], x[..., ::2]), -1).flatten(-2)
    parts = x.chunk(4 if mode == 2 else 2, -1)
    return torch.cat([part for a, b in zip(parts[::2], parts[1::2], strict=True) for part in (-b, a)], -1)


_SQRT_8_PER_PI, _CUBE = math.sqrt(8 / math.pi), 0.044715


def gelu_v2(x: Tensor, approximate: int = 0) -> Tensor:
    """GELU of ``x``."""
    wide = _wide(x)
    share = _sigmoid(_SQRT_8_PER_PI * (wide + _CUBE * wide**3)) if approximate else _ndtr(wide)
    return (wide * share).to(x.dtype)


def gelu_backward_v2(grad_output: Tensor, x: Tensor, approximate: str = "none") -> Tensor:
    """The gradient of GELU."""
    wide = _wide(x)
    if approximate == "tanh":
        near = wide.clamp(-100, 100)  # beyond, the slope is 0 or 1, and x^2 may overflow
        sig = _sigmoid(_SQRT_8_PER_PI * (near + _CUBE * near**3))
        slope = sig * (1 + near * (1 - sig) * _SQRT_8_PER_PI * (1 + 3 * _CUBE * near**2))
    else:
        slope = _ndtr(wide) + wide * _density(wide)
    return (_wide(grad_output) * slope).to(torch.promote_types(grad_output.dtype, x.dtype))


def apply_adam_w_v2(
    var: Tensor,
    m: Tensor,
    v: Tensor,
    max_grad_norm: Tensor | None,
    grad: Tensor,
    step: Tensor,
    lr: float = 0.001,
    beta1: float = 0.9,
    beta2: float = 0.999,
    weight_decay: float = 0.01,
    eps: float = 1e-8,
    amsgrad: bool = False,
    maximize: bool = False,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """``var``, ``m``, ``v`` and ``max_grad_norm`` after a step of AdamW."""
    t = _wide(step).reshape([1] * var.dim()) + 1  # without dimensions it would have no gradient in a batch of no calls
    first, second = (1 - _power(beta, t) for beta in (beta1, beta2))
    g = -_wide(grad) if maximize else _wide(grad)
    mean = beta1 * _wide(m) + (1 - beta1) * g
    square = beta2 * _wide(v) + (1 - beta2) * g * g
    most = torch.maximum(_wide(max_grad_norm), square) if amsgrad and max_grad_norm is not None else None
    root = ((square if most is None else most) / second) ** 0.5  # sqrt would keep its result, as exp does
    changed = (1 - lr * weight_decay) * _wide(var) - lr * (mean / first) / (root + eps)
    largest = None if most is None or max_grad_norm is None else most.to(max_grad_norm.dtype)
    return changed.to(var.dtype), mean.to(m.dtype), square.to(v.dtype), largest


def nsa_compress(
    input: Tensor,
    weight: Tensor,
    act_seq_len: Sequence[int] | None = None,
    *,
    layout: str | None = "TND",
    compress_block_size: int,
    compress_stride: int,
    act_seq_len_type: int = 0,
) -> Tensor:
    """``output`` of the compression of native sparse attention."""
    windows = _windows(input, act_seq_len, compress_block_size, compress_stride, act_seq_len_type)
    return (_tokens_of(input, windows) * _wide(weight).unsqueeze(-1)).sum(1).to(input.dtype)


def nsa_compress_grad(
    output_grad: Tensor,
    input: Tensor,
    weight: Tensor,
    act_seq_len: Sequence[int] | None = None,
    *,
    compress_block_size: int,
    compress_stride: int,
    act_seq_len_type: int = 0,
    layout: str | None = "TND",
) -> tuple[Tensor, Tensor]:
    """``input_grad`` and ``weight_grad`` of the compression of native sparse attention."""
    windows = _windows(input, act_seq_len, compress_block_size, compress_stride, act_seq_len_type)
    grad = _wide(output_grad).unsqueeze(1)
    spread = (grad * _wide(weight).unsqueeze(-1)).flatten(0, 1)
    input_grad = torch.zeros_like(_wide(input)).index_add(0, windows.flatten(), spread)
    weight_grad = (grad * _tokens_of(input, windows)).sum((0, 3))
    return input_grad.to(input.dtype), weight_grad.to(weight.dtype)


def _windows(input: Tensor, act_seq_len: Sequence[int] | None, width: int, stride: int, kind: int) -> Tensor:
    """The tokens of each window, [windows, W]."""
    sequences = _sequences(input.shape[0], act_seq_len, kind)
    starts = [s for begin, end in sequences for s in range(begin, end - width + 1, stride)]
    first = torch.tensor(starts, dtype=torch.int64, device=input.device)
    return first.unsqueeze(1) + torch.arange(width, device=input.device)


def _tokens_of(input: Tensor, windows: Tensor) -> Tensor:
    """What the windows hold, [windows, W, N, D]. (Indexing's gradient does not go through vmap.)"""
    tokens: Tensor = _wide(input).index_select(0, windows.flatten())
    return tokens.reshape(*windows.shape, *input.shape[1:])


def count_windows(tokens: int, act_seq_len: Sequence[int] | None, width: int, stride: int, kind: int) -> int:
    """The number of windows in all sequences: none across two."""
    sequences = _sequences(tokens, act_seq_len, kind)
    # Without a branch: lengths may be symbols of which nothing is known.
    return sum(torch.sym_max((end - begin - width) // stride + 1, 0) for begin, end in sequences)


def _sequences(tokens: int, act_seq_len: Sequence[int] | None, kind: int) -> list[tuple[int, int]]:
    """The first token of each sequence, and that after its last."""
    lengths = list(act_seq_len or [tokens])
    ends = lengths if kind == 0 else list(itertools.accumulate(lengths))
    return list(zip([0, *ends[:-1]], ends, strict=True))
