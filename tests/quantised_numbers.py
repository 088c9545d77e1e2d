"""Definitions of the formats of quantised numbers, written out, and of rounding to them, by search in float64."""

from __future__ import annotations

import itertools
import math
from typing import Any

import torch

Tensor = Any


def _floats(exponent_bits: int, fraction_bits: int, bias: int, codes: int) -> list[float]:
    """The numbers from 0 up of a format with subnormal numbers, of which there are so many."""
    numbers = []
    for code in range(codes):
        exponent, fraction = divmod(code, 1 << fraction_bits)
        if exponent == 0:
            numbers.append(math.ldexp(fraction, 1 - bias - fraction_bits))
        else:
            numbers.append(math.ldexp((1 << fraction_bits) + fraction, exponent - bias - fraction_bits))
    assert len(numbers) <= 1 << (exponent_bits + fraction_bits)
    return numbers


def _hifloat8() -> list[float]:
    """The further an exponent is from 0, the fewer bits has the fraction."""
    numbers = [0.0, *(math.ldexp(1.0, exponent) for exponent in range(-22, -15))]
    for exponent in range(-15, 16):
        bits = 3 if abs(exponent) < 4 else 2 if abs(exponent) < 8 else 1
        numbers += [math.ldexp(1 + i / (1 << bits), exponent) for i in range(1 << bits)]
    return [number for number in sorted(numbers) if number <= 2.0**15]


NUMBERS = {
    "e4m3": _floats(4, 3, 7, 127),
    "e5m2": _floats(5, 2, 15, 124),
    "e2m1": [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0],
    "e1m2": [i / 4 for i in range(8)],
    "hif8": _hifloat8(),
    "int8": [float(i) for i in range(128)],
    "int4": [float(i) for i in range(8)],
}
DST_TYPES = {"e4m3": 24, "e5m2": 23, "e2m1": 296, "e1m2": 297, "hif8": 290, "int8": 1, "int4": 16}
EXPONENTS = {"e4m3": 8, "e5m2": 15, "e2m1": 2, "e1m2": 0}


def nearest(value: float, name: str, mode: str = "rint") -> float:
    """A number in a format. NaN becomes 0, what is too large the largest number; an integer may be one lower."""
    if math.isnan(value):
        return 0.0
    numbers, size = NUMBERS[name], abs(value)
    if mode == "floor":
        signed = sorted({*numbers, *(-number for number in numbers)})
        below = [number for number in signed if number <= value]
        return below[-1] if below else signed[0]
    if name.startswith("int"):
        return float(min(max(round(max(min(value, 1e6), -1e6)), -len(numbers)), len(numbers) - 1))
    if size >= numbers[-1]:
        return math.copysign(numbers[-1], value)
    above = next(i for i, number in enumerate(numbers) if number >= size)
    below = max(above - 1, 0)
    low, high = size - numbers[below], numbers[above] - size
    if low == high:
        # Codes count up with the numbers, so the even one of two has the even place. hifloat8 takes the larger.
        is_larger = mode == "round" or name == "hif8" or above % 2 == 0
        return math.copysign(numbers[above if is_larger else below], value)
    return math.copysign(numbers[below if low < high else above], value)


def rounded(x: Tensor, name: str, mode: str = "rint") -> Tensor:
    """`nearest` of each number, in float64."""
    return torch.tensor([nearest(v, name, mode) for v in x.double().flatten().tolist()]).double().reshape(x.shape)


def mx_scale(
    values: list[float], name: str, alg: int = 0, largest: float = 0.0, low: float = 0.0, cut: bool = False
) -> int:
    """The byte of the scale of a block. ``cut``: for alg 2 the largest number is cut off to bfloat16, not rounded."""
    if any(not math.isfinite(v) for v in values):
        return 255
    most = max(abs(v) for v in values)
    if alg == 2 and largest in (0.0, 6.0, 7.0):
        wide = torch.tensor(most, dtype=torch.float32)
        most = (wide.view(torch.int32) & -65536).view(torch.float32).item() if cut else wide.bfloat16().item()
    if alg == 1 or (alg == 2 and largest not in (0.0, 6.0, 7.0)):
        most = max(most, low)
        ratio = (torch.tensor(most, dtype=torch.float32) / (largest or NUMBERS[name][-1])).item()
        if ratio == 0:
            return 0
        # The least power of two that is not below, but for the smallest numbers, which are cut off at 2^-127.
        fraction, exponent = math.frexp(ratio)
        byte = exponent - 1 + (fraction > 0.5) + 127
        if ratio < 2.0**-126:
            byte = 1 if alg == 1 and ratio > 2.0**-127 else 0
        return min(max(byte, 0), 254)
    if most == 0 or most < 2.0**-126:
        return 0
    fraction, exponent = math.frexp(most)
    byte = exponent - 1 + 127 - EXPONENTS[name]
    if alg == 2:
        byte += 2 * fraction > (1.75 if largest == 7.0 else 1.5)
    return max(byte, 0)


def poisoned(x: Tensor, name: str) -> Tensor:
    """Numbers with those that are special: ties, powers of two, the smallest ones, infinities and NaN."""
    flat = x.clone().flatten()
    numbers = NUMBERS[name]
    middles = [(a + b) / 2 for a, b in itertools.pairwise(numbers)]
    ties = torch.tensor([*numbers, *middles], dtype=torch.float64).to(x.dtype)
    count = min(len(ties), len(flat) // 2)
    flat[:count] = ties[torch.randperm(len(ties))[:count]] * torch.tensor([1.0, -1.0])[torch.randint(2, (count,))].to(
        x.dtype
    )
    special = [math.nan, math.inf, -math.inf, 0.0, -0.0, torch.finfo(x.dtype).smallest_normal, torch.finfo(x.dtype).max]
    places = torch.randperm(len(flat))[: len(special)]
    flat[places] = torch.tensor(special[: len(places)], dtype=torch.float64).to(x.dtype)
    return flat.view(x.shape)
