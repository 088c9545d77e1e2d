"""The kept inputs of the Python side's fuzzers (./dev fuzz), and the good inputs that these start from."""

from __future__ import annotations

import importlib
import signal
import warnings
from pathlib import Path
from types import FrameType

import pytest

pytest.importorskip("typer")
pytest.importorskip("rich")
pytest.importorskip("torch")

CORPUS = Path(__file__).parent / "fuzz" / "corpus"


class TooLong(BaseException):
    """Not an Exception, which the command line would turn into a sentence."""


def too_long(_: int, __: FrameType | None) -> None:
    raise TooLong


@pytest.fixture
def no_hang():
    """Twenty seconds for an input, which takes milliseconds."""
    before = signal.signal(signal.SIGALRM, too_long)
    yield lambda: signal.alarm(20)
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.long
@pytest.mark.parametrize("name", ["readers", "arguments", "arrays"])
def test_every_kept_input_is_answered(name, tmp_path, no_hang):
    target = importlib.import_module(f"fuzz.{name}")
    inputs = [(f"seed {n}", seed) for n, seed in enumerate(target.seeds(tmp_path))]
    kept = [(path.name, path.read_bytes()) for path in sorted((CORPUS / name).iterdir())]
    assert kept
    for label, data in inputs + kept:
        no_hang()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error")  # the command line would print them
                target.check(data, tmp_path)
        except BaseException as error:
            raise AssertionError(
                f"{name}: the input {label} is not answered: {type(error).__name__}: {error}"
            ) from error


def test_what_is_checked():
    """An answer that is no sentence of ours is found."""
    commands = importlib.import_module("fuzz.commands")
    commands.check_sentence("x.npy is not a readable .npy file (EOF: reading).")
    for text in ("ValueError: no.", "no", "one\ntwo."):
        with pytest.raises(AssertionError):
            commands.check_sentence(text)
