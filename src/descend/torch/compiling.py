"""Norms in graphs that inductor compiles: while Descend is enabled, it computes the large ones.

Inductor takes PyTorch's norms apart and fuses the parts. This module gives inductor a pass over its graphs
(``torch._inductor.config.pre_grad_custom_pass``) that puts Descend's operators in their place before.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import cache
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx
from torch._C._functorch import is_functorch_wrapped_tensor
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from descend import _import_hook
from descend.torch import modules
from descend.torch.layer_norm import layer_norm as _layer_norm
from descend.torch.library import constant
from descend.torch.rms_norm import rms_norm as _rms_norm

CONFIG = "torch._inductor.config"
LEAST_ELEMENTS = 1 << 18
"""The smallest input whose norm is replaced. Below it, to call an operator can take longer than inductor's kernel."""


def layer_norm(
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    cudnn_enable: bool = True,
) -> Tensor:
    """Descend's layer norm with the parameters of ``torch.layer_norm``."""
    return _layer_norm(input, normalized_shape, weight, bias, eps)[0]


def rms_norm(
    input: Tensor, normalized_shape: Sequence[int], weight: Tensor | None = None, eps: float | None = None
) -> Tensor:
    """Descend's RMS norm with the parameters of ``torch.rms_norm``."""
    gamma = constant(1.0, normalized_shape, input) if weight is None else weight
    return _rms_norm(input, gamma, modules.default_epsilon(input) if eps is None else eps)[0]


_DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
_REPLACED: dict[Any, Callable[..., Tensor]] = {
    F.layer_norm: layer_norm,
    torch.layer_norm: layer_norm,
    F.rms_norm: rms_norm,
    torch.rms_norm: rms_norm,
}


def _is_plain(value: Any) -> bool:
    is_tensor = isinstance(value, Tensor)
    return is_tensor and not is_functorch_wrapped_tensor(value) and not is_traceable_wrapper_subclass(value)


def _is_served(call: fx.Node) -> bool:
    """Whether Descend computes a call with the dtype and the layout of PyTorch's result, and faster than inductor."""
    from torch.fx.experimental.symbolic_shapes import optimization_hint

    tensors: list[Any] = [node.meta.get("example_value") for node in (*call.all_input_nodes, call)]
    if not all(map(_is_plain, tensors)):
        return False
    input, *parameters, result = tensors
    dtypes = {input.dtype, torch.float32} if input.dtype.itemsize == 2 else {input.dtype}
    return (
        input.device.type == "cpu"
        and input.dtype in _DTYPES
        and all(parameter.dtype in dtypes for parameter in parameters)
        and result.dtype is input.dtype
        and result.layout is torch.strided
        and result.is_contiguous()
        and 1 <= input.dim() <= 8
        and optimization_hint(input.numel(), fallback=0) >= LEAST_ELEMENTS
    )


def replace_norms(graph: fx.Graph) -> None:
    """Puts Descend's norms in the place of PyTorch's: in the graph, and in those that it calls, such as checkpoints."""
    root: Any = graph.owning_module
    for module in root.modules():
        if isinstance(module, fx.GraphModule):
            served = [node for node in module.graph.nodes if node.target in _REPLACED and _is_served(node)]
            for node in served:
                node.target = _REPLACED[node.target]
            if served:
                module.recompile()


def install(on: bool) -> None:
    """Gives inductor the pass, beside those that it has, or takes it away. Inductor is not imported for it."""
    _Finder.wanted = on
    if CONFIG in sys.modules:
        _install(sys.modules[CONFIG])
    elif on and _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)


def _install(config: Any) -> None:
    from torch._inductor.custom_graph_pass import get_custom_graph_passes

    others = [other for other in get_custom_graph_passes(config.pre_grad_custom_pass) if other is not _norms()]
    config.pre_grad_custom_pass = [*others, _norms()] if _Finder.wanted else others or None


@cache
def _norms() -> Any:
    """The pass."""
    from torch._inductor.custom_graph_pass import CustomGraphPass, get_hash_for_files

    class Norms(CustomGraphPass):
        def __call__(self, graph: fx.Graph) -> None:
            replace_norms(graph)

        def uuid(self) -> bytes:  # a key of the caches in which inductor finds compiled graphs again
            return get_hash_for_files((__file__,))

    return Norms()


class _Finder:
    """Finds inductor's configuration when a program first imports it. To import it in `install` would take a second."""

    wanted = False

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name != CONFIG:
            return None
        return _import_hook.find_spec(name, path, target, lambda finder: finder is self, _load)


def _load(execute: _import_hook.Execute, module: ModuleType) -> None:
    execute(module)
    _install(module)


_finder = _Finder()
