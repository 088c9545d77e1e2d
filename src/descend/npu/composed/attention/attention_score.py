"""npu_fused_attention_score: the attention that trainings of BERT call, and its gradient.

    p = softmax(scale * q @ k^T + mask)          y = dropout(p) @ v, its heads side by side
    dv = dropout(p)^T @ dy                       ds = p * (d - sum(d * p)),  d = dropout(dy @ v^T)
    dq = scale * ds @ k                          dk = scale * ds^T @ q

Documents: torch_npu.npu_fused_attention_score, op-plugin's FusedAttentionScoreKernelNpu.cpp.
"""

from __future__ import annotations

import torch
from torch import Tensor

from descend.npu.composed.arithmetic import check_alike, check_shape, wide
from descend.npu.composed.random import Dropout, Kept, draw
from descend.npu.composed.refusal import refuse


def npu_fused_attention_score_fwd(
    query_layer: Tensor, key_layer: Tensor, value_layer: Tensor, attention_mask: Tensor, scale: float,
    keep_prob: float, query_transpose: bool = False, key_transpose: bool = False, bmm_score_transpose_a: bool = False,
    bmm_score_transpose_b: bool = False, value_transpose: bool = False, dx_transpose: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """y [B * S, N * D], p [B, N, S, S], and the mask of dropout in uint8: 1 where a number of p is kept.

    Query, key and value are [B, N, S, D]. ``attention_mask`` [B, N, S, S] is added to the scores, and may have 1 in
    place of B, N or S. Results have the dtype of query.
    """
    operator = "npu_fused_attention_score"
    _check_transposed(
        operator, query_transpose=query_transpose, key_transpose=key_transpose,
        bmm_score_transpose_a=bmm_score_transpose_a, bmm_score_transpose_b=bmm_score_transpose_b,
        value_transpose=value_transpose, dx_transpose=dx_transpose,
    )  # fmt: skip
    _check_layers(operator, query_layer, key_layer, value_layer)
    check_alike(operator, "query_layer", query_layer, attention_mask=attention_mask)
    _check_keep(operator, keep_prob)
    batches, heads, rows, _ = query_layer.shape
    shape = (batches, heads, rows, rows)
    given = attention_mask.shape
    if len(given) != 4 or any(size not in (1, whole) for size, whole in zip(given, shape, strict=True)):
        rule = f"must be of shape {list(shape)}, or have 1 in place of a size"
        refuse(operator, "attention_mask", f"of shape {list(given)}", rule)
    scores = wide(query_layer) @ wide(key_layer).transpose(2, 3) * scale + wide(attention_mask)
    p = scores.softmax(-1)
    kept = Kept(Dropout(keep_prob, *draw())).places(0, p.numel())
    y = _dropped(p, kept.view(shape), keep_prob) @ wide(value_layer)
    return _side_by_side(y).to(query_layer.dtype), p.to(query_layer.dtype), kept.to(torch.uint8)


def npu_fused_attention_score_backward(
    grad_output: Tensor, softmax_output: Tensor, query_layer: Tensor, key_layer: Tensor, value_layer: Tensor,
    drop_mask: Tensor, scale: float, keep_prob: float, query_transpose: bool = False, key_transpose: bool = False,
    value_transpose: bool = False, dx_transpose: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """The gradients of query, key and value [B, N, S, D], in the dtype of query.

    ``grad_output`` is that of y; ``softmax_output`` and ``drop_mask`` are the forward's p and mask of dropout.
    """
    operator = "npu_fused_attention_score_backward"
    _check_transposed(
        operator, query_transpose=query_transpose, key_transpose=key_transpose, value_transpose=value_transpose,
        dx_transpose=dx_transpose,
    )  # fmt: skip
    _check_layers(operator, query_layer, key_layer, value_layer)
    check_alike(operator, "query_layer", query_layer, grad_output=grad_output, softmax_output=softmax_output)
    _check_keep(operator, keep_prob)
    batches, heads, rows, size = query_layer.shape
    check_shape(operator, "grad_output", grad_output, [batches * rows, heads * size], "the result")
    check_shape(operator, "softmax_output", softmax_output, [batches, heads, rows, rows], "the scores")
    if drop_mask.dtype != torch.uint8 or drop_mask.numel() != softmax_output.numel():
        got = f"{drop_mask.dtype} of {drop_mask.numel()} elements"
        refuse(operator, "drop_mask", got, f"must be torch.uint8 of {softmax_output.numel()}")
    kept = drop_mask.reshape(softmax_output.shape).bool()
    p, dy = wide(softmax_output), wide(grad_output).view(batches, rows, heads, size).transpose(1, 2)
    dv = _dropped(p, kept, keep_prob).transpose(2, 3) @ dy
    through = _dropped(dy @ wide(value_layer).transpose(2, 3), kept, keep_prob)
    ds = p * (through - (through * p).sum(-1, keepdim=True)) * scale
    dq, dk = ds @ wide(key_layer), ds.transpose(2, 3) @ wide(query_layer)
    return dq.to(query_layer.dtype), dk.to(query_layer.dtype), dv.to(query_layer.dtype)


def npu_fused_attention_score_grad(
    grad_output: Tensor, softmax_output: Tensor, query_layer: Tensor, key_layer: Tensor, value_layer: Tensor,
    drop_mask: Tensor, scale: float, keep_prob: float, query_transpose: bool = False, key_transpose: bool = False,
    value_transpose: bool = False, dx_transpose: bool = False,
) -> tuple[Tensor, ...]:  # fmt: skip
    """As `npu_fused_attention_score_backward`, with the heads of each gradient side by side: [B * S, N * D]."""
    gradients = npu_fused_attention_score_backward(
        grad_output, softmax_output, query_layer, key_layer, value_layer, drop_mask, scale, keep_prob,
        query_transpose, key_transpose, value_transpose, dx_transpose,
    )  # fmt: skip
    return tuple(_side_by_side(gradient) for gradient in gradients)


def _side_by_side(x: Tensor) -> Tensor:
    """[B, N, S, D] as [B * S, N * D]."""
    batches, heads, rows, size = x.shape
    return x.transpose(1, 2).reshape(batches * rows, heads * size)


def _dropped(x: Tensor, kept: Tensor, keep: float) -> Tensor:
    """x / keep where it is kept, else 0."""
    return torch.where(kept, x / keep, 0.0) if keep else torch.zeros_like(x)


def _check_layers(operator: str, query: Tensor, key: Tensor, value: Tensor) -> None:
    check_alike(operator, "query_layer", query, key_layer=key, value_layer=value)
    if query.dim() != 4:
        refuse(operator, "query_layer", f"of shape {list(query.shape)}", "must be of shape [B, N, S, D]")
    for name, tensor in (("key_layer", key), ("value_layer", value)):
        check_shape(operator, name, tensor, query.shape, "query_layer")


def _check_keep(operator: str, keep: float) -> None:
    if not 0 <= keep <= 1:
        refuse(operator, "keep_prob", keep, "must be a probability, from 0 to 1")


def _check_transposed(operator: str, **flags: bool) -> None:
    for name, flag in flags.items():
        if flag:
            refuse(operator, name, flag, "must be False")
