// A stripe is some columns of a matrix, from its first row to its last: so many that what is read again comes from a
// cache. Lanes are columns; each has its own largest number and its own sum.
#include "kernels/softmax_columns.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <iterator>
#include <limits>
#include <type_traits>

#include "kernels/rows/convert.h"
#include "kernels/rows/prefetch-inl.h"
#include "kernels/rows/run_rows.h"
#include "kernels/rows/softmax_range.h"
#include "kernels/rows/spread-inl.h"
#include "kernels/simd/dispatch.h"
#include "kernels/simd/doubles-inl.h"
#include "kernels/simd/log-inl.h"

namespace descend::kernels {
namespace {

// For what is computed in double.
template <class T>
[[gnu::noinline]] double exact_number(const T* from) {
  double number;
  convert_span(kElementOf<T>, from, Element::kFloat64, &number, 1);
  return number;
}
template <class T>
[[gnu::noinline]] void exact_result(double result, T* to) {
  convert_span(Element::kFloat64, &result, kElementOf<T>, to, 1);
}

}  // namespace
}  // namespace descend::kernels

HWY_BEFORE_NAMESPACE();
namespace descend::kernels::HWY_NAMESPACE {

inline constexpr int64_t kRowsAtOnce = 8;     // whose terms are added in the type of the arithmetic; then in double
inline constexpr int64_t kMostColumns = 512;  // of a stripe
inline constexpr int64_t kKeptBytes = int64_t{64} << 10;     // of exponentials that are kept for the results
inline constexpr int64_t kStripeBytes = int64_t{256} << 10;  // of a stripe of which nothing is kept

template <class W>
inline constexpr int64_t kKeptNumbers = kKeptBytes / static_cast<int64_t>(sizeof(W));

// The rows of a stripe. Of few columns several rows of the matrix are one, and a shorter one may follow.
struct Stripe {
  int64_t rows, columns, joined, rest;

  // f(r, columns) for each row from `first` on.
  template <class F>
  HWY_INLINE void each_row(F f, int64_t first = 0) const {
    for (int64_t r = first; r < rows; ++r) f(r, columns);
    if (rest > 0) f(rows, rest);
  }

  // f(count, r, columns) for rows r to r + count, the number a constant.
  template <class F>
  HWY_INLINE void each_rows(F f) const {
    int64_t r = 0;
    for (; r + kRowsAtOnce <= rows; r += kRowsAtOnce) f(std::integral_constant<int64_t, kRowsAtOnce>(), r, columns);
    each_row([&](int64_t row, int64_t n) HWY_ATTR { f(std::integral_constant<int64_t, 1>(), row, n); }, r);
  }
};

// A number for each column of a stripe.
template <class N>
struct Numbers {
  alignas(64) N at[kMostColumns];

  HWY_INLINE Numbers() {}
  HWY_INLINE Numbers(N value, int64_t columns) { std::fill_n(at, whole_packs<float>(columns), value); }

  // Where several rows are one: what op puts together of a column's numbers in each, for all of them.
  template <class Op>
  HWY_INLINE void join(const Stripe& stripe, Op op) {
    const int64_t own = stripe.columns / stripe.joined;
    for (int64_t c = own; c < stripe.columns; c += own) {
      for (int64_t i = 0; i < own; ++i) at[i] = op(at[i], at[c + i]);
    }
    for (int64_t c = own; c < stripe.columns; c += own) copy_few(at, own, at + c);
  }
};

// f(extent, c, k) for each vector of n columns.
template <class W, class F>
HWY_INLINE void each_vector(int64_t n, F f) {
  for_each_pack<W>(0, n, [&](auto extent, int64_t c) DESCEND_INLINED {
    each<kPackVectors<W>>([&](size_t k) DESCEND_INLINED { f(extent, c, k); });
  });
}

// Numbers k of the pack at c.
template <class W>
HWY_INLINE Vector<W> load_numbers(const Numbers<W>& numbers, int64_t c, size_t k) {
  return hn::Load(Tag<W>(), numbers.at + c + k * kVectorLanes<W>);
}

template <class W>
inline constexpr size_t kHalves = kVectorLanes<W> / kVectorLanes<double>;  // vectors of double that hold one of W

// sums += what of(extent, c, k, sum) adds to the sums of a vector.
template <class W, class F>
HWY_INLINE void add_columns_of(int64_t n, Numbers<double>& sums, F of) {
  each_vector<W>(n, [&](auto extent, int64_t c, size_t k) DESCEND_INLINED {
    const Tag<double> d;
    double* const at = sums.at + c + k * kVectorLanes<W>;
    Vector<double> sum[kHalves<W>];
    each<kHalves<W>>([&](size_t h) DESCEND_INLINED { sum[h] = hn::Load(d, at + h * kVectorLanes<double>); });
    of(extent, c, k, sum);
    each<kHalves<W>>([&](size_t h) DESCEND_INLINED { hn::Store(sum[h], d, at + h * kVectorLanes<double>); });
  });
}

// The rows of results; of(extent, r, c, k): vector k of the pack at c of row r. Where results go past the caches, what
// is read next is asked for meanwhile.
template <class T, size_t kIn, class F>
HWY_INLINE void write_rows(bool streams, const Stripe& stripe, const Rows<T>& to, const Rows<const T> (&next)[kIn],
                           F of) {
  using W = Wide<T>;
  const auto write = [&](auto past) DESCEND_INLINED {
    stripe.each_row([&](int64_t r, int64_t n) DESCEND_INLINED {
      T* const row = to.row(r);
      for_each_pack<W>(0, n, [&](auto extent, int64_t c) DESCEND_INLINED {
        if constexpr (past()) {
          each<kIn>([&](size_t i) DESCEND_INLINED { prefetch_pack<prefetch_near>(next[i].row(r) + c, 0); });
        }
        each<kPackPairs<W>>([&](size_t pair) DESCEND_INLINED {
          const auto first = of(extent, r, c, 2 * pair), second = of(extent, r, c, 2 * pair + 1);
          store_pair<past()>(extent, first, second, row + c, 2 * pair);
        });
      });
    });
  };
  streams ? write(std::true_type()) : write(std::false_type());
}

// One correction makes the product with the reciprocal what a division, which is slow, would give. The last bit of it
// is lost on elements of 16 bits.
template <class T, class V>
HWY_INLINE V quotient(V e, V total, V reciprocal) {
  const V product = hn::Mul(e, reciprocal);
  if constexpr (sizeof(T) == 2) return product;
  return hn::MulAdd(hn::NegMulAdd(product, total, e), reciprocal, product);
}

// The largest number of each column.
template <class T, class W = Wide<T>>
HWY_NOINLINE void find_most(const Stripe& stripe, const Rows<const T>& x, Numbers<W>& most) {
  stripe.each_rows([&](auto count, int64_t r, int64_t n) HWY_ATTR {
    each_vector<W>(n, [&](auto extent, int64_t c, size_t k) DESCEND_INLINED {
      auto v = load_numbers(most, c, k);
      each<count()>([&](size_t i) DESCEND_INLINED {
        v = hn::Max(v, inside_or<W>(extent, k, load(extent, x.row(r + static_cast<int64_t>(i)) + c, k), v));
      });
      hn::Store(v, Tag<W>(), most.at + c + k * kVectorLanes<W>);
    });
  });
  most.join(stripe, [](W a, W b) { return std::max(a, b); });
}

template <SoftmaxKind kKind, class T>
HWY_NOINLINE void forward_stripe(const Stripe& stripe, bool streams, const Rows<const T>& x, const Rows<const T>& next,
                                 const Rows<T>& y) {
  using W = Wide<T>;
  constexpr bool kIsLog = kKind == SoftmaxKind::kLogSoftmax;
  const Tag<W> d;
  HWY_ALIGN W kept[kIsLog ? 1 : kKeptNumbers<W>];
  const int64_t width = whole_packs<W>(stripe.columns);
  const bool keeps = !kIsLog && (stripe.rows + 1) * width <= kKeptNumbers<W>;
  Numbers<W> most(std::numeric_limits<W>::lowest(), stripe.columns);
  find_most<T>(stripe, x, most);
  Numbers<double> sums(0.0, stripe.columns);
  stripe.each_rows([&](auto count, int64_t r, int64_t n) HWY_ATTR {
    add_columns_of<W>(n, sums, [&](auto extent, int64_t c, size_t k, Vector<double>* sum) DESCEND_INLINED {
      const auto largest = load_numbers(most, c, k);
      Vector<W> total = hn::Zero(d);
      each<count()>([&](size_t i) DESCEND_INLINED {
        const int64_t row = r + static_cast<int64_t>(i);
        const auto below = hn::Sub(load(extent, x.row(row) + c, k), largest);
        // What goes to the logarithm is exact, what goes to a quotient as exact as the quotient can show.
        const auto e = inside_or<W>(extent, k, exp_below<std::conditional_t<kIsLog, W, T>>(below), hn::Zero(d));
        if (!kIsLog && keeps) hn::Store(e, d, kept + row * width + c + k * kVectorLanes<W>);
        total = hn::Add(total, e);
      });
      Vector<double> wide[kHalves<W>];
      to_double<W, 1>(&total, wide);
      each<kHalves<W>>([&](size_t h) DESCEND_INLINED { sum[h] = hn::Add(sum[h], wide[h]); });
    });
  });
  sums.join(stripe, std::plus<>());
  // Softmax: the total and its reciprocal; log softmax: its logarithm.
  Numbers<W> terms[kIsLog ? 1 : 2];
  for (int64_t c = 0; c < width; c += kVectorLanes<double>) {
    const Tag<double> dd;
    const auto total = hn::Load(dd, sums.at + c);
    const auto leave = [&](Numbers<W>& to, Vector<double> v)
                           HWY_ATTR { hn::StoreU(narrow_double<W>(dd, v), hn::Rebind<W, Tag<double>>(), to.at + c); };
    leave(terms[0], kIsLog ? log(total) : total);
    if constexpr (!kIsLog) leave(terms[1], hn::Div(splat(1.0), total));
  }
  write_rows(streams, stripe, y, {next}, [&](auto extent, int64_t r, int64_t c, size_t k) DESCEND_INLINED {
    if (!kIsLog && keeps) {
      const auto e = hn::Load(d, kept + r * width + c + k * kVectorLanes<W>);
      return quotient<T>(e, load_numbers(terms[0], c, k), load_numbers(terms[!kIsLog], c, k));
    }
    const auto below = hn::Sub(load(extent, x.row(r) + c, k), load_numbers(most, c, k));
    if constexpr (kIsLog) return hn::Sub(below, load_numbers(terms[0], c, k));
    return quotient<T>(exp_below<T>(below), load_numbers(terms[0], c, k), load_numbers(terms[!kIsLog], c, k));
  });
}

// In double, one after the other: sums that leave the range of float.
template <SoftmaxKind kKind, class T>
HWY_NOINLINE void exact_stripe(const Stripe& stripe, const Rows<const T> (&in)[2], const Numbers<double>& sums,
                               const Rows<T>& dx) {
  stripe.each_row([&](int64_t r, int64_t n) {
    for (int64_t c = 0; c < n; ++c) {
      const double dy = exact_number(in[0].row(r) + c), y = exact_number(in[1].row(r) + c);
      const double result =
          kKind == SoftmaxKind::kSoftmaxBackward ? dy * y - sums.at[c] * y : dy - exp_of_one(y) * sums.at[c];
      exact_result(result, dx.row(r) + c);
    }
  });
}

template <SoftmaxKind kKind, class T>
HWY_NOINLINE void backward_stripe(const Stripe& stripe, bool streams, const Rows<const T> (&in)[2],
                                  const Rows<const T> (&next)[2], const Rows<T>& dx) {
  using W = Wide<T>;
  constexpr bool kIsLog = kKind == SoftmaxKind::kLogSoftmaxBackward;
  Numbers<double> sums(0.0, stripe.columns);
  stripe.each_rows([&](auto count, int64_t r, int64_t n) HWY_ATTR {
    add_columns_of<W>(n, sums, [&](auto extent, int64_t c, size_t k, Vector<double>* sum) DESCEND_INLINED {
      each<count()>([&](size_t i) DESCEND_INLINED {
        const auto wide = [&](const Rows<const T>& from, Vector<double>* to) DESCEND_INLINED {
          const auto v = load(extent, from.row(r + static_cast<int64_t>(i)) + c, k);
          to_double<W, 1>(&v, to);
        };
        Vector<double> dy[kHalves<W>], y[kHalves<W>];
        wide(in[0], dy);
        if constexpr (!kIsLog) wide(in[1], y);
        each<kHalves<W>>([&](size_t h) DESCEND_INLINED {
          if constexpr (kIsLog) {
            sum[h] = hn::Add(sum[h], dy[h]);
          } else {
            sum[h] = hn::MulAdd(dy[h], y[h], sum[h]);
          }
        });
      });
    });
  });
  sums.join(stripe, std::plus<>());
  // The sum; of softmax with what it loses by its rounding.
  Numbers<W> high, low;
  bool fits = true;
  for (int64_t c = 0; c < whole_packs<W>(stripe.columns); ++c) {
    high.at[c] = static_cast<W>(sums.at[c]);
    low.at[c] = static_cast<W>(sums.at[c] - static_cast<double>(high.at[c]));
    fits = fits && std::abs(sums.at[c]) <= kMostSum<W>;
  }
  if (HWY_UNLIKELY(!fits)) return exact_stripe<kKind, T>(stripe, in, sums, dx);
  write_rows(streams, stripe, dx, next, [&](auto extent, int64_t r, int64_t c, size_t k) DESCEND_INLINED {
    const auto dy = load(extent, in[0].row(r) + c, k), y = load(extent, in[1].row(r) + c, k);
    const auto sum = load_numbers(high, c, k);
    if constexpr (kIsLog) return hn::NegMulAdd(exp<W>(y), sum, dy);
    const auto difference = hn::Sub(dy, sum);
    return hn::Mul(sizeof(T) == 2 ? difference : hn::Sub(difference, load_numbers(low, c, k)), y);
  });
}

// Matrices [first, end), which are small: some of them at a time are brought side by side, as one stripe.
template <SoftmaxKind kKind, class T>
void small_matrices(const SoftmaxColumns<T>& p, int64_t first, int64_t end) {
  constexpr int64_t kRoom = 4096;
  alignas(64) T from[is_backward(kKind) ? 2 : 1][kRoom], to[kRoom];
  const int64_t together = HWY_MIN(kMostColumns, kRoom / p.rows) / p.columns;
  for (int64_t m = first; m < end; m += together) {
    const int64_t n = HWY_MIN(together, end - m), width = n * p.columns;
    const auto each_row = [&](auto f) {
      for (int64_t i = 0; i < n; ++i) {
        for (int64_t r = 0; r < p.rows; ++r) f(m + i, r, r * width + i * p.columns);
      }
    };
    for (size_t k = 0; k < std::size(from); ++k) {
      each_row([&](int64_t matrix, int64_t r, int64_t at) {
        copy_few(p.in[k].at(matrix, 0).row(r), p.columns, from[k] + at);
      });
    }
    const Stripe stripe{p.rows, width, 1, 0};
    const Rows<const T> in{from[0], width};
    if constexpr (is_backward(kKind)) {
      backward_stripe<kKind, T>(stripe, false, {in, {from[1], width}}, {in, in}, {to, width});
    } else {
      forward_stripe<kKind, T>(stripe, false, in, in, {to, width});
    }
    each_row([&](int64_t matrix, int64_t r, int64_t at) { copy_few(to + at, p.columns, p.out.at(matrix, 0).row(r)); });
  }
}

// Stripes [first, end) of all matrices'.
template <SoftmaxKind kKind, class T>
void softmax_stripes(const SoftmaxColumns<T>& p, int64_t width, bool streams, int64_t first, int64_t end) {
  constexpr int64_t kSmall = 256;  // elements of a matrix
  if (p.joins_rows(p.columns) && p.rows * p.columns <= kSmall) return small_matrices<kKind>(p, first, end);
  const bool joins = p.joins_rows(p.columns);
  const int64_t joined = joins ? static_cast<int64_t>(kPackLanes<Wide<T>>) / p.columns : 1;
  const int64_t across = joins ? 1 : ceil_div(p.columns, width);
  for (int64_t i = first; i < end; ++i) {
    const int64_t matrix = i / across, column = i % across * width;
    const int64_t next_matrix = (i + 1) / across, next_column = (i + 1) % across * width;
    const Stripe stripe{p.rows / joined, joins ? joined * p.columns : HWY_MIN(width, p.columns - column), joined,
                        p.rows % joined * p.columns};
    const auto rows = [&](const auto& matrices, int64_t m, int64_t c) {
      auto made = matrices.at(m, c);
      made.stride *= joined;
      return made;
    };
    const Rows<T> out = rows(p.out, matrix, column);
    const Rows<const T> in = rows(p.in[0], matrix, column), next = rows(p.in[0], next_matrix, next_column);
    if constexpr (is_backward(kKind)) {
      backward_stripe<kKind, T>(stripe, streams, {in, rows(p.in[1], matrix, column)},
                                {next, rows(p.in[1], next_matrix, next_column)}, out);
    } else {
      forward_stripe<kKind, T>(stripe, streams, in, next, out);
    }
  }
  if (streams) flush_streams();
}

}  // namespace descend::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

namespace descend::kernels::DESCEND_TARGET {

template <SoftmaxKind kKind, class T>
void run_softmax(const SoftmaxColumns<T>& p) {
  constexpr auto kSize = static_cast<int64_t>(sizeof(T));
  constexpr int64_t kStreamed = is_backward(kKind) ? 3 : 2, kUnit = kPackLanes<Wide<T>>;
  const int64_t bytes = p.matrices * p.rows * p.columns * kSize;
  if (bytes == 0) return;
  const int64_t room =
      (kKind == SoftmaxKind::kSoftmax ? kKeptBytes : kStripeBytes) / static_cast<int64_t>(sizeof(Wide<T>));
  const int64_t width = std::clamp(room / (p.rows + 1) / kUnit * kUnit, kUnit, kMostColumns);
  const int64_t begins = reinterpret_cast<int64_t>(p.out.data) | p.out.stride * kSize | p.out.row_stride * kSize;
  const bool is_in_place = p.out.data == p.in[0].data || p.out.data == p.in[1].data;
  const bool streams = !is_in_place && begins % 64 == 0 && streams_results({kStreamed * bytes, bytes});
  const bool joins = p.joins_rows(p.columns);
  const int64_t across = joins ? 1 : ceil_div(p.columns, width), part = p.rows * HWY_MIN(width, p.columns);
  run_rows(p.matrices * across, part, row_work<T>((is_backward(kKind) ? 3 : 4) * part),
           [&](int64_t first, int64_t end) { softmax_stripes<kKind>(p, width, streams, first, end); });
}

template <class T>
void softmax_columns(const SoftmaxColumns<T>& p, SoftmaxKind kind) {
  switch (kind) {
    case SoftmaxKind::kSoftmax:
      return run_softmax<SoftmaxKind::kSoftmax>(p);
    case SoftmaxKind::kLogSoftmax:
      return run_softmax<SoftmaxKind::kLogSoftmax>(p);
    case SoftmaxKind::kSoftmaxBackward:
      return run_softmax<SoftmaxKind::kSoftmaxBackward>(p);
    case SoftmaxKind::kLogSoftmaxBackward:
      return run_softmax<SoftmaxKind::kLogSoftmaxBackward>(p);
  }
}

}  // namespace descend::kernels::DESCEND_TARGET

DESCEND_KERNEL(void, softmax_columns, (const SoftmaxColumns<T>& problem, SoftmaxKind kind), problem, kind)
