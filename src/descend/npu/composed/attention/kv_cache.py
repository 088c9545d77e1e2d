"""npu_kv_rmsnorm_rope_cache: a norm and a rotary embedding, whose results go to caches of keys and values.

    without v:   kv = [c, k], k its last R columns     c = norm(c),  k = rope(k)
    with v:      norm(kv) = [k, rest], k R columns     c = v,        k = [rope(k), rest]
    norm(x) = x / sqrt(mean(x^2) + epsilon) * gamma
    rope(x) = [even, odd] * cos + [-odd, even] * sin, of the even and the odd columns of x

k_cache gets k, and ckv_cache gets c: as they are, or times a scale, plus an offset, rounded to int8.

Documents: torch_npu.npu_kv_rmsnorm_rope_cache; op-plugin's test_npu_kv_rms_norm_rope_cache.py.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from descend.npu.composed.arithmetic import HALVES, check_choice, check_dtype, check_integer, check_shape, check_within
from descend.npu.composed.layers.fused_norms import rms_norm
from descend.npu.composed.quantised.formats import E4M3, E5M2, HIF8, INT8, Format, Number, format_of, rounded
from descend.npu.composed.refusal import refuse

MODES = ("Norm", "PA", "PA_BNSD", "PA_NZ", "PA_BLK_BNSD", "PA_BLK_NZ")
OPERATOR = "npu_kv_rmsnorm_rope_cache"


def npu_kv_rmsnorm_rope_cache(
    kv: Tensor, gamma: Tensor, cos: Tensor, sin: Tensor, index: Tensor, k_cache: Tensor, ckv_cache: Tensor, *,
    k_rope_scale: Tensor | None = None, c_kv_scale: Tensor | None = None, k_rope_offset: Tensor | None = None,
    c_kv_offset: Tensor | None = None, v: Tensor | None = None, epsilon: float = 1e-5, cache_mode: str = "Norm",
    is_output_kv: bool = False, k_cache_dtype: Number = None, ckv_cache_dtype: Number = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """The caches, which are changed in place, and k and c as they were before they were quantised.

    ``kv`` is [B, 1, S, D] in 16 bits, ``cos`` and ``sin`` are [B, 1, S, R], ``gamma`` is [D - R]. With ``v``
    [B, 1, S, C] gamma is [D].

    cache_mode 'Norm': caches are [B, 1, L, columns], and ``index`` [B, S] says in which of the L rows a token goes.
    Other modes: caches are pages [blocks, rows, 1, columns], and index [B * S] is block * rows + row of each token.
    'BLK' in the name: index [B * pages] is where the pages of a sequence begin, each as block * rows.
    'NZ' in the name: the memory of a page is [columns / n, rows, n], where n elements have 32 bytes.
    A token whose index is negative is left out.
    """
    k, c = _k_and_c(kv, gamma, cos, sin, v, epsilon)
    parts = []
    for name, rows, cache, scale, offset, number in (
        ("k_cache", k, k_cache, k_rope_scale, k_rope_offset, k_cache_dtype),
        ("ckv_cache", c, ckv_cache, c_kv_scale, c_kv_offset, ckv_cache_dtype),
    ):
        stored = _as_stored(name, rows, cache, scale, offset, number)
        parts.append((*_slots(name, index, cache, cache_mode, rows), stored))
    for places, slots, stored in parts:  # both are checked: a call that is refused has written nothing
        used, length = slots >= 0, max(1, places.shape[1])
        at = slots[used]
        places[at // length, at % length] = stored.reshape(len(slots), *places.shape[2:])[used]
    return k_cache, ckv_cache, k.to(kv.dtype), c.to(kv.dtype)


def npu_kv_rmsnorm_rope_cache_v2(*args: Tensor, **options: Any) -> tuple[Tensor, Tensor]:
    """As `npu_kv_rmsnorm_rope_cache`, but for the caches, which are not among the results."""
    return npu_kv_rmsnorm_rope_cache(*args, **options)[2:]


def npu_kv_rmsnorm_rope_cache_v2_functional(
    kv: Tensor, gamma: Tensor, cos: Tensor, sin: Tensor, index: Tensor, k_cache: Tensor, ckv_cache: Tensor,
    **options: Any,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """k and c, and the caches in new memory."""
    keys, values = (t.clone(memory_format=torch.contiguous_format) for t in (k_cache, ckv_cache))
    k, c = npu_kv_rmsnorm_rope_cache_v2(kv, gamma, cos, sin, index, keys, values, **options)
    return k, c, keys, values


# --- parts ------------------------------------------------------------------------------------------------------------


def _k_and_c(
    kv: Tensor, gamma: Tensor, cos: Tensor, sin: Tensor, v: Tensor | None, epsilon: float
) -> tuple[Tensor, Tensor]:
    """k and c in float32."""
    for name, tensor in (("kv", kv), ("gamma", gamma), ("cos", cos), ("sin", sin)):
        check_dtype(OPERATOR, name, tensor, *HALVES)
    if kv.dim() != 4 or kv.shape[1] != 1:
        refuse(OPERATOR, "kv", f"of shape {list(kv.shape)}", "must be of shape [B, 1, S, D]")
    if cos.dim() != 4 or not cos.shape[-1] or cos.shape[-1] % 2 or cos.shape[-1] > kv.shape[-1]:
        rule = f"must be of shape {[*kv.shape[:3], 'R']}, R even and not 0"
        refuse(OPERATOR, "cos", f"of shape {list(cos.shape)}", rule)
    check_shape(OPERATOR, "cos", cos, [*kv.shape[:3], cos.shape[-1]], "kv, and columns of its own")
    check_shape(OPERATOR, "sin", sin, cos.shape, "cos")
    size = cos.shape[-1]
    check_shape(OPERATOR, "gamma", gamma, [kv.shape[-1] - (size if v is None else 0)], "the columns to norm")
    wide = kv.float()
    if v is None:
        normed, turned = wide[..., :-size], wide[..., -size:]
    else:
        check_dtype(OPERATOR, "v", v, kv.dtype)
        check_shape(OPERATOR, "v", v, [*kv.shape[:3], *v.shape[-1:]], "kv, and columns of its own")
        normed, turned = wide, wide
    normed, _ = rms_norm(OPERATOR, "kv", normed, gamma, epsilon)
    if v is not None:
        turned = normed[..., :size]
    even, odd = turned[..., ::2], turned[..., 1::2]
    k = torch.cat((even, odd), -1) * cos.float() + torch.cat((-odd, even), -1) * sin.float()
    return (k, normed) if v is None else (torch.cat((k, normed[..., size:]), -1), v.float())


def _as_stored(
    name: str, rows: Tensor, cache: Tensor, scale: Tensor | None, offset: Tensor | None, number: Number
) -> Tensor:
    """``rows`` in the dtype of the cache: as they are, or quantised."""
    to: Format | None = INT8 if cache.dtype == torch.int8 else None
    if number is not None and cache.dtype not in HALVES:
        to = format_of(OPERATOR, f"{name}_dtype", number, (INT8, HIF8, E4M3, E5M2))
    parameter = "k_rope" if name == "k_cache" else "c_kv"
    if scale is None:
        if to is not None:
            refuse(OPERATOR, f"{parameter}_scale", None, f"must be given where {name} is {cache.dtype}")
        check_dtype(OPERATOR, name, cache, *HALVES)
        return rows.to(cache.dtype)
    if to is None:
        refuse(OPERATOR, f"{parameter}_scale", "given", f"must be None where {name} is {cache.dtype}")
    assert to is not None
    check_dtype(OPERATOR, name, cache, to.dtype)
    for what, given in (("scale", scale), ("offset", offset)):
        if given is not None:
            check_dtype(OPERATOR, f"{parameter}_{what}", given, torch.float32)
            if given.numel() not in (1, rows.shape[-1]):
                rule = f"must have {rows.shape[-1]} numbers"
                refuse(OPERATOR, f"{parameter}_{what}", f"of shape {list(given.shape)}", rule)
    rows = rows * scale.reshape(-1)
    return rounded(rows if offset is None else rows + offset.reshape(-1), to)


def _slots(name: str, index: Tensor, cache: Tensor, mode: str, numbers: Tensor) -> tuple[Tensor, Tensor]:
    """The cache as [blocks, rows, ...], and the slot of each token, block * rows + row."""
    batches, _, tokens, columns = numbers.shape
    check_integer(OPERATOR, "index", index)
    check_choice(OPERATOR, "cache_mode", mode, *MODES)
    whole = [batches, 1, *cache.shape[2:3], columns] if mode == "Norm" else [*cache.shape[:2], 1, columns]
    check_shape(OPERATOR, name, cache, whole, "cache_mode, and the columns that it gets")
    if not cache.is_contiguous():
        refuse(OPERATOR, name, "not contiguous", "must be contiguous")
    length = cache.shape[2] if mode == "Norm" else cache.shape[1]
    pages = -(-tokens // max(1, length))
    each = pages if "BLK" in mode else tokens
    shape = [batches, tokens] if mode == "Norm" else [batches * each]
    check_shape(OPERATOR, "index", index, shape, "batches and tokens")
    end = length if mode == "Norm" else cache.shape[0] * length
    check_within(OPERATOR, "index", index, end, f"must be below {end}", -(2**62))
    given, token = index.long().view(batches, each), torch.arange(tokens)
    if mode == "Norm":
        slots = torch.where(given < 0, -1, given + length * torch.arange(batches).unsqueeze(1))
    elif "BLK" in mode:
        begin = given.repeat_interleave(length, 1)[:, :tokens]
        slots = torch.where(begin < 0, -1, begin // max(1, length) * length + token % max(1, length))
    else:
        slots = given
    if not mode.endswith("NZ"):
        return cache.view(cache.shape[0], length, columns), slots.reshape(-1)
    width = 32 // cache.element_size()
    if columns % width:
        refuse(OPERATOR, name, f"of shape {list(cache.shape)}", f"must have {width} * n columns with {mode!r}")
    return cache.view(cache.shape[0], columns // width, length, width).transpose(1, 2), slots.reshape(-1)
