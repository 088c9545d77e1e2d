"""Operators on parts of tensors, choices, norms of sums: against loops in float64; refusals."""

from __future__ import annotations

import math
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from descend.npu.composed.attention import pieces  # noqa: E402
from descend.npu.composed.layers import fused_norms  # noqa: E402
from descend.npu.composed.tensors import paged, regions, sampling, scatters  # noqa: E402
from test_npu_composed import FLOATS, near, refused  # noqa: E402

Tensor = Any
INTEGERS = [torch.int32, torch.int64]


@pytest.mark.parametrize("index", INTEGERS, ids=str)
@pytest.mark.parametrize("columns", [1, 2, 3])
def test_scatter_nd_update(index: Any, columns: int) -> None:
    x = torch.randn(4, 3, 2)
    flat = torch.randperm(math.prod(x.shape[:columns]))[:3]
    places = torch.stack(torch.unravel_index(flat, x.shape[:columns]), -1).to(index)
    updates = torch.randn(3, *x.shape[columns:])
    wanted = x.clone()
    for place, update in zip(places.tolist(), updates, strict=True):
        wanted[tuple(place)] = update
    before = x.clone()
    assert torch.equal(scatters.npu_scatter_nd_update(x, places, updates), wanted)
    assert torch.equal(x, before)
    assert scatters.npu_scatter_nd_update_(x, places, updates) is x
    assert torch.equal(x, wanted)


@pytest.mark.parametrize("index", INTEGERS, ids=str)
@pytest.mark.parametrize("axis", [1, -2, 2, -1])
@pytest.mark.parametrize("pairs", [True, False])
def test_scatter_update(index: Any, axis: int, pairs: bool) -> None:
    x = torch.randn(4, 3, 5, 6)
    shape = list(x.shape)
    shape[axis], shape[0] = 2, 3
    updates = torch.randn(shape)
    begins, rows = torch.tensor([0, 1, 1]), torch.tensor([2, 0, 3])
    wanted = x.clone()
    for i in range(3):
        at = int(rows[i]) if pairs else i
        wanted[at].narrow(axis % 4 - 1, int(begins[i]), 2).copy_(updates[i])
    indices = (torch.stack((rows, begins), 1) if pairs else begins).to(index)
    assert torch.equal(scatters.scatter_update(x, indices, updates, axis), wanted)
    assert scatters.scatter_update_(x, indices, updates, axis) is x
    assert torch.equal(x, wanted)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("shape", [(7,), (2, 3), ()])
def test_gather_sparse_index(dtype: Any, shape: tuple[int, ...]) -> None:
    x, index = torch.randn(5, 3, 2).to(dtype), torch.randint(0, 5, shape).int()
    leaf = x.double().requires_grad_()
    wanted = leaf[index.long()]
    assert torch.equal(scatters.npu_gather_sparse_index(x, index).double(), wanted)
    dy = torch.randn(wanted.shape).to(dtype)
    (dx,) = torch.autograd.grad(wanted, leaf, dy.double())
    near(scatters.npu_gather_sparse_index_backward(dy, x.shape, index), dx)


def test_index_add() -> None:
    x, index, source = torch.randn(4, 3), torch.tensor([1, 1, 3]).int(), torch.randn(3, 3)
    wanted = x.clone()
    for at, row in zip(index.tolist(), source, strict=True):
        wanted[at] += 2 * row
    near(scatters._npu_index_add(x, index, source, alpha=2), wanted.double())
    assert scatters._npu_index_add_(x, index, source, alpha=2) is x
    near(x, wanted.double())


@pytest.mark.parametrize("form", ["NZ", "rows"])
@pytest.mark.parametrize("index", INTEGERS, ids=str)
def test_scatter_into_pages(form: str, index: Any) -> None:
    key, value = torch.randn(5, 2, 4), torch.randn(5, 2, 8)
    pages = [torch.randn((3, 2 * d // 4, 6, 4) if form == "NZ" else (3, 6, 2, d)) for d in (4, 8)]
    slots = torch.tensor([17, 0, -1, 7, 8]).to(index)
    wanted = [page.clone() for page in pages]
    for token, slot in enumerate(slots.tolist()):
        if slot >= 0:
            for rows, page in ((key, wanted[0]), (value, wanted[1])):
                if form == "NZ":
                    page[slot // 6, :, slot % 6] = rows[token].reshape(-1, 4)
                else:
                    page[slot // 6, slot % 6] = rows[token]
    mode = "PA_NZ" if form == "NZ" else "Norm"
    before = [page.clone() for page in pages]
    got = scatters.npu_scatter_pa_kv_cache_functional(key, value, *pages, slots, cache_mode=mode)
    for one, other, page, old in zip(got, wanted, pages, before, strict=True):
        assert torch.equal(one, other)
        assert torch.equal(page, old)
    assert scatters.npu_scatter_pa_kv_cache(key, value, *pages, slots, cache_mode=mode) is None
    assert torch.equal(pages[0], wanted[0])
    assert torch.equal(pages[1], wanted[1])


def test_scatter_keys_alone() -> None:
    key, pages, slots = torch.randn(5, 2, 4), torch.randn(3, 6, 2, 4), torch.tensor([17, 0, -1, 7, 8])
    wanted = pages.clone()
    scatters.npu_scatter_pa_kv_cache(key, key, wanted, wanted, slots, cache_mode="Norm")
    assert scatters.npu_scatter_pa_cache(key, slots, key_cache=pages) is pages
    assert torch.equal(pages, wanted)
    for name in ("compress_lens", "compress_seq_offsets", "seq_lens"):
        given: Any = {name: slots}
        message = f"npu_scatter_pa_cache: {name} is given, but must be None"
        refused(message, scatters.npu_scatter_pa_cache, key, slots, key_cache=pages, **given)


@pytest.mark.parametrize("form", ["NZ", "rows"])
@pytest.mark.parametrize("are_ends", [False, True])
@pytest.mark.parametrize("offsets", [None, [0, 5, 2, 6]])
@pytest.mark.parametrize("index", INTEGERS, ids=str)
@pytest.mark.parametrize("tokens", [9, 13, 15])
def test_gather_from_pages(form: str, are_ends: bool, offsets: Any, index: Any, tokens: int) -> None:
    """Sequences of 4, 0, 7 and 2 rows, from pages of 3; some pages are not there, and some sequences have too few."""
    caches = [torch.randn((4, 2 * d // 4, 3, 4) if form == "NZ" else (4, 3, 2, d)) for d in (4, 8)]
    tables = torch.tensor([[1, 3], [0, 0], [2, -1], [4, 3]]).to(index)
    counts = [4, 0, 7, 2]
    lengths = torch.tensor([0, 4, 4, 11, 13] if are_ends else counts).to(index)
    key, value = torch.randn(tokens, 2, 4), torch.randn(tokens, 2, 8)
    wanted = [key.clone(), value.clone()]
    row = 0
    for sequence, count in enumerate(counts):
        for j in range(count):
            place = (0 if offsets is None else offsets[sequence] // 3) + j // 3
            page = int(tables[sequence, place]) if place < 2 else -1
            for cache, rows in zip(caches, wanted, strict=True):
                if row < tokens:
                    rows[row] = 0
                    if 0 <= page < 4:
                        found = cache[page, :, j % 3] if form == "NZ" else cache[page, j % 3]
                        rows[row] = found.reshape(2, -1)
            row += 1
    before = [key.clone(), value.clone()]
    options: Any = {
        "seq_offset": None if offsets is None else torch.tensor(offsets).to(index), "is_seq_lens_cumsum": are_ends
    }  # fmt: skip
    got = paged.npu_gather_pa_kv_cache_functional(*caches, tables, lengths, key, value, **options)
    for one, other, given, old in zip(got, wanted, (key, value), before, strict=True):
        assert torch.equal(one, other)
        assert torch.equal(given, old)
    assert paged.npu_gather_pa_kv_cache(*caches, tables, lengths, key, value, **options) is None
    assert torch.equal(key, wanted[0])
    assert torch.equal(value, wanted[1])


def test_gather_refusals() -> None:
    cache, table, rows = torch.randn(4, 3, 2, 4), torch.zeros(2, 2).int(), torch.randn(5, 2, 4)
    lengths = torch.tensor([2, 3]).int()

    def refusal(sentence: str, **changed: Any) -> None:
        given: Any = {
            "key_cache": cache, "value_cache": cache, "block_tables": table, "seq_lens": lengths, "key": rows,
            "value": rows,
        }  # fmt: skip
        before = rows.clone()
        refused(f"npu_gather_pa_kv_cache: {sentence}", paged.npu_gather_pa_kv_cache, **{**given, **changed})
        assert torch.equal(rows, before)

    refusal("key_cache is torch.float64, but must be float32", key_cache=cache.double())
    refusal("value_cache is of shape [4, 3, 2, 3], but must hold 2 * 4 numbers", value_cache=cache[..., :3])
    refusal("key is of shape [5, 8], its cache [4, 3, 2, 4], but must have 3 dimensions", key=rows.flatten(1))
    refusal("seq_lens is of shape [2], but must have that of", is_seq_lens_cumsum=True)
    refusal("seq_lens is [2, -1], but must not be negative", seq_lens=torch.tensor([2, -1]).int())
    refusal("seq_offset is [0, -1], but must not be", seq_offset=torch.tensor([0, -2]).int())
    refusal("block_tables is torch.float32, but must be int32 or int64", block_tables=table.float())
    refusal("block_tables is of shape [2], but must have 2 dimensions", block_tables=table[0])
    refusal("value or value_cache is unlike key or key_cache", value=rows[:4])


def test_indexing() -> None:
    x = torch.arange(24).view(2, 3, 4)
    cut = regions.npu_indexing
    assert torch.equal(cut(x, [0, 1], [2, 3], [1, 1]), x[0:2, 1:3])
    assert torch.equal(cut(x, [0, 0, 0], [2, 3, 4], [1, 2, 3]), x[:, ::2, ::3])
    assert torch.equal(cut(x, [1, 2, -1], [0, 0, -5], [-1, -1, -2]), x.flip(0)[:1].flip(1)[:, :2][:, :, [3, 1]])
    assert torch.equal(cut(x, [1, 1], [1, 1], [1, 1], begin_mask=1, end_mask=2), x[:1, 1:])
    assert torch.equal(cut(x, [0, 0, 1], [0, 0, 3], [1, 1, 1], ellipsis_mask=2, shrink_axis_mask=1), x[0, ..., 1:3])
    assert torch.equal(cut(x, [0, 0], [0, 1], [1, 1], new_axis_mask=1), x[None, 0:1])
    out = torch.empty(0, dtype=torch.int64)
    assert regions.npu_indexing_out(x, [0], [1], [1], out=out) is out
    assert torch.equal(out, x[:1])
    refused("strides is [0]", cut, x, [0], [1], [0])
    refused("begin, end and strides is [0], [1, 2] and [1]", cut, x, [0], [1, 2], [1])
    refused("begin is [0, 0, 0, 0]", cut, x, [0] * 4, [1] * 4, [1] * 4)
    refused("begin is [5]", cut, x, [5], [6], [1], shrink_axis_mask=1)
    refused("ellipsis_mask is 3", cut, x, [0, 0], [1, 1], [1, 1], ellipsis_mask=3)


def test_stride_copy() -> None:
    x = torch.randn(4, 4)
    assert torch.equal(regions.npu_stride_copy(x, [2, 2], [1, 2], 1), torch.as_strided(x, [2, 2], [1, 2], 1))
    out = torch.empty(0)
    assert regions.npu_stride_copy_out(x, [3], [5], 0, out=out) is out
    assert torch.equal(out, x.diagonal()[:3])
    refused("up to 20, but must lie in the 16 numbers", regions.npu_stride_copy, x, [4], [5], 4)
    refused("is [2, 2], [1] and 0", regions.npu_stride_copy, x, [2, 2], [1], 0)


@pytest.mark.parametrize(
    ("shape", "axis"), [((9,), 0), ((3, 9), 1), ((3, 9), 0), ((3, 4, 9), 2), ((3, 9, 4), 1), ((9, 3, 4), -3)]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.int8], ids=str)
def test_masked_fill_range(shape: tuple[int, ...], axis: int, dtype: Any) -> None:
    x = torch.randint(-9, 9, shape).to(dtype)
    columns = shape[0] if len(shape) > 1 else 1
    size = shape[axis]
    start = torch.randint(0, size // 2 + 1, (2, columns))
    end, value = start + torch.randint(0, size // 2 + 1, (2, columns)), torch.tensor([5, 7]).to(dtype)
    wanted, last = x.clone(), len(shape) > 1 and axis % len(shape) == len(shape) - 1
    for i in range(2):
        for j in range(columns):
            for k in range(int(start[i, j]), int(end[i, j])):
                (wanted[j].select(-1, k) if last else wanted.select(axis, k)).fill_(value[i])
    assert torch.equal(regions.npu_masked_fill_range(x, start.int(), end.int(), value, axis), wanted)


def test_bits_of_signs() -> None:
    for count, size in ((17, 1), (8, 1), (32, 2), (33, 5), (14, 2)):
        x = torch.randn(count)
        x[3] = 0
        packed = regions.npu_sign_bits_pack(x, size)
        bits = [sum(1 << i for i, n in enumerate(x[b : b + 8].tolist()) if n >= 0) for b in range(0, count, 8)]
        assert packed.flatten().tolist() == bits
        assert (len(packed), packed.dtype) == (size, torch.uint8)
        for dtype in (torch.float16, torch.float32):
            signs = regions.npu_sign_bits_unpack(packed.flatten(), 2, dtype)
            assert (len(signs), signs.dtype) == (2, dtype)
            assert signs.flatten()[:count].tolist() == [1.0 if n >= 0 else -1.0 for n in x.tolist()]
            assert set(signs.flatten()[count:].tolist()) <= {-1.0}
    refused("size is 2, but must divide the 3 numbers", regions.npu_sign_bits_pack, torch.ones(17), 2)
    refused("self is of shape [2, 8]", regions.npu_sign_bits_pack, torch.ones(2, 8), 1)
    refused("dtype is torch.float64", regions.npu_sign_bits_unpack, torch.ones(2).byte(), 1, torch.float64)
    refused("input is torch.float32", regions.npu_sign_bits_unpack, torch.ones(2), 1, torch.float32)


def test_random_choice() -> None:
    choose = sampling.npu_random_choice_with_mask
    x = torch.rand(6, 7) < 0.5
    places = {tuple(p) for p in x.nonzero().tolist()}
    count = len(places)
    got, mask = choose(x, 5, 3, 4)
    assert len({tuple(p) for p in got.tolist()} & places) == 5
    assert (got.dtype, mask.tolist()) == (torch.int32, [True] * 5)
    assert torch.equal(choose(x, 5, 3, 4)[0], got)
    seen = {tuple(map(tuple, choose(x, 5)[0].tolist())) for _ in range(8)}
    assert len(seen) > 1
    every, whole = choose(x, 0)
    assert {tuple(p) for p in every.tolist()} == places
    assert int(whole.sum()) == count
    padded, used = choose(x, 64)
    assert padded.shape == (64, 2)
    assert int(used.sum()) == count
    assert not padded[count:].any()
    assert choose(torch.tensor([1, 0, 1, 0]).bool(), 2, 1, 0)[0].tolist() == [[0], [2]]
    refused("x is torch.float32", choose, torch.ones(3), 2)
    refused("count is -1", choose, x, -1)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_top_k_top_p(dtype: Any) -> None:
    logits = torch.randn(4, 9).to(dtype)
    k, p = torch.tensor([1, 3, 9, 5]).int(), torch.tensor([0.5, 0.9, 0.3, 1.0]).to(dtype)
    for top_k, top_p in ((k, None), (None, p), (k, p), (None, None)):
        wanted = logits.clone()
        for row in range(4):
            order = sorted(range(9), key=lambda i: float(logits[row, i]))
            if top_k is not None:
                wanted[row, order[: 9 - int(k[row])]] = -torch.inf
            if top_p is not None:
                share = wanted[row].float().softmax(-1)
                total = 0.0
                for i in order[:-1]:
                    total += float(share[i])
                    if total <= 1 - float(p[row]):
                        wanted[row, i] = -torch.inf
        assert torch.equal(sampling.npu_top_k_top_p(logits, top_p, top_k), wanted)
    refused("k is from 0 to 3", sampling.npu_top_k_top_p, logits[:2], None, torch.tensor([0, 3]).int())
    refused("p is of shape [4]", sampling.npu_top_k_top_p, logits[:2], p)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_norms_of_sums(dtype: Any) -> None:
    one, other, gamma = (torch.randn(shape).to(dtype) for shape in ((2, 3, 8), (2, 3, 8), (8,)))
    y, narrow, rstd, x = fused_norms.npu_add_rms_norm_cast(one, other, gamma, 1e-5)
    total = one.double() + other.double()
    scale = (total.square().mean(-1, keepdim=True) + 1e-5).rsqrt()
    near(y, total * scale * gamma.double())
    near(narrow, total * scale * gamma.double())
    near(rstd, scale)
    near(x, total)
    assert y.dtype == rstd.dtype == (torch.float64 if dtype is torch.float64 else torch.float32)
    given, lengths = torch.rand(3, 4, 9).to(dtype) + 1, torch.tensor([3, 9, 5]).int()
    for kind in (0, 1):
        wanted = []
        for row, length in enumerate(lengths.tolist()):
            part = given[row, :, :length].double()
            part = part if kind == 0 else part.reshape(1, -1)
            wanted.append((given[row].double() - part.mean(1, True)) / (part.std(1, keepdim=True) + 1e-5))
        near(fused_norms.npu_normalize_batch(given, lengths, kind), torch.stack(wanted), size=20.0)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_softmax_of_sums(dtype: Any) -> None:
    x, mask, bias = (torch.randn(shape).to(dtype) for shape in ((2, 3, 4, 5, 6), (3, 5, 6), (4, 5, 6)))
    wanted = (x.double() * 0.5 + mask.double()[:, None] + bias.double()).softmax(-1)
    softmax = pieces.npu_masked_softmax_with_rel_pos_bias
    near(softmax(x, mask, bias, 0.5), wanted)
    near(softmax(x.flatten(0, 1), mask[:, None], bias[None, None], 0.5), wanted.flatten(0, 1))
    near(softmax(x, mask.view(1, 3, 1, 5, 6), bias[None], 0.5), wanted)
    near(softmax(x, None, bias), (x.double() + bias.double()).softmax(-1))
    refused("atten_mask is of shape [4, 5, 6]", softmax, x, bias, bias)
    refused("relative_pos_bias is of shape [3, 5, 6]", softmax, x, mask, mask)
    refused("x is of shape [5, 6]", softmax, x[0, 0, 0], mask, bias)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_gradient_of_a_softmax_before_a_product(dtype: Any) -> None:
    x, values = torch.randn(2, 5, 6).to(dtype), torch.randn(2, 6, 3).to(dtype)
    grad_output, backward = torch.randn(2, 5, 3).to(dtype), pieces.npu_attn_softmax_backward_
    held = x.double().softmax(-1).to(dtype)
    dy = grad_output.double() @ values.double().transpose(1, 2)
    y = held.double()
    wanted = y * (dy - (y * dy).sum(-1, keepdim=True))
    assert backward(held, grad_output, values) is held
    near(held, wanted, size=2.0)
    refused("input is of shape [2, 5, 6]", backward, x, grad_output[:, :4], values)
    refused("values is of shape [2, 6, 2]", backward, x, grad_output, values[..., :2])
    npu = pytest.importorskip("torch_npu")
    on_device = x.softmax(-1).npu()
    npu.npu_attn_softmax_backward_(on_device, grad_output.npu(), values.npu())
    assert torch.equal(on_device.cpu(), backward(x.softmax(-1), grad_output, values))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_attention_update(dtype: Any) -> None:
    scores, values = torch.randn(5, 12).double(), torch.randn(12, 8).double()
    parts, outs = [], []
    for piece in (slice(0, 3), slice(3, 4), slice(4, 12)):
        sums = scores[:, piece].logsumexp(-1)
        parts.append(sums if dtype is torch.float64 else sums.float())
        outs.append(((scores[:, piece] - sums[:, None]).exp() @ values[piece]).to(dtype))
    out, total = pieces.npu_attention_update(parts, outs, 1)
    near(
        out,
        torch.stack(
            [
                (o.double() * (s.double() - scores.logsumexp(-1)).exp()[:, None])
                for o, s in zip(outs, parts, strict=True)
            ]
        ).sum(0),
        size=2.0,
    )
    near(total, scores.logsumexp(-1), size=4.0)
    assert pieces.npu_attention_update(parts, outs, 0)[1] is None
    refused("update_type is 2", pieces.npu_attention_update, parts, outs, 2)
    refused("lse and local_out is 1 and 3 tensors", pieces.npu_attention_update, parts[:1], outs, 0)


def test_a_write_that_is_refused_has_written_nothing() -> None:
    key, slots = torch.ones(2, 2, 8), torch.tensor([0, 11])
    for value, pages in ((key[..., :7], (3, 4, 2, 8)), (key, (2, 4, 2, 8)), (key.double(), (3, 4, 2, 8))):
        keys, values = torch.zeros(3, 4, 2, 8), torch.zeros(pages)
        refused("", scatters.npu_scatter_pa_kv_cache, key, value, keys, values, slots, cache_mode="Norm")
        assert not keys.any()
        assert not values.any()


def test_refusals() -> None:
    x, index = torch.randn(4, 3), torch.tensor([[0], [4]])
    refused("indices is from 0 to 4", scatters.npu_scatter_nd_update, x, index, torch.randn(2, 3))
    refused("updates is of shape [2, 2]", scatters.npu_scatter_nd_update, x, index, torch.randn(2, 2))
    refused("indices is torch.float32", scatters.npu_scatter_nd_update, x, index.float(), torch.randn(2, 3))
    refused("indices is of shape [2]", scatters.npu_scatter_nd_update, x, index[:, 0], torch.randn(2, 3))
    refused("updates is torch.float64", scatters.npu_scatter_nd_update, x, index, torch.randn(2, 3).double())
    refused("axis is 0", scatters.scatter_update, x, torch.zeros(4).int(), x, 0)
    refused(
        "indices is from 0 to 1, but must be from 0 to 0", scatters.scatter_update, x, torch.tensor([0, 1, 0, 0]), x, 1
    )
    refused("indices is of shape [3]", scatters.scatter_update, x, torch.zeros(3).int(), x, 1)
    refused("index is from 0 to 4", scatters.npu_gather_sparse_index, x, index)
    refused("grad is of shape [4, 3]", scatters.npu_gather_sparse_index_backward, x, [4, 3], index)
    refused("index is from 0 to 4", scatters.npu_gather_sparse_index_backward, torch.ones(2, 1, 3), [4, 3], index)
    refused("index is from -1 to 3", scatters.npu_gather_sparse_index_backward, torch.ones(2, 1, 3), [4, 3], index - 1)
    refused("self_sizes is []", scatters.npu_gather_sparse_index_backward, torch.ones(2), [], index[:, 0])
    for add in (scatters._npu_index_add, scatters._npu_index_add_):
        refused("index is from 0 to 4", add, x, index[:, 0], x[:2])
        refused("index is torch.float32", add, x, torch.ones(1), x[:1])
    key, pages, slots = torch.randn(2, 2, 4), torch.randn(3, 2, 6, 4), torch.tensor([0, 1])
    write = scatters.npu_scatter_pa_kv_cache
    refused("seq_lens is given", write, key, key, pages, pages, slots, seq_lens=slots)
    refused("cache_mode is 'NZ'", write, key, key, pages, pages, slots, cache_mode="NZ")
    refused("key_cache is of shape [3, 2, 6, 4]", write, key, key, pages, pages, slots, cache_mode="Norm")
    refused("slot_mapping is from 0 to 18", write, key, key, pages, pages, slots * 18)
    refused("slot_mapping is of shape [1]", write, key, key, pages, pages, slots[:1])
    norm = fused_norms.npu_add_rms_norm_cast
    refused("x2 is of shape [3, 3]", norm, x, x[:3], x[0])
    refused("gamma is of shape [4]", norm, x, x, x[:, 0])
    refused("seq_len is from 0 to 1", fused_norms.npu_normalize_batch, torch.ones(2, 3, 4), torch.tensor([0, 1]))
    refused("normalize_type is 2", fused_norms.npu_normalize_batch, torch.ones(2, 3, 4), torch.tensor([1, 1]), 2)
    fill, one = regions.npu_masked_fill_range, torch.zeros(1, 4).int()
    refused("start and end is 0 and 9", fill, x, one, one + 9, torch.ones(1), 0)
    refused("end is of shape [1, 3]", fill, x, one, one[:, :3], torch.ones(1), 0)
    refused("value is of shape [2]", fill, x, one, one, torch.ones(2), 0)
    refused("axis is 2", fill, x, one, one, torch.ones(1), 2)


@pytest.mark.filterwarnings("ignore")
def test_on_the_device() -> None:
    npu = pytest.importorskip("torch_npu")
    x = torch.randn(5, 3, dtype=torch.float64).npu().requires_grad_()
    index = torch.tensor([[1, 1], [4, 0]]).npu()
    assert torch.autograd.gradcheck(lambda x: npu.npu_gather_sparse_index(x, index), (x,))
    plain = torch.randn(4, 5).npu()
    assert torch.equal(npu.npu_scatter_nd_update(plain, index[:1, :1], plain[:1])[1], plain[0])
    npu.npu_scatter_nd_update_(plain, index[:1, :1], plain[:1].clone())
    assert torch.equal(plain[1], plain[0])
    cache, row = torch.zeros(2, 1, 4, 3).npu(), torch.ones(2, 1, 1, 3).npu()
    npu.scatter_update_(cache, torch.tensor([1, 3]).npu(), row, -2)
    assert cache.nonzero()[:, 2].tolist() == [1, 1, 1, 3, 3, 3]
    pages = torch.zeros(2, 3, 1, 4).npu()
    npu.npu_scatter_pa_kv_cache(
        torch.ones(1, 1, 4).npu(),
        torch.ones(1, 1, 4).npu(),
        pages,
        pages.clone(),
        torch.tensor([4]).npu(),
        cache_mode="Norm",
    )
    assert pages.nonzero()[:, :2].tolist() == [[1, 1]] * 4
    more = npu.npu_scatter_pa_cache(torch.ones(1, 1, 4).npu(), torch.tensor([0]).npu(), key_cache=pages)
    assert pages.nonzero()[:, :2].tolist() == [[0, 0]] * 4 + [[1, 1]] * 4
    assert torch.equal(more, pages)
    tables, lengths, read = torch.tensor([[1, 0]]).npu(), torch.tensor([4]).npu(), torch.zeros(4, 1, 4).npu()
    npu.npu_gather_pa_kv_cache(pages, pages, tables, lengths, read, read.clone())
    assert torch.equal(read, torch.cat((pages[1], pages[0, :1])))
    assert torch.equal(npu.npu_indexing(plain, [0, 0], [2, 2], [1, 1]), plain[:2, :2])
    packed = npu.npu_sign_bits_pack(plain.flatten(), 1)
    signs = npu.npu_sign_bits_unpack(packed.flatten(), 1, torch.float32).flatten()[:20]
    assert torch.equal(signs, torch.where(plain.flatten() >= 0, 1.0, -1.0))
    places, mask = npu.npu_random_choice_with_mask(plain > 0, 2)
    assert mask.tolist() == [True, True]
    assert bool((plain[places[:, 0].long(), places[:, 1].long()] > 0).all())
    kept = npu.npu_top_k_top_p(plain, torch.full((4,), 0.9).npu(), torch.full((4,), 2).int().npu())
    assert int((kept > -torch.inf).sum()) <= 8
    torch.npu.manual_seed(3)
    many = npu.npu_sim_exponential_(torch.empty(20000).npu(), 4.0)
    assert abs(float(many.mean()) - 0.25) < 0.01
    torch.npu.manual_seed(3)
    assert torch.equal(npu.npu_sim_exponential_(torch.empty(20000).npu(), 4.0), many)
    assert not npu.npu_sim_exponential_(torch.empty(3).npu(), float("inf")).any()
    assert len(npu.npu_add_rms_norm_cast(plain.half(), plain.half(), torch.ones(5).half().npu())) == 4
    assert npu.npu_masked_softmax_with_rel_pos_bias(plain.view(1, 1, 1, 4, 5), None, plain.view(1, 1, 4, 5)).shape == (
        1,
        1,
        1,
        4,
        5,
    )
    sums = [plain[:, 0].contiguous(), plain[:, 1].contiguous()]
    assert npu.npu_attention_update(sums, [plain, plain], 1)[0].shape == (4, 5)
    assert npu.npu_attention_update(sums, [plain, plain], 0)[1] is None
