"""Quantisation to the MX formats: 32 numbers along a dimension share a scale that is a power of two.

    scale = 2^(exponent(max |x|) - exponent of the format's largest number)      scale_alg 0, of the OCP's document
    scale = the least power of two >= max |x| / largest number                   scale_alg 1, for formats of 8 bits
    y     = x / scale, rounded to the format

scale_alg 2 is for float4_e2m1 alone. Let max |x| in bfloat16 be m * 2^e, m from 1 to 2. The scale is that of
scale_alg 0, or twice that: with dst_type_max 0 or 6 where m is above 1.5, with 7 where it is above 1.75. With any other
dst_type_max the scale is that of scale_alg 1, and dst_type_max is the largest number.

Scales are bytes, of float8_e8m0fnu: 2^(byte - 127), and 255 is NaN. They lie in pairs. Those along the last dimension
of [..., M, N] are [..., M, N / 64, 2], those along the one before are [..., M / 64, N, 2], rounded up. A byte that
belongs to no block is 0. A block with an infinity or NaN has the scale NaN, and its numbers become 0.

Documents: aclnnDynamicMxQuantV3, DynamicMxQuantWithDualAxisV2, DynamicBlockMxQuant, GroupedDynamicMxQuantV2,
AntiMxQuant.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from descend.npu.composed.arithmetic import HALVES, check_dtype
from descend.npu.composed.quantised.formats import (
    E1M2,
    E2M1,
    E4M3,
    E5M2,
    E8M0,
    Format,
    Number,
    as_float,
    float_dtype,
    format_of,
    packed,
    rounded,
    unpacked,
)
from descend.npu.composed.quantised.groups import group_ends, spans
from descend.npu.composed.refusal import refuse

SERVED = (E4M3, E5M2, E2M1, E1M2)
BLOCK = 32


def npu_dynamic_mx_quant(
    input: Tensor,
    *,
    axis: int = -1,
    round_mode: str = "rint",
    dst_type: Number = 296,
    block_size: int = BLOCK,
    scale_alg: int | None = 0,
    dst_type_max: float = 0.0,
    max_low_bound: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """``input`` quantised along ``axis``, and the scales. ``max_low_bound`` is the least maximum of scale_alg 1."""
    operator = "npu_dynamic_mx_quant"
    to = _check(operator, "input", input, 1, dst_type, round_mode, scale_alg, dst_type_max, (torch.float32,))
    if not -input.dim() <= axis < input.dim():
        refuse(operator, "axis", axis, f"must be a dimension of input, of shape {list(input.shape)}")
    if block_size % 32 or not 32 <= block_size <= 1024:
        refuse(operator, "block_size", block_size, "must be a multiple of 32 from 32 to 1024")
    if scale_alg == 2 and block_size != BLOCK:
        refuse(operator, "block_size", block_size, "must be 32 with scale_alg 2")
    if max_low_bound < 0 or (max_low_bound and scale_alg != 1):
        refuse(operator, "max_low_bound", max_low_bound, "must be 0, or positive with scale_alg 1")
    rule = _Rule(to, scale_alg or 0, dst_type_max, max_low_bound, round_mode)
    codes, scales = _along(input, axis % input.dim(), block_size, rule)
    return packed(codes, to), scales


def npu_dynamic_mx_quant_with_dual_axis(
    input: Tensor,
    *,
    round_mode: str = "rint",
    dst_type: Number = 296,
    scale_alg: int = 0,
    dst_type_max: float | None = 0.0,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """``input`` quantised along the last dimension, with its scales, and along the one before, with its scales."""
    operator = "npu_dynamic_mx_quant_with_dual_axis"
    to = _check(operator, "input", input, 2, dst_type, round_mode, scale_alg, dst_type_max)
    rule = _Rule(to, scale_alg, dst_type_max or 0.0, 0.0, round_mode)
    last, last_scales = _along(input, input.dim() - 1, BLOCK, rule)
    other, other_scales = _along(input, input.dim() - 2, BLOCK, rule)
    return packed(last, to), last_scales, packed(other, to), other_scales


def npu_dynamic_block_mx_quant(
    input: Tensor,
    *,
    round_mode: str = "rint",
    dst_type: Number = 296,
    scale_alg: int = 0,
    dst_type_max: float = 0.0,
) -> tuple[Tensor, Tensor, Tensor]:
    """``input`` quantised in blocks of 32 x 32; scales as along the last dimension, and scales as along the one before.

    Both hold the same scales: the first that of a block for each of its rows, the second for each of its columns.
    """
    operator = "npu_dynamic_block_mx_quant"
    to = _check(operator, "input", input, 2, dst_type, round_mode, scale_alg, dst_type_max)
    if scale_alg == 1 or dst_type_max not in (0.0, 6.0, 7.0):
        refuse(operator, "scale_alg", f"{scale_alg} with dst_type_max {dst_type_max}", "must be 0, or 2 with 0, 6 or 7")
    if not input.numel():
        refuse(operator, "input", f"of shape {list(input.shape)}", "must not be empty")
    rule = _Rule(to, scale_alg, dst_type_max, 0.0, round_mode)
    rows, columns = input.shape[-2:]
    padded = torch.nn.functional.pad(input, (0, -columns % BLOCK, 0, -rows % BLOCK))
    blocks = padded.unflatten(-1, (-1, BLOCK)).unflatten(-3, (-1, BLOCK))
    scales = rule.scales(blocks.abs().amax((-3, -1)))
    by_row = scales.repeat_interleave(BLOCK, -2)[..., :rows, :]
    by_column = scales.repeat_interleave(BLOCK, -1)[..., :columns]
    spread = by_row.repeat_interleave(BLOCK, -1)[..., :columns]
    codes = rule.numbers(input.float(), spread)
    last, other = input.dim() - 1, input.dim() - 2
    return packed(codes, to), _in_pairs(by_row, last), _in_pairs(by_column.transpose(-1, -2), other)


def npu_grouped_dynamic_mx_quant(
    x: Tensor,
    group_index: Tensor,
    *,
    round_mode: str = "rint",
    dst_type: Number = 23,
    blocksize: int = BLOCK,
    scale_alg: int | None = 0,
    dst_type_max: float | None = 0.0,
) -> tuple[Tensor, Tensor]:
    """[M, N], quantised along M, and its scales [M / 64 + G, N, 2]. ``group_index`` has the ends of G groups of rows.

    A block is within a group. The scales of group g begin at the row (rows before it) / 64 + g; those that no block
    has are 0.
    """
    operator = "npu_grouped_dynamic_mx_quant"
    to = _check(operator, "x", x, 1, dst_type, round_mode, scale_alg, dst_type_max)
    if x.dim() != 2:
        refuse(operator, "x", f"of shape {list(x.shape)}", "must have 2 dimensions")
    if blocksize != BLOCK:
        refuse(operator, "blocksize", blocksize, "must be 32")
    ends = group_ends(operator, "group_index", group_index, x.shape[0], whole=True)
    rule = _Rule(to, scale_alg or 0, dst_type_max or 0.0, 0.0, round_mode)
    return _in_groups(x, ends, to, rule)


def npu_anti_mx_quant(
    x: Tensor, mxscale: Tensor, *, axis: int | None = -1, dst_type: Number = 15, src_type: Number = 292
) -> Tensor:
    """The numbers that `npu_dynamic_mx_quant` quantised along ``axis``, times their scales."""
    operator = "npu_anti_mx_quant"
    axis = -1 if axis is None else axis
    given = x.dtype if x.dtype in (torch.float8_e4m3fn, torch.float8_e5m2) else src_type
    held = format_of(operator, "src_type", given, SERVED)
    if not -x.dim() <= axis < x.dim():
        refuse(operator, "axis", axis, f"must be a dimension of x, of shape {list(x.shape)}")
    numbers = as_float(unpacked(x, held), held)
    shape = scale_shape(numbers.shape, axis % x.dim())
    if list(mxscale.shape) != shape:
        refuse(operator, "mxscale", f"of shape {list(mxscale.shape)}", f"must be of shape {shape}")
    return (numbers * spread_scales(mxscale, axis % x.dim(), numbers.shape[axis])).to(
        float_dtype(operator, "dst_type", dst_type)
    )


# --- for operators that quantise what they compute --------------------------------------------------------------------


def along_last(operator: str, name: str, x: Tensor, number: Number, mode: str, alg: int) -> tuple[Tensor, Tensor]:
    """``x`` quantised along its last dimension, and the scales. ``name`` is what refusals call it."""
    if alg not in (0, 1):
        refuse(operator, "scale_alg", alg, "must be 0 or 1")
    to = _check(operator, name, x, 1, number, mode, alg, 0.0)
    codes, scales = _along(x, x.dim() - 1, BLOCK, _Rule(to, alg, 0.0, 0.0, mode))
    return packed(codes, to), scales


def along_last_two(
    operator: str, name: str, x: Tensor, number: Number, mode: str, alg: int, ends: list[int] | None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """As `along_last`, and then the same along the dimension before.

    ``ends`` are those of groups of rows of ``x`` [M, N]: along the rows a block is within a group.
    The scales of group g begin at the row (rows before it) / 64 + g, as those of `npu_grouped_dynamic_mx_quant`.
    """
    y, scales = along_last(operator, name, x, number, mode, alg)
    to = format_of(operator, "dst_type", number, SERVED)
    rule = _Rule(to, alg, 0.0, 0.0, mode)
    if ends is None:
        codes, others = _along(x, x.dim() - 2, BLOCK, rule)
        return y, scales, packed(codes, to), others
    return y, scales, *_in_groups(x, ends, to, rule)


# --- for products -----------------------------------------------------------------------------------------------------


def scale_shape(shape: torch.Size, axis: int) -> list[int]:
    """The shape of the scales of a tensor of this shape."""
    return [*shape[:axis], -(-shape[axis] // (2 * BLOCK)), *shape[axis + 1 :], 2]


def spread_scales(scales: Tensor, axis: int, size: int) -> Tensor:
    """The scales in float32, each repeated for the numbers of its block, of which there are ``size`` along ``axis``."""
    each = as_float(scales.view(torch.uint8), E8M0).movedim(-1, axis + 1).flatten(axis, axis + 1)
    return each.repeat_interleave(BLOCK, axis).narrow(axis, 0, size)


# --- one block --------------------------------------------------------------------------------------------------------


class _Rule:
    """How scales and numbers are computed."""

    def __init__(self, to: Format, scale_alg: int, largest: float, least_max: float, round_mode: str) -> None:
        self.to, self.alg, self.least_max, self.mode = to, scale_alg, least_max, round_mode
        self.by_carry = scale_alg == 2 and largest in (0.0, 6.0, 7.0)
        self.largest = largest or to.largest

    def scales(self, largest: Tensor) -> Tensor:
        """The bytes of the scales, of the largest magnitudes of blocks."""
        # float32 is cut off to bfloat16, float16 is rounded.
        cut = (
            largest.view(torch.int32) >> 16 if largest.dtype == torch.float32 else largest.bfloat16().view(torch.int16)
        )
        largest = largest.float()
        if self.by_carry:
            bits = cut.to(torch.int32)
            exponent, fraction = bits >> 7 & 255, bits & 127
            carried = exponent + (fraction > (96 if self.largest == 7.0 else 64)).to(torch.int32)
            scale = torch.where(exponent > 0, carried - self.to.exponent, 0)
        elif self.alg == 0:
            exponent = largest.view(torch.int32) >> 23 & 255
            scale = exponent - self.to.exponent
        else:
            if self.least_max:
                largest = torch.where(largest.isnan(), largest, largest.clamp(min=self.least_max))
            bits = (largest / self.largest).view(torch.int32)
            exponent, fraction = bits >> 23 & 255, bits & 0x7FFFFF
            up = (exponent > 0) & (exponent < 254) & (fraction > 0)
            if self.alg == 1:
                up |= (exponent == 0) & (fraction > 1 << 22)
            scale = exponent + up.to(torch.int32)
        return torch.where(largest.isfinite(), scale.clamp(min=0), 255).to(torch.uint8)

    def numbers(self, x: Tensor, scales: Tensor) -> Tensor:
        """Codes of x / scale, which is exact."""
        return rounded(x * _RECIPROCALS[scales.long()], self.to, self.mode)


_RECIPROCALS = torch.tensor([*(math.ldexp(1.0, 127 - byte) for byte in range(255)), math.nan], dtype=torch.float32)
"""1 / scale, by the byte of the scale."""


def _along(x: Tensor, axis: int, size: int, rule: _Rule) -> tuple[Tensor, Tensor]:
    """Codes of the shape of ``x``, not packed, and the scales of blocks of ``size``."""
    whole = x.movedim(axis, -1)
    length = whole.shape[-1]
    if length % size:
        whole = torch.nn.functional.pad(whole, (0, -length % size))
    blocks = whole.unflatten(-1, (-(-length // size), size))
    scales = rule.scales(blocks.abs().amax(-1))
    codes = rule.numbers(blocks.float(), scales.unsqueeze(-1)).flatten(-2)[..., :length]
    return codes.movedim(-1, axis).contiguous(), _in_pairs(scales, axis)


def _in_groups(x: Tensor, ends: list[int], to: Format, rule: _Rule) -> tuple[Tensor, Tensor]:
    """[M, N] along M, group by group, and scales [M / 64 + G, N, 2]. Rows after the last group are 0."""
    codes, scales = [], x.new_zeros((x.shape[0] // 64 + len(ends), x.shape[1], 2), dtype=torch.uint8)
    for g, (begin, end) in enumerate(spans(ends)):
        part, own = _along(x[begin:end], 0, BLOCK, rule)
        codes.append(part)
        scales[begin // 64 + g : begin // 64 + g + own.shape[0]] = own
    codes.append(rounded(torch.zeros(x[ends[-1] :].shape), to))
    return packed(torch.cat(codes), to), scales


def _in_pairs(scales: Tensor, axis: int) -> Tensor:
    """Scales whose last dimension is that of the blocks: that goes to ``axis``, in pairs, which are last."""
    even = torch.nn.functional.pad(scales, (0, scales.shape[-1] % 2))
    pairs: Tensor = even.unflatten(-1, (even.shape[-1] // 2, 2))
    return pairs.movedim(-2, axis).contiguous()


def _check(
    operator: str, name: str, x: Tensor, dims: int, number: Number, mode: str, alg: int | None,
    largest: float | None, more_dtypes: tuple[torch.dtype, ...] = (),
) -> Format:  # fmt: skip
    to = format_of(operator, "dst_type", number, SERVED)
    check_dtype(operator, name, x, *HALVES, *more_dtypes)
    if x.dim() < dims:
        refuse(operator, name, f"of shape {list(x.shape)}", f"must have {dims} dimensions at least")
    if to.packed > 1 and x.shape[-1] % 2:
        refuse(operator, name, f"of shape {list(x.shape)}", f"must have an even last dimension for {to.name}")
    modes = ("rint", "floor", "round") if to.packed > 1 else ("rint",)
    if mode not in modes:
        refuse(operator, "round_mode", repr(mode), f"must be one of {', '.join(modes)} for {to.name}")
    algs = {E2M1.name: (0, 2), E1M2.name: (0,)}.get(to.name, (0, 1))
    if (alg or 0) not in algs:
        refuse(operator, "scale_alg", alg, f"must be one of {', '.join(map(str, algs))} for {to.name}")
    if largest and (alg != 2 or not 6.0 <= largest <= 12.0):
        refuse(operator, "dst_type_max", largest, "must be 0, or 6 to 12 with scale_alg 2")
    return to
