"""Quantisation with scales that are float32: of rows, columns, whole tensors and blocks; with given scales; and back.

    scale = max |x| / largest                       y = x / scale, rounded        npu_dynamic_quant, ..._block_quant
    scale = (max x - min x) / (largest - least)     y = x / scale + offset        npu_dynamic_quant_asymmetric
    offset = largest - max x / scale
    y = x / scales + zero_points, or without div_mode x * scales + zero_points    npu_quantize
    y = (x + offset) * scale                                                      npu_anti_quant

All is computed in float32. Numbers are rounded to the nearest, of two that are equally near to the even one. Beyond
the format's largest number they become that, and NaN becomes 0: so a block of zeros, whose scale is 0, stays 0.

Documents: aclnnDynamicQuantV4, DynamicBlockQuantV2, GroupedDynamicBlockQuantV2, Quantize, AscendQuantV3,
AscendAntiQuant, TransQuantParamV2.
"""

from __future__ import annotations

import torch
from torch import Tensor

from descend.npu.composed.arithmetic import FLOATS_TO_32, HALVES, check_choice, check_dtype, check_integer, check_shape
from descend.npu.composed.quantised.formats import (
    E4M3,
    E5M2,
    HIF8,
    INT4_IN_INT32,
    INT8,
    INT32,
    UINT8,
    Format,
    Number,
    as_float,
    float_dtype,
    format_of,
    packed,
    rounded,
    scaled_to_fit,
    unpacked,
)
from descend.npu.composed.quantised.groups import group_ends, spans
from descend.npu.composed.refusal import refuse


def npu_dynamic_quant(
    input: Tensor,
    *,
    smooth_scales: Tensor | None = None,
    group_index: Tensor | None = None,
    dst_type: Number = None,
    quant_mode: str = "pertoken",
    dst_type_max: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """``input``, times ``smooth_scales``, quantised, and a scale for each row, column or the whole, by quant_mode.

    With ``group_index``, the ends of groups of rows, each group has its own row of ``smooth_scales``.
    """
    operator = "npu_dynamic_quant"
    to, x, dims = _smoothed(operator, input, smooth_scales, group_index, dst_type, quant_mode, dst_type_max)
    y, scale = scaled_to_fit(x, to, dims, dst_type_max)
    return y, _one_a_group(scale, dims)


def npu_dynamic_quant_asymmetric(
    input: Tensor,
    *,
    smooth_scales: Tensor | None = None,
    group_index: Tensor | None = None,
    dst_type: Number = None,
    quant_mode: str = "pertoken",
    dst_type_max: float = 0.0,
) -> tuple[Tensor, Tensor, Tensor]:
    """As `npu_dynamic_quant`, with an offset beside each scale, so that both extremes of a row are extremes of y."""
    operator = "npu_dynamic_quant_asymmetric"
    to, x, dims = _smoothed(operator, input, smooth_scales, group_index, dst_type, quant_mode, dst_type_max)
    largest = dst_type_max or to.largest
    most = x.amax(dims, keepdim=True)
    scale = (most - x.amin(dims, keepdim=True)) / (2 * largest + (1 if to.is_integer else 0))
    offset = largest - most / scale
    y = rounded(x / scale + offset, to)
    return packed(y, to), _one_a_group(scale, dims), _one_a_group(offset, dims)


def npu_dynamic_block_quant(
    x: Tensor,
    *,
    min_scale: float = 0.0,
    round_mode: str = "rint",
    dst_type: Number = 1,
    row_block_size: int = 1,
    col_block_size: int = 128,
    dst_type_max: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """``x`` [M, N] or [B, M, N], quantised in blocks, and a scale for each block, at most 1 / min_scale.

    Infinities and NaN do not count for a scale.
    """
    operator = "npu_dynamic_block_quant"
    to = _check_blocks(
        operator, x, (INT8, HIF8, E5M2, E4M3), dst_type, round_mode, min_scale, dst_type_max, FLOATS_TO_32
    )
    _check_block_sizes(operator, row_block_size, col_block_size)
    return _in_blocks(x, to, min_scale, row_block_size, col_block_size, dst_type_max)


def npu_grouped_dynamic_block_quant(
    x: Tensor,
    group_list: Tensor,
    *,
    min_scale: float = 0.0,
    round_mode: str = "rint",
    dst_type: Number = 291,
    row_block_size: int = 1,
    col_block_size: int = 128,
    group_list_type: int = 0,
    dst_type_max: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """As `npu_dynamic_block_quant`; blocks are within groups of rows, whose ends ``group_list`` has.

    There are M / row_block_size + G rows of scales. Those of group g begin at (rows before it) / row_block_size + g;
    the rows that no block has are 0.
    """
    operator = "npu_grouped_dynamic_block_quant"
    to = _check_blocks(operator, x, (HIF8, E5M2, E4M3), dst_type, round_mode, min_scale, dst_type_max, HALVES)
    _check_block_sizes(operator, row_block_size, col_block_size)
    if group_list_type != 0:
        refuse(operator, "group_list_type", group_list_type, "must be 0")
    ends = group_ends(operator, "group_list", group_list, x.shape[-2], whole=True)
    parts = []
    shape = (*x.shape[:-2], x.shape[-2] // row_block_size + len(ends), -(-x.shape[-1] // col_block_size))
    scales = x.new_zeros(shape, dtype=torch.float32)
    for g, (begin, end) in enumerate(spans(ends)):
        if begin == end:
            continue
        y, own = _in_blocks(x[..., begin:end, :], to, min_scale, row_block_size, col_block_size, dst_type_max)
        parts.append(y)
        scales.narrow(-2, begin // row_block_size + g, own.shape[-2]).copy_(own)
    return torch.cat(parts, -2), scales


def npu_quantize(
    input: Tensor, scales: Tensor, zero_points: Tensor | None, dtype: Number, axis: int = 1, div_mode: bool = True
) -> Tensor:
    """``input`` quantised with scales and zero points: one for all, or one for each place along ``axis``."""
    operator = "npu_quantize"
    by_scale = (INT8, UINT8, INT32, HIF8, E4M3, E5M2)
    to = format_of(operator, "dtype", dtype, by_scale if div_mode else (INT8, INT4_IN_INT32, HIF8, E4M3, E5M2))
    check_dtype(operator, "input", input, *FLOATS_TO_32)
    check_dtype(operator, "scales", scales, *FLOATS_TO_32)
    if not div_mode:
        axis = axis if axis < -1 else -1
    if not -input.dim() <= axis < max(input.dim(), 1) and scales.numel() > 1:
        refuse(operator, "axis", axis, f"must be a dimension of input, of shape {list(input.shape)}")
    scale = _along_axis(operator, "scales", scales, input, axis)
    if to.packed > 1 and (not input.dim() or input.shape[-1] % to.packed):
        refuse(operator, "input", f"of shape {list(input.shape)}", f"must have a last dimension of {to.packed} * n")
    x = input.float() / scale if div_mode else input.float() * scale
    if zero_points is not None:
        if zero_points.numel() != scales.numel():
            refuse(
                operator,
                "zero_points",
                f"{zero_points.numel()} numbers",
                f"must have as many as scales, {scales.numel()}",
            )
        x = x + _along_axis(operator, "zero_points", zero_points, input, axis)
    return packed(rounded(x, to), to)


def npu_anti_quant(
    x: Tensor, scale: Tensor, *, offset: Tensor | None = None, dst_dtype: Number = None, src_dtype: Number = None
) -> Tensor:
    """Numbers that were quantised, plus ``offset``, times ``scale``: in float16, or bfloat16."""
    operator = "npu_anti_quant"
    held = {torch.uint8: HIF8, torch.int8: INT8, torch.int32: INT4_IN_INT32, torch.float8_e4m3fn: E4M3}
    held[torch.float8_e5m2] = E5M2
    check_dtype(operator, "x", x, *held)
    if src_dtype is not None and x.dtype != torch.int32:
        format_of(operator, "src_dtype", src_dtype, (held[x.dtype],))
    numbers = as_float(unpacked(x, held[x.dtype]), held[x.dtype])
    to = torch.float16 if dst_dtype is None else float_dtype(operator, "dst_dtype", dst_dtype)
    for name, tensor in (("scale", scale), ("offset", offset)):
        if tensor is None:
            continue
        check_dtype(operator, name, tensor, torch.float32, torch.bfloat16)
        try:
            fits = torch.broadcast_shapes(tensor.shape, numbers.shape) == numbers.shape
        except RuntimeError:
            fits = False
        if not fits:
            refuse(operator, name, f"of shape {list(tensor.shape)}", f"must broadcast to {list(numbers.shape)}")
    if offset is not None:
        numbers = numbers + offset.float()
    return (numbers * scale.float()).to(to)


def npu_trans_quant_param(scale: Tensor, offset: Tensor | None = None, round_mode: int | None = 0) -> Tensor:
    """Scales as `npu_quant_matmul` takes them, int64: the bits of float32 without the last 13, offset, and bit 46.

    With ``round_mode`` 1 the scale is rounded to these 19 bits, else it is cut off. The offset has 9 bits, from 37.
    """
    operator = "npu_trans_quant_param"
    check_dtype(operator, "scale", scale, torch.float32)
    check_choice(operator, "round_mode", round_mode or 0, 0, 1)
    bits = scale.view(torch.int32).to(torch.int64) & 0xFFFFFFFF
    if round_mode:
        bits = bits + 0xFFF + (bits >> 13 & 1)
    params = (bits & 0xFFFFE000) | 1 << 46
    if offset is None:
        return params
    check_dtype(operator, "offset", offset, torch.float32)
    places = rounded(offset, INT32).to(torch.int64).clamp(-256, 255) & 0x1FF
    if places.dim() != scale.dim() or (places.shape != scale.shape and 1 not in (places.numel(), scale.numel())):
        refuse(operator, "offset", f"of shape {list(offset.shape)}", f"must have that of scale, {list(scale.shape)}")
    return params & 0x4000FFFFFFFF | places << 37


# --- parts ------------------------------------------------------------------------------------------------------------


def _smoothed(
    operator: str,
    input: Tensor,
    smooth_scales: Tensor | None,
    group_index: Tensor | None,
    number: Number,
    mode: str,
    largest: float,
) -> tuple[Format, Tensor, tuple[int, ...]]:
    """The format, float32 numbers, and the dimensions that share a scale."""
    to = INT8 if number is None else format_of(operator, "dst_type", number, (INT8, INT4_IN_INT32, HIF8, E5M2, E4M3))
    check_dtype(operator, "input", input, *HALVES)
    if input.dim() < 2:
        refuse(operator, "input", f"of shape {list(input.shape)}", "must have 2 dimensions at least")
    if to.packed > 1 and input.shape[-1] % to.packed:
        refuse(operator, "input", f"of shape {list(input.shape)}", f"must have a last dimension of {to.packed} * n")
    if largest and (to is not HIF8 or not 0 < largest <= to.largest):
        refuse(operator, "dst_type_max", largest, "must be 0, or up to 32768 for hifloat8")
    dims = {"pertoken": (-1,), "perchannel": (-2,), "pertensor": tuple(range(input.dim()))}.get(mode)
    if dims is None:
        refuse(operator, "quant_mode", repr(mode), "must be 'pertoken', 'pertensor' or 'perchannel'")
    if not all(input.shape[dim] for dim in dims):
        refuse(operator, "input", f"of shape {list(input.shape)}", "must have a number for each scale")
    x = input.float()
    if smooth_scales is None:
        if group_index is not None:
            refuse(operator, "group_index", "given", "must be None without smooth_scales")
        return to, x, dims
    check_dtype(operator, "smooth_scales", smooth_scales, input.dtype)
    smooth = smooth_scales.float()
    if group_index is None:
        size = input.shape[-2 if mode == "perchannel" else -1]
        if smooth.numel() != size:
            refuse(operator, "smooth_scales", f"of shape {list(smooth.shape)}", f"must have {size} numbers")
        return to, x * (smooth.reshape(-1, 1) if mode == "perchannel" else smooth.reshape(-1)), dims
    if mode != "pertoken":
        refuse(operator, "group_index", "given", "must be None unless quant_mode is 'pertoken'")
    check_integer(operator, "group_index", group_index)
    check_shape(operator, "smooth_scales", smooth, [group_index.numel(), input.shape[-1]], "the groups and columns")
    if bool((group_index.diff() < 0).any()):
        refuse(operator, "group_index", group_index.tolist(), "must have the ends of groups one after another")
    rows = torch.arange(input.shape[:-1].numel())
    group = torch.searchsorted(group_index.to(torch.int64), rows, right=True)
    if int(group.max() if rows.numel() else 0) >= group_index.numel():
        refuse(operator, "group_index", group_index.tolist(), f"must end with the number of rows, {rows.numel()}")
    return to, x * smooth[group].view(x.shape), dims


def _one_a_group(numbers: Tensor, dims: tuple[int, ...]) -> Tensor:
    """Scales without the dimensions that share one; one scale of all is [1]."""
    return numbers.squeeze(dims[0]) if len(dims) == 1 else numbers.reshape(1)


def _check_blocks(
    operator: str,
    x: Tensor,
    served: tuple[Format, ...],
    number: Number,
    mode: str,
    min_scale: float,
    largest: float,
    dtypes: tuple[torch.dtype, ...],
) -> Format:
    to = format_of(operator, "dst_type", number, served)
    check_dtype(operator, "x", x, *dtypes)
    if x.dim() not in (2, 3) or not x.numel():
        refuse(operator, "x", f"of shape {list(x.shape)}", "must have 2 or 3 dimensions, and must not be empty")
    wanted = "round" if to is HIF8 else "rint"
    if mode != wanted:
        refuse(operator, "round_mode", repr(mode), f"must be '{wanted}' for {to.name}")
    if min_scale < 0:
        refuse(operator, "min_scale", min_scale, "must not be negative")
    if largest and (to is not HIF8 or not 0 < largest <= to.largest):
        refuse(operator, "dst_type_max", largest, "must be 0, or up to 32768 for hifloat8")
    return to


def _check_block_sizes(operator: str, rows: int, columns: int) -> None:
    if rows not in (1, 128, 256, 512):
        refuse(operator, "row_block_size", rows, "must be 1, 128, 256 or 512")
    if columns not in (64, 128, 192, 256):
        refuse(operator, "col_block_size", columns, "must be 64, 128, 192 or 256")


def _in_blocks(
    x: Tensor, to: Format, min_scale: float, rows: int, columns: int, largest: float
) -> tuple[Tensor, Tensor]:
    m, n = x.shape[-2:]
    wide = x.float()
    finite = torch.nan_to_num(wide, nan=0.0, posinf=0.0, neginf=0.0).abs()
    whole = torch.nn.functional.pad(finite, (0, -n % columns, 0, -m % rows))
    blocks = whole.unflatten(-1, (-1, columns)).unflatten(-3, (-1, rows))
    scales = blocks.amax((-3, -1)) / (largest or to.largest)
    if min_scale:
        scales = scales.clamp(max=1 / min_scale)
    spread = scales.repeat_interleave(rows, -2)[..., :m, :].repeat_interleave(columns, -1)[..., :n]
    return rounded(torch.where(wide.isfinite(), wide / spread, wide), to), scales


def _along_axis(operator: str, name: str, numbers: Tensor, x: Tensor, axis: int) -> Tensor:
    """The numbers in float32, of a shape that is expanded to that of ``x``."""
    size = numbers.numel()
    if size == 1:
        return numbers.float().reshape(())
    if size != x.shape[axis]:
        refuse(
            operator, name, f"of shape {list(numbers.shape)}", f"must have 1 number, or {x.shape[axis]} for axis {axis}"
        )
    shape = [1] * x.dim()
    shape[axis] = size
    return numbers.float().reshape(shape)
