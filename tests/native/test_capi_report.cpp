// The record of calls: what was called, by function or by name, how often, and which products would accept it.
#include <doctest/doctest.h>

#include <map>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "capi_op.h"
#include "capi_runtime.h"
#include "descend_report.h"
#include "in_child.h"

namespace {

struct Seen {
  std::map<std::string, std::string> arguments;
  uint64_t calls, runs, nanoseconds;
  std::map<std::string, int> verdicts;
  std::string product, sentence;
  int status;
  bool others;
};

std::multimap<std::string, Seen> recorded() {
  std::multimap<std::string, Seen> all;
  const auto add = [](const descendRecordedCall* call, void* context) {
    Seen seen{{},           call->calls,      call->runs, call->nanoseconds, {}, call->product, call->sentence,
              call->status, call->others != 0};
    for (uint64_t i = 0; i < call->argument_count; ++i) {
      seen.arguments[call->arguments[i].name] = call->arguments[i].value;
    }
    for (uint64_t i = 0; i < call->verdict_count; ++i) {
      seen.verdicts[call->verdicts[i].product] = call->verdicts[i].status;
    }
    static_cast<std::multimap<std::string, Seen>*>(context)->emplace(call->function, seen);
  };
  REQUIRE(descendRecordedCalls(add, &all) == 0);
  return all;
}

Seen only(const char* function) {
  const auto all = recorded();
  REQUIRE(all.count(function) == 1);
  return all.find(function)->second;
}

struct Recording : Runtime {
  Recording() { REQUIRE(descendRecordCalls(1) == 0); }
  ~Recording() { CHECK(descendRecordCalls(0) == 0); }
};

}  // namespace

TEST_CASE("nothing is recorded before it is asked for, and wrong calls are refused") {
  const Runtime runtime;
  Problem problem;
  REQUIRE(problem.both(nullptr) == 0);
  CHECK(recorded().empty());
  REFUSED(ACL_ERROR_INVALID_PARAM, "descendRecordCalls", descendRecordCalls(2));
  REFUSED(ACL_ERROR_INVALID_PARAM, "descendRecordedCalls", descendRecordedCalls(nullptr, nullptr));
}

TEST_CASE("calls with the same arguments are added up, of all threads") {
  const Recording recording;
  const auto work = [] {
    for (int i = 0; i < 10; ++i) {
      Problem problem;
      REQUIRE(problem.both(nullptr) == 0);
    }
  };
  std::thread other(work);
  work();
  other.join();
  Problem wide(8, 128);
  REQUIRE(wide.both(nullptr) == 0);
  const auto all = recorded();
  REQUIRE(all.count("aclnnRmsNormGrad") == 2);
  for (const auto& [function, seen] : all) {
    const bool is_wide = seen.arguments.at("x") == "FLOAT[8, 128]";
    CHECK(seen.calls == (is_wide ? 1 : 20));
    CHECK(seen.runs == seen.calls);
    CHECK(seen.nanoseconds > 0);
    CHECK(seen.product == "host");
    CHECK(seen.verdicts.size() == 8);
    CHECK(seen.verdicts.at("atlas-a3") == 0);
    CHECK(seen.verdicts.at("atlas-training") == ACLNN_ERR_INNER_FIND_KERNEL_ERROR);
  }
  REQUIRE(descendRecordCalls(0) == 0);
  REQUIRE(wide.both(nullptr) == 0);
  CHECK(recorded().size() == 2);
  CHECK(recorded().begin()->second.calls + recorded().rbegin()->second.calls == 21);
  REQUIRE(descendRecordCalls(1) == 0);
  CHECK(recorded().empty());
}

TEST_CASE("refused calls, and why") {
  const Recording recording;
  REQUIRE(descendSetProduct("atlas-training") == 0);
  Problem problem;
  uint64_t size = 0;
  aclOpExecutor* executor = nullptr;
  CHECK(problem.first(&size, &executor) == ACLNN_ERR_INNER_FIND_KERNEL_ERROR);
  const Seen refusal = only("aclnnRmsNormGrad");
  CHECK(refusal.status == ACLNN_ERR_INNER_FIND_KERNEL_ERROR);
  CHECK(refusal.sentence == sentence());
  CHECK(refusal.runs == 0);
  CHECK(refusal.verdicts.at("host") == 0);
  // What no product can accept.
  REQUIRE(descendRecordCalls(1) == 0);
  CHECK(problem.first(nullptr, &executor) == ACLNN_ERR_PARAM_NULLPTR);
  for (const auto& [product, status] : only("aclnnRmsNormGrad").verdicts) CHECK(status == ACLNN_ERR_PARAM_NULLPTR);
}

TEST_CASE("calls by name") {
  const Recording recording;
  REQUIRE(descendSetProduct("atlas-a2-training") == 0);
  Array x({2, 3, 8, 40}, ACL_BF16), mask({2, 1, 8, 40}, ACL_BOOL), y({2, 3, 8, 40}, ACL_BF16);
  x.normal(1), mask.bits(2);
  for (int i = 0; i < 2; ++i) REQUIRE(call_by_name("ScaledMaskedSoftmax", {&x, &mask}, {&y}) == 0);
  REQUIRE(aclrtSynchronizeStream(nullptr) == 0);
  const Seen accepted = only("ScaledMaskedSoftmax");
  CHECK(accepted.calls == 2);
  CHECK(accepted.runs == 2);
  CHECK(accepted.arguments.at("x") == "BFLOAT16[2, 3, 8, 40]");
  CHECK(accepted.verdicts.at("atlas-a3") == 0);
  CHECK(accepted.verdicts.at("atlas-training") != 0);
  // Where it would work descendPortability tells, too.
  descendVerdict verdicts[8];
  uint64_t count = 0;
  REQUIRE(descendPortability(verdicts, 8, &count) == 0);
  for (const descendVerdict& verdict : verdicts) CHECK(verdict.status == accepted.verdicts.at(verdict.product));
  // A call that is not one of the type's is refused by all.
  const int wrong = call_by_name("ScaledMaskedSoftmax", {}, {&y});
  REQUIRE(wrong == 100021);
  REQUIRE(descendPortability(verdicts, 8, &count) == 0);
  for (const descendVerdict& verdict : verdicts) CHECK(verdict.status == wrong);
  for (const auto& [function, seen] : recorded()) {
    if (seen.status != wrong) continue;
    for (const auto& [product, status] : seen.verdicts) CHECK(status == wrong);
  }
  CHECK(recorded().count("ScaledMaskedSoftmax") == 2);
}

TEST_CASE("memory is bounded, and no refusal is lost") {
  const Recording recording;
  for (int64_t rows = 1; rows <= 300; ++rows) {
    Problem problem(rows, 8);
    REQUIRE(problem.both(nullptr) == 0);
  }
  const auto all = recorded();
  CHECK(all.size() == 257);
  uint64_t calls = 0, others = 0;
  for (const auto& [function, seen] : all) {
    calls += seen.calls;
    if (!seen.others) continue;
    others += 1;
    CHECK(seen.calls == 44);
    CHECK(seen.arguments.empty());
    CHECK(seen.verdicts.at("atlas-training") == ACLNN_ERR_INNER_FIND_KERNEL_ERROR);
    CHECK(seen.verdicts.at("atlas-a3") == 0);
  }
  CHECK(calls == 300);
  CHECK(others == 1);
}

TEST_CASE("an exception in a program's function does not cross the library") {
  const Recording recording;
  Problem problem;
  REQUIRE(problem.both(nullptr) == 0);
  const auto throws = [](const descendRecordedCall*, void*) { throw std::runtime_error("a failure of mine."); };
  REFUSED(ACL_ERROR_INTERNAL_ERROR, "descendRecordedCalls", descendRecordedCalls(throws, nullptr));
}

TEST_CASE("a forked child records from nothing" * FORKS) {
  const Recording recording;
  Problem problem;
  REQUIRE(problem.both(nullptr) == 0);
  CHECK(in_child([] {
          Problem own;
          return recorded().empty() && own.both(nullptr) == 0 && only("aclnnRmsNormGrad").calls == 1;
        }) == 0);
  CHECK(only("aclnnRmsNormGrad").calls == 1);
}
