"""descend.torch.patch: what is swapped and what is not, and that nothing else changes."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import Tensor, nn  # noqa: E402

import descend.torch as dt  # noqa: E402
from cases import run_python  # noqa: E402
from torch_cases import draw  # noqa: E402
from torch_norms import DTYPES, SWAPPED, CenteredNorm, LlamaNorm, Rms, Weightless, alike, inputs, run  # noqa: E402

pytestmark = pytest.mark.usefixtures("on_device")


# --- what is swapped -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SWAPPED)
def test_what_is_swapped(name):
    make, text = SWAPPED[name]
    module = make()
    kind = type(module)
    report = dt.patch(module)
    assert report.swapped == {"": text}
    assert not report.left
    assert isinstance(module, kind)
    assert dt.unpatch(module) == [""]
    assert type(module) is kind


@pytest.mark.parametrize("name", SWAPPED)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.filterwarnings("ignore:Mismatch dtype")
def test_the_class_s_rounding_is_kept(name, dtype):
    """Input and weight in each pair of dtypes that the class takes: result, its dtype, and gradients."""
    make = SWAPPED[name][0]
    for held in DTYPES:
        theirs = make().to(held)
        ours = copy.deepcopy(theirs)
        assert dt.patch(ours).swapped
        x = inputs(theirs, dtype)
        try:
            y = theirs(x)
        except RuntimeError:  # PyTorch's layer norm does not take all mixtures
            continue
        coarse = next((d for d in (torch.bfloat16, torch.float16) if d in (dtype, held)), None)
        if not (coarse and name in ("RMSNorm", "RMSNorm-eps", "RMSNorm-plain")):  # PyTorch's may round in other places
            alike(ours(x), y, coarse)
        if coarse is None:
            for one, other in zip(run(ours, x), run(theirs, x), strict=True):
                alike(one, other)


def test_rms_norms_of_pytorch_in_16_bits_are_no_further_from_float64():
    for dtype in (torch.bfloat16, torch.float16):
        theirs = nn.RMSNorm(16).to(dtype)
        ours = copy.deepcopy(theirs)
        dt.patch(ours)
        x = inputs(theirs, dtype)
        golden = run(copy.deepcopy(theirs).double(), x.detach().double().requires_grad_())
        for one, other, exact in zip(run(ours, x), run(theirs, x), golden, strict=True):
            assert (one.double() - exact).norm() <= 1.05 * (other.double() - exact).norm()


@pytest.mark.parametrize("dtype", [*DTYPES, torch.float64])
@pytest.mark.parametrize("inplace", [False, True])
def test_group_norm_and_silu_in_a_sequential(dtype, inplace):
    def make() -> nn.Sequential:
        return nn.Sequential(nn.Conv2d(3, 8, 3), nn.GroupNorm(2, 8), nn.SiLU(inplace), nn.GroupNorm(4, 8, affine=False),
                             nn.SiLU(), nn.GroupNorm(2, 8), nn.ReLU())  # fmt: skip

    torch.manual_seed(0)
    theirs = make().to(dtype)
    ours = copy.deepcopy(theirs)
    report = dt.patch(ours)
    joined = dict.fromkeys("13", "GroupNorm -> group_norm_swish, with the SiLU after it")
    assert report.swapped == joined | {"5": "GroupNorm -> group_norm"}
    x = torch.randn(2, 3, 8, 8).to(dtype).requires_grad_()
    golden = run(copy.deepcopy(theirs).double(), x.detach().double().requires_grad_())
    for one, other, exact in zip(run(ours, x), run(theirs, x), golden, strict=True):
        assert one.dtype is other.dtype is dtype
        rounding = torch.finfo(dtype).eps * exact.norm()
        assert (one.double() - exact).norm() <= 1.5 * (other.double() - exact).norm() + 8 * rounding
    torch.testing.assert_close(ours[1](x[:, :1].expand(2, 8, 8, 8)), theirs[1](x[:, :1].expand(2, 8, 8, 8)))
    assert list(ours.state_dict()) == list(theirs.state_dict())
    assert type(ours[:3]) is type(ours)
    assert dt.unpatch(ours) == ["1", "3", "5"]
    assert [type(m) for m in ours.modules()] == [type(m) for m in theirs.modules()]


@pytest.mark.parametrize("shape", [(2, 8), (2, 8, 5), (2, 8, 4, 3), (2, 8, 2, 3, 2)])
def test_a_group_norm_alone(shape):
    """Its memory format is kept, too; what PyTorch refuses is refused."""
    model = nn.Sequential(nn.GroupNorm(2, 8), nn.ReLU(), nn.GroupNorm(4, 8, affine=False))
    plain, x = copy.deepcopy(model), draw(shape, 1).requires_grad_()
    assert dt.patch(model).swapped == dict.fromkeys("02", "GroupNorm -> group_norm")
    for one, other in zip(run(model, x), run(plain, x), strict=True):
        torch.testing.assert_close(one, other)
    if len(shape) == 4:
        last = x.detach().contiguous(memory_format=torch.channels_last)
        assert model(last).is_contiguous(memory_format=torch.channels_last)
    with pytest.raises((RuntimeError, ValueError)):
        model(x[0, 0])


def test_a_group_norm_before_silu_and_elsewhere():
    """Shared norms and activations: each place is judged by itself."""
    norm, silu = nn.GroupNorm(2, 8), nn.SiLU()
    model = nn.ModuleDict({"both": nn.Sequential(norm, silu), "alone": nn.Sequential(norm, nn.ReLU()), "silu": silu})
    x = torch.randn(2, 8, 5)
    wanted = [model["both"](x), model["alone"](x), model["silu"](x)]
    assert list(dt.patch(model).swapped) == ["both.0", "alone.0"]
    for one, other in zip([model["both"](x), model["alone"](x), model["silu"](x)], wanted, strict=True):
        torch.testing.assert_close(one, other)
    seen = []
    norm.register_forward_hook(lambda *_: seen.append(1))
    torch.testing.assert_close(model["both"](x), wanted[0])
    assert seen == [1]  # hooks that come later are run


def test_a_pair_whose_parts_are_watched_or_changed_later():
    model, x = nn.Sequential(nn.GroupNorm(2, 8), nn.SiLU()), draw((3, 8, 5), 1)
    plain = copy.deepcopy(model)
    dt.patch(model)
    seen: list[nn.Module] = []
    handle = nn.modules.module.register_module_forward_hook(lambda module, *_: seen.append(module))
    with handle:
        torch.testing.assert_close(model(x), plain(x))
    assert seen[:3] == [model[0], model[1], model]
    for place in (0, 1):
        for each in (model, plain):
            each[place].forward = torch.neg
        torch.testing.assert_close(model(x), plain(x))
        for each in (model, plain):
            del each[place].forward
    torch.testing.assert_close(model(x), plain(x))


def test_a_sequential_with_its_own_forward():
    class Residual(nn.Sequential):
        def forward(self, x: Tensor) -> Tensor:
            return x + super().forward(x)

    model = Residual(nn.GroupNorm(2, 8), nn.SiLU())
    assert dt.patch(model).swapped == {"0": "GroupNorm -> group_norm"}
    assert type(model) is Residual


# --- what is left alone --------------------------------------------------------------------------------------------


class ResidualNorm(Rms):
    def forward(self, x: Tensor, gate: Tensor | None = None, residual: Tensor | None = None) -> Tensor:
        return self.xhat(x) * self.weight


class StaticNorm(Rms):
    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x


class BuiltInNorm(Rms):
    forward = torch.relu


class PropertyNorm(Rms):
    @property
    def forward(self) -> Callable[[Tensor], Tensor]:
        return self.xhat


class ScaledNorm(Rms):
    def forward(self, x: Tensor) -> Tensor:
        return self.weight * self.xhat(x).to(x.dtype) * 1.01


class NarrowGemmaNorm(Rms):
    """1 + weight in the weight's dtype."""

    def forward(self, x: Tensor) -> Tensor:
        return (self.xhat(x) * (1.0 + self.weight)).type_as(x)


class DetachedNorm(Rms):
    def forward(self, x: Tensor) -> Tensor:
        rstd = torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + self.variance_epsilon)
        return self.weight * (x.float() * rstd.detach()).to(x.dtype)


class NoisyNorm(Rms):
    def forward(self, x: Tensor) -> Tensor:
        y = self.weight * self.xhat(x).to(x.dtype)
        return y + torch.randn_like(y) if self.training else y


class ClippedNorm(Rms):
    def forward(self, x: Tensor) -> Tensor:
        return (self.weight * self.xhat(x).to(x.dtype)).clamp(-65504, 65504)


class FiniteNorm(Rms):
    def forward(self, x: Tensor) -> Tensor:
        return torch.nan_to_num(self.weight * self.xhat(x).to(x.dtype))


class WideOnlyNorm(Rms):
    """NaN in 16 bits."""

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * self.xhat(x).to(x.dtype) * (1.0 if x.dtype is torch.float32 else float("nan"))


class BiasedNorm(Rms):
    """Its bias is one number."""

    def __init__(self) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.ones(1))

    def forward(self, x: Tensor) -> Tensor:
        centred = x.float() - x.float().mean(-1, keepdim=True)
        return (self.weight.float() * self.xhat(centred) + self.bias.float()).to(x.dtype)


class TwofoldNorm(Rms):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return x, x


class FirstDimensionNorm(nn.LayerNorm):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.transpose(1, -1)).transpose(1, -1)


class OffsetLayerNorm(nn.LayerNorm):
    """The forward is PyTorch's, what it reads is not."""

    def __getattr__(self, name: str) -> Any:
        return super().__getattr__(name) + 1 if name == "weight" else super().__getattr__(name)


def having(change: Callable[[Any], Any]) -> nn.Module:
    module = nn.LayerNorm(16)
    change(module)
    return module


def own_forward(module: Any) -> None:
    module.forward = lambda x: x


def unusual(module: Any) -> nn.Module:
    module.scales = [1.0]
    return module


class Reluctant:
    """A class whose subclasses cannot be subclassed."""

    def __init_subclass__(cls, final: bool = False, **named: Any) -> None:
        if not final:
            raise TypeError(f"{cls.__bases__[-1].__name__} is final")


class FinalLayerNorm(nn.LayerNorm, Reluctant, final=True):
    pass


class FinalLlamaNorm(LlamaNorm, Reluctant, final=True):
    pass


class FinalSequential(nn.Sequential, Reluctant, final=True):
    pass


class KindredNorm(nn.LayerNorm):
    def __init_subclass__(cls, *, kind: str, **named: Any) -> None:
        super().__init_subclass__(**named)


class ScaledRMSNorm(nn.RMSNorm):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * 2


class Scaled(ScaledRMSNorm):
    """A norm by its class, not by its name."""


class QuantizedTensor(Tensor):
    """A tensor of another kind."""


LEFT: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "forward hook": (lambda: having(lambda m: m.register_forward_hook(print)), "it has hooks"),
    "pre-hook": (lambda: having(lambda m: m.register_forward_pre_hook(print)), "it has hooks"),
    "backward hook": (lambda: having(lambda m: m.register_full_backward_hook(print)), "it has hooks"),
    "buffer": (lambda: having(lambda m: m.register_buffer("b", torch.ones(1))), "it has buffers"),
    "submodule": (lambda: having(lambda m: m.add_module("adapter", nn.Linear(1, 1))), "it has submodules"),
    "parameter": (
        lambda: having(lambda m: m.register_parameter("gate", nn.Parameter(torch.ones(1)))),
        "it has a parameter that norms do not have: gate",
    ),
    "parametrized": (
        lambda: having(lambda m: nn.utils.parametrize.register_parametrization(m, "weight", nn.Identity())),
        "it is parametrized",
    ),
    "own forward": (lambda: having(own_forward), "its forward was replaced on the instance"),
    "quantization": (lambda: having(lambda m: setattr(m, "qconfig", "int8")), "it is prepared for quantization"),
    "compiled": (lambda: having(lambda m: m.compile(backend="eager")), "it is compiled on its own"),
    "integers": (
        lambda: having(
            lambda m: setattr(m, "bias", nn.Parameter(torch.zeros(16, dtype=torch.int8), requires_grad=False))
        ),
        "its bias is not of a dense floating dtype: torch.int8, torch.strided",
    ),
    "tensor subclass": (
        lambda: having(lambda m: setattr(m, "weight", nn.Parameter(torch.ones(16).as_subclass(QuantizedTensor)))),
        "its weight is a QuantizedTensor",
    ),
    "getattr": (lambda: OffsetLayerNorm(16), "its class has a __getattr__ of its own"),
    "batch norm": (lambda: nn.BatchNorm1d(16), "it has no counterpart here"),
    "attribute": (lambda: unusual(LlamaNorm()), "it has an attribute whose part is unknown: scales"),
    "no epsilon": (
        lambda: having(lambda m: setattr(m, "__class__", NoEpsilonNorm)),
        "no single attribute of it can be the epsilon",
    ),
    "no epsilon, by class": (lambda: Scaled(16), "no single attribute of it can be the epsilon"),
    "final": (lambda: FinalLayerNorm(16), "its class cannot be subclassed: TypeError('FinalLayerNorm is final')"),
    "final, probed": (FinalLlamaNorm, "its class cannot be subclassed: TypeError('FinalLlamaNorm is final')"),
    "two more": (ResidualNorm, "its forward does not take one input alone, or one and its gate"),
    "static": (StaticNorm, "its forward does not take one input alone, or one and its gate"),
    "built-in": (BuiltInNorm, "what its forward takes is not known"),
    "property": (PropertyNorm, "what its forward takes is not known"),
    **{
        kind.__name__: (kind, "its results are not those of any form that is known")
        for kind in (
            *(ScaledNorm, NarrowGemmaNorm, DetachedNorm, NoisyNorm, TwofoldNorm, CenteredNorm),
            *(ClippedNorm, FiniteNorm, WideOnlyNorm),
        )
    },
    "shapes": (BiasedNorm, "its parameters differ in shape"),
    "first dimension": (lambda: FirstDimensionNorm(16), "its results are not those of any form that is known"),
}


class NoEpsilonNorm(nn.LayerNorm):
    def forward(self, x: Tensor) -> Tensor:
        del self.eps
        return x


@pytest.mark.parametrize("name", LEFT)
def test_what_is_left_alone_and_why(name):
    make, reason = LEFT[name]
    module = make()
    if name == "no epsilon":
        del module.eps
    kind = type(module)
    report = dt.patch(module)
    assert report.left == {"": f"{kind.__name__}: {reason}"}
    assert not report.swapped
    assert type(module) is kind


def test_classes_that_refuse_do_not_keep_others_from_their_turn():
    def pair() -> list[nn.Module]:
        return [nn.GroupNorm(2, 8), nn.SiLU()]

    shared = nn.GroupNorm(2, 8)
    model = nn.ModuleList([
        nn.LayerNorm(4), FinalSequential(*pair()), KindredNorm(4), nn.Sequential(*pair()), nn.RMSNorm(4),
        nn.Sequential(shared, nn.SiLU()), FinalSequential(shared, nn.SiLU()),
    ])  # fmt: skip
    report = dt.patch(model)
    assert list(report.swapped) == ["0", "1.0", "3.0", "4", "5.0", "6.0"]
    assert report.swapped["1.0"] == "GroupNorm -> group_norm"  # the chain's class lets nobody join it and the SiLU
    assert report.left["2"].startswith("KindredNorm: its class cannot be subclassed: TypeError(")
    assert "'kind'" in report.left["2"]
    assert [type(model[i]) for i in (1, 2, 6)] == [FinalSequential, KindredNorm, FinalSequential]
    x = draw((3, 8, 5), 1)
    torch.testing.assert_close(model[6](x), model[5](x))


class LazyScale(nn.modules.lazy.LazyModuleMixin, nn.Module):
    """A module that gets its weight's shape in the first call."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.UninitializedParameter()
        self.eps = 1e-6


class LazyScaleNorm(LazyScale):
    pass


def test_weights_without_a_shape_as_yet():
    report = dt.patch(nn.Sequential(nn.LazyLinear(4), LazyScale(), LazyScaleNorm(), nn.LayerNorm(4)))
    assert report.swapped == {"3": "LayerNorm -> layer_norm"}
    assert report.left == {"2": "LazyScaleNorm: it has hooks"}


def test_what_is_no_norm_is_not_mentioned():
    model = nn.Sequential(nn.Linear(4, 4), nn.PReLU(), nn.Dropout(), nn.LeakyReLU(), Weightless(), nn.Embedding(3, 4))
    before = [type(m) for m in model.modules()]
    report = dt.patch(model)
    assert (report.swapped, report.left) == ({}, {})
    assert [type(m) for m in model.modules()] == before


def test_probing_leaves_no_trace():
    class DrawingNorm(Rms):
        def forward(self, x: Tensor) -> Tensor:
            torch.rand(1)
            return self.weight * self.xhat(x).to(x.dtype)

    module = DrawingNorm().eval()
    state, weight = torch.get_rng_state(), module.weight
    with torch.no_grad():
        assert dt.patch(module).swapped
    assert module.weight is weight
    assert weight.grad is None
    assert not module.training
    assert torch.equal(torch.get_rng_state(), state)


def test_a_norm_that_changes_its_attributes_is_left_alone():
    """Descend's forward would not; and the probes leave the attributes as they were."""

    class CountingNorm(Rms):
        def __init__(self) -> None:
            super().__init__()
            self.calls = 0

        def forward(self, x: Tensor) -> Tensor:
            self.calls += 1
            return self.weight * self.xhat(x).to(x.dtype)

    module = CountingNorm()
    assert dt.patch(module).left
    assert module.calls == 0


@pytest.mark.cpu
def test_probing_compiles_nothing():
    compiled = []

    def backend(graph: Any, inputs: Any) -> Any:
        compiled.append(graph)
        return graph.forward

    @torch.compile(backend=backend)
    def scaled(xhat: Tensor, weight: Tensor) -> Tensor:
        return weight * xhat

    class CompiledNorm(Rms):
        def forward(self, x: Tensor) -> Tensor:
            return scaled(self.xhat(x).to(x.dtype), self.weight)

    module, x = CompiledNorm(), torch.randn(3, 16)
    expected = module(x)
    assert len(compiled) == 1
    assert dt.patch(module).swapped
    torch.testing.assert_close(module(x), expected)
    assert len(compiled) == 1


WITHOUT_THE_COMPILER = """
import sys
import torch
import descend.torch

class Scaled(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(16))
        self.eps = 1e-6

    def forward(self, x):
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps))

before = "torch._dynamo" in sys.modules
assert descend.torch.patch(torch.nn.Sequential(Scaled(), torch.nn.LayerNorm(16))).swapped
assert ("torch._dynamo" in sys.modules) == before
"""


@pytest.mark.cpu
def test_probing_does_not_wait_for_the_compiler():
    run_python(WITHOUT_THE_COMPILER)


CONTEXTS: dict[str, Callable[[], Any]] = {
    "inference mode": torch.inference_mode,
    "meta device": lambda: torch.device("meta"),
    "autocast": lambda: torch.autocast(torch.get_default_device().type, dtype=torch.bfloat16),
    "anomalies": lambda: torch.autograd.detect_anomaly(check_nan=True),
}


@pytest.mark.parametrize("name", CONTEXTS)
@pytest.mark.filterwarnings("ignore:Anomaly Detection")
def test_probing_does_not_depend_on_where_it_is_called(name):
    module = LlamaNorm()
    with CONTEXTS[name]():
        report = dt.patch(module)
    assert repr(report) == (
        "1 module swapped, 0 left alone\n  swapped\n"
        "    (the model itself)    1 x  LlamaNorm -> rms_norm, rounded before the weight"
    )


@pytest.mark.parametrize("function", [dt.patch, dt.unpatch])
def test_what_is_no_module(function):
    with pytest.raises(TypeError, match=r"patch: model is of the type dict, but must be a torch\.nn\.Module\."):
        function({})
