"""What befalls a process: signals, forks, other interpreters, no memory, and its end with work in flight."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from cases import phase1, run_python
from descend import aclnn
from two_phase_calls import BIG, OP, inputs, outputs

pytestmark = pytest.mark.usefixtures("host")


IN_FLIGHT = f"""
import os, signal, sys, threading, time
import numpy as np
import descend
from descend import acl, aclnn
acl.set_product("host")
stream = acl.Stream()
def arrays(rows={BIG[0]}, columns={BIG[1]}):
    shapes = ((rows, columns), (rows, columns), (rows,), (columns,), (rows, columns), (columns,))
    return [np.ones(s, "f") for s in shapes]
def start(times, a, on=stream):
    for _ in range(times):
        size, executor = aclnn.rms_norm_grad_get_workspace_size(*a)
        aclnn.rms_norm_grad(acl.malloc(size), size, executor, on)
"""


@pytest.mark.parametrize("wait", ["stream.synchronize()", "stream.synchronize(timeout=1000)", "acl.synchronize()"])
def test_ctrl_c_interrupts_synchronize(wait):
    code = f"""{IN_FLIGHT}
signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background is born deaf to it
a = arrays()
start(2000, a, None if "acl." in "{wait}" else stream)  # takes many seconds
begin = time.monotonic()
threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
try:
    {wait}
except KeyboardInterrupt:
    print(0.2 < time.monotonic() - begin < 10, flush=True)
os._exit(0)
"""
    assert run_python(code).stdout == "True\n"


@pytest.mark.parametrize("last", ["", "del stream, a", "sys.exit(3)", "raise RuntimeError('the end')"])
def test_the_interpreter_ends_with_work_in_flight(last):
    result = run_python(f"{IN_FLIGHT}\na = arrays()\nstart(20, a)\nstart(20, a, None)\n{last}", check=False)
    assert result.returncode == {"": 0, "d": 0, "s": 3, "r": 1}[last[:1]], result.stderr
    if not last.startswith("raise"):
        assert result.stderr == ""


def test_the_interpreter_ends_while_other_threads_compute():
    code = f"""{IN_FLIGHT}
def forever():
    a, mine = arrays(300, 300), acl.Stream()
    while True:
        descend.rms_norm_grad(*a[:4])
        start(3, a, mine)
for _ in range(4):
    threading.Thread(target=forever, daemon=True).start()
start(5, arrays())
time.sleep(0.2)
"""
    result = run_python(code, check=False)
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""


@pytest.mark.parametrize(
    "again", ["acl.Stream()", "mine.synchronize()", "acl.synchronize()", "start(1, a, acl.Stream())"]
)
def test_the_interpreter_ends_while_other_threads_use_streams(again):
    """They are stopped as they take the GIL back: in nanobind's functions, and in destructors."""
    code = f"""{IN_FLIGHT}
def forever():
    a, mine = arrays(300, 300), acl.Stream()
    while True:
        {again}
sys.setswitchinterval(1e-6)
for _ in range(4):
    threading.Thread(target=forever, daemon=True).start()
time.sleep(0.2)
"""
    result = run_python(code, check=False)
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""


def test_a_forked_child_computes():
    code = f"""{IN_FLIGHT}
a = arrays(2000, 1000)
expected = descend.rms_norm_grad(*a[:4])
start(1, a); stream.synchronize()
start(10, a)  # in flight while we fork
child = os.fork()
result = descend.rms_norm_grad(*a[:4])
assert all(np.array_equal(r, e) for r, e in zip(result, expected))
if child == 0:
    # Its streams are empty; what was in flight goes on in the parent, and the child is told, once.
    try:
        stream.synchronize(timeout=30)
    except aclnn.AclnnError as error:
        assert error.status == 361001, error
        assert "fork" in str(error)
    stream.synchronize(timeout=30)
    fresh = acl.Stream()
    for s in (stream, fresh, None):
        b = arrays(2000, 1000)
        b[4][...] = b[5][...] = np.nan
        start(3, b, s)
        (s or acl).synchronize()
        assert all(np.array_equal(r, e) for r, e in zip(b[4:], expected))
    sys.exit(7)
stream.synchronize()
assert all(np.array_equal(r, e) for r, e in zip(a[4:], expected))
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
print("done")
"""
    assert run_python(code, DESCEND_NUM_THREADS="3").stdout == "done\n"


def test_forks_while_other_threads_compute():
    code = f"""{IN_FLIGHT}
import warnings
warnings.simplefilter("ignore")
stop = threading.Event()
def busy(i):
    a, mine = arrays(200 + i, 600), acl.Stream()
    while not stop.is_set():
        descend.rms_norm_grad(*a[:4])
        start(2, a, mine)
        mine.synchronize()
threads = [threading.Thread(target=busy, args=(i,)) for i in range(4)]
for t in threads: t.start()
a = arrays(500, 500)
expected = descend.rms_norm_grad(*a[:4])
for _ in range(25):
    child = os.fork()
    if child == 0:
        signal.alarm(30)  # a child that hangs dies
        result = descend.rms_norm_grad(*a[:4])
        fresh = acl.Stream()
        start(2, a, fresh)
        fresh.synchronize()
        good = all(np.array_equal(r, e) for r, e in zip([*result, *a[4:]], [*expected, *expected]))
        os._exit(0 if good else 1)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status == 0, status
stop.set()
for t in threads: t.join()
print("done")
"""
    assert run_python(code, DESCEND_NUM_THREADS="3").stdout == "done\n"


def test_multiprocessing_with_fork():
    code = """
import multiprocessing as mp
import numpy as np
import descend
x = np.ones((2000, 700), "f")
g = np.ones(700, "f")
def work(i):
    return float(descend.rms_norm(x * np.float32(i + 1), g)[0].sum())
work(0)
with mp.get_context("fork").Pool(3) as pool:
    print(pool.map(work, range(6)) == [work(i) for i in range(6)])
"""
    assert run_python(code).stdout == "True\n"


def test_other_interpreters_and_reimports():
    """Importing twice, in a thread, and after the modules were forgotten."""
    code = """
import sys, threading
import numpy as np
def use():
    import descend
    return descend.rms_norm(np.ones((2, 8)), np.ones(8))[1].ravel().tolist()
threads = [threading.Thread(target=use) for _ in range(8)]
[t.start() for t in threads]; [t.join() for t in threads]
first = use()
for name in [n for n in sys.modules if n.startswith("descend") and "_native" not in n]:
    del sys.modules[name]
print(use() == first)
"""
    assert run_python(code).stdout == "True\n"


def test_errors_can_be_pickled_and_caught():
    import pickle

    with pytest.raises(aclnn.AclnnError) as caught:
        phase1(OP, None, *inputs()[1:], *outputs())
    caught.value.note = "kept"  # type: ignore[attr-defined]
    copy = pickle.loads(pickle.dumps(caught.value))
    assert (copy.status, copy.name, str(copy)) == (161001, "ACLNN_ERR_PARAM_NULLPTR", str(caught.value))
    assert copy.note == "kept"
    assert isinstance(copy, ValueError)


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


ALLOCATOR = """
#include <atomic>
#include <cstdlib>
#include <new>

std::atomic<long> left{-1};  // allocations before the one that fails; negative: none does
extern "C" long fail_after(long count) { return left.exchange(count); }

void* operator new(std::size_t size) {
  void* const pointer = left >= 0 && left-- == 0 ? nullptr : std::malloc(size > 0 ? size : 1);
  if (pointer == nullptr) throw std::bad_alloc();
  return pointer;
}
void operator delete(void* pointer) noexcept { std::free(pointer); }
void operator delete(void* pointer, std::size_t) noexcept { std::free(pointer); }
"""


@pytest.mark.skipif(not shutil.which("g++"), reason="there is no compiler")
def test_no_memory_for_a_step_is_a_memory_error(tmp_path):
    """Every allocation of the second phase fails once: the call reports it, and the stream continues."""
    (tmp_path / "allocator.cpp").write_text(ALLOCATOR)
    library = tmp_path / "allocator.so"
    subprocess.run(["g++", "-O1", "-shared", "-fPIC", "-o", library, tmp_path / "allocator.cpp"], check=True)
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
    count, failures = run_python(code, LD_PRELOAD=str(library)).stdout.split(" ", 1)
    assert 1 < int(count) < 99
    assert eval(failures) == [(True, 361001, f"{OP}: there is no memory for the call.")]
