"""The kernels in C++ (descend._torch) beside those in Python: the same results and errors, and no Python in a step."""

from __future__ import annotations

import functools
import os
import sys
import threading
import time

import numpy
import pytest
import torch
from torch import nn

import descend.torch
import forks
import torch_cases
from cases import in_turn
from descend import _torch_module
from descend.errors import AclnnError
from descend.torch import library
from torch_cases import FORWARDS

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


@pytest.fixture(autouse=True)
def _cpp(cpp):
    yield
    library.leave_to_python(False)


def from_python(function):
    """The function's result when C++ leaves all calls to Python."""
    library.leave_to_python()
    try:
        return function()
    finally:
        library.leave_to_python(False)


def same(one, other):
    if one is None or other is None:
        return one is other
    bits = {2: torch.int16, 4: torch.int32, 8: torch.int64}[one.element_size()]
    return one.dtype == other.dtype and one.stride() == other.stride() and torch.equal(one.view(bits), other.view(bits))


def python_calls(function):
    """The Python functions of this package that run while the function does."""
    seen = set()
    folder = os.path.dirname(descend.__file__)

    def note(frame, event, _):
        if event == "call" and frame.f_code.co_filename.startswith(os.path.realpath(folder)):
            seen.add(frame.f_code.co_qualname if sys.version_info >= (3, 11) else frame.f_code.co_name)

    sys.setprofile(note)
    try:
        function()
    finally:
        sys.setprofile(None)
    return seen


@pytest.mark.parametrize(("name", "dtype"), in_turn(torch_cases.NAMES, DTYPES, each=2))
def test_results(name, dtype):
    call = torch_cases.calls(dtype)[name]
    for one, other in zip(call.run(), from_python(call.run), strict=True):
        assert same(one, other)


@pytest.mark.parametrize(("name", "dtype"), in_turn(FORWARDS, DTYPES, each=2))
def test_gradients_of_the_first_result(name, dtype):
    def gradients():
        call = torch_cases.calls(dtype)[name]
        leaves = call.wanting(call.floats)
        y = leaves.run()[0]
        random = torch.Generator().manual_seed(1)
        y.backward(torch.randn(y.shape, generator=random).to(dtype))
        return [leaves.args[place].grad for place in call.floats]

    for one, other in zip(gradients(), from_python(gradients), strict=True):
        assert same(one, other)


@pytest.mark.parametrize("name", [n for n in FORWARDS if "norm" in n])
def test_gradients_through_the_statistics(name):
    def gradients(create_graph):
        call = torch_cases.calls(torch.float64)[name]
        leaves = call.wanting(call.floats)
        results = torch_cases.present(leaves.run())
        loss = sum(((k + 1.5) * r.sin()).sum() for k, r in enumerate(results))
        tensors = [leaves.args[place] for place in call.floats]
        first = torch.autograd.grad(loss, tensors, create_graph=create_graph)
        if not create_graph:
            return first
        return first + torch.autograd.grad(sum((g * g).sum() for g in first), tensors)

    for create_graph in (False, True):
        pythons = from_python(functools.partial(gradients, create_graph))
        for one, other in zip(gradients(create_graph), pythons, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("name", [name for name in torch_cases.OPERATORS if name in FORWARDS])
def test_linearization(name):
    """The engine is called below autograd then, within a level of forward mode."""

    def slopes():
        call = torch_cases.calls(torch.float64)[name]
        inputs = tuple(call.args[place] for place in call.floats)

        def function(*values):
            args = list(call.args)
            for place, value in zip(call.floats, values, strict=True):
                args[place] = value
            return tuple(r for r in call.run(*args) if r is not None)

        results, pushforward = torch.func.linearize(function, *inputs)
        return (*results, *pushforward(*inputs))

    for one, other in zip(slopes(), from_python(slopes), strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("shape", [(4, 8), (3, 8, 2), (2, 8, 2, 3), (0, 8)])
def test_gradients_through_the_statistics_of_groups(shape):
    def gradients():
        random = torch.Generator().manual_seed(0)
        x = torch.randn(shape, generator=random, dtype=torch.float64, requires_grad=True)
        results = descend.torch.group_norm_swish(x, torch.ones(8).double(), torch.ones(8).double(), 2)
        return torch.autograd.grad(sum((r * r).sum() for r in results), x)

    torch.testing.assert_close(gradients(), from_python(gradients), rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("scale", [1e20, 1e-20])
def test_gradients_through_the_statistics_at_extremes(scale):
    """rstd ** 3 overflows float32, but the product with it does not."""
    x = torch.randn(2, 4, 8)
    calls = {
        "rms_norm": (torch.ones(8), 0.0),
        "layer_norm": ([8], None, None, 0.0),
        "group_norm_swish": (torch.ones(4), torch.ones(4), 2, "NCHW", 0.0),
    }

    def gradient(name, x, scale):
        args = [a.to(x.dtype) if isinstance(a, torch.Tensor) else a for a in calls[name]]
        x = (x * scale).requires_grad_()
        return torch.autograd.grad((getattr(descend.torch, name)(x, *args)[-1] * scale).sum(), x)[0] * scale

    for name in calls:
        for one in (gradient(name, x, scale), from_python(lambda: gradient(name, x, scale))):  # noqa: B023
            torch.testing.assert_close(one, gradient(name, x.double(), 1.0).float())


@pytest.mark.parametrize("name", torch_cases.OPERATORS)
def test_no_python_runs_below_the_dispatcher(name):
    call = torch_cases.calls(torch.float32)[name]
    overload = getattr(torch.ops.descend, name).default
    assert python_calls(lambda: overload(*call.args, **call.named)) == set()
    assert from_python(lambda: python_calls(lambda: overload(*call.args, **call.named))) != set()


DERIVATIVES_IN_PYTHON = {
    "add_layer_norm": "a third term",
    "add_layer_norm-two": "the sum is no result, and derivative.cpp saves that in the place of its terms",
    "add_layer_norm-three": "a third term",
    "cross_entropy_loss": "the backward operator has no part of log_prob, lse and weight; training has cross_entropy",
    "cross_entropy_loss-mean": "as above",
    "cross_entropy_loss-sum": "as above",
    "group_norm_silu-plain": "the backward operator takes a weight and a bias",
    "group_norm_swish-norm": "the backward operator is group norm's",
}
"""Calls that derivative.cpp leaves to an autograd function in Python, and why."""


@pytest.mark.parametrize("name", FORWARDS)
def test_no_python_runs_in_a_step(name):
    call = torch_cases.calls(torch.float32)[name]
    leaves = call.wanting(call.floats)
    overload = getattr(torch.ops.descend, call.name).default

    def step():
        results = overload(*leaves.args, **leaves.named)
        results = results if isinstance(results, tuple) else (results,)
        sum(r.sum() for r in torch_cases.present(results)).backward()

    assert (python_calls(step) != set()) == (name in DERIVATIVES_IN_PYTHON)
    assert all(leaves.args[place].grad is not None for place in call.floats)


def test_errors_are_pythons():
    def sentence():
        with pytest.raises(AclnnError) as caught:
            descend.torch.rms_norm(torch.ones(2, 3, requires_grad=True), torch.ones(4))
        return caught.value.status, str(caught.value)

    assert sentence() == from_python(sentence)


def test_errors_in_a_backward_reach_the_caller():
    x = torch.randn(4, 8, requires_grad=True)
    y = descend.torch.rms_norm(x, torch.ones(8))[0]
    y.sum().backward()
    with pytest.raises(RuntimeError, match="second time"):
        y.sum().backward()
    weight = torch.ones(8, requires_grad=True)
    y = descend.torch.rms_norm(x, weight)[0]
    with torch.no_grad():
        weight.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_saved_tensors_pass_through_hooks():
    packed = []

    def pack(tensor):
        packed.append(tensor.shape)
        return tensor.numpy(force=True).copy()

    x = torch.randn(4, 8, requires_grad=True)
    dy = torch.randn(4, 8)
    with torch.autograd.graph.saved_tensors_hooks(pack, torch.from_numpy):
        y = descend.torch.layer_norm(x, [8])[0]
    assert sorted(map(tuple, packed)) == [(4, 1), (4, 1), (4, 8)]
    (through,) = torch.autograd.grad(y, x, dy)
    (plain,) = torch.autograd.grad(descend.torch.layer_norm(x, [8])[0], x, dy)
    assert same(through, plain)


@pytest.mark.parametrize("name", ["rms_norm", "layer_norm", "group_norm_swish", "scaled_masked_softmax"])
def test_a_hook_that_raises_leaves_nothing_behind(name):
    memory = numpy.linspace(0, 1, 32, dtype=numpy.float32).reshape(4, 8)
    rest = {"rms_norm": (torch.ones(8),), "layer_norm": ([8],), "group_norm_swish": (torch.ones(8), torch.ones(8), 2)}

    def refuse(tensor):
        raise RuntimeError("refused")

    def attempt():
        x = torch.from_numpy(memory).requires_grad_()
        with torch.autograd.graph.saved_tensors_hooks(refuse, refuse):
            try:
                getattr(descend.torch, name)(x, *rest.get(name, (None,)))
            except RuntimeError as error:
                return str(error)
        return ""

    before = sys.getrefcount(memory)
    assert "refused" in attempt()
    assert sys.getrefcount(memory) == before


def test_a_freed_storage_is_an_error():
    base = torch.ones(4, 8)
    view = base[1:]
    base.untyped_storage().resize_(0)
    with pytest.raises(ValueError, match="x is a view of a storage that is freed"):
        descend.torch.rms_norm(view, torch.ones(8))


def test_a_sentence_reaches_callers_without_python():
    @torch.jit.script
    def scripted(x: torch.Tensor, weight: torch.Tensor):
        return torch.ops.descend.rms_norm(x, weight, 1e-6)[0]

    with pytest.raises(RuntimeError, match="gamma has shape"):
        scripted(torch.ones(2, 3), torch.ones(4))


def test_only_what_requires_gradients_gets_them():
    x, weight, bias = torch.randn(4, 8), torch.ones(8, requires_grad=True), torch.zeros(8)
    y = descend.torch.layer_norm(x, [8], weight, bias)[0]
    y.sum().backward()
    assert x.grad is None
    assert bias.grad is None
    assert weight.grad is not None
    assert y.requires_grad
    with torch.no_grad():
        assert not descend.torch.layer_norm(x, [8], weight, bias)[0].requires_grad


def test_many_sequences_take_no_longer_each():
    """Time must not grow with the square of their number. It is this process's own processor time."""
    ends = list(range(1, 500_001))
    x, weight = torch.zeros(ends[-1], 1, 1, requires_grad=True), torch.ones(1, 1)
    begin = time.process_time()
    y = descend.torch.nsa_compress(x, weight, ends, compress_block_size=1, compress_stride=1)
    y.sum().backward()
    assert time.process_time() - begin < 10
    assert bool((x.grad == 1).all())


def test_inference_mode():
    x = torch.randn(4, 8)
    with torch.inference_mode():
        y = descend.torch.rms_norm(x, torch.ones(8))[0]
    assert y.is_inference()
    assert same(y.clone(), descend.torch.rms_norm(x, torch.ones(8))[0])


def test_large_results_come_from_warm_pages():
    x = torch.randn(1024, 1024)
    addresses = set()
    for _ in range(5):
        y = descend.torch.rms_norm(x, torch.ones(1024))[0]
        addresses.add(y.data_ptr())
        del y
    assert len(addresses) == 1


def test_large_results_can_be_resized():
    y = descend.torch.rms_norm(torch.randn(512, 1024), torch.ones(1024))[0]
    expected = y.clone()
    assert y.untyped_storage().resizable()
    assert torch.equal(y.resize_(1024, 1024)[:512], expected)
    y.untyped_storage().resize_(0)
    assert torch.equal(torch.neg(expected, out=y.resize_(0)), -expected)


def test_subclasses_modes_and_transforms_are_left_to_python():
    x, weight = torch.randn(3, 8), torch.randn(8)
    plain = descend.torch.rms_norm(x, weight)[0]
    parameter = nn.Parameter(weight)
    assert same(descend.torch.rms_norm(x, parameter)[0].detach(), plain)
    both = torch.func.vmap(lambda row: descend.torch.rms_norm(row, weight)[0])(x)
    assert same(both, plain)
    tangent = torch.func.jvp(lambda t: descend.torch.rms_norm(t, weight)[0], (x,), (torch.ones_like(x),))[1]
    assert torch.isfinite(tangent).all()

    class Seen(torch.utils._python_dispatch.TorchDispatchMode):
        names = ()

        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            self.names += (str(function),)
            return function(*args, **(kwargs or {}))

    with Seen() as mode:
        descend.torch.rms_norm(x.requires_grad_(), weight)[0].sum().backward()
    assert "descend.rms_norm.default" in mode.names
    assert "descend.rms_norm_grad.default" in mode.names


@pytest.mark.parametrize("count", [1, 2, 3])
def test_the_engine_works_on_pytorchs_threads(count):
    x, dy = torch.randn(2048, 512), torch.randn(2048, 512)
    expected = descend.torch.layer_norm_backward(dy, x, [512], *descend.torch.layer_norm(x, [512])[1:])
    before, engine = torch.get_num_threads(), descend.get_num_threads()
    torch.set_num_threads(count)
    try:
        results = descend.torch.layer_norm_backward(dy, x, [512], *descend.torch.layer_norm(x, [512])[1:])
        assert descend.get_num_threads() == (count if count != before else engine)
        assert all(same(a, b) for a, b in zip(results, expected, strict=True))
    finally:
        torch.set_num_threads(before)
        descend.torch.rms_norm(x, torch.ones(512))


def test_many_callers_at_once():
    x = torch.randn(1024, 512)
    expected = descend.torch.rms_norm(x, torch.ones(512))[0]
    wrong = []

    def call():
        for _ in range(20):
            if not same(descend.torch.rms_norm(x, torch.ones(512))[0], expected):
                wrong.append(threading.get_ident())

    threads = [threading.Thread(target=call) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


IN_A_CHILD = """
import os, sys
import numpy, torch
{before}
x = torch.randn(2048, 512)
x.exp().sum()  # PyTorch's threads are there, and stay behind
child = os.fork()
if child == 0:
    code = 1
    try:
        import descend.torch
        y = descend.torch.rms_norm(x, torch.ones(512))[0]
        code = 0 if numpy.isfinite(y.numpy()).all() else 2  # PyTorch's own would wait for its threads for ever
    finally:
        os._exit(code)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.parametrize("before", ["import descend.torch", "pass"])
def test_a_forked_child_has_threads_of_its_own(before):
    program = IN_A_CHILD.format(before=before)
    forks.run(program, check=True)


def test_why_the_registration_is_pythons(monkeypatch, tmp_path):
    built_for = f"descend was built for PyTorch {torch.__version__}, but this is 1.0"
    with monkeypatch.context() as patch:
        patch.setattr(torch, "__version__", "1.0")
        assert _torch_module.load("descend._torch") == (None, built_for)

    def broken(name):
        raise ImportError("undefined symbol: at_nothing", name=name)

    with monkeypatch.context() as patch:
        patch.setattr(_torch_module.importlib, "import_module", broken)
        assert _torch_module.load("descend._torch") == (None, "undefined symbol: at_nothing")

    monkeypatch.setitem(sys.modules, "descend._torch", None)  # as where there is no such file
    assert _torch_module.load("descend._torch") == (None, "descend was built without PyTorch")
