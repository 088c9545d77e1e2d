"""npu_grouped_matmul of quantised x and weight, and npu_add_quant_gmm_: a product for each group, times its scales.

| group_type | x | weight | per_token_scale | scale |
| --- | --- | --- | --- | --- |
| 0 (rows) | [M, K], cut by group_list | [E, K, N] | [M], or [E] with a scale of [E] | [E, N] or [E] |
| | | | MX: [M, K / 64, 2] | MX: [E, K / 64, N, 2] |
| | | | blocks: [M, K / 128] | blocks: [E, K / 128, N / 128] |
| 2 (columns) | [M, K], cut by group_list | [K, N], cut alike | [E] | [E], or [E, N] |
| | | | MX: [M, K / 64 + E, 2] | MX: [K / 64 + E, N, 2] |

The scales of MX of group e begin at (columns before it) / 64 + e, where npu_grouped_dynamic_mx_quant has them. weight
and scale may be lists with one for each group. Documents: torch_npu.npu_grouped_matmul, npu_add_quant_gmm_.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from descend.npu.composed.arithmetic import check_choice, check_dtype, check_shape
from descend.npu.composed.quantised.formats import Number
from descend.npu.composed.quantised.groups import group_ends, spans
from descend.npu.composed.quantised.mx_quant import BLOCK
from descend.npu.composed.quantised.quant_matmul import one_scale_each, output_dtype_of, scaled
from descend.npu.composed.quantised.scaled_products import (
    Factor,
    check_scale_dtype,
    factor,
    is_mx,
    mx_product,
)
from descend.npu.composed.refusal import refuse

OPERATOR = "npu_grouped_matmul"
List = Sequence[Tensor]


def grouped(
    x: List, weight: List, bias: List | None, scale: List | None, per_token_scale: List | None, ends: list[int] | None,
    kind: int, split: int, output_dtype: Number, x_dtype: Number, weight_dtype: Number, scale_dtype: Number,
    per_token_scale_dtype: Number,
) -> list[Tensor]:  # fmt: skip
    """npu_grouped_matmul where x is quantised. ``ends`` are those of the groups."""
    if len(x) != 1 or not weight or ends is None or kind not in (0, 2):
        got = f"{len(x)} tensors with group_type {kind}"
        refuse(OPERATOR, "x", got, "must be one tensor with a group_list and group_type 0 or 2 where it is quantised")
    if not scale:
        refuse(OPERATOR, "scale", scale, "must be given where x is quantised")
    left = factor(OPERATOR, "x", x[0], x_dtype)
    if left.numbers.dim() != 2:
        refuse(OPERATOR, "x", f"of shape {list(left.shape)}", "must have 2 dimensions")
    token = per_token_scale[0] if per_token_scale else None
    mx = is_mx(OPERATOR, scale[0], scale_dtype) or is_mx(OPERATOR, token, per_token_scale_dtype)
    if output_dtype is None and x[0].dtype != torch.int8:
        refuse(OPERATOR, "output_dtype", None, f"must be given for {left.held.name}")
    to = output_dtype_of(OPERATOR, output_dtype)
    if kind == 2:
        results = _columns(left, weight, bias, scale, token, ends, to, mx, weight_dtype)
        return results if split < 2 else [torch.stack(results)]
    return _rows(left, weight, bias, scale, token, ends, to, mx, weight_dtype, split)


def _rows(
    left: Factor, weight: List, bias: List | None, scale: List, token: Tensor | None, ends: list[int],
    to: torch.dtype, mx: bool, weight_dtype: Number, split: int,
) -> list[Tensor]:  # fmt: skip
    if len(weight) == 1 and weight[0].dim() == 3:
        whole = factor(OPERATOR, "weight", weight[0], weight_dtype)
        rights = [Factor(each, whole.held) for each in whole.numbers.unbind()]
    else:
        rights = [factor(OPERATOR, f"weight[{i}]", each, weight_dtype) for i, each in enumerate(weight)]
    count = len(rights)
    if len(ends) != count or ends[-1] > left.shape[0]:
        refuse(OPERATOR, "group_list", ends, f"must have {count} groups, within {left.shape[0]} rows of x")
    scales = _for_groups("scale", scale, count)
    biases = _for_groups("bias", bias, count) if bias else [None] * count
    by_group = token is not None and not mx and token.numel() == count and all(each.numel() == 1 for each in scales)
    results = []
    for g, (begin, end) in enumerate(spans(ends)):
        own = token
        if token is not None and (by_group or token.numel() > 1):
            size = count if by_group else left.shape[0]
            if token.shape[0] != size:
                refuse(OPERATOR, "per_token_scale", f"of shape {list(token.shape)}", f"must begin with {size}")
            own = token[g] if by_group else token[begin:end]
        part = left.part(0, begin, end)
        results.append(scaled(OPERATOR, part, rights[g], scales[g], own, biases[g], to, mx))
    if split < 2:
        return results
    rest = left.shape[0] - ends[-1]
    return [torch.cat([*results, results[0].new_zeros(rest, results[0].shape[1])])]


def _columns(
    left: Factor, weight: List, bias: List | None, scale: List, token: Tensor | None, ends: list[int],
    to: torch.dtype, mx: bool, weight_dtype: Number,
) -> list[Tensor]:  # fmt: skip
    if len(weight) != 1 or len(scale) != 1 or token is None:
        refuse(OPERATOR, "weight, scale or per_token_scale", "several or none", "must be one each for group_type 2")
    if bias:
        refuse(OPERATOR, "bias", "given", "must be None for group_type 2")
    right = factor(OPERATOR, "weight", weight[0], weight_dtype)
    _check_columns(OPERATOR, left, right, ends)
    if mx:
        products = _mx_columns(OPERATOR, left, right, token, scale[0], ends)
        return [each.to(to) for each in products]
    count = len(ends)
    if token.numel() != count:
        refuse(OPERATOR, "per_token_scale", f"of shape {list(token.shape)}", f"must have {count} numbers, one a group")
    numbers = scale[0].reshape(count, -1) if scale[0].numel() % count == 0 else scale[0]
    scales, tokens = _for_groups("scale", [numbers], count), token.reshape(-1)
    return [
        scaled(
            OPERATOR, left.part(1, begin, end), right.part(0, begin, end), scales[g], tokens[g], None, to, mx=False
        )
        for g, (begin, end) in enumerate(spans(ends))
    ]  # fmt: skip


def _check_columns(operator: str, left: Factor, right: Factor, ends: list[int]) -> None:
    if right.numbers.dim() != 2 or left.numbers.dim() != 2 or left.shape[1] != right.shape[0]:
        shapes = f"{list(left.shape)} and {list(right.shape)}"
        refuse(operator, "the factors", f"of shape {shapes}", "must be [M, K] and [K, N]")
    if not ends or ends[-1] > left.shape[1]:
        refuse(operator, "group_list", ends, f"must cut {left.shape[1]} columns")


def _mx_columns(
    operator: str, left: Factor, right: Factor, left_scale: Tensor, right_scale: Tensor, ends: list[int]
) -> list[Tensor]:
    count = left.shape[1] // (2 * BLOCK) + len(ends)
    for name, scale, shape in (
        ("the left factor's scale", left_scale, [left.shape[0], count, 2]),
        ("the right factor's scale", right_scale, [count, right.shape[1], 2]),
    ):
        check_scale_dtype(operator, name, scale)
        check_shape(operator, name, scale, shape, "blocks of 32 along K in pairs, and a pair more for each group")
    results = []
    for g, (begin, end) in enumerate(spans(ends)):
        first, size = begin // (2 * BLOCK) + g, -(-(end - begin) // (2 * BLOCK))
        parts = left.part(1, begin, end), right.part(0, begin, end)
        scales = left_scale.narrow(1, first, size), right_scale.narrow(0, first, size)
        results.append(mx_product(operator, *parts, *scales))
    return results


def _for_groups(name: str, tensors: List, count: int) -> list[Tensor]:
    """One for each group, from a list of so many, or from one tensor with a dimension for the groups."""
    if len(tensors) == 1 and (count > 1 or tensors[0].shape[:1] == (1,)):
        if not tensors[0].dim() or tensors[0].shape[0] != count:
            refuse(OPERATOR, name, f"of shape {list(tensors[0].shape)}", f"must begin with {count}, the groups")
        return list(tensors[0].unbind())
    if len(tensors) != count:
        refuse(OPERATOR, name, f"{len(tensors)} tensors", f"must be for {count} groups")
    return list(tensors)


def npu_add_quant_gmm_(
    input: Tensor,
    x1: Tensor,
    x2: Tensor,
    x2_scale: Tensor,
    group_list: Tensor,
    *,
    x1_scale: Tensor | None = None,
    group_list_type: int | None = 0,
    group_sizes: Sequence[int] | None = None,
    x1_dtype: Number = None,
    x2_dtype: Number = None,
    x1_scale_dtype: Number = None,
    x2_scale_dtype: Number = None,
) -> Tensor:
    """Adds a product for each group to ``input``, float32 [E, M, N]: columns of x1 [M, K] and rows of x2 [K, N]."""
    operator = "npu_add_quant_gmm_"
    left, right = factor(operator, "x1", x1, x1_dtype), factor(operator, "x2", x2, x2_dtype)
    check_dtype(operator, "input", input, torch.float32)
    check_choice(operator, "group_list_type", group_list_type or 0, 0, 1)
    if group_sizes is not None:
        refuse(operator, "group_sizes", list(group_sizes), "must be None")
    if x1_scale is None:
        refuse(operator, "x1_scale", None, "must be given")
    ends = group_ends(operator, "group_list", group_list, left.shape[-1], sizes=group_list_type == 1, what="columns")
    _check_columns(operator, left, right, ends)
    check_shape(operator, "input", input, [len(ends), left.shape[0], right.shape[1]], "the groups, x1 and x2")
    if is_mx(operator, x2_scale, x2_scale_dtype) or is_mx(operator, x1_scale, x1_scale_dtype):
        for own, y in zip(input, _mx_columns(operator, left, right, x1_scale, x2_scale, ends), strict=True):
            own.add_(y)
        return input
    for name, each in (("x1_scale", x1_scale), ("x2_scale", x2_scale)):
        if each.shape[:1] != (len(ends),):
            refuse(operator, name, f"of shape {list(each.shape)}", f"must begin with {len(ends)}, the groups")
    for g, (begin, end) in enumerate(spans(ends)):
        parts = left.part(1, begin, end), right.part(0, begin, end)
        input[g].add_(one_scale_each(operator, *parts, x1_scale[g], x2_scale[g]))
    return input


def npu_add_quant_gmm(
    input: Tensor, x1: Tensor, x2: Tensor, x2_scale: Tensor, group_list: Tensor, **options: Any
) -> Tensor:
    """`npu_add_quant_gmm_` of a copy of ``input``."""
    return npu_add_quant_gmm_(input.clone(), x1, x2, x2_scale, group_list, **options)
