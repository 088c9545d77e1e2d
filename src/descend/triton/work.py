"""What a launch works with: scratch memory, and the queue on which its kernels start.

The launch of an operator is written once and called with one of three:

- `Work`, of the functional form, takes scratch from PyTorch.
- `Rehearsal`, of phase 1, starts nothing and counts the scratch that the launch takes.
- `Placed`, of phase 2, takes the same scratch from the caller's workspace.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

_ALIGNMENT = 256
"""Alignment of scratch within a workspace, in bytes. PyTorch's allocator has the same."""


class Work:
    """Scratch from PyTorch; kernels start on the current stream of the device."""

    def __init__(self, device: torch.device, kept: dict[Any, Any] | None = None, product: str = "host") -> None:
        self.device = device
        self.product = product
        self.kept: dict[Any, Any] = {} if kept is None else kept
        """What a prepared call keeps from one run to the next."""

    def start(self, kernel: Any, programs: int, *args: Any, **form: Any) -> None:
        """Starts a kernel."""
        kernel[(programs,)](*args, **form)

    def empty(self, shape: Sequence[int], dtype: torch.dtype = torch.float64) -> Tensor:
        """A new tensor in scratch."""
        return torch.empty(tuple(shape), dtype=dtype, device=self.device)

    def packed(self, tensor: Tensor) -> Tensor:
        """The tensor itself if it is contiguous, else a contiguous copy in scratch."""
        return tensor if tensor.is_contiguous() else self.empty(tensor.shape, tensor.dtype).copy_(tensor)

    def vector(self, tensor: Tensor) -> Tensor:
        """The same as one dimension."""
        return self.packed(tensor).view(-1)

    def rows_of(self, tensor: Tensor, rows: int, columns: int) -> Tensor:
        """A tensor as [rows, columns]: a view if its rows are contiguous and evenly spaced, else a copy."""
        matrix = _matrix(tensor, rows, columns)
        return self.packed(tensor).view(rows, columns) if matrix is None else matrix

    def output(self, tensor: Tensor, rows: int, columns: int) -> "Output":
        """A tensor to be written as [rows, columns]."""
        matrix = _matrix(tensor, rows, columns)
        if matrix is not None:
            return Output(matrix)
        return Output(self.empty((rows, columns), tensor.dtype), tensor)


class Rehearsal(Work):
    """Counts the scratch that a launch takes, and starts nothing. Tensors have no memory (PyTorch's device "meta")."""

    def __init__(self, device: torch.device, kept: dict[Any, Any], product: str) -> None:
        super().__init__(device, kept, product)
        self.bytes = 0
        self.steps: list[str] = []
        """The kernels in their order, each with its programs."""

    def start(self, kernel: Any, programs: int, *args: Any, **form: Any) -> None:
        """Notes the kernel."""
        self.steps.append(f"{kernel.fn.__module__.rsplit('.')[-1]}.{kernel.fn.__name__} x {programs}")

    def empty(self, shape: Sequence[int], dtype: torch.dtype = torch.float64) -> Tensor:
        """A tensor without memory, of the size that scratch will have."""
        scratch = torch.empty(tuple(shape), dtype=dtype, device="meta")
        self.bytes = _aligned(self.bytes) + scratch.nbytes
        return scratch


class Placed(Work):
    """Takes scratch from a workspace, bytes on the device, in the order in which a `Rehearsal` counted it."""

    def __init__(self, device: torch.device, kept: dict[Any, Any], product: str, workspace: Tensor | None) -> None:
        super().__init__(device, kept, product)
        self._workspace = workspace
        self._used = 0

    def empty(self, shape: Sequence[int], dtype: torch.dtype = torch.float64) -> Tensor:
        """A part of the workspace."""
        size = dtype.itemsize
        for length in shape:
            size *= length
        begin = _aligned(self._used)
        self._used = begin + size
        if self._workspace is None:  # none was counted: there is nothing in it
            return torch.empty(tuple(shape), dtype=dtype, device=self.device)
        return self._workspace[begin : self._used].view(dtype).view(tuple(shape))


class Output:
    """A tensor that is written as a matrix: a view of it if it has one, else by a copy that `finish` copies back."""

    def __init__(self, matrix: Tensor, home: Tensor | None = None) -> None:
        self.matrix = matrix
        self._home = home

    @property
    def stride(self) -> int:
        """Elements from one row to the next."""
        return self.matrix.stride(0)

    def finish(self) -> None:
        """Copies the result into the tensor if it was written elsewhere."""
        if self._home is not None:
            self._home.copy_(self.matrix.view(self._home.shape))


def _aligned(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT


def _matrix(tensor: Tensor, rows: int, columns: int) -> Tensor | None:
    """The tensor as [rows, columns], each row contiguous; None where that takes a copy."""
    try:
        matrix = tensor.view(rows, columns)
    except RuntimeError:  # its dimensions cannot be walked as two
        return None
    return matrix if columns == 1 or matrix.stride(1) == 1 else None
