"""A call of an operator on CUDA tensors: phase 1 by the engine, results, then the operator's kernels.

The engine reads metadata alone, and says what it says to a call on the CPU; its answer to one set of shapes, strides,
dtypes and attributes is remembered.
"""

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import ml_dtypes
import numpy as np
import torch
from torch import Tensor
from triton import knobs

from descend import _native, portability
from descend._torch_dtypes import DTYPES
from descend.contract import OPERATORS
from descend.errors import AclnnError, from_status
from descend.triton.work import Work

Launch = Callable[..., None]

_TORCH = {name: dtype for dtype, name in DTYPES.items()}
_NUMPY = {
    **{torch.bfloat16: np.dtype(ml_dtypes.bfloat16), torch.float16: np.dtype(np.float16)},
    **{torch.float32: np.dtype(np.float32), torch.float64: np.dtype(np.float64), torch.bool: np.dtype(np.bool_)},
}

_REMEMBERED = 4096
"""So many answers of the engine are remembered. When there are more, all are forgotten."""


class _OnDevice:
    """A NumPy array's description of memory that NumPy never reads: phase 1 looks at addresses alone."""

    def __init__(self, tensor: Tensor) -> None:
        size = tensor.element_size()
        self.__array_interface__ = {
            "version": 3,
            "typestr": f"|V{size}",
            "shape": tuple(tensor.shape),
            "strides": tuple(size * s for s in tensor.stride()),
            "data": (tensor.data_ptr(), False),
        }


def _specification(tensor: Tensor) -> Any:
    spec = portability.TensorSpec(tuple(tensor.shape), DTYPES.get(tensor.dtype, str(tensor.dtype)), tensor.stride())
    return spec._native()


def described(tensor: Tensor) -> Any:
    """The tensor with its address, for the checks of overlaps; without it where there is nothing to overlap."""
    if tensor.numel() == 0 or tensor.dtype not in _NUMPY:
        return _specification(tensor)
    return np.asarray(_OnDevice(tensor)).view(_NUMPY[tensor.dtype])


def _key(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.shape, value.stride(), value.dtype
    if isinstance(value, (list, tuple)):
        return tuple(map(_key, value))
    return type(value), value


class Operator:
    """One operator on CUDA tensors: called as the functional API, arrays being tensors.

    ``launch`` gets a `Work` and every parameter of the contract by name, outputs included (None: not computed),
    checked, and starts the kernels on the current stream.
    """

    def __init__(self, name: str, launch: Launch) -> None:
        self.name = name
        self.launch = launch
        self._contract = OPERATORS[name]
        self._parameters = self._contract.functional_parameters
        self.tensors = tuple(p.python for p in self._contract.parameters if p.kind == "tensor")
        """Names of the parameters that are tensors."""
        self.outputs = tuple(p.python for p in self._contract.outputs)
        self._defaults = {
            p.python: portability.default(p) for p in self._parameters if p.default is not None or p.optional
        }
        self._known: dict[Any, list[tuple[tuple[int, ...], torch.dtype, bool]]] = {}

    def __call__(self, *args: Any, out: Any = None, **named: Any) -> Any:
        """The results; a tuple if the operator has several, with None for those that are not computed."""
        if len(args) > len(self._parameters):
            raise TypeError(f"{self.name} takes {len(self._parameters)} arguments, and {len(args)} were given.")
        values = {**self._defaults, **dict(zip((p.python for p in self._parameters), args, strict=False)), **named}
        given = self._given(out)
        device = self.device({**values, **given})
        types = self._check(values, given)
        results: dict[str, Tensor | None] = {}
        for name, (shape, dtype, is_computed) in zip(self.outputs, types, strict=True):
            results[name] = None
            if is_computed:
                found = given.get(name)
                results[name] = torch.empty(shape, dtype=dtype, device=device) if found is None else found
        with on(device):
            self.launch(Work(device), **values, **results)
        mark_written(results[name] for name, tensor in given.items() if tensor is not None)
        all_results = tuple(results.values())
        return all_results[0] if len(all_results) == 1 else all_results

    def _given(self, out: Any) -> dict[str, Any]:
        """The tensors of ``out``, by name: None for one that is to be allocated, ... for one that is left out."""
        if out is None:
            return {}
        count = len(self.outputs)
        if not isinstance(out, (tuple, list)):
            if count > 1:
                raise TypeError(
                    f"{self.name}: out is {_native.what_is(out)}, but must be a tuple of {count} arrays, None for one "
                    "that is to be allocated."
                )
            out = (out,)
        if len(out) != count:
            raise ValueError(f"{self.name}: out has length {len(out)}, but must have length {count}.")
        return dict(zip(self.outputs, out, strict=True))

    def device(self, values: dict[str, Any]) -> torch.device:
        """Where the tensors of a call are.

        Raises TypeError for what is no tensor, AclnnError for tensors on several devices or where there are no kernels.
        """
        given = ((name, values.get(name)) for name in self.tensors)
        tensors = {name: value for name, value in given if value is not None and value is not ...}
        for name, tensor in tensors.items():
            if not isinstance(tensor, Tensor):
                raise TypeError(
                    f"{self.name}: {name} is {_native.what_is(tensor)}, but must be a tensor like the others."
                )
        devices = {tensor.device for tensor in tensors.values()}
        if len(devices) > 1:
            where = ", ".join(f"{name} on {tensor.device}" for name, tensor in tensors.items())
            raise invalid(self.name, f"all tensors must be on one device, but there are {where}.")
        device: torch.device = next(iter(devices)) if devices else torch.device("cuda")
        if device.type != "cuda" and not knobs.runtime.interpret:
            raise invalid(self.name, f"the tensors are on {device}, but Triton's kernels need CUDA.")
        return device

    def check(self, product: str, values: dict[str, Any]) -> None:
        """Raises what the engine's phase 1 answers to a call with these parameters, by name, described for it."""
        status, code, sentence = _native.verdict(self.name, product, *self._in_order(values))
        if status:
            raise from_status(status, code, sentence)

    def computed(self, product: str, values: dict[str, Any]) -> tuple[str, ...]:
        """The names of the outputs that such a call writes."""
        return _native.computed(self.name, product, *self._in_order(values))

    def _in_order(self, values: dict[str, Any]) -> Iterable[Any]:
        return (values[p.python] for p in self._contract.parameters)

    def _check(self, values: dict[str, Any], given: dict[str, Any]) -> list[Any]:
        """Raises what the engine would; returns of each result shape, dtype, and whether it is computed."""
        if given:
            return self._ask(values, given, described)
        key = tuple(_key(values.get(p.python)) for p in self._parameters)
        if len(values) != len(key) or key not in self._known:
            if len(self._known) >= _REMEMBERED:
                self._known.clear()
            self._known[key] = self._ask(values, given, _specification)
        return self._known[key]

    def _ask(self, values: dict[str, Any], given: dict[str, Any], describe: Callable[[Tensor], Any]) -> list[Any]:
        for name in values:
            if all(name != p.python for p in self._parameters):
                raise TypeError(f"{self.name} has no parameter {name}.")
        for p in self._parameters:
            if p.python not in values:
                raise TypeError(f"{self.name}: {p.python} must be given.")
        plain = {n: describe(v) if isinstance(v, Tensor) else v for n, v in values.items()}
        inputs = [plain[p.python] for p in self._contract.parameters if p.role != "output"]
        types = dict(zip(self.outputs, _native.infer(self.name, *inputs), strict=True))
        for name, (shape, dtype) in types.items():
            found = given.get(name)
            plain[name] = portability.TensorSpec(shape, dtype)._native() if found is None else found
            if isinstance(found, Tensor):
                plain[name] = describe(found)
            elif found is ...:
                plain[name] = None
        self.check("host", plain)
        computed = self.computed("host", plain)
        return [(shape, _TORCH[dtype], name in computed) for name, (shape, dtype) in types.items()]


def invalid(name: str, sentence: str) -> AclnnError:
    """The error of a call of operator ``name`` that breaks a rule."""
    return from_status(161002, "ACLNN_ERR_PARAM_INVALID", f"{name}: {sentence}")


def mark_written(tensors: Iterable[Tensor | None]) -> None:
    """Counts a version of each tensor, so that autograd notices that it was written to."""
    for tensor in tensors:
        if tensor is not None and not tensor.is_inference():
            torch.autograd.graph.increment_version(tensor)


def on(device: torch.device) -> AbstractContextManager[Any]:
    """Makes the device the current one, since Triton launches there."""
    if device.type != "cuda" or device.index is None or device.index == torch.cuda.current_device():
        return nullcontext()
    return torch.cuda.device(device)
