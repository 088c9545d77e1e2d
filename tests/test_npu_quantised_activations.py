"""Activations that are quantised, also after a quantised product: against formulas in float64; refusals."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from descend.npu.composed.quantised import quant_activations, weight_quant  # noqa: E402
from quantised_numbers import DST_TYPES, NUMBERS  # noqa: E402
from test_npu_composed import near, refused  # noqa: E402
from test_npu_quantised_norms import quantised  # noqa: E402

Tensor = Any
HALVES = (torch.float16, torch.bfloat16)
FLOATS = (*HALVES, torch.float32)


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(11)


def gelu(x: Tensor, tanh: bool) -> Tensor:
    """In float64."""
    if tanh:
        return x / 2 * (1 + torch.tanh((2 / torch.pi) ** 0.5 * (x + 0.044715 * x**3)))
    return x / 2 * (1 + torch.erf(x / 2**0.5))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("name", ["int8", "e4m3", "e5m2", "hif8"])
@pytest.mark.parametrize("mode", ["static", "dynamic"])
@pytest.mark.parametrize("tanh", [True, False])
@pytest.mark.parametrize("count", [None, 1, 16])
def test_gelu_quant(dtype: Any, name: str, mode: str, tanh: bool, count: int | None) -> None:
    if mode == "static" and count is None:
        return
    x = (torch.randn(2, 3, 16) * 2).to(dtype)
    by = None if count is None else torch.rand(count) * 9 + 1
    offset = torch.randn(count or 1)
    y, scale = quant_activations.npu_gelu_quant(
        x, input_scale=by, input_offset=offset, approximate="tanh" if tanh else "none", quant_mode=mode,
        dst_type=DST_TYPES[name], round_mode="round" if name == "hif8" else "rint",
    )  # fmt: skip
    wanted = gelu(x.double(), tanh) * (1.0 if by is None else by.double())
    if mode == "static":
        assert scale is None
        quantised(y, name, wanted + offset.double())
        return
    rows = wanted.abs().amax(-1) / NUMBERS[name][-1]
    near(scale, rows, size=rows.max().item())
    quantised(y, name, wanted / rows[..., None])


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("name", ["int8", "int4"])
@pytest.mark.parametrize("ends", [[6], [1, 4, 6, 6]], ids=str)
@pytest.mark.parametrize("with_offset", [True, False])
def test_group_quant(dtype: Any, name: str, ends: list[int], with_offset: bool) -> None:
    x, scale = torch.randn(6, 16).to(dtype), torch.randn(len(ends), 16) * 5
    offset = torch.tensor([-1.5]) if with_offset else None
    to = {"int8": torch.int8, "int4": torch.quint4x2}[name]
    y = quant_activations.npu_group_quant(x, scale, torch.tensor(ends).int(), offset=offset, dst_dtype=to)
    by = torch.cat([scale[g].expand(end - begin, 16) for g, (begin, end) in enumerate(itertools.pairwise([0, *ends]))])
    quantised(y, name, x.double() * by.double() + (-1.5 if with_offset else 0.0))


@pytest.mark.parametrize("name", ["int8", "int4"])
@pytest.mark.parametrize("tanh", [True, False])
@pytest.mark.parametrize("scale_dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("bias_dtype", [None, torch.int32, torch.float32, torch.bfloat16], ids=str)
def test_quant_matmul_gelu(name: str, tanh: bool, scale_dtype: Any, bias_dtype: Any) -> None:
    least = -128 if name == "int8" else -8
    left, right = torch.randint(least, -least, (5, 16)), torch.randint(least, -least, (16, 8))
    held = [t.to(torch.int8) if name == "int8" else weight_quant.npu_convert_weight_to_int4pack(t.int())
            for t in (left, right)]  # fmt: skip
    scales = torch.rand(5) * 0.01, (torch.rand(8) * 0.1).to(scale_dtype)
    bias = None if bias_dtype is None else torch.randint(-9, 9, (8,)).to(bias_dtype)
    approximate = "gelu_tanh" if tanh else "gelu_erf"
    y = quant_activations.npu_quant_matmul_gelu(*held, *scales, bias=bias, approximate=approximate)
    before, after = (bias, 0) if bias_dtype == torch.int32 else (0, 0 if bias is None else bias.double())
    wanted = (left @ right + before).double() * scales[1].double() * scales[0].double()[:, None] + after
    assert y.dtype == (torch.bfloat16 if torch.bfloat16 in (scale_dtype, bias_dtype) else torch.float16)
    near(y, gelu(wanted, tanh))


@pytest.mark.parametrize("ends", [[7], [2, 2, 5]], ids=str)
@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("sizes", [True, False])
def test_grouped_matmul_swiglu_quant(ends: list[int], version: int, sizes: bool) -> None:
    x = torch.randint(-128, 128, (7, 32)).to(torch.int8)
    weight = torch.randint(-128, 128, (len(ends), 32, 24)).to(torch.int8)
    by, x_scale = torch.rand(len(ends), 24) * 0.01, torch.rand(7) * 0.01 + 0.001
    starts = [0, *ends]
    if version == 1:
        if sizes:
            return
        y, scale, zero = quant_activations.npu_grouped_matmul_swiglu_quant(x, weight, torch.tensor(ends), by, x_scale)
        assert zero.shape == ()
    else:
        index = [end - begin for begin, end in itertools.pairwise(starts)] if sizes else ends
        y, scale = quant_activations.npu_grouped_matmul_swiglu_quant_v2(
            x, [weight], [by], x_scale, torch.tensor(index), group_list_type=int(sizes)
        )
    for g, (begin, end) in enumerate(itertools.pairwise(starts)):
        if begin == end:
            continue
        product = (x[begin:end].long() @ weight[g].long()).double() * by[g].double() * x_scale[begin:end, None].double()
        gate, up = product.chunk(2, -1)
        act = gate / (1 + (-gate).exp()) * up
        rows = act.abs().amax(-1) / 127
        near(scale[begin:end], rows, size=rows.max().item())
        quantised(y[begin:end], "int8", act / rows[:, None])
    assert not y[ends[-1] :].any()
    assert not scale[ends[-1] :].any()


@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_gelu_of_infinity(approximate: str) -> None:
    """It is infinity; PyTorch's gelu of float32 says NaN, or infinity of 3e38, where it computes vectors."""
    x = torch.tensor([torch.inf, 3e38, 17.0, -3e38] * 8)
    y, _ = quant_activations.npu_gelu_quant(
        x, input_scale=torch.full((1,), 1e-37), approximate=approximate, quant_mode="static"
    )
    assert y[:4].tolist() == [127, 30, 0, 0]
    eight, tiny = torch.full((4, 4), 127).to(torch.int8), torch.ones(4)
    product = quant_activations.npu_quant_matmul_gelu(
        eight, eight, tiny, torch.full((1,), 3e38), approximate=f"gelu_{'erf' if approximate == 'none' else 'tanh'}"
    )
    assert (product == torch.inf).all()


def test_activations_refused() -> None:
    x, one = torch.randn(6, 16), torch.ones(1)
    call = quant_activations.npu_gelu_quant
    refused("approximate is 'erf', but must be 'none' or 'tanh'", call, x, approximate="erf")
    refused("input_scale is None", call, x, quant_mode="static")
    refused("input_scale is of shape [2]", call, x, input_scale=one.expand(2))
    refused("round_mode is 'floor'", call, x, round_mode="floor")
    refused("dst_type is int4", call, x, dst_type=16)
    refused("input_scale is torch.int64", call, x, input_scale=one.long())
    refused("input_offset is torch.float64", call, x, input_scale=one, input_offset=one.double())
    call = quant_activations.npu_group_quant
    refused("x is of shape [16]", call, x[0], x, torch.tensor([6]))
    rule = "must have the ends of groups one after another, the last at 6"
    refused(f"group_index is [5], but {rule}", call, x, x[:1], torch.tensor([5]))
    refused("group_index is [4, 3]", call, x, x[:2], torch.tensor([4, 3]))
    refused("scale is of shape [2, 16]", call, x, x[:2], torch.tensor([6]))
    refused("offset is torch.bool", call, x, x[:1], torch.tensor([6]), offset=one.bool())
    refused("dst_dtype is uint8", call, x, x[:1], torch.tensor([6]), dst_dtype=torch.uint8)
    call, eight = quant_activations.npu_quant_matmul_gelu, torch.ones(4, 4).to(torch.int8)
    refused("approximate is 'tanh'", call, eight, eight, one, one, approximate="tanh")
    refused("x1 is torch.float32", call, x, eight, one, one)
    refused("bias is of shape [3, 4], but must broadcast to the product, [4, 4]", call, eight, eight, one, one,
            bias=torch.ones(3, 4))  # fmt: skip
    refused("must have batches that broadcast with those of the left one, [2]", call, eight.expand(2, 4, 4),
            eight.expand(3, 4, 4), one, one)  # fmt: skip
    refused("x1_scale is torch.bfloat16", call, eight, eight, one.bfloat16(), one)
    call, weight, ends = quant_activations.npu_grouped_matmul_swiglu_quant, eight.view(1, 4, 4), torch.tensor([4])
    scale, rows = torch.ones(1, 4), torch.ones(4)
    refused("bias is given", call, eight, weight, ends, scale, rows, bias=one)
    refused("weight is of shape [1, 2, 8]", call, eight, eight.view(1, 2, 8), ends, scale, rows)
    refused("group_list is of shape [2]", call, eight, weight, torch.tensor([1, 4]), scale, rows)
    refused("x_scale is of shape [1]", call, eight, weight, ends, scale, one)
    call = quant_activations.npu_grouped_matmul_swiglu_quant_v2
    refused("smooth_scale is given", call, eight, [weight], [scale], rows, ends, smooth_scale=one)
    refused("quant_mode is 2, but must be 0", call, eight, [weight], [scale], rows, ends, quant_mode=2)
    refused("weight is 2 tensors", call, eight, [weight] * 2, [scale], rows, ends)
    refused("group_list_type is 2", call, eight, [weight], [scale], rows, ends, group_list_type=2)


def test_activations_on_the_device() -> None:
    npu = pytest.importorskip("torch_npu")
    x = torch.randn(4, 16).half().npu()
    y, scale = npu.npu_gelu_quant(x, dst_type=torch.int8)
    assert (y.dtype, scale.shape) == (torch.int8, (4,))
    assert npu.npu_gelu_quant(x, input_scale=x[0], quant_mode="static", dst_type=torch.int8)[1] is None
    assert npu.npu_group_quant(x, x[:1].float(), torch.tensor([4]).npu(), dst_dtype=torch.quint4x2).shape == (4, 2)
    eight, rows = torch.ones(4, 4).to(torch.int8).npu(), torch.ones(4).npu()
    assert npu.npu_quant_matmul_gelu(eight, eight, rows, rows).dtype == torch.float16
    ends, weight, by = torch.tensor([4]).npu(), eight.view(1, 4, 4), torch.ones(1, 4).npu()
    y, _, _ = npu.npu_grouped_matmul_swiglu_quant(eight, weight, ends, by, rows)
    assert y.tolist() == [[127, 127]] * 4
    assert torch.equal(npu.npu_grouped_matmul_swiglu_quant_v2(eight, [weight], [by], rows, ends)[0], y)
