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

from descend.npu.composed.arithmetic import INTEGERS, check_float, check_shape, check_within, wide
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
        refuse(operator, "tokens", f"of shape {list(tokens.shape)}", "must have 2 dimensions")
    count = tokens.shape[0]
    _check_map(operator, routing_map, count)
    if probs is not None:
        check_shape(operator, "probs", probs, routing_map.shape, "routing_map")
    groups = routing_map.shape[drop_and_pad]
    each = (count if num_out_tokens is None else num_out_tokens) // max(1, groups)
    if drop_and_pad:
        if not 0 <= each <= count:
            refuse(operator, "num_out_tokens", num_out_tokens, f"must give each expert 0 to {count} rows, not {each}")
        order = routing_map.t().to(torch.int8).argsort(dim=1, descending=True, stable=True)[:, :each].flatten()
        picked = None if probs is None else probs[order, _experts(order, groups)]
        return tokens.index_select(0, order), picked, order.to(torch.int32)
    _check_topk(operator, routing_map, each)
    experts, rows = routing_map.t().nonzero(as_tuple=True)
    picked = None if probs is None else probs[rows, experts]
    return tokens.index_select(0, rows), picked, rows.argsort(stable=True).to(torch.int32)


def npu_moe_token_permute_with_routing_map_grad(
    permuted_token_out_grad: Tensor | None,
    probs_grad: Tensor | None,
    sorted_indices: Tensor,
    routing_map: Tensor,
    experts_num: int,
    tokens_num: int,
    drop_and_pad: bool,
) -> tuple[Tensor | None, Tensor | None]:
    """The gradients of tokens [tokens_num, H] and probs [tokens_num, experts_num]."""
    operator = "npu_moe_token_permute_with_routing_map_grad"
    check_float(operator, permuted_token_out_grad=permuted_token_out_grad, probs_grad=probs_grad)
    _check_map(operator, routing_map, tokens_num)
    check_shape(operator, "routing_map", routing_map, [tokens_num, experts_num], "tokens_num and experts_num")
    order = _order(operator, sorted_indices, tokens_num if drop_and_pad else sorted_indices.numel())
    for name, given in (("permuted_token_out_grad", permuted_token_out_grad), ("probs_grad", probs_grad)):
        if given is not None and given.shape[:1] != order.shape:
            got = f"of shape {list(given.shape)}"
            refuse(operator, name, got, f"must have a row for each of {len(order)} sorted_indices")
    if drop_and_pad:
        _check_divides(operator, order, experts_num)
        token, expert = order, _experts(order, experts_num)
    else:
        _check_topk(operator, routing_map, len(order) // max(1, tokens_num))
        expert, token = routing_map.t().nonzero(as_tuple=True)
    summed = back = None
    if permuted_token_out_grad is not None:  # else only the probs were used
        grad = permuted_token_out_grad
        if grad.dim() != 2:
            refuse(operator, "permuted_token_out_grad", f"of shape {list(grad.shape)}", "must have 2 dimensions")
        summed = wide(grad).new_zeros(tokens_num, grad.shape[1])
        if drop_and_pad:
            summed.index_add_(0, order, wide(grad))
        elif len(order):
            summed = wide(grad).index_select(0, order).view(tokens_num, len(order) // tokens_num, -1).sum(1)
        summed = summed.to(grad.dtype)
    if probs_grad is not None:
        if probs_grad.dim() != 1:
            refuse(operator, "probs_grad", f"of shape {list(probs_grad.shape)}", "must have 1 dimension")
        back = probs_grad.new_zeros(tokens_num, experts_num)
        back[token, expert] = probs_grad
    return summed, back


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
    if permuted_tokens.dim() != 2:
        refuse(operator, "permuted_tokens", f"of shape {list(permuted_tokens.shape)}", "must have 2 dimensions")
    count = _count(operator, restore_shape, permuted_tokens.shape[1])
    if not drop_and_pad:
        _check_pairs(operator, sorted_indices, count)
    rows = wide(permuted_tokens)
    order = _order(operator, sorted_indices, count if drop_and_pad else len(rows))
    check_shape(operator, "sorted_indices", sorted_indices, rows.shape[:1], "rows of permuted_tokens")
    picked = _picked(operator, order, probs, routing_map, count, drop_and_pad)
    weights = None if picked is None else wide(picked).unsqueeze(-1)
    if drop_and_pad:
        weighted = rows if weights is None else rows * weights
        summed = rows.new_zeros(*restore_shape).index_add_(0, order, weighted.to(rows.dtype))
        ids, out = sorted_indices.sort(stable=True)
        return summed.to(permuted_tokens.dtype), out.to(sorted_indices.dtype), ids, picked
    pairs = rows.index_select(0, order)
    summed = (pairs if weights is None else pairs * weights).view(count, len(order) // count, rows.shape[1]).sum(1)
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
    grad = unpermuted_tokens_grad
    check_float(operator, unpermuted_tokens_grad=grad, permuted_tokens=permuted_tokens, probs=probs)
    if grad.dim() != 2:
        refuse(operator, "unpermuted_tokens_grad", f"of shape {list(grad.shape)}", "must have 2 dimensions")
    count = _count(operator, restore_shape, grad.shape[1])
    check_shape(operator, "unpermuted_tokens_grad", grad, list(restore_shape), "restore_shape")
    place = _order(operator, out_index, out_index.numel(), "out_index")
    if not torch.equal(place.sort().values, torch.arange(len(place))):
        refuse(operator, "out_index", "a list with a number twice", f"must hold each of the {len(place)} rows once")
    if permuted_tokens is not None:
        check_shape(operator, "permuted_tokens", permuted_tokens, [len(place), grad.shape[1]], "out_index and H")
    if drop_and_pad:
        ids = _order(operator, permuted_token_id, count, "permuted_token_id")
        check_shape(operator, "permuted_token_id", ids, place.shape, "out_index")
        token = torch.empty_like(ids).scatter_(0, place, ids)
        picked = _picked(operator, token, probs, routing_map, count, True)
        place = torch.arange(len(place))
    else:
        _check_pairs(operator, place, count)
        picked = _picked(operator, place, probs, routing_map, count, False)
        token = torch.arange(count).repeat_interleave(len(place) // max(1, count))
    spread = wide(grad).index_select(0, token)
    back = spread if picked is None else spread * wide(picked).unsqueeze(-1)
    rows = torch.zeros_like(back).index_copy_(0, place, back).to(grad.dtype)
    if probs is None:
        return rows, None
    if permuted_tokens is None:
        refuse(operator, "permuted_tokens", "None", "must be given where probs are given")
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
    if probs is None:
        return None
    check_float(operator, probs=probs)
    if probs.dim() != 2 or probs.shape[0] != count:
        refuse(operator, "probs", f"of shape {list(probs.shape)}", f"must be of shape [{count}, E]")
    if not drop_and_pad:
        if routing_map is None:
            refuse(operator, "routing_map", "None", "must be given where probs are given")
        check_shape(operator, "routing_map", routing_map, probs.shape, "probs")
        _check_topk(operator, routing_map, len(order) // count)
    else:
        _check_divides(operator, order, probs.shape[1])
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


def _count(operator: str, restore_shape: Sequence[int], width: int) -> int:
    """The number of tokens, from restore_shape [T, H]."""
    if len(restore_shape) != 2 or restore_shape[0] < 0 or restore_shape[1] != width:
        refuse(operator, "restore_shape", list(restore_shape), f"must be [T, {width}]")
    return restore_shape[0]


def _order(operator: str, indices: Tensor, count: int, name: str = "sorted_indices") -> Tensor:
    """The indices, checked to be below ``count``."""
    if indices.dtype not in INTEGERS or indices.dim() != 1:
        got = f"{indices.dtype} of shape {list(indices.shape)}"
        refuse(operator, name, got, "must be int32 or int64, of 1 dimension")
    check_within(operator, name, indices, count, f"must be from 0 to {count - 1}")
    return indices.long()


def _check_pairs(operator: str, order: Tensor, count: int) -> None:
    if count == 0 or order.numel() % count:
        refuse(operator, "sorted_indices", f"of length {order.numel()}", f"must be a multiple of the {count} tokens")


def _check_divides(operator: str, order: Tensor, experts: int) -> None:
    if experts < 1 or len(order) % experts:
        refuse(operator, "sorted_indices", f"of length {len(order)}", f"must be a multiple of {experts} experts")


def _check_map(operator: str, routing_map: Tensor, count: int) -> None:
    if routing_map.dtype not in (torch.bool, torch.int8):
        refuse(operator, "routing_map", routing_map.dtype, "must be bool or int8")
    if routing_map.dim() != 2 or routing_map.shape[0] != count:
        refuse(
            operator,
            "routing_map",
            f"of shape {list(routing_map.shape)}",
            f"must be of shape [{count}, E], a row a token",
        )


def _check_topk(operator: str, routing_map: Tensor, topk: int) -> None:
    found = routing_map.bool().sum(1)
    if bool((found != topk).any()):
        wrong = int((found != topk).nonzero()[0])
        refuse(
            operator, "routing_map", f"{int(found[wrong])} experts for token {wrong}", f"must give each token {topk}"
        )
