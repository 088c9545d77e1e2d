"""How much boxes overlap: npu_iou, npu_ptiou, npu_giou, npu_diou, npu_ciou, and the gradients of the last three.

    iou  = common area / area of both, together
    iof  = common area / area of the box of gtboxes                              (mode 1)
    giou = iou - (area of the hull - area of both) / area of the hull
    diou = iou - (distance of the centres / diagonal of the hull)^2
    ciou = diou - alpha v, v = (2 / pi (atan(w2 / h2) - atan(w1 / h1)))^2, alpha = v / (1 - iou + v)

The hull is the smallest box around both. alpha is a constant for the gradient. npu_iou widens each box by 0.01 where it
computes its area, as an Atlas A2 does. The others add 1e-9, npu_giou 1e-16, where a divisor may be 0.

Documents: torch_npu.npu_iou, npu_ptiou, npu_giou, npu_diou, npu_ciou; op-plugin's tests have the formulas.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from descend.npu.composed.arithmetic import check_float, wide
from descend.npu.composed.derivatives import derivatives
from descend.npu.composed.refusal import refuse

WIDER = 0.01
SMALL = 1e-9
LEAST = 1e-16


class Boxes(NamedTuple):
    """The edges of boxes. A dimension may be there to pair each box with each other one."""

    x1: Tensor
    y1: Tensor
    x2: Tensor
    y2: Tensor


def npu_iou(bboxes: Tensor, gtboxes: Tensor, mode: int = 0) -> Tensor:
    """[M, N]: of each of M ``gtboxes`` with each of N ``bboxes``. Both have x1, y1, x2, y2 in their last dimension."""
    operator = "npu_iou"
    check_float(operator, bboxes=bboxes, gtboxes=gtboxes)
    for name, tensor in (("bboxes", bboxes), ("gtboxes", gtboxes)):
        if tensor.dim() != 2 or tensor.shape[1] != 4:
            refuse(operator, name, f"of shape {list(tensor.shape)}", "must be of shape [N, 4]")
    _check_mode(operator, mode)
    one, other = Boxes(*wide(bboxes).T), Boxes(*wide(gtboxes).T.unsqueeze(-1))
    common = _common(one, other)
    areas = [(box.x2 - box.x1 + WIDER) * (box.y2 - box.y1 + WIDER) for box in (one, other)]
    whole = areas[1] if mode else areas[0] + areas[1] - common
    return (common / whole).to(bboxes.dtype)


def npu_ptiou(bboxes: Tensor, gtboxes: Tensor, mode: int = 0) -> Tensor:
    """`npu_iou` by its other name."""
    return npu_iou(bboxes, gtboxes, mode)


def npu_giou(self: Tensor, gtboxes: Tensor, trans: bool = False, is_cross: bool = False, mode: int = 0) -> Tensor:
    """[N, 1], of the boxes [4, N] of both: x and y of the centre, width and height."""
    operator = "npu_giou"
    _check(operator, self, gtboxes, is_cross, mode)
    _check_served(operator, trans, is_cross, mode)
    return _giou(wide(self), wide(gtboxes)).unsqueeze(-1).to(_narrow(self, gtboxes))


def npu_giou_backward(
    grad: Tensor, bboxes: Tensor, gtboxes: Tensor, trans: bool = False, is_cross: bool = False, mode: int = 0
) -> tuple[Tensor, Tensor]:
    """The gradients of the boxes of both."""
    operator = "npu_giou_backward"
    _check_gradient(operator, grad, bboxes, gtboxes, trans, is_cross, mode)
    return _gradients(_giou, grad, bboxes, gtboxes)


def npu_diou(self: Tensor, gtboxes: Tensor, trans: bool = False, is_cross: bool = False, mode: int = 0) -> Tensor:
    """[1, N], of the boxes [4, N] of both; or if ``is_cross`` [M, N], of each of M ``gtboxes`` with each of N.

    ``trans``: the boxes have x and y of the centre, width and height; else x1, y1, x2, y2.
    """
    _check("npu_diou", self, gtboxes, is_cross, mode)
    one, other = _pairs(wide(self), wide(gtboxes), trans, is_cross)
    iou = _iou(one, other, mode)
    return (iou - _distance(one, other)).to(_narrow(self, gtboxes))


def npu_diou_backward(
    grad: Tensor, bboxes: Tensor, gtboxes: Tensor, trans: bool = False, is_cross: bool = False, mode: int = 0
) -> tuple[Tensor, Tensor]:
    """The gradients of the boxes of both."""
    operator = "npu_diou_backward"
    _check_gradient(operator, grad, bboxes, gtboxes, trans, is_cross, mode)

    def diou(bboxes: Tensor, gtboxes: Tensor) -> Tensor:
        one, other = _pairs(bboxes, gtboxes, True, False)
        return (_iou(one, other, 0) - _distance(one, other)).flatten()

    return _gradients(diou, grad, bboxes, gtboxes)


def _npu_ciou(
    self: Tensor,
    gtboxes: Tensor,
    trans: bool = False,
    is_cross: bool = True,
    mode: int = 0,
    atan_sub_flag: bool = False,
) -> tuple[Tensor, Tensor]:
    """ciou, shaped as the result of `npu_diou`; and atan(w2 / h2) - atan(w1 / h1), which the gradient does not need."""
    _check("npu_ciou", self, gtboxes, is_cross, mode)
    ciou, angle = _ciou(*_pairs(wide(self), wide(gtboxes), trans, is_cross), mode)
    return ciou.to(_narrow(self, gtboxes)), angle


def npu_ciou(
    self: Tensor,
    gtboxes: Tensor,
    trans: bool = False,
    is_cross: bool = True,
    mode: int = 0,
    atan_sub_flag: bool = False,
) -> Tensor:
    """The first result of `_npu_ciou`."""
    return _npu_ciou(self, gtboxes, trans, is_cross, mode, atan_sub_flag)[0]


def npu_ciou_backward(
    grad: Tensor,
    bboxes: Tensor,
    gtboxes: Tensor,
    atan_sub: Tensor | None,
    trans: bool = False,
    is_cross: bool = True,
    mode: int = 0,
) -> tuple[Tensor, Tensor]:
    """The gradients of the boxes of both."""
    operator = "npu_ciou_backward"
    _check_gradient(operator, grad, bboxes, gtboxes, trans, is_cross, mode)

    def ciou(bboxes: Tensor, gtboxes: Tensor) -> Tensor:
        return _ciou(*_pairs(bboxes, gtboxes, True, False), 0)[0].flatten()

    return _gradients(ciou, grad, bboxes, gtboxes)


def _check_mode(operator: str, mode: int) -> None:
    if mode not in (0, 1):
        refuse(operator, "mode", mode, "must be 0 or 1")


def _check(operator: str, self: Tensor, gtboxes: Tensor, is_cross: bool, mode: int) -> None:
    check_float(operator, self=self, gtboxes=gtboxes)
    for name, tensor in (("self", self), ("gtboxes", gtboxes)):
        if tensor.dim() != 2 or tensor.shape[0] != 4:
            refuse(operator, name, f"of shape {list(tensor.shape)}", "must be of shape [4, N]")
    if not is_cross and self.shape != gtboxes.shape:
        rule = f"must have the shape of self, {list(self.shape)}, without is_cross"
        refuse(operator, "gtboxes", f"of shape {list(gtboxes.shape)}", rule)
    _check_mode(operator, mode)


def _check_served(operator: str, trans: bool, is_cross: bool, mode: int) -> None:
    if not trans or is_cross or mode:
        refuse(operator, "trans, is_cross or mode", f"{trans}, {is_cross}, {mode}", "must be True, False, 0")


def _check_gradient(
    operator: str, grad: Tensor, bboxes: Tensor, gtboxes: Tensor, trans: bool, is_cross: bool, mode: int
) -> None:
    check_float(operator, grad=grad)
    _check_served(operator, trans, is_cross, mode)
    _check(operator, bboxes, gtboxes, is_cross, mode)
    if grad.numel() != bboxes.shape[1]:
        refuse(
            operator, "grad", f"of shape {list(grad.shape)}", f"must have a number for each of {bboxes.shape[1]} boxes"
        )


def _narrow(self: Tensor, gtboxes: Tensor) -> torch.dtype:
    """The dtype of the result: the narrower one."""
    return min(self.dtype, gtboxes.dtype, key=lambda dtype: dtype.itemsize)


def _edges(boxes: Tensor, trans: bool) -> Boxes:
    if not trans:
        return Boxes(*boxes)
    x, y, w, h = boxes
    return Boxes(x - w / 2, y - h / 2, x + w / 2, y + h / 2)


def _pairs(self: Tensor, gtboxes: Tensor, trans: bool, is_cross: bool) -> tuple[Boxes, Boxes]:
    """The boxes of both as [1, N] and [1, N], or [1, N] and [M, 1]."""
    return _edges(self.unsqueeze(1), trans), _edges(gtboxes.unsqueeze(-1 if is_cross else 1), trans)


def _common(one: Boxes, other: Boxes) -> Tensor:
    width = torch.minimum(one.x2, other.x2) - torch.maximum(one.x1, other.x1)
    height = torch.minimum(one.y2, other.y2) - torch.maximum(one.y1, other.y1)
    return width.clamp(min=0) * height.clamp(min=0)


def _hull(one: Boxes, other: Boxes) -> tuple[Tensor, Tensor]:
    """Its width and height."""
    width = torch.maximum(one.x2, other.x2) - torch.minimum(one.x1, other.x1)
    return width, torch.maximum(one.y2, other.y2) - torch.minimum(one.y1, other.y1)


def _iou(one: Boxes, other: Boxes, mode: int) -> Tensor:
    common = _common(one, other)
    areas = [(box.x2 - box.x1) * (box.y2 - box.y1 + SMALL) for box in (one, other)]
    return common / ((areas[1] if mode else areas[0] + areas[1] - common) + SMALL)


def _distance(one: Boxes, other: Boxes) -> Tensor:
    width, height = _hull(one, other)
    x, y = other.x1 + other.x2 - one.x1 - one.x2, other.y1 + other.y2 - one.y1 - one.y2
    return (x.square() + y.square()) / 4 / (width.square() + height.square() + SMALL)


def _ciou(one: Boxes, other: Boxes, mode: int) -> tuple[Tensor, Tensor]:
    iou = _iou(one, other, mode)
    angles = [torch.atan((box.x2 - box.x1) / (box.y2 - box.y1 + SMALL)) for box in (one, other)]
    angle = angles[1] - angles[0]
    v = (2 / math.pi * angle).square()
    alpha = (v / (1 + SMALL - iou + v)).detach()
    return iou - _distance(one, other) - v * alpha, angle


def _giou(self: Tensor, gtboxes: Tensor) -> Tensor:
    one, other = _edges(self, True), _edges(gtboxes, True)
    common = _common(one, other)
    both = self[2] * self[3] + gtboxes[2] * gtboxes[3] - common + LEAST
    width, height = _hull(one, other)
    hull = width.abs() * height.abs()
    return common / both - (hull - both) / hull


def _gradients(function: Callable[..., Tensor], grad: Tensor, bboxes: Tensor, gtboxes: Tensor) -> tuple[Tensor, Tensor]:
    dtype = _narrow(bboxes, gtboxes)
    one, other = derivatives(function, [wide(bboxes), wide(gtboxes)], [wide(grad).flatten()])
    assert one is not None
    assert other is not None
    return one.to(dtype), other.to(dtype)
