"""What a call costs from C: ``python -m benchmarks.call_cost`` builds ``call_cost.cpp`` against the SDK and runs it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

SOURCE = Path(__file__).with_suffix(".cpp")
MOST = {"two-phase": 5.0, "repeatable": 2.0}
"""Microseconds that each way of calling may take."""


def measure() -> dict[str, tuple[float, float, float]]:
    """Median, 10th and 90th percentile in microseconds, by way of calling.

    Raises FileNotFoundError where there is no compiler or SDK, CalledProcessError where the program fails.
    """
    from descend import sdk

    compiler = os.environ.get("CXX") or shutil.which("c++") or shutil.which("g++")
    if compiler is None:
        raise FileNotFoundError("there is no C++ compiler; name one with CXX.")
    home = sdk.path()
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "call_cost"
        build = [compiler, "-O2", str(SOURCE), f"-I{home / 'include'}", f"-L{home / 'lib64'}", "-ldescend"]
        subprocess.run([*build, f"-Wl,-rpath,{home / 'lib64'}", "-o", str(program)], check=True)
        done = subprocess.run([program], check=True, capture_output=True, text=True)
    rows = (line.split() for line in done.stdout.splitlines())
    return {name: (float(median), float(low), float(high)) for name, median, low, high in rows}


def main() -> int:
    """Print the figures; 1 where one is above its target."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title="RmsNormGrad, 8 x 64 float32, from C, with a synchronise", title_justify="left")
    for column in ("call", "median", "10 %", "90 %", "asked"):
        table.add_column(column, justify="left" if column == "call" else "right")
    times = measure()
    for name, figures in times.items():
        table.add_row(name, *(f"{us:.2f} µs" for us in figures), f"{MOST[name]:.0f} µs")
    Console().print(table)
    return int(any(times[name][0] > most for name, most in MOST.items()))


if __name__ == "__main__":
    sys.exit(main())
