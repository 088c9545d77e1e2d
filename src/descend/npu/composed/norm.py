"""npu_add_rms_norm: x = x1 + x2, y = x * rstd * gamma, rstd = 1 / sqrt(mean(x^2) + epsilon).

x is rounded to its dtype before it is normalized, so that y is the norm of the x that is returned. Documents:
torch_npu.npu_add_rms_norm; aclnnAddRmsNorm.
"""

from __future__ import annotations

from torch import Tensor

from descend.errors import AclnnError
from descend.npu.composed.arithmetic import check_float, check_shape
from descend.npu.composed.refusal import RefusedError, refuse
from descend.torch import rms_norm


def npu_add_rms_norm(x1: Tensor, x2: Tensor, gamma: Tensor, epsilon: float = 1e-06) -> tuple[Tensor, Tensor, Tensor]:
    """``x1`` and ``x2`` of one shape, ``gamma`` of its last dimensions: y, rstd (float32, 1 for those) and x."""
    operator = "npu_add_rms_norm"
    check_float(operator, x1=x1, x2=x2, gamma=gamma)
    check_shape(operator, "x2", x2, x1.shape, "x1")
    for name, tensor in (("x2", x2), ("gamma", gamma)):
        if tensor.dtype != x1.dtype:
            refuse(operator, name, tensor.dtype, f"has the dtype of x1, {x1.dtype}")
    x = x1 + x2
    try:
        y, rstd = rms_norm(x, gamma, epsilon)
    except AclnnError as error:
        raise RefusedError(f"{operator}: {error}") from None
    return y, rstd, x
