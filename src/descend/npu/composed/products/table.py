"""The rows of the operators in this folder."""

from __future__ import annotations

from descend.npu.composed.row import Section, row

PRODUCTS: Section = (
    row(
        "npu_grouped_matmul",
        "products.grouped_matmul",
        "one matrix product for each group in float32, rounded once; quantised ones as npu_quant_matmul",
        "antiquant_scale, activations, group_list_type 2; group_type 2 with bias",
        "by PyTorch's autograd (torch_npu has none)",
        more=("npu_grouped_matmul.List",),
        documents=("torch_npu.npu_grouped_matmul", "aclnnGroupedMatmulV5"),
    ),
    row(
        "npu_grouped_matmul_add_",
        "products.grouped_matmul",
        "one matrix product for each group in float32, added to what is there",
        "a group_type other than 2; x that is not transposed",
        more=("npu_grouped_matmul_add",),
        documents=("op-plugin's test_npu_grouped_matmul_add.py",),
    ),
    row(
        "npu_linear",
        "products.matmul",
        "torch.nn.functional.linear in float32, rounded once",
        "matrices of other than 2 dimensions",
        "npu_linear_backward",
    ),
    row(
        "npu_bmmV2",
        "products.matmul",
        "a matrix product in float32, rounded once",
        "int8; two vectors",
        "npu_bmm_v2_mat1_backward, npu_bmm_v2_mat2_backward",
    ),
    row(
        "npu_fused_matmul",
        "products.matmul",
        "in float32, rounded once",
        "x3 without 'add' or 'mul'; a bias with gelu",
        documents=("aclnnFusedMatmul",),
    ),
    row(
        "npu_ffn",
        "products.ffn",
        "both products in float32, the result rounded once; gelu by tanh",
        "geglu, swiglu and reglu",
    ),
    row(
        "npu_transpose_batchmatmul",
        "products.transpose_batchmatmul",
        "a matrix product in float32, rounded once",
        "a bias; scale with another dtype than float16",
    ),
    row(
        "npu_transpose_quant_batchmatmul",
        "products.transpose_batchmatmul",
        "as npu_quant_matmul",
        "a bias; other formats than float8 and hifloat8; batch_split_factor",
    ),
)

WITH_A_COLLECTIVE: Section = (
    row(
        "npu_all_gather_base_mm",
        "products.communication",
        "rows are gathered, then multiplied, in float32, by gloo",
        "quantisation; gather_index 1",
    ),
    row(
        "npu_all_gather_quant_mm",
        "products.quant_communication",
        "rows and their scales are gathered, then as npu_quant_matmul, by gloo",
        "gather_index 1; quant_scale, block_size and amax_output",
        documents=("aclnnAllGatherMatmulV2",),
    ),
    row(
        "npu_quant_mm_reduce_scatter",
        "products.quant_communication",
        "as npu_quant_matmul in float32, reduced and scattered by gloo, rounded once",
        "other sums; quant_scale, block_size and amax_output",
        documents=("aclnnMatmulReduceScatterV2",),
    ),
    row(
        "npu_mm_reduce_scatter_base",
        "products.communication",
        "the product is reduced and scattered, in float32, by gloo",
        "quantisation; other sums",
    ),
    row(
        "npu_mm_all_reduce_base",
        "products.communication",
        "the product is added up over the processes, in float32, by gloo",
        "quantisation; other sums",
    ),
    row(
        "npu_all_to_all_matmul",
        "products.communication",
        "rows are exchanged for columns, then multiplied, in float32, by gloo",
        "other all2all_axes",
    ),
    row(
        "npu_matmul_all_to_all",
        "products.communication",
        "columns of the product are exchanged for rows, in float32, by gloo",
        "other all2all_axes",
    ),
    row(
        "npu_alltoallv_gmm",
        "products.communication",
        "rows are sent to their experts, and multiplied there, in float32, by gloo",
        "counts as tensors",
    ),
    row(
        "npu_gmm_alltoallv",
        "products.communication",
        "products of experts are sent back, in float32, by gloo",
        "counts as tensors",
    ),
)

SECTIONS = {"Products of matrices": PRODUCTS, "Products with a collective": WITH_A_COLLECTIVE}
