"""descend.golden: called as the test framework of CANN's operator repositories calls it, with known values."""

from __future__ import annotations

import inspect

import ml_dtypes
import numpy as np
import pytest

import descend
from descend import golden

bfloat16 = np.dtype(ml_dtypes.bfloat16)
DTYPES = [np.dtype(np.float32), np.dtype(np.float16), bfloat16]


@pytest.fixture
def rng():
    return np.random.default_rng(7)


def random(rng, *shape, dtype=np.float32):
    return rng.standard_normal(shape).astype(dtype)


def as_framework(name, *inputs, **attributes):
    """Looks the function up in a file that has the one line, and calls it with all that the framework adds."""
    plugin: dict = {}
    exec("from descend.golden import *", plugin)
    function = plugin[plugin["__golden__"]["kernel"][name]]
    more = {"input_dtypes": [str(i.dtype) for i in inputs if i is not None], "short_soc_version": "Ascend910B",
            "testcase_name": "one", "input_formats": ["ND"] * len(inputs)}  # fmt: skip
    return function(*inputs, **attributes, **more)


def close(actual, expected):
    """Both were rounded to one dtype, ours from float64, the other by a kernel: at most one unit apart."""
    assert actual.dtype == expected.dtype
    assert actual.shape == expected.shape
    wide, other = actual.astype(np.float64), expected.astype(np.float64)
    unit = {2: 2.0**-7 if actual.dtype == bfloat16 else 2.0**-10, 4: 2.0**-22}[actual.dtype.itemsize]
    np.testing.assert_allclose(wide, other, rtol=unit, atol=unit * max(1.0, np.abs(other).max()))


def test_every_name_is_a_function_that_ignores_what_it_does_not_know():
    names = golden.__golden__["kernel"].values()
    assert set(golden.__all__) == {"__golden__", *names}
    for name in names:
        kinds = {parameter.kind for parameter in inspect.signature(getattr(golden, name)).parameters.values()}
        assert inspect.Parameter.VAR_KEYWORD in kinds


WINDOWS = "compressBlockSize, compressStride, actSeqLenType=0"
DEFINITIONS = {
    "rms_norm": ("x, gamma", "epsilon=1e-06"),
    "rms_norm_grad": ("dy, x, rstd, gamma", ""),
    "layer_norm_v3": ("x, gamma, beta", "begin_norm_axis=0, begin_params_axis=0, epsilon=1e-05"),
    "layer_norm_v4": ("x, normalized_shape, gamma=None, beta=None", "epsilon=1e-05"),
    "layer_norm_grad_v3": ("dy, x, rstd, mean, gamma", "output_mask=(True, True, True)"),
    "group_norm_swish": (
        "x, gamma, beta",
        "num_groups, data_format='NCHW', eps=1e-05, activate_swish=True, swish_scale=1.0",
    ),
    "group_norm_swish_grad": (
        "dy, mean, rstd, x, gamma, beta",
        "num_groups, data_format='NCHW', swish_scale=1.0, dgamma_is_require=True, dbeta_is_require=True",
    ),
    "scaled_masked_softmax_v2": ("x, mask=None", "scale=1.0, fixed_triu_mask=False"),
    "scaled_masked_softmax_grad_v2": ("yGrad, y, mask=None", "scale=1.0, fixed_triu_mask=False"),
    "nsa_compress": ("input, weight, actSeqLenOptional=None", f"layoutOptional='TND', {WINDOWS}"),
    "nsa_compress_grad": ("outputGrad, input, weight, actSeqLenOptional=None", f"{WINDOWS}, layoutOptional='TND'"),
}
"""Each operator's inputs and its attributes in its definition: their names, their order, and what may be absent."""


@pytest.mark.parametrize("name", DEFINITIONS)
def test_parameters_are_those_of_the_definition(name):
    function = getattr(golden, golden.__golden__["kernel"][name])
    signature = inspect.signature(function)
    plain = {key: p.replace(annotation=p.empty) for key, p in signature.parameters.items()}
    inputs = [str(p) for p in plain.values() if p.kind is p.POSITIONAL_OR_KEYWORD]
    attributes = [str(p) for p in plain.values() if p.kind is p.KEYWORD_ONLY]
    assert (", ".join(inputs), ", ".join(attributes)) == DEFINITIONS[name]


def test_every_golden_function_has_a_definition():
    assert set(golden.__golden__["kernel"]) == set(DEFINITIONS)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_rms_norm(rng, dtype):
    x, dy, gamma = random(rng, 5, 40, dtype=dtype), random(rng, 5, 40, dtype=dtype), random(rng, 40, dtype=dtype)
    y, rstd = as_framework("rms_norm", x, gamma, epsilon=1e-3)
    for ours, kernel in zip((y, rstd), descend.rms_norm(x, gamma, 1e-3), strict=True):
        close(ours, kernel)
    for ours, kernel in zip(
        as_framework("rms_norm_grad", dy, x, rstd, gamma), descend.rms_norm_grad(dy, x, rstd, gamma), strict=True
    ):
        close(ours, kernel)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_layer_norm(rng, dtype):
    x, dy = random(rng, 4, 3, 24, dtype=dtype), random(rng, 4, 3, 24, dtype=dtype)
    gamma, beta = random(rng, 3, 24, dtype=dtype), random(rng, 3, 24, dtype=dtype)
    kernel = descend.layer_norm(x, (3, 24), gamma, beta, 1e-3)
    v3 = as_framework("layer_norm_v3", x, gamma, beta, begin_norm_axis=-2, begin_params_axis=1, epsilon=1e-3)
    v4 = as_framework("layer_norm_v4", x, np.array([3, 24], np.int64), gamma, beta, epsilon=1e-3)
    for first, second, third in zip(v3, v4, kernel, strict=True):
        np.testing.assert_array_equal(first, second)
        close(first, third)
    _, mean, rstd = kernel
    dx, dgamma, dbeta = as_framework("layer_norm_grad_v3", dy, x, rstd, mean, gamma, output_mask=[True, True, False])
    assert dbeta is None
    expected = descend.layer_norm_backward(dy, x, (3, 24), mean, rstd, gamma, beta)
    close(dx, expected[0])
    close(dgamma, expected[1])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_group_norm_swish(rng, dtype):
    x, dy = random(rng, 2, 6, 5, 3, dtype=dtype), random(rng, 2, 6, 5, 3, dtype=dtype)
    gamma, beta = random(rng, 6, dtype=dtype), random(rng, 6, dtype=dtype)
    forward = as_framework("group_norm_swish", x, gamma, beta, num_groups=3, swish_scale=0.5)
    expected = descend.group_norm_swish(x, gamma, beta, 3, swish_scale=0.5)
    for ours, kernel in zip(forward, expected, strict=True):
        close(ours, kernel)
    _, mean, rstd = expected
    grads = as_framework("group_norm_swish_grad", dy, mean, rstd, x, gamma, beta, num_groups=3, swish_scale=0.5)
    kernels = descend.group_norm_swish_grad(dy, mean, rstd, x, gamma, beta, 3, swish_scale=0.5)
    for ours, kernel in zip(grads, kernels, strict=True):
        close(ours, kernel)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_scaled_masked_softmax(rng, dtype):
    x, dy = random(rng, 2, 3, 4, 32, dtype=dtype), random(rng, 2, 3, 4, 32, dtype=dtype)
    mask = rng.random((2, 1, 4, 32)) < 0.3
    (y,) = as_framework("scaled_masked_softmax_v2", x, mask, scale=0.5)
    close(y, descend.scaled_masked_softmax(x, mask, 0.5))
    (dx,) = as_framework("scaled_masked_softmax_grad_v2", dy, y, mask, scale=0.5)
    close(dx, descend.scaled_masked_softmax_backward(dy, y, mask, 0.5))


@pytest.mark.parametrize("dtype", DTYPES[1:], ids=str)
def test_nsa_compress(rng, dtype):
    x, weight, lengths = random(rng, 96, 2, 16, dtype=dtype), random(rng, 32, 2, dtype=dtype), np.array([0, 48, 96])
    windows = {"compressBlockSize": 32, "compressStride": 16, "actSeqLenType": 0, "layoutOptional": "TND"}
    ours = {"compress_block_size": 32, "compress_stride": 16}
    (y,) = as_framework("nsa_compress", x, weight, lengths, **windows)
    close(y, descend.nsa_compress(x, weight, [0, 48, 96], **ours))
    dy = random(rng, *y.shape, dtype=dtype)
    for mine, kernel in zip(
        as_framework("nsa_compress_grad", dy, x, weight, lengths, **windows),
        descend.nsa_compress_grad(dy, x, weight, [0, 48, 96], **ours),
        strict=True,
    ):
        close(mine, kernel)


def test_results_are_rounded_once_to_the_dtypes_that_are_asked_for(rng):
    x, gamma = random(rng, 5, 40), random(rng, 40)
    exact = descend.reference.rms_norm(x, gamma)
    y, rstd = as_framework("rms_norm", x, gamma, output_dtypes=["float64", "bfloat16"])
    np.testing.assert_array_equal(y, exact[0])
    np.testing.assert_array_equal(rstd, descend.precision.round_to(exact[1], bfloat16))
    promoted = as_framework("rms_norm", x.astype(np.float64), gamma.astype(np.float64))
    assert [result.dtype for result in promoted] == [np.float64, np.float64]


def test_what_does_not_fit_is_said(rng):
    x, gamma = random(rng, 5, 4), random(rng, 4)
    with pytest.raises(ValueError, match="output_dtypes has 1"):
        as_framework("rms_norm", x, gamma, output_dtypes=["float32"])
    with pytest.raises(ValueError, match="begin_params_axis 0"):
        as_framework("layer_norm_v3", x, gamma, gamma, begin_norm_axis=1)
