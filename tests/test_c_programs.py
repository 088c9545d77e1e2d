"""Programs written for CANN compile, link and run; headers and exported names are those of the contract."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

import descend
from c_library import DTYPES, FORMATS
from descend import sdk
from descend.contract import PRODUCTS
from pages import PAGES, VARIANT_HEADERS, c_signatures
from test_rms_norm_grad import EXAMPLE_DGAMMA, EXAMPLE_DX, EXAMPLE_DX_2

ROOT = Path(__file__).resolve().parent.parent

try:
    SDK = sdk.path()
except FileNotFoundError as error:
    pytest.skip(str(error), allow_module_level=True)

CXX = next((c for c in (os.environ.get("CXX"), "g++", "c++", "clang++") if c and shutil.which(c)), None)
CC = next((c for c in (os.environ.get("CC"), "gcc", "cc", "clang") if c and shutil.which(c)), None)
needs_compiler = pytest.mark.skipif(CXX is None or CC is None, reason="there is no compiler")
needs_linux = pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="looks at ELF files and /proc")


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
    older = (
        "gelu",
        "layer_norm_backward",
        "logsoftmax",
        "scaled_masked_softmax",
        "scaled_masked_softmax_backward",
        "softmax",
    )
    (tmp_path / "newer.cc").write_text(
        '#include "acl/acl_rt.h"\n#include "aclnn_rms_norm.h"\n'
        + "".join(f'#include "aclnnop/level2/aclnn_{name}.h"\n' for name in older)
        + "auto *softmax = &aclnnScaledMaskedSoftmax;\nauto *softmax_backward = &aclnnScaledMaskedSoftmaxBackward;\n"
        "auto *gelu = &aclnnGelu;\nauto *plain = &aclnnSoftmax;\nauto *logarithm = &aclnnLogSoftmax;\n"
        "int start() { return aclInit(nullptr) + aclFinalize(); }\n"
        "auto *first = &aclnnLayerNormBackwardGetWorkspaceSize;\n"
    )
    commands.append(f"{CXX} -std=c++11 {strict} -I{include} -I{include}/aclnnop newer.cc")
    # Some include nothing but what an operator's header brings with it.
    (tmp_path / "brought.cc").write_text(
        '#include "aclnnop/aclnn_group_norm_backward.h"\n'
        "std::array<bool, 3> mask{{true, true, false}};\n"
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
SIGNATURES += "\n".join(c_signatures())


COMPOSED_HEADERS = (
    *("apply_fused_ema_adam", "flash_attention_score", "flash_attention_score_grad", "grouped_matmul"),
    *("grouped_matmul_v2", "grouped_matmul_v3", "grouped_matmul_v4", "grouped_matmul_v5", "moe_token_permute"),
    *(
        "moe_token_permute_grad",
        "moe_token_unpermute",
        "moe_token_unpermute_grad",
        "ring_attention_update",
        "silent_check",
    ),
)
"""Of functions that PyTorch computes; tests/test_npu_composer.py has their signatures."""


@needs_compiler
def test_numbers_and_signatures_are_the_pages(tmp_path):
    lines = ['#include "acl/acl.h"', '#include "acl/acl_op_compiler.h"', '#include "aclnn/acl_meta.h"']
    lines.append('#include "aclnn/opdev/op_errno.h"')
    operators = sorted((SDK / "include" / "aclnnop").glob("*.h"))
    names = (*PAGES, *VARIANT_HEADERS, *COMPOSED_HEADERS)
    assert {header.stem for header in operators} == {f"aclnn_{name}" for name in names}
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
    names = {line.split()[-1] for line in listing.splitlines()}
    return {name for name in names if not re.match(r"_Z\w*7descend", name)}  # the engine's own, for descend._native


@needs_linux
def test_the_library_exports_the_interface_and_nothing_else():
    symbols = exported_names()
    assert all(re.match(r"^(acl|Acl|descend|rt|Msprof|Hccl|hal)[A-Za-z0-9]+$", s) for s in symbols), sorted(symbols)
    declared = {re.search(r"(\w+)\(", line).group(1) for line in SIGNATURES.strip().splitlines()}  # type: ignore[union-attr]
    assert declared <= symbols, declared - symbols


def test_the_page_for_cann_users_names_every_function():
    page = (ROOT / "docs" / "coming-from-cann.md").read_text(encoding="utf-8")
    named = set(
        re.findall(r"`((?:[aA]cl|descend|rt|Msprof|Hccl|hal)[A-Za-z0-9]+)`", page.split("## Every function")[1])
    )
    phases = {name for page in PAGES.values() for name in (page.c_name, f"{page.c_name}GetWorkspaceSize")}
    assert named | phases == exported_names()


def test_the_page_for_cann_users_lists_the_products():
    page = (ROOT / "docs" / "coming-from-cann.md").read_text(encoding="utf-8")
    rows = "\n".join(f"| `{product.name}` | {product.documents} | {product.soc} |" for product in PRODUCTS.values())
    assert f"{rows}\n\n" in page


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
