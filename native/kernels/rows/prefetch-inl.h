// What is asked for before it is read, and what is waited for.
#pragma once

#include "kernels/schedule/cut.h"
#include "kernels/simd/pack-inl.h"

HWY_BEFORE_NAMESPACE();
namespace descend::kernels::HWY_NAMESPACE {

HWY_INLINE void flush_streams() { hwy::FlushStream(); }

// How far ahead is asked for what is to be read, of each input: enough to keep a fast memory busy.
inline constexpr int64_t kAheadBytes = 4096;

// GCC takes a function that does nothing but prefetch for one without effect, and drops its calls.
HWY_INLINE void keep_prefetch([[maybe_unused]] const void* p) {
#if HWY_COMPILER_GCC_ACTUAL
  asm volatile("" ::"m"(*static_cast<const char*>(p)));
#endif
}

// Asks for the line at p, for the first-level cache.
HWY_INLINE void prefetch_near(const void* p) {
  hwy::Prefetch(p);
  keep_prefetch(p);
}

// The same of what probably lies in memory, for the cache that suits the machine.
HWY_INLINE void prefetch_distant(const void* p) {
  if (!kAsksSecondLevel) return prefetch_near(p);
  __builtin_prefetch(p, 0, 2);
  keep_prefetch(p);
}

// The lines of a pack, asked for by one of these.
template <void (*kPrefetch)(const void*), class T>
HWY_INLINE void prefetch_pack(const T* p, int64_t ahead) {
  DESCEND_UNROLL
  for (size_t i = 0; i < kPackLanes<Wide<T>>; i += 64 / sizeof(T)) kPrefetch(p + ahead + i);
}

// No read below is begun before those above are served.
HWY_INLINE void await_reads() { hwy::LoadFence(); }

}  // namespace descend::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
