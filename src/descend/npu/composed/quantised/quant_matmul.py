"""npu_quant_matmul: a product of quantised matrices, times their scales; and the product that is added to a tensor.

    y = (x1 @ x2 + bias) * scale * pertoken_scale            a bias of int32; of float8 any bias where scale is
                                                             int64, as float32 becomes without pertoken_scale
    y = x1 @ x2 * scale * pertoken_scale + bias              other biases
    y = round(x1 @ x2 * scale + offset)                      results in int8

Where scales are of blocks, the product of each block of K is scaled, and these are added up (`scaled_products`).

Documents: torch_npu.npu_quant_matmul, npu_add_quant_matmul_; aclnnQuantMatmulV5, QuantBatchMatmulInplaceAdd.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from descend.npu.composed.arithmetic import check_dtype, check_shape
from descend.npu.composed.quantised.formats import HIF8, INT8, Number, float_dtype, rounded
from descend.npu.composed.quantised.quantize import npu_trans_quant_param
from descend.npu.composed.quantised.scaled_products import (
    Factor,
    block_product,
    factor,
    from_params,
    is_mx,
    mx_product,
    product,
    whole_scale,
)
from descend.npu.composed.refusal import refuse

OPERATOR = "npu_quant_matmul"


def npu_quant_matmul(
    x1: Tensor,
    x2: Tensor,
    scale: Tensor,
    *,
    offset: Tensor | None = None,
    pertoken_scale: Tensor | None = None,
    bias: Tensor | None = None,
    output_dtype: Number = None,
    x1_dtype: Number = None,
    x2_dtype: Number = None,
    pertoken_scale_dtype: Number = None,
    scale_dtype: Number = None,
    group_sizes: Sequence[int] | None = None,
    y_scale: Tensor | None = None,
) -> Tensor:
    """[..., M, N] in int8, or ``output_dtype``. Batches of x1 [..., M, K] and x2 [..., K, N] broadcast."""
    if y_scale is not None:
        refuse(OPERATOR, "y_scale", "given", "must be None: float8 with float4 is not served")
    left, right = factor(OPERATOR, "x1", x1, x1_dtype), factor(OPERATOR, "x2", x2, x2_dtype)
    mx = is_mx(OPERATOR, scale, scale_dtype) or is_mx(OPERATOR, pertoken_scale, pertoken_scale_dtype)
    to = output_dtype_of(OPERATOR, output_dtype)
    by_params = x1_dtype is not None or x1.dtype not in (torch.int32, torch.int8)
    if scale.dtype == torch.float32 and pertoken_scale is None and (to != torch.bfloat16 or by_params):
        # torch_npu hands such scales to the processor in this form, which has 19 bits of them.
        scale, offset = npu_trans_quant_param(scale.reshape(-1), None if offset is None else offset.reshape(-1)), None
    return scaled(OPERATOR, left, right, scale, pertoken_scale, bias, to, mx, offset, group_sizes)


def scaled(
    operator: str, left: Factor, right: Factor, scale: Tensor, left_scale: Tensor | None, bias: Tensor | None,
    to: torch.dtype, mx: bool, offset: Tensor | None = None, sizes: Sequence[int] | None = None,
) -> Tensor:  # fmt: skip
    """The product of two factors, times the scales of the right and of the left one, in the dtype ``to``."""
    n = right.shape[-1]
    if bias is not None:
        check_dtype(operator, "bias", bias, torch.int32, torch.float32, torch.bfloat16, torch.float16)
        if not bias.dim() or bias.shape[-1] != n:
            refuse(operator, "bias", f"of shape {list(bias.shape)}", f"must have {n} numbers, as there are columns")
        if bias.dtype == torch.int32 and not left.held.is_integer:
            refuse(operator, "bias", bias.dtype, f"must be float32 for {left.held.name}")
    if mx:
        if left_scale is None:
            refuse(operator, "the scale of the left factor", None, "must be given where one is of float8_e8m0fnu")
        y = mx_product(operator, left, right, left_scale, scale)
    elif _is_of_blocks(left_scale, scale, sizes):
        assert left_scale is not None
        if offset is not None:
            refuse(operator, "offset", "given", "must be None: int4 with scales of groups along K is not served")
        y = block_product(operator, left, right, left_scale, scale, sizes)
    else:
        return _whole(operator, left, right, scale, left_scale, bias, to, offset)
    return _rounded(operator, _plus(operator, y, bias), None, to)


def _is_of_blocks(left_scale: Tensor | None, scale: Tensor, sizes: Sequence[int] | None) -> bool:
    """Whether scales are of blocks: they have two dimensions. With one block along K they are so if sizes are given."""
    if left_scale is None or left_scale.dim() < 2 or scale.dim() < 2:
        return False
    return bool(sizes and any(sizes)) or left_scale.shape[-1] > 1 or scale.shape[-2] > 1


def _whole(
    operator: str, left: Factor, right: Factor, scale: Tensor, left_scale: Tensor | None, bias: Tensor | None,
    to: torch.dtype, offset: Tensor | None,
) -> Tensor:  # fmt: skip
    """As `scaled`, with scales of rows, columns or everything."""
    y = product(operator, left, right)
    if bias is not None and bias.dtype == torch.int32:
        y, bias = _plus(operator, y, bias), None
    if to == torch.int32:
        if not left.held.is_integer or bias is not None:
            refuse(operator, "output_dtype", to, "needs integers, and a bias of int32")
        return y
    y = y.float()
    place: Tensor | None = None
    if scale.dtype == torch.int64:
        scale, place = from_params(scale)
        if bias is not None and not left.held.is_integer:
            y, bias = _plus(operator, y, bias), None
    y = y * whole_scale(operator, "scale", scale, right.shape[-1], by_row=False)
    if left_scale is not None:
        y = y * whole_scale(operator, "the scale of the left factor", left_scale, left.shape[-2], by_row=True)
    y = _plus(operator, y, bias)
    if offset is not None:
        place = whole_scale(operator, "offset", offset, right.shape[-1], by_row=False)
    return _rounded(operator, y, place, to)


def _plus(operator: str, y: Tensor, bias: Tensor | None) -> Tensor:
    """A product and its bias, in the dtype of the product: int32, or float32."""
    if bias is None:
        return y
    sizes = zip(reversed(bias.shape), reversed(y.shape), strict=False)
    if bias.dim() > y.dim() or any(size not in (1, whole) for size, whole in sizes):
        refuse(operator, "bias", f"of shape {list(bias.shape)}", f"must broadcast to the product, {list(y.shape)}")
    return y + bias.to(y.dtype)


def _rounded(operator: str, y: Tensor, offset: Tensor | None, to: torch.dtype) -> Tensor:
    """y in a floating dtype, or y + offset in int8."""
    if to == torch.int32:
        refuse(operator, "output_dtype", to, "needs integers whose scales are not of blocks")
    if to != torch.int8:
        return y.to(to)
    return rounded(y if offset is None else y + offset, INT8)


def output_dtype_of(operator: str, number: Number) -> torch.dtype:
    """The dtype of a result: int8 where none is given."""
    if number is None:
        return torch.int8
    more = {1: torch.int8, 3: torch.int32, 258: torch.int8, 259: torch.int32}
    return float_dtype(operator, "output_dtype", number, more)


def npu_add_quant_matmul_(
    input: Tensor,
    x1: Tensor,
    x2: Tensor,
    x2_scale: Tensor,
    *,
    x1_scale: Tensor | None = None,
    group_sizes: Sequence[int] | None = None,
    x1_dtype: Number = None,
    x2_dtype: Number = None,
    x1_scale_dtype: Number = None,
    x2_scale_dtype: Number = None,
) -> Tensor:
    """Adds x1 @ x2 times their scales to ``input``, float32 [M, N]: scales of MX, or of hifloat8 one number each."""
    operator = "npu_add_quant_matmul_"
    left, right = factor(operator, "x1", x1, x1_dtype), factor(operator, "x2", x2, x2_dtype)
    check_dtype(operator, "input", input, torch.float32)
    if x1_scale is None:
        refuse(operator, "x1_scale", None, "must be given")
    if is_mx(operator, x2_scale, x2_scale_dtype) or is_mx(operator, x1_scale, x1_scale_dtype):
        y = mx_product(operator, left, right, x1_scale, x2_scale)
    else:
        y = one_scale_each(operator, left, right, x1_scale, x2_scale)
    check_shape(operator, "input", input, y.shape, "x1 @ x2")
    return input.add_(y)


def one_scale_each(operator: str, left: Factor, right: Factor, left_scale: Tensor, right_scale: Tensor) -> Tensor:
    """The product of hifloat8, times two numbers."""
    if left.held is not HIF8 or right.held is not HIF8:
        rule = "must be hifloat8 unless their scales are float8_e8m0fnu"
        refuse(operator, "x1 and x2", f"{left.held.name} and {right.held.name}", rule)
    y = product(operator, left, right)
    y = y * whole_scale(operator, "x2_scale", right_scale, right.shape[-1], by_row=False)
    return y * whole_scale(operator, "x1_scale", left_scale, 1, by_row=True)


def npu_add_quant_matmul(input: Tensor, x1: Tensor, x2: Tensor, x2_scale: Tensor, **options: Any) -> Tensor:
    """`npu_add_quant_matmul_` of a copy of ``input``."""
    return npu_add_quant_matmul_(input.clone(), x1, x2, x2_scale, **options)
