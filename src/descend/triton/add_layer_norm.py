"""Layer norm of a sum on CUDA: layer norm's kernels, which also read the other terms and write the sum."""

from torch import Tensor

from descend.triton.calls import Operator
from descend.triton.layer_norm import Sum, norm
from descend.triton.work import Work


def launch(
    work: Work,
    x1: Tensor,
    x2: Tensor,
    gamma: Tensor,
    beta: Tensor,
    bias: Tensor | None,
    epsilon: float,
    additional_output: bool,
    y_out: Tensor,
    mean_out: Tensor,
    rstd_out: Tensor,
    x_out: Tensor | None,
) -> None:
    """Starts the kernels; the parameters are those of aclnnAddLayerNorm."""
    norm(
        *(work, "add_layer_norm", gamma.numel(), x1, gamma, beta, epsilon, y_out, mean_out, rstd_out),
        sum_with=Sum(x2, 1.0, bias, x_out),
    )


add_layer_norm = Operator("add_layer_norm", launch)
