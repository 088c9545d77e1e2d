"""The status of overflows: npu_alloc_float_status, npu_get_float_status, npu_clear_float_status; a check of gradients.

A processor that computes with infinities, as Atlas A2 and later ones do, sets no status: it is always 0. Others compute
with the largest number instead, and set it. The CPU computes with infinities for all of them. So of those others the
status cannot be told, and reading it is refused. `_amp_foreach_non_finite_check`, by which their GradScaler reads it,
looks for infinities and NaN in the gradients.

Documents: torch_npu.npu_alloc_float_status, npu_get_float_status, npu_clear_float_status.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from descend.npu.composed.arithmetic import check_choice, check_float
from descend.npu.composed.refusal import RefusedError
from descend.npu.pyacl import get_soc_name

SIZE = 8
_SATURATING = ("Ascend910A", "Ascend310P")
"""How the names of the processors begin that compute with the largest number instead of infinity."""


def npu_alloc_float_status(input: Tensor) -> Tensor:
    """Zeros [8] in float32. ``input`` says the device alone."""
    return torch.zeros(SIZE, dtype=torch.float32)


def npu_get_float_status(input: Tensor, mode: int = 0) -> Tensor:
    """Zeros [8] in int32: there was no overflow."""
    operator = "npu_get_float_status"
    check_choice(operator, "mode", mode, 0, 1)
    soc = get_soc_name()
    if soc.startswith(_SATURATING):
        raise RefusedError(
            operator,
            "the status",
            f"of {soc} is not known, but must come from a processor: the CPU computes with infinities instead.",
        )
    return torch.zeros(SIZE, dtype=torch.int32)


def npu_clear_float_status(input: Tensor, mode: int = 0) -> Tensor:
    """Zeros [8] in the dtype of ``input``: nothing is left of an overflow."""
    check_choice("npu_clear_float_status", "mode", mode, 0, 1)
    return torch.zeros(SIZE, dtype=input.dtype)


def _amp_foreach_non_finite_check(scaled_grads: Sequence[Tensor]) -> bool:
    """Whether a gradient has an infinity or NaN."""
    for i, grad in enumerate(scaled_grads):
        check_float("_amp_foreach_non_finite_check", **{f"scaled_grads[{i}]": grad})
    return not all(grad.isfinite().all() for grad in scaled_grads)
