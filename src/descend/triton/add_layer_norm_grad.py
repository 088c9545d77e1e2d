"""The gradients of layer norm of a sum on CUDA: the backward pass of norms, of a sum."""

from torch import Tensor

from descend.triton.calls import Operator
from descend.triton.norm_backward import Sum, norm_backward
from descend.triton.work import Work


def launch(
    work: Work,
    dy: Tensor,
    x1: Tensor,
    x2: Tensor | None,
    rstd: Tensor,
    mean: Tensor,
    gamma: Tensor,
    dsum: Tensor | None,
    dx_out: Tensor,
    dgamma_out: Tensor,
    dbeta_out: Tensor,
) -> None:
    """Starts the kernels; the parameters are those of aclnnAddLayerNormGrad."""
    norm_backward(
        *(work, "add_layer_norm_grad", rstd.numel(), gamma.numel(), dy, x1, mean, rstd, gamma),
        *(dx_out, dgamma_out, dbeta_out),
        sum_with=Sum(x2, dsum=dsum),
    )


add_layer_norm_grad = Operator("add_layer_norm_grad", launch)
