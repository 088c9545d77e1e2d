"""For tensors of the device alone: gradients that torch_npu does not have, and the formats of Ascend processors."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from descend._registered_kernel import registered_kernel
from descend.npu.composed.attention import masks
from descend.npu.composed.layers.dropout import npu_dropout_gen_mask
from descend.npu.composed.products.grouped_matmul import npu_grouped_matmul

PRIVATE_FORMATS = (3, 4, 12, 29, 32, 33, 50, 51, 52, 53, 54)
"""NC1HWC0, FRACTAL_Z, NC1HWC0_C04, FRACTAL_NZ, NDC1HWC0, FRACTAL_Z_3D, and FRACTAL_NZ with other blocks."""
FORMAT_CASTS = (
    "_npu_format_cast",
    "_npu_format_cast.aclnn",
    "_npu_format_cast.input_dtype",
    "npu_format_cast_.acl_format",
)


def complete(library: torch.library.Library) -> None:
    """Registers them for torch_npu's operators, in ``library``, whose namespace is npu."""
    _derive(library, "npu_add_rms_norm", _AddRmsNorm.apply)
    _derive(library, "npu_gemma_rms_norm", _GemmaRmsNorm.apply)
    for name in ("npu_grouped_matmul", "npu_grouped_matmul.List"):
        _derive(library, name, npu_grouped_matmul)
    for name in FORMAT_CASTS:
        if _exists(name):
            library.impl(name, _format_cast(name), "PrivateUse1", with_keyset=True)
    if _exists("npu_format_cast_"):
        library.impl("npu_format_cast_", _write_in_format, "PrivateUse1")
    if _exists("npu_dropout_gen_mask"):
        library.impl("npu_dropout_gen_mask", _gen_mask, "BackendSelect")


def causal_attention(library: torch.library.Library) -> None:
    """Causal attention that makes its mask only once. Registered in ``library``, whose namespace is aten.

    torch_npu makes a triangle of 2048 rows in each call of scaled_dot_product_attention. That takes 0.8 ms, more than a
    small attention. Calls that torch_npu would not pass on to npu_fusion_attention_v3 are left to it.
    """
    operator = torch.ops.aten.scaled_dot_product_attention.default
    for key in ("AutogradPrivateUse1", "PrivateUse1"):
        theirs = registered_kernel(operator, key)
        if theirs is None:
            return
        library.impl("scaled_dot_product_attention", _causal_or(theirs), key, with_keyset=True)


def _causal_or(theirs: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def call(
        keys: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        *,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Tensor:
        tensors = (query, key, value)
        whole = all(t.dim() == 4 and t.dtype == query.dtype and t.device == query.device for t in tensors)
        # A triangle made while tracing has no values, so it must not be kept.
        traced = torch._C._len_torch_dispatch_stack() > 0
        if traced or not is_causal or attn_mask is not None or not whole or not _is_fused(query, key, value):
            given = (*tensors, attn_mask, dropout_p, is_causal)
            return theirs(keys, *given, scale=scale, enable_gqa=enable_gqa)
        scale = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
        call_v3 = torch.ops.npu.npu_fusion_attention_v3
        shape = {"head_num": query.shape[1], "input_layout": "BNSD", "next_tockens": 0, "sparse_mode": 2}
        options = {"atten_mask": _triangle(query.device), "scale": scale, "keep_prob": 1 - dropout_p}
        attention: Tensor = call_v3(query, key, value, **shape, **options)[0]
        return attention

    return call


def _is_fused(query: Tensor, key: Tensor, value: Tensor) -> bool:
    """Whether torch_npu would call npu_fusion_attention_v3 for these sizes and dtypes."""
    sizes = (query.shape[-1], key.shape[-1], value.shape[-1])
    heads, key_heads = query.shape[1], key.shape[1]
    if query.dtype == torch.float32 and any(size % 4 for size in sizes):
        return False
    fits = max(heads, key_heads) <= 2048 and sizes[0] <= 512 and key_heads > 0 and heads > 0 and heads % key_heads == 0
    return fits and max(sizes) <= 256 and query.dtype in (torch.float16, torch.bfloat16, torch.float32)


@functools.cache
def _triangle(device: torch.device) -> Tensor:
    with torch.inference_mode(False):  # autograd cannot save an inference tensor
        return masks.trust(masks.triangle().to(device))


def _operator(name: str) -> Any:
    base, _, overload = name.partition(".")
    return getattr(getattr(torch.ops.npu, base, None), overload or "default", None)


def _exists(name: str) -> bool:
    """Whether this torch_npu has the operator."""
    return _operator(name) is not None


def _derive(library: torch.library.Library, name: str, derived: Callable[..., Any]) -> None:
    """Registers a derivative: if gradients are recorded, ``derived`` is called, which PyTorch can differentiate."""
    operator = _operator(name)

    def call(*args: Any, **named: Any) -> Any:
        if torch.is_grad_enabled() and any(map(_wants_gradient, (*args, *named.values()))):
            return derived(*args, **named)
        with torch._C._AutoDispatchBelowAutograd():
            return operator(*args, **named)

    if operator is not None:
        library.impl(name, call, "AutogradPrivateUse1")


def _wants_gradient(given: Any) -> bool:
    if isinstance(given, Tensor):
        return given.requires_grad
    return isinstance(given, Sequence) and any(isinstance(each, Tensor) and each.requires_grad for each in given)


class _AddRmsNorm(torch.autograd.Function):
    """npu_add_rms_norm, whose gradient is npu_rms_norm's of the sum."""

    @staticmethod
    def forward(ctx: Any, x1: Tensor, x2: Tensor, gamma: Tensor, epsilon: float = 1e-06) -> tuple[Tensor, ...]:
        y, rstd, x = torch.ops.npu.npu_add_rms_norm(x1, x2, gamma, epsilon)
        ctx.save_for_backward(x, gamma, rstd)
        ctx.mark_non_differentiable(rstd)
        ctx.set_materialize_grads(False)
        return y, rstd, x

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, dy: Tensor | None, _: Any, dx: Tensor | None) -> tuple[Tensor | None, ...]:
        x, gamma, rstd = ctx.saved_tensors
        dgamma = None
        if dy is not None:
            through_y, dgamma = torch.ops.npu.npu_rms_norm_backward(dy, x, gamma, rstd)
            dx = through_y if dx is None else dx + through_y
        return dx, dx, None if dgamma is None else dgamma.to(gamma.dtype), None


class _GemmaRmsNorm(torch.autograd.Function):
    """npu_gemma_rms_norm, whose gradient is npu_rms_norm's with 1 + gamma."""

    @staticmethod
    def forward(ctx: Any, self: Tensor, gamma: Tensor, epsilon: float = 1e-06) -> tuple[Tensor, Tensor]:
        y, rstd = torch.ops.npu.npu_gemma_rms_norm(self, gamma, epsilon)
        ctx.save_for_backward(self, gamma, rstd)
        ctx.mark_non_differentiable(rstd)
        return y, rstd

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, dy: Tensor, _: Any) -> tuple[Tensor, Tensor, None]:
        x, gamma, rstd = ctx.saved_tensors
        weight = gamma.float() + 1
        dx, dgamma = torch.ops.npu.npu_rms_norm_backward(dy, x, weight, rstd)
        return dx, dgamma.to(gamma.dtype), None


def _format_cast(name: str) -> Callable[..., Tensor]:
    """A cast to a processor's own format, a layout of memory that nothing here reads. The tensor keeps its format."""
    theirs = registered_kernel(_operator(name), "PrivateUse1")
    in_place = name.startswith("npu_format_cast_")

    def call(keys: Any, self: Tensor, acl_format: int, *more: Any, **named: Any) -> Tensor:
        if acl_format in PRIVATE_FORMATS or theirs is None:
            return self if in_place else self.clone(memory_format=torch.contiguous_format)
        result: Tensor = theirs(keys, self, acl_format, *more, **named)
        return result

    return call


def _write_in_format(self: Tensor, src: Tensor, **dtypes: int | None) -> Tensor:
    return self.copy_(src)


def _gen_mask(size: Sequence[int], p: float, *, device: torch.device | None = None, **options: Any) -> Tensor:
    """Has no tensor among its arguments, by which PyTorch would know the device."""
    return npu_dropout_gen_mask(size, p).to(device or "npu")
