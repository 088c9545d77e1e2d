"""The operators under JAX's transformations: vmap, scan, checkpoint, donation, shard_map."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest

jax = pytest.importorskip("jax")

import jax.numpy as jnp  # noqa: E402

import descend  # noqa: E402
import descend.jax  # noqa: E402
from cases import assert_same_bits, in_turn, run_python  # noqa: E402
from jax_cases import NAMES, OPERATORS, calls  # noqa: E402

SIZE = 3


def varied(array, number):
    """Arrays like one: of masks others, of numbers others of the same sign."""
    return np.roll(array, number) if array.dtype.kind in "biu" else (array * (1 + number / 4)).astype(array.dtype)


@pytest.mark.parametrize(
    ("name", "which"), [*in_turn(NAMES, ["all"]), *in_turn(OPERATORS, ["first", "last", "at the end"])]
)
def test_vmap(name, which):
    """Each sample has what a call of its own gives."""
    call = calls("FLOAT")[name]
    places = call.arrays
    batched = {"all": places, "first": places[:1], "last": places[-1:], "at the end": places}[which]
    axis = -1 if which == "at the end" else 0
    axes = [axis if place in batched else None for place in places]
    samples = [
        [varied(array, i) if place in batched else array for place, array in zip(places, call.of(places), strict=True)]
        for i in range(SIZE)
    ]
    stacked = [
        np.stack(column, axis) if place in batched else column[0]
        for place, column in zip(places, zip(*samples, strict=True), strict=True)
    ]
    results = jax.jit(jax.vmap(call.at(places), in_axes=axes))(*stacked)
    for i, sample in enumerate(samples):
        for result, wanted in zip(results, call.at(places, descend)(*sample), strict=True):
            np.testing.assert_allclose(result[i], wanted, rtol=1e-5, atol=1e-6)
            assert (result.shape[1:], result.dtype) == (wanted.shape, wanted.dtype)


@pytest.mark.parametrize("name", OPERATORS)
def test_a_batch_of_no_calls(name):
    call = calls("FLOAT")[name]
    none = [np.empty((0, *a.shape), a.dtype) for a in call.of(call.arrays)]
    results = jax.vmap(call.at(call.arrays))(*none)
    one = call.at(call.arrays, descend)(*call.of(call.arrays))
    assert [(r.shape, r.dtype) for r in results] == [((0, *o.shape), o.dtype) for o in one]


def test_batches_within_batches_and_gradients_of_each_sample():
    rng = np.random.default_rng(1)
    x = jnp.asarray(rng.standard_normal((2, 3, 5, 8)), jnp.float32)
    gamma = jnp.asarray(rng.standard_normal(8), jnp.float32)

    def loss(gamma, rows):
        return jnp.sum(jnp.sin(descend.jax.rms_norm(rows, gamma)[0]))

    inner = jax.vmap(jax.grad(loss), in_axes=(None, 0))
    each = jax.jit(jax.vmap(inner, in_axes=(None, 0)))(gamma, x)
    for i, j in itertools.product(range(2), range(3)):
        np.testing.assert_allclose(each[i, j], jax.grad(loss)(gamma, x[i, j]), rtol=1e-5, atol=1e-6)
    whole = jax.grad(lambda g: jax.vmap(jax.vmap(loss, (None, 0)), (None, 0))(g, x).sum())(gamma)
    np.testing.assert_allclose(whole, each.sum((0, 1)), rtol=1e-4, atol=1e-5)


def test_a_batch_that_has_too_many_dimensions():
    x = np.ones((2,) + (1,) * 7 + (4,), np.float32)
    with pytest.raises(ValueError, match=r"^rms_norm: x has shape \[2, .*\] of rank 9"):
        jax.vmap(lambda x: descend.jax.rms_norm(x, np.ones(4, np.float32)))(x)


def layers(x, weights, norm):
    """A loop over layers, each computed again on the way back."""

    @jax.checkpoint
    def layer(x, weight):
        return x + jnp.tanh(norm(x, weight)), None

    return jax.lax.scan(layer, x, weights)[0]


def test_scan_and_checkpoint():
    rng = np.random.default_rng(2)
    x, weights = (jnp.asarray(rng.standard_normal(s), jnp.float32) for s in ((4, 16), (5, 16)))

    def plain(x, weight):
        return x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6) * weight

    def loss(norm):
        return jax.jit(jax.value_and_grad(lambda x, w: jnp.sum(layers(x, w, norm) ** 2), (0, 1)))

    ours = loss(lambda x, w: descend.jax.rms_norm(x, w)[0])
    for found, wanted in zip(jax.tree.leaves(ours(x, weights)), jax.tree.leaves(loss(plain)(x, weights)), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=2e-4, atol=1e-4)
    # Computed again: the forward is called twice in each loop's pair, once on the way there and once back.
    assert str(jax.make_jaxpr(ours)(x, weights)).count("descend_rms_norm[") == 2


def test_donated_arguments():
    x, gamma = jnp.full((64, 32), 2.0), jnp.ones(32)
    expected = descend.rms_norm(np.asarray(x), np.asarray(gamma))
    results = jax.jit(descend.jax.rms_norm, donate_argnums=0)(x, gamma)
    assert_same_bits([np.asarray(r) for r in results], expected)


def test_control_flow():
    x, gamma = jnp.ones((2, 4)), jnp.arange(4.0)

    def function(flag, x):
        return jax.lax.cond(flag, lambda x: descend.jax.rms_norm(x, gamma)[0], lambda x: x, x)

    for flag in (True, False):
        expected = descend.jax.rms_norm(x, gamma)[0] if flag else x
        np.testing.assert_array_equal(jax.jit(function)(flag, x), expected)
    many = jax.vmap(function)(jnp.array([True, False]), jnp.stack([x, x]))
    np.testing.assert_array_equal(many[0], descend.jax.rms_norm(x, gamma)[0])


@pytest.mark.parametrize("name", ["layer_norm", "rms_norm_grad"])
def test_without_any_compilation(name):
    """``jax.disable_jit`` is for those who debug: each operation runs by itself, tangents too."""
    call = calls("FLOAT")[name]
    inputs = tuple(call.of(call.arrays))
    expected = jax.jvp(call.at(call.arrays), inputs, inputs)
    with jax.disable_jit():
        found = jax.jvp(call.at(call.arrays), inputs, inputs)
        gradients = jax.grad(lambda *a: jnp.sum(call.at(call.arrays)(*a)[0]))(*inputs)
    for f, e in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(f, e, rtol=1e-6, atol=1e-6)
    assert gradients.shape == inputs[0].shape


@pytest.mark.parametrize("name", ["rms_norm", "add_layer_norm-three", "cross_entropy_loss-mean", "nsa_compress"])
def test_rules_of_promotion_that_a_program_made_strict(name):
    """They are for the program's own code, not for derivatives and batches here."""
    call = calls("BFLOAT16")[name]
    inputs = tuple(map(jnp.asarray, call.of(call.floats)))
    function = call.at(call.floats)

    def gradients(*arrays):
        results, pull = jax.vjp(function, *arrays)
        return pull(results)

    def run():
        each = jax.vmap(function)(*(jnp.stack([a, a]) for a in inputs))
        return jax.tree.leaves([jax.jit(lambda *a: jax.jvp(gradients, a, a))(*inputs), each])

    wanted = run()
    with jax.numpy_dtype_promotion("strict"), jax.numpy_rank_promotion("raise"):
        assert_same_bits(map(np.asarray, run()), map(np.asarray, wanted))


def test_a_program_that_looks_for_nan():
    """``jax_debug_nans`` names the operator, within a compiled program, too."""
    x, gamma = jnp.array([[1.0, jnp.nan]]), jnp.ones(2)
    function = lambda x: descend.jax.rms_norm(x, gamma)[0]  # noqa: E731
    with jax.debug_nans(True):
        for run in (function, jax.jit(function), jax.grad(lambda x: function(x).sum())):
            with pytest.raises(FloatingPointError, match="encountered in descend_rms_norm"):
                run(x)


def test_transposed_arguments():
    """XLA keeps them in another order, and hands over what the operator expects."""
    x = np.random.default_rng(3).standard_normal((8, 5)).astype(np.float32)
    results = jax.jit(lambda x, g: descend.jax.rms_norm(x.T, g))(x, np.ones(8, np.float32))
    assert_same_bits([np.asarray(r) for r in results], descend.rms_norm(x.T.copy(), np.ones(8, np.float32)))


def test_programs_that_are_exported():
    """And run in another process; JAX asks that calls of others' libraries be allowed by name."""
    from jax import export

    function = jax.jit(lambda x, g: descend.jax.rms_norm(x, g)[0])
    given = np.ones((2, 4), np.float32), np.arange(4, dtype=np.float32)
    allowed = [export.DisabledSafetyCheck.custom_call("descend_rms_norm")]
    again = export.deserialize(export.export(function, disabled_checks=allowed)(*given).serialize())
    np.testing.assert_array_equal(again.call(*given), function(*given))


def test_many_devices():
    """In a process of its own, since the number of devices is set before JAX starts."""
    script = Path(__file__).parent / "jax_shards.py"
    run_python(
        f"import runpy; runpy.run_path({str(script)!r}, run_name='__main__')",
        timeout=300,
        JAX_PLATFORMS="cpu",
        XLA_FLAGS="--xla_force_host_platform_device_count=4",
    )
