"""Block sparse and Floyd attention, the gated delta rule, rotary embeddings of query and key: each against float64."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from descend.npu.composed import memory  # noqa: E402
from descend.npu.composed.attention import block_sparse_attention, delta_rule, floyd_attention, rotary  # noqa: E402
from test_npu_composed import FLOATS, near, refused  # noqa: E402

Tensor = Any
SPARSE = block_sparse_attention.npu_block_sparse_attention
SPARSE_GRAD = block_sparse_attention.npu_block_sparse_attention_backward
FLOYD, FLOYD_GRAD = floyd_attention.npu_fused_floyd_attention, floyd_attention.npu_fused_floyd_attention_backward


def sparse(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor, shape: tuple[int, int], scale: float
) -> tuple[Tensor, Tensor]:
    """Of one sequence [N, S, D]; mask [N, blocks, blocks]."""
    heads, rows = q.shape[:2]
    seen = mask.bool().repeat_interleave(shape[0], 1).repeat_interleave(shape[1], 2)[:, :rows, : k.shape[1]]
    k, v = (t.repeat_interleave(heads // len(t), 0) for t in (k, v))
    scores = (scale * q @ k.transpose(1, 2)).masked_fill(~seen, -torch.inf)
    weights = scores.softmax(-1).nan_to_num(0.0)
    return weights @ v, scores.logsumexp(-1, keepdim=True)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("layout", ["TND", "BNSD", "BNSD without lengths"])
@pytest.mark.parametrize("group", [1, 3])
def test_block_sparse_attention(dtype: Any, layout: str, group: int) -> None:
    heads, size, shape, scale = 2 * group, 4, (3, 2), 0.6
    rows, columns = ([7, 7], [5, 5]) if layout.endswith("lengths") else ([7, 4], [2, 5])
    q, k, v = (torch.randn(2, n, s, size).to(dtype) for n, s in ((heads, 7), (2, 5), (2, 5)))
    mask = (torch.rand(2, heads, 3, 3) < 0.6).to(torch.int8)
    mask[0, 0, 1] = 0
    leaves = [t.double().requires_grad_() for t in (q, k, v)]
    out, lse = torch.zeros_like(leaves[0]), torch.zeros(2, heads, 7, 1, dtype=torch.float64)
    pieces, dy = [], torch.randn(q.shape).to(dtype)
    for b, (s, t) in enumerate(zip(rows, columns, strict=True)):
        one, two = sparse(*(leaf[b, :, :n] for leaf, n in zip(leaves, (s, t, t), strict=True)), mask[b], shape, scale)
        pieces.append((one * dy[b, :, :s].double()).sum())
        out[b, :, :s], lse[b, :, :s] = one.detach(), two.detach()
    gradients = torch.autograd.grad(pieces[0] + pieces[1], leaves)
    options: dict[str, Any] = {"q_input_layout": layout[:4].strip(), "kv_input_layout": layout[:4].strip()}
    lengths = (None, None) if layout.endswith("lengths") else (rows, columns)

    def packed(tensor: Tensor, sizes: list[int]) -> Tensor:
        if layout != "TND":
            return tensor
        return torch.cat([tensor[b, :, :n].transpose(0, 1) for b, n in enumerate(sizes)])

    given = [packed(q, rows), packed(k, columns), packed(v, columns)]
    got, sums = SPARSE(
        *given, mask, shape, **options, num_key_value_heads=2, scale_value=scale,
        actual_seq_lengths=lengths[0], actual_seq_lengths_kv=lengths[1],
    )  # fmt: skip
    assert got.dtype == dtype
    near(got, packed(out, rows))
    assert torch.equal(sums.isinf(), packed(lse, rows).isinf())
    near(sums.masked_fill(sums.isinf(), 0), packed(lse, rows).masked_fill(packed(lse, rows).isinf(), 0), size=4.0)
    found = SPARSE_GRAD(
        packed(dy, rows), *given, packed(out, rows).to(dtype), packed(lse, rows).to(sums.dtype), mask, shape,
        *lengths, *options.values(), 2, scale,
    )  # fmt: skip
    for one, wanted, sizes in zip(found, gradients, (rows, columns, columns), strict=True):
        near(one, packed(wanted, sizes), size=4.0)


def floyd(q: Tensor, k1: Tensor, v1: Tensor, k2: Tensor, v2: Tensor, mask: Tensor | None, scale: float) -> Tensor:
    scores = torch.einsum("bhikc,bhijc->bhikj", q, k1) + torch.einsum("bhikc,bhjkc->bhikj", q, k2)
    if mask is not None:
        scores = scores.masked_fill(mask.bool(), -4e9)
    weights = (scores * scale).softmax(-1)
    return torch.einsum("bhikj,bhijc->bhikc", weights, v1) + torch.einsum("bhikj,bhjkc->bhikc", weights, v2)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("masked", [None, torch.bool, torch.uint8], ids=str)
def test_floyd_attention(dtype: Any, masked: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    b, h, n, m, k, d = 2, 2, 3, 4, 5, 6
    shapes = [(b, h, n, m, d), (b, h, n, k, d), (b, h, n, k, d), (b, h, k, m, d), (b, h, k, m, d)]
    given = [torch.randn(shape).to(dtype) for shape in shapes]
    mask = None if masked is None else (torch.rand(b, 1, n, 1, k) < 0.4).to(masked)
    if mask is not None:
        mask[0, 0, 1] = 1
    leaves = [t.double().requires_grad_() for t in given]
    wanted, dy = floyd(*leaves, mask, 0.7), torch.randn(shapes[0]).to(dtype)
    gradients = torch.autograd.grad(wanted, leaves, dy.double())
    for scores in (1, memory.NUMBERS):
        monkeypatch.setattr(memory, "NUMBERS", scores)
        largest, total, out = FLOYD(*given, atten_mask=mask, scale_value=0.7)
        assert largest.shape == total.shape == (b, h, n, m, 8)
        near(out, wanted.detach(), size=2.0)
        found = FLOYD_GRAD(dy, *given, out, largest, total, atten_mask=mask, scale_value=0.7)
        for one, other in zip(found, gradients, strict=True):
            near(one, other, size=8.0)


def rule(q: Tensor, k: Tensor, v: Tensor, state: Tensor, a: Tensor, beta: Tensor) -> tuple[Tensor, Tensor]:
    """One step of one head: state [Dv, Dk]; a is a number, or one for each column."""
    state = state * a
    state = state + beta * torch.outer(v - state @ k, k)
    return state @ q, state


def steps(dtype: Any) -> tuple[list[Tensor], list[int]]:
    tokens = 7
    q, k, v = (torch.randn(tokens, n, d).to(dtype) / 2 for n, d in ((2, 4), (2, 4), (4, 3)))
    return [q, k, v, torch.rand(tokens, 4).to(dtype), -torch.rand(tokens, 4)], [3, 0, 4]


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_chunk_gated_delta_rule(dtype: Any) -> None:
    (q, k, v, beta, g), lengths = steps(dtype)
    start = torch.randn(3, 4, 3, 4).to(dtype)
    states, out = start.double().clone(), torch.zeros(7, 4, 3, dtype=torch.float64)
    token = 0
    for b, length in enumerate(lengths):
        for _ in range(length):
            for h in range(4):
                one, states[b, h] = rule(
                    q[token, h // 2].double() * 0.5, k[token, h // 2].double(), v[token, h].double(),
                    states[b, h], g[token, h].double().exp(), beta[token, h].double(),
                )  # fmt: skip
                out[token, h] = one
            token += 1
    options = {"beta": beta, "initial_state": start, "actual_seq_lengths": torch.tensor(lengths).int(), "g": g}
    got, last = delta_rule.npu_chunk_gated_delta_rule(q, k, v, **options, scale=0.5)
    near(got, out)
    near(last, states)
    assert (got.dtype, last.dtype) == (dtype, dtype)
    twice = delta_rule.npu_chunk_gated_delta_rule(q, k, v, **options)[0]
    near(twice, out * 2)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("full", [True, False])
def test_recurrent_gated_delta_rule(dtype: Any, full: bool) -> None:
    (q, k, v, beta, g), lengths = steps(dtype)
    lengths = [3, 4]
    state = torch.randn(9, 4, 3, 4).to(dtype)
    gk = -torch.rand(7, 4, 4) if full else None
    blocks = torch.randperm(9)[:7].int() if full else torch.arange(7)
    accepted = torch.tensor([2, 4]) if full else torch.ones(2).long()
    states, out, token = state.double().clone(), torch.zeros(7, 4, 3, dtype=torch.float64), 0
    for length, count in zip(lengths, accepted.tolist(), strict=True):
        current = states[int(blocks[token + count - 1])].clone()
        for _ in range(length):
            for h in range(4):
                a = g[token, h].double().exp() if gk is None else (g[token, h].double() + gk[token, h].double()).exp()
                out[token, h], current[h] = rule(
                    q[token, h // 2].double() * 0.5, k[token, h // 2].double(), v[token, h].double(),
                    current[h], a, beta[token, h].double(),
                )  # fmt: skip
            states[int(blocks[token])] = current
            token += 1
    options: dict[str, Any] = {"beta": beta, "g": g, "actual_seq_lengths": torch.tensor(lengths).int()}
    if full:
        options |= {"gk": gk, "ssm_state_indices": blocks, "num_accepted_tokens": accepted.int(), "scale": 0.5}
    got, kept = delta_rule.npu_recurrent_gated_delta_rule_functional(q, k, v, state, **options)
    near(got, out)
    near(kept, states)
    own = state.clone()
    assert torch.equal(delta_rule.npu_recurrent_gated_delta_rule(q, k, v, own, **options), got)
    assert torch.equal(own, kept)


def turned(x: Tensor, cos: Tensor, sin: Tensor, mode: str) -> Tensor:
    """Column by column."""
    width = cos.shape[-1]
    out = x.clone()
    for i in range(width):
        if mode == "interleave":
            other, sign = (i + 1, -1) if i % 2 == 0 else (i - 1, 1)
        else:
            part = width // 2 if mode == "half" else width // 4
            other, sign = (i + part, -1) if (i // part) % 2 == 0 else (i - part, 1)
        out[..., i] = x[..., i] * cos[..., i] + sign * x[..., other] * sin[..., i]
    return out


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("layout", ["BSND", "SBND", "BNSD", "TND"])
@pytest.mark.parametrize("mode", ["half", "interleave", "quarter"])
def test_rotary_embedding_in_place(dtype: Any, layout: str, mode: str) -> None:
    sizes = {"B": 2, "S": 3, "T": 5, "D": 12}
    for width, batch in ((12, 2), (8, 1)):
        q, k, cos, sin = (torch.randn([sizes[c] if c != "N" else n for c in layout]).to(dtype) for n in (4, 2, 1, 1))
        cos, sin = (t[..., :width] for t in (cos, sin))
        if batch == 1 and "B" in layout:
            cos, sin = (t.narrow(layout.index("B"), 0, 1) for t in (cos, sin))
        wanted = [turned(t.double(), cos.double(), sin.double(), mode) for t in (q, k)]
        got = rotary.npu_apply_rotary_pos_emb(q, k, cos, sin, layout, mode)
        assert got[0] is q
        assert got[1] is k
        near(q, wanted[0], size=2.0)
        near(k, wanted[1], size=2.0)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("mode", ["half", "interleave"])
@pytest.mark.parametrize("sections", [None, [2, 1, 3], [2, 2, 2], [1, 2, 2, 1]], ids=str)
def test_mrope(dtype: Any, mode: str, sections: list[int] | None) -> None:
    tokens, size, width = 5, 14, 12
    rows = len(sections or [0])
    positions = torch.randint(0, 9, (rows, tokens))
    q, k = torch.randn(tokens, 3 * size).to(dtype), torch.randn(tokens, size).to(dtype)
    cache = torch.randn(9, width).to(dtype)
    for cache_mode in ("default", "interleave"):
        if cache_mode == "interleave" and rows == 4:
            continue
        of = [i for i, count in enumerate(sections or [6]) for _ in range(count)]
        if cache_mode == "interleave" and sections is not None:
            of = [0] * 6
            of[1 : sections[1] * 3 : 3] = [1] * len(of[1 : sections[1] * 3 : 3])
            of[2 : sections[1] * 3 : 3] = [2] * len(of[2 : sections[1] * 3 : 3])
        table = cache.double()[positions]  # [rows, tokens, width]
        cos, sin = (torch.stack([table[row, :, at + i] for i, row in enumerate(of)], -1) for at in (0, 6))
        cos, sin = (
            (torch.cat((t, t), -1) if mode == "half" else t.repeat_interleave(2, -1)).unsqueeze(1) for t in (cos, sin)
        )
        given = positions[0] if sections is None else positions
        got = rotary.npu_mrope(
            given, q, k, cache, size, mrope_section=sections, rotary_mode=mode, cache_mode=cache_mode
        )
        for one, x in zip(got, (q, k), strict=True):
            near(one, turned(x.double().view(tokens, -1, size), cos, sin, mode).view(x.shape), size=2.0)


def test_results_are_contiguous_whatever_the_inputs_are() -> None:
    def strided(*shape: int) -> Tensor:
        return torch.randn(shape[::-1]).permute(*range(len(shape))[::-1])

    q, k, v = strided(5, 2, 4), strided(5, 2, 4), strided(5, 2, 3)
    lengths, state, g = torch.tensor([5]), strided(5, 2, 3, 4), strided(5, 2)
    out = delta_rule.npu_chunk_gated_delta_rule(q, k, v, initial_state=state[:1], actual_seq_lengths=lengths, g=g)
    assert all(tensor.is_contiguous() for tensor in out)
    assert delta_rule.npu_recurrent_gated_delta_rule(q, k, v, state, actual_seq_lengths=lengths).is_contiguous()
    ik, ij, jk = strided(1, 2, 3, 4, 5), strided(1, 2, 3, 6, 5), strided(1, 2, 6, 4, 5)
    most, total, y = FLOYD(ik, ij, ij, jk, jk)
    gradients = floyd_attention.npu_fused_floyd_attention_backward(y, ik, ij, ij, jk, jk, y, most, total)
    assert all(tensor.is_contiguous() for tensor in (most, total, y, *gradients))


def test_mrope_of_no_token() -> None:
    none = torch.zeros(0, dtype=torch.int64)
    got = rotary.npu_mrope(none, torch.ones(0, 16), torch.ones(0, 8), torch.ones(3, 8), 8)
    assert [tensor.shape for tensor in got] == [(0, 16), (0, 8)]


def test_counts_of_accepted_tokens_are_integers() -> None:
    q = torch.randn(5, 1, 4)
    given = (q, q, q, torch.zeros(5, 1, 4, 4))
    refused(
        "num_accepted_tokens is torch.float32", delta_rule.npu_recurrent_gated_delta_rule, *given,
        actual_seq_lengths=torch.tensor([5]), num_accepted_tokens=torch.tensor([1.5]),
    )  # fmt: skip


def test_refusals() -> None:
    q, mask = torch.randn(4, 2, 8), torch.ones(1, 2, 1, 1, dtype=torch.int8)
    known: dict[str, Any] = {"num_key_value_heads": 2, "actual_seq_lengths": [4], "actual_seq_lengths_kv": [4]}
    refused("must both be 'TND', or both 'BNSD'", SPARSE, q, q, q, mask, [4, 4], q_input_layout="BNSD", **known)
    refused(
        "num_key_value_heads is 1", SPARSE, q, q, q, mask, [4, 4], actual_seq_lengths=[4], actual_seq_lengths_kv=[4]
    )
    refused("both or neither must be given", SPARSE, q, q, q, mask, [4, 4], num_key_value_heads=2)
    refused("block_shape is [4]", SPARSE, q, q, q, mask, [4], **known)
    refused("block_sparse_mask is of shape [1, 2, 1, 1]", SPARSE, q, q, q, mask, [2, 4], **known)
    refused("block_sparse_mask is torch.float32", SPARSE, q, q, q, mask.float(), [4, 4], **known)
    refused("value is of shape [3, 2, 8]", SPARSE, q, q, q[:3], mask, [4, 4], **known)
    refused("must add up to the 4 rows", SPARSE, q, q, q, mask, [4, 4], **known | {"actual_seq_lengths": [3]})
    refused("key is of shape [4, 2, 4]", SPARSE, q, q[..., :4], q[..., :4], mask, [4, 4], **known)
    lse = torch.zeros(4, 2, 1)
    refused(
        "d_out is of shape [3, 2, 8]", SPARSE_GRAD, q[:3], q, q, q, q, lse, mask, [4, 4], [4], [4], "TND", "TND", 2, 1.0
    )
    refused(
        "softmax_lse is of shape [4, 2, 8]", SPARSE_GRAD, q, q, q, q, q, q, mask, [4, 4], [4], [4], "TND", "TND", 2, 1.0
    )
    five = torch.randn(1, 1, 2, 2, 4)
    refused("query_ik is of shape [1, 2, 2, 4]", FLOYD, five[0], five, five, five, five)
    refused("key_jk is of shape [1, 1, 1, 2, 4]", FLOYD, five, five, five, five[:, :, :1], five)
    refused("atten_mask is torch.float32", FLOYD, *[five] * 5, atten_mask=torch.zeros(1, 1, 2, 1, 2))
    refused("atten_mask is of shape [1, 1, 2, 1, 1]", FLOYD, *[five] * 5, atten_mask=torch.zeros(1, 1, 2, 1, 1).bool())
    chunk, recurrent = delta_rule.npu_chunk_gated_delta_rule, delta_rule.npu_recurrent_gated_delta_rule
    (r, k, v, beta, g), _ = steps(torch.float32)
    lengths, state = torch.tensor([7]).int(), torch.randn(7, 4, 3, 4)
    refused("initial_state is None", chunk, r, k, v, actual_seq_lengths=lengths)
    refused("actual_seq_lengths is not given", chunk, r, k, v, initial_state=state)
    refused("actual_seq_lengths is [6]", chunk, r, k, v, initial_state=state, actual_seq_lengths=lengths - 1)
    refused("initial_state is of shape [7, 4, 3, 4]", chunk, r, k, v, initial_state=state, actual_seq_lengths=lengths)
    refused("key is of shape [7, 1, 4]", chunk, r, k[:, :1], v, initial_state=state, actual_seq_lengths=lengths)
    refused("value is of shape [7, 3, 3]", chunk, r, k, v[:, :3], initial_state=state, actual_seq_lengths=lengths)
    refused(
        "beta is of shape [7, 2]", chunk, r, k, v, beta=beta[:, :2], initial_state=state, actual_seq_lengths=lengths
    )
    known = {"actual_seq_lengths": lengths}
    refused("state is of shape [7, 4, 4, 3]", recurrent, r, k, v, state.transpose(2, 3), **known)
    refused(
        "ssm_state_indices is from 0 to 7",
        recurrent,
        r,
        k,
        v,
        state,
        ssm_state_indices=torch.tensor([*range(6), 7]),
        **known,
    )
    refused("num_accepted_tokens is [8]", recurrent, r, k, v, state, num_accepted_tokens=torch.tensor([8]), **known)
    refused("gk is of shape [7, 4]", recurrent, r, k, v, state, gk=g, **known)
    apply, heads = rotary.npu_apply_rotary_pos_emb, torch.randn(1, 3, 2, 4)
    refused("layout is 'BSH'", apply, *[heads] * 4, "BSH")
    refused("rotary_mode is 'third'", apply, *[heads] * 4, "BSND", "third")
    refused("query is of shape [3, 2, 4]", apply, heads[0], *[heads] * 3)
    refused("sin is of shape [1, 3, 1, 4]", apply, heads, heads, heads, heads[:, :, :1])
    refused("query is of shape [1, 3, 3, 4]", apply, torch.randn(1, 3, 3, 4), *[heads] * 3)
    refused("cos is of shape [1, 3, 1, 3]", apply, heads, heads, *[heads[:, :, :1, :3]] * 2)
    refused("cos is torch.float64", apply, heads, heads, *[heads.double()] * 2)
    mrope, flat, cache = rotary.npu_mrope, torch.randn(3, 8), torch.randn(9, 4)
    positions = torch.tensor([0, 3, 8])
    refused("positions is from 0 to 9", mrope, torch.tensor([0, 3, 9]), flat, flat, cache, 4)
    refused("positions is torch.float32", mrope, positions.float(), flat, flat, cache, 4)
    refused("query is of shape [3, 8]", mrope, positions, flat, flat, cache, 5)
    refused("cos_sin_cache is of shape [9, 4]", mrope, positions, flat, flat, cache, 2)
    refused("mrope_section is [1, 1]", mrope, positions.repeat(3, 1), flat, flat, cache, 4, mrope_section=[1, 1])
    refused(
        "cache_mode is 'interleave'",
        mrope,
        positions.repeat(4, 1),
        flat,
        flat,
        cache,
        4,
        mrope_section=[1, 1, 0, 0],
        cache_mode="interleave",
    )
    refused("cache_mode is 'other'", mrope, positions, flat, flat, cache, 4, cache_mode="other")
    refused("rotary_mode is 'quarter'", mrope, positions, flat, flat, cache, 4, rotary_mode="quarter")


def test_on_the_device() -> None:
    npu = pytest.importorskip("torch_npu")
    q = torch.randn(6, 2, 4, dtype=torch.float64)
    mask = torch.tensor([[1, 0], [1, 1], [0, 1], [1, 1]], dtype=torch.int8).view(1, 2, 2, 2).npu()
    options: dict[str, Any] = {"num_key_value_heads": 2, "scale_value": 0.5, "softmax_lse_flag": 1}
    options |= {"actual_seq_lengths": [6], "actual_seq_lengths_kv": [6], "inner_precise": 0}
    leaves = [t.npu().requires_grad_() for t in (q, q + 1, q - 1)]
    assert torch.autograd.gradcheck(
        lambda q, k, v: npu.npu_block_sparse_attention(q, k, v, mask, [3, 3], **options)[0], leaves
    )
    five = [torch.randn(1, 1, 3, 3, 4, dtype=torch.float64).npu().requires_grad_() for _ in range(5)]
    hidden = (torch.rand(1, 1, 3, 1, 3) < 0.3).npu()
    assert torch.autograd.gradcheck(lambda *five: npu.npu_fused_floyd_attention(*five, atten_mask=hidden)[2], five)
    (r, k, v, beta, g), _ = steps(torch.bfloat16)
    state, counts = torch.randn(7, 4, 3, 4).bfloat16(), torch.tensor([3, 4]).int()
    on = [t.npu() for t in (r, k, v)]
    known: dict[str, Any] = {"beta": beta.npu(), "g": g.npu(), "actual_seq_lengths": counts.npu()}
    out, last = npu.npu_chunk_gated_delta_rule(*on, initial_state=state[:2].npu(), **known)
    assert (out.shape, last.shape) == ((7, 4, 3), (2, 4, 3, 4))
    own = state.npu()
    out = npu.npu_recurrent_gated_delta_rule(*on, own, **known)
    again, kept = npu.npu_recurrent_gated_delta_rule_functional(*on, state.npu(), **known)
    assert torch.equal(out, again)
    assert torch.equal(own, kept)
    assert not torch.equal(own.cpu(), state)
    heads, cos = torch.randn(1, 3, 2, 4), torch.randn(1, 3, 1, 4)
    query, key = heads.npu(), heads.npu()
    results = npu.npu_apply_rotary_pos_emb(query, key, cos.npu(), cos.npu())
    wanted = turned(heads, cos, cos, "half")
    for tensor in (query, key, *results):
        torch.testing.assert_close(tensor.cpu(), wanted)
    positions, flat = torch.arange(3).npu(), torch.randn(3, 8).npu()
    for one, other in itertools.pairwise(npu.npu_mrope(positions, flat, flat, torch.randn(3, 4).npu(), 4)):
        assert torch.equal(one, other)
