"""npu_gather_pa_kv_cache: the keys and values of sequences, from the pages of a cache.

    row j of sequence i:   page block_tables[i, seq_offset[i] / size + j / size], its row j % size

Divisions are whole, and size is that of a page. Rows of pages that do not exist are 0.

Document: op-plugin's test_npu_gather_pa_kv_cache.py.
"""

from __future__ import annotations

import torch
from torch import Tensor

from descend.npu.composed.arithmetic import check_dtype, check_integer, check_shape
from descend.npu.composed.refusal import refuse

OPERATOR = "npu_gather_pa_kv_cache"


def npu_gather_pa_kv_cache(
    key_cache: Tensor,
    value_cache: Tensor,
    block_tables: Tensor,
    seq_lens: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    seq_offset: Tensor | None = None,
    is_seq_lens_cumsum: bool = False,
) -> None:
    """Writes ``key`` [T, N, D] and ``value``: the rows of all sequences, as far as T reaches. Later rows stay.

    Caches are pages [pages, size, N, D], or [pages, N * D / last, size, last]. ``seq_lens`` are the lengths [B], or
    with is_seq_lens_cumsum the ends [B + 1], of which the first is 0. ``block_tables`` is [B, pages of a sequence].
    """
    parts = [
        (rows, _pages(name, rows, pages))
        for name, rows, pages in (("key", key, key_cache), ("value", value, value_cache))
    ]
    size = parts[0][1].shape[1]
    if parts[1][1].shape[:2] != parts[0][1].shape[:2] or len(key) != len(value):
        refuse(
            OPERATOR,
            "value or value_cache",
            "unlike key or key_cache",
            "must have as many rows, pages and rows of pages",
        )
    sequence, place, row = _places(block_tables, seq_lens, seq_offset, is_seq_lens_cumsum, size, len(key))
    known = place < block_tables.shape[1]
    page = torch.full_like(place, -1)
    page[known] = block_tables.long()[sequence[known], place[known]]
    exists = (page >= 0) & (page < len(key_cache))
    for rows, pages in parts:
        found = torch.zeros_like(rows[: len(page)], memory_format=torch.contiguous_format)
        found[exists] = pages[page[exists], row[exists]].reshape(-1, *rows.shape[1:])
        rows[: len(page)] = found


def npu_gather_pa_kv_cache_functional(
    key_cache: Tensor, value_cache: Tensor, block_tables: Tensor, seq_lens: Tensor, key: Tensor, value: Tensor,
    **options: object,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The keys and values of `npu_gather_pa_kv_cache`, in new memory."""
    keys, values = (t.clone(memory_format=torch.contiguous_format) for t in (key, value))
    npu_gather_pa_kv_cache(key_cache, value_cache, block_tables, seq_lens, keys, values, **options)  # type: ignore[arg-type]
    return keys, values


# --- parts -----------------------------------------------------------------------------------------------------------


def _pages(name: str, rows: Tensor, pages: Tensor) -> Tensor:
    """The pages as [pages, size, ...]."""
    check_dtype(OPERATOR, f"{name}_cache", pages, rows.dtype)
    if rows.dim() != 3 or pages.dim() != 4:
        got = f"of shape {list(rows.shape)}, its cache {list(pages.shape)}"
        refuse(OPERATOR, name, got, "must have 3 dimensions, its cache 4")
    if pages.shape[2:] == rows.shape[1:]:
        return pages
    heads, width = rows.shape[1:]
    if pages.shape[1] * pages.shape[3] != heads * width:
        rule = f"must hold {heads} * {width} numbers in a row of its pages"
        refuse(OPERATOR, f"{name}_cache", f"of shape {list(pages.shape)}", rule)
    return pages.transpose(1, 2)


def _places(
    tables: Tensor, lengths: Tensor, offsets: Tensor | None, are_ends: bool, size: int, most: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Of each row its sequence, its place in the table, and its row in the page: of the first ``most`` rows."""
    check_integer(OPERATOR, "block_tables", tables)
    check_integer(OPERATOR, "seq_lens", lengths)
    if tables.dim() != 2:
        refuse(OPERATOR, "block_tables", f"of shape {list(tables.shape)}", "must have 2 dimensions")
    batches = len(tables)
    check_shape(OPERATOR, "seq_lens", lengths, [batches + are_ends], "block_tables' sequences, and one more for ends")
    counts = (lengths.diff() if are_ends else lengths).long()
    begins = torch.zeros_like(counts)
    if offsets is not None:
        check_integer(OPERATOR, "seq_offset", offsets)
        check_shape(OPERATOR, "seq_offset", offsets, [batches], "block_tables' sequences")
        begins = offsets.long() // max(1, size)
    for name, numbers in (("seq_lens", counts), ("seq_offset", begins)):
        if bool((numbers < 0).any()):
            refuse(OPERATOR, name, numbers.tolist(), "must not be negative, and ends must not fall")
    sequence = torch.arange(batches).repeat_interleave(counts)[:most]
    row = torch.arange(len(sequence)) - (counts.cumsum(0) - counts)[sequence]
    return sequence, begins[sequence] + row // max(1, size), row % max(1, size)
