"""A short stay on a machine with a GPU and without a network: python tools/gpu_session.py OUT [--wheels FOLDER].

Descend's wheel and those of other libraries are brought along (`./dev wheel here`; `pip download --no-deps ...`).
First it checks every operator (benchmarks/gpu/check.py), then it measures them (benchmarks/gpu), a few minutes each.
OUT/checks.json and OUT/figures.json have the answers from the first one on: nothing is lost where the stay ends early.
What was printed is in OUT/log. It needs PyTorch, Triton, NumPy, ml_dtypes, rich and typer there.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import IO

ROOT = Path(__file__).resolve().parent.parent


def run(log: IO[str], env: dict[str, str], limit: float, *command: object) -> int:
    """The command's status; -1 where it takes longer than so many seconds. What it prints goes to the log."""
    begin = time.monotonic()
    try:
        status = subprocess.run(
            list(map(str, command)), cwd=ROOT, env=env, stdout=log, stderr=log, timeout=limit, check=False
        ).returncode
    except subprocess.TimeoutExpired:
        status = -1
    print(f"{' '.join(map(str, command[1:4]))} ...: status {status} after {time.monotonic() - begin:.0f} s", flush=True)
    return status


def main() -> int:
    """0 if all checks passed and all was measured."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("out", type=Path, help="folder for the answers")
    parser.add_argument("--wheels", type=Path, help="folder of wheels to install, Descend's among them")
    parser.add_argument("--checks", type=float, default=220, help="seconds for the checks")
    parser.add_argument("--figures", type=float, default=220, help="seconds for the figures")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    site = Path(tempfile.mkdtemp(prefix="descend-site-"))
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(site), str(ROOT)]), "PYTHONUNBUFFERED": "1"}
    statuses = []
    with (given.out / "log").open("w") as log:
        if given.wheels:
            wheels = sorted(given.wheels.glob("*.whl"))
            pip = (
                sys.executable,
                "-m",
                "pip",
                "install",
                "-q",
                "--no-index",
                "--no-deps",
                "--no-compile",
                "--target",
                site,
            )
            statuses.append(run(log, env, 120, *pip, *wheels))
        for module, name, seconds in (
            ("benchmarks.gpu.check", "checks.json", given.checks),
            ("benchmarks.gpu", "figures.json", given.figures),
        ):
            limits = ("--json", given.out.resolve() / name, "--seconds", seconds)
            statuses.append(run(log, env, seconds + 90, sys.executable, "-m", module, *limits))
    return int(any(statuses))


if __name__ == "__main__":
    sys.exit(main())
