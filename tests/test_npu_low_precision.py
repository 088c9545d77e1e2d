"""What a training keeps in fewer bits: states in hifloat8, and activations whose exponents are apart."""

from __future__ import annotations

import io
import math
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from descend.npu.composed.tensors import compression, plain  # noqa: E402
from quantised_numbers import DST_TYPES, NUMBERS, nearest  # noqa: E402
from test_npu_composed import refused  # noqa: E402
from test_npu_quantised import HELD  # noqa: E402

Tensor = Any
BITS = {torch.float32: torch.int32, torch.float16: torch.int16, torch.bfloat16: torch.int16}


# --- exponents apart --------------------------------------------------------------------------------------------------


def room(x: Tensor, fixed: int | None = None) -> tuple[Tensor, ...]:
    """pdf, mantissa, fixed, var: as many elements as numbers, or for ``fixed`` given just enough bytes."""
    count, size = x.numel(), x.element_size()
    rest, first = -(-count * (size - 1) // size), count if fixed is None else fixed
    more = count if fixed is None else max(0, -(-(count - fixed * size) // size))
    parts = (torch.full((n,), math.nan, dtype=x.dtype) for n in (rest, first, more))
    return torch.full((256,), -1, dtype=torch.int32), *parts


@pytest.mark.parametrize("dtype", BITS, ids=str)
@pytest.mark.parametrize("shape", [(4096,), (3, 5, 7), (1,), (0,)])
@pytest.mark.parametrize("fixed", [None, 0, 1, 16])
@pytest.mark.parametrize("statistic", [True, False])
def test_exponents_apart(dtype: Any, shape: tuple[int, ...], fixed: int | None, statistic: bool) -> None:
    bits = torch.randint(-(2 ** (8 * dtype.itemsize - 1)), 2 ** (8 * dtype.itemsize - 1), shape).to(BITS[dtype])
    x = bits.view(dtype)
    x = x.t() if x.dim() == 2 else x
    out = room(x, fixed)
    given = compression.npu_hans_encode_out(x, statistic, out=out)
    assert all(one is other for one, other in zip(given, out, strict=True))
    if statistic:
        counts = [0] * 256
        for number in bits.reshape(-1).tolist():
            counts[(number >> 8 * dtype.itemsize - 9) & 255] += 1
        assert out[0].tolist() == counts
    else:
        assert set(out[0].tolist()) == {-1}
    back = torch.empty_like(x)
    assert compression.npu_hans_decode_out(*out[1:], out[0], out=back) is back
    assert torch.equal(back.view(BITS[dtype]), bits)


def test_exponents_apart_on_the_device() -> None:
    npu = pytest.importorskip("torch_npu")
    x = torch.randn(33, 8).npu().bfloat16()
    out = [part.npu() for part in room(x.cpu())]
    x_of_before = x.clone()
    pdf, *parts = npu.npu_hans_encode(x, True, False, out=out)
    assert [one.data_ptr() for one in (pdf, *parts)] == [one.data_ptr() for one in out]
    x.zero_()
    npu.npu_hans_decode(*parts, pdf, False, out=x)
    assert torch.equal(x, x_of_before)


def test_exponents_apart_refused() -> None:
    x = torch.randn(16)
    pdf, mantissa, fixed, var = room(x)
    encode, decode = compression.npu_hans_encode_out, compression.npu_hans_decode_out
    refused("input is torch.float64, but must be float32", encode, x.double(), out=room(x))
    refused("out is 3 tensors", encode, x, out=(pdf, mantissa, fixed))
    refused("pdf is of shape [2]", encode, x, out=(pdf[:2], mantissa, fixed, var))
    refused("mantissa is 44 bytes, but must have 48", encode, x, out=(pdf, mantissa[:11], fixed, var))
    refused("fixed and var is 8 and 4 bytes, but must have 16", encode, x, out=(pdf, mantissa, fixed[:2], var[:1]))
    refused("var is torch.float16, but must be float32", decode, mantissa, fixed, var.half(), pdf, out=x)
    refused("fixed is not contiguous", decode, mantissa, fixed[::2], var, pdf, out=x)
    refused("pdf is expanded", encode, x, True, out=(pdf[:1].expand(256), mantissa, fixed, var))
    refused("out is expanded", decode, mantissa, fixed, var, pdf, out=x[:1].expand(16))


def test_exponents_apart_into_one_number_of_any_stride() -> None:
    x, back = torch.randn(1), torch.zeros(1)
    out = [torch.zeros(256).int(), *(torch.zeros(3)[::3] for _ in range(3))]
    compression.npu_hans_encode_out(x, out=out)
    compression.npu_hans_decode_out(*out[1:], out[0], out=back)
    assert torch.equal(back, x)


# --- hifloat8 ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_hifloat8_tensor(dtype: Any) -> None:
    npu = pytest.importorskip("torch_npu")
    numbers = [*NUMBERS["hif8"], 1e-9, 3.3, 15.5, 17.0, 100.0, 60000.0]
    x = torch.tensor(numbers + [-n for n in numbers] + [math.inf, -math.inf, math.nan]).to(dtype)
    wanted = [v if math.isinf(v) or math.isnan(v) else nearest(v, "hif8") for v in x.tolist()]
    kept = npu.HiFloat8Tensor.to_hifloat8(x.npu())
    assert kept._data.dtype == torch.uint8
    for to, got in ((torch.float32, kept.float()), (torch.float16, kept.half()), (torch.bfloat16, kept.bfloat16())):
        assert got.dtype == to
        assert torch.equal(got.cpu().double().nan_to_num(1e9), torch.tensor(wanted).double().nan_to_num(1e9))
    assert (kept * 1).dtype == dtype
    kept.copy_(torch.zeros(x.shape).npu())
    assert not kept.float().any()
    file = io.BytesIO()
    torch.save(npu.HiFloat8Tensor.to_hifloat8(x.npu()), file)
    file.seek(0)
    again = torch.load(file, weights_only=False).float()
    assert torch.equal(again.cpu().double().nan_to_num(1e9), torch.tensor(wanted).double().nan_to_num(1e9))


def test_hifloat8_casts_refuse_other_formats() -> None:
    npu = pytest.importorskip("torch_npu")
    casts, x = npu._C._cd, torch.ones(2).npu()
    with pytest.raises(RuntimeError, match="otype is float8_e4m3fn, but must be one of hifloat8"):
        casts.cast_to_fp8(x, casts.DType.float8_e4m3fn)
    with pytest.raises(RuntimeError, match="otype is 3, but must be one of float16, float32, bfloat16"):
        casts.cast_from_fp8(x.byte(), casts.DType.hifloat8, 3)
    for output, rule in ((x, "output is torch.float32, but must be uint8"), (x.byte()[:1], "output is of shape")):
        with pytest.raises(RuntimeError, match=rule):
            casts.cast_to_fp8_noalloc(x, output, casts.DType.hifloat8)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", ["e4m3", "e5m2", "hif8", "e2m1", "e1m2"])
def test_dtype_cast_to_few_bits(dtype: Any, name: str) -> None:
    numbers = [n for n in NUMBERS[name] if n < 60000.0] + [1e-9, 0.3, 0.6, 0.7, 3.3, 5.1]
    x = torch.tensor(numbers + [-n for n in numbers] + [1.0] * (len(numbers) % 2)).to(dtype)
    wanted = torch.tensor([nearest(v, name) for v in x.tolist()]).double()
    for number in {"e4m3": (24, 292), "e5m2": (23, 291)}.get(name, (DST_TYPES[name],)):
        codes = plain.npu_dtype_cast(x, number)
        assert codes.dtype == HELD[name].dtype
        back = plain.npu_dtype_cast(codes, 6, number)
        assert back.dtype == torch.float32
        assert torch.equal(back.double(), wanted)


def test_dtype_cast_on_the_device() -> None:
    npu = pytest.importorskip("torch_npu")
    x = torch.tensor([1.0, -3.3, math.inf, math.nan]).npu()
    for to in (torch.float8_e4m3fn, npu.hifloat8):
        codes = npu.npu_dtype_cast(x, to)
        back = npu.npu_dtype_cast(codes, torch.float32, npu.hifloat8 if to == npu.hifloat8 else None)
        assert back[:2].tolist() == [1.0, -3.25]
        assert back[3].isnan()
    leaf = x[:2].clone().requires_grad_()
    (npu.npu_dtype_cast(leaf, torch.float8_e5m2).float() * 2).sum().backward()
    assert leaf.grad.tolist() == [2.0, 2.0]
