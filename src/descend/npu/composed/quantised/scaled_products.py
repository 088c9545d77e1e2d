"""Products of quantised matrices and their scales, for npu_quant_matmul, npu_grouped_matmul and those that add to them.

Products of integers are exact, in int32. Those of other formats are added up in float32. Scales are multiplied in
afterwards, in float32:

| kind | scale of the left factor [M, K] | scale of the right factor [K, N] |
| --- | --- | --- |
| whole | 1 number, or M | 1 number, or N |
| blocks | [M or M / 128, K / 128] | [K / 128, N / 128] |
| MX | [M, K / 64, 2] of float8_e8m0fnu | [K / 64, N, 2] of float8_e8m0fnu |
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from descend.npu.composed.arithmetic import check_batches, check_dtype, check_shape
from descend.npu.composed.quantised.formats import (
    E1M2,
    E2M1,
    E4M3,
    E5M2,
    E8M0,
    HIF8,
    INT4,
    INT4_IN_INT32,
    INT8,
    Format,
    Number,
    as_float,
    format_of,
    unpacked,
)
from descend.npu.composed.quantised.mx_quant import scale_shape, spread_scales
from descend.npu.composed.refusal import refuse

SERVED = (INT8, INT4, INT4_IN_INT32, E4M3, E5M2, HIF8, E2M1, E1M2)
QUANTISED = (torch.int8, torch.int32, torch.uint8, torch.float8_e4m3fn, torch.float8_e5m2, torch.float4_e2m1fn_x2)


@dataclass(frozen=True)
class Factor:
    """A factor of a product: int8, or float32."""

    numbers: Tensor
    held: Format

    @property
    def shape(self) -> torch.Size:
        """That of the numbers."""
        return self.numbers.shape

    def part(self, dim: int, begin: int, end: int) -> Factor:
        """The numbers from ``begin`` to ``end`` along a dimension."""
        return Factor(self.numbers.narrow(dim, begin, end - begin), self.held)


def factor(operator: str, name: str, tensor: Tensor, number: Number) -> Factor:
    """The numbers of a matrix. ``number`` names its format where the dtype does not: bytes may hold several.

    Formats of 4 bits are packed along the dimension that is contiguous, also in a matrix that is transposed.
    """
    if tensor.dtype not in QUANTISED:
        refuse(operator, name, tensor.dtype, "must be int8, int32 (of int4), float8, or bytes with their dtype given")
    if tensor.dim() < 2:
        refuse(operator, name, f"of shape {list(tensor.shape)}", "must have 2 dimensions at least")
    by_dtype = {torch.int32: INT4_IN_INT32, torch.float4_e2m1fn_x2: E2M1}.get(tensor.dtype)
    held = by_dtype or format_of(operator, f"the dtype of {name}", tensor.dtype if number is None else number, SERVED)
    fits = held.dtype == tensor.dtype or by_dtype is not None or (held is INT4 and tensor.dtype == torch.int8)
    if not fits:
        rule = f"must be one that {tensor.dtype} can hold"
        refuse(operator, f"the dtype of {name}", held.name, rule)
    codes = unpacked(tensor, held, -2 if is_transposed(tensor) else -1)
    return Factor(codes if held.is_integer else as_float(codes, held), held)


def is_transposed(tensor: Tensor) -> bool:
    """Whether the memory of each matrix is that of its transpose, column after column."""
    rows, columns = tensor.shape[-2:]
    if tensor.stride(-2) != 1 or tensor.stride(-1) != rows or rows == columns == 1:
        return False
    size = rows * columns
    for dim in range(tensor.dim() - 3, -1, -1):
        if tensor.stride(dim) != size:
            return False
        size *= tensor.shape[dim]
    return True


def product(operator: str, left: Factor, right: Factor) -> Tensor:
    """int32 of integers, else float32."""
    check_factors(operator, left, right)
    if left.held.is_integer:
        # Sums are below 2^53, so float64 has them exactly, and is fast.
        exact = left.numbers.double() @ right.numbers.double()
        return exact.to(torch.int64).to(torch.int32)
    return left.numbers @ right.numbers


def check_factors(operator: str, left: Factor, right: Factor) -> None:
    """Refuses formats that are not multiplied with each other, and shapes that do not fit."""
    eight = (E4M3, E5M2)
    alike = left.held == right.held or (left.held in eight and right.held in eight)
    if not alike and not (left.held.packed > 1 and right.held.packed > 1 and left.held.is_integer):
        refuse(operator, "the right factor", right.held.name, f"must be one that is multiplied with {left.held.name}")
    if left.shape[-1] != right.shape[-2]:
        shapes = f"must have {left.shape[-1]} rows, as the left one, {list(left.shape)}, has columns"
        refuse(operator, "the right factor", f"of shape {list(right.shape)}", shapes)
    check_batches(operator, "the right factor", right.numbers, left.numbers, "the left one")


def mx_product(operator: str, left: Factor, right: Factor, left_scale: Tensor, right_scale: Tensor) -> Tensor:
    """Blocks of 32 along K have a scale each. Scales are powers of two, so the numbers times them are exact."""
    check_factors(operator, left, right)
    if left.held.is_integer or left.held is HIF8:
        refuse(operator, "the factors", left.held.name, "must be float8 or float4 where scales are float8_e8m0fnu")
    dims = (left.numbers.dim(), right.numbers.dim())
    for name, scale, whole, axis in (
        ("the left factor's scale", left_scale, left, dims[0] - 1),
        ("the right factor's scale", right_scale, right, dims[1] - 2),
    ):
        check_scale_dtype(operator, name, scale)
        check_shape(operator, name, scale, scale_shape(whole.shape, axis), "blocks of 32 along K, in pairs")
    size = left.shape[-1]
    scaled = left.numbers * spread_scales(left_scale, dims[0] - 1, size)
    return scaled @ (right.numbers * spread_scales(right_scale, dims[1] - 2, size))


def check_scale_dtype(operator: str, name: str, scale: Tensor) -> None:
    """Refuses a scale that is not of float8_e8m0fnu, or bytes."""
    check_dtype(operator, name, scale, torch.uint8, torch.float8_e8m0fnu)


def is_mx(operator: str, scale: Tensor | None, number: Number) -> bool:
    """Whether a scale has the dtype float8_e8m0fnu, or is said to."""
    if scale is None:
        return False
    if number is not None and scale.dtype in (torch.uint8, torch.int8):
        return format_of(operator, "the dtype of the scale", number, (E8M0,)) is E8M0
    return scale.dtype == torch.float8_e8m0fnu


def block_product(
    operator: str, left: Factor, right: Factor, left_scale: Tensor, right_scale: Tensor, sizes: Sequence[int] | None
) -> Tensor:
    """Blocks of 128 along K, and of 128 or 1 along M and 128 along N, have a scale each: float32."""
    check_factors(operator, left, right)
    m, k, n = left.shape[-2], left.shape[-1], right.shape[-1]
    given = list(sizes) if sizes else [0, 0, 0]
    if len(given) != 3:
        refuse(operator, "group_sizes", given, "must have 3 numbers, for M, N and K")
    counted = ((m, left_scale.shape[-2]), (n, right_scale.shape[-1]), (k, left_scale.shape[-1]))
    for i, (size, blocks) in enumerate(counted):
        if not given[i] and (not blocks or size % blocks):
            refuse(operator, "group_sizes", given, f"must not have 0, for {size} numbers are not {blocks} like blocks")
        given[i] = given[i] or size // blocks
    if given not in ([1, 128, 128], [128, 128, 128]):
        refuse(operator, "group_sizes", given, "must be [1, 128, 128] or [128, 128, 128], or [1, 1, 32] for MX")
    count = -(-k // 128)
    for name, scale, shape in (
        ("the left factor's scale", left_scale, (-(-m // given[0]), count)),
        ("the right factor's scale", right_scale, (count, -(-n // 128))),
    ):
        check_dtype(operator, name, scale, torch.float32)
        if tuple(scale.shape[-2:]) != shape:
            refuse(operator, name, f"of shape {list(scale.shape)}", f"must have {list(shape)} blocks")
    by_row = left_scale.repeat_interleave(given[0], -2)[..., :m, :]
    by_column = right_scale.repeat_interleave(128, -1)[..., :n]
    total: Tensor | None = None
    for j in range(count):
        begin, end = j * 128, min(k, (j + 1) * 128)
        part = product(operator, left.part(-1, begin, end), right.part(-2, begin, end)).float()
        part = part * (by_row[..., j : j + 1] * by_column[..., j : j + 1, :])
        total = part if total is None else total.add_(part)
    assert total is not None
    return total


def whole_scale(operator: str, name: str, scale: Tensor, size: int, by_row: bool) -> Tensor:
    """A scale of 1 number or one for each row, or column, as a factor of the product, in float32."""
    check_dtype(operator, name, scale, torch.float32, torch.bfloat16, torch.float16)
    if scale.numel() == 1:
        return scale.float().reshape(())
    if scale.numel() != size:
        refuse(operator, name, f"of shape {list(scale.shape)}", f"must have 1 number, or {size}")
    return scale.float().reshape((-1, 1) if by_row else (-1,))


def from_params(params: Tensor) -> tuple[Tensor, Tensor]:
    """The scale and the offset that `npu_trans_quant_param` joined."""
    low = params & 0xFFFFFFFF
    bits = torch.where(low >= 2**31, low - 2**32, low).to(torch.int32)
    offset = params >> 37 & 0x1FF
    return bits.view(torch.float32), torch.where(offset > 255, offset - 512, offset).float()
