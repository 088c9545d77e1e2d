"""What the tests of all operators share: dtypes, awkward arrays, poisoned outputs, bounds on errors, refusals."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import strategies as st

from descend import acl, aclnn, precision

Array = npt.NDArray[Any]

# The documents' names of every dtype that a NumPy array can have here.
DTYPES: dict[str, np.dtype[Any]] = {
    "FLOAT": np.dtype(np.float32),
    "FLOAT16": np.dtype(np.float16),
    "BFLOAT16": np.dtype(ml_dtypes.bfloat16),
    "DOUBLE": np.dtype(np.float64),
    "INT8": np.dtype(np.int8),
    "INT16": np.dtype(np.int16),
    "INT32": np.dtype(np.int32),
    "INT64": np.dtype(np.int64),
    "UINT8": np.dtype(np.uint8),
    "UINT16": np.dtype(np.uint16),
    "UINT32": np.dtype(np.uint32),
    "UINT64": np.dtype(np.uint64),
    "BOOL": np.dtype(np.bool_),
    "COMPLEX64": np.dtype(np.complex64),
    "COMPLEX128": np.dtype(np.complex128),
}
FLOATS = ("FLOAT", "FLOAT16", "BFLOAT16", "DOUBLE")


def in_turn(values: Sequence[Any], others: Sequence[Any], each: int = 1) -> list[tuple[Any, Any]]:
    """Parameters of tests: each value beside one of the others, or `each` of them. These take turns."""
    turns = itertools.cycle(others)
    return [(value, next(turns)) for value in values for _ in range(each)]


def extended(*values: Any) -> list[Any]:
    """Parameters of tests that take long and check again what those of others do: `./dev test-extended` runs them."""
    return [
        pytest.param(*(value if isinstance(value, tuple) else (value,)), marks=pytest.mark.extended) for value in values
    ]


NAMES = {dtype: name for name, dtype in DTYPES.items()}

PRODUCTS = (
    "atlas-a3",
    "atlas-a2-training",
    "atlas-a2-inference",
    "atlas-200i-500-a2",
    "atlas-inference",
    "atlas-training",
    "ascend-950",
    "host",
)
A2_TO_950 = ("atlas-a3", "atlas-a2-training", "atlas-a2-inference", "ascend-950")
HUAWEI = PRODUCTS[:-1]

# The status codes of the contract.
CODES = {
    161001: "ACLNN_ERR_PARAM_NULLPTR",
    161002: "ACLNN_ERR_PARAM_INVALID",
    361001: "ACLNN_ERR_RUNTIME_ERROR",
    561002: "ACLNN_ERR_INNER_TILING_ERROR",
    561003: "ACLNN_ERR_INNER_FIND_KERNEL_ERROR",
}

# Half a unit in the last place of 1, and the smallest subnormal.
UNIT = {"FLOAT": 2.0**-24, "FLOAT16": 2.0**-11, "BFLOAT16": 2.0**-8, "DOUBLE": 2.0**-53}
SMALLEST = {"FLOAT": 2.0**-149, "FLOAT16": 2.0**-24, "BFLOAT16": 2.0**-133, "DOUBLE": 2.0**-1074}


def dtype_name(array: Array) -> str:
    return NAMES[array.dtype]


def wide(array: npt.ArrayLike) -> npt.NDArray[np.float64]:
    return np.asarray(array).astype(np.float64)


def normal(rng: np.random.Generator, shape: Sequence[int], dtype: str = "FLOAT", scale: float = 1.0) -> Array:
    return np.asarray(rng.standard_normal(tuple(shape)) * scale, np.float32).astype(DTYPES[dtype])


# --- where an array lies -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Layout:
    """An array's layout in memory: its axes from the slowest to the fastest, and the step along each."""

    order: tuple[int, ...]
    steps: tuple[int, ...]

    @staticmethod
    def contiguous(rank: int) -> Layout:
        return Layout(tuple(range(rank)), (1,) * rank)


def layouts(rank: int) -> st.SearchStrategy[Layout]:
    """Layouts with permuted axes, gaps and reversed axes. No elements overlap."""
    strided = st.builds(
        Layout,
        st.permutations(range(rank)).map(tuple),
        st.tuples(*[st.sampled_from([1, 1, 1, -1, 2, -3])] * rank),
    )
    return st.one_of(st.just(Layout.contiguous(rank)), strided)


class Place:
    """An array between guard zones, which begins so many bytes beyond a line of 64.

    All its memory begins as NaN (bytes 0xFF), so that what is left unwritten shows."""

    GUARD = 256  # bytes, a multiple of any vector

    def __init__(
        self,
        shape: Sequence[int],
        dtype: str | np.dtype[Any] = "FLOAT",
        layout: Layout | None = None,
        beyond_line: int = 16,
    ) -> None:
        kind = DTYPES[dtype] if isinstance(dtype, str) else np.dtype(dtype)
        shape = tuple(shape)
        layout = layout or Layout.contiguous(len(shape))
        extents = [abs(layout.steps[axis]) * shape[axis] for axis in layout.order]
        count = int(np.prod(extents, dtype=np.int64))
        memory = np.full(2 * self.GUARD + count * kind.itemsize + 63, 0xFF, np.uint8)
        lead = (beyond_line - memory.ctypes.data) % 64
        self.memory = memory[lead : lead + 2 * self.GUARD + count * kind.itemsize]
        self.array = self._view(self.memory, kind, count, extents, layout)
        self._outside: Any = np.r_[: self.GUARD, -self.GUARD : 0]
        if layout != Layout.contiguous(len(shape)):
            inside = np.zeros(self.memory.shape, np.uint8)
            marks = self._view(inside, np.dtype(f"V{kind.itemsize}"), count, extents, layout)
            marks[...] = np.void(bytes([1]) * kind.itemsize)
            self._outside = inside == 0

    def _view(self, memory: Array, kind: np.dtype[Any], count: int, extents: list[int], layout: Layout) -> Array:
        block = memory[self.GUARD : self.GUARD + count * kind.itemsize].view(kind).reshape(extents)
        turned = block.transpose(np.argsort(layout.order)) if layout.order else block
        return turned[(..., *(slice(None, None, step) for step in layout.steps))]

    def check_guards(self) -> None:
        """Checks that nothing outside the array's own elements was written."""
        assert (self.memory[self._outside] == 0xFF).all(), "memory outside the output was written to"

    def check_untouched(self) -> None:
        assert (self.memory == 0xFF).all(), "the output was written to"


def placed(values: Array, layout: Layout) -> Array:
    """The same values in another layout, with NaN (or -1) in the gaps."""
    place = Place(values.shape, values.dtype, layout)
    place.array[...] = values
    return place.array


# --- bounds --------------------------------------------------------------------------------------------------------


def assert_close(
    actual: Array, golden: npt.ArrayLike, terms: npt.ArrayLike, roundings: float, arithmetic: str = "FLOAT"
) -> None:
    """Bounds the error of a result that is narrowed once.

    ``terms`` is the size of the largest term that the value was made of: where terms cancel, the error may be as large
    as ``roundings`` roundings of that term in the type of the arithmetic; beyond it there is only the result's own
    rounding. What is not finite must be the same.
    """
    name = dtype_name(actual)
    golden = np.asarray(golden, np.float64)
    assert actual.shape == golden.shape
    got = wide(actual)
    with np.errstate(all="ignore"):
        slack = roundings * UNIT[arithmetic] * np.abs(np.broadcast_to(np.asarray(terms, np.float64), golden.shape))
        bound = (
            slack * (1 + UNIT[name]) + UNIT[name] * np.abs(golden) + SMALLEST[name] + roundings * SMALLEST[arithmetic]
        )
        error = np.abs(got - golden)
        rounded = wide(precision.round_to(golden, actual.dtype))
        # Near the largest finite value both that value and infinity are right, within the tolerance.
        high = wide(precision.round_to(golden + slack, actual.dtype))
        low = wide(precision.round_to(golden - slack, actual.dtype))
    same = (got == rounded) | (np.isnan(got) & np.isnan(rounded)) | (np.isinf(got) & ((got == high) | (got == low)))
    wrong = ~(same | (error <= bound))
    if wrong.any():
        at = tuple(int(i) for i in np.argwhere(wrong)[0])
        raise AssertionError(
            f"{int(wrong.sum())} of {wrong.size} elements are too far off; "
            f"at {at}: {got[at]!r} instead of {golden[at]!r}, "
            f"bound {np.broadcast_to(bound, golden.shape)[at]!r}"
        )


def assert_same_specials(actual: Array, golden: npt.ArrayLike) -> None:
    """Checks that NaN and infinities, with their signs, are in the same places."""
    found, rounded = wide(actual), wide(precision.round_to(np.asarray(golden, np.float64), actual.dtype))
    at = np.isfinite(found) & np.isfinite(rounded)
    np.testing.assert_array_equal(np.where(at, 0.0, found), np.where(at, 0.0, rounded))


def arithmetic_of(*arrays: Array) -> str:
    return "DOUBLE" if any(a.dtype == np.float64 for a in arrays) else "FLOAT"


def digest(*arrays: Array) -> str:
    """One string for the bits of all arrays."""
    state = hashlib.sha256()
    for array in arrays:
        state.update(np.ascontiguousarray(array).view(np.uint8).tobytes())
    return state.hexdigest()


def assert_same_bits(actual: Sequence[Array], expected: Sequence[Array]) -> None:
    for a, e in zip(actual, expected, strict=True):
        assert a.dtype == e.dtype
        assert a.shape == e.shape
        bits = f"u{a.dtype.itemsize}"
        different = np.asarray(a).view(bits) != np.asarray(e).view(bits)
        assert not different.any(), f"{int(different.sum())} of {different.size} elements have other bits"


# --- calls ---------------------------------------------------------------------------------------------------------


@contextmanager
def refused(status: int, *words: str) -> Iterator[SimpleNamespace]:
    """The call in the block must fail with exactly this status, and one plain sentence that has all these words.

    The first word is usually the operator: sentences begin with it.
    """
    found = SimpleNamespace(sentence="")
    with pytest.raises(aclnn.AclnnError) as caught:
        yield found
    error = caught.value
    sentence = found.sentence = str(error)
    assert (error.status, error.name) == (status, CODES.get(status, error.name)), sentence
    for word in words:
        assert word in sentence, f"{word!r} is not in: {sentence}"
    if words:
        assert sentence.startswith(f"{words[0]}: "), sentence
    assert sentence.endswith("."), sentence
    assert "\n" not in sentence
    if status in (161001, 161002, 561002, 561003):
        assert isinstance(error, ValueError)


def phase1(operator: str, *arguments: Any) -> tuple[int, Any]:
    return getattr(aclnn, f"{operator}_get_workspace_size")(*arguments)


def run_two_phase(
    operator: str, *arguments: Any, product: str = "host", stream: acl.Stream | None = None, poison: bool = True
) -> None:
    """Both phases and the wait between them; the workspace begins as NaN."""
    with acl.product(product):
        size, executor = phase1(operator, *arguments)
    workspace = acl.malloc(size)
    if size and poison:
        np.frombuffer(workspace, np.uint8)[:] = 0xFF
    stream = stream or acl.Stream()
    getattr(aclnn, operator)(workspace, size, executor, stream)
    stream.synchronize()


def run_python(
    code: str, *arguments: str, timeout: float = 60, check: bool = True, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Runs code in an interpreter of its own, with this folder on its path."""
    here = os.path.dirname(__file__)
    path = os.pathsep.join(filter(None, [here, os.environ.get("PYTHONPATH")]))
    result = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env={**os.environ, "PYTHONPATH": path, **environment},
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    if check:
        assert result.returncode == 0, f"exit status {result.returncode}\n{result.stdout}\n{result.stderr}"
    return result


def python_value(code: str, *arguments: str, timeout: float = 60, **environment: str) -> Any:
    """The last line that the code prints, read as JSON."""
    return json.loads(run_python(code, *arguments, timeout=timeout, **environment).stdout.splitlines()[-1])


def in_threads(count: int, body: Callable[[int], Any]) -> list[Any]:
    """Runs body(0), ... at once and returns what they return; the first failure of any is raised."""
    results: list[Any] = [None] * count
    failures: list[BaseException] = []
    gate = threading.Barrier(count)

    def run(i: int) -> None:
        try:
            gate.wait(30)
            results[i] = body(i)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(i,), daemon=True) for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not any(thread.is_alive() for thread in threads), "a thread hangs"
    if failures:
        raise failures[0]
    return results
