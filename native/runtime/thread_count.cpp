#include "runtime/thread_count.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <memory>
#include <string_view>

#include "runtime/machine.h"
#include "runtime/status.h"

namespace descend {
namespace {

std::atomic<int> chosen_count{0};     // 0: the default
std::atomic<int> counted_default{0};  // 0: not known yet
struct Default {
  Status status;
  int threads;
};
std::atomic<const Default*> known_default{nullptr};

// Reads the environment and the machine at the first call. Threads that come at the same time find the same, and the
// first one's result is kept: a lock might be held by another thread while the process forks.
const Default& default_count() {
  if (const Default* known = known_default.load(std::memory_order_acquire)) return *known;
  auto found = std::make_unique<Default>();
  const char *descend = std::getenv("DESCEND_NUM_THREADS"), *omp = std::getenv("OMP_NUM_THREADS");
  found->threads = detail::default_threads(descend, omp, usable_cores(), &found->status);
  const Default* first = nullptr;
  if (known_default.compare_exchange_strong(first, found.get(), std::memory_order_acq_rel)) first = found.release();
  counted_default.store(first->threads, std::memory_order_relaxed);
  return *first;
}

// A whole number from 1 up at the start of the text, taken off it; 0 if there is none.
int take_count(std::string_view& text) {
  const auto blank = [](char c) { return c == ' ' || c == '\t'; };
  while (!text.empty() && blank(text.front())) text.remove_prefix(1);
  int count = 0;
  while (!text.empty() && text.front() >= '0' && text.front() <= '9') {
    count = std::min(count * 10 + (text.front() - '0'), kMaxThreads + 1);
    text.remove_prefix(1);
  }
  while (!text.empty() && blank(text.front())) text.remove_prefix(1);
  return count;
}

}  // namespace

int num_threads() {
  if (const int chosen = chosen_count.load(std::memory_order_relaxed)) return chosen;
  if (const int known = counted_default.load(std::memory_order_relaxed)) return known;
  return default_count().threads;
}

void set_num_threads(int count) { chosen_count.store(std::clamp(count, 0, kMaxThreads)); }

const Status& num_threads_status() { return default_count().status; }

int detail::default_threads(const char* descend_num_threads, const char* omp_num_threads, int cores, Status* status) {
  int threads = std::clamp(cores, 1, kMaxThreads);
  if (omp_num_threads != nullptr) {
    // A list has a count for each level of nesting. Ours is the first.
    std::string_view text = omp_num_threads;
    const int count = take_count(text);
    if (count > 0 && (text.empty() || text.front() == ',')) threads = std::min(threads, count);
  }
  if (descend_num_threads == nullptr || *descend_num_threads == '\0') return threads;
  std::string_view text = descend_num_threads;
  const int count = take_count(text);
  if (count > 0 && count <= kMaxThreads && text.empty()) return count;
  *status = failure(Code::kRuntimeError, "DESCEND_NUM_THREADS is \"", descend_num_threads,
                    "\", but must be a whole number from 1 to ", kMaxThreads, ".");
  return threads;
}

}  // namespace descend
