"""npu_hans_encode, npu_hans_decode: floating numbers with their exponents apart, as MindSpeed keeps activations.

Each number is taken apart into the byte of its exponent, of float16 the first 8 bits after the sign, and the rest,
which mantissa gets. The exponents fill fixed, and what does not fit there goes to var. A processor codes them, so it
needs less of var. Here they are stored as they are: what is decoded has the same bits.

Documents: op-plugin's test_hans_compress.py.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from descend.npu.composed.arithmetic import check_dtype
from descend.npu.composed.refusal import refuse

BITS = {torch.float32: torch.int32, torch.float16: torch.int16, torch.bfloat16: torch.int16}


def npu_hans_encode_out(
    input: Tensor, statistic: bool = False, reshuff: bool = False, *, out: Sequence[Tensor]
) -> tuple[Tensor, ...]:
    """Takes ``input`` apart, into ``out``: pdf, int32 [256], and mantissa, fixed and var, in the dtype of ``input``.

    mantissa must have a byte less than input for each number; fixed and var together a byte for each. With
    ``statistic`` pdf gets how often each exponent occurs, else it stays as it is. ``reshuff`` changes nothing here.
    """
    operator = "npu_hans_encode"
    check_dtype(operator, "input", input, *BITS)
    if len(out) != 4:
        refuse(operator, "out", f"{len(out)} tensors", "must be pdf, mantissa, fixed and var")
    pdf, mantissa, fixed, var = out
    _check_pdf(operator, pdf)
    _check_places(operator, "pdf", pdf)
    rest_bytes, exponent_bytes = _bytes(operator, input, mantissa=mantissa), _bytes(operator, input, fixed=fixed)
    more_bytes = _bytes(operator, input, var=var)
    _check_room(operator, input, rest_bytes, exponent_bytes, more_bytes)
    exponents, rest = _apart(input.contiguous().view(-1))
    if statistic:
        pdf.copy_(torch.bincount(exponents.int(), minlength=256))
    rest_bytes[: rest.numel()] = rest
    first = min(exponents.numel(), exponent_bytes.numel())
    exponent_bytes[:first] = exponents[:first]
    more_bytes[: exponents.numel() - first] = exponents[first:]
    return pdf, mantissa, fixed, var


def npu_hans_decode_out(
    mantissa: Tensor, fixed: Tensor, var: Tensor, pdf: Tensor, reshuff: bool = False, *, out: Tensor
) -> Tensor:
    """The numbers that `npu_hans_encode_out` took apart, in ``out``."""
    operator = "npu_hans_decode"
    check_dtype(operator, "out", out, *BITS)
    _check_places(operator, "out", out)
    _check_pdf(operator, pdf)
    rest, first, more = (
        _bytes(operator, out, **{name: tensor})
        for name, tensor in (("mantissa", mantissa), ("fixed", fixed), ("var", var))
    )
    _check_room(operator, out, rest, first, more)
    count = out.numel()
    exponents = torch.cat((first[:count], more[: max(0, count - first.numel())]))
    return out.copy_(_joined(exponents, rest[: count * (out.element_size() - 1)], out.dtype).view(out.shape))


# --- parts ------------------------------------------------------------------------------------------------------------


def _apart(numbers: Tensor) -> tuple[Tensor, Tensor]:
    """The bytes of exponents, and those of the rest."""
    bits = numbers.view(BITS[numbers.dtype])
    # Turned by one bit the sign is the lowest bit, and the exponent begins where the highest byte does.
    parts = (bits << 1 | (bits < 0)).view(torch.uint8).view(-1, numbers.element_size())
    return parts[:, -1], parts[:, :-1].reshape(-1)


def _joined(exponents: Tensor, rest: Tensor, dtype: torch.dtype) -> Tensor:
    """The numbers that `_apart` took apart."""
    size = dtype.itemsize
    turned = torch.cat((rest.view(-1, size - 1), exponents.unsqueeze(-1)), -1).view(-1).view(BITS[dtype])
    without_sign = turned >> 1 & torch.iinfo(BITS[dtype]).max
    return (without_sign | turned << 8 * size - 1).view(dtype)


def _check_pdf(operator: str, pdf: Tensor) -> None:
    check_dtype(operator, "pdf", pdf, torch.int32)
    if list(pdf.shape) != [256]:
        refuse(operator, "pdf", f"of shape {list(pdf.shape)}", "must have 256 numbers")


def _check_places(operator: str, name: str, tensor: Tensor) -> None:
    if any(size > 1 and not stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True)):
        refuse(operator, name, "expanded", "must have a place in memory for each number")


def _bytes(operator: str, numbers: Tensor, **tensors: Tensor) -> Tensor:
    """The bytes of a tensor, which must have the dtype of ``numbers``."""
    ((name, tensor),) = tensors.items()
    check_dtype(operator, name, tensor, numbers.dtype)
    if not tensor.is_contiguous():
        refuse(operator, name, "not contiguous", "must be contiguous")
    return tensor.as_strided((tensor.numel(),), (1,)).view(torch.uint8)  # one number may have any stride


def _check_room(operator: str, numbers: Tensor, rest: Tensor, fixed: Tensor, var: Tensor) -> None:
    """Refuses bytes that are too few for these numbers."""
    count, size = numbers.numel(), numbers.element_size()
    if rest.numel() < count * (size - 1):
        rule = f"must have {count * (size - 1)}, {size - 1} for each number"
        refuse(operator, "mantissa", f"{rest.numel()} bytes", rule)
    if fixed.numel() + var.numel() < count:
        given = f"{fixed.numel()} and {var.numel()} bytes"
        refuse(operator, "fixed and var", given, f"must have {count} together, 1 for each number")
