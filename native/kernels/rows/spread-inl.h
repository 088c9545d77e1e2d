// Short rows that lie one after the other: what is done to each element alone is done to all rows of a tile as if they
// were one, in whole vectors. What differs from row to row is spread over the rows' elements first.
#pragma once

#include <algorithm>
#include <type_traits>

#include "kernels/simd/doubles-inl.h"
#include "kernels/simd/fold_rows-inl.h"
#include "kernels/simd/pack-inl.h"

HWY_BEFORE_NAMESPACE();
namespace descend::kernels::HWY_NAMESPACE {

// Whether vector k of a pack has any column of the row.
template <class W>
HWY_INLINE constexpr bool reaches(Full, size_t) {
  return true;
}
template <class W, class Rest>
HWY_INLINE bool reaches(const Rest& rest, size_t k) {
  return rest.n > k * kVectorLanes<W>;
}

// ---- Columns across rows: where a row has very few columns, a vector holds one column of as many rows as it has
// lanes.

// Columns of such a row at most.
inline constexpr int64_t kNarrowColumns = 4;

// f(columns), the number a constant.
template <class F>
HWY_INLINE void with_columns(int64_t columns, F f) {
  switch (columns) {
    case 1:
      return f(std::integral_constant<size_t, 1>());
    case 2:
      return f(std::integral_constant<size_t, 2>());
    case 3:
      return f(std::integral_constant<size_t, 3>());
    default:
      return f(std::integral_constant<size_t, 4>());
  }
}

// v[c]: column c of the rows that begin at p.
template <size_t kColumns, class D, class W = hn::TFromD<D>>
HWY_INLINE void load_columns(D d, const W* p, hn::Vec<D>* v) {
  static_assert(kColumns <= kNarrowColumns);
  if constexpr (kColumns == 1) v[0] = hn::LoadU(d, p);
  if constexpr (kColumns == 2) hn::LoadInterleaved2(d, p, v[0], v[1]);
  if constexpr (kColumns == 3) hn::LoadInterleaved3(d, p, v[0], v[1], v[2]);
  if constexpr (kColumns == 4) hn::LoadInterleaved4(d, p, v[0], v[1], v[2], v[3]);
}

// The same number in every column of a row.
template <size_t kColumns, class W>
HWY_INLINE void fill_columns(Vector<W> v, W* p) {
  const Tag<W> d;
  if constexpr (kColumns == 1) hn::StoreU(v, d, p);
  if constexpr (kColumns == 2) hn::StoreInterleaved2(v, v, d, p);
  if constexpr (kColumns == 3) hn::StoreInterleaved3(v, v, v, d, p);
  if constexpr (kColumns == 4) hn::StoreInterleaved4(v, v, v, v, d, p);
}

// The tree over a row's columns that fold() has for a pack. Columns that the row has not are neutral.
template <size_t kColumns, class V, class Op>
HWY_INLINE V fold_columns(const V* v, Op op) {
  if constexpr (kColumns == 1) return v[0];
  if constexpr (kColumns == 2) return op(v[0], v[1]);
  if constexpr (kColumns == 3) return op(op(v[0], v[2]), v[1]);
  if constexpr (kColumns == 4) return op(op(v[0], v[2]), op(v[1], v[3]));
}

// ---- A tile in the type of its arithmetic, row behind row without gaps. It has room for a pack behind its last row.

template <class T>
HWY_NOINLINE void read_tile(const Rows<const T>& from, int64_t rows, int64_t columns, Wide<T>* to) {
  if (from.stride == columns) return widen_packs(from.data, rows * columns, to);
  for (int64_t r = 0; r < rows; ++r) widen_packs(from.row(r), columns, to + r * columns);
}

template <class T>
HWY_NOINLINE void write_tile(const Wide<T>* from, int64_t rows, int64_t columns, const Rows<T>& to) {
  using W = Wide<T>;
  if (to.stride == columns) {
    for_each_pack<W>(0, rows * columns,
                     [&](auto extent, int64_t c) HWY_ATTR { store(extent, load_pack(Full(), from + c), to.data + c); });
  } else {
    for (int64_t r = 0; r < rows; ++r) {
      for_each_pack<W>(0, columns, [&](auto extent, int64_t c) HWY_ATTR {
        store(extent, load_pack(Full(), from + r * columns + c), to.row(r) + c);
      });
    }
  }
}

// The columns behind the last whole pack of many rows of a tile.
template <class W>
struct Inside {
  size_t n;
  hn::Mask<Tag<W>> lanes[kPackVectors<W>];

  HWY_INLINE explicit Inside(int64_t columns) : n(static_cast<size_t>(columns) % kPackLanes<W>) {
    each<kPackVectors<W>>([&](size_t k) DESCEND_INLINED {
      const size_t first = k * kVectorLanes<W>;
      lanes[k] = hn::FirstN(Tag<W>(), n > first ? n - first : 0);
    });
  }
};

// v in the lanes of vector k that lie inside the row, `outside` in the others.
template <class W>
HWY_INLINE Vector<W> inside_or(Full, size_t, Vector<W> v, Vector<W>) {
  return v;
}
template <class W>
HWY_INLINE Vector<W> inside_or(Part part, size_t k, Vector<W> v, Vector<W> outside) {
  const size_t first = k * kVectorLanes<W>;
  return hn::IfThenElse(hn::FirstN(Tag<W>(), part.n > first ? part.n - first : 0), v, outside);
}
template <class W>
HWY_INLINE Vector<W> inside_or(const Inside<W>& tail, size_t k, Vector<W> v, Vector<W> outside) {
  return hn::IfThenElse(tail.lanes[k], v, outside);
}

// to[r] = the sum of row r, of very few columns. `to`, which is aligned, has room for whole folds of rows.
template <class W>
HWY_INLINE void sum_narrow(const W* p, int64_t rows, int64_t columns, W* to) {
  const Tag<W> d;
  with_columns(columns, [&](auto count) HWY_ATTR {
    constexpr size_t kColumns = decltype(count)::value;
    for (int64_t r = 0; r < rows; r += kVectorLanes<W>) {
      Vector<W> v[kColumns];
      load_columns<kColumns>(d, p + r * static_cast<int64_t>(kColumns), v);
      each<kColumns>([&](size_t c) DESCEND_INLINED { v[c] = hn::Add(hn::Zero(d), v[c]); });  // of -0 it makes 0
      hn::Store(fold_columns<kColumns>(v, Sum()), d, to + r);
    }
  });
  for (int64_t r = rows; r % kFoldRows<W> != 0; ++r) to[r] = W{0};
}

// to[r] = the sum of row r, in the tree of a pack's lanes. `to`, which is aligned, has room for whole folds of rows.
template <class W>
HWY_NOINLINE void sum_tile(const W* p, int64_t rows, int64_t columns, W* to) {
  const Tag<W> d;
  constexpr int64_t kLanes = kVectorLanes<W>;
  if (columns <= kNarrowColumns) return sum_narrow(p, rows, columns, to);
  // Of so few vectors the tree is the same whether a pack has them or two, and whatever else a pack has is 0.
  const auto of_vectors = [&](auto count) DESCEND_INLINED {
    constexpr size_t kCount = decltype(count)::value;
    hn::Mask<Tag<W>> inside[kCount];
    each<kCount>([&](size_t k) DESCEND_INLINED {
      const int64_t rest = columns - static_cast<int64_t>(k) * kLanes;
      inside[k] = hn::FirstN(d, static_cast<size_t>(HWY_MAX(rest, int64_t{0})));
    });
    fold_each_row(
        rows,
        [&](int64_t r) DESCEND_INLINED {
          Vector<W> v[kCount];
          each<kCount>([&](size_t k) DESCEND_INLINED {
            const W* at = p + r * columns + static_cast<int64_t>(k) * kLanes;
            v[k] = hn::IfThenElseZero(inside[k], hn::LoadU(d, at));
          });
          return fold_to_vector<W>(v);
        },
        to);
  };
  if (columns <= kLanes) return of_vectors(std::integral_constant<size_t, 1>());
  if (columns <= 2 * kLanes) return of_vectors(std::integral_constant<size_t, 2>());
  if (columns <= 4 * kLanes) return of_vectors(std::integral_constant<size_t, 4>());
  const Inside<W> tail(columns);
  for_each_fold<W>(rows, [&](int64_t row, int64_t n, Vector<W>* lanes) HWY_ATTR {
    for (int64_t r = 0; r < n; ++r, p += columns) {
      Pack<W> acc = zero_pack<W>();
      for_each_pack<W>(0, columns, tail, [&](auto extent, int64_t c) HWY_ATTR {
        DESCEND_UNROLL
        for (size_t k = 0; k < kPackVectors<W>; ++k) {
          if (!reaches<W>(extent, k)) break;
          const auto v = hn::LoadU(d, p + c + k * kVectorLanes<W>);
          acc.v[k] = hn::Add(acc.v[k], inside_or<W>(extent, k, v, hn::Zero(d)));
        }
      });
      lanes[r] = fold_to_vector<W>(acc.v, Sum());
    }
    fold_rows<W>(lanes, to + row);
  });
}

// ---- Numbers of rows and of columns beside the elements of a tile.

// A number for each element of a tile of short rows.
template <class T, int64_t kElements>
class Spread {
  using W = Wide<T>;

 public:
  HWY_INLINE Spread() {}

  // A row's number for each of its elements. of_row has room for whole packs, and is used as it is where that does.
  HWY_NOINLINE void fill(const W* of_row, int64_t rows, int64_t columns) {
    from_ = values_;
    if (columns == 1) {
      from_ = of_row;
      return;
    }
    if (columns <= kNarrowColumns) return fill_narrow(of_row, rows, columns);
    for (int64_t r = 0; r < rows; ++r) {
      const auto value = splat(of_row[r]);
      fill(value, r * columns, columns, values_);
    }
  }

  // Another number for one element, where rows have more than one.
  HWY_INLINE void put(int64_t element, W value) { values_[element] = value; }

  // Of vector k of the pack that begins at an element.
  HWY_INLINE Vector<W> at(int64_t element, size_t k) const {
    return hn::LoadU(Tag<W>(), from_ + element + k * kVectorLanes<W>);
  }

 private:
  static constexpr size_t kSize = kElements + 2 * kPackLanes<W>;

  // Whole vectors: what they write behind the row is the next row's, and written after it.
  static HWY_INLINE void fill(Vector<W> value, int64_t begin, int64_t n, W* to) {
    for (int64_t c = 0; c < n; c += kVectorLanes<W>) hn::StoreU(value, Tag<W>(), to + begin + c);
  }

  HWY_INLINE void fill_narrow(const W* of_row, int64_t rows, int64_t columns) {
    with_columns(columns, [&](auto count) HWY_ATTR {
      constexpr size_t kColumns = decltype(count)::value;
      for (int64_t r = 0; r < rows; r += kVectorLanes<W>) {
        fill_columns<kColumns>(hn::LoadU(Tag<W>(), of_row + r), values_ + r * static_cast<int64_t>(kColumns));
      }
    });
  }

  const W* from_ = values_;
  HWY_ALIGN W values_[kSize];
};

}  // namespace descend::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
