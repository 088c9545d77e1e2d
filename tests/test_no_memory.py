"""No memory: a status or MemoryError, nothing is lost, and the process goes on."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

import failing_allocator
from cases import run_python
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


EVERY_OPERATOR = """
import sys
import numpy as np
import descend
from descend import acl
acl.set_product("host")
x, dy = np.linspace(-1, 1, 64000, dtype="f").reshape(2, 1000, 32)
g, r, m = np.ones(32, "f"), np.ones(1000, "f"), np.zeros(1000, "f")
image, channels, groups = x.reshape(10, 4, 800), np.ones(4, "f"), np.ones((10, 2), "f")
tokens, weight, windows = x.reshape(1000, 2, 16), np.ones((4, 2), "f"), dy.reshape(1000, 2, 16)[:250]
cut = {"compress_block_size": 4, "compress_stride": 4}
CALLS = [
    lambda: descend.rms_norm(x, g),
    lambda: descend.rms_norm_grad(dy[:, ::-1], x, r, g.astype("f2")),
    lambda: descend.layer_norm(x, (32,), g, g),
    lambda: descend.layer_norm_backward(dy, x, (32,), m, r, g, g),
    lambda: descend.group_norm_swish(image, channels, channels, 2),
    lambda: descend.group_norm_swish_grad(image, groups, groups, image, channels, channels, 2),
    lambda: descend.scaled_masked_softmax(x, None),
    lambda: descend.scaled_masked_softmax_backward(dy, x, None),
    lambda: descend.nsa_compress(tokens, weight, **cut),
    lambda: descend.nsa_compress_grad(windows, tokens, weight, **cut),
]
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
first = [fails_once(call) for call in CALLS]
blocks = sys.getallocatedblocks()
again = [fails_once(call) for call in CALLS]
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
    assert len(first) == 10
    assert min(first + again) >= 1
    assert lost < 100  # of some hundred failures
