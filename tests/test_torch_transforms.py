"""The operators under PyTorch's transforms: torch.func, torch.compile, autocast."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import Tensor, nn  # noqa: E402
from torch.autograd import forward_ad  # noqa: E402
from torch.func import grad, hessian, jacfwd, jacrev, jvp, vjp, vmap  # noqa: E402

import descend.torch  # noqa: E402
from cases import in_turn  # noqa: E402
from pages import is_gradient  # noqa: E402
from torch_cases import NAMES, OPERATORS, RELEASE, assert_all_close, at, calls, scalar  # noqa: E402

pytestmark = pytest.mark.usefixtures("on_device")
SAMPLES = 3
each_call = pytest.mark.parametrize("name", NAMES)
each_operator = pytest.mark.parametrize("name", OPERATORS)


def samples(name: str, places: tuple[int, ...]) -> list[Tensor]:
    """A batch of tensors for each argument, the batch dimension first."""
    return [torch.stack([calls(seed=s)[name].args[p] for s in range(SAMPLES)]) for p in places]


def stacked(results: list[Any]) -> tuple[Tensor, ...]:
    return tuple(torch.stack(r) for r in zip(*results, strict=True))


# --- torch.func ----------------------------------------------------------------------------------------------------


@each_call
def test_vmap_is_a_loop_bit_by_bit(name):
    """One, two or all of the tensors are batched, along any dimension."""
    call = calls()[name]
    for count in {1, 2, len(call.floats)} & set(range(len(call.floats) + 1)):
        for places in itertools.combinations(call.floats, count):
            function, batches = at(call, places), samples(name, places)
            expected = stacked([function(*(b[i] for b in batches)) for i in range(SAMPLES)])
            last = [b.movedim(0, -1) for b in batches]
            for results in (vmap(function)(*batches), vmap(function, in_dims=-1)(*last)):
                for result, wanted in zip(results, expected, strict=True):
                    assert torch.equal(result, wanted)


@pytest.mark.parametrize(("name", "derived"), in_turn(NAMES, ["not", "in reverse", "forward"]))
def test_vmap_over_no_samples(name, derived):
    """Shapes and dtypes are those of a batch of one, less the one; what is shared gets gradients of 0."""
    call = calls(torch.float32)[name]
    function = at(call, tuple(call.floats))
    loss, inputs = scalar(call)
    if derived == "in reverse":
        function = grad(loss, tuple(range(len(inputs))))
    elif derived == "forward":
        function = functools.partial(lambda function, *inputs: jvp(function, inputs, inputs)[1], function)
    for first in {1, len(inputs)}:
        dims = (0,) * first + (None,) * (len(inputs) - first)
        one = [i if d is None else i.unsqueeze(0) for i, d in zip(inputs, dims, strict=True)]
        none = [i if d is None else i[:0] for i, d in zip(one, dims, strict=True)]
        for result, wanted in zip(vmap(function, dims)(*none), vmap(function, dims)(*one), strict=True):
            assert result.shape == (0, *wanted.shape[1:])
            assert result.dtype is wanted.dtype
        leaves = [n.clone().requires_grad_() for n in none]
        total = sum(r.sum() for r in vmap(function, dims)(*leaves))
        for gradient, leaf in zip(torch.autograd.grad(total, leaves, materialize_grads=True), leaves, strict=True):
            assert gradient.shape == leaf.shape
            assert not gradient.any()


def test_vmap_over_masks():
    x, masks = torch.randn(2, 4, 5), torch.rand(SAMPLES, 4, 5) < 0.5
    results = vmap(lambda mask: descend.torch.scaled_masked_softmax(x, mask))(masks)
    for result, mask in zip(results, masks, strict=True):
        assert torch.equal(result, descend.torch.scaled_masked_softmax(x, mask))
    both = vmap(descend.torch.scaled_masked_softmax)(torch.stack([x] * SAMPLES), masks)
    assert torch.equal(both, results)


WRONG_SAMPLES: dict[str, Callable[[Tensor], Any]] = {
    "rms_norm": lambda x: descend.torch.rms_norm(x, torch.ones(3, 4)),
    "rms_norm_grad": lambda x: descend.torch.rms_norm_grad(x, x, torch.ones(1), torch.ones(3, 4)),
    "layer_norm": lambda x: descend.torch.layer_norm(x, [3, 4]),
    "group_norm_swish": lambda x: descend.torch.group_norm_swish(x, torch.ones(4), torch.ones(4), 2),
    "scaled_masked_softmax": lambda x: descend.torch.scaled_masked_softmax(x, None, fix_triu_mask=True),
    "scaled_masked_softmax_backward": lambda x: descend.torch.scaled_masked_softmax_backward(x[0], x[0], None),
    "nsa_compress": lambda x: descend.torch.nsa_compress(x, torch.ones(2, 4), compress_block_size=2, compress_stride=1),
}


@pytest.mark.parametrize("name", WRONG_SAMPLES)
def test_vmap_of_a_wrong_call_says_what_is_wrong_with_a_sample(name):
    """Of samples of rank 1, which together have what some of these calls ask for."""
    samples = torch.randn(3, 4)
    with pytest.raises(descend.errors.AclnnValueError) as alone:
        WRONG_SAMPLES[name](samples[0])
    for batch in (samples, samples[:0]):
        with pytest.raises(descend.errors.AclnnValueError) as together:
            vmap(WRONG_SAMPLES[name])(batch)
        assert str(together.value) == str(alone.value)


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


@pytest.mark.parametrize(("name", "dtype"), in_turn(NAMES, [torch.float32, torch.bfloat16]))
def test_forward_mode_leaves_the_results(name, dtype):
    """The same bits, also inside a level of forward mode in which no tensor has a tangent."""
    call = calls(dtype)[name]
    function, inputs = at(call, tuple(call.floats)), tuple(call.args[place] for place in call.floats)
    expected = function(*inputs)
    results = [
        jvp(function, inputs, inputs)[0],
        jvp(lambda _: function(*inputs), (torch.ones(1),), (torch.ones(1),))[0],
    ]
    with forward_ad.dual_level():
        results.append(function(*inputs))
        duals = function(*(forward_ad.make_dual(i, i) for i in inputs))
        results.append(tuple(forward_ad.unpack_dual(d).primal for d in duals))
    for each in results:
        assert all(torch.equal(result, wanted) for result, wanted in zip(each, expected, strict=True))


def rms(x: Tensor) -> Tensor:
    return nn.functional.rms_norm(x, x.shape[-1:], eps=0.0)


def layer(x: Tensor) -> Tensor:
    centred = x - x.mean(-1, keepdim=True)  # PyTorch's own is wrong in second derivatives, forward over forward
    return centred * centred.square().mean(-1, keepdim=True).rsqrt()


def group(x: Tensor) -> Tensor:
    return nn.functional.silu(nn.functional.group_norm(x, 2, eps=0.0))


NORMS: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]] = {
    "rms_norm": (rms, lambda x: descend.torch.rms_norm(x, torch.ones(x.shape[-1:]), 0.0)[0]),
    "layer_norm": (layer, lambda x: descend.torch.layer_norm(x, x.shape[-1:], eps=0.0)[0]),
    "group_norm_swish": (
        group,
        lambda x: descend.torch.group_norm_swish(x, torch.ones(4), torch.zeros(4), 2, eps=0.0)[0],
    ),
}
each_norm = pytest.mark.parametrize(("theirs", "ours"), NORMS.values(), ids=NORMS)


def near(result: Tensor, exact: Tensor, tolerance: float = 1e-5) -> None:
    """Close to a result in float64, beside its largest element."""
    size = exact.abs().max()
    torch.testing.assert_close(result.double() / size, exact / size, rtol=0, atol=tolerance)


@each_norm
@pytest.mark.parametrize(("scale", "mean"), [(1e20, 0.0), (1e-30, 0.0), (1.0, 1e4)])
def test_forward_mode_at_extremes(theirs, ours, scale, mean):
    x = torch.randn(3, 4, 16) * scale + mean
    direction = torch.randn(3, 4, 16) * scale
    exact = jvp(theirs, (x.double(),), (direction.double(),))
    value, slope = jvp(ours, (x,), (direction,))
    assert torch.equal(value, ours(x))
    near(slope, exact[1])
    many = vmap(lambda d: jvp(ours, (x,), (d,))[1])(torch.stack([direction, -2 * direction]))
    assert torch.equal(many, torch.stack([slope, -2 * slope]))
    each = vmap(lambda x, d: jvp(ours, (x,), (d,))[1])(torch.stack([x, 2 * x]), torch.stack([direction] * 2))
    near(each[0], exact[1])
    near(each[1], exact[1] / 2)


@each_norm
@pytest.mark.parametrize("scale", [1e10, 1e-10])
@pytest.mark.parametrize(("outer", "inner"), [(jacfwd, jacfwd), (jacfwd, jacrev), (jacrev, jacfwd)])
def test_second_derivatives_at_extremes(theirs, ours, scale, outer, inner):
    x = torch.randn(1, 4, 4) * scale
    weights = torch.randn(1, 4, 4)
    exact = outer(inner(lambda x: (theirs(x) * weights.double()).sum()))(x.double())
    near(outer(inner(lambda x: (ours(x) * weights).sum()))(x), exact)


def test_reverse_over_dual_tensors():
    x, direction = (torch.randn(3, 8, dtype=torch.float64, requires_grad=True) for _ in range(2))

    def gradients(function: Callable[[Tensor], Tensor]) -> tuple[Tensor, ...]:
        with forward_ad.dual_level():
            slope = forward_ad.unpack_dual(function(forward_ad.make_dual(x, direction))).tangent
            return torch.autograd.grad(slope.square().sum(), (x, direction))

    assert_all_close(gradients(NORMS["rms_norm"][1]), gradients(rms))


@each_call
def test_dual_tensors_over_reverse(name):
    """Gradients of dual tensors have tangents: those that torch.func finds."""
    function, inputs = scalar(calls()[name])
    directions = tuple(torch.randn_like(i) for i in inputs)
    expected = jvp(grad(function, tuple(range(len(inputs)))), inputs, directions)
    with forward_ad.dual_level():
        duals = [forward_ad.make_dual(i.clone().requires_grad_(), d) for i, d in zip(inputs, directions, strict=True)]
        value = function(*duals)
        gradients = torch.autograd.grad(value, duals, materialize_grads=True)
        found = [forward_ad.unpack_dual(g) for g in gradients]
    assert torch.equal(forward_ad.unpack_dual(value).primal, function(*inputs))
    assert_all_close([f.primal for f in found], expected[0])
    tangents = [torch.zeros_like(f.primal) if f.tangent is None else f.tangent for f in found]
    assert_all_close(tangents, expected[1])


@each_operator
def test_hessian_in_forward_mode(name):
    function, inputs = scalar(calls()[name])
    modes = {"vectorize": True, "outer_jacobian_strategy": "forward-mode"}
    expected = torch.autograd.functional.hessian(function, inputs)
    for found, wanted in zip(torch.autograd.functional.hessian(function, inputs, **modes), expected, strict=True):
        assert_all_close(found, wanted)


@pytest.mark.extended
def test_compile_of_forward_mode():
    torch._dynamo.reset()
    function, inputs = together([name for name in OPERATORS if not is_gradient(name)])

    def slope(*directions: Tensor) -> tuple[Tensor, ...]:
        values, slopes = jvp(function, inputs, directions)
        return *values, *slopes

    compiled = torch.compile(slope, fullgraph=True, backend="aot_eager")
    assert_all_close(compiled(*inputs), slope(*inputs))


@pytest.mark.parametrize("name", ["layer_norm", "group_norm_swish", "nsa_compress"])
def test_compile_of_dual_tensors(name):
    torch._dynamo.reset()
    function, inputs = scalar(calls()[name])

    def dual(*directions: Tensor) -> tuple[Tensor, Tensor]:
        with forward_ad.dual_level():
            value = function(*map(forward_ad.make_dual, inputs, directions))
            return tuple(forward_ad.unpack_dual(value))

    compiled = torch.compile(dual, fullgraph=True, backend="aot_eager")
    assert_all_close(compiled(*inputs), jvp(function, inputs, inputs))


def test_jvp_of_a_wrong_call_is_refused():
    x, weight = torch.ones(2, 8), torch.ones(1)  # which would broadcast
    with pytest.raises(ValueError, match="rms_norm: gamma has shape"):
        jvp(lambda x: descend.torch.rms_norm(x, weight)[0], (x,), (x,))


@each_call
def test_gradients_of_each_sample(name):
    """vmap of grad: the sums over rows of one sample do not include another's."""
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


def together(names: Sequence[str]) -> tuple[Callable[..., tuple[Tensor, ...]], tuple[Tensor, ...]]:
    """The scalars of several calls as one function, so that one graph has all; and its inputs."""
    functions, inputs = zip(*(scalar(calls()[name]) for name in names), strict=True)
    counts = [len(each) for each in inputs]

    def function(*values: Tensor) -> tuple[Tensor, ...]:
        results, start = [], 0
        for each, count in zip(functions, counts, strict=True):
            results.append(each(*values[start : start + count]))
            start += count
        return tuple(results)

    return function, tuple(itertools.chain(*inputs))


def check_compiled(*names: str, **options: Any) -> None:
    torch._dynamo.reset()
    function, inputs = together(names)
    compiled = torch.compile(function, fullgraph=True, **options)
    assert_all_close(compiled(*inputs), function(*inputs))
    leaves = [i.clone().requires_grad_() for i in inputs]
    expected = torch.autograd.grad(sum(function(*leaves)), leaves)
    assert_all_close(torch.autograd.grad(sum(compiled(*leaves)), leaves), expected)


def test_compile_without_breaks():
    check_compiled(*OPERATORS, backend="aot_eager")


def test_compile_with_symbolic_sizes():
    check_compiled("rms_norm", "group_norm_swish", "nsa_compress", backend="aot_eager", dynamic=True)


@pytest.mark.extended
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


@pytest.mark.skipif(RELEASE <= (2, 7), reason="PyTorch 2.7 cannot compile with sizes that a tensor tells")
def test_compile_with_sequences_that_a_tensor_tells():
    torch._dynamo.reset()

    def compress(x: Tensor, weight: Tensor, ends: Tensor) -> Tensor:
        return descend.torch.nsa_compress(x, weight, ends.tolist(), compress_block_size=3, compress_stride=2)

    graphs = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(compress, fullgraph=True, backend=graphs)
    leaves = torch.randn(9, 2, 3, requires_grad=True), torch.randn(3, 2, requires_grad=True)
    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        for ends in ([4, 9], [2, 9], [9, 9]):
            results = [f(*leaves, torch.tensor(ends)) for f in (compiled, compress)]
            assert torch.equal(*results)
            assert_all_close(*(torch.autograd.grad(r.square().sum(), leaves) for r in results))
        with pytest.raises(ValueError, match="must not decrease"):
            compiled(*leaves, torch.tensor([9, 3]))
    assert graphs.frame_count == 1


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


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore::DeprecationWarning")
def test_sizes_in_a_trace():
    """They are tensors there, and constants in what is traced."""
    nsa = {"compress_block_size": 3, "compress_stride": 2}
    y, x, weight = torch.randn(4, 2, 3), torch.randn(9, 2, 3), torch.randn(3, 2)
    traced: list[tuple[Callable[..., Any], tuple[Tensor, ...]]] = [
        (lambda x: descend.torch.layer_norm(x, x.shape[-1:]), (x,)),
        (lambda x, w: descend.torch.nsa_compress(x, w, [x.shape[0]], **nsa), (x, weight)),
        (lambda y, x, w: descend.torch.nsa_compress_grad(y, x, w, [x.shape[0]], **nsa), (y, x, weight)),
    ]
    for function, inputs in traced:
        others = [torch.randn_like(i) for i in inputs]
        assert_all_close(torch.jit.trace(function, inputs)(*others), function(*others))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_scripts_call_the_operators():
    def function(x, gamma):
        return torch.ops.descend.rms_norm(x, gamma, 1e-3)[0]

    args = [torch.randn(5, 8, requires_grad=True), torch.randn(8, requires_grad=True)]
    ours, theirs = torch.jit.script(function)(*args), function(*args)
    assert torch.equal(ours, theirs)
    assert_all_close(torch.autograd.grad(ours.sum(), args), torch.autograd.grad(theirs.sum(), args))


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


@pytest.mark.parametrize("dtype", [torch.int32, torch.bool, torch.complex64])
def test_autocast_makes_no_floats_of_what_the_compression_refuses(dtype):
    x, weight = torch.ones(7, 2, 4), torch.ones(3, 2)
    for tensors in ((x.to(dtype), weight), (x, weight.to(dtype)), (x.to(dtype), weight.to(dtype))):
        with (
            torch.autocast(torch.get_default_device().type, dtype=torch.bfloat16),
            pytest.raises(ValueError, match=r"nsa_compress: .*(INT32|BOOL|COMPLEX64)"),
        ):
            descend.torch.nsa_compress(*tensors, compress_block_size=3, compress_stride=1)


def test_training_under_autocast():
    model = nn.Sequential(nn.Linear(8, 8), descend.torch.LayerNorm(8), nn.Linear(8, 8), descend.torch.RMSNorm(8))
    with torch.autocast(torch.get_default_device().type, dtype=torch.bfloat16):
        y = model(torch.randn(4, 8))
    assert y.dtype is torch.bfloat16
    y.float().square().mean().backward()
    assert all(p.grad.dtype is torch.float32 and p.grad.isfinite().all() for p in model.parameters())
