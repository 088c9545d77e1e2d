"""Runs a checkout of a public suite of torch_npu, file by file, and tells what passed and why the rest did not.

    python tools/npu_suite.py CHECKOUT/test npu/test_*.py test_custom_ops/test_npu_rms_norm.py --json results.json

Every file is a process of its own, of this interpreter, and starts anew behind a test that crashed or took too long.
The tables go to stdout, by file and by cause. `--json` keeps every outcome, and a second call with the same file goes
on where the first stopped. No file of the suite is changed; ``--product`` and ``--devices`` as in ``descend npu``.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

Outcome = dict[str, Any]  # file, test, outcome, seconds, message, cause

# The first that is found in the message of a failure names its cause.
CAUSES = (
    ("graph capture", r"aclmdlRI|NPUGraph|graph capture|capture_begin|captur"),
    ("profiling", r"aclprof|Msprof|profiler"),
    ("collectives", r"\bHccl|hccl|process group|init_process_group|HCCL"),
    ("device binaries", r"aclrtBinary|rtKernelLaunch|aclrtLaunchKernel|rtDevBinaryRegister|triton|bisheng|ccec"),
    ("a private format", r"private format|FRACTAL|NC1HWC0|npu_format|format_cast|NZ"),
    ("an aclop type that is not here", r"aclop\w*.*\btype\b|aclopCompileAndExecute|op type"),
    ("an aclnn function that is not here", r"not in lib\w*opapi|aclnn\w+ or aclnn\w+GetWorkspaceSize"),
    ("a function of the runtime", r"\bacl(rt|sys|mdl)?[A-Z]\w+|\brt[A-Z]\w+|FEATURE_UNSUPPORTED|200006"),
    ("an operator that is not here", r"NotImplementedError|Could not run '|not implemented for|no kernel"),
    ("a file or package of the tests' own", r"ModuleNotFoundError|FileNotFoundError|ImportError|No such file"),
    ("more devices than there are", r"invalid device|Invalid device|device.*ordinal|ACL_ERROR_INVALID_DEVICE"),
    ("no memory", r"out of memory|MemoryError|BAD_ALLOC"),
    ("other values", r"not close|not equal|Mismatched|AssertionError"),
)
TIME, CRASH, LOADING = "time", "crash", "does not load"


def cause_of(message: str) -> str:
    """What made a test fail, by its message: of the error itself before all that was printed."""
    lines = [line for line in message.splitlines() if line.strip()]
    errors = [line for line in lines if re.match(r"E\s|\w*(Error|Exception)\b", line)] or lines
    for text in ("\n".join(errors), message):
        for cause, pattern in CAUSES:
            if re.search(pattern, text):
                return cause
    return errors[-1].strip()[:100] if errors else "says nothing"


# --- in the process of one file: a plugin of pytest ------------------------------------------------------------------

_LOG = os.environ.get("DESCEND_SUITE_LOG")


def _write(**entry: Any) -> None:
    if _LOG:
        with open(_LOG, "a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")


def pytest_collection_modifyitems(config: Any, items: list[Any]) -> None:
    """Leaves out what is done."""
    done = {entry["test"] for entry in _entries(Path(_LOG))} if _LOG else set()
    items[:] = [item for item in items if item.nodeid not in done]


def pytest_runtest_logstart(nodeid: str) -> None:
    """A test begins; if it never ends, that is what was running."""
    _write(test=nodeid, outcome="begun")


def pytest_runtest_logreport(report: Any) -> None:
    """A part of a test has ended: set-up and tear-down count where they fail or skip."""
    if report.when == "call" or report.outcome != "passed":
        outcome = "skipped" if hasattr(report, "wasxfail") else report.outcome
        message = "" if outcome == "passed" else str(report.longrepr)[-8000:]
        _write(test=report.nodeid, outcome=outcome, seconds=report.duration, message=message)


def pytest_collectreport(report: Any) -> None:
    """A file that cannot be collected is one failure."""
    if report.failed:
        _write(test=report.nodeid, outcome="failed", seconds=0.0, message=str(report.longrepr)[-8000:])


# --- the suite -------------------------------------------------------------------------------------------------------


def _entries(log: Path) -> list[Outcome]:
    return [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()] if log.exists() else []


def run_file(path: Path, root: Path, seconds: float, file_seconds: float, extra: Sequence[str]) -> list[Outcome]:
    """The outcome of every test of a file, in as many processes as it takes."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        end = time.monotonic() + file_seconds
        while _one_process(path, root, log, seconds, end, extra) and time.monotonic() < end:
            pass
        last: dict[str, Outcome] = {}
        for entry in _entries(log):
            worse = last.get(entry["test"], {}).get("outcome") == "failed"  # tear-down after it changes nothing
            if not worse:
                last[entry["test"]] = entry
        return [_judged(entry, path, root) for entry in last.values()]


def _judged(entry: Outcome, path: Path, root: Path) -> Outcome:
    entry["file"] = str(path.relative_to(root))
    if entry["outcome"] == "failed":
        entry.setdefault("cause", cause_of(entry["message"]))
    return entry


def _one_process(path: Path, root: Path, log: Path, seconds: float, end: float, extra: Sequence[str]) -> bool:
    """Runs what is left of a file; whether another process has to go on behind a test that did not end."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "npu_suite", "-p", "no:cacheprovider", "-p", "no:xdist"]
    command += ["-c", os.devnull, f"--rootdir={root}", "--tb=short", str(path), *extra]
    paths = [str(Path(__file__).parent), str(root), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "DESCEND_SUITE_LOG": str(log)}
    before = len(_entries(log))
    with open(log.with_suffix(".out"), "w+", encoding="utf-8", errors="replace") as output:
        process = subprocess.Popen(
            command, cwd=root, env=environment, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
        why = _wait(process, log, seconds, end)
        output.seek(0)
        text = output.read()[-4000:]
    entries = _entries(log)
    if entries and entries[-1]["outcome"] == "begun":
        message = f"{why or f'the process ended with status {process.returncode}'}\n{text}"
        cause = TIME if why else CRASH
        with log.open("a", encoding="utf-8") as file:
            ended = {"test": entries[-1]["test"], "outcome": "failed", "message": message, "cause": cause, "seconds": 0}
            file.write(json.dumps(ended) + "\n")
        return True
    if len(entries) == before and process.returncode not in (0, 5):  # 5: no tests
        _note(log, path, root, f"the process ended with status {process.returncode}\n{text}", LOADING)
    elif why:
        _note(log, path, root, f"{why}, between tests\n{text}", TIME)
    elif process.returncode not in (0, 1, 5):
        _note(log, path, root, f"after its tests the process ended with status {process.returncode}\n{text}", CRASH)
    return False


def _note(log: Path, path: Path, root: Path, message: str, cause: str) -> None:
    entry = {"test": str(path.relative_to(root)), "outcome": "failed", "seconds": 0, "message": message, "cause": cause}
    with log.open("a", encoding="utf-8") as file:
        file.write(json.dumps(entry) + "\n")


def _wait(process: subprocess.Popen[bytes], log: Path, seconds: float, end: float) -> str:
    """Waits for the process; ends it, and says why, where nothing was written for too long."""
    changed, size = time.monotonic(), -1
    while process.poll() is None:
        time.sleep(0.2)
        now, length = time.monotonic(), log.stat().st_size if log.exists() else 0
        if length != size:
            changed, size = now, length
        if now - changed > seconds or now > end:
            os.killpg(process.pid, 9)  # and what it has started
            process.wait()
            return f"not done after {seconds if now <= end else 'all the time of its file, '} s"
    return ""


# --- tables ----------------------------------------------------------------------------------------------------------


def print_tables(outcomes: Iterable[Outcome]) -> None:
    """By file, and by cause."""
    files: dict[str, Counter[str]] = defaultdict(Counter)
    causes: dict[str, list[Outcome]] = defaultdict(list)
    for outcome in outcomes:
        files[outcome["file"]][outcome["outcome"]] += 1
        if outcome["outcome"] == "failed":
            causes[outcome["cause"]].append(outcome)
    total = Counter[str]()
    print("| file | run | pass | fail | skip |\n| --- | ---: | ---: | ---: | ---: |")
    for name, counts in [*sorted(files.items()), ("all", total)]:
        total += counts if name != "all" else Counter()
        ran = counts["passed"] + counts["failed"]
        print(f"| {name} | {ran} | {counts['passed']} | {counts['failed']} | {counts['skipped']} |")
    print("\n| cause | tests | for example |\n| --- | ---: | --- |")
    for cause, tests in sorted(causes.items(), key=lambda item: -len(item[1])):
        print(f"| {cause} | {len(tests)} | {tests[0]['test'].rpartition('/')[2]} |")


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description="Run a checkout of a suite of torch_npu on Descend.")
    parser.add_argument("root", type=Path, help="the folder that the suite's files are run in")
    parser.add_argument("patterns", nargs="+", help="files below it, as patterns of pathlib")
    parser.add_argument("--seconds", type=float, default=120, help="for one test (default: 120)")
    parser.add_argument("--file-seconds", type=float, default=1800, help="for one file (default: 1800)")
    parser.add_argument("--product", help="DESCEND_PRODUCT")
    parser.add_argument("--devices", type=int, help="DESCEND_DEVICES")
    parser.add_argument("--json", type=Path, help="keep the outcomes here; files that are there are not run again")
    parser.add_argument("--pytest", action="append", default=[], metavar="OPTION", help="for pytest; may be repeated")
    arguments = parser.parse_args()
    settings = {"DESCEND_PRODUCT": arguments.product, "DESCEND_DEVICES": arguments.devices}
    os.environ.update({name: str(value) for name, value in settings.items() if value is not None})
    root = arguments.root.resolve()
    paths = sorted({path for pattern in arguments.patterns for path in root.glob(pattern) if path.is_file()})
    if not paths:
        parser.error(f"{root} has no files {' '.join(arguments.patterns)}")
    outcomes: list[Outcome] = []
    if arguments.json and arguments.json.exists():
        outcomes = json.loads(arguments.json.read_text(encoding="utf-8"))
    done = {outcome["file"] for outcome in outcomes}
    for path in paths:
        name = str(path.relative_to(root))
        if name in done:
            continue
        start = time.monotonic()
        found = run_file(path, root, arguments.seconds, arguments.file_seconds, arguments.pytest)
        counts = Counter(outcome["outcome"] for outcome in found)
        print(f"{name}: {dict(counts)} in {time.monotonic() - start:.0f} s", file=sys.stderr, flush=True)
        outcomes += found or [{"file": name, "test": name, "outcome": "skipped", "message": "no tests", "seconds": 0}]
        if arguments.json:
            arguments.json.write_text(json.dumps(outcomes, indent=1), encoding="utf-8")
    print_tables(outcomes)


if __name__ == "__main__":
    main()
