"""The lightning indexer of DeepSeek's sparse attention: which keys a query is to see, its gradient, and its loss.

    score[t, j] = sum over heads n of weights[t, n] * relu(query[t, n] @ key[j])
    indices[t]  = the sparse_count keys of the highest score; of equal scores the first

In sparse_mode 3 the last query of a sequence sees all keys, the one before all but the last, and so on. If a query sees
fewer keys than sparse_count, index -1 and score -inf follow.

The loss compares the scores with an attention, of query, key and their rotary parts, whose softmax_max and softmax_sum
are given. It sums over the queries and over the keys that each sees, or that sparse_indices names:

    p    = the mean over the heads of exp(scale_value * query @ key^T - softmax_max) / softmax_sum
    y    = softmax(score)
    loss = sum of p * (log(max(p, 1e-8)) - log(max(y, 1e-8))),  dscore = y - p

The documents divide p by its sum over the keys. As in torch_npu's test p is the mean, whose sum is 1 if softmax_sum is
that of the same keys.

Documents: torch_npu.npu_lightning_indexer, npu_sparse_lightning_indexer_grad_kl_loss,
npu_dense_lightning_indexer_softmax_lse, npu_dense_lightning_indexer_grad_kl_loss.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

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
from descend.npu.composed.memory import row_blocks
from descend.npu.composed.refusal import refuse

LEAST = 1e-8
"""Probabilities are at least so large where their logarithm is taken."""
ALL = 2**63 - 1


def npu_lightning_indexer(
    query: Tensor,
    key: Tensor,
    weights: Tensor,
    *,
    actual_seq_lengths_query: Tensor | None = None,
    actual_seq_lengths_key: Tensor | None = None,
    block_table: Tensor | None = None,
    layout_query: str = "BSND",
    layout_key: str = "BSND",
    sparse_count: int = 2048,
    sparse_mode: int = 3,
    pre_tokens: int = ALL,
    next_tokens: int = ALL,
    return_value: bool = False,
) -> tuple[Tensor, Tensor]:
    """The indices (int32 [B, S, 1, sparse_count] or [T, 1, sparse_count]), and their scores if ``return_value``.

    ``query`` is [B, S, N, D] or [T, N, D], ``key`` has one head, ``weights`` is [B, S, N] or [T, N].
    """
    operator = "npu_lightning_indexer"
    if sparse_count < 1:
        refuse(operator, "sparse_count", sparse_count, "must be at least 1")
    if layout_key == "PA_BSND":
        if return_value:
            refuse(operator, "return_value", True, "must be False with the layout PA_BSND")
        check_lengths(operator, "actual_seq_lengths_key", actual_seq_lengths_key)
        key, layout_key = in_order(operator, "key", key, block_table, actual_seq_lengths_key), "BSND"
    elif layout_key != layout_query:
        refuse(
            operator, "layout_key", repr(layout_key), f"must be 'PA_BSND', or layout_query, which is {layout_query!r}"
        )
    causal = is_causal(operator, sparse_mode, pre_tokens, next_tokens)
    lengths, layouts = (actual_seq_lengths_query, actual_seq_lengths_key), (layout_query, layout_key)
    index = _Index.of(operator, query, key, weights, lengths, layouts, causal)
    rows = len(index.query)
    indices = torch.full((rows, sparse_count), -1, dtype=torch.int32)
    values = wide(query).new_full((rows, sparse_count), -torch.inf)
    for block in index.dense():
        found = block.scores.sort(dim=-1, descending=True, stable=True)
        count = min(sparse_count, block.scores.shape[-1])
        values[block.rows, :count] = found.values[:, :count]
        hidden = found.values[:, :count] == -torch.inf
        indices[block.rows, :count] = found.indices[:, :count].to(torch.int32).masked_fill_(hidden, -1)
    shape = [*query.shape[:-2], 1, sparse_count]
    scores = values.view(shape) if return_value else values.new_empty(0)
    return indices.view(shape), scores.to(query.dtype)


def npu_lightning_indexer_grad(
    query: Tensor,
    key: Tensor,
    dy: Tensor,
    sparse_indices: Tensor,
    weights: Tensor,
    actual_seq_lengths_query: Tensor | None = None,
    actual_seq_lengths_key: Tensor | None = None,
    layout: str | None = "BSND",
    sparse_mode: int | None = 3,
    pre_tokens: int | None = ALL,
    next_tokens: int | None = ALL,
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of query, key and weights from those of the scores; index -1 has none."""
    operator, layouts = "npu_lightning_indexer_grad", (layout or "BSND", layout or "BSND")
    is_causal(operator, sparse_mode, pre_tokens, next_tokens)
    lengths = (actual_seq_lengths_query, actual_seq_lengths_key)
    index = _Index.of(operator, query, key, weights, lengths, layouts, causal=False)
    rows = len(index.query)
    lists = selected.Lists(check_indices(operator, sparse_indices, rows), 1, index.seen)
    check_alike(operator, "query", query, dy=dy)
    if dy.numel() != sparse_indices.numel():
        refuse(
            operator,
            "dy",
            f"of shape {list(dy.shape)}",
            f"must have that of sparse_indices, {list(sparse_indices.shape)}",
        )
    grad, gradients = wide(dy).reshape(rows, -1), _Gradients(index)
    for block in index.sparse(lists):
        gradients.add(block, grad[block.rows])
    return gradients.results(query, key, weights)


def npu_sparse_lightning_indexer_grad_kl_loss(
    query: Tensor,
    key: Tensor,
    query_index: Tensor,
    key_index: Tensor,
    weights: Tensor,
    sparse_indices: Tensor,
    softmax_max: Tensor,
    softmax_sum: Tensor,
    scale_value: float,
    *,
    query_rope: Tensor | None = None,
    key_rope: Tensor | None = None,
    actual_seq_qlen: Sequence[int] | None = None,
    actual_seq_klen: Sequence[int] | None = None,
    layout: str | None = "BSND",
    sparse_mode: int | None = 3,
    pre_tokens: int | None = ALL,
    next_tokens: int | None = ALL,
    sinks: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The gradients of query_index, key_index and weights, and the loss, float32 [1].

    ``softmax_max`` and ``softmax_sum`` are [B, 1, S, N] or [1, T, N], as npu_sparse_flash_attention gives them.
    """
    operator, layout = "npu_sparse_lightning_indexer_grad_kl_loss", layout or "BSND"
    if sinks is not None:
        refuse(operator, "sinks", "given", "must be None: the document does not say how p is corrected by them")
    causal = is_causal(operator, sparse_mode, pre_tokens, next_tokens)
    lengths = (actual_seq_qlen, actual_seq_klen)
    index = _Index.of(operator, query_index, key_index, weights, lengths, (layout, layout), causal, ends=True)
    target = _Target.of(
        operator, index, layout, query, key, query_rope, key_rope, softmax_max, softmax_sum, scale_value
    )
    if target.key.shape[1] != 1:
        refuse(operator, "key", f"of {target.key.shape[1]} heads", "must have one")
    rows = len(index.query)
    lists = selected.Lists(check_indices(operator, sparse_indices, rows), 1, index.seen)
    gradients, loss = _Gradients(index), wide(query).new_zeros(1)
    for block in index.sparse(lists, target.key.shape[-1]):
        probabilities = target.of_keys(block)
        most = block.scores.amax(-1, keepdim=True)
        own = (block.scores - most.masked_fill(most == -torch.inf, 0)).exp_()
        own /= own.sum(-1, keepdim=True).clamp_(min=LEAST)
        loss += _step(block, probabilities, own, gradients)
    return *gradients.results(query_index, key_index, weights), _loss(loss)


def npu_dense_lightning_indexer_softmax_lse(
    query_index: Tensor,
    key_index: Tensor,
    weights: Tensor,
    *,
    actual_seq_qlen: Sequence[int] | None = None,
    actual_seq_klen: Sequence[int] | None = None,
    layout: str | None = "BSND",
    sparse_mode: int | None = 3,
    pre_tokens: int | None = ALL,
    next_tokens: int | None = ALL,
) -> tuple[Tensor, Tensor]:
    """The largest score and the sum of exp(score - largest) of each query, [B, 1, S] or [1, T]."""
    operator, layout = "npu_dense_lightning_indexer_softmax_lse", layout or "BSND"
    causal = is_causal(operator, sparse_mode, pre_tokens, next_tokens)
    lengths = (actual_seq_qlen, actual_seq_klen)
    index = _Index.of(operator, query_index, key_index, weights, lengths, (layout, layout), causal, ends=True)
    limits, rows = torch.finfo(wide(query_index[:0]).dtype), len(index.query)
    largest, total = (wide(query_index).new_full((rows,), least) for least in (limits.min, limits.max))
    for block in index.dense():
        most = block.scores.amax(-1)
        seen = most > -torch.inf
        sums = (block.scores - most.unsqueeze(-1)).exp_().sum(-1)
        largest[block.rows], total[block.rows] = most.where(seen, limits.min), sums.where(seen, limits.max)
    shape = _shape_by_query(query_index, layout)
    return largest.view(shape), total.view(shape)


def npu_dense_lightning_indexer_grad_kl_loss(
    query: Tensor,
    key: Tensor,
    query_index: Tensor,
    key_index: Tensor,
    weights: Tensor,
    softmax_max: Tensor,
    softmax_sum: Tensor,
    softmax_max_index: Tensor,
    softmax_sum_index: Tensor,
    scale_value: float,
    *,
    query_rope: Tensor | None = None,
    key_rope: Tensor | None = None,
    actual_seq_qlen: Sequence[int] | None = None,
    actual_seq_klen: Sequence[int] | None = None,
    layout: str | None = "BSND",
    sparse_mode: int | None = 3,
    pre_tokens: int | None = ALL,
    next_tokens: int | None = ALL,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The gradients of query_index, key_index and weights, and the loss, float32 [1].

    ``softmax_max`` and ``softmax_sum`` are [B, Nkv, S, G] or [Nkv, T, G], those of the scores as
    npu_dense_lightning_indexer_softmax_lse gives them.
    """
    operator, layout = "npu_dense_lightning_indexer_grad_kl_loss", layout or "BSND"
    causal = is_causal(operator, sparse_mode, pre_tokens, next_tokens)
    lengths = (actual_seq_qlen, actual_seq_klen)
    index = _Index.of(operator, query_index, key_index, weights, lengths, (layout, layout), causal, ends=True)
    target = _Target.of(
        operator, index, layout, query, key, query_rope, key_rope, softmax_max, softmax_sum, scale_value
    )
    rows = len(index.query)
    shape = _shape_by_query(query_index, layout)
    check_alike(
        operator, "query_index", query_index, softmax_max_index=softmax_max_index, softmax_sum_index=softmax_sum_index
    )
    for name, tensor in (("softmax_max_index", softmax_max_index), ("softmax_sum_index", softmax_sum_index)):
        check_shape(operator, name, tensor, shape, "the statistics")
    most, sums = (wide(statistic).reshape(rows, 1) for statistic in (softmax_max_index, softmax_sum_index))
    gradients, loss = _Gradients(index), wide(query).new_zeros(1)
    for block in index.dense(target.query.shape[1]):
        probabilities = target.of_keys(block)
        own = (block.scores - most[block.rows]).exp_().div_(sums[block.rows])
        loss += _step(block, probabilities, own, gradients)
    return *gradients.results(query_index, key_index, weights), _loss(loss)


def _shape_by_query(query: Tensor, layout: str) -> list[int]:
    """Of statistics with a number for each query."""
    return [1, query.shape[0]] if layout == "TND" else [query.shape[0], 1, query.shape[1]]


def _loss(loss: Tensor) -> Tensor:
    return loss if loss.dtype == torch.float64 else loss.float()


@dataclass(frozen=True)
class _Block:
    """Scores of a few queries, and which keys they are of."""

    rows: slice
    columns: Tensor
    """The keys: [K, D], or gathered [rows, K, D]."""
    products: Tensor
    """relu(query @ key), [rows, N, K]."""
    scores: Tensor
    """[rows, K], -inf where a key is not seen."""
    where: slice | tuple[Tensor, Tensor]
    """The rows of the keys, the same for all queries; or the places of each query's keys, and which are left out."""


@dataclass(frozen=True)
class _Index:
    """The indexer's tensors as rows: query [T, N, D], key [R, 1, D], weights [T, N]; what each query may see."""

    query: Tensor
    key: Tensor
    weights: Tensor
    sequences: list[tuple[slice, slice]]
    seen: selected.Seen

    @staticmethod
    def of(
        operator: str,
        query: Tensor,
        key: Tensor,
        weights: Tensor,
        lengths: tuple[Lengths, Lengths],
        layouts: tuple[str, str],
        causal: bool,
        ends: bool = False,
    ) -> _Index:
        """Checks the tensors."""
        check_float(operator, query=query, weights=weights)
        if key.dtype != query.dtype:
            refuse(operator, "key", key.dtype, f"must have the dtype of query, which is {query.dtype}")
        rows, key_rows = (
            rows_of(operator, n, t, w) for n, t, w in (("query", query, layouts[0]), ("key", key, layouts[1]))
        )
        check_shape(operator, "key", key_rows, [len(key_rows), 1, rows.shape[2]], "one head of the size of query")
        check_shape(operator, "weights", weights, query.shape[:-1], "query, but for D")
        queries = spans(operator, "the ends of the queries", query, layouts[0], lengths[0], ends)
        keys = spans(operator, "the ends of the keys", key, layouts[1], lengths[1], ends)
        sequences = pairs(operator, queries, keys)
        own = rows_of(operator, "weights", weights, layouts[0], 1)
        return _Index(rows, key_rows, own, sequences, selected.seen(len(rows), sequences, causal))

    def dense(self, heads: int = 0) -> Iterator[_Block]:
        """The scores of all keys; ``heads`` tells how many more products exist at a time for each of them."""
        for queries, keys in self.sequences:
            length = keys.stop - keys.start
            if not length:
                continue
            columns = wide(self.key[keys, 0])
            for part in row_blocks(queries.stop - queries.start, length * (self.query.shape[1] + heads)):
                rows = slice(queries.start + part.start, queries.start + part.stop)
                hidden = torch.arange(length) >= self.seen.limit[rows].unsqueeze(-1)
                yield self._block(rows, columns, hidden, keys)

    def sparse(self, lists: selected.Lists, width: int = 0) -> Iterator[_Block]:
        """The scores of the keys that are named; ``width`` tells how many more numbers each of them needs."""
        for rows, places, out in lists.blocks(self.key.shape[-1] + self.query.shape[1] + width):
            columns = selected.gathered(self.key, places, out)[:, 0]
            yield self._block(rows, columns, out[:, 0], (places, out))

    def _block(self, rows: slice, columns: Tensor, hidden: Tensor, where: slice | tuple[Tensor, Tensor]) -> _Block:
        products = (wide(self.query[rows]) @ columns.transpose(-1, -2)).relu_()
        scores = (wide(self.weights[rows]).to(products.dtype).unsqueeze(1) @ products).squeeze(1)
        return _Block(rows, columns, products, scores.masked_fill_(hidden, -torch.inf), where)


@dataclass(frozen=True)
class _Target:
    """The attention whose probabilities the scores are to have: query [T, N, D], key [R, Nkv, D], statistics [T, N]."""

    query: Tensor
    key: Tensor
    normalizer: Tensor
    scale: float

    @staticmethod
    def of(
        operator: str,
        index: _Index,
        layout: str,
        query: Tensor,
        key: Tensor,
        query_rope: Tensor | None,
        key_rope: Tensor | None,
        softmax_max: Tensor,
        softmax_sum: Tensor,
        scale: float,
    ) -> _Target:
        """Checks the tensors."""
        check_alike(
            operator, "query_index", index.query, query=query, key=key, query_rope=query_rope, key_rope=key_rope
        )
        check_alike(operator, "query_index", index.query, softmax_max=softmax_max, softmax_sum=softmax_sum)
        rows, columns = rows_of(operator, "query", query, layout), rows_of(operator, "key", key, layout)
        check_together(operator, query_rope=query_rope, key_rope=key_rope)
        check_shape(operator, "query", rows, [len(index.query), *rows.shape[1:]], "query_index, but for N and D")
        heads = [len(index.key), columns.shape[1], rows.shape[2]]
        check_shape(operator, "key", columns, heads, "key_index, but for N, and D of query")
        if not columns.shape[1] or rows.shape[1] % columns.shape[1]:
            refuse(operator, "key", f"of {columns.shape[1]} heads", f"must have a divisor of query's {rows.shape[1]}")
        if query_rope is not None and key_rope is not None:
            rope = rows_of(operator, "query_rope", query_rope, layout)
            key_rows = rows_of(operator, "key_rope", key_rope, layout)
            check_shape(operator, "query_rope", rope, [*rows.shape[:2], rope.shape[2]], "query, but for D")
            check_shape(operator, "key_rope", key_rows, [*columns.shape[:2], rope.shape[2]], "key, but for D")
            rows, columns = torch.cat((rows, rope), -1), torch.cat((columns, key_rows), -1)
        key_heads, group = columns.shape[1], rows.shape[1] // columns.shape[1]
        shape = [key_heads, len(rows), group]
        if layout == "BSND":
            shape = [query.shape[0], key_heads, query.shape[1], group]
        normalizers = []
        for name, statistic in (("softmax_max", softmax_max), ("softmax_sum", softmax_sum)):
            check_shape(operator, name, statistic, shape, "the statistics of the attention")
            by_row = wide(statistic).transpose(-3, -2).reshape(len(rows), rows.shape[1])
            normalizers.append(by_row if name == "softmax_max" else by_row.log())
        return _Target(rows, columns, normalizers[0] + normalizers[1], scale)

    def of_keys(self, block: _Block) -> Tensor:
        """The mean over the heads of the probabilities [rows, K] of a block's keys."""
        query = wide(self.query[block.rows]) * self.scale
        if isinstance(block.where, slice):
            keys = wide(self.key[block.where])
            grouped = query.unflatten(1, (keys.shape[1], -1)).permute(1, 2, 0, 3)
            products = (grouped @ keys.permute(1, 2, 0).unsqueeze(1)).flatten(0, 1).transpose(0, 1)
        else:
            products = query @ selected.gathered(self.key, *block.where)[:, 0].transpose(-1, -2)
        mean: Tensor = (products - self.normalizer[block.rows].unsqueeze(-1)).exp_().mean(1)
        return mean


def _step(block: _Block, probabilities: Tensor, own: Tensor, gradients: _Gradients) -> Tensor:
    """Adds the gradients of a block's loss, which it returns."""
    hidden = block.scores == -torch.inf
    p, y = probabilities.masked_fill(hidden, 0), own.masked_fill(hidden, 0)
    gradients.add(block, y - p)
    return (p * (p.clamp(min=LEAST).log() - y.clamp(min=LEAST).log())).sum()


class _Gradients:
    """The gradients of the indexer's tensors, in the dtype of the arithmetic."""

    def __init__(self, index: _Index) -> None:
        self.index = index
        tensors = (index.query, index.key, index.weights)
        self.query, self.key, self.weights = (
            torch.zeros(tensor.shape, dtype=wide(index.query[:0]).dtype) for tensor in tensors
        )

    def add(self, block: _Block, grad: Tensor) -> None:
        """Adds those of a block, from the gradients of its scores [rows, K]."""
        rows = block.rows
        self.weights[rows] = (block.products @ grad.unsqueeze(-1)).squeeze(-1)
        through = self.index.weights[rows].to(grad.dtype).unsqueeze(-1) * grad.unsqueeze(1)
        through.mul_(block.products > 0)
        self.query[rows] = through @ block.columns
        query = wide(self.index.query[rows])
        if isinstance(block.where, slice):
            self.key[block.where, 0] += through.flatten(0, 1).T @ query.flatten(0, 1)
            return
        places, out = block.where
        added = (through.transpose(1, 2) @ query).masked_fill_(out[:, 0].unsqueeze(-1), 0)
        selected.scattered(self.key, places, added.unsqueeze(1))

    def results(self, query: Tensor, key: Tensor, weights: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """In the shapes and dtypes of the tensors that were given."""
        dq, dk, dw = self.query.view(query.shape), self.key.view(key.shape), self.weights.view(weights.shape)
        return dq.to(query.dtype), dk.to(key.dtype), dw.to(weights.dtype)
