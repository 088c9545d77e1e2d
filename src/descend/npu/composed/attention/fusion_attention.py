"""npu_fusion_attention, its versions 2 and 3, and their gradients.

    attention = dropout(softmax(mask(scale * (query @ key^T + pse)))) @ value       (pse_type 1)
    attention = dropout(softmax(mask(scale * query @ key^T + pse))) @ value         (pse_type 0)

torch_npu's scaled_dot_product_attention calls version 3. Documents: torch_npu.npu_fusion_attention and
npu_fusion_attention_v3; aclnnFlashAttentionScore(V2) and its VarLen forms, aclnnFlashAttentionScoreGrad(V2) and its
Unpadding forms.

The six operators have nearly the same parameters. Those that only pass through here are ``options``. Their types and
defaults stand in `call_of`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from descend.npu.composed.arithmetic import check_together
from descend.npu.composed.attention.fusion_call import Call, backward, call_of, dropout_of, forward, kept_count
from descend.npu.composed.random import Dropout
from descend.npu.composed.refusal import refuse

POSITIONAL = (
    "pse", "padding_mask", "atten_mask", "scale", "keep_prob", "pre_tockens", "next_tockens", "inner_precise", "prefix",
    "actual_seq_qlen", "actual_seq_kvlen", "sparse_mode", "gen_mask_parallel", "sync", "softmax_layout", "sink",
    "dropout_mask", "seed", "offset",
)  # fmt: skip
"""What may follow input_layout without a name in npu_fusion_attention; up to sink also in version 3."""

SPELLINGS = {
    "scale_value": "scale", "pre_tockens": "before", "pre_tokens": "before", "next_tockens": "after",
    "next_tokens": "after",
}  # fmt: skip
"""Parameters that the operators spell differently, and what `call_of` calls them."""

WITHOUT_EFFECT = {"gen_mask_parallel", "sync", "softmax_in", "numels"}
"""Parameters that say how a device is to compute, or repeat what follows from others."""


def npu_fusion_attention(
    query: Tensor, key: Tensor, value: Tensor, head_num: int, input_layout: str, *positional: Any, **options: Any
) -> tuple[Tensor, Tensor, Tensor, Tensor, int, int, int]:
    """The attention, softmax_max, softmax_sum, an empty tensor, and the seed, offset and size of its dropout."""
    options |= zip(POSITIONAL, positional, strict=False)
    return _forward("npu_fusion_attention", query, key, value, head_num, input_layout, options)


def npu_fusion_attention_grad(
    query: Tensor, key: Tensor, value: Tensor, dy: Tensor, head_num: int, input_layout: str, **options: Any
) -> tuple[Tensor, Tensor, Tensor, Tensor | None, None]:
    """The gradients of query, key, value, pse and sink."""
    return *_backward("npu_fusion_attention_grad", query, key, value, dy, head_num, input_layout, options), None


def npu_fusion_attention_v2(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    head_num: int,
    input_layout: str,
    *,
    query_rope: Tensor | None = None,
    key_rope: Tensor | None = None,
    **options: Any,
) -> tuple[Tensor, Tensor, Tensor, Tensor, int, int, int]:
    """As `npu_fusion_attention`; query_rope and key_rope (TND) are appended to each head of query and key."""
    operator = "npu_fusion_attention_v2"
    query, key, _ = _joined(operator, query, key, query_rope, key_rope, input_layout)
    return _forward(operator, query, key, value, head_num, input_layout, options)


def npu_fusion_attention_grad_v2(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    dy: Tensor,
    head_num: int,
    input_layout: str,
    *,
    query_rope: Tensor | None = None,
    key_rope: Tensor | None = None,
    **options: Any,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None, Tensor | None, None]:
    """The gradients of query, key, value, pse, query_rope, key_rope and sink."""
    operator = "npu_fusion_attention_grad_v2"
    query, key, size = _joined(operator, query, key, query_rope, key_rope, input_layout)
    dq, dk, dv, dpse = _backward(operator, query, key, value, dy, head_num, input_layout, options)
    if query_rope is None:
        return dq, dk, dv, dpse, None, None, None
    (dq, dq_rope), (dk, dk_rope) = (
        (whole[..., :size].contiguous(), whole[..., size:].contiguous()) for whole in (dq, dk)
    )
    return dq, dk, dv, dpse, dq_rope, dk_rope, None


def npu_fusion_attention_v3(
    query: Tensor, key: Tensor, value: Tensor, head_num: int, input_layout: str, *positional: Any, **options: Any
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """As `npu_fusion_attention`; the ends of sequences, the seed and the offset are tensors on the CPU."""
    options |= zip(POSITIONAL, positional, strict=False)
    results = _forward("npu_fusion_attention_v3", query, key, value, head_num, input_layout, options)
    return *results[:4], torch.tensor([results[4]]), torch.tensor([results[5]])


def npu_fusion_attention_grad_v3(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    dy: Tensor,
    head_num: int,
    input_layout: str,
    *,
    seed: Tensor | None = None,
    offset: Tensor | None = None,
    **options: Any,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None, None]:
    """The gradients of query, key, value, pse and sink."""
    operator = "npu_fusion_attention_grad_v3"
    if options.get("keep_prob", 1.0) < 1 and (seed is None or offset is None):
        refuse(operator, "seed or offset", "None", "must be given with dropout: it is a result of the forward")
    options |= {"seed": int(seed or 0), "offset": int(offset or 0)}
    return *_backward(operator, query, key, value, dy, head_num, input_layout, options), None


def score(dropout_mask: Tensor | None = None, **call: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """aclnnFlashAttentionScore and aclnnFlashAttentionVarLenScore: softmax_max, softmax_sum, nothing, the attention."""
    _check_mask("aclnnFlashAttentionScore", dropout_mask, call)
    attention, largest, total, empty = npu_fusion_attention_v2(**call)[:4]
    return largest, total, empty, attention


def score_grad(dropout_mask: Tensor | None = None, **call: Any) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """aclnnFlashAttentionScoreGrad and aclnnFlashAttentionUnpaddingScoreGrad."""
    _check_mask("aclnnFlashAttentionScoreGrad", dropout_mask, call)
    return npu_fusion_attention_grad(**call)[:4]


def rope_grad(
    dropout_mask: Tensor | None = None, **call: Any
) -> tuple[Tensor, Tensor | None, Tensor, Tensor | None, Tensor, Tensor | None]:
    """aclnnFlashAttentionUnpaddingScoreGradV3."""
    _check_mask("aclnnFlashAttentionUnpaddingScoreGradV3", dropout_mask, call)
    dq, dk, dv, dpse, dq_rope, dk_rope, _ = npu_fusion_attention_grad_v2(**call)
    return dq, dq_rope, dk, dk_rope, dv, dpse


def _check_mask(operator: str, mask: Tensor | None, call: dict[str, Any]) -> None:
    """Refuses dropout: here it follows from a seed and an offset, and these functions are given a mask."""
    if call["keep_prob"] < 1:
        got = "null" if mask is None else "given"
        rule = f"keepProb must be 1, not {call['keep_prob']}: dropout by a mask is not served"
        refuse(operator, "dropMaskOptional", got, rule)


def _forward(
    operator: str, query: Tensor, key: Tensor, value: Tensor, head_num: int, input_layout: str, options: dict[str, Any]
) -> tuple[Tensor, Tensor, Tensor, Tensor, int, int, int]:
    """The results of `npu_fusion_attention`."""
    seed, offset, mask = options.pop("seed", 0), options.pop("offset", 0), options.pop("dropout_mask", None)
    call = _call(operator, query, key, value, head_num, input_layout, options)
    dropout = dropout_of(operator, call, options.get("keep_prob", 1.0), seed, offset, mask)
    return *forward(call, dropout), dropout.seed, dropout.offset, kept_count(call)


def _backward(
    operator: str,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    dy: Tensor,
    head_num: int,
    input_layout: str,
    options: dict[str, Any],
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """The gradients of query, key, value and pse. ``options`` also has the results of the forward."""
    seed, offset = options.pop("seed", 0), options.pop("offset", 0)
    largest, total, attention = (options.pop(name, None) for name in ("softmax_max", "softmax_sum", "attention_in"))
    call = _call(operator, query, key, value, head_num, input_layout, options)
    dropout = Dropout(options.get("keep_prob", 1.0), seed, offset)
    return backward(operator, call, dy, largest, total, attention, dropout)


def _call(
    operator: str, query: Tensor, key: Tensor, value: Tensor, head_num: int, input_layout: str, options: dict[str, Any]
) -> Call:
    """The checked call."""
    named = {SPELLINGS.get(name, name): given for name, given in options.items() if name not in WITHOUT_EFFECT}
    start_idx = (named.pop("q_start_idx", None), named.pop("kv_start_idx", None))
    return call_of(operator, query, key, value, head_num, input_layout, start_idx=start_idx, **named)


def _joined(
    operator: str, query: Tensor, key: Tensor, query_rope: Tensor | None, key_rope: Tensor | None, layout: str
) -> tuple[Tensor, Tensor, int]:
    """Query and key with their rotary parts appended, and the size of a head without these, if there are any."""
    check_together(operator, query_rope=query_rope, key_rope=key_rope)
    if query_rope is None or key_rope is None:
        return query, key, 0
    if layout.upper() != "TND":
        refuse(operator, "query_rope", "given", f"must be None in {layout}: only TND has it")
    for name, rope, whole in (("query_rope", query_rope, query), ("key_rope", key_rope, key)):
        if not rope.dim() or rope.shape[:-1] != whole.shape[:-1] or rope.dtype != whole.dtype:
            other = f"must be of {list(whole.shape[:-1])} and some D, and {whole.dtype}"
            refuse(operator, name, f"of shape {list(rope.shape)} and {rope.dtype}", other)
    return torch.cat((query, query_rope), -1), torch.cat((key, key_rope), -1), query.shape[-1]
