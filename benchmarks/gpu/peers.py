"""The other libraries on a GPU, where they are installed and have the operator.

PyTorch's ways are those of the operators' files. Liger-Kernel, flash-linear-attention, Apex and Transformer Engine have
forwards with a backward of their own behind autograd: that is how they take part in both. quack-kernels' backwards are
functions.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any

from benchmarks.frameworks import LIBRARIES as ON_CPU
from benchmarks.frameworks import Library, torch_arrays
from benchmarks.operator import Call, Operator, Route

Forward = Callable[..., Any]

RMS_EPSILON, EPSILON, SCALE = 1e-6, 1e-5, 0.125
"""As the operators' files have them."""


def _job(function: Forward) -> Route:
    """A function of the inputs as a job."""
    return lambda *tensors, **settings: lambda: function(*tensors, **settings)


def _routes(name: str, forwards: Mapping[str, Forward], backwards: Mapping[str, Forward] | None = None) -> Any:
    """A library's ways, by operator: a forward as it is, its gradient through autograd, or a backward of its own."""
    routes = {operator: _job(forward) for operator, forward in forwards.items()}
    for operator, gradient in _GRADIENTS.items():
        if operator in forwards:
            routes[gradient] = _autograd(gradient, forwards[operator])
    routes |= {operator: _job(backward) for operator, backward in (backwards or {}).items()}

    def of(operator: Operator) -> Mapping[str, Route]:
        return {name: routes[operator.name]} if operator.name in routes else {}

    return of


_GRADIENTS = {
    "rms_norm": "rms_norm_grad",
    "layer_norm": "layer_norm_backward",
    "group_norm_swish": "group_norm_swish_grad",
}


def _autograd(gradient: str, forward: Forward) -> Route:
    """As the gradient's file differentiates PyTorch's forward."""

    def route(*tensors: Any, **settings: Any) -> Call:
        made: Route = importlib.import_module(f"benchmarks.{gradient}").autograd(forward)
        return made(*tensors, **settings)

    return route


# --- Liger-Kernel -----------------------------------------------------------------------------------------------------


def _liger_rms_norm(x: Any, gamma: Any) -> Any:
    from liger_kernel.ops.rms_norm import LigerRMSNormFunction

    return LigerRMSNormFunction.apply(x, gamma, RMS_EPSILON, 0.0, "llama", False)  # not in place: dy is used again


def _liger_layer_norm(x: Any, weight: Any, bias: Any) -> Any:
    from liger_kernel.ops.layer_norm import LigerLayerNormFunction

    return LigerLayerNormFunction.apply(x, weight, bias, EPSILON)


def _liger_group_norm_swish(x: Any, gamma: Any, beta: Any, groups: int) -> Any:
    from liger_kernel.ops.group_norm import LigerGroupNormFunction
    from torch.nn.functional import silu

    return silu(LigerGroupNormFunction.apply(x, gamma, beta, x.shape[1], groups, EPSILON))


def _liger_softmax(x: Any, mask: Any) -> Any:
    from liger_kernel.ops.softmax import LigerSoftmaxFunction

    return LigerSoftmaxFunction.apply((x * SCALE).masked_fill(mask, -10000.0))


def _liger_softmax_backward(grad: Any, y: Any, mask: Any) -> Any:
    from liger_kernel.ops.softmax import _softmax_backward
    from liger_kernel.ops.utils import calculate_settings

    block, warps = calculate_settings(y.shape[-1])
    return _softmax_backward(grad, y, block, warps, y.shape[-1] > block).masked_fill(mask, 0.0) * SCALE


# --- quack-kernels ----------------------------------------------------------------------------------------------------


def _quack_rms_norm(x: Any, gamma: Any) -> Any:
    from quack.rmsnorm import rmsnorm_fwd

    return rmsnorm_fwd(x, gamma, eps=RMS_EPSILON, store_rstd=True)[0]


def _quack_rms_norm_grad(dy: Any, x: Any, rstd: Any, gamma: Any) -> Any:
    from quack.rmsnorm import rmsnorm_bwd

    return rmsnorm_bwd(x, gamma, dy, rstd.flatten())[:2]


def _quack_layer_norm(x: Any, weight: Any, bias: Any) -> Any:
    from quack.rmsnorm import layernorm_fwd

    # It takes parameters in float32 alone: the casts are part of the job.
    return layernorm_fwd(x, weight.float(), bias.float(), EPSILON)


def _quack_layer_norm_backward(dy: Any, x: Any, mean: Any, rstd: Any, weight: Any, bias: Any) -> Any:
    from quack.rmsnorm import layernorm_bwd

    return layernorm_bwd(x, weight, dy, rstd.flatten(), mean.flatten())


# --- flash-linear-attention -------------------------------------------------------------------------------------------


def _fla_rms_norm(x: Any, gamma: Any) -> Any:
    from fla.modules.layernorm import rms_norm

    return rms_norm(x, gamma, None, eps=RMS_EPSILON)


def _fla_layer_norm(x: Any, weight: Any, bias: Any) -> Any:
    from fla.modules.layernorm import layer_norm

    return layer_norm(x, weight, bias, eps=EPSILON)


# --- Apex -------------------------------------------------------------------------------------------------------------


def _apex_rms_norm(x: Any, gamma: Any) -> Any:
    from apex.normalization.fused_layer_norm import fused_rms_norm_affine

    return fused_rms_norm_affine(x, gamma, gamma.shape, RMS_EPSILON)


def _apex_layer_norm(x: Any, weight: Any, bias: Any) -> Any:
    from apex.normalization.fused_layer_norm import fused_layer_norm_affine

    return fused_layer_norm_affine(x, weight, bias, weight.shape, EPSILON)


def _apex_softmax(x: Any, mask: Any) -> Any:
    from apex.transformer.functional.fused_softmax import ScaledMaskedSoftmax

    return ScaledMaskedSoftmax.apply(x, mask, SCALE)


# --- Transformer Engine -----------------------------------------------------------------------------------------------


def _engine_rms_norm(x: Any, gamma: Any) -> Any:
    return _engine_norm("RMSNorm", x, gamma, None, RMS_EPSILON)


def _engine_layer_norm(x: Any, weight: Any, bias: Any) -> Any:
    return _engine_norm("LayerNorm", x, weight, bias, EPSILON)


def _engine_norm(kind: str, x: Any, weight: Any, bias: Any, epsilon: float) -> Any:
    """Its modules, on parameters that are the benchmark's leaves."""
    import transformer_engine.pytorch as engine
    from torch.func import functional_call

    module = getattr(engine, kind)(x.shape[-1], eps=epsilon, device="meta", dtype=x.dtype)
    parameters = {"weight": weight} if bias is None else {"weight": weight, "bias": bias}
    return functional_call(module, parameters, (x,))


def _engine_softmax(x: Any, mask: Any) -> Any:
    from transformer_engine.pytorch.softmax import ScaledMaskedSoftmax

    return ScaledMaskedSoftmax.apply(x, mask, SCALE)


LIBRARIES: tuple[Library, ...] = (
    *(library for library in ON_CPU if library.package == "torch"),
    Library(
        "Liger-Kernel",
        "liger_kernel",
        _routes(
            "Liger-Kernel",
            {
                "rms_norm": _liger_rms_norm,
                "layer_norm": _liger_layer_norm,
                "group_norm_swish": _liger_group_norm_swish,
                "scaled_masked_softmax": _liger_softmax,
            },
            {"scaled_masked_softmax_backward": _liger_softmax_backward},
        ),
        torch_arrays,
    ),
    Library(
        "quack-kernels",
        "quack",
        _routes(
            "quack-kernels",
            {"rms_norm": _quack_rms_norm, "layer_norm": _quack_layer_norm},
            {"rms_norm_grad": _quack_rms_norm_grad, "layer_norm_backward": _quack_layer_norm_backward},
        ),
        torch_arrays,
    ),
    Library(
        "flash-linear-attention",
        "fla",
        _routes("flash-linear-attention", {"rms_norm": _fla_rms_norm, "layer_norm": _fla_layer_norm}),
        torch_arrays,
    ),
    Library(
        "Apex",
        "apex",
        _routes(
            "Apex",
            {
                "rms_norm": _apex_rms_norm,
                "layer_norm": _apex_layer_norm,
                "scaled_masked_softmax": _apex_softmax,
            },
        ),
        torch_arrays,
    ),
    Library(
        "Transformer Engine",
        "transformer_engine",
        _routes(
            "Transformer Engine",
            {
                "rms_norm": _engine_rms_norm,
                "layer_norm": _engine_layer_norm,
                "scaled_masked_softmax": _engine_softmax,
            },
        ),
        torch_arrays,
    ),
)
