"""The functions of PyTorch, torch_npu and MindSpore that call Descend's operators, computed in float64.

Each is a function with the parameters of the original, in its order and with its defaults, so that the arguments of a
call can be given to it as they are. It returns the results in the order of the original. A function's gradient takes
the gradients of the results that have one, all results of the call where the dump has them, and all arguments by name.
It returns the gradients of the tensors that PyTorch differentiates, in their order. Masks change nothing: a result that
is not wanted is not in the dump.
"""

from __future__ import annotations

from descend.cli.apis import mindspore, pytorch, torch_npu
from descend.cli.apis.function import NO_VALUES, Api, LeftOut, Results

__all__ = ["NO_VALUES", "Api", "LeftOut", "Results", "find"]


def find(prefix: str, name: str, framework: str) -> Api | None:
    """The function that a dump calls ``prefix.name``, such as ``NPU.npu_rms_norm``; None if it is not one of ours.

    The names of torch_npu's functions say enough: what they are registered under does not matter.
    """
    if framework == "mindspore":
        return mindspore.FUNCTIONS.get(f"{prefix}.{name}")
    name = name.removesuffix(".default")  # an overload of aten's
    api = torch_npu.FUNCTIONS.get(name.rpartition(".")[2]) or pytorch.find(prefix, name)
    if api and framework == "mindtorch":  # PyTorch's functions, run by MindSpore
        return api.without_gradient(mindspore.NO_GRADIENT)
    return api
