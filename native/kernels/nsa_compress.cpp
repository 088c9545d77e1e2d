#include "kernels/nsa_compress.h"

#include <algorithm>

#include "kernels/cut.h"
#include "runtime/parallel.h"

#define HWY_TARGET_INCLUDE "kernels/nsa_compress.cpp"
#include "kernels/dispatch.h"
#include "kernels/pack-inl.h"
#include "kernels/split_pack-inl.h"

#ifndef DESCEND_KERNELS_NSA_COMPRESS_PART_
#define DESCEND_KERNELS_NSA_COMPRESS_PART_
namespace descend::kernels {

// What is computed at a time: some neighbouring windows, some heads or a stretch of one.
struct NsaColumns {
  int64_t head, head_end;
  int64_t begin, end;  // of each of these heads

  int64_t width() const { return (head_end - head) * (end - begin); }
};

// Bytes of sums that are worked on at once.
inline constexpr int64_t kSumBytes = int64_t{64} << 10;
inline constexpr int64_t kMostWindows = 16;

}  // namespace descend::kernels
#endif

HWY_BEFORE_NAMESPACE();
namespace descend::kernels::HWY_NAMESPACE {

// Neighbouring positions whose terms are added on their own before they join the others; and how many of them are added
// one after the other. Short chains keep more of what a window of many positions has.
inline constexpr int kPositions = 8;
inline constexpr int kChain = 4;

// The weighted tokens [kFirst, kLast), one after the other.
template <int kFirst, int kLast, class T, class Extent>
HWY_INLINE Pack<Wide<T>> chain(Extent extent, const T* input, int64_t stride, const Vector<Wide<T>>* weight) {
  using W = Wide<T>;
  Pack<W> part = load_split(extent, input + kFirst * stride);
  DESCEND_UNROLL
  for (size_t k = 0; k < kPackVectors<W>; ++k) part.v[k] = hn::Mul(part.v[k], weight[kFirst]);
  DESCEND_UNROLL
  for (int i = kFirst + 1; i < kLast; ++i) {
    const Pack<W> x = load_split(extent, input + i * stride);
    DESCEND_UNROLL
    for (size_t k = 0; k < kPackVectors<W>; ++k) part.v[k] = hn::MulAdd(x.v[k], weight[i], part.v[k]);
  }
  return part;
}

// sums (fresh: =, else +=) the weighted tokens t, t + 1, ... of one head in one window.
template <int kCount, class T>
HWY_INLINE void add_tokens(const NsaCompress<T>& p, const T* input, const Wide<T>* weights, int64_t depth, bool fresh,
                           Wide<T>* sums) {
  using W = Wide<T>;
  constexpr int64_t kStep = kPackLanes<W>;
  Vector<W> weight[kCount];
  DESCEND_UNROLL
  for (int i = 0; i < kCount; ++i) weight[i] = splat(weights[i * p.heads]);
  const auto add_pack = [&](auto extent, int64_t d) HWY_ATTR {
    Pack<W> part = chain<0, HWY_MIN(kCount, kChain)>(extent, input + d, p.input.stride, weight);
    if constexpr (kCount > kChain) part = add(part, chain<kChain, kCount>(extent, input + d, p.input.stride, weight));
    store(Full(), fresh ? part : add(load_pack(Full(), sums + d), part), sums + d);
  };
  int64_t d = 0;
  for (; d + kStep <= depth; d += kStep) add_pack(Full(), d);
  if (d < depth) add_pack(Part{static_cast<size_t>(depth - d)}, d);
}

template <class T>
HWY_INLINE void add_count(const NsaCompress<T>& p, int64_t count, const T* input, const Wide<T>* weights, int64_t depth,
                          bool fresh, Wide<T>* sums) {
  switch (count) {
    case 1:
      return add_tokens<1>(p, input, weights, depth, fresh, sums);
    case 2:
      return add_tokens<2>(p, input, weights, depth, fresh, sums);
    case 3:
      return add_tokens<3>(p, input, weights, depth, fresh, sums);
    case 4:
      return add_tokens<4>(p, input, weights, depth, fresh, sums);
    case 5:
      return add_tokens<5>(p, input, weights, depth, fresh, sums);
    case 6:
      return add_tokens<6>(p, input, weights, depth, fresh, sums);
    case 7:
      return add_tokens<7>(p, input, weights, depth, fresh, sums);
    default:
      return add_tokens<kPositions>(p, input, weights, depth, fresh, sums);
  }
}

// Windows [first, last) of a sequence: every token is read once for all of them.
template <class T>
HWY_INLINE void sum_windows(const NsaCompress<T>& p, const Sequence& sequence, int64_t first, int64_t last,
                            const NsaColumns& columns, int64_t padded, Wide<T>* sums) {
  const int64_t stride = p.windows.stride, width = p.windows.width;
  const int64_t depth = columns.end - columns.begin;
  const int64_t heads = columns.head_end - columns.head;
  const int64_t end = (last - 1) * stride + width;
  int64_t token = first * stride;
  while (token < end) {
    const TokenRun run(p.windows, token, first, last);
    if (run.first > run.last) {
      token = (run.last + 1) * stride;  // windows that leave gaps
      continue;
    }
    // Positions are grouped the same way in every window, whether or not its neighbours are there: groups begin anew at
    // each multiple of the stride and where a window would end.
    const int64_t offset = token % stride, cut = width % stride;
    const int64_t group_end = token - offset + (offset < cut ? cut : stride);
    const int64_t count = HWY_MIN(HWY_MIN(group_end, end) - token, kPositions);
    const T* input = p.input.row(sequence.token + token) + columns.begin;
    for (int64_t n = 0; n < heads; ++n) {
      const int64_t head = columns.head + n;
      for (int64_t c = run.first; c <= run.last; ++c) {
        const int64_t position = token - c * stride;
        add_count(p, count, input + head * p.depth, p.weight + position * p.heads + head, depth, position == 0,
                  sums + ((c - first) * heads + n) * padded);
      }
    }
    token += count;
  }
}

// Windows [begin, end) of all.
template <class T>
void nsa_windows(const NsaCompress<T>& p, int64_t begin, int64_t end, const NsaColumns& columns, bool stream) {
  using W = Wide<T>;
  constexpr int64_t kStep = kPackLanes<W>;
  HWY_ALIGN W sums[kSumBytes / sizeof(W)];
  const int64_t heads = columns.head_end - columns.head;
  const int64_t depth = columns.end - columns.begin;
  const int64_t padded = (depth + kStep - 1) / kStep * kStep;
  const int64_t most = HWY_MIN(kMostWindows, kSumBytes / static_cast<int64_t>(sizeof(W)) / (heads * padded));
  int64_t s = p.windows.find_window(begin);
  while (begin < end) {
    const Sequence& sequence = p.windows.sequences[s];
    const int64_t first = begin - sequence.window;
    const int64_t last = HWY_MIN(first + most, HWY_MIN(end - sequence.window, sequence.windows));
    if (first == last) {
      ++s;
      continue;
    }
    sum_windows(p, sequence, first, last, columns, padded, sums);
    const W* from = sums;
    for (int64_t c = first; c < last; ++c) {
      T* row = p.output.row(sequence.window + c) + columns.begin;
      for (int64_t n = columns.head; n < columns.head_end; ++n, from += padded) {
        T* to = row + n * p.depth;
        int64_t d = 0;
        if (stream) {
          for (; d + kStep <= depth; d += kStep) store_split<true>(Full(), load_pack(Full(), from + d), to + d);
        } else {
          for (; d + kStep <= depth; d += kStep) store_split(Full(), load_pack(Full(), from + d), to + d);
        }
        if (d < depth) store_split(Part{static_cast<size_t>(depth - d)}, load_pack(Full(), from + d), to + d);
      }
    }
    begin = sequence.window + last;
  }
  if (stream) flush_streams();
}

}  // namespace descend::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace descend::kernels {

template <class T>
void nsa_compress(const NsaCompress<T>& p) {
  static const auto run = DESCEND_CHOOSE(nsa_windows<T>);
  if (p.blocks == 0 || p.heads == 0 || p.depth == 0) return;
  constexpr int64_t kMaxChunks = 64;
  constexpr int64_t kMostColumns = kSumBytes / static_cast<int64_t>(sizeof(Wide<T>)) / 2;
  const int64_t size = static_cast<int64_t>(sizeof(T));
  const int64_t last = p.windows.count - 1;
  const int64_t tokens = p.windows.sequences[last].token + p.windows.sequences[last].tokens;
  const int64_t bytes = (tokens + p.blocks) * p.heads * p.depth * size;
  const bool stream = p.depth * size % 64 == 0 && stream_output(p.output.data, p.output.stride * size, bytes);
  const int64_t lanes = 128 / static_cast<int64_t>(sizeof(Wide<T>));
  const int64_t heads = std::clamp<int64_t>(kMostColumns / (ceil_div(p.depth, lanes) * lanes), 1, p.heads);
  const int64_t head_parts = ceil_div(p.heads, heads);
  const int64_t depth_parts = ceil_div(p.depth, kMostColumns);
  // Neighbouring windows share tokens, so that a chunk has many of them where there are many.
  const int64_t chunk = ceil_div(p.blocks, kMaxChunks);
  const int64_t parts = head_parts * depth_parts;
  parallel_for(ceil_div(p.blocks, chunk) * parts, bytes, [&](int64_t i) {
    const int64_t begin = i / parts * chunk, part = i % parts;
    NsaColumns columns;
    columns.head = part / depth_parts * heads;
    columns.head_end = std::min(columns.head + heads, p.heads);
    columns.begin = part % depth_parts * kMostColumns;
    columns.end = std::min(columns.begin + kMostColumns, p.depth);
    run(p, begin, std::min(begin + chunk, p.blocks), columns, stream);
  });
}

template void nsa_compress<float16>(const NsaCompress<float16>& problem);
template void nsa_compress<bfloat16>(const NsaCompress<bfloat16>& problem);
template void nsa_compress<float>(const NsaCompress<float>& problem);
template void nsa_compress<double>(const NsaCompress<double>& problem);

}  // namespace descend::kernels
#endif  // HWY_ONCE
