#include "kernels/nsa_compress_grad.h"

#include <algorithm>

#include "kernels/cut.h"
#include "runtime/parallel.h"

#define HWY_TARGET_INCLUDE "kernels/nsa_compress_grad.cpp"
#include "kernels/dispatch.h"
#include "kernels/pack-inl.h"

#ifndef DESCEND_KERNELS_NSA_COMPRESS_GRAD_PART_
#define DESCEND_KERNELS_NSA_COMPRESS_GRAD_PART_
namespace descend::kernels {

// Pairs of position and head whose lanes of float sums are worked on at once: 64 KiB of them.
inline constexpr int64_t kPairs = 512;

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

// Neighbouring tokens, covered by the same windows, that share each load of output_grad.
inline constexpr int kAbreast = HWY_TARGET == HWY_AVX3 ? 2 : 1;

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

// One token of one head, and the windows that cover it: from the first on, their positions descend by the stride.
template <class T>
struct Covered {
  const T* input;
  int64_t input_stride;  // to the next token
  T* input_grad;
  int64_t input_grad_stride;
  const T* output_grad;  // of the first window
  int64_t grad_stride;   // to the next window
  const Wide<T>* weight;
  int64_t weight_stride;
  int64_t weight_step;  // to the next token
  Wide<T>* sums;        // lanes
  int64_t sums_stride;
  int64_t sums_step;
  int64_t count;
};

// All of the work on kTokens tokens that kCount windows cover: every operand is loaded once.
template <int kCount, int kTokens, bool kStream, class T>
HWY_INLINE void both_gradients(const Covered<T>& c, int64_t depth) {
  using W = Wide<T>;
  Pack<W> sums[kTokens][kCount];
  Vector<W> weight[kTokens][kCount];
  DESCEND_UNROLL
  for (int t = 0; t < kTokens; ++t) {
    DESCEND_UNROLL
    for (int i = 0; i < kCount; ++i) {
      sums[t][i] = load_pack(Full(), c.sums + t * c.sums_step + i * c.sums_stride);
      weight[t][i] = splat(c.weight[t * c.weight_step + i * c.weight_stride]);
    }
  }
  for_each_pack<W>(depth, [&](auto extent, int64_t d) HWY_ATTR {
    Pack<W> result[kTokens];
    DESCEND_UNROLL
    for (size_t k = 0; k < kPackVectors<W>; ++k) {
      DESCEND_UNROLL
      for (int i = 0; i < kCount; ++i) {
        const auto grad = load(extent, c.output_grad + i * c.grad_stride + d, k);
        DESCEND_UNROLL
        for (int t = 0; t < kTokens; ++t) {
          const auto input = load(extent, c.input + t * c.input_stride + d, k);
          auto& sum = sums[t][i].v[k];
          auto& value = result[t].v[k];
          sum = hn::MulAdd(grad, input, sum);
          value = i == 0 ? hn::Mul(grad, weight[t][0]) : hn::MulAdd(grad, weight[t][i], value);
        }
      }
    }
    DESCEND_UNROLL
    for (int t = 0; t < kTokens; ++t) store<kStream>(extent, result[t], c.input_grad + t * c.input_grad_stride + d);
  });
  DESCEND_UNROLL
  for (int t = 0; t < kTokens; ++t) {
    DESCEND_UNROLL
    for (int i = 0; i < kCount; ++i) store(Full(), sums[t][i], c.sums + t * c.sums_step + i * c.sums_stride);
  }
}

template <class T>
HWY_INLINE void add_products(const Covered<T>& c, int64_t depth) {
  using W = Wide<T>;
  for (int64_t i = 0; i < c.count; ++i) {
    const T* grad = c.output_grad + i * c.grad_stride;
    Pack<W> sums = load_pack(Full(), c.sums + i * c.sums_stride);
    for_each_pack<W>(depth, [&](auto extent, int64_t d) HWY_ATTR {
      DESCEND_UNROLL
      for (size_t k = 0; k < kPackVectors<W>; ++k) {
        sums.v[k] = hn::MulAdd(load(extent, grad + d, k), load(extent, c.input + d, k), sums.v[k]);
      }
    });
    store(Full(), sums, c.sums + i * c.sums_stride);
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
        DESCEND_UNROLL
        for (size_t k = 0; k < kPackVectors<W>; ++k) {
          const auto g = load(extent, grad, k);
          part.v[k] = i == block ? hn::Mul(g, weight) : hn::MulAdd(g, weight, part.v[k]);
        }
      }
      result = block == 0 ? part : add(result, part);
    }
    store<kStream>(extent, result, c.input_grad + d);
  });
}

// kTokens tokens from t on.
template <int kTokens, bool kStream, class T>
HWY_INLINE void tokens(const NsaCompressGrad<T>& p, const NsaPart& part, const Sequence& sequence, const TokenRun& run,
                       int64_t t, Wide<T>* sums) {
  constexpr int64_t kLanes = kPackLanes<Wide<T>>;
  const int64_t position = t - sequence.token - run.first * p.windows.stride;  // in the first window
  // Windows whose position is not this part's: only where a window has more positions than kPairs.
  int64_t skipped = 0, count = run.last - run.first + 1;
  if (count > 0 && !part.input_grad) {
    if (position >= part.position_end) skipped = (position - part.position_end) / p.windows.stride + 1;
    count = position < part.position ? 0 : HWY_MIN(count, (position - part.position) / p.windows.stride + 1);
  }
  const int64_t first = position - skipped * p.windows.stride;
  Covered<T> c;
  c.input_stride = p.input.stride;
  c.input_grad_stride = p.input_grad.stride;
  c.grad_stride = p.output_grad.stride;
  c.weight_stride = -p.windows.stride * p.heads;
  c.weight_step = p.heads;
  c.sums_step = part.heads() * kLanes;
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
    if (!part.input_grad) {
      add_products(c, p.depth);
    } else if (c.count == 2) {
      both_gradients<2, kTokens, kStream>(c, p.depth);
    } else if (c.count == 1) {
      both_gradients<1, kTokens, kStream>(c, p.depth);
    } else {
      add_products(c, p.depth);
      gather<kStream>(c, p.depth);
    }
  }
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
  constexpr int64_t kLanes = kPackLanes<W>;
  HWY_ALIGN W sums[kPairs * kLanes];
  const int64_t pairs = (part.position_end - part.position) * part.heads();
  for (int64_t begin = part.token; begin < part.token_end; begin += stripe) {
    std::fill_n(sums, pairs * kLanes, W{0});
    walk(
        p, begin, HWY_MIN(begin + stripe, part.token_end),
        [&](const Sequence& sequence, const TokenRun& run, int64_t t, int64_t end) HWY_ATTR {
          if (part.input_grad && run.last - run.first < 2) {
            for (; t + kAbreast <= end; t += kAbreast) tokens<kAbreast, kStream>(p, part, sequence, run, t, sums);
          }
          for (; t < end; ++t) tokens<1, kStream>(p, part, sequence, run, t, sums);
        },
        [&](int64_t t) HWY_ATTR {
          if (part.input_grad) zero<kStream>(p, part, t);
        });
    const W* lanes = sums;
    for (int64_t w = part.position; w < part.position_end; ++w) {
      for (int64_t n = part.head; n < part.head_end; ++n, lanes += kLanes) {
        const double sum = static_cast<double>(fold(load_pack(Full(), lanes)));
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
  const int64_t heads = std::min(p.heads, kPairs / positions);
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
