"""``descend sdk``: the folder with headers and libraries for C and C++ programs."""

from __future__ import annotations


def sdk() -> None:
    """Print the folder of the SDK, for programs in C and C++.

    It has include/ and lib64/ under CANN's names, and set_env.sh.
    """
    from descend import sdk

    print(sdk.path())
