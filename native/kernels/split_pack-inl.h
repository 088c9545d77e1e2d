// Split packs: of bfloat16 the even columns, then the odd ones. Two bfloat16 lie in a word, and taking them apart
// within it costs half as much as widening them in order. Of other types a split pack is the columns in order.
#if defined(DESCEND_KERNELS_SPLIT_PACK_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DESCEND_KERNELS_SPLIT_PACK_INL_H_
#undef DESCEND_KERNELS_SPLIT_PACK_INL_H_
#else
#define DESCEND_KERNELS_SPLIT_PACK_INL_H_
#endif

#include <bit>
#include <type_traits>

#include "kernels/pack-inl.h"

HWY_BEFORE_NAMESPACE();
namespace descend::kernels::HWY_NAMESPACE {

template <class T>
inline constexpr bool kSplits = HWY_TARGET != HWY_SCALAR && std::is_same_v<T, bfloat16>;

// Where a row has no more columns than half a pack, both halves of a split pack would be half empty: such rows are
// computed as of short_bfloat16, whose packs are in order, with whole vectors that are empty. `p` is the problem.
template <class T>
inline constexpr bool kIsShort = std::is_same_v<T, short_bfloat16>;
template <template <class> class Problem>
HWY_INLINE bool is_short(const Problem<bfloat16>& p) {
  return p.columns <= static_cast<int64_t>(kPackLanes<float> / 2);
}
template <template <class> class Problem>
HWY_INLINE Problem<short_bfloat16> shortened(const Problem<bfloat16>& p) {
  return std::bit_cast<Problem<short_bfloat16>>(p);
}

// The vectors of a pack that are stored together: pair i holds first and second.
template <class T>
inline constexpr size_t kVectorPairs = kPackVectors<Wide<T>> / 2;
template <class T>
constexpr size_t pair_first(size_t i) {
  return kSplits<T> ? i : 2 * i;
}
template <class T>
constexpr size_t pair_second(size_t i) {
  return kSplits<T> ? i + kVectorPairs<T> : 2 * i + 1;
}

// Vector i, 0 or 1, of a pair.
template <class T>
constexpr size_t pair_vector(size_t pair, size_t i) {
  return i == 0 ? pair_first<T>(pair) : pair_second<T>(pair);
}

#if HWY_TARGET != HWY_SCALAR
// Of words of two bfloat16 the even columns, or the odd ones.
HWY_INLINE Vector<float> even_columns(hn::Vec<Tag<uint32_t>> words) {
  return hn::BitCast(Tag<float>(), hn::ShiftLeft<16>(words));
}
HWY_INLINE Vector<float> odd_columns(hn::Vec<Tag<uint32_t>> words) {
  return hn::BitCast(Tag<float>(), hn::And(words, hn::Set(Tag<uint32_t>(), 0xFFFF0000)));
}

// The words of a pair of the split pack that starts at p.
template <class Extent>
HWY_INLINE hn::Vec<Tag<uint32_t>> load_words(Extent extent, const bfloat16* p, size_t pair) {
  return hn::BitCast(Tag<uint32_t>(), load_bits(extent, Bits16x2(), reinterpret_cast<const uint16_t*>(p), pair));
}
#endif

// Vector k of the split pack that starts at p.
template <class T, class Extent>
HWY_INLINE Vector<Wide<T>> load_split(Extent extent, const T* p, size_t k) {
#if HWY_TARGET != HWY_SCALAR
  if constexpr (kSplits<T>) {
    const auto words = load_words(extent, p, k % kVectorPairs<T>);
    return k < kVectorPairs<T> ? even_columns(words) : odd_columns(words);
  } else
#endif
    return load(extent, p, k);
}

// The vectors of the split pack that starts at p. With kOnce, AVX-512 keeps the words of two in a register: the
// compiler would rather load them anew for each, as a part of the instruction.
template <class T, class Extent, bool kOnce = true>
class SplitPack {
 public:
  HWY_INLINE SplitPack() {}  // as Pack's
  HWY_INLINE SplitPack(Extent extent, const T* p) : extent_(extent), p_(p) {
#if HWY_TARGET == HWY_AVX3
    if constexpr (kKeeps) {
      static_assert(kVectorPairs<T> == 1);
      auto words = load_words(extent, p, 0);
#if HWY_COMPILER_GCC
      asm("" : "+v"(words.raw));
#endif
      words_ = words;
    }
#endif
  }

  HWY_INLINE Vector<Wide<T>> operator[](size_t k) const {
#if HWY_TARGET == HWY_AVX3
    if constexpr (kKeeps) return k == 0 ? even_columns(words_) : odd_columns(words_);
#endif
    return load_split(extent_, p_, k);
  }

 private:
  static constexpr bool kKeeps = kOnce && kSplits<T>;

  Extent extent_;
  const T* p_;
#if HWY_TARGET == HWY_AVX3
  hn::Vec<Tag<uint32_t>> words_;
#endif
};

// Vector k of a split pack of T with `rest` in the lanes beyond the row.
template <class T>
HWY_INLINE Vector<Wide<T>> in_row(Full, Vector<Wide<T>> v, size_t, Vector<Wide<T>>) {
  return v;
}
template <class T>
HWY_INLINE Vector<Wide<T>> in_row(Part part, Vector<Wide<T>> v, size_t k, Vector<Wide<T>> rest) {
  const size_t columns = !kSplits<T> ? part.n : k < kVectorPairs<T> ? (part.n + 1) / 2 : part.n / 2;
  const size_t first = (kSplits<T> ? k % kVectorPairs<T> : k) * kVectorLanes<Wide<T>>;
  return hn::IfThenElse(hn::FirstN(Tag<Wide<T>>(), columns > first ? columns - first : 0), v, rest);
}

template <class T, class Extent>
HWY_INLINE Pack<Wide<T>> load_split(Extent extent, const T* p) {
  Pack<Wide<T>> pack;
  DESCEND_UNROLL
  for (size_t k = 0; k < kPackVectors<Wide<T>>; ++k) pack.v[k] = load_split(extent, p, k);
  return pack;
}

#if HWY_TARGET != HWY_SCALAR
// Even and odd columns as bfloat16, in order; to nearest even.
template <Nan kNan>
HWY_INLINE hn::Vec<Bits16x2> merge(Vector<float> even, Vector<float> odd) {
  const Bits16x2 d;
  const Tag<uint32_t> du;
  if constexpr (kNan == Nan::kAny) {
    return hn::OddEven(hn::BitCast(d, round_to_bfloat16(odd)),
                       hn::BitCast(d, hn::ShiftRight<16>(round_to_bfloat16(even))));
  } else {
    const auto even_bits = hn::BitCast(du, even), odd_bits = hn::BitCast(du, odd);
    const auto high = hn::OddEven(hn::BitCast(d, odd_bits), hn::BitCast(d, hn::ShiftRight<16>(even_bits)));
    const auto low = hn::OddEven(hn::BitCast(d, hn::ShiftLeft<16>(odd_bits)), hn::BitCast(d, even_bits));
    // What low + 0x7FFF + (high & 1) carries: the top bit of half of it.
    const auto sum = hn::AverageRound(low, hn::OrAnd(hn::Set(d, 0x7FFE), high, hn::Set(d, 1)));
    return hn::Add(high, hn::ShiftRight<15>(sum));
  }
}

// Vector k of a pack in 16-bit elements.
template <bool kStream, bool kQuarters = false>
HWY_INLINE void store_bits16(Full, hn::Vec<Bits16x2> bits, uint16_t* p, size_t k) {
  store_bits<kStream, kQuarters>(Bits16x2(), bits, p + k * hn::MaxLanes(Bits16x2()));
}
template <bool kStream, bool kQuarters = false>
HWY_INLINE void store_bits16(Part part, hn::Vec<Bits16x2> bits, uint16_t* p, size_t k) {
  const Bits16x2 d;
  constexpr size_t kLanes = hn::MaxLanes(Bits16x2());
  const size_t first = k * kLanes, n = HWY_MIN(part.n > first ? part.n - first : 0, kLanes);
  store_some<kStream>(d, bits, p + first, n);
}
#endif

// Stores a pair of vectors of a pack.
template <bool kStream, Nan kNan, bool kQuarters = false, class T, class Extent>
HWY_INLINE void store_split(Extent extent, Vector<Wide<T>> first, Vector<Wide<T>> second, T* p, size_t pair) {
#if HWY_TARGET != HWY_SCALAR
  if constexpr (kSplits<T>) {
    store_bits16<kStream, kQuarters>(extent, merge<kNan>(first, second), reinterpret_cast<uint16_t*>(p), pair);
    return;
  }
#endif
#if HWY_TARGET == HWY_AVX3
  // The conversion stores by itself, which saves merging the halves.
  if constexpr (std::is_same_v<T, float16> && std::is_same_v<Extent, Full> && !kStream) {
    const Bits16<float> d;
    uint16_t* bits = reinterpret_cast<uint16_t*>(p) + 2 * pair * hn::MaxLanes(d);
    hn::StoreU(narrow(T(), first), d, bits);
    hn::StoreU(narrow(T(), second), d, bits + hn::MaxLanes(d));
    return;
  }
#endif
  // bfloat16 gets here on targets that split nothing, with whatever NaN the parameters have.
  store_pair<kStream, kIsShort<T> ? kNan : Nan::kAny, kQuarters>(extent, first, second, p, 2 * pair);
}

// Vector k alone of a pack that is not split.
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

// A whole pack. What is stored as bfloat16 must come of bfloat16 operands alone: see Nan.
template <bool kStream = false, bool kQuarters = false, class T, class Extent>
HWY_INLINE void store_split(Extent extent, const Pack<Wide<T>>& pack, T* p) {
  DESCEND_UNROLL
  for (size_t pair = 0; pair < kVectorPairs<T>; ++pair) {
    store_split<kStream, Nan::kOfBfloat16, kQuarters>(extent, pack.v[pair_first<T>(pair)], pack.v[pair_second<T>(pair)],
                                                      p, pair);
  }
}

#if HWY_TARGET != HWY_SCALAR
// n columns in order into split packs; the last is filled up with zeros.
HWY_INLINE void split_row(const float* from, int64_t n, float* to) {
  constexpr int64_t kStep = kPackLanes<float>;
  constexpr size_t kLanes = kVectorLanes<float>, kCount = kVectorPairs<bfloat16>;
  for (int64_t c = 0; c < n; c += kStep, from += kStep, to += kStep) {
    const float* pack = from;
    HWY_ALIGN float padded[kStep];
    if (n - c < kStep) {
      store(Full(), load_pack(Part{static_cast<size_t>(n - c)}, from), padded);
      pack = padded;
    }
    DESCEND_UNROLL
    for (size_t i = 0; i < kCount; ++i) {
      Vector<float> even, odd;
      hn::LoadInterleaved2(Tag<float>(), pack + 2 * i * kLanes, even, odd);
      hn::StoreU(even, Tag<float>(), to + i * kLanes);
      hn::StoreU(odd, Tag<float>(), to + (i + kCount) * kLanes);
    }
  }
}

// n columns of split packs back into order, in place.
HWY_INLINE void merge_row(float* columns, int64_t n) {
  constexpr size_t kLanes = kVectorLanes<float>, kCount = kVectorPairs<bfloat16>;
  for (int64_t c = 0; c < n; c += kPackLanes<float>, columns += kPackLanes<float>) {
    const Pack<float> pack = load_pack(Full(), columns);
    DESCEND_UNROLL
    for (size_t i = 0; i < kCount; ++i) {
      hn::StoreInterleaved2(pack.v[i], pack.v[i + kCount], Tag<float>(), columns + 2 * i * kLanes);
    }
  }
}
#endif

// What lies beside vector k of a split pack of T, in split packs itself where T splits.
template <class T, class Extent>
HWY_INLINE Vector<Wide<T>> load_beside(Extent extent, const Wide<T>* p, size_t k) {
  if constexpr (kSplits<T>) return load(Full(), p, k);
  return load(extent, p, k);
}

}  // namespace descend::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // DESCEND_KERNELS_SPLIT_PACK_INL_H_
