"""Softmax attention in blocks of queries, so that no more than a few MiB of scores exist at a time.

    scores = scale * query @ key^T + bias
    out    = dropout(softmax(scores where visible)) @ value

All tensors are views [B, Nkv, G, S, D] (G query heads share a key head) or, of keys and values, [B, Nkv, S, D].
Arithmetic is float32, of float64 tensors float64; results are rounded once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from descend.npu.composed.attention.masks import EVERYWHERE, Visible
from descend.npu.composed.random import Kept

SCORES = 1 << 20
"""How many scores exist at a time: 4 MiB in float32, about the size of a core's cache."""
QUERIES = 128
"""How many queries are in a block if bounds hide keys, so that keys that no query of the block sees are skipped."""


@dataclass(frozen=True)
class Problem:
    """One attention: see the module. ``bias`` is [B or 1, Nkv, G, Sq or 1, Skv] and is multiplied by ``bias_scale``."""

    query: Tensor
    key: Tensor
    value: Tensor
    scale: float
    visible: Visible
    bias: Tensor | None = None
    bias_scale: float = 1.0
    first: int = 0
    """The place of the first score in the mask of dropout. All scores follow, those that no query sees too."""

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the arithmetic."""
        return torch.float64 if self.query.dtype == torch.float64 else torch.float32


Range = tuple[slice, slice, slice]


def forward(problem: Problem, out: Tensor, largest: Tensor, total: Tensor, drawn: Kept | None) -> None:
    """Writes ``out`` [B, Nkv, G, Sq, Dv] and, for each query, the largest score and the sum of exp(score - largest).

    A query that sees no key gives 0, the lowest float and the highest float, as the operators do.
    """
    limits = torch.finfo(problem.dtype)
    for batches, heads, rows in _blocks(problem):
        block = _Block(problem, batches, heads, rows)
        if block.empty:
            at = (batches, heads, slice(None), rows)
            out[at], largest[at], total[at] = 0, limits.min, limits.max
            continue
        scores = block.scores()
        most = scores.amax(-1)
        weights = torch.softmax(scores, -1)
        sums = weights.amax(-1).reciprocal()  # the largest weight is exp(0) / sum
        dead = most == -torch.inf
        if dead.any():
            weights.masked_fill_(dead.unsqueeze(-1), 0)
            most.masked_fill_(dead, limits.min)
            sums.masked_fill_(dead, limits.max)
        if drawn is not None:
            weights.mul_(block.kept(drawn))
        at = (batches, heads, slice(None), rows)
        out[at] = block.grouped(torch.bmm(block.flat(weights), block.values))
        largest[at] = most
        total[at] = sums


@dataclass(frozen=True)
class Gradients:
    """Tensors that gradients are added to, in the dtype of the arithmetic: shaped as query, key, value and bias."""

    query: Tensor
    key: Tensor
    value: Tensor
    bias: Tensor | None

    def of(self, batches: slice, queries: slice, keys: slice) -> Gradients:
        """The gradients of a part of the attention."""
        bias = self.bias[batches] if self.bias is not None and self.bias.shape[0] > 1 else self.bias
        query = self.query[batches, :, :, queries]
        return Gradients(query, self.key[batches, :, keys], self.value[batches, :, keys], bias)


def backward(
    problem: Problem,
    out_grad: Tensor,
    out: Tensor,
    largest: Tensor,
    total: Tensor,
    drawn: Kept | None,
    into: Gradients,
) -> None:
    """Adds the gradients of `forward` to ``into``; ``out``, ``largest`` and ``total`` are its results.

    ``largest`` and ``total`` may cover more keys than the problem has: several processes may share an attention's keys.
    """
    if drawn is None and _whole(problem):
        _backward_whole(problem, out_grad, out, largest, total, into)
        return
    for batches, heads, rows in _blocks(problem):
        block = _Block(problem, batches, heads, rows)
        if block.empty:
            continue
        at = (batches, heads, slice(None), rows)
        grad = out_grad[at].to(problem.dtype)
        shared = (grad * out[at]).sum(-1, keepdim=True)
        normalizer = (largest[at] + total[at].log()).unsqueeze(-1)
        weights = block.scores().sub_(normalizer).exp_()
        flat_grad = block.flat(grad)
        score_grad = block.grouped(torch.bmm(flat_grad, block.values.transpose(1, 2)))
        kept = None if drawn is None else block.kept(drawn)
        used = weights if kept is None else weights * kept
        block.add(into.value, torch.bmm(block.flat(used).transpose(1, 2), flat_grad))
        if kept is not None:
            score_grad.mul_(kept)
        score_grad.sub_(shared).mul_(weights)
        if into.bias is not None:
            target = block.bias_of(into.bias)
            target.add_(score_grad.sum_to_size(target.shape), alpha=problem.bias_scale)
        flat_score_grad = block.flat(score_grad)
        into.query[at] = block.grouped(torch.bmm(flat_score_grad, block.keys)).mul_(problem.scale)
        # block.queries has been multiplied by the scale already
        block.add(into.key, torch.bmm(flat_score_grad.transpose(1, 2), block.queries))


def _whole(problem: Problem) -> bool:
    """Whether PyTorch's own CPU attention can compute the gradients. It is faster than `_blocks`."""
    seen = problem.visible
    causal = seen.before == EVERYWHERE and seen.after == seen.shift == seen.prefix == 0
    sizes = {*problem.query.shape, *problem.key.shape}
    same = problem.query.shape[-1] == problem.value.shape[-1] and 0 not in sizes
    return same and problem.bias is None and seen.masked is None and (causal or not seen.bounded)


def _backward_whole(
    problem: Problem, out_grad: Tensor, out: Tensor, largest: Tensor, total: Tensor, into: Gradients
) -> None:
    group, dtype = problem.query.shape[2], problem.dtype
    key, value = (
        tensor.to(dtype).unsqueeze(2).expand(-1, -1, group, -1, -1).flatten(1, 2)
        for tensor in (problem.key, problem.value)
    )
    query, grad, result = (tensor.to(dtype).flatten(1, 2) for tensor in (problem.query, out_grad, out))
    # PyTorch's kernel reads the numbers of a head one after another, whatever their stride.
    query, key, value, grad, result = (
        tensor if tensor.stride(-1) == 1 else tensor.contiguous() for tensor in (query, key, value, grad, result)
    )
    normalizer = (largest + total.log()).flatten(1, 2)
    backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
    causal = problem.visible.bounded
    gradients = backward(grad, query, key, value, result, normalizer, 0.0, causal, scale=problem.scale)
    into.query.copy_(gradients[0].unflatten(1, (-1, group)))
    for target, gradient in zip((into.key, into.value), gradients[1:], strict=True):
        target += gradient.unflatten(1, (-1, group)).sum(2)


def _blocks(problem: Problem) -> Iterator[Range]:
    """Cuts the batches, key heads and queries into blocks of about `SCORES` scores."""
    batch, heads, group, queries, _ = problem.query.shape
    keys = problem.key.shape[2]
    rows = max(1, SCORES // max(1, keys))
    size = max(1, min(queries, QUERIES if problem.visible.bounded else queries, max(1, rows // max(1, group))))
    at_once = max(1, rows // (max(1, group) * size))
    head_step = max(1, min(heads, at_once))
    batch_step = max(1, at_once // head_step) if head_step == heads else 1
    for b in range(0, batch, batch_step):
        for h in range(0, heads, head_step):
            for i in range(0, queries, size):
                yield slice(b, b + batch_step), slice(h, h + head_step), slice(i, min(queries, i + size))


class _Block:
    """The queries of a block, and the keys and values that they may see, in the arithmetic's dtype: [B * Nkv, S, D]."""

    def __init__(self, problem: Problem, batches: slice, heads: slice, rows: slice) -> None:
        self.problem, self.batches, self.heads, self.rows = problem, batches, heads, rows
        begin, end = problem.visible.keys(rows.start, rows.stop, problem.key.shape[2])
        self.columns = slice(begin, end)
        query = problem.query[batches, heads, :, rows]
        self.shape = query.shape[:-1]
        self.empty = begin == end or 0 in self.shape
        if self.empty:
            return
        self.queries = self.flat(query.to(problem.dtype) * problem.scale)
        self.keys = problem.key[batches, heads, self.columns].to(problem.dtype).flatten(0, 1)
        self.values = problem.value[batches, heads, self.columns].to(problem.dtype).flatten(0, 1)

    def flat(self, grouped: Tensor) -> Tensor:
        """[B, Nkv, G, rows, X] as [B * Nkv, G * rows, X]."""
        batch, heads, group, rows = self.shape
        return grouped.reshape(batch * heads, group * rows, grouped.shape[-1])

    def grouped(self, flat: Tensor) -> Tensor:
        """The inverse of `flat`."""
        return flat.view(*self.shape, flat.shape[-1])

    def scores(self) -> Tensor:
        """[B, Nkv, G, rows, keys], -inf where a query does not see a key."""
        scores = self.grouped(torch.bmm(self.queries, self.keys.transpose(1, 2)))
        if self.problem.bias is not None:
            scores.add_(self.bias_of(self.problem.bias), alpha=self.problem.bias_scale)
        visible, rows, columns = self.problem.visible, self.rows, self.columns
        hidden = visible.hidden(rows.start, rows.stop, columns.start, columns.stop)
        if hidden is not None:
            scores.masked_fill_(hidden, -torch.inf)
        if visible.masked is not None:
            masked = visible.masked[..., rows, columns]
            masked = masked[self.batches] if masked.shape[0] > 1 else masked
            if masked.shape[1] > 1:
                masked = masked.unflatten(1, (-1, self.shape[2]))[:, self.heads]
            else:
                masked = masked.unsqueeze(2)
            scores.masked_fill_(masked, -torch.inf)
        return scores

    def kept(self, drawn: Kept) -> Tensor:
        """The factors of dropout, 0 or 1 / keep, shaped as the scores."""
        batch, heads, group, rows = self.shape
        all_heads, queries = group * self.problem.query.shape[1], self.problem.query.shape[3]
        keys = self.problem.key.shape[2]
        at_once = heads * group if rows == queries else 1  # the heads of a batch follow each other
        first_head = self.heads.start * group
        starts = [
            self.problem.first + ((b * all_heads + head) * queries + self.rows.start) * keys
            for b in range(self.batches.start, self.batches.start + batch)
            for head in range(first_head, first_head + heads * group, at_once)
        ]
        pieces = [drawn.places(start, at_once * rows * keys) for start in starts]
        kept = torch.stack(pieces).view(*self.shape, keys)[..., self.columns]
        return kept.to(self.problem.dtype).div_(drawn.dropout.keep)

    def bias_of(self, bias: Tensor) -> Tensor:
        """The part of a bias, or of its gradient, that belongs to the block."""
        part = bias[self.batches if bias.shape[0] > 1 else slice(None), self.heads]
        return part[..., self.rows if bias.shape[3] > 1 else slice(None), self.columns]

    def add(self, target: Tensor, flat: Tensor) -> None:
        """Adds [B * Nkv, keys, X] to the block's part of a gradient of keys or values."""
        batch, heads = self.shape[:2]
        target[self.batches, self.heads, self.columns] += flat.view(batch, heads, *flat.shape[1:])
