"""The SDK for C and C++ programs: a folder laid out and named as CANN's.

One real library, ``libdescend.so``, and thin ones under CANN's names. A wheel cannot hold symbolic links, and does not
know where it will lie: the links between folders are made, and the folder written into ``set_env.sh``, on first use.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
import shlex
import shutil
import tempfile
from pathlib import Path

from descend import _native

LIBRARY = "libdescend.so"
# From each link to where it leads: some build files look below the processor's folder, where CANN's own files lie.
LINKS = {
    f"{platform.machine()}-linux/{name}": f"../{folder}"
    for name, folder in (("include", "include"), ("lib64", "lib64"), ("devlib", "lib64"))
}


def installed() -> Path:
    """The folder as it was installed, which is enough to load libraries; FileNotFoundError if it is not there."""
    folder = Path(str(_native.__file__)).resolve().parent / "sdk"
    if not (folder / "lib64" / LIBRARY).is_file():
        raise FileNotFoundError(f"{folder} has no lib64/{LIBRARY}; the package was built without the C library.")
    return folder


def path() -> Path:
    """The SDK's folder: ``include/``, ``lib64/`` and ``set_env.sh``, to be used as ASCEND_CUSTOM_PATH.

    CMake's ``find_package(descend)`` and pkg-config work from it, too.

    It lies in the installed package, or in the user's cache folder (XDG_CACHE_HOME, else ``~/.cache``) where the
    package is read-only. Raises FileNotFoundError if the package was built without the library, OSError if neither
    place can be written.
    """
    folder = installed()
    if _is_complete(folder):
        return folder
    try:
        _make_links(folder)
        _write_environment(folder, folder)
    except OSError:
        return _in_cache(folder)
    return folder


def _is_complete(folder: Path) -> bool:
    environment = folder / "set_env.sh"
    return all((folder / link).exists() for link in LINKS) and (
        environment.is_file() and environment.read_text() == _environment(environment, folder)
    )


def _environment(template: Path, folder: Path) -> str:
    """The script of `template`, with the folder written in for shells that cannot tell where it lies."""
    line = f"descend_home={shlex.quote(str(folder))}"
    return re.sub(r"^descend_home='.*'$|^descend_home=/.*$", lambda _: line, template.read_text(), count=1, flags=re.M)


def _write_environment(installed: Path, folder: Path) -> None:
    temporary = folder / f".set_env.sh.{os.getpid()}"
    temporary.write_text(_environment(installed / "set_env.sh", folder))
    temporary.replace(folder / "set_env.sh")


def _make_links(folder: Path) -> None:
    for name, target in LINKS.items():
        link = folder / name
        link.parent.mkdir(exist_ok=True)
        # Made apart and renamed, so that two processes at once do no harm.
        temporary = link.with_name(f".{link.name}.{os.getpid()}")
        temporary.symlink_to(target)
        temporary.replace(link)


def _in_cache(source: Path) -> Path:
    # What lies there points to this installation: another one of the same files has a folder of its own.
    installation = f"{source} {(source / 'lib64' / LIBRARY).stat().st_mtime_ns}"
    name = f"{_native.info()['version']}-{hashlib.sha256(os.fsencode(installation)).hexdigest()[:16]}"
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "descend" / name
    if _is_complete(folder) and (folder / "lib64" / LIBRARY).exists():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    building = Path(tempfile.mkdtemp(dir=folder.parent))
    made_here = {"set_env.sh", *(link.partition("/")[0] for link in LINKS)}
    for part in source.iterdir():
        if part.name not in made_here:
            (building / part.name).symlink_to(part)
    _make_links(building)
    (building / "set_env.sh").write_text(_environment(source / "set_env.sh", folder))
    try:
        building.rename(folder)
    except OSError:  # another process was first, or an old folder is in the way
        if not _is_complete(folder):
            raise
        shutil.rmtree(building)
    return folder
