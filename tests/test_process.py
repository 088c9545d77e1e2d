"""What befalls a process: signals, forks, other interpreters, other processors, and its end with work in flight."""

from __future__ import annotations

import os

import pytest

import descend
from cases import phase1, python_value, run_python
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


@pytest.mark.parametrize("module", ["acl", "aclnn", "golden", "precision", "reference"])
def test_importing_descend_is_enough_for_its_modules(module):
    assert python_value(f"import descend, json; print(json.dumps(descend.{module}.__name__))") == f"descend.{module}"


def test_a_name_that_descend_does_not_have():
    with pytest.raises(AttributeError, match="module 'descend' has no attribute 'rmsnorm'") as error:
        descend.rmsnorm  # noqa: B018
    assert (error.value.name, error.value.obj) == ("rmsnorm", descend)  # from which Python says what may be meant


def test_errors_can_be_pickled_and_caught():
    import pickle

    with pytest.raises(aclnn.AclnnError) as caught:
        phase1(OP, None, *inputs()[1:], *outputs())
    caught.value.note = "kept"  # type: ignore[attr-defined]
    copy = pickle.loads(pickle.dumps(caught.value))
    assert (copy.status, copy.name, str(copy)) == (161001, "ACLNN_ERR_PARAM_NULLPTR", str(caught.value))
    assert copy.note == "kept"
    assert isinstance(copy, ValueError)


@pytest.mark.long
@pytest.mark.parametrize("fork", [False, True])
def test_signals_at_any_point_of_a_call(fork):
    """A handler every millisecond, wherever the program is; it may fork, and the child then goes on from there."""
    code = f"""{IN_FLIGHT}
import warnings
warnings.simplefilter("ignore")
a = arrays(400, 300)
expected = descend.rms_norm_grad(*a[:4])
handled, child = 0, None
def handle(*_):
    global handled, child
    handled += 1
    if {fork} and child is None and handled % 40 == 0:
        child = os.fork()
        if child == 0:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(30)  # a child that hangs dies
def good(results):
    return all(np.array_equal(r, e) for r, e in zip(results, expected, strict=True))
signal.signal(signal.SIGALRM, handle)
signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
forks = 0
while handled < 300 or {fork} and forks < 6:
    right = good(descend.rms_norm_grad(*a[:4]))
    a[4][...] = a[5][...] = np.nan
    fresh = acl.Stream()
    try:
        start(2, a, fresh)
        fresh.synchronize(timeout=30)
    except aclnn.AclnnError as error:  # in the child, what was in flight is told to be lost, once
        if child != 0 or "fork" not in str(error):
            raise
        start(2, a, fresh)
        fresh.synchronize(timeout=30)
    right = right and good(a[4:])
    if child == 0:
        os._exit(0 if right else 1)
    assert right
    if child is not None:
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        child, forks = None, forks + 1
signal.setitimer(signal.ITIMER_REAL, 0)
print("done")
"""
    assert run_python(code, timeout=200, DESCEND_NUM_THREADS="3").stdout == "done\n"


@pytest.mark.long
@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="there is no affinity here")
def test_threads_and_affinity_change_while_calls_run():
    code = f"""{IN_FLIGHT}
a = arrays(600, 500)
expected = descend.rms_norm_grad(*a[:4])
allowed, stop, changes = sorted(os.sched_getaffinity(0)), threading.Event(), 0
def change():
    global changes
    while not stop.is_set():
        for count in (1, 7, 2, 64, 3):
            descend.set_num_threads(count)
            for thread in os.listdir("/proc/self/task"):
                try:
                    os.sched_setaffinity(int(thread), allowed[changes % len(allowed):][:1 + changes % 2])
                except ProcessLookupError:  # it has ended
                    pass
            changes += 1
            time.sleep(0.001)
changing = threading.Thread(target=change)
changing.start()
calls = 0
while calls < 100 or changes < 100:
    calls += 1
    assert all(np.array_equal(r, e) for r, e in zip(descend.rms_norm_grad(*a[:4]), expected))
    a[4][...] = a[5][...] = np.nan
    start(2, a)
    stream.synchronize(timeout=30)
    assert all(np.array_equal(r, e) for r, e in zip(a[4:], expected))
stop.set()
changing.join()
print("done")
"""
    assert run_python(code, timeout=200).stdout == "done\n"


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="there is no affinity here")
def test_the_number_of_threads_is_that_of_the_processors_allowed():
    code = """
import os
one = sorted(os.sched_getaffinity(0))[:1]
os.sched_setaffinity(0, one)
import descend
print(descend.get_num_threads())
"""
    assert run_python(code, DESCEND_NUM_THREADS="", OMP_NUM_THREADS="").stdout == "1\n"


def test_more_threads_than_processors():
    code = f"""{IN_FLIGHT}
import hashlib
a = arrays(900, 700)
results = b"".join(r.tobytes() for r in descend.rms_norm_grad(*a[:4]))
print(descend.get_num_threads(), hashlib.sha256(results).hexdigest())
"""
    counts = {count: run_python(code, DESCEND_NUM_THREADS=str(count)).stdout.split() for count in (1, 64, 300)}
    assert [int(found) for found, _ in counts.values()] == list(counts)
    assert len({digest for _, digest in counts.values()}) == 1


def test_a_thread_with_a_small_stack():
    """Gradients of norms take the most: sums over columns, for rows of all lengths that one thread computes."""
    code = """
import threading
import ml_dtypes, numpy as np
import descend
threading.stack_size(512 << 10)
done = []
def compute():
    for columns in (2, 200, 300, 2000, 9000):
        for dtype in (np.float64, np.float32, np.float16, ml_dtypes.bfloat16):
            x, gamma = np.ones((200, columns), dtype), np.ones(columns, dtype)
            of_rows = np.ones(200, np.float64 if dtype == np.float64 else np.float32)
            descend.rms_norm_grad(x, x, of_rows, gamma)
            descend.layer_norm_backward(x, x, (columns,), of_rows, of_rows, gamma, gamma)
            descend.deep_norm_grad(x, x, x, gamma, of_rows, of_rows)
            descend.add_layer_norm_grad(x, x, x, of_rows, of_rows, gamma)
            descend.add_rms_norm(x, x, gamma)
            descend.softmax(x)
            done.append(dtype)
thread = threading.Thread(target=compute)
thread.start()
thread.join()
print(len(done))
"""
    assert run_python(code).stdout == "20\n"
