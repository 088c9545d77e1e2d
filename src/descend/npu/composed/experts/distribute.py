"""Tokens to experts of other processes, and their results back: npu_moe_distribute_dispatch and _combine.

    dispatch:  expand_x = the tokens that chose an expert of this process, expert after expert
    combine:   x[t] = sum over k of expert_scales[t, k] * (the result of expert expert_ids[t, k] for token t)
               + the results of the shared experts for token t + shared_expert_x[t]
    combine_add_rms_norm:  x = combine + residual_x, y = x / sqrt(mean(x^2) + norm_eps) * gamma

An expert's rows lie process after process, and of a process token after token. Shared experts are in the first
shared_expert_rank_num processes. Each shared expert is in n = shared_expert_rank_num / shared_expert_num processes;
process r uses copy r % n. The other processes have equal numbers of MoE experts.

Experts from moe_expert_num on compute nothing, and get no tokens. Their results are, by the order of their numbers: 0,
for zero_expert_num experts; ori_x, for copy_expert_num; const_expert_alpha_1 * ori_x + const_expert_alpha_2 *
const_expert_v, for const_expert_num.

Results are added up in float32, and rounded once. Counts say where rows belong, so combine reads neither expand_idx nor
assist_info_for_combine. First the processes tell each other their shapes and counts. Sizes and counts that do not fit
each other are refused in all processes; a wrong argument of one process is refused there alone, and the others wait.

Documents: torch_npu.npu_moe_distribute_dispatch and its version 2, npu_moe_distribute_combine and its version 2,
npu_moe_distribute_combine_add_rms_norm.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, distributed

from descend.npu.composed.arithmetic import HALVES, check_choice, check_dtype, check_shape, check_within, wide
from descend.npu.composed.layers.fused_norms import rms_norm
from descend.npu.composed.products.communication import numbers_of_all, process_group
from descend.npu.composed.quantised.formats import INT8, scaled_to_fit
from descend.npu.composed.refusal import refuse

WITHOUT_EFFECT = {
    *("group_tp", "tp_rank_id", "tp_send_counts", "comm_alg", "performance_info"),
    *("expand_idx", "assist_info_for_combine", "expand_scales"),
}
"""Parameters that say how a processor is to communicate, and results of dispatch that combine does not read."""
RESERVED = {
    **dict.fromkeys(("elastic_info", "activation_scale", "weight_scale", "group_list")),
    **dict.fromkeys(("y_dtype", "x_dtype", "scales_dtype")),
    **dict.fromkeys(("expert_shard_type", "out_dtype", "comm_quant_mode", "group_list_type"), 0),
}
"""Parameters that must be what they are by default."""
_DTYPES = (torch.float16, torch.bfloat16, torch.int32, torch.int8)


def npu_moe_distribute_dispatch(
    x: Tensor, expert_ids: Tensor, group_ep: str, ep_world_size: int, ep_rank_id: int, moe_expert_num: int,
    **options: Any,
) -> tuple[Tensor, ...]:  # fmt: skip
    """As version 2, but the third result is expand_idx [B * K].

    It has, for each choice, its place among this process's tokens for the same expert.
    """
    operator, size = "npu_moe_distribute_dispatch", (group_ep, ep_world_size, ep_rank_id, moe_expert_num)
    return _dispatch(operator, x, expert_ids, *size, options, with_places=True)


def npu_moe_distribute_dispatch_v2(
    x: Tensor, expert_ids: Tensor, group_ep: str, ep_world_size: int, ep_rank_id: int, moe_expert_num: int,
    **options: Any,
) -> tuple[Tensor, ...]:  # fmt: skip
    """Of ``x`` [B, H] in 16 bits, or int32 that holds int4, and ``expert_ids`` [B, K] int32 this makes seven tensors.

    expand_x [A, H], in int8 with quant_mode 2; dynamic_scales [A]; assist_info_for_combine [A * 128], zeros;
    expert_token_nums, the counts of this process's experts, or their ends; ep_recv_counts, the ends of the rows of each
    expert and process; tp_recv_counts; expand_scales [A], if expert_scales are given.

    A is how many rows there may be at most. Rows beyond those that came are 0. With quant_mode 2 ``scales``
    [experts, H], those of shared experts first, are multiplied in before; of int32 they are [B], and go with their
    tokens.
    """
    operator, size = "npu_moe_distribute_dispatch_v2", (group_ep, ep_world_size, ep_rank_id, moe_expert_num)
    return _dispatch(operator, x, expert_ids, *size, options, with_places=False)


def npu_moe_distribute_combine(
    expand_x: Tensor, expert_ids: Tensor, expand_idx: Tensor, ep_send_counts: Tensor, expert_scales: Tensor,
    group_ep: str, ep_world_size: int, ep_rank_id: int, moe_expert_num: int, **options: Any,
) -> Tensor:  # fmt: skip
    """As `npu_moe_distribute_combine_v2`."""
    size = (group_ep, ep_world_size, ep_rank_id, moe_expert_num)
    total = _combine("npu_moe_distribute_combine", expand_x, expert_ids, ep_send_counts, expert_scales, *size, options)
    return total.to(expand_x.dtype)


def npu_moe_distribute_combine_v2(
    expand_x: Tensor, expert_ids: Tensor, assist_info_for_combine: Tensor, ep_send_counts: Tensor,
    expert_scales: Tensor, group_ep: str, ep_world_size: int, ep_rank_id: int, moe_expert_num: int, **options: Any,
) -> Tensor:  # fmt: skip
    """[B, H] in the dtype of ``expand_x`` [A, H]. ``ep_send_counts`` are dispatch's ep_recv_counts.

    Tokens that x_active_mask leaves out are 0.
    """
    size = (group_ep, ep_world_size, ep_rank_id, moe_expert_num)
    operator = "npu_moe_distribute_combine_v2"
    return _combine(operator, expand_x, expert_ids, ep_send_counts, expert_scales, *size, options).to(expand_x.dtype)


def npu_moe_distribute_combine_add_rms_norm(
    expand_x: Tensor, expert_ids: Tensor, expand_idx: Tensor, ep_send_counts: Tensor, expert_scales: Tensor,
    residual_x: Tensor, gamma: Tensor, group_ep: str, ep_world_size: int, ep_rank_id: int, moe_expert_num: int, *,
    norm_eps: float = 1e-6, **options: Any,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """y [B, 1, H], 1 / sqrt(...) [B, 1, 1] in float32, and x [B, 1, H]. ``residual_x`` is [B, 1, H], ``gamma`` [H]."""
    operator = "npu_moe_distribute_combine_add_rms_norm"
    for name, tensor in (("residual_x", residual_x), ("gamma", gamma)):
        check_dtype(operator, name, tensor, expand_x.dtype)
    if expand_x.dim() != 2 or expert_ids.dim() != 2:
        refuse(operator, "expand_x or expert_ids", "of other shapes", "must have 2 dimensions")
    shape = [len(expert_ids), 1, expand_x.shape[1]]
    check_shape(operator, "residual_x", residual_x, shape, "tokens, 1, and columns")
    check_shape(operator, "gamma", gamma, shape[2:], "the columns of expand_x")
    size = (group_ep, ep_world_size, ep_rank_id, moe_expert_num)
    total = _combine(operator, expand_x, expert_ids, ep_send_counts, expert_scales, *size, options)
    total = total.unsqueeze(1) + wide(residual_x)
    y, rstd = rms_norm(operator, "expand_x", total, gamma, norm_eps)
    return y.to(expand_x.dtype), rstd, total.to(expand_x.dtype)


# --- dispatch ---------------------------------------------------------------------------------------------------------


def _dispatch(
    operator: str, x: Tensor, expert_ids: Tensor, group_ep: str, ep_world_size: int, ep_rank_id: int,
    moe_expert_num: int, options: dict[str, Any], *, with_places: bool,
) -> tuple[Tensor, ...]:  # fmt: skip
    mode, counts_type = options.pop("quant_mode", 0), options.pop("expert_token_nums_type", 1)
    scales, weights = options.pop("scales", None), options.pop("expert_scales", None)
    tp_size = options.get("tp_world_size", 0)
    check_dtype(operator, "x", x, *HALVES, torch.int32)
    if x.dim() != 2:
        refuse(operator, "x", f"of shape {list(x.shape)}", "must have 2 dimensions")
    plan = _Plan.of(operator, expert_ids, group_ep, ep_world_size, ep_rank_id, moe_expert_num, options)
    check_shape(operator, "x", x, [len(expert_ids), x.shape[1]], "the rows of expert_ids, and columns of its own")
    packed = x.dtype == torch.int32
    check_choice(operator, "quant_mode", mode, *((0,) if packed else (0, 2)))
    check_choice(operator, "expert_token_nums_type", counts_type, 0, 1)
    _check_scales(operator, plan, x, scales, mode)
    if weights is not None:
        check_dtype(operator, "expert_scales", weights, torch.float32)
        check_shape(operator, "expert_scales", weights, expert_ids.shape, "expert_ids")
    every = plan.counts_of_all(operator, x, mode, scales is not None, weights is not None)
    rows, by_row = x[plan.token], None
    if mode == 2:
        wide_rows = rows.float()
        if scales is not None:
            wide_rows = wide_rows * scales[plan.scale_row]
        rows, by_row = scaled_to_fit(wide_rows, INT8)
    elif packed:
        by_row = scales[plan.token].unsqueeze(1)
    most = plan.most_rows()
    result = x.new_zeros(most, x.shape[1], dtype=rows.dtype)
    order, ends = plan.by_expert(every)
    got = plan.send(rows, every)[order]
    result[: len(got)] = got
    others = []
    for values in (by_row, None if weights is None else _weights(plan, weights)):
        filled = x.new_zeros(most, dtype=torch.float32)
        if values is not None:
            filled[: len(got)] = plan.send(values, every)[order].flatten()
        others.append(filled)
    own = ends.view(-1, plan.size)[:, -1].long()
    expand_scales = others[1] if weights is not None else others[1][:0]
    if weights is not None:
        more = 2 * plan.all_tokens() * expert_ids.shape[1] * (plan.size // 8)
        ends = torch.cat((ends, ends.new_zeros(more)))
    return (
        result,
        others[0],
        plan.places_of_tokens() if with_places else x.new_zeros(
            max(expert_ids.numel(), most * 128), dtype=torch.int32
        ),
        own if counts_type == 0 else own.diff(prepend=own.new_zeros(1)),
        ends.to(torch.int32),
        x.new_zeros(tp_size, dtype=torch.int32),
        expand_scales,
    )  # fmt: skip


def _weights(plan: _Plan, weights: Tensor) -> Tensor:
    """The weight of each row that is sent: 1 for a shared expert."""
    chosen = plan.column >= 0
    found = weights.new_ones(len(plan.token))
    found[chosen] = weights[plan.token[chosen], plan.column[chosen]]
    return found.unsqueeze(1)


def _check_scales(operator: str, plan: _Plan, x: Tensor, scales: Tensor | None, mode: int) -> None:
    packed = x.dtype == torch.int32
    if scales is None:
        if packed:
            refuse(operator, "scales", None, "must be given where x is int32")
        return
    if not packed and mode == 0:
        refuse(operator, "scales", "given", "must be None with quant_mode 0")
    check_dtype(operator, "scales", scales, torch.float32)
    shape = [len(x)] if packed else [plan.shared * bool(plan.shared_processes) + plan.experts, x.shape[1]]
    check_shape(operator, "scales", scales, shape, "the tokens" if packed else "the experts and the columns of x")


# --- combine ----------------------------------------------------------------------------------------------------------


def _combine(
    operator: str, expand_x: Tensor, expert_ids: Tensor, ep_send_counts: Tensor, expert_scales: Tensor,
    group_ep: str, ep_world_size: int, ep_rank_id: int, moe_expert_num: int, options: dict[str, Any],
) -> Tensor:  # fmt: skip
    """The sum in float32."""
    shared_x = options.pop("shared_expert_x", None)
    special = [options.pop(name, None) for name in ("ori_x", *_CONST)]
    check_dtype(operator, "expand_x", expand_x, *HALVES)
    if expand_x.dim() != 2:
        refuse(operator, "expand_x", f"of shape {list(expand_x.shape)}", "must have 2 dimensions")
    plan = _Plan.of(operator, expert_ids, group_ep, ep_world_size, ep_rank_id, moe_expert_num, options)
    columns = expand_x.shape[1]
    check_dtype(operator, "expert_scales", expert_scales, torch.float32)
    check_shape(operator, "expert_scales", expert_scales, expert_ids.shape, "expert_ids")
    if shared_x is not None:
        check_dtype(operator, "shared_expert_x", shared_x, expand_x.dtype)
        if shared_x.dim() not in (2, 3) or shared_x.flatten(0, -2).shape != (len(expert_ids), columns):
            rule = f"must have {len(expert_ids)} rows of {columns}"
            refuse(operator, "shared_expert_x", f"of shape {list(shared_x.shape)}", rule)
    _check_special(operator, plan, expand_x, special)
    check_dtype(operator, "ep_send_counts", ep_send_counts, torch.int32)
    if ep_send_counts.dim() != 1 or len(ep_send_counts) < plan.size * plan.own_experts:
        rule = f"must have {plan.size * plan.own_experts} numbers at least, as dispatch's ep_recv_counts"
        refuse(operator, "ep_send_counts", f"of shape {list(ep_send_counts.shape)}", rule)
    every = plan.counts_of_all(operator, expand_x, 0, False, False)
    order, ends = plan.by_expert(every)
    _check_counts(operator, plan, every, ends, ep_send_counts[: len(ends)], expand_x)
    rows = torch.empty_like(expand_x[: len(order)], memory_format=torch.contiguous_format)
    rows[order] = expand_x[: len(order)]
    back = plan.send_back(rows, every).float()
    total = expand_x.new_zeros(len(expert_ids), columns, dtype=torch.float32)
    total.index_add_(0, plan.token, back * _weights(plan, expert_scales))
    _add_special(total, plan, expert_ids, expert_scales, special)
    if shared_x is not None:
        total += shared_x.reshape(total.shape)
    return total.masked_fill_(~plan.is_active.unsqueeze(1), 0)


_CONST = ("const_expert_alpha_1", "const_expert_alpha_2", "const_expert_v")


def _check_special(operator: str, plan: _Plan, expand_x: Tensor, special: list[Tensor | None]) -> None:
    _, copies, constants = plan.special
    shapes = ([plan.tokens, expand_x.shape[1]], *[[constants, expand_x.shape[1]]] * 3)
    needed = (copies + constants, *[constants] * 3)
    for name, tensor, shape, need in zip(("ori_x", *_CONST), special, shapes, needed, strict=True):
        if tensor is None:
            if need:
                refuse(operator, name, None, "must be given where copy_expert_num or const_expert_num is not 0")
            continue
        check_dtype(operator, name, tensor, expand_x.dtype)
        if need:
            check_shape(operator, name, tensor, shape, "tokens or constant experts, and columns")


def _add_special(total: Tensor, plan: _Plan, expert_ids: Tensor, weights: Tensor, special: list[Tensor | None]) -> None:
    """Adds what experts that compute nothing give: the token itself, or a sum with a constant."""
    zero, copies, constants = plan.special
    ori_x, alpha_1, alpha_2, v = special
    if not copies + constants:
        return
    assert ori_x is not None
    first = plan.experts + zero
    chosen = (expert_ids >= first) & plan.is_sent
    token, column = chosen.nonzero(as_tuple=True)
    expert = expert_ids[token, column].long() - first
    rows = ori_x.float()[token]
    if constants:
        assert alpha_1 is not None
        assert alpha_2 is not None
        assert v is not None
        of = (expert - copies).clamp(min=0)
        other = alpha_1.float()[of] * rows + alpha_2.float()[of] * v.float()[of]
        rows = torch.where((expert < copies).unsqueeze(1), rows, other)
    total.index_add_(0, token, rows * weights[token, column].unsqueeze(1))


def _check_counts(
    operator: str, plan: _Plan, every: list[list[int]], ends: Tensor, given: Tensor, expand_x: Tensor
) -> None:
    """Refuses, in every process, counts that are not those of dispatch, and too few rows."""
    got = int(ends[-1])
    fits = numbers_of_all([int(torch.equal(ends.int(), given)), int(len(expand_x) >= got)], plan.group)
    for process, (counts, rows) in enumerate(fits):
        if not counts:
            rule = "must be dispatch's ep_recv_counts for the same expert_ids and x_active_mask"
            refuse(operator, "ep_send_counts", f"something else in process {process}", rule)
        if not rows:
            refuse(
                operator, "expand_x", f"too short in process {process}", "must have a row for each that dispatch gave"
            )


# --- who sends what to whom -------------------------------------------------------------------------------------------


@dataclass
class _Plan:
    """The rows that this process sends: sorted by slots, which are the experts of all processes one after another."""

    group: Any
    rank: int
    size: int
    experts: int
    shared: int
    shared_processes: int
    special: tuple[int, int, int]
    global_bs: int
    tokens: int
    choices: int
    is_active: Tensor
    """[B], the tokens that take part."""
    is_sent: Tensor
    """[B, K], the choices that count."""
    token: Tensor
    """Of each row."""
    column: Tensor
    """Of each row, in expert_ids; -1 for a shared expert."""
    slot: Tensor
    scale_row: Tensor
    """Of each row the row of ``scales``."""
    most_tokens: int = 0
    """How many tokens a process has at most, once `counts_of_all` has asked."""

    @property
    def each(self) -> int:
        """How many MoE experts a process has that has any."""
        return self.experts // (self.size - self.shared_processes)

    @property
    def own_experts(self) -> int:
        """How many this process has."""
        return 1 if self.rank < self.shared_processes else self.each

    def slots_of(self, process: int) -> range:
        """The experts of a process."""
        if process < self.shared_processes:
            return range(process, process + 1)
        begin = self.shared_processes + (process - self.shared_processes) * self.each
        return range(begin, begin + self.each)

    @staticmethod
    def of(
        operator: str, expert_ids: Tensor, group_ep: str, size: int, rank: int, experts: int, options: dict[str, Any]
    ) -> _Plan:
        """Checks what the operators have in common."""
        options = dict(options)
        shared, processes = options.pop("shared_expert_num", 1), options.pop("shared_expert_rank_num", 0)
        global_bs, mask = options.pop("global_bs", 0), options.pop("x_active_mask", None)
        check_choice(operator, "tp_world_size", options.pop("tp_world_size", 0), 0, 1)
        names = ("zero_expert_num", "copy_expert_num", "const_expert_num")
        zero, copies, constants = special = tuple(options.pop(name, 0) for name in names)
        for name, number in zip(names, special, strict=True):
            if number < 0:
                refuse(operator, name, number, "must not be negative")
        for name, given in options.items():
            if name in WITHOUT_EFFECT:
                continue
            if name not in RESERVED:
                refuse(operator, name, "given", "must be left out: it is not served")
            if given != RESERVED[name]:
                refuse(operator, name, "given" if isinstance(given, Tensor) else given, f"must be {RESERVED[name]}")
        group = process_group(operator, group_ep, size, "ep_world_size", "group_ep")
        if rank != group.rank():
            refuse(operator, "ep_rank_id", rank, f"must be that of this process, {group.rank()}")
        if not 0 <= processes < size or (processes and (shared < 1 or processes % shared)):
            rule = f"must be below {size}, and a multiple of shared_expert_num, {shared}"
            refuse(operator, "shared_expert_rank_num", processes, rule)
        if experts < 1 or experts % (size - processes):
            rule = f"must be a multiple of {size - processes}, the processes without shared experts"
            refuse(operator, "moe_expert_num", experts, rule)
        check_dtype(operator, "expert_ids", expert_ids, torch.int32)
        if expert_ids.dim() != 2:
            refuse(operator, "expert_ids", f"of shape {list(expert_ids.shape)}", "must have 2 dimensions")
        end = experts + zero + copies + constants
        check_within(operator, "expert_ids", expert_ids, end, f"must be from 0 to {end - 1}")
        is_sent = _sent(operator, expert_ids, mask)
        # Padding tokens may name expert 0 in all columns. They are not sent: each of their choices counts as another.
        ordered = torch.where(is_sent, expert_ids, -1 - torch.arange(expert_ids.shape[1])).sort(1).values
        if bool((ordered[:, 1:] == ordered[:, :-1]).any()):
            refuse(operator, "expert_ids", "with an expert twice in a row", "must name an expert once for each token")
        is_active = is_sent.any(1) if expert_ids.shape[1] else is_sent.new_ones(len(expert_ids))
        held = shared if processes else 0
        token, column, slot, scale_row = _rows(expert_ids, is_sent, is_active, experts, held, processes, rank)
        return _Plan(
            group=group, rank=rank, size=size, experts=experts, shared=shared, shared_processes=processes,
            special=(zero, copies, constants), global_bs=global_bs, tokens=len(expert_ids),
            choices=expert_ids.shape[1], is_active=is_active, is_sent=is_sent, token=token, column=column, slot=slot,
            scale_row=scale_row,
        )  # fmt: skip

    def counts_of_all(self, operator: str, x: Tensor, mode: int, scaled: bool, weighted: bool) -> list[list[int]]:
        """How many rows each process sends to each slot, after numbers that must be alike: the last one is B."""
        own = torch.bincount(self.slot, minlength=self.shared_processes + self.experts).tolist()
        alike = {
            "moe_expert_num": self.experts, "shared_expert_num": self.shared,
            "shared_expert_rank_num": self.shared_processes, "global_bs": self.global_bs, "quant_mode": mode,
            "the number of columns of expert_ids": self.choices, "the number of columns of the rows": x.shape[1],
            "the dtype of the rows, by number,": _DTYPES.index(x.dtype), "scales": int(scaled),
            "expert_scales": int(weighted),
        }  # fmt: skip
        # Lists must have one length: counts follow when it is known that all have as many experts.
        every = numbers_of_all([*alike.values(), self.tokens], self.group)
        for process, numbers in enumerate(every):
            for name, number, first in zip(alike, numbers, every[0], strict=False):
                if number != first:
                    refuse(operator, name, f"{number} in process {process}", f"must be as in process 0, {first}")
        most = max(numbers[-1] for numbers in every)
        if self.global_bs == 0 and any(numbers[-1] != most for numbers in every):
            refuse(operator, "global_bs", 0, f"must be {most * self.size}, as processes have unlike numbers of tokens")
        if self.global_bs and self.global_bs < most * self.size:
            rule = f"must be 0, or {most * self.size} at least, {self.size} times the most tokens of a process"
            refuse(operator, "global_bs", self.global_bs, rule)
        self.most_tokens = most
        return numbers_of_all(own, self.group)

    def all_tokens(self) -> int:
        """global_bs, or what it stands for."""
        return self.global_bs or self.most_tokens * self.size

    def most_rows(self) -> int:
        """A, how many rows this process may get."""
        whole = self.all_tokens()
        if self.rank >= self.shared_processes:
            return whole * min(self.each, self.choices)
        copies = self.shared_processes // self.shared
        return whole // self.size * -(-self.size // copies)

    def _sent_and_got(self, every: list[list[int]]) -> tuple[list[int], list[int]]:
        """How many rows go to each process, and come from each."""
        sent = [sum(every[self.rank][slot] for slot in self.slots_of(process)) for process in range(self.size)]
        got = [sum(counts[slot] for slot in self.slots_of(self.rank)) for counts in every]
        return sent, got

    def by_expert(self, every: list[list[int]]) -> tuple[Tensor, Tensor]:
        """Where the rows that come process after process are in the order of experts; the ends of each part of that."""
        counts = torch.tensor([[counts[slot] for slot in self.slots_of(self.rank)] for counts in every])
        begins = (counts.flatten().cumsum(0) - counts.flatten()).view(counts.shape)
        parts = [
            torch.arange(int(begins[process, expert]), int(begins[process, expert] + counts[process, expert]))
            for expert in range(self.own_experts)
            for process in range(self.size)
        ]
        return torch.cat(parts), counts.T.flatten().cumsum(0)

    def send(self, rows: Tensor, every: list[list[int]]) -> Tensor:
        """The rows that come to this process, process after process."""
        return self._exchange(rows, *self._sent_and_got(every))

    def send_back(self, rows: Tensor, every: list[list[int]]) -> Tensor:
        """The rows that this process had sent, as they come back."""
        sent, got = self._sent_and_got(every)
        return self._exchange(rows, got, sent)

    def _exchange(self, rows: Tensor, sent: list[int], got: list[int]) -> Tensor:
        result = rows.new_empty(sum(got), *rows.shape[1:])
        distributed.all_to_all_single(result, rows.contiguous(), got, sent, self.group)
        return result

    def places_of_tokens(self) -> Tensor:
        """Of each choice [B * K] which of this process's tokens for its expert it is. Without a row it is 0."""
        places = torch.zeros(self.tokens, self.choices, dtype=torch.int32)
        counts = torch.bincount(self.slot, minlength=1)
        place = torch.arange(len(self.slot)) - (counts.cumsum(0) - counts)[self.slot]
        chosen = self.column >= 0
        places[self.token[chosen], self.column[chosen]] = place[chosen].int()
        return places.flatten()


def _sent(operator: str, expert_ids: Tensor, mask: Tensor | None) -> Tensor:
    """Which choices [B, K] count."""
    if mask is None:
        return torch.ones_like(expert_ids, dtype=torch.bool)
    check_dtype(operator, "x_active_mask", mask, torch.bool)
    if mask.dim() == 1:
        check_shape(operator, "x_active_mask", mask, expert_ids.shape[:1], "the rows of expert_ids")
        if bool((mask[1:] & ~mask[:-1]).any()):
            refuse(operator, "x_active_mask", "True after False", "must have all True before all False")
        return mask.unsqueeze(1).expand(expert_ids.shape)
    check_shape(operator, "x_active_mask", mask, expert_ids.shape, "expert_ids")
    return mask


def _rows(
    expert_ids: Tensor, is_sent: Tensor, is_active: Tensor, experts: int, shared: int, processes: int, rank: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """token, column, slot and scale_row of all rows that are sent, sorted by slot, and then by token."""
    token, column = (is_sent & (expert_ids < experts)).nonzero(as_tuple=True)
    expert = expert_ids[token, column].long()
    tokens, columns, slots, scale_rows = [token], [column], [expert + processes], [expert + shared]
    everyone = is_active.nonzero(as_tuple=True)[0]
    for number in range(shared):
        copies = processes // shared
        tokens.append(everyone)
        columns.append(torch.full_like(everyone, -1))
        slots.append(torch.full_like(everyone, number * copies + rank % copies))
        scale_rows.append(torch.full_like(everyone, number))
    slot = torch.cat(slots)
    order = slot.argsort(stable=True)
    return torch.cat(tokens)[order], torch.cat(columns)[order], slot[order], torch.cat(scale_rows)[order]
