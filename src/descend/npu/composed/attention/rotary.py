"""Rotary position embeddings: npu_apply_rotary_pos_emb and npu_mrope of query and key, and npu_interleave_rope.

    half:       [x1, x2] * cos + [-x2, x1] * sin, of the halves of a head
    interleave: the same of neighbours, x1 the even and x2 the odd columns
    quarter:    the same of the halves of each half

npu_mrope reads cos and sin, of half a head, from the rows of a cache that positions name. With several rows of
positions, for time, height and width, each counts for a part of the columns: mrope_section says how many; interleaved,
height has columns 1, 4, 7, ..., width 2, 5, 8, ..., and time the rest.

npu_interleave_rope puts the even columns of x before the odd ones, and turns the halves of that.

Documents: torch_npu.npu_apply_rotary_pos_emb, npu_mrope, npu_interleave_rope.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from descend.npu.composed.arithmetic import check_float, check_integer, check_shape, check_within, wide
from descend.npu.composed.refusal import refuse

HEADS = {"BSND": 2, "SBND": 2, "BNSD": 1, "TND": 1}
"""The layouts, and the dimension of the heads."""


def npu_apply_rotary_pos_emb(
    query: Tensor, key: Tensor, cos: Tensor, sin: Tensor, layout: str = "BSND", rotary_mode: str = "half"
) -> tuple[Tensor, Tensor]:
    """``query`` and ``key``, changed in place. cos and sin may have 1 head, 1 batch, and fewer columns than a head has.

    Columns beyond those of cos stay as they are.
    """
    operator = "npu_apply_rotary_pos_emb"
    check_float(operator, query=query, key=key, cos=cos, sin=sin)
    heads = HEADS.get(layout)
    if heads is None:
        refuse(operator, "layout", repr(layout), "must be 'BSND', 'SBND', 'BNSD' or 'TND'")
    if rotary_mode not in ("half", "interleave", "quarter"):
        refuse(operator, "rotary_mode", repr(rotary_mode), "must be 'half', 'interleave' or 'quarter'")
    for name, tensor in (("query", query), ("key", key), ("cos", cos), ("sin", sin)):
        if tensor.dim() != len(layout):
            refuse(operator, name, f"of shape {list(tensor.shape)}", f"must have {len(layout)} dimensions in {layout}")
        if tensor.dtype != query.dtype:
            refuse(operator, name, tensor.dtype, f"must have the dtype of query, which is {query.dtype}")
    if cos.shape != sin.shape:
        refuse(operator, "sin", f"of shape {list(sin.shape)}", f"must have that of cos, {list(cos.shape)}")
    width, parts = cos.shape[-1], 4 if rotary_mode == "quarter" else 2
    if width > query.shape[-1] or width % parts:
        rule = f"must have a multiple of {parts} columns, at most the {query.shape[-1]} of query"
        refuse(operator, "cos", f"of shape {list(cos.shape)}", rule)
    for name, tensor in (("query", query), ("key", key)):
        wanted = [*tensor.shape[:-1], width]
        fits = all(own in (1, size) for own, size in zip(cos.shape, wanted, strict=True))
        if not fits or tensor.shape[-1] != query.shape[-1]:
            got = f"of shape {list(tensor.shape)}"
            refuse(operator, name, got, f"must fit cos of shape {list(cos.shape)}, and have heads as query")
    for tensor in (query, key):
        part = tensor[..., :width]
        part.copy_(_turned(wide(part), wide(cos), wide(sin), rotary_mode))
    return query, key


def npu_mrope(
    positions: Tensor,
    query: Tensor,
    key: Tensor,
    cos_sin_cache: Tensor,
    head_size: int,
    *,
    mrope_section: Sequence[int] | None = None,
    rotary_mode: str | None = "half",
    cache_mode: str | None = "default",
) -> tuple[Tensor, Tensor]:
    """Query and key [T, heads * ``head_size``], turned. ``cos_sin_cache`` [L, R] has R / 2 of cos, then of sin.

    ``positions``: [T], or [3 or 4, T] with a ``mrope_section``. Columns of a head from R on stay as they are.
    """
    operator = "npu_mrope"
    check_float(operator, query=query, key=key, cos_sin_cache=cos_sin_cache)
    check_integer(operator, "positions", positions)
    if rotary_mode not in ("half", "interleave", "interleaved"):
        refuse(operator, "rotary_mode", repr(rotary_mode), "must be 'half' or 'interleave'")
    if cache_mode not in ("default", "interleave"):
        refuse(operator, "cache_mode", repr(cache_mode), "must be 'default' or 'interleave'")
    width = cos_sin_cache.shape[-1] if cos_sin_cache.dim() == 2 else 0
    if width < 2 or width % 2 or width > head_size:
        rule = f"must be of shape [L, R], R even and at most head_size, {head_size}"
        refuse(operator, "cos_sin_cache", f"of shape {list(cos_sin_cache.shape)}", rule)
    if positions.dim() not in (1, 2):
        refuse(operator, "positions", f"of shape {list(positions.shape)}", "must have 1 or 2 dimensions")
    tokens = positions.shape[-1]
    for name, tensor in (("query", query), ("key", key)):
        if tensor.dim() != 2 or len(tensor) != tokens or tensor.shape[1] % head_size:
            rule = f"must be of shape [{tokens}, heads * {head_size}]"
            refuse(operator, name, f"of shape {list(tensor.shape)}", rule)
    last = len(cos_sin_cache) - 1
    check_within(operator, "positions", positions, last + 1, f"must be from 0 to {last}, rows of cos_sin_cache")
    rows = wide(cos_sin_cache)[positions.long()]
    if positions.dim() == 2:
        rows = _sections(operator, rows, list(mrope_section or ()), cache_mode == "interleave")
    mode = "half" if rotary_mode == "half" else "interleave"
    cos, sin = rows.unsqueeze(1).chunk(2, -1)
    both = [torch.cat((t, t), -1) if mode == "half" else t.repeat_interleave(2, -1) for t in (cos, sin)]
    results = []
    for tensor in (query, key):
        heads = wide(tensor).unflatten(1, (tensor.shape[1] // head_size, head_size))
        turned = _turned(heads[..., :width], both[0], both[1], mode)
        results.append(torch.cat((turned, heads[..., width:]), -1).view(tensor.shape).to(tensor.dtype))
    return results[0], results[1]


def npu_interleave_rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """The result [B, N, S, D] of ``x``; ``cos`` and ``sin`` are [B, 1, S or 1, D]."""
    operator = "npu_interleave_rope"
    check_float(operator, x=x, cos=cos, sin=sin)
    if x.dim() != 4 or x.shape[-1] % 2:
        refuse(operator, "x", f"of shape {list(x.shape)}", "must be of shape [B, N, S, D], D even")
    batch, _, length, size = x.shape
    rows = 1 if cos.dim() == 4 and cos.shape[2] == 1 else length
    for name, tensor in (("cos", cos), ("sin", sin)):
        check_shape(operator, name, tensor, [batch, 1, rows, size], "x, N 1, and S maybe 1")
        if tensor.dtype != x.dtype:
            refuse(operator, name, tensor.dtype, f"must have the dtype of x, which is {x.dtype}")
    even, odd = wide(x)[..., ::2], wide(x)[..., 1::2]
    return (torch.cat((even, odd), -1) * cos + torch.cat((-odd, even), -1) * sin).to(x.dtype)


def _sections(operator: str, rows: Tensor, sections: list[int], interleaved: bool) -> Tensor:
    """Of rows [3 or 4, T, R] for each of several positions those [T, R] in which each has its columns."""
    half = rows.shape[-1] // 2
    if len(sections) != len(rows) or len(rows) not in (3, 4) or sum(sections) != half or min(sections) < 0:
        rule = f"must have a number for each of the {len(rows)} rows of positions, 3 or 4, which add up to {half}"
        refuse(operator, "mrope_section", sections, rule)
    if interleaved and len(rows) != 3:
        refuse(operator, "cache_mode", "'interleave'", "must be 'default' without 3 rows of positions")
    of = torch.zeros(half, dtype=torch.int64)
    if interleaved:
        end = sections[1] * 3
        of[1:end:3], of[2:end:3] = 1, 2
    else:
        of = torch.arange(len(rows)).repeat_interleave(torch.tensor(sections))
    chosen = rows[torch.cat((of, of)), :, torch.arange(2 * half)]
    return chosen.T


def _turned(x: Tensor, cos: Tensor, sin: Tensor, mode: str) -> Tensor:
    if mode == "half":
        one, other = x.chunk(2, -1)
        turned = torch.cat((-other, one), -1)
    elif mode == "interleave":
        turned = torch.stack((-x[..., 1::2], x[..., ::2]), -1).flatten(-2)
    else:
        a, b, c, d = x.chunk(4, -1)
        turned = torch.cat((-b, a, -d, c), -1)
    return x * cos + turned * sin
