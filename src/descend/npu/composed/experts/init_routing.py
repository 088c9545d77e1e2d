"""Rows for experts: npu_moe_init_routing, its version 2, and npu_moe_compute_expert_tokens.

    order[i]     = the place in expert_idx, flat, of the i-th row by expert; of one expert's in the order of the places
    expanded_x[i] = x[the row of order[i]]

Documents: torch_npu.npu_moe_init_routing, npu_moe_init_routing_v2, npu_moe_compute_expert_tokens.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from descend.npu.composed.arithmetic import check_choice, check_dtype, check_shape, check_within
from descend.npu.composed.refusal import refuse, refuse_quantised


def npu_moe_init_routing(
    x: Tensor, row_idx: Tensor, expert_idx: Tensor, active_num: int
) -> tuple[Tensor, Tensor, Tensor]:
    """The rows [min(T, ``active_num``) * K, H], where each row of ``row_idx`` went (int32 [T * K]), and the experts.

    ``row_idx`` and ``expert_idx`` are int32 [T, K]. A row r is row r % T of ``x``.
    """
    operator = "npu_moe_init_routing"
    rows = _check(operator, x, expert_idx)
    check_dtype(operator, "row_idx", row_idx, torch.int32)
    check_shape(operator, "row_idx", row_idx, expert_idx.shape, "expert_idx")
    count = expert_idx.numel()
    check_within(operator, "row_idx", row_idx, count, f"must be from 0 to {count - 1}")
    if active_num < 0:
        refuse(operator, "active_num", active_num, "must be at least 0")
    experts, order = expert_idx.flatten().sort(stable=True)
    sources = row_idx.flatten().long()[order]
    places = torch.zeros(count, dtype=torch.int32)
    places[sources] = torch.arange(count, dtype=torch.int32)
    active = min(active_num, rows) * expert_idx.shape[1]
    return x[sources[:active] % max(1, rows)], places, experts


def npu_moe_init_routing_v2(
    x: Tensor,
    expert_idx: Tensor,
    *,
    scale: Tensor | None = None,
    offset: Tensor | None = None,
    active_num: int = -1,
    expert_capacity: int = -1,
    expert_num: int = -1,
    drop_pad_mode: int = 0,
    expert_tokens_num_type: int = 0,
    expert_tokens_num_flag: bool = False,
    quant_mode: int = -1,
    active_expert_range: Sequence[int] = (),
    row_idx_type: int = 0,
    x_dtype: int | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The rows, the places (int32 [T * K]), the numbers of rows of the experts (int64), and their scales (float32).

    Only experts of ``active_expert_range``, by default all of ``expert_num``, get rows; the rows beyond them are 0.
    Rows are [T * K, H], or [``active_num``, H] if that is above 0 and less; in drop_pad_mode 1
    [experts, ``expert_capacity``, H], and a row for which its expert has no place is left out.
    Places: row_idx_type 0, where each of the T * K went, -1 if nowhere; 1, which went there, then the others.
    Numbers by expert_tokens_num_type: 0, ends; 1, counts; 2, pairs of an expert and its count [``expert_num``, 2].
    """
    operator = "npu_moe_init_routing_v2"
    refuse_quantised(operator, offset=offset, x_dtype=x_dtype)
    rows = _check(operator, x, expert_idx)
    if quant_mode != -1:
        refuse(operator, "quant_mode", quant_mode, "must be -1: what is quantised is not served")
    for name, value, allowed in (
        ("drop_pad_mode", drop_pad_mode, (0, 1)),
        ("expert_tokens_num_type", expert_tokens_num_type, (0, 1, 2)),
        ("row_idx_type", row_idx_type, (0, 1)),
    ):
        check_choice(operator, name, value, *allowed)
    begin, end = active_expert_range or (0, expert_num)
    if not 0 <= begin < end <= expert_num:
        given = list(active_expert_range) or expert_num
        rule = f"must be a range of experts, from 0 to at most {expert_num}"
        refuse(operator, "active_expert_range or expert_num", given, rule)
    if drop_pad_mode == 1 and ((begin, end) != (0, expert_num) or expert_capacity < 1 or row_idx_type):
        got = f"{expert_capacity}, {[begin, end]} and {row_idx_type}"
        name = "expert_capacity, active_expert_range or row_idx_type"
        refuse(operator, name, got, f"must be from 1 on, {[0, expert_num]}, and 0, in drop_pad_mode 1")
    if scale is not None:
        check_shape(operator, "scale", scale, [rows], "the rows of x")
    each, count = expert_idx.shape[1], expert_idx.numel()
    flat = expert_idx.flatten().long()
    order = torch.where(flat < begin, expert_num, flat).argsort(stable=True)
    counts = torch.bincount(flat[(flat >= begin) & (flat < end)] - begin, minlength=end - begin)
    used = int(counts.sum())
    numbers = _numbers(counts, expert_tokens_num_type, begin, expert_num)
    places = torch.full((count,), -1, dtype=torch.int32)
    if drop_pad_mode == 1:
        within = torch.arange(used) - (counts.cumsum(0) - counts).repeat_interleave(counts)
        kept = within < expert_capacity
        sources, experts = order[:used][kept], flat[order[:used][kept]]
        targets = experts * expert_capacity + within[kept]
        places[sources] = targets.int()
        result = x.new_zeros(expert_num * expert_capacity, x.shape[1])
        scales = torch.zeros(expert_num * expert_capacity)
        result[targets] = x[sources // each]
        if scale is not None:
            scales[targets] = scale[sources // each].float()
        return result.view(expert_num, expert_capacity, -1), places, numbers, scales
    if row_idx_type:
        places = order.int()
    else:
        places[order[:used]] = torch.arange(used, dtype=torch.int32)
    size = min(active_num, count) if active_num > 0 else count
    active = min(size, used)
    result, scales = x.new_zeros(size, x.shape[1]), torch.zeros(size)
    result[:active] = x[order[:active] // max(1, each)]
    if scale is not None:
        scales[:active] = scale[order[:active] // each].float()
    return result, places, numbers, scales


def _numbers(counts: Tensor, kind: int, begin: int, expert_num: int) -> Tensor:
    if kind == 0:
        return counts.cumsum(0)
    if kind == 1:
        return counts
    own = counts.nonzero().flatten()
    pairs = torch.zeros(expert_num, 2, dtype=torch.int64)
    pairs[: len(own)] = torch.stack((own + begin, counts[own]), 1)
    return pairs


def npu_moe_compute_expert_tokens(sorted_expert_for_source_row: Tensor, num_expert: int) -> Tensor:
    """Of each expert the number of rows of it and those before it: int32 [``num_expert``]."""
    operator, name = "npu_moe_compute_expert_tokens", "sorted_expert_for_source_row"
    given = sorted_expert_for_source_row
    check_dtype(operator, name, given, torch.int32)
    if given.dim() != 1:
        refuse(operator, name, f"of shape {list(given.shape)}", "must have 1 dimension")
    if num_expert < 1:
        refuse(operator, "num_expert", num_expert, "must be at least 1")
    return torch.searchsorted(given, torch.arange(num_expert, dtype=given.dtype), right=True).to(given.dtype)


def _check(operator: str, x: Tensor, expert_idx: Tensor) -> int:
    """The rows of x."""
    if x.dim() != 2:
        refuse(operator, "x", f"of shape {list(x.shape)}", "must have 2 dimensions")
    check_dtype(operator, "expert_idx", expert_idx, torch.int32)
    if expert_idx.dim() != 2 or len(expert_idx) != len(x):
        refuse(operator, "expert_idx", f"of shape {list(expert_idx.shape)}", f"must be of shape [{len(x)}, K]")
    return len(x)
