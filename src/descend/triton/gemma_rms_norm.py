"""RMS norm with the weight 1 + gamma on CUDA, by RMS norm's kernels."""

from torch import Tensor

from descend.triton.calls import Operator
from descend.triton.rms_norm import norm
from descend.triton.work import Work


def launch(work: Work, x: Tensor, gamma: Tensor, epsilon: float, y_out: Tensor, rstd_out: Tensor) -> None:
    """Starts the kernels; the parameters are those of aclnnGemmaRmsNorm."""
    norm(work, "gemma_rms_norm", x, gamma, epsilon, y_out, rstd_out, added=1.0)


gemma_rms_norm = Operator("gemma_rms_norm", launch)
