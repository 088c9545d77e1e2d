"""Fake results beside real ones, for ``pytest --fakes``: does torch.compile trace what a call of torch_npu's gives?

Each call that a test makes of a composed operator is made again with tensors that have no memory, by torch_npu's own
fake kernel. Shapes, dtypes and strides must be equal, where torch_npu has a fake kernel and it takes the call.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import Any

import torch

Value = Any
compared = 0
"""How many calls have been compared. Were there none, tests that pass would show nothing."""
MISTAKEN = {
    "npu_bmmV2": "batches that broadcast",
    "npu_transpose": "a view, where torch_npu gives a copy",
    "npu_fused_floyd_attention": "strides as query's, where torch_npu gives contiguous results",
    "npu_fused_floyd_attention_backward": "the same",
    "npu_dropout_with_add_softmax": "a mask that is not aligned to 128",
    "npu_dynamic_quant": "int4 per channel",
    "npu_dynamic_quant_asymmetric": "int4 per channel",
    "npu_fused_attention_score_backward": "shapes of two dimensions",
    "npu_fused_matmul": "16cast32",
    "npu_fusion_attention_grad_v3": "the gradient of pse",
    "npu_fusion_attention_v2": "statistics of TND",
    "npu_mhc_sinkhorn": "statistics in a row",
    "npu_moe_gating_top_k_softmax_v2": "scores of three dimensions",
    "npu_moe_init_routing_v2": "counts that are not asked for",
    "npu_quant_matmul_gelu": "a bias in bfloat16",
    "npu_softmax_cross_entropy_with_logits": "16 bits",
    "npu_swiglu_quant": "int4",
    "npu_weight_quant_batchmatmul": "x of three dimensions",
}
"""Operators whose fake kernel in torch_npu differs from Descend, and in what: it is taken to be mistaken.

Where torch_npu's own code in C++ was read, it gives what Descend gives. It was not read for all of them.
"""
BEYOND = {
    "_npu_ciou": "an intermediate result stays in float32",
    "npu_deformable_conv2d": "the result stays in float32",
    "npu_chunk_gated_delta_rule": "dtypes other than bfloat16",
    "npu_recurrent_gated_delta_rule": "dtypes other than bfloat16",
    "npu_recurrent_gated_delta_rule_functional": "dtypes other than bfloat16",
    "npu_grouped_matmul": "a list where group_list cuts x, and split_item is 0 or 1",
    "npu_prompt_flash_attention": "values of another size than keys",
    "npu_sparse_flash_attention": "values of another size than keys",
}
"""Operators that Descend computes for more calls than a processor, or more exactly."""


def compare_all() -> None:
    """From now on, for all operators of the tables."""
    table = importlib.import_module("descend.npu.composed.table")
    for row in table.TABLE:
        module = importlib.import_module(f"{table.PACKAGE}.{row.module}")
        for kernel, function in table.functions(row):
            name = kernel if "::" in kernel else f"npu::{kernel}"
            if _has_fake(name) and kernel not in MISTAKEN | BEYOND:
                setattr(module, function.__name__, _beside_fake(name, function))


def _has_fake(name: str) -> bool:
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    defined = torch._C._dispatch_has_kernel(name)
    return defined and any(has(name, key) for key in ("Meta", "CompositeImplicitAutograd", "CompositeExplicitAutograd"))


def _beside_fake(name: str, function: Callable[..., Value]) -> Callable[..., Value]:
    namespace, _, rest = name.partition("::")
    base, _, overload = rest.partition(".")
    operator = getattr(getattr(getattr(torch.ops, namespace), base), overload or "default")

    @functools.wraps(function)
    def call(*args: Value, **named: Value) -> Value:
        given = _fake((args, named))
        result = function(*args, **named)
        try:
            with torch._C.DisableTorchFunction(), torch.no_grad():
                fake = operator(*given[0], **given[1])
        except Exception:  # not a call of the operator, or one that torch_npu's fake kernel refuses
            return result
        global compared
        compared += 1
        _compare(name, given, _flat(fake), _flat(result))
        return result

    return call


def _fake(value: Value) -> Value:
    if isinstance(value, torch.Tensor):
        return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")
    if isinstance(value, (list, tuple)):
        return type(value)(_fake(each) for each in value)
    return {key: _fake(each) for key, each in value.items()} if isinstance(value, dict) else value


def _flat(value: Value) -> list[torch.Tensor | None]:
    if isinstance(value, (list, tuple)):
        return [tensor for each in value for tensor in _flat(each)]
    return [value if isinstance(value, torch.Tensor) else None]


def _compare(name: str, given: Value, fake: list[torch.Tensor | None], real: list[torch.Tensor | None]) -> None:
    assert len(fake) == len(real), (name, given, fake)
    for one, other in zip(fake, real, strict=True):
        # A result that is None has no fake one, and no processor has float64.
        if one is not None and other is not None and torch.float64 not in (one.dtype, other.dtype):
            assert _of(one) == _of(other), (name, given)


def _of(tensor: torch.Tensor) -> tuple[Value, ...]:
    """The shape, the dtype, and the strides that say something."""
    told = [stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if size > 1]
    return tuple(tensor.shape), tensor.dtype, told if tensor.numel() else []
