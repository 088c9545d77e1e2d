"""Sparse attention and the lightning indexer of quantised numbers.

    npu_kv_quant_sparse_flash_attention:   npu_sparse_flash_attention, whose keys and values are numbers times scales
    npu_quant_lightning_indexer:           npu_lightning_indexer, whose query and key are numbers times scales

A row of key is byte after byte, as npu_mla_prolog_v3 writes it: C numbers, the rotary part in the dtype of query, and
float32 scales, one for each tile_size numbers. Value has the C numbers, or whole rows, and the scales of key.

Documents: torch_npu.npu_kv_quant_sparse_flash_attention, npu_quant_lightning_indexer.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from descend.npu.composed.arithmetic import HALVES, check_choice, check_dtype, check_shape
from descend.npu.composed.attention.lightning_indexer import npu_lightning_indexer
from descend.npu.composed.attention.sparse_attention import npu_sparse_flash_attention
from descend.npu.composed.quantised.formats import E4M3, HIF8, INT8, Number, as_float, format_of
from descend.npu.composed.refusal import RefusedError, refuse

FORMATS = (INT8, E4M3, HIF8)


def npu_kv_quant_sparse_flash_attention(
    query: Tensor, key: Tensor, value: Tensor, sparse_indices: Tensor, scale_value: float, key_quant_mode: int,
    value_quant_mode: int, *, key_dequant_scale: Tensor | None = None, value_dequant_scale: Tensor | None = None,
    quant_scale_repo_mode: int = 1, tile_size: int = 128, rope_head_dim: int = 64, key_dtype: Number = None,
    value_dtype: Number = None, **options: Any,
) -> Tensor:  # fmt: skip
    """[..., N, C] in the dtype of ``query``, [B, S, N, C + rope_head_dim] or [T, N, C + rope_head_dim] in 16 bits.

    Layouts, lengths, pages and ``sparse_indices`` are those of npu_sparse_flash_attention.
    """
    operator = "npu_kv_quant_sparse_flash_attention"
    for name, tensor in (("key_dequant_scale", key_dequant_scale), ("value_dequant_scale", value_dequant_scale)):
        if tensor is not None:
            refuse(operator, name, "given", "must be None: scales are in key")
    for name, mode, served in (
        ("key_quant_mode", key_quant_mode, 2),
        ("value_quant_mode", value_quant_mode, 2),
        ("quant_scale_repo_mode", quant_scale_repo_mode, 1),
    ):
        check_choice(operator, name, mode, served)
    check_dtype(operator, "query", query, *HALVES)
    columns = query.shape[-1] - rope_head_dim if query.dim() else 0
    if rope_head_dim < 1 or columns < 1 or tile_size < 1 or columns % tile_size:
        rule = f"must leave columns of query, of shape {list(query.shape)}, a multiple of tile_size, {tile_size}"
        refuse(operator, "rope_head_dim", rope_head_dim, rule)
    numbers = _numbers(operator, "key", key, key_dtype)
    size = columns + 2 * rope_head_dim + 4 * columns // tile_size
    if key.dim() < 3 or key.shape[-1] != size:
        rule = f"must have {size} columns: {columns} numbers, {rope_head_dim} of 2 bytes, and scales of 4 bytes"
        refuse(operator, "key", f"of shape {list(key.shape)}", rule)
    if value.dtype != key.dtype or value.shape[:-1] != key.shape[:-1] or value.shape[-1] not in (columns, size):
        rule = f"must be as key, with {columns} or {size} columns"
        refuse(operator, "value", f"of shape {list(value.shape)} and {value.dtype}", rule)
    bytes_ = key.contiguous().view(torch.uint8)
    rope_end = columns + 2 * rope_head_dim
    key_rope = bytes_[..., columns:rope_end].contiguous().view(query.dtype).float()
    scales = bytes_[..., rope_end:].contiguous().view(torch.float32).repeat_interleave(tile_size, -1)
    values = _numbers(operator, "value", value, value_dtype)[..., :columns]
    wide = query.float()
    with _named(operator):
        attention, _, _ = npu_sparse_flash_attention(
            wide[..., :columns], numbers[..., :columns] * scales, values * scales, sparse_indices, scale_value,
            query_rope=wide[..., columns:], key_rope=key_rope, **options,
        )  # fmt: skip
    return attention.to(query.dtype)


def npu_quant_lightning_indexer(
    query: Tensor, key: Tensor, weights: Tensor, query_dequant_scale: Tensor, key_dequant_scale: Tensor,
    query_quant_mode: int, key_quant_mode: int, *, query_dtype: Number = None, key_dtype: Number = None, **options: Any,
) -> Tensor:  # fmt: skip
    """The indices of npu_lightning_indexer. Each head of a row of ``query`` and of ``key`` has a scale."""
    operator = "npu_quant_lightning_indexer"
    check_choice(operator, "query_quant_mode", query_quant_mode, 0)
    check_choice(operator, "key_quant_mode", key_quant_mode, 0)
    check_dtype(operator, "weights", weights, *HALVES, torch.float32)
    if key.dtype != query.dtype:
        refuse(operator, "key", key.dtype, f"must have the dtype of query, {query.dtype}")
    wide = []
    for name, tensor, scale, number in (
        ("query", query, query_dequant_scale, query_dtype),
        ("key", key, key_dequant_scale, key_dtype),
    ):
        numbers = _numbers(operator, name, tensor, number)
        check_dtype(operator, f"{name}_dequant_scale", scale, torch.float16, torch.float32)
        check_shape(operator, f"{name}_dequant_scale", scale, tensor.shape[:-1], f"{name}, but for its last dimension")
        wide.append(numbers * scale.float().unsqueeze(-1))
    with _named(operator):
        return npu_lightning_indexer(wide[0], wide[1], weights.float(), **options)[0]


def _numbers(operator: str, name: str, tensor: Tensor, number: Number) -> Tensor:
    """What the bytes stand for, in float32."""
    check_dtype(operator, name, tensor, *(held.dtype for held in FORMATS))
    held = format_of(operator, f"{name}_dtype", tensor.dtype if number is None else number, FORMATS)
    if held.dtype != tensor.dtype:
        refuse(operator, f"{name}_dtype", held.name, f"must be one that {tensor.dtype} can hold")
    return as_float(tensor, held)


@contextmanager
def _named(operator: str) -> Iterator[None]:
    """Refusals name this operator, and not the one that computes it."""
    try:
        yield
    except RefusedError as error:
        raise RefusedError(operator, error.parameter, error.rest) from None
