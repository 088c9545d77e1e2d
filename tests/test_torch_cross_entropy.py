"""descend.torch.cross_entropy beside PyTorch's: losses, gradients, errors, and what is left to it."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import Tensor  # noqa: E402
from torch.nn import functional  # noqa: E402

from descend.torch import cross_entropy  # noqa: E402
from descend.torch.cross_entropy import _SMALL  # noqa: E402

LARGE = (9, _SMALL // 8)
TOLERANCE = {torch.float32: 3e-6, torch.bfloat16: 2e-2, torch.float16: 3e-3, torch.float64: 1e-13}


def inputs(dtype: Any = torch.float32, shape: tuple[int, int] = LARGE) -> tuple[Tensor, Tensor, Tensor]:
    random = torch.Generator().manual_seed(1)
    x = (3 * torch.randn(shape, generator=random)).to(dtype)
    target = torch.randint(shape[1], shape[:1], generator=random)
    target[::4] = -100
    return x, target, torch.rand(shape[1], generator=random).to(dtype)


def gradient(function: Any, x: Tensor, *rest: Any, **named: Any) -> tuple[Tensor, Tensor]:
    leaf = x.detach().clone().requires_grad_()
    loss = function(leaf, *rest, **named)
    (loss * torch.linspace(0.5, 2, loss.numel(), dtype=loss.dtype).view(loss.shape)).sum().backward()
    return loss.detach(), leaf.grad


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_losses_and_gradients(dtype, reduction):
    x, target, weight = inputs(dtype)
    for given, smoothing in itertools.product((None, weight), (0.0, 0.1)):
        named = {"weight": given, "reduction": reduction, "label_smoothing": smoothing}
        loss, dx = gradient(cross_entropy, x, target, **named)
        wide = {**named, "weight": None if given is None else given.double()}
        expected, exact = gradient(functional.cross_entropy, x.double(), target, **wide)
        assert (loss.dtype, loss.shape, dx.dtype) == (dtype, expected.shape, dtype)
        unit = TOLERANCE[dtype]
        torch.testing.assert_close(loss.double(), expected, rtol=unit, atol=unit)
        torch.testing.assert_close(dx.double(), exact, rtol=unit, atol=unit * exact.abs().max().item())
        with torch.no_grad():
            assert torch.equal(cross_entropy(x, target, **named), loss)


def test_scores_are_read_and_nothing_else_is_kept():
    x, target, _ = inputs()
    x.requires_grad_()
    loss = cross_entropy(x, target)
    kept = sum(t.nbytes for t in loss.grad_fn.saved_tensors if t is not None and t.data_ptr() != x.data_ptr())
    assert kept == 2 * 8 * len(x)


def test_second_derivatives_and_graphs():
    x, target, _ = inputs(torch.float64, (5, _SMALL // 4))

    def second(function: Any) -> Tensor:
        leaf = x.clone().requires_grad_()
        (dx,) = torch.autograd.grad(function(leaf, target, label_smoothing=0.1), leaf, create_graph=True)
        return torch.autograd.grad(dx.square().sum(), leaf)[0]

    torch.testing.assert_close(second(cross_entropy), second(functional.cross_entropy), rtol=1e-9, atol=1e-16)
    torch._dynamo.reset()
    compiled = torch.compile(cross_entropy, fullgraph=True, backend="aot_eager")
    for one, other in zip(gradient(compiled, x, target), gradient(cross_entropy, x, target), strict=True):
        assert torch.equal(one, other)
    graph = torch.fx.experimental.proxy_tensor.make_fx(lambda x, target: cross_entropy(x, target))(x, target)
    assert "descend.cross_entropy" in graph.code
    assert torch.equal(graph(x + 1, target), cross_entropy(x + 1, target))


def test_what_is_pytorchs():
    """The same results as PyTorch's, from PyTorch, where the operator does not apply; and its errors."""
    x, target, weight = inputs()
    calls = (
        (x[:, :9].contiguous(), target.clamp(-100, 8)),
        (x[0], target[1]),
        (x, x.softmax(1)),
        (x.view(9, 16, -1), target[:, None].expand(9, LARGE[1] // 16).clamp(-100, 15)),
    )
    for one in calls:
        for ours, theirs in zip(gradient(cross_entropy, *one), gradient(functional.cross_entropy, *one), strict=True):
            assert torch.equal(ours, theirs)
    with pytest.warns(UserWarning, match="size_average"):
        assert cross_entropy(x, target, size_average=False) == functional.cross_entropy(x, target, reduction="sum")
    batch = torch.func.vmap(cross_entropy)(x.expand(2, *x.shape), target.expand(2, -1))
    torch.testing.assert_close(batch, cross_entropy(x, target).expand(2))
    tangent = torch.func.jvp(lambda x: cross_entropy(x, target), (x,), (x,))[1]
    torch.testing.assert_close(tangent, (gradient(cross_entropy, x, target)[1] * 2 * x).sum())
    with torch.autocast("cpu", torch.bfloat16):
        low = x.bfloat16()
        assert cross_entropy(low, target).dtype is functional.cross_entropy(low, target).dtype
    wrong = target.clone()
    wrong[1] = LARGE[1]
    for function in (cross_entropy, functional.cross_entropy):
        with pytest.raises(IndexError, match=f"Target {LARGE[1]} is out of bounds"):
            function(x, wrong)
        with pytest.raises(RuntimeError, match="not differentiable with respect to argument 'weight'"):
            function(x, target, weight.requires_grad_())
        with pytest.raises(ValueError, match="batch_size"):
            function(x, target[1:])
        with pytest.raises(ValueError, match="not a valid value for reduction"):
            function(x, target, reduction="avg")
        assert function(x, torch.full_like(target, -100)).isnan()


def test_no_row_that_counts_has_a_gradient_of_0():
    x, target, _ = inputs()
    loss, dx = gradient(cross_entropy, x, torch.full_like(target, -100))
    assert loss.isnan()
    assert not dx.any()
