"""``descend sdk``: where C and C++ programs find headers and libraries."""

from __future__ import annotations


def sdk() -> None:
    """Print the folder with include/ and lib64/ under CANN's names, for programs in C and C++."""
    from descend import sdk

    print(sdk.path())
