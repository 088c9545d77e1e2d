"""Collectives: of processes of one machine by PyTorch's gloo over the device's memory, and of one process's devices."""

from __future__ import annotations

import atexit
import ctypes
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, distributed

from descend import _cann
from descend.npu import boxed
from descend.npu.crossing import Crossing, view_of

_SERVED = (
    *("allgather_coalesced_", "allgather_into_tensor_coalesced_", "alltoall_"),
    *("alltoall_base_", "barrier", "broadcast_", "gather_", "monitored_barrier_", "recv_", "recv_any_source_"),
    *("scatter_", "send"),
)
# Those that reduce. The value: which argument is divided for an average. Where it is the first, in place.
_REDUCING = {
    **dict.fromkeys(("allreduce_", "allreduce_coalesced_", "reduce_"), 0),
    **dict.fromkeys(("reduce_scatter_", "_reduce_scatter_base_", "reduce_scatter_tensor_coalesced_"), 1),
}
# HCCL's dtypes that gloo does not know: as what their bits are moved, and in what they are reduced. Gloo adds bool as
# bytes, and 2 is none; HCCL's sum of True and True is True.
_MOVED_AS = {
    **dict.fromkeys((torch.int16, torch.uint16), torch.float16),
    **{torch.uint32: torch.int32, torch.uint64: torch.int64},
    **dict.fromkeys((torch.float8_e4m3fn, torch.float8_e5m2), torch.uint8),
}
_REDUCED_IN = {
    **dict.fromkeys((torch.bool, torch.int16, torch.uint16), torch.int32),
    torch.uint32: torch.int64,
}


def install() -> None:
    """Has backend hccl make groups of gloo, which then serve tensors of the device and, beside them, of the CPU."""
    _between_devices()
    if not distributed.is_available() or not distributed.is_gloo_available():
        return
    for name in _SERVED:
        boxed.implement(f"c10d::{name}", _Move(f"c10d::{name}"), "PrivateUse1")
    boxed.implement("c10d::_allgather_base_", _Gathering("c10d::_allgather_base_"), "PrivateUse1")
    boxed.implement("c10d::allgather_", _GatheringLists("c10d::allgather_"), "PrivateUse1")
    for name, divided in _REDUCING.items():
        kind = _ReducingLists if name == "reduce_scatter_" else _Reduction
        boxed.implement(f"c10d::{name}", kind(f"c10d::{name}", divided), "PrivateUse1")
    backend: Any = distributed.Backend
    backend._plugins["HCCL"] = backend._BackendPlugin(_creator(), True)
    backend.backend_capability["hccl"] = ["npu", "cpu"]
    _without_groups_of_calls()
    _without_splits()
    _destroying()
    _futures_of_the_device()


# The ids of what gloo has not let go of. A count would need a lock: threads change it at the same time.
_lent: set[int] = set()


class _Lent:
    """Holds a storage that gloo uses. A thread of gloo may be the last to let go of it, and has no current device.

    torch_npu's allocator would make device 0 current in that thread. Then each process uses device 0 beside its own,
    and torch_npu ends a process whose gradients call back at their end. So the thread gets the storage's device.
    """

    def __init__(self, storage: torch.UntypedStorage) -> None:
        self._storage = storage
        _lent.add(id(self))

    def __del__(self) -> None:
        _enter_device(self._storage)
        _lent.discard(id(self))


def _enter_device(storage: torch.UntypedStorage) -> None:
    """Makes the storage's device the current one of a thread that has none."""
    if _cann.library().aclrtGetDevice(ctypes.byref(ctypes.c_int32())):
        torch.npu.set_device(storage.device)  # type: ignore[attr-defined]


class _Lending(Crossing):
    """Gives gloo storages that are held until it lets go of them."""

    def _storage(self, owner: torch.UntypedStorage, written: bool) -> Any:
        storage = super()._storage(owner, written)
        storage.lent = _Lent(owner)
        return storage


class _Collective(boxed.Kernel):
    """An operator of gloo, whose threads may use the tensors after it has returned."""

    crossing = _Lending


class _Move(_Collective):
    """A collective that moves elements and does not look at them."""

    def __call__(self, *args: Any, **named: Any) -> Any:
        return super().__call__(*(boxed.changed(each, _moved) for each in args), **named)


class _Reduction(_Collective):
    """A collective that reduces. Gloo has no average: the inputs are divided first, and then summed."""

    def __init__(self, name: str, divided: int) -> None:
        super().__init__(name)
        self._divided = divided
        names = [argument.name for argument in self.schema.arguments]
        self._op, self._group = names.index("reduce_op"), names.index("process_group")

    def __call__(self, *args: Any, **named: Any) -> Any:
        given = list(args)
        if given[self._op].op() == distributed.ReduceOp.AVG:
            count = distributed.ProcessGroup.unbox(given[self._group]).size()
            given[self._divided] = _divided(given[self._divided], count, in_place=self._divided == 0)
            given[self._op] = torch.classes.c10d.ReduceOp()  # a sum
        if _REDUCED_IN.keys().isdisjoint(tensor.dtype for tensor in boxed.tensors(given)):
            return super().__call__(*given, **named)
        return self._in_wider_dtype(given, named)

    def _in_wider_dtype(self, given: Sequence[Any], named: dict[str, Any]) -> Any:
        """Has gloo compute in dtypes that it knows, and waits for it: only then can what was given be written."""

        def wider(tensor: Tensor) -> Tensor:
            return tensor.to(_REDUCED_IN.get(tensor.dtype, tensor.dtype))

        results, *others = (boxed.changed(each, wider) for each in given)
        done = super().__call__(results, *others, **named)
        distributed.Work.unbox(done[1] if isinstance(done, tuple) else done).wait()
        for result, tensor in zip(boxed.tensors(results), boxed.tensors(given[0]), strict=True):
            if result is not tensor:
                tensor.copy_(result)
        return done


class _Gathering(_Move):
    """PyTorch's gloo cuts the result along its first dimension. HCCL fills any shape, so it is given as a row."""

    def __call__(self, output: Tensor, given: Tensor, *args: Any, **named: Any) -> Any:
        if not output.is_contiguous():
            return super().__call__(output, given, *args, **named)
        _, work = super().__call__(output.flatten(), given.flatten(), *args, **named)
        return output, work


class _GatheringLists(_Move):
    """HCCL gathers tensors of unequal shapes, too."""

    def __call__(self, outputs: list[list[Tensor]], inputs: list[Tensor], group: Any, *args: Any, **named: Any) -> Any:
        if _have_one_shape(outputs):
            return super().__call__(outputs, inputs, group, *args, **named)
        sizes = [tensor.numel() for tensor in outputs[0]]
        row = outputs[0][0].new_empty(sum(sizes))
        work = _gather_parts(row, inputs[0].flatten(), sizes, distributed.ProcessGroup.unbox(group))
        work.wait()
        for tensor, part in zip(outputs[0], row.split(sizes), strict=True):
            tensor.copy_(part.view(tensor.shape))
        return outputs, work.boxed()


class _ReducingLists(_Reduction):
    """HCCL reduces and scatters tensors of unequal shapes, too."""

    def __call__(self, outputs: list[Tensor], inputs: list[list[Tensor]], group: Any, *args: Any, **named: Any) -> Any:
        if _have_one_shape(inputs):
            return super().__call__(outputs, inputs, group, *args, **named)
        sizes = [tensor.numel() for tensor in inputs[0]]
        row = torch.cat([tensor.flatten() for tensor in inputs[0]])
        op = distributed.ReduceOp.RedOpType(args[0].op())
        work = _reduce_parts(outputs[0], row, sizes, op, distributed.ProcessGroup.unbox(group))
        return outputs, work.boxed()


def _have_one_shape(lists: Sequence[Sequence[Tensor]]) -> bool:
    return len({tensor.shape for tensors in lists for tensor in tensors}) < 2


def _gather_parts(output: Tensor, part: Tensor, sizes: Sequence[int], group: Any) -> Any:
    """Gathers parts whose first dimension has the given sizes: each process sends its own to all."""
    lengths = [part.size(0)] * len(sizes)
    return distributed.all_to_all_single(output, torch.cat([part] * len(sizes)), sizes, lengths, group, async_op=True)


def _reduce_parts(output: Tensor, parts: Tensor, sizes: Sequence[int], op: Any, group: Any) -> Any:
    """Reduces parts whose first dimension has the given sizes. Each process reduces all, and takes its own."""
    parts = parts.clone()
    work = distributed.all_reduce(parts, op, group, async_op=True)
    work.wait()
    output.copy_(parts.split(sizes)[distributed.get_rank(group)].view(output.shape))
    return work


def _sizes_of_parts(sizes: Sequence[int], parts: Tensor, count: int) -> Sequence[int]:
    """The sizes, which have torch_npu's default, after torch_npu's checks."""
    if not sizes:
        sizes = [parts.size(0) // count] * count
    if len(sizes) != count:
        raise RuntimeError(f"Number of tensor splits not equal to group size: {len(sizes)} and {count}.")
    if sum(sizes) != parts.size(0):
        raise RuntimeError(
            f"Split sizes doesn't match total dim 0 size: their sum is {sum(sizes)}, not {parts.size(0)}."
        )
    return sizes


def _moved(tensor: Tensor) -> Tensor:
    return tensor.view(_MOVED_AS[tensor.dtype]) if tensor.dtype in _MOVED_AS else tensor


def _divided(value: Any, count: int, in_place: bool) -> Any:
    if isinstance(value, Tensor):
        return value.div_(count) if in_place else value.div(count)
    return [_divided(each, count, in_place) for each in value]


_groups: list[Any] = []  # that are not destroyed: PyTorch keeps the C++ part of a group alone


def _creator() -> Callable[[Any, Any], Any]:
    """What makes a group of gloo for one of hccl, whose own options say nothing to gloo."""
    c10d: Any = distributed.distributed_c10d

    class Gloo(torch._C._distributed_c10d.ProcessGroupGloo):
        """torch_npu's functions in Python call methods of a group, and not the dispatcher's operators."""

        group_name: str
        supports_splitting = False  # as HCCL's: for others PyTorch calls methods of NCCL's groups when a group is made

        def __getattr__(self, name: str) -> Any:
            raise AttributeError(f"{name} is a part of HCCL's groups that this one has not: it is a group of gloo.")

        def get_hccl_comm_name(self, rank: int, init_comm: bool = True) -> str:
            """The name by which operators of torch_npu, such as npu_all_gather_base_mm, know this group."""
            return self.group_name

        def _group(self) -> Any:
            return c10d._resolve_process_group(self.group_name)

        def all_gather_into_tensor_uneven(self, output: Tensor, part: Tensor, sizes: Sequence[int]) -> Any:
            return _gather_parts(output, part, _sizes_of_parts(sizes, output, self.size()), self._group())

        def reduce_scatter_tensor_uneven(
            self, output: Tensor, parts: Tensor, sizes: Sequence[int], options: Any
        ) -> Any:
            sizes = _sizes_of_parts(sizes, parts, self.size())
            return _reduce_parts(output, parts, sizes, options.reduceOp, self._group())

        def alltoallvc(self, output: Tensor, given: Tensor, counts: Sequence[int]) -> Any:
            row, column = counts[self.rank() * self.size() :][: self.size()], counts[self.rank() :: self.size()]
            sizes = [*column], [*row]
            return distributed.all_to_all_single(output.view(-1), given.flatten(), *sizes, self._group(), async_op=True)

        def allgather(self, outputs: list[list[Tensor]], inputs: list[Tensor], *options: Any) -> Any:
            views = boxed.changed((outputs, inputs), lambda tensor: _Lending().enter(_moved(tensor)))
            return super().allgather(*views, *options)  # type: ignore[misc]

    def create(given: Any, options: Any) -> Any:
        group = Gloo(given.store, given.group_rank, given.group_size, timeout=given.timeout)
        group.group_name = given.group_id
        _groups.append(group)
        # Once, and before what was registered earlier, which shuts torch_npu down.
        atexit.unregister(_let_threads_end)
        atexit.register(_let_threads_end)
        return group

    return create


def _destroying() -> None:
    """Has a group that is destroyed end its threads and close its connections, as gloo's own do."""
    module: Any = distributed.distributed_c10d
    destroy = module.destroy_process_group

    def destroy_process_group(group: Any = None) -> None:
        destroy(group)
        kept = {*module._world.pg_names.values()}
        _groups[:] = [each for each in _groups if each.group_name in kept]

    for namespace in (distributed, module):
        setattr(namespace, "destroy_process_group", destroy_process_group)  # noqa: B010


def _let_threads_end() -> None:
    """Before Python ends: has threads of gloo let go of tensors, which takes Python's lock.

    Python ends a thread that asks for its lock later, and C++ then ends the process: "terminate called". While a
    thread is letting go, this waits a second at most. Else it waits a tenth: the program itself may keep a tensor.
    """
    begin = time.monotonic()
    while _lent and time.monotonic() < begin + (1 if _in_threads() else 0.1):
        time.sleep(0.01)


def _in_threads() -> bool:
    """Whether a thread that Python did not start runs Python."""
    dummy = threading._DummyThread  # of a thread that Python did not start
    known = {each.ident for each in threading.enumerate() if type(each) is not dummy}
    return not sys._current_frames().keys() <= known


def _between_devices() -> None:
    """Has torch.nn.DataParallel copy its parameters to the devices one by one."""

    def broadcast(tensor: Tensor, devices: Sequence[int]) -> list[Tensor]:
        return [tensor.to(f"npu:{device}") for device in devices]

    def broadcast_coalesced(tensors: Sequence[Tensor], devices: Sequence[int], _: int) -> tuple[list[Tensor], ...]:
        return tuple([tensor.to(f"npu:{device}") for tensor in tensors] for device in devices)

    def broadcast_out(tensor: Tensor, out: Sequence[Tensor]) -> list[Tensor]:
        return [result.copy_(tensor) for result in out]

    module: Any = torch._C
    module._broadcast, module._broadcast_out = broadcast, broadcast_out
    module._broadcast_coalesced = broadcast_coalesced


def _without_splits() -> None:
    """Has PyTorch make a new group of hccl where it would split one, as DeviceMesh does if a device is bound to it."""
    module: Any = distributed.distributed_c10d
    split = module.split_group

    def split_group(
        parent_pg: Any = None,
        split_ranks: Sequence[Sequence[int]] | None = None,
        timeout: Any = None,
        pg_options: Any = None,
        group_desc: str | None = None,
        **others: Any,
    ) -> Any:
        parent = parent_pg or module._get_default_group()
        if not split_ranks or not _is_of_device(parent):
            return split(parent_pg, split_ranks, timeout, pg_options, group_desc, **others)
        ranks, own = distributed.get_process_group_ranks(parent), parent.rank()
        part = next((sorted(part) for part in split_ranks if own in part), None)
        if part is None:
            return None
        named: dict[str, Any] = {"timeout": timeout, "group_desc": group_desc, "use_local_synchronization": True}
        return distributed.new_group([ranks[each] for each in part], **named)

    for namespace in (distributed, module, distributed.device_mesh):
        setattr(namespace, "split_group", split_group)  # noqa: B010


def _is_of_device(group: Any) -> bool:
    """Whether the group serves the device."""
    return torch.device("npu") in group._device_types


def _futures_of_the_device() -> None:
    """Has the future of a collective give the device's tensors: hooks of DDP keep them. Gloo's gives its own."""
    get_future = distributed.Work.get_future

    def of_device(work: Any) -> Any:
        return get_future(work).then(lambda done: boxed.changed(done.value(), _of_device))

    distributed.Work.get_future = of_device  # type: ignore[method-assign, assignment]


def _of_device(tensor: Tensor) -> Tensor:
    """The device's tensor for one that was lent to gloo. A thread of gloo may ask for it."""
    owner: torch.UntypedStorage | None = getattr(tensor.untyped_storage(), "owner", None)
    if owner is None:
        return tensor
    _enter_device(owner)
    return view_of(owner, tensor)


def _without_groups_of_calls() -> None:
    """Has PyTorch make the calls of a group one after the other: gloo has no groups of calls."""
    coalescing: Any = distributed.distributed_c10d._coalescing_manager

    @contextmanager
    def _coalescing_manager(group: Any = None, device: Any = None, async_ops: bool = False) -> Iterator[Any]:
        on_device = device is not None and torch.device(device).type == "npu"
        with coalescing(group, None if on_device else device, async_ops) as works:
            yield works

    for module in (distributed, distributed.distributed_c10d):
        module._coalescing_manager = _coalescing_manager  # type: ignore[attr-defined]
        module.batch_isend_irecv = _batch_isend_irecv  # type: ignore[attr-defined]


def _batch_isend_irecv(p2p_op_list: Sequence[Any]) -> list[Any]:
    """PyTorch's for gloo, which has no groups of calls: one after the other, all under way when it returns."""
    distributed.distributed_c10d._check_p2p_op_list(p2p_op_list)
    works = []
    for each in p2p_op_list:
        peer = "group_dst" if each.op is distributed.isend else "group_src"
        works.append(each.op(each.tensor, group=each.group, tag=each.tag, **{peer: each.group_peer}))
    return [work for work in works if work is not None]
