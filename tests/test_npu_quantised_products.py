"""Products of quantised matrices: integers exactly, others against float64, in all forms of scales; refusals."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from descend.npu.composed.products.grouped_matmul import npu_grouped_matmul  # noqa: E402
from descend.npu.composed.quantised import formats, mx_quant, quantize  # noqa: E402
from descend.npu.composed.quantised.quant_grouped_matmul import npu_add_quant_gmm, npu_add_quant_gmm_  # noqa: E402
from descend.npu.composed.quantised.quant_matmul import (  # noqa: E402
    npu_add_quant_matmul,
    npu_add_quant_matmul_,
    npu_quant_matmul,
)
from quantised_numbers import DST_TYPES, EXPONENTS  # noqa: E402
from test_npu_composed import near, refused  # noqa: E402
from test_npu_quantised import numbers_of  # noqa: E402

Tensor = Any
E8M0 = 293
ENDS = [[200], [64, 128, 200], [1, 1, 65, 199, 200], [0, 0, 200]]


def scales_of(scales: Tensor, axis: int, size: int) -> Tensor:
    """The scales of MX in float64, each repeated for the 32 numbers of its block."""
    bytes_ = scales.movedim(axis, -2).flatten(-2).double()
    return torch.ldexp(torch.ones_like(bytes_), bytes_ - 127).repeat_interleave(32, -1)[..., :size].movedim(-1, axis)


def mx(x: Tensor, name: str, axis: int) -> tuple[Tensor, Tensor, Tensor]:
    """Quantised along an axis, its scales, and what they stand for in float64."""
    y, scales = mx_quant.npu_dynamic_mx_quant(x, axis=axis, dst_type=DST_TYPES[name])
    return y, scales, numbers_of(y, name) * scales_of(scales, axis % x.dim(), x.shape[axis])


@pytest.mark.parametrize("to", [5, 15, 6])
@pytest.mark.parametrize(("left", "right"), [("e4m3", "e4m3"), ("e5m2", "e4m3"), ("e2m1", "e2m1")])
@pytest.mark.parametrize(("m", "k", "n"), [(5, 64, 6), (2, 70, 4), (34, 200, 10)])
@pytest.mark.parametrize("biased", [False, True])
def test_mx(to: int, left: str, right: str, m: int, k: int, n: int, biased: bool) -> None:
    x, w = torch.randn(m, k).bfloat16(), torch.randn(n, k).bfloat16() * 1e-3
    bias = torch.randn(n) if biased else None
    x1, s1, wide1 = mx(x, left, -1)
    x2, s2, wide2 = mx(w, right, -1)
    options: Any = {"scale_dtype": E8M0, "pertoken_scale_dtype": E8M0, "group_sizes": [1, 1, 32], "output_dtype": to}
    if left == "e2m1":
        options |= {"x1_dtype": 296, "x2_dtype": 296}
    y = npu_quant_matmul(x1, x2.t(), s2.transpose(0, 1), pertoken_scale=s1, bias=bias, **options)
    wanted = wide1 @ wide2.T + (0 if bias is None else bias.double())
    near(y, wanted)
    # The same numbers from a weight that is not transposed, and with the dtype of the scales.
    turned = (
        x2.t().contiguous()
        if left != "e2m1"
        else formats.packed(formats.unpacked(x2, formats.E2M1).t().contiguous(), formats.E2M1)
    )
    again = npu_quant_matmul(x1, turned, s2.transpose(0, 1).contiguous(), pertoken_scale=s1, bias=bias, **options)
    near(again, wanted)
    plain = {key: value for key, value in options.items() if key not in ("scale_dtype", "pertoken_scale_dtype")}
    typed = [s.contiguous().view(torch.float8_e8m0fnu) for s in (s2.transpose(0, 1), s1)]
    assert torch.equal(npu_quant_matmul(x1, turned, typed[0], pertoken_scale=typed[1], bias=bias, **plain), again)


@pytest.mark.parametrize("name", ["e4m3", "e5m2"])
def test_mx_gradients_of_a_linear_layer(name: str) -> None:
    """As a training has them: dx = dy @ w, dw = dy^T @ x, each quantised along the dimension that is summed."""
    x, w, dy = torch.randn(70, 96).bfloat16(), torch.randn(40, 96).bfloat16(), torch.randn(70, 40).bfloat16()
    dual = mx_quant.npu_dynamic_mx_quant_with_dual_axis
    options: Any = {"scale_dtype": E8M0, "pertoken_scale_dtype": E8M0, "group_sizes": [1, 1, 32], "output_dtype": 6}
    _, _, x2, x2s = dual(x, dst_type=DST_TYPES[name])
    _, _, w2, w2s = dual(w, dst_type=DST_TYPES[name])
    g1, g1s, g2, g2s = dual(dy, dst_type=DST_TYPES[name])
    dx = npu_quant_matmul(g1, w2, w2s, pertoken_scale=g1s, **options)
    near(dx, mx(dy, name, -1)[2] @ mx(w, name, 0)[2])
    dw = npu_quant_matmul(g2.t(), x2, x2s, pertoken_scale=g2s.transpose(0, 1), **options)
    wanted = mx(dy, name, 0)[2].T @ mx(x, name, 0)[2]
    near(dw, wanted)
    total = torch.ones(40, 96)
    added: Any = {"x1_scale": g2s.transpose(0, 1), "x1_scale_dtype": E8M0, "x2_scale_dtype": E8M0}
    near(npu_add_quant_matmul(total, g2.t(), x2, x2s, **added), wanted + 1)
    assert total.eq(1).all()
    assert npu_add_quant_matmul_(total, g2.t(), x2, x2s, **added) is total
    near(total, wanted + 1)


def test_mx_poison() -> None:
    """A block with a NaN makes its row NaN, and no other one."""
    x = torch.randn(4, 64).bfloat16()
    x[1, 40] = math.nan
    x1, s1, _ = mx(x, "e4m3", -1)
    x2, s2, _ = mx(torch.randn(64, 8).bfloat16(), "e4m3", 0)
    options: Any = {"scale_dtype": E8M0, "pertoken_scale_dtype": E8M0, "output_dtype": 15}
    y = npu_quant_matmul(x1, x2, s2, pertoken_scale=s1, **options)
    assert y.isnan().all(1).tolist() == [False, True, False, False]
    assert y[[0, 2, 3]].isfinite().all()


@pytest.mark.parametrize("to", [5, 15, 6])
@pytest.mark.parametrize(("left", "right"), [("e4m3", "e4m3"), ("e5m2", "e4m3"), ("hif8", "hif8")])
@pytest.mark.parametrize("by_row", [False, True])
@pytest.mark.parametrize("by_column", [False, True])
@pytest.mark.parametrize("biased", [False, True])
def test_float8(to: int, left: str, right: str, by_row: bool, by_column: bool, biased: bool) -> None:
    x, w = torch.randn(5, 48).bfloat16(), torch.randn(6, 48).bfloat16()
    x1, s1 = quantize.npu_dynamic_quant(x, dst_type=DST_TYPES[left], quant_mode="pertoken" if by_row else "pertensor")
    x2, s2 = quantize.npu_dynamic_quant(
        w, dst_type=DST_TYPES[right], quant_mode="pertoken" if by_column else "pertensor"
    )
    bias = torch.randn(6) if biased else None
    options: Any = {"x1_dtype": 290, "x2_dtype": 290} if left == "hif8" else {}
    y = npu_quant_matmul(x1, x2.t(), s2, pertoken_scale=s1, output_dtype=to, bias=bias, **options)
    wide = numbers_of(x1, left) * s1.double().view(-1, 1) @ (numbers_of(x2, right) * s2.double().view(-1, 1)).T
    near(y, wide + (0 if bias is None else bias.double()))
    # Without pertoken_scale the scale has 19 bits, and a bias is added before it.
    s2 = s2 * 2.0**-16
    y = npu_quant_matmul(x1, x2.t(), s2, output_dtype=to, bias=bias, **options)
    cut = (s2.view(torch.int32) & -8192).view(torch.float32).double()
    product = numbers_of(x1, left) @ numbers_of(x2, right).T
    near(y, (product + (0 if bias is None else bias.double())) * cut)


@pytest.mark.parametrize("size", [1, 128])
@pytest.mark.parametrize("name", ["e4m3", "int8"])
@pytest.mark.parametrize(("m", "k", "n"), [(130, 300, 140), (3, 128, 5), (128, 256, 128)])
@pytest.mark.parametrize("inferred", [False, True])
def test_blocks(size: int, name: str, m: int, k: int, n: int, inferred: bool) -> None:
    if inferred and ((m % 128 and size == 128) or k % 128 or n % 128):
        return
    x, w = torch.randn(m, k).bfloat16(), torch.randn(n, k).bfloat16()
    quant = quantize.npu_dynamic_block_quant
    x1, s1 = quant(x, dst_type=DST_TYPES[name], row_block_size=size, col_block_size=128)
    x2, s2 = quant(w, dst_type=DST_TYPES[name], row_block_size=128, col_block_size=128)
    y = npu_quant_matmul(
        x1, x2.t(), s2.transpose(0, 1), pertoken_scale=s1, output_dtype=15,
        group_sizes=[0 if inferred else size, 0 if inferred else 128, 0 if inferred else 128],
    )  # fmt: skip
    spread1 = s1.double().repeat_interleave(size, 0)[:m].repeat_interleave(128, 1)[:, :k]
    spread2 = s2.double().repeat_interleave(128, 0)[:n].repeat_interleave(128, 1)[:, :k]
    near(y, (numbers_of(x1, name) * spread1) @ (numbers_of(x2, name) * spread2).T)


def integers(*shape: int) -> Tensor:
    return torch.randint(-128, 128, shape, dtype=torch.int8)


@pytest.mark.parametrize("batch", [((), ()), ((2,), ()), ((3, 1), (1, 2))])
@pytest.mark.parametrize("bias_dtype", [None, torch.int32, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("to", [None, 3, 5, 15])
@pytest.mark.parametrize("by_row", [False, True])
def test_int8(batch: Any, bias_dtype: Any, to: int | None, by_row: bool) -> None:
    x1, x2 = integers(*batch[0], 5, 300), integers(*batch[1], 300, 6)
    scale, by = torch.rand(6) * 1e-3, torch.rand(5) if by_row else None
    bias = None if bias_dtype is None else torch.randint(-99, 99, (6,)).to(bias_dtype)
    exact = x1.long() @ x2.long()
    if bias is not None and bias_dtype == torch.int32:
        exact = exact + bias
    if to == 3:
        if bias_dtype in (None, torch.int32):
            y = npu_quant_matmul(x1, x2, scale, pertoken_scale=by, bias=bias, output_dtype=3)
            assert y.dtype == torch.int32
            assert torch.equal(y.long(), exact)
        else:
            refused("a bias of int32", npu_quant_matmul, x1, x2, scale, bias=bias, output_dtype=3)
        return
    if by is None and to != 15:
        scale = (scale.view(torch.int32) & -8192).view(torch.float32)
    wanted = exact.double() * scale.double() * (1 if by is None else by.double().view(-1, 1))
    if bias is not None and bias_dtype != torch.int32:
        wanted = wanted + bias.double()
    y = npu_quant_matmul(x1, x2, scale, pertoken_scale=by, bias=bias, output_dtype=to)
    if to is None:
        # A middle of two integers may fall to either side, as float32 has it.
        assert (y.double() - wanted.clamp(-128, 127)).abs().max() <= 0.5001
    else:
        near(y, wanted)


def test_int8_of_params() -> None:
    """The scale and the offset joined in an int64."""
    x1, x2 = integers(5, 300), integers(300, 6)
    scale, offset = torch.full((6,), 0.5**12), torch.tensor([-3.0, 0.0, 1.0, 5.0, 255.0, -256.0])
    joined = quantize.npu_trans_quant_param(scale, offset)
    exact = (x1.long() @ x2.long()).double() * 0.5**12
    wanted = (exact + offset.double()).round().clamp(-128, 127)
    assert torch.equal(npu_quant_matmul(x1, x2, joined).double(), wanted)
    assert torch.equal(npu_quant_matmul(x1, x2, scale, offset=offset).double(), wanted)
    near(npu_quant_matmul(x1, x2, quantize.npu_trans_quant_param(scale), output_dtype=5), exact)


@pytest.mark.parametrize("turned", [False, True])
def test_int4(turned: bool) -> None:
    x, w = torch.randn(5, 64).half(), torch.randn(16, 64).half()
    x1, s1 = quantize.npu_dynamic_quant(x, dst_type=16)
    x2, s2 = quantize.npu_dynamic_quant(w, dst_type=16)
    codes = numbers_of(x2, "int4")
    right = x2.t() if turned else formats.packed(codes.to(torch.int8).t().contiguous(), formats.INT4_IN_INT32)
    assert right.shape == ((8, 16) if turned else (64, 2))
    y = npu_quant_matmul(x1, right, s2, pertoken_scale=s1, output_dtype=15)
    near(y, numbers_of(x1, "int4") @ codes.T * s2.double() * s1.double().view(-1, 1))


# --- for groups -------------------------------------------------------------------------------------------------------


def parts(ends: list[int]) -> list[tuple[int, int]]:
    return list(itertools.pairwise([0, *ends]))


@pytest.mark.parametrize("ends", ENDS)
@pytest.mark.parametrize("name", ["e4m3", "e5m2", "e2m1"])
@pytest.mark.parametrize("split", [0, 3])
@pytest.mark.parametrize("sizes", [False, True])
def test_mx_of_groups_of_rows(ends: list[int], name: str, split: int, sizes: bool) -> None:
    x, w = torch.randn(203, 70).bfloat16(), torch.randn(len(ends), 70, 6).bfloat16()
    x1, s1, wide1 = mx(x, name, -1)
    codes, s2, wide2 = mx(w, name, -2)
    counts = [end - begin for begin, end in parts(ends)]
    options: Any = {"x_dtype": 296, "weight_dtype": 296} if name == "e2m1" else {}
    y = npu_grouped_matmul(
        [x1], [codes], scale=[s2], per_token_scale=[s1], group_list=torch.tensor(counts if sizes else ends),
        group_list_type=int(sizes), group_type=0, output_dtype=15, split_item=split, scale_dtype=E8M0,
        per_token_scale_dtype=E8M0, **options,
    )  # fmt: skip
    wanted = [wide1[begin:end] @ wide2[g] for g, (begin, end) in enumerate(parts(ends))]
    if split:
        near(y[0][:200], torch.cat(wanted))
        assert not y[0][200:].any()
        return
    for got, own in zip(y, wanted, strict=True):
        near(got, own)


@pytest.mark.parametrize("ends", ENDS)
@pytest.mark.parametrize("name", ["e4m3", "e5m2"])
def test_mx_of_groups_of_columns(ends: list[int], name: str) -> None:
    x, dy = torch.randn(200, 6).bfloat16(), torch.randn(200, 10).bfloat16()
    groups = torch.tensor(ends)
    quant = mx_quant.npu_grouped_dynamic_mx_quant
    x1, s1 = quant(x, groups, dst_type=DST_TYPES[name])
    x2, s2 = quant(dy, groups, dst_type=DST_TYPES[name])
    wanted = torch.stack([mx_or_nothing(x[b:e], name).T @ mx_or_nothing(dy[b:e], name) for b, e in parts(ends)])
    (y,) = npu_grouped_matmul(
        [x1.t()], [x2], scale=[s2], per_token_scale=[s1.transpose(0, 1)], group_list=groups, group_type=2,
        output_dtype=6, split_item=3, scale_dtype=E8M0, per_token_scale_dtype=E8M0,
    )  # fmt: skip
    near(y, wanted)
    added: Any = {"x1_scale": s1.transpose(0, 1), "x1_scale_dtype": E8M0, "x2_scale_dtype": E8M0}
    total = torch.ones(len(ends), 6, 10)
    near(npu_add_quant_gmm(total, x1.t(), x2, s2, groups, **added), wanted + 1)
    assert total.eq(1).all()
    counts = torch.tensor([end - begin for begin, end in parts(ends)])
    assert npu_add_quant_gmm_(total, x1.t(), x2, s2, counts, group_list_type=1, **added) is total
    near(total, wanted + 1)


def mx_or_nothing(x: Tensor, name: str) -> Tensor:
    return mx(x, name, 0)[2] if len(x) else x.double()


@pytest.mark.parametrize("ends", ENDS)
@pytest.mark.parametrize("name", ["e4m3", "hif8"])
def test_a_scale_for_each_group(ends: list[int], name: str) -> None:
    """As MindSpeed's recipe tensorwise has it: x has one scale, which is expanded."""
    count, number = len(ends), DST_TYPES[name]
    x, w, dy = torch.randn(200, 16).bfloat16(), torch.randn(count, 16, 6).bfloat16(), torch.randn(200, 6).bfloat16()
    quant = quantize.npu_dynamic_quant
    x1, s1 = quant(x, dst_type=number, quant_mode="pertensor")
    x2, s2 = quant(w.view(count, -1), dst_type=number) if count > 1 else quant(w.view(1, -1), dst_type=number)
    g1, gs = quant(dy, dst_type=number, quant_mode="pertensor")
    options: Any = {"x_dtype": 290, "weight_dtype": 290} if name == "hif8" else {}
    groups = torch.tensor(ends)
    (y,) = npu_grouped_matmul(
        [x1], [x2.view(w.shape)], scale=[s2], per_token_scale=[s1.expand(count)], group_list=groups, group_type=0,
        split_item=3, output_dtype=15, **options,
    )  # fmt: skip
    wide, weight = numbers_of(x1, name) * s1.double(), numbers_of(x2, name).view(w.shape) * s2.double().view(-1, 1, 1)
    near(y, torch.cat([wide[b:e] @ weight[g] for g, (b, e) in enumerate(parts(ends))]))
    (y,) = npu_grouped_matmul(
        [x1.t()], [g1], scale=[gs.expand(count)], per_token_scale=[s1.expand(count)], group_list=groups, group_type=2,
        split_item=3, output_dtype=15, **options,
    )  # fmt: skip
    slope = numbers_of(g1, name) * gs.double()
    wanted = torch.stack([wide[b:e].T @ slope[b:e] for b, e in parts(ends)])
    near(y, wanted)
    if name == "hif8":
        total = torch.zeros(count, 16, 6)
        added: Any = {"x1_scale": s1.expand(count), "x1_dtype": 290, "x2_dtype": 290}
        near(npu_add_quant_gmm_(total, x1.t(), g1, gs.expand(count), groups, **added), wanted)


@pytest.mark.parametrize("as_list", [False, True])
@pytest.mark.parametrize("bias_dtype", [None, torch.int32, torch.float32])
def test_int8_of_groups(as_list: bool, bias_dtype: Any) -> None:
    ends = [3, 3, 8]
    x, w, scale, by = integers(9, 40), integers(3, 40, 6), torch.rand(3, 6) * 0.1, torch.rand(9)
    bias = None if bias_dtype is None else torch.randint(-99, 99, (3, 6)).to(bias_dtype)
    (y,) = npu_grouped_matmul(
        [x], list(w) if as_list else [w], scale=list(scale) if as_list else [scale], per_token_scale=[by],
        bias=None if bias is None else list(bias) if as_list else [bias], group_list=torch.tensor(ends), group_type=0,
        split_item=3, output_dtype=5,
    )  # fmt: skip
    for g, (begin, end) in enumerate(parts(ends)):
        wanted = (x[begin:end].long() @ w[g].long()).double()
        if bias is not None and bias_dtype == torch.int32:
            wanted = wanted + bias[g]
        wanted = wanted * scale[g].double() * by[begin:end].double().view(-1, 1)
        near(y[begin:end], wanted if bias is None or bias_dtype == torch.int32 else wanted + bias[g].double())
    assert not y[8:].any()


# --- refusals, and the device -----------------------------------------------------------------------------------------


def test_refuses() -> None:
    x, w, one = integers(4, 64), integers(64, 6), torch.ones(1)
    matmul, grouped = npu_quant_matmul, npu_grouped_matmul
    refused("x1 is torch.float16, but must be int8", matmul, x.half(), w, one)
    refused("must have 2 dimensions at least", matmul, x[0], w, one)
    refused("the dtype of x1 is uint8, but must be one of", matmul, x.view(torch.uint8), w, one)
    refused("must be one that torch.int8 can hold", matmul, x, w, one, x1_dtype=24)
    refused("must have 64 rows", matmul, x, w[:60], one)
    refused("must be one that is multiplied with int8", matmul, x, w.float().to(torch.float8_e4m3fn), one)
    refused("scale is of shape [5], but must have 1 number, or 6", matmul, x, w, torch.ones(5))
    refused("left factor is of shape [5], but", matmul, x, w, one, pertoken_scale=torch.ones(5), output_dtype=15)
    refused("bias is of shape [5]", matmul, x, w, one, bias=torch.ones(5), output_dtype=15)
    refused("output_dtype is 7, but", matmul, x, w, one, output_dtype=7)
    refused("y_scale is given", matmul, x, w, one, y_scale=one)
    f = x.float().to(torch.float8_e4m3fn), w.float().to(torch.float8_e4m3fn)
    refused("must be float32 for float8_e4m3fn", matmul, *f, one, bias=torch.ones(6, dtype=torch.int32))
    refused("needs integers", matmul, *f, one, output_dtype=3)
    scales = torch.zeros(4, 1, 2, dtype=torch.uint8), torch.zeros(1, 6, 2, dtype=torch.uint8)
    refused("must be given where one is of float8_e8m0fnu", matmul, *f, scales[1], scale_dtype=E8M0)
    more: Any = {"scale_dtype": E8M0, "pertoken_scale_dtype": E8M0, "output_dtype": 15}
    refused(
        "must be float8 or float4 where scales are float8_e8m0fnu",
        matmul,
        x,
        w,
        scales[1],
        pertoken_scale=scales[0],
        **more,
    )
    refused("blocks of 32 along K, in pairs", matmul, *f, scales[1], pertoken_scale=scales[0][:, :0], **more)
    refused("must be uint8 or float8_e8m0fnu", matmul, *f, scales[1].float(), pertoken_scale=scales[0], **more)
    blocks: Any = {"pertoken_scale": torch.ones(4, 1), "output_dtype": 15}
    refused("group_sizes is [1, 64, 64]", matmul, *f, torch.ones(1, 1), group_sizes=[1, 64, 64], **blocks)
    refused("must have 3 numbers", matmul, *f, torch.ones(1, 1), group_sizes=[128], **blocks)
    refused("must have [1, 1] blocks", matmul, *f, torch.ones(2, 1), group_sizes=[1, 128, 128], **blocks)
    total, groups = torch.zeros(4, 6), torch.tensor([64])
    refused("input is torch.float16", npu_add_quant_matmul_, total.half(), *f, one, x1_scale=one)
    refused("x1_scale is None", npu_add_quant_matmul_, total, *f, one)
    refused(
        "must be hifloat8 unless their scales are float8_e8m0fnu", npu_add_quant_matmul_, total, *f, one, x1_scale=one
    )
    of_mx: Any = {"x1_scale": scales[0], "x1_scale_dtype": E8M0, "x2_scale_dtype": E8M0}
    refused("must have that of x1 @ x2", npu_add_quant_matmul_, total[:3], *f, scales[1], **of_mx)
    refused("group_sizes is [1]", npu_add_quant_gmm_, total[None], *f, one, groups, x1_scale=one, group_sizes=[1])
    refused("must have that of the groups", npu_add_quant_gmm_, total, *f, one, groups, x1_scale=one)
    for index, sentence in ((groups + 1, "among 64 columns"), (groups[None], "must have 1 dimension")):
        refused(sentence, npu_add_quant_gmm_, total[None], *f, one, index, x1_scale=one)
    call: Any = {"group_list": torch.tensor([4]), "group_type": 0, "split_item": 3}
    refused("scale is None, but must be given", grouped, [x], [w[None]], **call)
    refused("output_dtype is None, but must be given", grouped, [f[0]], [f[1][None]], scale=[one], **call)
    refused("must be one tensor with a group_list", grouped, [x, x], [w, w], scale=[one, one], group_type=-1)
    refused("must have 1 groups, within 4 rows", grouped, [x], [w[None]], scale=[one], **{**call, "group_list": groups})
    refused("act_type is 1", grouped, [x], [w[None]], scale=[one], act_type=1, **call)
    refused("per_token_scale is given", grouped, [x.half()], [w[None].half()], per_token_scale=[one], **call)
    refused("antiquant_scale is given", grouped, [x], [w[None]], scale=[one], antiquant_scale=[one], **call)
    columns: Any = {"group_list": groups, "group_type": 2}
    refused("bias is given", grouped, [x], [w], scale=[one], per_token_scale=[one], bias=[one], **columns)


def test_exponents_are_those_of_the_largest_numbers() -> None:
    for name, exponent in EXPONENTS.items():
        assert math.frexp({"e4m3": 448, "e5m2": 57344, "e2m1": 6, "e1m2": 1.75}[name])[1] - 1 == exponent


def test_on_the_device() -> None:
    """By torch_npu's functions, with dtypes as programs name them, and as fake tensors."""
    npu = pytest.importorskip("torch_npu")
    x, w = torch.randn(64, 128).bfloat16().npu(), torch.randn(32, 128).bfloat16().npu()
    for dst in (torch.float8_e4m3fn, torch.float8_e5m2, npu.float4_e2m1fn_x2):
        x1, s1, x2, s2 = npu.npu_dynamic_mx_quant_with_dual_axis(x, dst_type=dst)
        w1, ws1 = npu.npu_dynamic_mx_quant(w, axis=-1, dst_type=dst)
        named: Any = {"x1_dtype": dst, "x2_dtype": dst} if isinstance(dst, int) else {}
        call: Any = {
            "pertoken_scale": s1, "output_dtype": torch.bfloat16, "scale_dtype": npu.float8_e8m0fnu,
            "pertoken_scale_dtype": npu.float8_e8m0fnu, "group_sizes": [1, 1, 32], **named,
        }  # fmt: skip
        y = npu.npu_quant_matmul(x1, w1.t(), ws1.transpose(0, 1), **call)
        assert y.device.type == "npu"
        error = (y.cpu().double() - x.cpu().double() @ w.cpu().double().T).norm() / y.cpu().double().norm()
        assert error < {torch.float8_e4m3fn: 0.06, torch.float8_e5m2: 0.1}.get(dst, 0.25)
        with torch._subclasses.FakeTensorMode(allow_non_fake_inputs=True):
            empty = torch.empty(64, 128, dtype=torch.bfloat16, device="npu")
            fake = npu.npu_dynamic_mx_quant_with_dual_axis(empty, dst_type=dst)
        assert [(f.shape, f.dtype) for f in fake] == [(r.shape, r.dtype) for r in (x1, s1, x2, s2)]
    with pytest.raises(RuntimeError, match=r"input is torch\.float32, but must be float16 or bfloat16"):
        npu.npu_dynamic_quant(x.float())
