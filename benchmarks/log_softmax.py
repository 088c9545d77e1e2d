"""LogSoftmax along the last dimension: what is measured, and how each peer does the same job."""

from __future__ import annotations

from benchmarks.softmax import Softmax


class LogSoftmax(Softmax):
    """As softmax."""

    name = "log_softmax"


OPERATOR = LogSoftmax()
