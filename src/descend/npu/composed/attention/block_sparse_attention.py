"""npu_block_sparse_attention and its gradient: a block of queries sees the blocks of keys that a mask names.

    out = softmax(scale * query @ keys^T) @ values,    lse = log(sum(exp(scale * query @ keys^T)))

A block of queries is computed at a time, in float32; results are rounded once. A query that sees no key gives 0, and
its lse is -inf.

Document: torch_npu.npu_block_sparse_attention.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from descend.npu.composed.arithmetic import check_alike, check_shape, wide
from descend.npu.composed.attention.layouts import as_bnsd, from_bnsd
from descend.npu.composed.refusal import refuse


class Block(NamedTuple):
    """Some queries of a head, and the keys that they see: places along T, or B and S."""

    head: int
    key_head: int
    queries: tuple[int, slice]
    keys: tuple[int, Tensor]


def npu_block_sparse_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    block_sparse_mask: Tensor,
    block_shape: Sequence[int],
    *,
    q_input_layout: str = "TND",
    kv_input_layout: str = "TND",
    num_key_value_heads: int = 1,
    scale_value: float = 0.0,
    inner_precise: int = 1,
    actual_seq_lengths: Sequence[int] | None = None,
    actual_seq_lengths_kv: Sequence[int] | None = None,
    softmax_lse_flag: int | None = 0,
) -> tuple[Tensor, Tensor]:
    """The attention, and lse in float32, [T, N, 1] or [B, N, S, 1], also without softmax_lse_flag.

    ``block_sparse_mask`` [B, N, blocks of queries, blocks of keys] is 1 for blocks that are seen. Lengths are of each
    sequence; in BNSD they may be left out, and rows beyond them are 0.
    """
    operator = "npu_block_sparse_attention"
    layouts, lengths = (q_input_layout, kv_input_layout), (actual_seq_lengths, actual_seq_lengths_kv)
    q, k, v = _checked(operator, query, key, value, layouts, num_key_value_heads)
    out, lse = torch.zeros_like(q), torch.zeros(*q.shape[:3], 1, dtype=q.dtype)
    for block in _blocks(operator, query, key, block_sparse_mask, block_shape, layouts, lengths):
        (batch, rows), (_, columns) = block.queries, block.keys
        at = (batch, block.head, rows)
        if not len(columns):
            lse[at] = -torch.inf
            continue
        keys, values = k[batch, block.key_head, columns], v[batch, block.key_head, columns]
        scores = (q[at] * scale_value) @ keys.T
        lse[at] = scores.logsumexp(-1, keepdim=True)
        out[at] = scores.softmax(-1) @ values
    return from_bnsd(out, q_input_layout).contiguous().to(query.dtype), from_bnsd(lse, q_input_layout).contiguous()


def npu_block_sparse_attention_backward(
    d_out: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_out: Tensor,
    softmax_lse: Tensor,
    block_sparse_mask: Tensor,
    block_shape: Sequence[int] | None,
    actual_seq_lengths: Sequence[int] | None,
    actual_seq_lengths_kv: Sequence[int] | None,
    q_input_layout: str,
    kv_input_layout: str,
    num_key_value_heads: int,
    scale_value: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of query, key and value."""
    operator = "npu_block_sparse_attention_backward"
    layouts, lengths = (q_input_layout, kv_input_layout), (actual_seq_lengths, actual_seq_lengths_kv)
    q, k, v = _checked(operator, query, key, value, layouts, num_key_value_heads)
    check_alike(operator, "query", query, d_out=d_out, attention_out=attention_out, softmax_lse=softmax_lse)
    for name, tensor in (("d_out", d_out), ("attention_out", attention_out)):
        check_shape(operator, name, tensor, query.shape, "query")
    check_shape(operator, "softmax_lse", softmax_lse, [*query.shape[:-1], 1], "query, with one number a row")
    grad, out, lse = (as_bnsd(t, q_input_layout).to(q.dtype) for t in (d_out, attention_out, softmax_lse))
    dq, dk, dv = (torch.zeros_like(t) for t in (q, k, v))
    shared = (grad * out).sum(-1, keepdim=True)
    for block in _blocks(operator, query, key, block_sparse_mask, block_shape or (), layouts, lengths):
        (batch, rows), (_, columns) = block.queries, block.keys
        if not len(columns):
            continue
        at, of = (batch, block.head, rows), (batch, block.key_head, columns)
        keys, values = k[of], v[of]
        weights = ((q[at] * scale_value) @ keys.T - lse[at]).exp()
        dv[of] += weights.T @ grad[at]
        scores = weights * (grad[at] @ values.T - shared[at]) * scale_value
        dq[at] = scores @ keys
        dk[of] += scores.T @ q[at]
    gradients = (
        from_bnsd(dq, q_input_layout).contiguous(),
        from_bnsd(dk, kv_input_layout).contiguous(),
        from_bnsd(dv, kv_input_layout).contiguous(),
    )
    one, two, three = (gradient.to(given.dtype) for gradient, given in zip(gradients, (query, key, value), strict=True))
    return one, two, three


def _checked(
    operator: str, query: Tensor, key: Tensor, value: Tensor, layouts: tuple[str, str], key_heads: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Query, key and value as [B, N, S, D], in the dtype of the arithmetic."""
    check_alike(operator, "query", query, key=key, value=value)
    if layouts not in (("TND", "TND"), ("BNSD", "BNSD")):
        refuse(operator, "q_input_layout and kv_input_layout", layouts, "must both be 'TND', or both 'BNSD'")
    count = len(layouts[0])
    for name, tensor in (("query", query), ("key", key)):
        if tensor.dim() != count:
            refuse(operator, name, f"of shape {list(tensor.shape)}", f"must have {count} dimensions in {layouts[0]}")
    check_shape(operator, "value", value, key.shape, "key")
    heads = query.shape[1]
    if key.shape[1] != key_heads or key_heads < 1 or heads % key_heads:
        rule = f"must be the {key.shape[1]} heads of key, and divide the {heads} of query"
        refuse(operator, "num_key_value_heads", key_heads, rule)
    if key.shape[-1] != query.shape[-1] or (count == 4 and len(key) != len(query)):
        refuse(operator, "key", f"of shape {list(key.shape)}", f"must fit query of shape {list(query.shape)}")
    q, k, v = (wide(as_bnsd(t, layouts[0])) for t in (query, key, value))
    return q, k, v


def _sequences(
    operator: str,
    query: Tensor,
    key: Tensor,
    layouts: tuple[str, str],
    lengths: tuple[Sequence[int] | None, Sequence[int] | None],
) -> list[list[tuple[int, int]]]:
    """Where each sequence of queries and of keys begins, and its length."""
    if (lengths[0] is None) != (lengths[1] is None) or (layouts[0] == "TND" and lengths[0] is None):
        rule = "both or neither must be given, and both in TND"
        refuse(operator, "actual_seq_lengths and actual_seq_lengths_kv", "None", rule)
    found = []
    for name, tensor, own in (("", query, lengths[0]), ("_kv", key, lengths[1])):
        if layouts[0] == "BNSD":
            whole = tensor.shape[2]
            sizes = [whole] * len(tensor) if own is None else list(own)
            if len(sizes) != len(tensor) or any(not 0 <= size <= whole for size in sizes):
                rule = f"must be {len(tensor)} numbers from 0 to {whole}"
                refuse(operator, f"actual_seq_lengths{name}", sizes, rule)
            found.append([(0, size) for size in sizes])
            continue
        sizes = list(own or ())
        if sum(sizes) != len(tensor) or min(sizes, default=0) < 0:
            rule = f"must add up to the {len(tensor)} rows, none negative"
            refuse(operator, f"actual_seq_lengths{name}", sizes, rule)
        found.append([(sum(sizes[:i]), size) for i, size in enumerate(sizes)])
    if len(found[0]) != len(found[1]):
        rule = f"must have {len(found[0])} numbers, as actual_seq_lengths"
        refuse(operator, "actual_seq_lengths_kv", [size for _, size in found[1]], rule)
    return found


def _blocks(
    operator: str,
    query: Tensor,
    key: Tensor,
    mask: Tensor,
    block_shape: Sequence[int],
    layouts: tuple[str, str],
    lengths: tuple[Sequence[int] | None, Sequence[int] | None],
) -> Iterator[Block]:
    """The blocks of queries of all sequences and heads."""
    rows, columns = _sequences(operator, query, key, layouts, lengths)
    if len(block_shape) < 2 or min(block_shape[:2]) < 1:
        refuse(operator, "block_shape", list(block_shape), "must be two numbers from 1 on")
    down, across = block_shape[:2]
    whole = layouts[0] == "BNSD"
    longest = [
        tensor.shape[2] if whole else max((size for _, size in own), default=0)
        for tensor, own in ((query, rows), (key, columns))
    ]
    heads, group = query.shape[1], query.shape[1] // key.shape[1]
    shape = [len(rows), heads, -(-longest[0] // down), -(-longest[1] // across)]
    if mask.is_floating_point():
        refuse(operator, "block_sparse_mask", mask.dtype, "must be int8")
    check_shape(operator, "block_sparse_mask", mask, shape, "sequences, heads and blocks")
    for sequence, ((first, count), (first_key, count_keys)) in enumerate(zip(rows, columns, strict=True)):
        batch = sequence if whole else 0
        of_block = torch.arange(count_keys) // across
        for head in range(heads):
            for block in range(-(-count // down)):
                seen = mask[sequence, head, block].bool()[of_block].nonzero().flatten() + first_key
                own = slice(first + block * down, first + min(count, (block + 1) * down))
                yield Block(head, head // group, (batch, own), (batch, seen))
