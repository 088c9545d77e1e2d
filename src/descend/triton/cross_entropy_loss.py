"""Cross entropy on CUDA: the sum of exp(x - max) of each row of scores, the losses, and log softmax."""

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from descend.triton.calls import Operator
from descend.triton.functions import chunk_of_row, exp_of_negative, load_rows, store_rows, whole_rows
from descend.triton.tiles import chunk, tile, wide
from descend.triton.work import Work

_MOST = 16384
"""Columns of rows that a program holds whole; half as many with smoothing, which sums in float64."""

_BLOCK = 512
"""Rows that a program reads at a time where it adds up numbers of rows."""

# Sums over a row of what may be as large as the largest number are of so much of it.
_SHARE = tl.constexpr(2.0**-16)


# --- targets ----------------------------------------------------------------------------------------------------------


@triton.jit
def load_targets(target_ptr, r, inside, columns, stride, ignored):
    """Of some rows: the class, int64, whether it is one, and whether the row is ignored."""
    t = tl.load(target_ptr + r * stride, mask=inside, other=0).to(tl.int64)
    is_ignored = t == ignored
    return t, inside & (t >= 0) & (t < columns) & ~is_ignored, is_ignored


@triton.jit
def load_weights(weight_ptr, t, known, WEIGHTED: tl.constexpr):
    """The weights of classes in float64, 1 where there are none, NaN of what is no class."""
    weight = tl.where(known, 1.0, float("nan")).to(tl.float64)
    if WEIGHTED:
        weight *= tl.load(weight_ptr + t, mask=known, other=0).to(tl.float64)
    return weight


@triton.jit
def count_kernel(
    target_ptr,
    weight_ptr,
    counted_ptr,
    rows,
    columns,
    target_stride,
    ignored: "i64",  # noqa: F821  Triton's name of the type
    WEIGHTED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """The weights of all rows' classes, the rows that count, the weights of all classes: their sums, in order."""
    i = tl.arange(0, BLOCK).to(tl.int64)
    r, weights, counting = i, tl.zeros([BLOCK], tl.float64), tl.zeros([BLOCK], tl.float64)
    for _ in range(0, rows, BLOCK):
        t, known, is_ignored = load_targets(target_ptr, r, r < rows, columns, target_stride, ignored)
        counts = (r < rows) & ~is_ignored
        weights += tl.where(counts, load_weights(weight_ptr, t, known, WEIGHTED), 0.0)
        counting += counts.to(tl.float64)
        r += BLOCK
    tl.store(counted_ptr, tl.sum(weights))
    tl.store(counted_ptr + 1, tl.sum(counting))
    if WEIGHTED:
        c, classes = i, tl.zeros([BLOCK], tl.float64)
        for _ in range(0, columns, BLOCK):
            classes += tl.load(weight_ptr + c, mask=c < columns, other=0).to(tl.float64)
            c += BLOCK
        tl.store(counted_ptr + 2, tl.sum(classes))
    else:
        tl.store(counted_ptr + 2, tl.full([], columns, tl.float64))


def count(work: Work, target: Tensor, weight: Tensor | None, columns: int, ignore_index: int) -> Tensor:
    """The three sums of `count_kernel`, float64."""
    counted = work.empty((3,))
    work.start(
        count_kernel,
        1,
        *(target, target if weight is None else weight, counted, target.numel(), columns, target.stride(0)),
        ignore_index,
        WEIGHTED=weight is not None,
        BLOCK=_BLOCK,
        num_warps=4,
    )
    return counted


# --- rows -------------------------------------------------------------------------------------------------------------


@triton.jit
def two_parts(number, WIDE: tl.constexpr):
    """A float64 number as two of the type of the arithmetic; the second is 0 where the first is not finite."""
    high = number.to(WIDE)
    low = (number - high.to(tl.float64)).to(WIDE)
    return high, tl.where(high - high == 0, low, 0.0)


@triton.jit
def load_scores(x_ptr, r, c, stride, inside, WIDE: tl.constexpr):
    """A tile of scores, -infinity outside."""
    return tl.where(inside, load_rows(x_ptr, r, c, stride, inside, WIDE), float("-inf"))


@triton.jit
def sums_of(x, weight_ptr, c, columns, inside, WEIGHTED: tl.constexpr, SMOOTHED: tl.constexpr, WIDE: tl.constexpr):
    """Of each row of a tile, in float64: the greatest score, the sum of exp(x - it); for smoothing, of a share of it,
    that of weight * (it - x), and that of the weights.
    """
    most = tl.max(x, axis=1)
    # What is -infinity counts for nothing, also where nothing else is there; a NaN counts for NaN.
    e = tl.where(inside & ~(x == float("-inf")), exp_of_negative(x - most[:, None], WIDE), 0.0)
    total, most = tl.sum(e, axis=1).to(tl.float64), most.to(tl.float64)
    apart, weights = total, total
    if SMOOTHED:
        weight = (c < columns).to(tl.float64)
        if WEIGHTED:
            weight = tl.load(weight_ptr + c, mask=c < columns, other=0).to(tl.float64)
        below = most[:, None] * _SHARE - x.to(tl.float64) * _SHARE
        below = tl.where(x == float("-inf"), float("inf"), below)
        apart = tl.sum(tl.where(inside, below * weight[None, :], 0.0), axis=1)
        weights = tl.zeros_like(total) + tl.sum(weight) * _SHARE
    return most, total, apart, weights


@triton.jit
def store_loss(
    target_ptr,
    weight_ptr,
    loss_ptr,
    lse_ptr,
    r,
    inside,
    columns,
    target_stride,
    ignored,
    smoothing,
    most,
    log,
    at_target,
    apart,
    weights,
    WRITES: tl.constexpr,
    WEIGHTED: tl.constexpr,
    SMOOTHED: tl.constexpr,
):
    """The loss and lse of some rows, in float64, from the logarithm of the sum and the score of the class."""
    t, known, is_ignored = load_targets(target_ptr, r, inside, columns, target_stride, ignored)
    loss = ((most - at_target) + log) * load_weights(weight_ptr, t, known, WEIGHTED)
    if SMOOTHED:
        s = tl.full([], smoothing, tl.float64)
        loss = (1.0 - s) * loss + s / columns * ((apart + log * weights) / _SHARE)
    lse = most + log
    if not WRITES:  # then rows that are ignored need not be read
        lse = tl.where(is_ignored, 0.0, lse)
    tl.store(loss_ptr + r, tl.where(is_ignored, 0.0, loss), mask=inside)
    tl.store(lse_ptr + r, lse, mask=inside)


@triton.jit
def store_log_prob(log_prob_ptr, x, lse, r, c, stride, inside, WIDE: tl.constexpr):
    """input - lse of a tile: rounded once also where it is near 0."""
    if log_prob_ptr.dtype.element_ty.primitive_bitwidth == 16:
        high, low = two_parts(lse, WIDE)
        store_rows(log_prob_ptr, r, c, stride, inside, (x - high[:, None]) - low[:, None])
    else:
        store_rows(log_prob_ptr, r, c, stride, inside, x.to(tl.float64) - lse[:, None])


@triton.jit
def rows_kernel(
    x_ptr,
    target_ptr,
    weight_ptr,
    log_prob_ptr,
    loss_ptr,
    lse_ptr,
    rows,
    columns,
    x_stride,
    log_prob_stride,
    target_stride,
    ignored: "i64",  # noqa: F821
    smoothing: "fp64",  # noqa: F821
    WRITES: tl.constexpr,
    WEIGHTED: tl.constexpr,
    SMOOTHED: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    WIDE: tl.constexpr,
):
    """A tile of whole rows: each element is read once."""
    r, c, inside = whole_rows(rows, columns, ROWS, COLUMNS)
    x = load_scores(x_ptr, r, c, x_stride, inside, WIDE)
    most, total, apart, weights = sums_of(x, weight_ptr, c, columns, inside, WEIGHTED, SMOOTHED, WIDE)
    log = tl.log(total)
    t, known, _ = load_targets(target_ptr, r, r < rows, columns, target_stride, ignored)
    # Not read anew: log_prob may take the place of the scores.
    at_target = tl.sum(tl.where(known[:, None] & (c[None, :] == t[:, None]), x, 0.0), axis=1).to(tl.float64)
    store_loss(
        *(target_ptr, weight_ptr, loss_ptr, lse_ptr, r, r < rows, columns, target_stride, ignored, smoothing),
        *(most, log, at_target, apart, weights, WRITES, WEIGHTED, SMOOTHED),
    )
    if WRITES:
        store_log_prob(log_prob_ptr, x, most + log, r, c, log_prob_stride, inside, WIDE)


@triton.jit
def sums_kernel(
    x_ptr,
    weight_ptr,
    sums_ptr,
    rows,
    columns,
    chunks,
    x_stride,
    WEIGHTED: tl.constexpr,
    SMOOTHED: tl.constexpr,
    COLUMNS: tl.constexpr,
    WIDE: tl.constexpr,
):
    """The sums of every chunk of every row, float64 [2 or 4, chunks, rows]."""
    part, r, c, inside = chunk_of_row(columns, chunks, COLUMNS)
    x = load_scores(x_ptr, r, c, x_stride, inside, WIDE)
    most, total, apart, weights = sums_of(x, weight_ptr, c, columns, inside, WEIGHTED, SMOOTHED, WIDE)
    place, each = sums_ptr + part * rows + r, chunks * rows
    tl.store(place, most)
    tl.store(place + each, total)
    if SMOOTHED:
        tl.store(place + 2 * each, apart)
        tl.store(place + 3 * each, weights)


@triton.jit
def merge_kernel(
    x_ptr,
    target_ptr,
    weight_ptr,
    sums_ptr,
    loss_ptr,
    lse_ptr,
    rows,
    columns,
    chunks,
    x_stride,
    target_stride,
    ignored: "i64",  # noqa: F821
    smoothing: "fp64",  # noqa: F821
    WRITES: tl.constexpr,
    WEIGHTED: tl.constexpr,
    SMOOTHED: tl.constexpr,
    ROWS: tl.constexpr,
):
    """Losses and lse of whole rows from the sums of their chunks, in the order of the chunks."""
    r = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    inside, each = r < rows, chunks * rows
    most = tl.full([ROWS], float("-inf"), tl.float64)
    place = sums_ptr + r
    for _ in range(0, chunks):
        most = tl.maximum(most, tl.load(place, mask=inside, other=0))
        place += rows
    total, apart, weights = (tl.zeros([ROWS], tl.float64), tl.zeros([ROWS], tl.float64), tl.zeros([ROWS], tl.float64))
    place = sums_ptr + r
    for _ in range(0, chunks):
        here = tl.load(place, mask=inside, other=0)
        shift = tl.where(here == float("-inf"), 1.0, tl.exp(here - most))
        total += tl.load(place + each, mask=inside, other=0) * shift
        if SMOOTHED:
            share = tl.load(place + 3 * each, mask=inside, other=0)
            apart += tl.load(place + 2 * each, mask=inside, other=0) + (most - here) * share
            weights += share
        place += rows
    t, known, _ = load_targets(target_ptr, r, inside, columns, target_stride, ignored)
    at_target = tl.load(x_ptr + r * x_stride + t, mask=known, other=0).to(tl.float64)
    store_loss(
        *(target_ptr, weight_ptr, loss_ptr, lse_ptr, r, inside, columns, target_stride, ignored, smoothing),
        *(most, tl.log(total), at_target, apart, weights, WRITES, WEIGHTED, SMOOTHED),
    )


@triton.jit
def apply_kernel(
    x_ptr, log_prob_ptr, lse_ptr, columns, chunks, x_stride, log_prob_stride, COLUMNS: tl.constexpr, WIDE: tl.constexpr
):
    """A chunk of a row whose lse is known."""
    _, r, c, inside = chunk_of_row(columns, chunks, COLUMNS)
    x = load_rows(x_ptr, r, c, x_stride, inside, WIDE)
    store_log_prob(log_prob_ptr, x, tl.load(lse_ptr + r), r, c, log_prob_stride, inside, WIDE)


# --- losses -----------------------------------------------------------------------------------------------------------


@triton.jit
def store_number(pointer, number):
    """A float64 number, rounded once."""
    if pointer.dtype.element_ty.primitive_bitwidth == 16:
        number = number.to(tl.float32)
    tl.store(pointer, number.to(pointer.dtype.element_ty))


@triton.jit
def load_losses(target_ptr, of_rows_ptr, lse_ptr, r, rows, columns, target_stride, ignored, scale):
    """Of some rows: the loss, and its part that keeps lse near 0."""
    inside = r < rows
    _, _, is_ignored = load_targets(target_ptr, r, inside, columns, target_stride, ignored)
    lse = tl.load(lse_ptr + r, mask=inside, other=0)
    z = tl.where(is_ignored, 0.0, tl.full([], scale, tl.float64) * lse * lse)
    return tl.load(of_rows_ptr + r, mask=inside, other=0), z


@triton.jit
def each_loss_kernel(
    target_ptr,
    of_rows_ptr,
    lse_ptr,
    loss_ptr,
    zloss_ptr,
    rows,
    columns,
    target_stride,
    ignored: "i64",  # noqa: F821
    scale: "fp64",  # noqa: F821
    SCALED: tl.constexpr,
    ZLOSS: tl.constexpr,
    ROWS: tl.constexpr,
):
    """The losses of rows, which are not reduced."""
    r = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    loss, z = load_losses(target_ptr, of_rows_ptr, lse_ptr, r, rows, columns, target_stride, ignored, scale)
    zero, inside = tl.zeros([1], tl.int64), (r < rows)[None, :]
    store_rows(loss_ptr, zero, r, 0, inside, (loss + z if SCALED else loss)[None, :])
    if ZLOSS:
        store_rows(zloss_ptr, zero, r, 0, inside, z[None, :])


@triton.jit
def reduce_kernel(
    target_ptr,
    of_rows_ptr,
    lse_ptr,
    counted_ptr,
    loss_ptr,
    zloss_ptr,
    rows,
    columns,
    target_stride,
    ignored: "i64",  # noqa: F821
    scale: "fp64",  # noqa: F821
    MEAN: tl.constexpr,
    SCALED: tl.constexpr,
    ZLOSS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """The sum of the losses, or their mean, in the order of the rows."""
    r = tl.arange(0, BLOCK).to(tl.int64)
    loss, zloss = tl.zeros([BLOCK], tl.float64), tl.zeros([BLOCK], tl.float64)
    for _ in range(0, rows, BLOCK):
        of_rows, z = load_losses(target_ptr, of_rows_ptr, lse_ptr, r, rows, columns, target_stride, ignored, scale)
        loss += of_rows
        zloss += z
        r += BLOCK
    whole, whole_z = tl.sum(loss), tl.sum(zloss)
    if MEAN:
        whole /= tl.load(counted_ptr)
        whole_z /= tl.load(counted_ptr + 1)
    store_number(loss_ptr, whole + whole_z if SCALED else whole)
    if ZLOSS:
        store_number(zloss_ptr, whole_z)


def launch(
    work: Work,
    input: Tensor,
    target: Tensor,
    weight: Tensor | None,
    reduction: str | None,
    ignore_index: int,
    label_smoothing: float,
    lse_square_scale_for_zloss: float,
    return_zloss: bool,
    loss_out: Tensor,
    log_prob_out: Tensor | None,
    zloss_out: Tensor | None,
    lse_for_zloss_out: Tensor | None,
) -> None:
    """Starts the kernels; the parameters are those of aclnnCrossEntropyLoss."""
    rows, columns = input.shape
    scale = lse_square_scale_for_zloss if work.product == "host" else 0.0
    weights = None if weight is None else work.vector(weight)
    loss = work.output(loss_out, 1, loss_out.numel())
    zloss = loss if zloss_out is None else work.output(zloss_out, 1, loss_out.numel())
    numbers = {name: work.empty((rows,)) for name in ("loss", "lse")}
    if rows:
        losses_of_rows(work, input, target, weights, ignore_index, label_smoothing, log_prob_out, *numbers.values())
    if lse_for_zloss_out is not None:
        lse_for_zloss_out.copy_(numbers["lse"])
    given = (target, *numbers.values())
    to = (loss.matrix, zloss.matrix, rows, columns, target.stride(0), ignore_index, scale)
    kind = {"SCALED": scale != 0, "ZLOSS": zloss_out is not None, "num_warps": 4}
    if reduction != "none":
        is_mean = reduction != "sum"
        counted = count(work, target, weights, columns, ignore_index) if is_mean else numbers["loss"]
        work.start(reduce_kernel, 1, *given, counted, *to, MEAN=is_mean, BLOCK=_BLOCK, **kind)
    elif rows:
        work.start(each_loss_kernel, triton.cdiv(rows, _BLOCK), *given, *to, ROWS=_BLOCK, **kind)
    loss.finish()
    if zloss_out is not None:
        zloss.finish()


def losses_of_rows(
    work: Work,
    input: Tensor,
    target: Tensor,
    weight: Tensor | None,
    ignore_index: int,
    label_smoothing: float,
    log_prob_out: Tensor | None,
    loss: Tensor,
    lse: Tensor,
) -> None:
    """Starts the kernels that write log_prob, and loss and lse of each row, float64."""
    rows, columns = input.shape
    arithmetic: Any = wide(input, log_prob_out, weight)
    x = work.rows_of(input, rows, columns)
    log_prob = None if log_prob_out is None else work.output(log_prob_out, rows, columns)
    to, to_stride = (x, 0) if log_prob is None else (log_prob.matrix, log_prob.stride)
    targets = (target.stride(0), ignore_index, label_smoothing)
    of_class = target if weight is None else weight
    kind = {"WEIGHTED": weight is not None, "SMOOTHED": label_smoothing != 0}
    cut = tile(columns, _MOST // 2 if label_smoothing else _MOST, arithmetic, "cross_entropy_loss", input)
    if columns <= cut.columns:
        work.start(
            rows_kernel,
            triton.cdiv(rows, cut.rows),
            *(x, target, of_class, to, loss, lse, rows, columns, x.stride(0), to_stride, *targets),
            **kind,
            **{"WRITES": log_prob is not None, "ROWS": cut.rows, "COLUMNS": cut.columns, "WIDE": arithmetic},
            num_warps=cut.warps,
        )
    else:
        cut = chunk(arithmetic)
        chunks = triton.cdiv(columns, cut.columns)
        form = {"COLUMNS": cut.columns, "WIDE": arithmetic, "num_warps": cut.warps}
        sums = work.empty((4 if label_smoothing else 2, chunks, rows))
        shape = (rows, columns, chunks, x.stride(0))
        work.start(sums_kernel, rows * chunks, x, of_class, sums, *shape, **kind, **form)
        work.start(
            merge_kernel,
            triton.cdiv(rows, 128),
            *(x, target, of_class, sums, loss, lse, *shape, *targets),
            **kind,
            **{"WRITES": log_prob is not None, "ROWS": 128, "num_warps": 4},
        )
        if log_prob is not None:
            work.start(apply_kernel, rows * chunks, x, to, lse, columns, chunks, x.stride(0), to_stride, **form)
    if log_prob is not None:
        log_prob.finish()


cross_entropy_loss = Operator("cross_entropy_loss", launch)
