"""Turns tensors of device npu into CPU tensors and back: the memory of both is host memory. native/npu/crossing.h does
the same in C++.

A result that a CPU kernel has made is copied once, into memory of the device: only C++ can hand memory over.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

_CPU = torch.device("cpu")
_storage_at = torch._C._construct_storage_from_data_pointer
_coo: Callable[..., Tensor] = torch.ops.aten._sparse_coo_tensor_unsafe
_compressed_from: Callable[..., Tensor] = torch.ops.aten._sparse_compressed_tensor_unsafe


class Crossing:
    """The tensors of one operator call.

    ``grow``: written tensors get a storage that the CPU kernel can enlarge. It is a copy, so it is made only for calls
    that need it.
    """

    def __init__(self, grow: bool = False) -> None:
        self._grow = grow
        self._entered: list[tuple[Tensor, Tensor]] = []
        self._copies: dict[int, torch.UntypedStorage] = {}

    def enter(self, tensor: Tensor, written: bool = False) -> Tensor:
        """A CPU tensor with the same address, sizes, strides and flags. One argument gives one CPU tensor.

        A tensor that is not on device npu is returned as it is.
        """
        if tensor.device.type != "npu":
            return tensor
        for npu, cpu in self._entered:
            if npu is tensor:
                return cpu
        cpu = self._dense(tensor, written) if tensor.layout is torch.strided else self._sparse(tensor)
        self._entered.append((tensor, cpu))
        return cpu

    def leave(self, result: Tensor, device: torch.device) -> Tensor:
        """The tensor on ``device`` for a result of the CPU kernel: an argument, a view of one, or a new tensor."""
        if result.device.type != "cpu":
            return result
        for npu, cpu in self._entered:
            if cpu is result:
                return npu
        if result.layout is not torch.strided:
            return self._leave_sparse(result, device)
        if result._is_zerotensor():
            return torch.zeros_like(result, device=device)
        if (owner := getattr(result.untyped_storage(), "owner", None)) is not None:
            return view_of(owner, result)
        return _moved(result, device)

    def write_back(self, npu: Tensor, device: torch.device) -> None:
        """Copies sizes, strides and storage, which the CPU kernel may have changed, to the argument."""
        cpu = next((cpu for each, cpu in self._entered if each is npu), None)
        if cpu is None:
            return
        if cpu.layout is not torch.strided:
            npu.data = self._leave_sparse(cpu, device)
            return
        storage = cpu.untyped_storage()
        owner: torch.UntypedStorage | None = getattr(storage, "owner", None)
        if owner is not None and self._copies.get(owner._cdata) is storage:
            if owner.nbytes() != storage.nbytes():
                owner.resize_(storage.nbytes())
            ctypes.memmove(owner.data_ptr(), storage.data_ptr(), storage.nbytes())
        if cpu.is_conj() != npu.is_conj():
            torch._C._set_conj(npu, cpu.is_conj())
        if cpu.is_neg() != npu.is_neg():
            torch._C._set_neg(npu, cpu.is_neg())
        if cpu.shape != npu.shape or cpu.stride() != npu.stride() or cpu.storage_offset() != npu.storage_offset():
            npu.as_strided_(cpu.shape, cpu.stride(), cpu.storage_offset())

    def _dense(self, tensor: Tensor, written: bool) -> Tensor:
        return view_of(self._storage(tensor.untyped_storage(), written), tensor)

    def _storage(self, owner: torch.UntypedStorage, written: bool) -> Any:
        """A CPU storage with the same memory, which keeps ``owner`` alive; or the copy of it that this call uses."""
        if (copy := self._copies.get(owner._cdata)) is not None:
            return copy
        size = owner.nbytes()
        if self._grow and written:
            copy = torch.UntypedStorage(size, device=_CPU)
            ctypes.memmove(copy.data_ptr(), owner.data_ptr(), size)
            self._copies[owner._cdata] = copy
        storage: Any = _storage_at(owner.data_ptr(), _CPU, size) if copy is None else copy
        storage.owner = owner
        return storage

    def _sparse(self, tensor: Tensor) -> Tensor:
        if tensor.layout is torch.sparse_coo:
            parts = self.enter(tensor._indices()), self.enter(tensor._values())
            return _coo(*parts, tensor.shape, device=_CPU, dtype=tensor.dtype, is_coalesced=tensor.is_coalesced())
        return _compressed_from(
            *map(self.enter, _compressed(tensor)), tensor.shape, layout=tensor.layout, dtype=tensor.dtype, device=_CPU
        )

    def _leave_sparse(self, result: Tensor, device: torch.device) -> Tensor:
        if result.layout is torch.sparse_coo:
            parts = self.leave(result._indices(), device), self.leave(result._values(), device)
            return _coo(*parts, result.shape, device=device, dtype=result.dtype, is_coalesced=result.is_coalesced())
        left = [self.leave(each, device) for each in _compressed(result)]
        return _compressed_from(*left, result.shape, layout=result.layout, dtype=result.dtype, device=device)


def _compressed(tensor: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    if tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        return tensor.crow_indices(), tensor.col_indices(), tensor.values()
    if tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        return tensor.ccol_indices(), tensor.row_indices(), tensor.values()
    raise NotImplementedError(f"Descend: tensors of layout {tensor.layout} are not known on device npu.")


def view_of(storage: Any, like: Tensor) -> Tensor:
    """A tensor in a storage, as ``like`` is in the other device's storage with the same memory."""
    view = torch.empty(0, dtype=like.dtype, device=storage.device)
    view.set_(storage, like.storage_offset(), like.shape, like.stride())
    if like.is_conj():
        torch._C._set_conj(view, True)
    if like.is_neg():
        torch._C._set_neg(view, True)
    return view


def _moved(result: Tensor, device: torch.device) -> Tensor:
    """A new tensor of the device with the same values, sizes and strides."""
    if result.is_conj() or result.is_neg():
        result = result.resolve_conj().resolve_neg()
    npu = torch.empty_strided(result.shape, result.stride(), dtype=result.dtype, device=device)
    if npu.numel() > 0:
        ctypes.memmove(npu.data_ptr(), result.data_ptr(), npu.untyped_storage().nbytes())
    return npu
