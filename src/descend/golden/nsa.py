"""Golden values of the compression of native sparse attention."""

from __future__ import annotations

from typing import Any

import numpy.typing as npt

from descend import reference
from descend.golden._results import Array, Results, check_one_of, integers, rounded


def nsa_compress_golden(
    input: Array,
    weight: Array,
    actSeqLenOptional: npt.ArrayLike | None = None,
    *,
    layoutOptional: str = "TND",
    compressBlockSize: int,
    compressStride: int,
    actSeqLenType: int = 0,
    **given: Any,
) -> Results:
    """``output`` of NsaCompress; shapes and formula as `descend.nsa_compress`."""
    windows = _windows(actSeqLenOptional, compressBlockSize, compressStride, actSeqLenType, layoutOptional)
    return rounded([reference.nsa_compress(input, weight, **windows)], [input.dtype], given)


def nsa_compress_grad_golden(
    outputGrad: Array,
    input: Array,
    weight: Array,
    actSeqLenOptional: npt.ArrayLike | None = None,
    *,
    compressBlockSize: int,
    compressStride: int,
    actSeqLenType: int = 0,
    layoutOptional: str = "TND",
    **given: Any,
) -> Results:
    """``inputGrad, weightGrad`` of NsaCompressGrad; shapes and formula as `descend.nsa_compress_grad`."""
    windows = _windows(actSeqLenOptional, compressBlockSize, compressStride, actSeqLenType, layoutOptional)
    return rounded(
        reference.nsa_compress_grad(outputGrad, input, weight, **windows), [input.dtype, weight.dtype], given
    )


def _windows(ends: npt.ArrayLike | None, width: int, stride: int, kind: int, layout: str) -> dict[str, Any]:
    """NSA compression's sequences and attributes, by their names in Python."""
    check_one_of("actSeqLenType", kind, [0, 1])
    check_one_of("layoutOptional", layout, ["TND"])
    return {
        "act_seq_len": None if ends is None else integers(ends),
        "compress_block_size": width,
        "compress_stride": stride,
        "act_seq_len_type": kind,
        "layout": layout,
    }
