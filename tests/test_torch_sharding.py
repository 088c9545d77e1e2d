"""DTensors: in two and four processes the operators give one process's results, and move no more than needed."""

from __future__ import annotations

import copy
import itertools
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, distributed, nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.debug import CommDebugMode
from torch.distributed.tensor.experimental import implicit_replication
from torch.distributed.tensor.parallel import SequenceParallel, parallelize_module
from torch.distributed.tensor.placement_types import _StridedShard

import descend.aclnn
import descend.torch
import forks
import torch_cases
from cases import run_python
from descend.contract import OPERATORS, Operator
from row_operator import shapes_of
from sharded import MESHES, Pool, assert_whole, layout, place, place_all, takes_part
from torch_cases import FORWARDS, RELEASE

# For each call the ways to split it: where each tensor is cut, and where each result then is; a blank for None.
SPLITS: dict[str, list[tuple[str, str]]] = {
    "rms_norm": [("0-", "00"), ("1-", "11")],
    "rms_norm-two": [("0-", "00")],
    "rms_norm-one row": [],
    "add_layer_norm": [("00---", "0000"), ("11---", "1111")],
    "add_layer_norm-two": [("00--", "000 ")],
    "add_layer_norm-and sum": [("00--", "0000")],
    "add_layer_norm-three": [("00--0", "000 ")],
    "add_layer_norm_grad-of sum": [("0000-", "0++")],
    "rms_norm_grad": [("000-", "0+"), ("111-", "1+")],
    "rms_norm_grad-flat": [],
    "layer_norm": [("0--", "000"), ("1--", "111")],
    "layer_norm-plain": [("0", "000")],
    "layer_norm-weight": [("0-", "000")],
    "layer_norm-bias": [("0-", "000")],
    "layer_norm_backward": [("0000--", "0++"), ("1111--", "1++")],
    "layer_norm_backward-masked": [("0000", "0 +")],
    "group_norm": [("0--", "000"), ("100", "111")],
    "group_norm-plain": [("0", "000")],
    "group_norm-bias": [("0-", "000"), ("10", "111")],
    "group_norm_backward": [("0000-", "0++"), ("11110", "100")],
    "group_norm_backward-masked": [],  # the tensors are flat
    "group_norm_silu": [("0--", "000"), ("100", "111")],
    "group_norm_silu-plain": [("0", "000")],  # in one group
    "group_norm_swish": [("0--", "000"), ("100", "111")],
    "group_norm_swish-scaled": [("0--", "000")],
    "group_norm_swish-norm": [("0--", "000"), ("100", "111")],
    "group_norm_swish_grad": [("0000--", "0++"), ("111100", "100")],
    "group_norm_swish_grad-masked": [],  # mean and rstd are flat
    "scaled_masked_softmax": [("00", "0"), ("1-", "1"), ("22", "2")],
    "scaled_masked_softmax-triangle": [("0", "0")],
    "scaled_masked_softmax_backward": [("000", "0"), ("11-", "1"), ("222", "2")],
    "scaled_masked_softmax_backward-plain": [("00", "0")],
    "rotary_position_embedding": [("0--", "0"), ("111", "1")],
    "rotary_position_embedding-mixed": [("000", "0")],
    "rotary_position_embedding_grad": [("0--0", "0++"), ("1111", "111")],
    "rotary_position_embedding_grad-alone": [("000", "0  "), ("1--", "1  ")],
    "nsa_compress": [("11", "1"), ("2-", "2")],
    "nsa_compress-one sequence": [("11", "1"), ("2-", "2")],
    "nsa_compress_grad": [("111", "11"), ("22-", "2+")],
    "nsa_compress_grad-lengths": [("111", "11"), ("22-", "2+")],
    "cross_entropy_loss": [("00", "0000")],
    "cross_entropy_loss-mean": [],  # of all rows
    "cross_entropy_loss-sum": [("00", "+0  ")],
    "cross_entropy_loss_grad": [],
    "cross_entropy_loss_grad-all": [("000-00", "0")],
    "cross_entropy_loss_grad-input": [("-000", "0")],
    "apply_adam_w_v2": [("0000-", "000 "), ("1111-", "111 ")],
    "apply_adam_w_v2-amsgrad": [("00000-", "0000"), ("11111-", "1111")],
    "gelu_v2-tanh": [("0", "0"), ("2", "2")],
    "gelu_backward_v2-broadcast": [("-0", "0"), ("01", "1"), ("-2", "2")],
}


def of_rows(operator: Operator) -> list[tuple[str, str]]:
    """Where an operator on rows is cut, by its table: all that has rows along these, and sums over rows are added."""
    shapes = shapes_of(operator, (2, 3, 4), 1)
    marks = {name: "-" if len(shape) == 1 else "d" for name, shape in shapes.items()}
    tensors = "".join(marks[p.python] for p in operator.inputs)
    results = "".join("+" if marks[p.python] == "-" else "d" for p in operator.outputs)
    return [(tensors.replace("d", d), results.replace("d", d)) for d in "01"]


for _name in OPERATORS.keys() - SPLITS.keys():
    SPLITS[_name] = of_rows(OPERATORS[_name])
# How a call is split does not depend on dtypes: each mesh has its own.
DTYPES = {"1": torch.float32, "2": torch.float64, "4": torch.float32, "2x2": torch.bfloat16}


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pool]:
    made = Pool(tmp_path_factory.mktemp("pool"))
    yield made
    made.stop()


def splits(name: str, mesh: str) -> Iterator[tuple[tuple[str, ...], tuple[str, ...]]]:
    """The layouts of tensors and results for every way to split a call over each dimension of a mesh."""
    for ways in itertools.product(SPLITS[name], repeat=2 if mesh == "2x2" else 1):
        channels = [way for way in ways if way[1][0] == "1" and name.startswith("group")]
        if len(channels) * (4 if mesh == "4" else 2) <= 2:  # there are two groups
            inputs, results = ([way[i] for way in ways] for i in (0, 1))
            yield tuple(map("".join, zip(*inputs, strict=True))), tuple(map("".join, zip(*results, strict=True)))


def tensors(call: torch_cases.Call) -> list[Tensor]:
    return [a for a in call.args if isinstance(a, Tensor)]


def check_splits(name: str) -> None:
    for mesh in ("4", "2x2"):
        call = torch_cases.calls(DTYPES[mesh])[name]
        whole = call.run()
        for inputs, results in splits(name, mesh):
            args = place_all(call.args, mesh, inputs)
            with CommDebugMode() as moved:
                found = call.run(*args)
            assert moved.get_total_counts() == 0, (inputs, moved.get_comm_counts())
            assert [" " * len(MESHES[mesh].shape) if r is None else layout(r) for r in found] == list(results), inputs
            for one, expected, at in zip(found, whole, results, strict=True):
                assert_whole(one, expected, summed="+" in at)


@pytest.mark.parametrize("name", [name for name in torch_cases.NAMES if SPLITS[name]])
def test_what_is_split_is_computed_where_it_lies(pool: Pool, name: str) -> None:
    pool.run(check_splits, name)


def test_every_call_has_its_ways() -> None:
    assert set(SPLITS) == set(torch_cases.NAMES)


def anywhere(call: torch_cases.Call, dims: int, choose: random.Random) -> list[str]:
    """Random layouts of a call's tensors, sensible or not."""
    made = []
    for tensor in tensors(call):
        letters = ["-", *map(str, range(tensor.dim())), *"+" * tensor.is_floating_point()]
        made.append("".join(choose.choice(letters) for _ in range(dims)))
    return made


def check_anywhere(name: str) -> None:
    choose = random.Random(name)
    for mesh, on in MESHES.items():
        call = torch_cases.calls(DTYPES[mesh])[name]
        whole = call.run()
        for _ in range(2):
            layouts = anywhere(call, on.ndim, choose)
            found = call.run(*place_all(call.args, mesh, layouts))
            for one, expected in zip(found, whole, strict=True):
                try:
                    assert_whole(one, expected, summed=one is not None and "+" in layout(one))
                except AssertionError as error:
                    raise AssertionError(f"{mesh}, {layouts}: {error}") from error


@pytest.mark.parametrize("name", torch_cases.NAMES)
def test_tensors_may_lie_anywhere(pool: Pool, name: str) -> None:
    pool.run(check_anywhere, name)


def normal(like: Tensor, seed: int) -> Tensor:
    random_ = torch.Generator().manual_seed(seed)
    return torch.randn(like.shape, generator=random_, dtype=torch.float64).to(like.dtype)


def gradients(
    call: torch_cases.Call, args: list[Any], mesh: str = "", create_graph: bool = False
) -> tuple[Tensor, ...]:
    """The gradients of all results in all floating tensors, for cotangents that lie as the results do."""
    results = [r for r in call.run(*args) if r is not None]
    given = [normal(r, seed) for seed, r in enumerate(results)]
    if mesh:
        given = [place(g, mesh, layout(r).replace("+", "-")) for g, r in zip(given, results, strict=True)]
    leaves = [args[i] for i in call.floats]
    return torch.autograd.grad(results, leaves, given, create_graph=create_graph, materialize_grads=True)


def check_gradients(name: str) -> None:
    for mesh in ("4", "2x2"):
        call = torch_cases.calls(DTYPES[mesh])[name]
        call = call.wanting(call.floats)
        whole = gradients(call, list(call.args))
        floats = [a.is_floating_point() for a in tensors(call)]
        for inputs, _ in splits(name, mesh):
            found = gradients(call, place_all(call.args, mesh, inputs), mesh)
            for one, expected, at in zip(found, whole, itertools.compress(inputs, floats), strict=True):
                # Where all have the whole of a tensor but a part of the call, their gradients are terms of a sum.
                wanted = "".join("+" if c == "-" else c for c in at)
                if RELEASE <= (2, 7) and name == "group_norm_swish-norm":
                    wanted = at  # composed of PyTorch's operators, which add the terms up there
                assert layout(one) == wanted, inputs
                second = name not in FORWARDS  # computed by PyTorch's operators, which keep no bits
                assert_whole(one, expected, summed="+" in wanted or second)


@pytest.mark.parametrize("name", [name for name in torch_cases.NAMES if SPLITS[name]])
def test_gradients_lie_where_the_tensors_do(pool: Pool, name: str) -> None:
    pool.run(check_gradients, name)


def check_second_derivatives(name: str) -> None:
    call = torch_cases.calls(torch.float64)[name]
    call = call.wanting(call.floats)

    def twice(args: list[Any], mesh: str) -> tuple[Tensor, ...]:
        first = gradients(call, args, mesh, create_graph=True)
        total, leaves = sum(g.cos().sum() for g in first), [args[i] for i in call.floats]
        # No gradient depends on a beta, and not every backward operator takes one.
        return torch.autograd.grad(total, leaves, create_graph=True, materialize_grads=True)

    whole = twice(list(call.args), "")
    for inputs, _ in splits(name, "2"):
        args = place_all(call.args, "2", inputs)
        found = twice(args, "2")
        for one, expected in zip(found, whole, strict=True):
            assert_whole(one, expected, summed=True)
        with pytest.raises(NotImplementedError, match="no third derivatives"):
            torch.autograd.grad(found[0].sum(), args[0])


@pytest.mark.parametrize("name", [name for name in FORWARDS if SPLITS[name]])
def test_second_derivatives(pool: Pool, name: str) -> None:
    pool.run(check_second_derivatives, name)


# --- what lies badly, and what is refused --------------------------------------------------------------------------


def check_groups_stay_whole() -> None:
    """Two groups of channels are not cut in four: channels are gathered, or samples cut in place of them."""
    call = torch_cases.calls()["group_norm_swish"]
    for mesh, inputs, wanted in (("4", ("1", "0", "0"), "-"), ("2x2", ("11", "00", "00"), "10")):
        found = call.run(*place_all(call.args, mesh, inputs))
        assert [layout(r) for r in found] == [wanted] * 3, mesh
        for one, expected in zip(found, call.run(), strict=True):
            assert_whole(one, expected)


def test_groups_stay_whole(pool: Pool) -> None:
    pool.run(check_groups_stay_whole)


def check_other_placements() -> None:
    x, gamma = torch.randn(8, 3, 4, generator=torch.Generator().manual_seed(0)), torch.ones(4)
    whole = descend.torch.rms_norm(x, gamma)[0]
    flat, grid, rank = MESHES["4"], MESHES["2x2"], distributed.get_rank()
    terms = {"avg": x, "max": x - rank, "min": x + rank, "product": x if rank == 0 else torch.ones_like(x)}
    if RELEASE <= (2, 7):
        terms = {}  # PyTorch 2.7 adds them all when it cuts them, with gloo
    made = {kind: DTensor.from_local(term, flat, [Partial(kind)]) for kind, term in terms.items()}
    made["negative"] = DTensor.from_local(x, flat).redistribute(placements=[Shard(-3)])
    made["on its way"] = place(x, "4", "1").redistribute(placements=[Replicate()], async_op=True)
    mine = x[rank % 2 * 4 + rank // 2 * 2 :][:2]  # cut by the second dimension of the mesh first, as by FSDP
    strided = [_StridedShard(0, split_factor=2), Shard(0)]
    made["strided"] = DTensor.from_local(mine, grid, strided, shape=x.shape, stride=x.stride())
    assert_whole(made["strided"], x)
    for tensor in made.values():
        on = tensor.device_mesh
        assert_whole(descend.torch.rms_norm(tensor, DTensor.from_local(gamma, on, [Replicate()] * on.ndim))[0], whole)
    permuted = place(x.permute(2, 0, 1).contiguous(), "4", "1").permute(1, 2, 0)
    assert_whole(descend.torch.rms_norm(permuted, place(gamma, "4", "-"))[0], whole)


def test_other_placements(pool: Pool) -> None:
    pool.run(check_other_placements)


def check_no_rows() -> None:
    call = torch_cases.calls(torch.float32)["layer_norm_backward"]
    args = [a[:0] if isinstance(a, Tensor) and a.dim() == 3 else a for a in call.args]
    for inputs in ("0000--", "1111--", "------"):
        found = call.run(*place_all(args, "4", inputs))
        for one, expected in zip(found, call.run(*args), strict=True):
            assert_whole(one, expected)


def test_no_rows(pool: Pool) -> None:
    pool.run(check_no_rows)


def check_refusals() -> None:
    x, gamma = torch.ones(8, 3, 4), torch.ones(4)
    placed = place(x, "4", "0")
    with CommDebugMode() as moved:
        with pytest.raises(descend.aclnn.AclnnError, match=r"gamma has shape \[3\], but .* shape is \[8, 3, 4\]"):
            descend.torch.rms_norm(placed, place(gamma[:3], "4", "-"))
        with pytest.raises(TypeError, match=r"^rms_norm: .* that of shape \[4\] is not"):
            descend.torch.rms_norm(placed, gamma)
        with pytest.raises(ValueError, match=r"^rms_norm: all DTensors must be on one mesh"):
            descend.torch.rms_norm(placed, place(gamma, "2x2", "--"))
    assert moved.get_total_counts() == 0
    with implicit_replication():
        assert_whole(descend.torch.rms_norm(placed, gamma)[0], descend.torch.rms_norm(x, gamma)[0])
    with torch.inference_mode():
        scores = place(x, "4", "0")
        assert scores.is_inference()
        assert_whole(descend.torch.scaled_masked_softmax(scores, None), descend.torch.scaled_masked_softmax(x, None))


def test_refusals(pool: Pool) -> None:
    pool.run(check_refusals)


def check_statistics_of_a_cut_image() -> None:
    call = torch_cases.calls()["group_norm_swish"]
    call = call.wanting(call.floats)
    whole = gradients(call, list(call.args))
    for inputs in (("2", "-", "-"), ("2", "0", "0"), ("1", "-", "0")):
        for one, expected in zip(gradients(call, place_all(call.args, "4", inputs), "4"), whole, strict=True):
            assert_whole(one, expected, summed=True)


def test_statistics_of_a_cut_image(pool: Pool) -> None:
    pool.run(check_statistics_of_a_cut_image)


def check_compiled(names: Sequence[str], mesh: str, dynamic: bool) -> None:
    """All calls in one graph."""
    torch.compiler.reset()
    calls = [torch_cases.calls(torch.float32)[name] for name in names]
    calls = [call.wanting(call.floats) for call in calls]
    args = [place_all(call.args, mesh, next(splits(name, mesh))[0]) for name, call in zip(names, calls, strict=True)]
    wholes = [gradients(call, given, mesh) for call, given in zip(calls, args, strict=True)]

    def run(*args: Any) -> list[tuple[Any, ...]]:
        return [call.run(*given) for call, given in zip(calls, args, strict=True)]

    compiled = torch.compile(run, fullgraph=True, backend="aot_eager", dynamic=dynamic)(*args)
    results = [[r for r in each if r is not None] for each in compiled]
    cotangents = [place(normal(r, seed), mesh, layout(r)) for each in results for seed, r in enumerate(each)]
    leaves = [given[i] for call, given in zip(calls, args, strict=True) for i in call.floats]
    found = torch.autograd.grad(list(itertools.chain(*results)), leaves, cotangents)
    for one, expected in zip(found, itertools.chain(*wholes), strict=True):
        assert layout(one) == layout(expected)
        assert_whole(one, expected.full_tensor(), summed="+" in layout(one))


@pytest.mark.extended
def test_compiled(pool: Pool) -> None:
    pool.run(check_compiled, [name for name in torch_cases.OPERATORS if name in FORWARDS], "4", False)


@pytest.mark.extended
def test_compiled_for_any_size(pool: Pool) -> None:
    pool.run(check_compiled, ["layer_norm"], "2x2", True)


# --- modules and training ------------------------------------------------------------------------------------------


class LlamaNorm(nn.Module):
    def __init__(self, size: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        xhat = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)
        return self.weight * xhat.to(x.dtype)


NORMS: dict[str, Callable[[], nn.Module]] = {
    "layer": lambda: descend.torch.LayerNorm(8),
    "layer without bias": lambda: descend.torch.LayerNorm(8, bias=False),
    "layer without parameters": lambda: descend.torch.LayerNorm(8, elementwise_affine=False),
    "rms": lambda: descend.torch.RMSNorm(8),
    "rms without parameters": lambda: descend.torch.RMSNorm(8, elementwise_affine=False),
    "patched layer": lambda: nn.LayerNorm(8),
    "patched rms": lambda: nn.RMSNorm(8),
    "patched Llama's": lambda: LlamaNorm(8),
}


def check_sequence_parallel(title: str) -> None:
    one = NORMS[title]()
    if title.startswith("patched"):
        assert descend.torch.patch(one).swapped
    for seed, parameter in enumerate(one.parameters()):
        parameter.data = normal(parameter, seed)
    model = parallelize_module(nn.Sequential(copy.deepcopy(one)), MESHES["4"], {"0": SequenceParallel()})
    x = normal(torch.empty(2, 6, 8), 0)
    here = place(x, "4", "1")
    x.requires_grad_()
    here.requires_grad_()
    y = model(here)
    with CommDebugMode() as moved:
        again = model(here)
    assert moved.get_total_counts() == 0
    for result in (y, again):
        assert layout(result) == "1"
        assert_whole(result, one(x))
    y.backward(place(normal(x, 1), "4", "1"))
    one(x).backward(normal(x, 1))
    assert layout(here.grad) == "1"
    assert_whole(here.grad, x.grad)
    for mine, parameter in zip(model.parameters(), one.parameters(), strict=True):
        assert layout(mine.grad) == "+"
        assert_whole(mine.grad, parameter.grad, summed=True)


@pytest.mark.parametrize("title", NORMS)
def test_sequence_parallel(pool: Pool, title: str) -> None:
    pool.run(check_sequence_parallel, title)


def check_modules() -> None:
    """Modules with parameters of their own placements, and without any."""
    cases: list[tuple[nn.Module, tuple[int, ...], str, str]] = [
        (descend.torch.NsaCompress(4, 3, 2), (11, 4, 3), "1", "1"),
        (descend.torch.GroupNormSwish(4, 8), (4, 8, 3), "0", "-"),
        (descend.torch.GroupNormSwish(4, 8), (3, 8, 2), "1", "0"),
        (descend.torch.GroupNormSwish(4, 8, affine=False), (4, 8, 3), "0", ""),
        (descend.torch.GroupNormSwish(4, 8, affine=False, activate_swish=False), (3, 8, 2), "1", ""),
        (descend.torch.ScaledMaskedSoftmax(0.5, fix_triu_mask=True), (2, 5, 3, 3), "1", ""),
    ]
    for one, shape, at, parameters_at in cases:
        model, x = copy.deepcopy(one), normal(torch.empty(shape), 0).requires_grad_()
        for seed, (name, parameter) in enumerate(list(one.named_parameters())):
            parameter.data = normal(parameter, seed)
            setattr(model, name, nn.Parameter(place(parameter.detach(), "4", parameters_at)))
        here = place(x.detach(), "4", at).requires_grad_()
        y, whole = model(here), one(x)
        assert layout(y) == at
        assert_whole(y, whole)
        y.backward(place(normal(whole, 1), "4", at))
        whole.backward(normal(whole, 1))
        assert layout(here.grad) == at
        assert_whole(here.grad, x.grad)
        for mine, parameter in zip(model.parameters(), one.parameters(), strict=True):
            assert layout(mine.grad) == parameters_at.replace("-", "+")
            assert_whole(mine.grad, parameter.grad, summed=parameters_at == "-")


def test_modules(pool: Pool) -> None:
    pool.run(check_modules)


def product(a: Tensor, b: Tensor) -> Tensor:
    """Products of matrices, which lie as those do. (DTensor's own would take it seconds to plan.)"""
    if isinstance(a, DTensor) and isinstance(b, DTensor):
        assert a.placements == b.placements
        return DTensor.from_local(a.to_local() @ b.to_local(), a.device_mesh, a.placements)
    return a @ b


class Attention(nn.Module):
    """Attention that is written out, with a norm before it."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm = descend.torch.RMSNorm(width)
        self.q, self.k, self.v, self.out = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.softmax = descend.torch.ScaledMaskedSoftmax((width // heads) ** -0.5)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        h = self.norm(x)
        q, k, v = (project(h).unflatten(-1, (self.heads, -1)).transpose(1, 2) for project in (self.q, self.k, self.v))
        mixed = product(self.softmax(product(q, k.transpose(-1, -2)), mask), v)
        return x + self.out(mixed.transpose(1, 2).flatten(2))


def check_data_and_heads() -> None:
    """Samples on one dimension of the mesh, heads on the other: what is added up is the last product alone."""
    torch.manual_seed(0)
    one = Attention(8, 4)
    model = copy.deepcopy(one)
    for name, child in model.named_children():
        for key, parameter in list(child.named_parameters()):
            at = {"norm": "--", "out": "-1"}.get(name, "-0")
            setattr(child, key, nn.Parameter(place(parameter.detach(), "2x2", at)))
    x, mask = normal(torch.empty(4, 6, 8), 0), torch.rand(4, 1, 6, 6) < 0.3
    with CommDebugMode() as moved:
        y = model(place(x, "2x2", "0-"), place(mask, "2x2", "0-"))
    if RELEASE > (2, 7):  # which gathers heads in views and products
        assert moved.get_total_counts() == 0
        assert layout(y) == "0+"
    assert_whole(y, one(x, mask), summed=True)
    y.sin().sum().backward()
    one(x, mask).sin().sum().backward()
    for mine, parameter in zip(model.parameters(), one.parameters(), strict=True):
        assert_whole(mine.grad, parameter.grad, summed=True)


def test_data_and_heads(pool: Pool) -> None:
    pool.run(check_data_and_heads)


class Mlp(nn.Module):
    """A gated MLP."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up, self.down = nn.Linear(8, 12), nn.Linear(8, 12), nn.Linear(12, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(nn.functional.silu(self.gate(x)) * self.up(x))


class Network(nn.Module):
    """A model with all that patch recognises, and the softmax."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv1d(3, 8, 3, padding=1), nn.GroupNorm(4, 8), nn.SiLU())
        self.norm = nn.LayerNorm(8)
        self.attention = Attention(8, 2)
        self.mlp = Mlp()
        self.last = nn.RMSNorm(8)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        x = self.attention(self.norm(self.stem(x).transpose(1, 2)), mask)
        x = x + self.mlp(x)
        return self.last(x)


def network() -> Network:
    torch.manual_seed(1)
    made = Network()
    assert set(descend.torch.patch(made).swapped) == {"", "stem.1", "norm", "mlp", "last"}
    return made


def train(model: nn.Module, part: slice) -> None:
    """Three steps on a part of the samples."""
    torch.manual_seed(2)
    x, mask, wanted = torch.randn(8, 3, 5), torch.rand(8, 1, 5, 5) < 0.3, torch.randn(8, 5, 8)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(3):
        optimizer.zero_grad()
        (model(x[part], mask[part]) - wanted[part]).square().mean().backward()
        optimizer.step()


def check_training(kind: str, mesh: str) -> None:
    on = MESHES[mesh]
    if not takes_part(mesh):
        return
    model: nn.Module = network()
    if kind == "ddp":
        model = nn.parallel.DistributedDataParallel(model, process_group=on.get_group())
    else:
        for child in model.children():
            fully_shard(child, mesh=on)
        fully_shard(model, mesh=on)
    samples = 8 // on.size()
    train(model, slice(on.get_local_rank() * samples, (on.get_local_rank() + 1) * samples))
    one = network()
    before = [p.detach().clone() for p in one.parameters()]
    train(one, slice(None))
    for mine, parameter, old in zip(model.parameters(), one.parameters(), before, strict=True):
        assert not torch.allclose(parameter, old, atol=1e-3)
        whole = mine.full_tensor() if isinstance(mine, DTensor) else mine
        torch.testing.assert_close(whole, parameter, rtol=0, atol=1e-5)


@pytest.mark.parametrize("mesh", ["2", "4"])
@pytest.mark.parametrize("kind", ["ddp", "fully_shard"])
def test_training(pool: Pool, kind: str, mesh: str) -> None:
    pool.run(check_training, kind, mesh)


def check_fully_sharded_sequences() -> None:
    """Parameters sharded over the data, sequences over the other dimension of the mesh."""
    mesh = MESHES["2x2"]
    one = nn.Sequential(nn.LayerNorm(8), nn.RMSNorm(8))
    descend.torch.patch(one)
    for seed, parameter in enumerate(one.parameters()):
        parameter.data = normal(parameter, seed)
    model = copy.deepcopy(one)
    parallelize_module(model, mesh["model"], {"0": SequenceParallel(), "1": SequenceParallel()})
    for child in model:
        fully_shard(child, mesh=mesh["data"])
    fully_shard(model, mesh=mesh["data"])
    x = normal(torch.empty(4, 6, 8), 3)
    mine = distribute_tensor(x.chunk(2)[mesh.get_local_rank("data")], mesh["model"], [Shard(1)])
    for each, given in ((one, x), (model, mine)):
        optimizer = torch.optim.Adam(each.parameters(), lr=1e-2)
        for _ in range(3):
            optimizer.zero_grad()
            each(given).pow(3).mean().backward()
            optimizer.step()
    for here, parameter in zip(model.parameters(), one.parameters(), strict=True):
        torch.testing.assert_close(here.detach().full_tensor(), parameter.detach(), rtol=0, atol=1e-5)


def test_fully_sharded_sequences(pool: Pool) -> None:
    pool.run(check_fully_sharded_sequences)


# --- imports -------------------------------------------------------------------------------------------------------


def test_dtensor_is_not_imported_but_followed() -> None:
    run_python(
        """
import sys
import descend.torch
assert "torch.distributed.tensor" not in sys.modules
hooks = len(sys.meta_path)
from torch.distributed.tensor import debug  # whatever of it
assert "descend.torch.dtensor" in sys.modules
assert len(sys.meta_path) == hooks - 1
assert sys.modules["torch.distributed.tensor"].__spec__.loader.__class__.__name__ == "SourceFileLoader"
""",
        TORCH_DEVICE_BACKEND_AUTOLOAD="0",  # torch_npu imports DTensor with PyTorch
    )


def test_dtensor_may_be_imported_first() -> None:
    forks.run(
        """
import sys
import torch.distributed.tensor
finders = list(sys.meta_path)
import descend.torch
assert "descend.torch.dtensor" in sys.modules
assert sys.meta_path == finders
""",
        check=True,
    )


def test_an_import_that_fails_may_be_repeated() -> None:
    run_python(
        """
import sys
import descend.torch
sys.modules["torch.distributed.tensor._ops"] = None  # PyTorch without it
try:
    import torch.distributed.tensor
except ImportError:
    pass
else:
    raise AssertionError
assert "descend.torch.dtensor" not in sys.modules
del sys.modules["torch.distributed.tensor._ops"]
import torch.distributed.tensor
assert "descend.torch.dtensor" in sys.modules
""",
        TORCH_DEVICE_BACKEND_AUTOLOAD="0",  # torch_npu imports DTensor with PyTorch
    )
