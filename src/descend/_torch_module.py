"""The modules in C++ that are built for one release of PyTorch: ``descend._torch`` and ``descend._npu``."""

from __future__ import annotations

import importlib
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import torch


def load(name: str) -> tuple[ModuleType | None, str]:
    """The module, or None and why it cannot be used. One for another release is not loaded: it might crash."""
    spec = find_spec(name)
    if spec is None or spec.origin is None:
        return None, "descend was built without PyTorch"
    built_for = Path(spec.origin).with_name("torch_release").read_text()  # written by cmake/torch.cmake
    if built_for != torch.__version__:
        return None, f"descend was built for PyTorch {built_for}, but this is {torch.__version__}"
    try:
        return importlib.import_module(name), ""
    except ImportError as error:
        return None, str(error)
