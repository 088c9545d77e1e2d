"""Products with weights alone quantised, and weights of int4 packed for them.

    npu_weight_quant_batchmatmul   y = x @ ((weight + antiquant_offset) * antiquant_scale) + bias
                                   y = round(y * quant_scale + quant_offset), in int8, if quant_scale is given

Documents: torch_npu.npu_weight_quant_batchmatmul, npu_convert_weight_to_int4pack.
"""

from __future__ import annotations

import torch
from torch import Tensor

from descend.npu.composed.arithmetic import FLOATS_TO_32, HALVES, check_batches, check_dtype, check_shape
from descend.npu.composed.quantised.formats import INT4_IN_INT32, INT8, Number, packed, rounded
from descend.npu.composed.quantised.scaled_products import factor, from_params
from descend.npu.composed.refusal import refuse


def npu_weight_quant_batchmatmul(
    x: Tensor,
    weight: Tensor,
    antiquant_scale: Tensor,
    antiquant_offset: Tensor | None = None,
    quant_scale: Tensor | None = None,
    quant_offset: Tensor | None = None,
    bias: Tensor | None = None,
    antiquant_group_size: int = 0,
    inner_precise: int = 0,
    weight_dtype: Number = None,
) -> Tensor:
    """[..., M, N], of ``x`` [..., M, K] and ``weight`` [..., K, N]: int8, int4 packed in int32, float8 or hifloat8.

    Scales are [1], [N], or [K / antiquant_group_size, N]. A quant_scale of int64 is npu_trans_quant_param's.
    """
    operator = "npu_weight_quant_batchmatmul"
    check_dtype(operator, "x", x, *HALVES)
    right = factor(operator, "weight", weight, weight_dtype)
    numbers = right.numbers.float()
    if x.dim() < 2 or x.shape[-1] != numbers.shape[-2]:
        rule = f"must have 2 dimensions at least, and {numbers.shape[-2]} columns, as weight has rows"
        refuse(operator, "x", f"of shape {list(x.shape)}", rule)
    check_batches(operator, "x", x, numbers, "weight")
    k, n = numbers.shape[-2:]
    check_dtype(operator, "antiquant_scale", antiquant_scale, *FLOATS_TO_32)
    if antiquant_offset is not None:
        check_dtype(operator, "antiquant_offset", antiquant_offset, *FLOATS_TO_32)
        numbers = numbers + _of_weight(operator, "antiquant_offset", antiquant_offset, k, n, antiquant_group_size)
    numbers = numbers * _of_weight(operator, "antiquant_scale", antiquant_scale, k, n, antiquant_group_size)
    y = x.float() @ numbers
    if bias is not None:
        check_dtype(operator, "bias", bias, *FLOATS_TO_32)
        y = y + of_columns(operator, "bias", bias, n)
    if quant_scale is None:
        if quant_offset is not None:
            refuse(operator, "quant_offset", "given", "must be None without quant_scale")
        return y.to(x.dtype)
    check_dtype(operator, "quant_scale", quant_scale, torch.float32, torch.int64)
    if quant_scale.dtype == torch.int64:
        if quant_offset is not None:
            refuse(operator, "quant_offset", "given", "must be None: a quant_scale of int64 has it")
        quant_scale, quant_offset = from_params(quant_scale)
    y = y * of_columns(operator, "quant_scale", quant_scale, n)
    if quant_offset is not None:
        check_dtype(operator, "quant_offset", quant_offset, torch.float32)
        y = y + of_columns(operator, "quant_offset", quant_offset, n)
    return rounded(y, INT8)


def npu_convert_weight_to_int4pack(weight: Tensor, inner_k_tiles: int = 0) -> Tensor:
    """Integers from -8 to 7 [K, N] in int32, packed: [K, N / 8] in int32."""
    operator = "npu_convert_weight_to_int4pack"
    check_dtype(operator, "weight", weight, torch.int32)
    if weight.dim() != 2 or weight.shape[1] % INT4_IN_INT32.packed:
        refuse(operator, "weight", f"of shape {list(weight.shape)}", "must have 2 dimensions, the last of them 8 * n")
    if weight.numel() and not -8 <= int(weight.min()) <= int(weight.max()) <= 7:
        refuse(operator, "weight", f"from {int(weight.min())} to {int(weight.max())}", "must be from -8 to 7")
    return packed(weight.to(torch.int8), INT4_IN_INT32)


# --- parts ------------------------------------------------------------------------------------------------------------


def _of_weight(operator: str, name: str, numbers: Tensor, k: int, n: int, group: int) -> Tensor:
    """Scales or offsets of a weight [K, N], in float32, of a shape that broadcasts to it."""
    if numbers.numel() == 1:
        return numbers.float().reshape(())
    if group:
        if group < 0:
            refuse(operator, "antiquant_group_size", group, "must be 0 or positive")
        check_shape(operator, name, numbers, [-(-k // group), n], "the groups and columns of weight")
        return numbers.float().repeat_interleave(group, 0)[:k]
    return of_columns(operator, name, numbers, n)


def of_columns(operator: str, name: str, numbers: Tensor, n: int) -> Tensor:
    """Numbers in float32, one for each of ``n`` columns or for all."""
    if numbers.numel() not in (1, n) or numbers.shape[-1:] not in ((n,), (1,), ()):
        refuse(operator, name, f"of shape {list(numbers.shape)}", f"must have 1 number, or {n}, as there are columns")
    return numbers.float().reshape(-1)
