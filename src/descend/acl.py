"""What the two-phase API needs beside the operators: streams, memory, products.

Named after CANN's acl; no initialisation is needed in Python.
"""

from __future__ import annotations

import atexit
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from descend import _native
from descend import errors as _errors  # noqa: F401  the engine's failures need it
from descend._native import Buffer, Stream, get_product, malloc, set_product

__all__ = ["Buffer", "Stream", "get_product", "malloc", "product", "set_product", "synchronize"]

# Work in flight ends before the arrays that it uses go.
atexit.register(_native.wait_for_all_streams)


class _Blocks(threading.local):
    """The thread's open blocks of `product`, the latest last."""

    def __init__(self) -> None:
        self.open: list[list[str]] = []
        self.outside = 0  # for restore_product, once all blocks have ended


_blocks = _Blocks()


@contextmanager
def product(name: str) -> Iterator[None]:
    """Checks this thread's two-phase calls against the product `name` inside the ``with`` block.

    Of several open blocks the latest counts. So a block should not contain an ``await``: another task of the thread
    would be checked against its product, too.

    Raises AclnnError (a ValueError) for a name that is none; `descend.contract.PRODUCTS` has them all.
    """
    blocks = _blocks.open
    previous = _native.override_product(name)
    if not blocks:
        _blocks.outside = previous
    block = [name]
    blocks.append(block)
    try:
        yield
    finally:  # blocks of tasks and generators may end in any order
        blocks[:] = [other for other in blocks if other is not block]
        if blocks:
            _native.override_product(blocks[-1][0])
        else:
            _native.restore_product(_blocks.outside)


def synchronize() -> None:
    """Waits for the work put on the default stream, the one that None stands for; raises what failed in it, once."""
    _native.synchronize_default_stream()
