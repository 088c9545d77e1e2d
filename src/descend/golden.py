"""Golden values in float64 for who writes kernels, in the form of CANN's operator repositories.

Those repositories keep a file ``tests/assets/golden.py`` beside each operator. It names, in ``__golden__``, the
function that gives the operator's golden values. One line makes it Descend's::

    from descend.golden import *

Every function takes what the test framework gives: the operator's inputs as NumPy arrays, in the order and with the
names of its definition (``op_host/<name>_def.cpp``), None where an optional one is absent; its attributes by their
names there; and keyword arguments of the framework. Of the latter ``output_dtypes`` is read, and all others are
ignored.

Inputs may have any floating dtype, bfloat16 included. Everything is computed in float64, by `descend.reference`, and
each result is rounded once. Its dtype is the one in ``output_dtypes``. Without that y, dx and the gradients of
parameters have the dtype of the input or parameter; mean, rstd and RMS norm's dgamma are float32, or float64 for
float64 inputs.
ValueError where shapes do not fit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from descend import precision, reference

Array = npt.NDArray[Any]

__golden__ = {
    "kernel": {
        "rms_norm": "rms_norm_golden",
        "rms_norm_grad": "rms_norm_grad_golden",
        "layer_norm_v3": "layer_norm_v3_golden",
        "layer_norm_v4": "layer_norm_v4_golden",
        "layer_norm_grad_v3": "layer_norm_grad_v3_golden",
        "group_norm_swish": "group_norm_swish_golden",
        "group_norm_swish_grad": "group_norm_swish_grad_golden",
        "scaled_masked_softmax_v2": "scaled_masked_softmax_v2_golden",
        "scaled_masked_softmax_grad_v2": "scaled_masked_softmax_grad_v2_golden",
        "nsa_compress": "nsa_compress_golden",
        "nsa_compress_grad": "nsa_compress_grad_golden",
    }
}
"""The functions by the operators' names, as the framework looks them up."""

__all__ = ["__golden__", *__golden__["kernel"].values()]


def rms_norm_golden(x: Array, gamma: Array, *, epsilon: float = 1e-6, **given: Any) -> tuple[Array | None, ...]:
    """``y, rstd`` of RmsNorm; shapes and formula as `descend.rms_norm`."""
    return _rounded(reference.rms_norm(x, gamma, epsilon), [x.dtype, _wide(x)], given)


def rms_norm_grad_golden(dy: Array, x: Array, rstd: Array, gamma: Array, **given: Any) -> tuple[Array | None, ...]:
    """``dx, dgamma`` of RmsNormGrad; shapes and formula as `descend.rms_norm_grad`."""
    return _rounded(reference.rms_norm_grad(dy, x, rstd, gamma), [x.dtype, _wide(x)], given)


def layer_norm_v3_golden(
    x: Array,
    gamma: Array,
    beta: Array,
    *,
    begin_norm_axis: int = 0,
    begin_params_axis: int = 0,
    epsilon: float = 1e-5,
    **given: Any,
) -> tuple[Array | None, ...]:
    """``y, mean, rstd`` of LayerNormV3, over the dimensions of x from ``begin_norm_axis`` on.

    gamma and beta have the dimensions from ``begin_params_axis`` on, which must be the same ones.
    """
    first, parameters = (axis + x.ndim if axis < 0 else axis for axis in (begin_norm_axis, begin_params_axis))
    if first != parameters or not 0 <= first < max(x.ndim, 1):
        raise ValueError(
            f"begin_norm_axis is {begin_norm_axis} and begin_params_axis {begin_params_axis}, but they must be the "
            f"same of the {x.ndim} axes of x."
        )
    return layer_norm_v4_golden(x, x.shape[first:], gamma, beta, epsilon=epsilon, **given)


def layer_norm_v4_golden(
    x: Array,
    normalized_shape: npt.ArrayLike,
    gamma: Array | None = None,
    beta: Array | None = None,
    *,
    epsilon: float = 1e-5,
    **given: Any,
) -> tuple[Array | None, ...]:
    """``y, mean, rstd`` of LayerNormV4; ``normalized_shape`` is an array of integers, as its definition has it."""
    results = reference.layer_norm(x, _integers(normalized_shape), gamma, beta, epsilon)
    return _rounded(results, [x.dtype, _wide(x), _wide(x)], given)


def layer_norm_grad_v3_golden(
    dy: Array,
    x: Array,
    rstd: Array,
    mean: Array,
    gamma: Array,
    *,
    output_mask: Sequence[bool] = (True, True, True),
    **given: Any,
) -> tuple[Array | None, ...]:
    """``pd_x, pd_gamma, pd_beta`` of LayerNormGradV3, None where ``output_mask`` is false; rstd comes before mean."""
    results = reference.layer_norm_backward(dy, x, gamma.shape, mean, rstd, gamma, None, output_mask)
    return _rounded(results, [x.dtype, gamma.dtype, gamma.dtype], given)


def group_norm_swish_golden(
    x: Array,
    gamma: Array,
    beta: Array,
    *,
    num_groups: int,
    data_format: str = "NCHW",
    eps: float = 1e-5,
    activate_swish: bool = True,
    swish_scale: float = 1.0,
    **given: Any,
) -> tuple[Array | None, ...]:
    """``y, mean, rstd`` of GroupNormSwish; shapes and formula as `descend.group_norm_swish`."""
    results = reference.group_norm_swish(x, gamma, beta, num_groups, data_format, eps, activate_swish, swish_scale)
    return _rounded(results, [x.dtype, _wide(x), _wide(x)], given)


def group_norm_swish_grad_golden(
    dy: Array,
    mean: Array,
    rstd: Array,
    x: Array,
    gamma: Array,
    beta: Array,
    *,
    num_groups: int,
    data_format: str = "NCHW",
    swish_scale: float = 1.0,
    dgamma_is_require: bool = True,
    dbeta_is_require: bool = True,
    **given: Any,
) -> tuple[Array | None, ...]:
    """``dx, dgamma, dbeta`` of GroupNormSwishGrad, the latter None where not required."""
    results = reference.group_norm_swish_grad(
        dy, mean, rstd, x, gamma, beta, num_groups, data_format, swish_scale, dgamma_is_require, dbeta_is_require
    )
    return _rounded(results, [x.dtype, gamma.dtype, beta.dtype], given)


def scaled_masked_softmax_v2_golden(
    x: Array, mask: Array | None = None, *, scale: float = 1.0, fixed_triu_mask: bool = False, **given: Any
) -> tuple[Array | None, ...]:
    """``y`` of ScaledMaskedSoftmaxV2; shapes and formula as `descend.scaled_masked_softmax`."""
    return _rounded([reference.scaled_masked_softmax(x, mask, scale, fixed_triu_mask)], [x.dtype], given)


def scaled_masked_softmax_grad_v2_golden(
    yGrad: Array,
    y: Array,
    mask: Array | None = None,
    *,
    scale: float = 1.0,
    fixed_triu_mask: bool = False,
    **given: Any,
) -> tuple[Array | None, ...]:
    """``xGrad`` of ScaledMaskedSoftmaxGradV2; shapes and formula as `descend.scaled_masked_softmax_backward`."""
    result = reference.scaled_masked_softmax_backward(yGrad, y, mask, scale, fixed_triu_mask)
    return _rounded([result], [y.dtype], given)


def nsa_compress_golden(
    input: Array,
    weight: Array,
    actSeqLenOptional: npt.ArrayLike | None = None,
    *,
    layoutOptional: str = "TND",
    compressBlockSize: int,
    compressStride: int,
    actSeqLenType: int = 0,
    **given: Any,
) -> tuple[Array | None, ...]:
    """``output`` of NsaCompress; shapes and formula as `descend.nsa_compress`."""
    windows = _windows(actSeqLenOptional, compressBlockSize, compressStride, actSeqLenType, layoutOptional)
    return _rounded([reference.nsa_compress(input, weight, **windows)], [input.dtype], given)


def nsa_compress_grad_golden(
    outputGrad: Array,
    input: Array,
    weight: Array,
    actSeqLenOptional: npt.ArrayLike | None = None,
    *,
    compressBlockSize: int,
    compressStride: int,
    actSeqLenType: int = 0,
    layoutOptional: str = "TND",
    **given: Any,
) -> tuple[Array | None, ...]:
    """``inputGrad, weightGrad`` of NsaCompressGrad; shapes and formula as `descend.nsa_compress_grad`."""
    windows = _windows(actSeqLenOptional, compressBlockSize, compressStride, actSeqLenType, layoutOptional)
    return _rounded(
        reference.nsa_compress_grad(outputGrad, input, weight, **windows), [input.dtype, weight.dtype], given
    )


def _windows(ends: npt.ArrayLike | None, width: int, stride: int, kind: int, layout: str) -> dict[str, Any]:
    """NSA compression's sequences and attributes, by their names in Python."""
    return {
        "act_seq_len": None if ends is None else _integers(ends),
        "compress_block_size": width,
        "compress_stride": stride,
        "act_seq_len_type": kind,
        "layout": layout,
    }


def _wide(x: Array) -> np.dtype[Any]:
    """The dtype of sums and statistics: float32, float64 for float64."""
    return np.dtype(np.float64 if x.dtype == np.float64 else np.float32)


def _integers(values: npt.ArrayLike) -> tuple[int, ...]:
    return tuple(int(value) for value in np.asarray(values).reshape(-1))


def _rounded(
    results: Sequence[npt.NDArray[np.float64] | None], dtypes: Sequence[npt.DTypeLike], given: Mapping[str, Any]
) -> tuple[Array | None, ...]:
    """The results, each rounded once; `given` are the framework's keyword arguments."""
    wanted = given.get("output_dtypes") or dtypes
    if len(wanted) < len(results):
        raise ValueError(f"output_dtypes has {len(wanted)} dtypes, but there are {len(results)} outputs.")
    pairs = zip(results, wanted, strict=False)
    return tuple(None if result is None else precision.round_to(result, _dtype(name)) for result, name in pairs)


def _dtype(name: npt.DTypeLike) -> np.dtype[Any]:
    """NumPy's dtype of a name; bfloat16, also another package's, is ml_dtypes'."""
    return np.dtype(ml_dtypes.bfloat16) if str(name) == "bfloat16" else np.dtype(name)
