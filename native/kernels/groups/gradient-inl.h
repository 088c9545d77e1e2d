// The gradient of group norm, or of group norm + swish if P::kSwish is true: what is done with a group, and how threads
// share the groups.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>

#include "kernels/groups/long_channels-inl.h"
#include "kernels/groups/short_channels-inl.h"
#include "kernels/rows/prefetch-inl.h"
#include "kernels/rows/sum_columns-inl.h"
#include "kernels/schedule/stores.h"
#include "kernels/simd/doubles-inl.h"
#include "runtime/fp_environment.h"
#include "runtime/parallel.h"

HWY_BEFORE_NAMESPACE();
namespace descend::kernels::HWY_NAMESPACE {

// Those of a wild group are functions of their own: beside them the usual ways would be slower to begin.
template <class P, class T>
HWY_NOINLINE void wild_sums(const P& p, const GradGroup<T>& group, int64_t first, int64_t last) {
  channel_sums<true>(p, group, first, last, NoResults());
}

template <class P, class T>
HWY_NOINLINE void wild_apply(const P& p, const GradGroup<T>& group, int64_t first, int64_t last) {
  channel_apply<true>(p, group, first, last);
}

template <class P, class T>
void group_norm_grad_sums(const P& p, const GradGroup<T>& group, int64_t first, int64_t last) {
  constexpr bool kUsual = kUsuallyNormalised<T>;
  if (has_short_channels(p.shape)) return flat_channel_sums(p, group, first, last);
  if constexpr (!kUsual) {
    if (group.wild) return wild_sums(p, group, first, last);
  }
  channel_sums<kUsual>(p, group, first, last, NoResults());
}

// The sums of a group, and in step with them the results of the one above.
template <class P, class T>
void group_norm_grad_in_step(const P& p, const GradGroup<T>& group, const GradGroup<T>& above) {
  constexpr bool kUsual = kUsuallyNormalised<T>;
  channel_sums<kUsual>(p, group, 0, grad_entries(p.shape), Results<kUsual, P::kSwish, P>(p, above));
}

template <class P, class T>
void group_norm_grad_apply(const P& p, const GradGroup<T>& group, int64_t first, int64_t last) {
  constexpr bool kUsual = kUsuallyNormalised<T>;
  if (has_short_channels(p.shape)) return flat_channel_apply(p, group, first, last);
  if constexpr (kUsual) {
    channel_apply<true>(p, group, first, last);
  } else if (group.wild) {
    wild_apply(p, group, first, last);
  } else {
    channel_apply<false>(p, group, first, last);
  }
  if (group.stream) flush_streams();
}

// From entries to the two means, and to sums of long channels, which go to the slots. Returns false where the group
// turns out to be wild: its sums are to be done again.
template <class P, class T>
bool group_norm_grad_means(const P& p, GradGroup<T>& group) {
  using W = Wide<T>;
  const int64_t channels = p.shape.group_channels(), inner = p.shape.inner;
  const double elements = static_cast<double>(channels * inner);
  if (has_short_channels(p.shape)) {
    double dz = 0, dzx = 0;
    for (int64_t tile = 0; tile < grad_entries(p.shape); ++tile) {
      dz += group.dz_sums[tile];
      dzx += group.dzx_sums[tile];
    }
    group.plane = {static_cast<W>(dzx / elements), static_cast<W>(dz / elements)};
    return true;
  }
  const int64_t blocks = blocks_in(inner);
  for (double* sums : {group.dz_sums, group.dzx_sums}) {
    for (int64_t c = 0; blocks > 1 && c < channels; ++c) {
      double sum = sums[c * blocks];
      for (int64_t b = 1; b < blocks; ++b) sum += sums[c * blocks + b];
      sums[c] = sum;
    }
  }
  const W* gamma = p.gamma + group.channel;
  const Plane<W> of_xhat{rounded<W>(weighted_sum(gamma, group.dzx_sums, channels) / elements),
                         rounded<W>(weighted_sum(gamma, group.dz_sums, channels) / elements)};
  group.plane = of_xhat;
  if constexpr (!kUsuallyNormalised<T>) {
    if (!group.wild) {
      group.plane = plane_in(frame_of<false>(group), of_xhat);
      group.wild = !is_tame_group(group, of_xhat);
      if (group.wild) return false;
    }
  }
  leave_sums(group.dz_sums, channels, group.dbeta, group.fresh, false);
  leave_sums(group.dzx_sums, channels, group.dgamma, group.fresh, false);
  return true;
}

// ---- What a thread does with groups of its own.

// Groups [first, last) of a sample where groups are small: as many at a time as fit a tile.
template <class P>
class SmallGradients {
  using T = typename P::Type;
  using W = Wide<T>;

 public:
  HWY_INLINE SmallGradients(const P& p, const GradGroup<T>& own)
      : p_(p),
        elements_(p.shape.group_elements()),
        parameters_(p, own),
        for_elements_(elements_),
        sum_channels_(p.shape.inner) {}

  HWY_INLINE void operator()(int64_t n, int64_t first, int64_t last, int64_t slot, bool fresh) {
    const int64_t tile = kSmallTile / elements_, group_channels = p_.shape.group_channels();
    for (int64_t g = first; g < last; g += tile) {
      const int64_t groups = HWY_MIN(tile, last - g), all = groups * elements_, channels = groups * group_channels;
      const int64_t offset = g * elements_, channel = g * group_channels;
      spread(p_.mean + n * p_.shape.groups + g, groups, mean_);
      spread(p_.rstd + n * p_.shape.groups + g, groups, rstd_);
      const auto at = parameters_(channel, channels, true, Each<W>(mean_), Each<W>(rstd_));
      const T* x = p_.x.row(n) + offset;
      flat_slopes<P::kSwish>(p_.dy.row(n) + offset, x, at, all,
                             [&](auto, int64_t j, const Pack<W>& at_dz, const Pack<W>& at_dzx) DESCEND_INLINED {
                               store(Full(), at_dz, dz_ + j);
                               store(Full(), at_dzx, dzx_ + j);
                             });
      const auto add_up = [&](const W* values, const ColumnSums<T>& to, W* means) HWY_ATTR {
        const W* sums = sum_channels_(values, channels);
        leave_sums(sums, channels, to.from(slot * p_.shape.channels + channel), fresh, false);
        weigh(p_.gamma + channel, sums, channels);
        sum_tile(weighted_, groups, group_channels, sums_);
        const Tag<double> d;
        for_each_row_vector(groups, [&](int64_t i) HWY_ATTR {
          store_rounded(d, hn::Div(hn::Load(d, sums_ + i), splat(static_cast<double>(elements_))), of_group_ + i);
        });
        for_elements_(of_group_, all, means);
      };
      add_up(dz_, p_.dbeta, c1_);
      add_up(dzx_, p_.dgamma, c2_);
      if (!p_.wants_dx) continue;
      if (elements_ == 1) {  // dz * gamma is its own mean: what is left of dx is 0 where xhat is
        for (int64_t j = 0; j < all; ++j) {
          dz_[j] -= dz_[j];  // of an infinity, NaN
          c1_[j] = 0;
        }
      }
      flat_apply(x, dz_, at, Each<W>(c1_), Each<W>(c2_), all, p_.dx.row(n) + offset);
    }
  }

 private:
  static constexpr int64_t kTile = kSmallTile + kFlatRoom<W>;

  // A number of each group for all its elements.
  HWY_INLINE void spread(const W* from, int64_t groups, W* to) {
    widen_packs(from, groups, of_group_);
    for_elements_(of_group_, groups * elements_, to);
  }

  // Sums of channels times their gamma, in double, where nothing overflows.
  HWY_INLINE void weigh(const W* gamma, const W* sums, int64_t channels) {
    const Tag<double> d;
    for_each_pack<W>(0, channels, [&](auto extent, int64_t c) HWY_ATTR {
      constexpr size_t kCount = kPackLanes<W> / kVectorLanes<double>;
      Vector<double> weight[kCount], sum[kCount];
      to_double<W, kPackVectors<W>>(load_pack(extent, gamma + c).v, weight);
      to_double<W, kPackVectors<W>>(load_pack(extent, sums + c).v, sum);
      each<kCount>([&](size_t k) DESCEND_INLINED {
        hn::Store(hn::Mul(weight[k], sum[k]), d, weighted_ + c + static_cast<int64_t>(k * kVectorLanes<double>));
      });
    });
  }

  const P& p_;
  const int64_t elements_;
  TileParameters<P> parameters_;
  const Repeat<W> for_elements_;
  ChannelSums<W> sum_channels_;
  HWY_ALIGN W mean_[kTile];
  HWY_ALIGN W rstd_[kTile];
  HWY_ALIGN W dz_[kTile];
  HWY_ALIGN W dzx_[kTile];
  HWY_ALIGN W c1_[kTile];
  HWY_ALIGN W c2_[kTile];
  HWY_ALIGN double weighted_[kTile];
  HWY_ALIGN double sums_[kTile];
  HWY_ALIGN W of_group_[kTile];
};

// Chunks [first, last). `own` lacks what differs from group to group.
template <class P, class T>
void group_norm_grad_chunks(const P& p, const GroupCut& cut, int64_t first, int64_t last, GradGroup<T> own) {
  const GroupShape& shape = p.shape;
  const int64_t elements = shape.group_elements(), entries = grad_entries(shape);
  if (has_short_channels(shape) && elements < kSmallGradElements) {
    SmallGradients<P> small_groups(p, own);
    for (int64_t i = first; i < last; ++i) {
      const GroupChunk chunk = cut.chunk(shape, i);
      for (int64_t n = chunk.first_sample; n < chunk.last_sample; ++n) {
        small_groups(n, chunk.first_group, chunk.last_group, chunk.slot, n == chunk.first_sample);
      }
    }
    return;
  }
  GradGroup<T> above{};  // the group whose results are yet to be made
  for (int64_t i = first; i < last; ++i) {
    const GroupChunk chunk = cut.chunk(shape, i);
    for (int64_t n = chunk.first_sample; n < chunk.last_sample; ++n) {
      for (int64_t g = chunk.first_group; g < chunk.last_group; ++g) {
        own.place(p, n, g, chunk.slot, n == chunk.first_sample);
        const bool same_sample = g + 1 < chunk.last_group;
        own.set_next(p, same_sample ? n : std::min(n + 1, chunk.last_sample - 1),
                     same_sample ? g + 1 : chunk.first_group);
        do {
          if (above.in_step) {
            group_norm_grad_in_step(p, own, above);
            above.in_step = false;
          } else {
            group_norm_grad_sums(p, own, 0, entries);
          }
        } while (!group_norm_grad_means(p, own));
        if (own.in_step && !own.wild) {
          above = own;
        } else if (p.wants_dx) {
          group_norm_grad_apply(p, own, 0, entries);
        }
      }
    }
  }
  if (above.in_step) group_norm_grad_apply(p, above, 0, entries);
}

}  // namespace descend::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

namespace descend::kernels::DESCEND_TARGET {
namespace {

size_t padded(size_t bytes) { return (bytes + 127) / 64 * 64; }

// Scratch: gamma, and with swish beta, once an element of a sample where that is not what they are anyway; then one
// buffer for each chunk in work, with the sums of a group's entries and, with swish, its dz.
struct Scratch {
  size_t each = 0;        // bytes of gamma_each or beta_each
  size_t parameters = 1;  // of which there are so many
  size_t sums = 0;        // bytes of one of the two arrays of sums
  size_t dz = 0;
  size_t buffers = 0;

  template <class W, bool kSwish>
  static Scratch of(const GroupShape& shape, int64_t chunks) {
    constexpr int64_t kKeptElements = int64_t{1} << 20;  // of a shared group; beyond, memory costs more than exp
    Scratch scratch{.parameters = kSwish ? 2 : 1};
    const int64_t elements = shape.group_elements();
    if (has_short_channels(shape) && shape.inner > 1) {
      scratch.each = padded(static_cast<size_t>(shape.channels * shape.inner) * sizeof(W));
    }
    scratch.sums = padded(static_cast<size_t>(whole_packs<W>(grad_entries(shape))) * sizeof(double));
    if (kSwish && elements <= kKeptElements) {
      const int64_t kept = has_short_channels(shape) ? grad_entries(shape) * tile_pitch<W>(shape)
                                                     : shape.group_channels() * whole_packs<W>(shape.inner);
      scratch.dz = padded(static_cast<size_t>(kept) * sizeof(W));
    }
    scratch.buffers = static_cast<size_t>(chunks);
    return scratch;
  }
  size_t buffer() const { return 2 * sums + dz; }
  size_t bytes() const { return parameters * each + buffers * buffer(); }

  template <class T>
  void lay_out(void* buffer, GradGroup<T>& group) const {
    char* memory = static_cast<char*>(buffer);
    group.dz_sums = reinterpret_cast<double*>(memory);
    group.dzx_sums = reinterpret_cast<double*>(memory + sums);
    group.dz = dz ? reinterpret_cast<Wide<T>*>(memory + 2 * sums) : nullptr;
  }
};

template <class T>
int64_t bytes_moved(const GroupShape& shape) {
  return 3 * shape.elements() * static_cast<int64_t>(sizeof(T));
}

// Bytes that channels begin at multiples of where dx is stored past the caches. The lines that two channels share are
// stored in parts: for short channels, or as long as the last-level cache has room for dx, that takes longer than to
// store as usual.
template <class T>
int stream_unit(const GroupShape& shape) {
  constexpr int64_t kLong = 512;  // elements
  return shape.inner >= kLong && exceeds_last_cache(bytes_moved<T>(shape) / 3) ? kStreamUnit<T> : 64;
}

// Whether dx is stored past the caches where it is aligned.
template <class T>
bool may_stream(const GroupShape& shape) {
  const int64_t channel_bytes = shape.inner * static_cast<int64_t>(sizeof(T));
  return !has_short_channels(shape) && channel_bytes % stream_unit<T>(shape) == 0 &&
         streams_results({bytes_moved<T>(shape), bytes_moved<T>(shape) / 3});
}

// Whether a group's results are better made in step with the next group's sums. Those leave memory time that results
// past the caches lack, and ways through short channels are shared; a group that is not split is small enough for its
// x, dy and dz to stay in a cache until then.
template <class T>
bool work_in_step(const GroupShape& shape, bool stream) {
  constexpr int64_t kShort = 256;
  if (has_short_channels(shape) || split_groups(shape)) return false;
  return stream || (shape.inner < kShort && exceeds_kept(bytes_moved<T>(shape)));
}

template <class T, bool kSwish>
Scratch scratch_of(const GroupShape& shape) {
  const int64_t chunks = split_groups(shape) ? 1 : cut_groups(shape).chunks();
  return Scratch::of<Wide<T>, kSwish>(shape, chunks);
}

template <class T>
void spread_channels(const Wide<T>* from, const GroupShape& shape, Wide<T>* to) {
  constexpr int64_t kChannels = 4096;  // many vectors
  parallel_for(ceil_div(shape.channels, kChannels), shape.channels * shape.inner * 4, [&](int64_t chunk) {
    spread_parameter<T>(from, shape.inner, chunk * kChannels, std::min((chunk + 1) * kChannels, shape.channels), to);
  });
}

template <class P, class T>
void by_groups(const P& p, const Scratch& scratch, void* memory, const GradGroup<T>& each) {
  const GroupCut cut = cut_groups(p.shape);
  const int64_t chunks = cut.chunks(), take = each.in_step ? chunks_to_take(chunks) : 1;
  Buffers buffers(memory, scratch.buffer());
  parallel_for(ceil_div(chunks, take), group_work(p.shape, p.shape.elements()), [&](int64_t i) {
    const Buffers::Taken taken(buffers);
    GradGroup<T> own = each;
    scratch.lay_out(taken.get(), own);
    group_norm_grad_chunks(p, cut, i * take, std::min((i + 1) * take, chunks), own);
  });
}

// The threads share one group after the other; one slot is enough.
template <class P, class T>
void by_pieces(const P& p, const Scratch& scratch, void* memory, GradGroup<T> group) {
  const int64_t entries = grad_entries(p.shape);
  const int64_t entry_elements = has_short_channels(p.shape) ? kFlatTile : std::min(p.shape.inner, kBlock);
  const int64_t piece = std::max<int64_t>(kPieceElements / entry_elements, 1);
  const int64_t pieces = ceil_div(entries, piece);
  const int64_t work = group_work(p.shape, p.shape.group_elements());
  scratch.lay_out(memory, group);
  for (int64_t n = 0; n < p.shape.samples; ++n) {
    for (int64_t g = 0; g < p.shape.groups; ++g) {
      group.place(p, n, g, 0, n == 0);
      group.set_next(p, n, g);
      const auto end = [&](int64_t i) { return std::min((i + 1) * piece, entries); };
      for (bool known = false; !known;) {
        parallel_for(pieces, work, [&](int64_t i) { group_norm_grad_sums(p, group, i * piece, end(i)); });
        const FixedFpEnvironment environment;
        known = group_norm_grad_means(p, group);
      }
      if (!p.wants_dx) continue;
      parallel_for(pieces, work, [&](int64_t i) { group_norm_grad_apply(p, group, i * piece, end(i)); });
    }
  }
}

template <class T, bool kSwish>
size_t gradient_scratch(const GroupShape& shape) {
  return shape.elements() == 0 ? 0 : scratch_of<T, kSwish>(shape).bytes();
}

template <class P>
void run_gradient(const P& p, void* memory) {
  using T = typename P::Type;
  const GroupShape& shape = p.shape;
  if (shape.elements() == 0) {
    p.dgamma.clear(shape.channels);
    p.dbeta.clear(shape.channels);
    return;
  }
  const Scratch scratch = scratch_of<T, P::kSwish>(shape);
  const bool split = split_groups(shape);
  const auto threads = [&] {
    if (split) return num_threads();
    return detail::useful_threads(cut_groups(shape).chunks(), group_work(shape, shape.elements()));
  };
  char* rest = static_cast<char*>(memory) + scratch.parameters * scratch.each;
  GradGroup<T> each{};
  each.gamma_each = p.gamma;
  each.beta_each = p.beta;
  if (scratch.each > 0 && shape.inner >= kSpreadByTile && threads() > 1) {
    each.gamma_each = each.beta_each = nullptr;
  } else if (scratch.each > 0) {
    auto* gamma = static_cast<Wide<T>*>(memory);
    spread_channels<T>(p.gamma, shape, gamma);
    each.gamma_each = gamma;
    if constexpr (P::kSwish) {
      auto* beta = reinterpret_cast<Wide<T>*>(static_cast<char*>(memory) + scratch.each);
      spread_channels<T>(p.beta, shape, beta);
      each.beta_each = beta;
    }
  }
  each.stream = may_stream<T>(shape) && are_aligned(p.dx, stream_unit<T>(shape));
  each.in_step = p.wants_dx && work_in_step<T>(shape, each.stream);
  each.ask = exceeds_kept(bytes_moved<T>(shape));
  split ? by_pieces(p, scratch, rest, each) : by_groups(p, scratch, rest, each);
}

}  // namespace
}  // namespace descend::kernels::DESCEND_TARGET
