"""npu_mla_prolog and its versions 2 and 3: what multi-head latent attention (MLA) has before its attention.

    c = qc_qr_scale * norm(x @ weight_dq)            [q, r] of each head = c @ weight_uq_qr
    query = q @ weight_uk                            query_rope = rope(r)
    [d, k] = x @ weight_dkv_kr                       kv_cache gets kc_scale * norm(d), kr_cache gets rope(k)
    norm(x) = x / sqrt(mean(x^2) + epsilon) * gamma
    rope(x) = [even, odd] * cos + [-odd, even] * sin, of the even and the odd columns of x

| weight_quant_mode | x, weight_dq, weight_dkv_kr | weight_uq_qr, and c before it is multiplied |
| --- | --- | --- |
| 0 | 16 bits | 16 bits |
| 1 | 16 bits | int8 |
| 2, 4, 5 | int8, float8_e4m3fn, hifloat8, with a scale for each row, or column of a weight | the same |
| 3 | float8_e4m3fn, with the scales of MX | the same |

c times smooth_scales_cq is quantised as by npu_dynamic_quant, or npu_dynamic_mx_quant.

| kv_cache_quant_mode | kv_cache | kr_cache |
| --- | --- | --- |
| 1 | times quant_scale_ckv, rounded to the weights' format; query, too, with a scale for each head | 16 bits |
| 2 | times quant_scale_ckv, rounded to int8 | times quant_scale_ckr, rounded to int8 |
| 3 | codes, of which tile_size columns share a scale | not used |

With kv_cache_quant_mode 3 each row of kv_cache holds one after another the codes, rope(k) in bfloat16, and the scales.
With kv_cache_quant_mode 1 query_rope is times quant_scale_ckv, divided by query's scale: one factor is right for both.

Products and norms are in float32, and rounded once. Versions 1 and 2 have the modes that their dtypes say.
Documents: torch_npu.npu_mla_prolog, npu_mla_prolog_v2, npu_mla_prolog_v3; op-plugin's test_mla_prolog_v3.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from descend.npu.composed.arithmetic import check_choice, check_dtype, check_integer, check_shape, check_within, wide
from descend.npu.composed.layers.fused_norms import rms_norm
from descend.npu.composed.quantised.formats import E4M3, HIF8, INT8, rounded, scaled_to_fit
from descend.npu.composed.quantised.mx_quant import npu_dynamic_mx_quant
from descend.npu.composed.quantised.quant_matmul import scaled
from descend.npu.composed.quantised.scaled_products import factor
from descend.npu.composed.refusal import refuse

CACHE_MODES = ("PA_BSND", "PA_NZ", "PA_BLK_BSND", "PA_BLK_NZ", "BSND", "TND")
MX = 3
KV_MODES = {0: (0,), 1: (0, 2, 3), 2: (0, 1, 3), 3: (0, 1, 3), 4: (0, 1, 3), 5: (0, 1, 3)}
"""The kv_cache_quant_mode that go with each weight_quant_mode."""
_FORMATS = {1: INT8, 2: INT8, MX: E4M3, 4: E4M3, 5: HIF8}
_HIF8_NUMBER = 290
_ANY_NEGATIVE = -(2**62)
"""The least index that is taken: a negative one leaves its token out."""
Results = tuple[Tensor, Tensor, Tensor | None, Tensor | None, Tensor | None]


def npu_mla_prolog(
    token_x: Tensor, weight_dq: Tensor, weight_uq_qr: Tensor, weight_uk: Tensor, weight_dkv_kr: Tensor,
    rmsnorm_gamma_cq: Tensor, rmsnorm_gamma_ckv: Tensor, rope_sin: Tensor, rope_cos: Tensor, cache_index: Tensor,
    kv_cache: Tensor, kr_cache: Tensor, **options: Any,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """query, query_rope and the caches, as `npu_mla_prolog_v2` gives them."""
    weights = (weight_dq, weight_uq_qr, weight_uk, weight_dkv_kr, rmsnorm_gamma_cq, rmsnorm_gamma_ckv)
    operator, rope = "npu_mla_prolog", (rope_sin, rope_cos)
    if token_x.dtype == torch.int8:
        refuse(operator, "token_x", token_x.dtype, "must be bfloat16")
    return _earlier(operator, token_x, weights, rope, cache_index, kv_cache, kr_cache, options)[:4]


def npu_mla_prolog_v2(
    token_x: Tensor, weight_dq: Tensor, weight_uq_qr: Tensor, weight_uk: Tensor, weight_dkv_kr: Tensor,
    rmsnorm_gamma_cq: Tensor, rmsnorm_gamma_ckv: Tensor, rope_sin: Tensor, rope_cos: Tensor, cache_index: Tensor,
    kv_cache: Tensor, kr_cache: Tensor, **options: Any,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """query, query_rope, the caches, which are changed in place, and the scales of query, else a 0.

    The modes of `npu_mla_prolog_v3`: weights are quantised where they are int8, and caches where quant_scale_ckv is
    given. Of a quant_scale_ckv [1, C] for a quantised token_x the first number counts.
    """
    weights = (weight_dq, weight_uq_qr, weight_uk, weight_dkv_kr, rmsnorm_gamma_cq, rmsnorm_gamma_ckv)
    rope = (rope_sin, rope_cos)
    return _earlier("npu_mla_prolog_v2", token_x, weights, rope, cache_index, kv_cache, kr_cache, options)


def npu_mla_prolog_v3(
    token_x: Tensor, weight_dq: Tensor, weight_uq_qr: Tensor, weight_uk: Tensor, weight_dkv_kr: Tensor,
    rmsnorm_gamma_cq: Tensor, rmsnorm_gamma_ckv: Tensor, rope_sin: Tensor, rope_cos: Tensor, kv_cache: Tensor,
    kr_cache: Tensor, **options: Any,
) -> Results:  # fmt: skip
    """query [T, N, C] and query_rope [T, N, R], query's scales [T, N, 1], c with query_norm_flag [T, Q], c's scales.

    ``token_x`` is [T, H] or [B, S, H], and so are query, query_rope and c. ``weight_dq`` is [H, Q], ``weight_uq_qr``
    [Q, N * (D + R)], ``weight_uk`` [N, D, C], ``weight_dkv_kr`` [H, C + R], ``rope_sin`` and ``rope_cos`` [T, R].

    The caches [blocks, rows, 1, columns] are changed in place. cache_index says where each token goes: block * rows +
    row; with 'BLK' in cache_mode it has the block of each page of a sequence. 'NZ': the memory of a block is
    [columns / n, rows, n], where n elements have 32 bytes. With 'BSND' and 'TND' the caches have a row for each token,
    and no cache_index. A token whose index is negative is left out.
    """
    operator = "npu_mla_prolog_v3"
    weights = (weight_dq, weight_uq_qr, weight_uk, weight_dkv_kr, rmsnorm_gamma_cq, rmsnorm_gamma_ckv)
    call = _Call.of(operator, token_x, weights, (rope_sin, rope_cos), kv_cache, kr_cache, options)
    return call.results()


def npu_mla_prolog_v3_functional(
    token_x: Tensor, weight_dq: Tensor, weight_uq_qr: Tensor, weight_uk: Tensor, weight_dkv_kr: Tensor,
    rmsnorm_gamma_cq: Tensor, rmsnorm_gamma_ckv: Tensor, rope_sin: Tensor, rope_cos: Tensor, kv_cache: Tensor,
    kr_cache: Tensor, **options: Any,
) -> tuple[Tensor | None, ...]:  # fmt: skip
    """The results of `npu_mla_prolog_v3`, and the caches in new memory."""
    caches = [cache.clone(memory_format=torch.contiguous_format) for cache in (kv_cache, kr_cache)]
    given = (token_x, weight_dq, weight_uq_qr, weight_uk, weight_dkv_kr, rmsnorm_gamma_cq, rmsnorm_gamma_ckv)
    return (*npu_mla_prolog_v3(*given, rope_sin, rope_cos, *caches, **options), *caches)


def _earlier(
    operator: str, token_x: Tensor, weights: tuple[Tensor, ...], rope: tuple[Tensor, Tensor], cache_index: Tensor,
    kv_cache: Tensor, kr_cache: Tensor, options: dict[str, Any],
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """As version 2."""
    if options.get("cache_mode", CACHE_MODES[0]) not in CACHE_MODES[:2]:
        refuse(operator, "cache_mode", repr(options["cache_mode"]), "must be 'PA_BSND' or 'PA_NZ'")
    mode = 2 if token_x.dtype == torch.int8 else 1 if weights[1].dtype == torch.int8 else 0
    kv_mode = 0 if options.get("quant_scale_ckv") is None else 1 if mode == 2 else 2
    if kv_mode == 1:
        options = {**options, "quant_scale_ckv": options["quant_scale_ckv"].reshape(-1)[:1]}
    modes = {"weight_quant_mode": mode, "kv_cache_quant_mode": kv_mode, "query_quant_mode": int(kv_mode == 1)}
    given = {**options, **modes, "cache_index": cache_index}
    query, query_rope, scale, *_ = _Call.of(operator, token_x, weights, rope, kv_cache, kr_cache, given).results()
    return query, query_rope, kv_cache, kr_cache, torch.zeros(1) if scale is None else scale


# --- the call ---------------------------------------------------------------------------------------------------------


@dataclass
class _Call:
    operator: str
    x: Tensor
    """[T, H]"""
    tokens: tuple[int, ...]
    """(T,) or (B, S)."""
    weights: tuple[Tensor, ...]
    rope: tuple[Tensor, ...]
    kv_cache: Tensor
    kr_cache: Tensor
    options: dict[str, Any]
    mode: int
    kv_mode: int
    heads: int
    size: int
    """D, of a head of q."""
    columns: int
    """C, of query and of the cache."""

    @staticmethod
    def of(
        operator: str, token_x: Tensor, weights: tuple[Tensor, ...], rope: tuple[Tensor, Tensor], kv_cache: Tensor,
        kr_cache: Tensor, options: dict[str, Any],
    ) -> _Call:  # fmt: skip
        """Checks shapes, dtypes and modes."""
        dq, uq_qr, uk, dkv_kr, gamma_cq, gamma_ckv = weights
        if token_x.dim() not in (2, 3):
            refuse(operator, "token_x", f"of shape {list(token_x.shape)}", "must have 2 or 3 dimensions")
        if uk.dim() != 3:
            refuse(operator, "weight_uk", f"of shape {list(uk.shape)}", "must have 3 dimensions")
        tokens, hidden = token_x.shape[:-1], token_x.shape[-1]
        sin, cos = rope
        if sin.dim() != token_x.dim() or not sin.shape[-1] or sin.shape[-1] % 2:
            rule = f"must be of shape {[*tokens, 'R']}, R even and not 0"
            refuse(operator, "rope_sin", f"of shape {list(sin.shape)}", rule)
        turned = sin.shape[-1]
        heads, size, columns = uk.shape
        check_shape(operator, "rope_sin", sin, [*tokens, turned], "token_x, and columns of its own")
        check_shape(operator, "rope_cos", cos, sin.shape, "rope_sin")
        if dq.dim() != 2:
            refuse(operator, "weight_dq", f"of shape {list(dq.shape)}", "must have 2 dimensions")
        for name, tensor, shape in (
            ("weight_dq", dq, [hidden, dq.shape[1]]),
            ("weight_uq_qr", uq_qr, [dq.shape[1], heads * (size + turned)]),
            ("weight_dkv_kr", dkv_kr, [hidden, columns + turned]),
            ("rmsnorm_gamma_cq", gamma_cq, [dq.shape[1]]),
            ("rmsnorm_gamma_ckv", gamma_ckv, [columns]),
        ):
            check_shape(operator, name, tensor, shape, "the other weights, token_x and rope_sin")
        for name, tensor in (
            ("weight_uk", uk), ("rmsnorm_gamma_cq", gamma_cq), ("rmsnorm_gamma_ckv", gamma_ckv), ("rope_sin", sin),
            ("rope_cos", cos),
        ):  # fmt: skip
            check_dtype(operator, name, tensor, torch.bfloat16)
        mode, kv_mode = options.get("weight_quant_mode", 0), options.get("kv_cache_quant_mode", 0)
        check_choice(operator, "weight_quant_mode", mode, *KV_MODES)
        check_choice(operator, "kv_cache_quant_mode", kv_mode, *KV_MODES[mode])
        check_choice(operator, "query_quant_mode", options.get("query_quant_mode", 0), int(kv_mode == 1))
        for name in ("ckvkr_repo_mode", "quant_scale_repo_mode"):
            check_choice(operator, name, options.get(name, 0), int(kv_mode == 3))
        call = _Call(
            operator, token_x.reshape(-1, hidden), tuple(tokens), weights, tuple(t.reshape(-1, turned) for t in rope),
            kv_cache, kr_cache, options, mode, kv_mode, heads, size, columns,
        )  # fmt: skip
        call._check_scales()
        return call

    def _check_scales(self) -> None:
        """Refuses scales that are missing, and those that have no effect."""
        quantised, later = self.mode >= 2, self.mode >= 1
        needed = {
            **dict.fromkeys(("dequant_scale_x", "dequant_scale_w_dq", "dequant_scale_w_dkv_kr"), quantised),
            "dequant_scale_w_uq_qr": later, "quant_scale_ckv": self.kv_mode in (1, 2),
            "quant_scale_ckr": self.kv_mode == 2,
        }  # fmt: skip
        modes = f"weight_quant_mode {self.mode} and kv_cache_quant_mode {self.kv_mode}"
        for name, need in needed.items():
            given = self.options.get(name)
            if need and given is None:
                refuse(self.operator, name, None, f"must be given with {modes}")
            if not need and given is not None:
                refuse(self.operator, name, "given", f"must be None with {modes}")
        smooth = self.options.get("smooth_scales_cq")
        if smooth is not None and self.mode in (0, MX):
            refuse(self.operator, "smooth_scales_cq", "given", f"must be None with {modes}")
        counts = {"quant_scale_ckr": self.rope[0].shape[1], "smooth_scales_cq": self.weights[0].shape[1]}
        counts["quant_scale_ckv"] = self.columns if self.kv_mode == 2 else 1
        for name, count in counts.items():
            tensor = self.options.get(name)
            if tensor is None:
                continue
            check_dtype(self.operator, name, tensor, torch.float32)
            if tensor.numel() != count:
                refuse(self.operator, name, f"of shape {list(tensor.shape)}", f"must have {count} numbers")
        alpha = self.options.get("k_nope_clip_alpha")
        if alpha is not None and not bool((alpha == 1).all()):
            refuse(self.operator, "k_nope_clip_alpha", alpha.tolist(), "must be None or 1: clipping is not served")

    def results(self) -> Results:
        """Computes all, and writes the caches when nothing can be refused any more."""
        dq, uq_qr, uk, dkv_kr, gamma_cq, gamma_ckv = self.weights
        c = self._normed(self._product("weight_dq", dq), gamma_cq, "rmsnorm_epsilon_cq", "qc_qr_scale")
        stored, scale, heads = self._up(c, uq_qr)
        heads = heads.view(-1, self.heads, self.size + self.rope[0].shape[1])
        query = (heads[..., : self.size].transpose(0, 1) @ wide(uk)).transpose(0, 1)
        query_rope = self._turned(heads[..., self.size :], per_head=True)
        below = self._product("weight_dkv_kr", dkv_kr)
        kept = self._normed(below[:, : self.columns], gamma_ckv, "rmsnorm_epsilon_ckv", "kc_scale")
        key_rope = self._turned(below[:, self.columns :], per_head=False)
        writes = self._writes(kept, key_rope)
        query_scale = None
        if self.kv_mode == 1:
            codes, query_scale = scaled_to_fit(query, _FORMATS[self.mode])
            query_rope = query_rope * (self.options["quant_scale_ckv"].reshape(()) / query_scale)
            query = codes
        else:
            query = query.bfloat16()
        for places, slots, rows in writes:
            used, length = slots >= 0, max(1, places.shape[1])
            at = slots[used]
            places[at // length, at % length] = rows[used].view(-1, *places.shape[2:])
        shape = (*self.tokens, self.heads)
        query = query.reshape(*shape, self.columns).contiguous()
        query_rope = query_rope.reshape(*shape, query_rope.shape[-1]).bfloat16()
        if not self.options.get("query_norm_flag", False):
            return query, query_rope, query_scale, None, None
        return query, query_rope, query_scale, stored.reshape(*self.tokens, stored.shape[-1]), scale

    def _product(self, name: str, weight: Tensor) -> Tensor:
        """x times a weight, in float32."""
        if self.mode < 2:
            for what, tensor in (("token_x", self.x), (name, weight)):
                check_dtype(self.operator, what, tensor, torch.bfloat16)
            return self.x.float() @ weight.float()
        return self._quantised("token_x", self.x, self.options["dequant_scale_x"], name, weight)

    def _quantised(self, name: str, left: Tensor, left_scale: Tensor, weight_name: str, weight: Tensor) -> Tensor:
        operator, held = self.operator, _FORMATS[self.mode]
        number = _HIF8_NUMBER if held is HIF8 else None
        both = factor(operator, name, left, number), factor(operator, weight_name, weight, number)
        for what, each in zip((name, weight_name), both, strict=True):
            if each.held is not held:
                rule = f"must be {held.name} with weight_quant_mode {self.mode}"
                refuse(operator, what, each.held.name, rule)
        scale = self.options[f"dequant_scale_{weight_name.replace('weight_', 'w_')}"]
        if self.mode != MX:
            return scaled(operator, *both, scale.reshape(-1), left_scale.reshape(-1), None, torch.float32, False)
        rows, columns = weight.shape
        for what, tensor, count in ((name, left_scale, len(left)), (weight_name, scale, columns)):
            if rows % 64 or tensor.numel() != count * rows // 32:
                rule = f"must be of shape [{count}, {rows} / 32], and {rows} a multiple of 64"
                refuse(operator, f"the scale of {what}", f"of shape {list(tensor.shape)}", rule)
        pairs = left_scale.reshape(len(left), rows // 64, 2), scale.reshape(columns, rows // 64, 2).transpose(0, 1)
        return scaled(operator, *both, pairs[1], pairs[0], None, torch.float32, True)

    def _up(self, c: Tensor, weight: Tensor) -> tuple[Tensor, Tensor | None, Tensor]:
        """c as query_norm has it, its scales, and c @ weight_uq_qr in float32."""
        if self.mode == 0:
            check_dtype(self.operator, "weight_uq_qr", weight, torch.bfloat16)
            return c.bfloat16(), None, c @ weight.float()
        if self.mode == MX:
            codes, scale = npu_dynamic_mx_quant(c.bfloat16(), dst_type=torch.float8_e4m3fn)
            scale = scale.flatten(1)
            return codes, scale.view(torch.float8_e8m0fnu), self._quantised("c", codes, scale, "weight_uq_qr", weight)
        smooth = self.options.get("smooth_scales_cq")
        codes, scale = scaled_to_fit(c if smooth is None else c * smooth.reshape(-1), _FORMATS[self.mode])
        return codes, scale, self._quantised("c", codes, scale, "weight_uq_qr", weight)

    def _normed(self, x: Tensor, gamma: Tensor, epsilon: str, factor_name: str) -> Tensor:
        normed, _ = rms_norm(self.operator, "token_x", x, gamma, self.options.get(epsilon, 1e-5))
        return normed.mul_(self.options.get(factor_name, 1.0))

    def _turned(self, x: Tensor, *, per_head: bool) -> Tensor:
        sin, cos = (t.float().unsqueeze(1) if per_head else t.float() for t in self.rope)
        even, odd = x[..., ::2], x[..., 1::2]
        return torch.cat((even, odd), -1) * cos + torch.cat((-odd, even), -1) * sin

    # --- the caches ---------------------------------------------------------------------------------------------------

    def _writes(self, kept: Tensor, key_rope: Tensor) -> list[tuple[Tensor, Tensor, Tensor]]:
        """For each cache its rows [blocks, rows, ...], the slot of each token, and what goes there."""
        kv, kr = self.kv_cache, self.kr_cache
        if self.kv_mode == 3:
            return [self._slots("kv_cache", kv, self._in_tiles(kept, key_rope))]
        rows, turned, options = kept, key_rope, self.options
        if self.kv_mode:
            to = _FORMATS[self.mode]
            check_dtype(self.operator, "kv_cache", kv, to.dtype)
            rows = rounded(kept * options["quant_scale_ckv"].reshape(-1), to)
        else:
            check_dtype(self.operator, "kv_cache", kv, torch.bfloat16)
        if self.kv_mode == 2:
            check_dtype(self.operator, "kr_cache", kr, torch.int8)
            turned = rounded(key_rope * options["quant_scale_ckr"].reshape(-1), INT8)
        else:
            check_dtype(self.operator, "kr_cache", kr, torch.bfloat16)
        return [
            self._slots("kv_cache", kv, rows.to(kv.dtype)),
            self._slots("kr_cache", kr, turned.to(kr.dtype)),
        ]

    def _in_tiles(self, kept: Tensor, key_rope: Tensor) -> Tensor:
        tile, to = self.options.get("tile_size", 128), _FORMATS[self.mode]
        check_dtype(self.operator, "kv_cache", self.kv_cache, to.dtype)
        if tile < 1 or self.columns % tile:
            refuse(self.operator, "tile_size", tile, f"must divide the {self.columns} columns of weight_uk")
        codes, scales = scaled_to_fit(kept.unflatten(1, (self.columns // tile, tile)), to)
        parts = (codes.flatten(1), key_rope.bfloat16(), scales.flatten(1))
        return torch.cat([part.contiguous().view(torch.uint8) for part in parts], 1).view(to.dtype)

    def _slots(self, name: str, cache: Tensor, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        operator, index = self.operator, self.options.get("cache_index")
        mode = self.options.get("cache_mode", CACHE_MODES[0])
        check_choice(operator, "cache_mode", mode, *CACHE_MODES)
        columns = rows.shape[1]
        if not mode.startswith("PA"):
            if len(self.tokens) != len(mode) - 2:
                rule = f"must fit token_x, which has {len(self.tokens) + 1} dimensions"
                refuse(operator, "cache_mode", repr(mode), rule)
            check_shape(operator, name, cache, [*self.tokens, 1, columns], "token_x, 1, and the columns that it gets")
            if index is not None:
                refuse(operator, "cache_index", "given", f"must be None with cache_mode {mode!r}")
            places = cache if mode == "BSND" else cache.unsqueeze(0)
            return places.squeeze(2), torch.arange(len(rows)), rows
        if index is None:
            refuse(operator, "cache_index", None, f"must be given with cache_mode {mode!r}")
        check_integer(operator, "cache_index", index)
        if cache.dim() != 4:
            refuse(operator, name, f"of shape {list(cache.shape)}", "must have 4 dimensions")
        blocks, length = cache.shape[:2]
        check_shape(operator, name, cache, [blocks, length, 1, columns], "pages, 1, and the columns that it gets")
        if not cache.numel():
            slots = torch.full((len(rows),), -1)  # as the document has it, an empty cache is not written
        elif "BLK" in mode:
            slots = self._slots_of_pages(index, blocks, length)
        else:
            slots, end = index.long().flatten(), blocks * length
            if slots.numel() != len(rows):
                refuse(operator, "cache_index", f"of shape {list(index.shape)}", f"must have {len(rows)} numbers")
            check_within(operator, "cache_index", slots, end, f"must be below {end}", _ANY_NEGATIVE)
        if not mode.endswith("NZ"):
            return cache.squeeze(2), slots, rows
        width = 32 // cache.element_size()
        if columns % width or not cache.is_contiguous():
            got = f"of shape {list(cache.shape)} and strides {list(cache.stride())}"
            refuse(operator, name, got, f"must have {width} * n columns, and be contiguous, with {mode!r}")
        return cache.view(blocks, columns // width, length, width).transpose(1, 2), slots, rows

    def _slots_of_pages(self, index: Tensor, blocks: int, length: int) -> Tensor:
        """The slot of each token, of the blocks of all sequences' pages."""
        operator, size = self.operator, max(1, length)
        ends = self.options.get("actual_seq_len")
        if len(self.tokens) == 2:
            counts = torch.full((self.tokens[0],), self.tokens[1])
        else:
            if ends is None:
                refuse(operator, "actual_seq_len", None, "must be given where token_x has 2 dimensions")
            check_integer(operator, "actual_seq_len", ends)
            counts = ends.long().diff(prepend=ends.new_zeros(1).long())
            if bool((counts < 0).any()) or int(counts.sum()) != len(self.x):
                refuse(operator, "actual_seq_len", ends.tolist(), f"must not fall, and end with {len(self.x)}")
        pages = -(-counts // size)
        total = int(pages.sum())
        if index.numel() != total:
            rule = f"must have {total} numbers, one for each page"
            refuse(operator, "cache_index", f"of shape {list(index.shape)}", rule)
        check_within(operator, "cache_index", index, blocks, f"must be below {blocks}", _ANY_NEGATIVE)
        sequence = torch.arange(len(counts)).repeat_interleave(counts)
        place = torch.arange(len(sequence)) - (counts.cumsum(0) - counts)[sequence]
        block = index.long().flatten()[(pages.cumsum(0) - pages)[sequence] + place // size]
        return torch.where(block < 0, -1, block * size + place % size)
