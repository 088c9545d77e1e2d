"""Exporters written in C: DLPack's functions and buffers that fail, lie and leave exceptions behind."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import pytest

import descend
from array_calls import OP, expected_of, inputs
from cases import assert_same_bits, phase1, refused
from descend import acl, aclnn
from fuzz.dlpack import Description, managed

pytest.importorskip("typer")
exporter = importlib.import_module("fuzz.exporter")

pytestmark = pytest.mark.skipif(exporter.compiler() is None, reason="there is no compiler, or no Python.h")


def says(array: np.ndarray) -> Description:
    return Description(array.ctypes.data, list(array.shape), None, array.ndim)


def counts() -> tuple[int, int]:
    return exporter.number("gave").value, exporter.number("took").value


@pytest.mark.parametrize("borrows", [True, False])
def test_functions_of_dlpack(borrows):
    """A tensor is borrowed, or its deleter is called once, also where an exception is left behind or there is none."""
    call = inputs()
    for leaves, deletes in ((False, True), (True, True), (False, False)):
        array = exporter.Exchange(says(call[1]), borrows=borrows, deletes=deletes)
        exporter.prepare(leaves_exception=leaves)
        with exporter.exceptions_left() as left:
            results = descend.rms_norm_grad(call[0], array, *call[2:])
        assert_same_bits(results, expected_of(call))
        assert counts() == (1, int(deletes and not borrows))
        assert len(left) == (leaves and not borrows)


@pytest.mark.parametrize("borrows", [True, False])
@pytest.mark.parametrize("sets_exception", [True, False])
def test_functions_of_dlpack_that_fail(borrows, sets_exception):
    call = inputs()
    array = exporter.Exchange(says(call[1]), borrows=borrows)
    exporter.prepare(-1, sets_exception=sets_exception)
    with refused(161002, OP, "x", "cannot be read: " + ("no" if sets_exception else "it failed and did not say why")):
        descend.rms_norm_grad(call[0], array, *call[2:])
    assert counts() == (0, 0)


def test_functions_of_dlpack_that_give_nothing():
    call = inputs()
    array = exporter.Exchange(says(call[1]), borrows=False, null=True)
    exporter.prepare()
    with refused(161002, OP, "x", "gave no tensor"):
        descend.rms_norm_grad(call[0], array, *call[2:])


@pytest.mark.parametrize("version", [(1, 0), None])
def test_the_destructor_of_a_capsule_runs_once(version):
    call = inputs()
    array = exporter.Capsule(says(call[1]))
    array.says.version = version
    for wrong in (False, True):
        exporter.prepare(leaves_exception=True)
        array.says.ndim = -1 if wrong else 2
        with exporter.exceptions_left() as left:
            if wrong:
                with refused(161002, OP, "x", "-1 dimensions"):
                    descend.rms_norm_grad(call[0], array, *call[2:])
            else:
                assert_same_bits(descend.rms_norm_grad(call[0], array, *call[2:]), expected_of(call))
        assert counts() == (1, 1)
        assert left == ["left behind"]
    assert managed(array.says).tensor.ndim == -1


def buffer(size: int, **other: Any) -> tuple[Any, np.ndarray]:
    """What a buffer of exporter.c says, if nothing else is said, and its memory."""
    memory = np.zeros(size + 64, np.uint8)
    start = memory.ctypes.data + -memory.ctypes.data % 64
    fields = {"buf": start, "len": size, "itemsize": 1, "ndim": 1, "format": b"B", **other}
    return exporter.Buffer(**fields), memory


LIES = {
    "negative length": {"len": -1},
    "the least length": {"len": -(1 << 63)},
    "no memory": {"buf": None},
    "read-only": {"readonly": 1},
    "objects": {"format": b"O"},
    "strides without a shape": {"ndim": 2, "strides": exporter.numbers([1, 1])},
    "another shape": {"shape": exporter.numbers([3])},
    "a negative shape": {"shape": exporter.numbers([-1])},
    "a shape that overflows": {"ndim": 2, "shape": exporter.numbers([1 << 62, 4])},
    "gaps": {"strides": exporter.numbers([2])},
    "an item of another size": {"itemsize": 8},
    "no item size": {"itemsize": 0},
    "too many dimensions": {"ndim": 1 << 20},
    "fewer than no dimensions": {"ndim": -1},
    "suboffsets": {"suboffsets": exporter.numbers([0])},
}


@pytest.mark.parametrize("lie", [None, *LIES])
def test_buffers(lie):
    call = inputs()
    results = np.zeros((4, 32), np.float32), np.zeros(32, np.float32)
    size, executor = phase1(OP, *call, *results)
    fields = {"shape": exporter.numbers([size]), **LIES.get(lie, {})}
    if lie == "strides without a shape":
        del fields["shape"]
    exporter.prepare(leaves_exception=True)
    said, _memory = buffer(size, **fields)
    exporter.set_buffer(said)
    workspace = exporter.buffer_type()()
    with exporter.exceptions_left() as left:
        if lie is None:
            aclnn.rms_norm_grad(workspace, size, executor, None)
            acl.synchronize()
        else:
            with pytest.raises(
                TypeError, match=r"^rms_norm_grad: workspace is an? .*, but must be None, an acl\.Buffer"
            ):
                aclnn.rms_norm_grad(workspace, size, executor, None)
    assert counts() == (1, 1)
    assert left == ["left behind"]
    if lie is None:
        assert_same_bits(results, expected_of(call))


@pytest.mark.parametrize("sets_exception", [True, False])
def test_a_buffer_that_is_not_given(sets_exception):
    size, executor = phase1(OP, *inputs(), np.zeros((4, 32), np.float32), np.zeros(32, np.float32))
    exporter.prepare(-1, sets_exception=sets_exception)
    with pytest.raises(TypeError, match=r"^rms_norm_grad: workspace is an? .*, but must be None, an acl\.Buffer"):
        aclnn.rms_norm_grad(exporter.buffer_type()(), size, executor, None)
    assert counts() == (0, 0)
