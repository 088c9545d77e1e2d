"""Boxes as differences from anchors, and which anchors answer for a box.

    npu_bounding_box_encode: dx = (gx - px) / pw, dy = (gy - py) / ph, dw = log(gw / pw), dh = log(gh / ph);
                             then (d - mean) / std. A box has x2 - x1 + 1 columns: edges belong to it
    npu_bounding_box_decode: the way back; dw and dh are between -|log(wh_ratio_clip)| and +; edges are in the image
    npu_yolo_boxes_encode:   x and y of the centre in cells of the grid, 0.5 at the middle of an anchor's cell, from
                             1e-6 to 1 - 1e-6; log(gw / pw), log(gh / ph), of ratios from 1e-6 on
    npu_rotated_box_encode:  as the first, times weight, but a box has x2 - x1 columns; of angles, which are in degrees,
                             the difference of their tangents
    npu_rotated_box_decode:  the way back

Documents: torch_npu.npu_bounding_box_encode, npu_bounding_box_decode, npu_yolo_boxes_encode, npu_anchor_response_flags,
npu_grid_assign_positive; op-plugin's tests; MMDetection's coders and assigner, whose operators these are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from descend.npu.composed.arithmetic import check_dtype, check_float, check_shape, check_within, wide
from descend.npu.composed.refusal import refuse

SMALL = 1e-6


def npu_bounding_box_encode(
    anchor_box: Tensor,
    ground_truth_box: Tensor,
    means0: float,
    means1: float,
    means2: float,
    means3: float,
    stds0: float,
    stds1: float,
    stds2: float,
    stds3: float,
) -> Tensor:
    """[N, 4]: the differences of ``ground_truth_box`` from ``anchor_box``, both x1, y1, x2, y2."""
    operator = "npu_bounding_box_encode"
    _check(operator, "anchor_box", anchor_box, "ground_truth_box", ground_truth_box)
    place, size = _centres(wide(anchor_box))
    at, extent = _centres(wide(ground_truth_box))
    deltas = torch.cat(((at - place) / size, (extent / size).log()), 1)
    means, stds = deltas.new_tensor([means0, means1, means2, means3]), deltas.new_tensor([stds0, stds1, stds2, stds3])
    return ((deltas - means) / stds).to(anchor_box.dtype)


def npu_bounding_box_decode(
    rois: Tensor,
    deltas: Tensor,
    means0: float,
    means1: float,
    means2: float,
    means3: float,
    stds0: float,
    stds1: float,
    stds2: float,
    stds3: float,
    max_shape: Sequence[int],
    wh_ratio_clip: float,
) -> Tensor:
    """[N, 4]: x1, y1, x2, y2 of the boxes that differ from ``rois`` by ``deltas``; ``max_shape``: height and width."""
    operator = "npu_bounding_box_decode"
    _check(operator, "rois", rois, "deltas", deltas)
    if len(max_shape) != 2:
        refuse(operator, "max_shape", list(max_shape), "must be two numbers, height and width")
    if not wh_ratio_clip > 0:
        refuse(operator, "wh_ratio_clip", wh_ratio_clip, "must be above 0")
    place, size = _centres(wide(rois))
    d = wide(deltas)
    d = d * d.new_tensor([stds0, stds1, stds2, stds3]) + d.new_tensor([means0, means1, means2, means3])
    most = abs(math.log(wh_ratio_clip))
    at, extent = place + size * d[:, :2], size * d[:, 2:].clamp(-most, most).exp()
    corners = torch.cat((at - extent / 2 + 0.5, at + extent / 2 - 0.5), 1)
    height, width = max_shape
    return corners.clamp(min=0).minimum(d.new_tensor([width - 1, height - 1] * 2)).to(rois.dtype)


def npu_yolo_boxes_encode(self: Tensor, gt_bboxes: Tensor, stride: Tensor, performance_mode: bool = False) -> Tensor:
    """[N, 4]: ``gt_bboxes`` as differences from the anchors ``self``, both x1, y1, x2, y2. ``stride`` [N] of cells."""
    operator = "npu_yolo_boxes_encode"
    _check(operator, "self", self, "gt_bboxes", gt_bboxes)
    check_dtype(operator, "stride", stride, torch.int32)
    check_shape(operator, "stride", stride, [len(self)], "the boxes of self")
    anchor, box = wide(self), wide(gt_bboxes)
    (place, size), (at, extent) = (((t[:, :2] + t[:, 2:]) * 0.5, t[:, 2:] - t[:, :2]) for t in (anchor, box))
    cell = ((at - place) / stride.unsqueeze(1) + 0.5).clamp(SMALL, 1 - SMALL)
    ratio = (extent / size).clamp(min=SMALL).log()
    return torch.cat((cell, ratio), 1).to(gt_bboxes.dtype)


def npu_anchor_response_flags(
    self: Tensor, featmap_size: Sequence[int], stride: Sequence[int], num_base_anchors: int
) -> Tensor:
    """uint8 [height * width * ``num_base_anchors``]: 1 for the anchors of the cells where a box has its centre."""
    operator = "npu_anchor_response_flags"
    check_float(operator, self=self)
    if self.dim() != 2 or self.shape[1] != 4:
        refuse(operator, "self", f"of shape {list(self.shape)}", "must be of shape [N, 4]")
    if len(featmap_size) != 2 or min(featmap_size) < 1:
        refuse(operator, "featmap_size", list(featmap_size), "must be two numbers from 1 on, height and width")
    if len(stride) != 2 or min(stride) < 1:
        refuse(operator, "stride", list(stride), "must be two numbers from 1 on")
    if num_base_anchors < 1:
        refuse(operator, "num_base_anchors", num_base_anchors, "must be at least 1")
    height, width = featmap_size
    boxes = wide(self)
    column = ((boxes[:, 0] + boxes[:, 2]) * 0.5 / stride[0]).floor().clamp(0, width - 1)
    row = ((boxes[:, 1] + boxes[:, 3]) * 0.5 / stride[1]).floor().clamp(0, height - 1)
    flags = torch.zeros(height * width, dtype=torch.uint8)
    cell = row * width + column
    flags[cell[~cell.isnan()].long()] = 1
    return flags.repeat_interleave(num_base_anchors)


def npu_grid_assign_positive(
    self: Tensor,
    overlaps: Tensor,
    box_responsible_flags: Tensor,
    max_overlaps: Tensor,
    argmax_overlaps: Tensor,
    gt_max_overlaps: Tensor,
    gt_argmax_overlaps: Tensor,
    num_gts: Tensor | int,
    pos_iou_thr: float,
    min_pos_iou: float,
    gt_max_assign_all: bool,
) -> Tensor:
    """[N]: ``self`` with 1 + the number of its box for each anchor that gets one, of ``overlaps`` [boxes, N].

    An anchor gets the box that it overlaps most, if by more than ``pos_iou_thr``. Then each box that is overlapped by
    more than ``min_pos_iou`` gets the anchor of its most overlap; if ``gt_max_assign_all`` all of these. In any case
    only anchors that answer for a box, by ``box_responsible_flags``. The last box in order wins.
    """
    operator = "npu_grid_assign_positive"
    check_float(operator, self=self, overlaps=overlaps, max_overlaps=max_overlaps, gt_max_overlaps=gt_max_overlaps)
    if self.dim() != 1:
        refuse(operator, "self", f"of shape {list(self.shape)}", "must have 1 dimension")
    if overlaps.dim() != 2 or overlaps.shape[1] != len(self):
        refuse(operator, "overlaps", f"of shape {list(overlaps.shape)}", f"must be of shape [boxes, {len(self)}]")
    boxes = len(overlaps)
    for name, tensor in (
        ("box_responsible_flags", box_responsible_flags),
        ("max_overlaps", max_overlaps),
        ("argmax_overlaps", argmax_overlaps),
    ):
        check_shape(operator, name, tensor, [len(self)], "self")
    for name, tensor in (("gt_max_overlaps", gt_max_overlaps), ("gt_argmax_overlaps", gt_argmax_overlaps)):
        check_shape(operator, name, tensor, [boxes], "the boxes of overlaps")
    answers = box_responsible_flags.bool()
    result = self.clone()
    found = (max_overlaps > pos_iou_thr) & answers
    result[found] = (argmax_overlaps[found] + 1).to(result.dtype)
    count = len(self)
    check_within(
        operator, "gt_argmax_overlaps", gt_argmax_overlaps, count, f"must be from 0 to {count - 1}, of anchors"
    )
    for box in range(min(boxes, int(num_gts))):
        if float(gt_max_overlaps[box]) > min_pos_iou:
            if gt_max_assign_all:
                result[(overlaps[box] == gt_max_overlaps[box]) & answers] = box + 1
            elif bool(answers[int(gt_argmax_overlaps[box])]):
                result[int(gt_argmax_overlaps[box])] = box + 1
    return result


def npu_rotated_box_encode(self: Tensor, gt_bboxes: Tensor, weight: Tensor) -> Tensor:
    """[B, 5, N]: ``gt_bboxes`` as differences from the anchors ``self``: x1, y1, x2, y2 and an angle in degrees."""
    operator = "npu_rotated_box_encode"
    _check_rotated(operator, self, "gt_bboxes", gt_bboxes, weight)
    anchor, box, factor = wide(self), wide(gt_bboxes), wide(weight)
    (px, py, pw, ph, pt), (gx, gy, gw, gh, gt) = (
        ((t[:, 0] + t[:, 2]) / 2, (t[:, 1] + t[:, 3]) / 2, t[:, 2] - t[:, 0], t[:, 3] - t[:, 1], t[:, 4])
        for t in (anchor, box)
    )
    turn = torch.deg2rad(gt).tan() - torch.deg2rad(pt).tan()
    deltas = torch.stack(((gx - px) / pw, (gy - py) / ph, (gw / pw).log(), (gh / ph).log(), turn), 1)
    return (deltas * factor.view(5, 1)).to(self.dtype)


def npu_rotated_box_decode(self: Tensor, deltas: Tensor, weight: Tensor) -> Tensor:
    """[B, 5, N]: the boxes that differ from the anchors ``self`` by ``deltas``."""
    operator = "npu_rotated_box_decode"
    _check_rotated(operator, self, "deltas", deltas, weight)
    t, d = wide(self), wide(deltas) / wide(weight).view(5, 1)
    px, py, pw, ph = (t[:, 0] + t[:, 2]) / 2, (t[:, 1] + t[:, 3]) / 2, t[:, 2] - t[:, 0], t[:, 3] - t[:, 1]
    x, y, w, h = d[:, 0] * pw + px, d[:, 1] * ph + py, d[:, 2].exp() * pw, d[:, 3].exp() * ph
    angle = torch.rad2deg((d[:, 4] + torch.deg2rad(t[:, 4]).tan()).atan())
    return torch.stack((x - w / 2, y - h / 2, x + w / 2, y + h / 2, angle), 1).to(self.dtype)


def _check(operator: str, one: str, anchors: Tensor, other: str, boxes: Tensor) -> None:
    check_float(operator, **{one: anchors, other: boxes})
    if anchors.dim() != 2 or anchors.shape[1] != 4:
        refuse(operator, one, f"of shape {list(anchors.shape)}", "must be of shape [N, 4]")
    check_shape(operator, other, boxes, anchors.shape, one)


def _check_rotated(operator: str, anchors: Tensor, other: str, boxes: Tensor, weight: Tensor) -> None:
    check_float(operator, self=anchors, **{other: boxes}, weight=weight)
    if anchors.dim() != 3 or anchors.shape[1] != 5:
        refuse(operator, "self", f"of shape {list(anchors.shape)}", "must be of shape [B, 5, N]")
    check_shape(operator, other, boxes, anchors.shape, "self")
    check_shape(operator, "weight", weight, [5], "the numbers of a box")


def _centres(boxes: Tensor) -> tuple[Tensor, Tensor]:
    """Centres [N, 2] and sizes [N, 2]."""
    return (boxes[:, :2] + boxes[:, 2:]) * 0.5, boxes[:, 2:] - boxes[:, :2] + 1
