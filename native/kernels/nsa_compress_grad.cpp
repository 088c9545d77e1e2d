#include "kernels/nsa_compress_grad.h"

#include <algorithm>

#include "kernels/cut.h"
#include "runtime/parallel.h"

#define HWY_TARGET_INCLUDE "kernels/nsa_compress_grad.cpp"
#include "kernels/dispatch.h"
#include "kernels/pack-inl.h"
#include "kernels/split_pack-inl.h"

#ifndef DESCEND_KERNELS_NSA_COMPRESS_GRAD_PART_
#define DESCEND_KERNELS_NSA_COMPRESS_GRAD_PART_
namespace descend::kernels {

// Pairs of position and head whose lanes of float sums are worked on at once: 32 KiB of them.
inline constexpr int64_t kPairs = 512;

// Elements of a row of output_grad, of all of a part's heads, that are kept widened.
inline constexpr int64_t kWidened = 2048;
inline constexpr int64_t kUsuallyWidened = 1024;  // so that they stay in a first-level cache, with the sums

// How far ahead, at least, input and input_grad are asked for.
inline constexpr int64_t kAheadBytes = 2048;

// What is computed at a time: some tokens, heads and positions.
struct NsaPart {
  int64_t token = 0, token_end = 0;
  int64_t head = 0, head_end = 0;
  int64_t position = 0, position_end = 0;
  bool input_grad = true;  // or the sums for weight_grad alone

  int64_t heads() const { return head_end - head; }
};

}  // namespace descend::kernels
#endif

HWY_BEFORE_NAMESPACE();
namespace descend::kernels::HWY_NAMESPACE {

// Windows whose terms of one gradient element are added on their own before they join the others.
inline constexpr int64_t kWindowBlock = 16;

// Calls f(extent, d) for every pack of a head.
template <class W, class F>
HWY_INLINE void for_each_pack(int64_t depth, F f) {
  constexpr int64_t kStep = kPackLanes<W>;
  int64_t d = 0;
  for (; d + kStep <= depth; d += kStep) f(Full(), d);
  if (d < depth) f(Part{static_cast<size_t>(depth - d)}, d);
}

// The sums for weight_grad run in half as many lanes as a pack has.
template <class W>
inline constexpr int64_t kSumLanes = kPackLanes<W> / 2;

template <class T>
HWY_INLINE void add_sums(const Pack<Wide<T>>& products, Wide<T>* sums) {
  using W = Wide<T>;
  const Tag<W> d;
  constexpr size_t kHalf = kPackVectors<W> / 2;
  DESCEND_UNROLL
  for (size_t k = 0; k < kHalf; ++k) {
    W* const to = sums + k * kVectorLanes<W>;
    const auto half = hn::Add(products.v[k], products.v[k + kHalf]);
    hn::StoreU(hn::Add(hn::LoadU(d, to), half), d, to);
  }
}

template <class W>
HWY_INLINE W fold_sums(const W* sums) {
  Pack<W> pack = zero_pack<W>();
  constexpr size_t kHalf = kPackVectors<W> / 2;
  DESCEND_UNROLL
  for (size_t k = 0; k < kHalf; ++k) pack.v[k] = hn::LoadU(Tag<W>(), sums + k * kVectorLanes<W>);
  DESCEND_UNROLL
  for (size_t width = kHalf / 2; width > 0; width /= 2) {
    DESCEND_UNROLL
    for (size_t k = 0; k < width; ++k) pack.v[k] = hn::Add(pack.v[k], pack.v[k + width]);
  }
  return fold_vector(Tag<W>(), pack.v[0]);
}

// Neighbouring tokens, and the one or two windows that cover all of them.
template <class T>
struct FewWindows {
  const T* input;
  int64_t input_stride;  // to the next token
  T* input_grad;
  int64_t input_grad_stride;
  const Wide<T>* output_grad[2];  // widened, a head after the other in whole packs
  const Wide<T>* weight[2];       // of the first token's position
  int64_t weight_step;            // to the next token
  Wide<T>* sums[2];
  int64_t sums_step;
};

// Asks for what will be wanted soon.
template <class T>
HWY_INLINE void fetch(const T* p) {
  DESCEND_UNROLL
  for (size_t i = 0; i < kPackLanes<Wide<T>>; i += 64 / sizeof(T)) __builtin_prefetch(p + i);
}

// All of the work on some tokens, a row after the other from end to end.
template <int kCount, bool kStream, class T>
HWY_NOINLINE void few_windows(FewWindows<T> c, int64_t tokens, int64_t heads, int64_t depth, int64_t head_step) {
  using W = Wide<T>;
  const int64_t ahead = (kAheadBytes - 1) / (heads * depth * static_cast<int64_t>(sizeof(T))) + 1;  // tokens
  const int64_t input_ahead = ahead * c.input_stride, input_grad_ahead = ahead * c.input_grad_stride;
  for (int64_t t = 0; t < tokens; ++t) {
    for (int64_t n = 0; n < heads; ++n) {
      const T* input = c.input + n * depth;
      T* input_grad = c.input_grad + n * depth;
      const W* output_grad[kCount];
      Vector<W> weight[kCount];
      Pack<W> products[kCount];
      DESCEND_UNROLL
      for (int i = 0; i < kCount; ++i) {
        output_grad[i] = c.output_grad[i] + n * head_step;
        weight[i] = splat(c.weight[i][n]);
        products[i] = zero_pack<W>();
      }
      for_each_pack<W>(depth, [&](auto extent, int64_t d) HWY_ATTR {
        // Stores to the sums must not wait behind one to a line that is far away: those lines are asked for, too.
        fetch(input + input_ahead + d);
        if (!kStream) fetch(input_grad + input_grad_ahead + d);
        const Pack<W> x = load_split(extent, input + d);
        Pack<W> result;
        DESCEND_UNROLL
        for (int i = 0; i < kCount; ++i) {
          const Pack<W> grad = load_pack(Full(), output_grad[i] + d);
          DESCEND_UNROLL
          for (size_t k = 0; k < kPackVectors<W>; ++k) {
            products[i].v[k] = hn::MulAdd(grad.v[k], x.v[k], products[i].v[k]);
            result.v[k] = i == 0 ? hn::Mul(grad.v[k], weight[i]) : hn::MulAdd(grad.v[k], weight[i], result.v[k]);
          }
        }
        store_split<kStream>(extent, result, input_grad + d);
      });
      DESCEND_UNROLL
      for (int i = 0; i < kCount; ++i) add_sums<T>(products[i], c.sums[i] + n * kSumLanes<W>);
    }
    c.input += c.input_stride;
    c.input_grad += c.input_grad_stride;
    for (int i = 0; i < kCount; ++i) {
      c.weight[i] += c.weight_step;
      c.sums[i] += c.sums_step;
    }
  }
}

// The rows of output_grad of the last two windows, widened.
template <class T>
struct WidenedRows {
  HWY_ALIGN Wide<T> rows[2][kWidened];
  int64_t windows[2] = {-1, -1};

  const Wide<T>* row(const NsaCompressGrad<T>& p, const NsaPart& part, int64_t window, int64_t head_step) {
    Wide<T>* const to = rows[window % 2];
    if (windows[window % 2] == window) return to;
    windows[window % 2] = window;
    const T* const from = p.output_grad.row(window) + part.head * p.depth;
    for (int64_t n = 0; n < part.heads(); ++n) {
      for_each_pack<Wide<T>>(p.depth, [&](auto extent, int64_t d) HWY_ATTR {
        store(Full(), load_split(extent, from + n * p.depth + d), to + n * head_step + d);
      });
    }
    return to;
  }
};

// One token of one head, and the windows that cover it: from the first on, their positions descend by the stride.
template <class T>
struct Covered {
  const T* input;
  T* input_grad;
  const T* output_grad;  // of the first window
  int64_t grad_stride;   // to the next window
  const Wide<T>* weight;
  int64_t weight_stride;
  Wide<T>* sums;  // lanes
  int64_t sums_stride;
  int64_t count;
};

template <class T>
HWY_INLINE void add_products(const Covered<T>& c, int64_t depth) {
  using W = Wide<T>;
  for (int64_t i = 0; i < c.count; ++i) {
    const T* grad = c.output_grad + i * c.grad_stride;
    Pack<W> products = zero_pack<W>();
    for_each_pack<W>(depth, [&](auto extent, int64_t d) HWY_ATTR {
      const Pack<W> g = load_split(extent, grad + d), x = load_split(extent, c.input + d);
      DESCEND_UNROLL
      for (size_t k = 0; k < kPackVectors<W>; ++k) products.v[k] = hn::MulAdd(g.v[k], x.v[k], products.v[k]);
    });
    add_sums<T>(products, c.sums + i * c.sums_stride);
  }
}

template <bool kStream, class T>
HWY_INLINE void gather(const Covered<T>& c, int64_t depth) {
  using W = Wide<T>;
  for_each_pack<W>(depth, [&](auto extent, int64_t d) HWY_ATTR {
    Pack<W> result = zero_pack<W>();
    for (int64_t block = 0; block < c.count; block += kWindowBlock) {
      const int64_t stop = HWY_MIN(block + kWindowBlock, c.count);
      Pack<W> part = zero_pack<W>();
      for (int64_t i = block; i < stop; ++i) {
        const T* grad = c.output_grad + i * c.grad_stride + d;
        const auto weight = splat(c.weight[i * c.weight_stride]);
        const Pack<W> g = load_split(extent, grad);
        DESCEND_UNROLL
        for (size_t k = 0; k < kPackVectors<W>; ++k) {
          part.v[k] = i == block ? hn::Mul(g.v[k], weight) : hn::MulAdd(g.v[k], weight, part.v[k]);
        }
      }
      result = block == 0 ? part : add(result, part);
    }
    store_split<kStream>(extent, result, c.input_grad + d);
  });
}

// One token.
template <bool kStream, class T>
HWY_INLINE void one_token(const NsaCompressGrad<T>& p, const NsaPart& part, const Sequence& sequence,
                          const TokenRun& run, int64_t t, Wide<T>* sums) {
  constexpr int64_t kLanes = kSumLanes<Wide<T>>;
  const int64_t position = t - sequence.token - run.first * p.windows.stride;  // in the first window
  // Windows whose position is not this part's: only where a window has more positions than kPairs.
  int64_t skipped = 0, count = run.last - run.first + 1;
  if (!part.input_grad) {
    if (position >= part.position_end) skipped = (position - part.position_end) / p.windows.stride + 1;
    count = position < part.position ? 0 : HWY_MIN(count, (position - part.position) / p.windows.stride + 1);
  }
  const int64_t first = position - skipped * p.windows.stride;
  Covered<T> c;
  c.grad_stride = p.output_grad.stride;
  c.weight_stride = -p.windows.stride * p.heads;
  c.sums_stride = -p.windows.stride * part.heads() * kLanes;
  c.count = count - skipped;
  if (c.count <= 0) return;
  const T* grad = p.output_grad.row(sequence.window + run.first + skipped);
  for (int64_t n = part.head; n < part.head_end; ++n) {
    c.input = p.input.row(t) + n * p.depth;
    c.input_grad = p.input_grad.row(t) + n * p.depth;
    c.output_grad = grad + n * p.depth;
    c.weight = p.weight + first * p.heads + n;
    c.sums = sums + ((first - part.position) * part.heads() + n - part.head) * kLanes;
    add_products(c, p.depth);
    if (part.input_grad) gather<kStream>(c, p.depth);
  }
}

// Tokens [t, end), covered by the same windows.
template <bool kStream, class T>
HWY_INLINE void covered_tokens(const NsaCompressGrad<T>& p, const NsaPart& part, const Sequence& sequence,
                               const TokenRun& run, int64_t t, int64_t end, Wide<T>* sums, WidenedRows<T>& widened) {
  using W = Wide<T>;
  constexpr int64_t kLanes = kSumLanes<W>, kStep = kPackLanes<W>;
  const int64_t head_step = (p.depth + kStep - 1) / kStep * kStep;
  const int64_t count = run.last - run.first + 1;
  if (count > 2 || !part.input_grad || part.heads() * head_step > kWidened) {
    for (; t < end; ++t) one_token<kStream>(p, part, sequence, run, t, sums);
    return;
  }
  const int64_t position = t - sequence.token - run.first * p.windows.stride;  // in the first window
  FewWindows<T> c;
  c.input = p.input.row(t) + part.head * p.depth;
  c.input_stride = p.input.stride;
  c.input_grad = p.input_grad.row(t) + part.head * p.depth;
  c.input_grad_stride = p.input_grad.stride;
  c.weight_step = p.heads;
  c.sums_step = part.heads() * kLanes;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t place = position - i * p.windows.stride;
    c.output_grad[i] = widened.row(p, part, sequence.window + run.first + i, head_step);
    c.weight[i] = p.weight + place * p.heads + part.head;
    c.sums[i] = sums + place * part.heads() * kLanes;
  }
  const auto work = count == 2 ? few_windows<2, kStream, T> : few_windows<1, kStream, T>;
  work(c, end - t, part.heads(), p.depth, head_step);
}

template <bool kStream, class T>
HWY_INLINE void zero(const NsaCompressGrad<T>& p, const NsaPart& part, int64_t t) {
  using W = Wide<T>;
  T* row = p.input_grad.row(t);
  for (int64_t n = part.head; n < part.head_end; ++n) {
    for_each_pack<W>(p.depth, [&](auto extent, int64_t d)
                                  HWY_ATTR { store<kStream>(extent, zero_pack<W>(), row + n * p.depth + d); });
  }
}

// Calls covered(sequence, run, begin, end), for tokens that have the same windows, or uncovered(token) over [token,
// end).
template <class T, class Covered, class Uncovered>
HWY_INLINE void walk(const NsaCompressGrad<T>& p, int64_t token, int64_t end, Covered covered, Uncovered uncovered) {
  int64_t s = p.windows.find_token(token);
  while (token < end) {
    if (s == p.windows.count) {
      for (; token < end; ++token) uncovered(token);
      return;
    }
    const Sequence& sequence = p.windows.sequences[s];
    const TokenRun run(p.windows, token - sequence.token, 0, sequence.windows);
    const int64_t stop = HWY_MIN(end - sequence.token, HWY_MIN(run.end, sequence.tokens)) + sequence.token;
    if (run.first <= run.last) {
      covered(sequence, run, token, stop);
      token = stop;
    } else {
      for (; token < stop; ++token) uncovered(token);
    }
    if (token == sequence.token + sequence.tokens) ++s;
  }
}

template <bool kStream, class T>
HWY_INLINE void compute_part(const NsaCompressGrad<T>& p, const NsaPart& part, int64_t stripe, double* slot) {
  using W = Wide<T>;
  constexpr int64_t kLanes = kSumLanes<W>;
  HWY_ALIGN W sums[kPairs * kLanes];
  WidenedRows<T> widened;
  const int64_t pairs = (part.position_end - part.position) * part.heads();
  for (int64_t begin = part.token; begin < part.token_end; begin += stripe) {
    std::fill_n(sums, pairs * kLanes, W{0});
    walk(
        p, begin, HWY_MIN(begin + stripe, part.token_end),
        [&](const Sequence& sequence, const TokenRun& run, int64_t t, int64_t end)
            HWY_ATTR { covered_tokens<kStream>(p, part, sequence, run, t, end, sums, widened); },
        [&](int64_t t) HWY_ATTR {
          if (part.input_grad) zero<kStream>(p, part, t);
        });
    const W* lanes = sums;
    for (int64_t w = part.position; w < part.position_end; ++w) {
      for (int64_t n = part.head; n < part.head_end; ++n, lanes += kLanes) {
        const double sum = static_cast<double>(fold_sums(lanes));
        double& total = slot[w * p.heads + n];
        total = begin == part.token ? sum : total + sum;
      }
    }
  }
  if (kStream) flush_streams();
}

template <class T>
void nsa_part(const NsaCompressGrad<T>& p, const NsaPart& part, int64_t stripe, double* slot, bool stream) {
  stream ? compute_part<true>(p, part, stripe, slot) : compute_part<false>(p, part, stripe, slot);
}

// input_grad alone, where the sums for weight_grad take several parts.
template <class T>
void nsa_input_grad(const NsaCompressGrad<T>& p, int64_t begin, int64_t end) {
  NsaPart all_heads;
  all_heads.head_end = p.heads;
  walk(
      p, begin, end,
      [&](const Sequence& sequence, const TokenRun& run, int64_t t, int64_t stop) HWY_ATTR {
        Covered<T> c{};
        c.grad_stride = p.output_grad.stride;
        c.weight_stride = -p.windows.stride * p.heads;
        c.count = run.last - run.first + 1;
        for (; t < stop; ++t) {
          const int64_t position = t - sequence.token - run.first * p.windows.stride;
          for (int64_t n = 0; n < p.heads; ++n) {
            c.input_grad = p.input_grad.row(t) + n * p.depth;
            c.output_grad = p.output_grad.row(sequence.window + run.first) + n * p.depth;
            c.weight = p.weight + position * p.heads + n;
            gather<false>(c, p.depth);
          }
        }
      },
      [&](int64_t t) HWY_ATTR { zero<false>(p, all_heads, t); });
}

}  // namespace descend::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace descend::kernels {
namespace {

constexpr int64_t kMaxChunks = 64;
constexpr int64_t kMinChunkBytes = int64_t{32} << 10;
constexpr int64_t kLaneTerms = 128;  // terms that a lane adds in float

int64_t chunk_tokens(int64_t tokens, int64_t width, int64_t row_bytes) {
  const int64_t least =
      std::max({ceil_div(tokens, kMaxChunks), ceil_div(kMinChunkBytes, row_bytes), std::min(width, tokens) * 4});
  return std::clamp<int64_t>(least, 1, tokens);
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
  static const auto run = DESCEND_CHOOSE(nsa_part<T>);
  static const auto input_grad = DESCEND_CHOOSE(nsa_input_grad<T>);
  const int64_t width = p.windows.width;
  if (p.tokens == 0 || p.heads == 0 || p.depth == 0) {
    std::fill_n(p.weight_slots, width * p.heads, 0.0);
    return;
  }
  const int64_t size = static_cast<int64_t>(sizeof(T));
  const int64_t row_bytes = p.heads * p.depth * size;
  const int64_t bytes = 2 * p.tokens * row_bytes;
  const bool stream = p.depth * size % 64 == 0 && stream_output(p.input_grad.data, p.input_grad.stride * size, bytes);
  const int64_t chunk = chunk_tokens(p.tokens, width, row_bytes);
  const int64_t chunks = ceil_div(p.tokens, chunk);
  const int64_t stripe = stripe_tokens(p.tokens, p.windows.stride, ceil_div(p.depth * 4, 128));
  const int64_t positions = std::min(width, kPairs);
  const int64_t lanes = 128 / static_cast<int64_t>(sizeof(Wide<T>));
  const int64_t few = std::max<int64_t>(kUsuallyWidened / (ceil_div(p.depth, lanes) * lanes), 1);
  const int64_t heads = std::min({p.heads, kPairs / positions, few});
  const int64_t position_parts = ceil_div(width, positions);
  const int64_t head_parts = ceil_div(p.heads, heads);
  parallel_for(chunks * head_parts * position_parts, bytes * position_parts, [&](int64_t i) {
    const int64_t c = i / (head_parts * position_parts), rest = i % (head_parts * position_parts);
    NsaPart part;
    part.token = c * chunk;
    part.token_end = std::min(part.token + chunk, p.tokens);
    part.head = rest / position_parts * heads;
    part.head_end = std::min(part.head + heads, p.heads);
    part.position = rest % position_parts * positions;
    part.position_end = std::min(part.position + positions, width);
    part.input_grad = position_parts == 1;
    run(p, part, stripe, p.weight_slots + c * width * p.heads, stream);
  });
  if (position_parts > 1) {
    const int64_t piece = std::max<int64_t>(ceil_div(p.tokens, 4 * kMaxChunks), 1);
    parallel_for(ceil_div(p.tokens, piece), bytes,
                 [&](int64_t i) { input_grad(p, i * piece, std::min((i + 1) * piece, p.tokens)); });
  }
}

#define DESCEND_INSTANTIATE(T)                                                                              \
  template int64_t nsa_compress_grad_slots<T>(int64_t tokens, int64_t heads, int64_t depth, int64_t width); \
  template void nsa_compress_grad<T>(const NsaCompressGrad<T>& problem);
DESCEND_INSTANTIATE(float16)
DESCEND_INSTANTIATE(bfloat16)
DESCEND_INSTANTIATE(float)
DESCEND_INSTANTIATE(double)

}  // namespace descend::kernels
#endif  // HWY_ONCE
