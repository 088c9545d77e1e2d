"""Hyper-connections on a manifold: each operator against its formula in float64, gradients, refusals, autograd."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from descend.npu.composed.layers import mhc  # noqa: E402
from test_npu_composed import FLOATS, gradients, near, refused  # noqa: E402

Tensor = Any
SHAPES = [(2, 3, 4, 5), (3, 6, 2), (1, 1, 1)]


def given(shape: tuple[int, ...], dtype: Any, alphas: int, scaled: bool) -> tuple[list[Tensor], list[Tensor]]:
    """x, phi, alpha, bias and maybe gamma: x in a dtype, the others in that of the arithmetic."""
    n, size = shape[-2:]
    rows, own = 2 * n + (n * n if alphas == 3 else 0), torch.float64 if dtype == torch.float64 else torch.float32
    others = [(rows, n * size), (alphas,), (rows,), *([(n, size)] if scaled else [])]
    return [torch.randn(shape).to(dtype), *(torch.randn(other).to(own) / 2 for other in others)], [torch.empty(0)]


def pre(x: Tensor, phi: Tensor, alpha: Tensor, bias: Tensor, gamma: Tensor | None = None) -> list[Tensor]:
    n = x.shape[-2]
    normal = x / (x.square().mean((-1, -2), keepdim=True) + 0.01).sqrt()
    linear = (normal if gamma is None else normal * gamma).flatten(-2) @ phi.T
    scales = torch.cat([alpha[i].expand(count) for i, count in enumerate((n, n, n * n)[: len(alpha)])])
    linear = linear * scales + bias
    h_pre, h_post = torch.sigmoid(linear[..., :n]) + 0.1, 2 * torch.sigmoid(linear[..., n : 2 * n])
    h_res = linear[..., 2 * n :].unflatten(-1, (n, n)) if len(alpha) == 3 else torch.zeros(1, dtype=x.dtype)
    return [torch.einsum("...n,...nd->...d", h_pre, x), h_post, h_res]


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("alphas", [2, 3])
@pytest.mark.parametrize("scaled", [False, True])
def test_pre(dtype: Any, shape: tuple[int, ...], alphas: int, scaled: bool) -> None:
    tensors, _ = given(shape, dtype, alphas, scaled)
    gamma = tensors[4] if scaled else None
    results = mhc.npu_mhc_pre(*tensors[:4], gamma=gamma, norm_eps=0.01, hc_eps=0.1, out_flag=1)
    leaves = [t.double().clone().requires_grad_() for t in tensors]
    wanted = pre(*leaves)
    assert [t.dtype for t in results] == [dtype] + [tensors[1].dtype] * 5
    for got, value in zip(results, wanted, strict=False):
        near(got, value.detach())
    alone = mhc.npu_mhc_pre(*tensors[:4], gamma=gamma, norm_eps=0.01, hc_eps=0.1, inner_precise=1)
    assert all(torch.equal(one, other) for one, other in zip(alone[:3], results, strict=False))
    assert alone[3:] == (None, None, None)
    dys = [torch.randn(t.shape).to(t.dtype) for t in results[:3]]
    more = torch.randn(shape).to(dtype)
    used = [y for y in wanted if y.requires_grad]
    derived = torch.autograd.grad(used, leaves, [dy.double() for dy in dys[: len(used)]])
    options: Any = {"gamma": gamma, "hc_eps": 0.1}
    saved = (*results[3:], results[1])
    got = mhc.npu_mhc_pre_backward(*tensors[:3], *dys, *saved, **options)
    assert [t.dtype for t in got] == [dtype] + [tensors[1].dtype] * 4
    for gradient, value in zip(got, derived, strict=False):
        near(gradient / 4, value / 4)
    if not scaled:
        assert not got[4].any()
    near(
        mhc.npu_mhc_pre_backward(*tensors[:3], *dys, *saved, **options, grad_x_post=more)[0], derived[0] + more.double()
    )
    nothing = mhc.npu_mhc_pre_backward(*tensors[:3], None, None, None, *saved, **options)
    assert not any(t.any() for t in nothing)


def sinkhorn(x: Tensor, eps: float, count: int) -> Tensor:
    y = torch.softmax(x, -1) + eps
    for i in range(count):
        y = y if i == 0 else y / (y.sum(-1, keepdim=True) + eps)
        y = y / (y.sum(-2, keepdim=True) + eps)
    return y


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("shape", [(2, 3, 4, 4), (5, 6, 6), (0, 4, 4), (1, 1, 1)])
@pytest.mark.parametrize("count", [1, 2, 20])
def test_sinkhorn(dtype: Any, shape: tuple[int, ...], count: int) -> None:
    x, dy = torch.randn(shape).to(dtype), torch.randn(shape).to(dtype)
    wanted, (dx,) = gradients(lambda x: sinkhorn(x, 0.01, count), [x], dy)
    y, norm, sums = mhc.npu_mhc_sinkhorn(x, eps=0.01, num_iters=count, out_flag=1)
    near(y, wanted)
    assert list(norm.shape) == [2 * count, *shape[-2:], *shape[:-2]]
    assert list(sums.shape) == [2 * count, shape[-1], *shape[:-2]]
    near(mhc.npu_mhc_sinkhorn_backward(dy, norm, sums), dx)
    assert mhc.npu_mhc_sinkhorn(x, num_iters=count)[1:] == (None, None)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("shape", [*SHAPES, (0, 4, 5)])
@pytest.mark.parametrize("mixed", [False, True])
def test_post(dtype: Any, shape: tuple[int, ...], mixed: bool) -> None:
    outer, n, size, own = shape[:-2], shape[-2], shape[-1], torch.float64 if dtype == torch.float64 else torch.float32
    x, h_out = torch.randn(shape).to(dtype), torch.randn(*outer, size).to(dtype)
    h_res, h_post, dy = torch.randn(*outer, n, n).to(own), torch.randn(*outer, n).to(own), torch.randn(shape).to(dtype)

    def defined(x: Tensor, h_res: Tensor, h_out: Tensor, h_post: Tensor) -> Tensor:
        return torch.einsum("...ij,...id->...jd", h_res, x) + torch.einsum("...j,...d->...jd", h_post, h_out)

    eye = torch.eye(n, dtype=own).expand(*outer, n, n)
    wanted, derived = gradients(defined, [x, h_res if mixed else eye, h_out, h_post], dy)
    matrix = h_res if mixed else None
    near(mhc.npu_mhc_post(x, matrix, h_out, h_post), wanted)
    for got, value in zip(mhc.npu_mhc_post_backward(dy, x, matrix, h_out, h_post), derived, strict=True):
        near(got / 4, value / 4)


def test_refusals() -> None:
    (x, phi, alpha, bias, gamma), _ = given((2, 3, 4, 5), torch.float32, 3, True)
    refused("x is of shape [4, 5]", mhc.npu_mhc_pre, x[0, 0], phi, alpha, bias)
    refused("x is of shape [0, 3, 4, 5]", mhc.npu_mhc_pre, x[:0], phi, alpha, bias)
    refused("alpha is of shape [1]", mhc.npu_mhc_pre, x, phi, alpha[:1], bias)
    refused(
        "phi is of shape [24, 20], but must have that of x and 2 alphas, [8, 20]",
        mhc.npu_mhc_pre,
        x,
        phi,
        alpha[:2],
        bias,
    )
    refused("bias is of shape [5]", mhc.npu_mhc_pre, x, phi, alpha, bias[:5])
    refused("gamma is of shape [5, 4]", mhc.npu_mhc_pre, x, phi, alpha, bias, gamma=gamma.T)
    refused("out_flag is 2", mhc.npu_mhc_pre, x, phi, alpha, bias, out_flag=2)
    h_in, h_post, h_res, inv_rms, h_mix, h_pre = mhc.npu_mhc_pre(x, phi, alpha, bias, out_flag=1)
    grads = (x, phi, alpha, h_in, h_post, h_res)
    refused(
        "is None, but must be a result of npu_mhc_pre with out_flag=1",
        mhc.npu_mhc_pre_backward,
        *grads,
        *[None] * 3,
        h_post,
    )
    saved = (inv_rms, h_mix, h_pre, h_post)
    refused("inv_rms is of shape [2, 3, 4]", mhc.npu_mhc_pre_backward, *grads, h_pre, *saved[1:])
    refused("grad_h_in is of shape [2, 3, 4]", mhc.npu_mhc_pre_backward, *grads[:3], h_post, *grads[4:], *saved)
    refused("grad_x_post is of shape [2, 3, 5]", mhc.npu_mhc_pre_backward, *grads, *saved, grad_x_post=h_in)
    refused("x is of shape [2, 3, 4, 5], but must be of shape [B, S, n, n]", mhc.npu_mhc_sinkhorn, x)
    refused("num_iters is 0, but must be from 1 to 100", mhc.npu_mhc_sinkhorn, h_res, num_iters=0)
    refused("num_iters is 101", mhc.npu_mhc_sinkhorn, h_res, num_iters=101)
    refused("phi is torch.float64, but must be float64 where x is", mhc.npu_mhc_pre, x, phi.double(), alpha, bias)
    refused("h_pre is torch.int64", mhc.npu_mhc_pre_backward, *grads, inv_rms, h_mix, h_pre.long(), h_post)
    refused("grad_h_res is torch.bool", mhc.npu_mhc_pre_backward, *grads[:5], h_res.bool(), *saved)
    refused("h_out is torch.float64", mhc.npu_mhc_post, x, h_res, h_in.double(), h_post)
    refused("grad_y is torch.float64", mhc.npu_mhc_post_backward, x.double(), x, h_res, h_in, h_post)
    refused("norm is torch.int64", mhc.npu_mhc_sinkhorn_backward, h_res, h_res.long(), h_res)
    refused("grad_y is of shape [2, 3, 4]", mhc.npu_mhc_sinkhorn_backward, h_post, h_res, h_res)
    refused("out_flag is 2", mhc.npu_mhc_sinkhorn, h_res, out_flag=2)
    refused("norm or sum is None", mhc.npu_mhc_sinkhorn_backward, h_res, None, None)
    refused("norm is of shape [1536]", mhc.npu_mhc_sinkhorn_backward, h_res, torch.ones(1536), torch.ones(96))
    refused("h_res is of shape [2, 3, 4, 5]", mhc.npu_mhc_post, x, x, h_in, h_post)
    refused("h_out is of shape [2, 3, 4]", mhc.npu_mhc_post, x, h_res, h_post, h_post)
    refused("h_post is of shape [2, 3, 5]", mhc.npu_mhc_post, x, h_res, h_in, h_in)
    refused("x is torch.int64", mhc.npu_mhc_post, x.long(), h_res, h_in, h_post)
    refused("grad_y is of shape [2, 3, 5]", mhc.npu_mhc_post_backward, h_in, x, h_res, h_in, h_post)


def test_autograd_on_the_device() -> None:
    """A layer: pre, sinkhorn and post, whose gradients flow through all three."""
    torch_npu: Any = pytest.importorskip("torch_npu")
    tensors, _ = given((2, 3, 4, 5), torch.float32, 3, True)
    dy = torch.randn(2, 3, 4, 5)

    def defined(*tensors: Tensor) -> Tensor:
        h_in, h_post, h_res = pre(*tensors)
        return torch.einsum("...ij,...id->...jd", sinkhorn(h_res, 0.01, 3), tensors[0]) + (
            h_post.unsqueeze(-1) * h_in.sin().unsqueeze(-2)
        )

    wanted, derived = gradients(defined, tensors, dy)
    leaves = [t.npu().requires_grad_() for t in tensors]
    options: Any = {"gamma": leaves[4], "norm_eps": 0.01, "hc_eps": 0.1}
    h_in, h_post, h_res, *_ = torch_npu.npu_mhc_pre(*leaves[:4], **options, out_flag=1)
    mixed = torch_npu.npu_mhc_sinkhorn(h_res, eps=0.01, num_iters=3, out_flag=1)[0]
    y = torch_npu.npu_mhc_post(leaves[0], mixed, h_in.sin(), h_post)
    near(y.detach().cpu(), wanted)
    for got, value in zip(torch.autograd.grad(y, leaves, dy.npu()), derived, strict=True):
        near(got.cpu() / 4, value / 4)
    with torch.no_grad():
        assert torch_npu.npu_mhc_pre(*leaves[:4])[3:] == (None, None, None)
    with pytest.raises(RuntimeError, match="out_flag=1"):
        torch_npu.npu_mhc_pre(*leaves[:4], **options)[0].sum().backward()
