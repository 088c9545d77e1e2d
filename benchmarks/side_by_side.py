"""Two builds of the library in one process, in turns on the same arrays: how much faster is one than the other?

    .venv/bin/python -m benchmarks.side_by_side OLD/libdescend.so NEW/libdescend.so --op rms_norm_grad --points 100

A ratio is the median over rounds of old time / new time, so that whatever else the machine does meets both: above 1 the
new build is faster. Points are an even sample of the sweep; `--shape 4096x4096` names some.
"""

from __future__ import annotations

import argparse
import ctypes
import math
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from ctypes import byref, c_bool, c_double, c_int32, c_int64, c_uint64, c_void_p
from pathlib import Path
from typing import Any

import numpy as np

import descend  # noqa: F401  # its own library first: a build with the same name would be taken for it
from benchmarks import OPERATORS, sweep
from benchmarks.operator import Operator, Problem, Shape, load
from benchmarks.ours import _arguments

_DTYPES = {"float32": 0, "float16": 1, "int64": 9, "float64": 11, "bool": 12, "bfloat16": 27}
_ND = 2


class Build:
    """One library, with a stream of its own."""

    def __init__(self, path: Path, threads: int) -> None:
        self.c = ctypes.CDLL(str(path.resolve()), mode=ctypes.RTLD_LOCAL)
        for name in ("aclCreateTensor", "aclCreateIntArray", "aclCreateBoolArray"):
            getattr(self.c, name).restype = c_void_p
        self.c.aclGetRecentErrMsg.restype = ctypes.c_char_p
        self.stream = c_void_p()
        self._check(self.c.aclInit(None))
        self._check(self.c.aclrtSetDevice(0))
        self._check(self.c.descendSetProduct(b"host"))
        self._check(self.c.descendSetNumThreads(threads))
        self._check(self.c.aclrtCreateStream(byref(self.stream)))

    def _check(self, status: int) -> None:
        if status != 0:
            raise RuntimeError(f"{status}: {self.c.aclGetRecentErrMsg().decode()}")

    def _tensor(self, array: np.ndarray[Any, Any]) -> c_void_p:
        shape = (c_int64 * max(array.ndim, 1))(*array.shape)
        strides = (c_int64 * max(array.ndim, 1))(*(stride // array.itemsize for stride in array.strides))
        kind = c_int32(_DTYPES[array.dtype.name])
        rank = c_uint64(array.ndim)
        return c_void_p(
            self.c.aclCreateTensor(
                shape, rank, kind, strides, c_int64(0), c_int32(_ND), shape, rank, c_void_p(array.ctypes.data)
            )
        )

    def _argument(self, value: Any, kind: str) -> Any:
        if value is None:
            return c_void_p()
        if kind == "tensor":
            return self._tensor(value)
        if kind == "int_array":
            return c_void_p(self.c.aclCreateIntArray((c_int64 * len(value))(*value), c_uint64(len(value))))
        if kind == "bool_array":
            return c_void_p(self.c.aclCreateBoolArray((c_bool * len(value))(*value), c_uint64(len(value))))
        if kind == "float":
            return c_double(value)
        if kind == "bool":
            return c_bool(value)
        return ctypes.c_char_p(value.encode()) if kind == "str" else c_int64(value)

    def call(self, operator: Operator, problem: Problem) -> Callable[[], None]:
        """The call on the problem's arrays, planned once."""
        from descend.contract import OPERATORS as CONTRACTS

        contract = CONTRACTS[operator.name]
        if len({parameter.name for parameter in contract.parameters}) < len(contract.parameters):
            raise SystemExit(f"{operator.name} works in place in C, which is not measured here")
        values = zip(_arguments(operator, problem), contract.parameters, strict=True)
        given = [self._argument(value, parameter.kind) for value, parameter in values]
        size, executor = c_uint64(), c_void_p()
        first, second = getattr(self.c, contract.c_name + "GetWorkspaceSize"), getattr(self.c, contract.c_name)
        self._check(first(*given, byref(size), byref(executor)))
        self._check(self.c.aclSetAclOpExecutorRepeatable(executor))
        workspace = np.empty(size.value + 64, np.uint8)
        address = c_void_p((workspace.ctypes.data + 63) // 64 * 64)
        synchronize, stream = self.c.aclrtSynchronizeStream, self.stream

        def run() -> None:
            _ = workspace
            if second(address, size, executor, stream) != 0 or synchronize(stream) != 0:
                self._check(1)

        return run


def pause(microseconds: float) -> None:
    """Other work for so long; from a millisecond on sleep."""
    if microseconds >= 1000:
        time.sleep(1e-6 * microseconds)
    end = time.perf_counter() + 1e-6 * microseconds
    while time.perf_counter() < end:
        pass


def ratio(
    old: Callable[[], None], new: Callable[[], None], seconds: float, clock: Callable[[], float], apart: float = 0
) -> tuple[float, float, float]:
    """The median of old / new over rounds, and the least time of each; calls come `apart` microseconds apart."""

    def timed(call: Callable[[], None], times: int) -> float:
        if apart == 0:
            start = clock()
            for _ in range(times):
                call()
            return (clock() - start) / times
        total = 0.0
        for _ in range(times):
            pause(apart)
            start = clock()
            call()
            total += clock() - start
        return total / times

    timed(old, 2), timed(new, 2)
    times = max(1, math.ceil(2e-4 / max(1e-6, min(timed(old, 3), timed(new, 3)))))
    found: list[tuple[float, float]] = []
    end = time.perf_counter() + seconds
    while len(found) < 7 or (time.perf_counter() < end and len(found) < 400):
        if len(found) % 2:
            second = timed(new, times)
            found.append((timed(old, times), second))
        else:
            found.append((timed(old, times), timed(new, times)))
    return (
        statistics.median(a / b for a, b in found),
        min(a for a, _ in found),
        min(b for _, b in found),
    )


def same(operator: Operator, problem: Problem, old: Callable[[], None], new: Callable[[], None]) -> bool:
    """Whether both builds leave the same bits."""
    bits = []
    for call in (old, new):
        for array in problem.outputs.values():
            array.reshape(-1).view(np.uint8)[...] = 0xFF
        call()
        bits.append([array.tobytes() for array in problem.outputs.values()])
    return bits[0] == bits[1]


def points(arguments: argparse.Namespace) -> list[tuple[Operator, Shape, str]]:
    """What is measured."""
    operators = [load(name) for name in arguments.op]
    if arguments.shape:
        shapes = [tuple(int(n) for n in text.split("x")) for text in arguments.shape]
        return [(op, shape, dtype) for op in operators for shape in shapes for dtype in arguments.dtype]
    return sweep.plan(operators, arguments.dtype, arguments.last_cache << 20)[: arguments.points]


def main(argv: Sequence[str] | None = None) -> int:
    """Measures, prints a line a point and what they come to."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path)
    parser.add_argument("--op", nargs="+", default=["rms_norm_grad"], choices=sorted(OPERATORS))
    parser.add_argument("--dtype", nargs="+", default=["float32", "float16", "bfloat16"])
    parser.add_argument("--shape", nargs="+")
    parser.add_argument("--points", type=int, default=100)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=0.15, help="for a point")
    parser.add_argument("--last-cache", type=int, default=32, help="MiB; the sweep's sizes follow from it")
    parser.add_argument(
        "--apart", type=float, default=0, metavar="US", help="microseconds from call to call; 1000: sleep"
    )
    parser.add_argument("--processor-time", action="store_true", help="where others keep the processor busy")
    arguments = parser.parse_args(argv)
    builds = [Build(path, arguments.threads) for path in (arguments.old, arguments.new)]
    clock = time.process_time if arguments.processor_time else time.perf_counter
    found: list[float] = []
    for operator, shape, dtype in points(arguments):
        problem = operator.make(shape, dtype, np.random.default_rng(1))
        old, new = (build.call(operator, problem) for build in builds)
        bits = "" if same(operator, problem, old, new) else "  other bits"
        value, before, after = ratio(old, new, arguments.seconds, clock, arguments.apart)
        found.append(value)
        name = "x".join(str(n) for n in shape)
        times = f"{before * 1e6:10.2f} {after * 1e6:10.2f} us"
        print(f"{operator.name:20} {dtype:9} {name:16} {times} {value:6.3f}{bits}", flush=True)
    mean = math.exp(statistics.fmean(math.log(value) for value in found))
    below = sum(value < 0.8 for value in found)
    print(f"{len(found)} points: geometric mean {mean:.3f}, least {min(found):.3f}, {below} below 0.8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
