"""The casts of torch_npu's class HiFloat8Tensor, in which MindSpeed keeps the states of an optimizer in hifloat8.

torch_npu's own casts call aclnnCast, past PyTorch's dispatcher. Those here call npu_dtype_cast, an operator of the
device, so that graphs and the report have them. In all of them hifloat8 is its codes, a tensor of uint8. Another format
is refused, with a RuntimeError.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import Tensor

from descend.npu.composed.arithmetic import check_dtype, check_shape
from descend.npu.composed.quantised.formats import HIF8, Number, float_dtype, format_of

HIFLOAT8 = 290
"""The number of the format, torch_npu.hifloat8."""


def install() -> None:
    """Puts these casts in the place of torch_npu's. A torch_npu without such casts stays as it is."""
    casts: Any = getattr(sys.modules["torch_npu"]._C, "_cd", None)
    for function in (cast_to_fp8, cast_to_fp8_noalloc, cast_from_fp8):
        if hasattr(casts, function.__name__):
            setattr(casts, function.__name__, function)


def cast_to_fp8(input: Tensor, otype: Number) -> Tensor:
    """The hifloat8 numbers nearest to ``input``, as codes. Of two that are equally near the larger one is taken.

    Beyond the largest number it is that one. Infinities and NaN stay what they are.
    """
    format_of("cast_to_fp8", "otype", otype, (HIF8,))
    npu: Any = torch.ops.npu
    codes: Tensor = npu.npu_dtype_cast(input, HIFLOAT8)
    return codes


def cast_to_fp8_noalloc(input: Tensor, output: Tensor, otype: Number) -> None:
    """`cast_to_fp8` into ``output``."""
    operator = "cast_to_fp8_noalloc"
    check_dtype(operator, "output", output, torch.uint8)
    check_shape(operator, "output", output, input.shape, "input")
    output.copy_(cast_to_fp8(input, otype))


def cast_from_fp8(input: Tensor, itype: Number, otype: Number) -> Tensor:
    """The numbers of codes, exactly, in the dtype ``otype``: float32, float16 or bfloat16."""
    format_of("cast_from_fp8", "itype", itype, (HIF8,))
    to = float_dtype("cast_from_fp8", "otype", otype)
    npu: Any = torch.ops.npu
    numbers: Tensor = npu.npu_dtype_cast(input, to, HIFLOAT8)
    return numbers
