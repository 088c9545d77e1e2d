// One source, several targets: how a kernel's file is compiled once for each, and how the version to run is chosen.
//
// A kernel's file defines HWY_TARGET_INCLUDE as itself, then includes this header and after it the *-inl.h headers,
// which bring Highway: hwy/highway.h must not come first. What follows in namespace HWY_NAMESPACE exists once for each
// target. Highway's own run-time dispatch needs its library, which is not linked: DESCEND_CHOOSE stands in for it.
#pragma once

#include <cstdint>
#include <type_traits>

// Highway's conversions of 16-bit floats are right on AVX2, AVX-512 and NEON. Whatever else the compiler takes for its
// baseline (plain x86-64) gets our own; the steps between it and AVX2, and beyond AVX-512's core, are not worth their
// code.
#define HWY_DISABLED_TARGETS ((HWY_AVX3_DL - 1) | HWY_AVX3_DL | HWY_SSE4 | HWY_SSSE3)
#if defined(__aarch64__) && !defined(HWY_COMPILE_ONLY_STATIC)
#define HWY_COMPILE_ONLY_STATIC  // NEON is always there
#endif
#include "hwy/foreach_target.h"

namespace descend::kernels {

enum class Isa : uint8_t { kBaseline, kAvx2, kAvx3 };

Isa isa();

}  // namespace descend::kernels

// The address of the chosen target's version of a function; use it in namespace descend::kernels, under HWY_ONCE.
#define DESCEND_CHOOSE(...) DESCEND_CHOOSE_FOR(float, __VA_ARGS__)

// The same for a function of elements of T, in a template. In double AVX2's version serves AVX-512, too, so that it is
// compiled once: it takes 1.06 times as long (rms_norm and its gradient, 16x1024 to 1024x1024; 1.3 times at worst).
#define DESCEND_CHOOSE_FOR(T, ...)                 \
  [] {                                             \
    switch (isa()) {                               \
      DESCEND_CASE_AVX3(T, __VA_ARGS__)            \
      DESCEND_CASE_AVX2(__VA_ARGS__)               \
      default:                                     \
        return &HWY_STATIC_DISPATCH() __VA_ARGS__; \
    }                                              \
  }()

#if HWY_TARGETS & HWY_AVX3
#define DESCEND_CASE_AVX3(T, ...)               \
  case Isa::kAvx3:                              \
    if constexpr (!std::is_same_v<T, double>) { \
      return &N_AVX3::__VA_ARGS__;              \
    }                                           \
    [[fallthrough]];
#else
#define DESCEND_CASE_AVX3(T, ...)
#endif
#if HWY_TARGETS & HWY_AVX2
#define DESCEND_CASE_AVX2(...) \
  case Isa::kAvx2:             \
    return &N_AVX2::__VA_ARGS__;
#else
#define DESCEND_CASE_AVX2(...)
#endif
