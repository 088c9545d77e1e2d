"""PyTorch's tensors: results, layouts, gradients and traces that would be lost, tensors without memory."""

from __future__ import annotations

import gc
import warnings
from typing import Any

import numpy as np
import pytest

import descend
from array_calls import OP, expected_of, inputs
from cases import DTYPES, Array, assert_same_bits, phase1, refused, run_python
from descend import acl, aclnn

pytestmark = pytest.mark.usefixtures("little_to_collect")

torch = pytest.importorskip("torch")


def tensors(dtype: str = "float32") -> list[Any]:
    return [torch.from_numpy(a.copy()).to(getattr(torch, dtype)) for a in inputs()]


def numbers(*arrays: Any) -> list[Array]:
    return [a.detach().double().numpy() for a in arrays]


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float64"])
def test_pytorch_in_pytorch_out(dtype):
    call = tensors(dtype)
    results = descend.rms_norm_grad(*call)
    assert [type(r) for r in results] == [torch.Tensor] * 2
    assert results[0].dtype == call[0].dtype
    assert results[1].dtype == (torch.float64 if dtype == "float64" else torch.float32)
    assert not results[0].requires_grad
    kind = DTYPES[{"float32": "FLOAT", "float16": "FLOAT16", "bfloat16": "BFLOAT16", "float64": "DOUBLE"}[dtype]]
    expected = descend.rms_norm_grad(*(a.double().numpy().astype(kind) for a in call))
    assert_same_bits(numbers(*results), [e.astype(np.float64) for e in expected])
    results[0].add_(1)  # writeable, and PyTorch's own
    torch.add(results[0], results[0]).sum()


def test_pytorch_layouts():
    call = tensors()
    expected = numbers(*descend.rms_norm_grad(*call))
    x = call[1]
    for variant in (
        x.t().contiguous().t(),
        torch.stack([x, x], dim=2)[:, :, 1],
        torch.cat([x, x])[4:],
        x.expand(3, 4, 32)[2],
        torch.as_strided(torch.cat([x.flatten(), x.flatten()]), (4, 32), (32, 1), 128),
    ):
        assert_same_bits(numbers(*descend.rms_norm_grad(call[0], variant, *call[2:])), expected)
    base = torch.zeros(4, 64)
    result = descend.rms_norm_grad(*call, out=(base[:, ::2], None))[0]
    assert result.data_ptr() == base.data_ptr()
    assert_same_bits(numbers(result), expected[:1])
    assert not base[:, 1::2].any()


def test_families_follow_the_first_argument():
    call, torches = inputs(), tensors()
    dx, dgamma = descend.rms_norm_grad(call[0], *torches[1:])
    assert type(dx) is type(dgamma) is np.ndarray
    dx, dgamma = descend.rms_norm_grad(torches[0], *call[1:])
    assert type(dx) is type(dgamma) is torch.Tensor
    out = np.zeros((4, 32), np.float32)
    dx, dgamma = descend.rms_norm_grad(*torches, out=(out, None))
    assert dx is out
    assert type(dgamma) is torch.Tensor


def test_gradients_that_would_be_lost_are_refused():
    call = tensors()
    for i, name in enumerate(("dy", "x", "rstd", "gamma")):
        wanting = list(call)
        wanting[i] = torch.nn.Parameter(call[i].clone()) if i % 2 else call[i].clone().requires_grad_()
        with refused(161002, OP, name, "requires gradients", "descend.torch's function", "no_grad", "detach"):
            descend.rms_norm_grad(*wanting)
        with refused(161002, OP, name, "requires gradients"), acl.product("host"):
            phase1(OP, *wanting, torch.zeros(4, 32), torch.zeros(32))
        expected = numbers(*descend.rms_norm_grad(*call))
        for mode in (torch.no_grad, torch.inference_mode):
            with mode():
                assert_same_bits(numbers(*descend.rms_norm_grad(*wanting)), expected)
        wanting[i] = wanting[i].detach()
        assert_same_bits(numbers(*descend.rms_norm_grad(*wanting)), expected)
    leaf = torch.zeros(4, 32, requires_grad=True)
    with refused(161002, OP, "dx_out", "requires gradients"):
        descend.rms_norm_grad(*call, out=(leaf, None))
    # Not a leaf, but part of a graph.
    with refused(161002, OP, "x", "requires gradients"):
        descend.rms_norm_grad(call[0], leaf * 2, *call[2:])
    # A number.
    scale = torch.tensor(0.5, requires_grad=True)
    with refused(161002, "scaled_masked_softmax", "scale", "requires gradients", "no_grad", "detach"):
        descend.scaled_masked_softmax(call[0], None, scale)
    expected = numbers(descend.scaled_masked_softmax(call[0], None, 0.5))
    assert_same_bits(numbers(descend.scaled_masked_softmax(call[0], None, scale.detach())), expected)
    with torch.no_grad():
        assert_same_bits(numbers(descend.scaled_masked_softmax(call[0], None, scale)), expected)


@pytest.mark.parametrize("name", ["trace", "make_fx"])
def test_traces_that_would_keep_results_as_constants_are_refused(name):
    from torch.fx.experimental.proxy_tensor import make_fx

    dy, x, rstd, gamma = tensors()
    result = torch.empty_like(x), torch.empty_like(gamma)

    def functional(x):
        return descend.rms_norm_grad(dy, x, rstd, gamma)[0]

    def two_phase(x):
        with acl.product("host"):
            phase1(OP, dy, x, rstd, gamma, *result)
        return x

    def mixed(x):
        descend.rms_norm_grad(dy.numpy(), x, rstd, gamma)
        return x

    def trace(function):
        return torch.jit.trace(function, (x,)) if name == "trace" else make_fx(function)(x)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of torch.jit
        for function in functional, two_phase, mixed:
            with pytest.raises(RuntimeError, match=r"tracing.*descend\.torch"):
                trace(function)
    functional(x)


def test_a_mode_that_only_looks_on_changes_nothing():
    from torch.utils._python_dispatch import TorchDispatchMode

    class Looks(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            return function(*args, **(kwargs or {}))

    call = tensors()
    with Looks():
        results = descend.rms_norm_grad(*call)
    assert_same_bits(numbers(*results), numbers(*descend.rms_norm_grad(*call)))


MOVES = {
    "data": lambda t: setattr(t, "data", torch.full_like(t, 2)),
    "set_": lambda t: t.set_(torch.full_like(t, 2)),
    "resize_": lambda t: t.resize_(1 << 20),
    "freed": lambda t: t.untyped_storage().resize_(0),
    "transposed": lambda t: t.t_(),
}


@pytest.mark.parametrize("name", ["x", "dx_out"])
@pytest.mark.parametrize("move", MOVES)
def test_a_tensor_that_was_given_other_memory_between_the_phases(move, name):
    dy, _, rstd, gamma = tensors()
    made = {"dy": dy, "x": torch.ones(4, 32), "rstd": rstd, "gamma": gamma}
    made |= {"dx_out": torch.empty(4, 32), "dgamma_out": torch.empty(32)}
    with acl.product("host"):
        size, executor = phase1(OP, *made.values())
    executor.set_repeatable()
    workspace = acl.malloc(size)
    aclnn.rms_norm_grad(workspace, size, executor, None)
    MOVES[move](made[name])
    with refused(161002, OP, name, "other memory", "set_tensor"):
        aclnn.rms_norm_grad(workspace, size, executor, None)
    made[name] = torch.full((4, 32), 3.0)
    executor.set_tensor(name, made[name])
    aclnn.rms_norm_grad(workspace, size, executor, None)
    acl.synchronize()
    expected = descend.rms_norm_grad(dy, made["x"], rstd, gamma)
    assert_same_bits(numbers(made["dx_out"], made["dgamma_out"]), numbers(*expected))


def test_memory_that_tensors_give_up_is_kept_for_work_in_flight():
    shape = (512, 4096)
    dy, x, rstd, gamma = torch.ones(shape), torch.full(shape, 2.0), torch.ones(shape[0]), torch.ones(shape[1])
    expected = numbers(*descend.rms_norm_grad(dy, x, rstd, gamma))
    dx, dgamma = torch.empty(shape), torch.empty(shape[1])
    with acl.product("host"):
        size, executor = phase1(OP, dy, x, rstd, gamma, dx, dgamma)
    executor.set_repeatable()
    workspace, stream = acl.malloc(size), acl.Stream()
    for _ in range(30):
        aclnn.rms_norm_grad(workspace, size, executor, stream)
    written = dx.detach(), dgamma.detach()
    for tensor in (dy, x, rstd, gamma, dx):
        tensor.data = torch.empty(0)
    del tensor
    gc.collect()
    stream.synchronize()
    assert_same_bits(numbers(*written), expected)


def test_tangents_that_would_be_lost_are_refused():
    forward_ad = torch.autograd.forward_ad
    call = tensors()
    expected = numbers(*descend.rms_norm_grad(*call))
    with forward_ad.dual_level():
        for i, name in enumerate(("dy", "x", "rstd", "gamma")):
            dual = list(call)
            dual[i] = forward_ad.make_dual(call[i], torch.ones_like(call[i]))
            with refused(161002, OP, name, "forward-mode tangent", "detach"):
                descend.rms_norm_grad(*dual)
            with refused(161002, OP, name, "forward-mode tangent"), acl.product("host"):
                phase1(OP, *dual, torch.zeros(4, 32), torch.zeros(32))
            with torch.inference_mode():
                assert_same_bits(numbers(*descend.rms_norm_grad(*dual)), expected)
            dual[i] = dual[i].detach()
            assert_same_bits(numbers(*descend.rms_norm_grad(*dual)), expected)
        out = forward_ad.make_dual(torch.zeros(4, 32), torch.ones(4, 32))
        with refused(161002, OP, "dx_out", "forward-mode tangent"):
            descend.rms_norm_grad(*call, out=(out, None))
    assert_same_bits(numbers(*descend.rms_norm_grad(*call, out=(out, None))), expected)


def test_lazily_negated_tensors():
    call = tensors()
    negated = torch._neg_view(call[1])
    assert negated.is_neg()
    with refused(161002, OP, "x", "negated", "resolve_neg"):
        descend.rms_norm_grad(call[0], negated, *call[2:])
    with refused(161002, OP, "dx_out", "negated"):
        descend.rms_norm_grad(*call, out=(negated, None))
    assert_same_bits(
        numbers(*descend.rms_norm_grad(call[0], negated.resolve_neg(), *call[2:])),
        numbers(*descend.rms_norm_grad(call[0], -call[1], *call[2:])),
    )


def test_an_expanded_output_is_refused():
    call = tensors()
    with refused(161002, OP, "dx_out", "overlap each other"):
        descend.rms_norm_grad(*call, out=(torch.zeros(1, 32).expand(4, 32), None))


def no_memory() -> dict[str, Any]:
    """Tensors that have no memory of their own."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        fake = torch.zeros(4, 32)
    return {
        "meta": torch.zeros(4, 32, device="meta"),
        "sparse": torch.eye(4, 32).to_sparse(),
        "csr": torch.eye(4, 32).to_sparse_csr(),
        "fake": fake,
        "nested": torch.nested.nested_tensor([torch.zeros(32)] * 4, layout=torch.jagged),
    }


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ["meta", "sparse", "csr", "fake", "nested"])
def test_tensors_without_memory_are_refused(kind):
    call, x = tensors(), no_memory()[kind]
    with refused(161002, OP, "x "):
        descend.rms_norm_grad(call[0], x, *call[2:])
    with refused(161002, OP, "dx_out "):
        descend.rms_norm_grad(*call, out=(x, None))


@pytest.mark.parametrize("transform", ["vmap", "grad", "jvp", "jacfwd"])
def test_transforms_of_functions_are_refused(transform):
    """torch.func's transforms cannot see into the call: it is refused with a sentence, not computed wrongly."""
    call = tensors()

    def through(x: Any) -> Any:
        return descend.rms_norm_grad(call[0], x, call[2], call[3])[0].sum()

    with refused(161002, OP, "x "):
        if transform == "vmap":
            torch.vmap(through)(torch.stack([call[1]] * 3))
        elif transform == "jvp":
            torch.func.jvp(through, (call[1],), (call[1],))
        else:
            getattr(torch.func, transform)(through)(call[1])


def test_subclasses_of_tensors():
    class Mine(torch.Tensor):
        pass

    call = tensors()
    expected = numbers(*descend.rms_norm_grad(*call))
    mine = [a.as_subclass(Mine) for a in call]
    assert_same_bits(
        [np.asarray(a.as_subclass(torch.Tensor)).astype(float) for a in descend.rms_norm_grad(*mine)], expected
    )
    out = torch.zeros(4, 32).as_subclass(Mine)
    assert descend.rms_norm_grad(*call, out=(out, None))[0] is out
    buffers = [torch.nn.Buffer(a) for a in call]
    assert_same_bits(numbers(*descend.rms_norm_grad(*buffers)), expected)


@pytest.mark.parametrize("mode", ["enable_grad", "no_grad"])
@pytest.mark.parametrize("form", ["functional", "two-phase"])
def test_written_tensors_count_a_version(mode, form):
    """Autograd must notice that a tensor which it saved was overwritten, as it does for PyTorch's own operators."""
    call = tensors()
    leaf, saved = torch.ones(4, 32, requires_grad=True), torch.ones(4, 32)
    loss = (leaf * saved).sum()
    version = saved._version
    with getattr(torch, mode)():
        if form == "functional":
            descend.rms_norm_grad(*call, out=(saved, None))
        else:
            with acl.product("host"):
                size, executor = phase1(OP, *call, saved, torch.zeros(32))
            assert saved._version == version
            aclnn.rms_norm_grad(acl.malloc(size), size, executor, None)
            acl.synchronize()
    assert saved._version > version
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()
    assert [a._version for a in call] == [0] * 4


def test_inference_tensors():
    with torch.inference_mode():
        call = [a.clone() for a in tensors()]
        out = torch.zeros(4, 32)
        assert out.is_inference()
        descend.rms_norm_grad(*call, out=(out, None))
    assert_same_bits(numbers(out), numbers(descend.rms_norm_grad(*tensors())[0]))
    descend.rms_norm_grad(*call, out=(out, None))  # outside, too


def test_results_of_pytorch_own_their_memory():
    for rows in (4, 40_000):
        call = [torch.from_numpy(a) for a in inputs(rows=rows)]
        first = descend.rms_norm_grad(*call)
        kept = [a.clone() for a in first]
        tail = first[0][-1:]
        del first
        gc.collect()
        descend.empty_cache()
        other = [descend.rms_norm_grad(*(a * 2 for a in call)) for _ in range(3)]
        assert torch.equal(tail, kept[0][-1:])
        del other


def test_pytorch_is_never_imported():
    code = """
import sys
import numpy as np
import descend
descend.rms_norm(np.ones((2, 8)), np.ones(8))
print([m for m in ("torch", "jax", "safetensors", "typer", "rich") if m in sys.modules])
import torch  # and if it comes later, it is known
print(type(descend.rms_norm(torch.ones(2, 8), torch.ones(8))[0]).__name__)
"""
    assert run_python(code).stdout == "[]\nTensor\n"


def test_pytorch_with_numpy_is_one_memory():
    call = inputs()
    out = torch.zeros(4, 32)
    descend.rms_norm_grad(*call, out=(out.numpy(), None))
    assert_same_bits([out.numpy()], expected_of(call)[:1])
