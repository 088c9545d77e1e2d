#include "kernels/scaled_masked_softmax_backward.h"

#include <algorithm>
#include <cmath>

#include "kernels/cut.h"
#include "runtime/parallel.h"

#define HWY_TARGET_INCLUDE "kernels/scaled_masked_softmax_backward.cpp"
#include "kernels/dispatch.h"
#include "kernels/mask-inl.h"
#include "kernels/pack-inl.h"

HWY_BEFORE_NAMESPACE();
namespace descend::kernels::HWY_NAMESPACE {

template <class T, class Extent>
HWY_INLINE void add_dot(Extent extent, const T* dy, const T* y, Pack<Wide<T>>& acc) {
  DESCEND_UNROLL
  for (size_t k = 0; k < kPackVectors<Wide<T>>; ++k) {
    acc.v[k] = hn::MulAdd(load(extent, dy, k), load(extent, y, k), acc.v[k]);
  }
}

// The sum of dy * y over a row, block by block. The y of the row `ahead` elements on comes into the cache meanwhile,
// its dy in the second pass, so that memory is never idle.
template <class T>
HWY_INLINE double row_dot(const T* dy, const T* y, int64_t ahead, int64_t columns) {
  using W = Wide<T>;
  constexpr int64_t kStep = kPackLanes<W>;
  double sum = 0;
  for (int64_t block = 0; block < columns; block += kBlock) {
    const int64_t stop = HWY_MIN(block + kBlock, columns);
    Pack<W> acc = zero_pack<W>();
    int64_t c = block;
    for (; c + kStep <= stop; c += kStep) {
      prefetch_pack(y + c, ahead);
      add_dot(Full(), dy + c, y + c, acc);
    }
    if (c < stop) add_dot(Part{static_cast<size_t>(stop - c)}, dy + c, y + c, acc);
    sum += static_cast<double>(fold(acc));
  }
  return sum;
}

// The sum in two parts: where dy nearly cancels it, the second keeps what the first has lost.
template <class W>
struct SplitSum {
  Vector<W> high;
  Vector<W> low;

  explicit SplitSum(double sum) {
    const W rounded = static_cast<W>(sum);
    const double rest = sum - static_cast<double>(rounded);
    high = splat(rounded);
    low = splat(std::isfinite(rest) ? static_cast<W>(rest) : W{0});
  }
};

// kFinite: the sum is no infinity, so that y can be factored out, which loses less where dy nearly cancels the sum.
template <bool kFinite, bool kStream, class T, class Extent>
HWY_INLINE void apply_pack(Extent extent, const T* dy, const T* y, const uint8_t* mask, const SplitSum<Wide<T>>& sum,
                           Vector<Wide<T>> scale, T* dx) {
  using W = Wide<T>;
  Pack<W> result;
  DESCEND_UNROLL
  for (size_t k = 0; k < kPackVectors<W>; ++k) {
    const auto dy_k = load(extent, dy, k), y_k = load(extent, y, k);
    const auto difference = kFinite ? hn::Mul(y_k, hn::Sub(hn::Sub(dy_k, sum.high), sum.low))
                                    : hn::Sub(hn::Mul(dy_k, y_k), hn::Mul(y_k, sum.high));
    const auto value = hn::Mul(difference, scale);
    result.v[k] = hn::IfThenZeroElse(load_mask<W>(extent, mask, k), value);
  }
  store<kStream>(extent, result, dx);
}

template <bool kFinite, bool kStream, class T>
HWY_NOINLINE void apply_row(const T* dy, const T* y, int64_t ahead, int64_t columns, const MaskCursor& mask, double sum,
                            Wide<T> scale, T* dx) {
  constexpr int64_t kStep = kPackLanes<Wide<T>>;
  HWY_ALIGN uint8_t buffer[kBlock];
  const SplitSum<Wide<T>> split(sum);
  const auto factor = splat(scale);
  for (int64_t block = 0; block < columns; block += kBlock) {
    const int64_t stop = HWY_MIN(block + kBlock, columns);
    const uint8_t* bytes = mask.columns(block, stop - block, buffer);
    int64_t c = block;
    for (; c + kStep <= stop; c += kStep, bytes += kStep) {
      prefetch_pack(dy + c, ahead);
      apply_pack<kFinite, kStream>(Full(), dy + c, y + c, bytes, split, factor, dx + c);
    }
    if (c < stop) {
      const Part part{static_cast<size_t>(stop - c)};
      apply_pack<kFinite, kStream>(part, dy + c, y + c, bytes, split, factor, dx + c);
    }
  }
}

template <bool kStream, class T>
HWY_INLINE void apply_tiles(const ScaledMaskedSoftmaxBackward<T>& p, int64_t first, int64_t last, int64_t tile) {
  const Wide<T> scale = static_cast<Wide<T>>(p.scale);
  MaskCursor mask(p.mask, first);
  double sums[kStripe];
  for (int64_t row = first; row < last; row += tile) {
    const int64_t rows = HWY_MIN(tile, last - row);
    const int64_t ahead = row + 2 * rows <= last ? rows : 0;
    for (int64_t r = 0; r < rows; ++r) {
      sums[r] = row_dot(p.dy.row(row + r), p.y.row(row + r), ahead * p.y.stride, p.columns);
    }
    for (int64_t r = 0; r < rows; ++r, mask.next()) {
      const auto apply = std::isinf(sums[r]) ? apply_row<false, kStream, T> : apply_row<true, kStream, T>;
      apply(p.dy.row(row + r), p.y.row(row + r), ahead * p.dy.stride, p.columns, mask, sums[r], scale,
            p.dx.row(row + r));
    }
  }
  if (kStream) flush_streams();
}

template <class T>
void softmax_backward_rows(const ScaledMaskedSoftmaxBackward<T>& p, int64_t first, int64_t last, int64_t tile,
                           bool stream) {
  stream ? apply_tiles<true>(p, first, last, tile) : apply_tiles<false>(p, first, last, tile);
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
    run(p, first, std::min(first + cut.chunk, p.rows), cut.tile, stream);
  });
}

template void scaled_masked_softmax_backward<float16>(const ScaledMaskedSoftmaxBackward<float16>& problem);
template void scaled_masked_softmax_backward<bfloat16>(const ScaledMaskedSoftmaxBackward<bfloat16>& problem);
template void scaled_masked_softmax_backward<float>(const ScaledMaskedSoftmaxBackward<float>& problem);
template void scaled_masked_softmax_backward<double>(const ScaledMaskedSoftmaxBackward<double>& problem);

}  // namespace descend::kernels
#endif  // HWY_ONCE
