"""NsaCompressGrad: its contract row by row, its arithmetic against the float64 definition."""

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
    HUAWEI,
    PRODUCTS,
    Array,
    Place,
    arithmetic_of,
    assert_close,
    assert_same_bits,
    in_turn,
    layouts,
    normal,
    phase1,
    placed,
    refused,
    run_two_phase,
    wide,
)
from descend import acl, precision, reference

OP = "nsa_compress_grad"
F32, F16, BF16 = "FLOAT", "FLOAT16", "BFLOAT16"
A2 = "atlas-a2-training"
# The page's table: one dtype for all five tensors.
PAGE = {F16: (A2,), BF16: (A2,)}
HERE = (A2, "host")
NOT_HERE = tuple(p for p in PRODUCTS if p not in HERE)
NAMES = ("output_grad", "input", "weight", "act_seq_len", "compress_block_size", "compress_stride",
         "act_seq_len_type", "layout", "input_grad", "weight_grad")  # fmt: skip
TENSORS = {"output_grad": 0, "input": 1, "weight": 2, "input_grad": 8, "weight_grad": 9}


def lengths_of(tokens: int, ends: Any, kind: int = 0) -> list[int]:
    ends = list(ends or [tokens])
    return ends if kind == 1 else [int(n) for n in np.diff([0, *ends])]


def windows_of(tokens: int, ends: Any, width: int, stride: int, kind: int = 0) -> int:
    return sum((n - width) // stride + 1 for n in lengths_of(tokens, ends, kind) if n >= width)


def arrays(dtype: str = F16, tokens: int = 80, heads: int = 2, depth: int = 16, ends: Any = None, width: int = 32,
           stride: int = 16, kind: int = 0, seed: int = 1) -> list[Any]:  # fmt: skip
    """All parameters in the documents' order, the outputs NaN."""
    rng = np.random.default_rng(seed)
    blocks = windows_of(tokens, ends, width, stride, kind)
    grad, x = normal(rng, (blocks, heads, depth), dtype), normal(rng, (tokens, heads, depth), dtype)
    weight = normal(rng, (width, heads), dtype)
    nan = [np.full(a.shape, np.nan, a.dtype) for a in (x, weight)]
    return [grad, x, weight, ends, width, stride, kind, "TND", *nan]


def check(call: list[Any], roundings: float = 8.0) -> None:
    grad, x, weight, ends, width, stride, kind = call[:7]
    keywords = {"compress_block_size": width, "compress_stride": stride, "act_seq_len_type": kind}
    golden = reference.nsa_compress_grad(grad, x, weight, ends, **keywords)
    sizes = [np.abs(wide(a)) for a in (grad, x, weight)]
    terms = reference.nsa_compress_grad(*sizes, ends, **keywords)
    for actual, value, term in zip(call[8:], golden, terms, strict=True):
        assert_close(actual, value, term, roundings, arithmetic_of(x))


def compute(grad: Array, x: Array, weight: Array, ends: Any, width: int, stride: int, kind: int = 0, *_: Any) -> Any:
    return descend.nsa_compress_grad(
        grad, x, weight, ends, compress_block_size=width, compress_stride=stride, act_seq_len_type=kind
    )


# --- the contract -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("product", HERE)
def test_every_combination_of_floating_dtypes(product):
    pool = {d: arrays(d) for d in FLOATS}
    with acl.product(product):
        for dtypes in itertools.product(FLOATS, repeat=5):
            call = list(pool[F32])
            for place, dtype in zip(TENSORS.values(), dtypes, strict=True):
                call[place] = pool[dtype][place]
            if len(set(dtypes)) == 1 and (product == "host" or product in PAGE.get(dtypes[0], ())):
                phase1(OP, *call)
            else:
                with refused(161002, OP, product):
                    phase1(OP, *call)


@pytest.mark.parametrize("product", HERE)
@pytest.mark.parametrize("name", TENSORS)
def test_no_other_dtype_in_any_place(product, name):
    for wrong in DTYPES:
        if wrong not in FLOATS:
            call = arrays()
            call[TENSORS[name]] = np.zeros(call[TENSORS[name]].shape, DTYPES[wrong])
            with acl.product(product), refused(161002, OP, f" {name} has dtype {wrong}, but must be "):
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
@pytest.mark.parametrize("name", TENSORS)
def test_null(product, name):
    call = arrays()
    call[TENSORS[name]] = None
    with acl.product(product), refused(161001, OP, f" {name} is null"):
        phase1(OP, *call)


@pytest.mark.parametrize("product", HERE)
def test_optional_parameters(product):
    for ends, layout in ((None, None), ([], "TND"), ([80], None), ([0, 80], "TND"), ([0, 0, 80, 80], None)):
        call = arrays()
        call[3], call[7] = ends, layout
        run_two_phase(OP, *call, product=product)
        check(call)


@pytest.mark.parametrize("product", HERE)
@pytest.mark.parametrize("name", TENSORS)
def test_ranks_are_looked_at_first(product, name):
    right = 2 if "weight" in name else 3
    for rank in (0, 1, 2, 3, 4, 8):
        if rank == right:
            continue
        call = arrays()
        call[TENSORS[name]] = np.zeros((1,) * rank, np.int32)  # another dtype, too
        call[7] = "BSND"
        with acl.product(product), refused(561002, OP, f" {name} has shape", f"rank {right}"):
            phase1(OP, *call)


@pytest.mark.parametrize("product", HERE)
@pytest.mark.parametrize("name", TENSORS)
def test_what_cannot_be_read_comes_after_the_ranks(product, name):
    call, other = arrays(), "weight" if name == "input" else "input"
    call[TENSORS[name]] = np.ma.masked_array(call[TENSORS[name]])
    with acl.product(product):
        with refused(161002, OP, f" {name} is a masked array"):
            phase1(OP, *call)
        call[TENSORS[other]] = np.zeros(1, np.float16)
        with refused(561002, OP, f" {other} has shape [1]"):
            phase1(OP, *call)


@pytest.mark.parametrize("name", ["output_grad", "input", "weight"])
def test_what_cannot_be_read_comes_after_the_ranks_of_a_functional_call(name):
    call, other = arrays()[:3], "weight" if name == "input" else "input"
    sizes = {"compress_block_size": 32, "compress_stride": 16}
    call[TENSORS[name]] = np.ma.masked_array(call[TENSORS[name]])
    with refused(161002, OP, f" {name} is a masked array"):
        descend.nsa_compress_grad(*call, **sizes)
    call[TENSORS[other]] = np.zeros(1, np.float16)
    with refused(561002, OP, f" {other} has shape [1]"):
        descend.nsa_compress_grad(*call, **sizes)


# What is wrong, its status on the Atlas product, and words of the sentence. Everything else in the call is right.
@pytest.mark.parametrize(
    ("change", "status", "words"),
    [
        ({"layout": "BSND"}, 161002, ["layout is 'BSND'", "'TND'"]),
        ({"layout": ""}, 161002, ["layout is ''"]),
        ({"weight": (31, 2)}, 161002, ["weight has shape [31, 2]", "[32, 2]"]),
        ({"weight": (32, 3)}, 161002, ["weight has shape [32, 3]", "[32, 2]"]),
        ({"weight": (32, 1)}, 161002, ["weight has shape [32, 1]", "[32, 2]"]),
        ({"compress_block_size": 48}, 161002, ["weight has shape [32, 2]", "[48, 2]"]),
        ({"compress_stride": 0}, 561002, ["compress_stride is 0"]),
        ({"compress_stride": -16}, 561002, ["compress_stride is -16"]),
        ({"act_seq_len_type": 2}, 561002, ["act_seq_len_type is 2"]),
        ({"act_seq_len_type": -1}, 561002, ["act_seq_len_type is -1"]),
        ({"act_seq_len": [-1, 80]}, 561002, ["act_seq_len has -1 at index 0"]),
        ({"act_seq_len": [40, 30, 80]}, 561002, ["act_seq_len has 30 at index 1 after 40"]),
        ({"act_seq_len": [40, 81]}, 561002, ["act_seq_len has 81 at index 1", "80 tokens"]),
        ({"act_seq_len": [2**62, 2**63 - 1]}, 561002, ["80 tokens"]),
        ({"act_seq_len": [40, 80]}, 561002, ["output_grad has shape [4, 2, 16]", "[2, 2, 16]"]),
        ({"output_grad": (3, 2, 16)}, 561002, ["output_grad has shape [3, 2, 16]", "[4, 2, 16]"]),
        ({"output_grad": (4, 1, 16)}, 561002, ["output_grad has shape [4, 1, 16]", "[4, 2, 16]"]),
        ({"output_grad": (4, 2, 32)}, 561002, ["output_grad has shape [4, 2, 32]", "[4, 2, 16]"]),
        ({"input_grad": (80, 2, 32)}, 561002, ["input_grad has shape [80, 2, 32]", "[80, 2, 16]"]),
        ({"input_grad": (79, 2, 16)}, 561002, ["input_grad has shape [79, 2, 16]", "[80, 2, 16]"]),
        ({"weight_grad": (31, 2)}, 561002, ["weight_grad has shape [31, 2]", "[32, 2]"]),
    ],
)
@pytest.mark.parametrize("product", HERE)
def test_what_is_refused_everywhere(product, change, status, words):
    call = arrays()
    for name, value in change.items():
        place = NAMES.index(name)
        call[place] = np.zeros(value, np.float16) if name in TENSORS else value
    with acl.product(product), refused(status, OP, *words):
        phase1(OP, *call)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"width": 40}, "compress_block_size is 40, but must be a multiple of 16"),
        ({"stride": 8}, "compress_stride is 8, but must be a multiple of 16"),
        ({"width": 16}, "compress_block_size is 16, but must be greater than compress_stride, which is 16"),
        ({"width": 16, "stride": 32}, "compress_block_size is 16, but must be greater than"),
        ({"depth": 24}, "last dimension must be a multiple of 16"),
        ({"ends": [32, 48], "kind": 1}, "act_seq_len_type is 1, but must be 0"),
        ({"kind": 1}, "act_seq_len_type is 1, but must be 0"),
        ({"ends": [32, 64]}, "act_seq_len ends at 64, but must end at the number of tokens of input, 80"),
        ({"ends": [0, 0]}, "act_seq_len ends at 0"),
        ({"tokens": 31}, "output_grad has shape [0, 2, 16], but must not be empty"),
        ({"ends": [16, 31, 50, 80]}, "output_grad has shape [0, 2, 16], but must not be empty"),
        ({"heads": 0}, "output_grad has shape [4, 0, 16], but must not be empty"),
        ({"depth": 0}, "output_grad has shape [4, 2, 0], but must not be empty"),
        ({"tokens": 0}, "must not be empty"),
    ],
)
def test_what_only_host_takes(arguments, words):
    call = arrays(**arguments)
    with acl.product(A2), refused(561002, OP, words):
        phase1(OP, *call)
    run_two_phase(OP, *call, product="host")
    check(call)


def test_a_width_of_0():
    call = arrays()
    call[2] = call[9] = np.zeros((0, 2), np.float16)
    call[4] = 0
    for product in HERE:
        with acl.product(product), refused(561002, OP, "compress_block_size is 0, but must be at least 1"):
            phase1(OP, *call)


def test_order_of_checks():
    call = arrays()
    call[0], call[1], call[7] = None, np.zeros((80, 2), np.int8), "?"
    with acl.product("atlas-a3"):
        with refused(161001, OP, "output_grad is null"):
            phase1(OP, *call)
        call[0] = np.zeros((5, 2, 16), np.float16)
        with refused(561003, OP):
            phase1(OP, *call)
    with refused(561002, OP, "input has shape [80, 2]"):
        phase1(OP, *call)
    call[1] = np.zeros((80, 2, 16), np.int8)
    with refused(161002, OP, "input has dtype INT8"):
        phase1(OP, *call)
    call[1] = np.zeros((80, 2, 16), np.float16)
    call[5] = 15
    with refused(161002, OP, "layout is '?'"):
        phase1(OP, *call)
    call[7] = None
    with refused(561002, OP, "compress_stride is 15"):
        phase1(OP, *call)
    call[5] = 16
    with refused(561002) as found:
        phase1(OP, *call)
    expected = "output_grad has shape [5, 2, 16], but must be [4, 2, 16]: the windows of all sequences, then the heads"
    assert found.sentence == f"{OP}: {expected} and head size of input."


def test_the_first_phase_never_reads_the_elements():
    class Nowhere:
        def __init__(self, address: int, *shape: int) -> None:
            self.__array_interface__ = {"shape": shape, "typestr": "<f2", "data": (address << 60, False), "version": 3}

    tokens, heads, depth = 1 << 43, 1 << 3, 1 << 12
    blocks = (tokens - 32) // 16 + 1
    shapes = [(blocks, heads, depth), (tokens, heads, depth), (32, heads), (tokens, heads, depth), (32, heads)]
    grad, x, weight, input_grad, weight_grad = (np.asarray(Nowhere(i + 1, *s)) for i, s in enumerate(shapes))
    size, _ = phase1(OP, grad, x, weight, None, 32, 16, 0, None, input_grad, weight_grad)
    assert 0 < size < 1 << 20


# --- the numbers ------------------------------------------------------------------------------------------------------


def test_by_hand():
    x = np.arange(1.0, 6.0, dtype=np.float32).reshape(5, 1, 1)
    weight = np.array([[1.0], [10.0], [100.0]], np.float32)
    grad = np.array([1.0, 2.0, 4.0], np.float32).reshape(3, 1, 1)
    input_grad, weight_grad = compute(grad, x, weight, None, 3, 1)
    np.testing.assert_array_equal(input_grad.ravel(), [1, 10 + 2, 100 + 20 + 4, 200 + 40, 400])
    np.testing.assert_array_equal(weight_grad.ravel(), [1 + 4 + 12, 2 + 6 + 16, 3 + 8 + 20])


@pytest.mark.parametrize("dtype", FLOATS)
def test_worked_shape_of_the_document(dtype):
    call = arrays(dtype, 272, 64, 128, [0, 128, 272])
    assert len(call[0]) == 15
    run_two_phase(OP, *call, product="host" if dtype in (F32, "DOUBLE") else A2)
    check(call)


@st.composite
def problems(draw: st.DrawFn) -> dict[str, Any]:
    width = draw(st.one_of(st.integers(1, 20), st.sampled_from([32, 128, 600])))
    stride = draw(st.one_of(st.integers(1, 24), st.sampled_from([16, 1000])))
    heads, depth = draw(st.integers(0, 5)), draw(st.one_of(st.integers(0, 40), st.integers(41, 257)))
    lengths = draw(st.lists(st.one_of(st.integers(0, 3 * min(width, 100)), st.just(0)), max_size=12))
    rest = draw(st.sampled_from([0, 0, 7]))
    kind = draw(st.integers(0, 1))
    tokens = sum(lengths) + rest if lengths else draw(st.integers(0, 200))
    ends = lengths if kind else [int(n) for n in np.cumsum(lengths)]
    return {"dtype": draw(st.sampled_from(FLOATS)), "tokens": tokens, "heads": heads, "depth": depth,
            "ends": ends or None, "width": width, "stride": stride, "kind": kind}  # fmt: skip


@settings(deadline=None, max_examples=200)
@given(problem=problems(), seed=st.integers(0, 1000), places=st.tuples(*[layouts(3)] * 3, *[layouts(2)] * 2))
def test_any_shape_and_layout(problem, seed, places):
    call = arrays(**problem, seed=seed)
    outputs = [Place(a.shape, a.dtype, place) for a, place in zip(call[8:], places[2:4], strict=True)]
    call[0], call[1] = (placed(a, place) for a, place in zip(call[:2], places[:2], strict=True))
    call[2] = placed(call[2], places[4])
    call[8:] = [place.array for place in outputs]
    descend.nsa_compress_grad(
        *call[:4], compress_block_size=call[4], compress_stride=call[5], act_seq_len_type=call[6], out=call[8:]
    )
    check(call, 12.0)
    for place in outputs:
        place.check_guards()


def test_tokens_that_no_window_covers():
    # The rest of a sequence, a sequence that is too short, gaps between windows, tokens after the last sequence.
    call = arrays(F32, 200, 2, 5, [40, 45, 150], 10, 12)
    input_grad = compute(*call)[0]
    covered = np.zeros(200, np.bool_)
    for begin, end in ((0, 40), (40, 45), (45, 150)):
        for start in range(begin, end - 9, 12):
            covered[start : start + 10] = True
    np.testing.assert_array_equal((input_grad != 0).all(axis=(1, 2)), covered)
    np.testing.assert_array_equal((input_grad == 0).all(axis=(1, 2)), ~covered)


@pytest.mark.parametrize("count", [9, 100, 3000])
def test_many_sequences(count):
    rng = np.random.default_rng(count)
    ends = [int(n) for n in np.cumsum(rng.integers(0, 90, count))]
    call = arrays(F16, ends[-1], 1, 16, ends)
    run_two_phase(OP, *call, product=A2)
    check(call)


def test_windows_that_overlap_eight_times():
    call = arrays(BF16, 1000, 3, 64, [300, 1000], 128, 16)
    run_two_phase(OP, *call, product=A2)
    check(call)


# Windows that overlap up to sixteen times, and more; heads of every kind of length. Tokens, depth, width, stride.
OVERLAPS = [
    (500, 192, 80, 16),
    (400, 256, 48, 3),
    (400, 16, 60, 3),
    (300, 32, 33, 1),
    (350, 100, 96, 5),
    (300, 64, 7, 7),
    *((300, depth, 32, 16) for depth in (48, 79, 80, 96, 112, 129, 144, 160, 176, 208, 223, 224, 240)),
]


@pytest.mark.parametrize("dtype", [F32, F16, BF16])
@pytest.mark.parametrize(("tokens", "depth", "width", "stride"), OVERLAPS)
def test_overlaps_and_heads(tokens, depth, width, stride, dtype):
    call = arrays(dtype, tokens, 3, depth, [tokens // 3, tokens], width, stride)
    call[8], call[9] = compute(*call)
    check(call, 16.0)


# Strides beyond all tokens, up to the largest number that there is.
STRIDES = [(4, 1301), (4, 2**63 - 1), (1300, 2**63 - 1300), (600, 2**63 - 8), (1, 2**63 - 1)]


@pytest.mark.parametrize(("width", "stride"), STRIDES)
def test_strides_beyond_all_tokens(width, stride):
    call = arrays(F32, 1300, 3, 20, [500, 1300], width, stride)
    call[8], call[9] = compute(*call)
    check(call, 16.0)


@pytest.mark.parametrize(("width", "stride"), [(1100, 37), (513, 1), (512, 1030), (600, 5000)])
def test_more_positions_than_fit_at_once(width, stride):
    call = arrays(F32, 3000, 2, 20, [1400, 3000], width, stride)
    call[8], call[9] = compute(*call)
    check(call, 16.0)


@pytest.mark.parametrize(("depth", "dtype"), in_turn([32, 64, 80, 100], FLOATS, each=2))
@pytest.mark.parametrize("forward", [False, True])
def test_results_that_are_not_aligned_and_too_many_for_the_caches(forward, depth, dtype):
    """Heads that begin at quarters of cache lines are stored past the caches, by quarters."""
    tokens, width = 2**25 // (8 * depth * DTYPES[dtype].itemsize), 3  # 32 MB; the window's stride is 2
    call = arrays(dtype, tokens, 8, depth, [tokens // 3, tokens - 7], width, 2)
    keywords = {"compress_block_size": width, "compress_stride": 2}

    def run(beyond_line: int) -> Array:
        place = Place(call[0 if forward else 1].shape, dtype, beyond_line=beyond_line)
        with acl.product("host"):
            if forward:
                descend.nsa_compress(call[1], call[2], call[3], **keywords, out=place.array)
            else:
                descend.nsa_compress_grad(*call[:4], **keywords, out=(place.array, call[9]))
        place.check_guards()
        return place.array

    expected = run(0)
    for beyond_line in (16, 48, call[0].itemsize):
        assert_same_bits([run(beyond_line)], [expected])


def test_infinities_and_nan_stay_where_they_belong():
    call = arrays(F32, 100, 2, 8, [50, 100], 8, 4)
    call[1][20, 1, 3] = np.nan
    call[0][15, 0, 2] = np.inf
    call[8], call[9] = compute(*call)
    check(call)
    assert np.isfinite(call[8][:, 1]).all()
    assert not np.isfinite(call[9]).all()


def test_in_place_and_aliases():
    call = arrays(F32, 300, 3, 32, [100, 300])
    expected = compute(*call)
    x, weight = call[1].copy(), call[2].copy()
    descend.nsa_compress_grad(call[0], x, weight, call[3], compress_block_size=32, compress_stride=16, out=(x, weight))
    assert_same_bits((x, weight), expected)
    with acl.product("host"), refused(161002, OP, "input_grad overlaps input"):
        phase1(OP, *call[:8], call[1][::-1], call[9])


def test_the_error_of_weight_grad_does_not_grow_with_the_tokens():
    rng = np.random.default_rng(7)
    errors = []
    for tokens in (2_000, 128_000):
        call = arrays(F32, tokens, 1, 16, None, 32, 16)
        call[0] = np.abs(call[0]) + np.float32(1)
        call[1] = np.abs(normal(rng, call[1].shape)) + np.float32(1)
        golden = reference.nsa_compress_grad(*call[:3], compress_block_size=32, compress_stride=16)[1]
        errors.append(np.sqrt(np.mean((compute(*call)[1] / golden - 1) ** 2)))
    assert errors[1] < 1.5 * errors[0] + 1e-8


# --- other witnesses --------------------------------------------------------------------------------------------------


def torch_forward(x: Any, weight: Any, ends: Any, width: int, stride: int) -> Any:
    import torch

    parts, first = [], 0
    for end in ends or [len(x)]:
        if end - first >= width:
            windows = x[first:end].unfold(0, width, stride)  # [windows, N, D, W]
            parts.append(torch.einsum("cndw,wn->cnd", windows, weight))
        first = end
    return torch.cat(parts)


def test_pytorchs_autograd_agrees():
    torch = pytest.importorskip("torch")
    grad, x, weight, ends, *_ = (torch.tensor(a) if isinstance(a, np.ndarray) else a
                                 for a in arrays("DOUBLE", 300, 3, 10, [90, 95, 300], 20, 6))  # fmt: skip
    ours = compute(grad, x, weight, ends, 20, 6)
    forward = descend.nsa_compress(x, weight, ends, compress_block_size=20, compress_stride=6)
    x.requires_grad_()
    weight.requires_grad_()
    y = torch_forward(x, weight, ends, 20, 6)
    y.backward(grad)
    torch.testing.assert_close(forward, y.detach(), rtol=1e-12, atol=1e-13)
    torch.testing.assert_close(ours[0], x.grad, rtol=1e-12, atol=1e-13)
    torch.testing.assert_close(ours[1], weight.grad, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_at_least_as_exact_as_pytorch(dtype):
    torch = pytest.importorskip("torch")
    name = {"float32": F32, "float16": F16, "bfloat16": BF16}[dtype]
    ratios: dict[str, list[precision.Limits]] = {"output": [], "input_grad": [], "weight_grad": []}
    for seed in range(20):
        grad, x, weight, *_ = (torch.tensor(a.astype(np.float32)).to(getattr(torch, dtype)) for a in
                               arrays(name, 512, 2, 64, None, 32, 16, seed=seed)[:3])  # fmt: skip
        forward = descend.nsa_compress(x, weight, compress_block_size=32, compress_stride=16)
        ours = (forward, *compute(grad, x, weight, None, 32, 16))
        leaf, parameter = x.clone().requires_grad_(), weight.clone().requires_grad_()
        y = torch_forward(leaf, parameter, None, 32, 16)
        y.backward(grad)
        exact = [a.double().numpy() for a in (grad, x, weight)]
        keywords = {"compress_block_size": 32, "compress_stride": 16}
        golden = (reference.nsa_compress(*exact[1:], **keywords), *reference.nsa_compress_grad(*exact, **keywords))
        for key, our, their, gold in zip(ratios, ours, (y, leaf.grad, parameter.grad), golden, strict=True):
            a, b = our.double().numpy(), their.detach().double().numpy()
            ratios[key].append(precision.double_benchmark(a, b, gold, "L2", DTYPES[name]).ratios)
            assert ratios[key][-1].rmse <= 1.01, (key, seed, ratios[key][-1])
    for key, found in ratios.items():
        medians = [float(np.median(column)) for column in zip(*found, strict=True)]
        assert max(medians) <= 1.001, (key, medians)


@pytest.mark.parametrize("product", HUAWEI)
@pytest.mark.parametrize("dtype", [F32, "DOUBLE"])
def test_wide_dtypes_are_for_host_alone(product, dtype):
    with acl.product(product), refused(561003 if product in NOT_HERE else 161002, OP):
        phase1(OP, *arrays(dtype))
