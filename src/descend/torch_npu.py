"""The operators under the names that they have in torch_npu, on any machine: ``from descend import torch_npu``.

Signatures, defaults and results are torch_npu's; the functions of `descend.torch` compute them and tell shapes and
formulas. Tensors are on the CPU; what torch_npu restricts to a processor's dtypes and sizes is not restricted. All but
the step of AdamW are differentiable, the backward ones, too. A call that does not fit raises AclnnError (a ValueError)
with a sentence that names the function's own parameters.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Sequence
from typing import ParamSpec, TypeVar, cast

import torch
from torch import Tensor

from descend import torch as operators
from descend._adam_w import of_powers
from descend.errors import AclnnError, from_status

__all__ = [
    "npu_add_layer_norm",
    "npu_add_layer_norm_backward",
    "npu_add_rms_norm",
    "npu_apply_adam_w",
    "npu_cross_entropy_loss",
    "npu_cross_entropy_loss_backward",
    "npu_deep_norm",
    "npu_deep_norm_backward",
    "npu_gelu",
    "npu_gelu_backward",
    "npu_gemma_rms_norm",
    "npu_group_norm_silu",
    "npu_group_norm_swish",
    "npu_group_norm_swish_grad",
    "npu_nsa_compress",
    "npu_nsa_compress_grad",
    "npu_rms_norm",
    "npu_rms_norm_backward",
    "npu_rotary_mul",
    "npu_rotary_mul_backward",
    "npu_scaled_masked_softmax",
    "npu_scaled_masked_softmax_backward",
    "npu_swiglu",
    "npu_swiglu_backward",
]

_ROTARY_MODES = {"half": 0, "interleave": 1, "quarter": 2, "interleave-half": 3}
_GELU_FORMS = {"none": 0, "tanh": 1}
Given = ParamSpec("Given")
Result = TypeVar("Result")


def _says(operator: str, **names: str) -> Callable[[Callable[Given, Result]], Callable[Given, Result]]:
    """Makes errors of an operator name the function and its parameters: ``names`` are theirs by the operator's."""

    def decorate(function: Callable[Given, Result]) -> Callable[Given, Result]:
        own = {operator: function.__name__, **names}
        words = re.compile(rf"\b({'|'.join(own)})\b")

        @functools.wraps(function)
        def call(*args: Given.args, **named: Given.kwargs) -> Result:
            try:
                return function(*args, **named)
            except AclnnError as error:
                sentence = words.sub(lambda word: own[word[0]], str(error))
                raise type(error)(error.status, error.name, sentence) from None

        return call

    return decorate


def _number(function: str, parameter: str, word: str, numbers: dict[str, int]) -> int:
    """The operator's number for a word of torch_npu. Raises AclnnError for one that there is not."""
    if word not in numbers:
        sentence = f"{function}: {parameter} is {word!r}, but must be one of {', '.join(map(repr, numbers))}."
        raise from_status(161002, "ACLNN_ERR_PARAM_INVALID", sentence)
    return numbers[word]


@_says("rms_norm", x="self")
def npu_rms_norm(self: Tensor, gamma: Tensor, epsilon: float = 1e-06) -> tuple[Tensor, Tensor]:
    """RMS norm of ``self`` over the dimensions of ``gamma``: ``(y, rstd)``, see `descend.torch.rms_norm`.

    ``y`` is like ``self``; ``rstd`` is float32, of ``self``'s rank with 1 for each dimension of ``gamma``.
    """
    return operators.rms_norm(self, gamma, epsilon)


@_says("rms_norm_grad", x="self")
def npu_rms_norm_backward(dy: Tensor, self: Tensor, gamma: Tensor, rstd: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients of RMS norm: ``(dx, dgamma)``, see `descend.torch.rms_norm_grad`. ``dgamma`` is float32."""
    return operators.rms_norm_grad(dy, self, rstd, gamma)


@_says("add_rms_norm")
def npu_add_rms_norm(x1: Tensor, x2: Tensor, gamma: Tensor, epsilon: float = 1e-06) -> tuple[Tensor, Tensor, Tensor]:
    """RMS norm of ``x1 + x2`` over the dimensions of ``gamma``: ``(y, rstd, x)``, see `descend.torch.add_rms_norm`.

    ``y`` and the sum ``x`` are like ``x1``; ``rstd`` is float32, of ``x1``'s rank with 1 for each dimension of
    ``gamma``.
    """
    return operators.add_rms_norm(x1, x2, gamma, epsilon)


@_says("add_layer_norm")
def npu_add_layer_norm(
    x1: Tensor, x2: Tensor, gamma: Tensor, beta: Tensor, epsilon: float = 1e-05, additional_output: bool = False
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Layer norm of ``x1 + x2`` over the dimensions of ``gamma``: ``(y, mean, rstd, x)``.

    See `descend.torch.add_layer_norm`. The sum ``x`` has values with ``additional_output`` alone; without, torch_npu
    returns memory that nothing was written to, and here it is NaN. ``mean`` and ``rstd`` have a 1 for the dimensions
    of ``gamma`` together.
    """
    y, mean, rstd, x = operators.add_layer_norm(x1, x2, gamma, beta, None, epsilon, additional_output)
    statistics = [*x1.shape[: x1.dim() - gamma.dim()], 1]
    x = y.new_full((), math.nan).expand(y.shape) if x is None else x
    return y, mean.reshape(statistics), rstd.reshape(statistics), x


@_says("add_layer_norm_grad", dy="dy_opt", dsum="dsum_opt")
def npu_add_layer_norm_backward(
    dy_opt: Tensor | None,
    x1: Tensor,
    x2: Tensor,
    rstd: Tensor,
    mean: Tensor,
    gamma: Tensor,
    dsum_opt: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of `npu_add_layer_norm` for ``x1``, ``x2``, ``gamma`` and ``beta``.

    See `descend.torch.add_layer_norm_grad`. ``dy_opt`` and ``dsum_opt`` are those of ``y`` and of the sum, None for
    zeros. The first two results are one tensor; the last two are float32.
    """
    dy = torch.zeros_like(x1) if dy_opt is None else dy_opt
    dx, dgamma, dbeta = operators.add_layer_norm_grad(dy, x1, x2, rstd, mean, gamma, dsum_opt)
    return dx, dx, dgamma, dbeta


@_says("deep_norm")
def npu_deep_norm(
    x: Tensor, gx: Tensor, beta: Tensor, gamma: Tensor, alpha: float = 0.3, epsilon: float = 1e-06
) -> tuple[Tensor, Tensor, Tensor]:
    """Layer norm of ``alpha * x + gx`` over the dimensions of ``gamma``: ``(mean, rstd, y)``.

    See `descend.torch.deep_norm`. ``y`` is like ``x``; the others are float32, of ``x``'s rank with 1 for each
    dimension of ``gamma``.
    """
    return operators.deep_norm(x, gx, beta, gamma, alpha, epsilon)


@_says("deep_norm_grad")
def npu_deep_norm_backward(
    dy: Tensor, x: Tensor, gx: Tensor, gamma: Tensor, mean: Tensor, rstd: Tensor, alpha: float = 0.3
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of `npu_deep_norm` for ``x``, ``gx``, ``beta`` and ``gamma``: `descend.torch.deep_norm_grad`.

    The last two are float32.
    """
    return operators.deep_norm_grad(dy, x, gx, gamma, mean, rstd, alpha)


@_says("gemma_rms_norm", x="self")
def npu_gemma_rms_norm(self: Tensor, gamma: Tensor, epsilon: float = 1e-06) -> tuple[Tensor, Tensor]:
    """RMS norm of ``self`` with the weight ``1 + gamma``: ``(y, rstd)``, see `descend.torch.gemma_rms_norm`.

    ``y`` is like ``self``; ``rstd`` is float32, of ``self``'s rank with 1 for each dimension of ``gamma``.
    """
    return operators.gemma_rms_norm(self, gamma, epsilon)


@_says("group_norm_silu", gamma="weight", beta="bias")
def npu_group_norm_silu(
    input: Tensor, weight: Tensor | None, bias: Tensor | None, group: int, eps: float = 0.00001
) -> tuple[Tensor, Tensor, Tensor]:
    """Group norm and SiLU of ``input`` [N, C, ...]: ``(out, mean, rstd)``, see `descend.torch.group_norm_silu`.

    ``mean`` and ``rstd`` are [N, group], of the dtype of ``input``.
    """
    out, mean, rstd = operators.group_norm_silu(input, weight, bias, group, eps)
    return out, mean.to(input.dtype), rstd.to(input.dtype)


@_says("group_norm_swish", x="input", gamma="weight", beta="bias")
def npu_group_norm_swish(
    input: Tensor,
    num_groups: int,
    weight: Tensor,
    bias: Tensor,
    eps: float | None = 1e-5,
    swish_scale: float | None = 1.0,
) -> tuple[Tensor, Tensor, Tensor]:
    """Group norm and swish of ``input`` [N, C, ...]: ``(y, mean, rstd)``, see `descend.torch.group_norm_swish`.

    ``mean`` and ``rstd`` are [N, num_groups], of the dtype of ``weight``. None stands for the default.
    """
    eps, swish_scale = 1e-5 if eps is None else eps, 1.0 if swish_scale is None else swish_scale
    y, mean, rstd = operators.group_norm_swish(input, weight, bias, num_groups, eps=eps, swish_scale=swish_scale)
    return y, mean.to(weight.dtype), rstd.to(weight.dtype)


@_says("group_norm_swish_grad", dy="grad", x="input", gamma="weight", beta="bias")
def npu_group_norm_swish_grad(
    grad: Tensor,
    input: Tensor,
    num_groups: int,
    weight: Tensor,
    bias: Tensor,
    mean: Tensor,
    rstd: Tensor,
    grad_input_mask: Sequence[bool],
    swish_scale: float | None = 1.0,
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Gradients of group norm and swish for ``input``, ``weight`` and ``bias``: `descend.torch.group_norm_swish_grad`.

    ``grad_input_mask`` says which of the three are wanted; the others are None. Raises ValueError where its length is
    not 3.
    """
    if len(grad_input_mask) != 3:
        raise ValueError(
            f"npu_group_norm_swish_grad: grad_input_mask has length {len(grad_input_mask)}, but must have length 3."
        )
    scale = 1.0 if swish_scale is None else swish_scale
    wants_input, wants_weight, wants_bias = (bool(wanted) for wanted in grad_input_mask)
    dx, dgamma, dbeta = operators.group_norm_swish_grad(
        grad, mean, rstd, input, weight, bias, num_groups, "NCHW", scale, wants_weight, wants_bias
    )
    return dx if wants_input else None, dgamma, dbeta


@_says("scaled_masked_softmax", fix_triu_mask="fixed_triu_mask")
def npu_scaled_masked_softmax(x: Tensor, mask: Tensor, scale: float = 1, fixed_triu_mask: bool = False) -> Tensor:
    """Softmax of ``scale * x`` with -10000 where ``mask``: `descend.torch.scaled_masked_softmax`.

    With ``fixed_triu_mask`` what lies above the diagonal of the last two axes is masked instead.
    """
    return operators.scaled_masked_softmax(x, mask, scale, fixed_triu_mask)


@_says("scaled_masked_softmax_backward", grad_output="y_grad", fix_triu_mask="fixed_triu_mask")
def npu_scaled_masked_softmax_backward(
    y_grad: Tensor, y: Tensor, mask: Tensor, scale: float, fixed_triu_mask: bool
) -> Tensor:
    """Gradient of the scaled, masked softmax: `descend.torch.scaled_masked_softmax_backward`."""
    return operators.scaled_masked_softmax_backward(y_grad, y, mask, scale, fixed_triu_mask)


@_says("swi_glu", x="self")
def npu_swiglu(self: Tensor, dim: int = -1) -> Tensor:
    """Swish of one half of ``self`` along ``dim``, times the other half: `descend.torch.swi_glu`."""
    return operators.swi_glu(self, dim)


@_says("swi_glu_grad", y_grad="grad_output", x="self")
def npu_swiglu_backward(grad_output: Tensor, self: Tensor, dim: int = -1) -> Tensor:
    """The gradient of `npu_swiglu` for ``self``: `descend.torch.swi_glu_grad`."""
    return operators.swi_glu_grad(grad_output, self, dim)


@_says("rotary_position_embedding", x="self", cos="r1", sin="r2")
def npu_rotary_mul(
    self: Tensor, r1: Tensor, r2: Tensor, rotary_mode: str = "half", rotate: Tensor | None = None
) -> Tensor:
    """Rotary position embedding with the cosines ``r1`` and the sines ``r2``, which are taken in ``self``'s dtype.

    ``rotary_mode`` is half, interleave, quarter or interleave-half: modes 0 to 3 of
    `descend.torch.rotary_position_embedding`. A matrix ``rotate`` [D, D] takes its place: the result is then
    ``self * r1 + (self @ rotate) * r2``, of PyTorch's operators.
    """
    mode = _number("npu_rotary_mul", "rotary_mode", rotary_mode, _ROTARY_MODES)
    cos, sin = r1.to(self.dtype), r2.to(self.dtype)
    if rotate is None:
        return operators.rotary_position_embedding(self, cos, sin, mode)
    x = self.double() if self.dtype.itemsize == 8 else self.float()
    return (x * cos + x @ rotate.to(x.dtype) * sin).to(self.dtype)


@_says("rotary_position_embedding_grad", dy="grad", x="self", cos="r1", sin="r2")
def npu_rotary_mul_backward(
    grad: Tensor, self: Tensor, r1: Tensor, r2: Tensor, rotary_mode: str = "half"
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of `npu_rotary_mul` for ``self``, ``r1`` and ``r2``, in ``self``'s dtype.

    See `descend.torch.rotary_position_embedding_grad`.
    """
    mode, dtype = _number("npu_rotary_mul_backward", "rotary_mode", rotary_mode, _ROTARY_MODES), self.dtype
    dy, cos, sin = (t.to(dtype) for t in (grad, r1, r2))
    return cast(tuple[Tensor, Tensor, Tensor], operators.rotary_position_embedding_grad(dy, cos, sin, self, mode))


@_says("gelu_v2", x="self")
def npu_gelu(self: Tensor, *, approximate: str = "none") -> Tensor:
    """GELU of ``self``, by erf, or with ``approximate="tanh"`` by tanh: `descend.torch.gelu_v2`."""
    return operators.gelu_v2(self, _number("npu_gelu", "approximate", approximate, _GELU_FORMS))


@_says("gelu_backward_v2", x="self")
def npu_gelu_backward(grad_output: Tensor, self: Tensor, *, approximate: str = "none") -> Tensor:
    """The gradient of `npu_gelu` for ``self``: `descend.torch.gelu_backward_v2`."""
    return operators.gelu_backward_v2(grad_output, self, approximate)


@_says("cross_entropy_loss")
def npu_cross_entropy_loss(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    reduction: str = "mean",
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    lse_square_scale_for_zloss: float = 0.0,
    return_zloss: bool = False,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Cross entropy: ``(loss, log_prob, zloss, lse_for_zloss)``, see `descend.torch.cross_entropy_loss`.

    ``zloss`` is empty unless ``return_zloss`` is true, ``lse_for_zloss`` unless the scale is not 0. Both are computed,
    where torch_npu's document says that they are not yet.
    """
    attributes = reduction, ignore_index, label_smoothing, lse_square_scale_for_zloss, return_zloss
    loss, log_prob, *rest = operators.cross_entropy_loss(input, target, weight, *attributes)
    zloss, lse = (input.new_empty(0) if result is None else result for result in rest)
    return loss, log_prob, zloss, lse


@_says("cross_entropy_loss_grad")
def npu_cross_entropy_loss_backward(
    grad_loss: Tensor,
    log_prob: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    grad_zloss: Tensor | None = None,
    lse_for_zloss: Tensor | None = None,
    reduction: str = "mean",
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    lse_square_scale_for_zloss: float = 0.0,
) -> Tensor:
    """The gradient of `npu_cross_entropy_loss` for ``input``: `descend.torch.cross_entropy_loss_grad`."""
    attributes = reduction, ignore_index, label_smoothing, lse_square_scale_for_zloss
    return operators.cross_entropy_loss_grad(
        grad_loss, log_prob, target, weight, grad_zloss, lse_for_zloss, *attributes
    )


@_says("nsa_compress", act_seq_len="actual_seq_len")
def npu_nsa_compress(
    input: Tensor,
    weight: Tensor,
    compress_block_size: int,
    compress_stride: int,
    *,
    actual_seq_len: Sequence[int] | None = None,
) -> Tensor:
    """Compression of native sparse attention, [T, N, D] to [windows, N, D]: `descend.torch.nsa_compress`.

    ``actual_seq_len`` has the ends of the sequences, the last of them T; None is one sequence.
    """
    return operators.nsa_compress(
        input, weight, actual_seq_len, compress_block_size=compress_block_size, compress_stride=compress_stride
    )


@_says("nsa_compress_grad", output_grad="grad", act_seq_len="actual_seq_len")
def npu_nsa_compress_grad(
    grad: Tensor,
    input: Tensor,
    weight: Tensor,
    compress_block_size: int,
    compress_stride: int,
    *,
    actual_seq_len: Sequence[int] | None = None,
) -> tuple[Tensor, Tensor]:
    """Gradients of the compression for ``input`` and ``weight``: `descend.torch.nsa_compress_grad`."""
    return operators.nsa_compress_grad(
        grad,
        input,
        weight,
        actual_seq_len,
        compress_block_size=compress_block_size,
        compress_stride=compress_stride,
    )


@_says("apply_adam_w_v2", eps="epsilon")
def npu_apply_adam_w(
    beta1_power: float,
    beta2_power: float,
    lr: float,
    weight_decay: float,
    beta1: float,
    beta2: float,
    epsilon: float,
    grad: Tensor,
    max_grad_norm: Tensor | None,
    amsgrad: bool | None,
    maximize: bool | None,
    *,
    out: Sequence[Tensor],
) -> tuple[Tensor, Tensor, Tensor]:
    """A step of AdamW on ``out``, which is var, m and v, in place: see `descend.torch.apply_adam_w_v2`.

    ``beta1_power`` and ``beta2_power`` are the powers of the steps before. ``max_grad_norm`` is not changed. Has no
    gradient.
    """

    def refuse(name: str, value: float, rule: str) -> None:
        sentence = f"apply_adam_w_v2: {name} is {value}, but {rule}."
        raise from_status(161002, "ACLNN_ERR_PARAM_INVALID", sentence)

    var, m, v = out
    most = max_grad_norm.clone() if amsgrad and max_grad_norm is not None else None
    numbers = of_powers(refuse, beta1_power, beta2_power, lr, weight_decay, beta1, beta2, epsilon)
    step = torch.zeros((), device=var.device)
    operators.apply_adam_w_v2_(var, m, v, most, grad, step, *numbers, bool(amsgrad), bool(maximize))
    return var, m, v
