// The mask of a softmax as rows: broadcast over any dimensions without being copied.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>

#include "hwy/base.h"
#include "kernels/schedule/cut.h"

namespace descend::kernels {

struct MaskRows {
  static constexpr int kMaxRank = 8;
  const uint8_t* data = nullptr;  // of row 0; null: nothing is masked. A byte other than 0 masks.
  int64_t column_stride = 1;      // strides in bytes, 0 where the mask is broadcast
  int rank = 0;                   // of the dimensions that count the rows, outermost first
  int64_t shape[kMaxRank] = {};
  int64_t stride[kMaxRank] = {};
  int64_t triangle = 0;  // if not 0: the mask is none of this, but every column beyond the row's number modulo it
};

// A row of the mask, as packs of columns read it.
struct MaskRow {
  static constexpr int64_t kPack = 32;  // columns at most

  // Bytes of columns that are not masked.
  static constexpr int64_t kMostNone = 4096;
  static constexpr uint8_t kNone[kMostNone] = {};

  const uint8_t* first;  // the byte of its first column; null: the first `open` columns are not masked, all others are
  int64_t step;          // from one column to the next
  int64_t open;

  // Its columns from c on.
  HWY_INLINE MaskRow from(int64_t c) const { return {first == nullptr ? nullptr : first + c * step, step, open - c}; }

  // Whether any of `columns` columns is masked, as far as is known without reading.
  HWY_INLINE bool may_mask(int64_t columns) const { return first != nullptr || open < columns; }

  // The bytes of columns [c, c + n), a pack at most; where they are not neighbours in memory, in `buffer`.
  HWY_INLINE const uint8_t* pack(int64_t c, int64_t n, uint8_t* buffer) const {
    if (first == nullptr) return kEdge + kPack - std::clamp<int64_t>(open - c, 0, kPack);
    if (HWY_LIKELY(step == 1)) return first + c;
    for (int64_t i = 0; i < n; ++i) buffer[i] = first[(c + i) * step];
    return buffer;
  }

  // The same of a block at most.
  HWY_INLINE const uint8_t* columns(int64_t c, int64_t n, uint8_t* buffer) const {
    if (first == nullptr) {
      if (open - c >= n) return kNone;
      for (int64_t i = 0; i < n; ++i) buffer[i] = i >= open - c;
      return buffer;
    }
    if (step == 1) return first + c;
    for (int64_t i = 0; i < n; ++i) buffer[i] = first[(c + i) * step];
    return buffer;
  }

 private:
  static constexpr uint8_t kEdge[2 * kPack] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,  //
                                               0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,  //
                                               1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1,  //
                                               1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
};

// One row of the mask after the other. Inlined by force, into each instruction set's kernels.
class MaskCursor {
 public:
  HWY_INLINE MaskCursor(const MaskRows& mask, int64_t row) : mask_(mask), row_(row) {
    for (int i = mask.rank - 1; i >= 0; --i) {
      index_[i] = row % mask.shape[i];
      row /= mask.shape[i];
      offset_ += index_[i] * mask.stride[i];
    }
  }

  HWY_INLINE void next() { advance(1); }

  HWY_INLINE MaskRow row() const {
    constexpr int64_t kAll = std::numeric_limits<int64_t>::max();
    if (mask_.triangle > 0) return {nullptr, 0, row_ % mask_.triangle + 1};
    if (mask_.data == nullptr) return {nullptr, 0, kAll};
    const uint8_t* first = mask_.data + offset_;
    if (mask_.column_stride == 0) return {nullptr, 0, *first == 0 ? kAll : 0};
    return {first, mask_.column_stride, 0};
  }

  // The bytes of a tile of short rows, one row after the other, of this row and those behind it; moves on behind them.
  // Where they do not lie so in memory they are brought into `buffer`.
  HWY_INLINE const uint8_t* tile(int64_t rows, int64_t columns, uint8_t* buffer) {
    if (mask_.data == nullptr && mask_.triangle == 0 && rows * columns <= MaskRow::kMostNone) {
      row_ += rows;
      return MaskRow::kNone;
    }
    const int inner = mask_.rank - 1;
    const bool neighbours = mask_.data != nullptr && mask_.triangle == 0 && mask_.column_stride == 1 && inner >= 0 &&
                            mask_.stride[inner] == columns;
    for (int64_t done = 0; done < rows;) {
      uint8_t* to = buffer + done * columns;
      if (neighbours) {
        const int64_t run = std::min(rows - done, mask_.shape[inner] - index_[inner]);
        const uint8_t* bytes = mask_.data + offset_;
        advance(run);
        if (run == rows) return bytes;
        std::memcpy(to, bytes, static_cast<size_t>(run * columns));
        done += run;
      } else {
        const uint8_t* bytes = row().columns(0, columns, to);
        if (bytes != to) std::memcpy(to, bytes, static_cast<size_t>(columns));
        next();
        ++done;
      }
    }
    return buffer;
  }

 private:
  // By n rows, which do not go beyond the end of the innermost dimension.
  HWY_INLINE void advance(int64_t n) {
    row_ += n;
    for (int i = mask_.rank - 1; i >= 0; --i, n = 1) {
      offset_ += n * mask_.stride[i];
      index_[i] += n;
      if (index_[i] < mask_.shape[i]) return;
      offset_ -= mask_.shape[i] * mask_.stride[i];
      index_[i] = 0;
    }
  }

  const MaskRows& mask_;
  int64_t row_;
  int64_t offset_ = 0;
  int64_t index_[MaskRows::kMaxRank] = {};
};

}  // namespace descend::kernels
