"""Which positions a softmax masks: a mask that broadcasts, read where it lies, or what lies above the diagonal."""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from descend.triton.work import Work

NONE, GIVEN, TRIANGLE = 0, 1, 2

_WALKED = 3
"""Dimensions of rows that a kernel walks; a mask that needs more is copied."""


@triton.jit
def masked(mask_ptr, r, c, inside, size1, size2, stride0, stride1, stride2, column_stride, KIND: tl.constexpr):
    """Whether each element of the tile [r, c] is masked. Row r is [i, j, k] in sizes [.., size1, size2]."""
    if KIND == 2:  # TRIANGLE
        return c[None, :] > (r % size2)[:, None]
    else:
        rest = r // size2
        row = rest // size1 * stride0 + rest % size1 * stride1 + r % size2 * stride2
        at = row[:, None] + c.to(tl.int64)[None, :] * column_stride
        return tl.load(mask_ptr + at, mask=inside, other=0) != 0


@dataclass(frozen=True)
class Mask:
    """What a kernel needs to know of it: bytes, sizes and strides of the dimensions of rows, how to read it."""

    data: Tensor | None
    kind: int
    arguments: tuple[int, ...]
    """size1, size2, stride0, stride1, stride2, column_stride."""

    @staticmethod
    def of(work: Work, mask: Tensor | None, shape: tuple[int, ...], triangle: bool) -> "Mask":
        """The mask of a softmax over the last dimension of ``shape``."""
        if triangle:
            return Mask(None, TRIANGLE, (1, shape[-2], 0, 0, 0, 0))
        if mask is None:
            return Mask(None, NONE, (1, 1, 0, 0, 0, 0))
        spread = mask.expand(shape)
        walked = _walk(spread)
        if len(walked) > _WALKED:
            spread = work.packed(spread)
            walked = _walk(spread)
        walked = [(1, 0)] * (_WALKED - len(walked)) + walked
        (_, stride0), (size1, stride1), (size2, stride2) = walked
        return Mask(spread.view(torch.uint8), GIVEN, (size1, size2, stride0, stride1, stride2, spread.stride(-1)))


def _walk(mask: Tensor) -> list[tuple[int, int]]:
    """Sizes and strides of the dimensions that count rows; neighbours that are walked as one are one."""
    walked: list[tuple[int, int]] = []
    for size, stride in zip(mask.shape[:-1], mask.stride()[:-1], strict=True):
        if size == 1:
            continue
        if walked and walked[-1][1] == size * stride:
            walked[-1] = walked[-1][0] * size, stride
        else:
            walked.append((size, stride))
    return walked
