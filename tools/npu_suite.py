"""Runs a checkout of a public suite of torch_npu, file by file, and tells what passed and why the rest did not.

    python tools/npu_suite.py CHECKOUT/test 'npu/test_*.py' test_custom_ops/test_npu_rms_norm.py --json results.jsonl
    python tools/npu_suite.py --tables results.jsonl more.jsonl

Each file is run by a process of its own, with this interpreter. A new process goes on behind a test that crashed or
took too long. ``--together N`` gives N files to one process, which saves imports; one that fails so is run again alone.
``--json`` keeps each outcome as it comes, one a line: a call with the same file goes on where the last one was ended.
The tables, by file and by cause, go to stdout. No file of the suite is changed.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Entry = dict[str, Any]  # of a test: test, outcome, and if it has ended seconds, message, cause

OTHER_VALUES = "other values"
# The first that is found in what is said of a failure names its cause.
CAUSES = (
    ("graph capture", r"aclmdlRI|NPUGraph|[Gg]raph capture|capture_begin|capture_end|npu_graph\b|GraphTree|cudagraph"),
    ("profiling", r"\baclprof|Msprof|\bprofiler\b"),
    ("collectives", r"\bHccl|hccl|process group|init_process_group|HCCL"),
    (
        "device binaries, torchair",
        r"aclrtBinary|rtKernelLaunch|aclrtLaunchKernel|triton|bisheng|ccec|torchair|inductor",
    ),
    ("an aclop type that is not here", r"aclop\w*.*\btypes?\b|aclopCompileAndExecute|operator name is (?!aclnn)"),
    ("an aclnn function that is not here", r"not in lib\w*opapi|aclnn\w+ or aclnn\w+Get|operator name is aclnn"),
    ("a function of the runtime", r"\b(acl(rt|sys|mdl)|Hcc[lc])[A-Z]\w+.*(fail|not support|error)|FEATURE_UNSUPPORTED"),
    ("an operator that is not here", r"NotImplementedError|Could not run '|not implemented for|no kernel"),
    ("refused by a composed operator", r"of device npu .*refused|descend.*refus"),
    (
        "a package or version of the tests' own",
        r"ModuleNotFoundError|ImportError|NameError|has no attribute|fixture '\w+'",
    ),
    ("a file of the tests' own", r"FileNotFoundError|No such file|URLError|Name or service not known|ConnectionError"),
    ("more devices than there are", r"[Ii]nvalid device|device.*ordinal|INVALID_DEVICE|device_count\(\)"),
    ("no memory", r"out of memory|MemoryError|BAD_ALLOC"),
    ("a private format", r"private format|FRACTAL|NC1HWC0|npu_format|format_cast|\bNZ\b"),
    ("an error that does not occur here", r"AssertionError: \w+ not raised"),
    ("another message of an error", r"AssertionError: .* does not match "),
    ("an error of PyTorch's CPU kernel", r"^E\s+(Runtime|Index|Value|Type)Error"),
    (OTHER_VALUES, r"not close|not equal|Mismatched|AssertionError"),
)
TIME, CRASH, LOADING = "time", "a crash", "does not load"


def cause_of(message: str) -> str:
    """What made a test fail: by the lines of the error, then by the code that is shown, then by what was printed.

    Values are only blamed where nothing else is: an error in torch_npu's queue, which is printed, leaves wrong ones.
    """
    report, _, printed = message.partition("- Captured ")
    lines = [line for line in report.splitlines() if line.strip()]
    errors = [line for line in lines if re.match(r"E\s|\w*(Error|Exception)\b", line)] or lines
    queue = [line for line in printed.splitlines() if "Inner error happened" in line]
    *others, values = CAUSES
    for causes, text in ((others, errors), (others, queue), (others, lines), ([values], errors), (others, [printed])):
        for cause, pattern in causes:
            if re.search(pattern, "\n".join(text), re.MULTILINE):
                return cause
    return errors[-1].strip()[:100] if errors else "says nothing"


# --- the log: one entry a line ---------------------------------------------------------------------------------------


def append(log: Path, **entry: Any) -> None:
    """Keeps an entry."""
    with log.open("a", encoding="utf-8") as file:
        file.write(json.dumps(entry) + "\n")


def entries(log: Path) -> list[Entry]:
    """All of them; a last line that was cut off is none."""
    lines = log.read_text(encoding="utf-8").split("\n") if log.exists() else []
    return [json.loads(line) for line in lines[:-1]]


def file_of(test: str) -> str:
    """The file of a test, as pytest names it."""
    return test.partition("::")[0]


def state_of(found: Iterable[Entry]) -> tuple[dict[str, Entry], set[str]]:
    """The last word on each test, and the files that are done. A failure stays one whatever its tear-down says."""
    tests: dict[str, Entry] = {}
    done: set[str] = set()
    for entry in found:
        name = entry["test"]
        if entry["outcome"] == "again":
            done.discard(name)
            tests = {test: old for test, old in tests.items() if file_of(test) != name}
        elif entry["outcome"] == "done":
            done.add(name)
        elif tests.get(name, {}).get("outcome") != "failed":
            tests[name] = entry
    return tests, done


# --- in the process of a file: a plugin of pytest --------------------------------------------------------------------

_LOG = Path(os.environ.get("DESCEND_SUITE_LOG", os.devnull))


def pytest_collection_modifyitems(items: list[Any]) -> None:
    """Leaves out what is done."""
    tests, _ = state_of(entries(_LOG))
    items[:] = [item for item in items if item.nodeid not in tests]


def pytest_runtest_logstart(nodeid: str) -> None:
    """A test begins; if it never ends, that is what was running."""
    append(_LOG, test=nodeid, outcome="begun")


def pytest_runtest_logreport(report: Any) -> None:
    """A part of a test has ended: set-up and tear-down count where they fail or skip."""
    if report.when == "call" or report.outcome != "passed":
        outcome = "skipped" if hasattr(report, "wasxfail") else report.outcome
        message = "" if outcome == "passed" else f"{report.longrepr}\n- Captured \n{report.capstderr[-2000:]}"
        append(_LOG, test=report.nodeid, outcome=outcome, seconds=report.duration, message=_shortened(message))


def pytest_collectreport(report: Any) -> None:
    """A file that cannot be collected is one failure; one that skips itself is one skip."""
    if report.outcome != "passed":
        message = _shortened(str(report.longrepr))
        append(_LOG, test=report.nodeid, outcome=report.outcome, seconds=0.0, message=message)


def _shortened(message: str) -> str:
    return message if len(message) < 8000 else f"{message[:2000]}\n...\n{message[-6000:]}"


# --- the suite -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Suite:
    """How the files below ``root`` are run."""

    root: Path
    log: Path
    seconds: float
    load_seconds: float
    file_seconds: float
    options: Sequence[str]

    def run(self, files: Sequence[str]) -> None:
        """All tests of some files, in as many processes as it takes."""
        end = time.monotonic() + self.file_seconds * len(files)
        while self._one_process(files, end):
            if time.monotonic() > end:
                self._fail(files[0], TIME, f"its tests took more than {self.file_seconds} s")
                break
        for file in files:
            append(self.log, test=file, outcome="done")

    def run_again_alone(self, files: Sequence[str]) -> None:
        """Those that failed among others."""
        tests, _ = state_of(entries(self.log))
        for file in sorted(
            {file_of(test) for test, entry in tests.items() if entry["outcome"] == "failed"} & set(files)
        ):
            append(self.log, test=file, outcome="again")
            self.run([file])

    def _fail(self, test: str, cause: str, message: str) -> None:
        append(self.log, test=test, outcome="failed", seconds=0.0, message=message, cause=cause)

    def _one_process(self, files: Sequence[str], end: float) -> bool:
        """Runs what is left; whether another process has to go on behind a test that did not end."""
        command = [sys.executable, "-m", "pytest", "-q", "-p", "npu_suite", "-p", "no:cacheprovider", "-p", "no:xdist"]
        command += ["-c", os.devnull, f"--rootdir={self.root}", "--tb=short", "--continue-on-collection-errors"]
        command += [*files, *self.options]
        paths = [str(Path(__file__).parent), str(self.root), *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "DESCEND_SUITE_LOG": str(self.log)}
        before = len(entries(self.log))
        with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as output:
            process = subprocess.Popen(
                command, cwd=self.root, env=environment, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
            )
            why = self._wait(process, before, end)
            output.seek(0)
            text = output.read()[-4000:]
        said = entries(self.log)[before:]
        status = f"the process ended with status {process.returncode}"
        if said and said[-1]["outcome"] == "begun":
            self._fail(said[-1]["test"], TIME if why else CRASH, f"{why or status}\n{text}")
            return True
        if why:
            self._fail(files[0], TIME, f"{why}, between tests\n{text}")
        elif not said and process.returncode not in (0, 5):  # 5: no tests
            self._fail(files[0], LOADING, f"{status}\n{text}")
        elif process.returncode not in (0, 1, 2, 5):
            self._fail(file_of(said[-1]["test"]), CRASH, f"after its tests {status}\n{text}")
        return False

    def _wait(self, process: subprocess.Popen[bytes], before: int, end: float) -> str:
        """Waits for the process; ends it, and says why, where nothing was written for too long."""
        changed, size, limit = time.monotonic(), 0, self.load_seconds
        while process.poll() is None:
            time.sleep(0.2)
            now, length = time.monotonic(), self.log.stat().st_size if self.log.exists() else 0
            if length != size:
                began = any(entry["outcome"] == "begun" for entry in entries(self.log)[before:]) if size else False
                changed, size, limit = now, length, self.seconds if began else self.load_seconds
            if now - changed > limit or now > end:
                os.killpg(process.pid, 9)  # and what it has started
                process.wait()
                return f"not done after {limit if now <= end else 'all the time of its file,'} s"
        return ""


def groups(files: Sequence[str], together: int) -> Iterator[Sequence[str]]:
    """Files that share a process: of one folder, since two folders may have files of the same name."""
    by_folder: dict[str, list[str]] = defaultdict(list)
    for file in files:
        by_folder[file.rpartition("/")[0]].append(file)
    for found in by_folder.values():
        for start in range(0, len(found), together):
            yield found[start : start + together]


# --- tables ----------------------------------------------------------------------------------------------------------


def print_tables(logs: Sequence[Path], per_folder: bool) -> None:
    """By file or folder, and by cause. Of a test that several logs have the last one counts."""
    tests: dict[str, Entry] = {}
    files: dict[str, Counter[str]] = {}
    for log in logs:
        found, done = state_of(entries(log))
        tests = {test: entry for test, entry in tests.items() if file_of(test) not in done} | found
        files |= {file.rpartition("/")[0] if per_folder else file: Counter[str]() for file in sorted(done)}
    causes: dict[str, list[str]] = defaultdict(list)
    for test, entry in tests.items():
        file = file_of(test)
        files.setdefault(file.rpartition("/")[0] if per_folder else file, Counter())[entry["outcome"]] += 1
        if entry["outcome"] == "failed":
            causes[entry.get("cause") or cause_of(entry["message"])].append(test)
    total = sum(files.values(), Counter[str]())
    print("| file | run | pass | fail | skipped |\n| --- | ---: | ---: | ---: | ---: |")
    for name, counts in [*sorted(files.items()), ("all", total)]:
        ran = counts["passed"] + counts["failed"]
        print(f"| {name} | {ran} | {counts['passed']} | {counts['failed']} | {counts['skipped']} |")
    print("\n| cause | tests | for example |\n| --- | ---: | --- |")
    for cause, failed in sorted(causes.items(), key=lambda item: -len(item[1])):
        print(f"| {cause} | {len(failed)} | {failed[0]} |")


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description="Run a checkout of a suite of torch_npu on Descend.")
    parser.add_argument("root", type=Path, nargs="?", help="the folder that the suite's files are run in")
    parser.add_argument("patterns", nargs="*", help="files below it, as patterns of pathlib")
    parser.add_argument(
        "--tables", type=Path, nargs="+", metavar="JSON", help="only the tables, of these outcomes together"
    )
    parser.add_argument("--per-folder", action="store_true", help="a row of the table for a folder, not for a file")
    parser.add_argument("--json", type=Path, help="keep the outcomes here; what is there is not run again")
    parser.add_argument("--again", action="store_true", help="run the files again that have a failure in --json")
    parser.add_argument("--together", type=int, default=1, metavar="N", help="files of one process (default: 1)")
    parser.add_argument("--seconds", type=float, default=120, help="for one test (default: 120)")
    parser.add_argument("--load-seconds", type=float, default=300, help="until the first test begins (default: 300)")
    parser.add_argument("--file-seconds", type=float, default=1800, help="for one file (default: 1800)")
    parser.add_argument("--product", help="DESCEND_PRODUCT")
    parser.add_argument("--devices", type=int, help="DESCEND_DEVICES")
    parser.add_argument("--pytest", action="append", default=[], metavar="OPTION", help="for pytest; may be repeated")
    arguments = parser.parse_args()
    if arguments.tables:
        print_tables(arguments.tables, arguments.per_folder)
        return
    if not arguments.root or not arguments.patterns:
        parser.error("the folder of the suite and its files, or --tables, are needed")
    settings = {"DESCEND_PRODUCT": arguments.product, "DESCEND_DEVICES": arguments.devices}
    os.environ.update({name: str(value) for name, value in settings.items() if value is not None})
    root = arguments.root.resolve()
    paths = {path for pattern in arguments.patterns for path in root.glob(pattern) if path.is_file()}
    if not paths:
        parser.error(f"{root} has no files {' '.join(arguments.patterns)}")
    with tempfile.TemporaryDirectory() as folder:
        log = (arguments.json or Path(folder) / "log.jsonl").resolve()
        limits = (arguments.seconds, arguments.load_seconds, arguments.file_seconds)
        suite = Suite(root, log, *limits, arguments.pytest)
        with log.open("a", encoding="utf-8") as mine:
            try:
                fcntl.flock(mine, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                parser.error(f"another run is writing to {log}")
            run_all(suite, sorted(str(path.relative_to(root)) for path in paths), arguments.together, arguments.again)
        print_tables([log], arguments.per_folder)


def run_all(suite: Suite, files: Sequence[str], together: int, again: bool) -> None:
    """Whatever of the files is not done."""
    tests, done = state_of(entries(suite.log))
    if again:
        failed = {file_of(test) for test, entry in tests.items() if entry["outcome"] == "failed"}
        for file in sorted(failed & set(files)):
            append(suite.log, test=file, outcome="again")
            done.discard(file)
    for group in groups([file for file in files if file not in done], together):
        start = time.monotonic()
        suite.run(group)
        if len(group) > 1:
            suite.run_again_alone(group)
        tests, _ = state_of(entries(suite.log))
        counts = Counter(entry["outcome"] for test, entry in tests.items() if file_of(test) in group)
        print(f"{' '.join(group)}: {dict(counts)} in {time.monotonic() - start:.0f} s", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
