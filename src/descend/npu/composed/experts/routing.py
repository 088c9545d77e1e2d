"""npu_moe_re_routing and npu_moe_finalize_routing: rows in the order of their experts, and the sum of a token's rows.

    re_routing: rows come rank by rank, and of each rank expert by expert;
        they leave expert by expert, and of each expert rank by rank
    finalize_routing: out[i] = skip1[i] + skip2[i] + sum over k of scales[i, k] * (rows[place] + bias[expert of i, k])
        place = expanded_src_to_dst_row[k * T + i] (drop_pad_mode 0 and 1) or [i * K + k] (2 and 3)

A place of -1 is a row that was dropped: it is 0, and its bias counts, as in the document's program.

Documents: torch_npu.npu_moe_re_routing, npu_moe_finalize_routing.
"""

from __future__ import annotations

import torch
from torch import Tensor

from descend.npu.composed.arithmetic import INTEGERS, check_float, check_shape, check_within, wide
from descend.npu.composed.refusal import refuse


def npu_moe_re_routing(
    tokens: Tensor,
    expert_token_num_per_rank: Tensor,
    *,
    per_token_scales: Tensor | None = None,
    expert_token_num_type: int = 1,
    idx_type: int = 0,
    tokens_dtype: int | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The rows, their scales, for each row where it was (int32), and how many rows each expert has.

    ``tokens`` is [A, H], ``expert_token_num_per_rank`` [ranks, experts], ``per_token_scales`` [A]; without scales the
    second result is 0.
    """
    operator, counts = "npu_moe_re_routing", expert_token_num_per_rank
    kinds = {"expert_token_num_type": (expert_token_num_type, 1), "idx_type": (idx_type, 0)}
    for name, (kind, served) in kinds.items():
        if kind != served:
            refuse(operator, name, kind, f"must be {served}")
    if tokens_dtype is not None:
        refuse(operator, "tokens_dtype", tokens_dtype, "must be None")
    if tokens.dim() != 2:
        refuse(operator, "tokens", f"of shape {list(tokens.shape)}", "must have 2 dimensions")
    if counts.dtype not in INTEGERS or counts.dim() != 2:
        got = f"{counts.dtype} of shape {list(counts.shape)}"
        refuse(operator, "expert_token_num_per_rank", got, "must be int32 or int64, of shape [ranks, experts]")
    rows, (ranks, experts) = len(tokens), counts.shape
    if (counts.numel() and int(counts.min()) < 0) or int(counts.sum()) != rows:
        refuse(
            operator,
            "expert_token_num_per_rank",
            f"of sum {int(counts.sum())}",
            f"must tell of {rows} tokens, none negative",
        )
    if per_token_scales is not None:
        check_shape(operator, "per_token_scales", per_token_scales, [rows], "the tokens")
    expert_of = torch.arange(experts).repeat(ranks).repeat_interleave(counts.flatten().long())
    order = expert_of.argsort(stable=True)
    scales = torch.zeros(rows) if per_token_scales is None else per_token_scales.index_select(0, order)
    return tokens.index_select(0, order), scales, order.to(torch.int32), counts.sum(0).to(counts.dtype)


def npu_moe_finalize_routing(
    expanded_permuted_rows: Tensor,
    skip1: Tensor | None,
    skip2: Tensor | None,
    bias: Tensor | None,
    scales: Tensor | None,
    expanded_src_to_dst_row: Tensor,
    export_for_source_row: Tensor | None,
    drop_pad_mode: int | None = 0,
    k: int | None = 1,
) -> Tensor:
    """[T, H], of rows [T * K, H], or [E, C, H] in drop_pad_mode 1 and 3. ``scales`` is [T, K], else K is ``k``."""
    operator, rows = "npu_moe_finalize_routing", expanded_permuted_rows
    named = {"expanded_permuted_rows": rows, "skip1": skip1, "skip2": skip2, "bias": bias, "scales": scales}
    check_float(operator, **named)
    if drop_pad_mode not in (0, 1, 2, 3):
        refuse(operator, "drop_pad_mode", drop_pad_mode, "must be from 0 to 3")
    padded, by_row = drop_pad_mode in (1, 3), drop_pad_mode in (2, 3)
    if rows.dim() != (3 if padded else 2):
        refuse(
            operator,
            "expanded_permuted_rows",
            f"of shape {list(rows.shape)}",
            f"must have {3 if padded else 2} dimensions",
        )
    places = expanded_src_to_dst_row
    if places.dtype not in INTEGERS or places.dim() != 1:
        got = f"{places.dtype} of shape {list(places.shape)}"
        refuse(operator, "expanded_src_to_dst_row", got, "must be int32 or int64, of 1 dimension")
    if scales is not None and (scales.dim() != 2 or scales.numel() != places.numel()):
        got = f"of shape {list(scales.shape)}"
        refuse(operator, "scales", got, f"must be [T, K], {places.numel()} numbers, as many as expanded_src_to_dst_row")
    each = (k or 1) if scales is None else scales.shape[1]
    if each < 1 or places.numel() % each:
        refuse(operator, "k", each, f"must divide the {places.numel()} places of expanded_src_to_dst_row")
    count, width = places.numel() // each, rows.shape[-1]
    flat = wide(rows).flatten(0, -2)
    lowest = -1 if padded else 0
    rule = f"must be from {lowest} to {len(flat) - 1}"
    check_within(operator, "expanded_src_to_dst_row", places, len(flat), rule, lowest)
    order = places.long().view(count, each) if by_row else places.long().view(each, count).T
    out = flat.new_zeros(count, width)
    for name, skip in (("skip1", skip1), ("skip2", skip2)):
        if skip is not None:
            check_shape(operator, name, skip, [count, width], "the result")
            out += skip
    experts = None if bias is None else _experts(operator, bias, export_for_source_row, [count, each], width)
    for column in range(each):
        place = order[:, column]
        row = flat[place.clamp(min=0)].masked_fill_((place < 0).unsqueeze(-1), 0)
        if bias is not None and experts is not None:
            row += bias[experts[:, column]]
        out += row if scales is None else row.mul_(scales[:, column : column + 1])
    return out.to(rows.dtype)


def _experts(operator: str, bias: Tensor, experts: Tensor | None, shape: list[int], width: int) -> Tensor:
    """The expert of each row, checked."""
    if experts is None or experts.dtype not in INTEGERS:
        got = "None" if experts is None else experts.dtype
        refuse(operator, "export_for_source_row", got, "must be int32 or int64 where bias is given")
    check_shape(operator, "export_for_source_row", experts, shape, "T and K")
    if bias.dim() != 2 or bias.shape[1] != width:
        refuse(operator, "bias", f"of shape {list(bias.shape)}", f"must be of shape [E, {width}]")
    check_within(operator, "export_for_source_row", experts, len(bias), f"must be from 0 to {len(bias) - 1}")
    return experts.long()
