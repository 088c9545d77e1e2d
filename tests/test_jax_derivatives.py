"""Derivatives of the operators in JAX: by the backward operators, of any order, in both modes."""

from __future__ import annotations

import numpy as np
import pytest

jax = pytest.importorskip("jax")

import jax.numpy as jnp  # noqa: E402
from jax.test_util import check_grads  # noqa: E402

import descend.jax  # noqa: E402
from cases import assert_same_bits, extended  # noqa: E402
from descend.jax import definitions  # noqa: E402
from descend.jax.library import DEFINITIONS  # noqa: E402
from descend.portability import default  # noqa: E402
from jax_cases import FORWARDS, NAMES, OPERATORS, calls, x64  # noqa: E402

GRADIENT = {
    "rms_norm": "rms_norm_grad",
    "add_layer_norm": "add_layer_norm_grad",
    "add_rms_norm": "rms_norm_grad",
    "deep_norm": "deep_norm_grad",
    "gemma_rms_norm": "rms_norm_grad",
    "layer_norm": "layer_norm_backward",
    "group_norm": "group_norm_backward",
    "group_norm_silu": "group_norm_swish_grad",
    "group_norm_swish": "group_norm_swish_grad",
    "scaled_masked_softmax": "scaled_masked_softmax_backward",
    "softmax": "softmax_backward",
    "log_softmax": "log_softmax_backward",
    "nsa_compress": "nsa_compress_grad",
    "rotary_position_embedding": "rotary_position_embedding_grad",
    "swi_glu": "swi_glu_grad",
    "cross_entropy_loss": "cross_entropy_loss_grad",
    "gelu_v2": "gelu_backward_v2",
}


def scalar(function):
    """One number that reads all results."""
    return lambda *values: sum((r * jnp.cos(r)).astype(jnp.float32).sum() for r in function(*values))


def definition(call):
    """The call's definition in ``jax.numpy``, as a function of its floating arrays."""
    parameters = descend.contract.OPERATORS[call.name].functional_parameters
    values = {p.python: default(p) for p in parameters} | call.named
    values |= dict(zip((p.python for p in parameters), call.args, strict=False))
    names = [parameters[place].python for place in call.floats]

    def function(*arrays):
        results = DEFINITIONS[call.name](**values | dict(zip(names, arrays, strict=True)))
        return tuple(r for r in results if r is not None)

    return function


TWICE = ("layer_norm", "group_norm_swish", "cross_entropy_loss", "scaled_masked_softmax")


@pytest.mark.parametrize("name", [*OPERATORS, *extended(*(name for name in NAMES if name not in OPERATORS))])
def test_derivatives(name):
    """Against differences; second ones of a few, each mode over each mode. Of the others those are of the backwards."""
    call = calls()[name]
    order = 2 if name in TWICE else 1
    with x64():
        check_grads(jax.jit(call.at(call.floats)), call.of(call.floats), order, modes=("fwd", "rev"))


@pytest.mark.parametrize("name", ["rms_norm", "scaled_masked_softmax", "nsa_compress_grad"])
def test_third_derivatives(name):
    """Along one direction, beside those of the definition."""
    call = calls()[name]
    values = call.of(call.floats)

    def along(function):
        third = lambda t: scalar(function)(*(v + t * jnp.cos(v) for v in values))  # noqa: E731
        return jax.jit(jax.grad(jax.jacfwd(jax.grad(third))))(0.1)

    with x64():
        np.testing.assert_allclose(along(call.at(call.floats)), along(definition(call)), rtol=1e-5)


@pytest.mark.parametrize("name", FORWARDS)
def test_gradients_are_the_backward_operators(name):
    """Their bits, with the parameters' dtypes; and near those of the definition in float32."""
    exact = jax.jit(lambda inputs, cotangents: jax.vjp(definition(calls("FLOAT")[name]), *inputs)[1](cotangents))
    plain = name == "group_norm_swish-norm"
    for dtype, error in (("FLOAT", 2e-5), ("BFLOAT16", 0.15)):
        call = calls(dtype)[name]
        inputs = call.of(call.floats)
        results, pull = jax.vjp(jax.jit(call.at(call.floats)), *inputs)
        cotangents = tuple(jnp.cos(r) for r in results)
        text = str(jax.make_jaxpr(pull)(cotangents))
        assert f"descend_{'group_norm_backward' if plain else GRADIENT[call.name]}[" in text
        assert "tangents" not in text
        gradients = pull(cotangents)
        assert [(g.shape, g.dtype) for g in gradients] == [(i.shape, i.dtype) for i in inputs]
        wide = exact([np.asarray(i, np.float32) for i in inputs], tuple(c.astype(jnp.float32) for c in cotangents))
        for gradient, wanted in zip(gradients, wide, strict=True):
            np.testing.assert_allclose(np.asarray(gradient, np.float32), wanted, rtol=error, atol=error)


def test_a_gradient_has_the_bits_of_the_backward_operator():
    call = calls("BFLOAT16")["rms_norm"]
    x, gamma, epsilon = call.args
    dy = np.cos(x)
    rstd = descend.rms_norm(x, gamma, epsilon)[1]
    expected = descend.rms_norm_grad(dy, x, rstd, gamma)
    gradients = jax.jit(lambda x, g: jax.vjp(lambda *a: descend.jax.rms_norm(*a, epsilon)[0], x, g)[1](dy))(x, gamma)
    assert_same_bits([np.asarray(g) for g in gradients], [expected[0], expected[1].astype(gamma.dtype)])


def test_only_what_is_asked_for_is_computed():
    """Without the gradients of weight and bias the backward operator leaves them out."""
    call = calls("FLOAT")["layer_norm"]
    x, shape, weight, bias, _ = call.args

    def masks(*places):
        function = jax.grad(lambda *a: descend.jax.layer_norm(a[0], shape, a[1], a[2])[0].sum(), places)
        return str(jax.make_jaxpr(function)(x, weight, bias))

    assert "('output_mask', (True, False, False))" in masks(0)
    assert "('output_mask', (False, True, True))" in masks(1, 2)
    # Of group norm alone what is asked for is dbeta.
    grad = jax.grad(lambda b: descend.jax.group_norm_swish(x[:, :, :1], weight[:3], b, 1)[0].sum())
    assert "('dgamma_is_require', False)" in str(jax.make_jaxpr(grad)(bias[:3]))


@pytest.mark.parametrize("name", ["layer_norm", "group_norm_swish", "scaled_masked_softmax_backward"])
def test_results_in_forward_mode_have_the_same_bits(name):
    call = calls("FLOAT")[name]
    inputs = tuple(map(jnp.asarray, call.of(call.floats)))
    function = jax.jit(call.at(call.floats))
    results, tangents = jax.jvp(function, inputs, inputs)
    assert_same_bits([np.asarray(r) for r in results], [np.asarray(r) for r in function(*inputs)])
    exact = jax.jvp(jax.jit(definition(call)), inputs, inputs)[1]
    for tangent, wanted in zip(tangents, exact, strict=True):
        np.testing.assert_allclose(tangent, wanted, rtol=2e-5, atol=2e-5)


def test_hessians_by_all_four_ways():
    call = calls()["rms_norm"]
    x, gamma = call.args[0][0, :2], call.args[1]

    def hessian(outer, inner, function):
        return jax.jit(outer(inner(lambda x: jnp.sum(jnp.sin(function(x))))))(x)

    with x64():
        ours = lambda x: descend.jax.rms_norm(x, gamma)[0]  # noqa: E731
        theirs = lambda x: definitions.rms_norm(x, gamma, 1e-6)[0]  # noqa: E731
        expected = hessian(jax.jacfwd, jax.jacrev, theirs)
        for outer in (jax.jacfwd, jax.jacrev):
            for inner in (jax.jacfwd, jax.jacrev):
                np.testing.assert_allclose(hessian(outer, inner, ours), expected, rtol=1e-9, atol=1e-11)


def test_linear_functions_can_be_transposed():
    """What ``jax.linearize`` gives has a transpose, which is the backward operator; batches of it too."""
    call = calls("FLOAT")["rms_norm"]
    x, gamma, _ = call.args
    y, push = jax.linearize(lambda x: descend.jax.rms_norm(x, gamma)[0], x)
    (expected,) = jax.vjp(lambda x: descend.jax.rms_norm(x, gamma)[0], x)[1](y)
    (found,) = jax.linear_transpose(push, x)(y)
    assert_same_bits([np.asarray(found)], [np.asarray(expected)])
    (batch,) = jax.linear_transpose(jax.vmap(push), jnp.stack([x, x]))(jnp.stack([y, y]))
    np.testing.assert_allclose(batch[1], expected, rtol=1e-5, atol=1e-6)
