"""The operators of torch_npu that Descend composes of PyTorch's: how, what is refused, and the documents followed.

Docs, registration and tests read this table. `functions` finds the functions that compute a row's operators.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

PACKAGE = "descend.npu.composed"


@dataclass(frozen=True)
class Composed:
    """An operator of torch_npu and its gradient."""

    operator: str
    module: str
    """Which module of this package computes it."""
    kernels: tuple[str, ...]
    """The names of torch_npu's operators that the row serves, forward and gradient, with their overloads.

    ``aten::`` before a name says that PyTorch has the operator, but no kernel of the CPU's for it."""
    gradient: str
    """The operators by which torch_npu computes the gradient. Where it has none: by PyTorch's autograd."""
    how: str
    restrictions: str
    """What is refused, with an error that says so."""
    documents: tuple[str, ...]


GROUPED = "antiquant_scale, activations, group_list_type 2; group_type 2 with bias"


MX_REFUSED = "dtypes other than float16 and bfloat16"


def _quant(
    operator: str, module: str, how: str, restrictions: str, *documents: str, more: tuple[str, ...] = ()
) -> Composed:
    return Composed(operator, module, (operator, *more), "none", how, restrictions, documents)


def _mc2(operator: str, how: str, restrictions: str) -> Composed:
    how += ", in float32, by gloo"
    return Composed(operator, "communication", (operator,), "none", how, restrictions, (f"torch_npu.{operator}",))


TABLE = (
    Composed(
        "npu_fusion_attention",
        "fusion_attention",
        ("npu_fusion_attention", "npu_fusion_attention_grad"),
        "npu_fusion_attention_grad",
        "matrix products and softmax in float32, in blocks; gradients by PyTorch's flash attention where it can",
        "pse_type 2 and 3 and their q_start_idx and kv_start_idx; pse in its compressed form, and so any pse in TND; "
        "sink; padding_mask; a dropout_mask that seed and offset do not give; an atten_mask whose shape or content is "
        "not that of its sparse_mode",
        ("torch_npu.npu_fusion_attention", "aclnnFlashAttentionScore", "aclnnFlashAttentionVarLenScoreV4"),
    ),
    Composed(
        "npu_fusion_attention_v2",
        "fusion_attention",
        ("npu_fusion_attention_v2", "npu_fusion_attention_grad_v2"),
        "npu_fusion_attention_grad_v2",
        "as npu_fusion_attention; query_rope and key_rope are appended to each head of query and key",
        "as npu_fusion_attention; query_rope in other layouts than TND",
        ("aclnnFlashAttentionScoreV2", "aclnnFlashAttentionVarLenScoreV3"),
    ),
    Composed(
        "npu_fusion_attention_v3",
        "fusion_attention",
        ("npu_fusion_attention_v3", "npu_fusion_attention_grad_v3"),
        "npu_fusion_attention_grad_v3",
        "as npu_fusion_attention; torch_npu's scaled_dot_product_attention calls it",
        "as npu_fusion_attention",
        ("torch_npu.npu_fusion_attention_v3",),
    ),
    Composed(
        "npu_ring_attention_update",
        "ring_attention",
        ("npu_ring_attention_update",),
        "none",
        "sums and products in float32, the result rounded once",
        "an input_layout other than SBH and TND",
        ("torch_npu.npu_ring_attention_update", "aclnnRingAttentionUpdate"),
    ),
    Composed(
        "npu_fast_gelu",
        "activations",
        ("npu_fast_gelu", "fast_gelu", "npu_fast_gelu_backward"),
        "npu_fast_gelu_backward",
        "x * sigmoid(1.702 * x) in float32, rounded once",
        "dtypes that are not floating",
        ("torch_npu.npu_fast_gelu", "aclnnFastGelu", "aclnnFastGeluBackward"),
    ),
    Composed(
        "npu_geglu",
        "activations",
        ("npu_geglu", "npu_geglu_grad"),
        "npu_geglu_grad",
        "torch.nn.functional.gelu of one half, times the other, in float32, rounded once",
        "a dimension of odd size; an approximate that is neither 0 nor 1",
        ("torch_npu.npu_geglu", "aclnnGeGluV3", "aclnnGeGluV3Backward"),
    ),
    Composed(
        "npu_apply_adam_w",
        "optimizer",
        ("npu_apply_adam_w.out",),
        "none",
        "[ApplyAdamWV2](operators/apply_adam_w_v2.md), in place",
        "amsgrad=True without max_grad_norm; betas and powers that are not between 0 and 1",
        ("aclnnApplyAdamW",),
    ),
    Composed(
        "npu_apply_adam",
        "optimizer",
        ("npu_apply_adam.out",),
        "none",
        "sums and products in float32, in place",
        "shapes that differ",
        ("aclnnApplyAdamD",),
    ),
    Composed(
        "npu_bert_apply_adam",
        "optimizer",
        ("npu_bert_apply_adam.out",),
        "none",
        "sums and products in float32, in place",
        "an adam_mode that is neither 0 nor 1",
        ("ApplyAdamV2",),
    ),
    Composed(
        "npu_confusion_transpose",
        "shapes",
        ("npu_confusion_transpose", "npu_confusion_transpose_backward"),
        "npu_confusion_transpose_backward",
        "permute, reshape and a copy",
        "shapes that do not fit",
        ("torch_npu.npu_confusion_transpose",),
    ),
    Composed(
        "npu_dtype_cast",
        "shapes",
        (
            "npu_dtype_cast",
            "npu_dtype_cast_",
            "npu_dtype_cast_backward",
            "_npu_dtype_cast",
            "_npu_dtype_cast_backward",
        ),
        "npu_dtype_cast_backward, _npu_dtype_cast_backward",
        "Tensor.to",
        "dtypes that PyTorch does not have",
        ("torch_npu.npu_dtype_cast",),
    ),
    Composed(
        "npu_grouped_matmul",
        "grouped_matmul",
        ("npu_grouped_matmul", "npu_grouped_matmul.List"),
        "by PyTorch's autograd (torch_npu has none)",
        "one matrix product for each group in float32, rounded once; quantised ones as npu_quant_matmul",
        GROUPED,
        ("torch_npu.npu_grouped_matmul", "aclnnGroupedMatmulV5"),
    ),
    Composed(
        "npu_grouped_matmul_add_",
        "grouped_matmul",
        ("npu_grouped_matmul_add_", "npu_grouped_matmul_add"),
        "none",
        "one matrix product for each group in float32, added to what is there",
        "a group_type other than 2; x that is not transposed",
        ("op-plugin's test_npu_grouped_matmul_add.py",),
    ),
    _quant(
        "npu_dynamic_mx_quant",
        "mx_quant",
        "scales are powers of two, exactly as documented; numbers are rounded to the nearest, or by round_mode",
        "a dst_type other than float8 and float4; dst_type_max without scale_alg 2",
        "aclnnDynamicMxQuantV3",
    ),
    _quant(
        "npu_dynamic_mx_quant_with_dual_axis",
        "mx_quant",
        "as npu_dynamic_mx_quant along two dimensions",
        MX_REFUSED,
        "aclnnDynamicMxQuantWithDualAxisV2",
    ),
    _quant(
        "npu_dynamic_block_mx_quant",
        "mx_quant",
        "as npu_dynamic_mx_quant in blocks of 32 x 32",
        f"{MX_REFUSED}; scale_alg 1",
        "aclnnDynamicBlockMxQuant",
    ),
    _quant(
        "npu_grouped_dynamic_mx_quant",
        "mx_quant",
        "as npu_dynamic_mx_quant within groups of rows; scales of no block are 0",
        f"{MX_REFUSED}; groups that do not end with the rows of x",
        "aclnnGroupedDynamicMxQuantV2",
    ),
    _quant(
        "npu_anti_mx_quant",
        "mx_quant",
        "products in float32, rounded once",
        "scales of another shape",
        "aclnnAntiMxQuant",
    ),
    _quant(
        "npu_dynamic_quant",
        "quantize",
        "in float32, rounded once to the nearest even; the largest number instead of a larger one",
        "dtypes other than float16 and bfloat16; dst_type_max without hifloat8",
        "torch_npu.npu_dynamic_quant",
        "aclnnDynamicQuantV4",
    ),
    _quant(
        "npu_dynamic_quant_asymmetric",
        "quantize",
        "as npu_dynamic_quant",
        "as npu_dynamic_quant",
        "torch_npu.npu_dynamic_quant_asymmetric",
        "aclnnDynamicQuantV4",
    ),
    _quant(
        "npu_dynamic_block_quant",
        "quantize",
        "as npu_dynamic_quant, in blocks",
        "blocks of undocumented sizes; a round_mode that does not go with dst_type",
        "torch_npu.npu_dynamic_block_quant",
        "aclnnDynamicBlockQuantV2",
    ),
    _quant(
        "npu_grouped_dynamic_block_quant",
        "quantize",
        "as npu_dynamic_block_quant within groups of rows; scales of no block are 0",
        "as npu_dynamic_block_quant; group_list_type 1",
        "torch_npu.npu_grouped_dynamic_block_quant",
        "aclnnGroupedDynamicBlockQuantV2",
    ),
    _quant(
        "npu_quantize",
        "quantize",
        "as npu_dynamic_quant",
        "a dtype other than int8, uint8, int32, int4, float8 and hifloat8",
        "torch_npu.npu_quantize",
        "aclnnQuantize",
        "aclnnAscendQuantV3",
    ),
    _quant(
        "npu_anti_quant",
        "quantize",
        "in float32, rounded once",
        "scales that cannot be expanded",
        "torch_npu.npu_anti_quant",
        "aclnnAscendAntiQuant",
    ),
    _quant(
        "npu_trans_quant_param",
        "quantize",
        "the documented bits",
        "a scale that is not float32",
        "torch_npu.npu_trans_quant_param",
        "aclnnTransQuantParamV2",
    ),
    _quant(
        "npu_quant_matmul",
        "quant_matmul",
        "integers exactly in int32, others in float32; then times the scales, rounded once",
        "float8 with float4, int8 with int4; int4 with groups along K; y_scale",
        "torch_npu.npu_quant_matmul",
        "aclnnQuantMatmulV5",
    ),
    _quant(
        "npu_add_quant_matmul_",
        "quant_matmul",
        "as npu_quant_matmul, added to what is there",
        "scales other than of MX, or one number each for hifloat8",
        "torch_npu.npu_add_quant_matmul_",
        "aclnnQuantBatchMatmulInplaceAdd",
        more=("npu_add_quant_matmul",),
    ),
    _quant(
        "npu_add_quant_gmm_",
        "quant_grouped_matmul",
        "as npu_add_quant_matmul_, for each group of columns",
        "as npu_add_quant_matmul_; group_sizes",
        "op-plugin's test_quant_grouped_matmul_inplace_add.py",
        more=("npu_add_quant_gmm",),
    ),
    _mc2("npu_all_gather_base_mm", "rows are gathered, then multiplied", "quantization; gather_index 1"),
    _mc2("npu_mm_reduce_scatter_base", "the product is reduced and scattered", "quantization; other sums"),
    _mc2("npu_mm_all_reduce_base", "the product is added up over the processes", "quantization; other sums"),
    _mc2("npu_all_to_all_matmul", "rows are exchanged for columns, then multiplied", "other all2all_axes"),
    _mc2("npu_matmul_all_to_all", "columns of the product are exchanged for rows", "other all2all_axes"),
    _mc2("npu_alltoallv_gmm", "rows are sent to their experts, and multiplied there", "counts as tensors"),
    _mc2("npu_gmm_alltoallv", "products of experts are sent back", "counts as tensors"),
    Composed(
        "npu_moe_token_permute",
        "moe",
        ("npu_moe_token_permute", "npu_moe_token_permute_grad", "npu_moe_token_permute_grad_v2"),
        "npu_moe_token_permute_grad_v2",
        "a stable sort and index_select",
        "padded_mode",
        ("aclnnMoeTokenPermute", "aclnnMoeTokenPermuteGrad"),
    ),
    Composed(
        "npu_moe_token_unpermute",
        "moe",
        ("_npu_moe_token_unpermute", "npu_moe_token_unpermute_grad", "npu_moe_token_unpermute_grad_v2"),
        "npu_moe_token_unpermute_grad_v2",
        "index_select, and a sum in float32",
        "padded_mode",
        ("aclnnMoeTokenUnpermute", "aclnnMoeTokenUnpermuteGrad"),
    ),
    Composed(
        "npu_moe_token_permute_with_routing_map",
        "moe_map",
        ("npu_moe_token_permute_with_routing_map", "npu_moe_token_permute_with_routing_map_grad"),
        "npu_moe_token_permute_with_routing_map_grad",
        "a stable sort and index_select",
        "without drop_and_pad, tokens that do not all have num_out_tokens / T experts",
        ("torch_npu.npu_moe_token_permute_with_routing_map",),
    ),
    Composed(
        "npu_moe_token_unpermute_with_routing_map",
        "moe_map",
        (
            "npu_moe_token_unpermute_with_routing_map",
            "_npu_moe_token_unpermute_with_routing_map",
            "npu_moe_token_unpermute_with_routing_map_grad",
        ),
        "npu_moe_token_unpermute_with_routing_map_grad",
        "index_select or index_add, and a sum in float32",
        "without drop_and_pad, tokens that do not all have the same number of experts",
        ("torch_npu.npu_moe_token_unpermute_with_routing_map",),
    ),
    Composed(
        "npu_linear",
        "matmul",
        ("npu_linear", "npu_linear_backward"),
        "npu_linear_backward",
        "torch.nn.functional.linear in float32, rounded once",
        "matrices of other than 2 dimensions",
        ("torch_npu.npu_linear",),
    ),
    Composed(
        "npu_bmmV2",
        "matmul",
        ("npu_bmmV2", "npu_bmm_v2_mat1_backward", "npu_bmm_v2_mat2_backward"),
        "npu_bmm_v2_mat1_backward, npu_bmm_v2_mat2_backward",
        "a matrix product in float32, rounded once",
        "int8; two vectors",
        ("torch_npu.npu_bmmV2",),
    ),
    Composed(
        "_npu_dropout",
        "dropout",
        (
            "_npu_dropout",
            "npu_dropout_do_mask",
            "npu_dropout_backward",
            "npu_dropout_gen_mask",
            "_npu_dropout_gen_mask.Tensor",
        ),
        "npu_dropout_backward",
        "a mask of bits from seed and offset, the same that npu_fusion_attention draws",
        "probabilities outside 0 to 1",
        ("torch_npu.npu_dropout_gen_mask", "aclnnDropoutGenMaskV2", "aclnnDropoutDoMask"),
    ),
    Composed(
        "dropout_with_byte_mask",
        "dropout",
        ("_dropout_with_byte_mask", "_dropout_with_byte_mask_backward"),
        "_dropout_with_byte_mask_backward",
        "as _npu_dropout, with a byte for each number",
        "probabilities outside 0 to 1",
        ("torch_npu.dropout_with_byte_mask",),
    ),
    Composed(
        "npu_dropout_with_add_softmax",
        "dropout",
        ("npu_dropout_with_add_softmax", "npu_dropout_with_add_softmax_backward"),
        "npu_dropout_with_add_softmax_backward",
        "a sum and its softmax in float32, rounded once; x1 gets its gradient, on an Ascend that of the result",
        "shapes that differ",
        ("torch_npu.npu_dropout_with_add_softmax",),
    ),
    Composed(
        "npu_multi_head_attention",
        "multi_head_attention",
        ("npu_multi_head_attention", "npu_multi_head_attention_backward"),
        "npu_multi_head_attention_backward",
        "matrix products and softmax in float32, each result rounded once",
        "sizes that are not multiples of 16; rows of another length than N * D",
        ("torch_npu.npu_multi_head_attention",),
    ),
    Composed(
        "npu_slice",
        "plain",
        ("npu_slice",),
        "none",
        "a copy",
        "parts that are not within the tensor",
        ("torch_npu.npu_slice",),
    ),
    Composed(
        "npu_transpose",
        "plain",
        ("npu_transpose",),
        "none",
        "permute and a copy",
        "a perm that is not an order of the dimensions",
        ("torch_npu.npu_transpose",),
    ),
    Composed(
        "npu_broadcast",
        "plain",
        ("npu_broadcast",),
        "none",
        "expand and a copy",
        "sizes that do not fit",
        ("torch_npu.npu_broadcast",),
    ),
    Composed(
        "npu_pad",
        "plain",
        ("npu_pad",),
        "none",
        "torch.nn.functional.pad with zeros",
        "negative paddings",
        ("torch_npu.npu_pad",),
    ),
    Composed(
        "npu_one_hot",
        "plain",
        ("npu_one_hot",),
        "none",
        "a comparison with 0, 1, ..., depth - 1",
        "a depth below 1; classes in another dimension than the last",
        ("torch_npu.npu_one_hot",),
    ),
    Composed(
        "npu_sort_v2",
        "plain",
        ("npu_sort_v2",),
        "none",
        "Tensor.sort",
        "nothing",
        ("torch_npu.npu_sort_v2",),
    ),
    Composed(
        "npu_max",
        "plain",
        ("npu_max.dim", "npu_max_backward"),
        "npu_max_backward",
        "torch.max, with places in int32",
        "nothing",
        ("torch_npu.npu_max",),
    ),
    Composed(
        "npu_min",
        "plain",
        ("npu_min.dim", "npu_min_backward"),
        "npu_min_backward",
        "torch.min, with places in int32",
        "nothing",
        ("torch_npu.npu_min",),
    ),
    Composed(
        "npu_mish",
        "activations",
        ("npu_mish", "npu_mish_backward"),
        "npu_mish_backward",
        "torch.nn.functional.mish in float32, rounded once",
        "dtypes that are not floating",
        ("torch_npu.npu_mish",),
    ),
    Composed(
        "npu_silu",
        "activations",
        ("npu_silu", "npu_silu_", "npu_silu_backward"),
        "npu_silu_backward",
        "torch.nn.functional.silu in float32, rounded once",
        "dtypes that are not floating",
        ("torch_npu.npu_silu",),
    ),
    Composed(
        "npu_softmax_cross_entropy_with_logits",
        "plain",
        ("npu_softmax_cross_entropy_with_logits", "npu_softmax_cross_entropy_with_logits_backward"),
        "npu_softmax_cross_entropy_with_logits_backward",
        "log_softmax and sums in float32, rounded once; labels need not add up to 1",
        "labels of another shape",
        ("torch_npu.npu_softmax_cross_entropy_with_logits",),
    ),
    Composed(
        "npu_nsa_compress_attention",
        "nsa",
        ("npu_nsa_compress_attention",),
        "by npu_fusion_attention_grad",
        "as npu_fusion_attention; blocks are scored in float32, and of equal scores the first is taken",
        "window sizes that are not multiples of compress_stride",
        ("torch_npu.npu_nsa_compress_attention", "aclnnNsaCompressAttention"),
    ),
    Composed(
        "npu_nsa_select_attention",
        "nsa",
        ("npu_nsa_select_attention", "npu_nsa_select_attention_grad"),
        "npu_nsa_select_attention_grad",
        "the keys of a few queries at a time; matrix products and softmax in float32, rounded once",
        "atten_mask; topk_indices that name no block of the sequence",
        ("torch_npu.npu_nsa_select_attention", "aclnnNsaSelectedAttention", "aclnnNsaSelectedAttentionGrad"),
    ),
    Composed(
        "npu_sparse_flash_attention",
        "sparse_attention",
        ("npu_sparse_flash_attention", "npu_sparse_flash_attention_grad"),
        "npu_sparse_flash_attention_grad",
        "the keys of a few queries at a time; matrix products and softmax in float32, rounded once",
        "an attention_mode other than 2; value None; gradients without return_softmax_lse, or with keys in pages",
        ("torch_npu.npu_sparse_flash_attention",),
    ),
    Composed(
        "npu_lightning_indexer",
        "lightning_indexer",
        ("npu_lightning_indexer", "npu_lightning_indexer_grad"),
        "npu_lightning_indexer_grad",
        "scores in float32, and a stable sort; keys that a query does not see have index -1 and score -inf",
        "sparse modes other than 0 and 3; numbers of tokens that hide keys in mode 0",
        ("torch_npu.npu_lightning_indexer",),
    ),
    Composed(
        "npu_sparse_lightning_indexer_grad_kl_loss",
        "lightning_indexer",
        ("npu_sparse_lightning_indexer_grad_kl_loss",),
        "none: it gives gradients itself",
        "products, softmax and sums in float32, each result rounded once",
        "sinks; more than one key head",
        ("torch_npu.npu_sparse_lightning_indexer_grad_kl_loss",),
    ),
    Composed(
        "npu_dense_lightning_indexer_grad_kl_loss",
        "lightning_indexer",
        ("npu_dense_lightning_indexer_softmax_lse", "npu_dense_lightning_indexer_grad_kl_loss"),
        "none: it gives gradients itself",
        "as the sparse one, of all keys; npu_dense_lightning_indexer_softmax_lse computes its statistics",
        "sparse modes other than 0 and 3",
        (
            "torch_npu.npu_dense_lightning_indexer_grad_kl_loss",
            "torch_npu.npu_dense_lightning_indexer_softmax_lse",
        ),
    ),
    Composed(
        "npu_mhc_pre",
        "mhc",
        ("npu_mhc_pre", "npu_mhc_pre_backward"),
        "npu_mhc_pre_backward",
        "products and sums in float32, each result rounded once",
        "gradients without out_flag=1",
        ("torch_npu.npu_mhc_pre",),
    ),
    Composed(
        "npu_mhc_sinkhorn",
        "mhc",
        ("npu_mhc_sinkhorn", "npu_mhc_sinkhorn_backward"),
        "npu_mhc_sinkhorn_backward",
        "in float32; the intermediate results have the documented layout, and the first is softmax(x)",
        "num_iters above 100; gradients without out_flag=1; intermediate results in the layout of a processor's tiles",
        ("torch_npu.npu_mhc_sinkhorn",),
    ),
    Composed(
        "npu_mhc_post",
        "mhc",
        ("npu_mhc_post", "npu_mhc_post_backward"),
        "npu_mhc_post_backward",
        "products and sums in float32, each result rounded once",
        "shapes that do not fit",
        ("torch_npu.npu_mhc_post",),
    ),
    Composed(
        "npu_fused_linear_online_max_sum",
        "linear_cross_entropy",
        (
            "npu_fused_linear_online_max_sum",
            "npu_fused_cross_entropy_loss_with_max_sum",
            "npu_fused_linear_cross_entropy_loss_with_max_sum_backward",
        ),
        "none: programs call npu_fused_linear_cross_entropy_loss_with_max_sum_backward",
        "a few rows of logits at a time, in float32",
        "label_smoothing; input and weight of npu_fused_cross_entropy_loss_with_max_sum",
        (
            "torch_npu.npu_fused_linear_online_max_sum",
            "torch_npu.npu_fused_cross_entropy_loss_with_max_sum",
            "torch_npu.npu_fused_linear_cross_entropy_loss_with_max_sum_backward",
        ),
    ),
    Composed(
        "npu_masked_causal_conv1d",
        "causal_conv",
        ("npu_masked_causal_conv1d", "npu_masked_causal_conv1d_backward"),
        "npu_masked_causal_conv1d_backward",
        "products and sums in float32, rounded once; windows of any length",
        "shapes that do not fit",
        ("torch_npu.npu_masked_causal_conv1d",),
    ),
    Composed(
        "npu_gelu_mul",
        "activations",
        ("npu_gelu_mul",),
        "none",
        "torch.nn.functional.gelu of the left half, times the right one, in float32, rounded once",
        "a last dimension of odd size",
        ("torch_npu.npu_gelu_mul",),
    ),
    Composed(
        "npu_clipped_swiglu",
        "activations",
        ("npu_clipped_swiglu",),
        "none",
        "in float32, rounded once; rows beyond those of group_index are 0",
        "a dimension of odd size",
        ("torch_npu.npu_clipped_swiglu",),
    ),
    Composed(
        "npu_moe_gating_top_k",
        "gating",
        ("npu_moe_gating_top_k", "npu_moe_gating_top_k_backward"),
        "npu_moe_gating_top_k_backward",
        "softmax or sigmoid in float32, and stable sorts; the scores are given back without out_flag, too",
        "input_ids and tid2eid; renorm; norm types other than 0 and 1",
        ("torch_npu.npu_moe_gating_top_k",),
    ),
    Composed(
        "npu_moe_gating_top_k_softmax",
        "gating",
        ("npu_moe_gating_top_k_softmax", "npu_moe_gating_top_k_softmax_v2"),
        "none",
        "softmax in float32, and a stable sort",
        "k below 1 or above the number of experts",
        ("torch_npu.npu_moe_gating_top_k_softmax",),
    ),
    Composed(
        "npu_moe_re_routing",
        "routing",
        ("npu_moe_re_routing",),
        "none",
        "a stable sort and index_select; without per_token_scales their result is 0",
        "expert_token_num_type 0; idx_type 1; tokens_dtype",
        ("torch_npu.npu_moe_re_routing",),
    ),
    Composed(
        "npu_moe_finalize_routing",
        "routing",
        ("npu_moe_finalize_routing",),
        "none",
        "index_select, and sums in float32, rounded once",
        "places and experts that do not exist",
        ("torch_npu.npu_moe_finalize_routing",),
    ),
    Composed(
        "npu_iou",
        "box_overlaps",
        ("npu_iou", "npu_ptiou"),
        "none",
        "in float32, rounded once; boxes are wider by 0.01, as on an Atlas A2",
        "boxes of other than 4 numbers; a mode other than 0 and 1",
        ("torch_npu.npu_iou", "torch_npu.npu_ptiou"),
    ),
    Composed(
        "npu_giou",
        "box_overlaps",
        ("npu_giou", "npu_giou_backward"),
        "npu_giou_backward",
        "in float32, rounded once",
        "trans False; is_cross; mode 1",
        ("torch_npu.npu_giou",),
    ),
    Composed(
        "npu_diou",
        "box_overlaps",
        ("npu_diou", "npu_diou_backward"),
        "npu_diou_backward",
        "in float32, rounded once",
        "gradients with trans False, is_cross or mode 1",
        ("torch_npu.npu_diou",),
    ),
    Composed(
        "npu_ciou",
        "box_overlaps",
        ("_npu_ciou", "npu_ciou_backward"),
        "npu_ciou_backward",
        "in float32, rounded once; the weight alpha is a constant for the gradient",
        "gradients with trans False, is_cross or mode 1",
        ("torch_npu.npu_ciou",),
    ),
    Composed(
        "npu_bounding_box_encode",
        "box_codes",
        ("npu_bounding_box_encode", "npu_bounding_box_decode"),
        "none",
        "in float32, rounded once; a box from 3 to 5 is 3 wide",
        "boxes of other than 4 numbers",
        ("torch_npu.npu_bounding_box_encode", "torch_npu.npu_bounding_box_decode"),
    ),
    Composed(
        "npu_yolo_boxes_encode",
        "box_codes",
        ("npu_yolo_boxes_encode",),
        "none",
        "in float32, rounded once",
        "a stride that is not int32",
        ("torch_npu.npu_yolo_boxes_encode",),
    ),
    Composed(
        "npu_rotated_box_encode",
        "box_codes",
        ("npu_rotated_box_encode", "npu_rotated_box_decode"),
        "none",
        "in float32, rounded once",
        "boxes of other than 5 numbers",
        ("op-plugin's test_rotated_box.py",),
    ),
    Composed(
        "npu_anchor_response_flags",
        "box_codes",
        ("npu_anchor_response_flags",),
        "none",
        "a division and an assignment; centres outside the map count for the cell at its edge",
        "strides and sizes below 1",
        ("torch_npu.npu_anchor_response_flags",),
    ),
    Composed(
        "npu_grid_assign_positive",
        "box_codes",
        ("npu_grid_assign_positive",),
        "none",
        "comparisons and assignments, box by box",
        "shapes that do not fit",
        ("torch_npu.npu_grid_assign_positive",),
    ),
    Composed(
        "npu_nms_v4",
        "suppression",
        ("npu_nms_v4",),
        "none",
        "box by box, in float32; of equal scores the first",
        "boxes of other than 4 numbers",
        ("torch_npu.npu_nms_v4",),
    ),
    Composed(
        "npu_nms_with_mask",
        "suppression",
        ("npu_nms_with_mask",),
        "none",
        "box by box, in float32, in the order of the rows",
        "rows of other than 5 or 8 numbers",
        ("torch_npu.npu_nms_with_mask",),
    ),
    Composed(
        "npu_batch_nms",
        "suppression",
        ("npu_batch_nms",),
        "none",
        "class by class and box by box, in float32; of equal scores the first",
        "change_coordinate_frame; transpose_box",
        ("torch_npu.npu_batch_nms",),
    ),
    Composed(
        "npu_roi_align",
        "roi",
        ("npu_roi_align", "npu_roi_alignbk"),
        "none: programs call npu_roi_alignbk, as torch_npu.contrib's ROIAlign does",
        "embedding_bag of the map's pixels, in float32, rounded once",
        "a roi_end_mode other than 0, 1 and 3; images that do not exist",
        ("torch_npu.npu_roi_align",),
    ),
    Composed(
        "npu_ps_roi_pooling",
        "roi",
        ("npu_ps_roi_pooling", "npu_ps_roi_pooling_backward"),
        "npu_ps_roi_pooling_backward",
        "products of matrices in float32, rounded once",
        "channels other than output_dim * group_size^2; images that do not exist",
        ("torch_npu.npu_ps_roi_pooling",),
    ),
    Composed(
        "npu_deformable_conv2d",
        "deformable",
        ("npu_deformable_conv2d", "npu_deformable_conv2dbk"),
        "npu_deformable_conv2dbk",
        "gather, and a convolution, in float32; the result stays in float32",
        "a kernel_size that is not that of weight",
        ("torch_npu.npu_deformable_conv2d",),
    ),
    Composed(
        "npu_block_sparse_attention",
        "block_sparse_attention",
        ("npu_block_sparse_attention", "npu_block_sparse_attention_backward"),
        "npu_block_sparse_attention_backward",
        "a block of queries at a time, in float32, rounded once; softmax_lse also without its flag",
        "unlike layouts of query and key; one of the lists of lengths without the other",
        ("torch_npu.npu_block_sparse_attention",),
    ),
    Composed(
        "npu_fused_floyd_attention",
        "floyd_attention",
        ("npu_fused_floyd_attention", "npu_fused_floyd_attention_backward"),
        "npu_fused_floyd_attention_backward",
        "matrix products and softmax in float32, a few rows at a time, rounded once",
        "shapes that do not fit",
        ("torch_npu.npu_fused_floyd_attention",),
    ),
    Composed(
        "npu_chunk_gated_delta_rule",
        "delta_rule",
        ("npu_chunk_gated_delta_rule",),
        "none",
        "token after token, in float32, rounded once",
        "calls without initial_state or actual_seq_lengths",
        ("torch_npu.npu_chunk_gated_delta_rule",),
    ),
    Composed(
        "npu_recurrent_gated_delta_rule",
        "delta_rule",
        ("npu_recurrent_gated_delta_rule", "npu_recurrent_gated_delta_rule_functional"),
        "none",
        "token after token, in float32; a state is rounded where it is kept",
        "calls without actual_seq_lengths",
        ("torch_npu.npu_recurrent_gated_delta_rule",),
    ),
    Composed(
        "npu_apply_rotary_pos_emb",
        "rotary",
        ("npu_apply_rotary_pos_emb",),
        "none",
        "products and sums in float32, rounded once; query and key are changed in place",
        "shapes that do not fit",
        ("torch_npu.npu_apply_rotary_pos_emb",),
    ),
    Composed(
        "npu_mrope",
        "rotary",
        ("npu_mrope",),
        "none",
        "products and sums in float32, rounded once",
        "an mrope_section that does not add up to half of the columns; positions outside the cache",
        ("torch_npu.npu_mrope",),
    ),
    Composed(
        "npu_moe_init_routing",
        "init_routing",
        ("npu_moe_init_routing",),
        "none",
        "a stable sort and index_select",
        "indices that are not int32",
        ("torch_npu.npu_moe_init_routing",),
    ),
    Composed(
        "npu_moe_init_routing_v2",
        "init_routing",
        ("npu_moe_init_routing_v2",),
        "none",
        "a stable sort and index_select; rows and scales beyond those of experts are 0",
        "quantization",
        ("torch_npu.npu_moe_init_routing_v2",),
    ),
    Composed(
        "npu_moe_compute_expert_tokens",
        "init_routing",
        ("npu_moe_compute_expert_tokens",),
        "none",
        "torch.searchsorted",
        "experts that are not int32",
        ("torch_npu.npu_moe_compute_expert_tokens",),
    ),
    Composed(
        "npu_conv2d",
        "convolutions",
        ("npu_conv2d", "npu_conv2d.out", "npu_conv2d_backward"),
        "none: programs call npu_conv2d_backward",
        "PyTorch's convolution in float32, rounded once",
        "a padding of more numbers than directions, unless these are repeated",
        ("op-plugin's Conv2dKernelNpu.cpp",),
    ),
    Composed(
        "npu_conv3d",
        "convolutions",
        ("npu_conv3d", "npu_conv3d.out", "npu_conv3d_backward"),
        "none: programs call npu_conv3d_backward",
        "as npu_conv2d",
        "as npu_conv2d",
        ("op-plugin's Conv3dKernelNpu.cpp",),
    ),
    Composed(
        "npu_conv_transpose2d",
        "convolutions",
        ("npu_conv_transpose2d", "npu_conv_transpose2d_backward", "npu_conv_transpose3d_backward"),
        "none: programs call npu_conv_transpose2d_backward",
        "as npu_conv2d",
        "as npu_conv2d",
        ("op-plugin's ConvTranspose2dKernelNpu.cpp",),
    ),
    Composed(
        "npu_convolution",
        "convolutions",
        ("npu_convolution", "npu_convolution_backward"),
        "npu_convolution_backward",
        "as npu_conv2d",
        "as npu_conv2d",
        ("op-plugin's ConvolutionKernelNpu.cpp",),
    ),
    Composed(
        "npu_convolution_transpose",
        "convolutions",
        ("npu_convolution_transpose", "npu_convolution_transpose_backward"),
        "npu_convolution_transpose_backward",
        "as npu_conv2d",
        "as npu_conv2d",
        ("op-plugin's ConvolutionTransposeKernelNpu.cpp",),
    ),
    Composed(
        "npu_interleave_rope",
        "interleave_rope",
        ("npu_interleave_rope",),
        "none",
        "products and sums in float32, rounded once",
        "shapes that do not fit",
        ("torch_npu.npu_interleave_rope",),
    ),
    Composed(
        "SyncBatchNorm",
        "sync_batch_norm",
        (
            "batch_norm_reduce",
            "batch_norm_gather_stats_update",
            "aten::batch_norm_stats",
            "aten::batch_norm_gather_stats_with_counts",
            "aten::batch_norm_elemt",
            "aten::batch_norm_elemt.out",
            "aten::batch_norm_backward_reduce",
            "aten::batch_norm_backward_elemt",
        ),
        "aten::batch_norm_backward_reduce, aten::batch_norm_backward_elemt",
        "sums in float32, rounded once; torch.nn.SyncBatchNorm calls these operators",
        "inputs of fewer than 2 dimensions",
        (
            "aclnnBatchNormReduce",
            "aclnnSyncBatchNormGatherStats",
            "aclnnBatchNormElemt",
            "aclnnBatchNormReduceBackward",
        ),
    ),
)


def functions(row: Composed) -> Iterator[tuple[str, Callable[..., Any]]]:
    """Each operator of a row, and the function of CPU tensors that computes it."""
    module = importlib.import_module(f"{PACKAGE}.{row.module}")
    for kernel in row.kernels:
        name, _, overload = kernel.removeprefix("aten::").partition(".")
        own = f"{name}_{overload}" if overload else name
        yield kernel, getattr(module, own, None) or getattr(module, name)


KINDS = {
    "Attention": (
        *("fusion_attention", "ring_attention", "multi_head_attention", "nsa", "sparse_attention"),
        *("block_sparse_attention", "floyd_attention", "lightning_indexer", "delta_rule", "interleave_rope", "rotary"),
    ),
    "Mixture of experts": ("gating", "routing", "init_routing", "moe", "moe_map"),
    "Products of matrices": ("matmul", "grouped_matmul"),
    "Products with a collective": ("communication",),
    "Quantisation": ("mx_quant", "quantize"),
    "Quantised products": ("quant_matmul", "quant_grouped_matmul"),
    "Convolutions and norms": ("convolutions", "causal_conv", "sync_batch_norm"),
    "Activations and dropout": ("activations", "dropout"),
    "Losses and optimizers": ("npu_softmax_cross_entropy_with_logits", "linear_cross_entropy", "optimizer"),
    "Hyper-connections": ("mhc",),
    "Detection of objects": ("box_overlaps", "box_codes", "suppression", "roi", "deformable"),
    "Shapes, copies, extremes": ("shapes", "plain"),
}
"""What operators are for, in the order of docs/npu-operators.md: operators, and modules for all others of theirs."""
OTHERS = "Others"


def kind_of(row: Composed) -> str:
    """What an operator is for."""
    for name in (row.operator, row.module):
        for title, names in KINDS.items():
            if name in names:
                return title
    return OTHERS


def markdown() -> str:
    """The tables as docs/npu-operators.md has them: ``python -m descend.npu.composed.table`` prints them."""
    lines = []
    for title in (*KINDS, OTHERS):
        rows = [row for row in TABLE if kind_of(row) == title]
        if not rows:
            continue
        lines += [f"### {title}", "", "| operator | gradient | how | refused | documents |"]
        lines.append("| --- | --- | --- | --- | --- |")
        for row in sorted(rows, key=lambda row: row.operator.lower().lstrip("_")):
            cells = (f"`{row.operator}`", row.gradient, row.how, row.restrictions, ", ".join(row.documents))
            lines.append(f"| {' | '.join(cells)} |")
        lines.append("")
    return "\n".join(lines[:-1])


if __name__ == "__main__":
    print(markdown())
