"""What measurements need of the GPU: events on its stream, work that keeps it busy, its cache, its name."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from datetime import datetime, timezone
from importlib import metadata
from typing import Any, Protocol

NOTHING = 2
"""The exit status where there is no GPU."""


class NoGpuError(RuntimeError):
    """There is no GPU to measure, and one sentence that says what there is instead."""


class Device(Protocol):
    """What a measurement needs of a device that runs its work in order and asynchronously."""

    @property
    def cache(self) -> int:
        """Bytes of the last cache before its memory."""

    def mark(self) -> Any:
        """Records an event after all work so far."""

    def reached(self, mark: Any) -> bool:
        """Whether the device has reached the event."""

    def seconds(self, start: Any, stop: Any) -> float:
        """Seconds between two events that the device has reached."""

    def hold(self, seconds: float) -> None:
        """Work that takes about so long, so that what follows is all queued before the first of it starts."""

    def synchronize(self) -> None:
        """Waits for all work."""

    def free(self) -> int:
        """Bytes of memory that are free."""


@dataclass(frozen=True)
class Cuda:
    """The current CUDA device, on its current stream."""

    cache: int
    cycles: float
    """Cycles of its clock per second, while it is held busy."""

    @staticmethod
    def find() -> Cuda:
        """Raises NoGpuError where there is none."""
        try:
            import torch
        except ImportError:
            raise NoGpuError("PyTorch is not installed.") from None
        if not torch.cuda.is_available():
            built = f"is built for CUDA {torch.version.cuda}" if torch.version.cuda else "is built without CUDA"
            raise NoGpuError(f"PyTorch {torch.__version__} {built}, and torch.cuda.is_available() is False.")
        torch.cuda._sleep(1)  # loads it
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        cycles = 20_000_000
        start.record()
        torch.cuda._sleep(cycles)
        stop.record()
        torch.cuda.synchronize()
        cache: int = torch.cuda.get_device_properties().L2_cache_size
        return Cuda(cache, cycles / (start.elapsed_time(stop) / 1000))

    def mark(self) -> Any:
        """An event on the current stream."""
        import torch

        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def reached(self, mark: Any) -> bool:
        """Asks the event."""
        return bool(mark.query())

    def seconds(self, start: Any, stop: Any) -> float:
        """Events count in milliseconds."""
        return float(start.elapsed_time(stop)) / 1000

    def hold(self, seconds: float) -> None:
        """A kernel that counts cycles."""
        import torch

        torch.cuda._sleep(max(int(seconds * self.cycles), 1))

    def synchronize(self) -> None:
        """All streams."""
        import torch

        torch.cuda.synchronize()

    def free(self) -> int:
        """What PyTorch keeps for itself is given back first."""
        import torch

        torch.cuda.empty_cache()
        return int(torch.cuda.mem_get_info()[0])


def describe() -> dict[str, Any]:
    """What a reader needs to judge the figures; no host's name, no path."""
    import torch

    properties, versions = torch.cuda.get_device_properties(), {}
    for package in (
        "descend",
        "torch",
        "triton",
        "liger-kernel",
        "quack-kernels",
        "flash-linear-attention",
        "apex",
        "transformer-engine",
    ):
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return {
        "gpu": properties.name,
        "capability": f"{properties.major}.{properties.minor}",
        "processors": properties.multi_processor_count,
        "memory_gib": round(properties.total_memory / 2**30, 1),
        "cache_mib": round(properties.L2_cache_size / 2**20, 1),
        "cuda": torch.version.cuda,
        "versions": versions,
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
    }


def refusal(command: str, error: NoGpuError) -> str:
    """The error sentence if there is no GPU."""
    return f"{command} needs an NVIDIA GPU that PyTorch can use, and there is none: {error} Nothing was measured."


if __name__ == "__main__":  # for the script dev: whether there is a GPU
    try:
        Cuda.find()
    except NoGpuError as error:
        print(refusal("bench-gpu", error), file=sys.stderr)
        sys.exit(NOTHING)
    print(describe()["gpu"], file=sys.stderr)
