"""The Triton kernels where there is no GPU: in Triton's interpreter, and through its compiler up to machine code."""

from __future__ import annotations

import math
import os
import pkgutil
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

import descend.triton  # noqa: E402
from cases import extended, run_python  # noqa: E402
from descend import contract  # noqa: E402
from descend.triton import windows  # noqa: E402
from descend.triton.work import Work  # noqa: E402
from pages import MISSING  # noqa: E402
from triton_calls import OPERATORS  # noqa: E402
from triton_compiler import Kernel, compiling  # noqa: E402

HERE = Path(__file__).parent
BF16, F16, F32, F64 = torch.bfloat16, torch.float16, torch.float32, torch.float64


# --- in the interpreter -----------------------------------------------------------------------------------------------


@pytest.mark.extended
@pytest.mark.long
def test_in_tritons_interpreter():
    """The tests of the CPU kernels, and those of the kernels' own, in one process: see triton_plugin.py for which."""
    options = ["-x", "-q", "--tb=short", "-p", "triton_plugin", "-p", "no:cacheprovider"]
    names = (*OPERATORS, "norm_gradients", "triton_kernels", "triton_two_phase")
    modules = [str(path) for name in names if (path := HERE / f"test_{name}.py").exists()]  # swi_glu has its gradient's
    path = os.pathsep.join(filter(None, [str(HERE), os.environ.get("PYTHONPATH")]))
    result = subprocess.run(
        [sys.executable, "-m", "pytest", *options, *modules],
        env={**os.environ, "PYTHONPATH": path, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        timeout=1200,
        check=False,
    )
    assert result.returncode == 0, result.stdout[-6000:] + result.stderr[-2000:]


# --- through the compiler ---------------------------------------------------------------------------------------------


def meta(*shape: int, dtype: Any) -> Any:
    """A tensor without memory: a launch is compiled from shapes, strides and dtypes."""
    return torch.empty(shape, dtype=dtype, device="meta")


def launch(name: str, columns: int, dtype: Any) -> None:
    """A call with hidden size, last axis, group or head of this size."""
    operator, work = descend.triton.operator(name), Work(torch.device("meta"))
    statistic = F64 if dtype is F64 else F32
    x, gamma, rstd = meta(4096, columns, dtype=dtype), meta(columns, dtype=dtype), meta(4096, dtype=statistic)
    if name in ("rms_norm", "gemma_rms_norm"):
        operator.launch(work, x, gamma, 1e-6, x, rstd)
    elif name == "add_rms_norm":
        operator.launch(work, x, x, gamma, 1e-6, x, rstd, x)
    elif name == "rms_norm_grad":
        operator.launch(work, x, x, rstd, gamma, x, gamma.to(statistic))
    elif name == "layer_norm":
        operator.launch(work, x, [columns], gamma, gamma, 1e-5, x, rstd, rstd)
    elif name == "layer_norm_backward":
        operator.launch(work, x, x, [columns], rstd, rstd, gamma, gamma, (True,) * 3, x, gamma, gamma)
    elif name == "deep_norm":
        operator.launch(work, x, x, gamma, gamma, 0.3, 1e-6, rstd, rstd, x)
    elif name == "add_layer_norm":
        operator.launch(work, x, x, gamma, gamma, gamma, 1e-5, True, x, rstd, rstd, x)
    elif name == "add_layer_norm_grad":
        sums = gamma.to(statistic)
        operator.launch(work, x, x, x, rstd, rstd, gamma, x, x, sums, sums)
    elif name == "deep_norm_grad":
        sums = gamma.to(statistic)
        operator.launch(work, x, x, x, gamma, rstd, rstd, 0.3, x, x, sums, sums)
    elif name.startswith("rotary"):
        heads, angles = meta(2, 64, 8, 2 * columns, dtype=dtype), meta(1, 64, 1, 2 * columns, dtype=dtype)
        for mode in (0, 1):
            if name == "rotary_position_embedding":
                operator.launch(work, heads, angles, angles, mode, heads)
            else:
                operator.launch(work, heads, angles, angles, heads, mode, heads, angles, angles)
    elif name.startswith("swi_glu"):
        both = meta(4096, 2 * columns, dtype=dtype)
        tensors = (both, -1, x) if name == "swi_glu" else (x, both, -1, both)
        operator.launch(work, *tensors)
    elif name == "apply_adam_w_v2":
        for most in (None, x):
            numbers = (1e-3, 0.9, 0.999, 1e-2, 1e-8, most is not None, False)
            operator.launch(work, x, x, x, most, x, meta(1, dtype=F32), *numbers, x, x, x, most)
    elif name.startswith("cross_entropy"):
        target, weight, of_row = meta(4096, dtype=torch.int64), gamma.to(statistic), meta(4096, dtype=dtype)
        for given, smoothing, written in ((None, 0.0, x), (weight, 0.1, x), (None, 0.0, None)):
            if name == "cross_entropy_loss":
                options = ("none", -100, smoothing, smoothing, False)
                operator.launch(work, x, target, given, *options, of_row, written, None, None)
            else:
                lse = of_row if written is x else of_row[:, None]
                operator.launch(work, of_row, x, target, given, of_row, lse, "none", -100, smoothing, smoothing, x)
    elif name == "gelu_v2":
        operator.launch(work, x, 0, x)
    elif name == "gelu_backward_v2":
        operator.launch(work, x, x, "none", x)
    elif name.startswith("group_norm"):
        side = max(math.isqrt(columns // 2), 1)
        x, gamma, rstd = meta(16, 64, side, side, dtype=dtype), meta(64, dtype=dtype), meta(16, 32, dtype=statistic)
        if name == "group_norm_backward":
            sizes = (16, 64, side * side, 32, (True, True, True))
            operator.launch(work, x, x, rstd, rstd, gamma, *sizes, x, gamma, gamma)
        elif name == "group_norm":
            operator.launch(work, x, gamma, gamma, 16, 64, side * side, 32, 1e-5, x, rstd, rstd)
        elif name == "group_norm_silu":
            operator.launch(work, x, None, None, 32, 1e-5, x, rstd, rstd)
        elif name == "group_norm_swish":
            operator.launch(work, x, gamma, gamma, 32, None, 1e-5, True, 1.0, x, rstd, rstd)
        else:
            operator.launch(work, x, rstd, rstd, x, gamma, gamma, 32, None, 1.0, True, True, x, gamma, gamma)
    elif name in ("softmax", "log_softmax"):
        operator.launch(work, x, -1, x)
    elif name in ("softmax_backward", "log_softmax_backward"):
        operator.launch(work, x, x, -1, x)
    elif name.startswith("scaled_masked_softmax"):
        x, mask = meta(8, 32, 16, columns, dtype=dtype), meta(8, 1, 16, columns, dtype=torch.bool)
        for given, triangle in ((mask, False), (None, False), (None, True)):
            tensors = (x,) if name == "scaled_masked_softmax" else (x, x)
            operator.launch(work, *tensors, given, 0.125, triangle, x)
    else:
        x, weight = meta(4096, 8, columns, dtype=dtype), meta(32, 8, dtype=dtype)
        for ends in (None, [2048, 4096]):
            found = windows.sequences(work, 4096, ends, 0, 32, 16).windows
            y = meta(found, 8, columns, dtype=dtype)
            if name == "nsa_compress":
                operator.launch(work, x, weight, ends, "TND", 32, 16, 0, y)
            else:
                operator.launch(work, y, x, weight, ends, 32, 16, 0, "TND", x, weight)


def kernels(name: str, capability: int, size: int, dtype: Any) -> list[Kernel]:
    with compiling(capability) as found:
        launch(name, size, dtype)
    assert found
    return found


HIDDEN = ((90, 8192, BF16), (90, 32768, F32))
MORE_HIDDEN = ((90, 512, BF16), (90, 512, F32), (90, 8192, F32), (90, 32768, BF16), (80, 8192, F32), (80, 32768, F32))


@pytest.mark.parametrize(("capability", "size", "dtype"), [*HIDDEN, *extended(*MORE_HIDDEN)])
@pytest.mark.parametrize("name", OPERATORS)
def test_no_register_is_spilled_and_accesses_are_wide(name, capability, size, dtype):
    """Of rows as hidden sizes are: what ptxas says of each kernel."""
    size = max(size // 64, 128) if name.startswith("nsa") else size
    for kernel in kernels(name, capability, size, dtype):
        assert kernel.spilled_bytes == 0, kernel
        if "rows" in kernel.name or "apply" in kernel.name or "windows" in kernel.name:
            assert kernel.widest_access == 128, kernel


@pytest.mark.parametrize(("size", "dtype"), [(5001, F64), *extended((1, F32), (1000, F64), (5001, F16))])
@pytest.mark.parametrize("name", OPERATORS)
def test_every_kernel_compiles_for_awkward_sizes_and_other_dtypes(name, size, dtype):
    for kernel in kernels(name, 90, size, dtype):
        assert kernel.spilled_bytes <= 512, kernel


def test_which_operators_have_kernels():
    found = {module.name for module in pkgutil.iter_modules(descend.triton.__path__)}
    assert {name for name in contract.OPERATORS if name not in found} == MISSING["triton"]
    for name in MISSING["triton"]:
        with pytest.raises(NotImplementedError, match=f"^{name} has no kernels for CUDA tensors; move the tensors"):
            descend.triton.operator(name)


def test_no_kernel_has_atomics_or_fast_subnormals():
    """Sums have a fixed order; and only exp's floor, of a number beside 1/2, takes subnormals for 0."""
    for name in OPERATORS:
        for kernel in kernels(name, *HIDDEN[1]):
            code = kernel.instructions
            assert "atom." not in code, kernel.name
            assert not re.search(r"^\s*(@\S+ )?red\.", code, re.M), kernel.name
            code = code.replace("cvt.rmi.ftz.f32.f32", "")
            # log and exp of double look at its upper half, and refine a reciprocal.
            if name in ("apply_adam_w_v2", "cross_entropy_loss", "softmax", "log_softmax", "log_softmax_backward"):
                code = code.replace("abs.ftz.f32", "").replace("rcp.approx.ftz.f64", "")
            assert not re.search(r"\.ftz", code), kernel.name


# --- the way to the kernels -------------------------------------------------------------------------------------------


def test_without_triton_the_error_names_it():
    """Nothing is computed elsewhere: the dispatcher's CUDA kernel and phase 1 are called as for a CUDA tensor."""
    code = """
import sys
sys.modules["triton"] = None
import torch, descend.torch
from descend import _cuda
from torch_cases import OPERATORS, calls
for name in OPERATORS:
    call = calls()[name]
    keys = torch._C.DispatchKeySet(torch._C.DispatchKey.CUDA)
    operator = getattr(torch.ops.descend, name).default
    for ask in (lambda: operator.redispatch(keys, *call.args, **call.named), lambda: _cuda.prepare(name)):
        try:
            ask()
        except ModuleNotFoundError as error:
            assert error.name == "triton"
            assert str(error).startswith(f"{name} on CUDA tensors needs Triton, which is not installed: pip install ")
        else:
            raise AssertionError(name)
"""
    run_python(code)


def test_descend_does_not_import_triton():
    assert run_python("import sys, descend.torch; print('descend.triton' in sys.modules)").stdout == "False\n"
