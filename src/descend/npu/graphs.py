"""Graphs of torch_npu (``torch.npu.NPUGraph``): a capture records PyTorch's operators, and a replay calls them again.

A capture runs each operator once, on what the inputs hold at that time, so that its results have their shapes. What
was there before the capture is put back at its end: memory, and the states of the generators. A replay reads and
writes the same memory as the capture, and draws new random numbers.

Operators are recorded where PyTorch dispatches them, by a mode, as that sees all of them: PyTorch's, torch_npu's, the
program's own, and collectives. The threads that compute gradients inherit the mode. What does not pass there, such as
a function of aclnn that a C++ extension calls by itself, is refused.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils._python_dispatch import _get_current_dispatch_mode, _pop_mode, _push_mode

from descend.npu.recording import OTHER_SEED, CaptureError, Recording, TaskGroup, Update, is_npu, refuse_other_calls

_NOT_CAPTURED = "Called NPUGraph::{} without a preceding successful capture."
_WAITS = " waits for the device"
_CONDITIONS = "a graph cannot choose at its replay which operators run: that needs a processor."

_capturing: list[tuple[Any, Recording]] = []  # one at most: captures follow one another
_updates: list[Update] = []  # one at most, too


def install() -> None:
    """Puts recording in the place of the capture by CANN."""
    torch_npu: Any = sys.modules["torch_npu"]
    graphs, low = torch_npu.npu.graphs, torch_npu._C
    for name, method in _METHODS.items():
        setattr(graphs.NPUGraph, name, method)
    low._NPUGraph.debug_dump = _debug_dump  # torch_npu goes on with the file
    graphs._npu_isCurrentStreamCapturing = low._npu_isCurrentStreamCapturing = is_capturing
    for function in (_graph_task_group_begin, _graph_task_group_end, _graph_task_update_begin, _graph_task_update_end):
        setattr(graphs, function.__name__, function)
    for operator in ("npu_fused_infer_attention_score", "npu_fused_infer_attention_score_v2"):
        setattr(low, f"_{operator}_out_graph", _update_attention(operator))
    event = torch_npu.npu.ExternalEvent
    event._descend_is_recorded = False
    for name, method in (("record", _record), ("wait", _wait), ("reset", _reset_event)):
        setattr(event, name, functools.partialmethod(method, getattr(event, name)))
    low._npu_synchronize = _refused_in_capture(low._npu_synchronize, "torch.npu.synchronize" + _WAITS)
    accelerator, text = torch.accelerator, torch._tensor_str
    accelerator.synchronize = _refused_in_capture(accelerator.synchronize, "torch.accelerator.synchronize" + _WAITS)
    text._str = _refused_in_capture(text._str, "printing a tensor" + _WAITS, is_npu)
    for name in ("_launch_host_func", "_launch_host_func_pending"):
        setattr(torch_npu.npu, name, _recorded_in_capture(getattr(torch_npu.npu, name)))
    for module, name in itertools.product((torch_npu.npu, torch_npu.npu.random), ("manual_seed", "manual_seed_all")):
        setattr(module, name, _same_seed_in_capture(getattr(module, name), name == "manual_seed_all"))
    for kind in (torch_npu.npu.Stream, torch_npu.npu.Event):
        kind.synchronize = _refused_in_capture(kind.synchronize, f"torch.npu.{kind.__name__}.synchronize{_WAITS}")


def is_capturing() -> bool:
    """Whether what the current stream gets is recorded."""
    return bool(_capturing) and _npu().current_stream() in _capturing[0][1].streams


def _npu() -> Any:
    return torch.npu  # type: ignore[attr-defined]


def _refuse_conditions(*_arguments: Any) -> Any:
    raise NotImplementedError(f"Descend: {_CONDITIONS}")


def _refused_in_capture(
    theirs: Callable[..., Any], what: str, waits: Callable[..., bool] = lambda *_: True
) -> Callable[..., Any]:
    @functools.wraps(theirs)
    def synchronize(*args: Any, **named: Any) -> Any:
        if is_capturing() and not _capturing[0][1].in_operator and waits(*args[:1]):
            _capturing[0][1].refuse(f"{what}, which is not permitted in a capture.")
        return theirs(*args, **named)

    return synchronize


def _recorded_in_capture(theirs: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(theirs)
    def launch(op_stream: Any, fn: Callable[..., Any], user_data: Any) -> None:
        if is_capturing():
            _capturing[0][1].add_host_function(theirs, op_stream, fn, user_data)
        else:
            theirs(op_stream, fn, user_data)

    return launch


def _same_seed_in_capture(theirs: Callable[[int], None], of_all: bool) -> Callable[[int], None]:
    """As on a processor, a seed that is set again has no effect in a capture, and another one is an error."""

    @functools.wraps(theirs)
    def manual_seed(seed: int) -> None:
        if not is_capturing():
            theirs(seed)
            return
        generators = _npu().default_generators
        seeded = generators if of_all else [generators[_npu().current_device()]]
        if any(int(seed) != each.initial_seed() for each in seeded):
            _capturing[0][1].refuse(OTHER_SEED)

    return manual_seed


# --- groups of operators whose arguments are updated ------------------------------------------------------------------


def _graph_task_group_begin(_stream: Any) -> None:
    _recording("graph_task_group_begin").begin_group()


def _graph_task_group_end(_stream: Any) -> TaskGroup:
    return _recording("graph_task_group_end").end_group()


def _graph_task_update_begin(_stream: Any, handle: TaskGroup) -> None:
    if _updates:
        raise RuntimeError("Descend: graph_task_update_begin within an update.")
    _updates.append(Update(handle))
    _updates[0].__enter__()  # type: ignore[no-untyped-call]


def _graph_task_update_end(_stream: Any) -> None:
    if not _updates:
        raise RuntimeError("Descend: graph_task_update_end without graph_task_update_begin.")
    _updates.pop().end()


def _update_attention(operator: str) -> Callable[..., Any]:
    def update(stream: Any, handle: TaskGroup, event: Any, *args: Any, **named: Any) -> tuple[Any, ...]:
        _graph_task_update_begin(stream, handle)
        try:
            getattr(torch.ops.npu, operator).out(*args, **named)
        except BaseException:
            _updates.pop().discard()
            raise
        _graph_task_update_end(stream)
        event.record(stream)
        return tuple(named["out"])

    return update


def _recording(name: str) -> Recording:
    if not is_capturing():
        raise RuntimeError(f"Descend: {name} without a capture on the current stream.")
    return _capturing[0][1]


def _record(self: Any, theirs: Callable[..., None], stream: Any = None) -> None:
    if is_capturing():
        _capturing[0][1].add_record(self)
    else:
        self._descend_is_recorded = True
        theirs(self, stream)


def _wait(self: Any, theirs: Callable[..., None], stream: Any = None) -> None:
    if is_capturing():
        _capturing[0][1].add_wait(self)
    else:
        theirs(self, stream)


def _reset_event(self: Any, theirs: Callable[..., None], stream: Any = None) -> None:
    if is_capturing():
        _capturing[0][1].add_reset(self)
    else:
        self._descend_is_recorded = False
        theirs(self, stream)


# --- methods of NPUGraph ----------------------------------------------------------------------------------------------


def _capture_begin(self: Any, pool: Any = None, capture_error_mode: str = "global") -> None:
    """Records operators from now on."""
    if capture_error_mode not in ("global", "thread_local", "relaxed"):
        raise RuntimeError(
            "Unknown capture error mode. Expected `global`, `thread_local`, or `relaxed`, got " + capture_error_mode
        )
    if getattr(self, "_descend", None) is not None:
        raise RuntimeError(
            "This NPUGraph instance already owns a captured graph. To capture a new graph, create a new instance."
        )
    if _capturing:
        raise RuntimeError("Descend: a capture is underway. Only one can be at a time.")
    stream = _npu().current_stream()
    if stream == _npu().default_stream():
        raise RuntimeError(
            "NPU graphs must be captured on a non-default stream. (However, after capture, it's ok to replay them on "
            "the default stream.)"
        )
    recording = Recording(stream)
    self._descend_pool = _npu().graph_pool_handle() if pool is None else pool
    _capturing.append((self, recording))
    refuse_other_calls()(1)
    with _below_updates(self):
        recording.__enter__()  # type: ignore[no-untyped-call]


@contextlib.contextmanager
def _below_updates(graph: Any) -> Iterator[None]:
    """Without torch_npu's own mode, which makes groups of operators: what it calls is to be recorded."""
    mode = _get_current_dispatch_mode()
    if mode is None or mode is not graph.graph_dispatch_mode:
        yield
        return
    _pop_mode()
    try:
        yield
    finally:
        _push_mode(mode)


def _capture_end(self: Any) -> None:
    """Ends the recording, and puts back what it changed."""
    if not _capturing or _capturing[0][0] is not self:
        raise RuntimeError("Descend: capture_end without a capture that this graph has begun.")
    recording = _capturing[0][1]
    try:
        with _below_updates(self):
            recording.__exit__(None, None, None)  # type: ignore[no-untyped-call]
        with recording.operator():
            recording.restore()
    finally:
        refuse_other_calls()(0)
        _capturing.clear()
    said: type[BaseException] = CaptureError
    if recording.group_is_open and not recording.refused:
        recording.refused = "a group of tasks has begun and not ended: graph_task_group_end must follow."
        said = BaseException  # any error may be why the group has not ended
    if recording.refused:
        if not isinstance(sys.exc_info()[1], said):  # else that error ends the capture, and says the same
            raise CaptureError(f"Descend: the capture is invalid: {recording.refused}")
        return
    if _npu().current_stream() != recording.stream:
        raise RuntimeError("Capture must end on the same stream it began on.")
    self._descend = recording


def _captured(self: Any, method: str) -> Recording:
    recording: Recording | None = getattr(self, "_descend", None)
    if recording is None:
        raise RuntimeError(_NOT_CAPTURED.format(method))
    return recording


def _replay(self: Any) -> None:
    """Runs the recorded operators again."""
    recording = _captured(self, "replay")
    if _capturing:
        _capturing[0][1].refuse("a graph cannot be replayed within a capture.")
    recording.replay()


def _reset(self: Any) -> None:
    """Forgets what was recorded, and lets its memory go."""
    self._descend = None


def _pool(self: Any) -> Any:
    _captured(self, "pool")
    return self._descend_pool


def _debug_dump(self: Any, debug_path: str) -> None:
    """Writes the recorded operators in the form of a Chrome trace, as CANN does, with one unit of time for each."""
    recording: Recording | None = getattr(self, "_descend", None)
    if recording is None:
        warnings.warn(_NOT_CAPTURED.format("debug_dump"), stacklevel=3)
        return
    operators = recording.describe()
    events = [
        {"name": name, "ph": "X", "ts": i, "dur": 1, "pid": 0, "tid": "stream0", "args": {"tensors": tensors}}
        for i, (name, tensors) in enumerate(operators)
    ]
    with open(debug_path, "w", encoding="utf-8") as file:
        json.dump(events, file)


def _super_kernel_optimize(self: Any, optimize_options: Any = None, debug_options: Any = None) -> None:
    """Checks the options. There are no kernels to join."""
    self._validate_options("optimize_options", optimize_options)
    self._validate_options("debug_options", debug_options)
    _captured(self, "super_kernel_optimize")


def _register_generator_state(_self: Any, _generator: Any) -> None:
    """Each generator's state is the recorded operator's own affair."""


def _currently_capturing() -> Any:
    if not _capturing:
        raise RuntimeError(
            "get_currently_capturing_graph() can be used only between capture_begin() and capture_end()."
        )
    return _capturing[0][0]


_METHODS: dict[str, Any] = {
    "capture_begin": _capture_begin,
    "capture_end": _capture_end,
    "replay": _replay,
    "reset": _reset,
    "pool": _pool,
    "super_kernel_optimize": _super_kernel_optimize,
    "register_generator_state": _register_generator_state,
    "get_currently_capturing_graph": staticmethod(_currently_capturing),
    "begin_capture_to_if_node": _refuse_conditions,
    "end_capture_to_conditional_node": _refuse_conditions,
}
