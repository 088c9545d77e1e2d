"""DTensors: the operators in two and in four processes give what they give in one, and move no more than they must."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributed.tensor.debug import CommDebugMode

import torch_cases
from sharded import MESHES, Pool, assert_whole, layout, place, place_all

# For each call the ways to split it: where each tensor is cut, and where each result then is; a blank for None.
SPLITS: dict[str, list[tuple[str, str]]] = {
    "rms_norm": [("0-", "00"), ("1-", "11")],
    "rms_norm-two": [("0-", "00")],
    "rms_norm-one row": [],
    "rms_norm_grad": [("000-", "0+"), ("111-", "1+")],
    "rms_norm_grad-flat": [],
    "layer_norm": [("0--", "000"), ("1--", "111")],
    "layer_norm-plain": [("0", "000")],
    "layer_norm-weight": [("0-", "000")],
    "layer_norm-bias": [("0-", "000")],
    "layer_norm_backward": [("0000--", "0++"), ("1111--", "1++")],
    "layer_norm_backward-masked": [("0000", "0 +")],
    "group_norm_swish": [("0--", "000"), ("100", "111")],
    "group_norm_swish-scaled": [("0--", "000")],
    "group_norm_swish-norm": [("0--", "000"), ("100", "111")],
    "group_norm_swish_grad": [("0000--", "0++"), ("111100", "100")],
    "group_norm_swish_grad-masked": [],  # mean and rstd are flat
    "scaled_masked_softmax": [("00", "0"), ("1-", "1"), ("22", "2")],
    "scaled_masked_softmax-triangle": [("0", "0")],
    "scaled_masked_softmax_backward": [("000", "0"), ("11-", "1"), ("222", "2")],
    "scaled_masked_softmax_backward-plain": [("00", "0")],
    "nsa_compress": [("11", "1"), ("2-", "2")],
    "nsa_compress-one sequence": [("11", "1"), ("2-", "2")],
    "nsa_compress_grad": [("111", "11"), ("22-", "2+")],
    "nsa_compress_grad-lengths": [("111", "11"), ("22-", "2+")],
}
DTYPES = (torch.float64, torch.float32, torch.bfloat16)
FORWARDS = tuple(n for n in torch_cases.NAMES if "backward" not in n and "grad" not in n)


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


def check_splits(name: str, mesh: str) -> None:
    for dtype in DTYPES:
        call = torch_cases.calls(dtype)[name]
        whole = call.run()
        for inputs, results in splits(name, mesh):
            args = place_all(call.args, mesh, inputs)
            with CommDebugMode() as moved:
                found = call.run(*args)
            assert moved.get_total_counts() == 0, (inputs, moved.get_comm_counts())
            assert [" " * len(MESHES[mesh].shape) if r is None else layout(r) for r in found] == list(results), inputs
            for one, expected, at in zip(found, whole, results, strict=True):
                assert_whole(one, expected, summed="+" in at)


@pytest.mark.parametrize("mesh", ["2", "4", "2x2"])
@pytest.mark.parametrize("name", [name for name in torch_cases.NAMES if SPLITS[name]])
def test_what_is_split_is_computed_where_it_lies(pool: Pool, name: str, mesh: str) -> None:
    pool.run(check_splits, name, mesh)


def test_every_call_has_its_ways() -> None:
    assert set(SPLITS) == set(torch_cases.NAMES)


def anywhere(call: torch_cases.Call, dims: int, choose: random.Random) -> list[str]:
    """Layouts of a call's tensors, whatever sense they make."""
    made = []
    for tensor in tensors(call):
        letters = ["-", *map(str, range(tensor.dim())), *"+" * tensor.is_floating_point()]
        made.append("".join(choose.choice(letters) for _ in range(dims)))
    return made


def check_anywhere(name: str) -> None:
    choose = random.Random(name)
    for mesh, on in MESHES.items():
        for dtype in DTYPES:
            call = torch_cases.calls(dtype)[name]
            whole = call.run()
            for _ in range(4):
                layouts = anywhere(call, on.ndim, choose)
                found = call.run(*place_all(call.args, mesh, layouts))
                for one, expected in zip(found, whole, strict=True):
                    try:
                        assert_whole(one, expected, summed=one is not None and "+" in layout(one))
                    except AssertionError as error:
                        raise AssertionError(f"{mesh}, {dtype}, {layouts}: {error}") from error


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


def check_gradients(name: str, mesh: str) -> None:
    for dtype in DTYPES:
        call = torch_cases.calls(dtype)[name]
        call = call.wanting(call.floats)
        whole = gradients(call, list(call.args))
        floats = [a.is_floating_point() for a in tensors(call)]
        for inputs, _ in splits(name, mesh):
            found = gradients(call, place_all(call.args, mesh, inputs), mesh)
            for one, expected, at in zip(found, whole, itertools.compress(inputs, floats), strict=True):
                # Where all have the whole of a tensor but a part of the call, their gradients are terms of a sum.
                wanted = "".join("+" if c == "-" else c for c in at)
                assert layout(one) == wanted, inputs
                second = name not in FORWARDS  # computed by PyTorch's operators, which keep no bits
                assert_whole(one, expected, summed="+" in wanted or second)


@pytest.mark.parametrize("mesh", ["2", "4", "2x2"])
@pytest.mark.parametrize("name", [name for name in torch_cases.NAMES if SPLITS[name]])
def test_gradients_lie_where_the_tensors_do(pool: Pool, name: str, mesh: str) -> None:
    pool.run(check_gradients, name, mesh)


def check_second_derivatives(name: str) -> None:
    call = torch_cases.calls(torch.float64)[name]
    call = call.wanting(call.floats)

    def twice(args: list[Any], mesh: str) -> tuple[Tensor, ...]:
        first = gradients(call, args, mesh, create_graph=True)
        return torch.autograd.grad(sum(g.cos().sum() for g in first), [args[i] for i in call.floats], create_graph=True)

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
