"""PyTorch's functions."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from descend import precision, reference
from descend.cli.apis.function import (
    Api,
    Array,
    Integers,
    Known,
    LeftOut,
    Results,
    first,
    index_of,
    kept,
    ones_if_absent,
)
from descend.tensors import TensorFileError, parse_dtype


def find(prefix: str, name: str) -> Api | None:
    """The function that a dump calls ``prefix.name``; None if it is not one of ours."""
    return OF_PREFIXES.get(f"{prefix}.{name}") or (FUNCTIONS.get(name) if prefix in _PREFIXES else None)


def native_layer_norm(
    input: Array,
    normalized_shape: Integers,
    weight: Array | None = None,
    bias: Array | None = None,
    eps: float = 1e-5,
    cudnn_enable: bool = True,
) -> Results:
    """``torch.native_layer_norm``: the result and the statistics."""
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
    mean, rstd = kept(results, 1, 3) or reference.layer_norm(input, normalized_shape, eps=eps)[1:]
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
    return reference.rms_norm(input, ones_if_absent(weight, normalized_shape), float(smallest) if eps is None else eps)


def _fused_rms_norm_gradient(
    dy: Array, results: Known, input: Array, normalized_shape: Integers, weight: Array | None, eps: float | None
) -> Results:
    (rstd,) = kept(results, 1, 2) or _fused_rms_norm(input, normalized_shape, weight, eps)[1:]
    return _fused_rms_norm_backward(dy, input, normalized_shape, rstd, weight)


def _fused_rms_norm_backward(
    grad_out: Array,
    input: Array,
    normalized_shape: Integers,
    rstd: Any,
    weight: Array | None,
    output_mask: Sequence[bool] = (True, True),
) -> Results:
    return reference.rms_norm_grad(grad_out, input, rstd, ones_if_absent(weight, normalized_shape))


def group_norm(
    input: Array,
    num_groups: int,
    weight: Array | None = None,
    bias: Array | None = None,
    eps: float = 1e-5,
    cudnn_enabled: bool = True,
) -> Results:
    """``torch.group_norm``."""
    return reference.group_norm(input, weight, bias, *_sizes(input), num_groups, eps)[:1]


def _group_norm_gradient(
    dy: Array, results: Known, input: Array, num_groups: int, weight: Array | None, eps: float, **_: Any
) -> Results:
    return _native_group_norm_gradient(dy, (), input, weight, None, *_sizes(input), num_groups, eps)


def _native_group_norm(
    input: Array, weight: Array | None, bias: Array | None, N: int, C: int, HxW: int, group: int, eps: float
) -> Results:
    return reference.group_norm(input, weight, bias, N, C, HxW, group, eps)


def _native_group_norm_gradient(
    dy: Array,
    results: Known,
    input: Array,
    weight: Array | None,
    bias: Array | None,
    N: int,
    C: int,
    HxW: int,
    group: int,
    eps: float,
) -> Results:
    mean, rstd = kept(results, 1, 3) or reference.group_norm(input, None, None, N, C, HxW, group, eps)[1:]
    return reference.group_norm_backward(dy, input, mean, rstd, weight, N, C, HxW, group)


def _native_group_norm_backward(
    grad_out: Array,
    input: Array,
    mean: Array,
    rstd: Array,
    weight: Array | None,
    N: int,
    C: int,
    HxW: int,
    group: int,
    output_mask: Sequence[bool],
) -> Results:
    return reference.group_norm_backward(grad_out, input, mean, rstd, weight, N, C, HxW, group)


def _sizes(input: Array) -> tuple[int, int, int]:
    """N, C and HxW."""
    return input.shape[0], input.shape[1], math.prod(input.shape[2:])


def functional_softmax(input: Array, dim: int | None = None, _stacklevel: int = 3, dtype: Any = None) -> Results:
    """``F.softmax``."""
    return [reference.softmax(converted(input, dtype), _dim(input, dim))]


def functional_log_softmax(input: Array, dim: int | None = None, _stacklevel: int = 3, dtype: Any = None) -> Results:
    """``F.log_softmax``."""
    return [reference.log_softmax(converted(input, dtype), _dim(input, dim))]


def _softmax(input: Array, dim: int, dtype: Any = None) -> Results:
    return [reference.softmax(converted(input, dtype), dim)]


def _log_softmax(input: Array, dim: int, dtype: Any = None) -> Results:
    return [reference.log_softmax(converted(input, dtype), dim)]


def converted(x: Array, dtype: Any) -> Array:
    """A softmax's input in the dtype that the call names, to which it is converted first."""
    return x if dtype is None or not _is_narrower(dtype, x) else precision.round_to(x, parse_dtype(str(dtype)))


def _is_narrower(dtype: Any, x: Array) -> bool:
    """Whether numbers of x may be rounded in this dtype."""
    try:
        wanted = parse_dtype(str(dtype))
    except TensorFileError:  # another framework's name, say
        return False
    return wanted != x.dtype and wanted.itemsize <= x.dtype.itemsize


def _aten_softmax(self: Array, dim: int, half_to_float: bool) -> Results:
    return [reference.softmax(self, dim)]


def _aten_log_softmax(self: Array, dim: int, half_to_float: bool) -> Results:
    return [reference.log_softmax(self, dim)]


def _of_result(
    forward: Callable[..., npt.NDArray[np.float64]], backward: Callable[..., npt.NDArray[np.float64]]
) -> Callable[..., Results]:
    """The gradient of a softmax, which reads the softmax's result."""

    def gradient(dy: Array, results: Known, dim: int | None, **given: Any) -> Results:
        x = _input(given)
        if _is_narrower(given.get("dtype"), x):
            raise LeftOut("it is computed in a narrower dtype than its input's, which its gradient has")
        dim = _dim(x, dim)
        (y,) = kept(results, 0, 1) or [forward(x, dim)]
        return [backward(dy, y, dim)]

    return gradient


_softmax_gradient = _of_result(reference.softmax, reference.softmax_backward)
_log_softmax_gradient = _of_result(reference.log_softmax, reference.log_softmax_backward)


def _softmax_backward_data(grad_output: Array, output: Array, dim: int, input_dtype: Any) -> Results:
    return [reference.softmax_backward(grad_output, output, dim)]


def _log_softmax_backward_data(grad_output: Array, output: Array, dim: int, input_dtype: Any) -> Results:
    return [reference.log_softmax_backward(grad_output, output, dim)]


def _input(given: Mapping[str, Any]) -> Any:
    """The first argument, which aten's functions call self."""
    return given["input"] if "input" in given else given["self"]


def _dim(x: Array, dim: int | None) -> int:
    """Without a dim PyTorch takes one by the rank."""
    if dim is not None:
        return dim
    return 0 if x.ndim in (0, 1, 3) else 1


def gelu(input: Array, *, approximate: str = "none") -> Results:
    """GELU by erf, or by tanh."""
    return [reference.gelu_v2(input, index_of("approximate", approximate, ("none", "tanh")))]


def _aten_gelu(self: Array, *, approximate: str = "none") -> Results:
    return gelu(self, approximate=approximate)


def gelu_gradient(dy: Array, results: Known, approximate: str, **given: Any) -> Results:
    """The gradient of GELU for its first argument."""
    return [reference.gelu_backward_v2(dy, _input(given), approximate)]


def _gelu_backward(grad_output: Array, self: Array, *, approximate: str = "none") -> Results:
    return [reference.gelu_backward_v2(grad_output, self, approximate)]


def cross_entropy(
    input: Array,
    target: Array,
    weight: Array | None = None,
    size_average: bool | None = None,
    ignore_index: int = -100,
    reduce: bool | None = None,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Results:
    """The loss of [C], [N, C] or [N, C, ...]. Targets must be classes."""
    if target.dtype.kind not in "iu":
        raise LeftOut("its targets are probabilities")
    if size_average is not None or reduce is not None:  # deprecated, and read as PyTorch does
        reduction = "none" if reduce is False else "sum" if size_average is False else "mean"
    classes = min(1, input.ndim - 1)
    scores = np.moveaxis(input, classes, -1).reshape(-1, input.shape[classes])
    attributes = weight, reduction, ignore_index, label_smoothing
    loss = reference.cross_entropy_loss(scores, target.reshape(-1), *attributes)[0]
    return [loss.reshape(target.shape if reduction == "none" else ())]


_PREFIXES = ("Functional", "Torch", "VF", "Aten")

_COMPOSED = "PyTorch may compute it by several functions, and msprobe then dumps the gradients of the last one"
BY_TANH = {"approximate": "tanh"}
"""How aclnnGelu computes GELU. PyTorch's gelu calls it on an Ascend processor, whatever its ``approximate`` is."""

FUNCTIONS = {
    "layer_norm": Api(first(native_layer_norm), _layer_norm_gradient),
    "native_layer_norm": Api(native_layer_norm, _layer_norm_gradient),
    "native_layer_norm_backward": Api(_native_layer_norm_backward),
    "rms_norm": Api(first(_fused_rms_norm), None, _COMPOSED),
    "_fused_rms_norm": Api(_fused_rms_norm, _fused_rms_norm_gradient),
    "_fused_rms_norm_backward": Api(_fused_rms_norm_backward),
    "group_norm": Api(group_norm, _group_norm_gradient),
    "native_group_norm": Api(_native_group_norm, _native_group_norm_gradient),
    "native_group_norm_backward": Api(_native_group_norm_backward),
    "softmax": Api(_softmax, _softmax_gradient),
    "log_softmax": Api(_log_softmax, _log_softmax_gradient),
    "_softmax": Api(_aten_softmax, _softmax_gradient),
    "_log_softmax": Api(_aten_log_softmax, _log_softmax_gradient),
    "_softmax_backward_data": Api(_softmax_backward_data),
    "_log_softmax_backward_data": Api(_log_softmax_backward_data),
    "gelu": Api(_aten_gelu, gelu_gradient, or_else=BY_TANH),
    "gelu_backward": Api(_gelu_backward, or_else=BY_TANH),
}
"""By name; the prefix may be any of `_PREFIXES`."""

OF_PREFIXES = {
    "Functional.softmax": Api(functional_softmax, _softmax_gradient),
    "Functional.log_softmax": Api(functional_log_softmax, _log_softmax_gradient),
    "Functional.gelu": Api(gelu, gelu_gradient, or_else=BY_TANH),
    "Functional.cross_entropy": Api(cross_entropy, None, _COMPOSED),
    "Tensor.softmax": FUNCTIONS["softmax"],
    "Tensor.log_softmax": FUNCTIONS["log_softmax"],
}
"""By prefix and name: others with this name have other parameters, or are none of ours."""
