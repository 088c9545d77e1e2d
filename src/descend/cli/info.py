"""``descend info``: the versions of this installation, and how fast this machine's memory is."""

from __future__ import annotations

import platform

import ml_dtypes
import numpy as np

import descend
from descend import _native, acl
from descend.cli import output
from descend.contract import OPERATORS, PRODUCTS

_BYTES = (96 << 10, 384 << 20)  # in the cache of one core; beyond any cache
_SECONDS = 0.7


def info() -> None:
    """Print version, instruction set, threads and memory limit.

    The limit is measured, which takes about two seconds. A wrong environment variable is an error.
    """
    product = acl.get_product()
    descend.rms_norm(
        np.empty((0, 1)), np.empty(1)
    )  # refuses wrong values of the other variables, as every operator does
    threads = descend.get_num_threads()
    limits = {}
    with output.progress() as bar:
        for count in bar.track(_BYTES, description="measuring memory"):
            limits[count] = memory_limit(count, threads, _SECONDS)
    table = output.table("", "", header=False)
    table.add_row("descend", f"{descend.__version__}, {len(OPERATORS)} operators, {len(PRODUCTS)} products")
    engine = _native.info()
    table.add_row("instruction set", f"{engine['isa']} (compiled in and runnable here: {engine['isas']})")
    table.add_row("product", f"{product} (of two-phase calls)")
    table.add_row("threads", str(threads))
    table.add_row(
        "memory limit", f"{limits[_BYTES[1]] / 1e9:.1f} GB/s (two reads and a write, {output.size(_BYTES[1])})"
    )
    table.add_row("cache limit", f"{limits[_BYTES[0]] / 1e9:.1f} GB/s (the same, {output.size(_BYTES[0])})")
    table.add_row("Python", f"{platform.python_version()}, NumPy {np.__version__}, ml_dtypes {ml_dtypes.__version__}")
    table.add_row("system", f"{platform.system()} {platform.machine()}")
    output.show(output.console(), table)


def memory_limit(size: int, threads: int, seconds: float) -> float:
    """Bytes a second of two reads and one write of `size` bytes in all: the better of one thread and `threads`."""
    return max(_native.triad(size, count, seconds / 2) for count in {1, threads})
