"""Choices: npu_random_choice_with_mask, and npu_top_k_top_p for generation.

Documents: torch_npu.npu_random_choice_with_mask, npu_top_k_top_p.
"""

from __future__ import annotations

import torch
from torch import Tensor

from descend.npu.composed.arithmetic import check_float, check_shape, check_within
from descend.npu.composed.random import draw, splitmix64
from descend.npu.composed.refusal import refuse


def npu_random_choice_with_mask(x: Tensor, count: int = 256, seed: int = 0, seed2: int = 0) -> tuple[Tensor, Tensor]:
    """The places of what is True, int32 [``count``, dimensions], and bool [``count``]: whether a row has one.

    If there are more than ``count``, they are chosen at random, the same for the same seeds unless these are 0. With
    ``count`` 0 all are given. Else those that there are stand in order, and rows of 0 follow.
    """
    operator = "npu_random_choice_with_mask"
    if x.dtype != torch.bool or not x.dim():
        refuse(operator, "x", f"{x.dtype} of shape {list(x.shape)}", "must be bool, with a dimension or more")
    if count < 0:
        refuse(operator, "count", count, "must be at least 0")
    places = x.nonzero()
    size = count or len(places)
    if len(places) > size:
        mixed = sum(draw()) if not seed and not seed2 else seed * 0x9E3779B97F4A7C15 + seed2
        generator = torch.Generator().manual_seed(splitmix64(mixed) % 2**32)
        places = places[torch.randperm(len(places), generator=generator)[:size]]
    result = torch.zeros(size, x.dim(), dtype=torch.int32)
    result[: len(places)] = places.int()
    return result, torch.arange(size) < len(places)


def npu_top_k_top_p(logits: Tensor, p: Tensor | None = None, k: Tensor | None = None) -> Tensor:
    """``logits`` [B, V], -inf where a number is below the k-th largest, or among the least that add up to 1 - p.

    ``k`` int32 [B], ``p`` [B]. The largest stays.
    """
    operator = "npu_top_k_top_p"
    check_float(operator, logits=logits, p=p)
    if logits.dim() != 2 or not logits.shape[1]:
        refuse(operator, "logits", f"of shape {list(logits.shape)}", "must be of shape [B, V], V from 1 on")
    values, order = logits.sort(dim=-1, stable=True)
    if k is not None:
        check_shape(operator, "k", k, [len(logits)], "the rows of logits")
        size = logits.shape[1]
        check_within(operator, "k", k, size + 1, f"must be from 1 to {size}", 1)
        values = values.masked_fill(values < values.gather(1, (size - k.long()).unsqueeze(1)), -torch.inf)
    if p is not None:
        check_shape(operator, "p", p, [len(logits)], "the rows of logits")
        low = values.float().softmax(-1).cumsum(-1) <= 1 - p.float().unsqueeze(1)
        low[:, -1] = False
        values = values.masked_fill(low, -torch.inf)
    return torch.empty_like(values).scatter_(1, order, values)
