// SwiGLU: a * sigmoid(a) * b, of the two halves a and b of each row.
#include "kernels/elements/elements-inl.h"
#include "kernels/simd/dispatch.h"
#include "kernels/simd/sigmoid-inl.h"

HWY_BEFORE_NAMESPACE();
namespace descend::kernels::HWY_NAMESPACE {

struct SwiGluProgram {
  static constexpr int kInputs = 2, kOutputs = 1;

  template <class T, class V, size_t kN>
  static HWY_INLINE void map(const V (&in)[kInputs][kN], V (&out)[kOutputs][kN]) {
    using W = Wide<T>;
    V power[kN];
    powers_of_negatives<sizeof(T) == 2, W, kN>(in[0], power);
    times_sigmoids<W, kN>(in[0], power, in[0], in[1], out[0]);
  }
};

template <class T>
void swi_glu_part(const Elements<T, 2, 1>& problem, const ElementPart& part) {
  walk_elements<SwiGluProgram>(problem, part);
}

}  // namespace descend::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

namespace descend::kernels::DESCEND_TARGET {

template <class T>
void swi_glu(const Elements<T, 2, 1>& problem) {
  run_elements(problem, swi_glu_part<T>);
}

}  // namespace descend::kernels::DESCEND_TARGET

DESCEND_KERNEL(void, swi_glu, (const Elements<T, 2, 1>& problem), problem)
