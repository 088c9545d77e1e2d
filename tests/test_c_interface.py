"""The C interface: programs written for CANN compile, link and run; every misuse is an error, none a crash."""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import subprocess
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import descend
from c_library import DTYPES, FORMATS, PUBLIC, Library, byref, c_int64, c_uint64, c_void_p, started
from cases import digest, in_threads, normal, run_python
from descend import sdk
from test_rms_norm_grad import EXAMPLE_DGAMMA, EXAMPLE_DX, EXAMPLE_DX_2

ROOT = Path(__file__).resolve().parent.parent
OP = "aclnnRmsNormGrad"
NAMES = ("dy", "x", "rstd", "gamma", "dxOut", "dgammaOut")

try:
    SDK = sdk.path()
except FileNotFoundError as error:
    pytest.skip(str(error), allow_module_level=True)

CXX = next((c for c in (os.environ.get("CXX"), "g++", "c++", "clang++") if c and shutil.which(c)), None)
CC = next((c for c in (os.environ.get("CC"), "gcc", "cc", "clang") if c and shutil.which(c)), None)
needs_compiler = pytest.mark.skipif(CXX is None or CC is None, reason="there is no compiler")
needs_linux = pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="looks at ELF files and /proc")


# --- programs ------------------------------------------------------------------------------------------------------


def in_environment(command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Runs a shell command in a folder, with the SDK's set_env.sh sourced and nothing else pointing at the library."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("ASCEND_", "DESCEND_", "LD_"))}
    return subprocess.run(
        ["bash", "-c", f". '{SDK}/set_env.sh' && {command}"],
        cwd=folder,
        env=clean,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def build_and_run(source: str, folder: Path, flags: str = "", libraries: str = "-lascendcl -lnnopbase -lopapi") -> str:
    """As the documentation builds a program; returns what it prints."""
    (folder / "program.cpp").write_text(source, encoding="utf-8")
    build = (
        f"{CXX} {flags} program.cpp -I$ASCEND_CUSTOM_PATH/include -L$ASCEND_CUSTOM_PATH/lib64 {libraries} -o program"
    )
    for command in (build, "./program"):
        result = in_environment(command, folder)
        assert result.returncode == 0, f"{command}\n{result.stdout}\n{result.stderr}"
    return result.stdout


def printed_numbers(text: str) -> list[float]:
    return [float(n) for n in re.findall(r"^result\[\d+\] is: (\S+)$", text, re.MULTILINE)]


@needs_compiler
@pytest.mark.parametrize("flags", ["", "-std=c++11 -O2 -fPIE -D_GLIBCXX_USE_CXX11_ABI=0"])
def test_the_documents_own_program(flags, tmp_path):
    """The document's program, unchanged, built as the document says."""
    folder = Path(os.environ.get("DESCEND_SEEDS") or ROOT.parent / "shared" / "seeds")
    seeds = sorted(folder.glob("002_*.txt"))
    if not seeds:
        pytest.skip(f"{folder} has no documents")
    text = seeds[0].read_text(encoding="utf-8")
    program = text[text.index("#include <iostream>") :]
    assert "aclnnRmsNormGradGetWorkspaceSize(gradInput" in program
    out = build_and_run(program, tmp_path, flags)
    assert printed_numbers(out) == [*EXAMPLE_DX, *EXAMPLE_DX_2, *EXAMPLE_DGAMMA]
    assert len(out.splitlines()) == 48


OWN_PROGRAM = r"""
#include <cstdio>
#include <thread>
#include <vector>
#include "acl/acl.h"
#include "aclnnop/aclnn_rms_norm.h"
#include "aclnnop/aclnn_rms_norm_grad.h"
#include "aclnn/opdev/op_errno.h"
#include "descend.h"

#define CHECK(call) do { int status = (call); if (status != 0) { \
    std::printf("%s: %d %s\n", #call, status, aclGetRecentErrMsg()); return 1; } } while (0)

struct Device { void *p = nullptr; aclTensor *tensor = nullptr; };

static int make(const std::vector<float> &values, const std::vector<int64_t> &shape, Device *device) {
  CHECK(aclrtMalloc(&device->p, values.size() * 4, ACL_MEM_MALLOC_HUGE_FIRST));
  CHECK(aclrtMemcpy(device->p, values.size() * 4, values.data(), values.size() * 4, ACL_MEMCPY_HOST_TO_DEVICE));
  device->tensor = aclCreateTensor(shape.data(), shape.size(), ACL_FLOAT, nullptr, 0, ACL_FORMAT_ND, shape.data(),
                                   shape.size(), device->p);
  return 0;
}

// Forward and backward of 64 x 128 on a stream of its own; the sum of dx.
static int train(int seed, double *sum) {
  const int64_t m = 64, n = 128;
  std::vector<float> x(m * n), dy(m * n), gamma(n, 1.5f), rstd(m), out(m * n), dgamma(n);
  for (int64_t i = 0; i < m * n; ++i) { x[i] = float((i * 37 + seed) % 101) - 50; dy[i] = float(i % 13) - 6; }
  Device dX, dDy, dGamma, dRstd, dY, dDx, dDgamma;
  CHECK(make(x, {m, n}, &dX));
  CHECK(make(dy, {m, n}, &dDy));
  CHECK(make(gamma, {n}, &dGamma));
  CHECK(make(rstd, {m, 1}, &dRstd));
  CHECK(make(out, {m, n}, &dY));
  CHECK(make(out, {m, n}, &dDx));
  CHECK(make(dgamma, {n}, &dDgamma));
  aclrtStream stream;
  CHECK(aclrtCreateStream(&stream));
  void *forward_space = nullptr, *backward_space = nullptr;
  uint64_t size = 0;
  aclOpExecutor *executor = nullptr;
  CHECK(aclnnRmsNormGetWorkspaceSize(dX.tensor, dGamma.tensor, 1e-6, dY.tensor, dRstd.tensor, &size, &executor));
  if (size > 0) CHECK(aclrtMalloc(&forward_space, size, ACL_MEM_MALLOC_NORMAL_ONLY));
  CHECK(aclnnRmsNorm(forward_space, size, executor, stream));
  CHECK(aclnnRmsNormGradGetWorkspaceSize(dDy.tensor, dX.tensor, dRstd.tensor, dGamma.tensor, dDx.tensor,
                                         dDgamma.tensor, &size, &executor));
  if (size > 0) CHECK(aclrtMalloc(&backward_space, size, ACL_MEM_MALLOC_NORMAL_ONLY));
  for (Device *d : {&dX, &dDy, &dGamma, &dRstd, &dY, &dDx, &dDgamma}) CHECK(aclDestroyTensor(d->tensor));
  CHECK(aclnnRmsNormGrad(backward_space, size, executor, stream));
  CHECK(aclrtSynchronizeStream(stream));
  CHECK(aclrtMemcpy(out.data(), out.size() * 4, dDx.p, out.size() * 4, ACL_MEMCPY_DEVICE_TO_HOST));
  *sum = 0;
  for (float v : out) *sum += v;
  CHECK(aclrtFree(backward_space));
  CHECK(aclrtFree(dDx.p));
  CHECK(aclrtDestroyStream(stream));
  return 0;  // and leaks the rest
}

int main() {
  CHECK(aclInit(nullptr));
  CHECK(aclrtSetDevice(0));
  std::vector<double> sums(8);
  std::vector<int> status(8);
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&, i] { for (int k = 0; k < 50; ++k) status[i] |= train(i, &sums[i]); });
  }
  for (auto &thread : threads) thread.join();
  for (int i = 0; i < 8; ++i) std::printf("%d %.9g\n", status[i], sums[i]);
  std::printf("%s %d %d\n", descendGetProduct(), ACLNN_ERR_PARAM_INVALID, aclrtSetDevice(1));
  CHECK(aclrtResetDevice(0));
  CHECK(aclFinalize());
  return 0;
}
"""


@needs_compiler
def test_a_program_in_the_same_style(tmp_path):
    libraries = "-pthread -lascendcl -lnnopbase -lopapi -lopapi_nn -lopapi_math -lopapi_transformer"
    out = build_and_run(OWN_PROGRAM, tmp_path, "-std=c++11 -Wall -Wextra -Werror", libraries).splitlines()
    assert out[-1] == "atlas-a2-training 161002 200002"
    for seed, line in enumerate(out[:8]):
        i = np.arange(64 * 128)
        x = ((i * 37 + seed) % 101 - 50).astype(np.float32).reshape(64, 128)
        dy = (i % 13 - 6).astype(np.float32).reshape(64, 128)
        gamma = np.full(128, 1.5, np.float32)
        expected = descend.rms_norm_grad(dy, x, descend.rms_norm(x, gamma)[1], gamma)[0]
        status, total = line.split()
        assert status == "0"
        assert float(total) == pytest.approx(float(expected.astype(np.float64).sum()), abs=1e-9)


OWN_NAMES = r"""
#include "acl/acl.h"
namespace own { enum Status : int { ACL_SUCCESS = 0, ACL_ERROR_INVALID_PARAM = 1 }; }
own::Status translate(aclError status) {
  switch (status) {
    case ::ACL_SUCCESS: return own::ACL_SUCCESS;
    default: return own::ACL_ERROR_INVALID_PARAM;
  }
}
const int &address() { return ::ACL_ERROR_BAD_ALLOC; }
static_assert(ACL_SUCCESS == ACL_ERROR_NONE, "");
bool same(uint32_t wanted, aclrtMemcpyKind kind) { return kind == wanted; }
uint32_t number(aclrtRunMode mode) { return uint32_t{mode}; }
int32_t number(aclFormat format) { return int32_t{format}; }
bool known(aclDataType type) { return type >= ACL_DT_UNDEFINED; }
"""


@needs_compiler
def test_headers_below_acl_are_c99_and_all_are_cpp(tmp_path):
    include = SDK / "include"
    headers = sorted(str(h.relative_to(include)) for h in include.rglob("*.h"))
    c_headers = [h for h in headers if h.startswith("acl/")] + ["descend.h"]
    assert {"acl/acl.h", "acl/acl_rt.h", "acl/acl_base.h", "aclnn/acl_meta.h", "aclnn/aclnn_base.h"} < set(headers)
    assert {"aclnnop/aclnn_rms_norm.h", "aclnnop/aclnn_rms_norm_grad.h", "aclnn/opdev/op_errno.h"} < set(headers)
    strict = "-Wall -Wextra -Wpedantic -Werror -fsyntax-only"
    commands = []
    # Each header alone and included twice; all together in both orders.
    for name, group in (("c", c_headers), ("cpp", headers)):
        for i, sources in enumerate([*([h] for h in group), group, group[::-1]]):
            file = tmp_path / f"{i}.{name}"
            file.write_text("".join(f'#include "{h}"\n#include <{h}>\n' for h in sources))
    commands.append(f"{CC} -std=c99 {strict} -I{include} *.c")
    for standard in ("c++11", "c++20"):
        commands.append(f"{CXX} -std={standard} {strict} -I{include} *.cpp")
    # Some programs have include/aclnn itself on the path.
    (tmp_path / "path.cc").write_text('#include "acl_meta.h"\n#include "acl/acl_rt.h"\naclTensor *t; aclrtStream s;\n')
    commands.append(f"{CXX} -std=c++11 {strict} -I{include} -I{include}/aclnn path.cc")
    # Newer ones include acl_rt.h alone, and have include/aclnnop on the path; older ones look in level2.
    (tmp_path / "newer.cc").write_text(
        '#include "acl/acl_rt.h"\n#include "aclnn_rms_norm.h"\n#include "aclnnop/level2/aclnn_layer_norm_backward.h"\n'
        '#include "aclnnop/level2/aclnn_scaled_masked_softmax.h"\n'
        '#include "aclnnop/level2/aclnn_scaled_masked_softmax_backward.h"\n'
        "auto *softmax = &aclnnScaledMaskedSoftmax;\nauto *softmax_backward = &aclnnScaledMaskedSoftmaxBackward;\n"
        "int start() { return aclInit(nullptr) + aclFinalize(); }\n"
        "auto *first = &aclnnLayerNormBackwardGetWorkspaceSize;\n"
    )
    commands.append(f"{CXX} -std=c++11 {strict} -I{include} -I{include}/aclnnop newer.cc")
    # Some include nothing but what an operator's header brings with it.
    (tmp_path / "brought.cc").write_text(
        '#include "aclnnop/aclnn_rms_norm.h"\n'
        "std::int64_t size(std::size_t n) { void *p = malloc(n); if (!p) exit(EXIT_FAILURE); free(p); return 0; }\n"
        "aclSysParamOpt option() { return aclrtGetSocName() ? ACL_OPT_DETERMINISTIC : ACL_OPT_STRONG_CONSISTENCY; }\n"
    )
    commands.append(f"{CXX} -std=c++11 {strict} -I{include} brought.cc")
    # Enums of the runtime have tags, as CANN's have.
    enums = (
        "RunMode", "MemcpyKind", "MemMallocPolicy", "MemAttr", "EventRecordedStatus", "EventStatus", "StreamStatus",
        "LastErrLevel",
    )  # fmt: skip
    source = "".join(f"enum aclrt{name} as_{name}(aclrt{name} a) {{ return a; }}\n" for name in enums)
    for name in ("tags.c", "tags.cpp"):
        (tmp_path / name).write_text(f'#include "acl/acl.h"\n{source}')
    commands.append(f"{CC} -std=c99 {strict} -Wno-missing-prototypes -I{include} tags.c")
    commands.append(f"{CXX} -std=c++11 {strict} -I{include} tags.cpp")
    # Status codes are constants and no macros, of which a program may use none; enums are unsigned where CANN's are.
    (tmp_path / "own.cpp").write_text(OWN_NAMES)
    commands.append(f"{CXX} -std=c++11 {strict} -I{include} own.cpp")
    commands.append(f"{CC} -std=c99 {strict} -Wunused-const-variable -I{include} *.c")
    commands.append(f"{CXX} -std=c++11 {strict} -Wunused-const-variable -I{include} *.cpp")
    for command in commands:
        result = subprocess.run(["bash", "-c", command], cwd=tmp_path, capture_output=True, text=True, check=False)
        assert result.returncode == 0, result.stderr


# The page's numbers.
NUMBERS = {
    **{("ACL_DT_UNDEFINED" if n == "UNDEFINED" else f"ACL_{n}"): v for n, v in DTYPES.items()},
    **{("ACL_FRACTAL_Z_3D" if n == "FRACTAL_Z_3D" else f"ACL_FORMAT_{n}"): v for n, v in FORMATS.items()},
    **{
        f"ACL_MEMCPY_{n}": i
        for i, n in enumerate(("HOST_TO_HOST", "HOST_TO_DEVICE", "DEVICE_TO_HOST", "DEVICE_TO_DEVICE", "DEFAULT"))
    },
    "ACL_MEMCPY_HOST_TO_BUF_TO_DEVICE": 5,
    "ACL_MEMCPY_INNER_DEVICE_TO_DEVICE": 6,
    "ACL_MEMCPY_INTER_DEVICE_TO_DEVICE": 7,
    **{
        f"ACL_MEM_MALLOC_{n}": i
        for i, n in enumerate(
            (
                "HUGE_FIRST",
                "HUGE_ONLY",
                "NORMAL_ONLY",
                "HUGE_FIRST_P2P",
                "HUGE_ONLY_P2P",
                "NORMAL_ONLY_P2P",
                "HUGE1G_ONLY",
                "HUGE1G_ONLY_P2P",
            )
        )
    },
    "ACL_MEM_TYPE_LOW_BAND_WIDTH": 0x100,
    "ACL_MEM_TYPE_HIGH_BAND_WIDTH": 0x1000,
    **{
        f"ACL_{n}": i
        for i, n in enumerate(
            ("DDR_MEM", "HBM_MEM", "DDR_MEM_HUGE", "DDR_MEM_NORMAL", "HBM_MEM_HUGE", "HBM_MEM_NORMAL")
        )
    },
    "ACL_DDR_MEM_P2P_HUGE": 6,
    "ACL_HBM_MEM_P2P_HUGE1G": 11,
    **{f"ACL_ENGINE_{n}": i for i, n in enumerate(("SYS", "AICORE", "VECTOR"))},
    **{f"ACL_COMPILE_{n}": i for i, n in enumerate(("SYS", "UNREGISTERED"))},
    **{f"ACL_MEMTYPE_{n}": i for i, n in enumerate(("DEVICE", "HOST", "HOST_COMPILE_INDEPENDENT"))},
    "ACL_ERROR_OP_INPUT_NOT_MATCH": 100021,
    "ACL_ERROR_OP_OUTPUT_NOT_MATCH": 100022,
    "ACL_ERROR_OP_ATTR_NOT_MATCH": 100023,
    "ACL_HIFLOAT8": 34,
    "ACL_FLOAT4_E1M2": 41,
    "ACL_ERROR": 3,
    "ACL_MAJOR_VERSION": 1,
    "ACL_MINOR_VERSION": 13,
    "ACL_PATCH_VERSION": 0,
    "ACL_EVENT_STATUS_COMPLETE": 0,
    "ACL_EVENT_STATUS_NOT_READY": 1,
    "ACL_EVENT_STATUS_RESERVED": 2,
    "ACL_STREAM_STATUS_RESERVED": 0xFFFF,
    "ACL_RT_THREAD_LEVEL": 0,
    "ACL_OPT_STRONG_CONSISTENCY": 2,
    "ACL_EVENT_SYNC": 1,
    "ACL_EVENT_CAPTURE_STREAM_PROGRESS": 2,
    "ACL_EVENT_TIME_LINE": 8,
    "ACL_EVENT_EXTERNAL": 0x20,
    "ACL_STREAM_FAST_LAUNCH": 1,
    "ACL_STREAM_FAST_SYNC": 2,
    "ACL_DEVICE": 0,
    "ACL_HOST": 1,
    "ACL_EVENT_RECORDED_STATUS_NOT_READY": 0,
    "ACL_EVENT_RECORDED_STATUS_COMPLETE": 1,
    "ACL_STREAM_STATUS_COMPLETE": 0,
    "ACL_STREAM_STATUS_NOT_READY": 1,
    "ACL_OPT_DETERMINISTIC": 0,
    "ACL_OPT_ENABLE_DEBUG_KERNEL": 1,
    "ACL_SUCCESS": 0,
    "ACL_ERROR_NONE": 0,
    "ACL_ERROR_INVALID_PARAM": 100000,
    "ACL_ERROR_UNINITIALIZE": 100001,
    "ACL_ERROR_REPEAT_INITIALIZE": 100002,
    "ACL_ERROR_REPEAT_FINALIZE": 100037,
    "ACL_ERROR_BAD_ALLOC": 200000,
    "ACL_ERROR_API_NOT_SUPPORT": 200001,
    "ACL_ERROR_INVALID_DEVICE": 200002,
    "ACL_ERROR_MEMORY_ADDRESS_UNALIGNED": 200003,
    "ACL_ERROR_RESOURCE_NOT_MATCH": 200004,
    "ACL_ERROR_INVALID_RESOURCE_HANDLE": 200005,
    "ACL_ERROR_FEATURE_UNSUPPORTED": 200006,
    "ACL_ERROR_INTERNAL_ERROR": 500000,
    "ACL_ERROR_FAILURE": 500001,
    "ACL_ERROR_RT_FAILURE": 500003,
    "ACL_ERROR_OP_NOT_FOUND": 100024,
    "ACL_ERROR_INVALID_BUNDLE_MODEL_ID": 148053,
    "ACL_ERROR_STORAGE_OVER_LIMIT": 300000,
    "ACL_ERROR_PROFILING_FAILURE": 500005,
    "ACL_RT_SUCCESS": 0,
    "ACL_ERROR_RT_PARAM_INVALID": 107000,
    "ACL_ERROR_RT_STREAM_ABORT": 107023,
    "ACL_ERROR_RT_MEMORY_ALLOCATION": 207001,
    "ACL_ERROR_RT_STREAM_SYNC_TIMEOUT": 507046,
    "ACL_ERROR_RT_EVENT_SYNC_TIMEOUT": 507047,
    "ACL_ERROR_RT_AICPU_INFO_LOAD_RSP_ERR": 507902,
    "ACLNN_SUCCESS": 0,
    "ACLNN_ERR_PARAM_NULLPTR": 161001,
    "ACLNN_ERR_PARAM_INVALID": 161002,
    "ACLNN_ERR_RUNTIME_ERROR": 361001,
    "ACLNN_ERR_INNER": 561000,
    "ACLNN_ERR_INNER_INFERSHAPE_ERROR": 561001,
    "ACLNN_ERR_INNER_TILING_ERROR": 561002,
    "ACLNN_ERR_INNER_FIND_KERNEL_ERROR": 561003,
    "ACLNN_ERR_INNER_CREATE_EXECUTOR": 561101,
    "ACLNN_ERR_INNER_NULLPTR": 561103,
    "ACLNN_ERR_INNER_STATIC_BLOCK_DIM_INVALID": 561119,
}

# The page's signatures, and those that programs use beside them.
TENSOR = (
    "const int64_t *, uint64_t, aclDataType, const int64_t *, int64_t, aclFormat, const int64_t *, uint64_t, void *"
)
SIGNATURES = f"""
aclError aclInit(const char *)
aclError aclFinalize()
aclnnStatus aclnnInit(const char *)
aclnnStatus aclnnFinalize()
const char *aclGetRecentErrMsg()
aclError aclrtGetVersion(int32_t *, int32_t *, int32_t *)
const char *aclrtGetSocName()
aclError aclrtSetDevice(int32_t)
aclError aclrtResetDevice(int32_t)
aclError aclrtResetDeviceForce(int32_t)
aclError aclrtGetDevice(int32_t *)
aclError aclrtGetDeviceCount(uint32_t *)
aclError aclrtGetRunMode(aclrtRunMode *)
aclError aclrtSynchronizeDevice()
aclError aclrtSynchronizeDeviceWithTimeout(int32_t)
aclError aclrtCreateContext(aclrtContext *, int32_t)
aclError aclrtDestroyContext(aclrtContext)
aclError aclrtSetCurrentContext(aclrtContext)
aclError aclrtGetCurrentContext(aclrtContext *)
aclError aclrtCtxGetSysParamOpt(aclSysParamOpt, int64_t *)
aclError aclrtCtxSetSysParamOpt(aclSysParamOpt, int64_t)
aclError aclrtGetSysParamOpt(aclSysParamOpt, int64_t *)
aclError aclrtSetSysParamOpt(aclSysParamOpt, int64_t)
aclError aclrtGetMemInfo(aclrtMemAttr, size_t *, size_t *)
aclError aclrtMalloc(void **, size_t, aclrtMemMallocPolicy)
aclError aclrtMallocAlign32(void **, size_t, aclrtMemMallocPolicy)
aclError aclrtMallocCached(void **, size_t, aclrtMemMallocPolicy)
aclError aclrtFree(void *)
aclError aclrtMallocHost(void **, size_t)
aclError aclrtFreeHost(void *)
aclError aclrtMemset(void *, size_t, int32_t, size_t)
aclError aclrtMemsetAsync(void *, size_t, int32_t, size_t, aclrtStream)
aclError aclrtMemcpy(void *, size_t, const void *, size_t, aclrtMemcpyKind)
aclError aclrtMemcpyAsync(void *, size_t, const void *, size_t, aclrtMemcpyKind, aclrtStream)
aclError aclrtCreateStream(aclrtStream *)
aclError aclrtCreateStreamWithConfig(aclrtStream *, uint32_t, uint32_t)
aclError aclrtDestroyStream(aclrtStream)
aclError aclrtDestroyStreamForce(aclrtStream)
aclError aclrtSynchronizeStream(aclrtStream)
aclError aclrtSynchronizeStreamWithTimeout(aclrtStream, int32_t)
aclError aclrtStreamQuery(aclrtStream, aclrtStreamStatus *)
aclError aclrtStreamWaitEvent(aclrtStream, aclrtEvent)
aclError aclrtCreateEvent(aclrtEvent *)
aclError aclrtCreateEventWithFlag(aclrtEvent *, uint32_t)
aclError aclrtCreateEventExWithFlag(aclrtEvent *, uint32_t)
aclError aclrtDestroyEvent(aclrtEvent)
aclError aclrtRecordEvent(aclrtEvent, aclrtStream)
aclError aclrtResetEvent(aclrtEvent, aclrtStream)
aclError aclrtQueryEventStatus(aclrtEvent, aclrtEventRecordedStatus *)
aclError aclrtQueryEvent(aclrtEvent, aclrtEventStatus *)
aclError aclrtSynchronizeEvent(aclrtEvent)
aclError aclrtSynchronizeEventWithTimeout(aclrtEvent, int32_t)
aclError aclrtEventElapsedTime(float *, aclrtEvent, aclrtEvent)
aclError aclrtEventGetTimestamp(aclrtEvent, uint64_t *)
aclError aclrtGetLastError(aclrtLastErrLevel)
aclError aclrtPeekAtLastError(aclrtLastErrLevel)
aclError aclrtMemcpy2d(void *, size_t, const void *, size_t, size_t, size_t, aclrtMemcpyKind)
aclError aclrtMemcpy2dAsync(void *, size_t, const void *, size_t, size_t, size_t, aclrtMemcpyKind, aclrtStream)
aclTensorDesc *aclCreateTensorDesc(aclDataType, int, const int64_t *, aclFormat)
void aclDestroyTensorDesc(const aclTensorDesc *)
aclDataType aclGetTensorDescType(const aclTensorDesc *)
aclFormat aclGetTensorDescFormat(const aclTensorDesc *)
size_t aclGetTensorDescSize(const aclTensorDesc *)
size_t aclGetTensorDescElementCount(const aclTensorDesc *)
size_t aclGetTensorDescNumDims(const aclTensorDesc *)
int64_t aclGetTensorDescDim(const aclTensorDesc *, size_t)
aclError aclGetTensorDescDimV2(const aclTensorDesc *, size_t, int64_t *)
void aclSetTensorDescName(aclTensorDesc *, const char *)
const char *aclGetTensorDescName(aclTensorDesc *)
aclError aclSetTensorFormat(aclTensorDesc *, aclFormat)
aclError aclSetTensorShape(aclTensorDesc *, int, const int64_t *)
aclError aclSetTensorPlaceMent(aclTensorDesc *, aclMemType)
aclError aclSetTensorConst(aclTensorDesc *, void *, size_t)
aclopAttr *aclopCreateAttr()
void aclopDestroyAttr(const aclopAttr *)
aclError aclopSetAttrBool(aclopAttr *, const char *, uint8_t)
aclError aclopSetAttrInt(aclopAttr *, const char *, int64_t)
aclError aclopSetAttrFloat(aclopAttr *, const char *, float)
aclError aclopSetAttrString(aclopAttr *, const char *, const char *)
aclError aclopSetAttrDataType(aclopAttr *, const char *, aclDataType)
aclError aclopSetAttrListBool(aclopAttr *, const char *, int, const uint8_t *)
aclError aclopSetAttrListInt(aclopAttr *, const char *, int, const int64_t *)
aclError aclopSetAttrListFloat(aclopAttr *, const char *, int, const float *)
aclError aclopSetAttrListString(aclopAttr *, const char *, int, const char **)
aclError aclopSetAttrListDataType(aclopAttr *, const char *, int, const aclDataType *)
aclError aclopSetAttrListListInt(aclopAttr *, const char *, int, const int *, const int64_t *const *)
aclError aclopCompileAndExecute(const char *, int, const aclTensorDesc *const *, const aclDataBuffer *const *, \
int, const aclTensorDesc *const *, aclDataBuffer *const *, const aclopAttr *, aclopEngineType, aclopCompileType, \
const char *, aclrtStream)
aclError aclopCompileAndExecuteV2(const char *, int, aclTensorDesc **, aclDataBuffer **, int, \
aclTensorDesc **, aclDataBuffer **, aclopAttr *, aclopEngineType, aclopCompileType, const char *, aclrtStream)
aclError aclUpdateDataBuffer(aclDataBuffer *, void *, size_t)
uint32_t aclGetDataBufferSize(const aclDataBuffer *)
void aclAppLog(aclLogLevel, const char *, const char *, uint32_t, const char *, ...)
aclTensor *aclCreateTensor({TENSOR})
aclnnStatus aclInitTensor(aclTensor *, {TENSOR})
aclScalar *aclCreateScalar(void *, aclDataType)
aclIntArray *aclCreateIntArray(const int64_t *, uint64_t)
aclFloatArray *aclCreateFloatArray(const float *, uint64_t)
aclBoolArray *aclCreateBoolArray(const bool *, uint64_t)
aclTensorList *aclCreateTensorList(const aclTensor *const *, uint64_t)
aclScalarList *aclCreateScalarList(const aclScalar *const *, uint64_t)
aclnnStatus aclDestroyTensor(const aclTensor *)
aclnnStatus aclDestroyScalar(const aclScalar *)
aclnnStatus aclDestroyIntArray(const aclIntArray *)
aclnnStatus aclDestroyFloatArray(const aclFloatArray *)
aclnnStatus aclDestroyBoolArray(const aclBoolArray *)
aclnnStatus aclDestroyTensorList(const aclTensorList *)
aclnnStatus aclDestroyScalarList(const aclScalarList *)
aclnnStatus aclGetViewShape(const aclTensor *, int64_t **, uint64_t *)
aclnnStatus aclGetStorageShape(const aclTensor *, int64_t **, uint64_t *)
aclnnStatus aclGetViewStrides(const aclTensor *, int64_t **, uint64_t *)
aclnnStatus aclGetViewOffset(const aclTensor *, int64_t *)
aclnnStatus aclGetFormat(const aclTensor *, aclFormat *)
aclnnStatus aclGetDataType(const aclTensor *, aclDataType *)
aclnnStatus aclGetIntArraySize(const aclIntArray *, uint64_t *)
aclnnStatus aclGetFloatArraySize(const aclFloatArray *, uint64_t *)
aclnnStatus aclGetBoolArraySize(const aclBoolArray *, uint64_t *)
aclnnStatus aclGetTensorListSize(const aclTensorList *, uint64_t *)
aclnnStatus aclGetScalarListSize(const aclScalarList *, uint64_t *)
aclnnStatus aclSetRawTensorAddr(aclTensor *, void *)
aclnnStatus aclGetRawTensorAddr(const aclTensor *, void **)
aclnnStatus aclSetAclOpExecutorRepeatable(aclOpExecutor *)
aclnnStatus aclDestroyAclOpExecutor(aclOpExecutor *)
aclnnStatus aclSetInputTensorAddr(aclOpExecutor *, const size_t, aclTensor *, void *)
aclnnStatus aclSetOutputTensorAddr(aclOpExecutor *, const size_t, aclTensor *, void *)
aclnnStatus aclSetTensorAddr(aclOpExecutor *, const size_t, aclTensor *, void *)
aclnnStatus AclSetInputTensorAddr(aclOpExecutor *, const size_t, aclTensor *, void *)
aclnnStatus AclSetOutputTensorAddr(aclOpExecutor *, const size_t, aclTensor *, void *)
aclnnStatus AclSetTensorAddr(aclOpExecutor *, const size_t, aclTensor *, void *)
size_t aclDataTypeSize(aclDataType)
float aclFloat16ToFloat(aclFloat16)
aclFloat16 aclFloatToFloat16(float)
aclDataBuffer *aclCreateDataBuffer(void *, size_t)
aclError aclDestroyDataBuffer(const aclDataBuffer *)
void *aclGetDataBufferAddr(const aclDataBuffer *)
size_t aclGetDataBufferSizeV2(const aclDataBuffer *)
"""
# The operators' first phases, T for `const aclTensor *`, up to the workspace's size and the executor.
OPERATORS = """
RmsNormGrad(T, T, T, T, T, T)
RmsNorm(T, T, double, T, T)
LayerNormBackward(T, T, const aclIntArray *, T, T, T, T, const aclBoolArray *, aclTensor *, aclTensor *, aclTensor *)
LayerNorm(T, const aclIntArray *, T, T, double, aclTensor *, aclTensor *, aclTensor *)
LayerNormWithImplMode(T, const aclIntArray *, T, T, double, aclTensor *, aclTensor *, aclTensor *, int32_t)
FastLayerNorm(T, const aclIntArray *, T, T, double, aclTensor *, aclTensor *, aclTensor *)
GroupNormSwishGrad(T, T, T, T, T, T, int64_t, char *, double, bool, bool, T, T, T)
GroupNormSwish(T, T, T, int64_t, char *, double, bool, double, T, T, T)
NsaCompressGrad(T, T, T, const aclIntArray *, int64_t, int64_t, int64_t, char *, T, T)
NsaCompress(T, T, const aclIntArray *, char *, int64_t, int64_t, int64_t, aclTensor *)
ScaledMaskedSoftmaxBackward(T, T, T, double, bool, aclTensor *)
ScaledMaskedSoftmax(T, T, double, bool, aclTensor *)
"""
for _name, _arguments in re.findall(r"^(\w+)\((.*)\)$", OPERATORS, re.MULTILINE):
    _tensors = re.sub(r"\bT\b", "const aclTensor *", _arguments)
    SIGNATURES += f"aclnnStatus aclnn{_name}GetWorkspaceSize({_tensors}, uint64_t *, aclOpExecutor **)\n"
    SIGNATURES += f"aclnnStatus aclnn{_name}(void *, uint64_t, aclOpExecutor *, aclrtStream)\n"


@needs_compiler
def test_numbers_and_signatures_are_the_pages(tmp_path):
    lines = ['#include "acl/acl.h"', '#include "acl/acl_op_compiler.h"', '#include "aclnn/acl_meta.h"']
    lines.append('#include "aclnn/opdev/op_errno.h"')
    operators = sorted((SDK / "include" / "aclnnop").glob("*.h"))
    assert len(operators) == 10
    lines += [*(f'#include "aclnnop/{header.name}"' for header in operators), "#include <type_traits>"]
    lines += [f'static_assert({name} == {value}, "{name}");' for name, value in NUMBERS.items()]
    for line in SIGNATURES.strip().splitlines():
        match = re.match(r"^(.*?)(\w+)\((.*)\)$", line)
        assert match, line
        result, name, arguments = match.groups()
        # The exact type of the function, as an overload set of one.
        lines.append(f"{result}(*use_{name})({arguments}) = {name};")
    for alias, kind in (
        ("aclrtStream", "void *"),
        ("aclrtEvent", "void *"),
        ("aclrtContext", "void *"),
        ("aclError", "int"),
        ("aclnnStatus", "int32_t"),
        ("aclFloat16", "uint16_t"),
    ):
        lines.append(f'static_assert(std::is_same<{alias}, {kind}>::value, "{alias}");')
    file = tmp_path / "check.cpp"
    file.write_text("\n".join(lines) + "\n")
    command = [str(CXX), "-std=c++11", "-fsyntax-only", f"-I{SDK}/include", str(file)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


def exported_names() -> set[str]:
    nm = shutil.which("nm")
    if nm is None:
        pytest.skip("there is no nm")
    library = SDK / "lib64" / "libdescend.so"
    listing = subprocess.run([nm, "-D", "--defined-only", library], capture_output=True, text=True, check=True).stdout
    return {line.split()[-1] for line in listing.splitlines()}


@needs_linux
def test_the_library_exports_the_interface_and_nothing_else():
    symbols = exported_names()
    assert all(re.match(r"^(acl|Acl|descend|rt|Msprof|Hccl)[A-Za-z0-9]+$", s) for s in symbols), sorted(symbols)
    declared = {re.search(r"(\w+)\(", line).group(1) for line in SIGNATURES.strip().splitlines()}  # type: ignore[union-attr]
    assert declared <= symbols, declared - symbols


def test_the_page_for_cann_users_names_every_function():
    page = (ROOT / "docs" / "coming-from-cann.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`((?:[aA]cl|descend|rt|Msprof|Hccl)[A-Za-z0-9]+)`", page.split("## Every function")[1]))
    assert named == exported_names()


DOCUMENTED_BUILD = """
cmake_minimum_required(VERSION 3.14)
project(example CXX)
set(CMAKE_CXX_STANDARD 11)
include_directories($ENV{ASCEND_CUSTOM_PATH}/include $ENV{ASCEND_CUSTOM_PATH}/include/aclnn)
link_directories($ENV{ASCEND_CUSTOM_PATH}/lib64)
add_executable(example rms_norm_grad.cpp)
target_link_libraries(example ascendcl nnopbase opapi)
"""

# As the samples that run one operator are built, whatever the variables are called.
RUNNER_BUILD = """
cmake_minimum_required(VERSION 3.5.1)
project(example)
add_compile_options(-std=c++11 -Wall -Werror)
set(INC_PATH $ENV{DDK_PATH})
set(LIB_PATH $ENV{NPU_HOST_LIB})
include_directories(${INC_PATH}/include)
link_directories(${LIB_PATH})
add_executable(example runner.cpp)
target_link_libraries(example ascendcl opapi acl_op_compiler nnopbase stdc++)
"""

RUNNER = r"""
#include <cstdio>
#include <cstring>
#include <vector>
#include "acl/acl.h"
#include "acl/acl_op_compiler.h"
#include "aclnnop/aclnn_scaled_masked_softmax_backward.h"

#define ERROR_LOG(fmt, args...) fprintf(stderr, "[ERROR] " fmt "\n", ##args)

bool g_isDevice = false;

// Descriptions of inputs and outputs, and for each a buffer on the device, one on the host, and a tensor.
class OpRunner {
public:
    ~OpRunner() {
        for (size_t i = 0; i < descs.size(); ++i) {
            aclDestroyTensorDesc(descs[i]);
            (void)aclDestroyTensor(tensors[i]);
            (void)aclDestroyDataBuffer(buffers[i]);
            (void)aclrtFree(device[i]);
            (void)(g_isDevice ? aclrtFree(host[i]) : aclrtFreeHost(host[i]));
        }
    }

    bool Add(aclDataType dataType, const std::vector<int64_t> &dims) {
        aclTensorDesc *desc = aclCreateTensorDesc(dataType, dims.size(), dims.data(), ACL_FORMAT_ND);
        const size_t size = aclGetTensorDescSize(desc);
        void *devMem = nullptr, *hostMem = nullptr;
        if (aclrtMalloc(&devMem, size, ACL_MEM_MALLOC_NORMAL_ONLY) != ACL_SUCCESS) return false;
        const aclError ret = g_isDevice ? aclrtMalloc(&hostMem, size, ACL_MEM_MALLOC_NORMAL_ONLY)
                                        : aclrtMallocHost(&hostMem, size);
        if (ret != ACL_SUCCESS) return false;
        descs.push_back(desc);
        device.push_back(devMem);
        host.push_back(hostMem);
        buffers.push_back(aclCreateDataBuffer(devMem, size));
        const std::vector<int64_t> shape = Shape(desc);
        tensors.push_back(aclCreateTensor(shape.data(), aclGetTensorDescNumDims(desc), aclGetTensorDescType(desc),
                                          nullptr, 0, aclGetTensorDescFormat(desc), shape.data(), shape.size(),
                                          aclGetDataBufferAddr(buffers.back())));
        return tensors.back() != nullptr;
    }

    static std::vector<int64_t> Shape(aclTensorDesc *desc) {
        std::vector<int64_t> shape;
        for (size_t i = 0; i < aclGetTensorDescNumDims(desc); ++i) {
            int64_t dimSize;
            if (aclGetTensorDescDimV2(desc, i, &dimSize) != ACL_SUCCESS) return {};
            shape.emplace_back(dimSize);
        }
        return shape;
    }

    bool Run() {
        aclrtStream stream = nullptr;
        if (aclrtCreateStream(&stream) != ACL_SUCCESS) return false;
        for (size_t i = 0; i < 3; ++i) {
            if (aclrtMemcpyAsync(device[i], aclGetDataBufferSizeV2(buffers[i]), host[i], Size(i),
                                 ACL_MEMCPY_HOST_TO_DEVICE, stream) != ACL_SUCCESS) return false;
        }
        size_t workspaceSize = 0;
        aclOpExecutor *handle = nullptr;
        auto ret = aclnnScaledMaskedSoftmaxBackwardGetWorkspaceSize(tensors[0], tensors[1], tensors[2], 0.5, false,
                                                                    tensors[3], &workspaceSize, &handle);
        if (ret != ACL_SUCCESS) {
            ERROR_LOG("Get Operator Workspace failed. error code is %d", static_cast<int32_t>(ret));
            return false;
        }
        void *workspace = nullptr;
        if (workspaceSize != 0 &&
            aclrtMalloc(&workspace, workspaceSize, ACL_MEM_MALLOC_NORMAL_ONLY) != ACL_SUCCESS) return false;
        ret = aclnnScaledMaskedSoftmaxBackward(workspace, workspaceSize, handle, stream);
        if (ret != ACL_SUCCESS || aclrtSynchronizeStreamWithTimeout(stream, 5000) != ACL_SUCCESS) return false;
        if (aclrtMemcpy(host[3], Size(3), device[3], Size(3), ACL_MEMCPY_DEVICE_TO_HOST) != ACL_SUCCESS) return false;
        if (workspace != nullptr) (void)aclrtFree(workspace);
        return aclrtDestroyStream(stream) == ACL_SUCCESS;
    }

    size_t Size(size_t i) const { return aclGetTensorDescSize(descs[i]); }
    size_t Count(size_t i) const { return aclGetTensorDescElementCount(descs[i]); }

    std::vector<aclTensorDesc *> descs;
    std::vector<void *> device, host;
    std::vector<aclDataBuffer *> buffers;
    std::vector<aclTensor *> tensors;
};

int main() {
    if (aclInit(NULL) != ACL_SUCCESS || aclrtSetDevice(0) != ACL_SUCCESS) return 1;
    aclrtRunMode runMode;
    if (aclrtGetRunMode(&runMode) != ACL_SUCCESS) return 1;
    g_isDevice = (runMode == ACL_DEVICE);
    {
        OpRunner runner;
        const std::vector<int64_t> shape{1, 1, 16, 32};
        if (!runner.Add(ACL_FLOAT, shape) || !runner.Add(ACL_FLOAT, shape) || !runner.Add(ACL_BOOL, shape) ||
            !runner.Add(ACL_FLOAT, shape)) return 2;
        for (size_t i = 0; i < runner.Count(0); ++i) {
            static_cast<float *>(runner.host[0])[i] = i % 32;
            static_cast<float *>(runner.host[1])[i] = 1.0f / 32;
        }
        memset(runner.host[2], 0, runner.Size(2));
        if (!runner.Run()) return 3;
        for (size_t i = 0; i < 32; ++i) printf("%.9g\n", static_cast<float *>(runner.host[3])[i]);
    }
    (void)aclrtResetDevice(0);
    return aclFinalize();
}
"""

FIND_PACKAGE = """
cmake_minimum_required(VERSION 3.14)
project(example CXX)
set(CMAKE_CXX_STANDARD 11)
find_package(descend 0.1 REQUIRED)
add_executable(example rms_norm_grad.cpp)
target_link_libraries(example PRIVATE descend::ascendcl descend::opapi)
"""


@needs_compiler
@pytest.mark.skipif(shutil.which("cmake") is None, reason="there is no CMake")
@pytest.mark.parametrize("text", [DOCUMENTED_BUILD, FIND_PACKAGE], ids=["ASCEND_CUSTOM_PATH", "find_package"])
def test_builds_with_cmake(text, tmp_path):
    assert FIND_PACKAGE is text or text.strip() in (ROOT / "docs" / "coming-from-cann.md").read_text(encoding="utf-8")
    (tmp_path / "CMakeLists.txt").write_text(text, encoding="utf-8")
    for name in ("rms_norm_grad.cpp", "device.h"):
        shutil.copy(ROOT / "examples" / "cpp" / name, tmp_path)
    for command in ("cmake -S . -B build", "cmake --build build", "./build/example"):
        result = in_environment(command, tmp_path)
        assert result.returncode == 0, f"{command}\n{result.stdout}\n{result.stderr}"
    assert "dgamma" in result.stdout


@needs_compiler
@pytest.mark.skipif(shutil.which("cmake") is None, reason="there is no CMake")
def test_a_program_that_runs_descriptions(tmp_path):
    (tmp_path / "CMakeLists.txt").write_text(RUNNER_BUILD, encoding="utf-8")
    (tmp_path / "runner.cpp").write_text(RUNNER, encoding="utf-8")
    paths = "export DDK_PATH=$ASCEND_HOME_PATH NPU_HOST_LIB=$(echo $ASCEND_HOME_PATH/*-linux/devlib)"
    for command in ("cmake -S . -B build", "cmake --build build", "./build/example"):
        result = in_environment(f"{paths} && {command}", tmp_path)
        assert result.returncode == 0, f"{command}\n{result.stdout}\n{result.stderr}"
    expected = 0.5 * (np.arange(32) - 15.5) / 32
    assert [float(line) for line in result.stdout.split()] == pytest.approx(expected.tolist(), rel=1e-6)


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
def test_the_environment_as_the_samples_scripts_set_it(tmp_path, monkeypatch):
    """Also from the folder in the user's cache, where the package's own cannot be written."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for folder in (SDK, sdk._in_cache(SDK)):
        command = f"set -eu; source '{folder}/bin/setenv.bash'; echo $ASCEND_HOME_PATH; ls {folder}/*-linux/devlib"
        done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True)
        assert done.stdout.splitlines()[0] == str(folder)
        assert {"libascendcl.so", "libdescend.so", "libopapi_nn.so"} < set(done.stdout.split())


@needs_compiler
@pytest.mark.skipif(shutil.which("pkg-config") is None, reason="there is no pkg-config")
def test_builds_with_pkg_config(tmp_path):
    for name in ("rms_norm_grad.cpp", "device.h"):
        shutil.copy(ROOT / "examples" / "cpp" / name, tmp_path)
    command = f"{CXX} rms_norm_grad.cpp $(pkg-config --cflags --libs descend) -o example && ./example"
    result = in_environment(command, tmp_path)
    assert result.returncode == 0, result.stderr
    assert "dgamma" in result.stdout


@needs_linux
def test_the_library_needs_only_what_every_system_has():
    readelf = shutil.which("readelf")
    if readelf is None:
        pytest.skip("there is no readelf")
    text = subprocess.run(
        [readelf, "-d", SDK / "lib64" / "libdescend.so"], capture_output=True, text=True, check=True
    ).stdout
    needed = set(re.findall(r"\(NEEDED\).*\[(.*)\]", text))
    allowed = r"^(libc|libm|libstdc\+\+|libgcc_s|libpthread|libdl|ld-linux-.*)\.so\.\d+$"
    assert needed
    assert all(re.match(allowed, n) for n in needed), needed
    assert "RPATH" not in text
    assert "RUNPATH" not in text


@needs_linux
@needs_compiler
def test_all_names_are_one_library(tmp_path):
    """A program that loads it by every name has one copy of its state."""
    source = r"""
#include <dlfcn.h>
#include <cstdio>
#include "acl/acl.h"
int main() {
  const char *names[] = {"libascendcl.so", "libnnopbase.so", "libopapi.so", "libopapi_nn.so", "libopapi_math.so",
                         "libopapi_transformer.so", "libacl_rt.so", "libacl_op_compiler.so", "libdescend.so"};
  int first = aclInit(nullptr), again = 0;
  for (const char *name : names) {
    void *library = dlopen(name, RTLD_NOW);
    if (!library) { std::printf("%s\n", dlerror()); return 1; }
    auto init = reinterpret_cast<aclError (*)(const char *)>(dlsym(library, "aclInit"));
    again += init(nullptr) == ACL_ERROR_REPEAT_INITIALIZE;
  }
  std::printf("%d %d\n", first, again);
}
"""
    assert build_and_run(source, tmp_path, libraries="-lascendcl -ldl") == "0 9\n"


# --- misuse --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def lib() -> Library:
    return started()


@pytest.fixture
def stream(lib: Library) -> Iterator[int]:
    stream = lib.stream()
    yield stream
    assert lib.aclrtDestroyStream(stream) == 0


class Problem:
    """Inputs, outputs and tensors of a call of shape [4, 32]."""

    shapes = ((4, 32), (4, 32), (4,), (32,), (4, 32), (32,))

    def __init__(self, lib: Library, shapes: Sequence[tuple[int, ...]] | None = None) -> None:
        rng = np.random.default_rng(1)
        self.lib = lib
        self.shapes = tuple(shapes or self.shapes)
        self.arrays = [normal(rng, s) for s in self.shapes]
        self.expected = descend.rms_norm_grad(*self.arrays[:4])
        self.arrays[4][...] = self.arrays[5][...] = np.nan
        self.tensors: list[int | None] = [lib.tensor(a, a.shape) for a in self.arrays]
        assert all(self.tensors)

    def phase1(self, **changed: Any) -> tuple[int, int, int]:
        tensors = [changed.get(name, t) for name, t in zip(NAMES, self.tensors, strict=True)]
        return self.lib.phase1(*tensors)

    def refused(self, status: int, *words: str, **changed: Any) -> None:
        got, size, executor = self.phase1(**changed)
        sentence = self.lib.sentence
        assert got == status, f"{got} {sentence}"
        assert sentence.startswith(f"{OP}: "), sentence
        assert sentence.endswith("."), sentence
        for word in words:
            assert word in sentence, f"{word!r} is not in: {sentence}"
        assert (size, executor) == (-1, 0)  # not written
        assert np.isnan(self.arrays[4]).all()

    def launch(self, stream: int | None, executor: int, size: int) -> int:
        self.workspace = np.zeros(size + 64, np.uint8)
        address = self.workspace.ctypes.data
        return self.lib.aclnnRmsNormGrad(address + -address % 64, size, executor, stream)

    def check(self) -> None:
        assert digest(*self.arrays[4:]) == digest(*self.expected)


@pytest.fixture
def problem(lib: Library) -> Problem:
    return Problem(lib)


def foreign_handles(lib: Library) -> list[int]:
    """Values that are no live handle: numbers, addresses, destroyed handles, handles of another kind."""
    rng = np.random.default_rng(5)
    data = np.zeros(64, np.float32)
    tensor = lib.tensor(data, (64,))
    assert lib.aclDestroyTensor(tensor) == 0
    numbers = [int(n) for n in rng.integers(1, 2**63, 200, dtype=np.uint64)]
    near = [tensor, tensor - (1 << 32), tensor ^ (1 << 63), tensor & 0xFFFFFFFF, tensor & ~1]  # never alive again
    return [1, 2, 3, 8, 4096, 2**31, 2**63, 2**64 - 1, data.ctypes.data, id(data), *near, *numbers]


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


# --- the runtime ---------------------------------------------------------------------------------------------------


def test_memory(lib):
    pointer = c_void_p(1234)
    for size, status in ((0, 100000), (2**46 + 1, 200000), (2**60, 200000), (2**64 - 1, 200000)):
        assert lib.aclrtMalloc(byref(pointer), size, 0) == status
        assert pointer.value == 1234
        assert lib.sentence.startswith("aclrtMalloc: ")
    assert lib.aclrtMalloc(None, 64, 0) == 100000
    memory = lib.malloc(1000)
    assert memory % 64 == 0
    host = np.arange(1000, dtype=np.uint8)
    address = host.ctypes.data
    assert lib.aclrtMemcpy(memory, 1000, address, 1000, 1) == 0
    back = np.zeros(1000, np.uint8)
    assert lib.aclrtMemcpy(back.ctypes.data, 1000, memory, 1000, 2) == 0
    np.testing.assert_array_equal(back, host)
    big = np.zeros(4000, np.uint8)
    for dst, most, src, count, kind in (
        (memory, 999, address, 1000, 1),  # more than destMax
        (memory, 1001, big.ctypes.data, 1001, 1),  # past the end
        (memory + 999, 2, address, 2, 1),
        (memory + 1, 1000, address, 1000, 1),
        (big.ctypes.data, 4000, memory, 1001, 2),
        (big.ctypes.data, 4000, memory + 500, 501, 2),
        (memory, 2**64 - 1, address, 2**64 - 1, 1),
        (None, 8, address, 8, 1),
        (memory, 8, None, 8, 1),
        (memory, 8, address, 8, 8),
        (memory, 8, address, 8, -1),
    ):
        assert lib.aclrtMemcpy(dst, most, src, count, kind) == 100000
        assert lib.sentence.startswith("aclrtMemcpy: ")
        assert lib.aclrtMemcpyAsync(dst, most, src, count, kind, None) == 100000
    assert lib.aclrtMemcpy(memory + 500, 500, memory, 500, 3) == 0
    assert lib.aclrtMemcpy(memory + 1000 - 8, 8, address, 0, 1) == 0
    for at, most, count in ((memory, 8, 9), (memory, 1001, 1001), (memory + 999, 2, 2), (None, 8, 8)):
        assert lib.aclrtMemset(at, most, 0, count) == 100000
        assert lib.aclrtMemsetAsync(at, most, 0, count, None) == 100000
    assert lib.aclrtMemset(memory, 1000, 0x1FF, 1000) == 0
    assert lib.aclrtMemcpy(back.ctypes.data, 1000, memory, 1000, 2) == 0
    assert (back == 255).all()
    assert lib.aclrtFree(memory + 1) == 100000
    assert "1 bytes into" in lib.sentence
    assert lib.aclrtFree(memory) == 0
    assert lib.aclrtFree(memory) == 100000
    for wrong in (None, address, 8, 2**64 - 64):
        assert lib.aclrtFree(wrong) == 100000
    assert lib.aclrtMallocHost(byref(pointer), 64) == 0
    assert lib.aclrtFreeHost(pointer) == 0
    assert lib.aclrtFreeHost(pointer) == 100000


def test_streams_and_events(lib, problem):
    stream, event, second = lib.stream(), lib.event(), lib.event()
    status, milliseconds = ctypes.c_int32(-1), ctypes.c_float()
    assert lib.aclrtQueryEventStatus(event, byref(status)) == 0
    assert status.value == 0  # not recorded: not ready
    assert lib.aclrtSynchronizeEvent(event) == 0  # and nothing to wait for
    assert lib.aclrtEventElapsedTime(byref(milliseconds), event, second) == 100000  # never recorded
    assert lib.aclrtRecordEvent(event, stream) == 0
    _, size, executor = problem.phase1()
    assert problem.launch(stream, executor, size) == 0
    assert lib.aclrtRecordEvent(second, stream) == 0
    assert lib.aclrtStreamWaitEvent(None, second) == 0
    assert lib.aclrtSynchronizeEvent(second) == 0
    problem.check()
    assert lib.aclrtQueryEventStatus(second, byref(status)) == 0
    assert status.value == 1
    assert lib.aclrtEventElapsedTime(byref(milliseconds), event, second) == 0
    assert milliseconds.value >= 0
    assert lib.aclrtSynchronizeStreamWithTimeout(stream, 1000) == 0
    assert lib.aclrtSynchronizeStreamWithTimeout(stream, -2) == 100000
    assert lib.aclrtStreamQuery(stream, byref(status)) == 0
    assert status.value == 0
    assert lib.aclrtDestroyStream(stream) == 0
    assert lib.aclrtDestroyEvent(event) == 0
    for handle in (stream, *foreign_handles(lib)):
        for call in (
            lambda h: lib.aclrtDestroyStream(h),
            lambda h: lib.aclrtDestroyStreamForce(h),
            lambda h: lib.aclrtSynchronizeStream(h),
            lambda h: lib.aclrtSynchronizeStreamWithTimeout(h, 1),
            lambda h: lib.aclrtStreamQuery(h, byref(status)),
            lambda h: lib.aclrtStreamWaitEvent(h, second),
            lambda h: lib.aclrtRecordEvent(second, h),
            lambda h: lib.aclrtMemsetAsync(problem.arrays[0].ctypes.data, 4, 0, 4, h),
        ):
            assert call(handle) == 200005
    for handle in (event, *foreign_handles(lib)):
        for call in (
            lambda h: lib.aclrtDestroyEvent(h),
            lambda h: lib.aclrtSynchronizeEvent(h),
            lambda h: lib.aclrtRecordEvent(h, None),
            lambda h: lib.aclrtResetEvent(h, None),
            lambda h: lib.aclrtStreamWaitEvent(None, h),
            lambda h: lib.aclrtQueryEventStatus(h, byref(status)),
            lambda h: lib.aclrtEventElapsedTime(byref(milliseconds), h, second),
            lambda h: lib.aclrtEventElapsedTime(byref(milliseconds), second, h),
        ):
            assert call(handle) == 200005
    for handle in foreign_handles(lib):
        assert lib.aclrtDestroyContext(handle) == 200005
        assert lib.aclrtSetCurrentContext(handle) == 200005
    assert lib.aclrtDestroyStream(None) == 0
    assert lib.aclrtDestroyEvent(None) == 0
    assert lib.aclrtCreateStream(None) == 100000
    assert lib.aclrtSynchronizeStream(None) == 0


BIG = ((3000, 2000), (3000, 2000), (3000,), (2000,), (3000, 2000), (2000,))


def test_freeing_and_destroying_wait_for_the_work(lib):
    problem = Problem(lib, BIG)
    _, size, executor = problem.phase1()
    stream, workspace = lib.stream(), lib.malloc(size)
    assert lib.aclnnRmsNormGrad(workspace, size, executor, stream) == 0
    assert lib.aclrtFree(workspace) == 0
    problem.check()
    problem.arrays[4][...] = np.nan
    _, size, executor = problem.phase1()
    assert lib.aclSetAclOpExecutorRepeatable(executor) == 0
    assert problem.launch(stream, executor, size) == 0
    assert lib.aclDestroyAclOpExecutor(executor) == 0  # the run keeps what it needs
    assert lib.aclrtDestroyStream(stream) == 0
    problem.check()


def test_a_forced_end_drops_what_has_not_begun(lib):
    problem = Problem(lib, BIG)
    _, size, executor = problem.phase1()
    assert lib.aclSetAclOpExecutorRepeatable(executor) == 0
    stream = lib.stream()
    workspace = lib.malloc(size)
    for _ in range(5000):  # a minute of work
        assert lib.aclnnRmsNormGrad(workspace, size, executor, stream) == 0
    begin = os.times().elapsed
    assert lib.aclrtDestroyStreamForce(stream) == 0
    assert os.times().elapsed - begin < 5
    assert lib.aclrtFree(workspace) == 0
    assert lib.aclDestroyAclOpExecutor(executor) == 0


def test_the_one_device(lib):
    for wrong in (1, -1, 7, 2**31 - 1):
        assert lib.aclrtSetDevice(wrong) == 200002
        assert lib.aclrtResetDevice(wrong) == 200002
        assert str(wrong) in lib.sentence
    device, count = ctypes.c_int32(9), ctypes.c_uint32()
    assert lib.aclrtSetDevice(0) == lib.aclrtGetDevice(byref(device)) == lib.aclrtGetDeviceCount(byref(count)) == 0
    assert (device.value, count.value) == (0, 1)
    assert lib.aclrtGetDevice(None) == lib.aclrtGetDeviceCount(None) == 100000


def test_each_thread_has_its_own_sentence(lib, problem):
    assert lib.aclrtFree(None) == 100000
    mine = lib.sentence
    assert mine.startswith("aclrtFree: ")
    barrier = threading.Barrier(8)

    def body(i: int) -> tuple[str, str]:
        first = lib.sentence
        barrier.wait(30)
        assert lib.aclrtSetDevice(100 + i) == 200002
        barrier.wait(30)
        return first, lib.sentence

    for i, (first, then) in enumerate(in_threads(8, body)):
        assert first == ""
        assert f"device {100 + i} " in then
    assert lib.sentence == mine
    # A success leaves no message.
    assert problem.phase1()[0] == 0
    assert lib.sentence in ("", mine)


def test_many_threads_create_use_and_destroy(lib):
    def body(i: int) -> None:
        problem = Problem(lib)
        stream = lib.stream()
        for _ in range(60):
            status, size, executor = problem.phase1()
            assert status == 0
            assert problem.launch(stream, executor, size) == 0
            junk = [lib.tensor(problem.arrays[0], (4, 32)) for _ in range(5)]
            assert all(lib.aclDestroyTensor(t) == 0 for t in junk)
            assert lib.aclrtSynchronizeStream(stream) == 0
            problem.check()
            assert lib.aclrtFree(lib.malloc(64 + i)) == 0
        assert lib.aclrtDestroyStream(stream) == 0

    in_threads(12, body)


def test_helpers(lib):
    sizes = {
        "FLOAT": 4, "FLOAT16": 2, "INT8": 1, "INT32": 4, "UINT8": 1, "INT16": 2, "UINT16": 2, "UINT32": 4, "INT64": 8,
        "UINT64": 8, "DOUBLE": 8, "BOOL": 1, "COMPLEX64": 8, "COMPLEX128": 16, "BF16": 2, "COMPLEX32": 4,
        "UNDEFINED": 0, "STRING": 0,
    }  # fmt: skip
    for name, size in sizes.items():
        assert lib.aclDataTypeSize(DTYPES[name]) == size, name
    for number in (5, 99, -5, 2**31 - 1):
        assert lib.aclDataTypeSize(number) == 0
    every = np.arange(2**16, dtype=np.uint16)
    values = every.view(np.float16).astype(np.float32)
    with np.errstate(all="ignore"):
        for i in range(0, 2**16, 37):
            value = np.float32(lib.aclFloat16ToFloat(i))
            assert value == values[i] or (np.isnan(value) and np.isnan(values[i]))
            assert lib.aclFloatToFloat16(float(values[i])) == i or np.isnan(values[i])
        for value in (65519.99, 65520.0, -1e30, 2.0**-25, 2.0**-24 * 1.5, 1 + 2.0**-11, 1 + 3 * 2.0**-11, np.inf):
            assert lib.aclFloatToFloat16(value) == int(np.float32(value).astype(np.float16).view(np.uint16))


# --- the life of the library ---------------------------------------------------------------------------------------

START = """
from c_library import *
import numpy as np
lib = Library()
def expect(status, wanted, *words):
    assert status == wanted, (status, wanted, lib.sentence)
    for word in words:
        assert word in lib.sentence, lib.sentence
out, number = c_void_p(), c_int32()
def runtime_calls():
    data = np.zeros(64, np.uint8).ctypes.data
    return [
        lib.aclrtResetDevice(0), lib.aclrtSynchronizeDevice(), lib.aclrtMalloc(byref(out), 64, 0),
        lib.aclrtFree(data), lib.aclrtMallocHost(byref(out), 64), lib.aclrtFreeHost(data),
        lib.aclrtMemcpy(data, 64, data, 64, 0), lib.aclrtMemset(data, 64, 0, 64), lib.aclrtCreateStream(byref(out)),
        lib.aclrtSynchronizeStream(None), lib.aclrtDestroyStream(8), lib.aclrtCreateEvent(byref(out)),
        lib.aclrtSynchronizeEvent(8), lib.aclrtCreateContext(byref(out), 0),
        lib.aclrtMemcpyAsync(data, 64, data, 64, 0, None),
    ]
def without_init():
    return [
        lib.aclrtGetDevice(byref(number)), lib.aclrtGetDeviceCount(byref(number)), lib.aclrtSetDevice(0),
        lib.aclrtGetDevice(byref(number)),
    ]
"""


def test_before_and_after():
    code = (
        START
        + """
assert lib.sentence == ""
expect(lib.aclFinalize(), 100001, "aclFinalize: ", "aclInit")
assert runtime_calls() == [100001] * 15
assert "aclInit" in lib.sentence and out.value is None
assert without_init() == [107002, 0, 0, 0]
t = lib.tensor(np.zeros(4, np.float32), (4,))
assert t and lib.aclDestroyTensor(t) == 0 and lib.aclDestroyTensor(t) == 161002
expect(lib.aclInit(None), 0)
expect(lib.aclInit(None), 100002, "aclInit: ")
assert set(runtime_calls()) <= {0, 100000, 200005}
expect(lib.aclFinalize(), 0)
expect(lib.aclFinalize(), 100037, "aclFinalize: ")
out.value = None
assert runtime_calls() == [100001] * 15
assert "aclFinalize" in lib.sentence and out.value is None
assert without_init() == [107002, 0, 0, 0]
t = lib.tensor(np.zeros(4, np.float32), (4,))
assert t and lib.aclDestroyTensor(t) == 0
assert lib.aclSetAclOpExecutorRepeatable(c_void_p(t)) != 0
print("done")
"""
    )
    assert run_python(code).stdout == "done\n"


def test_finalize_with_everything_alive():
    """aclFinalize waits for the work in flight and frees everything; old handles are then stale."""
    code = (
        START
        + """
import descend
expect(lib.aclInit(None), 0)
lib.descendSetProduct(b"host")
rng = np.random.default_rng(0)
a = [rng.standard_normal(s).astype("f") for s in ((3000, 2000), (3000, 2000), (3000,), (2000,), (3000, 2000), (2000,))]
expected = descend.rms_norm_grad(*a[:4])
tensors = [lib.tensor(x, x.shape) for x in a]
stream, event, memory = lib.stream(), lib.event(), [lib.malloc(1 << 20) for _ in range(50)]
lib.aclCreateIntArray((c_int64 * 2)(1, 2), 2)
spare = lib.phase1(*tensors)
for on in (stream, None, stream):
    status, size, executor = lib.phase1(*tensors)
    expect(status, 0)
    workspace = lib.malloc(size)
    expect(lib.aclnnRmsNormGrad(workspace, size, executor, on), 0)
lib.aclrtRecordEvent(event, stream)
expect(lib.aclFinalize(), 0)
assert all(np.array_equal(x, y) for x, y in zip(a[4:], expected))
assert lib.phase1(*tensors)[0] == 161002
assert lib.aclDestroyTensor(tensors[0]) == 161002
assert lib.aclnnRmsNormGrad(None, 0, spare[2], None) in (161002, 361001)
assert lib.aclrtFree(memory[0]) == 100001
print("done")
"""
    )
    assert run_python(code).stdout == "done\n"


@pytest.mark.parametrize("ending", ["", "lib.aclFinalize()", "os._exit(0)", "sys.exit(0)"])
def test_the_process_ends_with_work_in_flight(ending):
    code = (
        START
        + f"""
import os, sys
expect(lib.aclInit(None), 0)
lib.descendSetProduct(b"host")
shapes = ((3000, 2000), (3000, 2000), (3000,), (2000,), (3000, 2000), (2000,))
tensors = [lib.tensor(lib.malloc(int(np.prod(s)) * 4), s) for s in shapes]  # memory that lives to the end
stream = lib.stream()
for _ in range(30):
    status, size, executor = lib.phase1(*tensors)
    expect(lib.aclnnRmsNormGrad(lib.malloc(size), size, executor, stream), 0)
{ending}
"""
    )
    result = run_python(code, check=False)
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""


def test_the_library_can_be_unloaded_and_loaded_again():
    code = (
        START
        + """
import _ctypes
for _ in range(3):
    expect(lib.aclInit(None), 0)
    a = [np.ones(s, "f") for s in ((300, 2000), (300, 2000), (300,), (2000,), (300, 2000), (2000,))]
    tensors = [lib.tensor(x, x.shape) for x in a]
    status, size, executor = lib.phase1(*tensors)
    expect(status, 0)
    expect(lib.aclnnRmsNormGrad(lib.malloc(size), size, executor, None), 0)
    expect(lib.aclrtSynchronizeStream(None), 0)
    expect(lib.aclFinalize(), 0)
    _ctypes.dlclose(lib.c._handle)
    lib = Library()
    lib.aclFinalize()
    if lib.aclInit(None) == 0: lib.aclFinalize()
print("done")
"""
    )
    assert run_python(code).stdout == "done\n"
