"""Attention in which each query has a list of its own keys, and the lists.

    out[t] = softmax(scale * query[t] @ key[places[t]]^T) @ value[places[t]]

Keys are gathered for a few queries at a time, so that no more than some MiB of them exist. Arithmetic is float32, of
float64 tensors float64. A query that has no key gives 0, the lowest float and the highest float, as in
`descend.npu.composed.attention.blockwise`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from descend.npu.composed.arithmetic import wide
from descend.npu.composed.memory import row_blocks


@dataclass(frozen=True)
class Seen:
    """For each query, where the keys of its sequence begin, and how many of these it may see, from there on: [T]."""

    begin: Tensor
    limit: Tensor


def seen(rows: int, sequences: Sequence[tuple[slice, slice]], causal: bool) -> Seen:
    """``sequences`` has the rows of the queries and of the keys of each sequence; other queries see nothing.

    If ``causal``, the last query of a sequence sees all keys, the one before all but the last, and so on.
    """
    begin, limit = torch.zeros(rows, dtype=torch.int64), torch.zeros(rows, dtype=torch.int64)
    for queries, keys in sequences:
        count, length = queries.stop - queries.start, keys.stop - keys.start
        begin[queries] = keys.start
        limit[queries] = (torch.arange(count) + 1 + length - count).clamp_(0, length) if causal else length
    return Seen(begin, limit)


@dataclass(frozen=True)
class Lists:
    """The keys of each query: ``indices`` [T, Nkv, K] names blocks of ``size`` keys within the query's sequence.

    A negative index names none, and keys that the query may not see are left out.
    """

    indices: Tensor
    size: int
    seen: Seen

    def places(self, rows: slice) -> tuple[Tensor, Tensor]:
        """The rows of the keys [rows, Nkv, K * size], and which of them are left out. Those have row 0."""
        first = self.indices[rows].to(torch.int64) * self.size
        within = (first.unsqueeze(-1) + torch.arange(self.size)).flatten(2)
        out = (within < 0) | (within >= self.seen.limit[rows].view(-1, 1, 1))
        return (within + self.seen.begin[rows].view(-1, 1, 1)).masked_fill_(out, 0), out

    def blocks(self, width: int) -> Iterator[tuple[slice, Tensor, Tensor]]:
        """The blocks of queries, with their `places`; ``width`` is how many numbers are needed for each key."""
        heads, count = self.indices.shape[1:]
        for rows in row_blocks(self.indices.shape[0], heads * count * self.size * width):
            yield rows, *self.places(rows)


def gathered(tensor: Tensor, places: Tensor, out: Tensor) -> Tensor:
    """[rows, Nkv, K, D] of [R, Nkv, D], 0 where a key is left out, so that its value cannot be felt."""
    heads = torch.arange(tensor.shape[1]).view(1, -1, 1)
    return wide(tensor[places, heads]).masked_fill_(out.unsqueeze(-1), 0)


def scattered(target: Tensor, places: Tensor, added: Tensor) -> None:
    """Adds [rows, Nkv, K, D] to the rows of ``target`` [R, Nkv, D] at places."""
    heads = target.shape[1]
    flat = places * heads + torch.arange(heads).view(1, -1, 1)
    target.view(-1, target.shape[2]).index_add_(0, flat.flatten(), added.reshape(-1, target.shape[2]))


def forward(
    query: Tensor, key: Tensor, value: Tensor, lists: Lists, scale: float, sinks: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """The attention [T, Nkv, G, Dv], the largest score and the sum of exp(score - largest), [T, Nkv, G].

    ``query`` is [T, Nkv, G, D], key and value [R, Nkv, D]. ``sinks`` [Nkv, G] are scores whose value is 0.
    """
    limits = torch.finfo(wide(query[:0]).dtype)
    shape = query.shape[:-1]
    out = wide(query).new_empty(*shape, value.shape[-1])
    largest, total = (wide(query).new_empty(shape) for _ in range(2))
    for rows, places, left_out in lists.blocks(key.shape[-1] + value.shape[-1]):
        scores = (wide(query[rows]) * scale) @ gathered(key, places, left_out).transpose(-1, -2)
        scores.masked_fill_(left_out.unsqueeze(2), -torch.inf)
        most = scores.amax(-1) if scores.shape[-1] else scores.new_full(scores.shape[:-1], -torch.inf)
        if sinks is not None:
            most = torch.maximum(most, sinks.to(most.dtype))
        dead = most == -torch.inf
        weights = (scores - most.masked_fill(dead, 0).unsqueeze(-1)).exp_()
        sums = weights.sum(-1)
        if sinks is not None:
            sums += (sinks.to(most.dtype) - most).exp_()
        largest[rows], total[rows] = most.masked_fill(dead, limits.min), sums.masked_fill(dead, limits.max)
        out[rows] = (weights / total[rows].unsqueeze(-1)) @ gathered(value, places, left_out)
    return out, largest, total


def backward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    lists: Lists,
    scale: float,
    out_grad: Tensor,
    out: Tensor,
    largest: Tensor,
    total: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of query, key and value, in the dtype of the arithmetic, from the results of `forward`."""
    dq, dk, dv = (
        torch.zeros_like(wide(tensor), memory_format=torch.contiguous_format) for tensor in (query, key, value)
    )
    normalizer = largest.to(dq.dtype) + total.to(dq.dtype).log()
    for rows, places, left_out in lists.blocks(key.shape[-1] + value.shape[-1]):
        q, grad, keys = wide(query[rows]) * scale, wide(out_grad[rows]), gathered(key, places, left_out)
        weights = (q @ keys.transpose(-1, -2) - normalizer[rows].unsqueeze(-1)).exp_()
        weights.masked_fill_(left_out.unsqueeze(2), 0)
        scattered(dv, places, weights.transpose(-1, -2) @ grad)
        score_grad = grad @ gathered(value, places, left_out).transpose(-1, -2)
        score_grad.sub_((grad * wide(out[rows])).sum(-1, keepdim=True)).mul_(weights)
        dq[rows] = (score_grad @ keys).mul_(scale)
        scattered(dk, places, score_grad.transpose(-1, -2) @ q)
    return dq, dk, dv
