"""The peers: their arrays, on the same memory if possible, and their compilers. Imported when needed."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks import machine, onednn
from benchmarks.operator import Array, Call, Operator, Route


@dataclass(frozen=True)
class Library:
    """One peer, with its name in the reports."""

    name: str
    package: str
    routes: Callable[[Operator], Mapping[str, Route]]
    arrays: Callable[[Sequence[Array]], list[Any]]
    find: Callable[[str], Any] = importlib.util.find_spec
    """Gives None for a package that is not installed."""
    compiles: bool = False
    """Whether it compiles for each shape, which takes time."""

    @property
    def installed(self) -> bool:
        """Whether it can take part."""
        return self.find(self.package) is not None


def torch_arrays(arrays: Sequence[Array]) -> list[Any]:
    """Tensors over the same memory."""
    import torch

    def tensor(array: Array) -> Any:
        if array.dtype.name == "bfloat16":
            return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
        return torch.from_numpy(array)

    return [tensor(array) for array in arrays]


def jax_arrays(arrays: Sequence[Array]) -> list[Any]:
    """JAX's own copies."""
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    import jax.numpy as jnp

    return [jnp.asarray(array) for array in arrays]


def jitted(function: Callable[..., Any], *arrays: Any) -> Call:
    """A call of the function under ``jax.jit``, which waits: JAX returns before it has computed."""
    import jax

    run = jax.jit(function)
    return lambda: jax.block_until_ready(run(*arrays))


def to_numpy(result: Any) -> Array:
    """A peer's result as a NumPy array; PyTorch's bfloat16 becomes float32."""
    if hasattr(result, "detach"):
        tensor = result.detach()
        return np.asarray(tensor.float() if "bfloat16" in str(tensor.dtype) else tensor)
    return np.asarray(result)


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function compiled by PyTorch for exactly these shapes."""
    import torch
    from torch._functorch import config

    config.donated_buffer = False  # else a graph that is kept cannot be run backwards twice
    run: Callable[..., Any] = torch.compile(function, fullgraph=True, dynamic=False)
    return run


def prepare(libraries: Sequence[Library]) -> None:
    """Makes JAX start its threads, one for each processor. Their number does not change later."""
    if any(library.package == "jax" for library in libraries) and importlib.util.find_spec("jax"):
        os.environ.setdefault("JAX_PLATFORMS", "cpu")
        import jax

        jax.devices()


def hold(threads: int) -> None:
    """From here on all libraries have so many threads, and as many processors: JAX looks only at the processors."""
    import descend

    machine.restrict(threads)
    descend.set_num_threads(threads)
    if importlib.util.find_spec("torch"):
        import torch
        from torch._inductor import config

        torch.set_num_threads(threads)
        config.cpp.threads = threads


def forget() -> None:
    """Drops what PyTorch compiled for earlier shapes."""
    if importlib.util.find_spec("torch"):
        import torch

        torch.compiler.reset()


LIBRARIES = (
    Library("PyTorch", "torch", lambda operator: operator.torch_eager(), torch_arrays),
    Library("torch.compile", "torch", lambda operator: operator.torch_compile(), torch_arrays, compiles=True),
    Library("JAX", "jax", lambda operator: operator.jax(), jax_arrays, compiles=True),
    Library("oneDNN", onednn.PACKAGE, lambda operator: operator.onednn(), list, onednn.find),
)
