"""Activations joined with quantisation, or with a quantised product before them; scales for groups of rows.

    npu_gelu_quant             y = gelu(x) * input_scale + input_offset, or with quant_mode 'dynamic'
                               y = gelu(x) * input_scale / scale,  scale = max |gelu(x) * input_scale| / largest
    npu_group_quant            y = x * scale of the row's group + offset
    npu_quant_matmul_gelu      y = gelu(x1 @ x2 * x2_scale * x1_scale + bias); a bias of int32 comes before the scales
    npu_grouped_matmul_swiglu_quant   act = swiglu(x @ weight of the row's group * weight_scale * x_scale)
                               y = act / scale,  scale = max |act| of a row / 127

All is computed in float32, integers exactly in int32, and rounded once.

Documents: torch_npu.npu_group_quant, npu_quant_matmul_gelu, npu_grouped_matmul_swiglu_quant_v2; aclnnGeluQuant.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from descend.npu.composed.arithmetic import FLOATS_TO_32, check_choice, check_dtype, check_shape, gelu
from descend.npu.composed.quantised.formats import (
    E4M3,
    E5M2,
    HIF8,
    INT4_IN_INT32,
    INT8,
    Number,
    format_of,
    packed,
    rounded,
    scaled_to_fit,
)
from descend.npu.composed.quantised.groups import for_rows, group_ends, spans
from descend.npu.composed.quantised.quant_matmul import scaled
from descend.npu.composed.quantised.quant_swiglu import swiglu
from descend.npu.composed.quantised.scaled_products import factor
from descend.npu.composed.refusal import refuse


def npu_gelu_quant(
    self: Tensor,
    *,
    input_scale: Tensor | None = None,
    input_offset: Tensor | None = None,
    approximate: str = "none",
    quant_mode: str = "dynamic",
    dst_type: Number = None,
    round_mode: str = "rint",
) -> tuple[Tensor, Tensor | None]:
    """GELU of ``self`` [..., N] in ``dst_type``, and with quant_mode 'dynamic' a scale for each row, else None.

    ``input_scale`` and ``input_offset`` have 1 number, or N. With 'dynamic' ``input_offset`` has no effect.
    """
    operator = "npu_gelu_quant"
    check_dtype(operator, "input", self, *FLOATS_TO_32)
    to = INT8 if dst_type is None else format_of(operator, "dst_type", dst_type, (INT8, HIF8, E4M3, E5M2))
    check_choice(operator, "approximate", approximate, "none", "tanh")
    check_choice(operator, "quant_mode", quant_mode, "static", "dynamic")
    check_choice(operator, "round_mode", round_mode, "round" if to is HIF8 else "rint")
    if not self.dim() or not self.shape[-1]:
        refuse(operator, "input", f"of shape {list(self.shape)}", "must have a number in each row")
    for name, given in (("input_scale", input_scale), ("input_offset", input_offset)):
        if given is None:
            continue
        check_dtype(operator, name, given, *FLOATS_TO_32)
        if list(given.shape) not in ([1], [self.shape[-1]]):
            refuse(operator, name, f"of shape {list(given.shape)}", f"must have 1 number, or {self.shape[-1]}")
    if quant_mode == "static" and input_scale is None:
        refuse(operator, "input_scale", None, "must be given with quant_mode 'static'")
    y = gelu(self.float(), approximate)
    if input_scale is not None:
        y = y * input_scale.float()
    if quant_mode == "static":
        return rounded(y if input_offset is None else y + input_offset.float(), to), None
    codes, scale = scaled_to_fit(y, to)
    return codes, scale.squeeze(-1)


def npu_group_quant(
    x: Tensor,
    scale: Tensor,
    group_index: Tensor,
    *,
    offset: Tensor | None = None,
    dst_dtype: torch.dtype | None = None,
) -> Tensor:
    """``x`` [M, N] in int8, or int4 packed in int32. ``scale`` is [G, N], ``group_index`` has the ends of G groups."""
    operator = "npu_group_quant"
    check_dtype(operator, "x", x, *FLOATS_TO_32)
    check_dtype(operator, "scale", scale, *FLOATS_TO_32)
    to = INT8 if dst_dtype is None else format_of(operator, "dst_dtype", dst_dtype, (INT8, INT4_IN_INT32))
    if x.dim() != 2 or x.shape[1] % to.packed:
        refuse(operator, "x", f"of shape {list(x.shape)}", f"must have 2 dimensions, the last of them {to.packed} * n")
    ends = group_ends(operator, "group_index", group_index, len(x), whole=True)
    check_shape(operator, "scale", scale, [len(ends), x.shape[1]], "the groups and columns")
    y = x.float() * for_rows(scale.float(), ends)
    if offset is not None:
        check_dtype(operator, "offset", offset, *FLOATS_TO_32)
        check_shape(operator, "offset", offset, [1], "one number")
        y = y + offset.float()
    return packed(rounded(y, to), to)


def npu_quant_matmul_gelu(
    x1: Tensor,
    x2: Tensor,
    x1_scale: Tensor,
    x2_scale: Tensor,
    *,
    bias: Tensor | None = None,
    approximate: str | None = "gelu_erf",
) -> Tensor:
    """[..., M, N] in bfloat16 if x2_scale or ``bias`` is, else in float16.

    x1 [..., M, K] and x2 [..., K, N] are int8, or int4 packed in int32. x1_scale has 1 number or M, x2_scale 1 or N.
    """
    operator = "npu_quant_matmul_gelu"
    approximate = "gelu_erf" if approximate is None else approximate
    check_choice(operator, "approximate", approximate, "gelu_erf", "gelu_tanh")
    check_dtype(operator, "x1", x1, torch.int8, torch.int32)
    check_dtype(operator, "x2", x2, x1.dtype)
    check_dtype(operator, "x1_scale", x1_scale, torch.float32)
    check_dtype(operator, "x2_scale", x2_scale, torch.float32, torch.bfloat16)
    left, right = factor(operator, "x1", x1, None), factor(operator, "x2", x2, None)
    y = scaled(operator, left, right, x2_scale, x1_scale, bias, torch.float32, False)
    y = gelu(y, "tanh" if approximate == "gelu_tanh" else "none")
    is_bfloat16 = torch.bfloat16 in (x2_scale.dtype, None if bias is None else bias.dtype)
    return y.to(torch.bfloat16 if is_bfloat16 else torch.float16)


def npu_grouped_matmul_swiglu_quant(
    x: Tensor,
    weight: Tensor,
    group_list: Tensor,
    weight_scale: Tensor,
    x_scale: Tensor,
    *,
    bias: Tensor | None = None,
    offset: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """int8 [M, N / 2], a scale for each row, and a 0. ``x`` [M, K] and ``weight`` [G, K, N] are int8.

    ``group_list`` has the ends of G groups of rows, ``weight_scale`` is [G, N], ``x_scale`` [M]. Rows of no group
    are 0.
    """
    operator = "npu_grouped_matmul_swiglu_quant"
    for name, given in (("bias", bias), ("offset", offset)):
        if given is not None:
            refuse(operator, name, "given", "must be None")
    return *_grouped_swiglu(operator, x, weight, group_list, weight_scale, x_scale, False), torch.zeros(())


def npu_grouped_matmul_swiglu_quant_v2(
    x: Tensor, weight: Sequence[Tensor], weight_scale: Sequence[Tensor], x_scale: Tensor, group_list: Tensor, *,
    smooth_scale: Tensor | None = None, weight_assist_matrix: Sequence[Tensor] | None = None,
    bias: Tensor | None = None, dequant_mode: int | None = 0, dequant_dtype: Number = 6, quant_mode: int | None = 0,
    quant_dtype: Number = 1, group_list_type: int | None = 0, tuning_config: Sequence[int] | None = None,
    x_dtype: Number = None, weight_dtype: Number = None, weight_scale_dtype: Number = None,
    x_scale_dtype: Number = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """As `npu_grouped_matmul_swiglu_quant`. With group_list_type 1 ``group_list`` has the sizes of groups."""
    operator = "npu_grouped_matmul_swiglu_quant_v2"
    given = {
        "smooth_scale": smooth_scale, "weight_assist_matrix": weight_assist_matrix, "bias": bias, "x_dtype": x_dtype,
        "weight_dtype": weight_dtype, "weight_scale_dtype": weight_scale_dtype, "x_scale_dtype": x_scale_dtype,
    }  # fmt: skip
    for name, value in given.items():
        if value is not None:
            refuse(operator, name, "given", "must be None: only int8 with scales of rows and columns is served")
    for name, mode in (("dequant_mode", dequant_mode), ("quant_mode", quant_mode)):
        if mode not in (0, None):
            refuse(operator, name, mode, "must be 0: only int8 with scales of rows and columns is served")
    check_choice(operator, "group_list_type", group_list_type or 0, 0, 1)
    for name, tensors in (("weight", weight), ("weight_scale", weight_scale)):
        if len(tensors) != 1:
            refuse(operator, name, f"{len(tensors)} tensors", "must be 1")
    return _grouped_swiglu(operator, x, weight[0], group_list, weight_scale[0], x_scale, group_list_type == 1)


# --- parts ------------------------------------------------------------------------------------------------------------


def _grouped_swiglu(
    operator: str, x: Tensor, weight: Tensor, group_list: Tensor, weight_scale: Tensor, x_scale: Tensor, sizes: bool
) -> tuple[Tensor, Tensor]:
    """int8 [M, N / 2], and a scale for each row. ``sizes``: group_list has the sizes of groups, not their ends."""
    check_dtype(operator, "x", x, torch.int8)
    check_dtype(operator, "weight", weight, torch.int8)
    if x.dim() != 2:
        refuse(operator, "x", f"of shape {list(x.shape)}", "must be of shape [M, K]")
    if weight.dim() != 3 or weight.shape[1] != x.shape[1] or weight.shape[2] % 2 or not weight.shape[2]:
        rule = f"must be of shape [G, {x.shape[1]}, N], N even"
        refuse(operator, "weight", f"of shape {list(weight.shape)}", rule)
    ends = group_ends(operator, "group_list", group_list, len(x), sizes=sizes)
    check_shape(operator, "group_list", group_list, [len(weight)], "the groups of weight")
    check_dtype(operator, "weight_scale", weight_scale, *FLOATS_TO_32)
    check_shape(operator, "weight_scale", weight_scale, [len(weight), weight.shape[2]], "the groups and columns")
    check_dtype(operator, "x_scale", x_scale, torch.float32)
    check_shape(operator, "x_scale", x_scale, [len(x)], "the rows of x")
    y, scales = x.new_zeros(len(x), weight.shape[2] // 2), torch.zeros(len(x))
    for group, (begin, end) in enumerate(spans(ends)):
        product = torch.ops.aten.mm(x[begin:end].int(), weight[group].int()).float()
        gate, up = (product * weight_scale[group].float() * x_scale[begin:end].unsqueeze(1)).chunk(2, -1)
        y[begin:end], scale = scaled_to_fit(swiglu(gate, up), INT8)
        scales[begin:end] = scale.squeeze(1)
    return y, scales
