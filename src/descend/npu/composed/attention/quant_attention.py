"""npu_quant_fusion_attention and its gradient: attention of numbers in hifloat8, and weights that are rounded to it.

    s   = scale * (query * d_scale_q) @ (key * d_scale_k)^T
    p   = softmax of s
    p8  = p * p_scale, rounded to hifloat8
    out = p8 @ (value * d_scale_v) / p_scale

    dv  = p8^T @ (dy * d_scale_dy) / p_scale
    ds  = p * ((dy * d_scale_dy) @ (value * d_scale_v)^T - sum of attention_in * dy * d_scale_dy)
    ds8 = ds * ds_scale, rounded to hifloat8
    dq  = scale_value * ds8 @ (key * d_scale_k) / ds_scale, and dk of the query likewise

A scale [B, N, blocks, 1] has a number for each block of rows: 128 of the query, 256 of the key and 512 of the value;
for the gradient 512 of each. A few queries are computed at a time, in float32; results are rounded once, to bfloat16.

Documents: aclnnQuantFlashAttentionScore, aclnnQuantFlashAttentionScoreGrad.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import torch
from torch import Tensor

from descend.npu.composed.arithmetic import check_choice, check_dtype, check_float, check_one, check_shape
from descend.npu.composed.attention.layouts import as_bnsd, from_bnsd
from descend.npu.composed.memory import row_blocks
from descend.npu.composed.quantised.formats import HIF8, Number, as_float, format_of, rounded
from descend.npu.composed.refusal import refuse

BLOCKS = {"d_scale_q": 128, "d_scale_k": 256, "d_scale_v": 512}
"""How many rows a number of each scale is for."""
BLOCK_OF_GRADIENT = 512


def npu_quant_fusion_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    head_num: int,
    input_layout: str,
    *,
    d_scale_q: Tensor,
    d_scale_k: Tensor,
    d_scale_v: Tensor,
    p_scale: Tensor | None = None,
    scale: float = 1.0,
    query_dtype: Number = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, int, int, int]:
    """The attention [B, Sq, N, D] in bfloat16, softmax_max and softmax_sum [B, N, Sq, 1], an empty tensor, and zeros.

    query is [B, Sq, N, D], key and value are [B, Skv, N, D], in hifloat8; p_scale is one number.
    """
    operator = "npu_quant_fusion_attention"
    _check(operator, query, key, value, head_num, input_layout, query_dtype)
    scales = {"d_scale_q": d_scale_q, "d_scale_k": d_scale_k, "d_scale_v": d_scale_v}
    rows = {"d_scale_q": query, "d_scale_k": key, "d_scale_v": value}
    q, k, v = (_scaled(operator, name, rows[name], scales[name], BLOCKS[name]) for name in scales)
    of_p = _one_number(operator, "p_scale", p_scale)
    out = torch.zeros_like(q)
    most, total = q.new_zeros(*q.shape[:3], 1), q.new_zeros(*q.shape[:3], 1)
    for b, n, rows_of_q in _parts(q, k):
        scores = scale * (q[b, n, rows_of_q] @ k[b, n].T)
        largest = scores.amax(-1, keepdim=True) if k.shape[2] else scores.new_zeros(len(scores), 1)
        weights = (scores - largest).exp_()
        most[b, n, rows_of_q], total[b, n, rows_of_q] = largest, weights.sum(-1, keepdim=True)
        weights /= total[b, n, rows_of_q]
        out[b, n, rows_of_q] = _rounded(weights * of_p) @ v[b, n] / of_p
    result = from_bnsd(out, "BSND").to(torch.bfloat16).contiguous()
    return result, most, total, result.new_empty(0), 0, 0, 0


def npu_quant_fusion_attention_backward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    dy: Tensor,
    head_num: int,
    input_layout: str,
    d_scale_q: Tensor,
    d_scale_k: Tensor,
    d_scale_v: Tensor,
    d_scale_dy: Tensor,
    *,
    p_scale: Tensor | None = None,
    ds_scale: Tensor | None = None,
    softmax_max: Tensor | None = None,
    softmax_sum: Tensor | None = None,
    attention_in: Tensor | None = None,
    scale_value: float = 1.0,
    query_dtype: Number = None,
) -> tuple[Tensor, Tensor, Tensor, None, None, None, None]:
    """The gradients of query, key and value in bfloat16, and nothing for pse, ropes and sink.

    dy is shaped as the query, in hifloat8. softmax_max, softmax_sum and attention_in are results of the forward.
    """
    operator = "npu_quant_fusion_attention_backward"
    _check(operator, query, key, value, head_num, input_layout, query_dtype)
    check_dtype(operator, "dy", dy, HIF8.dtype)
    check_shape(operator, "dy", dy, query.shape, "query")
    given = (("d_scale_q", query, d_scale_q), ("d_scale_k", key, d_scale_k), ("d_scale_v", value, d_scale_v))
    q, k, v, grad = (
        _scaled(operator, name, tensor, scale, BLOCK_OF_GRADIENT)
        for name, tensor, scale in (*given, ("d_scale_dy", dy, d_scale_dy))
    )
    of_p, of_ds = (_one_number(operator, *each) for each in (("p_scale", p_scale), ("ds_scale", ds_scale)))
    most = _of_forward(operator, "softmax_max", softmax_max, [*q.shape[:3], 1])
    total = _of_forward(operator, "softmax_sum", softmax_sum, [*q.shape[:3], 1])
    attention = as_bnsd(_of_forward(operator, "attention_in", attention_in, query.shape), "BSND")
    shared = (attention * grad).sum(-1, keepdim=True)
    dq, dk, dv = torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v)
    for b, n, rows in _parts(q, k):
        own, dy_of = q[b, n, rows], grad[b, n, rows]
        weights = (scale_value * (own @ k[b, n].T) - most[b, n, rows]).exp_() / total[b, n, rows]
        slope = weights * (dy_of @ v[b, n].T - shared[b, n, rows])
        weights, slope = _rounded(weights * of_p) / of_p, _rounded(slope * of_ds) / of_ds
        dv[b, n] += weights.T @ dy_of
        dq[b, n, rows] = scale_value * (slope @ k[b, n])
        dk[b, n] += scale_value * (slope.T @ own)
    gradients = (from_bnsd(each, "BSND").to(torch.bfloat16).contiguous() for each in (dq, dk, dv))
    one, two, three = gradients
    return one, two, three, None, None, None, None


def _check(
    operator: str, query: Tensor, key: Tensor, value: Tensor, head_num: int, input_layout: str, query_dtype: Number
) -> None:
    check_choice(operator, "input_layout", input_layout, "BSND")
    format_of(operator, "query_dtype", query_dtype, (HIF8,))
    for name, tensor in (("query", query), ("key", key), ("value", value)):
        check_dtype(operator, name, tensor, HIF8.dtype)
        if tensor.dim() != 4:
            refuse(operator, name, f"of shape {list(tensor.shape)}", "must have 4 dimensions")
    batch, _, heads, size = query.shape
    check_shape(operator, "key", key, [batch, key.shape[1], heads, size], "query, but for the number of rows")
    check_shape(operator, "value", value, key.shape, "key")
    if head_num != heads:
        refuse(operator, "head_num", head_num, f"must be that of query, {heads}")


def _scaled(operator: str, name: str, tensor: Tensor, scale: Tensor, block: int) -> Tensor:
    """[B, N, S, D] in float32: the numbers times the scales of their blocks of rows."""
    check_dtype(operator, name, scale, torch.float32)
    batch, rows, heads, _ = tensor.shape
    blocks = -(-rows // block)
    check_shape(operator, name, scale, [batch, heads, blocks, 1], f"a scale for each block of {block} rows")
    return as_bnsd(as_float(tensor, HIF8), "BSND") * scale.repeat_interleave(block, 2)[:, :, :rows]


def _one_number(operator: str, name: str, scale: Tensor | None) -> float:
    if scale is None:
        refuse(operator, name, "None", "must be given")
    check_dtype(operator, name, scale, torch.float32)
    check_one(operator, name, scale)
    return scale.item()


def _of_forward(operator: str, name: str, tensor: Tensor | None, shape: list[int] | torch.Size) -> Tensor:
    """A result of the forward, in float32."""
    if tensor is None:
        refuse(operator, name, "None", "must be given: it is a result of the forward")
    check_float(operator, **{name: tensor})
    check_shape(operator, name, tensor, list(shape), "the forward's result")
    return tensor.float()


def _rounded(x: Tensor) -> Tensor:
    """The nearest numbers of hifloat8, in float32."""
    return as_float(rounded(x, HIF8), HIF8)


def _parts(q: Tensor, k: Tensor) -> Iterator[tuple[int, int, slice]]:
    """A batch, a head, and a few rows of its queries."""
    blocks = list(row_blocks(q.shape[2], k.shape[2]))
    return itertools.product(range(q.shape[0]), range(q.shape[1]), blocks)
