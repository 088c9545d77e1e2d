"""The formats of quantised numbers: their dtypes in torch_npu, their limits, and how numbers are rounded to them.

torch_npu names a format by a number: those of PyTorch's dtypes, or 256 plus that of CANN, as torch_npu.hifloat8.
Formats of 4 bits are packed: two in a byte (uint8), or eight in an int32, and the first is in the lowest bits.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from descend.npu.composed.refusal import refuse


@dataclass(frozen=True)
class Format:
    """A format of quantised numbers."""

    name: str
    dtype: torch.dtype
    """That of the tensors that hold it."""
    largest: float
    exponent: int = 0
    """That of the largest number."""
    packed: int = 1
    """How many numbers an element of such a tensor holds."""

    @property
    def is_integer(self) -> bool:
        """Whether it holds integers."""
        return self.name.startswith(("int", "uint"))


E4M3 = Format("float8_e4m3fn", torch.float8_e4m3fn, 448.0, 8)
E5M2 = Format("float8_e5m2", torch.float8_e5m2, 57344.0, 15)
HIF8 = Format("hifloat8", torch.uint8, 32768.0, 15)
E2M1 = Format("float4_e2m1fn_x2", torch.uint8, 6.0, 2, 2)
E1M2 = Format("float4_e1m2fn_x2", torch.uint8, 1.75, 0, 2)
E8M0 = Format("float8_e8m0fnu", torch.uint8, math.ldexp(1.0, 127))
INT8 = Format("int8", torch.int8, 127.0)
UINT8 = Format("uint8", torch.uint8, 255.0)
INT32 = Format("int32", torch.int32, 2147483647.0)
INT4_IN_INT32 = Format("int4", torch.int32, 7.0, packed=8)
INT4 = Format("int4", torch.uint8, 7.0, packed=2)

NUMBERS = {
    0: UINT8, 1: INT8, 3: INT32, 12: INT8, 13: UINT8, 14: INT32, 16: INT4_IN_INT32, 23: E5M2, 24: E4M3, 44: E8M0,
    45: E2M1, 258: INT8, 259: INT32, 260: UINT8, 285: INT4, 290: HIF8, 291: E5M2, 292: E4M3, 293: E8M0, 296: E2M1,
    297: E1M2,
}  # fmt: skip
"""The formats by the numbers of PyTorch's dtypes and of torch_npu's."""
_DTYPES = {
    torch.uint8: UINT8, torch.int8: INT8, torch.int32: INT32, torch.qint8: INT8, torch.quint8: UINT8,
    torch.qint32: INT32, torch.quint4x2: INT4_IN_INT32, torch.float8_e5m2: E5M2, torch.float8_e4m3fn: E4M3,
    torch.float8_e8m0fnu: E8M0, torch.float4_e2m1fn_x2: E2M1,
}  # fmt: skip
# The numbers of floating dtypes in PyTorch, and in torch_npu.
_FLOATS = {5: torch.float16, 6: torch.float32, 15: torch.bfloat16}
_FLOATS |= {257: torch.float16, 256: torch.float32, 283: torch.bfloat16}
Number = int | torch.dtype | None


def format_of(operator: str, name: str, number: Number, served: Sequence[Format]) -> Format:
    """The format that a parameter names, which must be one of ``served``."""
    found = _DTYPES.get(number) if isinstance(number, torch.dtype) else NUMBERS.get(-1 if number is None else number)
    if found not in served:
        names = ", ".join(dict.fromkeys(each.name for each in served))
        refuse(operator, name, number if found is None else found.name, f"must be one of {names}")
    assert found is not None
    return found


def float_dtype(operator: str, name: str, number: Number, more: dict[int, torch.dtype] | None = None) -> torch.dtype:
    """The dtype of PyTorch that a parameter names: float16, bfloat16, float32, or one of ``more``."""
    numbers = {**_FLOATS, **(more or {})}
    wanted = number if isinstance(number, torch.dtype) else numbers.get(-1 if number is None else number)
    if wanted not in numbers.values():
        names = ", ".join(dict.fromkeys(str(dtype).removeprefix("torch.") for dtype in numbers.values()))
        refuse(operator, name, number, f"must be one of {names}")
    assert wanted is not None
    return wanted


# --- rounding ---------------------------------------------------------------------------------------------------------


def rounded(x: Tensor, to: Format, mode: str = "rint") -> Tensor:
    """float32 numbers in a format, one in an element. What is too large becomes the largest number; NaN becomes 0.

    ``mode``: "rint" takes the even one of two that are equally near, "round" the larger one, "floor" the lower one.
    hifloat8 has always "round".
    """
    x = torch.nan_to_num(x, nan=0.0, posinf=math.inf, neginf=-math.inf)
    if to.is_integer:
        least = {"uint8": 0.0, "int32": -2147483648.0}.get(to.name, -to.largest - 1)
        # float32 has not the largest int32.
        whole = x.double().round() if to is INT32 else x.round()
        codes = whole.clamp(least, to.largest)
        return codes.to(torch.int8 if to.packed > 1 else to.dtype)
    x = x.clamp(-to.largest, to.largest)
    if to.dtype.is_floating_point:
        return x.to(to.dtype)
    return _coded(x, to, mode)


def _coded(x: Tensor, to: Format, mode: str) -> Tensor:
    """The codes of a format that PyTorch does not have, by a search in its table."""
    magnitudes, codes = _table(to)
    size = x.abs().contiguous()
    if mode == "floor":
        below = torch.bucketize(size, magnitudes, right=True) - 1
        above = torch.bucketize(size, magnitudes)
        index = torch.where(x.signbit(), above, below)
    else:
        middles = (magnitudes[:-1] + magnitudes[1:]) / 2
        index = torch.bucketize(size, middles, right=True)
        if mode == "rint" and to is not HIF8:
            is_between = (index > 0) & (size == middles[(index - 1).clamp(min=0)])
            index = index - (is_between & (index % 2 == 1)).long()
    sign = torch.where(x.signbit(), 0x80 if to is HIF8 else 8, 0).to(torch.uint8)
    result = codes[index]
    # hifloat8 has no negative zero: its code is NaN's.
    return torch.where(result == 0, result, result | sign) if to is HIF8 else result | sign


@functools.cache
def _table(to: Format) -> tuple[Tensor, Tensor]:
    """The numbers of a format from 0 up, and their codes."""
    codes = [code for code in range(128 if to is HIF8 else 8) if math.isfinite(_value(to, code))]
    codes.sort(key=lambda code: _value(to, code))
    numbers = torch.tensor([_value(to, code) for code in codes], dtype=torch.float32)
    return numbers, torch.tensor(codes, dtype=torch.uint8)


def _value(to: Format, code: int) -> float:
    """The number of a code without its sign."""
    if to is E2M1:
        exponent, fraction = code >> 1, code & 1
        return math.ldexp(2 + fraction, exponent - 2) if exponent else fraction / 2
    if to is E1M2:
        return code / 4
    return _hifloat8(code)


def _hifloat8(code: int) -> float:
    """The number of a code of hifloat8 without its sign.

    The first bits tell how many bits the exponent has. The others are the fraction's: the more of one, the fewer of the
    other.
    """
    for length, prefix, bits in ((2, 0b11, 4), (2, 0b10, 3), (2, 0b01, 2), (3, 0b001, 1), (4, 0b0001, 0)):
        rest = 7 - length
        if code >> rest == prefix:
            return _in_fields(code, rest, bits)
    return math.ldexp(1.0, code - 23) if code else 0.0


def _in_fields(code: int, rest: int, bits: int) -> float:
    """The number of the last ``rest`` bits: ``bits`` of the exponent, and the fraction."""
    field = (code >> (rest - bits)) & ((1 << bits) - 1)
    fraction_bits = rest - bits
    fraction = code & ((1 << fraction_bits) - 1)
    exponent = 0
    if bits:
        # A sign, and a magnitude whose first bit is 1 and not stored.
        magnitude = (1 << (bits - 1)) | (field & ((1 << (bits - 1)) - 1))
        exponent = -magnitude if field >> (bits - 1) else magnitude
    if exponent == 15 and fraction == 1:
        return math.inf
    return math.ldexp(1 + fraction / (1 << fraction_bits), exponent)


def cast(x: Tensor, to: Format) -> Tensor:
    """Floating numbers in a format of 8 or 4 bits, packed. Where the format has infinities and NaN, they stay."""
    if to.dtype.is_floating_point:
        return x.to(to.dtype)
    codes = rounded(x.float(), to)
    if to is HIF8:
        codes = torch.where(x.isinf(), torch.where(x < 0, _INFINITY | 0x80, _INFINITY).to(torch.uint8), codes)
        codes = torch.where(x.isnan(), 0x80, codes)
    return packed(codes, to)


def scaled_to_fit(
    x: Tensor, to: Format, dims: int | tuple[int, ...] = -1, largest: float | None = None
) -> tuple[Tensor, Tensor]:
    """x / scale in a format, packed, and scale = max |x| / ``largest`` along ``dims``, which have size 1 in it.

    ``largest`` is by default the format's largest number. Where all x are 0, the scale is 0, and x / scale becomes 0.
    """
    scale = x.abs().amax(dims, keepdim=True) / (largest or to.largest)
    return packed(rounded(x / scale, to), to), scale


_INFINITY = 0x6F
"""The code of infinity in hifloat8."""


# --- back to float32, and packing -------------------------------------------------------------------------------------


def as_float(codes: Tensor, held: Format) -> Tensor:
    """Numbers of a format, one in an element, in float32."""
    if held.dtype.is_floating_point or held.is_integer:
        return codes.float()
    return _values(held)[codes.long()]


@functools.cache
def _values(held: Format) -> Tensor:
    """The numbers of all codes."""
    if held is E8M0:
        return torch.tensor([*(math.ldexp(1.0, code - 127) for code in range(255)), math.nan], dtype=torch.float32)
    if held is HIF8:
        positive = [_hifloat8(code) for code in range(128)]
        return torch.tensor([*positive, math.nan, *(-number for number in positive[1:])], dtype=torch.float32)
    positive = [_value(held, code) for code in range(8)]
    return torch.tensor([*positive, *(-number for number in positive)] * 16, dtype=torch.float32)


def packed(codes: Tensor, to: Format) -> Tensor:
    """Codes with one in an element, several in each along the last dimension."""
    if to.packed == 1:
        return codes
    parts = codes.unflatten(-1, (-1, to.packed)).to(torch.int32) & 15
    shifts = torch.arange(to.packed, dtype=torch.int32) * 4
    joined = (parts << shifts).sum(-1)
    return joined.to(torch.uint8) if to.dtype == torch.uint8 else _as_int32(joined)


def _as_int32(joined: Tensor) -> Tensor:
    return torch.where(joined >= 2**31, joined - 2**32, joined).to(torch.int32)


def unpacked(tensor: Tensor, held: Format, dim: int = -1) -> Tensor:
    """The codes of a packed tensor, one in an element, along ``dim``. Those of int4 are int8."""
    if held.packed == 1:
        return tensor
    whole = tensor.movedim(dim, -1)
    if held.packed == 2:
        whole = whole.contiguous().view(torch.uint8)
    shifts = torch.arange(held.packed, dtype=torch.int32) * 4
    codes = ((whole.to(torch.int32).unsqueeze(-1) >> shifts) & 15).flatten(-2)
    numbers = torch.where(codes > 7, codes - 16, codes).to(torch.int8) if held.is_integer else codes.to(torch.uint8)
    return numbers.movedim(-1, dim)
