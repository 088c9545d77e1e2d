// How results of rows are stored.
#pragma once

#include <cstdint>

#include "kernels/cut.h"
#include "kernels/element.h"

namespace descend::kernels {

// Rows that a stage has room for, where they are short.
inline constexpr int64_t kMostStagedRows = 64;

// As usual or past the caches, by way of a stage where their rows are not aligned.
enum class Stores : uint8_t { kPlain, kStream, kStaged };

// 16-bit rows that are shorter leave memory idle, whatever way they are stored.
inline constexpr int64_t kLeastStaged = 96;

template <class T>
Stores stores_of(const Rows<T>& y, int64_t columns, int64_t bytes) {
  if (stream_output(y.data, y.stride * static_cast<int64_t>(sizeof(T)), bytes)) return Stores::kStream;
  const bool staged = exceeds_last_cache(bytes) && (sizeof(T) > 2 || columns >= kLeastStaged);
  return staged ? Stores::kStaged : Stores::kPlain;
}

}  // namespace descend::kernels
