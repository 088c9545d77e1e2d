#include "kernels/cut.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>

namespace descend::kernels {
namespace {

constexpr int64_t kTileBytes = int64_t{24} << 10;  // half of a first-level cache, where the rows are short enough
constexpr int64_t kTileRows = 4;                   // at least; kernels work on so many side by side
constexpr int64_t kGroupBytes = int64_t{4} << 20;  // a part of a small last-level cache
constexpr int64_t kSmall = int64_t{64} << 10;      // bytes of input that are not worth a second thread
constexpr int64_t kPrefetch = int64_t{512} << 10;  // bytes of input that may not be in a second-level cache
constexpr int64_t kMaxChunks = 64;
constexpr int64_t kMinChunkRows = 32;

int64_t last_level_cache_bytes() {
#if defined(__linux__)
  // sysconf() knows what the package has, which on a virtual machine is more than what this CPU may use.
  long kibibytes = 0;
  for (int index = 3; index >= 2 && kibibytes == 0; --index) {
    char path[64];
    std::snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu0/cache/index%d/size", index);
    if (std::FILE* file = std::fopen(path, "r")) {
      if (std::fscanf(file, "%ldK", &kibibytes) != 1) kibibytes = 0;
      std::fclose(file);
    }
  }
  if (kibibytes > 0) return int64_t{kibibytes} << 10;
#endif
#if defined(_SC_LEVEL3_CACHE_SIZE)
  if (const long bytes = sysconf(_SC_LEVEL3_CACHE_SIZE); bytes > 0) return bytes;
#endif
  return int64_t{16} << 20;
}

}  // namespace

RowCut cut_rows(int64_t rows, int64_t row_bytes) {
  const int64_t bytes = std::max<int64_t>(row_bytes, 1);
  RowCut cut;
  cut.tile = kTileRows;
  while (cut.tile < kMaxStripe && 2 * cut.tile * bytes <= kTileBytes) cut.tile *= 2;
  cut.chunk = std::max(ceil_div(rows, kMaxChunks), kMinChunkRows);
  if (rows * bytes <= kSmall) cut.chunk = std::max<int64_t>(rows, 1);
  cut.chunk = ceil_div(cut.chunk, kMaxStripe) * kMaxStripe;
  cut.chunks = std::max<int64_t>(ceil_div(rows, cut.chunk), 1);
  cut.prefetch = rows * bytes > kPrefetch;
  return cut;
}

bool split_columns(int64_t rows, int64_t columns) {
  return columns > kStripeColumns || (columns >= 4 * kBlock && rows < 8 * kMinChunkRows);
}

int64_t group_rows(int64_t row_bytes) { return std::clamp<int64_t>(kGroupBytes / row_bytes, 1, kMaxStripe); }

bool stream_output(const void* data, int64_t row_stride_bytes, int64_t bytes) {
  static const int64_t cache = last_level_cache_bytes();
  return bytes > cache / 2 && reinterpret_cast<uintptr_t>(data) % 64 == 0 && row_stride_bytes % 64 == 0;
}

}  // namespace descend::kernels
