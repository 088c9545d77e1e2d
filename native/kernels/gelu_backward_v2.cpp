// The gradient of GELU, by erf or by tanh: dy times the slope at x.
#include "kernels/elements/elements-inl.h"
#include "kernels/simd/dispatch.h"
#include "kernels/simd/gelu-inl.h"

HWY_BEFORE_NAMESPACE();
namespace descend::kernels::HWY_NAMESPACE {

template <template <class, bool> class Form>
struct GeluBackwardProgram {
  static constexpr int kInputs = 2, kOutputs = 1;  // dy, x

  template <class T, class V, size_t kN>
  static HWY_INLINE void map(const V (&in)[kInputs][kN], V (&out)[kOutputs][kN]) {
    constexpr bool kBrief = sizeof(T) == 2;
    V slope[kN];
    gelu_slopes<Form<Wide<T>, kBrief>, kBrief, Wide<T>, kN>(in[1], slope);
    each<kN>([&](size_t k) DESCEND_INLINED { out[0][k] = hn::Mul(in[0][k], slope[k]); });
  }
};

template <class T>
void gelu_backward_part(const Elements<T, 2, 1>& problem, const ElementPart& part) {
  walk_elements<GeluBackwardProgram<ByErf>>(problem, part);
}
template <class T>
void gelu_tanh_backward_part(const Elements<T, 2, 1>& problem, const ElementPart& part) {
  walk_elements<GeluBackwardProgram<ByTanh>>(problem, part);
}

}  // namespace descend::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

namespace descend::kernels::DESCEND_TARGET {

template <class T>
void gelu_backward_v2(const Elements<T, 2, 1>& problem, bool by_tanh) {
  run_elements(problem, by_tanh ? gelu_tanh_backward_part<T> : gelu_backward_part<T>);
}

}  // namespace descend::kernels::DESCEND_TARGET

DESCEND_KERNEL(void, gelu_backward_v2, (const Elements<T, 2, 1>& problem, bool by_tanh), problem, by_tanh)
