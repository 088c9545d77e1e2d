"""Kernels as programs for Ascend have them, each compared with PyTorch: tests/test_npu_triton.py runs this."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch_npu  # noqa: F401
import triton
import triton.language as tl
from triton.language.extra.ascend import libdevice
from triton.language.math import exp
from triton.runtime import driver
from triton.runtime.libentry import libentry


@triton.jit
def row_norm(out, x, columns, epsilon, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    place = tl.arange(0, BLOCK)
    inside = place < columns
    v = tl.load(x + row * columns + place, inside, other=0.0).to(tl.float32)
    scale = 1 / tl.sqrt(tl.sum(v * v) / columns + epsilon.to(tl.float32))
    tl.store(out + row * columns + place, v * scale, inside)


@triton.jit
def column_sums(out, x, rows, columns, BLOCK: tl.constexpr):
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = place < columns
    total = tl.zeros((BLOCK,), tl.float32)
    for row in range(rows):
        total += exp(tl.load(x + row * columns + place, inside, other=0.0))
    tl.store(out + place, total, inside)


@triton.jit
def given_twice(out, _same, x, stride, columns, BLOCK: tl.constexpr):
    place = tl.arange(0, BLOCK)
    tl.store(out + place, tl.load(x + stride + place, place < columns), place < columns)


@triton.autotune(configs=[triton.Config({"BLOCK": 8}), triton.Config({"BLOCK": 16})], key=["columns"])
@triton.jit
def tuned_sums(out, x, rows, columns, BLOCK: tl.constexpr):
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = place < columns
    total = tl.zeros((BLOCK,), tl.float32)
    for row in range(rows):
        total += tl.load(x + row * columns + place, inside, other=0.0)
    tl.atomic_add(out + place, total, inside)


@triton.jit
def library(out, x, n, WHICH: tl.constexpr, BLOCK: tl.constexpr):
    place = tl.arange(0, BLOCK)
    v = tl.load(x + place, place < n, other=1.0)
    if WHICH == 0:
        v = libdevice.tanh(v)
    elif WHICH == 1:
        v = libdevice.log1p(v)
    elif WHICH == 2:
        v = libdevice.reciprocal(v)
    elif WHICH == 3:
        v = libdevice.round(v)
    elif WHICH == 4:
        v = libdevice.pow(v, v)
    elif WHICH == 5:
        v = libdevice.atan(v)
    elif WHICH == 6:
        v = libdevice.relu(-v)
    else:
        v = libdevice.isinf(v).to(tl.float32)
    tl.store(out + place, v, place < n)


@triton.jit
def narrow(out, x, y, WHICH: tl.constexpr, BLOCK: tl.constexpr):
    place = tl.arange(0, BLOCK)
    a, b = tl.load(x + place), tl.load(y + place)
    if WHICH == 0:
        a = a + b
    elif WHICH == 1:
        a = -a * 2.0
    elif WHICH == 2:
        a = tl.where(a < b, a, b)
    elif WHICH == 3:
        a = tl.dot(tl.broadcast_to(a[:, None], (BLOCK, BLOCK)), tl.broadcast_to(b[None, :], (BLOCK, BLOCK)))
        a = tl.sum(a, 1).to(tl.bfloat16)
    else:
        a = (a.to(tl.float32) * 1.001).to(tl.bfloat16)
    tl.store(out + place, a)


@triton.jit
def combined(place, before, x, n, WHICH: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    value = tl.load(x + at, at < n, other=0)
    shared = place + at % 3
    if WHICH == 0:
        old = tl.atomic_add(shared, value, at < n)
    elif WHICH == 1:
        old = tl.atomic_max(shared, value, at < n)
    elif WHICH == 2:
        old = tl.atomic_min(shared, value, at < n)
    else:
        old = tl.atomic_xchg(shared, value, at < n)
    tl.store(before + at, old, at < n)


@triton.jit
def swapped(place, expected, x, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.atomic_cas(place + at, tl.load(expected + at), tl.load(x + at))


@libentry()
@triton.jit
def of_ascend(out, x, WHICH: tl.constexpr):
    row, column = tl.arange(0, 4)[:, None], tl.arange(0, 8)[None, :]
    v = tl.load(x + row * 8 + column)
    tl.compile_hint(v, "hint")
    tl.multibuffer(v, 2)
    if WHICH == 0:
        v = tl.insert_slice(v, tl.extract_slice(v, (1, 2), (2, 3), (2, 2)), (0, 1), (2, 3), (1, 3))
    elif WHICH == 1:
        v = tl.flip(v, 0)
    elif WHICH == 2:
        v = tl.sort(v, 1)
    elif WHICH == 3:
        v = tl.sort(v, 1, True)
    elif WHICH == 4:
        v = v + tl.get_element(v, (2, 3))
    elif WHICH == 5:
        v = v % 0.7
    else:
        v = tl.dot(v, tl.dot(tl.trans(v), v, out_dtype=tl.float32).to(v.dtype), out_dtype=tl.float32)
    tl.store(out + row * 8 + column, v)


def moved(v: torch.Tensor) -> torch.Tensor:
    v = v.clone()
    v[0:2, 1::3] = v[1::2, 2:7:2].clone()
    return v


OF_ASCEND: tuple[Callable[[torch.Tensor], torch.Tensor], ...] = (
    moved,
    lambda v: v.flip(0),
    lambda v: v.sort(1).values,
    lambda v: v.sort(1, descending=True).values,
    lambda v: v + v[2, 3],
    lambda v: v.fmod(0.7),
    lambda v: v @ (v.T @ v),
)


@triton.jit
def scaled_product(out, a, b, a_scale, b_scale, WITH_B: tl.constexpr):
    row, column = tl.arange(0, 16)[:, None], tl.arange(0, 16)[None, :]
    k, part = tl.arange(0, 64), tl.arange(0, 2)[None, :]
    left, right = tl.load(a + row * 64 + k[None, :]), tl.load(b + k[:, None] * 16 + column)
    by = tl.load(a_scale + row * 2 + part)
    other = tl.load(b_scale + row * 2 + part) if WITH_B else None
    total = tl.full((16, 16), 1.0, tl.float32)
    tl.store(out + row * 16 + column, tl.dot_scaled(left, by, "bf16", right, other, "bf16", total))


def one_after_another(place: list[float], values: list[float], change: Callable[[float, float], float]) -> list[float]:
    """Changes ``place``, element i % 3 by value i, and gives what was there."""
    before = []
    for i, value in enumerate(values):
        before.append(place[i % 3])
        place[i % 3] = change(place[i % 3], value)
    return before


ATOMIC: tuple[Callable[[float, float], float], ...] = (lambda a, b: a + b, max, min, lambda _a, b: b)
OF_BFLOAT16 = (
    lambda a, b: a + b,
    lambda a, b: -a * 2,
    torch.minimum,
    lambda a, b: (16 * a.double() * b.double().sum()).bfloat16(),
    lambda a, b: (a.float() * 1.001).bfloat16(),
)
IN_PYTORCH = (
    torch.tanh,
    torch.log1p,
    torch.reciprocal,
    lambda v: torch.floor(v + 0.5),  # none is negative
    lambda v: v**v,
    torch.atan,
    lambda v: torch.relu(-v),
    lambda v: torch.isinf(v).double(),
)


def near(found: torch.Tensor, expected: torch.Tensor, error: float = 4e-7) -> None:
    assert found.device.type == "npu"
    torch.testing.assert_close(found.cpu().double(), expected, rtol=error, atol=error)


def main() -> None:
    torch.manual_seed(0)
    x = torch.randn(5, 50, device="npu")
    wide = x.cpu().double()
    for dtype, error in ((torch.float32, 4e-7), (torch.float16, 1e-3)):
        out = torch.full_like(x, torch.nan, dtype=dtype)
        y = x.to(dtype)
        row_norm[(5,)](out, y, 50, 1e-3, BLOCK=64, multibuffer=True, debug=True, num_warps=4)
        expected = y.cpu().double()
        near(out, expected / (expected.square().mean(1, True) + 1e-3).sqrt(), error)

    sums = torch.full((50,), torch.nan, device="npu")
    column_sums[(triton.cdiv(50, 16),)](sums, x, 5, 50, BLOCK=16)
    near(sums, wide.exp().sum(0))

    sums.zero_()
    for _ in range(2):  # measuring adds nothing
        tuned_sums[lambda meta: (triton.cdiv(50, meta["BLOCK"]),)](sums, x, 5, 50)
    near(sums, 2 * wide.sum(0), 2e-6)
    assert tuned_sums.best_config.kwargs == {"BLOCK": 8}

    # A tensor that is given twice, and one with gaps between its rows.
    wider = torch.full((5, 64), 7.0, device="npu")
    wider[:, :50] = x
    sums.fill_(torch.nan)
    given_twice[(1,)](sums, sums, wider[:, :50], wider.stride(0), 50, BLOCK=64)
    near(sums, wide[1])

    numbers = torch.tensor([0.25, 0.5, 1.0, 1.5, 2.5, 3.75, 0.1, 2.0, torch.inf], device="npu")
    for which, function in enumerate(IN_PYTORCH):
        for dtype, error in ((torch.float32, 4e-7), (torch.float16, 1e-3)):
            if dtype == torch.float16 and which in (3, 4):
                continue  # libdevice has none, or gives another result's dtype
            given = numbers.to(dtype)
            out = torch.full_like(given, torch.nan)
            library[(1,)](out, given, 9, WHICH=which, BLOCK=16)
            near(out, function(given.cpu().double()), error)

    left, right = torch.randn(2, 16, device="npu").bfloat16()
    for which, function in enumerate(OF_BFLOAT16):
        out = torch.full_like(left, torch.nan)
        narrow[(1,)](out, left, right, WHICH=which, BLOCK=16)
        near(out, function(left.cpu(), right.cpu()).double(), 8e-3 if which == 3 else 0)

    given = torch.randn(4, 8, device="npu")
    for which, function in enumerate(OF_ASCEND):
        out = torch.full_like(given, torch.nan)
        of_ascend[(1,)](out, given, WHICH=which)
        near(out, function(given.cpu().double()), 2e-6)
    a, b = torch.randn(16, 64).bfloat16(), torch.randn(64, 16).bfloat16()
    a_scale, b_scale = torch.randint(-3, 4, (2, 16, 2), dtype=torch.int8)
    for with_b in (False, True):
        out = torch.full((16, 16), torch.nan, device="npu")
        scaled_product[(1,)](out, a.npu(), b.npu(), a_scale.npu(), b_scale.npu(), WITH_B=with_b)
        right = b.double() * (2.0 ** b_scale.double()).repeat_interleave(32, 1).T if with_b else b.double()
        expected = a.double() * (2.0 ** a_scale.double()).repeat_interleave(32, 1) @ right + 1
        near(out, expected, 2e-5)

    # Atomic operations on the same three elements, of small integers, which all dtypes hold.
    for dtype in (torch.float32, torch.float16, torch.bfloat16, torch.int8, torch.int16, torch.int32, torch.int64):
        values = torch.randint(-9, 9, (16,)).to(dtype)
        for which, change in enumerate(ATOMIC):
            place, before = torch.tensor([1, 2, 3], dtype=dtype), torch.zeros(16, dtype=dtype, device="npu")
            expected = place.tolist()
            place = place.npu()
            seen = one_after_another(expected, values[:14].tolist(), change)
            combined[(1,)](place, before, values.npu(), 14, WHICH=which, BLOCK=16)
            assert (place.tolist(), before.tolist()) == (expected, [*seen, 0, 0]), (dtype, which)
        place, wanted = values.npu(), values.clone()
        wanted[::2] += 1
        swapped[(1,)](place, wanted.npu(), values.mul(2).npu(), BLOCK=16)
        assert place.tolist() == torch.where(wanted == values, values * 2, values).tolist()

    device = torch.npu.current_device()
    found = driver.active.utils.get_device_properties(device)
    assert found["num_aicore"] == torch.npu.get_device_properties(device).cube_core_num
    assert found["num_vectorcore"] > 0
    assert driver.active.get_current_target().backend == "npu"
    assert driver.active.get_current_device() == device
    seconds = triton.testing.do_bench(lambda: column_sums[(4,)](sums, x, 5, 50, BLOCK=16), warmup=1, rep=1)
    assert seconds > 0
    print("right")


if __name__ == "__main__":
    main()
