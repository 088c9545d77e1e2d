"""torch_npu's caching allocator, pinned memory, and memory shared between processes."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torch_npu")

import forks  # noqa: E402
from test_npu_runtime import START, run  # noqa: E402

ALLOCATOR = """
import gc
before = npu.memory_allocated()
blocks = [torch.full((size,), 7, dtype=torch.uint8).npu() for size in (100, 1 << 20, 30 << 20, 5 << 20)]
held = npu.memory_allocated() - before
assert held >= sum(b.numel() for b in blocks), held
assert npu.memory_reserved() >= held
assert all((b.cpu() == 7).all() for b in blocks)
reserved = npu.memory_reserved()
del blocks
gc.collect()
assert npu.memory_allocated() == before
again = torch.zeros(30 << 20, dtype=torch.uint8).npu()
assert npu.memory_reserved() == reserved  # cached
del again
npu.empty_cache()
assert npu.memory_reserved() == 0, npu.memory_reserved()
x = torch.arange(1000).npu()
assert torch.equal(x.cpu(), torch.arange(1000))
print("done")
"""


@pytest.mark.parametrize("segments", ["False", "True"])
def test_the_caching_allocator(segments):
    assert run(ALLOCATOR, PYTORCH_NPU_ALLOC_CONF=f"expandable_segments:{segments}") == "done\n"


def test_a_first_tensor_reserves_its_own_memory_only():
    code = """
x = torch.empty(8 << 20, dtype=torch.uint8, device="npu")
print(npu.memory_reserved() >> 20, npu.max_memory_allocated() - npu.memory_allocated())
"""
    assert run(code, PYTORCH_NPU_ALLOC_CONF="expandable_segments:True,segment_size_mb:128") == "128 0\n"


def test_expandable_segments_grow():
    """Blocks that are freed one after the other make room for one that is larger than each."""
    code = """
blocks = [torch.zeros(20 << 20, dtype=torch.uint8).npu() for _ in range(8)]
reserved = npu.memory_reserved()
del blocks
large = torch.full((150 << 20,), 3, dtype=torch.uint8).npu()
assert npu.memory_reserved() <= reserved + (20 << 20), (npu.memory_reserved(), reserved)
print(bool((large.cpu() == 3).all()))
"""
    assert run(code, PYTORCH_NPU_ALLOC_CONF="expandable_segments:True") == "True\n"


@pytest.mark.parametrize("segments", ["False", "True"])
def test_memory_that_cannot_be_had(segments):
    code = """
try:
    torch.empty(1 << 50, dtype=torch.uint8, device="npu")
except torch.OutOfMemoryError as error:
    print("out of memory" in str(error))
print(torch.ones(3).npu().cpu().tolist())
"""
    settings = {"PYTORCH_NPU_ALLOC_CONF": f"expandable_segments:{segments}"}
    done = forks.run(START + code, check=True, environment=settings, loaded="torch_npu")
    assert done.stdout == "True\n[1.0, 1.0, 1.0]\n"


def test_a_first_tensor_that_is_filled():
    code = """
torch.use_deterministic_algorithms(True)
print(torch.empty(3, device="npu").tolist(), torch.empty((), dtype=torch.int32, device="npu").item())
"""
    done = forks.run(START + code, check=True, loaded="torch_npu")
    assert done.stdout == "[nan, nan, nan] 2147483647\n"


def test_a_device_says_its_share_of_the_memory_everywhere():
    code = "print(torch.npu.get_device_properties(1).total_memory == torch.npu.mem_get_info(1)[1])"
    assert run(code, DESCEND_DEVICES="2") == "True\n"


def test_pinned_memory():
    x = torch.arange(1 << 18).pin_memory()
    assert x.is_pinned()
    y = x.to("npu", non_blocking=True)
    back = torch.empty_like(x, pin_memory=True)
    back.copy_(y, non_blocking=True)
    torch.npu.current_stream().synchronize()
    assert torch.equal(back, x)
    assert not torch.arange(3).is_pinned()


@pytest.mark.parametrize("dtype", [torch.int64, torch.float64, torch.bfloat16])
def test_what_comes_to_the_cpu_without_waiting_is_pinned(dtype):
    x = torch.arange(12).reshape(3, 4).t()
    come = x.npu().to("cpu", dtype=dtype, non_blocking=True)
    torch.npu.current_stream().synchronize()
    assert come.is_pinned()
    assert come.stride() == x.stride()
    assert torch.equal(come, x.to(dtype))
    assert not x.npu().to("cpu", dtype=dtype).is_pinned()
    assert not x.npu().to("npu", dtype=dtype, non_blocking=True).is_pinned()


def test_a_loader_that_pins():
    data = torch.utils.data.TensorDataset(torch.arange(64.0))
    batches = [b.npu(non_blocking=True) for (b,) in torch.utils.data.DataLoader(data, batch_size=16, pin_memory=True)]
    assert torch.equal(torch.cat([b.cpu() for b in batches]), torch.arange(64.0))


def test_a_tensor_for_another_process():
    """torch.multiprocessing sends it by a handle of its memory."""
    code = """
import torch.multiprocessing as mp
def child(queue, back):
    x = queue.get()
    back.put(x.cpu().tolist())
    x += 1
    npu.synchronize()
    back.put("done")
    del x
context = mp.get_context("fork")
queue, back = context.Queue(), context.Queue()
process = context.Process(target=child, args=(queue, back))
process.start()  # neither has used the device
x = torch.arange(4.0).npu()
queue.put(x)
print(back.get(timeout=120), back.get(timeout=120), x.tolist())
process.join()
"""
    assert run(code) == "[0.0, 1.0, 2.0, 3.0] done [1.0, 2.0, 3.0, 4.0]\n"
