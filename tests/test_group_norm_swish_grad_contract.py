"""GroupNormSwishGrad's contract, row by row."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import descend
from cases import A2_TO_950, DTYPES, FLOATS, PRODUCTS, Place, assert_same_bits, phase1, refused, run_two_phase
from descend import acl
from test_group_norm_swish_grad import BF16, F16, F32, HERE, OP, TENSORS, arguments, check, inputs, tensors

# The page's table: every tensor as dy, which is one of the three.
PAGE = tuple((dtype,) * 9 for dtype in (F32, F16, BF16))
NOT_HERE = ("atlas-200i-500-a2", "atlas-inference", "atlas-training")


def allowed(product: str, dtypes: tuple[str, ...]) -> bool:
    if product == "host":
        # dy and x alike; any mix of floating dtypes for the rest.
        return dtypes[0] == dtypes[3] and all(d in FLOATS for d in dtypes)
    return dtypes in PAGE


@pytest.mark.parametrize("product", HERE)
def test_dtypes_row_by_row(product):
    pool = {d: tensors(dtypes=(d,) * 9) for d in FLOATS}
    # All pairs of places: every combination of four dtypes in nine places would be 262144.
    for main in FLOATS:
        for (i, first), (j, second) in itertools.product(itertools.product(range(9), FLOATS), repeat=2):
            dtypes = [main] * 9
            dtypes[i], dtypes[j] = first, second
            call = {name: pool[d][name] for name, d in zip(TENSORS, dtypes, strict=True)}
            with acl.product(product):
                if allowed(product, tuple(dtypes)):
                    phase1(OP, *arguments(call))
                else:
                    with refused(161002, OP, product):
                        phase1(OP, *arguments(call))


@pytest.mark.parametrize("product", HERE)
@pytest.mark.parametrize("wrong", [d for d in DTYPES if d not in FLOATS])
def test_no_other_dtype_in_any_place(product, wrong):
    for name in TENSORS:
        call = tensors()
        call[name] = np.zeros(call[name].shape, DTYPES[wrong])
        with acl.product(product), refused(161002, OP, f" {name} has dtype {wrong}, but must be "):
            phase1(OP, *arguments(call))


@pytest.mark.parametrize("row", PAGE, ids=lambda row: row[0])
@pytest.mark.parametrize("product", HERE)
def test_every_row_computes(row, product):
    call = tensors((3, 8, 5, 7), 4, row)
    run_two_phase(OP, *arguments(call), product=product)
    check(list(call.values())[6:], inputs(call), 4)


@pytest.mark.parametrize("product", NOT_HERE)
def test_products_without_the_operator(product):
    with acl.product(product), refused(561003, OP, product, *HERE):
        phase1(OP, *arguments(tensors()))


@pytest.mark.parametrize("product", PRODUCTS)
@pytest.mark.parametrize("name", TENSORS)
@pytest.mark.parametrize("wanted", [True, False])
def test_null_whatever_the_flags(product, name, wanted):
    call = tensors()
    call[name] = None
    with acl.product(product), refused(161001, OP, f" {name} is null"):
        phase1(OP, *arguments(call, dgamma=wanted, dbeta=wanted))


# What is wrong in a call of x [2, 8, 3] with 4 groups.
SHAPES_TO_REFUSE = [
    ("dy", (2, 8, 4), "[2, 8, 4]", "[2, 8, 3]"),
    ("dy", (2, 24), "[2, 24]", "[2, 8, 3]"),
    ("dy", (2, 8, 3, 1), "[2, 8, 3, 1]", "[2, 8, 3]"),
    ("mean", (2, 3), "[2, 3]", "4 groups", "2 samples"),
    ("mean", (9,), "[9]", "4 groups", "2 samples"),
    ("mean", (), "[]", "4 groups", "2 samples"),
    ("rstd", (2, 8), "[2, 8]", "4 groups", "2 samples"),
    ("rstd", (0, 4), "[0, 4]", "4 groups", "2 samples"),
    ("gamma", (7,), "[7]", "[8]"),
    ("gamma", (8, 1), "[8, 1]", "[8]"),
    ("gamma", (), "[]", "[8]"),
    ("beta", (4,), "[4]", "[8]"),
    ("dx_out", (2, 24), "[2, 24]", "[2, 8, 3]"),
    ("dgamma_out", (1, 8), "[1, 8]", "[8]"),
    ("dgamma_out", (4,), "[4]", "[8]"),
    ("dbeta_out", (9,), "[9]", "[8]"),
    ("dbeta_out", (), "[]", "[8]"),
]


@pytest.mark.parametrize("product", HERE)
@pytest.mark.parametrize(("name", "shape", "words"), [(n, s, w) for n, s, *w in SHAPES_TO_REFUSE])
@pytest.mark.parametrize("wanted", [True, False])
def test_shapes(product, name, shape, words, wanted):
    call = tensors()
    call[name] = np.zeros(shape, np.float32)
    with acl.product(product), refused(561002, OP, name, *words):
        phase1(OP, *arguments(call, dgamma=wanted, dbeta=wanted))


@pytest.mark.parametrize("product", HERE)
@pytest.mark.parametrize("shape", [(2, 4), (8,), (8, 1), (1, 2, 2, 2, 1)])
def test_statistics_have_any_shape_of_that_many_elements(product, shape):
    call = tensors()
    call["mean"], call["rstd"] = call["mean"].reshape(shape), call["rstd"].reshape(shape)
    run_two_phase(OP, *arguments(call), product=product)
    check(list(call.values())[6:], inputs(call), 4)


@pytest.mark.parametrize("product", HERE)
def test_ranks(product):
    with acl.product(product):
        for rank in range(2, 9):
            phase1(OP, *arguments(tensors((2, 8) + (1,) * (rank - 2))))
        for shape in ((8,), ()):
            call = tensors()
            call["dy"] = call["x"] = np.zeros(shape, np.float32)
            call["dx_out"] = np.zeros(shape, np.float32)
            with refused(561002, OP, "x has shape", "rank 2 to 8"):
                phase1(OP, *arguments(call))
        call = tensors()
        for name in ("dy", "x", "dx_out"):
            call[name] = np.zeros((2, 8) + (1,) * 7, np.float32)
        with refused(161002, OP, "dy", "rank 9", "8"):
            phase1(OP, *arguments(call))


@pytest.mark.parametrize("product", HERE)
def test_num_groups(product):
    with acl.product(product):
        for groups in (1, 2, 4, 8):
            phase1(OP, *arguments(tensors(groups=groups), groups))
        for groups in (0, -1, -(2**63)):
            with refused(561002, OP, f"num_groups is {groups}, but must be positive"):
                phase1(OP, *arguments(tensors(), groups))
        for groups in (3, 5, 16, 2**62):
            with refused(561002, OP, f"num_groups is {groups}", "divide", "8 channels"):
                phase1(OP, *arguments(tensors(), groups))


@pytest.mark.parametrize("product", HERE)
def test_channels_a_group(product):
    with acl.product(product):
        phase1(OP, *arguments(tensors((1, 4000), 1), 1))
        phase1(OP, *arguments(tensors((1, 8000, 1), 2), 2))
        for channels, groups in ((4001, 1), (8002, 2)):
            call = arguments(tensors((1, channels), groups), groups)
            if product == "host":
                phase1(OP, *call)
            else:
                with refused(561002, OP, "num_groups", "4001", "4000", product):
                    phase1(OP, *call)


@pytest.mark.parametrize("product", A2_TO_950)
@pytest.mark.parametrize("shape", [(0, 8, 3), (2, 8, 0), (2, 0, 3), (0, 0)])
def test_empty_tensors_are_for_host(product, shape):
    with acl.product(product), refused(561002, OP, "empty", product):
        phase1(OP, *arguments(tensors(shape)))


@pytest.mark.parametrize("data_format", [None, "", "NCHW", "NHWC", "whatever"])
def test_the_format_is_not_read(data_format):
    call, other = tensors(), tensors()
    run_two_phase(OP, *arguments(call, data_format=data_format), product="atlas-a3")
    run_two_phase(OP, *arguments(other), product="atlas-a3")
    assert_same_bits(list(call.values()), list(other.values()))


def test_order_of_checks():
    call = tensors()
    call["rstd"] = None
    call["beta"] = np.zeros(3, np.int32)
    call["dx_out"] = call["dy"].reshape(2, 3, 8)
    with acl.product("atlas-training"), refused(161001, OP, "rstd is null"):
        phase1(OP, *arguments(call, 0))
    call["rstd"] = np.zeros(3, np.float32)
    with acl.product("atlas-training"), refused(561003, OP):
        phase1(OP, *arguments(call, 0))
    with acl.product("atlas-a3"):
        with refused(161002, OP, "beta has dtype INT32"):
            phase1(OP, *arguments(call, 0))
        call["beta"] = np.zeros(8, np.float32)
        with refused(161002, OP, "dx_out overlaps dy"):
            phase1(OP, *arguments(call, 0))
        call["dx_out"] = np.zeros((2, 8, 3), np.float32)
        with refused(561002, OP, "num_groups is 0"):
            phase1(OP, *arguments(call, 0))
        with refused(561002, OP, "rstd has shape [3]"):
            phase1(OP, *arguments(call))


def test_nothing_is_written_where_a_call_fails():
    call = tensors()
    places = [Place((2, 8, 3)), Place((8,)), Place((8,))]
    for groups in (0, 3):
        with pytest.raises(ValueError, match=OP):
            descend.group_norm_swish_grad(*inputs(call), groups, out=tuple(p.array for p in places))
    for place in places:
        place.check_untouched()
