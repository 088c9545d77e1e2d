#include "kernels/cut.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

namespace descend::kernels {
namespace {

constexpr int64_t kTileBytes = int64_t{256} << 10;  // half of a small second-level cache: the next tile arrives beside it
[[maybe_unused]] constexpr int64_t kShortTileBytes = int64_t{24} << 10;  // half of a first-level cache
constexpr int64_t kGroupBytes = int64_t{4} << 20;   // a part of a small last-level cache
constexpr int64_t kSmall = int64_t{64} << 10;       // bytes of input that are not worth a second thread
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

RowCut cut_rows(int64_t rows, int64_t columns, int64_t row_bytes) {
  const int64_t bytes = std::max<int64_t>(row_bytes, 1);
  const auto rows_within = [&](int64_t limit) {
    int64_t fit = std::clamp<int64_t>(limit / bytes, 1, kMaxStripe);
    while (fit & (fit - 1)) fit &= fit - 1;  // a power of two
    return fit;
  };
  RowCut cut;
  static const int64_t TB=getenv("TB")?atoi(getenv("TB"))<<10:24<<10;
  static const int64_t TM=getenv("TM")?atoi(getenv("TM")):4;
  if (columns <= kStripeColumns) {
    cut.tile = std::max<int64_t>(rows_within(TB), TM);
    cut.stripe = kMaxStripe;
  } else {
    cut.tile = rows_within(kTileBytes);
    cut.stripe = cut.tile;
  }
  cut.chunk = std::max(ceil_div(rows, kMaxChunks), kMinChunkRows);
  if (rows * bytes <= kSmall) cut.chunk = std::max<int64_t>(rows, 1);
  cut.chunk = ceil_div(cut.chunk, cut.stripe) * cut.stripe;
  cut.chunks = std::max<int64_t>(ceil_div(rows, cut.chunk), 1);
  return cut;
}

bool split_columns(int64_t rows, int64_t columns, int64_t row_bytes) {
  if (columns < 4 * kBlock) return false;
  return rows < 8 * kMinChunkRows || row_bytes > 2 * kTileBytes;
}

int64_t group_rows(int64_t row_bytes) { return std::clamp<int64_t>(kGroupBytes / row_bytes, 1, kMaxStripe); }

bool stream_output(const void* data, int64_t row_stride_bytes, int64_t output_bytes, int64_t all_bytes) {
  static const int64_t cache = last_level_cache_bytes();
  (void)output_bytes;
  return all_bytes > cache && reinterpret_cast<uintptr_t>(data) % 64 == 0 && row_stride_bytes % 64 == 0;
}

}  // namespace descend::kernels
