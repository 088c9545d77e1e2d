"""npu_moe_gating_top_k and its gradient, npu_moe_gating_top_k_softmax and its version 2: which experts a token gets.

    scores = softmax(x) (norm_type 0) or sigmoid(x) (norm_type 1), in float32
    y      = the k scores that are largest after bias is added; of equal ones the first
    y     /= sum(y) + eps (norm_type 1), y *= routed_scaling_factor

With groups, only the experts of the k_group groups of experts are taken whose score is largest: that of the best expert
(group_select_mode 0), or the sum of the best two (1).

Documents: torch_npu.npu_moe_gating_top_k, npu_moe_gating_top_k_softmax; version 2 has a test only.
"""

from __future__ import annotations

import torch
from torch import Tensor

from descend.npu.composed.arithmetic import check_float, check_integer, check_shape, check_within, wide
from descend.npu.composed.refusal import refuse


def npu_moe_gating_top_k(
    x: Tensor,
    k: int,
    *,
    bias: Tensor | None = None,
    input_ids: Tensor | None = None,
    tid2eid: Tensor | None = None,
    k_group: int = 1,
    group_count: int = 1,
    group_select_mode: int = 0,
    renorm: int = 0,
    norm_type: int = 0,
    out_flag: bool = False,
    routed_scaling_factor: float = 1.0,
    eps: float = 1e-20,
) -> tuple[Tensor, Tensor, Tensor]:
    """y [T, k], the experts (int32 [T, k]) and the scores in float32 [T, E], which the gradient needs."""
    operator = "npu_moe_gating_top_k"
    if input_ids is not None or tid2eid is not None:
        refuse(operator, "input_ids or tid2eid", "given", "must be None")
    check_float(operator, x=x, bias=bias)
    if x.dim() != 2:
        refuse(operator, "x", f"of shape {list(x.shape)}", "must have 2 dimensions")
    _check_kind(operator, renorm, norm_type)
    experts = x.shape[1]
    if bias is not None:
        check_shape(operator, "bias", bias, [experts], "the experts of x")
    if group_count < 1 or experts % group_count or not 1 <= k_group <= group_count:
        got = f"{group_count} and {k_group}"
        rule = f"the first must divide {experts} experts, and the second be from 1 to the first"
        refuse(operator, "group_count and k_group", got, rule)
    size = experts // group_count
    if not 1 <= k <= size * k_group:
        refuse(operator, "k", k, f"must be from 1 to {size * k_group}, the experts of {k_group} groups")
    if group_select_mode not in (0, 1) or (group_select_mode and size < 2):
        refuse(operator, "group_select_mode", group_select_mode, "must be 0, or with groups of at least 2 experts 1")
    scores = wide(x).sigmoid() if norm_type else wide(x).softmax(-1)
    ranked = scores if bias is None else scores + bias
    if group_count > 1:
        grouped = ranked.unflatten(1, (group_count, size))
        best = grouped.topk(2, -1).values.sum(-1) if group_select_mode else grouped.amax(-1)
        kept = _first(best, k_group)
        out = torch.ones_like(best, dtype=torch.bool).scatter_(1, kept, False)
        ranked = grouped.masked_fill(out.unsqueeze(-1), -torch.inf).flatten(1)
    chosen = _first(ranked, k)
    y = scores.gather(1, chosen)
    if norm_type:
        y = y / (y.sum(-1, keepdim=True) + eps)
    return (y * routed_scaling_factor).to(x.dtype), chosen.to(torch.int32), scores


def npu_moe_gating_top_k_backward(
    x_norm: Tensor,
    grad_y: Tensor,
    expertIdx: Tensor,
    *,
    renorm: int = 0,
    norm_type: int = 0,
    routed_scaling_factor: float = 1.0,
    eps: float = 1e-20,
) -> Tensor:
    """The gradient of x, in the dtype of ``grad_y``, from the scores and the experts."""
    operator = "npu_moe_gating_top_k_backward"
    _check_kind(operator, renorm, norm_type)
    check_float(operator, x_norm=x_norm, grad_y=grad_y)
    check_shape(operator, "expertIdx", expertIdx, grad_y.shape, "grad_y")
    if x_norm.dim() != 2:
        refuse(operator, "x_norm", f"of shape {list(x_norm.shape)}", "must have 2 dimensions")
    check_shape(operator, "x_norm", x_norm, [len(grad_y), x_norm.shape[-1]], "grad_y, but for the experts")
    check_integer(operator, "expertIdx", expertIdx)
    experts = x_norm.shape[1]
    check_within(operator, "expertIdx", expertIdx, experts, f"must be within the {experts} experts of x_norm")
    scores, chosen = wide(x_norm), expertIdx.long()
    grad = wide(grad_y).to(scores.dtype) * routed_scaling_factor
    if norm_type:
        y = scores.gather(1, chosen)
        total = y.sum(-1, keepdim=True) + eps
        grad = (grad - (grad * y).sum(-1, keepdim=True) / total) / total
    whole = torch.zeros_like(scores).scatter_add_(1, chosen, grad)
    if norm_type:
        return (whole * scores * (1 - scores)).to(grad_y.dtype)
    return (scores * (whole - (whole * scores).sum(-1, keepdim=True))).to(grad_y.dtype)


def npu_moe_gating_top_k_softmax(
    x: Tensor, finished: Tensor | None = None, k: int = 1
) -> tuple[Tensor, Tensor, Tensor]:
    """The k largest of softmax(x) [..., k], their experts in int32, and row_idx: column j, row i is j * rows + i.

    ``x`` is [T, E] or [B, S, E]. Rows that are ``finished`` have expert E.
    """
    y, experts, _ = _top_k("npu_moe_gating_top_k_softmax", x, finished, k, False)
    rows = y.shape[:-1].numel()
    order = torch.arange(rows * k, dtype=torch.int32).view(k, rows).T.contiguous().view(y.shape)
    return y, experts, order


def npu_moe_gating_top_k_softmax_v2(
    x: Tensor,
    *,
    k: int = 1,
    finished: Tensor | None = None,
    renorm: int | None = 0,
    output_softmax: bool | None = False,
) -> tuple[Tensor, Tensor, Tensor]:
    """As npu_moe_gating_top_k_softmax; the third result is softmax(x) in float32 if it is asked for and renorm is 0.

    If ``renorm`` is 1, y is the softmax of the k largest numbers of x.
    """
    operator = "npu_moe_gating_top_k_softmax_v2"
    if renorm not in (None, 0, 1):
        refuse(operator, "renorm", renorm, "must be 0 or 1")
    y, experts, scores = _top_k(operator, x, finished, k, bool(renorm))
    return y, experts, scores if output_softmax and not renorm else scores.new_empty(0)


def _top_k(operator: str, x: Tensor, finished: Tensor | None, k: int, renorm: bool) -> tuple[Tensor, Tensor, Tensor]:
    check_float(operator, x=x)
    if x.dim() not in (2, 3):
        refuse(operator, "x", f"of shape {list(x.shape)}", "must have 2 or 3 dimensions")
    experts = x.shape[-1]
    if not 1 <= k <= experts:
        refuse(operator, "k", k, f"must be from 1 to {experts}, the experts of x")
    scores = wide(x).softmax(-1)
    chosen = _first(wide(x) if renorm else scores, k)
    y = wide(x).gather(-1, chosen).softmax(-1) if renorm else scores.gather(-1, chosen)
    places = chosen.to(torch.int32)
    if finished is not None:
        if finished.dtype != torch.bool:
            refuse(operator, "finished", finished.dtype, "must be bool")
        check_shape(operator, "finished", finished, x.shape[:-1], "x, but for the experts")
        places = places.masked_fill_(finished.unsqueeze(-1), experts)
    return y.to(x.dtype), places, scores


def _first(ranked: Tensor, count: int) -> Tensor:
    """The places of the largest numbers; of equal ones the first come first."""
    return ranked.sort(dim=-1, descending=True, stable=True).indices[..., :count]


def _check_kind(operator: str, renorm: int, norm_type: int) -> None:
    if renorm:
        refuse(operator, "renorm", renorm, "must be 0")
    if norm_type not in (0, 1):
        refuse(operator, "norm_type", norm_type, "must be 0 (softmax) or 1 (sigmoid)")
