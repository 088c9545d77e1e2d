// Sums of columns: added in double, stripe after stripe, and written to where they end.
#pragma once

#include <type_traits>

#include "kernels/simd/doubles-inl.h"
#include "kernels/simd/pack-inl.h"

HWY_BEFORE_NAMESPACE();
namespace descend::kernels::HWY_NAMESPACE {

// Writes the sums of n columns to where they end. pack_at(column, rounds) gives them pack by pack; rounds: whether they
// are rounded once more, to 16 bits. Rows of 16 bits leave memory time for sums that are stored as usual.
template <class T, class PackAt>
HWY_INLINE void write_sums(const ColumnSums<T>& to, int64_t n, bool stream, PackAt pack_at) {
  const auto write = [&](auto* end, auto streams) DESCEND_INLINED {
    for_each_pack<Wide<T>>(0, n, [&](auto extent, int64_t c) DESCEND_INLINED {
      store<streams()>(extent, pack_at(c, sizeof(*end) == 2), end + c);
    });
  };
  if constexpr (sizeof(T) == 2) {
    if (to.own != nullptr) return write(to.own, std::false_type());
  } else if (stream && reinterpret_cast<uintptr_t>(to.wide) % 64 == 0) {
    return write(to.wide, std::true_type());
  }
  write(to.wide, std::false_type());
}

// The sums of n columns, in the type of the arithmetic or in double, go to the slots (fresh: nothing is in them) or to
// where they end.
template <class T, class V>
HWY_INLINE void leave_sums(const V* sums, int64_t n, const ColumnSums<T>& to, bool fresh, bool stream) {
  if (!to.wanted()) return;
  if (to.slots != nullptr) return add_columns(sums, n, fresh, to.slots);
  write_sums(to, n, stream, [&](int64_t c, bool rounds) DESCEND_INLINED {
    if constexpr (std::is_same_v<V, Wide<T>>) {
      return load_pack(Full(), sums + c);
    } else {
      return narrow_pack<Wide<T>>(sums + c, rounds);
    }
  });
}

}  // namespace descend::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
