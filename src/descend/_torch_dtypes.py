"""PyTorch's dtypes by the documents' names."""

from __future__ import annotations

import torch

DTYPES = {
    torch.float32: "FLOAT",
    torch.float16: "FLOAT16",
    torch.bfloat16: "BFLOAT16",
    torch.float64: "DOUBLE",
    torch.bool: "BOOL",
    torch.uint8: "UINT8",
    torch.int8: "INT8",
    torch.int16: "INT16",
    torch.int32: "INT32",
    torch.int64: "INT64",
    torch.complex64: "COMPLEX64",
    torch.complex128: "COMPLEX128",
}
"""What the engine takes to check; another dtype is no operator's."""
