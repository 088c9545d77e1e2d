// What the gradient of group norm, or of group norm + swish, is computed of, and where its results go.
#pragma once

#include "kernels/groups/group_cut.h"
#include "kernels/simd/element.h"

namespace descend::kernels {

// Elements of small groups that are worked on at a time.
inline constexpr int64_t kSmallTile = 1024;

//   xhat = (x - mean) * rstd,  z = xhat * gamma + beta,  sig = sigmoid(s * z)
//   dz   = kSwish ? dy * sig * (1 + s * z * (1 - sig)) : dy
//   dx   = rstd * (dz * gamma - mean(dz * gamma) - xhat * mean(dz * gamma * xhat)), means over the group
//   dgamma = sum of dz * xhat, dbeta = sum of dz, over samples and inner elements
template <class T, bool kSwishFollows>
struct GroupNormGrad {
  using Type = T;
  static constexpr bool kSwish = kSwishFollows;

  GroupShape shape;
  Rows<const T> dy;  // a row is a sample
  Rows<const T> x;
  const Wide<T>* mean;   // [samples, groups]
  const Wide<T>* rstd;   // [samples, groups]
  const Wide<T>* gamma;  // [channels]
  const Wide<T>* beta;   // [channels]; with swish
  Wide<T> scale;         // s; with swish
  Rows<T> dx;            // may be dy or x themselves
  bool wants_dx;         // if not, it is read at most
  // [group_norm_grad_slots(...)][channels]: partial sums, to be added with sum_slots. Of one sample the sums may be
  // written where they end instead.
  ColumnSums<T> dgamma;
  ColumnSums<T> dbeta;
};

}  // namespace descend::kernels
