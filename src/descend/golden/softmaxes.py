"""Golden values of softmax and log softmax along an axis, and of the scaled, masked softmax."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from descend import reference
from descend.golden._results import Array, Results, integers, rounded


def softmax_v2_golden(x: Array, *, axes: npt.ArrayLike = (-1,), half_to_float: bool = False, **given: Any) -> Results:
    """``y`` of SoftmaxV2, along one axis; with ``half_to_float`` that of a float16 x is float32."""
    dtype = np.float32 if half_to_float and x.dtype == np.float16 else x.dtype
    return rounded([reference.softmax(x, _axis("axes", axes))], [dtype], given)


def softmax_grad_golden(softmax: Array, grad_softmax: Array, *, axes: npt.ArrayLike = (-1,), **given: Any) -> Results:
    """``grad_x`` of SoftmaxGrad, along one axis; ``softmax`` is the forward's result."""
    result = reference.softmax_backward(grad_softmax, softmax, _axis("axes", axes))
    return rounded([result], [softmax.dtype], given)


def log_softmax_v2_golden(logits: Array, *, axes: npt.ArrayLike = (-1,), **given: Any) -> Results:
    """``logsoftmax`` of LogSoftmaxV2, along one axis."""
    return rounded([reference.log_softmax(logits, _axis("axes", axes))], [logits.dtype], given)


def log_softmax_grad_golden(grad: Array, x: Array, *, axis: npt.ArrayLike = (-1,), **given: Any) -> Results:
    """``y`` of LogSoftmaxGrad, along one axis; ``x`` is the forward's result.

    The repository's own tests call the attribute ``axes``, too.
    """
    result = reference.log_softmax_backward(grad, x, _axis("axis", given.get("axes", axis)))
    return rounded([result], [grad.dtype], given)


def scaled_masked_softmax_v2_golden(
    x: Array, mask: Array | None = None, *, scale: float = 1.0, fixed_triu_mask: bool = False, **given: Any
) -> Results:
    """``y`` of ScaledMaskedSoftmaxV2; shapes and formula as `descend.scaled_masked_softmax`."""
    return rounded([reference.scaled_masked_softmax(x, mask, scale, fixed_triu_mask)], [x.dtype], given)


def scaled_masked_softmax_grad_v2_golden(
    yGrad: Array,
    y: Array,
    mask: Array | None = None,
    *,
    scale: float = 1.0,
    fixed_triu_mask: bool = False,
    **given: Any,
) -> Results:
    """``xGrad`` of ScaledMaskedSoftmaxGradV2; shapes and formula as `descend.scaled_masked_softmax_backward`."""
    result = reference.scaled_masked_softmax_backward(yGrad, y, mask, scale, fixed_triu_mask)
    return rounded([result], [y.dtype], given)


def _axis(name: str, axes: npt.ArrayLike) -> int:
    """The axis of a list of one; the last one of an empty list."""
    values = integers(axes)
    if len(values) > 1:
        raise ValueError(f"{name} is {list(values)}, but there may be only one axis.")
    return values[0] if values else -1
