// The fuzzer of the C interface with several threads, for libFuzzer and ThreadSanitizer: each thread makes the calls
// that its part of the input stands for, all at once. The threads live as long as the program, since ThreadSanitizer
// takes long to start one.
#include <cinttypes>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

#include "descend.h"
#include "runtime.h"

namespace fuzz {
namespace {

constexpr size_t kThreads = 3;

class Crew {
 public:
  Crew() {
    for (size_t i = 0; i < kThreads; ++i) std::thread([this, i] { work(i); }).detach();
  }
  void run(const uint8_t* data, size_t size) {
    std::unique_lock lock(mutex_);
    data_ = data, size_ = size, left_ = kThreads, ++round_;
    begin_.notify_all();
    end_.wait(lock, [this] { return left_ == 0; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable begin_, end_;
  const uint8_t* data_ = nullptr;
  size_t size_ = 0, left_ = 0, round_ = 0;

  [[noreturn]] void work(size_t i) {
    for (size_t done = 0;; ++done) {
      std::unique_lock lock(mutex_);
      begin_.wait(lock, [&] { return round_ > done; });
      const uint8_t *const from = data_ + size_ * i / kThreads, *const to = data_ + size_ * (i + 1) / kThreads;
      lock.unlock();
      fuzz::run(from, static_cast<size_t>(to - from));
      lock.lock();
      if (--left_ == 0) end_.notify_one();
    }
  }
};

}  // namespace
}  // namespace fuzz

extern "C" int LLVMFuzzerInitialize(int* /*argc*/, char*** /*argv*/) {
  fuzz::is_alone = false;
  fuzz::begin();
  fuzz::expect("descendSetProduct", descendSetProduct("host"), {0});
  std::atexit(
      [] { std::fprintf(stderr, "calls whose statuses were compared: %" PRIu64 "\n", fuzz::calls_checked.load()); });
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static auto* const crew = new fuzz::Crew();  // its threads never end
  crew->run(data, size);
  return 0;
}
