"""Why a shape falls short: what one call costs, in events that do not depend on the machine's mood.

The processor's own counters come from ``perf stat``. Virtual machines often have none; then ``valgrind
--tool=callgrind`` counts the instructions of the engine, on the newest instruction set that it knows (AVX2). Both run
this module in a process of its own, once with few calls and once with more: the difference is the calls'. Page faults
and time are measured here.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from statistics import median

import numpy as np

from benchmarks import frameworks, ours, session
from benchmarks.operator import Operator, Shape, load

EVENTS = ("instructions", "cycles", "cache-references", "cache-misses", "page-faults")
CALLS = 20
CALLS_UNDER_VALGRIND = 2


def profile(operator: Operator, shape: Shape, dtype: str, threads: int) -> dict[str, float | str]:
    """Figures of one call with ``out=``, by name. What cannot be counted here is left out, with the reason."""
    frameworks.hold(threads)
    problem = operator.make(shape, dtype, np.random.default_rng(0))
    call = ours.functional(operator, problem)
    seconds = []
    for _ in range(2 * CALLS):
        start = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - start)
    elements = next(iter(problem.outputs.values())).size
    figures: dict[str, float | str] = {
        "seconds": median(seconds),
        "elements of the result": float(elements),
        "ns an element": 1e9 * median(seconds) / max(1, elements),
        "bytes": float(problem.bytes),
        "page faults": session.page_faults(call, median(seconds)),
        "page faults, results allocated": session.page_faults(ours.allocating(operator, problem), median(seconds)),
    }
    counted = _perf(operator.name, shape, dtype, threads)
    if counted:
        return figures | counted
    figures["counters"] = "none: perf is not installed, or the machine has none"
    instructions = _callgrind(operator.name, shape, dtype)
    if instructions is None:
        return figures | {"instructions": "not counted: valgrind is not installed, or failed"}
    return figures | {"instructions (AVX2)": instructions, "instructions an element": instructions / max(1, elements)}


def _perf(name: str, shape: Shape, dtype: str, threads: int) -> dict[str, float | str]:
    if shutil.which("perf") is None:
        return {}
    runs = []
    for calls in (CALLS, 2 * CALLS):
        with tempfile.NamedTemporaryFile("r") as file:
            command = ["perf", "stat", "-x", ",", "-o", file.name, "-e", ",".join(EVENTS)]
            done = subprocess.run(
                [*command, *_child(name, shape, dtype, threads, calls)], capture_output=True, check=False
            )
            if done.returncode:
                return {}
            rows = [line.split(",") for line in file.read().splitlines() if line.count(",") > 3]
        runs.append({row[2].split(":")[0]: float(row[0]) for row in rows if row[0].replace(".", "", 1).isdigit()})
    if "instructions" not in runs[0]:
        return {}
    return {event: (runs[1][event] - count) / CALLS for event, count in runs[0].items()}


def _callgrind(name: str, shape: Shape, dtype: str) -> float | None:
    if shutil.which("valgrind") is None:
        return None
    totals = []
    for calls in (1, 1 + CALLS_UNDER_VALGRIND):
        with tempfile.TemporaryDirectory() as folder:
            command = ["valgrind", "--tool=callgrind", f"--callgrind-out-file={folder}/out"]
            done = subprocess.run(
                [*command, *_child(name, shape, dtype, 1, calls)],
                capture_output=True,
                text=True,
                check=False,
                env={**os.environ, "DESCEND_ISA": "AVX2"},
            )
        found = re.search(r"Collected *: *(\d+)", done.stderr)
        if done.returncode or found is None:
            return None
        totals.append(int(found[1]))
    return (totals[1] - totals[0]) / CALLS_UNDER_VALGRIND


def _child(name: str, shape: Shape, dtype: str, threads: int, calls: int) -> list[str]:
    words = [name, "x".join(map(str, shape)), dtype, str(threads), str(calls)]
    return [sys.executable, "-m", "benchmarks.profile", *words]


def run(name: str, shape: Shape, dtype: str, threads: int, calls: int) -> None:
    """The program under the counters: it makes data, always the same, and calls so many times."""
    import descend

    descend.set_num_threads(threads)
    operator = load(name)
    call = ours.functional(operator, operator.make(shape, dtype, np.random.default_rng(0)))
    for _ in range(calls):
        call()


if __name__ == "__main__":
    name, shape, dtype, threads, calls = sys.argv[1:]
    run(name, tuple(map(int, shape.split("x"))), dtype, int(threads), int(calls))
