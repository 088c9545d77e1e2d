// How results of rows are stored.
#pragma once

#include <cstdint>

#include "kernels/schedule/cut.h"
#include "kernels/simd/element.h"

namespace descend::kernels {

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

}  // namespace descend::kernels
