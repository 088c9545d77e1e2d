"""Attention of numbers in hifloat8, and its gradients: against the formulas in float64."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from descend.npu.composed import memory  # noqa: E402
from descend.npu.composed.attention import quant_attention  # noqa: E402
from descend.npu.composed.quantised import formats  # noqa: E402
from quantised_numbers import DST_TYPES, NUMBERS  # noqa: E402
from test_npu_composed import near, refused  # noqa: E402

Tensor = Any
FORWARD = quant_attention.npu_quant_fusion_attention
BACKWARD = quant_attention.npu_quant_fusion_attention_backward
HIF8 = DST_TYPES["hif8"]


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(11)


def nearest(x: Tensor) -> Tensor:
    """The nearest numbers of hifloat8, the larger one of two that are equally near."""
    numbers = torch.tensor(NUMBERS["hif8"][::-1]).double()
    flat = x.flatten()
    return (numbers[(flat.abs().unsqueeze(-1) - numbers).abs().argmin(-1)] * flat.sign()).view(x.shape)


def numbers(codes: Tensor, scale: Tensor, block: int) -> Tensor:
    """[B, N, S, D] in float64, of [B, S, N, D]."""
    held = formats.as_float(codes, formats.HIF8).double().transpose(1, 2)
    each = [scale[:, :, row // block].double() for row in range(held.shape[2])]
    return held * torch.stack(each, 2) if each else held


def scales(heads: int, rows: int, block: int) -> Tensor:
    return torch.rand(2, heads, -(-rows // block), 1) + 0.5


def given(rows: int, columns: int, heads: int = 2, size: int = 8) -> tuple[Tensor, Tensor, Tensor]:
    q, k, v = (torch.randn(2, s, heads, size) for s in (rows, columns, columns))
    return formats.rounded(q, formats.HIF8), formats.rounded(k, formats.HIF8), formats.rounded(v, formats.HIF8)


@pytest.mark.parametrize(("rows", "columns"), [(5, 7), (1, 1), (130, 9), (3, 520), (300, 257), (0, 4)])
@pytest.mark.parametrize("p_scale", [1.0, 15.0, 30000.0])
def test_forward(rows: int, columns: int, p_scale: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "NUMBERS", 4096)
    q, k, v = given(rows, columns)
    dq, dk, dv = (scales(2, s, block) for s, block in ((rows, 128), (columns, 256), (columns, 512)))
    out, most, total, nothing, *zeros = FORWARD(
        q, k, v, 2, "BSND", d_scale_q=dq, d_scale_k=dk, d_scale_v=dv, p_scale=torch.tensor([p_scale]), scale=0.3,
        query_dtype=HIF8,
    )  # fmt: skip
    scores = 0.3 * numbers(q, dq, 128) @ numbers(k, dk, 256).mT
    weights = nearest(scores.softmax(-1) * p_scale) / p_scale
    assert out.dtype == torch.bfloat16
    assert out.is_contiguous()
    near(out, (weights @ numbers(v, dv, 512)).transpose(1, 2))
    near(most, scores.amax(-1, keepdim=True))
    near(total, (scores - scores.amax(-1, keepdim=True)).exp().sum(-1, keepdim=True))
    assert (nothing.numel(), nothing.dtype, zeros) == (0, torch.bfloat16, [0, 0, 0])


@pytest.mark.parametrize(("rows", "columns"), [(5, 7), (1, 1), (3, 520), (515, 9), (0, 4)])
@pytest.mark.parametrize(("p_scale", "ds_scale"), [(1.0, 1.0), (15.0, 350.0)])
def test_backward(rows: int, columns: int, p_scale: float, ds_scale: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "NUMBERS", 4096)
    q, k, v = given(rows, columns)
    dy = given(rows, 1)[0]
    d = [scales(2, s, 512) for s in (rows, columns, columns, rows)]
    q64, k64, v64, dy64 = (numbers(t, scale, 512) for t, scale in zip((q, k, v, dy), d, strict=True))
    scores = 0.3 * q64 @ k64.mT
    most = scores.amax(-1, keepdim=True)
    total = (scores - most).exp().sum(-1, keepdim=True)
    weights = scores.softmax(-1)
    out = (weights @ v64).to(torch.bfloat16)
    slope = weights * (dy64 @ v64.mT - (out.double() * dy64).sum(-1, keepdim=True))
    weights, slope = nearest(weights * p_scale) / p_scale, nearest(slope * ds_scale) / ds_scale
    got = BACKWARD(
        q, k, v, dy, 2, "BSND", *d, p_scale=torch.tensor([p_scale]), ds_scale=torch.tensor([ds_scale]),
        softmax_max=most.float(), softmax_sum=total.float(), attention_in=out.transpose(1, 2), scale_value=0.3,
        query_dtype=HIF8,
    )  # fmt: skip
    assert got[3:] == (None, None, None, None)
    for one, wanted in zip(got, (0.3 * slope @ k64, 0.3 * slope.mT @ q64, weights.mT @ dy64), strict=False):
        assert one.dtype == torch.bfloat16
        near(one, wanted.transpose(1, 2))


def test_large_weights_become_the_largest_number() -> None:
    """p * p_scale may be beyond hifloat8, whose largest number is 32768."""
    q, k, v = given(2, 1)
    one = torch.ones(2, 2, 1, 1)
    options = {"d_scale_q": one, "d_scale_k": one, "d_scale_v": one, "query_dtype": HIF8}
    out = FORWARD(q, k, v, 2, "BSND", **options, p_scale=torch.tensor([65536.0]))[0]
    near(out, formats.as_float(v, formats.HIF8).double().expand(2, 2, 2, 8) / 2)


def test_what_is_refused() -> None:
    q, k, v = given(3, 5)
    one = torch.ones(2, 2, 1, 1)
    good: dict[str, Any] = {"d_scale_q": one, "d_scale_k": one, "d_scale_v": one, "query_dtype": HIF8}
    good |= {"p_scale": torch.ones(1)}
    for sentence, tensors, heads, layout, changed in (
        ("query is torch.float32, but must be uint8.", (q.float(), k, v), 2, "BSND", {}),
        ("query is of shape [2, 3, 16], but must have 4 dimensions.", (q.flatten(2), k, v), 2, "BSND", {}),
        ("key is of shape [2, 5, 1, 8], but must have that of query, but for the number of rows, [2, 5, 2, 8].",
         (q, k[:, :, :1], v), 2, "BSND", {}),
        ("value is of shape [2, 4, 2, 8], but must have that of key, [2, 5, 2, 8].", (q, k, v[:, :4]), 2, "BSND", {}),
        ("head_num is 4, but must be that of query, 2.", (q, k, v), 4, "BSND", {}),
        ("input_layout is 'BNSD', but must be 'BSND'.", (q, k, v), 2, "BNSD", {}),
        ("query_dtype is None, but must be one of hifloat8.", (q, k, v), 2, "BSND", {"query_dtype": None}),
        ("query_dtype is float8_e4m3fn, but must be one of hifloat8.", (q, k, v), 2, "BSND", {"query_dtype": 24}),
        ("p_scale is None, but must be given.", (q, k, v), 2, "BSND", {"p_scale": None}),
        ("p_scale is of shape [2], but must have one number.", (q, k, v), 2, "BSND", {"p_scale": torch.ones(2)}),
        ("d_scale_k is torch.float16, but must be float32.", (q, k, v), 2, "BSND", {"d_scale_k": one.half()}),
        ("d_scale_v is of shape [2, 2, 2, 1], but must have that of a scale for each block of 512 rows, [2, 2, 1, 1].",
         (q, k, v), 2, "BSND", {"d_scale_v": torch.ones(2, 2, 2, 1)}),
    ):  # fmt: skip
        refused(f"npu_quant_fusion_attention: {sentence}", FORWARD, *tensors, heads, layout, **{**good, **changed})
    ones = [one, one, one, one]
    held = {"softmax_max": torch.zeros(2, 2, 3, 1), "softmax_sum": torch.ones(2, 2, 3, 1), "ds_scale": torch.ones(1)}
    held |= {"attention_in": torch.zeros(2, 3, 2, 8), "p_scale": torch.ones(1), "query_dtype": HIF8}
    BACKWARD(q, k, v, q, 2, "BSND", *ones, **held)
    for sentence, dy, changed in (
        ("dy is torch.bfloat16, but must be uint8.", q.bfloat16(), {}),
        ("dy is of shape [2, 5, 2, 8], but must have that of query, [2, 3, 2, 8].", k, {}),
        ("softmax_sum is None, but must be given: it is a result of the forward.", q, {"softmax_sum": None}),
        ("softmax_max is of shape [2, 2, 3, 8], but must have that of the forward's result, [2, 2, 3, 1].", q,
         {"softmax_max": torch.zeros(2, 2, 3, 8)}),
        ("ds_scale is None, but must be given.", q, {"ds_scale": None}),
    ):  # fmt: skip
        refused(
            f"npu_quant_fusion_attention_backward: {sentence}", BACKWARD, q, k, v, dy, 2, "BSND", *ones,
            **{**held, **changed},
        )  # fmt: skip


def test_on_the_device() -> None:
    """torch_npu's own names, forward and backward: near the gradients of attention in float64."""
    torch_npu = pytest.importorskip("torch_npu")
    q, k, v = (t.npu() for t in given(4, 6))
    one, p_scale = torch.ones(2, 2, 1, 1).npu(), torch.tensor([64.0]).npu()
    out, most, total, *_ = torch_npu.npu_quant_fusion_attention(
        q, k, v, 2, "BSND", d_scale_q=one, d_scale_k=one, d_scale_v=one, p_scale=p_scale, scale=0.25,
        query_dtype=torch_npu.hifloat8,
    )  # fmt: skip
    dq, dk, dv, *nothing = torch_npu.npu_quant_fusion_attention_backward(
        q, k, v, q, 2, "BSND", one, one, one, one, p_scale=p_scale, ds_scale=p_scale, softmax_max=most,
        softmax_sum=total, attention_in=out, scale_value=0.25, query_dtype=torch_npu.hifloat8,
    )  # fmt: skip
    assert nothing == [None] * 4
    leaves = [numbers(t.cpu(), one.cpu(), 512).requires_grad_() for t in (q, k, v)]
    wanted = torch.nn.functional.scaled_dot_product_attention(*leaves, scale=0.25)
    wanted.backward(leaves[0].detach())
    for got, each in zip((out, dq, dk, dv), (wanted.detach(), *(leaf.grad for leaf in leaves)), strict=True):
        assert got.device.type == "npu"
        assert (got.cpu().double() - each.transpose(1, 2)).abs().max() <= 0.07 * each.abs().max()
