"""The rows of the operators in this folder."""

from __future__ import annotations

from descend.npu.composed.row import Section, row

ATTENTION: Section = (
    row(
        "npu_fusion_attention",
        "attention.fusion_attention",
        "matrix products and softmax in float32, in blocks; gradients by PyTorch's flash attention where it can",
        "pse_type 2 and 3 and their q_start_idx and kv_start_idx; pse in its compressed form, and so any pse in "
        "TND; sink; padding_mask; a dropout_mask that seed and offset do not give; an atten_mask whose shape or "
        "content is not that of its sparse_mode",
        "npu_fusion_attention_grad",
        documents=("torch_npu.npu_fusion_attention", "aclnnFlashAttentionScore", "aclnnFlashAttentionVarLenScoreV4"),
    ),
    row(
        "npu_fusion_attention_v2",
        "attention.fusion_attention",
        "as npu_fusion_attention; query_rope and key_rope are appended to each head of query and key",
        "as npu_fusion_attention; query_rope in other layouts than TND",
        "npu_fusion_attention_grad_v2",
        documents=("aclnnFlashAttentionScoreV2", "aclnnFlashAttentionVarLenScoreV3"),
    ),
    row(
        "npu_fusion_attention_v3",
        "attention.fusion_attention",
        "as npu_fusion_attention; torch_npu's scaled_dot_product_attention calls it",
        "as npu_fusion_attention",
        "npu_fusion_attention_grad_v3",
    ),
    row(
        "npu_quant_fusion_attention",
        "attention.quant_attention",
        "matrix products and softmax in float32, a few rows at a time; weights and their gradients are rounded to "
        "hifloat8, results once to bfloat16",
        "formats other than hifloat8; layouts other than BSND; fewer heads of key than of query",
        kernels=("npu_quant_fusion_attention", "npu_quant_fusion_attention_backward"),
        gradient="none: programs call npu_quant_fusion_attention_backward",
        documents=("aclnnQuantFlashAttentionScore", "aclnnQuantFlashAttentionScoreGrad"),
    ),
    row(
        "npu_ring_attention_update",
        "attention.pieces",
        "sums and products in float32, the result rounded once",
        "an input_layout other than SBH and TND",
        documents=("torch_npu.npu_ring_attention_update", "aclnnRingAttentionUpdate"),
    ),
    row(
        "npu_multi_head_attention",
        "attention.multi_head_attention",
        "matrix products and softmax in float32, each result rounded once",
        "sizes that are not multiples of 16; rows of another length than N * D",
        "npu_multi_head_attention_backward",
    ),
    row(
        "npu_nsa_compress_attention",
        "attention.nsa",
        "as npu_fusion_attention; blocks are scored in float32, and of equal scores the first is taken",
        "window sizes that are not multiples of compress_stride",
        "by npu_fusion_attention_grad",
        documents=("torch_npu.npu_nsa_compress_attention", "aclnnNsaCompressAttention"),
    ),
    row(
        "npu_nsa_select_attention",
        "attention.nsa",
        "the keys of a few queries at a time; matrix products and softmax in float32, rounded once",
        "atten_mask; topk_indices that name no block of the sequence",
        "npu_nsa_select_attention_grad",
        documents=("torch_npu.npu_nsa_select_attention", "aclnnNsaSelectedAttention", "aclnnNsaSelectedAttentionGrad"),
    ),
    row(
        "npu_sparse_flash_attention",
        "attention.sparse_attention",
        "the keys of a few queries at a time; matrix products and softmax in float32, rounded once",
        "an attention_mode other than 2; value None; gradients without return_softmax_lse, or with keys in pages",
        "npu_sparse_flash_attention_grad",
    ),
    row(
        "npu_lightning_indexer",
        "attention.lightning_indexer",
        "scores in float32, and a stable sort; keys that a query does not see have index -1 and score -inf",
        "sparse modes other than 0 and 3; numbers of tokens that hide keys in mode 0",
        "npu_lightning_indexer_grad",
    ),
    row(
        "npu_sparse_lightning_indexer_grad_kl_loss",
        "attention.lightning_indexer",
        "products, softmax and sums in float32, each result rounded once",
        "sinks; more than one key head",
        "none: it gives gradients itself",
    ),
    row(
        "npu_dense_lightning_indexer_grad_kl_loss",
        "attention.lightning_indexer",
        "as the sparse one, of all keys; npu_dense_lightning_indexer_softmax_lse computes its statistics",
        "sparse modes other than 0 and 3",
        "none: it gives gradients itself",
        more=("npu_dense_lightning_indexer_softmax_lse",),
        documents=(
            "torch_npu.npu_dense_lightning_indexer_grad_kl_loss",
            "torch_npu.npu_dense_lightning_indexer_softmax_lse",
        ),
    ),
    row(
        "npu_block_sparse_attention",
        "attention.block_sparse_attention",
        "a block of queries at a time, in float32, rounded once; softmax_lse also without its flag",
        "unlike layouts of query and key; one of the lists of lengths without the other",
        "npu_block_sparse_attention_backward",
    ),
    row(
        "npu_fused_floyd_attention",
        "attention.floyd_attention",
        "matrix products and softmax in float32, a few rows at a time, rounded once",
        "shapes that do not fit",
        "npu_fused_floyd_attention_backward",
    ),
    row(
        "npu_chunk_gated_delta_rule",
        "attention.delta_rule",
        "token after token, in float32, rounded once",
        "calls without initial_state or actual_seq_lengths",
    ),
    row(
        "npu_recurrent_gated_delta_rule",
        "attention.delta_rule",
        "token after token, in float32; a state is rounded where it is kept",
        "calls without actual_seq_lengths",
        more=("npu_recurrent_gated_delta_rule_functional",),
    ),
    row(
        "npu_apply_rotary_pos_emb",
        "attention.rotary",
        "products and sums in float32, rounded once; query and key are changed in place",
        "shapes that do not fit",
    ),
    row(
        "npu_mrope",
        "attention.rotary",
        "products and sums in float32, rounded once",
        "an mrope_section that does not add up to half of the columns; positions outside the cache",
    ),
    row(
        "npu_fused_infer_attention_score",
        "attention.infer_attention",
        "a few queries at a time, in float32, rounded once",
        "quantisation; padding sizes and shared prefixes; sparse_mode 9; pages in a private format",
        more=("npu_fused_infer_attention_score.out", "_npu_fused_infer_attention_score_get_max_workspace"),
    ),
    row(
        "npu_fused_infer_attention_score_v2",
        "attention.infer_attention",
        "as npu_fused_infer_attention_score; learnable_sink in any floating dtype",
        "as npu_fused_infer_attention_score",
        more=("npu_fused_infer_attention_score_v2.out", "_npu_fused_infer_attention_score_v2_get_max_workspace"),
    ),
    row(
        "npu_prompt_flash_attention",
        "attention.infer_attention",
        "as npu_fused_infer_attention_score",
        "as npu_fused_infer_attention_score",
    ),
    row(
        "npu_incre_flash_attention",
        "attention.infer_attention",
        "as npu_fused_infer_attention_score",
        "as npu_fused_infer_attention_score; several queries",
    ),
    row(
        "npu_masked_softmax_with_rel_pos_bias",
        "attention.pieces",
        "sums and softmax in float32, rounded once",
        "shapes that do not fit",
        documents=("op-plugin's test_masked_softmax_with_rel_pos_bias.py",),
    ),
    row("npu_attention_update", "attention.pieces", "in float32, rounded once", "an update_type other than 0 and 1"),
    row(
        "npu_interleave_rope",
        "attention.rotary",
        "products and sums in float32, rounded once",
        "shapes that do not fit",
    ),
    row(
        "npu_kv_rmsnorm_rope_cache",
        "attention.kv_cache",
        "in float32, rounded once; the last two results are given without is_output_kv, too",
        "caches that are not contiguous; float32",
        more=("npu_kv_rmsnorm_rope_cache_v2", "npu_kv_rmsnorm_rope_cache_v2_functional"),
        documents=("torch_npu.npu_kv_rmsnorm_rope_cache", "op-plugin's test_npu_kv_rms_norm_rope_cache.py"),
    ),
    row(
        "npu_fused_attention_score",
        "attention.attention_score",
        "matrix products and softmax in float32, each result rounded once",
        "transposed layers",
        "npu_fused_attention_score_backward",
        kernels=(
            "npu_fused_attention_score_fwd",
            "npu_fused_attention_score_backward",
            "npu_fused_attention_score_grad",
        ),
        documents=("torch_npu.npu_fused_attention_score", "op-plugin's FusedAttentionScoreKernelNpu.cpp"),
    ),
)

SECTIONS = {"Attention": ATTENTION}
