// The gradient of SwiGLU, a * sigmoid(a) * b: that of a, dy * b times the slope of a * sigmoid(a), and that of b.
#include "kernels/elements/elements-inl.h"
#include "kernels/simd/dispatch.h"
#include "kernels/simd/sigmoid-inl.h"

HWY_BEFORE_NAMESPACE();
namespace descend::kernels::HWY_NAMESPACE {

struct SwiGluGradProgram {
  static constexpr int kInputs = 3, kOutputs = 2;  // dy, a, b; the gradients of a and b

  template <class T, class V, size_t kN>
  static HWY_INLINE void map(const V (&in)[kInputs][kN], V (&out)[kOutputs][kN]) {
    using W = Wide<T>;
    V power[kN];
    powers_of_negatives<sizeof(T) == 2, W, kN>(in[1], power);
    times_slopes<W, kN>(in[1], power, in[0], in[2], out[0]);
    times_sigmoids<W, kN>(in[1], power, in[0], in[1], out[1]);
  }
};

template <class T>
void swi_glu_grad_part(const Elements<T, 3, 2>& problem, const ElementPart& part) {
  walk_elements<SwiGluGradProgram>(problem, part);
}

}  // namespace descend::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

namespace descend::kernels::DESCEND_TARGET {

template <class T>
void swi_glu_grad(const Elements<T, 3, 2>& problem) {
  run_elements(problem, swi_glu_grad_part<T>);
}

}  // namespace descend::kernels::DESCEND_TARGET

DESCEND_KERNEL(void, swi_glu_grad, (const Elements<T, 3, 2>& problem), problem)
