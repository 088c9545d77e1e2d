"""Deep norm's gradients on CUDA: the backward pass of norms, of a sum."""

from torch import Tensor

from descend.triton.calls import Operator
from descend.triton.norm_backward import Sum, norm_backward
from descend.triton.work import Work


def launch(
    work: Work,
    dy: Tensor,
    x: Tensor,
    gx: Tensor,
    gamma: Tensor,
    mean: Tensor,
    rstd: Tensor,
    alpha: float,
    dx_out: Tensor,
    dgx_out: Tensor,
    dbeta_out: Tensor,
    dgamma_out: Tensor,
) -> None:
    """Starts the kernels; the parameters are those of aclnnDeepNormGrad."""
    norm_backward(
        *(work, "deep_norm_grad", rstd.numel(), gamma.numel(), dy, x, mean, rstd, gamma, dx_out, dgamma_out, dbeta_out),
        sum_with=Sum(gx, alpha, dgx_out),
    )


deep_norm_grad = Operator("deep_norm_grad", launch)
