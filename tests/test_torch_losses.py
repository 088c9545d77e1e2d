"""descend.torch.patch on what computes cross entropy: modules, calls in forwards, loss functions of models."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402
from torch import Tensor, nn  # noqa: E402

import descend.torch as dt  # noqa: E402
from descend.torch import losses  # noqa: E402

ROWS, CLASSES = 64, 1100  # more scores than the operator leaves to PyTorch


def scores(dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    random = torch.Generator().manual_seed(0)
    target = torch.randint(CLASSES, (ROWS,), generator=random)
    target[::5] = -100
    return (3 * torch.randn((ROWS, CLASSES), generator=random)).to(dtype), target


@pytest.fixture
def calls(monkeypatch):
    """The calls of cross entropy by what was patched, with the dtypes that they ask for."""
    found: list[Any] = []
    ours = losses.cross_entropy

    def counted(*args: Any, **named: Any) -> Tensor:
        found.append(named.get("dtype"))
        return ours(*args, **named)

    monkeypatch.setattr(losses, "cross_entropy", counted)
    return found


def gradient(loss: Any, x: Tensor, *args: Any, **named: Any) -> tuple[Tensor, Tensor]:
    leaf = x.detach().clone().requires_grad_()
    result = loss(leaf, *args, **named)
    result = getattr(result, "loss", result)
    result.sum().backward()
    return result.detach(), leaf.grad


def near(actual: tuple[Tensor, ...], expected: tuple[Tensor, ...], unit: float) -> None:
    for one, other in zip(actual, expected, strict=True):
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        torch.testing.assert_close(one, other, rtol=unit, atol=unit * other.abs().max().item())


# --- the module ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_the_module(dtype, calls):
    x, target = scores(dtype)
    for options in ({}, {"weight": torch.rand(CLASSES).to(dtype), "reduction": "sum"}, {"label_smoothing": 0.1}):
        theirs = nn.CrossEntropyLoss(**options)
        ours = copy.deepcopy(theirs)
        assert dt.patch(ours).swapped == {"": "CrossEntropyLoss -> cross_entropy"}
        near(gradient(ours, x, target), gradient(theirs, x, target), 1e-5 if dtype is torch.float32 else 0.02)
        for other in (copy.deepcopy(ours), pickle.loads(pickle.dumps(ours))):
            assert torch.equal(other(x, target), ours(x, target))
        ours.reduction, theirs.reduction = "none", "none"
        near((ours(x, target=target),), (theirs(x, target),), 1e-5 if dtype is torch.float32 else 0.02)
        count, kept = len(calls), ours.forward
        assert dt.unpatch(ours) == [""]
        for call in (ours, kept):
            assert torch.equal(call(x, target), theirs(x, target))
        assert len(calls) == count == 6
        calls.clear()
    traced = torch.fx.symbolic_trace(nn.Sequential(theirs))
    assert torch.equal(traced.get_submodule("0")(x, target), theirs(x, target))


def test_modules_that_stay():
    class Smoothed(nn.CrossEntropyLoss):
        def forward(self, input: Tensor, target: Tensor) -> Tensor:
            return super().forward(input, target) + 1

    hooked = nn.CrossEntropyLoss()
    hooked.register_forward_hook(lambda *_: None)
    assert not dt.patch(Smoothed()).swapped
    assert dt.patch(hooked).left == {"": "CrossEntropyLoss: it has hooks"}


# --- calls in a forward ----------------------------------------------------------------------------------------------


class Model(nn.Module):
    """As many write it: the loss comes with the scores."""

    def forward(self, x: Tensor, target: Tensor, kind: str = "usual") -> Tensor:
        cross_entropy = F.mse_loss
        if kind == "whole name":
            return torch.nn.functional.cross_entropy(x, target, ignore_index=-100)
        if kind == "another":
            return cross_entropy(x[:, 0], target.to(x.dtype))
        if kind == "module":
            loss = nn.CrossEntropyLoss(label_smoothing=0.1)
            return loss(x, target)
        return F.cross_entropy(x.float(), target, reduction="sum")


def test_calls_in_a_forward(calls, monkeypatch):
    x, target = scores()
    theirs = Model()
    ours = copy.deepcopy(theirs)
    names = "torch.nn.functional.cross_entropy and nn.CrossEntropyLoss and F.cross_entropy"
    assert dt.patch(ours).swapped == {"": f"Model -> cross_entropy in {names}"}
    for count, kind in ((1, "usual"), (2, "whole name"), (2, "another"), (3, "module")):
        near(gradient(ours, x, target, kind), gradient(theirs, x, target, kind), 1e-5)
        assert len(calls) == count
    compiled = torch.compile(ours, fullgraph=True, backend="aot_eager")
    for kind in ("usual", "module"):
        near(gradient(compiled, x, target, kind), gradient(theirs, x, target, kind), 1e-5)
    calls.clear()
    monkeypatch.setattr(F, "cross_entropy", lambda x, target, **_: x.sum())
    assert ours(x, target) == x.sum()
    monkeypatch.undo()
    dt.unpatch(ours)
    assert torch.equal(ours(x, target), theirs(x, target))
    assert not calls


# --- the loss function of a model ------------------------------------------------------------------------------------


def next_token(
    logits, labels, vocab_size, num_items_in_batch=None, ignore_index=-100, shift_labels=None, **kwargs
) -> Tensor:
    """As transformers writes it."""
    logits = logits.float()
    if shift_labels is None:
        labels = F.pad(labels, (0, 1), value=ignore_index)
        shift_labels = labels[..., 1:].contiguous()
    logits, shift_labels = logits.view(-1, vocab_size), shift_labels.view(-1).to(logits.device)
    reduction = "sum" if num_items_in_batch is not None else "mean"
    loss = F.cross_entropy(logits, shift_labels, ignore_index=ignore_index, reduction=reduction)
    return loss if num_items_in_batch is None else loss / num_items_in_batch


def masked(logits, labels, vocab_size, num_items_in_batch=None, ignore_index=-100, **kwargs) -> Tensor:
    return next_token(logits, None, vocab_size, num_items_in_batch, ignore_index, labels)


def smoothed(logits, labels, vocab_size, num_items_in_batch=None, ignore_index=-100, shift_labels=None) -> Tensor:
    loss = next_token(logits, labels, vocab_size, num_items_in_batch, ignore_index, shift_labels)
    return loss + 1e-4 * logits.float().logsumexp(-1).square().mean()


def narrow(logits, labels, vocab_size, num_items_in_batch=None, ignore_index=-100, shift_labels=None) -> Tensor:
    return next_token(logits, labels, vocab_size, num_items_in_batch, ignore_index, shift_labels).to(logits.dtype)


class Scored(nn.Module):
    """As transformers' models ask for their loss."""

    chosen = staticmethod(next_token)

    @property
    def loss_function(self) -> Any:
        return vars(self).get("_loss_function", self.chosen)

    @loss_function.setter
    def loss_function(self, value: Any) -> None:
        vars(self)["_loss_function"] = value

    def forward(self, x: Tensor, labels: Tensor, **named: Any) -> Tensor:
        return self.loss_function(logits=x, labels=labels, vocab_size=x.shape[-1], **named)


@pytest.mark.parametrize("function", [next_token, masked])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_loss_functions(function, dtype, calls):
    x, target = (t.view(2, ROWS // 2, *t.shape[1:]) for t in scores(dtype))
    theirs = Scored()
    theirs.loss_function = function
    ours = copy.deepcopy(theirs)
    assert dt.patch(ours).swapped == {"": "Scored -> cross_entropy in loss_function"}
    calls.clear()
    others: list[dict[str, Any]] = [{}, {"num_items_in_batch": 50}, {"num_items_in_batch": torch.tensor(50)}]
    others += [{"ignore_index": 7}] + [{"shift_labels": target.flip(0)}] * (function is next_token)
    for named in others:
        labels = target.clamp(min=0) if "ignore_index" in named else target
        (loss, dx), (expected, wanted) = (gradient(m, x, labels, **named) for m in (ours, theirs))
        near((loss,), (expected,), 1e-6)
        # Rounded once, as the gradient of the copy in float32 is.
        near((dx,), (wanted,), 1e-5 if dtype is torch.float32 else torch.finfo(dtype).eps)
        assert (dx != wanted).float().mean() <= (1 if dtype is torch.float32 else 1e-3)
    assert calls == [torch.float32] * len(others)
    near(gradient(ours, x[:, ::2], target[:, ::2]), gradient(theirs, x[:, ::2].contiguous(), target[:, ::2]), 1e-2)
    calls.clear()
    assert torch.equal(ours(x, target, of_another_kind=True), theirs(x, target))
    ours.loss_function = smoothed
    assert torch.equal(ours(x, target), smoothed(x, target, CLASSES))
    assert not calls


def test_a_16_bit_loss_function_keeps_no_copies():
    x, target = (t.view(2, ROWS // 2, *t.shape[1:]) for t in scores(torch.bfloat16))
    ours = Scored()
    dt.patch(ours)
    leaf = x.requires_grad_()
    seen: dict[int, int] = {}

    def keep(t: Tensor) -> Tensor:
        seen[t.untyped_storage().data_ptr()] = t.untyped_storage().nbytes()
        return t

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t):
        ours(leaf, target)
    assert sum(n for place, n in seen.items() if place != x.untyped_storage().data_ptr()) < x.nbytes / 50


def test_loss_functions_that_stay():
    for function in (smoothed, narrow, lambda logits, labels, vocab_size: logits.sum()):
        model = Scored()
        model.loss_function = function
        assert dt.patch(model).left == {"": "Scored: its loss_function is none that is known"}
    plain = nn.Sequential(nn.Identity())
    assert not dt.patch(plain).left


def test_models_that_are_copied_compiled_and_undone(calls):
    x, target = (t.view(2, ROWS // 2, *t.shape[1:]) for t in scores())
    ours = Scored()
    dt.patch(ours)
    calls.clear()
    expected = gradient(ours, x, target)
    for other in (
        copy.deepcopy(ours),
        pickle.loads(pickle.dumps(ours)),
        torch.compile(ours, fullgraph=True, backend="aot_eager"),
    ):
        near(gradient(other, x, target), expected, 1e-6)
    assert len(calls) == 4
    with torch.autocast("cpu", torch.bfloat16):
        near(gradient(ours, x.bfloat16(), target), gradient(next_token, x.bfloat16(), target, CLASSES), 0.01)
    assert dt.patch(ours).left == {"": "Scored: swapped before"}
    assert dt.unpatch(ours) == [""]
    assert ours.loss_function is next_token
