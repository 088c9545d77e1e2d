// What norms and their gradients have in common: a row's terms, and when they hold.
#if defined(DESCEND_KERNELS_NORM_FINISH_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DESCEND_KERNELS_NORM_FINISH_INL_H_
#undef DESCEND_KERNELS_NORM_FINISH_INL_H_
#else
#define DESCEND_KERNELS_NORM_FINISH_INL_H_
#endif

#include <limits>

#include "kernels/pack-inl.h"
#include "kernels/tame.h"

HWY_BEFORE_NAMESPACE();
namespace descend::kernels::HWY_NAMESPACE {

// slope = mean(g * xc) * rstd^3. It holds where rstd is near 1 and neither an infinity, a NaN nor a subnormal number
// shows: rstd could bring the bits that such a number has lost back into the range.
template <class W>
HWY_INLINE hn::Mask<Tag<double>> norm_slope(Vector<double> mean_gx, Vector<double> rstd, Vector<double>& slope) {
  const Tag<double> d;
  const auto least = splat(static_cast<double>(std::numeric_limits<W>::min()));
  const auto most = splat(static_cast<double>(std::numeric_limits<W>::max()));
  slope = hn::Mul(hn::Mul(hn::Mul(mean_gx, rstd), rstd), rstd);
  const auto size = hn::Abs(slope), scale = hn::Abs(rstd);
  const auto exact = hn::Or(hn::Ge(hn::Min(size, hn::Abs(mean_gx)), least), hn::Eq(size, hn::Zero(d)));
  const auto near = hn::And(hn::Ge(scale, splat(static_cast<double>(kTameLeast<W>))),
                            hn::Le(scale, splat(static_cast<double>(kTameMost<W>))));
  return hn::And(hn::And(hn::Le(size, most), exact), near);
}

// The double nearest v among those that W has.
template <class W>
HWY_INLINE Vector<double> round_to(Vector<double> v) {
  return widen_to_double(Tag<double>(), narrow_double<W>(Tag<double>(), v));
}

// rstd = 1 / sqrt(variance + epsilon). It holds where the mean of what was squared has neither left the range of W nor,
// with an epsilon as small, lost bits to underflow. In double there is nowhere else to compute it.
template <class W>
HWY_INLINE hn::Mask<Tag<double>> norm_rstd(Vector<double> squares, Vector<double> variance, double epsilon,
                                           Vector<double>& rstd) {
  constexpr double kLeast = sizeof(W) == sizeof(double) ? 0 : 0x1p-80;
  const auto scale = splat(epsilon);
  rstd = hn::Div(splat(1.0), hn::Sqrt(hn::Add(variance, scale)));
  return hn::And(hn::Ge(hn::Add(squares, scale), splat(kLeast)),
                 hn::Le(squares, splat(std::numeric_limits<double>::max())));
}

}  // namespace descend::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // DESCEND_KERNELS_NORM_FINISH_INL_H_
