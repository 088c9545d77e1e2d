"""Second derivatives when the first derivative's saved tensors are in graphs, in checkpoints or offloaded.

Each operator has two registrations, and with both all of it is the same.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import Tensor, nn  # noqa: E402
from torch._dynamo.testing import CompileCounterWithBackend  # noqa: E402
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks  # noqa: E402
from torch.fx.experimental.proxy_tensor import make_fx  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

import descend.torch  # noqa: E402
from cases import extended, in_turn  # noqa: E402
from torch_cases import FORWARDS, NAMES, OPERATORS, RELEASE, calls, draw, present, scalar  # noqa: E402

pytestmark = pytest.mark.usefixtures("on_device")
both = pytest.mark.usefixtures("each_registration")
Gradients = tuple[Tensor, ...]
close = functools.partial(torch.testing.assert_close, rtol=1e-12, atol=1e-12)


def leaves_of(tensors: tuple[Tensor, ...]) -> Gradients:
    return tuple(t.detach().clone().requires_grad_() for t in tensors)


def first(function: Callable[..., Tensor]) -> Callable[..., Gradients]:
    """The gradients of a scalar; 0 for tensors on which it does not depend."""
    return lambda *values: torch.autograd.grad(function(*values), values, create_graph=True, materialize_grads=True)


def read(tensors: Gradients) -> Tensor:
    """A scalar that reads all of the tensors."""
    return functools.reduce(torch.add, (t.square().sum() for t in tensors))


def curvature(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """A scalar that reads all gradients."""
    return lambda *values: read(first(function)(*values))


# --- each operator -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "pre_dispatch"), in_turn(NAMES, [False, True]))
def test_a_graph_of_first_derivatives_has_second_ones(name, pre_dispatch):
    """Statistics that are computed depend on the input; statistics that a caller gives are inputs of their own."""
    function, inputs = scalar(calls()[name])
    _, others = scalar(calls(seed=1)[name])
    graph = make_fx(first(function), pre_dispatch=pre_dispatch)(*leaves_of(others))
    leaves = leaves_of(inputs)
    results, expected = graph(*leaves), first(function)(*leaves)
    close(results, expected)
    close(*(torch.autograd.grad(read(each), leaves, materialize_grads=True) for each in (results, expected)))


@pytest.mark.parametrize(("name", "pre_dispatch"), in_turn([n for n in OPERATORS if n in FORWARDS], [True, False]))
def test_a_graph_of_second_derivatives_has_third_ones(name, pre_dispatch):
    function, inputs = scalar(calls()[name])
    _, others = scalar(calls(seed=1)[name])
    graph = make_fx(first(curvature(function)), pre_dispatch=pre_dispatch)(*leaves_of(others))
    leaves = leaves_of(inputs)
    results, expected = graph(*leaves), first(curvature(function))(*leaves)
    third = [torch.autograd.grad(read(each), leaves, materialize_grads=True) for each in (results, expected)]
    for result, wanted in zip((*results, *third[0]), (*expected, *third[1]), strict=True):
        close(result, wanted, atol=1e-12 * float(1 + wanted.detach().abs().max()))


@both
@pytest.mark.parametrize("name", OPERATORS)
def test_double_backward_with_hooks_on_what_is_saved(name):
    """Offloaded, copied or in a checkpoint."""
    function, inputs = scalar(calls()[name])
    leaves = leaves_of(inputs)
    second = curvature(function)
    expected = torch.autograd.grad(second(*leaves), leaves)
    for hooks in (save_on_cpu(), saved_tensors_hooks(torch.clone, torch.clone)):
        with hooks:
            close(torch.autograd.grad(second(*leaves), leaves), expected)
    for use_reentrant in (False, True):
        again = leaves_of(inputs)
        checkpoint(torch.enable_grad()(second), *again, use_reentrant=use_reentrant).backward()
        close(tuple(a.grad for a in again), expected)


@both
def test_double_backward_of_one_tensor_twice():
    x, weight = torch.randn(3, 8, dtype=torch.float64, requires_grad=True), torch.ones(8, dtype=torch.float64)
    rstd = torch.ones(3, 1, dtype=torch.float64)

    def gradient() -> Tensor:
        return torch.autograd.grad(descend.torch.rms_norm_grad(x, x, rstd, weight)[0].pow(3).sum(), x)[0]

    expected = gradient()
    with save_on_cpu():
        close(gradient(), expected)


# --- compiled autograd ---------------------------------------------------------------------------------------------


def in_one_graph(backend: Any, **options: Any) -> Any:
    """Compiled autograd, which makes one graph of a whole backward, or says at what it would have to cut it."""
    return torch._dynamo.compiled_autograd._enable(torch.compile(backend=backend, fullgraph=True, **options))


@pytest.mark.parametrize(
    ("name", "each_registration"),
    [
        *in_turn([n for n in FORWARDS if n in OPERATORS], ["C++", "Python"]),
        *extended(*in_turn([n for n in FORWARDS if n not in OPERATORS], ["C++", "Python"])),
    ],
    indirect=["each_registration"],
)
@pytest.mark.usefixtures("each_registration")
def test_compiled_autograd(name):
    torch._dynamo.reset()

    def gradients(way: Any) -> Gradients:
        call = calls()[name]
        leaves = call.wanting(call.floats)
        loss = functools.reduce(torch.add, (r.sin().sum() for r in present(leaves.run())))
        with way:
            loss.backward()
        return tuple(leaves.args[place].grad for place in call.floats)

    close(gradients(in_one_graph("eager")), gradients(nullcontext()))


@pytest.mark.parametrize(
    ("each_registration", "backend"), [("C++", "eager"), ("Python", "aot_eager")], indirect=["each_registration"]
)
@pytest.mark.usefixtures("each_registration")
@pytest.mark.extended
def test_compiled_autograd_of_several_sizes(backend):
    """Sizes become symbols at the second, so that the third compiles nothing."""
    torch._dynamo.reset()
    model = nn.Sequential(*layers().values())
    descend.torch.patch(model)
    graphs = CompileCounterWithBackend(backend)

    def gradients(rows: int, way: Any) -> Gradients:
        model.zero_grad()
        x = draw((rows, 8), rows).requires_grad_()
        _, mean, rstd = descend.torch.group_norm_swish(x, torch.ones(8), torch.ones(8), 2)
        loss = model(x).square().sum() + mean.sin().sum() + rstd.sin().sum()
        with way:
            loss.backward()
        return (x.grad, *(p.grad.clone() for p in model.parameters()))

    for rows in (4, 5, 7):
        results = gradients(rows, in_one_graph(graphs))
        for result, wanted in zip(results, gradients(rows, nullcontext()), strict=True):
            torch.testing.assert_close(result, wanted)
    assert graphs.frame_count == (2 if RELEASE > (2, 7) else 3)  # PyTorch 2.7 compiles for the third, too


# --- a swapped model -----------------------------------------------------------------------------------------------


def layers() -> dict[str, nn.Module]:
    """Norms to swap, and modules of Descend's own."""
    return {
        "LayerNorm": nn.LayerNorm(8),
        "RMSNorm": nn.RMSNorm(8),
        "GroupNorm and SiLU": nn.Sequential(nn.GroupNorm(2, 8), nn.SiLU()),
        "group norm alone": descend.torch.GroupNormSwish(2, 8, activate_swish=False),
        "softmax": descend.torch.ScaledMaskedSoftmax(0.7),
    }


class Model(nn.Module):
    """Forces: the gradient of an energy with respect to positions, as of a network of atoms."""

    def __init__(self, name: str, patched: bool = True) -> None:
        super().__init__()
        self.norm = layers()[name].double()
        if patched:
            descend.torch.patch(self)
        for seed, parameter in enumerate(self.parameters()):
            parameter.data = draw(parameter.shape, seed, torch.float64)

    def energy(self, x: Tensor, w: Tensor) -> Tensor:
        return nn.functional.gelu(self.norm(x @ w)).square().sum()

    def forward(self, x: Tensor, w: Tensor) -> Tensor:
        return torch.autograd.grad(self.energy(x, w), x, create_graph=True)[0]


def with_hooks(hooks: Callable[[], Any]) -> Callable[[Model, Any], Any]:
    def make(model: Model, _: Any) -> Any:
        def forces(*args: Tensor) -> Tensor:
            with hooks():
                return model(*args)

        return forces

    return make


WAYS: dict[str, Callable[[Model, tuple[Tensor, ...]], Callable[..., Tensor]]] = {
    "save_on_cpu": with_hooks(save_on_cpu),
    "hooks that clone": with_hooks(lambda: saved_tensors_hooks(torch.clone, torch.clone)),
    "checkpoint": lambda model, _: lambda *args: checkpoint(model, *args, use_reentrant=False),
    "reentrant checkpoint": lambda model, _: (
        lambda *args: checkpoint(torch.enable_grad()(model.forward), *args, use_reentrant=True)
    ),
    "torch.func.grad": lambda model, _: torch.func.grad(model.energy),
    "compile of torch.func.grad": lambda model, _: torch.compile(
        torch.func.grad(model.energy), backend="aot_eager", fullgraph=True
    ),
    "make_fx": lambda model, others: make_fx(model)(*others),
    "make_fx of torch.func.grad": lambda model, others: make_fx(lambda x, w: torch.func.grad(model.energy)(x, w))(
        *others
    ),
    "make_fx without create_graph": lambda model, others: make_fx(
        lambda x, w: torch.autograd.grad(model.energy(x, w), x)[0]
    )(*others),
    "make_fx before dispatch": lambda model, others: make_fx(model, pre_dispatch=True)(*others),
    "compile of make_fx": lambda model, others: torch.compile(make_fx(model)(*others), backend="aot_eager"),
    "export": lambda model, others: torch.export.export(model, others).module(),
}


def train(model: Model, forces: Callable[..., Tensor]) -> Gradients:
    """The forces at some positions, and the gradients of a loss of these forces."""
    x, w = positions(3)
    model.zero_grad()
    result = forces(x, w)
    result.square().sum().backward()
    return (result.detach(), x.grad, w.grad, *(p.grad.clone() for p in model.parameters()))


def positions(seed: int) -> Gradients:
    return leaves_of((draw((5, 4), seed, torch.float64), draw((4, 8), seed + 1, torch.float64)))


@both
@pytest.mark.parametrize("name", ["LayerNorm", "RMSNorm", "GroupNorm and SiLU"])
def test_forces_are_pytorchs(name):
    model, theirs = Model(name), Model(name, patched=False)
    for result, wanted in zip(train(model, model), train(theirs, theirs), strict=True):
        close(result, wanted, atol=1e-12 * float(wanted.abs().max()))


# Each way has one layer with the kernels in C++ and another with those in Python: the tests above have shown that the
# derivatives of all operators are the same.
TRAINED = [
    (registration, list(layers())[(i + first) % len(layers())], way)
    for first, registration in enumerate(("C++", "Python"))
    for i, way in enumerate(WAYS)
]


@pytest.mark.parametrize(("each_registration", "name", "way"), TRAINED, indirect=["each_registration"])
@pytest.mark.usefixtures("each_registration")
def test_forces_can_be_trained(name, way):
    """A graph is traced on other numbers than it runs on."""
    if way == "export" and RELEASE <= (2, 7):
        pytest.skip("torch.export of PyTorch 2.7 takes no gradients in a model")
    torch._dynamo.reset()
    model = Model(name)
    close(train(model, WAYS[way](model, positions(7))), train(model, model))
