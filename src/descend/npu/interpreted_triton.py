"""Triton's kernels for Ascend, without its compiler: Triton's own interpreter runs them on the tensors of torch_npu.

Package triton-ascend compiles kernels by CANN's compiler for the processor, neither of which is here. It also has an
interpreter, which runs each program of the grid with NumPy, and is chosen by TRITON_INTERPRET=1. What is here lets
programs begin it without a change: it sets that variable, gives Triton a driver, and mends what release 3.2.0 of
triton-ascend does not interpret. A kernel takes much longer than compiled: run it on small tensors.
"""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import importlib
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import ModuleType, SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import torch

from descend import _import_hook
from descend.npu import interpreted_ascend

_VARIABLE = "TRITON_INTERPRET"


def install() -> None:
    """Chooses the interpreter, unless the program has set the variable itself, or has imported triton without it.

    ``descend npu`` sets the variable, too, for programs that import triton before torch.
    """
    if "triton" not in sys.modules:
        os.environ.setdefault(_VARIABLE, "1")
    if os.environ.get(_VARIABLE) != "1":
        return
    _import_hook.change(_CHANGES)


class _Driver:
    """What Triton asks a driver, without one: the device is torch_npu's."""

    def __init__(self) -> None:
        self.utils = SimpleNamespace(
            get_device_properties=_properties,
            get_arch=lambda: str(_npu().get_device_name()),
            get_aicore_num=lambda: _properties()["num_aicore"],
            get_aivector_core_num=lambda: _properties()["num_vectorcore"],
        )

    def get_current_target(self) -> Any:
        """Triton's description of the device."""
        return importlib.import_module("triton.backends.compiler").GPUTarget("npu", self.utils.get_arch(), 0)

    def get_current_device(self) -> int:
        """The number of the current device."""
        return int(_npu().current_device())

    def set_current_device(self, device: int) -> None:
        """Makes another device the current one."""
        _npu().set_device(device)

    def get_current_stream(self, device: int | None = None) -> int:
        """The address of the current stream."""
        return int(_npu().current_stream(device).npu_stream)

    def get_device_interface(self) -> Any:
        """The module ``torch.npu``."""
        return _npu()

    def get_active_torch_device(self) -> torch.device:
        """The current device, as PyTorch names it."""
        return torch.device("npu", self.get_current_device())

    def get_benchmarker(self) -> Callable[..., Any]:
        """What an autotuner measures configurations with: all are the same, since the interpreter's times tell nothing.

        So the first is taken.
        """

        def measure(kernel_call: Callable[[], Any], quantiles: Sequence[float] | None = None, **_: Any) -> Any:
            return [0.0] * len(quantiles) if quantiles else 0.0

        return measure

    def get_empty_cache_for_benchmark(self) -> torch.Tensor:
        """What ``triton.testing`` clears between runs."""
        return torch.empty(1, dtype=torch.int, device="npu")

    def clear_cache(self, cache: torch.Tensor) -> None:
        """Clears that."""
        cache.zero_()


def _npu() -> Any:
    return vars(torch)["npu"]


def _properties(_device: object = None) -> dict[str, int]:
    found = _npu().get_device_properties()
    return {"max_shared_mem": 1, "num_aicore": found.cube_core_num, "num_vectorcore": found.vector_core_num}


def _give_driver(module: Any) -> None:
    module.driver.set_active(_Driver())


# ---- The interpreter.

# Functions of libdevice, by the middle of the name that CANN's library has for each: PyTorch's names.
_OF_LIBRARY = {
    **{name: name for name in ("log1p", "relu", "isinf", "isnan", "tan", "atan", "tanh", "ldexp", "pow")},
    "recip": "reciprocal",
}


def _ilogb(x: torch.Tensor) -> torch.Tensor:
    return torch.frexp(x).exponent - 1


def _round(x: torch.Tensor) -> torch.Tensor:
    """To the nearest integer, halves away from zero, as C's function does it."""
    whole = torch.trunc(x)
    return whole + torch.sign(x) * (torch.abs(x - whole) >= 0.5)


def _mend(module: Any) -> None:
    """Changes the interpreter: bfloat16 in all releases, and in 3.2 what else kernels for Ascend need."""
    builder = module.InterpreterBuilder
    _mend_narrow_types(module, builder)
    if not str(sys.modules["triton"].__version__).startswith("3.2."):
        return
    module._implicit_cvt = _taking_numbers(module, module._implicit_cvt)
    module._patch_lang = _with_libraries(module, module._patch_lang)
    module._patch_lang_tensor = _with_scalars(module._patch_lang_tensor)
    executor = module.GridExecutor
    executor.__call__ = _without_options(executor.__call__)
    executor._init_args_hst, executor._restore_args_dev = _arguments, _nothing_to_restore
    module.ASTTransformer.visit_For, module._counted = _visit_for, _counted(module)
    builder.create_extern_elementwise = _of_library(module)
    interpreted_ascend.extend(module)
    if not hasattr(builder, "get_int1_ty"):  # the type of what a function of that library finds to be true
        builder.get_int1_ty = lambda _builder: module.tl.int1


# NumPy's types of those that the interpreter keeps as whole numbers, and adds as such, by Triton's names.
_NARROW = {
    "bf16": np.dtype(ml_dtypes.bfloat16),
    "fp8e5": np.dtype(ml_dtypes.float8_e5m2),
    "fp8e4nv": np.dtype(ml_dtypes.float8_e4m3fn),
    "fp8e5b16": np.dtype(ml_dtypes.float8_e5m2fnuz),
    "fp8e4b8": np.dtype(ml_dtypes.float8_e4m3fnuz),
}


_COMBINE: dict[str, Callable[[Any, Any], Any]] = {
    **dict.fromkeys(("ADD", "FADD"), np.add),
    **dict.fromkeys(("MAX", "UMAX"), np.maximum),
    **dict.fromkeys(("MIN", "UMIN"), np.minimum),
    **{"AND": np.bitwise_and, "OR": np.bitwise_or, "XOR": np.bitwise_xor},
    "XCHG": lambda _old, new: new,
}
"""Atomic operations by Triton's names."""


class _Memory:
    """Triton's module in C++, which reads and writes memory, with NumPy's own types instead of those."""

    def __init__(self, module: Any) -> None:
        self._module = module

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)

    def load(self, pointers: Any, mask: Any, other: Any, dtype: np.dtype[Any]) -> Any:
        """What is at the pointers, where the mask is true; `other` elsewhere."""
        return self._module.load(pointers, mask, other.view(_bits(dtype)), _bits(dtype)).view(dtype)

    def store(self, pointers: Any, values: Any, mask: Any) -> Any:
        """Writes values to the pointers, where the mask is true."""
        return self._module.store(pointers, values.view(_bits(values.dtype)), mask)

    def atomic_rmw(self, operation: Any, pointers: Any, values: Any, mask: Any, order: Any) -> Any:
        """Combines what is at the pointers with values, and gives what was there."""
        with contextlib.suppress(ValueError):  # it knows neither narrow types nor the greatest of floats
            return self._module.atomic_rmw(operation, pointers, values, mask, order)
        combine, values = _COMBINE[operation.name], values.ravel()
        return self._in_turn(pointers, mask, values.dtype, lambda old, places: combine(old, values[places]))

    def atomic_cas(self, pointers: Any, expected: Any, values: Any, order: Any) -> Any:
        """Writes values where the pointers hold the bits of what is expected, and gives what was there."""
        with contextlib.suppress(ValueError):
            return self._module.atomic_cas(pointers, expected, values, order)
        pattern, values = f"u{values.dtype.itemsize}", values.ravel()
        wanted = expected.ravel().view(pattern)
        return self._in_turn(
            pointers,
            np.ones(pointers.shape, bool),
            values.dtype,
            lambda old, places: np.where(old.view(pattern) == wanted[places], values[places], old),
        )

    def _in_turn(self, pointers: Any, mask: Any, dtype: np.dtype[Any], change: Callable[[Any, Any], Any]) -> Any:
        """Changes what is at the pointers; where several are equal, one of them after another."""
        pointers, shape = pointers.ravel(), pointers.shape
        before = np.zeros(pointers.shape, dtype)
        left = np.flatnonzero(np.broadcast_to(mask, shape))
        while left.size:
            first = np.unique(pointers[left], return_index=True)[1]
            places = left[first]
            there = np.ones(places.shape, bool)
            before[places] = self.load(pointers[places], there, before[places], dtype)
            self.store(pointers[places], change(before[places], places).astype(dtype), there)
            left = np.delete(left, first)
        return before.reshape(shape)


def _bits(dtype: np.dtype[Any]) -> np.dtype[Any]:
    return np.dtype(f"u{dtype.itemsize}") if dtype in _NARROW.values() else dtype


def _mend_narrow_types(module: Any, builder: Any) -> None:
    """bfloat16 and float8 have their own arithmetic, and are rounded to the nearest: they were cut off."""
    of_others, dot = module._get_np_dtype, builder.create_dot

    def dtype_of(dtype: Any) -> np.dtype[Any]:
        found: np.dtype[Any] = _NARROW.get(dtype.scalar.name) or of_others(dtype)
        return found

    def cast(_builder: Any, source: Any, dtype: Any, _rounding: Any = None) -> Any:
        return module.TensorHandle(source.data.astype(dtype_of(dtype)), dtype.scalar)

    def wide(factor: Any) -> Any:
        if factor.dtype.scalar.name not in _NARROW:
            return factor
        return module.TensorHandle(factor.data.astype(np.float32), module.tl.float32)

    def bfloat16(_builder: Any, value: float) -> Any:
        return module.TensorHandle(np.array([value], _NARROW["bf16"]), module.tl.bfloat16)

    module._get_np_dtype, module._interpreter = dtype_of, _Memory(module._interpreter)
    builder.cast_impl = builder.create_fp_to_fp = cast
    builder.create_dot = lambda self, a, b, *others: dot(self, wide(a), wide(b), *others)
    builder.get_bf16 = bfloat16


def _taking_numbers(module: Any, convert: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A floating-point argument of a kernel is a tensor, as an integer is, and has the methods of one."""

    def converted(given: Any) -> Any:
        found = convert(given)
        if not isinstance(found, float):
            return found
        language = module.tl
        handle = module.TensorHandle(np.array([found], np.float32), language.float32)
        return language.tensor(handle, language.float32)

    return converted


def _visit_for(transformer: ast.NodeTransformer, loop: ast.For) -> ast.For:
    """The number of a loop over a range is a tensor, as in a compiled kernel, and has the methods of one."""
    transformer.generic_visit(loop)
    called = loop.iter.func if isinstance(loop.iter, ast.Call) else None
    if "range" in (getattr(called, "id", None), getattr(called, "attr", None)):
        loop.iter = ast.Call(ast.Name("_counted", ast.Load()), [loop.iter], [])
    return loop


def _counted(module: Any) -> Callable[[Iterable[Any]], Iterator[Any]]:
    return lambda numbers: map(module._implicit_cvt, numbers)


def _with_scalars(patch: Callable[[Any], None]) -> Callable[[Any], None]:
    """An index is a tensor of one element with one dimension, which NumPy 2.4 does not convert any more."""

    def patched(tensor: Any) -> None:
        patch(tensor)
        tensor.__index__ = lambda self: int(self.handle.data.item())

    return patched


def _with_libraries(module: Any, patch: Callable[[Any], None]) -> Callable[[Any], None]:
    """Kernels may use functions of Triton that they import by name, and those of libdevice."""

    def patched(function: Any) -> None:
        patch(function)
        is_builtin, builder = module.tl.core.is_builtin, module.interpreter_builder
        for name, value in list(function.__globals__.items()):
            if isinstance(value, ModuleType) and value.__name__.startswith("triton.language.extra"):
                module._patch_builtin(value, builder)
            elif callable(value) and is_builtin(value):
                holder = SimpleNamespace()
                module._patch_attr(holder, name, value, builder)
                function.__globals__[name] = vars(holder)[name]

    return patched


def _arguments(_executor: Any, arguments: Any, named: Any) -> tuple[Any, Any]:
    """The tensors themselves, when what was to be done before the kernel is done: the device's memory is ordinary.

    Triton would copy each to the CPU and back. A tensor given twice, or one with gaps, was wrong then.
    """
    _npu().current_stream().synchronize()
    return arguments, named


def _nothing_to_restore(_executor: Any, *_given: Any) -> None:
    pass


def _without_options(call: Callable[..., Any]) -> Callable[..., Any]:
    """Options of the compiler for Ascend, such as ``multibuffer``, are no arguments of the kernel.

    Those of later compilers begin with "enable" or "disable".
    """

    def called(self: Any, *arguments: Any, **named: Any) -> Any:
        options = _options()
        kept = {
            name: value
            for name, value in named.items()
            if name in self.arg_names or not (name in options or name.startswith(("enable_", "disable_")))
        }
        return call(self, *arguments, **kept)

    return called


def _options() -> set[str]:
    try:
        compiler = importlib.import_module("triton.backends.ascend.compiler")
    except ImportError:
        return set()  # another Triton
    return {field.name for field in dataclasses.fields(compiler.NPUOptions)}


def _library_function(symbol: str) -> Callable[..., torch.Tensor]:
    own = {"ilogb": _ilogb, "round": _round}
    for ending in ("Dh", "f", "i", ""):  # of float16, float32, integers
        name = symbol.removeprefix("__hmf_").removesuffix(ending)
        if name in own:
            return own[name]
        if name in _OF_LIBRARY:
            found: Callable[..., torch.Tensor] = vars(torch)[_OF_LIBRARY[name]]
            return found
    raise NotImplementedError(f"{symbol} is a function of CANN's compiler, which is not here.")


def _of_library(module: Any) -> Callable[..., Any]:
    """The function that interprets a call of CANN's library for elements."""

    def called(
        _builder: Any, _library: str, _path: str, symbol: str, arguments: list[Any], result: Any, _is_pure: bool
    ) -> Any:
        function = _library_function(symbol)
        numbers = [torch.from_numpy(np.ascontiguousarray(argument.data)) for argument in arguments]
        wide = [number.float() if number.dtype == torch.float16 else number for number in numbers]
        return module.TensorHandle(function(*wide).numpy().astype(module._get_np_dtype(result)), result.scalar)

    return called


_CHANGES: dict[str, Callable[[Any], None]] = {
    "triton.runtime.driver": _give_driver,
    "triton.runtime.interpreter": _mend,
    "triton.triton_patch.language.semantic": interpreted_ascend.take_numbers,
    "triton.runtime.libentry": interpreted_ascend.run_as_it_is,
}
