// Cross entropy of rows of scores with the class of each. A row is read from memory once: the sum of exp(x - max) is
// added up block by block, each less its own maximum.
#include <cmath>
#include <limits>

#include "kernels/rows/prefetch-inl.h"
#include "kernels/scores/cross_entropy.h"
#include "kernels/scores/scores-inl.h"
#include "kernels/simd/dispatch.h"

HWY_BEFORE_NAMESPACE();
namespace descend::kernels::HWY_NAMESPACE {

// Sums over a row of what may be as large as the largest number are of so much of it.
inline constexpr double kShare = 0x1p-16;

template <class T>
HWY_INLINE double number_at(const T* p) {
  return static_cast<double>(hn::GetLane(load(Part{1}, p, 0)));
}

// The sum over a row of weight * (lse - x), where lse is most + of_total. Each is taken by itself: where scores are
// large, their sum has no room for of_total.
template <bool kWeighted, class T, class W = Wide<T>>
double sum_distances(const T* x, int64_t columns, double most, double of_total, const W* weight) {
  const auto share = splat(static_cast<W>(kShare));
  const auto share_of_most = splat(static_cast<W>(most * kShare));
  const auto share_of_total = splat(static_cast<W>(of_total * kShare));
  HWY_ALIGN W sum[kFoldRows<W>];
  double total = 0;
  for (int64_t begin = 0; begin < columns; begin += kBlock) {
    const auto distance = [&](int64_t, auto v, auto extent, int64_t c, size_t k) DESCEND_INLINED {
      const auto d = hn::Add(hn::NegMulAdd(v, share, share_of_most), share_of_total);
      if constexpr (kWeighted) return hn::Mul(d, load(extent, weight + begin + c, k));
      return d;
    };
    fold_columns_of<T>({x + begin, 0}, 1, HWY_MIN(kBlock, columns - begin), W{0}, Sum(), sum, distance);
    total += sum[0];
  }
  return total / kShare;
}

template <bool kAhead, class T>
void losses(const CrossEntropyLoss<T>& p, int64_t first, int64_t end, bool streams) {
  using W = Wide<T>;
  Stage<T, kSpanColumns> stage;
  const bool writes = p.log_prob.data != nullptr;
  const auto finish = [&](int64_t row, const SumOfExps& sum, double of_total) HWY_ATTR {
    const double lse = sum.most + of_total;
    const int64_t target = p.targets.of(row);
    const T* const x = p.x.row(row);
    double loss = target == Targets::kIgnored ? 0 : std::numeric_limits<double>::quiet_NaN();
    if (target >= 0) {
      loss = (sum.most - number_at(x + target)) + of_total;
      if (p.weight != nullptr) loss *= p.weight[target];
      if (p.smoothing != 0) {
        const double sum_of_all = p.weight != nullptr
                                      ? sum_distances<true>(x, p.columns, sum.most, of_total, p.weight)
                                      : sum_distances<false>(x, p.columns, sum.most, of_total, p.weight);
        loss = (1 - p.smoothing) * loss + p.smoothing / static_cast<double>(p.columns) * sum_of_all;
      }
    }
    p.loss[row] = loss;
    if (p.lse != nullptr) p.lse[row] = !writes && target == Targets::kIgnored ? 0 : lse;
  };
  const int64_t tile = rows_at_once<W>(p.columns);
  for (int64_t row = first; row < end; row += tile) {
    if (tile == 1 && !writes && p.targets.of(row) == Targets::kIgnored) {
      p.loss[row] = 0;
      if (p.lse != nullptr) p.lse[row] = 0;
      continue;
    }
    SumOfExps sums[kFoldRows<W>];
    const int64_t n = HWY_MIN(tile, end - row);
    sum_exps<kAhead, T>({p.x.row(row), p.x.stride}, n, p.columns, sums);
    HWY_ALIGN double logs[kFoldRows<W>];
    logs_of_sums(sums, n, logs);
    for (int64_t r = 0; r < n; ++r) finish(row + r, sums[r], logs[r]);
    if (!writes) continue;
    map_log_softmax_rows<T>({p.x.row(row), p.x.stride}, n, p.columns, sums, logs,
                            {p.log_prob.row(row), p.log_prob.stride}, streams, stage);
  }
  if (!streams) return;
  stage.finish();
  flush_streams();
}

}  // namespace descend::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

namespace descend::kernels::DESCEND_TARGET {

template <class T>
void cross_entropy_loss(const CrossEntropyLoss<T>& p) {
  const auto plain = losses<false, T>, ahead = losses<true, T>;
  constexpr auto kSize = static_cast<int64_t>(sizeof(T));
  if (p.rows == 0) return;
  const int64_t bytes = p.rows * p.columns * kSize;
  const bool writes = p.log_prob.data != nullptr;
  const bool streams = writes && p.log_prob.data != p.x.data && streams_results({2 * bytes, bytes});
  run_rows(p.rows, p.columns, row_work<T>((writes ? 2 : 1) * p.columns),
           [&](int64_t first, int64_t end) { (exceeds_kept(bytes) ? ahead : plain)(p, first, end, streams); });
}

}  // namespace descend::kernels::DESCEND_TARGET

DESCEND_KERNEL(void, cross_entropy_loss, (const CrossEntropyLoss<T>& problem), problem)
