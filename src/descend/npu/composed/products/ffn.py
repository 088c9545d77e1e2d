"""npu_ffn: two matrix products with an activation between them, also one pair for each expert, also quantised.

    y = act(x @ w1 + b1) @ w2 + b2
    weights in int8, x in 16 bits:  w stands for (w + antiquant_offset) * antiquant_scale
    all in int8:  y = (round(act((x @ w1 + b1) * deq_scale1) * scale + offset) @ w2 + b2) * deq_scale2

Documents: torch_npu.npu_ffn.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from descend.npu.composed.arithmetic import check_alike, check_choice, check_dtype, check_float, check_shape, gelu, wide
from descend.npu.composed.layers.activations import FAST
from descend.npu.composed.quantised.groups import group_ends, spans
from descend.npu.composed.quantised.scaled_products import from_params
from descend.npu.composed.refusal import refuse

OPERATOR = "npu_ffn"
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": functional.relu,
    "silu": functional.silu,
    "gelu": lambda h: gelu(h, "tanh"),
    "fastgelu": lambda h: h * (h * FAST).sigmoid(),
}


class _Layer(NamedTuple):
    """One of the two products: tensors with a dimension for experts, [E, ...]."""

    number: int
    weight: Tensor
    bias: Tensor | None
    deq_scale: Tensor | None
    antiquant_scale: Tensor | None
    antiquant_offset: Tensor | None

    def of(self, x: Tensor, expert: int) -> Tensor:
        """The product for the rows of an expert, in float32; of integers it is exact until it is scaled."""
        bias = 0 if self.bias is None else self.bias[expert]
        weight = self.weight[expert]
        if self.deq_scale is not None:
            exact = x.double() @ weight.double() + bias
            return (exact * self.deq_scale[expert].double()).float()
        held = weight.to(wide(x).dtype)
        if self.antiquant_scale is not None:
            offset = 0 if self.antiquant_offset is None else self.antiquant_offset[expert].float()
            held = (held + offset) * self.antiquant_scale[expert].float()
        return wide(x) @ held + bias


def npu_ffn(
    x: Tensor,
    weight1: Tensor,
    weight2: Tensor,
    activation: str,
    *,
    expert_tokens: Sequence[int] | None = None,
    expert_tokens_index: Sequence[int] | None = None,
    bias1: Tensor | None = None,
    bias2: Tensor | None = None,
    scale: Tensor | None = None,
    offset: Tensor | None = None,
    deq_scale1: Tensor | None = None,
    deq_scale2: Tensor | None = None,
    antiquant_scale1: Tensor | None = None,
    antiquant_scale2: Tensor | None = None,
    antiquant_offset1: Tensor | None = None,
    antiquant_offset2: Tensor | None = None,
    inner_precise: int | None = None,
    output_dtype: torch.dtype | None = None,
) -> Tensor:
    """[..., K1], as ``x``. ``weight1`` [K1, N1] and ``weight2`` [N1, K1] have a dimension more where there are experts.

    ``expert_tokens`` has each expert's number of rows, ``expert_tokens_index`` where its rows end. The result has the
    dtype of ``x``, or of int8 ``output_dtype``: float16 or bfloat16. ``inner_precise`` has no effect.
    """
    check_choice(OPERATOR, "activation", activation, *ACTIVATIONS)
    if x.dim() < 2:
        refuse(OPERATOR, "x", f"of shape {list(x.shape)}", "must have 2 dimensions at least")
    rows = x.reshape(-1, x.shape[-1])
    tokens = expert_tokens or expert_tokens_index
    ends = [len(rows)]
    if tokens:
        if expert_tokens and expert_tokens_index:
            refuse(OPERATOR, "expert_tokens_index", "given", "must be None beside expert_tokens")
        name = "expert_tokens" if expert_tokens else "expert_tokens_index"
        ends = group_ends(OPERATOR, name, torch.tensor(tokens), len(rows), sizes=bool(expert_tokens), whole=True)
    first = _layer(1, weight1, tokens, len(ends), bias1, deq_scale1, antiquant_scale1, antiquant_offset1)
    second = _layer(2, weight2, tokens, len(ends), bias2, deq_scale2, antiquant_scale2, antiquant_offset2)
    inner = first.weight.shape[2]
    for layer, shape in ((first, [x.shape[-1], inner]), (second, [inner, x.shape[-1]])):
        check_shape(OPERATOR, f"weight{layer.number}", layer.weight[0], shape, "x, and the other weight")
    quantised = x.dtype is torch.int8
    _check_dtypes(x, (first, second), quantised)
    if quantised != (scale is not None):
        refuse(OPERATOR, "scale", "None" if quantised else "given", "must be given where x is int8, and only there")
    check_choice(OPERATOR, "output_dtype", output_dtype, None, torch.float16, torch.bfloat16)
    parts = []
    for expert, (begin, end) in enumerate(spans(ends)):
        hidden = ACTIVATIONS[activation](first.of(rows[begin:end], expert))
        if scale is not None:
            hidden = _rounded(hidden, scale, offset, expert, len(ends))
        parts.append(second.of(hidden, expert))
    y = torch.cat(parts).view(x.shape)
    return y.to((output_dtype or torch.float16) if quantised else x.dtype)


def _layer(number: int, weight: Tensor, tokens: Sequence[int] | None, experts: int, *numbers: Tensor | None) -> _Layer:
    """A product's tensors; where there are no experts they get a dimension for one."""
    if weight.dim() != (3 if tokens else 2) or (tokens and len(weight) != experts):
        rule = f"must have {experts} matrices, one for each expert" if tokens else "must be a matrix"
        refuse(OPERATOR, f"weight{number}", f"of shape {list(weight.shape)}", rule)
    columns = weight.shape[-1]
    shape = [experts, columns] if tokens else [columns]
    names = ("bias", "deq_scale", "antiquant_scale", "antiquant_offset")
    for name, each in zip(names, numbers, strict=True):
        if each is not None:
            check_shape(OPERATOR, f"{name}{number}", each, shape, "the columns of its weight")
    bias, deq_scale, *antiquant = (None if each is None else each.view(experts, columns) for each in numbers)
    if deq_scale is not None:
        check_dtype(OPERATOR, f"deq_scale{number}", deq_scale, torch.int64, torch.float32, torch.bfloat16)
        deq_scale = from_params(deq_scale)[0] if deq_scale.dtype is torch.int64 else deq_scale
    return _Layer(number, weight.view(experts, *weight.shape[-2:]), bias, deq_scale, *antiquant)


def _check_dtypes(x: Tensor, layers: Sequence[_Layer], quantised: bool) -> None:
    if not quantised:
        check_float(OPERATOR, x=x)
    for layer in layers:
        of_numbers = layer.antiquant_scale is None and not quantised
        name = f"weight{layer.number}"
        if of_numbers:
            check_alike(OPERATOR, "x", x, **{name: layer.weight})
        else:
            check_dtype(OPERATOR, name, layer.weight, torch.int8)
        if quantised != (layer.deq_scale is not None):
            got = "None" if quantised else "given"
            refuse(OPERATOR, f"deq_scale{layer.number}", got, "must be given where x is int8, and only there")
        if quantised and (layer.antiquant_scale is not None or layer.antiquant_offset is not None):
            refuse(OPERATOR, f"antiquant_scale{layer.number}", "given", "must be None where x is int8")
        if layer.antiquant_offset is not None and layer.antiquant_scale is None:
            refuse(OPERATOR, f"antiquant_scale{layer.number}", "None", "must be given beside its offset")


def _rounded(hidden: Tensor, scale: Tensor, offset: Tensor | None, expert: int, experts: int) -> Tensor:
    """What lies between the products, in int8."""
    columns = hidden.shape[1]
    if scale.numel() not in (experts, experts * columns):
        rule = f"must have {experts} or {experts * columns} numbers"
        refuse(OPERATOR, "scale", f"of shape {list(scale.shape)}", rule)
    if offset is not None and offset.numel() != experts:
        refuse(OPERATOR, "offset", f"of shape {list(offset.shape)}", f"must have {experts} numbers")
    by = scale.float().view(experts, -1)[expert]
    shift = 0 if offset is None else offset.float().view(experts)[expert]
    return (hidden * by + shift).round().clamp(-128, 127)
