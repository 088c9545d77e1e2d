// GELU, x times the normal distribution's function of x, by erf or by tanh.
#include "kernels/elements/elements-inl.h"
#include "kernels/simd/dispatch.h"
#include "kernels/simd/gelu-inl.h"

HWY_BEFORE_NAMESPACE();
namespace descend::kernels::HWY_NAMESPACE {

template <template <class, bool> class Form>
struct GeluProgram {
  static constexpr int kInputs = 1, kOutputs = 1;

  template <class T, class V, size_t kN>
  static HWY_INLINE void map(const V (&in)[kInputs][kN], V (&out)[kOutputs][kN]) {
    constexpr bool kBrief = sizeof(T) == 2;
    gelu<Form<Wide<T>, kBrief>, kBrief, Wide<T>, kN>(in[0], out[0]);
  }
};

template <class T>
void gelu_part(const Elements<T, 1, 1>& problem, const ElementPart& part) {
  walk_elements<GeluProgram<ByErf>>(problem, part);
}
template <class T>
void gelu_tanh_part(const Elements<T, 1, 1>& problem, const ElementPart& part) {
  walk_elements<GeluProgram<ByTanh>>(problem, part);
}

}  // namespace descend::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

namespace descend::kernels::DESCEND_TARGET {

template <class T>
void gelu_v2(const Elements<T, 1, 1>& problem, bool by_tanh) {
  run_elements(problem, by_tanh ? gelu_tanh_part<T> : gelu_part<T>);
}

}  // namespace descend::kernels::DESCEND_TARGET

DESCEND_KERNEL(void, gelu_v2, (const Elements<T, 1, 1>& problem, bool by_tanh), problem, by_tanh)
