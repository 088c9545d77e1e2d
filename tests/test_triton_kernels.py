"""What the Triton kernels promise beyond the arithmetic: bits, cuts, memory, errors. In Triton's interpreter."""

from __future__ import annotations

import importlib
import os
import pkgutil
from typing import Any

import numpy as np
import pytest

if os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("made by test_triton.py, in Triton's interpreter", allow_module_level=True)

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import descend
import descend.torch
import descend.triton
from cases import assert_same_bits
from descend.triton import tiles
from descend.triton.work import Work
from torch_cases import calls
from triton_calls import NAMES, OPERATORS, kernel_calls
from triton_plugin import array

DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64)


def run(name: str, *args: Any, **named: Any) -> tuple[Any, ...]:
    results = descend.triton.run(name, *args, **named)
    return results if isinstance(results, tuple) else (results,)


def same(actual: tuple[Any, ...], expected: tuple[Any, ...]) -> None:
    assert [a is None for a in actual] == [e is None for e in expected]
    present = [[array(t.contiguous()) for t in side if t is not None] for side in (actual, expected)]
    assert_same_bits(*present)


def normal(*shape: int, dtype: Any = torch.float32, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", NAMES)
def test_results_are_the_engines_up_to_rounding(name, dtype):
    """Shapes, dtypes and strides as well, and None for what is not wanted."""
    call = calls(dtype)[name]
    expected = call.run()
    actual = run(call.name, *call.args, **call.named)
    for a, e in zip(actual, expected, strict=True):
        assert (a is None) == (e is None)
        if a is not None:
            assert (a.shape, a.dtype, a.stride()) == (e.shape, e.dtype, e.stride())
            error = (a.double() - e.double()).abs()
            assert bool((error <= 4 * torch.finfo(a.dtype).eps * e.double().abs().max()).all()), error.max()


@pytest.mark.parametrize("name", NAMES)
def test_the_same_bits_every_time_and_wherever_the_memory_lies(name):
    """Also at odd offsets of a storage, with NaN around."""
    call = calls(torch.bfloat16)[name]
    expected = run(call.name, *call.args, **call.named)
    for offset in (0, 1, 3, 8):

        def moved(tensor: Tensor, offset: int = offset) -> Tensor:
            storage = torch.full((tensor.numel() + 16,), float("nan"), dtype=tensor.dtype)
            place = storage[offset : offset + tensor.numel()].view(tensor.shape)
            return place.copy_(tensor)

        shifted = call.map(moved)
        same(run(call.name, *shifted.args, **call.named), expected)


# (operator, rows, columns): on each way of cutting rows.
CUTS = [(37, 5), (300, 64), (9, 1000), (5, 1025)]
SPLIT = [(3, 17_000), (2, 16_385)]


def row_calls(rows: int, columns: int, dtype: Any) -> dict[str, list[Any]]:
    """Calls of which every row's results must not depend on the others."""
    x, dy = (normal(rows, columns, dtype=dtype, seed=i) for i in range(2))
    gamma = normal(columns, dtype=dtype, seed=2)
    mean, rstd = normal(rows, seed=4), normal(rows, seed=5).abs() + 0.5
    mask = normal(rows, columns, seed=6) > 1
    return {
        "rms_norm": [x, gamma],
        "gemma_rms_norm": [x, gamma],
        "add_rms_norm": [x, dy, gamma],
        "rms_norm_grad": [dy, x, rstd, gamma],
        "layer_norm": [x, [columns], gamma, gamma],
        "layer_norm_backward": [dy, x, [columns], mean, rstd, gamma, None, (True, False, False)],
        "deep_norm": [x, dy, gamma, gamma],
        "add_layer_norm": [x, dy, gamma, gamma, gamma, 1e-5, True],
        "add_layer_norm_grad": [dy, x, dy, rstd, mean, gamma, dy],
        "deep_norm_grad": [dy, x, dy, gamma, mean, rstd],
        "rotary_position_embedding": [x.repeat(1, 2), dy.repeat(1, 2), x.repeat(1, 2), 1],
        "rotary_position_embedding_grad": [dy.repeat(1, 2), x.repeat(1, 2), dy.repeat(1, 2), x.repeat(1, 2), 0],
        "swi_glu": [torch.cat((x, dy), 1)],
        "swi_glu_grad": [dy, torch.cat((x, dy), 1)],
        "apply_adam_w_v2": [x, dy, x.abs(), None, dy, torch.tensor(3)],
        "cross_entropy_loss": [x, torch.arange(rows) % columns, gamma.abs(), "none", 3, 0.1, 0.2, True],
        "cross_entropy_loss_grad": [mean.to(dtype), x, torch.arange(rows) % columns, gamma, rstd, rstd, "none", 3, 0.1],
        "gelu_v2": [x],
        "gelu_backward_v2": [dy, x, "tanh"],
        "softmax": [x],
        "softmax_backward": [dy, x.float().softmax(-1).to(dtype)],
        "log_softmax": [x],
        "log_softmax_backward": [dy, x.float().log_softmax(-1).to(dtype)],
        "scaled_masked_softmax": [x, mask, 0.5],
        "scaled_masked_softmax_backward": [dy, x.float().softmax(-1).to(dtype), mask, 0.5],
    }


@pytest.mark.parametrize(("rows", "columns"), CUTS + SPLIT)
@pytest.mark.parametrize("name", row_calls(1, 1, torch.float32))
def test_a_row_alone_has_the_bits_that_it_has_in_a_batch(name, rows, columns):
    args = row_calls(rows, columns, torch.float32)[name]
    whole = run(name, *args)[0]
    for part in (slice(0, 1), slice(rows // 2, rows // 2 + 2)):
        cut = [
            a[part] if isinstance(a, Tensor) and a.shape[:1] == (rows,) and a.shape != (columns,) else a for a in args
        ]
        same((run(name, *cut)[0],), (whole[part],))


@settings(max_examples=25, deadline=None, derandomize=True)
@given(
    st.sampled_from(sorted(row_calls(1, 1, torch.float32))),
    st.integers(1, 40),
    st.integers(1, 90),
    st.sampled_from(DTYPES),
)
def test_any_number_of_rows_and_columns(name, rows, columns, dtype):
    """Against the same call in float64 by the engine."""
    args = row_calls(rows, columns, dtype)[name]
    wide = [a.double() if isinstance(a, Tensor) and a.is_floating_point() else a for a in args]
    golden = getattr(descend, name)(*wide)
    for a, g in zip(run(name, *args), golden if isinstance(golden, tuple) else (golden,), strict=True):
        if a is not None:
            bound = 8 * torch.finfo(a.dtype).eps * (g.abs() + (1 + columns**0.5) * g.abs().max() + 1e-30)
            assert bool(((a.double() - g).abs() <= bound).all())


@pytest.mark.parametrize("dtype", DTYPES)
def test_an_only_element_has_no_gradient(dtype):
    """Of a row of layer norm, a group of group norm, a row of softmax."""
    x, dy, gamma, beta = (normal(*shape, dtype=dtype, seed=i) for i, shape in enumerate([(37, 5), (37, 5), (5,), (5,)]))
    _, mean, rstd = run("group_norm_swish", x, gamma, beta, 5)
    assert not run("group_norm_swish_grad", dy, mean, rstd, x, gamma, beta, 5)[0].any()
    x, dy, gamma, beta = x[:, :1], dy[:, :1], gamma[:1], beta[:1]
    _, mean, rstd = run("layer_norm", x, [1], gamma, beta)
    assert not run("layer_norm_backward", dy, x, [1], mean, rstd, gamma, beta)[0].any()
    (y,) = run("scaled_masked_softmax", x, None, 2.0)
    assert not run("scaled_masked_softmax_backward", dy, y, None, 2.0)[0].any()


# Tokens, ends of the sequences, window, stride: ragged and empty sequences, tokens that no window covers, windows that
# overlap many times or leave gaps, no window at all.
WINDOWS = [
    (40, None, 7, 3),
    (40, None, 16, 1),
    (40, None, 3, 8),
    (5, None, 6, 2),
    (60, [0, 9, 9, 12, 50, 60], 5, 2),
    (60, [2, 30, 33], 4, 4),
    (60, [10, 20, 60], 20, 3),
    (30, [3, 6, 9], 8, 8),
]


@pytest.mark.parametrize(("tokens", "ends", "width", "stride"), WINDOWS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_windows_of_packed_sequences(tokens, ends, width, stride, dtype):
    x, weight = normal(tokens, 3, 20, dtype=dtype), normal(width, 3, dtype=dtype, seed=1)
    how = {"compress_block_size": width, "compress_stride": stride}
    golden = descend.nsa_compress(x.double(), weight.double(), ends, **how)
    (y,) = run("nsa_compress", x, weight, ends, **how)
    grad = normal(*golden.shape, dtype=dtype, seed=2)
    expected = descend.nsa_compress_grad(grad.double(), x.double(), weight.double(), ends, **how)
    found = run("nsa_compress_grad", grad, x, weight, ends, **how)
    for a, g in zip((y, *found), (golden, *expected), strict=True):
        assert a.shape == g.shape
        largest = g.abs().max() if g.numel() else 0.0
        assert bool(((a.double() - g).abs() <= 4 * torch.finfo(dtype).eps * largest).all())


@settings(max_examples=200)
@given(st.integers(0, 2**40), st.sampled_from([1, 2, 4, 128]))
def test_slabs_hold_every_row_once(rows, tile_rows):
    cut = tiles.slabs(rows, tile_rows)
    assert cut.rows % tile_rows == 0
    assert (cut.count - 1) * cut.rows < max(rows, 1) <= max(cut.count * cut.rows, 1)
    assert cut.rows // tile_rows <= 64


@settings(max_examples=200)
@given(st.integers(0, 2**40), st.sampled_from([4096, 8192, 16384]), st.sampled_from(["float32", "float64"]))
def test_tiles_are_powers_of_two_and_fit_the_registers(columns, most, dtype):
    import triton.language as tl

    cut = tiles.tile(columns, most, getattr(tl, dtype))
    for number in (cut.rows, cut.columns, cut.warps):
        assert number & (number - 1) == 0
    assert cut.columns >= min(columns, most // (2 if dtype == "float64" else 1))
    assert 4 <= cut.warps <= 16
    assert cut.rows * cut.columns * (2 if dtype == "float64" else 1) <= 32 * 32 * cut.warps


def test_rows_are_taken_where_they_lie():
    """Gaps between rows, one row for all, neighbouring dimensions that are walked as one: no copies."""
    base, work = normal(6, 4, 50), Work(torch.device("cpu"))
    for view in (base[:, :, :32], base[0, :1, :32].expand(24, 32), base[:, 1, 3:20]):
        columns = view.shape[-1]
        matrix = work.rows_of(view, view.numel() // columns, columns)
        assert matrix.data_ptr() == view.data_ptr()
        assert matrix.untyped_storage().data_ptr() == view.untyped_storage().data_ptr()
    for view in (base[:, :, ::2], base.transpose(0, 2)):
        matrix = work.rows_of(view, view.numel() // view.shape[-1], view.shape[-1])
        assert matrix.stride(1) == 1
        assert torch.equal(matrix, view.reshape(matrix.shape))


@pytest.mark.parametrize("name", row_calls(1, 1, torch.float32))
def test_strides_beyond_32_bits(name):
    """Rows so far apart that offsets need int64: address space only, of which a few pages are used."""
    rows, columns, apart = 4, 8, 2**30 + 5
    args = row_calls(rows, columns, torch.float32)[name]
    expected = run(name, *args)
    shape = (rows, columns)
    far = [
        _apart(a, apart) if isinstance(a, Tensor) and a.shape == shape and a.is_floating_point() else a for a in args
    ]
    same(run(name, *far), expected)


def _apart(tensor: Tensor, stride: int) -> Tensor:
    import mmap

    size = ((tensor.shape[0] - 1) * stride + tensor.shape[1]) * 4
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000  # MAP_NORESERVE, which mmap does not name before 3.13
    memory = np.frombuffer(mmap.mmap(-1, size, flags=flags), np.float32)
    view = torch.from_numpy(memory).as_strided(tensor.shape, (stride, 1))
    return view.copy_(tensor)


@pytest.mark.parametrize("name", OPERATORS)
def test_outputs_are_written_whole_and_nothing_beside_them(name):
    """Given outputs, NaN before, in every other row and column of a larger tensor."""
    call = calls(torch.float32)[name]
    expected = run(call.name, *call.args, **call.named)
    out, around = [], []
    for tensor in expected:
        if tensor is None:
            out.append(None)
            continue
        room = torch.full([2 * s for s in tensor.shape], float("nan"))
        around.append(room)
        out.append(room[tuple(slice(None, None, 2) for _ in tensor.shape)])
    same(run(call.name, *call.args, out=tuple(out), **call.named), expected)
    for room, tensor in zip(around, [t for t in expected if t is not None], strict=True):
        assert int(room.isnan().sum()) == room.numel() - tensor.numel()


def test_outputs_of_other_dtypes_are_rounded_once():
    x, gamma = normal(5, 40, dtype=torch.bfloat16), normal(40)
    y, rstd = torch.empty(5, 40), torch.empty(5, 1, dtype=torch.float16)
    run("rms_norm", x, gamma, out=(y, rstd))
    wide = x.double()
    exact = 1 / (wide.square().mean(1, keepdim=True) + 1e-6).sqrt()
    assert torch.equal(rstd, exact.half())
    assert torch.allclose(y.double(), wide * exact * gamma, rtol=4e-7)


def test_overlaps_and_wrong_calls_get_the_engines_sentences():
    x, gamma = normal(4, 8), normal(8)
    room = torch.zeros(64)
    rstd = torch.empty(4, 1)
    wrong = {
        "y_out overlaps x": lambda: run("rms_norm", room[:32].view(4, 8), gamma, out=(room[8:40].view(4, 8), rstd)),
        "elements overlap each other": lambda: run("rms_norm", x, gamma, out=(room[:8].expand(4, 8), rstd)),
        "gamma has shape [7], but must equal": lambda: run("rms_norm", x, gamma[:7]),
        "x has dtype INT32, but must be FLOAT": lambda: run("rms_norm", x.int(), gamma),
        "epsilon": lambda: run("rms_norm", x, gamma, -1.0),
    }
    for words, call in wrong.items():
        for _ in range(2):
            with pytest.raises(descend.errors.AclnnValueError) as caught:
                call()
            assert str(caught.value).startswith("rms_norm: ")
            assert words in str(caught.value)
    with pytest.raises(ValueError, match="all tensors must be on one device, but there are x on cpu, gamma on meta"):
        run("rms_norm", x, gamma.to("meta"))
    with pytest.raises(TypeError, match=r"out is a torch\.Tensor, but must be a tuple of 2 arrays"):
        run("rms_norm", x, gamma, out=x)
    with pytest.raises(TypeError, match="gamma must be given"):
        run("rms_norm", x)
    with pytest.raises(TypeError, match="has no parameter sigma"):
        run("rms_norm", x, gamma, sigma=3)
    # In place is fine: exactly one of the inputs.
    expected = run("rms_norm", x, gamma)
    same(run("rms_norm", x, gamma, out=(x, None)), expected)


def test_masks_are_read_where_they_lie():
    from descend.triton.mask import Mask

    mask = normal(2, 3, 4, 5) > 0
    for form in (mask, mask[:, :1], mask[:1], mask[:1, :1], mask[0, 0], mask[0, 0, 0], mask[..., :1]):
        found = Mask.of(Work(form.device), form, (2, 3, 4, 5), False)
        assert found.data.untyped_storage().data_ptr() == mask.untyped_storage().data_ptr()
        x = normal(2, 3, 4, 5, seed=1)
        expected = torch.where(form, torch.tensor(-10000.0), x * 0.5).softmax(-1)
        assert torch.allclose(run("scaled_masked_softmax", x, form, 0.5)[0], expected, rtol=1e-6, atol=0)


def test_beneath_the_mask_is_0_whatever_is_there():
    g, y = normal(6, 50), normal(6, 50, seed=1).softmax(-1)
    mask = normal(6, 50, seed=2) > 0.5
    g[mask], y[mask] = float("nan"), float("inf")
    out = run("scaled_masked_softmax_backward", g, y, mask, 2.0)[0]
    assert bool((out[mask] == 0).all())
    assert bool(out[~mask].isnan().all())


def test_the_calls_for_compute_sanitizer_start_every_kernel(monkeypatch):
    started: set[str] = set()

    def start(self: Any, kernel: Any, programs: int, *_: Any, **__: Any) -> None:
        assert programs > 0
        started.add(f"{kernel.fn.__module__}.{kernel.fn.__name__}")

    monkeypatch.setattr(Work, "start", start)
    for call in kernel_calls(torch.float32):
        run(call.name, *call.args, **call.named)
    every = set()
    for module in pkgutil.iter_modules(descend.triton.__path__, "descend.triton."):
        for name, found in vars(importlib.import_module(module.name)).items():
            if name.endswith("_kernel") and found.fn.__module__ == module.name:
                every.add(f"{module.name}.{name}")
    assert len(every) > 20
    assert started == every


def test_through_pytorchs_dispatcher_on_the_key_for_cuda():
    """What a CUDA tensor's call reaches below autograd."""
    keys = torch._C.DispatchKeySet(torch._C.DispatchKey.CUDA)
    for name in OPERATORS:
        call = calls(torch.float32)[name]
        results = getattr(torch.ops.descend, name).default.redispatch(keys, *call.args, **call.named)
        same(results if isinstance(results, tuple) else (results,), run(name, *call.args, **call.named))
