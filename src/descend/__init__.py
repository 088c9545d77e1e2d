"""Descend: operators of CANN's aclnn library, forward and backward, on any machine.

The functional API: arrays in (NumPy, PyTorch, JAX, anything with DLPack), arrays out. Each function and its
docstring come from the engine's own table of the operator; `descend.contract.OPERATORS` has the tables as data.
`descend.aclnn` is the two-phase API of the documents, `descend.acl` the runtime beneath it.
"""

from __future__ import annotations

import importlib as _importlib
import sys as _sys
from types import ModuleType as _ModuleType

from descend import _native
from descend import errors as _errors  # noqa: F401  first: the engine's failures need it
from descend._generate import functional as _functional
from descend._native import empty_cache, get_num_threads, set_num_threads
from descend.contract import OPERATORS as _OPERATORS

__version__: str = _native.info()["version"]

for _operator in _OPERATORS.values():
    globals()[_operator.name] = _functional(_operator)
del _operator

__all__ = ["__version__", "empty_cache", "get_num_threads", "set_num_threads", *_OPERATORS]


def __getattr__(name: str) -> _ModuleType:
    """Imports one of these modules at its first use, so that ``import descend`` is enough for ``descend.acl``."""
    if name in ("acl", "aclnn", "golden", "precision", "reference"):
        return _importlib.import_module(f"descend.{name}")
    raise AttributeError(f"module 'descend' has no attribute {name!r}", name=name, obj=_sys.modules[__name__])
