"""Computes the functions of aclnn that are composed of PyTorch's operators, for C++ programs and extensions.

The library passes a call as JSON (descend_composer.h). Tensors are on the memory of the device, which is host memory
here, so they become CPU tensors without a copy.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import json
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from descend import _cann, _npu_aclnn
from descend.npu import boxed, record
from descend.npu.composed.refusal import RefusedError

NULL, INVALID, FAILED = 161001, 161002, 361001
"""ACLNN_ERR_PARAM_NULLPTR, ACLNN_ERR_PARAM_INVALID, ACLNN_ERR_RUNTIME_ERROR."""
DTYPES = {
    "FLOAT": torch.float32, "FLOAT16": torch.float16, "BFLOAT16": torch.bfloat16, "DOUBLE": torch.float64,
    "INT8": torch.int8, "INT16": torch.int16, "INT32": torch.int32, "INT64": torch.int64, "UINT8": torch.uint8,
    "BOOL": torch.bool,
}  # fmt: skip

_SAY = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int32, ctypes.c_char_p)
Value = Any


class _Failure(Exception):
    """A call that is wrong: the status, and a sentence without the function's name."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status


def install() -> None:
    """Has the library call this module from now on, until Python ends."""
    composer = _cann.library().descendSetComposer
    composer(_COMPOSER, ctypes.cast(ctypes.pythonapi.PyGILState_Check, ctypes.c_void_p))
    atexit.register(composer, None, None)


def _compose(call: bytes, answer: int, say: Any) -> None:
    """An exception that gets out of here, such as an interrupt between two lines, leaves nothing said: an error."""
    function, failure = "this function", (0, "")
    try:
        given = json.loads(call)
        function = given["function"]
        _serve(_npu_aclnn.FUNCTIONS[function], given["phase"], given["arguments"])
    except BaseException as error:  # none can leave a function that C called
        status, sentence = _failed(function, error)
        failure = status, f"{function}: {sentence}"
    say(answer, failure[0], failure[1].encode(errors="replace"))


_COMPOSER = ctypes.CFUNCTYPE(None, ctypes.c_char_p, ctypes.c_void_p, _SAY)(_compose)


def _failed(function: str, error: BaseException) -> tuple[int, str]:
    if isinstance(error, _Failure):
        return error.status, str(error)
    if isinstance(error, RefusedError):
        return INVALID, _in_words_of_cann(function, error)
    if isinstance(error, MemoryError) or "can't allocate memory" in str(error):
        return FAILED, "there is no memory."
    if isinstance(error, KeyboardInterrupt):
        return FAILED, "the call was interrupted."
    return FAILED, f"PyTorch raised {type(error).__name__}: {error}"


def _in_words_of_cann(function: str, error: RefusedError) -> str:
    """The sentence, with the function's name of the parameter."""
    name, bracket, index = error.parameter.partition("[")
    of_cann = {parameter.keyword: parameter.name for parameter in _npu_aclnn.FUNCTIONS[function].parameters}
    return f"{of_cann.get(name, name)}{bracket}{index} {error.rest}"


def _serve(function: _npu_aclnn.Function, phase: int, arguments: Sequence[Value]) -> None:
    with _without_modes():
        named = {
            parameter.keyword: _read(parameter, value, with_memory=phase != 1)
            for parameter, value in zip(function.parameters, arguments, strict=True)
        }
        if phase != 2:
            function.check()(**named)
        if phase == 1:
            return
        if phase == 3:
            npu: Any = sys.modules["torch_npu"]
            npu.npu.current_stream().synchronize()  # it also waits for torch_npu's queue, without the lock of Python
        outs = [named.pop(parameter.keyword) for parameter in function.parameters if parameter.is_out]
        with record.recording(function.name, named.items()), torch.no_grad():
            _write(function, outs, function.compute()(**named))


@contextlib.contextmanager
def _without_modes() -> Iterator[None]:
    """Without the caller's modes, which are for calls in Python: a default device, autocast, fake tensors."""
    with (
        torch._C.DisableTorchFunction(),
        torch._C._ExcludeDispatchKeyGuard(boxed.AUTOCAST),
        _disable_current_modes(),
    ):
        yield


# --- arguments --------------------------------------------------------------------------------------------------------


def _read(parameter: _npu_aclnn.Parameter, value: Value, with_memory: bool) -> Value:
    name = parameter.name
    if value is None:
        if not parameter.is_optional and parameter.kind in ("tensor", "tensors", "text"):
            raise _Failure(NULL, f"{name} is null, but must be given.")
        return None
    if isinstance(value, dict) and "wrong" in value and parameter.kind != "tensor":
        raise _Failure(INVALID, f"{name} {value['wrong']}")
    if parameter.kind == "tensor":
        return _tensor(name, value, with_memory, parameter.is_written)
    if parameter.kind == "tensors":
        # A list of one null is how extensions of torch_npu pass a tensor that is not given.
        tensors = [
            None if each is None else _tensor(f"{name}[{i}]", each, with_memory, parameter.is_written)
            for i, each in enumerate(value)
        ]
        missing = [i for i, tensor in enumerate(tensors) if tensor is None]
        if 0 < len(missing) < len(tensors):
            raise _Failure(NULL, f"{name}[{missing[0]}] is null, but must be given.")
        return [] if missing else tensors
    if parameter.kind == "integers":
        return value or None  # extensions pass an empty array for one that is not given
    return value


def _tensor(name: str, value: dict[str, Value], with_memory: bool, is_written: bool) -> Tensor:
    if "wrong" in value:
        raise _Failure(INVALID, f"{name} {value['wrong']}")
    if is_written and value.get("overlaps"):
        raise _Failure(INVALID, f"{name} has elements that overlap each other, but those of an output must not.")
    dtype, shape, strides, data = (value[key] for key in ("dtype", "shape", "strides", "data"))
    if dtype not in DTYPES:
        raise _Failure(INVALID, f"{name} has dtype {dtype}, but must have one of {', '.join(DTYPES)}.")
    if not with_memory or 0 in shape:
        return torch.empty_strided(shape, strides, dtype=DTYPES[dtype], device=None if with_memory else "meta")
    if not data:
        raise _Failure(FAILED, f"{name} has elements, but its data pointer is null.")
    count = 1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
    memory = (ctypes.c_char * (count * DTYPES[dtype].itemsize)).from_address(data)
    return torch.frombuffer(memory, dtype=DTYPES[dtype]).as_strided(shape, strides)


# --- results ----------------------------------------------------------------------------------------------------------


def _write(function: _npu_aclnn.Function, outs: Sequence[Value], results: Value) -> None:
    """Copies results to the parameters that are written. What a call does not give is None or empty."""
    names = [parameter.name for parameter in function.parameters if parameter.is_out]
    lists = any(isinstance(out, list) for out in outs)
    for name, out, result in zip(names, outs, (results,) if lists else _each(results), strict=False):
        pairs = [(name, out, result)]
        if isinstance(out, list):
            if len(out) != len(result):
                raise _Failure(INVALID, f"{name} has {len(out)} tensors, but must have {len(result)}.")
            pairs = [(f"{name}[{i}]", *pair) for i, pair in enumerate(zip(out, result, strict=True))]
        for which, to, of in pairs:
            _copy(which, to, of)


def _each(results: Value) -> Iterator[Tensor | None]:
    if results is None:
        return
    yield from results if isinstance(results, (tuple, list)) else (results,)


def _copy(name: str, out: Tensor | None, result: Tensor | None) -> None:
    if out is None:
        return
    if result is None or result.numel() == 0:
        if out.numel():
            raise _Failure(INVALID, f"{name} has shape {list(out.shape)}, but this call gives it no numbers.")
        return
    if out.shape != result.shape or out.dtype != result.dtype:
        raise _Failure(
            INVALID,
            f"{name} has shape {list(out.shape)} and {out.dtype}, but must have {list(result.shape)} and "
            f"{result.dtype}.",
        )
    out.copy_(result)
