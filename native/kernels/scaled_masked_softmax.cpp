#include "kernels/scaled_masked_softmax.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/cut.h"
#include "runtime/parallel.h"

#define HWY_TARGET_INCLUDE "kernels/scaled_masked_softmax.cpp"
#include "kernels/dispatch.h"
#include "kernels/exp-inl.h"
#include "kernels/mask-inl.h"
#include "kernels/pack-inl.h"

HWY_BEFORE_NAMESPACE();
namespace descend::kernels::HWY_NAMESPACE {

// The exponentials of a row no longer than this are kept between the passes; those of a longer one are computed twice.
inline constexpr int64_t kKeptColumns = 8192;

template <class W>
HWY_INLINE Vector<W> inside_or(Full, size_t, Vector<W> v, W) {
  return v;
}
// v in the lanes of vector k that lie inside the row, `outside` in the others.
template <class W>
HWY_INLINE Vector<W> inside_or(Part part, size_t k, Vector<W> v, W outside) {
  const Tag<W> d;
  const size_t first = k * kVectorLanes<W>;
  return hn::IfThenElse(hn::FirstN(d, part.n > first ? part.n - first : 0), v, hn::Set(d, outside));
}

template <class W>
inline constexpr W kMasked = W{-10000};
template <class W>
inline constexpr W kLowest = -std::numeric_limits<W>::infinity();

// Calls f(extent, column, the column's mask bytes) for every pack of columns [begin, end), at most a block.
template <class W, class F>
HWY_INLINE void for_each_pack(const MaskCursor& mask, int64_t begin, int64_t end, F f) {
  constexpr int64_t kStep = kPackLanes<W>;
  HWY_ALIGN uint8_t buffer[kBlock];
  const uint8_t* bytes = mask.columns(begin, end - begin, buffer);
  int64_t c = begin;
  for (; c + kStep <= end; c += kStep, bytes += kStep) f(Full(), c, bytes);
  if (c < end) f(Part{static_cast<size_t>(end - c)}, c, bytes);
}

// The largest z of a row; where a NaN is among them, anything: the sum then is NaN.
template <class T>
HWY_INLINE Wide<T> row_max(const T* x, int64_t columns, const MaskCursor& mask, Wide<T> scale) {
  using W = Wide<T>;
  const auto factor = splat(scale);
  Pack<W> top;
  for (size_t k = 0; k < kPackVectors<W>; ++k) top.v[k] = splat(kLowest<W>);
  for (int64_t block = 0; block < columns; block += kBlock) {
    for_each_pack<W>(mask, block, HWY_MIN(block + kBlock, columns),
                     [&](auto extent, int64_t c, const uint8_t* bytes) HWY_ATTR {
                       DESCEND_UNROLL
                       for (size_t k = 0; k < kPackVectors<W>; ++k) {
                         const auto z = hn::Mul(load(extent, x + c, k), factor);
                         const auto masked = hn::IfThenElse(load_open<W>(extent, bytes, k), z, splat(kMasked<W>));
                         top.v[k] = hn::Max(top.v[k], inside_or(extent, k, masked, kLowest<W>));
                       }
                     });
  }
  auto best = top.v[0];
  for (size_t k = 1; k < kPackVectors<W>; ++k) best = hn::Max(best, top.v[k]);
  return hn::GetLane(hn::MaxOfLanes(Tag<W>(), best));
}

// Beyond this the roundings of max, a product with the scale, leave differences whose exp is far from 1.
template <class W>
inline constexpr W kFarOut = sizeof(W) == 4 ? W{0x1p30} : W{0x1p59};

// exp(z - max) of one pack; the product with the scale is not rounded on its own, unless the row is far out: then as
// max is, lest none of them be near it.
template <class T, class Extent>
HWY_INLINE Pack<Wide<T>> exp_pack(Extent extent, const T* x, const uint8_t* bytes, Vector<Wide<T>> scale,
                                  Vector<Wide<T>> max, bool far_out) {
  using W = Wide<T>;
  Pack<W> result;
  const auto masked = hn::Sub(splat(kMasked<W>), max);
  DESCEND_UNROLL
  for (size_t k = 0; k < kPackVectors<W>; ++k) {
    const auto v = load(extent, x, k);
    const auto z = far_out ? hn::Sub(hn::Mul(v, scale), max) : hn::MulSub(v, scale, max);
    const auto centred = hn::IfThenElse(load_open<W>(extent, bytes, k), z, masked);
    result.v[k] = exp<W>(inside_or(extent, k, centred, kLowest<W>));
  }
  return result;
}

// The quotients, given 1 / by: one correction makes them what a division, which is slow, would give.
template <class W>
HWY_INLINE Pack<W> divided(Pack<W> pack, Vector<W> by, Vector<W> reciprocal) {
  DESCEND_UNROLL
  for (size_t k = 0; k < kPackVectors<W>; ++k) {
    const auto quotient = hn::Mul(pack.v[k], reciprocal);
    pack.v[k] = hn::MulAdd(hn::NegMulAdd(quotient, by, pack.v[k]), reciprocal, quotient);
  }
  return pack;
}

template <bool kKeep, bool kStream, class T>
HWY_INLINE void softmax_row(const T* x, int64_t ahead, int64_t columns, const MaskCursor& mask, Wide<T> scale,
                            Wide<T>* kept, T* y) {
  using W = Wide<T>;
  const auto factor = splat(scale);
  const W top = row_max(x, columns, mask, scale);
  const auto max = splat(top);
  const bool far_out = std::abs(top) >= kFarOut<W>;
  double sum = 0;
  for (int64_t block = 0; block < columns; block += kBlock) {
    Pack<W> acc = zero_pack<W>();
    for_each_pack<W>(mask, block, HWY_MIN(block + kBlock, columns),
                     [&](auto extent, int64_t c, const uint8_t* bytes) HWY_ATTR {
                       const Pack<W> e = exp_pack(extent, x + c, bytes, factor, max, far_out);
                       DESCEND_UNROLL
                       for (size_t k = 0; k < kPackVectors<W>; ++k) acc.v[k] = hn::Add(acc.v[k], e.v[k]);
                       if (kKeep) store(Full(), e, kept + c);
                     });
    sum += static_cast<double>(fold(acc));
  }
  const auto total = splat(static_cast<W>(sum));
  const auto reciprocal = hn::Div(splat(W{1}), total);
  for (int64_t block = 0; block < columns; block += kBlock) {
    for_each_pack<W>(
        mask, block, HWY_MIN(block + kBlock, columns), [&](auto extent, int64_t c, const uint8_t* bytes) HWY_ATTR {
          prefetch_pack(x + c, ahead);
          const Pack<W> e = kKeep ? load_pack(Full(), kept + c) : exp_pack(extent, x + c, bytes, factor, max, far_out);
          store<kStream>(extent, divided<W>(e, total, reciprocal), y + c);
        });
  }
}

template <bool kKeep, bool kStream, class T>
HWY_INLINE void softmax_all(const ScaledMaskedSoftmax<T>& p, int64_t first, int64_t last) {
  HWY_ALIGN Wide<T> kept[kKeep ? kKeptColumns : 1];
  const Wide<T> scale = static_cast<Wide<T>>(p.scale);
  MaskCursor mask(p.mask, first);
  for (int64_t row = first; row < last; ++row, mask.next()) {
    const int64_t ahead = row + 1 < last ? p.x.stride : 0;
    softmax_row<kKeep, kStream>(p.x.row(row), ahead, p.columns, mask, scale, kept, p.y.row(row));
  }
  if (kStream) flush_streams();
}

template <class T>
void softmax_rows(const ScaledMaskedSoftmax<T>& p, int64_t first, int64_t last, bool stream) {
  if (p.columns > kKeptColumns) {
    stream ? softmax_all<false, true>(p, first, last) : softmax_all<false, false>(p, first, last);
  } else {
    stream ? softmax_all<true, true>(p, first, last) : softmax_all<true, false>(p, first, last);
  }
}

}  // namespace descend::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace descend::kernels {

template <class T>
void scaled_masked_softmax(const ScaledMaskedSoftmax<T>& p) {
  static const auto run = DESCEND_CHOOSE(softmax_rows<T>);
  if (p.rows <= 0 || p.columns <= 0) return;
  const int64_t size = static_cast<int64_t>(sizeof(T));
  const int64_t output_bytes = p.rows * p.columns * size;
  const bool stream = stream_output(p.y.data, p.y.stride * size, 2 * output_bytes);
  const LooseRows cut = cut_loose_rows(p.rows, p.columns * size);
  parallel_for(cut.chunks, 2 * output_bytes, [&](int64_t chunk) {
    const int64_t first = chunk * cut.chunk;
    run(p, first, std::min(first + cut.chunk, p.rows), stream);
  });
}

template void scaled_masked_softmax<float16>(const ScaledMaskedSoftmax<float16>& problem);
template void scaled_masked_softmax<bfloat16>(const ScaledMaskedSoftmax<bfloat16>& problem);
template void scaled_masked_softmax<float>(const ScaledMaskedSoftmax<float>& problem);
template void scaled_masked_softmax<double>(const ScaledMaskedSoftmax<double>& problem);

}  // namespace descend::kernels
#endif  // HWY_ONCE
