"""Norms and activations that are quantised: against formulas in float64, rounded by a search for the nearest number."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from descend.npu.composed.quantised import quant_norms  # noqa: E402
from quantised_numbers import DST_TYPES, NUMBERS, nearest  # noqa: E402
from test_npu_composed import near, refused  # noqa: E402
from test_npu_quantised import HELD, flat_scales, in_blocks, numbers_of  # noqa: E402

Tensor = Any
HALVES = (torch.float16, torch.bfloat16)
FLOATS = (*HALVES, torch.float32)


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(5)


def quantised(y: Tensor, name: str, wanted: Tensor) -> None:
    """``y`` holds the numbers nearest to ``wanted``, or to what is within an error of float32 of it."""
    got = numbers_of(y, name)
    assert got.shape == wanted.shape
    error = 2e-6 * max(wanted.abs().max().item(), 1e-3)
    for number, value in zip(got.reshape(-1).tolist(), wanted.reshape(-1).tolist(), strict=True):
        assert nearest(value - error, name) <= number <= nearest(value + error, name), (number, value)


def normed(x: Tensor, gamma: Tensor, beta: Tensor | None, epsilon: float) -> tuple[Tensor, Tensor]:
    """The formula, in float64."""
    dims = list(range(-gamma.dim(), 0))
    rstd = 1 / (x.double().square().mean(dims, keepdim=True) + epsilon).sqrt()
    y = x.double() * rstd * gamma.double()
    return (y if beta is None else y + beta.double()), rstd


def given(dtype: Any, shape: tuple[int, ...], of_gamma: tuple[int, ...] | None = None) -> tuple[Tensor, ...]:
    """x, gamma and beta."""
    of_gamma = of_gamma or shape[-1:]
    return (torch.randn(shape) * 3).to(dtype), torch.randn(of_gamma).to(dtype), torch.randn(of_gamma).to(dtype)


# --- norms ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("name", ["int8", "int4", "hif8", "e4m3", "e5m2"])
@pytest.mark.parametrize("shape", [(16,), (2, 3, 24), (1, 8)])
@pytest.mark.parametrize("offset_dtype", [torch.int8, torch.float32], ids=str)
def test_rms_norm_quant(dtype: Any, name: str, shape: tuple[int, ...], offset_dtype: Any) -> None:
    x, gamma, beta = given(dtype, shape)
    scale, offset = torch.tensor([0.4]).to(dtype), torch.tensor([-2]).to(offset_dtype)
    wanted = normed(x, gamma, beta, 1e-2)[0] / scale.double() + offset.double()
    for rows in (gamma, gamma[None]):
        bias = beta.view(rows.shape)
        y = quant_norms.npu_rms_norm_quant(x, rows, bias, scale, offset, 1e-2, dst_dtype=DST_TYPES[name])
        quantised(y, name, wanted)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("div_mode", [True, False])
@pytest.mark.parametrize("wide", [True, False])
@pytest.mark.parametrize("more", [True, False])
def test_rms_norm_quant_v2(dtype: Any, div_mode: bool, wide: bool, more: bool) -> None:
    x, gamma, beta = given(dtype, (3, 4, 16))
    scale = (torch.rand(16 if wide else 1) + 0.05).to(dtype)
    offset = torch.randint(-9, 9, scale.shape).to(dtype) if more else None
    y, rstd = quant_norms.npu_rms_norm_quant_v2(
        x, gamma, scale, offset=offset, beta=beta if more else None, div_mode=div_mode, epsilon=1e-3
    )
    wanted, wanted_rstd = normed(x, gamma, beta if more else None, 1e-3)
    wanted = wanted / scale.double() if div_mode else wanted * scale.double()
    quantised(y, "int8", wanted if offset is None else wanted + offset.double())
    near(rstd, wanted_rstd)
    assert rstd.shape == (3, 4, 1)


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("of_gamma", [(16,), (2, 16), (3, 2, 16)])
@pytest.mark.parametrize("div_mode", [True, False])
@pytest.mark.parametrize("second", [True, False])
def test_add_rms_norm_quant(dtype: Any, of_gamma: tuple[int, ...], div_mode: bool, second: bool) -> None:
    x1, gamma, beta = given(dtype, (3, 2, 16), of_gamma)
    x2 = torch.randn_like(x1)
    scales = [torch.rand(of_gamma) + 0.05 for _ in range(2)]
    zeros = [torch.randint(-9, 9, of_gamma).int() for _ in range(2)]
    rest = (beta, scales[1], zeros[1]) if second else (beta,)
    y1, y2, x = quant_norms.npu_add_rms_norm_quant(x1, x2, gamma, scales[0], zeros[0], *rest, div_mode=div_mode)
    total = x1.double() + x2.double()
    wanted, _ = normed(total, gamma, beta, 1e-6)
    for y, scale, zero in zip((y1, y2), scales, zeros, strict=True) if second else ((y1, scales[0], zeros[0]),):
        quantised(y, "int8", (wanted / scale if div_mode else wanted * scale) + zero)
    assert second or not y2.any()
    near(x, total)
    assert x.dtype == dtype


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("name", ["int8", "int4", "e4m3", "hif8"])
@pytest.mark.parametrize(
    ("smooth", "mask", "there"),
    [
        ((False, False), None, (True, False)),
        ((True, False), None, (True, False)),
        ((True, True), None, (True, True)),
        ((False, True), (False, True), (False, True)),
        ((True, False), (True, True), (True, True)),
    ],
)
def test_add_rms_norm_dynamic_quant(dtype: Any, name: str, smooth: Any, mask: Any, there: Any) -> None:
    x1, gamma, beta = given(dtype, (3, 2, 16))
    x2 = torch.randn_like(x1)
    smooths = [(torch.rand(16) + 0.5).to(dtype) if one else None for one in smooth]
    y1, y2, x, *scales = quant_norms.npu_add_rms_norm_dynamic_quant(
        x1, x2, gamma, smooth_scale1=smooths[0], smooth_scale2=smooths[1], beta=beta, output_mask=mask,
        y_dtype=DST_TYPES[name],
    )  # fmt: skip
    total = x1.double() + x2.double()
    near(x, total)
    wanted, _ = normed(total, gamma, beta, 1e-6)
    for y, scale, by, one in zip((y1, y2), scales, smooths, there, strict=True):
        assert y.dtype == HELD[name].dtype
        if not one:
            assert y.shape == scale.shape == (0,)
            continue
        smoothed = wanted if by is None else wanted * by.double()
        rows = smoothed.abs().amax(-1) / NUMBERS[name][-1]
        near(scale, rows, size=rows.max().item())
        quantised(y, name, smoothed / rows[..., None])


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("name", ["e4m3", "e5m2", "e2m1", "e1m2"])
@pytest.mark.parametrize("shape", [(3, 70), (2, 2, 96)])
def test_rms_norm_dynamic_mx_quant(dtype: Any, name: str, shape: tuple[int, ...]) -> None:
    x1, gamma, beta = given(dtype, shape)
    x2 = torch.randn_like(x1)
    for alg in (0, 1) if name.startswith("e4m") else (0,):
        for mode in ("rint", "floor") if name in ("e2m1", "e1m2") else ("rint",):
            options: Any = {"beta": beta, "scale_alg": alg, "round_mode": mode, "dst_type": DST_TYPES[name]}
            alone = quant_norms.npu_rms_norm_dynamic_mx_quant(x1, gamma, **options)
            added = quant_norms.npu_add_rms_norm_dynamic_mx_quant(x1, x2, gamma, **options)
            near(added[1], x1.double() + x2.double())
            for (y, scales, rstd), x in ((alone, x1.double()), (added[::2] + added[3:], x1.double() + x2.double())):
                wanted, wanted_rstd = normed(x, gamma, beta, 1e-6)
                numbers, bytes_ = in_blocks(wanted.to(dtype), -1, 32, name, mode, alg=alg)
                assert torch.equal(numbers_of(y, name), numbers)
                assert torch.equal(flat_scales(scales, x.dim() - 1, bytes_.shape[-1]), bytes_)
                near(rstd, wanted_rstd)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("name", ["int8", "hif8"])
@pytest.mark.parametrize("of_gamma", [(16,), (2, 16), (3, 2, 16)])
@pytest.mark.parametrize("div_mode", [True, False])
def test_rms_norm_backward_quant(dtype: Any, name: str, of_gamma: tuple[int, ...], div_mode: bool) -> None:
    x, gamma, _ = given(dtype, (3, 2, 16), of_gamma)
    dy, scale, offset = torch.randn_like(x), torch.tensor([0.3]), torch.tensor([4]).int()
    leaves = [x.double().requires_grad_(), gamma.double().requires_grad_()]
    y, rstd = normed(leaves[0], leaves[1], None, 1e-6)
    dx, dgamma = torch.autograd.grad(y, leaves, dy.double())
    rows = rstd.detach().float().reshape(x.shape[: x.dim() - len(of_gamma)])
    got, got_dgamma = quant_norms._npu_rms_norm_backward_quant(
        dy, x, rows, gamma, scale, offset_x=offset, div_mode=div_mode, dst_type=DST_TYPES[name]
    )
    quantised(got, name, (dx / scale if div_mode else dx * scale) + offset)
    assert got_dgamma.dtype == torch.float32
    near(got_dgamma, dgamma, size=10.0)


@pytest.mark.parametrize("shape", [(0, 64), (2, 0, 64)])
def test_norms_of_no_rows(shape: tuple[int, ...]) -> None:
    x, gamma, beta = given(torch.bfloat16, shape)
    scale = torch.ones(64)
    y1, y2, total = quant_norms.npu_add_rms_norm_quant(x, x, gamma, scale, None, beta)
    assert y1.shape == y2.shape == total.shape == shape
    y1, _, total, scale1, _ = quant_norms.npu_add_rms_norm_dynamic_quant(x, x, gamma, y_dtype=16)
    assert (y1.shape, total.shape, scale1.shape) == ((*shape[:-1], 8), shape, shape[:-1])
    y, scales, rstd = quant_norms.npu_rms_norm_dynamic_mx_quant(x, gamma, dst_type=24)
    assert (y.shape, scales.shape, rstd.shape) == (shape, (*shape[:-1], 1, 2), (*shape[:-1], 1))
    dx, dgamma = quant_norms._npu_rms_norm_backward_quant(x, x, torch.ones(shape[:-1]), gamma, scale[:1])
    assert dx.shape == shape
    assert torch.equal(dgamma, torch.zeros(64))
    refused("x is of shape", quant_norms.npu_rms_norm_quant, x, gamma, beta, scale[:1], scale[:1])
    refused("x is of shape", quant_norms.npu_rms_norm_quant_v2, x, gamma, scale[:1])
    refused("gamma is of shape [0], but must not be empty", quant_norms.npu_add_rms_norm_dynamic_quant, x[..., :0],
            x[..., :0], gamma[:0])  # fmt: skip


def test_norms_with_a_gamma_of_one_row() -> None:
    """Results have the shape of x also where gamma has a dimension more."""
    x, gamma, beta = given(torch.float32, (16,))
    scale, offset = torch.rand(16) + 0.1, torch.randn(16)
    row = (gamma[None], scale[None])
    alone, rstd = quant_norms.npu_rms_norm_quant_v2(x, *row, offset=offset[None], beta=beta[None])
    wanted, wanted_rstd = quant_norms.npu_rms_norm_quant_v2(x, gamma, scale, offset=offset, beta=beta)
    assert torch.equal(alone, wanted)
    assert torch.equal(rstd, wanted_rstd)
    got = quant_norms.npu_add_rms_norm_dynamic_quant(x, x, row[0], smooth_scale1=row[1])
    for one, other in zip(
        got, quant_norms.npu_add_rms_norm_dynamic_quant(x, x, gamma, smooth_scale1=scale), strict=True
    ):
        assert torch.equal(one, other)


def test_norms_refused() -> None:
    x, gamma, beta = given(torch.float16, (3, 16))
    scale, offset = torch.ones(1), torch.zeros(1, dtype=torch.int8)
    norm, add = quant_norms.npu_rms_norm_quant, quant_norms.npu_add_rms_norm_quant
    refused("gamma is of shape [8], but must have the last", norm, x, gamma[:8], beta[:8], scale, offset)
    refused("beta is of shape [8]", norm, x, gamma, beta[:8], scale, offset)
    refused("x is torch.float64", norm, x.double(), gamma, beta, scale, offset)
    refused("scale is of shape [2]", norm, x, gamma, beta, torch.ones(2), offset)
    refused("scale is of shape [16], but must have one number.", norm, x, gamma, beta, gamma, offset)
    rule = "scale is of shape [3, 16], but must have one number, or the shape of gamma, [16]"
    refused(rule, quant_norms.npu_rms_norm_quant_v2, x, gamma, torch.ones(3, 16))
    refused("offset is torch.int64", norm, x, gamma, beta, scale, offset.long())
    refused("dst_dtype is float4_e2m1fn_x2", norm, x, gamma, beta, scale, offset, dst_dtype=296)
    refused("x is of shape [3, 4]", norm, x[:, :4], gamma[:4], beta[:4], scale, offset, dst_dtype=16)
    refused("axis is 0, but must be -1", add, x, x, gamma, scale, None, axis=0)
    refused("zero_points2 is given, but must be None", add, x, x, gamma, scale, None, None, None, offset)
    refused("x2 is torch.bfloat16", add, x, x.bfloat16(), gamma, scale, None)
    dynamic = quant_norms.npu_add_rms_norm_dynamic_quant
    refused("output_mask is [True], but must have 2 values", dynamic, x, x, gamma, output_mask=[True])
    refused("output_mask is [False, False]", dynamic, x, x, gamma, output_mask=(False, False))
    refused("smooth_scale2 is given", dynamic, x, x, gamma, smooth_scale2=gamma, output_mask=(True, False))
    refused("smooth_scale1 is of shape [4]", dynamic, x, x, gamma, smooth_scale1=gamma[:4])
    mx = quant_norms.npu_rms_norm_dynamic_mx_quant
    refused("scale_alg is 2, but must be 0 or 1", mx, x, gamma, scale_alg=2)
    refused("npu_rms_norm_dynamic_mx_quant: round_mode is 'up'", mx, x, gamma, round_mode="up")
    refused("x is torch.float32", mx, x.float(), gamma)
    backward = quant_norms._npu_rms_norm_backward_quant
    refused("quant_mode is 'dynamic'", backward, x, x, torch.ones(3), gamma, scale, quant_mode="dynamic")
    refused("rstd is of shape [4]", backward, x, x, torch.ones(4), gamma, scale)
    refused("dst_type is int4", backward, x, x, torch.ones(3), gamma, scale, dst_type=16)


def test_norms_on_the_device() -> None:
    """By torch_npu's functions, and as fake tensors."""
    npu = pytest.importorskip("torch_npu")
    x, gamma, beta = (part.npu() for part in given(torch.bfloat16, (4, 64)))
    one, zero = torch.ones(1).npu(), torch.zeros(1).npu()

    def calls(x: Tensor, gamma: Tensor, beta: Tensor, one: Tensor, zero: Tensor) -> list[Tensor]:
        return [
            npu.npu_rms_norm_quant(x, gamma, beta, one, zero, dst_dtype=torch.quint4x2),
            *npu.npu_add_rms_norm_quant(x, x, gamma, one, None, div_mode=False),
            *npu.npu_add_rms_norm_dynamic_quant(x, x, gamma, smooth_scale1=gamma, y_dtype=torch.int8),
            *npu.npu_rms_norm_dynamic_mx_quant(x, gamma, dst_type=torch.float8_e4m3fn),
            *npu.npu_add_rms_norm_dynamic_mx_quant(x, x, gamma, dst_type=npu.float4_e1m2fn_x2),
            *torch.ops.npu._npu_rms_norm_backward_quant(x, x, x[:, 0].float(), gamma, one),
        ]

    real = calls(x, gamma, beta, one, zero)
    with torch._subclasses.FakeTensorMode(allow_non_fake_inputs=True):
        fake = calls(*(torch.empty(t.shape, dtype=t.dtype, device="npu") for t in (x, gamma, beta, one, zero)))
    assert [(f.shape, f.dtype) for f in fake] == [(r.shape, r.dtype) for r in real]
