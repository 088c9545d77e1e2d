"""oneDNN through its C interface: its primitives on NumPy arrays.

A primitive is made once, for its shapes, dtypes and threads; a job executes primitives into arrays that are there, and
waits. Scale, shift and their gradients are float32, which every release takes. What oneDNN needs in another form
(variance in place of rstd, a mask as factors), and what a forward keeps for its backward, is made beforehand.
"""

from __future__ import annotations

import ctypes
import os
import weakref
from collections.abc import Mapping
from functools import lru_cache
from importlib import metadata
from typing import Any

import numpy as np

import descend
from benchmarks.operator import Array, Call, aligned

VARIABLE = "ONEDNN_LIBRARY"
"""Environment variable: the path of a libdnnl.so.3 that is taken before any that is installed."""
PACKAGE = "onednn-cpu-gomp"
"""The package that needs nothing else for CPUs; the newer package onednn needs SYCL and OpenCL."""

_DTYPES = {"float16": 1, "bfloat16": 2, "float32": 3, "uint8": 6}
_CPU, _IN_ORDER, _OPENMP = 1, 1, 2
_TRAINING, _INFERENCE, _BACKWARD = 64, 96, 128
_GLOBAL_STATISTICS, _SCALE, _SHIFT, _RMS = 0x1, 0x2, 0x4, 0x20
_LINEAR, _SWISH = 0x26, 0x2C
_ADD, _MULTIPLY = 0x1FFF0, 0x1FFF1
_SUM_OF_POWERS, _SOFTMAX = 0x2FFFA, 0x30000
_SRC, _SRC_1, _DST, _WEIGHTS, _MEAN, _VARIANCE, _GAMMA, _BETA = 1, 2, 17, 33, 49, 50, 51, 52
_DIFF_SRC, _DIFF_DST, _DIFF_GAMMA, _DIFF_BETA = 129, 145, 255, 256
_POST_OP = 32768
_STATUS = ("success", "out of memory", "invalid arguments", "not implemented", "last implementation", "runtime error")


class OneDnnError(RuntimeError):
    """A function of oneDNN failed, or this release has none of that name."""


def find(package: str = PACKAGE) -> str | None:
    """The path of oneDNN's library; None where there is none."""
    if path := os.environ.get(VARIABLE):
        return path
    try:
        files = metadata.files(package) or ()
    except metadata.PackageNotFoundError:
        return None
    return next((str(file.locate()) for file in files if file.name == "libdnnl.so.3"), None)


def version() -> str | None:
    """The release of the library that is found; None where it cannot be loaded, or finds no processor to run on."""
    try:
        return library().version
    except (OSError, OneDnnError):
        return None


class _Version(ctypes.Structure):
    _fields_ = (
        ("major", ctypes.c_int),
        ("minor", ctypes.c_int),
        ("patch", ctypes.c_int),
        ("hash", ctypes.c_char_p),
        ("cpu_runtime", ctypes.c_uint),
        ("gpu_runtime", ctypes.c_uint),
    )


class _Argument(ctypes.Structure):
    _fields_ = (("index", ctypes.c_int), ("memory", ctypes.c_void_p))


class _Handle:
    """One of oneDNN's objects; it is destroyed with this one."""

    def __init__(self, value: ctypes.c_void_p, destroy: Any) -> None:
        self._as_parameter_ = value
        weakref.finalize(self, destroy, value)


class OneDnn:
    """The library at a path, with an engine for processors and a stream."""

    def __init__(self, path: str) -> None:
        self._c = ctypes.CDLL(path)
        self._c.dnnl_version.restype = ctypes.POINTER(_Version)
        about = self._c.dnnl_version().contents
        self.version = f"{about.major}.{about.minor}.{about.patch}"
        self._openmp = about.cpu_runtime == _OPENMP
        self._engine = self._create("engine", "engine_create", _CPU, ctypes.c_size_t(0))
        self._stream = self._create("stream", "stream_create", self._engine, _IN_ORDER)

    def describe(self, name: str, *arguments: Any) -> _Handle:
        """A primitive's descriptor from the arguments of its function in C: an array stands for its own descriptor."""
        self._follow_threads()
        return self._create("primitive_desc", f"{name}_primitive_desc_create", self._engine, *arguments)

    def post_ops(self, *post_ops: tuple[Any, ...]) -> _Handle:
        """Attributes: what a primitive does to its results before it stores them, each a kind and its arguments."""
        chain = self._create("post_ops", "post_ops_create")
        for kind, *arguments in post_ops:
            self._call(f"post_ops_append_{kind}", chain, *arguments)
        attributes = self._create("primitive_attr", "primitive_attr_create")
        self._call("primitive_attr_set_post_ops", attributes, chain)
        return attributes

    def job(self, *steps: tuple[_Handle, Mapping[int, Array]], results: Any = None) -> Call:
        """Primitives one after the other, each from a descriptor and arrays by argument; gives the results."""
        self._follow_threads()
        made = []
        for description, arrays in steps:
            memories = [
                self._create("memory", "memory_create", array, self._engine, array.ctypes) for array in arrays.values()
            ]
            arguments = (_Argument * len(memories))(
                *(_Argument(index, memory._as_parameter_) for index, memory in zip(arrays, memories, strict=True))
            )
            made.append((self._create("primitive", "primitive_create", description), arguments, memories, arrays))

        execute, wait, stream = self._c.dnnl_primitive_execute, self._c.dnnl_stream_wait, self._stream

        def run() -> Any:
            for primitive, arguments, *_ in made:
                self._check("primitive_execute", execute(primitive, stream, len(arguments), arguments))
            self._check("stream_wait", wait(stream))
            return results

        return run

    def _follow_threads(self) -> None:
        """As many threads as Descend; other runtimes than OpenMP take the processors that the process may use."""
        if self._openmp:
            self._c.omp_set_num_threads(descend.get_num_threads())

    def _create(self, kind: str, function: str, *arguments: Any) -> _Handle:
        """The object that a function makes."""
        value = ctypes.c_void_p()
        self._call(function, ctypes.byref(value), *arguments)
        return _Handle(value, getattr(self._c, f"dnnl_{kind}_destroy"))

    def _call(self, function: str, *arguments: Any) -> None:
        """A function that returns a status."""
        try:
            call = getattr(self._c, f"dnnl_{function}")
        except AttributeError:
            raise OneDnnError(f"oneDNN {self.version} has no dnnl_{function}") from None
        given = [self._to_c(argument) for argument in arguments]
        self._check(function, call(*given))

    @staticmethod
    def _check(function: str, status: int) -> None:
        if status:
            raise OneDnnError(f"dnnl_{function}: {_STATUS[status] if status < len(_STATUS) else status}")

    def _to_c(self, argument: Any) -> Any:
        if isinstance(argument, float):
            return ctypes.c_float(argument)
        if not isinstance(argument, np.ndarray):
            return argument
        dimensions = ctypes.c_int64 * argument.ndim
        strides = dimensions(*(stride // argument.itemsize for stride in argument.strides))
        shape, dtype = dimensions(*argument.shape), _DTYPES[argument.dtype.name]
        return self._create("memory_desc", "memory_desc_create_with_strides", argument.ndim, shape, dtype, strides)


@lru_cache
def library() -> OneDnn:
    """The library that is found, loaded once."""
    path = find()
    if path is None:
        raise OSError(f"oneDNN is not installed: pip install {PACKAGE}, or name a libdnnl.so.3 in {VARIABLE}")
    return OneDnn(path)


def layer_norm(x: Array, weight: Array, bias: Array, epsilon: float) -> Call:
    """Layer normalization of rows: gives y, mean and rstd."""
    c, (mean, variance) = library(), _statistics(x.shape[0])
    y, rstd = aligned(x.shape, x.dtype), aligned((x.shape[0], 1), "float32")
    forward = c.describe("layer_normalization_forward", _TRAINING, x, y, mean, epsilon, _SCALE | _SHIFT, None)
    arrays = {_SRC: x, _DST: y, _MEAN: mean, _VARIANCE: variance, _GAMMA: _wide(weight), _BETA: _wide(bias)}
    return _with_rstd(c.job((forward, arrays), results=(y, mean[:, None], rstd)), variance[:, None], epsilon, rstd)


def layer_norm_backward(
    dy: Array, x: Array, mean: Array, rstd: Array, weight: Array, bias: Array, epsilon: float
) -> Call:
    """Layer normalization's gradients: those of x, weight and bias."""
    c, flags = library(), _SCALE | _SHIFT
    dx, dweight, dbias = _results(dy, weight, bias)
    given = {_SRC: x, _DIFF_DST: dy, _MEAN: mean.ravel(), _VARIANCE: _to_variance(rstd, epsilon).ravel()}
    given |= {_GAMMA: _wide(weight), _BETA: _wide(bias)}
    return c.job(
        (
            _layer_norm_backward(c, dy, x, epsilon, flags),
            given | {_DIFF_SRC: dx, _DIFF_GAMMA: dweight, _DIFF_BETA: dbias},
        ),
        results=(dx, dweight, dbias),
    )


def rms_norm_flag(x: Array, gamma: Array, epsilon: float) -> Call:
    """Layer normalization with the flag for RMS (3.8 and newer): gives y and rstd."""
    c, (_, variance) = library(), _statistics(x.shape[0])
    y, rstd = aligned(x.shape, x.dtype), aligned((x.shape[0], 1), "float32")
    forward = c.describe("layer_normalization_forward", _TRAINING, x, y, variance, epsilon, _SCALE | _RMS, None)
    run = c.job((forward, {_SRC: x, _DST: y, _VARIANCE: variance, _GAMMA: _wide(gamma)}), results=(y, rstd))
    return _with_rstd(run, variance[:, None], epsilon, rstd)


def rms_norm(x: Array, gamma: Array, epsilon: float) -> Call:
    """The mean of squares by a reduction, then layer normalization with these statistics: gives y and rstd."""
    c, (rows, columns) = library(), x.shape
    y, rstd, (mean, variance) = aligned(x.shape, x.dtype), aligned((rows, 1), "float32"), _statistics(rows)
    squares = variance[:, None]
    divided = c.post_ops(("eltwise", _LINEAR, 1.0 / columns, 0.0))
    flags = _SCALE | _GLOBAL_STATISTICS
    run = c.job(
        (c.describe("reduction", _SUM_OF_POWERS, x, squares, 2.0, 0.0, divided), {_SRC: x, _DST: squares}),
        (
            c.describe("layer_normalization_forward", _INFERENCE, x, y, mean, epsilon, flags, None),
            {_SRC: x, _DST: y, _MEAN: mean, _VARIANCE: variance, _GAMMA: _wide(gamma)},
        ),
        results=(y, rstd),
    )
    return _with_rstd(run, squares, epsilon, rstd)


def rms_norm_backward_flag(dy: Array, x: Array, rstd: Array, gamma: Array, epsilon: float) -> Call:
    """Layer normalization's gradients with the flag for RMS (3.8 and newer): those of x and gamma.

    3.13.2 subtracts the mean of dy gamma there, as if for layer norm: its gradient of x is wrong.
    """
    c = library()
    dx, dgamma = _results(dy, gamma)
    given = {_SRC: x, _DIFF_DST: dy, _VARIANCE: _to_variance(rstd, epsilon).ravel(), _GAMMA: _wide(gamma)}
    backward = _layer_norm_backward(c, dy, x, epsilon, _SCALE | _RMS)
    return c.job(
        (backward, given | {_DIFF_SRC: dx, _DIFF_GAMMA: dgamma}),
        results=(dx, dgamma),
    )


def rms_norm_backward(dy: Array, x: Array, rstd: Array, gamma: Array, epsilon: float) -> Call:
    """RMS norm's gradients by three primitives: those of x and gamma.

    Layer normalization about a mean of 0 gives rstd (g - mean(g) - xhat mean(g xhat)), g = dy gamma; what is
    missing, rstd mean(g), comes from a matrix product with gamma, and is added.
    """
    c, (rows, columns) = library(), x.shape
    dx, dgamma = _results(dy, gamma)
    mean, _ = _statistics(rows)
    given = {_SRC: x, _DIFF_DST: dy, _MEAN: mean, _VARIANCE: _to_variance(rstd, epsilon).ravel(), _GAMMA: _wide(gamma)}
    column, factor, missing = gamma.reshape(columns, 1), _wide(rstd / columns), aligned((rows, 1), "float32")
    scaled = c.post_ops(("binary", _MULTIPLY, factor))
    return c.job(
        (_layer_norm_backward(c, dy, x, epsilon, _SCALE), given | {_DIFF_SRC: dx, _DIFF_GAMMA: dgamma}),
        (
            c.describe("matmul", dy, column, None, missing, scaled),
            {_SRC: dy, _WEIGHTS: column, _DST: missing, _POST_OP | _SRC_1: factor},
        ),
        (c.describe("binary", _ADD, dx, missing, dx, None), {_SRC: dx, _SRC_1: missing, _DST: dx}),
        results=(dx, dgamma),
    )


def group_norm_swish(x: Array, gamma: Array, beta: Array, groups: int, epsilon: float) -> Call:
    """Group normalization with swish on what it stores (3.3 and newer): gives y, mean and rstd."""
    c, planes = library(), _planes(x)
    y, (mean, variance, rstd) = aligned(x.shape, x.dtype), (aligned((x.shape[0], groups), "float32") for _ in range(3))
    swish = c.post_ops(("eltwise", _SWISH, 1.0, 0.0))
    forward = _group_norm(c, planes, _planes(y), mean, variance, gamma, beta, groups, epsilon, swish)
    return _with_rstd(c.job(forward, results=(y, mean, rstd)), variance, epsilon, rstd)


def group_norm_swish_backward(
    dy: Array, mean: Array, rstd: Array, x: Array, gamma: Array, beta: Array, groups: int, epsilon: float
) -> Call:
    """Gradients of swish, then of group normalization (3.3 and newer): those of x, gamma and beta.

    What enters swish is kept from a forward, as autograd keeps it. 3.6.2 gives a wrong gradient of x, 3.13.2 not.
    """
    c, planes, dy_planes = library(), _planes(x), _planes(dy)
    variance = _to_variance(rstd, epsilon)
    z, dz = aligned(planes.shape, x.dtype), aligned(planes.shape, x.dtype)
    normalize, arrays = _group_norm(c, planes, z, mean.copy(), variance.copy(), gamma, beta, groups, epsilon, None)
    c.job((normalize, arrays))()
    dx, dgamma, dbeta = _results(dy, gamma, beta)
    swish = c.describe("eltwise_forward", _TRAINING, _SWISH, z, z, 1.0, 0.0, None)
    flags, number = _SCALE | _SHIFT, ctypes.c_int64(groups)
    given = {_SRC: planes, _DIFF_DST: dz, _MEAN: mean, _VARIANCE: variance, _GAMMA: _wide(gamma), _BETA: _wide(beta)}
    return c.job(
        (
            c.describe("eltwise_backward", _SWISH, dz, dy_planes, z, 1.0, 0.0, swish, None),
            {_SRC: z, _DIFF_DST: dy_planes, _DIFF_SRC: dz},
        ),
        (
            c.describe(
                "group_normalization_backward", _BACKWARD, planes, dz, planes, number, epsilon, flags, normalize, None
            ),
            given | {_DIFF_SRC: _planes(dx), _DIFF_GAMMA: dgamma, _DIFF_BETA: dbeta},
        ),
        results=(dx, dgamma, dbeta),
    )


def scaled_masked_softmax(x: Array, mask: Array, scale: float, hidden: float = -10000.0) -> Call:
    """Scores times scale where they are not masked, plus the value for masked ones; then softmax of rows."""
    c, y = library(), aligned(x.shape, x.dtype)
    kept, instead = (~mask).view(np.uint8), np.where(mask, np.float32(hidden), np.float32(0)).astype(x.dtype)
    chain = c.post_ops(("eltwise", _LINEAR, scale, 0.0), ("binary", _ADD, instead))
    return c.job(
        (
            c.describe("binary", _MULTIPLY, x, kept, y, chain),
            {_SRC: x, _SRC_1: kept, _DST: y, 2 * _POST_OP | _SRC_1: instead},
        ),
        (_softmax(c, y), {_SRC: y, _DST: y}),
        results=y,
    )


def scaled_masked_softmax_backward(dy: Array, y: Array, mask: Array, scale: float) -> Call:
    """Softmax's gradient, then a product with the inverted mask and the scale."""
    c, dx = library(), aligned(y.shape, y.dtype)
    kept = (~mask).view(np.uint8)
    backward = c.describe("softmax_backward", _SOFTMAX, dx, dy, y, y.ndim - 1, _softmax(c, y), None)
    scaled = c.post_ops(("eltwise", _LINEAR, scale, 0.0))
    return c.job(
        (backward, {_DST: y, _DIFF_DST: dy, _DIFF_SRC: dx}),
        (c.describe("binary", _MULTIPLY, dx, kept, dx, scaled), {_SRC: dx, _SRC_1: kept, _DST: dx}),
        results=dx,
    )


def _layer_norm_backward(c: OneDnn, dy: Array, x: Array, epsilon: float, flags: int) -> _Handle:
    forward = c.describe("layer_normalization_forward", _TRAINING, x, x, None, epsilon, flags, None)
    return c.describe("layer_normalization_backward", _BACKWARD, dy, dy, x, None, epsilon, flags, forward, None)


def _group_norm(
    c: OneDnn,
    x: Array,
    y: Array,
    mean: Array,
    variance: Array,
    gamma: Array,
    beta: Array,
    groups: int,
    epsilon: float,
    attributes: _Handle | None,
) -> tuple[_Handle, dict[int, Array]]:
    number, flags = ctypes.c_int64(groups), _SCALE | _SHIFT
    forward = c.describe("group_normalization_forward", _TRAINING, x, y, number, epsilon, flags, attributes)
    arrays = {_SRC: x, _DST: y, _MEAN: mean, _VARIANCE: variance, _GAMMA: _wide(gamma), _BETA: _wide(beta)}
    return forward, arrays


def _softmax(c: OneDnn, y: Array) -> _Handle:
    return c.describe("softmax_forward", _TRAINING, _SOFTMAX, y, y, y.ndim - 1, None)


def _planes(x: Array) -> Array:
    """Samples, channels and pixels: group normalization takes no fewer than three dimensions."""
    return x.reshape(*x.shape[:2], -1)


def _wide(x: Array) -> Array:
    wide = aligned(x.shape, "float32")
    wide[...] = x
    return wide


def _results(dx_like: Array, *parameters: Array) -> tuple[Array, ...]:
    """Arrays for the gradients of x and, in float32, of the parameters."""
    return aligned(dx_like.shape, dx_like.dtype), *(aligned(part.shape, "float32") for part in parameters)


def _statistics(rows: int) -> tuple[Array, Array]:
    """Arrays for mean and variance."""
    return aligned((rows,), "float32"), aligned((rows,), "float32")


def _to_variance(rstd: Array, epsilon: float) -> Array:
    return _wide(1 / np.square(rstd.astype(np.float64)) - epsilon)


def _with_rstd(run: Call, variance: Array, epsilon: float, rstd: Array) -> Call:
    """The job, and rstd from the variance that it leaves."""

    def call() -> Any:
        results = run()
        np.add(variance, np.float32(epsilon), out=rstd)
        np.sqrt(rstd, out=rstd)
        np.reciprocal(rstd, out=rstd)
        return results

    return call
