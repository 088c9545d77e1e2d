"""descend.torch.patch on gated MLPs, and on modules that add before a norm: what is swapped, and what stays."""

from __future__ import annotations

import copy
import functools
import inspect
import pickle
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import Tensor, nn  # noqa: E402
from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402
from torch.nn import functional  # noqa: E402

import descend.torch as dt  # noqa: E402
from descend.torch import forms, mlps  # noqa: E402
from torch_cases import Foreign, draw  # noqa: E402
from torch_norms import GemmaNorm, LlamaNorm, OlmoNorm, T5Norm  # noqa: E402

pytestmark = pytest.mark.usefixtures("on_device")

SIZE, INNER = 16, 40


# --- gated MLPs as model code writes them --------------------------------------------------------------------------


class LlamaMlp(nn.Module):
    def __init__(self, activation: nn.Module | None = None) -> None:
        super().__init__()
        self.config = {"hidden_act": "silu"}
        self.gate_proj, self.up_proj = (nn.Linear(SIZE, INNER, bias=False) for _ in range(2))
        self.down_proj = nn.Linear(INNER, SIZE)
        self.act_fn = activation or nn.SiLU()

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))


class FunctionMlp(LlamaMlp):
    """Calls a function, and the other map first."""

    def __init__(self) -> None:
        super().__init__()
        del self.act_fn

    def forward(self, hidden_states: Tensor) -> Tensor:
        return self.down_proj(self.up_proj(hidden_states) * functional.silu(self.gate_proj(hidden_states)))


class Expert(nn.Module):
    """Mixtral's names, whose order is not that of the calls."""

    def __init__(self) -> None:
        super().__init__()
        self.w1, self.w2, self.w3 = nn.Linear(SIZE, INNER), nn.Linear(INNER, SIZE), nn.Linear(SIZE, INNER)
        self.act = functional.silu

    def forward(self, x: Tensor) -> Tensor:
        return self.w2(self.act(self.w1(x)) * self.w3(x))


class Halves(nn.Module):
    """Phi 3's."""

    def __init__(self) -> None:
        super().__init__()
        self.gate_up, self.down = nn.Linear(SIZE, 2 * INNER), nn.Linear(INNER, 2 * SIZE)
        self.activation = nn.SiLU()

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.gate_up(x).chunk(2, dim=-1)
        return self.down(up * self.activation(gate))


class WrittenOut(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return functional.silu(x)


SWAPPED: dict[str, Callable[[], nn.Module]] = {
    "Llama": LlamaMlp,
    "activation of another class": lambda: LlamaMlp(WrittenOut()),
    "in place": lambda: LlamaMlp(nn.SiLU(inplace=True)),
    "function": FunctionMlp,
    "expert": Expert,
    "halves": Halves,
}


def pair(make: Callable[[], nn.Module], dtype: torch.dtype = torch.float32) -> tuple[nn.Module, nn.Module]:
    """The patched module, and the original."""
    torch.manual_seed(0)
    theirs = make().to(dtype)
    ours = copy.deepcopy(theirs)
    assert dt.patch(ours).swapped
    return ours, theirs


def given(dtype: torch.dtype = torch.float32) -> Tensor:
    return (draw((3, 7, SIZE), 1) * 3).to(dtype).requires_grad_()


def run(module: nn.Module, x: Tensor) -> list[Tensor]:
    y = module(x)
    return [y.detach(), *torch.autograd.grad(y, [x, *module.parameters()], draw(y.shape, 3).to(y.dtype))]


@pytest.mark.parametrize("name", SWAPPED)
def test_mlps_that_are_swapped(name):
    module = SWAPPED[name]()
    kind = type(module)
    report = dt.patch(module)
    assert (report.swapped, report.left) == ({"": f"{kind.__name__} -> swi_glu"}, {})
    assert isinstance(module, kind)
    assert dt.patch(module).left == {"": f"{kind.__name__}: swapped before"}
    assert dt.unpatch(module) == [""]
    assert type(module) is kind


@pytest.mark.parametrize("name", SWAPPED)
def test_results_and_gradients_of_mlps(name):
    """To the precision of the dtype, and in 16 bits no further from float64 than the class's."""
    for dtype, unit in ((torch.float64, 1e-13), (torch.float32, 1e-5)):
        for one, other in zip(*(run(m, given(dtype)) for m in pair(SWAPPED[name], dtype)), strict=True):
            assert one.dtype is other.dtype
            torch.testing.assert_close(one, other, rtol=0, atol=unit * other.abs().max().item())
    for dtype in (torch.bfloat16, torch.float16):
        ours, theirs = pair(SWAPPED[name], dtype)
        golden = run(copy.deepcopy(theirs).double(), given(dtype).detach().double().requires_grad_())
        for one, other, exact in zip(run(ours, given(dtype)), run(theirs, given(dtype)), golden, strict=True):
            assert (one.double() - exact).norm() <= 1.3 * (other.double() - exact).norm()


def test_second_derivatives_of_mlps():
    for make in (LlamaMlp, Halves):
        ours, _ = pair(make, torch.float64)
        torch.autograd.gradgradcheck(ours, [given(torch.float64)[:1, :2].detach().requires_grad_()], fast_mode=True)


@pytest.mark.parametrize("name", SWAPPED)
def test_mlps_that_are_compiled_copied_and_undone(name):
    ours, theirs = pair(SWAPPED[name])
    expected = run(ours, given())
    again: list[Any] = [torch.compile(ours, fullgraph=True, backend="aot_eager"), copy.deepcopy(ours)]
    for other in (*again, *([] if name == "expert" else [pickle.loads(pickle.dumps(ours))])):
        for one, wanted in zip(run(other, given()), expected, strict=True):
            torch.testing.assert_close(one, wanted)
    kept = ours.forward
    assert dt.unpatch(ours) == [""]
    for call in (ours, kept):
        assert torch.equal(call(given()), theirs(given()))


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore::DeprecationWarning")
@pytest.mark.parametrize("name", SWAPPED)
def test_traced_mlps(name):
    """By torch.jit.trace, and by torch.fx, which sees what the class itself computes."""
    ours, _ = pair(SWAPPED[name])
    x = given().detach()
    for traced in (nn.Sequential(ours), ours):
        torch.testing.assert_close(torch.fx.symbolic_trace(traced)(x), traced(x))
        assert torch.equal(torch.jit.trace(traced, x)(2 * x), traced(2 * x))


def test_mlps_of_fake_tensors():
    """The probes have numbers, whatever the tensors of the model are."""
    with FakeTensorMode():
        module = LlamaMlp()
        assert dt.patch(module).swapped
        assert module(torch.empty(3, SIZE)).shape == (3, SIZE)


def outcome(module: nn.Module, *args: Any, **named: Any) -> Any:
    try:
        return module(*args, **named).tolist()
    except Exception as error:
        return repr(error).replace("Descend", "")


def test_mlps_leave_to_the_class_what_the_operator_does_not_take():
    ours, theirs = pair(LlamaMlp)
    x = given().detach()
    calls: list[tuple[Any, ...]] = [(), (x, x), (x.tolist(),), (x.long(),), (x.to(torch.complex64),), (x[..., :3],)]
    for call in calls:
        assert outcome(ours, *call) == outcome(theirs, *call), call
    assert torch.equal(ours(x=x), ours(x))
    assert outcome(ours, y=x) == outcome(theirs, y=x)
    one, other = (m(x.as_subclass(Foreign)) for m in (ours, theirs))
    assert type(one) is type(other) is Foreign
    assert torch.equal(one.as_subclass(Tensor), other.as_subclass(Tensor))
    deep = x.reshape(1, 1, 1, 1, 1, 3, 7, SIZE)  # two such, stacked, are of rank 9
    assert torch.equal(ours(deep), theirs(deep))


def test_two_maps_are_gated_by_the_operator_only_where_there_will_be_gradients():
    ours, theirs = pair(LlamaMlp, torch.bfloat16)
    x = given(torch.bfloat16).detach()
    with torch.no_grad():
        assert torch.equal(ours(x), theirs(x))
    assert not torch.equal(ours(x), theirs(x))


def test_maps_and_activations_that_are_watched_or_changed_later():
    seen: list[str] = []
    for make in (LlamaMlp, Halves):
        ours, theirs = pair(make)
        x = given().detach()
        first, *_, activation = ours.children()
        seen.clear()
        first.register_forward_hook(lambda *_: seen.append("map"))
        torch.testing.assert_close(ours(x), theirs(x))
        handle = activation.register_forward_hook(lambda *_: seen.append("activation"))
        assert torch.equal(ours(x), theirs(x))
        assert seen == ["map", "map", "activation"]
        handle.remove()
        for module in (ours, theirs):
            module.register_module([n for n, _ in module.named_children()][-1], nn.GELU())
        assert torch.equal(ours(x), theirs(x))
    ours, theirs = pair(LlamaMlp)
    for module in (ours, theirs):  # an adapter in the place of a map
        module.up_proj = nn.Sequential(module.up_proj, nn.Tanh())
    torch.testing.assert_close(ours(x), theirs(x))


class RoundedOnceMlp(LlamaMlp):
    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.gate_proj(x), self.up_proj(x)
        return self.down_proj((functional.silu(gate.float()) * up.float()).to(x.dtype))


class ClampedMlp(LlamaMlp):
    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(self.act_fn(self.gate_proj(x).clamp(max=1e5)) * self.up_proj(x))


class DetachedMlp(LlamaMlp):
    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x).detach())


class SwappedHalves(Halves):
    def forward(self, x: Tensor) -> Tensor:
        up, gate = self.gate_up(x).chunk(2, dim=-1)
        return self.down(up * self.activation(gate))


class EvenOnlyMlp(LlamaMlp):
    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x) * (1 if self.training else 2))


class AutocastMlp(LlamaMlp):
    @torch.autocast("cpu", dtype=torch.bfloat16)
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x)


class ConstantMlp(LlamaMlp):
    @torch.no_grad()
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x)


class CheckpointedMlp(LlamaMlp):
    def forward(self, x: Tensor) -> Tensor:
        return torch.utils.checkpoint.checkpoint(super().forward, x, use_reentrant=False)


class DropoutMlp(LlamaMlp):
    """A rate that is zero until someone sets it."""

    def __init__(self) -> None:
        super().__init__()
        self.act_fn = nn.Dropout(0.0)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(self.act_fn(functional.silu(self.gate_proj(x)) * self.up_proj(x)))


def having(change: Callable[[Any], Any]) -> nn.Module:
    module = LlamaMlp()
    change(module)
    return module


OTHER = "it does not multiply silu of one map by another"
LEFT: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "GELU": (lambda: LlamaMlp(nn.GELU()), OTHER),
    "tanh's GELU": (lambda: LlamaMlp(nn.GELU("tanh")), OTHER),
    **{k.__name__: (k, OTHER) for k in (RoundedOnceMlp, ClampedMlp, DetachedMlp, SwappedHalves, EvenOnlyMlp)},
    **{k.__name__: (k, OTHER) for k in (AutocastMlp, ConstantMlp, CheckpointedMlp)},
    "dropout": (DropoutMlp, "it has a number whose part is unknown: p"),
    "own number": (
        lambda: having(lambda m: setattr(m, "rate", 0.0)),
        "it has a number whose part is unknown: rate",
    ),
    "hook": (lambda: having(lambda m: m.register_forward_hook(print)), "it has hooks"),
    "own forward": (
        lambda: having(lambda m: setattr(m, "forward", print)),
        "its forward was replaced on the instance",
    ),
}


@pytest.mark.parametrize("name", LEFT)
def test_mlps_that_are_left_alone_and_why(name):
    make, reason = LEFT[name]
    module = make()
    kind = type(module)
    assert dt.patch(module).left == {"": f"{kind.__name__}: {reason}"}
    assert type(module) is kind


class ResidualMlp(LlamaMlp):
    def forward(self, x: Tensor) -> Tensor:
        return x + super().forward(x)


class WeighedMlp(LlamaMlp):
    """Asks a map for its weight."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.to(self.down_proj.weight.dtype))


class Attention(nn.Module):
    """Three maps of one size, but no MLP."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(SIZE, SIZE) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        return functional.scaled_dot_product_attention(self.q(x), self.k(x), self.v(x))


class ScaledMlp(LlamaMlp):
    """A parameter, which begins as one."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x) * self.scale)


class MaskedMlp(LlamaMlp):
    """A buffer, likewise."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mask", torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x) * self.mask)


class CountingMlp(LlamaMlp):
    count = 0

    def forward(self, x: Tensor) -> Tensor:
        self.count += 1
        return super().forward(x)


class RecordingMlp(LlamaMlp):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Any] = []

    def forward(self, x: Tensor) -> Tensor:
        self.seen.append(x.shape)
        return super().forward(x)


class WideMlp(LlamaMlp):
    """Switches autocast off."""

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", enabled=False):
            return super().forward(x)


OTHERS = (ResidualMlp, WeighedMlp, Attention, ScaledMlp, MaskedMlp, CountingMlp, RecordingMlp, WideMlp)


@pytest.mark.parametrize("kind", OTHERS)
def test_what_is_no_gated_mlp_is_not_in_the_report(kind):
    module = kind()
    report = dt.patch(module)
    assert (report.swapped, report.left) == ({}, {})
    assert type(module) is kind
    assert not getattr(module, "seen", [])


# --- sums before norms ---------------------------------------------------------------------------------------------


class Mixer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(SIZE, SIZE)

    def forward(self, hidden_states: Tensor, mask: Tensor | None = None) -> tuple[Tensor, None]:
        return self.linear(hidden_states) if mask is None else self.linear(hidden_states) * mask, None


class LlamaBlock(nn.Module):
    def __init__(self, norm: Callable[[], nn.Module] = LlamaNorm) -> None:
        super().__init__()
        self.input_norm, self.post_norm = norm(), norm()
        self.attention, self.mlp = Mixer(), LlamaMlp()
        self.calls: list[Any] = []

    def forward(self, hidden_states: Tensor, scale: float = 1.0, *, twice: bool = False, **named: Any) -> Tensor:
        """The block of Llama, and some ado of its own."""
        self.calls.append((scale, twice))
        residual = hidden_states
        hidden_states = self.input_norm(hidden_states)
        hidden_states, _ = self.attention(hidden_states=hidden_states, **named)
        hidden_states = residual + hidden_states
        # A comment, as between the two halves of a block.
        residual = hidden_states
        hidden_states = self.post_norm(hidden_states)
        for _ in range(2 if twice else 1):
            hidden_states = scale * self.mlp(hidden_states)
        hidden_states = residual + hidden_states
        return hidden_states


class ShortBlock(LlamaBlock):
    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            x = x + self.attention(self.input_norm(x))[0]
            return x + self.mlp(self.post_norm(x))
        return super(ShortBlock, self).forward(x)  # noqa: UP008


class SuperBlock(LlamaBlock):
    def forward(self, x: Tensor) -> Tensor:
        x = x + super().forward(x)
        return self.input_norm(x) + sum(y.mean() for y in (x, 2 * x))


class ImportingBlock(LlamaBlock):
    """Calls what the file imports, which Python compiles unlike methods."""

    def forward(self, x: Tensor) -> Tensor:
        with torch.enable_grad():
            x = x + torch.tanh(functional.relu(self.mlp(x)))
            return self.attention.linear(self.input_norm(self.post_norm(x)))


def plain(function: Callable[..., Any]) -> Callable[..., Any]:
    return function


def times(factor: float) -> Callable[..., Any]:
    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def wrapper(*args: Any, **named: Any) -> Any:
            return factor * function(*args, **named)

        return wrapper

    return decorate


class DecoratedBlock(LlamaBlock):
    @times(2)
    @plain
    @times(factor=3)
    def forward(
        self,
        x: Tensor,
    ) -> Tensor:
        """With decorators, as in some releases of transformers."""
        x = x + self.attention(self.input_norm(x))[0]
        return self.mlp(self.post_norm(x))


class PostBlock(LlamaBlock):
    """Gives sums to norms at once, one of them within the other."""

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            return self.input_norm(x + self.mlp(self.post_norm(x + self.attention(x)[0]))) * 2
        return x


BLOCKS: dict[str, tuple[Callable[[], nn.Module], str, int]] = {
    "Llama's norm": (LlamaBlock, "LlamaBlock -> add_rms_norm at post_norm", 1),
    "OLMo's": (lambda: LlamaBlock(OlmoNorm), "LlamaBlock -> add_rms_norm at post_norm", 1),
    "Gemma's": (lambda: LlamaBlock(GemmaNorm), "LlamaBlock -> add_rms_norm at post_norm", 1),
    "PyTorch's": (lambda: LlamaBlock(lambda: nn.RMSNorm(SIZE)), "LlamaBlock -> add_rms_norm at post_norm", 1),
    "short": (ShortBlock, "ShortBlock -> add_rms_norm at post_norm", 1),
    "decorated": (DecoratedBlock, "DecoratedBlock -> add_rms_norm at post_norm", 1),
    "importing": (ImportingBlock, "ImportingBlock -> add_rms_norm at post_norm", 1),
    "super": (SuperBlock, "SuperBlock -> add_rms_norm at input_norm", 1),
    "at once": (PostBlock, "PostBlock -> add_rms_norm at input_norm and post_norm", 2),
    "layer norm": (lambda: LlamaBlock(lambda: nn.LayerNorm(SIZE)), "LlamaBlock -> add_layer_norm at post_norm", 1),
    "without weights": (
        lambda: PostBlock(lambda: nn.LayerNorm(SIZE, elementwise_affine=False)),
        "PostBlock -> add_layer_norm at input_norm and post_norm",
        2,
    ),
    "layer norm without bias": (
        lambda: ShortBlock(lambda: nn.LayerNorm(SIZE, bias=False)),
        "ShortBlock -> add_layer_norm at post_norm",
        1,
    ),
}


@pytest.fixture
def sums(monkeypatch):
    """The calls of operators that add and normalise, by norms."""
    calls: list[tuple[int, ...]] = []

    def counted(operator: Callable[..., Any], one: Tensor, *rest: Any) -> Any:
        calls.append(tuple(one.shape))
        return operator(one, *rest)

    for name in ("add_rms_norm", "add_layer_norm"):
        monkeypatch.setattr(forms, name, functools.partial(counted, getattr(forms, name)))
    return calls


@pytest.mark.parametrize("name", BLOCKS)
def test_sums_before_norms(name, sums):
    make, text, count = BLOCKS[name]
    for dtype, unit in ((torch.float64, 1e-6), (torch.float32, 1e-5)):  # float64 is float32 within the classes of norms
        ours, theirs = pair(make, dtype)
        assert [t for t in dt.patch(copy.deepcopy(theirs)).swapped.values() if "Block" in t] == [text]
        sums.clear()
        y = run(ours, given(dtype))
        assert len(sums) == count
        for one, other in zip(y, run(theirs, given(dtype)), strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=20 * unit * other.abs().max().item())
    ours, theirs = pair(make, torch.bfloat16)
    wide = copy.deepcopy(theirs).double()
    golden = run(wide, given(torch.bfloat16).detach().double().requires_grad_())
    for one, other, exact in zip(*(run(m, given(torch.bfloat16)) for m in (ours, theirs)), golden, strict=True):
        assert (one.double() - exact).norm() <= 2 * (other.double() - exact).norm()


def test_all_else_of_a_forward_stays(sums):
    ours, theirs = pair(LlamaBlock)
    x, mask = given().detach(), draw((SIZE,), 5)
    for block in (ours, theirs):
        block.calls.clear()
    for call in ({}, {"scale": 0.5}, {"twice": True, "mask": mask}):
        torch.testing.assert_close(ours(x, **call), theirs(x, **call))
    assert ours.calls == theirs.calls == [(1.0, False), (0.5, False), (1.0, True)]
    assert len(sums) == 3
    assert outcome(ours, x, other=1) == outcome(theirs, x, other=1)
    kinds = type(ours), type(theirs)
    assert len({inspect.signature(kind.forward) for kind in kinds}) == 1
    assert len({(k.forward.__code__.co_firstlineno, k.forward.__doc__, k.forward.__qualname__) for k in kinds}) == 1
    assert dt.unpatch(ours) == ["", "input_norm", "post_norm", "mlp"]
    assert type(ours) is LlamaBlock


def test_norms_of_sums_that_are_watched_or_changed_later(sums):
    ours, theirs = pair(LlamaBlock)
    x, seen = given().detach(), []
    handle = ours.post_norm.register_forward_hook(lambda *_: seen.append(1))
    torch.testing.assert_close(ours(x), theirs(x))
    assert (seen, sums) == ([1], [])
    handle.remove()
    for block in (ours, theirs):
        block.post_norm = nn.Identity()
    torch.testing.assert_close(ours(x), theirs(x))
    ours, theirs = pair(LlamaBlock)
    for change in (lambda x, y: (x, y[:, :1]), lambda x, y: (x, y.bfloat16())):  # what broadcasts, and what promotes
        for block in (ours, theirs):
            block.attention.forward = lambda hidden_states, change=change: change(None, hidden_states)[::-1]
        torch.testing.assert_close(ours(x), theirs(x))
    assert sums == []
    one, other = (block(x.as_subclass(Foreign)) for block in pair(LlamaBlock))
    torch.testing.assert_close(one.as_subclass(Tensor), other.as_subclass(Tensor))
    assert sums == []


@pytest.mark.parametrize("name", BLOCKS)
def test_blocks_that_are_compiled_copied_and_undone(name):
    ours, theirs = pair(BLOCKS[name][0])
    for block in (ours, theirs):
        block.calls = [None]
    expected = run(ours, given())
    for other in (copy.deepcopy(ours), *([] if name == "PyTorch's" else [pickle.loads(pickle.dumps(ours))])):
        assert type(other) is type(ours)
        for one, wanted in zip(run(other, given()), expected, strict=True):
            assert torch.equal(one, wanted)
    for one, wanted in zip(run(torch.compile(ours, backend="aot_eager"), given()), expected, strict=True):
        torch.testing.assert_close(one, wanted)
    kept = ours.forward
    dt.unpatch(ours)
    for call in (ours, kept):
        assert torch.equal(call(given()), theirs(given()))


class BusyBlock(LlamaBlock):
    """Something is called between the sum and the norm, or the norm is not always called."""

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(x)[0]
        x = self.mlp(x) + self.post_norm(x)
        x = x + 1
        y = self.post_norm(x) if self.training else x
        y = x + y
        x = 2 * y
        y = self.input_norm(x)
        y += x
        return self.input_norm(y)


class LongBlock(LlamaBlock):
    """The norm of a sum gets more, and another module's norm."""

    def forward(self, x: Tensor) -> Tensor:
        x = x - self.attention(x)[0]
        x = self.post_norm(x)
        x = x + x
        x = self.post_norm.forward(x)
        x = x + x
        return self.mlp.act_fn(self.post_norm(hidden_states=x))


class HidingBlock(LlamaBlock):
    """Sums that other functions give to the norm, and sums with more."""

    def forward(self, x: Tensor) -> Tensor:
        late = lambda: self.post_norm(x + x)  # noqa: E731
        x = late() + sum(self.post_norm(y + y) for y in (x,))
        x = self.mlp(x + x)
        return self.post_norm(hidden_states=x + x)


class TryingBlock(LlamaBlock):
    """Where the norm fails, the handler sees the sum."""

    def forward(self, x: Tensor) -> Tensor:
        try:
            x = x + self.attention(x)[0]
            return self.post_norm(x)
        except RuntimeError:
            return x


@pytest.mark.parametrize(
    "kind", [BusyBlock, LongBlock, HidingBlock, TryingBlock, functools.partial(LlamaBlock, T5Norm)]
)
def test_sums_that_are_left_to_the_forward(kind, sums):
    module = kind()
    name = type(module).__name__
    report = dt.patch(module)
    assert list(report.swapped) == ["input_norm", "post_norm", "mlp"]
    assert not report.left
    assert type(module).__name__ == name
    module(given())
    assert sums == []


def hidden(function: Callable[..., Any]) -> Callable[..., Any]:
    held = [function]
    return functools.wraps(function)(lambda *args: held[0](*args))


class HiddenBlock(LlamaBlock):
    @hidden
    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(x)[0]
        return self.post_norm(x)


class CompiledBlock(LlamaBlock):
    @torch.compile(backend="eager")
    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(x)[0]
        return self.post_norm(x)


class LocalsBlock(LlamaBlock):
    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(x)[0]
        return self.post_norm(x) * len(locals())


class ChangedBlock(LlamaBlock):
    """What runs is not what its source says."""

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(x)[0]
        return self.post_norm(x)

    forward.__code__ = forward.__code__.replace(co_consts=(*forward.__code__.co_consts[:1], 2, 1))


namespace: dict[str, Any] = {"LlamaBlock": LlamaBlock}
exec("class SourcelessBlock(LlamaBlock):\n    def forward(self, x): return self.post_norm(x + x)\n", namespace)

REFUSED: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "decorator": (HiddenBlock, "it adds before a norm, but its forward has a decorator that hides what it calls"),
    "compiled": (CompiledBlock, "it adds before a norm, but its forward has a decorator that hides what it calls"),
    "locals": (LocalsBlock, "it adds before a norm, but its forward asks for its local variables"),
    "other code": (ChangedBlock, "it adds before a norm, but its forward is not what its source says"),
    "no source": (
        namespace["SourcelessBlock"],
        "whether it adds before a norm is not known: its forward has no source",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_sums_that_are_left_alone_and_why(name):
    make, reason = REFUSED[name]
    module = make()
    kind = type(module)
    assert dt.patch(module).left == {"": f"{kind.__name__}: {reason}"}
    assert type(module) is kind


def test_a_class_that_was_given_another_forward_since():
    """What others put into a class between two calls of patch is what the second model computes."""

    class Block(LlamaBlock):
        pass

    pair(Block)

    def forward(self: Any, x: Tensor) -> Tensor:
        x = x + 100 * self.attention(x)[0]
        return self.post_norm(x)

    Block.forward = forward
    ours, theirs = pair(Block)
    assert "Block -> add_rms_norm at post_norm" in dt.patch(copy.deepcopy(theirs)).swapped.values()
    torch.testing.assert_close(ours(given()), theirs(given()))


def test_probes_leave_no_trace():
    """Random numbers go on as if nothing had been run, and a module's attributes are its own."""
    torch.manual_seed(0)
    expected = torch.rand(3)
    module = LlamaBlock()
    torch.manual_seed(0)
    dt.patch(module)
    assert torch.equal(torch.rand(3), expected)
    assert module.calls == []
    assert not any(isinstance(m, mlps._Stand) for m in module.modules())
