"""torch.compile for the device: what an NPU would compile is traced as there, and runs operator by operator.

Dynamo and AOTAutograd are PyTorch's own. In the place of code for the processor there is the graph that they traced,
whose operators are called one after the other on the device, so numbers are those of the program without compilation.

Three compilers are replaced: PyTorch's inductor, for graphs of the device alone; torch_npu's torchair and its
npugraph_ex. They are changed when they are first imported, and importing this imports none of them.
"""

from __future__ import annotations

import copy
import functools
import inspect
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import torch

from descend import _import_hook
from descend.npu.recording import is_npu

_AHEAD_OF_TIME = (
    "AOTInductor writes code for the processor, which is not here: compile the model by torch.compile, which runs it "
    "operator by operator."
)
_EXPORT = "torchair exports graphs of CANN's graph engine, which is not here: torch.export writes PyTorch's own graphs."
_DUMP = "torchair's graph_dump writes the graph of CANN's graph engine, which is not here: there will be no file."


def install() -> None:
    """Replaces the compilers, now or when they are imported."""
    torch_npu: Any = sys.modules["torch_npu"]
    # Code for the processor is what torch_npu's part of inductor is for. Without it inductor stays PyTorch's own.
    torch_npu.utils._dynamo.disable_register_inductor_npu()
    wrapper: Any = torch._TorchCompileInductorWrapper
    wrapper.__call__ = _first(wrapper.__call__, graph=1)
    torch_npu.dynamo._NpugraphsBackendEntryPoint.__call__ = lambda _self, graph, inputs, **_: _run(graph, inputs)
    # Dynamo cannot trace it: it asks for the device's name. The rest of a compiled optimizer's step would then fail.
    torch_npu.utils._optim.patch_supported_devices._dynamo_marked_constant = True
    _import_hook.change(_CHANGES)


# --- inductor ---------------------------------------------------------------------------------------------------------


def _change_inductor(module: Any) -> None:
    module.compile_fx = _first(module.compile_fx, graph=0)


def _first(theirs: Callable[..., Any], graph: int) -> Callable[..., Any]:
    """A compiler that leaves graphs without tensors of the device to another. ``graph``: where it is an argument."""

    names = list(inspect.signature(theirs).parameters)[graph : graph + 2]

    @functools.wraps(theirs)
    def compile_graph(*args: Any, **named: Any) -> Any:
        given = [
            *args[graph : graph + 2],
            *(named[name] for name in names[max(0, len(args) - graph) :] if name in named),
        ]
        if len(given) == 2 and _of_device(*given):
            return _run(*given)
        return theirs(*args, **named)

    return compile_graph


def _of_device(graph: Any, inputs: Sequence[Any]) -> bool:
    """Whether a graph of Dynamo's, or of make_fx, has a tensor of the device."""
    if any(is_npu(value) for value in (*inputs, *graph.parameters(), *graph.buffers())):
        return True
    values = (node.meta.get(name) for node in graph.graph.nodes for name in ("example_value", "val"))
    return any(is_npu(each) for value in values for each in _tensors(value))


def _tensors(value: Any) -> Iterator[Any]:
    if isinstance(value, (tuple, list)):
        for each in value:
            yield from _tensors(each)
    else:
        yield value


def _run(graph: Any, inputs: Sequence[Any]) -> Callable[..., Any]:
    """The graph, with its gradients, as AOTAutograd traces it."""
    inductor: Any = sys.modules.get("torch._inductor.virtualized")
    if inductor is not None and inductor.V.aot_compilation:
        raise NotImplementedError(_AHEAD_OF_TIME)
    from torch._dynamo.backends.debugging import aot_eager

    compiled: Callable[..., Any] = aot_eager(graph, inputs)  # type: ignore[arg-type]
    return compiled


# --- torchair, npugraph_ex --------------------------------------------------------------------------------------------


class _Runner:
    """A graph of torchair's that runs operator by operator."""

    def __init__(self, module: Any) -> None:
        self.module = module
        self.graph = SimpleNamespace(name=type(module).__name__)  # for torchair's log

    def __call__(self, *args: Any, **named: Any) -> Any:
        return self.module(*args, **named)

    def codegen(self, extend_config: Any = None, enable_cache: bool = False) -> str | None:
        """The graph as Python code with a function ``kernel``, for torchair's cache; None if it has constants."""
        return _code(self.module.graph)


def _code(graph: Any) -> str | None:
    from torch.fx.graph_module import _format_import_block
    from torch.package.importer import sys_importer

    if any(node.op in ("get_attr", "call_module") for node in graph.nodes):
        return None
    code = graph.python_code("self")
    imports = _format_import_block(code.globals, sys_importer)
    return f"{imports}\nimport torch_npu\n{code.src}\ndef kernel(*args):\n    return forward(None, *args)\n"


def _change_torchair(module: Any) -> None:
    def compile_graph(self: Any, graph: Any, _inputs: Sequence[Any], observer: Any) -> _Runner:
        """The graph after the program's own passes. torchair's passes choose other operators: they are left out."""
        if module is sys.modules.get("torchair.npu_fx_compiler"):
            if self.config.export.export_mode:
                raise NotImplementedError(_EXPORT)
            if self.config.debug.graph_dump.enabled:
                warnings.warn(_DUMP, stacklevel=2)
        with module.no_dispatch():  # its constants are copied as they are, though fake tensors are in force
            observer.gm = graph = copy.deepcopy(graph)
        for name in ("post_grad_custom_pre_pass", "post_grad_custom_post_pass"):
            if (change := getattr(self.config, name).value) is not None:
                observer.apply_gm_pass(change, name)
        module._valid_graph(graph)
        graph.recompile()
        return _Runner(graph)

    module._NpuFxCompiler._gen_compiled_gm = compile_graph


_CHANGES: dict[str, Callable[[Any], None]] = {
    "torch._inductor.compile_fx": _change_inductor,
    "torchair.npu_fx_compiler": _change_torchair,
    "npugraph_ex.npu_fx_compiler": _change_torchair,
}
