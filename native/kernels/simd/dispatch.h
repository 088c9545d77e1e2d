// One source, several targets (sets of instructions): how a kernel's file is compiled for each, and the version to run
// is chosen.
//
// The build compiles a file that includes this header once for each target (cmake/kernels.cmake), and says by
//
//   DESCEND_TARGET      which: avx3, avx2 or baseline
//   DESCEND_HWY_TARGET  Highway's name of it
//   DESCEND_FLOATS, DESCEND_DOUBLES  whether for float and 16 bits, for double, or for all
//
// A target is an object file of its own, so that a first build can leave out those that its machine does not run. What
// stands in namespace HWY_NAMESPACE is compiled for the target's instructions, what stands in DESCEND_TARGET for any
// processor. Highway comes by way of this header alone.
#pragma once

#include "kernels/simd/element.h"
#include "kernels/simd/isa.h"

// Highway's conversions of 16-bit floats are right on AVX2, AVX-512 and NEON. Whatever else the compiler takes for its
// baseline (plain x86-64) gets our own.
#define HWY_DISABLED_TARGETS ((HWY_AVX3_DL - 1) | HWY_AVX3_DL | HWY_SSE4 | HWY_SSSE3)
#include "hwy/detect_targets.h"
#undef HWY_TARGET
#define HWY_TARGET DESCEND_HWY_TARGET
#include "hwy/highway.h"

namespace descend::kernels::HWY_NAMESPACE {}
namespace descend::kernels::DESCEND_TARGET {
using namespace HWY_NAMESPACE;
}

namespace descend::kernels {

// The best version that this machine runs. Those that are not in the build are null; a processor with AVX-512 takes
// AVX2's where avx3 has none.
template <class Function>
Function* chosen(Function* avx3, Function* avx2, Function* baseline) {
  // volatile: of a template's weak function GCC 12 thinks that its address cannot be null.
  Function* const volatile versions[] = {baseline, avx2, avx3};
  for (auto level = static_cast<int>(isa()); level > 0; --level) {
    if (Function* const version = versions[level]) return version;
  }
  return versions[0];
}

}  // namespace descend::kernels

// The function that all others call: name<T>(parameters) in descend::kernels, which runs the chosen version. It stands
// at the end of the file, outside any namespace, behind its version in namespace DESCEND_TARGET:
// template <class T> Result name parameters. The last arguments are the parameters' names.
#define DESCEND_KERNEL(Result, name, parameters, ...)                                \
  namespace descend::kernels {                                                       \
  DESCEND_VERSIONS(template <class T> [[gnu::weak]] Result name parameters)          \
  template <class T>                                                                 \
  Result name parameters {                                                           \
    static const auto run = chosen(avx3::name<T>, avx2::name<T>, baseline::name<T>); \
    return run(__VA_ARGS__);                                                         \
  }                                                                                  \
  [[gnu::used]] static void* const name##_of_types[] = {DESCEND_OF_TYPES(name)};     \
  }

// Its addresses, for whose sake the compiler makes it of each type.
#if DESCEND_FLOATS && DESCEND_DOUBLES
#define DESCEND_OF_TYPES(name) DESCEND_OF_FLOATS(name), DESCEND_OF_TYPE(name<double>)
#elif DESCEND_FLOATS
#define DESCEND_OF_TYPES DESCEND_OF_FLOATS
#else
#define DESCEND_OF_TYPES(name) DESCEND_OF_TYPE(name<double>)
#endif
#define DESCEND_OF_FLOATS(name) \
  DESCEND_OF_TYPE(name<float16>), DESCEND_OF_TYPE(name<bfloat16>), DESCEND_OF_TYPE(name<float>)
#define DESCEND_OF_TYPE(function) reinterpret_cast<void*>(&function)

// The same of a function that is no template: it is compiled with the floats.
#define DESCEND_PLAIN_KERNEL(Result, name, parameters, ...)                         \
  namespace descend::kernels {                                                      \
  DESCEND_VERSIONS([[gnu::weak, gnu::visibility("hidden")]] Result name parameters) \
  [[gnu::weak]] Result name parameters {                                            \
    static const auto run = chosen(avx3::name, avx2::name, baseline::name);         \
    return run(__VA_ARGS__);                                                        \
  }                                                                                 \
  }

// A function's versions. A file defines one; the linker may find others, or none.
#define DESCEND_VERSIONS(...) \
  namespace avx3 {            \
  __VA_ARGS__;                \
  }                           \
  namespace avx2 {            \
  __VA_ARGS__;                \
  }                           \
  namespace baseline {        \
  __VA_ARGS__;                \
  }
