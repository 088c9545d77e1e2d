"""RMS norm of a sum on CUDA: RMS norm's kernels, which also read the other term and write the sum."""

from torch import Tensor

from descend.triton.calls import Operator
from descend.triton.rms_norm import norm
from descend.triton.work import Work


def launch(
    work: Work,
    x1: Tensor,
    x2: Tensor,
    gamma: Tensor,
    epsilon: float,
    y_out: Tensor,
    rstd_out: Tensor | None,
    x_out: Tensor | None,
) -> None:
    """Starts the kernels; the parameters are those of aclnnAddRmsNorm."""
    x = work.empty(x1.shape, x1.dtype) if x_out is None else x_out
    norm(work, "add_rms_norm", x1, gamma, epsilon, y_out, rstd_out, sum_with=(x2, x))


add_rms_norm = Operator("add_rms_norm", launch)
