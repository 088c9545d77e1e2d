"""The data of ``descend demo``: one entry in DEMOS for each operator."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

import descend
from descend.tensors import Tensors


@dataclass(frozen=True)
class Demo:
    """One operator's demonstration."""

    example: Callable[[], dict[str, Any]]
    """The arguments of the document's worked example, by the functional API's names."""
    attributes: Callable[[Tensors], dict[str, Any]] = lambda tensors: {}
    """The attributes that go with a captured call, such as a normalized_shape."""
    file: str = ""
    """Of which operator the captured tensors are, in ``examples/data/<operator>.safetensors``; its own if empty."""
    without: tuple[str, ...] = ()
    """What this operator does not take of them."""


def _rms_norm_grad() -> dict[str, Any]:
    numbers = np.arange(1, 33, dtype=np.float32).reshape(2, 1, 16)
    return {"dy": numbers, "x": numbers, "rstd": np.array([1, 2], np.float32), "gamma": numbers[0, 0]}


def _layer_norm_backward() -> dict[str, Any]:
    x = np.linspace(-3, 3, 32, dtype=np.float32).reshape(4, 8) ** 3 + 100
    weight = np.array([1, 2] * 4, np.float32)
    _, mean, rstd = descend.layer_norm(x, (8,), weight)
    return {"grad_out": np.cos(x), "input": x, "normalized_shape": (8,), "mean": mean, "rstd": rstd, "weight": weight}


def _deep_norm_grad() -> dict[str, Any]:
    numbers = np.arange(1, 13, dtype=np.float32).reshape(3, 1, 4)
    gx, statistics = np.repeat(np.array([2, 4, 6, 8], np.float32), 3), np.arange(3, dtype=np.float32)
    return {"dy": numbers, "x": numbers, "gx": gx.reshape(3, 1, 4), "gamma": np.arange(4, dtype=np.float32),
            "mean": statistics.reshape(3, 1, 1), "rstd": statistics.reshape(3, 1, 1)}  # fmt: skip


def _group_norm_swish_grad() -> dict[str, Any]:
    x = np.linspace(-3, 3, 32, dtype=np.float32).reshape(2, 4, 2, 2)
    gamma, beta = np.array([1, 2, 1, 2], np.float32), np.array([0, 0, 1, -1], np.float32)
    _, mean, rstd = descend.group_norm_swish(x, gamma, beta, 2)
    return {"dy": np.cos(x), "mean": mean, "rstd": rstd, "x": x, "gamma": gamma, "beta": beta, "num_groups": 2}


def _group_norm_silu() -> dict[str, Any]:
    twos = np.full(3, 2, np.float32)
    return {"input": np.arange(1, 25, dtype=np.float32).reshape(2, 3, 4), "gamma": twos, "beta": twos, "group": 1}


def _group_norm() -> dict[str, Any]:
    return {**_group_norm_silu(), "n": 2, "c": 3, "hxw": 4, "eps": 1e-5}


def _group_norm_backward() -> dict[str, Any]:
    numbers = np.arange(1, 25, dtype=np.float32).reshape(2, 3, 4)
    mean, rstd = np.array([[6.5], [18.5]], np.float32), np.full((2, 1), 0.2896827, np.float32)
    # The document's gradient is x itself, of which nothing would remain but roundings.
    return {"grad_out": np.cos(numbers), "input": numbers, "mean": mean, "rstd": rstd, "gamma": np.ones(3, np.float32),
            "n": 2, "c": 3, "hxw": 4, "group": 1}  # fmt: skip


def _groups(tensors: Tensors) -> dict[str, Any]:
    return {"group": tensors["mean"].shape[1]}


def _sizes_and_groups(tensors: Tensors) -> dict[str, Any]:
    n, c, *inner = tensors["input"].shape
    return {"n": n, "c": c, "hxw": math.prod(inner), **_groups(tensors)}


def _softmax() -> dict[str, Any]:
    return {"x": np.arange(8, dtype=np.float32).reshape(4, 2), "dim": 0}


def _softmax_backward() -> dict[str, Any]:
    output = np.array([1, 1, 1, 2, 2, 2, 3, 3], np.float32).reshape(4, 2)
    return {"grad_output": np.arange(8, dtype=np.float32).reshape(4, 2), "output": output, "dim": 0}


def _log_softmax() -> dict[str, Any]:
    return {"x": np.arange(1, 10, dtype=np.float32).reshape(3, 3), "dim": 1}


def _of_classes(tensors: Tensors) -> dict[str, Any]:
    return {"dim": 1}


def _add_rms_norm() -> dict[str, Any]:
    numbers = np.tile(np.arange(8, dtype=np.float32), 4).reshape(2, 16)
    return {"x1": numbers, "x2": numbers, "gamma": numbers[0]}


def _gemma_rms_norm() -> dict[str, Any]:
    x = np.arange(32, dtype=np.float32).reshape(2, 16)
    return {"x": x, "gamma": np.tile(np.array([0, 1], np.float32), 8)}


def _swi_glu() -> dict[str, Any]:
    return {"x": np.arange(64, dtype=np.float32).reshape(2, 32)}


def _swi_glu_grad() -> dict[str, Any]:
    y_grad, x = np.arange(-2, 30, dtype=np.float32), np.arange(-2, 62, dtype=np.float32)
    return {"y_grad": y_grad.reshape(2, 16), "x": x.reshape(2, 32)}


def _rotary_position_embedding() -> dict[str, Any]:
    # 16 of the document's 128 columns, so that they can be read.
    numbers = np.array(
        [
            [74, 54, 84, 125, 23, 78, 37, 72, 27, 98, 34, 107, 29, 23, 54, 60],
            [41, 37, 17, 25, 49, 25, 22, 24, 110, 120, 107, 3, 82, 66, 75, 86],
            [46, 56, 56, 101, 66, 10, 96, 16, 86, 57, 102, 66, 12, 105, 76, 58],
        ],
        np.float32,
    )
    x, cos, sin = numbers.reshape(3, 1, 1, 1, 16)
    return {"x": x, "cos": cos, "sin": sin, "mode": 1}


def _rotary_position_embedding_grad() -> dict[str, Any]:
    forward = _rotary_position_embedding()
    return {"dy": forward.pop("x"), **forward}


def _gelu_v2() -> dict[str, Any]:
    return {"x": np.array([1.3, 2.5, 6.7, -4, -1.4, -1.6, -8, -16.9], np.float32).reshape(4, 2)}


def _gelu_backward_v2() -> dict[str, Any]:
    x = np.arange(8, dtype=np.float32).reshape(4, 2)
    return {"grad_output": np.ones_like(x), "x": x, "approximate": "tanh"}


def _cross_entropy_loss() -> dict[str, Any]:
    return {"input": np.array([[5, 0, 3, 3, 7], [9, 3, 5, 2, 4]], np.float32), "target": np.zeros(2, np.int64)}


def _cross_entropy_loss_grad() -> dict[str, Any]:
    log_prob = np.full((2, 3), -0.2, np.float32)
    return {"grad_loss": np.full((), 0.1, np.float32), "log_prob": log_prob, "target": np.zeros(2, np.int64),
            "weight": np.ones(3, np.float32)}  # fmt: skip


def _apply_adam_w_v2() -> dict[str, Any]:
    numbers = np.arange(4, dtype=np.float32).reshape(2, 2)
    tensors = {"var": numbers, "m": numbers, "v": numbers, "max_grad_norm": numbers, "grad": numbers}
    return {**tensors, "step": np.ones(1, np.float32), "amsgrad": True, "maximize": True}


def _numbers_of_a_step(tensors: Tensors) -> dict[str, Any]:
    names = ("lr", "beta1", "beta2", "weight_decay", "eps")
    return {"max_grad_norm": None, **{name: float(tensors[name]) for name in names}}


def _scaled_masked_softmax_backward() -> dict[str, Any]:
    scores = np.linspace(-2, 2, 32, dtype=np.float32).reshape(1, 1, 2, 16)
    mask = np.triu(np.ones((1, 1, 2, 16), np.bool_), 14)  # the future of the last two positions
    y = descend.scaled_masked_softmax(scores, mask, 0.5)
    return {"grad_output": np.cos(scores), "y": y, "mask": mask, "scale": 0.5}


def _nsa_compress_grad() -> dict[str, Any]:
    # The document's tokens, sequences and windows; one head of 16 instead of 64 of 128, so that it can be read.
    rng = np.random.default_rng(0)
    grad, x, weight = (rng.standard_normal(shape).astype(np.float16) for shape in ((15, 1, 16), (272, 1, 16), (32, 1)))
    return {"output_grad": grad, "input": x, "weight": weight, "act_seq_len": (0, 128, 272),
            "compress_block_size": 32, "compress_stride": 16}  # fmt: skip


def _windows(tensors: Tensors) -> dict[str, Any]:
    """Attributes that were captured as tensors."""
    return {
        "act_seq_len": tuple(int(end) for end in tensors["act_seq_len"]),
        "compress_block_size": len(tensors["weight"]),
        "compress_stride": int(tensors["compress_stride"]),
    }


DEMOS = {
    "rms_norm_grad": Demo(_rms_norm_grad),
    "layer_norm_backward": Demo(_layer_norm_backward, lambda tensors: {"normalized_shape": tensors["weight"].shape}),
    "deep_norm_grad": Demo(_deep_norm_grad, lambda tensors: {"alpha": float(tensors["alpha"])}),
    "group_norm_swish_grad": Demo(
        _group_norm_swish_grad, lambda tensors: {"num_groups": tensors["mean"].size // len(tensors["x"])}
    ),
    "scaled_masked_softmax_backward": Demo(
        _scaled_masked_softmax_backward, lambda tensors: {"scale": float(tensors["scale"])}
    ),
    "group_norm": Demo(
        _group_norm,
        lambda tensors: {**_sizes_and_groups(tensors), "eps": 1e-5},
        file="group_norm_backward",
        without=("grad_out", "mean", "rstd"),
    ),
    "group_norm_silu": Demo(
        _group_norm_silu, _groups, file="group_norm_backward", without=("grad_out", "mean", "rstd")
    ),
    "group_norm_backward": Demo(_group_norm_backward, _sizes_and_groups, without=("beta",)),
    "softmax": Demo(_softmax, file="softmax_backward", without=("grad_output", "output")),
    "softmax_backward": Demo(_softmax_backward, without=("x",)),
    "log_softmax": Demo(_log_softmax, _of_classes, file="log_softmax_backward", without=("grad_output", "output")),
    "log_softmax_backward": Demo(_softmax_backward, _of_classes, without=("x",)),
    "add_rms_norm": Demo(_add_rms_norm),
    "gemma_rms_norm": Demo(_gemma_rms_norm),
    "swi_glu": Demo(_swi_glu, file="swi_glu_grad", without=("y_grad",)),
    "swi_glu_grad": Demo(_swi_glu_grad),
    "rotary_position_embedding": Demo(
        _rotary_position_embedding, file="rotary_position_embedding_grad", without=("dy",)
    ),
    "rotary_position_embedding_grad": Demo(_rotary_position_embedding_grad),
    "gelu_v2": Demo(_gelu_v2, file="gelu_backward_v2", without=("grad_output",)),
    "gelu_backward_v2": Demo(_gelu_backward_v2),
    "cross_entropy_loss": Demo(_cross_entropy_loss, file="cross_entropy_loss_grad", without=("grad_loss", "log_prob")),
    "cross_entropy_loss_grad": Demo(_cross_entropy_loss_grad, without=("input",)),
    "apply_adam_w_v2": Demo(_apply_adam_w_v2, _numbers_of_a_step),
    "nsa_compress_grad": Demo(_nsa_compress_grad, _windows),
}
