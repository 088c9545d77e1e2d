"""Group norm's gradients on CUDA: those of group norm + swish without swish."""

from collections.abc import Sequence

from torch import Tensor

from descend.triton.calls import Operator
from descend.triton.group_norm_swish_grad import gradients
from descend.triton.work import Work


def launch(
    work: Work,
    grad_out: Tensor,
    input: Tensor,
    mean: Tensor,
    rstd: Tensor,
    gamma: Tensor | None,
    n: int,
    c: int,
    hxw: int,
    group: int,
    output_mask: Sequence[bool],
    grad_input: Tensor | None,
    grad_gamma_out: Tensor | None,
    grad_beta_out: Tensor | None,
) -> None:
    """Starts the kernels; the parameters are those of aclnnGroupNormBackward."""
    outputs = (grad_input, grad_gamma_out, grad_beta_out)
    if any(output is not None for output in outputs):
        given = (grad_out, mean, rstd, input, gamma, None)
        gradients(work, "group_norm_backward", (n, c, hxw), *given, group, None, *outputs)


group_norm_backward = Operator("group_norm_backward", launch)
