#include "runtime/handover.h"

#include <algorithm>
#include <atomic>

#include "runtime/clock.h"
#include "runtime/machine.h"
#include "runtime/thread.h"

namespace descend {
namespace {

enum class Turn { kOurs, kTheirs, kOver };

struct alignas(128) Line {  // two cache lines: some processors fetch them in pairs
  std::atomic<Turn> turn{Turn::kOurs};
  int core = current_core();  // of the thread that begins
};

void give_back(void* argument) {
  Line& line = *static_cast<Line*>(argument);
  std::atomic<Turn>& turn = line.turn;
  if (line.core >= 0) avoid_core(line.core);
  for (Turn seen = Turn::kOurs; seen != Turn::kOver; seen = turn.load(std::memory_order_acquire)) {
    if (seen == Turn::kTheirs) turn.store(Turn::kOurs, std::memory_order_release);
  }
}

}  // namespace

double handover_seconds(double seconds) {
  constexpr int kTimes = 16;             // round trips between two readings of the clock
  constexpr double kSideBySide = 10e-6;  // a switch of threads takes many times as long
  Line line;
  Thread other;
  if (usable_cores() < 2 || !other.start("handover", give_back, &line)) return 0;
  const auto to_and_fro = [&line](int times) {
    for (int i = 0; i < times; ++i) {
      line.turn.store(Turn::kTheirs, std::memory_order_release);
      while (line.turn.load(std::memory_order_acquire) != Turn::kOurs) {
      }
    }
  };
  to_and_fro(1);  // the other thread has begun
  double best = kSideBySide;
  const auto start = Clock::now();
  do {
    const auto begin = Clock::now();
    to_and_fro(kTimes);
    best = std::min(best, seconds_since(begin) / (2 * kTimes));
  } while (seconds_since(start) < seconds);
  line.turn.store(Turn::kOver, std::memory_order_release);
  other.join();
  return best < kSideBySide ? best : 0;
}

}  // namespace descend
