"""Golden values of GELU, SwiGLU and rotary position embedding."""

from __future__ import annotations

from typing import Any

from descend import reference
from descend.golden._results import Array, Results, check_one_of, rounded


def gelu_golden(x: Array, **given: Any) -> Results:
    """``y`` of Gelu, by tanh."""
    return gelu_v2_golden(x, approximate="tanh", **given)


def gelu_v2_golden(x: Array, *, approximate: str = "none", **given: Any) -> Results:
    """``y`` of GeluV2, by erf, or with "tanh" by tanh."""
    check_one_of("approximate", approximate, ["none", "tanh"])
    return rounded([reference.gelu_v2(x, int(approximate == "tanh"))], [x.dtype], given)


def gelu_grad_golden(dy: Array, x: Array, y: Array, **given: Any) -> Results:
    """``z`` of GeluGrad, by tanh; ``y``, the forward's result, does not change it."""
    return gelu_grad_v2_golden(dy, x, approximate="tanh", **given)


def gelu_grad_v2_golden(dy: Array, x: Array, *, approximate: str = "none", **given: Any) -> Results:
    """``z`` of GeluGradV2, by erf, or with "tanh" by tanh."""
    return rounded([reference.gelu_backward_v2(dy, x, approximate)], [dy.dtype], given)


def swi_glu_golden(x: Array, *, dim: int = -1, **given: Any) -> Results:
    """``y`` of SwiGlu; shapes and formula as `descend.swi_glu`."""
    return rounded([reference.swi_glu(x, dim)], [x.dtype], given)


def swi_glu_grad_golden(y_grad: Array, x: Array, *, dim: int = -1, **given: Any) -> Results:
    """``x_grad`` of SwiGluGrad; shapes and formula as `descend.swi_glu_grad`."""
    return rounded([reference.swi_glu_grad(y_grad, x, dim)], [x.dtype], given)


def rotary_position_embedding_golden(x: Array, cos: Array, sin: Array, *, mode: int = 0, **given: Any) -> Results:
    """``y`` of RotaryPositionEmbedding; shapes and formula as `descend.rotary_position_embedding`."""
    return rounded([reference.rotary_position_embedding(x, cos, sin, mode)], [x.dtype], given)


def rotary_position_embedding_grad_golden(
    dy: Array, cos: Array, sin: Array, x: Array | None = None, *, mode: int = 0, **given: Any
) -> Results:
    """``dx, dcos, dsin`` of RotaryPositionEmbeddingGrad; dcos and dsin are None without x."""
    results = reference.rotary_position_embedding_grad(dy, cos, sin, x, mode)
    return rounded(results, [dy.dtype, cos.dtype, sin.dtype], given)
