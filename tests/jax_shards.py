"""The operators on four devices: rows cut by shard_map, gradients within and without, arrays that are cut already."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import descend.jax

P = PartitionSpec
MESH = Mesh(np.array(jax.devices()), ("rows",))
RNG = np.random.default_rng(0)
X = jnp.asarray(RNG.standard_normal((8, 4, 16)), jnp.float32)
GAMMA, BETA = (jnp.asarray(RNG.standard_normal(16), jnp.float32) for _ in range(2))
C_GAMMA, C_BETA = GAMMA[:4], BETA[:4]
MASK = jnp.asarray(RNG.random((8, 1, 16)) < 0.3)


def rms_norm(x, gamma, beta):
    return descend.jax.rms_norm(x, gamma)[0]


def layer_norm(x, gamma, beta):
    return descend.jax.layer_norm(x, [16], gamma, beta)[0]


def group_norm_swish(x, gamma, beta):
    return descend.jax.group_norm_swish(x, gamma[:4], beta[:4], 2)[0]


def softmax(x, gamma, beta):
    return descend.jax.scaled_masked_softmax(x * gamma, None, 0.5)


FUNCTIONS = (rms_norm, layer_norm, group_norm_swish, softmax)


def loss(function, x, gamma, beta):
    return jnp.sum(jnp.sin(function(x, gamma, beta)))


def close(found, wanted):
    for f, w in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(f, w, rtol=2e-5, atol=2e-5)


def cut(function, outputs, **options):
    return jax.shard_map(function, mesh=MESH, in_specs=(P("rows"), P(), P()), out_specs=outputs, **options)


def check_values(function):
    """Each device has the rows' own bits, and no data moves."""
    wanted = function(X, GAMMA, BETA)
    for check in (True, False):
        program = jax.jit(cut(functools.partial(function), P("rows"), check_vma=check))
        found = program(X, GAMMA, BETA)
        np.testing.assert_array_equal(found, wanted)
        text = program.lower(X, GAMMA, BETA).compile().as_text()
        assert not [word for word in ("all-gather", "all-reduce", "all-to-all") if word in text]


def check_gradients(function):
    wanted = jax.grad(functools.partial(loss, function), (0, 1, 2))(X, GAMMA, BETA)

    def part(x, gamma, beta):
        return jax.lax.psum(loss(function, x, gamma, beta), "rows")

    for check in (True, False):
        whole = cut(part, P(), check_vma=check)
        close(jax.jit(jax.grad(whole, (0, 1, 2)))(X, GAMMA, BETA), wanted)
    within = jax.grad(lambda *a: loss(function, *a), (0, 1, 2))  # JAX adds up what all devices share
    close(jax.jit(cut(within, (P("rows"), P(), P())))(X, GAMMA, BETA), wanted)


def check_second_derivatives():
    def part(x, gamma, beta):
        return jax.lax.psum(loss(rms_norm, x, gamma, beta), "rows")

    def second(function):
        return jax.jit(jax.grad(lambda g: jnp.sum(jax.grad(function, 1)(X, g, BETA) ** 2)))(GAMMA)

    close(second(cut(part, P())), second(functools.partial(loss, rms_norm)))
    tangent = lambda function: jax.jvp(lambda x: function(x, GAMMA, BETA), (X,), (jnp.cos(X),))[1]  # noqa: E731
    close(tangent(cut(part, P())), tangent(functools.partial(loss, rms_norm)))


def check_masks():
    softmax = descend.jax.scaled_masked_softmax
    program = jax.shard_map(softmax, mesh=MESH, in_specs=(P("rows"), P("rows")), out_specs=P("rows"))
    np.testing.assert_array_equal(program(X, MASK), descend.jax.scaled_masked_softmax(X, MASK))


def check_heads_of_nsa():
    tokens, weight = X.reshape(16, 4, 8), C_GAMMA * jnp.ones((3, 4))
    options = {"compress_block_size": 3, "compress_stride": 2}

    def function(x, w):
        return jnp.sum(jnp.sin(descend.jax.nsa_compress(x, w, [7, 16], **options)))

    part = jax.shard_map(
        lambda x, w: jax.lax.psum(function(x, w), "rows"),
        mesh=MESH,
        in_specs=(P(None, "rows"), P(None, "rows")),
        out_specs=P(),
    )
    close(jax.grad(part, (0, 1))(tokens, weight), jax.grad(function, (0, 1))(tokens, weight))


def check_a_batch_of_no_calls():
    each = jax.vmap(jax.grad(functools.partial(loss, rms_norm), 1), (0, None, None))
    assert jax.jit(cut(each, P("rows")))(X[:0], GAMMA, BETA).shape == (0, 16)


def check_arrays_that_are_cut():
    """Without shard_map the whole array is put together first: right, but not split."""
    wanted = rms_norm(X, GAMMA, BETA), jax.grad(functools.partial(loss, rms_norm), (0, 1, 2))(X, GAMMA, BETA)
    meshes = [MESH]
    if hasattr(jax, "reshard"):
        meshes.append(jax.make_mesh((4,), ("rows",), axis_types=(jax.sharding.AxisType.Explicit,)))
    for mesh in meshes:
        with jax.set_mesh(mesh) if hasattr(jax, "set_mesh") else mesh:
            x = jax.device_put(X, NamedSharding(mesh, P("rows")))
            np.testing.assert_array_equal(jax.jit(rms_norm)(x, GAMMA, BETA), wanted[0])
            close(jax.jit(jax.grad(functools.partial(loss, rms_norm), (0, 1, 2)))(x, GAMMA, BETA), wanted[1])
            each = jax.vmap(jax.grad(functools.partial(loss, rms_norm), 1), (0, None, None))  # one call a sample
            close(jax.jit(each)(x, GAMMA, BETA), each(X, GAMMA, BETA))


if __name__ == "__main__":
    assert len(jax.devices()) == 4
    for each in FUNCTIONS:
        check_values(each)
        check_gradients(each)
    check_second_derivatives()
    check_masks()
    check_heads_of_nsa()
    check_a_batch_of_no_calls()
    check_arrays_that_are_cut()
