"""The way to the kernels for CUDA tensors. They need Triton, which is imported where the first of them is wanted."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import version
from importlib.util import find_spec
from typing import Any

from descend import _native
from descend._device_call import Executor, refuse_gradients


def available() -> bool:
    """Whether Triton is installed."""
    return find_spec("triton") is not None


def operator(name: str) -> Callable[..., Any]:
    """The operator on CUDA tensors: called as ``descend.<name>``. Raises ImportError without Triton 3.6 or newer."""
    try:
        from descend.triton import operator
    except ImportError as error:
        if error.name != "triton":
            raise
        needs = f"{name} on CUDA tensors needs Triton"
        if isinstance(error, ModuleNotFoundError):
            sentence = f"{needs}, which is not installed: pip install descend[cuda]."
            raise ModuleNotFoundError(sentence, name="triton") from None
        raise ImportError(f"{needs} 3.6 or newer, but {version('triton')} is installed.", name="triton") from None
    return operator(name)


def concerns(*arguments: Any) -> bool:
    """Whether any of the arguments, or of the entries of one, is a CUDA tensor."""
    return any(
        concerns(*a) if isinstance(a, (tuple, list)) else getattr(a, "is_cuda", False) is True for a in arguments
    )


def run(name: str, out: Any, **arguments: Any) -> Any:
    """``descend.<name>(**arguments, out=out)`` for CUDA tensors."""
    import torch

    for parameter, value in arguments.items():
        if isinstance(value, torch.Tensor):
            refuse_gradients(name, parameter, value)
            arguments[parameter] = value.resolve_neg()
    return operator(name)(out=out, **arguments)


def prepare(name: str, **arguments: Any) -> tuple[int, Executor]:
    """``descend.aclnn.<name>_get_workspace_size(**arguments)`` for CUDA tensors."""
    operator(name)  # which says so where Triton is missing
    from descend.triton.executor import Prepared

    executor = Prepared(name, _native.get_product(), arguments)
    return executor.workspace_size, executor
