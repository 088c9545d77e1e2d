// Rows of rotary position embedding's gradient: dx, and terms of dcos and dsin added to sums.
#pragma once

#include "kernels/rotary/rotary-inl.h"

HWY_BEFORE_NAMESPACE();
namespace descend::kernels::HWY_NAMESPACE {

// Adds dy * x to the sums, or begins them with it.
template <bool kFirst, class W, class V>
HWY_INLINE void add_product(V dy, V x, W* sums) {
  const Tag<W> d;
  hn::StoreU(kFirst ? hn::Mul(dy, x) : hn::MulAdd(dy, x, hn::LoadU(d, sums)), d, sums);
}

// One row's part of dx and of the sums, n pairs as halves. sums: those of dcos' two halves and dsin's, each `room`
// long.
template <bool kFirst, class T>
HWY_INLINE void grad_halves(const Members<const T>& dy, const Members<const T>& x, const Members<const T>& cos,
                            const Members<const T>& sin, const Members<T>& dx, int64_t n, Wide<T>* sums, int64_t room) {
  using W = Wide<T>;
  for_two_or_one<W>(n, [&](auto count, auto extent, int64_t j) DESCEND_INLINED {
    Vector<W> a[count], b[count];
    each<count>([&](size_t l) DESCEND_INLINED {
      const auto at = [&](const T* p) DESCEND_INLINED { return load(extent, p + j, l); };
      const auto da = at(dy.a), db = at(dy.b), xa = at(x.a), xb = at(x.b);
      W* const to = sums + j + l * kVectorLanes<W>;
      add_product<kFirst>(da, xa, to);
      add_product<kFirst>(db, xb, to + room);
      add_product<kFirst>(da, hn::Neg(xb), to + 2 * room);
      add_product<kFirst>(db, xa, to + 3 * room);
      turn<true>(da, db, at(cos.a), at(cos.b), at(sin.a), at(sin.b), a[l], b[l]);
    });
    store_two_or_one(extent, a, dx.a + j);
    store_two_or_one(extent, b, dx.b + j);
  });
}

// The same of n elements, in pairs of neighbours. sums: dcos' and dsin's.
template <bool kFirst, class T>
HWY_INLINE void grad_neighbours(const T* dy, const T* x, const T* cos, const T* sin, T* dx, int64_t n, Wide<T>* sums,
                                int64_t room) {
  using W = Wide<T>;
  for_each_two<W>(n, [&](auto extent, int64_t j, size_t k) DESCEND_INLINED {
    Vector<W> v[2], u[2], turned[2], c[2], s[2], result[2];
    load_two(extent, dy + j, k, v);
    load_two(extent, x + j, k, u);
    load_two(extent, cos + j, k, c);
    load_two(extent, sin + j, k, s);
#if HWY_TARGET == HWY_SCALAR
    turned[0] = hn::Neg(u[1]), turned[1] = u[0];
#else
    each<2>([&](size_t l) DESCEND_INLINED { turned[l] = quarter_turn<false, W>(u[l]); });
#endif
    each<2>([&](size_t l) DESCEND_INLINED {
      W* const to = sums + j + (k + l) * kVectorLanes<W>;
      add_product<kFirst>(v[l], u[l], to);
      add_product<kFirst>(v[l], turned[l], to + room);
    });
    turn_neighbours<true, W>(v, c, s, result);
    store_pair<false, Nan::kOfBfloat16>(extent, result[0], result[1], dx + j, k);
  });
}

// n pairs of a row, from pair j on.
template <bool kFirst, class T>
HWY_INLINE void grad_row(Pairing pairing, const T* dy, const T* x, const T* cos, const T* sin, T* dx, int64_t columns,
                         int64_t j, int64_t n, Wide<T>* sums, int64_t room) {
  if (pairing == Pairing::kNeighbours) {
    return grad_neighbours<kFirst>(dy + 2 * j, x + 2 * j, cos + 2 * j, sin + 2 * j, dx + 2 * j, 2 * n, sums, room);
  }
  const auto d = halves(dy, columns, j), c = halves(cos, columns, j), s = halves(sin, columns, j);
  if (pairing == Pairing::kHalves) {
    return grad_halves<kFirst, T>(d, halves(x, columns, j), c, s, halves(dx, columns, j), n, sums, room);
  }
  alignas(64) T room_of[4][kSpanPairs];
  const Members<T> parted{room_of[0], room_of[1]}, result{room_of[2], room_of[3]};
  part_pairs(x + 2 * j, n, parted);
  grad_halves<kFirst, T>(d, {parted.a, parted.b}, c, s, result, n, sums, room);
  join_pairs<T>({result.a, result.b}, n, dx + 2 * j);
}

}  // namespace descend::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
