// One group of the gradient of group norm, with swish or without, and where its numbers lie. The loops over long and
// over short channels work on it.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>

#include "hwy/base.h"
#include "kernels/groups/problem.h"
#include "kernels/rows/tame.h"

namespace descend::kernels {

// Elements that are worked on at a time of short channels: what is computed of them and what is read next fit a
// first-level cache. Vectors run over channels, too.
inline constexpr int64_t kFlatTile = 1024;

// With so many elements of a channel, gamma and beta are sooner spread over them tile by tile than fetched from another
// thread, which has done so for a whole sample.
inline constexpr int64_t kSpreadByTile = 16;

// Groups of short channels with fewer elements are small: several are worked on at a time.
inline constexpr int64_t kSmallGradElements = 192;

// What is subtracted from an element's gamma * dz: level + tilt * element. Of xhat these are the mean of gamma * dz and
// that of gamma * dz * xhat.
template <class W>
struct Plane {
  W tilt, level;
};

// A NaN is the one that store() takes for bfloat16.
template <class W>
HWY_INLINE W rounded(double value) {
  return std::isnan(value) ? std::numeric_limits<W>::quiet_NaN() : static_cast<W>(value);
}

// One group, and where its sums go. An entry is a channel, or a block of one where channels are long; where they are
// short, a tile of them.
template <class T>
struct GradGroup {
  const T* dy;
  const T* x;
  T* dx;
  Wide<T> mean, rstd;
  const T* next_dy;  // of the group that comes next, where channels are short
  const T* next_x;
  int64_t channel;            // the group's first
  const Wide<T>* gamma_each;  // one number an element of the sample, for the flat path; null: made there
  const Wide<T>* beta_each;
  double* dz_sums;      // [entries]; where channels are short, times their gamma
  double* dzx_sums;     // [entries]: of that times xhat
  ColumnSums<T> dbeta;  // [channels of the group]: where the sums of channels go, if they are wanted
  ColumnSums<T> dgamma;
  bool fresh;  // whether nothing is in slots as yet
  // [elements], or null: it is computed again rather than kept, or, without swish, is dy. See whole_packs(),
  // tile_pitch()
  Wide<T>* dz;
  Plane<Wide<T>> plane;  // set once the sums are there
  bool wild;             // see kUsuallyNormalised
  bool ask;              // whether what is next is worth asking for
  bool stream;           // whether dx is stored past the caches
  bool in_step;          // whether dx is made in step with the next group's sums

  void place(const auto& p, int64_t sample, int64_t index, int64_t slot, bool first_of_slot) {
    const int64_t offset = index * p.shape.group_elements();
    dy = p.dy.row(sample) + offset;
    x = p.x.row(sample) + offset;
    dx = p.dx.row(sample) + offset;
    mean = rounded<Wide<T>>(p.mean[sample * p.shape.groups + index]);
    rstd = rounded<Wide<T>>(p.rstd[sample * p.shape.groups + index]);
    wild = false;
    channel = index * p.shape.group_channels();
    const int64_t at = slot * p.shape.channels + channel;
    dbeta = p.dbeta.from(at);
    dgamma = p.dgamma.from(at);
    fresh = first_of_slot;
  }

  void set_next(const auto& p, int64_t sample, int64_t index) {
    const int64_t offset = index * p.shape.group_elements();
    next_dy = p.dy.row(sample) + offset;
    next_x = p.x.row(sample) + offset;
  }
};

// How long channels are read: normalised; but elements of 16 bits are taken as they are, since the digits that they
// lack are more than what rounding loses where the mean is large. The coefficients then make up for it. Where that
// would not do, the group is wild and is read normalised after all: see is_tame_group().
template <class T>
inline constexpr bool kUsuallyNormalised = sizeof(T) != 2;

struct Frame {
  double origin = 0, unit = 1;  // xhat = (element - origin) * unit
};

template <bool kNormalised, class T>
HWY_INLINE Frame frame_of(const GradGroup<T>& group) {
  if constexpr (kNormalised) return {};
  return {static_cast<double>(group.mean), static_cast<double>(group.rstd)};
}

// The plane of xhat as one of elements that are read in a frame, times its unit.
template <class W>
HWY_INLINE Plane<W> plane_in(const Frame& frame, const Plane<W>& of_xhat) {
  const double c1 = static_cast<double>(of_xhat.level), c2 = static_cast<double>(of_xhat.tilt);
  const W tilt = rounded<W>(frame.unit * frame.unit * c2);
  return {tilt, rounded<W>(frame.unit * c1 - frame.origin * static_cast<double>(tilt))};
}

// Not infinity where none is: it times 0 is NaN. Where one is, NaN, as is then the slope of swish.
template <class W>
HWY_INLINE W finite(double value) {
  constexpr double kLargest = static_cast<double>(std::numeric_limits<W>::max());
  if (!std::isfinite(value)) return std::numeric_limits<W>::quiet_NaN();
  return static_cast<W>(std::clamp(value, -kLargest, kLargest));
}

// Where the slope of swish is computed the brief way, in units of -ln 2.
template <class T>
HWY_INLINE double scale_of(const GroupNormGrad<T, true>& p) {
  return static_cast<double>(p.scale) * (kBriefly<T> ? -std::numbers::log2e : 1.0);
}

// Short channels that are worked on at a time: a multiple of those that are folded together.
inline int64_t tile_channels(const GroupShape& shape) {
  constexpr int64_t kFolded = 16;
  return std::min(kFlatTile / shape.inner / kFolded * kFolded, shape.group_channels());
}

inline int64_t grad_entries(const GroupShape& shape) {
  const int64_t channels = shape.group_channels();
  return has_short_channels(shape) ? ceil_div(channels, tile_channels(shape)) : channels * blocks_in(shape.inner);
}

// Behind the numbers of a tile: what sums of channels read beyond them.
template <class W>
inline constexpr int64_t kFlatRoom = 256 / sizeof(W);

// Where channels are short, the dz of each tile starts at a multiple of so many elements.
template <class W>
HWY_INLINE int64_t tile_pitch(const GroupShape& shape) {
  return whole_packs<W>(tile_channels(shape) * shape.inner) + kFlatRoom<W>;
}

// Whether a long channel of a group is read as it is without loss: neither its sums nor what its results are computed
// from have left the range of float, and no infinity is among them.
template <class T>
HWY_INLINE bool is_tame_group(const GradGroup<T>& group, const Plane<Wide<T>>& of_xhat) {
  const bool fits = std::isnormal(group.plane.tilt) || of_xhat.tilt == 0;
  return fits && std::isfinite(group.plane.level) && is_tame(group.rstd);
}

}  // namespace descend::kernels
