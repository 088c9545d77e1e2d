"""The layouts of sparse attention and of the lightning indexer: BSND and TND as rows [T, N, D], and their sequences.

BSND has sequences of S rows, of which the first ones count; TND has them one after another; PA_BSND has the keys in
pages [pages, size, N, D], which block_table [B, pages of a sequence] puts in order.
"""

from __future__ import annotations

from torch import Tensor

from descend.npu.composed.arithmetic import INTEGERS, check_integer
from descend.npu.composed.attention.layouts import Lengths, rows_of_pages, sequences
from descend.npu.composed.attention.masks import EVERYWHERE
from descend.npu.composed.refusal import refuse


def rows_of(operator: str, name: str, tensor: Tensor, layout: str, width: int = 2) -> Tensor:
    """The tensor as rows, which have ``width`` more dimensions."""
    dimensions = {"BSND": width + 2, "TND": width + 1}.get(layout)
    if dimensions is None:
        refuse(operator, "the layout", repr(layout), "must be 'BSND' or 'TND'")
    if tensor.dim() != dimensions:
        refuse(operator, name, f"of shape {list(tensor.shape)}", f"must have {dimensions} dimensions in {layout}")
    return tensor.flatten(0, 1) if layout == "BSND" else tensor


def in_order(operator: str, name: str, pages: Tensor, block_table: Tensor | None, lengths: Lengths) -> Tensor:
    """Pages as BSND. ``lengths`` tells how many rows of each sequence count."""
    if pages.dim() != 4:
        refuse(operator, name, f"of shape {list(pages.shape)}", "must have 4 dimensions in PA_BSND")
    if not all(pages.shape[:2]):
        refuse(operator, name, f"of shape {list(pages.shape)}", "must have a page and a row in it")
    return rows_of_pages(operator, pages, block_table, lengths)


def spans(operator: str, name: str, tensor: Tensor, layout: str, lengths: Lengths, ends: bool = False) -> list[slice]:
    """The rows of each sequence.

    ``lengths`` has the ends of the sequences in TND, in BSND how many rows of each count. With ``ends`` it has ends, or
    whole lengths, in BSND, too, and all rows must count.
    """
    if isinstance(lengths, Tensor):
        check_lengths(operator, name, lengths)
        lengths = lengths.tolist()
    numbers = None if lengths is None else list(lengths)
    if layout == "TND":
        return sequences(operator, name, numbers, tensor.shape[0])
    batch, size = tensor.shape[:2]
    if ends:
        if numbers and numbers not in ([size] * batch, [size * (b + 1) for b in range(batch)]):
            refuse(operator, name, numbers, f"must be None in BSND, or {batch} whole sequences of {size}")
        numbers = None
    numbers = [size] * batch if numbers is None else numbers
    if len(numbers) != batch or not all(0 <= number <= size for number in numbers):
        refuse(operator, name, numbers, f"must have a number from 0 to {size} for each of {batch} sequences")
    return [slice(b * size, b * size + number) for b, number in enumerate(numbers)]


def check_lengths(operator: str, name: str, lengths: Lengths) -> None:
    """Refuses a tensor that does not hold integers, one after another."""
    if isinstance(lengths, Tensor) and (lengths.dim() != 1 or lengths.dtype not in INTEGERS):
        refuse(
            operator, name, f"{lengths.dtype} of shape {list(lengths.shape)}", "must be int32 or int64, of 1 dimension"
        )


def pairs(operator: str, queries: list[slice], keys: list[slice]) -> list[tuple[slice, slice]]:
    """The rows of the queries and keys of each sequence."""
    if len(queries) != len(keys):
        refuse(operator, "the keys", f"of {len(keys)} sequences", f"must be of as many as the queries, {len(queries)}")
    return list(zip(queries, keys, strict=True))


def is_causal(operator: str, sparse_mode: int | None, pre_tokens: int | None, next_tokens: int | None) -> bool:
    """Whether keys are hidden: sparse_mode 3. In mode 0 none may be hidden by the numbers of tokens."""
    if sparse_mode not in (0, 3):
        refuse(operator, "sparse_mode", sparse_mode, "must be 0 or 3")
    for name, tokens in (("pre_tokens", pre_tokens), ("next_tokens", next_tokens)):
        if sparse_mode == 0 and tokens is not None and tokens < EVERYWHERE:
            refuse(operator, name, tokens, f"must be at least {EVERYWHERE}, and so hide no key, in sparse_mode 0")
    return sparse_mode == 3


def check_indices(operator: str, indices: Tensor, rows: int) -> Tensor:
    """The indices as [T, 1, K], of BSND or TND, with or without the dimension of the one key head."""
    check_integer(operator, "sparse_indices", indices)
    if indices.dim() < 2 or not indices.shape[-1] or indices.numel() != rows * indices.shape[-1]:
        refuse(
            operator,
            "sparse_indices",
            f"of shape {list(indices.shape)}",
            f"must have K indices for each of {rows} queries",
        )
    return indices.reshape(rows, 1, indices.shape[-1])
