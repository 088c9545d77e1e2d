// Elementwise operators: how one thread walks over its part of a call (elements.h).
//
// A program has kInputs, kOutputs, and a function map<T>(in, out) on vectors of the arithmetic type:
// in[i][k] is vector k of input i, of as many as go through it side by side. It knows nothing of the rest. Its members,
// if it has any, are the numbers of the call.
#pragma once

#include <array>
#include <tuple>
#include <utility>

#include "kernels/elements/elements.h"
#include "kernels/rows/prefetch-inl.h"
#include "kernels/rows/stage-inl.h"
#include "kernels/simd/convert-inl.h"
#include "kernels/simd/swish-inl.h"

HWY_BEFORE_NAMESPACE();
namespace descend::kernels::HWY_NAMESPACE {

// Elements that are computed at a time where they are copied before or after: all streams stay in a first-level cache.
// What would be left over, of up to 128 elements, is computed with the last of them.
inline constexpr int64_t kBatchElements = 1024;
inline constexpr int64_t kMostOfBatch = kBatchElements + 128;

// Shorter rows are brought together first, so that vectors are full.
inline constexpr int64_t kShortRow = 64;

// f(p, i) of each stream, where p points to elements of a type of its own. Streams: std::array or std::tuple of
// pointers.
template <class Streams, class F>
HWY_INLINE void each_stream(const Streams& streams, F f) {
  const auto all = [&]<size_t... i>(std::index_sequence<i...>) DESCEND_INLINED { (f(std::get<i>(streams), i), ...); };
  all(std::make_index_sequence<std::tuple_size_v<Streams>>());
}

// How many packs go through a program side by side: its kPacks, if it has them.
template <class W, class Program>
constexpr size_t packs_abreast() {
  if constexpr (requires { Program::kPacks; }) return Program::kPacks;
  return kAbreastPacks<W>;
}

// How a loop treats memory: not at all, or it prefetches inputs, or it also stores results past the caches.
enum class Memory { kNone, kAhead, kStreams };

// n neighbours of each stream. ahead: the prefetch distance of each input, in bytes.
template <class T, Memory kMemory = Memory::kNone, class In, class Out, class Program, class Bytes = int>
HWY_INLINE void map_span(const In& in, const Out& out, int64_t n, const Program& program,
                         [[maybe_unused]] const Bytes& ahead = 0) {
  using W = Wide<T>;
  over_packs<W, packs_abreast<W, Program>()>(0, n, [&](auto extent, auto packs, int64_t j) DESCEND_INLINED {
    constexpr size_t kN = decltype(packs)::value * kPackVectors<W>;
    Vector<W> x[Program::kInputs][kN], y[Program::kOutputs][kN];
    if constexpr (kMemory != Memory::kNone) {
      each_stream(in, [&](const T* p, size_t i) DESCEND_INLINED {
        each<decltype(packs)::value>([&](size_t pack) DESCEND_INLINED {
          prefetch_pack<prefetch_distant>(p + j + pack * kPackLanes<W>, ahead[i] / static_cast<int64_t>(sizeof(T)));
        });
      });
    }
    each_stream(in, [&](const auto* p, size_t i) DESCEND_INLINED {
      each<kN>([&](size_t k) DESCEND_INLINED { x[i][k] = load(extent, p + j, k); });
    });
    program.template map<T>(x, y);
    each_stream(out, [&](auto* p, size_t i) DESCEND_INLINED {
      each<kN / 2>([&](size_t k) DESCEND_INLINED {
        store_pair<kMemory == Memory::kStreams, Nan::kOfBfloat16>(extent, y[i][2 * k], y[i][2 * k + 1], p + j, 2 * k);
      });
    });
  });
}

// Rows of n elements to where they have no gaps, or from there. By vectors: how long a loop over elements takes
// depended on where the compiler had put it (100 x 33 float16: 3.7 or 5.4 us).
template <class T, class U>
HWY_NOINLINE void copy_rows(const Rows<T>& from, const Rows<U>& to, int64_t rows, int64_t n) {
  const hn::ScalableTag<uint8_t> d;
  const size_t bytes = static_cast<size_t>(n) * sizeof(T), vectors = bytes / hn::MaxLanes(d) * hn::MaxLanes(d);
  for (int64_t r = 0; r < rows; ++r) {
    const auto* source = reinterpret_cast<const uint8_t*>(from.row(r));
    auto* target = reinterpret_cast<uint8_t*>(to.row(r));
    for (size_t i = 0; i < vectors; i += hn::MaxLanes(d)) hn::StoreU(hn::LoadU(d, source + i), d, target + i);
    copy_part(source + vectors, target + vectors, bytes - vectors);
  }
}

// The prefetch distance of each input, in bytes: up to column `until`, where a line begins, within the row; from there
// on to a row below, which lies further away where there is a gap.
template <int kIn>
struct Ahead {
  using Bytes = std::array<int64_t, kIn>;
  Bytes inside{}, below{};
  int64_t until = 0;

  template <class T, int kOut>
  HWY_INLINE Ahead(const Elements<T, kIn, kOut>& p, const ElementPart& part) {
    if (!part.streams) return;
    inside.fill(kAheadBytes);
    below = inside;
    if (part.rows == 1) return;
    constexpr int64_t kSize = sizeof(T);
    const int64_t row = part.columns * kSize;
    for (int i = 0; i < kIn; ++i) {
      below[i] = row < kAheadBytes ? ceil_div(kAheadBytes, row) * p.in[i].stride * kSize
                                   : kAheadBytes + p.in[i].stride * kSize - row;
    }
    until = row < kAheadBytes ? 0 : (part.columns - kAheadBytes / kSize) / kLineElements<T> * kLineElements<T>;
  }

  HWY_INLINE const Bytes& of(int64_t column) const { return column < until ? inside : below; }
};

template <class Program, class T, int kIn, int kOut>
HWY_INLINE void walk_elements(const Elements<T, kIn, kOut>& p, const ElementPart& part) {
  static_assert(kIn == Program::kInputs && kOut == Program::kOutputs);
  alignas(64) T gathered[kIn][kBatchElements], scattered[kOut][kBatchElements];
  Stage<T, kMostOfBatch + kBatchElements / kShortRow * kLineElements<T>> stages[kOut];
  const int64_t columns = part.columns;
  const bool is_short = columns < kShortRow;
  // Results go past the caches at once if all their rows begin where lines do. (Zen 5: SwiGLU of 4096 x 8192 takes 0.72
  // to 0.79 of the time so, its gradient of 57672 x 128 half of it.) One row may begin anywhere: what is before a line
  // is stored as usual. Rows that share lines, without gaps, go by way of a stage. Other rows are stored as usual: at
  // each end they have a part of a line, which takes longer beside lines that go past the caches.
  const int64_t head = p.rows == 1 ? before_line(p.out[0].row(part.row) + part.column, columns) : 0;
  const auto is_in_lines = [&](const Rows<T>& rows) {
    const auto line = reinterpret_cast<uintptr_t>(rows.row(part.row) + part.column + head);
    return (line | (p.rows == 1 ? 0 : static_cast<uintptr_t>(rows.stride) * sizeof(T))) % 64 == 0;
  };
  const bool direct = part.streams && !is_short && std::all_of(p.out, p.out + kOut, is_in_lines);
  const auto is_dense = [&](const Rows<T>& rows) { return rows.stride == p.columns; };
  const bool staged = part.streams && !direct && std::all_of(p.out, p.out + kOut, is_dense);
  const Ahead<kIn> ahead(p, part);
  // Rows [r, r + rows), columns [c, c + n) of the part.
  const auto batch = [&](int64_t r, int64_t rows, int64_t c, int64_t n) DESCEND_INLINED {
    Rows<const T> from[kIn];
    Rows<T> to[kOut], out[kOut];
    for (int i = 0; i < kIn; ++i) {
      from[i] = {p.in[i].row(r) + part.column + c, p.in[i].stride};
      if (!is_short || rows == 1 || from[i].stride == n) continue;
      copy_rows(from[i], Rows<T>{gathered[i], n}, rows, n);
      from[i] = {gathered[i], n};
    }
    for (int i = 0; i < kOut; ++i) {
      to[i] = {p.out[i].row(r) + part.column + c, rows == 1 ? n : p.out[i].stride};
      const bool is_scattered = is_short && to[i].stride != n;
      out[i] = is_scattered ? Rows<T>{scattered[i], n} : staged ? stages[i].rows(to[i], n) : to[i];
    }
    const int64_t spans = is_short ? 1 : rows;  // of short rows all are one
    for (int64_t k = 0; k < spans; ++k) {
      std::array<const T*, kIn> sources;
      std::array<T*, kOut> targets;
      for (int i = 0; i < kIn; ++i) sources[i] = from[i].row(k);
      for (int i = 0; i < kOut; ++i) targets[i] = out[i].row(k);
      if (direct && c >= head) {
        map_span<T, Memory::kStreams>(sources, targets, n, Program(), ahead.of(c));
      } else if (part.streams) {
        map_span<T, Memory::kAhead>(sources, targets, rows / spans * n, Program(), ahead.of(c));
      } else {
        map_span<T>(sources, targets, rows / spans * n, Program());
      }
    }
    for (int i = 0; i < kOut; ++i) {
      if (is_short && to[i].stride != n) {
        copy_rows(Rows<const T>{scattered[i], n}, to[i], rows, n);
      } else if (staged) {
        stages[i].stream(to[i], rows, n);
      }
    }
  };
  const int64_t end = part.row + part.rows, many = HWY_MAX(int64_t{1}, kBatchElements / columns);
  for (int64_t r = part.row; r < end; r += many) {
    for (int64_t j = 0, n; j < columns; j += n) {
      n = columns - j <= kMostOfBatch ? columns - j : kBatchElements;
      if (direct && j < head) n = head;
      if (j < ahead.until) n = HWY_MIN(n, ahead.until - j);
      batch(r, HWY_MIN(many, end - r), j, n);
    }
  }
  if (!part.streams) return;
  for (auto& stage : stages) stage.finish();
  flush_streams();
}

// Streams that have the element types Ts, inputs first, converted in registers; false where they have others, or short
// rows with gaps.
template <class W, class... Ts, class Program, int kIn, int kOut>
HWY_INLINE bool walk_types(const MixedElements<W, kIn, kOut>& p, const ElementPart& part, const Program& program) {
  static_assert(sizeof...(Ts) == kIn + kOut);
  constexpr Element kTypes[] = {kElementOf<Ts>...};
  for (int i = 0; i < kIn + kOut; ++i) {
    if ((i < kIn ? p.in[i] : p.out[i - kIn]).type != kTypes[i]) return false;
  }
  if (part.rows > 1 && part.columns < kShortRow) return false;
  using Types = std::tuple<Ts...>;
  for (int64_t r = part.row; r < part.row + part.rows; ++r) {
    const auto in = [&]<size_t... i>(std::index_sequence<i...>) {
      return std::tuple(static_cast<const std::tuple_element_t<i, Types>*>(p.in[i].at(r, part.column))...);
    }(std::make_index_sequence<kIn>());
    const auto out = [&]<size_t... i>(std::index_sequence<i...>) {
      return std::tuple(static_cast<std::tuple_element_t<kIn + i, Types>*>(p.out[i].at(r, part.column))...);
    }(std::make_index_sequence<kOut>());
    map_span<W>(in, out, part.columns, program);
  }
  return true;
}

// Streams of several types: those of another one than W are converted, a batch at a time, which a first-level cache
// keeps. Nothing is prefetched: that made AdamW in place take 1.1 to 1.2 times as long.
template <class Program, class W, int kIn, int kOut>
HWY_INLINE void walk_mixed(const MixedElements<W, kIn, kOut>& p, const ElementPart& part, const Program& program) {
  static_assert(kIn == Program::kInputs && kOut == Program::kOutputs && kOut <= kIn);
  alignas(64) W copies[kIn][kBatchElements];
  const int64_t columns = part.columns;
  const bool is_short = columns < kShortRow;
  const int64_t many = is_short ? kBatchElements / columns : 1, wide = is_short ? columns : kBatchElements;
  const int64_t end = part.row + part.rows;
  for (int64_t r = part.row; r < end; r += many) {
    for (int64_t j = 0; j < columns; j += wide) {
      const int64_t rows = HWY_MIN(many, end - r), n = HWY_MIN(wide, columns - j), column = part.column + j;
      std::array<const W*, kIn> in;
      std::array<W*, kOut> out;
      const auto is_whole = [&](const AnyRows& stream) { return rows == 1 || stream.stride == n; };
      const auto is_direct = [&](const AnyRows& stream) { return stream.type == kElementOf<W> && is_whole(stream); };
      // f(place in the stream, place in the copy, how many) of all neighbours.
      const auto each_run = [&](const AnyRows& stream, W* copy, auto f) {
        if (is_whole(stream)) return f(stream.at(r, column), copy, rows * n);
        for (int64_t k = 0; k < rows; ++k) f(stream.at(r + k, column), copy + k * n, n);
      };
      for (int i = 0; i < kIn; ++i) {
        in[i] = is_direct(p.in[i]) ? static_cast<const W*>(p.in[i].at(r, column)) : copies[i];
        if (in[i] != copies[i]) continue;
        each_run(p.in[i], copies[i],
                 [&](const void* from, W* to, int64_t count) { convert_from(p.in[i].type, from, to, count); });
      }
      for (int i = 0; i < kOut; ++i) {
        out[i] = is_direct(p.out[i]) ? static_cast<W*>(p.out[i].at(r, column)) : copies[i];
      }
      map_span<W>(in, out, rows * n, program);
      for (int i = 0; i < kOut; ++i) {
        if (out[i] != copies[i]) continue;
        each_run(p.out[i], copies[i],
                 [&](void* to, const W* from, int64_t count) { convert_to(from, p.out[i].type, to, count); });
      }
    }
  }
}

}  // namespace descend::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
