"""Products with weights alone quantised, weights of int4 packed for them, and products with what follows them.

    npu_weight_quant_batchmatmul   y = x @ ((weight + antiquant_offset) * antiquant_scale) + bias
                                   y = round(y * quant_scale + quant_offset), in int8, if quant_scale is given
    npu_fused_matmul               y = x1 @ x2 + bias, then + x3, * x3, relu, gelu_erf or gelu_tanh

Documents: torch_npu.npu_weight_quant_batchmatmul, npu_convert_weight_to_int4pack; aclnnFusedMatmul.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from descend.npu.composed.arithmetic import check_dtype, check_float, check_shape, wide
from descend.npu.composed.formats import INT4_IN_INT32, INT8, Number, packed, rounded
from descend.npu.composed.refusal import refuse
from descend.npu.composed.scaled_products import factor, from_params

HALVES = (torch.float16, torch.bfloat16)
AFTER = ("", "16cast32", "add", "mul", "relu", "gelu_erf", "gelu_tanh")


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
    k, n = numbers.shape[-2:]
    check_dtype(operator, "antiquant_scale", antiquant_scale, *HALVES, torch.float32)
    if antiquant_offset is not None:
        check_dtype(operator, "antiquant_offset", antiquant_offset, *HALVES, torch.float32)
        numbers = numbers + _of_weight(operator, "antiquant_offset", antiquant_offset, k, n, antiquant_group_size)
    numbers = numbers * _of_weight(operator, "antiquant_scale", antiquant_scale, k, n, antiquant_group_size)
    y = x.float() @ numbers
    if bias is not None:
        check_dtype(operator, "bias", bias, *HALVES, torch.float32)
        y = y + _of_columns(operator, "bias", bias, n)
    if quant_scale is None:
        if quant_offset is not None:
            refuse(operator, "quant_offset", "given", "goes with quant_scale")
        return y.to(x.dtype)
    check_dtype(operator, "quant_scale", quant_scale, torch.float32, torch.int64)
    if quant_scale.dtype == torch.int64:
        if quant_offset is not None:
            refuse(operator, "quant_offset", "given", "must be None: a quant_scale of int64 has it")
        quant_scale, quant_offset = from_params(quant_scale)
    y = y * _of_columns(operator, "quant_scale", quant_scale, n)
    if quant_offset is not None:
        y = y + _of_columns(operator, "quant_offset", quant_offset, n)
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


def npu_fused_matmul(
    x1: Tensor, x2: Tensor, *, bias: Tensor | None = None, x3: Tensor | None = None, fused_op_type: str = ""
) -> Tensor:
    """[..., M, N] in the dtype of ``x1``, or with "16cast32" in float32. Batches broadcast."""
    operator = "npu_fused_matmul"
    check_float(operator, x1=x1, bias=bias, x3=x3)
    check_dtype(operator, "x2", x2, x1.dtype)
    if fused_op_type not in AFTER:
        refuse(operator, "fused_op_type", repr(fused_op_type), f"must be one of {', '.join(map(repr, AFTER))}")
    if x1.dim() < 2 or x2.dim() < 2 or x1.shape[-1] != x2.shape[-2]:
        refuse(operator, "x1 and x2", f"of shapes {list(x1.shape)} and {list(x2.shape)}", "must be matrices that fit")
    if (x3 is not None) != (fused_op_type in ("add", "mul")):
        refuse(operator, "x3", "given" if x3 is not None else None, "goes with fused_op_type 'add' and 'mul'")
    if bias is not None and fused_op_type.startswith("gelu"):
        refuse(operator, "bias", "given", f"must be None with fused_op_type {fused_op_type!r}")
    y = wide(x1) @ wide(x2)
    if bias is not None:
        y = y + _of_columns(operator, "bias", bias, y.shape[-1])
    if x3 is not None:
        check_shape(operator, "x3", x3, y.shape, "x1 @ x2")
        y = y + wide(x3) if fused_op_type == "add" else y * wide(x3)
    elif fused_op_type == "relu":
        y = y.relu()
    elif fused_op_type.startswith("gelu"):
        y = functional.gelu(y, approximate="tanh" if fused_op_type == "gelu_tanh" else "none")
    return y if fused_op_type == "16cast32" else y.to(x1.dtype)


# --- parts ------------------------------------------------------------------------------------------------------------


def _of_weight(operator: str, name: str, numbers: Tensor, k: int, n: int, group: int) -> Tensor:
    """Numbers in float32 that broadcast to [K, N]."""
    if numbers.numel() == 1:
        return numbers.float().reshape(())
    if group:
        if group < 0:
            refuse(operator, "antiquant_group_size", group, "must be 0 or positive")
        check_shape(operator, name, numbers, [-(-k // group), n], "the groups and columns of weight")
        return numbers.float().repeat_interleave(group, 0)[:k]
    return _of_columns(operator, name, numbers, n)


def _of_columns(operator: str, name: str, numbers: Tensor, n: int) -> Tensor:
    if numbers.numel() not in (1, n) or numbers.shape[-1:] not in ((n,), (1,)):
        refuse(operator, name, f"of shape {list(numbers.shape)}", f"must have 1 number, or {n}, as there are columns")
    return numbers.float().reshape(-1)
