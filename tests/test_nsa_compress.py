"""NsaCompress: its contract row by row, its arithmetic against the float64 definition."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import descend
from cases import (
    DTYPES,
    FLOATS,
    PRODUCTS,
    Array,
    Place,
    arithmetic_of,
    assert_close,
    assert_same_bits,
    layouts,
    normal,
    phase1,
    placed,
    refused,
    run_two_phase,
    wide,
)
from descend import acl, precision, reference
from test_nsa_compress_grad import OVERLAPS, STRIDES, problems, windows_of

OP = "nsa_compress"
F32, F16, BF16 = "FLOAT", "FLOAT16", "BFLOAT16"
A2 = "atlas-a2-training"
# The page's table: one dtype for all three tensors.
PAGE = {F16: (A2,), BF16: (A2,)}
HERE = (A2, "host")
NOT_HERE = tuple(p for p in PRODUCTS if p not in HERE)
# Not the order of the gradient.
NAMES = (
    "input",
    "weight",
    "act_seq_len",
    "layout",
    "compress_block_size",
    "compress_stride",
    "act_seq_len_type",
    "output",
)
TENSORS = {"input": 0, "weight": 1, "output": 7}


def arrays(dtype: str = F16, tokens: int = 80, heads: int = 2, depth: int = 16, ends: Any = (), width: int = 32,
           stride: int = 16, kind: int = 0, seed: int = 1) -> list[Any]:  # fmt: skip
    """All parameters in the documents' order, the output NaN."""
    rng = np.random.default_rng(seed)
    blocks = windows_of(tokens, ends, width, stride, kind)
    x, weight = normal(rng, (tokens, heads, depth), dtype), normal(rng, (width, heads), dtype)
    return [x, weight, ends, "TND", width, stride, kind, np.full((blocks, heads, depth), np.nan, x.dtype)]


def check(call: list[Any], roundings: float = 8.0) -> None:
    x, weight, ends, _, width, stride, kind, output = call
    keywords = {"compress_block_size": width, "compress_stride": stride, "act_seq_len_type": kind}
    terms = reference.nsa_compress(np.abs(wide(x)), np.abs(wide(weight)), ends, **keywords)
    assert_close(output, reference.nsa_compress(x, weight, ends, **keywords), terms, roundings, arithmetic_of(x))


def compute(x: Array, weight: Array, ends: Any, _: Any, width: int, stride: int, kind: int = 0, *__: Any) -> Array:
    output: Array = descend.nsa_compress(
        x, weight, ends, compress_block_size=width, compress_stride=stride, act_seq_len_type=kind
    )
    return output


# --- the contract -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("product", HERE)
def test_every_combination_of_dtypes(product):
    with acl.product(product):
        for dtypes in itertools.product(DTYPES, repeat=3):
            call = arrays(F32)
            for place, dtype in zip(TENSORS.values(), dtypes, strict=True):
                call[place] = np.zeros(call[place].shape, DTYPES[dtype])
            same = len(set(dtypes)) == 1 and dtypes[0] in FLOATS
            if same and (product == "host" or product in PAGE.get(dtypes[0], ())):
                phase1(OP, *call)
            else:
                with refused(161002, OP, product):
                    phase1(OP, *call)


@pytest.mark.parametrize("product", PRODUCTS)
@pytest.mark.parametrize("dtype", FLOATS)
def test_every_row_computes_where_it_exists(product, dtype):
    call = arrays(dtype)
    if product in NOT_HERE:
        with acl.product(product), refused(561003, OP, product, *HERE):
            phase1(OP, *call)
    elif product != "host" and product not in PAGE.get(dtype, ()):
        with acl.product(product), refused(161002, OP, dtype):
            phase1(OP, *call)
    else:
        run_two_phase(OP, *call, product=product)
        check(call)


@pytest.mark.parametrize("product", PRODUCTS)
@pytest.mark.parametrize("name", [*TENSORS, "act_seq_len"])
def test_null(product, name):
    call = arrays()
    call[NAMES.index(name)] = None
    with acl.product(product):
        if product == "host" and name == "act_seq_len":
            phase1(OP, *call)
        else:
            with refused(161001, OP, f" {name} is null"):
                phase1(OP, *call)


@pytest.mark.parametrize("product", HERE)
@pytest.mark.parametrize("name", TENSORS)
def test_ranks_are_looked_at_first(product, name):
    right = 2 if name == "weight" else 3
    for rank in (0, 1, 2, 3, 4, 8):
        if rank == right:
            continue
        call = arrays()
        call[TENSORS[name]] = np.zeros((1,) * rank, np.int32)
        call[3] = "BSND"
        with acl.product(product), refused(561002, OP, f" {name} has shape", f"rank {right}"):
            phase1(OP, *call)


@pytest.mark.parametrize("name", TENSORS)
def test_what_cannot_be_read_comes_after_the_ranks(name):
    call, other = arrays(), "weight" if name == "input" else "input"
    call[TENSORS[name]] = np.ma.masked_array(call[TENSORS[name]])
    with refused(161002, OP, f" {name} is a masked array"):
        phase1(OP, *call)
    call[TENSORS[other]] = np.zeros(1, np.float16)
    with refused(561002, OP, f" {other} has shape [1]"):
        phase1(OP, *call)


@pytest.mark.parametrize("name", ["input", "weight"])
def test_what_cannot_be_read_comes_after_the_ranks_of_a_functional_call(name):
    call, other = arrays()[:2], "weight" if name == "input" else "input"
    sizes = {"compress_block_size": 32, "compress_stride": 16}
    call[TENSORS[name]] = np.ma.masked_array(call[TENSORS[name]])
    with refused(161002, OP, f" {name} is a masked array"):
        descend.nsa_compress(*call, **sizes)
    call[TENSORS[other]] = np.zeros(1, np.float16)
    with refused(561002, OP, f" {other} has shape [1]"):
        descend.nsa_compress(*call, **sizes)


@pytest.mark.parametrize(
    ("change", "status", "words"),
    [
        ({"layout": "BSND"}, 161002, ["layout is 'BSND'", "'TND'"]),
        ({"weight": (31, 2)}, 161002, ["weight has shape [31, 2]", "[32, 2]"]),
        ({"weight": (32, 3)}, 161002, ["weight has shape [32, 3]", "[32, 2]"]),
        ({"compress_stride": 0}, 561002, ["compress_stride is 0"]),
        ({"act_seq_len_type": 2}, 561002, ["act_seq_len_type is 2"]),
        ({"act_seq_len": [-1, 80]}, 561002, ["act_seq_len has -1 at index 0"]),
        ({"act_seq_len": [40, 30, 80]}, 561002, ["act_seq_len has 30 at index 1 after 40"]),
        ({"act_seq_len": [40, 81]}, 561002, ["act_seq_len has 81 at index 1", "80 tokens"]),
        ({"act_seq_len": [40, 80]}, 561002, ["output has shape [4, 2, 16]", "[2, 2, 16]"]),
        ({"output": (3, 2, 16)}, 561002, ["output has shape [3, 2, 16]", "[4, 2, 16]"]),
        ({"output": (4, 2, 32)}, 561002, ["output has shape [4, 2, 32]", "[4, 2, 16]"]),
    ],
)
@pytest.mark.parametrize("product", HERE)
def test_what_is_refused_everywhere(product, change, status, words):
    call = arrays()
    for name, value in change.items():
        call[NAMES.index(name)] = np.zeros(value, np.float16) if name in TENSORS else value
    with acl.product(product), refused(status, OP, *words):
        phase1(OP, *call)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"width": 40}, "compress_block_size is 40, but must be a multiple of 16"),
        ({"stride": 8}, "compress_stride is 8, but must be a multiple of 16"),
        ({"width": 16, "stride": 32}, "compress_block_size is 16, but must be at least compress_stride, which is 32"),
        ({"depth": 24}, "last dimension must be a multiple of 16"),
        ({"kind": 1}, "act_seq_len_type is 1, but must be 0"),
        ({"ends": [32, 64]}, "act_seq_len ends at 64, but must end at the number of tokens of input, 80"),
        ({"tokens": 31}, "output has shape [0, 2, 16], but must not be empty"),
        ({"heads": 0}, "must not be empty"),
        ({"depth": 0}, "must not be empty"),
        ({"tokens": 0}, "must not be empty"),
    ],
)
def test_what_only_host_takes(arguments, words):
    call = arrays(**arguments)
    with acl.product(A2), refused(561002, OP, words):
        phase1(OP, *call)
    run_two_phase(OP, *call, product="host")
    check(call)


def test_windows_side_by_side_are_fine_everywhere():
    for product in HERE:
        call = arrays(width=16, stride=16)
        run_two_phase(OP, *call, product=product)
        check(call)


@pytest.mark.parametrize("dtype", [F32, F16, BF16])
@pytest.mark.parametrize(("tokens", "depth", "width", "stride"), OVERLAPS)
def test_overlaps_and_heads(tokens, depth, width, stride, dtype):
    call = arrays(dtype, tokens, 3, depth, [tokens // 3, tokens], width, stride)
    call[-1] = compute(*call)
    check(call)


# --- the numbers ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("width", "stride"), STRIDES)
def test_strides_beyond_all_tokens(width, stride):
    call = arrays(F32, 1300, 3, 20, [500, 1300], width, stride)
    call[7] = compute(*call)
    check(call, 16.0)


def test_by_hand():
    x = np.arange(1.0, 6.0, dtype=np.float32).reshape(5, 1, 1)
    weight = np.array([[1.0], [10.0], [100.0]], np.float32)
    np.testing.assert_array_equal(compute(x, weight, None, None, 3, 1).ravel(), [321, 432, 543])
    np.testing.assert_array_equal(compute(x, weight, [1, 5], None, 3, 1).ravel(), [432, 543])


@pytest.mark.parametrize("dtype", FLOATS)
def test_worked_shape_of_the_document(dtype):
    call = arrays(dtype, 272, 64, 128, [0, 128, 272])
    assert len(call[7]) == 15
    run_two_phase(OP, *call, product="host" if dtype in (F32, "DOUBLE") else A2)
    check(call)


@settings(deadline=None, max_examples=200)
@given(problem=problems(), seed=st.integers(0, 1000), places=st.tuples(layouts(3), layouts(2), layouts(3)))
def test_any_shape_and_layout(problem, seed, places):
    call = arrays(**problem, seed=seed)
    call[0], call[1] = placed(call[0], places[0]), placed(call[1], places[1])
    output = Place(call[7].shape, call[7].dtype, places[2])
    call[7] = output.array
    result = descend.nsa_compress(
        *call[:3], compress_block_size=call[4], compress_stride=call[5], act_seq_len_type=call[6], out=call[7]
    )
    assert result is call[7]
    check(call)
    output.check_guards()


def test_wide_heads_and_many_of_them():
    for heads, depth in ((2, 20_000), (300, 100), (1, 8193)):
        call = arrays(F32, 40, heads, depth, None, 6, 3)
        call[7] = compute(*call)
        check(call)


def test_in_place():
    call = arrays(F32, 50, 2, 32, None, 1, 1)
    expected = compute(*call)
    descend.nsa_compress(*call[:2], compress_block_size=1, compress_stride=1, out=call[0])
    assert_same_bits([call[0]], [expected])


# --- rounding ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [F16, BF16])
def test_elements_are_the_correctly_rounded_ones(dtype):
    call = arrays(dtype, 1024, 4, 64)
    golden = reference.nsa_compress(call[0], call[1], compress_block_size=32, compress_stride=16)
    assert precision.correct_rounding_share(compute(*call), golden) >= 0.999
