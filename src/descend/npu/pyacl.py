"""CANN's Python module ``acl``: those of its functions that programs of torch_npu call.

A result of two or more values ends with the status, as in CANN.
"""

from __future__ import annotations

import ctypes
from typing import NoReturn

from descend import _cann


def get_soc_name() -> str:
    """The name of the processor, such as Ascend910B1."""
    name = _cann.library().aclrtGetSocName
    name.restype = ctypes.c_char_p
    return str(name().decode())


class _Runtime:
    @staticmethod
    def get_mem_info(attr: int) -> tuple[int, int, int]:
        """Free and total bytes of the current device's memory, and the status. ``attr`` is 0 or 1 (HBM)."""
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        status = int(_cann.library().aclrtGetMemInfo(attr, ctypes.byref(free), ctypes.byref(total)))
        return free.value, total.value, status

    def __getattr__(self, name: str) -> NoReturn:
        _missing(f"rt.{name}")


rt = _Runtime()


def __getattr__(name: str) -> NoReturn:
    _missing(name)


def _missing(name: str) -> NoReturn:
    raise AttributeError(f"acl.{name} is not here: of CANN's module acl there are get_soc_name and rt.get_mem_info.")
