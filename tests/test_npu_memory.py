"""torch_npu's memory: its caching allocator with and without expandable segments, pinned memory, several processes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("torch_npu")

from cases import run_python

START = "import torch, torch_npu\nnpu = torch.npu\n"
SEGMENTS = ["expandable_segments:False", "expandable_segments:True"]


@pytest.mark.parametrize("configuration", SEGMENTS)
def test_the_caching_allocator(configuration):
    code = """
small = [torch.full((1 << 18,), i).npu() for i in range(12)]
large = [torch.full((6 << 20,), i).npu() for i in range(4)]
spread = torch.arange(20 << 20, dtype=torch.int32).npu()
npu.synchronize()
assert [int(x.cpu()[-1]) for x in small + large] == [*range(12), *range(4)]
assert int(spread.cpu()[-1]) == (20 << 20) - 1
held = npu.memory_reserved()
assert held >= npu.memory_allocated() > 200 << 20
del spread, large[1:3]
npu.empty_cache()
assert npu.memory_reserved() < held - (100 << 20)
again = torch.zeros(30 << 20).npu()
assert float(again.cpu().sum()) == 0
assert [int(x.cpu()[0]) for x in small] == [*range(12)]
try:
    torch.empty(1 << 42, dtype=torch.uint8, device="npu")
except torch.OutOfMemoryError as error:
    print("NPU out of memory" in str(error), float(again.cpu().sum()))
"""
    done = run_python(START + code, timeout=300, PYTORCH_NPU_ALLOC_CONF=configuration)
    assert done.stdout == "True 0.0\n", done.stderr


def test_pinned_and_registered_memory():
    code = """
pinned, plain = torch.ones(1000).pin_memory(), torch.ones(20)
x = torch.empty(1000, device="npu")
x.copy_(pinned, non_blocking=True)
npu.synchronize()
assert x.cpu().sum() == 1000 and x.to("cpu", non_blocking=True).sum() == 1000
runtime = npu.npurt()
states = [pinned.is_pinned(), plain.is_pinned()]
assert runtime.npuHostRegister(plain.data_ptr(), 80, 0x10000000) == 0
states.append(plain.is_pinned())
assert runtime.npuHostUnregister(plain.data_ptr()) == 0
print(states, plain.is_pinned(), runtime.npuHostRegister(plain.data_ptr(), 0, 0x10000000))
"""
    assert run_python(START + code, timeout=300).stdout == "[True, False, True] False 100000\n"


PROCESSES = """
import torch, torch_npu
import torch.multiprocessing as processes

def child(tensors, answers):
    small, large = tensors.get()
    read = float(small.cpu().sum()), float(large.cpu().sum())
    small.copy_(torch.full((1000,), 3.0))
    torch.npu.synchronize()
    answers.put(read)
    tensors.get()
    answers.put(float(large.cpu()[-1]))

if __name__ == "__main__":
    spawn = processes.get_context("spawn")
    tensors, answers = spawn.Queue(), spawn.Queue()
    other = spawn.Process(target=child, args=(tensors, answers))
    other.start()
    small, large = torch.ones(1000).npu(), torch.ones(9 << 20).npu()
    torch.npu.synchronize()
    tensors.put((small, large))
    read = answers.get(timeout=200)
    seen = float(small.cpu().sum())
    large.copy_(torch.full((9 << 20,), 5.0))
    torch.npu.synchronize()
    tensors.put(None)
    print(read, seen, answers.get(timeout=200))
    other.join()
    print(other.exitcode)
"""


@pytest.mark.parametrize("configuration", SEGMENTS)
def test_tensors_shared_with_another_process(tmp_path: Path, configuration, monkeypatch):
    monkeypatch.setenv("PYTORCH_NPU_ALLOC_CONF", configuration)
    script = tmp_path / "processes.py"
    script.write_text(PROCESSES)
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=400, check=False)
    if "does not permit userfaultfd" in done.stderr:
        pytest.skip("this system does not permit userfaultfd")
    assert done.stdout == "(1000.0, 9437184.0) 3000.0 5.0\n0\n", done.stderr
