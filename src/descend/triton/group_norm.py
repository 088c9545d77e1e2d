"""Group norm on CUDA: group norm + swish's kernels without swish."""

from torch import Tensor

from descend.triton.calls import Operator
from descend.triton.group_norm_swish import norm
from descend.triton.work import Work


def launch(
    work: Work,
    input: Tensor,
    gamma: Tensor | None,
    beta: Tensor | None,
    n: int,
    c: int,
    hxw: int,
    group: int,
    eps: float,
    out: Tensor,
    mean_out: Tensor,
    rstd_out: Tensor,
) -> None:
    """Starts the kernels; the parameters are those of aclnnGroupNorm."""
    norm(work, "group_norm", input, gamma, beta, group, eps, None, out, mean_out, rstd_out)


group_norm = Operator("group_norm", launch)
