#include "kernels/limits/triad.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#include "kernels/rows/prefetch-inl.h"
#include "kernels/simd/dispatch.h"
#include "kernels/simd/pack-inl.h"
#include "runtime/clock.h"
#include "runtime/pages.h"
#include "runtime/parallel.h"

HWY_BEFORE_NAMESPACE();
namespace descend::kernels::HWY_NAMESPACE {
namespace {

constexpr int64_t kAhead = 512;  // elements

// n is a multiple of 64; all three are aligned to 64 bytes.
template <bool kStream>
void triad_span(const float* a, const float* b, float* c, int64_t n) {
  const hn::ScalableTag<float> d;
  const auto s = hn::Set(d, 3.0f);
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  for (int64_t i = 0; i < n; i += lanes) {
    // The processor's own prefetching leaves a part of the bandwidth unused.
    prefetch_near(a + i + kAhead);
    prefetch_near(b + i + kAhead);
    const auto sum = hn::MulAdd(s, hn::Load(d, b + i), hn::Load(d, a + i));
    if constexpr (kStream) {
      hn::Stream(sum, d, c + i);
    } else {
      hn::Store(sum, d, c + i);
    }
  }
  if constexpr (kStream) flush_streams();
}

}  // namespace
}  // namespace descend::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

namespace descend::kernels::DESCEND_TARGET {
namespace {

using Span = void (*)(const float*, const float*, float*, int64_t);

// The median time of one pass.
double median_pass(Span span, const float* a, const float* b, float* c, int64_t n, int threads, double seconds) {
  constexpr int64_t kPiece = 64 * 1024;  // elements
  const int64_t pieces = threads == 1 ? 1 : std::max<int64_t>(threads, (n + kPiece - 1) / kPiece);
  const int64_t step = (n / pieces + 63) / 64 * 64;
  auto piece = [&](int64_t i) {
    const int64_t begin = std::min(n, i * step), end = i + 1 == pieces ? n : std::min(n, begin + step);
    span(a + begin, b + begin, c + begin, end - begin);
  };
  const auto pass = [&] {
    detail::run_chunks(
        pieces, threads, [](void* body, int64_t i) { (*static_cast<decltype(piece)*>(body))(i); }, &piece);
  };
  pass();
  const auto first = Clock::now();
  pass();
  const int64_t batch = std::max<int64_t>(1, static_cast<int64_t>(20e-6 / std::max(seconds_since(first), 1e-8)));
  std::vector<double> times;
  const auto start = Clock::now();
  do {
    const auto begin = Clock::now();
    for (int64_t i = 0; i < batch; ++i) pass();
    times.push_back(seconds_since(begin) / static_cast<double>(batch));
  } while (times.size() < 5 || seconds_since(start) < seconds);
  std::nth_element(times.begin(), times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2), times.end());
  return times[times.size() / 2];
}

}  // namespace

double triad(size_t bytes, int threads, double seconds) {
  const int64_t n = std::max<int64_t>(64, static_cast<int64_t>(bytes / (3 * sizeof(float)) / 64 * 64));
  // The arrays start at different offsets within a page, so that they do not compete for the same cache sets.
  constexpr int64_t kShift = 320;  // elements
  const size_t taken = static_cast<size_t>(3 * (n + kShift)) * sizeof(float);
  auto* memory = static_cast<float*>(take_pages(taken));
  if (memory == nullptr) return 0;
  std::fill_n(memory, 3 * (n + kShift), 1.0f);
  const float* a = memory;
  const float* b = a + n + kShift;
  float* c = memory + 2 * (n + kShift);
  const double time = std::min(median_pass(triad_span<false>, a, b, c, n, threads, seconds / 2),
                               median_pass(triad_span<true>, a, b, c, n, threads, seconds / 2));
  give_pages(memory, taken);
  return 3.0 * static_cast<double>(n) * sizeof(float) / time;
}

}  // namespace descend::kernels::DESCEND_TARGET

DESCEND_PLAIN_KERNEL(double, triad, (size_t bytes, int threads, double seconds), bytes, threads, seconds)
