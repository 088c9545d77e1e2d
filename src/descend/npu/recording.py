"""Records the operators of a capture, and calls them again: what `descend.npu.graphs` makes graphs of."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import itertools
import sys
from collections.abc import Callable, Container, Iterator
from typing import Any, NamedTuple, NoReturn

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map_only

from descend import _cann
from descend.npu import boxed

_WITHOUT_ALIAS = {"npu_fused_infer_attention_score", "npu_fused_infer_attention_score_v2"}
"""Operators that write to their out, though their schemas do not say so."""
_DRAWN = ("seed", "offset")
"""Arguments of an attention's gradient, which the attention gives as its first integers."""
OTHER_SEED = (
    "NPUGeneratorImpl::set_current_seed can be called during stream capture only if new seed is the same as the "
    "original seed."
)
_UNDECLARED = {
    *("native_batch_norm", "batch_norm_gather_stats", "batch_norm_gather_stats_with_counts", "batch_norm_update_stats"),
}
"""Operators that write to their running_mean and running_var, though their schemas do not say so."""
_COPIES = {"copy_", "_to_copy", "lift_fresh"}


@functools.cache
def refuse_other_calls() -> Any:
    """descendRefuseInCapture: whether this thread may call functions of aclnn. A C++ extension may do so by itself."""
    return _cann.library().descendRefuseInCapture


class CaptureError(RuntimeError):
    """What a capture does not permit."""


_Offsets = dict[torch.Generator, int]
"""How many random numbers each generator had drawn when a replay began."""


class _Call(NamedTuple):
    """A recorded operator."""

    function: Any
    args: tuple[Any, ...]
    named: dict[str, Any]
    results: tuple[tuple[int, Tensor], ...]
    """The new tensors among the results, and their places: a replay copies its own there."""
    numbers: list[int]
    """The integers among the results of the last run: where an attention's dropout began to draw."""
    drawn_by: list[int] | None = None
    """These of the attention whose gradient this is: its seed and offset. It is the attention's own list of numbers,
    which each replay overwrites before the gradient reads it."""

    def run(self, _start: _Offsets) -> None:
        """Calls the operator again, and has its results where the capture had its own."""
        named = self.named if self.drawn_by is None else self.named | dict(zip(_DRAWN, self.drawn_by, strict=False))
        results = [_waited_for(self.function, each) for each in tree_leaves(self.function(*self.args, **named))]
        self.numbers[:] = _integers(results)
        for i, place in self.results:
            if results[i].shape != place.shape:
                raise RuntimeError(
                    f"Descend: {self.function} has given shape {list(results[i].shape)} at a replay, and "
                    f"{list(place.shape)} at the capture."
                )
            place.copy_(results[i])


class _SetOffset(NamedTuple):
    """The program has set the state of a generator: how far it is then from where the replay began."""

    generator: torch.Generator
    offset: int

    def run(self, start: _Offsets) -> None:
        """Sets it again."""
        self.generator.set_offset(start[self.generator] + self.offset)


class _Wait(NamedTuple):
    """The graph waits for an event of the program: until parameters are updated."""

    event: Any

    def run(self, _start: _Offsets) -> None:
        """Refuses to wait for what would never come, as a replay runs at once."""
        if not self.event._descend_is_recorded:
            raise RuntimeError(
                "Descend: this graph waits for an ExternalEvent that is not recorded. Update the graph before the "
                "replay: a replay runs at once, so it cannot wait for an update that comes after it."
            )


class _Record(NamedTuple):
    """The graph records an event of the program."""

    event: Any

    def run(self, _start: _Offsets) -> None:
        """Records it, on the replay's stream."""
        self.event.record()


class _Reset(NamedTuple):
    """The graph resets an event of the program."""

    event: Any

    def run(self, _start: _Offsets) -> None:
        """Resets it."""
        self.event._descend_is_recorded = False


class _HostFunction(NamedTuple):
    """A function of the program that the stream calls when it comes to it."""

    launch: Callable[..., None]
    stream: Any
    function: Callable[..., Any]
    arguments: Any

    def run(self, _start: _Offsets) -> None:
        """Gives it to its stream, which may be the only one that has a thread for it, in the replay's order."""
        current = torch.npu.current_stream()  # type: ignore[attr-defined]
        self.stream.wait_stream(current)
        self.launch(self.stream, self.function, self.arguments)
        current.wait_stream(self.stream)


_SingleStep = _Call | _SetOffset | _HostFunction | _Wait | _Record | _Reset


class TaskGroup:
    """Recorded operators whose arguments may be updated, and what came between. The program holds it as a handle."""

    def __init__(self, made: Container[int]) -> None:
        self.made = made
        """The storages that the capture has made, as `_held` takes them."""
        self.steps: list[_SingleStep] = []
        self.captured: list[_Call] | None = None
        """Those of the capture, kept for their memory: an update has tensors that do not hold theirs."""

    def run(self, start: _Offsets) -> None:
        """Does them again."""
        for step in self.steps:
            step.run(start)

    def update(self, calls: list[_Call]) -> None:
        """The same operators with other arguments. What came between them stays."""
        mine = [step for step in self.steps if isinstance(step, _Call)]
        if [call.function for call in calls] != [call.function for call in mine]:
            names = [", ".join(str(call.function) for call in each) or "none" for each in (calls, mine)]
            raise RuntimeError(f"Descend: an update has the operators {names[0]}, and its group {names[1]}.")
        self.captured = self.captured or mine
        new = iter(calls)
        self.steps = [
            next(new)._replace(numbers=step.numbers, drawn_by=step.drawn_by) if isinstance(step, _Call) else step
            for step in self.steps
        ]


class Update(TorchDispatchMode):
    """A mode that records what operators write to their arguments, without computing it."""

    def __init__(self, group: TaskGroup) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.group = group
        self._calls: list[_Call] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Records an operator that writes; others run."""
        kwargs = kwargs or {}
        written = _written(func, args, kwargs)
        if not any(map(is_npu, written)):
            return func(*args, **kwargs)
        self._calls.append(_Call(func, *_held(func, args, kwargs, self.group.made), (), []))
        return written[0] if len(written) == 1 else tuple(written)

    def end(self) -> None:
        """Ends the mode, and puts what it recorded into the group."""
        self.discard()
        self.group.update(self._calls)

    def discard(self) -> None:
        """Ends the mode. The group stays as it is."""
        self.__exit__(None, None, None)  # type: ignore[no-untyped-call]


class Recording(TorchDispatchMode):
    """A mode that runs operators, and records those that touch the device."""

    supports_higher_order_operators = True

    def __init__(self, stream: Any) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.stream = stream
        self.streams = {stream}
        self.refused = ""
        self.in_operator = False
        self._calls: list[_SingleStep | TaskGroup] = []
        self._group: TaskGroup | None = None
        self._new: dict[int, torch.UntypedStorage] = {}  # kept, so that no other storage gets the same number
        self._before: dict[int, tuple[torch.UntypedStorage, bytes]] = {}
        self._drawn: dict[tuple[Any, ...], list[int]] = {}
        self._lent: list[range] = []
        """Memory of the device that a collective may give back as tensors of the CPU."""
        self._before_of: dict[torch.Generator, tuple[int, int]] = {}
        self._expected: dict[torch.Generator, tuple[int, int]] = {}
        for each in sys.modules["torch_npu"].npu.default_generators:
            self._follow(each)

    def refuse(self, why: str, invalid: bool = True) -> NoReturn:
        """Raises, and makes the capture invalid. With ``invalid`` False only this call fails: the capture goes on."""
        self.refused = self.refused or (why if invalid else "")
        raise CaptureError(f"Descend: {why}")

    def add_host_function(self, *given: Any) -> None:
        """Records a function of the program, which a capture does not call."""
        self._add(_HostFunction(*given))

    def add_wait(self, event: Any) -> None:
        """Records that the stream waits for an event of the program."""
        self._add(_Wait(event))

    def add_record(self, event: Any) -> None:
        """Records that the stream records an event of the program."""
        self._add(_Record(event))

    def add_reset(self, event: Any) -> None:
        """Records that the stream resets an event of the program."""
        self._add(_Reset(event))

    def _add(self, step: _SingleStep) -> None:
        """To the group that has begun, if one has: a replay has the order of the program."""
        steps: list[Any] = self._calls if self._group is None else self._group.steps
        steps.append(step)

    @property
    def group_is_open(self) -> bool:
        """Whether a group has begun and not ended."""
        return self._group is not None

    def begin_group(self) -> None:
        """What is recorded from now on may be updated."""
        if self._group is not None:
            self.refuse("a group of tasks has begun already.")
        self._group = TaskGroup(self._new)

    def end_group(self) -> TaskGroup:
        """The group."""
        group = self._group
        if group is None:
            self.refuse("no group of tasks has begun.")
        self._group = None
        self._calls.append(group)
        return group

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Runs an operator, and records it if it touches the device."""
        kwargs = kwargs or {}
        if any(kind not in (Tensor, torch.nn.Parameter) for kind in types):
            return NotImplemented  # a tensor of another kind comes again as the tensors that it consists of
        if isinstance(func, torch._ops.HigherOrderOperator):
            return self._run_higher(func, args, kwargs)
        if func in _launching():
            with self:
                return _launching()[func](*args, **kwargs)
        leaves = tree_leaves((args, kwargs))
        given = [each for each in leaves if isinstance(each, Tensor)]
        if not any(map(is_npu, given)) and not _names_npu(kwargs.get("device")):
            return func(*args, **kwargs)
        self._check(func, args, kwargs, given)
        written = [] if torch.Tag.inplace_view in func.tags else _written(func, args, kwargs)
        for tensor in written:
            self._keep(tensor)
        for each in leaves:
            if isinstance(each, torch.Generator) and each.device.type == "npu":
                self._follow(each)
        if func.namespace == "c10d":
            self._lent += (range(each.data_ptr(), each.data_ptr() + each.untyped_storage().nbytes()) for each in given)
        held = _held(func, args, kwargs, self._new)
        with self.operator():
            results = func(*args, **kwargs)
        self.streams.add(torch.npu.current_stream())  # type: ignore[attr-defined]
        self._expected = {each: _state(each) for each in self._expected}
        new = self._find_new(tree_leaves(results), given)
        if written or (new and not _is_empty(func)) or not func._schema.returns:
            numbers = _integers(tree_leaves(results))
            self._add(_Call(func, *held, new, numbers, self._drawn.get(_drawn_by(func, kwargs))))
            if numbers:  # kept as the list itself: a replay overwrites it, and the gradient reads it
                self._drawn[tuple(numbers[: len(_DRAWN)])] = numbers
        return results

    @contextlib.contextmanager
    def operator(self) -> Iterator[None]:
        """Within it the device is used for a recorded operator, or by the recording itself."""
        before, self.in_operator = self.in_operator, True
        refused = refuse_other_calls()(0)
        try:
            yield
        finally:
            self.in_operator = before
            refuse_other_calls()(refused)

    def restore(self) -> None:
        """Puts back what was there before the capture."""
        _wait()
        for storage, content in self._before.values():
            ctypes.memmove(storage.data_ptr(), content, len(content))
        self._before.clear()
        with contextlib.suppress(CaptureError):
            self._record_states()
        for generator, (seed, offset) in self._before_of.items():
            if generator.initial_seed() != seed:
                generator.manual_seed(seed)
            generator.set_offset(offset)

    def replay(self) -> None:
        """Calls the operators again, and has their results where the capture had its own."""
        with (
            torch._C._AutoDispatchBelowAutograd(),
            torch._C._ExcludeDispatchKeyGuard(boxed.AUTOCAST),
            torch._C.DisableTorchFunction(),
            _disable_current_modes(),
        ):
            start = {each: each.get_offset() for each in self._before_of}
            for call in self._calls:
                call.run(start)

    def describe(self) -> Iterator[tuple[str, list[str]]]:
        """Each recorded operator: its name, and dtypes and shapes of its tensors."""
        steps = ((step.steps if isinstance(step, TaskGroup) else [step]) for step in self._calls)
        for call in itertools.chain.from_iterable(steps):
            if isinstance(call, _Call):
                tensors = [each for each in tree_leaves((call.args, call.named)) if isinstance(each, Tensor)]
                yield (
                    str(call.function),
                    [f"{str(each.dtype).removeprefix('torch.')}{list(each.shape)}" for each in tensors],
                )

    def _run_higher(self, func: Any, args: Any, kwargs: Any) -> Any:
        """An operator that takes functions, such as flex attention: its own operators are recorded."""
        compute = func.py_kernels.get(torch._C.DispatchKey.CompositeExplicitAutograd)
        if compute is None or func in (torch.ops.higher_order.cond, torch.ops.higher_order.while_loop):
            self.refuse(f"{func} cannot be captured: which operators it runs is known at the replay alone.")
        with self:
            return compute(*args, **kwargs)

    def _check(self, func: Any, args: Any, kwargs: Any, given: list[Tensor]) -> None:
        """Refuses what is not permitted in a capture."""
        name = _name(func)
        if any(each.layout is not torch.strided for each in given):
            self.refuse("sparse tensors cannot be captured.")
        if torch.Tag.data_dependent_output in func.tags:
            why = f"{func} brings values of the device to the CPU, which is not permitted in a capture."
            self.refuse(why, invalid=False)
        if torch.Tag.dynamic_output_shape in func.tags and not _has_known_shape(name, args, kwargs):
            self.refuse(f"the shape of what {func} gives depends on values, which is not permitted in a capture.")
        there = [each for each in given if each.numel() and not any(each.data_ptr() in lent for lent in self._lent)]
        if name in _COPIES and not _copies_without_waiting(name, args, kwargs, there):
            self.refuse(
                "values are copied between the CPU and the device, which is not permitted in a capture, but for pinned "
                "memory with non_blocking=True."
            )
        self._record_states()

    def _follow(self, generator: torch.Generator) -> None:
        """Looks after a generator. In the capture it counts from 0, as a processor's does."""
        if generator not in self._before_of:
            self._before_of[generator] = _state(generator)
            generator.set_offset(0)
            self._expected[generator] = _state(generator)

    def _record_states(self) -> None:
        """Records that the program has set the state of a generator, such as for a computation that is done again."""
        for generator, expected in self._expected.items():
            seed, offset = _state(generator)
            if seed != expected[0]:
                self.refuse(OTHER_SEED)
            if offset != expected[1]:
                self._add(_SetOffset(generator, offset))
                self._expected[generator] = seed, offset

    def _keep(self, tensor: Tensor) -> None:
        """Remembers what is in memory that is older than the capture, and about to be written."""
        storage = tensor.untyped_storage()
        if storage._cdata not in self._new and storage._cdata not in self._before:
            with self.operator():
                _wait()
            self._before[storage._cdata] = storage, ctypes.string_at(storage.data_ptr(), storage.nbytes())

    def _find_new(self, results: list[Any], given: list[Tensor]) -> tuple[tuple[int, Tensor], ...]:
        """The results that are in memory of their own, and their places."""
        known = {tensor.untyped_storage()._cdata for tensor in given}
        found = []
        for i, each in enumerate(results):
            if not isinstance(each, Tensor) or each.untyped_storage()._cdata in known:
                continue
            storage = each.untyped_storage()
            self._new[storage._cdata] = storage
            found.append((i, each.detach()))
        return tuple(found)


def _held(func: Any, args: Any, kwargs: Any, made: Container[int] = ()) -> tuple[Any, Any]:
    """The arguments, for a replay. Tensors of the device stay in their memory, whatever becomes of the objects.

    So do those of the CPU in storages that the capture has made, such as the seed of an attention's dropout.
    """
    copies = _name(func) in _COPIES

    def hold(tensor: Tensor) -> Tensor:
        stays = is_npu(tensor) or (copies and tensor.dim()) or tensor.untyped_storage()._cdata in made
        return tensor.detach() if stays else tensor.clone()

    held: tuple[Any, Any] = tree_map_only(Tensor, hold, (tuple(args), dict(kwargs)))
    return held


def _drawn_by(func: Any, kwargs: Any) -> tuple[Any, ...]:
    """The seed and offset that are given to the gradient of an attention."""
    if not _name(func).startswith("npu_fusion_attention_grad"):
        return ()
    defaults = {each.name: each.default_value for each in func._schema.arguments}
    return tuple(kwargs.get(name, defaults[name]) for name in _DRAWN)


def _integers(results: list[Any]) -> list[int]:
    return [each for each in results if type(each) is int]


def _name(func: Any) -> str:
    return str(func.__name__).partition(".")[0]


def _names_npu(device: Any) -> bool:
    return device is not None and torch.device(device).type == "npu"


def _copies_without_waiting(name: str, args: Any, kwargs: Any, given: list[Tensor]) -> bool:
    """Whether a copy stays on the device, or can be in a graph. A number that is copied to the device is no copy."""
    if name == "lift_fresh":  # what torch.tensor(..., device="npu") has copied
        return not given
    device = kwargs.get("device")
    beside = [each for each in given if not is_npu(each) and (name != "copy_" or each.dim())]
    to_cpu = device is not None and not _names_npu(device)
    without_waiting = kwargs.get("non_blocking", args[2] if name == "copy_" and len(args) > 2 else False)
    # What is copied to the CPU without waiting gets pinned memory.
    return not (beside or to_cpu) or bool(without_waiting and all(each.is_pinned() for each in beside))


def _written(func: Any, args: Any, kwargs: Any) -> list[Tensor]:
    """The tensors that an operator writes to."""
    name = _name(func)
    found = []
    for i, argument in enumerate(func._schema.arguments):
        said = argument.alias_info is not None and argument.alias_info.is_write
        unsaid = func.namespace == "c10d" or (name in _UNDECLARED and argument.name.startswith("running_"))
        unsaid = unsaid or (name in _WITHOUT_ALIAS and argument.name == "out")
        if said or unsaid:
            value = args[i] if i < len(args) else kwargs.get(argument.name)
            found += [each for each in tree_leaves(value) if isinstance(each, Tensor)]
    return found


def _has_known_shape(name: str, args: Any, kwargs: Any) -> bool:
    """Whether an operator whose result may have any shape has one that follows from the arguments' shapes."""
    if name in ("index", "_unsafe_index"):
        return all(each is None or each.dtype not in (torch.bool, torch.uint8) for each in args[1])
    return name == "repeat_interleave" and kwargs.get("output_size") is not None


def _is_empty(func: Any) -> bool:
    """Whether an operator gives memory without values."""
    return func.namespace == "aten" and _name(func).startswith(("empty", "new_empty"))


def is_npu(value: Any) -> bool:
    """Whether this is a tensor of the device."""
    return isinstance(value, Tensor) and value.device.type == "npu"


def _waited_for(function: Any, result: Any) -> Any:
    """The result of a collective, once it is there; any other result at once."""
    if function.namespace == "_c10d_functional":
        return torch.ops._c10d_functional.wait_tensor(result)
    if function.namespace == "c10d" and isinstance(result, torch.ScriptObject):
        torch.distributed.Work.unbox(result).wait()
    return result


def _wait() -> None:
    torch.npu.current_stream().synchronize()  # type: ignore[attr-defined]


def _state(generator: torch.Generator) -> tuple[int, int]:
    return generator.initial_seed(), generator.get_offset()


@functools.cache
def _launching() -> dict[Any, Callable[..., Any]]:
    """Operators of torch_npu that give the stream a function of the host, and their code: its parts are recorded."""
    ops, graphs = torch.ops.npu, sys.modules["torch_npu"].npu.graphs
    return {
        ops.print_npugraph_tensor.default: graphs._print_npugraph_tensor_impl,
        ops.save_npugraph_tensor.default: graphs._save_npugraph_tensor_impl,
        ops.save_npugraph_tensor.tensor_list: graphs._save_npugraph_tensor_tensor_list_impl,
    }
