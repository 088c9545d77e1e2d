"""A description of the measured machine, without host names or paths."""

from __future__ import annotations

import os
import platform
from contextlib import suppress
from datetime import datetime, timezone
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from benchmarks import onednn

CPUS = Path("/sys/devices/system/cpu")
DEFAULT_CACHE = 32 << 20
DEFAULT_FIRST_CACHE = 32 << 10


@cache
def processors() -> list[int]:
    """The processors that this process may use, unless it restricts itself."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def has_a_core_each() -> bool:
    """Whether each processor that this process may use has a core to itself, as far as the system tells."""
    try:
        siblings = {(CPUS / f"cpu{n}/topology/thread_siblings_list").read_text() for n in processors()}
    except OSError:
        return False
    return len(siblings) == len(processors())


def restrict(threads: int) -> None:
    """Restricts this process, with all its threads, to as many processors."""
    if hasattr(os, "sched_setaffinity"):
        for thread in Path("/proc/self/task").iterdir():
            with suppress(ProcessLookupError):  # it has ended
                os.sched_setaffinity(int(thread.name), processors()[:threads])


@cache
def caches(threads: int | None = None) -> dict[str, int]:
    """Bytes of data cache by level, summed over so many of the processors that this process may use, or over all."""
    found: dict[tuple[str, str], int] = {}
    for processor in processors()[:threads]:
        for index in (CPUS / f"cpu{processor}/cache").glob("index[0-9]*"):
            try:
                level, kind, size, shared = (
                    (index / part).read_text().strip() for part in ("level", "type", "size", "shared_cpu_list")
                )
            except OSError:
                continue
            if kind != "Instruction":
                found[f"L{level}", shared] = int(size.removesuffix("K")) << 10
    total: dict[str, int] = {}
    for (level, _), size_in_bytes in sorted(found.items()):
        total[level] = total.get(level, 0) + size_in_bytes
    return total


def first_cache() -> int:
    """Bytes of one processor's first-level cache of data."""
    return caches(1).get("L1", DEFAULT_FIRST_CACHE)


def last_cache() -> int:
    """Bytes of the last-level cache."""
    return max(caches().values(), default=DEFAULT_CACHE)


def lives_in(size: int, threads: int | None = None) -> str:
    """Where a working set of this size is between calls: in a cache, in memory, or partly in both (edge)."""
    for level, capacity in sorted(caches(threads).items()):
        if size <= capacity:
            return level
    return "memory" if size >= 2 * last_cache() else "edge"


def describe() -> dict[str, Any]:
    """What a reader needs to judge the figures; no name, no path."""
    from descend import _native

    version = {}
    for package in ("descend", "numpy", "torch", "jax"):
        try:
            version[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    if release := onednn.version():
        version["oneDNN"] = release
    return {
        "cpu": _cpuinfo("model name", "Model") or platform.processor(),
        "architecture": platform.machine(),
        "cores": len(processors()),
        "isa": _native.info()["isa"],
        "caches": caches(),
        "memory_gib": _memory_gib(),
        "system": platform.system(),
        "python": platform.python_version(),
        "versions": version,
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
    }


def in_words(machine: dict[str, Any]) -> str:
    """One line for a table's or a picture's foot."""
    cache = ", ".join(f"{level} {_size(size)}" for level, size in machine["caches"].items())
    cores = f"{machine['cores']} core" + "s" * (machine["cores"] != 1)
    versions = ", ".join(f"{name} {number}" for name, number in machine["versions"].items())
    return f"{machine['cpu']}, {machine['isa']}, {cores}, {cache}; {versions}; {machine['date']}"


def _size(size: int) -> str:
    return f"{size >> 20} MiB" if size >= 1 << 20 else f"{size >> 10} KiB"


def _cpuinfo(*keys: str) -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return ""
    entries = (line.split(":", 1) for line in lines if ":" in line)
    return next((value.strip() for key, value in entries if key.strip() in keys), "")


def _memory_gib() -> float:
    try:
        return round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / (1 << 30), 1)
    except (ValueError, OSError):
        return 0.0
