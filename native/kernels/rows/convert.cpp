#include "kernels/rows/convert.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "kernels/schedule/cut.h"
#include "kernels/simd/convert-inl.h"
#include "kernels/simd/dispatch.h"
#include "runtime/parallel.h"

HWY_BEFORE_NAMESPACE();
namespace descend::kernels::HWY_NAMESPACE {

// sums[i] += values[i]
void add_span(const double* values, double* sums, int64_t n) { add_columns(values, n, false, sums); }

}  // namespace descend::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

namespace descend::kernels::DESCEND_TARGET {
namespace {

using Span = void (*)(const void* from, void* to, int64_t n);

Span choose_span(Element from, Element to) {
  Span chosen = nullptr;
  with_element_type(from, [&]<class From>(From) {
    with_element_type(to, [&]<class To>(To) { chosen = convert_neighbours<From, To>; });
  });
  return chosen;
}

// Elements `stride` bytes apart into neighbours, or back.
template <class Bits>
void gather_bits(const char* from, int64_t from_stride, char* to, int64_t to_stride, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    Bits bits;
    std::memcpy(&bits, from + i * from_stride, sizeof bits);
    std::memcpy(to + i * to_stride, &bits, sizeof bits);
  }
}

void gather(int64_t size, const char* from, int64_t from_stride, char* to, int64_t to_stride, int64_t n) {
  if (size == 2) return gather_bits<uint16_t>(from, from_stride, to, to_stride, n);
  if (size == 4) return gather_bits<uint32_t>(from, from_stride, to, to_stride, n);
  gather_bits<uint64_t>(from, from_stride, to, to_stride, n);
}

struct Dimension {
  int64_t n, from, to;
};

constexpr int64_t kLongPiece = 16384;  // of a contiguous inner dimension
constexpr int64_t kPiece = 256;    // of a strided one: two buffers of this many elements stay in the first-level cache
constexpr int64_t kChunk = 65536;  // elements that one thread takes at a time

// The dimensions as the walk takes them, outermost first, neighbours that form one run merged.
struct Walk {
  Dimension outer[Strided::kMaxRank];
  int outer_rank = 0;
  // Walked within each piece of the inner one: where the source is transposed, the piece's lines are still in cache
  // when the next of these reads on in them.
  Dimension next{1, 0, 0};
  Dimension inner{1, 1, 1};  // the output's neighbours
};

Walk plan_walk(const Strided& extent) {
  Dimension dims[Strided::kMaxRank];
  int rank = 0;
  for (int i = 0; i < extent.rank; ++i) {
    if (extent.shape[i] != 1) dims[rank++] = {extent.shape[i], extent.from_stride[i], extent.to_stride[i]};
  }
  std::stable_sort(dims, dims + rank,
                   [](const Dimension& a, const Dimension& b) { return std::abs(a.to) > std::abs(b.to); });
  int merged = 0;
  for (int i = 0; i < rank; ++i) {
    Dimension* last = merged > 0 ? &dims[merged - 1] : nullptr;
    if (last && last->from == dims[i].n * dims[i].from && last->to == dims[i].n * dims[i].to) {
      *last = {last->n * dims[i].n, dims[i].from, dims[i].to};
    } else {
      dims[merged++] = dims[i];
    }
  }
  Walk walk;
  if (merged > 0) walk.inner = dims[--merged];
  if (merged > 0) {
    auto* nearest = std::min_element(dims, dims + merged, [](const Dimension& a, const Dimension& b) {
      return std::abs(a.from) < std::abs(b.from);
    });
    if (std::abs(nearest->from) >= std::abs(walk.inner.from)) nearest = dims + merged - 1;
    std::rotate(nearest, nearest + 1, dims + merged);
    walk.next = dims[--merged];
  }
  std::copy(dims, dims + merged, walk.outer);
  walk.outer_rank = merged;
  return walk;
}

}  // namespace

void convert(const Strided& extent, Element from_type, const void* from, Element to_type, void* to) {
  int64_t elements = 1;
  for (int i = 0; i < extent.rank; ++i) elements *= extent.shape[i];
  if (elements == 0) return;

  const Walk walk = plan_walk(extent);
  const Span span = choose_span(from_type, to_type);
  const int64_t from_size = size_of(from_type), to_size = size_of(to_type);
  const bool from_runs = walk.inner.from == 1 || walk.inner.n == 1;
  const bool to_runs = walk.inner.to == 1 || walk.inner.n == 1;
  const int64_t piece = std::min(walk.inner.n, from_runs && to_runs ? kLongPiece : kPiece);
  const int64_t pieces = ceil_div(walk.inner.n, piece);
  const int64_t units = elements / walk.inner.n * pieces;
  const int64_t chunk_units = std::max<int64_t>(kChunk / piece, 1);

  const auto convert_piece = [&](const char* source, char* target, int64_t n) {
    alignas(64) char from_buffer[kPiece * 8], to_buffer[kPiece * 8];
    if (!from_runs) {
      gather(from_size, source, walk.inner.from * from_size, from_buffer, from_size, n);
      source = from_buffer;
    }
    span(source, to_runs ? target : to_buffer, n);
    if (!to_runs) gather(to_size, to_buffer, to_size, target, walk.inner.to * to_size, n);
  };

  parallel_for(ceil_div(units, chunk_units), elements * (from_size + to_size), [&](int64_t chunk) {
    const int64_t end = std::min((chunk + 1) * chunk_units, units);
    for (int64_t unit = chunk * chunk_units; unit < end;) {
      const int64_t step = unit % walk.next.n;
      const int64_t steps = std::min(walk.next.n - step, end - unit);
      int64_t rest = unit / walk.next.n;
      const int64_t column = rest % pieces * piece;
      rest /= pieces;
      int64_t from_offset = step * walk.next.from + column * walk.inner.from;
      int64_t to_offset = step * walk.next.to + column * walk.inner.to;
      for (int i = walk.outer_rank - 1; i >= 0; --i) {
        from_offset += rest % walk.outer[i].n * walk.outer[i].from;
        to_offset += rest % walk.outer[i].n * walk.outer[i].to;
        rest /= walk.outer[i].n;
      }
      const char* source = static_cast<const char*>(from) + from_offset * from_size;
      char* target = static_cast<char*>(to) + to_offset * to_size;
      const int64_t n = std::min(piece, walk.inner.n - column);
      for (int64_t i = 0; i < steps; ++i) {
        convert_piece(source + i * walk.next.from * from_size, target + i * walk.next.to * to_size, n);
      }
      unit += steps;
    }
  });
}

void convert_span(Element from_type, const void* from, Element to_type, void* to, int64_t n) {
  choose_span(from_type, to_type)(from, to, n);
}

void sum_slots(int64_t slots, int64_t columns, const double* partial, Element out_type, void* out, int64_t out_stride) {
  const Span span = choose_span(Element::kFloat64, out_type);
  const int64_t size = size_of(out_type);
  constexpr int64_t kColumns = 512;
  constexpr int64_t kRemote = 4;  // times as long as memory takes what comes from other cores' caches
  parallel_for(ceil_div(columns, kColumns), kRemote * slots * columns * 8, [&](int64_t chunk) {
    alignas(64) double sums[kColumns];
    alignas(64) char rounded[kColumns * 8];
    const int64_t first = chunk * kColumns;
    const int64_t n = std::min(kColumns, columns - first);
    const double* source = partial + first;
    if (slots > 1) {
      copy_few(source, n, sums);
      for (int64_t slot = 1; slot < slots; ++slot) add_span(source + slot * columns, sums, n);
      source = sums;
    }
    char* target = static_cast<char*>(out) + first * out_stride * size;
    const bool runs = out_stride == 1 || n == 1;
    span(source, runs ? target : rounded, n);
    if (!runs) gather(size, rounded, size, target, out_stride * size, n);
  });
}

}  // namespace descend::kernels::DESCEND_TARGET

DESCEND_PLAIN_KERNEL(void, convert,
                     (const Strided& extent, Element from_type, const void* from, Element to_type, void* to), extent,
                     from_type, from, to_type, to)
DESCEND_PLAIN_KERNEL(void, convert_span, (Element from_type, const void* from, Element to_type, void* to, int64_t n),
                     from_type, from, to_type, to, n)
DESCEND_PLAIN_KERNEL(void, sum_slots,
                     (int64_t slots, int64_t columns, const double* partial, Element out_type, void* out,
                      int64_t out_stride),
                     slots, columns, partial, out_type, out, out_stride)
