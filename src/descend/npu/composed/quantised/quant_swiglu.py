"""SwiGLU whose result is quantised, also of integers that a product left, and its gradient in MX formats.

    act = gate * sigmoid(gate) * up         gate and up are halves of x; with activate_left the left one is the gate
    npu_swiglu_quant          y = act * smooth_scales + offsets, or with quant_mode 1 y = act * smooth_scales * scale,
                              scale = largest / max |act * smooth_scales| of a row
    npu_dequant_swiglu_quant  x = x * weight_scale * activation_scale before; y = act / quant_scale + quant_offset, or
                              with quant_mode 1 y = act * quant_scale / scale,
                              scale = max |act * quant_scale| / largest of a row
    ..._mx_quant              as npu_dynamic_mx_quant, of act in the dtype of x
    npu_swiglu_group_quant    y = act * weight * scale in hifloat8, or with quant_mode 3 y = act * weight / scale,
                              scale = max |act * weight| of a group / dst_type_max

All is computed in float32, and rounded to a format once. Rows of no group are 0.

Documents: torch_npu.npu_swiglu_quant, npu_dequant_swiglu_quant; aclnnSwiGluQuantV2, DequantSwigluQuantV2,
SwigluGroupQuant, SwigluGroupQuantGrad; op-plugin's tests of the others.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from descend.npu.composed.arithmetic import FLOATS_TO_32, HALVES, check_choice, check_dtype, check_shape
from descend.npu.composed.quantised.formats import (
    E1M2,
    E2M1,
    E4M3,
    E5M2,
    HIF8,
    INT4,
    INT8,
    Number,
    format_of,
    packed,
    rounded,
    scaled_to_fit,
)
from descend.npu.composed.quantised.groups import for_rows, group_ends, spans
from descend.npu.composed.quantised.mx_quant import along_last, along_last_two
from descend.npu.composed.refusal import refuse

LEAST = 1e-8
"""The least maximum of a group of npu_swiglu_group_quant."""


def npu_swiglu_quant(
    x: Tensor,
    *,
    smooth_scales: Tensor | None = None,
    offsets: Tensor | None = None,
    group_index: Tensor | None = None,
    activate_left: bool = False,
    quant_mode: int = 0,
    group_list_type: int = 0,
    dst_type: torch.dtype | None = None,
) -> tuple[Tensor, Tensor]:
    """SwiGLU of ``x`` [..., 2 N] as int8, or int4 packed in int8, and with quant_mode 1 a factor for each row, else 0.

    smooth_scales and offsets are [G, N] or [G]. ``group_index`` has the ends of G groups of rows, or with
    group_list_type 1 their sizes.
    """
    operator = "npu_swiglu_quant"
    check_dtype(operator, "x", x, *FLOATS_TO_32)
    if dst_type not in (None, torch.int8, torch.quint4x2):
        refuse(operator, "dst_type", dst_type, "must be torch.int8 or torch.quint4x2")
    to = INT4 if dst_type == torch.quint4x2 else INT8
    check_choice(operator, "quant_mode", quant_mode, 0, 1)
    check_choice(operator, "group_list_type", group_list_type, 0, 1)
    act = swiglu(*_halves(operator, x, activate_left, to.packed))
    for name, given in (("smooth_scales", smooth_scales), ("offsets", offsets)):
        if given is not None:
            check_dtype(operator, name, given, *FLOATS_TO_32)
    rows = act.reshape(-1, act.shape[-1])
    groups = _Groups(operator, group_index, len(rows), group_list_type == 1)
    if smooth_scales is not None:
        rows = rows * groups.spread("smooth_scales", smooth_scales.float(), rows.shape[1])
    scale = torch.zeros(len(rows), 1)
    if quant_mode == 0:
        rows = rows if offsets is None else rows + groups.spread("offsets", offsets.float(), rows.shape[1])
    else:
        scale = to.largest / rows.abs().amax(-1, keepdim=True)
        rows = rows * scale
    y = packed(rounded(groups.keep(rows), to), to).view(torch.int8)
    return y.view(*act.shape[:-1], y.shape[-1]), groups.keep(scale).view(act.shape[:-1])


def npu_dequant_swiglu_quant(
    x: Tensor,
    *,
    weight_scale: Tensor | None = None,
    activation_scale: Tensor | None = None,
    bias: Tensor | None = None,
    quant_scale: Tensor | None = None,
    quant_offset: Tensor | None = None,
    group_index: Tensor | None = None,
    activate_left: bool = False,
    quant_mode: int = 0,
    dst_type: Number = None,
    round_mode: int | None = None,
    activate_dim: int | None = None,
    swiglu_mode: int = 0,
    clamp_limit: float = 7.0,
    glu_alpha: float = 1.702,
    glu_bias: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """SwiGLU of ``x`` [..., 2 H], int32 or 16 bits, in ``dst_type``; with quant_mode 1 a scale for each row, else 0.

    weight_scale and bias are [G, 2 H], quant_scale and quant_offset [G, H] or [G], activation_scale has a number for
    each row. ``group_index`` has the sizes of G groups of rows. Integers are added to a bias of int32 before they are
    scaled, others after it.

    swiglu_mode 1 takes the even columns as gate and the odd ones as up, swiglu_mode 2 the halves. Both first cut gate
    off above clamp_limit, and up outside -clamp_limit to clamp_limit. Then
    act = gate * sigmoid(glu_alpha * gate) * (up + glu_bias).
    """
    operator = "npu_dequant_swiglu_quant"
    check_dtype(operator, "x", x, torch.int32, torch.float16, torch.bfloat16)
    to = INT8 if dst_type is None else format_of(operator, "dst_type", dst_type, (INT8, HIF8, E5M2, E4M3, E2M1, E1M2))
    check_choice(operator, "quant_mode", quant_mode, 0, 1)
    check_choice(operator, "swiglu_mode", swiglu_mode, 0, 1, 2)
    if round_mode not in (None, 0):
        refuse(operator, "round_mode", round_mode, "must be 0")
    if activate_dim not in (None, -1, x.dim() - 1):
        refuse(operator, "activate_dim", activate_dim, "must be the last dimension")
    if not (math.isfinite(clamp_limit) and clamp_limit > 0):
        refuse(operator, "clamp_limit", clamp_limit, "must be positive")
    _halves(operator, x, True, to.packed)
    for name, given in (("quant_scale", quant_scale), ("quant_offset", quant_offset)):
        if given is not None:
            check_dtype(operator, name, given, *FLOATS_TO_32)
    rows = x.reshape(-1, x.shape[-1])
    groups = _Groups(operator, group_index, len(rows), True)
    rows = _dequantised(operator, rows, weight_scale, activation_scale, bias, groups)
    if swiglu_mode == 1:
        gate, up = rows[:, ::2], rows[:, 1::2]
    else:
        gate, up = _halves(operator, rows, activate_left, to.packed)
    if swiglu_mode:
        gate, up = gate.clamp(max=clamp_limit), up.clamp(-clamp_limit, clamp_limit)
        act = gate * torch.sigmoid(glu_alpha * gate) * (up + glu_bias)
    else:
        act = swiglu(gate, up)
    by = 1.0 if quant_scale is None else groups.spread("quant_scale", quant_scale.float(), act.shape[1])
    scale = torch.zeros(len(act), 1)
    if quant_mode == 0:
        act = act / by
        if quant_offset is not None:
            act = act + groups.spread("quant_offset", quant_offset.float(), act.shape[1])
        y = packed(rounded(groups.keep(act), to), to)
    else:
        y, scale = scaled_to_fit(groups.keep(act * by), to)
    return y.view(*x.shape[:-1], y.shape[-1]), scale.view(x.shape[:-1])


def npu_swiglu_mx_quant(
    x: Tensor,
    *,
    group_index: Tensor | None = None,
    activate_dim: int = -1,
    activate_left: bool = False,
    swiglu_mode: int = 0,
    clamp_limit: float = 7.0,
    glu_alpha: float = 1.702,
    glu_bias: float = 1.0,
    group_mode: int = 0,
    axis: int = -1,
    dst_type: Number = 296,
    round_mode: str = "rint",
    scale_alg: int = 0,
    max_dtype_value: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """SwiGLU of ``x`` in an MX format along the last dimension, and scales.

    clamp_limit, glu_alpha, glu_bias and group_mode have no effect: swiglu_mode 1 and group_index are refused.
    """
    operator = "npu_swiglu_mx_quant"
    check_dtype(operator, "x", x, *HALVES)
    for name, given in (("activate_dim", activate_dim), ("axis", axis)):
        if given not in (-1, x.dim() - 1):
            refuse(operator, name, given, "must be the last dimension")
    if group_index is not None:
        refuse(operator, "group_index", "given", "must be None")
    check_choice(operator, "swiglu_mode", swiglu_mode, 0)
    if max_dtype_value:
        refuse(operator, "max_dtype_value", max_dtype_value, "must be 0")
    act = swiglu(*_halves(operator, x, activate_left))
    return along_last(operator, "x", act.to(x.dtype), dst_type, round_mode, scale_alg)


def npu_swiglu_mx_quant_with_dual_axis(
    x: Tensor,
    *,
    group_index: Tensor | None = None,
    activate_left: bool = True,
    round_mode: str = "rint",
    scale_alg: int = 1,
    dst_type: Number = 24,
    dst_type_max: float = 0.0,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """SwiGLU of ``x`` in an MX format along the last dimension and along the one before, each with its scales.

    ``group_index`` has the ends of groups of rows. Along the rows, a block is within a group.
    """
    operator = "npu_swiglu_mx_quant_with_dual_axis"
    check_dtype(operator, "x", x, *HALVES)
    _check_largest(operator, dst_type_max)
    act = swiglu(*_halves(operator, x, activate_left)).to(x.dtype)
    return along_last_two(operator, "x", act, dst_type, round_mode, scale_alg, _ends(operator, group_index, x))


def _npu_swiglu_backward_mx_quant_with_dual_axis(
    x: Tensor,
    y_grad: Tensor,
    *,
    group_index: Tensor | None = None,
    activate_left: bool = True,
    round_mode: str = "rint",
    scale_alg: int = 1,
    dst_type: Number = 24,
    dst_type_max: float = 0.0,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The gradient of ``x``, as `npu_swiglu_mx_quant_with_dual_axis` quantises."""
    operator = "_npu_swiglu_backward_mx_quant_with_dual_axis"
    check_dtype(operator, "x", x, *HALVES)
    check_dtype(operator, "y_grad", y_grad, x.dtype)
    _check_largest(operator, dst_type_max)
    gate, up = _halves(operator, x, activate_left)
    check_shape(operator, "y_grad", y_grad, gate.shape, "the halves of x")
    dgate, dup = _gradients(y_grad.float(), gate, up)
    dx = torch.cat((dgate, dup) if activate_left else (dup, dgate), -1).to(x.dtype)
    return along_last_two(operator, "x", dx, dst_type, round_mode, scale_alg, _ends(operator, group_index, x))


def npu_swiglu_group_quant(
    x: Tensor,
    *,
    weight: Tensor | None = None,
    group_index: Tensor | None = None,
    scale: Tensor | None = None,
    dst_type: Number = 291,
    quant_mode: int = 0,
    block_size: int = 0,
    round_scale: bool = False,
    clamp_limit: float = -1.0,
    dst_type_max: float = 15.0,
    output_origin: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    """SwiGLU of ``x`` [..., 2 N] in hifloat8; scales of groups with quant_mode 3; act * weight with output_origin.

    ``weight`` has a number for each row, ``group_index`` the sizes of groups of rows, and ``scale``, for quant_mode 2,
    a factor for each group. A clamp_limit above 0 cuts the left half off above it, and the right half outside
    -clamp_limit to clamp_limit. block_size and round_scale have no effect. quant_mode 0 and 1 are refused: torch_npu
    gives no memory for their results.
    """
    operator = "npu_swiglu_group_quant"
    check_dtype(operator, "x", x, *FLOATS_TO_32)
    check_choice(operator, "quant_mode", quant_mode, 2, 3)
    gate, up = _clamped(*_halves(operator, x, True), clamp_limit)
    act = swiglu(gate, up)
    rows = act.reshape(-1, act.shape[-1])
    if weight is not None:
        rows = rows * _each_row(operator, "weight", weight, len(rows))
    groups = _Groups(operator, group_index, len(rows), True, cut=True)
    if quant_mode == 2:
        if scale is None:
            refuse(operator, "scale", None, "must be given with quant_mode 2")
        check_dtype(operator, "scale", scale, *FLOATS_TO_32)
        scaled, scales = rows * groups.spread("scale", scale.float().reshape(-1, 1), rows.shape[1]), torch.empty(0)
    else:
        if not 0 < dst_type_max <= HIF8.largest:
            refuse(operator, "dst_type_max", dst_type_max, "must be above 0 and up to 32768")
        most = [rows[begin:end].abs().amax() if end > begin else torch.zeros(()) for begin, end in spans(groups.ends)]
        scales = torch.stack(most).clamp(min=LEAST) / dst_type_max
        scaled = rows / groups.spread("scales", scales.unsqueeze(1), rows.shape[1])
    y = rounded(groups.keep(scaled), HIF8).view(act.shape)
    origin = groups.keep(rows).view(act.shape).to(x.dtype) if output_origin else x.new_empty(0)
    return y, scales, origin


def npu_swiglu_group_quant_backward(
    grad_y: Tensor,
    x: Tensor,
    *,
    weight: Tensor | None = None,
    y_origin: Tensor | None = None,
    group_index: Tensor | None = None,
    clamp_limit: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """The gradients of ``x``, and of ``weight``, which is the sum of grad_y * y_origin along a row."""
    operator = "npu_swiglu_group_quant_backward"
    check_dtype(operator, "x", x, *FLOATS_TO_32)
    check_dtype(operator, "grad_y", grad_y, *FLOATS_TO_32)
    left, right = _halves(operator, x, True)
    check_shape(operator, "grad_y", grad_y, left.shape, "the halves of x")
    dy = grad_y.float().reshape(-1, left.shape[-1])
    groups = _Groups(operator, group_index, len(dy), True, cut=True)
    dy = groups.keep(dy)
    dweight = torch.empty(0)
    if weight is not None:
        if y_origin is None:
            refuse(operator, "y_origin", None, "must be given with weight")
        check_dtype(operator, "y_origin", y_origin, *FLOATS_TO_32)
        check_shape(operator, "y_origin", y_origin, left.shape, "the halves of x")
        by = _each_row(operator, "weight", weight, len(dy))
        dweight = (dy * y_origin.float().reshape(dy.shape)).sum(-1).view(weight.shape).to(weight.dtype)
        dy = dy * by
    gate, up = _clamped(left, right, clamp_limit)
    dleft, dright = _gradients(dy.view(left.shape), gate, up)
    if clamp_limit > 0:
        dleft, dright = dleft.masked_fill(left >= clamp_limit, 0.0), dright.masked_fill(right.abs() >= clamp_limit, 0.0)
    dx = groups.keep(torch.cat((dleft, dright), -1).view(-1, x.shape[-1]))
    return dx.view(x.shape).to(x.dtype), dweight


# --- the activation ---------------------------------------------------------------------------------------------------


def _halves(operator: str, x: Tensor, activate_left: bool, even: int = 1) -> tuple[Tensor, Tensor]:
    """The gate and the other half, in float32."""
    if x.dim() < 2 or not x.shape[-1] or x.shape[-1] % (2 * even):
        rule = f"must have 2 dimensions at least, the last of them {2 * even} * n"
        refuse(operator, "x", f"of shape {list(x.shape)}", rule)
    left, right = x.float().chunk(2, -1)
    return (left, right) if activate_left else (right, left)


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """gate * sigmoid(gate) * up, of float32."""
    return gate * torch.sigmoid(gate) * up


def _gradients(dy: Tensor, gate: Tensor, up: Tensor) -> tuple[Tensor, Tensor]:
    """Those of gate and up, from that of `swiglu`."""
    sigmoid = torch.sigmoid(gate)
    return dy * up * sigmoid * (1 + gate * (1 - sigmoid)), dy * gate * sigmoid


def _clamped(gate: Tensor, up: Tensor, limit: float) -> tuple[Tensor, Tensor]:
    """gate cut off above a limit that is positive, and up outside -limit to limit."""
    return (gate.clamp(max=limit), up.clamp(-limit, limit)) if limit > 0 else (gate, up)


# --- rows and groups --------------------------------------------------------------------------------------------------


def _check_largest(operator: str, largest: float) -> None:
    if largest:
        refuse(operator, "dst_type_max", largest, "must be 0")


class _Groups:
    """Groups of rows, one after another; one of all rows where none are given."""

    def __init__(self, operator: str, index: Tensor | None, rows: int, sizes: bool, cut: bool = False) -> None:
        """``sizes`` and ``cut`` are those of `group_ends`."""
        self.operator, self.rows, self.ends = operator, rows, [rows]
        if index is not None:
            self.ends = group_ends(operator, "group_index", index, rows, sizes=sizes, cut=cut)

    def keep(self, numbers: Tensor) -> Tensor:
        """Numbers of rows, but 0 in rows of no group."""
        return numbers.masked_fill((torch.arange(self.rows) >= self.ends[-1]).unsqueeze(1), 0)

    def spread(self, name: str, numbers: Tensor, columns: int) -> Tensor:
        """Numbers [G, columns] or [G] for each row: [rows, columns] or [rows, 1]. Rows of no group have 1."""
        count = len(self.ends)
        each = numbers
        if each.dim() == 1:
            each = each.unsqueeze(0 if count == 1 and len(each) == columns else 1)
        if list(each.shape) not in ([count, columns], [count, 1]):
            rule = f"must be of shape {[count, columns]} or {[count]}"
            refuse(self.operator, name, f"of shape {list(numbers.shape)}", rule)
        spread = for_rows(each, self.ends)
        return torch.cat((spread, spread.new_ones(self.rows - len(spread), spread.shape[1])))


def _ends(operator: str, index: Tensor | None, x: Tensor) -> list[int] | None:
    """Where groups of rows of ``x`` end, if there are groups; x must then be a matrix."""
    if index is None:
        return None
    if x.dim() != 2:
        refuse(operator, "x", f"of shape {list(x.shape)}", "must have 2 dimensions with group_index")
    return group_ends(operator, "group_index", index, x.shape[0])


def _each_row(operator: str, name: str, numbers: Tensor, rows: int) -> Tensor:
    """A number for each row, in float32 [rows, 1]."""
    check_dtype(operator, name, numbers, *FLOATS_TO_32)
    if numbers.numel() != rows:
        refuse(operator, name, f"of shape {list(numbers.shape)}", f"must have a number for each of {rows} rows")
    return numbers.float().reshape(-1, 1)


def _dequantised(
    operator: str, x: Tensor, weight_scale: Tensor | None, activation_scale: Tensor | None, bias: Tensor | None,
    groups: _Groups,
) -> Tensor:  # fmt: skip
    """x * weight_scale * activation_scale + bias in float32; a bias of int32 is added to x first."""
    if x.dtype != torch.int32:
        for name, given in (("weight_scale", weight_scale), ("activation_scale", activation_scale), ("bias", bias)):
            if given is not None:
                refuse(operator, name, "given", "must be None where x is not int32")
        return x.float()
    if bias is not None:
        check_dtype(operator, "bias", bias, torch.int32, *FLOATS_TO_32)
    place = None if bias is None else groups.spread("bias", bias, x.shape[1])
    if place is not None and place.dtype == torch.int32:
        x, place = x + place, None
    rows = x.float()
    if weight_scale is not None:
        check_dtype(operator, "weight_scale", weight_scale, *FLOATS_TO_32)
        rows = rows * groups.spread("weight_scale", weight_scale.float(), x.shape[1])
    if activation_scale is not None:
        rows = rows * _each_row(operator, "activation_scale", activation_scale, len(rows))
    return rows if place is None else rows + place.float()
