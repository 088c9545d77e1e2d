"""The C interface through ctypes: libdescend.so as a program sees it."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from ctypes import byref, c_double, c_int32, c_int64, c_size_t, c_uint32, c_uint64, c_void_p
from pathlib import Path
from typing import Any

import numpy as np

from descend import sdk

# The numbers of the C interface's page.
DTYPES = {
    "UNDEFINED": -1,
    "FLOAT": 0,
    "FLOAT16": 1,
    "INT8": 2,
    "INT32": 3,
    "UINT8": 4,
    "INT16": 6,
    "UINT16": 7,
    "UINT32": 8,
    "INT64": 9,
    "UINT64": 10,
    "DOUBLE": 11,
    "BOOL": 12,
    "STRING": 13,
    "COMPLEX64": 16,
    "COMPLEX128": 17,
    "BF16": 27,
    "INT4": 29,
    "UINT1": 30,
    "COMPLEX32": 33,
}
FORMATS = {
    "UNDEFINED": -1,
    "NCHW": 0,
    "NHWC": 1,
    "ND": 2,
    "NC1HWC0": 3,
    "FRACTAL_Z": 4,
    "NC1HWC0_C04": 12,
    "HWCN": 16,
    "NDHWC": 27,
    "FRACTAL_NZ": 29,
    "NCDHW": 30,
    "NDC1HWC0": 32,
    "FRACTAL_Z_3D": 33,
    "NC": 35,
    "NCL": 47,
}
PUBLIC = ("ND", "NCHW", "NHWC", "NCL", "NC", "HWCN", "NDHWC", "NCDHW")

_SIGNATURES: dict[str, tuple[Any, ...]] = {
    "aclInit": (c_void_p,),
    "aclFinalize": (),
    "aclrtSetDevice": (c_int32,),
    "aclrtResetDevice": (c_int32,),
    "aclrtGetDevice": (c_void_p,),
    "aclrtGetDeviceCount": (c_void_p,),
    "aclrtSynchronizeDevice": (),
    "aclrtMalloc": (c_void_p, c_size_t, c_int32),
    "aclrtFree": (c_void_p,),
    "aclrtMallocHost": (c_void_p, c_size_t),
    "aclrtFreeHost": (c_void_p,),
    "aclrtMemcpy": (c_void_p, c_size_t, c_void_p, c_size_t, c_int32),
    "aclrtMemcpyAsync": (c_void_p, c_size_t, c_void_p, c_size_t, c_int32, c_void_p),
    "aclrtMemset": (c_void_p, c_size_t, c_int32, c_size_t),
    "aclrtMemsetAsync": (c_void_p, c_size_t, c_int32, c_size_t, c_void_p),
    "aclrtCreateStream": (c_void_p,),
    "aclrtDestroyStream": (c_void_p,),
    "aclrtDestroyStreamForce": (c_void_p,),
    "aclrtSynchronizeStream": (c_void_p,),
    "aclrtSynchronizeStreamWithTimeout": (c_void_p, c_int32),
    "aclrtStreamQuery": (c_void_p, c_void_p),
    "aclrtStreamWaitEvent": (c_void_p, c_void_p),
    "aclrtCreateEvent": (c_void_p,),
    "aclrtDestroyEvent": (c_void_p,),
    "aclrtRecordEvent": (c_void_p, c_void_p),
    "aclrtResetEvent": (c_void_p, c_void_p),
    "aclrtQueryEventStatus": (c_void_p, c_void_p),
    "aclrtSynchronizeEvent": (c_void_p,),
    "aclrtEventElapsedTime": (c_void_p, c_void_p, c_void_p),
    "aclrtCreateContext": (c_void_p, c_int32),
    "aclrtDestroyContext": (c_void_p,),
    "aclrtSetCurrentContext": (c_void_p,),
    "aclrtGetCurrentContext": (c_void_p,),
    "aclDestroyTensor": (c_void_p,),
    "aclDestroyScalar": (c_void_p,),
    "aclDestroyIntArray": (c_void_p,),
    "aclDestroyFloatArray": (c_void_p,),
    "aclDestroyBoolArray": (c_void_p,),
    "aclDestroyTensorList": (c_void_p,),
    "aclDestroyScalarList": (c_void_p,),
    "aclDestroyDataBuffer": (c_void_p,),
    "aclGetViewShape": (c_void_p, c_void_p, c_void_p),
    "aclGetStorageShape": (c_void_p, c_void_p, c_void_p),
    "aclGetViewStrides": (c_void_p, c_void_p, c_void_p),
    "aclGetViewOffset": (c_void_p, c_void_p),
    "aclGetFormat": (c_void_p, c_void_p),
    "aclGetDataType": (c_void_p, c_void_p),
    "aclGetIntArraySize": (c_void_p, c_void_p),
    "aclGetFloatArraySize": (c_void_p, c_void_p),
    "aclGetBoolArraySize": (c_void_p, c_void_p),
    "aclGetTensorListSize": (c_void_p, c_void_p),
    "aclGetScalarListSize": (c_void_p, c_void_p),
    "aclSetRawTensorAddr": (c_void_p, c_void_p),
    "aclGetRawTensorAddr": (c_void_p, c_void_p),
    "aclSetAclOpExecutorRepeatable": (c_void_p,),
    "aclDestroyAclOpExecutor": (c_void_p,),
    "aclSetInputTensorAddr": (c_void_p, c_size_t, c_void_p, c_void_p),
    "aclSetOutputTensorAddr": (c_void_p, c_size_t, c_void_p, c_void_p),
    "aclSetTensorAddr": (c_void_p, c_size_t, c_void_p, c_void_p),
    "aclnnRmsNormGradGetWorkspaceSize": (c_void_p,) * 8,
    "aclnnRmsNormGrad": (c_void_p, c_uint64, c_void_p, c_void_p),
    "aclnnRmsNormGetWorkspaceSize": (c_void_p, c_void_p, c_double, *(c_void_p,) * 4),
    "aclnnRmsNorm": (c_void_p, c_uint64, c_void_p, c_void_p),
    "aclSetTensorPlaceMent": (c_void_p, c_int32),
    "aclopSetAttrBool": (c_void_p, ctypes.c_char_p, ctypes.c_uint8),
    "aclopSetAttrInt": (c_void_p, ctypes.c_char_p, c_int64),
    "aclopSetAttrFloat": (c_void_p, ctypes.c_char_p, ctypes.c_float),
    "aclopSetAttrString": (c_void_p, ctypes.c_char_p, ctypes.c_char_p),
    "aclopSetAttrListBool": (c_void_p, ctypes.c_char_p, c_int32, c_void_p),
    "aclopCompileAndExecute": (
        *(ctypes.c_char_p, c_int32, c_void_p, c_void_p, c_int32, c_void_p, c_void_p),
        *(c_void_p, c_int32, c_int32, ctypes.c_char_p, c_void_p),
    ),
    "descendSetProduct": (ctypes.c_char_p,),
    "descendSetNumThreads": (c_int32,),
}
_RESULTS: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "aclGetRecentErrMsg": (ctypes.c_char_p, ()),
    "descendGetProduct": (ctypes.c_char_p, ()),
    "aclDataTypeSize": (c_size_t, (c_int32,)),
    "aclFloat16ToFloat": (ctypes.c_float, (ctypes.c_uint16,)),
    "aclFloatToFloat16": (ctypes.c_uint16, (ctypes.c_float,)),
    "aclCreateTensor": (
        c_void_p,
        (c_void_p, c_uint64, c_int32, c_void_p, c_int64, c_int32, c_void_p, c_uint64, c_void_p),
    ),
    "aclCreateScalar": (c_void_p, (c_void_p, c_int32)),
    "aclCreateIntArray": (c_void_p, (c_void_p, c_uint64)),
    "aclCreateFloatArray": (c_void_p, (c_void_p, c_uint64)),
    "aclCreateBoolArray": (c_void_p, (c_void_p, c_uint64)),
    "aclCreateTensorList": (c_void_p, (c_void_p, c_uint64)),
    "aclCreateScalarList": (c_void_p, (c_void_p, c_uint64)),
    "aclCreateDataBuffer": (c_void_p, (c_void_p, c_size_t)),
    "aclCreateTensorDesc": (c_void_p, (c_int32, c_int32, c_void_p, c_int32)),
    "aclDestroyTensorDesc": (None, (c_void_p,)),
    "aclopCreateAttr": (c_void_p, ()),
    "aclopDestroyAttr": (None, (c_void_p,)),
}


class Library:
    """The functions of the library with their types, and a few helpers."""

    def __init__(self, path: Path | str | None = None) -> None:
        self.c = ctypes.CDLL(str(path or sdk.path() / "lib64" / "libdescend.so"))
        for name, types in _SIGNATURES.items():
            function = getattr(self.c, name)
            function.argtypes, function.restype = types, c_int32
        for name, (result, types) in _RESULTS.items():
            function = getattr(self.c, name)
            function.argtypes, function.restype = types, result

    def __getattr__(self, name: str) -> Any:
        return getattr(self.c, name)

    @property
    def sentence(self) -> str:
        return self.c.aclGetRecentErrMsg().decode()

    def malloc(self, size: int) -> int:
        pointer = c_void_p()
        assert self.aclrtMalloc(byref(pointer), size, 0) == 0, self.sentence
        assert pointer.value is not None
        return pointer.value

    def stream(self) -> int:
        stream = c_void_p()
        assert self.aclrtCreateStream(byref(stream)) == 0, self.sentence
        assert stream.value is not None
        return stream.value

    def event(self) -> int:
        event = c_void_p()
        assert self.aclrtCreateEvent(byref(event)) == 0, self.sentence
        assert event.value is not None
        return event.value

    def tensor(
        self,
        data: np.ndarray[Any, Any] | int | None,
        shape: Sequence[int],
        dtype: str | int = "FLOAT",
        strides: Sequence[int] | None = None,
        offset: int = 0,
        form: str | int = "ND",
        storage: Sequence[int] | None = None,
    ) -> int:
        def dims(values: Sequence[int]) -> Any:
            return (c_int64 * max(len(values), 1))(*values)

        storage = shape if storage is None else storage
        return self.aclCreateTensor(
            dims(shape),
            len(shape),
            DTYPES[dtype] if isinstance(dtype, str) else dtype,
            dims(strides) if strides is not None else None,
            offset,
            FORMATS[form] if isinstance(form, str) else form,
            dims(storage),
            len(storage),
            data.ctypes.data if isinstance(data, np.ndarray) else data,
        )

    def phase1(self, *tensors: int | None) -> tuple[int, int, int]:
        """Status, workspace size and executor of aclnnRmsNormGrad; -1 and 0 where they were not written."""
        size, executor = c_uint64(2**64 - 1), c_void_p()
        status = self.aclnnRmsNormGradGetWorkspaceSize(*tensors, byref(size), byref(executor))
        return status, -1 if size.value == 2**64 - 1 else size.value, executor.value or 0


def started() -> Iterator[Library]:
    """The library after aclInit (an earlier test may have called it), with the product ``host`` as long as it lives."""
    library = Library()
    assert library.aclInit(None) in (0, 100002)
    assert library.aclrtSetDevice(0) == 0
    before = library.descendGetProduct()
    assert library.descendSetProduct(b"host") == 0
    yield library
    assert library.descendSetProduct(before) == 0


__all__ = [
    "DTYPES",
    "FORMATS",
    "PUBLIC",
    "Library",
    "byref",
    "c_int32",
    "c_int64",
    "c_size_t",
    "c_uint32",
    "c_uint64",
    "c_void_p",
    "started",
]
