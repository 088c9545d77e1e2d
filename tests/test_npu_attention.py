"""npu_fusion_attention in its versions against its formula in float64: layouts, modes, masks, gradients, refusals."""

from __future__ import annotations

import functools
import itertools
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from cases import in_turn  # noqa: E402
from descend.npu.composed.attention import blockwise  # noqa: E402
from descend.npu.composed.attention.fusion_attention import (  # noqa: E402
    npu_fusion_attention,
    npu_fusion_attention_grad,
    npu_fusion_attention_grad_v2,
    npu_fusion_attention_grad_v3,
    npu_fusion_attention_v2,
    npu_fusion_attention_v3,
)
from descend.npu.composed.attention.masks import Visible  # noqa: E402
from descend.npu.composed.layers import dropout  # noqa: E402
from descend.npu.composed.refusal import RefusedError  # noqa: E402

Tensor = Any

TO_LAYOUT = {
    "BNSD": lambda t: t,
    "BSND": lambda t: t.transpose(1, 2),
    "BSH": lambda t: t.transpose(1, 2).flatten(2),
    "SBH": lambda t: t.permute(2, 0, 1, 3).flatten(2),
    "TND": lambda t: t[0].transpose(0, 1),
}
TOLERANCE = {torch.float64: 1e-12, torch.float32: 3e-6, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}


@pytest.fixture(params=["one block", "many blocks"])
def blocks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "many blocks":
        monkeypatch.setattr(blockwise, "SCORES", 40)
        monkeypatch.setattr(blockwise, "QUERIES", 3)


@dataclass
class Case:
    """A call in the axes B, N, S, D: ``seen`` [B or 1, N or 1, Sq, Skv] says which keys a query sees."""

    query: Tensor
    key: Tensor
    value: Tensor
    scale: float
    seen: Tensor | None = None
    pse: Tensor | None = None
    pse_type: int = 1
    kept: Tensor | None = None
    options: dict[str, Any] = field(default_factory=dict)

    def scores(self, query: Tensor, key: Tensor, pse: Tensor | None) -> Tensor:
        group = query.shape[1] // key.shape[1]
        scores = query @ key.repeat_interleave(group, 1).transpose(-1, -2)
        if pse is not None and self.pse_type == 1:
            scores = scores + pse
        scores = scores * self.scale
        if pse is not None and self.pse_type == 0:
            scores = scores + pse
        return scores if self.seen is None else scores.masked_fill(~self.seen, -torch.inf)

    def defined(self, dy: Tensor) -> tuple[Tensor, Tensor, Tensor, list[Tensor]]:
        """By the formula, in float64: the attention, the largest scores, the sums, and the gradients."""
        given = [t.double().clone().requires_grad_() for t in (self.query, self.key, self.value)]
        pse = None if self.pse is None else self.pse.double().clone().requires_grad_()
        scores = self.scores(given[0], given[1], pse)
        dead = (scores == -torch.inf).all(-1, keepdim=True)
        weights = torch.softmax(scores.masked_fill(dead, 0), -1) * ~dead
        used = weights if self.kept is None else weights * self.kept
        group = self.query.shape[1] // self.key.shape[1]
        out = used @ given[2].repeat_interleave(group, 1)
        wanted = [*given, *([] if pse is None else [pse])]
        gradients = torch.autograd.grad(out, wanted, dy.double())
        largest = scores.amax(-1)
        total = (scores - largest.unsqueeze(-1)).exp().sum(-1)
        return out.detach(), largest.detach(), total.detach(), list(gradients)


def near(got: Tensor, wanted: Tensor, dtype: Any, what: str, score: float = 0) -> None:
    """Within the dtype's tolerance of the largest number there is; a result is rounded once.

    The rounding of a large ``score`` is an error of the exponential, as large relative to that.
    """
    assert got.shape == wanted.shape, what
    if wanted.numel():
        error = (got.double() - wanted).abs().max().item()
        tolerance = max(TOLERANCE[dtype], 2 * torch.finfo(dtype).eps * score)
        assert error <= tolerance * max(wanted.abs().max().item(), 1.0), (what, error)


def check(case: Case, layout: str, version: int = 1) -> None:
    """Forward and gradient in a layout."""
    to, dtype, heads = TO_LAYOUT[layout], case.query.dtype, case.query.shape[1]
    dy = torch.randn(*case.query.shape[:-1], case.value.shape[-1]).to(dtype)
    out, largest, total, gradients = case.defined(dy)
    args = [to(t) for t in (case.query, case.key, case.value)]
    options = dict(case.options)
    if case.pse is not None:
        options["pse"] = case.pse
    forward, backward = {
        1: (npu_fusion_attention, npu_fusion_attention_grad),
        2: (npu_fusion_attention_v2, npu_fusion_attention_grad_v2),
        3: (npu_fusion_attention_v3, npu_fusion_attention_grad_v3),
    }[version]
    torch.manual_seed(7)
    got = forward(*args, heads, layout, scale=case.scale, **options)
    assert got[0].dtype == dtype
    assert got[0].is_contiguous()
    assert got[3].shape == (0,)
    score = largest[largest.isfinite()].abs().max().item() if dtype == torch.float64 else 0.0
    near(got[0], to(out), dtype, "attention", score)
    statistics = torch.float64 if dtype == torch.float64 else torch.float32
    rows = (largest != -torch.inf).unsqueeze(-1).expand(*largest.shape, 8)
    if layout != "TND":
        for result, wanted, what in ((got[1], largest, "max"), (got[2], total, "sum")):
            assert result.dtype == statistics
            assert result.shape == rows.shape
            near(result[rows], wanted.unsqueeze(-1).expand(rows.shape)[rows], statistics, what)
        limits = torch.finfo(statistics)
        assert (got[1][~rows] == limits.min).all()
        assert (got[2][~rows] == limits.max).all()
    given = {"softmax_max": got[1], "softmax_sum": got[2], "attention_in": got[0]}
    if version == 3:
        given.update(seed=got[4], offset=got[5])
    elif options.get("keep_prob", 1) < 1:
        given.update(seed=got[4], offset=got[5], numels=got[6])
    options = {name: value for name, value in options.items() if name not in ("seed", "offset", "dropout_mask")}
    results = backward(*args, to(dy), heads, layout, scale_value=case.scale, **options, **given)
    for result, wanted, what in zip(results, gradients, ("dq", "dk", "dv"), strict=False):
        assert result.dtype == dtype
        assert result.is_contiguous()
        near(result, to(wanted), dtype, what, score)
    if case.pse is None:
        assert results[3] is None
    else:
        near(results[3], gradients[3], dtype, "dpse")


def tensors(
    b: int, n: int, kv: int, sq: int, sk: int, d: int, dv: int | None = None, dtype: Any = torch.float32
) -> list[Tensor]:
    shapes = ((b, n, sq, d), (b, kv, sk, d), (b, kv, sk, d if dv is None else dv))
    return [torch.randn(shape).to(dtype) for shape in shapes]


def triangle(mode: int = 2) -> Tensor:
    mask = torch.ones(2048, 2048, dtype=torch.bool).triu(1)
    if mode == 6:
        half = torch.ones(1024, 2048, dtype=torch.bool)
        half[:, :1024] = False
        mask = torch.cat((mask, half))
    return mask


def sees(mode: int, sq: int, sk: int, pre: int = 0, after: int = 0, prefix: int = 0) -> Tensor:
    """What the documents' figures show: True where query i sees key j."""
    seen = torch.zeros(sq, sk, dtype=torch.bool)
    for i, j in itertools.product(range(sq), range(sk)):
        distance, from_end = j - i, j - i - (sk - sq)
        seen[i, j] = {
            0: -pre <= distance <= after,
            1: True,
            2: distance <= 0,
            3: from_end <= 0,
            4: -pre <= from_end <= after,
            5: from_end <= 0 or j < prefix,
            6: from_end <= 0 or j < prefix,
        }[mode]
    return seen


@pytest.mark.parametrize("layout", ["BNSD", "BSND", "BSH", "SBH"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.usefixtures("blocks")
def test_layouts(layout: str, dtype: Any) -> None:
    for sizes in ((2, 4, 4, 7, 9, 8), (1, 6, 2, 5, 5, 4), (3, 2, 1, 1, 13, 3)):
        query, key, value = tensors(*sizes, dtype=dtype)
        check(Case(query, key, value, 0.4), layout)
        masked = torch.rand(sizes[0], 1, sizes[3], sizes[4]) < 0.4
        masked[..., 0] = False
        check(Case(query, key, value, 0.4, ~masked, options={"atten_mask": masked}), layout)


@pytest.mark.parametrize("mode", [2, 3, 4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.usefixtures("blocks")
def test_modes_with_the_triangle(mode: int, dtype: Any) -> None:
    for sq, sk in ((8, 8), (5, 11), (11, 5), (1, 6)):
        options = {"atten_mask": triangle(), "sparse_mode": mode}
        pre, after = 3, 1
        if mode == 4:
            options.update(pre_tockens=pre, next_tockens=after)
        case = Case(*tensors(2, 4, 2, sq, sk, 8, dtype=dtype), 0.5, sees(mode, sq, sk, pre, after), options=options)
        for layout in ("BNSD", "BSH"):
            check(case, layout)
            case.options = {**options, "atten_mask": triangle().to(torch.uint8)}


@pytest.mark.parametrize(("pre", "after"), [(0, 0), (3, 0), (2147483647, 0), (4, 2), (9, -2), (-2, 7)])
@pytest.mark.usefixtures("blocks")
def test_bands_of_mode_0_and_4(pre: int, after: int) -> None:
    for sq, sk in ((9, 9), (6, 12)):
        seen = sees(0, sq, sk, pre, after)
        options = {"atten_mask": ~seen, "pre_tockens": pre, "next_tockens": after}
        check(Case(*tensors(1, 2, 2, sq, sk, 4), 1.0, seen, options=options), "BNSD")
        options = {"atten_mask": triangle(), "sparse_mode": 4, "pre_tockens": pre, "next_tockens": after}
        check(Case(*tensors(1, 2, 2, sq, sk, 4), 1.0, sees(4, sq, sk, pre, after), options=options), "SBH")


def test_mode_1_takes_the_mask_alone_and_no_mask_is_no_mask() -> None:
    masked = torch.rand(2, 4, 6, 7) < 0.5
    query, key, value = tensors(2, 4, 4, 6, 7, 8)
    options = {"atten_mask": masked, "sparse_mode": 1, "pre_tockens": 0, "next_tockens": 0}
    check(Case(query, key, value, 1.0, ~masked, options=options), "BSND")
    for mode in range(7):
        options = {"sparse_mode": mode, "pre_tockens": 0, "next_tockens": 0}
        check(Case(query, key, value, 1.0, options=options), "BSND")


@pytest.mark.parametrize("shape", ["BNSS", "B1SS", "11SS", "SS"])
def test_shapes_of_masks(shape: str) -> None:
    sizes = {"BNSS": (2, 4, 6, 7), "B1SS": (2, 1, 6, 7), "11SS": (1, 1, 6, 7), "SS": (6, 7)}[shape]
    masked = torch.rand(sizes) < 0.5
    check(Case(*tensors(2, 4, 2, 6, 7, 8), 0.3, ~masked, options={"atten_mask": masked}), "BNSD")


@pytest.mark.parametrize("mode", [5, 6])
@pytest.mark.usefixtures("blocks")
def test_prefix(mode: int) -> None:
    for sq, sk, prefix in ((5, 8, [4, 8]), (8, 5, [0, 3])):
        seen = torch.stack([sees(mode, sq, sk, prefix=p) for p in prefix]).unsqueeze(1)
        mask = ~seen if mode == 5 else triangle(6)
        options = {"atten_mask": mask, "sparse_mode": mode, "prefix": prefix}
        check(Case(*tensors(2, 4, 2, sq, sk, 4), 0.7, seen, options=options), "BSND")


@pytest.mark.parametrize("pse_type", [0, 1])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.usefixtures("blocks")
def test_pse(pse_type: int, dtype: Any) -> None:
    for shape in ((2, 4, 5, 6), (2, 4, 1, 6), (1, 4, 5, 6)):
        pse, (query, key, value) = torch.randn(shape).to(dtype), tensors(2, 4, 2, 5, 6, 8, dtype=dtype)
        options: dict[str, Any] = {"atten_mask": ~sees(2, 5, 6), "pse_type": pse_type}
        check(Case(query, key, value, 0.5, sees(2, 5, 6), pse, pse_type, options=options), "BNSD", 2)
        if pse_type == 1:
            del options["pse_type"]
            check(Case(query, key, value, 0.5, sees(2, 5, 6), pse, options=options), "BSH", 1)
            check(Case(query, key, value, 0.5, sees(2, 5, 6), pse, options=options), "BSH", 3)


@pytest.mark.parametrize("size", [3, 8, 16])
def test_values_of_another_size(size: int) -> None:
    for layout in ("BNSD", "BSND", "BSH", "SBH"):
        check(Case(*tensors(2, 4, 2, 5, 6, 8, size), 0.5), layout)


def test_strided_and_unaligned_tensors() -> None:
    whole = torch.randn(2, 4, 3, 6, 9)
    query, key, value = (t[..., 1:] for t in whole.unbind(2))
    check(Case(query, key, value, 0.5), "BNSD")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("which", range(3))
def test_numbers_of_a_head_that_are_not_side_by_side(which: int, dtype: Any) -> None:
    """PyTorch's kernel for gradients would read others."""
    given = tensors(2, 2, 2, 5, 6, 8, dtype=dtype)
    given[which] = given[which].repeat_interleave(2, -1)[..., ::2]
    check(Case(*given, 0.5), "BNSD")
    given[which] = given[which][..., :1].expand(given[which].shape)
    check(Case(*given, 0.5), "BNSD")


def test_large_scores_and_no_keys_to_see() -> None:
    query, key, value = tensors(1, 2, 2, 4, 4, 8)
    check(Case(query.double() * 50, key.double() * 50, value.double(), 1.0), "BNSD")
    assert npu_fusion_attention(query * 1e4, key * 1e4, value, 2, "BNSD")[0].isfinite().all()
    seen = torch.zeros(4, 4, dtype=torch.bool)
    seen[1, 2] = True
    check(Case(query, key, value, 1.0, seen, options={"atten_mask": ~seen}), "BNSD")


@pytest.mark.parametrize("sizes", [(0, 2, 2, 3, 4, 8), (2, 2, 2, 0, 4, 8), (2, 2, 2, 3, 0, 8), (2, 2, 2, 0, 0, 8)])
@pytest.mark.parametrize("layout", ["BNSD", "BSND", "BSH", "SBH"])
def test_empty(sizes: tuple[int, ...], layout: str) -> None:
    query, key, value = (TO_LAYOUT[layout](t) for t in tensors(*sizes))
    out, largest, total, *_ = npu_fusion_attention(query, key, value, 2, layout)
    assert out.shape == query.shape
    assert not out.any()
    given = {"softmax_max": largest, "softmax_sum": total, "attention_in": out}
    dq, dk, dv, *_ = npu_fusion_attention_grad(query, key, value, torch.ones_like(out), 2, layout, **given)
    assert [t.shape for t in (dq, dk, dv)] == [t.shape for t in (query, key, value)]
    assert not any(t.any() for t in (dq, dk, dv))


def packed(lengths: list[int]) -> tuple[list[int], list[slice]]:
    ends = list(itertools.accumulate(lengths))
    return ends, [slice(e - n, e) for e, n in zip(ends, lengths, strict=True)]


@pytest.mark.parametrize(
    ("mode", "dtype"), in_turn([None, 0, 1, 2, 3, 4, 6, 7, 8, 1], [torch.float32, torch.bfloat16, torch.float64])
)
@pytest.mark.usefixtures("blocks")
def test_sequences(mode: int | None, dtype: Any) -> None:
    for lengths, key_lengths in (([3, 5, 2], [3, 7, 4]), ([4], [6]), ([2, 0, 3], [2, 0, 5]), ([3, 2, 4], [3, 2, 4])):
        pre, after, prefix = 6, -1 if mode == 7 else 1, list(key_lengths)
        seen = torch.zeros(sum(lengths), sum(key_lengths), dtype=torch.bool)
        (ends, rows), (key_ends, keys) = packed(lengths), packed(key_lengths)
        filled = [b for b, n in enumerate(lengths) if n]
        for b, (q, k) in enumerate(zip(rows, keys, strict=True)):
            own = {None: 1, 7: 4 if b == filled[-1] else 3, 8: 4 if b == filled[0] else 2}.get(mode, mode)
            seen[q, k] = sees(own, lengths[b], key_lengths[b], pre, after, prefix[b])
        mask = {None: None, 0: ~sees(0, max(lengths), max(key_lengths), pre, after)}.get(mode, triangle(mode or 0))
        if mode == 1:
            mask = torch.rand(max(lengths), max(key_lengths)) < 0.4
            for q, k in zip(rows, keys, strict=True):
                seen[q, k] &= ~mask[: q.stop - q.start, : k.stop - k.start]
        options = {"atten_mask": mask, "actual_seq_qlen": ends, "actual_seq_kvlen": key_ends, "sparse_mode": mode or 0}
        if mode in (0, 4, 7, 8):
            options.update(pre_tockens=pre, next_tockens=after)
        if mode == 6:
            options["prefix"] = prefix
        case = Case(*tensors(1, 4, 2, sum(lengths), sum(key_lengths), 4, dtype=dtype), 0.5, seen, options=options)
        check(case, "TND")
        case.options = {**options, "softmax_layout": "TND"}
        check(case, "TND")
        number = {**options, "actual_seq_qlen": torch.tensor(ends), "actual_seq_kvlen": torch.tensor(key_ends)}
        case.options = number
        check(case, "TND", 3)


def test_statistics_of_sequences() -> None:
    lengths = [3, 5]
    ends, rows = packed(lengths)
    query, key, value = tensors(1, 2, 2, 8, 8, 4)
    args = [TO_LAYOUT["TND"](t) for t in (query, key, value)]
    given: dict[str, Any] = {"actual_seq_qlen": ends, "actual_seq_kvlen": ends}
    by_heads = npu_fusion_attention(*args, 2, "TND", **given)
    by_rows = npu_fusion_attention(*args, 2, "TND", softmax_layout="TND", **given)
    flat, begin = by_heads[1].reshape(-1, 8), 0
    for sequence in rows:
        wanted = (query[0, :, sequence] @ key[0, :, sequence].transpose(1, 2)).amax(-1)
        torch.testing.assert_close(by_rows[1][sequence, :, 7], wanted.T)
        block = flat[begin : begin + wanted.numel()]
        torch.testing.assert_close(block[:, 0].view(wanted.shape), wanted)
        begin += wanted.numel()
    torch.testing.assert_close(by_rows[0], by_heads[0])


def test_sequences_that_are_left_out() -> None:
    query, key, value = (TO_LAYOUT["TND"](t) for t in tensors(1, 2, 2, 9, 9, 4))
    left = {"actual_seq_qlen": [2, 5, 0, 0], "actual_seq_kvlen": [3, 7, 0, 0]}
    out, largest, total, *_ = npu_fusion_attention(query, key, value, 2, "TND", **left)
    short = {"actual_seq_qlen": [2, 5], "actual_seq_kvlen": [3, 7]}
    wanted, *_ = npu_fusion_attention(query[:5], key[:7], value[:7], 2, "TND", **short)
    assert torch.equal(out[:5], wanted)
    assert not out[5:].any()
    given = {"softmax_max": largest, "softmax_sum": total, "attention_in": out}
    dq, dk, dv, *_ = npu_fusion_attention_grad(query, key, value, out, 2, "TND", **left, **given)
    assert not dq[5:].any()
    assert not dk[7:].any()
    assert not dv[7:].any()
    assert dq[:5].any()


def test_rope_parts_of_version_2() -> None:
    (query, key, value), (more, other, _) = tensors(1, 4, 2, 8, 8, 6), tensors(1, 4, 2, 8, 8, 2)
    to, dy = TO_LAYOUT["TND"], torch.randn(8, 4, 6)
    whole = Case(torch.cat((query, more), -1), torch.cat((key, other), -1), value, 0.5, sees(3, 8, 8))
    out, _, _, (dq, dk, dv) = whole.defined(dy.transpose(0, 1).unsqueeze(0))
    options: dict[str, Any] = {
        "atten_mask": triangle(),
        "sparse_mode": 3,
        "actual_seq_qlen": [8],
        "actual_seq_kvlen": [8],
    }
    options.update(query_rope=to(more), key_rope=to(other))
    args = [to(t) for t in (query, key, value)]
    got = npu_fusion_attention_v2(*args, 4, "TND", scale=0.5, **options)
    near(got[0], to(out), torch.float32, "attention")
    given = {"softmax_max": got[1], "softmax_sum": got[2], "attention_in": got[0]}
    results = npu_fusion_attention_grad_v2(*args, dy, 4, "TND", scale_value=0.5, **options, **given)
    wanted = (to(dq)[..., :6], to(dk)[..., :6], to(dv), None, to(dq)[..., 6:], to(dk)[..., 6:], None)
    for result, gradient in zip(results, wanted, strict=True):
        assert (result is None) == (gradient is None)
        if gradient is not None:
            near(result, gradient, torch.float32, "gradient")


@pytest.mark.parametrize("version", [1, 2, 3])
@pytest.mark.usefixtures("blocks")
def test_dropout_repeats_in_its_gradient(version: int) -> None:
    sizes, keep = (2, 4, 2, 5, 6, 8), 0.7
    query, key, value = tensors(*sizes)
    value = torch.eye(6, 8).expand(2, 2, 6, 8).contiguous()  # the attention is then the weights that dropout kept
    forward = {1: npu_fusion_attention, 2: npu_fusion_attention_v2, 3: npu_fusion_attention_v3}[version]
    torch.manual_seed(7)
    first = forward(query, key, value, 4, "BNSD", scale=0.5, keep_prob=keep)
    torch.manual_seed(7)
    assert torch.equal(forward(query, key, value, 4, "BNSD", scale=0.5, keep_prob=keep)[0], first[0])
    assert not torch.equal(forward(query, key, value, 4, "BNSD", scale=0.5, keep_prob=keep)[0], first[0])
    kept = (first[0][..., :6] != 0).double() / keep
    assert 0.4 < (kept != 0).double().mean() < 0.95
    check(Case(query, key, value, 0.5, kept=kept, options={"keep_prob": keep}), "BNSD", version)


def test_given_seeds_of_dropout() -> None:
    query, key, value = tensors(1, 2, 2, 16, 16, 8)
    calls = [
        npu_fusion_attention(query, key, value, 2, "BNSD", keep_prob=0.5, seed=seed, offset=offset)
        for seed, offset in ((3, 4), (3, 4), (3, 5), (4, 4))
    ]
    assert torch.equal(calls[0][0], calls[1][0])
    assert calls[0][4:] == (3, 4, 2 * 16 * 16)
    assert not torch.equal(calls[0][0], calls[2][0])
    assert not torch.equal(calls[0][0], calls[3][0])


def mask_and_bits(count: int) -> tuple[Tensor, dict[str, Any]]:
    """A mask made for keep_prob 0.7 as factors, and the options of a call that draws the same one."""
    keep, seed, offset = 0.7, 3, 4
    bits = dropout._npu_dropout_gen_mask(torch.empty(0), [count], 1 - keep, seed, offset)
    kept = torch.from_numpy(np.unpackbits(bits.numpy(), count=count, bitorder="little"))
    return kept.double() / keep, {"keep_prob": keep, "seed": seed, "offset": offset, "dropout_mask": bits}


@pytest.mark.parametrize("mode", [None, 0, 2, 3, 5])
@pytest.mark.usefixtures("blocks")
def test_a_mask_that_is_made_is_the_one_that_is_drawn(mode: int | None) -> None:
    """Also where keys are skipped, and where each batch is an attention of its own."""
    b, n, sq, sk = 2, 4, 5, 6
    kept, options = mask_and_bits(b * n * sq * sk)
    seen = None if mode is None else torch.stack([sees(mode, sq, sk, 2, 0, prefix) for prefix in (2, 4)]).unsqueeze(1)
    if seen is not None:
        mask = triangle() if mode in (2, 3) else ~seen
        options |= {"sparse_mode": mode, "atten_mask": mask, "prefix": [2, 4]}
        options |= {"pre_tockens": 2, "next_tockens": 0} if mode == 0 else {}
    case = Case(*tensors(b, n, 2, sq, sk, 8), 0.5, seen, kept=kept.view(b, n, sq, sk), options=options)
    check(case, "BNSD")
    check(case, "SBH")


@pytest.mark.usefixtures("blocks")
def test_a_mask_of_sequences() -> None:
    """Sequence after sequence, in each head after head."""
    lengths, key_lengths, n = [1, 2, 0, 3], [3, 4, 1, 5], 4
    (ends, rows), (key_ends, keys) = packed(lengths), packed(key_lengths)
    flat, options = mask_and_bits(n * sum(q * k for q, k in zip(lengths, key_lengths, strict=True)))
    kept, seen, begin = torch.zeros(1, n, sum(lengths), sum(key_lengths)).double(), torch.zeros(6, 13).bool(), 0
    for q, k, queries, columns in zip(lengths, key_lengths, rows, keys, strict=True):
        kept[0, :, queries, columns] = flat[begin : begin + n * q * k].view(n, q, k)
        seen[queries, columns] = True
        begin += n * q * k
    options |= {"actual_seq_qlen": ends, "actual_seq_kvlen": key_ends}
    check(Case(*tensors(1, n, 2, 6, 13, 8), 0.5, seen, kept=kept, options=options), "TND")


def test_another_mask_is_refused() -> None:
    """The gradient gets no mask: it draws the one of seed and offset."""
    _, options = mask_and_bits(2 * 16 * 16)
    call = functools.partial(npu_fusion_attention, *tensors(1, 2, 2, 16, 16, 8), 2, "BNSD")
    call(**options)
    for wrong in ({"seed": 4}, {"offset": 5}, {"keep_prob": 0.6}, {"keep_prob": 1.0}, {"seed": 0}):
        with pytest.raises(RefusedError, match="dropout_mask is another mask, but must be what _npu_dropout_gen_mask"):
            call(**options | wrong)
    for bits in (options["dropout_mask"][:-1], options["dropout_mask"].bool()):
        with pytest.raises(RefusedError, match=r"but must be torch\.uint8 of at least 64"):
            call(**options | {"dropout_mask": bits})
    call(dropout_mask=torch.full((64,), 255, dtype=torch.uint8))


@pytest.mark.parametrize(
    "sizes", [(2, 8, 2, 4096, 4096, 8), (3, 5, 5, 7, 9, 8), (1, 4, 1, 1, 100000, 8), (64, 16, 16, 32, 32, 8)]
)
@pytest.mark.parametrize("mode", [0, 2])
def test_scores_exist_in_small_blocks(sizes: tuple[int, ...], mode: int) -> None:
    b, n, kv, sq, sk, d = sizes
    query, key = torch.empty(1).expand(b, kv, n // kv, sq, d), torch.empty(1).expand(b, kv, sk, d)
    visible = Visible(after=0) if mode else Visible()
    problem = blockwise.Problem(query, key, key, 1.0, visible)
    seen = torch.zeros(b, kv, sq, dtype=torch.int8)
    for batches, heads, rows in blockwise._blocks(problem):
        seen[batches, heads, rows] += 1
        scores = seen[batches, heads, rows].numel() * (n // kv) * sk
        assert scores <= max(blockwise.SCORES, n // kv * sk)
    assert (seen == 1).all()


def test_keys_shared_among_processes() -> None:
    """The gradient takes the statistics of all keys where a call has a part of them, as in ring attention."""
    query, key, value = tensors(1, 2, 2, 6, 10, 8, dtype=torch.float64)
    dy = torch.randn(1, 2, 6, 8, dtype=torch.float64)
    out, largest, total, *_ = npu_fusion_attention(query, key, value, 2, "BNSD")
    given = {"softmax_max": largest, "softmax_sum": total, "attention_in": out}
    whole = npu_fusion_attention_grad(query, key, value, dy, 2, "BNSD", **given)
    halves = [
        npu_fusion_attention_grad(query, key[:, :, part], value[:, :, part], dy, 2, "BNSD", **given)
        for part in (slice(0, 4), slice(4, 10))
    ]
    torch.testing.assert_close(halves[0][0] + halves[1][0], whole[0])
    for at in (1, 2):
        torch.testing.assert_close(torch.cat((halves[0][at], halves[1][at]), 2), whole[at])


REFUSED: list[tuple[str, dict[str, Any]]] = [
    ("input_layout is 'BDNS', but must be one of BSH, SBH, BSND, BNSD, TND", {"input_layout": "BDNS"}),
    ("head_num is 0, but must be at least 1", {"head_num": 0}),
    ("head_num is 3, but must be N of query", {"head_num": 3}),
    ("query is of shape [2, 4, 5], but must have 4 dimensions in BNSD", {"query": torch.randn(2, 4, 5)}),
    ("query is torch.int32", {"query": torch.ones(2, 4, 5, 8, dtype=torch.int32)}),
    ("key is torch.float16, but must have the dtype of query", {"key": torch.randn(2, 2, 6, 8).half()}),
    ("key is of shape [2, 2, 6, 7], but must have D of query, 8", {"key": torch.randn(2, 2, 6, 7)}),
    (
        "key is of shape [3, 2, 6, 8], but must have B of query, 2",
        {"key": torch.randn(3, 2, 6, 8), "value": torch.randn(3, 2, 6, 8)},
    ),
    (
        "key is of 3 heads, but their number must divide that of query",
        {"key": torch.randn(2, 3, 6, 8), "value": torch.randn(2, 3, 6, 8)},
    ),
    ("value is of shape [2, 2, 5, 8]", {"value": torch.randn(2, 2, 5, 8)}),
    ("padding_mask is given, but must be None", {"padding_mask": torch.zeros(1)}),
    ("sink is given, but must be None", {"sink": torch.zeros(4)}),
    ("keep_prob is 0.0, but must be above 0", {"keep_prob": 0.0}),
    ("keep_prob is 1.5, but must be above 0 and at most 1", {"keep_prob": 1.5}),
    ("inner_precise is 7", {"inner_precise": 7}),
    ("softmax_layout is 'TND'", {"softmax_layout": "TND"}),
    ("sparse_mode is 7", {"sparse_mode": 7}),
    ("sparse_mode is -1", {"sparse_mode": -1}),
    ("atten_mask is torch.float32, but must be bool or uint8", {"atten_mask": torch.zeros(5, 6)}),
    ("atten_mask is of shape [6, 5]", {"atten_mask": torch.zeros(6, 5, dtype=torch.bool)}),
    ("atten_mask is a mask of shape [5, 6]", {"atten_mask": torch.zeros(5, 6, dtype=torch.bool), "sparse_mode": 2}),
    ("atten_mask is a mask of shape [2048, 2048] with other values", {"atten_mask": ~triangle(), "sparse_mode": 3}),
    (
        "atten_mask is a mask of shape [2048, 2048] with other values",
        {"atten_mask": torch.zeros(2048, 2048, dtype=torch.bool), "sparse_mode": 4},
    ),
    ("prefix is None, but must tell a number for each of 2", {"atten_mask": triangle(6), "sparse_mode": 6}),
    ("prefix is [0, 3], but each must be from 1 to 6", {"atten_mask": triangle(6), "sparse_mode": 6, "prefix": [0, 3]}),
    ("pse is torch.float64", {"pse": torch.zeros(2, 4, 5, 6, dtype=torch.float64)}),
    ("pse is of shape [2, 4, 1024, 6]", {"pse": torch.zeros(2, 4, 1024, 6)}),
    ("actual_seq_qlen is given, but must be None in B", {"actual_seq_qlen": [5]}),
]


@pytest.mark.parametrize(("sentence", "changed"), REFUSED, ids=[sentence for sentence, _ in REFUSED])
def test_refused(sentence: str, changed: dict[str, Any]) -> None:
    query, key, value = tensors(2, 4, 2, 5, 6, 8)
    call = {"query": query, "key": key, "value": value, "head_num": 4, "input_layout": "BNSD", **changed}
    with pytest.raises(RefusedError) as refused:
        npu_fusion_attention(**call)
    assert str(refused.value).startswith(f"npu_fusion_attention: {sentence}")


def test_refused_dtypes_of_gradients() -> None:
    query, key, value = tensors(1, 2, 2, 3, 4, 8)
    attention_in, largest, total, *_ = npu_fusion_attention(query, key, value, 2, "BNSD")
    saved = {"dy": query, "attention_in": attention_in, "softmax_max": largest, "softmax_sum": total}
    for sentence, changed in (
        ("dy is torch.int64", {"dy": query.long()}),
        ("dy is torch.float64, but must be float64 where query is, and only there", {"dy": query.double()}),
        ("attention_in is torch.int64", {"attention_in": attention_in.long()}),
        ("softmax_sum is torch.int64", {"softmax_sum": total.long()}),
    ):
        with pytest.raises(RefusedError, match=sentence):
            npu_fusion_attention_grad(query, key, value, head_num=2, input_layout="BNSD", **{**saved, **changed})


def test_refused_of_sequences_versions_and_gradients() -> None:
    query, key, value = (TO_LAYOUT["TND"](t) for t in tensors(1, 2, 2, 6, 6, 4))

    def refused(sentence: str, function: Any, *args: Any, **options: Any) -> None:
        with pytest.raises(RefusedError) as error:
            function(*args, **options)
        assert sentence in str(error.value)

    call = (query, key, value, 2, "TND")
    refused("actual_seq_qlen is None, but must tell", npu_fusion_attention, *call)
    ends = {"actual_seq_kvlen": [6]}
    refused("actual_seq_qlen is [4, 3]", npu_fusion_attention, *call, actual_seq_qlen=[4, 3], **ends)
    refused("beyond the 6 rows", npu_fusion_attention, *call, actual_seq_qlen=[7], **ends)
    refused("actual_seq_kvlen is of length 1", npu_fusion_attention, *call, actual_seq_qlen=[3, 6], **ends)
    ends = {"actual_seq_qlen": [6], "actual_seq_kvlen": [6]}
    refused("pse is given", npu_fusion_attention, *call, pse=torch.zeros(1, 2, 6, 6), **ends)
    refused("pse_type is 2", npu_fusion_attention_v2, *call, pse_type=2, **ends)
    refused("q_start_idx is [1]", npu_fusion_attention_v2, *call, q_start_idx=[1], **ends)
    refused("query_rope or key_rope is None", npu_fusion_attention_v2, *call, query_rope=query, **ends)
    refused("attention_in is None", npu_fusion_attention_grad, query, key, value, query, 2, "TND", **ends)
    out, largest, total, *_ = npu_fusion_attention(*call, **ends)
    given = {"softmax_max": largest, "softmax_sum": total, "attention_in": out, **ends}
    refused("dy is of shape [5, 2, 4]", npu_fusion_attention_grad, query, key, value, out[:5], 2, "TND", **given)
    given["softmax_max"] = largest[..., :1]
    refused("softmax_max is of shape", npu_fusion_attention_grad, query, key, value, out, 2, "TND", **given)
