"""descend.golden: called as the test framework of CANN's operator repositories calls it, beside Descend's kernels."""

from __future__ import annotations

import inspect
import itertools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import descend
from descend import contract, golden

bfloat16 = np.dtype(ml_dtypes.bfloat16)
DTYPES = [np.dtype(np.float32), np.dtype(np.float16), bfloat16]

Case = tuple[str, list[Any], dict[str, Any], Any]
"""A definition's name, inputs, attributes, and what a kernel of Descend's makes of them."""


class Draw:
    """Random arrays of one dtype."""

    def __init__(self, dtype=np.float32):
        self.rng, self.dtype = np.random.default_rng(7), np.dtype(dtype)

    def __call__(self, *shape):
        return self.rng.standard_normal(shape).astype(self.dtype)


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


# --- the definitions


WINDOWS = "compressBlockSize, compressStride, actSeqLenType=0"
REDUCTION = "reduction='mean', ignore_index=-100, label_smoothing=0.0, lse_square_scale_for_zloss=0.0"
ADD_LAYER_NORM = ("x1, x2, gamma, beta, bias=None", "epsilon=1e-05, additional_output=False")
DEFINITIONS = {
    "rms_norm": ("x, gamma", "epsilon=1e-06"),
    "rms_norm_grad": ("dy, x, rstd, gamma", ""),
    "gemma_rms_norm": ("x, gamma", "epsilon=1e-06"),
    "add_rms_norm": ("x1, x2, gamma", "epsilon=1e-06"),
    "inplace_add_rms_norm": ("x1, x2, gamma", "epsilon=1e-06"),
    "layer_norm_v3": ("x, gamma, beta", "begin_norm_axis=0, begin_params_axis=0, epsilon=1e-05"),
    "layer_norm_v4": ("x, normalized_shape, gamma=None, beta=None", "epsilon=1e-05"),
    "layer_norm_grad_v3": ("dy, x, rstd, mean, gamma", "output_mask=(True, True, True)"),
    "add_layer_norm": ADD_LAYER_NORM,
    "inplace_add_layer_norm": ADD_LAYER_NORM,
    "add_layer_norm_grad": ("dy, x1, x2, rstd, mean, gamma, dsum=None", ""),
    "deep_norm": ("x, gx, beta, gamma", "alpha=0.3, epsilon=1e-06"),
    "deep_norm_grad": ("dy, x, gx, gamma, mean, rstd", "alpha=0.3"),
    "group_norm": ("x, gamma, beta", "num_groups, data_format='NCHW', eps=0.0001, is_training=True"),
    "group_norm_v2": ("x, gamma=None, beta=None", "num_groups, data_format='NHWC', eps=1e-05, is_training=True"),
    "group_norm_grad": (
        "dy, mean, rstd, x, gamma",
        "num_groups, data_format='NCHW', dx_is_require=True, dgamma_is_require=True, dbeta_is_require=True",
    ),
    "group_norm_silu": ("x, gamma=None, beta=None", "num_groups, eps=1e-05, activate_silu=True"),
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
    "softmax_v2": ("x", "axes=(-1,), half_to_float=False"),
    "softmax_grad": ("softmax, grad_softmax", "axes=(-1,)"),
    "log_softmax_v2": ("logits", "axes=(-1,)"),
    "log_softmax_grad": ("grad, x", "axis=(-1,)"),
    "gelu": ("x", ""),
    "gelu_v2": ("x", "approximate='none'"),
    "gelu_grad": ("dy, x, y", ""),
    "gelu_grad_v2": ("dy, x", "approximate='none'"),
    "swi_glu": ("x", "dim=-1"),
    "swi_glu_grad": ("y_grad, x", "dim=-1"),
    "rotary_position_embedding": ("x, cos, sin", "mode=0"),
    "rotary_position_embedding_grad": ("dy, cos, sin, x=None", "mode=0"),
    "nsa_compress": ("input, weight, actSeqLenOptional=None", f"layoutOptional='TND', {WINDOWS}"),
    "nsa_compress_grad": ("outputGrad, input, weight, actSeqLenOptional=None", f"{WINDOWS}, layoutOptional='TND'"),
    "cross_entropy_loss": ("input, target, weight=None", f"{REDUCTION}, return_zloss=False"),
    "cross_entropy_loss_grad": (
        "grad_loss, log_prob, target, weight=None, grad_zloss=None, lse_for_zloss=None",
        REDUCTION,
    ),
    "apply_adam_w_v2": (
        "var, m, v, grad, step, max_grad_norm=None",
        "lr=0.1, beta1=0.1, beta2=0.1, weight_decay=0.1, eps=1e-08, amsgrad=False, maximize=False",
    ),
    "apply_adam_w": (
        "var, m, v, beta1_power, beta2_power, lr, weight_decay, beta1, beta2, epsilon, grad, max_grad_norm=None",
        "amsgrad=False, maximize=False",
    ),
}
"""Each operator's inputs and its attributes in its definition: their names, their order, and what may be absent."""

OF_OPERATOR = {
    "add_layer_norm": {"add_layer_norm", "inplace_add_layer_norm"},
    "add_layer_norm_grad": {"add_layer_norm_grad"},
    "add_rms_norm": {"add_rms_norm", "inplace_add_rms_norm"},
    "apply_adam_w_v2": {"apply_adam_w_v2", "apply_adam_w"},
    "cross_entropy_loss": {"cross_entropy_loss"},
    "cross_entropy_loss_grad": {"cross_entropy_loss_grad"},
    "deep_norm": {"deep_norm"},
    "deep_norm_grad": {"deep_norm_grad"},
    "gelu_v2": {"gelu_v2", "gelu"},
    "gelu_backward_v2": {"gelu_grad_v2", "gelu_grad"},
    "gemma_rms_norm": {"gemma_rms_norm"},
    "group_norm": {"group_norm", "group_norm_v2"},
    "group_norm_backward": {"group_norm_grad"},
    "group_norm_silu": {"group_norm_silu"},
    "group_norm_swish": {"group_norm_swish"},
    "group_norm_swish_grad": {"group_norm_swish_grad"},
    "layer_norm": {"layer_norm_v3", "layer_norm_v4"},
    "layer_norm_backward": {"layer_norm_grad_v3"},
    "log_softmax": {"log_softmax_v2"},
    "log_softmax_backward": {"log_softmax_grad"},
    "nsa_compress": {"nsa_compress"},
    "nsa_compress_grad": {"nsa_compress_grad"},
    "rms_norm": {"rms_norm"},
    "rms_norm_grad": {"rms_norm_grad"},
    "rotary_position_embedding": {"rotary_position_embedding"},
    "rotary_position_embedding_grad": {"rotary_position_embedding_grad"},
    "scaled_masked_softmax": {"scaled_masked_softmax_v2"},
    "scaled_masked_softmax_backward": {"scaled_masked_softmax_grad_v2"},
    "softmax": {"softmax_v2"},
    "softmax_backward": {"softmax_grad"},
    "swi_glu": {"swi_glu"},
    "swi_glu_grad": {"swi_glu_grad"},
}
"""The definitions that compute what an operator of Descend's does."""


def parameters_of(name) -> tuple[list[inspect.Parameter], list[inspect.Parameter]]:
    """A golden function's inputs and its attributes."""
    parameters = inspect.signature(getattr(golden, golden.__golden__["kernel"][name])).parameters.values()
    plain = [p.replace(annotation=p.empty) for p in parameters]
    return [p for p in plain if p.kind is p.POSITIONAL_OR_KEYWORD], [p for p in plain if p.kind is p.KEYWORD_ONLY]


def test_every_name_is_a_function_that_ignores_what_it_does_not_know():
    names = golden.__golden__["kernel"].values()
    assert set(golden.__all__) == {"__golden__", *names}
    for name in names:
        kinds = {parameter.kind for parameter in inspect.signature(getattr(golden, name)).parameters.values()}
        assert inspect.Parameter.VAR_KEYWORD in kinds


@pytest.mark.parametrize("name", DEFINITIONS)
def test_parameters_are_those_of_the_definition(name):
    assert tuple(", ".join(map(str, parameters)) for parameters in parameters_of(name)) == DEFINITIONS[name]


def test_every_operator_and_every_definition_has_golden_functions():
    assert set(OF_OPERATOR) == set(contract.OPERATORS)
    assert set().union(*OF_OPERATOR.values()) == set(DEFINITIONS)
    assert set(golden.__golden__["kernel"]) == set(DEFINITIONS)


def test_the_page_names_all_definitions():
    page = (Path(__file__).parents[1] / "docs" / "judging.md").read_text(encoding="utf-8")
    table = page.partition("functions for these definitions:")[2].partition("Inputs, attributes")[0]
    assert set(re.findall(r"[A-Z]\w+", table)) == {name.title().replace("_", "") for name in DEFINITIONS}


# --- beside Descend's kernels


def rms_norms(draw: Draw) -> Iterator[Case]:
    x, dy, gamma, epsilon = draw(4, 3, 24), draw(4, 3, 24), draw(3, 24), {"epsilon": 1e-3}
    kernel = descend.rms_norm(x, gamma, **epsilon)
    yield "rms_norm", [x, gamma], epsilon, kernel
    yield "rms_norm_grad", [dy, x, kernel[1], gamma], {}, descend.rms_norm_grad(dy, x, kernel[1], gamma)
    yield "gemma_rms_norm", [x, gamma], epsilon, descend.gemma_rms_norm(x, gamma, **epsilon)
    for name in ("add_rms_norm", "inplace_add_rms_norm"):
        yield name, [x, dy, gamma], epsilon, descend.add_rms_norm(x, dy, gamma, **epsilon)


def layer_norms(draw: Draw) -> Iterator[Case]:
    x, dy, gamma, beta = draw(4, 3, 24), draw(4, 3, 24), draw(3, 24), draw(3, 24)
    kernel = descend.layer_norm(x, (3, 24), gamma, beta, 1e-3)
    axes = {"begin_norm_axis": -2, "begin_params_axis": 1}
    yield "layer_norm_v3", [x, gamma, beta], {**axes, "epsilon": 1e-3}, kernel
    yield "layer_norm_v4", [x, np.array([3, 24], np.int64), gamma, beta], {"epsilon": 1e-3}, kernel
    yield "layer_norm_v4", [x, np.array([24], np.int32), None, None], {}, descend.layer_norm(x, 24)
    _, mean, rstd = kernel
    dx, dgamma, dbeta = descend.layer_norm_backward(dy, x, (3, 24), mean, rstd, gamma, beta)
    yield "layer_norm_grad_v3", [dy, x, rstd, mean, gamma], {}, (dx, dgamma, dbeta)
    yield "layer_norm_grad_v3", [dy, x, rstd, mean, gamma], {"output_mask": [True, True, False]}, (dx, dgamma, None)


def layer_norms_of_sums(draw: Draw) -> Iterator[Case]:
    x, gx, dy, gamma, beta = draw(4, 3, 24), draw(4, 3, 24), draw(4, 3, 24), draw(3, 24), draw(3, 24)
    float32 = gx.astype(np.float32)
    for name in ("add_layer_norm", "inplace_add_layer_norm"):
        yield name, [x, gx, gamma, beta, None], {}, descend.add_layer_norm(x, gx, gamma, beta)
        more = {"epsilon": 1e-3, "additional_output": True}
        yield name, [x, gx, gamma, beta, dy], more, descend.add_layer_norm(x, gx, gamma, beta, dy, **more)
        yield name, [x, float32, gamma, beta, beta], more, descend.add_layer_norm(x, float32, gamma, beta, beta, **more)
    _, mean, rstd, _ = descend.add_layer_norm(x, gx, gamma, beta)
    for dsum in (None, draw(4, 3, 24)):
        inputs = [dy, x, gx, rstd, mean, gamma, dsum]
        dx, *parameters = descend.add_layer_norm_grad(*inputs)
        yield "add_layer_norm_grad", inputs, {}, (dx, *(p.astype(np.float32) for p in parameters))
    mean, rstd, _ = kernel = descend.deep_norm(x, gx, beta, gamma, 2.0, 1e-3)
    yield "deep_norm", [x, gx, beta, gamma], {"alpha": 2.0, "epsilon": 1e-3}, kernel
    inputs = [dy, x, gx, gamma, mean, rstd]
    yield "deep_norm_grad", inputs, {"alpha": 2.0}, descend.deep_norm_grad(*inputs, 2.0)


def group_norms(draw: Draw) -> Iterator[Case]:
    x, dy, gamma, beta = draw(2, 6, 5, 3), draw(2, 6, 5, 3), draw(6), draw(6)
    sizes, unused = (2, 6, 15, 3), {"data_format": "NCHW", "is_training": False}
    y, mean, rstd = kernel = descend.group_norm(x, gamma, beta, *sizes, 0.5)
    variance = x.astype(np.float64).reshape(2, 3, 30).var(axis=-1).astype(np.float32)
    yield "group_norm", [x, gamma, beta], {"num_groups": 3, "eps": 0.5, **unused}, (y, mean, variance)
    yield "group_norm_v2", [x, gamma, beta], {"num_groups": 3, "eps": 0.5, **unused}, kernel
    yield "group_norm_silu", [x, gamma, beta], {"num_groups": 3, "eps": 0.5, "activate_silu": False}, kernel
    yield "group_norm_silu", [x, gamma, beta], {"num_groups": 3}, descend.group_norm_silu(x, gamma, beta, 3)
    yield "group_norm_v2", [x, None, None], {"num_groups": 3}, descend.group_norm(x, None, None, *sizes)
    yield "group_norm_silu", [x, None, None], {"num_groups": 3}, descend.group_norm_silu(x, None, None, 3)
    grads = descend.group_norm_backward(dy, x, mean, rstd, gamma, *sizes)
    for wanted in itertools.product((True, False), repeat=3):
        names = ("dx_is_require", "dgamma_is_require", "dbeta_is_require")
        required = dict(zip(names, wanted, strict=True))
        expected = [grad if want else None for grad, want in zip(grads, wanted, strict=True)]
        yield "group_norm_grad", [dy, mean, rstd, x, gamma], {"num_groups": 3, **required}, expected


def swish_group_norms(draw: Draw) -> Iterator[Case]:
    x, dy, gamma, beta = draw(2, 6, 5, 3), draw(2, 6, 5, 3), draw(6), draw(6)
    scale = {"num_groups": 3, "swish_scale": 0.5}
    for more in ({}, {"eps": 0.5, "activate_swish": False}):
        _, mean, rstd = kernel = descend.group_norm_swish(x, gamma, beta, **scale, **more)
        yield "group_norm_swish", [x, gamma, beta], {**scale, **more}, kernel
    for more in ({}, {"dgamma_is_require": False, "dbeta_is_require": False}):
        inputs = [dy, mean, rstd, x, gamma, beta]
        yield (
            "group_norm_swish_grad",
            inputs,
            {**scale, **more},
            descend.group_norm_swish_grad(*inputs, **scale, **more),
        )


def softmaxes(draw: Draw) -> Iterator[Case]:
    x, dy = draw(4, 6, 5), draw(4, 6, 5)
    for axes, dim in (((-1,), -1), ([], -1), ([1], 1)):
        y, log = descend.softmax(x, dim), descend.log_softmax(x, dim)
        yield "softmax_v2", [x], {"axes": axes}, [y]
        yield "softmax_grad", [y, dy], {"axes": axes}, [descend.softmax_backward(dy, y, dim)]
        yield "log_softmax_v2", [x], {"axes": axes}, [log]
        for name in ("axis", "axes"):
            yield "log_softmax_grad", [dy, log], {name: axes}, [descend.log_softmax_backward(dy, log, dim)]
    wide = np.empty(x.shape, np.float32 if x.dtype == np.float16 else x.dtype)
    yield "softmax_v2", [x], {"half_to_float": True}, [descend.softmax(x, out=wide)]


def masked_softmaxes(draw: Draw) -> Iterator[Case]:
    x, dy = draw(2, 3, 4, 32), draw(2, 3, 4, 32)
    for mask, triangle in ((draw.rng.random((2, 1, 4, 32)) < 0.3, False), (None, True)):
        attributes = {"scale": 0.5, "fixed_triu_mask": triangle}
        y = descend.scaled_masked_softmax(x, mask, 0.5, triangle)
        yield "scaled_masked_softmax_v2", [x, mask], attributes, [y]
        dx = descend.scaled_masked_softmax_backward(dy, y, mask, 0.5, triangle)
        yield "scaled_masked_softmax_grad_v2", [dy, y, mask], attributes, [dx]


def activations(draw: Draw) -> Iterator[Case]:
    x, dy = draw(4, 6, 10), draw(4, 6, 10)
    tanh, grad = [descend.gelu_v2(x, 1)], [descend.gelu_backward_v2(dy, x, "tanh")]
    yield "gelu", [x], {}, tanh
    yield "gelu_v2", [x], {"approximate": "tanh"}, tanh
    yield "gelu_v2", [x], {}, [descend.gelu_v2(x)]
    yield "gelu_grad", [dy, x, tanh[0]], {}, grad
    yield "gelu_grad_v2", [dy, x], {"approximate": "tanh"}, grad
    yield "gelu_grad_v2", [dy, x], {}, [descend.gelu_backward_v2(dy, x)]
    for attributes in ({}, {"dim": 1}):
        y = descend.swi_glu(x, **attributes)
        yield "swi_glu", [x], attributes, [y]
        yield "swi_glu_grad", [y, x], attributes, [descend.swi_glu_grad(y, x, **attributes)]


def rotations(draw: Draw) -> Iterator[Case]:
    x, dy, cos, sin = draw(2, 5, 3, 16), draw(2, 5, 3, 16), draw(1, 5, 1, 16), draw(1, 5, 1, 16)
    for mode in range(4):
        attributes = {"mode": mode} if mode else {}
        y = descend.rotary_position_embedding(x, cos, sin, mode)
        yield "rotary_position_embedding", [x, cos, sin], attributes, [y]
        for more in (x, None):
            grads = descend.rotary_position_embedding_grad(dy, cos, sin, more, mode)
            yield "rotary_position_embedding_grad", [dy, cos, sin, more], attributes, grads


def compressions(draw: Draw) -> Iterator[Case]:
    x, weight = draw(96, 2, 16), draw(32, 2)
    for lengths, kind in ((np.array([0, 48, 96]), 0), (np.array([48, 48]), 1), (None, 0)):
        attributes = {"compressBlockSize": 32, "compressStride": 16, "actSeqLenType": kind, "layoutOptional": "TND"}
        ours = {"compress_block_size": 32, "compress_stride": 16, "act_seq_len_type": kind}
        sequences = None if lengths is None else lengths.tolist()
        y = descend.nsa_compress(x, weight, sequences, **ours)
        yield "nsa_compress", [x, weight, lengths], attributes, [y]
        grads = descend.nsa_compress_grad(y, x, weight, sequences, **ours)
        yield "nsa_compress_grad", [y, x, weight, lengths], attributes, grads


def losses(draw: Draw) -> Iterator[Case]:
    x, target = draw(7, 10), draw.rng.integers(0, 10, 7)
    weight, target[2] = draw.rng.random(10).astype(np.float32), 3
    smooth = {"ignore_index": 3, "label_smoothing": 0.25, "lse_square_scale_for_zloss": 0.5}
    for reduction, of_classes, more in (("mean", None, {}), ("sum", weight, smooth), ("none", weight, smooth)):
        attributes = {"reduction": reduction, **more}
        zloss = {"return_zloss": True} if more else {}
        kernel = descend.cross_entropy_loss(x, target, of_classes, **attributes, **zloss)
        yield "cross_entropy_loss", [x, target, of_classes], {**attributes, **zloss}, kernel
        loss, log_prob, of_zloss, lse = kernel
        inputs = [loss, log_prob, target.astype(np.int32), of_classes, of_zloss, lse]
        gradient = descend.cross_entropy_loss_grad(*inputs, **attributes)
        yield "cross_entropy_loss_grad", inputs, attributes, [gradient]
        if lse is not None:
            yield "cross_entropy_loss_grad", [*inputs[:5], lse[:, None]], attributes, [gradient]


def optimizers(draw: Draw) -> Iterator[Case]:
    var, m, v, grad, most = draw(5, 7), draw(5, 7), abs(draw(5, 7)), draw(5, 7), abs(draw(5, 7))
    # These numbers, and the third powers of the betas, are exact in all dtypes.
    numbers = {"lr": 0.125, "beta1": 0.75, "beta2": 0.5, "weight_decay": 0.25, "eps": 2.0**-10}
    for step, more in ((np.array([3]), {}), (np.array([3.0], np.float32), {"amsgrad": True, "maximize": True})):
        kernel = descend.apply_adam_w_v2(var, m, v, most, grad, step, **numbers, **more)
        stays = most if kernel[3] is None else kernel[3]
        yield "apply_adam_w_v2", [var, m, v, grad, step, most], {**numbers, **more}, (*kernel[:3], stays)
        of = {name: np.array([value], draw.dtype) for name, value in numbers.items()}
        powers = [np.array([numbers[name] ** 3], draw.dtype) for name in ("beta1", "beta2")]
        arrays = [of[name] for name in ("lr", "weight_decay", "beta1", "beta2", "eps")]
        yield "apply_adam_w", [var, m, v, *powers, *arrays, grad, most], more, kernel[:3]
        if not more:
            yield "apply_adam_w_v2", [var, m, v, grad, step, None], numbers, kernel
            yield "apply_adam_w", [var, m, v, *powers, *arrays, grad, None], {}, kernel[:3]


FAMILIES = [rms_norms, layer_norms, layer_norms_of_sums, group_norms, swish_group_norms, softmaxes, masked_softmaxes]
FAMILIES += [activations, rotations, compressions, losses, optimizers]
STATISTICS_AS_X = {"group_norm", "group_norm_v2", "group_norm_silu", "group_norm_swish"}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.__name__)
def test_results_are_those_of_kernels(family, dtype):
    for name, inputs, attributes, kernel in family(Draw(dtype)):
        expected = ["float32" if result is None else str(result.dtype) for result in kernel]
        results = as_framework(name, *inputs, **attributes, output_dtypes=expected)
        plain = as_framework(name, *inputs, **attributes)
        for result, usual, of_kernel in zip(results, plain, kernel, strict=True):
            if of_kernel is None:
                assert result is usual is None, name
                continue
            close(result, of_kernel)
            assert usual.dtype == (inputs[0].dtype if name in STATISTICS_AS_X else of_kernel.dtype), name


def test_cases_have_every_input_and_attribute():
    """Each optional input is there and is not, and each attribute has another value than its default."""
    seen: dict[str, set[str]] = {}
    for family in FAMILIES:
        for name, inputs, attributes, _ in family(Draw()):
            known, optional = parameters_of(name)
            default = {p.name: p.default for p in optional}
            of = seen.setdefault(name, set())
            of |= {f"{p.name} {given is None}" for p, given in zip(known, inputs, strict=True) if p.default is None}
            of |= {key for key, value in attributes.items() if key not in default or value != default[key]}
    for name in DEFINITIONS:
        known, attributes = parameters_of(name)
        wanted = {f"{p.name} {absent}" for p in known if p.default is None for absent in (True, False)}
        wanted |= {p.name for p in attributes if p.default not in ("NCHW", "TND")}  # which have one value
        assert wanted <= seen[name], name


# --- dtypes, and what is refused


def test_results_are_rounded_once_to_the_dtypes_that_are_asked_for():
    x, gamma = Draw()(5, 40), Draw()(40)
    exact = descend.reference.rms_norm(x, gamma)
    y, rstd = as_framework("rms_norm", x, gamma, output_dtypes=["float64", "bfloat16"])
    np.testing.assert_array_equal(y, exact[0])
    np.testing.assert_array_equal(rstd, descend.precision.round_to(exact[1], bfloat16))
    for one in (["bfloat16"], "bfloat16", bfloat16, bfloat16.type, "DT_BF16", np.array(["bfloat16"])):
        results = as_framework("rms_norm", x, gamma, output_dtypes=one)
        assert [result.dtype for result in results] == [bfloat16, bfloat16]
    for name, dtype in (("float", np.float32), ("half", np.float16), (np.float64, np.float64)):
        results = as_framework("rms_norm", x, gamma, output_dtypes=np.array([None, name]))
        assert [result.dtype for result in results] == [x.dtype, dtype]


def test_float64_stays_float64():
    for family in FAMILIES:
        for name, inputs, attributes, _ in family(Draw(np.float64)):
            for result in as_framework(name, *inputs, **attributes):
                assert result is None or result.dtype == np.float64, name


@pytest.mark.parametrize("values", [[0.0] * 8, [1e-8, -1e-8] * 4, [1e30, -1e30] * 4], ids=["zero", "small", "large"])
def test_group_norm_has_the_variance_without_eps(values):
    x = np.array(values).reshape(1, 2, 4)
    _, _, variance = as_framework("group_norm", x, np.ones(2), np.ones(2), num_groups=1)
    np.testing.assert_allclose(variance, [[x.var()]], rtol=1e-15)


X, ROW, ONE = np.ones((4, 6), np.float32), np.ones(6, np.float32), np.ones(1, np.float32)
ADAM = [X, X, X, ONE / 2, ONE / 2, ONE, ONE, ONE / 2, ONE / 2, ONE, X]
LOSS = [ONE, X, np.zeros(4, np.int64)]
TOKENS = {"compressBlockSize": 4, "compressStride": 1}
REFUSED = [
    ("rms_norm", [X, X[0, :4]], {}, "gamma of shape"),
    ("layer_norm_v4", [X, np.array([6])], {"output_dtypes": ["float32"] * 2}, "output_dtypes has 2"),
    ("rms_norm", [X, ROW], {"output_dtypes": "int32"}, "int32 is none"),
    ("rms_norm", [X, ROW], {"output_dtypes": ["complex64"]}, "'complex64' is not a dtype"),
    ("layer_norm_v3", [X, ROW, ROW], {"begin_norm_axis": 1}, "begin_params_axis 0"),
    ("group_norm", [X, ROW, ROW], {"num_groups": 4}, "cannot be cut into 4 groups"),
    ("group_norm_silu", [ROW], {"num_groups": 2}, "cannot be cut into 2 groups"),
    ("group_norm_swish", [X, ROW, ROW], {"num_groups": 0}, "cannot be cut into 0 groups"),
    ("group_norm_swish_grad", [ROW, ONE, ONE, ROW, ROW, ROW], {"num_groups": 1}, "cannot be cut into 1 groups"),
    ("group_norm", [X, ROW, ROW], {"num_groups": 2, "data_format": "NHWC"}, "data_format is 'NHWC'"),
    ("group_norm_v2", [X], {"num_groups": 2, "data_format": "ND"}, "'NHWC' or 'NCHW'"),
    ("group_norm_grad", [X, ONE, ONE, X, ROW], {"num_groups": 2, "data_format": "NHWC"}, "data_format is 'NHWC'"),
    ("softmax_v2", [X], {"axes": [0, 1]}, r"axes is \[0, 1\], but there may be only one axis"),
    ("softmax_grad", [X, X], {"axes": [0, -1]}, "only one axis"),
    ("log_softmax_v2", [X], {"axes": [2]}, "axis 2 is out of bounds"),
    ("log_softmax_grad", [X, X], {"axis": [0, 1]}, "only one axis"),
    ("gelu_v2", [X], {"approximate": "erf"}, "approximate is 'erf', but it must be 'none' or 'tanh'"),
    ("gelu_grad_v2", [X, X], {"approximate": 1}, "approximate is 1"),
    ("swi_glu", [X[:, :5]], {}, "cannot be cut into halves along dimension -1"),
    ("swi_glu_grad", [X, X], {"dim": 2}, "cannot be cut into halves along dimension 2"),
    ("scaled_masked_softmax_v2", [ROW], {"fixed_triu_mask": True}, "a matrix has a diagonal"),
    ("nsa_compress", [X, X], {**TOKENS, "layoutOptional": "BSND"}, "layoutOptional is 'BSND', but it must be 'TND'"),
    ("nsa_compress_grad", [X, X, X], {**TOKENS, "actSeqLenType": 2}, "actSeqLenType is 2"),
    ("rotary_position_embedding", [X, X, X], {"mode": 4}, "mode is 4"),
    ("rotary_position_embedding_grad", [X, X, X], {"mode": -1}, "mode is -1"),
    ("cross_entropy_loss", LOSS[1:], {"reduction": "avg"}, "reduction is 'avg'"),
    ("cross_entropy_loss_grad", LOSS, {"reduction": "avg"}, "reduction is 'avg'"),
    ("cross_entropy_loss_grad", LOSS, {"lse_square_scale_for_zloss": 0.5}, "lse_for_zloss is absent"),
    ("apply_adam_w_v2", [X, X, X, X, ONE], {"amsgrad": True}, "max_grad_norm is absent"),
    ("apply_adam_w", ADAM, {"amsgrad": True}, "max_grad_norm is absent"),
    ("apply_adam_w", [*ADAM[:7], ONE, *ADAM[8:]], {}, "beta1 is 1.0"),
]


@pytest.mark.parametrize(("name", "inputs", "attributes", "sentence"), REFUSED)
def test_what_does_not_fit_is_said(name, inputs, attributes, sentence):
    with pytest.raises(ValueError, match=sentence):
        as_framework(name, *inputs, **attributes)
