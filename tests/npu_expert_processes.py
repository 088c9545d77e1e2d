"""npu_moe_distribute_dispatch and combine in each process of tests/test_npu_distributed.py, against loops."""

from __future__ import annotations

import pytest
import torch
import torch_npu
from torch import Tensor, distributed

from descend.npu.composed.experts import distribute


def experts_of_other_processes(rank: int, size: int) -> None:
    """Tokens go to experts, each of which multiplies by its own number, and back. Processes have 1, 2, 3 ... tokens."""
    group = distributed.group.WORLD
    assert group is not None
    name = group._get_backend(torch.device("npu")).get_hccl_comm_name(rank)
    assert size >= 2
    for shared in (0, 1, size - 1):
        for quantised in (False, True):
            for masked in (False, True):
                tokens_to_experts(rank, size, name, shared, quantised, masked)
    packed_tokens(rank, size, name)
    results_of_special_experts(rank, size, name)
    refused_calls_of_experts(rank, size, name)


COLUMNS, CHOICES = 5, 3


def tokens_of(process: int, experts: int, count: int | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """A process's tokens, the experts that they chose, and weights."""
    generator = torch.Generator().manual_seed(process)
    count = process + 1 if count is None else count
    x = torch.randn(count, COLUMNS, generator=generator).bfloat16()
    chosen = torch.stack([torch.randperm(experts, generator=generator)[:CHOICES] for _ in range(count)]).int()
    return x, chosen, torch.rand(count, CHOICES, generator=generator)


def tokens_to_experts(rank: int, size: int, name: str, shared: int, quantised: bool, masked: bool) -> None:
    each = 4
    experts, whole = each * (size - shared), size * size
    every = [tokens_of(i, experts) for i in range(size)]
    masks = [(torch.arange(i + 1) < i) if masked else torch.ones(i + 1, dtype=torch.bool) for i in range(size)]
    for (_, ids, _), mask in zip(every, masks, strict=True):
        ids[~mask] = 0  # tokens that are not sent may name an expert twice
    by_expert = torch.rand((shared > 0) + experts, COLUMNS, generator=torch.Generator().manual_seed(7)) + 0.5
    x, chosen, weights = every[rank]
    # The rows of this process: expert after expert, process after process, token after token.
    rows, counts, ends = [], [], []
    own = ["shared"] if rank < shared else [(rank - shared) * each + e for e in range(each)]
    for expert in own:
        counts.append(0)
        for i, (of_process, ids, _) in enumerate(every):
            for token in range(i + 1):
                goes = i % shared == rank if expert == "shared" else expert in ids[token].tolist()
                if goes and masks[i][token]:
                    rows.append(
                        of_process[token].double() * (by_expert_row(by_expert, expert, shared) if quantised else 1)
                    )
                    counts[-1] += 1
            ends.append(len(rows))
    most = size * -(-size // shared) if rank < shared else whole * min(each, CHOICES)
    common = {
        "group_ep": name, "ep_world_size": size, "ep_rank_id": rank, "moe_expert_num": experts,
        "shared_expert_rank_num": shared, "global_bs": whole, "x_active_mask": masks[rank].npu(),
    }  # fmt: skip
    options = {"quant_mode": 2, "scales": by_expert.npu()} if quantised else {}
    for version in ("", "_v2"):
        dispatch = getattr(torch_npu, f"npu_moe_distribute_dispatch{version}")
        got, scales, assist, numbers, ep_counts, tp_counts, none = dispatch(
            x.npu(), chosen.npu(), **common, **options, expert_token_nums_type=1
        )
        assert got.shape == (most, COLUMNS)
        assert got.dtype == (torch.int8 if quantised else torch.bfloat16)
        assert scales.shape == (most,)
        assert numbers.tolist() == counts
        assert numbers.dtype == torch.int64
        assert ep_counts.tolist() == ends
        assert (tp_counts.shape, none.shape) == ((0,), (0,))
        assert assist.shape == ((rank + 1) * CHOICES if not version else max((rank + 1) * CHOICES, 128 * most),)
        received = got[: len(rows)].cpu().double()
        if quantised:
            received = received * scales[: len(rows)].cpu().double().unsqueeze(1)
        wanted = torch.stack(rows) if rows else torch.empty(0, COLUMNS, dtype=torch.float64)
        if wanted.numel():
            assert (received - wanted).abs().max() <= (wanted.abs().max() / 250 if quantised else 0)
        assert not got[len(rows) :].any()
        assert dispatch(x.npu(), chosen.npu(), **common, **options, expert_token_nums_type=0)[3].tolist() == [
            sum(counts[: i + 1]) for i in range(len(counts))
        ]
        more = {"expert_scales": weights.npu()}
        kept = dispatch(x.npu(), chosen.npu(), **common, **options, **more)[6]
        assert kept.shape == (most,)
        of_tokens = [
            every[i][2][token][every[i][1][token].tolist().index(expert)].item() if expert != "shared" else 1.0
            for expert in own for i in range(size) for token in range(i + 1)
            if masks[i][token] and (i % shared == rank if expert == "shared" else expert in every[i][1][token].tolist())
        ]  # fmt: skip
        assert kept[: len(rows)].tolist() == of_tokens
        if quantised:
            continue
        # Expert e multiplies by e + 1, the shared one by -1.
        factors = torch.tensor([-1.0 if e == "shared" else e + 1.0 for e in own]).repeat_interleave(
            torch.tensor(counts)
        )
        results = got.clone()
        results[: len(rows)] *= factors.npu().unsqueeze(1).bfloat16()
        extra = torch.ones_like(x)
        combined = sum_of_experts(x, chosen, weights, shared) + extra.double()
        combined[~masks[rank]] = 0
        combine = getattr(torch_npu, f"npu_moe_distribute_combine{version}")
        total = combine(results, chosen.npu(), assist, ep_counts, weights.npu(), shared_expert_x=extra.npu(), **common)
        torch.testing.assert_close(
            total.cpu().double(), combined, rtol=2e-2, atol=2e-2 * float(combined.abs().max()) + 1e-9
        )
    if quantised or shared:
        return
    residual, gamma = torch.randn(rank + 1, 1, COLUMNS).bfloat16(), torch.randn(COLUMNS).bfloat16()
    y, rstd, total = torch_npu.npu_moe_distribute_combine_add_rms_norm(
        results, chosen.npu(), assist, ep_counts, weights.npu(), residual.npu(), gamma.npu(), norm_eps=0.25,
        shared_expert_x=extra.npu(), **common,
    )  # fmt: skip
    wanted = combined.unsqueeze(1) + residual.double()
    by = (wanted.square().mean(-1, keepdim=True) + 0.25).rsqrt()
    for one, other in ((total, wanted), (rstd, by), (y, wanted * by * gamma.double())):
        assert one.dtype == (torch.float32 if one is rstd else torch.bfloat16)
        torch.testing.assert_close(one.cpu().double(), other, rtol=2e-2, atol=2e-2 * float(other.abs().max()))


def by_expert_row(by_expert: Tensor, expert: int | str, shared: int) -> Tensor:
    return by_expert[0 if expert == "shared" else int(expert) + (shared > 0)].double()


def sum_of_experts(x: Tensor, chosen: Tensor, weights: Tensor, shared: int) -> Tensor:
    total = -x.double() if shared else torch.zeros_like(x, dtype=torch.float64)
    for token in range(len(x)):
        for expert, weight in zip(chosen[token].tolist(), weights[token].tolist(), strict=True):
            total[token] += weight * (expert + 1) * x[token].double()
    return total


def packed_tokens(rank: int, size: int, name: str) -> None:
    """int4 in int32, with a scale for each token; the choices of a token may be masked one by one."""
    experts = 2 * size
    every = [tokens_of(i, experts, 2) for i in range(size)]
    x = [torch.arange(2 * COLUMNS, dtype=torch.int32).view(2, COLUMNS) + 100 * i for i in range(size)]
    masks = [torch.tensor([[True, False, True], [False, True, False]]) for _ in range(size)]
    got, scales, _, numbers, *_ = torch_npu.npu_moe_distribute_dispatch_v2(
        x[rank].npu(), every[rank][1].npu(), name, size, rank, 2 * size, scales=(torch.arange(2) + 10.0 * rank).npu(),
        x_active_mask=masks[rank].npu(),
    )  # fmt: skip
    wanted = [
        (x[i][token].tolist(), token + 10.0 * i)
        for expert in (2 * rank, 2 * rank + 1) for i in range(size) for token in range(2) for column in range(CHOICES)
        if masks[i][token, column] and every[i][1][token, column] == expert
    ]  # fmt: skip
    count = int(numbers.sum())
    assert got.dtype == torch.int32
    assert list(zip(got[:count].tolist(), scales[:count].tolist(), strict=True)) == wanted


def results_of_special_experts(rank: int, size: int, name: str) -> None:
    """Experts from ``size`` on: one gives 0, two the token, and two a sum with a constant."""
    x = torch.randn(6, COLUMNS, generator=torch.Generator().manual_seed(rank)).bfloat16()
    chosen = torch.tensor([[i % size, size + i % 5] for i in range(6)]).int()
    weights = torch.rand(6, 2)
    alpha_1, alpha_2, v = (torch.randn(2, COLUMNS).bfloat16() for _ in range(3))
    common = {
        "group_ep": name, "ep_world_size": size, "ep_rank_id": rank, "moe_expert_num": size, "zero_expert_num": 1,
        "copy_expert_num": 2, "const_expert_num": 2,
    }  # fmt: skip
    got, _, assist, numbers, counts, *_ = torch_npu.npu_moe_distribute_dispatch_v2(x.npu(), chosen.npu(), **common)
    assert int(numbers.sum()) == len(range(rank, 6, size)) * size
    tensors = {"const_expert_alpha_1": alpha_1, "const_expert_alpha_2": alpha_2, "const_expert_v": v, "ori_x": x}
    given = {key: tensor.npu() for key, tensor in tensors.items()}
    total = torch_npu.npu_moe_distribute_combine_v2(got, chosen.npu(), assist, counts, weights.npu(), **common, **given)
    wide = x.double()
    wanted = wide * weights[:, :1].double()
    for token in range(6):
        special = token % 5
        if special in (1, 2):
            wanted[token] += weights[token, 1].double() * wide[token]
        elif special > 2:
            of = special - 3
            result = alpha_1[of].double() * wide[token] + alpha_2[of].double() * v[of].double()
            wanted[token] += weights[token, 1].double() * result
    torch.testing.assert_close(total.cpu().double(), wanted, rtol=8e-3, atol=8e-3 * float(wanted.abs().max()))
    given.pop("ori_x")
    with pytest.raises(RuntimeError, match="ori_x is None, but must be given"):
        torch_npu.npu_moe_distribute_combine_v2(got, chosen.npu(), assist, counts, weights.npu(), **common, **given)


def refused_calls_of_experts(rank: int, size: int, name: str) -> None:
    x, chosen, weights = (each.npu() for each in tokens_of(0, 2 * size, 4))
    dispatch, combine = torch_npu.npu_moe_distribute_dispatch_v2, torch_npu.npu_moe_distribute_combine_v2
    place = (name, size, rank, 2 * size)

    def refused(sentence: str, **changed: object) -> None:
        given = {"x": x, "expert_ids": chosen, "group_ep": name, "ep_world_size": size, "ep_rank_id": rank}
        with pytest.raises(RuntimeError, match=sentence):
            dispatch(**{**given, "moe_expert_num": 2 * size, **changed})

    refused("group_ep is 'none', but must be the name of a process group", group_ep="none")
    refused(f"ep_world_size is 99, but must be the size of the group, {size}", ep_world_size=99)
    refused(f"ep_rank_id is 99, but must be that of this process, {rank}", ep_rank_id=99)
    refused(f"moe_expert_num is 1, but must be a multiple of {size}", moe_expert_num=1)
    refused(f"shared_expert_rank_num is {size}, but must be below", shared_expert_rank_num=size)
    refused(rf"expert_ids is from .*, but must be from 0 to {2 * size - 1}", expert_ids=chosen + 2 * size)
    refused("expert_ids is with an expert twice in a row", expert_ids=chosen * 0)
    refused("expert_ids is torch.int64, but must be int32", expert_ids=chosen.long())
    refused("x is torch.float32, but must be float16, bfloat16 or int32", x=x.float())
    refused("x is of shape .*, but must have that of the rows of expert_ids", x=x[:1])
    refused("quant_mode is 1, but must be 0 or 2", quant_mode=1)
    refused("expert_token_nums_type is 2, but must be 0 or 1", expert_token_nums_type=2)
    refused("scales is given, but must be None with quant_mode 0", scales=weights)
    refused("scales is of shape .*, but must have that of the experts", scales=weights, quant_mode=2)
    refused("scales is None, but must be given where x is int32", x=x.int())
    refused("tp_world_size is 2, but must be 0 or 1", tp_world_size=2)
    refused("expert_shard_type is 1, but must be 0", expert_shard_type=1)
    refused("elastic_info is given, but must be None", elastic_info=chosen)
    refused("y_dtype is 1, but must be None", y_dtype=1)
    with pytest.raises(RuntimeError, match="later_option is given, but must be left out"):
        distribute.npu_moe_distribute_dispatch_v2(x.cpu(), chosen.cpu(), *place, later_option=1)
    refused("copy_expert_num is -1, but must not be negative", copy_expert_num=-1)
    mask = torch.tensor([False, True, False, False]).npu()
    refused("x_active_mask is True after False, but must have all True", x_active_mask=mask)
    refused("x_active_mask is torch.float32, but must be bool", x_active_mask=weights)
    # What differs from process to process is an error in all of them.
    other = "in process 1, but must be as in process 0"
    refused(f"number of columns of the rows is 4 {other}, 5", x=x if rank != 1 else x[:, :4])
    refused(f"moe_expert_num is {4 * size} {other}", moe_expert_num=(4 if rank == 1 else 2) * size)
    refused(f"quant_mode is 2 {other}", quant_mode=2 if rank == 1 else 0)
    refused(f"dtype of the rows, by number, is 0 {other}, 1", x=x.half() if rank == 1 else x)
    fewer = {"x": x[:2], "expert_ids": chosen[:2]} if rank else {}
    refused(f"global_bs is 0, but must be {4 * size}, as processes have unlike numbers of tokens", **fewer)
    refused(f"global_bs is {2 * size}, but must be 0, or {4 * size} at least", global_bs=2 * size)
    got, _, assist, _, counts, *_ = dispatch(x, chosen, *place)
    wrong = counts + 1 if rank == 1 else counts
    with pytest.raises(RuntimeError, match="ep_send_counts is something else in process 1, but must be dispatch's"):
        combine(got, chosen, assist, wrong, weights, *place)
    with pytest.raises(RuntimeError, match=r"expand_x is too short in process .*, but must have a row for each"):
        combine(got[:1], chosen, assist, counts, weights, *place)
    with pytest.raises(RuntimeError, match="comm_quant_mode is 2, but must be 0"):
        combine(got, chosen, assist, counts, weights, *place, comm_quant_mode=2)
    with pytest.raises(RuntimeError, match=r"shared_expert_x is of shape \[1, 5\], but must have 4 rows of 5"):
        combine(got, chosen, assist, counts, weights, *place, shared_expert_x=x[:1])
    with pytest.raises(RuntimeError, match=r"ep_send_counts is of shape \[1\], but must have"):
        combine(got, chosen, assist, counts[:1], weights, *place)
