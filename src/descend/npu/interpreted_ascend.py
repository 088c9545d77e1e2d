"""What triton-ascend 3.2 adds to Triton's language, for Triton's interpreter: slices, flips, sorts, scaled products.

Hints to the compiler and waits of cores for each other have no effect: the interpreter runs program after program.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

INTERPRETER = "triton.runtime.interpreter"


def extend(module: Any) -> None:
    """Adds them to the interpreter, ``module``, where it lacks them."""
    builder = module.InterpreterBuilder
    for name, function in _operations(module).items():
        if not hasattr(builder, name):
            setattr(builder, name, function)
    module.interpreter_builder.codegen_fns["min_dot_size"] = lambda _lhs, _rhs: (1, 1, 1)


def take_numbers(semantic: Any) -> None:
    """Has functions take numbers and words where a compiled kernel gives them tensors and constants."""
    for name, place in (("extract_slice", 1), ("insert_slice", 2), ("get_element", 1)):
        setattr(semantic, name, _with_tensors(getattr(semantic, name), place))
    semantic.dot_scaled = _with_formats(semantic.dot_scaled)


def run_as_it_is(module: Any) -> None:
    """``libentry``, which keeps what is compiled of a kernel, gives the kernel: nothing is compiled."""
    module.libentry = lambda: lambda kernel: kernel


def _operations(module: Any) -> dict[str, Callable[..., Any]]:
    """Methods of the interpreter's builder. A handle is an array of NumPy with Triton's dtype."""

    def of(data: Any, like: Any) -> Any:
        return module.TensorHandle(data, like.dtype.scalar)

    def extract_slice(_builder: Any, whole: Any, offsets: Any, sizes: Any, strides: Any) -> Any:
        return of(whole.data[_part(offsets, sizes, strides)], whole)

    def insert_slice(_builder: Any, whole: Any, part: Any, offsets: Any, sizes: Any, strides: Any) -> Any:
        data = whole.data.copy()
        data[_part(offsets, sizes, strides)] = part.data
        return of(data, whole)

    def extract_scalar(_builder: Any, source: Any, indices: Any) -> Any:
        return of(source.data[tuple(map(_number, indices))].reshape(1), source)

    def sort(_builder: Any, x: Any, dim: int, descending: bool) -> Any:
        data = np.sort(x.data, dim)
        return of(np.flip(data, dim) if descending else data, x)

    def dot_scaled(_builder: Any, a: Any, a_scale: Any, _a: Any, b: Any, b_scale: Any, _b: Any, acc: Any) -> Any:
        left = _scaled(a.data, a_scale)
        right = _scaled(b.data.swapaxes(-1, -2), b_scale).swapaxes(-1, -2)
        return of((left @ right + acc.data).astype(acc.data.dtype), acc)

    operations: dict[str, Callable[..., Any]] = {
        "create_extract_slice": extract_slice,
        "create_insert_slice": insert_slice,
        "create_extract_scalar": extract_scalar,
        "create_flip": lambda _builder, x, dim: of(np.flip(x.data, dim), x),
        "create_sort": sort,
        "create_dot_scaled": dot_scaled,
        "create_mod": lambda _builder, a, b: of(np.fmod(a.data, b.data), a),
        "create_tanh": lambda _builder, x: of(np.tanh(x.data), x),
        "create_annotation": _nothing,
        "create_custom_op_for_inter_core_sync": _nothing,
    }
    hints = ("get_unit_attr", "get_bool_attr", "get_int32_attr", "get_str_attr", "get_i64_array_attr")
    return operations | dict.fromkeys(hints, _nothing)


def _nothing(*_given: Any) -> None:
    pass


def _number(handle: Any) -> int:
    return int(handle.data.item())


def _part(offsets: Sequence[Any], sizes: Sequence[int], strides: Sequence[int]) -> Any:
    """The indices of a slice, for NumPy."""
    return np.ix_(
        *(
            _number(offset) + stride * np.arange(size)
            for offset, size, stride in zip(offsets, sizes, strides, strict=True)
        )
    )


def _scaled(rows: Any, exponents: Any) -> Any:
    """Rows in float32, times 2 to the exponents: each is for as many elements as fit."""
    wide = rows.astype(np.float32)
    if exponents is None:
        return wide
    size = rows.shape[-1] // exponents.data.shape[-1]
    return np.ldexp(wide, np.repeat(exponents.data.astype(np.int32), size, -1))


def _with_tensors(theirs: Callable[..., Any], place: int) -> Callable[..., Any]:
    """A function whose argument at ``place`` is a list of numbers, which are tensors in a compiled kernel."""

    @functools.wraps(theirs)
    def called(*given: Any) -> Any:
        convert = vars(sys.modules[INTERPRETER])["_implicit_cvt"]
        numbers = [convert(each) if isinstance(each, int) else each for each in given[place]]
        return theirs(*given[:place], numbers, *given[place + 1 :])

    return called


def _with_formats(theirs: Callable[..., Any]) -> Callable[..., Any]:
    """``dot_scaled``, whose names of formats are constants in a compiled kernel."""

    @functools.wraps(theirs)
    def called(*given: Any) -> Any:
        constant = vars(sys.modules[INTERPRETER])["tl"].constexpr
        return theirs(*(constant(each) if isinstance(each, str) else each for each in given))

    return called
