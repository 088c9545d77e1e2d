"""`descend.torch.AdamW` beside ``torch.optim.AdamW``, and `apply_adam_w_v2_`."""

from __future__ import annotations

import copy
import itertools
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import descend.torch

SHAPES = ((3, 5), (), (70,), (2, 3, 4, 5), (0,), (1000,))


def parameters(dtype: torch.dtype = torch.float32) -> list[nn.Parameter]:
    torch.manual_seed(3)
    made = [nn.Parameter(torch.randn(shape, dtype=torch.float64).to(dtype)) for shape in SHAPES]
    made[3] = nn.Parameter(made[3].detach().contiguous(memory_format=torch.channels_last))
    return made


def train(optimizers: list[Any], sets: list[list[nn.Parameter]], steps: int = 20) -> None:
    """The same gradients for all; one of the parameters has none at every third step."""
    random = torch.Generator().manual_seed(5)
    for step in range(steps):
        for i, twins in enumerate(zip(*sets, strict=True)):
            gradient = torch.randn(twins[0].shape, generator=random, dtype=torch.float64)
            for p in twins:
                none = step % 3 == 2 and i == 1
                p.grad = None if none else gradient.to(twins[0].dtype).to(p.dtype)
        for optimizer in optimizers:
            optimizer.step()


OPTIONS: list[dict[str, Any]] = [
    {},
    {"amsgrad": True, "lr": 0.1, "betas": (0.3, 0.9), "weight_decay": 0.2},
    {"maximize": True, "eps": 1e-3, "lr": torch.tensor(0.02, dtype=torch.float64), "weight_decay": 0.0},
]


@pytest.mark.parametrize("options", OPTIONS, ids=["defaults", "amsgrad", "maximize"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_twenty_steps_are_pytorchs(dtype: torch.dtype, options: dict[str, Any]) -> None:
    mine, theirs = parameters(dtype), parameters(dtype)
    optimizers = [descend.torch.AdamW(mine, **options), torch.optim.AdamW(theirs, foreach=False, **options)]
    train(optimizers, [mine, theirs])
    close = {"rtol": 1e-12, "atol": 1e-12} if dtype is torch.float64 else {"rtol": 1e-5, "atol": 1e-6}
    for p, q in zip(mine, theirs, strict=True):
        torch.testing.assert_close(p, q, **close)
        states = [o.state[t] for o, t in zip(optimizers, (p, q), strict=True)]
        assert list(states[0]) == list(states[1])
        for name in states[0]:
            assert states[0][name].stride() == states[1][name].stride()
            torch.testing.assert_close(states[0][name], states[1][name], **close)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_moments_in_float32_beside_16_bits(dtype: torch.dtype) -> None:
    """Nearer to float64 than moments of 16 bits, and just what a step in float64 makes of them, rounded once."""
    mine, narrow, exact = parameters(dtype), parameters(dtype), parameters(dtype)
    exact = [nn.Parameter(p.detach().double()) for p in exact]
    optimizers = [
        descend.torch.AdamW(mine, lr=1e-2, moments=torch.float32),
        descend.torch.AdamW(narrow, lr=1e-2),
        torch.optim.AdamW(exact, lr=1e-2),
    ]
    train(optimizers, [mine, narrow, exact])
    for p, q, r in zip(mine, narrow, exact, strict=True):
        states = [o.state[t] for o, t in zip(optimizers, (p, q, r), strict=True)]
        assert states[0]["exp_avg"].dtype is torch.float32
        assert states[1]["exp_avg"].dtype is p.dtype is dtype
        if p.numel() >= 70:
            errors = [(s["exp_avg_sq"].double() - states[2]["exp_avg_sq"]).abs().mean() for s in states[:2]]
            assert errors[0] < 0.1 * errors[1]
        torch.testing.assert_close(p.double(), r, rtol=0, atol=0.1)


def test_state_dicts_go_both_ways() -> None:
    mine, theirs = parameters(), parameters()
    options = {"lr": 0.01, "amsgrad": True}
    optimizers = [descend.torch.AdamW(mine, **options), torch.optim.AdamW(theirs, foreach=False, **options)]
    assert optimizers[0].state_dict() == optimizers[1].state_dict() | {
        "param_groups": optimizers[0].state_dict()["param_groups"]
    }
    assert optimizers[0].param_groups[0].keys() == optimizers[1].param_groups[0].keys()
    assert {**optimizers[0].defaults, "foreach": False} == optimizers[1].defaults
    train(optimizers, [mine, theirs], 3)
    saved = [copy.deepcopy(o.state_dict()) for o in optimizers]
    assert saved[0]["state"].keys() == saved[1]["state"].keys()
    for optimizer, other in zip(optimizers, reversed(saved), strict=True):
        optimizer.load_state_dict(other)
    train(optimizers, [mine, theirs], 3)
    for p, q in zip(mine, theirs, strict=True):
        torch.testing.assert_close(p, q, rtol=1e-5, atol=1e-6)


def test_moments_keep_their_digits_when_loaded() -> None:
    mine, again = parameters(torch.bfloat16), parameters(torch.bfloat16)
    optimizer = descend.torch.AdamW(mine, moments=torch.float32)
    train([optimizer], [mine], 2)
    other = descend.torch.AdamW(again, moments=torch.float32)
    other.load_state_dict(optimizer.state_dict())
    for p, q in zip(mine, again, strict=True):
        for name, value in optimizer.state[p].items():
            assert torch.equal(other.state[q][name], value)
            assert other.state[q][name].dtype is torch.float32
            assert name == "step" or other.state[q][name] is not value


def test_groups_closures_schedulers_and_copies() -> None:
    def make(kind: Any) -> tuple[Any, nn.Module]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 2))
        groups = [{"params": model[0].parameters(), "lr": 0.05}, {"params": model[2].parameters(), "weight_decay": 0.3}]
        return kind(groups, lr=0.01), model

    results = []
    for kind in (descend.torch.AdamW, torch.optim.AdamW):
        optimizer, model = make(kind)
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))
        x = torch.ones(3, 4)

        def closure(optimizer: Any = optimizer, model: Any = model, x: Tensor = x) -> Tensor:
            optimizer.zero_grad()
            loss: Tensor = model(x).square().sum()
            loss.backward()
            return loss

        losses = []
        for _ in range(5):
            losses.append(optimizer.step(closure).item())
            scheduler.step()
        results.append((losses, copy.deepcopy(model.state_dict())))
        copy.deepcopy(optimizer).step()
    assert results[0][0] == pytest.approx(results[1][0], rel=1e-4)
    for p, q in zip(results[0][1].values(), results[1][1].values(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-4, atol=1e-6)


@pytest.mark.filterwarnings("ignore:optimizer contains a parameter group with duplicate parameters")
def test_a_parameter_that_is_given_twice_has_two_steps_at_once() -> None:
    start, found = torch.randn(5), []
    kinds: tuple[Any, ...] = (torch.optim.AdamW, descend.torch.AdamW)
    for kind in kinds:
        p = torch.nn.Parameter(start.clone())
        optimizer = kind([p, p], lr=0.1, foreach=False)
        for step in range(3):
            p.grad = torch.arange(5.0) + step
            optimizer.step()
        found.append(p.detach())
        assert optimizer.state[p]["step"].item() == 6
    torch.testing.assert_close(*found, rtol=1e-5, atol=1e-6)


def test_complex_parameters_and_what_is_refused() -> None:
    mine, theirs = (nn.Parameter(torch.arange(6).reshape(2, 3) * (1 + 0.5j)) for _ in range(2))
    train([descend.torch.AdamW([mine]), torch.optim.AdamW([theirs])], [[mine], [theirs]], 0)
    optimizers = [descend.torch.AdamW([mine], amsgrad=True), torch.optim.AdamW([theirs], amsgrad=True)]
    for _ in range(3):
        mine.grad = theirs.grad = torch.randn(2, 3, dtype=mine.dtype)
        for optimizer in optimizers:
            optimizer.step()
    torch.testing.assert_close(mine, theirs)
    with pytest.raises(ValueError, match="Invalid learning rate"):
        descend.torch.AdamW([mine], lr=-1.0)
    with pytest.raises(ValueError, match="differentiable is True"):
        descend.torch.AdamW([mine], differentiable=True)
    p = nn.Parameter(torch.ones(3))
    p.grad = torch.ones(3).to_sparse()
    with pytest.raises(RuntimeError, match="sparse"):
        descend.torch.AdamW([p]).step()


def test_the_function_in_place() -> None:
    for amsgrad, dtype in itertools.product((False, True), (torch.float32, torch.bfloat16)):
        torch.manual_seed(1)
        made = [torch.randn(5, 7).to(dtype) for _ in range(3)] + [torch.rand(5, 7) for _ in range(2)]
        var, m, grad, v, most = made
        numbers = (0.1, 0.9, 0.99, 0.01, 1e-6, amsgrad)
        expected = descend.torch.apply_adam_w_v2(var, m, v, most, grad, torch.tensor(2), *numbers)
        versions = [t._version for t in (var, m, v)]
        assert descend.torch.apply_adam_w_v2_(var, m, v, most, grad, torch.tensor(2), *numbers) is None
        for result, wanted in zip((var, m, v, most), expected, strict=True):
            assert wanted is None or torch.equal(result, wanted)
        assert all(t._version > before for t, before in zip((var, m, v), versions, strict=True))
    leaf = torch.ones(3, requires_grad=True)
    others = [torch.ones(3) for _ in range(3)]
    with pytest.raises(RuntimeError, match="no gradient: call it under"):
        descend.torch.apply_adam_w_v2_(leaf, *others[:2], None, others[2], torch.tensor(0))
    with torch.no_grad():
        descend.torch.apply_adam_w_v2_(leaf, *others[:2], None, others[2], torch.tensor(0))
    assert leaf[0] < 1
    with pytest.raises(ValueError, match=r"apply_adam_w_v2: m has shape \[2\]"):
        descend.torch.apply_adam_w_v2_(others[0], torch.ones(2), *others[1:2], None, others[2], torch.tensor(0))


def test_the_function_in_place_compiles() -> None:
    def run(var: Tensor, m: Tensor, v: Tensor, grad: Tensor, step: Tensor) -> Tensor:
        descend.torch.apply_adam_w_v2_(var, m, v, None, grad, step, 0.1)
        return var * 2

    args = [torch.randn(4), torch.randn(4), torch.rand(4), torch.randn(4), torch.tensor(1)]
    twins = [a.clone() for a in args]
    result = torch.compile(run, backend="aot_eager", fullgraph=True)(*args)
    assert torch.equal(result, run(*twins))
    for one, other in zip(args, twins, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("options", [{}, {"amsgrad": True, "capturable": True}], ids=["defaults", "amsgrad"])
def test_a_step_that_is_compiled(options: dict[str, Any]) -> None:
    """It makes the state in its first call, and counts its steps."""
    mine, theirs = parameters(), parameters()
    optimizers = [descend.torch.AdamW(p, lr=0.1, moments=torch.float64, **options) for p in (mine, theirs)]
    compiled = torch.compile(optimizers[0].step, backend="aot_eager", fullgraph=True)
    for _ in range(3):
        for p, q in zip(mine, theirs, strict=True):
            p.grad, q.grad = p.detach().cos(), q.detach().cos()
        compiled()
        optimizers[1].step()
    for p, q in zip(mine, theirs, strict=True):
        assert torch.equal(p, q)
        states = [o.state[t] for o, t in zip(optimizers, (p, q), strict=True)]
        for name, value in states[1].items():
            assert torch.equal(states[0][name], value)
            assert states[0][name].dtype is value.dtype
