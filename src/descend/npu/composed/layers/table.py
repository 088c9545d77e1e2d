"""The rows of the operators in this folder."""

from __future__ import annotations

from descend.npu.composed.row import Section, row

RECURRENT: Section = (
    row(
        "npu_lstm",
        "layers.recurrent",
        "step by step in float32, each result rounded once; torch.nn.LSTM does not call it here",
        "flag_seq; direction",
        "npu_lstm_backward",
        documents=("torch_npu.npu_lstm", "op-plugin's LstmKernelNpu.cpp"),
    ),
    row(
        "npu_lstm_cell",
        "layers.recurrent",
        "in float32, each result rounded once",
        "shapes that do not fit",
        "npu_lstm_cell_backward",
        documents=("op-plugin's LstmCellKernelNpu.cpp",),
    ),
    row(
        "npu_gru",
        "layers.recurrent",
        "step by step in float32, each result rounded once; torch.nn.GRU does not call it here",
        "shapes that do not fit",
        "npu_gru_backward",
        documents=("torch_npu.npu_gru", "op-plugin's GruKernelNpu.cpp"),
    ),
)

CONVOLUTIONS_AND_NORMS: Section = (
    row(
        "npu_masked_causal_conv1d",
        "layers.causal_conv",
        "products and sums in float32, rounded once; windows of any length",
        "shapes that do not fit",
        "npu_masked_causal_conv1d_backward",
    ),
    row(
        "npu_conv2d",
        "layers.convolutions",
        "PyTorch's convolution in float32, rounded once",
        "a padding of more numbers than directions, unless these are repeated",
        "none: programs call npu_conv2d_backward",
        more=("npu_conv2d.out", "npu_conv2d_backward"),
        documents=("op-plugin's Conv2dKernelNpu.cpp",),
    ),
    row(
        "npu_conv3d",
        "layers.convolutions",
        "as npu_conv2d",
        "as npu_conv2d",
        "none: programs call npu_conv3d_backward",
        more=("npu_conv3d.out", "npu_conv3d_backward"),
        documents=("op-plugin's Conv3dKernelNpu.cpp",),
    ),
    row(
        "npu_conv_transpose2d",
        "layers.convolutions",
        "as npu_conv2d",
        "as npu_conv2d",
        "none: programs call npu_conv_transpose2d_backward",
        more=("npu_conv_transpose2d_backward", "npu_conv_transpose3d_backward"),
        documents=("op-plugin's ConvTranspose2dKernelNpu.cpp",),
    ),
    row(
        "npu_convolution",
        "layers.convolutions",
        "as npu_conv2d",
        "as npu_conv2d",
        "npu_convolution_backward",
        documents=("op-plugin's ConvolutionKernelNpu.cpp",),
    ),
    row(
        "npu_convolution_transpose",
        "layers.convolutions",
        "as npu_conv2d",
        "as npu_conv2d",
        "npu_convolution_transpose_backward",
        documents=("op-plugin's ConvolutionTransposeKernelNpu.cpp",),
    ),
    row(
        "npu_add_rms_norm_cast",
        "layers.fused_norms",
        "in float32, rounded once; the first result stays in float32",
        "shapes that do not fit",
        documents=("op-plugin's test_npu_add_rms_norm_cast.py",),
    ),
    row(
        "npu_normalize_batch",
        "layers.fused_norms",
        "in float32, rounded once",
        "a seq_len below 1",
        documents=("op-plugin's test_normalize_batch.py",),
    ),
    row(
        "SyncBatchNorm",
        "layers.sync_batch_norm",
        "sums in float32, rounded once; torch.nn.SyncBatchNorm calls these operators",
        "inputs of fewer than 2 dimensions",
        "aten::batch_norm_backward_reduce, aten::batch_norm_backward_elemt",
        kernels=(
            "batch_norm_reduce",
            "batch_norm_gather_stats_update",
            "aten::batch_norm_stats",
            "aten::batch_norm_gather_stats",
            "aten::batch_norm_gather_stats_with_counts",
            "aten::batch_norm_elemt",
            "aten::batch_norm_elemt.out",
            "aten::batch_norm_backward_reduce",
            "aten::batch_norm_backward_elemt",
        ),
        documents=(
            "aclnnBatchNormReduce",
            "aclnnSyncBatchNormGatherStats",
            "aclnnBatchNormElemt",
            "aclnnBatchNormReduceBackward",
        ),
    ),
)

ACTIVATIONS: Section = (
    row(
        "npu_fast_gelu",
        "layers.activations",
        "x * sigmoid(1.702 * x) in float32, rounded once",
        "dtypes that are not floating",
        "npu_fast_gelu_backward",
        more=("fast_gelu",),
        documents=("torch_npu.npu_fast_gelu", "aclnnFastGelu", "aclnnFastGeluBackward"),
    ),
    row(
        "npu_geglu",
        "layers.activations",
        "torch.nn.functional.gelu of one half, times the other, in float32, rounded once",
        "a dimension of odd size; an approximate that is neither 0 nor 1",
        "npu_geglu_grad",
        documents=("torch_npu.npu_geglu", "aclnnGeGluV3", "aclnnGeGluV3Backward"),
    ),
    row(
        "_npu_dropout",
        "layers.dropout",
        "a mask of bits from seed and offset, the same that npu_fusion_attention draws",
        "probabilities outside 0 to 1",
        "npu_dropout_backward",
        more=("npu_dropout_do_mask", "npu_dropout_gen_mask", "_npu_dropout_gen_mask.Tensor"),
        documents=("torch_npu.npu_dropout_gen_mask", "aclnnDropoutGenMaskV2", "aclnnDropoutDoMask"),
    ),
    row(
        "dropout_with_byte_mask",
        "layers.dropout",
        "as _npu_dropout, with a byte for each number",
        "probabilities outside 0 to 1",
        "_dropout_with_byte_mask_backward",
        kernels=("_dropout_with_byte_mask", "_dropout_with_byte_mask_backward"),
    ),
    row(
        "npu_dropout_with_add_softmax",
        "layers.dropout",
        "a sum and its softmax in float32, rounded once; x1 gets its gradient, on an Ascend that of the result",
        "shapes that differ",
        "npu_dropout_with_add_softmax_backward",
    ),
    row(
        "npu_mish",
        "layers.activations",
        "torch.nn.functional.mish in float32, rounded once",
        "dtypes that are not floating",
        "npu_mish_backward",
    ),
    row(
        "npu_silu",
        "layers.activations",
        "torch.nn.functional.silu in float32, rounded once",
        "dtypes that are not floating",
        "npu_silu_backward",
        more=("npu_silu_",),
    ),
    row(
        "npu_gelu_mul",
        "layers.activations",
        "torch.nn.functional.gelu of the left half, times the right one, in float32, rounded once",
        "a last dimension of odd size",
    ),
    row(
        "npu_clipped_swiglu",
        "layers.activations",
        "in float32, rounded once; rows beyond those of group_index are 0",
        "a dimension of odd size",
    ),
)

HYPER_CONNECTIONS: Section = (
    row(
        "npu_mhc_pre",
        "layers.mhc",
        "products and sums in float32, each result rounded once",
        "gradients without out_flag=1",
        "npu_mhc_pre_backward",
    ),
    row(
        "npu_mhc_sinkhorn",
        "layers.mhc",
        "in float32; the intermediate results have the documented layout, and the first is softmax(x)",
        "num_iters above 100; gradients without out_flag=1; intermediate results in the layout of a processor's tiles",
        "npu_mhc_sinkhorn_backward",
    ),
    row(
        "npu_mhc_post",
        "layers.mhc",
        "products and sums in float32, each result rounded once",
        "shapes that do not fit",
        "npu_mhc_post_backward",
    ),
)

SECTIONS = {
    "Recurrent layers": RECURRENT,
    "Convolutions and norms": CONVOLUTIONS_AND_NORMS,
    "Activations and dropout": ACTIVATIONS,
    "Hyper-connections": HYPER_CONNECTIONS,
}
