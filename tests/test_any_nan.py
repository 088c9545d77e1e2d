"""A NaN's low bits, which bfloat16 cannot hold, must not be rounded up into an infinity or a number."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import descend
from cases import python_value

ISAS = descend._native.info()["isas"].split(", ")
BITS = (0x7FFFFFFF, 0x7F800001, 0xFFFFFFFF)
COLUMNS = (1, 2, 3, 5, 20, 40, 64, 300, 5000)


def calls(n: int, bits: int) -> Iterator[tuple[str, Any]]:
    """Results in bfloat16 of which every element has a NaN of these bits, in float32, among what it is made of."""
    rng = np.random.default_rng(7)
    x = rng.standard_normal((7, n)).astype(ml_dtypes.bfloat16)
    images = rng.standard_normal((2, 4, n)).astype(ml_dtypes.bfloat16)

    def nan(shape: int | tuple[int, ...]) -> Any:
        return np.full(shape, bits, np.uint32).view(np.float32)

    def ones(shape: int | tuple[int, ...]) -> Any:
        return np.ones(shape, np.float32)

    yield "rms_norm gamma", descend.rms_norm(x, nan(n))[0]
    yield "add_rms_norm gamma", descend.add_rms_norm(x, x, nan(n))[0]
    yield "gemma_rms_norm gamma", descend.gemma_rms_norm(x, nan(n))[0]
    yield "layer_norm weight", descend.layer_norm(x, (n,), nan(n), ones(n))[0]
    yield "layer_norm bias", descend.layer_norm(x, (n,), ones(n), nan(n))[0]
    yield "deep_norm gamma", descend.deep_norm(x, x, ones(n), nan(n))[2]
    yield "add_layer_norm beta", descend.add_layer_norm(x, x, ones(n), nan(n))[0]
    yield "add_layer_norm bias", descend.add_layer_norm(x, x, ones(n), ones(n), nan(n))[0]
    yield "rms_norm_grad rstd", descend.rms_norm_grad(x, x, nan(7), ones(n))[0]
    yield "layer_norm_backward mean", descend.layer_norm_backward(x, x, (n,), nan((7, 1)), ones((7, 1)), ones(n))[0]
    yield "deep_norm_grad mean", descend.deep_norm_grad(x, x, x, ones(n), nan((7, 1)), ones((7, 1)))[1]
    yield "add_layer_norm_grad mean", descend.add_layer_norm_grad(x, x, x, ones(7), nan(7), ones(n))[0]
    for activate in (True, False):
        yield "group_norm_swish gamma", descend.group_norm_swish(images, nan(4), ones(4), 2, activate_swish=activate)[0]
        yield "group_norm_swish beta", descend.group_norm_swish(images, ones(4), nan(4), 2, activate_swish=activate)[0]
    for i, name in enumerate(("mean", "rstd", "gamma", "beta")):
        numbers = [ones((2, 2)), ones((2, 2)), ones(4), ones(4)]
        numbers[i] = nan(numbers[i].shape)
        mean, rstd, gamma, beta = numbers
        yield (
            f"group_norm_swish_grad {name}",
            descend.group_norm_swish_grad(images, mean, rstd, images, gamma, beta, 2)[0],
        )


def lost() -> list[str]:
    return [
        f"{name}, {n} columns, {bits:#x}"
        for n in COLUMNS
        for bits in BITS
        for name, result in calls(n, bits)
        if not np.isnan(result.astype(np.float32)).all()
    ]


@pytest.mark.parametrize("isa", ISAS)
def test_a_nan_stays_one_in_bfloat16(isa: str) -> None:
    assert python_value("import json, test_any_nan as t; print(json.dumps(t.lost()))", DESCEND_ISA=isa) == []
