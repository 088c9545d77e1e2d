// Log softmax of rows. A row is read from memory once: see scores-inl.h.
#include "kernels/log_softmax.h"

#include "kernels/rows/prefetch-inl.h"
#include "kernels/scores/scores-inl.h"
#include "kernels/simd/dispatch.h"

HWY_BEFORE_NAMESPACE();
namespace descend::kernels::HWY_NAMESPACE {

template <bool kAhead, class T>
void log_softmax_rows(const LogSoftmax<T>& p, int64_t first, int64_t end, bool streams) {
  using W = Wide<T>;
  Stage<T, kSpanColumns> stage;
  const int64_t tile = rows_at_once<W>(p.columns);
  for (int64_t row = first; row < end; row += tile) {
    const int64_t rows = HWY_MIN(tile, end - row);
    SumOfExps sums[kFoldRows<W>];
    sum_exps<kAhead, T>({p.x.row(row), p.x.stride}, rows, p.columns, sums);
    HWY_ALIGN double logs[kFoldRows<W>];
    logs_of_sums(sums, rows, logs);
    map_log_softmax_rows<T>({p.x.row(row), p.x.stride}, rows, p.columns, sums, logs, {p.y.row(row), p.y.stride},
                            streams, stage);
  }
  if (!streams) return;
  stage.finish();
  flush_streams();
}

}  // namespace descend::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

namespace descend::kernels::DESCEND_TARGET {

template <class T>
void log_softmax(const LogSoftmax<T>& p) {
  const auto plain = log_softmax_rows<false, T>, ahead = log_softmax_rows<true, T>;
  const int64_t bytes = p.rows * p.columns * static_cast<int64_t>(sizeof(T));
  if (bytes == 0) return;
  const bool streams = p.y.data != p.x.data && streams_results({2 * bytes, bytes});
  run_rows(p.rows, p.columns, row_work<T>(2 * p.columns),
           [&](int64_t first, int64_t end) { (exceeds_kept(bytes) ? ahead : plain)(p, first, end, streams); });
}

}  // namespace descend::kernels::DESCEND_TARGET

DESCEND_KERNEL(void, log_softmax, (const LogSoftmax<T>& problem), problem)
