"""GroupNormSilu: group norm + swish by another name, and with its peers."""

from __future__ import annotations

import numpy as np

from benchmarks.group_norm_swish import GroupNormSwish
from benchmarks.group_norm_swish_grad import EPSILON
from benchmarks.operator import Problem, Shape


class GroupNormSilu(GroupNormSwish):
    """Samples, groups, channels of a group, pixels; the parameters in the dtype of x, the statistics in float32."""

    name = "group_norm_silu"

    def make(self, shape: Shape, dtype: str, rng: np.random.Generator) -> Problem:
        """Those of group norm + swish."""
        made = super().make(shape, dtype, rng)
        names = ("input", "gamma", "beta"), ("out", "mean_out", "rstd_out")
        inputs, outputs = (
            dict(zip(n, held.values(), strict=True)) for n, held in zip(names, (made.inputs, made.outputs), strict=True)
        )
        return Problem(shape, dtype, inputs, outputs, {"group": shape[1], "eps": EPSILON})


OPERATOR = GroupNormSilu()
