"""RMS norm's gradients on CUDA: the backward pass of norms, without a mean."""

from torch import Tensor

from descend.triton.calls import Operator
from descend.triton.norm_backward import norm_backward
from descend.triton.work import Work


def launch(work: Work, dy: Tensor, x: Tensor, rstd: Tensor, gamma: Tensor, dx_out: Tensor, dgamma_out: Tensor) -> None:
    """Starts the kernels; the parameters are those of aclnnRmsNormGrad."""
    norm_backward(
        *(work, "rms_norm_grad", rstd.numel(), gamma.numel(), dy, x, None, rstd, gamma, dx_out, dgamma_out, None)
    )


rms_norm_grad = Operator("rms_norm_grad", launch)
