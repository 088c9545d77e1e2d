// Sums of columns: added in double, stripe after stripe, and written to where they end.
#pragma once

#include <type_traits>

#include "kernels/doubles-inl.h"
#include "kernels/pack-inl.h"

HWY_BEFORE_NAMESPACE();
namespace descend::kernels::HWY_NAMESPACE {

// to[i] (fresh: =, else +=) from[i]: column sums of a stripe of rows, added in double.
template <class W>
HWY_NOINLINE void add_columns(const W* from, int64_t n, bool fresh, double* to) {
  const Tag<double> d;
  constexpr int64_t kStep = kVectorLanes<double>;
  int64_t i = 0;
  if (fresh) {
    for (; i + kStep <= n; i += kStep) hn::StoreU(load_as_double(from + i), d, to + i);
    for (; i < n; ++i) to[i] = from[i];
  } else {
    for (; i + kStep <= n; i += kStep) hn::StoreU(hn::Add(hn::LoadU(d, to + i), load_as_double(from + i)), d, to + i);
    for (; i < n; ++i) to[i] += from[i];
  }
}

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
