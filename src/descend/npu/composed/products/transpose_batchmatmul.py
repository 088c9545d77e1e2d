"""npu_transpose_batchmatmul and npu_transpose_quant_batchmatmul: products whose batches lie between rows and columns.

    y[m, b, n] = (x1[b] @ x2[b])[m, n]

perm_x1 and perm_x2 say where x1 and x2 have their batches, rows and columns: [1, 0, 2] for [M, B, K].
Documents: torch_npu.npu_transpose_batchmatmul, npu_transpose_quant_batchmatmul.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from descend.npu.composed.arithmetic import check_dtype, check_float, check_shape, wide
from descend.npu.composed.quantised.formats import E4M3, E5M2, HIF8, INT8, Number, float_dtype, rounded
from descend.npu.composed.quantised.quant_matmul import scaled
from descend.npu.composed.quantised.scaled_products import Factor, factor, from_params, is_mx
from descend.npu.composed.refusal import refuse

BATCHES_FIRST, ROWS_FIRST, COLUMNS_SECOND = [0, 1, 2], [1, 0, 2], [0, 2, 1]
_HIF8_NUMBER = 290


def npu_transpose_batchmatmul(
    input: Tensor,
    weight: Tensor,
    *,
    bias: Tensor | None = None,
    scale: Tensor | None = None,
    perm_x1: Sequence[int] | None = None,
    perm_x2: Sequence[int] | None = None,
    perm_y: Sequence[int] | None = None,
    batch_split_factor: int | None = 1,
) -> Tensor:
    """[M, B, N] in the dtype of ``input``, rounded once; of F parts [F, M, B * N / F].

    With ``scale`` [B * N], from npu_trans_quant_param, it is [M, 1, B * N] in int8.
    """
    operator = "npu_transpose_batchmatmul"
    check_float(operator, input=input)
    check_dtype(operator, "weight", weight, input.dtype)
    _check_perms(operator, perm_x1, perm_x2, perm_y, (BATCHES_FIRST, ROWS_FIRST))
    left, right = _permuted(operator, "input", input, perm_x1), _permuted(operator, "weight", weight, perm_x2)
    _check_fit(operator, "weight", left, right)
    if bias is not None:
        refuse(operator, "bias", "given", "must be None")
    y = (wide(left) @ wide(right)).transpose(0, 1)
    if scale is None:
        return _in_parts(operator, y.to(input.dtype), batch_split_factor)
    check_dtype(operator, "input", input, torch.float16)
    check_dtype(operator, "scale", scale, torch.int64, torch.uint64)
    check_shape(operator, "scale", scale, (y.shape[1] * y.shape[2],), "batches and columns")
    if batch_split_factor not in (1, None):
        refuse(operator, "batch_split_factor", batch_split_factor, "must be 1 with scale")
    factors, places = from_params(scale.view(torch.int64))
    return rounded(y.flatten(1).unsqueeze(1) * factors + places, INT8)


def npu_transpose_quant_batchmatmul(
    x1: Tensor,
    x2: Tensor,
    dtype: Number,
    *,
    bias: Tensor | None = None,
    x1_scale: Tensor | None = None,
    x2_scale: Tensor | None = None,
    group_sizes: Sequence[int] | None = None,
    perm_x1: Sequence[int] | None = None,
    perm_x2: Sequence[int] | None = None,
    perm_y: Sequence[int] | None = None,
    batch_split_factor: int | None = 1,
    x1_dtype: Number = None,
    x2_dtype: Number = None,
) -> Tensor:
    """[M, B, N] in float16, bfloat16 or hifloat8. ``x1`` is [M, B, K], ``x2`` [B, K, N], or [B, N, K] by perm_x2.

    Scales are [M] or 1 number, and [N]; those of MX are [M, B, K / 64, 2] and [B, K / 64, N, 2], turned as x2 is.
    """
    operator = "npu_transpose_quant_batchmatmul"
    _check_perms(operator, perm_x1, perm_x2, perm_y, (ROWS_FIRST,))
    if bias is not None:
        refuse(operator, "bias", "given", "must be None")
    if batch_split_factor not in (1, None):
        refuse(operator, "batch_split_factor", batch_split_factor, "must be 1")
    left, right = factor(operator, "x1", x1, x1_dtype), factor(operator, "x2", x2, x2_dtype)
    for name, each in (("x1", left), ("x2", right)):
        if each.held not in (E4M3, E5M2, HIF8):
            refuse(operator, name, each.held.name, "must be float8_e4m3fn, float8_e5m2 or hifloat8")
    left = Factor(_permuted(operator, "x1", left.numbers, perm_x1), left.held)
    right = Factor(_permuted(operator, "x2", right.numbers, perm_x2), right.held)
    _check_fit(operator, "x2", left.numbers, right.numbers)
    if x2_scale is None:
        refuse(operator, "x2_scale", None, "must be given")
    mx = is_mx(operator, x2_scale, None) or is_mx(operator, x1_scale, None)
    sizes = list(group_sizes or ())
    if sizes and (not mx or sizes not in ([0, 0, 32], [0, 1, 32], [1, 0, 32], [1, 1, 32])):
        refuse(operator, "group_sizes", sizes, "must be None, or [1, 1, 32] with scales of float8_e8m0fnu")
    if mx:
        for name, given in (("x1_scale", x1_scale), ("x2_scale", x2_scale)):
            if given is None or given.dim() != 4:
                got = None if given is None else f"of shape {list(given.shape)}"
                refuse(operator, name, got, "must have 4 dimensions with scales of float8_e8m0fnu")
        assert x1_scale is not None
        x1_scale = x1_scale.transpose(0, 1)
        x2_scale = x2_scale.transpose(1, 2) if _is(perm_x2, COLUMNS_SECOND) else x2_scale
    to_hif8 = dtype == _HIF8_NUMBER
    to = torch.float32 if to_hif8 else float_dtype(operator, "dtype", dtype)
    y = scaled(operator, left, right, x2_scale, x1_scale, None, to, mx).transpose(0, 1).contiguous()
    return rounded(y, HIF8) if to_hif8 else y


# --- parts -----------------------------------------------------------------------------------------------------------


def _is(perm: Sequence[int] | None, wanted: list[int]) -> bool:
    return perm is not None and list(perm) == wanted


def _check_perms(
    operator: str,
    perm_x1: Sequence[int] | None,
    perm_x2: Sequence[int] | None,
    perm_y: Sequence[int] | None,
    served: Sequence[list[int]],
) -> None:
    """Refuses other orders than the documents have. Without perm_x1 it is [0, 1, 2]."""
    for name, perm, allowed in (
        ("perm_x1", perm_x1 or BATCHES_FIRST, served),
        ("perm_x2", perm_x2 or BATCHES_FIRST, (BATCHES_FIRST, COLUMNS_SECOND)),
        ("perm_y", perm_y or ROWS_FIRST, (ROWS_FIRST,)),
    ):
        if list(perm) not in allowed:
            refuse(operator, name, list(perm), f"must be {' or '.join(map(str, allowed))}")


def _permuted(operator: str, name: str, tensor: Tensor, perm: Sequence[int] | None) -> Tensor:
    if tensor.dim() != 3:
        refuse(operator, name, f"of shape {list(tensor.shape)}", "must have 3 dimensions")
    return tensor.permute(list(perm or BATCHES_FIRST))


def _check_fit(operator: str, name: str, left: Tensor, right: Tensor) -> None:
    if left.shape[0] != right.shape[0] or left.shape[2] != right.shape[1]:
        rule = f"must have {left.shape[0]} batches of {left.shape[2]} rows, as the left factor has batches and columns"
        refuse(operator, name, f"of shape {list(right.shape)} once permuted", rule)


def _in_parts(operator: str, y: Tensor, parts: int | None) -> Tensor:
    if parts in (1, None):
        return y.contiguous()
    rows, batches, columns = y.shape
    assert parts is not None
    if parts < 1 or batches * columns % parts:
        refuse(operator, "batch_split_factor", parts, f"must divide the {batches * columns} numbers of a row")
    return y.reshape(rows, parts, batches * columns // parts).transpose(0, 1).contiguous()
