// Replays inputs of the fuzzer, without libFuzzer:
// replay [--threads N] [--variations N | --seconds N] [--counts] FOLDER... With threads all of them make calls at once,
// each with the inputs in an order of its own. Variations are made of the inputs at random and follow no branches, but
// without sanitizers they are many times as fast. Each thread makes its share of the N, or makes them for N seconds.
// One that is answered wrongly is written to the file replay-found. --counts says how many calls of each operator were
// compared with the reference, and fails if there is an operator of which none was.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cinttypes>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "bytes.h"
#include "descend.h"
#include "results.h"
#include "runtime.h"

namespace {

using Input = std::vector<uint8_t>;
using Clock = std::chrono::steady_clock;

thread_local Input current;

// In a signal's handler.
void keep_current(int) {
  const int file = open("replay-found", O_WRONLY | O_CREAT | O_TRUNC, 0644);
  if (write(file, current.data(), current.size()) < 0) _exit(2);
  _exit(1);
}

// An input with other bytes in places, some of another input in its midst, or a part left out.
Input variation(const std::vector<Input>& inputs, std::mt19937_64& random) {
  constexpr size_t kLongest = 400;
  const auto below = [&random](size_t count) { return count == 0 ? 0 : static_cast<size_t>(random() % count); };
  Input made = inputs[below(inputs.size())];
  for (size_t changes = 1 + below(6); changes > 0; --changes) {
    const auto place = [&] { return made.begin() + static_cast<std::ptrdiff_t>(below(made.size() + 1)); };
    const auto to = place();
    switch (below(4)) {
      case 0: {
        const Input& other = inputs[below(inputs.size())];
        const size_t from = below(other.size() + 1), count = below(std::min<size_t>(other.size() - from, 64) + 1);
        made.insert(to, other.begin() + static_cast<std::ptrdiff_t>(from),
                    other.begin() + static_cast<std::ptrdiff_t>(from + count));
        break;
      }
      case 1:
        made.erase(to, to + std::min<std::ptrdiff_t>(made.end() - to, static_cast<std::ptrdiff_t>(below(16))));
        break;
      default:
        if (to != made.end()) *to = static_cast<uint8_t>(random());
    }
  }
  made.resize(std::min(made.size(), kLongest));
  return made;
}

// Until there are `count`, or until `end`. How many were run.
uint64_t run_variations(const std::vector<Input>& inputs, uint64_t count, Clock::time_point end) {
  std::mt19937_64 random(std::random_device{}());
  uint64_t i = 0;
  for (; i < count || Clock::now() < end; ++i) {
    current = variation(inputs, random);
    fuzz::run(current.data(), current.size());
  }
  return i;
}

}  // namespace

int main(int argc, char** argv) {
  size_t threads = 1;
  uint64_t variations = 0, seconds = 0;
  bool show_counts = false;
  std::vector<std::filesystem::path> files;
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--threads") == 0 && i + 1 < argc) {
      threads = std::stoul(argv[++i]);
      continue;
    }
    if (std::strcmp(argv[i], "--variations") == 0 && i + 1 < argc) {
      variations = std::stoull(argv[++i]);
      continue;
    }
    if (std::strcmp(argv[i], "--seconds") == 0 && i + 1 < argc) {
      seconds = std::stoull(argv[++i]);
      continue;
    }
    if (std::strcmp(argv[i], "--counts") == 0) {
      show_counts = true;
      continue;
    }
    for (const auto& entry : std::filesystem::directory_iterator(argv[i])) files.push_back(entry.path());
  }
  if (files.empty() || threads == 0) {
    std::fprintf(stderr,
                 "usage: replay [--threads N] [--variations N | --seconds N] [--counts] FOLDER...; "
                 "the folders hold no inputs\n");
    return 2;
  }
  std::sort(files.begin(), files.end());
  std::vector<Input> inputs;
  for (int signal : {SIGABRT, SIGSEGV, SIGBUS, SIGFPE, SIGILL}) {
    if (variations + seconds > 0) std::signal(signal, keep_current);
  }
  for (const auto& file : files) {
    std::ifstream stream(file, std::ios::binary);
    inputs.emplace_back(std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>());
  }
  fuzz::is_alone = threads == 1;
  fuzz::begin();
  if (!fuzz::is_alone) fuzz::expect("descendSetProduct", descendSetProduct("host"), {0});
  const auto end = Clock::now() + std::chrono::seconds(seconds);
  std::atomic<uint64_t> varied = 0;
  std::vector<std::thread> all;
  for (size_t t = 0; t < threads; ++t) {
    all.emplace_back([&, t] {
      for (size_t i = 0; i < inputs.size(); ++i) {
        const auto& input = inputs[(i + t * inputs.size() / threads) % inputs.size()];
        fuzz::run(input.data(), input.size());
      }
      varied += run_variations(inputs, variations * (t + 1) / threads - variations * t / threads, end);
    });
  }
  for (std::thread& thread : all) thread.join();
  fuzz::expect("aclFinalize", aclFinalize(), {0});
  std::printf("%zu inputs, %zu threads, %" PRIu64 " variations; %" PRIu64 " statuses were compared\n", inputs.size(),
              threads, varied.load(), fuzz::calls_checked.load());
  if (show_counts && !fuzz::print_counts()) {
    std::fprintf(stderr, "replay: no call of some operator was compared; keep an input that makes one\n");
    return 1;
  }
}
