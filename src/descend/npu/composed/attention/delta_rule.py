"""The gated delta rule: npu_chunk_gated_delta_rule and npu_recurrent_gated_delta_rule.

    S_t = a_t S_(t-1) + beta_t (v_t - a_t S_(t-1) k_t) k_t^T,    a_t = exp(g_t), of columns also exp(gk_t)
    o_t = S_t q_t * scale

S is [Dv, Dk], one of each value head; a key head serves Nv / Nk of them. Token after token, in float32.

Documents: torch_npu.npu_chunk_gated_delta_rule, npu_recurrent_gated_delta_rule.
"""

from __future__ import annotations

import torch
from torch import Tensor

from descend.npu.composed.arithmetic import check_alike, check_integer, check_shape, check_within, wide
from descend.npu.composed.refusal import refuse


def npu_chunk_gated_delta_rule(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    beta: Tensor | None = None,
    initial_state: Tensor | None = None,
    actual_seq_lengths: Tensor | None = None,
    scale: float | None = None,
    g: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """o [T, Nv, Dv] and the last state [B, Nv, Dv, Dk] of each sequence. Without ``scale`` it is 1."""
    operator = "npu_chunk_gated_delta_rule"
    _check(operator, query, key, value, beta, g, None)
    lengths = _lengths(operator, actual_seq_lengths, len(query))
    shape = [len(lengths), value.shape[1], value.shape[2], key.shape[2]]
    if initial_state is None:
        refuse(operator, "initial_state", "None", "must be given")
    check_alike(operator, "query", query, initial_state=initial_state)
    check_shape(operator, "initial_state", initial_state, shape, "sequences, value and key")
    steps = _Steps(query, key, value, beta, g, None, 1.0 if scale is None else scale)
    states = initial_state.to(steps.dtype, copy=True, memory_format=torch.contiguous_format)
    begin = 0
    for sequence, length in enumerate(lengths):
        for token in range(begin, begin + length):
            states[sequence] = steps.step(token, states[sequence])
        begin += length
    return steps.out.to(value.dtype), states.to(initial_state.dtype)


def npu_recurrent_gated_delta_rule(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    state: Tensor,
    *,
    beta: Tensor | None = None,
    scale: float | None = None,
    actual_seq_lengths: Tensor | None = None,
    ssm_state_indices: Tensor | None = None,
    num_accepted_tokens: Tensor | None = None,
    g: Tensor | None = None,
    gk: Tensor | None = None,
) -> Tensor:
    """o [T, Nv, Dv]. ``state`` [blocks, Nv, Dv, Dk] has a block for each token: it is changed in place.

    ``ssm_state_indices`` [T] says which, without it the tokens' numbers. A sequence begins with the state of its last
    accepted token, which without ``num_accepted_tokens`` is its first. Without ``scale`` it is 1 / sqrt(Dk).
    """
    operator = "npu_recurrent_gated_delta_rule"
    _check(operator, query, key, value, beta, g, gk)
    lengths = _lengths(operator, actual_seq_lengths, len(query))
    tokens, shape = len(query), [len(state), value.shape[1], value.shape[2], key.shape[2]]
    check_alike(operator, "query", query, state=state)
    check_shape(operator, "state", state, shape, "value and key")
    blocks = torch.arange(tokens) if ssm_state_indices is None else ssm_state_indices
    check_integer(operator, "ssm_state_indices", blocks)
    check_shape(operator, "ssm_state_indices", blocks, [tokens], "the tokens")
    check_within(operator, "ssm_state_indices", blocks, len(state), f"must be from 0 to {len(state) - 1}")
    accepted = torch.ones(len(lengths), dtype=torch.int64) if num_accepted_tokens is None else num_accepted_tokens
    check_integer(operator, "num_accepted_tokens", accepted)
    check_shape(operator, "num_accepted_tokens", accepted, [len(lengths)], "the sequences")
    if any(not 1 <= count <= length for count, length in zip(accepted.tolist(), lengths, strict=True)):
        refuse(operator, "num_accepted_tokens", accepted.tolist(), f"must be from 1 to the lengths, {lengths}")
    steps = _Steps(query, key, value, beta, g, gk, key.shape[2] ** -0.5 if scale is None else scale)
    begin = 0
    for length, count in zip(lengths, accepted.tolist(), strict=True):
        current = state[int(blocks[begin + count - 1])].to(steps.dtype)
        for token in range(begin, begin + length):
            current = steps.step(token, current)
            state[int(blocks[token])] = current.to(state.dtype)
        begin += length
    return steps.out.to(value.dtype)


def npu_recurrent_gated_delta_rule_functional(
    query: Tensor, key: Tensor, value: Tensor, state: Tensor, **options: object
) -> tuple[Tensor, Tensor]:
    """The result of `npu_recurrent_gated_delta_rule`, and the states, in new memory."""
    own = state.clone(memory_format=torch.contiguous_format)
    return npu_recurrent_gated_delta_rule(query, key, value, own, **options), own  # type: ignore[arg-type]


class _Steps:
    """The tokens, in the arithmetic's dtype, and their results."""

    def __init__(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        beta: Tensor | None,
        g: Tensor | None,
        gk: Tensor | None,
        scale: float,
    ) -> None:
        self.dtype = wide(query).dtype
        group = value.shape[1] // max(1, key.shape[1])
        self.query = (query.to(self.dtype) * scale).repeat_interleave(group, 1)
        self.key, self.value = key.to(self.dtype).repeat_interleave(group, 1), value.to(self.dtype)
        ones = torch.ones(value.shape[:2], dtype=self.dtype)
        self.beta = ones if beta is None else beta.to(self.dtype)
        self.decay = (ones if g is None else g.to(self.dtype).exp()).unsqueeze(-1)
        if gk is not None:
            self.decay = self.decay * gk.to(self.dtype).exp()
        self.out = torch.zeros_like(self.value, memory_format=torch.contiguous_format)

    def step(self, token: int, state: Tensor) -> Tensor:
        """The state after a token, whose result is kept."""
        key = self.key[token].unsqueeze(-1)
        state = state * self.decay[token].unsqueeze(-2)
        change = (self.value[token].unsqueeze(-1) - state @ key) * self.beta[token].view(-1, 1, 1)
        state = state + change * key.transpose(-1, -2)
        self.out[token] = (state @ self.query[token].unsqueeze(-1)).squeeze(-1)
        return state


def _check(
    operator: str,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    beta: Tensor | None,
    g: Tensor | None,
    gk: Tensor | None,
) -> None:
    check_alike(operator, "query", query, key=key, value=value)
    for name, tensor in (("query", query), ("key", key), ("value", value)):
        if tensor.dim() != 3:
            refuse(operator, name, f"of shape {list(tensor.shape)}", "must be of shape [T, N, D]")
    check_shape(operator, "key", key, query.shape, "query")
    tokens, heads = value.shape[:2]
    if tokens != len(query) or not key.shape[1] or heads % key.shape[1]:
        rule = f"must have {len(query)} tokens, and a multiple of {key.shape[1]} heads"
        refuse(operator, "value", f"of shape {list(value.shape)}", rule)
    for name, given, shape in (
        ("beta", beta, [tokens, heads]),
        ("g", g, [tokens, heads]),
        ("gk", gk, [tokens, heads, key.shape[2]]),
    ):
        if given is not None:
            check_shape(operator, name, given, shape, "value")


def _lengths(operator: str, lengths: Tensor | None, tokens: int) -> list[int]:
    if lengths is None or lengths.dim() != 1:
        refuse(operator, "actual_seq_lengths", "not given as [B]", "must be given")
    check_integer(operator, "actual_seq_lengths", lengths)
    found: list[int] = lengths.tolist()
    if sum(found) != tokens or min(found, default=0) < 0:
        refuse(operator, "actual_seq_lengths", found, f"must add up to the {tokens} tokens, none negative")
    return found
