"""What the engine's failures become in Python."""

from __future__ import annotations

from typing import Any

from descend import _native


class AclnnError(Exception):
    """A call that the contract, the runtime or the machine refused.

    Every instance is of one of the subclasses below where one fits, so that ``except ValueError`` works too.
    """

    status: int
    """The status code, e.g. 161002."""
    name: str
    """Its name, e.g. ``ACLNN_ERR_PARAM_INVALID``."""

    def __init__(self, status: int, name: str, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status
        self.name = name

    def __reduce__(self) -> tuple[type[AclnnError], tuple[int, str, str], dict[str, Any]]:
        return type(self), (self.status, self.name, str(self)), self.__dict__  # which has notes, too


class AclnnValueError(AclnnError, ValueError):
    """An argument's value is outside what the call supports."""


class AclnnMemoryError(AclnnError, MemoryError):
    """There was no memory."""


class AclnnTimeoutError(AclnnError, TimeoutError):
    """A wait ran out of time."""


_CLASSES: dict[int, type[AclnnError]] = {
    100000: AclnnValueError,
    161001: AclnnValueError,
    161002: AclnnValueError,
    561002: AclnnValueError,
    561003: AclnnValueError,
    200000: AclnnMemoryError,
    507046: AclnnTimeoutError,
}


def from_status(status: int, name: str, sentence: str, no_memory: bool = False) -> AclnnError:
    """The exception for a status other than 0; an AclnnMemoryError also where an operator's status says less."""
    kind = AclnnMemoryError if no_memory else _CLASSES.get(status, AclnnError)
    return kind(status, name, sentence)


_native.set_exception_factory(from_status)
