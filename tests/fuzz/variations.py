"""Random variations of a target's inputs: python -m fuzz.variations TARGET COUNT [SEED].

They follow no branches, but nothing counts the branches either: they are several times as many in the same time. The
input that is being run stands in build/fuzz-found/TARGET-variation-PID, and stays there if it is answered wrongly.
"""

from __future__ import annotations

import importlib
import os
import random
import resource
import signal
import sys
import tempfile
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import NoReturn

from fuzz import commands

SECONDS, KILOBYTES = 30, 3_000_000  # the most for one input, as under libFuzzer
LONGEST = 4096


def variation(inputs: Sequence[bytes], chance: random.Random) -> bytes:
    """An input with other bytes in places, some of another input in its midst, or a part left out."""
    made = bytearray(chance.choice(inputs))
    for _ in range(chance.randint(1, 6)):
        place, way = chance.randint(0, len(made)), chance.randrange(4)
        if way == 0:
            other = chance.choice(inputs)
            first = chance.randint(0, len(other))
            made[place:place] = other[first : first + chance.randrange(64)]
        elif way == 1:
            del made[place : place + chance.randrange(16)]
        else:
            made[place : place + 1] = chance.randbytes(1)
    return bytes(made[:LONGEST])


def _too_long(_: int, __: FrameType | None) -> NoReturn:
    raise SystemExit(f"fuzz: an input took more than {SECONDS} s")


def main() -> None:
    """Runs that many variations; ends at the first that is answered wrongly."""
    name, count, *seed = sys.argv[1:]
    warnings.simplefilter("ignore")
    commands.drawn_one_in = 16
    target = importlib.import_module(f"fuzz.{name}")
    root = Path(__file__).parents[2]
    chance = random.Random(int(seed[0]) if seed else None)
    signal.signal(signal.SIGALRM, _too_long)
    found = root / "build" / "fuzz-found" / f"{name}-variation-{os.getpid()}"
    found.parent.mkdir(parents=True, exist_ok=True)
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as place, found.open("wb", buffering=0) as current:
        folder = Path(place)
        inputs = target.seeds(folder)
        for kept in (root / "tests" / "fuzz" / "corpus" / name, root / "build" / f"fuzz-corpus-{name}"):
            inputs += [path.read_bytes() for path in sorted(kept.glob("*"))]
        for _ in range(int(count)):
            data = variation(inputs, chance)
            current.seek(0)
            current.write(data)
            current.truncate()
            signal.alarm(SECONDS)
            target.check(data, folder)
            if resource.getrusage(resource.RUSAGE_SELF).ru_maxrss > KILOBYTES:
                raise SystemExit(f"fuzz: an input took more than {KILOBYTES} kB")
        signal.alarm(0)
    found.unlink()
    print(f"{name}: {count} variations of {len(inputs)} inputs in {time.monotonic() - begin:.0f} s")


if __name__ == "__main__":
    main()
