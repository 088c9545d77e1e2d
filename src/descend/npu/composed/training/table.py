"""The rows of the operators in this folder."""

from __future__ import annotations

from descend.npu.composed.row import Section, row

TRAINING: Section = (
    row(
        "npu_apply_adam_w",
        "training.optimizer",
        "[ApplyAdamWV2](operators/apply_adam_w_v2.md), in place",
        "amsgrad=True without max_grad_norm; betas and powers that are not between 0 and 1",
        kernels=("npu_apply_adam_w.out",),
        documents=("aclnnApplyAdamW",),
    ),
    row(
        "npu_apply_adam",
        "training.optimizer",
        "sums and products in float32, in place",
        "shapes that differ",
        kernels=("npu_apply_adam.out",),
        documents=("aclnnApplyAdamD",),
    ),
    row(
        "npu_bert_apply_adam",
        "training.optimizer",
        "sums and products in float32, in place",
        "an adam_mode that is neither 0 nor 1",
        kernels=("npu_bert_apply_adam.out",),
        documents=("ApplyAdamV2",),
    ),
    row(
        "npu_softmax_cross_entropy_with_logits",
        "training.cross_entropy",
        "log_softmax and sums in float32, rounded once; labels need not add up to 1",
        "labels of another shape",
        "npu_softmax_cross_entropy_with_logits_backward",
    ),
    row(
        "npu_fused_linear_online_max_sum",
        "training.linear_cross_entropy",
        "a few rows of logits at a time, in float32",
        "label_smoothing; input and weight of npu_fused_cross_entropy_loss_with_max_sum",
        "none: programs call npu_fused_linear_cross_entropy_loss_with_max_sum_backward",
        more=("npu_fused_cross_entropy_loss_with_max_sum", "npu_fused_linear_cross_entropy_loss_with_max_sum_backward"),
        documents=(
            "torch_npu.npu_fused_linear_online_max_sum",
            "torch_npu.npu_fused_cross_entropy_loss_with_max_sum",
            "torch_npu.npu_fused_linear_cross_entropy_loss_with_max_sum_backward",
        ),
    ),
)

CHECKS: Section = (
    row(
        "_npu_silent_check",
        "training.silent_check",
        "the norm of a gradient is compared with limits; of level 1 an error is logged, and npu_asd_detect above 1 "
        "ends the training; of level 2 a warning is logged",
        "an npu_asd_detect other than 1, 2 and 3",
        more=("_npu_silent_check_v2",),
        documents=("aclnnSilentCheck", "torch_npu's NPU_ASD_ENABLE, NPU_ASD_SIGMA_THRESH"),
    ),
    row(
        "npu_get_float_status",
        "training.float_status",
        "0, since the CPU computes with infinities; _amp_foreach_non_finite_check looks for them in the gradients",
        "reading the status with products that do not compute with infinities",
        more=("npu_alloc_float_status", "npu_clear_float_status", "_amp_foreach_non_finite_check"),
        documents=(
            "torch_npu.npu_alloc_float_status",
            "torch_npu.npu_get_float_status",
            "torch_npu.npu_clear_float_status",
        ),
    ),
)

SECTIONS = {"Losses and optimizers": TRAINING, "Checks of a training": CHECKS}
