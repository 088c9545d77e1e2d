"""npu_mla_prolog and its versions: against float64, the caches in all their forms, refusals."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from descend.npu.composed.attention import mla_prolog  # noqa: E402
from descend.npu.composed.quantised import quantize  # noqa: E402
from quantised_numbers import DST_TYPES  # noqa: E402
from test_npu_composed import near, refused  # noqa: E402
from test_npu_quantised import HELD, numbers_of  # noqa: E402
from test_npu_quantised_products import mx, scales_of  # noqa: E402

Tensor = Any
HIDDEN, Q, HEADS, D, C, R = 64, 128, 3, 8, 32, 32
BLOCKS, LENGTH, TILE = 4, 3, 16
FORMATS = {1: "int8", 2: "int8", 3: "e4m3", 4: "e4m3", 5: "hif8"}
TOKENS = [(6,), (2, 3)]
SLOTS = [7, 0, 11, -1, 4, 3]
"""Where each of the 6 tokens goes; one is left out."""
PAGES, ENDS = [2, -1, 3], [2, 6]
"""The blocks of two sequences of 2 and 4 tokens."""


def quantised(weight: Tensor, mode: int) -> tuple[Tensor, Tensor | None, Tensor]:
    """A weight in the format of a mode, its scales, and what it stands for in float64."""
    if mode == 0:
        return weight, None, weight.double()
    if mode == 3:
        codes, scale, wide = mx(weight.t().contiguous(), "e4m3", -1)
        return codes.t(), scale.flatten(1).view(torch.float8_e8m0fnu), wide.T
    codes, scale = quantize.npu_dynamic_quant(weight.t().contiguous(), dst_type=DST_TYPES[FORMATS[mode]])
    return codes.t(), scale.view(1, -1), numbers_of(codes, FORMATS[mode]).T * scale.double()


def problem(mode: int, kv_mode: int, tokens: tuple[int, ...]) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The arguments but for the caches, and what weights and tokens stand for in float64."""
    x = torch.randn(6, HIDDEN).bfloat16()
    wide: dict[str, Tensor] = {}
    given: dict[str, Any] = {}
    for name, shape, of in (
        ("weight_dq", (HIDDEN, Q), mode if mode > 1 else 0),
        ("weight_uq_qr", (Q, HEADS * (D + R)), mode),
        ("weight_dkv_kr", (HIDDEN, C + R), mode if mode > 1 else 0),
    ):
        given[name], scale, wide[name] = quantised((torch.randn(shape) / 8).bfloat16(), of)
        if scale is not None:
            given[f"dequant_scale_{name.replace('weight_', 'w_')}"] = scale
    given["weight_uk"] = (torch.randn(HEADS, D, C) / 3).bfloat16()
    if mode == 3:
        given["token_x"], scale, wide["x"] = mx(x, "e4m3", -1)
        given["dequant_scale_x"] = scale.flatten(1).view(torch.float8_e8m0fnu)
    elif mode > 1:
        given["token_x"], scale = quantize.npu_dynamic_quant(x, dst_type=DST_TYPES[FORMATS[mode]])
        wide["x"] = numbers_of(given["token_x"], FORMATS[mode]) * scale.double().unsqueeze(1)
        given["dequant_scale_x"] = scale.unsqueeze(1)
    else:
        given["token_x"], wide["x"] = x, x.double()
    given["token_x"] = given["token_x"].reshape(*tokens, HIDDEN)
    for name, size in (("rmsnorm_gamma_cq", Q), ("rmsnorm_gamma_ckv", C)):
        given[name] = (torch.rand(size) + 0.5).bfloat16()
    for name in ("rope_sin", "rope_cos"):
        given[name] = torch.randn(*tokens, R).bfloat16()
    given |= {"rmsnorm_epsilon_cq": 0.25, "rmsnorm_epsilon_ckv": 0.125, "qc_qr_scale": 0.75, "kc_scale": 1.5}
    given |= {"weight_quant_mode": mode, "kv_cache_quant_mode": kv_mode, "query_quant_mode": int(kv_mode == 1)}
    if mode == 5:
        given |= dict.fromkeys(("token_x_dtype", "weight_dq_dtype", "weight_uq_qr_dtype", "weight_dkv_kr_dtype"), 290)
    if mode in (1, 2, 4):
        given["smooth_scales_cq"] = torch.rand(1, Q) + 0.5
    if kv_mode in (1, 2):
        given["quant_scale_ckv"] = torch.rand(1 if kv_mode == 1 else (1, C)) * 20 + 10
    if kv_mode == 2:
        given["quant_scale_ckr"] = torch.rand(1, R) * 20 + 10
    if kv_mode == 3:
        given |= {"ckvkr_repo_mode": 1, "quant_scale_repo_mode": 1, "tile_size": TILE}
        given["k_nope_clip_alpha"] = torch.ones(1)
    return given, wide


def norm(x: Tensor, gamma: Tensor, epsilon: float) -> Tensor:
    return x / (x.square().mean(-1, keepdim=True) + epsilon).sqrt() * gamma.double()


def rope(x: Tensor, given: dict[str, Any], heads: bool) -> Tensor:
    sin, cos = (given[name].double().view(6, *([1] * heads), R) for name in ("rope_sin", "rope_cos"))
    even, odd = x[..., ::2], x[..., 1::2]
    return torch.cat((even * cos[..., : R // 2] - odd * sin[..., : R // 2],
                      odd * cos[..., R // 2 :] + even * sin[..., R // 2 :]), -1)  # fmt: skip


def caches(mode: int, kv_mode: int, form: str, tokens: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    columns = C + 2 * R + 4 * C // TILE if kv_mode == 3 else C
    dtype = HELD[FORMATS[mode]].dtype if kv_mode else torch.bfloat16
    rope_dtype = torch.int8 if kv_mode == 2 else torch.bfloat16
    shape = (BLOCKS, LENGTH, 1) if form.startswith("PA") else (*tokens, 1)
    kv = torch.randint(0, 50, (*shape, columns)).to(torch.uint8).view(torch.uint8)
    kv = kv.to(dtype) if dtype in (torch.int8, torch.bfloat16) else kv.view(dtype)
    return kv, torch.randint(-9, 9, (*shape, R if kv_mode != 3 else 0)).to(rope_dtype)


def rows_of(cache: Tensor, form: str) -> Tensor:
    """The rows of a cache [slots, columns]."""
    if form.endswith("NZ"):
        width = 32 // cache.element_size()
        return cache.view(BLOCKS, -1, LENGTH, width).transpose(1, 2).reshape(BLOCKS * LENGTH, -1)
    return cache.flatten(0, -2)


def slots_of(form: str) -> list[int]:
    """The slot of each token."""
    if not form.startswith("PA"):
        return list(range(6))
    if "BLK" not in form:
        return SLOTS
    # The second sequence has pages of 3 and 1 tokens, of which the first is nowhere.
    return [6, 7, -1, -1, -1, 9]


def with_places(given: dict[str, Any], form: str, tokens: tuple[int, ...]) -> dict[str, Any]:
    if not form.startswith("PA"):
        return {**given, "cache_mode": form}
    if "BLK" not in form:
        return {**given, "cache_mode": form, "cache_index": torch.tensor(SLOTS).view(tokens)}
    return {**given, "cache_mode": form, "cache_index": torch.tensor(PAGES), "actual_seq_len": torch.tensor(ENDS).int()}


CASES = [(mode, kv_mode) for mode, kv_modes in mla_prolog.KV_MODES.items() for kv_mode in kv_modes]


@pytest.mark.parametrize("tokens", TOKENS, ids=str)
@pytest.mark.parametrize("form", mla_prolog.CACHE_MODES)
@pytest.mark.parametrize(("mode", "kv_mode"), CASES)
def test_against_float64(mode: int, kv_mode: int, form: str, tokens: tuple[int, ...]) -> None:
    if form == ("BSND" if len(tokens) == 1 else "TND") or ("BLK" in form and len(tokens) == 2):
        return
    if form.endswith("NZ") and kv_mode == 3:
        return
    given, wide = problem(mode, kv_mode, tokens)
    kv, kr = caches(mode, kv_mode, form, tokens)
    before = kv.clone(), kr.clone()
    call = {**with_places(given, form, tokens), "query_norm_flag": True}
    *results, new_kv, new_kr = mla_prolog.npu_mla_prolog_v3_functional(kv_cache=kv, kr_cache=kr, **call)
    query, query_rope, query_scale, stored, scale = results
    for cache, old in zip((kv, kr), before, strict=True):
        assert torch.equal(cache.view(torch.uint8), old.view(torch.uint8))

    c = norm(wide["x"] @ wide["weight_dq"], given["rmsnorm_gamma_cq"], 0.25) * 0.75
    assert stored.shape == (*tokens, Q)
    if mode == 0:
        near(stored, c.view(stored.shape))
        assert scale is None
    else:
        codes = numbers_of(stored.view(6, Q), FORMATS[mode])
        smoothed = c * given.get("smooth_scales_cq", torch.ones(1)).double()
        by = scales_of(scale.view(torch.uint8).view(6, -1, 2), 1, Q) if mode == 3 else scale.double()
        assert scale.shape == ((6, Q // 32) if mode == 3 else (6, 1))
        # Each number is the nearest one, but for middles of two, as float32 and 16 bits have them. MX is cut off.
        smoothed = smoothed.clamp(-by * HELD[FORMATS[mode]].largest, by * HELD[FORMATS[mode]].largest)
        errors = {"int8": 0.501 * by, "e4m3": smoothed.abs() / 15.9 + by / 512, "hif8": smoothed.abs() / 3.9}
        error = errors[FORMATS[mode]]
        assert ((codes * by - smoothed).abs() <= error + 1e-6).all()
        c = codes * by
    heads = (c @ wide["weight_uq_qr"]).view(6, HEADS, D + R)
    nope = torch.einsum("tnd,ndc->tnc", heads[..., :D], given["weight_uk"].double())
    turned = rope(heads[..., D:], given, True)
    if kv_mode == 1:
        assert query_scale.shape == (6, HEADS, 1)
        near(query_scale, nope.abs().amax(-1, keepdim=True) / HELD[FORMATS[mode]].largest)
        codes = numbers_of(query.view(6, HEADS, C), FORMATS[mode])
        unit = {"int8": 0.501 * query_scale.double(), "e4m3": nope.abs() / 15.9 + query_scale.double() / 512}
        error = unit.get(FORMATS[mode], nope.abs() / 3.9)
        assert ((codes * query_scale.double() - nope).abs() <= error + 1e-6).all()
        turned = turned * given["quant_scale_ckv"].double() / query_scale.double()
    else:
        assert query_scale is None
        near(query, nope.view(*tokens, HEADS, C))
    assert query.shape == (*tokens, HEADS, C)
    near(query_rope, turned.view(*tokens, HEADS, R))

    below = wide["x"] @ wide["weight_dkv_kr"]
    kept = norm(below[:, :C], given["rmsnorm_gamma_ckv"], 0.125) * 1.5
    key_rope = rope(below[:, C:], given, False)
    slots = slots_of(form)
    got, got_rope = rows_of(new_kv, form), rows_of(new_kr, form)
    old, old_rope = rows_of(before[0], form), rows_of(before[1], form)
    for slot in set(range(len(got))) - set(slots):
        assert torch.equal(got[slot].view(torch.uint8), old[slot].view(torch.uint8))
        assert torch.equal(got_rope[slot], old_rope[slot])
    used = [token for token, slot in enumerate(slots) if slot >= 0]
    at = [slots[token] for token in used]
    check_caches(mode, kv_mode, given, got[at], got_rope[at], kept[used], key_rope[used])

    call["query_norm_flag"] = False
    assert mla_prolog.npu_mla_prolog_v3(kv_cache=kv, kr_cache=kr, **call)[3:] == (None, None)
    assert torch.equal(kv.view(torch.uint8), new_kv.view(torch.uint8))
    assert torch.equal(kr.view(torch.uint8), new_kr.view(torch.uint8))


def check_caches(
    mode: int, kv_mode: int, given: dict[str, Any], got: Tensor, got_rope: Tensor, kept: Tensor, key_rope: Tensor
) -> None:
    """The rows of tokens in the caches beside what they are in float64."""
    if kv_mode == 3:
        bytes_ = got.contiguous().view(torch.uint8)
        scales = bytes_[:, C + 2 * R :].contiguous().view(torch.float32)
        tiles = kept.unflatten(1, (C // TILE, TILE))
        near(scales, tiles.abs().amax(-1) / HELD[FORMATS[mode]].largest)
        near(bytes_[:, C : C + 2 * R].contiguous().view(torch.bfloat16), key_rope)
        codes = numbers_of(got[:, :C], FORMATS[mode])
        by, wanted = scales.double().repeat_interleave(TILE, 1), kept
    else:
        codes, wanted = (numbers_of(got, FORMATS[mode]) if kv_mode else got.double()), kept
        by = 1 / given["quant_scale_ckv"].double().reshape(-1) if kv_mode else torch.ones(1).double()
        if kv_mode == 2:
            by_rope = given["quant_scale_ckr"].double()
            assert (got_rope.double() - (key_rope * by_rope).clamp(-128, 127)).abs().max() <= 0.501
        else:
            near(got_rope, key_rope)
    if kv_mode == 0:
        near(got, kept)
        return
    largest = HELD[FORMATS[mode]].largest
    wanted = (wanted / by).clamp(-128 if FORMATS[mode] == "int8" else -largest, largest)
    name = FORMATS[mode]
    error = 0.501 if name == "int8" else wanted.abs() / (15.9 if name == "e4m3" else 3.9) + 1e-3
    assert ((codes - wanted).abs() <= error).all()


@pytest.mark.parametrize("tokens", TOKENS, ids=str)
@pytest.mark.parametrize("form", ["PA_BSND", "PA_NZ"])
@pytest.mark.parametrize(("mode", "kv_mode"), [(0, 0), (1, 0), (1, 2), (2, 0), (2, 1)])
def test_earlier_versions(mode: int, kv_mode: int, form: str, tokens: tuple[int, ...]) -> None:
    """They have the results of version 3, whose modes their dtypes say."""
    given, _ = problem(mode, kv_mode, tokens)
    given |= {"qc_qr_scale": 1.0, "kc_scale": 1.0}
    kv, kr = caches(mode, kv_mode, form, tokens)
    call = with_places(given, form, tokens)
    *wanted, _, _, new_kv, new_kr = mla_prolog.npu_mla_prolog_v3_functional(kv_cache=kv, kr_cache=kr, **call)
    names = ("weight_quant_mode", "kv_cache_quant_mode", "query_quant_mode", "qc_qr_scale", "kc_scale")
    earlier = {name: value for name, value in call.items() if name not in names}
    if kv_mode == 1:
        other = torch.rand(1, C)
        other[0, 0] = given["quant_scale_ckv"]
        earlier["quant_scale_ckv"] = other
    versions = [mla_prolog.npu_mla_prolog_v2]
    if mode < 2:
        versions.append(mla_prolog.npu_mla_prolog)
    for version in versions:
        one, other = kv.clone(), kr.clone()
        query, query_rope, out_kv, out_kr, *scale = version(kv_cache=one, kr_cache=other, **earlier)
        assert out_kv is one
        assert out_kr is other
        for got, expected in ((query, wanted[0]), (query_rope, wanted[1]), (one, new_kv), (other, new_kr)):
            assert torch.equal(got, expected)
        if scale:
            assert torch.equal(scale[0], torch.zeros(1) if wanted[2] is None else wanted[2])


def test_no_tokens_and_empty_caches() -> None:
    given, _ = problem(0, 0, (6,))
    call = with_places(given, "PA_BSND", (6,))
    empty = torch.empty(0, LENGTH, 1, C).bfloat16(), torch.empty(0, LENGTH, 1, R).bfloat16()
    query, *_ = mla_prolog.npu_mla_prolog_v3(kv_cache=empty[0], kr_cache=empty[1], **call)
    kv, kr = caches(0, 0, "PA_BSND", (6,))
    assert torch.equal(query, mla_prolog.npu_mla_prolog_v3(kv_cache=kv, kr_cache=kr, **call)[0])
    for name in ("token_x", "rope_sin", "rope_cos", "cache_index"):
        call[name] = call[name][:0]
    before = kv.clone()
    query, query_rope, *_ = mla_prolog.npu_mla_prolog_v3(kv_cache=kv, kr_cache=kr, **call)
    assert query.shape == (0, HEADS, C)
    assert query_rope.shape == (0, HEADS, R)
    assert torch.equal(kv, before)


def test_refusals() -> None:
    def refusal(sentence: str, mode: int = 0, kv_mode: int = 0, form: str = "PA_BSND", **changed: Any) -> None:
        given, _ = problem(mode, kv_mode, (6,))
        kv, kr = caches(mode, kv_mode, form, (6,))
        before = kv.clone(), kr.clone()
        call = {**with_places(given, form, (6,)), "kv_cache": kv, "kr_cache": kr}
        call |= {name: change(call.get(name)) if callable(change) else change for name, change in changed.items()}
        refused(f"npu_mla_prolog_v3: {sentence}", mla_prolog.npu_mla_prolog_v3, **call)
        assert torch.equal(kv.view(torch.uint8), before[0].view(torch.uint8))
        assert torch.equal(kr.view(torch.uint8), before[1].view(torch.uint8))

    refusal("token_x is of shape [64], but must have 2 or 3 dimensions", token_x=lambda x: x[0])
    refusal("token_x is torch.float16, but must be bfloat16", token_x=lambda x: x.half())
    refusal("weight_uk is of shape [8, 32], but must have 3 dimensions", weight_uk=lambda w: w[0])
    refusal("weight_uk is torch.float32, but must be bfloat16", weight_uk=lambda w: w.float())
    refusal("weight_dq is of shape [128], but must have 2 dimensions", weight_dq=lambda w: w[0])
    refusal("weight_uq_qr is of shape [128, 119], but must have that of", weight_uq_qr=lambda w: w[:, 1:])
    refusal("weight_uq_qr is torch.float32, but must be bfloat16", weight_uq_qr=lambda w: w.float())
    refusal("rope_sin is of shape [6, 31], but must be of shape [6, 'R'], R even", rope_sin=lambda t: t[:, 1:])
    refusal("rope_cos is of shape [6, 30], but must have that of rope_sin", rope_cos=lambda t: t[:, 2:])
    refusal("weight_quant_mode is 6, but must be 0 or 1 or", weight_quant_mode=6)
    refusal("kv_cache_quant_mode is 1, but must be 0 or 2 or 3", 1, kv_cache_quant_mode=1)
    refusal("query_quant_mode is 0, but must be 1", 2, 1, query_quant_mode=0)
    refusal("ckvkr_repo_mode is 0, but must be 1", 2, 3, ckvkr_repo_mode=0)
    refusal("quant_scale_repo_mode is 1, but must be 0", quant_scale_repo_mode=1)
    refusal("dequant_scale_x is None, but must be given with weight_quant_mode 2", 2, dequant_scale_x=None)
    refusal("dequant_scale_x is given, but must be None with weight_quant_mode 0", dequant_scale_x=torch.ones(6, 1))
    refusal("quant_scale_ckr is None, but must be given", 1, 2, quant_scale_ckr=None)
    refusal("quant_scale_ckv is of shape [2], but must have 1 numbers", 2, 1, quant_scale_ckv=torch.ones(2))
    refusal("smooth_scales_cq is given, but must be None", smooth_scales_cq=torch.ones(1, Q))
    refusal("smooth_scales_cq is of shape [1, 2], but must have 128 numbers", 1, smooth_scales_cq=torch.ones(1, 2))
    refusal("k_nope_clip_alpha is [0.5], but must be None or 1", 2, 3, k_nope_clip_alpha=torch.tensor([0.5]))
    refusal("tile_size is 5, but must divide the 32 columns", 2, 3, tile_size=5)
    refusal("token_x is int8, but must be float8_e4m3fn", 4, token_x=lambda x: x.view(torch.int8))
    refusal(
        "the scale of token_x is of shape [6, 1], but must be of shape [6, 64 /", 3, dequant_scale_x=lambda s: s[:, :1]
    )
    refusal("cache_mode is 'PA', but must be", cache_mode="PA")
    refusal("cache_mode is 'BSND', but must fit token_x, which has 2 dimensions", cache_mode="BSND")
    zeros, blocks = torch.zeros(6).long(), "PA_BLK_BSND"
    refusal("cache_index is given, but must be None with cache_mode 'TND'", form="TND", cache_index=zeros)
    refusal("cache_index is None, but must be given", cache_index=None)
    refusal("cache_index is from 0 to 12, but must be below 12", cache_index=torch.tensor([0, 1, 2, 3, 4, 12]))
    refusal("cache_index is of shape [5], but must have 6 numbers", cache_index=zeros[:5])
    refusal("cache_index is of shape [2], but must have 3 numbers, one for each", form=blocks, cache_index=zeros[:2])
    refusal("actual_seq_len is None, but must be given", form=blocks, actual_seq_len=None)
    refusal("actual_seq_len is [2, 5], but must not fall, and", form=blocks, actual_seq_len=torch.tensor([2, 5]))
    refusal("kv_cache is torch.float32, but must be bfloat16", kv_cache=lambda c: c.float())
    refusal("kv_cache is of shape [4, 3, 1, 31], but must have that of pages", kv_cache=lambda c: c[..., 1:])
    refusal(
        "kr_cache is of shape [4, 3, 1, 32] and strides [32, 128, 32, 1], but must have 16 * n columns, and be",
        form="PA_NZ",
        kr_cache=lambda c: c.transpose(0, 1).contiguous().transpose(0, 1),
    )
    given, _ = problem(2, 0, (6,))
    kv, kr = caches(2, 0, "PA_BSND", (6,))
    call = {name: value for name, value in with_places(given, "PA_BSND", (6,)).items() if "mode" not in name}
    call = {name: value for name, value in call.items() if name not in ("qc_qr_scale", "kc_scale")}
    refused("token_x is torch.int8, but must be bfloat16", mla_prolog.npu_mla_prolog, kv_cache=kv, kr_cache=kr, **call)
    message = "cache_mode is 'TND', but must be 'PA_BSND' or 'PA_NZ'"
    refused(message, mla_prolog.npu_mla_prolog_v2, kv_cache=kv, kr_cache=kr, cache_mode="TND", **call)


@pytest.mark.parametrize(("mode", "kv_mode"), [(0, 0), (2, 1), (5, 3)])
def test_on_the_device(mode: int, kv_mode: int) -> None:
    npu = pytest.importorskip("torch_npu")
    given, _ = problem(mode, kv_mode, (6,))
    kv, kr = caches(mode, kv_mode, "PA_BSND", (6,))
    call = {**with_places(given, "PA_BSND", (6,)), "query_norm_flag": True}
    if kv_mode == 3:
        call["kv_cache_dtype"] = npu.hifloat8
    there = {name: value.npu() if isinstance(value, torch.Tensor) else value for name, value in call.items()}
    on_device = kv.npu(), kr.npu()
    results = npu.npu_mla_prolog_v3(kv_cache=on_device[0], kr_cache=on_device[1], **there)
    wanted = mla_prolog.npu_mla_prolog_v3(kv_cache=kv, kr_cache=kr, **call)
    for got, expected in zip((*results, *on_device), (*wanted, kv, kr), strict=True):
        assert (got is None) == (expected is None)
        if got is not None:
            assert torch.equal(got.cpu().view(torch.uint8), expected.view(torch.uint8))
    if mode == 0:
        old = {name: value for name, value in there.items() if "mode" not in name and name != "query_norm_flag"}
        old = {name: value for name, value in old.items() if name not in ("qc_qr_scale", "kc_scale")}
        two = [torch.zeros_like(cache) for cache in on_device]
        _, _, out_kv, out_kr, _ = npu.npu_mla_prolog_v2(kv_cache=two[0], kr_cache=two[1], **old)
        assert out_kv.data_ptr() == two[0].data_ptr()
        assert torch.equal(out_kr, two[1])
        assert two[0].any()
