#include "kernels/layer_norm_backward.h"

#define HWY_TARGET_INCLUDE "kernels/layer_norm_backward.cpp"
#include "kernels/dispatch.h"
#include "kernels/norm_backward-inl.h"

HWY_BEFORE_NAMESPACE();
namespace descend::kernels::HWY_NAMESPACE {

template <class T>
NormBackwardKernels<T> layer_norm_backward_kernels() {
  return {norm_backward_rows<LayerNorm, T>, norm_backward_block_sums<LayerNorm, T>, norm_backward_results<LayerNorm, T>,
          norm_backward_wild_sums<LayerNorm, T>};
}

// dx of rows [first, last) of one element. There g is its own mean, and what is left of dx is 0 where xhat is. Their
// difference in the usual terms, each rounded on its own, would not be 0; nor is g computed, which might overflow. What
// makes it infinite or NaN makes the difference NaN.
template <class T>
void layer_norm_backward_single(const NormBackward<T>& p, int64_t first, int64_t last) {
  using W = Wide<T>;
  constexpr int64_t kRows = kTileRows<W>, kRoom = kRows + static_cast<int64_t>(kPackLanes<W>);
  HWY_ALIGN W dy[kRoom];
  HWY_ALIGN W x[kRoom];
  HWY_ALIGN W few[kPackLanes<W>];
  const W gamma = *widened(p.gamma, 1, few);
  for (int64_t row = first; row < last; row += kRows) {
    const int64_t rows = HWY_MIN(kRows, last - row);
    read_tile<T>({p.dy.row(row), p.dy.stride}, rows, 1, dy);
    read_tile<T>({p.x.row(row), p.x.stride}, rows, 1, x);
    for (int64_t r = 0; r < rows; ++r) {
      const W rstd = p.rstd[row + r], xhat = (x[r] - p.mean[row + r]) * rstd;
      const W difference = (dy[r] - dy[r]) + (gamma - gamma);
      x[r] = rstd * (difference - xhat * (dy[r] * xhat * gamma));
    }
    write_tile<T>(x, rows, 1, {p.dx.row(row), p.dx.stride});
  }
}

}  // namespace descend::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace descend::kernels {

template <class T>
int64_t layer_norm_backward_slots(int64_t rows, int64_t columns) {
  return norm_backward_slots<T>(rows, columns);
}

template <class T>
size_t layer_norm_backward_scratch(int64_t rows, int64_t columns) {
  return norm_backward_scratch<T>(rows, columns);
}

template <class T>
void layer_norm_backward(const LayerNormBackward<T>& p, void* scratch) {
  static const NormBackwardKernels<T> kernels = DESCEND_CHOOSE(layer_norm_backward_kernels<T>)();
  static const auto single = DESCEND_CHOOSE(layer_norm_backward_single<T>);
  NormBackward<T> of{.rows = p.rows,
                     .columns = p.columns,
                     .dy = p.dy,
                     .x = p.x,
                     .mean = p.mean,
                     .rstd = p.rstd,
                     .gamma = p.gamma,
                     .dx = p.dx,
                     .dgamma = p.dgamma,
                     .dbeta = p.dbeta};
  if (p.columns != 1 || p.rows == 0 || p.dx.data == nullptr) return norm_backward(of, kernels, scratch);
  of.dx.data = nullptr;
  if (p.dgamma.wanted() || p.dbeta.wanted()) norm_backward(of, kernels, scratch);
  of.dx = p.dx;  // last: it may be dy or x
  const int64_t work = row_work<T>(3), bytes = 2 * static_cast<int64_t>(sizeof(T));
  over_loose_rows(cut_loose_rows(p.rows, bytes, work), p.rows, work,
                  [&](int64_t first, int64_t last) { single(of, first, last); });
}

#define DESCEND_INSTANTIATE(T)                                                   \
  template int64_t layer_norm_backward_slots<T>(int64_t rows, int64_t columns);  \
  template size_t layer_norm_backward_scratch<T>(int64_t rows, int64_t columns); \
  template void layer_norm_backward<T>(const LayerNormBackward<T>& problem, void* scratch);
DESCEND_INSTANTIATE(float16)
DESCEND_INSTANTIATE(bfloat16)
DESCEND_INSTANTIATE(float)
DESCEND_INSTANTIATE(double)

}  // namespace descend::kernels
#endif  // HWY_ONCE
