#include "kernels/nsa_compress.h"

#include <algorithm>

#include "kernels/nsa/nsa_tokens-inl.h"
#include "kernels/schedule/cut.h"
#include "kernels/schedule/stores.h"
#include "kernels/simd/dispatch.h"
#include "runtime/parallel.h"

namespace descend::kernels {

// What is computed at a time: some neighbouring windows, some heads or a stretch of one.
struct NsaColumns {
  int64_t head, head_end;
  int64_t begin, end;  // of each of these heads
  Ask ask;             // for the input

  int64_t heads() const { return head_end - head; }
  int64_t depth() const { return end - begin; }
};

// Bytes of sums that are worked on at once, and how many of them leave a first-level cache room for the input.
inline constexpr int64_t kSumBytes = int64_t{64} << 10;
inline constexpr int64_t kUsualSumBytes = int64_t{24} << 10;

// How far ahead, at least, the input is asked for, where the call touches more than a second-level cache may hold: it
// is read some tokens at a time.
inline constexpr int64_t kTokensAheadBytes = int64_t{12} << 10;
inline constexpr int64_t kKeptBytes = int64_t{3} << 20;

}  // namespace descend::kernels

HWY_BEFORE_NAMESPACE();
namespace descend::kernels::HWY_NAMESPACE {

// The sums of windows [first, last) of a sequence. Those that are open, which is begun and not ended, take turns in a
// few rows.
template <class T>
class WindowSums {
  using W = Wide<T>;

 public:
  WindowSums(const NsaCompress<T>& p, const NsaColumns& columns, int64_t slots, W* sums) : p_(p), columns_(columns) {
    covered_.input_stride = p.input.stride;
    const int64_t bytes = columns.heads() * columns.depth() * static_cast<int64_t>(sizeof(T));
    ahead_ = HWY_MAX(kPositions, (kTokensAheadBytes - 1) / bytes + 1) * p.input.stride;
    covered_.ask = columns.ask;
    covered_.columns = columns.heads() * columns.depth();
    covered_.weight_stride = p.heads;
    covered_.weight_window = p.windows.stride * p.heads;
    covered_.sums = sums;
    covered_.heads = columns.heads();
    covered_.head_step = p.depth;
    covered_.depth = columns.depth();
    covered_.padded = depth_in_pairs<W>(columns.depth());
    covered_.row = covered_.heads * covered_.padded;
    covered_.rows = slots * covered_.row;
  }

  void compute(const Sequence& sequence, int64_t first, int64_t last, bool streams) {
    const int64_t stride = p_.windows.stride, width = p_.windows.width;
    int64_t begun = first, begun_place = 0;
    covered_.place = 0;
    for_each_stretch(p_.windows, first * stride, (last - 1) * stride + width, first, last,
                     [&](int64_t t, int64_t end, int64_t oldest, int64_t newest) HWY_ATTR {
                       if (newest < oldest) return;
                       if (begun == newest) {
                         begin(begun_place);
                         begun_place = next(begun_place);
                         ++begun;
                       }
                       covered_.windows = newest - oldest + 1;
                       add_tokens(sequence.token + t, t - oldest * stride, end - t);
                       if (end == oldest * stride + width) {
                         streams ? finish<kHasVectors>(sequence.window + oldest)
                                 : finish<false>(sequence.window + oldest);
                         covered_.place = next(covered_.place);
                       }
                     });
  }

 private:
  int64_t next(int64_t place) const { return place + covered_.row == covered_.rows ? 0 : place + covered_.row; }

  // Tokens in groups that are the same for every window, whether or not its neighbours are there.
  void add_tokens(int64_t token, int64_t position, int64_t count) {
    const int64_t groups = count / kPositions;
    covered_.input = p_.input.row(token) + columns_.head * p_.depth + columns_.begin;
    covered_.weight = p_.weight + position * p_.heads + columns_.head;
    covered_.ahead = covered_.input + ahead_;
    if (groups > 0) add_heads<kPositions>(covered_, groups);
    covered_.input += groups * kPositions * covered_.input_stride;
    covered_.weight += groups * kPositions * covered_.weight_stride;
    add_rest(covered_, count % kPositions);
  }

  // As the sum of nothing, -0 leaves every term as it is.
  void begin(int64_t place) {
    W* const sums = covered_.sums + place;
    for (int64_t i = 0; i < covered_.row; i += kVectorLanes<W>) hn::StoreU(splat(W{-0.0}), Tag<W>(), sums + i);
  }

  // Stores the oldest window.
  template <bool kStream>
  void finish(int64_t window) const {
    const W* from = covered_.sums + covered_.place;
    T* to = p_.output.row(window) + columns_.head * p_.depth + columns_.begin;
    const int64_t depth = covered_.depth;
    for (int64_t n = 0; n < covered_.heads; ++n, from += covered_.padded, to += p_.depth) {
      int64_t d = 0;
      for (; d + kPairLanes<W> <= depth; d += kPairLanes<W>) {
        store_pair<kStream, Nan::kOfBfloat16, true>(Full(), vector(from, d), vector(from, d + kVectorLanes<W>), to + d,
                                                    0);
      }
      const Part rest{static_cast<size_t>(depth - d)};
      if (rest.n == kVectorLanes<W> && sizeof(T) == sizeof(W)) {
        store_bits<kStream, true>(Tag<W>(), vector(from, d), reinterpret_cast<W*>(to + d));
      } else if (rest.n == kVectorLanes<W>) {
        store_pair(rest, vector(from, d), vector(from, d), to + d, 0);
      } else if (rest.n > 0) {
        store_pair<false, Nan::kOfBfloat16>(rest, vector(from, d), vector(from, d + kVectorLanes<W>), to + d, 0);
      }
    }
  }
  static HWY_INLINE Vector<W> vector(const W* sums, int64_t d) { return hn::LoadU(Tag<W>(), sums + d); }

  const NsaCompress<T>& p_;
  const NsaColumns& columns_;
  int64_t ahead_;             // elements
  CoveredTokens<T> covered_;  // by all windows that are open
};

// Windows [begin, end) of all.
template <class T>
void nsa_windows(const NsaCompress<T>& p, int64_t begin, int64_t end, const NsaColumns& columns, bool stream) {
  using W = Wide<T>;
  HWY_ALIGN W sums[kSumBytes / sizeof(W)];
  const int64_t overlap = (p.windows.width - 1) / p.windows.stride + 1;
  const int64_t row = columns.heads() * depth_in_pairs<W>(columns.depth());
  const int64_t slots = HWY_MIN(overlap, kSumBytes / static_cast<int64_t>(sizeof(W)) / row);
  WindowSums<T> windows(p, columns, slots, sums);
  for (int64_t s = p.windows.find_window(begin); begin < end; ++s) {
    const Sequence& sequence = p.windows.sequences[s];
    const int64_t stop = HWY_MIN(end, sequence.window + sequence.windows);
    while (begin < stop) {
      const int64_t first = begin - sequence.window;
      const int64_t last = slots == overlap ? stop - sequence.window : HWY_MIN(first + slots, stop - sequence.window);
      windows.compute(sequence, first, last, stream);
      begin = sequence.window + last;
    }
  }
  if (stream) flush_streams();
}

}  // namespace descend::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

namespace descend::kernels::DESCEND_TARGET {

template <class T>
void nsa_compress(const NsaCompress<T>& p) {
  if (p.blocks == 0 || p.heads == 0 || p.depth == 0) return;
  constexpr int64_t kTakes = 8;     // of each thread
  constexpr int64_t kOverlaps = 4;  // windows of a chunk, at least, for each that covers the same token
  constexpr int64_t kMostColumns = kSumBytes / static_cast<int64_t>(sizeof(Wide<T>)) / 2;
  const int64_t size = static_cast<int64_t>(sizeof(T));
  const int64_t last = p.windows.count - 1;
  const int64_t tokens = p.windows.sequences[last].token + p.windows.sequences[last].tokens;
  const int64_t bytes = (tokens + p.blocks) * p.heads * p.depth * size;
  const bool stream = p.depth * size % 64 == 0 && are_aligned(p.output, kQuarterLine) && exceeds_kept(bytes);
  const int64_t overlap = ceil_div(p.windows.width, p.windows.stride);
  const int64_t pack_bytes = 128;
  const int64_t head_bytes = ceil_div(p.depth * static_cast<int64_t>(sizeof(Wide<T>)), pack_bytes) * pack_bytes;
  const int64_t heads = std::clamp<int64_t>(kUsualSumBytes / (overlap * head_bytes), 1, p.heads);
  const int64_t head_parts = ceil_div(p.heads, heads);
  const int64_t depth_parts = ceil_div(p.depth, kMostColumns);
  const int64_t parts = head_parts * depth_parts;
  // Neighbouring windows share tokens, so that a chunk has as many as leave every thread some. No sum depends on it.
  int64_t chunk = p.blocks;
  const auto cut = [&](int threads) {
    const int64_t chunks = threads == 1 ? 1 : ceil_div(kTakes * threads, parts);
    chunk = std::max(ceil_div(p.blocks, chunks), std::min(kOverlaps * overlap, ceil_div(p.blocks, threads)));
    return ceil_div(p.blocks, chunk) * parts;
  };
  parallel_for(p.blocks * parts, bytes, cut, [&](int64_t i) {
    const int64_t begin = i / parts * chunk, part = i % parts;
    NsaColumns columns;
    columns.ask = ask_for(bytes, kKeptBytes, 2);
    columns.head = part / depth_parts * heads;
    columns.head_end = std::min(columns.head + heads, p.heads);
    columns.begin = part % depth_parts * kMostColumns;
    columns.end = std::min(columns.begin + kMostColumns, p.depth);
    nsa_windows(p, begin, std::min(begin + chunk, p.blocks), columns, stream);
  });
}

}  // namespace descend::kernels::DESCEND_TARGET

DESCEND_KERNEL(void, nsa_compress, (const NsaCompress<T>& problem), problem)
