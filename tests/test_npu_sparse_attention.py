"""Sparse flash attention and the lightning indexer: each against loops in float64, gradients, refusals, autograd."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from descend.npu.composed import memory  # noqa: E402
from descend.npu.composed.attention import lightning_indexer, sparse_attention  # noqa: E402
from test_npu_composed import FLOATS, gradients, near, refused  # noqa: E402

Tensor = Any
ATTENTION, ATTENTION_GRAD = (
    sparse_attention.npu_sparse_flash_attention,
    sparse_attention.npu_sparse_flash_attention_grad,
)
INDEXER, INDEXER_GRAD = lightning_indexer.npu_lightning_indexer, lightning_indexer.npu_lightning_indexer_grad
SPARSE_LOSS = lightning_indexer.npu_sparse_lightning_indexer_grad_kl_loss
DENSE_LOSS = lightning_indexer.npu_dense_lightning_indexer_grad_kl_loss
STATISTICS = lightning_indexer.npu_dense_lightning_indexer_softmax_lse
SCALE = 0.3
# Queries and keys of each sequence as rows of the flat tensors, by layout; in BSND a sequence has 4 queries and 9 keys.
SEQUENCES = {
    "BSND": [(range(3), range(9)), (range(4, 8), range(9, 14))],
    "TND": [(range(3), range(7)), (range(3, 3), range(7, 7)), (range(3, 8), range(7, 18))],
}
LENGTHS = {
    "BSND": (torch.tensor([3, 4], dtype=torch.int32), torch.tensor([9, 5], dtype=torch.int32)),
    "TND": (torch.tensor([3, 3, 8], dtype=torch.int32), torch.tensor([7, 7, 18], dtype=torch.int32)),
}


def shaped(rows: Tensor, layout: str) -> Tensor:
    return rows.unflatten(0, (2, -1)) if layout == "BSND" else rows


def limits(layout: str, causal: bool) -> list[tuple[int, int]]:
    """For each of 8 queries where its keys begin, and how many it sees."""
    seen = [(0, 0)] * 8
    for queries, keys in SEQUENCES[layout]:
        for i, row in enumerate(queries):
            count = len(keys) - len(queries) + i + 1 if causal else len(keys)
            seen[row] = (keys.start, max(0, min(count, len(keys))))
    return seen


def named(indices: Tensor, seen: list[tuple[int, int]], size: int = 1) -> list[list[int]]:
    """The rows of the keys of each query."""
    places = []
    for (begin, limit), own in zip(seen, indices.reshape(8, -1).tolist(), strict=True):
        within = [b * size + i for b in own if b >= 0 for i in range(size)]
        places.append([begin + at for at in within if at < limit])
    return places


def attended(q: Tensor, k: Tensor, v: Tensor, places: list[list[int]], sinks: Tensor | None = None) -> Tensor:
    return attended_and_sums(q, k, v, places, sinks)[..., :-1]


def attended_and_sums(q: Tensor, k: Tensor, v: Tensor, places: list[list[int]], sinks: Tensor | None) -> Tensor:
    """The last column has the logarithms of the sums of exponentials."""
    rows = []
    for row, own in enumerate(places):
        scores = SCALE * q[row] @ k[own].T
        whole = scores if sinks is None else torch.cat((scores, sinks.unsqueeze(1)), 1)
        if not own:
            rows.append(q.new_zeros(len(q[0]), v.shape[1] + 1))
            continue
        out = torch.softmax(whole, -1)[:, : len(own)] @ v[own]
        rows.append(torch.cat((out, whole.logsumexp(-1, keepdim=True)), -1))
    return torch.stack(rows)


def lists(count: int, below: int) -> Tensor:
    """Indices of 8 queries; the last of each name nothing."""
    indices = torch.stack([torch.randperm(below)[:count] for _ in range(8)])
    indices[:, -1] = -1
    return indices.to(torch.int32)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("layout", ["BSND", "TND"])
@pytest.mark.parametrize("mode", [0, 3])
@pytest.mark.parametrize(("size", "numbers"), [(1, memory.NUMBERS), (4, 1)])
@pytest.mark.parametrize("sunk", [False, True])
def test_attention(
    dtype: Any, layout: str, mode: int, size: int, numbers: int, sunk: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "NUMBERS", numbers)
    shapes = ((8, 3, 6), (18, 6), (18, 5), (8, 3, 2), (18, 2))
    given = [torch.randn(shape).to(dtype) for shape in shapes]
    q, k, v, q_rope, k_rope = (shaped(t if t.dim() == 3 else t.unsqueeze(1), layout) for t in given)
    dy, sinks = torch.randn(8, 3, 5).to(dtype), torch.randn(3) if sunk else None
    indices = lists(4, 9 if size == 1 else 4)
    places = named(indices, limits(layout, mode == 3), size)

    def defined(q: Tensor, k: Tensor, v: Tensor, q_rope: Tensor, k_rope: Tensor) -> Tensor:
        whole = torch.cat((q, q_rope), -1), torch.cat((k, k_rope), -1)
        return attended_and_sums(*whole, v, places, None if sinks is None else sinks.double())

    wanted = defined(*(t.double() for t in given))[..., :-1]
    # The gradient subtracts p * sum(dy * out) from p * (dy @ v^T), where out is rounded: so p has the rest as a factor.
    rest = (dy.double() * (wanted - wanted.to(dtype).double())).sum(-1, keepdim=True)
    _, derived = gradients(defined, given, torch.cat((dy.double(), rest), -1))
    options: Any = {"actual_seq_lengths_query": LENGTHS[layout][0], "actual_seq_lengths_kv": LENGTHS[layout][1]}
    options |= {"layout_query": layout, "layout_kv": layout, "sparse_mode": mode, "attention_mode": 2, "sinks": sinks}
    options |= {"query_rope": q_rope, "key_rope": k_rope, "sparse_block_size": size, "return_softmax_lse": True}
    own = shaped(indices.unsqueeze(1), layout)
    out, largest, total = ATTENTION(q, k, v, own, SCALE, **options)
    assert out.dtype == dtype
    near(out, shaped(wanted, layout))
    assert list(largest.shape) == list(total.shape) == ([2, 1, 4, 3] if layout == "BSND" else [1, 8, 3])
    row = max(range(8), key=lambda row: len(places[row]))
    scores = SCALE * torch.cat(given[::3], -1)[row].double() @ torch.cat(given[1::3], -1)[places[row]].double().T
    scores = scores if sinks is None else torch.cat((scores, sinks.double().unsqueeze(1)), 1)
    near(largest.reshape(8, 3)[row], scores.amax(-1))
    near(total.reshape(8, 3)[row], (scores - scores.amax(-1, keepdim=True)).exp().sum(-1))
    lengths = {"actual_seq_qlen": LENGTHS[layout][0], "actual_seq_kvlen": LENGTHS[layout][1], "layout": layout}
    rounded = shaped(wanted, layout).to(dtype)
    results = (shaped(dy, layout), rounded, largest, total)
    got = ATTENTION_GRAD(q, k, v, own, *results, SCALE, size, q_rope, k_rope, **lengths, sparse_mode=mode)
    assert all(each.is_contiguous() for each in got)  # as torch_npu tells torch.compile
    for gradient, value, tensor in zip(got, derived, (q, k, v, q_rope, k_rope), strict=True):
        assert gradient.dtype == dtype
        assert gradient.shape == tensor.shape
        error = (gradient.double().flatten() - value.flatten()).abs().max()
        assert error <= {torch.float64: 1e-12, torch.float32: 5e-6}.get(dtype, 2e-2) * value.abs().max(), error


def test_attention_in_pages_and_without_rotary_parts() -> None:
    q, k, v = torch.randn(2, 4, 3, 6), torch.randn(7, 4, 1, 6), torch.randn(7, 4, 1, 5)
    table = torch.tensor([[6, 0, 3], [1, 2, 99]], dtype=torch.int32)
    lengths, indices = torch.tensor([9, 7]), torch.randint(0, 9, (2, 4, 1, 5)).int()
    order = torch.tensor([[6, 0, 3], [1, 2, 6]])
    flat = [t[order].flatten(1, 2)[:, :9] for t in (k, v)]
    options: Any = {"sparse_mode": 0, "attention_mode": 2, "actual_seq_lengths_kv": lengths}
    got, *empty = ATTENTION(q, k, v, indices, SCALE, block_table=table, layout_kv="PA_BSND", **options)
    assert [list(t.shape) for t in empty] == [[0], [0]]
    assert torch.equal(got, ATTENTION(q, *flat, indices, SCALE, **options)[0])
    places = named(indices, [(0, 9)] * 4 + [(9, 7)] * 4)
    near(got.flatten(0, 1), attended(q.flatten(0, 1).double(), *(t.flatten(0, 2).double() for t in flat), places))
    empty = ATTENTION_GRAD(
        *(q, *flat, indices, got, got, torch.ones(2, 1, 4, 3), torch.ones(2, 1, 4, 3), SCALE, 1), sparse_mode=0
    )
    assert [t.numel() for t in empty[3:]] == [0, 0]


def indexed(q: Tensor, k: Tensor, w: Tensor) -> Tensor:
    """[T, R] scores of all keys."""
    return (torch.relu(torch.einsum("tnd,kd->tnk", q, k)) * w.unsqueeze(-1)).sum(1)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("layout", ["BSND", "TND"])
@pytest.mark.parametrize("mode", [0, 3])
@pytest.mark.parametrize("numbers", [1, memory.NUMBERS])
def test_indexer(dtype: Any, layout: str, mode: int, numbers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "NUMBERS", numbers)
    q, k, w = torch.randn(8, 5, 6).to(dtype), torch.randn(18, 6).to(dtype), torch.randn(8, 5).to(dtype)
    tensors = [shaped(t, layout) for t in (q, k.unsqueeze(1), w)]
    lengths = {"actual_seq_lengths_query": LENGTHS[layout][0], "actual_seq_lengths_key": LENGTHS[layout][1]}
    layouts = {"layout_query": layout, "layout_key": layout}
    options: Any = lengths | layouts | {"sparse_count": 6, "sparse_mode": mode}
    indices, values = INDEXER(*tensors, return_value=True, **options)
    assert values.dtype == dtype
    assert list(indices.shape) == list(values.shape) == ([2, 4, 1, 6] if layout == "BSND" else [8, 1, 6])
    scores = indexed(*(t.double() for t in (q, k, w)))
    seen = limits(layout, mode == 3)
    wanted = torch.full((8, 6), -torch.inf, dtype=torch.float64)
    for row, (begin, limit) in enumerate(seen):
        order = scores[row, begin : begin + limit].argsort(dim=-1, descending=True, stable=True)[:6]
        assert indices.reshape(8, 6)[row].tolist() == order.tolist() + [-1] * (6 - len(order)), row
        wanted[row, : len(order)] = scores[row, begin + order]
    near(values.reshape(8, 6), wanted)
    alone, empty = INDEXER(*tensors, **options)
    assert torch.equal(alone, indices)
    assert list(empty.shape) == [0]
    assert empty.dtype == dtype

    dy = torch.randn(values.shape).to(dtype)
    own = named(indices, seen)

    def defined(q: Tensor, k: Tensor, w: Tensor) -> Tensor:
        scores = indexed(q, k, w)
        return torch.stack([torch.cat((scores[t, own[t]], scores.new_zeros(6 - len(own[t])))) for t in range(8)])

    derived = gradients(defined, [q, k, w], dy.reshape(8, 6))[1]
    for index in (indices, indices.squeeze(-2)):
        got = INDEXER_GRAD(tensors[0], tensors[1], dy, index, tensors[2], *lengths.values(), layout, mode)
        for gradient, value, tensor in zip(got, derived, tensors, strict=True):
            assert gradient.dtype == dtype
            near(gradient, value.view(tensor.shape))


def test_indexer_in_pages_with_float_weights_and_equal_scores() -> None:
    q, k, w = torch.randn(2, 4, 3, 6).half(), torch.randn(7, 4, 1, 6).half(), torch.rand(2, 4, 3)
    table, lengths = torch.tensor([[6, 0, 3], [1, 2, -1]], dtype=torch.int32), torch.tensor([9, 7])
    flat = k[torch.tensor([[6, 0, 3], [1, 2, 0]])].flatten(1, 2)[:, :9]
    options: Any = {"actual_seq_lengths_key": lengths, "sparse_count": 8}
    got = INDEXER(q, k, w, block_table=table, layout_key="PA_BSND", **options)[0]
    assert torch.equal(got, INDEXER(q, flat, w, **options)[0])
    ones = INDEXER(q * 0, flat, w, sparse_count=3, sparse_mode=0)[0]
    assert ones.flatten(0, 2).tolist() == [[0, 1, 2]] * 8
    assert INDEXER_GRAD(q, flat, torch.ones(2, 4, 3), ones, w)[2].dtype == torch.float32


LOSS_SEQUENCES = {
    "BSND": [(range(4), range(9)), (range(4, 8), range(9, 18))],
    "TND": [(range(3), range(7)), (range(3, 8), range(7, 18))],
}


def whole_limits(layout: str, causal: bool) -> list[tuple[int, int]]:
    seen = []
    for queries, keys in LOSS_SEQUENCES[layout]:
        seen += [(keys.start, len(keys) - len(queries) + i + 1 if causal else len(keys)) for i in range(len(queries))]
    return seen


def losses(scores: Tensor, p: Tensor, places: list[list[int]]) -> Tensor:
    """The sum over the queries of the divergence of their scores from p."""
    total = scores.new_zeros(())
    for row, own in enumerate(places):
        y = torch.log_softmax(scores[row, own], -1)
        target = p[row, own]
        total = total + (target * (target.log() - y)).sum()
    return total


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("layout", ["BSND", "TND"])
@pytest.mark.parametrize("kind", ["sparse", "dense", "dense of several heads", "dense without rotary parts"])
@pytest.mark.parametrize("mode", [0, 3])
@pytest.mark.parametrize("numbers", [1, memory.NUMBERS])
def test_losses(dtype: Any, layout: str, kind: str, mode: int, numbers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "NUMBERS", numbers)
    heads, key_heads = 4, {"sparse": 1, "dense": 4}.get(kind, 2)
    q, k = torch.randn(8, heads, 6).to(dtype), torch.randn(18, key_heads, 6).to(dtype)
    q_rope, k_rope = torch.randn(8, heads, 2).to(dtype), torch.randn(18, key_heads, 2).to(dtype)
    qi, ki, w = (t.to(dtype) for t in (torch.randn(8, 5, 6), torch.randn(18, 6), torch.randn(8, 5) / 5))
    if kind.endswith("without rotary parts"):
        q_rope = k_rope = None
    seen = whole_limits(layout, mode == 3)
    indices = lists(5, 9)
    indices[:, 0] = torch.arange(8) % 2  # every query sees its first keys
    indices[:, 1:] = indices[:, 1:].masked_fill(indices[:, 1:] <= 1, -1)
    places = named(indices, seen) if kind == "sparse" else [[b + i for i in range(n)] for b, n in seen]
    full = (q, k) if q_rope is None else (torch.cat((q, q_rope), -1), torch.cat((k, k_rope), -1))
    logits = SCALE * torch.einsum("tgnd,kgd->tgnk", full[0].double().unflatten(1, (key_heads, -1)), full[1].double())
    p = torch.zeros(8, 18, dtype=torch.float64)
    largest, total = (torch.zeros(8, key_heads, heads // key_heads, dtype=torch.float64) for _ in range(2))
    for row, own in enumerate(places):
        p[row, own] = logits[row, ..., own].softmax(-1).mean((0, 1))
        largest[row] = logits[row, ..., own].amax(-1)
        total[row] = (logits[row, ..., own] - largest[row].unsqueeze(-1)).exp().sum(-1)
    wanted, derived = gradients(
        lambda q, k, w: losses(indexed(q, k, w), p, places), [qi, ki, w], torch.ones((), dtype=torch.float64)
    )
    given: list[Tensor] = [shaped(t, layout) for t in (q, k, qi, ki.unsqueeze(1), w)]
    statistics = [shaped(t, layout).transpose(-3, -2) for t in (largest, total)]
    statistics = [t if dtype == torch.float64 else t.float() for t in statistics]
    lengths: Any = {} if layout == "BSND" else {"actual_seq_qlen": [3, 8], "actual_seq_klen": [7, 18]}
    options = lengths | {"layout": layout, "sparse_mode": mode}
    ropes = {} if q_rope is None else {"query_rope": shaped(q_rope, layout), "key_rope": shaped(k_rope, layout)}
    if kind == "sparse":
        own = shaped(indices.unsqueeze(1), layout)
        *got, loss = SPARSE_LOSS(*given, own, *statistics, SCALE, **ropes, **options)
    else:
        found = STATISTICS(*given[2:], **options)
        scores = indexed(*(t.double() for t in (qi, ki, w)))
        most = torch.stack([scores[row, own].amax() for row, own in enumerate(places)])
        sums = torch.stack([(scores[row, own] - most[row]).exp().sum() for row, own in enumerate(places)])
        for statistic, value in zip(found, (most, sums), strict=True):
            assert list(statistic.shape) == ([2, 1, 4] if layout == "BSND" else [1, 8])
            near(statistic.flatten(), value)
        *got, loss = DENSE_LOSS(*given, *statistics, *found, SCALE, **ropes, **options)
    assert list(loss.shape) == [1]
    assert loss.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    near(loss / 10, wanted.view(1) / 10)
    for gradient, value, tensor in zip(got, derived, given[2:], strict=True):
        assert gradient.dtype == dtype
        near(gradient, value.view(tensor.shape))


def test_refusals() -> None:
    q, k, indices = torch.randn(2, 4, 3, 6), torch.randn(2, 9, 1, 6), torch.zeros(2, 4, 1, 5, dtype=torch.int32)

    def attention(sentence: str, *given: Any, **options: Any) -> None:
        refused(sentence, ATTENTION, *given, SCALE, **{"attention_mode": 2, **options})

    attention("attention_mode is 0, but must be 2", q, k, k, indices, attention_mode=0)
    attention("value is None", q, k, None, indices)
    attention("layout_kv is 'TND'", q, k, k, indices, layout_kv="TND")
    attention("the layout is 'BNSD'", q, k, k, indices, layout_query="BNSD", layout_kv="BNSD")
    attention("block_table is None, but must be int32 or int64", q, k, k, indices, layout_kv="PA_BSND")
    pages, table = torch.randn(3, 4, 1, 6), torch.tensor([[0, 1], [2, 3]], dtype=torch.int32)
    paged = {"layout_kv": "PA_BSND", "block_table": table}
    attention("block_table is from 0 to 3, but must name one of 3 pages", q, pages, pages, indices, **paged)
    paged["actual_seq_lengths_kv"] = torch.tensor([8, 4])
    assert ATTENTION(q, pages, pages, indices, SCALE, attention_mode=2, **paged)[0].shape == q.shape
    attention("key is of shape [0, 4, 1, 6], but must have a page", q, pages[:0], pages, indices, **paged)
    attention("query is of shape [2, 4], but must have 4 dimensions", q[..., 0, 0], k, k, indices)
    for lengths in (torch.tensor([9.0, 9.0]), torch.tensor(9), torch.ones(2, 1).long()):
        attention("but must be int32 or int64, of 1 dimension", q, k, k, indices, actual_seq_lengths_kv=lengths)
    attention("return_softmax_lse is True", q, k, k, indices, layout_kv="PA_BSND", return_softmax_lse=True)
    attention("sparse_mode is 2", q, k, k, indices, sparse_mode=2)
    attention("pre_tokens is 5, but must be at least 2147483647", q, k, k, indices, sparse_mode=0, pre_tokens=5)
    attention("sparse_block_size is 0", q, k, k, indices, sparse_block_size=0)
    attention("query_rope or key_rope is None", q, k, k, indices, query_rope=q)
    attention("key is torch.float16", q, k.half(), k, indices)
    attention("key is of shape [18, 2, 3]", q, k.view(2, 9, 2, 3), k, indices)
    attention("sparse_indices is of shape [2, 3, 1, 5]", q, k, k, indices[:, 1:])
    attention("sparse_indices is torch.float32", q, k, k, indices.float())
    attention("sinks is of shape [2]", q, k, k, indices, sinks=torch.ones(2))
    attention(
        "actual_seq_lengths_kv is [9, 10], but must have a number from 0 to 9",
        *(q, k, k, indices),
        actual_seq_lengths_kv=torch.tensor([9, 10]),
    )
    empty = torch.empty(0)
    refused(
        "softmax_max is of shape [0], but must have that of the forward's result with return_softmax_lse",
        ATTENTION_GRAD,
        *(q, k, k, indices, q, q, empty, empty, SCALE, 1),
    )
    saved = torch.ones(2, 1, 4, 3)
    for sentence, changed in (
        ("d_out is torch.int64", {"d_out": q.long()}),
        ("out is torch.float64", {"out": q.double()}),
        ("softmax_sum is torch.int64", {"softmax_sum": saved.long()}),
    ):
        named = {"d_out": q, "out": q, "softmax_max": saved, "softmax_sum": saved, **changed}
        given = {"scale_value": SCALE, "sparse_block_size": 1, **named}
        refused(sentence, ATTENTION_GRAD, q, k, k, indices, **given)
    w = torch.rand(2, 4, 3)
    refused("sparse_count is 0", INDEXER, q, k, w, sparse_count=0)
    refused("weights is of shape [2, 3]", INDEXER, q, k, w[:, 0])
    refused("key is of shape [18, 2, 3]", INDEXER, q, k.view(2, 9, 2, 3), w)
    refused("return_value is True", INDEXER, q, k, w, layout_key="PA_BSND", return_value=True)
    refused("actual_seq_qlen is None".replace("actual_seq_qlen", "the ends of the queries"), INDEXER, q[0], k[0], w[0],
            layout_query="TND", layout_key="TND")  # fmt: skip
    refused("dy is torch.int64", INDEXER_GRAD, q, k, indices.long(), indices, w)
    refused("dy is of shape [3]", INDEXER_GRAD, q, k, torch.ones(3), indices, w)
    statistics = torch.ones(2, 1, 4, 3)
    sparse = (q, k, q, k, w, indices, statistics, statistics, SCALE)
    refused("sinks is given, but must be None", SPARSE_LOSS, *sparse, sinks=torch.ones(3))
    refused("the ends of the queries is [4, 9]", SPARSE_LOSS, *sparse, actual_seq_qlen=[4, 9])
    refused("query is torch.int64", SPARSE_LOSS, q.long(), *sparse[1:])
    refused("key is torch.float64, but must be float64 where query_index is", SPARSE_LOSS, q, k.double(), *sparse[2:])
    refused("softmax_max is torch.int64", SPARSE_LOSS, *sparse[:6], statistics.long(), statistics, SCALE)
    refused("softmax_max is of shape [4]", SPARSE_LOSS, *sparse[:6], torch.ones(4), statistics, SCALE)
    several = (q, k.expand(-1, -1, 3, -1), *sparse[2:])
    refused("softmax_max is of shape [2, 1, 4, 3], but must have that of the statistics", SPARSE_LOSS, *several)
    per_head = torch.ones(2, 3, 4, 1)
    refused("key is of 3 heads, but must have one", SPARSE_LOSS, *several[:6], per_head, per_head, SCALE)
    dense = (*sparse[:5], statistics, statistics, torch.ones(2, 4), torch.ones(2, 1, 4), SCALE)
    refused("softmax_max_index is of shape [2, 4]", DENSE_LOSS, *dense)
    refused("softmax_sum_index is torch.int64", DENSE_LOSS, *dense[:8], torch.ones(2, 1, 4).long(), SCALE)


def test_autograd_on_the_device() -> None:
    torch_npu: Any = pytest.importorskip("torch_npu")
    given = [torch.randn(shape) for shape in ((8, 3, 6), (18, 6), (18, 6), (8, 3, 2), (18, 2))]
    dy, indices = torch.randn(8, 3, 6), lists(4, 9)
    places = named(indices, whole_limits("BSND", True))

    def defined(q: Tensor, k: Tensor, v: Tensor, q_rope: Tensor, k_rope: Tensor) -> Tensor:
        return attended(torch.cat((q, q_rope), -1), torch.cat((k, k_rope), -1), v, places)

    wanted, derived = gradients(defined, given, dy)
    leaves = [t.npu().requires_grad_() for t in given]
    q, k, v, q_rope, k_rope = (shaped(t if t.dim() == 3 else t.unsqueeze(1), "BSND") for t in leaves)
    lengths = {
        "actual_seq_lengths_query": torch.tensor([4, 4]).npu(),
        "actual_seq_lengths_kv": torch.tensor([9, 9]).npu(),
    }
    options: Any = {"query_rope": q_rope, "key_rope": k_rope, "attention_mode": 2, "return_softmax_lse": True}
    own = indices.view(2, 4, 1, 4).npu()
    out = torch_npu.npu_sparse_flash_attention(q, k, v, own, SCALE, **lengths, **options)[0]
    near(out.detach().cpu().flatten(0, 1), wanted)
    for got, value in zip(torch.autograd.grad(out, leaves, shaped(dy, "BSND").npu()), derived, strict=True):
        near(got.cpu() / 4, value / 4)

    q, k, w = torch.randn(2, 4, 5, 6), torch.randn(2, 9, 1, 6), torch.randn(2, 4, 5)
    leaves = [t.npu().requires_grad_() for t in (q, k, w)]
    indices, values = torch_npu.npu_lightning_indexer(*leaves, sparse_count=3, sparse_mode=0, return_value=True)
    dy = torch.randn(2, 4, 1, 3)

    def scored(q: Tensor, k: Tensor, w: Tensor) -> Tensor:
        scores = torch.stack([indexed(q[b], k[b, :, 0], w[b]) for b in range(2)])
        return scores.gather(-1, indices.cpu().squeeze(2).long()).unsqueeze(2)

    wanted, derived = gradients(scored, [q, k, w], dy)
    near(values.detach().cpu(), wanted)
    for got, value in zip(torch.autograd.grad(values, leaves, dy.npu()), derived, strict=True):
        near(got.cpu() / 4, value / 4)


def test_probabilities_are_at_least_1e_8_in_the_loss() -> None:
    q, k, one = torch.ones(1, 2, 1, 1), torch.tensor([0.0, 100.0]).view(1, 2, 1, 1), torch.ones(1, 2, 1)
    statistics = (torch.zeros(1, 1, 2, 1), torch.full((1, 1, 2, 1), 2.0))
    lse = STATISTICS(q, k, one, sparse_mode=0)
    *_, loss = DENSE_LOSS(q, k, q, k, one, *statistics, *lse, 0.0, sparse_mode=0)
    half = torch.tensor(0.5, dtype=torch.float64)
    near(loss, (2 * half * (half.log() - torch.tensor(1e-8, dtype=torch.float64).log() + half.log())).view(1))
