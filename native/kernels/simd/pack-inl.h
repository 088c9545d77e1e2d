// Packs: the logical lanes that every row-wise kernel works in, the same on every target.
//
// A pack is 32 floats or 16 doubles, held in as many vectors as the target needs. Column j of a row is lane j % 32 of
// pack j / 32 whatever the target, so sums over lanes come out the same everywhere. Elements widen to float or double
// when they are loaded and are rounded to nearest even when they are stored.
#pragma once

#include <cstring>
#include <type_traits>

#include "hwy/cache_control.h"
#include "kernels/simd/dispatch.h"
#include "kernels/simd/element.h"

HWY_BEFORE_NAMESPACE();
namespace descend::kernels::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

template <class W>
using Tag = hn::ScalableTag<W>;
template <class W>
using Vector = hn::Vec<Tag<W>>;
template <class W>
inline constexpr size_t kVectorLanes = hn::MaxLanes(Tag<W>());
template <class W>
inline constexpr size_t kPackLanes = kPackBytes / sizeof(W);
template <class W>
inline constexpr size_t kPackVectors = kPackLanes<W> / kVectorLanes<W>;
template <class W>
inline constexpr size_t kPackPairs = kPackVectors<W> / 2;  // of vectors that are stored together

// The loops over a pack's vectors must be unrolled for the pack to live in registers.
#undef DESCEND_UNROLL
#if HWY_TARGET == HWY_SCALAR
#define DESCEND_UNROLL _Pragma("GCC unroll 1")
#elif HWY_COMPILER_CLANG
#define DESCEND_UNROLL _Pragma("clang loop unroll(full)")
#else
#define DESCEND_UNROLL _Pragma("GCC unroll 16")
#endif

// Of a lambda that must become a part of its caller, as the steps of each() must: the compiler, which inlines the less
// the larger a file grows, would call some of them, with all their vectors in memory.
#undef DESCEND_INLINED
#if HWY_COMPILER_MSVC
#define DESCEND_INLINED HWY_ATTR
#else
#define DESCEND_INLINED HWY_ATTR __attribute__((always_inline))
#endif

// f(0), f(1), ..., one after the other without a loop.
template <size_t kN, class F>
HWY_INLINE void each(F f) {
  DESCEND_UNROLL
  for (size_t k = 0; k < kN; ++k) f(k);
}

template <class W>
struct Pack {
  HWY_INLINE Pack() {}  // spelled out: an implicit one is compiled for the baseline, where NEON's vectors have none
  Vector<W> v[kPackVectors<W>];
};

// How much of a pack lies inside the row: all of it, or its first n lanes (the others load as zero, and are not
// stored).
struct Full {};
struct Part {
  size_t n;
};

template <class W>
HWY_INLINE Vector<W> splat(W value) {
  return hn::Set(Tag<W>(), value);
}

template <class W>
HWY_INLINE Pack<W> zero_pack() {
  Pack<W> pack;
  DESCEND_UNROLL
  for (size_t k = 0; k < kPackVectors<W>; ++k) pack.v[k] = hn::Zero(Tag<W>());
  return pack;
}

template <class W>
HWY_INLINE Pack<W> add(Pack<W> a, const Pack<W>& b) {
  DESCEND_UNROLL
  for (size_t k = 0; k < kPackVectors<W>; ++k) a.v[k] = hn::Add(a.v[k], b.v[k]);
  return a;
}

// ---- Raw loads: vector k of the pack that starts at p, in the element's own bits.

template <class D, class R = hn::TFromD<D>>
HWY_INLINE hn::Vec<D> load_bits(Full, D d, const R* p, size_t k) {
  return hn::LoadU(d, p + k * hn::MaxLanes(d));
}

// Fewer than 8 bytes as a number, the first lowest.
HWY_INLINE uint64_t load_bytes(const void* p, size_t n) {
  const auto* from = static_cast<const uint8_t*>(p);
  uint64_t bytes = 0;
  size_t done = 0;
  const auto add = [&](auto part) DESCEND_INLINED {
    if ((n & sizeof(part)) == 0) return;
    std::memcpy(&part, from + done, sizeof(part));
    bytes |= uint64_t{part} << (8 * done);
    done += sizeof(part);
  };
  add(uint32_t{});
  add(uint16_t{});
  add(uint8_t{});
  return bytes;
}

// The first n lanes, at most all of them; the others are zero, and nothing else is read.
template <class D, class R = hn::TFromD<D>>
HWY_INLINE hn::Vec<D> load_first(D d, const R* p, size_t n) {
#if HWY_TARGET == HWY_AVX3
  return hn::MaskedLoad(hn::FirstN(d, n), d, p);
#else
  if (n >= hn::MaxLanes(d)) return hn::LoadU(d, p);
  if (n == 0) return hn::Zero(d);
#if HWY_TARGET == HWY_AVX2
  constexpr size_t kBytes = hn::MaxLanes(d) * sizeof(R);
  if constexpr (kBytes <= 8) {
    using Bits = std::conditional_t<kBytes == 8, uint64_t, uint32_t>;
    static_assert(kBytes == sizeof(Bits));
    return hn::BitCast(d, hn::Set(hn::Repartition<Bits, D>(), static_cast<Bits>(load_bytes(p, n * sizeof(R)))));
  } else if constexpr (sizeof(R) >= 4) {
    return hn::MaskedLoad(hn::FirstN(d, n), d, p);
  } else {  // there are masks for words alone; one that is not whole is put into its place
    const hn::Repartition<uint32_t, D> words;
    constexpr size_t kElements = 4 / sizeof(R);
    const size_t whole = n / kElements;
    const auto front = hn::MaskedLoad(hn::FirstN(words, whole), words, reinterpret_cast<const uint32_t*>(p));
    const auto rest = static_cast<uint32_t>(load_bytes(p + whole * kElements, n % kElements * sizeof(R)));
    const auto place = hn::Eq(hn::Iota(words, 0), hn::Set(words, static_cast<uint32_t>(whole)));
    return hn::BitCast(d, hn::IfThenElse(place, hn::Set(words, rest), front));
  }
#else
  HWY_ALIGN R padded[hn::MaxLanes(D())] = {};
  for (size_t i = 0; i < n; ++i) padded[i] = p[i];
  return hn::Load(d, padded);
#endif
#endif
}

template <class D, class R = hn::TFromD<D>>
HWY_INLINE hn::Vec<D> load_bits(Part part, D d, const R* p, size_t k) {
  const size_t first = k * hn::MaxLanes(d);
  return load_first(d, p + first, part.n > first ? part.n - first : 0);
}

// Calls f(extent, column) for every pack of columns [begin, end); the extent of the last is `tail` where it is not
// full.
template <class W, class Rest, class F>
HWY_INLINE void for_each_pack(int64_t begin, int64_t end, const Rest& tail, F f) {
  constexpr int64_t kStep = kPackLanes<W>;
  int64_t c = begin;
  for (; c + kStep <= end; c += kStep) f(Full(), c);
  if (tail.n > 0) f(tail, c);
}
template <class W, class F>
HWY_INLINE void for_each_pack(int64_t begin, int64_t end, F f) {
  for_each_pack<W>(begin, end, Part{static_cast<size_t>(end - begin) % kPackLanes<W>}, f);
}

// How many of n elements lie before the first line of cache that begins among them.
template <class T>
HWY_INLINE int64_t before_line(const T* p, int64_t n) {
  return HWY_MIN(static_cast<int64_t>(-reinterpret_cast<uintptr_t>(p) % 64 / sizeof(T)), n);
}

// ---- float16 and bfloat16 to float, exactly.

template <class W>
using Bits16 = hn::Rebind<uint16_t, Tag<W>>;  // as many 16-bit lanes as a vector of W has

HWY_INLINE Vector<float> widen(bfloat16, hn::Vec<Bits16<float>> bits) {
  return hn::BitCast(Tag<float>(), hn::ShiftLeft<16>(hn::PromoteTo(Tag<uint32_t>(), bits)));
}

HWY_INLINE Vector<float> widen(float16, hn::Vec<Bits16<float>> bits) {
#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3 || HWY_ARCH_ARM_A64
  return hn::PromoteTo(Tag<float>(), hn::BitCast(hn::Rebind<hwy::float16_t, Tag<float>>(), bits));
#else
  const Tag<int32_t> di;
  const Tag<float> df;
  const auto wide = hn::PromoteTo(di, bits);
  const auto magnitude = hn::And(wide, hn::Set(di, 0x7FFF));
  const auto sign = hn::ShiftLeft<16>(hn::Xor(wide, magnitude));
  // Read as a float, the magnitude is too small by the difference of the exponents' biases, subnormals included.
  const auto scaled = hn::Mul(hn::BitCast(df, hn::ShiftLeft<13>(magnitude)), hn::Set(df, 0x1p112f));
  auto result = hn::BitCast(di, scaled);
  const auto special = hn::Or(result, hn::Set(di, 0x7F800000));
  result = hn::IfThenElse(hn::Gt(magnitude, hn::Set(di, 0x7BFF)), special, result);
  return hn::BitCast(df, hn::Or(result, sign));
#endif
}

template <class T, class Extent>
HWY_INLINE Vector<Wide<T>> load(Extent extent, const T* p, size_t k) {
  if constexpr (sizeof(T) == 2) {
    return widen(T(), load_bits(extent, Bits16<float>(), reinterpret_cast<const uint16_t*>(p), k));
  } else {
    return load_bits(extent, Tag<T>(), p, k);
  }
}

template <class T, class Extent>
HWY_INLINE Pack<Wide<T>> load_pack(Extent extent, const T* p) {
  Pack<Wide<T>> pack;
  DESCEND_UNROLL
  for (size_t k = 0; k < kPackVectors<Wide<T>>; ++k) pack.v[k] = load(extent, p, k);
  return pack;
}

// ---- float to float16 and bfloat16, to nearest even.

// What becomes of a NaN when it is rounded to bfloat16. One that comes of bfloat16 operands alone ends in 16 zeros,
// which leaves it as it is; any other must be looked for, lest it be rounded to infinity or past it.
enum class Nan { kAny, kOfBfloat16 };

// The bfloat16 in the upper half of each lane; the lower half is left over.
template <Nan kNan = Nan::kAny>
HWY_INLINE hn::Vec<Tag<uint32_t>> round_to_bfloat16(Vector<float> v) {
  const Tag<uint32_t> du;
  const auto bits = hn::BitCast(du, v);
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 1));
  const auto rounded = hn::Add(bits, hn::Add(odd, hn::Set(du, 0x7FFF)));
  if constexpr (kNan == Nan::kOfBfloat16) return rounded;
  const auto quiet = hn::Or(bits, hn::Set(du, 0x400000));
  return hn::IfThenElse(hn::RebindMask(du, hn::IsNaN(v)), quiet, rounded);
}

template <Nan kNan = Nan::kAny>
HWY_INLINE hn::Vec<Bits16<float>> narrow(bfloat16, Vector<float> v) {
  const Tag<int32_t> di;
  return hn::DemoteTo(Bits16<float>(), hn::BitCast(di, hn::ShiftRight<16>(round_to_bfloat16<kNan>(v))));
}

template <Nan = Nan::kAny>
HWY_INLINE hn::Vec<Bits16<float>> narrow(float16, Vector<float> v) {
#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3 || HWY_ARCH_ARM_A64
  return hn::BitCast(Bits16<float>(), hn::DemoteTo(hn::Rebind<hwy::float16_t, Tag<float>>(), v));
#else
  const Tag<int32_t> di;
  const Tag<float> df;
  const auto bits = hn::BitCast(di, v);
  const auto magnitude = hn::And(bits, hn::Set(di, 0x7FFFFFFF));
  const auto sign = hn::And(hn::ShiftRight<16>(bits), hn::Set(di, 0x8000));
  const auto odd = hn::And(hn::ShiftRight<13>(magnitude), hn::Set(di, 1));
  const auto normal = hn::ShiftRight<13>(hn::Add(hn::Sub(magnitude, hn::Set(di, (112 << 23) - 0xFFF)), odd));
  // Adding 0.5 leaves a multiple of 2^-24, the smallest float16, in the low bits, rounded by the hardware.
  const auto half = hn::Set(df, 0.5f);
  const auto subnormal = hn::Sub(hn::BitCast(di, hn::Add(hn::BitCast(df, magnitude), half)), hn::BitCast(di, half));
  auto result = hn::IfThenElse(hn::Lt(magnitude, hn::Set(di, 113 << 23)), subnormal, normal);
  result = hn::IfThenElse(hn::Gt(magnitude, hn::Set(di, 0x477FFFFF)), hn::Set(di, 0x7C00), result);
  const auto nan = hn::Or(hn::Set(di, 0x7E00), hn::And(hn::ShiftRight<13>(magnitude), hn::Set(di, 0x1FF)));
  result = hn::IfThenElse(hn::Gt(magnitude, hn::Set(di, 0x7F800000)), nan, result);
  return hn::DemoteTo(Bits16<float>(), hn::Or(result, sign));
#endif
}

#if HWY_TARGET != HWY_SCALAR
using Bits16x2 = hn::Repartition<uint16_t, Tag<float>>;  // a whole vector of 16-bit lanes

template <Nan kNan = Nan::kAny>
HWY_INLINE hn::Vec<Bits16x2> narrow_two(bfloat16, Vector<float> lo, Vector<float> hi) {
  const Bits16x2 d;
  return hn::ConcatOdd(d, hn::BitCast(d, round_to_bfloat16<kNan>(hi)), hn::BitCast(d, round_to_bfloat16<kNan>(lo)));
}
template <Nan = Nan::kAny>
HWY_INLINE hn::Vec<Bits16x2> narrow_two(float16, Vector<float> lo, Vector<float> hi) {
  return hn::Combine(Bits16x2(), narrow(float16(), hi), narrow(float16(), lo));
}
#endif

// Without vectors the plainest way through rows is as good as any: no others are compiled, which would take long.
inline constexpr bool kHasVectors = HWY_TARGET != HWY_SCALAR;

// ---- Stores. Streaming stores go past the caches, and flush_streams() must follow. p must be aligned to 64 bytes or,
// with kQuarters, which costs a check, to 16: what is stored soon after completes the line. One that is stored in part
// past the caches and in part as usual takes many times as long.

template <class D, class R = hn::TFromD<D>>
HWY_INLINE void stream_quarters(D d, hn::Vec<D> v, R* p) {
#if HWY_TARGET != HWY_SCALAR
  if constexpr (hn::MaxLanes(D()) * sizeof(R) > 16) {
    const hn::Half<D> half;
    stream_quarters(half, hn::LowerHalf(half, v), p);
    stream_quarters(half, hn::UpperHalf(half, v), p + hn::MaxLanes(half));
  } else
#endif
    hn::Stream(v, d, p);
}

template <bool kStream, bool kQuarters = false, class D, class R = hn::TFromD<D>>
HWY_INLINE void store_bits(D d, hn::Vec<D> v, R* p) {
  if constexpr (!kStream) {
    hn::StoreU(v, d, p);
  } else if (!kQuarters || HWY_LIKELY(reinterpret_cast<uintptr_t>(p) % (hn::MaxLanes(D()) * sizeof(R)) == 0)) {
    hn::Stream(v, d, p);
  } else {
    stream_quarters(d, v, p);
  }
}

// The first n lanes of v, at most all of them. (AMD's processors with AVX2 alone take long over a masked store.)
template <class D, class R = hn::TFromD<D>>
HWY_INLINE void store_first(D d, hn::Vec<D> v, R* p, size_t n) {
#if HWY_TARGET == HWY_AVX3
  hn::BlendedStore(v, hn::FirstN(d, n), d, p);
#else
  if (n >= hn::MaxLanes(d)) return hn::StoreU(v, d, p);
#if HWY_TARGET != HWY_SCALAR
  if constexpr (hn::MaxLanes(D()) > 1) {  // a half of them, a quarter, ...
    const hn::Half<D> half;
    constexpr size_t kHalf = hn::MaxLanes(half);
    if (n < kHalf) return store_first(half, hn::LowerHalf(half, v), p, n);
    hn::StoreU(hn::LowerHalf(half, v), half, p);
    store_first(half, hn::UpperHalf(half, v), p + kHalf, n - kHalf);
  }
#endif
#endif
}

// Stores n bytes, less than a line, past the caches, as whole words: n and `to` are multiples of 4.
#if HWY_ARCH_X86 && HWY_TARGET != HWY_SCALAR
inline constexpr bool kStreamsWords = true;
inline HWY_NOINLINE void stream_words(const uint8_t* from, uint8_t* to, size_t n) {
  const hn::FixedTag<uint8_t, 16> quarter;
  const auto stream_word = [&](size_t i) HWY_ATTR {
    int word;
    std::memcpy(&word, from + i, sizeof word);
    _mm_stream_si32(reinterpret_cast<int*>(to + i), word);
  };
  size_t i = 0;
  for (; i < n && reinterpret_cast<uintptr_t>(to + i) % 16 != 0; i += 4) stream_word(i);
  for (; i + 16 <= n; i += 16) hn::Stream(hn::LoadU(quarter, from + i), quarter, to + i);
  for (; i < n; i += 4) stream_word(i);
}
#else
inline constexpr bool kStreamsWords = false;
HWY_INLINE void stream_words(const uint8_t*, uint8_t*, size_t) {}
#endif

// The first n lanes of v, past the caches if they are words.
template <bool kStream, class D, class R = hn::TFromD<D>>
HWY_INLINE void store_some(D d, hn::Vec<D> v, R* p, size_t n) {
  if constexpr (kStream && kStreamsWords) {
    constexpr size_t kLanes = hn::MaxLanes(D());
    if (n == kLanes && reinterpret_cast<uintptr_t>(p) % (kLanes * sizeof(R)) == 0) return hn::Stream(v, d, p);
    if ((reinterpret_cast<uintptr_t>(p) | n * sizeof(R)) % 4 == 0) {
      HWY_ALIGN R lanes[hn::MaxLanes(D())];
      hn::Store(v, d, lanes);
      return stream_words(reinterpret_cast<const uint8_t*>(lanes), reinterpret_cast<uint8_t*>(p), n * sizeof(R));
    }
  }
  store_first(d, v, p, n);
}

// Vectors k and k + 1 of the pack that starts at p.
template <bool kStream = false, Nan kNan = Nan::kAny, bool kQuarters = false, class T>
HWY_INLINE void store_pair(Full, Vector<Wide<T>> lo, Vector<Wide<T>> hi, T* p, size_t k) {
  using W = Wide<T>;
  p += k * kVectorLanes<W>;
  if constexpr (sizeof(T) == 2) {
    uint16_t* bits = reinterpret_cast<uint16_t*>(p);
#if HWY_TARGET == HWY_SCALAR
    hn::StoreU(narrow<kNan>(T(), lo), Bits16<W>(), bits);
    hn::StoreU(narrow<kNan>(T(), hi), Bits16<W>(), bits + 1);
#else
#if HWY_TARGET == HWY_AVX3
    if constexpr (std::is_same_v<T, float16> && !kStream) {  // the conversion stores by itself
      hn::StoreU(narrow(T(), lo), Bits16<W>(), bits);
      return hn::StoreU(narrow(T(), hi), Bits16<W>(), bits + kVectorLanes<W>);
    }
#endif
    store_bits<kStream, kQuarters>(Bits16x2(), narrow_two<kNan>(T(), lo, hi), bits);
#endif
  } else {
    store_bits<kStream, kQuarters>(Tag<W>(), lo, p);
    store_bits<kStream, kQuarters>(Tag<W>(), hi, p + kVectorLanes<W>);
  }
}

template <bool kStream = false, Nan kNan = Nan::kAny, bool kQuarters = false, class T>
HWY_INLINE void store_pair(Part part, Vector<Wide<T>> lo, Vector<Wide<T>> hi, T* p, size_t k) {
  constexpr size_t kLanes = kVectorLanes<Wide<T>>;
  const size_t first = k * kLanes;
  const size_t n = HWY_MIN(part.n > first ? part.n - first : 0, 2 * kLanes);
#if HWY_TARGET == HWY_SCALAR
  HWY_ALIGN T both[2];
  store_pair<false, kNan>(Full(), lo, hi, both, 0);
  for (size_t i = 0; i < n; ++i) p[first + i] = both[i];
#else
  if constexpr (sizeof(T) == 2) {
    store_some<kStream>(Bits16x2(), narrow_two<kNan>(T(), lo, hi), reinterpret_cast<uint16_t*>(p + first), n);
  } else {
    store_some<kStream>(Tag<T>(), lo, p + first, HWY_MIN(n, kLanes));
    if (n > kLanes) store_some<kStream>(Tag<T>(), hi, p + first + kLanes, n - kLanes);
  }
#endif
}

// Vector k alone.
template <bool kStream, Nan kNan, class T>
HWY_INLINE void store_vector(Part part, Vector<Wide<T>> v, T* p, size_t k) {
  using W = Wide<T>;
  const size_t first = k * kVectorLanes<W>, n = HWY_MIN(part.n > first ? part.n - first : 0, kVectorLanes<W>);
  if constexpr (sizeof(T) == 2) {
    store_some<kStream>(Bits16<W>(), narrow<kNan>(T(), v), reinterpret_cast<uint16_t*>(p + first), n);
  } else {
    store_some<kStream>(Tag<W>(), v, p + first, n);
  }
}

template <bool kStream = false, Nan kNan = Nan::kAny, bool kQuarters = false, class Extent, class T>
HWY_INLINE void store(Extent extent, const Pack<Wide<T>>& pack, T* p) {
  DESCEND_UNROLL
  for (size_t k = 0; k < kPackVectors<Wide<T>>; k += 2) {
    store_pair<kStream, kNan, kQuarters>(extent, pack.v[k], pack.v[k + 1], p, k);
  }
}

// n numbers in the type of the arithmetic, to where whole packs have room: in vectors, as they are read again soon.
template <class T>
HWY_INLINE void widen_packs(const T* from, int64_t n, Wide<T>* to) {
  for_each_pack<Wide<T>>(
      0, n, [&](auto extent, int64_t j) DESCEND_INLINED { store(Full(), load_pack(extent, from + j), to + j); });
}

// A parameter of n columns in the type of the arithmetic; if it must be widened, to `room`, which has whole packs.
template <class T>
HWY_INLINE const Wide<T>* widened(const ColumnParameter<T>& from, int64_t n, Wide<T>* room) {
  if (sizeof(T) == sizeof(Wide<T>) || from.own == nullptr) return from.wide;
  widen_packs(from.own, n, room);
  return room;
}

}  // namespace descend::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
