"""Deep norm on CUDA: layer norm's kernels, of a sum."""

from torch import Tensor

from descend.triton.calls import Operator
from descend.triton.layer_norm import Sum, norm
from descend.triton.work import Work


def launch(
    work: Work,
    x: Tensor,
    gx: Tensor,
    beta: Tensor,
    gamma: Tensor,
    alpha: float,
    epsilon: float,
    mean_out: Tensor,
    rstd_out: Tensor,
    y_out: Tensor,
) -> None:
    """Starts the kernels; the parameters are those of aclnnDeepNorm."""
    norm(
        *(work, "deep_norm", gamma.numel(), x, gamma, beta, epsilon, y_out, mean_out, rstd_out),
        sum_with=Sum(gx, alpha),
    )


deep_norm = Operator("deep_norm", launch)
