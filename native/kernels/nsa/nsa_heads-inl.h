// The gradients of NSA compression for the heads of neighbouring tokens: the products of a window's weights, tokens and
// gradients, in strips that the registers hold.
#pragma once

#include "kernels/rows/prefetch-inl.h"
#include "kernels/schedule/stores.h"
#include "kernels/simd/pack-inl.h"

HWY_BEFORE_NAMESPACE();
namespace descend::kernels::HWY_NAMESPACE {

// Windows whose terms of one gradient element are added on their own before they join the others.
inline constexpr int64_t kWindowBlock = 16;

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

}  // namespace descend::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
