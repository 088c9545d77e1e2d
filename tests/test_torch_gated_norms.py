"""descend.torch.patch on RMS norms that a second input gates: what is swapped, and that nothing else changes."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import Tensor, nn  # noqa: E402

import descend.torch as dt  # noqa: E402
from torch_cases import Foreign, draw  # noqa: E402

pytestmark = pytest.mark.usefixtures("on_device")
DTYPES = (torch.float32, torch.bfloat16, torch.float16)


# --- norms as model code writes them, but that float64 stays what it is ---------------------------------------------


def wide(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))


class Gated(nn.Module):
    """The common part of the classes below."""

    def __init__(self, size: int = 24, activation: str = "silu") -> None:
        super().__init__()
        self.weight = nn.Parameter(draw((size,), size))
        self.variance_epsilon = 1e-5
        self.activation = activation

    def xhat(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)

    def act(self, gate: Tensor) -> Tensor:
        return wide(gate).sigmoid() if self.activation == "sigmoid" else nn.functional.silu(wide(gate))


class NextNorm(Gated):
    """Qwen3-Next's."""

    def forward(self, hidden_states: Tensor, gate: Tensor) -> Tensor:
        y = self.weight * self.xhat(wide(hidden_states)).to(hidden_states.dtype)
        return (y * self.act(gate)).to(hidden_states.dtype)


class OnceNorm(Gated):
    """LaraMini's and, with a sigmoid, Kimi's."""

    def forward(self, hidden_states: Tensor, gate: Tensor | None = None) -> Tensor:
        y = wide(self.weight) * self.xhat(wide(hidden_states))
        return (y * self.act(gate)).to(hidden_states.dtype)


class MambaNorm(Gated):
    """Mamba 2's, in groups."""

    def __init__(self, size: int = 24, group_size: int = 24) -> None:
        super().__init__(size)
        self.group_size = group_size

    def forward(self, hidden_states: Tensor, gate: Tensor | None = None) -> Tensor:
        x = wide(hidden_states)
        if gate is not None:
            x = x * self.act(gate)
        xhat = self.xhat(x.unflatten(-1, (-1, self.group_size))).flatten(-2)
        return self.weight * xhat.to(hidden_states.dtype)


class ScaledMambaNorm(nn.Module):
    """Rounded once; with a scale, and the number of groups."""

    def __init__(self, size: int = 24, n_groups: int = 3) -> None:
        super().__init__()
        self.scale = nn.Parameter(draw((size,), size))
        self.eps, self.n_groups = 1e-5, n_groups

    def forward(self, x: Tensor, z: Tensor) -> Tensor:
        rows = (wide(x) * nn.functional.silu(wide(z))).unflatten(-1, (self.n_groups, -1))
        xhat = rows * torch.rsqrt(rows.pow(2).mean(-1, keepdim=True) + self.eps)
        return (wide(self.scale) * xhat.flatten(-2)).to(x.dtype)


SWAPPED: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "Qwen3-Next": (NextNorm, "NextNorm -> rms_norm, rounded before the weight, times silu of the gate"),
    "once": (OnceNorm, "OnceNorm -> rms_norm times silu of the gate"),
    "sigmoid": (lambda: OnceNorm(24, "sigmoid"), "OnceNorm -> rms_norm times sigmoid of the gate"),
    "Mamba 2": (MambaNorm, "MambaNorm -> rms_norm of the input times silu of the gate, rounded before the weight"),
    "Mamba 2, groups": (
        lambda: MambaNorm(24, 8),
        "MambaNorm -> rms_norm of the input times silu of the gate, rounded before the weight",
    ),
    "scale": (lambda: ScaledMambaNorm(24, 1), "ScaledMambaNorm -> rms_norm of the input times silu of the gate"),
    "scale, groups": (ScaledMambaNorm, "ScaledMambaNorm -> rms_norm of the input times silu of the gate"),
}


def pair(name: str, dtype: torch.dtype = torch.float32) -> tuple[nn.Module, nn.Module]:
    """The patched module, and the original."""
    make, text = SWAPPED[name]
    theirs = make().to(dtype)
    ours = copy.deepcopy(theirs)
    report = dt.patch(ours)
    assert (report.swapped, report.left) == ({"": text}, {})
    return ours, theirs


def inputs(dtype: torch.dtype) -> list[Tensor]:
    return [(draw((5, 7, 24), seed) * 3).to(dtype).requires_grad_() for seed in (1, 2)]


def run(module: nn.Module, tensors: list[Tensor]) -> list[Tensor]:
    y = module(*tensors)
    given = draw(y.shape, 3).to(y.dtype)
    return [y.detach(), *torch.autograd.grad(y, [*tensors, *module.parameters()], given)]


# --- what is swapped -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SWAPPED)
def test_results_and_gradients_are_the_class_s(name):
    """To float64's precision in float64, to float32's in float32."""
    for dtype, unit in ((torch.float64, 1e-13), (torch.float32, 1e-5)):
        ours, theirs = pair(name, dtype)
        for one, other in zip(run(ours, inputs(dtype)), run(theirs, inputs(dtype)), strict=True):
            assert one.dtype is other.dtype
            torch.testing.assert_close(one, other, rtol=0, atol=unit * other.abs().max().item())


@pytest.mark.parametrize("name", SWAPPED)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_gradients_are_no_further_from_float64s(name, dtype):
    ours, theirs = pair(name, dtype)
    golden = run(copy.deepcopy(theirs).double(), [x.detach().double().requires_grad_() for x in inputs(dtype)])
    for one, other, exact in zip(run(ours, inputs(dtype)), run(theirs, inputs(dtype)), golden, strict=True):
        rounding = torch.finfo(dtype).eps * exact.norm()
        assert (one.double() - exact).norm() <= 1.05 * (other.double() - exact).norm() + 0.05 * rounding


@pytest.mark.parametrize("name", SWAPPED)
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_class_s_rounding_is_kept(name, dtype):
    """Input, gate and weight in each mixture of dtypes: nearly everywhere the same number, else the next."""
    for held in DTYPES:
        for gate_dtype in {dtype, torch.float32}:
            ours, theirs = pair(name, held)
            x, gate = inputs(dtype)[0], inputs(gate_dtype)[1]
            a, b = ours(x, gate), theirs(x, gate)
            assert a.dtype is b.dtype
            apart = (a.double() - b.double()).abs() > 1e-5 * b.double().abs()
            assert apart.double().mean() < 0.01
            unit = max(torch.finfo(d).eps for d in (dtype, held))
            torch.testing.assert_close(a.double(), b.double(), rtol=2 * unit, atol=1e-5)


@pytest.mark.parametrize("name", SWAPPED)
def test_second_derivatives(name):
    ours, _ = pair(name, torch.float64)
    torch.autograd.gradgradcheck(ours, [x[:2, :2].detach().requires_grad_() for x in inputs(torch.float64)])


@pytest.mark.parametrize("name", SWAPPED)
def test_compiled_copied_and_undone(name):
    ours, theirs = pair(name)
    expected = run(ours, inputs(torch.float32))
    again: list[Any] = [torch.compile(ours, fullgraph=True, backend="aot_eager"), copy.deepcopy(ours)]
    for other in (*again, pickle.loads(pickle.dumps(ours))):
        for one, wanted in zip(run(other, inputs(torch.float32)), expected, strict=True):
            torch.testing.assert_close(one, wanted)
    assert dt.unpatch(ours) == [""]
    assert type(ours) is type(theirs)
    assert all(map(torch.equal, run(ours, inputs(torch.float32)), run(theirs, inputs(torch.float32))))


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore::DeprecationWarning")
@pytest.mark.parametrize("name", SWAPPED)
def test_traced(name):
    """By torch.jit.trace, and by torch.fx, which sees what the class itself computes."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = pair(name)[0]

        def forward(self, x: Tensor, gate: Tensor) -> Tensor:
            return self.norm(x, gate)

    model, given = Model(), [t.detach() for t in inputs(torch.float32)]
    for traced in (model, model.norm):
        torch.testing.assert_close(torch.fx.symbolic_trace(traced)(*given), traced(*given))
        assert torch.equal(torch.jit.trace(traced, given)(*given[::-1]), traced(*given[::-1]))


# --- what is left to the class ---------------------------------------------------------------------------------------


def outcome(module: nn.Module, *given: Any, **named: Any) -> Any:
    try:
        return module(*given, **named).tolist()
    except Exception as error:
        return repr(error).replace("Descend", "")


@pytest.mark.parametrize("name", ["Qwen3-Next", "sigmoid", "Mamba 2, groups"])
def test_what_has_no_gate_of_the_input_s_shape_is_left_to_the_class(name):
    ours, theirs = pair(name)
    x, gate = (t.detach() for t in inputs(torch.float32))
    calls: list[tuple[Any, ...]] = [
        (x,), (x, None), (x, gate[..., :1]), (x, gate[0]), (x, 2.0), (x, gate > 0), (x, gate.to(torch.complex64)),
        (x.tolist(), gate), (x[..., :23], gate[..., :23]), (x[..., :8], gate[..., :8]), (x.long(), gate),
        (x[:1].reshape(1, 1, 1, 1, 1, 1, 1, 7, 24), gate[:1].reshape(1, 1, 1, 1, 1, 1, 1, 7, 24)), (x, gate, gate), (),
    ]  # fmt: skip
    for call in calls:
        assert outcome(ours, *call) == outcome(theirs, *call), call


@pytest.mark.parametrize("where", ["input", "gate", "parameters"])
@pytest.mark.parametrize("name", SWAPPED)
def test_tensors_of_other_classes_are_left_to_the_modules(name, where):
    modules, tensors = pair(name), [t.detach() for t in inputs(torch.float32)]
    if where == "parameters":
        for module in modules:
            for key, parameter in list(module.named_parameters()):
                setattr(module, key, nn.Parameter(parameter.detach().as_subclass(Foreign)))
    else:
        place = ("input", "gate").index(where)
        tensors[place] = tensors[place].as_subclass(Foreign)
    ours, theirs = (module(*tensors) for module in modules)
    assert type(ours) is type(theirs) is Foreign
    assert torch.equal(ours.as_subclass(Tensor), theirs.as_subclass(Tensor))


def test_inputs_by_name():
    for name, names in (("Qwen3-Next", ("hidden_states", "gate")), ("scale", ("x", "z"))):
        ours, theirs = pair(name)
        x, gate = (t.detach() for t in inputs(torch.float32))
        expected = ours(x, gate)
        assert torch.equal(ours(x, **{names[1]: gate}), expected)
        assert torch.equal(ours(**dict(zip(names, (x, gate), strict=True))), expected)
        assert torch.equal(ours(**{names[1]: gate, names[0]: x}), expected)
        for named in ({names[0]: x}, {"other": gate}):
            assert outcome(ours, x, **named) == outcome(theirs, x, **named)
        assert outcome(ours, x, gate, **{names[1]: gate}) == outcome(theirs, x, gate, **{names[1]: gate})


class RawGateNorm(Gated):
    """No activation."""

    def forward(self, x: Tensor, gate: Tensor) -> Tensor:
        return (self.weight * self.xhat(wide(x)) * wide(gate)).to(x.dtype)


class NarrowGateNorm(Gated):
    """The activation is rounded to the gate's dtype."""

    def forward(self, x: Tensor, gate: Tensor) -> Tensor:
        return (self.weight * self.xhat(wide(x)) * nn.functional.silu(gate)).to(x.dtype)


class ResidualNorm(Gated):
    """The second input is no gate."""

    def forward(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        return self.weight * self.xhat(wide(x if residual is None else x + residual)).to(x.dtype)


class DetachedGateNorm(NextNorm):
    def forward(self, hidden_states: Tensor, gate: Tensor) -> Tensor:
        return super().forward(hidden_states, gate.detach())


class FirstGroupNorm(MambaNorm):
    """A group of every other element."""

    def forward(self, hidden_states: Tensor, gate: Tensor | None = None) -> Tensor:
        return super().forward(hidden_states.unflatten(-1, (2, -1)).transpose(-1, -2).flatten(-2), gate)


@pytest.mark.parametrize("kind", [RawGateNorm, NarrowGateNorm, ResidualNorm, DetachedGateNorm, FirstGroupNorm])
def test_what_computes_something_else_is_left_alone(kind):
    module = kind()
    assert dt.patch(module).left == {"": f"{kind.__name__}: its results are not those of any form that is known"}
    assert type(module) is kind


# --- models of transformers ------------------------------------------------------------------------------------------

SMALL = {"vocab_size": 50, "hidden_size": 32, "num_hidden_layers": 2}
MODELS: dict[str, tuple[str, str, dict[str, Any], dict[str, str]]] = {
    "mamba2": (
        "Mamba2Config", "Mamba2ForCausalLM",
        {**SMALL, "num_heads": 8, "head_dim": 8, "state_size": 16, "n_groups": 2, "chunk_size": 8},
        {
            "backbone.layers.1.mixer.norm":
                "MambaRMSNormGated -> rms_norm of the input times silu of the gate, rounded before the weight",
            "backbone.norm_f": "Mamba2RMSNorm -> rms_norm, rounded before the weight",
        },
    ),
    "qwen3_next": (
        "Qwen3NextConfig", "Qwen3NextForCausalLM",
        {
            **SMALL, "intermediate_size": 64, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16,
            "linear_num_key_heads": 2, "linear_num_value_heads": 2, "linear_key_head_dim": 16,
            "linear_value_head_dim": 16, "layer_types": ["linear_attention", "full_attention"], "num_experts": 0,
            "mlp_only_layers": [0, 1],
        },
        {
            "model.layers.0.linear_attn.norm":
                "Qwen3NextRMSNormGated -> rms_norm, rounded before the weight, times silu of the gate",
            "model.norm": "Qwen3NextRMSNorm -> gemma_rms_norm",
        },
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
def test_gradients_of_transformers_models(name):
    transformers = pytest.importorskip("transformers")
    config, kind, options, some = MODELS[name]
    torch.manual_seed(0)
    theirs = getattr(transformers, kind)(getattr(transformers, config)(**options)).eval()
    for parameter in theirs.parameters():  # weights of norms that are not all ones
        parameter.data.add_(torch.randn_like(parameter), alpha=0.05)
    ours = copy.deepcopy(theirs)
    report = dt.patch(ours)
    assert report.swapped.items() >= some.items()
    assert not report.left
    tokens = torch.randint(50, (3, 12))
    losses = [model(input_ids=tokens, labels=tokens).loss for model in (ours, theirs)]
    torch.testing.assert_close(*losses)
    given = [torch.autograd.grad(loss, list(m.parameters())) for loss, m in zip(losses, (ours, theirs), strict=True)]
    for (key, _), one, other in zip(theirs.named_parameters(), *given, strict=True):
        assert (one - other).norm() <= 1e-4 * other.norm() + 1e-7, key
