"""Descend in the graphs that inductor compiles (`descend.torch.enable`)."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import descend.torch
from cases import extended
from descend.torch import compiling

ROWS, COLUMNS = 512, 512  # just as many elements as are worth a call
DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


@pytest.fixture(autouse=True)
def _fresh(cpp: None) -> Iterator[None]:
    torch.compiler.reset()
    yield
    descend.torch.disable()
    torch.compiler.reset()


def replaced(function: Callable[..., Any], *inputs: Any, dynamic: bool = False) -> tuple[list[str], Any]:
    """What the pass replaced in the function's graph, and what the graph computes after it."""
    names: list[str] = []

    def backend(root: torch.fx.GraphModule, examples: Any) -> Any:
        compiling.replace_norms(root.graph)
        for module in root.modules():
            if isinstance(module, torch.fx.GraphModule):
                names.extend(n.target.__name__ for n in module.graph.nodes if n.target in compiling._REPLACED.values())
        return root

    return names, torch.compile(function, backend=backend, dynamic=dynamic)(*inputs)


def data(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(7)).to(dtype)


def norms(x: Tensor, weight: Tensor | None = None, bias: Tensor | None = None) -> tuple[Tensor, ...]:
    """Both norms, in all ways to write them."""
    size = [COLUMNS]
    return (
        F.layer_norm(x, size, weight, bias),
        F.layer_norm(x, size, bias=bias, weight=weight, eps=0.25),
        torch.layer_norm(x, size, weight, bias, 1e-3, False),
        F.rms_norm(x, size, weight),
        F.rms_norm(x, size, weight=weight, eps=0.25),
        torch.rms_norm(x, size, weight, 1e-3),
    )


PARAMETERS = [(d, p) for d in DTYPES for p in (None, d, torch.float32) if not (d is torch.float64 and p is DTYPES[0])]


@pytest.mark.parametrize(("dtype", "parameters"), dict.fromkeys(PARAMETERS), ids=str)
def test_graphs(dtype: torch.dtype, parameters: torch.dtype | None):
    x = data(ROWS, COLUMNS, dtype=dtype)
    weight, bias = (data(COLUMNS, dtype=parameters) for _ in range(2)) if parameters else (None, None)
    names, results = replaced(norms, x, weight, bias)
    assert names == (
        [] if dtype is torch.float64 and parameters == "float32" else ["layer_norm"] * 3 + ["rms_norm"] * 3
    )
    with descend.torch.enabled():
        eager = norms(x, weight, bias)
    for place, (result, expected) in enumerate(zip(results, eager, strict=True)):
        assert torch.equal(result, expected), place


def test_modules_and_gradients():
    model = nn.Sequential(nn.LayerNorm(COLUMNS), nn.RMSNorm(COLUMNS), nn.LayerNorm(COLUMNS, bias=False))
    x = data(ROWS, COLUMNS).requires_grad_()
    with descend.torch.enabled():
        expected = torch.autograd.grad(model(x).square().sum(), [x, *model.parameters()])
    names, y = replaced(model, x)
    assert names == ["layer_norm", "rms_norm", "layer_norm"]
    for mine, other in zip(torch.autograd.grad(y.square().sum(), [x, *model.parameters()]), expected, strict=True):
        assert torch.equal(mine, other)


def inside_vmap(x: Tensor) -> Tensor:
    return torch.vmap(lambda row: F.layer_norm(row, [COLUMNS]))(x)


def in_autocast(x: Tensor) -> Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        return F.rms_norm(x @ x, [COLUMNS], torch.ones(COLUMNS))


LEFT: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "a small input": (lambda x: F.layer_norm(x, [COLUMNS]), (data(ROWS - 1, COLUMNS),)),
    "another dtype": (lambda x: F.layer_norm(x.to(torch.float32), [COLUMNS]).to(x.dtype), (data(8, COLUMNS).int(),)),
    "nine dimensions": (lambda x: F.layer_norm(x, [COLUMNS]), (data(1, 1, 1, 1, 1, 1, 1, ROWS, COLUMNS),)),
    "vmap": (inside_vmap, (data(ROWS, COLUMNS),)),
    "a result of other strides": (
        lambda x: F.rms_norm(x, [COLUMNS]),
        (data(1, 2, ROWS, COLUMNS).to(memory_format=torch.channels_last),),
    ),
}


@pytest.mark.parametrize("case", LEFT)
def test_what_is_left_to_inductor(case: str):
    function, inputs = LEFT[case]
    expected = function(*inputs)
    names, result = replaced(function, *inputs)
    assert names == []
    assert (result.dtype, result.stride()) == (expected.dtype, expected.stride())
    assert torch.equal(result, expected)


def test_graphs_within_the_graph():
    x = data(ROWS, COLUMNS).requires_grad_()
    names, y = replaced(lambda x: checkpoint(F.layer_norm, x, [COLUMNS], use_reentrant=False) * 2, x)
    assert names == ["layer_norm"]
    y.sum().backward()


def test_under_autocast():
    x = data(ROWS, COLUMNS)
    names, y = replaced(in_autocast, x)
    assert names == ["rms_norm"]
    with descend.torch.enabled():
        assert torch.equal(y, in_autocast(x))


def test_sizes_that_change():
    names, y = replaced(lambda x: F.layer_norm(x, [COLUMNS]), data(ROWS, COLUMNS), dynamic=True)
    assert names == ["layer_norm"]
    assert torch.equal(y, descend.torch.layer_norm(data(ROWS, COLUMNS), [COLUMNS])[0])


# --- inductor itself -----------------------------------------------------------------------------------------------


def calls_descend(function: Callable[..., Any], *inputs: Any) -> bool:
    with torch.profiler.profile() as profile:
        function(*inputs)
    return any(event.name.startswith("descend::") for event in profile.events())


@pytest.mark.extended
def test_inductor():
    model = nn.Sequential(nn.LayerNorm(COLUMNS), nn.GELU(), nn.RMSNorm(COLUMNS))
    x = data(ROWS, COLUMNS).requires_grad_()

    def step(model: nn.Module) -> tuple[Tensor, ...]:
        return torch.autograd.grad(model(x).square().sum(), [x, *model.parameters()])

    without = torch.compile(model)
    expected = step(without)
    assert not calls_descend(step, without)
    with descend.torch.enabled():
        assert not calls_descend(step, without), "it is compiled already"
        torch.compiler.reset()
        compiled = torch.compile(model)
        results = step(compiled)
    assert calls_descend(step, compiled), "a compiled graph stays as it is"
    for mine, other in zip(results, expected, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-4)
    torch.compiler.reset()
    again = torch.compile(model)  # the caches on the disk have both graphs
    assert not calls_descend(step, again)


def test_other_passes_stay():
    from torch._inductor import config
    from torch._inductor.custom_graph_pass import CustomGraphPass

    class Mine(CustomGraphPass):
        def __call__(self, graph: torch.fx.Graph) -> None: ...

        def uuid(self) -> bytes:
            return b"mine"

    assert config.pre_grad_custom_pass is None
    mine = Mine()
    for before in (mine, [mine], None):
        with config.patch(pre_grad_custom_pass=before):
            descend.torch.enable()
            descend.torch.enable()
            passes = config.pre_grad_custom_pass
            assert passes == ([mine] if before else []) + [compiling._norms()]
            descend.torch.disable()
            assert config.pre_grad_custom_pass == ([mine] if before else None)
    assert config.pre_grad_custom_pass is None


PROGRAM = """
import importlib.util, sys
import descend.torch
descend.torch.enable()
assert "torch._inductor" not in sys.modules and "sympy" not in sys.modules
importlib.util.find_spec("torch._inductor.config")  # somebody looks, and does not import it
if {disable}:
    descend.torch.disable()
import torch._inductor.config as config
assert (config.pre_grad_custom_pass is None) == {disable}, config.pre_grad_custom_pass
descend.torch.enable()
assert len(config.pre_grad_custom_pass) == 1
"""


@pytest.mark.parametrize("disable", [False, *extended(True)])
def test_inductor_is_imported_later(disable: bool):
    subprocess.run([sys.executable, "-c", PROGRAM.format(disable=disable)], check=True)
