"""npu_moe_token_(un)permute_with_routing_map: each form against loops in float64, gradients, refusals, autograd."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from descend.npu.composed.experts import permute_by_map  # noqa: E402
from test_npu_composed import FLOATS, gradients, near, refused  # noqa: E402

Tensor = Any
PERMUTE, UNPERMUTE = (
    permute_by_map.npu_moe_token_permute_with_routing_map,
    permute_by_map.npu_moe_token_unpermute_with_routing_map,
)
PERMUTE_GRAD = permute_by_map.npu_moe_token_permute_with_routing_map_grad
UNPERMUTE_GRAD = permute_by_map.npu_moe_token_unpermute_with_routing_map_grad
UNPERMUTE_ALL = permute_by_map._npu_moe_token_unpermute_with_routing_map
TOKENS, EXPERTS, WIDTH = 5, 4, 3


def routed(topk: int) -> Tensor:
    """A map in which each token has ``topk`` experts."""
    routing_map = torch.zeros(TOKENS, EXPERTS, dtype=torch.bool)
    for row in routing_map:
        row[torch.randperm(EXPERTS)[:topk]] = True
    return routing_map


def rows_of(routing_map: Tensor, capacity: int | None) -> list[tuple[int, int]]:
    """The token and expert of each permuted row."""
    rows = []
    for expert in range(EXPERTS):
        own = [t for t in range(TOKENS) if routing_map[t, expert]]
        others = [t for t in range(TOKENS) if not routing_map[t, expert]]
        rows += [(t, expert) for t in (own if capacity is None else [*own, *others][:capacity])]
    return rows


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(("topk", "capacity"), [(1, None), (3, None), (2, 1), (2, 3), (2, 5), (0, None), (2, 0)])
def test_there_and_back(dtype: Any, weighted: bool, topk: int, capacity: int | None) -> None:
    routing_map, drop = routed(topk).to(torch.int8 if topk == 3 else torch.bool), capacity is not None
    tokens, probs = torch.randn(TOKENS, WIDTH).to(dtype), torch.rand(TOKENS, EXPERTS).to(dtype)
    rows = rows_of(routing_map, capacity)
    asked = TOKENS * topk + 1 if capacity is None else EXPERTS * capacity + 2  # it is rounded down
    given = probs if weighted else None
    permuted, picked, order = PERMUTE(tokens, routing_map, probs=given, num_out_tokens=asked, drop_and_pad=drop)
    token, expert = (torch.tensor([row[i] for row in rows], dtype=torch.int64) for i in (0, 1))
    assert order.dtype == torch.int32
    assert torch.equal(permuted, tokens[token])
    assert picked is None if given is None else torch.equal(picked, probs[token, expert])
    places = sorted(range(len(rows)), key=rows.__getitem__)
    assert order.tolist() == (token.tolist() if drop else places)

    dy, dp = torch.randn(permuted.shape).to(dtype), torch.randn(len(rows)).to(dtype)
    dx, dprobs = PERMUTE_GRAD(dy, dp if weighted else None, order, routing_map, EXPERTS, TOKENS, drop)
    near(dx, gradients(lambda x: x[token], [tokens], dy)[1][0])
    assert (dprobs is None) != weighted
    if weighted:
        near(dprobs, gradients(lambda p: p[token, expert], [probs], dp)[1][0])

    def defined(x: Tensor, p: Tensor | None = None) -> Tensor:
        x = x if p is None else x * p[token, expert].unsqueeze(1)
        return torch.zeros(TOKENS, WIDTH, dtype=torch.float64).index_add(0, token, x)

    back = torch.randn(TOKENS, WIDTH).to(dtype)
    wanted, derived = gradients(defined, [permuted, probs] if weighted else [permuted], back)
    options: Any = {"probs": given, "routing_map": routing_map, "drop_and_pad": drop}
    y, out, ids, _ = UNPERMUTE_ALL(permuted, order, tokens.shape, **options)
    near(y, wanted)
    assert torch.equal(UNPERMUTE(permuted, order, tokens.shape, **options), y)
    if drop:
        assert [(i, int(order[i])) for i in out.tolist()] == sorted(enumerate(order.tolist()), key=lambda row: row[1])
        assert torch.equal(order[out.long()], ids)
    got = UNPERMUTE_GRAD(back, *((out, ids) if drop else (order, order)), routing_map, permuted, given, drop, y.shape)
    near(got[0], derived[0])
    assert (got[1] is None) != weighted
    if weighted:
        near(got[1], derived[1])


def test_refusals() -> None:
    tokens, routing_map, probs = torch.randn(TOKENS, WIDTH), routed(2), torch.rand(TOKENS, EXPERTS)
    refused("tokens is of shape [3]", PERMUTE, tokens[0], routing_map)
    refused("routing_map is torch.int64", PERMUTE, tokens, routing_map.long())
    refused("routing_map is of shape [4, 4], but must be of shape [5, E]", PERMUTE, tokens, routing_map[1:])
    refused("probs is of shape [5, 3]", PERMUTE, tokens, routing_map, probs=probs[:, 1:], num_out_tokens=10)
    refused("routing_map is 2 experts for token 0, but must give each token 1", PERMUTE, tokens, routing_map)
    refused(
        "must give each expert 0 to 5 rows, not 6", PERMUTE, tokens, routing_map, num_out_tokens=24, drop_and_pad=True
    )
    uneven = routing_map.clone()
    uneven[3] = False
    refused("routing_map is 0 experts for token 3", PERMUTE, tokens, uneven, num_out_tokens=10)
    permuted, _, order = PERMUTE(tokens, routing_map, num_out_tokens=10)
    shape = tokens.shape
    refused("sorted_indices is of length 9", UNPERMUTE, permuted[1:], order[1:], shape)
    refused("sorted_indices is of shape [5]", UNPERMUTE, permuted, order[:5], shape)
    refused("routing_map is None", UNPERMUTE, permuted, order, shape, probs=probs)
    refused("probs is of shape [4, 4]", UNPERMUTE, permuted, order, shape, probs=probs[1:], routing_map=routing_map)
    refused("must be a multiple of 4 experts", UNPERMUTE, permuted, order % 5, shape, probs=probs, drop_and_pad=True)
    grad = (tokens, order, order, routing_map, None, probs, False, shape)
    refused("permuted_tokens is None", UNPERMUTE_GRAD, *grad)
    refused("restore_shape is [5], but must be [T, 3]", UNPERMUTE, permuted, order, [5])
    refused("restore_shape is [5, 4], but must be [T, 3]", UNPERMUTE, permuted, order, [5, 4])
    refused("sorted_indices is torch.float32", UNPERMUTE, permuted, order.float(), shape)
    refused("sorted_indices is from -1 to 8, but must be from 0 to 9", UNPERMUTE, permuted, order - 1, shape)
    refused(
        "sorted_indices is from 0 to 9, but must be from 0 to 4", UNPERMUTE, permuted, order, shape, drop_and_pad=True
    )
    refused("permuted_tokens is of shape [10]", UNPERMUTE, permuted[:, 0], order, shape)
    grad = (tokens, order, order, routing_map, permuted, probs, False, shape)
    for sentence, place, changed in (
        ("unpermuted_tokens_grad is of shape [4, 3]", 0, tokens[1:]),
        ("out_index is a list with a number twice", 1, order * 0),
        ("out_index is from 0 to 18", 1, order * 2),
        ("permuted_tokens is of shape [9, 3]", 4, permuted[1:]),
        ("permuted_tokens is torch.int64", 4, permuted.long()),
    ):
        refused(sentence, UNPERMUTE_GRAD, *grad[:place], changed, *grad[place + 1 :])
    ids = torch.arange(4).int()
    padded = (tokens, ids, ids, routing_map, permuted[:4], probs, True, shape)
    assert UNPERMUTE_GRAD(*padded)[0].shape == (4, 3)
    refused("permuted_token_id is from 4 to 7", UNPERMUTE_GRAD, *padded[:2], ids + 4, *padded[3:])
    grad = (permuted, torch.ones(10), order, routing_map, EXPERTS, TOKENS, False)
    for sentence, place, changed in (
        ("permuted_token_out_grad is of shape [9, 3]", 0, permuted[1:]),
        ("permuted_token_out_grad is of shape [10]", 0, permuted[:, 0]),
        ("probs_grad is of shape [9]", 1, torch.ones(9)),
        ("probs_grad is of shape [10, 1]", 1, torch.ones(10, 1)),
        ("sorted_indices is from 1 to 10", 2, order + 1),
        ("routing_map is of shape [5, 4], but must have that of tokens_num and experts_num, [5, 3]", 4, 3),
        ("sorted_indices is from 0 to 9, but must be from 0 to 4", 6, True),
    ):
        refused(sentence, PERMUTE_GRAD, *grad[:place], changed, *grad[place + 1 :])


def test_a_gradient_of_the_probs_alone() -> None:
    routing_map, probs = routed(2), torch.rand(TOKENS, EXPERTS)
    _, picked, order = PERMUTE(torch.randn(TOKENS, WIDTH), routing_map, probs=probs, num_out_tokens=10)
    d_tokens, d_probs = PERMUTE_GRAD(None, picked, order, routing_map, EXPERTS, TOKENS, False)
    assert d_tokens is None
    assert torch.equal(d_probs, probs * routing_map)


@pytest.mark.parametrize("drop", [False, True])
def test_autograd_on_the_device(drop: bool) -> None:
    torch_npu: Any = pytest.importorskip("torch_npu")
    x, p, routing_map = torch.randn(TOKENS, WIDTH), torch.rand(TOKENS, EXPERTS), routed(2)
    kept = {"num_out_tokens": 12 if drop else 10, "drop_and_pad": drop}
    found = {}
    for device in ("cpu", "npu"):
        tokens, probs = (t.clone().to(device).requires_grad_() for t in (x, p))
        chosen = routing_map.to(device)
        if device == "npu":
            rows, picked, order = torch_npu.npu_moe_token_permute_with_routing_map(tokens, chosen, probs=probs, **kept)
            options = {"probs": probs, "routing_map": chosen, "drop_and_pad": drop}
            back = torch_npu.npu_moe_token_unpermute_with_routing_map(rows.square(), order, list(x.shape), **options)
        else:
            token, expert = (torch.tensor(part) for part in zip(*rows_of(chosen, 3 if drop else None), strict=True))
            rows, picked = tokens[token], probs[token, expert]
            back = torch.zeros_like(x).index_add(0, token, rows.square() * picked.unsqueeze(1))
        (back.square().sum() + picked.square().sum()).backward()
        found[device] = back.detach(), tokens.grad, probs.grad
    for got, wanted in zip(found["npu"], found["cpu"], strict=True):
        torch.testing.assert_close(got.cpu(), wanted)
