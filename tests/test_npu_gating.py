"""Which experts a token gets, a causal convolution, and gated activations: against float64, gradients, refusals."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from descend.npu.composed.experts import gating  # noqa: E402
from descend.npu.composed.layers import activations, causal_conv  # noqa: E402
from test_npu_composed import FLOATS, gradients, near, refused  # noqa: E402

Tensor = Any
TOP_K, TOP_K_GRAD = gating.npu_moe_gating_top_k, gating.npu_moe_gating_top_k_backward


def distinct(rows: int, experts: int, dtype: Any) -> Tensor:
    """Numbers that are far from each other, in another order in each row."""
    return torch.stack([torch.randperm(experts) for _ in range(rows)]).mul(0.25).sub(1.5).to(dtype)


def experts_of(ranked: list[float], k: int, groups: int, k_group: int, mode: int) -> list[int]:
    size = len(ranked) // groups
    best = [sorted(ranked[g * size : (g + 1) * size], reverse=True)[: 2 if mode else 1] for g in range(groups)]
    sums = [torch.tensor(sum(of_group), dtype=torch.float32).item() for of_group in best]  # of sigmoid(x) and of -x: 1
    kept = sorted(range(groups), key=lambda g: (-sums[g], g))[:k_group]
    return sorted((e for e in range(len(ranked)) if e // size in kept), key=lambda e: (-ranked[e], e))[:k]


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("norm_type", [0, 1])
@pytest.mark.parametrize(("k", "groups", "k_group", "mode"), [(1, 1, 1, 0), (3, 4, 2, 0), (5, 4, 3, 1), (12, 1, 1, 1)])
@pytest.mark.parametrize("biased", [False, True])
def test_gating(dtype: Any, norm_type: int, k: int, groups: int, k_group: int, mode: int, biased: bool) -> None:
    x, dy = distinct(5, 12, dtype), torch.randn(5, k).to(dtype)
    bias = torch.arange(12).mul(0.0625).to(dtype) if biased else None
    options: Any = {"norm_type": norm_type, "routed_scaling_factor": 2.5, "eps": 0.125}
    selection = {"k_group": k_group, "group_count": groups, "group_select_mode": mode}
    y, experts, scores = TOP_K(x, k, bias=bias, **selection, **options)
    assert y.dtype == dtype
    assert experts.dtype == torch.int32
    exact = x.double().sigmoid() if norm_type else x.double().softmax(-1)
    near(scores, exact)
    ranked = scores if bias is None else scores + bias
    for row in range(5):
        assert experts[row].tolist() == experts_of(ranked[row].tolist(), k, groups, k_group, mode)

    def defined(x: Tensor) -> Tensor:
        chosen = (x.sigmoid() if norm_type else x.softmax(-1)).gather(1, experts.long())
        return 2.5 * (chosen / (chosen.sum(-1, keepdim=True) + 0.125) if norm_type else chosen)

    wanted, (dx,) = gradients(defined, [x], dy)
    near(y, wanted)
    got = TOP_K_GRAD(scores, dy, experts, **options)
    assert got.dtype == dtype
    near(got, dx, size=1.0)  # a difference of terms of that size


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("shape", [(6,), (2, 3)])
@pytest.mark.parametrize("k", [1, 3, 8])
def test_gating_by_softmax(dtype: Any, shape: tuple[int, ...], k: int) -> None:
    x = distinct(6, 8, dtype).view(*shape, 8)
    finished = torch.tensor([True, False, False, True, False, False]).view(shape)
    exact = x.double().softmax(-1)
    order = x.double().argsort(dim=-1, descending=True, stable=True)[..., :k]
    near(gating.npu_moe_gating_top_k_softmax(x, None, k)[0], exact.gather(-1, order))
    y, experts, rows = gating.npu_moe_gating_top_k_softmax(x, finished, k)
    near(y, exact.gather(-1, order))
    assert torch.equal(experts.long(), order.masked_fill(finished.unsqueeze(-1), 8))
    assert rows.is_contiguous()  # as torch_npu tells torch.compile
    assert rows.view(6, k).tolist() == [[j * 6 + i for j in range(k)] for i in range(6)]
    two = gating.npu_moe_gating_top_k_softmax_v2
    y, experts, scores = two(x, k=k, finished=finished, output_softmax=True)
    near(y, exact.gather(-1, order))
    near(scores, exact)
    assert torch.equal(experts.long(), order.masked_fill(finished.unsqueeze(-1), 8))
    y, experts, scores = two(x, k=k, renorm=1, output_softmax=True)
    near(y, x.double().gather(-1, order).softmax(-1))
    assert torch.equal(experts.long(), order)
    assert scores.numel() == two(x, k=k)[2].numel() == 0


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("shape", [(7, 2, 5), (1, 3, 4), (0, 2, 3), (2, 1, 1)])
@pytest.mark.parametrize("window", [1, 3, 5])
@pytest.mark.parametrize("masked", [False, True])
def test_causal_convolution(dtype: Any, shape: tuple[int, ...], window: int, masked: bool) -> None:
    length, batch, width = shape
    x, weight, dy = (torch.randn(size).to(dtype) for size in (shape, (window, width), shape))
    mask = torch.rand(batch, length) > 0.3 if masked else None

    def defined(x: Tensor, weight: Tensor) -> Tensor:
        rows = []
        for s in range(length):
            terms = [weight[k] * x[s - (window - 1 - k)] for k in range(window) if s >= window - 1 - k]
            rows.append(sum(terms) * (1 if mask is None else mask[:, s : s + 1]))
        return torch.stack(rows) if rows else x * weight.sum()

    wanted, derived = gradients(defined, [x, weight], dy)
    near(causal_conv.npu_masked_causal_conv1d(x, weight, mask=mask), wanted)
    for got, value in zip(
        causal_conv.npu_masked_causal_conv1d_backward(dy, x, weight, mask=mask), derived, strict=True
    ):
        assert got.dtype == dtype
        near(got, value)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_gated_activations(dtype: Any) -> None:
    x = (torch.randn(3, 4, 6) * 4).to(dtype)
    wide = x.double()
    for approximate in ("none", "tanh"):
        a, b = wide.chunk(2, -1)
        gelu = torch.nn.functional.gelu(a, approximate=approximate)
        near(activations.npu_gelu_mul(x, approximate=approximate), gelu * b)

    def clipped(a: Tensor, b: Tensor) -> Tensor:
        a, b = torch.minimum(a, torch.tensor(3.0)), b.clamp(-3, 3)
        return a / (1 + torch.exp(-0.5 * a)) * (b + 0.25)

    options: Any = {"alpha": 0.5, "limit": 3.0, "bias": 0.25}
    call = activations.npu_clipped_swiglu
    near(call(x, **options), clipped(wide[..., ::2], wide[..., 1::2]))
    near(call(x, interleaved=False, **options), clipped(*wide.chunk(2, -1)))
    flat = wide.flatten(1)
    near(call(x, dim=1, **options), clipped(flat[:, ::2], flat[:, 1::2]).view(3, 2, 6))
    near(call(x, dim=-2, interleaved=False, **options), clipped(*wide.chunk(2, 1)))
    for counts, used in (([2, 3], 5), ([0], 0), ([50, 1], 12)):
        got = call(x, group_index=torch.tensor(counts), **options).view(12, 3)
        near(got[:used], clipped(wide.view(12, 6)[:used, ::2], wide.view(12, 6)[:used, 1::2]))
        assert not got[used:].any()


def test_refusals() -> None:
    x = torch.randn(4, 12)
    refused("input_ids or tid2eid is given", TOP_K, x, 2, input_ids=torch.zeros(4).int())
    refused("x is of shape [12]", TOP_K, x[0], 2)
    refused("renorm is 1, but must be 0", TOP_K, x, 2, renorm=1)
    refused("norm_type is 2", TOP_K, x, 2, norm_type=2)
    refused("bias is of shape [3]", TOP_K, x, 2, bias=x[0, :3])
    refused("group_count and k_group is 5 and 1", TOP_K, x, 2, group_count=5)
    refused("group_count and k_group is 4 and 5", TOP_K, x, 2, group_count=4, k_group=5)
    refused("k is 7, but must be from 1 to 6", TOP_K, x, 7, group_count=4, k_group=2)
    refused("group_select_mode is 2", TOP_K, x, 2, group_select_mode=2)
    refused("group_select_mode is 1", TOP_K, x, 2, group_select_mode=1, group_count=12, k_group=3)
    refused("expertIdx is of shape [4, 1]", TOP_K_GRAD, x, x, torch.zeros(4, 1).int())
    refused("x_norm is of shape [2, 12]", TOP_K_GRAD, x[:2], x, torch.zeros(4, 12).int())
    refused("expertIdx is torch.float32", TOP_K_GRAD, x, x, torch.zeros(4, 12))
    refused("expertIdx is from 12 to 12, but must be within the 12 experts", TOP_K_GRAD, x, x, torch.full((4, 12), 12))
    softmax, two = gating.npu_moe_gating_top_k_softmax, gating.npu_moe_gating_top_k_softmax_v2
    refused("x is of shape [12]", softmax, x[0])
    refused("k is 13", softmax, x, None, 13)
    refused("finished is torch.int32", softmax, x, torch.zeros(4).int())
    refused("finished is of shape [3]", two, x, finished=torch.zeros(3, dtype=torch.bool))
    refused("renorm is 2", two, x, renorm=2)
    conv = causal_conv.npu_masked_causal_conv1d
    signal, weight = torch.randn(5, 2, 3), torch.randn(3, 3)
    refused("input is of shape [2, 3]", conv, signal[0], weight)
    refused("weight is torch.float16", conv, signal, weight.half())
    refused("weight is of shape [3]", conv, signal, weight[0])
    refused("weight is of shape [3, 2]", conv, signal, weight[:, 1:])
    refused("mask is torch.float32", conv, signal, weight, mask=torch.ones(2, 5))
    refused("mask is of shape [5, 2]", conv, signal, weight, mask=torch.ones(5, 2).bool())
    refused("grad_output is of shape [3, 3]", causal_conv.npu_masked_causal_conv1d_backward, weight, signal, weight)
    refused("approximate is 'erf'", activations.npu_gelu_mul, x, approximate="erf")
    refused("input is of shape [4, 3]", activations.npu_gelu_mul, x[:, :3])
    refused("x is of shape [12]", activations.npu_clipped_swiglu, x[0])
    refused("x is of shape [4, 3]", activations.npu_clipped_swiglu, x[:, :3])
    refused("group_index is down to -1", activations.npu_clipped_swiglu, x, group_index=torch.tensor([3, -1]))
    refused("group_index is torch.int32", activations.npu_clipped_swiglu, x, group_index=torch.ones(2).int())


def test_autograd_on_the_device() -> None:
    torch_npu: Any = pytest.importorskip("torch_npu")
    x, dy = distinct(5, 12, torch.float32), torch.randn(5, 3)
    leaf = x.npu().requires_grad_()
    y, experts, _ = torch_npu.npu_moe_gating_top_k(leaf, 3, norm_type=1, group_count=4, k_group=2)

    def defined(x: Tensor) -> Tensor:
        chosen = x.sigmoid().gather(1, experts.cpu().long())
        return chosen / chosen.sum(-1, keepdim=True)

    wanted, (dx,) = gradients(defined, [x], dy)
    near(y.detach().cpu(), wanted)
    near(torch.autograd.grad(y, leaf, dy.npu())[0].cpu(), dx)
    signal, weight, mask, dy = torch.randn(6, 2, 4), torch.randn(3, 4), torch.rand(2, 6) > 0.3, torch.randn(6, 2, 4)
    leaves = [t.npu().requires_grad_() for t in (signal, weight)]
    got = torch_npu.npu_masked_causal_conv1d(*leaves, mask=mask.npu())

    def convolved(x: Tensor, w: Tensor) -> Tensor:
        padded = torch.cat((x.new_zeros(2, 2, 4), x))
        return sum(w[k] * padded[k : k + 6] for k in range(3)) * mask.T.unsqueeze(-1)

    wanted, derived = gradients(convolved, [signal, weight], dy)
    near(got.detach().cpu(), wanted)
    for gradient, value in zip(torch.autograd.grad(got, leaves, dy.npu()), derived, strict=True):
        near(gradient.cpu(), value)
    pairs = torch.randn(3, 8)
    a, b = pairs.chunk(2, -1)
    near(torch_npu.npu_gelu_mul(pairs.npu()).cpu(), (torch.nn.functional.gelu(a.double()) * b))
    assert torch_npu.npu_clipped_swiglu(pairs.npu()).shape == (3, 4)
    assert torch_npu.npu_moe_gating_top_k_softmax(pairs.npu(), None, 2)[0].shape == (3, 2)
    assert torch_npu.npu_moe_gating_top_k_softmax_v2(pairs.npu(), k=2)[1].dtype == torch.int32
