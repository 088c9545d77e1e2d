#include "kernels/scaled_masked_softmax.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>
#include <type_traits>

#include "kernels/cut.h"
#include "kernels/stores.h"
#include "runtime/parallel.h"

#define HWY_TARGET_INCLUDE "kernels/scaled_masked_softmax.cpp"
#include "kernels/dispatch.h"
#include "kernels/exp-inl.h"
#include "kernels/fold_rows-inl.h"
#include "kernels/mask-inl.h"
#include "kernels/pack-inl.h"
#include "kernels/spread-inl.h"
#include "kernels/stage-inl.h"

HWY_BEFORE_NAMESPACE();
namespace descend::kernels::HWY_NAMESPACE {

// The exponentials of a row no longer than this are kept between the passes; those of a longer one are computed twice.
inline constexpr int64_t kKeptColumns = 8192;
// Of a tile, which a first-level cache holds beside what it is read from and written to.
inline constexpr int64_t kKeptBytes = int64_t{8} << 10;

template <class W>
inline constexpr W kMasked = W{-10000};
template <class W>
inline constexpr W kLowest = -std::numeric_limits<W>::infinity();

// The scaled and masked elements of vector k of a pack.
template <class T, class Extent>
HWY_INLINE Vector<Wide<T>> scores(Extent extent, const T* x, const uint8_t* bytes, size_t k, Vector<Wide<T>> scale) {
  using W = Wide<T>;
  return hn::IfThenElse(load_open<W>(extent, bytes, k), hn::Mul(load(extent, x, k), scale), splat(kMasked<W>));
}

// The scale, in two units: of scores, and of the powers of two that elements of 16 bits are taken to.
template <class T>
struct Scale {
  using W = Wide<T>;
  static constexpr bool kBrief = sizeof(T) == 2;
  static constexpr double kPerLn2 = std::numbers::log2e;

  // Largest score of a row that is far out: it has another way to its exponentials. Otherwise the roundings of max, a
  // product with the scale, leave differences whose exp is far from 1; of 16 bits, what is masked may count.
  static constexpr W kFarOut = kBrief ? W{0x1p10} : sizeof(W) == 4 ? W{0x1p30} : W{0x1p59};

  explicit HWY_INLINE Scale(W scale) : factor(splat(scale)) {
    const W product = static_cast<W>(static_cast<double>(scale) * (kBrief ? kPerLn2 : 1.0));
    power = splat(product);
    far_out = splat(std::isfinite(product) ? kFarOut : W{0});
  }

  HWY_INLINE bool is_negative() const { return hn::GetLane(factor) < 0; }

  // Whether a row is far out, given its largest score.
  HWY_INLINE bool is_far(W max) const { return std::abs(max) >= hn::GetLane(far_out); }

  // Whether any of these is.
  HWY_INLINE bool any_far(const W* max, int64_t rows) const {
    const Tag<W> d;
    auto far = hn::FirstN(d, 0);
    for (int64_t r = 0; r < rows; r += kVectorLanes<W>) {
      far = hn::Or(far, hn::Ge(hn::Abs(hn::Load(d, max + r)), far_out));
    }
    return !hn::AllFalse(d, far);
  }

  Vector<W> factor, power, far_out;
};

// exp(z - max) of a vector; the product with the scale is not rounded on its own, unless the row is far out (which none
// is where not kFar): then as max is, lest none of them be near it.
template <bool kFar, class T, class Extent>
HWY_INLINE Vector<Wide<T>> exps(Extent extent, const T* x, const uint8_t* bytes, size_t k, const Scale<T>& scale,
                                Vector<Wide<T>> max) {
  using W = Wide<T>;
  const auto v = load(extent, x, k), masked = hn::Sub(splat(kMasked<W>), max);
  auto open = load_open<W>(extent, bytes, k);
  const auto far = kFar ? hn::Ge(hn::Abs(max), scale.far_out) : hn::FirstN(Tag<W>(), 0);
  const auto rounded = [&]() DESCEND_INLINED { return hn::Sub(hn::Mul(v, scale.factor), max); };
  if constexpr (Scale<T>::kBrief) {
    const auto per_ln2 = splat(static_cast<W>(Scale<T>::kPerLn2));
    auto t = hn::MulSub(v, scale.power, hn::Mul(max, per_ln2));
    if (kFar) {
      t = hn::IfThenElse(far, hn::Mul(hn::IfThenElse(open, rounded(), masked), per_ln2), t);
      open = hn::Or(open, far);
    }
    return brief_power_of_two(t, open);
  } else {
    auto z = hn::MulSub(v, scale.factor, max);
    if (kFar) z = hn::IfThenElse(far, rounded(), z);
    return exp<W, true>(hn::IfThenElse(open, z, masked));
  }
}

// The quotient, given 1 / by: one correction makes it what a division, which is slow, would give.
template <class W>
HWY_INLINE Vector<W> divided(Vector<W> v, Vector<W> by, Vector<W> reciprocal) {
  const auto quotient = hn::Mul(v, reciprocal);
  return hn::MulAdd(hn::NegMulAdd(quotient, by, v), reciprocal, quotient);
}

// What the rows of a tile are divided by.
template <class W>
struct RowTotals {
  HWY_ALIGN W total[kTileRows<W>];
  HWY_ALIGN W reciprocal[kTileRows<W>];

  HWY_INLINE RowTotals() {}
  HWY_INLINE RowTotals(const double* sums, int64_t rows) {
    for_each_row_vector(
        rows, [&](int64_t r) HWY_ATTR { store_rounded(Tag<double>(), hn::Load(Tag<double>(), sums + r), total + r); });
    invert(rows);
  }

  HWY_INLINE void invert(int64_t rows) {
    const Tag<W> d;
    for (int64_t r = 0; r < rows; r += kVectorLanes<W>) {
      hn::Store(hn::Div(splat(W{1}), hn::Load(d, total + r)), d, reciprocal + r);
    }
  }
};

// ---- Rows of any length, one after the other.

// What a row has of elements that are not masked: in one lane or another the extreme one, infinity where there is none;
// and whether any is masked. Where a NaN is among them, anything: the sum then is NaN.
template <class W>
struct Extreme {
  Vector<W> lanes;
  bool masked;
};

// The largest elements or the smallest, as Op has it.
template <class Op, class T>
class ExtremeOf {
  using W = Wide<T>;

 public:
  HWY_INLINE ExtremeOf() {
    for (auto& v : best_.v) v = splat(kNone);
    closed_ = hn::Zero(D8());
  }

  template <class Extent>
  HWY_INLINE void add(Extent extent, const T* x, const uint8_t* bytes) {
    DESCEND_UNROLL
    for (size_t k = 0; k < kPackVectors<W>; ++k) {
      const auto closed = load_bits(extent, D8(), bytes, k);
      closed_ = hn::Or(closed_, closed);
      const auto v = hn::IfThenElse(zero_bytes(Tag<W>(), closed), load(extent, x, k), splat(kNone));
      best_.v[k] = Op()(best_.v[k], inside_or<W>(extent, k, v, splat(kNone)));
    }
  }

  HWY_INLINE Extreme<W> result() {
    return {fold_to_vector<W>(best_.v, Op()), !hn::AllTrue(D8(), hn::Eq(closed_, hn::Zero(D8())))};
  }

 private:
  using D8 = hn::Rebind<uint8_t, Tag<W>>;
  static constexpr W kNone = std::is_same_v<Op, Largest> ? kLowest<W> : -kLowest<W>;

  Pack<W> best_;
  hn::Vec<D8> closed_;
};

#if HWY_TARGET != HWY_SCALAR
// Of 16-bit elements the bits themselves are compared, as integers whose order is that of the numbers: those of a
// negative one are turned round but for the sign. It takes a third of the time.
template <class Op, class T>
  requires(sizeof(T) == 2)
class ExtremeOf<Op, T> {
  using D = hn::RebindToSigned<Bits16x2>;
  using D8 = hn::Rebind<uint8_t, D>;
  static constexpr size_t kVectors = kPackLanes<float> / hn::MaxLanes(D());

 public:
  HWY_INLINE ExtremeOf() {
    for (auto& v : best_) v = hn::Set(D(), kNone);
    closed_ = hn::Zero(D8());
  }

  template <class Extent>
  HWY_INLINE void add(Extent extent, const T* x, const uint8_t* bytes) {
    DESCEND_UNROLL
    for (size_t k = 0; k < kVectors; ++k) {
      const auto closed = load_bits(extent, D8(), bytes, k);
      closed_ = hn::Or(closed_, closed);
      const auto order = turned(load_bits(extent, D(), reinterpret_cast<const int16_t*>(x), k));
      best_[k] = Op()(best_[k], hn::IfThenElse(inside(extent, k, zero_bytes(D(), closed)), order, hn::Set(D(), kNone)));
    }
  }

  HWY_INLINE Extreme<float> result() {
    DESCEND_UNROLL
    for (size_t k = 1; k < kVectors; ++k) best_[0] = Op()(best_[0], best_[k]);
    const auto bits = hn::BitCast(Bits16x2(), turned(best_[0]));
    const hn::Half<Bits16x2> half;
    return {Op()(widen(T(), hn::LowerHalf(half, bits)), widen(T(), hn::UpperHalf(half, bits))),
            !hn::AllTrue(D8(), hn::Eq(closed_, hn::Zero(D8())))};
  }

 private:
  static constexpr int16_t kInfinity = std::is_same_v<T, float16> ? 0x7C00 : 0x7F80;
  static constexpr int16_t kNone = std::is_same_v<Op, Largest> ? ~kInfinity : kInfinity;

  static HWY_INLINE hn::Vec<D> turned(hn::Vec<D> bits) {
    return hn::Xor(bits, hn::And(hn::ShiftRight<15>(bits), hn::Set(D(), 0x7FFF)));
  }

  static HWY_INLINE hn::Mask<D> inside(Full, size_t, hn::Mask<D> open) { return open; }
  static HWY_INLINE hn::Mask<D> inside(Part part, size_t k, hn::Mask<D> open) {
    const size_t first = k * hn::MaxLanes(D());
    return hn::And(open, hn::FirstN(D(), part.n > first ? part.n - first : 0));
  }

  hn::Vec<D> best_[kVectors];
  hn::Vec<D8> closed_;
};
#endif

template <class Op, class T>
HWY_NOINLINE Extreme<Wide<T>> row_extreme(const T* x, int64_t columns, const MaskCursor& mask) {
  HWY_ALIGN uint8_t buffer[kBlock];
  ExtremeOf<Op, T> extreme;
  for (int64_t block = 0; block < columns; block += kBlock) {
    const int64_t stop = HWY_MIN(block + kBlock, columns);
    const uint8_t* bytes = mask.columns(block, stop - block, buffer);
    for_each_pack<Wide<T>>(block, stop,
                           [&](auto extent, int64_t c) HWY_ATTR { extreme.add(extent, x + c, bytes + (c - block)); });
  }
  return extreme.result();
}

// The largest scores of rows, given what they have without the scale and the mask. A product is rounded alike whatever
// it is compared with, so the scale needs to be applied to one element only.
template <class W>
HWY_INLINE void largest_scores(Vector<W> scale, const W* least, int64_t rows, W* top) {
  const Tag<W> d;
  for (int64_t r = 0; r < rows; r += kVectorLanes<W>) {
    const auto score = hn::Mul(hn::Load(d, top + r), scale), at_least = hn::Load(d, least + r);
    hn::Store(hn::IfThenElse(hn::Ge(score, at_least), score, at_least), d, top + r);
  }
}

// Adds up the exponentials of columns [begin, end), at most a block, and keeps them.
template <bool kFar, class T>
HWY_NOINLINE Vector<Wide<T>> exp_block(const T* x, int64_t ahead, const uint8_t* bytes, int64_t n, const Scale<T>& of,
                                       Wide<T> max, Wide<T>* kept) {
  using W = Wide<T>;
  const Scale<T> scale = of;
  const auto top = splat(max);
  Pack<W> acc = zero_pack<W>();
  for_each_pack<W>(0, n, [&](auto extent, int64_t c) HWY_ATTR {
    prefetch_pack<prefetch_distant>(x + c, ahead);
    DESCEND_UNROLL
    for (size_t k = 0; k < kPackVectors<W>; ++k) {
      const auto e = inside_or<W>(extent, k, exps<kFar>(extent, x + c, bytes + c, k, scale, top), splat(W{0}));
      acc.v[k] = hn::Add(acc.v[k], e);
      hn::StoreU(e, Tag<W>(), kept + c + k * kVectorLanes<W>);
    }
  });
  return fold_to_vector<W>(acc.v);
}

template <bool kStream, class T, class Extent, class Number>
HWY_INLINE void store_quotients(Extent extent, Pack<Wide<T>> e, const Number& total, const Number& reciprocal,
                                int64_t c, T* y) {
  using W = Wide<T>;
  DESCEND_UNROLL
  for (size_t k = 0; k < kPackVectors<W>; ++k) {
    // The last bit of the quotient is lost on elements of 16 bits.
    e.v[k] =
        sizeof(T) == 2 ? hn::Mul(e.v[k], reciprocal.at(c, k)) : divided<W>(e.v[k], total.at(c, k), reciprocal.at(c, k));
  }
  store<kStream, Nan::kOfBfloat16>(extent, e, y);
}

template <class T>
struct Tile {
  const T* x;
  int64_t stride_x;
  T* y;
  int64_t stride_y;
  int64_t rows;
  int64_t columns;
  Scale<T> scale;
  bool more;  // the next tile lies as many rows behind
};

// Whether what the next tile has, of rows that no cache holds, is better asked for while results are written than while
// exponentials are computed. With 3072 or 4096 columns of 16 bits that took 0.85 to 0.92 of the time on a Zen 5; with
// 512 or 8192 columns, or float32, it gained nothing.
template <class T>
constexpr bool asks_late(int64_t columns) {
  return sizeof(T) == 2 && 2048 < columns && columns <= 6144;
}

// Each pass has its own.
struct Cursors {
  MaskCursor of_max, of_exps, of_quotients;
};

template <bool kStream, class T>
HWY_INLINE void long_rows(const Tile<T>& t, Cursors& masks, Wide<T>* kept) {
  using W = Wide<T>;
  const bool keep = t.columns <= kKeptColumns, late = kStream && asks_late<T>(t.columns);
  const int64_t ahead = t.more ? t.rows * t.stride_x : 0;
  const int64_t pitch = ceil_div(t.columns, static_cast<int64_t>(kPackLanes<W>)) * static_cast<int64_t>(kPackLanes<W>);
  HWY_ALIGN W top[kTileRows<W>];
  HWY_ALIGN W least[kTileRows<W>];  // score of what is masked, where anything is
  HWY_ALIGN double sums[kTileRows<W>];
  HWY_ALIGN uint8_t buffer[kBlock];
  for (int64_t r = 0; r < kTileRows<W>; r += kVectorLanes<W>) hn::Store(splat(kLowest<W>), Tag<W>(), least + r);
  if (kStream) prefetch_shared(t.y, t.stride_y, t.rows, t.columns);
  const auto exp_of = [&](int64_t r, const MaskCursor& of, int64_t block) HWY_ATTR {
    const int64_t n = HWY_MIN(kBlock, t.columns - block);
    const auto run = t.scale.is_far(top[r]) ? exp_block<true, T> : exp_block<false, T>;
    return run(t.x + r * t.stride_x + block, late ? 0 : ahead, of.columns(block, n, buffer), n, t.scale, top[r],
               kept + (keep ? r * pitch + block : 0));
  };

  const auto find_extremes = [&](auto op) HWY_ATTR {
    for_each_fold<W>(t.rows, [&](int64_t row, int64_t n, Vector<W>* lanes) HWY_ATTR {
      for (int64_t r = 0; r < n; ++r, masks.of_max.next()) {
        const Extreme<W> found = row_extreme<decltype(op)>(t.x + (row + r) * t.stride_x, t.columns, masks.of_max);
        lanes[r] = found.lanes;
        least[row + r] = found.masked ? kMasked<W> : kLowest<W>;
      }
      fold_rows<W>(lanes, top + row, op);
    });
  };
  t.scale.is_negative() ? find_extremes(Smallest()) : find_extremes(Largest());
  largest_scores<W>(t.scale.factor, least, t.rows, top);
  zero_sums<W>(sums);
  for (int64_t block = 0; block < t.columns; block += kBlock) {  // where these are several, a tile is one row
    for_each_fold<W>(t.rows, [&](int64_t row, int64_t n, Vector<W>* lanes) HWY_ATTR {
      for (int64_t r = 0; r < n; ++r) {
        lanes[r] = exp_of(row + r, masks.of_exps, block);
        if (block + kBlock >= t.columns) masks.of_exps.next();
      }
      add_rows<W>(lanes, sums + row);
    });
  }
  const RowTotals<W> by(sums, t.rows);
  for (int64_t r = 0; r < t.rows; ++r, masks.of_quotients.next()) {
    const Uniform<W> total(by.total[r]), reciprocal(by.reciprocal[r]);
    for (int64_t block = 0; block < t.columns; block += kBlock) {
      const int64_t n = HWY_MIN(kBlock, t.columns - block);
      if (!keep) exp_of(r, masks.of_quotients, block);
      const W* e = kept + (keep ? r * pitch + block : 0);
      const T* x = t.x + r * t.stride_x + block;
      T* y = t.y + r * t.stride_y + block;
      const auto store = [&](auto extent, int64_t c) HWY_ATTR {
        if (kStream && late) prefetch_pack<prefetch_distant>(x + c, ahead);
        store_quotients<kStream>(extent, load_pack(Full(), e + c), total, reciprocal, c, y + c);
      };
      const int64_t lead = kStream ? before_line(y, n) : 0;
      if (lead > 0) store(Part{static_cast<size_t>(lead)}, 0);
      for_each_pack<W>(lead, n, store);
    }
  }
}

// ---- Shorter rows, one behind the other without gaps: a tile of them at a time.

// Columns of such a row at most, whose exponentials are one sum; and elements of a tile, at most.
inline constexpr int64_t kTogetherColumns = kBlock;
template <class W>
inline constexpr int64_t kTogetherElements = 2 * kKeptBytes / static_cast<int64_t>(sizeof(W));
// Rows of no more bytes leave memory idle, whatever way they are stored, where the second-level cache is asked.
inline constexpr int64_t kIdleRow = 256;

template <class T>
struct Together {
  using W = Wide<T>;
  HWY_INLINE Together() {}  // as Pack's
  HWY_ALIGN uint8_t mask[kTogetherElements<W>];
  Spread<W> max, total, reciprocal;
  Stage<T, kTogetherElements<W>> stage;
};

// A row's last vector, of which `count` lanes at the front are the row's; found once for many rows.
template <class W>
struct Front {
  hn::Mask<Tag<W>> lanes;
  size_t count;
  bool readable = false;  // all of the vector

  HWY_INLINE explicit Front(size_t n) : lanes(hn::FirstN(Tag<W>(), n)), count(n) {}
};
template <class D, class W, class R = hn::TFromD<D>>
HWY_INLINE hn::Vec<D> load_bits(const Front<W>& front, D d, const R* p, size_t k) {
#if HWY_TARGET == HWY_AVX3
  using Bits = decltype(hn::Mask<D>::raw);
  return hn::MaskedLoad(hn::Mask<D>{static_cast<Bits>(front.lanes.raw)}, d, p + k * hn::MaxLanes(d));
#else
  return front.readable ? load_bits(Full(), d, p, k) : load_bits(Part{front.count}, d, p, k);
#endif
}
template <class W>
HWY_INLINE Vector<W> inside_or(const Front<W>& front, size_t, Vector<W> v, Vector<W> outside) {
  return hn::IfThenElse(front.lanes, v, outside);
}

// f(kRest), a constant: how many vectors a row has behind its whole packs.
template <class W, size_t kRest = 0, class F>
HWY_INLINE void with_rest(int64_t columns, F f) {
  constexpr int64_t kColumns = kRest * kVectorLanes<W>;
  if constexpr (kRest < kPackVectors<W>) {
    if (columns % static_cast<int64_t>(kPackLanes<W>) > kColumns) return with_rest<W, kRest + 1>(columns, f);
  }
  f(std::integral_constant<size_t, kRest>());
}

// f(extent, c, k) for every vector of a row: vector k of a pack, which begins in column c.
template <class W, size_t kRest, class F>
HWY_INLINE void for_each_vector_in_row(int64_t columns, const Front<W>& front, F f) {
  constexpr int64_t kLanes = kVectorLanes<W>, kStep = kPackLanes<W>;
  int64_t c = 0;
  for (; c + kStep <= columns; c += kStep) {
    each<kPackVectors<W>>([&](size_t k) DESCEND_INLINED { f(Full(), c + static_cast<int64_t>(k) * kLanes, k); });
  }
  if constexpr (kRest > 0) {
    each<kRest - 1>([&](size_t k) DESCEND_INLINED { f(Full(), c + static_cast<int64_t>(k) * kLanes, k); });
    f(front, c + static_cast<int64_t>(kRest - 1) * kLanes, kRest - 1);
  }
}

// to[r] = what op puts together of row r: of_row(r)(extent, c, k) is vector k of a pack, which begins with element c of
// the tile.
template <size_t kRest, class T, class Op, class F>
HWY_INLINE void fold_rows_of(const Tile<T>& t, Wide<T> neutral, Op op, Wide<T>* to, F of_row) {
  using W = Wide<T>;
  constexpr int64_t kLanes = kVectorLanes<W>, kStep = kPackLanes<W>;
  const int64_t columns = t.columns, end = t.rows * columns;
  const int64_t last = kRest == 0 ? columns : columns / kStep * kStep + static_cast<int64_t>(kRest - 1) * kLanes;
  Front<W> front(static_cast<size_t>(columns - last));
  int64_t begin = 0;
  for_each_fold<W>(t.rows, [&](int64_t row, int64_t rows, Vector<W>* lanes) DESCEND_INLINED {
    for (int64_t r = 0; r < rows; ++r, begin += columns) {
      const auto vector_of = of_row(row + r);
      Vector<W> acc[kPackVectors<W>];
      each<kPackVectors<W>>([&](size_t k) DESCEND_INLINED { acc[k] = splat(neutral); });
      front.readable = begin + last + kLanes <= end;
      for_each_vector_in_row<W, kRest>(columns, front, [&](auto extent, int64_t c, size_t k) DESCEND_INLINED {
        acc[k] = op(acc[k], inside_or<W>(extent, 0, vector_of(extent, begin + c, k), splat(neutral)));
      });
      lanes[r] = fold_to_vector<W>(acc, op);
    }
    fold_rows<W>(lanes, to + row, op);
  });
}

// The largest score of each row.
template <size_t kRest, class T>
HWY_NOINLINE void find_tops(const Tile<T> t, const uint8_t* bytes, Wide<T>* top) {
  using W = Wide<T>;
  const auto factor = t.scale.factor;
  fold_rows_of<kRest>(t, kLowest<W>, Largest(), top, [&](int64_t) DESCEND_INLINED {
    return [&](auto extent, int64_t c, size_t)
               DESCEND_INLINED { return scores(extent, t.x + c, bytes + c, 0, factor); };
  });
}

// The exponentials of all elements, and each row's sum of them.
template <bool kFar, size_t kRest, class T>
HWY_NOINLINE void keep_exps(const Tile<T> t, const uint8_t* bytes, const Wide<T>* top, int64_t pitch, Wide<T>* kept,
                            Wide<T>* total) {
  using W = Wide<T>;
  const int64_t ahead = t.more ? t.rows * t.columns : 0;
  fold_rows_of<kRest>(t, W{0}, Sum(), total, [&](int64_t r) DESCEND_INLINED {
    const W max = top[r];
    W* const to = kept + r * (pitch - t.columns);
    return [&, max, to, far = kFar && t.scale.is_far(max)](auto extent, int64_t c, size_t k) DESCEND_INLINED {
      if (k == 0) prefetch_pack<prefetch_distant>(t.x + c, ahead);
      const auto e = far ? exps<kFar>(extent, t.x + c, bytes + c, 0, t.scale, splat(max))
                         : exps<false>(extent, t.x + c, bytes + c, 0, t.scale, splat(max));
      hn::StoreU(e, Tag<W>(), to + c);  // what it writes behind the row is the next row's, and written after it
      return e;
    };
  });
}

// The same of rows so narrow that one row's vectors would be all but empty.
template <class T>
HWY_INLINE void keep_narrow_exps(const Tile<T>& t, const uint8_t* bytes, Spread<Wide<T>>& max, Wide<T>* kept,
                                 Wide<T>* total) {
  using W = Wide<T>;
  const int64_t n = t.rows * t.columns, ahead = t.more ? n : 0;
  HWY_ALIGN W top[kTileRows<W>];
  for_each_vector_of(n, kept, [&](auto extent, int64_t c, size_t k) HWY_ATTR {
    return scores(extent, t.x + c, bytes + c, k, t.scale.factor);
  });
  fold_narrow(kept, t.rows, t.columns, kLowest<W>, Largest(), Largest(), top);
  max.fill(top, t.rows, t.columns);
  const auto keep = [&](auto may_be_far) HWY_ATTR {
    for_each_vector_of(n, kept, [&](auto extent, int64_t c, size_t k) HWY_ATTR {
      if (k == 0) prefetch_pack<prefetch_distant>(t.x + c, ahead);
      return exps<may_be_far()>(extent, t.x + c, bytes + c, k, t.scale, max.at(c, k));
    });
  };
  t.scale.any_far(top, t.rows) ? keep(std::true_type()) : keep(std::false_type());
  fold_narrow(kept, t.rows, t.columns, W{0}, Sum(), Sum(), total);
}

// Whether rows are divided as if they were one: narrow ones, and of 16 bits, which take longer to store, short ones
// whose last pack would be half empty or more.
template <class T>
HWY_INLINE bool divide_as_one(int64_t columns) {
  constexpr int64_t kLanes = kPackLanes<Wide<T>>;
  if (sizeof(T) > 2) return columns <= kNarrowColumns;
  const int64_t rest = columns % kLanes;
  return columns < kShortColumns && 0 < rest && rest <= kLanes / 2;
}

template <bool kStream, class T>
HWY_INLINE void rows_together(const Tile<T>& t, const uint8_t* bytes, Together<T>& scratch, Wide<T>* kept) {
  using W = Wide<T>;
  const bool as_one = divide_as_one<T>(t.columns);
  const int64_t pitch =
      as_one ? t.columns : ceil_div(t.columns, kLineElements<W>) * kLineElements<W>;  // of exponentials
  RowTotals<W> by;
  if (t.columns <= kNarrowColumns) {
    keep_narrow_exps(t, bytes, scratch.max, kept, by.total);
  } else {
    HWY_ALIGN W top[kTileRows<W>];
    with_rest<W>(t.columns, [&](auto rest) HWY_ATTR {
      find_tops<rest()>(t, bytes, top);
      const auto keep = t.scale.any_far(top, t.rows) ? keep_exps<true, rest(), T> : keep_exps<false, rest(), T>;
      keep(t, bytes, top, pitch, kept, by.total);
    });
  }
  by.invert(t.rows);
  const auto store = [&](const auto& total, const auto& reciprocal, const W* from, T* to, int64_t n) HWY_ATTR {
    for_each_pack<W>(0, n, [&](auto extent, int64_t c) HWY_ATTR {
      store_quotients<kStream>(extent, load_pack(Full(), from + c), total, reciprocal, c, to + c);
    });
  };
  if (as_one) {
    if (sizeof(T) != 2) scratch.total.fill(by.total, t.rows, t.columns);
    scratch.reciprocal.fill(by.reciprocal, t.rows, t.columns);
    return store(scratch.total, scratch.reciprocal, kept, t.y, t.rows * t.columns);
  }
  for (int64_t r = 0; r < t.rows; ++r) {
    store(Uniform<W>(by.total[r]), Uniform<W>(by.reciprocal[r]), kept + r * pitch, t.y + r * t.columns, t.columns);
  }
}

template <bool kStream, class T>
HWY_INLINE void all_rows(const ScaledMaskedSoftmax<T>& p, int64_t first, int64_t last, bool staged) {
  using W = Wide<T>;
  const bool together = p.columns <= kTogetherColumns && has_no_gaps(p) && (!kStream || are_aligned(p.y));
  const int64_t row_bytes = p.columns * static_cast<int64_t>(sizeof(W));
  // Rows of a fold, or as many as there is room for: floats, for which memory is waited, are better off with fewer.
  int64_t most = HWY_MIN(kFoldRows<W>, kTogetherElements<W> / p.columns);
  if (sizeof(T) > 2 && most < kFoldRows<W>) most = HWY_MAX(1, most / 2);
  const int64_t tile =
      together ? HWY_MAX(most, short_tile<W>(p.columns)) : HWY_MAX(1, HWY_MIN(kFoldRows<W>, kKeptBytes / row_bytes));
  HWY_ALIGN W kept[kKeptColumns + kPackLanes<W>];
  Together<T> scratch;
  // A NaN with bits of its own would be rounded to bfloat16 as what it is not.
  const Scale<T> scale(std::isnan(p.scale) ? std::numeric_limits<W>::quiet_NaN() : static_cast<W>(p.scale));
  MaskCursor mask(p.mask, first);
  Cursors masks{mask, mask, mask};
  const bool idle = kAsksSecondLevel && p.columns * static_cast<int64_t>(sizeof(T)) <= kIdleRow;
  staged = staged && together && !idle;
  for (int64_t row = first; row < last; row += tile) {
    const int64_t rows = HWY_MIN(tile, last - row);
    const Rows<T> y{p.y.row(row), p.y.stride}, to = staged ? scratch.stage.rows(y, p.columns) : y;
    const Tile<T> t{p.x.row(row), p.x.stride, to.data, to.stride, rows, p.columns, scale, row + rows < last};
    if (together) {
      rows_together<kStream>(t, mask.tile(rows, p.columns, scratch.mask), scratch, kept);
    } else {
      long_rows<kStream>(t, masks, kept);
    }
    if (staged) scratch.stage.stream(y, rows, p.columns);
  }
  scratch.stage.finish();
  if (kStream || staged) flush_streams();
}

template <class T>
void softmax_rows(const ScaledMaskedSoftmax<T>& p, int64_t first, int64_t last, Stores stores) {
  (kHasVectors && stores == Stores::kStream) ? all_rows<kHasVectors>(p, first, last, false)
                                             : all_rows<false>(p, first, last, stores == Stores::kStaged);
}

}  // namespace descend::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace descend::kernels {
namespace {

// Bytes from which on rows that do not begin where lines do are stored line by line. Of 16 bits, whose arithmetic takes
// longer, those that are computed together are better off with a stage; not measured where the second-level cache is
// asked, as on Zen 4.
template <class T>
int64_t least_in_lines(const ScaledMaskedSoftmax<T>& p) {
  return sizeof(T) == 2 && has_no_gaps(p) && !kAsksSecondLevel ? 2 * (kBlock + 1) : kLongRow;
}

}  // namespace

template <class T>
void scaled_masked_softmax(const ScaledMaskedSoftmax<T>& p) {
  static const auto run = DESCEND_CHOOSE_FOR(T, softmax_rows<T>);
  if (p.rows <= 0 || p.columns <= 0) return;
  const int64_t size = static_cast<int64_t>(sizeof(T));
  const Stores stores = row_stores_of(p.y, p.columns, even_traffic(2 * p.rows * p.columns * size), least_in_lines(p));
  const int64_t work = row_work<T>(4 * p.columns);  // exponentials take as long as moving their elements
  const RowCut cut = cut_loose_rows(p.rows, p.columns * size, work);
  over_loose_rows(cut, p.rows, work, [&](int64_t first, int64_t last) { run(p, first, last, stores); });
}

template void scaled_masked_softmax<float16>(const ScaledMaskedSoftmax<float16>& problem);
template void scaled_masked_softmax<bfloat16>(const ScaledMaskedSoftmax<bfloat16>& problem);
template void scaled_masked_softmax<float>(const ScaledMaskedSoftmax<float>& problem);
template void scaled_masked_softmax<double>(const ScaledMaskedSoftmax<double>& problem);

}  // namespace descend::kernels
#endif  // HWY_ONCE
