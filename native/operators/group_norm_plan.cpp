#include "operators/group_norm_plan.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "kernels/group_norm_grad.h"
#include "kernels/group_norm_swish.h"
#include "operators/staging.h"

namespace descend {
namespace {

using kernels::GroupNormGrad;
using kernels::GroupNormSwish;
using kernels::GroupShape;

// Small samples are folded: `times` neighbouring samples are computed as one, with `times` as many channels and groups,
// and with gamma and beta repeated, so that there are at least `enough` elements at a time. Partial sums of channels
// then have `times` as many slots. Folded samples must be contiguous; if they are not, they are copied. So the order of
// sums depends on the shape alone.
struct FoldedSamples {
  int64_t times = 1;
  GroupShape main;
  GroupShape rest;  // the samples that are left over

  int64_t main_samples() const { return main.samples * times; }
};

FoldedSamples fold_samples(const GroupShape& shape, int64_t enough) {
  constexpr int64_t kLeast = 4;  // fold at least so many samples; with fewer the copies take as much time as they save
  const int64_t elements = shape.channels * shape.inner;
  if (!kernels::has_short_channels(shape) || elements == 0 || kLeast * elements > enough) {
    return {.main = shape, .rest = {.channels = shape.channels, .groups = shape.groups}};
  }
  int64_t times = std::clamp<int64_t>(enough / elements, 1, std::max<int64_t>(shape.samples, 1));
  for (int64_t fewer = times; 2 * fewer > times; --fewer) {
    if (shape.samples % fewer == 0) {  // no samples are left over
      times = fewer;
      break;
    }
  }
  FoldedSamples folded{.times = times, .main = shape, .rest = shape};
  folded.main.samples = shape.samples / times;
  folded.main.channels *= times;
  folded.main.groups *= times;
  folded.rest.samples = shape.samples % times;
  return folded;
}

// Repeats gamma and beta into `room`; beta may be absent.
template <class W>
void repeat_parameters(const FoldedSamples& folded, W* room, const W*& gamma, const W*& beta) {
  const int64_t channels = folded.rest.channels;
  for (const W** parameter : {&gamma, &beta}) {
    if (*parameter == nullptr) continue;
    const W* from = std::exchange(*parameter, room);
    for (int64_t i = 0; i < folded.times; ++i, room += channels) std::copy_n(from, channels, room);
  }
}

// The scale in the type of the arithmetic. A finite number stays finite, so that 0 times it is 0.
template <class W>
W narrow_scale(double scale) {
  constexpr double kLargest = std::numeric_limits<W>::max();
  const bool finite = std::abs(scale) <= std::numeric_limits<double>::max();
  return static_cast<W>(finite ? std::clamp(scale, -kLargest, kLargest) : scale);
}

// Leading dimensions of a tensor that may have gaps: the samples, if its first dimension is they and none are folded.
uint64_t leading(const Call& call, int i, const GroupShape& shape, const FoldedSamples& folded) {
  const Dims& dims = call[i].tensor.shape;
  return folded.times == 1 && dims.size() > 0 && dims[0] == shape.samples ? 1 : 0;
}

// The samples one after the other, if no dimension counts them.
StagedRows rows_of(StagedRows staged, uint64_t leading, const GroupShape& shape) {
  if (leading == 0) staged.stride = shape.channels * shape.inner;
  return staged;
}

template <class T>
StagedRows stage_samples(const Call& call, Plan& plan, int i, const GroupShape& shape, const FoldedSamples& folded) {
  const uint64_t n = leading(call, i, shape, folded);
  return rows_of(stage_rows(call, plan, i, n, shape.channels * shape.inner, kElementOf<T>), n, shape);
}

template <class W>
Place stage_channels(const Call& call, Plan& plan, int i, const GroupShape& shape, W missing) {
  return call.given(i) ? stage_vector(call, plan, i, kElementOf<W>) : stage_copies(plan, shape.channels, missing);
}

template <class T>
void plan_forward(const Call& call, const GroupNormForward& at, const GroupShape& shape, Plan& plan) {
  using W = kernels::Wide<T>;
  const int64_t columns = shape.channels * shape.inner;
  const FoldedSamples folded = fold_samples(shape, kernels::kForwardTile);
  const StagedRows x = stage_samples<T>(call, plan, at.x, shape, folded);
  const Place gamma = stage_channels<W>(call, plan, at.gamma, shape, 1);
  const Place beta = stage_channels<W>(call, plan, at.beta, shape, 0);
  const uint64_t n = leading(call, at.y, shape, folded);
  const StagedOutput y = StagedOutput::rows(call, plan, at.y, n, columns, kElementOf<T>);
  const StagedRows y_rows = rows_of(y.staged(), n, shape);
  const StagedOutput mean = StagedOutput::vector(call, plan, at.mean, kElementOf<W>);
  const StagedOutput rstd = StagedOutput::vector(call, plan, at.rstd, kElementOf<W>);
  const auto& [times, main, rest] = folded;
  const Place repeated = plan.scratch(times > 1 ? 2 * main.channels : 0, sizeof(W));
  const Place scratch =
      plan.scratch(std::max(kernels::group_norm_swish_scratch<T>(main), kernels::group_norm_swish_scratch<T>(rest)));
  plan.step(call.op->name, 2.0 * shape.elements() * sizeof(T),
            [=, epsilon = at.epsilon, activate = at.activate, scale = narrow_scale<W>(at.swish_scale),
             mean_place = mean.place(), rstd_place = rstd.place()](const Addresses& addresses) {
              GroupNormSwish<T> p{.shape = folded.rest,
                                  .x = x.at<const T>(addresses),
                                  .gamma = addresses.at<const W>(gamma),
                                  .beta = addresses.at<const W>(beta),
                                  .epsilon = epsilon,
                                  .activate = activate,
                                  .scale = scale,
                                  .y = y_rows.at<T>(addresses),
                                  .mean = addresses.at<W>(mean_place),
                                  .rstd = addresses.at<W>(rstd_place)};
              GroupNormSwish<T> several = p;
              several.shape = folded.main;
              if (folded.times > 1) {
                repeat_parameters(folded, addresses.at<W>(repeated), several.gamma, several.beta);
                several.x.stride = several.y.stride = folded.times * columns;
              }
              void* const memory = addresses.at<void>(scratch);
              kernels::group_norm_swish<T>(several, memory);
              if (folded.rest.samples == 0) return;
              p.x.data = p.x.row(folded.main_samples());
              p.y.data = p.y.row(folded.main_samples());
              p.mean += folded.main_samples() * shape.groups;
              p.rstd += folded.main_samples() * shape.groups;
              kernels::group_norm_swish<T>(p, memory);
            });
  y.finish(call, plan);
  mean.finish(call, plan);
  rstd.finish(call, plan);
}

template <class T, bool kSwish>
void plan_gradient(const Call& call, const GroupNormGradient& at, const GroupShape& shape, Plan& plan) {
  using W = kernels::Wide<T>;
  constexpr auto kernel = [](const GroupNormGrad<T, kSwish>& p, void* memory) {
    if constexpr (kSwish) {
      kernels::group_norm_swish_grad<T>(p, memory);
    } else {
      kernels::group_norm_backward<T>(p, memory);
    }
  };
  const auto scratch_of = [](const GroupShape& of) {
    return kSwish ? kernels::group_norm_swish_grad_scratch<T>(of) : kernels::group_norm_backward_scratch<T>(of);
  };
  const int64_t columns = shape.channels * shape.inner;
  const FoldedSamples folded = fold_samples(shape, kernels::kSmallTile);
  const StagedRows dy = stage_samples<T>(call, plan, at.dy, shape, folded);
  const StagedRows x = stage_samples<T>(call, plan, at.x, shape, folded);
  // If groups have no elements, nothing is read.
  const auto vector = [&](int i) { return shape.inner == 0 ? Place{} : stage_vector(call, plan, i, kElementOf<W>); };
  const Place mean = vector(at.mean), rstd = vector(at.rstd);
  const Place gamma = shape.inner == 0 ? Place{} : stage_channels<W>(call, plan, at.gamma, shape, 1);
  const Place beta = kSwish ? vector(at.beta) : Place{};
  const bool wants_dx = is_used(call, at.dx);
  const uint64_t n = wants_dx ? leading(call, at.dx, shape, folded) : 0;
  StagedOutput dx;
  if (wants_dx) dx = StagedOutput::rows(call, plan, at.dx, n, columns, kElementOf<T>);
  // Without dx nothing is written there.
  const StagedRows dx_rows = wants_dx ? rows_of(dx.staged(), n, shape) : x;
  const auto& [times, main, rest] = folded;
  const int64_t main_slots = times * kernels::group_norm_grad_slots(main);
  const int64_t rest_slots = rest.samples > 0 ? kernels::group_norm_grad_slots(rest) : 0;
  const int64_t slots = shape.samples == 1 ? 0 : main_slots + rest_slots;
  const auto sums = [&](int i) {
    return is_used(call, i) ? StagedSums(call, plan, i, slots, shape.channels, kElementOf<T>) : StagedSums();
  };
  const StagedSums dgamma = sums(at.dgamma), dbeta = sums(at.dbeta);
  const Place repeated = plan.scratch(times > 1 ? 2 * main.channels : 0, sizeof(W));
  const Place scratch = plan.scratch(std::max(scratch_of(main), scratch_of(rest)));
  plan.step(call.op->name, 3.0 * shape.elements() * sizeof(T),
            [=, scale = narrow_scale<W>(at.swish_scale)](const Addresses& addresses) {
              GroupNormGrad<T, kSwish> p{.shape = folded.rest,
                                         .dy = dy.at<const T>(addresses),
                                         .x = x.at<const T>(addresses),
                                         .mean = addresses.at<const W>(mean),
                                         .rstd = addresses.at<const W>(rstd),
                                         .gamma = addresses.at<const W>(gamma),
                                         .beta = kSwish ? addresses.at<const W>(beta) : nullptr,
                                         .scale = scale,
                                         .dx = dx_rows.at<T>(addresses),
                                         .wants_dx = wants_dx,
                                         .dgamma = dgamma.at<T>(addresses),
                                         .dbeta = dbeta.at<T>(addresses)};
              GroupNormGrad<T, kSwish> several = p;
              several.shape = folded.main;
              if (folded.times > 1) {
                repeat_parameters(folded, addresses.at<W>(repeated), several.gamma, several.beta);
                several.dy.stride = several.x.stride = several.dx.stride = folded.times * columns;
              }
              void* const memory = addresses.at<void>(scratch);
              kernel(several, memory);
              if (folded.rest.samples == 0) return;
              p.dy.data = p.dy.row(folded.main_samples());
              p.x.data = p.x.row(folded.main_samples());
              p.dx.data = p.dx.row(folded.main_samples());
              p.mean += folded.main_samples() * shape.groups;
              p.rstd += folded.main_samples() * shape.groups;
              p.dgamma = p.dgamma.from(main_slots * shape.channels);
              p.dbeta = p.dbeta.from(main_slots * shape.channels);
              kernel(p, memory);
            });
  if (wants_dx) dx.finish(call, plan);
  dgamma.finish(call, plan);
  dbeta.finish(call, plan);
}

}  // namespace

void plan_group_norm(const Call& call, const GroupNormForward& at, const GroupShape& shape, Plan& plan) {
  if (shape.samples == 0) return;
  with_element_type(kernel_element(call, at.x, {at.y}), [&]<class T>(T) { plan_forward<T>(call, at, shape, plan); });
}

void plan_group_norm_gradient(const Call& call, const GroupNormGradient& at, const GroupShape& shape, Plan& plan) {
  if (shape.channels == 0) return;
  const int of_x = is_used(call, at.dx) ? at.dx : at.x;
  with_element_type(kernel_element(call, at.x, {at.dy, of_x}), [&]<class T>(T) {
    at.beta < 0 ? plan_gradient<T, false>(call, at, shape, plan) : plan_gradient<T, true>(call, at, shape, plan);
  });
}

}  // namespace descend
