"""Gradients of the compression of native sparse attention on CUDA."""

from collections.abc import Sequence
from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from descend.triton.calls import Operator
from descend.triton.functions import add_slots, load_at, store_at
from descend.triton.tiles import slabs, tile, torch_dtype, wide
from descend.triton.windows import find, first_token, sequences
from descend.triton.work import Work

_MOST = 256
"""Columns of a head that a program works on at a time."""


@triton.jit
def input_kernel(
    dy_ptr,
    weight_ptr,
    dx_ptr,
    table_ptr,
    tokens,
    end,
    windows,
    heads,
    depth,
    parts,
    width,
    stride,
    count,
    dy_stride,
    dx_stride,
    ONE: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    WIDE: tl.constexpr,
):
    """The gradient of some neighbouring tokens of a head: the sum over the windows that cover each, first to last."""
    at = tl.program_id(0).to(tl.int64)
    head, part = at % (heads * parts) // parts, at % parts
    r = at // (heads * parts) * ROWS + tl.arange(0, ROWS)
    c = part * COLUMNS + tl.arange(0, COLUMNS)
    if ONE:
        token, window, stop = r, tl.zeros([ROWS], tl.int64), tl.zeros([ROWS], tl.int64) + windows
    else:
        start = tl.load(table_ptr)
        sequence = find(table_ptr, tl.maximum(tl.minimum(r, end - 1), start), count)
        token = r - tl.load(table_ptr + sequence)
        window = tl.load(table_ptr + count + 1 + sequence)
        stop = tl.load(table_ptr + count + 2 + sequence)
    # Among the sequence's windows; below `first` where none covers the token.
    last = tl.minimum(token // stride, stop - window - 1)
    first = tl.where(token < width, 0, (token - width) // stride + 1)
    total = tl.zeros([ROWS, COLUMNS], WIDE)
    for step in range(0, (width + stride - 1) // stride):
        index = first + step
        covers = (token >= 0) & (index <= last) & (r < tokens)
        weight = tl.load(weight_ptr + (token - index * stride) * heads + head, mask=covers, other=0).to(WIDE)
        inside = covers[:, None] & (c < depth)[None, :]
        term = weight[:, None] * load_at(dy_ptr, (window + index) * dy_stride + head * depth, c, inside, WIDE)
        total += term
    store_at(dx_ptr, r * dx_stride + head * depth, c, (r < tokens)[:, None] & (c < depth)[None, :], total)


@triton.jit
def weight_kernel(
    dy_ptr,
    x_ptr,
    slots_ptr,
    table_ptr,
    windows,
    heads,
    depth,
    width,
    stride,
    count,
    slots,
    slab_windows,
    dy_stride,
    x_stride,
    ONE: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    WIDE: tl.constexpr,
):
    """The gradient of some positions of a head's weight: the sum over a slab of windows, [slots, width, heads]."""
    at = tl.program_id(0).to(tl.int64)
    slot, head, positions = at // heads % slots, at % heads, at // heads // slots
    w = positions * ROWS + tl.arange(0, ROWS)
    first = slot * slab_windows
    total = tl.zeros([ROWS, COLUMNS], WIDE)
    for begin in range(0, depth, COLUMNS):
        c = begin + tl.arange(0, COLUMNS)
        inside = (w < width)[:, None] & (c < depth)[None, :]
        for step in range(0, slab_windows):
            window = first + step
            known = window < windows
            token = first_token(table_ptr, tl.minimum(window, windows - 1), count, stride, ONE)
            dy = tl.load(dy_ptr + window * dy_stride + head * depth + c, mask=(c < depth) & known, other=0).to(WIDE)
            x = load_at(x_ptr, (token + w) * x_stride + head * depth, c, inside & known, WIDE)
            total += x * dy[None, :]
    place = slots_ptr + (slot * width + w) * heads + head
    tl.store(place, tl.sum(total, axis=1), mask=w < width)


def launch(
    work: Work,
    output_grad: Tensor,
    input: Tensor,
    weight: Tensor,
    act_seq_len: Sequence[int] | None,
    compress_block_size: int,
    compress_stride: int,
    act_seq_len_type: int,
    layout: str | None,
    input_grad: Tensor,
    weight_grad: Tensor,
) -> None:
    """Starts the kernels; the parameters are those of aclnnNsaCompressGrad."""
    tokens, heads, depth = input.shape
    width, stride = compress_block_size, compress_stride
    found = sequences(work, tokens, act_seq_len, act_seq_len_type, width, stride)
    if found.windows == 0 or heads == 0 or depth == 0:
        input_grad.zero_()
        weight_grad.zero_()
        return
    arithmetic: Any = wide(input)
    dy, x = work.rows_of(output_grad, found.windows, heads * depth), work.rows_of(input, tokens, heads * depth)
    weight, dx = work.packed(weight), work.output(input_grad, tokens, heads * depth)
    form = {"ONE": found.table is None, "WIDE": arithmetic}

    # The weight's first: the input's may be written where the input lies.
    cut = tile(depth, _MOST, arithmetic, "nsa_compress_grad", x)
    parts = slabs(found.windows, 1, cut.slabs)
    slots = work.empty((parts.count, width * heads), torch_dtype(arithmetic))
    positions = triton.cdiv(width, cut.rows)
    work.start(
        weight_kernel,
        parts.count * heads * positions,
        *(dy, x, slots, found.table, found.windows, heads, depth, width, stride, found.count, parts.count, parts.rows),
        *(dy.stride(0), x.stride(0)),
        **{"ROWS": cut.rows, "COLUMNS": cut.columns, "num_warps": cut.warps, **form},
    )
    columns = triton.cdiv(depth, cut.columns)
    work.start(
        input_kernel,
        triton.cdiv(tokens, cut.rows) * heads * columns,
        *(
            dy,
            weight,
            dx.matrix,
            found.table,
            tokens,
            found.tokens,
            found.windows,
            heads,
            depth,
            columns,
            width,
            stride,
        ),
        *(found.count, dy.stride(0), dx.stride),
        **{"ROWS": cut.rows, "COLUMNS": cut.columns, "num_warps": cut.warps, **form},
    )
    dx.finish()
    gradient = work.output(weight_grad, 1, width * heads)
    add_slots(work, slots, gradient.matrix)
    gradient.finish()


nsa_compress_grad = Operator("nsa_compress_grad", launch)
