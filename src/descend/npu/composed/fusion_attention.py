"""npu_fusion_attention, its versions 2 and 3, and their gradients.

    attention = dropout(softmax(mask(scale * (query @ key^T + pse)))) @ value       (pse_type 1)
    attention = dropout(softmax(mask(scale * query @ key^T + pse))) @ value         (pse_type 0)

torch_npu's scaled_dot_product_attention calls version 3, so it is served by these, too. Documents:
torch_npu.npu_fusion_attention and npu_fusion_attention_v3; aclnnFlashAttentionScore(V2) and its VarLen forms,
aclnnFlashAttentionScoreGrad(V2) and its Unpadding forms.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from descend.npu.composed.attention_call import backward, call_of, drawn, dropout_of, forward, kept_count
from descend.npu.composed.refusal import refuse

ALL = 2147483647
"""What pre_tockens and next_tockens are where nothing is left out."""

Ints = Sequence[int] | None
Optional = Tensor | None


def npu_fusion_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    head_num: int,
    input_layout: str,
    pse: Optional = None,
    padding_mask: Optional = None,
    atten_mask: Optional = None,
    scale: float = 1.0,
    keep_prob: float = 1.0,
    pre_tockens: int = ALL,
    next_tockens: int = ALL,
    inner_precise: int = 0,
    prefix: Ints = None,
    actual_seq_qlen: Ints = None,
    actual_seq_kvlen: Ints = None,
    sparse_mode: int = 0,
    gen_mask_parallel: bool = True,
    sync: bool = False,
    softmax_layout: str = "",
    sink: Optional = None,
    dropout_mask: Optional = None,
    seed: int = 0,
    offset: int = 0,
) -> tuple[Tensor, Tensor, Tensor, Tensor, int, int, int]:
    """The attention, softmax_max, softmax_sum, an empty tensor, and the seed, offset and size of its dropout."""
    call = call_of(
        "npu_fusion_attention", query, key, value, head_num, input_layout,
        pse=pse, padding_mask=padding_mask, atten_mask=atten_mask, scale=scale, keep_prob=keep_prob, before=pre_tockens,
        after=next_tockens, inner_precise=inner_precise, prefix=prefix, actual_seq_qlen=actual_seq_qlen,
        actual_seq_kvlen=actual_seq_kvlen, sparse_mode=sparse_mode, softmax_layout=softmax_layout, sink=sink,
        dropout_mask=dropout_mask,
    )  # fmt: skip
    seed, offset = drawn(keep_prob, seed, offset)
    return *forward(call, dropout_of(keep_prob, seed, offset)), seed, offset, kept_count(call)


def npu_fusion_attention_grad(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    dy: Tensor,
    head_num: int,
    input_layout: str,
    *,
    pse: Optional = None,
    padding_mask: Optional = None,
    atten_mask: Optional = None,
    softmax_max: Optional = None,
    softmax_sum: Optional = None,
    softmax_in: Optional = None,
    attention_in: Optional = None,
    scale_value: float = 1.0,
    keep_prob: float = 1.0,
    pre_tockens: int = ALL,
    next_tockens: int = ALL,
    inner_precise: int = 0,
    seed: int = 0,
    offset: int = 0,
    numels: int = 0,
    prefix: Ints = None,
    actual_seq_qlen: Ints = None,
    actual_seq_kvlen: Ints = None,
    sparse_mode: int = 0,
    gen_mask_parallel: bool = True,
    sync: bool = False,
    softmax_layout: str = "",
    sink: Optional = None,
) -> tuple[Tensor, Tensor, Tensor, Optional, None]:
    """The gradients of query, key, value, pse and sink."""
    call = call_of(
        "npu_fusion_attention_grad", query, key, value, head_num, input_layout,
        pse=pse, padding_mask=padding_mask, atten_mask=atten_mask, scale=scale_value, keep_prob=keep_prob,
        before=pre_tockens, after=next_tockens, inner_precise=inner_precise, prefix=prefix,
        actual_seq_qlen=actual_seq_qlen, actual_seq_kvlen=actual_seq_kvlen, sparse_mode=sparse_mode,
        softmax_layout=softmax_layout, sink=sink,
    )  # fmt: skip
    dropout = dropout_of(keep_prob, seed, offset)
    return *backward("npu_fusion_attention_grad", call, dy, softmax_max, softmax_sum, attention_in, dropout), None


def npu_fusion_attention_v2(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    head_num: int,
    input_layout: str,
    *,
    pse: Optional = None,
    padding_mask: Optional = None,
    atten_mask: Optional = None,
    query_rope: Optional = None,
    key_rope: Optional = None,
    scale: float = 1.0,
    keep_prob: float = 1.0,
    pre_tokens: int = ALL,
    next_tokens: int = ALL,
    inner_precise: int = 0,
    prefix: Ints = None,
    actual_seq_qlen: Ints = None,
    actual_seq_kvlen: Ints = None,
    sparse_mode: int = 0,
    gen_mask_parallel: bool = True,
    sync: bool = False,
    pse_type: int = 1,
    q_start_idx: Ints = None,
    kv_start_idx: Ints = None,
    softmax_layout: str = "",
    sink: Optional = None,
    dropout_mask: Optional = None,
    seed: int = 0,
    offset: int = 0,
) -> tuple[Tensor, Tensor, Tensor, Tensor, int, int, int]:
    """As `npu_fusion_attention`; query_rope and key_rope (TND) are more numbers of each head of query and key."""
    operator = "npu_fusion_attention_v2"
    query, key, _ = _joined(operator, query, key, query_rope, key_rope, input_layout)
    call = call_of(
        operator, query, key, value, head_num, input_layout,
        pse=pse, padding_mask=padding_mask, atten_mask=atten_mask, scale=scale, keep_prob=keep_prob, before=pre_tokens,
        after=next_tokens, inner_precise=inner_precise, prefix=prefix, actual_seq_qlen=actual_seq_qlen,
        actual_seq_kvlen=actual_seq_kvlen, sparse_mode=sparse_mode, softmax_layout=softmax_layout, sink=sink,
        pse_type=pse_type, start_idx=(q_start_idx, kv_start_idx), dropout_mask=dropout_mask,
    )  # fmt: skip
    seed, offset = drawn(keep_prob, seed, offset)
    return *forward(call, dropout_of(keep_prob, seed, offset)), seed, offset, kept_count(call)


def npu_fusion_attention_grad_v2(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    dy: Tensor,
    head_num: int,
    input_layout: str,
    *,
    pse: Optional = None,
    padding_mask: Optional = None,
    atten_mask: Optional = None,
    softmax_max: Optional = None,
    softmax_sum: Optional = None,
    softmax_in: Optional = None,
    attention_in: Optional = None,
    query_rope: Optional = None,
    key_rope: Optional = None,
    scale_value: float = 1.0,
    keep_prob: float = 1.0,
    pre_tokens: int = ALL,
    next_tokens: int = ALL,
    inner_precise: int = 0,
    seed: int = 0,
    offset: int = 0,
    numels: int = 0,
    prefix: Ints = None,
    actual_seq_qlen: Ints = None,
    actual_seq_kvlen: Ints = None,
    sparse_mode: int = 0,
    gen_mask_parallel: bool = True,
    sync: bool = False,
    pse_type: int = 1,
    q_start_idx: Ints = None,
    kv_start_idx: Ints = None,
    softmax_layout: str = "",
    sink: Optional = None,
) -> tuple[Tensor, Tensor, Tensor, Optional, Optional, Optional, None]:
    """The gradients of query, key, value, pse, query_rope, key_rope and sink."""
    operator = "npu_fusion_attention_grad_v2"
    query, key, size = _joined(operator, query, key, query_rope, key_rope, input_layout)
    call = call_of(
        operator, query, key, value, head_num, input_layout,
        pse=pse, padding_mask=padding_mask, atten_mask=atten_mask, scale=scale_value, keep_prob=keep_prob,
        before=pre_tokens, after=next_tokens, inner_precise=inner_precise, prefix=prefix,
        actual_seq_qlen=actual_seq_qlen, actual_seq_kvlen=actual_seq_kvlen, sparse_mode=sparse_mode,
        softmax_layout=softmax_layout, sink=sink,
        pse_type=pse_type, start_idx=(q_start_idx, kv_start_idx),
    )  # fmt: skip
    dropout = dropout_of(keep_prob, seed, offset)
    dq, dk, dv, dpse = backward(operator, call, dy, softmax_max, softmax_sum, attention_in, dropout)
    if query_rope is None:
        return dq, dk, dv, dpse, None, None, None
    (dq, dq_rope), (dk, dk_rope) = (
        (whole[..., :size].contiguous(), whole[..., size:].contiguous()) for whole in (dq, dk)
    )
    return dq, dk, dv, dpse, dq_rope, dk_rope, None


def _joined(
    operator: str, query: Tensor, key: Tensor, query_rope: Optional, key_rope: Optional, layout: str
) -> tuple[Tensor, Tensor, int]:
    """Query and key with their rotary parts behind them, and the size of a head without."""
    if query_rope is None and key_rope is None:
        return query, key, query.shape[-1]
    if query_rope is None or key_rope is None:
        refuse(operator, "query_rope or key_rope", "None", "both or neither are given")
    if layout.upper() != "TND":
        refuse(operator, "query_rope", "given", f"goes with input_layout TND, not with {layout}")
    for name, rope, whole in (("query_rope", query_rope, query), ("key_rope", key_rope, key)):
        if rope.shape[:-1] != whole.shape[:-1] or rope.dtype != whole.dtype:
            other = f"is of {list(whole.shape[:-1])} and some D, and {whole.dtype}"
            refuse(operator, name, f"of shape {list(rope.shape)} and {rope.dtype}", other)
    return torch.cat((query, query_rope), -1), torch.cat((key, key_rope), -1), query.shape[-1]


def npu_fusion_attention_v3(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    head_num: int,
    input_layout: str,
    pse: Optional = None,
    padding_mask: Optional = None,
    atten_mask: Optional = None,
    scale: float = 1.0,
    keep_prob: float = 1.0,
    pre_tockens: int = ALL,
    next_tockens: int = ALL,
    inner_precise: int = 0,
    prefix: Ints = None,
    actual_seq_qlen: Optional = None,
    actual_seq_kvlen: Optional = None,
    sparse_mode: int = 0,
    gen_mask_parallel: bool = True,
    sync: bool = False,
    softmax_layout: str = "",
    sink: Optional = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """As `npu_fusion_attention`; the ends of sequences, the seed and the offset are tensors on the CPU."""
    call = call_of(
        "npu_fusion_attention_v3", query, key, value, head_num, input_layout,
        pse=pse, padding_mask=padding_mask, atten_mask=atten_mask, scale=scale, keep_prob=keep_prob, before=pre_tockens,
        after=next_tockens, inner_precise=inner_precise, prefix=prefix, actual_seq_qlen=actual_seq_qlen,
        actual_seq_kvlen=actual_seq_kvlen, sparse_mode=sparse_mode, softmax_layout=softmax_layout, sink=sink,
    )  # fmt: skip
    seed, offset = drawn(keep_prob, 0, 0)
    return *forward(call, dropout_of(keep_prob, seed, offset)), torch.tensor([seed]), torch.tensor([offset])


def npu_fusion_attention_grad_v3(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    dy: Tensor,
    head_num: int,
    input_layout: str,
    *,
    pse: Optional = None,
    padding_mask: Optional = None,
    atten_mask: Optional = None,
    softmax_max: Optional = None,
    softmax_sum: Optional = None,
    softmax_in: Optional = None,
    attention_in: Optional = None,
    scale_value: float = 1.0,
    keep_prob: float = 1.0,
    pre_tockens: int = ALL,
    next_tockens: int = ALL,
    inner_precise: int = 0,
    seed: Optional = None,
    offset: Optional = None,
    prefix: Ints = None,
    actual_seq_qlen: Optional = None,
    actual_seq_kvlen: Optional = None,
    sparse_mode: int = 0,
    gen_mask_parallel: bool = True,
    sync: bool = False,
    softmax_layout: str = "",
    sink: Optional = None,
) -> tuple[Tensor, Tensor, Tensor, Optional, None]:
    """The gradients of query, key, value, pse and sink."""
    operator = "npu_fusion_attention_grad_v3"
    call = call_of(
        operator, query, key, value, head_num, input_layout,
        pse=pse, padding_mask=padding_mask, atten_mask=atten_mask, scale=scale_value, keep_prob=keep_prob,
        before=pre_tockens, after=next_tockens, inner_precise=inner_precise, prefix=prefix,
        actual_seq_qlen=actual_seq_qlen, actual_seq_kvlen=actual_seq_kvlen, sparse_mode=sparse_mode,
        softmax_layout=softmax_layout, sink=sink,
    )  # fmt: skip
    if keep_prob < 1 and (seed is None or offset is None):
        refuse(operator, "seed or offset", "None", "is needed with dropout: the forward's result")
    dropout = dropout_of(keep_prob, int(seed or 0), int(offset or 0))
    return *backward(operator, call, dy, softmax_max, softmax_sum, attention_in, dropout), None
