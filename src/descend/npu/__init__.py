"""The real torch_npu on this machine, with Descend in CANN's place: ``import descend.npu`` before torch.

If Descend is installed, ``import torch`` finds it without this. Importing this first makes sure that no other CANN is
used, and also works if Descend is in a folder on PYTHONPATH. Raises ImportError, with the reason, if torch_npu cannot
run on Descend.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import sys

from descend import _cann, _npu_hook

__all__ = ["after_load"]


def after_load() -> None:
    """Called once in a process, after torch_npu was loaded on Descend's libraries."""
    kernels = importlib.import_module("descend.npu.kernels")
    kernels.install()
    os.register_at_fork(after_in_child=ctypes.CDLL("libdescend.so").descendRefuseInChild)


def _begin() -> None:
    _cann.refuse_other()
    if _npu_hook.PACKAGE in sys.modules and not _npu_hook.loaded():
        raise ImportError("torch_npu was imported before descend.npu, without it: import descend.npu first.")
    _npu_hook.arm()


_begin()
