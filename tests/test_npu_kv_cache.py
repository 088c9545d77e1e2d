"""npu_kv_rmsnorm_rope_cache: against a formula in float64 and a loop over tokens; refusals."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from descend.npu.composed.attention import kv_cache  # noqa: E402
from quantised_numbers import nearest  # noqa: E402
from test_npu_composed import near, refused  # noqa: E402
from test_npu_quantised import numbers_of  # noqa: E402

Tensor = Any
HALVES = (torch.float16, torch.bfloat16)
B, S, R, C, ROWS = 2, 5, 32, 64, 3
"""Batches, tokens, columns that are turned, other columns, rows of a page."""


def defined(kv: Tensor, gamma: Tensor, cos: Tensor, sin: Tensor, v: Tensor | None) -> tuple[Tensor, Tensor]:
    """k and c in float64."""
    kv, gamma = kv.double(), gamma.double()
    part = kv[..., :C] if v is None else kv
    part = part / (part.square().mean(-1, keepdim=True) + 1e-5).sqrt() * gamma
    turned = kv[..., C:] if v is None else part[..., :R]
    pairs = torch.empty_like(turned)
    for i in range(R // 2):
        pairs[..., i], pairs[..., R // 2 + i] = turned[..., 2 * i], turned[..., 2 * i + 1]
    half = torch.cat((-pairs[..., R // 2 :], pairs[..., : R // 2]), -1)
    k = pairs * cos.double() + half * sin.double()
    return (k, part) if v is None else (torch.cat((k, part[..., R:]), -1), v.double())


def given(dtype: Any, with_v: bool) -> tuple[list[Tensor], Tensor | None, tuple[int, int]]:
    """kv, gamma, cos, sin; v; and the columns of the caches."""
    shapes = [(B, 1, S, R + C), (R + C if with_v else C,), (B, 1, S, R), (B, 1, S, R)]
    v = torch.randn(B, 1, S, C).to(dtype) if with_v else None
    return [torch.randn(shape).to(dtype) for shape in shapes], v, (R + C if with_v else R, C)


def cache_of(mode: str, columns: int, dtype: Any) -> Tensor:
    blocks = B * (-(-S // ROWS)) + 2
    shape = (B, 1, S + 3, columns) if mode == "Norm" else (blocks, ROWS, 1, columns)
    return torch.full(shape, 9).to(dtype)


def index_of(mode: str) -> Tensor:
    """One token, or page, is left out."""
    if mode == "Norm":
        index = torch.stack([torch.randperm(S + 3)[:S] for _ in range(B)])
        index[0, 1] = -1
        return index
    pages = -(-S // ROWS)
    index = torch.randperm(B * pages + 2)[: B * pages] * ROWS if "BLK" in mode else torch.randperm(12)[: B * S]
    index[1] = -1
    return index


def place(cache: Tensor, mode: str, index: Tensor, b: int, s: int) -> Tensor | None:
    """The numbers of a token in a cache, a view."""
    if mode == "Norm":
        return None if index[b, s] < 0 else cache[b, 0, index[b, s]]
    slot = int(index[b * -(-S // ROWS) + s // ROWS] if "BLK" in mode else index[b * S + s])
    if slot < 0:
        return None
    block, row = (slot // ROWS, s % ROWS) if "BLK" in mode else divmod(slot, ROWS)
    if not mode.endswith("NZ"):
        return cache[block, row, 0]
    width = 32 // cache.element_size()
    return cache.view(len(cache), -1, ROWS, width)[block, :, row]


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("with_v", [True, False])
@pytest.mark.parametrize("mode", kv_cache.MODES)
@pytest.mark.parametrize("name", [None, "int8", "hif8"])
def test_kv_cache(dtype: Any, with_v: bool, mode: str, name: str | None) -> None:
    inputs, v, columns = given(dtype, with_v)
    held = {None: dtype, "int8": torch.int8, "hif8": torch.uint8}[name]
    caches, index = [cache_of(mode, each, held) for each in columns], index_of(mode)
    wanted = [cache.clone() for cache in caches]
    options: Any = {"v": v, "cache_mode": mode}
    scales, offsets = [torch.rand(each) * 20 for each in columns], [torch.randn(each) for each in columns]
    if name is not None:
        options |= {"k_rope_scale": scales[0], "c_kv_scale": scales[1]}
        options |= {"k_rope_offset": offsets[0], "c_kv_offset": offsets[1]}
    if name == "hif8":
        options |= {"k_cache_dtype": 290, "ckv_cache_dtype": 290}
    before = [cache.clone() for cache in caches]
    functional = kv_cache.npu_kv_rmsnorm_rope_cache_v2_functional(*inputs, index, *caches, **options)
    assert all(torch.equal(cache, old) for cache, old in zip(caches, before, strict=True))
    got = kv_cache.npu_kv_rmsnorm_rope_cache(*inputs, index, *caches, **options)
    assert got[0] is caches[0]
    assert got[1] is caches[1]
    for one, other in zip(functional, (*got[2:], *got[:2]), strict=True):
        assert torch.equal(one, other)
    both = defined(*inputs, v)
    near(got[2], both[0])
    near(got[3], both[1])
    for cache, old, numbers, scale, offset in zip(caches, wanted, both, scales, offsets, strict=True):
        for b in range(B):
            for s in range(S):
                new, own = place(cache, mode, index, b, s), place(old, mode, index, b, s)
                if new is None:
                    continue
                if name is None:
                    near(new.reshape(-1), numbers[b, 0, s])
                else:
                    exact = numbers[b, 0, s] * scale.double() + offset.double()
                    for number, value in zip(numbers_of(new, name).reshape(-1).tolist(), exact.tolist(), strict=True):
                        assert number in {nearest(v, name) for v in (value - 1e-4, value, value + 1e-4)}
                own.copy_(new)
        assert torch.equal(cache, old)


def test_kv_cache_refused() -> None:
    inputs, _, columns = given(torch.float16, False)
    caches, index = [cache_of("PA", each, torch.float16) for each in columns], index_of("PA")
    turned = caches[1].transpose(0, 1).contiguous().transpose(0, 1)
    call = kv_cache.npu_kv_rmsnorm_rope_cache
    refused("cache_mode is 'BSND'", call, *inputs, index, *caches, cache_mode="BSND")
    refused("index is of shape [2, 5], but must have that of batches and tokens, [10]", call, *inputs,
            index.view(2, 5), *caches, cache_mode="PA")  # fmt: skip
    refused("index is from", call, *inputs, index + 99, *caches, cache_mode="PA")
    refused("k_cache is of shape", call, *inputs, index, caches[1], caches[1], cache_mode="PA")
    refused("ckv_cache is not contiguous", call, *inputs, index, caches[0], turned, cache_mode="PA")
    refused("k_rope_scale is None", call, *inputs, index, caches[0].to(torch.int8), caches[1], cache_mode="PA")
    refused("k_rope_scale is given", call, *inputs, index, *caches, cache_mode="PA", k_rope_scale=torch.ones(R))
    refused("kv is of shape [5, 96]", call, inputs[0][0, 0], *inputs[1:], index, *caches)
    refused("gamma is of shape [64], but must have that of the columns to norm, [96]", call, *inputs, index, *caches,
            v=inputs[0])  # fmt: skip
    for v in (inputs[0][..., 0], inputs[0][..., None]):
        refused("v is of shape", call, inputs[0], torch.ones(96).half(), *inputs[2:], index, *caches, v=v)
    refused("cos is of shape [2, 1, 5, 31]", call, *inputs[:2], inputs[2][..., :31], inputs[3], index, *caches)
    empty = [each[..., :0] for each in inputs[2:]]
    refused("cos is of shape [2, 1, 5, 0], but must be of shape [2, 1, 5, 'R'], R even and not 0", call, *inputs[:2],
            *empty, index, *caches)  # fmt: skip
    gamma = torch.ones(96).half()
    refused("v is of shape [2, 1, 5, 64, 1]", call, inputs[0], gamma, *inputs[2:], index, *caches,
            v=torch.ones(2, 1, 5, 64, 1).half())  # fmt: skip
    refused("kv is torch.float32", call, inputs[0].float(), *inputs[1:], index, *caches)


def test_kv_cache_on_the_device() -> None:
    npu = pytest.importorskip("torch_npu")
    inputs, _, columns = given(torch.bfloat16, False)
    for mode in ("Norm", "PA_NZ"):
        caches, index = [cache_of(mode, each, torch.bfloat16) for each in columns], index_of(mode)
        wanted = [t.clone() for t in caches]
        kv_cache.npu_kv_rmsnorm_rope_cache_v2(*inputs, index, *wanted, cache_mode=mode)
        there = [t.npu() for t in (*inputs, index, *caches)]
        got = npu.npu_kv_rmsnorm_rope_cache(*there, cache_mode=mode)
        assert [g.data_ptr() for g in got[:2]] == [t.data_ptr() for t in there[-2:]]
        again = [t.npu() for t in (*inputs, index, *caches)]
        npu.npu_kv_rmsnorm_rope_cache_v2(*again, cache_mode=mode)
        for one, other, want in zip(got[:2], again[-2:], wanted, strict=True):
            assert torch.equal(one.cpu(), want)
            assert torch.equal(other.cpu(), want)
