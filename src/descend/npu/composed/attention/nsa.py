"""npu_nsa_compress_attention, npu_nsa_select_attention and its gradient: the attentions of native sparse attention.

npu_nsa_compress makes one key of each window of compress_block_size keys, compress_stride apart. Compress attention is
the softmax attention over these, P its probabilities, and scores blocks of select_block_size keys by them:

    score[j] = sum over the query heads of a key head, over a < m and over b < n, of P[m * (j + 1) - a - b]
    m = select_block_size / compress_stride, n = compress_block_size / compress_stride

The select_block_count blocks of the highest score are its topk_indices; those that topk_mask has true come first.
Select attention is the softmax attention over the keys of these blocks.

The document numbers j so that the last index is m * j. In torch_npu's test it is m * (j + 1), as above, so that block j
holds the windows that reach into it.

The gradient of select attention is that of what the forward computes. On an Ascend it hides keys beyond the query's own
place, counted from the upper left, which the forward does not hide.

Documents: torch_npu.npu_nsa_compress_attention, npu_nsa_select_attention; aclnnNsaCompressAttention,
aclnnNsaSelectedAttention, aclnnNsaSelectedAttentionGrad. The gradient of compress attention is
npu_fusion_attention_grad.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from descend.npu.composed.arithmetic import check_alike, check_float, check_integer, check_shape, wide
from descend.npu.composed.attention import selected
from descend.npu.composed.attention.fusion_attention import npu_fusion_attention
from descend.npu.composed.attention.layouts import COPIES, Sizes, sequences, sizes_of
from descend.npu.composed.memory import row_blocks
from descend.npu.composed.refusal import refuse

Ends = Sequence[int] | None


def npu_nsa_compress_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    scale_value: float,
    head_num: int,
    compress_block_size: int,
    compress_stride: int,
    select_block_size: int,
    select_block_count: int,
    *,
    topk_mask: Tensor | None = None,
    atten_mask: Tensor | None = None,
    actual_seq_qlen: Ends = None,
    actual_cmp_seq_kvlen: Ends = None,
    actual_sel_seq_kvlen: Ends = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The attention [T, N, Dv], topk_indices (int32 [T, Nkv, count]), softmax_max and softmax_sum [T, N, 8].

    ``query`` is [T, N, D], key and value [Tk, Nkv, D]. ``atten_mask`` is [longest query, longest key], ``topk_mask``
    [longest query, most blocks]. The lists tell where each sequence of queries, of keys and of blocks ends.
    """
    operator = "npu_nsa_compress_attention"
    _check_windows(operator, compress_block_size, compress_stride, select_block_size, select_block_count)
    sizes = sizes_of(operator, query, key, value, head_num, "TND")
    queries = sequences(operator, "actual_seq_qlen", actual_seq_qlen, sizes.queries)
    keys = sequences(operator, "actual_cmp_seq_kvlen", actual_cmp_seq_kvlen, sizes.keys)
    ends = list(actual_sel_seq_kvlen or [])
    blocks = sequences(operator, "actual_sel_seq_kvlen", ends, max(ends, default=0))
    if not len(queries) == len(keys) == len(blocks):
        counts = f"{len(queries)}, {len(keys)} and {len(blocks)} sequences"
        refuse(operator, "actual_seq_qlen, actual_cmp_seq_kvlen and actual_sel_seq_kvlen", counts, "must be of as many")
    longest, most = (max(part.stop - part.start for part in parts) for parts in (queries, blocks))
    if topk_mask is not None:
        if topk_mask.dtype not in (torch.bool, torch.uint8):
            refuse(operator, "topk_mask", topk_mask.dtype, "must be bool or uint8")
        check_shape(operator, "topk_mask", topk_mask, [longest, most], "the longest query and the most blocks")
    for rows, own in zip(queries, blocks, strict=True):
        count = own.stop - own.start
        if rows.stop > rows.start and count < select_block_count:
            refuse(
                operator, "select_block_count", select_block_count, f"must be at most {count}, the blocks of a sequence"
            )
    options: dict[str, Any] = {"atten_mask": atten_mask, "scale": scale_value, "sparse_mode": 1}
    options |= {"actual_seq_qlen": actual_seq_qlen, "actual_seq_kvlen": actual_cmp_seq_kvlen}
    out, largest, total = npu_fusion_attention(query, key, value, head_num, "TND", **options)[:3]
    indices = torch.zeros(sizes.queries, sizes.key_heads, select_block_count, dtype=torch.int32)
    step, reach = select_block_size // compress_stride, compress_block_size // compress_stride
    for rows, own_keys, own in zip(queries, keys, blocks, strict=True):
        count = own.stop - own.start
        length = own_keys.stop - own_keys.start
        shared = _shares(length, count, step, reach, wide(query[:0]).dtype)
        q, k = wide(query[rows]).unflatten(1, (sizes.key_heads, -1)), wide(key[own_keys]).permute(1, 2, 0)
        for part in row_blocks(rows.stop - rows.start, head_num * length):
            probabilities = torch.matmul(q[part].permute(1, 2, 0, 3), k.unsqueeze(1)).mul_(scale_value)
            if atten_mask is not None:
                probabilities.masked_fill_(atten_mask[part, :length].to(torch.bool), -torch.inf)
            # A query that sees nothing has the probabilities 0, and takes the first blocks.
            probabilities = probabilities.softmax(-1).nan_to_num_(0.0)
            score = (probabilities.sum(1) @ shared).transpose(0, 1)
            if topk_mask is not None:
                score.masked_fill_(topk_mask[part, :count].to(torch.bool).unsqueeze(1), torch.inf)
            order = score.sort(dim=-1, descending=True, stable=True).indices
            indices[rows.start + part.start : rows.start + part.stop] = order[..., :select_block_count]
    return out, indices, largest, total


def npu_nsa_select_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    topk_indices: Tensor,
    scale_value: float,
    head_num: int,
    select_block_size: int,
    select_block_count: int,
    *,
    atten_mask: Tensor | None = None,
    actual_seq_qlen: Ends = None,
    actual_seq_kvlen: Ends = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """The attention [T, N, Dv], softmax_max and softmax_sum [T, N, 8].

    ``topk_indices`` [T, Nkv, count] names blocks of keys within the query's sequence.
    """
    given = (topk_indices, select_block_size, select_block_count, atten_mask, actual_seq_qlen, actual_seq_kvlen)
    sizes, lists = _selection("npu_nsa_select_attention", query, key, value, head_num, *given)
    results = selected.forward(_grouped(sizes, query), key, value, lists, scale_value)
    out, largest, total = (result.flatten(1, 2) for result in results)
    largest, total = (statistic.unsqueeze(-1).repeat(1, 1, COPIES) for statistic in (largest, total))
    return out.to(query.dtype), largest, total


def npu_nsa_select_attention_grad(
    grad: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_out: Tensor,
    softmax_max: Tensor,
    softmax_sum: Tensor,
    topk_indices: Tensor,
    scale_value: float,
    head_num: int,
    select_block_size: int,
    select_block_count: int,
    *,
    atten_mask: Tensor | None = None,
    actual_seq_qlen: Ends = None,
    actual_seq_kvlen: Ends = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of query, key and value."""
    operator = "npu_nsa_select_attention_grad"
    given = (topk_indices, select_block_size, select_block_count, atten_mask, actual_seq_qlen, actual_seq_kvlen)
    sizes, lists = _selection(operator, query, key, value, head_num, *given)
    check_alike(operator, "query", query, grad=grad, attention_out=attention_out)
    check_float(operator, softmax_max=softmax_max, softmax_sum=softmax_sum)
    for name, tensor in (("grad", grad), ("attention_out", attention_out)):
        check_shape(operator, name, tensor, [*query.shape[:2], value.shape[-1]], "the attention")
    for name, tensor in (("softmax_max", softmax_max), ("softmax_sum", softmax_sum)):
        check_shape(operator, name, tensor, [*query.shape[:2], COPIES], "the statistics")
    results = (_grouped(sizes, t) for t in (grad, attention_out, softmax_max, softmax_sum))
    dy, out, largest, total = results
    statistics = (largest[..., 0], total[..., 0])
    gradients = selected.backward(_grouped(sizes, query), key, value, lists, scale_value, dy, out, *statistics)
    dq, dk, dv = (gradient.to(query.dtype) for gradient in gradients)
    return dq.flatten(1, 2), dk, dv


def _grouped(sizes: Sizes, rows: Tensor) -> Tensor:
    """[T, N, X] as [T, Nkv, G, X]."""
    heads: Tensor = rows.unflatten(1, (sizes.key_heads, -1))
    return heads


def _shares(keys: int, blocks: int, step: int, reach: int, dtype: torch.dtype) -> Tensor:
    """[keys, blocks]: how often each probability is in the sum of each block's score."""
    back = step * torch.arange(1, blocks + 1) - torch.arange(keys).unsqueeze(-1)
    pairs = torch.minimum(back + 1, step + reach - 1 - back)
    return pairs.clamp_(0, min(step, reach)).to(dtype)


def _check_windows(operator: str, block: int, stride: int, select: int, count: int) -> None:
    if stride < 1 or block < stride or block % stride:
        refuse(operator, "compress_block_size", block, f"must be a multiple of compress_stride, which is {stride}")
    if count < 1:
        refuse(operator, "select_block_count", count, "must be at least 1")
    if select < block or select % stride:
        served = f"must be a multiple of compress_stride, {stride}, and at least compress_block_size, {block}"
        refuse(operator, "select_block_size", select, served)


def _selection(
    operator: str,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    head_num: int,
    topk_indices: Tensor,
    size: int,
    count: int,
    atten_mask: Tensor | None,
    query_ends: Ends,
    key_ends: Ends,
) -> tuple[Sizes, selected.Lists]:
    """The sizes, and the keys of each query."""
    if atten_mask is not None:
        refuse(operator, "atten_mask", "given", "must be None: the document says that it is not served")
    sizes = sizes_of(operator, query, key, value, head_num, "TND")
    queries = sequences(operator, "actual_seq_qlen", query_ends, sizes.queries)
    keys = sequences(operator, "actual_seq_kvlen", key_ends, sizes.keys)
    if len(queries) != len(keys):
        refuse(
            operator,
            "actual_seq_kvlen",
            f"for {len(keys)} sequences",
            f"must be for {len(queries)}, as actual_seq_qlen",
        )
    if size < 1:
        refuse(operator, "select_block_size", size, "must be at least 1")
    check_integer(operator, "topk_indices", topk_indices)
    shape = [sizes.queries, sizes.key_heads, count]
    check_shape(operator, "topk_indices", topk_indices, shape, "T, Nkv and select_block_count")
    seen = selected.seen(sizes.queries, list(zip(queries, keys, strict=True)), causal=False)
    blocks = (seen.limit + size - 1) // size
    wrong = (topk_indices < 0) | (topk_indices >= blocks.view(-1, 1, 1))
    wrong[queries[-1].stop :] = False
    if bool(wrong.any()):
        row = int(wrong.flatten(1).any(1).nonzero()[0])
        got = f"{topk_indices[row][wrong[row]][0]} for query {row}"
        refuse(operator, "topk_indices", got, f"must name one of the {blocks[row]} blocks of its sequence")
    return sizes, selected.Lists(topk_indices, size, seen)
