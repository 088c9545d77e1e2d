// How results of rows are stored.
#pragma once

#include <cstdint>

#include "kernels/cut.h"
#include "kernels/element.h"

namespace descend::kernels {

// As usual, or past the caches: as they are, or by way of a stage where they are not aligned and not too long for it.
enum class Stores : uint8_t { kPlain, kStream, kStaged };

// 16-bit rows of fewer columns leave memory idle, whatever way they are stored. The lower bound was found on AMD's
// Zen 5; where the second-level cache is asked, as on Zen 4, the one from before is kept until it is measured there.
inline int64_t least_staged() { return kAsksSecondLevel ? 96 : 16; }

// Lines of the caches, of 64 bytes, may be stored past them by quarters, and the ends of rows by words.
inline constexpr int kQuarterLine = 16, kWord = 4;

// Whether rows begin where lines do, or at other multiples of bytes.
template <class T>
bool are_aligned(const Rows<T>& rows, int bytes = 64) {
  const int64_t stride = rows.stride * static_cast<int64_t>(sizeof(T));
  return reinterpret_cast<uintptr_t>(rows.data) % bytes == 0 && stride % bytes == 0;
}

// Where results that are not in rows are stored past the caches by quarters of lines, too. Of 16 bits they take so much
// arithmetic that to check for it costs more. (NSA compression forward, whose results are few, checks all the same.)
template <class T>
inline constexpr bool kInQuarters = sizeof(T) > 2;

// Bytes that such results begin at multiples of.
template <class T>
inline constexpr int kStreamUnit = kInQuarters<T> ? kQuarterLine : 64;

// Whether an output that may begin at multiples of so many bytes should be stored past the caches as it is.
template <class T>
bool stream_output(const Rows<T>& output, const Traffic& traffic, int bytes = 64) {
  return are_aligned(output, bytes) && streams_results(traffic);
}

// Rows of so many bytes or more are long: they may be worked on line by line, wherever they begin.
inline constexpr int64_t kLongRow = int64_t{1} << 10;
template <class T>
constexpr bool are_long(int64_t columns) {
  return columns * static_cast<int64_t>(sizeof(T)) >= kLongRow;
}

// Of rows that are stored as they are or, where they are not aligned, by way of a stage. Aligned ones, which may be
// longer than any stage, never are: a call may touch more than the last-level cache has room for, and its results still
// not be worth storing past the caches.
template <class T>
Stores stores_of(const Rows<T>& y, int64_t columns, const Traffic& traffic) {
  if (are_aligned(y)) return streams_results(traffic) ? Stores::kStream : Stores::kPlain;
  const bool staged = exceeds_last_cache(traffic.bytes) && (sizeof(T) > 2 || columns >= least_staged());
  return staged ? Stores::kStaged : Stores::kPlain;
}

// How rows of results are stored: where they are not aligned, those of `in_lines` bytes or more line by line, not by
// way of a stage. The lines that two rows share are stored in parts, or fetched again to be completed: as long as the
// last-level cache has room for the call, that takes longer than to store rows as usual.
template <class T>
Stores row_stores_of(const Rows<T>& y, int64_t columns, const Traffic& traffic, int64_t in_lines = kLongRow) {
  if (are_aligned(y) || columns * static_cast<int64_t>(sizeof(T)) < in_lines) return stores_of(y, columns, traffic);
  const bool has_lines = reinterpret_cast<uintptr_t>(y.data) % sizeof(T) == 0;
  return has_lines && exceeds_last_cache(traffic.bytes) ? Stores::kStream : Stores::kPlain;
}

}  // namespace descend::kernels
