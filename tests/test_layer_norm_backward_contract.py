"""LayerNormBackward's contract, row by row."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

import descend
from cases import DTYPES, FLOATS, HUAWEI, PRODUCTS, Place, assert_same_bits, digest, phase1, refused, run_two_phase
from descend import acl, aclnn
from test_layer_norm_backward import (
    BF16,
    DEVICE,
    F16,
    F32,
    HERE,
    INPUTS,
    MASKS,
    OP,
    OUTPUTS,
    TENSORS,
    arguments,
    check,
    compute,
    inputs,
    tensors,
)

NOT_HERE = ("atlas-200i-500-a2",)


def allowed(product: str, dtypes: tuple[str, ...]) -> bool:
    """The page's table; None stands for an absent tensor."""
    if any(d is not None and d not in DEVICE[product] for d in dtypes):
        return False
    if product == "host":
        return True
    return dtypes[0] == dtypes[1] and dtypes[4] in (None, dtypes[1], F32)


@pytest.mark.parametrize("product", HERE)
def test_dtypes_row_by_row(product):
    pool = {d: tensors(dtypes=(d,) * 9) for d in FLOATS}
    tried = set()
    # All pairs of places: every combination of four dtypes in nine places would be 262144.
    for main in FLOATS:
        for (i, first), (j, second) in itertools.product(itertools.product(range(9), FLOATS), repeat=2):
            dtypes = [main] * 9
            dtypes[i], dtypes[j] = first, second
            if tuple(dtypes) in tried:
                continue
            tried.add(tuple(dtypes))
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


@pytest.mark.parametrize("main", [F32, F16, BF16])
@pytest.mark.parametrize("weight", ["as input", F32, None])
@pytest.mark.parametrize("product", HERE)
def test_every_row_computes_where_it_exists(main, weight, product):
    """Each tensor gets another dtype than its neighbour, so that all choices occur."""
    for turn in range(3):
        other = [DEVICE[product][(turn + i) % len(DEVICE[product])] for i in range(6)]
        parameter = main if weight == "as input" else weight or F32
        dtypes = (main, main, other[0], other[1], parameter, other[2], *other[3:])
        call = tensors((3, 4, 48), 1, dtypes)
        if weight is None:
            call["weight"] = None
        given_dtypes = (*dtypes[:4], parameter if weight else None, *dtypes[5:])
        if not allowed(product, given_dtypes):
            with acl.product(product), refused(161002, OP):
                phase1(OP, *arguments(call))
            continue
        run_two_phase(OP, *arguments(call), product=product)
        check([call[n] for n in OUTPUTS], inputs(call))


@pytest.mark.parametrize("product", HUAWEI)
@pytest.mark.parametrize("name", TENSORS)
def test_double_is_for_host_alone(product, name):
    call = tensors()
    call[name] = call[name].astype(np.float64)
    status, words = (561003, "does not exist on " + product) if product in NOT_HERE else (161002, "DOUBLE")
    with acl.product(product), refused(status, OP, words):
        phase1(OP, *arguments(call))


@pytest.mark.parametrize("product", ["atlas-inference", "atlas-training"])
@pytest.mark.parametrize("name", TENSORS)
def test_bfloat16_does_not_exist_on_two_products(product, name):
    call = tensors()
    call[name] = call[name].astype(DTYPES[BF16])
    with acl.product(product), refused(161002, OP, f"{name} has dtype BFLOAT16, but must be FLOAT or FLOAT16"):
        phase1(OP, *arguments(call))


def test_the_product_without_the_operator():
    with acl.product("atlas-200i-500-a2"), refused(561003, OP, "atlas-200i-500-a2", *HERE):
        phase1(OP, *arguments(tensors()))


@pytest.mark.parametrize("product", PRODUCTS)
@pytest.mark.parametrize("name", [*INPUTS[:4], "normalized_shape", "output_mask", *OUTPUTS])
def test_null(product, name):
    call = tensors()
    values = arguments(call)
    values[_PLACES.index(name)] = None
    with acl.product(product), refused(161001, OP, f" {name} is null"):
        phase1(OP, *values)


_PLACES = (
    "grad_out", "input", "normalized_shape", "mean", "rstd", "weight", "bias", "output_mask", *OUTPUTS,
)  # fmt: skip


@pytest.mark.parametrize("product", HERE)
@pytest.mark.parametrize("weight", [True, False])
@pytest.mark.parametrize("bias", [True, False])
def test_weight_and_bias_may_be_null(product, weight, bias):
    call = tensors((5, 2, 8), 2)
    if not weight:
        call["weight"] = None
    if not bias:
        call["bias"] = None
    values = arguments(call, (2, 8))
    run_two_phase(OP, *values, product=product)
    check(values[8:], values[:7])
    # No weight is a weight of ones, and bias is not read.
    ones = tensors((5, 2, 8), 2)
    if not weight:
        ones["weight"][...] = 1
    ones["bias"][...] = np.nan
    assert_same_bits(values[8:], compute(inputs(ones)))


@pytest.mark.parametrize("product", HERE)
@pytest.mark.parametrize("mask", [(), (True,), (True, True), (False,) * 4, (True,) * 5])
def test_the_mask_has_three_entries(product, mask):
    """It is reported before any output is checked."""
    call = tensors()
    sentence = f"output_mask has length {len(mask)}, but must have length 3"
    with acl.product(product):
        for outputs in (
            {},
            dict.fromkeys(OUTPUTS),
            {"grad_input_out": np.zeros(3, np.int8)},
            {"grad_input_out": call["input"][:, :, ::-1]},
        ):
            with refused(161002, OP, sentence):
                phase1(OP, *arguments(call | outputs, mask=mask))
    with refused(161002, OP, sentence):
        descend.layer_norm_backward(*inputs(call), output_mask=mask)


@pytest.mark.parametrize("mask", [1, "yes", (1, 0, 1), [True, None, False], (True, True, 0.0)])
def test_the_mask_has_booleans(mask):
    with pytest.raises(TypeError, match=r"^layer_norm_backward: output_mask is an? [\w.]+, but must be a sequence of"):
        descend.layer_norm_backward(*inputs(tensors()), output_mask=mask)


# What a masked output may be: anything.
STRANGE: list[Any] = [
    None,
    np.zeros((3, 5), np.int8),
    np.zeros((2, 3, 16), np.float64),
    np.lib.stride_tricks.as_strided(np.zeros(1, np.float32), (2, 3, 16), (0, 0, 0)),
    np.zeros((1,) * 9, np.complex64),
]


@pytest.mark.parametrize("product", HERE)
@pytest.mark.parametrize("mask", MASKS)
def test_masked_outputs_are_ignored_altogether(product, mask):
    call = tensors()
    expected = compute(inputs(call))
    for strange in [*STRANGE, "input", "grad_out", "neighbour"]:
        places = {n: Place(call[n].shape) for n in OUTPUTS}
        changed = dict(call)
        for name, wanted in zip(OUTPUTS, mask, strict=True):
            if wanted:
                changed[name] = places[name].array
            elif isinstance(strange, str):
                # Memory of an input, or of the output beside it.
                changed[name] = call.get(strange, places["grad_input_out"].array)[::-1]
            else:
                changed[name] = strange
        before = digest(*(call[n] for n in INPUTS))
        run_two_phase(OP, *arguments(changed, mask=mask), product=product)
        assert digest(*(call[n] for n in INPUTS)) == before
        for name, wanted, value in zip(OUTPUTS, mask, expected, strict=True):
            if wanted:
                assert_same_bits([places[name].array], [value])
                places[name].check_guards()
            elif not isinstance(strange, str):
                places[name].check_untouched()


@pytest.mark.parametrize("shape", [(5, 40), (5, 9000), (1, 70_000), (300, 24), (0, 7)])
@pytest.mark.parametrize("mask", MASKS)
def test_each_result_is_the_same_alone(shape, mask):
    """And the functional form has None for the others, whether or not it got arrays for them."""
    call = inputs(tensors(shape))
    expected = compute(call)
    places = [Place(shape), Place(shape[1:]), Place(shape[1:])]
    for out in (None, tuple(p.array for p in places)):
        results = descend.layer_norm_backward(*call, output_mask=mask, out=out)
        assert [r is not None for r in results] == list(mask)
        assert_same_bits(
            [r for r in results if r is not None], [e for e, wanted in zip(expected, mask, strict=True) if wanted]
        )
    for place, wanted in zip(places, mask, strict=True):
        if not wanted:
            place.check_untouched()


@pytest.mark.parametrize("product", HERE)
def test_nothing_wanted_is_nothing_to_do(product):
    """The inputs are still checked; the workspace is 0 and may be null, and the executor does nothing."""
    call = tensors((300, 500)) | dict.fromkeys(OUTPUTS)
    nothing = (False, False, False)
    before = digest(*(call[n] for n in INPUTS))
    with acl.product(product):
        size, executor = phase1(OP, *arguments(call, mask=nothing))
        assert size == 0
        stream = acl.Stream()
        aclnn.layer_norm_backward(None, 0, executor, stream)
        stream.synchronize()
        assert executor.spent
        for name, wrong in (
            ("grad_out", np.zeros((300, 499), np.float32)),
            ("rstd", np.zeros((3, 1), np.float32)),
            ("weight", np.zeros(3, np.float32)),
            ("input", np.zeros((300, 500), np.int32)),
        ):
            with refused(161002, OP, name):
                phase1(OP, *arguments(call | {name: wrong}, (500,), nothing))
        with refused(161001, OP, "mean is null"):
            phase1(OP, *arguments(call | {"mean": None}, mask=nothing))
    assert digest(*(call[n] for n in INPUTS)) == before
    assert compute(inputs(call), output_mask=nothing) == (None, None, None)


# What is wrong in a call of input [2, 3, 16] with normalized_shape [16].
SHAPES_TO_REFUSE = [
    ("grad_out", (2, 3, 17), "[2, 3, 17]", "[2, 3, 16]"),
    ("grad_out", (6, 16), "[6, 16]", "[2, 3, 16]"),
    ("grad_out", (2, 3, 16, 1), "[2, 3, 16, 1]", "[2, 3, 16]"),
    ("mean", (2,), "[2]", "[2, 3]"),
    ("mean", (2, 3, 16), "[2, 3, 16]", "[2, 3]"),
    ("mean", (), "[]", "[2, 3]"),
    ("mean", (0, 6), "[0, 6]", "[2, 3]"),
    ("rstd", (7,), "[7]", "[2, 3]"),
    ("rstd", (6,), "[6]", "mean", "[2, 3, 1]"),
    ("rstd", (2, 3), "[2, 3]", "mean", "[2, 3, 1]"),
    ("weight", (15,), "[15]", "[16]"),
    ("weight", (16, 1), "[16, 1]", "[16]"),
    ("weight", (1,), "[1]", "[16]"),
    ("weight", (), "[]", "[16]"),
    ("weight", (3, 16), "[3, 16]", "[16]"),
    ("bias", (17,), "[17]", "[16]"),
    ("bias", (1, 16), "[1, 16]", "[16]"),
    ("bias", (), "[]", "[16]"),
    ("grad_input_out", (6, 16), "[6, 16]", "[2, 3, 16]"),
    ("grad_input_out", (2, 3, 15), "[2, 3, 15]", "[2, 3, 16]"),
    ("grad_weight_out", (15,), "[15]", "[16]"),
    ("grad_weight_out", (), "[]", "[16]"),
    ("grad_bias_out", (3, 16), "[3, 16]", "[16]"),
    ("grad_bias_out", (1, 16), "[1, 16]", "grad_weight_out", "[16]"),
    ("grad_bias_out", (4, 4), "[4, 4]", "grad_weight_out", "[16]"),
]


@pytest.mark.parametrize("product", HERE)
@pytest.mark.parametrize(("name", "shape", "words"), [(n, s, w) for n, s, *w in SHAPES_TO_REFUSE])
def test_shapes(product, name, shape, words):
    call = tensors() | {name: np.zeros(shape, np.float32)}
    with acl.product(product), refused(161002, OP, name, *words):
        phase1(OP, *arguments(call, (16,)))


@pytest.mark.parametrize("product", HERE)
@pytest.mark.parametrize(
    ("normalized", "words"),
    [
        ((), ("has 0 numbers", "1 to 8")),
        ((1,) * 9, ("has 9 numbers", "1 to 8")),
        ((1, 2, 3, 16), ("[1, 2, 3, 16]", "last dimensions", "[2, 3, 16]")),
        ((15,), ("[15]", "last dimensions", "[2, 3, 16]")),
        ((2, 16), ("[2, 16]", "last dimensions", "[2, 3, 16]")),
        ((2, 3), ("[2, 3]", "last dimensions", "[2, 3, 16]")),
        ((48,), ("[48]", "last dimensions", "[2, 3, 16]")),
        ((-16,), ("[-16]", "last dimensions", "[2, 3, 16]")),
        ((2**62, 16), (f"[{2**62}, 16]", "last dimensions", "[2, 3, 16]")),
    ],
)
def test_normalized_shape(product, normalized, words):
    call = tensors()
    with acl.product(product), refused(161002, OP, "normalized_shape", *words):
        phase1(OP, *arguments(call, normalized))
    with refused(161002, OP, "normalized_shape", *words):
        descend.layer_norm_backward(call["grad_out"], call["input"], normalized, call["mean"], call["rstd"])


def test_a_sentence_in_full():
    with refused(161002) as found:
        phase1(OP, *arguments(tensors(), (3, 15)))
    expected = "normalized_shape is [3, 15], but must equal the last dimensions of input, whose shape is [2, 3, 16]."
    assert found.sentence == f"layer_norm_backward: {expected}"


@pytest.mark.parametrize("product", HERE)
def test_ranks(product):
    with acl.product(product):
        for rank in range(1, 9):
            for normalized in range(1, rank + 1):
                phase1(OP, *arguments(tensors((1,) * (rank - 1) + (16,), normalized)))
        scalar = tensors() | {n: np.zeros((), np.float32) for n in TENSORS}
        with refused(161002, OP, "input has rank 0"):
            phase1(OP, *arguments(scalar, (1,)))
        nine = tensors() | {n: np.zeros((1,) * 8 + (16,), np.float32) for n in ("grad_out", "input", "grad_input_out")}
        with refused(161002, OP, "grad_out", "rank 9", "8"):
            phase1(OP, *arguments(nine))


@pytest.mark.parametrize("product", HERE)
@pytest.mark.parametrize("statistics", [(2, 3, 1), (2, 3), (6,), (3, 2), (1, 6, 1, 1), (6, 1, 1, 1, 1, 1, 1, 1)])
@pytest.mark.parametrize("sums", [(4, 4), (16,), (1, 16, 1), (2, 8)])
def test_statistics_and_sums_have_any_shape_of_that_many_elements(product, statistics, sums):
    call = tensors((2, 3, 4, 4), 2)
    expected = compute(inputs(call))
    for name in ("mean", "rstd"):
        call[name] = call[name].reshape(statistics)
    for name in ("grad_weight_out", "grad_bias_out"):
        call[name] = call[name].reshape(sums)
    run_two_phase(OP, *arguments(call), product=product)
    assert_same_bits([call["grad_input_out"], call["grad_weight_out"].reshape(4, 4)], expected[:2])
    check([call[n] for n in OUTPUTS], inputs(call))


@pytest.mark.parametrize("product", HERE)
def test_one_of_the_sums_may_have_any_shape_where_the_other_is_masked(product):
    call = tensors() | {"grad_bias_out": np.zeros((4, 4), np.float32), "grad_weight_out": np.zeros(3, np.int8)}
    run_two_phase(OP, *arguments(call, mask=(False, False, True)), product=product)
    assert_same_bits([call["grad_bias_out"].ravel()], [compute(inputs(call))[2]])


def test_order_of_checks():
    """Null, product, the mask's length, dtype, overlap, shapes: each is reported once the earlier ones are right."""
    call = tensors()
    call["rstd"] = None
    call["weight"] = np.zeros(3, np.int32)
    call["grad_input_out"] = call["grad_out"].reshape(3, 2, 16)
    short = (True, True)
    with acl.product("atlas-200i-500-a2"), refused(161001, OP, "rstd is null"):
        phase1(OP, *arguments(call, (5,), short))
    call["rstd"] = np.zeros((2, 3), np.float32)
    with acl.product("atlas-200i-500-a2"), refused(561003, OP):
        phase1(OP, *arguments(call, (5,), short))
    with acl.product("atlas-a3"):
        with refused(161002, OP, "output_mask has length 2"):
            phase1(OP, *arguments(call, (5,), short))
        with refused(161002, OP, "weight has dtype INT32"):
            phase1(OP, *arguments(call, (5,)))
        call["weight"] = np.zeros(16, np.float32)
        with refused(161002, OP, "grad_input_out overlaps grad_out"):
            phase1(OP, *arguments(call, (5,)))
        call["grad_input_out"] = np.zeros((2, 3, 16), np.float32)
        with refused(161002, OP, "normalized_shape is [5]"):
            phase1(OP, *arguments(call, (5,)))
        with refused(161002, OP, "rstd has shape [2, 3]"):
            phase1(OP, *arguments(call))
        call["rstd"] = np.zeros((2, 3, 1), np.float32)
        phase1(OP, *arguments(call))


def test_nothing_is_written_where_a_call_fails():
    call = tensors()
    places = [Place((2, 3, 16)), Place((16,)), Place((16,))]
    out = tuple(p.array for p in places)
    good = inputs(call)
    for at, wrong in ((0, None), (0, good[0][:, :, :5]), (1, good[1].astype(np.int8)), (2, (3,)), (3, good[3][:1])):
        bad = list(good)
        bad[at] = wrong
        with pytest.raises(ValueError, match=OP):
            descend.layer_norm_backward(*bad, out=out)
        with pytest.raises(ValueError, match=OP):
            phase1(OP, *bad, (True, True, True), *out)
    # The first phase writes nothing.
    phase1(OP, *good, (True, True, True), *out)
    for place in places:
        place.check_untouched()


def test_the_first_phase_never_reads_the_elements():
    """Tensors of 2^60 bytes at addresses without memory: no size has 32 bits, and no element is read."""

    class Nowhere:
        def __init__(self, address: int, *shape: int) -> None:
            self.__array_interface__ = {"shape": shape, "typestr": "<f4", "data": (address << 60, False), "version": 3}

    m, n = 1 << 27, 1 << 31
    dy, x, dx = (np.asarray(Nowhere(i, m, n)) for i in (1, 2, 3))
    mean, rstd = (np.asarray(Nowhere(i, m)) for i in (4, 5))
    sums = list(np.asarray(Nowhere(6, 3, n)))
    with acl.product("atlas-a2-training"):
        size, _ = phase1(OP, dy, x, (n,), mean, rstd, sums[0], None, (True, True, True), dx, *sums[1:])
        assert size >= 16 * n  # two sums of columns, in double
        with refused(161002, OP, str([m, n - 1]), str([m, n])):
            phase1(OP, dy[:, 1:], x, (n,), mean, rstd, sums[0], None, (True, True, True), dx, *sums[1:])
