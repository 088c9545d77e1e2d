"""Products of matrices with a collective before or after, which an Ascend computes part by part (MC2).

    npu_all_gather_base_mm       output = all_gather(input) @ x2 + bias
    npu_mm_reduce_scatter_base   output = reduce_scatter(input @ x2 + bias)
    npu_mm_all_reduce_base       output = all_reduce(x1 @ x2 + bias + x3)
    npu_all_to_all_matmul        output = turned(all_to_all(x1)) @ x2 + bias
    npu_matmul_all_to_all        output = all_to_all(turned(x1 @ x2 + bias))
    npu_alltoallv_gmm            output = by_expert(all_to_all(gmm_x)) @ gmm_weight, a matrix for each expert
    npu_gmm_alltoallv            output = all_to_all(by_process(gmm_x @ gmm_weight))

``hcom`` is the name of a process group, by its method get_hccl_comm_name. Rows of processes lie one below another. Of
W processes with e experts each, send_counts and recv_counts are [W, e]. Products and sums are in float32, and rounded
once. Documents: torch_npu's pages of these operators; op-plugin's test of npu_matmul_all_to_all.

First the processes tell each other their shapes and counts. What does not fit is refused in all of them: gloo would end
a process, or give it rows that nothing has written.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, distributed

from descend.npu.composed.arithmetic import FLOATS, check_alike, check_float, check_together, wide
from descend.npu.composed.refusal import refuse, refuse_quantised

WITHOUT_EFFECT = {"comm_turn", "comm_mode"}
"""Parameters that say how a processor is to communicate."""


def npu_all_gather_base_mm(
    input: Tensor,
    x2: Tensor,
    hcom: str,
    world_size: int,
    *,
    bias: Tensor | None = None,
    gather_index: int = 0,
    gather_output: bool = True,
    **options: Any,
) -> tuple[Tensor, Tensor]:
    """The product, and the gathered rows, which without gather_output are an empty tensor."""
    operator = "npu_all_gather_base_mm"
    _refuse(operator, options)
    group = process_group(operator, hcom, world_size)
    if gather_index != 0:
        refuse(operator, "gather_index", gather_index, "must be 0")
    _check(operator, {"input": input}, {"x2": x2}, bias)
    _check_everywhere(operator, "input", input, group)
    rows = input.new_empty(world_size * input.shape[0], input.shape[1])
    group._allgather_base(rows, input.contiguous()).wait()
    return _product(rows, x2, bias).to(input.dtype), rows if gather_output else input.new_empty(0)


def npu_mm_reduce_scatter_base(
    input: Tensor,
    x2: Tensor,
    hcom: str,
    world_size: int,
    *,
    reduce_op: str = "sum",
    bias: Tensor | None = None,
    **options: Any,
) -> Tensor:
    """This process's rows of the sum."""
    operator = "npu_mm_reduce_scatter_base"
    _refuse(operator, options, reduce_op)
    group = process_group(operator, hcom, world_size)
    _check(operator, {"input": input}, {"x2": x2}, bias)
    check_divides(operator, "input", input, 0, world_size)
    product = _product(input, x2, bias)
    _check_everywhere(operator, "the product", product, group)
    result = product.new_empty(input.shape[0] // world_size, product.shape[1])
    group._reduce_scatter_base(result, product).wait()
    return result.to(input.dtype)


def npu_mm_all_reduce_base(
    x1: Tensor,
    x2: Tensor,
    hcom: str,
    *,
    reduce_op: str = "sum",
    bias: Tensor | None = None,
    x3: Tensor | None = None,
    antiquant_group_size: int = 0,
    comm_quant_mode: int = 0,
    **options: Any,
) -> Tensor:
    """The sum; x1 has 2 or 3 dimensions."""
    operator = "npu_mm_all_reduce_base"
    _refuse(operator, options, reduce_op)
    group = process_group(operator, hcom)
    _check(operator, {"x1": x1}, {"x2": x2}, bias, dims=(2, 3))
    product = _product(x1, x2, bias)
    if x3 is not None:
        check_alike(operator, "x1", x1, x3=x3)
        if x3.shape != product.shape:
            refuse(operator, "x3", f"of shape {list(x3.shape)}", f"must have that of the result, {list(product.shape)}")
        product += x3
    _check_everywhere(operator, "the product", product, group)
    distributed.all_reduce(product, group=group)
    return product.to(x1.dtype)


def npu_all_to_all_matmul(
    x1: Tensor,
    x2: Tensor,
    hcom: str,
    world_size: int,
    bias: Tensor | None = None,
    all2all_axes: Sequence[int] | None = None,
    all2all_out_flag: bool = True,
    comm_mode: str | None = None,
) -> tuple[Tensor, Tensor]:
    """The product [M / W, N], and its left factor [M / W, W * K], which without all2all_out_flag is an empty tensor.

    x1 is [M, K], x2 [W * K, N].
    """
    operator = "npu_all_to_all_matmul"
    group = process_group(operator, hcom, world_size)
    _check_axes(operator, all2all_axes, [-2, -1])
    check_float(operator, x1=x1)
    if x1.dim() != 2:
        refuse(operator, "x1", f"of shape {list(x1.shape)}", "must have 2 dimensions")
    check_divides(operator, "x1", x1, 0, world_size)
    # Of the factor that x1 becomes: a process that refused it later would leave the others waiting.
    _check(operator, {"x1": x1.new_empty(0, world_size * x1.shape[1])}, {"x2": x2}, bias)
    _check_everywhere(operator, "x1", x1, group)
    parts = torch.empty_like(x1, memory_format=torch.contiguous_format)
    distributed.all_to_all_single(parts, x1.contiguous(), group=group)
    count, width = x1.shape[0] // world_size, x1.shape[1]
    rows = parts.view(world_size, count, width).transpose(0, 1).reshape(count, world_size * width)
    return _product(rows, x2, bias).to(x1.dtype), rows if all2all_out_flag else x1.new_empty(0)


def npu_matmul_all_to_all(
    x1: Tensor,
    x2: Tensor,
    hcom: str,
    world_size: int,
    bias: Tensor | None = None,
    all2all_axes: Sequence[int] | None = None,
    comm_mode: str | None = None,
) -> Tensor:
    """[W * M, N / W]: this process's columns of all processes' products. x1 is [M, K], x2 [K, N]."""
    operator = "npu_matmul_all_to_all"
    group = process_group(operator, hcom, world_size)
    _check_axes(operator, all2all_axes, [-1, -2])
    _check(operator, {"x1": x1}, {"x2": x2}, bias)
    check_divides(operator, "x2", x2, 1, world_size)
    product = _product(x1, x2, bias).to(x1.dtype)
    _check_everywhere(operator, "the product", product, group)
    columns = product.unflatten(1, (world_size, x2.shape[1] // world_size)).transpose(0, 1).contiguous()
    result = torch.empty_like(columns)
    distributed.all_to_all_single(result, columns, group=group)
    return result.flatten(0, 1)


def npu_alltoallv_gmm(
    gmm_x: Tensor,
    gmm_weight: Tensor,
    hcom: str,
    ep_world_size: int,
    send_counts: Sequence[int],
    recv_counts: Sequence[int],
    *,
    permute_out_flag: bool = False,
    **options: Any,
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """The products of the experts of this process, the shared expert's, and the rows that these experts got."""
    operator = "npu_alltoallv_gmm"
    shared, weights, experts = _experts(operator, gmm_x, gmm_weight, ep_world_size, send_counts, recv_counts, options)
    group = process_group(operator, hcom, ep_world_size, "ep_world_size")
    _check_everywhere(operator, "gmm_weight", weights, group)
    _check_counts(operator, send_counts, recv_counts, experts, group)
    got = _exchanged(gmm_x, send_counts, recv_counts, experts, group)
    pieces = got.split([*recv_counts])
    rows = torch.cat([pieces[i] for i in _by_expert(ep_world_size, experts)])
    result = _of_experts(rows, weights, recv_counts)
    return result.to(gmm_x.dtype), shared, rows if permute_out_flag else None


def npu_gmm_alltoallv(
    gmm_x: Tensor,
    gmm_weight: Tensor,
    hcom: str,
    ep_world_size: int,
    send_counts: Sequence[int],
    recv_counts: Sequence[int],
    **options: Any,
) -> tuple[Tensor, Tensor | None]:
    """The products that all experts computed for this process, and the shared expert's."""
    operator = "npu_gmm_alltoallv"
    shared, weights, experts = _experts(operator, gmm_x, gmm_weight, ep_world_size, send_counts, recv_counts, options)
    group = process_group(operator, hcom, ep_world_size, "ep_world_size")
    _check_everywhere(operator, "gmm_weight", weights, group)
    _check_counts(operator, send_counts, recv_counts, experts, group)
    order = _by_expert(ep_world_size, experts)
    pieces = _of_experts(gmm_x, weights, send_counts).to(gmm_x.dtype).split([send_counts[i] for i in order])
    back = sorted(range(len(order)), key=order.__getitem__)
    rows = torch.cat([pieces[i] for i in back])
    return _exchanged(rows, send_counts, recv_counts, experts, group), shared


# --- parts -----------------------------------------------------------------------------------------------------------


def _product(left: Tensor, right: Tensor, bias: Tensor | None) -> Tensor:
    product = wide(left) @ wide(right)
    return product if bias is None else product.add_(bias)


def _by_expert(processes: int, experts: int) -> list[int]:
    """The places in [W, e], expert after expert."""
    return [process * experts + expert for expert in range(experts) for process in range(processes)]


def _of_experts(rows: Tensor, weights: Tensor, counts: Sequence[int]) -> Tensor:
    """Rows that lie expert after expert, times the matrices of these."""
    each = [sum(counts[expert :: len(weights)]) for expert in range(len(weights))]
    parts = zip(rows.split(each), weights, strict=True)
    return torch.cat([wide(part) @ wide(weight) for part, weight in parts])


def _exchanged(rows: Tensor, send: Sequence[int], receive: Sequence[int], experts: int, group: Any) -> Tensor:
    sent, received = (
        [sum(counts[i : i + experts]) for i in range(0, len(counts), experts)] for counts in (send, receive)
    )
    result = rows.new_empty(sum(received), rows.shape[1])
    distributed.all_to_all_single(result, rows.contiguous(), received, sent, group)
    return result


# --- checks ----------------------------------------------------------------------------------------------------------


def process_group(
    operator: str, hcom: str, size: int | None = None, name: str = "world_size", parameter: str = "hcom"
) -> Any:
    """The group of this name, which must have this size. Errors call the size ``name``, the group ``parameter``."""
    c10d: Any = distributed.distributed_c10d
    try:
        group = c10d._resolve_process_group(hcom)
    except (LookupError, RuntimeError, ValueError):
        refuse(operator, parameter, repr(hcom), "must be the name of a process group, by its method get_hccl_comm_name")
    if size is not None and size != group.size():
        refuse(operator, name, size, f"must be the size of the group, {group.size()}")
    return group


def _refuse(operator: str, options: dict[str, Any], reduce_op: str = "sum") -> None:
    """Refuses other sums, and what belongs to quantised products."""
    if reduce_op != "sum":
        refuse(operator, "reduce_op", repr(reduce_op), "must be 'sum'")
    refuse_quantised(operator, **{name: given for name, given in options.items() if name not in WITHOUT_EFFECT})


def _check(
    operator: str, left: dict[str, Tensor], right: dict[str, Tensor], bias: Tensor | None, dims: Sequence[int] = (2,)
) -> None:
    """Refuses factors that do not fit, each by its name."""
    ((left_name, a),), ((name, b),) = left.items(), right.items()
    check_alike(operator, left_name, a, **right, bias=bias)
    if a.dim() not in dims or b.dim() != 2 or a.shape[-1] != b.shape[0] or a.dtype != b.dtype:
        got = f"of shape {list(b.shape)} and {b.dtype}"
        refuse(operator, name, got, f"must fit {left_name}, of shape {list(a.shape)} and {a.dtype}")
    if bias is not None and bias.shape != b.shape[1:]:
        refuse(operator, "bias", f"of shape {list(bias.shape)}", f"must be of shape [{b.shape[1]}]")


def numbers_of_all(numbers: Sequence[int], group: Any) -> list[list[int]]:
    """The numbers of each process, of which all have as many."""
    own = torch.tensor(numbers, dtype=torch.int64)
    every = own.new_empty(group.size() * len(own))
    group._allgather_base(every, own).wait()
    found: list[list[int]] = every.view(group.size(), len(own)).tolist()
    return found


def _check_everywhere(operator: str, name: str, tensor: Tensor, group: Any) -> None:
    """Refuses, in every process, a tensor whose shape or dtype is not the same in all: gloo would end a process."""
    shape = [*tensor.shape, *[-1] * (3 - tensor.dim())]
    every = numbers_of_all([*shape, FLOATS.index(tensor.dtype)], group)
    for process, numbers in enumerate(every):
        if numbers != every[0]:
            got, first = (
                f"of shape {[size for size in each[:3] if size >= 0]} and {FLOATS[each[3]]}"
                for each in (numbers, every[0])
            )
            refuse(operator, name, f"{got} in process {process}", f"must be as in process 0, {first}")


def _check_counts(operator: str, send: Sequence[int], receive: Sequence[int], experts: int, group: Any) -> None:
    """Refuses, in every process, counts by which one is to get other rows than another sends to it."""
    every, size = numbers_of_all([*send, *receive], group), group.size()
    for sender in range(size):
        for receiver in range(size):
            sent = every[sender][receiver * experts : (receiver + 1) * experts]
            begin = (size + sender) * experts
            got = every[receiver][begin : begin + experts]
            if sent != got:
                other = f"must be what process {sender} sends there, {sent}"
                refuse(operator, "recv_counts", f"{got} in process {receiver} for process {sender}", other)


def check_divides(operator: str, name: str, tensor: Tensor, dim: int, size: int) -> None:
    """Refuses a tensor that cannot be cut along a dimension into so many parts."""
    if tensor.shape[dim] % size:
        refuse(operator, name, f"of shape {list(tensor.shape)}", f"must have a multiple of {size} in dimension {dim}")


def _check_axes(operator: str, axes: Sequence[int] | None, only: list[int]) -> None:
    if axes and [*axes] != only:
        refuse(operator, "all2all_axes", list(axes), f"must be None or {only}")


def _experts(
    operator: str,
    x: Tensor,
    weight: Tensor,
    size: int,
    send_counts: Sequence[int],
    recv_counts: Sequence[int],
    options: dict[str, Any],
) -> tuple[Tensor | None, Tensor, int]:
    """The shared expert's product, the matrices of this process's experts, and their number."""
    mm_x, mm_weight = options.pop("mm_x", None), options.pop("mm_weight", None)
    turned, mm_turned = options.pop("trans_gmm_weight", False), options.pop("trans_mm_weight", False)
    _refuse(operator, options)
    check_float(operator, gmm_x=x, gmm_weight=weight, mm_x=mm_x, mm_weight=mm_weight)
    weight = weight.mT if turned and weight.dim() == 3 else weight
    if weight.dim() != 3 or x.dim() != 2 or x.shape[1] != weight.shape[1] or x.dtype != weight.dtype:
        got = f"of shape {list(weight.shape)} and {weight.dtype}"
        refuse(operator, "gmm_weight", got, f"must fit gmm_x, of shape {list(x.shape)} and {x.dtype}")
    experts = weight.shape[0]
    for name, counts in (("send_counts", send_counts), ("recv_counts", recv_counts)):
        if len(counts) != size * experts or any(count < 0 for count in counts):
            refuse(operator, name, list(counts), f"must have {size * experts} numbers, none below 0")
    if sum(send_counts) != x.shape[0]:
        got = f"{sum(send_counts)} in sum"
        refuse(operator, "send_counts", got, f"must have as many as gmm_x has rows, {x.shape[0]}")
    check_together(operator, mm_x=mm_x, mm_weight=mm_weight)
    if mm_x is None:
        return None, weight, experts
    mm_weight = mm_weight.T if mm_turned and mm_weight.dim() == 2 else mm_weight
    _check(operator, {"mm_x": mm_x}, {"mm_weight": mm_weight}, None)
    return _product(mm_x, mm_weight, None).to(mm_x.dtype), weight, experts
