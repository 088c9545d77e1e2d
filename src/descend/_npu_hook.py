"""An import hook: when a program imports torch_npu and there is no CANN, torch_npu gets Descend's libraries.

Python reads ``descend_npu.pth`` when it starts. That installs a finder for one name, ``torch_npu``, which calls
`find_spec` here. Nothing else is imported before a program imports torch_npu.
"""

from __future__ import annotations

import importlib
import os
import re
import sys
from importlib.machinery import ModuleSpec
from importlib.metadata import PackageNotFoundError, distribution, version
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

from descend import _import_hook

PACKAGE = "torch_npu"
CPU_INDEX = "https://download.pytorch.org/whl/cpu"  # where pip finds PyTorch for CPUs; PyPI's is for CUDA
MOST_DEVICES = 64  # of the engine
_executed = False  # whether torch_npu's own code has run in this process


def arm() -> None:
    """Installs the finder if Python has not read the file: it does not, if Descend is in a folder on PYTHONPATH."""
    if not any(map(_is_ours, sys.meta_path)):
        finder: Any = SimpleNamespace(is_descend=True, find_spec=find_spec)
        sys.meta_path.insert(0, finder)


def _is_ours(finder: Any) -> bool:
    return getattr(finder, "is_descend", False) is True


def loaded() -> bool:
    """Whether torch_npu has been loaded on Descend's libraries in this process."""
    return _executed


def find_spec(name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
    """The spec of torch_npu, with a loader that loads Descend's libraries before torch_npu's code runs."""
    if name != PACKAGE:
        return None
    return _import_hook.find_spec(name, path, target, _is_ours, _load)


def _load(execute: _import_hook.Execute, module: ModuleType) -> None:
    from descend import _cann, _npu_report

    global _executed
    if _executed:
        raise ImportError("torch_npu is in this process already, and PyTorch takes its device once: start anew.")
    if _cann.other():
        execute(module)
        return
    check_versions()
    _count_devices()
    _cann.load()
    # Without its queue torch_npu raises an error in the call that failed. With it, it drops what is called later.
    os.environ.setdefault("TASK_QUEUE_ENABLE", "0")
    _npu_report.announce()
    execute(module)
    _executed = True
    importlib.import_module("descend.npu").after_load()


def _count_devices() -> None:
    """If no number is set: a device for each process that torchrun starts here, and all that are to be visible."""
    processes = os.environ.get("LOCAL_WORLD_SIZE", "")
    visible = os.environ.get("ASCEND_RT_VISIBLE_DEVICES", "").split(",")
    count = max(int(processes) if processes.isdecimal() else 1, *(int(n) + 1 for n in visible if n.isdecimal()), 1)
    if 1 < count <= MOST_DEVICES:
        os.environ.setdefault("DESCEND_DEVICES", str(count))


def check_versions() -> None:
    """Raises ImportError if torch and torch_npu are not of one release, or torch is for CUDA."""
    found = {}
    for package in ("torch", PACKAGE):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            return  # not installed as a package, so there is no version to compare
    torch, npu = (re.match(r"\d+(\.\d+)*", found[package]) for package in ("torch", PACKAGE))
    if torch and npu and torch[0] != npu[0]:
        raise ImportError(
            f"torch_npu {found[PACKAGE]} is made for torch {npu[0]}, but torch {found['torch']} is installed: "
            f"pip install torch=={npu[0]}"
        )
    # Both register the same settings of an allocator, which PyTorch refuses: so with 2.12.0, 2.13.0 and 2.14.0.
    if torch and _for_cuda() and tuple(map(int, torch[0].split("."))) >= (2, 12):
        raise ImportError(
            f"torch_npu ends the process beside PyTorch for CUDA, and torch {torch[0]} here is for CUDA: pip install "
            f"--force-reinstall --no-deps torch=={torch[0]} --index-url {CPU_INDEX}"
        )


def _for_cuda() -> bool:
    """Whether the installed PyTorch is for CUDA, read from its file without importing it."""
    file = Path(str(distribution("torch").locate_file("torch/version.py")))
    return file.exists() and bool(re.search(r"^cuda\b.*= '", file.read_text(encoding="utf-8"), re.MULTILINE))
