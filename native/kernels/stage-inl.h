// Results on their way to memory past the caches, where their rows are not aligned.
#if defined(DESCEND_KERNELS_STAGE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DESCEND_KERNELS_STAGE_INL_H_
#undef DESCEND_KERNELS_STAGE_INL_H_
#else
#define DESCEND_KERNELS_STAGE_INL_H_
#endif

#include <cstring>

#include "kernels/pack-inl.h"
#include "kernels/stores.h"

HWY_BEFORE_NAMESPACE();
namespace descend::kernels::HWY_NAMESPACE {

// Copies n bytes, less than a line.
HWY_INLINE void copy_part(const uint8_t* from, uint8_t* to, size_t n) {
#if HWY_TARGET == HWY_AVX3
  const hn::ScalableTag<uint8_t> d;
  const auto first = hn::FirstN(d, n % 64);
  hn::BlendedStore(hn::MaskedLoad(first, d, from), first, d, to);
#else
  std::memcpy(to, from, n);
#endif
}

// Copies n bytes, past the caches but for the ends, which share a line with others.
HWY_INLINE void copy_lines(const uint8_t* from, uint8_t* to, size_t n) {
  const hn::ScalableTag<uint8_t> d;
  const size_t head = HWY_MIN(-reinterpret_cast<uintptr_t>(to) % 64, n);
  copy_part(from, to, head);
  size_t i = head;
  for (; i + 64 <= n; i += 64) {
    DESCEND_UNROLL
    for (size_t k = 0; k < 64; k += hn::MaxLanes(d)) store_bits<true>(d, hn::LoadU(d, from + i + k), to + i + k);
  }
  copy_part(from + i, to + i, n - i);
}

template <class T>
inline constexpr int64_t kLineElements = 64 / sizeof(T);

// Room for results of so many elements, on their way to rows that are not aligned.
template <class T, int64_t kElements>
class Stage {
 public:
  HWY_INLINE Stage() {}

  // Rows of n columns: aligned, but without gaps where those at `to` have none: these are copied as one, and share
  // lines.
  HWY_INLINE Rows<T> rows(const Rows<T>& to, int64_t n) {
    return {lines_, to.stride == n ? n : ceil_div(n, kLine) * kLine};
  }

  HWY_INLINE void stream(const Rows<T>& from, const Rows<T>& to, int64_t rows, int64_t n) {
    if (from.stride == n && to.stride == n) {
      n *= rows;
      rows = 1;
    }
    for (int64_t r = 0; r < rows; ++r) {
      copy_lines(reinterpret_cast<const uint8_t*>(from.row(r)), reinterpret_cast<uint8_t*>(to.row(r)),
                 static_cast<size_t>(n) * sizeof(T));
    }
  }

 private:
  static constexpr int64_t kLine = kLineElements<T>;

  alignas(64) T lines_[kElements];
};

// write(rows, kStream) stores `rows` rows of n columns that belong at `to`.
template <class T, class Stage, class Write>
HWY_INLINE void store_rows(Stores stores, const Rows<T>& to, int64_t rows, int64_t n, Stage& stage, Write write) {
  if (stores == Stores::kStream) return write(to, std::true_type());
  if (stores == Stores::kPlain) return write(to, std::false_type());
  const Rows<T> staged = stage.rows(to, n);
  write(staged, std::false_type());
  stage.stream(staged, to, rows, n);
}

}  // namespace descend::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // DESCEND_KERNELS_STAGE_INL_H_
