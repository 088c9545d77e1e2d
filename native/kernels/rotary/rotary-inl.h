// Pairs that are turned: rows of them, on vectors of the arithmetic type.
#pragma once

#include "kernels/rotary/rotary.h"
#include "kernels/rows/stage-inl.h"

HWY_BEFORE_NAMESPACE();
namespace descend::kernels::HWY_NAMESPACE {

// Where the members of a row's pairs lie, from one pair on.
template <class T>
struct Members {
  T *a, *b;
};

// The pair (a, b) by its own numbers of cos and sin. kBack: by the transposed matrix, as the gradient is.
template <bool kBack, class V>
HWY_INLINE void turn(V a, V b, V cos_a, V cos_b, V sin_a, V sin_b, V& to_a, V& to_b) {
  if constexpr (kBack) {
    to_a = hn::MulAdd(a, cos_a, hn::Mul(b, sin_b));
    to_b = hn::MulSub(b, cos_b, hn::Mul(a, sin_a));
  } else {
    to_a = hn::MulSub(a, cos_a, hn::Mul(b, sin_a));
    to_b = hn::MulAdd(b, cos_b, hn::Mul(a, sin_b));
  }
}

#if HWY_TARGET != HWY_SCALAR
// (-b, a) of each two neighbours (a, b); kBack: (b, -a).
template <bool kBack, class W>
HWY_INLINE Vector<W> quarter_turn(Vector<W> v) {
  const Tag<W> d;
  const auto zero = hn::Zero(d), minus = hn::Set(d, W{-0.0});
  return hn::Xor(hn::Reverse2(d, v), kBack ? hn::OddEven(minus, zero) : hn::OddEven(zero, minus));
}
#endif

// The same as turn() of two vectors of neighbours.
template <bool kBack, class W>
HWY_INLINE void turn_neighbours(const Vector<W> (&v)[2], const Vector<W> (&cos)[2], const Vector<W> (&sin)[2],
                                Vector<W> (&to)[2]) {
#if HWY_TARGET == HWY_SCALAR
  turn<kBack>(v[0], v[1], cos[0], cos[1], sin[0], sin[1], to[0], to[1]);
#else
  each<2>([&](size_t l) DESCEND_INLINED {
    const auto other =
        kBack ? quarter_turn<true, W>(hn::Mul(v[l], sin[l])) : hn::Mul(quarter_turn<false, W>(v[l]), sin[l]);
    to[l] = hn::MulAdd(v[l], cos[l], other);
  });
#endif
}

// Two vectors of a row, from number k on.
template <class T, class Extent>
HWY_INLINE void load_two(Extent extent, const T* p, size_t k, Vector<Wide<T>> (&to)[2]) {
  each<2>([&](size_t l) DESCEND_INLINED { to[l] = load(extent, p, k + l); });
}

// Calls f(extent, j, k) for vectors k and k + 1 of the pack at j, for all of n elements.
template <class W, class F>
HWY_INLINE void for_each_two(int64_t n, F f) {
  for_each_pack<W>(0, n, [&](auto extent, int64_t j) DESCEND_INLINED {
    each<kPackPairs<W>>([&](size_t i) DESCEND_INLINED { f(extent, j, 2 * i); });
  });
}

// Calls f(count, extent, j) for `count` vectors at j, a constant, for all of n elements: for two as long as there are
// two, then for one. A half of a head of 32 is one vector of AVX-512, which as a part of a pack took twice as long.
template <class W, class F>
HWY_INLINE void for_two_or_one(int64_t n, F f) {
  constexpr int64_t kLanes = kVectorLanes<W>;
  int64_t j = 0;
  for (; j + 2 * kLanes <= n; j += 2 * kLanes) f(std::integral_constant<size_t, 2>(), Full(), j);
  if (j + kLanes <= n) {
    f(std::integral_constant<size_t, 1>(), Full(), j);
    j += kLanes;
  }
  if (j < n) f(std::integral_constant<size_t, 1>(), Part{static_cast<size_t>(n - j)}, j);
}

// As many vectors as for_two_or_one() has.
template <class Extent, class V, class T>
HWY_INLINE void store_two_or_one(Extent extent, const V (&v)[2], T* p) {
  store_pair<false, Nan::kOfBfloat16>(extent, v[0], v[1], p, 0);
}
template <class V, class T>
HWY_INLINE void store_two_or_one(Full, const V (&v)[1], T* p) {
  if constexpr (sizeof(T) == 2) {
    hn::StoreU(narrow<Nan::kOfBfloat16>(T(), v[0]), Bits16<Wide<T>>(), reinterpret_cast<uint16_t*>(p));
  } else {
    hn::StoreU(v[0], Tag<T>(), p);
  }
}
template <class V, class T>
HWY_INLINE void store_two_or_one(Part part, const V (&v)[1], T* p) {
  store_vector<false, Nan::kOfBfloat16>(part, v[0], p, 0);
}

// n pairs as halves.
template <bool kBack, class T>
HWY_INLINE void turn_halves(const Members<const T>& from, const Members<const T>& cos, const Members<const T>& sin,
                            const Members<T>& to, int64_t n) {
  using V = Vector<Wide<T>>;
  for_two_or_one<Wide<T>>(n, [&](auto count, auto extent, int64_t j) DESCEND_INLINED {
    V a[count], b[count];
    each<count>([&](size_t l) DESCEND_INLINED {
      const auto at = [&](const T* p) DESCEND_INLINED { return load(extent, p + j, l); };
      turn<kBack>(at(from.a), at(from.b), at(cos.a), at(cos.b), at(sin.a), at(sin.b), a[l], b[l]);
    });
    store_two_or_one(extent, a, to.a + j);
    store_two_or_one(extent, b, to.b + j);
  });
}

// n elements, in pairs of neighbours.
template <bool kBack, class T>
HWY_INLINE void turn_row_of_neighbours(const T* from, const T* cos, const T* sin, T* to, int64_t n) {
  using W = Wide<T>;
  for_each_two<W>(n, [&](auto extent, int64_t j, size_t k) DESCEND_INLINED {
    Vector<W> v[2], c[2], s[2], result[2];
    load_two(extent, from + j, k, v);
    load_two(extent, cos + j, k, c);
    load_two(extent, sin + j, k, s);
    turn_neighbours<kBack, W>(v, c, s, result);
    store_pair<false, Nan::kOfBfloat16>(extent, result[0], result[1], to + j, k);
  });
}

// n pairs of neighbours to where their members lie apart, and back.
template <class T>
using BitsOf = std::conditional_t<sizeof(T) == 2, uint16_t, T>;
template <class T>
HWY_INLINE void part_pairs(const T* from, int64_t n, const Members<T>& to) {
  using Bits = BitsOf<T>;
  const Tag<Bits> d;
  const auto* p = reinterpret_cast<const Bits*>(from);
  auto *a = reinterpret_cast<Bits*>(to.a), *b = reinterpret_cast<Bits*>(to.b);
  constexpr int64_t kStep = kVectorLanes<Bits>;
  int64_t i = 0;
  for (; i + kStep <= n; i += kStep) {
    Vector<Bits> even, odd;
    hn::LoadInterleaved2(d, p + 2 * i, even, odd);
    hn::StoreU(even, d, a + i);
    hn::StoreU(odd, d, b + i);
  }
  for (; i < n; ++i) a[i] = p[2 * i], b[i] = p[2 * i + 1];
}
template <class T>
HWY_INLINE void join_pairs(const Members<const T>& from, int64_t n, T* to) {
  using Bits = BitsOf<T>;
  const Tag<Bits> d;
  auto* p = reinterpret_cast<Bits*>(to);
  const auto *a = reinterpret_cast<const Bits*>(from.a), *b = reinterpret_cast<const Bits*>(from.b);
  constexpr int64_t kStep = kVectorLanes<Bits>;
  int64_t i = 0;
  for (; i + kStep <= n; i += kStep) hn::StoreInterleaved2(hn::LoadU(d, a + i), hn::LoadU(d, b + i), d, p + 2 * i);
  for (; i < n; ++i) p[2 * i] = a[i], p[2 * i + 1] = b[i];
}

// Pair j of a row of halves.
template <class T>
HWY_INLINE Members<T> halves(T* row, int64_t columns, int64_t j) {
  return {row + j, row + columns / 2 + j};
}

// A row of pairs that are neighbours on one side alone: through a buffer, in which they are halves.
template <bool kBack, class T>
HWY_INLINE void turn_mixed(const T* from, const T* cos, const T* sin, T* to, int64_t columns) {
  alignas(64) T a[kSpanPairs], b[kSpanPairs];
  for (int64_t j = 0; j < columns / 2; j += kSpanPairs) {
    const int64_t n = HWY_MIN(kSpanPairs, columns / 2 - j);
    const auto c = halves(cos, columns, j), s = halves(sin, columns, j);
    if constexpr (kBack) {
      turn_halves<true, T>(halves(from, columns, j), c, s, {a, b}, n);
      join_pairs<T>({a, b}, n, to + 2 * j);
    } else {
      part_pairs<T>(from + 2 * j, n, {a, b});
      turn_halves<false, T>({a, b}, c, s, halves(to, columns, j), n);
    }
  }
}

}  // namespace descend::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
