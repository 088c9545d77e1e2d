// The floating-point environment that every chunk runs under: round to nearest, no flushing of subnormals, no traps.
#pragma once

#include <cstdint>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace descend {

class FixedFpEnvironment {
 public:
  FixedFpEnvironment() : saved_(read()) {
    if (saved_ != kFixed) write(kFixed);
  }
  ~FixedFpEnvironment() {
    if (saved_ != kFixed) write(saved_);
  }
  FixedFpEnvironment(const FixedFpEnvironment&) = delete;
  FixedFpEnvironment& operator=(const FixedFpEnvironment&) = delete;

 private:
#if defined(__x86_64__)
  using Word = uint32_t;
  static constexpr Word kFixed = 0x1F80;                     // MXCSR: all exceptions masked, nearest, FTZ and DAZ off
  static Word read() { return _mm_getcsr() & ~Word{0x3F}; }  // sticky exception flags do not count
  static void write(Word word) { _mm_setcsr(word); }
#elif defined(__aarch64__)
  using Word = uint64_t;
  static constexpr Word kFixed = 0;  // FPCR: nearest, no flushing, IEEE NaN propagation
  static Word read() {
    Word word;
    asm volatile("mrs %0, fpcr" : "=r"(word));
    return word;
  }
  static void write(Word word) { asm volatile("msr fpcr, %0" ::"r"(word)); }
#else
#error "descend runs on x86-64 and AArch64"
#endif
  Word saved_;
};

}  // namespace descend
