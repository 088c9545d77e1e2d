"""Products of quantised matrices with a collective before or after, which an Ascend computes part by part (MC2).

    npu_all_gather_quant_mm       output = all_gather(input) @ x2, times the scales, + bias
    npu_quant_mm_reduce_scatter   output = reduce_scatter(input @ x2, times the scales, + bias)

Scales are those of `quant_matmul`. Those of MX and of blocks of rows are gathered like the rows; so are those of [M].
One number is that of all processes. Products and sums are in float32, and rounded once. Documents:
torch_npu.npu_all_gather_base_mm and npu_mm_reduce_scatter_base; aclnnAllGatherMatmulV2, MatmulReduceScatterV2.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from descend.npu.composed.products.communication import check_divides, numbers_of_all, process_group
from descend.npu.composed.quantised.formats import Number, float_dtype
from descend.npu.composed.quantised.quant_matmul import scaled
from descend.npu.composed.quantised.scaled_products import Factor, factor, is_mx, is_transposed
from descend.npu.composed.refusal import refuse, refuse_quantised


def npu_all_gather_quant_mm(
    input: Tensor,
    x2: Tensor,
    hcom: str,
    world_size: int,
    *,
    bias: Tensor | None = None,
    x1_scale: Tensor | None = None,
    x2_scale: Tensor | None = None,
    quant_scale: Tensor | None = None,
    block_size: int = 0,
    gather_index: int = 0,
    gather_output: bool = True,
    comm_turn: int = 0,
    group_sizes: Sequence[int] | None = None,
    amax_output: bool = False,
    y_dtype: Number = None,
    x1_dtype: Number = None,
    x2_dtype: Number = None,
    x1_scale_dtype: Number = None,
    x2_scale_dtype: Number = None,
    comm_mode: str | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """The product, the gathered rows, which without gather_output are an empty tensor, and an empty tensor."""
    operator = "npu_all_gather_quant_mm"
    if gather_index != 0:
        refuse(operator, "gather_index", gather_index, "must be 0")
    call = _Call(operator, input, x2, hcom, world_size, x1_scale, x2_scale, bias, y_dtype)
    call.check(x1_dtype, x2_dtype, x1_scale_dtype, x2_scale_dtype, group_sizes, quant_scale, block_size, amax_output)
    if call.left.held.packed > 1 and is_transposed(input):
        refuse(operator, "input", "transposed", f"must not be for {call.left.held.name}, which is packed")
    rows, left_scale = _gathered(input, call.group), call.left_scale
    if left_scale.numel() > 1:
        left_scale = _gathered(left_scale, call.group)
    left = factor(operator, "input", rows, x1_dtype)
    y = call.product(left, left_scale).to(call.to)
    nothing = input.new_empty(0, dtype=torch.float32)
    return y, rows if gather_output else input.new_empty(0), nothing


def npu_quant_mm_reduce_scatter(
    input: Tensor,
    x2: Tensor,
    hcom: str,
    world_size: int,
    *,
    reduce_op: str = "sum",
    bias: Tensor | None = None,
    x1_scale: Tensor | None = None,
    x2_scale: Tensor | None = None,
    quant_scale: Tensor | None = None,
    block_size: int = 0,
    comm_turn: int = 0,
    group_sizes: Sequence[int] | None = None,
    amax_output: bool = False,
    y_dtype: Number = None,
    x1_dtype: Number = None,
    x2_dtype: Number = None,
    x1_scale_dtype: Number = None,
    x2_scale_dtype: Number = None,
    comm_mode: str | None = None,
) -> tuple[Tensor, Tensor]:
    """This process's rows of the sum, and an empty tensor."""
    operator = "npu_quant_mm_reduce_scatter"
    if reduce_op != "sum":
        refuse(operator, "reduce_op", repr(reduce_op), "must be 'sum'")
    call = _Call(operator, input, x2, hcom, world_size, x1_scale, x2_scale, bias, y_dtype)
    call.check(x1_dtype, x2_dtype, x1_scale_dtype, x2_scale_dtype, group_sizes, quant_scale, block_size, amax_output)
    check_divides(operator, "input", call.left.numbers, 0, world_size)
    result = call.own.new_empty(call.own.shape[0] // world_size, call.own.shape[1])
    call.group._reduce_scatter_base(result, call.own.contiguous()).wait()
    return result.to(call.to), input.new_empty(0, dtype=torch.float32)


class _Call:
    """What both have in common. All processes must call with the same shapes and formats."""

    def __init__(
        self, operator: str, input: Tensor, x2: Tensor, hcom: str, size: int, x1_scale: Tensor | None,
        x2_scale: Tensor | None, bias: Tensor | None, y_dtype: Number,
    ) -> None:  # fmt: skip
        self.operator, self.group = operator, process_group(operator, hcom, size)
        self.input, self.x2, self.bias = input, x2, bias
        for name, scale in (("x1_scale", x1_scale), ("x2_scale", x2_scale)):
            if scale is None:
                refuse(operator, name, None, "must be given")
        assert x1_scale is not None
        assert x2_scale is not None
        self.left_scale, self.scale = x1_scale, x2_scale
        self.to = float_dtype(operator, "y_dtype", y_dtype)

    def check(
        self, x1_dtype: Number, x2_dtype: Number, x1_scale_dtype: Number, x2_scale_dtype: Number,
        group_sizes: Sequence[int] | None, quant_scale: Tensor | None, block_size: int, amax_output: bool,
    ) -> None:  # fmt: skip
        """Reads both factors, and computes the product of this process's own rows, which may be refused."""
        operator = self.operator
        refuse_quantised(operator, quant_scale=quant_scale, block_size=block_size or None)
        if amax_output:
            refuse(operator, "amax_output", True, "must be False")
        self.sizes = group_sizes
        self.left = factor(operator, "input", self.input, x1_dtype)
        self.right = factor(operator, "x2", self.x2, x2_dtype)
        if self.left.numbers.dim() != 2 or self.right.numbers.dim() != 2:
            refuse(operator, "input or x2", f"of {self.input.dim()} and {self.x2.dim()} dimensions", "must have 2 each")
        self.mx = is_mx(operator, self.left_scale, x1_scale_dtype) or is_mx(operator, self.scale, x2_scale_dtype)
        # Before others are told of it: a process that refused its call later would leave them waiting.
        self.own = self.product(self.left, self.left_scale)
        own = [*self.left.shape, *self.right.shape, *self.left_scale.shape, *self.scale.shape]
        own = [*own, self.input.element_size(), *[-1] * (12 - len(own))]
        every = numbers_of_all(own, self.group)
        for process, numbers in enumerate(every):
            if numbers != every[0]:
                got = f"of other shapes in process {process}, {list(self.left.shape)} here"
                refuse(operator, "input, x2 or a scale", got, "must be as in process 0")

    def product(self, left: Factor, left_scale: Tensor) -> Tensor:
        """In float32."""
        return scaled(
            self.operator, left, self.right, self.scale, left_scale, self.bias, torch.float32, self.mx, None, self.sizes
        )  # fmt: skip


def _gathered(rows: Tensor, group: Any) -> Tensor:
    """The rows of all processes. Bytes are sent, since gloo knows no float8."""
    own = rows.contiguous()
    sent = own.view(torch.uint8) if own.element_size() == 1 else own
    every = sent.new_empty(group.size() * sent.shape[0], *sent.shape[1:])
    group._allgather_base(every, sent).wait()
    return every.view(rows.dtype)
