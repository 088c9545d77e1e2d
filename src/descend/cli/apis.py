"""The functions of PyTorch, torch_npu and MindSpore that call Descend's operators, computed in float64.

Each is a function here with the parameters of the original, in its order and with its defaults, so that the arguments
of a call can be given to it as they are. It returns the results in the order of the original. A function's gradient
takes the gradient of the first result, all results of the call where the dump has them, and all arguments by name. It
returns the gradients of the tensors that PyTorch differentiates, in their order. Masks change nothing: a result that is
not wanted is not in the dump.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from descend import reference

Array = npt.NDArray[Any]
Results = Sequence[npt.NDArray[np.float64] | None]
Known = Sequence[Array | None]
Integers = Sequence[int]


@dataclass(frozen=True)
class Api:
    """A function, and its gradient or why that is not computed."""

    forward: Callable[..., Results]
    gradient: Callable[..., Results] | None = None
    no_gradient: str = "it has no gradient"

    def arguments(self, given: Sequence[Any], named: Mapping[str, Any]) -> dict[str, Any]:
        """All arguments of a call by name, with defaults. TypeError for a call that does not fit."""
        bound = inspect.signature(self.forward).bind(*given, **named)
        bound.apply_defaults()
        return bound.arguments


def find(prefix: str, name: str, framework: str) -> Api | None:
    """The function that a dump calls ``prefix.name``, such as ``NPU.npu_rms_norm``; None if it is not one of ours.

    The names of torch_npu's functions say enough: what they are registered under does not matter.
    """
    if framework == "mindspore":
        return _MINDSPORE.get(f"{prefix}.{name}")
    name = name.removesuffix(".default")  # an overload of aten's
    api = _TORCH_NPU.get(name.rpartition(".")[2])
    if not api and prefix in ("Functional", "Torch", "VF", "Aten"):
        api = _PYTORCH.get(name)
    if api and framework == "mindtorch":  # PyTorch's functions, run by MindSpore
        return Api(api.forward, None, _ORDER)
    return api


def _native_layer_norm(
    input: Array,
    normalized_shape: Integers,
    weight: Array | None = None,
    bias: Array | None = None,
    eps: float = 1e-5,
    cudnn_enable: bool = True,
) -> Results:
    return reference.layer_norm(input, normalized_shape, weight, bias, eps)


def _layer_norm_gradient(
    dy: Array,
    results: Known,
    input: Array,
    normalized_shape: Integers,
    weight: Array | None,
    bias: Array | None,
    eps: float,
    **_: Any,
) -> Results:
    mean, rstd = _kept(results, 1, 3) or reference.layer_norm(input, normalized_shape, eps=eps)[1:]
    return reference.layer_norm_backward(dy, input, normalized_shape, mean, rstd, weight, bias)


def _native_layer_norm_backward(
    grad_out: Array,
    input: Array,
    normalized_shape: Integers,
    mean: Array,
    rstd: Array,
    weight: Array | None,
    bias: Array | None,
    output_mask: Sequence[bool],
) -> Results:
    return reference.layer_norm_backward(grad_out, input, normalized_shape, mean, rstd, weight, bias)


def _fused_rms_norm(
    input: Array, normalized_shape: Integers, weight: Array | None = None, eps: float | None = None
) -> Results:
    # Without eps PyTorch takes that of the dtype in which it computes.
    smallest = np.finfo(np.float64 if input.dtype == np.float64 else np.float32).eps
    return reference.rms_norm(input, _gamma(weight, normalized_shape), float(smallest) if eps is None else eps)


def _fused_rms_norm_gradient(
    dy: Array, results: Known, input: Array, normalized_shape: Integers, weight: Array | None, eps: float | None
) -> Results:
    (rstd,) = _kept(results, 1, 2) or _fused_rms_norm(input, normalized_shape, weight, eps)[1:]
    return _fused_rms_norm_backward(dy, input, normalized_shape, rstd, weight)


def _fused_rms_norm_backward(
    grad_out: Array,
    input: Array,
    normalized_shape: Integers,
    rstd: Any,
    weight: Array | None,
    output_mask: Sequence[bool] = (True, True),
) -> Results:
    return reference.rms_norm_grad(grad_out, input, rstd, _gamma(weight, normalized_shape))


def _gamma(weight: Array | None, shape: Integers) -> Array:
    return np.broadcast_to(1.0, shape) if weight is None else weight  # the shape may be too large for memory


def _npu_rms_norm(self: Array, gamma: Array, epsilon: float = 1e-6) -> Results:
    return reference.rms_norm(self, gamma, epsilon)


def _npu_rms_norm_gradient(dy: Array, results: Known, self: Array, gamma: Array, epsilon: float) -> Results:
    (rstd,) = _kept(results, 1, 2) or reference.rms_norm(self, gamma, epsilon)[1:]
    return reference.rms_norm_grad(dy, self, rstd, gamma)


def _npu_rms_norm_backward(dy: Array, self: Array, gamma: Array, rstd: Array) -> Results:
    return reference.rms_norm_grad(dy, self, rstd, gamma)


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
    mean, rstd = _kept(results, 1, 3) or _npu_group_norm_swish(input, num_groups, weight, bias, eps)[1:]
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
    channels = input.shape[1:2]
    beta = np.zeros(channels) if bias is None else bias
    return reference.group_norm_swish(input, _gamma(weight, channels), beta, group, eps=eps)


def _npu_scaled_masked_softmax(
    x: Array, mask: Array | None, scale: float = 1.0, fixed_triu_mask: bool = False
) -> Results:
    return [reference.scaled_masked_softmax(x, mask, scale, fixed_triu_mask)]


def _npu_scaled_masked_softmax_gradient(dy: Array, results: Known, **given: Any) -> Results:
    (y,) = _kept(results, 0, 1) or _npu_scaled_masked_softmax(**given)
    return _npu_scaled_masked_softmax_backward(dy, y, given["mask"], given["scale"], given["fixed_triu_mask"])


def _npu_scaled_masked_softmax_backward(
    y_grad: Array, y: Any, mask: Array | None, scale: float, fixed_triu_mask: bool
) -> Results:
    return [reference.scaled_masked_softmax_backward(y_grad, y, mask, scale, fixed_triu_mask)]


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


def _first(function: Callable[..., Results]) -> Callable[..., Results]:
    """The function with the same parameters that returns the first result only."""

    @functools.wraps(function)
    def first(**arguments: Any) -> Results:
        return function(**arguments)[:1]

    return first


def _kept(results: Known, first: int, end: int) -> list[Any]:
    """The results of a call that its gradient reads; nothing unless the dump has all of them."""
    kept = [result for result in results[first:end] if result is not None]
    return kept if len(kept) == end - first else []


_COMPOSED = "PyTorch may compose it of others, and msprobe then dumps the gradients of the last of them"
_ORDER = "the order of MindSpore's gradients is not known"

_PYTORCH = {
    "layer_norm": Api(_first(_native_layer_norm), _layer_norm_gradient),
    "native_layer_norm": Api(_native_layer_norm, _layer_norm_gradient),
    "native_layer_norm_backward": Api(_native_layer_norm_backward),
    "rms_norm": Api(_first(_fused_rms_norm), None, _COMPOSED),
    "_fused_rms_norm": Api(_fused_rms_norm, _fused_rms_norm_gradient),
    "_fused_rms_norm_backward": Api(_fused_rms_norm_backward),
}

_TORCH_NPU = {
    "npu_rms_norm": Api(_npu_rms_norm, _npu_rms_norm_gradient),
    "npu_rms_norm_backward": Api(_npu_rms_norm_backward),
    "npu_group_norm_swish": Api(_npu_group_norm_swish, _npu_group_norm_swish_gradient),
    "npu_group_norm_swish_grad": Api(_npu_group_norm_swish_grad),
    "npu_group_norm_silu": Api(_npu_group_norm_silu),
    "npu_scaled_masked_softmax": Api(_npu_scaled_masked_softmax, _npu_scaled_masked_softmax_gradient),
    "npu_scaled_masked_softmax_backward": Api(_npu_scaled_masked_softmax_backward),
    "npu_nsa_compress": Api(_npu_nsa_compress, _npu_nsa_compress_gradient),
    "npu_nsa_compress_grad": Api(_npu_nsa_compress_grad),
}

_MINDSPORE = {
    "Functional.rms_norm": Api(_npu_rms_norm, None, _ORDER),
    **dict.fromkeys(
        ("Functional.layer_norm", "Mint.layer_norm", "MintFunctional.layer_norm"),
        Api(_first(_native_layer_norm), None, _ORDER),
    ),
}
