// Data buffers, tensor descriptions, the status code of the latest failure, the log.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <thread>

#include "capi_runtime.h"

TEST_CASE("a description says what it was made of") {
  const Runtime runtime;
  const int64_t dims[] = {2, 3, 5};
  aclTensorDesc* const desc = aclCreateTensorDesc(ACL_FLOAT16, 3, dims, ACL_FORMAT_NCL);
  REQUIRE(desc != nullptr);
  CHECK(aclGetTensorDescType(desc) == ACL_FLOAT16);
  CHECK(aclGetTensorDescFormat(desc) == ACL_FORMAT_NCL);
  CHECK(aclGetTensorDescNumDims(desc) == 3);
  CHECK(aclGetTensorDescElementCount(desc) == 30);
  CHECK(aclGetTensorDescSize(desc) == 60);
  for (size_t i = 0; i < 3; ++i) {
    int64_t length = 0;
    CHECK(aclGetTensorDescDimV2(desc, i, &length) == 0);
    CHECK(length == dims[i]);
    CHECK(aclGetTensorDescDim(desc, i) == dims[i]);
  }
  int64_t length = 7;
  REFUSED(ACL_ERROR_INVALID_PARAM, "aclGetTensorDescDimV2", aclGetTensorDescDimV2(desc, 3, &length));
  REFUSED(ACL_ERROR_INVALID_PARAM, "aclGetTensorDescDimV2", aclGetTensorDescDimV2(desc, 0, nullptr));
  CHECK(length == 7);
  CHECK(aclGetTensorDescDim(desc, 3) == -1);
  aclDestroyTensorDesc(desc);
  CHECK(aclGetTensorDescType(desc) == ACL_DT_UNDEFINED);
  CHECK(aclGetTensorDescFormat(desc) == ACL_FORMAT_UNDEFINED);
  CHECK(aclGetTensorDescNumDims(desc) == 0);
  CHECK(aclGetTensorDescElementCount(desc) == 0);
  CHECK(aclGetTensorDescSize(desc) == 0);
  CHECK(aclGetTensorDescDim(desc, 0) == -1);
  CHECK(aclGetTensorDescType(nullptr) == ACL_DT_UNDEFINED);
  aclDestroyTensorDesc(nullptr);
}

TEST_CASE("of what a description counts, and what it cannot") {
  const Runtime runtime;
  const int64_t big = int64_t{1} << 40;
  struct Case {
    aclDataType dtype;
    std::vector<int64_t> dims;
    size_t elements, bytes;
  };
  for (const Case& c : {Case{ACL_FLOAT, {}, 1, 4}, Case{ACL_DOUBLE, {0, 4}, 0, 0}, Case{ACL_FLOAT, {4, -1}, 0, 0},
                        Case{ACL_FLOAT, {-2}, 0, 0}, Case{ACL_FLOAT, {big, big}, 0, 0},
                        Case{ACL_FLOAT, {big, int64_t{1} << 23}, size_t{1} << 63, 0}, Case{ACL_STRING, {3}, 3, 0},
                        Case{ACL_FLOAT8_E4M3FN, {3}, 3, 3}, Case{ACL_FLOAT, {1, 2, 1, 2, 1, 2, 1, 2, 1, 2}, 32, 128}}) {
    aclTensorDesc* const desc =
        aclCreateTensorDesc(c.dtype, static_cast<int>(c.dims.size()), c.dims.data(), ACL_FORMAT_ND);
    REQUIRE(desc != nullptr);
    CHECK(aclGetTensorDescElementCount(desc) == c.elements);
    CHECK(aclGetTensorDescSize(desc) == c.bytes);
    aclDestroyTensorDesc(desc);
  }
  CHECK(aclCreateTensorDesc(ACL_FLOAT, 2, nullptr, ACL_FORMAT_ND) == nullptr);
  CHECK(sentence() == "aclCreateTensorDesc: dims is null, but numDims is 2.");
  CHECK(aclCreateTensorDesc(ACL_FLOAT, -1, &big, ACL_FORMAT_ND) == nullptr);
  CHECK(sentence() == "aclCreateTensorDesc: numDims is -1, but must be at least 0.");
}

TEST_CASE("a buffer and what it is changed to") {
  const Runtime runtime;
  char first = 1, second = 2;
  aclDataBuffer* const buffer = aclCreateDataBuffer(&first, 1);
  CHECK(aclGetDataBufferAddr(buffer) == &first);
  CHECK(aclGetDataBufferSizeV2(buffer) == 1);
  CHECK(aclUpdateDataBuffer(buffer, &second, size_t{1} << 33) == 0);
  CHECK(aclGetDataBufferAddr(buffer) == &second);
  CHECK(aclGetDataBufferSizeV2(buffer) == size_t{1} << 33);
  CHECK(aclGetDataBufferSize(buffer) == UINT32_MAX);
  CHECK(aclUpdateDataBuffer(buffer, nullptr, 5) == 0);
  CHECK(aclGetDataBufferSize(buffer) == 5);
  CHECK(aclDestroyDataBuffer(buffer) == 0);
  CHECK(aclGetDataBufferSize(buffer) == 0);
}

TEST_CASE("the latest failure as a number is a thread's own, until it is asked for") {
  const Runtime runtime;
  (void)aclrtGetLastError(ACL_RT_THREAD_LEVEL);
  CHECK(aclrtPeekAtLastError(ACL_RT_THREAD_LEVEL) == 0);
  CHECK(aclrtSetDevice(7) == ACL_ERROR_INVALID_DEVICE);
  CHECK(aclrtSetDevice(0) == 0);  // a success changes nothing
  std::thread([] {
    CHECK(aclrtPeekAtLastError(ACL_RT_THREAD_LEVEL) == 0);
    CHECK(aclrtFree(nullptr) == ACL_ERROR_INVALID_PARAM);
    CHECK(aclrtPeekAtLastError(ACL_RT_THREAD_LEVEL) == ACL_ERROR_INVALID_PARAM);
  }).join();
  const auto none = static_cast<aclrtLastErrLevel>(1);
  CHECK(aclrtPeekAtLastError(none) == 0);
  CHECK(aclrtGetLastError(none) == 0);
  CHECK(aclrtPeekAtLastError(ACL_RT_THREAD_LEVEL) == ACL_ERROR_INVALID_DEVICE);
  CHECK(aclrtGetLastError(ACL_RT_THREAD_LEVEL) == ACL_ERROR_INVALID_DEVICE);
  CHECK(aclrtGetLastError(ACL_RT_THREAD_LEVEL) == 0);
  CHECK_FALSE(sentence().empty());  // which stays
  Problem problem;
  CHECK(problem.first(nullptr, nullptr) == ACLNN_ERR_PARAM_NULLPTR);
  CHECK(aclrtGetLastError(ACL_RT_THREAD_LEVEL) == ACLNN_ERR_PARAM_NULLPTR);
}

TEST_CASE("the log has the program's errors, whatever they are made of") {
  std::FILE* const file = std::tmpfile();
  REQUIRE(file != nullptr);
  std::fflush(stderr);
  const int kept = dup(2);
  REQUIRE(dup2(fileno(file), 2) == 2);
  ACL_APP_LOG(ACL_ERROR, "%s has %d", "dy", 3);
  ACL_APP_LOG(ACL_ERROR, "plain");
  ACL_APP_LOG(ACL_WARNING, "%s", "not from the level on that is the default");
  aclAppLog(static_cast<aclLogLevel>(9), "f", "file", 1, "of no level");
  aclAppLog(ACL_ERROR, nullptr, nullptr, 1, "from nowhere");
  aclAppLog(ACL_ERROR, "f", "file", 1, nullptr);
  aclAppLog(ACL_ERROR, "f", "file", 2, "%s", std::string(5000, 'a').c_str());
  std::fflush(stderr);
  CHECK(dup2(kept, 2) == 2);
  close(kept);
  std::rewind(file);
  std::string text;
  for (int c; (c = std::fgetc(file)) != EOF;) text += static_cast<char>(c);
  std::fclose(file);
  if (std::getenv("ASCEND_GLOBAL_LOG_LEVEL") != nullptr) return;
  CHECK(text.find(": dy has 3\n") != std::string::npos);
  CHECK(text.find("[ERROR] ") == 0);
  CHECK(text.find(": plain\n") != std::string::npos);
  CHECK(text.find("default") == std::string::npos);
  CHECK(text.find("of no level") == std::string::npos);
  CHECK(text.find("[ERROR] ?:1 ?: from nowhere\n") != std::string::npos);
  CHECK(text.find("file:1 f") == std::string::npos);
  CHECK(text.find("[ERROR] file:2 f: " + std::string(1023, 'a') + "\n") != std::string::npos);
}
