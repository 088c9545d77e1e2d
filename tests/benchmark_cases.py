"""What the tests of the benchmark share: results that nobody measured, and measurements in haste."""

from __future__ import annotations

import pytest
from benchmarks import OPERATORS, frameworks, harness, limit, machine, session
from benchmarks.harness import Effort
from benchmarks.results import FORMS, Peer, Result, Timing

from descend import acl
from pages import is_gradient

HASTE = Effort(seconds=0.05, fewest=2, most=3, warm_up=0.002)
PYTORCH = frameworks.LIBRARIES[:1]
THREADS = len(machine.processors())


@pytest.fixture(autouse=True)
def own_product():
    """The benchmark is a program of its own and sets the product for the process."""
    before = acl.get_product()
    yield
    acl.set_product(before)


@pytest.fixture(autouse=True)
def hurried(monkeypatch):
    monkeypatch.setattr(harness, "PAUSE", 0.0)
    monkeypatch.setattr(harness.Neighbours, "share", lambda self: 0.0)
    monkeypatch.setattr(limit, "triad_seconds", lambda size, threads: size / 1e10)
    monkeypatch.setattr(limit, "handover_seconds", lambda: 50e-9)
    monkeypatch.setattr(session, "share_a_core", lambda threads: False)
    yield
    frameworks.hold(THREADS)


def timing(*seconds: float) -> Timing:
    return Timing(list(seconds), list(range(len(seconds))))


def made(seconds: float, triad: float = 1e-3, size: int = 1 << 30, lives: str = "memory", threads: int = 1) -> Result:
    peers = {"PyTorch": Peer(timing(3e-3, 3e-3), "by hand", {}, [{"mere": 1e-7, "mare": 1e-5, "rmse": 2e-7}])}
    errors = [{"mere": 1e-7, "mare": 1e-5, "rmse": 1e-7}]
    ours = {form: timing(seconds, seconds) for form in FORMS}
    empty, limit = timing(0.0, 0.0), timing(triad, triad)
    return Result("rms_norm_grad", [4, 64], "float32", threads, size, lives, limit, empty, ours, peers, errors)


FORWARDS = tuple(name for name in OPERATORS if not is_gradient(name))
CACHE = 32 << 20
