"""RmsNormGrad's contract, row by row."""

from __future__ import annotations

import itertools
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest

import descend
from cases import (
    A2_TO_950,
    DTYPES,
    FLOATS,
    HUAWEI,
    PRODUCTS,
    Layout,
    Place,
    normal,
    phase1,
    placed,
    refused,
    run_two_phase,
)
from descend import acl
from test_rms_norm_grad import BF16, F16, F32, HERE, NAMES, OP, arrays, check

# The page's table: dy, x, rstd, gamma, dx, dgamma, products.
PAGE = (
    (F16, F16, F32, F32, F16, F32, A2_TO_950),
    (BF16, BF16, F32, F32, BF16, F32, A2_TO_950),
    (F16, F16, F32, F16, F16, F32, (*A2_TO_950, "atlas-inference")),
    (F32, F32, F32, F32, F32, F32, (*A2_TO_950, "atlas-inference")),
    (BF16, BF16, F32, BF16, BF16, F32, A2_TO_950),
)
NOT_HERE = ("atlas-200i-500-a2", "atlas-training")
STRICT = tuple(p for p in HERE if p not in ("host", "ascend-950"))  # neither empty tensors nor strided inputs


def allowed(product: str, dtypes: tuple[str, ...]) -> bool:
    if product == "host":
        # Any mix of floating dtypes for rstd, gamma and the outputs.
        return dtypes[0] == dtypes[1] and all(d in FLOATS for d in dtypes)
    return any(row[:6] == tuple(dtypes) and product in row[6] for row in PAGE)


@pytest.mark.parametrize("product", HERE)
def test_every_combination_of_floating_dtypes(product):
    pool = {d: arrays((d,) * 6) for d in FLOATS}
    with acl.product(product):
        for dtypes in itertools.product(FLOATS, repeat=6):
            call = [pool[d][i] for i, d in enumerate(dtypes)]
            if allowed(product, dtypes):
                phase1(OP, *call)
            else:
                with refused(161002, OP, product):
                    phase1(OP, *call)


@pytest.mark.parametrize("product", HERE)
@pytest.mark.parametrize("wrong", [d for d in DTYPES if d not in FLOATS])
def test_no_other_dtype_in_any_place(product, wrong):
    for row in PAGE:
        if product != "host" and product not in row[6]:
            continue
        for place, name in enumerate(NAMES):
            call = arrays(row[:6])
            call[place] = np.zeros(call[place].shape, DTYPES[wrong])
            with acl.product(product), refused(161002, OP, f" {name} has dtype {wrong}, but must be "):
                phase1(OP, *call)


@pytest.mark.parametrize("row", PAGE, ids=lambda row: "-".join(row[:6]))
@pytest.mark.parametrize("product", HERE)
def test_every_row_computes_where_it_exists(row, product):
    if product != "host" and product not in row[6]:
        with acl.product(product), refused(161002, OP):
            phase1(OP, *arrays(row[:6]))
        return
    call = arrays(row[:6], (3, 4, 48), 2)
    run_two_phase(OP, *call, product=product)
    check(call[4], call[5], *call[:4])


@pytest.mark.parametrize("product", HUAWEI)
@pytest.mark.parametrize("place", range(6))
def test_double_is_for_host_alone(product, place):
    call = arrays()
    call[place] = call[place].astype(np.float64)
    status, words = (561003, "does not exist on " + product) if product in NOT_HERE else (161002, "DOUBLE")
    with acl.product(product), refused(status, OP, words):
        phase1(OP, *call)


def test_bfloat16_does_not_exist_on_atlas_inference():
    call = arrays((BF16, BF16, F32, F32, BF16, F32))
    with acl.product("atlas-inference"), refused(161002, OP, "dy has dtype BFLOAT16, but must be FLOAT or FLOAT16"):
        phase1(OP, *call)


@pytest.mark.parametrize("product", NOT_HERE)
def test_products_without_the_operator(product):
    with acl.product(product), refused(561003, OP, product, *HERE):
        phase1(OP, *arrays())


@pytest.mark.parametrize("product", PRODUCTS)
@pytest.mark.parametrize("place", range(6))
def test_null(product, place):
    call: list[Any] = arrays()
    call[place] = None
    with acl.product(product), refused(161001, OP, f" {NAMES[place]} is null"):
        phase1(OP, *call)


# (place, shape, words): what is wrong in a call of shape [2, 3, 16] with gamma [16] and rstd [2, 3].
SHAPES_TO_REFUSE = [
    ("dy", (2, 3, 17), "[2, 3, 17]", "[2, 3, 16]"),
    ("dy", (6, 16), "[6, 16]", "[2, 3, 16]"),
    ("dy", (2, 3, 16, 1), "[2, 3, 16, 1]", "[2, 3, 16]"),
    ("x", (2, 3, 1), "[2, 3, 16]", "[2, 3, 1]"),
    ("rstd", (2,), "[2]", "[2, 3]"),
    ("rstd", (3, 2), "[3, 2]", "[2, 3]"),
    ("rstd", (6,), "[6]", "[2, 3]"),
    ("rstd", (1, 2, 3), "[1, 2, 3]", "[2, 3]"),
    ("rstd", (2, 3, 16), "[2, 3, 16]", "[2, 3]"),
    ("rstd", (), "[]", "[2, 3]"),
    ("gamma", (15,), "[15]", "[2, 3, 16]"),
    ("gamma", (2, 3), "[2, 3]", "[2, 3, 16]"),
    ("gamma", (16, 1), "[16, 1]", "[2, 3, 16]"),
    ("gamma", (1,), "[1]", "[2, 3, 16]"),
    ("gamma", (), "[]", "[2, 3, 16]"),
    ("gamma", (1, 2, 3, 16), "[1, 2, 3, 16]", "[2, 3, 16]"),
    ("dx_out", (6, 16), "[6, 16]", "[2, 3, 16]"),
    ("dx_out", (2, 3, 15), "[2, 3, 15]", "[2, 3, 16]"),
    ("dgamma_out", (1, 16), "[1, 16]", "[16]"),
    ("dgamma_out", (3, 16), "[3, 16]", "[16]"),
    ("dgamma_out", (), "[]", "[16]"),
]


@pytest.mark.parametrize("product", HERE)
@pytest.mark.parametrize(("name", "shape", "got", "must"), SHAPES_TO_REFUSE)
def test_shapes(product, name, shape, got, must):
    call = arrays(shape=(2, 3, 16), leading=2)
    call[NAMES.index(name)] = np.zeros(shape, np.float32)
    with acl.product(product), refused(561002, OP, name, got, must):
        phase1(OP, *call)


def test_the_sentence_of_the_contract():
    call = arrays(shape=(2, 1, 32), leading=2)
    call[3] = call[5] = np.zeros(16, np.float32)
    with refused(561002) as found:
        phase1(OP, *call)
    expected = "gamma has shape [16], but must equal the last dimensions of x, whose shape is [2, 1, 32]."
    assert found.sentence == f"rms_norm_grad: {expected}"
    call = arrays(shape=(4, 32), leading=1)
    call[2] = np.zeros((5, 1), np.float32)
    with refused(561002) as found:
        phase1(OP, *call)
    expected = "rstd has shape [5, 1], but must have the dimensions of x before those of gamma, [4]; "
    assert found.sentence == f"rms_norm_grad: {expected}trailing dimensions of 1 do not count."


@pytest.mark.parametrize("product", HERE)
def test_ranks(product):
    for rank in range(1, 9):
        shape = (1,) * (rank - 1) + (16,)
        for leading in range(rank):
            call = arrays(shape=shape, leading=leading)
            if product == "ascend-950":  # whose page has other ranks
                wrong = "x has shape" if rank < 2 else "rstd has shape []" if leading < 1 else None
                with acl.product(product), refused(561002, OP, wrong, "rank", product) if wrong else nullcontext():
                    phase1(OP, *call)
                call[2] = call[2].reshape(shape[:leading] or (1,))
                if rank < 2:
                    continue
                if rank - leading > 7:
                    with acl.product(product), refused(561002, OP, "gamma has shape", "rank 1 to 7", product):
                        phase1(OP, *call)
                    continue
            with acl.product(product):
                phase1(OP, *call)
    scalar = np.zeros((), np.float32)
    with acl.product(product):
        with refused(561002, OP, "rank 0"):
            phase1(OP, *[scalar] * 4, np.zeros((), np.float32), np.zeros((), np.float32))
        nine = [np.zeros(s, np.float32) for s in ((1,) * 8 + (16,),) * 2 + ((1,) * 8, (16,), (1,) * 8 + (16,), (16,))]
        with refused(161002, OP, "dy", "rank 9", "8"):
            phase1(OP, *nine)


@pytest.mark.parametrize("product", HERE)
@pytest.mark.parametrize(
    ("shape", "leading", "rstd"),
    [
        ((2, 1, 16), 2, (2,)),
        ((2, 1, 16), 2, (2, 1)),
        ((2, 1, 16), 2, (2, 1, 1)),
        ((2, 3, 16), 2, (2, 3, 1)),
        ((2, 3, 16), 2, (2, 3, 1, 1, 1, 1, 1, 1)),
        ((2, 3, 16), 0, (1,)),
        ((2, 3, 16), 0, ()),
        ((2, 3, 16), 0, (1, 1, 1)),
        ((1, 1, 16), 2, ()),
        ((1, 1, 16), 1, (1, 1, 1, 1)),
    ],
)
def test_trailing_ones_of_rstd_do_not_count(product, shape, leading, rstd):
    call = arrays(shape=shape, leading=leading)
    call[2] = normal(np.random.default_rng(3), rstd)
    if product == "ascend-950" and not 1 <= len(rstd) <= 7:
        with acl.product(product), refused(561002, OP, "rstd has shape", "rank 1 to 7", product):
            phase1(OP, *call)
        return
    run_two_phase(OP, *call, product=product)
    check(call[4], call[5], *call[:4])


@pytest.mark.parametrize("product", STRICT)
@pytest.mark.parametrize(("shape", "leading"), [((0, 16), 1), ((2, 0), 1), ((0,), 0), ((2, 0, 16), 2), ((2, 16, 0), 1)])
def test_empty_tensors_are_for_few(product, shape, leading):
    with acl.product(product), refused(561002, OP, "empty", product):
        phase1(OP, *arrays(shape=shape, leading=leading))


@pytest.mark.parametrize("product", STRICT)
@pytest.mark.parametrize("place", range(4))
def test_strided_inputs_are_for_few(product, place):
    call = arrays(shape=(4, 5, 16), leading=2)
    values = call[place]
    turned = np.asfortranarray(values) if values.ndim > 1 else placed(values, Layout((0,), (2,)))
    call[place] = turned
    with acl.product(product), refused(561002, OP, f" {NAMES[place]} has strides", "contiguous", product):
        phase1(OP, *call)
    for tolerant in ("host", "ascend-950"):
        run_two_phase(OP, *call, product=tolerant)
        check(call[4], call[5], *call[:4])


@pytest.mark.parametrize("product", HERE)
def test_strides_of_ones_and_strided_outputs_are_fine_everywhere(product):
    rng = np.random.default_rng(5)
    base = normal(rng, (4, 3, 16))
    x = base[1::3][:, :1]  # one row: its strides do not count
    assert x.shape == (1, 1, 16)
    dy = normal(rng, (1, 1, 16))
    dx = Place((1, 1, 16), F32, Layout((2, 0, 1), (-2, 1, 3)))
    dgamma = Place((16,), F32, Layout((0,), (-3,)))
    rstd, gamma = normal(rng, (1, 1)), normal(rng, (16,))
    run_two_phase(OP, dy, x, rstd, gamma, dx.array, dgamma.array, product=product)
    check(dx.array, dgamma.array, dy, x, rstd, gamma)
    dx.check_guards()
    dgamma.check_guards()


@pytest.mark.parametrize(("dtype", "shortest"), [(F32, 8), (F16, 16)])
def test_last_axes_of_32_bytes_on_atlas_inference(dtype, shortest):
    row = (dtype, dtype, F32, dtype, dtype, F32)
    for columns in (1, shortest - 1, shortest, shortest + 1):
        call = arrays(row, (2, columns))
        for product in HERE:
            with acl.product(product):
                if product == "atlas-inference" and columns < shortest:
                    size = DTYPES[dtype].itemsize * columns
                    with refused(561002, OP, "last axis", f"{size} bytes", "32"):
                        phase1(OP, *call)
                else:
                    phase1(OP, *call)
    # The last axis counts, not the whole row.
    with acl.product("atlas-inference"), refused(561002, OP, "last axis"):
        phase1(OP, *arrays(row, (2, 64, shortest - 1), 1))


def test_order_of_checks():
    """Null, product, dtype, overlap, then the page's rules: each is reported once the earlier ones are right."""
    call: list[Any] = arrays(shape=(2, 16))
    call[1] = None
    call[2] = np.zeros(3, np.int32)
    call[3] = np.zeros(15, np.float32)
    call[4] = call[0].reshape(16, 2)
    with acl.product("atlas-training"), refused(161001, OP, "x is null"):
        phase1(OP, *call)
    call[1] = np.asfortranarray(normal(np.random.default_rng(0), (2, 16)))
    with acl.product("atlas-training"), refused(561003, OP):
        phase1(OP, *call)
    with acl.product("atlas-a3"):
        with refused(161002, OP, "rstd has dtype INT32"):
            phase1(OP, *call)
        call[2] = np.zeros(3, np.float32)
        with refused(161002, OP, "dx_out overlaps dy"):
            phase1(OP, *call)
        call[4] = np.zeros((2, 16), np.float32)
        with refused(561002, OP, "gamma has shape [15]"):
            phase1(OP, *call)
        call[3] = np.zeros(16, np.float32)
        with refused(561002, OP, "rstd has shape [3]"):
            phase1(OP, *call)
        call[2] = np.zeros(2, np.float32)
        with refused(561002, OP, "x has strides"):
            phase1(OP, *call)
        call[1] = np.ascontiguousarray(call[1])
        phase1(OP, *call)


def test_nothing_is_written_where_a_call_fails():
    dx, dgamma = Place((2, 16)), Place((16,))
    dy, x, rstd, gamma = arrays()[:4]
    bad = [
        (None, x, rstd, gamma),
        (dy.astype(np.int32), x, rstd, gamma),
        (dy, x.astype(np.float16), rstd, gamma),
        (dy, x, rstd[:1], gamma),
        (dy, x, rstd, gamma[:5]),
        (dy[:, :15], x, rstd, gamma),
    ]
    for inputs in bad:
        with pytest.raises(ValueError, match=OP):
            descend.rms_norm_grad(*inputs, out=(dx.array, dgamma.array))
        with pytest.raises(ValueError, match=OP):
            phase1(OP, *inputs, dx.array, dgamma.array)
    with pytest.raises(ValueError, match=OP):
        descend.rms_norm_grad(dy, x, rstd, gamma, out=(dx.array, np.zeros(15, np.float32)))
    # The first phase writes nothing.
    with acl.product("host"):
        phase1(OP, dy, x, rstd, gamma, dx.array, dgamma.array)
    dx.check_untouched()
    dgamma.check_untouched()


def test_the_first_phase_never_reads_the_elements():
    """Tensors of 2^60 bytes at addresses without memory: no size has 32 bits, and no element is read."""

    class Nowhere:
        def __init__(self, address: int, *shape: int) -> None:
            self.__array_interface__ = {"shape": shape, "typestr": "<f4", "data": (address << 60, False), "version": 3}

    m, n = 1 << 27, 1 << 31
    dy, x, dx = (np.asarray(Nowhere(i, m, n)) for i in (1, 2, 3))
    rstd, gamma, dgamma = np.asarray(Nowhere(4, m)), np.asarray(Nowhere(5, n)), np.asarray(Nowhere(6, n))
    with acl.product("atlas-a2-training"):
        size, _ = phase1(OP, dy, x, rstd, gamma, dx, dgamma)
        assert size >= 8 * n  # sums of columns, in double
        with refused(561002, OP, str([m, n - 1]), str([m, n])):
            phase1(OP, dy[:, 1:], x, rstd, gamma, dx, dgamma)
        with refused(161002, OP, "dx_out overlaps x"):
            phase1(OP, dy, x, rstd, gamma, np.asarray(Nowhere(2, n, m)), dgamma)
