#include "kernels/nsa_compress_grad.h"

#include <algorithm>
#include <type_traits>

#include "kernels/nsa/nsa_heads-inl.h"
#include "kernels/rows/prefetch-inl.h"
#include "kernels/schedule/cut.h"
#include "kernels/schedule/stores.h"
#include "kernels/simd/dispatch.h"
#include "kernels/simd/fold_rows-inl.h"
#include "kernels/simd/pack-inl.h"
#include "runtime/parallel.h"

namespace descend::kernels {

// Pairs of position and head whose lanes of float sums are worked on at once: 32 KiB of them.
inline constexpr int64_t kPairs = 512;

inline constexpr int64_t kUsualPairs = 256;

// Elements of the rows of output_grad that are kept widened, those of all windows that overlap and of a part's heads.
inline constexpr int64_t kWidened = 8192;
inline constexpr int64_t kUsuallyWidened = 4096;  // so that they stay in a first-level cache, with the sums

// How far ahead, at least, input and input_grad are asked for.
inline constexpr int64_t kGradAheadBytes = 4096;

// Windows that cover one token, at most.
inline int64_t overlap_windows(const Windows& w) { return ceil_div(w.width, w.stride); }

// What is computed at a time: some tokens, heads and positions.
struct NsaPart {
  int64_t token = 0, token_end = 0;
  int64_t head = 0, head_end = 0;
  int64_t position = 0, position_end = 0;
  bool input_grad = true;  // of all positions; or the sums for weight_grad alone
  bool streams = false;    // whether input_grad is stored past the caches

  int64_t heads() const { return head_end - head; }
};

}  // namespace descend::kernels

HWY_BEFORE_NAMESPACE();
namespace descend::kernels::HWY_NAMESPACE {

// Calls covered(sequence, begin, end, oldest, newest), for tokens of a sequence that have the same windows, or
// uncovered(token) over [token, end).
template <class T, class Covered, class Uncovered>
HWY_INLINE void walk(const NsaCompressGrad<T>& p, int64_t token, int64_t end, Covered covered, Uncovered uncovered) {
  for (int64_t i = p.windows.find_token(token); token < end && i < p.windows.count; ++i) {
    const Sequence& sequence = p.windows.sequences[i];
    const int64_t stop = HWY_MIN(end, sequence.token + sequence.tokens);
    for_each_stretch(p.windows, token - sequence.token, stop - sequence.token, 0, sequence.windows,
                     [&](int64_t t, int64_t t_end, int64_t oldest, int64_t newest) HWY_ATTR {
                       if (oldest <= newest) return covered(sequence, t, t_end, oldest, newest);
                       for (; t < t_end; ++t) uncovered(sequence.token + t);
                     });
    token = stop;
  }
  for (; token < end; ++token) uncovered(token);
}

// The work on a part: it keeps the sums for weight_grad, and the rows of output_grad of the windows that overlap.
template <class T>
class PartWork {
  using W = Wide<T>;
  static constexpr int64_t kLanes = kSumLanes<W>;

 public:
  PartWork(const NsaCompressGrad<T>& p, const NsaPart& part) : p_(p), part_(part) {
    const int64_t row_bytes = part.heads() * p.depth * static_cast<int64_t>(sizeof(T));
    const int64_t ahead = (kGradAheadBytes - 1) / row_bytes + 1;  // tokens
    Stretch<T>& s = stretch_;
    s.heads = part.heads();
    s.depth = p.depth;
    s.step.input = p.input.stride;
    s.step.input_grad = p.input_grad.stride;
    s.output_grad_head = depth_in_packs<W>(p.depth);
    s.step.weight = p.heads;
    s.step.sums = s.heads * kLanes;
    s.step.window_output_grad = s.heads * s.output_grad_head;
    s.step.window_weight = -p.windows.stride * p.heads;
    s.step.input_ahead = ahead * p.input.stride;
    s.step.input_grad_ahead = ahead * p.input_grad.stride;
    const int64_t overlap = overlap_windows(p.windows);
    s.step.streams = part.streams;
    const bool has_all_positions = part.position_end - part.position == p.windows.width;
    together_ = has_all_positions && 2 * overlap * s.step.window_output_grad <= kWidened && overlap <= kWindowBlock;
    kept_ = 2 * overlap;
    // Sums that are added to one after the other must not lie a multiple of 4096 bytes apart.
    s.step.window_sums = -(p.windows.stride * s.step.sums + (together_ ? kLanes : 0));
  }

  // Tokens [begin, end); the sums start anew.
  void compute(int64_t begin, int64_t end) {
    const int64_t positions = part_.position_end - part_.position, strides = (positions - 1) / p_.windows.stride;
    const int64_t last = positions - strides * p_.windows.stride;
    std::fill_n(sums_, last * stretch_.step.sums - strides * stretch_.step.window_sums, W{0});
    walk(
        p_, begin, end,
        [&](const Sequence& sequence, int64_t t, int64_t stop, int64_t oldest, int64_t newest)
            HWY_ATTR { covered(sequence, t, stop, oldest, newest); },
        [&](int64_t t) HWY_ATTR {
          if (part_.input_grad) zero(t);
        });
  }

  // slot (fresh: =, else +=) the sums.
  void add_to(double* slot, bool fresh) const {
    HWY_ALIGN W folded[kPairs];
    const int64_t heads = part_.heads();
    const W* block = sums_;
    for (int64_t w = part_.position; w < part_.position_end; block -= stretch_.step.window_sums) {
      const int64_t end = HWY_MIN(w + p_.windows.stride, part_.position_end);
      fold_each_row((end - w) * heads, [&](int64_t r) DESCEND_INLINED { return load_sum(block + r * kLanes); }, folded);
      for (const W* sums = folded; w < end; ++w, sums += heads) {
        double* const totals = slot + w * p_.heads + part_.head;
        for (int64_t n = 0; n < heads; ++n) {
          const double sum = static_cast<double>(sums[n]);
          totals[n] = fresh ? sum : totals[n] + sum;
        }
      }
    }
  }

 private:
  // Tokens that the same windows cover.
  void covered(const Sequence& sequence, int64_t t, int64_t end, int64_t oldest, int64_t newest) {
    if (!together_) {
      for (; t < end; ++t) one_token(sequence, t, oldest, newest);
      return;
    }
    const int64_t token = sequence.token + t, position = t - oldest * p_.windows.stride;
    const int64_t back = position / p_.windows.stride;  // windows
    keep(sequence.window + oldest, sequence.window + newest);
    Stretch<T>& s = stretch_;
    s.tokens = end - t;
    s.input = p_.input.row(token) + part_.head * p_.depth;
    s.input_grad = p_.input_grad.row(token) + part_.head * p_.depth;
    s.output_grad = row(sequence.window + oldest);
    s.weight = p_.weight + position * p_.heads + part_.head;
    s.sums = sums_ - back * s.step.window_sums + (position - back * p_.windows.stride) * s.step.sums;
    s.step.windows = newest - oldest + 1;
    add_stretch(s);
  }

  // One token. Of the windows that cover it, from the oldest on, its positions descend by the stride.
  void one_token(const Sequence& sequence, int64_t t, int64_t oldest, int64_t newest) {
    const int64_t stride = p_.windows.stride, position = t - oldest * stride, count = newest - oldest + 1;
    // The windows where its position is one of the part's.
    const int64_t first = position < part_.position_end ? 0 : (position - part_.position_end) / stride + 1;
    const int64_t last = position < part_.position ? 0 : HWY_MIN(count, (position - part_.position) / stride + 1);
    for (int64_t n = part_.head; n < part_.head_end; ++n) {
      const T* const input = p_.input.row(sequence.token + t) + n * p_.depth;
      const T* const grad = p_.output_grad.row(sequence.window + oldest) + n * p_.depth;
      for (int64_t i = first; i < last; ++i) {
        const int64_t place = (position - i * stride - part_.position) * part_.heads() + n - part_.head;
        add_products(input, grad + i * p_.output_grad.stride, sums_ + place * kLanes);
      }
      if (part_.input_grad) {
        gather(grad, p_.weight + position * p_.heads + n, count, p_.input_grad.row(sequence.token + t) + n * p_.depth);
      }
    }
  }

  HWY_INLINE void add_products(const T* input, const T* grad, W* sums) const {
    Pack<W> products = zero_pack<W>();
    for_each_pack<W>(0, p_.depth, [&](auto extent, int64_t d) HWY_ATTR {
      const Pack<W> g = load_pack(extent, grad + d), x = load_pack(extent, input + d);
      each<kPackVectors<W>>([&](size_t k)
                                DESCEND_INLINED { products.v[k] = hn::MulAdd(g.v[k], x.v[k], products.v[k]); });
    });
    add_sums<T>(products, sums);
  }

  // The gradient of one token and head, which `count` windows cover.
  HWY_INLINE void gather(const T* grad, const W* weight, int64_t count, T* input_grad) const {
    for_each_pack<W>(0, p_.depth, [&](auto extent, int64_t d) HWY_ATTR {
      Pack<W> result = zero_pack<W>();
      for (int64_t block = 0; block < count; block += kWindowBlock) {
        Pack<W> part = zero_pack<W>();
        for (int64_t i = block; i < HWY_MIN(block + kWindowBlock, count); ++i) {
          const auto w = splat(weight[-i * p_.windows.stride * p_.heads]);
          const Pack<W> g = load_pack(extent, grad + i * p_.output_grad.stride + d);
          each<kPackVectors<W>>([&](size_t k) DESCEND_INLINED {
            part.v[k] = i == block ? hn::Mul(g.v[k], w) : hn::MulAdd(g.v[k], w, part.v[k]);
          });
        }
        result = block == 0 ? part : add(result, part);
      }
      store_results(extent, part_.streams, result, input_grad + d);
    });
  }

  // Of a token that no window covers.
  void zero(int64_t t) const {
    T* const to = p_.input_grad.row(t) + part_.head * p_.depth;
    for_each_pack<W>(0, part_.heads() * p_.depth, [&](auto extent, int64_t d) HWY_ATTR {
      store_results(extent, part_.streams, zero_pack<W>(), to + d);
    });
  }

  W* row(int64_t window) { return rows_ + (window - first_) * stretch_.step.window_output_grad; }

  // Sees to it that the rows of these windows, no older ones than before, are widened and lie side by side.
  void keep(int64_t oldest, int64_t newest) {
    if (newest < end_) return;
    if (newest - first_ >= kept_) {
      const W* const from = row(oldest);
      const int64_t size = HWY_MAX(end_ - oldest, 0) * stretch_.step.window_output_grad;
      std::copy_n(from, size, rows_);
      first_ = oldest;
      end_ = HWY_MAX(end_, oldest);
    }
    for (; end_ <= newest; ++end_) widen(end_);
  }

  void widen(int64_t window) {
    W* const to = row(window);
    const T* const from = p_.output_grad.row(window) + part_.head * p_.depth;
    for (int64_t n = 0; n < stretch_.heads; ++n) {
      for_each_pack<W>(0, p_.depth, [&](auto extent, int64_t d) HWY_ATTR {
        const T* grad = from + n * p_.depth + d;
        fetch<kPackLanes<W>>(grad + p_.output_grad.stride);
        store(Full(), load_pack(extent, grad), to + n * stretch_.output_grad_head + d);
      });
    }
  }

  const NsaCompressGrad<T>& p_;
  const NsaPart& part_;
  Stretch<T> stretch_;
  bool together_;                // whether all windows that overlap are worked on at once
  int64_t kept_;                 // rows of output_grad at most: twice as many as needed, so that they move seldom
  int64_t first_ = 0, end_ = 0;  // the windows that they belong to
  HWY_ALIGN W rows_[kWidened];
  HWY_ALIGN W sums_[2 * kPairs * kLanes];
};

template <class T>
void nsa_part(const NsaCompressGrad<T>& p, const NsaPart& part, int64_t stripe, double* slot) {
  PartWork<T> work(p, part);
  for (int64_t begin = part.token; begin < part.token_end; begin += stripe) {
    work.compute(begin, HWY_MIN(begin + stripe, part.token_end));
    work.add_to(slot, begin == part.token);
  }
  if (part.streams) flush_streams();
}

}  // namespace descend::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

namespace descend::kernels::DESCEND_TARGET {
namespace {

constexpr int64_t kMaxChunks = 64;
constexpr int64_t kMinChunkBytes = int64_t{32} << 10;
constexpr int64_t kFewParts = 4;
constexpr int64_t kSharedRowBytes = 4 << 10;  // of a row that several threads work on, for each of them
constexpr int64_t kLaneTerms = 128;           // terms that a lane adds in float

// Of more chunks than one there is an even number, as far as tokens can be divided so: two threads have as much.
int64_t chunk_tokens(int64_t tokens, int64_t width, int64_t row_bytes) {
  const int64_t least =
      std::max({ceil_div(tokens, kMaxChunks), ceil_div(kMinChunkBytes, row_bytes), std::min(width, tokens) * 2});
  const int64_t chunks = ceil_div(tokens, std::clamp<int64_t>(least, 1, tokens));
  return ceil_div(tokens, chunks == 1 ? 1 : ceil_div(chunks, 2) * 2);
}

// Tokens whose sums run in float: a position meets one of them every `stride`.
int64_t stripe_tokens(int64_t tokens, int64_t stride, int64_t packs) {
  const int64_t windows = std::max<int64_t>(kLaneTerms / packs, 1);
  return stride >= tokens ? tokens : std::min(tokens, stride * windows);
}

}  // namespace

template <class T>
int64_t nsa_compress_grad_slots(int64_t tokens, int64_t heads, int64_t depth, int64_t width) {
  if (tokens == 0 || heads == 0 || depth == 0) return 1;
  return ceil_div(tokens, chunk_tokens(tokens, width, heads * depth * static_cast<int64_t>(sizeof(T))));
}

template <class T>
void nsa_compress_grad(const NsaCompressGrad<T>& p) {
  const int64_t width = p.windows.width;
  if (p.tokens == 0 || p.heads == 0 || p.depth == 0) {
    std::fill_n(p.weight_slots, width * p.heads, 0.0);
    return;
  }
  const int64_t size = static_cast<int64_t>(sizeof(T));
  const int64_t row_bytes = p.heads * p.depth * size;
  const int64_t bytes = 2 * p.tokens * row_bytes;
  const bool stream = p.depth * size % 64 == 0 && stream_output(p.input_grad, even_traffic(bytes), kStreamUnit<T>);
  const int64_t chunk = chunk_tokens(p.tokens, width, row_bytes);
  const int64_t chunks = ceil_div(p.tokens, chunk);
  const int64_t stripe = stripe_tokens(p.tokens, p.windows.stride, ceil_div(p.depth * 4, 128));
  const int64_t positions = std::min(width, kPairs);
  const int64_t lanes = 128 / static_cast<int64_t>(sizeof(Wide<T>));
  const int64_t widened = 2 * overlap_windows(p.windows) * ceil_div(p.depth, lanes) * lanes;  // elements of one head
  const int64_t few = std::max<int64_t>(std::min(kUsuallyWidened / widened, kUsualPairs / positions), 1);
  const int64_t heads = std::min(p.heads, few);
  const int64_t position_parts = ceil_div(width, positions);
  const int64_t head_parts = ceil_div(p.heads, heads);
  const int64_t parts = head_parts * position_parts;
  const auto run_part = [&](int64_t c, int64_t i) {
    NsaPart part;
    part.token = c * chunk;
    part.token_end = std::min(part.token + chunk, p.tokens);
    part.head = i / position_parts * heads;
    part.head_end = std::min(part.head + heads, p.heads);
    part.position = i % position_parts * positions;
    part.position_end = std::min(part.position + positions, width);
    part.input_grad = part.position == 0;
    part.streams = stream;
    nsa_part(p, part, stripe, p.weight_slots + c * width * p.heads);
  };
  // The parts of a chunk lie side by side in the same rows, where processors prefetch what other threads write: one
  // thread takes them all where that leaves no other one idle, or where there are a few parts only and not far apart.
  const int64_t threads = num_threads();
  const bool are_enough = chunks % threads == 0 || chunks >= 4 * threads;
  const bool disturb = position_parts == 1 && parts <= kFewParts && row_bytes * chunks < kSharedRowBytes * threads;
  const int64_t taken = are_enough || disturb ? parts : 1;
  parallel_for(chunks * parts / taken, bytes * position_parts, [&](int64_t i) {
    for (int64_t k = i * taken; k < (i + 1) * taken; ++k) run_part(k / parts, k % parts);
  });
}

}  // namespace descend::kernels::DESCEND_TARGET

DESCEND_KERNEL(int64_t, nsa_compress_grad_slots, (int64_t tokens, int64_t heads, int64_t depth, int64_t width), tokens,
               heads, depth, width)
DESCEND_KERNEL(void, nsa_compress_grad, (const NsaCompressGrad<T>& problem), problem)
