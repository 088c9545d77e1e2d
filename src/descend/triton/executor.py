"""Two phases on CUDA tensors: the first checks and rehearses a launch, the second runs it in the caller's workspace."""

import operator as python
import threading
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from descend import _native
from descend._device_call import Executor, refuse_gradients
from descend._torch_dtypes import DTYPES
from descend.errors import from_status
from descend.triton import operator
from descend.triton.calls import described, invalid, mark_written, on
from descend.triton.work import Placed, Rehearsal

_ALIGNMENT = 16
"""Alignment of a workspace in bytes: that of the widest access to memory."""


class Prepared(Executor):
    """A call that has passed the contract, and what its launch takes.

    It holds the memory of its tensors and copies of all else, so that the caller's may change or go.
    """

    def __init__(self, name: str, product: str, values: dict[str, Any]) -> None:
        self._operator = operator(name)
        self._product = product
        self._device = self._operator.device(values)
        self._values: dict[str, Any] = {n: list(v) if isinstance(v, (list, tuple)) else v for n, v in values.items()}
        for parameter in self._tensors(self._values):
            self._values[parameter] = self._held(parameter, values[parameter])
        self._check()
        self._kept: dict[Any, Any] = {}
        rehearsal = Rehearsal(self._device, self._kept, product)
        self._operator.launch(rehearsal, **{n: _without_memory(v) for n, v in self._used().items()})
        self._size, self._steps = rehearsal.bytes, tuple(rehearsal.steps)
        self._lock = threading.Lock()  # launches and changes of tensors take turns
        self._changed = self._repeatable = self._spent = False

    @property
    def operator(self) -> str:
        """The operator's name."""
        return self._operator.name

    @property
    def computes(self) -> tuple[str, ...]:
        """The names of the outputs that the second phase writes."""
        return self._computes

    @property
    def workspace_size(self) -> int:
        """Bytes of scratch that the second phase needs."""
        return self._size

    @property
    def spent(self) -> bool:
        """Whether it has run and is not repeatable."""
        return self._spent

    @property
    def plan(self) -> str:
        """The kernels that the second phase starts, and the programs of each."""
        return ", ".join(self._steps) or "nothing to do"

    def set_repeatable(self) -> None:
        """Lets the executor run any number of times; without it, it runs once."""
        self._repeatable = True

    def set_tensor(self, name: str, tensor: Tensor) -> None:
        """Another tensor, of the same dtype, shape, strides and device, for that one from the next run on.

        Raises ValueError for an unknown name, TypeError for what is no tensor, AclnnError for one that differs.
        """
        if name not in self._operator.tensors:
            raise ValueError(f"{self.operator} has no tensor named {name}.")
        if not isinstance(tensor, Tensor):
            raise TypeError(
                f"{self.operator}: {name} is {_native.what_is(tensor)}, but must be a tensor like the others."
            )
        with self._lock:
            now = self._values[name]
            if now is None:
                raise invalid(
                    self.operator, f"{name} was no tensor in the first phase, so that there is none to replace."
                )
            next_ = self._held(name, tensor)
            if _metadata(next_) != _metadata(now):
                raise invalid(
                    self.operator,
                    f"{name} must keep its dtype, {DTYPES[now.dtype]}, its shape, {list(now.shape)}, its strides, "
                    f"{list(now.stride())}, and its device, {now.device}.",
                )
            self._values[name] = next_
            self._changed = True

    def launch(self, name: str, workspace: Any, workspace_size: Any, stream: Any) -> None:
        """Phase 2 of operator ``name``: starts the kernels on the stream, in the workspace, allocating nothing."""
        if not (workspace is None or isinstance(workspace, Tensor) or type(workspace) is int):
            raise TypeError(
                f"{name}: workspace is {_native.what_is(workspace)}, but must be None, a tensor on {self._device} or "
                "an address there."
            )
        if isinstance(workspace_size, bool) or not hasattr(workspace_size, "__index__"):
            raise TypeError(f"{name}: workspace_size is {_native.what_is(workspace_size)}, but must be an integer.")
        streams: Any = torch.get_device_module(self._device)
        if stream is not None and not isinstance(stream, streams.Stream):
            raise _runtime_error(
                name, f"stream is {_native.what_is(stream)}, but must be a torch.{self._device.type}.Stream or None."
            )
        there = getattr(stream, "device", self._device)
        if there != self._device:
            raise _runtime_error(name, f"stream is one of {there}, but the tensors are on {self._device}.")
        with self._lock:
            if name != self.operator:
                raise invalid(name, f"the executor was made for {self.operator}.")
            if self._spent:
                raise invalid(name, "the executor has been used already; one that is not repeatable runs once.")
            if self._changed:
                self._check()
                self._changed = False
            memory = self._memory(workspace, max(python.index(workspace_size), 0))
            values = self._used()
            tensors = self._tensors(values)
            for parameter, tensor in tensors.items():
                if tensor.numel() > 0 and tensor.data_ptr() == 0:
                    raise _runtime_error(name, f"{parameter} has elements, but its data pointer is null.")
            with on(self._device) if stream is None else streams.stream(stream):
                self._operator.launch(Placed(self._device, self._kept, self._product, memory), **values)
            self._spent = not self._repeatable
            mark_written(values[n] for n in self._computes)
        if stream is not None and self._device.type == "cuda":  # else PyTorch could give their memory away too early
            for tensor in (*tensors.values(), *(t for t in (workspace,) if isinstance(t, Tensor))):
                tensor.record_stream(stream)

    def _used(self) -> dict[str, Any]:
        """The parameters, but for outputs that are not computed: None."""
        return {**self._values, **dict.fromkeys(set(self._operator.outputs) - set(self._computes))}

    def _tensors(self, values: dict[str, Any]) -> dict[str, Tensor]:
        return {name: values[name] for name in self._operator.tensors if values[name] is not None}

    def _held(self, parameter: str, tensor: Tensor) -> Tensor:
        """The same memory, and metadata that the caller cannot change."""
        refuse_gradients(self.operator, parameter, tensor)
        if tensor.is_neg():
            raise invalid(self.operator, f"{parameter} is a lazily negated tensor; call resolve_neg() first.")
        return tensor.detach()

    def _check(self) -> None:
        values = self._values | {n: described(t) for n, t in self._tensors(self._values).items()}
        self._operator.check(self._product, values)
        self._computes = self._operator.computed(self._product, values)

    def _memory(self, workspace: Tensor | int | None, size: int) -> Tensor | None:
        """The workspace's bytes, checked; None where none are needed."""
        needed, name = self._size, self.operator
        if isinstance(workspace, Tensor):
            if workspace.nbytes < size:
                raise invalid(name, f"the workspace is said to have {size} bytes, but has {workspace.nbytes}.")
            if workspace.device != self._device:
                raise invalid(name, f"the workspace is on {workspace.device}, but the tensors are on {self._device}.")
            if not workspace.is_contiguous():
                raise invalid(name, "the workspace must be contiguous.")
        if needed == 0:
            return None
        address = workspace.data_ptr() if isinstance(workspace, Tensor) else workspace or 0
        if address == 0:
            raise from_status(
                161001, "ACLNN_ERR_PARAM_NULLPTR", f"{name}: the workspace is null, but must have {needed} bytes."
            )
        if size < needed:
            raise invalid(name, f"the workspace has {size} bytes, but must have {needed}.")
        if address % _ALIGNMENT != 0:
            raise invalid(name, f"the workspace must be aligned to {_ALIGNMENT} bytes.")
        if isinstance(workspace, Tensor):
            return workspace.detach().view(-1).view(torch.uint8)
        memory = _at(address, size, self._device)
        if memory is None:
            raise invalid(name, f"the workspace, an address, is no memory of {self._device}.")
        return memory


def _runtime_error(name: str, sentence: str) -> Exception:
    return from_status(361001, "ACLNN_ERR_RUNTIME_ERROR", f"{name}: {sentence}")


def _without_memory(value: Any) -> Any:
    if not isinstance(value, Tensor):
        return value
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")


def _metadata(tensor: Tensor) -> tuple[Any, ...]:
    return tensor.dtype, tensor.shape, tensor.stride(), tensor.device


def _at(address: int, size: int, device: torch.device) -> Tensor | None:
    """The bytes that lie at an address of a device; None where it has no memory there."""
    memory = {"version": 3, "typestr": "|u1", "shape": (size,), "data": (address, False)}
    if device.type == "cpu":
        return torch.from_numpy(np.asarray(SimpleNamespace(__array_interface__=memory)))
    try:
        found = torch.as_tensor(SimpleNamespace(__cuda_array_interface__=memory), device=device)
    except (RuntimeError, ValueError):  # the driver knows of nothing there
        return None
    return found if found.data_ptr() == address else None
