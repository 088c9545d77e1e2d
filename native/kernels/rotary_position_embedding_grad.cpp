// The gradients of rotary position embedding: dx, dy turned back; dcos and dsin, sums over what cos and sin serve.
#include "kernels/rotary/rotary_grad-inl.h"
#include "kernels/rows/convert.h"
#include "kernels/rows/prefetch-inl.h"
#include "kernels/rows/sum_columns-inl.h"
#include "kernels/simd/dispatch.h"
#include "kernels/simd/doubles-inl.h"

HWY_BEFORE_NAMESPACE();
namespace descend::kernels::HWY_NAMESPACE {

// A row's part of dcos, then dsin, n pairs from pair j on: calls f(column, n, place) for each stretch of neighbours,
// place being where its sums begin.
template <class F>
HWY_INLINE void for_each_stretch(Pairing pairing, int64_t columns, int64_t j, int64_t n, int64_t room, F f) {
  if (pairing == Pairing::kNeighbours) return f(2 * j, 2 * n, int64_t{0});
  f(j, n, int64_t{0});
  f(columns / 2 + j, n, room);
}

template <class T>
class Sums {
  using P = RotaryGrad<T>;
  using W = Wide<T>;
  using Cut = RotaryCut<typename P::Grid>;

 public:
  Sums(const P& problem, const Cut& cut, bool streams) : p_(problem), cut_(cut), streams_(streams) {}

  // Sums [first, end) along the last dimension, at `base`, chunk `chunk` of each.
  void tile(const typename P::Grid::Strides& base, int64_t number, int64_t first, int64_t end, int64_t chunk) {
    for (int64_t j = 0; j < p_.columns / 2; j += kSpanPairs) {
      span(base, first, end, chunk, j, HWY_MIN(kSpanPairs, p_.columns / 2 - j));
      for (int64_t c = first; c < end; ++c) leave(base, number + c, c, c - first, chunk);
    }
  }

  void finish() {
    if (!streams_) return;
    stage_.finish();
    flush_streams();
  }

 private:
  // All rows of the tile, n pairs from pair j on.
  HWY_INLINE void span(const typename P::Grid::Strides& base, int64_t first, int64_t end, int64_t chunk, int64_t j,
                       int64_t n) {
    const bool neighbours = p_.pairing == Pairing::kNeighbours;
    j_ = j, n_ = n;
    room_ = whole_packs<W>(neighbours ? 2 * n : n), each_ = (neighbours ? 2 : 4) * room_;
    const int64_t from = chunk * cut_.chunk, to = HWY_MIN(from + cut_.chunk, cut_.terms), inner = cut_.inner.rows();
    stripe_ = stripe_rows<T>(cut_.terms);
    if (from == to) std::fill_n(totals_, (end - first) * each_, 0.0);
    for (int64_t o = from == to ? 0 : from / inner; o * inner < to; ++o) {
      const RowCursor<P::kTensors> outer(cut_.outer, o);
      const int64_t begin = HWY_MAX(from - o * inner, 0), stop = HWY_MIN(to - o * inner, inner);
      for (int64_t c = first; c < end; ++c) {
        RowCursor<P::kTensors> cursor(cut_.inner, begin);
        for (int64_t i = begin; i < stop;) {
          const int64_t term = o * inner + i;
          const int64_t count = HWY_MIN(HWY_MIN(stop - i, cursor.left()), stripe_ - term % stripe_);
          typename P::Grid::Strides at;
          for (int t = 0; t < P::kTensors; ++t) {
            at[t] = base[t] + outer.at()[t] + c * cut_.step[t] + cursor.at()[t];
          }
          rows(at, cursor.step(), c - first, term, count);
          const int64_t next = term + count;
          if (cut_.terms > stripe_ && (next % stripe_ == 0 || next == to)) {
            add_columns(sums_ + (c - first) * each_, each_, term / stripe_ == from / stripe_,
                        totals_ + (c - first) * each_);
          }
          i += count;
          cursor.go_on(count);
        }
      }
    }
  }

  // Terms of one stripe, `count` from number `term` on, of sum number c of the tile.
  HWY_INLINE void rows(typename P::Grid::Strides at, const typename P::Grid::Strides& step, int64_t c, int64_t term,
                       int64_t count) {
    W* const sums = sums_ + c * each_;
    bool begins = term % stripe_ == 0;
    for (int64_t i = 0; i < count; ++i, begins = false) {
      const Rows<T> place{p_.dx + at[P::kDx], p_.columns};
      T* const dx = streams_ ? stage_.rows(place, p_.columns).data : place.data;
      const T *dy = p_.dy + at[P::kDy], *x = p_.x + at[P::kX], *cos = p_.cos + at[P::kCos], *sin = p_.sin + at[P::kSin];
      if (begins) {
        grad_row<true>(p_.pairing, dy, x, cos, sin, dx, p_.columns, j_, n_, sums, room_);
      } else {
        grad_row<false>(p_.pairing, dy, x, cos, sin, dx, p_.columns, j_, n_, sums, room_);
      }
      if (streams_) stage_.stream(place, 1, p_.columns);
      for (int t = 0; t < P::kTensors; ++t) at[t] += step[t];
    }
  }

  // The tile's sum number c to its slot or to where it ends.
  HWY_INLINE void leave(const typename P::Grid::Strides& base, int64_t number, int64_t along, int64_t c,
                        int64_t chunk) {
    T* const ends[] = {p_.dcos + base[P::kDcos] + along * cut_.step[P::kDcos],
                       p_.dsin + base[P::kDsin] + along * cut_.step[P::kDsin]};
    for (int64_t which = 0; which < 2; ++which) {
      const int64_t begin = c * each_ + which * each_ / 2;
      double* const slot = p_.slots + ((2 * number + which) * cut_.chunks + chunk) * p_.columns;
      const auto leave_stretch = [&](int64_t column, int64_t n, int64_t at) HWY_ATTR {
        if (cut_.chunks > 1) return copy_few(totals_ + begin + at, n, slot + column);
        for_each_pack<W>(0, n, [&](auto extent, int64_t i) DESCEND_INLINED {
          const int64_t from = begin + at + i;
          const bool in_one = cut_.terms <= stripe_ && cut_.terms > 0;
          store(extent, in_one ? load_pack(Full(), sums_ + from) : narrow_pack<W>(totals_ + from, sizeof(T) == 2),
                ends[which] + column + i);
        });
      };
      for_each_stretch(p_.pairing, p_.columns, j_, n_, room_, leave_stretch);
    }
  }

  const P& p_;
  const Cut& cut_;
  const bool streams_;
  int64_t j_ = 0, n_ = 0, room_ = 0, each_ = 0, stripe_ = 0;
  alignas(64) W sums_[kSumRoom];
  alignas(64) double totals_[kSumRoom];
  Stage<T, 2 * kSpanPairs> stage_;
};

template <class T>
void rotary_grad_tiles(const RotaryGrad<T>& p, const RotaryCut<typename RotaryGrad<T>::Grid>& cut, int64_t tile,
                       int64_t first, int64_t end, bool streams) {
  Sums<T> sums(p, cut, streams);
  const int64_t across = ceil_div(cut.along, tile);
  for (int64_t i = first; i < end; ++i) {
    const int64_t chunk = i % cut.chunks, begin = i / cut.chunks % across * tile, kept = i / cut.chunks / across;
    const RowCursor<RotaryGrad<T>::kTensors> base(cut.kept, kept);
    sums.tile(base.at(), kept * cut.along, begin, HWY_MIN(begin + tile, cut.along), chunk);
  }
  sums.finish();
}

}  // namespace descend::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

namespace descend::kernels::DESCEND_TARGET {

template <class T>
void rotary_position_embedding_grad(const RotaryGrad<T>& p) {
  using P = RotaryGrad<T>;
  constexpr int64_t kTakes = 8;     // of each thread: enough to even out their speeds
  constexpr int64_t kMostTile = 8;  // sums side by side: their rows fill pages
  constexpr auto kSize = static_cast<int64_t>(sizeof(T));
  const auto cut = cut_rotary_grad<T>(p.grid);
  const int64_t elements = p.grid.rows() * p.columns;
  const bool streams = p.columns <= 2 * kSpanPairs && streams_results({3 * elements * kSize, elements * kSize});
  const int64_t numbers = 4 * whole_packs<Wide<T>>(std::min(p.columns / 2, kSpanPairs));  // of a sum
  const int64_t tile = std::clamp<int64_t>(kSumRoom / numbers, 1, kMostTile);
  const int64_t tiles = cut.kept.rows() * ceil_div(cut.along, tile) * cut.chunks;
  if (tiles == 0) return;
  int64_t part = tiles;
  const auto divide = [&](int threads) {
    if (threads > 1) part = ceil_div(tiles, kTakes * threads);
    return ceil_div(tiles, part);
  };
  parallel_for(tiles, p.grid.rows() * row_work<T>(3 * p.columns), divide,
               [&](int64_t i) { rotary_grad_tiles(p, cut, tile, i * part, std::min(tiles, (i + 1) * part), streams); });
  if (cut.chunks == 1) return;
  for (int64_t i = 0; i < cut.sums(); ++i) {
    const RowCursor<P::kTensors> base(cut.kept, i / cut.along);
    const auto sum = [&](T* gradient, int tensor, int64_t which) {
      const double* slots = p.slots + (2 * i + which) * cut.chunks * p.columns;
      T* const to = gradient + base.at()[tensor] + i % cut.along * cut.step[tensor];
      sum_slots(cut.chunks, p.columns, slots, p.element, to, 1);
    };
    sum(p.dcos, P::kDcos, 0);
    sum(p.dsin, P::kDsin, 1);
  }
}

}  // namespace descend::kernels::DESCEND_TARGET

DESCEND_KERNEL(void, rotary_position_embedding_grad, (const RotaryGrad<T>& problem), problem)
