"""The compression of native sparse attention on CUDA: each window of tokens becomes their weighted sum."""

from collections.abc import Sequence
from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from descend.triton.calls import Operator
from descend.triton.functions import load_at, store_at
from descend.triton.tiles import tile, wide
from descend.triton.windows import first_token, sequences
from descend.triton.work import Work

_MOST = 256
"""Columns of a head that a program works on at a time."""

_RUN = 16
"""Positions of a window whose terms are added on their own before they join the others."""


@triton.jit
def windows_kernel(
    x_ptr,
    weight_ptr,
    out_ptr,
    table_ptr,
    windows,
    heads,
    depth,
    parts,
    width,
    stride,
    count,
    x_stride,
    out_stride,
    ONE: tl.constexpr,
    RUN: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    WIDE: tl.constexpr,
):
    """Some neighbouring windows of a head."""
    at = tl.program_id(0).to(tl.int64)
    head, part = at % (heads * parts) // parts, at % parts
    r = at // (heads * parts) * ROWS + tl.arange(0, ROWS)
    c = part * COLUMNS + tl.arange(0, COLUMNS)
    inside = (r < windows)[:, None] & (c < depth)[None, :]
    token = first_token(table_ptr, tl.where(r < windows, r, 0), count, stride, ONE)
    total = tl.zeros([ROWS, COLUMNS], WIDE)
    for first in range(0, width, RUN):
        run = tl.zeros([ROWS, COLUMNS], WIDE)
        for position in range(first, tl.minimum(first + RUN, width)):
            weight = tl.load(weight_ptr + position * heads + head).to(WIDE)
            run += weight * load_at(x_ptr, (token + position) * x_stride + head * depth, c, inside, WIDE)
        total += run
    store_at(out_ptr, r * out_stride + head * depth, c, inside, total)


def launch(
    work: Work,
    input: Tensor,
    weight: Tensor,
    act_seq_len: Sequence[int] | None,
    layout: str | None,
    compress_block_size: int,
    compress_stride: int,
    act_seq_len_type: int,
    output: Tensor,
) -> None:
    """Starts the kernels; the parameters are those of aclnnNsaCompress."""
    if output.numel() == 0:
        return
    tokens, heads, depth = input.shape
    found = sequences(work, tokens, act_seq_len, act_seq_len_type, compress_block_size, compress_stride)
    arithmetic: Any = wide(input)
    x, out = work.rows_of(input, tokens, heads * depth), work.output(output, found.windows, heads * depth)
    cut = tile(depth, _MOST, arithmetic, "nsa_compress", x)
    parts = triton.cdiv(depth, cut.columns)
    work.start(
        windows_kernel,
        triton.cdiv(found.windows, cut.rows) * heads * parts,
        *(x, work.packed(weight), out.matrix, found.table, found.windows, heads, depth, parts),
        *(compress_block_size, compress_stride, found.count, x.stride(0), out.stride),
        **{"ONE": found.table is None, "RUN": _RUN, "ROWS": cut.rows, "COLUMNS": cut.columns},
        **{"WIDE": arithmetic, "num_warps": cut.warps},
    )
    out.finish()


nsa_compress = Operator("nsa_compress", launch)
