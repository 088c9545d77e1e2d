"""Permuting tokens by a map of their experts, npu_moe_token_(un)permute_with_routing_map, and the gradients.

routing_map[t, e] says that token t goes to expert e. The permuted rows are in the order of their experts. There are two
forms.

- Without drop_and_pad each token has the same number of experts, topk. Within an expert tokens keep their order.
  Pair t * topk + k, token t and its k-th expert, is in row sorted_indices[t * topk + k].
- With drop_and_pad each expert has the same number of rows, its capacity: its first tokens, and, if these are too few,
  the first of the others. Row r has token sorted_indices[r].

Documents: torch_npu's schemas and its tests of these operators.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from descend.npu.composed.arithmetic import check_float, check_shape, wide
from descend.npu.composed.refusal import refuse


def npu_moe_token_permute_with_routing_map(
    tokens: Tensor,
    routing_map: Tensor,
    *,
    probs: Tensor | None = None,
    num_out_tokens: int | None = None,
    drop_and_pad: bool = False,
) -> tuple[Tensor, Tensor | None, Tensor]:
    """The permuted tokens [rows, H], their probs [rows], and sorted_indices (int32 [rows]).

    ``tokens`` is [T, H], ``routing_map`` [T, E] in bool or int8, ``probs`` [T, E]. ``num_out_tokens``, by default T, is
    rounded down to whole rows: to T * topk, or with ``drop_and_pad`` to E * capacity.
    """
    operator = "npu_moe_token_permute_with_routing_map"
    check_float(operator, tokens=tokens, probs=probs)
    if tokens.dim() != 2:
        refuse(operator, "tokens", f"of shape {list(tokens.shape)}", "has 2 dimensions")
    count = tokens.shape[0]
    _check_map(operator, routing_map, count)
    if probs is not None:
        check_shape(operator, "probs", probs, routing_map.shape, "routing_map")
    groups = routing_map.shape[drop_and_pad]
    each = (count if num_out_tokens is None else num_out_tokens) // max(1, groups)
    if drop_and_pad:
        if not 0 <= each <= count:
            refuse(operator, "num_out_tokens", num_out_tokens, f"gives each expert 0 to {count} rows, not {each}")
        order = routing_map.t().to(torch.int8).argsort(dim=1, descending=True, stable=True)[:, :each].flatten()
        picked = None if probs is None else probs[order, _experts(order, groups)]
        return tokens.index_select(0, order), picked, order.to(torch.int32)
    _check_topk(operator, routing_map, each)
    experts, rows = routing_map.t().nonzero(as_tuple=True)
    picked = None if probs is None else probs[rows, experts]
    return tokens.index_select(0, rows), picked, rows.argsort(stable=True).to(torch.int32)


def npu_moe_token_permute_with_routing_map_grad(
    permuted_token_out_grad: Tensor,
    probs_grad: Tensor | None,
    sorted_indices: Tensor,
    routing_map: Tensor,
    experts_num: int,
    tokens_num: int,
    drop_and_pad: bool,
) -> tuple[Tensor, Tensor | None]:
    """The gradients of tokens [tokens_num, H] and probs [tokens_num, experts_num]."""
    operator = "npu_moe_token_permute_with_routing_map_grad"
    grad, order = permuted_token_out_grad, sorted_indices.long()
    _check_map(operator, routing_map, tokens_num)
    check_shape(operator, "sorted_indices", order, grad.shape[:1], "rows of the gradient")
    if drop_and_pad:
        summed = wide(grad).new_zeros(tokens_num, grad.shape[1]).index_add_(0, order, wide(grad))
        token, expert = order, _experts(order, experts_num)
    else:
        _check_topk(operator, routing_map, len(order) // max(1, tokens_num))
        summed = wide(grad).index_select(0, order).view(tokens_num, -1, grad.shape[1]).sum(1)
        expert, token = routing_map.t().nonzero(as_tuple=True)
    back = None
    if probs_grad is not None:
        back = probs_grad.new_zeros(tokens_num, experts_num)
        back[token, expert] = probs_grad
    return summed.to(grad.dtype), back


def npu_moe_token_unpermute_with_routing_map(
    permuted_tokens: Tensor,
    sorted_indices: Tensor,
    restore_shape: Sequence[int],
    *,
    probs: Tensor | None = None,
    routing_map: Tensor | None = None,
    drop_and_pad: bool = False,
) -> Tensor:
    """The tokens [T, H]: the sum of each token's rows, weighted by ``probs`` [T, E] where they are given."""
    return _npu_moe_token_unpermute_with_routing_map(
        permuted_tokens, sorted_indices, restore_shape, probs=probs, routing_map=routing_map, drop_and_pad=drop_and_pad
    )[0]


def _npu_moe_token_unpermute_with_routing_map(
    permuted_tokens: Tensor,
    sorted_indices: Tensor,
    restore_shape: Sequence[int],
    *,
    probs: Tensor | None = None,
    routing_map: Tensor | None = None,
    drop_and_pad: bool = False,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Also returns out_index and permuted_token_id, which sort the rows by token, and the probs of the rows.

    Without ``drop_and_pad`` nothing reads the second and third. The probs are by pair then.
    """
    operator = "npu_moe_token_unpermute_with_routing_map"
    check_float(operator, permuted_tokens=permuted_tokens, probs=probs)
    count = restore_shape[0]
    picked = _picked(operator, sorted_indices, probs, routing_map, count, drop_and_pad)
    rows, order = wide(permuted_tokens), sorted_indices.long()
    check_shape(operator, "sorted_indices", sorted_indices, rows.shape[:1], "rows of permuted_tokens")
    weights = None if picked is None else wide(picked).unsqueeze(-1)
    if drop_and_pad:
        weighted = rows if weights is None else rows * weights
        summed = rows.new_zeros(*restore_shape).index_add_(0, order, weighted)
        ids, out = sorted_indices.sort(stable=True)
        return summed.to(permuted_tokens.dtype), out.to(sorted_indices.dtype), ids, picked
    pairs = rows.index_select(0, order)
    summed = (pairs if weights is None else pairs * weights).view(count, -1, rows.shape[1]).sum(1)
    return summed.to(permuted_tokens.dtype), sorted_indices.clone(), sorted_indices.clone(), picked


def npu_moe_token_unpermute_with_routing_map_grad(
    unpermuted_tokens_grad: Tensor,
    out_index: Tensor,
    permuted_token_id: Tensor,
    routing_map: Tensor | None,
    permuted_tokens: Tensor | None,
    probs: Tensor | None,
    drop_and_pad: bool,
    restore_shape: Sequence[int],
) -> tuple[Tensor, Tensor | None]:
    """The gradients of permuted_tokens [rows, H] and probs [T, E]; out_index is sorted_indices without drop_and_pad."""
    operator = "npu_moe_token_unpermute_with_routing_map_grad"
    grad, place, count = unpermuted_tokens_grad, out_index.long(), restore_shape[0]
    if drop_and_pad:
        order = torch.empty_like(permuted_token_id).scatter_(0, place, permuted_token_id)
        picked = _picked(operator, order, probs, routing_map, count, True)
        place, token = torch.arange(len(place)), order.long()
    else:
        picked = _picked(operator, out_index, probs, routing_map, count, False)
        token = torch.arange(count).repeat_interleave(len(place) // max(1, count))
    spread = wide(grad).index_select(0, token)
    back = spread if picked is None else spread * wide(picked).unsqueeze(-1)
    rows = torch.zeros_like(back).index_copy_(0, place, back).to(grad.dtype)
    if probs is None:
        return rows, None
    if permuted_tokens is None:
        refuse(operator, "permuted_tokens", "None", "is needed where probs are given")
    of_pairs = (wide(permuted_tokens).index_select(0, place) * spread).sum(-1).to(grad.dtype)
    result = torch.zeros_like(probs, dtype=grad.dtype)
    result[_pairs(token, probs, routing_map, drop_and_pad)] = of_pairs
    return rows, result


def _picked(
    operator: str,
    order: Tensor,
    probs: Tensor | None,
    routing_map: Tensor | None,
    count: int,
    drop_and_pad: bool,
) -> Tensor | None:
    """The probs by row, or without drop_and_pad by pair, after the checks of an unpermuting operator."""
    if not drop_and_pad and (count == 0 or len(order) % count):
        refuse(operator, "sorted_indices", f"of length {len(order)}", f"is a multiple of the {count} tokens")
    if probs is None:
        return None
    if probs.dim() != 2 or probs.shape[0] != count:
        refuse(operator, "probs", f"of shape {list(probs.shape)}", f"is [{count}, E]")
    if not drop_and_pad:
        if routing_map is None:
            refuse(operator, "routing_map", "None", "is needed where probs are given")
        check_shape(operator, "routing_map", routing_map, probs.shape, "probs")
        _check_topk(operator, routing_map, len(order) // count)
    elif len(order) % max(1, probs.shape[1]):
        refuse(operator, "sorted_indices", f"of length {len(order)}", f"is a multiple of {probs.shape[1]} experts")
    return probs[_pairs(order.long(), probs, routing_map, drop_and_pad)]


def _pairs(
    order: Tensor, probs: Tensor, routing_map: Tensor | None, drop_and_pad: bool
) -> tuple[Tensor, Tensor] | Tensor:
    """The index that picks probs by row, or without drop_and_pad by pair."""
    if drop_and_pad or routing_map is None:
        return order, _experts(order, probs.shape[1])
    return routing_map.bool()


def _experts(rows: Tensor, experts: int) -> Tensor:
    """The expert of each row where all have the same number of rows."""
    return torch.arange(experts).repeat_interleave(len(rows) // max(1, experts))


def _check_map(operator: str, routing_map: Tensor, count: int) -> None:
    if routing_map.dtype not in (torch.bool, torch.int8):
        refuse(operator, "routing_map", routing_map.dtype, "may be bool or int8")
    if routing_map.dim() != 2 or routing_map.shape[0] != count:
        refuse(operator, "routing_map", f"of shape {list(routing_map.shape)}", f"is [{count}, E], a row a token")


def _check_topk(operator: str, routing_map: Tensor, topk: int) -> None:
    found = routing_map.bool().sum(1)
    if bool((found != topk).any()):
        wrong = int((found != topk).nonzero()[0])
        refuse(operator, "routing_map", f"{int(found[wrong])} experts for token {wrong}", f"gives each token {topk}")
