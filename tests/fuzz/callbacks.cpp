// Callbacks of a stream, run by the thread that makes the calls: subscribed, launched, run and unsubscribed in one
// step.
#include <pthread.h>

#include "runtime.h"

namespace fuzz {
namespace {

constexpr int kStale = 200005, kInvalid = 100000, kStreamSubscribe = 107011, kThreadSubscribe = 107012,
              kNoCallbackThread = 107015, kReportTimeout = 507012;

void count(void* calls) { ++*static_cast<int*>(calls); }

}  // namespace

void Runtime::callbacks(const Object& stream) {
  if (stream.handle == nullptr && !is_alone) return;  // the default stream belongs to all threads
  settle();
  const auto self = static_cast<uint64_t>(pthread_self());
  const auto codes = [&stream](int code) { return Codes{stream.alive ? code : kStale}; };
  int calls = 0, launched = 0;
  const auto launch = [&](int code) {
    const auto type = bytes_.pick<int>({0, 1, 2, -1});
    const bool null = bytes_.one_in(8), fine = !null && (type == 0 || type == 1);
    const int status =
        aclrtLaunchCallback(null ? nullptr : count, &calls, static_cast<aclrtCallbackBlockType>(type), stream.handle);
    expect("aclrtLaunchCallback", status, fine ? codes(code) : Codes{kInvalid});
    launched += status == 0;
  };
  launch(kNoCallbackThread);
  expect("aclrtUnSubscribeReport", aclrtUnSubscribeReport(self, stream.handle), codes(kStreamSubscribe));
  expect("aclrtSubscribeReport", aclrtSubscribeReport(self, stream.handle), codes(0));
  expect("aclrtSubscribeReport", aclrtSubscribeReport(self + 1, stream.handle), codes(kStreamSubscribe));
  for (int64_t i = bytes_.below(4); i > 0; --i) launch(0);
  for (int i = 0; i < launched; ++i) expect("aclrtProcessReport", aclrtProcessReport(10000), {0});
  if (calls != launched) fault("callbacks ran another number of times");
  const auto timeout = bytes_.pick<int32_t>({1, 0, -2, INT32_MIN});
  const int none = stream.alive ? kReportTimeout : kThreadSubscribe;
  expect("aclrtProcessReport", aclrtProcessReport(timeout), {timeout > 0 ? none : kInvalid});
  expect("aclrtUnSubscribeReport", aclrtUnSubscribeReport(self + 1, stream.handle), codes(kThreadSubscribe));
  expect("aclrtUnSubscribeReport", aclrtUnSubscribeReport(self, stream.handle), codes(0));
  expect("aclrtProcessReport", aclrtProcessReport(1), {kThreadSubscribe});
}

}  // namespace fuzz
