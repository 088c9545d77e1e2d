"""The SDK for C and C++ programs: a folder laid out and named as CANN's.

A wheel cannot hold symbolic links, so it carries one real library, ``libdescend.so``; the folder in which CANN's names
stand for it is made on first use.
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
CANN_LIBRARIES = (
    "libascendcl.so",
    "libacl_rt.so",
    "libacl_op_compiler.so",
    "libnnopbase.so",
    "libopapi.so",
    "libopapi_nn.so",
    "libopapi_math.so",
    "libopapi_transformer.so",
)
# From each link to where it leads. Some build files look below the processor's folder, where CANN's own files lie.
LINKS = {
    **{f"lib64/{name}": LIBRARY for name in CANN_LIBRARIES},
    **{
        f"{platform.machine()}-linux/{name}": f"../{folder}"
        for name, folder in (("include", "include"), ("lib64", "lib64"), ("devlib", "lib64"))
    },
}


def path() -> Path:
    """The SDK's folder: ``include/``, ``lib64/`` and ``set_env.sh``, to be used as ASCEND_CUSTOM_PATH.

    CMake's ``find_package(descend)`` and pkg-config work from it, too.

    It lies in the installed package, or in the user's cache folder (XDG_CACHE_HOME, else ``~/.cache``) where the
    package is read-only. Raises FileNotFoundError if the package was built without the library, OSError if neither
    place can be written.
    """
    installed = Path(str(_native.__file__)).resolve().parent / "sdk"
    if not (installed / "lib64" / LIBRARY).is_file():
        raise FileNotFoundError(f"{installed} has no lib64/{LIBRARY}; the package was built without the C library.")
    if _is_complete(installed):
        return installed
    try:
        _make_links(installed)
        _write_environment(installed, installed)
    except OSError:
        return _in_cache(installed)
    return installed


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


def _in_cache(installed: Path) -> Path:
    # What lies there points to this installation: another one of the same files has a folder of its own.
    installation = f"{installed} {(installed / 'lib64' / LIBRARY).stat().st_mtime_ns}"
    name = f"{_native.info()['version']}-{hashlib.sha256(os.fsencode(installation)).hexdigest()[:16]}"
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "descend" / name
    if _is_complete(folder) and (folder / "lib64" / LIBRARY).exists():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    building = Path(tempfile.mkdtemp(dir=folder.parent))
    (building / "lib64").mkdir()
    (building / "lib64" / LIBRARY).symlink_to(installed / "lib64" / LIBRARY)
    _make_links(building)
    for part in ("bin", "include", "share", "lib64/pkgconfig"):
        (building / part).symlink_to(installed / part)
    (building / "set_env.sh").write_text(_environment(installed / "set_env.sh", folder))
    try:
        building.rename(folder)
    except OSError:  # another process was first, or an old folder is in the way
        if not _is_complete(folder):
            raise
        shutil.rmtree(building)
    return folder
