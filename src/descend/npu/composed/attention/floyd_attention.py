"""npu_fused_floyd_attention and its gradient: attention from pairs (i, k) by way of all j.

    s[i, k, j] = scale * (query[i, k] . key_ij[i, j] + query[i, k] . key_jk[j, k]), lowest where atten_mask[i, j] is 1
    p          = softmax of s over j
    out[i, k]  = sum over j of p[i, k, j] * (value_ij[i, j] + value_jk[j, k])

A few i are computed at a time, in float32; results are rounded once.

Document: torch_npu.npu_fused_floyd_attention.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from descend.npu.composed.arithmetic import check_alike, check_shape, wide
from descend.npu.composed.attention.layouts import COPIES
from descend.npu.composed.memory import row_blocks
from descend.npu.composed.refusal import refuse

HIDDEN = -4e9
"""What is added to a score that is hidden, before scale_value. If all are hidden, all weigh the same."""


def npu_fused_floyd_attention(
    query_ik: Tensor,
    key_ij: Tensor,
    value_ij: Tensor,
    key_jk: Tensor,
    value_jk: Tensor,
    *,
    atten_mask: Tensor | None = None,
    scale_value: float = 1.0,
) -> tuple[Tensor, Tensor, Tensor]:
    """The largest score and the sum of exp(score - largest), [B, H, N, M, 8] in float32, and the attention.

    query_ik is [B, H, N, M, D], those of ij [B, H, N, K, D], those of jk [B, H, K, M, D], atten_mask [B, 1, N, 1, K].
    """
    operator = "npu_fused_floyd_attention"
    given = (query_ik, key_ij, value_ij, key_jk, value_jk)
    q, k1, v1, k2, v2 = _checked(operator, given, atten_mask)
    out = torch.zeros_like(q, memory_format=torch.contiguous_format)
    most, total = torch.zeros(q.shape[:-1], dtype=q.dtype), torch.zeros(q.shape[:-1], dtype=q.dtype)
    for b, h, i in _parts(q, k1):
        scores = _scores(
            q[b, h, i], k1[b, h, i], k2[b, h], None if atten_mask is None else atten_mask[b, 0, i], scale_value
        )
        most[b, h, i] = scores.amax(-1)
        weights = (scores - most[b, h, i].unsqueeze(-1)).exp_()
        total[b, h, i] = weights.sum(-1)
        weights /= total[b, h, i].unsqueeze(-1)
        out[b, h, i] = _by_ij(weights, v1[b, h, i]) + _by_jk(weights, v2[b, h])
    shape = (*most.shape, COPIES)
    largest, sums = (t.unsqueeze(-1).expand(shape).contiguous() for t in (most, total))
    return largest, sums, out.to(query_ik.dtype)


def npu_fused_floyd_attention_backward(
    grad_output: Tensor,
    query_ik: Tensor,
    key_ij: Tensor,
    value_ij: Tensor,
    key_jk: Tensor,
    value_jk: Tensor,
    attention_out: Tensor,
    softmax_max: Tensor,
    softmax_sum: Tensor,
    *,
    atten_mask: Tensor | None = None,
    scale_value: float = 1.0,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The gradients of query_ik, key_ij, value_ij, key_jk and value_jk."""
    operator = "npu_fused_floyd_attention_backward"
    given = (query_ik, key_ij, value_ij, key_jk, value_jk)
    q, k1, v1, k2, v2 = _checked(operator, given, atten_mask)
    for name, tensor in (("grad_output", grad_output), ("attention_out", attention_out)):
        check_shape(operator, name, tensor, q.shape, "query_ik")
    for name, tensor in (("softmax_max", softmax_max), ("softmax_sum", softmax_sum)):
        check_shape(operator, name, tensor, [*q.shape[:-1], COPIES], "query_ik, with 8 numbers a row")
    grad = grad_output.to(q.dtype)
    shared = (grad * attention_out.to(q.dtype)).sum(-1, keepdim=True)
    most, total = (t[..., :1].to(q.dtype) for t in (softmax_max, softmax_sum))
    form = torch.contiguous_format
    dq, dk1, dv1, dk2, dv2 = (torch.zeros_like(t, memory_format=form) for t in (q, k1, v1, k2, v2))
    for b, h, i in _parts(q, k1):
        own = q[b, h, i]
        scores = _scores(own, k1[b, h, i], k2[b, h], None if atten_mask is None else atten_mask[b, 0, i], scale_value)
        weights = (scores - most[b, h, i]).exp_() / total[b, h, i]
        dy = grad[b, h, i]
        slope = _with_ij(dy, v1[b, h, i]) + _with_jk(dy, v2[b, h])
        slope = weights * (slope - shared[b, h, i]) * scale_value
        if atten_mask is not None:
            slope.masked_fill_(atten_mask[b, 0, i].bool(), 0)
        dq[b, h, i] = _by_ij(slope, k1[b, h, i]) + _by_jk(slope, k2[b, h])
        dk1[b, h, i], dv1[b, h, i] = slope.transpose(1, 2) @ own, weights.transpose(1, 2) @ dy
        dk2[b, h] += _to_jk(slope, own)
        dv2[b, h] += _to_jk(weights, dy)
    gradients = zip((dq, dk1, dv1, dk2, dv2), given, strict=True)
    one, two, three, four, five = (gradient.to(tensor.dtype) for gradient, tensor in gradients)
    return one, two, three, four, five


def _checked(
    operator: str, given: tuple[Tensor, ...], atten_mask: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The five tensors, in the dtype of the arithmetic."""
    query, key_ij, value_ij, key_jk, value_jk = given
    check_alike(operator, "query_ik", query, key_ij=key_ij, value_ij=value_ij, key_jk=key_jk, value_jk=value_jk)
    for name, tensor in (("query_ik", query), ("key_ij", key_ij)):
        if tensor.dim() != 5:
            refuse(operator, name, f"of shape {list(tensor.shape)}", "must have 5 dimensions")
    b, h, n, m, d = query.shape
    k = key_ij.shape[3]
    for name, tensor, shape in (
        ("key_ij", key_ij, [b, h, n, k, d]),
        ("value_ij", value_ij, [b, h, n, k, d]),
        ("key_jk", key_jk, [b, h, k, m, d]),
        ("value_jk", value_jk, [b, h, k, m, d]),
    ):
        check_shape(operator, name, tensor, shape, "query_ik, and K of key_ij")
    if not k:
        refuse(operator, "key_ij", f"of shape {list(key_ij.shape)}", "must have a K from 1 on")
    if atten_mask is not None:
        if atten_mask.dtype not in (torch.bool, torch.uint8):
            refuse(operator, "atten_mask", atten_mask.dtype, "must be bool or uint8")
        check_shape(operator, "atten_mask", atten_mask, [b, 1, n, 1, k], "B, N and K, else 1")
    one, two, three, four, five = (wide(tensor) for tensor in given)
    return one, two, three, four, five


def _parts(query: Tensor, key_ij: Tensor) -> Iterator[tuple[int, int, slice]]:
    """Batch, head, and a few i."""
    batches, heads, rows, columns = query.shape[:4]
    for b in range(batches):
        for h in range(heads):
            for part in row_blocks(rows, columns * key_ij.shape[3]):
                yield b, h, part


def _scores(q: Tensor, k1: Tensor, k2: Tensor, mask: Tensor | None, scale: float) -> Tensor:
    scores = _with_ij(q, k1) + _with_jk(q, k2)
    if mask is not None:
        scores.masked_fill_(mask.bool(), HIDDEN)
    return scores * scale


def _with_ij(q: Tensor, k1: Tensor) -> Tensor:
    """[i, k, j] of [i, k, D] and [i, j, D]."""
    return q @ k1.transpose(1, 2)


def _with_jk(q: Tensor, k2: Tensor) -> Tensor:
    """[i, k, j] of [i, k, D] and [j, k, D]."""
    return (q.transpose(0, 1) @ k2.permute(1, 2, 0)).transpose(0, 1)


def _by_ij(weights: Tensor, v1: Tensor) -> Tensor:
    """[i, k, D] of [i, k, j] and [i, j, D]."""
    return weights @ v1


def _by_jk(weights: Tensor, v2: Tensor) -> Tensor:
    """[i, k, D] of [i, k, j] and [j, k, D]."""
    return (weights.transpose(0, 1) @ v2.transpose(0, 1)).transpose(0, 1)


def _to_jk(weights: Tensor, q: Tensor) -> Tensor:
    """[j, k, D] of [i, k, j] and [i, k, D]."""
    return (weights.permute(1, 2, 0) @ q.transpose(0, 1)).transpose(0, 1)
