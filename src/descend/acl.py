"""What the two-phase API needs beside the operators: streams, memory, products.

Named after CANN's acl; no initialisation is needed in Python.
"""

from __future__ import annotations

import atexit
from collections.abc import Iterator
from contextlib import contextmanager

from descend import _native
from descend import errors as _errors  # noqa: F401  the engine's failures need it
from descend._native import Buffer, Stream, get_product, malloc, set_product

__all__ = ["Buffer", "Stream", "get_product", "malloc", "product", "set_product", "synchronize"]

# Work in flight ends before the arrays that it uses go.
atexit.register(_native.wait_for_all_streams)


@contextmanager
def product(name: str) -> Iterator[None]:
    """Checks this thread's two-phase calls against the product `name` inside the ``with`` block.

    Raises AclnnError (a ValueError) for a name that is none; `descend.contract.PRODUCTS` has them all.
    """
    previous = _native.override_product(name)
    try:
        yield
    finally:
        _native.restore_product(previous)


def synchronize() -> None:
    """Waits for the work put on the default stream, the one that None stands for; raises what failed in it, once."""
    _native.synchronize_default_stream()
