// Cross entropy of rows of scores, and its gradient: what a call is.
#pragma once

#include <cstdint>
#include <limits>

#include "kernels/rows/run_rows.h"
#include "kernels/simd/element.h"

namespace descend::kernels {

enum class Reduction : uint8_t { kMean, kSum, kNone };

// The class of each row, in int32 or int64. A row whose class is `ignored` counts for nothing.
struct Targets {
  const void* data;
  int64_t stride;
  bool is_wide;
  int64_t classes, ignored;

  static constexpr int64_t kIgnored = -1, kNone = -2;  // kNone: a number that is no class

  int64_t of(int64_t row) const {
    const int64_t at = row * stride;
    const int64_t target = is_wide ? static_cast<const int64_t*>(data)[at] : static_cast<const int32_t*>(data)[at];
    if (target == ignored) return kIgnored;
    return 0 <= target && target < classes ? target : kNone;
  }
};

template <class T>
struct CrossEntropyLoss {
  int64_t rows, columns;
  Rows<const T> x;
  Targets targets;
  const Wide<T>* weight;  // of each class; null: all are 1
  double smoothing;
  Rows<T> log_prob;  // null: not wanted, and rows that are ignored are not read
  double* loss;      // of each row
  double* lse;       // of each row; 0 of one that is not read
};

// What losses are divided by, and what smoothing adds up: the weights of all rows' classes, the rows that count, the
// weights of all classes. A row that has no class makes the first NaN.
struct Counted {
  double weight, rows, classes;
};
template <class W>
Counted count_targets(const Targets& targets, int64_t rows, const W* weight) {
  Counted counted{};
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t target = targets.of(row);
    if (target == Targets::kIgnored) continue;
    counted.rows += 1;
    counted.weight += target < 0          ? std::numeric_limits<double>::quiet_NaN()
                      : weight != nullptr ? static_cast<double>(weight[target])
                                          : 1;
  }
  if (weight == nullptr) counted.classes = static_cast<double>(targets.classes);
  for (int64_t c = 0; weight != nullptr && c < targets.classes; ++c) counted.classes += static_cast<double>(weight[c]);
  return counted;
}

template <class T>
struct CrossEntropyLossGrad {
  int64_t rows, columns;
  Rows<const T> log_prob;
  Targets targets;
  const Wide<T>* weight;
  const Counted* counted;
  Reduction reduction;
  double smoothing, zloss_scale;
  bool is_input;             // log_prob is the forward's input: lse is taken away first
  const double* grad;        // one, or one of each row
  const double* grad_zloss;  // likewise; null: 0
  const double* lse;         // of each row; null: not read
  Rows<T> out;
};

}  // namespace descend::kernels
