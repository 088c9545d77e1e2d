"""Products with quantised weights, and products with what follows them: against formulas in float64; refusals."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from descend.npu.composed.products import matmul  # noqa: E402
from descend.npu.composed.quantised import formats, quantize, weight_quant  # noqa: E402
from quantised_numbers import DST_TYPES  # noqa: E402
from test_npu_composed import FLOATS, near, refused  # noqa: E402
from test_npu_quantised import HELD, numbers_of  # noqa: E402
from test_npu_quantised_norms import quantised  # noqa: E402

Tensor = Any
HALVES = (torch.float16, torch.bfloat16)


def weight_of(name: str, transposed: bool) -> tuple[Tensor, Tensor]:
    """A weight [64, 24] and what it holds, in float64."""
    shape = (24, 64) if transposed else (64, 24)
    if name in ("int8", "int4"):
        least = -8 if name == "int4" else -128
        numbers = torch.randint(least, -least, shape)
        held = weight_quant.npu_convert_weight_to_int4pack(numbers.int()) if name == "int4" else numbers.to(torch.int8)
        assert name != "int4" or (held.dtype == torch.int32 and held.shape == (shape[0], shape[1] // 8))
        numbers = numbers.double()
    else:
        held = formats.rounded(torch.randn(shape) * 3, HELD[name])
        numbers = numbers_of(held, name)
    return (held.t(), numbers.t()) if transposed else (held, numbers)


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("name", ["int8", "int4", "hif8", "e4m3", "e5m2"])
@pytest.mark.parametrize("transposed", [True, False])
@pytest.mark.parametrize("scales", ["one", "columns", "groups"])
@pytest.mark.parametrize("more", [True, False])
def test_weight_quant_batchmatmul(dtype: Any, name: str, transposed: bool, scales: str, more: bool) -> None:
    weight, numbers = weight_of(name, transposed)
    shape = {"one": (1,), "columns": (1, 24), "groups": (2, 24)}[scales]
    x, scale = torch.randn(2, 5, 64).to(dtype), (torch.rand(shape) * 0.1).to(dtype)
    offset, bias = (torch.randn(shape) * 5).to(dtype) if more else None, torch.randn(24) if more else None
    group = 32 if scales == "groups" else 0
    y = weight_quant.npu_weight_quant_batchmatmul(
        x, weight, scale, offset, bias=bias, antiquant_group_size=group,
        weight_dtype=DST_TYPES["hif8"] if name == "hif8" else None,
    )  # fmt: skip
    by = scale.double().repeat_interleave(32, 0) if group else scale.double()
    at = 0.0 if offset is None else offset.double().repeat_interleave(32, 0) if group else offset.double()
    wanted = x.double() @ ((numbers + at) * by) + (0.0 if bias is None else bias.double())
    assert y.dtype == dtype
    near(y, wanted, size=wanted.abs().max().item())


@pytest.mark.parametrize("kind", ["float32", "int64"])
@pytest.mark.parametrize("with_offset", [True, False])
def test_weight_quant_batchmatmul_to_int8(kind: str, with_offset: bool) -> None:
    weight, numbers = weight_of("int8", False)
    x, scale = torch.randn(5, 64).half(), torch.full((1, 24), 0.01).half()
    # Scales of 19 bits are there in both forms.
    by = (torch.rand(24) * 10 + 1).bfloat16().float()
    offset = torch.randint(-9, 9, (24,)).float() if with_offset else None
    given: tuple[Any, Any] = (by, offset)
    if kind == "int64":
        given = (quantize.npu_trans_quant_param(by, offset), None)
    y = weight_quant.npu_weight_quant_batchmatmul(x, weight, scale, None, *given)
    wanted = x.double() @ (numbers * scale.double()) * by.double() + (0.0 if offset is None else offset.double())
    quantised(y, "int8", wanted)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("after", matmul.AFTER)
@pytest.mark.parametrize("batch", [(), (3,)])
def test_fused_matmul(dtype: Any, after: str, batch: tuple[int, ...]) -> None:
    x1, x2, x3 = (torch.randn(*batch, *shape).to(dtype) for shape in ((5, 16), (16, 8), (5, 8)))
    bias = None if after.startswith("gelu") else torch.randn(8).to(dtype)
    y = matmul.npu_fused_matmul(x1, x2, bias=bias, x3=x3 if after in ("add", "mul") else None, fused_op_type=after)
    wanted = x1.double() @ x2.double() + (0.0 if bias is None else bias.double())
    wanted = {
        "add": lambda: wanted + x3.double(),
        "mul": lambda: wanted * x3.double(),
        "relu": lambda: wanted.clamp(min=0.0),
        "gelu_erf": lambda: wanted * (1 + torch.erf(wanted / 2**0.5)) / 2,
        "gelu_tanh": lambda: wanted * (1 + torch.tanh((2 / torch.pi) ** 0.5 * (wanted + 0.044715 * wanted**3))) / 2,
    }.get(after, lambda: wanted)()
    assert y.dtype == (torch.float32 if after == "16cast32" and dtype in HALVES else dtype)
    near(y, wanted, size=wanted.abs().max().item())


def test_weight_quant_refused() -> None:
    x, weight, scale = torch.randn(5, 64).half(), torch.ones(64, 24).to(torch.int8), torch.ones(24).half()
    product = weight_quant.npu_weight_quant_batchmatmul
    refused("x is torch.float32", product, x.float(), weight, scale)
    refused("x is of shape [5, 32], but must have 2 dimensions at least, and 64", product, x[:, :32], weight, scale)
    refused("antiquant_scale is torch.int64", product, x, weight, scale.long())
    refused("antiquant_scale is of shape [2]", product, x, weight, scale[:2])
    refused("antiquant_scale is of shape [24]", product, x, weight, scale, antiquant_group_size=32)
    refused("antiquant_group_size is -1", product, x, weight, scale, antiquant_group_size=-1)
    refused("bias is of shape [2]", product, x, weight, scale, bias=scale[:2])
    refused("quant_offset is given, but must be None", product, x, weight, scale, quant_offset=scale)
    rule = "x is of shape [2, 5, 64], but must have batches that broadcast with those of weight, [3]"
    refused(rule, product, x.expand(2, 5, 64), weight.expand(3, 64, 24), scale)
    refused(
        "quant_offset is torch.bool", product, x, weight, scale, quant_scale=torch.ones(1), quant_offset=scale.bool()
    )
    assert torch.equal(product(x, weight, scale, bias=scale[0]), product(x, weight, scale, bias=scale))
    params = quantize.npu_trans_quant_param(torch.ones(24))
    refused("quant_offset is given", product, x, weight, scale, quant_scale=params, quant_offset=scale)
    refused("weight is torch.float32", product, x, weight.float(), scale)
    pack = weight_quant.npu_convert_weight_to_int4pack
    refused("weight is of shape [2, 4]", pack, torch.zeros(2, 4).int())
    refused("weight is from 1 to 8, but must be from -8 to 7", pack, torch.arange(1, 9).int().view(1, 8))
    fused = matmul.npu_fused_matmul
    refused("fused_op_type is 'tanh'", fused, x, x.t(), fused_op_type="tanh")
    refused("x3 is None, but must be given with", fused, x, x.t(), fused_op_type="add")
    refused("x3 is given, but must be given with", fused, x, x.t(), x3=x)
    refused("x3 is of shape [5, 64]", fused, x, x.t(), x3=x, fused_op_type="mul")
    refused("bias is given", fused, x, x.t(), bias=x[0, :5], fused_op_type="gelu_erf")
    refused("x1 and x2 is of shapes [5, 64] and [5, 64]", fused, x, x)
    refused("x2 is torch.bfloat16", fused, x, x.t().bfloat16())


def test_weight_quant_on_the_device() -> None:
    npu = pytest.importorskip("torch_npu")
    x = torch.randn(4, 16).half().npu()
    packed = npu.npu_convert_weight_to_int4pack(torch.full((16, 8), -3).int().npu())
    one = torch.ones(1).half().npu()
    wanted = x.sum(1, keepdim=True).expand(4, 8) * -3
    assert torch.allclose(npu.npu_weight_quant_batchmatmul(x, packed, one), wanted, atol=0.05)
    hif8 = npu.npu_dtype_cast(torch.full((16, 8), -3.0).npu(), npu.hifloat8)
    y = npu.npu_weight_quant_batchmatmul(x, hif8, one, weight_dtype=npu.hifloat8)
    assert torch.allclose(y, wanted, atol=0.05)
    assert npu.npu_fused_matmul(x, x.t(), fused_op_type="relu").min() >= 0
