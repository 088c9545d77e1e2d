"""The attentions of native sparse attention: each against loops in float64, gradients, refusals, autograd."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from descend.npu.composed import memory  # noqa: E402
from descend.npu.composed.attention import nsa  # noqa: E402
from test_npu_composed import FLOATS, gradients, near, refused  # noqa: E402

Tensor = Any
QUERIES, KEYS, BLOCKS = [4, 4, 11], [10, 13, 33], [3, 7, 12]
SCALE, STEPS = 0.4, {"compress_block_size": 32, "compress_stride": 16, "select_block_size": 64}


def parts(ends: list[int]) -> list[range]:
    return [range(begin, end) for begin, end in zip([0, *ends], ends, strict=False)]


def attended(q: Tensor, k: Tensor, v: Tensor, hidden: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """The attention of one query and its scores."""
    scores = SCALE * (k @ q)
    scores = scores if hidden is None else scores.masked_fill(hidden, -torch.inf)
    return torch.softmax(scores, -1) @ v, scores


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("heads", [2, 6])
def test_compress_attention(dtype: Any, masked: bool, heads: int) -> None:
    key_heads, count = 2, 3
    q, k, v = (torch.randn(shape).to(dtype) for shape in ((11, heads, 8), (33, key_heads, 8), (33, key_heads, 5)))
    atten_mask = torch.ones(7, 20, dtype=torch.bool).triu(1) if masked else None
    topk_mask = torch.eye(7, 5, dtype=torch.bool).to(torch.uint8) if masked else None
    ends = {"actual_seq_qlen": QUERIES, "actual_cmp_seq_kvlen": KEYS, "actual_sel_seq_kvlen": BLOCKS}
    masks = {"atten_mask": atten_mask, "topk_mask": topk_mask}
    given = (q, k, v, SCALE, heads, *STEPS.values(), count)
    out, indices, largest, total = nsa.npu_nsa_compress_attention(*given, **masks, **ends)
    assert out.dtype == dtype
    assert indices.dtype == torch.int32
    wanted = torch.zeros(11, heads, 5, dtype=torch.float64)
    statistics = torch.zeros(2, 11 * heads, dtype=torch.float64)
    for rows, keys, blocks in zip(parts(QUERIES), parts(KEYS), parts(BLOCKS), strict=True):
        for i, row in enumerate(rows):
            score = torch.zeros(key_heads, len(blocks), dtype=torch.float64)
            for head in range(heads):
                shared = head * key_heads // heads
                hidden = atten_mask[i, : len(keys)] if masked else None
                own = [t[keys, shared].double() for t in (k, v)]
                wanted[row, head], scores = attended(q[row, head].double(), *own, hidden)
                p = torch.softmax(scores, -1)
                # a sequence has head after head
                at = rows.start * heads + head * len(rows) + i
                statistics[:, at] = torch.stack((scores.max(), (scores - scores.max()).exp().sum()))
                for j in range(len(blocks)):
                    pairs = [4 * (j + 1) - a - b for a in range(4) for b in range(2)]
                    score[shared, j] += sum(p[at] for at in pairs if 0 <= at < len(keys))
            if masked:
                score[:, topk_mask[i, : len(blocks)].bool()] = 1e9
            assert torch.equal(indices[row].long(), score.argsort(dim=-1, descending=True, stable=True)[:, :count]), row
    near(out, wanted)
    for got, value in zip((largest, total), statistics, strict=True):
        near(got[..., 7].flatten(), value)


def lists() -> Tensor:
    """Blocks of 4 keys in sequences of 10, 3 and 20; a query may name a block twice, and blocks that are not whole."""
    return torch.stack([torch.randint(0, {0: 3, 1: 5}[row > 3], (2, 3)) for row in range(11)]).int()


def chosen(q: Tensor, k: Tensor, v: Tensor, indices: Tensor) -> Tensor:
    """Select attention in float64."""
    heads, rows = q.shape[1], []
    for own, keys in zip(parts(QUERIES), parts(KEYS), strict=True):
        for row in own:
            for head in range(heads):
                shared = head * 2 // heads
                places = [
                    keys[4 * b + i] for b in indices[row, shared].tolist() for i in range(4) if 4 * b + i < len(keys)
                ]
                rows.append(attended(q[row, head], k[places, shared], v[places, shared])[0])
    return torch.stack(rows).view(*q.shape[:2], v.shape[2])


ENDS = {"actual_seq_qlen": QUERIES, "actual_seq_kvlen": KEYS}


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("heads", [2, 6])
@pytest.mark.parametrize("numbers", [1, memory.NUMBERS])
def test_select_attention(dtype: Any, heads: int, numbers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "NUMBERS", numbers)
    q, k, v = (torch.randn(shape).to(dtype) for shape in ((11, heads, 8), (33, 2, 8), (33, 2, 5)))
    dy, indices = torch.randn(11, heads, 5).to(dtype), lists()
    wanted, derived = gradients(lambda *given: chosen(*given, indices), [q, k, v], dy)
    options = (indices, SCALE, heads, 4, 3)
    out, largest, total = nsa.npu_nsa_select_attention(q, k, v, *options, **ENDS)
    assert out.dtype == dtype
    near(out, wanted)
    scores = SCALE * torch.einsum("nd,kd->nk", q[0, : heads // 2].double(), k[:10, 0].double())
    scores = torch.cat([scores[:, 4 * b : 4 * b + 4] for b in indices[0, 0].tolist()], -1)
    near(largest[0, : heads // 2, 7], scores.amax(-1))
    near(total[0, : heads // 2, 0], (scores - scores.amax(-1, keepdim=True)).exp().sum(-1))
    got = nsa.npu_nsa_select_attention_grad(dy, q, k, v, wanted.to(dtype), largest, total, *options, **ENDS)
    for gradient, value in zip(got, derived, strict=True):
        assert gradient.dtype == dtype
        error = (gradient.double() - value).abs().max()  # the result of the forward is rounded before it is used
        assert error <= {torch.float64: 1e-12, torch.float32: 5e-6}.get(dtype, 3e-2) * value.abs().max(), error


def test_rows_beyond_the_sequences_are_zero() -> None:
    q, k, v = torch.randn(13, 2, 8), torch.randn(40, 2, 8), torch.randn(40, 2, 5)
    indices = torch.cat((lists(), torch.full((2, 2, 3), 99, dtype=torch.int32)))
    out, largest, total = nsa.npu_nsa_select_attention(q, k, v, indices, SCALE, 2, 4, 3, **ENDS)
    limits = torch.finfo(torch.float32)
    assert not out[11:].any()
    assert (largest[11:] == limits.min).all()
    assert (total[11:] == limits.max).all()
    grads = nsa.npu_nsa_select_attention_grad(out + 1, q, k, v, out, largest, total, indices, SCALE, 2, 4, 3, **ENDS)
    assert not grads[0][11:].any()
    assert not grads[1][33:].any()
    assert all(gradient.isfinite().all() for gradient in grads)


def test_refusals() -> None:
    q, k, v, indices = torch.randn(11, 6, 8), torch.randn(33, 2, 8), torch.randn(33, 2, 5), lists()

    def select(sentence: str, *given: Any, **options: Any) -> None:
        refused(sentence, nsa.npu_nsa_select_attention, *given, **{**ENDS, **options})

    rest = (SCALE, 6, 4, 3)
    select("atten_mask is given, but must be None", q, k, v, indices, *rest, atten_mask=torch.zeros(7, 20))
    select("topk_indices is torch.float32", q, k, v, indices.float(), *rest)
    select(
        "topk_indices is of shape [11, 2, 3], but must have that of T, Nkv and select_block_count",
        q,
        k,
        v,
        indices,
        *rest[:3],
        2,
    )
    select("topk_indices is -1 for query 0, but must name one of the 3 blocks", q, k, v, indices * 0 - 1, *rest[:3], 3)
    select("actual_seq_kvlen is for 2 sequences", q, k, v, indices, *rest, actual_seq_kvlen=[10, 33])
    select("actual_seq_qlen is None", q, k, v, indices, *rest, actual_seq_qlen=None)
    select("select_block_size is 0", q, k, v, indices, SCALE, 6, 0, 3)
    select("head_num is 5", q, k, v, indices, SCALE, 5, 4, 3)
    select("key is torch.float16", q, k.half(), v, indices, *rest)
    statistics = torch.ones(11, 6, 8)
    refused(
        "softmax_max is of shape [11, 6]",
        nsa.npu_nsa_select_attention_grad,
        *(torch.ones(11, 6, 5), q, k, v, torch.ones(11, 6, 5), statistics[..., 0], statistics, indices, *rest),
        **ENDS,
    )
    refused(
        "grad is torch.int64",
        nsa.npu_nsa_select_attention_grad,
        *(torch.ones(11, 6, 5).long(), q, k, v, torch.ones(11, 6, 5), statistics, statistics, indices, *rest),
        **ENDS,
    )

    def compress(sentence: str, steps: tuple[int, ...] = (32, 16, 64, 3), **options: Any) -> None:
        ends = {"actual_seq_qlen": QUERIES, "actual_cmp_seq_kvlen": KEYS, "actual_sel_seq_kvlen": BLOCKS}
        refused(sentence, nsa.npu_nsa_compress_attention, q, k, v, SCALE, 6, *steps, **{**ends, **options})

    compress("compress_block_size is 24, but must be a multiple of compress_stride, which is 16", (24, 16, 64, 3))
    compress("select_block_size is 16", (32, 16, 16, 3))
    compress("select_block_count is 0, but must be at least 1", (32, 16, 64, 0))
    compress("select_block_count is 1099511627776", (32, 16, 64, 1 << 40))
    compress("select_block_count is 4, but must be at most 3, the blocks of a sequence", (32, 16, 64, 4))
    compress("are 3, 3 and 2 sequences".replace("are", "is"), actual_sel_seq_kvlen=[3, 12])
    compress("actual_sel_seq_kvlen is empty", actual_sel_seq_kvlen=None)
    compress("topk_mask is torch.float32", topk_mask=torch.ones(7, 5))
    compress("topk_mask is of shape [5, 7]", topk_mask=torch.ones(5, 7, dtype=torch.bool))
    compress("atten_mask is of shape [7, 7]", atten_mask=torch.ones(7, 7, dtype=torch.bool))


def test_autograd_on_the_device() -> None:
    torch_npu: Any = pytest.importorskip("torch_npu")
    q, k, v = torch.randn(11, 6, 8), torch.randn(33, 2, 8), torch.randn(33, 2, 5)
    dy, indices = torch.randn(11, 6, 5), lists()
    leaves = [t.npu().requires_grad_() for t in (q, k, v)]
    out = torch_npu.npu_nsa_select_attention(*leaves, indices.npu(), SCALE, 6, 4, 3, **ENDS)[0]
    wanted, derived = gradients(lambda *given: chosen(*given, indices), [q, k, v], dy)
    near(out.detach().cpu(), wanted)
    for got, value in zip(torch.autograd.grad(out, leaves, dy.npu()), derived, strict=True):
        near(got.cpu() / 4, value / 4)

    mask = torch.ones(7, 20, dtype=torch.bool).triu(1)
    ends = {"actual_seq_qlen": QUERIES, "actual_cmp_seq_kvlen": KEYS, "actual_sel_seq_kvlen": BLOCKS}
    out, places = torch_npu.npu_nsa_compress_attention(*leaves, SCALE, 6, 32, 16, 64, 3, atten_mask=mask.npu(), **ends)[
        :2
    ]
    assert places.dtype == torch.int32

    def defined(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        rows = []
        for own, keys in zip(parts(QUERIES), parts(KEYS), strict=True):
            for i, row in enumerate(own):
                rows += [
                    attended(q[row, h], k[keys, h // 3], v[keys, h // 3], mask[i, : len(keys)])[0] for h in range(6)
                ]
        return torch.stack(rows).view(11, 6, 5)

    wanted, derived = gradients(defined, [q, k, v], dy)
    near(out.detach().cpu(), wanted)
    for got, value in zip(torch.autograd.grad(out, leaves, dy.npu()), derived, strict=True):
        near(got.cpu() / 4, value / 4)
