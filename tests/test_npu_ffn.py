"""npu_ffn: against its formulas in float64, and refusals."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch.nn import functional  # noqa: E402

from descend.npu.composed.products.ffn import npu_ffn  # noqa: E402
from descend.npu.composed.quantised.quantize import npu_trans_quant_param  # noqa: E402
from test_npu_composed import FLOATS, near, refused  # noqa: E402

Tensor = Any
ACTIVATIONS = {
    "relu": functional.relu,
    "silu": functional.silu,
    "gelu": lambda h: functional.gelu(h, approximate="tanh"),
    "fastgelu": lambda h: h / (1 + (-1.702 * h).exp()),
}
TOKENS = [3, 0, 4]
ENDS = [3, 3, 7]


def by_expert(experts: bool, x: Tensor, one: Any) -> Tensor:
    """What ``one(rows, expert)`` gives for the rows of each expert."""
    if not experts:
        return one(x, ())
    return torch.cat([one(rows, e) for e, rows in enumerate(x.split(TOKENS))])


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("experts", ["", "tokens", "index"])
@pytest.mark.parametrize("bias", [True, False])
def test_numbers(dtype: Any, activation: str, experts: str, bias: bool) -> None:
    more = (3,) if experts else ()
    x = torch.randn(7, 8).to(dtype) if experts else torch.randn(2, 3, 8).to(dtype)
    w1, w2, b1, b2 = (torch.randn(*more, *shape).to(dtype) for shape in ((8, 12), (12, 8), (12,), (8,)))
    options: dict[str, Any] = {"bias1": b1, "bias2": b2} if bias else {}
    options |= {"": {}, "tokens": {"expert_tokens": TOKENS}, "index": {"expert_tokens_index": ENDS}}[experts]
    y = npu_ffn(x, w1, w2, activation, **options)

    def one(rows: Tensor, e: Any) -> Tensor:
        h = rows @ w1[e].double() + (b1[e].double() if bias else 0)
        return ACTIVATIONS[activation](h) @ w2[e].double() + (b2[e].double() if bias else 0)

    assert y.dtype == dtype
    wanted = by_expert(bool(experts), x.double(), one)
    near(y, wanted, size=8 * wanted.abs().max().item())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("experts", [True, False])
@pytest.mark.parametrize("offsets", [True, False])
def test_weights_in_int8(dtype: Any, experts: bool, offsets: bool) -> None:
    more = (3,) if experts else ()
    x = torch.randn(7, 8).to(dtype)
    w1, w2 = (torch.randint(-9, 9, (*more, *shape), dtype=torch.int8) for shape in ((8, 12), (12, 8)))
    s1, s2, o1, o2 = ((torch.rand(*more, n) * 0.2).to(dtype) for n in (12, 8, 12, 8))
    options: dict[str, Any] = {"antiquant_scale1": s1, "antiquant_scale2": s2}
    options |= {"antiquant_offset1": o1, "antiquant_offset2": o2} if offsets else {}
    options |= {"expert_tokens": TOKENS} if experts else {}
    y = npu_ffn(x, w1, w2, "relu", **options)

    def one(rows: Tensor, e: Any) -> Tensor:
        first, second = (
            (w[e].double() + (o[e].double() if offsets else 0)) * s[e].double()
            for w, o, s in ((w1, o1, s1), (w2, o2, s2))
        )
        return (rows @ first).relu() @ second

    assert y.dtype == dtype
    wanted = by_expert(experts, x.double(), one)
    near(y, wanted, size=4 * wanted.abs().max().item())


@pytest.mark.parametrize("to", [None, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("experts", [True, False])
@pytest.mark.parametrize("kind", ["int64", "float32"])
@pytest.mark.parametrize("columns", [True, False])
def test_all_in_int8(to: Any, experts: bool, kind: str, columns: bool) -> None:
    more = (3,) if experts else ()
    x, w1, w2 = (
        torch.randint(-128, 128, shape, dtype=torch.int8) for shape in ((7, 8), (*more, 8, 12), (*more, 12, 8))
    )
    b1, b2 = (torch.randint(-999, 999, (*more, n), dtype=torch.int32) for n in (12, 8))
    d1, d2 = ((torch.rand(*more, n) * 0.04 + 0.01).bfloat16().float() for n in (12, 8))
    scale = torch.rand(*(more or (1,))) * 0.01 if not columns else torch.rand(*more, 12) * 0.01
    offset = torch.rand(*(more or (1,))) * 9
    deq = [npu_trans_quant_param(d.view(-1)).view(d.shape) if kind == "int64" else d for d in (d1, d2)]
    y = npu_ffn(
        x, w1, w2, "relu", bias1=b1, bias2=b2, scale=scale, offset=offset, deq_scale1=deq[0], deq_scale2=deq[1],
        output_dtype=to, expert_tokens=TOKENS if experts else None,
    )  # fmt: skip

    def one(rows: Tensor, e: Any) -> Tensor:
        at = e if experts else 0
        by = scale[at] if experts else (scale if columns else scale[0])
        h = ((rows @ w1[e].double() + b1[e]) * d1[e].double()).relu()
        held = (h * by.double() + offset[at].double()).round().clamp(-128, 127)
        return (held @ w2[e].double() + b2[e]) * d2[e].double()

    assert y.dtype == (to or torch.float16)
    wanted = by_expert(experts, x.double(), one)
    # A number in the middle between two integers may be rounded to the other one.
    assert ((y.double() - wanted).abs() > 0.02 * wanted.abs().max()).sum() <= 1


def test_refusals() -> None:
    x, w1, w2 = torch.randn(7, 8), torch.randn(8, 12), torch.randn(12, 8)
    i8 = [t.to(torch.int8) for t in (x, w1, w2)]
    d1, d2, one = torch.ones(12), torch.ones(8), torch.ones(1)
    refused("activation is 'swiglu', but must be 'relu' or", npu_ffn, x, w1, w2, "swiglu")
    refused("x is of shape [8]", npu_ffn, x[0], w1, w2, "relu")
    refused("weight1 is of shape [8, 12], but must have 2 matrices", npu_ffn, x, w1, w2, "relu", expert_tokens=[3, 4])
    refused("weight1 is of shape [1, 8, 12], but must be a matrix", npu_ffn, x, w1[None], w2, "relu")
    refused("weight1 is of shape [7, 12]", npu_ffn, x, w1[:7], w2, "relu")
    refused("weight2 is of shape [12, 7]", npu_ffn, x, w1, w2[:, :7], "relu")
    refused("bias1 is of shape [8]", npu_ffn, x, w1, w2, "relu", bias1=d2)
    refused("expert_tokens is [3, 3]", npu_ffn, x, w1, w2, "relu", expert_tokens=[3, 3])
    refused("expert_tokens_index is given", npu_ffn, x, w1, w2, "relu", expert_tokens=[7], expert_tokens_index=[7])
    refused("scale is given", npu_ffn, x, w1, w2, "relu", scale=one)
    refused("deq_scale1 is given", npu_ffn, x, w1, w2, "relu", deq_scale1=d1)
    refused("weight1 is torch.int8", npu_ffn, x, i8[1], w2, "relu")
    refused("weight2 is torch.float64, but must be float64 where x is", npu_ffn, x, w1, w2.double(), "relu")
    refused("antiquant_scale1 is None", npu_ffn, x, w1, w2, "relu", antiquant_offset1=d1)
    refused("weight1 is torch.float32, but must be int8", npu_ffn, i8[0], w1, w2, "relu")
    refused("deq_scale2 is None", npu_ffn, *i8, "relu", deq_scale1=d1, scale=one)
    refused("scale is None", npu_ffn, *i8, "relu", deq_scale1=d1, deq_scale2=d2)
    known: dict[str, Any] = {"deq_scale1": d1, "deq_scale2": d2}
    refused("scale is of shape [3]", npu_ffn, *i8, "relu", scale=torch.ones(3), **known)
    refused("offset is of shape [2]", npu_ffn, *i8, "relu", scale=one, offset=torch.ones(2), **known)
    refused("antiquant_scale1 is given", npu_ffn, *i8, "relu", scale=one, antiquant_scale1=d1, **known)
    refused("deq_scale1 is torch.int32", npu_ffn, *i8, "relu", scale=one, deq_scale1=d1.int(), deq_scale2=d2)
    refused("output_dtype is torch.float32", npu_ffn, *i8, "relu", scale=one, output_dtype=torch.float32, **known)


def test_on_the_device() -> None:
    npu = pytest.importorskip("torch_npu")
    x, w1, w2 = (torch.randn(shape).half() for shape in ((7, 8), (3, 8, 12), (3, 12, 8)))
    y = npu.npu_ffn(x.npu(), w1.npu(), w2.npu(), "silu", expert_tokens=TOKENS, inner_precise=1)
    assert torch.equal(y.cpu(), npu_ffn(x, w1, w2, "silu", expert_tokens=TOKENS))
