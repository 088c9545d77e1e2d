"""``init_process_group("hccl")``: processes of one machine, by PyTorch's gloo over the device's memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, distributed


def install(native: ModuleType) -> None:
    """Has backend hccl make groups of gloo, which then serve tensors of the device and, beside them, of the CPU."""
    if not distributed.is_available() or not distributed.is_gloo_available():
        return
    native.register_collectives()
    create = _creator(native.on_cpu)
    backend: Any = distributed.Backend
    backend._plugins["HCCL"] = backend._BackendPlugin(create, True)
    backend.backend_capability["hccl"] = ["npu", "cpu"]
    for module in (distributed, distributed.distributed_c10d):
        module.batch_isend_irecv = _batch_isend_irecv  # type: ignore[attr-defined]


def _creator(on_cpu: Callable[[Tensor], Tensor]) -> Callable[[Any, Any], Any]:
    """What makes a group of gloo for one of hccl, whose own options say nothing to gloo."""
    groups: list[Any] = []  # PyTorch keeps the C++ part of a group alone

    class Gloo(torch._C._distributed_c10d.ProcessGroupGloo):
        """torch_npu's gather, in Python, calls this method of a group and not the dispatcher's operator."""

        def allgather(self, outputs: list[list[Tensor]], inputs: list[Tensor], *options: Any) -> Any:
            views = [[on_cpu(tensor) for tensor in each] for each in outputs]
            return super().allgather(views, [on_cpu(tensor) for tensor in inputs], *options)  # type: ignore[misc]

    def create(given: Any, options: Any) -> Any:
        groups.append(Gloo(given.store, given.group_rank, given.group_size, timeout=given.timeout))
        return groups[-1]

    return create


def _batch_isend_irecv(p2p_op_list: Sequence[Any]) -> list[Any]:
    """PyTorch's for gloo, which has no groups of calls: one after the other, all under way when it returns."""
    distributed.distributed_c10d._check_p2p_op_list(p2p_op_list)
    works = []
    for each in p2p_op_list:
        peer = "group_dst" if each.op is distributed.isend else "group_src"
        works.append(each.op(each.tensor, group=each.group, tag=each.tag, **{peer: each.group_peer}))
    return [work for work in works if work is not None]
