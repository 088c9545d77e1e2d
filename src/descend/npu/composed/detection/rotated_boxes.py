"""Boxes that are turned: npu_rotated_overlaps, npu_rotated_iou and npu_nms_rotated.

A box is the centre, width, height and an angle in degrees, from x to y; or x1, y1, x2, y2 and the angle the other way.
The common area is that of one box cut by the four edges of the other one, in float64.

    iou = common area / area of both, together; iof = common area / area of the box of query_boxes

Documents: torch_npu.npu_rotated_overlaps, npu_rotated_iou, npu_nms_rotated; op-plugin's test_nms_rotated.py.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from descend.npu.composed.arithmetic import check_float, check_shape
from descend.npu.composed.refusal import refuse

Point = tuple[float, float]


def npu_rotated_overlaps(self: Tensor, query_boxes: Tensor, trans: bool = False) -> Tensor:
    """[B, N, K]: the common areas of boxes [B, N, 5] and ``query_boxes`` [B, K, 5]. ``trans``: they have corners."""
    _check("npu_rotated_overlaps", self, query_boxes)
    return _common(_centred(self, trans), _centred(query_boxes, trans)).to(self.dtype)


def npu_rotated_iou(
    self: Tensor,
    query_boxes: Tensor,
    trans: bool = False,
    mode: int = 0,
    is_cross: bool = True,
    v_threshold: float = 0.0,
    e_threshold: float = 0.0,
) -> Tensor:
    """[B, N, K]: iou of boxes [B, N, 5] and ``query_boxes`` [B, K, 5]; in mode 1 iof. Without an area it is 0."""
    operator = "npu_rotated_iou"
    _check(operator, self, query_boxes)
    if mode not in (0, 1):
        refuse(operator, "mode", mode, "must be 0 or 1")
    if not is_cross or v_threshold or e_threshold:
        got = f"{is_cross}, {v_threshold} and {e_threshold}"
        refuse(operator, "is_cross, v_threshold and e_threshold", got, "must be True, 0 and 0")
    one, other = _centred(self, trans), _centred(query_boxes, trans)
    return _iou(one, other, mode).to(self.dtype)


def npu_nms_rotated(
    self: Tensor,
    scores: Tensor,
    iou_threshold: float,
    scores_threshold: float = 0.0,
    max_output_size: int = -1,
    mode: int = 0,
) -> tuple[Tensor, Tensor]:
    """The boxes [N, 5] that are kept, int32 [M], the best first, and how many there are, int32 [1].

    Left out are those whose iou with a kept one is above ``iou_threshold``, or whose score is ``scores_threshold`` or
    less.
    ``mode`` 1: boxes have corners.
    """
    operator = "npu_nms_rotated"
    check_float(operator, self=self, scores=scores)
    if self.dim() != 2 or self.shape[1] != 5:
        refuse(operator, "self", f"of shape {list(self.shape)}", "must be of shape [N, 5]")
    check_shape(operator, "scores", scores, [len(self)], "the boxes of self")
    if mode not in (0, 1):
        refuse(operator, "mode", mode, "must be 0 or 1")
    boxes = _centred(self.unsqueeze(0), mode == 1)
    order = scores.double().argsort(descending=True, stable=True)
    kept: list[int] = []
    for at in order[scores[order].double() > scores_threshold].tolist():
        if 0 <= max_output_size <= len(kept):
            break
        if not kept or float(_iou(boxes[:, at : at + 1], boxes[:, kept], 0).max()) <= iou_threshold:
            kept.append(at)
    return torch.tensor(kept, dtype=torch.int32), torch.tensor([len(kept)], dtype=torch.int32)


def _check(operator: str, boxes: Tensor, query_boxes: Tensor) -> None:
    check_float(operator, self=boxes, query_boxes=query_boxes)
    for name, tensor in (("self", boxes), ("query_boxes", query_boxes)):
        if tensor.dim() != 3 or tensor.shape[2] != 5 or len(tensor) != len(boxes):
            refuse(operator, name, f"of shape {list(tensor.shape)}", f"must be of shape [{len(boxes)}, N, 5]")


def _centred(boxes: Tensor, corners: bool) -> Tensor:
    """Boxes as centre, width, height and the angle from x to y, in float64. Two negative sizes count as positive."""
    b = boxes.double()
    if corners:
        b = torch.cat(((b[..., :2] + b[..., 2:4]) / 2, b[..., 2:4] - b[..., :2], -b[..., 4:]), -1)
    turned = (b[..., 2:4] < 0).all(-1, keepdim=True)
    return torch.cat((b[..., :2], torch.where(turned, -b[..., 2:4], b[..., 2:4]), b[..., 4:]), -1)


def _iou(one: Tensor, other: Tensor, mode: int) -> Tensor:
    common = _common(one, other)
    own, its = one[..., 2:4].prod(-1).unsqueeze(-1), other[..., 2:4].prod(-1).unsqueeze(-2)
    whole = its.expand_as(common) if mode else own + its - common
    return torch.where(common > 0, common / whole, 0.0)


def _common(one: Tensor, other: Tensor) -> Tensor:
    """[B, N, K]. Boxes whose circles are apart are not looked at."""
    centres = one[..., :2].unsqueeze(-2) - other[..., :2].unsqueeze(-3)
    reach = (one[..., 2:4].norm(dim=-1).unsqueeze(-1) + other[..., 2:4].norm(dim=-1).unsqueeze(-2)) / 2
    solid = (one[..., 2:4] > 0).all(-1).unsqueeze(-1) & (other[..., 2:4] > 0).all(-1).unsqueeze(-2)
    near = (centres.norm(dim=-1) < reach) & solid
    areas = torch.zeros(near.shape, dtype=torch.float64)
    for batch, row, column in near.nonzero().tolist():
        areas[batch, row, column] = _area(one[batch, row].tolist(), other[batch, column].tolist())
    return areas


def _area(one: list[float], other: list[float]) -> float:
    """The common area of two boxes: the first, in the frame of the second, cut by its edges."""
    x, y, width, height, angle = one
    turn, back = math.radians(angle - other[4]), math.radians(other[4])
    dx, dy = x - other[0], y - other[1]
    cx, cy = dx * math.cos(back) + dy * math.sin(back), dy * math.cos(back) - dx * math.sin(back)
    c, s = math.cos(turn), math.sin(turn)
    shape = [
        (cx + c * i * width / 2 - s * j * height / 2, cy + s * i * width / 2 + c * j * height / 2)
        for i, j in ((-1, -1), (1, -1), (1, 1), (-1, 1))
    ]
    for axis, limit in ((0, other[2] / 2), (1, other[3] / 2)):
        for sign in (1, -1):
            shape = _cut(shape, axis, sign, limit)
    pairs = zip(shape, shape[1:] + shape[:1], strict=True)
    return max(0.0, sum(a[0] * b[1] - a[1] * b[0] for a, b in pairs) / 2)


def _cut(shape: list[Point], axis: int, sign: int, limit: float) -> list[Point]:
    """The part of a convex shape where sign * coordinate is at most ``limit``."""
    result: list[Point] = []
    for a, b in zip(shape, shape[1:] + shape[:1], strict=True):
        before, after = limit - sign * a[axis], limit - sign * b[axis]
        if before >= 0:
            result.append(a)
        if (before >= 0) != (after >= 0):
            part = before / (before - after)
            result.append((a[0] + part * (b[0] - a[0]), a[1] + part * (b[1] - a[1])))
    return result
