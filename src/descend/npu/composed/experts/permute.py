"""npu_moe_token_permute, npu_moe_token_unpermute and their gradients: tokens in the order of their experts, and back.

Token t has the experts indices[t]. All pairs of a token and an expert are sorted by expert, stably. Pair
i = t * topk + k gets place sorted_indices[i]. Places from num_out_tokens on are dropped: they are not read, and their
gradients are 0.

    permuted[sorted_indices[i]] = tokens[i // topk]
    unpermuted[t]               = sum over k of permuted[sorted_indices[t * topk + k]] * probs[t, k]

Documents: aclnnMoeTokenPermute(Grad), aclnnMoeTokenUnpermute(Grad); torch_npu's schemas.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from descend.npu.composed.arithmetic import check_float, check_integer, check_shape, wide
from descend.npu.composed.refusal import refuse


def npu_moe_token_permute(
    tokens: Tensor, indices: Tensor, num_out_tokens: int | None = None, padded_mode: bool = False
) -> tuple[Tensor, Tensor]:
    """The permuted tokens [num_out, H] and sorted_indices (int32 [T * topk]).

    ``tokens`` is [T, H], ``indices`` [T] or [T, topk].

    If ``num_out_tokens`` is above 0, so many are kept, at most all. If it is 0 or below, so many are dropped.
    """
    operator = "npu_moe_token_permute"
    _check_tokens(operator, "tokens", tokens, padded_mode)
    _check_indices(operator, indices, tokens)
    pairs, wanted = indices.numel(), num_out_tokens or 0
    count = min(wanted, pairs) if wanted > 0 else pairs + wanted
    if count < 0:
        refuse(operator, "num_out_tokens", num_out_tokens, f"must be at least {-pairs}: there are {pairs} to leave out")
    order = indices.flatten().argsort(stable=True)
    places = torch.empty_like(order).scatter_(0, order, torch.arange(pairs))
    topk = 1 if indices.dim() == 1 else indices.shape[1]
    return tokens.index_select(0, order[:count] // max(1, topk)), places.to(torch.int32)


def npu_moe_token_permute_grad_v2(
    grad_permuted_tokens: Tensor,
    sorted_indices: Tensor,
    tokens_size_0: int,
    tokens_dtype: torch.dtype,
    num_topK: int,
    padded_mode: bool = False,
) -> Tensor:
    """The gradient of tokens [tokens_size_0, H]."""
    operator = "npu_moe_token_permute_grad_v2"
    for name, number in (("tokens_size_0", tokens_size_0), ("num_topK", num_topK)):
        if number < 0:
            refuse(operator, name, number, "must be 0 at least")
    _check_tokens(operator, "grad_permuted_tokens", grad_permuted_tokens, padded_mode)
    _check_places(operator, sorted_indices, tokens_size_0 * num_topK)
    pairs = _gathered(grad_permuted_tokens, sorted_indices)
    summed = pairs.view(tokens_size_0, num_topK, grad_permuted_tokens.shape[1]).sum(1)
    return summed.to(tokens_dtype)


def permute_grad_of_topk(
    permuted_output_grad: Tensor, sorted_indices: Tensor, num_topk: int, padded_mode: bool
) -> Tensor:
    """aclnnMoeTokenPermuteGrad, in which the number of tokens follows from the indices."""
    if num_topk < 1:
        refuse("npu_moe_token_permute_grad", "numTopk", num_topk, "must be 1 at least")
    count, dtype = sorted_indices.numel() // num_topk, permuted_output_grad.dtype
    return npu_moe_token_permute_grad_v2(permuted_output_grad, sorted_indices, count, dtype, num_topk, padded_mode)


def npu_moe_token_permute_grad(
    tokens: Tensor, grad_permuted_tokens: Tensor, indices: Tensor, sorted_indices: Tensor, padded_mode: bool = False
) -> Tensor:
    """The gradient of tokens, from the forward's arguments."""
    operator = "npu_moe_token_permute_grad"
    _check_tokens(operator, "tokens", tokens, padded_mode)
    _check_tokens(operator, "grad_permuted_tokens", grad_permuted_tokens, padded_mode)
    _check_indices(operator, indices, tokens)
    if grad_permuted_tokens.shape[1] != tokens.shape[1]:
        got = f"of shape {list(grad_permuted_tokens.shape)}"
        refuse(operator, "grad_permuted_tokens", got, f"must have rows of the length of tokens', {tokens.shape[1]}")
    topk = 1 if indices.dim() == 1 else indices.shape[1]
    return npu_moe_token_permute_grad_v2(
        grad_permuted_tokens, sorted_indices.flatten(), tokens.shape[0], tokens.dtype, topk, padded_mode
    )


def npu_moe_token_unpermute(
    permuted_tokens: Tensor,
    sorted_indices: Tensor,
    probs: Tensor | None = None,
    padded_mode: bool = False,
    restore_shape: Sequence[int] | None = None,
) -> Tensor:
    """[T, H], from ``permuted_tokens`` [rows, H], ``sorted_indices`` [T * topk], ``probs`` [T, topk] or None."""
    _check_unpermute("npu_moe_token_unpermute", permuted_tokens, sorted_indices, probs, padded_mode)
    pairs = _gathered(permuted_tokens, sorted_indices)
    if probs is None:
        return pairs.to(permuted_tokens.dtype)
    pairs = pairs.view(*probs.shape, pairs.shape[1]).mul_(wide(probs).unsqueeze(-1))
    return pairs.sum(1).to(permuted_tokens.dtype)


def _npu_moe_token_unpermute(
    permuted_tokens: Tensor,
    sorted_indices: Tensor,
    probs: Tensor | None = None,
    padded_mode: bool = False,
    restore_shape: Sequence[int] | None = None,
) -> tuple[Tensor, Tensor | None]:
    """As `npu_moe_token_unpermute`; also returns the tokens if the gradient of probs needs them."""
    result = npu_moe_token_unpermute(permuted_tokens, sorted_indices, probs, padded_mode, restore_shape)
    return result, None if probs is None else permuted_tokens.clone()


def npu_moe_token_unpermute_grad_v2(
    grad_unpermuted_tokens: Tensor,
    sorted_indices: Tensor,
    permuted_tokens_size_0: int,
    permuted_tokens_dtype: torch.dtype,
    probs: Tensor | None = None,
    padded_mode: bool = False,
    restore_shape: Sequence[int] | None = None,
    permuted_tokens: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:
    """The gradients of permuted_tokens and probs."""
    operator = "npu_moe_token_unpermute_grad_v2"
    grad = grad_unpermuted_tokens
    _check_tokens(operator, "grad_unpermuted_tokens", grad, padded_mode)
    if permuted_tokens_size_0 < 0:
        refuse(operator, "permuted_tokens_size_0", permuted_tokens_size_0, "must be 0 at least")
    topk = 1
    if probs is not None:
        check_float(operator, probs=probs)
        topk = _topk(operator, probs)
        if len(probs) != len(grad):
            refuse(
                operator, "probs", f"of shape {list(probs.shape)}", f"must have a row for each of {len(grad)} tokens"
            )
        if permuted_tokens is None:
            refuse(operator, "permuted_tokens", "None", "must be given where probs are given")
        check_float(operator, permuted_tokens=permuted_tokens)
        shape = [permuted_tokens_size_0, grad.shape[1]]
        check_shape(operator, "permuted_tokens", permuted_tokens, shape, "permuted_tokens_size_0 and the gradient")
    _check_places(operator, sorted_indices, grad.shape[0] * topk)
    pairs = wide(grad).unsqueeze(1).expand(-1, topk, -1)
    spread = pairs if probs is None else pairs * wide(probs).unsqueeze(-1)
    places, kept = _places(sorted_indices, permuted_tokens_size_0)
    result = spread.new_zeros(permuted_tokens_size_0, grad.shape[1])
    result.index_add_(0, places[kept], spread.reshape(len(places), grad.shape[1])[kept])
    probs_grad = None
    if probs is not None and permuted_tokens is not None:
        tokens = _gathered(permuted_tokens, sorted_indices).view(*probs.shape, grad.shape[1])
        probs_grad = (tokens * pairs).sum(-1).to(probs.dtype)
    return result.to(permuted_tokens_dtype), probs_grad


def npu_moe_token_unpermute_grad(
    permuted_tokens: Tensor,
    grad_unpermuted_tokens: Tensor,
    sorted_indices: Tensor,
    probs: Tensor | None = None,
    padded_mode: bool = False,
    restore_shape: Sequence[int] | None = None,
) -> tuple[Tensor, Tensor | None]:
    """The gradients of permuted_tokens and probs, from the forward's arguments."""
    _check_tokens("npu_moe_token_unpermute_grad", "permuted_tokens", permuted_tokens, padded_mode)
    count, dtype = permuted_tokens.shape[0], permuted_tokens.dtype
    return npu_moe_token_unpermute_grad_v2(
        grad_unpermuted_tokens, sorted_indices, count, dtype, probs, padded_mode, restore_shape, permuted_tokens
    )


def _places(sorted_indices: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The place of each pair, and whether it is one of the ``count`` that were kept."""
    places = sorted_indices.to(torch.int64)
    return places, places < count


def _gathered(permuted: Tensor, sorted_indices: Tensor) -> Tensor:
    """The row at each pair's place, 0 for dropped pairs: [T * topk, H] in the dtype of the arithmetic."""
    places, kept = _places(sorted_indices, permuted.shape[0])
    if bool(kept.all()):
        return wide(permuted).index_select(0, places)
    result = wide(permuted).new_zeros(len(places), permuted.shape[1])
    result[kept] = wide(permuted).index_select(0, places[kept])
    return result


def _check_tokens(operator: str, name: str, tokens: Tensor, padded_mode: bool) -> None:
    if padded_mode:
        refuse(operator, "padded_mode", True, "must be False")
    check_float(operator, **{name: tokens})
    if tokens.dim() != 2:
        refuse(operator, name, f"of shape {list(tokens.shape)}", "must have 2 dimensions")


def _check_indices(operator: str, indices: Tensor, tokens: Tensor) -> None:
    if indices.dim() not in (1, 2) or indices.shape[0] != tokens.shape[0]:
        refuse(
            operator,
            "indices",
            f"of shape {list(indices.shape)}",
            f"must be of shape [T] or [T, topk], T {tokens.shape[0]}",
        )
    check_integer(operator, "indices", indices)


def _check_places(operator: str, sorted_indices: Tensor, count: int) -> None:
    if sorted_indices.dim() != 1 or len(sorted_indices) != count:
        refuse(
            operator,
            "sorted_indices",
            f"of shape {list(sorted_indices.shape)}",
            f"must be of shape [{count}], a place a pair",
        )
    check_integer(operator, "sorted_indices", sorted_indices)
    if count and int(sorted_indices.min()) < 0:
        refuse(operator, "sorted_indices", f"down to {int(sorted_indices.min())}", "must hold places from 0 up")


def _check_unpermute(operator: str, tokens: Tensor, sorted_indices: Tensor, probs: Tensor | None, padded: bool) -> None:
    _check_tokens(operator, "permuted_tokens", tokens, padded)
    count = sorted_indices.numel()
    if probs is not None:
        _topk(operator, probs)
        check_float(operator, probs=probs)
        count = probs.numel()
    _check_places(operator, sorted_indices, count)


def _topk(operator: str, probs: Tensor) -> int:
    if probs.dim() != 2 or not probs.shape[1]:
        refuse(operator, "probs", f"of shape {list(probs.shape)}", "must be of shape [T, topk] with topk above 0")
    return int(probs.shape[1])
