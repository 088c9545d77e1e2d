"""torch.compile for device npu: numbers are those of the program that is not compiled."""

from __future__ import annotations

import copy
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
torch_npu = pytest.importorskip("torch_npu")

import torch.nn.functional as F  # noqa: E402
from torch import Tensor, nn  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

import forks  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")  # torchair warns of itself, Dynamo of what it does not trace

WAYS: dict[str, dict[str, Any]] = {
    "default": {},
    "reduce-overhead": {"mode": "reduce-overhead"},
    "options": {"options": {"max_autotune": True, "triton.cudagraphs": True}},
    "dvm": {"options": {"npu_backend": "dvm"}},
    "mlir": {"options": {"npu_backend": "mlir"}},
    "npu": {"backend": "npu"},
    "npugraph_ex": {"backend": "npugraph_ex"},
    "npugraphs": {"backend": "npugraphs"},
}


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    """Each test compiles anew."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    yield
    torch._dynamo.reset()


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16), nn.Dropout(0.1), nn.Linear(16, 4)).npu()


def losses(module: nn.Module, autocast: bool = False, compiled_step: bool = False) -> list[float]:
    """The losses of a few steps. Dropout draws the same numbers each time."""
    torch.manual_seed(1)
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-2)
    step = torch.compile(optimizer.step) if compiled_step else optimizer.step
    found = []
    for _ in range(3):
        x, y = torch.randn(8, 8).npu(), torch.randn(8, 4).npu()
        optimizer.zero_grad()
        with torch.autocast("npu", dtype=torch.bfloat16, enabled=autocast):
            loss = F.mse_loss(module(x), y)
        loss.backward()
        step()
        found.append(loss.item())
    return found


@pytest.mark.parametrize("way", WAYS)
def test_trainings_have_the_losses_of_eager(way):
    assert losses(torch.compile(model(), **WAYS[way])) == losses(model())


def test_autocast():
    assert losses(torch.compile(model(), fullgraph=True), autocast=True) == losses(model(), autocast=True)


def test_a_compiled_step_of_an_optimizer():
    assert losses(model(), compiled_step=True) == pytest.approx(losses(model()), rel=1e-5)


def test_recomputation_draws_the_same_dropout_again():
    def layer(x: Tensor, w: Tensor) -> Tensor:
        return F.dropout(x * w, 0.5)

    compiled = torch.compile(lambda x, w: checkpoint(layer, x, w, use_reentrant=False))
    masks = []
    for _ in range(3):
        x, w = (torch.ones(64).npu().requires_grad_() for _ in range(2))
        y = compiled(x, w)
        y.sum().backward()
        assert torch.equal(y, x.grad)
        masks.append(y.detach())
    assert not torch.equal(masks[0], masks[1])


def test_graphs_break_and_are_compiled_anew_as_elsewhere():
    from torch._dynamo.testing import CompileCounterWithBackend
    from torch._dynamo.utils import counters

    def halves(x: Tensor) -> Tensor:
        return x.cos() if x.sum() > 0 else x.sin()

    x = torch.ones(3).npu()
    assert torch.equal(torch.compile(halves)(x), halves(x))
    torch._dynamo.reset()
    with pytest.raises(torch._dynamo.exc.Unsupported):
        torch.compile(halves, fullgraph=True)(x)
    for dynamic, graphs in ((False, 3), (True, 1)):
        counters.clear()
        counter = CompileCounterWithBackend("inductor")
        compiled = torch.compile(lambda x: x + 1, dynamic=dynamic, backend=counter)
        for n in (2, 3, 4):
            assert torch.equal(compiled(torch.ones(n).npu()).cpu(), torch.full((n,), 2.0))
        assert counter.frame_count == graphs
    with pytest.raises(RuntimeError, match="Unexpected optimization option"):
        torch.compile(halves, options={"no such": 1})


@pytest.mark.parametrize("way", ["default", "npu"])
def test_operators_that_only_torch_npu_has(way):
    def block(x: Tensor, gamma: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        y = torch_npu.npu_rotary_mul(torch_npu.npu_rms_norm(x, gamma)[0], cos, sin)
        a = torch_npu.npu_fusion_attention(y, y, y, 2, "BNSD", scale=0.25)[0]
        return torch_npu.npu_swiglu(torch_npu.npu_add_rms_norm(a, x, gamma)[0])

    shapes = ((1, 2, 16, 16), (16,), (1, 1, 16, 16), (1, 1, 16, 16))
    inputs = [torch.randn(shape).npu().requires_grad_() for shape in shapes]
    found = []
    for each in (block, torch.compile(block, fullgraph=True, **WAYS[way])):
        y = each(*inputs)
        found.append((y, *torch.autograd.grad(y.sum(), inputs)))
    assert all(map(torch.equal, *found))


def test_operators_of_the_program():
    @torch.library.custom_op("descend_test::add_one", mutates_args=("x",), device_types="npu")
    def add_one(x: Tensor) -> None:
        x.add_(1)

    def f(x: Tensor) -> Tensor:
        y = x * 2
        add_one(y)
        return y * 3

    assert torch.compile(f, fullgraph=True)(torch.ones(2).npu()).tolist() == [9, 9]


def test_flex_attention():
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    mask = create_block_mask(lambda b, h, i, j: i >= j, 1, None, 128, 128, device="npu")
    given = [torch.randn(1, 2, 128, 16) for _ in range(3)]
    found = []
    for device in ("npu", "cpu"):
        q, k, v = (each.to(device).requires_grad_() for each in given)
        if device == "npu":
            y = torch.compile(flex_attention, fullgraph=True)(q, k, v, block_mask=mask)
        else:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        found.append([each.detach().cpu() for each in (y, *torch.autograd.grad(y.sum(), (q, k, v)))])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


class Cached(nn.Module):
    """A layer that writes to a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.cache: Tensor
        self.register_buffer("cache", torch.zeros(8, 4))

    def forward(self, x: Tensor, position: Tensor) -> Tensor:
        y = self.linear(x)
        self.cache[position] = y
        return self.cache.sum(0) + y * torch.tensor(2.0, device="npu")


@pytest.mark.parametrize("mode", ["max-autotune", "reduce-overhead"])
def test_torchair(mode):
    import torchair

    config = torchair.CompilerConfig()
    config.mode = mode
    module = Cached().npu()
    compiled = copy.deepcopy(module)
    x, position = torch.randn(3, 4).npu(), torch.tensor([0, 2, 5]).npu()
    with torch.no_grad():
        y = torch.compile(compiled, backend=torchair.get_npu_backend(compiler_config=config), fullgraph=True)(
            x, position
        )
        assert torch.equal(y, module(x, position))
    assert torch.equal(compiled.cache, module.cache)


def test_torchairs_passes_of_the_program():
    import torchair

    def subtract(graph: Any, _inputs: Any, _config: Any) -> None:
        for node in graph.graph.nodes:
            if node.target is torch.ops.aten.add.Tensor:
                node.target = torch.ops.aten.sub.Tensor

    config = torchair.CompilerConfig()
    config.post_grad_custom_post_pass = subtract
    compiled = torch.compile(lambda x: x + 1, backend=torchair.get_npu_backend(compiler_config=config))
    assert compiled(torch.ones(2).npu()).tolist() == [0, 0]


def test_torchairs_cache(tmp_path):
    import torchair

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)
            self.cached = torchair.inference.cache_compile(self.compute, cache_dir=str(tmp_path))

        def compute(self, x: Tensor) -> Tensor:
            return self.linear(x).relu()

    x = torch.randn(3, 4).npu()
    for graphs in (1, 0):  # the second finds what the first has left
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()
        layer = Layer().npu()
        assert torch.equal(layer.cached(x), layer.linear(x).relu())
        assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == graphs
    assert list(tmp_path.rglob("compiled_module"))


@pytest.mark.parametrize("names", [(), ("example_inputs_",), ("model_", "example_inputs_")], ids=str)
def test_backends_of_the_program_that_call_inductors(names):
    """By place, and by name."""
    from torch._inductor import compile_fx

    def backend(graph: Any, inputs: Any) -> Any:
        given = [graph, inputs]
        return compile_fx.compile_fx(*given[: 2 - len(names)], **dict(zip(names, given[2 - len(names) :], strict=True)))

    x = torch.randn(3).npu()
    assert torch.equal(torch.compile(lambda x: x.sin() + 1, backend=backend)(x), x.sin() + 1)


def test_what_is_not_served_says_so(tmp_path):
    import torchair

    module, x = nn.Linear(4, 4).npu(), torch.ones(2, 4).npu()
    with pytest.raises(Exception, match="torchair exports graphs of CANN's graph engine, which is not here"):
        torchair.dynamo_export(x, model=module, export_path=str(tmp_path))
    config = torchair.CompilerConfig()
    config.debug.graph_dump.type = "pbtxt"
    with pytest.warns(UserWarning, match="there will be no file"):
        torch.compile(module, backend=torchair.get_npu_backend(compiler_config=config))(x)
    program = torch.export.export(module, (x,))
    with pytest.raises(NotImplementedError, match="AOTInductor writes code for the processor, which is not here"):
        torch._inductor.aoti_compile_and_package(program, package_path=str(tmp_path / "model.pt2"))


def test_graphs_of_the_cpu_stay_inductors():
    """A product of matrices needs no C++ compiler."""
    from torch._dynamo.utils import counters

    compiled, x = torch.compile(torch.mm), torch.ones(2, 2)
    for given, graphs in ((x.npu(), 0), (x, 1)):
        counters.clear()
        assert compiled(given, given).tolist() == [[2, 2], [2, 2]]
        assert sum(counters["inductor"][f"fxgraph_cache_{found}"] for found in ("hit", "miss")) == graphs
    assert "torch_npu._inductor" not in sys.modules


def test_importing_torch_npu_imports_no_compiler():
    code = """
import sys, torch, torch_npu
compilers = "torch._inductor.compile_fx", "torchair.npu_fx_compiler", "npugraph_ex.npu_fx_compiler"
print([name for name in compilers if name in sys.modules])
"""
    assert forks.run(code, check=True, folder=Path.cwd()).stdout.strip() == "[]"
