"""The modules of descend.torch beside PyTorch's: arguments, parameters, state dicts, results."""

from __future__ import annotations

import copy
import inspect
import pickle
from typing import Any

import numpy
import pytest

torch = pytest.importorskip("torch")

from torch import Tensor, nn  # noqa: E402

import descend.torch as dt  # noqa: E402
from torch_cases import draw  # noqa: E402

pytestmark = pytest.mark.usefixtures("on_device")
PAIRS: dict[str, tuple[Any, Any, tuple[Any, ...], list[dict[str, Any]]]] = {
    "RMSNorm": (dt.RMSNorm, nn.RMSNorm, (8,), [{}, {"eps": 1e-3}, {"elementwise_affine": False}]),
    "LayerNorm": (
        dt.LayerNorm,
        nn.LayerNorm,
        (8,),
        [{}, {"eps": 1e-3}, {"elementwise_affine": False}, {"bias": False}],
    ),
    "GroupNormSwish": (dt.GroupNormSwish, nn.GroupNorm, (2, 8), [{}, {"eps": 1e-3}, {"affine": False}]),
}
CASES = [
    pytest.param(*pair[:3], options, id=f"{name}-{options}") for name, pair in PAIRS.items() for options in pair[3]
]
each_case = pytest.mark.parametrize(("ours", "theirs", "args", "options"), CASES)


def swish(module: nn.Module) -> nn.Module:
    return nn.Sequential(module, nn.SiLU()) if isinstance(module, nn.GroupNorm) else module


def inputs_of(module: nn.Module, dtype: torch.dtype) -> Tensor:
    shape = (4, 8, 6, 5) if isinstance(module, dt.GroupNormSwish) else (5, 7, 8)
    return draw(shape, 1, torch.float64).to(dtype).requires_grad_()


def randomised(module: nn.Module) -> nn.Module:
    random = torch.Generator().manual_seed(2)
    for parameter in module.parameters():
        with torch.no_grad():
            parameter.copy_(draw(parameter.shape, random))
    return module


# --- what they take and hold ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PAIRS)
def test_the_constructor_takes_what_pytorchs_takes(name):
    ours, theirs = (inspect.signature(m.__init__).parameters for m in PAIRS[name][:2])
    shared = [p for p in ours if p in theirs]
    assert set(shared) >= set(theirs)
    for parameter in shared:
        assert ours[parameter].default == theirs[parameter].default
        assert ours[parameter].kind == theirs[parameter].kind
    positional = [n for n, p in theirs.items() if p.kind is not inspect.Parameter.KEYWORD_ONLY]
    assert list(ours)[: len(positional)] == positional


@each_case
def test_state_dicts_are_interchangeable(ours, theirs, args, options):
    a, b = ours(*args, **options), theirs(*args, **options)
    assert list(a.state_dict()) == list(b.state_dict())
    assert [n for n, _ in a.named_parameters()] == [n for n, _ in b.named_parameters()]
    for one, other in zip(a.state_dict().values(), b.state_dict().values(), strict=True):
        assert torch.equal(one, other)  # both fresh
    b.load_state_dict(randomised(a).state_dict())
    a.load_state_dict(randomised(b).state_dict())
    assert hasattr(a, "weight")
    assert hasattr(a, "bias") == hasattr(b, "bias")


@each_case
def test_they_print_as_pytorchs_do(ours, theirs, args, options):
    assert ours(*args, **options).extra_repr().startswith(theirs(*args, **options).extra_repr())


def test_the_others_print_their_arguments():
    assert str(dt.ScaledMaskedSoftmax(0.5, True)) == "ScaledMaskedSoftmax(scale=0.5, fix_triu_mask=True)"
    assert str(dt.NsaCompress(2, 32, 16)) == "NsaCompress(2, compress_block_size=32, compress_stride=16)"


@pytest.mark.parametrize("name", [*PAIRS, "NsaCompress"])
def test_devices_dtypes_and_resetting(name):
    args = (*PAIRS[name][2],) if name in PAIRS else (2, 4, 3)
    module = getattr(dt, name)(*args, device="meta", dtype=torch.bfloat16)
    assert all(p.is_meta and p.dtype is torch.bfloat16 for p in module.parameters())
    module.to_empty(device=torch.get_default_device()).reset_parameters()
    fresh = getattr(dt, name)(*args, dtype=torch.bfloat16)
    randomised(module).reset_parameters()
    for one, other in zip(module.parameters(), fresh.parameters(), strict=True):
        assert torch.equal(one, other)


def test_shapes_are_tuples_whatever_they_were():
    for shape in (8, [8], (8,), torch.Size([8]), numpy.int64(8), numpy.array([8])):
        assert dt.LayerNorm(shape).normalized_shape == dt.RMSNorm(shape).normalized_shape == (8,)


def test_they_are_copied_and_pickled():
    for module in (dt.RMSNorm(8), dt.LayerNorm(8), dt.GroupNormSwish(2, 8), dt.NsaCompress(2, 3, 1)):
        for other in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
            assert str(other) == str(module)
            assert torch.equal(other.weight, module.weight)


def test_activation_checkpointing():
    module, x = randomised(dt.LayerNorm(8)), torch.randn(4, 8, requires_grad=True)
    expected = run(module, x)
    y = torch.utils.checkpoint.checkpoint(module, x, use_reentrant=False)
    assert torch.equal(y, expected[0])
    y.sum().backward()
    assert torch.equal(x.grad, torch.autograd.grad(module(x).sum(), x)[0])


# --- what they compute ---------------------------------------------------------------------------------------------


def run(module: nn.Module, x: Tensor) -> list[Tensor]:
    """Result and all gradients."""
    y = module(x)
    given = draw(y.shape, 3).bfloat16().to(y.dtype)  # exact in every dtype
    return [y.detach(), *torch.autograd.grad(y, [x, *module.parameters()], given)]


@each_case
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_results_and_gradients_are_pytorchs(ours, theirs, args, options, dtype):
    """Compared with PyTorch in float64: no larger error than PyTorch has in the same dtype."""
    a = randomised(ours(*args, **options)).to(dtype)
    b = theirs(*args, **options).to(dtype)
    b.load_state_dict(a.state_dict())
    if a.eps is None:  # which PyTorch takes from the dtype
        a.eps = b.eps = torch.finfo(torch.float32).eps
    x = inputs_of(a, dtype)
    results, peers = run(a, x), run(swish(b), x)
    golden = run(swish(copy.deepcopy(b).double()), x.detach().double().requires_grad_())
    for result, peer, exact in zip(results, peers, golden, strict=True):
        assert result.dtype is peer.dtype is dtype
        assert result.shape == peer.shape
        rounding = torch.finfo(dtype).eps * exact.square().mean().sqrt().item()
        if dtype is not torch.float64 and result.dim() > 1:  # parameters have too few elements for statistics
            errors = [(r.double() - exact).square().mean().sqrt() for r in (result, peer)]
            assert errors[0] <= max(1.05 * errors[1], rounding if dtype is torch.float32 else 0.5 * rounding)
        torch.testing.assert_close(result.double(), exact, rtol=8 * torch.finfo(dtype).eps, atol=8 * rounding)


@pytest.mark.filterwarnings("ignore:Mismatch dtype")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_the_meaning_of_no_epsilon(dtype):
    """So small an input that epsilon decides."""
    x = torch.full((1, 8), 2e-5).to(dtype)
    torch.testing.assert_close(dt.RMSNorm(8)(x), nn.RMSNorm(8)(x).to(dtype), rtol=1e-2, atol=0)
    torch.testing.assert_close(dt.RMSNorm(8, dtype=dtype)(x), nn.RMSNorm(8, dtype=dtype)(x), rtol=1e-2, atol=0)


def test_the_meaning_of_no_epsilon_in_a_graph():
    """So small an input that float32's epsilon would decide."""
    traced = torch.fx.symbolic_trace(nn.Sequential(dt.RMSNorm(8)))
    for dtype in (torch.float32, torch.float64):
        x = torch.full((1, 8), 2e-5, dtype=dtype)
        assert torch.equal(traced.to(dtype)(x), dt.RMSNorm(8, dtype=dtype)(x))


@pytest.mark.filterwarnings("ignore:Was not able to save")
@pytest.mark.parametrize("patched", [False, True])
def test_graphs_of_modules_are_pickled_and_saved(patched, tmp_path):
    """Each as the root, whose annotations are in the graph's code, and inside another module."""
    if patched:
        roots = [nn.LayerNorm(8), nn.RMSNorm(8), nn.Sequential(nn.GroupNorm(2, 8), nn.SiLU())]
        for root in roots:
            dt.patch(root)
    else:
        roots = [dt.LayerNorm(8), dt.RMSNorm(8), dt.GroupNormSwish(2, 8), dt.ScaledMaskedSoftmax()]
    for number, root in enumerate(roots):
        for module in (root, nn.Sequential(root)):
            traced = torch.fx.symbolic_trace(module)
            x = torch.randn(2, 1, 4, 8) if isinstance(root, dt.ScaledMaskedSoftmax) else torch.randn(4, 8)
            torch.save(traced, tmp_path / "graph.pt")
            traced.to_folder(tmp_path / f"folder{number}")
            loaded = torch.load(tmp_path / "graph.pt", weights_only=False)
            torch.testing.assert_close(traced(x), module(x))
            for again in (pickle.loads(pickle.dumps(traced)), copy.deepcopy(traced), loaded):
                assert torch.equal(again(x), traced(x))
    traced = torch.fx.symbolic_trace(dt.NsaCompress(4, 32, 16))
    x = torch.randn(64, 4, 16)
    assert torch.equal(pickle.loads(pickle.dumps(traced))(x), traced(x))


def test_no_activation_and_its_scale():
    x = torch.randn(2, 8, 3)
    norm = nn.GroupNorm(2, 8)
    torch.testing.assert_close(dt.GroupNormSwish(2, 8, activate_swish=False)(x), norm(x))
    z = norm(x)
    torch.testing.assert_close(dt.GroupNormSwish(2, 8, swish_scale=1.702)(x), z * torch.sigmoid(1.702 * z))
    torch.testing.assert_close(dt.GroupNormSwish(2, 8, bias=False)(x), nn.functional.silu(z))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_softmax_is_attentions(dtype):
    x = torch.randn(2, 3, 5, 5).to(dtype).requires_grad_()
    causal = torch.ones(5, 5, dtype=torch.bool).triu(1)
    given = torch.randn(x.shape).to(dtype)
    expected = (x.double() * 0.25).masked_fill(causal, -torch.inf).softmax(-1)
    (gradient,) = torch.autograd.grad(expected, x, given.double())
    tolerance = {"rtol": 4 * torch.finfo(dtype).eps, "atol": 2 * torch.finfo(dtype).eps}
    masked, triangle = dt.ScaledMaskedSoftmax(0.25), dt.ScaledMaskedSoftmax(0.25, fix_triu_mask=True)
    for y in (masked(x, causal), masked(x, causal.expand(2, 1, 5, 5)), triangle(x)):
        torch.testing.assert_close(y.double(), expected, **tolerance)
        (ours,) = torch.autograd.grad(y, x, given)
        torch.testing.assert_close(ours.double(), gradient.double(), **tolerance)
        assert not ours[..., causal].any()
    torch.testing.assert_close(dt.ScaledMaskedSoftmax()(x).double(), x.double().softmax(-1), **tolerance)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_compression_is_a_grouped_convolution(dtype):
    """Each head has a kernel of W weights that slides over the tokens by the stride."""
    tokens, heads, depth, width, stride = 21, 3, 4, 6, 5
    module = randomised(dt.NsaCompress(heads, width, stride)).to(dtype)
    x = torch.randn(tokens, heads, depth).to(dtype).requires_grad_()
    channels = x.double().permute(2, 1, 0)  # [D, N, T]
    kernel = module.weight.double().t().unsqueeze(1)  # [N, 1, W]
    expected = nn.functional.conv1d(channels, kernel, stride=stride, groups=heads).permute(2, 1, 0)
    y = module(x)
    tolerance = {"rtol": 4 * torch.finfo(dtype).eps, "atol": 16 * torch.finfo(dtype).eps}
    torch.testing.assert_close(y.double(), expected, **tolerance)
    given = torch.randn(y.shape).to(dtype)
    wanted = torch.autograd.grad(expected, (x, module.weight), given.double())
    for ours, theirs in zip(torch.autograd.grad(y, (x, module.weight), given), wanted, strict=True):
        torch.testing.assert_close(ours, theirs, **tolerance)


def test_compression_keeps_sequences_apart():
    module = dt.NsaCompress(1, 2, 2)
    x = torch.arange(7.0).reshape(7, 1, 1)
    assert module(x, [3, 7]).flatten().tolist() == [0.5, 3.5, 5.5]
    assert torch.equal(module(x, [3, 4], act_seq_len_type=1), module(x, [3, 7]))
    assert module(x).flatten().tolist() == [0.5, 2.5, 4.5]


def test_training_is_pytorchs():
    """A small network, stepped by an optimiser with and without the modules: the same losses."""
    torch.manual_seed(0)
    ours = nn.Sequential(
        nn.Conv2d(3, 8, 3), dt.GroupNormSwish(2, 8), nn.Flatten(2), dt.LayerNorm(36), nn.Linear(36, 8), dt.RMSNorm(8)
    )
    theirs = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.Sequential(nn.GroupNorm(2, 8), nn.SiLU()), nn.Flatten(2), nn.LayerNorm(36),
        nn.Linear(36, 8), nn.RMSNorm(8),
    )  # fmt: skip
    theirs.load_state_dict({k.replace("1.", "1.0.", 1) if k[0] == "1" else k: v for k, v in ours.state_dict().items()})
    x, target = torch.randn(4, 3, 8, 8), torch.randn(4, 8, 8)
    losses: list[list[float]] = []
    for model in (ours, theirs):
        optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
        losses.append([])
        for _ in range(20):
            optimiser.zero_grad()
            loss = nn.functional.mse_loss(model(x), target)
            loss.backward()
            optimiser.step()
            losses[-1].append(loss.item())
    assert losses[0][-1] < losses[0][0]
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)


# --- errors --------------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("module", [dt.LayerNorm(8), dt.RMSNorm(8), dt.GroupNormSwish(2, 8), dt.ScaledMaskedSoftmax(),
                                    dt.NsaCompress(2, 4, 4)], ids=lambda m: type(m).__name__)  # fmt: skip
def test_scripts_are_refused_in_a_sentence(module):
    sentence = rf"^torch\.jit\.script cannot compile descend\.torch\.{type(module).__name__}; call torch\.jit\.trace"
    with pytest.raises(NotImplementedError, match=sentence):
        torch.jit.script(nn.Sequential(module))


def test_wrong_arguments():
    with pytest.raises(ValueError, match=r"num_channels is 7, but must be a multiple of num_groups, 2\."):
        dt.GroupNormSwish(2, 7)
    with pytest.raises(ValueError, match=r"num_groups is 0, but must be positive\."):
        dt.GroupNormSwish(0, 4)
    with pytest.raises(ValueError, match=r"compress_block_size is 0, but must be positive\."):
        dt.NsaCompress(2, 0, 2)
    with pytest.raises(ValueError, match=r"compress_stride is -1, but must be positive\."):
        dt.NsaCompress(2, 2, -1)


@pytest.mark.parametrize("module", [dt.RMSNorm(8), dt.LayerNorm(8), dt.RMSNorm(8, elementwise_affine=False)])
def test_wrong_inputs(module):
    for wrong in (torch.ones(2, 9), torch.ones(2, 9, device="meta")):
        with pytest.raises((ValueError, RuntimeError)):
            module.to(wrong.device)(wrong)
