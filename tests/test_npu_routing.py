"""Rows of experts in order and summed, and an interleaved rotary embedding: each against loops in float64, refusals."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from descend.npu.composed.attention import rotary  # noqa: E402
from descend.npu.composed.experts import routing  # noqa: E402
from test_npu_composed import FLOATS, near, refused  # noqa: E402

Tensor = Any
RE, FINAL, ROPE = routing.npu_moe_re_routing, routing.npu_moe_finalize_routing, rotary.npu_interleave_rope


@pytest.mark.parametrize("dtype", [*FLOATS, torch.int8], ids=str)
@pytest.mark.parametrize("counts", [[[1, 0, 2], [3, 1, 0]], [[4]], [[0, 0]], [[2], [0], [1]]])
@pytest.mark.parametrize("integer", [torch.int32, torch.int64], ids=str)
def test_re_routing(dtype: Any, counts: list[list[int]], integer: Any) -> None:
    pairs = [
        (expert, rank) for rank, row in enumerate(counts) for expert, count in enumerate(row) for _ in range(count)
    ]
    tokens, scales = torch.randint(-9, 9, (len(pairs), 4)).to(dtype), torch.rand(len(pairs))
    order = sorted(range(len(pairs)), key=lambda i: (pairs[i], i))
    table = torch.tensor(counts, dtype=integer)
    rows, own, places, total = RE(tokens, table, per_token_scales=scales)
    assert torch.equal(rows, tokens[order])
    assert torch.equal(own, scales[order])
    assert places.tolist() == order
    assert places.dtype == torch.int32
    assert total.dtype == integer
    assert total.tolist() == [sum(column) for column in zip(*counts, strict=True)]
    assert RE(tokens, table)[1].tolist() == [0.0] * len(pairs)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("mode", [0, 1, 2, 3])
@pytest.mark.parametrize("each", [1, 3])
@pytest.mark.parametrize("parts", ["nothing", "scales", "skip1", "everything"])
def test_finalize_routing(dtype: Any, mode: int, each: int, parts: str) -> None:
    tokens, experts, width = 5, 4, 3
    padded, everything = mode in (1, 3), parts == "everything"
    rows = torch.randn((experts, 6, width) if padded else (tokens * each, width)).to(dtype)
    flat = rows.double().view(-1, width)
    places = torch.randperm(len(flat))[: tokens * each].int()
    if padded:
        places[::4] = -1
    scales = torch.randn(tokens, each).to(dtype) if parts in ("scales", "everything") else None
    skip1 = torch.randn(tokens, width).to(dtype) if parts in ("skip1", "everything") else None
    skip2 = torch.randn(tokens, width).to(dtype) if everything else None
    bias = torch.randn(experts, width).to(dtype) if everything else None
    chosen = torch.randint(0, experts, (tokens, each), dtype=torch.int32) if everything else None
    wanted = torch.zeros(tokens, width, dtype=torch.float64)
    for i in range(tokens):
        for skip in (skip1, skip2):
            wanted[i] += 0 if skip is None else skip[i].double()
        for k in range(each):
            place = int(places[i * each + k if mode > 1 else k * tokens + i])
            row = flat[place] if place >= 0 else torch.zeros(width, dtype=torch.float64)
            row = row if bias is None else row + bias[chosen[i, k]].double()
            wanted[i] += row * (1 if scales is None else scales[i, k].double())
    got = FINAL(rows, skip1, skip2, bias, scales, places, chosen, mode, each)
    assert got.dtype == dtype
    near(got, wanted)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("rows", [1, 3])
def test_interleaved_rope(dtype: Any, rows: int) -> None:
    x, cos, sin = (torch.randn(shape).to(dtype) for shape in ((2, 4, 3, 8), (2, 1, rows, 8), (2, 1, rows, 8)))
    q = x.double().view(2, 4, 3, 4, 2).transpose(-1, -2).reshape(2, 4, 3, 8)
    turned = torch.cat((-q[..., 4:], q[..., :4]), -1)
    near(ROPE(x, cos, sin), q * cos.double() + turned * sin.double())


def test_refusals() -> None:
    tokens, counts = torch.randn(3, 4), torch.tensor([[2, 1]])
    refused("expert_token_num_type is 0, but must be 1", RE, tokens, counts, expert_token_num_type=0)
    refused("idx_type is 1", RE, tokens, counts, idx_type=1)
    refused("tokens_dtype is 290", RE, tokens, counts, tokens_dtype=290)
    refused("tokens is of shape [4]", RE, tokens[0], counts)
    refused("expert_token_num_per_rank is torch.float32", RE, tokens, counts.float())
    refused("expert_token_num_per_rank is of sum 4", RE, tokens, counts + torch.tensor([1, 0]))
    refused("none negative", RE, tokens, torch.tensor([[4, -1]]))
    refused("per_token_scales is of shape [2]", RE, tokens, counts, per_token_scales=torch.ones(2))
    places, nothing = torch.tensor([0, 1, 2]), [None] * 4
    refused("drop_pad_mode is 4", FINAL, tokens, *nothing, places, None, 4)
    refused(
        "expanded_permuted_rows is of shape [3, 4], but must have 3 dimensions",
        FINAL,
        tokens,
        *nothing,
        places,
        None,
        1,
    )
    refused("expanded_src_to_dst_row is torch.float32", FINAL, tokens, *nothing, places.float(), None)
    refused(
        "expanded_src_to_dst_row is from 1 to 3, but must be from 0 to 2", FINAL, tokens, *nothing, places + 1, None
    )
    refused("expanded_src_to_dst_row is from -1 to 1", FINAL, tokens, *nothing, places - 1, None)
    refused("k is 2, but must divide the 3 places", FINAL, tokens, *nothing, places, None, 0, 2)
    refused("scales is of shape [2, 1]", FINAL, tokens, None, None, None, torch.ones(2, 1), places, None)
    refused("skip1 is of shape [2, 4]", FINAL, tokens, tokens[:2], None, None, None, places, None)
    bias = torch.ones(2, 4)
    refused(
        "export_for_source_row is None, but must be int32 or int64", FINAL, tokens, None, None, bias, None, places, None
    )
    refused("export_for_source_row is from 0 to 2", FINAL, tokens, None, None, bias, None, places, places.view(3, 1))
    refused(
        "bias is of shape [], but must be of shape [E, 4]",
        FINAL,
        tokens,
        None,
        None,
        torch.ones(()),
        None,
        places,
        places.view(3, 1),
    )
    refused("bias is of shape [3, 3]", FINAL, tokens, None, None, torch.ones(3, 3), None, places, places.view(3, 1))
    assert FINAL(tokens[:, :0], *nothing, places, None).shape == (3, 0)
    x, cos = torch.randn(2, 4, 3, 8), torch.randn(2, 1, 3, 8)
    refused("x is of shape [4, 3, 8]", ROPE, x[0], cos, cos)
    refused("cos is of shape [2, 4, 3, 8]", ROPE, x, x, cos)
    refused("sin is of shape [2, 1, 1, 8]", ROPE, x, cos, cos[:, :, :1])
    refused("cos is torch.float16", ROPE, x, cos.half(), cos)


def test_on_the_device() -> None:
    torch_npu: Any = pytest.importorskip("torch_npu")
    tokens, counts = torch.randn(3, 4), torch.tensor([[1, 1], [1, 0]])
    rows, _, places, _ = torch_npu.npu_moe_re_routing(tokens.npu(), counts.npu())
    assert places.tolist() == [0, 2, 1]
    back = torch_npu.npu_moe_finalize_routing(rows, None, None, None, None, torch.tensor([0, 2, 1]).int().npu(), None)
    assert torch.equal(back.cpu(), tokens)
    x, cos, sin = torch.randn(2, 4, 3, 8), torch.randn(2, 1, 3, 8), torch.randn(2, 1, 3, 8)
    assert torch.equal(torch_npu.npu_interleave_rope(x.npu(), cos.npu(), sin.npu()).cpu(), ROPE(x, cos, sin))
