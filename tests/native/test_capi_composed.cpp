// Functions that another library computes: how a call reaches it, and what becomes of its answers.
#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include "aclnnop/aclnn_flash_attention_score.h"
#include "aclnnop/aclnn_grouped_matmul_v4.h"
#include "aclnnop/aclnn_moe_token_permute_grad.h"
#include "capi.h"
#include "capi_runtime.h"
#include "descend_composer.h"
#include "descend_portability.h"

// The call fails with this code, and its sentence has these words.
#define SAYS(code, words, call) \
  CHECK((call) == (code));      \
  CHECK(sentence().find(words) != std::string::npos)

namespace {

std::vector<std::string> calls;
int32_t answer = 0;

using Say = void (*)(void*, int32_t, const char*);

void keep(const char* call, void* to, Say say) {
  calls.emplace_back(call);
  say(to, answer, answer == 0 ? "" : "aclnnMoeTokenPermuteGrad: no.");
}

struct Composing : Runtime {
  Composing() {
    calls.clear();
    answer = 0;
    descendSetComposer(keep, nullptr);
  }
  ~Composing() { descendSetComposer(nullptr, nullptr); }
};

struct PermuteGrad {
  Array grad{{3, 4}, ACL_FLOAT}, indices{{3}, ACL_INT32}, out{{3, 4}, ACL_FLOAT};
  uint64_t size = 7;
  aclOpExecutor* executor = nullptr;

  aclnnStatus first() {
    return aclnnMoeTokenPermuteGradGetWorkspaceSize(grad, indices, 1, false, out, &size, &executor);
  }
  aclnnStatus second(aclrtStream stream = nullptr) { return aclnnMoeTokenPermuteGrad(nullptr, 0, executor, stream); }
};

std::string text_of(const void* data) { return std::to_string(reinterpret_cast<uintptr_t>(data)); }

}  // namespace

TEST_CASE("both phases of a call reach the composer") {
  const Composing composing;
  PermuteGrad call;
  REQUIRE(call.first() == 0);
  CHECK(call.size == 0);
  REQUIRE(call.second() == 0);
  REQUIRE(calls.size() == 2);
  const std::string tail =
      R"(, "arguments": [{"dtype": "FLOAT", "shape": [3, 4], "strides": [4, 1], "data": )" + text_of(call.grad.data()) +
      R"(}, {"dtype": "INT32", "shape": [3], "strides": [1], "data": )" + text_of(call.indices.data()) +
      R"(}, 1, false, {"dtype": "FLOAT", "shape": [3, 4], "strides": [4, 1], "data": )" + text_of(call.out.data()) +
      "}]}";
  CHECK(calls[0] == R"({"function": "aclnnMoeTokenPermuteGrad", "phase": 1)" + tail);
  CHECK(calls[1] == R"({"function": "aclnnMoeTokenPermuteGrad", "phase": 2)" + tail);
  SAYS(ACLNN_ERR_PARAM_INVALID, "executor has been used", call.second());
}

TEST_CASE("a view's first element, lists, arrays, numbers and text") {
  const Composing composing;
  std::vector<float> memory(40);
  const int64_t shape[] = {2, 3}, strides[] = {10, 2}, storage[] = {40};
  aclTensor* view = aclCreateTensor(shape, 2, ACL_FLOAT, strides, 5, ACL_FORMAT_ND, storage, 1, memory.data());
  const int64_t numbers[] = {3, -1};
  aclIntArray* prefix = aclCreateIntArray(numbers, 2);
  char layout[] = "B\"S\\\nH";
  uint64_t size = 0;
  aclOpExecutor* executor = nullptr;
  const double infinite = std::numeric_limits<double>::infinity();
  REQUIRE(aclnnFlashAttentionScoreGetWorkspaceSize(view, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, prefix,
                                                   0.1, -infinite, 1, INT64_MIN, 3, layout, 4, 5, nullptr, nullptr,
                                                   nullptr, nullptr, &size, &executor) == 0);
  CHECK(calls.back().find(R"("strides": [10, 2], "data": )" + text_of(memory.data() + 5) + "}, null, ") !=
        std::string::npos);
  CHECK(calls.back().find(
            R"(null, [3, -1], 0.10000000000000001, -Infinity, 1, -9223372036854775808, 3, "B\"S\\?H", 4)") !=
        std::string::npos);
  CHECK(aclDestroyAclOpExecutor(executor) == 0);
  SAYS(ACLNN_ERR_PARAM_INVALID, "executor", aclDestroyAclOpExecutor(executor));

  aclTensorList* list = aclCreateTensorList(&view, 1);
  aclTensorList* none = aclCreateTensorList(nullptr, 0);
  REQUIRE(aclnnGroupedMatmulV4GetWorkspaceSize(list, none, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr,
                                               nullptr, nullptr, nullptr, nullptr, 3, 0, 1, 0, list, nullptr, nullptr,
                                               &size, &executor) == 0);
  CHECK(calls.back().find(R"("arguments": [[{"dtype": "FLOAT", )") != std::string::npos);
  CHECK(calls.back().find("}], [], null, ") != std::string::npos);
  CHECK(aclDestroyAclOpExecutor(executor) == 0);
  CHECK(aclDestroyTensorList(list) == 0);
  CHECK(aclDestroyTensorList(none) == 0);
  CHECK(aclDestroyIntArray(prefix) == 0);
}

TEST_CASE("what cannot be read is told to the composer") {
  const Composing composing;
  PermuteGrad call;
  auto* const foreign = reinterpret_cast<const aclTensor*>(&call);
  const int64_t shape[] = {2}, storage[] = {1};
  aclTensor* outside = aclCreateTensor(shape, 1, ACL_FLOAT, nullptr, 0, ACL_FORMAT_ND, storage, 1, nullptr);
  aclTensor* padded = aclCreateTensor(shape, 1, ACL_FLOAT, nullptr, 0, ACL_FORMAT_FRACTAL_NZ, shape, 1, nullptr);
  REQUIRE(aclnnMoeTokenPermuteGradGetWorkspaceSize(foreign, outside, 1, false, padded, &call.size, &call.executor) ==
          0);
  CHECK(calls.back().find(R"([{"wrong": "is not one that this library created)") != std::string::npos);
  CHECK(calls.back().find(R"(}, {"wrong": ")") != std::string::npos);
  CHECK(calls.back().find(R"({"wrong": "has format FRACTAL_NZ, but must have one without padding."}])") !=
        std::string::npos);
  CHECK(aclDestroyTensor(outside) == 0);
  CHECK(aclDestroyTensor(padded) == 0);
}

TEST_CASE("the composer's refusals") {
  const Composing composing;
  PermuteGrad call;
  answer = 161002;
  SAYS(161002, "aclnnMoeTokenPermuteGrad: no.", call.first());
  CHECK(call.executor == nullptr);
  answer = 0;
  REQUIRE(call.first() == 0);
  answer = 361001;
  SAYS(361001, "aclnnMoeTokenPermuteGrad: no.", call.second());
  answer = 0;
  CHECK(call.second() == 0);  // a call that failed is not spent
}

TEST_CASE("a composer that says nothing has not computed") {
  const Composing composing;
  PermuteGrad call;
  REQUIRE(call.first() == 0);
  descendSetComposer([](const char*, void*, Say) {}, nullptr);
  SAYS(361001, "aclnnMoeTokenPermuteGrad: the call was interrupted.", call.first());
  SAYS(361001, "aclnnMoeTokenPermuteGrad: the call was interrupted.", call.second());
}

TEST_CASE("who takes the composer away waits for the calls of other threads") {
  const Composing composing;
  static std::atomic<int> begun, ended;
  begun = ended = 0;
  descendSetComposer(
      [](const char*, void* to, Say say) {
        ++begun;
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
        ++ended;
        say(to, 0, "");
      },
      nullptr);
  std::thread other([] {
    PermuteGrad call;
    call.first();
  });
  while (begun == 0) std::this_thread::yield();
  descendSetComposer(nullptr, nullptr);
  CHECK(ended == 1);
  other.join();
}

TEST_CASE("a composer may take itself away") {
  const Composing composing;
  descendSetComposer(
      [](const char*, void* to, Say say) {
        descendSetComposer(nullptr, nullptr);
        say(to, 0, "");
      },
      nullptr);
  PermuteGrad call;
  CHECK(call.first() == 0);
}

TEST_CASE("executors are repeatable, keep their memory, and belong to one function") {
  const Composing composing;
  PermuteGrad call;
  REQUIRE(call.first() == 0);
  REQUIRE(aclSetAclOpExecutorRepeatable(call.executor) == 0);
  for (int i = 0; i < 3; ++i) CHECK(call.second() == 0);
  SAYS(ACLNN_ERR_PARAM_INVALID, "PyTorch computes aclnnMoeTokenPermuteGrad",
       aclSetInputTensorAddr(call.executor, 0, call.grad, call.out.data()));
  SAYS(ACLNN_ERR_PARAM_INVALID, "not one for this function", aclnnGroupedMatmulV4(nullptr, 0, call.executor, nullptr));
  CHECK(aclDestroyAclOpExecutor(call.executor) == 0);
  SAYS(ACLNN_ERR_PARAM_INVALID, "executor", call.second());
}

TEST_CASE("null results, executors and streams") {
  const Composing composing;
  PermuteGrad call;
  SAYS(ACLNN_ERR_PARAM_NULLPTR, "workspaceSize is null",
       aclnnMoeTokenPermuteGradGetWorkspaceSize(call.grad, call.indices, 1, false, call.out, nullptr, &call.executor));
  SAYS(ACLNN_ERR_PARAM_NULLPTR, "executor is null",
       aclnnMoeTokenPermuteGradGetWorkspaceSize(call.grad, call.indices, 1, false, call.out, &call.size, nullptr));
  SAYS(ACLNN_ERR_PARAM_NULLPTR, "executor is null", aclnnMoeTokenPermuteGrad(nullptr, 0, nullptr, nullptr));
  REQUIRE(call.first() == 0);
  SAYS(ACLNN_ERR_RUNTIME_ERROR, "stream is not one", call.second(&call));
  CHECK(call.second() == 0);
}

TEST_CASE("a call waits for what its stream has before it") {
  const Composing composing;
  aclrtStream stream = nullptr;
  REQUIRE(aclrtCreateStream(&stream) == 0);
  static std::vector<std::string> order;
  order.clear();
  std::vector<char> from(1 << 22, 'x'), to(1 << 22, 'y');
  REQUIRE(aclrtMemcpyAsync(to.data(), to.size(), from.data(), from.size(), ACL_MEMCPY_DEVICE_TO_DEVICE, stream) == 0);
  static const char* watched = to.data() + to.size() - 1;
  descendSetComposer(
      [](const char* call, void* answering, Say say) {
        if (std::string(call).find("\"phase\": 2") != std::string::npos) order.emplace_back(1, *watched);
        say(answering, 0, "");
      },
      nullptr);
  PermuteGrad call;
  REQUIRE(call.first() == 0);
  REQUIRE(call.second(stream) == 0);
  CHECK(order == std::vector<std::string>{"x"});
  CHECK(aclrtDestroyStream(stream) == 0);
}

TEST_CASE("a caller that holds the composer's lock has the call computed in phase 1") {
  const Composing composing;
  descendSetComposer(keep, [] { return 1; });
  PermuteGrad call;
  REQUIRE(call.first() == 0);
  CHECK(calls.back().find("\"phase\": 3") != std::string::npos);
  REQUIRE(call.second() == 0);
  CHECK(calls.size() == 1);
}

TEST_CASE("without a composer a call is an error that says what is missing") {
  const Runtime runtime;
  PermuteGrad call;
  SAYS(ACLNN_ERR_INNER_FIND_KERNEL_ERROR, "PyTorch computes this function", call.first());
  uint64_t count = 0;
  SAYS(ACL_ERROR_FAILURE, "has called no first phase yet, or last one of a function that PyTorch computes",
       descendPortability(nullptr, 0, &count));
}
