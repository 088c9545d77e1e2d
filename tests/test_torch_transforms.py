"""The operators under PyTorch's transforms: torch.func, torch.compile, autocast."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import Tensor, nn  # noqa: E402
from torch.func import grad, hessian, jacrev, jvp, vjp, vmap  # noqa: E402

import descend.torch  # noqa: E402
from torch_cases import NAMES, OPERATORS, Call, calls  # noqa: E402

pytestmark = pytest.mark.usefixtures("on_device")
SAMPLES = 3
each_call = pytest.mark.parametrize("name", NAMES)
each_operator = pytest.mark.parametrize("name", OPERATORS)


def present(results: tuple[Any, ...]) -> tuple[Tensor, ...]:
    return tuple(r for r in results if r is not None)


def at(call: Call, places: tuple[int, ...]) -> Callable[..., tuple[Tensor, ...]]:
    """The call as a function of the tensors in some places."""

    def function(*values: Tensor) -> tuple[Tensor, ...]:
        args = list(call.args)
        for place, value in zip(places, values, strict=True):
            args[place] = value
        return present(call.run(*args))

    return function


def scalar(call: Call) -> tuple[Callable[..., Tensor], tuple[Tensor, ...]]:
    """A scalar that reads all results, as a function of the floating tensors; and these."""
    function = at(call, tuple(call.floats))
    return lambda *values: sum((r * r.cos()).sum() for r in function(*values)), tuple(
        call.args[place] for place in call.floats
    )


def samples(name: str, places: tuple[int, ...]) -> list[Tensor]:
    """For each place a batch of tensors, the batch in front."""
    return [torch.stack([calls(seed=s)[name].args[p] for s in range(SAMPLES)]) for p in places]


def stacked(results: list[Any]) -> tuple[Tensor, ...]:
    return tuple(torch.stack(r) for r in zip(*results, strict=True))


def assert_all_close(results: Any, expected: Any) -> None:
    for result, wanted in zip(results, expected, strict=True):
        torch.testing.assert_close(result, wanted)


# --- torch.func ----------------------------------------------------------------------------------------------------


@each_call
def test_vmap_is_a_loop_bit_by_bit(name):
    """One, two or all of the tensors are batched, wherever."""
    call = calls()[name]
    for count in {1, 2, len(call.floats)} & set(range(len(call.floats) + 1)):
        for places in itertools.combinations(call.floats, count):
            function, batches = at(call, places), samples(name, places)
            expected = stacked([function(*(b[i] for b in batches)) for i in range(SAMPLES)])
            last = [b.movedim(0, -1) for b in batches]
            for results in (vmap(function)(*batches), vmap(function, in_dims=-1)(*last)):
                for result, wanted in zip(results, expected, strict=True):
                    assert torch.equal(result, wanted)


def test_vmap_over_masks():
    x, masks = torch.randn(2, 4, 5), torch.rand(SAMPLES, 4, 5) < 0.5
    results = vmap(lambda mask: descend.torch.scaled_masked_softmax(x, mask))(masks)
    for result, mask in zip(results, masks, strict=True):
        assert torch.equal(result, descend.torch.scaled_masked_softmax(x, mask))
    both = vmap(descend.torch.scaled_masked_softmax)(torch.stack([x] * SAMPLES), masks)
    assert torch.equal(both, results)


def test_vmap_of_vmap():
    x, weight = torch.randn(2, 3, 4, 8), torch.randn(3, 8)
    results = vmap(vmap(lambda x, w: descend.torch.rms_norm(x, w)[0]), in_dims=(0, None))(x, weight)
    for i, j in itertools.product(range(2), range(3)):
        assert torch.equal(results[i, j], descend.torch.rms_norm(x[i, j], weight[j])[0])


@each_call
def test_grad_and_vjp_are_autograds(name):
    function, inputs = scalar(calls()[name])
    leaves = [i.clone().requires_grad_() for i in inputs]
    expected = torch.autograd.grad(function(*leaves), leaves)
    assert_all_close(grad(function, tuple(range(len(inputs))))(*inputs), expected)
    value, pull = vjp(function, *inputs)
    assert_all_close(pull(torch.ones_like(value)), expected)


@each_call
def test_jvp_is_the_gradient_along_a_direction(name):
    function, inputs = scalar(calls()[name])
    directions = tuple(torch.randn_like(i) for i in inputs)
    gradients = grad(function, tuple(range(len(inputs))))(*inputs)
    value, slope = jvp(function, inputs, directions)
    torch.testing.assert_close(value, function(*inputs))
    torch.testing.assert_close(slope, sum((g * d).sum() for g, d in zip(gradients, directions, strict=True)))


def test_jvp_of_a_wrong_call_is_refused():
    x, weight = torch.ones(2, 8), torch.ones(1)  # which would broadcast
    with pytest.raises(ValueError, match="rms_norm: gamma has shape"):
        jvp(lambda x: descend.torch.rms_norm(x, weight)[0], (x,), (x,))


@each_call
def test_gradients_of_each_sample(name):
    """vmap of grad: the sums over rows of one sample know nothing of another's."""
    function, inputs = scalar(calls()[name])
    every = tuple(range(len(inputs)))
    batches = samples(name, tuple(calls()[name].floats))
    gradients = grad(function, every)
    expected = stacked([gradients(*(b[i] for b in batches)) for i in range(SAMPLES)])
    assert_all_close(vmap(gradients)(*batches), expected)
    # As in training: the parameters are shared, the data is not.
    expected = stacked([gradients(batches[0][i], *inputs[1:]) for i in range(SAMPLES)])
    shared = (0, *(None,) * (len(inputs) - 1))
    assert_all_close(vmap(gradients, in_dims=shared)(batches[0], *inputs[1:]), expected)


@each_operator
def test_second_derivatives(name):
    function, inputs = scalar(calls()[name])
    first = inputs[0].flatten()[:6].clone()

    def of_few(values: Tensor) -> Tensor:
        x = torch.cat([values, inputs[0].flatten()[6:]]).reshape(inputs[0].shape)
        return function(x, *inputs[1:])

    expected = torch.autograd.functional.hessian(of_few, first)
    torch.testing.assert_close(hessian(of_few)(first), expected)
    torch.testing.assert_close(jacrev(jacrev(of_few))(first), expected)
    torch.testing.assert_close(jacrev(grad(of_few))(first), expected)


def test_grad_knows_no_grad():
    x, weight = torch.randn(4, 8), torch.randn(8)

    def function(x: Tensor) -> Tensor:
        with torch.no_grad():
            constant = descend.torch.rms_norm(x, weight)[0]
        return (constant * x).sum()

    assert torch.equal(grad(function)(x), descend.torch.rms_norm(x, weight)[0])


def test_functional_call_of_a_module():
    module = descend.torch.LayerNorm(8)
    parameters = dict(module.named_parameters())
    x = torch.randn(SAMPLES, 4, 8)

    def loss(parameters: dict[str, Tensor], x: Tensor) -> Tensor:
        return torch.func.functional_call(module, parameters, (x,)).square().sum()

    gradients = vmap(grad(loss), in_dims=(None, 0))(parameters, x)
    for i in range(SAMPLES):
        module.zero_grad()
        module(x[i]).square().sum().backward()
        torch.testing.assert_close(gradients["weight"][i], module.weight.grad)
        torch.testing.assert_close(gradients["bias"][i], module.bias.grad)


# --- torch.compile -------------------------------------------------------------------------------------------------


def check_compiled(name: str, **options: Any) -> None:
    torch._dynamo.reset()
    function, inputs = scalar(calls()[name])
    compiled = torch.compile(function, fullgraph=True, **options)
    torch.testing.assert_close(compiled(*inputs), function(*inputs))
    leaves = [i.clone().requires_grad_() for i in inputs]
    expected = torch.autograd.grad(function(*leaves), leaves)
    assert_all_close(torch.autograd.grad(compiled(*leaves), leaves), expected)


@each_operator
def test_compile_without_breaks(name):
    check_compiled(name, backend="aot_eager")


@pytest.mark.parametrize("name", ["rms_norm", "group_norm_swish", "nsa_compress"])
def test_compile_with_symbolic_sizes(name):
    check_compiled(name, backend="aot_eager", dynamic=True)


def test_inductor():
    check_compiled("layer_norm", backend="inductor")


def test_compile_for_several_sizes():
    torch._dynamo.reset()
    weight = torch.randn(8)
    compiled = torch.compile(lambda x: descend.torch.rms_norm(x, weight)[0] * 2, fullgraph=True, backend="aot_eager")
    for rows in (2, 3, 5):
        x = torch.randn(rows, 8)
        assert torch.equal(compiled(x), descend.torch.rms_norm(x, weight)[0] * 2)


def test_compile_of_gradients_of_each_sample():
    torch._dynamo.reset()
    function, inputs = scalar(calls()["layer_norm"])
    each = vmap(grad(function, (0, 1, 2)), in_dims=(0, None, None))
    (x,) = samples("layer_norm", (0,))
    compiled = torch.compile(each, fullgraph=True, backend="aot_eager")
    assert_all_close(compiled(x, *inputs[1:]), each(x, *inputs[1:]))


def test_compile_of_modules():
    torch._dynamo.reset()
    model = nn.Sequential(
        descend.torch.GroupNormSwish(2, 4), nn.Flatten(2), descend.torch.LayerNorm(9), descend.torch.RMSNorm(9),
        descend.torch.ScaledMaskedSoftmax(2.0), descend.torch.NsaCompress(4, 2, 1),
    )  # fmt: skip
    x = torch.randn(3, 4, 3, 3)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(x), model(x))


def test_a_wrong_call_fails_when_it_is_compiled():
    torch._dynamo.reset()
    compiled = torch.compile(lambda x, w: descend.torch.rms_norm(x, w)[0], fullgraph=True, backend="aot_eager")
    with pytest.raises(Exception, match="gamma has shape"):
        compiled(torch.ones(2, 8), torch.ones(9))


def test_export():
    model = nn.Sequential(descend.torch.LayerNorm(8), descend.torch.RMSNorm(8))
    x = torch.randn(4, 8)
    program = torch.export.export(model, (x,))
    assert "descend.layer_norm.default" in str(program.graph)
    assert torch.equal(program.module()(x), model(x))


# --- autocast ------------------------------------------------------------------------------------------------------

FLOATS = (torch.float32, torch.float16, torch.bfloat16, torch.float64)


def pairs() -> dict[str, tuple[nn.Module, nn.Module, Tensor]]:
    return {
        "layer_norm": (descend.torch.LayerNorm(8), nn.LayerNorm(8), torch.randn(4, 8)),
        "rms_norm": (descend.torch.RMSNorm(8), nn.RMSNorm(8), torch.randn(4, 8)),
        "group_norm": (
            descend.torch.GroupNormSwish(2, 4),
            nn.Sequential(nn.GroupNorm(2, 4), nn.SiLU()),
            torch.randn(2, 4, 8),
        ),
        "softmax": (descend.torch.ScaledMaskedSoftmax(), nn.Softmax(-1), torch.randn(4, 8)),
    }


@pytest.mark.filterwarnings("ignore:Mismatch dtype")
@pytest.mark.parametrize("name", pairs())
@pytest.mark.parametrize("lower", [torch.bfloat16, torch.float16])
def test_autocast_leaves_the_dtypes_of_pytorchs_own(name, lower):
    compared = 0
    for x_dtype, dtype in itertools.product(FLOATS, FLOATS):
        ours, theirs, x = pairs()[name]
        leaves = [x.to(x_dtype).requires_grad_() for _ in range(2)]
        ours.to(dtype), theirs.to(dtype)
        with torch.autocast(torch.get_default_device().type, dtype=lower):
            result = ours(leaves[0])
            try:
                expected = theirs(leaves[1])
            except RuntimeError:  # a mixture that PyTorch refuses
                continue
        compared += 1
        assert result.dtype is expected.dtype
        torch.testing.assert_close(result, expected, rtol=0.02, atol=0.02)
        result.sum().backward()
        assert leaves[0].grad.dtype is x_dtype
        assert all(p.grad.dtype is dtype for p in ours.parameters())
    assert compared >= 6


@pytest.mark.parametrize("lower", [torch.bfloat16, torch.float16])
def test_autocast_lowers_the_compression_as_it_lowers_matrix_products(lower):
    for x_dtype, dtype in itertools.product(FLOATS[:3], FLOATS[:3]):
        module = descend.torch.NsaCompress(2, 3, 1, dtype=dtype)
        x = torch.randn(7, 2, 4).to(x_dtype).requires_grad_()
        with torch.autocast(torch.get_default_device().type, dtype=lower):
            result = module(x)
            assert result.dtype is torch.matmul(x, x.transpose(1, 2)).dtype is lower
        expected = descend.torch.nsa_compress(
            x.to(lower), module.weight.to(lower), compress_block_size=3, compress_stride=1
        )
        assert torch.equal(result, expected)
        result.sum().backward()
        assert x.grad.dtype is x_dtype
        assert module.weight.grad.dtype is dtype
    with torch.autocast(torch.get_default_device().type, dtype=lower):
        assert descend.torch.NsaCompress(2, 3, 1).double()(torch.randn(7, 2, 4).double()).dtype is torch.float64


def test_training_under_autocast():
    model = nn.Sequential(nn.Linear(8, 8), descend.torch.LayerNorm(8), nn.Linear(8, 8), descend.torch.RMSNorm(8))
    with torch.autocast(torch.get_default_device().type, dtype=torch.bfloat16):
        y = model(torch.randn(4, 8))
    assert y.dtype is torch.bfloat16
    y.float().square().mean().backward()
    assert all(p.grad.dtype is torch.float32 and p.grad.isfinite().all() for p in model.parameters())
