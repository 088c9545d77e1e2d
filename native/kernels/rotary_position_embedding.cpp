// Rotary position embedding: each row's pairs turned by their own angles. And turned back, as the gradient of x is.
#include "kernels/rotary/rotary-inl.h"
#include "kernels/rows/prefetch-inl.h"
#include "kernels/simd/dispatch.h"

HWY_BEFORE_NAMESPACE();
namespace descend::kernels::HWY_NAMESPACE {

// Rows [first, end). streams: past the caches; they have no more than 2 kSpanPairs elements then.
template <class T, bool kBack>
void turn_rows(const Turn<T>& p, int64_t first, int64_t end, bool streams) {
  using P = Turn<T>;
  Stage<T, 2 * kSpanPairs> stage;
  RowCursor<P::kTensors> cursor(p.grid, first);
  for (int64_t row = first; row < end;) {
    const int64_t n = HWY_MIN(end - row, cursor.left());
    // The rows of the grid's last dimension in a loop of their own: a row of 32 elements takes less time than a cursor.
    const auto turn_each = [&](auto turn_row) HWY_ATTR {
      auto at = cursor.at();
      const auto step = cursor.step();
      for (int64_t i = 0; i < n; ++i) {
        const Rows<T> place{p.to + at[P::kTo], p.columns};
        T* const to = streams ? stage.rows(place, p.columns).data : place.data;
        turn_row(p.from + at[P::kFrom], p.cos + at[P::kCos], p.sin + at[P::kSin], to);
        if (streams) stage.stream(place, 1, p.columns);
        for (int t = 0; t < P::kTensors; ++t) at[t] += step[t];
      }
    };
    switch (p.pairing) {
      case Pairing::kHalves:
        turn_each([&](const T* from, const T* cos, const T* sin, T* to) DESCEND_INLINED {
          turn_halves<kBack, T>(halves(from, p.columns, 0), halves(cos, p.columns, 0), halves(sin, p.columns, 0),
                                halves(to, p.columns, 0), p.columns / 2);
        });
        break;
      case Pairing::kNeighbours:
        turn_each([&](const T* from, const T* cos, const T* sin, T* to)
                      DESCEND_INLINED { turn_row_of_neighbours<kBack>(from, cos, sin, to, p.columns); });
        break;
      case Pairing::kMixed:
        turn_each([&](const T* from, const T* cos, const T* sin, T* to)
                      DESCEND_INLINED { turn_mixed<kBack>(from, cos, sin, to, p.columns); });
    }
    row += n;
    cursor.go_on(n);
  }
  if (!streams) return;
  stage.finish();
  flush_streams();
}

}  // namespace descend::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

namespace descend::kernels::DESCEND_TARGET {

template <class T>
void rotary_position_embedding(const Turn<T>& p, bool back) {
  const auto turn_part = back ? turn_rows<T, true> : turn_rows<T, false>;
  constexpr int64_t kTakes = 8;  // of each thread: enough to even out their speeds
  constexpr auto kSize = static_cast<int64_t>(sizeof(T));
  const int64_t rows = p.grid.rows(), elements = rows * p.columns;
  if (elements == 0) return;
  const bool streams = p.columns <= 2 * kSpanPairs && streams_results({2 * elements * kSize, elements * kSize});
  int64_t part = rows;
  const auto cut = [&](int threads) {
    if (threads > 1) part = ceil_div(rows, kTakes * threads);
    return ceil_div(rows, part);
  };
  parallel_for(rows, rows * row_work<T>(2 * p.columns), cut,
               [&](int64_t i) { turn_part(p, i * part, std::min(rows, (i + 1) * part), streams); });
}

}  // namespace descend::kernels::DESCEND_TARGET

DESCEND_KERNEL(void, rotary_position_embedding, (const Turn<T>& problem, bool back), problem, back)
