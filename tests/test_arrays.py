"""Arrays of every kind: NumPy, PyTorch, JAX, anything with DLPack; results, out=, refusals, leaks."""

from __future__ import annotations

import array as plain
import gc
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import descend
from array_calls import OP, expected_of, inputs, wrong_type
from cases import Array, assert_same_bits, normal, phase1, refused, run_two_phase
from descend import acl

BF16 = ml_dtypes.bfloat16


# --- NumPy ---------------------------------------------------------------------------------------------------------


def test_orders_and_views():
    call = inputs()
    expected = expected_of(call)
    dy, x, rstd, gamma = call
    wide = np.zeros((4, 3, 64), np.float32)
    wide[:, 1, ::2] = x
    for variant in (
        np.asfortranarray(x),
        wide[:, 1, ::2],
        x[::-1][::-1],
        x[:, ::-1].copy()[:, ::-1],
        x.reshape(1, 4, 32)[0],
        np.broadcast_to(x, (5, 4, 32))[3],
        x.view(np.uint8).view(np.float32),
        np.ndarray((4, 32), np.float32, x.tobytes()),  # read-only
    ):
        assert_same_bits(descend.rms_norm_grad(dy, variant, rstd, gamma), expected)


def test_read_only_inputs_are_fine_and_outputs_are_not():
    call = inputs()
    expected = expected_of(call)
    for array in call:
        array.flags.writeable = False
    assert_same_bits(descend.rms_norm_grad(*call), expected)
    out = np.zeros((4, 32), np.float32)
    out.flags.writeable = False
    with refused(161002, OP, "dx_out", "read-only"):
        descend.rms_norm_grad(*call, out=(out, None))
    with refused(161002, OP, "dx_out", "read-only"):
        phase1(OP, *call, out, np.zeros(32, np.float32))
    assert not out.any()
    with refused(161002, OP, "dgamma_out", "read-only"):
        descend.rms_norm_grad(*call, out=(None, np.broadcast_to(np.float32(0), (32,))))


def test_byte_order():
    call = inputs()
    for i, name in enumerate(("dy", "x", "rstd", "gamma")):
        swapped = list(call)
        swapped[i] = call[i].astype(call[i].dtype.newbyteorder())
        with refused(161002, OP, name, "byte"):
            descend.rms_norm_grad(*swapped)
    out = np.zeros((4, 32), call[0].dtype.newbyteorder())
    with refused(161002, OP, "dx_out", "byte"):
        descend.rms_norm_grad(*call, out=(out, None))
    assert_same_bits(descend.rms_norm_grad(*(a.astype("=f4") for a in call)), expected_of(call))


@pytest.mark.parametrize("shift", [1, 2, 3])
def test_misaligned(shift):
    call = inputs()
    memory = np.zeros(call[1].nbytes + 8, np.uint8)
    bad = memory[shift : shift + call[1].nbytes].view(np.float32).reshape(4, 32)
    with refused(161002, OP, "x", "4 bytes"):
        descend.rms_norm_grad(call[0], bad, *call[2:])
    with refused(161002, OP, "dx_out", "4 bytes"):
        descend.rms_norm_grad(*call, out=(bad, None))
    fields = np.zeros((4, 32), np.dtype([("a", np.uint8), ("b", np.float32)]))  # packed: strides of 5 bytes
    with refused(161002, OP, "x", "multiples of its element size"):
        descend.rms_norm_grad(call[0], fields["b"], *call[2:])
    with acl.product("host"), refused(161002, OP):
        phase1(OP, *call, fields["b"], np.zeros(32, np.float32))
    assert not memory.any()


def test_structured_views_that_are_aligned():
    call = inputs()
    fields = np.zeros((4, 32), np.dtype([("a", np.float32), ("b", np.float32)]))
    fields["b"] = call[1]
    assert_same_bits(descend.rms_norm_grad(call[0], fields["b"], *call[2:]), expected_of(call))
    dx, _ = descend.rms_norm_grad(*call, out=(fields["a"], None))
    assert_same_bits([dx], expected_of(call)[:1])
    np.testing.assert_array_equal(fields["b"], call[1])


def test_masked_arrays_and_matrices():
    call = inputs()
    masked = np.ma.masked_array(call[1], mask=call[1] > 0)
    with refused(161002, OP, "x", "masked"):
        descend.rms_norm_grad(call[0], masked, *call[2:])
    with refused(161002, OP, "dx_out", "masked"):
        descend.rms_norm_grad(*call, out=(masked, None))
    with pytest.warns(PendingDeprecationWarning):
        matrix = np.matrix(call[1])
    dx, dgamma = descend.rms_norm_grad(matrix, matrix, *call[2:])
    assert type(dx) is np.ndarray
    assert_same_bits((dx, dgamma), expected_of([call[1], *call[1:]]))


def test_subclasses_and_memory_maps(tmp_path):
    class Mine(np.ndarray):
        pass

    call = inputs()
    expected = expected_of(call)
    mapped = np.memmap(tmp_path / "x", np.float32, "w+", shape=(4, 32))
    mapped[...] = call[1]
    assert_same_bits(descend.rms_norm_grad(call[0].view(Mine), mapped, *call[2:]), expected)
    out = np.memmap(tmp_path / "dx", np.float32, "w+", shape=(4, 32))
    result, _ = descend.rms_norm_grad(*call, out=(out, None))
    assert result is out
    out.flush()
    np.testing.assert_array_equal(np.fromfile(tmp_path / "dx", np.float32).reshape(4, 32), expected[0])
    readonly = np.memmap(tmp_path / "x", np.float32, "r", shape=(4, 32))
    assert_same_bits(descend.rms_norm_grad(call[0], readonly, *call[2:]), expected)
    with refused(161002, OP, "dx_out", "read-only"):
        descend.rms_norm_grad(*call, out=(readonly, None))


@pytest.mark.parametrize(
    "array",
    [
        np.full((4, 32), "x"),
        np.full((4, 32), b"x"),
        np.full((4, 32), None, object),
        np.zeros((4, 32), "M8[s]"),
        np.zeros((4, 32), "m8[s]"),
        np.zeros((4, 32), np.longdouble),
        np.zeros((4, 32), np.clongdouble),
        np.zeros((4, 32), [("a", "f4")]),
        np.zeros((4, 32), "V4"),
        np.zeros((4, 32), ml_dtypes.float8_e4m3fn),
        np.zeros((4, 32), ml_dtypes.int4),
        np.zeros((4, 32), np.complex64),
        np.zeros((4, 32), np.int16),
        np.zeros((4, 32), np.bool_),
    ],
    ids=lambda a: str(a.dtype),
)
def test_dtypes_that_no_operator_takes(array):
    call = inputs()
    with refused(161002, OP, "x has dtype"):
        descend.rms_norm_grad(call[0], array, *call[2:])
    with refused(161002, OP, "dx_out has dtype"):
        descend.rms_norm_grad(*call, out=(array, None))


def test_0_d_arrays_and_scalars():
    call = inputs(rows=1)
    call[2] = np.array(2.0, np.float32)
    dx, _ = descend.rms_norm_grad(*(a.reshape(32) if a.size == 32 else a for a in call))
    assert dx.shape == (32,)
    for scalar in (np.float32(2), 2.0, 2):
        with pytest.raises(TypeError, match=r"^rms_norm_grad: rstd is an? "):
            descend.rms_norm_grad(*call[:2], scalar, call[3])


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (None, None),
        ([1.0] * 32, "a list"),
        ((1.0,) * 32, "a tuple"),
        ("x", "a str"),
        (b"x" * 128, "a bytes"),
        (bytearray(128), "a bytearray"),
        (1, "an int"),
        (1.0, "a float"),
        (object(), "an object"),
        (plain.array("f", [1.0] * 32), r"an array\.array"),
        (np.ndarray, "a type"),
        (memoryview(b"x" * 128), "a memoryview"),
        (range(32), "a range"),
        (np, "a module"),
    ],
)
def test_what_is_no_array(value, kind):
    call = inputs()
    if value is None:
        with refused(161001, OP, "gamma is null"):
            descend.rms_norm_grad(*call[:3], value)
        return
    with wrong_type("gamma", kind):
        descend.rms_norm_grad(*call[:3], value)
    with wrong_type("gamma", kind):
        phase1(OP, *call[:3], value, np.zeros((4, 32), np.float32), np.zeros(32, np.float32))
    with wrong_type("dx_out", kind):
        descend.rms_norm_grad(*call, out=(value, None))


def test_what_an_object_is_called():
    """Names of types and fields may be any string."""
    call = inputs()
    nameless = type("Nameless", (), {})
    nameless.__module__ = nameless.__qualname__ = "\ud800"
    with wrong_type("x", r"a \\ud800\.\\ud800"):
        descend.rms_norm_grad(call[0], nameless(), *call[2:])
    with refused(161002, OP, "x has dtype [('\\ud800', '<f4')]"):
        descend.rms_norm_grad(call[0], np.zeros((4, 32), [("\ud800", "<f4")]), *call[2:])


UNREADABLE: list[Any] = [
    np.zeros((4, 32), "S4"),
    np.zeros((4, 32), np.dtype(np.float32).newbyteorder()),
    np.ma.zeros((4, 32), np.float32),
    "x",
    [1.0],
    object(),
]


@pytest.mark.parametrize("array", UNREADABLE, ids=range(len(UNREADABLE)))
def test_what_cannot_be_read_is_judged_in_its_turn(array):
    call, result = inputs(), [np.zeros((4, 32), np.float32), np.zeros(32, np.float32)]
    for product, status, words in (("atlas-training", 161001, "gamma is null"), ("host", 161001, "gamma is null")):
        with acl.product(product), refused(status, OP, words):
            phase1(OP, array, *call[1:3], None, *result)
    with acl.product("atlas-training"), refused(561003, OP, "does not exist on atlas-training"):
        phase1(OP, array, *call[1:], *result)
    with refused(161001, OP, "gamma is null"):
        descend.rms_norm_grad(call[0], array, call[2], None)
    # Reported before shapes; of two, the first one.
    for make in (lambda *a: phase1(OP, *a), lambda *a: descend.rms_norm_grad(*a[:4], out=a[4:])):
        with pytest.raises((TypeError, ValueError), match=r"^rms_norm_grad: x ") as caught:
            make(call[0], array, np.zeros(5, np.float32), call[3], array, result[1])
        assert getattr(caught.value, "status", 161002) == 161002
    assert_same_bits(descend.rms_norm_grad(*call), expected_of(call))


class Forbidden:
    def __dlpack__(self, **_: Any) -> Any:
        raise RuntimeError("not to be read")


@pytest.mark.parametrize("array", [*UNREADABLE, Forbidden(), np.broadcast_to(np.float32(0), (32,))])
def test_an_output_that_is_not_wanted_may_be_anything(array):
    rng = np.random.default_rng(3)
    dy, x, mean, rstd = (normal(rng, s) for s in ((4, 32), (4, 32), (4, 1), (4, 1)))
    call = (dy, x, (32,), mean, rstd, None, None)
    expected = descend.layer_norm_backward(*call)
    mask = (True, False, False)
    dx = np.zeros((4, 32), np.float32)
    results = descend.layer_norm_backward(*call, mask, out=(dx, array, array))
    assert results[0] is dx
    assert results[1:] == (None, None)
    assert_same_bits([dx], expected[:1])
    dx[...] = 0
    run_two_phase("layer_norm_backward", *call, mask, dx, array, array)
    assert_same_bits([dx], expected[:1])
    # Not together with it, and a mask of the wrong length is reported first.
    with pytest.raises((TypeError, ValueError), match=r"^layer_norm_backward: grad_weight_out "):
        phase1("layer_norm_backward", *call, (True, True, False), dx, array, array)
    with refused(161002, "layer_norm_backward", "output_mask has length 2"):
        phase1("layer_norm_backward", *call, (True, True), dx, array, array)


def test_arguments_by_position_and_by_name():
    call = inputs()
    expected = expected_of(call)
    names = ("dy", "x", "rstd", "gamma")
    assert_same_bits(descend.rms_norm_grad(**dict(zip(reversed(names), reversed(call), strict=True))), expected)
    assert_same_bits(descend.rms_norm_grad(*call[:2], gamma=call[3], rstd=call[2]), expected)
    for bad in (
        lambda: descend.rms_norm_grad(*call, None),
        lambda: descend.rms_norm_grad(*call[:3]),
        lambda: descend.rms_norm_grad(*call, weight=1),
        lambda: descend.rms_norm_grad(*call, x=call[1]),
    ):
        with pytest.raises(TypeError, match=OP):
            bad()


def test_out_in_all_forms():
    call = inputs()
    expected = expected_of(call)
    a, b = np.zeros((4, 32), np.float32), np.zeros(32, np.float32)
    for out in (None, (None, None), [None, None], (a, None), (None, b), (a, b), [a, b]):
        result = descend.rms_norm_grad(*call, out=out)
        assert isinstance(result, tuple)
        assert_same_bits(result, expected)
        for got, given in zip(result, out or (None, None), strict=True):
            assert given is None or got is given
        a[...] = b[...] = 0
    for out in ((), (a,), (a, b, None), []):
        with pytest.raises(ValueError, match=rf"^rms_norm_grad: out has length {len(out)}, but must have length 2\.$"):
            descend.rms_norm_grad(*call, out=out)
    for out in (a, {"dx": a}, 1, "ab", iter((a, b)), {0: a}):
        with pytest.raises(TypeError, match=r"^rms_norm_grad: out is an? .*, but must be a tuple of 2 arrays"):
            descend.rms_norm_grad(*call, out=out)
    with refused(561002, OP, "dx_out", "[4, 31]", "[4, 32]"):
        descend.rms_norm_grad(*call, out=(a[:, 1:], None))
    with refused(561002, OP, "dgamma_out"):
        descend.rms_norm_grad(*call, out=(None, a))
    assert not a.any()


def test_results_own_their_memory():
    for rows in (4, 40_000):  # small results come from malloc, large ones from warm pages
        call = inputs(rows=rows)
        first = descend.rms_norm_grad(*call)
        kept = [a.copy() for a in first]
        for _ in range(3):
            second = descend.rms_norm_grad(*(a * np.float32(2) for a in call))
            assert not np.shares_memory(first[0], second[0])
        assert_same_bits(first, kept)
        del second
        view = descend.rms_norm_grad(*call)[0][1:]
        gc.collect()
        descend.empty_cache()
        other = descend.rms_norm_grad(*(a * np.float32(3) for a in call))
        np.testing.assert_array_equal(view, first[0][1:])
        first[0][...] = 1  # writeable
        del other


def test_results_that_there_is_no_memory_for():
    """A view of one number has a shape of petabytes."""
    x, rstd = (np.broadcast_to(np.float32(1), s) for s in ((2**44, 64), (2**44,)))
    with pytest.raises(MemoryError) as caught:
        descend.rms_norm_grad(x, x, rstd, np.ones(64, np.float32))
    with refused(361001, OP, "no memory for dx_out", f"{2**52} bytes"):
        raise caught.value
    call = inputs()
    assert_same_bits(descend.rms_norm_grad(*call), expected_of(call))


def test_bfloat16_results():
    dx, dgamma = descend.rms_norm_grad(*inputs("BFLOAT16"))
    assert dx.dtype == np.dtype(BF16)
    assert dgamma.dtype == np.float32
    assert (dx + dx).dtype == np.dtype(BF16)


# --- attributes ----------------------------------------------------------------------------------------------------


def windows(ends: Any = None, width: Any = 32, **options: Any) -> Array:
    rng = np.random.default_rng(2)
    call = [normal(rng, s) for s in ((60, 2, 16), (32, 2))]
    return np.asarray(descend.nsa_compress(*call, ends, compress_block_size=width, compress_stride=16, **options))


LIBRARIES = ["numpy", "torch", "jax.numpy"]


@pytest.mark.parametrize("library", LIBRARIES)
def test_arrays_as_lists_of_integers(library):
    xp: Any = pytest.importorskip(library)
    make = getattr(xp, "tensor", None) or xp.array
    expected = windows([32, 60])
    for kind in ("int16", "int32", "uint8"):
        assert_same_bits([windows(make([32, 60], dtype=getattr(xp, kind)))], [expected])
    assert_same_bits([windows(make([16, 32, 8, 60, 3])[1::2])], [expected])
    for one in (make(60), make([60]), [make(60)]):
        assert_same_bits([windows(one)], [windows([60])])
    x = np.ones((2, 3, 32), np.float32)
    assert_same_bits(descend.layer_norm(x, make([3, 32])), descend.layer_norm(x, (3, 32)))
    wrong = [make([32.0, 60.0]), make([[32, 60]]), make([[32], [60]]), make([[60]]), make(60.0), make([True, False])]
    for array in [*wrong, make(True), [make([60])]]:
        with pytest.raises(TypeError, match=r"^nsa_compress: act_seq_len is an? .*must be a sequence of integers\.$"):
            windows(array)
    with pytest.raises(TypeError, match=r"^layer_norm: normalized_shape is a .*must be a sequence of integers\.$"):
        descend.layer_norm(x, make([[3, 32]]))
    with pytest.raises(TypeError, match=r"^nsa_compress: compress_block_size is a .*, but must be an integer\.$"):
        windows(width=make([32, 60]))


@pytest.mark.parametrize("number", [2**63, -(2**63) - 1, 10**5000, np.uint64(2**64 - 1)], ids=range(4))
def test_integers_beyond_64_bits(number):
    with refused(161002, "nsa_compress", "compress_block_size does not fit into 64 bits"):
        windows(width=number)
    for ends in ([32, number], (number,), number):
        with refused(161002, "nsa_compress", "act_seq_len ", "not fit into 64 bits"):
            windows(ends)
    x, ones = np.ones((2, 3, 32), np.float32), np.ones(3, np.float32)
    with refused(161002, "group_norm_swish", "num_groups does not fit into 64 bits"):
        descend.group_norm_swish(x, ones, ones, number)
    # In the documented order: null comes first.
    with refused(161001, "group_norm_swish", "gamma is null"):
        descend.group_norm_swish(x, None, ones, number)
    # The next call is not affected.
    descend.group_norm_swish(x, ones, ones, 3)


def test_numbers_beyond_floating_point():
    x, mask = np.ones((1, 1, 4, 4), np.float32), np.zeros((1, 1, 4, 4), np.bool_)
    with refused(161002, "scaled_masked_softmax", "scale does not fit into a floating-point number"):
        descend.scaled_masked_softmax(x, mask, 10**400)


@pytest.mark.parametrize("number", [True, np.True_, np.array(True), "2", np.str_("2"), 2j, [2.0], None], ids=repr)
def test_what_is_no_number(number):
    x, mask = np.ones((1, 1, 4, 4), np.float32), np.zeros((1, 1, 4, 4), np.bool_)
    if number is None:
        with refused(161001, "scaled_masked_softmax", "scale is null"):
            descend.scaled_masked_softmax(x, mask, number)
        return
    with pytest.raises(TypeError, match=r"^scaled_masked_softmax: scale is a .*, but must be a number\.$"):
        descend.scaled_masked_softmax(x, mask, number)


@pytest.mark.parametrize("text", ["", "\ud800", "NC\udc80", "\0", "NCHW\0x", "主机", "x" * 100_000], ids=range(7))
def test_strings_that_are_not_read(text):
    x, ones = np.ones((2, 3, 32), np.float32), np.ones(3, np.float32)
    assert_same_bits(descend.group_norm_swish(x, ones, ones, 3, text), descend.group_norm_swish(x, ones, ones, 3))


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\ud800", r"'\ud800'"),
        ("TND\udc80", r"'TND\udc80'"),
        ("TND\0x", "'TND\0x'"),
        ("TND\0", "'TND\0'"),
        ("主", "'主'"),
    ],
    ids=range(5),
)
def test_strings_that_are_read(text, shown):
    with refused(161002, "nsa_compress", f"layout is {shown}, but must be 'TND'"):
        windows(layout=text)
    assert_same_bits([windows(layout="TND")], [windows(layout=None)])
