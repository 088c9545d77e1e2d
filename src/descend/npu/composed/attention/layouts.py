"""The layouts of query, key and value, as views [B, N, S, D] of the same memory, and the sizes of a call.

TND has sequences of different lengths one after another, T rows in all. A sequence begins where the one before ends.
All other layouts are batches of equally long sequences.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from descend.npu.composed.arithmetic import INTEGERS, check_float, check_within
from descend.npu.composed.refusal import refuse

LAYOUTS = {"BSH": "BSND", "SBH": "SBND", "BSND": "BSND", "BNSD": "BNSD", "TND": "TND"}
"""The axes of each layout, after H is split into N heads of D."""
Lengths = Sequence[int] | Tensor | None
COPIES = 8
"""Each query's statistics are stored this many times: it fills a block of a vector unit in float32."""


def as_bnsd(tensor: Tensor, axes: str) -> Tensor:
    """A view [B, N, S, D] of a tensor with these axes; of TND and NTD B is 1."""
    if "B" not in axes:
        tensor, axes = tensor.unsqueeze(0), "B" + axes.replace("T", "S")
    return tensor.permute(*(axes.index(axis) for axis in "BNSD"))


def from_bnsd(tensor: Tensor, axes: str) -> Tensor:
    """The way back from `as_bnsd`: a view with these axes."""
    whole = axes if "B" in axes else "B" + axes.replace("T", "S")
    moved = tensor.permute(*("BNSD".index(axis) for axis in whole))
    return moved if "B" in axes else moved[0]


def rows_of_pages(operator: str, pages: Tensor, block_table: Tensor | None, lengths: Lengths) -> Tensor:
    """[B, S, N, D]: the pages [pages, size, N, D] in the order of ``block_table`` [B, pages of a sequence].

    ``lengths`` tells how many rows of each sequence count, or of all. The table may hold anything behind these.
    """
    if block_table is None or block_table.dim() != 2 or block_table.dtype not in INTEGERS:
        got = "None" if block_table is None else f"{block_table.dtype} of shape {list(block_table.shape)}"
        refuse(operator, "block_table", got, "must be int32 or int64, [B, pages of a sequence], for keys in pages")
    batch, count = block_table.shape
    read = torch.ones_like(block_table, dtype=torch.bool)
    if lengths is not None and (len(lengths) == 1 or len(lengths) >= batch):
        used = torch.as_tensor(lengths[:batch], device="cpu").view(-1, 1)
        read = (torch.arange(count) * pages.shape[1] < used).expand_as(read)
    rule = f"must name one of {len(pages)} pages where it is read"
    check_within(operator, "block_table", block_table[read], len(pages), rule)
    if not len(pages):
        return pages.new_zeros(batch, count * pages.shape[1], *pages.shape[2:])
    return pages[block_table.long().masked_fill(~read, 0)].flatten(1, 2)


@dataclass(frozen=True)
class Sizes:
    """The layout, the numbers of heads, and the rows: B, Sq and Skv; for TND, B is 1 and the rows are T of each."""

    layout: str
    heads: int
    key_heads: int
    batch: int
    queries: int
    keys: int

    def rows(self, tensor: Tensor, heads: int) -> Tensor:
        """A view [B, N, S, D]; for TND [1, N, T, D]."""
        if self.layout.endswith("H"):
            tensor = tensor.unflatten(-1, (heads, tensor.shape[-1] // heads))
        return as_bnsd(tensor, LAYOUTS[self.layout])

    def grouped(self, tensor: Tensor) -> Tensor:
        """A tensor shaped as the query, as a view [B, Nkv, G, S, D]."""
        heads: Tensor = self.rows(tensor, self.heads).unflatten(1, (self.key_heads, -1))
        return heads

    def keyed(self, tensor: Tensor) -> Tensor:
        """A key or value as a view [B, Nkv, S, D]."""
        return self.rows(tensor, self.key_heads)

    def result_shape(self, query: Tensor, value: Tensor) -> list[int]:
        """The shape of the result: the query's, with the head size of the value."""
        if self.layout.endswith("H"):
            return [*query.shape[:-1], self.heads * (value.shape[-1] // self.key_heads)]
        return [*query.shape[:-1], value.shape[-1]]


def sizes_of(operator: str, query: Tensor, key: Tensor, value: Tensor, head_num: int, input_layout: str) -> Sizes:
    """The sizes of a call. Tensors that do not fit the layout or each other are refused."""
    layout = input_layout.upper()
    if layout not in LAYOUTS:
        refuse(operator, "input_layout", repr(input_layout), f"must be one of {', '.join(LAYOUTS)}")
    if head_num <= 0:
        refuse(operator, "head_num", head_num, "must be at least 1")
    for name, tensor in (("query", query), ("key", key), ("value", value)):
        if tensor.dim() != len(layout):
            refuse(operator, name, f"of shape {list(tensor.shape)}", f"must have {len(layout)} dimensions in {layout}")
        check_float(operator, **{name: tensor})
        if tensor.dtype != query.dtype:
            refuse(operator, name, tensor.dtype, f"must have the dtype of query, which is {query.dtype}")
    width = query.shape[-1]
    if layout.endswith("H"):
        if width % head_num or not width:
            rule = f"must have a multiple of head_num columns, {head_num}"
            refuse(operator, "query", f"of shape {list(query.shape)}", rule)
        size = width // head_num
        key_heads = key.shape[-1] // size
        if key.shape[-1] % size:
            rule = f"must have a multiple of {size} columns, as a head of query has"
            refuse(operator, "key", f"of shape {list(key.shape)}", rule)
        if key_heads and value.shape[-1] % key_heads:
            rule = f"must have a multiple of {key_heads} columns, the heads of key"
            refuse(operator, "value", f"of shape {list(value.shape)}", rule)
    else:
        axis = layout.index("N")
        key_heads = key.shape[axis]
        if query.shape[axis] != head_num:
            refuse(operator, "head_num", head_num, f"must be N of query, whose shape is {list(query.shape)}")
        if key.shape[-1] != width:
            refuse(operator, "key", f"of shape {list(key.shape)}", f"must have D of query, {width}")
    if not key_heads or head_num % key_heads:
        refuse(operator, "key", f"of {key_heads} heads", f"their number must divide that of query, {head_num}")
    if key.shape[:-1] != value.shape[:-1]:
        refuse(
            operator,
            "value",
            f"of shape {list(value.shape)}",
            f"must have the shape of key but for the last size, {list(key.shape)}",
        )
    batch = query.shape[layout.index("B")] if "B" in layout else 1
    if "B" in layout and key.shape[layout.index("B")] != batch:
        refuse(operator, "key", f"of shape {list(key.shape)}", f"must have B of query, {batch}")
    rows = layout.index("S") if "S" in layout else 0
    return Sizes(layout, head_num, key_heads, batch, query.shape[rows], key.shape[rows])


def sequences(operator: str, name: str, ends: Sequence[int] | None, rows: int) -> list[slice]:
    """The rows of each sequence of TND, from the ends. Zeros at the end of the list are sequences that do not exist."""
    if not ends:
        refuse(operator, name, "None" if ends is None else "empty", "must tell where each sequence of TND ends")
    count = len(ends)
    while count and ends[count - 1] == 0:
        count -= 1
    begins = [0, *ends[: count - 1]] if count else []
    if any(end < begin for begin, end in zip(begins, ends, strict=False)) or (count and ends[count - 1] > rows):
        refuse(operator, name, list(ends), f"must not decrease, nor go beyond the {rows} rows of TND")
    last = ends[count - 1] if count else 0
    return [slice(b, e) for b, e in zip(begins, ends, strict=False)] + [slice(last, last)] * (len(ends) - count)
