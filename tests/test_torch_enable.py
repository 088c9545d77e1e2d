"""Descend under PyTorch's own norms (`descend.torch.enable`): results, conventions and errors are those without it."""

from __future__ import annotations

import concurrent.futures
import contextlib
import functools
import itertools
import math
import os
import re
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import gradcheck, gradgradcheck
from torch.fx.experimental.proxy_tensor import make_fx
from torch.testing import assert_close
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.common_modules import module_db
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

import descend.torch
from descend.torch import definitions, overriding, stable

DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
OVERRIDDEN = ("native_layer_norm", "native_layer_norm_backward", "_fused_rms_norm", "rms_norm", "layer_norm")
OPERATORS = [
    op for op in op_db if op.name in ("native_layer_norm", "nn.functional.layer_norm", "nn.functional.rms_norm")
]
NAMES = [op.name for op in OPERATORS]
aten: Any = torch.ops.aten


def kernels() -> list[str]:
    """What PyTorch would call for each operator and dispatch key."""
    return [torch._C._dispatch_dump_table(f"aten::{name}") for name in OVERRIDDEN]


PYTORCHS = kernels()


def are_pytorchs() -> bool:
    """Whether PyTorch's own kernels are back, or those of the stable interface stay because Python has other threads,
    such as those that torch.compile leaves."""
    return kernels() == PYTORCHS or (overriding._form() is stable and stable._has_other_threads())


@pytest.fixture(autouse=True, params=["C++", "stable"])
def _restored(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """With the kernels for this release of PyTorch, and with those for its stable interface."""
    if request.param == "C++":
        request.getfixturevalue("cpp")
    elif not stable.available():
        pytest.skip("this PyTorch has no stable interface that suffices")
    else:
        monkeypatch.setattr(overriding, "_form", lambda: stable)
    assert kernels() == PYTORCHS
    yield
    monkeypatch.setattr(stable, "_has_other_threads", lambda: False)  # those that torch.compile left call no norm now
    descend.torch.disable()
    end = time.monotonic() + 60  # a thread is counted until it is gone, which is some time after join() returns
    while kernels() != PYTORCHS and time.monotonic() < end:
        time.sleep(0.001)
        descend.torch.disable()
    assert kernels() == PYTORCHS


def test_kernels_of_the_stable_interface_are_not_registered_before_it_is_found():
    program = "from descend import _native; _native.override_norms(True)"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    assert "RuntimeError: PyTorch's stable interface was not found" in ended.stderr


def test_kernels_of_the_stable_interface_stay_while_python_has_other_threads():
    program = """
import threading, torch
from descend.torch import disable, enabled, overriding, stable
def kernels(): return torch._C._dispatch_dump_table("aten::rms_norm")
pytorchs, leave = kernels(), threading.Event()
overriding._form = lambda: stable
thread = threading.Thread(target=leave.wait, args=(60,))
with enabled():
    thread.start()
assert kernels() != pytorchs
assert "MulBackward0" in str(torch.nn.functional.rms_norm(torch.ones(2, 3, requires_grad=True), (3,)).grad_fn)
leave.set()
thread.join()
disable()
assert kernels() == pytorchs
"""
    subprocess.run([sys.executable, "-c", program], check=True)


def is_stable() -> bool:
    return overriding._form() is stable


def is_on() -> bool:
    """Whether Descend computes: its layer norm has the same bits as `descend.torch.layer_norm`, PyTorch's has not."""
    x = torch.arange(96.0).reshape(2, 48).cos()
    ours = torch.equal(F.layer_norm(x, (48,)), descend.torch.layer_norm(x, (48,))[0])
    leaf = x.clone().requires_grad_()
    assert (F.rms_norm(leaf, (48,)).grad_fn.name() == "FusedRmsNormBackward0") == ours
    return ours


def outcome(call: Callable[[], Any]) -> Any:
    """The tensors that a call returns, or its error."""
    try:
        return tree_leaves(call())
    except Exception as error:
        return error


def without_and_with(call: Callable[[], Any]) -> tuple[Any, Any]:
    theirs = outcome(call)
    with descend.torch.enabled():
        return theirs, outcome(call)


def same(call: Callable[[], Any], exact: Callable[[], Any] | None = None, **tolerance: float) -> Any:
    """Compares the call with Descend and without: errors and layouts are equal, numbers close.

    Where the dtype's precision is not enough for that, Descend's must be as close to ``exact``, the call in float64.
    """
    theirs, ours = without_and_with(call)
    if isinstance(theirs, Exception):
        assert str(ours) == str(theirs)
        # Through the stable interface a RuntimeError of any kind is a plain one.
        assert type(ours) is type(theirs) or (is_stable() and type(ours) is RuntimeError in type(theirs).__mro__)
        return ours
    assert not isinstance(ours, Exception), ours
    assert len(ours) == len(theirs)
    for place, (a, b) in enumerate(zip(ours, theirs, strict=True)):
        if not isinstance(b, Tensor):
            assert a == b
            continue
        assert (a.dtype, a.shape, a.stride(), a.requires_grad) == (b.dtype, b.shape, b.stride(), b.requires_grad)
        try:
            assert_close(a, b, equal_nan=True, **tolerance)
        except AssertionError:
            if exact is None:
                raise
            assert_close(a, tree_leaves(exact())[place].to(a.dtype), equal_nan=True, **tolerance)
    return ours


def in_float64(values: Any) -> Any:
    return tree_map_only(Tensor, lambda t: t.detach().double().requires_grad_(t.requires_grad), values)


# --- on and off ----------------------------------------------------------------------------------------------------


def test_enable_and_disable():
    assert not is_on()
    descend.torch.disable()  # nothing to undo
    assert not is_on()
    descend.torch.enable()
    descend.torch.enable()  # once is enough
    assert is_on()
    descend.torch.disable()
    assert not is_on()
    assert are_pytorchs()


def test_blocks_are_nested_and_end_by_exceptions():
    with descend.torch.enabled():
        with pytest.raises(KeyError), descend.torch.enabled():
            raise KeyError
        assert is_on()
    assert not is_on()
    with pytest.raises(KeyError), descend.torch.enabled():
        raise KeyError
    assert are_pytorchs()


def test_a_block_and_enable():
    with descend.torch.enabled():
        descend.torch.enable()
    assert is_on()  # as enable() said
    with descend.torch.enabled():
        descend.torch.disable()
        assert is_on()  # as the block says
    assert not is_on()


def test_a_decorated_function():
    function = descend.torch.enabled()(is_on)
    assert function()
    assert function()
    assert not is_on()


def test_blocks_of_two_threads():
    entered, leave = threading.Event(), threading.Event()

    def block():
        with descend.torch.enabled():
            entered.set()
            leave.wait(60)

    with descend.torch.enabled():
        thread = threading.Thread(target=block)
        thread.start()
        entered.wait(60)
    assert is_on()  # the other's is open
    leave.set()
    thread.join()
    assert not is_on()


def test_other_threads_may_compute_meanwhile():
    """Two faults have ended the process here, one of them once in a minute or so of these changes.

    PyTorch frees a kernel that is removed, even while a thread is about to call it. And it may read the pointer to a
    kernel twice, which is null the second time if the new kernel is in another (native/torch/overrides.cpp).
    """
    x, weight = torch.randn(5, 40), torch.randn(40)
    expected = [F.layer_norm(x, (40,), weight), F.rms_norm(x, (40,), weight)]
    stop, wrong = threading.Event(), []

    def compute():
        while not stop.is_set():
            leaf = x.clone().requires_grad_()
            results = [F.layer_norm(leaf, (40,), weight), F.rms_norm(leaf, (40,), weight)]
            sum(results).sum().backward()
            if not all(torch.allclose(a, b, atol=1e-5) for a, b in zip(results, expected, strict=True)):
                wrong.append(results)

    with concurrent.futures.ThreadPoolExecutor() as pool:
        threads = [pool.submit(compute) for _ in range(3)]
        end = time.monotonic() + 1
        while time.monotonic() < end:
            descend.torch.enable()
            assert is_on()
            descend.torch.disable()
            assert torch.equal(F.layer_norm(x, (40,), weight), expected[0])  # the same bits as before
        stop.set()
    for thread in threads:
        thread.result()  # raises what it raised
    assert not wrong


def test_a_thread_s_first_call_may_meet_a_change():
    """Removed while such a thread looked it up, a kernel of the stable interface got another's data, about once in a
    million changes: the process ended."""
    x, weight = torch.randn(5, 40), torch.randn(40)
    expected = F.rms_norm(x, (40,), weight)
    stop, results = threading.Event(), []

    def compute_once():
        results.append(F.rms_norm(x, (40,), weight))

    def start_threads():
        while not stop.is_set():
            with concurrent.futures.ThreadPoolExecutor(4) as pool:
                for thread in [pool.submit(compute_once) for _ in range(4)]:
                    thread.result()

    with concurrent.futures.ThreadPoolExecutor() as pool:
        starts = pool.submit(start_threads)
        end = time.monotonic() + 1
        while time.monotonic() < end:
            descend.torch.enable()
            descend.torch.disable()
        stop.set()
        starts.result()
    assert len(results) > 10
    assert all(torch.allclose(result, expected, atol=1e-5) for result in results)


@pytest.mark.filterwarnings("ignore:.*fork")
def test_a_forked_child_has_the_setting_of_its_parent():
    x = torch.randn(4, 64)
    descend.torch.enable()
    expected = F.layer_norm(x, (64,))
    child = os.fork()
    if child == 0:
        good = is_on() and torch.equal(F.layer_norm(x, (64,)), expected)
        descend.torch.disable()
        good = good and are_pytorchs()
        with descend.torch.enabled():
            good = good and is_on()
        os._exit(0 if good else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert is_on()  # the child's disable() was the child's


def test_nothing_is_printed(capfd):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        descend.torch.enable()
        descend.torch.disable()
    captured = capfd.readouterr()
    assert captured.out + captured.err == ""


def test_with_an_old_pytorch_it_is_refused(monkeypatch):
    monkeypatch.setattr(overriding, "_form", lambda: None)
    for call in (descend.torch.enable, descend.torch.enabled().__enter__):
        with pytest.raises(RuntimeError, match=r"needs PyTorch 2\.13 or newer; this is"):
            call()
    descend.torch.disable()
    assert kernels() == PYTORCHS


# --- PyTorch's own samples -----------------------------------------------------------------------------------------


def samples(op: Any, dtype: torch.dtype, kind: str) -> Iterator[tuple[Callable[[], Any], Callable[[], Any]]]:
    """PyTorch's samples of an operator as calls, and the same calls in float64."""
    torch.manual_seed(0)
    found = op.reference_inputs("cpu", dtype) if kind == "reference" else op.sample_inputs("cpu", dtype)
    for sample in found:
        sample = sample.noncontiguous() if kind == "non-contiguous" else sample
        call = (sample.input, *sample.args), sample.kwargs
        yield functools.partial(op, *call[0], **call[1]), lambda c=call: (lambda a, n: op(*a, **n))(*in_float64(c))


@pytest.mark.filterwarnings("ignore:Mismatch dtype")
@pytest.mark.parametrize("kind", ["sample", "reference", "non-contiguous"])
@pytest.mark.parametrize("dtype", [*DTYPES, torch.complex64])
@pytest.mark.parametrize("op", OPERATORS, ids=NAMES)
def test_samples(op, dtype, kind):
    if dtype not in op.dtypes:
        pytest.skip("PyTorch's operator has no such dtype")
    count = 0
    for call, exact in samples(op, dtype, kind):
        same(call, exact)
        count += 1
    assert count > 5


@pytest.mark.parametrize("op", OPERATORS, ids=NAMES)
def test_errors_are_pytorchs(op):
    inputs = list(op.error_inputs("cpu")) if op.error_inputs_func else []
    for error in inputs:
        sample = error.sample_input
        assert isinstance(same(lambda s=sample: op(s.input, *s.args, **s.kwargs)), error.error_type)
    assert inputs or op.error_inputs_func is None


@pytest.mark.parametrize("op", OPERATORS, ids=NAMES)
def test_derivatives_of_samples(op):
    """PyTorch's gradcheck: first and second derivatives, forward mode, and both under vmap."""
    count = 0
    for sample in op.sample_inputs("cpu", torch.float64, requires_grad=True):
        inputs = [sample.input, *sample.args, *sample.kwargs.values()]
        places = [i for i, t in enumerate(inputs) if isinstance(t, Tensor)]
        leaves = [inputs[i].requires_grad_() for i in places]

        def function(*values: Tensor, sample: Any = sample, inputs: Any = inputs, places: Any = places) -> Any:
            full = list(inputs)
            for place, value in zip(places, values, strict=True):
                full[place] = value
            split = 1 + len(sample.args)
            result = op(*full[:split], **dict(zip(sample.kwargs, full[split:], strict=True)))
            return result[0] if isinstance(result, tuple) else result

        def second(function: Any = function, leaves: Any = leaves) -> bool:
            return gradgradcheck(function, leaves, check_batched_grad=True, fast_mode=True)

        wrong = isinstance(outcome(second), Exception)  # PyTorch's for a bias without a weight are
        with descend.torch.enabled():
            forward = op.supports_forward_ad
            assert gradcheck(function, leaves, check_forward_ad=forward, check_batched_grad=True, fast_mode=True)
            assert wrong or second()
        count += not wrong
    assert count > 2


@pytest.mark.parametrize("name", ["LayerNorm", "RMSNorm", "TransformerEncoderLayer"])
def test_modules(name):
    info = next(m for m in module_db if m.module_cls.__name__ == name)
    count = 0
    for training in (True, False) if info.train_and_eval_differ else (True,):
        found = info.module_inputs_func(info, device="cpu", dtype=torch.float64, requires_grad=True, training=training)
        for sample in itertools.islice(found, 4):
            made, given = sample.constructor_input, sample.forward_input
            torch.manual_seed(1)
            module = info.module_cls(*made.args, **made.kwargs).double().train(training)
            leaves = [t for t in tree_leaves((given.args, given.kwargs)) if isinstance(t, Tensor) and t.requires_grad]
            leaves += list(module.parameters())

            def call(module: Any = module, given: Any = given, leaves: Any = leaves) -> Any:
                torch.manual_seed(2)
                y = module(*given.args, **given.kwargs)
                return y, torch.autograd.grad(y.square().sum(), leaves, allow_unused=True)

            same(call)
            count += 1
    assert count > 2


# --- dtypes and layouts --------------------------------------------------------------------------------------------


def layer_norm_step(x: Tensor, *parameters: Tensor | None) -> list[Any]:
    results = torch.native_layer_norm(x, (x.shape[-1],), *parameters, 1e-5)
    leaves = [t for t in (x, *parameters) if t is not None]
    return [*results, *torch.autograd.grad(results[0], leaves, results[0].detach().cos())]


def rms_norm_step(x: Tensor, weight: Tensor | None) -> list[Any]:
    y = F.rms_norm(x, (x.shape[-1],), weight)
    leaves = [t for t in (x, weight) if t is not None]
    return [y, *torch.autograd.grad(y, leaves, y.detach().cos())]


def numbers(dtype: torch.dtype | None, *shape: int) -> Tensor | None:
    if dtype is None:
        return None
    return torch.linspace(-2, 3, math.prod(shape)).cos().reshape(shape).to(dtype).requires_grad_()


@pytest.mark.filterwarnings("ignore:Mismatch dtype")
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_mixture_of_dtypes(dtype):
    """Dtypes of results, statistics and gradients, and errors, are PyTorch's for each mixture."""
    tolerance = {"rtol": 16 * torch.finfo(dtype).eps, "atol": 256 * torch.finfo(dtype).eps}
    for weight, bias in itertools.product((None, *DTYPES), repeat=2):
        args = numbers(dtype, 4, 24), numbers(weight, 24), numbers(bias, 24)
        if weight is None and bias is torch.float32 and dtype in (torch.float16, torch.bfloat16):
            assert "expected scalar type" in str(
                outcome(lambda a=args: layer_norm_step(*a))
            )  # PyTorch's backward fails
            continue
        same(lambda a=args: layer_norm_step(*a), lambda a=args: layer_norm_step(*in_float64(a)), **tolerance)
    for weight in (None, *DTYPES):
        args = numbers(dtype, 4, 24), numbers(weight, 24)
        same(lambda a=args: rms_norm_step(*a), lambda a=args: rms_norm_step(*in_float64(a)), **tolerance)


def test_rms_norm_under_autocast_is_computed_by_descend():
    norm, x = nn.RMSNorm(32), torch.randn(6, 32)
    with torch.autocast("cpu", torch.bfloat16), descend.torch.enabled(), warnings.catch_warnings():
        warnings.simplefilter("error")  # PyTorch warns that its fused kernel is out of reach
        y = norm(nn.Linear(32, 32)(x))
    assert y.dtype is torch.bfloat16
    assert y.grad_fn.name() == "FusedRmsNormBackward0"
    y.sum().backward()
    assert norm.weight.grad.dtype is torch.float32


LAYOUTS = {
    "transposed": lambda: torch.randn(24, 6).t(),
    "every second column": lambda: torch.randn(6, 48)[:, ::2],
    "expanded": lambda: torch.randn(1, 24).expand(6, 24),
    "one number": lambda: torch.randn(()).expand(3, 2, 24),
    "with an offset": lambda: torch.randn(7, 25)[1:, 1:],
    "channels last": lambda: torch.randn(2, 3, 4, 24).contiguous(memory_format=torch.channels_last),
    "channels last in 3d": lambda: torch.randn(2, 3, 4, 2, 24).contiguous(memory_format=torch.channels_last_3d),
    "channels last, one channel": lambda: torch.randn(2, 1, 4, 24).as_strided((2, 1, 4, 24), (96, 1, 24, 1)),
    "channels last, one channel, gaps": lambda: torch.randn(400).as_strided((2, 1, 4, 24), (192, 2, 48, 2)),
    "channels last in 3d, one channel": lambda: torch.randn(192).as_strided((2, 1, 4, 1, 24), (96, 1, 24, 24, 1)),
    "one row": lambda: torch.randn(24),
    "rank 9": lambda: torch.randn(1, 2, 1, 2, 1, 2, 1, 1, 24),
    "no rows": lambda: torch.randn(0, 24),
    "no rows of a rank": lambda: torch.randn(2, 0, 3, 24),
    "inference": lambda: torch.inference_mode()(torch.randn)(4, 24),
    "negative": lambda: torch._neg_view(torch.randn(4, 24)),
    "with a bit for a copy on write": lambda: torch._lazy_clone(torch.randn(4, 24)),
    "large": lambda: torch.randn(600, 24, 24),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts(layout):
    torch.manual_seed(0)
    x, weight, bias = LAYOUTS[layout](), torch.randn(24), torch.randn(48)[::2]
    wide, scale, shift = in_float64((x, weight, bias))
    same(
        lambda: torch.native_layer_norm(x, (24,), weight, bias, 1e-5),
        lambda: torch.native_layer_norm(wide, (24,), scale, shift, 1e-5),
    )
    same(
        lambda: torch._fused_rms_norm(x, (24,), weight, None),
        lambda: torch._fused_rms_norm(wide, (24,), scale, 2.0**-23),
    )
    same(lambda: F.rms_norm(x, (24,)))
    if not x.is_inference():
        args = [t.detach().clone(memory_format=torch.preserve_format).requires_grad_() for t in (x, weight, bias)]
        same(lambda: layer_norm_step(*args), lambda: layer_norm_step(*in_float64(args)), rtol=1e-5, atol=1e-4)
        same(lambda: rms_norm_step(*args[:2]), lambda: rms_norm_step(*in_float64(args[:2])), rtol=1e-5, atol=1e-4)
    if layout == "with a bit for a copy on write":
        assert torch._C._is_cow_tensor(x)  # reading has not copied it


def test_infinities_and_large_numbers():
    x = torch.tensor([[math.inf] * 4, [math.nan] * 4, [0.0, math.inf, 1.0, 2.0], [1.0] * 4, [0.0] * 4])
    same(lambda: (F.layer_norm(x, (4,)), F.rms_norm(x, (4,))))
    with descend.torch.enabled():  # PyTorch's squares overflow
        assert_close(
            F.layer_norm(x[3:] * x.new_tensor([1e20, -1e20, 1e20, -1e20]), (4,))[0], x.new_tensor([1, -1, 1, -1])
        )
        assert_close(F.rms_norm(x[3] * 1e20, (4,)), x[3])


def test_more_than_one_normalised_dimension():
    x, weight = numbers(torch.float64, 2, 3, 4, 5), numbers(torch.float64, 4, 5)
    same(lambda: torch.native_layer_norm(x, (4, 5), weight, None, 1e-5))
    same(lambda: torch._fused_rms_norm(x, (4, 5), weight, None))
    same(lambda: torch._fused_rms_norm(x, (2, 3, 4, 5), None, 1e-3))


WRONG = {
    "no normalised dimension": lambda x, w: F.layer_norm(x, ()),
    "another size": lambda x, w: F.layer_norm(x, (7,)),
    "too many dimensions": lambda x, w: F.rms_norm(x, (1, 2, 3, 8)),
    "another weight": lambda x, w: F.layer_norm(x, (8,), w[:7]),
    "another weight of RMS norm": lambda x, w: F.rms_norm(x, (8,), w[:7]),
    "integers": lambda x, w: F.layer_norm(x.long(), (8,)),
    "integers in RMS norm": lambda x, w: F.rms_norm(x.long(), (8,)),
    "a weight of integers": lambda x, w: F.rms_norm(x, (8,), w.long()),
    "a weight elsewhere": lambda x, w: F.rms_norm(x, (8,), w.to("meta")),
    "complex numbers": lambda x, w: F.layer_norm(x.to(torch.complex64), (8,)),
    "sparse": lambda x, w: F.layer_norm(x.to_sparse(), (8,)),
    "negative epsilon": lambda x, w: F.layer_norm(x, (8,), w, w, -1e-3),
    "negative epsilon in RMS norm": lambda x, w: F.rms_norm(x, (8,), w, -1e-3),
    "no epsilon": lambda x, w: F.layer_norm(x, (8,), w, w, 0.0),
}


@pytest.mark.filterwarnings("ignore:Mismatch dtype")
@pytest.mark.parametrize("wrong", WRONG)
def test_wrong_and_odd_arguments(wrong):
    x, w = torch.linspace(-2, 3, 16).reshape(2, 8), torch.linspace(1, 2, 8)
    same(lambda: WRONG[wrong](x, w))


def test_a_freed_storage_is_an_error():
    x = torch.randn(4, 8)
    x.untyped_storage().resize_(0)
    kind = RuntimeError if is_stable() else ValueError
    with descend.torch.enabled():
        for norm in (F.layer_norm, F.rms_norm):
            with pytest.raises(kind, match="is a view of a storage that is freed"):
                norm(x, (8,))


def test_no_call_keeps_its_tensors():
    x, freed, empty, weight = torch.randn(4, 8), torch.randn(4, 8), torch.randn(0, 8), torch.randn(8)
    freed.untyped_storage().resize_(0)
    with descend.torch.enabled():
        for tensor in (x, freed, empty):
            for norm, size in itertools.product((F.layer_norm, F.rms_norm), (8, 7)):
                before = tensor._use_count(), weight._use_count()
                outcome(lambda t=tensor, n=norm, s=size: n(t, (s,), weight) and None)
                assert (tensor._use_count(), weight._use_count()) == before, (norm, size)


# --- memory of large results ---------------------------------------------------------------------------------------


def test_large_results_can_be_resized():
    """Some programs free the results of norms until the gradient is computed, and then compute them again."""
    x = torch.randn(1024, 2048)
    with descend.torch.enabled():
        for norm in (F.layer_norm, F.rms_norm):
            y = norm(x, (2048,))
            expected = y.clone()
            y.untyped_storage().resize_(0)
            y.untyped_storage().resize_(expected.untyped_storage().nbytes())
            assert_close(y.copy_(expected), expected)
            assert torch.equal(y.resize_(2048, 2048)[:1024], expected)


@pytest.mark.parametrize("norm", [F.layer_norm, F.rms_norm])
def test_memory_of_large_results(norm):
    """Gradients have pages that are kept when they are freed. Results have those, or huge ones."""
    x = torch.randn(256, 16384, requires_grad=True)
    info = descend._native.info

    def mapping(tensor: Tensor) -> str:
        found = ""
        with open("/proc/self/smaps") as file:
            for line in file:
                if re.match(r"[0-9a-f]+-", line):
                    low, high = (int(end, 16) for end in line.split()[0].split("-"))
                    inside = low <= tensor.data_ptr() + (1 << 22) < high
                found += line if inside else ""
        return found

    with descend.torch.enabled():
        y = norm(x, (16384,))
        if os.path.exists("/sys/kernel/mm/transparent_hugepage"):
            assert re.search(r"^VmFlags:.*\bhg\b", mapping(y), re.MULTILINE)
        dx = torch.autograd.grad(y, x, x.detach())[0]
    descend.empty_cache()
    assert info()["cached_bytes"] == 0
    del dx
    assert info()["cached_bytes"] >= 16 << 20
    descend.empty_cache()


# --- the backward operators ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("mask", list(itertools.product((True, False), repeat=3)))
def test_layer_norms_backward_computes_what_its_mask_says(mask):
    x, dy, weight, bias = torch.randn(5, 16), torch.randn(5, 16), torch.randn(16), torch.randn(16)
    _, mean, rstd = torch.native_layer_norm(x, (16,), weight, bias, 1e-5)
    same(lambda: aten.native_layer_norm_backward(dy, x, (16,), mean, rstd, weight, bias, mask))
    same(
        lambda: aten.native_layer_norm_backward(dy.t().contiguous().t(), x, (16,), mean, rstd, None, None, (True, 0, 0))
    )


@pytest.mark.parametrize("mask", list(itertools.product((True, False), repeat=2)))
@pytest.mark.parametrize("dtype", DTYPES)
def test_rms_norms_backward(dtype, mask):
    """Descend's, and the one composed of other operators, which computes what Descend does not serve."""
    torch.manual_seed(0)
    x, dy, weight = (torch.randn(s).to(dtype) for s in ((2, 3, 16), (2, 3, 16), (16,)))
    with descend.torch.enabled():
        rstd = torch._fused_rms_norm(x, (16,), weight, 1e-5)[1]
        expected = definitions.rms_norm_grad(dy, x, rstd, weight)
        found = aten._fused_rms_norm_backward(dy, x, (16,), rstd, weight, mask)
        deep = [t.reshape(1, 1, 1, 1, 1, 1, *t.shape) for t in (dy, x, rstd)]  # rank 9
        composed = aten._fused_rms_norm_backward(*deep[:2], (16,), deep[2], weight, mask)
    for place, wanted in enumerate(mask):
        for results in (found, composed):
            assert (results[place] is not None) == wanted
        if wanted:
            assert_close(found[place], expected[place].to(dtype))
            assert_close(composed[place].reshape(found[place].shape), found[place])
    without = aten._fused_rms_norm_backward(dy, x, (16,), rstd, None, (True, False))
    assert_close(without[0], definitions.rms_norm_grad(dy, x, rstd, torch.ones(16, dtype=dtype))[0])


@pytest.mark.parametrize("operator", ["layer_norm", "rms_norm"])
def test_gradients_of_norms_without_parameters_are_descends(operator):
    """Their bits are those of Descend's operator, and the strides PyTorch's, which its kernels do not always have."""
    torch.manual_seed(0)
    for x, size in ((torch.randn(5, 40), (40,)), (torch.randn(24).as_strided((2, 3, 4, 1), (12, 1, 3, 1)), (4, 1))):
        dy = torch.randn(x.shape)
        same(lambda x=x, n=size, dy=dy: gradients(getattr(F, operator), x, n, [], dy))
        for parameters in ([None, torch.randn(size)], [torch.randn(size)], []):
            if operator == "rms_norm" and None in parameters:
                continue
            with descend.torch.enabled():
                found = gradients(getattr(F, operator), x, size, parameters, dy)
            if operator == "layer_norm":
                _, mean, rstd = descend.torch.layer_norm(x, size, *parameters)
                given = [*parameters, None, None][:2]
                mask = [True, *(p is not None for p in given)]
                expected = descend.torch.layer_norm_backward(dy, x, size, mean, rstd, *given, mask)
            else:
                weight = parameters[0] if parameters else torch.ones(size)
                rstd = descend.torch.rms_norm(x, weight, torch.finfo(torch.float32).eps)[1]
                expected = descend.torch.rms_norm_grad(dy, x, rstd, weight)[: 1 + len(parameters)]
            assert_close(found, [g for g in expected if g is not None], rtol=0, atol=0)


def gradients(norm: Callable[..., Tensor], x: Tensor, size: Any, parameters: list[Any], dy: Tensor) -> list[Tensor]:
    leaves = [t.detach().requires_grad_() if t is not None else None for t in (x, *parameters)]
    return list(torch.autograd.grad(norm(leaves[0], size, *leaves[1:]), [t for t in leaves if t is not None], dy))


@pytest.mark.parametrize("norm", [F.layer_norm, F.rms_norm])
@pytest.mark.parametrize("within", ["forward", "backward"])
def test_only_one_way_with_descend(norm, within):
    """A graph that was made with it is right without it, and the other way round."""
    x, weight = torch.randn(7, 24, requires_grad=True), torch.randn(24, requires_grad=True)
    expected = torch.autograd.grad(norm(x, (24,), weight).square().sum(), (x, weight))
    on, off = descend.torch.enabled, contextlib.nullcontext
    with on() if within == "forward" else off():
        loss = norm(x, (24,), weight).square().sum()
    with off() if within == "forward" else on():
        first = torch.autograd.grad(loss, (x, weight), create_graph=True)
        assert_close(first, expected)
        torch.autograd.grad(sum(g.square().sum() for g in first), (x, weight))


# --- transforms, graphs, other kinds of tensors --------------------------------------------------------------------


def both_norms(x: Tensor, weight: Tensor) -> Tensor:
    return F.layer_norm(x, (6,), weight, weight) * F.rms_norm(x, (6,), weight)


TRANSFORMS = {
    "jacrev": lambda x, w: torch.func.jacrev(both_norms, (0, 1))(x, w),
    "jacfwd": lambda x, w: torch.func.jacfwd(both_norms, (0, 1))(x, w),
    "jvp": lambda x, w: torch.func.jvp(both_norms, (x, w), (w + x, w)),
    "vmap": lambda x, w: torch.func.vmap(both_norms, (0, None))(x, w),
    "vmap of weights": lambda x, w: torch.func.vmap(both_norms, (None, 0))(x, x),
    "hessian": lambda x, w: torch.func.hessian(lambda w: both_norms(x, w).sum())(w),
    "a gradient of each sample": lambda x, w: torch.func.vmap(
        torch.func.grad(lambda w, x: both_norms(x, w).sum()), (None, 0)
    )(w, x),
}


@pytest.mark.filterwarnings("error:There is a performance drop")
@pytest.mark.parametrize("transform", TRANSFORMS)
def test_transforms(transform):
    x, weight = torch.randn(4, 6, dtype=torch.float64), torch.randn(6, dtype=torch.float64)
    same(lambda: TRANSFORMS[transform](x, weight))


GRAPHS = {
    "make_fx": lambda m, x: make_fx(m)(x).code,
    "before dispatch": lambda m, x: make_fx(m, pre_dispatch=True)(x).code,
    "functionalize": lambda m, x: make_fx(torch.func.functionalize(m))(x).code,
    "export": lambda m, x: torch.export.export(m, (x,)).graph_module.code,
    "export, taken apart": lambda m, x: torch.export.export(m, (x,)).run_decompositions().graph_module.code,
    "on meta tensors": lambda m, x: [(t.dtype, t.shape, t.stride()) for t in m.to("meta")(x.to("meta")).split(2)],
}


@pytest.mark.parametrize("kind", GRAPHS)
def test_graphs_have_pytorchs_operators(kind):
    """What is traced or exported runs wherever PyTorch does."""
    graphs = []
    for block in (contextlib.nullcontext, descend.torch.enabled):
        model = nn.Sequential(nn.LayerNorm(16), nn.Linear(16, 16), nn.RMSNorm(16))
        with block():
            graphs.append(GRAPHS[kind](model, torch.randn(4, 16)))
    assert graphs[0] == graphs[1]


def test_compiled_functions():
    """The compiler sees PyTorch's own operators; what it does not fuse is Descend's when it runs."""
    x, weight = torch.randn(5, 6, requires_grad=True), torch.randn(6, requires_grad=True)
    compiled = torch.compile(both_norms, backend="aot_eager", fullgraph=True)

    def step(function: Callable[..., Tensor]) -> Any:
        y = function(x, weight)
        return y, torch.autograd.grad(y.square().sum(), (x, weight))

    with descend.torch.enabled():
        first = step(compiled)
    torch.testing.assert_close(first, step(both_norms))
    torch.testing.assert_close(first, step(compiled))  # the graph that was made with Descend, without it


class Seen(TorchDispatchMode):
    """The operators that are called."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


def test_modes_see_pytorchs_operators():
    def seen() -> list[str]:
        x, weight = torch.randn(4, 6, requires_grad=True), torch.randn(6, requires_grad=True)
        with Seen() as mode:
            both_norms(x, weight).sum().backward()
        return mode.names

    same(seen)


class Counted(Tensor):
    """A subclass that knows the operators of which RMS norm is composed, and no others."""

    calls = 0

    @staticmethod
    def __new__(cls, inner: Tensor) -> Counted:
        return Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype, requires_grad=inner.requires_grad)

    def __init__(self, inner: Tensor) -> None:
        self.inner = inner.detach()

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert "rms_norm" not in str(func)
        Counted.calls += 1
        args = tree_map_only(Counted, lambda t: t.inner, args)
        return tree_map_only(Tensor, Counted, func(*args, **(kwargs or {})))


def test_subclasses_are_left_to_pytorch():
    x = Counted(torch.randn(4, 6))
    assert isinstance(same(lambda: F.rms_norm(x, (6,)).inner)[0], Tensor)
    assert Counted.calls > 2


def test_modules_that_were_patched():
    model = nn.Sequential(nn.LayerNorm(24), nn.RMSNorm(24))
    descend.torch.patch(model)
    x = torch.randn(5, 24)
    same(lambda: (model(x), torch.autograd.grad(model(x).square().sum(), list(model.parameters()))), rtol=0, atol=0)


@pytest.mark.parametrize("first", [False, True], ids=["without first", "with first"])
def test_tracing_forgets_what_it_found(first):
    """PyTorch keeps which kernel an operator has for a dispatch key: what it still knew lost a gradient."""
    for op in (torch.ops.aten.rms_norm.default, torch.ops.aten._fused_rms_norm.default):
        op._dispatch_cache.clear()
    for on in (first, not first):
        torch._dynamo.reset()
        x = torch.linspace(-1, 2, 24).view(2, 12).requires_grad_()
        with descend.torch.enabled() if on else contextlib.nullcontext():
            y = torch.compile(lambda t: F.rms_norm(t, (12,), eps=1e-5), backend="aot_eager", fullgraph=True)(x)
            found = torch.autograd.grad(y.square().sum(), x)
        assert_close(found, torch.autograd.grad(F.rms_norm(x, (12,), eps=1e-5).square().sum(), x))
