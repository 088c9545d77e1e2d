"""Attention as generation calls it: against its formula in float64, query by query; refusals."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from descend.npu.composed import memory  # noqa: E402
from descend.npu.composed.attention import infer_attention  # noqa: E402
from test_npu_composed import FLOATS, near, refused  # noqa: E402

Tensor = Any
ONE, TWO = infer_attention.npu_fused_infer_attention_score, infer_attention.npu_fused_infer_attention_score_v2
PROMPT, STEP = infer_attention.npu_prompt_flash_attention, infer_attention.npu_incre_flash_attention
CAUSAL = torch.ones(2048, 2048, dtype=torch.bool).triu(1)


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float,
    hidden: Tensor | None,
    pse: Tensor | None = None,
    sink: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Of one sequence [N, S, D], in float64. A query that sees nothing gives 0."""
    q, k, v = (t.double() for t in (q, k, v))
    k, v = (t.repeat_interleave(len(q) // len(t), 0) for t in (k, v))
    scores = scale * q @ k.transpose(1, 2)
    if pse is not None:
        scores = scores + pse.double()
    if hidden is not None:
        scores = scores.masked_fill(hidden, -torch.inf)
    if sink is not None:
        scores = torch.cat((scores, sink.double().view(-1, 1, 1).expand(-1, scores.shape[1], 1)), -1)
    weights = scores.softmax(-1).nan_to_num(0.0)[..., : k.shape[1]]
    lse = scores.logsumexp(-1, keepdim=True)
    return weights @ v, lse.masked_fill(lse == -torch.inf, torch.inf)


def laid(tensor: Tensor, layout: str) -> Tensor:
    """[B, N, S, D] in a layout."""
    return {
        "BNSD": lambda: tensor,
        "BSND": lambda: tensor.transpose(1, 2),
        "BSH": lambda: tensor.transpose(1, 2).flatten(2),
        "NBSD": lambda: tensor.transpose(0, 1),
    }[layout]()


def close(got: Tensor, wanted: Tensor) -> None:
    """`near`, also where both are infinite."""
    assert torch.equal(got.isinf(), wanted.isinf())
    near(got.masked_fill(got.isinf(), 0), wanted.masked_fill(wanted.isinf(), 0), size=4.0)


def band(mode: int, rows: int, columns: int, mask: Tensor | None) -> Tensor | None:
    if mask is None:
        return None
    shift, before, after = {
        0: (0, 2, 1),
        1: (0, 99, 99),
        2: (0, 99, 0),
        3: (columns - rows, 99, 0),
        4: (columns - rows, 2, 1),
    }[mode]
    hidden = torch.zeros(rows, columns, dtype=torch.bool)
    for i in range(rows):
        for j in range(columns):
            hidden[i, j] = not i + shift - before <= j <= i + shift + after
    return hidden | mask[:rows, :columns].bool() if mode in (0, 1) else hidden


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("layout", ["BSH", "BSND", "BNSD", "BNSD_BSND", "BSH_NBSD", "BSND_NBSD", "BNSD_NBSD"])
@pytest.mark.parametrize("mode", [0, 1, 2, 3, 4])
@pytest.mark.parametrize("full", [True, False])
def test_attention(dtype: Any, layout: str, mode: int, full: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    q, k, v = (torch.randn(2, n, s, d).to(dtype) for n, s, d in ((4, 5, 6), (2, 7, 6), (2, 7, 3)))
    rows, columns = ([5, 5], [7, 7]) if full else ([3, 5], [7, 2])
    mask = torch.rand(2, 1, 5, 8) < 0.4
    mask[0, 0, 1] = True
    pse = torch.randn(2, 4, 5, 7).to(dtype) if full else None
    given = CAUSAL if mode > 1 else mask
    wanted, lse = torch.zeros(2, 4, 5, 3).double(), torch.full((2, 4, 5, 1), torch.inf).double()
    for b in range(2):
        hidden = band(mode, rows[b], columns[b], mask[b, 0])
        own = None if pse is None else pse[b]
        out, sums = attention(q[b, :, : rows[b]], k[b, :, : columns[b]], v[b, :, : columns[b]], 0.3, hidden, own)
        wanted[b, :, : rows[b]], lse[b, :, : rows[b]] = out, sums
    before, _, after = layout.partition("_")
    options: dict[str, Any] = {
        "num_key_value_heads": 2,
        "input_layout": layout,
        "sparse_mode": mode,
        "atten_mask": given,
    }
    options |= {"pre_tokens": 2, "next_tokens": 1, "pse_shift": pse}
    tensors = [laid(t, before) for t in (q, k, v)]
    known = {} if full else {"actual_seq_lengths": rows, "actual_seq_lengths_kv": columns}
    for scores in (1, memory.NUMBERS):
        monkeypatch.setattr(memory, "NUMBERS", scores)
        got, sums = ONE(*tensors, num_heads=4, scale=0.3, softmax_lse_flag=True, **options, **known)
        near(got, laid(wanted, after or before))
        assert (got.dtype, sums.dtype) == (dtype, torch.float32)
        close(sums, lse)
    again = {} if full else {"actual_seq_qlen": rows, "actual_seq_kvlen": columns}
    second, nothing = TWO(*tensors, num_query_heads=4, softmax_scale=0.3, **options, **again)
    assert torch.equal(second, got)
    assert nothing.numel() == 0
    assert torch.equal(PROMPT(*tensors, num_heads=4, scale_value=0.3, **options, **known), got)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("layout", ["TND", "TND_NTD", "NTD_TND"])
@pytest.mark.parametrize("mode", [0, 3])
@pytest.mark.parametrize("parts", ["plain", "rope", "sink"])
def test_sequences_in_one(dtype: Any, layout: str, mode: int, parts: str) -> None:
    rows, columns = [2, 0, 3], [4, 1, 3]
    q, k, v = (torch.randn(n, t, d).to(dtype) for n, t, d in ((4, 6, 6), (2, 8, 6), (2, 8, 6)))
    sink = torch.randn(4).to(dtype) if parts == "sink" else None
    ropes = [torch.randn(n, t, 2).to(dtype) for n, t in ((4, 6), (2, 8))] if parts == "rope" else None
    joined = [torch.cat(pair, -1) for pair in zip((q, k), ropes, strict=True)] if ropes else [q, k]
    wanted, lse = torch.zeros(4, 6, 6).double(), torch.full((6, 4, 1), torch.inf).double()
    start = begin = 0
    for count, keys in zip(rows, columns, strict=True):
        at, of = slice(start, start + count), slice(begin, begin + keys)
        hidden = band(mode, count, keys, CAUSAL) if mode else None
        wanted[:, at], sums = attention(joined[0][:, at], joined[1][:, of], v[:, of], 0.4, hidden, None, sink)
        lse[at] = sums.transpose(0, 1)
        start, begin = start + count, begin + keys
    order, _, after = layout.partition("_")

    def packed(t: Tensor, name: str) -> Tensor:
        return t.transpose(0, 1) if name == "TND" else t

    options: dict[str, Any] = {
        "num_key_value_heads": 2,
        "input_layout": layout,
        "sparse_mode": mode,
        "learnable_sink": sink,
    }
    if mode:
        options["atten_mask"] = CAUSAL
    if ropes:
        options |= dict(zip(("query_rope", "key_rope"), (packed(t, order) for t in ropes), strict=True))
    ends = {"actual_seq_qlen": [2, 2, 5], "actual_seq_kvlen": [4, 5, 8]}
    tensors = [packed(t, order) for t in (q, k, v)]
    got, sums = TWO(*tensors, num_query_heads=4, softmax_scale=0.4, return_softmax_lse=True, **options, **ends)
    near(got, packed(wanted, after or order))
    close(sums, lse)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("shape", ["flat", "by heads"])
@pytest.mark.parametrize("layout", ["BNSD", "TND"])
def test_keys_in_pages(dtype: Any, shape: str, layout: str) -> None:
    k, v = (torch.randn(7, 2, 3, 4).to(dtype) for _ in range(2))  # pages, heads, rows, columns
    q = torch.randn(2, 4, 2, 4).to(dtype)
    table, lengths = torch.tensor([[5, 1, 99], [0, 6, 2]], dtype=torch.int32), [4, 9]
    wanted = torch.zeros(2, 4, 2, 4).double()
    for b in range(2):
        keys, values = (torch.cat([t[min(int(p), 6)] for p in table[b]], 1)[:, : lengths[b]] for t in (k, v))
        wanted[b] = attention(q[b], keys, values, 0.5, None)[0]
    pages = [t if shape == "by heads" else t.transpose(1, 2).flatten(2) for t in (k, v)]
    given = q if layout == "BNSD" else q.transpose(1, 2).flatten(0, 1)
    options: dict[str, Any] = {} if layout == "BNSD" else {"actual_seq_lengths": [2, 4]}
    got = ONE(
        given, *pages, num_heads=4, num_key_value_heads=2, scale=0.5, input_layout=layout, block_table=table,
        block_size=3, actual_seq_lengths_kv=lengths, **options,
    )[0]  # fmt: skip
    near(got, wanted if layout == "BNSD" else wanted.transpose(1, 2).flatten(0, 1))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("layout", ["BSH", "BSND", "BNSD"])
def test_one_query(dtype: Any, layout: str) -> None:
    q, k, v = (torch.randn(2, n, s, 4).to(dtype) for n, s in ((4, 1), (2, 6), (2, 6)))
    mask = torch.rand(2, 6) < 0.3
    wanted = torch.stack([attention(q[b], k[b, :, :n], v[b, :, :n], 0.5, mask[b, :n])[0] for b, n in enumerate((6, 3))])
    tensors, options = (
        [laid(t, layout) for t in (q, k, v)],
        {"num_heads": 4, "num_key_value_heads": 2, "input_layout": layout},
    )
    got = STEP(*tensors, scale_value=0.5, atten_mask=mask, actual_seq_lengths=[6, 3], **options)
    near(got, laid(wanted, layout))
    causal = ONE(*tensors, scale=0.5, atten_mask=CAUSAL, sparse_mode=3, **options)[0]
    near(causal, laid(torch.stack([attention(q[b], k[b], v[b], 0.5, None)[0] for b in range(2)]), layout))


@pytest.mark.parametrize("layout", ["BNSD", "TND"])
def test_pages_that_are_not_there(layout: str) -> None:
    """Only where the table is read: beyond the end of a sequence it may hold anything."""
    pages, q = torch.randn(3, 2, 4, 8), torch.randn(2, 2, 1, 8)
    options: dict[str, Any] = {"num_heads": 2, "input_layout": layout, "block_size": 4}
    if layout == "TND":
        q, options["actual_seq_lengths"] = q[:, :, 0], [1, 2]

    def call(table: list[list[int]], lengths: Any, held: Tensor = pages) -> Tensor:
        named = {"block_table": torch.tensor(table, dtype=torch.int32), "actual_seq_lengths_kv": lengths}
        return ONE(q, held, held, **options, **named)[0]

    assert torch.equal(call([[0, 99], [1, 2]], [4, 5]), call([[0, 0], [1, 2]], [4, 5]))
    rule = "block_table is from 0 to 3, but must name one of 3 pages where it is read"
    refused(rule, call, [[0, 99], [1, 3]], [4, 5])
    refused("block_table is from -1 to 2", call, [[-1, 0], [1, 2]], [4, 5])
    refused("must name one of 0 pages", call, [[0, 0], [0, 0]], [4, 5], pages[:0])
    assert not call([[9, 9], [9, 9]], [0, 0], pages[:0]).any()
    if layout == "BNSD":
        refused(rule, call, [[0, 1], [1, 3]], None)
        refused(rule, call, [[0, 1], [1, 3]], torch.tensor([5]))


def test_refusals() -> None:
    x = torch.randn(2, 3, 4, 8)
    known: dict[str, Any] = {"num_heads": 3, "input_layout": "BNSD"}
    refused("antiquant_scale is given", ONE, x, x, x, antiquant_scale=x, **known)
    refused("kv_padding_size is given", ONE, x, x, x, kv_padding_size=x, **known)
    refused("input_layout is 'SBH'", ONE, x, x, x, num_heads=3, input_layout="SBH")
    refused("sparse_mode is 9", ONE, x, x, x, sparse_mode=9, **known)
    refused("num_key_value_heads is 2", ONE, x, x, x, num_key_value_heads=2, **known)
    refused("query is of shape [2, 3, 4, 8], but must have 4 heads", ONE, x, x, x, num_heads=4, input_layout="BNSD")
    refused("query is of shape [2, 3, 4, 8], but must have 3 dimensions", ONE, x, x, x, num_heads=3)
    refused("key and value is", ONE, x, x, x[:, :, :2], **known)
    refused("key is torch.int8", ONE, x, x.to(torch.int8), x, **known)
    refused("query_rope or key_rope is None", ONE, x, x, x, query_rope=x, **known)
    refused("the lengths of queries is [5]", ONE, x, x, x, actual_seq_lengths=[5], **known)
    refused("atten_mask is None, but must be [2048, 2048]", ONE, x, x, x, sparse_mode=2, **known)
    refused("atten_mask is another mask", ONE, x, x, x, sparse_mode=3, atten_mask=~CAUSAL, **known)
    refused("atten_mask is None, but must be given", ONE, x, x, x, sparse_mode=1, **known)
    refused("atten_mask is of shape [3, 4, 4]", ONE, x, x, x, atten_mask=torch.zeros(3, 4, 4).bool(), **known)
    refused("atten_mask is torch.float32", ONE, x, x, x, atten_mask=torch.zeros(4, 4), **known)
    refused("pse_shift is of shape [2, 3, 4, 3]", ONE, x, x, x, pse_shift=x[..., :3], **known)
    refused(
        "block_table is torch.float32 of shape [2, 2], but must be int32 or int64",
        ONE,
        x,
        x,
        x,
        block_table=torch.ones(2, 2),
        **known,
    )
    refused("must have one query", STEP, x, x, x, **known)
    refused("input_layout is 'TND'", STEP, x[0], x[0], x[0], num_heads=4, input_layout="TND")
    flat: dict[str, Any] = {"num_query_heads": 3, "input_layout": "TND"}
    rows = torch.randn(4, 3, 8)
    refused("the lengths of queries and keys is None", TWO, rows, rows, rows, **flat)
    refused(
        "the lengths of keys is [4, 3]", TWO, rows, rows, rows, actual_seq_qlen=[2, 4], actual_seq_kvlen=[4, 3], **flat
    )
    refused(
        "learnable_sink is of shape [4]",
        TWO,
        x,
        x,
        x,
        num_query_heads=3,
        input_layout="BNSD",
        learnable_sink=torch.ones(4),
    )


def test_on_the_device() -> None:
    npu = pytest.importorskip("torch_npu")
    q, k, v = (torch.randn(2, 5, 3 * 8).half().npu() for _ in range(3))
    wanted = ONE(q.cpu(), k.cpu(), v.cpu(), num_heads=3, scale=0.5)[0]
    assert torch.equal(npu.npu_fused_infer_attention_score(q, k, v, num_heads=3, scale=0.5)[0].cpu(), wanted)
    out, lse = npu.npu_fused_infer_attention_score_v2(
        q, k, v, num_query_heads=3, softmax_scale=0.5, return_softmax_lse=True
    )
    assert torch.equal(out.cpu(), wanted)
    assert lse.shape == (2, 3, 5, 1)
    assert torch.equal(npu.npu_prompt_flash_attention(q, k, v, num_heads=3, scale_value=0.5).cpu(), wanted)
    one = npu.npu_incre_flash_attention(q[:, :1], k, v, num_heads=3, scale_value=0.5)
    torch.testing.assert_close(one.cpu(), wanted[:, :1])


@pytest.mark.parametrize("lse", [False, True])
def test_results_that_the_program_has_made(lse: bool) -> None:
    npu = pytest.importorskip("torch_npu")
    q, k, v = (torch.randn(2, 5, 3 * 8).half().npu() for _ in range(3))
    for operator, flag in (
        (npu.npu_fused_infer_attention_score, "softmax_lse_flag"),
        (npu.npu_fused_infer_attention_score_v2, "return_softmax_lse"),
    ):
        options = {"num_query_heads" if "return" in flag else "num_heads": 3, flag: lse}
        workspace = getattr(npu, f"_{operator.__name__}_get_max_workspace")(q, k, v, **options)
        wanted = operator(q, k, v, **options)
        out = [torch.zeros_like(q), torch.full((2, 3, 5, 1) if lse else (1,), 7.0).npu()]
        assert operator.out(q, k, v, **options, workspace=workspace, out=out) == (out[0], out[1])
        assert torch.equal(out[0], wanted[0])
        assert torch.equal(out[1], wanted[1]) if lse else out[1].tolist() == [0]
        with pytest.raises(RuntimeError, match="out is of shape"):
            operator.out(q, k, v, **options, out=[out[0][:1], out[1]])


def test_lengths_of_queries_have_no_effect_on_a_single_one() -> None:
    q, k, v = (torch.randn(2, 3, s, 8) for s in (1, 4, 4))
    known: dict[str, Any] = {"num_heads": 3, "input_layout": "BNSD"}
    assert torch.equal(ONE(q, k, v, **known)[0], ONE(q, k, v, actual_seq_lengths=[100], **known)[0])
