"""What each process of tests/test_npu_distributed.py does: collectives, and trainings beside one process's."""

from __future__ import annotations

import copy
import os
import sys

import pytest
import torch
import torch_npu
from torch import Tensor, distributed, nn
from torch.distributed import ReduceOp
from torch.distributed._functional_collectives import all_reduce
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

from npu_expert_processes import experts_of_other_processes


def collectives(rank: int, size: int) -> None:
    x = torch.full((4,), rank + 1.0, device="npu")
    every, total = list(range(1, size + 1)), size * (size + 1) / 2

    def reduced(op: ReduceOp.RedOpType, dtype: torch.dtype = torch.float32) -> float:
        y = x.to(dtype, copy=True)
        distributed.all_reduce(y, op=op, async_op=True).wait()
        return float(y[0])

    assert reduced(ReduceOp.AVG) == total / size
    assert reduced(ReduceOp.MAX) == size
    y = x.clone()
    (result,) = distributed.all_reduce(y, async_op=True).get_future().then(lambda done: done.value()).wait()
    assert result.device == y.device
    assert result.data_ptr() == y.data_ptr()
    assert result[0].item() == total
    assert all(reduced(ReduceOp.SUM, d) == total for d in (torch.float16, torch.bfloat16, torch.int64, torch.float64))
    flags = torch.ones(4, dtype=torch.bool, device="npu")
    distributed.all_reduce(flags)
    assert flags.view(torch.uint8).tolist() == [1] * 4
    unknown_to_gloo = (torch.int16, torch.uint16, torch.uint32)
    assert all(reduced(ReduceOp.MAX, d) == size and reduced(ReduceOp.SUM, d) == total for d in unknown_to_gloo)
    few = torch.empty(4, dtype=torch.int16, device="npu")
    distributed.reduce_scatter(few, [x.to(torch.int16) * -i for i in range(size)])
    assert few.tolist() == [-rank * total] * 4
    for dtype in (*unknown_to_gloo, torch.uint64, torch.float8_e4m3fn, torch.bool):
        given = (x % 2).to(dtype)
        parts = [torch.empty_like(given) for _ in every]
        distributed.all_gather(parts, given)
        assert [t[0].item() for t in parts] == [i % 2 for i in every]
        whole = torch.empty(4 * size, dtype=dtype, device="npu")
        distributed.all_gather_into_tensor(whole, given)
        assert whole[::4].tolist() == [i % 2 for i in every]
        distributed.broadcast(given, 1)
        assert given[0].item() == 0
    parts = [torch.empty_like(x) for _ in every]
    distributed.all_gather(parts, x)
    assert [t[0].item() for t in parts] == every
    whole = torch.empty(4 * size, device="npu")
    distributed.all_gather_into_tensor(whole, x)
    assert whole[::4].tolist() == every
    row = torch.empty(1, 4 * size, device="npu")
    distributed.all_gather_into_tensor(row, x.view(2, 2))
    assert torch.equal(row[0], whole)
    part = torch.empty(4, device="npu")
    distributed.reduce_scatter_tensor(part, torch.arange(4.0 * size, device="npu"), op=ReduceOp.AVG)
    assert part[0].item() == 4 * rank
    distributed.reduce_scatter(part, [x * (i + 1) for i in range(size)])
    assert part[0].item() == total * (rank + 1)
    y = x.clone()
    distributed.broadcast(y, 1)
    assert y[0].item() == 2
    parts = [torch.empty_like(x) for _ in every] if rank == 0 else None
    distributed.gather(x, parts, 0)
    assert parts is None or [t[0].item() for t in parts] == every
    distributed.scatter(part, [x * i for i in range(size)] if rank == 0 else None, 0)
    assert part[0].item() == rank
    mixed = torch.empty(size, device="npu")
    distributed.all_to_all_single(mixed, torch.arange(size, device="npu") + 10.0 * rank)
    assert mixed.tolist() == [10 * i + rank for i in range(size)]
    pair = [
        distributed.P2POp(distributed.isend, x, (rank + 1) % size),
        distributed.P2POp(distributed.irecv, y, (rank - 1) % size),
    ]
    for work in distributed.batch_isend_irecv(pair):
        work.wait()
    assert y[0].item() == (rank - 1) % size + 1
    parts_of_unequal_sizes(rank, size)
    calls_in_a_group(rank, size)
    distributed.barrier()
    objects = [None] * size
    distributed.all_gather_object(objects, {"rank": rank})
    assert objects[-1] == {"rank": size - 1}
    here = torch.ones(2)
    distributed.all_reduce(here)  # a tensor of the CPU in the same group
    assert here[0].item() == size


def parts_of_unequal_sizes(rank: int, size: int) -> None:
    """Process i has i + 1 rows."""
    sizes, total = list(range(1, size + 1)), size * (size + 1) / 2
    mine = torch.full((rank + 1, 2), float(rank), device="npu")
    expected = [i for i in range(size) for _ in range(i + 1)]
    for dtype in (torch.float32, torch.float16, torch.int16, torch.bool):
        parts = [torch.empty(n, 2, dtype=dtype, device="npu") for n in sizes]
        distributed.all_gather(parts, mine.to(dtype))
        assert [t[0, 1].item() for t in parts] == [torch.tensor(i).to(dtype).item() for i in range(size)]
        whole = torch.empty(len(expected), 2, dtype=dtype, device="npu")
        torch_npu.distributed.all_gather_into_tensor_uneven(whole, mine.to(dtype), output_split_sizes=sizes)
        assert whole[:, 0].tolist() == torch.tensor(expected).to(dtype).tolist()
    given = whole.float()
    for op, sum_or_mean in ((ReduceOp.SUM, total), (ReduceOp.AVG, total / size)):
        result = torch.empty_like(mine)
        each = given * 0 + rank + 1
        torch_npu.distributed.reduce_scatter_tensor_uneven(result, each, input_split_sizes=sizes, op=op)
        assert torch.equal(result, torch.full_like(mine, sum_or_mean))
        assert each.unique().item() == rank + 1
        result = torch.empty_like(mine)
        distributed.reduce_scatter(result, list(each.split(sizes)), op=op)
        assert torch.equal(result, torch.full_like(mine, sum_or_mean))
    counts = [[i + 1] * size for i in range(size)]
    mixed = torch.empty(int(total), device="npu")
    given = torch.full((size * (rank + 1),), float(rank), device="npu")
    torch_npu.distributed.all_to_all_vc(mixed, given, counts)
    assert mixed.tolist() == expected
    for wrong, sentence in (([1], "Number of tensor splits"), ([1] * size, "Split sizes doesn't match")):
        with pytest.raises(RuntimeError, match=sentence):
            torch_npu.distributed.all_gather_into_tensor_uneven(whole, mine, output_split_sizes=wrong)


def calls_in_a_group(rank: int, size: int) -> None:
    ones = torch.ones(size, device="npu")
    for device in (None, torch.device("npu", rank)):
        x, y = ones.clone(), ones.clone()
        with distributed._coalescing_manager(device=device, async_ops=True) as works:
            distributed.all_reduce(x)
            distributed.all_reduce(y)
        works.wait()
        part = torch.empty(1, device="npu")
        with distributed._coalescing_manager(device=device):
            distributed.reduce_scatter_tensor(part, ones * rank)
        with distributed._coalescing_manager(device=device):
            distributed.all_gather_into_tensor(y, part)
        assert x.tolist() == [size] * size
        assert y.tolist() == [size * (size - 1) / 2] * size


def products_with_collectives(rank: int, size: int) -> None:
    """Each operator beside the same product of all processes' matrices, which follow from the processes' seeds."""
    group = distributed.group.WORLD
    assert group is not None
    name = group._get_backend(torch.device("npu")).get_hccl_comm_name(rank)
    assert 0 < len(name) < 128

    def every(*shape: int) -> list[Tensor]:
        return [torch.randn(shape, generator=torch.Generator().manual_seed(i)).bfloat16() for i in range(size)]

    def near(got: Tensor, wanted: Tensor) -> None:
        assert got.dtype is torch.bfloat16
        torch.testing.assert_close(got.cpu().double(), wanted, rtol=8e-3, atol=8e-3 * float(wanted.abs().max()))

    x, w, bias = every(2 * size, 6), every(6, 3 * size)[0], every(3 * size)[0]
    mine, right, offset = x[rank].npu(), w.npu(), bias.npu()
    whole = [each.double() @ w.double() + bias.double() for each in x]
    out, rows = torch_npu.npu_all_gather_base_mm(mine, right, name, size, bias=offset)
    near(out, torch.cat(whole))
    assert torch.equal(rows.cpu(), torch.cat(x))
    assert torch_npu.npu_all_gather_base_mm(mine, right, name, size, gather_output=False)[1].numel() == 0
    total = torch.stack(whole).sum(0)
    near(torch_npu.npu_mm_reduce_scatter_base(mine, right, name, size, bias=offset), total.chunk(size)[rank])
    near(torch_npu.npu_mm_all_reduce_base(mine, right, name, bias=offset), total)
    added = torch.ones(2, size, 3 * size).bfloat16().npu()
    out = torch_npu.npu_mm_all_reduce_base(mine.view(2, size, 6), right, name, x3=added)
    near(out.flatten(0, 1), total - size * bias.double() + size)
    near(
        torch_npu.npu_matmul_all_to_all(mine, right, name, size, offset),
        torch.cat([each.chunk(size, 1)[rank] for each in whole]),
    )
    tall = every(6 * size, 3)[0]
    turned = torch.cat([each.chunk(size)[rank] for each in x], 1)
    out, left = torch_npu.npu_all_to_all_matmul(mine, tall.npu(), name, size, all2all_axes=[-2, -1])
    near(out, turned.double() @ tall.double())
    assert torch.equal(left.cpu(), turned)

    # Process i sends (i + j + k) % 3 rows to expert k of process j.
    experts = 2
    counts = [[(i + j + k) % 3 for j in range(size) for k in range(experts)] for i in range(size)]
    tokens = [
        torch.randn(sum(row), 6, generator=torch.Generator().manual_seed(i)).bfloat16() for i, row in enumerate(counts)
    ]
    weights, shared = [each.bfloat16() for each in every(experts, 6, 4)], every(6, 3)
    send, receive = counts[rank], [counts[i][rank * experts + k] for i in range(size) for k in range(experts)]
    pieces = [each.split(row) for each, row in zip(tokens, counts, strict=True)]
    got = [torch.cat([pieces[i][rank * experts + k] for i in range(size)]) for k in range(experts)]
    given = (tokens[rank].npu(), weights[rank].mT.contiguous().npu(), name, size, send, receive)
    more = {"mm_x": mine, "mm_weight": shared[0].npu(), "trans_gmm_weight": True, "permute_out_flag": True}
    out, product, rows = torch_npu.npu_alltoallv_gmm(*given, **more)
    assert torch.equal(rows.cpu(), torch.cat(got))
    near(out, torch.cat([part.double() @ weight.double() for part, weight in zip(got, weights[rank], strict=True)]))
    near(product, x[rank].double() @ shared[0].double())
    back, none = torch_npu.npu_gmm_alltoallv(rows, weights[rank].npu(), name, size, receive, send)
    assert none is None
    experts_of_all = [weight for each in weights for weight in each]
    near(back, torch.cat([part.double() @ w.double() for part, w in zip(pieces[rank], experts_of_all, strict=True)]))
    for wrong in ("", "no group"):
        with pytest.raises(RuntimeError, match=r"hcom is .*, but must be the name of a process group"):
            torch_npu.npu_mm_all_reduce_base(mine, right, wrong)
    with pytest.raises(RuntimeError, match="world_size is 9, but must be the size of the group"):
        torch_npu.npu_all_gather_base_mm(mine, right, name, 9)
    with pytest.raises(RuntimeError, match="ep_world_size is 9, but must be the size of the group"):
        torch_npu.npu_gmm_alltoallv(mine[:0], weights[0].npu(), name, 9, [0] * 18, [0] * 18)
    # What differs from process to process is an error in all of them: gloo would end one, or leave it waiting.
    longer = mine if rank else torch.cat((mine, mine))
    other = "in process 1, but must be as in process 0"
    with pytest.raises(RuntimeError, match=rf"input is of shape \[{2 * size}, 6\] .* {other}"):
        torch_npu.npu_all_gather_base_mm(longer, right, name, size)
    for call in (
        torch_npu.npu_mm_reduce_scatter_base,
        torch_npu.npu_all_to_all_matmul,
        torch_npu.npu_matmul_all_to_all,
    ):
        factor = tall.npu() if call is torch_npu.npu_all_to_all_matmul else right
        with pytest.raises(RuntimeError, match=other):
            call(longer, factor, name, size)
    with pytest.raises(RuntimeError, match=other):
        torch_npu.npu_mm_all_reduce_base(longer, right, name)
    own = 1 if rank else experts
    none = [0] * (size * own)
    with pytest.raises(RuntimeError, match=f"gmm_weight is of shape .* {other}"):
        torch_npu.npu_alltoallv_gmm(mine[:0], weights[0][:own].npu(), name, size, none, none)
    for changed in (lambda number: number + 1, lambda number: 0):
        wrong = [*map(changed, receive)] if rank == 1 else receive
        with pytest.raises(RuntimeError, match=r"in process 1 for process .*, but must be what process .* sends there"):
            torch_npu.npu_alltoallv_gmm(*given[:5], wrong, trans_gmm_weight=True)
    with pytest.raises(RuntimeError, match="what is quantised is not served"):
        torch_npu.npu_mm_all_reduce_base(mine, right, name, dequant_scale=offset)


def quantised_products_with_collectives(rank: int, size: int) -> None:
    """Each beside npu_quant_matmul of all processes' rows: MX, float8 and int8, one scale and one for each row."""
    group = distributed.group.WORLD
    assert group is not None
    name = group._get_backend(torch.device("npu")).get_hccl_comm_name(rank)
    x = [torch.randn((4 * size, 96), generator=torch.Generator().manual_seed(i)).bfloat16() for i in range(size)]
    w = torch.randn((10, 96), generator=torch.Generator().manual_seed(99)).bfloat16().npu()
    bias = torch.linspace(-1, 1, 10).npu()
    mx, dynamic = torch_npu.npu_dynamic_mx_quant, torch_npu.npu_dynamic_quant
    e8m0, e4m3 = torch_npu.float8_e8m0fnu, torch.float8_e4m3fn
    of_mx = {"x1_scale_dtype": e8m0, "x2_scale_dtype": e8m0, "group_sizes": [1, 1, 32]}
    for quantised, options in (
        (lambda each: mx(each, dst_type=e4m3), of_mx),
        (
            lambda each: mx(each, dst_type=torch_npu.float4_e2m1fn_x2),
            {**of_mx, "x1_dtype": torch_npu.float4_e2m1fn_x2, "x2_dtype": torch_npu.float4_e2m1fn_x2},
        ),
        (lambda each: dynamic(each, dst_type=e4m3), {}),
        (lambda each: dynamic(each), {}),
        (lambda each: torch_npu.npu_dynamic_block_quant(each, dst_type=e4m3, row_block_size=rows_of(each, w)), BLOCKS),
    ):
        parts = [quantised(each.npu()) for each in x]
        right, scale = quantised(w)
        right, scale = right.t(), scale.transpose(0, 1) if scale.dim() > 1 else scale
        named = {"scale_dtype" if key == "x2_scale_dtype" else key: value for key, value in options.items()}
        if "x1_scale_dtype" in named:
            named["pertoken_scale_dtype"] = named.pop("x1_scale_dtype")
        wanted = [
            torch_npu.npu_quant_matmul(
                codes, right, scale, pertoken_scale=own, bias=bias, output_dtype=torch.float32, **named
            ).cpu()
            for codes, own in parts
        ]  # fmt: skip
        codes, own = parts[rank]
        call = (codes, right, name, size)
        more = {"x1_scale": own, "x2_scale": scale, "bias": bias, "y_dtype": torch.float32, **options}
        y, rows, nothing = torch_npu.npu_all_gather_quant_mm(*call, **more)
        torch.testing.assert_close(y.cpu(), torch.cat(wanted), rtol=1e-5, atol=1e-4)
        assert rows.dtype is codes.dtype
        assert torch.equal(rows.cpu().view(torch.uint8), torch.cat([part[0].cpu().view(torch.uint8) for part in parts]))
        assert nothing.numel() == 0
        assert torch_npu.npu_all_gather_quant_mm(*call, **more, gather_output=False)[1].numel() == 0
        y, nothing = torch_npu.npu_quant_mm_reduce_scatter(*call, **more)
        torch.testing.assert_close(y.cpu(), torch.stack(wanted).sum(0).chunk(size)[rank], rtol=1e-5, atol=1e-4)
        assert nothing.numel() == 0
    one = torch.ones(1).npu()
    codes = dynamic(x[rank].npu())[0]
    short = codes if rank else codes[:2]
    for function in (torch_npu.npu_all_gather_quant_mm, torch_npu.npu_quant_mm_reduce_scatter):
        right = dynamic(w)[0].t()
        given = {"x1_scale": one, "x2_scale": one, "y_dtype": torch.float32}
        with pytest.raises(RuntimeError, match="of other shapes in process 1"):
            function(short, right, name, size, **given)
        with pytest.raises(RuntimeError, match="x1_scale is None, but must be given"):
            function(codes, right, name, size, x2_scale=one, y_dtype=torch.float32)
        with pytest.raises(RuntimeError, match="quant_scale is given"):
            function(codes, right, name, size, **given, quant_scale=one)
        with pytest.raises(RuntimeError, match="world_size is 9"):
            function(codes, right, name, 9, **given)
    with pytest.raises(RuntimeError, match="gather_index is 1"):
        torch_npu.npu_all_gather_quant_mm(codes, right, name, size, gather_index=1)
    with pytest.raises(RuntimeError, match="reduce_op is 'max'"):
        torch_npu.npu_quant_mm_reduce_scatter(codes, right, name, size, reduce_op="max")


BLOCKS = {"group_sizes": [1, 128, 128]}


def rows_of(each: Tensor, weight: Tensor) -> int:
    """The rows of a block: one of the left factor, 128 of the weight."""
    return 128 if each is weight else 1


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 4)).npu()


def normalizing_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Linear(16, 4)).npu()


def losses(module: nn.Module, rank: int = 0, size: int = 1) -> list[float]:
    """The losses of a few steps, each on this process's share of the same batch."""
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-2)
    random, found = torch.Generator().manual_seed(1), []
    for _ in range(5):
        x, y = (torch.randn(8, n, generator=random).chunk(size)[rank].npu() for n in (8, 4))
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(module(x), y)
        loss.backward()
        optimizer.step()
        loss = loss.detach()
        if size > 1:
            distributed.all_reduce(loss, op=ReduceOp.AVG)
        found.append(loss.item())
    return found


def trainings(rank: int, size: int) -> None:
    one = torch.tensor(losses(model()))
    mesh = init_device_mesh("npu", (size,))
    sharded = model()
    for layer in (*(each for each in sharded if isinstance(each, nn.Linear)), sharded):
        fully_shard(layer, mesh=mesh)
    ways = {
        "DDP": DistributedDataParallel(model()),
        "DDP, compiled": torch.compile(DistributedDataParallel(model())),
        "DDP of a compiled module": DistributedDataParallel(torch.compile(model())),
        "FSDP": FullyShardedDataParallel(model(), device_id=torch.device("npu", rank), use_orig_params=True),
        "fully_shard": sharded,
    }
    for way, module in ways.items():
        many = torch.tensor(losses(module, rank, size))
        assert torch.allclose(one, many, rtol=1e-5), (way, one, many)
    one = torch.tensor(losses(normalizing_model()))
    module = nn.SyncBatchNorm.convert_sync_batchnorm(normalizing_model())
    many = torch.tensor(losses(DistributedDataParallel(module), rank, size))
    assert torch.allclose(one, many, rtol=1e-4), ("SyncBatchNorm", one, many)
    x = torch.arange(16.0).view(4, 4)
    d = distribute_tensor(x.npu(), mesh, [Shard(0)])
    assert torch.equal((d @ d.T).full_tensor().cpu(), x @ x.T)
    assert d.redistribute(mesh, [Shard(1)]).to_local().shape == (4, 4 // size)
    whole, split, x = model(), model(), torch.ones(2, 8, device="npu")
    plan = {name: ColwiseParallel(output_layouts=Replicate()) for name in ("0", "3")}
    result: Tensor = parallelize_module(split, mesh, plan)(x)
    assert torch.allclose(result, whole(x), atol=1e-6)


def graphs(rank: int, size: int) -> None:
    """Captured collectives: by themselves, functional, and within a step of DDP."""
    x, y = torch.ones(2, device="npu"), torch.zeros(2, device="npu")
    graph = torch.npu.NPUGraph()
    with torch.npu.graph(graph):
        y.copy_(x)
        distributed.all_reduce(y, async_op=True).wait()
        z = all_reduce(y, "sum", distributed.group.WORLD) + 1
    assert y.tolist() == [0, 0]
    x.fill_(rank + 1)
    graph.replay()
    total = size * (size + 1) / 2
    assert y.tolist() == [total] * 2
    assert z.tolist() == [total * size + 1] * 2

    side = torch.npu.Stream()
    with torch.npu.stream(side):
        torch.manual_seed(0)
        module = DistributedDataParallel(nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4)).npu())
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    random = torch.Generator().manual_seed(rank)
    batches = [torch.randn(4, 8, generator=random).npu() for _ in range(3)]
    given = batches[0].clone()

    def step(module: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor) -> Tensor:
        optimizer.zero_grad(set_to_none=True)
        loss = module(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    with torch.npu.stream(side):
        for _ in range(11):  # DDP arranges its buckets in the first steps
            step(module, optimizer, given)
    torch.npu.current_stream().wait_stream(side)
    other = DistributedDataParallel(copy.deepcopy(module.module))
    by = torch.optim.SGD(other.parameters(), lr=0.1)
    graph = torch.npu.NPUGraph()
    with torch.npu.graph(graph):
        loss = step(module, optimizer, given)
    for each in batches:
        given.copy_(each)
        graph.replay()
        assert loss.item() == step(other, by, each).item()


def groups_of_a_bound_device(rank: int, size: int) -> None:
    """Groups where init_process_group knew the device, for which PyTorch would split the group of all."""
    torch.npu.set_device(rank)
    distributed.init_process_group("hccl", device_id=torch.device("npu", rank))
    for ranks in ([0], [*range(size)]):
        group = distributed.new_group(ranks)
        if rank in ranks:
            assert summed(rank, group) == sum(ranks)
    part = distributed.split_group(split_ranks=[[0], [*range(1, size)]])
    assert summed(rank, part) == (sum(range(size)) if rank else 0)
    assert distributed.get_backend(part) == "hccl"
    assert (distributed.split_group(split_ranks=[[size - 1]]) is None) == (rank < size - 1)
    mesh = init_device_mesh("npu", (size, 1), mesh_dim_names=("row", "column"))
    assert summed(rank, mesh["row"].get_group()) == sum(range(size))
    assert summed(rank, mesh["column"].get_group()) == rank


def summed(rank: int, group: distributed.ProcessGroup | None) -> float:
    x = torch.tensor([float(rank)]).npu()
    distributed.all_reduce(x, group=group)
    return x.item()


def main() -> None:
    torch.set_num_threads(1)
    if sys.argv[1:] == ["bound"]:
        rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        groups_of_a_bound_device(rank, size)
        distributed.destroy_process_group()
        return
    distributed.init_process_group("hccl")
    rank, size = distributed.get_rank(), distributed.get_world_size()
    assert distributed.get_backend() == "hccl"
    assert torch.npu.device_count() == size  # one for each process
    torch.npu.set_device(rank)
    collectives(rank, size)
    products_with_collectives(rank, size)
    quantised_products_with_collectives(rank, size)
    experts_of_other_processes(rank, size)
    trainings(rank, size)
    graphs(rank, size)
    distributed.destroy_process_group()
    print(f"process {rank} of {size}: all as in one", flush=True)


if __name__ == "__main__":
    main()
