"""No memory: a status or MemoryError, nothing is lost, and the process goes on."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

import failing_allocator
from cases import run_python
from descend.contract import OPERATORS
from two_phase_calls import OP


def test_out_of_memory_is_an_error_and_the_process_goes_on():
    """With a limit on the address space: results and workspaces that cannot be allocated."""
    code = """
import resource
import numpy as np
import descend
from descend import acl, aclnn
small = [np.ones(s, "f") for s in ((4, 8), (4, 8), (4,), (8,))]
expected = descend.rms_norm_grad(*small)
x = np.ones((8000, 4000), np.float16)[:, ::2]  # packing it takes 32 MB
out = np.empty((8000, 2000), np.float64)
out32 = np.empty((8000, 2000), np.float16)[:, :]
rstd, gamma = np.ones(8000, "f"), np.ones(2000, "f")
with open("/proc/self/statm") as f:
    now = int(f.read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (now + (20 << 20), -1))
kinds = []
for arguments in ((dict()), dict(out=(out32, None)), dict(out=(out, None))):
    for _ in range(2):
        try:
            descend.rms_norm_grad(x, x, rstd, gamma, **arguments)
            kinds.append("computed")
        except MemoryError as error:
            assert error.status == 361001 and "there is no memory for" in str(error), error
            kinds.append("MemoryError")
        except aclnn.AclnnError as error:
            kinds.append(f"{error.status} {error}")
try:
    acl.malloc(1 << 30)
except MemoryError:
    kinds.append("MemoryError")
assert all((a == b).all() for a, b in zip(descend.rms_norm_grad(*small), expected))
print(kinds)
"""
    assert eval(run_python(code, DESCEND_NUM_THREADS="1").stdout) == ["MemoryError"] * 7


@pytest.fixture(scope="module")
def allocator(tmp_path_factory):
    return failing_allocator.build(tmp_path_factory.mktemp("allocator"))


def test_no_memory_for_a_step_is_a_memory_error(allocator):
    """Every allocation of the second phase fails once: the call reports it, and the stream continues."""
    code = """
import ctypes
import numpy as np
from descend import acl, aclnn
fail_after = ctypes.CDLL(None).fail_after
x, gamma, rstd = np.ones((2000, 500), "f"), np.ones(500, "f"), np.ones(2000, "f")
acl.set_product("host")
size, executor = aclnn.rms_norm_grad_get_workspace_size(x, x, rstd, gamma, np.empty_like(x), np.empty_like(gamma))
executor.set_repeatable()
workspace, stream = acl.malloc(size), acl.Stream()
failures = []
for n in range(100):
    fail_after(n)
    try:
        aclnn.rms_norm_grad(workspace, size, executor, stream)
        stream.synchronize()
    except Exception as error:
        failures.append((isinstance(error, MemoryError), error.status, str(error)))
    if fail_after(-1) >= 0:
        break
    stream.synchronize()
print(n, sorted(set(failures)))
"""
    count, failures = run_python(code, LD_PRELOAD=allocator).stdout.split(" ", 1)
    assert 1 < int(count) < 99
    assert eval(failures) == [(True, 361001, f"{OP}: there is no memory for the call.")]


def test_long_rows_of_softmax_need_no_memory_to_be_kept(allocator):
    """A thread that has no memory for exponentials makes them again."""
    code = """
import ctypes
import threading
import numpy as np
import descend
fail_after = ctypes.CDLL(None).fail_after
x = np.linspace(-3, 3, 20000, dtype="f")[None]
expected = descend.softmax(x)
results = []
def compute():
    fail_after(n)
    try:
        results.append(np.array_equal(descend.softmax(x), expected))
    except MemoryError:
        results.append(None)
    left.append(fail_after(-1))
n, left = 0, []
while not left or left[-1] < 0:
    thread = threading.Thread(target=compute)
    thread.start()
    thread.join()
    n += 1
print(results)
"""
    results = eval(run_python(code, LD_PRELOAD=allocator, DESCEND_NUM_THREADS="1").stdout)
    # The last call made all its allocations, so each failed once before it.
    assert len(results) > 2
    assert results.count(True) > 1
    assert results.count(False) == 0


EVERY_OPERATOR = """
import sys
import numpy as np
import descend
from descend import acl
acl.set_product("host")
x, dy = np.linspace(-1, 1, 64000, dtype="f").reshape(2, 1000, 32)
g, r, m = np.ones(32, "f"), np.ones(1000, "f"), np.zeros(1000, "f")
c, k = r[:, None], m[:, None]
image, channels, groups = x.reshape(10, 4, 800), np.ones(4, "f"), np.ones((10, 2), "f")
tokens, weight, windows = x.reshape(1000, 2, 16), np.ones((4, 2), "f"), dy.reshape(1000, 2, 16)[:250]
cut = {"compress_block_size": 4, "compress_stride": 4}
heads, angles, classes = x.reshape(4, 25, 10, 32), np.ones((1, 25, 1, 32), "f"), np.arange(1000) % 32
ones = np.ones(1, "f")
CALLS = {
    "rms_norm": lambda: descend.rms_norm(x, g),
    "rms_norm_grad": lambda: descend.rms_norm_grad(dy[:, ::-1], x, r, g.astype("f2")),
    "add_rms_norm": lambda: descend.add_rms_norm(x, dy, g),
    "gemma_rms_norm": lambda: descend.gemma_rms_norm(x, g),
    "layer_norm": lambda: descend.layer_norm(x, (32,), g, g),
    "layer_norm_backward": lambda: descend.layer_norm_backward(dy, x, (32,), m, r, g, g),
    "add_layer_norm": lambda: descend.add_layer_norm(x, dy, g, g, g, additional_output=True),
    "add_layer_norm_grad": lambda: descend.add_layer_norm_grad(dy, x, dy, c, k, g, dy),
    "deep_norm": lambda: descend.deep_norm(x, dy, g, g),
    "deep_norm_grad": lambda: descend.deep_norm_grad(dy, x, dy, g, k, c),
    "group_norm": lambda: descend.group_norm(image, channels, channels, 10, 4, 800, 2),
    "group_norm_backward": lambda: descend.group_norm_backward(image, image, groups, groups, channels, 10, 4, 800, 2),
    "group_norm_silu": lambda: descend.group_norm_silu(image, channels, channels, 2),
    "group_norm_swish": lambda: descend.group_norm_swish(image, channels, channels, 2),
    "group_norm_swish_grad": lambda: descend.group_norm_swish_grad(image, groups, groups, image, channels, channels, 2),
    "scaled_masked_softmax": lambda: descend.scaled_masked_softmax(x, None),
    "scaled_masked_softmax_backward": lambda: descend.scaled_masked_softmax_backward(dy, x, None),
    "softmax": lambda: descend.softmax(x, 0),
    "softmax_backward": lambda: descend.softmax_backward(dy, x, 0),
    "log_softmax": lambda: descend.log_softmax(x),
    "log_softmax_backward": lambda: descend.log_softmax_backward(dy, x),
    "cross_entropy_loss": lambda: descend.cross_entropy_loss(x, classes),
    "cross_entropy_loss_grad": lambda: descend.cross_entropy_loss_grad(ones, x, classes),
    "rotary_position_embedding": lambda: descend.rotary_position_embedding(heads, angles, angles),
    "rotary_position_embedding_grad": lambda: descend.rotary_position_embedding_grad(heads, angles, angles, heads),
    "swi_glu": lambda: descend.swi_glu(x),
    "swi_glu_grad": lambda: descend.swi_glu_grad(dy[:, :16], x),
    "gelu_v2": lambda: descend.gelu_v2(x),
    "gelu_backward_v2": lambda: descend.gelu_backward_v2(dy, x),
    "apply_adam_w_v2": lambda: descend.apply_adam_w_v2(x, dy, dy * dy, None, dy, ones),
    "nsa_compress": lambda: descend.nsa_compress(tokens, weight, **cut),
    "nsa_compress_grad": lambda: descend.nsa_compress_grad(windows, tokens, weight, **cut),
}
def same(results, expected):
    pairs = [(v if isinstance(v, tuple) else (v,)) for v in (results, expected)]
    return all(np.array_equal(a, b) for a, b in zip(*pairs, strict=True))
def fails_once(call):
    "How often the call failed, while its n-th allocation failed, until that is more than it makes."
    expected, failures, good, n = call(), 0, 0, 0
    while good < 30:
        error = None
        fail_at(n)
        try:
            result = call()
        except MemoryError as caught:
            error = caught
        never()
        good = good + 1 if error is None else 0
        failures += error is not None
        assert error is not None or same(result, expected)
        error = result = None
        assert same(call(), expected)
        n += 1
    return failures
first = {name: fails_once(call) for name, call in CALLS.items()}
blocks = sys.getallocatedblocks()
again = {name: fails_once(call) for name, call in CALLS.items()}
print((first, again, sys.getallocatedblocks() - blocks))
"""


@pytest.mark.long
@pytest.mark.parametrize("whose", ["Descend's", "Python's"])
def test_every_allocation_of_every_operator_fails_once(whose, allocator):
    environment = {}
    if whose == "Python's":
        if find_spec("_testcapi") is None:
            pytest.skip("this Python has no _testcapi, which lets its allocations fail")
        head = (
            "import _testcapi\nfail_at, never = lambda n: _testcapi.set_nomemory(n, n + 1), _testcapi.remove_mem_hooks"
        )
    else:
        environment["LD_PRELOAD"] = allocator
        head = "import ctypes\nfail_at = ctypes.CDLL(None).fail_after\nnever = lambda: fail_at(-1)"
    first, again, lost = eval(run_python(head + EVERY_OPERATOR, **environment).stdout)
    assert first.keys() == again.keys() == OPERATORS.keys()
    assert min(*first.values(), *again.values()) >= 1
    assert lost < 100  # of some hundred failures


# The results of each call, while its n-th allocation in one library fails, until that is more than it makes.
FAILS_ONCE = """
import ctypes
allocator = ctypes.CDLL(None)
def fails_once(call, same):
    "The sentences of the failures."
    expected, said, good, n = call(), [], 0, 0
    while good < 20:
        result = error = None  # freed before, since PyTorch's graph may not fail while it is freed
        allocator.fail_after(n)
        try:
            result = call()
        except (MemoryError, RuntimeError, ValueError) as caught:
            error = caught
        allocator.fail_after(-1)
        assert error is not None or same(result, expected)
        good = good + 1 if error is None else 0
        said += [] if error is None else [f"{type(error).__name__}: {error}"]
        error = None
        assert same(call(), expected)
        n += 1
    return said
"""


@pytest.mark.long
def test_every_allocation_of_descend_torch_fails_once(allocator):
    """With gradients. PyTorch makes a MemoryError of it, or a RuntimeError where its own threads compute."""
    pytest.importorskip("torch")
    code = """
import torch
import descend.torch as dt
torch.manual_seed(0)
x, g, c, image = torch.randn(2, 3, 8, 6), torch.ones(6), torch.ones(8), torch.randn(2, 8, 5)
tokens, weight, cut = torch.randn(40, 2, 16), torch.randn(4, 2), {"compress_block_size": 4, "compress_stride": 4}
def with_gradients(call, *inputs):
    inputs = [t.clone().requires_grad_() for t in inputs]
    out = call(*inputs)
    out = out[0] if isinstance(out, tuple) else out
    return (out, *torch.autograd.grad(out, inputs, torch.ones_like(out)))
CALLS = [
    lambda: with_gradients(dt.rms_norm, x, g),
    lambda: with_gradients(lambda a, b, d: dt.layer_norm(a, (6,), b, d), x, g, g),
    lambda: with_gradients(lambda a, b, d: dt.group_norm_swish(a, b, d, 2), image, c, c),
    lambda: with_gradients(lambda a: dt.scaled_masked_softmax(a, None), x),
    lambda: with_gradients(lambda a, b: dt.nsa_compress(a, b, **cut), tokens, weight),
]
same = lambda a, b: all(torch.equal(p, q) for p, q in zip(a, b, strict=True))
[call() for call in CALLS]
assert allocator.only(b"/descend/_torch.")
print([fails_once(call, same) for call in CALLS])
"""
    said = eval(run_python(FAILS_ONCE + code, LD_PRELOAD=allocator, timeout=300).stdout)
    assert min(map(len, said)) >= 5
    assert {s for each in said for s in each} <= {"MemoryError: std::bad_alloc", "RuntimeError: std::bad_alloc"}


@pytest.mark.long
def test_every_allocation_of_descend_jax_fails_once(allocator):
    """JAX raises a ValueError for every failure of a call."""
    pytest.importorskip("jax")
    code = """
import jax
import jax.numpy as jnp
import numpy as np
import descend.jax as dj
x, g = jnp.linspace(-1, 1, 288, dtype="float32").reshape(6, 48), jnp.ones(48)
def gradient(call, *inputs):
    made = jax.jit(jax.value_and_grad(lambda *a: call(*a)[0].sum(), argnums=tuple(range(len(inputs)))))
    return lambda: jax.block_until_ready(made(*inputs))
softmax = jax.jit(lambda a: dj.scaled_masked_softmax(a, None))
CALLS = [
    gradient(dj.rms_norm, x, g),
    gradient(lambda a, b: dj.layer_norm(a, (48,), b, b), x, g),
    lambda: jax.block_until_ready(softmax(x)),
]
def same(a, b):
    return all(np.array_equal(p, q) for p, q in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True))
[call() for call in CALLS]
assert allocator.only(b"/descend/_native.")
print([fails_once(call, same) for call in CALLS])
"""
    environment = {"LD_PRELOAD": allocator, "JAX_PLATFORMS": "cpu"}
    said = [s for each in eval(run_python(FAILS_ONCE + code, **environment).stdout) for s in each]
    assert said
    assert set(said) == {"ValueError: RESOURCE_EXHAUSTED: There is no memory for a call of Descend's."}


def test_a_lock_that_has_no_memory(monkeypatch, capsys):
    pytest.importorskip("typer")
    from descend.cli import app, main

    def refuse(*_: object, **__: object) -> None:
        raise RuntimeError("can't allocate lock")  # as Python does

    monkeypatch.setattr(app, "app", refuse)
    assert main(["info"]) == 2
    assert capsys.readouterr().err == "descend: there is no memory left.\n"


def test_allocations_of_the_command_line_fail(tmp_path):
    """Every few thousandth of Python's, each once: the result, or one sentence, and no half of a file."""
    pytest.importorskip("typer")
    if find_spec("_testcapi") is None:
        pytest.skip("this Python has no _testcapi, which lets its allocations fail")
    code = f"""
import io, sys, _testcapi
from pathlib import Path
from cli_calls import inputs
from descend import tensors
from descend.cli import main
folder = Path({str(tmp_path)!r})
tensors.write(folder / "in.npz", inputs())
arguments = ["run", "rms_norm_grad", str(folder / "in.npz"), "-o", str(folder / "out.npz")]
def run(n):
    (folder / "out.npz").unlink(missing_ok=True)
    sys.stdout, sys.stderr = io.StringIO(), io.StringIO()
    if n is not None:
        _testcapi.set_nomemory(n, n + 1)
    try:
        status = main(arguments)
    finally:
        _testcapi.remove_mem_hooks()
        error = sys.stderr.getvalue()
        sys.stdout, sys.stderr = sys.__stdout__, sys.__stderr__
    files = sorted(path.name for path in folder.iterdir())
    # What Python cannot raise, as where a generator ends, it prints.
    ignored, _, error = error.rpartition("MemoryError: " + chr(10))
    assert not ignored or ignored.startswith("Exception ignored in: "), ignored
    if status == 0:
        assert not error and (folder / "out.npz").read_bytes() == expected, error
    else:
        assert status == 2 and error.startswith("descend: ") and error.count(chr(10)) == 1, (status, error)
        assert "memory" in error or "SystemError" in error, error  # Python's own compiler raises that
    assert files in (["in.npz"], ["in.npz", "out.npz"]), files
    return status
expected = b""
main(arguments)
expected = (folder / "out.npz").read_bytes()
statuses, n = [], 0
while statuses[-3:] != [0, 0, 0]:
    statuses.append(run(n))
    n += 4999
assert run(None) == 0
print(statuses.count(2), file=sys.stderr)
"""
    assert int(run_python(code).stderr.split()[-1]) >= 5
