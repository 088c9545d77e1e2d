"""Calls of all operators that take every path of the kernels, with numbers in all ranges that these treat apart."""

from __future__ import annotations

import ast
import itertools
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Any

import ml_dtypes
import numpy as np

import descend
from cases import DTYPES, FLOATS, Array, dtype_name, phase1
from descend import acl
from descend.contract import OPERATORS
from row_operator import shapes_of
from test_group_norm_swish_grad import PATHS

F32, F16, BF16, F64 = "FLOAT", "FLOAT16", "BFLOAT16", "DOUBLE"
BIG = 250_000  # elements of a tensor; of larger ones one dtype is enough


@dataclass
class Piece:
    """A part of a call that can be computed alone: its tensors, and the place of its results among the whole's."""

    tensors: dict[str, Any]
    results: dict[str, slice]


@dataclass
class Call:
    """A call of an operator: inputs and attributes by their names in the functional API, and outputs to copy."""

    operator: str
    inputs: dict[str, Any]
    outputs: dict[str, Array]
    pieces: list[Piece] = field(default_factory=list)

    def new_outputs(self, fill: int = 0xFF) -> dict[str, Array]:
        """Outputs of which every byte is `fill`."""
        made = {name: np.empty_like(array) for name, array in self.outputs.items()}
        for array in made.values():
            array.reshape(-1).view(np.uint8)[...] = fill
        return made

    def run(self, outputs: dict[str, Array] | None = None) -> list[Array]:
        """The functional API, into outputs that are NaN before."""
        given = outputs or self.new_outputs()
        out = [given.get(p.python) for p in OPERATORS[self.operator].outputs]
        getattr(descend, self.operator)(**self.inputs, out=out if len(out) > 1 else out[0])
        return list(given.values())

    def phase1(self, outputs: dict[str, Array]) -> tuple[int, Any]:
        """The first phase on `host`: the size of the workspace, and the executor."""
        values = {**self.inputs, **outputs}
        with acl.product("host"):
            return phase1(self.operator, *(values.get(p.python) for p in OPERATORS[self.operator].parameters))

    def of(self, piece: Piece) -> Call:
        """The piece as a call of its own."""
        outputs = {n: np.empty_like(a[piece.results[n]] if n in piece.results else a) for n, a in self.outputs.items()}
        return Call(self.operator, {**self.inputs, **piece.tensors}, outputs)


def smallest_normal(dtype: str) -> float:
    return float(ml_dtypes.finfo(DTYPES[dtype]).smallest_normal)


@lru_cache(maxsize=8)
def drawn(seed: int, shape: tuple[int, ...], kind: type) -> Array:
    return np.random.default_rng(seed).standard_normal(shape, kind)


def numbers(seed: int, shape: Sequence[int], dtype: str, scale: float = 1.0) -> Array:
    """Normal numbers with all their digits, some of them subnormal, others so small that products become subnormal."""
    values = drawn(seed, tuple(shape), np.float64 if dtype == F64 else np.float32)
    values = values * values.dtype.type(scale)
    flat, tiny = values.reshape(-1), smallest_normal(dtype)
    flat[2::97] *= tiny * 0.3
    flat[5::101] *= np.sqrt(tiny)
    return values.astype(DTYPES[dtype])


def rows_that_differ(x: Array) -> Array:
    """Rows far from 0 whose mean is not near their first element, tiny rows, and rows near the largest numbers."""
    with np.errstate(over="ignore"):
        x[3::11] += x.dtype.type(30)
        x[4::11] *= x.dtype.type({F32: 1e-25, BF16: 1e-25, F16: 1e-4, F64: 1e-170}[dtype_name(x)])
        x[6::11] *= x.dtype.type({F32: 1e25, BF16: 1e25, F16: 1e3, F64: 1e170}[dtype_name(x)])
        x[8::11, : x.shape[1] // 3] += x.dtype.type(100)
    return x


def statistic(seed: int, shape: Sequence[int], dtype: str) -> Array:
    """Positive numbers around 1, and some so large or small that rows with such an rstd are computed differently."""
    values = np.abs(np.random.default_rng(seed).standard_normal(tuple(shape))) + 0.25
    if dtype != F16:
        values.reshape(-1)[5::11] *= 2.0**-45
        values.reshape(-1)[9::11] *= 2.0**45
    return values.astype(DTYPES[dtype])


def wide_of(dtype: str) -> str:
    return F64 if dtype == F64 else F32


def some_rows(rows: int) -> list[slice]:
    """A row alone, from either end and the middle; a small batch; a larger one that begins elsewhere."""
    chosen = [slice(0, 1), slice(rows // 2, rows // 2 + 1), slice(rows - 1, rows), slice(1, 4), slice(rows // 3, None)]
    return [part for part in chosen if 0 < len(range(rows)[part]) < rows]


def with_pieces(call: Call, along: Sequence[str], rows: int) -> Call:
    """The call with parts of its leading axis: of the inputs and outputs named, those that have it."""
    for part in some_rows(rows):
        inputs = {name: call.inputs[name][part] for name in along if name in call.inputs}
        call.pieces.append(Piece(inputs, {name: part for name in along if name in call.outputs}))
    return call


def rms_norm(shape: tuple[int, int], dtypes: Sequence[str]) -> Call:
    x, gamma, y, rstd = dtypes
    inputs = {"x": rows_that_differ(numbers(1, shape, x)), "gamma": numbers(2, shape[1:], gamma), "epsilon": 1e-60}
    outputs = {"y_out": np.empty(shape, DTYPES[y]), "rstd_out": np.empty((shape[0], 1), DTYPES[rstd])}
    return with_pieces(Call("rms_norm", inputs, outputs), ("x", "y_out", "rstd_out"), shape[0])


def rms_norm_grad(shape: tuple[int, int], dtypes: Sequence[str]) -> Call:
    x, rstd, gamma, dx, dgamma = dtypes
    inputs = {
        "dy": numbers(3, shape, x),
        "x": numbers(1, shape, x),
        "rstd": statistic(4, (shape[0], 1), rstd),
        "gamma": numbers(2, shape[1:], gamma),
    }
    outputs = {"dx_out": np.empty(shape, DTYPES[dx]), "dgamma_out": np.empty(shape[1:], DTYPES[dgamma])}
    return with_pieces(Call("rms_norm_grad", inputs, outputs), ("dy", "x", "rstd", "dx_out"), shape[0])


def layer_norm(shape: tuple[int, int], dtypes: Sequence[str], eps: float = 1e-5) -> Call:
    x, weight, bias, out, mean, rstd = dtypes
    inputs = {
        "input": rows_that_differ(numbers(1, shape, x)),
        "normalized_shape": shape[1:],
        "weight": numbers(2, shape[1:], weight),
        "bias": numbers(5, shape[1:], bias, 1e-3),
        "eps": eps,
    }
    outputs = {
        "out": np.empty(shape, DTYPES[out]),
        "mean_out": np.empty((shape[0], 1), DTYPES[mean]),
        "rstd_out": np.empty((shape[0], 1), DTYPES[rstd]),
    }
    return with_pieces(Call("layer_norm", inputs, outputs), ("input", *outputs), shape[0])


def layer_norm_backward(
    shape: tuple[int, int], dtypes: Sequence[str], mask: Sequence[bool] = (True, True, True)
) -> Call:
    grad, x, statistics, weight, dx, dweight = dtypes
    inputs = {
        "grad_out": numbers(3, shape, grad),
        "input": numbers(1, shape, x),
        "normalized_shape": shape[1:],
        "mean": numbers(6, (shape[0], 1), statistics),
        "rstd": statistic(4, (shape[0], 1), statistics),
        "weight": numbers(2, shape[1:], weight),
        "bias": None,
        "output_mask": list(mask),
    }
    outputs = {
        "grad_input_out": np.empty(shape, DTYPES[dx]),
        "grad_weight_out": np.empty(shape[1:], DTYPES[dweight]),
        "grad_bias_out": np.empty(shape[1:], DTYPES[dweight]),
    }
    inputs["grad_out"][7::11] *= inputs["grad_out"].dtype.type(smallest_normal(grad))  # for results that are subnormal
    rows = ("grad_out", "input", "mean", "rstd", "grad_input_out")
    return with_pieces(Call("layer_norm_backward", inputs, outputs), rows, shape[0])


def group_norm_swish(
    shape: tuple[int, ...], groups: int, dtypes: Sequence[str], scale: float = 1.7, activate: bool = True
) -> Call:
    x, gamma, y = dtypes
    inputs = {
        "x": numbers(1, shape, x),
        "gamma": numbers(2, shape[1:2], gamma),
        "beta": numbers(5, shape[1:2], gamma, 1e-3),
        "num_groups": groups,
        "data_format": "NCHW",
        "eps": 1e-5,
        "activate_swish": activate,
        "swish_scale": scale,
    }
    inputs["x"][1::3] += inputs["x"].dtype.type(20)
    inputs["gamma"][1::3] *= inputs["gamma"].dtype.type(200)  # for results that are subnormal
    statistics = (shape[0], groups)
    outputs = {
        "y_out": np.empty(shape, DTYPES[y]),
        "mean_out": np.empty(statistics, DTYPES[gamma]),
        "rstd_out": np.empty(statistics, DTYPES[gamma]),
    }
    return with_pieces(Call("group_norm_swish", inputs, outputs), ("x", *outputs), shape[0])


def group_norm_swish_grad(shape: tuple[int, ...], groups: int, dtypes: Sequence[str], scale: float = 1.7) -> Call:
    x, statistics, dx, dgamma = dtypes
    inputs = {
        "dy": numbers(3, shape, x),
        "mean": numbers(6, (shape[0], groups), statistics),
        "rstd": np.abs(numbers(4, (shape[0], groups), statistics)),
        "x": numbers(1, shape, x),
        "gamma": numbers(2, shape[1:2], statistics),
        "beta": numbers(5, shape[1:2], statistics),
        "num_groups": groups,
        "data_format": "NCHW",
        "swish_scale": scale,
        "dgamma_is_require": True,
        "dbeta_is_require": True,
    }
    channels = np.empty(shape[1:2], DTYPES[dgamma])
    outputs = {"dx_out": np.empty(shape, DTYPES[dx]), "dgamma_out": channels, "dbeta_out": channels}
    return with_pieces(Call("group_norm_swish_grad", inputs, outputs), ("dy", "mean", "rstd", "x", "dx_out"), shape[0])


def group_norm(shape: tuple[int, ...], groups: int, dtype: str, name: str = "group_norm") -> Call:
    """Group norm, and group norm + SiLU: the kernel is that of group norm + swish."""
    inputs: dict[str, Any] = {
        "input": numbers(1, shape, dtype),
        "gamma": numbers(2, shape[1:2], dtype),
        "beta": numbers(5, shape[1:2], dtype, 1e-3),
        "group": groups,
        "eps": 1e-5,
    }
    for parameter in ("gamma", "beta"):  # for results that are subnormal
        inputs[parameter][:1] *= inputs[parameter].dtype.type(smallest_normal(dtype))
    if name == "group_norm":
        inputs |= {"n": shape[0], "c": shape[1], "hxw": math.prod(shape[2:])}
    statistics = np.empty((shape[0], groups), np.float32)
    outputs = {"out": np.empty(shape, DTYPES[dtype]), "mean_out": statistics, "rstd_out": statistics}
    return Call(name, inputs, outputs)


def group_norm_silu(shape: tuple[int, ...], groups: int, dtype: str) -> Call:
    return group_norm(shape, groups, dtype, "group_norm_silu")


def group_norm_backward(shape: tuple[int, ...], groups: int, dtype: str) -> Call:
    inputs = {
        "grad_out": numbers(3, shape, dtype),
        "input": numbers(1, shape, dtype),
        "mean": numbers(6, (shape[0], groups), dtype),
        "rstd": np.abs(numbers(4, (shape[0], groups), dtype)),
        "gamma": numbers(2, shape[1:2], dtype),
        **{"n": shape[0], "c": shape[1], "hxw": math.prod(shape[2:]), "group": groups},
        "output_mask": (True, True, True),
    }
    inputs["grad_out"][:, :1] *= inputs["grad_out"].dtype.type(smallest_normal(dtype) / 32)  # likewise
    channels = np.empty(shape[1:2], DTYPES[dtype])
    outputs = {"grad_input": np.empty(shape, DTYPES[dtype]), "grad_gamma_out": channels, "grad_beta_out": channels}
    return Call("group_norm_backward", inputs, outputs)


def apply_adam_w_v2(shape: tuple[int, int], dtypes: Sequence[str], amsgrad: bool = False, step: float = 3) -> Call:
    """The dtypes are those of the parameters and gradients, and of the moments."""
    own, of_moments = dtypes
    inputs = {
        "var": rows_that_differ(numbers(1, shape, own)),
        "m": numbers(2, shape, of_moments, 1e-2),
        "v": statistic(4, shape, of_moments),
        "max_grad_norm": statistic(5, shape, of_moments),
        "grad": numbers(3, shape, own),
        "step": np.float32(step).reshape(1),
        "lr": 1e-2,
        "beta1": 0.9,
        "beta2": 0.95,
        "weight_decay": 0.1,
        "eps": 1e-8,
        "amsgrad": amsgrad,
        "maximize": not amsgrad,
    }
    inputs["v"][2::7] *= inputs["v"].dtype.type(smallest_normal(of_moments))
    inputs["grad"][2::7] *= inputs["grad"].dtype.type(smallest_normal(own))  # for results that are subnormal
    inputs["grad"][3::7] *= inputs["grad"].dtype.type(smallest_normal(own) ** -0.9)  # and infinite
    outputs = {f"{name}_out": np.empty_like(inputs[name]) for name in ("var", "m", "v", *["max_grad_norm"] * amsgrad)}
    call = Call("apply_adam_w_v2", inputs, outputs)
    return with_pieces(call, ("var", "m", "v", "max_grad_norm", "grad", *outputs), shape[0])


def mask_of(form: str, shape: Sequence[int]) -> Array | None:
    """Every form that a mask can have."""
    rng = np.random.default_rng(7)
    lead = tuple(shape[:-2])
    if form == "none" or form == "triangle":
        return None
    if form == "gapped":
        return np.asarray(rng.random((*shape[:-1], 2 * shape[-1])) < 0.2)[..., ::2]
    extents = {
        "whole": tuple(shape),
        "heads": (*lead[:-1], *(1,) * len(lead[-1:]), *shape[-2:]),
        "rows": (*lead, 1, shape[-1]),
        "columns": (*shape[:-1], 1),
        "one": (1,) * len(shape),
    }
    return np.asarray(rng.random(extents[form]) < 0.2)


def softmax_pieces(call: Call, along: Sequence[str], shape: Sequence[int], form: str) -> Call:
    if form == "triangle" and len(shape) == 2:
        return call  # a row's number decides what is masked
    with_pieces(call, along, shape[0])
    mask = call.inputs["mask"]
    for part, piece in zip(some_rows(shape[0]), call.pieces, strict=True):
        if mask is not None:
            piece.tensors["mask"] = mask if mask.shape[0] == 1 else mask[part]
    return call


def scaled_masked_softmax(shape: tuple[int, ...], dtype: str, form: str = "whole", scale: float = 0.3) -> Call:
    x = numbers(1, shape, dtype, 3.0)
    x[1::5] *= x.dtype.type(30)  # for results that are subnormal
    x[3::5] *= x.dtype.type(300)
    inputs = {"x": x, "mask": mask_of(form, shape), "scale": scale, "fix_triu_mask": form == "triangle"}
    call = Call("scaled_masked_softmax", inputs, {"y": np.empty_like(x)})
    return softmax_pieces(call, ("x", "y"), shape, form)


def along_dim(name: str) -> Callable[..., Call]:
    """Makes softmax, log softmax, or the gradient of one; pieces are rows, where the dimension is the last."""

    def make(shape: tuple[int, ...], dtype: str, dim: int) -> Call:
        if name.endswith("_backward"):
            masked = scaled_masked_softmax_backward(shape, dtype, "none").inputs
            inputs = {"grad_output": masked["grad_output"], "output": masked["y"]}
            if name.startswith("log"):
                inputs["output"] = (-30 * np.abs(np.roll(masked["y"], 1))).astype(masked["y"].dtype)
                inputs["output"][..., ::3] *= masked["y"].dtype.type(40)  # of which exp is 0
        else:
            inputs = {"x": scaled_masked_softmax(shape, dtype, "none").inputs["x"]}
        call = Call(name, {**inputs, "dim": dim}, {"out": np.empty_like(next(iter(inputs.values())))})
        return with_pieces(call, (*inputs, "out"), shape[0]) if dim > 0 else call

    make.__name__ = name
    return make


def scaled_masked_softmax_backward(shape: tuple[int, ...], dtype: str, form: str = "whole", scale: float = 0.3) -> Call:
    grad, y = numbers(3, shape, dtype), numbers(1, shape, dtype)
    if dtype != F16:
        grad[1::5] *= grad.dtype.type(np.sqrt(smallest_normal(dtype)))
        grad[3::5] /= grad.dtype.type(np.sqrt(smallest_normal(dtype)))
    inputs = {"grad_output": grad, "y": y, "mask": mask_of(form, shape)}
    inputs |= {"scale": scale, "fix_triu_mask": form == "triangle"}
    call = Call("scaled_masked_softmax_backward", inputs, {"out": np.empty_like(y)})
    return softmax_pieces(call, ("grad_output", "y", "out"), shape, form)


@dataclass(frozen=True)
class Windows:
    """Windows of packed sequences that end at `ends`."""

    tokens: int
    heads: int
    depth: int
    width: int = 32
    stride: int = 16
    ends: tuple[int, ...] = ()

    def __str__(self) -> str:
        return f"{self.tokens}x{self.heads}x{self.depth}-{self.width}-{self.stride}"

    @property
    def extents(self) -> tuple[int, int, int]:
        """The input's shape."""
        return self.tokens, self.heads, self.depth

    @property
    def sequences(self) -> list[tuple[int, int, int, int]]:
        """Of each: the first token and window, and those of the next."""
        found, first, window = [], 0, 0
        for end in self.ends or (self.tokens,):
            count = max((end - first - self.width) // self.stride + 1, 0)
            found.append((first, end, window, window + count))
            first, window = end, window + count
        return found

    def attributes(self) -> dict[str, Any]:
        return {
            "act_seq_len": list(self.ends) or None,
            "compress_block_size": self.width,
            "compress_stride": self.stride,
            "act_seq_len_type": 0,
            "layout": "TND",
        }


def nsa_inputs(case: Windows, dtype: str) -> tuple[Array, Array]:
    x, weight = numbers(1, (case.tokens, case.heads, case.depth), dtype), numbers(2, (case.width, case.heads), dtype)
    weight[:, 1:2] *= weight.dtype.type(smallest_normal(dtype))  # a head of subnormal results
    return x, weight


def nsa_compress(case: Windows, dtype: str) -> Call:
    x, weight = nsa_inputs(case, dtype)
    output = np.empty((case.sequences[-1][3], case.heads, case.depth), DTYPES[dtype])
    call = Call("nsa_compress", {"input": x, "weight": weight, **case.attributes()}, {"output": output})
    for first, end, window, last in case.sequences:
        call.pieces.append(Piece({"input": x[first:end], "act_seq_len": None}, {"output": slice(window, last)}))
        for i in range(0, last - window, 7):  # a window alone
            tokens = x[first + i * case.stride :][: case.width]
            one = slice(window + i, window + i + 1)
            call.pieces.append(Piece({"input": tokens, "act_seq_len": None}, {"output": one}))
    return call


def nsa_compress_grad(case: Windows, dtype: str) -> Call:
    x, weight = nsa_inputs(case, dtype)
    grad = numbers(3, (case.sequences[-1][3], case.heads, case.depth), dtype)
    inputs = {"output_grad": grad, "input": x, "weight": weight, **case.attributes()}
    call = Call("nsa_compress_grad", inputs, {"input_grad": np.empty_like(x), "weight_grad": np.empty_like(weight)})
    for first, end, window, last in case.sequences if case.ends else ():
        alone = {"output_grad": grad[window:last], "input": x[first:end], "act_seq_len": None}
        call.pieces.append(Piece(alone, {"input_grad": slice(first, end)}))
    return call


def targets(shape: tuple[int, int], ignored: bool = True) -> Array:
    """A class for each row, of which some are ignored."""
    target = np.random.default_rng(shape[0]).integers(0, shape[1], shape[0])
    if ignored:
        target[3::7] = -100
    return target


def cross_entropy_loss(shape: tuple[int, int], dtype: str, smoothing: float = 0.0, reduction: str = "none") -> Call:
    inputs = {"input": numbers(1, shape, dtype, 4.0), "target": targets(shape, reduction == "none")}
    inputs |= {"weight": np.abs(numbers(2, shape[1:], dtype)), "reduction": reduction}
    inputs |= {
        "ignore_index": -100,
        "label_smoothing": smoothing,
        "lse_square_scale_for_zloss": 1e-3,
        "return_zloss": True,
    }
    of_rows, kind = shape[:1] if reduction == "none" else (1,), DTYPES[dtype]
    outputs = {"loss_out": np.empty(of_rows, kind), "log_prob_out": np.empty(shape, kind)}
    outputs |= {"zloss_out": np.empty(of_rows, kind), "lse_for_zloss_out": np.empty(shape[0], kind)}
    call = Call("cross_entropy_loss", inputs, outputs)
    return with_pieces(call, ["input", "target", *outputs], shape[0]) if reduction == "none" else call


def cross_entropy_loss_grad(
    shape: tuple[int, int], dtype: str, smoothing: float = 0.0, reduction: str = "none"
) -> Call:
    of_rows = shape[:1] if reduction == "none" else (1,)
    inputs = {"grad_loss": numbers(3, of_rows, dtype), "log_prob": numbers(1, shape, dtype, 4.0)}
    inputs |= {"target": targets(shape, reduction == "none")}
    inputs |= {"weight": np.abs(numbers(2, shape[1:], dtype)), "reduction": reduction}
    inputs |= {"lse_for_zloss": np.abs(numbers(4, (shape[0], 1), dtype)) + inputs["log_prob"].max(1, keepdims=True)}
    inputs |= {"grad_zloss": None, "ignore_index": -100, "label_smoothing": smoothing}
    inputs |= {"lse_square_scale_for_zloss": 1e-3}
    call = Call("cross_entropy_loss_grad", inputs, {"out": np.empty(shape, DTYPES[dtype])})
    rows = ["grad_loss", "log_prob", "target", "lse_for_zloss", "out"]
    return with_pieces(call, rows, shape[0]) if reduction == "none" else call


# One row; short rows, in whole batches and not; tiles, of full height and not; stripes and chunks; two rows at a time;
# columns split because rows are few, or long, in one group or more, and not split; stores past the caches, by one
# thread alone and by all.
ROWS = [(1, 1), (3, 7), (2000, 1), (333, 2), (4001, 4), (37, 64), (333, 7), (901, 13), (900, 17), (300, 333),
        (5000, 64), (100_000, 3), (700, 1025), (3, 8192), (20, 5000), (40, 2051), (255, 8192), (256, 8200),
        (20, 20_000), (40, 20_000), (7, 40_000), (1, 300_001), (8, 131_077), (600, 4096), (800, 1024)]  # fmt: skip


MIXED_ROWS = [(70, 13), (37, 64), (300, 333), (10, 20_000)]


# Beside every path of the gradient: a group of which nothing is kept, chunks of a few samples, stores past the caches.
GROUPS = [*PATHS, ((1, 1_100_000), 1), ((9, 8, 4096), 2), ((70, 8, 49), 4), ((12, 64, 64, 64), 8)]


SCORES = [
    (3, 1),
    (3, 100_001),
    (700, 333),
    (1000, 37),
    (500, 97),
    (70, 200),
    (5000, 64),
    (40, 8193),
    (60_000, 3),
    (3, 5, 130, 2),
    (7, 1, 333, 4),
    (2, 3, 100, 512),
    (2, 4, 300, 768),
]


MASKS = ("none", "gapped", "whole", "heads", "rows", "columns", "one", "triangle")


# One and two windows a token; many, and more than are added at once; windows that leave gaps, or touch; sequences that
# are empty, too short or end early; heads in parts, of every number of packs and long; more positions than sums; stores
# past the caches.
WINDOWS = [
    Windows(4096, 4, 128, ends=(100, 131, 131, 2000, 4096)),
    Windows(3000, 3, 24, 128, 16),
    Windows(2000, 20, 33, 50, 7, (700, 1990)),
    Windows(1500, 1, 5, 700, 3),
    Windows(30_000, 1, 16, 16, 16),
    Windows(900, 2, 40, 9, 5, (90, 400, 900)),
    Windows(500, 3, 17, 3, 1, (90, 400)),
    Windows(700, 2, 16, 8, 20, (333, 690)),
    Windows(600, 1, 64, 120, 5, (300, 600)),
    *(Windows(300, 2, depth, 32, 16) for depth in (48, 80, 96, 150, 160, 176, 224)),
    Windows(150, 40, 100, ends=(70, 150)),
    Windows(90, 1, 8200, 32, 16, (48, 90)),
    Windows(4096, 8, 128, 48),
    Windows(180, 4, 192, 96, 64),
    Windows(300, 8, 64, 128, 64),
]


def of_table(name: str) -> Callable[..., Call]:
    """How to make a call of an operator on rows of which no more is known than its table says."""
    operator = OPERATORS[name]

    def make(shape: tuple[int, int], dtype: str) -> Call:
        inputs: dict[str, Any] = {}
        outputs, rows = {}, []
        for seed, p in enumerate(operator.parameters):
            if p.kind != "tensor":
                # A flag says that a result is wanted, too.
                inputs[p.python] = p.kind == "bool" or ast.literal_eval(p.default or "None")
                continue
            extents = shapes_of(operator, shape, 1)[p.python]
            if len(extents) > 1:
                rows.append(p.python)
            # What is FLOAT beside 16-bit tensors on every product.
            kept = {next(iter(r.dtypes[p.python])) for r in operator.dtypes if r.products != ("host",)} == {F32}
            of = wide_of(dtype) if kept else dtype
            if p.role == "output":
                outputs[p.python] = np.empty(extents, DTYPES[of])
            else:
                inputs[p.python] = (statistic if p.python == "rstd" else numbers)(seed, extents, of)
        first = operator.inputs[0].python
        inputs[first][7::11] *= inputs[first].dtype.type(smallest_normal(dtype))  # for results that are subnormal
        return with_pieces(Call(name, inputs, outputs), rows, shape[0])

    make.__name__ = name
    return make


def dtypes_for(operator: str, extents: Sequence[int]) -> Sequence[str]:
    """Two dtypes, one of them of 16 bits, or one of a large tensor. Each operator has others for each shape."""
    choose = random.Random(f"{operator} {tuple(extents)}")
    if math.prod(extents) >= BIG:
        return (choose.choice((F32, BF16)),)
    return choose.choice((F32, F64)), choose.choice((F16, BF16))


def made_problems() -> dict[str, Callable[[], Call]]:
    """How to make each problem, by its name."""
    made: dict[str, Callable[[], Call]] = {}

    def add(function: Callable[..., Call], what: Any, *arguments: Any, note: str = "") -> None:
        extents = what if isinstance(what, Windows) else "x".join(map(str, what))
        name = " ".join(filter(None, [function.__name__, str(extents), note]))
        assert name not in made
        made[name] = partial(function, what, *arguments)

    norms: dict[Callable[..., Call], Callable[[str], tuple[str, ...]]] = {
        rms_norm: lambda d: (d, d, d, wide_of(d)),
        rms_norm_grad: lambda d: (d, wide_of(d), d, d, wide_of(d)),
        layer_norm: lambda d: (d, d, d, d, wide_of(d), wide_of(d)),
        layer_norm_backward: lambda d: (d, d, wide_of(d), d, d, d),
        apply_adam_w_v2: lambda d: (d, d),
    }
    for (norm, dtypes), shape in itertools.product(norms.items(), ROWS):
        for d in dtypes_for(norm.__name__, shape):
            add(norm, shape, dtypes(d), note=d)
    for shape in MIXED_ROWS:
        for d in FLOATS:  # with the dtypes that a 16-bit network has, and with unusual ones
            odd = {F32: F16, F16: BF16, BF16: F64, F64: F32}[d]
            add(rms_norm, shape, (d, F32, odd, F32), note=f"{d} mixed")
            add(rms_norm_grad, shape, (d, odd, F32, odd, F32), note=f"{d} mixed")
            add(layer_norm, shape, (d, F32, odd, d, odd, F32), note=f"{d} mixed")
            add(layer_norm_backward, shape, (odd, d, F32, F32, odd, d), note=f"{d} mixed")
    for mask in ((False, True, True), (True, False, False), (False, False, True)):
        for shape in ((300, 333), (40, 20_000)):
            note = f"mask {''.join(str(int(m)) for m in mask)}"
            add(layer_norm_backward, shape, (F32,) * 6, mask, note=note)
    for size in (1e-38, 0.0):  # the rows near the top and the tiny ones leave float's range
        add(layer_norm, (60, 3000), (F32,) * 6, size, note=f"eps {size:g}")
    for (extents, groups), (function, count) in itertools.product(
        GROUPS, ((group_norm_swish, 3), (group_norm_swish_grad, 4))
    ):
        for d in dtypes_for(function.__name__, extents):
            add(function, extents, groups, (d,) * count, note=d)
    for extents, groups in (((2, 6, 51), 3), ((70, 48, 3), 16)):
        for d in FLOATS:
            for function in (group_norm, group_norm_silu, group_norm_backward):
                add(function, extents, groups, d, note=d)
    for at, (extents, groups) in enumerate(GROUPS):
        add(group_norm_backward, extents, groups, (F32, BF16)[at % 2], note=(F32, BF16)[at % 2])
    for extents, groups in (((2, 6, 49), 3), ((2, 5, 70_001), 1), ((70, 48, 2), 16)):
        for d, odd in ((F16, F32), (BF16, F32), (F32, BF16), (F32, F64), (F64, F16)):
            add(group_norm_swish, extents, groups, (d, odd, odd), note=f"{d} {odd}")
            add(group_norm_swish_grad, extents, groups, (d, odd, d, odd), note=f"{d} {odd}")
        for scale in (0.0, -3.0, 60.0):
            add(group_norm_swish, extents, groups, (F32,) * 3, scale, note=f"scale {scale:g}")
            add(group_norm_swish_grad, extents, groups, (BF16,) * 4, scale, note=f"scale {scale:g}")
        add(group_norm_swish, extents, groups, (F32,) * 3, 1.0, False, note="not activated")
    for form, shape in itertools.product(MASKS, ((3, 2, 70, 81), (2, 1, 9, 5000), (60, 97), (4, 3, 70, 3))):
        if form != "whole":
            add(scaled_masked_softmax, shape, BF16, form, note=form)
            add(scaled_masked_softmax_backward, shape, F32, form, note=form)
    for scale in (3.0, -0.7, 1e-30, 1e30):
        add(scaled_masked_softmax, (70, 333), F32, "whole", scale, note=f"scale {scale:g}")
        add(scaled_masked_softmax_backward, (70, 333), BF16, "whole", scale, note=f"scale {scale:g}")
    for name in ("softmax", "softmax_backward", "log_softmax", "log_softmax_backward"):
        for d, (dim, shape) in itertools.product(FLOATS, enumerate(((333, 61), (61, 333)))):
            add(along_dim(name), shape, d, dim, note=d)
        for d in (F32, BF16):
            add(along_dim(name), (9, 300, 5), d, 1, note=d)
    for function in (cross_entropy_loss, cross_entropy_loss_grad):
        for shape, reduction in itertools.product(((300, 333), (7, 40_000)), ("mean", "sum", "none")):
            add(function, shape, F32, 0.1, reduction, note=f"{F32} smoothed {reduction}")
            add(function, shape, BF16, 0.0, reduction, note=f"{BF16} {reduction}")
        for d in FLOATS:  # of one class, whose loss by a small number's square is subnormal
            add(function, (400, 1), d, note=d)
    for shape, amsgrad in itertools.product(((70, 333), (3, 70_001)), (False, True)):
        for d in (F16, BF16):
            add(apply_adam_w_v2, shape, (d, wide_of(d)), amsgrad, 999, note=f"{d} amsgrad {amsgrad}")
            add(apply_adam_w_v2, shape, (F32, d), amsgrad, 0, note=f"moments of {d} amsgrad {amsgrad}")
    plain: dict[Callable[..., Call], Sequence[Any]] = {
        scaled_masked_softmax: SCORES,
        scaled_masked_softmax_backward: SCORES,
        nsa_compress: WINDOWS,
        nsa_compress_grad: WINDOWS,
        cross_entropy_loss: ROWS,
        cross_entropy_loss_grad: ROWS,
    }
    known = {name.split()[0] for name in made} | {function.__name__ for function in plain}
    plain |= {of_table(name): ROWS for name in sorted(OPERATORS.keys() - known)}
    for function, case in ((f, case) for f, cases in plain.items() for case in cases):
        for d in dtypes_for(function.__name__, case.extents if isinstance(case, Windows) else case):
            add(function, case, d, note=d)
    return made


PROBLEMS = made_problems()
