"""The rows of the operators in this folder."""

from __future__ import annotations

from descend.npu.composed.row import Section, row

DETECTION: Section = (
    row(
        "npu_iou",
        "detection.box_overlaps",
        "in float32, rounded once; boxes are wider by 0.01, as on an Atlas A2",
        "boxes of other than 4 numbers; a mode other than 0 and 1",
        more=("npu_ptiou",),
        documents=("torch_npu.npu_iou", "torch_npu.npu_ptiou"),
    ),
    row(
        "npu_giou",
        "detection.box_overlaps",
        "in float32, rounded once",
        "trans False; is_cross; mode 1",
        "npu_giou_backward",
    ),
    row(
        "npu_diou",
        "detection.box_overlaps",
        "in float32, rounded once",
        "gradients with trans False, is_cross or mode 1",
        "npu_diou_backward",
    ),
    row(
        "npu_ciou",
        "detection.box_overlaps",
        "in float32, rounded once; the weight alpha is a constant for the gradient",
        "gradients with trans False, is_cross or mode 1",
        "npu_ciou_backward",
        kernels=("_npu_ciou", "npu_ciou_backward"),
    ),
    row(
        "npu_bounding_box_encode",
        "detection.box_codes",
        "in float32, rounded once; a box from 3 to 5 is 3 wide",
        "boxes of other than 4 numbers",
        more=("npu_bounding_box_decode",),
        documents=("torch_npu.npu_bounding_box_encode", "torch_npu.npu_bounding_box_decode"),
    ),
    row("npu_yolo_boxes_encode", "detection.box_codes", "in float32, rounded once", "a stride that is not int32"),
    row(
        "npu_rotated_box_encode",
        "detection.box_codes",
        "in float32, rounded once",
        "boxes of other than 5 numbers",
        more=("npu_rotated_box_decode",),
        documents=("op-plugin's test_rotated_box.py",),
    ),
    row(
        "npu_rotated_overlaps",
        "detection.rotated_boxes",
        "pair by pair in Python, in float64, rounded once",
        "boxes of other than 5 numbers",
    ),
    row(
        "npu_rotated_iou",
        "detection.rotated_boxes",
        "as npu_rotated_overlaps",
        "is_cross False; v_threshold and e_threshold",
    ),
    row(
        "npu_nms_rotated",
        "detection.rotated_boxes",
        "as npu_rotated_overlaps; of equal scores the first",
        "boxes of other than 5 numbers",
    ),
    row(
        "npu_anchor_response_flags",
        "detection.box_codes",
        "a division and an assignment; centres outside the map count for the cell at its edge",
        "strides and sizes below 1",
    ),
    row(
        "npu_grid_assign_positive",
        "detection.box_codes",
        "comparisons and assignments, box by box",
        "shapes that do not fit",
    ),
    row(
        "npu_nms_v4",
        "detection.suppression",
        "box by box, in float32; of equal scores the first",
        "boxes of other than 4 numbers",
    ),
    row(
        "npu_nms_with_mask",
        "detection.suppression",
        "box by box, in float32, in the order of the rows",
        "rows of other than 5 or 8 numbers",
    ),
    row(
        "npu_batch_nms",
        "detection.suppression",
        "class by class and box by box, in float32; of equal scores the first",
        "change_coordinate_frame; transpose_box",
    ),
    row(
        "npu_roi_align",
        "detection.roi",
        "embedding_bag of the map's pixels, in float32, rounded once",
        "a roi_end_mode other than 0, 1 and 3; images that do not exist",
        "none: programs call npu_roi_alignbk, as torch_npu.contrib's ROIAlign does",
        more=("npu_roi_alignbk",),
    ),
    row(
        "npu_ps_roi_pooling",
        "detection.roi",
        "products of matrices in float32, rounded once",
        "channels other than output_dim * group_size^2; images that do not exist",
        "npu_ps_roi_pooling_backward",
    ),
    row(
        "npu_deformable_conv2d",
        "detection.deformable",
        "gather, and a convolution, in float32; the result stays in float32",
        "a kernel_size that is not that of weight",
        "npu_deformable_conv2dbk",
    ),
)

SECTIONS = {"Detection of objects": DETECTION}
