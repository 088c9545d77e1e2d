// Calls the library at the very end: from destructors of globals and of thread-local objects.
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>

#include "aclnnop/aclnn_rms_norm_grad.h"
#include "capi.h"
#include "descend.h"
#include "descend_portability.h"
#include "descend_report.h"

namespace {

int failures = 0;
void expect(bool right, const char* what) {
  if (right) return;
  std::fprintf(stderr, "%s: %s\n", what, aclGetRecentErrMsg());
  ++failures;
}

void call(bool finalized) {
  const int64_t length = 64;
  uint64_t size = 0, count = 0;
  aclOpExecutor* executor = nullptr;
  aclTensor* const x = aclCreateTensor(&length, 1, ACL_FLOAT, nullptr, 0, ACL_FORMAT_ND, &length, 1, nullptr);
  expect(x != nullptr, "aclCreateTensor");
  expect(aclnnRmsNormGradGetWorkspaceSize(x, x, x, x, x, x, &size, &executor) != 0,
         "a first phase that makes no sense");
  const std::string sentence = aclGetRecentErrMsg();
  expect(sentence.find("aclnnRmsNormGrad: ") == 0, "its sentence");
  expect(aclDestroyTensor(x) == 0, "aclDestroyTensor");
  expect(aclDestroyTensor(x) == ACLNN_ERR_PARAM_INVALID, "twice");
  (void)descendPortability(nullptr, 0, &count);
  const auto add = [](const descendRecordedCall* recorded, void* calls) {
    *static_cast<uint64_t*>(calls) += recorded->calls;
  };
  uint64_t calls = 0;
  expect(descendRecordedCalls(add, &calls) == 0 && calls > 0, "the record");
  void* memory = nullptr;
  const int status = aclrtMalloc(&memory, 64, ACL_MEM_MALLOC_HUGE_FIRST);
  expect(status == (finalized ? ACL_ERROR_UNINITIALIZE : 0), "aclrtMalloc");
}

struct Late {
  explicit Late(bool is_last) : last(is_last) {}
  ~Late() {
    call(false);
    if (!last) return;
    expect(aclFinalize() == 0, "aclFinalize");
    call(true);
    if (failures > 0) std::_Exit(1);
  }
  bool last;
};

Late global(true);  // its destructor runs after the main thread's thread-local ones
thread_local Late own(false);

}  // namespace

int main() {
  if (aclInit(nullptr) != 0 || descendSetProduct("host") != 0) return 2;
  expect(descendRecordCalls(1) == 0, "descendRecordCalls");
  expect(!own.last, "made before the library has anything of this thread");
  call(false);
  std::thread([] {
    expect(!own.last, "made before the library has anything of this thread");
    call(false);
  }).join();
  return failures;
}
