"""The real torch_npu on this machine, with Descend in CANN's place: ``import descend.npu`` before torch.

If Descend is installed, ``import torch`` finds it without this. Importing this first makes sure that no other CANN is
used, and also works if Descend is in a folder on PYTHONPATH. Raises ImportError, with the reason, if torch_npu cannot
run on Descend.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import os
import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path
from typing import Any

from descend import _cann, _npu_hook, _npu_report

__all__ = ["after_load"]


def after_load() -> None:
    """Called once in a process, after torch_npu was loaded on Descend's libraries."""
    kernels = importlib.import_module("descend.npu.kernels")
    kernels.install()
    importlib.import_module("descend.npu.composer").install()
    importlib.import_module("descend.npu.hifloat8").install()
    importlib.import_module("descend.npu.torchair").install()
    importlib.import_module("descend.npu.compiling").install()
    importlib.import_module("descend.npu.graphs").install()
    importlib.import_module("descend.npu.interpreted_triton").install()
    sys.meta_path.append(_Acl())
    _npu_report.begin(kernels)
    refuse = _cann.library().descendRefuseInChild
    os.register_at_fork(before=_empty_queue, after_in_child=lambda: _give_up() if refuse() else None)
    atexit.register(_wait_for_graphs, kernels.wait_for_graphs)


class _Acl:
    """Finds CANN's Python module ``acl`` where no other finder does."""

    def find_spec(self, name: str, _path: Any = None, _target: Any = None) -> ModuleSpec | None:
        return spec_from_file_location(name, Path(__file__).with_name("pyacl.py")) if name == "acl" else None


_given_up = False


def _wait_for_graphs(wait: Callable[[int], None]) -> None:
    """Before Python ends: on the devices that were used. Later PyTorch's threads could free no Python object."""
    torch_npu: Any = sys.modules.get(_npu_hook.PACKAGE)
    if _given_up or not torch_npu or not torch_npu.npu.is_initialized():
        return
    for device in range(torch_npu.npu.device_count()):
        if torch_npu.npu.memory_reserved(device):
            with contextlib.suppress(Exception):  # the device has failed, and the program was told
                wait(device)


def _empty_queue() -> None:
    """Before a fork: the child cannot wait for what is in torch_npu's queue, whose thread is not there."""
    torch_npu: Any = sys.modules[_npu_hook.PACKAGE]
    if not _given_up and torch_npu.npu.is_initialized():
        with contextlib.suppress(Exception):  # it failed before: whoever uses the device next is told
            torch_npu.npu.synchronize()


def _give_up() -> None:
    """In a forked child whose parent used the device: calls are made at once, and so end in their error.

    The end of the process does not shut the device down: the threads that it would wait for are not there.
    """
    global _given_up
    _given_up = True
    torch_npu: Any = sys.modules[_npu_hook.PACKAGE]
    with contextlib.suppress(Exception):  # another release may not have them
        atexit.unregister(torch_npu._init.core.runtime_lifecycle._npu_shutdown)
    with contextlib.suppress(Exception):
        torch_npu._C._npu_set_task_queue_enable(0)


def _begin() -> None:
    _cann.refuse_other()
    if _npu_hook.PACKAGE in sys.modules and not _npu_hook.loaded():
        raise ImportError("torch_npu was imported before descend.npu, without it: import descend.npu first.")
    _npu_hook.arm()


_begin()
