"""The functions of CANN that releases of torch_npu use, and those of them that Descend does not have.

    ./dev npu-symbols                  # the first and the last version of each release from 2.7.1 on
    ./dev npu-symbols 2.13.0 x.whl     # these versions or wheel files

A function that torch_npu's libraries are linked to must exist, or `import torch_npu` fails. If one is missing for any
release, the exit status is 1. A function that is looked up by name when first used may be missing: torch_npu then
raises an error or does without it.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
import zipfile
from collections import defaultdict
from pathlib import Path

from descend import _symbols, sdk

OLDEST = (2, 7, 1)
_LIBRARY = re.compile(r"torch_npu/(_C[^/]*|lib/[^/]*)\.so")


def releases() -> list[str]:
    """The first and the last version of each release in the package registry, oldest first."""
    command = [sys.executable, "-m", "pip", "index", "versions", "torch_npu", "--disable-pip-version-check"]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    listed = re.search(r"Available versions: (.*)", text)
    if listed is None:
        raise SystemExit(f"npu-symbols: the registry does not list versions of torch_npu: {text}")
    of_release: dict[tuple[int, ...], list[str]] = defaultdict(list)
    for version in reversed(listed[1].split(", ")):
        of_release[tuple(map(int, version.partition(".post")[0].split(".")))].append(version)
    ends = ((versions[0], versions[-1]) for release, versions in of_release.items() if release >= OLDEST)
    return [version for pair in ends for version in dict.fromkeys(pair)]


def download(version: str, folder: Path) -> Path:
    """The wheel of a version for CPython 3.11 and x86-64."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    command += ["--only-binary", ":all:", "--python-version", "3.11", "--dest", str(folder)]
    for platform in ("manylinux_2_28_x86_64", "manylinux2014_x86_64"):
        command += ["--platform", platform]
    subprocess.run([*command, f"torch_npu=={version}"], check=True)
    return next(folder.glob("*.whl"))


def requests(wheel: Path) -> _symbols.Requests:
    """The functions and libraries that the libraries in a wheel need."""
    with tempfile.TemporaryDirectory() as folder, zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder, [name for name in archive.namelist() if _LIBRARY.fullmatch(name)])
        return _symbols.requests(_symbols.libraries(Path(folder) / "torch_npu"))


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "releases", nargs="*", metavar="RELEASE", help="versions, or wheels; default: all from 2.7.1 on"
    )
    given = parser.parse_args().releases or releases()
    lib64 = sdk.path() / "lib64"
    served = _symbols.exported(lib64 / sdk.LIBRARY)
    lacking: dict[str, list[str]] = defaultdict(list)
    fails = False
    print("| torch_npu | bound at load | missing | looked up by name | missing |")
    print("| --- | ---: | --- | ---: | ---: |")
    for release in given:
        with tempfile.TemporaryDirectory() as folder:
            wheel = Path(release) if release.endswith(".whl") else download(release, Path(folder))
            version, asked = wheel.name.split("-")[1], requests(wheel)
        bound = sorted([*(asked.bound - served), *(name for name in asked.needed if not (lib64 / name).exists())])
        named = {name for name in asked.looked_up if not name.startswith("aclnn")}
        for name in named - served:
            lacking[name].append(version)
        fails |= bool(bound)
        counts = f"{len(asked.bound)} | {', '.join(bound) or 'none'} | {len(named)} | {len(named - served)}"
        print(f"| {version} | {counts} |", flush=True)
    print(f"\nLooked up by name and not here, with the number of the {len(given)} releases that do:")
    for name, versions in sorted(lacking.items()):
        print(f"- {name}: {len(versions)}")
    return int(fails)


if __name__ == "__main__":
    sys.exit(main())
