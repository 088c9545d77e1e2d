"""The C interface's operators: every misuse is an error, none a crash."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest

import descend
from c_library import DTYPES, FORMATS, PUBLIC, byref, c_int64, c_uint64, c_void_p
from c_problem import NAMES, OP, foreign_handles
from cases import digest
from descend import sdk

pytest_plugins = ("c_problem",)  # the fixtures lib, stream and problem

try:
    SDK = sdk.path()
except FileNotFoundError as error:
    pytest.skip(str(error), allow_module_level=True)


def test_the_second_phase(lib, problem, stream):
    status, size, executor = problem.phase1()
    assert status == 0
    assert size > 0
    # Tensors may be destroyed as soon as phase 1 has returned.
    for tensor in problem.tensors:
        assert lib.aclDestroyTensor(tensor) == 0
    assert problem.launch(stream, executor, size) == 0
    assert lib.aclrtSynchronizeStream(stream) == 0
    problem.check()
    assert problem.launch(stream, executor, size) == 161002  # spent
    assert "used" in lib.sentence
    assert lib.aclDestroyAclOpExecutor(executor) == 161002
    assert lib.aclSetAclOpExecutorRepeatable(executor) == 161002


def test_the_default_stream(lib, problem):
    _, size, executor = problem.phase1()
    assert problem.launch(None, executor, size) == 0
    assert lib.aclrtSynchronizeStream(None) == 0
    problem.check()


def test_a_repeatable_executor(lib, problem, stream):
    _, size, executor = problem.phase1()
    assert lib.aclSetAclOpExecutorRepeatable(executor) == 0
    for _ in range(3):
        problem.arrays[4][...] = np.nan
        assert problem.launch(stream, executor, size) == 0
        assert lib.aclrtSynchronizeStream(stream) == 0
        problem.check()
    # Other memory, by each of the three functions; indices count the tensors of their kind.
    moved = [a.copy() for a in problem.arrays]
    for a in moved[:4]:
        a *= 2
    for i in range(4):
        assert lib.aclSetInputTensorAddr(executor, i, problem.tensors[i], moved[i].ctypes.data) == 0, lib.sentence
    assert lib.aclSetOutputTensorAddr(executor, 0, problem.tensors[4], moved[4].ctypes.data) == 0
    assert lib.aclSetTensorAddr(executor, 5, problem.tensors[5], moved[5].ctypes.data) == 0
    before = digest(*problem.arrays)
    assert problem.launch(stream, executor, size) == 0
    assert lib.aclrtSynchronizeStream(stream) == 0
    assert digest(*problem.arrays) == before
    assert digest(*moved[4:]) == digest(*descend.rms_norm_grad(*moved[:4]))
    for call, index in (
        (lib.aclSetInputTensorAddr, 4),
        (lib.aclSetOutputTensorAddr, 2),
        (lib.aclSetTensorAddr, 6),
        (lib.aclSetTensorAddr, 2**64 - 1),
    ):
        assert call(executor, index, problem.tensors[0], moved[0].ctypes.data) != 0
        assert str(index) in lib.sentence
    assert lib.aclSetInputTensorAddr(executor, 0, problem.tensors[3], moved[3].ctypes.data) == 161002  # another shape
    assert lib.aclSetInputTensorAddr(executor, 0, None, moved[0].ctypes.data) == 161001
    assert lib.aclSetInputTensorAddr(None, 0, problem.tensors[0], moved[0].ctypes.data) == 161001
    # A null address is noticed at the launch.
    assert lib.aclSetInputTensorAddr(executor, 1, problem.tensors[1], None) == 0
    assert problem.launch(stream, executor, size) == 361001
    assert "x" in lib.sentence
    assert lib.aclDestroyAclOpExecutor(executor) == 0
    assert lib.aclDestroyAclOpExecutor(executor) == 161002
    assert problem.launch(stream, executor, size) == 161002


def test_arguments_of_the_second_phase(lib, problem, stream):
    _, size, executor = problem.phase1()
    workspace = np.zeros(size, np.float64)
    assert lib.aclnnRmsNormGrad(None, size, executor, stream) == 161001
    assert "workspace" in lib.sentence
    assert lib.aclnnRmsNormGrad(workspace.ctypes.data, size - 1, executor, stream) == 161002
    assert str(size) in lib.sentence
    assert lib.aclnnRmsNormGrad(workspace.ctypes.data, size, None, stream) == 161001
    assert "executor" in lib.sentence
    assert lib.aclnnRmsNorm(workspace.ctypes.data, size, executor, stream) == 161002  # another operator's
    assert lib.sentence.startswith("aclnnRmsNorm: ")
    for handle in foreign_handles(lib):
        assert lib.aclnnRmsNormGrad(workspace.ctypes.data, size, executor, handle) == 361001
        assert lib.aclnnRmsNormGrad(workspace.ctypes.data, size, handle, stream) == 161002
    assert lib.aclnnRmsNormGrad(problem.arrays[4].ctypes.data, size, executor, stream) == 161002
    assert "the workspace overlaps dxOut in memory" in lib.sentence
    assert np.isnan(problem.arrays[4]).all()
    assert problem.launch(stream, executor, size) == 0  # none of this has used it up
    assert lib.aclrtSynchronizeStream(stream) == 0
    problem.check()


def test_null_arguments_of_the_first_phase(lib, problem):
    for name in NAMES:
        problem.refused(161001, f" {name} is null", **{name: None})
    size, executor = c_uint64(7), c_void_p()
    assert lib.aclnnRmsNormGradGetWorkspaceSize(*problem.tensors, None, byref(executor)) == 161001
    assert "workspaceSize" in lib.sentence
    assert executor.value is None
    assert lib.aclnnRmsNormGradGetWorkspaceSize(*problem.tensors, byref(size), None) == 161001
    assert "executor" in lib.sentence
    assert size.value == 7


def test_null_data_passes_the_first_phase_only(lib, problem, stream):
    for i, name in enumerate(NAMES):
        tensor = lib.tensor(None, problem.arrays[i].shape)
        status, size, executor = problem.phase1(**{name: tensor})
        assert status == 0
        assert problem.launch(stream, executor, size) == 361001
        assert f" {name} " in lib.sentence
    # Set later, it is fine.
    dx = lib.tensor(None, (4, 32))
    assert lib.aclSetRawTensorAddr(dx, problem.arrays[4].ctypes.data) == 0
    _, size, executor = problem.phase1(dxOut=dx)
    assert problem.launch(stream, executor, size) == 0
    assert lib.aclrtSynchronizeStream(stream) == 0
    problem.check()


def test_stale_and_foreign_tensors(lib, problem):
    for handle in foreign_handles(lib):
        problem.refused(161002, " x is not one", x=handle)
    others = [lib.stream(), lib.event(), lib.aclCreateIntArray((c_int64 * 2)(1, 2), 2)]
    for handle in others:
        problem.refused(161002, " gamma is not one", gamma=handle)
        assert lib.aclDestroyTensor(handle) == 161002
    assert lib.aclDestroyTensor(problem.tensors[1]) == 0
    problem.refused(161002, " x is not one")
    # A null argument comes before a stale one.
    problem.refused(161001, " dgammaOut is null", dgammaOut=None)


def test_destroying_twice_and_foreign_handles(lib):
    data = np.zeros(8, np.float32)
    one = c_int64(1)
    objects = {
        "Tensor": lambda: lib.tensor(data, (8,)),
        "Scalar": lambda: lib.aclCreateScalar(byref(one), DTYPES["INT64"]),
        "IntArray": lambda: lib.aclCreateIntArray(byref(one), 1),
        "FloatArray": lambda: lib.aclCreateFloatArray(data.ctypes.data, 8),
        "BoolArray": lambda: lib.aclCreateBoolArray(data.ctypes.data, 8),
        "TensorList": lambda: lib.aclCreateTensorList((c_void_p * 1)(lib.tensor(data, (8,))), 1),
        "ScalarList": lambda: lib.aclCreateScalarList((c_void_p * 1)(lib.aclCreateScalar(byref(one), 9)), 1),
    }
    foreign = foreign_handles(lib)
    for kind, make in objects.items():
        destroy = getattr(lib, f"aclDestroy{kind}")
        assert destroy(None) == 0
        handles = [make() for _ in range(300)]
        assert len(set(handles)) == 300
        for handle in handles:
            assert destroy(handle) == 0
            assert destroy(handle) == 161002
            assert lib.sentence.startswith(f"aclDestroy{kind}: ")
        # Slots are used again, but no handle ever comes back.
        again = [make() for _ in range(300)]
        assert not set(again) & set(handles)
        for handle in (*handles, *foreign):
            assert destroy(handle) == 161002
        for handle in again:
            assert destroy(handle) == 0


def test_a_list_owns_its_tensors(lib):
    data = np.zeros(8, np.float32)
    tensors = [lib.tensor(data, (8,)) for _ in range(3)]
    handle = lib.aclCreateTensorList((c_void_p * 3)(*tensors), 3)
    size = c_uint64()
    assert lib.aclGetTensorListSize(handle, byref(size)) == 0
    assert size.value == 3
    assert lib.aclDestroyTensorList(handle) == 0
    for tensor in tensors:
        assert lib.aclDestroyTensor(tensor) == 161002


def test_creating_judges_nothing_but_null_lists(lib):
    data = np.zeros(8, np.float32)
    for make in (
        lambda: lib.tensor(data, (1,) * 20),
        lambda: lib.tensor(data, (-5, 2**62, 2**62)),
        lambda: lib.tensor(data, ()),
        lambda: lib.tensor(None, (3,)),
        lambda: lib.tensor(data, (8,), dtype=12345),
        lambda: lib.tensor(data, (8,), form=-77),
        lambda: lib.tensor(data, (8,), strides=(2**63 - 1,), offset=-(2**63)),
    ):
        tensor = make()
        assert tensor
        assert lib.aclDestroyTensor(tensor) == 0
    for create in (lib.aclCreateIntArray, lib.aclCreateFloatArray, lib.aclCreateBoolArray, lib.aclCreateTensorList):
        assert create(None, 3) is None
        assert "3" in lib.sentence
        empty = create(None, 0)
        assert empty  # an array of length 0 is an array
    dims = (c_int64 * 2)(2, 4)
    assert lib.aclCreateTensor(None, 2, 0, None, 0, 2, dims, 2, data.ctypes.data) is None
    assert lib.aclCreateTensor(dims, 2, 0, None, 0, 2, None, 2, data.ctypes.data) is None


def test_getters(lib):
    data = np.zeros(64, np.float32)
    tensor = lib.tensor(data, (2, 3), "BF16", (10, 2), 5, "NCHW", (40,))
    for getter, expected in (
        (lib.aclGetViewShape, [2, 3]),
        (lib.aclGetViewStrides, [10, 2]),
        (lib.aclGetStorageShape, [40]),
    ):
        dims, count = ctypes.POINTER(c_int64)(), c_uint64()
        assert getter(tensor, byref(dims), byref(count)) == 0
        assert dims[: count.value] == expected
        assert getter(None, byref(dims), byref(count)) == 161001
        assert getter(tensor, None, byref(count)) == 161001
        assert getter(tensor + 2, byref(dims), byref(count)) == 161002
    offset, form, dtype, address = c_int64(), ctypes.c_int32(), ctypes.c_int32(), c_void_p()
    assert lib.aclGetViewOffset(tensor, byref(offset)) == 0
    assert lib.aclGetFormat(tensor, byref(form)) == 0
    assert lib.aclGetDataType(tensor, byref(dtype)) == 0
    assert lib.aclGetRawTensorAddr(tensor, byref(address)) == 0
    assert (offset.value, form.value, dtype.value, address.value) == (5, 0, 27, data.ctypes.data)
    assert lib.aclDestroyTensor(tensor) == 0
    for getter in (lib.aclGetViewOffset, lib.aclGetFormat, lib.aclGetDataType, lib.aclGetRawTensorAddr):
        assert getter(tensor, byref(address)) == 161002
        assert getter(None, byref(address)) == 161001


# --- what phase 1 judges that Python cannot say --------------------------------------------------------------------


def test_dtypes_by_number(lib, problem):
    for number in [*range(-3, 80), 64, 91, 2**31 - 1, -(2**31), 128, 256, 4096]:
        tensor = lib.tensor(problem.arrays[1], (4, 32), dtype=number)
        status, _, _ = problem.phase1(x=tensor)
        assert (status == 0) == (number == DTYPES["FLOAT"]), number
        if status:
            assert status == 161002
            assert lib.sentence.startswith(f"{OP}: ")


@pytest.mark.parametrize("name", NAMES)
def test_formats(lib, problem, name):
    i = NAMES.index(name)
    for form in FORMATS:
        tensor = lib.tensor(problem.arrays[i], problem.arrays[i].shape, form=form)
        if form in PUBLIC:
            assert problem.phase1(**{name: tensor})[0] == 0
        else:
            problem.refused(161002, f" {name} has format ", "ND", **{name: tensor})
    for number in (5, 31, 999, 2**31 - 1, -2):
        problem.refused(
            161002, name, "format", **{name: lib.tensor(problem.arrays[i], problem.arrays[i].shape, form=number)}
        )


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("shape", "strides", "offset", "storage", "words"),
    [
        ((4, 32), (32, 1), 0, (127,), ["[4, 32]", "127"]),
        ((4, 32), (32, 1), 1, (128,), ["offset 1", "128"]),
        ((4, 32), (33, 1), 0, (128,), ["[33, 1]", "128"]),
        ((4, 32), (32, -1), 0, (128,), ["[32, -1]", "128"]),
        ((4, 32), (32, 1), -1, (128,), ["-1", "128"]),
        ((4, 32), (2**62, 1), 0, (128,), ["128"]),
        ((4, 32), (2**63 - 1, 2**63 - 1), 0, (128,), ["128"]),
        ((4, 32), (-(2**63), 1), 0, (128,), ["128"]),
        ((4, 32), (32, 1), 2**63 - 1, (128,), ["128"]),
        ((4, 32), (32, 1), -(2**63), (128,), ["128"]),
        ((4, 32), (32, 1), 0, (0,), ["0 elements"]),
        ((4, 32), (32, 1), 0, (2**31, 2**31), ["2^62"]),
        ((4, 32), (32, 1), 0, (2**32, 2**32), ["2^62"]),
        ((4, 32), (32, 1), 0, (-1, -128), ["negative"]),
        ((1,) * 9, None, 0, None, ["rank 9", "8"]),
        ((1,) * 100, None, 0, None, ["rank 100", "8"]),
        ((-4, 32), None, 0, None, ["[-4, 32]", "negative"]),
        ((-4, -32), None, 0, None, ["negative"]),
        ((-(2**63),), None, 0, None, ["negative"]),
        ((2**31, 2**31), None, 0, None, ["2^62"]),
        ((2**32, 2**32), None, 0, None, ["2^62"]),
        ((2**63 - 1,), None, 0, None, ["2^62"]),
        ((2**21,) * 8, None, 0, None, ["2^62"]),
        ((2**40, 2**40, 0), None, 0, None, ["2^62", "if it were not empty"]),
        ((0, 2**63 - 1), None, 0, None, ["2^62", "if it were not empty"]),
        ((2**62, 2**62), (0, 0), 0, (1,), ["2^62"]),
        ((3, 2**63 - 1), (0, 0), 0, (1,), ["2^62"]),
    ],
)
def test_views_outside_their_storage_and_sizes_that_overflow(
    lib, problem, name, shape, strides, offset, storage, words
):
    data = np.zeros(128, np.float32)
    tensor = lib.tensor(data, shape, "FLOAT", strides, offset, "ND", storage)
    problem.refused(161002, f" {name} has ", *words, **{name: tensor})


def test_storage_beyond_its_allocation(lib, problem):
    memory = lib.malloc(4 * 32 * 4)
    for address, storage, words in (
        (memory, (4, 33), ["528", "512"]),
        (memory + 4, (4, 32), ["512", "508"]),
        (memory + 508, (2**40,), ["4"]),
    ):
        problem.refused(
            161002, " x has a storage", *words, x=lib.tensor(address, (1, 1), storage=storage, strides=(1, 1))
        )
    # The whole storage counts, whatever the view; it fits exactly.
    assert problem.phase1(x=lib.tensor(memory, (4, 32)))[0] == 0
    assert problem.phase1(x=lib.tensor(memory, (4, 32), storage=(64, 2)))[0] == 0
    assert lib.aclrtFree(memory) == 0
    # Now it is memory of another allocator, accepted as it is (and not read in phase 1).
    assert problem.phase1(x=lib.tensor(memory, (4, 32)))[0] == 0


def test_offsets_and_negative_strides(lib, problem, stream):
    base = np.zeros(300, np.float32)
    x = problem.arrays[1]
    base[100:228] = x[::-1, ::-1].ravel()
    tensor = lib.tensor(base, (4, 32), "FLOAT", (-32, -1), 227, "NCHW", (300,))
    status, size, executor = problem.phase1(x=tensor)
    assert status == 0, lib.sentence
    assert problem.launch(stream, executor, size) == 0
    assert lib.aclrtSynchronizeStream(stream) == 0
    problem.check()


def test_order_of_checks(lib, problem):
    """Null, product, dtype, format, view inside its storage, overlap, then the page's rules."""
    data = np.zeros(64, np.float32)

    def dx(dtype: str, form: str, storage: int, where: np.ndarray[Any, Any]) -> int:
        return lib.tensor(where, (3, 7), dtype, (7, 1), 0, form, (storage,))

    x = problem.arrays[1]
    try:
        assert lib.descendSetProduct(b"atlas-training") == 0
        problem.refused(161001, " dy is null", dy=None, dxOut=dx("INT32", "FRACTAL_NZ", 5, x))
        problem.refused(561003, "atlas-training", dxOut=dx("INT32", "FRACTAL_NZ", 5, x))
        assert lib.descendSetProduct(b"atlas-a3") == 0
        problem.refused(161002, " dxOut has dtype INT32", dxOut=dx("INT32", "FRACTAL_NZ", 5, x))
        problem.refused(161002, " dxOut has format FRACTAL_NZ", dxOut=dx("FLOAT", "FRACTAL_NZ", 5, x))
        problem.refused(161002, " dxOut has shape [3, 7]", "storage", dxOut=dx("FLOAT", "ND", 5, x))
        problem.refused(161002, " dxOut overlaps x", dxOut=dx("FLOAT", "ND", 21, x))
        problem.refused(561002, " dxOut has shape [3, 7]", "[4, 32]", dxOut=dx("FLOAT", "ND", 21, data))
        assert problem.phase1()[0] == 0
    finally:
        assert lib.descendSetProduct(b"host") == 0


def test_products(lib, problem):
    before = lib.descendGetProduct()
    for wrong in (b"", b"Host", b"atlas-a4"):
        assert lib.descendSetProduct(wrong) == 100000
        assert "atlas-a2-training" in lib.sentence
    assert lib.descendSetProduct(None) == 100000
    assert lib.descendGetProduct() == before
    try:
        for name in ("atlas-200i-500-a2", "atlas-training"):
            assert lib.descendSetProduct(name.encode()) == 0
            problem.refused(561003, name)
    finally:
        assert lib.descendSetProduct(before) == 0


def test_sentences_use_the_documents_names(lib, problem):
    gamma = lib.tensor(np.zeros(16, np.float32), (16,))
    x = np.zeros((2, 1, 32), np.float32)
    tensors = {"dy": lib.tensor(x, x.shape), "x": lib.tensor(x, x.shape), "gamma": gamma}
    status, _, _ = problem.phase1(**tensors)
    assert status == 561002
    expected = "gamma has shape [16], but must equal the last dimensions of x, whose shape is [2, 1, 32]."
    assert lib.sentence == f"{OP}: {expected}"
    problem.refused(561002, " dgammaOut has shape [31]", dgammaOut=lib.tensor(x, (31,)))
