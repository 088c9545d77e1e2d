"""Functions that PyTorch computes, as C++ extensions call them: the thread keeps the lock of Python in both phases."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
torch_npu = pytest.importorskip("torch_npu")

from c_library import Library  # noqa: E402
from descend import sdk  # noqa: E402
from test_npu_composer import first, near, poisoned, second, value  # noqa: E402

NAME = "aclnnGroupedMatmulV4"
INVALID = 161002


class Extension:
    """The library, whose functions of aclnn are called with the lock."""

    def __init__(self) -> None:
        self.library = Library()
        self.locked = ctypes.PyDLL(str(sdk.path() / "lib64" / "libdescend.so"))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.locked if name.startswith("aclnn") else self.library, name)


@pytest.fixture
def lib() -> Extension:
    torch.ones(1).npu()  # starts the device
    return Extension()


def grouped(x: Any, ends: list[int]) -> tuple[dict[str, Any], Any]:
    """The arguments of a product of groups, and its result."""
    weight = torch.randn(len(ends), x.shape[1], 4)
    rows = x.cpu().double()
    cuts = [0, *ends]
    wanted = torch.cat([rows[cuts[i] : cuts[i + 1]] @ weight[i].double() for i in range(len(ends))])
    given = {
        "x": [x], "weight": [weight.npu()], "group_list": torch.tensor(ends).npu(), "split_item": 3,
        "out": [poisoned((len(x), 4), torch.float32)],
    }  # fmt: skip
    return given, wanted


def test_phase_1_computes(lib: Extension) -> None:
    """The launch then needs no Python, for which torch_npu's queue would wait for ever."""
    given, wanted = grouped(torch.randn(5, 3).npu(), [2, 2, 5])
    status, executor = first(lib, NAME, **given)
    assert status == 0, lib.sentence
    assert lib.aclSetAclOpExecutorRepeatable(executor) == 0
    near(given["out"][0], wanted)
    given["out"][0].zero_()
    assert second(lib, NAME, executor) == 0, lib.sentence
    assert not given["out"][0].any()
    assert second(lib, NAME, executor) == 0, lib.sentence
    near(given["out"][0], wanted)
    assert lib.aclDestroyAclOpExecutor(executor) == 0


def test_all_errors_are_of_phase_1(lib: Extension) -> None:
    """One of the launch would end the process: torch_npu has given the lock away, and does not take it back."""
    given, _ = grouped(torch.randn(5, 3).npu(), [2, 5])
    given["group_list"][1] = 6
    status, _ = first(lib, NAME, **given)
    assert (status, "must end within the 5 rows of x" in lib.sentence) == (INVALID, True)


def test_a_call_in_a_capture_is_refused(lib: Extension) -> None:
    """The graph would not repeat it. What PyTorch dispatches may call the same functions."""
    given, _ = grouped(torch.randn(5, 3).npu(), [2, 5])
    x, gamma = torch.ones(2, 16).npu(), torch.ones(16).npu()
    with torch.npu.graph(torch.npu.NPUGraph()):
        status, _ = first(lib, NAME, **given)
        assert (status, "this thread captures a graph" in lib.sentence) == (361001, True)
        own = [value(lib, "tensor", x), ctypes.c_int64(-1), value(lib, "tensor", x[:, :8])]
        found = ctypes.c_uint64(), ctypes.c_void_p()
        assert lib.aclnnSwiGluGetWorkspaceSize(*own, *map(ctypes.byref, found)) == 361001
        torch_npu.npu_rms_norm(x, gamma)
        torch_npu.npu_grouped_matmul([x], [torch.ones(16, 4, device="npu")], split_item=3, group_type=-1)
    assert first(lib, NAME, **given)[0] == 0


QUEUED = """
import torch, torch_npu
from test_npu_extensions import NAME, Extension, first, grouped, near

x, ones, lib = torch.randn(64, 3).npu(), torch.ones(3).npu(), Extension()
given, _ = grouped(x, [10, 64])
for _ in range(50):  # in the queue
    x = torch_npu.npu_rms_norm(x, ones)[0]
status, executor = first(lib, NAME, **{**given, "x": [x]})
assert status == 0, lib.sentence
(weight,) = given["weight"]
near(given["out"][0], torch.cat((x[:10] @ weight[0], x[10:] @ weight[1])).cpu().double())
print("computed")
"""


def test_what_is_queued_is_done_before() -> None:
    environment = {**os.environ, "TASK_QUEUE_ENABLE": "1", "PYTHONPATH": str(Path(__file__).parent)}
    command = [sys.executable, "-c", QUEUED]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout.endswith("computed\n"), done.stderr
