"""``python -m benchmarks.gpu.check``: whether the kernels are right on this GPU, in minutes.

Every operator in float32, float16 and bfloat16, over shapes that go different ways through its kernels: each result is
compared with float64, then with that of a second run, of a run on another stream, and of a captured CUDA graph, bit by
bit. Each operator has a process of its own, for most of the time goes into compiling.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Protocol

import numpy as np
import typer

from benchmarks import files, ours
from benchmarks.gpu import OPERATORS
from benchmarks.gpu.device import NOTHING, Cuda, NoGpuError, describe, refusal
from benchmarks.gpu.session import Place, check, to_cuda
from benchmarks.operator import DTYPES, Call, Operator, Shape, load

SAVED = Path(__file__).parent.parent.parent / "build" / "checks-gpu.json"
MOST = 16
"""Processes at a time: each has memory of its own on the GPU."""

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@dataclass
class Check:
    """One operator, shape and dtype: each question is passed, or failed with a sentence."""

    operator: str
    shape: Shape
    dtype: str
    passed: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0


class Ways(Protocol):
    """What a check needs of the device."""

    def beside(self) -> AbstractContextManager[Any]:
        """Another stream than the current one."""

    def captured(self, call: Call) -> Call:
        """A replay of the call, which gives its results."""

    def wait(self) -> None:
        """Until all work is done."""


class OnCuda:
    """The current CUDA device."""

    def beside(self) -> AbstractContextManager[Any]:
        """After the current stream's work."""
        import torch

        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        return torch.cuda.stream(stream)

    def captured(self, call: Call) -> Call:
        """Results are NaN before each replay."""
        import torch

        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            results = call()

        def replay() -> Any:
            for result in tensors(results):
                result.fill_(float("nan"))
            graph.replay()
            return results

        return replay

    def wait(self) -> None:
        """All streams."""
        import torch

        torch.cuda.synchronize()


def cases(operators: list[str]) -> Iterator[tuple[Operator, Shape, str]]:
    """All of them, the first shapes of all operators first: what the time is too short for are the rarer ones."""
    found = [load(name) for name in operators]
    for number in range(max(len(operator.kind.checked) for operator in found)):
        for operator in found:
            for shape in operator.kind.checked[number : number + 1]:
                yield from ((operator, shape, dtype) for dtype in DTYPES if dtype in operator.dtypes)


def tensors(results: Any) -> list[Any]:
    """An operator's results, however many it has; None is one that an attribute turns off."""
    return [part for part in results if part is not None] if isinstance(results, (tuple, list)) else [results]


def bits(results: Any) -> list[bytes]:
    """Those of each result."""
    import torch

    return [result.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes() for result in tensors(results)]


def run(operator: Operator, shape: Shape, dtype: str, ways: Ways, place: Place = to_cuda) -> Check:
    """Asks all questions about one case. Where the first call has no results, the others are not asked."""
    made, begin = Check(operator.name, shape, dtype), time.perf_counter()
    rng = np.random.default_rng()
    problem = operator.make(shape, dtype, rng)
    golden = operator.golden(problem, rng)
    call = ours.allocating(operator, replace(problem, inputs={n: place(array) for n, array in problem.inputs.items()}))
    expected: list[bytes] = []

    def same(results: Any) -> None:
        ways.wait()
        for number, (found, wanted) in enumerate(zip(bits(results), expected, strict=True)):
            if found != wanted:
                raise AssertionError(f"output {number} has other bits than in the first run")

    def right() -> None:
        results = call()
        ways.wait()
        expected.extend(bits(results))
        check(f"{operator.name} {shape} {dtype}", results, golden)

    def beside() -> None:
        with ways.beside():
            results = call()
        same(results)

    questions: dict[str, Callable[[], None]] = {
        "float64": right,
        "second run": lambda: same(call()),
        "another stream": beside,
        "CUDA graph": lambda: same(ways.captured(call)()),
    }
    for question, ask in questions.items():
        try:
            ask()
            made.passed.append(question)
        except Exception as error:  # whatever it is, it is the finding
            made.failed[question] = f"{type(error).__name__}: {error}"[:2000]
            if not expected:
                break
    made.seconds = round(time.perf_counter() - begin, 3)
    return made


def save(path: Path, device: dict[str, Any], checks: list[Check], left_out: int) -> None:
    """All that is known so far."""
    failed = sum(bool(each.failed) for each in checks)
    head = {"device": device, "checks": len(checks), "failed": failed, "left out": left_out}
    files.replace(path, json.dumps({**head, "results": [asdict(each) for each in checks]}, indent=1))


def check_all(
    operators: list[str], json: Path, seconds: float, ways: Ways, device: dict[str, Any], place: Place
) -> int:
    """Checks until the time is over; how many cases failed or were left out."""
    end, done, all_cases = time.monotonic() + seconds, list[Check](), list(cases(operators))
    save(json, device, done, len(all_cases))
    for operator, shape, dtype in all_cases:
        if time.monotonic() > end:
            break
        done.append(run(operator, shape, dtype, ways, place))
        save(json, device, done, len(all_cases) - len(done))
    return sum(bool(each.failed) for each in done) + len(all_cases) - len(done)


def merge(parts: list[Path], path: Path) -> tuple[list[Check], int]:
    """The checks of all processes, in one file, and how many cases they left out."""
    found, left_out, device = list[Check](), 0, dict[str, Any]()
    for part in parts:
        saved = json.loads(part.read_text())
        found += [Check(**{**each, "shape": tuple(each["shape"])}) for each in saved["results"]]
        left_out, device = left_out + saved["left out"], saved["device"]
    save(path, device, found, left_out)
    return found, left_out


def in_processes(operators: list[str], path: Path, seconds: float) -> int:
    """One process an operator; one that dies is a failed check. How many cases failed or were left out."""
    parts = [path.with_name(f"{path.stem}-{name}.json") for name in operators]

    def process(place: tuple[str, Path]) -> int:
        name, part = place
        part.unlink(missing_ok=True)
        command = [sys.executable, "-m", "benchmarks.gpu.check", "--op", name, "--json", part, "--seconds", seconds]
        try:
            return subprocess.run(list(map(str, command)), timeout=seconds + 60, check=False).returncode
        except subprocess.TimeoutExpired:
            return -1

    with ThreadPoolExecutor(max(min(MOST, os.cpu_count() or 1), 1)) as pool:
        codes = list(pool.map(process, zip(operators, parts, strict=True)))
    found, left_out = merge([part for part in parts if part.exists()], path)
    died = [name for name, code in zip(operators, codes, strict=True) if code not in (0, 1)]
    for name in died:
        print(f"{name}: its process ended early or took too long", file=sys.stderr)
    for each in found:
        for question, sentence in each.failed.items():
            print(f"{each.operator} {each.shape} {each.dtype}, {question}: {sentence}", file=sys.stderr)
    failed = sum(bool(each.failed) for each in found)
    print(f"{len(found)} cases, {failed} failed, {left_out} left out, {len(died)} processes died. Answers: {path}")
    return failed + left_out + len(died)


@app.command()
def main(
    op: Annotated[list[str] | None, typer.Option(help="Operator; may be repeated. All, where none is given.")] = None,
    json: Annotated[Path, typer.Option(help="Where the answers go, as they come.")] = SAVED,
    seconds: Annotated[float, typer.Option(min=1, help="After which no more cases are begun.")] = 180,
) -> None:
    """Checks operators on a GPU against float64, and for the same bits again, on another stream and in a graph.

    The exit status is 0 if all is well, 1 if a check failed or the time was too short, 2 without a GPU.
    """
    if unknown := [name for name in op or () if name not in OPERATORS]:
        raise typer.BadParameter(f"no such operator: {unknown[0]}; there are {', '.join(OPERATORS)}")
    try:
        Cuda.find()
    except NoGpuError as error:
        typer.echo(refusal("benchmarks.gpu.check", error))
        raise typer.Exit(NOTHING) from None
    names = op or list(OPERATORS)
    if len(names) == 1:
        raise typer.Exit(bool(check_all(names, json, seconds, OnCuda(), describe(), to_cuda)))
    raise typer.Exit(bool(in_processes(names, json, seconds)))


if __name__ == "__main__":
    app()
