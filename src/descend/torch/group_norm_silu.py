"""Group norm followed by SiLU. Its gradient is that of group norm followed by swish."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from descend.torch import definitions
from descend.torch.group_norm import Gradients, define, results_like
from descend.torch.group_norm_swish import gradients_of_swish
from descend.torch.library import Operator, constant

_FORWARD = Operator("group_norm_silu")


def group_norm_silu(
    input: Tensor, gamma: Tensor | None, beta: Tensor | None, group: int, eps: float = 1e-5
) -> tuple[Tensor, Tensor, Tensor]:
    """Group norm, then SiLU. Differentiable in ``input``, ``gamma`` and ``beta``::

        mean, var = mean and biased variance of each group
        rstd      = 1 / sqrt(var + eps)
        z         = (input - mean) * rstd * gamma + beta
        out       = z * sigmoid(z)

    Shapes: ``input`` [N, C, ...], ``gamma`` and ``beta`` [C], None for ones and zeros; ``group`` divides C. Floating
    dtypes, mixed at will. Returns ``out`` like ``input``, contiguous, and ``mean`` and ``rstd`` [N, group], float32
    (float64 for float64 ``input``).

    Raises AclnnError (a ValueError) where the shapes or dtypes do not fit. Source: aclnnGroupNormSilu.
    """
    result: tuple[Tensor, Tensor, Tensor] = _FORWARD(input, gamma, beta, group, eps)
    return result


@_FORWARD.fake
def _fake(input: Tensor, gamma: Any, beta: Any, group: int, eps: float = 1e-5) -> tuple[Tensor, Tensor, Tensor]:
    return results_like(input, group)


def _gradients(
    dy: Tensor,
    mean: Tensor,
    rstd: Tensor,
    needs: Sequence[bool],
    x: Tensor,
    gamma: Tensor | None,
    beta: Tensor | None,
    group: int,
    eps: float,
) -> Gradients:
    channels = x.shape[1:2]
    weight = constant(1.0, channels, x) if gamma is None else gamma
    bias = constant(0.0, channels, x) if beta is None else beta
    return gradients_of_swish(dy, mean, rstd, needs, x, weight, bias, group)


define(_FORWARD, definitions.group_norm_silu, _gradients, groups=3)
