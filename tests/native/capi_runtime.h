// For tests of the C interface under doctest: aclInit and aclFinalize, a call to work with, a check of refusals.
#pragma once

#include <doctest/doctest.h>

#include <string>

#include "aclnnop/aclnn_rms_norm_grad.h"
#include "capi.h"
#include "descend.h"

inline std::string sentence() { return aclGetRecentErrMsg(); }

// aclInit for a test, aclFinalize after it.
struct Runtime {
  Runtime() {
    CHECK(aclInit(nullptr) == ACL_SUCCESS);
    CHECK(aclrtSetDevice(0) == ACL_SUCCESS);
    CHECK(descendSetProduct("host") == ACL_SUCCESS);
  }
  ~Runtime() { CHECK(aclFinalize() == ACL_SUCCESS); }
};

// Checks that call() is refused with this status and a new sentence that names the function.
template <class Call>
void refused(int expected, const std::string& who, Call call) {
  CAPTURE(who);
  (void)descendSetNumThreads(-1);  // whatever was said before, this is what was said last
  const int status = call();
  CHECK_MESSAGE(status == expected, who, " ", sentence());
  CHECK_MESSAGE(sentence().find(who + ": ") == 0, sentence());
  CHECK_MESSAGE(sentence().size() > who.size() + 10, sentence());
  CHECK_MESSAGE(sentence().back() == '.', sentence());
}
#define REFUSED(status, who, ...) refused(status, who, [&]() -> int { return __VA_ARGS__; })

// One call of aclnnRmsNormGrad, ready to be made in either phase.
struct Problem {
  explicit Problem(int64_t rows = 8, int64_t columns = 64)
      : dy({rows, columns}, ACL_FLOAT),
        x({rows, columns}, ACL_FLOAT),
        rstd({rows}, ACL_FLOAT),
        gamma({columns}, ACL_FLOAT),
        dx({rows, columns}, ACL_FLOAT),
        dgamma({columns}, ACL_FLOAT) {
    dy.normal(1), x.normal(2), rstd.positive(3), gamma.normal(4);
  }

  int first(uint64_t* size, aclOpExecutor** executor) {
    return aclnnRmsNormGradGetWorkspaceSize(dy, x, rstd, gamma, dx, dgamma, size, executor);
  }
  int both(aclrtStream stream) {
    return run(aclnnRmsNormGradGetWorkspaceSize, aclnnRmsNormGrad, stream, dy, x, rstd, gamma, dx, dgamma);
  }
  uint64_t digest() const { return dgamma.digest(dx.digest()); }

  Array dy, x, rstd, gamma, dx, dgamma;
};

// An executor of a problem, and a workspace that is large enough.
struct Launch {
  explicit Launch(Problem& problem) {
    REQUIRE(problem.first(&size, &executor) == 0);
    workspace.resize(size + 1);
  }
  int operator()(aclrtStream stream) { return aclnnRmsNormGrad(workspace.data(), size, executor, stream); }

  uint64_t size = 0;
  aclOpExecutor* executor = nullptr;
  std::vector<char> workspace;
};
