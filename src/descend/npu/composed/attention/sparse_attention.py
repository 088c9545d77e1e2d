"""npu_sparse_flash_attention and its gradient: each query sees the keys that sparse_indices names.

    out[t] = softmax(scale_value * q[t] @ k[places[t]]^T) @ value[places[t]]
    q = [query, query_rope], k = [key, key_rope]

An index b names the sparse_block_size keys from b * sparse_block_size on; -1 names none. In sparse_mode 3 the last
query of a sequence sees all keys, the one before all but the last, and so on. ``sinks`` are scores, one for each head,
whose value is 0. There is no gradient without return_softmax_lse.

Document: torch_npu.npu_sparse_flash_attention.
"""

from __future__ import annotations

import torch
from torch import Tensor

from descend.npu.composed.arithmetic import check_alike, check_float, check_shape, check_together, wide
from descend.npu.composed.attention import selected
from descend.npu.composed.attention.layouts import Lengths
from descend.npu.composed.attention.token_rows import (
    check_indices,
    check_lengths,
    in_order,
    is_causal,
    pairs,
    rows_of,
    spans,
)
from descend.npu.composed.refusal import refuse

ABSORBED = 2
"""The attention_mode in which query and key have rotary parts of their own."""


def npu_sparse_flash_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor | None,
    sparse_indices: Tensor,
    scale_value: float,
    *,
    block_table: Tensor | None = None,
    actual_seq_lengths_query: Tensor | None = None,
    actual_seq_lengths_kv: Tensor | None = None,
    query_rope: Tensor | None = None,
    key_rope: Tensor | None = None,
    sparse_block_size: int = 1,
    layout_query: str = "BSND",
    layout_kv: str = "BSND",
    sparse_mode: int = 3,
    pre_tokens: int = 2**63 - 1,
    next_tokens: int = 2**63 - 1,
    attention_mode: int = 0,
    return_softmax_lse: bool = False,
    sinks: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """The attention, of the query's shape, softmax_max and softmax_sum [B, Nkv, S, G] or [Nkv, T, G], else [0].

    ``query`` is [B, S, N, D] or [T, N, D]; key and value have one head. With ``layout_kv`` PA_BSND they are in pages.
    """
    operator = "npu_sparse_flash_attention"
    if attention_mode != ABSORBED:
        refuse(operator, "attention_mode", attention_mode, f"must be {ABSORBED}, the only one of the document")
    if value is None:
        refuse(operator, "value", "None", "must be given: the document demands it")
    if layout_kv == "PA_BSND":
        if return_softmax_lse:
            refuse(operator, "return_softmax_lse", True, "must be False with the layout PA_BSND")
        check_lengths(operator, "actual_seq_lengths_kv", actual_seq_lengths_kv)
        table = (block_table, actual_seq_lengths_kv)
        key, value = in_order(operator, "key", key, *table), in_order(operator, "value", value, *table)
        key_rope = None if key_rope is None else in_order(operator, "key_rope", key_rope, *table)
        layout_kv = "BSND"
    elif layout_kv != layout_query:
        refuse(operator, "layout_kv", repr(layout_kv), f"must be 'PA_BSND', or layout_query, which is {layout_query!r}")
    lengths = (actual_seq_lengths_query, actual_seq_lengths_kv)
    band = (sparse_mode, pre_tokens, next_tokens)
    call = _Call(
        operator, query, key, value, sparse_indices, query_rope, key_rope, sparse_block_size, lengths,
        (layout_query, layout_kv), band,
    )  # fmt: skip
    if sinks is not None:
        check_float(operator, sinks=sinks)
        check_shape(operator, "sinks", sinks, [call.heads], "the heads of query")
        sinks = sinks.view(1, -1)
    attention = selected.forward(call.query, call.key, call.value, call.lists, scale_value, sinks)
    out, largest, total = attention
    if not return_softmax_lse:
        empty = largest.new_empty(0)
        return out.flatten(1, 2).view(*query.shape[:-1], -1).to(query.dtype), empty, empty.clone()
    statistics = (call.outward(statistic) for statistic in (largest, total))
    return out.flatten(1, 2).view(*query.shape[:-1], -1).to(query.dtype), *statistics  # type: ignore[return-value]


def npu_sparse_flash_attention_grad(
    query: Tensor,
    key: Tensor,
    value: Tensor | None,
    sparse_indices: Tensor,
    d_out: Tensor,
    out: Tensor,
    softmax_max: Tensor,
    softmax_sum: Tensor,
    scale_value: float,
    sparse_block_size: int,
    query_rope: Tensor | None = None,
    key_rope: Tensor | None = None,
    actual_seq_qlen: Tensor | None = None,
    actual_seq_kvlen: Tensor | None = None,
    layout: str | None = "BSND",
    sparse_mode: int | None = 3,
    pre_tokens: int | None = 2**63 - 1,
    next_tokens: int | None = 2**63 - 1,
    attention_mode: int | None = 0,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The gradients of query, key, value, query_rope and key_rope; those of rotary parts that are None are empty."""
    operator = "npu_sparse_flash_attention_grad"
    if value is None:
        refuse(operator, "value", "None", "must be given: the document demands it")
    layouts, band = (layout or "BSND", layout or "BSND"), (sparse_mode, pre_tokens, next_tokens)
    call = _Call(
        operator, query, key, value, sparse_indices, query_rope, key_rope, sparse_block_size,
        (actual_seq_qlen, actual_seq_kvlen), layouts, band,
    )  # fmt: skip
    check_alike(operator, "query", query, d_out=d_out, out=out)
    check_float(operator, softmax_max=softmax_max, softmax_sum=softmax_sum)
    for name, tensor in (("d_out", d_out), ("out", out)):
        check_shape(operator, name, tensor, [*query.shape[:-1], value.shape[-1]], "the attention")
    largest, total = (
        call.inward(operator, name, statistic)
        for name, statistic in (("softmax_max", softmax_max), ("softmax_sum", softmax_sum))
    )
    grad, result = (rows_of(operator, "d_out", tensor, layouts[0]).unsqueeze(1) for tensor in (d_out, out))
    given = (call.query, call.key, call.value, call.lists, scale_value)
    dq, dk, dv = selected.backward(*given, grad, result, largest, total)
    size = query.shape[-1]
    gradients = (
        dq[..., :size].reshape(query.shape),
        dk[..., :size].reshape(key.shape),
        dv.view(value.shape),
        dq[..., size:].reshape((*query.shape[:-1], -1)) if query_rope is not None else dq.new_empty(0),
        dk[..., size:].reshape((*key.shape[:-1], -1)) if key_rope is not None else dk.new_empty(0),
    )
    a, b, c, d, e = (gradient.to(query.dtype).contiguous() for gradient in gradients)
    return a, b, c, d, e


class _Call:
    """A checked call as rows: query [T, 1, N, D], key and value [R, 1, D], the rotary parts appended, and its keys."""

    def __init__(
        self,
        operator: str,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        indices: Tensor,
        query_rope: Tensor | None,
        key_rope: Tensor | None,
        size: int,
        lengths: tuple[Lengths, Lengths],
        layouts: tuple[str, str],
        band: tuple[int | None, int | None, int | None],
    ) -> None:
        check_float(operator, query=query)
        for name, tensor in (("key", key), ("value", value), ("query_rope", query_rope), ("key_rope", key_rope)):
            if tensor is not None and tensor.dtype != query.dtype:
                refuse(operator, name, tensor.dtype, f"must have the dtype of query, which is {query.dtype}")
        rows = rows_of(operator, "query", query, layouts[0])
        self.key, self.value = (rows_of(operator, n, t, layouts[1]) for n, t in (("key", key), ("value", value)))
        queries = spans(operator, "actual_seq_lengths_query", query, layouts[0], lengths[0])
        keys = spans(operator, "actual_seq_lengths_kv", key, layouts[1], lengths[1])
        self.sequences = pairs(operator, queries, keys)
        self.batch = query.shape[0] if layouts[0] == "BSND" else None
        check_together(operator, query_rope=query_rope, key_rope=key_rope)
        if query_rope is not None and key_rope is not None:
            rope = rows_of(operator, "query_rope", query_rope, layouts[0])
            check_shape(operator, "query_rope", rope, [*rows.shape[:2], rope.shape[-1]], "query, but for D")
            key_rows = rows_of(operator, "key_rope", key_rope, layouts[1])
            check_shape(
                operator, "key_rope", key_rows, [*self.key.shape[:2], rope.shape[-1]], "key, and D of query_rope"
            )
        check_shape(operator, "key", self.key, [len(self.key), 1, rows.shape[-1]], "one head of the size of query")
        check_shape(operator, "value", self.value, [len(self.key), 1, self.value.shape[-1]], "key, but for D")
        if query_rope is not None:
            rows, self.key = torch.cat((rows, rope), -1), torch.cat((self.key, key_rows), -1)
        self.heads = rows.shape[1]
        self.query = rows.unsqueeze(1)
        if size < 1:
            refuse(operator, "sparse_block_size", size, "must be at least 1")
        seen = selected.seen(len(rows), self.sequences, is_causal(operator, *band))
        self.lists = selected.Lists(check_indices(operator, indices, len(rows)), size, seen)

    def outward(self, statistic: Tensor) -> Tensor:
        """[T, 1, G] as [B, 1, S, G] or [1, T, G]."""
        if self.batch is None:
            return statistic.transpose(0, 1).contiguous()
        return statistic.unflatten(0, (self.batch, -1)).transpose(1, 2).contiguous()  # type: ignore[no-any-return]

    def inward(self, operator: str, name: str, statistic: Tensor) -> Tensor:
        """The inverse of `outward`."""
        rows = len(self.query)
        shape = [1, rows, self.heads] if self.batch is None else [self.batch, 1, rows // max(1, self.batch), self.heads]
        check_shape(operator, name, statistic, shape, "the forward's result with return_softmax_lse")
        return wide(statistic).reshape(rows, 1, self.heads)
