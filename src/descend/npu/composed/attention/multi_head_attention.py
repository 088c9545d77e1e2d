"""npu_multi_head_attention, an attention with its projections, and its gradient.

    q, k, v = heads of query @ Wq^T + bq, key @ Wk^T + bk, value @ Wv^T + bv; q is divided by sqrt(D)
    scores  = softmax(q @ k^T + attn_mask)
    y       = (dropout(scores) @ v, heads joined) @ Wo^T + bo

Rows are [B * S, N * D], heads [B, N, S, D], weights [N * D, N * D]. Arithmetic is float32; each result is rounded once.
Document: torch_npu.npu_multi_head_attention.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from descend.npu.composed.arithmetic import check_float, check_shape, wide
from descend.npu.composed.layers.dropout import by_bits, new_bits
from descend.npu.composed.products.matmul import wide_linear
from descend.npu.composed.refusal import refuse


@dataclass(frozen=True)
class _Sizes:
    """The sizes of a call, and rows cut into heads and back."""

    batch: int
    heads: int
    size: int

    def cut(self, rows: Tensor) -> Tensor:
        return rows.view(self.batch, -1, self.heads, self.size).transpose(1, 2)

    def joined(self, heads: Tensor) -> Tensor:
        return heads.transpose(1, 2).reshape(-1, self.heads * self.size)


def npu_multi_head_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    query_weight: Tensor,
    key_weight: Tensor,
    value_weight: Tensor,
    attn_mask: Tensor,
    out_proj_weight: Tensor,
    query_bias: Tensor | None,
    key_bias: Tensor | None,
    value_bias: Tensor | None,
    out_proj_bias: Tensor | None,
    dropout_mask: Tensor | None,
    attn_head_num: int,
    attn_dim_per_head: int,
    src_len: int,
    tgt_len: int,
    dropout_prob: float,
    softmax_use_float: bool,
) -> tuple[Tensor, ...]:
    """y, the mask of bits, q, k, v, scores (float32 by ``softmax_use_float``), their dropout, and the joined heads."""
    operator = "npu_multi_head_attention"
    rows = {"query": query, "key": key, "value": value}
    weights = (query_weight, key_weight, value_weight, out_proj_weight)
    biases = (query_bias, key_bias, value_bias, out_proj_bias)
    sizes = _checked(operator, rows, weights, attn_head_num, attn_dim_per_head, (tgt_len, src_len))
    for name, bias in zip((*rows, "out_proj"), biases, strict=True):
        if bias is not None:
            check_shape(operator, f"{name}_bias", bias, (query.shape[1],), "a row")
    q, k, v = (sizes.cut(wide_linear(x, w, b)) for x, w, b in zip(rows.values(), weights, biases, strict=False))
    q = q / math.sqrt(sizes.size)
    scores = q @ k.transpose(2, 3)
    if attn_mask.dim() != 4 or torch.broadcast_shapes(attn_mask.shape, scores.shape) != scores.shape:
        refuse(operator, "attn_mask", f"of shape {list(attn_mask.shape)}", f"must broadcast to {list(scores.shape)}")
    scores = torch.softmax(scores + wide(attn_mask), -1)
    mask = new_bits(operator, dropout_prob, scores.numel()) if dropout_mask is None else dropout_mask
    used = by_bits(operator, scores, mask, dropout_prob)
    context = sizes.joined(used @ v)
    y, dtype = wide_linear(context, out_proj_weight, out_proj_bias), query.dtype
    stored = scores if softmax_use_float else scores.to(dtype)
    q, k, v = (each.to(dtype).contiguous() for each in (q, k, v))
    return y.to(dtype), mask, q, k, v, stored, used.to(dtype), context.to(dtype)


def npu_multi_head_attention_backward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    query_weight: Tensor,
    key_weight: Tensor,
    value_weight: Tensor,
    out_proj_weight: Tensor,
    query_bias: Tensor | None,
    key_bias: Tensor | None,
    value_bias: Tensor | None,
    out_proj_bias: Tensor | None,
    query_res: Tensor,
    key_res: Tensor,
    value_res: Tensor,
    attn_scores: Tensor,
    attn_res: Tensor,
    context: Tensor,
    y_grad: Tensor,
    dropout_mask: Tensor,
    attn_head_num: int,
    attn_dim_per_head: int,
    src_len: int,
    tgt_len: int,
    dropout_prob: float,
    softmax_use_float: bool,
) -> tuple[Tensor | None, ...]:
    """The gradients of the four weights, of query, key and value, and of the four biases, [1, H]: None for none."""
    operator = "npu_multi_head_attention_backward"
    rows = {"query": query, "key": key, "value": value}
    weights = (query_weight, key_weight, value_weight, out_proj_weight)
    sizes = _checked(operator, rows, weights, attn_head_num, attn_dim_per_head, (tgt_len, src_len))
    check_shape(operator, "y_grad", y_grad, query.shape, "query")
    dy, q, k, v, scores = (wide(t) for t in (y_grad, query_res, key_res, value_res, attn_scores))
    dcontext = sizes.cut(dy @ wide(out_proj_weight))
    dscores = by_bits(operator, dcontext @ v.transpose(2, 3), dropout_mask, dropout_prob)
    dsums = torch.ops.aten._softmax_backward_data(dscores, scores, -1, scores.dtype)
    heads = (dsums @ k / math.sqrt(sizes.size), dsums.transpose(2, 3) @ q, wide(attn_res).transpose(2, 3) @ dcontext)
    outputs = (*(sizes.joined(each) for each in heads), dy)
    inputs = (*rows.values(), context)
    biases = (query_bias, key_bias, value_bias, out_proj_bias)
    gradients = (
        *(d.T @ wide(x) for d, x in zip(outputs, inputs, strict=True)),
        *(d @ wide(w) for d, w in zip(outputs[:3], weights, strict=False)),
        *(None if b is None else d.sum(0, keepdim=True) for d, b in zip(outputs, biases, strict=True)),
    )
    return tuple(None if each is None else each.to(query.dtype) for each in gradients)


def _checked(
    operator: str,
    rows: dict[str, Tensor],
    weights: tuple[Tensor, ...],
    heads: int,
    size: int,
    lengths: tuple[int, int],
) -> _Sizes:
    numbers = {"attn_head_num": heads, "attn_dim_per_head": size, "tgt_len": lengths[0], "src_len": lengths[1]}
    for name, number in numbers.items():
        if number <= 0 or number % 16:
            refuse(operator, name, number, "must be a multiple of 16, at least 16")
    query, width = rows["query"], heads * size
    batch = query.shape[0] // lengths[0] if query.dim() == 2 else 0
    for (name, x), length in zip(rows.items(), (lengths[0], lengths[1], lengths[1]), strict=True):
        check_float(operator, **{name: x})
        check_shape(operator, name, x, (batch * length, width), "B * S rows of N * D columns")
    for name, weight in zip((*rows, "out_proj"), weights, strict=True):
        check_shape(operator, f"{name}_weight", weight, (width, width), "N * D rows and columns")
    return _Sizes(batch, heads, size)
