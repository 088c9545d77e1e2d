"""What the versions of npu_fusion_attention and their gradients share: the checks, and the attentions of a call.

The formulas stand in `descend.npu.composed.attention.fusion_attention`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from descend.npu.composed.arithmetic import check_alike, check_float
from descend.npu.composed.attention import blockwise
from descend.npu.composed.attention.layouts import COPIES, Sizes, sequences, sizes_of
from descend.npu.composed.attention.masks import EVERYWHERE, Masking, Part
from descend.npu.composed.layers.dropout import check_bits
from descend.npu.composed.random import Dropout, Kept, draw, from_bits
from descend.npu.composed.refusal import refuse

Ends = Sequence[int] | Tensor | None


@dataclass(frozen=True)
class Call:
    """The parameters that forward and gradient share, checked."""

    sizes: Sizes
    parts: list[Part]
    query: Tensor
    key: Tensor
    value: Tensor
    pse: Tensor | None
    scale: float
    pse_scale: float
    softmax_layout: str

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the arithmetic and of the statistics."""
        return torch.float64 if self.query.dtype == torch.float64 else torch.float32

    def problems(self) -> Iterator[tuple[Part, blockwise.Problem]]:
        """Each part with its attention problem."""
        query, key, value = self.sizes.grouped(self.query), self.sizes.keyed(self.key), self.sizes.keyed(self.value)
        pse = None if self.pse is None else self.pse.unflatten(1, (self.sizes.key_heads, -1))
        first = 0
        for part in self.parts:
            b, q, k = part.batches, part.queries, part.keys
            bias = pse[b] if pse is not None and pse.shape[0] > 1 else pse
            queries, keys, values = query[b, :, :, q], key[b, :, k], value[b, :, k]
            yield (
                part,
                blockwise.Problem(queries, keys, values, self.scale, part.visible, bias, self.pse_scale, first),
            )
            first += queries.shape[:-1].numel() * keys.shape[2]

    def statistics(self) -> Tensor:
        """A tensor with one number for each query: [B, Nkv, G, Sq]."""
        sizes = self.sizes
        shape = (sizes.batch, sizes.key_heads, sizes.heads // sizes.key_heads, sizes.queries)
        return torch.zeros(shape, dtype=self.dtype)

    def packed(self, statistics: Tensor) -> Tensor:
        """[B, N, Sq, 8]; of TND [T, N, 8], where a sequence has head after head, or row after row by softmax_layout."""
        rows = statistics.flatten(1, 2)
        if self.sizes.layout == "TND":
            rows = rows[0]
            if self.softmax_layout == "TND":
                rows = rows.T
            else:
                ends = max((part.queries.stop for part in self.parts), default=0)
                blocks = [rows[:, part.queries].flatten() for part in self.parts]
                rows = torch.cat([*blocks, rows[:, ends:].flatten()]).view(rows.shape[1], rows.shape[0])
        return rows.unsqueeze(-1).expand(*rows.shape, COPIES).contiguous()

    def unpacked(self, statistics: Tensor) -> Tensor:
        """The inverse of `packed`, in the arithmetic's dtype."""
        rows = statistics[..., 0].to(self.dtype)
        if self.sizes.layout == "TND":
            if self.softmax_layout == "TND":
                rows = rows.T.unsqueeze(0)
            else:
                flat, rows = rows.flatten(), torch.zeros(1, self.sizes.heads, self.sizes.queries, dtype=self.dtype)
                for part in self.parts:
                    begin, end = part.queries.start, part.queries.stop
                    block = flat[self.sizes.heads * begin : self.sizes.heads * end]
                    rows[0, :, part.queries] = block.view(self.sizes.heads, end - begin)
        heads: Tensor = rows.unflatten(1, (self.sizes.key_heads, -1))
        return heads


def call_of(
    operator: str,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    head_num: int,
    input_layout: str,
    *,
    pse: Tensor | None = None,
    padding_mask: Tensor | None = None,
    atten_mask: Tensor | None = None,
    scale: float = 1.0,
    keep_prob: float = 1.0,
    before: int = EVERYWHERE,
    after: int = EVERYWHERE,
    inner_precise: int = 0,
    prefix: Sequence[int] | None = None,
    actual_seq_qlen: Ends = None,
    actual_seq_kvlen: Ends = None,
    sparse_mode: int = 0,
    softmax_layout: str = "",
    sink: Tensor | None = None,
    pse_type: int = 1,
    start_idx: tuple[Sequence[int] | None, Sequence[int] | None] = (None, None),
) -> Call:
    """Checks a call. What is not served is refused, with a sentence that names the operator and the parameter."""
    sizes = sizes_of(operator, query, key, value, head_num, input_layout)
    for name, given in (("padding_mask", padding_mask), ("sink", sink)):
        if given is not None:
            refuse(operator, name, "given", "must be None: it is not served")
    for name, starts in zip(("q_start_idx", "kv_start_idx"), start_idx, strict=True):
        if starts:
            refuse(operator, name, list(starts), "must be None: it belongs to pse_type 2 and 3, which are not served")
    if not 0 < keep_prob <= 1:
        refuse(operator, "keep_prob", keep_prob, "must be above 0 and at most 1")
    if inner_precise not in (0, 1, 2):
        refuse(operator, "inner_precise", inner_precise, "must be 0, 1 or 2")
    if pse_type not in (0, 1):
        refuse(operator, "pse_type", pse_type, "must be 0 or 1: a pse that the operator makes itself is not served")
    if softmax_layout not in ("", "TND") or (softmax_layout == "TND" and sizes.layout != "TND"):
        refuse(operator, "softmax_layout", repr(softmax_layout), "must be empty, or TND where input_layout is TND")
    _check_pse(operator, pse, sizes, query)
    query_ends, key_ends = _ends(actual_seq_qlen), _ends(actual_seq_kvlen)
    if sizes.layout == "TND":
        rows = sequences(operator, "actual_seq_qlen", query_ends, sizes.queries)
        keys = sequences(operator, "actual_seq_kvlen", key_ends, sizes.keys)
        if len(rows) != len(keys):
            refuse(
                operator,
                "actual_seq_kvlen",
                f"of length {len(keys)}",
                f"must have that of actual_seq_qlen, {len(rows)}",
            )
    else:
        if query_ends or key_ends:
            refuse(operator, "actual_seq_qlen", "given", f"must be None in {sizes.layout}: only TND has it")
        rows, keys = [slice(0, sizes.queries)], [slice(0, sizes.keys)]
    parts = Masking(operator, atten_mask, sparse_mode, before, after, prefix).parts(sizes, rows, keys)
    return Call(sizes, parts, query, key, value, pse, scale, scale if pse_type == 1 else 1.0, softmax_layout)


def _ends(given: Ends) -> Sequence[int] | None:
    return [int(end) for end in given.tolist()] if isinstance(given, Tensor) else given


def _check_pse(operator: str, pse: Tensor | None, sizes: Sizes, query: Tensor) -> None:
    if pse is None:
        return
    if sizes.layout == "TND":
        refuse(operator, "pse", "given", "must be None in TND: the compressed form that TND has is not served")
    if pse.dtype != query.dtype:
        refuse(operator, "pse", pse.dtype, f"must have the dtype of query, which is {query.dtype}")
    b, n, q, k = sizes.batch, sizes.heads, sizes.queries, sizes.keys
    shapes = [[b, n, q, k], [b, n, 1, k], [1, n, q, k]]
    if list(pse.shape) not in shapes:
        refuse(operator, "pse", f"of shape {list(pse.shape)}", f"must be of shape {' or '.join(map(str, shapes))}")


def dropout_of(operator: str, call: Call, keep_prob: float, seed: int, offset: int, mask: Tensor | None) -> Dropout:
    """The dropout of a forward. If the seed is 0, seed and offset are drawn.

    A mask that is given must be theirs: it does not reach the gradient, which draws it once more.
    """
    if mask is None and seed == 0 and keep_prob < 1:
        seed, offset = draw()
    dropout, count = Dropout(keep_prob, seed, offset), kept_count(call)
    if mask is not None:
        check_bits(operator, "dropout_mask", mask, count)
        if not torch.equal(from_bits(mask.flatten(), count), Kept(dropout).places(0, count)):
            own = f"must be what _npu_dropout_gen_mask gives for {count} numbers, seed {seed} and offset {offset}"
            refuse(operator, "dropout_mask", "another mask", f"{own}, as the gradient draws it from these")
    return dropout


def _kept(dropout: Dropout) -> Kept | None:
    return Kept(dropout) if dropout.keep < 1 else None


def forward(call: Call, dropout: Dropout) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The attention, the largest score and the sum of each query, and an empty tensor for softmax_out."""
    out = torch.zeros(call.sizes.result_shape(call.query, call.value), dtype=call.query.dtype)
    result, largest, total = call.sizes.grouped(out), call.statistics(), call.statistics()
    kept = _kept(dropout)
    for part, problem in call.problems():
        at = (part.batches, slice(None), slice(None), part.queries)
        blockwise.forward(problem, result[at], largest[at], total[at], kept)
    return out, call.packed(largest), call.packed(total), call.query.new_empty(0)


def backward(
    operator: str,
    call: Call,
    dy: Tensor,
    softmax_max: Tensor | None,
    softmax_sum: Tensor | None,
    attention_in: Tensor | None,
    dropout: Dropout,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """The gradients of query, key, value and pse."""
    if softmax_max is None or softmax_sum is None or attention_in is None:
        refuse(
            operator, "softmax_max, softmax_sum or attention_in", "None", "must be given: it is a result of the forward"
        )
    check_alike(operator, "query", call.query, dy=dy, attention_in=attention_in)
    check_float(operator, softmax_max=softmax_max, softmax_sum=softmax_sum)
    sizes, shape = call.sizes, call.sizes.result_shape(call.query, call.value)
    for name, tensor in (("dy", dy), ("attention_in", attention_in)):
        if list(tensor.shape) != shape:
            refuse(operator, name, f"of shape {list(tensor.shape)}", f"must have that of the attention, {shape}")
    rows = [sizes.queries, sizes.heads] if sizes.layout == "TND" else [sizes.batch, sizes.heads, sizes.queries]
    for name, tensor in (("softmax_max", softmax_max), ("softmax_sum", softmax_sum)):
        if list(tensor.shape) != [*rows, COPIES]:
            refuse(operator, name, f"of shape {list(tensor.shape)}", f"must be of shape {[*rows, COPIES]}")
    largest, total = call.unpacked(softmax_max), call.unpacked(softmax_sum)
    dq = torch.zeros_like(call.query, memory_format=torch.contiguous_format)
    dk, dv = (torch.zeros(tensor.shape, dtype=call.dtype) for tensor in (call.key, call.value))
    dpse = None if call.pse is None else torch.zeros(call.pse.shape, dtype=call.dtype)
    into = blockwise.Gradients(
        sizes.grouped(dq),
        sizes.keyed(dk),
        sizes.keyed(dv),
        None if dpse is None else dpse.unflatten(1, (sizes.key_heads, -1)),
    )
    grad, out, kept = sizes.grouped(dy), sizes.grouped(attention_in), _kept(dropout)
    for part, problem in call.problems():
        at = (part.batches, slice(None), slice(None), part.queries)
        blockwise.backward(
            problem, grad[at], out[at], largest[at], total[at], kept, into.of(part.batches, part.queries, part.keys)
        )
    dtype = call.query.dtype
    return dq, dk.to(dtype), dv.to(dtype), None if dpse is None else dpse.to(dtype)


def kept_count(call: Call) -> int:
    """The number of probabilities of all heads, which is the size of a dropout mask."""
    sizes = call.sizes
    if sizes.layout != "TND":
        return sizes.batch * sizes.heads * sizes.queries * sizes.keys
    lengths = ((p.queries.stop - p.queries.start, p.keys.stop - p.keys.start) for p in call.parts)
    return sizes.heads * int(sum(queries * keys for queries, keys in lengths))
