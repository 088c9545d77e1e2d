// On which products the thread's last call of a first phase would be accepted.
#include "operators/portability.h"

#include <algorithm>
#include <array>

#include "capi/operator_call.h"
#include "descend_portability.h"

using namespace descend;
using namespace descend::capi;

namespace descend::capi {

namespace {

// Destructors of globals, and of the thread's other variables, may still call after `last` has been destroyed.
thread_local bool last_ended = false;
struct Last {
  ~Last() { last_ended = true; }
  LastCall call;
};
thread_local Last last;

}  // namespace

void remember_call(LastCall call) {
  if (!last_ended) last.call = std::move(call);
}

LastCall last_call() { return last_ended ? LastCall() : last.call; }

}  // namespace descend::capi

aclError descendPortability(descendVerdict* verdicts, uint64_t capacity, uint64_t* count) {
  return boundary("descendPortability", [&]() -> Status {
    if (count == nullptr) return null_argument("count");
    if (verdicts == nullptr && capacity > 0) return null_argument("verdicts");
    const auto [asked, refusal] = last_call();
    if (asked == nullptr && refusal.ok()) {
      return failure(Code::kFailure,
                     "this thread has called no first phase yet, or last one of a function that PyTorch computes.");
    }
    thread_local std::array<std::string, kProductCount> sentences;
    const Call call = asked != nullptr ? asked->call_now() : Call();
    for (int i = 0; i < kProductCount && static_cast<uint64_t>(i) < capacity; ++i) {
      const ProductInfo& product = products()[i];
      Status status = asked != nullptr ? verdict_on(product.product, call) : refusal;
      sentences[i] = status.ok() ? "" : std::move(status.sentence);
      verdicts[i] = {product.name, static_cast<aclnnStatus>(status.code), sentences[i].c_str()};
    }
    *count = kProductCount;
    return {};
  });
}
