"""Which libraries torch_npu gets as CANN's in this process: those of a CANN on this machine, or else Descend's SDK.

torch_npu's libraries need CANN's by their sonames. A library that is loaded already satisfies that, wherever its file
is. So Descend's libraries are loaded first, and neither LD_LIBRARY_PATH nor any file of torch_npu has to be changed.
"""

from __future__ import annotations

import ctypes
import functools
import os
import re
from pathlib import Path

from descend import sdk

_loaded: list[ctypes.CDLL] = []  # never unloaded


def environment(home: Path) -> dict[str, str]:
    """The environment variables by which programs find CANN, set to this folder."""
    return {"ASCEND_HOME_PATH": str(home), "ASCEND_TOOLKIT_HOME": str(home), "ASCEND_OPP_PATH": str(home / "opp")}


def other() -> str | None:
    """The folder of a CANN that is not Descend's; None if there is none.

    It is the folder that ASCEND_HOME_PATH names, or the one where the system's loader finds libascendcl.so.
    """
    home = os.environ.get("ASCEND_HOME_PATH")
    if home and not _is_sdk(home):
        return f"{home} (ASCEND_HOME_PATH)"
    library = _found_by_loader()
    if library is None or hasattr(library, "descendGetVersion"):
        return None
    maps = Path("/proc/self/maps")
    match = re.search(r"/\S*/libascendcl\.so\S*", maps.read_text()) if maps.exists() else None
    return match[0] if match else "libascendcl.so"


def stays_out(found: str) -> str:
    """The message if there is another CANN."""
    return (
        f"there is a CANN at {found}, and Descend does not take its place: unset ASCEND_HOME_PATH and LD_LIBRARY_PATH "
        "to run torch_npu on Descend."
    )


def refuse_other() -> None:
    """Raises ImportError if there is a CANN that is not Descend's."""
    if found := other():
        raise ImportError(stays_out(found))


def folder() -> Path:
    """The SDK to use: that of ASCEND_HOME_PATH if it is one (set_env.sh sets it), else this package's.

    Raises FileNotFoundError if the package was built without the library.
    """
    home = os.environ.get("ASCEND_HOME_PATH")
    return Path(home) if home and _is_sdk(home) else sdk.installed()


def load() -> None:
    """Loads Descend's libraries under CANN's names, and sets the variables by which programs find them.

    Their functions are visible to the whole process: a library of LD_PRELOAD that wraps one finds the next one.
    Raises FileNotFoundError if the package was built without the library.
    """
    home = folder()
    if not _loaded:
        by_name = _found_by_loader() is not None
        libraries = sorted((home / "lib64").glob("lib*.so"))
        _loaded.extend(ctypes.CDLL(path.name if by_name else str(path), ctypes.RTLD_GLOBAL) for path in libraries)
    for name, value in environment(home).items():
        os.environ[name] = os.environ.get(name) or value  # torch_npu takes an empty one for a folder


@functools.cache
def library() -> ctypes.CDLL:
    """Descend's own library, which `load` has loaded."""
    return ctypes.CDLL(sdk.LIBRARY)


def check_settings() -> None:
    """Raises ValueError with a sentence where a variable such as DESCEND_PRODUCT has a value that it cannot have.

    The library looks at each when it is first needed; here it is asked for all of them at once.
    """
    library = ctypes.CDLL(str(folder() / "lib64" / sdk.LIBRARY))
    library.aclGetRecentErrMsg.restype = ctypes.c_char_p
    count, size, executor = ctypes.c_uint32(), ctypes.c_uint64(), ctypes.c_void_p()
    rms_norm = library.aclnnRmsNormGetWorkspaceSize
    rms_norm.argtypes = [*[ctypes.c_void_p] * 2, ctypes.c_double, *[ctypes.c_void_p] * 4]
    nothing = (None, None, 0, None, None)
    for function, given in (
        (library.aclrtGetDeviceCount, (ctypes.byref(count),)),
        (rms_norm, (*nothing, ctypes.byref(size), ctypes.byref(executor))),
    ):
        if function(*given) == 0:
            continue
        _, _, sentence = library.aclGetRecentErrMsg().decode(errors="replace").partition(": ")
        if sentence.startswith("DESCEND_"):  # else it is of what was given
            raise ValueError(sentence)


def _is_sdk(home: str) -> bool:
    return (Path(home) / "lib64" / sdk.LIBRARY).is_file()


def _found_by_loader() -> ctypes.CDLL | None:
    try:
        return ctypes.CDLL("libascendcl.so")
    except OSError:
        return None
