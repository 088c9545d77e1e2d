"""Triton's compiler without a device: what a call's launches would run, down to the machine code that ptxas makes."""

from __future__ import annotations

import functools
import re
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.runtime.driver import driver
from triton.runtime.jit import JITFunction


@dataclass(frozen=True)
class Kernel:
    """A kernel as compiled for one launch."""

    name: str
    shared_bytes: int
    warps: int
    instructions: str
    """The PTX."""

    @property
    def spilled_bytes(self) -> int:
        """Bytes that a thread spills because registers are short, as ptxas says."""
        return _spilled(self.instructions)

    @property
    def widest_access(self) -> int:
        """Bits of the widest access to device memory."""
        found = re.findall(r"(?:ld|st)\.global\S*?(?:\.v(\d))?\.[bfsu](\d+)", self.instructions)
        return max((int(lanes or 1) * int(bits) for lanes, bits in found), default=0)


class _NoDevice:
    """Stands in for Triton's driver: launches are compiled for a target and go nowhere. Devices are capabilities."""

    def __init__(self, capability: int) -> None:
        self._capability = capability

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", self._capability, 32)

    def get_current_device(self) -> int:
        return self._capability

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_active_torch_device(self) -> str:
        return "meta"


@functools.cache
def _spilled(code: str) -> int:
    found = re.search(r"\.target\s+(\w+)", code)
    assert found is not None
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "kernel.ptx"
        source.write_text(code)
        command = [knobs.nvidia.ptxas.path, "-v", f"--gpu-name={found[1]}", str(source), "-o", f"{folder}/kernel.cubin"]
        log = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    assert "registers" in log
    return sum(map(int, re.findall(r"(\d+) bytes spill", log)))


@contextmanager
def compiling(capability: int) -> Iterator[list[Kernel]]:
    """Launches in the block are compiled for sm_<capability>, not run; the list gets their kernels."""
    found: list[Kernel] = []
    run = JITFunction.run

    def compile_only(self: Any, *args: Any, grid: Any, warmup: bool, **named: Any) -> Any:
        kernel = run(self, *args, grid=grid, warmup=True, **named)
        found.append(
            Kernel(
                f"{self.__module__.rsplit('.')[-1]}.{self.__name__}",
                kernel.metadata.shared,
                kernel.metadata.num_warps,
                kernel.asm["ptx"],
            )
        )
        return kernel

    driver.set_active(_NoDevice(capability))
    try:
        with mock.patch.object(JITFunction, "run", compile_only):
            yield found
    finally:
        driver._active = None
