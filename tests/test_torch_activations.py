"""descend.torch.patch on GELU: which modules are computed by gelu_v2, when, and which stay."""

from __future__ import annotations

import copy
import functools
import math
import pickle
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import Tensor, nn  # noqa: E402
from torch.nn import functional  # noqa: E402

import descend.torch as dt  # noqa: E402
from descend.torch import activations  # noqa: E402
from torch_cases import Foreign, draw  # noqa: E402

pytestmark = pytest.mark.usefixtures("on_device")


class NewGELU(nn.Module):
    """GPT-2's."""

    def forward(self, input: Tensor) -> Tensor:
        cubed = 0.044715 * torch.pow(input, 3.0)
        return 0.5 * input * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (input + cubed)))


class WrittenGELU(nn.Module):
    """BERT's."""

    def forward(self, x: Tensor) -> Tensor:
        return x * 0.5 * (1.0 + torch.erf(x / math.sqrt(2.0)))


class HeldGELU(nn.Module):
    """Holds PyTorch's function, as transformers' do."""

    def __init__(self, approximate: str = "none") -> None:
        super().__init__()
        self.act = functools.partial(functional.gelu, approximate=approximate)

    def forward(self, input: Tensor) -> Tensor:
        return self.act(input)


class OwnGELU(nn.GELU):
    """Another name alone."""


SWAPPED: dict[str, tuple[Callable[[], nn.Module], str, bool]] = {
    "erf": (nn.GELU, "erf", True),
    "tanh": (lambda: nn.GELU("tanh"), "tanh", True),
    "subclass": (OwnGELU, "erf", True),
    "held, erf": (HeldGELU, "erf", True),
    "held, tanh": (lambda: HeldGELU("tanh"), "tanh", True),
    "written, erf": (WrittenGELU, "erf", False),
    "written, tanh": (NewGELU, "tanh", False),
}


@pytest.fixture
def calls(monkeypatch):
    """The calls of the operator by modules."""
    made: list[int] = []
    operator = activations.gelu_v2

    def counted(x: Tensor, approximate: int) -> Tensor:
        made.append(approximate)
        return operator(x, approximate)

    monkeypatch.setattr(activations, "gelu_v2", counted)
    return made


def pair(name: str) -> tuple[nn.Module, nn.Module]:
    """The patched module, and the original."""
    theirs = SWAPPED[name][0]()
    ours = copy.deepcopy(theirs)
    assert dt.patch(ours).swapped == {"": f"{type(theirs).__name__} -> gelu_v2, by {SWAPPED[name][1]}"}
    return ours, theirs


def run(module: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    leaf = x.clone().requires_grad_()
    y = module(leaf)
    return y.detach(), torch.autograd.grad(y, leaf, 1 + y.detach().cos())[0]


@pytest.mark.cpu
@pytest.mark.parametrize("name", SWAPPED)
def test_gelus_that_are_swapped(name, calls):
    ours, theirs = pair(name)
    _, by, fused = SWAPPED[name]
    calls.clear()
    for dtype, unit in ((torch.float64, 1e-13), (torch.float32, 2e-6)):
        x = draw((64, 128), 1).to(dtype) * 3
        for one, other in zip(run(ours, x), run(theirs, x), strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=unit * other.abs().max().item())
    for dtype in (torch.bfloat16, torch.float16):
        x = (draw((64, 128), 1) * 3).to(dtype)
        for one, other, exact in zip(run(ours, x), run(theirs, x), run(theirs, x.double()), strict=True):
            assert (one.double() - exact).norm() <= 1.3 * (other.double() - exact).norm() + 1e-3 * exact.norm()
    assert calls == [int(by == "tanh")] * 4
    few = draw((3, 5), 2)  # PyTorch's own is faster then, if it is one kernel
    torch.testing.assert_close(ours(few), theirs(few))
    assert len(calls) == 4 + (not fused)


@pytest.mark.parametrize("name", SWAPPED)
def test_gelus_that_are_compiled_copied_and_undone(name, monkeypatch):
    monkeypatch.setattr(activations, "_SMALLEST_COMPILED", 0)
    ours, theirs = pair(name)
    x = draw((64, 128), 1)
    wanted = run(ours, x)
    compiled = torch.compile(ours, fullgraph=True, backend="aot_eager")
    for other in (copy.deepcopy(ours), pickle.loads(pickle.dumps(ours)), compiled):
        for one, expected in zip(run(other, x), wanted, strict=True):
            torch.testing.assert_close(one, expected)
    traced = torch.fx.symbolic_trace(ours)
    torch.testing.assert_close(traced(x), theirs(x))
    assert dt.patch(ours).left == {"": f"{type(theirs).__name__}: swapped before"}
    kept = ours.forward
    assert dt.unpatch(ours) == [""]
    assert type(ours) is type(theirs)
    assert torch.equal(kept(x), theirs(x))


@pytest.mark.cpu
def test_what_the_operator_does_not_take_is_the_classs(calls):
    ours, theirs = pair("written, tanh")
    calls.clear()
    x = draw((4, 8), 1)
    for given in (x.to(torch.complex64), x.long(), x.expand(1, 1, 1, 1, 1, 1, 1, 4, 8)):
        assert torch.equal(ours(given), theirs(given))
    assert type(ours(x.as_subclass(Foreign))) is Foreign
    assert calls == []
    assert torch.equal(ours(input=x), theirs(input=x))
    with pytest.raises(TypeError):
        ours(x, x)


@pytest.mark.cpu
def test_pytorchs_module_reads_its_form_in_each_call(calls):
    ours, theirs = pair("erf")
    x = draw((64, 128), 1)
    for module in (ours, theirs):
        module.approximate = "tanh"
    torch.testing.assert_close(ours(x), theirs(x))
    assert calls[-1] == 1
    ours.approximate = "other"
    with pytest.raises(RuntimeError):
        ours(x)


class QuickGELU(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * torch.sigmoid(1.702 * x)


class ClippedGELU(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return functional.gelu(x).clamp(max=1e5)


class InPlaceGELU(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.mul_(0.5 * (1.0 + torch.erf(x / math.sqrt(2.0))))


class CountingGELU(nn.Module):
    count = 0

    def forward(self, x: Tensor) -> Tensor:
        self.count += 1
        return functional.gelu(x)


class ConstantGELU(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return functional.gelu(x.detach())


class TwoGELU(nn.Module):
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return functional.gelu(x) + y


def changed(change: Callable[[Any], Any]) -> nn.Module:
    module = nn.GELU()
    change(module)
    return module


OTHER = "it is neither GELU by erf nor GELU by tanh"
LEFT: dict[str, tuple[Callable[[], nn.Module], str]] = {
    **{k.__name__: (k, OTHER) for k in (QuickGELU, ClippedGELU, InPlaceGELU, CountingGELU, ConstantGELU, TwoGELU)},
    "hook": (lambda: changed(lambda m: m.register_forward_hook(print)), "it has hooks"),
    "forward": (lambda: changed(lambda m: setattr(m, "forward", print)), "its forward was replaced on the instance"),
}


@pytest.mark.parametrize("name", LEFT)
def test_gelus_that_are_left_alone_and_why(name):
    make, reason = LEFT[name]
    module = make()
    kind = type(module)
    assert dt.patch(module).left == {"": f"{kind.__name__}: {reason}"}
    assert type(module) is kind


class ParametricGELU(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        return functional.gelu(self.scale * x)


def test_what_is_no_gelu_is_not_in_the_report():
    report = dt.patch(nn.ModuleList([ParametricGELU(), nn.ReLU(), nn.SiLU(), nn.Sequential(nn.Identity())]))
    assert (report.swapped, report.left) == ({}, {})
