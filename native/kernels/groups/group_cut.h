// How the groups of a group norm are cut: for the order of its sums, and among the threads.
//
// A sample is one row of x: [channels, inner]. A group is some neighbouring channels of one sample. All follows from
// the shape alone.
#pragma once

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstdint>

#include "kernels/schedule/cut.h"

namespace descend::kernels {

// Elements of a group that one thread takes whole: its second-level cache keeps them between the passes.
inline constexpr int64_t kWholeElements = 64 << 10;

// Elements that a thread takes at a time of a group that is shared.
inline constexpr int64_t kPieceElements = 16 << 10;

// Whether swish and its slope are computed the brief way, as exact as elements of 16 bits can show.
template <class T>
inline constexpr bool kBriefly = sizeof(T) == 2;

struct GroupShape {
  int64_t samples = 0;
  int64_t channels = 0;
  int64_t groups = 0;  // in a sample
  int64_t inner = 0;   // elements of a channel

  int64_t group_channels() const { return channels / groups; }
  int64_t group_elements() const { return group_channels() * inner; }
  int64_t elements() const { return samples * channels * inner; }
};

// Neighbouring groups of one or several samples; all that has the same samples has one slot for its sums.
struct GroupChunk {
  int64_t slot;
  int64_t first_sample, last_sample;
  int64_t first_group, last_group;
};

// Whole groups for each thread, in chunks.
struct GroupCut {
  int64_t chunk_samples;
  int64_t chunk_groups;
  int64_t sample_chunks;
  int64_t group_chunks;

  int64_t chunks() const { return sample_chunks * group_chunks; }
  GroupChunk chunk(const GroupShape& shape, int64_t i) const {
    const int64_t slot = i / group_chunks, sample = slot * chunk_samples, group = i % group_chunks * chunk_groups;
    return {slot, sample, std::min(sample + chunk_samples, shape.samples), group,
            std::min(group + chunk_groups, shape.groups)};
  }
};

inline constexpr int64_t kMaxGroupChunks = 64;

// A channel with fewer elements is short: what a channel costs beside them counts, and of four vectors, which are
// worked on side by side, too many lanes would be empty.
inline bool has_short_channels(const GroupShape& shape) { return shape.inner < 50; }

// What the work on some elements is worth in bytes moved: arithmetic takes longer than memory.
inline int64_t group_work(const GroupShape& shape, int64_t elements) {
  return elements * (has_short_channels(shape) ? 16 : 8);
}

// Each chunk of samples has its own sums of all channels, in double, which of short ones cost as much as the
// elements of several samples. A chunk then has enough samples for that: samples are cut into groups as well, as far as
// each chunk keeps enough of a sample, and otherwise there are fewer chunks.
inline GroupCut cut_groups(const GroupShape& shape) {
  constexpr int64_t kSmallWork = int64_t{128} << 10;  // not worth a second thread
  constexpr int64_t kChunkWork = int64_t{32} << 10;   // of a chunk, if not more
  const int64_t work = group_work(shape, shape.elements());
  if (work <= kSmallWork) return {shape.samples, shape.groups, 1, 1};
  const int64_t chunks = std::min(ceil_div(work, kChunkWork), kMaxGroupChunks);
  int64_t sample_chunks = chunks;
  if (has_short_channels(shape)) {
    constexpr int64_t kEnough = 512, kEnoughOfAll = 16;  // elements of a sample, and of a channel in all samples
    constexpr int64_t kChunks = 16;                      // for so many, rather more sums
    const int64_t samples = ceil_div(kEnoughOfAll, shape.inner);
    const int64_t most = std::clamp<int64_t>(shape.channels * shape.inner / kEnough, 1, shape.groups);
    const int64_t parts = std::min(ceil_div(samples * chunks, shape.samples), most);
    sample_chunks = std::min(chunks / parts, std::max(ceil_div(shape.samples, samples), kChunks / parts));
  }
  GroupCut cut;
  cut.chunk_samples = ceil_div(shape.samples, std::max<int64_t>(sample_chunks, 1));
  cut.sample_chunks = ceil_div(shape.samples, cut.chunk_samples);
  cut.chunk_groups = ceil_div(shape.groups, std::max<int64_t>(chunks / cut.sample_chunks, 1));
  cut.group_chunks = ceil_div(shape.groups, cut.chunk_groups);
  return cut;
}

// Whether the threads share each group: it is large, or there are few.
inline bool split_groups(const GroupShape& shape) {
  const int64_t elements = shape.group_elements();
  return elements > kWholeElements || (shape.samples * shape.groups < 8 && elements >= 2 * kPieceElements);
}

// As many buffers as chunks can be in work at a time; the lowest free one is taken, so that few are ever touched.
class Buffers {
 public:
  Buffers(void* memory, size_t bytes) : memory_(static_cast<char*>(memory)), bytes_(bytes) {}

  class Taken {
   public:
    explicit Taken(Buffers& buffers) : buffers_(buffers) {
      uint64_t free = buffers.free_.load(std::memory_order_relaxed);
      while (!buffers.free_.compare_exchange_weak(free, free & (free - 1), std::memory_order_acquire)) {
      }
      index_ = std::countr_zero(free);
    }
    ~Taken() { buffers_.free_.fetch_or(uint64_t{1} << index_, std::memory_order_release); }
    Taken(const Taken&) = delete;
    Taken& operator=(const Taken&) = delete;
    void* get() const { return buffers_.memory_ + static_cast<size_t>(index_) * buffers_.bytes_; }

   private:
    Buffers& buffers_;
    int index_;
  };

 private:
  char* memory_;
  size_t bytes_;
  std::atomic<uint64_t> free_{~uint64_t{0}};
};

}  // namespace descend::kernels
