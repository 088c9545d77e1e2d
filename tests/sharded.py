"""A pool of processes that compute together, and the functions they share, for tests/test_torch_sharding.py."""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import os
import time
import traceback
from collections.abc import Callable, Sequence
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, distributed
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard

from forks import CONTEXT

SIZE = 4
MESHES: dict[str, DeviceMesh] = {}  # in the processes: by their shapes


class Pool:
    """Four processes with gloo, started when first needed, that run the same function at once."""

    TIMEOUT = 300.0
    GRACE = 5.0  # for the others once one has failed: they may wait for it

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._starts = 0
        self._processes: Any = None
        self._pipes: list[Connection] = []

    def run(self, function: Callable[..., Any], *args: Any) -> list[Any]:
        """What ``function(*args)`` returns in each process. Fails with the first failure of any, or if one hangs."""
        self._start()
        for pipe in self._pipes:
            pipe.send((function, args))
        results: dict[int, Any] = {}
        failures: list[str] = []
        lost = False
        end = time.monotonic() + self.TIMEOUT
        while len(results) < SIZE and (left := end - time.monotonic()) > 0:
            for pipe in wait([p for i, p in enumerate(self._pipes) if i not in results], left):
                rank = self._pipes.index(pipe)  # type: ignore[arg-type]
                try:
                    failure, results[rank] = pipe.recv()  # type: ignore[union-attr]
                except EOFError:
                    failure, results[rank], lost = self._death(rank), None, True
                if failure:
                    failures.append(f"process {rank}: {failure}")
                    end = min(end, time.monotonic() + self.GRACE)
        if len(results) < SIZE:
            failures.append(f"processes {sorted({*range(SIZE)} - set(results))} did not finish.")
            lost = True
        if lost:
            self.stop()
        if failures:
            pytest.fail("\n".join(failures), pytrace=False)
        return [results[rank] for rank in range(SIZE)]

    def _start(self) -> None:
        if self._processes is not None:
            return
        self._starts += 1
        pairs = [CONTEXT.Pipe() for _ in range(SIZE)]
        self._processes = [
            CONTEXT.Process(target=_work, args=(rank, self._folder, self._starts, theirs), daemon=True)
            for rank, (_, theirs) in enumerate(pairs)
        ]
        for process in self._processes:
            process.start()
        self._pipes = [ours for ours, _ in pairs]
        for _, theirs in pairs:
            theirs.close()

    def _death(self, rank: int) -> str:
        """What is known of a process that ended by itself: its exit status, and the end of what it wrote to stderr."""
        self._processes[rank].join(self.GRACE)
        said = _stderr(self._folder, rank).read_text(errors="replace")
        return f"it died with exit status {self._processes[rank].exitcode}.\n{said[-5000:]}"

    def stop(self) -> None:
        """Ends the processes; kills those that do not answer."""
        for pipe in self._pipes:
            pipe.close()
        for process in self._processes or []:
            process.join(self.GRACE)
            process.kill()
            process.join()
        self._processes = None


def _stderr(folder: Path, rank: int) -> Path:
    return folder / f"stderr-{rank}"


def _work(rank: int, folder: Path, start: int, pipe: Connection) -> None:
    with _stderr(folder, rank).open("w") as file:
        os.dup2(file.fileno(), 2)
    faulthandler.enable()
    gc.freeze()  # what was imported is no garbage
    gc.set_threshold(50_000, 20, 50)
    torch.set_num_threads(1)
    distributed.init_process_group(
        "gloo",
        store=distributed.FileStore(str(folder / f"store-{start}"), SIZE),
        rank=rank,
        world_size=SIZE,
        timeout=timedelta(seconds=Pool.TIMEOUT),
    )
    grid = torch.arange(SIZE)
    MESHES.update(
        {
            "1": DeviceMesh("cpu", grid[:1]),
            "2": DeviceMesh("cpu", grid[:2]),
            "4": DeviceMesh("cpu", grid),
            "2x2": DeviceMesh("cpu", grid.view(2, 2), mesh_dim_names=("data", "model")),
        }
    )
    with contextlib.suppress(EOFError):
        while True:
            function, args = pipe.recv()
            try:
                pipe.send((None, function(*args)))
            except BaseException:
                pipe.send((traceback.format_exc(), None))
    distributed.destroy_process_group()


# --- layouts: for each dimension of the mesh the tensor's dimension that is cut, - for none, + for a sum ------------


def placements(layout: str) -> tuple[Placement, ...]:
    return tuple(Replicate() if c == "-" else Partial() if c == "+" else Shard(int(c)) for c in layout)


def layout(tensor: DTensor) -> str:
    letters = {Replicate(): "-", Partial(): "+"}
    return "".join(letters.get(p) or str(p.dim) for p in tensor.placements)  # type: ignore[attr-defined]


def place(whole: Tensor, mesh: str, layout: str) -> DTensor:
    """The tensor on a mesh. Sums are of equal terms: exact, for the sizes of the meshes are powers of two."""
    on = MESHES[mesh]
    for dim, c in enumerate(layout):
        whole = whole / on.size(dim) if c == "+" else whole
    cut = DTensor.from_local(whole, on).redistribute(placements=placements(layout.replace("+", "-")))
    if "+" not in layout:
        return cut
    return DTensor.from_local(cut.to_local(), on, placements(layout), shape=whole.shape, stride=whole.stride())


def place_all(args: Sequence[Any], mesh: str, layouts: Sequence[str]) -> list[Any]:
    """Arguments whose tensors are placed in turn."""
    rest = iter(layouts)
    return [
        place(a.detach(), mesh, next(rest)).requires_grad_(a.requires_grad) if isinstance(a, Tensor) else a
        for a in args
    ]


def takes_part(mesh: str) -> bool:
    return MESHES[mesh].get_coordinate() is not None


def assert_whole(actual: Tensor | None, expected: Tensor | None, summed: bool = False) -> None:
    """Checks that a DTensor equals the whole: bit by bit, or to a few roundings where processes' results are added."""
    assert (actual is None) == (expected is None)
    if actual is None or expected is None:
        return
    assert isinstance(actual, DTensor)
    assert actual.dtype is expected.dtype
    assert actual.shape == expected.shape
    full = actual.detach().full_tensor()
    if actual.device_mesh.get_coordinate() is None:
        return
    expected = expected.detach()
    if summed:
        slack = 8 * torch.finfo(expected.dtype).eps * max(1.0, float(expected.abs().max()) if expected.numel() else 1.0)
        torch.testing.assert_close(full, expected, rtol=0, atol=slack)
    else:
        torch.testing.assert_close(full, expected, rtol=0, atol=0, equal_nan=True)
