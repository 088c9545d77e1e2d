#include "kernels/limits/arithmetic.h"

#include <algorithm>
#include <cstdint>
#include <type_traits>
#include <vector>

#include "kernels/simd/dispatch.h"
#include "kernels/simd/doubles-inl.h"
#include "kernels/simd/element.h"
#include "kernels/simd/pack-inl.h"
#include "kernels/simd/swish-inl.h"
#include "runtime/clock.h"
#include "runtime/parallel.h"

namespace descend::kernels {

inline constexpr int64_t kCachedElements = 1024;  // 14 KiB with all four arrays

template <class T>
struct Cached {
  alignas(64) T dy[kCachedElements], x[kCachedElements], dx[kCachedElements];
  alignas(64) float dz[kCachedElements];
};

}  // namespace descend::kernels

HWY_BEFORE_NAMESPACE();
namespace descend::kernels::HWY_NAMESPACE {

// Both passes over the same elements, `times` times.
template <class T>
void swish_arithmetic(Cached<T>& at, int64_t times) {
  constexpr size_t kN = kPackVectors<float>;
  constexpr int64_t kStep = kPackLanes<float>;
  const auto steepness = splat(1.1f), level = splat(0.1f), weight = splat(0.9f), tilt = splat(0.01f);
  for (; times > 0; --times) {
    Pack<float> dz_sum = zero_pack<float>(), dzx_sum = dz_sum;
    over_packs<float>(0, kCachedElements, [&](auto, auto packs, int64_t j) DESCEND_INLINED {
      constexpr size_t kPacks = decltype(packs)::value, kAll = kPacks * kN;
      Pack<float> x[kPacks];
      Vector<float> slope[kAll];
      each<kPacks>([&](size_t i) DESCEND_INLINED { x[i] = load_pack(Full(), at.x + j + i * kStep); });
      each<kAll>([&](size_t k) DESCEND_INLINED { slope[k] = hn::MulAdd(x[k / kN].v[k % kN], steepness, level); });
      swish_slopes<true, float, kAll>(slope, slope,
                                      [&](size_t k) DESCEND_INLINED { return hn::IsFinite(x[k / kN].v[k % kN]); });
      each<kPacks>([&](size_t i) DESCEND_INLINED {
        Pack<float> dz = load_pack(Full(), at.dy + j + i * kStep);
        each<kN>([&](size_t k) DESCEND_INLINED { dz.v[k] = hn::Mul(dz.v[k], slope[i * kN + k]); });
        store(Full(), dz, at.dz + j + i * kStep);
        each<kN>([&](size_t k) DESCEND_INLINED { dz_sum.v[k] = hn::Add(dz_sum.v[k], dz.v[k]); });
        each<kN>([&](size_t k) DESCEND_INLINED { dzx_sum.v[k] = hn::MulAdd(dz.v[k], x[i].v[k], dzx_sum.v[k]); });
      });
    });
    const auto base = splat(fold(add(dz_sum, dzx_sum)) * 1e-6f);
    for (int64_t j = 0; j < kCachedElements; j += kStep) {
      const Pack<float> dz = load_pack(Full(), at.dz + j), elements = load_pack(Full(), at.x + j);
      Pack<float> dx;
      each<kN>([&](size_t k)
                   DESCEND_INLINED { dx.v[k] = hn::MulSub(dz.v[k], weight, hn::MulAdd(elements.v[k], tilt, base)); });
      store<false, Nan::kOfBfloat16>(Full(), dx, at.dx + j);
    }
  }
}

}  // namespace descend::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

namespace descend::kernels::DESCEND_TARGET {

template <class T>
double arithmetic_of(int64_t elements, int threads, double seconds) {
  std::vector<Cached<T>> data(static_cast<size_t>(threads));
  // Normal numbers near 1: their bits 0x3C00 and some of the lower ones.
  constexpr uint16_t kOne = std::is_same_v<T, float16> ? 0x3C00 : 0x3F80;
  for (Cached<T>& at : data) {
    for (int64_t i = 0; i < kCachedElements; ++i) {
      at.dy[i] = T{static_cast<uint16_t>(kOne + i % 96)};
      at.x[i] = T{static_cast<uint16_t>(kOne + i * 7 % 96 + (i % 2) * 0x8000)};
    }
  }
  constexpr int64_t kTimes = 256;
  auto chunk = [&](int64_t i) { swish_arithmetic(data[static_cast<size_t>(i)], kTimes); };
  std::vector<double> times;
  const auto start = Clock::now();
  do {
    const auto begin = Clock::now();
    detail::run_chunks(
        threads, threads, [](void* body, int64_t i) { (*static_cast<decltype(chunk)*>(body))(i); }, &chunk);
    times.push_back(seconds_since(begin));
  } while (times.size() < 5 || seconds_since(start) < seconds);
  std::nth_element(times.begin(), times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2), times.end());
  const double each = times[times.size() / 2] / static_cast<double>(kTimes * kCachedElements * threads);
  return each * static_cast<double>(elements);
}

double group_norm_swish_grad_arithmetic(Element type, int64_t elements, int threads, double seconds) {
  const auto run = type == Element::kBfloat16 ? arithmetic_of<bfloat16> : arithmetic_of<float16>;
  return run(elements, threads, seconds);
}

}  // namespace descend::kernels::DESCEND_TARGET

DESCEND_PLAIN_KERNEL(double, group_norm_swish_grad_arithmetic,
                     (Element type, int64_t elements, int threads, double seconds), type, elements, threads, seconds)
