"""The gradient of cross entropy on CUDA: a softmax of each row, times a number of it, less another at its class."""

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from descend.triton.calls import Operator
from descend.triton.cross_entropy_loss import count, load_targets, load_weights, two_parts
from descend.triton.functions import exp_of_negative, load_rows, part_of_rows, store_rows
from descend.triton.gelu_v2 import MOST
from descend.triton.tiles import tile, wide
from descend.triton.work import Work


@triton.jit
def gradient_kernel(
    grad_ptr,
    log_prob_ptr,
    target_ptr,
    weight_ptr,
    grad_zloss_ptr,
    lse_ptr,
    counted_ptr,
    out_ptr,
    rows,
    columns,
    parts,
    grad_stride,
    log_prob_stride,
    target_stride,
    grad_zloss_stride,
    lse_stride,
    out_stride,
    ignored: "i64",  # noqa: F821  Triton's name of the type
    smoothing: "fp64",  # noqa: F821
    scale: "fp64",  # noqa: F821
    MEAN: tl.constexpr,
    WEIGHTED: tl.constexpr,
    SMOOTHED: tl.constexpr,
    SCALED: tl.constexpr,
    ZLOSS: tl.constexpr,
    INPUT: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    WIDE: tl.constexpr,
):
    """A tile of some rows: exp(log_prob) * factor - smooth * weight, less `nll` at the class."""
    r, c, inside = part_of_rows(rows, columns, parts, ROWS, COLUMNS)
    there = r < rows
    t, known, is_ignored = load_targets(target_ptr, r, there, columns, target_stride, ignored)
    given = tl.load(grad_ptr + r * grad_stride, mask=there, other=0).to(tl.float64)
    grad = given
    if MEAN:
        grad = given / tl.load(counted_ptr)
    s = tl.full([], smoothing, tl.float64)
    nll = grad * (1.0 - s) * load_weights(weight_ptr, t, known, WEIGHTED)
    factor, smooth = nll, nll
    if SMOOTHED:
        smooth = grad * (s / columns)
        factor += smooth * tl.load(counted_ptr + 2)
    lse = tl.zeros_like(grad)
    if SCALED or INPUT:
        lse = tl.load(lse_ptr + r * lse_stride, mask=there, other=0).to(tl.float64)
    if SCALED:
        both = given
        if ZLOSS:
            both += tl.load(grad_zloss_ptr + r * grad_zloss_stride, mask=there, other=0).to(tl.float64)
        if MEAN:
            both /= tl.load(counted_ptr + 1)
        factor += 2.0 * tl.full([], scale, tl.float64) * lse * both

    x = load_rows(log_prob_ptr, r, c, log_prob_stride, inside, WIDE)
    if INPUT:
        high, low = two_parts(lse, WIDE)
        x = (x - high[:, None]) - low[:, None]
    if tl.float32 == WIDE:
        x = tl.where(x > 89.0, 89.0, x)  # whose exp is infinity already
    less = tl.where(known[:, None] & (c[None, :] == t[:, None]), nll.to(WIDE)[:, None], 0.0)
    if SMOOTHED:
        if WEIGHTED:
            weight = tl.load(weight_ptr + c, mask=c < columns, other=0).to(WIDE)
            less += smooth.to(WIDE)[:, None] * weight[None, :]
        else:
            less += smooth.to(WIDE)[:, None]
    out = exp_of_negative(x, WIDE) * factor.to(WIDE)[:, None] - less
    store_rows(out_ptr, r, c, out_stride, inside, tl.where(is_ignored[:, None], 0.0, out))


def launch(
    work: Work,
    grad_loss: Tensor,
    log_prob: Tensor,
    target: Tensor,
    weight: Tensor | None,
    grad_zloss: Tensor | None,
    lse_for_zloss: Tensor | None,
    reduction: str | None,
    ignore_index: int,
    label_smoothing: float,
    lse_square_scale_for_zloss: float,
    out: Tensor,
) -> None:
    """Starts the kernels; the parameters are those of aclnnCrossEntropyLossGrad."""
    if out.numel() == 0:
        return
    rows, columns = log_prob.shape
    on_host = work.product == "host"
    scale = lse_square_scale_for_zloss if on_host else 0.0
    is_input = on_host and lse_for_zloss is not None and lse_for_zloss.dim() == 2
    has_zloss = scale != 0 and grad_zloss is not None and grad_zloss.numel() > 0
    is_mean = reduction in (None, "mean")
    weights = None if weight is None else work.vector(weight)
    x, result = work.rows_of(log_prob, rows, columns), work.output(out, rows, columns)
    counted = grad_loss
    if is_mean or label_smoothing != 0:
        counted = count(work, target, weights, columns, ignore_index)

    # What is not read may be anything; a number of all rows lies at the same place for each.
    zloss = grad_zloss if has_zloss and grad_zloss is not None else grad_loss
    lse = lse_for_zloss if lse_for_zloss is not None and (scale != 0 or is_input) else target
    strides = [tensor.stride(0) if reduction == "none" else 0 for tensor in (grad_loss, zloss)]
    arithmetic: Any = wide(log_prob, out, weight)
    cut = tile(columns, MOST, arithmetic, "cross_entropy_loss_grad", log_prob)
    parts = triton.cdiv(columns, cut.columns)
    work.start(
        gradient_kernel,
        triton.cdiv(rows, cut.rows) * parts,
        *(grad_loss, x, target, target if weights is None else weights, zloss, lse, counted, result.matrix),
        *(rows, columns, parts, strides[0], x.stride(0), target.stride(0), strides[1], lse.stride(0), result.stride),
        *(ignore_index, label_smoothing, scale),
        **{"MEAN": is_mean, "WEIGHTED": weights is not None, "SMOOTHED": label_smoothing != 0, "SCALED": scale != 0},
        **{"ZLOSS": has_zloss, "INPUT": is_input, "ROWS": cut.rows, "COLUMNS": cut.columns, "WIDE": arithmetic},
        num_warps=cut.warps,
    )
    result.finish()


cross_entropy_loss_grad = Operator("cross_entropy_loss_grad", launch)
