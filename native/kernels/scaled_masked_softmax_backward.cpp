#include "kernels/scaled_masked_softmax_backward.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/cut.h"
#include "runtime/parallel.h"

#define HWY_TARGET_INCLUDE "kernels/scaled_masked_softmax_backward.cpp"
#include "kernels/dispatch.h"
#include "kernels/mask-inl.h"
#include "kernels/pack-inl.h"
#include "kernels/split_pack-inl.h"

HWY_BEFORE_NAMESPACE();
namespace descend::kernels::HWY_NAMESPACE {

// How a row's gradient is computed from its sum. The usual way takes the scale into the difference: the fewest
// operations and roundings. It would overflow or underflow early for a scale that is large or tiny, where it is a
// factor of its own, and a sum that is an infinity leaves only the formula as it stands.
enum class Form : uint8_t { kFolded, kFactored, kExpanded, kNone };

// The number that dy is compared with, in two parts: where dy nearly cancels it, the second keeps what the first has
// lost, unless the rounding of a 16-bit result hides that.
template <class W>
struct Comparand {
  Form form;
  W high;
  W low;

  Comparand() = default;
  Comparand(double sum, W scale) {
    const W size = scale < W{0} ? -scale : scale;
    form = size >= W{0x1p-64} && size <= W{1} ? Form::kFolded : Form::kFactored;
    const double factor = form == Form::kFolded ? static_cast<double>(scale) : 1.0;
    high = static_cast<W>(sum * factor);
    const double rest = std::fma(sum, factor, -static_cast<double>(high));
    low = std::isfinite(rest) ? static_cast<W>(rest) : W{0};
    if (std::isinf(high)) {
      form = Form::kExpanded;
      high = static_cast<W>(sum);
    }
  }
};

template <class T>
struct SoftmaxRow {
  const T* dy;
  const T* y;
  T* dx;
};

// One pass over the columns: what is left to do for a row whose sum is known, and meanwhile the sum of dy * y, block by
// block, of the next one. So reading and writing go on all the time, side by side.
template <Form kForm, bool kNext, bool kStream, class T>
HWY_NOINLINE double pass(const SoftmaxRow<T>& row, const Comparand<Wide<T>>& by, Wide<T> scale, const MaskCursor& mask,
                         const SoftmaxRow<T>& next, int64_t columns, int64_t ahead_dy, int64_t ahead_y) {
  using W = Wide<T>;
  constexpr int64_t kStep = kPackLanes<W>;
  const auto high = splat(by.high), low = splat(by.low), factor = splat(scale);
  const auto apply = [&](auto extent, int64_t c, const uint8_t* bytes) HWY_ATTR {
    const Pack<W> dy = load_split(extent, row.dy + c), y = load_split(extent, row.y + c);
    Pack<W> result;
    DESCEND_UNROLL
    for (size_t k = 0; k < kPackVectors<W>; ++k) {
      if constexpr (kForm == Form::kFolded) {
        const auto difference = hn::MulSub(dy.v[k], factor, high);
        result.v[k] = hn::Mul(sizeof(T) == 2 ? difference : hn::Sub(difference, low), y.v[k]);
      } else {
        const auto difference = kForm == Form::kFactored ? hn::Mul(y.v[k], hn::Sub(hn::Sub(dy.v[k], high), low))
                                                         : hn::Sub(hn::Mul(dy.v[k], y.v[k]), hn::Mul(y.v[k], high));
        result.v[k] = hn::Mul(difference, factor);
      }
    }
    store_unmasked<kStream>(extent, result, bytes, row.dx + c);
  };
  const auto add_dot = [&](auto extent, int64_t c, Pack<W>& acc) HWY_ATTR {
    const Pack<W> dy = load_split(extent, next.dy + c), y = load_split(extent, next.y + c);
    DESCEND_UNROLL
    for (size_t k = 0; k < kPackVectors<W>; ++k) acc.v[k] = hn::MulAdd(dy.v[k], y.v[k], acc.v[k]);
  };
  HWY_ALIGN uint8_t buffer[kForm == Form::kNone ? 1 : kBlock];
  double sum = 0;
  for (int64_t block = 0; block < columns; block += kBlock) {
    const int64_t stop = HWY_MIN(block + kBlock, columns);
    const uint8_t* bytes = nullptr;
    if constexpr (kForm != Form::kNone) bytes = mask.columns(block, stop - block, buffer);
    Pack<W> acc = zero_pack<W>();
    const auto both = [&](auto extent, int64_t c) HWY_ATTR {
      if constexpr (kForm != Form::kNone) apply(extent, c, bytes + (c - block));
      if constexpr (kNext) add_dot(extent, c, acc);
    };
    int64_t c = block;
    for (; c + kStep <= stop; c += kStep) {
      if (kNext && kStream) {  // what does not fit in the caches comes from far away
        prefetch_pack(next.dy + c, ahead_dy);
        prefetch_pack(next.y + c, ahead_y);
      }
      both(Full(), c);
    }
    if (c < stop) both(Part{static_cast<size_t>(stop - c)}, c);
    if constexpr (kNext) sum += static_cast<double>(fold(acc));
  }
  return sum;
}

template <bool kStream, class T>
HWY_INLINE void all_rows(const ScaledMaskedSoftmaxBackward<T>& p, int64_t first, int64_t last) {
  using W = Wide<T>;
  // A NaN for a scale might not be one that could come of bfloat16.
  const W scale = std::isnan(p.scale) ? std::numeric_limits<W>::quiet_NaN() : static_cast<W>(p.scale);
  const auto row_at = [&](int64_t r) { return SoftmaxRow<T>{p.dy.row(r), p.y.row(r), p.dx.row(r)}; };
  MaskCursor mask(p.mask, first);
  SoftmaxRow<T> row = row_at(first);
  double sum = pass<Form::kNone, true, false>(row, {}, scale, mask, row, p.columns, 0, 0);
  for (int64_t r = first; r < last; ++r, mask.next()) {
    const Comparand<W> by(sum, scale);
    const SoftmaxRow<T> next = r + 1 < last ? row_at(r + 1) : row;
    if (by.form == Form::kFolded && r + 1 < last) {
      const bool more = r + 2 < last;
      sum = pass<Form::kFolded, true, kStream>(row, by, scale, mask, next, p.columns, more ? p.dy.stride : 0,
                                               more ? p.y.stride : 0);
    } else {
      const auto apply = by.form == Form::kFolded     ? pass<Form::kFolded, false, false, T>
                         : by.form == Form::kFactored ? pass<Form::kFactored, false, false, T>
                                                      : pass<Form::kExpanded, false, false, T>;
      apply(row, by, scale, mask, next, p.columns, 0, 0);
      if (r + 1 < last) sum = pass<Form::kNone, true, false>(next, {}, scale, mask, next, p.columns, 0, 0);
    }
    row = next;
  }
  if (kStream) flush_streams();
}

template <class T>
void softmax_backward_rows(const ScaledMaskedSoftmaxBackward<T>& p, int64_t first, int64_t last, bool stream) {
  stream ? all_rows<true>(p, first, last) : all_rows<false>(p, first, last);
}

}  // namespace descend::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace descend::kernels {

template <class T>
void scaled_masked_softmax_backward(const ScaledMaskedSoftmaxBackward<T>& p) {
  static const auto run = DESCEND_CHOOSE(softmax_backward_rows<T>);
  if (p.rows <= 0 || p.columns <= 0) return;
  const int64_t size = static_cast<int64_t>(sizeof(T));
  const int64_t output_bytes = p.rows * p.columns * size;
  const bool stream = stream_output(p.dx.data, p.dx.stride * size, 3 * output_bytes);
  const LooseRows cut = cut_loose_rows(p.rows, 2 * p.columns * size);
  parallel_for(cut.chunks, 3 * output_bytes, [&](int64_t chunk) {
    const int64_t first = chunk * cut.chunk;
    run(p, first, std::min(first + cut.chunk, p.rows), stream);
  });
}

template void scaled_masked_softmax_backward<float16>(const ScaledMaskedSoftmaxBackward<float16>& problem);
template void scaled_masked_softmax_backward<bfloat16>(const ScaledMaskedSoftmaxBackward<bfloat16>& problem);
template void scaled_masked_softmax_backward<float>(const ScaledMaskedSoftmaxBackward<float>& problem);
template void scaled_masked_softmax_backward<double>(const ScaledMaskedSoftmaxBackward<double>& problem);

}  // namespace descend::kernels
#endif  // HWY_ONCE
