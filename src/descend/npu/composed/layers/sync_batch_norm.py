"""What torch_npu's SyncBatchNorm is made of: a batch norm whose batch is spread over several processes.

The documents' formulas: each process sums what it has (``batch_norm_reduce``), the sums of all give mean and invstd
(``batch_norm_gather_stats_update``), with which each normalizes its own (``batch_norm_elemt``), and backwards alike.
Channels are dimension 1. Documents: aclnnBatchNormReduce, aclnnSyncBatchNormGatherStats, aclnnBatchNormElemt,
aclnnBatchNormGatherStatsWithCounts, aclnnBatchNormReduceBackward, aclnnBatchNormElemtBackward.
"""

from __future__ import annotations

import torch
from torch import Tensor

from descend.npu.composed.arithmetic import check_float, check_shape, wide
from descend.npu.composed.refusal import refuse


def batch_norm_reduce(input: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """The sums of x and of its squares per channel, in float32."""
    x = _checked("batch_norm_reduce", input)
    return _sum(x), _sum(x * x)


def batch_norm_stats(input: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Mean and invstd of each channel, in float32."""
    x = _checked("batch_norm_stats", input)
    variance, mean = torch.var_mean(x, [d for d in range(x.dim()) if d != 1], correction=0)
    return mean, (variance + eps).rsqrt()


def batch_norm_gather_stats_update(
    input: Tensor,
    sums: Tensor,
    square_sums: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    momentum: float,
    eps: float,
    counts: Tensor,
) -> tuple[Tensor, Tensor]:
    """Mean and invstd of all processes, in the dtype of ``sums``, whose rows are theirs; updates the running ones."""
    operator = "batch_norm_gather_stats_update"
    _check_rows(operator, input, counts, sums=sums, square_sums=square_sums)
    count = wide(counts).sum()
    mean = wide(sums).sum(0) / count
    variance = (wide(square_sums).sum(0) / count - mean * mean).clamp_min(0)
    _update(operator, mean, variance, count, momentum, running_mean, running_var)
    return mean.to(sums.dtype), (variance + eps).rsqrt().to(sums.dtype)


def batch_norm_gather_stats_with_counts(
    input: Tensor,
    mean: Tensor,
    invstd: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    momentum: float,
    eps: float,
    counts: Tensor,
) -> tuple[Tensor, Tensor]:
    """As the other, of each process's mean and invstd; in float32, or in float16 where all is."""
    operator = "batch_norm_gather_stats_with_counts"
    _check_rows(operator, input, counts, mean=mean, invstd=invstd)
    share = wide(counts).reshape(-1, 1)
    count = share.sum()
    means = wide(mean)
    all_mean = (means * share).sum(0) / count
    variances = wide(invstd).square().reciprocal() - eps
    variance = ((variances + (means - all_mean).square()) * share).sum(0) / count
    _update(operator, all_mean, variance, count, momentum, running_mean, running_var)
    half = input.dtype == mean.dtype == torch.float16
    results = all_mean, (variance + eps).rsqrt()
    return (results[0].half(), results[1].half()) if half else results


def batch_norm_gather_stats(
    input: Tensor,
    mean: Tensor,
    invstd: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    momentum: float,
    eps: float,
    count: int,
) -> tuple[Tensor, Tensor]:
    """The same, where each process has as many elements of a channel."""
    counts = torch.full((len(mean),), count, dtype=torch.float32)
    return batch_norm_gather_stats_with_counts(input, mean, invstd, running_mean, running_var, momentum, eps, counts)


def batch_norm_elemt(
    input: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor, invstd: Tensor, eps: float
) -> Tensor:
    """``(x - mean) * invstd * weight + bias``; ``eps`` is in ``invstd``."""
    operator = "batch_norm_elemt"
    x = _checked(operator, input, weight=weight, bias=bias, mean=mean, invstd=invstd)
    y = (x - _spread(mean, x)) * _spread(invstd, x)
    if weight is not None:
        y = y * _spread(weight, x)
    if bias is not None:
        y = y + _spread(bias, x)
    return y.to(input.dtype)


def batch_norm_elemt_out(
    input: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor, invstd: Tensor, eps: float, *, out: Tensor
) -> Tensor:
    """The same, written to ``out``."""
    return out.resize_(input.shape).copy_(batch_norm_elemt(input, weight, bias, mean, invstd, eps))


def batch_norm_backward_reduce(
    grad_out: Tensor,
    input: Tensor,
    mean: Tensor,
    invstd: Tensor,
    weight: Tensor | None,
    input_g: bool,
    weight_g: bool,
    bias_g: bool,
) -> tuple[Tensor | None, Tensor | None, Tensor | None, Tensor | None]:
    """The sums of dy and of ``dy * (x - mean)``, and the gradients of weight and bias: those that are asked for."""
    operator = "batch_norm_backward_reduce"
    x = _checked(operator, input, mean=mean, invstd=invstd)
    check_shape(operator, "grad_out", grad_out, input.shape, "input")
    dy = wide(grad_out)
    half = input.dtype == mean.dtype == torch.float16
    sum_dy, sum_dy_xmu = _sum(dy), _sum(dy * (x - _spread(mean, x)))
    results = ((sum_dy, input_g), (sum_dy_xmu, input_g), (sum_dy_xmu * wide(invstd), weight_g), (sum_dy, bias_g))
    first, second, third, fourth = (
        (each.half() if half else each.clone()) if asked else None for each, asked in results
    )
    return first, second, third, fourth


def batch_norm_backward_elemt(
    grad_out: Tensor,
    input: Tensor,
    mean: Tensor,
    invstd: Tensor,
    weight: Tensor | None,
    sum_dy: Tensor,
    sum_dy_xmu: Tensor,
    count: Tensor,
) -> Tensor:
    """The gradient of x: ``(dy - sum_dy / n - (x - mean) * invstd^2 * sum_dy_xmu / n) * invstd * weight``."""
    operator = "batch_norm_backward_elemt"
    x = _checked(operator, input, mean=mean, invstd=invstd, weight=weight, sum_dy=sum_dy, sum_dy_xmu=sum_dy_xmu)
    check_shape(operator, "grad_out", grad_out, input.shape, "input")
    n, scale = wide(count).sum(), wide(invstd)
    slope = scale * scale * (wide(sum_dy_xmu) / n)
    dx = wide(grad_out) - _spread(wide(sum_dy) / n, x) - (x - _spread(mean, x)) * _spread(slope, x)
    return (dx * _spread(scale if weight is None else scale * wide(weight), x)).to(input.dtype)


def _checked(operator: str, x: Tensor, **channels: Tensor | None) -> Tensor:
    """x in the arithmetic's dtype."""
    check_float(operator, input=x)
    if x.dim() < 2:
        refuse(
            operator, "input", f"of shape {list(x.shape)}", "must have 2 dimensions or more, of which 1 is the channels"
        )
    for name, tensor in channels.items():
        if tensor is not None:
            check_shape(operator, name, tensor, [x.shape[1]], "the channels")
    return wide(x)


def _check_rows(operator: str, x: Tensor, counts: Tensor, **tensors: Tensor) -> None:
    _checked(operator, x)
    for name, tensor in tensors.items():
        check_shape(operator, name, tensor, [counts.numel(), x.shape[1]], "counts and the channels")


def _sum(x: Tensor) -> Tensor:
    return x.sum([d for d in range(x.dim()) if d != 1])


def _spread(channels: Tensor, x: Tensor) -> Tensor:
    return wide(channels).reshape(-1, *[1] * (x.dim() - 2))


def _update(
    operator: str,
    mean: Tensor,
    variance: Tensor,
    count: Tensor,
    momentum: float,
    running_mean: Tensor | None,
    running_var: Tensor | None,
) -> None:
    unbiased = variance * (count / (count - 1))
    for name, running, now in (("running_mean", running_mean, mean), ("running_var", running_var, unbiased)):
        if running is not None:
            check_shape(operator, name, running, mean.shape, "the channels")
            running.copy_(wide(running) * (1 - momentum) + momentum * now)
