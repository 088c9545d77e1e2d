"""npu_fused_attention_score and its gradient: against the formula in float64; dropout; refusals."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from descend.npu.composed.attention import attention_score  # noqa: E402
from test_npu_composed import FLOATS, near, refused  # noqa: E402

Tensor = Any
B, N, S, D = 2, 3, 16, 8
forward = attention_score.npu_fused_attention_score_fwd
backward = attention_score.npu_fused_attention_score_backward


def defined(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, kept: Tensor, keep: float) -> tuple[Tensor, Tensor]:
    """The result and the softmax."""
    scores = q @ k.transpose(2, 3) * 0.25 + mask
    p = scores.exp() / scores.exp().sum(-1, keepdim=True)
    return (p * kept / keep @ v).transpose(1, 2).reshape(B * S, N * D), p


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("keep", [1.0, 0.7])
@pytest.mark.parametrize("of_mask", [(B, 1, S, S), (B, N, S, S), (1, 1, 1, S)])
def test_attention_score(dtype: Any, keep: float, of_mask: tuple[int, ...]) -> None:
    q, k, v = (torch.randn(B, N, S, D).to(dtype) for _ in range(3))
    mask, dy = torch.randn(of_mask).to(dtype), torch.randn(B * S, N * D).to(dtype)
    y, p, drop = forward(q, k, v, mask, 0.25, keep)
    kept = drop.view(B, N, S, S).double()
    assert drop.dtype == torch.uint8
    assert set(drop.tolist()) == ({1} if keep == 1.0 else {0, 1})
    assert abs(kept.mean().item() - keep) < 0.06
    leaves = [t.double().requires_grad_() for t in (q, k, v)]
    wanted, wanted_p = defined(*leaves, mask.double(), kept, keep)
    near(y, wanted.detach(), size=1.0)
    near(p, wanted_p.detach(), size=1.0)
    gradients = torch.autograd.grad(wanted, leaves, dy.double())
    got = backward(dy, wanted_p.detach().to(dtype), q, k, v, drop, 0.25, keep)
    side_by_side = attention_score.npu_fused_attention_score_grad(
        dy, wanted_p.detach().to(dtype), q, k, v, drop, 0.25, keep
    )
    for one, flat, gradient in zip(got, side_by_side, gradients, strict=True):
        # The softmax that was kept is rounded.
        near(one, gradient, size=5.0)
        assert torch.equal(flat, one.transpose(1, 2).reshape(B * S, N * D))


def test_attention_score_drops_all() -> None:
    q = torch.randn(B, N, S, D)
    y, p, drop = forward(q, q, q, torch.zeros(1, 1, 1, 1), 1.0, 0.0)
    assert not y.any()
    assert not any(each.any() for each in backward(y + 1, p, q, q, q, drop, 1.0, 0.0))


def test_attention_score_of_a_strided_mask() -> None:
    q, dy = torch.randn(B, N, S, D), torch.randn(B * S, N * D)
    p, drop = torch.rand(B, N, S, S), torch.randint(2, (B * N * S * S // 2, 2)).byte()
    turned = drop.transpose(0, 1).contiguous().transpose(0, 1)
    calls = [backward(dy, p, q, q, q, mask, 1.0, 0.5) for mask in (drop, turned)]
    assert all(torch.equal(*pair) for pair in zip(*calls, strict=True))


def test_attention_score_on_the_device() -> None:
    npu = pytest.importorskip("torch_npu")
    layers = [torch.randn(B, N, S, D).half().npu().requires_grad_() for _ in range(3)]
    mask, dy = torch.randn(B, 1, S, S).half().npu(), torch.randn(B * S, N * D).half().npu()
    y = npu.npu_fused_attention_score(*layers, mask, 0.25, 1.0)
    y.backward(dy)
    leaves = [t.detach().cpu().double().requires_grad_() for t in layers]
    wanted, _ = defined(*leaves, mask.cpu().double(), torch.ones(()), 1.0)
    wanted.backward(dy.cpu().double())
    near(y.detach().cpu(), wanted.detach(), size=1.0)
    for layer, leaf in zip(layers, leaves, strict=True):
        near(layer.grad.cpu(), leaf.grad, size=5.0)
    torch.npu.manual_seed(3)
    first = npu.npu_fused_attention_score(*layers, mask, 0.25, 0.5)
    torch.npu.manual_seed(3)
    assert torch.equal(npu.npu_fused_attention_score(*layers, mask, 0.25, 0.5), first)


def test_attention_score_refused() -> None:
    q, mask = torch.randn(B, N, S, D), torch.zeros(B, 1, S, S)
    refused("query_layer is of shape [3, 16, 8]", forward, q[0], q[0], q[0], mask, 1.0, 1.0)
    refused("value_layer is of shape [2, 3, 15, 8]", forward, q, q, q[:, :, 1:], mask, 1.0, 1.0)
    refused("attention_mask is of shape [2, 1, 15, 16]", forward, q, q, q, mask[:, :, 1:], 1.0, 1.0)
    refused("keep_prob is 2.0", forward, q, q, q, mask, 1.0, 2.0)
    refused("key_transpose is True, but must be False", forward, q, q, q, mask, 1.0, 1.0, key_transpose=True)
    p, drop, dy = torch.zeros(B, N, S, S), torch.ones(B * N * S * S).byte(), torch.zeros(B * S, N * D)
    refused("grad_output is of shape [2, 3, 16, 8]", backward, q, p, q, q, q, drop, 1.0, 1.0)
    refused("softmax_output is of shape [2, 1, 16, 16]", backward, dy, mask, q, q, q, drop, 1.0, 1.0)
    refused("drop_mask is torch.uint8 of 3 elements", backward, dy, p, q, q, q, drop[:3], 1.0, 1.0)
