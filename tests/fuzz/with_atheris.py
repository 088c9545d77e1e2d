"""A fuzzer of the Python side: python -m fuzz.with_atheris TARGET OPTION..., with libFuzzer's options and folders."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import io
import sys
import types
import warnings
from pathlib import Path

try:
    import atheris
except ImportError:
    sys.exit(
        "fuzz: this needs atheris, which has wheels for CPython 3.10 to 3.13 on x86-64 Linux: pip install atheris."
    )

# Whose branches a fuzzer follows, beside Descend's.
PARSERS = (
    "json.decoder",
    "json.scanner",
    "numpy.lib.format",
    "torch._weights_only_unpickler",
    "typer._click.parser",
    "zipfile",
)


def follow(module: types.ModuleType) -> None:
    """Instruments all functions and methods of a module."""
    for owner in (module, *filter(inspect.isclass, vars(module).values())):
        for value in list(vars(owner).values()):
            if inspect.isfunction(value) and value.__module__ == module.__name__:
                atheris.instrument_func(value)


def main() -> None:
    """Fuzzes until libFuzzer ends the process; with files in place of folders, makes one call with each."""
    name, *options = sys.argv[1:]
    warnings.simplefilter("ignore")
    # It names each module on the way.
    with contextlib.redirect_stderr(io.StringIO()), atheris.instrument_imports(include=["descend", "fuzz"]):
        target = importlib.import_module(f"fuzz.{name}")
        importlib.import_module("fuzz.commands").drawn_one_in = 16
    for parser in PARSERS:
        with contextlib.suppress(ImportError):
            follow(importlib.import_module(parser))
    place = Path(__file__).parents[2] / "build" / "fuzz-files" / name
    folder, corpus = place / "files", place / "seeds"
    folder.mkdir(parents=True, exist_ok=True)
    corpus.mkdir(exist_ok=True)
    for number, seed in enumerate(target.seeds(folder)):
        (corpus / str(number)).write_bytes(seed)
    seeds = [str(corpus)] if any(Path(option).is_dir() for option in options) else []
    atheris.Setup([sys.argv[0], *options, *seeds], lambda data: target.check(data, folder))
    atheris.Fuzz()


if __name__ == "__main__":
    main()
