"""Norms that descend.torch.patch has swapped, on unusual inputs and parameters."""

from __future__ import annotations

import copy
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import Tensor, nn  # noqa: E402
from torch.nn.utils._per_sample_grad import call_for_per_sample_grads  # noqa: E402

import descend.torch as dt  # noqa: E402
from torch_cases import Foreign, draw  # noqa: E402
from torch_norms import DTYPES, SWAPPED, LlamaNorm, inputs  # noqa: E402

pytestmark = pytest.mark.usefixtures("on_device")


@pytest.mark.parametrize("name", ["LayerNorm", "RMSNorm", "Llama", "Gemma", "T5"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_unusual_inputs(name, dtype):
    """Infinities, NaN, zeros; no rows; one row."""
    theirs = SWAPPED[name][0]().to(dtype)
    ours = copy.deepcopy(theirs)
    dt.patch(ours)
    x = torch.randn(4, 16).to(dtype)
    x[0, 0], x[1, 3], x[2] = float("inf"), float("nan"), 0
    assert torch.equal(ours(x).isnan(), theirs(x).isnan())
    for shape in ((0, 16), (3, 0, 16), (16,)):
        assert ours(x.new_ones(shape)).shape == shape


@pytest.mark.parametrize("name", ["LayerNorm", "RMSNorm", "Llama", "Gemma", "T5", "GroupNorm and SiLU"])
def test_what_no_operator_takes_is_left_to_the_class(name):
    """Ranks beyond 8; dtypes that are not floating; what is no tensor: the class computes it or says why not."""

    def outcome(module: nn.Module, x: Any) -> Any:
        try:
            return module(x).tolist()
        except Exception as error:
            return repr(error)

    theirs = nn.Sequential(nn.GroupNorm(2, 16), nn.SiLU()) if name == "GroupNorm and SiLU" else SWAPPED[name][0]()
    ours = copy.deepcopy(theirs)
    assert dt.patch(ours).swapped
    ones = torch.ones(2, 16, 16)
    others = [ones.to(dtype) for dtype in (torch.int64, torch.complex64, torch.bool, torch.float8_e4m3fn)]
    others += [torch.randn(1, 16, *[1] * 6, 16), ones.to_sparse()]
    for x in (*others, ones[0, 0].tolist(), ones.cpu().numpy(), None):
        assert outcome(ours, x) == outcome(theirs, x)
    if name == "GroupNorm and SiLU":
        assert outcome(ours, ones[0, 0]) == outcome(theirs, ones[0, 0])  # of rank 1


@pytest.mark.parametrize("where", ["input", "parameters"])
@pytest.mark.parametrize("name", [*SWAPPED, "GroupNorm and SiLU"])
def test_tensors_of_other_classes_are_left_to_the_modules(name, where):
    theirs = nn.Sequential(nn.GroupNorm(2, 40), nn.SiLU()) if name == "GroupNorm and SiLU" else SWAPPED[name][0]()
    if where == "parameters" and not list(theirs.parameters()):
        pytest.skip("it has none")
    x = inputs(theirs, torch.float32).detach()
    x = x.as_subclass(Foreign) if where == "input" else x
    ours = copy.deepcopy(theirs)
    assert dt.patch(ours).swapped
    results = []
    for module in (theirs, ours):
        if where == "parameters":
            for part in module.modules():
                for key, parameter in list(part.named_parameters(recurse=False)):
                    setattr(part, key, nn.Parameter(parameter.detach().as_subclass(Foreign)))
        leaf = x.clone().requires_grad_()
        y = module(leaf)
        y.square().sum().backward()
        results.append([type(y), *(t.detach().as_subclass(Tensor) for t in (y, leaf.grad))])
    assert results[0][0] is results[1][0] is Foreign
    for one, other in zip(results[0][1:], results[1][1:], strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("name", ["LayerNorm", "GroupNorm and SiLU"])
def test_gradients_of_each_sample_by_stand_ins(name):
    """``torch.nn.utils`` puts tensors of its own in the parameters' places, which know a few functions of PyTorch."""
    norm = nn.LayerNorm(8) if name == "LayerNorm" else nn.Sequential(nn.GroupNorm(2, 8), nn.SiLU())
    theirs = nn.Sequential(norm, nn.Linear(8, 8))
    ours = copy.deepcopy(theirs)
    assert dt.patch(ours).swapped
    x = draw((3, 8), 0)
    for model in (theirs, ours):
        call_for_per_sample_grads(model, batch_size=3)(x).square().sum().backward()
    for one, other in zip(theirs.parameters(), ours.parameters(), strict=True):
        assert torch.equal(one.grad_sample, other.grad_sample)


def test_a_norm_over_nothing():
    module = LlamaNorm(0)
    assert dt.patch(module).swapped
    assert module(torch.ones(3, 0)).shape == (3, 0)
