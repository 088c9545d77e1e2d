"""The operators in PyTorch's dispatcher: registration, results, derivatives of every order, layouts, errors."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import Tensor  # noqa: E402
from torch.autograd import gradcheck, gradgradcheck  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

import descend  # noqa: E402
import descend.torch  # noqa: E402
from cases import extended, in_turn, run_python  # noqa: E402
from descend.torch import definitions  # noqa: E402
from pages import MISSING  # noqa: E402
from torch_cases import FORWARDS, NAMES, OPERATORS, Call, calls, draw, present  # noqa: E402

pytestmark = pytest.mark.usefixtures("on_device")
DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
both = pytest.mark.usefixtures("each_registration")
each_call = pytest.mark.parametrize("name", NAMES)


def registrations_in_turn(names: Sequence[str]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize(
        ("name", "each_registration"), in_turn(names, ["C++", "Python"]), indirect=["each_registration"]
    )


each_call_in_turn = registrations_in_turn(NAMES)
each_operator = pytest.mark.parametrize("name", OPERATORS)


def overload(call: Call) -> Any:
    return getattr(torch.ops.descend, call.name).default


class Log(TorchDispatchMode):
    """The operators of Descend that run below autograd: their arguments by name."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: dict[str, dict[str, Any]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "descend":
            named = {a.name: a.default_value for a in func._schema.arguments}
            named.update(zip(named, args, strict=False))
            self.calls[func._opname] = {**named, **(kwargs or {})}
        return func(*args, **(kwargs or {}))


# --- registration --------------------------------------------------------------------------------------------------


def test_descend_does_not_import_pytorch():
    code = "import sys, descend; print('torch' in sys.modules, 'descend.torch' in sys.modules)"
    assert run_python(code).stdout == "False False\n"


def test_every_operator_of_the_engine_is_there():
    assert sorted(descend.contract.OPERATORS) == sorted(OPERATORS)
    for name in OPERATORS:
        assert name in descend.torch.__all__
        names = [a.name for a in getattr(torch.ops.descend, name).default._schema.arguments]
        assert names == [p.python for p in descend.contract.OPERATORS[name].functional_parameters]


@pytest.mark.parametrize("name", [*OPERATORS[::4], *extended(*(n for n in OPERATORS if n not in OPERATORS[::4]))])
def test_opcheck(name):
    """With the compilation, which takes the time, and in which all are the same."""
    call = calls()[name]
    torch.library.opcheck(overload(call), call.wanting(call.floats).args, call.named)


@each_call
def test_opcheck_of_variants(name):
    call = calls()[name]
    checks = ("test_schema", "test_autograd_registration", "test_faketensor")
    torch.library.opcheck(overload(call), call.wanting(call.floats).args, call.named, test_utils=checks)
    torch.library.opcheck(overload(call), call.args, call.named, test_utils=("test_schema", "test_faketensor"))


# --- results -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "dtype"), in_turn(NAMES, DTYPES, each=2))
def test_results_are_the_engines_bits(name, dtype):
    call = calls(dtype)[name]
    expected = getattr(descend, call.name)(*call.args, **call.named)
    expected = expected if isinstance(expected, tuple) else (expected,)
    for variant in (call, call.wanting(call.floats)):
        results = variant.run()
        assert len(results) == len(expected)
        for result, wanted in zip(results, expected, strict=True):
            if wanted is None:
                assert result is None
            else:
                assert result.dtype is wanted.dtype
                assert torch.equal(result, wanted)
                assert result.requires_grad == (variant is not call)


@pytest.mark.parametrize(("name", "dtype"), in_turn(NAMES, DTYPES, each=2))
def test_meta_tensors_foretell_shapes_dtypes_and_strides(name, dtype):
    call = calls(dtype)[name]
    meta = [a.to("meta") if isinstance(a, Tensor) else a for a in call.args]
    for result, foretold in zip(call.run(), call.run(*meta), strict=True):
        if result is None:
            assert foretold is None
        else:
            assert foretold.is_meta
            facts = [(t.shape, t.dtype, t.stride()) for t in (result, foretold)]
            assert facts[0] == facts[1]


@both
@each_call_in_turn
def test_layouts(name):
    """Transposed, strided and expanded inputs: the bits of contiguous ones, and gradients of the inputs' own shape."""
    call = calls()[name]

    def transposed(t: Tensor) -> Tensor:
        return t.movedim(0, -1).contiguous().movedim(-1, 0)

    def strided(t: Tensor) -> Tensor:
        return torch.stack([t, torch.full_like(t, torch.nan)], -1)[..., 0]

    for change in (transposed, strided):
        check_same(call, call.map(change))
    expanded = call.map(lambda t: t[:1].expand(t.shape))
    check_same(expanded.map(lambda t: t.contiguous()), expanded)


def check_same(call: Call, other: Call) -> None:
    for wanted, result in zip(present(call.run()), present(other.run()), strict=True):
        assert torch.equal(result, wanted)
    for wanted, result in zip(gradients(call, call.floats), gradients(other, call.floats), strict=True):
        torch.testing.assert_close(result, wanted)


@both
def test_an_expanded_gradient():
    x = torch.randn(4, 8, requires_grad=True)
    weight = torch.randn(8)
    descend.torch.rms_norm(x, weight)[0].sum().backward()  # the gradient of a sum is one number, expanded
    expected = descend.torch.rms_norm_grad(torch.ones(4, 8), x, descend.torch.rms_norm(x, weight)[1], weight)[0]
    assert torch.equal(x.grad, expected)


@both
def test_lazily_negated_inputs():
    x = torch.randn(4, 8, requires_grad=True)
    weight = torch.randn(8, requires_grad=True)
    negated = torch._neg_view(x)
    assert negated.is_neg()
    y = descend.torch.rms_norm(negated, weight)[0]
    assert torch.equal(y, descend.torch.rms_norm(-x, weight)[0])
    y.sum().backward()
    assert x.grad is not None


@both
def test_empty_tensors():
    x, weight = torch.zeros(0, 8, requires_grad=True), torch.ones(8, requires_grad=True)
    bias = torch.zeros(8, requires_grad=True)
    y, mean, rstd = descend.torch.layer_norm(x, [8], weight, bias)
    (y.sum() + mean.sum() + rstd.sum()).backward()
    assert x.grad.shape == (0, 8)
    assert not weight.grad.any()
    assert not bias.grad.any()


@pytest.mark.cpu
def test_pytorchs_number_of_threads_is_followed():
    call = calls()["layer_norm"]
    pytorchs, engines = torch.get_num_threads(), descend.get_num_threads()
    try:
        for count in (3, 1, 2):  # three, lest the first be what PyTorch had when the engine last asked
            torch.set_num_threads(count)
            call.run()
            assert descend.get_num_threads() == count
        descend.set_num_threads(2)  # what is said to the engine itself holds until PyTorch changes
        call.run()
        assert descend.get_num_threads() == 2
    finally:
        torch.set_num_threads(pytorchs)
        call.run()
        descend.set_num_threads(engines)


@both
def test_inference_mode():
    call = calls()["layer_norm"]
    with torch.inference_mode():
        results = call.run(*(a.clone() if isinstance(a, Tensor) else a for a in call.args))
    for result, expected in zip(results, call.run(), strict=True):
        assert torch.equal(result, expected)


def with_inference_tensors(call: Call, places: list[int], requires_grad: bool = False) -> Call:
    """The call with tensors that were made in inference mode, in some places."""
    args = list(call.args)
    with torch.inference_mode():
        for place in places:
            args[place] = args[place].clone().requires_grad_(requires_grad)
    return Call(call.name, tuple(args), call.named)


@both
@registrations_in_turn(FORWARDS)
def test_inference_tensors_that_need_no_gradient(name):
    """PyTorch cannot save inference tensors. If a gradient needs such a tensor's value, PyTorch's error says so."""
    call = calls()[name]
    tensors = [i for i, a in enumerate(call.args) if isinstance(a, Tensor)]
    for place in call.floats:
        others = [t for t in tensors if t != place]
        mixed = with_inference_tensors(call, others)
        leaf = call.args[place].clone().requires_grad_()
        results = present(mixed.run(*mixed.args[:place], leaf, *mixed.args[place + 1 :]))
        (result,) = torch.autograd.grad(sum((r * r.cos()).sum() for r in results), leaf)
        torch.testing.assert_close(result, gradients(call, [place])[0], rtol=1e-12, atol=1e-12)


@both
@pytest.mark.parametrize("name", ["rms_norm", "layer_norm", "nsa_compress"])
def test_parameters_made_in_inference_mode(name):
    """Their gradients do not need their values. The input's gradient does, and PyTorch's error says what to do."""
    call = calls()[name]
    places = call.floats[1:]
    leaves = with_inference_tensors(call, places, requires_grad=True)
    results = torch.autograd.grad(
        sum((r * r.cos()).sum() for r in present(leaves.run())), [leaves.args[p] for p in places]
    )
    for result, wanted in zip(results, gradients(call, places), strict=True):
        torch.testing.assert_close(result, wanted, rtol=1e-12, atol=1e-12)
    with pytest.raises(RuntimeError, match="Inference tensors cannot be saved for backward"):
        leaves.run(leaves.args[0].clone().requires_grad_(), *leaves.args[1:])


@both
def test_a_model_made_in_inference_mode():
    with torch.inference_mode():
        model = torch.nn.Sequential(torch.nn.RMSNorm(8))
    descend.torch.patch(model)
    x = torch.randn(4, 8)
    model(x).sum().backward()
    torch.testing.assert_close(model[0].weight.grad, torch.nn.functional.rms_norm(x, [8]).sum(0))


@both
def test_saved_tensors_that_are_overwritten_are_noticed():
    x = torch.randn(4, 8)
    weight = torch.ones(8, requires_grad=True)
    y, _ = descend.torch.rms_norm(x, weight)
    x.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


# --- derivatives ---------------------------------------------------------------------------------------------------


def gradients(call: Call, places: list[int], second: bool = False) -> list[Tensor]:
    """The gradients of a scalar that reads all results; with ``second`` also those of a scalar that reads them."""
    call = Call(call.name, tuple(a.detach() if isinstance(a, Tensor) else a for a in call.args), call.named)
    for place in places:
        call.args[place].requires_grad_()
    inputs = [call.args[place] for place in places]
    first = torch.autograd.grad(sum((r * r.cos()).sum() for r in present(call.run())), inputs, create_graph=second)
    if not second:
        return list(first)
    return [*first, *torch.autograd.grad(sum((g * g.cos()).sum() for g in first), inputs)]


def of_floats(call: Call) -> tuple[Any, tuple[Tensor, ...]]:
    """The call as a function of its floating tensors, and these as leaves."""
    leaves = call.wanting(call.floats)

    def function(*values: Tensor) -> tuple[Tensor, ...]:
        args = list(leaves.args)
        for place, value in zip(call.floats, values, strict=True):
            args[place] = value
        return present(call.run(*args))

    return function, tuple(leaves.args[place] for place in call.floats)


@each_call
def test_gradcheck(name):
    function, inputs = of_floats(calls()[name])
    assert gradcheck(function, inputs)
    assert gradcheck(function, inputs, fast_mode=True, check_forward_ad=True, check_backward_ad=False)


@both
@each_call_in_turn
def test_gradgradcheck(name):
    function, inputs = of_floats(calls()[name])
    assert gradgradcheck(function, inputs, fast_mode=name not in OPERATORS)  # the whole matrix once for each operator


@both
@pytest.mark.parametrize(
    "name", ["rms_norm", "layer_norm", "group_norm_swish", "scaled_masked_softmax", "nsa_compress"]
)
def test_third_derivatives(name):
    function, inputs = of_floats(calls()[name])

    def gradient(*values: Tensor) -> tuple[Tensor, ...]:
        return torch.autograd.grad(sum(r.sin().sum() for r in function(*values)), values, create_graph=True)

    assert gradgradcheck(gradient, inputs, fast_mode=True)


@both
@each_call_in_turn
def test_gradients_of_every_subset_of_inputs(name):
    call = calls()[name]
    everything = dict(zip(call.floats, gradients(call, call.floats), strict=True))
    for count in range(1, len(call.floats)):
        for places in itertools.combinations(call.floats, count):
            for place, gradient in zip(places, gradients(call, list(places)), strict=True):
                torch.testing.assert_close(gradient, everything[place], rtol=1e-12, atol=1e-12)


@each_operator
def test_second_derivatives_of_one_input_at_a_time(name):
    call = calls()[name]
    for place in call.floats:
        values = [a.detach() if isinstance(a, Tensor) else a for a in call.args]

        def function(value: Tensor, place: int = place, values: list[Any] = values) -> tuple[Tensor, ...]:
            return present(call.run(*values[:place], value, *values[place + 1 :]))

        assert gradgradcheck(function, values[place].clone().requires_grad_(), fast_mode=True)


@each_call
def test_second_derivatives_in_sixteen_bits(name):
    """As in float64, from the same numbers, to a few roundings."""
    low = calls(torch.bfloat16)[name]
    results: list[tuple[Tensor, ...]] = []
    for call in (low, low.map(lambda t: t.double())):
        function, inputs = of_floats(call)
        random = torch.Generator().manual_seed(4)

        def read(tensors: Any, random: torch.Generator = random) -> Tensor:
            return sum((t * draw(t.shape, random).to(t.dtype)).sum() for t in tensors)

        first = torch.autograd.grad(read(function(*inputs)), inputs, create_graph=True)
        results.append(torch.autograd.grad(read(first), inputs, allow_unused=True, materialize_grads=True))
    for result, exact in zip(*results, strict=True):
        assert result.dtype is torch.bfloat16
        assert (result - exact).norm() <= 0.05 * exact.norm() + 0.01


@both
@pytest.mark.parametrize("name", ["rms_norm", "layer_norm", "group_norm_swish"])
def test_gradients_of_one_result_at_a_time(name):
    function, inputs = of_floats(calls()[name])
    for result in range(len(function(*inputs))):
        alone = [
            i
            for i, g in zip(
                inputs, torch.autograd.grad(function(*inputs)[result].sum(), inputs, allow_unused=True), strict=True
            )
            if g is not None
        ]
        assert alone
        assert len(alone) == (len(inputs) if result == 0 else 1)  # the statistics depend on the input alone

        def one(value: Tensor, result: int = result) -> Tensor:
            return function(value, *inputs[1:])[result]

        assert gradcheck(one, inputs[0])
        assert gradgradcheck(one, inputs[0])


@both
@pytest.mark.parametrize("wanted", [w for w in itertools.product((False, True), repeat=3) if any(w)])
def test_only_what_is_asked_for_is_computed(wanted):
    places = [p for p, want in zip((0, 2, 3), wanted, strict=True) if want]
    layer = calls()["layer_norm"].wanting(places)
    group = calls()["group_norm_swish"].wanting([p for p, want in enumerate(wanted) if want])
    with Log() as log:
        layer.run()[0].sum().backward()
        group.run()[0].sum().backward()
    assert tuple(log.calls["layer_norm_backward"]["output_mask"]) == wanted
    flags = log.calls["group_norm_swish_grad"]
    assert (flags["dgamma_is_require"], flags["dbeta_is_require"]) == wanted[1:]
    for call in (layer, group):
        for leaf in (a for a in call.args if isinstance(a, Tensor)):
            assert (leaf.grad is not None) == leaf.requires_grad


@both
def test_no_gradients_no_graph():
    call = calls()["layer_norm"].wanting([0, 2, 3])
    with torch.no_grad():
        assert not any(r.requires_grad for r in call.run())
    plain = calls()["layer_norm"]
    assert all(r.grad_fn is None for r in plain.run())


NUMBERS: dict[str, Callable[[Tensor, Any], Any]] = {
    "rms_norm: epsilon": lambda x, n: descend.torch.rms_norm(x, x[0], n),
    "layer_norm: eps": lambda x, n: descend.torch.layer_norm(x, [4], eps=n),
    "group_norm_swish: eps": lambda x, n: descend.torch.group_norm_swish(x, x[0], x[0], 2, eps=n),
    "group_norm_swish: swish_scale": lambda x, n: descend.torch.group_norm_swish(x, x[0], x[0], 2, swish_scale=n),
    "group_norm_swish_grad: swish_scale": lambda x, n: descend.torch.group_norm_swish_grad(
        x, x[:, :2], x[:, :2], x, x[0], x[0], 2, swish_scale=n
    ),
    "scaled_masked_softmax: scale": lambda x, n: descend.torch.scaled_masked_softmax(x, None, n),
    "scaled_masked_softmax_backward: scale": lambda x, n: descend.torch.scaled_masked_softmax_backward(x, x, None, n),
}


@pytest.mark.parametrize("name", NUMBERS)
def test_numbers_whose_gradients_would_be_lost_are_refused(name):
    call, x = NUMBERS[name], torch.rand(3, 4)
    plain = torch.tensor(0.5)
    leaf = plain.clone().requires_grad_()
    expected = call(x, 0.5)
    for number in (plain, leaf.detach()):
        torch.testing.assert_close(call(x, number), expected, rtol=0, atol=0)
    with torch.no_grad():
        torch.testing.assert_close(call(x, leaf), expected, rtol=0, atol=0)
    with pytest.raises(descend.errors.AclnnValueError, match=f"^{name} requires gradients, .* detach"):
        call(x, leaf)
    with pytest.raises(descend.errors.AclnnValueError, match=f"^{name} has a forward-mode tangent, .* detach"):
        torch.func.jvp(lambda n: call(x, n), (plain,), (plain,))


@both
def test_gradients_have_the_dtypes_of_what_they_are_for():
    for x_dtype, dtype in itertools.product(DTYPES, DTYPES):
        x = torch.randn(4, 8).to(x_dtype).requires_grad_()
        weight, bias = (torch.randn(8).to(dtype).requires_grad_() for _ in range(2))
        losses = (
            descend.torch.rms_norm(x, weight)[0],
            descend.torch.layer_norm(x, [8], weight, bias)[0],
            descend.torch.group_norm_swish(x, weight, bias, 2)[0],
        )
        for y in losses:
            assert y.dtype is x_dtype
            y.sum().backward()
        assert x.grad.dtype is x_dtype
        assert weight.grad.dtype is bias.grad.dtype is dtype


@both
def test_group_norm_without_swish_is_pytorchs():
    call = calls()["group_norm_swish-norm"].wanting([0, 1, 2])
    x, gamma, beta = call.args[:3]
    ours = call.run()[0]
    theirs = torch.nn.functional.group_norm(x, 2, gamma, beta)
    torch.testing.assert_close(ours, theirs)
    given = torch.randn_like(ours)
    for a, b in zip(
        torch.autograd.grad(ours, (x, gamma, beta), given),
        torch.autograd.grad(theirs, (x, gamma, beta), given),
        strict=True,
    ):
        torch.testing.assert_close(a, b)


# --- errors --------------------------------------------------------------------------------------------------------

WRONG = {
    "rms_norm": lambda d: descend.torch.rms_norm(torch.ones(2, 8, device=d), torch.ones(9, device=d)),
    "layer_norm": lambda d: descend.torch.layer_norm(torch.ones(2, 8, device=d), [9]),
    "group_norm_swish": lambda d: descend.torch.group_norm_swish(
        torch.ones(2, 8, device=d), torch.ones(8, device=d), torch.ones(8, device=d), 3
    ),
    "scaled_masked_softmax": lambda d: descend.torch.scaled_masked_softmax(
        torch.ones(2, 8, device=d), torch.ones(7, device=d, dtype=torch.bool)
    ),
    "nsa_compress": lambda d: descend.torch.nsa_compress(
        torch.ones(9, 2, 3, device=d), torch.ones(4, 2, device=d), compress_block_size=5, compress_stride=1
    ),
    "rms_norm_grad": lambda d: descend.torch.rms_norm_grad(
        *(torch.ones(s, device=d) for s in ((2, 7), (2, 8), (2,), (8,)))
    ),
}


@pytest.mark.parametrize("device", [None, "meta"])  # None: where the tests are made
@pytest.mark.parametrize("name", WRONG)
def test_wrong_calls_get_the_engines_sentence(name, device):
    with pytest.raises(descend.errors.AclnnValueError, match=f"^{name}: .* (must|does not broadcast) "):
        WRONG[name](device)


@both
def test_wrong_dtypes():
    with pytest.raises(ValueError, match="rms_norm: x has dtype INT32, but must be FLOAT"):
        descend.torch.rms_norm(torch.ones(2, 8, dtype=torch.int32), torch.ones(8))


@both
def test_tensors_on_two_devices():
    x = torch.ones(2, 8)
    sentence = f"rms_norm: all tensors must be on one device, but there are x on {x.device}, gamma on meta."
    with pytest.raises(descend.errors.AclnnValueError, match=f"^{sentence}$"):
        descend.torch.rms_norm(x, torch.ones(8, device="meta"))


@pytest.mark.cpu
@each_operator
def test_the_key_for_cuda_never_computes_on_the_cpu(name):
    """CPU tensors passed to the CUDA kernels directly are refused (without Triton: test_triton.py)."""
    new_enough = hasattr(pytest.importorskip("triton"), "knobs")
    call = calls()[name]
    keys = torch._C.DispatchKeySet(torch._C.DispatchKey.CUDA)
    where = f"^{name}: the tensors are on cpu, but Triton's kernels need CUDA"
    version = rf"^{name} on CUDA tensors needs Triton 3\.6 or newer, but 3\.\d+\.\d+ is installed\.$"
    error: type[Exception] = ValueError
    if name in MISSING["triton"]:
        error, where = NotImplementedError, f"^{name} has no kernels for CUDA tensors; move the tensors to the CPU"
    with pytest.raises(error if new_enough else ImportError, match=where if new_enough else version):
        overload(call).redispatch(keys, *call.args, **call.named)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_an_only_element_has_no_gradient(dtype):
    """Rows or groups of one element, also by the definitions that second derivatives use."""
    x, dy, gamma, beta = (draw(shape, i).to(dtype) for i, shape in enumerate([(37, 5), (37, 5), (5,), (5,)]))
    for operators in (descend.torch, definitions):
        _, mean, rstd = operators.group_norm_swish(x, gamma, beta, 5)
        assert not operators.group_norm_swish_grad(dy, mean, rstd, x, gamma, beta, 5)[0].any()
        row = x[:, :1], [1]
        _, mean, rstd = operators.layer_norm(*row, gamma[:1], beta[:1])
        assert not operators.layer_norm_backward(dy[:, :1], *row, mean, rstd, gamma[:1])[0].any()
        y = operators.scaled_masked_softmax(x[:, :1], None, 2.0)
        assert not operators.scaled_masked_softmax_backward(dy[:, :1], y, None, 2.0).any()


@both
def test_sparse_tensors_are_refused():
    with pytest.raises(NotImplementedError, match=r"Sparse(CPU|CUDA)"):
        descend.torch.rms_norm(torch.eye(8).to_sparse(), torch.ones(8))


@both
def test_errors_in_a_backward_reach_the_caller():
    x = torch.randn(4, 8, requires_grad=True)
    y = descend.torch.scaled_masked_softmax(x, None)
    with pytest.raises(RuntimeError, match="shape"):
        y.backward(torch.ones(4, 7))
