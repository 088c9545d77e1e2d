"""torch_npu's functions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from descend import reference
from descend._adam_w import of_powers, refuse
from descend.cli.apis.function import NO_VALUES, Api, Array, Integers, Known, LeftOut, Results, index_of, kept
from descend.cli.apis.pytorch import gelu, gelu_gradient


def _npu_rms_norm(self: Array, gamma: Array, epsilon: float = 1e-6) -> Results:
    return reference.rms_norm(self, gamma, epsilon)


def _npu_rms_norm_gradient(dy: Array, results: Known, self: Array, gamma: Array, epsilon: float) -> Results:
    (rstd,) = kept(results, 1, 2) or reference.rms_norm(self, gamma, epsilon)[1:]
    return reference.rms_norm_grad(dy, self, rstd, gamma)


def _npu_rms_norm_backward(dy: Array, self: Array, gamma: Array, rstd: Array) -> Results:
    return reference.rms_norm_grad(dy, self, rstd, gamma)


def _npu_add_rms_norm(x1: Array, x2: Array, gamma: Array, epsilon: float = 1e-6) -> Results:
    return reference.add_rms_norm(x1, x2, gamma, epsilon)


def _npu_gemma_rms_norm(self: Array, gamma: Array, epsilon: float = 1e-6) -> Results:
    return reference.gemma_rms_norm(self, gamma, epsilon)


def _npu_add_layer_norm(
    x1: Array, x2: Array, gamma: Array, beta: Array, epsilon: float = 1e-5, additional_output: bool = False
) -> Results:
    y, mean, rstd, x = reference.add_layer_norm(x1, x2, gamma, beta, None, epsilon, additional_output)
    statistics = (*x1.shape[: x1.ndim - gamma.ndim], 1)
    return y, mean.reshape(statistics), rstd.reshape(statistics), NO_VALUES if x is None else x


def _npu_add_layer_norm_gradient(
    dy: Array | None,
    dsum: Array | None,
    results: Known,
    x1: Array,
    x2: Array,
    gamma: Array,
    beta: Array,
    epsilon: float,
    additional_output: bool,
) -> Results:
    mean, rstd = kept(results, 1, 3) or _npu_add_layer_norm(x1, x2, gamma, beta, epsilon)[1:3]
    return _npu_add_layer_norm_backward(dy, x1, x2, rstd, mean, gamma, dsum)


def _npu_add_layer_norm_backward(
    dy_opt: Array | None, x1: Array, x2: Array, rstd: Any, mean: Any, gamma: Array, dsum_opt: Array | None
) -> Results:
    dy = np.zeros(x1.shape) if dy_opt is None else dy_opt
    dx, dgamma, dbeta = reference.add_layer_norm_grad(dy, x1, x2, rstd, mean, gamma, dsum_opt)
    return dx, dx, dgamma, dbeta


def _npu_deep_norm(
    x: Array, gx: Array, beta: Array, gamma: Array, alpha: float = 0.3, epsilon: float = 1e-6
) -> Results:
    return reference.deep_norm(x, gx, beta, gamma, alpha, epsilon)


def _npu_deep_norm_backward(
    dy: Array, x: Array, gx: Array, gamma: Array, mean: Array, rstd: Array, alpha: float = 0.3
) -> Results:
    return reference.deep_norm_grad(dy, x, gx, gamma, mean, rstd, alpha)


def _npu_group_norm_swish(
    input: Array,
    num_groups: int,
    weight: Array,
    bias: Array,
    eps: float | None = 1e-5,
    swish_scale: float | None = 1.0,
) -> Results:
    eps, scale = 1e-5 if eps is None else eps, 1.0 if swish_scale is None else swish_scale
    return reference.group_norm_swish(input, weight, bias, num_groups, eps=eps, swish_scale=scale)


def _npu_group_norm_swish_gradient(
    dy: Array,
    results: Known,
    input: Array,
    num_groups: int,
    weight: Array,
    bias: Array,
    eps: float | None,
    swish_scale: float | None,
) -> Results:
    mean, rstd = kept(results, 1, 3) or _npu_group_norm_swish(input, num_groups, weight, bias, eps)[1:]
    return _npu_group_norm_swish_grad(dy, input, num_groups, weight, bias, mean, rstd, swish_scale=swish_scale)


def _npu_group_norm_swish_grad(
    grad: Array,
    input: Array,
    num_groups: int,
    weight: Array,
    bias: Array,
    mean: Any,
    rstd: Any,
    grad_input_mask: Sequence[bool] = (True, True, True),
    swish_scale: float | None = 1.0,
) -> Results:
    scale = 1.0 if swish_scale is None else swish_scale
    return reference.group_norm_swish_grad(grad, mean, rstd, input, weight, bias, num_groups, swish_scale=scale)


def _npu_group_norm_silu(
    input: Array, weight: Array | None, bias: Array | None, group: int, eps: float = 1e-5
) -> Results:
    return reference.group_norm_silu(input, weight, bias, group, eps)


def _npu_scaled_masked_softmax(
    x: Array, mask: Array | None, scale: float = 1.0, fixed_triu_mask: bool = False
) -> Results:
    return [reference.scaled_masked_softmax(x, mask, scale, fixed_triu_mask)]


def _npu_scaled_masked_softmax_gradient(dy: Array, results: Known, **given: Any) -> Results:
    (y,) = kept(results, 0, 1) or _npu_scaled_masked_softmax(**given)
    return _npu_scaled_masked_softmax_backward(dy, y, given["mask"], given["scale"], given["fixed_triu_mask"])


def _npu_scaled_masked_softmax_backward(
    y_grad: Array, y: Any, mask: Array | None, scale: float, fixed_triu_mask: bool
) -> Results:
    return [reference.scaled_masked_softmax_backward(y_grad, y, mask, scale, fixed_triu_mask)]


def _npu_swiglu(self: Array, dim: int = -1) -> Results:
    return [reference.swi_glu(self, dim)]


def _npu_swiglu_gradient(dy: Array, results: Known, self: Array, dim: int) -> Results:
    return [reference.swi_glu_grad(dy, self, dim)]


def _npu_swiglu_backward(grad_output: Array, self: Array, dim: int = -1) -> Results:
    return [reference.swi_glu_grad(grad_output, self, dim)]


def _npu_rotary_mul(
    self: Array, r1: Array, r2: Array, rotary_mode: str = "half", rotate: Array | None = None
) -> Results:
    cos, sin = r1.astype(self.dtype), r2.astype(self.dtype)
    if rotate is None:
        return [reference.rotary_position_embedding(self, cos, sin, _mode(rotary_mode))]
    x, cos, sin, turn = (np.asarray(t, np.float64) for t in (self, cos, sin, rotate))
    return [x * cos + x @ turn * sin]


def _npu_rotary_mul_gradient(
    dy: Array, results: Known, self: Array, r1: Array, r2: Array, rotary_mode: str, rotate: Array | None
) -> Results:
    if rotate is not None:
        raise LeftOut("torch_npu does not differentiate the call with a matrix")
    return _npu_rotary_mul_backward(dy, self, r1, r2, rotary_mode)


def _npu_rotary_mul_backward(grad: Array, self: Array, r1: Array, r2: Array, rotary_mode: str = "half") -> Results:
    cos, sin = r1.astype(self.dtype), r2.astype(self.dtype)
    return reference.rotary_position_embedding_grad(grad, cos, sin, self, _mode(rotary_mode))


def _mode(rotary_mode: str) -> int:
    return index_of("rotary_mode", rotary_mode, ("half", "interleave", "quarter", "interleave-half"))


def _npu_rotary_position_embedding(x: Array, cos: Array, sin: Array, mode: int = 0) -> Results:
    return [reference.rotary_position_embedding(x, cos, sin, mode)]


def _npu_gelu(self: Array, *, approximate: str = "none") -> Results:
    return gelu(self, approximate=approximate)


def _npu_gelu_backward(grad_output: Array, self: Array, *, approximate: str = "none") -> Results:
    return [reference.gelu_backward_v2(grad_output, self, approximate)]


def _npu_cross_entropy_loss(
    input: Array,
    target: Array,
    weight: Array | None = None,
    reduction: str = "mean",
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    lse_square_scale_for_zloss: float = 0.0,
    return_zloss: bool = False,
) -> Results:
    attributes = reduction, ignore_index, label_smoothing, lse_square_scale_for_zloss, return_zloss
    results = reference.cross_entropy_loss(input, target, weight, *attributes)
    return [NO_VALUES if result is None else result for result in results]


def _npu_cross_entropy_loss_gradient(
    dy: Array | None,
    dzloss: Array | None,
    results: Known,
    input: Array,
    target: Array,
    weight: Array | None,
    reduction: str,
    ignore_index: int,
    label_smoothing: float,
    lse_square_scale_for_zloss: float,
    return_zloss: bool,
) -> Results:
    attributes = reduction, ignore_index, label_smoothing, lse_square_scale_for_zloss
    _, computed, _, computed_lse = _npu_cross_entropy_loss(input, target, weight, *attributes)
    (log_prob,), (lse,) = kept(results, 1, 2) or [computed], kept(results, 3, 4) or [computed_lse]
    loss = np.zeros(1) if dy is None else dy
    return _npu_cross_entropy_loss_backward(loss, log_prob, target, weight, dzloss, lse, *attributes)


def _npu_cross_entropy_loss_backward(
    grad_loss: Array,
    log_prob: Any,
    target: Array,
    weight: Array | None = None,
    grad_zloss: Array | None = None,
    lse_for_zloss: Array | None = None,
    reduction: str = "mean",
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    lse_square_scale_for_zloss: float = 0.0,
) -> Results:
    lse = None if lse_for_zloss is None or lse_for_zloss.size == 0 else lse_for_zloss
    attributes = reduction, ignore_index, label_smoothing, lse_square_scale_for_zloss
    return [reference.cross_entropy_loss_grad(grad_loss, log_prob, target, weight, grad_zloss, lse, *attributes)]


def _npu_nsa_compress(
    input: Array,
    weight: Array,
    compress_block_size: int,
    compress_stride: int,
    *,
    actual_seq_len: Integers | None = None,
) -> Results:
    return [
        reference.nsa_compress(
            input, weight, actual_seq_len, compress_block_size=compress_block_size, compress_stride=compress_stride
        )
    ]


def _npu_nsa_compress_gradient(dy: Array, results: Known, **given: Any) -> Results:
    return _npu_nsa_compress_grad(dy, **given)


def _npu_nsa_compress_grad(
    grad: Array,
    input: Array,
    weight: Array,
    compress_block_size: int,
    compress_stride: int,
    *,
    actual_seq_len: Integers | None = None,
) -> Results:
    return reference.nsa_compress_grad(
        grad, input, weight, actual_seq_len, compress_block_size=compress_block_size, compress_stride=compress_stride
    )


def _npu_apply_adam_w(
    beta1_power: float,
    beta2_power: float,
    lr: float,
    weight_decay: float,
    beta1: float,
    beta2: float,
    epsilon: float,
    grad: Array,
    max_grad_norm: Array | None,
    amsgrad: bool | None,
    maximize: bool | None,
    *,
    out: Sequence[Array],
) -> Results:
    var, m, v = out
    numbers = of_powers(refuse, beta1_power, beta2_power, lr, weight_decay, beta1, beta2, epsilon)
    flags = bool(amsgrad), bool(maximize)
    return reference.apply_adam_w_v2(var, m, v, max_grad_norm, grad, 0, *numbers, *flags)[:3]


_MINDSPEED = "MindSpeed differentiates it by a function of its own"

FUNCTIONS = {
    "npu_rms_norm": Api(_npu_rms_norm, _npu_rms_norm_gradient),
    "npu_rms_norm_backward": Api(_npu_rms_norm_backward),
    "npu_add_rms_norm": Api(_npu_add_rms_norm),
    "npu_gemma_rms_norm": Api(_npu_gemma_rms_norm),
    "npu_add_layer_norm": Api(_npu_add_layer_norm, _npu_add_layer_norm_gradient, differentiable=2),
    "npu_add_layer_norm_backward": Api(_npu_add_layer_norm_backward),
    "npu_deep_norm": Api(_npu_deep_norm),
    "npu_deep_norm_backward": Api(_npu_deep_norm_backward),
    "npu_group_norm_swish": Api(_npu_group_norm_swish, _npu_group_norm_swish_gradient),
    "npu_group_norm_swish_grad": Api(_npu_group_norm_swish_grad),
    "npu_group_norm_silu": Api(_npu_group_norm_silu),
    "npu_scaled_masked_softmax": Api(_npu_scaled_masked_softmax, _npu_scaled_masked_softmax_gradient),
    "npu_scaled_masked_softmax_backward": Api(_npu_scaled_masked_softmax_backward),
    "npu_swiglu": Api(_npu_swiglu, _npu_swiglu_gradient),
    "npu_swiglu_backward": Api(_npu_swiglu_backward),
    "npu_rotary_mul": Api(_npu_rotary_mul, _npu_rotary_mul_gradient),
    "npu_rotary_mul_backward": Api(_npu_rotary_mul_backward),
    "npu_rotary_position_embedding": Api(_npu_rotary_position_embedding, None, _MINDSPEED),
    "npu_gelu": Api(_npu_gelu, gelu_gradient),
    "npu_gelu_backward": Api(_npu_gelu_backward),
    "npu_cross_entropy_loss": Api(_npu_cross_entropy_loss, _npu_cross_entropy_loss_gradient, differentiable=2),
    "npu_cross_entropy_loss_backward": Api(_npu_cross_entropy_loss_backward),
    "npu_nsa_compress": Api(_npu_nsa_compress, _npu_nsa_compress_gradient),
    "npu_nsa_compress_grad": Api(_npu_nsa_compress_grad),
    "npu_apply_adam_w": Api(_npu_apply_adam_w),
}
