"""Suppression of boxes that overlap better ones: npu_nms_v4, npu_nms_with_mask, npu_batch_nms.

The box of the best score is kept, and of the others those are left out that overlap it by more than the threshold; then
the next best that is left, and so on. Of equal scores the first comes first.

    overlap = common area / area of both, together

Documents: torch_npu.npu_nms_v4, npu_nms_with_mask, npu_batch_nms.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from descend.npu.composed.arithmetic import check_float, check_one, check_shape, wide
from descend.npu.composed.refusal import refuse


def npu_nms_v4(
    self: Tensor,
    scores: Tensor,
    max_output_size: float,
    iou_threshold: Tensor,
    scores_threshold: Tensor,
    pad_to_max_output_size: bool = False,
) -> tuple[Tensor, Tensor]:
    """int32 [``max_output_size``]: the boxes kept, the best first, then zeros; and how many there are.

    Boxes [N, 4] are two opposite corners; those with a score of ``scores_threshold`` or less are not looked at.
    """
    operator = "npu_nms_v4"
    check_float(operator, self=self, scores=scores, iou_threshold=iou_threshold, scores_threshold=scores_threshold)
    if self.dim() != 2 or self.shape[1] != 4:
        refuse(operator, "self", f"of shape {list(self.shape)}", "must be of shape [N, 4]")
    check_shape(operator, "scores", scores, [len(self)], "the boxes of self")
    for name, threshold in (("iou_threshold", iou_threshold), ("scores_threshold", scores_threshold)):
        check_one(operator, name, threshold)
    if not 0 <= max_output_size < math.inf:
        refuse(operator, "max_output_size", max_output_size, "must be at least 0, and finite")
    size = int(max_output_size)
    boxes, points = wide(self), wide(scores)
    corners = torch.cat((boxes[:, :2].minimum(boxes[:, 2:]), boxes[:, :2].maximum(boxes[:, 2:])), 1)
    order = points.argsort(descending=True, stable=True)
    order = order[points[order] > float(scores_threshold)]
    kept = order[_kept(corners[order], float(iou_threshold), size)]
    result = torch.zeros(size, dtype=torch.int32)
    result[: len(kept)] = kept.int()
    return result, torch.tensor(len(kept), dtype=torch.int32)


def npu_nms_with_mask(input: Tensor, iou_threshold: float) -> tuple[Tensor, Tensor, Tensor]:
    """The boxes [N, 5], their numbers, int32 [N], and uint8 [N]: 1 for a box that is kept.

    ``input`` [N, 5 or 8] has x1, y1, x2, y2 and the score, the best box first.
    """
    operator = "npu_nms_with_mask"
    check_float(operator, input=input)
    if input.dim() != 2 or input.shape[1] not in (5, 8):
        refuse(operator, "input", f"of shape {list(input.shape)}", "must be of shape [N, 5] or [N, 8]")
    mask = torch.zeros(len(input), dtype=torch.uint8)
    mask[_kept(wide(input[:, :4]), float(iou_threshold), len(input))] = 1
    return input[:, :5].clone(), torch.arange(len(input), dtype=torch.int32), mask


def npu_batch_nms(
    self: Tensor,
    scores: Tensor,
    score_threshold: float,
    iou_threshold: float,
    max_size_per_class: int,
    max_total_size: int,
    change_coordinate_frame: bool = False,
    transpose_box: bool = False,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Of each image the ``max_total_size`` best boxes of all classes: boxes, scores, classes, and how many there are.

    Boxes [B, N, 1 or classes, 4], scores [B, N, classes]. A class keeps at most ``max_size_per_class`` of the boxes
    with a score above ``score_threshold``. Results: [B, max_total_size, 4], twice [B, max_total_size], int32 [B].
    """
    operator = "npu_batch_nms"
    check_float(operator, self=self, scores=scores)
    if scores.dim() != 3:
        refuse(operator, "scores", f"of shape {list(scores.shape)}", "must be of shape [B, N, classes]")
    images, count, classes = scores.shape
    if not classes:
        refuse(operator, "scores", f"of shape {list(scores.shape)}", "must have a class or more")
    if self.dim() != 4 or list(self.shape) not in ([images, count, 1, 4], [images, count, classes, 4]):
        rule = f"must be of shape [{images}, {count}, 1 or {classes}, 4]"
        refuse(operator, "self", f"of shape {list(self.shape)}", rule)
    if change_coordinate_frame or transpose_box:
        refuse(operator, "change_coordinate_frame or transpose_box", "True", "must be False")
    for name, size in (("max_size_per_class", max_size_per_class), ("max_total_size", max_total_size)):
        if size < 1:
            refuse(operator, name, size, "must be at least 1")
    boxes = self.new_zeros(images, max_total_size, 4)
    best, labels = scores.new_zeros(images, max_total_size), scores.new_zeros(images, max_total_size)
    counts = torch.zeros(images, dtype=torch.int32)
    for image in range(images):
        of, which, found = [], [], []
        for label in range(classes):
            points, own = wide(scores[image, :, label]), self[image, :, label if self.shape[2] > 1 else 0]
            order = points.argsort(descending=True, stable=True)
            order = order[points[order] > score_threshold]
            order = order[_kept(wide(own[order]), iou_threshold, max_size_per_class)]
            of.append(own[order])
            found.append(scores[image, order, label])
            which.append(torch.full((len(order),), label))
        every = torch.cat(found)
        order = wide(every).argsort(descending=True, stable=True)[:max_total_size]
        number = len(order)
        counts[image] = number
        boxes[image, :number], best[image, :number] = torch.cat(of)[order], every[order]
        labels[image, :number] = torch.cat(which)[order].to(labels.dtype)
    return boxes, best, labels, counts


def _kept(boxes: Tensor, threshold: float, most: int) -> Tensor:
    """The places of the boxes that are kept, in order; the best box comes first."""
    areas = (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])
    left = torch.arange(len(boxes))
    kept: list[int] = []
    while len(left) and len(kept) < most:
        at, left = int(left[0]), left[1:]
        kept.append(at)
        low, high = boxes[left, :2].maximum(boxes[at, :2]), boxes[left, 2:].minimum(boxes[at, 2:])
        common = (high - low).clamp_(min=0).prod(1)
        left = left[~(common > threshold * (areas[left] + areas[at] - common))]
    return torch.tensor(kept, dtype=torch.int64)
