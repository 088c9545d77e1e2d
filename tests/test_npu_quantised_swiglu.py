"""SwiGLU that is quantised: against formulas in float64, rounded by a search for the nearest number."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from descend.npu.composed.quantised import formats, quant_swiglu  # noqa: E402
from quantised_numbers import DST_TYPES, NUMBERS  # noqa: E402
from test_npu_composed import near, refused  # noqa: E402
from test_npu_quantised import flat_scales, in_blocks, numbers_of  # noqa: E402
from test_npu_quantised_norms import HALVES, quantised  # noqa: E402

Tensor = Any
FLOATS = (*HALVES, torch.float32)
GROUPS = [None, [6], [2, 0, 3]]
"""Sizes of groups among six rows; the last leaves one row out."""


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(7)


def act(x: Tensor, activate_left: bool) -> Tensor:
    """In float64."""
    left, right = x.double().chunk(2, -1)
    gate, up = (left, right) if activate_left else (right, left)
    return gate / (1 + (-gate).exp()) * up


def bounds(sizes: list[int] | None) -> list[tuple[int, int]]:
    """Where groups begin and end."""
    return list(itertools.pairwise([0, *itertools.accumulate(sizes or [6])]))


def index(sizes: list[int] | None, are_sizes: bool, dtype: Any = torch.int64) -> Tensor | None:
    if sizes is None:
        return None
    return torch.tensor(sizes if are_sizes else list(itertools.accumulate(sizes)), dtype=dtype)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("sizes", GROUPS, ids=str)
@pytest.mark.parametrize("wide", [True, False])
@pytest.mark.parametrize("name", ["int8", "int4"])
@pytest.mark.parametrize("mode", [0, 1])
@pytest.mark.parametrize("are_sizes", [True, False])
def test_swiglu_quant(dtype: Any, sizes: Any, wide: bool, name: str, mode: int, are_sizes: bool) -> None:
    x = (torch.randn(3, 2, 32) * 2).to(dtype)
    of_scales = (len(sizes or [6]), 16) if wide else (len(sizes or [6]),)
    smooth, offsets = torch.rand(of_scales) + 0.5, torch.randn(of_scales)
    left = mode == 0
    y, scale = quant_swiglu.npu_swiglu_quant(
        x, smooth_scales=smooth, offsets=offsets, group_index=index(sizes, are_sizes, torch.int32), activate_left=left,
        quant_mode=mode, group_list_type=int(are_sizes), dst_type=torch.quint4x2 if name == "int4" else None,
    )  # fmt: skip
    assert y.dtype == torch.int8
    numbers = formats.unpacked(y, formats.INT4) if name == "int4" else y
    numbers, rows, factors = numbers.view(6, 16), act(x, left).view(6, 16), scale.view(6)
    assert scale.shape == (3, 2)
    for g, (begin, end) in enumerate(bounds(sizes)):
        part = rows[begin:end] * smooth[g].double()
        wanted = NUMBERS[name][-1] / part.abs().amax(-1) if mode else torch.zeros(end - begin)
        near(factors[begin:end], wanted.double(), size=1.0)
        part = part * wanted[:, None] if mode else part + offsets[g].double()
        if end > begin:
            quantised(numbers[begin:end], "int8", part.clamp(-NUMBERS[name][-1] - 1, NUMBERS[name][-1]))
    assert not numbers[bounds(sizes)[-1][1] :].any()


@pytest.mark.parametrize("dtype", [torch.int32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("bias_dtype", [None, torch.int32, torch.float32], ids=str)
@pytest.mark.parametrize("sizes", GROUPS, ids=str)
@pytest.mark.parametrize("mode", [0, 1])
@pytest.mark.parametrize("swiglu_mode", [0, 1, 2])
@pytest.mark.parametrize("name", ["int8", "e4m3"])
def test_dequant_swiglu_quant(dtype: Any, bias_dtype: Any, sizes: Any, mode: int, swiglu_mode: int, name: str) -> None:
    groups = bounds(sizes)
    x = torch.randint(-900, 900, (6, 32)).to(dtype) if dtype == torch.int32 else (torch.randn(6, 32) * 4).to(dtype)
    weight_scale, activation_scale = torch.rand(len(groups), 32) * 0.02, torch.rand(6, 1)
    bias = None if bias_dtype is None else torch.randint(-90, 90, (len(groups), 32)).to(bias_dtype)
    quant_scale, quant_offset = torch.rand(len(groups), 16) + 0.1, torch.randn(len(groups), 16)
    options: Any = {"weight_scale": weight_scale, "activation_scale": activation_scale, "bias": bias}
    if dtype != torch.int32:
        options = {}
    y, scale = quant_swiglu.npu_dequant_swiglu_quant(
        x, quant_scale=quant_scale, quant_offset=quant_offset if mode == 0 else None, group_index=index(sizes, True),
        quant_mode=mode, swiglu_mode=swiglu_mode, clamp_limit=3.0, glu_alpha=1.5, glu_bias=0.5,
        activate_left=swiglu_mode == 2, dst_type=DST_TYPES[name], **options,
    )  # fmt: skip
    for g, (begin, end) in enumerate(groups):
        if begin == end:
            continue
        part = x[begin:end].double()
        if options:
            first, last = (bias, None) if bias_dtype == torch.int32 else (None, bias)
            part = part if first is None else part + first[g]
            part = part * weight_scale[g].double() * activation_scale[begin:end].double()
            part = part if last is None else part + last[g]
        if swiglu_mode == 0:
            part = act(part, False)
        else:
            gate, up = (part[:, ::2], part[:, 1::2]) if swiglu_mode == 1 else part.chunk(2, -1)
            gate, up = gate.clamp(max=3.0), up.clamp(-3.0, 3.0)
            part = gate / (1 + (-1.5 * gate).exp()) * (up + 0.5)
        if mode == 0:
            wanted = part / quant_scale[g].double() + quant_offset[g].double()
            assert not scale.any()
        else:
            part = part * quant_scale[g].double()
            rows = part.abs().amax(-1) / NUMBERS[name][-1]
            near(scale[begin:end], rows, size=rows.max().item())
            wanted = part / rows[:, None]
        quantised(y[begin:end], name, wanted)
    assert not y[groups[-1][1] :].float().any()
    assert not scale[groups[-1][1] :].any()


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("name", ["e4m3", "e5m2", "e2m1"])
@pytest.mark.parametrize("left", [True, False])
def test_swiglu_mx_quant(dtype: Any, name: str, left: bool) -> None:
    x = (torch.randn(2, 70, 192) * 2).to(dtype)
    wanted = act(x, left).to(dtype)
    alg = 1 if name == "e4m3" else 0
    options: Any = {"activate_left": left, "dst_type": DST_TYPES[name], "scale_alg": alg}
    y, scales = quant_swiglu.npu_swiglu_mx_quant(x, **options)
    numbers, bytes_ = in_blocks(wanted, -1, 32, name, "rint", alg=alg)
    assert torch.equal(numbers_of(y, name), numbers)
    assert torch.equal(flat_scales(scales, 2, 3), bytes_)
    first, first_scales, other, other_scales = quant_swiglu.npu_swiglu_mx_quant_with_dual_axis(x, **options)
    assert torch.equal(first.view(torch.uint8), y.view(torch.uint8))
    assert torch.equal(first_scales, scales)
    numbers, bytes_ = in_blocks(wanted, -2, 32, name, "rint", alg=alg)
    assert torch.equal(numbers_of(other, name), numbers)
    assert torch.equal(flat_scales(other_scales, 1, 3), bytes_)


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("left", [True, False])
@pytest.mark.parametrize("ends", [None, [2, 2, 70], [40, 150]], ids=str)
def test_swiglu_backward_mx_quant(dtype: Any, left: bool, ends: list[int] | None) -> None:
    x, dy = (torch.randn(150, 80) * 2).to(dtype), torch.randn(150, 40).to(dtype)
    leaf = x.double().requires_grad_()
    (dx,) = torch.autograd.grad(act(leaf, left), leaf, dy.double())
    groups = None if ends is None else torch.tensor(ends)
    y, scales, other, other_scales = quant_swiglu._npu_swiglu_backward_mx_quant_with_dual_axis(
        x, dy, group_index=groups, activate_left=left
    )
    numbers, bytes_ = in_blocks(dx.to(dtype), -1, 32, "e4m3", "rint", alg=1)
    assert torch.equal(numbers_of(y, "e4m3"), numbers)
    assert torch.equal(flat_scales(scales, 1, 3), bytes_)
    if ends is None:
        numbers, bytes_ = in_blocks(dx.to(dtype), 0, 32, "e4m3", "rint", alg=1)
        assert torch.equal(numbers_of(other, "e4m3"), numbers)
        assert torch.equal(flat_scales(other_scales, 0, 5), bytes_)
        return
    assert other_scales.shape == (150 // 64 + len(ends), 80, 2)
    for g, (begin, end) in enumerate(itertools.pairwise([0, *ends])):
        if end > begin:
            numbers, bytes_ = in_blocks(dx[begin:end].to(dtype), 0, 32, "e4m3", "rint", alg=1)
            assert torch.equal(numbers_of(other[begin:end], "e4m3"), numbers)
            own = other_scales[begin // 64 + g :][: -(-(end - begin) // 64)]
            assert torch.equal(flat_scales(own, 0, bytes_.shape[-1]), bytes_)
    assert not other[ends[-1] :].float().any()


def test_numbers_that_a_processor_gives() -> None:
    """Of op-plugin's tests: all elements of x and of the gradient are 1."""
    x, dy, groups = torch.ones(4, 64).bfloat16(), torch.ones(4, 32).bfloat16(), torch.tensor([2, 4])
    y, scales, other, others = quant_swiglu._npu_swiglu_backward_mx_quant_with_dual_axis(x, dy, group_index=groups)
    assert y.float().unique().tolist() == [240.0, 384.0]
    assert torch.equal(other.float(), y.float())
    assert scales.tolist() == [[[119, 118]]] * 4
    assert others.tolist() == [[[119, 0]] * 32 + [[118, 0]] * 32] * 2
    forward = quant_swiglu.npu_swiglu_mx_quant_with_dual_axis(x[:, :8], group_index=groups)
    assert forward[0].float().tolist() == forward[2].float().tolist() == [[384.0] * 4] * 4
    assert forward[1].tolist() == [[[118, 0]]] * 4
    assert forward[3].tolist() == [[[118, 0]] * 4] * 2
    y, scales = quant_swiglu.npu_swiglu_mx_quant(x[:, :8])
    assert y.tolist() == [[119, 119]] * 4
    assert scales.tolist() == [[[124, 0]]] * 4


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("sizes", GROUPS, ids=str)
@pytest.mark.parametrize("limit", [-1.0, 0.8])
@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize("mode", [2, 3])
def test_swiglu_group_quant(dtype: Any, sizes: Any, limit: float, weighted: bool, mode: int) -> None:
    x, weight = torch.randn(2, 3, 32).to(dtype), torch.rand(2, 3, 1) + 0.5 if weighted else None
    scale = torch.rand(len(sizes or [6])) * 4 + 1
    y, scales, origin = quant_swiglu.npu_swiglu_group_quant(
        x, weight=weight, group_index=index(sizes, True), scale=scale if mode == 2 else None, quant_mode=mode,
        clamp_limit=limit, dst_type_max=15.0, output_origin=True,
    )  # fmt: skip
    left, right = x.double().view(6, 32).chunk(2, -1)
    if limit > 0:
        left, right = left.clamp(max=limit), right.clamp(-limit, limit)
    rows = left / (1 + (-left).exp()) * right
    rows = rows if weight is None else rows * weight.view(6, 1).double()
    flat, last = y.view(6, 16), bounds(sizes)[-1][1]
    near(origin.view(6, 16)[:last], rows[:last])
    assert scales.shape == ((0,) if mode == 2 else scale.shape)
    for g, (begin, end) in enumerate(bounds(sizes)):
        if begin == end:
            assert mode == 2 or abs(scales[g].item() - 1e-8 / 15) < 1e-15
            continue
        own = scale[g].double() if mode == 2 else 15 / rows[begin:end].abs().max()
        if mode == 3:
            near(scales[g], 1 / own, size=0.1)
        quantised(flat[begin:end], "hif8", rows[begin:end] * own)
    assert not flat[last:].any()
    assert not origin.view(6, 16)[last:].any()
    assert quant_swiglu.npu_swiglu_group_quant(x, quant_mode=3)[2].shape == (0,)


def test_swiglu_groups_of_more_rows_than_there_are() -> None:
    """They end with the rows."""
    x, more, dy = torch.randn(6, 32), torch.tensor([4, 9]), torch.randn(6, 16)
    ends = torch.tensor([4, 2])
    group, backward = quant_swiglu.npu_swiglu_group_quant, quant_swiglu.npu_swiglu_group_quant_backward
    given, cut = (group(x, quant_mode=3, group_index=each) for each in (more, ends))
    assert all(torch.equal(one, other) for one, other in zip(given, cut, strict=True))
    assert torch.equal(backward(dy, x, group_index=more)[0], backward(dy, x, group_index=ends)[0])


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("sizes", GROUPS, ids=str)
@pytest.mark.parametrize("limit", [0.0, 0.8])
@pytest.mark.parametrize("weighted", [True, False])
def test_swiglu_group_quant_backward(dtype: Any, sizes: Any, limit: float, weighted: bool) -> None:
    x, dy = torch.randn(2, 3, 32).to(dtype), torch.randn(2, 3, 16).to(dtype)
    weight, origin = torch.rand(2, 3, 1) + 0.5, torch.randn(2, 3, 16).to(dtype)
    leaf = x.double().requires_grad_()
    left, right = leaf.chunk(2, -1)
    if limit > 0:
        left, right = left.clamp(max=limit), right.clamp(-limit, limit)
    y = left / (1 + (-left).exp()) * right * (weight.double() if weighted else 1)
    (wanted,) = torch.autograd.grad(y, leaf, dy.double())
    wanted_weight = (dy.double() * origin.double()).sum(-1, keepdim=True)
    last = bounds(sizes)[-1][1]
    wanted.view(6, 32)[last:] = 0
    wanted_weight.view(6)[last:] = 0
    given: Any = {"weight": weight, "y_origin": origin} if weighted else {}
    dx, dweight = quant_swiglu.npu_swiglu_group_quant_backward(
        dy, x, group_index=index(sizes, True), clamp_limit=limit, **given
    )
    assert dx.dtype == dtype
    near(dx, wanted)
    if weighted:
        near(dweight, wanted_weight, size=10.0)
    else:
        assert dweight.shape == (0,)


@pytest.mark.parametrize("shape", [(0, 64), (2, 0, 64)])
def test_swiglu_of_no_rows(shape: tuple[int, ...]) -> None:
    x = torch.zeros(shape).half()
    for name in (None, torch.quint4x2):
        y, scale = quant_swiglu.npu_swiglu_quant(x, quant_mode=1, dst_type=name)
        assert (y.shape, scale.shape) == ((*shape[:-1], 16 if name else 32), shape[:-1])
    for mode in (0, 1):
        y, scale = quant_swiglu.npu_dequant_swiglu_quant(x, quant_mode=mode, swiglu_mode=mode)
        assert (y.shape, scale.shape) == ((*shape[:-1], 32), shape[:-1])
    refused("x is of shape [2, 0]", quant_swiglu.npu_dequant_swiglu_quant, torch.zeros(2, 0).half())


def test_swiglu_refused() -> None:
    x, one = torch.randn(6, 32), torch.ones(1)
    quant, dequant = quant_swiglu.npu_swiglu_quant, quant_swiglu.npu_dequant_swiglu_quant
    refused("x is of shape [32]", quant, x[0])
    refused("x is of shape [6, 6], but must have 2 dimensions at least, the last of them 4 * n", quant, x[:, :6],
            dst_type=torch.quint4x2)  # fmt: skip
    refused("dst_type is torch.uint8", quant, x, dst_type=torch.uint8)
    refused("quant_mode is 2, but must be 0 or 1", quant, x, quant_mode=2)
    refused("smooth_scales is of shape [2, 16], but must be of shape [1, 16] or [1]", quant, x,
            smooth_scales=torch.ones(2, 16))  # fmt: skip
    refused("group_index is [4, 2]", quant, x, group_index=torch.tensor([4, 2]))
    refused("group_index is [4, 3]", quant, x, group_index=torch.tensor([4, 3]), group_list_type=1)
    refused("group_index is torch.float32", quant, x, group_index=one)
    refused("weight_scale is given, but must be None where x is not int32", dequant, x.half(), weight_scale=one)
    refused("activation_scale is of shape [1]", dequant, x.int(), activation_scale=one)
    refused("round_mode is 1, but must be 0", dequant, x.half(), round_mode=1)
    refused("activate_dim is 0", dequant, x.half(), activate_dim=0)
    refused("clamp_limit is -1.0", dequant, x.half(), clamp_limit=-1.0)
    refused("swiglu_mode is 3, but must be 0 or 1 or 2", dequant, x.half(), swiglu_mode=3)
    mx, dual = quant_swiglu.npu_swiglu_mx_quant, quant_swiglu.npu_swiglu_mx_quant_with_dual_axis
    refused("group_index is given", mx, x.half(), group_index=one)
    refused("axis is 0", mx, x.half(), axis=0)
    refused("swiglu_mode is 1, but must be 0", mx, x.half(), swiglu_mode=1)
    refused("x is of shape [2, 3, 32]", dual, x.half().view(2, 3, 32), group_index=torch.tensor([1]))
    refused("scale_alg is 2, but must be 0 or 1", dual, x.half(), scale_alg=2)
    refused("dst_type_max is 6.0", dual, x.half(), dst_type_max=6.0)
    backward = quant_swiglu._npu_swiglu_backward_mx_quant_with_dual_axis
    refused("y_grad is of shape [6, 32]", backward, x.half(), x.half())
    group = quant_swiglu.npu_swiglu_group_quant
    refused("quant_mode is 0, but must be 2 or 3", group, x)
    refused("scale is None", group, x, quant_mode=2)
    refused("weight is of shape [1]", group, x, quant_mode=3, weight=one)
    refused("dst_type_max is 0.0", group, x, quant_mode=3, dst_type_max=0.0)
    refused("group_index is [7, -2]", group, x, quant_mode=3, group_index=torch.tensor([7, -2]))
    refused("weight is torch.int64", group, x, quant_mode=3, weight=torch.ones(6).long())
    refused("scale is torch.float64", group, x, quant_mode=2, scale=one.double())
    for name in ("smooth_scales", "offsets"):
        refused(f"{name} is torch.float64", quant_swiglu.npu_swiglu_quant, x, **{name: one.double()})
    for name in ("quant_scale", "quant_offset"):
        refused(f"{name} is torch.int32", quant_swiglu.npu_dequant_swiglu_quant, x.half(), **{name: one.int()})
    rule = "weight_scale is torch.complex64"
    refused(rule, quant_swiglu.npu_dequant_swiglu_quant, x.int(), weight_scale=torch.ones(1, 32).to(torch.complex64))
    refused("y_origin is None", quant_swiglu.npu_swiglu_group_quant_backward, x[:, :16], x, weight=one)
    backward = quant_swiglu.npu_swiglu_group_quant_backward
    refused("weight is of shape [0]", backward, x[:, :16], x, weight=one[:0], y_origin=x[:, :16])
    turned = x[:, :16].view(2, 3, 16).transpose(0, 1).contiguous().transpose(0, 1)
    got = backward(turned, x.view(2, 3, 32), weight=torch.ones(6), y_origin=turned)
    assert torch.equal(got[1], x[:, :16].square().sum(-1))


def test_swiglu_on_the_device() -> None:
    """By torch_npu's functions, and as fake tensors where torch_npu has them."""
    npu = pytest.importorskip("torch_npu")
    x = torch.randn(4, 128).bfloat16().npu()
    groups = torch.tensor([2, 4]).npu()

    def calls(x: Tensor, groups: Tensor) -> list[Tensor]:
        return [
            *npu.npu_swiglu_quant(x, group_index=groups, quant_mode=1),
            *npu.npu_dequant_swiglu_quant(x, quant_mode=1, activate_left=True),
            *npu.npu_swiglu_mx_quant(x, dst_type=npu.float4_e2m1fn_x2),
            *npu.npu_swiglu_group_quant(x, quant_mode=3, output_origin=True),
            *npu.npu_swiglu_group_quant_backward(x[:, :64], x),
        ]

    real = calls(x, groups)
    with torch._subclasses.FakeTensorMode(allow_non_fake_inputs=True):
        fake = calls(*(torch.empty(t.shape, dtype=t.dtype, device="npu") for t in (x, groups)))
    assert [(f.shape, f.dtype) for f in fake] == [(r.shape, r.dtype) for r in real]
    assert npu.npu_swiglu_quant(x, quant_mode=1, dst_type=torch.quint4x2)[0].shape == (4, 32)
    forward = npu.npu_swiglu_mx_quant_with_dual_axis(x, group_index=groups, dst_type=npu.float8_e4m3fn)
    backward = torch.ops.npu._npu_swiglu_backward_mx_quant_with_dual_axis(x, x[:, :64], group_index=groups)
    assert [list(each.shape) for each in forward] == [[4, 64], [4, 1, 2], [4, 64], [2, 64, 2]]
    assert [list(each.shape) for each in backward] == [[4, 128], [4, 2, 2], [4, 128], [2, 128, 2]]
