"""Arrays of every kind: NumPy, PyTorch, JAX, anything with DLPack; results, out=, refusals, leaks."""

from __future__ import annotations

import array as plain
import gc
import sys
import tracemalloc
import warnings
import weakref
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import descend
from cases import DTYPES, Array, assert_same_bits, normal, phase1, refused, run_python, run_two_phase
from descend import acl, aclnn

OP = "rms_norm_grad"
BF16 = ml_dtypes.bfloat16


def inputs(dtype: str = "FLOAT", rows: int = 4, columns: int = 32) -> list[Array]:
    rng = np.random.default_rng(1)
    return [normal(rng, s, dtype) for s in ((rows, columns), (rows, columns), (rows,), (columns,))]


def expected_of(call: list[Array]) -> list[Array]:
    return list(descend.rms_norm_grad(*(np.array(a) for a in call)))


def wrong_type(name: str, kind: str) -> Any:
    sentence = rf"^rms_norm_grad: {name} is {kind}, but must be an array \(NumPy, PyTorch, or anything with DLPack\)\.$"
    return pytest.raises(TypeError, match=sentence)


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


# --- DLPack --------------------------------------------------------------------------------------------------------


class Producer:
    """An array of an unknown library: it has DLPack and nothing else."""

    def __init__(self, array: Array, *, versioned: bool = True, device: tuple[int, int] = (1, 0)) -> None:
        self.array = array
        self.versioned = versioned
        self.device = device
        self.calls = 0

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device

    def __dlpack__(self, **options: Any) -> Any:
        self.calls += 1
        if not self.versioned:
            if options:
                raise TypeError("unexpected keyword argument 'max_version'")
            return self.array.__dlpack__()
        return self.array.__dlpack__(**options)


@pytest.mark.parametrize("versioned", [True, False])
def test_producers_of_dlpack(versioned):
    call = inputs()
    expected = expected_of(call)
    wrapped = [Producer(a, versioned=versioned) for a in (call[0], np.asfortranarray(call[1]), call[2], call[3][::1])]
    assert_same_bits(descend.rms_norm_grad(*wrapped), expected)
    for array in (call[1][:, ::-1].copy()[:, ::-1], np.broadcast_to(call[1], (3, 4, 32))[1]):
        mixed = [call[0], Producer(array, versioned=True), *call[2:]]
        assert_same_bits(descend.rms_norm_grad(*mixed), expected)
    out = np.zeros((4, 32), np.float32)
    given = Producer(out, versioned=versioned)
    result = descend.rms_norm_grad(*wrapped, out=(given, None))
    assert result[0] is given
    assert_same_bits([out], expected[:1])
    # A producer with no array namespace gets NumPy.
    assert type(descend.rms_norm_grad(*wrapped)[1]) is np.ndarray


def test_results_go_back_through_the_array_namespace():
    class Library:
        @staticmethod
        def from_dlpack(producer: Any) -> Any:
            assert producer.__dlpack_device__() == (1, 0)
            return ("mine", np.from_dlpack(producer))

    class Array2(Producer):
        def __array_namespace__(self, **_: Any) -> type[Library]:
            return Library

    call = inputs()
    results = descend.rms_norm_grad(*(Array2(a) for a in call))
    assert [r[0] for r in results] == ["mine", "mine"]
    assert_same_bits([r[1] for r in results], expected_of(call))


def test_producers_elsewhere():
    call = inputs()
    for device in ((2, 0), (8, 0), (10, 1), (14, 0)):
        producer = Producer(call[1], device=device)
        with refused(161002, OP, "x", "device", str(device[0])):
            descend.rms_norm_grad(call[0], producer, *call[2:])
        assert producer.calls == 0  # no silent copy from a device
    assert_same_bits(descend.rms_norm_grad(call[0], Producer(call[1], device=(3, 0)), *call[2:]), expected_of(call))


def test_producers_of_read_only_memory():
    call = inputs()
    array = np.zeros((4, 32), np.float32)
    array.flags.writeable = False
    with refused(161002, OP, "dx_out", "read-only"):
        descend.rms_norm_grad(*call, out=(Producer(array), None))


def test_producers_of_copies():
    """An input may be copied. An output may not: the results would be written to the copy."""
    pytest.importorskip("numpy", minversion="2.1")  # gives copies when asked

    class Copying(Producer):
        def __dlpack__(self, **options: Any) -> Any:
            return super().__dlpack__(**options, copy=True)

    call = inputs()
    assert_same_bits(descend.rms_norm_grad(*map(Copying, call)), expected_of(call))
    with refused(161002, OP, "dx_out", "copy"):
        descend.rms_norm_grad(*call, out=(Copying(np.zeros((4, 32), np.float32)), None))


@pytest.mark.parametrize(
    "error", [RuntimeError("no"), BufferError("no"), TypeError("no"), ValueError("no"), KeyError("no")]
)
def test_producers_that_fail(error):
    class Broken:
        def __dlpack_device__(self) -> tuple[int, int]:
            return (1, 0)

        def __dlpack__(self, **_: Any) -> Any:
            raise error

    call = inputs()
    with refused(161002, OP, "x is a", "Broken", "no"):
        descend.rms_norm_grad(call[0], Broken(), *call[2:])


@pytest.mark.parametrize("signal", [KeyboardInterrupt, SystemExit])
def test_producers_that_are_interrupted(signal):
    """An interrupt is not a refusal: it goes through."""

    class Interrupted:
        def __dlpack_device__(self) -> tuple[int, int]:
            return (1, 0)

        def __dlpack__(self, **_: Any) -> Any:
            raise signal

    call = inputs()
    with pytest.raises(signal):
        descend.rms_norm_grad(call[0], Interrupted(), *call[2:])


def test_replaced_tensors_are_let_go():
    call, result = inputs(), [np.zeros((4, 32), np.float32), np.zeros(32, np.float32)]
    with acl.product("host"):
        size, executor = phase1(OP, *call, *result)
    executor.set_repeatable()
    alive: list[weakref.ref[Any]] = []
    for made in (Producer, np.copy, lambda a: Producer(a, versioned=False), Producer):
        arrays = [a.copy() for a in call]
        expected = expected_of(arrays)
        for name, array in zip(("dy", "x", "rstd", "gamma"), arrays, strict=True):
            given = made(array)
            executor.set_tensor(name, given)
            alive.append(weakref.ref(given.array if isinstance(given, Producer) else given))
        del arrays, array, given
        gc.collect()
        assert [r() is not None for r in alive] == [False] * (len(alive) - 4) + [True] * 4
        aclnn.rms_norm_grad(acl.malloc(size), size, executor, None)
        acl.synchronize()
        assert_same_bits(result, expected)


@pytest.mark.parametrize("capsule", [None, 1, "capsule", object()])
def test_producers_of_something_else(capsule):
    class Liar:
        def __dlpack_device__(self) -> tuple[int, int]:
            return (1, 0)

        def __dlpack__(self, **_: Any) -> Any:
            return capsule

    call = inputs()
    with pytest.raises((TypeError, ValueError), match=r"^rms_norm_grad: x is a .*\.$"):
        descend.rms_norm_grad(call[0], Liar(), *call[2:])


def test_a_capsule_that_was_consumed_already():
    class Used(Producer):
        def __dlpack__(self, **_: Any) -> Any:
            capsule = self.array.__dlpack__()
            np.from_dlpack(Holder(capsule))
            return capsule

    class Holder:
        def __init__(self, capsule: Any) -> None:
            self.capsule = capsule

        def __dlpack_device__(self) -> tuple[int, int]:
            return (1, 0)

        def __dlpack__(self, **_: Any) -> Any:
            return self.capsule

    call = inputs()
    with pytest.raises((TypeError, ValueError), match=r"^rms_norm_grad: x is a .*\.$"):
        descend.rms_norm_grad(call[0], Used(call[1]), *call[2:])


def test_producers_that_call_back():
    """A call within a call."""
    call = inputs()
    expected = expected_of(call)

    class Nested(Producer):
        def __dlpack__(self, **options: Any) -> Any:
            assert_same_bits(descend.rms_norm_grad(*call), expected)
            return super().__dlpack__(**options)

    assert_same_bits(descend.rms_norm_grad(*(Nested(a) for a in call)), expected)


def test_a_list_of_outputs_that_changes_meanwhile():
    call = inputs()
    expected = expected_of(call)
    alive = weakref.WeakSet()

    class Emptying(Producer):
        def __dlpack__(self, **options: Any) -> Any:
            out.clear()
            gc.collect()
            return super().__dlpack__(**options)

    def emptied() -> list[Any]:
        given = [Producer(np.zeros((4, 32), np.float32)), Emptying(np.zeros(32, np.float32))]
        alive.update(given)
        return given

    out = emptied()
    results = descend.rms_norm_grad(*call, out=out)
    assert out == []
    assert len(alive) == 2
    assert_same_bits([result.array for result in results], expected)
    del results
    gc.collect()
    assert not alive


# --- PyTorch -------------------------------------------------------------------------------------------------------

try:
    import torch
except ModuleNotFoundError:
    torch = None  # type: ignore[assignment]

needs_torch = pytest.mark.skipif(torch is None, reason="PyTorch is not installed")


def tensors(dtype: str = "float32") -> list[Any]:
    return [torch.from_numpy(a.copy()).to(getattr(torch, dtype)) for a in inputs()]


def numbers(*arrays: Any) -> list[Array]:
    return [a.detach().double().numpy() for a in arrays]


@needs_torch
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float64"])
def test_pytorch_in_pytorch_out(dtype):
    call = tensors(dtype)
    results = descend.rms_norm_grad(*call)
    assert [type(r) for r in results] == [torch.Tensor] * 2
    assert results[0].dtype == call[0].dtype
    assert results[1].dtype == (torch.float64 if dtype == "float64" else torch.float32)
    assert not results[0].requires_grad
    kind = DTYPES[{"float32": "FLOAT", "float16": "FLOAT16", "bfloat16": "BFLOAT16", "float64": "DOUBLE"}[dtype]]
    expected = descend.rms_norm_grad(*(a.double().numpy().astype(kind) for a in call))
    assert_same_bits(numbers(*results), [e.astype(np.float64) for e in expected])
    results[0].add_(1)  # writeable, and PyTorch's own
    torch.add(results[0], results[0]).sum()


@needs_torch
def test_pytorch_layouts():
    call = tensors()
    expected = numbers(*descend.rms_norm_grad(*call))
    x = call[1]
    for variant in (
        x.t().contiguous().t(),
        torch.stack([x, x], dim=2)[:, :, 1],
        torch.cat([x, x])[4:],
        x.expand(3, 4, 32)[2],
        torch.as_strided(torch.cat([x.flatten(), x.flatten()]), (4, 32), (32, 1), 128),
    ):
        assert_same_bits(numbers(*descend.rms_norm_grad(call[0], variant, *call[2:])), expected)
    base = torch.zeros(4, 64)
    result = descend.rms_norm_grad(*call, out=(base[:, ::2], None))[0]
    assert result.data_ptr() == base.data_ptr()
    assert_same_bits(numbers(result), expected[:1])
    assert not base[:, 1::2].any()


@needs_torch
def test_families_follow_the_first_argument():
    call, torches = inputs(), tensors()
    dx, dgamma = descend.rms_norm_grad(call[0], *torches[1:])
    assert type(dx) is type(dgamma) is np.ndarray
    dx, dgamma = descend.rms_norm_grad(torches[0], *call[1:])
    assert type(dx) is type(dgamma) is torch.Tensor
    out = np.zeros((4, 32), np.float32)
    dx, dgamma = descend.rms_norm_grad(*torches, out=(out, None))
    assert dx is out
    assert type(dgamma) is torch.Tensor


@needs_torch
def test_gradients_that_would_be_lost_are_refused():
    call = tensors()
    for i, name in enumerate(("dy", "x", "rstd", "gamma")):
        wanting = list(call)
        wanting[i] = torch.nn.Parameter(call[i].clone()) if i % 2 else call[i].clone().requires_grad_()
        with refused(161002, OP, name, "requires gradients", "no_grad", "detach"):
            descend.rms_norm_grad(*wanting)
        with refused(161002, OP, name, "requires gradients"), acl.product("host"):
            phase1(OP, *wanting, torch.zeros(4, 32), torch.zeros(32))
        expected = numbers(*descend.rms_norm_grad(*call))
        for mode in (torch.no_grad, torch.inference_mode):
            with mode():
                assert_same_bits(numbers(*descend.rms_norm_grad(*wanting)), expected)
        wanting[i] = wanting[i].detach()
        assert_same_bits(numbers(*descend.rms_norm_grad(*wanting)), expected)
    leaf = torch.zeros(4, 32, requires_grad=True)
    with refused(161002, OP, "dx_out", "requires gradients"):
        descend.rms_norm_grad(*call, out=(leaf, None))
    # Not a leaf, but part of a graph.
    with refused(161002, OP, "x", "requires gradients"):
        descend.rms_norm_grad(call[0], leaf * 2, *call[2:])
    # A number.
    scale = torch.tensor(0.5, requires_grad=True)
    with refused(161002, "scaled_masked_softmax", "scale", "requires gradients", "no_grad", "detach"):
        descend.scaled_masked_softmax(call[0], None, scale)
    expected = numbers(descend.scaled_masked_softmax(call[0], None, 0.5))
    assert_same_bits(numbers(descend.scaled_masked_softmax(call[0], None, scale.detach())), expected)
    with torch.no_grad():
        assert_same_bits(numbers(descend.scaled_masked_softmax(call[0], None, scale)), expected)


@needs_torch
@pytest.mark.parametrize("name", ["trace", "make_fx"])
def test_traces_that_would_keep_results_as_constants_are_refused(name):
    from torch.fx.experimental.proxy_tensor import make_fx

    dy, x, rstd, gamma = tensors()
    result = torch.empty_like(x), torch.empty_like(gamma)

    def functional(x):
        return descend.rms_norm_grad(dy, x, rstd, gamma)[0]

    def two_phase(x):
        with acl.product("host"):
            phase1(OP, dy, x, rstd, gamma, *result)
        return x

    def mixed(x):
        descend.rms_norm_grad(dy.numpy(), x, rstd, gamma)
        return x

    def trace(function):
        return torch.jit.trace(function, (x,)) if name == "trace" else make_fx(function)(x)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of torch.jit
        for function in functional, two_phase, mixed:
            with pytest.raises(RuntimeError, match=r"tracing.*descend\.torch"):
                trace(function)
    functional(x)


@needs_torch
def test_a_mode_that_only_looks_on_changes_nothing():
    from torch.utils._python_dispatch import TorchDispatchMode

    class Looks(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            return function(*args, **(kwargs or {}))

    call = tensors()
    with Looks():
        results = descend.rms_norm_grad(*call)
    assert_same_bits(numbers(*results), numbers(*descend.rms_norm_grad(*call)))


MOVES = {
    "data": lambda t: setattr(t, "data", torch.full_like(t, 2)),
    "set_": lambda t: t.set_(torch.full_like(t, 2)),
    "resize_": lambda t: t.resize_(1 << 20),
    "freed": lambda t: t.untyped_storage().resize_(0),
    "transposed": lambda t: t.t_(),
}


@needs_torch
@pytest.mark.parametrize("name", ["x", "dx_out"])
@pytest.mark.parametrize("move", MOVES)
def test_a_tensor_that_was_given_other_memory_between_the_phases(move, name):
    dy, _, rstd, gamma = tensors()
    made = {"dy": dy, "x": torch.ones(4, 32), "rstd": rstd, "gamma": gamma}
    made |= {"dx_out": torch.empty(4, 32), "dgamma_out": torch.empty(32)}
    with acl.product("host"):
        size, executor = phase1(OP, *made.values())
    executor.set_repeatable()
    workspace = acl.malloc(size)
    aclnn.rms_norm_grad(workspace, size, executor, None)
    MOVES[move](made[name])
    with refused(161002, OP, name, "other memory", "set_tensor"):
        aclnn.rms_norm_grad(workspace, size, executor, None)
    made[name] = torch.full((4, 32), 3.0)
    executor.set_tensor(name, made[name])
    aclnn.rms_norm_grad(workspace, size, executor, None)
    acl.synchronize()
    expected = descend.rms_norm_grad(dy, made["x"], rstd, gamma)
    assert_same_bits(numbers(made["dx_out"], made["dgamma_out"]), numbers(*expected))


@needs_torch
def test_memory_that_tensors_give_up_is_kept_for_work_in_flight():
    shape = (512, 4096)
    dy, x, rstd, gamma = torch.ones(shape), torch.full(shape, 2.0), torch.ones(shape[0]), torch.ones(shape[1])
    expected = numbers(*descend.rms_norm_grad(dy, x, rstd, gamma))
    dx, dgamma = torch.empty(shape), torch.empty(shape[1])
    with acl.product("host"):
        size, executor = phase1(OP, dy, x, rstd, gamma, dx, dgamma)
    executor.set_repeatable()
    workspace, stream = acl.malloc(size), acl.Stream()
    for _ in range(30):
        aclnn.rms_norm_grad(workspace, size, executor, stream)
    written = dx.detach(), dgamma.detach()
    for tensor in (dy, x, rstd, gamma, dx):
        tensor.data = torch.empty(0)
    del tensor
    gc.collect()
    stream.synchronize()
    assert_same_bits(numbers(*written), expected)


@needs_torch
def test_tangents_that_would_be_lost_are_refused():
    forward_ad = torch.autograd.forward_ad
    call = tensors()
    expected = numbers(*descend.rms_norm_grad(*call))
    with forward_ad.dual_level():
        for i, name in enumerate(("dy", "x", "rstd", "gamma")):
            dual = list(call)
            dual[i] = forward_ad.make_dual(call[i], torch.ones_like(call[i]))
            with refused(161002, OP, name, "forward-mode tangent", "detach"):
                descend.rms_norm_grad(*dual)
            with refused(161002, OP, name, "forward-mode tangent"), acl.product("host"):
                phase1(OP, *dual, torch.zeros(4, 32), torch.zeros(32))
            with torch.inference_mode():
                assert_same_bits(numbers(*descend.rms_norm_grad(*dual)), expected)
            dual[i] = dual[i].detach()
            assert_same_bits(numbers(*descend.rms_norm_grad(*dual)), expected)
        out = forward_ad.make_dual(torch.zeros(4, 32), torch.ones(4, 32))
        with refused(161002, OP, "dx_out", "forward-mode tangent"):
            descend.rms_norm_grad(*call, out=(out, None))
    assert_same_bits(numbers(*descend.rms_norm_grad(*call, out=(out, None))), expected)


@needs_torch
def test_lazily_negated_tensors():
    call = tensors()
    negated = torch._neg_view(call[1])
    assert negated.is_neg()
    with refused(161002, OP, "x", "negated", "resolve_neg"):
        descend.rms_norm_grad(call[0], negated, *call[2:])
    with refused(161002, OP, "dx_out", "negated"):
        descend.rms_norm_grad(*call, out=(negated, None))
    assert_same_bits(
        numbers(*descend.rms_norm_grad(call[0], negated.resolve_neg(), *call[2:])),
        numbers(*descend.rms_norm_grad(call[0], -call[1], *call[2:])),
    )


@needs_torch
def test_an_expanded_output_is_refused():
    call = tensors()
    with refused(161002, OP, "dx_out", "overlap each other"):
        descend.rms_norm_grad(*call, out=(torch.zeros(1, 32).expand(4, 32), None))


def no_memory() -> dict[str, Any]:
    """Tensors that have no memory of their own."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        fake = torch.zeros(4, 32)
    return {
        "meta": torch.zeros(4, 32, device="meta"),
        "sparse": torch.eye(4, 32).to_sparse(),
        "csr": torch.eye(4, 32).to_sparse_csr(),
        "fake": fake,
        "nested": torch.nested.nested_tensor([torch.zeros(32)] * 4, layout=torch.jagged),
    }


@needs_torch
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ["meta", "sparse", "csr", "fake", "nested"])
def test_tensors_without_memory_are_refused(kind):
    call, x = tensors(), no_memory()[kind]
    with refused(161002, OP, "x "):
        descend.rms_norm_grad(call[0], x, *call[2:])
    with refused(161002, OP, "dx_out "):
        descend.rms_norm_grad(*call, out=(x, None))


@needs_torch
@pytest.mark.parametrize("transform", ["vmap", "grad", "jvp", "jacfwd"])
def test_transforms_of_functions_are_refused(transform):
    """torch.func's transforms cannot see into the call: it is refused with a sentence, not computed wrongly."""
    call = tensors()

    def through(x: Any) -> Any:
        return descend.rms_norm_grad(call[0], x, call[2], call[3])[0].sum()

    with refused(161002, OP, "x "):
        if transform == "vmap":
            torch.vmap(through)(torch.stack([call[1]] * 3))
        elif transform == "jvp":
            torch.func.jvp(through, (call[1],), (call[1],))
        else:
            getattr(torch.func, transform)(through)(call[1])


@needs_torch
def test_subclasses_of_tensors():
    class Mine(torch.Tensor):
        pass

    call = tensors()
    expected = numbers(*descend.rms_norm_grad(*call))
    mine = [a.as_subclass(Mine) for a in call]
    assert_same_bits(
        [np.asarray(a.as_subclass(torch.Tensor)).astype(float) for a in descend.rms_norm_grad(*mine)], expected
    )
    out = torch.zeros(4, 32).as_subclass(Mine)
    assert descend.rms_norm_grad(*call, out=(out, None))[0] is out
    buffers = [torch.nn.Buffer(a) for a in call]
    assert_same_bits(numbers(*descend.rms_norm_grad(*buffers)), expected)


@needs_torch
@pytest.mark.parametrize("mode", ["enable_grad", "no_grad"])
@pytest.mark.parametrize("form", ["functional", "two-phase"])
def test_written_tensors_count_a_version(mode, form):
    """Autograd must notice that a tensor which it saved was overwritten, as it does for PyTorch's own operators."""
    call = tensors()
    leaf, saved = torch.ones(4, 32, requires_grad=True), torch.ones(4, 32)
    loss = (leaf * saved).sum()
    version = saved._version
    with getattr(torch, mode)():
        if form == "functional":
            descend.rms_norm_grad(*call, out=(saved, None))
        else:
            with acl.product("host"):
                size, executor = phase1(OP, *call, saved, torch.zeros(32))
            assert saved._version == version
            aclnn.rms_norm_grad(acl.malloc(size), size, executor, None)
            acl.synchronize()
    assert saved._version > version
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()
    assert [a._version for a in call] == [0] * 4


@needs_torch
def test_inference_tensors():
    with torch.inference_mode():
        call = [a.clone() for a in tensors()]
        out = torch.zeros(4, 32)
        assert out.is_inference()
        descend.rms_norm_grad(*call, out=(out, None))
    assert_same_bits(numbers(out), numbers(descend.rms_norm_grad(*tensors())[0]))
    descend.rms_norm_grad(*call, out=(out, None))  # outside, too


@needs_torch
def test_results_of_pytorch_own_their_memory():
    for rows in (4, 40_000):
        call = [torch.from_numpy(a) for a in inputs(rows=rows)]
        first = descend.rms_norm_grad(*call)
        kept = [a.clone() for a in first]
        tail = first[0][-1:]
        del first
        gc.collect()
        descend.empty_cache()
        other = [descend.rms_norm_grad(*(a * 2 for a in call)) for _ in range(3)]
        assert torch.equal(tail, kept[0][-1:])
        del other


@needs_torch
def test_pytorch_is_never_imported():
    code = """
import sys
import numpy as np
import descend
descend.rms_norm(np.ones((2, 8)), np.ones(8))
print([m for m in ("torch", "jax", "safetensors", "typer", "rich") if m in sys.modules])
import torch  # and if it comes later, it is known
print(type(descend.rms_norm(torch.ones(2, 8), torch.ones(8))[0]).__name__)
"""
    assert run_python(code).stdout == "[]\nTensor\n"


@needs_torch
def test_pytorch_with_numpy_is_one_memory():
    call = inputs()
    out = torch.zeros(4, 32)
    descend.rms_norm_grad(*call, out=(out.numpy(), None))
    assert_same_bits([out.numpy()], expected_of(call)[:1])


# --- JAX -----------------------------------------------------------------------------------------------------------


def test_jax():
    jax = pytest.importorskip("jax")
    jnp = jax.numpy
    call = [jnp.asarray(a) for a in inputs()]
    expected = expected_of(inputs())
    results = descend.rms_norm_grad(*call)
    for result, golden in zip(results, expected, strict=True):
        assert isinstance(result, jax.Array)
        assert_same_bits([np.asarray(result)], [golden])
    half = descend.rms_norm_grad(*(a.astype(jnp.bfloat16) for a in call))
    assert half[0].dtype == jnp.bfloat16
    with refused(161002, OP, "dx_out", "JAX", "immutable"):
        descend.rms_norm_grad(*call, out=(jnp.zeros((4, 32)), None))
    with refused(161002, OP, "dx_out", "JAX"):
        phase1(OP, *call, jnp.zeros((4, 32)), jnp.zeros(32))
    with refused(161002, OP, "x is a"):
        jax.jit(lambda x: descend.rms_norm_grad(call[0], x, call[2], call[3])[0])(call[1])
    with refused(161002, OP, "x is a"):
        jax.grad(lambda x: descend.rms_norm_grad(call[0], x, call[2], call[3])[0].sum())(call[1])
    # Inputs are unchanged.
    assert_same_bits([np.asarray(a) for a in call], inputs())


@pytest.mark.filterwarnings("ignore:Some donated buffers")
def test_jax_arrays_without_memory():
    """Deleted, or donated to a computation, which may write over it."""
    jax = pytest.importorskip("jax")
    for lose in (lambda array: array.delete(), jax.jit(lambda array: array + 1, donate_argnums=0)):
        for place, name in enumerate(("dy", "x", "rstd", "gamma")):
            call = [jax.numpy.asarray(a) for a in inputs()]
            lose(call[place])
            with refused(161002, OP, f"{name} is a deleted ", ".ArrayImpl, whose memory was freed or donated."):
                descend.rms_norm_grad(*call)
            with refused(161002, OP, f"{name} is a deleted "):
                phase1(OP, *call, *inputs()[1::2])
        sizes = jax.numpy.asarray([4, 32])
        lose(sizes)
        with pytest.raises(TypeError, match=r"normalized_shape is a deleted .*, but must be a sequence of integers\.$"):
            descend.layer_norm(inputs()[1], sizes)


# --- leaks ---------------------------------------------------------------------------------------------------------


def references(objects: list[Any]) -> list[int]:
    gc.collect()
    return [sys.getrefcount(o) for o in objects]


def failing(call: list[Any], extra: list[Any]) -> None:
    out = extra[0]
    for bad in (
        lambda: descend.rms_norm_grad(call[0], call[1], call[3], call[2]),
        lambda: descend.rms_norm_grad(call[0], call[1], call[2], "gamma"),
        lambda: descend.rms_norm_grad(*call, out=(out, out)),
        lambda: descend.rms_norm_grad(*call, out=(out, None, None)),
        lambda: phase1(OP, *call, None, out),
        lambda: phase1(OP, *call, object(), out),
    ):
        with pytest.raises((ValueError, TypeError)):
            bad()


@pytest.mark.parametrize("family", ["numpy", "torch", "dlpack"])
def test_no_references_are_lost(family):
    if family == "torch" and torch is None:
        pytest.skip("PyTorch is not installed")
    wrap = {"numpy": np.asarray, "torch": lambda a: torch.from_numpy(a), "dlpack": Producer}[family]
    call, extra = [wrap(a) for a in inputs()], [wrap(np.zeros((4, 32), np.float32)), wrap(np.zeros(32, np.float32))]
    watched = [*call, *extra]
    if family == "dlpack":
        watched += [p.array for p in [*call, *extra]]
    stream = acl.Stream()

    def once() -> None:
        descend.rms_norm_grad(*call)
        descend.rms_norm_grad(*call, out=tuple(extra))
        failing(call, extra)
        with acl.product("host"):
            size, executor = phase1(OP, *call, *extra)
        executor.set_repeatable()
        workspace = acl.malloc(size)
        for _ in range(2):
            executor.set_tensor("x", call[1])
            aclnn.rms_norm_grad(workspace, size, executor, stream)
        phase1(OP, *call, *extra)
        stream.synchronize()

    once()
    before = references(watched)
    for _ in range(20):
        once()
    assert references(watched) == before


def test_no_memory_is_lost():
    call = inputs(rows=20)
    out = np.zeros((20, 32), np.float32)

    def many(count: int) -> None:
        for _ in range(count):
            descend.rms_norm_grad(*call)
            failing(call, [out])
            size, executor = phase1(OP, *call, out, np.zeros(32, np.float32))
            aclnn.rms_norm_grad(acl.malloc(size), size, executor, None)
        acl.synchronize()

    def growth() -> int:
        many(5)
        gc.collect()
        before = tracemalloc.get_traced_memory()[0]
        many(300)
        gc.collect()
        return tracemalloc.get_traced_memory()[0] - before

    many(50)
    tracemalloc.start()
    try:
        grown = min(growth() for _ in range(3))  # a leak grows with each call, unlike what other threads allocate
    finally:
        tracemalloc.stop()
    assert grown < 20_000  # less than 70 bytes a call


def test_memory_of_the_process_does_not_grow():
    """The engine's own memory, which tracemalloc does not see."""
    code = """
import gc, resource, sys
import numpy as np
import descend
from descend import acl, aclnn
acl.set_product("host")
rng = np.random.default_rng(0)
a = [rng.standard_normal(s).astype("f") for s in ((60, 500), (60, 500), (60,), (500,), (60, 500), (500,))]
turned = [np.asfortranarray(x) for x in a]
stream = acl.Stream()
def once(i):
    descend.rms_norm_grad(*a[:4])
    descend.rms_norm_grad(*turned[:4])
    try:
        descend.rms_norm_grad(*a[:3], a[3][:9])
    except ValueError:
        pass
    size, executor = aclnn.rms_norm_grad_get_workspace_size(*a)
    aclnn.rms_norm_grad(acl.malloc(size), size, executor, stream if i % 2 else acl.Stream())
def resident():
    gc.collect()
    return int(open("/proc/self/statm").read().split()[1]) * resource.getpagesize()
for i in range(400):
    once(i)
stream.synchronize()
before = resident()
for i in range(4000):
    once(i)
stream.synchronize()
print(resident() - before)
"""
    if not sys.platform.startswith("linux"):
        pytest.skip("needs /proc")
    assert int(run_python(code).stdout) < 4 << 20


def test_the_cache_of_pages_is_bounded_and_given_back():
    call = inputs(rows=100_000)
    descend.rms_norm_grad(*call)
    gc.collect()
    assert descend._native.info()["cached_bytes"] >= 100_000 * 32 * 4
    descend.empty_cache()
    assert descend._native.info()["cached_bytes"] == 0
    descend._native.set_cache_limit(1 << 20)
    try:
        descend.rms_norm_grad(*call)
        gc.collect()
        assert descend._native.info()["cached_bytes"] <= 1 << 20
    finally:
        descend._native.set_cache_limit(1 << 30)
