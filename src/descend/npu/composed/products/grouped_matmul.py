"""npu_grouped_matmul: y[i] = x[i] @ weight[i] + bias[i], for each group i. Quantised: `quant_grouped_matmul`.

| group_type | x | weight | y |
| --- | --- | --- | --- |
| -1 (no groups) | a list [..., K] | as many [K, N] | a list |
| 0 (rows, M) | [M, K], cut by group_list; or a list | [E, K, N], or a list of [K, N] | a list, or one below another |
| 2 (columns, K) | [M, K], cut by group_list | [K, N], cut alike | a list, or [E, M, N] |

split_item 0 and 1 give a list, 2 and 3 one tensor. Rows that belong to no group are 0. Documents:
torch_npu.npu_grouped_matmul; aclnnGroupedMatmul(V4, V5).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from descend.npu.composed.arithmetic import INTEGERS, check_alike, check_float, wide
from descend.npu.composed.quantised import quant_grouped_matmul
from descend.npu.composed.quantised.scaled_products import QUANTISED
from descend.npu.composed.refusal import refuse, refuse_quantised

OPERATOR = "npu_grouped_matmul"
List = Sequence[Tensor]


def npu_grouped_matmul(
    x: List,
    weight: List,
    *,
    bias: List | None = None,
    scale: List | None = None,
    offset: List | None = None,
    antiquant_scale: List | None = None,
    antiquant_offset: List | None = None,
    per_token_scale: List | None = None,
    group_list: Tensor | Sequence[int] | None = None,
    activation_input: List | None = None,
    activation_quant_scale: List | None = None,
    activation_quant_offset: List | None = None,
    split_item: int | None = 0,
    group_type: int | None = None,
    group_list_type: int | None = 0,
    act_type: int | None = 0,
    tuning_config: Sequence[int] | None = None,
    output_dtype: int | torch.dtype | None = None,
    x_dtype: int | None = None,
    weight_dtype: int | None = None,
    scale_dtype: int | None = None,
    per_token_scale_dtype: int | None = None,
) -> list[Tensor]:
    """See the module. ``group_list`` has the ends of the groups, or for group_list_type 1 their sizes."""
    refuse_quantised(
        OPERATOR, offset=offset, antiquant_scale=antiquant_scale, antiquant_offset=antiquant_offset,
        activation_input=activation_input, activation_quant_scale=activation_quant_scale,
        activation_quant_offset=activation_quant_offset,
    )  # fmt: skip
    if scale or (x and x[0].dtype in QUANTISED):
        if act_type:
            refuse(OPERATOR, "act_type", act_type, "must be 0: an activation is not served")
        return quant_grouped_matmul.grouped(
            x, weight, bias, scale, per_token_scale, _ends(group_list, group_list_type or 0),
            _kind(x, group_list, group_type), split_item or 0, output_dtype, x_dtype, weight_dtype, scale_dtype,
            per_token_scale_dtype,
        )  # fmt: skip
    refuse_quantised(OPERATOR, per_token_scale=per_token_scale)
    dtypes = {"x_dtype": x_dtype, "weight_dtype": weight_dtype, "scale_dtype": scale_dtype}
    for name, number in {**dtypes, "per_token_scale_dtype": per_token_scale_dtype}.items():
        if number is not None:
            refuse(OPERATOR, name, number, "must be None where x is not quantised")
    split = split_item or 0
    _check(x, weight, bias, split, act_type or 0)
    ends = _ends(group_list, group_list_type or 0)
    kind = _kind(x, group_list, group_type)
    dtype = x[0].dtype if output_dtype is None else _output_dtype(output_dtype, x[0].dtype)
    if kind == 2:
        return _columns(x, weight, bias, ends, split, dtype)
    weights = list(weight[0].unbind()) if len(weight) == 1 and weight[0].dim() == 3 else list(weight)
    rest = 0
    if len(x) == 1 and ends is not None:
        if len(ends) != len(weights):
            refuse(
                OPERATOR,
                "group_list",
                f"of length {len(ends)}",
                f"must tell a group for each of {len(weights)} weights",
            )
        if ends and ends[-1] > x[0].shape[0]:
            refuse(OPERATOR, "group_list", ends, f"must end within the {x[0].shape[0]} rows of x")
        rest = x[0].shape[0] - (ends[-1] if ends else 0)
        parts = [x[0][begin:end] for begin, end in zip([0, *ends], ends, strict=False)]
    else:
        parts = list(x)
    biases = _biases(bias, len(weights))
    if len(parts) != len(weights):
        refuse(
            OPERATOR,
            "x",
            f"a list of {len(parts)}",
            f"must have a tensor for each of {len(weights)} weights, or a group_list",
        )
    results = [_one(i, *factors) for i, factors in enumerate(zip(parts, weights, biases, strict=True))]
    if split < 2:
        return [result.to(dtype) for result in results]
    if any(result.dim() != 2 or result.shape[1] != results[0].shape[1] for result in results):
        refuse(OPERATOR, "split_item", split, "must be 0 or 1 unless all results are matrices of one N")
    if rest:
        results.append(results[0].new_zeros(rest, results[0].shape[1]))
    return [torch.cat(results).to(dtype)]


def npu_grouped_matmul_add_(
    input: Tensor,
    x: Tensor,
    weight: Tensor,
    group_list: Tensor,
    *,
    transpose_x: bool = True,
    transpose_weight: bool = False,
    group_type: int = 2,
    group_list_type: int | None = 0,
) -> Tensor:
    """Adds to ``input``, float32 [E, K, N] or [E * K, N], a product for each group: x[i].T @ weight[i].

    x is [M, K], weight [M, N], and group_list cuts their rows. So gradients of weights are added up.
    """
    operator = "npu_grouped_matmul_add_"
    for name, given, only in (
        ("transpose_x", transpose_x, True),
        ("transpose_weight", transpose_weight, False),
        ("group_type", group_type, 2),
    ):
        if given != only:
            refuse(operator, name, given, f"must be {only}")
    check_alike(operator, "x", x, weight=weight)
    check_float(operator, input=input)
    for name, tensor in (("x", x), ("weight", weight)):
        if tensor.dim() != 2:
            refuse(operator, name, f"of shape {list(tensor.shape)}", "must have 2 dimensions")
    options = {"group_list": group_list, "group_list_type": group_list_type, "group_type": 2, "split_item": 3}
    (products,) = npu_grouped_matmul([wide(x).T], [wide(weight)], **options)  # type: ignore[arg-type]
    if input.numel() != products.numel() or input.shape[-1] != products.shape[-1]:
        refuse(
            operator, "input", f"of shape {list(input.shape)}", f"must be of shape {list(products.shape)}, or its rows"
        )
    return input.add_(products.view(input.shape))


def npu_grouped_matmul_add(input: Tensor, x: Tensor, weight: Tensor, group_list: Tensor, **options: Any) -> Tensor:
    """`npu_grouped_matmul_add_` of a copy of ``input``."""
    return npu_grouped_matmul_add_(input.clone(), x, weight, group_list, **options)


def of_numbers(*, group_list: Sequence[int] | None, group_type: int | None = None, **call: Any) -> list[Tensor]:
    """aclnnGroupedMatmul, which has no group_type and groups rows, and its version 2: group_list is an array."""
    ends = torch.tensor(group_list, dtype=torch.int64) if group_list else None
    kind = group_type if group_type is not None else -1 if ends is None else 0
    return npu_grouped_matmul(group_list=ends, group_type=kind, **call)


def check_call(
    *, x: List, weight: List, bias: List | None, group_list: Tensor | Sequence[int] | None, split_item: int,
    out: List, group_type: int | None = None, group_list_type: int = 0, act_type: int = 0,
    tuning_config: Sequence[int] | None = None, **quantised: List | None,
) -> None:  # fmt: skip
    """Refuses what the aclnn functions do not compute. What depends on the numbers in group_list is checked later."""
    refuse_quantised(OPERATOR, **quantised)
    _check(x, weight, bias, split_item, act_type)
    _check_ends(group_list, group_list_type)
    given = 0 if group_list is None else len(group_list)
    kind = _kind(x, None, group_type if group_type is not None else 0 if given else -1)
    if kind == 2:
        shapes = [[x[0].shape[0], weight[0].shape[-1]]] * given
        joined = [given, *shapes[0]] if given else None
    else:
        count = len(weight) if len(weight) > 1 or weight[0].dim() == 2 else weight[0].shape[0]
        rows = [list(tensor.shape[:-1]) for tensor in x] if len(x) == count else [[-1]] * count
        shapes = [[*each, weight[i % len(weight)].shape[-1]] for i, each in enumerate(rows)]
        joined = [sum(tensor.shape[0] for tensor in x), shapes[0][-1]] if shapes else None
    expected = [joined] if split_item > 1 else shapes
    if len(out) != len(expected):
        refuse(OPERATOR, "out", f"a list of {len(out)}", f"must have {len(expected)} tensors")
    for i, (tensor, shape) in enumerate(zip(out, expected, strict=True)):
        if shape and not _has_shape(tensor, shape):
            refuse(OPERATOR, f"out[{i}]", f"of shape {list(tensor.shape)}", f"must have {shape}")
        if tensor.dtype != x[0].dtype:
            refuse(OPERATOR, f"out[{i}]", tensor.dtype, f"must have the dtype of x, {x[0].dtype}")


def _has_shape(tensor: Tensor, shape: list[int]) -> bool:
    """-1 stands for any size."""
    return tensor.dim() == len(shape) and all(n in (-1, m) for n, m in zip(shape, tensor.shape, strict=True))


def _columns(
    x: List, weight: List, bias: List | None, ends: list[int] | None, split: int, dtype: torch.dtype
) -> list[Tensor]:
    if len(x) != 1 or len(weight) != 1 or x[0].dim() != 2 or weight[0].dim() != 2:
        refuse(OPERATOR, "x or weight", "several tensors or not a matrix", "must be one matrix for group_type 2")
    if bias:
        refuse(OPERATOR, "bias", "given", "must be None for group_type 2")
    left, right = wide(x[0]), wide(weight[0])
    if ends is None or left.shape[1] != right.shape[0] or (ends and ends[-1] > left.shape[1]):
        shapes = f"{list(x[0].shape)} and {list(weight[0].shape)}"
        refuse(OPERATOR, "group_list", ends, f"must cut the columns of x and the rows of weight, {shapes}")
    cuts = zip([0, *ends], ends, strict=False)
    results = [(left[:, begin:end] @ right[begin:end]).to(dtype) for begin, end in cuts]
    if split < 2:
        return results
    shape = (0, left.shape[0], right.shape[1])
    return [torch.stack(results) if results else left.new_empty(shape, dtype=dtype)]


def _one(index: int, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    if weight.dim() != 2 or x.shape[-1] != weight.shape[0]:
        shape = f"must have {x.shape[-1]} rows, as x of shape {list(x.shape)} has columns"
        refuse(OPERATOR, f"weight of group {index}", f"of shape {list(weight.shape)}", shape)
    product = wide(x) @ wide(weight)
    if bias is None:
        return product
    if bias.shape != weight.shape[1:]:
        refuse(
            OPERATOR, f"bias of group {index}", f"of shape {list(bias.shape)}", f"must be of shape [{weight.shape[1]}]"
        )
    return product + bias.to(product.dtype)


def _biases(bias: List | None, count: int) -> list[Tensor | None]:
    if not bias:
        return [None] * count
    each = list(bias[0].unbind()) if len(bias) == 1 and bias[0].dim() == 2 else list(bias)
    if len(each) != count:
        refuse(OPERATOR, "bias", f"for {len(each)} groups", f"must be for {count}, as weight")
    return list(each)


def _check(x: List, weight: List, bias: List | None, split: int, act_type: int) -> None:
    if act_type:
        refuse(OPERATOR, "act_type", act_type, "must be 0: an activation is not served")
    if split not in (0, 1, 2, 3):
        refuse(OPERATOR, "split_item", split, "must be 0, 1, 2 or 3")
    if not x or not weight:
        refuse(OPERATOR, "x or weight", "an empty list", "must hold a tensor at least")
    for name, tensors in (("x", x), ("weight", weight), ("bias", bias or ())):
        for tensor in tensors:
            check_float(OPERATOR, **{name: tensor})
            if name != "bias" and (tensor.dtype != x[0].dtype or tensor.dim() < 2):
                got = f"of shape {list(tensor.shape)} and {tensor.dtype}"
                refuse(OPERATOR, name, got, f"must have 2 dimensions at least, and the dtype of x, {x[0].dtype}")


def _kind(x: List, group_list: Tensor | Sequence[int] | None, group_type: int | None) -> int:
    """group_type. If it is None: rows (0) if group_list is a list of ends, no groups (-1) if there are several x."""
    if isinstance(group_list, Tensor) or group_list is None:
        if group_type not in (-1, 0, 2):
            refuse(OPERATOR, "group_type", group_type, "must be -1, 0 or 2")
        return group_type
    if group_type is not None:
        refuse(OPERATOR, "group_type", group_type, "must be None where group_list is a list of numbers")
    return 0


def _ends(group_list: Tensor | Sequence[int] | None, kind: int) -> list[int] | None:
    if group_list is None or (not isinstance(group_list, Tensor) and not group_list):
        return None
    _check_ends(group_list, kind)
    numbers = [int(number) for number in (group_list.tolist() if isinstance(group_list, Tensor) else group_list)]
    ends = numbers
    if kind == 1:
        ends = [sum(numbers[: i + 1]) for i in range(len(numbers))]
    if any(end < begin for begin, end in zip([0, *ends], ends, strict=False)):
        refuse(OPERATOR, "group_list", numbers, "must give no group fewer than 0 rows")
    return ends


def _check_ends(group_list: Tensor | Sequence[int] | None, kind: int) -> None:
    if isinstance(group_list, Tensor) and (group_list.dim() != 1 or group_list.dtype not in INTEGERS):
        refuse(
            OPERATOR, "group_list", f"of shape {list(group_list.shape)} and {group_list.dtype}", "must be [E] of int64"
        )
    if kind not in (0, 1):
        refuse(OPERATOR, "group_list_type", kind, "must be 0 or 1")


def _output_dtype(given: int | torch.dtype, dtype: torch.dtype) -> torch.dtype:
    numbers = {5: torch.float16, 6: torch.float32, 7: torch.float64, 15: torch.bfloat16}
    wanted = given if isinstance(given, torch.dtype) else numbers.get(given)
    if wanted is None or wanted not in numbers.values():
        refuse(OPERATOR, "output_dtype", given, f"must be a floating dtype, such as that of x, {dtype}")
    return wanted
