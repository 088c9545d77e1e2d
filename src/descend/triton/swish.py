"""Swish, z * sigmoid(s * z), and its slope: no difference of nearly equal numbers, no large exp, no inf * 0."""

import triton
import triton.language as tl

from descend.triton.functions import exp_of_negative


@triton.jit
def bounded(u, WIDE: tl.constexpr):
    """u within the bounds beyond which its sigmoid is 0 or 1, whatever it is multiplied by; a NaN stays."""
    most: tl.constexpr = 750.0 if tl.float64 == WIDE else 128.0
    u = tl.where(u > most, most, u)
    return tl.where(u < -most, -most, u)


@triton.jit
def swish(z, scale, WIDE: tl.constexpr):
    """z * sigmoid(scale * z): 0 where the sigmoid is, even where z has overflowed."""
    u = bounded(z * scale, WIDE)
    e = exp_of_negative(-tl.abs(u), WIDE)
    factor = tl.where(u < 0, e, 1.0)
    return tl.where(factor == 0, 0.0, z * factor) / (1.0 + e)


@triton.jit
def slope_of_swish(z, scale, WIDE: tl.constexpr):
    """sig * (1 + u * (1 - sig)) with sig = sigmoid(u), u = scale * z."""
    u = bounded(z * scale, WIDE)
    # The sigmoids of |u| and -|u| are 1 / (1 + e) and e / (1 + e), both to the last bits.
    e = exp_of_negative(-tl.abs(u), WIDE)
    larger = 1.0 / (1.0 + e)
    smaller = e * larger
    return tl.where(u < 0, smaller, larger) + u * (smaller * larger)


@triton.jit
def sigmoid(u, WIDE: tl.constexpr):
    """1 / (1 + exp(-u)), to the last bits."""
    u = bounded(u, WIDE)
    e = exp_of_negative(-tl.abs(u), WIDE)
    return tl.where(u < 0, e, 1.0) / (1.0 + e)
