#include "kernels/nsa_compress_grad.h"

#include <algorithm>
#include <type_traits>

#include "kernels/cut.h"
#include "kernels/dispatch.h"
#include "kernels/fold_rows-inl.h"
#include "kernels/pack-inl.h"
#include "kernels/stores.h"
#include "runtime/parallel.h"

namespace descend::kernels {

// Pairs of position and head whose lanes of float sums are worked on at once: 32 KiB of them.
inline constexpr int64_t kPairs = 512;

inline constexpr int64_t kUsualPairs = 256;

// Elements of the rows of output_grad that are kept widened, those of all windows that overlap and of a part's heads.
inline constexpr int64_t kWidened = 8192;
inline constexpr int64_t kUsuallyWidened = 4096;  // so that they stay in a first-level cache, with the sums

// Windows whose terms of one gradient element are added on their own before they join the others.
inline constexpr int64_t kWindowBlock = 16;

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
HWY_INLINE int64_t depth_in_packs(int64_t depth) {
  constexpr int64_t kStep = kPackLanes<W>;
  return (depth + kStep - 1) / kStep * kStep;
}

// One sum, in as many lanes as a vector has.
template <class W>
HWY_INLINE Vector<W> load_sum(const W* lanes) {
  constexpr size_t kHalf = kPackVectors<W> / 2;
  Vector<W> v[kHalf];
  each<kHalf>([&](size_t k) DESCEND_INLINED { v[k] = hn::LoadU(Tag<W>(), lanes + k * kVectorLanes<W>); });
  DESCEND_UNROLL
  for (size_t width = kHalf / 2; width > 0; width /= 2) {
    DESCEND_UNROLL
    for (size_t k = 0; k < width; ++k) v[k] = hn::Add(v[k], v[k + width]);
  }
  return v[0];
}

// How far it is from one token to the next, and from one window to the next younger one.
struct Steps {
  int64_t input, input_grad, weight, sums;  // tokens
  int64_t windows;
  int64_t window_output_grad, window_weight, window_sums;
  int64_t input_ahead, input_grad_ahead;  // what will be wanted soon
  bool streams;                           // whether input_grad is stored past the caches
};

// Neighbouring tokens, and the windows that cover all of them: from the oldest on, their positions descend by the
// stride.
template <class T>
struct Stretch {
  int64_t tokens, heads, depth;
  const T* input;
  T* input_grad;
  const Wide<T>* output_grad;  // of the oldest window, widened, a head after the other in whole packs
  int64_t output_grad_head;
  const Wide<T>* weight;  // of the first token's position in the oldest window
  Wide<T>* sums;
  Steps step;
};

// Of one token, one head.
template <class T>
struct Head {
  const T* input;
  T* input_grad;
  const Wide<T>* output_grad;
  const Wide<T>* weight;
  Wide<T>* sums;
};

// Asks for the lines of some elements.
template <size_t kElements, class T>
HWY_INLINE void fetch(const T* p) {
  DESCEND_UNROLL
  for (size_t i = 0; i < kElements; i += 64 / sizeof(T)) prefetch_distant(p + i);
}

// The first half of a pack.
template <class T>
HWY_INLINE void store_half(const Vector<Wide<T>>* v, T* p) {
  using W = Wide<T>;
  if constexpr (kPackVectors<W> > 2) {
    DESCEND_UNROLL
    for (size_t k = 0; k < kPackVectors<W> / 2; k += 2) store_pair(Full(), v[k], v[k + 1], p, k);
  } else if constexpr (sizeof(T) == 2) {
    hn::StoreU(narrow(T(), v[0]), Bits16<W>(), reinterpret_cast<uint16_t*>(p));
  } else {
    hn::StoreU(v[0], Tag<W>(), p);
  }
}

// A pack of input_grad, past the caches or not.
template <class T, class Extent>
HWY_INLINE void store_results(Extent extent, bool streams, const Pack<Wide<T>>& pack, T* p) {
  if (kHasVectors && streams) return store<true, Nan::kOfBfloat16, kInQuarters<T>>(extent, pack, p);
  store<false, Nan::kOfBfloat16>(extent, pack, p);
}

// Vector k of pack i of kPacks, of which the last has an extent; and the same for the results.
template <size_t kPacks, class T, class Extent>
HWY_INLINE Vector<Wide<T>> load_of(Extent extent, const T* p, size_t i, size_t k) {
  if constexpr (!std::is_same_v<Extent, Full>) {
    if (i + 1 < kPacks) return load(Full(), p, k);
  }
  return load(extent, p, k);
}
template <size_t kPacks, class T, class Extent>
HWY_INLINE void store_of(Extent extent, bool streams, const Pack<Wide<T>>& pack, T* p, size_t i) {
  if constexpr (!std::is_same_v<Extent, Full>) {
    if (i + 1 < kPacks) return store_results(Full(), streams, pack, p);
  }
  store_results(extent, streams, pack, p);
}

// kPacks packs, of which kVectors vectors are not all zero, of one head of kTokens neighbouring tokens; the last one
// has an extent. Their products are added to the sums for weight_grad, or, where the head has more columns, to the
// head's own packs.
template <size_t kTokens, size_t kPacks, size_t kVectors, bool kWhole, class T, class Extent>
HWY_INLINE void strip(Extent extent, Head<T> head, const Steps& step) {
  using W = Wide<T>;
  constexpr size_t kPack = kPackLanes<W>, kLanes = kVectorLanes<W>, kHalf = kPackVectors<W> / 2;
  constexpr size_t kUsed = kVectors * kLanes;
  const Tag<W> d;
  Vector<W> x[kTokens][kPacks][kVectors], result[kTokens][kPacks][kVectors];
  DESCEND_UNROLL
  for (size_t t = 0; t < kTokens; ++t) {
    const T* input = head.input + t * step.input;
    T* input_grad = head.input_grad + t * step.input_grad;
    DESCEND_UNROLL
    for (size_t i = 0; i < kPacks; ++i) {
      // Stores to the sums must not wait behind one to a line that is far away: those lines are asked for, too.
      fetch<kUsed>(input + step.input_ahead + i * kPack);
      if (kVectors < kPackVectors<W> || !step.streams) fetch<kUsed>(input_grad + step.input_grad_ahead + i * kPack);
      DESCEND_UNROLL
      for (size_t k = 0; k < kVectors; ++k) {
        x[t][i][k] = load_of<kPacks>(extent, input + i * kPack, i, k);
        result[t][i][k] = splat(W{-0.0});  // to which a first term is added without a change
      }
    }
  }
  for (int64_t c = 0; c < step.windows; ++c) {
    Vector<W> weight[kTokens], products[kTokens][kVectors];
    DESCEND_UNROLL
    for (size_t t = 0; t < kTokens; ++t) {
      weight[t] = splat(head.weight[t * step.weight]);
      DESCEND_UNROLL
      for (size_t k = 0; k < kVectors; ++k) {
        products[t][k] = kWhole ? hn::Zero(d) : hn::LoadU(d, head.sums + t * step.sums + k * kLanes);
      }
    }
    DESCEND_UNROLL
    for (size_t i = 0; i < kPacks; ++i) {
      DESCEND_UNROLL
      for (size_t k = 0; k < kVectors; ++k) {
        const auto grad = hn::LoadU(d, head.output_grad + i * kPack + k * kLanes);
        DESCEND_UNROLL
        for (size_t t = 0; t < kTokens; ++t) {
          products[t][k] = hn::MulAdd(grad, x[t][i][k], products[t][k]);
          result[t][i][k] = hn::MulAdd(grad, weight[t], result[t][i][k]);
        }
      }
    }
    DESCEND_UNROLL
    for (size_t t = 0; t < kTokens; ++t) {
      W* sums = head.sums + t * step.sums;
      DESCEND_UNROLL
      for (size_t k = 0; k < (kWhole ? kHalf : kVectors); ++k, sums += kLanes) {
        auto sum = products[t][k];
        if constexpr (kWhole) {
          if constexpr (kVectors > kHalf) sum = hn::Add(sum, products[t][k + kHalf]);
          sum = hn::Add(hn::LoadU(d, sums), sum);
        }
        hn::StoreU(sum, d, sums);
      }
    }
    head.output_grad += step.window_output_grad;
    head.weight += step.window_weight;
    head.sums += step.window_sums;
  }
  DESCEND_UNROLL
  for (size_t t = 0; t < kTokens; ++t) {
    T* input_grad = head.input_grad + t * step.input_grad;
    DESCEND_UNROLL
    for (size_t i = 0; i < kPacks; ++i) {
      if constexpr (kVectors < kPackVectors<W>) {
        store_half(result[t][i], input_grad + i * kPack);
      } else {
        Pack<W> pack;
        DESCEND_UNROLL
        for (size_t k = 0; k < kVectors; ++k) pack.v[k] = result[t][i][k];
        store_of<kPacks>(extent, step.streams, pack, input_grad + i * kPack, i);
      }
    }
  }
}

// A head of any depth, strip after strip.
template <class T>
HWY_INLINE void long_head(const Head<T>& head, int64_t depth, Steps step) {
  using W = Wide<T>;
  constexpr int64_t kStep = kPackLanes<W>;
  // Vectors of a strip, each of which takes a register for its result and, where it is converted, one for itself.
  constexpr size_t kStripVectors = HWY_TARGET == HWY_AVX2 && sizeof(T) == 2 ? 4 : 8;
  constexpr size_t kVectors = kPackVectors<W>, kPacks = HWY_MAX(kStripVectors / kVectors, 1);
  constexpr int64_t kStrip = kPacks * kStep;
  HWY_ALIGN W products[kWindowBlock * kStep];
  for (int64_t c = 0; c < step.windows; ++c) store(Full(), zero_pack<W>(), products + c * kStep);
  const int64_t window_sums = step.window_sums;
  step.window_sums = kStep;
  const auto from = [&](int64_t d) HWY_ATTR {
    return Head<T>{head.input + d, head.input_grad + d, head.output_grad + d, head.weight, products};
  };
  int64_t d = 0;
  for (; d + kStrip <= depth; d += kStrip) strip<1, kPacks, kVectors, false>(Full(), from(d), step);
  for (; d + kStep <= depth; d += kStep) strip<1, 1, kVectors, false>(Full(), from(d), step);
  if (d < depth) strip<1, 1, kVectors, false>(Part{static_cast<size_t>(depth - d)}, from(d), step);
  for (int64_t c = 0; c < step.windows; ++c) {
    add_sums<T>(load_pack(Full(), products + c * kStep), head.sums + c * window_sums);
  }
}

// A stretch, kTokens rows after the other from end to end. kPacks: of a head; 0: any depth.
template <size_t kTokens, size_t kPacks, size_t kVectors, class T, class Extent>
HWY_NOINLINE void add_heads(Extent extent, const Stretch<T>& s) {
  const int64_t heads = s.heads, depth = s.depth, output_grad_head = s.output_grad_head;
  const Steps step = s.step;
  Head<T> first{s.input, s.input_grad, s.output_grad, s.weight, s.sums};
  const auto add = [&](auto count) HWY_ATTR {
    constexpr int64_t kCount = decltype(count)::value;
    Head<T> head = first;
    for (int64_t n = 0; n < heads; ++n) {
      if constexpr (kPacks == 0) {
        long_head(head, depth, step);
      } else {
        strip<kCount, kPacks, kVectors, true>(extent, head, step);
      }
      head.input += depth;
      head.input_grad += depth;
      head.output_grad += output_grad_head;
      ++head.weight;
      head.sums += kSumLanes<Wide<T>>;
    }
    first.input += kCount * step.input;
    first.input_grad += kCount * step.input_grad;
    first.weight += kCount * step.weight;
    first.sums += kCount * step.sums;
  };
  int64_t t = s.tokens;
  for (; t >= static_cast<int64_t>(kTokens); t -= kTokens) add(std::integral_constant<size_t, kTokens>());
  if constexpr (kTokens > 1) {
    for (; t > 0; --t) add(std::integral_constant<size_t, 1>());
  }
}

// Heads of kPacks packs, the last of which may be a part.
template <size_t kPacks, class T>
HWY_INLINE void add_packs(const Stretch<T>& s) {
  constexpr size_t kVectors = kPackVectors<Wide<T>>, kTokens = kPacks > 2 ? 1 : 2;
  const auto rest = static_cast<size_t>(s.depth) % kPackLanes<Wide<T>>;
  if (rest == 0) return add_heads<kTokens, kPacks, kVectors>(Full(), s);
  add_heads<kTokens, kPacks, kVectors>(Part{rest}, s);
}

// A few tokens at a time, where a head leaves registers for them.
template <class T>
HWY_INLINE void add_stretch(const Stretch<T>& s) {
  using W = Wide<T>;
  constexpr int64_t kStep = kPackLanes<W>;
  constexpr size_t kVectors = kPackVectors<W>, kHalf = kVectors / 2;
  constexpr size_t kMany = HWY_MAX(8 / kVectors, 1);
  if (2 * s.depth == kStep) return add_heads<kMany, 1, kHalf>(Full(), s);
  if (s.depth < kStep) return add_heads<kMany, 1, kVectors>(Part{static_cast<size_t>(s.depth)}, s);
  if (s.depth == kStep) return add_heads<kMany, 1, kVectors>(Full(), s);
#if HWY_TARGET == HWY_AVX3
  switch (ceil_div(s.depth, kStep)) {
    case 2:
      return add_packs<2>(s);
    case 3:
      return add_packs<3>(s);
    case 4:
      return add_packs<4>(s);
    case 5:
      return add_packs<5>(s);
    case 6:
      return add_packs<6>(s);
    case 7:
      return add_packs<7>(s);
  }
#endif
  add_heads<1, 0, kVectors>(Full(), s);
}

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
