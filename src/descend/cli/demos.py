"""The data of ``descend demo``: one entry in DEMOS for each operator."""

from __future__ import annotations

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
    """The attributes that go with captured inputs, such as a normalized_shape."""
    file: str = ""
    """Of which operator the captured tensors are, in ``examples/data/<operator>.safetensors``; its own if empty."""
    without: str = ""
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
    "add_rms_norm": Demo(_add_rms_norm),
    "gemma_rms_norm": Demo(_gemma_rms_norm),
    "swi_glu": Demo(_swi_glu, file="swi_glu_grad", without="y_grad"),
    "swi_glu_grad": Demo(_swi_glu_grad),
    "nsa_compress_grad": Demo(_nsa_compress_grad, _windows),
}
