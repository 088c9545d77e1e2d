"""Operators by name (aclop) on any shape: the bits of the functional API; layer norm's variance against float64."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import descend
from c_library import DTYPES as NUMBERS
from c_library import FORMATS, Library, c_int64, c_void_p, started
from cases import DTYPES, FLOATS, UNIT, Array, assert_same_bits, dtype_name, normal, wide
from descend import reference

shapes = st.lists(st.integers(1, 9), min_size=2, max_size=4).map(tuple)
dtypes = st.sampled_from(FLOATS)
seeds = st.integers(0, 2**32)


@pytest.fixture(scope="module")
def lib() -> Iterator[Library]:
    yield from started()


def number(array: Array) -> int:
    name = dtype_name(array)
    return NUMBERS["BF16" if name == "BFLOAT16" else name]


class Tensors:
    """Descriptions and buffers of arrays, which None leaves out; lists of integers lie in host memory."""

    def __init__(self, lib: Library, tensors: Sequence[Array | list[int] | None]) -> None:
        self.lib = lib
        self.kept = [np.array(t, np.int64) if isinstance(t, list) else t for t in tensors]
        self.descs, self.buffers = [], []
        for tensor, array in zip(tensors, self.kept, strict=True):
            if array is None:
                self.descs.append(lib.aclCreateTensorDesc(NUMBERS["UNDEFINED"], 0, None, FORMATS["UNDEFINED"]))
                self.buffers.append(lib.aclCreateDataBuffer(None, 0))
                continue
            dims = (c_int64 * max(array.ndim, 1))(*array.shape)
            self.descs.append(lib.aclCreateTensorDesc(number(array), array.ndim, dims, FORMATS["ND"]))
            self.buffers.append(lib.aclCreateDataBuffer(array.ctypes.data, array.nbytes))
            if isinstance(tensor, list):
                assert lib.aclSetTensorPlaceMent(self.descs[-1], 1) == 0

    def arguments(self) -> tuple[Any, ...]:
        size = len(self.descs)
        return size, (c_void_p * size)(*self.descs), (c_void_p * size)(*self.buffers)

    def destroy(self) -> None:
        for desc, buffer in zip(self.descs, self.buffers, strict=True):
            self.lib.aclDestroyTensorDesc(desc)
            assert self.lib.aclDestroyDataBuffer(buffer) == 0


def call(
    lib: Library,
    name: str,
    inputs: Sequence[Array | list[int] | None],
    outputs: Sequence[Array | None],
    **attributes: Any,
) -> None:
    attr = lib.aclopCreateAttr()
    for key, value in attributes.items():
        setters = {bool: lib.aclopSetAttrBool, int: lib.aclopSetAttrInt, float: lib.aclopSetAttrFloat}
        setters[str] = lambda attr, key, value: lib.aclopSetAttrString(attr, key, value.encode())
        assert setters[type(value)](attr, key.encode(), value) == 0, lib.sentence
    of_inputs, of_outputs = Tensors(lib, inputs), Tensors(lib, outputs)
    status = lib.aclopCompileAndExecute(
        name.encode(), *of_inputs.arguments(), *of_outputs.arguments(), attr, 0, 0, None, None
    )
    of_inputs.destroy()
    of_outputs.destroy()
    lib.aclopDestroyAttr(attr)
    assert status == 0, lib.sentence
    assert lib.aclrtSynchronizeStream(None) == 0, lib.sentence


def like(*arrays: Array) -> list[Array]:
    return [np.full_like(array, 7) for array in arrays]


@settings(max_examples=60, deadline=None)
@given(shape=shapes, dtype=dtypes, seed=seeds, scale=st.floats(-2, 2, width=32), masked=st.booleans())
def test_masked_softmax(lib, shape, dtype, seed, scale, masked):
    rng = np.random.default_rng(seed)
    x, dy = normal(rng, shape, dtype), normal(rng, shape, dtype)
    mask = rng.random(shape[-2:]) < 0.3 if masked else None
    y = descend.scaled_masked_softmax(x, mask, scale)
    dx = descend.scaled_masked_softmax_backward(dy, y, mask, scale)
    got_y, got_dx = like(y, dx)
    call(lib, "ScaledMaskedSoftmax", [x, mask], [got_y], scale=scale)
    call(lib, "ScaledMaskedSoftmaxGrad", [dy, y, mask], [got_dx], scale=scale, fixed_triu_mask=False)
    assert_same_bits([got_y, got_dx], [y, dx])


@settings(max_examples=60, deadline=None)
@given(shape=shapes, dtype=dtypes, seed=seeds, epsilon=st.floats(0, 1, width=32))
def test_rms_norm(lib, shape, dtype, seed, epsilon):
    rng = np.random.default_rng(seed)
    x, dy, gamma = normal(rng, shape, dtype), normal(rng, shape, dtype), normal(rng, shape[-1:], dtype)
    forward = descend.rms_norm(x, gamma, epsilon)
    backward = descend.rms_norm_grad(dy, x, forward[1], gamma)
    got_forward, got_backward = like(*forward), like(*backward)
    call(lib, "RmsNorm", [x, gamma], got_forward, epsilon=epsilon)
    call(lib, "RmsNormGrad", [dy, x, forward[1], gamma], got_backward)
    assert_same_bits([*got_forward, *got_backward], [*forward, *backward])


@pytest.mark.parametrize("alpha", [None, 0.75])
def test_deep_norm_grad(lib, alpha):
    """alpha has a default, which the C function has not."""
    rng = np.random.default_rng(1)
    dy, x, gx = (normal(rng, (5, 3, 7), "FLOAT") for _ in range(3))
    gamma, mean, rstd = (normal(rng, shape, "FLOAT") for shape in ((7,), (5, 3, 1), (5, 3, 1)))
    results = descend.deep_norm_grad(dy, x, gx, gamma, mean, rstd, alpha or 0.3)
    got = like(*results)
    call(lib, "DeepNormGrad", [dy, x, gx, gamma, mean, rstd], got, **({"alpha": alpha} if alpha else {}))
    assert_same_bits(got, results)


def test_deep_norm_and_add_layer_norm(lib):
    """bias, dsum and the attributes may stay away."""
    rng = np.random.default_rng(1)
    x1, x2, bias, dy = (normal(rng, (5, 3, 7), "FLOAT") for _ in range(4))
    gamma, beta = (normal(rng, (7,), "FLOAT") for _ in range(2))
    results = descend.deep_norm(x1, x2, beta, gamma)
    call(lib, "DeepNorm", [x1, x2, beta, gamma], got := like(*results))
    assert_same_bits(got, results)
    results = descend.add_layer_norm(x1, x2, gamma, beta, bias, 1e-3, True)
    attributes = {"epsilon": 1e-3, "additional_output": True}
    call(lib, "AddLayerNorm", [x1, x2, gamma, beta, bias], got := like(*results), **attributes)
    assert_same_bits(got, results)
    y, mean, rstd, _ = descend.add_layer_norm(x1, x2, gamma, beta)
    call(lib, "AddLayerNorm", [x1, x2, gamma, beta], got := like(y, mean, rstd, y))
    assert_same_bits(got[:3], (y, mean, rstd))
    for more in ([], [bias]):
        results = descend.add_layer_norm_grad(dy, x1, x2, rstd, mean, gamma, *more)
        call(lib, "AddLayerNormGrad", [dy, x1, x2, rstd, mean, gamma, *more], got := like(*results))
        assert_same_bits(got, results)


@pytest.mark.parametrize("mode", [None, 0, 1, 2, 3])
def test_rotary_position_embedding(lib, mode):
    rng = np.random.default_rng(1)
    x, dy = (normal(rng, (2, 6, 5, 8), "FLOAT") for _ in range(2))
    cos, sin = (normal(rng, (1, 6, 1, 8), "FLOAT") for _ in range(2))
    out = descend.rotary_position_embedding(x, cos, sin, mode or 0)
    gradients = descend.rotary_position_embedding_grad(dy, cos, sin, x, mode or 0)
    got, (alone, *sums) = like(out, *gradients), like(*gradients)
    attributes = {} if mode is None else {"mode": mode}
    call(lib, "RotaryPositionEmbedding", [x, cos, sin], got[:1], **attributes)
    call(lib, "RotaryPositionEmbeddingGrad", [dy, cos, sin, x], got[1:], **attributes)
    assert_same_bits(got, [out, *gradients])
    call(lib, "RotaryPositionEmbeddingGrad", [dy, cos, sin, None], [alone, *sums], **attributes)
    assert_same_bits([alone], gradients[:1])


@pytest.mark.parametrize("dim", [None, -1, 1, -3])
def test_swi_glu(lib, dim):
    rng = np.random.default_rng(1)
    x = normal(rng, (4, 6, 10), "FLOAT")
    out = descend.swi_glu(x, dim or -1)
    dy = normal(rng, out.shape, "FLOAT")
    dx = descend.swi_glu_grad(dy, x, dim or -1)
    got_out, got_dx = like(out, dx)
    attributes = {} if dim is None else {"dim": dim}
    call(lib, "SwiGlu", [x], [got_out], **attributes)
    call(lib, "SwiGluGrad", [dy, x], [got_dx], **attributes)
    assert_same_bits([got_out, got_dx], [out, dx])


@pytest.mark.parametrize("form", [None, "none", "tanh"])
def test_gelu(lib, form):
    rng = np.random.default_rng(1)
    x, dy = normal(rng, (4, 6, 10), "FLOAT"), normal(rng, (4, 6, 10), "FLOAT")
    results = descend.gelu_v2(x, int(form == "tanh")), descend.gelu_backward_v2(dy, x, form or "none")
    got = like(*results)
    attributes = {} if form is None else {"approximate": form}
    call(lib, "GeluV2", [x], [got[0]], **attributes)
    call(lib, "GeluGradV2", [dy, x], [got[1]], **attributes)
    assert_same_bits(got, results)
    if form == "tanh":
        (old,) = like(results[0])
        call(lib, "Gelu", [x], [old])
        assert_same_bits([old], results[:1])


@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_cross_entropy(lib, reduction):
    rng = np.random.default_rng(1)
    x, target, weight = normal(rng, (6, 10), "FLOAT"), rng.integers(0, 10, 6), np.abs(normal(rng, (10,), "FLOAT"))
    named = {"reduction": reduction, "label_smoothing": 0.25, "ignore_index": int(target[2])}
    results = descend.cross_entropy_loss(x, target, weight, **named)[:2]
    got = like(*results)
    call(lib, "CrossEntropyLoss", [x, target, weight], [*got, np.empty(1, "f4"), np.empty(6, "f4")], **named)
    assert_same_bits(got, results)
    dx = descend.cross_entropy_loss_grad(results[0], results[1], target, weight, **named)
    (of_name,) = like(dx)
    call(lib, "CrossEntropyLossGrad", [results[0], results[1], target, weight, None, None], [of_name], **named)
    assert_same_bits([of_name], [dx])


@settings(max_examples=60, deadline=None)
@given(shape=shapes, axis=st.integers(-4, 3), dtype=dtypes, seed=seeds, epsilon=st.floats(0, 1, width=32))
def test_layer_norm(lib, shape, axis, dtype, seed, epsilon):
    axis = max(-len(shape), min(axis, len(shape) - 1))
    rng = np.random.default_rng(seed)
    inner = shape[axis:]
    x, dy = normal(rng, shape, dtype), normal(rng, shape, dtype)
    gamma, beta = normal(rng, inner, dtype), normal(rng, inner, dtype)
    forward = descend.layer_norm(x, inner, gamma, beta, epsilon)
    backward = descend.layer_norm_backward(dy, x, inner, forward[1], forward[2], gamma, gamma)
    v3, v4, grad = like(*forward), like(*forward), like(*backward)
    call(lib, "LayerNormV3", [x, gamma, beta], v3, begin_norm_axis=axis, begin_params_axis=axis, epsilon=epsilon)
    call(lib, "LayerNormV4", [x, list(inner), gamma, beta], v4, epsilon=epsilon)
    call(lib, "LayerNormGradV3", [dy, x, forward[2], forward[1], gamma], grad)
    assert_same_bits([*v3, *v4, *grad], [*forward, *forward, *backward])


@settings(max_examples=60, deadline=None)
@given(
    dtype=dtypes,
    samples=st.integers(1, 3),
    groups=st.integers(1, 4),
    channels=st.integers(1, 3),
    inner=st.integers(0, 40),
    seed=seeds,
)
def test_group_norm_with_the_variance(lib, dtype, samples, groups, channels, inner, seed):
    """Far from 0 it does not cancel."""
    rng = np.random.default_rng(seed)
    c = groups * channels
    x = (wide(normal(rng, (samples, c, inner))) + 100).astype(DTYPES[dtype])
    gamma, beta = normal(rng, (c,), dtype), normal(rng, (c,), dtype)
    y, mean, _ = descend.group_norm(x, gamma, beta, samples, c, inner, groups, 1e-4)
    got, got_mean, variance = like(y, mean, mean)
    call(lib, "GroupNorm", [x, gamma, beta], [got, got_mean, variance], num_groups=groups)
    if dtype != "DOUBLE":  # where epsilon is not that of float32
        assert_same_bits([got, got_mean], [y, mean])
    golden = wide(x).reshape(samples, groups, -1)
    golden = golden.var(axis=2) if inner > 0 else np.full((samples, groups), np.nan)
    unit = UNIT["FLOAT" if dtype != "DOUBLE" else "DOUBLE"]
    np.testing.assert_allclose(wide(variance), golden, rtol=2 * unit + 1e-14, atol=1e-25)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(("rows", "columns"), [(5, 1), (3, 1000), (700, 33), (0, 4), (2, 0)])
def test_layer_norm_with_the_variance(lib, dtype, rows, columns):
    """Far from 0 it does not cancel; the gradients take it back."""
    rng = np.random.default_rng(rows + columns)
    x = (wide(normal(rng, (rows, columns))) + 100).astype(DTYPES[dtype])
    gamma, beta = normal(rng, (columns,), dtype), normal(rng, (columns,), dtype)
    y, mean, _ = descend.layer_norm(x, (columns,), gamma, beta, 1e-7)
    got, got_mean, variance = like(y, mean, mean)
    call(lib, "LayerNorm", [x, gamma, beta], [got, got_mean, variance], begin_norm_axis=1, begin_params_axis=1)
    if columns == 0:
        assert np.isnan(variance).all()
        return
    if dtype != "DOUBLE":  # where epsilon is not that of float32
        assert_same_bits([got, got_mean], [y, mean])
    golden = wide(x).var(axis=1, keepdims=True)
    np.testing.assert_allclose(
        wide(variance), golden, rtol=2 * UNIT["FLOAT" if dtype != "DOUBLE" else "DOUBLE"] + 1e-14
    )
    if columns == 1:
        return  # no variance at all
    dy = normal(rng, (rows, columns), dtype)
    gradients = [np.full(s, 7, DTYPES[dtype]) for s in ((rows, columns), (columns,), (columns,))]
    call(lib, "LayerNormGrad", [dy, x, variance, mean, gamma], gradients)
    rstd = (1 / np.sqrt(wide(variance) + np.float64(np.float32(1e-12)))).astype(mean.dtype)
    assert_same_bits(gradients, list(descend.layer_norm_backward(dy, x, (columns,), mean, rstd, gamma, gamma)))
    if rows > 0:
        exact = reference.layer_norm_backward(dy, x, (columns,), mean, rstd, gamma, gamma)[0]
        np.testing.assert_allclose(wide(gradients[0]), exact, atol=20 * UNIT[dtype] * np.abs(exact).max())


@settings(max_examples=60, deadline=None)
@given(
    shape=st.lists(st.integers(1, 6), min_size=1, max_size=3).map(tuple),
    groups=st.integers(1, 3),
    dtype=dtypes,
    seed=seeds,
    scale=st.floats(-2, 2, width=32),
    swish=st.booleans(),
)
def test_group_norm_swish(lib, shape, groups, dtype, seed, scale, swish):
    rng = np.random.default_rng(seed)
    channels = groups * 2
    shape = (shape[0], channels, *shape[1:])
    x, dy = normal(rng, shape, dtype), normal(rng, shape, dtype)
    gamma, beta = normal(rng, (channels,), dtype), normal(rng, (channels,), dtype)
    forward = descend.group_norm_swish(x, gamma, beta, groups, eps=0.125, activate_swish=swish, swish_scale=scale)
    backward = descend.group_norm_swish_grad(dy, forward[1], forward[2], x, gamma, beta, groups, swish_scale=scale)
    got_forward, got_backward = like(*forward), like(*backward)
    attributes = {"num_groups": groups, "swish_scale": scale}
    call(lib, "GroupNormSwish", [x, gamma, beta], got_forward, eps=0.125, activate_swish=swish, **attributes)
    call(lib, "GroupNormSwishGrad", [dy, forward[1], forward[2], x, gamma, beta], got_backward, **attributes)
    assert_same_bits([*got_forward, *got_backward], [*forward, *backward])


@settings(max_examples=60, deadline=None)
@given(lengths=st.lists(st.integers(0, 40), min_size=1, max_size=4), dtype=dtypes, seed=seeds, stride=st.integers(1, 9))
def test_nsa_compress(lib, lengths, dtype, seed, stride):
    rng = np.random.default_rng(seed)
    ends = [int(end) for end in np.cumsum(lengths)]
    x, weight = normal(rng, (max(ends[-1], 1), 2, 5), dtype), normal(rng, (7, 2), dtype)
    windows = {"compress_block_size": 7, "compress_stride": stride}
    out = descend.nsa_compress(x, weight, ends, **windows)
    grad = normal(rng, out.shape, dtype)
    backward = descend.nsa_compress_grad(grad, x, weight, ends, **windows)
    got, got_backward = like(out), like(*backward)
    attributes = {"compressBlockSize": 7, "compressStride": stride, "actSeqLenType": 0}
    call(lib, "NsaCompress", [x, weight, ends], got, **attributes)
    call(lib, "NsaCompressGrad", [grad, x, weight, ends], got_backward, **attributes)
    assert_same_bits([*got, *got_backward], [out, *backward])
