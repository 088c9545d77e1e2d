"""RMS norms whose results are quantised, and the gradient of one that is.

    y = x / sqrt(mean(x^2) + epsilon) * gamma + beta,       of the add_ operators x = x1 + x2
    quantised: y / scale + offset                           npu_rms_norm_quant, ..._v2, npu_add_rms_norm_quant
               y * scale + offset                           with div_mode False
               y * smooth_scale / scale,  scale = max |y * smooth_scale| / largest       ..._dynamic_quant
               as npu_dynamic_mx_quant, of y in the dtype of x                           ..._dynamic_mx_quant
    dx = rstd * (dy * gamma - x * rstd * mean(dy * gamma * x * rstd)), quantised         _npu_rms_norm_backward_quant

All is computed in float32, and rounded to a format once. Results named rstd are 1 / sqrt(mean(x^2) + epsilon), whether
a program asks for them or not. torch_npu's page of npu_rms_norm_quant multiplies by the scale; aclnnRmsNormQuant, which
it calls, divides. So it is done here.

Documents: aclnnRmsNormQuant; torch_npu.npu_add_rms_norm_quant, npu_add_rms_norm_dynamic_quant; aclnnRmsNormQuantV3,
AddRmsNormQuantV2, AddRmsNormDynamicQuantV2, RmsNormDynamicMxQuant, AddRmsNormDynamicMxQuant, RmsNormGradQuant.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from descend.npu.composed.arithmetic import FLOATS_TO_32, HALVES, check_dtype, check_shape
from descend.npu.composed.layers.fused_norms import check_gamma, rms_norm
from descend.npu.composed.quantised.formats import (
    E4M3,
    E5M2,
    HIF8,
    INT4_IN_INT32,
    INT8,
    Format,
    Number,
    format_of,
    packed,
    rounded,
    scaled_to_fit,
)
from descend.npu.composed.quantised.mx_quant import along_last
from descend.npu.composed.refusal import refuse

NUMBER_OF_INT4 = 285
"""torch_npu.int4. These operators pack it as torch.quint4x2: eight in an int32."""


def npu_rms_norm_quant(
    x: Tensor,
    gamma: Tensor,
    beta: Tensor,
    scale: Tensor,
    offset: Tensor,
    epsilon: float = 1e-6,
    *,
    dst_dtype: Number = None,
) -> Tensor:
    """The norm of ``x`` in ``dst_dtype``. gamma and beta are [N] or [1, N], scale and offset have one number."""
    operator = "npu_rms_norm_quant"
    _check_not_empty(operator, x)
    y, _ = _normed(operator, x, gamma, beta, epsilon)
    to = _format(operator, "dst_dtype", dst_dtype, x)
    return _quantised(operator, y, scale, offset, True, to, None)


def npu_rms_norm_quant_v2(
    x: Tensor,
    gamma: Tensor,
    scale: Tensor,
    *,
    offset: Tensor | None = None,
    beta: Tensor | None = None,
    epsilon: float = 1e-6,
    div_mode: bool = True,
    dst_dtype: Number = None,
) -> tuple[Tensor, Tensor]:
    """The norm of ``x`` in ``dst_dtype``, and rstd [..., 1] in float32. scale and offset have one number, or N."""
    operator = "npu_rms_norm_quant_v2"
    _check_not_empty(operator, x)
    y, rstd = _normed(operator, x, gamma, beta, epsilon)
    to = _format(operator, "dst_dtype", dst_dtype, x)
    return _quantised(operator, y, scale, offset, div_mode, to, gamma.shape), rstd


def npu_add_rms_norm_quant(
    x1: Tensor,
    x2: Tensor,
    gamma: Tensor,
    scales1: Tensor,
    zero_points1: Tensor | None,
    beta: Tensor | None = None,
    scales2: Tensor | None = None,
    zero_points2: Tensor | None = None,
    *,
    axis: int = -1,
    epsilon: float = 1e-6,
    div_mode: bool = True,
    dst_type: Number = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """The norm of x1 + x2 quantised by scales1, and by scales2; and x1 + x2. Without scales2 the second result is 0."""
    operator = "npu_add_rms_norm_quant"
    if axis != -1:
        refuse(operator, "axis", axis, "must be -1")
    to = _format(operator, "dst_type", dst_type, x1)
    total = _total(operator, x1, x2)
    y, _ = _normed(operator, total, gamma, beta, epsilon)
    shape = gamma.shape
    first = _quantised(operator, y, scales1, zero_points1, div_mode, to, shape, "scales1", "zero_points1")
    if scales2 is None:
        if zero_points2 is not None:
            refuse(operator, "zero_points2", "given", "must be None without scales2")
        return first, torch.zeros_like(first), total.to(x1.dtype)
    second = _quantised(operator, y, scales2, zero_points2, div_mode, to, shape, "scales2", "zero_points2")
    return first, second, total.to(x1.dtype)


def npu_add_rms_norm_dynamic_quant(
    x1: Tensor,
    x2: Tensor,
    gamma: Tensor,
    *,
    smooth_scale1: Tensor | None = None,
    smooth_scale2: Tensor | None = None,
    beta: Tensor | None = None,
    epsilon: float = 1e-6,
    output_mask: Sequence[bool] | None = None,
    y_dtype: Number = None,
) -> tuple[Tensor, ...]:
    """y1, y2, x1 + x2, and the scales of the rows of y1 and y2: norms of x1 + x2, each times its smooth scale [N].

    ``output_mask`` says whether y1 and y2 are wanted. Without it y1 is, and y2 if both smooth scales are given. A
    result that is not wanted has no numbers.
    """
    operator = "npu_add_rms_norm_dynamic_quant"
    smooth = (smooth_scale1, smooth_scale2)
    mask = list(output_mask) if output_mask else [True, None not in smooth]
    if len(mask) != len(smooth):
        refuse(operator, "output_mask", mask, "must have 2 values, for y1 and y2")
    for i, given in enumerate(smooth):
        if output_mask and given is not None and not mask[i]:
            refuse(operator, f"smooth_scale{i + 1}", "given", f"needs output_mask[{i}]")
    if not any(mask):
        refuse(operator, "output_mask", mask, "must have one that is True")
    to = _format(operator, "y_dtype", y_dtype, x1)
    total = _total(operator, x1, x2)
    y, _ = _normed(operator, total, gamma, beta, epsilon)
    results, scales = [], []
    for i, given in enumerate(smooth):
        if not mask[i]:
            results.append(torch.empty(0, dtype=to.dtype))
            scales.append(torch.empty(0))
            continue
        if given is not None:
            check_dtype(operator, f"smooth_scale{i + 1}", given, *FLOATS_TO_32)
            check_shape(operator, f"smooth_scale{i + 1}", given, gamma.shape, "gamma")
        smoothed = y if given is None else y * given.float().reshape(_without_one(gamma.shape))
        codes, scale = scaled_to_fit(smoothed, to)
        results.append(codes)
        scales.append(scale.squeeze(-1))
    return (*results, total.to(x1.dtype), *scales)


def npu_rms_norm_dynamic_mx_quant(
    x: Tensor,
    gamma: Tensor,
    *,
    beta: Tensor | None = None,
    epsilon: float = 1e-6,
    scale_alg: int = 0,
    round_mode: str = "rint",
    dst_type: Number = 296,
) -> tuple[Tensor, Tensor, Tensor]:
    """The norm of ``x`` in an MX format, its scales, and rstd [..., 1] in float32."""
    operator = "npu_rms_norm_dynamic_mx_quant"
    check_dtype(operator, "x", x, *HALVES)
    y, rstd = _normed(operator, x, gamma, beta, epsilon)
    return *along_last(operator, "x", y.to(x.dtype), dst_type, round_mode, scale_alg), rstd


def npu_add_rms_norm_dynamic_mx_quant(
    x1: Tensor,
    x2: Tensor,
    gamma: Tensor,
    *,
    beta: Tensor | None = None,
    epsilon: float = 1e-6,
    scale_alg: int = 0,
    round_mode: str = "rint",
    dst_type: Number = 296,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The norm of x1 + x2 in an MX format, x1 + x2, the scales, and rstd [..., 1] in float32."""
    operator = "npu_add_rms_norm_dynamic_mx_quant"
    check_dtype(operator, "x1", x1, *HALVES)
    total = _total(operator, x1, x2)
    y, rstd = _normed(operator, total, gamma, beta, epsilon)
    codes, scales = along_last(operator, "x1", y.to(x1.dtype), dst_type, round_mode, scale_alg)
    return codes, total.to(x1.dtype), scales, rstd


def _npu_rms_norm_backward_quant(
    dy: Tensor,
    x: Tensor,
    rstd: Tensor,
    gamma: Tensor,
    scale_x: Tensor,
    *,
    offset_x: Tensor | None = None,
    div_mode: bool | None = True,
    quant_mode: str = "static",
    dst_type: Number = 1,
) -> tuple[Tensor, Tensor]:
    """The gradient of x in ``dst_type``, and that of gamma in float32."""
    operator = "_npu_rms_norm_backward_quant"
    to = INT8 if dst_type is None else format_of(operator, "dst_type", dst_type, (INT8, HIF8))
    for name, tensor in (("dy", dy), ("x", x), ("gamma", gamma)):
        check_dtype(operator, name, tensor, *FLOATS_TO_32)
    check_dtype(operator, "rstd", rstd, torch.float32)
    check_shape(operator, "dy", dy, x.shape, "x")
    if quant_mode != "static":
        refuse(operator, "quant_mode", repr(quant_mode), "must be 'static'")
    count = gamma.dim()
    check_gamma(operator, "x", x, gamma)
    rows = x.shape[: x.dim() - count]
    if rstd.numel() != rows.numel():
        refuse(operator, "rstd", f"of shape {list(rstd.shape)}", f"must have a number for each row, {list(rows)}")
    each = rstd.reshape(*rows, *[1] * count)
    xhat = x.float() * each
    through = dy.float() * gamma.float()
    dims = list(range(-count, 0))
    dx = (through - xhat * (through * xhat).mean(dims, keepdim=True)) * each
    dgamma = (dy.float() * xhat).sum(list(range(len(rows)))) if len(rows) else dy.float() * xhat
    by_division = div_mode is not False
    return _quantised(operator, dx, scale_x, offset_x, by_division, to, None, "scale_x", "offset_x"), dgamma


# --- parts ------------------------------------------------------------------------------------------------------------


def _check_not_empty(operator: str, x: Tensor) -> None:
    if not x.numel():
        refuse(operator, "x", f"of shape {list(x.shape)}", "must not be empty")


def _total(operator: str, x1: Tensor, x2: Tensor) -> Tensor:
    """x1 + x2 in float32."""
    check_dtype(operator, "x1", x1, *FLOATS_TO_32)
    check_dtype(operator, "x2", x2, x1.dtype)
    check_shape(operator, "x2", x2, x1.shape, "x1")
    return x1.float() + x2.float()


def _normed(operator: str, x: Tensor, gamma: Tensor, beta: Tensor | None, epsilon: float) -> tuple[Tensor, Tensor]:
    """y and rstd in float32."""
    check_dtype(operator, "x", x, *FLOATS_TO_32)
    check_dtype(operator, "gamma", gamma, *FLOATS_TO_32)
    if not gamma.numel():
        refuse(operator, "gamma", f"of shape {list(gamma.shape)}", "must not be empty")
    if beta is not None:
        check_dtype(operator, "beta", beta, *FLOATS_TO_32)
        check_shape(operator, "beta", beta, gamma.shape, "gamma")
    if gamma.dim() == 2 and gamma.shape[0] == 1:
        gamma, beta = gamma.view(-1), None if beta is None else beta.view(-1)
    y, rstd = rms_norm(operator, "x", x.float(), gamma, epsilon)
    return (y if beta is None else y + beta.float()), rstd


def _format(operator: str, name: str, number: Number, x: Tensor) -> Format:
    """The format that ``number`` names, by default int8. Rows of int4 must fill the int32 that they are packed in."""
    if number is None:
        return INT8
    number = torch.quint4x2 if number == NUMBER_OF_INT4 else number
    to = format_of(operator, name, number, (INT8, INT4_IN_INT32, HIF8, E4M3, E5M2))
    if to.packed > 1 and (not x.dim() or x.shape[-1] % to.packed):
        refuse(operator, "x", f"of shape {list(x.shape)}", f"must have a last dimension of {to.packed} * n")
    return to


def _quantised(
    operator: str, y: Tensor, scale: Tensor, offset: Tensor | None, divide: bool, to: Format,
    shape: Sequence[int] | None, scale_name: str = "scale", offset_name: str = "offset",
) -> Tensor:  # fmt: skip
    """y / scale + offset in a format, or y * scale + offset. scale and offset have 1 number, or gamma's ``shape``."""
    check_dtype(operator, scale_name, scale, *FLOATS_TO_32)
    if offset is not None:
        check_dtype(operator, offset_name, offset, *FLOATS_TO_32, torch.int32, torch.int8)
    by = _one_or(operator, scale_name, scale, shape)
    y = y / by if divide else y * by
    if offset is not None:
        y = y + _one_or(operator, offset_name, offset, shape)
    return packed(rounded(y, to), to)


def _one_or(operator: str, name: str, numbers: Tensor, shape: Sequence[int] | None) -> Tensor:
    """One number, or those of a shape, in float32."""
    if numbers.numel() == 1:
        return numbers.float().reshape(())
    rule = "must have one number" if shape is None else f"must have one number, or the shape of gamma, {list(shape)}"
    if shape is None or _without_one(numbers.shape) != _without_one(shape):
        refuse(operator, name, f"of shape {list(numbers.shape)}", rule)
    return numbers.float().reshape(_without_one(shape))


def _without_one(shape: Sequence[int]) -> list[int]:
    """[N] of [1, N], which means the same for gamma."""
    return list(shape[1:] if len(shape) == 2 and shape[0] == 1 else shape)
