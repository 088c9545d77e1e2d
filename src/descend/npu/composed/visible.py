"""Which keys a query sees: the sparse modes of the fused attention operators."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

EVERYWHERE = 2**31 - 1
"""A bound beyond every distance between a query and a key: the default of pre_tockens and next_tockens."""


@dataclass(frozen=True)
class Visible:
    """Query i sees key j where ``-before <= j - i - shift <= after``, and where ``j < prefix``.

    ``masked`` [B or 1, N or 1, queries, keys] is true if a query does not see a key, even within the bounds.
    """

    before: int = EVERYWHERE
    after: int = EVERYWHERE
    shift: int = 0
    prefix: int = 0
    masked: Tensor | None = None

    @property
    def bounded(self) -> bool:
        """Whether the bounds hide a key from some query."""
        return self.before < EVERYWHERE or self.after < EVERYWHERE

    def keys(self, first: int, last: int, count: int) -> tuple[int, int]:
        """The first key that one of the queries ``first`` to ``last - 1`` may see, and the end of those keys."""
        begin = max(0, min(count, first + self.shift - self.before))
        end = max(0, min(count, last + self.shift + self.after))
        if self.prefix > 0:
            return 0, max(end, min(count, self.prefix))
        return begin, max(begin, end)

    def hidden(self, first: int, last: int, begin: int, end: int) -> Tensor | None:
        """[queries, keys], true if the bounds hide a key. None if they hide none of these."""
        nearest, farthest = begin - (last - 1) - self.shift, (end - 1) - first - self.shift
        if nearest >= -self.before and farthest <= self.after:
            return None
        key = torch.arange(begin, end)
        distance = key - torch.arange(first, last).unsqueeze(-1) - self.shift
        hidden = (distance < -self.before) | (distance > self.after)
        return hidden & (key >= self.prefix) if self.prefix > 0 else hidden
