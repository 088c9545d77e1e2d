"""Quantising operators of torch_npu: bit for bit against definitions in float64 that search for the nearest number."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from descend.npu.composed.quantised import formats, mx_quant, quantize  # noqa: E402
from quantised_numbers import DST_TYPES, NUMBERS, mx_scale, nearest, poisoned, rounded  # noqa: E402
from test_npu_composed import refused  # noqa: E402

Tensor = Any
HALVES = (torch.float16, torch.bfloat16)
FLOATS = (*HALVES, torch.float32)
HELD = {"e4m3": formats.E4M3, "e5m2": formats.E5M2, "e2m1": formats.E2M1, "e1m2": formats.E1M2, "hif8": formats.HIF8,
        "int8": formats.INT8, "int4": formats.INT4_IN_INT32}  # fmt: skip


def numbers_of(y: Tensor, name: str) -> Tensor:
    """What a result of an operator holds, in float64."""
    return formats.as_float(formats.unpacked(y, HELD[name]), HELD[name]).double()


def same(got: Tensor, wanted: Tensor) -> None:
    """Equal, and with equal signs of zeros, where both have them."""
    assert got.shape == wanted.shape
    assert torch.equal(got.double(), wanted.double()), (got.double() - wanted.double()).abs().max()


# --- formats ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["e4m3", "e5m2", "e2m1", "e1m2", "hif8"])
def test_each_number_and_each_middle(name: str) -> None:
    numbers = NUMBERS[name]
    middles = [(a + b) / 2 for a, b in itertools.pairwise(numbers)]
    beside = [math.nextafter(m, way) for m in middles for way in (0.0, math.inf)]
    x = torch.tensor([*numbers, *middles, *beside, numbers[-1] * 4, math.inf, math.nan], dtype=torch.float32)
    x = torch.cat([x, -x])
    for mode in ("rint", "round", "floor") if name in ("e2m1", "e1m2") else ("rint",):
        codes = formats.rounded(x, HELD[name], mode)
        same(formats.as_float(codes, HELD[name]), rounded(x, name, mode))
    assert numbers[-1] == HELD[name].largest


@pytest.mark.parametrize("name", ["e2m1", "e1m2", "int4"])
def test_packing(name: str) -> None:
    held = HELD[name]
    codes = torch.randint(-8, 8, (3, 16), dtype=torch.int8) if name == "int4" else torch.randint(16, (3, 16)).byte()
    joined = formats.packed(codes, held)
    assert joined.dtype == held.dtype
    assert torch.equal(formats.unpacked(joined, held), codes)
    assert torch.equal(formats.unpacked(joined.t(), held, 0), codes.t())
    first = joined[0, 0].item() & (2**32 - 1)
    assert [first >> 4 * i & 15 for i in range(held.packed)] == [c & 15 for c in codes[0, : held.packed].tolist()]


# --- MX ---------------------------------------------------------------------------------------------------------------


def in_blocks(x: Tensor, axis: int, size: int, name: str, mode: str, **rule: Any) -> tuple[Tensor, Tensor]:
    """Numbers in float64, and bytes [..., blocks] whose last dimension is that of the blocks."""
    rows = x.movedim(axis, -1)
    flat = rows.double().reshape(-1, rows.shape[-1])
    numbers, scales = torch.empty_like(flat), []
    for i, row in enumerate(flat.tolist()):
        own = []
        for begin in range(0, len(row), size):
            part = row[begin : begin + size]
            byte = mx_scale(part, name, cut=x.dtype == torch.float32, **rule)
            own.append(byte)
            for j, v in enumerate(part):
                value = math.nan if byte == 255 else v / 2.0 ** (byte - 127)
                numbers[i, begin + j] = nearest(value, name, mode)
        scales.append(own)
    bytes_ = torch.tensor(scales, dtype=torch.uint8).reshape(*rows.shape[:-1], -1)
    return numbers.reshape(rows.shape).movedim(-1, axis), bytes_


def flat_scales(scales: Tensor, axis: int, count: int) -> Tensor:
    """The scales of a result with the blocks last; those beyond the last block must be 0."""
    own = scales.movedim(axis, -2).flatten(-2)
    assert not own[..., count:].any()
    assert own.shape[-1] == count + count % 2
    return own[..., :count]


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("name", ["e4m3", "e5m2", "e2m1", "e1m2"])
@pytest.mark.parametrize(
    ("shape", "axis", "size"),
    [((3, 70), -1, 32), ((70, 4), 0, 32), ((2, 33, 6), 1, 32), ((1, 2), 1, 32), ((2, 200), -1, 96), ((64,), 0, 32)],
)
def test_mx(dtype: Any, name: str, shape: tuple[int, ...], axis: int, size: int) -> None:
    x = poisoned(torch.randn(shape).mul(3).to(dtype), name)
    x.view(-1)[0] = 2.0**-14
    for alg in {"e2m1": (0, 2), "e1m2": (0,)}.get(name, (0, 1)):
        if alg == 2 and size != 32:
            continue
        for mode in ("rint", "floor", "round") if name in ("e2m1", "e1m2") else ("rint",):
            options: Any = {"axis": axis, "block_size": size, "round_mode": mode, "scale_alg": alg}
            y, scales = mx_quant.npu_dynamic_mx_quant(x, dst_type=DST_TYPES[name], **options)
            assert y.is_contiguous()
            assert scales.is_contiguous()
            wanted, bytes_ = in_blocks(x, axis % x.dim(), size, name, mode, alg=alg)
            same(numbers_of(y, name), wanted)
            assert torch.equal(flat_scales(scales, axis % x.dim(), bytes_.shape[-1]), bytes_)


@pytest.mark.parametrize("largest", [0.0, 6.0, 7.0, 6.5, 12.0])
def test_mx_with_a_largest_number(largest: float) -> None:
    x = torch.randn(40, 64).bfloat16() * torch.logspace(-38, 38, 40).unsqueeze(1).bfloat16()
    y, scales = mx_quant.npu_dynamic_mx_quant(x, dst_type=296, scale_alg=2, dst_type_max=largest)
    wanted, bytes_ = in_blocks(x, 1, 32, "e2m1", "rint", alg=2, largest=largest)
    same(numbers_of(y, "e2m1"), wanted)
    assert torch.equal(flat_scales(scales, 1, 2), bytes_)


@pytest.mark.parametrize("name", ["e4m3", "e5m2"])
def test_mx_of_all_sizes(name: str) -> None:
    """Scales at the ends of their range; and the least maximum."""
    x = torch.randn(90, 32) * torch.logspace(-44, 38, 90).unsqueeze(1)
    x[1], x[2] = 0.0, 448.0
    for alg, low in ((0, 0.0), (1, 0.0), (1, 1e-3)):
        options: Any = {"scale_alg": alg, "max_low_bound": low}
        y, scales = mx_quant.npu_dynamic_mx_quant(x, dst_type=DST_TYPES[name], **options)
        wanted, bytes_ = in_blocks(x, 1, 32, name, "rint", alg=alg, low=torch.tensor(low).item())
        assert torch.equal(flat_scales(scales, 1, 1), bytes_)
        same(numbers_of(y, name), wanted)


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("name", ["e4m3", "e2m1"])
@pytest.mark.parametrize("shape", [(70, 40), (2, 33, 100), (1, 2)])
def test_mx_of_two_dimensions(dtype: Any, name: str, shape: tuple[int, ...]) -> None:
    x = poisoned(torch.randn(shape).to(dtype), name)
    y, scales, other, other_scales = mx_quant.npu_dynamic_mx_quant_with_dual_axis(x, dst_type=DST_TYPES[name])
    for axis, got, own in ((-1, y, scales), (-2, other, other_scales)):
        wanted, wanted_scales = mx_quant.npu_dynamic_mx_quant(x, axis=axis, dst_type=DST_TYPES[name])
        assert torch.equal(got.view(torch.uint8), wanted.view(torch.uint8))
        assert torch.equal(own, wanted_scales)


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize(("name", "alg", "largest"), [("e4m3", 0, 0), ("e5m2", 0, 0), ("e2m1", 0, 0), ("e2m1", 2, 7)])
@pytest.mark.parametrize("shape", [(70, 40), (2, 33, 100), (1, 2)])
def test_mx_of_blocks(dtype: Any, name: str, alg: int, largest: float, shape: tuple[int, ...]) -> None:
    x = torch.randn(shape).to(dtype)
    x[..., 0, 0] = math.nan
    y, scales, other = mx_quant.npu_dynamic_block_mx_quant(
        x, dst_type=DST_TYPES[name], scale_alg=alg, dst_type_max=float(largest)
    )
    numbers = numbers_of(y, name).reshape(-1, *shape[-2:])
    for i, matrix in enumerate(x.double().reshape(-1, *shape[-2:])):
        rows, columns = matrix.shape
        by_row, by_column = flat_scales(scales, x.dim() - 1, -(-columns // 32)), None
        by_column = flat_scales(other, x.dim() - 2, -(-rows // 32))
        by_row, by_column = (
            by_row.reshape(-1, rows, by_row.shape[-1])[i],
            by_column.reshape(-1, columns, by_column.shape[-1])[i],
        )
        for r in range(0, rows, 32):
            for c in range(0, columns, 32):
                block = matrix[r : r + 32, c : c + 32]
                byte = mx_scale(block.flatten().tolist(), name, alg, float(largest))
                assert by_row[r : r + 32, c // 32].unique().tolist() == [byte]
                assert by_column[c : c + 32, r // 32].unique().tolist() == [byte]
                value = block / (math.nan if byte == 255 else 2.0 ** (byte - 127))
                same(numbers[i, r : r + 32, c : c + 32], rounded(value, name))


@pytest.mark.parametrize("index", [torch.int32, torch.int64], ids=str)
@pytest.mark.parametrize("ends", [[200], [64, 128, 200], [1, 1, 65, 199, 200], [0, 0, 200]])
@pytest.mark.parametrize(("name", "alg"), [("e4m3", 0), ("e5m2", 1), ("e2m1", 0)])
def test_mx_of_groups(name: str, alg: int, ends: list[int], index: Any) -> None:
    x = torch.randn(200, 6).bfloat16()
    y, scales = mx_quant.npu_grouped_dynamic_mx_quant(
        x, torch.tensor(ends, dtype=index), dst_type=DST_TYPES[name], scale_alg=alg
    )
    assert scales.shape == (200 // 64 + len(ends), 6, 2)
    used = torch.zeros_like(scales)
    for g, (begin, end) in enumerate(zip([0, *ends], ends, strict=False)):
        wanted, own = mx_quant.npu_dynamic_mx_quant(x[begin:end], axis=0, dst_type=DST_TYPES[name], scale_alg=alg)
        assert torch.equal(y[begin:end].view(torch.uint8), wanted.view(torch.uint8))
        used[begin // 64 + g : begin // 64 + g + own.shape[0]] = own
    assert torch.equal(scales, used)


@pytest.mark.parametrize("to", [5, 15, 6])
@pytest.mark.parametrize("name", ["e4m3", "e5m2", "e2m1", "e1m2"])
@pytest.mark.parametrize("axis", [0, 1])
def test_mx_and_back(name: str, to: int, axis: int) -> None:
    x = torch.randn(70, 66)
    y, scales = mx_quant.npu_dynamic_mx_quant(x, axis=axis, dst_type=DST_TYPES[name])
    back = mx_quant.npu_anti_mx_quant(y, scales, axis=axis, dst_type=to, src_type=DST_TYPES[name])
    numbers, bytes_ = in_blocks(x, axis, 32, name, "rint")
    spread = (2.0 ** (bytes_.double() - 127)).repeat_interleave(32, -1)[..., : x.shape[axis]].movedim(-1, axis)
    assert torch.equal(back, (numbers * spread).to(back.dtype))


def test_mx_of_nothing() -> None:
    y, scales = mx_quant.npu_dynamic_mx_quant(torch.empty(0, 64).bfloat16(), dst_type=24)
    assert (y.shape, scales.shape) == ((0, 64), (0, 1, 2))
    y, scales = mx_quant.npu_dynamic_mx_quant(torch.empty(0, 64).bfloat16(), axis=0, dst_type=24)
    assert (y.shape, scales.shape) == ((0, 64), (0, 64, 2))
    y, scales = mx_quant.npu_grouped_dynamic_mx_quant(torch.empty(0, 6).bfloat16(), torch.tensor([0, 0]), dst_type=24)
    assert (y.shape, scales.shape) == ((0, 6), (2, 6, 2))


def test_mx_refuses() -> None:
    x = torch.randn(4, 64).bfloat16()
    refused("dst_type is int8, but must be one of", mx_quant.npu_dynamic_mx_quant, x, dst_type=1)
    refused("dst_type is 99, but must be one of", mx_quant.npu_dynamic_mx_quant, x, dst_type=99)
    refused("axis is 2, but must be a dimension", mx_quant.npu_dynamic_mx_quant, x, axis=2)
    refused("block_size is 48, but", mx_quant.npu_dynamic_mx_quant, x, block_size=48)
    refused("block_size is 64, but must be 32", mx_quant.npu_dynamic_mx_quant, x, block_size=64, scale_alg=2)
    refused("round_mode is 'floor', but", mx_quant.npu_dynamic_mx_quant, x, dst_type=24, round_mode="floor")
    refused("scale_alg is 1, but", mx_quant.npu_dynamic_mx_quant, x, scale_alg=1)
    refused("scale_alg is 2, but", mx_quant.npu_dynamic_mx_quant, x, dst_type=24, scale_alg=2)
    refused("dst_type_max is 5.0, but", mx_quant.npu_dynamic_mx_quant, x, scale_alg=2, dst_type_max=5.0)
    refused("max_low_bound is 1.0, but", mx_quant.npu_dynamic_mx_quant, x, dst_type=24, max_low_bound=1.0)
    refused("input is torch.float64, but", mx_quant.npu_dynamic_mx_quant, x.double())
    refused("must have an even last dimension", mx_quant.npu_dynamic_mx_quant, x[:, :63])
    refused("input is torch.float32, but", mx_quant.npu_dynamic_mx_quant_with_dual_axis, x.float())
    refused("must have 2 dimensions at least", mx_quant.npu_dynamic_block_mx_quant, x[0])
    refused("must not be empty", mx_quant.npu_dynamic_block_mx_quant, x[:0])
    refused(
        "scale_alg is 2 with dst_type_max 6.5", mx_quant.npu_dynamic_block_mx_quant, x, scale_alg=2, dst_type_max=6.5
    )
    for ends, sentence in (([1, 3], "the last at 4"), ([3, 1, 4], "one after another"), ([[4]], "1 dimension")):
        refused(sentence, mx_quant.npu_grouped_dynamic_mx_quant, x, torch.tensor(ends))
    refused("blocksize is 64", mx_quant.npu_grouped_dynamic_mx_quant, x, torch.tensor([4]), blocksize=64)
    y, scales = mx_quant.npu_dynamic_mx_quant(x, dst_type=24)
    refused("mxscale is of shape", mx_quant.npu_anti_mx_quant, y, scales[:, :, :1])
    refused("dst_type is 7, but", mx_quant.npu_anti_mx_quant, y, scales, dst_type=7)


# --- scales in float32 ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("name", ["int8", "int4", "e4m3", "e5m2", "hif8"])
@pytest.mark.parametrize("mode", ["pertoken", "perchannel", "pertensor"])
@pytest.mark.parametrize("smooth", [False, True])
@pytest.mark.parametrize("shape", [(5, 24), (2, 3, 8)])
def test_dynamic(dtype: Any, name: str, mode: str, smooth: bool, shape: tuple[int, ...]) -> None:
    x = torch.randn(shape).to(dtype)
    x[..., 0, :] = 0.0
    dims = {"pertoken": (-1,), "perchannel": (-2,), "pertensor": tuple(range(len(shape)))}[mode]
    factors = torch.rand(shape[-2 if mode == "perchannel" else -1]).add(0.5).to(dtype)
    wide = x.float()
    if smooth:
        wide = wide * factors.float().reshape((-1, 1) if mode == "perchannel" else (-1,))
    options: Any = {"dst_type": DST_TYPES[name], "quant_mode": mode, "smooth_scales": factors if smooth else None}
    y, scale = quantize.npu_dynamic_quant(x, **options)
    wanted = wide.abs().amax(dims, keepdim=True) / NUMBERS[name][-1]
    assert torch.equal(scale, wanted.reshape(scale.shape))
    assert list(scale.shape) == (
        [1] if mode == "pertensor" else [n for i, n in enumerate(shape) if i - len(shape) not in dims]
    )
    same(numbers_of(y, name), rounded(wide / wanted, name))

    y, scale, offset = quantize.npu_dynamic_quant_asymmetric(x, **options)
    most, least = wide.amax(dims, keepdim=True), wide.amin(dims, keepdim=True)
    steps = 2 * NUMBERS[name][-1] + (1 if name.startswith("int") else 0)
    wanted = (most - least) / steps
    place = NUMBERS[name][-1] - most / wanted
    assert torch.equal(scale, wanted.reshape(scale.shape))
    assert torch.equal(offset.nan_to_num(), place.reshape(scale.shape).nan_to_num())
    same(numbers_of(y, name), rounded(wide / wanted + place, name))


def test_dynamic_of_groups() -> None:
    x, factors = torch.randn(2, 6, 8).half(), torch.rand(4, 8).half()
    ends = torch.tensor([3, 3, 7, 12], dtype=torch.int32)
    y, scale = quantize.npu_dynamic_quant(x, smooth_scales=factors, group_index=ends)
    wide = x.float().view(12, 8) * factors.float()[[0] * 3 + [2] * 4 + [3] * 5]
    wanted = wide.abs().amax(1, keepdim=True) / 127
    assert torch.equal(scale, wanted.view(2, 6))
    same(numbers_of(y, "int8"), rounded(wide / wanted, "int8").view(2, 6, 8))
    y, scale = quantize.npu_dynamic_quant(x, dst_type=290, dst_type_max=15.0)
    wanted = x.float().abs().amax(-1, keepdim=True) / 15
    assert torch.equal(scale, wanted[..., 0])
    same(numbers_of(y, "hif8"), rounded(x.float() / wanted, "hif8"))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("name", ["int8", "e4m3", "e5m2", "hif8"])
@pytest.mark.parametrize(
    ("shape", "rows", "columns"), [((3, 130), 1, 128), ((2, 130, 70), 128, 64), ((4, 3), 128, 128)]
)
@pytest.mark.parametrize("min_scale", [0.0, 80.0])
def test_blocks(dtype: Any, name: str, shape: tuple[int, ...], rows: int, columns: int, min_scale: float) -> None:
    x = torch.randn(shape).to(dtype)
    x[..., -1, :3] = torch.tensor([math.nan, math.inf, -math.inf]).to(dtype)
    x[..., 0, :] = 0.0
    options: Any = {"round_mode": "round" if name == "hif8" else "rint", "min_scale": min_scale}
    y, scale = quantize.npu_dynamic_block_quant(
        x, dst_type=DST_TYPES[name], row_block_size=rows, col_block_size=columns, **options
    )
    matrices, scales = x.float().reshape(-1, *shape[-2:]), scale.reshape(-1, *scale.shape[-2:])
    for matrix, own, got in zip(matrices, scales, numbers_of(y, name).reshape(matrices.shape), strict=True):
        for i in range(0, matrix.shape[0], rows):
            for j in range(0, matrix.shape[1], columns):
                block = matrix[i : i + rows, j : j + columns]
                wanted = (
                    block[block.isfinite()].abs().amax() / NUMBERS[name][-1]
                    if block.isfinite().any()
                    else torch.tensor(0.0)
                )
                if min_scale:
                    wanted = torch.minimum(wanted, torch.tensor(1 / min_scale))
                assert own[i // rows, j // columns] == wanted
                # An infinity is beyond any number, whatever the scale.
                value = torch.where(block.isfinite(), block / wanted, block)
                same(got[i : i + rows, j : j + columns], rounded(value, name))


@pytest.mark.parametrize("ends", [[300], [1, 1, 129, 300], [0, 128, 256, 300]])
@pytest.mark.parametrize("rows", [1, 128])
@pytest.mark.parametrize("batch", [(), (2,)])
def test_blocks_of_groups(ends: list[int], rows: int, batch: tuple[int, ...]) -> None:
    x = torch.randn(*batch, 300, 130).bfloat16()
    options: Any = {"dst_type": 24, "row_block_size": rows, "col_block_size": 128}
    y, scale = quantize.npu_grouped_dynamic_block_quant(x, torch.tensor(ends, dtype=torch.int32), **options)
    assert scale.shape == (*batch, 300 // rows + len(ends), 2)
    used = torch.zeros_like(scale)
    for g, (begin, end) in enumerate(zip([0, *ends], ends, strict=False)):
        if begin == end:
            continue
        wanted, own = quantize.npu_dynamic_block_quant(x[..., begin:end, :], **options)
        assert torch.equal(y[..., begin:end, :].view(torch.uint8), wanted.view(torch.uint8))
        first = begin // rows + g
        used[..., first : first + own.shape[-2], :] = own
    assert torch.equal(scale, used)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("name", ["int8", "e4m3", "e5m2", "hif8"])
@pytest.mark.parametrize("division", [True, False])
@pytest.mark.parametrize(("axis", "count"), [(-1, 6), (-2, 5), (0, 1)])
def test_given_scales(dtype: Any, name: str, division: bool, axis: int, count: int) -> None:
    x = poisoned(torch.randn(4, 5, 6).mul(100).to(dtype), name)
    scales, places = torch.rand(count).add(0.5).to(dtype), torch.randn(count).mul(3).to(dtype)
    y = quantize.npu_quantize(x, scales, places, DST_TYPES[name], axis, division)
    shape = [1, 1, 1]
    shape[axis] = count
    by, offset = scales.float().view(shape), places.float().view(shape)
    value = (x.float() / by if division else x.float() * by) + offset
    same(numbers_of(y, name), rounded(value, name))


def test_given_scales_of_integers() -> None:
    x = torch.tensor([[-3e9, -1.5, -0.5, 0.5, 1.5, 2.5, 300.0, 3e9]])
    one = torch.ones(1)
    assert quantize.npu_quantize(x, one, None, torch.quint8).tolist() == [[0, 0, 0, 0, 2, 2, 255, 255]]
    wanted = [[-(2**31), -2, 0, 0, 2, 2, 300, 2**31 - 1]]
    assert quantize.npu_quantize(x, one, None, torch.qint32).tolist() == wanted
    packed = quantize.npu_quantize(x, one, None, torch.quint4x2, -1, False)
    assert formats.unpacked(packed, formats.INT4_IN_INT32).tolist() == [[-8, -2, 0, 0, 2, 2, 7, 7]]


@pytest.mark.parametrize("name", ["int8", "int4", "e4m3", "e5m2", "hif8"])
@pytest.mark.parametrize("to", [None, 5, 15])
def test_anti(name: str, to: int | None) -> None:
    held = HELD[name]
    if name == "int4":
        x = torch.randint(-(2**31), 2**31 - 1, (3, 2), dtype=torch.int32)
    else:
        x = torch.randint(0, 120, (3, 16), dtype=torch.uint8).view(held.dtype)
    scale, offset = torch.rand(16), torch.randn(16)
    y = quantize.npu_anti_quant(x, scale, offset=offset, dst_dtype=to)
    assert y.dtype == (torch.bfloat16 if to == 15 else torch.float16)
    assert torch.equal(y, ((numbers_of(x, name).float() + offset) * scale).to(y.dtype))


@pytest.mark.parametrize("mode", [0, 1])
def test_params(mode: int) -> None:
    scale = torch.randn(50)
    params = quantize.npu_trans_quant_param(scale, round_mode=mode)
    assert params.dtype == torch.int64
    for param, number in zip(params.tolist(), scale.tolist(), strict=True):
        assert param >> 32 == 1 << 14
        assert param & 0x1FFF == 0
        kept = torch.tensor([param & 0xFFFFFFFF]).to(torch.uint32).view(torch.float32).item()
        step = 2.0 ** (math.frexp(number)[1] - 11)
        assert abs(kept - number) <= step / 2 if mode else 0 <= (number - kept) * math.copysign(1, number) < step
    offset = torch.tensor([-300.0, -256.0, -1.5, -0.5, 0.0, 0.5, 2.5, 255.0, 400.0])
    params = quantize.npu_trans_quant_param(torch.ones(9), offset)
    assert [param >> 37 & 0x1FF for param in params.tolist()] == [256, 256, 510, 0, 0, 0, 2, 255, 255]
    assert all(param & ~(0x1FF << 37) == 1 << 46 | 0x3F800000 for param in params.tolist())


def test_refuses() -> None:
    x, one = torch.randn(4, 24).half(), torch.ones(1)
    dynamic, block = quantize.npu_dynamic_quant, quantize.npu_dynamic_block_quant
    refused("input is torch.float32, but must be float16 or bfloat16", dynamic, x.float())
    refused("must have 2 dimensions at least", dynamic, x[0])
    refused("dst_type is float4_e2m1fn_x2, but", dynamic, x, dst_type=296)
    refused("must have a last dimension of 8 * n", dynamic, x[:, :20], dst_type=16)
    refused("dst_type_max is 15.0, but", dynamic, x, dst_type=24, dst_type_max=15.0)
    refused("quant_mode is 'perrow', but", dynamic, x, quant_mode="perrow")
    refused("must be None without smooth_scales", dynamic, x, group_index=torch.tensor([4]))
    refused("smooth_scales is of shape [4], but must have 24 numbers", dynamic, x, smooth_scales=x[0, :4])
    refused("smooth_scales is torch.float32", dynamic, x, smooth_scales=x[0].float())
    refused("input is of shape [4, 0], but must have a number for each scale", dynamic, x[:, :0])
    refused("input is of shape [0, 24]", dynamic, x[:0], quant_mode="perchannel")
    refused("input is of shape [4, 0]", quantize.npu_dynamic_quant_asymmetric, x[:, :0], quant_mode="pertensor")
    unsorted: Any = {"smooth_scales": x[:3], "group_index": torch.tensor([3, 1, 4])}
    refused("must have the ends of groups one after another", dynamic, x, **unsorted)
    refused("offset is of shape [4, 1]", quantize.npu_trans_quant_param, torch.ones(1, 4), torch.ones(4, 1))
    groups: Any = {"smooth_scales": x[:2], "group_index": torch.tensor([1, 3])}
    refused("must end with the number of rows, 4", dynamic, x, **groups)
    refused("must be None unless", dynamic, x, **groups, quant_mode="pertensor")
    refused("row_block_size is 2", block, x, row_block_size=2)
    refused("col_block_size is 32", block, x, col_block_size=32)
    refused("round_mode is 'round', but must be 'rint' for int8", block, x, round_mode="round")
    refused("round_mode is 'rint', but must be 'round' for hifloat8", block, x, dst_type=290)
    refused("min_scale is -1.0", block, x, min_scale=-1.0)
    refused("must have 2 or 3 dimensions", block, x[0])
    grouped = quantize.npu_grouped_dynamic_block_quant
    refused("group_list_type is 1", grouped, x, torch.tensor([4]), group_list_type=1)
    refused("the last at 4", grouped, x, torch.tensor([3]))
    refused("dst_type is int8", grouped, x, torch.tensor([4]), dst_type=1)
    refused("scales is of shape [5], but must have 1 number, or 24", quantize.npu_quantize, x, torch.ones(5), None, 1)
    refused("zero_points is 2 numbers", quantize.npu_quantize, x, one, torch.ones(2), 1)
    refused("dtype is float4_e2m1fn_x2", quantize.npu_quantize, x, one, None, 296)
    refused("axis is 2, but", quantize.npu_quantize, x, torch.ones(24), None, 1, 2)
    y = torch.zeros(4, 24, dtype=torch.int8)
    refused("x is torch.float16, but", quantize.npu_anti_quant, x, one)
    refused("must broadcast to [4, 24]", quantize.npu_anti_quant, y, torch.ones(5))
    refused("src_dtype is float8_e5m2", quantize.npu_anti_quant, y, one, src_dtype=23)
    refused("scale is torch.float16", quantize.npu_trans_quant_param, x[0])
    refused("round_mode is 2", quantize.npu_trans_quant_param, one, round_mode=2)
    refused("offset is of shape [3]", quantize.npu_trans_quant_param, torch.ones(2), torch.ones(3))
