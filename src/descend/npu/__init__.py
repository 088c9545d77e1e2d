"""The real torch_npu on this machine, with Descend in CANN's place: ``import descend.npu``, and then torch as ever.

Where Descend is installed, ``import torch`` finds it by itself; to import this first says that no other CANN is meant,
and works from a folder on PYTHONPATH, too. Raises ImportError where torch_npu cannot run on Descend, with the reason.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import sys

from descend import _cann, _npu_hook

__all__ = ["after_load"]


def after_load() -> None:
    """Called once in a process, when torch_npu has been loaded on Descend's libraries."""
    kernels = importlib.import_module("descend.npu.kernels")
    kernels.install()
    os.register_at_fork(after_in_child=ctypes.CDLL("libdescend.so").descendRefuseInChild)


def _begin() -> None:
    _cann.refuse_other()
    if _npu_hook.PACKAGE in sys.modules and not _npu_hook.loaded():
        raise ImportError("torch_npu was imported before descend.npu, without it: import descend.npu first.")
    _npu_hook.arm()


_begin()
