"""Group norm, then SiLU, on CUDA: group norm + swish's kernels with a scale of 1."""

from torch import Tensor

from descend.triton.calls import Operator
from descend.triton.group_norm_swish import norm
from descend.triton.work import Work


def launch(
    work: Work,
    input: Tensor,
    gamma: Tensor | None,
    beta: Tensor | None,
    group: int,
    eps: float,
    out: Tensor,
    mean_out: Tensor,
    rstd_out: Tensor,
) -> None:
    """Starts the kernels; the parameters are those of aclnnGroupNormSilu."""
    norm(work, "group_norm_silu", input, gamma, beta, group, eps, 1.0, out, mean_out, rstd_out)


group_norm_silu = Operator("group_norm_silu", launch)
