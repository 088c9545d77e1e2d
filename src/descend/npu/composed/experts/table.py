"""The rows of the operators in this folder."""

from __future__ import annotations

from descend.npu.composed.row import Section, row

EXPERTS: Section = (
    row(
        "npu_moe_token_permute",
        "experts.permute",
        "a stable sort and index_select",
        "padded_mode",
        "npu_moe_token_permute_grad_v2",
        more=("npu_moe_token_permute_grad",),
        documents=("aclnnMoeTokenPermute", "aclnnMoeTokenPermuteGrad"),
    ),
    row(
        "npu_moe_token_unpermute",
        "experts.permute",
        "index_select, and a sum in float32",
        "padded_mode",
        "npu_moe_token_unpermute_grad_v2",
        kernels=("_npu_moe_token_unpermute", "npu_moe_token_unpermute_grad", "npu_moe_token_unpermute_grad_v2"),
        documents=("aclnnMoeTokenUnpermute", "aclnnMoeTokenUnpermuteGrad"),
    ),
    row(
        "npu_moe_token_permute_with_routing_map",
        "experts.permute_by_map",
        "a stable sort and index_select",
        "without drop_and_pad, tokens that do not all have num_out_tokens / T experts",
        "npu_moe_token_permute_with_routing_map_grad",
    ),
    row(
        "npu_moe_token_unpermute_with_routing_map",
        "experts.permute_by_map",
        "index_select or index_add, and a sum in float32",
        "without drop_and_pad, tokens that do not all have the same number of experts",
        "npu_moe_token_unpermute_with_routing_map_grad",
        more=("_npu_moe_token_unpermute_with_routing_map",),
    ),
    row(
        "npu_moe_gating_top_k",
        "experts.gating",
        "softmax or sigmoid in float32, and stable sorts; the scores are given back without out_flag, too",
        "input_ids and tid2eid; renorm; norm types other than 0 and 1",
        "npu_moe_gating_top_k_backward",
    ),
    row(
        "npu_moe_gating_top_k_softmax",
        "experts.gating",
        "softmax in float32, and a stable sort",
        "k below 1 or above the number of experts",
        more=("npu_moe_gating_top_k_softmax_v2",),
    ),
    row(
        "npu_moe_re_routing",
        "experts.routing",
        "a stable sort and index_select; without per_token_scales their result is 0",
        "expert_token_num_type 0; idx_type 1; tokens_dtype",
    ),
    row(
        "npu_moe_finalize_routing",
        "experts.routing",
        "index_select, and sums in float32, rounded once",
        "places and experts that do not exist",
    ),
    row("npu_moe_init_routing", "experts.init_routing", "a stable sort and index_select", "indices that are not int32"),
    row(
        "npu_moe_init_routing_v2",
        "experts.init_routing",
        "a stable sort and index_select; rows and scales beyond those of experts are 0",
        "quantisation",
    ),
    row(
        "npu_moe_distribute_dispatch",
        "experts.distribute",
        "tokens go to their experts' processes, by gloo; rows beyond those that come are 0",
        "quantisation but in mode 2; other tensor parallel groups; elastic_info",
        more=("npu_moe_distribute_dispatch_v2",),
        documents=("torch_npu.npu_moe_distribute_dispatch", "torch_npu.npu_moe_distribute_dispatch_v2"),
    ),
    row(
        "npu_moe_distribute_combine",
        "experts.distribute",
        "results come back, by gloo, and are added up in float32, rounded once",
        "comm_quant_mode 2; counts that are not those of dispatch; elastic_info",
        more=("npu_moe_distribute_combine_v2", "npu_moe_distribute_combine_add_rms_norm"),
        documents=(
            "torch_npu.npu_moe_distribute_combine",
            "torch_npu.npu_moe_distribute_combine_v2",
            "torch_npu.npu_moe_distribute_combine_add_rms_norm",
        ),
    ),
    row("npu_moe_compute_expert_tokens", "experts.init_routing", "torch.searchsorted", "experts that are not int32"),
)

SECTIONS = {"Mixture of experts": EXPERTS}
