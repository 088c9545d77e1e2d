// The gradient of cross entropy: a softmax of each row, times a number of the row, less another at its class.
#include <cmath>
#include <limits>

#include "kernels/rows/prefetch-inl.h"
#include "kernels/rows/spread-inl.h"
#include "kernels/scores/cross_entropy.h"
#include "kernels/scores/scores-inl.h"
#include "kernels/simd/dispatch.h"

HWY_BEFORE_NAMESPACE();
namespace descend::kernels::HWY_NAMESPACE {

// out[c] = factor * exp(log_prob[c]) - smooth * weight[c]; at the row's class at_class is taken away instead.
struct Terms {
  double factor = 0, smooth = 0, at_class = 0;
};

// grad_of_all: of the loss of a row, if it is the same for all rows. A row without a class becomes NaN.
template <class T>
HWY_INLINE Terms terms_of(const CrossEntropyLossGrad<T>& p, int64_t row, int64_t target, double grad_of_all) {
  if (target < 0) return {std::numeric_limits<double>::quiet_NaN()};
  const int64_t at = p.reduction == Reduction::kNone ? row : 0;
  const bool is_mean = p.reduction == Reduction::kMean;
  const double grad = p.reduction == Reduction::kNone ? p.grad[row] : grad_of_all;
  const double weight = p.weight != nullptr ? static_cast<double>(p.weight[target]) : 1;
  Terms terms;
  terms.factor = terms.at_class = grad * (1 - p.smoothing) * weight;
  if (p.smoothing != 0) {
    terms.smooth = grad * (p.smoothing / static_cast<double>(p.columns));
    terms.factor += terms.smooth * p.counted->classes;
  }
  terms.at_class += terms.smooth * weight;
  if (p.zloss_scale != 0) {
    const double both = p.grad[at] + (p.grad_zloss != nullptr ? p.grad_zloss[at] : 0);
    terms.factor += 2 * p.zloss_scale * p.lse[row] * (is_mean ? both / p.counted->rows : both);
  }
  return terms;
}

// The element at the class of the row: one vector, not a pack, since rows may be short.
template <class T>
HWY_INLINE T make_class(const CrossEntropyLossGrad<T>& p, int64_t row, const Terms& terms, int64_t target) {
  using W = Wide<T>;
  const TwoParts<W> lse(p.is_input ? p.lse[row] : 0);
  const auto e = exp<W>(lse.less(load(Part{1}, p.log_prob.row(row) + target, 0)));
  const auto y = hn::MulSub(e, splat(static_cast<W>(terms.factor)), splat(static_cast<W>(terms.at_class)));
  if constexpr (sizeof(T) == 2) {
    T made;
    const uint16_t bits = hn::GetLane(narrow(T(), y));
    std::memcpy(static_cast<void*>(&made), &bits, sizeof(made));
    return made;
  } else {
    return hn::GetLane(y);  // a masked store could not be forwarded to what reads it
  }
}

// Columns [c, c + n) of a row, to y, as if the row's class was elsewhere.
template <bool kAhead, class T>
HWY_INLINE void make_columns(const CrossEntropyLossGrad<T>& p, int64_t row, const Terms& terms, int64_t c, int64_t n,
                             T* y) {
  using W = Wide<T>;
  const TwoParts<W> lse(p.is_input ? p.lse[row] : 0);
  const auto factor = splat(static_cast<W>(terms.factor));
  const T* const x = p.log_prob.row(row) + c;
  if (p.weight == nullptr || terms.smooth == 0) {
    const auto minus = splat(static_cast<W>(terms.smooth));
    map_columns<kAhead>(x, y, n, [&](auto v, auto, int64_t, size_t) DESCEND_INLINED {
      return hn::MulSub(exp<W>(lse.less(v)), factor, minus);
    });
  } else {
    const auto smooth = splat(static_cast<W>(terms.smooth));
    const W* const weight = p.weight + c;
    map_columns<kAhead>(x, y, n, [&](auto v, auto extent, int64_t at, size_t k) DESCEND_INLINED {
      return hn::MulSub(exp<W>(lse.less(v)), factor, hn::Mul(load(extent, weight + at, k), smooth));
    });
  }
}

// Rows of so few columns that lie one behind the other are made a tile at a time, as if they were one row: what is done
// once for a row, such as the exp at its class, would take much of the time. 4096 x 33 bfloat16 takes half the time
// that it takes row by row, 4096 x 100 takes 0.8 of it (Zen 4, AVX-512).
template <class W>
inline constexpr int64_t kTileColumns = 4 * kPackLanes<W>;
inline constexpr int64_t kTileElements = 512;

// A tile of such rows, to y. The numbers of a row stand beside each of its elements. Where smoothing has no weights.
template <bool kAhead, class T>
HWY_INLINE void make_tile(const CrossEntropyLossGrad<T>& p, int64_t first, int64_t rows, double grad_of_all, T* y) {
  using W = Wide<T>;
  constexpr int64_t kRoom = kTileElements + kPackLanes<W>;
  const int64_t columns = p.columns;
  HWY_ALIGN W factors[kRoom], subtrahends[kRoom], highs[kRoom], lows[kRoom];
  W at_class[kTileElements];
  int64_t targets[kTileElements];
  for (int64_t r = 0; r < rows; ++r) {
    targets[r] = p.targets.of(first + r);
    const Terms terms = terms_of(p, first + r, targets[r], grad_of_all);
    factors[r] = static_cast<W>(terms.factor);
    at_class[r] = static_cast<W>(terms.at_class);
    subtrahends[r] = columns == 1 ? at_class[r] : static_cast<W>(terms.smooth);
    if (!p.is_input) continue;
    highs[r] = static_cast<W>(p.lse[first + r]);
    lows[r] = TwoParts<W>::low_of(p.lse[first + r]);
  }
  Spread<T, kTileElements> factor, subtrahend, high, low;
  factor.fill(factors, rows, columns);
  subtrahend.fill(subtrahends, rows, columns);
  for (int64_t r = 0; columns > 1 && r < rows; ++r) {
    if (targets[r] >= 0) subtrahend.put(r * columns + targets[r], at_class[r]);
  }
  const auto make = [&](auto less) DESCEND_INLINED {
    map_columns<kAhead>(p.log_prob.row(first), y, rows * columns,
                        [&](auto v, auto, int64_t c, size_t k) DESCEND_INLINED {
                          return hn::MulSub(exp<W>(less(v, c, k)), factor.at(c, k), subtrahend.at(c, k));
                        });
  };
  if (p.is_input) {
    high.fill(highs, rows, columns);
    low.fill(lows, rows, columns);
    make([&](auto v, int64_t c, size_t k) DESCEND_INLINED { return hn::Sub(hn::Sub(v, high.at(c, k)), low.at(c, k)); });
  } else {
    make([](auto v, int64_t, size_t) DESCEND_INLINED { return v; });
  }
  for (int64_t r = 0; r < rows; ++r) {
    if (targets[r] != Targets::kIgnored) continue;
    std::memset(static_cast<void*>(y + r * columns), 0, static_cast<size_t>(columns) * sizeof(T));
  }
}

template <bool kAhead, class T>
void gradients(const CrossEntropyLossGrad<T>& p, int64_t first, int64_t end, bool streams) {
  Stage<T, kSpanColumns> stage;
  const bool in_tiles = p.columns <= kTileColumns<Wide<T>> && (p.weight == nullptr || p.smoothing == 0) &&
                        p.log_prob.stride == p.columns && p.out.stride == p.columns;
  const double grad_of_all = p.reduction == Reduction::kMean ? p.grad[0] / p.counted->weight : p.grad[0];
  int64_t row = first;
  for (const int64_t tile = kTileElements / p.columns; in_tiles && row < end; row += tile) {
    const int64_t rows = HWY_MIN(tile, end - row), n = rows * p.columns;
    const Rows<T> to{p.out.row(row), n};
    make_tile<kAhead>(p, row, rows, grad_of_all, streams ? stage.rows(to, n).data : to.data);
    if (streams) stage.stream(to, 1, n);
  }
  for (; row < end; ++row) {
    const int64_t target = p.targets.of(row);
    const Terms terms = terms_of(p, row, target, grad_of_all);
    // First: out may be log_prob's memory.
    const T of_class = target >= 0 ? make_class(p, row, terms, target) : T{};
    for (int64_t c = 0; c < p.columns; c += kSpanColumns) {
      const int64_t n = HWY_MIN(kSpanColumns, p.columns - c);
      const Rows<T> to{p.out.row(row) + c, n};
      T* const y = streams ? stage.rows(to, n).data : to.data;
      if (target == Targets::kIgnored) {
        std::memset(static_cast<void*>(y), 0, static_cast<size_t>(n) * sizeof(T));
      } else {
        make_columns<kAhead>(p, row, terms, c, n, y);
        if (c <= target && target < c + n) y[target - c] = of_class;
      }
      if (streams) stage.stream(to, 1, n);
    }
  }
  if (!streams) return;
  stage.finish();
  flush_streams();
}

}  // namespace descend::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

namespace descend::kernels::DESCEND_TARGET {

template <class T>
void cross_entropy_loss_grad(const CrossEntropyLossGrad<T>& p) {
  const auto plain = gradients<false, T>, ahead = gradients<true, T>;
  constexpr auto kSize = static_cast<int64_t>(sizeof(T));
  if (p.rows == 0) return;
  const int64_t bytes = p.rows * p.columns * kSize;
  // In the place of what was read the lines are in a cache already.
  const bool is_in_place = p.out.data == p.log_prob.data, streams = !is_in_place && streams_results({2 * bytes, bytes});
  const bool is_far = exceeds_kept(is_in_place ? bytes : 2 * bytes);
  run_rows(p.rows, p.columns, row_work<T>(2 * p.columns),
           [&](int64_t first, int64_t end) { (is_far ? ahead : plain)(p, first, end, streams); });
}

}  // namespace descend::kernels::DESCEND_TARGET

DESCEND_KERNEL(void, cross_entropy_loss_grad, (const CrossEntropyLossGrad<T>& problem), problem)
