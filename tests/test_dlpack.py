"""Arrays of other libraries: anything with DLPack, and JAX."""

from __future__ import annotations

import ctypes
import gc
import weakref
from typing import Any

import numpy as np
import pytest

import descend
from array_calls import OP, Producer, expected_of, inputs
from cases import assert_same_bits, phase1, refused
from descend import acl, aclnn
from fuzz.dlpack import Description, Liar

pytestmark = pytest.mark.usefixtures("little_to_collect")


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


@pytest.mark.parametrize(
    ("lie", "said"),
    [
        ({"shape": None}, "without a shape"),
        ({"ndim": -1}, "-1 dimensions"),
        ({"ndim": 65}, "65 dimensions"),
        ({"ndim": 2**31 - 1}, "2147483647 dimensions"),
        ({"data": 0}, "without memory"),
        ({"shape": [4, -32]}, "negative"),
        ({"shape": [2**62, 2**62]}, "2^62"),
        ({"strides": [2**62, 1]}, "more than 2^62 bytes"),
        ({"strides": [-(2**63), 1]}, "more than 2^62 bytes"),
        ({"byte_offset": 2}, "multiple of its element size"),
        ({"version": (2, 0)}, "version"),
        ({"dtype": (2, 32, 4)}, "dtype"),
    ],
)
def test_producers_that_lie(lie, said):
    call = inputs()
    what = {"data": call[1].ctypes.data, "shape": [4, 32], "strides": [32, 1], "ndim": 2}
    with refused(161002, OP, "x", said):
        descend.rms_norm_grad(call[0], Liar(Description(**(what | lie))), *call[2:])


def test_functions_of_dlpack_that_are_null_or_give_nothing():
    """A type may have C functions beside its methods. Without them the methods are used; what they give is checked."""
    call = inputs()
    nothing = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)(lambda *_: 0)
    new = ctypes.pythonapi.PyCapsule_New
    new.restype, new.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
    for functions, works in (((0, 0, 0), True), ((0, ctypes.cast(nothing, ctypes.c_void_p).value, 0), False)):
        # Version, previous, allocate, managed_from_object, object_from_managed, borrow_from_object, current_stream.
        table = (ctypes.c_uint64 * 7)(1, 0, 0, functions[1], 0, 0, 0)

        class WithTable(Producer):
            kept = table
            __dlpack_c_exchange_api__ = new(ctypes.addressof(table), b"dlpack_exchange_api", None)

        given = [call[0], WithTable(call[1]), *call[2:]]
        if works:
            assert_same_bits(descend.rms_norm_grad(*given), expected_of(call))
            continue
        with refused(161002, OP, "x", "no tensor of DLPack"):
            descend.rms_norm_grad(*given)


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
