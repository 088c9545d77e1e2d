// Elementwise operators: how one thread walks over its part of a call (elements.h).
//
// A program has kInputs, kOutputs, and a function map<T>(in, out) on vectors of the arithmetic type:
// in[i][k] is vector k of input i, of as many as go through it side by side. It knows nothing of the rest.
#if defined(DESCEND_KERNELS_ELEMENTS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DESCEND_KERNELS_ELEMENTS_INL_H_
#undef DESCEND_KERNELS_ELEMENTS_INL_H_
#else
#define DESCEND_KERNELS_ELEMENTS_INL_H_
#endif

#include "kernels/elements.h"
#include "kernels/stage-inl.h"
#include "kernels/swish-inl.h"

HWY_BEFORE_NAMESPACE();
namespace descend::kernels::HWY_NAMESPACE {

// Elements that are computed at a time where they are copied before or after: all streams stay in a first-level cache.
inline constexpr int64_t kBatchElements = 1024;

// Shorter rows are brought together first, so that vectors are full.
inline constexpr int64_t kShortRow = 64;

// n neighbours of each stream. kAhead: those that come some way behind them are asked for.
template <class Program, bool kAhead, class T, size_t kIn, size_t kOut>
HWY_INLINE void map_span(const T* const (&in)[kIn], T* const (&out)[kOut], int64_t n) {
  using W = Wide<T>;
  over_packs<W>(0, n, [&](auto extent, auto packs, int64_t j) DESCEND_INLINED {
    constexpr size_t kN = decltype(packs)::value * kPackVectors<W>;
    Vector<W> x[kIn][kN], y[kOut][kN];
    if constexpr (kAhead) {
      each<kIn>([&](size_t i) DESCEND_INLINED {
        each<decltype(packs)::value>([&](size_t p) DESCEND_INLINED {
          constexpr int64_t kDistance = kAheadBytes / static_cast<int64_t>(sizeof(T));
          prefetch_pack<prefetch_distant>(in[i] + j + p * kPackLanes<W>, kDistance);
        });
      });
    }
    each<kIn>([&](size_t i) DESCEND_INLINED {
      each<kN>([&](size_t k) DESCEND_INLINED { x[i][k] = load(extent, in[i] + j, k); });
    });
    Program::template map<T>(x, y);
    each<kOut>([&](size_t i) DESCEND_INLINED {
      each<kN / 2>([&](size_t k) DESCEND_INLINED {
        store_pair<false, Nan::kOfBfloat16>(extent, y[i][2 * k], y[i][2 * k + 1], out[i] + j, 2 * k);
      });
    });
  });
}

// Rows of n elements to where they have no gaps, or from there.
template <class T, class U>
HWY_INLINE void copy_rows(const Rows<T>& from, const Rows<U>& to, int64_t rows, int64_t n) {
  for (int64_t r = 0; r < rows; ++r) copy_few(from.row(r), n, to.row(r));
}

template <class Program, class T, int kIn, int kOut>
HWY_INLINE void walk_elements(const Elements<T, kIn, kOut>& p, const ElementPart& part) {
  static_assert(kIn == Program::kInputs && kOut == Program::kOutputs);
  alignas(64) T gathered[kIn][kBatchElements], scattered[kOut][kBatchElements];
  Stage<T, kBatchElements> stages[kOut];
  const int64_t columns = part.columns;
  const bool is_short = columns < kShortRow;
  const int64_t many = is_short ? kBatchElements / columns : 1, wide = is_short ? columns : kBatchElements;
  // Rows [r, r + rows), columns [c, c + n).
  const auto batch = [&](int64_t r, int64_t rows, int64_t c, int64_t n) DESCEND_INLINED {
    const T* in[kIn];
    T* out[kOut];
    Rows<T> to[kOut];
    bool has_gaps[kOut];
    for (int i = 0; i < kIn; ++i) {
      const Rows<const T> from{p.in[i].row(r) + c, p.in[i].stride};
      in[i] = from.data;
      if (rows == 1 || from.stride == n) continue;
      copy_rows(from, Rows<T>{gathered[i], n}, rows, n);
      in[i] = gathered[i];
    }
    for (int i = 0; i < kOut; ++i) {
      has_gaps[i] = rows > 1 && p.out[i].stride != n;
      to[i] = {p.out[i].row(r) + c, has_gaps[i] ? p.out[i].stride : rows * n};
      out[i] = has_gaps[i] ? scattered[i] : part.streams ? stages[i].rows(to[i], rows * n).data : to[i].data;
    }
    part.streams ? map_span<Program, true>(in, out, rows * n) : map_span<Program, false>(in, out, rows * n);
    for (int i = 0; i < kOut; ++i) {
      if (has_gaps[i]) {
        copy_rows(Rows<const T>{scattered[i], n}, to[i], rows, n);
      } else if (part.streams) {
        stages[i].stream(to[i], 1, rows * n);
      }
    }
  };
  const int64_t end = part.row + part.rows;
  for (int64_t r = part.row; r < end; r += many) {
    for (int64_t j = 0; j < columns; j += wide) {
      batch(r, HWY_MIN(many, end - r), part.column + j, HWY_MIN(wide, columns - j));
    }
  }
  if (!part.streams) return;
  for (auto& stage : stages) stage.finish();
  flush_streams();
}

}  // namespace descend::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // DESCEND_KERNELS_ELEMENTS_INL_H_
