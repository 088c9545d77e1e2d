"""npu_transpose_batchmatmul and npu_transpose_quant_batchmatmul: against float64, refusals."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from descend.npu.composed.products.transpose_batchmatmul import (  # noqa: E402
    npu_transpose_batchmatmul,
    npu_transpose_quant_batchmatmul,
)
from descend.npu.composed.quantised import formats, quantize  # noqa: E402
from test_npu_composed import FLOATS, near, refused  # noqa: E402
from test_npu_quantised import HELD, numbers_of  # noqa: E402
from test_npu_quantised_products import mx  # noqa: E402

Tensor = Any


def factors(dtype: Any, rows_first: bool, columns_second: bool) -> tuple[Tensor, Tensor, Tensor]:
    """x1, x2 and their product [M, B, N] in float64: M 5, B 3, K 8, N 4."""
    x1 = torch.randn((5, 3, 8) if rows_first else (3, 5, 8)).to(dtype)
    x2 = torch.randn((3, 4, 8) if columns_second else (3, 8, 4)).to(dtype)
    left = x1.double() if rows_first else x1.double().transpose(0, 1)
    right = x2.double() if columns_second else x2.double().transpose(1, 2)
    return x1, x2, torch.einsum("mbk,bnk->mbn", left, right)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("rows_first", [False, True])
@pytest.mark.parametrize("columns_second", [False, True])
def test_products(dtype: Any, rows_first: bool, columns_second: bool) -> None:
    x1, x2, wanted = factors(dtype, rows_first, columns_second)
    options: Any = {
        "perm_x1": [1, 0, 2] if rows_first else None,
        "perm_x2": [0, 2, 1] if columns_second else [0, 1, 2],
    }
    y = npu_transpose_batchmatmul(x1, x2, **options)
    near(y, wanted)
    assert y.is_contiguous()
    # Part f of a row has the numbers from f * 3 on: batches and columns one after another.
    parts = npu_transpose_batchmatmul(x1, x2, batch_split_factor=4, **options)
    near(parts, wanted.reshape(5, 4, 3).transpose(0, 1))
    assert parts.is_contiguous()


def test_int8() -> None:
    x1, x2, product = factors(torch.float16, True, False)
    scale, offset = torch.rand(12) * 30, torch.arange(12.0) - 6
    scale = (scale.view(torch.int32) & -8192).view(torch.float32)
    given = quantize.npu_trans_quant_param(scale, offset)
    y = npu_transpose_batchmatmul(x1, x2, scale=given, perm_x1=[1, 0, 2])
    wanted = (product.reshape(5, 1, 12) * scale.double() + offset.double()).clamp(-128, 127)
    assert y.dtype == torch.int8
    # A middle of two integers may fall to either side, as float32 has it.
    assert (y.double() - wanted).abs().max() <= 0.5001
    assert torch.equal(npu_transpose_batchmatmul(x1, x2, scale=given.view(torch.uint64), perm_x1=[1, 0, 2]), y)


@pytest.mark.parametrize("to", [5, 15, 290])
@pytest.mark.parametrize("columns_second", [False, True])
@pytest.mark.parametrize("kind", ["e4m3", "e5m2", "hif8", "mx"])
def test_quantised(to: int, columns_second: bool, kind: str) -> None:
    x, w = torch.randn(5, 3, 64).bfloat16(), torch.randn(3, 4, 64).bfloat16() * 1e-2
    options: Any = {"perm_x1": [1, 0, 2], "perm_x2": [0, 2, 1] if columns_second else [0, 1, 2]}
    if kind == "mx":
        (x1, s1, wide1), (x2, s2, wide2) = mx(x, "e4m3", -1), mx(w, "e4m3", -1)
        s1, s2 = (s.view(torch.float8_e8m0fnu) for s in (s1, s2))
        s2 = s2 if columns_second else s2.transpose(1, 2).contiguous()
        options["group_sizes"] = [1, 1, 32]
    else:
        x1, x2 = (formats.rounded(each.float(), HELD[kind]) for each in (x, w))
        s1, s2 = (None if kind == "hif8" else torch.rand(5)), torch.rand(4)
        wide1, wide2 = numbers_of(x1, kind), numbers_of(x2, kind) * s2.double().view(4, 1)
        if s1 is not None:
            wide1 = wide1 * s1.double().view(5, 1, 1)
        if kind == "hif8":
            options |= {"x1_dtype": 290, "x2_dtype": 290}
    given = x2 if columns_second else x2.transpose(1, 2).contiguous()
    y = npu_transpose_quant_batchmatmul(x1, given, to, x1_scale=s1, x2_scale=s2, **options)
    wanted = torch.einsum("mbk,bnk->mbn", wide1, wide2)
    assert y.is_contiguous()
    if to != 290:
        near(y, wanted)
        return
    assert y.dtype == torch.uint8
    error = (numbers_of(y, "hif8") - wanted.clamp(-32768, 32768)).abs()
    assert (error <= wanted.abs() / 4 + 1e-6).all()


def test_refusals() -> None:
    x1, x2 = torch.randn(3, 5, 8).half(), torch.randn(3, 8, 4).half()
    call = npu_transpose_batchmatmul
    refused("perm_x1 is [2, 1, 0], but must be [0, 1, 2] or [1, 0, 2]", call, x1, x2, perm_x1=[2, 1, 0])
    refused("perm_x2 is [1, 0, 2], but must be [0, 1, 2] or [0, 2, 1]", call, x1, x2, perm_x2=[1, 0, 2])
    refused("perm_y is [0, 1, 2], but must be [1, 0, 2]", call, x1, x2, perm_y=[0, 1, 2])
    refused("bias is given, but must be None", call, x1, x2, bias=x2)
    refused("weight is torch.float32, but must be float16", call, x1, x2.float())
    refused("must have 3 batches of 8 rows", call, x1, x2[:2])
    refused("must have 3 dimensions", call, x1[0], x2)
    refused("batch_split_factor is 5, but must divide the 12 numbers of a row", call, x1, x2, batch_split_factor=5)
    scale = quantize.npu_trans_quant_param(torch.ones(12))
    refused("batch_split_factor is 2, but must be 1 with scale", call, x1, x2, scale=scale, batch_split_factor=2)
    refused("input is torch.float32, but must be float16", call, x1.float(), x2.float(), scale=scale)
    refused("must have that of batches and columns, [12]", call, x1, x2, scale=scale[:4])
    call, rows = npu_transpose_quant_batchmatmul, [1, 0, 2]
    a, b = torch.randn(5, 3, 64).to(torch.float8_e4m3fn), torch.randn(3, 64, 4).to(torch.float8_e4m3fn)
    refused("perm_x1 is [0, 1, 2], but must be [1, 0, 2]", call, a, b, 5)
    refused("x2_scale is None, but must be given", call, a, b, 5, perm_x1=rows)
    one = torch.ones(4)
    refused(
        "group_sizes is [1, 1, 32], but must be None", call, a, b, 5, x2_scale=one, perm_x1=rows, group_sizes=[1, 1, 32]
    )
    mx_scale = torch.ones(3, 1, 4, 2).to(torch.float8_e8m0fnu)
    refused("x1_scale is None, but must have 4 dimensions", call, a, b, 5, x2_scale=mx_scale, perm_x1=rows)
    codes = torch.ones(5, 3, 64, dtype=torch.int8)
    refused("x1 is int8, but must be float8_e4m3fn", call, codes, b, 5, x2_scale=one, perm_x1=rows)


def test_on_the_device() -> None:
    npu = pytest.importorskip("torch_npu")
    x1, x2, wanted = factors(torch.bfloat16, True, False)
    near(npu.npu_transpose_batchmatmul(x1.npu(), x2.npu(), perm_x1=(1, 0, 2)).cpu(), wanted)
    a, b = torch.randn(5, 3, 64).to(torch.float8_e4m3fn), torch.randn(3, 64, 4).to(torch.float8_e4m3fn)
    given = [torch.rand(5), torch.rand(4)]
    y = npu.npu_transpose_quant_batchmatmul(
        a.npu(), b.npu(), torch.bfloat16, x1_scale=given[0].npu(), x2_scale=given[1].npu(), perm_x1=[1, 0, 2],
        perm_x2=[0, 1, 2], perm_y=[1, 0, 2],
    )  # fmt: skip
    wide = a.double() * given[0].double().view(5, 1, 1)
    near(y.cpu(), torch.einsum("mbk,bkn->mbn", wide, b.double() * given[1].double()))
