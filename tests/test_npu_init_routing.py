"""npu_moe_init_routing, its version 2, and npu_moe_compute_expert_tokens: against loops over rows; refusals."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from descend.npu.composed.experts import init_routing  # noqa: E402
from test_npu_composed import refused  # noqa: E402

Tensor = Any
ONE, TWO = init_routing.npu_moe_init_routing, init_routing.npu_moe_init_routing_v2
TOKENS = init_routing.npu_moe_compute_expert_tokens
DTYPES = [torch.float32, torch.float16, torch.bfloat16, torch.int8]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("active", [0, 2, 5, 9])
def test_init_routing(dtype: Any, active: int) -> None:
    rows, each = 5, 3
    x = torch.randint(-9, 9, (rows, 4)).to(dtype)
    experts = torch.randint(0, 6, (rows, each)).int()
    sources = torch.arange(rows * each).view(each, rows).T.int()
    flat = [(int(e), i) for i, e in enumerate(experts.flatten())]
    order = [int(sources.flatten()[i]) for _, i in sorted(flat)]
    out, places, sorted_ = ONE(x, sources, experts, active)
    assert torch.equal(out, x[[r % rows for r in order[: min(active, rows) * each]]])
    assert [int(places[r]) for r in order] == list(range(rows * each))
    assert sorted_.tolist() == sorted(experts.flatten().tolist())
    assert places.dtype == sorted_.dtype == torch.int32


@pytest.mark.parametrize("span", [[0, 6], [2, 5], [], [4, 5]], ids=str)
@pytest.mark.parametrize("kind", [0, 1, 2])
@pytest.mark.parametrize("index", [0, 1])
@pytest.mark.parametrize("active", [-1, 0, 4, 99])
def test_version_2(span: list[int], kind: int, index: int, active: int) -> None:
    rows, each, experts = 5, 3, 6
    x, scale = torch.randn(rows, 4), torch.rand(rows)
    given = torch.randint(0, experts, (rows, each)).int()
    begin, end = span or (0, experts)
    order = [i for e in range(begin, end) for i, own in enumerate(given.flatten().tolist()) if own == e]
    options: dict[str, Any] = {"expert_num": experts, "expert_tokens_num_type": kind, "active_expert_range": span}
    out, places, numbers, scales = TWO(x, given, scale=scale, active_num=active, row_idx_type=index, **options)
    size = min(active, rows * each) if active > 0 else rows * each
    used = order[:size]
    assert torch.equal(out[: len(used)], x[[i // each for i in used]])
    assert torch.equal(scales[: len(used)], scale[[i // each for i in used]])
    assert out.shape == (size, 4)
    assert not out[len(used) :].any()
    if index:
        assert places[: len(order)].tolist() == order
    else:
        assert places.tolist() == [order.index(i) if i in order else -1 for i in range(rows * each)]
    counts = [given.flatten().tolist().count(e) for e in range(begin, end)]
    if kind == 2:
        pairs = [[e, n] for e, n in zip(range(begin, end), counts, strict=True) if n]
        assert numbers.tolist() == pairs + [[0, 0]] * (experts - len(pairs))
    else:
        assert numbers.tolist() == (counts if kind else torch.tensor(counts).cumsum(0).tolist())
    assert (places.dtype, numbers.dtype, scales.dtype) == (torch.int32, torch.int64, torch.float32)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_version_2_with_a_capacity(dtype: Any) -> None:
    rows, each, experts, capacity = 6, 2, 4, 2
    x, scale = torch.randint(-9, 9, (rows, 3)).to(dtype), torch.rand(rows)
    given = torch.randint(0, experts, (rows, each)).int()
    given[:, 0] = 1
    wanted, places = torch.zeros(experts, capacity, 3).to(dtype), [-1] * (rows * each)
    scales = torch.zeros(experts * capacity)
    filled = [0] * experts
    for i, e in enumerate(given.flatten().tolist()):
        if filled[e] < capacity:
            places[i] = e * capacity + filled[e]
            wanted[e, filled[e]], scales[places[i]] = x[i // each], scale[i // each]
            filled[e] += 1
    got = TWO(
        x, given, scale=scale, expert_num=experts, expert_capacity=capacity, drop_pad_mode=1, expert_tokens_num_type=1
    )
    assert torch.equal(got[0], wanted)
    assert got[1].tolist() == places
    assert got[2].tolist() == torch.bincount(given.flatten(), minlength=experts).tolist()
    assert torch.equal(got[3], scales)


def test_expert_tokens() -> None:
    given = torch.tensor([0, 0, 0, 1, 1, 3], dtype=torch.int32)
    got = TOKENS(given, 5)
    assert got.tolist() == [3, 5, 5, 6, 6]
    assert got.dtype == torch.int32
    refused("torch.int64", TOKENS, given.long(), 5)
    refused("num_expert is 0", TOKENS, given, 0)
    refused("of shape [6, 1]", TOKENS, given.unsqueeze(1), 5)


def test_refusals() -> None:
    x, index = torch.randn(3, 4), torch.tensor([[0, 1], [1, 2], [0, 2]], dtype=torch.int32)
    refused("x is of shape [4]", ONE, x[0], index, index, 1)
    refused("expert_idx is torch.int64", ONE, x, index, index.long(), 1)
    refused("expert_idx is of shape [2, 2]", ONE, x, index, index[:2], 1)
    refused("row_idx is of shape [2, 2]", ONE, x, index[:2], index, 1)
    refused("row_idx is from 0 to 6", ONE, x, index * 3, index, 1)
    refused("active_num is -1", ONE, x, index, index, -1)
    refused("quant_mode is 1", TWO, x, index, expert_num=4, quant_mode=1)
    refused("offset is given", TWO, x, index, expert_num=4, offset=x)
    refused("expert_num is -1", TWO, x, index)
    refused("is [3, 5], but must be a range", TWO, x, index, expert_num=4, active_expert_range=[3, 5])
    refused("expert_tokens_num_type is 3", TWO, x, index, expert_num=4, expert_tokens_num_type=3)
    refused("expert_capacity, active_expert_range or row_idx_type is -1", TWO, x, index, expert_num=4, drop_pad_mode=1)
    refused("scale is of shape [2]", TWO, x, index, expert_num=4, scale=torch.ones(2))


def test_on_the_device() -> None:
    npu = pytest.importorskip("torch_npu")
    x, index = torch.randn(3, 4), torch.tensor([[0, 1], [1, 2], [0, 2]], dtype=torch.int32)
    rows = torch.arange(6, dtype=torch.int32).view(2, 3).T.contiguous()
    for got, wanted in zip(
        npu.npu_moe_init_routing(x.npu(), rows.npu(), index.npu(), 3), ONE(x, rows, index, 3), strict=True
    ):
        assert torch.equal(got.cpu(), wanted)
    options = {
        "expert_num": 3,
        "expert_tokens_num_type": 1,
        "expert_tokens_num_flag": True,
        "active_expert_range": [1, 3],
    }
    got = npu.npu_moe_init_routing_v2(x.npu(), index.npu(), quant_mode=-1, **options)
    for one, wanted in zip(got, TWO(x, index, **options), strict=True):
        assert torch.equal(one.cpu(), wanted)
    assert npu.npu_moe_compute_expert_tokens(index.flatten().sort().values.npu(), 3).tolist() == [2, 4, 6]
