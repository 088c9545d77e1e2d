"""npu_kv_quant_sparse_flash_attention and npu_quant_lightning_indexer: against float64, refusals."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from descend.npu.composed.attention.quant_sparse import (  # noqa: E402
    npu_kv_quant_sparse_flash_attention,
    npu_quant_lightning_indexer,
)
from descend.npu.composed.quantised import formats  # noqa: E402
from test_npu_composed import near, refused  # noqa: E402
from test_npu_quantised import HELD, numbers_of  # noqa: E402

Tensor = Any
C, R, TILE, HEADS, CHOSEN = 16, 8, 4, 3, 4
QUERIES, KEYS = [2, 3], [6, 5]
"""The lengths of two sequences."""
LAYOUTS = ["BSND", "TND", "PA_BSND"]


def in_layout(rows: list[Tensor], layout: str) -> Tensor:
    """Rows of sequences, in BSND with a longer one's row of zeros; in pages of 2, one of which belongs to nobody."""
    if layout == "TND":
        return torch.cat(rows)
    size = max(map(len, rows))
    padded = torch.stack([torch.cat((each, each.new_zeros(size - len(each), *each.shape[1:]))) for each in rows])
    return padded if layout == "BSND" else padded.unflatten(1, (3, 2)).flatten(0, 1)[[3, 0, 5, 1, 4, 2, 0]]


PAGES = torch.tensor([[1, 3, 5], [0, 4, 2]])
"""Where pages 0, 1 and 2 of each sequence are."""


def lengths(counts: list[int], layout: str) -> Tensor:
    return torch.tensor(counts).cumsum(0).int() if layout == "TND" else torch.tensor(counts).int()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", ["int8", "e4m3", "hif8"])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("mode", [0, 3])
@pytest.mark.parametrize("whole_values", [False, True])
def test_attention(dtype: Any, name: str, layout: str, mode: int, whole_values: bool) -> None:
    held = HELD[name]
    query = [torch.randn(count, HEADS, C + R).to(dtype) for count in QUERIES]
    codes = [formats.rounded(torch.randn(count, 1, C) * 20, held) for count in KEYS]
    rope = [torch.randn(count, 1, R).to(dtype) for count in KEYS]
    scales = [torch.rand(count, 1, C // TILE) / 20 for count in KEYS]
    key = [
        torch.cat([part.view(torch.uint8) for part in parts], -1).view(held.dtype)
        for parts in zip(codes, rope, scales, strict=True)
    ]
    chosen = [
        torch.stack([torch.randperm(k)[:CHOSEN] for _ in range(q)]).unsqueeze(1)
        for q, k in zip(QUERIES, KEYS, strict=True)
    ]
    chosen[0][1, 0, -1] = -1
    query_layout = "TND" if layout == "TND" else "BSND"
    options: Any = {"key_dtype": 290, "value_dtype": 290} if name == "hif8" else {}
    if layout == "PA_BSND":
        options["block_table"] = PAGES.int()
    out = npu_kv_quant_sparse_flash_attention(
        in_layout(query, query_layout), in_layout(key, layout), in_layout(key if whole_values else codes, layout),
        in_layout(chosen, query_layout).int(), 0.3, 2, 2, actual_seq_lengths_query=lengths(QUERIES, query_layout),
        actual_seq_lengths_kv=lengths(KEYS, layout), layout_query=query_layout, layout_kv=layout, sparse_mode=mode,
        attention_mode=2, tile_size=TILE, rope_head_dim=R, **options,
    )  # fmt: skip
    assert out.dtype == dtype
    for b, count in enumerate(QUERIES):
        latent = numbers_of(codes[b], name) * scales[b].double().repeat_interleave(TILE, -1)
        rows = torch.cat((latent, rope[b].double()), -1)
        got = out[sum(QUERIES[:b]) :][:count] if layout == "TND" else out[b, :count]
        for t in range(count):
            last = KEYS[b] - count + t if mode == 3 else KEYS[b]
            seen = [j for j in chosen[b][t, 0].tolist() if 0 <= j <= last]
            if not seen:
                assert not got[t].any()
                continue
            p = (0.3 * query[b][t].double() @ rows[seen, 0].T).softmax(-1)
            near(got[t], p @ latent[seen, 0])


@pytest.mark.parametrize("name", ["int8", "e4m3", "hif8"])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("mode", [0, 3])
def test_indexer(name: str, layout: str, mode: int) -> None:
    held = HELD[name]
    query = [formats.rounded(torch.randn(count, HEADS, C) * 20, held) for count in QUERIES]
    key = [formats.rounded(torch.randn(count, 1, C) * 20, held) for count in KEYS]
    by_query = [(torch.rand(count, HEADS) / 20).half() for count in QUERIES]
    by_key = [(torch.rand(count, 1) / 20).half() for count in KEYS]
    weights = [torch.randn(count, HEADS).half() for count in QUERIES]
    query_layout = "TND" if layout == "TND" else "BSND"
    options: Any = {"query_dtype": 290, "key_dtype": 290} if name == "hif8" else {}
    if layout == "PA_BSND":
        options["block_table"] = PAGES.int()
    found = npu_quant_lightning_indexer(
        in_layout(query, query_layout), in_layout(key, layout), in_layout(weights, query_layout),
        in_layout(by_query, query_layout), in_layout(by_key, layout), 0, 0,
        actual_seq_lengths_query=lengths(QUERIES, query_layout), actual_seq_lengths_key=lengths(KEYS, layout),
        layout_query=query_layout, layout_key=layout, sparse_count=CHOSEN, sparse_mode=mode, **options,
    )  # fmt: skip
    assert found.dtype == torch.int32
    for b, count in enumerate(QUERIES):
        q = numbers_of(query[b], name) * by_query[b].double().unsqueeze(-1)
        k = numbers_of(key[b], name) * by_key[b].double().unsqueeze(-1)
        got = found[sum(QUERIES[:b]) :][:count] if layout == "TND" else found[b, :count]
        for t in range(count):
            seen = KEYS[b] - count + t + 1 if mode == 3 else KEYS[b]
            score = weights[b][t].double() @ (q[t] @ k[:seen, 0].T).relu()
            wanted = score.sort(descending=True, stable=True).indices[:CHOSEN].tolist()
            assert got[t, 0].tolist() == wanted + [-1] * (CHOSEN - len(wanted))


def test_refusals() -> None:
    size = C + 2 * R + 4 * C // TILE
    query, key = torch.randn(2, HEADS, C + R).half(), torch.zeros(3, 1, size, dtype=torch.int8)
    indices, ends = torch.zeros(2, 1, 1).int(), torch.tensor([2]).int()

    def attention(sentence: str, **changed: Any) -> None:
        given: Any = {
            "query": query, "key": key, "value": key, "sparse_indices": indices, "scale_value": 1.0,
            "key_quant_mode": 2, "value_quant_mode": 2, "actual_seq_lengths_query": ends,
            "actual_seq_lengths_kv": ends + 1, "layout_query": "TND", "layout_kv": "TND",
            "attention_mode": 2, "tile_size": TILE, "rope_head_dim": R,
        }  # fmt: skip
        message = f"npu_kv_quant_sparse_flash_attention: {sentence}"
        refused(message, npu_kv_quant_sparse_flash_attention, **{**given, **changed})

    attention("key_dequant_scale is given, but must be None", key_dequant_scale=query)
    attention("key_quant_mode is 1, but must be 2", key_quant_mode=1)
    attention("quant_scale_repo_mode is 0, but must be 1", quant_scale_repo_mode=0)
    attention("query is torch.float32, but must be float16 or bfloat16", query=query.float())
    attention("rope_head_dim is 7, but must leave columns of query", rope_head_dim=7)
    attention(f"key is of shape [3, 1, 4], but must have {size} columns", key=key[..., :4])
    attention("key is torch.int32, but must be int8, float8_e4m3fn or uint8", key=key.int())
    attention("key_dtype is hifloat8, but must be one that torch.int8 can hold", key_dtype=290)
    attention(f"value is of shape [2, 1, {size}] and torch.int8, but must be as key", value=key[:2])
    attention("attention_mode is 0, but must be 2", attention_mode=0)
    attention("sparse_indices is torch.float32, but must be int32 or int64", sparse_indices=indices.float())

    def indexer(sentence: str, **changed: Any) -> None:
        given: Any = {
            "query": key.expand(3, HEADS, size), "key": key, "weights": torch.ones(3, HEADS).half(),
            "query_dequant_scale": torch.ones(3, HEADS), "key_dequant_scale": torch.ones(3, 1), "query_quant_mode": 0,
            "key_quant_mode": 0, "actual_seq_lengths_query": ends + 1, "actual_seq_lengths_key": ends + 1,
            "layout_query": "TND", "layout_key": "TND",
        }  # fmt: skip
        refused(f"npu_quant_lightning_indexer: {sentence}", npu_quant_lightning_indexer, **{**given, **changed})

    indexer("query_quant_mode is 1, but must be 0", query_quant_mode=1)
    indexer("key is torch.uint8, but must have the dtype of query, torch.int8", key=key.view(torch.uint8))
    indexer("weights is torch.int64, but must be", weights=torch.ones(3, HEADS).long())
    indexer(
        "key_dequant_scale is torch.float64, but must be float16 or float32",
        key_dequant_scale=torch.ones(3, 1).double(),
    )
    indexer("query_dequant_scale is of shape [3, 1], but must have that of query", query_dequant_scale=torch.ones(3, 1))
    indexer("sparse_count is 0, but must be at least 1", sparse_count=0)


def test_on_the_device() -> None:
    npu = pytest.importorskip("torch_npu")
    query, key = torch.randn(2, HEADS, C + R).bfloat16(), torch.randint(-99, 99, (3, 1, C), dtype=torch.int8)
    rope, scales = torch.randn(3, 1, R).bfloat16(), torch.rand(3, 1, C // TILE)
    joined = torch.cat((key, rope.view(torch.int8), scales.view(torch.int8)), -1)
    ends, indices = torch.tensor([2]).int(), torch.tensor([[0, 1], [2, 0]]).int().unsqueeze(1)
    shared: Any = {"layout_query": "TND", "sparse_mode": 3}
    options: Any = {"layout_kv": "TND", "attention_mode": 2, "tile_size": TILE, "rope_head_dim": R, **shared}
    given = (query, joined, joined, indices)
    more = {"actual_seq_lengths_query": ends, "actual_seq_lengths_kv": ends + 1}
    wanted = npu_kv_quant_sparse_flash_attention(*given, 0.5, 2, 2, **more, **options)
    there = {name: tensor.npu() for name, tensor in more.items()}
    got = npu.npu_kv_quant_sparse_flash_attention(*(t.npu() for t in given), 0.5, 2, 2, **there, **options)
    assert torch.equal(got.cpu(), wanted)
    scale, weights = torch.rand(3, 1).half(), torch.randn(3, 1).half()
    indexed = (key, key, weights, scale, scale)
    more = {"actual_seq_lengths_query": ends + 1, "actual_seq_lengths_key": ends + 1}
    options = {"layout_key": "TND", "sparse_count": 2, **shared}
    wanted = npu_quant_lightning_indexer(*indexed, 0, 0, **more, **options)
    there = {name: tensor.npu() for name, tensor in more.items()}
    got = npu.npu_quant_lightning_indexer(*(t.npu() for t in indexed), 0, 0, **there, **options)
    assert torch.equal(got.cpu(), wanted)
