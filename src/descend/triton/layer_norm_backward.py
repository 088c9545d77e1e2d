"""Layer norm's gradients on CUDA: the backward pass of norms."""

import math
from collections.abc import Sequence

from torch import Tensor

from descend.triton.calls import Operator
from descend.triton.norm_backward import norm_backward
from descend.triton.work import Work


def launch(
    work: Work,
    grad_out: Tensor,
    input: Tensor,
    normalized_shape: int | Sequence[int],
    mean: Tensor,
    rstd: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    output_mask: Sequence[bool],
    grad_input_out: Tensor | None,
    grad_weight_out: Tensor | None,
    grad_bias_out: Tensor | None,
) -> None:
    """Starts the kernels; the parameters are those of aclnnLayerNormBackward."""
    columns = normalized_shape if isinstance(normalized_shape, int) else math.prod(normalized_shape)
    outputs = (grad_input_out, grad_weight_out, grad_bias_out)
    if all(output is None for output in outputs):
        return
    norm_backward(*(work, "layer_norm_backward", mean.numel(), columns, grad_out, input, mean, rstd, weight, *outputs))


layer_norm_backward = Operator("layer_norm_backward", launch)
