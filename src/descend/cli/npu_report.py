"""``descend npu --report FILE PROGRAM``: runs the program, and prints its report at the end, in one screen."""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
import subprocess
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from rich.console import Console

from descend import _npu_report
from descend.cli import output
from descend.contract import PRODUCTS

_ROWS = 20  # operators that are shown
_REFUSALS = 8  # sentences that are shown
_ROOM = 45  # characters of an example
_NUMBERS = ("calls", "time", "share", "kinds")
_PASSED_ON = {signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2}
_FROM_TERMINAL = 0x80  # SI_KERNEL: the program, in the same group, has it already
_PR_SET_PDEATHSIG = 1

Row = dict[str, Any]


def run(command: Sequence[str], environment: Mapping[str, str], file: Path) -> NoReturn:
    """Runs a program, prints its report to stderr, and ends as the program has ended."""
    status = _wait_for(command, {**environment, _npu_report.VARIABLE: str(file)})
    try:
        document = _npu_report.read(file)
    except (OSError, ValueError) as error:
        print(f"descend: there is no report: {error}", file=sys.stderr)
    else:
        show(document, file)
    sys.stdout.flush()
    sys.stderr.flush()
    if status < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the program has left one
        with contextlib.suppress(OSError):  # of SIGKILL
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    os._exit(status if status >= 0 else 128 - status)  # no words of the command line's own


def _wait_for(command: Sequence[str], environment: Mapping[str, str]) -> int:
    """The program's status, as `subprocess` has it. Signals that are sent to this process go on to the program."""
    libc = ctypes.CDLL(None)
    watched = {*_PASSED_ON, signal.SIGCHLD}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, watched)

    def begin() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # not even SIGKILL ends one of the two alone
        signal.pthread_sigmask(signal.SIG_SETMASK, before)

    with subprocess.Popen(command, env=environment, preexec_fn=begin) as program:
        while program.poll() is None:
            info = signal.sigtimedwait(watched, 1)
            if info is not None and info.si_signo != signal.SIGCHLD and info.si_code != _FROM_TERMINAL:
                program.send_signal(info.si_signo)
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return program.returncode


# --- one screen ------------------------------------------------------------------------------------------------------


def show(document: _npu_report.Document, file: Path) -> None:
    """Prints a report."""
    console = Console(stderr=True, width=output.width(sys.stderr), markup=False, highlight=False)
    processes = document["processes"]
    if not processes:
        console.print(
            f"descend: no process has left a report in {file}. One that does not use device npu leaves none, and one "
            "that os._exit or a signal ends cannot.",
            soft_wrap=True,
        )
        return
    console.print(output.heading(_title(processes)))
    rows = sorted(_merged(processes), key=lambda row: -row["seconds"])
    _show_operators(console, rows)
    _show_refusals(console, rows)
    here = Path(os.path.realpath(os.curdir))
    name = file.relative_to(here) if file.is_relative_to(here) else file
    console.print(f"All of it: {name}", soft_wrap=True)


def _title(processes: Sequence[Row]) -> str:
    ranks = sorted(p["rank"] for p in processes if p["rank"] is not None)
    of_ranks = f" (ranks {', '.join(map(str, ranks))})" if ranks else ""
    several = "" if len(processes) == 1 else f" by {len(processes)} processes{of_ranks}"
    return f"What was computed on device npu{several}, and where"


def _merged(processes: Sequence[Row]) -> list[Row]:
    """The operators of all processes."""
    found: dict[tuple[str, str], Row] = {}
    for process in processes:
        for row in process["operators"]:
            key = row["operator"], row["place"]
            total = found.setdefault(key, {"operator": key[0], "place": key[1], "kinds": []})
            for name in ("calls", "errors", "seconds"):
                total[name] = total.get(name, 0) + row[name]
            total["kinds"] += row["kinds"]
    return list(found.values())


def _show_operators(console: Console, rows: Sequence[Row]) -> None:
    whole = sum(row["seconds"] for row in rows) or 1.0
    table = output.table("operator", "where", "calls", "time", "share", "kinds", "most time with", right=_NUMBERS)

    def add(name: str, place: str, some: Sequence[Row], example: str = "") -> None:
        calls, seconds = (sum(row[key] for row in some) for key in ("calls", "seconds"))
        kinds = {repr(kind["arguments"]) for row in some for kind in row["kinds"]} if len(some) == 1 else []
        more = "+" if any(kind["arguments"] is None for row in some for kind in row["kinds"]) else ""
        number = f"{len(kinds)}{more}" if kinds else ""
        table.add_row(name, place, str(calls), output.seconds(seconds), f"{seconds / whole:.1%}", number, example)

    for row in rows[:_ROWS]:
        add(row["operator"], row["place"], [row], _example(row))
    rest = rows[_ROWS:]
    if rest:
        add(f"{len(rest)} more", "", rest)
    table.add_section()
    for place in _npu_report.PLACES:
        of_place = [row for row in rows if row["place"] == place]
        if of_place:
            add("total", place, of_place, _npu_report.PLACES[place])
    output.show(console, table)


def _example(row: Row) -> str:
    """The tensors with which an operator took the most time, as far as there is room."""
    kind = row["kinds"][0]
    if kind["arguments"] is None:
        return ""
    tensors = [value for value in kind["arguments"].values() if "[" in value and not value.startswith("[")]
    text = " ".join(value.replace(", ", ",") for value in tensors[:2])
    return text if len(text) <= _ROOM else text[: _ROOM - 3] + "..."


def _show_refusals(console: Console, rows: Sequence[Row]) -> None:
    """A line for each reason for which products would refuse calls."""
    products: dict[str, set[str]] = defaultdict(set)
    calls: dict[str, int] = defaultdict(int)
    for kind in (kind for row in rows for kind in row["kinds"]):
        reasons = {p: _reason(p, refusal["sentence"]) for p, refusal in kind.get("refused_on", {}).items()}
        for product, reason in reasons.items():
            products[reason].add(product)
        for reason in set(reasons.values()):
            calls[reason] += kind["calls"]
    console.print()
    if not products:
        if any(row["place"] == "aclnn" for row in rows):
            console.print("Every product accepts every one of the calls of aclnn.")
        return
    table = output.table("refused on", "calls", "why", right=("calls",))
    order = sorted(products, key=lambda reason: -calls[reason])
    for reason in order[:_REFUSALS]:
        on = sorted(products[reason], key=list(PRODUCTS).index)
        table.add_row("\n".join(on), str(calls[reason]), reason)
    output.show(console, table)
    if len(order) > _REFUSALS:
        console.print(f"{len(order) - _REFUSALS} more reasons are in the report.")


def _reason(product: str, sentence: str) -> str:
    """The sentence, which may name the product, as it is for every product with that reason."""
    return sentence.replace(f"on {product}", "there")
