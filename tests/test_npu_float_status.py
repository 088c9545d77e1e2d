"""The status of overflows, and the check of gradients by which GradScaler reads it."""

from __future__ import annotations

import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")

from descend import acl  # noqa: E402
from descend.npu.composed.training import float_status  # noqa: E402
from test_npu_composed import refused  # noqa: E402

SATURATING = ("atlas-training", "atlas-inference")


def test_the_status_is_0() -> None:
    x = torch.ones(3, dtype=torch.float16)
    status = float_status.npu_alloc_float_status(x)
    assert (status.dtype, status.tolist()) == (torch.float32, [0.0] * 8)
    for product in ("atlas-a2-training", "atlas-a3", "ascend-950"):
        with acl.product(product):
            for mode in (0, 1):
                got = float_status.npu_get_float_status(status, mode)
                assert (got.dtype, got.tolist()) == (torch.int32, [0] * 8)
    cleared = float_status.npu_clear_float_status(status)
    assert (cleared.dtype, cleared.tolist()) == (torch.float32, [0.0] * 8)


def test_what_is_refused() -> None:
    x = torch.ones(8)
    sentence = "npu_get_float_status: mode is 2, but must be 0 or 1."
    refused(sentence, float_status.npu_get_float_status, x, 2)
    refused("npu_clear_float_status: mode is -1, but must be 0 or 1.", float_status.npu_clear_float_status, x, -1)
    whole = [torch.ones(2), torch.ones(2, dtype=torch.int64)]
    sentence = "_amp_foreach_non_finite_check: scaled_grads[1] is torch.int64, but must be float16"
    refused(sentence, float_status._amp_foreach_non_finite_check, whole)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
def test_infinities_and_nan_of_gradients(dtype: torch.dtype) -> None:
    check = float_status._amp_foreach_non_finite_check
    largest = torch.full((2, 2), torch.finfo(dtype).max, dtype=dtype)
    assert not check([largest, torch.zeros(0, dtype=dtype), largest[0]])
    assert not check([])
    for number in (torch.inf, -torch.inf, torch.nan):
        assert check([largest, torch.tensor([1.0, number], dtype=dtype)])


PROGRAM = """
import torch, torch_npu
status = torch_npu.npu_alloc_float_status(torch.ones(1).npu())
torch_npu.npu_clear_float_status(status)
try:
    print(torch_npu.npu_get_float_status(status).tolist())
except RuntimeError as error:
    print(error)
print(torch_npu._amp_foreach_non_finite_check([torch.ones(2).npu()]))
scaler, weight = torch_npu.npu.amp.GradScaler(init_scale=2.0**30), torch.nn.Parameter(torch.ones(2).npu())
optimizer = torch.optim.SGD([weight], lr=1.0)
for factor in (1e38, 1.0):
    scaler.scale((weight * factor).sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
    print(weight.tolist(), scaler.get_scale())
"""


@pytest.mark.parametrize("product", ["atlas-a2-training", "atlas-training"])
def test_on_the_device(product: str) -> None:
    """A step whose gradients are infinite is left out, whatever the product is."""
    pytest.importorskip("torch_npu")
    command = [sys.executable, "-m", "descend.cli", "npu", "--product", product, "-c", PROGRAM]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    lines = done.stdout.splitlines()
    status, checked, *steps = [line for line in lines if not line.startswith(("Gradient overflow", "Loss scaler"))]
    assert steps == [f"[1.0, 1.0] {2.0**29}", f"[0.0, 0.0] {2.0**29}"], done.stderr
    assert checked == "False"
    if product in SATURATING:
        assert status == (
            "npu_get_float_status: the status of Ascend910A is not known, but must come from a processor: the CPU "
            "computes with infinities instead."
        )
    else:
        assert status == str([0] * 8)
